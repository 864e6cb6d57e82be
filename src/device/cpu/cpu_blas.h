/* SPDX-License-Identifier: Apache-2.0 */
/*
 * OpenBLAS, loaded when a device is first opened that needs it: who only asks for a version, or
 * uses a GPU, does without its threads and its memory.
 */
#ifndef LAP_DEVICE_CPU_CPU_BLAS_H
#define LAP_DEVICE_CPU_CPU_BLAS_H

#include <cblas.h>

#include <lap/status.h>

/*
 * LAP_ERR_UNSUPPORTED: there is none. LAP_ERR_NO_MEMORY: it would not have the memory for its
 * buffers, and waits for ever where it has not. May be called again, and by several threads.
 */
lap_status_t lap_blas_load(void);

/* The threads of one GEMM, in the whole process. */
int lap_blas_threads(void);
lap_status_t lap_blas_set_threads(int threads);

/* How it was built, in its own words. */
const char *lap_blas_config(void);

/* d [m, n] = alpha op(a) op(b) + beta d: row-major matrices, as for cblas_sgemm. */
typedef struct lap_blas_gemm {
    CBLAS_TRANSPOSE a_op, b_op;
    blasint m, n, k;
    float alpha, beta;
    const float *a, *b;
    float *d;
    blasint lda, ldb, ldd;
} lap_blas_gemm_t;

/* Of all these only lap_blas_load may come before lap_blas_load. */
void lap_blas_sgemm(const lap_blas_gemm_t *gemm);

/*
 * The same, with the same bits of an element whichever rows and columns are multiplied together: matrices that
 * OpenBLAS rounds otherwise because they are small, or one row or column, are made larger. With LAP_BLAS_EVEN=0, or
 * where OpenBLAS has no kernels that are known to be even, large ones may still differ.
 */
lap_status_t lap_blas_sgemm_even(const lap_blas_gemm_t *gemm);

#endif
