/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libnccl.so.2 of 2.32 whose windows are memory of the fake driver, mapped by the processes of one
 * host. It is as strict as NCCL may be: nothing is under way before the caller has asked until it is
 * not in progress any more; windows are made by all ranks, in the same order, and so is what the
 * first put needs. It looks at what NCCL would take on trust or die of: that a put comes from a
 * window and stays in one, and that its stream is of a primary context and not captured. Ranks may
 * share the one fake GPU, as with NCCL_MULTI_RANK_GPU_ENABLE=1. The environment says more:
 *
 *   FAKE_NCCL_VERSION  what it says that it is; 23203
 *   FAKE_NVLINK        so many ranks of a communicator, from the first on, are connected by NVLink,
 *                      and so many after them: only they have each other's addresses; 0: all
 *   FAKE_NO_WINDOWS=1  these GPUs have no symmetric memory
 *
 * FAKE_FAILS may name ncclCommInitRankConfig, ncclCommWindowRegister and ncclSignal, too. A window that
 * was not made is written when the communicator is aborted, as NCCL does when it ends the job: into
 * memory that must still say what it said. What waits for a rank that has aborted, and blocks, fails.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "fake.h"
#include "transport/nccl/nccl_load.h"

#define RANKS 16
#define WINDOWS 1024 /* that a communicator makes */
#define POLLS 3      /* until something has been done */
#define LISTENS 50   /* of 10 ms each: how long the thread of an id lives */
#define ALIGNMENT 4096u
#define UNFINISHED ((ncclWindow_t)(uintptr_t)0x5afe5afe5afe5afeu) /* where a window is to be */

/* The memory of a rank, as the others know it. */
typedef struct offer {
    _Atomic int made;
    uint64_t bytes;
    CUipcMemHandle handle;
} offer_t;

/* What the ranks of a communicator share. */
typedef struct hall {
    _Atomic int arrived, putting; /* ranks that have begun, and that have put or signalled */
    _Atomic int aborted;          /* that have ended it */
    offer_t offers[WINDOWS][RANKS];
} hall_t;

/* What travels as an id. */
typedef struct address {
    int pid, fd;
} address_t;

struct ncclWindow_vidmem {
    struct ncclComm *comm;
    CUdeviceptr memory;
    size_t bytes;
    uint32_t number; /* among those of the communicator */
    CUdeviceptr mapped[RANKS];
    struct ncclWindow_vidmem *next;
};

typedef struct op {
    struct ncclComm *comm;
    void *dst;
    const void *src;
    size_t bytes;
    CUstream stream;
} op_t;

struct ncclComm {
    int rank, size, gpu;
    hall_t *hall;
    int polls; /* still to come, before the last call is done */
    bool connected, puts, blocks, revoked;
    ncclWindow_t windows, registering;
    ncclWindow_t *registered_p; /* where the one that is being made goes */
    uint32_t nwindows;
    op_t *ops; /* that wait for these polls */
    size_t nops, room;
    uint32_t issued;
    _Atomic uint32_t ended; /* ops */
};

FAKE_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result);
static void end_registering(struct ncclComm *comm);

static _Thread_local int depth;
static _Thread_local struct ncclComm *in_group;
static _Thread_local char sentence[256];

static struct {
    CUresult (*alloc)(CUdeviceptr *memory, size_t bytes);
    CUresult (*free)(CUdeviceptr memory);
    CUresult (*get_handle)(CUipcMemHandle *handle, CUdeviceptr memory);
    CUresult (*open_handle)(CUdeviceptr *memory, CUipcMemHandle handle, unsigned flags);
    CUresult (*close_handle)(CUdeviceptr memory);
    CUresult (*device)(CUdevice *device);
    CUresult (*context)(CUstream stream, CUcontext *context, CUgreenCtx *green);
    CUresult (*is_capturing)(CUstream stream, CUstreamCaptureStatus *status);
} driver;

__attribute__((constructor)) static void find_driver(void)
{
    const struct {
        const char *name;
        void *field;
    } calls[] = {{"cuMemAlloc", &driver.alloc},
                 {"cuMemFree", &driver.free},
                 {"cuIpcGetMemHandle", &driver.get_handle},
                 {"cuIpcOpenMemHandle", &driver.open_handle},
                 {"cuIpcCloseMemHandle", &driver.close_handle},
                 {"cuCtxGetDevice", &driver.device},
                 {"cuStreamGetCtx", &driver.context},
                 {"cuStreamIsCapturing", &driver.is_capturing}};
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        CUdriverProcAddressQueryResult found;
        (void)cuGetProcAddress(calls[i].name, calls[i].field, 13000, 0, &found);
    }
}

/* A communicator that blocks is done when the call returns. */
static ncclResult_t finish(struct ncclComm *comm, ncclResult_t result)
{
    while (comm->blocks && result == ncclInProgress) {
        const bool left = atomic_load(&comm->hall->aborted) > 0 && comm->polls == 0;
        (void)ncclCommGetAsyncError(comm, &result);
        nanosleep(&(struct timespec){0, 20000}, NULL);
        if (left && result == ncclInProgress) {
            if (comm->registering)
                end_registering(comm);
            return ncclRemoteError;
        }
    }
    return result;
}

static ncclResult_t refuse(const char *text)
{
    snprintf(sentence, sizeof(sentence), "fake NCCL: %s", text);
    fprintf(stderr, "%s\n", sentence);
    return ncclInvalidUsage;
}

/* ---- memory and windows ---- */

FAKE_EXPORT ncclResult_t ncclMemAlloc(void **memory_p, size_t bytes)
{
    CUdeviceptr memory;
    if (driver.alloc(&memory, bytes) != CUDA_SUCCESS)
        return ncclUnhandledCudaError;
    *memory_p = (void *)(uintptr_t)memory;
    return ncclSuccess;
}

FAKE_EXPORT ncclResult_t ncclMemFree(void *memory)
{
    return driver.free((CUdeviceptr)(uintptr_t)memory) == CUDA_SUCCESS ? ncclSuccess
                                                                       : ncclUnhandledCudaError;
}

FAKE_EXPORT ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *memory, size_t bytes,
                                                ncclWindow_t *window_p, int flags)
{
    *window_p = UNFINISHED;
    if (fake_failure("ncclCommWindowRegister"))
        return ncclUnhandledCudaError;
    if (comm->polls > 0 || comm->registering)
        return refuse("a window is registered while something else is in progress");
    if (!(flags & NCCL_WIN_COLL_SYMMETRIC) || (uintptr_t)memory % ALIGNMENT != 0)
        return refuse("a window that is not symmetric, or not aligned");
    if (comm->nwindows == WINDOWS)
        return refuse("more windows than it has room for");
    if (fake_number("FAKE_NO_WINDOWS", 0)) {
        *window_p = NULL;
        return ncclSuccess;
    }
    ncclWindow_t window = calloc(1, sizeof(*window));
    *window = (struct ncclWindow_vidmem){.comm = comm,
                                         .memory = (CUdeviceptr)(uintptr_t)memory,
                                         .bytes = bytes,
                                         .number = comm->nwindows++};
    offer_t *offer = &comm->hall->offers[window->number][comm->rank];
    offer->bytes = bytes;
    if (driver.get_handle(&offer->handle, window->memory) != CUDA_SUCCESS) {
        free(window);
        return refuse("a window over memory that is not of ncclMemAlloc");
    }
    atomic_store(&offer->made, 1);
    comm->registering = window;
    comm->registered_p = window_p;
    comm->polls = POLLS;
    return finish(comm, ncclInProgress);
}

/* When all ranks have registered theirs. */
static ncclResult_t map_window(struct ncclComm *comm)
{
    ncclWindow_t window = comm->registering;
    offer_t *offers = comm->hall->offers[window->number];
    for (int r = 0; r < comm->size; r++)
        if (!atomic_load(&offers[r].made))
            return ncclInProgress;
    for (int r = 0; r < comm->size; r++) {
        if (offers[r].bytes != window->bytes)
            return refuse("ranks register windows of different sizes");
        window->mapped[r] = window->memory;
        if (r != comm->rank &&
            driver.open_handle(&window->mapped[r], offers[r].handle, 0) != CUDA_SUCCESS)
            return ncclUnhandledCudaError;
    }
    window->next = comm->windows;
    comm->windows = *comm->registered_p = window;
    comm->registering = NULL;
    return ncclSuccess;
}

static void unmap_window(ncclWindow_t window)
{
    for (int r = 0; r < window->comm->size; r++)
        if (r != window->comm->rank && window->mapped[r])
            (void)driver.close_handle(window->mapped[r]);
    free(window);
}

FAKE_EXPORT ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
    ncclWindow_t *link = &comm->windows;
    while (*link && *link != window)
        link = &(*link)->next;
    if (!*link)
        return refuse("a window that is not there is taken away");
    *link = window->next;
    unmap_window(window);
    return ncclSuccess;
}

FAKE_EXPORT ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer,
                                                  void **address_p)
{
    const int together = fake_number("FAKE_NVLINK", 0);
    const bool near = together == 0 || peer / together == window->comm->rank / together;
    *address_p = near ? (void *)(uintptr_t)(window->mapped[peer] + offset) : NULL;
    return ncclSuccess;
}

/* ---- puts ---- */

static void run_put(void *args)
{
    const op_t *op = args;
    if (op->bytes > 0)
        memcpy(fake_at(op->dst), fake_at(op->src), op->bytes);
    atomic_thread_fence(memory_order_seq_cst);
    atomic_fetch_add(&op->comm->ended, 1);
}

static ncclResult_t launch_all(struct ncclComm *comm)
{
    for (size_t i = 0; i < comm->nops; i++) {
        comm->issued++;
        if (fake_issue(comm->ops[i].stream, run_put, &comm->ops[i], sizeof(comm->ops[i]), false) !=
            CUDA_SUCCESS)
            return ncclUnhandledCudaError;
    }
    comm->nops = 0;
    return ncclSuccess;
}

static ncclResult_t check_stream(CUstream stream)
{
    CUcontext context;
    CUgreenCtx green = NULL;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (driver.context(stream, &context, &green) != CUDA_SUCCESS || green)
        return refuse("a put on a stream of a green context: the driver would crash");
    if (driver.is_capturing(stream, &status) != CUDA_SUCCESS ||
        status != CU_STREAM_CAPTURE_STATUS_NONE)
        return refuse("a put in a capture waits for its receiver, who does not know of it");
    return ncclSuccess;
}

static ncclResult_t add(const op_t *op)
{
    struct ncclComm *comm = op->comm;
    const ncclResult_t result = check_stream(op->stream);
    if (result != ncclSuccess)
        return result;
    if (comm->polls > 0)
        return refuse("a put while something else is in progress");
    if (comm->nops == comm->room) {
        comm->room = 2 * comm->room + 16;
        comm->ops = realloc(comm->ops, comm->room * sizeof(*comm->ops));
    }
    comm->ops[comm->nops++] = *op;
    if (!comm->puts)
        atomic_fetch_add(&comm->hall->putting, 1);
    comm->puts = true;
    in_group = comm;
    if (depth == 0)
        comm->polls = POLLS;
    return depth == 0 ? ncclInProgress : ncclSuccess;
}

FAKE_EXPORT ncclResult_t ncclGroupStart(void)
{
    if (depth++ == 0)
        in_group = NULL;
    return ncclSuccess;
}

FAKE_EXPORT ncclResult_t ncclGroupEnd(void)
{
    if (depth == 0)
        return refuse("a group ends that was not begun");
    if (--depth > 0 || !in_group)
        return ncclSuccess;
    in_group->polls = POLLS;
    return ncclInProgress;
}

FAKE_EXPORT ncclResult_t ncclPutSignal(const void *source, size_t count, int type, int peer,
                                       ncclWindow_t window, size_t offset, int signal, int context,
                                       unsigned flags, ncclComm_t comm, CUstream stream)
{
    const CUdeviceptr from = (CUdeviceptr)(uintptr_t)source;
    ncclWindow_t own = comm->windows;
    while (own && (from < own->memory || from + count > own->memory + own->bytes))
        own = own->next;
    if (!own || offset > window->bytes || count > window->bytes - offset)
        return refuse("a put that does not come from a window, or leaves one");
    if (type != ncclUint8 || signal != 0 || context != 0 || flags != 0 || peer < 0 ||
        peer >= comm->size || count == 0)
        return ncclInvalidArgument;
    const op_t op = {.comm = comm,
                     .dst = (void *)(uintptr_t)(window->mapped[peer] + offset),
                     .src = source,
                     .bytes = count,
                     .stream = stream};
    return add(&op);
}

FAKE_EXPORT ncclResult_t ncclSignal(int peer, int signal, int context, unsigned flags,
                                    ncclComm_t comm, CUstream stream)
{
    if (fake_failure("ncclSignal"))
        return ncclUnhandledCudaError;
    if (signal != 0 || context != 0 || flags != 0 || peer < 0 || peer >= comm->size)
        return ncclInvalidArgument;
    const op_t op = {.comm = comm, .stream = stream};
    return add(&op);
}

/* ---- communicators ---- */

FAKE_EXPORT ncclResult_t ncclGetVersion(int *version)
{
    *version = fake_number("FAKE_NCCL_VERSION", 23203);
    return ncclSuccess;
}

FAKE_EXPORT const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclInvalidUsage ? "invalid usage" : "an error of the fake NCCL";
}

FAKE_EXPORT const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return sentence;
}

/* As in NCCL, whoever makes an id has a thread from then on, which nobody joins. */
static void *listen_for_ranks(void *unused)
{
    for (int i = 0; i < LISTENS; i++)
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    return unused;
}

/* The memory stays open in the process of rank 0, where the others find it. */
FAKE_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *unique)
{
    pthread_t thread;
    const address_t id = {(int)getpid(), memfd_create("fake-nccl", MFD_CLOEXEC)};
    if (pthread_create(&thread, NULL, listen_for_ranks, NULL) == 0)
        pthread_detach(thread);
    if (id.fd < 0 || ftruncate(id.fd, (off_t)sizeof(hall_t)) != 0)
        return ncclSystemError;
    memset(unique, 0, sizeof(*unique));
    memcpy(unique->internal, &id, sizeof(id));
    return ncclSuccess;
}

/* Whether the blocks of all ranks that share a GPU are there at once, with room for a GEMM: kernels wait for each other. */
static bool fits(const ncclConfig_t *config)
{
    const char *part = getenv("LAP_GPU_PART"), *slash = part ? strchr(part, '/') : NULL;
    const int parts = slash ? atoi(slash + 1) : 1, sms = fake_number("FAKE_SMS", 132);
    return parts == 1 || (config->maxCTAs > 0 && config->maxCTAs * parts <= sms / 2);
}

FAKE_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm_p, int size, ncclUniqueId unique,
                                                int rank, ncclConfig_t *config)
{
    address_t id;
    char path[64];
    CUdevice gpu = 0;
    *comm_p = NULL;
    fake_late("ncclCommInitRankConfig");
    if (fake_failure("ncclCommInitRankConfig"))
        return ncclUnhandledCudaError;
    if (size > RANKS)
        return refuse("a communicator of more ranks than it has room for");
    if (config->blocking && !fits(config))
        return refuse("a communicator whose kernels have no room beside those of other ranks");
    memcpy(&id, unique.internal, sizeof(id));
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", id.pid, id.fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    hall_t *hall =
        fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(hall_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    struct ncclComm *comm = hall == MAP_FAILED ? NULL : calloc(1, sizeof(*comm));
    if (!comm)
        return ncclSystemError;
    comm->rank = rank;
    comm->size = size;
    comm->gpu = driver.device(&gpu) == CUDA_SUCCESS ? (int)gpu : 0;
    comm->hall = hall;
    comm->blocks = config->blocking != 0;
    atomic_fetch_add(&hall->arrived, 1);
    *comm_p = comm;
    return finish(comm, ncclInProgress);
}

FAKE_EXPORT ncclResult_t ncclCommCount(ncclComm_t comm, int *size)
{
    *size = comm->size;
    return ncclSuccess;
}

FAKE_EXPORT ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank)
{
    *rank = comm->rank;
    return ncclSuccess;
}

FAKE_EXPORT ncclResult_t ncclCommCuDevice(ncclComm_t comm, int *gpu)
{
    *gpu = comm->gpu;
    return ncclSuccess;
}

FAKE_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result)
{
    *result = comm->revoked ? ncclInvalidUsage : ncclInProgress;
    if (comm->revoked)
        return ncclSuccess;
    if (!comm->connected)
        comm->connected = atomic_load(&comm->hall->arrived) == comm->size;
    if (!comm->connected || (comm->polls > 0 && --comm->polls > 0))
        return ncclSuccess;
    if (comm->nops > 0 && atomic_load(&comm->hall->putting) < comm->size)
        return ncclSuccess;
    *result = comm->registering ? map_window(comm) : launch_all(comm);
    return ncclSuccess;
}

FAKE_EXPORT ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags)
{
    comm->revoked = true;
    return flags == 0 ? ncclSuccess : ncclInvalidArgument;
}

/* What lies where a window was to be: it, or memory that was freed, or is used for something else. */
static void end_registering(struct ncclComm *comm)
{
    if (*comm->registered_p != UNFINISHED) {
        fprintf(stderr, "fake NCCL: it writes a window into memory that is no more\n");
        abort();
    }
    *comm->registered_p = NULL;
    unmap_window(comm->registering);
    comm->registering = NULL;
}

/* Waits until what is in the streams has ended. */
FAKE_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    while (atomic_load(&comm->ended) != comm->issued)
        nanosleep(&(struct timespec){0, 20000}, NULL);
    while (comm->windows)
        (void)ncclCommWindowDeregister(comm, comm->windows);
    if (comm->registering)
        end_registering(comm);
    atomic_fetch_add(&comm->hall->aborted, 1);
    munmap(comm->hall, sizeof(hall_t));
    free(comm->ops);
    free(comm);
    return ncclSuccess;
}
