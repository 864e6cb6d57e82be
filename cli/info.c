/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lap info`: what was built in, and what this machine offers, as text or as JSON. What can be
 * tried is tried; no file or memory is left.
 */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <lap/lap.h>

#include "about.h"
#include "cli.h"
#include "core/file.h"
#include "core/make.h"
#include "device/cpu/cpu_blas.h"
#include "device/cuda/cuda_info.h"
#include "device/device.h"
#include "kernel/plugin/plugin.h"
#include "lap_commit.h"
#include "lap_config.h"
#include "mps.h"
#include "shared_options.h"
#include "transport/nccl/nccl_info.h"
#include "transport/transport.h"
#include "util/cores.h"

/* Prints sections of facts; as JSON, an object of objects. */
typedef struct page {
    lap_json_t *json; /* NULL: text */
    bool in_section;
} page_t;

enum { KEY_WIDTH = 12 };

/* `name` is the key in JSON, `title` the heading in text. */
static void section(page_t *page, const char *name, const char *title)
{
    if (page->json && page->in_section)
        lap_json_put(page->json, "}");
    if (page->json)
        lap_json_put(page->json, "%s:{", name);
    else
        printf("\n%s\n", title);
    page->in_section = true;
}

/* In JSON "build type" is build_type, and memory in GiB is memory_gib. */
static void fact_key(page_t *page, const char *key, const char *unit)
{
    char name[64];
    snprintf(name, sizeof(name), "%s%s%s", key, *unit ? "_" : "", unit);
    for (char *c = name; *c; c++)
        *c = (char)(*c == ' ' ? '_' : tolower((unsigned char)*c));
    if (page->json)
        lap_json_put(page->json, "%s:", name);
    else
        printf("  %-*s ", KEY_WIDTH, key);
}

static void fact(page_t *page, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void fact(page_t *page, const char *key, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    fact_key(page, key, "");
    if (page->json)
        lap_json_put(page->json, "%s", text);
    else
        printf("%s\n", text);
}

/* A number, with what it counts in text ("GiB"). */
static void fact_number(page_t *page, const char *key, double value, const char *unit)
{
    fact_key(page, key, unit);
    if (page->json)
        lap_json_put(page->json, "%.10g", value);
    else
        printf("%.10g%s%s\n", value, *unit ? " " : "", unit);
}

/* Whether the machine can do something: `error` is 0, or the errno that says why not. */
static void fact_able(page_t *page, const char *key, int error, const char *use)
{
    fact_key(page, key, "");
    if (page->json)
        lap_json_put(page->json, "%i", error == 0);
    else if (error == 0)
        printf("yes, for %s\n", use);
    else
        printf("no (%s), needed for %s\n", strerror(error), use);
}

static void fact_optional(page_t *page, const char *key, int found, const char *version)
{
    if (!found)
        fact(page, key, "not found");
    else
        fact(page, key, "found at build time (%s), loaded when it is used",
             *version ? version : "unknown version");
}

static void show_openblas(page_t *page)
{
    fact(page, "OpenBLAS", "%s", LAP_OPENBLAS_VERSION);
    if (lap_blas_load() == LAP_OK)
        fact(page, "runs with", "%s", lap_blas_config());
    else
        fact(page, "runs with", "none: %s", lap_last_error());
}

/* The MPI that is loaded now, which need not be the one of the headers. */
static void show_mpi(page_t *page)
{
    char library[128];
    if (!LAP_HAVE_MPI)
        fact_optional(page, "MPI", 0, "");
    else if (lap_mpi_describe(library, sizeof(library)) == LAP_OK)
        fact(page, "MPI", "%s (MPI %s), needs MPI_THREAD_MULTIPLE", library, LAP_MPI_VERSION);
    else
        fact(page, "MPI", "cannot run here: %s", lap_last_error());
}

static void show_yaml(page_t *page)
{
    if (LAP_HAVE_YAML)
        fact(page, "libyaml", "%s", *LAP_YAML_VERSION ? LAP_YAML_VERSION : "unknown version");
    else
        fact_optional(page, "libyaml", 0, "");
}

static void show_build(page_t *page)
{
    section(page, "build", "Built with");
    fact(page, "compiler", "%s", LAP_COMPILER);
    fact(page, "build type", "%s", LAP_BUILD_TYPE);
    show_openblas(page);
    show_mpi(page);
    show_yaml(page);
    fact_optional(page, "CUDA", LAP_HAVE_CUDA, LAP_CUDA_VERSION);
}

static void show_backends(page_t *page)
{
    section(page, "devices", "Devices");
    for (size_t i = 0; lap_device_at(i); i++) {
        const lap_device_ops_t *ops = lap_device_at(i);
        if (ops->probe() != LAP_OK)
            fact(page, ops->name, "cannot run here: %s", lap_last_error());
        else
            fact(page, ops->name, "%s", ops->summary);
    }
    section(page, "transports", "Transports");
    for (size_t i = 0; lap_transport_at(i); i++)
        fact(page, lap_transport_at(i)->name, "%s", lap_transport_at(i)->summary);
}

static void show_types(page_t *page)
{
    static const char *const largest[] = {[LAP_FLOAT32] = "largest 3.4e38",
                                          [LAP_FLOAT16] = "largest 65504",
                                          [LAP_BFLOAT16] = "largest 3.4e38",
                                          [LAP_FLOAT8_E4M3] = "largest 448, saturates, scaled",
                                          [LAP_FLOAT8_E5M2] = "largest 57344, saturates, scaled"};
    section(page, "dtypes", "Types of elements");
    for (int i = 0; lap_dtype_size((lap_dtype_t)i) > 0; i++) {
        const size_t size = lap_dtype_size((lap_dtype_t)i);
        fact(page, lap_dtype_name((lap_dtype_t)i), "%zu byte%s, %s, summed in fp32", size,
             size == 1 ? "" : "s", largest[i]);
    }
}

static void show_methods(page_t *page, lap_op_kind_t kind)
{
    char title[128];
    snprintf(title, sizeof(title), "Methods of %s (%s)", lap_kind_words[kind].title,
             lap_kind_words[kind].meaning);
    section(page, lap_op_kind_name(kind), title);
    const char *name, *summary = "";
    for (size_t i = 0; (name = lap_op_methods(kind, i, &summary)) != NULL; i++)
        fact(page, name, "%s", summary);
}

static int try_memfd(void)
{
    int fd = memfd_create("lap-info", MFD_CLOEXEC);
    if (fd < 0)
        return errno;
    int error = ftruncate(fd, 1) == 0 ? 0 : errno;
    close(fd);
    return error;
}

static int try_futex(void)
{
    uint32_t word = 0;
    return syscall(SYS_futex, &word, FUTEX_WAKE, 1, NULL, NULL, 0) < 0 ? errno : 0;
}

static int try_pidfd(void)
{
    int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (fd < 0)
        return errno;
    close(fd);
    return 0;
}

static void show_directory(page_t *page)
{
    const char *base;
    if (lap_environment_base(sizeof("/lap-0123456789abcdef"), &base) != LAP_OK)
        fact(page, "directory", "none: %s", lap_last_error());
    else if (access(base, W_OK | X_OK) != 0)
        fact(page, "directory", "none: cannot write to %s: %s", base, strerror(errno));
    else
        fact(page, "directory", "%s, where ranks meet", base);
}

/* Memory as the kernel counts it, in GiB; `key` is a line of /proc/meminfo. */
static double memory_gib(const char *key)
{
    double kib = 0;
    char line[128];
    FILE *file = fopen("/proc/meminfo", "re");
    while (file && fgets(line, sizeof(line), file))
        if (strncmp(line, key, strlen(key)) == 0 && line[strlen(key)] == ':')
            kib = strtod(line + strlen(key) + 1, NULL);
    if (file)
        fclose(file);
    return (double)(int64_t)(kib / 1024 / 1024 * 10) / 10;
}

static void show_machine(page_t *page)
{
    section(page, "machine", "This machine");
    struct utsname name;
    if (uname(&name) == 0)
        fact(page, "kernel", "%s %s, %s", name.sysname, name.release, name.machine);
    fact_number(page, "cores", lap_cores(), "");
    fact_number(page, "memory", memory_gib("MemTotal"), "GiB");
    fact_number(page, "available", memory_gib("MemAvailable"), "GiB");
    fact_able(page, "memfd", try_memfd(), "memory that ranks share");
    fact_able(page, "futex", try_futex(), "signals between ranks");
    fact_able(page, "pidfd", try_pidfd(), "noticing that a rank has died");
    show_directory(page);
}

/* ---- GPUs ---- */

/* The version is the first word with a dot in the driver's own line; "" when there is none. */
static void driver_version(char *text, size_t bytes)
{
    char lines[256], *rest = NULL;
    lap_file_read_text("/proc/driver/nvidia/version", lines, sizeof(lines));
    lines[strcspn(lines, "\n")] = '\0';
    char *version = strtok_r(lines, " \t", &rest);
    while (version && !strchr(version, '.'))
        version = strtok_r(NULL, " \t", &rest);
    snprintf(text, bytes, "%s", version ? version : "");
}

/* What all GPUs can, or which of them cannot; `offset` is that of a bool in lap_cuda_gpu_t. */
static void fact_all_gpus(page_t *page, const char *key, const lap_cuda_info_t *info, size_t offset,
                          const char *use)
{
    for (int i = 0; i < info->count; i++)
        if (!*(const bool *)((const char *)&info->gpus[i] + offset)) {
            fact(page, key, "no: GPU %d does not offer it", i);
            return;
        }
    fact(page, key, "yes, for %s", use);
}

static void show_each_gpu(page_t *page, const lap_cuda_info_t *info)
{
    char version[64];
    driver_version(version, sizeof(version));
    fact(page, "driver", "%s%sCUDA %d.%d", version, *version ? ", " : "", info->version / 1000,
         info->version % 1000 / 10);
    for (int i = 0; i < info->count; i++) {
        const lap_cuda_gpu_t *gpu = &info->gpus[i];
        char key[16];
        snprintf(key, sizeof(key), "GPU %d", i);
        fact(page, key, "%s, %d SMs, compute capability %d.%d, %.1f GiB", gpu->name, gpu->sms,
             gpu->major, gpu->minor, (double)gpu->memory / (1 << 30));
    }
    fact_all_gpus(page, "IPC", info, offsetof(lap_cuda_gpu_t, ipc), "memory that ranks share");
    fact_all_gpus(page, "VMM", info, offsetof(lap_cuda_gpu_t, vmm),
                  "memory that ranks share by file descriptors, where IPC does not work");
}

/* What GPUs could do has the same answer where there are none. */
static void show_no_gpu(page_t *page, const char *why)
{
    static const char *const keys[] = {"IPC", "VMM"};
    fact(page, "why none", "%s", why);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        fact(page, keys[i], "no: %s", why);
}

static void show_gpus(page_t *page)
{
    lap_cuda_info_t info = {0};
    section(page, "gpu", "GPUs of NVIDIA");
    const bool there = lap_cuda_info(&info) == LAP_OK;
    fact_number(page, "GPUs", info.count, "");
    if (there)
        show_each_gpu(page, &info);
    else
        show_no_gpu(page, lap_last_error());
    char path[PATH_MAX];
    if (lap_mps_find(path))
        fact(page, "MPS", "yes, for several ranks on one GPU: %s", path);
    else
        fact(page, "MPS", "no: %s is not in PATH", LAP_MPS_CONTROL);
    int nccl;
    if (lap_nccl_version(&nccl) == LAP_OK)
        fact(page, "NCCL", "yes: %d.%d.%d, with windows and one-sided puts", nccl / 10000,
             nccl % 10000 / 100, nccl % 100);
    else
        fact(page, "NCCL", "no: %s", lap_last_error());
    if (lap_cublasmp_version(&nccl) == LAP_OK)
        fact(page, "cuBLASMp", "yes: %d.%d.%d, the method cublasmp over transport nccl",
             nccl / 10000, nccl / 100 % 100, nccl % 100);
    else
        fact(page, "cuBLASMp", "no: %s", lap_last_error());
}

enum { JSON, NOPTIONS };

static const lap_option_t options[NOPTIONS] = {
    [JSON] = {LAP_OPTION_JSON, LAP_BY_CODE},
};

static const lap_command_t command = {
    .name = "lap info",
    .usage = "[OPTIONS]",
    .summary = "Shows what was built in, and what this machine offers.",
    .exit_status = "  0  it was shown\n"
                   "  2  the command line is wrong",
    .options = options,
    .noptions = NOPTIONS,
};

int lap_cli_info(int argc, char **argv)
{
    lap_args_t args;
    int status = lap_args_parse(&command, argc, argv, &args);
    if (status != LAP_CLI_GO)
        return status;
    lap_json_t json = {.file = stdout};
    page_t page = {.json = args.given[JSON] ? &json : NULL};
    if (page.json) {
        lap_json_put(&json, "{version:%s commit:%s", lap_version_string(), LAP_COMMIT);
        lap_about_place_json(&json);
    } else {
        printf("Lapstrake %s\n", lap_version_string());
    }
    show_build(&page);
    show_backends(&page);
    show_types(&page);
    for (int kind = 0; kind < LAP_KINDS; kind++)
        show_methods(&page, (lap_op_kind_t)kind);
    show_machine(&page);
    show_gpus(&page);
    while (json.depth > 0)
        lap_json_put(&json, "}");
    return LAP_CLI_OK;
}
