/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcublasmp.so.0 of 0.10 over the fake NCCL: ranks find each other's parts in the workspace, which
 * must be registered on both grids. It knows the layouts of AG+GEMM, GEMM+RS and GEMM+AR, and refuses
 * others, and algorithms that need multicast. FAKE_CUBLASMP_VERSION is what it says that it is; 1000.
 * FAKE_CUBLASMP_DIES is a rank that is killed while it takes its workspace. FAKE_FAILS may name
 * cublasMpMalloc, cublasMpBufferRegister and cublasMpMatmul, too. As the CUDA runtime in the
 * real one does, it waits for its kernels when the process exits.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <lap/tensor.h>

#include "fake.h"
#include "transport/nccl/nccl_load.h"

#define HEAD 4096u

enum { SUCCESS = 0, INVALID = 3, NOT_SUPPORTED = 7 };
enum { ATTRIBUTES = 32, TRANS_A = 0, ALGORITHM = 3, EPILOGUE = 5, BIAS_AT = 6, BIAS_TYPE = 8 };
enum {
    AUX_AT = 9,
    AUX_STRIDE = 10,
    AUX_TYPE = 12,
    A_SCALE_AT = 16,
    B_SCALE_AT = 18,
    WIRE_TYPE = 27
};
enum { ALL_REDUCE = 1, BIAS = 4, GELU = 32, AUX = 128 };

ncclResult_t ncclCommCount(ncclComm_t comm, int *size);
ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank);
ncclResult_t ncclMemAlloc(void **memory_p, size_t bytes);
ncclResult_t ncclMemFree(void *memory);
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *memory, size_t bytes,
                                    ncclWindow_t *window_p, int flags);
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window);
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer,
                                      void **address_p);

typedef struct handle {
    CUstream stream;
} handle_t;

typedef struct grid {
    ncclComm_t comm;
    int64_t rows, columns;
    int size, rank;
    void *memory;
    ncclWindow_t window;
} grid_t;

typedef struct matrix {
    int64_t m, n, mb, nb, lld;
    int type;
    grid_t *grid;
} matrix_t;

typedef struct matmul {
    uint64_t attributes[ATTRIBUTES];
} matmul_t;

/* In a workspace, before the data: how far this rank is, and how often others have signalled it. */
typedef struct head {
    uint32_t reached; /* barriers of this rank */
    _Atomic uint32_t came;
} head_t;

typedef struct job {
    int kind; /* 0: AG, 1: RS, 2: AR */
    int64_t m, n, k;
    int type_a, type_b, type_d, wire, size, rank, epilogue;
    float alpha;
    const void *a, *b, *bias;
    const float *a_scale, *b_scale;
    void *d, *aux;
    char *workspaces[16];
} job_t;

/* ---- handles ---- */

FAKE_EXPORT int cublasMpGetVersion(int *version)
{
    *version = fake_number("FAKE_CUBLASMP_VERSION", 1000);
    return SUCCESS;
}

FAKE_EXPORT const char *cublasMpGetStatusString(int status)
{
    return status == NOT_SUPPORTED ? "not supported" : "invalid value";
}

FAKE_EXPORT int cublasMpCreate(void **handle_p, CUstream stream)
{
    handle_t *handle = calloc(1, sizeof(*handle));
    handle->stream = stream;
    *handle_p = handle;
    return SUCCESS;
}

FAKE_EXPORT int cublasMpDestroy(void *handle)
{
    free(handle);
    return SUCCESS;
}

FAKE_EXPORT int cublasMpGridCreate(int64_t rows, int64_t columns, int layout, ncclComm_t comm,
                                   void **grid_p)
{
    grid_t *grid = calloc(1, sizeof(*grid));
    *grid = (grid_t){.comm = comm, .rows = rows, .columns = columns};
    *grid_p = grid;
    (void)ncclCommCount(comm, &grid->size);
    (void)ncclCommUserRank(comm, &grid->rank);
    if (rows * columns != grid->size) { /* as from memory that was freed */
        fprintf(stderr, "fake cuBLASMp: a grid of %lld ranks\n", (long long)(rows * columns));
        abort();
    }
    return layout == (columns > 1 || rows == 1 ? 1 : 0) || grid->size == 1 ? SUCCESS : INVALID;
}

FAKE_EXPORT int cublasMpGridDestroy(void *grid)
{
    free(grid);
    return SUCCESS;
}

static int register_buffer(grid_t *grid, void *memory, size_t bytes)
{
    if (ncclCommWindowRegister(grid->comm, memory, bytes, &grid->window, NCCL_WIN_COLL_SYMMETRIC) !=
        ncclSuccess)
        return INVALID;
    grid->memory = memory;
    return SUCCESS;
}

FAKE_EXPORT int cublasMpBufferRegister(void *grid, void *memory, size_t bytes)
{
    const int fails = fake_failure("cublasMpBufferRegister");
    return fails ? fails : register_buffer(grid, memory, bytes);
}

FAKE_EXPORT int cublasMpBufferDeregister(void *of, void *memory)
{
    grid_t *grid = of;
    fake_late("cublasMpBufferDeregister");
    if (grid->memory != memory)
        return INVALID;
    grid->memory = NULL;
    return ncclCommWindowDeregister(grid->comm, grid->window) == ncclSuccess ? SUCCESS : INVALID;
}

FAKE_EXPORT int cublasMpMalloc(void *grid, void **memory_p, size_t bytes)
{
    if (fake_number("FAKE_CUBLASMP_DIES", -1) == ((grid_t *)grid)->rank)
        (void)raise(SIGKILL);
    if (fake_failure("cublasMpMalloc"))
        return fake_failure("cublasMpMalloc");
    if (ncclMemAlloc(memory_p, bytes) != ncclSuccess)
        return INVALID;
    memset(fake_at(*memory_p), 0, bytes);
    return register_buffer(grid, *memory_p, bytes);
}

FAKE_EXPORT int cublasMpFree(void *grid, void *memory)
{
    const int status = cublasMpBufferDeregister(grid, memory);
    return status == SUCCESS && ncclMemFree(memory) == ncclSuccess ? SUCCESS : INVALID;
}

FAKE_EXPORT int cublasMpMatrixDescriptorCreate(int64_t m, int64_t n, int64_t mb, int64_t nb,
                                               int64_t rsrc, int64_t csrc, int64_t lld, int type,
                                               void *grid, void **matrix_p)
{
    matrix_t *matrix = calloc(1, sizeof(*matrix));
    *matrix = (matrix_t){m, n, mb, nb, lld, type, grid};
    *matrix_p = matrix;
    return rsrc == 0 && csrc == 0 ? SUCCESS : INVALID;
}

FAKE_EXPORT int cublasMpMatrixDescriptorDestroy(void *matrix)
{
    free(matrix);
    return SUCCESS;
}

FAKE_EXPORT int cublasMpMatmulDescriptorCreate(void **matmul_p, int compute)
{
    *matmul_p = calloc(1, sizeof(matmul_t));
    return compute == 68 ? SUCCESS : INVALID;
}

FAKE_EXPORT int cublasMpMatmulDescriptorDestroy(void *matmul)
{
    free(matmul);
    return SUCCESS;
}

FAKE_EXPORT int cublasMpMatmulDescriptorSetAttribute(void *of, int attribute, const void *value,
                                                     size_t bytes)
{
    matmul_t *matmul = of;
    const bool wide = attribute == BIAS_AT || attribute == AUX_AT || attribute == AUX_STRIDE ||
                      attribute == A_SCALE_AT || attribute == B_SCALE_AT;
    if (attribute < 0 || attribute >= ATTRIBUTES || bytes != (wide ? 8 : sizeof(int)))
        return INVALID;
    memcpy(&matmul->attributes[attribute], value, bytes);
    return SUCCESS;
}

/* ---- products ---- */

static int32_t dtype_of(int type)
{
    switch (type) {
    case 0:
        return LAP_FLOAT32;
    case 2:
        return LAP_FLOAT16;
    case 28:
        return LAP_FLOAT8_E4M3;
    case 29:
        return LAP_FLOAT8_E5M2;
    default:
        return LAP_BFLOAT16;
    }
}

/* All ranks are here. */
static void meet(const job_t *job)
{
    head_t *own = (head_t *)(void *)job->workspaces[job->rank];
    const uint32_t target = ++own->reached * (uint32_t)job->size;
    for (int r = 0; r < job->size; r++)
        atomic_fetch_add(&((head_t *)(void *)job->workspaces[r])->came, 1);
    while ((int32_t)(atomic_load(&own->came) - target) < 0)
        nanosleep(&(struct timespec){0, 20000}, NULL);
}

static float scale_at(const float *scale)
{
    return scale ? *(const float *)fake_at(scale) : 1;
}

/* Of a row of B, tokens, and a row of A, the weight. */
static float product(const job_t *job, const void *x, size_t row, size_t column, size_t k)
{
    const void *w = fake_at(job->a);
    double sum = 0;
    for (size_t i = 0; i < k; i++)
        sum += (double)fake_load(dtype_of(job->type_b), x, row * k + i) *
               (double)fake_load(dtype_of(job->type_a), w, column * k + i);
    return (float)(sum * (double)job->alpha * (double)scale_at(job->a_scale) *
                   (double)scale_at(job->b_scale));
}

static void finish(const job_t *job, size_t i, size_t j, size_t columns, float sum)
{
    const int32_t dtype = dtype_of(job->type_d);
    if (job->epilogue & BIAS)
        sum += fake_load(dtype, fake_at(job->bias), j);
    if (job->epilogue & AUX)
        fake_store(dtype, fake_at(job->aux), i * columns + j, sum);
    if (job->epilogue & GELU)
        sum = (float)fake_gelu((double)sum);
    fake_store(dtype, fake_at(job->d), i * columns + j, sum);
}

static _Atomic int jobs; /* that run now */

__attribute__((destructor)) static void await_jobs(void)
{
    while (atomic_load(&jobs) > 0)
        nanosleep(&(struct timespec){0, 20000}, NULL);
}

static void run_job(void *argument)
{
    const job_t *job = argument;
    const size_t ranks = (size_t)job->size, m = (size_t)job->n, n = (size_t)job->m;
    const size_t k = (size_t)job->k, rows = m / ranks;
    const int32_t wire = dtype_of(job->wire);
    char *own = job->workspaces[job->rank] + HEAD;
    atomic_fetch_add(&jobs, 1);
    if (job->kind == 0)
        memcpy(own, fake_at(job->b), rows * k * lap_dtype_size(dtype_of(job->type_b)));
    for (size_t i = 0; job->kind > 0 && i < m; i++)
        for (size_t j = 0; j < n; j++)
            fake_store(wire, own, i * n + j, product(job, fake_at(job->b), i, j, k / ranks));
    meet(job);
    const size_t columns = job->kind == 0 ? n / ranks : n;
    const size_t first = job->kind == 1 ? rows * (size_t)job->rank : 0;
    for (size_t i = 0; i < (job->kind == 1 ? rows : m); i++)
        for (size_t j = 0; j < columns; j++) {
            float sum = 0;
            if (job->kind == 0)
                sum = product(job, job->workspaces[i / rows] + HEAD, i % rows, j, k);
            for (size_t r = 0; job->kind > 0 && r < ranks; r++)
                sum += fake_load(wire, job->workspaces[r] + HEAD, (first + i) * n + j);
            finish(job, i, j, columns, sum);
        }
    meet(job);
    atomic_fetch_sub(&jobs, 1);
}

/* The kind of operator that layouts describe; -1: none that it knows. */
static int find_kind(const matmul_t *matmul, const matrix_t *a, const matrix_t *b,
                     const matrix_t *d, int64_t m, int64_t n, int64_t k)
{
    const int64_t p = a->grid->size;
    if (matmul->attributes[TRANS_A] != 1 || a->m != k || b->m != k || a->n != m || b->n != n ||
        m % p || n % p || k % p)
        return -1;
    if (a->mb == k && a->nb == m / p && a->grid->columns == p && b->mb == k && b->nb == n / p &&
        b->grid->columns == p && d->mb == m / p && d->nb == n / p && d->grid->rows == p &&
        d->lld == m / p)
        return 0;
    if (a->mb != k / p || a->nb != m || a->grid->rows != p || b->mb != k / p || d->mb != m ||
        d->grid->columns != p || d->lld != m)
        return p == 1 ? 0 : -1;
    if (matmul->attributes[EPILOGUE] & ALL_REDUCE)
        return b->nb == n && d->n == n * p && d->nb == n ? 2 : -1;
    return b->nb == n / p && d->n == n && d->nb == n / p ? 1 : -1;
}

FAKE_EXPORT int cublasMpMatmul_bufferSize(void *handle, void *matmul, int64_t m, int64_t n,
                                          int64_t k, const void *alpha, const void *a, int64_t ia,
                                          int64_t ja, void *desc_a, const void *b, int64_t ib,
                                          int64_t jb, void *desc_b, const void *beta, const void *c,
                                          int64_t ic, int64_t jc, void *desc_c, void *d, int64_t id,
                                          int64_t jd, void *desc_d, size_t *device, size_t *host)
{
    (void)handle, (void)alpha, (void)a, (void)ia, (void)ja, (void)b, (void)ib, (void)jb, (void)beta;
    (void)c, (void)ic, (void)jc, (void)desc_c, (void)d, (void)id, (void)jd;
    const int kind = find_kind(matmul, desc_a, desc_b, desc_d, m, n, k);
    const uint64_t algorithm = ((matmul_t *)matmul)->attributes[ALGORITHM];
    if (kind < 0 || algorithm == 2 || algorithm == 6)
        return NOT_SUPPORTED;
    *device = HEAD + (size_t)(kind == 0 ? n * k : m * n) * sizeof(float);
    *host = 16;
    return SUCCESS;
}

static void *address(uint64_t value)
{
    return (void *)(uintptr_t)value;
}

FAKE_EXPORT int cublasMpMatmul(void *handle, void *matmul, int64_t m, int64_t n, int64_t k,
                               const void *alpha, const void *a, int64_t ia, int64_t ja,
                               void *desc_a, const void *b, int64_t ib, int64_t jb, void *desc_b,
                               const void *beta, const void *c, int64_t ic, int64_t jc,
                               void *desc_c, void *d, int64_t id, int64_t jd, void *desc_d,
                               void *device, size_t device_bytes, void *host, size_t host_bytes)
{
    (void)ia, (void)ja, (void)ib, (void)jb, (void)ic, (void)jc, (void)id, (void)jd;
    (void)desc_c, (void)device_bytes;
    fake_late("cublasMpMatmul");
    if (fake_failure("cublasMpMatmul"))
        return fake_failure("cublasMpMatmul");
    const uint64_t *attributes = ((const matmul_t *)matmul)->attributes;
    const matrix_t *of_a = desc_a, *of_b = desc_b, *of_d = desc_d;
    const grid_t *one = of_a->grid, *other = of_a->grid == of_b->grid ? of_d->grid : of_b->grid;
    job_t job = {.kind = find_kind(matmul, desc_a, desc_b, desc_d, m, n, k),
                 .m = m,
                 .n = n,
                 .k = k,
                 .type_a = of_a->type,
                 .type_b = of_b->type,
                 .type_d = of_d->type,
                 .wire = (int)attributes[WIRE_TYPE],
                 .epilogue = (int)attributes[EPILOGUE],
                 .bias = address(attributes[BIAS_AT]),
                 .aux = address(attributes[AUX_AT]),
                 .a_scale = address(attributes[A_SCALE_AT]),
                 .b_scale = address(attributes[B_SCALE_AT]),
                 .size = one->size,
                 .rank = one->rank,
                 .alpha = *(const float *)alpha,
                 .a = a,
                 .b = b,
                 .d = d};
    if ((job.epilogue & BIAS && (int)attributes[BIAS_TYPE] != job.type_d) ||
        (job.epilogue & AUX &&
         ((int)attributes[AUX_TYPE] != job.type_d || (int64_t)attributes[AUX_STRIDE] != of_d->lld)))
        return INVALID;
    if (job.kind < 0 || !host || host_bytes < 16 || c || *(const float *)beta != 0 ||
        one->memory != device || other->memory != device)
        return NOT_SUPPORTED;
    for (int r = 0; r < job.size; r++) {
        void *memory;
        (void)ncclGetPeerDevicePointer(one->window, 0, r, &memory);
        job.workspaces[r] = fake_at(memory);
    }
    return fake_issue(((handle_t *)handle)->stream, run_job, &job, sizeof(job), true) ==
                   CUDA_SUCCESS
               ? SUCCESS
               : INVALID;
}
