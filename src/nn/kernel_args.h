/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels of transformer layers are given: see kernels.h. Matrices are row-major, and all
 * strides are in elements. Plain C that is C++ as well: kernels for GPUs take these as they are.
 */
#ifndef LAP_NN_KERNEL_ARGS_H
#define LAP_NN_KERNEL_ARGS_H

#include <lap/nn.h>
#include <lap/optimizer.h>

/*
 * y = (x - mean) rstd gamma + beta for each row, with its mean and rstd = 1 / sqrt(variance +
 * epsilon); LAP_RMSNORM: mean is 0 and there is no beta. Both are kept for backward.
 */
typedef struct lap_norm_forward {
    lap_norm_t kind;
    lap_dtype_t dtype; /* of x and y */
    size_t rows, cols, x_stride, y_stride;
    const void *x;
    void *y;
    const float *gamma, *beta; /* [cols] */
    float *mean, *rstd;        /* [rows] */
    void *scratch;             /* of norm_scratch bytes */
    float epsilon;
} lap_norm_forward_t;

/*
 * dx = the gradient of x, plus `skip` where there is one; dgamma and dbeta are overwritten with the
 * sums over these rows, which are taken in an order that does not change from call to call.
 */
typedef struct lap_norm_backward {
    lap_norm_t kind;
    lap_dtype_t dtype; /* of x, dy, skip and dx */
    size_t rows, cols, x_stride, dy_stride, skip_stride, dx_stride;
    const void *x, *dy, *skip; /* skip: NULL for none */
    void *dx;
    const float *gamma, *mean, *rstd;
    float *dgamma, *dbeta; /* [cols]; LAP_RMSNORM: dbeta is NULL */
    void *scratch;
} lap_norm_backward_t;

/*
 * Causal self-attention of `batch` sequences of `seq` tokens; row s * batch + b is token s of
 * sequence b. A row of qkv holds `heads` queries, then `kv_heads` keys, then as many values, each
 * of `dim` columns; query head i uses key and value head i / (heads / kv_heads). A row of out holds
 * the results of the heads. lse is [heads * batch, seq]: the logarithm of the sum of the
 * exponentials of each row of scores, for backward.
 */
typedef struct lap_attention {
    lap_dtype_t dtype;
    float scale; /* of the scores */
    size_t seq, batch, heads, kv_heads, dim;
    size_t qkv_stride, out_stride; /* also of their gradients */
    const void *qkv;
    void *out; /* backward: as forward has left it */
    float *lse;
    const void *dout; /* backward */
    void *dqkv;       /* backward: the result */
    void *scratch;    /* of attention_scratch bytes */
} lap_attention_t;

/*
 * SwiGLU. A row of pre holds `cols` elements g, then as many u; out = g / (1 + e^-g) u. Backward
 * makes dpre from dout.
 */
typedef struct lap_swiglu {
    lap_dtype_t dtype;
    size_t rows, cols, pre_stride, out_stride; /* also of their gradients */
    const void *pre;
    void *out;
    const void *dout; /* backward */
    void *dpre;       /* backward: the result */
} lap_swiglu_t;

/* *sum = the sum of the squares of y - target; dy = (y - target) scale. */
typedef struct lap_square_loss {
    lap_dtype_t dtype;
    size_t rows, cols, y_stride, target_stride, dy_stride;
    const void *y, *target;
    void *dy; /* may be y, with its stride */
    float scale;
    double *sum; /* shared memory of the device: alloc_shared */
} lap_square_loss_t;

/*
 * Element (i, j) = mean + std times normal number `first + i * row_step + j` of a tensor, as
 * util/random.h has them.
 */
typedef struct lap_fill_normal {
    lap_dtype_t dtype;
    float mean, std; /* std 0: all are mean */
    size_t rows, cols, stride;
    void *out;
    uint64_t seed, tensor, first, row_step;
} lap_fill_normal_t;

/* *amax = the largest magnitude in src; 0 for none. Not a number counts as infinite. */
typedef struct lap_amax {
    lap_dtype_t dtype;
    size_t rows, cols, stride;
    const void *src;
    float *amax; /* shared memory of the device */
} lap_amax_t;

/* *sum = the sum of the squares of src, in double, in an order that depends only on count. */
typedef struct lap_sum_squares {
    const float *src;
    size_t count;
    double *sum; /* shared memory of the device */
} lap_sum_squares_t;

/* A step of an optimizer on `count` weights; lap/optimizer.h has the formulas. */
typedef struct lap_update {
    lap_optimizer_kind_t kind;
    size_t count;
    float *master;
    const float *grad;
    float *first, *second; /* moments: v of LAP_SGD, m and v of LAP_ADAMW */
    float scale;           /* of the gradient */
    float lr, decay;
    float momentum, beta1, beta2, epsilon;
    float correction1, correction2; /* 1 - beta1^t, 1 - beta2^t */
} lap_update_t;

#endif
