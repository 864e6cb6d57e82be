/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a device caches of each GEMM that it has run: its description for cuBLASLt, and which of
 * its kernels does it.
 */
#ifndef LAP_DEVICE_CUDA_CUDA_PLAN_H
#define LAP_DEVICE_CUDA_CUDA_PLAN_H

#include "device/cuda/cuda.h"

/*
 * The workspaces of a stream take what NVIDIA recommends for Hopper: a large one, and after it
 * small ones for the many kernels that need but a word to count in. Of these the GEMMs of a graph
 * have one each, as far as they go, so that all their words can be cleared at once: see
 * cuda_clear.c.
 */
#define LAP_CUDA_WORKSPACES ((size_t)32 << 20)
#define LAP_CUDA_SMALL_WORKSPACE ((size_t)1024)
#define LAP_CUDA_SMALL_WORKSPACES 64
#define LAP_CUDA_WORKSPACE                                                                         \
    (LAP_CUDA_WORKSPACES - LAP_CUDA_SMALL_WORKSPACES * LAP_CUDA_SMALL_WORKSPACE)

#define LAP_CUDA_PROPOSALS 8 /* kernels that are tried, the best by cuBLASLt's estimate first */

/* All that a choice depends on. No padding: it is compared as bytes. */
typedef struct lap_cuda_gemm_key {
    uint64_t rows, n, k, lda, ldb, ldd, ld_aux; /* in elements */
    int32_t a_dtype, b_dtype, d_dtype, bias_dtype, aux_dtype;
    uint32_t a_transposed, b_plain, accumulates;
    uint32_t scaled;   /* LAP_CUDA_SCALED_...: the operands whose scales are in memory */
    uint32_t epilogue; /* a cublasLtEpilogue_t; what is not part of it has 0 in all that follows */
    uint32_t align_a, align_b, align_d, align_bias, align_aux;
    uint32_t sms; /* to run on; 0: all that there are */
} lap_cuda_gemm_key_t;

enum { LAP_CUDA_SCALED_A = 1, LAP_CUDA_SCALED_B = 2 };

/* The bits of an epilogue that say so. */
enum { LAP_CUDA_HAS_BIAS = CUBLASLT_EPILOGUE_BIAS, LAP_CUDA_HAS_AUX = 128 };

/* cuBLASLt thinks in columns, where b is the first operand: see cuda_gemm.c. */
struct lap_cuda_plan {
    lap_cuda_gemm_key_t key;
    bool found;  /* cuBLASLt can do it */
    bool loaded; /* the driver has its kernel */
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;           /* bytes that the algorithm needs */
    struct lap_cuda_plan *next; /* with the same hash */
};

/* What differs from call to call. Each counts only where the key says that it is there. */
typedef struct lap_cuda_pointers {
    const float *a_scale, *b_scale;
    const void *bias;
    void *aux;
} lap_cuda_pointers_t;

lap_status_t lap_cuda_plan_point(const lap_cuda_plan_t *plan, const lap_cuda_api_t *api,
                                 const lap_cuda_pointers_t *pointers);

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
