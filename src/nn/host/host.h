/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of devices that are this host. All but attention are the same for `ref` and `cpu`:
 * loops over rows that widen what they read, compute in double and round once.
 */
#ifndef LAP_NN_HOST_HOST_H
#define LAP_NN_HOST_HOST_H

#include "nn/kernels.h"

/* The slots that both tables share: lap_host_norm_forward, ... */
lap_status_t lap_host_prepare(lap_device_t *device);
size_t lap_host_norm_scratch(size_t rows, size_t cols);
#define LAP_HOST_SLOT(name, args_t)                                                                \
    lap_status_t lap_host_##name(lap_stream_t *stream, const args_t *args);
LAP_NN_SLOT_LIST(LAP_HOST_SLOT)
#undef LAP_HOST_SLOT

/* As a table has them. */
#define LAP_NN_HOST_SLOT(name, args_t) .name = lap_host_##name,
#define LAP_NN_HOST_SLOTS                                                                          \
    LAP_NN_SLOT_LIST(LAP_NN_HOST_SLOT).prepare = lap_host_prepare,                                 \
    .norm_scratch = lap_host_norm_scratch

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
