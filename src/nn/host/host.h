/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of devices that are this host. All but attention are the same for `ref` and `cpu`:
 * loops over rows that widen what they read, compute in double and round once.
 */
#ifndef LAP_NN_HOST_HOST_H
#define LAP_NN_HOST_HOST_H

#include "nn/kernels.h"

/* The slots that both tables share. */
lap_status_t lap_host_embedding(lap_stream_t *stream, const lap_embedding_t *embedding);
lap_status_t lap_host_embedding_backward(lap_stream_t *stream,
                                         const lap_embedding_backward_t *back);
lap_status_t lap_host_rope(lap_stream_t *stream, const lap_rope_t *rope);
lap_status_t lap_host_dropout(lap_stream_t *stream, const lap_dropout_t *dropout);
lap_status_t lap_host_logit_stats(lap_stream_t *stream, const lap_cross_entropy_t *entropy);
lap_status_t lap_host_cross_entropy(lap_stream_t *stream, const lap_cross_entropy_t *entropy);
lap_status_t lap_host_prepare(lap_device_t *device);
size_t lap_host_norm_scratch(size_t rows, size_t cols);
lap_status_t lap_host_norm_forward(lap_stream_t *stream, const lap_norm_forward_t *norm);
lap_status_t lap_host_norm_backward(lap_stream_t *stream, const lap_norm_backward_t *norm);
lap_status_t lap_host_swiglu_forward(lap_stream_t *stream, const lap_swiglu_t *swiglu);
lap_status_t lap_host_swiglu_backward(lap_stream_t *stream, const lap_swiglu_t *swiglu);
lap_status_t lap_host_square_loss(lap_stream_t *stream, const lap_square_loss_t *loss);
lap_status_t lap_host_fill_normal(lap_stream_t *stream, const lap_fill_normal_t *fill);
lap_status_t lap_host_amax(lap_stream_t *stream, const lap_amax_t *amax);
lap_status_t lap_host_fp8_scales(lap_stream_t *stream, const lap_fp8_scales_t *scales);
lap_status_t lap_host_sum_squares(lap_stream_t *stream, const lap_sum_squares_t *sum);
lap_status_t lap_host_total(lap_stream_t *stream, const lap_total_t *total);
lap_status_t lap_host_clip(lap_stream_t *stream, const lap_clip_t *clip);
lap_status_t lap_host_update(lap_stream_t *stream, const lap_update_t *update);

/* As a table has them: those of language models, and the others. */
#define LAP_NN_HOST_TOKEN_SLOTS                                                                    \
    .embedding = lap_host_embedding, .embedding_backward = lap_host_embedding_backward,            \
    .rope = lap_host_rope, .dropout = lap_host_dropout, .logit_stats = lap_host_logit_stats,       \
    .cross_entropy = lap_host_cross_entropy

#define LAP_NN_HOST_SLOTS                                                                          \
    .prepare = lap_host_prepare, .norm_scratch = lap_host_norm_scratch,                            \
    .norm_forward = lap_host_norm_forward, .norm_backward = lap_host_norm_backward,                \
    .swiglu_forward = lap_host_swiglu_forward, .swiglu_backward = lap_host_swiglu_backward,        \
    .square_loss = lap_host_square_loss, .fill_normal = lap_host_fill_normal,                      \
    .amax = lap_host_amax, .fp8_scales = lap_host_fp8_scales, .sum_squares = lap_host_sum_squares, \
    .total = lap_host_total, .clip = lap_host_clip, .update = lap_host_update

/*
 * Attention of one head of sequence `b`, as lap_attention_as_block has it: forward of queries,
 * backward of keys and values.
 */
typedef void (*lap_host_head_t)(const lap_attention_t *attention, size_t b, size_t head);

/* What the slots of attention are made of: all `heads` of all sequences, in order, on the stream. */
lap_status_t lap_host_attention(lap_stream_t *stream, const lap_attention_t *attention,
                                size_t heads, lap_host_head_t work);

/* Row `row` of a matrix. */
static inline void *lap_row_of(lap_dtype_t dtype, const void *matrix, size_t stride, size_t row)
{
    return (char *)matrix + row * stride * lap_dtype_size(dtype);
}

/* Columns that are widened on the stack at a time. */
#define LAP_HOST_TILE 256u

static inline size_t lap_tile_of(size_t cols, size_t begin)
{
    return cols - begin < LAP_HOST_TILE ? cols - begin : LAP_HOST_TILE;
}

/* Head `head` of row `s` of sequence `b` of a matrix; in rows of keys and values, values follow keys. */
static inline void *lap_head_of(const lap_attention_t *attention, lap_dtype_t dtype,
                                const void *matrix, size_t stride, size_t s, size_t b, size_t head)
{
    const size_t row = s * attention->batch + b;
    return (char *)matrix + (row * stride + head * attention->dim) * lap_dtype_size(dtype);
}

extern const lap_nn_kernels_t lap_nn_ref_kernels;
extern const lap_nn_kernels_t lap_nn_cpu_kernels;

#endif
