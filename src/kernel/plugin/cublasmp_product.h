/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A product of ours as cuBLASMp is told of it: grids, descriptors, a workspace, and the call. Each
 * function may wait for peers; cublasmp.c gives it a thread that can be left, or looks at its calls.
 * The primary context is current.
 */
#ifndef LAP_KERNEL_PLUGIN_CUBLASMP_PRODUCT_H
#define LAP_KERNEL_PLUGIN_CUBLASMP_PRODUCT_H

#include "kernel/plugin/plugin.h"
#include "transport/nccl/nccl_load.h"

typedef void *lap_cublasmp_t; /* a handle of any kind */

#define LAP_CUBLASMP_CALLS(X)                                                                      \
    X(cublasMpGetVersion, (int *version))                                                          \
    X(cublasMpCreate, (lap_cublasmp_t * handle, CUstream stream))                                  \
    X(cublasMpDestroy, (lap_cublasmp_t handle))                                                    \
    X(cublasMpGridCreate,                                                                          \
      (int64_t nprow, int64_t npcol, int layout, ncclComm_t comm, lap_cublasmp_t *grid))           \
    X(cublasMpGridDestroy, (lap_cublasmp_t grid))                                                  \
    X(cublasMpMalloc, (lap_cublasmp_t grid, void **memory, size_t bytes))                          \
    X(cublasMpFree, (lap_cublasmp_t grid, void *memory))                                           \
    X(cublasMpBufferRegister, (lap_cublasmp_t grid, void *memory, size_t bytes))                   \
    X(cublasMpBufferDeregister, (lap_cublasmp_t grid, void *memory))                               \
    X(cublasMpMatrixDescriptorCreate,                                                              \
      (int64_t m, int64_t n, int64_t mb, int64_t nb, int64_t rsrc, int64_t csrc, int64_t lld,      \
       int type, lap_cublasmp_t grid, lap_cublasmp_t *matrix))                                     \
    X(cublasMpMatrixDescriptorDestroy, (lap_cublasmp_t matrix))                                    \
    X(cublasMpMatmulDescriptorCreate, (lap_cublasmp_t * matmul, int compute))                      \
    X(cublasMpMatmulDescriptorDestroy, (lap_cublasmp_t matmul))                                    \
    X(cublasMpMatmulDescriptorSetAttribute,                                                        \
      (lap_cublasmp_t matmul, int attribute, const void *value, size_t bytes))                     \
    X(cublasMpMatmul_bufferSize,                                                                   \
      (lap_cublasmp_t handle, lap_cublasmp_t matmul, int64_t m, int64_t n, int64_t k,              \
       const void *alpha, const void *a, int64_t ia, int64_t ja, lap_cublasmp_t desc_a,            \
       const void *b, int64_t ib, int64_t jb, lap_cublasmp_t desc_b, const void *beta,             \
       const void *c, int64_t ic, int64_t jc, lap_cublasmp_t desc_c, void *d, int64_t id,          \
       int64_t jd, lap_cublasmp_t desc_d, size_t *device, size_t *host))                           \
    X(cublasMpMatmul,                                                                              \
      (lap_cublasmp_t handle, lap_cublasmp_t matmul, int64_t m, int64_t n, int64_t k,              \
       const void *alpha, const void *a, int64_t ia, int64_t ja, lap_cublasmp_t desc_a,            \
       const void *b, int64_t ib, int64_t jb, lap_cublasmp_t desc_b, const void *beta,             \
       const void *c, int64_t ic, int64_t jc, lap_cublasmp_t desc_c, void *d, int64_t id,          \
       int64_t jd, lap_cublasmp_t desc_d, void *device, size_t device_bytes, void *host,           \
       size_t host_bytes))

/* NOLINTNEXTLINE(bugprone-macro-parentheses): a name of a field cannot stand in parentheses */
#define LAP_CUBLASMP_FIELD(name, args) int(*name) args;

typedef struct lap_cublasmp_api {
    void *library;
    LAP_CUBLASMP_CALLS(LAP_CUBLASMP_FIELD)
    const char *(*cublasMpGetStatusString)(int status);
} lap_cublasmp_api_t;

#undef LAP_CUBLASMP_FIELD

/* Its functions, loaded when a method of that name is asked for. NCCL is loaded before, and it stays in the process. */
lap_status_t lap_cublasmp_load(lap_cublasmp_api_t *api, int *version_p);

typedef struct lap_cublasmp_product {
    lap_cublasmp_api_t api; /* the first three are the caller's to set */
    lap_foreign_shape_t shape;
    size_t ranks;
    lap_cublasmp_t handle, column_grid, row_grid, matmul, a, b, d;
    void *device_memory, *host_memory; /* of each call; that of the host is the caller's */
    size_t device_bytes, host_bytes;   /* how much a call needs of them */
} lap_cublasmp_product_t;

/* All but the workspace. After a failure destroy ends what is there. */
lap_status_t lap_cublasmp_product_create(lap_cublasmp_product_t *it, CUstream stream,
                                         ncclComm_t comm);
void lap_cublasmp_product_destroy(lap_cublasmp_product_t *it);

/* The workspace on the GPU. Without the second step cuBLASMp would not overlap, and not say so. */
lap_status_t lap_cublasmp_product_alloc(lap_cublasmp_product_t *it);
lap_status_t lap_cublasmp_product_register(const lap_cublasmp_product_t *it);

lap_status_t lap_cublasmp_product_multiply(const lap_cublasmp_product_t *it,
                                           const lap_foreign_args_t *args);

#endif
