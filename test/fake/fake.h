/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver and a cuBLASLt without a GPU, for tests of the host code that calls them: streams are
 * threads, and what kernels do is done by loops over host memory. Nothing of it tells anything
 * about kernels.cu, or about the speed of anything. Over it there is an NCCL: see nccl.c.
 *
 * The environment says what it is like:
 *
 *   FAKE_GPUS, FAKE_SMS, FAKE_CAPABILITY   1 GPU of 132 multiprocessors, compute capability 90
 *   FAKE_NO_PAIRS=1    parts of a GPU are groups of 8 multiprocessors, and never of 2
 *   FAKE_MEMORY        MiB of memory that a process finds there; 1536
 *   FAKE_STRICT=1      memory ends where a page does that nobody can use, and addresses of memory that
 *                      was freed are never used again: whatever runs beyond it, or later, crashes
 *   FAKE_FREE_WAITS=1  cuMemFree waits for what that of driver 580.159 was seen to wait for: all
 *                      work, but not graphs launched on streams of green contexts, and not streams
 *                      that only wait. Otherwise it waits for nothing: FAKE_STRICT notices more
 *   FAKE_ONE_QUEUE=1   all streams share a queue, where a wait holds up whatever comes after it, and
 *                      a graph runs step by step in any order that its edges allow: the worst that
 *                      a GPU may do. CUDA_DEVICE_MAX_CONNECTIONS is 1 then
 *   FAKE_MPS=1         processes are clients of MPS
 *   FAKE_SHARED_FATE=1 when a process whose memory is mapped here dies, every call fails, as it may
 *                      for clients of one MPS server
 *   FAKE_NO_IPC        1: memory has no handle for other processes; 2: they cannot open it
 *   FAKE_GRAPHS        a file to which each graph that is made adds how many kernels it has of
 *                      lap_wait, lap_raise, lap_stamp, and others, how often it sets memory, how
 *                      much comes after its lap_advance, and how much may run at the same time as that
 *   FAKE_LAUNCHES      a file to which each launch of a graph adds a line
 *   FAKE_COUNTS        a file to which each process adds a line as it ends: what it was asked for, see fake_count_t
 *   FAKE_EXIT_UNMAPS=1 pinned memory that is left goes at exit, a while before the process does
 *   FAKE_FAILS         a call that always fails, such as cuGraphAddKernelNode, with
 *                      CUDA_ERROR_INVALID_VALUE, or as "cuFuncLoad:2" with the number given; of
 *                      cuBLASLt's only cublasLtCreate
 *   FAKE_LATE          a call of NCCL or cuBLASMp that begins later, as "cublasMpMatmul:3000", in milliseconds
 *   FAKE_CLOCK_MS      how far the GPU's clock runs ahead of the host's, but for the first 8 times
 *                      that a kernel writes; negative: behind
 *   FAKE_GEMM_S        as "100 102": what cuBLASLt's GEMMs take on the clock of events, in seconds, with
 *                      the kernel that it proposes first, of tiles of 256x128, and with the other, of
 *                      128x256; they do nothing else
 *   FAKE_GEMMS         a file to which each of its GEMMs adds the tile of its kernel
 *   FAKE_SLOW_MS       what each of its GEMMs takes longer
 *   FAKE_NO_LT=1       cuBLASLt can do nothing, so that the device's own kernels do it
 *   FAKE_WITHOUT       a kernel that cannot be launched, such as lap_multiply, so that cuBLASLt must
 *                      do what it can
 */
#ifndef LAP_TEST_FAKE_FAKE_H
#define LAP_TEST_FAKE_FAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cuda.h>

/*
 * Added to addresses of its memory, so that a host that uses one crashes, as it would with a GPU's.
 */
#define FAKE_BIT ((uintptr_t)1 << 52)
#define FAKE_EXPORT __attribute__((visibility("default")))

/* Where memory of the GPU, or of the host, really is. */
static inline void *fake_at(const void *address)
{
    return (void *)((uintptr_t)address & ~FAKE_BIT);
}

FAKE_EXPORT int fake_number(const char *name, int otherwise);
/* What the call of that name is to fail with; 0: it is not to. See FAKE_FAILS. */
FAKE_EXPORT int fake_failure(const char *name);

/* A call that FAKE_LATE names begins so much later. */
static inline void fake_late(const char *name)
{
    const char *late = getenv("FAKE_LATE");
    const size_t length = strlen(name);
    const bool named = late && strncmp(late, name, length) == 0 && late[length] == ':';
    const int ms = named ? atoi(late + length + 1) : 0;
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

/* ---- counts ---- */

/* In graphs, too, as they are captured. */
typedef enum fake_count {
    FAKE_WORK = 0, /* kernels, copies and other work given to streams, */
    FAKE_RECORDS,  /* events recorded, */
    FAKE_AWAITS,   /* and waited for by streams */
    FAKE_STREAMS,
    FAKE_EVENTS,
    FAKE_INSTANTIATED, /* graphs, made or made anew, */
    FAKE_LAUNCHED,     /* and their launches */
    FAKE_BLOCKS,       /* of memory of the GPU, */
    FAKE_BYTES,        /* ... in bytes, */
    FAKE_PINNED,       /* and of the host's that is pinned */
    FAKE_COUNTS
} fake_count_t;

void fake_count(fake_count_t what, size_t amount);

/* ---- streams ---- */

typedef void (*fake_work_t)(void *args);

/* Runs work(copy of args) in the order of the stream. `waits`: it may wait for a signal. */
FAKE_EXPORT CUresult fake_issue(CUstream stream, fake_work_t work, const void *args, size_t bytes,
                                bool waits);
/* What is recorded from now on was so much later. */
FAKE_EXPORT void fake_pass(int seconds);
/* Returns when all that was issued to all streams has run, where they share a queue. */
void fake_drain(void);
/* Returns when cuMemFree would: see FAKE_FREE_WAITS. */
void fake_await_work(void);
/* Whether a capture forbids this thread calls that might wait for streams, or make them wait. */
bool fake_forbids(void);

/* ---- contexts ---- */

/* The current one of this thread; NULL: none. */
CUcontext fake_context(void);
/* The green one that a context belongs to; NULL: none, it is a primary one. */
CUgreenCtx fake_green(CUcontext context);
/* The number of its GPU. */
unsigned fake_gpu(CUcontext context);
/* The primary context of the same GPU. */
CUcontext fake_primary(CUcontext context);

/* ---- memory ---- */

#define FAKE_PAGE 4096u

typedef struct fake_memset {
    CUdeviceptr dst;
    size_t count, width; /* of elements, and the bytes of each */
    unsigned value;
} fake_memset_t;

FAKE_EXPORT void fake_memset(void *args);

/* ---- kernels ---- */

typedef struct fake_kernel {
    const char *name;
    fake_work_t work;
    size_t bytes; /* of its arguments */
    bool waits;
} fake_kernel_t;

/* NULL: there is no such kernel. */
const fake_kernel_t *fake_kernel(const char *name);
const fake_kernel_t *fake_kernel_of(fake_work_t work); /* NULL: it is none of the library */

extern const fake_kernel_t fake_arithmetic[]; /* these end with a name that is NULL */
extern const fake_kernel_t fake_nn_kernels[]; /* those of src/nn */
void fake_reduce(void *args);                 /* the work of lap_reduce */

/* Element `i` of memory of the GPU. */
FAKE_EXPORT float fake_load(int32_t dtype, const void *memory, size_t i);
FAKE_EXPORT void fake_store(int32_t dtype, void *memory, size_t i, float value);

FAKE_EXPORT double fake_gelu(double x);
FAKE_EXPORT double fake_gelu_slope(double x);

/* ---- the table of cuGetProcAddress ---- */

typedef void (*fake_function_t)(void);

typedef struct fake_call {
    const char *name;
    fake_function_t function;
} fake_call_t;

#define FAKE_CALL(name, function)                                                                  \
    {                                                                                              \
        name, (fake_function_t)(function)                                                          \
    }

extern const fake_call_t fake_memory_calls[]; /* these end with a name that is NULL */
extern const fake_call_t fake_stream_calls[];
extern const fake_call_t fake_exec_calls[];
extern const fake_call_t fake_node_calls[];
extern const fake_call_t fake_vmm_calls[];

/* Counts memory of this process, if it has so much left, and gives it back. */
bool fake_take(size_t bytes);
void fake_give(size_t bytes);

/* Whether there is memory of cuMemCreate at an address. */
bool fake_vmm_has(CUdeviceptr address);

/* CUDA_SUCCESS, or what every call fails of since a process died; see FAKE_SHARED_FATE. */
CUresult fake_fate(void);

#endif
