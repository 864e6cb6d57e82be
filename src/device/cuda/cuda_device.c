/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening and closing a GPU: which one, which part of it, and its kernels.
 *
 * Ranks of a host take its GPUs in turn; LAP_GPU names another. LAP_GPU_PART=i/n takes the i-th of
 * n equal parts of its multiprocessors only for this rank: a green context, for ranks that share a
 * GPU. Without it, all runs in the primary context, which is that of the caller's CUDA runtime.
 * LAP_GPU_TUNE=0 takes the kernels of GEMMs that cuBLASLt proposes, without a trial;
 * LAP_GPU_GELU=fast lets it do GELU.
 */
#include <stdlib.h>
#include <string.h>

#include "device/cuda/cuda.h"
#include "device/cuda/cuda_facts.h"
#include "device/cuda/cuda_info.h"
#include "device/no_slots.h"
#include "util/alloc.h"
#include "util/clock.h"

#define PARTS_MOST 64
#define DRIVER_QUEUES 8         /* hardware queues of a process that asks for no other number, */
#define MPS_QUEUES 2            /* ... and of one that is a client of MPS */
#define SM_GROUP 8              /* multiprocessors come in groups of so many */
#define SM_PAIR 2               /* or, where that would leave many unused, of so many */
#define OLDEST 80               /* compute capability 8.0 */
#define SPIN_NS 200000u         /* how long a wait for the GPU spins, where waits do at all */
#define PATIENCE_NS 1000000000u /* of a wait with its host, which may know better why it fails */

extern const lap_device_ops_t lap_cuda_ops;
extern const unsigned char lap_cuda_fatbin[]; /* see cuda_fatbin.c */

lap_status_t lap_cuda_push(const lap_cuda_device_t *device, CUcontext context)
{
    return lap_cuda_check(&device->api, device->api.cuCtxPushCurrent(context), "cuCtxPushCurrent");
}

lap_status_t lap_cuda_pop(const lap_cuda_device_t *device, lap_status_t status)
{
    CUcontext context;
    const CUresult result = device->api.cuCtxPopCurrent(&context);
    return status != LAP_OK ? status : lap_cuda_check(&device->api, result, "cuCtxPopCurrent");
}

/*
 * The caller may be capturing a graph, with or without calls of this library. Other calls of this
 * thread, such as allocations, are not part of it and must not invalidate the capture.
 */
static lap_status_t exchange_mode(lap_cuda_device_t *device, CUstreamCaptureMode mode)
{
    device->capture_mode = mode;
    return lap_cuda_check(&device->api,
                          device->api.cuThreadExchangeStreamCaptureMode(&device->capture_mode),
                          "cuThreadExchangeStreamCaptureMode");
}

lap_status_t lap_cuda_enter(lap_cuda_device_t *device)
{
    if (device->dead)
        return lap_error(LAP_ERR_SYSTEM, "GPU %d did not finish the work in its streams",
                         device->ordinal);
    if (device->entered == 0) {
        LAP_TRY(lap_cuda_push(device, device->context));
        const lap_status_t status = exchange_mode(device, CU_STREAM_CAPTURE_MODE_RELAXED);
        if (status != LAP_OK)
            return lap_cuda_pop(device, status);
    }
    device->entered++;
    return LAP_OK;
}

lap_status_t lap_cuda_leave(lap_cuda_device_t *device, lap_status_t status)
{
    if (--device->entered > 0)
        return status;
    const lap_status_t exchanged = exchange_mode(device, device->capture_mode);
    return lap_cuda_pop(device, status != LAP_OK ? status : exchanged);
}

static lap_status_t lap_cuda_calls_begin(lap_device_t *device)
{
    return lap_cuda_enter((lap_cuda_device_t *)device);
}

static void lap_cuda_calls_end(lap_device_t *device)
{
    (void)lap_cuda_leave((lap_cuda_device_t *)device, LAP_OK);
}

/* A whole number at *text, which is moved past it. */
static bool read_number(const char **text, int *number_p)
{
    char *end;
    const long number = strtol(*text, &end, 10);
    if (end == *text || number < 0 || number > 100000)
        return false;
    *text = end;
    *number_p = (int)number;
    return true;
}

/* ---- which GPU ---- */

static lap_status_t choose_gpu(lap_cuda_device_t *device, int rank)
{
    const lap_cuda_api_t *api = &device->api;
    const char *given = getenv("LAP_GPU"), *text = given;
    int count, major, minor;
    LAP_TRY(lap_cuda_check(api, api->cuDeviceGetCount(&count), "cuDeviceGetCount"));
    if (count == 0)
        return lap_error(LAP_ERR_UNSUPPORTED, "the NVIDIA driver finds no GPU here");
    device->ordinal = rank % count;
    if (given && *given &&
        (!read_number(&text, &device->ordinal) || *text || device->ordinal >= count))
        return lap_error(LAP_ERR_INVALID, "LAP_GPU is '%s', expected 0 to %d", given, count - 1);
    LAP_TRY(lap_cuda_check(api, api->cuDeviceGet(&device->gpu, device->ordinal), "cuDeviceGet"));
    LAP_TRY(lap_cuda_check(api,
                           api->cuDeviceGetAttribute(
                               &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device->gpu),
                           "cuDeviceGetAttribute"));
    LAP_TRY(lap_cuda_check(api,
                           api->cuDeviceGetAttribute(
                               &minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device->gpu),
                           "cuDeviceGetAttribute"));
    device->capability = 10 * major + minor;
    if (device->capability < OLDEST)
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "GPU %d has compute capability %d.%d, expected 8.0 or later",
                         device->ordinal, major, minor);
    return LAP_OK;
}

/*
 * How many streams run side by side, whatever they wait for: as many as the process has asked for, or what an H200
 * was seen to give one that has not (CUDA 13.0). What CUDA makes of a number that it does not document is not known:
 * it counts as one queue, with which no stream is taken to run beside another.
 */
static unsigned count_queues(const lap_cuda_device_t *device)
{
    const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    int asked, mps = 0;
    if (text && *text)
        return read_number(&text, &asked) && !*text && asked > 0 && asked <= LAP_CUDA_QUEUES_MOST
                   ? (unsigned)asked
                   : 1;
    if (device->api.cuDeviceGetAttribute(&mps, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device->gpu) !=
        CUDA_SUCCESS)
        mps = 0;
    return mps ? MPS_QUEUES : DRIVER_QUEUES;
}

/* ---- which part of it ---- */

static lap_status_t read_part(const char *given, int *part_p, int *parts_p)
{
    const char *text = given;
    if (!read_number(&text, part_p) || *text++ != '/' || !read_number(&text, parts_p) || *text ||
        *part_p >= *parts_p || *parts_p > PARTS_MOST)
        return lap_error(LAP_ERR_INVALID,
                         "LAP_GPU_PART is '%s', expected i/n with i from 0 to n - 1, n at most %d",
                         given, PARTS_MOST);
    return LAP_OK;
}

/*
 * Equal parts of a GPU. Groups of 8 multiprocessors keep the large clusters of some kernels of
 * GEMMs possible, but 6 ranks could use only 96 of 132 of them: parts are made of pairs where that
 * gives each an eighth more. If the driver cannot do that, parts are groups.
 */
static lap_status_t split_sms(const lap_cuda_api_t *api, const CUdevResource *all, unsigned each,
                              unsigned *count_p, CUdevResource *groups)
{
    const unsigned parts = *count_p, pairs = all->sm.smCount / parts;
    const unsigned more = pairs / SM_PAIR * SM_PAIR;
    if (more >= each + each / 8 &&
        api->cuDevSmResourceSplitByCount(groups, count_p, all, NULL,
                                         CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING,
                                         more) == CUDA_SUCCESS &&
        *count_p == parts)
        return LAP_OK;
    *count_p = parts;
    return lap_cuda_check(api,
                          api->cuDevSmResourceSplitByCount(groups, count_p, all, NULL, 0, each),
                          "cuDevSmResourceSplitByCount");
}

static lap_status_t take_part(lap_cuda_device_t *device, int part, int parts)
{
    const lap_cuda_api_t *api = &device->api;
    CUdevResource all, groups[PARTS_MOST];
    CUdevResourceDesc description;
    unsigned count = (unsigned)parts;
    LAP_TRY(lap_cuda_check(api,
                           api->cuDeviceGetDevResource(device->gpu, &all, CU_DEV_RESOURCE_TYPE_SM),
                           "cuDeviceGetDevResource"));
    const unsigned each = all.sm.smCount / count / SM_GROUP * SM_GROUP;
    if (each == 0)
        return lap_error(LAP_ERR_INVALID,
                         "LAP_GPU_PART asks for %d parts of a GPU with %u multiprocessors, "
                         "expected at least %d for each",
                         parts, all.sm.smCount, SM_GROUP);
    LAP_TRY(split_sms(api, &all, each, &count, groups));
    if ((unsigned)part >= count)
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "the GPU gives %u parts of %u multiprocessors, expected %d parts", count,
                         each, parts);
    LAP_TRY(lap_cuda_check(api, api->cuDevResourceGenerateDesc(&description, &groups[part], 1),
                           "cuDevResourceGenerateDesc"));
    LAP_TRY(lap_cuda_check(api,
                           api->cuGreenCtxCreate(&device->share.green, description, device->gpu,
                                                 CU_GREEN_CTX_DEFAULT_STREAM),
                           "cuGreenCtxCreate"));
    device->share.sms = (int)groups[part].sm.smCount;
    return lap_cuda_check(api, api->cuCtxFromGreenCtx(&device->context, device->share.green),
                          "cuCtxFromGreenCtx");
}

static lap_status_t choose_context(lap_cuda_device_t *device)
{
    const lap_cuda_api_t *api = &device->api;
    const char *given = getenv("LAP_GPU_PART");
    device->share.part = 0;
    device->share.parts = 1;
    LAP_TRY(lap_cuda_check(api, api->cuDevicePrimaryCtxRetain(&device->context, device->gpu),
                           "cuDevicePrimaryCtxRetain"));
    device->retained = true;
    device->primary = device->context;
    LAP_TRY(lap_cuda_check(api,
                           api->cuDeviceGetAttribute(&device->share.sms,
                                                     CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                                     device->gpu),
                           "cuDeviceGetAttribute"));
    LAP_TRY(lap_cuda_check(api,
                           api->cuDeviceGetAttribute(
                               &device->shared_most,
                               CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device->gpu),
                           "cuDeviceGetAttribute"));
    if (!given || !*given)
        return LAP_OK;
    LAP_TRY(read_part(given, &device->share.part, &device->share.parts));
    return device->share.parts == 1 ? LAP_OK
                                    : take_part(device, device->share.part, device->share.parts);
}

/* ---- what it needs ---- */

lap_status_t lap_cuda_kernel_find(lap_cuda_device_t *device, lap_cuda_kernel_t kernel,
                                  CUkernel *kernel_p)
{
    static const char *const names[] = {
#define NAME(name) "lap_" #name,
        LAP_CUDA_KERNEL_LIST(NAME)
#undef NAME
    };
    const lap_cuda_api_t *api = &device->api;
    return lap_cuda_check(api, api->cuLibraryGetKernel(kernel_p, device->library, names[kernel]),
                          names[kernel]);
}

/* Loaded now: loading at the first launch might wait for kernels that run. */
static lap_status_t load_kernels(lap_cuda_device_t *device)
{
    const lap_cuda_api_t *api = &device->api;
    LAP_TRY(lap_cuda_check(
        api,
        api->cuLibraryLoadData(&device->library, lap_cuda_fatbin, NULL, NULL, 0, NULL, NULL, 0),
        "cuLibraryLoadData"));
    for (int i = 0; i < LAP_CUDA_KERNELS; i++) {
        CUkernel kernel;
        LAP_TRY(lap_cuda_kernel_find(device, (lap_cuda_kernel_t)i, &kernel));
        LAP_TRY(lap_cuda_check(api, api->cuKernelGetFunction(&device->kernels[i], kernel),
                               "cuKernelGetFunction"));
        LAP_TRY(lap_cuda_check(api, api->cuFuncLoad(device->kernels[i]), "cuFuncLoad"));
    }
    return LAP_OK;
}

static lap_status_t open_stamps(lap_cuda_device_t *device)
{
    void *memory;
    LAP_TRY(lap_cuda_pin(device, LAP_CUDA_STAMPS * sizeof(uint64_t), &memory));
    device->clock.stamps = memory;
    return lap_cuda_times_open(device);
}

static lap_status_t open_inside(lap_cuda_device_t *device)
{
    const lap_cuda_api_t *api = &device->api;
    void *control;
    LAP_TRY(lap_cuda_check(
        api, api->cuCtxGetStreamPriorityRange(&device->share.lazy, &device->share.urgent),
        "cuCtxGetStreamPriorityRange"));
    LAP_TRY(load_kernels(device));
    LAP_TRY(lap_cuda_pin(device, sizeof(*device->control), &control));
    device->control = control;
    LAP_TRY(lap_cuda_own_stream(device, true, &device->internal));
    LAP_TRY(lap_cuda_check(api, api->cuEventCreate(&device->join_event, CU_EVENT_DISABLE_TIMING),
                           "cuEventCreate"));
    CUdeviceptr lost;
    LAP_TRY(lap_cuda_memory(device, (1 + LAP_CUDA_SLOTS) * sizeof(*device->lost), &lost));
    device->lost = (uint32_t *)(uintptr_t)lost;
    LAP_TRY(lap_cuda_caller_open(device));
    LAP_TRY(open_stamps(device));
    LAP_TRY(lap_cuda_set_clock(device));
    return lap_cublas_check(api, api->cublasLtCreate(&device->blas.handle), "cublasLtCreate");
}

/* A variable that is one of two words; unset and empty are `otherwise`. */
static lap_status_t read_switch(const char *name, const char *off, const char *on, bool otherwise,
                                bool *on_p)
{
    const char *text = getenv(name);
    *on_p = text && *text ? strcmp(text, on) == 0 : otherwise;
    if (text && *text && !*on_p && strcmp(text, off) != 0)
        return lap_error(LAP_ERR_INVALID, "%s is '%s', expected %s or %s", name, text, off, on);
    return LAP_OK;
}

static lap_status_t read_switches(lap_cuda_device_t *device)
{
    LAP_TRY(read_switch("LAP_GPU_TUNE", "0", "1", true, &device->blas.tunes));
    return read_switch("LAP_GPU_GELU", "exact", "fast", false, &device->blas.fast_gelu);
}

/* ---- the slots ---- */

/* What can be known without a context. */
static lap_status_t probe(lap_cuda_device_t *device)
{
    const char *given = getenv("LAP_GPU_PART");
    int part, parts;
    LAP_TRY(choose_gpu(device, 0));
    if (given && *given)
        LAP_TRY(read_part(given, &part, &parts));
    return read_switches(device);
}

static lap_status_t lap_cuda_probe(void)
{
    lap_cuda_device_t device = {.ordinal = 0};
    LAP_TRY(lap_cuda_load(&device.api));
    const lap_status_t status = probe(&device);
    lap_cuda_unload(&device.api);
    return status;
}

/* As enter and leave do, for where no context may be current: then the driver may refuse it. */
static bool swap_mode(const lap_cuda_device_t *device, CUstreamCaptureMode *mode_p)
{
    return device->api.cuThreadExchangeStreamCaptureMode(mode_p) == CUDA_SUCCESS;
}

static lap_status_t open_context(lap_cuda_device_t *device)
{
    LAP_TRY(choose_context(device));
    LAP_TRY(lap_cuda_enter(device));
    return lap_cuda_leave(device, open_inside(device));
}

static lap_status_t open_all(lap_cuda_device_t *device, int rank)
{
    LAP_TRY(choose_gpu(device, rank));
    device->base.queues = count_queues(device);
    LAP_TRY(read_switches(device));
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool relaxed = swap_mode(device, &mode);
    const lap_status_t status = open_context(device);
    if (relaxed)
        (void)swap_mode(device, &mode);
    return status;
}

static void close_inside(lap_cuda_device_t *device)
{
    const lap_cuda_api_t *api = &device->api;
    lap_cuda_plans_free(device);
    if (device->blas.handle)
        (void)api->cublasLtDestroy(device->blas.handle);
    lap_cuda_caller_close(device);
    if (device->join_event)
        (void)api->cuEventDestroy(device->join_event);
    if (device->internal)
        (void)api->cuStreamDestroy(device->internal);
    if (device->lost)
        (void)api->cuMemFree((CUdeviceptr)(uintptr_t)device->lost);
    if (device->control)
        (void)api->cuMemFreeHost(device->control);
    if (device->clock.stamps)
        (void)api->cuMemFreeHost(device->clock.stamps);
    lap_cuda_code_unload(device);
    if (device->library)
        (void)api->cuLibraryUnload(device->library);
}

static void close_all(lap_cuda_device_t *device)
{
    const lap_cuda_api_t *api = &device->api;
    while (device->clients)
        device->clients->close(device->clients);
    if (device->run_deferred_frees)
        device->run_deferred_frees(device, true);
    if (device->context && lap_cuda_enter(device) == LAP_OK) {
        close_inside(device);
        (void)lap_cuda_leave(device, LAP_OK);
    }
    if (device->share.green && !device->dead)
        (void)api->cuGreenCtxDestroy(device->share.green);
    if (device->retained && !device->dead)
        (void)api->cuDevicePrimaryCtxRelease(device->gpu);
}

static void lap_cuda_close(lap_device_t *handle)
{
    lap_cuda_device_t *device = (lap_cuda_device_t *)handle;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool relaxed = swap_mode(device, &mode);
    close_all(device);
    if (relaxed)
        (void)swap_mode(device, &mode);
    lap_cuda_unload(&device->api);
    lap_free(device->clock.times);
    lap_free(device);
}

static lap_status_t lap_cuda_open(const lap_device_options_t *options, lap_device_t **device_p)
{
    if (options->threads < 0)
        return lap_error(LAP_ERR_INVALID, "threads = %d: expected 0 or more", options->threads);
    lap_cuda_device_t *device = lap_alloc(1, sizeof(*device));
    if (!device)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the handle of device cuda");
    device->base.ops = &lap_cuda_ops;
    device->base.spin_ns = lap_device_spin_ns(options, 1) > 0 ? SPIN_NS : 0;
    device->limit_ns = UINT64_MAX;
    if (options->timeout_ns > 0 && options->timeout_ns < UINT64_MAX - PATIENCE_NS)
        device->limit_ns = options->timeout_ns + PATIENCE_NS;
    lap_status_t status = lap_cuda_load(&device->api);
    if (status != LAP_OK) {
        lap_free(device);
        return status;
    }
    status = open_all(device, options->rank);
    if (status != LAP_OK) {
        lap_cuda_close(&device->base);
        return status;
    }
    *device_p = &device->base;
    return LAP_OK;
}

static lap_status_t lap_cuda_gemm_check(lap_device_t *handle, lap_dtype_t a, lap_dtype_t b)
{
    const lap_cuda_device_t *device = (lap_cuda_device_t *)handle;
    const lap_dtype_t narrow = lap_dtype_is_fp8(a) ? a : b;
    if (!lap_dtype_is_fp8(narrow) || device->capability >= LAP_CUDA_FP8_FROM)
        return LAP_OK;
    return lap_error(LAP_ERR_UNSUPPORTED,
                     "products of %s need compute capability %d.%d or later; GPU %d has %d.%d",
                     lap_dtype_name(narrow), LAP_CUDA_FP8_FROM / 10, LAP_CUDA_FP8_FROM % 10,
                     device->ordinal, device->capability / 10, device->capability % 10);
}

int lap_cuda_gpu(lap_device_t *device)
{
    return ((const lap_cuda_device_t *)device)->ordinal;
}

/* For the model of costs: a GPU, or its part, is one core of its own that a GEMM keeps busy. */
static int lap_cuda_gemm_threads(lap_device_t *device)
{
    (void)device;
    return 1;
}

const lap_device_ops_t lap_cuda_ops = {
    .name = "cuda",
    .summary = "NVIDIA GPUs: GEMM by cuBLASLt, and kernels of its own",
    .transport = "cuda_ipc",
    .facts = LAP_CUDA_FACTS,
    .tries_methods = true,
    .waits_by_itself = true,
    .takes_streams = true,
    .probe = lap_cuda_probe,
    .open = lap_cuda_open,
    .close = lap_cuda_close,
    .calls_begin = lap_cuda_calls_begin,
    .calls_end = lap_cuda_calls_end,
    .gemm_check = lap_cuda_gemm_check,
    .gemm_threads = lap_cuda_gemm_threads,
    .alloc = lap_cuda_alloc,
    .free = lap_cuda_free,
    .check_memory = lap_cuda_check_memory,
    .alloc_shared = lap_cuda_alloc_shared,
    .free_shared = lap_cuda_free_shared,
    .stream_create = lap_cuda_stream_create,
    .stream_destroy = lap_cuda_stream_destroy,
    .stream_call = lap_cuda_stream_call,
    .stream_synchronize = lap_cuda_stream_synchronize,
    .event_create = lap_cuda_event_create,
    .event_destroy = lap_cuda_event_destroy,
    .event_record = lap_cuda_event_record,
    .stream_wait_event = lap_cuda_stream_wait_event,
    .event_synchronize = lap_cuda_event_synchronize,
    .gpu = lap_cuda_gpu,
    .stall = lap_cuda_stall,
    .abort_waits = lap_cuda_abort_waits,
    .timed_out = lap_cuda_timed_out,
    .release = lap_cuda_release,
    .stamp = lap_cuda_stamp,
    .stamp_delay = lap_no_stamp_delay,
    .copy = lap_cuda_copy,
    .reduce = lap_cuda_reduce,
    .column_sums = lap_cuda_column_sums,
    .cast = lap_cuda_cast,
    .transpose = lap_cuda_transpose,
    .gemm = lap_cuda_gemm,
    .gemm_prepare = lap_cuda_gemm_prepare,
    .set = lap_cuda_set,
    .fill = lap_cuda_fill,
    .graph_begin = lap_cuda_graph_begin,
    .graph_end = lap_cuda_graph_end,
    .graph_launch = lap_cuda_graph_launch,
    .graph_destroy = lap_cuda_graph_destroy,
    .caller_begin = lap_cuda_caller_begin,
    .caller_end = lap_cuda_caller_end,
    .caller_record = lap_cuda_caller_record,
    .caller_wait_event = lap_cuda_caller_wait_event,
    .is_capturing = lap_cuda_is_capturing,
};
