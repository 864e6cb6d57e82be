/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a device remembers of each GEMM that it has met: how cuBLASLt is told of it, and which of
 * its kernels does it.
 */
#ifndef LAP_DEVICE_CUDA_CUDA_PLAN_H
#define LAP_DEVICE_CUDA_CUDA_PLAN_H

#include "device/cuda/cuda.h"

#define LAP_CUDA_WORKSPACE ((size_t)32 << 20) /* what NVIDIA recommends for Hopper */
#define LAP_CUDA_PROPOSALS 8 /* kernels that are tried, the best by cuBLASLt's estimate first */

/* All that a choice depends on. No padding: it is compared as bytes. */
typedef struct lap_cuda_gemm_key {
    uint64_t rows, n, k, lda, ldb, ldd; /* in elements */
    int32_t a_dtype, b_dtype, d_dtype;
    uint32_t a_transposed, b_plain, accumulates, scaled;
    uint32_t align_a, align_b, align_d;
} lap_cuda_gemm_key_t;

/* cuBLASLt thinks in columns, where b is the first operand: see cuda_gemm.c. */
struct lap_cuda_plan {
    lap_cuda_gemm_key_t key;
    bool found; /* cuBLASLt can do it */
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
    struct lap_cuda_plan *next; /* with the same hash */
};

/* Between enter and leave: sets what differs from call to call. */
lap_status_t lap_cuda_plan_set(const lap_cuda_plan_t *plan, const lap_cuda_api_t *api,
                               cublasLtMatmulDescAttributes_t attribute, const void *value,
                               size_t bytes);

/*
 * Between enter and leave: the plan of a key, the same one every time, and so with the same bits of
 * results. If `timed`, and the device tunes, a new one is found by trial, for which the caller waits;
 * else it is the first that cuBLASLt proposes.
 */
lap_status_t lap_cuda_plan_get(lap_cuda_device_t *device, const lap_cuda_gemm_key_t *key,
                               bool timed, lap_cuda_plan_t **plan_p);

/*
 * Replaces proposals[0] by the fastest of them, on memory of its own. Where there is no memory for
 * that, or streams are busy, nothing is changed.
 */
lap_status_t lap_cuda_tune(lap_cuda_device_t *device, const lap_cuda_plan_t *plan,
                           cublasLtMatmulHeuristicResult_t *proposals, int count);

#endif
