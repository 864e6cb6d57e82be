/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What cuda_layers.c and the kernels of layers.cu have in common: the arguments of each kernel, one
 * structure by value. Plain C that is C++ as well.
 */
#ifndef LAP_KERNEL_CUDA_CUDA_ARGS_H
#define LAP_KERNEL_CUDA_CUDA_ARGS_H

#include <stdint.h>

#include "kernel/params.h"

#define LAP_KERNEL_CUDA_VECTOR 8u    /* elements that a thread takes at a time where it can */
#define LAP_KERNEL_CUDA_THREADS 256u /* of a block of all but the norms */
#define LAP_KERNEL_CUDA_NORM 1024u   /* of a block of the norms, at most */
#define LAP_KERNEL_CUDA_FLOATS 4u    /* of an array, that a thread takes at a time */
#define LAP_KERNEL_CUDA_PARTS 512u   /* blocks whose sums become one, at most */

/*
 * How threads stand over a matrix: 2^shift of a block side by side in a row, the others below. Each
 * takes `vector` elements at a time: 1, or LAP_KERNEL_CUDA_VECTOR where addresses, strides and columns
 * allow it.
 */
typedef struct lap_kernel_cuda_span {
    size_t rows, cols;
    uint32_t vector, shift;
} lap_kernel_cuda_span_t;

/*
 * Where blocks leave their parts of a sum, or of a maximum; the last of them adds them up, in
 * order. `left` counts blocks that have, and is 0 again afterwards.
 */
typedef struct lap_kernel_cuda_parts {
    double part[LAP_KERNEL_CUDA_PARTS];
    uint32_t left;
    uint32_t reserved[15];
} lap_kernel_cuda_parts_t;

typedef struct lap_kernel_cuda_norm_forward {
    lap_norm_forward_t norm;
    uint32_t vector, reserved;
} lap_kernel_cuda_norm_forward_t;

/* Block i of `parts` leaves its sums in rows 2 i (of dgamma) and 2 i + 1 (of dbeta) of scratch. */
typedef struct lap_kernel_cuda_norm_backward {
    lap_norm_backward_t norm;
    uint32_t vector, parts;
} lap_kernel_cuda_norm_backward_t;

typedef struct lap_kernel_cuda_swiglu {
    lap_swiglu_t swiglu;
    lap_kernel_cuda_span_t span;
} lap_kernel_cuda_swiglu_t;

typedef struct lap_kernel_cuda_swiglu_backward {
    lap_swiglu_backward_t swiglu;
    lap_kernel_cuda_span_t span;
} lap_kernel_cuda_swiglu_backward_t;

typedef struct lap_kernel_cuda_square_loss {
    lap_square_loss_t loss;
    lap_kernel_cuda_span_t span;
    lap_kernel_cuda_parts_t *parts;
} lap_kernel_cuda_square_loss_t;

typedef struct lap_kernel_cuda_embedding {
    lap_embedding_t embedding;
    lap_kernel_cuda_span_t span;
} lap_kernel_cuda_embedding_t;

/* Columns that are rotated are counted by pairs: half of `heads` heads. */
typedef struct lap_kernel_cuda_rope {
    lap_rope_t rope;
    lap_kernel_cuda_span_t span;
} lap_kernel_cuda_rope_t;

typedef struct lap_kernel_cuda_dropout {
    lap_dropout_t dropout;
    lap_kernel_cuda_span_t span;
} lap_kernel_cuda_dropout_t;

/* A block takes a row at a time. */
typedef struct lap_kernel_cuda_cross_entropy {
    lap_cross_entropy_t entropy;
    lap_kernel_cuda_parts_t *parts;
    uint32_t vector, reserved;
} lap_kernel_cuda_cross_entropy_t;

typedef struct lap_kernel_cuda_fill_normal {
    lap_fill_normal_t fill;
    lap_kernel_cuda_span_t span;
} lap_kernel_cuda_fill_normal_t;

typedef struct lap_kernel_cuda_amax {
    lap_amax_t amax;
    lap_kernel_cuda_span_t span;
    lap_kernel_cuda_parts_t *parts;
} lap_kernel_cuda_amax_t;

typedef struct lap_kernel_cuda_sum_squares {
    lap_sum_squares_t sum;
    lap_kernel_cuda_parts_t *parts;
    uint32_t aligned, reserved; /* as float4 is */
} lap_kernel_cuda_sum_squares_t;

typedef struct lap_kernel_cuda_update {
    lap_update_t update;
    uint32_t aligned, reserved;
} lap_kernel_cuda_update_t;

#endif
