/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 whose one GPU is this host: a stream is a thread with a queue, a kernel is a loop
 * (kernels.c), device memory can be mapped by other processes. With FAKE_ONE_QUEUE set, all streams
 * of a process share one queue, as they may on a GPU: whatever is issued after a wait is held up by
 * it. A graph runs in the order in which it was captured. Calls that the device does not make are
 * left out; those that need no answer only return.
 */
#include <cudaTypedefs.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake.h"

#define ARGS_MOST 4096

/* A moment that an event was told to mark. */
typedef struct moment {
    _Atomic int users;
    _Atomic bool passed;
} moment_t;

typedef enum kind { KERNEL, COPY, FILL, MARK, AWAIT, CALL, GRAPH } kind_t;

typedef struct op {
    kind_t kind;
    const char *kernel;
    char args[ARGS_MOST];
    CUDA_MEMCPY2D copy; /* with host addresses in dstHost and srcHost */
    unsigned char value;
    moment_t *moment;
    CUhostFn fn;
    void *context;
    struct graph *graph;
    struct op *next;
} op_t;

typedef struct graph {
    op_t *first, *last;
    _Atomic int users;
} graph_t;

typedef struct stream {
    struct stream *queue; /* who runs what it is given: itself, or the one queue */
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t filled, ran;
    op_t *first, *last;
    uint64_t issued, done;
    bool stop;
    graph_t *captured; /* not NULL: what it is given goes there */
    struct stream *next;
} stream_t;

typedef struct event {
    moment_t *moment; /* the latest; NULL: none */
    graph_t *captured;
} event_t;

/* Device memory. */
typedef struct piece {
    CUdeviceptr address;
    size_t bytes;
    int fd;
    struct piece *next;
} piece_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows */
static stream_t *streams, *one_queue;
static piece_t *pieces;

static __thread int contexts; /* pushed by this thread */

/* ---- moments ---- */

static moment_t *hold(moment_t *moment)
{
    if (moment)
        atomic_fetch_add(&moment->users, 1);
    return moment;
}

static void drop(moment_t *moment)
{
    if (moment && atomic_fetch_sub(&moment->users, 1) == 1)
        free(moment);
}

/* ---- what streams do ---- */

static void drop_graph(graph_t *graph)
{
    if (atomic_fetch_sub(&graph->users, 1) > 1)
        return;
    while (graph->first) {
        op_t *op = graph->first;
        graph->first = op->next;
        free(op);
    }
    free(graph);
}

static void run_one(op_t *op)
{
    switch (op->kind) {
    case KERNEL:
        fake_kernel_run(op->kernel, op->args);
        break;
    case COPY:
        for (size_t i = 0; i < op->copy.Height; i++)
            memmove((char *)op->copy.dstHost + i * op->copy.dstPitch,
                    (const char *)op->copy.srcHost + i * op->copy.srcPitch, op->copy.WidthInBytes);
        break;
    case FILL:
        memset(op->copy.dstHost, op->value, op->copy.WidthInBytes);
        break;
    case MARK:
        atomic_store(&op->moment->passed, true);
        drop(op->moment);
        break;
    case AWAIT:
        while (op->moment && !atomic_load(&op->moment->passed))
            fake_nap();
        drop(op->moment);
        break;
    case CALL:
        op->fn(op->context);
        break;
    case GRAPH:
        break;
    }
}

static void run(op_t *op)
{
    if (op->kind != GRAPH) {
        run_one(op);
        return;
    }
    for (op_t *each = op->graph->first; each; each = each->next)
        run_one(each);
    drop_graph(op->graph);
}

static void *stream_main(void *context)
{
    stream_t *stream = context;
    pthread_mutex_lock(&stream->mutex);
    for (;;) {
        while (!stream->first && !stream->stop)
            pthread_cond_wait(&stream->filled, &stream->mutex);
        op_t *op = stream->first;
        if (!op)
            break;
        stream->first = op->next;
        pthread_mutex_unlock(&stream->mutex);
        run(op);
        free(op);
        pthread_mutex_lock(&stream->mutex);
        stream->done++;
        pthread_cond_broadcast(&stream->ran);
    }
    pthread_mutex_unlock(&stream->mutex);
    return NULL;
}

static CUresult issue(CUstream handle, const op_t *given)
{
    stream_t *stream = (stream_t *)handle;
    op_t *op = malloc(sizeof(*op));
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *op = *given;
    op->next = NULL;
    graph_t *graph = stream->captured;
    if (graph) {
        *(graph->first ? &graph->last->next : &graph->first) = op;
        graph->last = op;
        return CUDA_SUCCESS;
    }
    stream = stream->queue;
    pthread_mutex_lock(&stream->mutex);
    *(stream->first ? &stream->last->next : &stream->first) = op;
    stream->last = op;
    stream->issued++;
    pthread_cond_signal(&stream->filled);
    pthread_mutex_unlock(&stream->mutex);
    return CUDA_SUCCESS;
}

/* ---- streams ---- */

static stream_t *new_stream(void)
{
    stream_t *stream = calloc(1, sizeof(*stream));
    if (!stream)
        return NULL;
    stream->queue = stream;
    pthread_mutex_init(&stream->mutex, NULL);
    pthread_cond_init(&stream->filled, NULL);
    pthread_cond_init(&stream->ran, NULL);
    if (pthread_create(&stream->thread, NULL, stream_main, stream) != 0)
        fake_wrong("no thread for a stream");
    return stream;
}

static CUresult create_stream(CUstream *stream_p)
{
    const char *one = getenv("FAKE_ONE_QUEUE");
    stream_t *stream = new_stream();
    pthread_mutex_lock(&lock);
    if (one && *one && !one_queue)
        one_queue = new_stream();
    if (one_queue)
        stream->queue = one_queue;
    stream->next = streams;
    streams = stream;
    pthread_mutex_unlock(&lock);
    *stream_p = (CUstream)stream;
    return CUDA_SUCCESS;
}

static CUresult fake_cuStreamCreateWithPriority(CUstream *stream_p, unsigned flags, int priority)
{
    (void)flags;
    (void)priority;
    return create_stream(stream_p);
}

static CUresult fake_cuGreenCtxStreamCreate(CUstream *stream_p, CUgreenCtx context, unsigned flags,
                                            int priority)
{
    (void)context;
    (void)flags;
    (void)priority;
    return create_stream(stream_p);
}

static CUresult fake_cuStreamSynchronize(CUstream handle)
{
    stream_t *stream = (stream_t *)handle;
    if (stream->captured)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    stream = stream->queue;
    pthread_mutex_lock(&stream->mutex);
    const uint64_t until = stream->issued;
    while (stream->done < until)
        pthread_cond_wait(&stream->ran, &stream->mutex);
    pthread_mutex_unlock(&stream->mutex);
    return CUDA_SUCCESS;
}

static CUresult fake_cuStreamDestroy(CUstream handle)
{
    stream_t *stream = (stream_t *)handle;
    (void)fake_cuStreamSynchronize(handle);
    pthread_mutex_lock(&stream->mutex);
    stream->stop = true;
    pthread_cond_signal(&stream->filled);
    pthread_mutex_unlock(&stream->mutex);
    pthread_join(stream->thread, NULL);
    pthread_mutex_lock(&lock);
    stream_t **link = &streams;
    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    pthread_mutex_unlock(&lock);
    free(stream);
    return CUDA_SUCCESS;
}

/* ---- events ---- */

static CUresult fake_cuEventCreate(CUevent *event_p, unsigned flags)
{
    (void)flags;
    event_t *event = calloc(1, sizeof(*event));
    *event_p = (CUevent)event;
    return event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult fake_cuEventDestroy(CUevent handle)
{
    event_t *event = (event_t *)handle;
    drop(event->moment);
    free(event);
    return CUDA_SUCCESS;
}

static CUresult fake_cuEventRecord(CUevent handle, CUstream stream)
{
    event_t *event = (event_t *)handle;
    event->captured = ((stream_t *)stream)->captured;
    if (event->captured) /* what comes after it in the list comes after it in time */
        return CUDA_SUCCESS;
    drop(event->moment);
    event->moment = calloc(1, sizeof(*event->moment));
    if (!event->moment)
        return CUDA_ERROR_OUT_OF_MEMORY;
    event->moment->users = 1;
    const op_t op = {.kind = MARK, .moment = hold(event->moment)};
    return issue(stream, &op);
}

static CUresult fake_cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned flags)
{
    (void)flags;
    const event_t *event = (event_t *)event_handle;
    stream_t *stream = (stream_t *)handle;
    if (event->captured) {
        if (stream->captured && stream->captured != event->captured)
            return CUDA_ERROR_STREAM_CAPTURE_MERGE;
        stream->captured = event->captured;
        return CUDA_SUCCESS;
    }
    if (stream->captured)
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    const op_t op = {.kind = AWAIT, .moment = hold(event->moment)};
    return issue(handle, &op);
}

static CUresult fake_cuEventQuery(CUevent handle)
{
    const event_t *event = (event_t *)handle;
    if (event->captured)
        return CUDA_ERROR_CAPTURED_EVENT;
    return !event->moment || atomic_load(&event->moment->passed) ? CUDA_SUCCESS
                                                                 : CUDA_ERROR_NOT_READY;
}

/* ---- graphs ---- */

static CUresult fake_cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode)
{
    (void)mode;
    stream_t *stream = (stream_t *)handle;
    if (stream->captured)
        return CUDA_ERROR_ILLEGAL_STATE;
    stream->captured = calloc(1, sizeof(graph_t));
    if (!stream->captured)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stream->captured->users = 1;
    return CUDA_SUCCESS;
}

static CUresult fake_cuStreamEndCapture(CUstream handle, CUgraph *graph_p)
{
    graph_t *graph = ((stream_t *)handle)->captured;
    if (!graph)
        return CUDA_ERROR_ILLEGAL_STATE;
    pthread_mutex_lock(&lock);
    for (stream_t *stream = streams; stream; stream = stream->next)
        if (stream->captured == graph)
            stream->captured = NULL;
    pthread_mutex_unlock(&lock);
    *graph_p = (CUgraph)graph;
    return CUDA_SUCCESS;
}

static CUresult fake_cuGraphDestroy(CUgraph graph)
{
    drop_graph((graph_t *)graph);
    return CUDA_SUCCESS;
}

/* A graph and what is made of it are the same here. */
static CUresult fake_cuGraphInstantiateWithFlags(CUgraphExec *exec_p, CUgraph graph,
                                                 unsigned long long flags)
{
    (void)flags;
    atomic_fetch_add(&((graph_t *)graph)->users, 1);
    *exec_p = (CUgraphExec)graph;
    return CUDA_SUCCESS;
}

static CUresult fake_cuGraphExecUpdate(CUgraphExec exec, CUgraph graph,
                                       CUgraphExecUpdateResultInfo *info)
{
    (void)exec;
    (void)graph;
    (void)info;
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

static CUresult fake_cuGraphExecDestroy(CUgraphExec exec)
{
    drop_graph((graph_t *)exec);
    return CUDA_SUCCESS;
}

static CUresult fake_cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    const op_t op = {.kind = GRAPH, .graph = (graph_t *)exec};
    atomic_fetch_add(&op.graph->users, 1);
    return issue(stream, &op);
}

/* ---- memory ---- */

static CUresult fake_cuMemAlloc(CUdeviceptr *address_p, size_t bytes)
{
    piece_t *piece = bytes > (size_t)1 << 40 ? NULL : calloc(1, sizeof(*piece));
    if (!piece)
        return CUDA_ERROR_OUT_OF_MEMORY;
    piece->bytes = (bytes + 4095) / 4096 * 4096;
    piece->fd = memfd_create("fake-gpu", MFD_CLOEXEC);
    void *memory = MAP_FAILED;
    if (piece->fd >= 0 && ftruncate(piece->fd, (off_t)piece->bytes) == 0)
        memory = mmap(NULL, piece->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, piece->fd, 0);
    if (memory == MAP_FAILED) {
        if (piece->fd >= 0)
            close(piece->fd);
        free(piece);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    piece->address = (CUdeviceptr)(uintptr_t)memory | FAKE_BIT;
    pthread_mutex_lock(&lock);
    piece->next = pieces;
    pieces = piece;
    pthread_mutex_unlock(&lock);
    *address_p = piece->address;
    return CUDA_SUCCESS;
}

/* Takes a piece out of the list; NULL: there is none. */
static piece_t *take_piece(CUdeviceptr address)
{
    pthread_mutex_lock(&lock);
    piece_t **link = &pieces;
    while (*link && (*link)->address != address)
        link = &(*link)->next;
    piece_t *piece = *link;
    if (piece)
        *link = piece->next;
    pthread_mutex_unlock(&lock);
    return piece;
}

static CUresult fake_cuMemFree(CUdeviceptr address)
{
    piece_t *piece = take_piece(address);
    if (!piece)
        fake_wrong("memory is freed that was not allocated");
    munmap(fake_host(address), piece->bytes);
    close(piece->fd);
    free(piece);
    return CUDA_SUCCESS;
}

static CUresult fake_cuMemGetInfo(size_t *free_p, size_t *total_p)
{
    *free_p = *total_p = (size_t)1 << 30;
    return CUDA_SUCCESS;
}

static CUresult fake_cuMemHostAlloc(void **memory_p, size_t bytes, unsigned flags)
{
    (void)flags;
    *memory_p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    return *memory_p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult fake_cuMemFreeHost(void *memory)
{
    free(memory);
    return CUDA_SUCCESS;
}

static CUresult fake_cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t bytes,
                                     CUstream stream)
{
    const op_t op = {.kind = FILL,
                     .copy = {.dstHost = fake_host(address), .WidthInBytes = bytes},
                     .value = value};
    return issue(stream, &op);
}

static CUresult fake_cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    const op_t op = {.kind = COPY,
                     .copy = {.dstHost = fake_host(dst),
                              .srcHost = fake_host(src),
                              .WidthInBytes = bytes,
                              .Height = 1}};
    return issue(stream, &op);
}

static CUresult fake_cuMemcpy2DAsync(const CUDA_MEMCPY2D *copy, CUstream stream)
{
    op_t op = {.kind = COPY, .copy = *copy};
    if (copy->srcPitch < copy->WidthInBytes || copy->dstPitch < copy->WidthInBytes)
        return CUDA_ERROR_INVALID_VALUE;
    op.copy.dstHost = fake_host(copy->dstDevice);
    op.copy.srcHost = fake_host(copy->srcDevice);
    return issue(stream, &op);
}

/* What travels as a handle of device memory. */
typedef struct handle {
    int pid, fd;
    size_t bytes;
} handle_t;

static CUresult fake_cuIpcGetMemHandle(CUipcMemHandle *handle_p, CUdeviceptr address)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (const piece_t *piece = pieces; piece; piece = piece->next) {
        const handle_t handle = {(int)getpid(), piece->fd, piece->bytes};
        if (piece->address != address)
            continue;
        memset(handle_p, 0, sizeof(*handle_p));
        memcpy(handle_p, &handle, sizeof(handle));
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult fake_cuIpcOpenMemHandle(CUdeviceptr *address_p, CUipcMemHandle given,
                                        unsigned flags)
{
    (void)flags;
    handle_t handle;
    char path[64];
    memcpy(&handle, &given, sizeof(handle));
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle.pid, handle.fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    void *memory =
        fd < 0 ? MAP_FAILED : mmap(NULL, handle.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (memory == MAP_FAILED)
        return CUDA_ERROR_INVALID_VALUE;
    *address_p = (CUdeviceptr)(uintptr_t)memory | FAKE_BIT;
    return CUDA_SUCCESS;
}

/* ---- work ---- */

static CUresult fake_cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                    unsigned grid_z, unsigned block_x, unsigned block_y,
                                    unsigned block_z, unsigned shared, CUstream stream,
                                    void **params, void **extra)
{
    (void)grid_z;
    (void)block_z;
    (void)shared;
    (void)extra;
    op_t op = {.kind = KERNEL, .kernel = (const char *)function};
    const size_t bytes = fake_kernel_bytes(op.kernel);
    if (contexts == 0 || grid_x == 0 || grid_y == 0 || block_x * block_y == 0 || bytes == 0 ||
        bytes > ARGS_MOST)
        fake_wrong("a kernel cannot be launched like that");
    memcpy(op.args, params[0], bytes);
    return issue(stream, &op);
}

static CUresult fake_cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *context)
{
    const op_t op = {.kind = CALL, .fn = fn, .context = context};
    return issue(stream, &op);
}

/* ---- the GPU ---- */

static CUresult fake_cuGetErrorName(CUresult result, const char **name_p)
{
    static __thread char name[32];
    snprintf(name, sizeof(name), "fake error %d", (int)result);
    *name_p = name;
    return CUDA_SUCCESS;
}

static CUresult fake_cuGetErrorString(CUresult result, const char **text_p)
{
    (void)result;
    *text_p = "of the fake driver";
    return CUDA_SUCCESS;
}

static CUresult fake_cuDeviceGetCount(int *count_p)
{
    *count_p = 1;
    return CUDA_SUCCESS;
}

static CUresult fake_cuDeviceGet(CUdevice *device_p, int ordinal)
{
    *device_p = ordinal;
    return CUDA_SUCCESS;
}

static CUresult fake_cuDeviceGetAttribute(int *value_p, CUdevice_attribute attribute,
                                          CUdevice device)
{
    (void)device;
    *value_p = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9
               : attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT   ? 132
                                                                         : 0;
    return CUDA_SUCCESS;
}

static CUresult fake_cuDevicePrimaryCtxRetain(CUcontext *context_p, CUdevice device)
{
    (void)device;
    *context_p = (CUcontext)&lock;
    return CUDA_SUCCESS;
}

static CUresult fake_cuCtxPushCurrent(CUcontext context)
{
    (void)context;
    contexts++;
    return CUDA_SUCCESS;
}

static CUresult fake_cuCtxPopCurrent(CUcontext *context_p)
{
    *context_p = NULL;
    if (--contexts < 0)
        fake_wrong("a context is popped that was not pushed");
    return CUDA_SUCCESS;
}

static CUresult fake_cuCtxGetStreamPriorityRange(int *least_p, int *greatest_p)
{
    *least_p = 0;
    *greatest_p = -5;
    return CUDA_SUCCESS;
}

static CUresult fake_cuLibraryLoadData(CUlibrary *library_p)
{
    *library_p = (CUlibrary)&lock;
    return CUDA_SUCCESS;
}

/* Kernels and functions are their names. */
static CUresult fake_cuLibraryGetKernel(CUkernel *kernel_p, CUlibrary library, const char *name)
{
    (void)library;
    *kernel_p = (CUkernel)(uintptr_t)name;
    return fake_kernel_bytes(name) > 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static CUresult fake_cuKernelGetFunction(CUfunction *function_p, CUkernel kernel)
{
    *function_p = (CUfunction)kernel;
    return CUDA_SUCCESS;
}

static CUresult fake_nothing(void)
{
    return CUDA_SUCCESS;
}

/* ---- what it is asked for ---- */

/* Names of functions, which cuda.h may have as macros. */
#define FAKES(X)                                                                                   \
    X("cuGetErrorName", fake_cuGetErrorName)                                                       \
    X("cuGetErrorString", fake_cuGetErrorString)                                                   \
    X("cuDeviceGetCount", fake_cuDeviceGetCount)                                                   \
    X("cuDeviceGet", fake_cuDeviceGet)                                                             \
    X("cuDeviceGetAttribute", fake_cuDeviceGetAttribute)                                           \
    X("cuDevicePrimaryCtxRetain", fake_cuDevicePrimaryCtxRetain)                                   \
    X("cuCtxPushCurrent", fake_cuCtxPushCurrent)                                                   \
    X("cuCtxPopCurrent", fake_cuCtxPopCurrent)                                                     \
    X("cuCtxGetStreamPriorityRange", fake_cuCtxGetStreamPriorityRange)                             \
    X("cuMemAlloc", fake_cuMemAlloc)                                                               \
    X("cuMemFree", fake_cuMemFree)                                                                 \
    X("cuMemGetInfo", fake_cuMemGetInfo)                                                           \
    X("cuMemHostAlloc", fake_cuMemHostAlloc)                                                       \
    X("cuMemFreeHost", fake_cuMemFreeHost)                                                         \
    X("cuMemsetD8Async", fake_cuMemsetD8Async)                                                     \
    X("cuMemcpyAsync", fake_cuMemcpyAsync)                                                         \
    X("cuMemcpy2DAsync", fake_cuMemcpy2DAsync)                                                     \
    X("cuIpcGetMemHandle", fake_cuIpcGetMemHandle)                                                 \
    X("cuIpcOpenMemHandle", fake_cuIpcOpenMemHandle)                                               \
    X("cuStreamCreateWithPriority", fake_cuStreamCreateWithPriority)                               \
    X("cuGreenCtxStreamCreate", fake_cuGreenCtxStreamCreate)                                       \
    X("cuStreamSynchronize", fake_cuStreamSynchronize)                                             \
    X("cuStreamDestroy", fake_cuStreamDestroy)                                                     \
    X("cuStreamWaitEvent", fake_cuStreamWaitEvent)                                                 \
    X("cuStreamBeginCapture", fake_cuStreamBeginCapture)                                           \
    X("cuStreamEndCapture", fake_cuStreamEndCapture)                                               \
    X("cuEventCreate", fake_cuEventCreate)                                                         \
    X("cuEventDestroy", fake_cuEventDestroy)                                                       \
    X("cuEventRecord", fake_cuEventRecord)                                                         \
    X("cuEventQuery", fake_cuEventQuery)                                                           \
    X("cuGraphDestroy", fake_cuGraphDestroy)                                                       \
    X("cuGraphInstantiateWithFlags", fake_cuGraphInstantiateWithFlags)                             \
    X("cuGraphExecUpdate", fake_cuGraphExecUpdate)                                                 \
    X("cuGraphExecDestroy", fake_cuGraphExecDestroy)                                               \
    X("cuGraphLaunch", fake_cuGraphLaunch)                                                         \
    X("cuLaunchKernel", fake_cuLaunchKernel)                                                       \
    X("cuLaunchHostFunc", fake_cuLaunchHostFunc)                                                   \
    X("cuLibraryLoadData", fake_cuLibraryLoadData)                                                 \
    X("cuLibraryGetKernel", fake_cuLibraryGetKernel)                                               \
    X("cuKernelGetFunction", fake_cuKernelGetFunction)

CUresult cuGetProcAddress_v2(const char *name, void **function_p, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *result_p)
{
    (void)version;
    (void)flags;
    (void)result_p;
#define FIND(text, function)                                                                       \
    if (strcmp(name, text) == 0) {                                                                 \
        *function_p = (void *)(uintptr_t)(function);                                               \
        return CUDA_SUCCESS;                                                                       \
    }
    FAKES(FIND)
#undef FIND
    *function_p = (void *)(uintptr_t)fake_nothing;
    return CUDA_SUCCESS;
}
