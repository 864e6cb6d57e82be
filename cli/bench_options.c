/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of `lap bench`: what is to be measured, checked as far as one process can, so
 * that a mistake costs a sentence and not a job of ranks that all stumble over it.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"
#include "launch.h"
#include "overlap/overlap.h"

enum {
    RANKS,
    DTYPE,
    ITERS,
    WARMUP,
    METHOD,
    LINK,
    DEVICE,
    TRANSPORT,
    TIMELINE,
    TIMELINE_METHOD,
    SEED,
    TIMEOUT,
    JSON,
    GPU_SHARE,
    SWEEP_M,
    SWEEP_N,
    SWEEP_K,
    NOPTIONS
};

static const lap_option_t options[NOPTIONS] = {
    [RANKS] = {'n', "ranks", "P", "ranks to start (default 4; latency 2)", NULL},
    [DTYPE] = {0, "dtype", "TYPE", "type of the elements: float32, float16 or bfloat16", "float32"},
    [ITERS] = {0, "iters", "COUNT", "timed rounds (default 10; latency 1000; demo 7)", NULL},
    [WARMUP] = {0, "warmup", "COUNT", "rounds before them that are not timed", "2"},
    [METHOD] = {0, "method", "LIST",
                "methods to measure: all, auto, or names with their knobs, see below (default all; "
                "sweep: all,auto)",
                NULL},
    [LINK] = {0, "link", "LINK",
              "emulate a link out of each rank: a rate such as 2GB/s, a rate with a latency as in "
              "2GB/s,5us, or ratio:0.4, the rate at which serial communication takes 0.4 of the "
              "time of the GEMM",
              NULL},
    [DEVICE] = {0, "device", "NAME", "cpu or ref", "cpu"},
    [TRANSPORT] = {0, "transport", "NAME",
                   "shm (ranks are processes) or self (ranks are threads of one process); under "
                   "mpirun also mpi (messages between all ranks) or hosts (messages between hosts, "
                   "shm inside)",
                   "shm"},
    [TIMELINE] = {0, "timeline", "FILE.svg", "draw one measured call", NULL},
    [TIMELINE_METHOD] = {0, "timeline-method", "NAME",
                         "the method to draw (default: the best that overlaps)", NULL},
    [SEED] = {0, "seed", "N", "of the random matrices", "1"},
    [TIMEOUT] = {0, "timeout", "SECONDS",
                 "how long a rank waits for another (default LAP_TIMEOUT_S, or else 60)", NULL},
    [JSON] = {0, "json", NULL, "print one JSON object on one line", NULL},
    [GPU_SHARE] = {0, "gpu-share", "[=MODE]",
                   "parts of GPUs for the ranks, as in lap run: on, auto or off (default auto with "
                   "--device cuda, else off)",
                   NULL},
    [SWEEP_M] = {0, "m", "FROM:TO", "sweep: rows, doubled from FROM until they pass TO", NULL},
    [SWEEP_N] = {0, "n", "N", "sweep: output features", NULL},
    [SWEEP_K] = {0, "k", "K", "sweep: the length of the sums", NULL},
};

static const lap_command_t command = {
    .name = "lap bench",
    .usage = "ag|rs|ar M N K [OPTIONS]\n"
             "       lap bench sweep ag|rs|ar --m FROM:TO --n N --k K [OPTIONS]\n"
             "       lap bench latency [OPTIONS]\n"
             "       lap bench demo [OPTIONS]",
    .summary =
        "Times AG+GEMM (ag), GEMM+RS (rs) or GEMM+AR (ar) with every method against the "
        "GEMM alone,\n"
        "verifies each result, and says what communication still costs. M, N and K are the\n"
        "global sizes. sweep makes one table over many M; latency times signals and steps; demo\n"
        "measures ag and rs.",
    .details =
        "ag: A [M, K] is sharded by rows and B [N, K] by N; the result is [M, N/P] on each rank.\n"
        "rs: A [M, K] and B [N, K] are sharded by K; the result is [M/P, N] on each rank.\n"
        "ar: the same, and the result is [M, N] on every rank.\n"
        "Knobs follow a method after colons: ring:aggregate, pipeline:num_splits=8,\n"
        "fused:block_rows=256. serial is always measured: it is the yardstick. auto picks a "
        "method\n"
        "by simulating all of them, and the predictions are printed beside what was measured.\n"
        "\n"
        "total       the whole operator: slowest rank, median over the rounds\n"
        "ECT         total less the GEMM alone on the same data: what communication costs\n"
        "efficiency  1 - ECT / ECT of serial: 1 is fully hidden, below 0 is slower than serial\n"
        "\n"
        "Started by `lap run`, mpirun, srun or torchrun it takes part as one of their ranks.\n"
        "Exit status: 0, 1 when a result is wrong or a rank fails, 2 when the request makes no "
        "sense.",
    .options = options,
    .noptions = NOPTIONS,
    .min_positionals = 1,
    .max_positionals = 4,
};

/* ---- methods ---- */

#define METHODS_MAX 16

/* The names of the methods of an operator, with NULL at the end. */
static void list_methods(lap_op_kind_t kind, const char *names[METHODS_MAX + 1])
{
    size_t count = 0;
    for (const char *name; count < METHODS_MAX && (name = lap_op_methods(kind, count, NULL));)
        names[count++] = name;
    names[count] = NULL;
}

/* One knob, "name" or "name=value"; each belongs to one method. */
static bool parse_knob(lap_bench_method_t *method, char *knob)
{
    static const char *const names[] = {"aggregate", "num_splits", "block_rows", NULL};
    static const char *const owners[] = {"ring", "pipeline", "fused"};
    char what[2 * LAP_LIST_TEXT];
    char *value = strchr(knob, '=');
    if (value)
        *value++ = '\0';
    size_t index;
    snprintf(what, sizeof(what), "knob of --method %s", method->label);
    if (!lap_arg_choice(&command, what, knob, names, &index))
        return false;
    if (strcmp(method->name, owners[index]) != 0) {
        lap_args_fail(&command, "--method %s: %s is a knob of %s, not of %s", method->label, knob,
                      owners[index], method->name);
        return false;
    }
    snprintf(what, sizeof(what), "%s of --method %s", names[index], method->label);
    if (index == 0)
        return lap_arg_int(&command, what, value ? value : "1", 0, 1, &method->aggregate);
    return lap_arg_size(&command, what, value ? value : "", 1, SIZE_MAX,
                        index == 1 ? &method->num_splits : &method->block_rows);
}

static void add_name(const char **names, const char *name)
{
    while (*names)
        names++;
    names[0] = name;
    names[1] = NULL;
}

/* One item of --method: a name, then knobs after colons. */
static bool parse_method(lap_bench_case_t *it, const char *item)
{
    const char *names[METHODS_MAX + 2];
    list_methods(it->kind, names);
    add_name(names, "auto");
    char text[LAP_LIST_TEXT];
    snprintf(text, sizeof(text), "%s", item);
    char *rest = text, *name = strsep(&rest, ":");
    size_t index;
    if (!lap_arg_choice(&command, "--method", name, names, &index))
        return false;
    lap_bench_method_t method = {.name = names[index], .asked = true};
    snprintf(method.label, sizeof(method.label), "%s", item);
    while (rest)
        if (!parse_knob(&method, strsep(&rest, ":")))
            return false;
    for (size_t i = 0; i < it->nmethods; i++)
        if (it->methods[i].asked && strcmp(it->methods[i].label, item) == 0) {
            lap_args_fail(&command, "--method names %s twice", item);
            return false;
        }
    if (strcmp(item, "serial") == 0) {
        it->methods[0].asked = true;
        return true;
    }
    if (it->nmethods > LAP_LIST_MAX) { /* "all" stands for several */
        lap_args_fail(&command, "--method names more than %d methods", LAP_LIST_MAX);
        return false;
    }
    it->methods[it->nmethods++] = method;
    return true;
}

static bool parse_all(lap_bench_case_t *it)
{
    const char *names[METHODS_MAX + 1];
    list_methods(it->kind, names);
    for (size_t i = 0; names[i]; i++)
        if (!parse_method(it, names[i]))
            return false;
    return true;
}

/* Fills in the methods of a case, serial first. */
static bool parse_methods(lap_bench_case_t *it, const char *text)
{
    lap_list_t list;
    it->methods[0] = (lap_bench_method_t){.label = "serial", .name = "serial"};
    it->nmethods = 1;
    if (!lap_arg_list(&command, "--method", text, &list))
        return false;
    for (size_t i = 0; i < list.count; i++)
        if (strcmp(list.items[i], "all") == 0 ? !parse_all(it) : !parse_method(it, list.items[i]))
            return false;
    return true;
}

size_t lap_bench_auto(const lap_bench_case_t *it)
{
    for (size_t i = 0; i < it->nmethods; i++)
        if (strcmp(it->methods[i].name, "auto") == 0)
            return i;
    return SIZE_MAX;
}

static bool parse_timeline_method(lap_bench_t *bench, const char *text)
{
    const lap_bench_case_t *it = &bench->cases[0];
    const char *labels[LAP_LIST_MAX + 2] = {NULL};
    for (size_t i = 0; i < it->nmethods; i++)
        labels[i] = it->methods[i].label;
    if (!bench->timeline) {
        lap_args_fail(&command, "--timeline-method %s needs --timeline FILE.svg", text);
        return false;
    }
    return lap_arg_choice(&command, "--timeline-method", text, labels, &bench->timeline_method);
}

/* Leaves out what the transport cannot do, unless the user asked for it by name. */
static void leave_out(lap_bench_case_t *it, unsigned can, const char *asked)
{
    size_t kept = 0;
    for (size_t i = 0; i < it->nmethods; i++) {
        const lap_builder_t *builder = lap_builders(it->kind);
        while (builder->name && strcmp(builder->name, it->methods[i].name) != 0)
            builder++;
        const bool named = asked && strstr(asked, it->methods[i].name);
        if (!builder->name || (builder->needs & ~can) == 0 || named)
            it->methods[kept++] = it->methods[i];
    }
    it->nmethods = kept;
}

/* ---- the rest of the command line ---- */

static const char *const mode_names[] = {"ag", "rs", "ar", "latency", "demo", "sweep", NULL};

/* The operator and its sizes, from the positionals. */
static bool parse_case(lap_bench_t *bench, const lap_args_t *args)
{
    static const char *const size_names[] = {"M", "N", "K"};
    lap_bench_case_t *it = &bench->cases[0];
    size_t *sizes[] = {&it->m, &it->n, &it->k};
    if (args->npositionals != 4) {
        lap_args_fail(&command, "%s takes the three sizes M N K: got %zu of them",
                      args->positionals[0], args->npositionals - 1);
        return false;
    }
    for (size_t i = 0; i < 3; i++)
        if (!lap_arg_size(&command, size_names[i], args->positionals[i + 1], 1, SIZE_MAX, sizes[i]))
            return false;
    it->kind = (lap_op_kind_t)(bench->mode - LAP_BENCH_AG); /* both in the same order */
    bench->ncases = 1;
    return parse_methods(it, args->values[METHOD] ? args->values[METHOD] : "all");
}

/* "64:8192": the rows of the first and the last case. */
static bool parse_rows(const char *text, size_t *first_p, size_t *last_p)
{
    char first[32];
    const char *colon = strchr(text, ':');
    snprintf(first, sizeof(first), "%.*s", colon ? (int)(colon - text) : (int)strlen(text), text);
    if (!lap_arg_size(&command, "--m", first, 1, SIZE_MAX, first_p) ||
        !lap_arg_size(&command, "--m", colon ? colon + 1 : text, 1, SIZE_MAX, last_p))
        return false;
    if (*first_p <= *last_p && *last_p / *first_p < (size_t)1 << LAP_BENCH_CASES)
        return true;
    lap_args_fail(&command, "--m %s: expected FROM:TO, FROM at most TO, and at most %d doublings",
                  text, LAP_BENCH_CASES - 1);
    return false;
}

/* A case for each number of rows, with auto among the methods. */
static bool sweep_cases(lap_bench_t *bench, const lap_args_t *args)
{
    static const int needed[] = {SWEEP_M, SWEEP_N, SWEEP_K};
    for (size_t i = 0; i < sizeof(needed) / sizeof(int); i++)
        if (!args->given[needed[i]]) {
            lap_args_fail(&command, "sweep needs --%s", options[needed[i]].name);
            return false;
        }
    size_t kind, last = 0;
    static const char *const kinds[] = {"ag", "rs", "ar", NULL};
    if (args->npositionals != 2) {
        lap_args_fail(&command, "sweep takes one of ag, rs, ar: got %zu words",
                      args->npositionals - 1);
        return false;
    }
    lap_bench_case_t it = {0};
    if (!lap_arg_choice(&command, "what to sweep", args->positionals[1], kinds, &kind) ||
        !parse_rows(args->values[SWEEP_M], &it.m, &last) ||
        !lap_arg_size(&command, "--n", args->values[SWEEP_N], 1, SIZE_MAX, &it.n) ||
        !lap_arg_size(&command, "--k", args->values[SWEEP_K], 1, SIZE_MAX, &it.k))
        return false;
    it.kind = (lap_op_kind_t)kind;
    if (!parse_methods(&it, args->values[METHOD] ? args->values[METHOD] : "all,auto") ||
        (lap_bench_auto(&it) == SIZE_MAX && !parse_method(&it, "auto")))
        return false;
    for (; it.m <= last && bench->ncases < LAP_BENCH_CASES; it.m *= 2)
        bench->cases[bench->ncases++] = it;
    return true;
}

/*
 * Both operators on shapes that take seconds on two cores, on a link slow enough to be worth
 * hiding.
 */
static bool demo_cases(lap_bench_t *bench, const lap_args_t *args)
{
    bench->cases[0] = (lap_bench_case_t){.kind = LAP_AG_GEMM, .m = 1024, .n = 2048, .k = 1024};
    bench->cases[1] = (lap_bench_case_t){.kind = LAP_GEMM_RS, .m = 1024, .n = 1024, .k = 2048};
    bench->ncases = 2;
    if (!args->given[LINK])
        bench->link.ratio = 0.4;
    return parse_methods(&bench->cases[0], "all") && parse_methods(&bench->cases[1], "all");
}

/* False, after a sentence, when one of some options was given. */
static bool refuse(const lap_args_t *args, const int *refused, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (args->given[refused[i]]) {
            lap_args_fail(&command, "%s has no option --%s", args->positionals[0],
                          options[refused[i]].name);
            return false;
        }
    return true;
}

static bool parse_mode(lap_bench_t *bench, const lap_args_t *args)
{
    size_t mode;
    if (!lap_arg_choice(&command, "what to measure", args->positionals[0], mode_names, &mode))
        return false;
    bench->mode = (lap_bench_mode_t)mode;
    /* Options that another mode understands and this one would ignore are mistakes too. */
    static const int only_sweep[] = {SWEEP_M, SWEEP_N, SWEEP_K};
    static const int not_sweep[] = {TIMELINE, TIMELINE_METHOD};
    static const int only_ops[] = {METHOD, TIMELINE_METHOD, JSON};
    static const int not_latency[] = {METHOD, TIMELINE_METHOD, LINK, TIMELINE, DTYPE, SEED};
    if (bench->mode == LAP_BENCH_SWEEP)
        return refuse(args, not_sweep, sizeof(not_sweep) / sizeof(int)) && sweep_cases(bench, args);
    if (!refuse(args, only_sweep, sizeof(only_sweep) / sizeof(int)))
        return false;
    if (bench->mode <= LAP_BENCH_AR)
        return parse_case(bench, args);
    if (args->npositionals > 1) {
        lap_args_fail(&command, "%s takes no sizes: got '%s'", mode_names[mode],
                      args->positionals[1]);
        return false;
    }
    if (bench->mode == LAP_BENCH_LATENCY)
        return refuse(args, not_latency, sizeof(not_latency) / sizeof(int));
    return refuse(args, only_ops, sizeof(only_ops) / sizeof(int)) && demo_cases(bench, args);
}

static bool parse_counts(lap_bench_t *bench, const lap_args_t *args, bool ranks_exist)
{
    bool latency = bench->mode == LAP_BENCH_LATENCY;
    const char *ranks = args->values[RANKS];
    const char *iters = args->values[ITERS];
    if (!ranks)
        ranks = latency ? "2" : "4";
    if (!iters)
        iters = latency ? "1000" : bench->mode == LAP_BENCH_DEMO ? "7" : "10";
    size_t seed;
    if (!lap_arg_int(&command, "--ranks", ranks, latency ? 2 : 1, LAP_LAUNCH_MAX, &bench->ranks) ||
        !lap_arg_int(&command, "--iters", iters, 1, 1000000, &bench->iters) ||
        !lap_arg_int(&command, "--warmup", args->values[WARMUP], 0, 1000000, &bench->warmup) ||
        !lap_arg_size(&command, "--seed", args->values[SEED], 0, SIZE_MAX, &seed))
        return false;
    if (ranks_exist && !args->given[RANKS])
        bench->ranks = 0;
    bench->seed = seed;
    return !args->values[TIMEOUT] || lap_arg_seconds(&command, "--timeout", args->values[TIMEOUT],
                                                     0.001, 1e6, &bench->timeout_s);
}

static bool parse_backends(lap_bench_t *bench, const lap_args_t *args)
{
    if (lap_dtype_parse(args->values[DTYPE], &bench->dtype) != LAP_OK) {
        lap_args_fail(&command, "--dtype: %s", lap_last_error());
        return false;
    }
    const lap_device_ops_t *device;
    if (lap_device_find(args->values[DEVICE], &device) != LAP_OK) {
        lap_args_fail(&command, "--device: %s", lap_last_error());
        return false;
    }
    const lap_transport_ops_t *transport;
    const char *name = args->values[TRANSPORT];
    lap_environment_t environment;
    if (!args->given[TRANSPORT] && lap_environment_read(&environment) == LAP_OK &&
        environment.hosts[0])
        name = "hosts"; /* as a world that spans hosts would choose by itself */
    if (lap_transport_find(name, &transport) != LAP_OK) {
        lap_args_fail(&command, "--transport: %s", lap_last_error());
        return false;
    }
    bench->device = device->name;
    bench->gpus = strcmp(device->name, "cuda") == 0 ? LAP_GPU_AUTO : LAP_GPU_OFF;
    if (args->given[GPU_SHARE] &&
        !lap_arg_gpu_share(&command, args->values[GPU_SHARE], &bench->gpus))
        return false;
    bench->transport = transport->name;
    bench->can_span = transport->can & LAP_CAN_SPAN;
    for (size_t i = 0; i < bench->ncases; i++)
        leave_out(&bench->cases[i], transport->can, args->values[METHOD]);
    return true;
}

/* Before the ranks spend their time: can the picture be written where it should go? */
static bool check_timeline(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    int length = slash == path ? 1 : slash ? (int)(slash - path) : 0;
    snprintf(folder, sizeof(folder), "%.*s", slash ? length : 1, slash ? path : ".");
    struct stat about;
    bool is_file = stat(path, &about) != 0 || S_ISREG(about.st_mode);
    if (*path && is_file && access(folder, W_OK | X_OK) == 0)
        return true;
    lap_args_fail(&command, "--timeline %s cannot be written: %s", path,
                  !*path     ? "it has no name"
                  : !is_file ? "it is not a regular file"
                             : "its folder is missing or may not be written to");
    return false;
}

int lap_bench_parse(int argc, char **argv, bool ranks_exist, lap_bench_t *bench_p)
{
    lap_args_t args;
    int status = lap_args_parse(&command, argc, argv, &args);
    if (status != LAP_CLI_GO)
        return status;
    lap_bench_t bench = {.timeline_method = SIZE_MAX, .json = args.values[JSON] != NULL};
    bench.timeline = args.values[TIMELINE];
    if (!parse_mode(&bench, &args) || !parse_counts(&bench, &args, ranks_exist) ||
        !parse_backends(&bench, &args))
        return LAP_CLI_USAGE;
    if (args.values[LINK] && !lap_arg_link(&command, "--link", args.values[LINK], &bench.link))
        return LAP_CLI_USAGE;
    if (args.values[TIMELINE_METHOD] &&
        !parse_timeline_method(&bench, args.values[TIMELINE_METHOD]))
        return LAP_CLI_USAGE;
    if (bench.timeline && !check_timeline(bench.timeline))
        return LAP_CLI_USAGE;
    if (ranks_exist && strcmp(bench.transport, "self") == 0)
        return lap_args_fail(&command, "--transport self runs its ranks as threads of one process: "
                                       "start it without a launcher of ranks");
    if (!ranks_exist && bench.can_span)
        return lap_args_fail(&command,
                             "--transport %s needs ranks that mpirun started: mpirun -n %d lap "
                             "bench ... --transport %s",
                             bench.transport, bench.ranks, bench.transport);
    *bench_p = bench;
    return LAP_CLI_GO;
}

/* ---- what depends on the number of ranks ---- */

lap_op_desc_t lap_bench_desc(const lap_bench_t *bench, const lap_bench_case_t *it, size_t method)
{
    const lap_bench_method_t *chosen = &it->methods[method];
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = it->kind;
    desc.m = it->m;
    desc.n = it->n;
    desc.k = it->k;
    desc.dtype = bench->dtype;
    desc.method = chosen->name;
    desc.aggregate = chosen->aggregate;
    desc.num_splits = chosen->num_splits;
    desc.block_rows = chosen->block_rows;
    return desc;
}

static int check_case(const lap_bench_t *bench, const lap_bench_case_t *it, int nranks)
{
    /* In doubles, which do not overflow; what passes is far from the limits of size_t. */
    double there = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    double needed = nranks * lap_bench_data_bytes(bench, it, nranks);
    if (needed > there)
        return lap_args_fail(&command,
                             "M N K = %zu %zu %zu on %d ranks needs about %.3g GiB of memory: this "
                             "machine has %.3g GiB",
                             it->m, it->n, it->k, nranks, needed / (1 << 30), there / (1 << 30));
    for (size_t i = 0; i < it->nmethods; i++) {
        size_t bytes, nsignals;
        lap_op_desc_t desc = lap_bench_desc(bench, it, i);
        if (lap_op_buffer_size(&desc, nranks, &bytes, &nsignals) != LAP_OK)
            return lap_args_fail(&command, "method %s: %s", it->methods[i].label, lap_last_error());
    }
    return LAP_CLI_GO;
}

int lap_bench_check(const lap_bench_t *bench, int nranks)
{
    if (bench->ranks && bench->ranks != nranks)
        return lap_args_fail(&command,
                             "--ranks is %d, but %d ranks were started: leave it out or "
                             "let them agree",
                             bench->ranks, nranks);
    if (bench->mode == LAP_BENCH_LATENCY && nranks < 2)
        return lap_args_fail(&command, "latency needs 2 ranks: there is %d", nranks);
    for (size_t i = 0; i < bench->ncases; i++) {
        int status = check_case(bench, &bench->cases[i], nranks);
        if (status != LAP_CLI_GO)
            return status;
    }
    return LAP_CLI_GO;
}
