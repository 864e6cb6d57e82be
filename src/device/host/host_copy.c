/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and sums of rows in host memory, at once and on a stream. */
#include <assert.h>
#include <string.h>

#include "core/convert.h"
#include "core/status.h"
#include "device/host/host.h"

#define TILE                                                                                       \
    256u /* columns of a sum that are kept on the stack; dst may then be one of the sources */

void lap_copy_now(const lap_copy_t *copy)
{
    if (copy->dst == copy->src || copy->rows == 0 || copy->row_bytes == 0)
        return;
    if (copy->dst_stride == copy->row_bytes && copy->src_stride == copy->row_bytes) {
        memcpy(copy->dst, copy->src, copy->rows * copy->row_bytes);
        return;
    }
    char *dst = copy->dst;
    const char *src = copy->src;
    for (size_t i = 0; i < copy->rows; i++)
        memcpy(dst + i * copy->dst_stride, src + i * copy->src_stride, copy->row_bytes);
}

static lap_status_t run_copy(void *arg)
{
    lap_copy_now(arg);
    return LAP_OK;
}

lap_status_t lap_host_copy(lap_stream_t *stream, const lap_copy_t *copy)
{
    return lap_host_stream_call(stream, run_copy, copy, sizeof(*copy));
}

/* Columns [begin, begin + cols) of a row of a source, as float; `room` has TILE elements. */
static const float *part_of(const lap_reduce_t *reduce, size_t source, size_t row, size_t begin,
                            size_t cols, float *room)
{
    const char *start = (const char *)reduce->srcs[source] + row * reduce->src_strides[source];
    return lap_as_float(reduce->dtype, start + begin * lap_dtype_size(reduce->dtype), room, cols);
}

/*
 * dst[c] = ((s0[c] + s1[c]) + s2[c]) + ... for columns [begin, begin + cols), cols <= TILE; `dst`
 * is the first of them.
 */
static void sum_tile(const lap_reduce_t *reduce, size_t row, size_t begin, size_t cols, void *dst)
{
    float sum[TILE], room[TILE];
    memcpy(sum, part_of(reduce, 0, row, begin, cols, room), cols * sizeof(float));
    for (size_t s = 1; s < reduce->nsrc; s++) {
        const float *src = part_of(reduce, s, row, begin, cols, room);
        for (size_t c = 0; c < cols; c++)
            sum[c] += src[c];
    }
    lap_from_float(reduce->dtype, sum, dst, cols);
}

static lap_status_t run_reduce(void *arg)
{
    const lap_reduce_t *reduce = arg;
    const size_t element = lap_dtype_size(reduce->dtype);
    for (size_t row = 0; row < reduce->rows; row++) {
        char *dst = (char *)reduce->dst + row * reduce->dst_stride;
        for (size_t begin = 0; begin < reduce->cols; begin += TILE) {
            size_t left = reduce->cols - begin;
            sum_tile(reduce, row, begin, left < TILE ? left : TILE, dst + begin * element);
        }
    }
    return LAP_OK;
}

lap_status_t lap_host_reduce(lap_stream_t *stream, const lap_reduce_t *reduce)
{
    if (lap_dtype_size(reduce->dtype) == 0)
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "a reduction of dtype %d: expected float32, float16 or bfloat16",
                         (int)reduce->dtype);
    if (reduce->nsrc == 0)
        return lap_error(LAP_ERR_INVALID, "a reduction of 0 sources: expected at least 1");
    return lap_host_stream_call(stream, run_reduce, reduce, sizeof(*reduce));
}

static_assert(sizeof(lap_copy_t) <= LAP_STREAM_ARG_BYTES, "a copy is an argument of a stream call");
static_assert(sizeof(lap_reduce_t) <= LAP_STREAM_ARG_BYTES, "and so is a reduction");
