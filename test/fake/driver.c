/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake driver but for its memory and its streams: what GPUs there are, their contexts, and how
 * its functions are found. See fake.h. Functions that are not here fail as not supported.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fake.h"

#define SHARED_MOST (227 * 1024) /* bytes of shared memory of a block */

int fake_number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

/*
 * A process has as many queues as it asks for. One whose streams share a queue has asked for one, whatever a launcher has
 * set for it: it would rely on queues that there are not, and wait until its timeout.
 */
__attribute__((constructor)) static void ask_for_one_queue(void)
{
    if (fake_number("FAKE_ONE_QUEUE", 0))
        (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
}

/* ---- what there is ---- */

FAKE_EXPORT CUresult cuInit(unsigned flags)
{
    (void)flags;
    return fake_number("FAKE_GPUS", 1) > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

FAKE_EXPORT CUresult cuDriverGetVersion(int *version)
{
    *version = 13000;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetCount(int *count)
{
    *count = fake_number("FAKE_GPUS", 1);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    (void)device;
    snprintf(name, (size_t)length, "Fake GPU");
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    (void)device;
    *bytes = (size_t)fake_number("FAKE_MEMORY", 1536) << 20;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    (void)device;
    switch ((int)attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = fake_number("FAKE_SMS", 132);
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = fake_number("FAKE_CAPABILITY", 90) / 10;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = fake_number("FAKE_CAPABILITY", 90) % 10;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        *value = SHARED_MOST;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MPS_ENABLED:
        *value = fake_number("FAKE_MPS", 0);
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
        *value = 1;
        return CUDA_SUCCESS;
    default:
        *value = 0;
        return CUDA_SUCCESS;
    }
}

FAKE_EXPORT CUresult cuGetErrorName(CUresult error, const char **text)
{
    static const struct {
        CUresult error;
        const char *name;
    } names[] = {
        {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
        {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {CUDA_ERROR_MPS_CLIENT_TERMINATED, "CUDA_ERROR_MPS_CLIENT_TERMINATED"},
    };
    *text = "CUDA_ERROR_FAKE";
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (names[i].error == error)
            *text = names[i].name;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGetErrorString(CUresult error, const char **text)
{
    *text = error == CUDA_ERROR_NO_DEVICE       ? "no CUDA-capable device is detected"
            : error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory"
                                                : "fake error";
    return CUDA_SUCCESS;
}

/* ---- contexts ---- */

/* A context, or a handle like it, is a number: its kind, and the GPU that it is of. */
#define PRIMARY 0x1000u
#define GREEN 0x3000u
#define GPU_OF 0xfffu
#define DEPTH 16

static _Thread_local CUcontext pushed[DEPTH];
static _Thread_local int depth;

CUcontext fake_context(void)
{
    return depth > 0 ? pushed[depth - 1] : NULL;
}

unsigned fake_gpu(CUcontext context)
{
    return (unsigned)((uintptr_t)context & GPU_OF);
}

CUgreenCtx fake_green(CUcontext context)
{
    return (uintptr_t)context & GREEN & ~PRIMARY ? (CUgreenCtx)context : NULL;
}

CUcontext fake_primary(CUcontext context)
{
    return (CUcontext)(((uintptr_t)context & GPU_OF) | PRIMARY);
}

static CUresult retain(CUcontext *context_p, CUdevice device)
{
    *context_p = (CUcontext)(uintptr_t)(PRIMARY | (unsigned)device);
    return CUDA_SUCCESS;
}

static CUresult push(CUcontext context)
{
    if (!context || depth == DEPTH)
        return CUDA_ERROR_INVALID_CONTEXT;
    pushed[depth++] = context;
    return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *context_p)
{
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    *context_p = pushed[--depth];
    return CUDA_SUCCESS;
}

static CUresult tell_device(CUdevice *device_p)
{
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device_p = (CUdevice)fake_gpu(fake_context());
    return CUDA_SUCCESS;
}

static CUresult priorities(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return CUDA_SUCCESS;
}

static CUresult resource(CUdevice device, CUdevResource *resource_p, CUdevResourceType type)
{
    (void)device;
    memset(resource_p, 0, sizeof(*resource_p));
    resource_p->type = type;
    resource_p->sm.smCount = (unsigned)fake_number("FAKE_SMS", 132);
    return CUDA_SUCCESS;
}

static CUresult split(CUdevResource *parts, unsigned *count, const CUdevResource *all,
                      CUdevResource *rest, unsigned flags, unsigned each)
{
    const bool pairs = (flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING) != 0;
    if (pairs && getenv("FAKE_NO_PAIRS"))
        return CUDA_ERROR_INVALID_VALUE;
    if (each == 0 || each % (pairs ? 2 : 8) != 0) /* the real one would round it up */
        return CUDA_ERROR_INVALID_VALUE;
    if (*count > all->sm.smCount / each)
        *count = all->sm.smCount / each;
    for (unsigned i = 0; i < *count; i++) {
        parts[i] = *all;
        parts[i].sm.smCount = each;
    }
    if (rest) {
        *rest = *all;
        rest->sm.smCount = all->sm.smCount - *count * each;
    }
    return CUDA_SUCCESS;
}

static CUresult describe(CUdevResourceDesc *description_p, CUdevResource *resources, unsigned count)
{
    (void)resources, (void)count;
    *description_p = (CUdevResourceDesc)(uintptr_t)0x2000;
    return CUDA_SUCCESS;
}

static CUresult create_green(CUgreenCtx *context_p, CUdevResourceDesc description, CUdevice device,
                             unsigned flags)
{
    (void)description, (void)flags;
    *context_p = (CUgreenCtx)(uintptr_t)(GREEN | (unsigned)device);
    return CUDA_SUCCESS;
}

static CUresult from_green(CUcontext *context_p, CUgreenCtx green)
{
    *context_p = (CUcontext)green;
    return CUDA_SUCCESS;
}

/* ---- work of streams ---- */

/* Pages that nobody has written yet cost nothing to clear: workspaces are mostly that. */
static void set_each(char *dst, unsigned char value, size_t count)
{
    size_t whole = count / FAKE_PAGE * FAKE_PAGE;
    if (value != 0 || (uintptr_t)dst % FAKE_PAGE != 0 || madvise(dst, whole, MADV_REMOVE) != 0)
        whole = 0;
    memset(dst + whole, value, count - whole);
}

void fake_memset(void *args)
{
    const fake_memset_t *set = args;
    char *dst = fake_at((void *)set->dst);
    if (set->width == 1)
        set_each(dst, (unsigned char)set->value, set->count);
    for (size_t i = 0; set->width > 1 && i < set->count; i++)
        memcpy(dst + i * set->width, &set->value, set->width);
}

static CUresult set_bytes(CUdeviceptr dst, unsigned char value, size_t count, CUstream stream)
{
    const fake_memset_t set = {dst, count, 1, value};
    return fake_issue(stream, fake_memset, &set, sizeof(set), false);
}

static CUresult set_words(CUdeviceptr dst, unsigned value, size_t count, CUstream stream)
{
    const fake_memset_t set = {dst, count, sizeof(value), value};
    return fake_issue(stream, fake_memset, &set, sizeof(set), false);
}

static void run_copy(void *args)
{
    const CUDA_MEMCPY2D *copy = args;
    char *dst = fake_at((void *)copy->dstDevice);
    const char *src = fake_at((void *)copy->srcDevice);
    for (size_t row = 0; row < copy->Height; row++)
        memmove(dst + row * copy->dstPitch, src + row * copy->srcPitch, copy->WidthInBytes);
}

static CUresult copy_rows(const CUDA_MEMCPY2D *copy, CUstream stream)
{
    if (copy->srcPitch < copy->WidthInBytes || copy->dstPitch < copy->WidthInBytes)
        return CUDA_ERROR_INVALID_VALUE;
    return fake_issue(stream, run_copy, copy, sizeof(*copy), false);
}

static CUresult copy_bytes(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    const CUDA_MEMCPY2D copy = {.dstDevice = dst,
                                .srcDevice = src,
                                .WidthInBytes = bytes,
                                .dstPitch = bytes,
                                .srcPitch = bytes,
                                .Height = 1};
    return copy_rows(&copy, stream);
}

typedef struct host_call {
    CUhostFn fn;
    void *arg;
} host_call_t;

static void run_host_call(void *args)
{
    const host_call_t *call = args;
    call->fn(call->arg);
}

static CUresult call_host(CUstream stream, CUhostFn fn, void *arg)
{
    const host_call_t call = {fn, arg};
    return fake_issue(stream, run_host_call, &call, sizeof(call), false);
}

/* ---- kernels ---- */

static CUresult load_library(CUlibrary *library_p)
{
    *library_p = (CUlibrary)(uintptr_t)0x4000;
    return CUDA_SUCCESS;
}

/* One that is not known here can be found, and cannot be launched. */
static CUresult get_kernel(CUkernel *kernel_p, CUlibrary library, const char *name)
{
    static const fake_kernel_t unknown = {.name = "unknown"};
    const char *without = getenv("FAKE_WITHOUT");
    const fake_kernel_t *kernel = without && strcmp(without, name) == 0 ? NULL : fake_kernel(name);
    (void)library;
    *kernel_p = (CUkernel)(uintptr_t)(kernel ? kernel : &unknown);
    return CUDA_SUCCESS;
}

static CUresult get_function(CUfunction *function_p, CUkernel kernel)
{
    *function_p = (CUfunction)kernel;
    return CUDA_SUCCESS;
}

static CUresult set_attribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    (void)function;
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value > SHARED_MOST)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                       CUstream stream, void **params, void **extra)
{
    const fake_kernel_t *kernel = (const fake_kernel_t *)(const void *)function;
    (void)extra;
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!grid_x || !grid_y || !grid_z || grid_y > 65535 || block_x * block_y * block_z > 1024 ||
        !block_x || shared > SHARED_MOST)
        return CUDA_ERROR_INVALID_VALUE;
    if (!kernel->work)
        return CUDA_ERROR_NOT_SUPPORTED;
    return fake_issue(stream, kernel->work, params[0], kernel->bytes, kernel->waits);
}

/* ---- finding all of it ---- */

static CUresult succeed(void)
{
    return CUDA_SUCCESS;
}

static CUresult not_supported(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

int fake_failure(const char *name)
{
    const char *fails = getenv("FAKE_FAILS");
    const size_t length = strlen(name);
    if (!fails || strncmp(fails, name, length) != 0)
        return 0;
    if (fails[length] == ':')
        return atoi(fails + length + 1);
    return fails[length] == '\0' ? CUDA_ERROR_INVALID_VALUE : 0;
}

static CUresult failure; /* of the call that always fails */

static CUresult always_fails(void)
{
    return failure;
}

static const fake_call_t calls[] = {
    FAKE_CALL("cuInit", cuInit),
    FAKE_CALL("cuDriverGetVersion", cuDriverGetVersion),
    FAKE_CALL("cuGetErrorName", cuGetErrorName),
    FAKE_CALL("cuGetErrorString", cuGetErrorString),
    FAKE_CALL("cuDeviceGet", cuDeviceGet),
    FAKE_CALL("cuDeviceGetCount", cuDeviceGetCount),
    FAKE_CALL("cuDeviceGetName", cuDeviceGetName),
    FAKE_CALL("cuDeviceGetAttribute", cuDeviceGetAttribute),
    FAKE_CALL("cuDevicePrimaryCtxRetain", retain),
    FAKE_CALL("cuDevicePrimaryCtxRelease", succeed),
    FAKE_CALL("cuCtxPushCurrent", push),
    FAKE_CALL("cuCtxPopCurrent", pop),
    FAKE_CALL("cuCtxGetDevice", tell_device),
    FAKE_CALL("cuCtxEnablePeerAccess", succeed),
    FAKE_CALL("cuCtxGetStreamPriorityRange", priorities),
    FAKE_CALL("cuDeviceGetDevResource", resource),
    FAKE_CALL("cuDevSmResourceSplitByCount", split),
    FAKE_CALL("cuDevResourceGenerateDesc", describe),
    FAKE_CALL("cuGreenCtxCreate", create_green),
    FAKE_CALL("cuGreenCtxDestroy", succeed),
    FAKE_CALL("cuCtxFromGreenCtx", from_green),
    FAKE_CALL("cuMemsetD8Async", set_bytes),
    FAKE_CALL("cuMemsetD32Async", set_words),
    FAKE_CALL("cuMemcpyAsync", copy_bytes),
    FAKE_CALL("cuMemcpy2DAsync", copy_rows),
    FAKE_CALL("cuLaunchKernel", launch),
    FAKE_CALL("cuLaunchHostFunc", call_host),
    FAKE_CALL("cuLibraryLoadData", load_library),
    FAKE_CALL("cuLibraryUnload", succeed),
    FAKE_CALL("cuLibraryGetKernel", get_kernel),
    FAKE_CALL("cuKernelGetFunction", get_function),
    FAKE_CALL("cuFuncLoad", succeed),
    FAKE_CALL("cuFuncSetAttribute", set_attribute),
    {NULL, NULL},
};

FAKE_EXPORT CUresult cuGetProcAddress(const char *name, void **function_p, int version,
                                      cuuint64_t flags, CUdriverProcAddressQueryResult *result)
{
    const fake_call_t *const tables[] = {calls,           fake_memory_calls, fake_stream_calls,
                                         fake_exec_calls, fake_node_calls,   fake_vmm_calls};
    const int fails = fake_failure(name);
    fake_function_t function = (fake_function_t)not_supported;
    (void)version, (void)flags, (void)result;
    for (size_t t = 0; t < sizeof(tables) / sizeof(tables[0]); t++)
        for (const fake_call_t *call = tables[t]; call->name; call++)
            if (strcmp(call->name, name) == 0)
                function = call->function;
    if (fails) {
        failure = (CUresult)fails;
        function = (fake_function_t)always_fails;
    }
    memcpy(function_p, &function, sizeof(function));
    return CUDA_SUCCESS;
}
