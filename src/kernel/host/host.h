/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of devices that are this host. All but attention are the same for `ref` and `cpu`:
 * loops over rows that widen what they read, compute in double and round once.
 */
#ifndef LAP_KERNEL_HOST_HOST_H
#define LAP_KERNEL_HOST_HOST_H

#include "core/convert.h"
#include "kernel/kernel.h"

/*
 * What the slots that both tables share do when their turn in a stream comes: lap_run_norm_forward, ... of host_*.c; and
 * these slots, which host_slots.c makes of them: lap_host_norm_forward, ...
 */
#define KERNEL(id, slot, args_t, label, reads, writes)                                             \
    void lap_run_##slot(const args_t *args);                                                       \
    lap_status_t lap_host_##slot(lap_stream_t *stream, const args_t *args);
#define KERNEL_ATTENTION KERNEL_AS
#include "kernel/kernels.def"
lap_status_t lap_host_prepare(lap_device_t *device);
size_t lap_host_norm_scratch(size_t rows, size_t cols);

/*
 * Attention of one head of sequence `b`, as lap_attention_as_block has it: forward of queries,
 * backward of keys and values.
 */
typedef void (*lap_host_head_t)(const lap_attention_t *attention, size_t b, size_t head);

/* What the slots of attention are made of: all `heads` of all sequences, in order, on the stream. */
lap_status_t lap_host_attention(lap_stream_t *stream, const lap_attention_t *attention,
                                size_t heads, lap_host_head_t work);

/* An element of a matrix, which others of its row follow. */
static inline void *lap_element(const lap_tensor_t *matrix, size_t row, size_t col)
{
    return (char *)matrix->data + (row * matrix->stride + col) * lap_dtype_size(matrix->dtype);
}

/* Elements of a row as floats: where they are, or in `room`. */
static inline const float *lap_floats_of(const lap_tensor_t *matrix, size_t row, size_t col,
                                         float *room, size_t count)
{
    return lap_as_float(matrix->dtype, lap_element(matrix, row, col), room, count);
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

extern const lap_kernels_t lap_ref_kernels;
extern const lap_kernels_t lap_cpu_kernels;

#endif
