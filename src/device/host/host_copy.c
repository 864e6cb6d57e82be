/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of rows, at once and on a stream, sums of matrices and of rows, casts, transposes, and
 * memory filled with numbers, in host memory.
 */
#include <assert.h>
#include <string.h>

#include "core/convert.h"
#include "core/status.h"
#include "device/host/host.h"

/*
 * Columns of a sum that are held on the stack; dst may then be one of the sources, if it has their
 * type.
 */
#define TILE 256u

#define LINE 64u /* bytes of a line of the cache, or so */

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

/*
 * Columns [begin, begin + cols) of a row of a source, times its scale, as float; `room` has TILE
 * elements. The products are rounded before they are summed, so that no compiler fuses the two.
 */
static const float *part_of(const lap_reduce_t *reduce, size_t source, size_t row, size_t begin,
                            size_t cols, float *room)
{
    const char *start = (const char *)reduce->srcs[source] + row * reduce->src_strides[source];
    const float *part =
        lap_as_float(reduce->from, start + begin * lap_dtype_size(reduce->from), room, cols);
    if (!reduce->scales)
        return part;
    const float scale = *reduce->scales[source];
    for (size_t c = 0; c < cols; c++)
        room[c] = part[c] * scale;
    return room;
}

/* sum[c] = ((s0[c] + s1[c]) + s2[c]) + ... for columns [begin, begin + cols), cols <= TILE. */
static void sum_tile(const lap_reduce_t *reduce, size_t row, size_t begin, size_t cols, float *sum)
{
    float room[TILE];
    memcpy(sum, part_of(reduce, 0, row, begin, cols, room), cols * sizeof(float));
    for (size_t s = 1; s < reduce->nsrc; s++) {
        const float *src = part_of(reduce, s, row, begin, cols, room);
        for (size_t c = 0; c < cols; c++)
            sum[c] += src[c];
    }
}

static size_t tile_of(size_t cols, size_t begin)
{
    return cols - begin < TILE ? cols - begin : TILE;
}

static lap_status_t run_reduce(void *arg)
{
    const lap_reduce_t *reduce = arg;
    const size_t aux_stride = reduce->finish ? reduce->finish->aux_stride : 0;
    float sum[TILE];
    for (size_t row = 0; row < reduce->rows; row++) {
        void *dst = (char *)reduce->dst + row * reduce->dst_stride;
        void *aux = reduce->aux ? (char *)reduce->aux + row * aux_stride : NULL;
        for (size_t begin = 0; begin < reduce->cols; begin += TILE) {
            const size_t cols = tile_of(reduce->cols, begin);
            sum_tile(reduce, row, begin, cols, sum);
            lap_host_finish(reduce->finish, sum, begin, cols, reduce->to, dst, aux);
        }
    }
    return LAP_OK;
}

lap_status_t lap_host_reduce(lap_stream_t *stream, const lap_reduce_t *reduce)
{
    LAP_TRY(lap_device_check_dtype("a reduction", reduce->from));
    LAP_TRY(lap_device_check_dtype("the result of a reduction", reduce->to));
    if (reduce->nsrc == 0)
        return lap_error(LAP_ERR_INVALID, "a reduction of 0 sources: expected at least 1");
    return lap_host_stream_call(stream, run_reduce, reduce, sizeof(*reduce));
}

/* Columns [begin, begin + cols), cols <= TILE. */
static void sum_columns(const lap_column_sums_t *sums, size_t begin, size_t cols)
{
    const size_t from = lap_dtype_size(sums->from), to = lap_dtype_size(sums->to);
    double total[TILE] = {0};
    float room[TILE];
    for (size_t row = 0; row < sums->rows; row++) {
        const char *start = (const char *)sums->src + row * sums->src_stride + begin * from;
        const float *src = lap_as_float(sums->from, start, room, cols);
        for (size_t c = 0; c < cols; c++)
            total[c] += (double)src[c];
    }
    const double scale = (double)sums->scale * (sums->scaled_by ? (double)*sums->scaled_by : 1.0);
    for (size_t c = 0; c < cols; c++)
        total[c] *= scale;
    lap_from_double(sums->to, total, (char *)sums->dst + begin * to, cols);
}

static lap_status_t run_column_sums(void *arg)
{
    const lap_column_sums_t *sums = arg;
    for (size_t begin = 0; begin < sums->cols; begin += TILE)
        sum_columns(sums, begin, tile_of(sums->cols, begin));
    return LAP_OK;
}

lap_status_t lap_host_column_sums(lap_stream_t *stream, const lap_column_sums_t *sums)
{
    LAP_TRY(lap_device_check_dtype("the sum of rows", sums->from));
    LAP_TRY(lap_device_check_dtype("the result of a sum of rows", sums->to));
    return lap_host_stream_call(stream, run_column_sums, sums, sizeof(*sums));
}

/* Up to TILE elements of a row. Sizes are compared by their bits: NaN is above infinity then. */
static void cast_part(const lap_cast_t *cast, const void *src, void *dst, size_t cols,
                      uint32_t *most)
{
    float room[TILE], x[TILE];
    const float *values = lap_as_float(cast->from, src, room, cols);
    const float scale = cast->scale ? *cast->scale : 1.0f;
    for (size_t c = 0; c < cols; c++) {
        const uint32_t size = lap_bits_of_float(values[c]) & 0x7fffffff;
        *most = size > *most ? size : *most;
        x[c] = values[c] / scale;
    }
    lap_from_float(cast->to, x, dst, cols);
}

static lap_status_t run_cast(void *arg)
{
    const lap_cast_t *cast = arg;
    const size_t from = lap_dtype_size(cast->from), to = lap_dtype_size(cast->to);
    uint32_t most = cast->amax ? lap_bits_of_float(*cast->amax) : 0;
    for (size_t row = 0; row < cast->rows; row++) {
        const char *src = (const char *)cast->src + row * cast->src_stride;
        char *dst = (char *)cast->dst + row * cast->dst_stride;
        for (size_t begin = 0; begin < cast->cols; begin += TILE)
            cast_part(cast, src + begin * from, dst + begin * to, tile_of(cast->cols, begin),
                      &most);
    }
    if (cast->amax)
        *cast->amax = lap_float_of_bits(most);
    return LAP_OK;
}

lap_status_t lap_host_cast(lap_stream_t *stream, const lap_cast_t *cast)
{
    LAP_TRY(lap_device_check_dtype("a cast", cast->from));
    LAP_TRY(lap_device_check_dtype("the result of a cast", cast->to));
    return lap_host_stream_call(stream, run_cast, cast, sizeof(*cast));
}

/* By squares of a line each way, so that lines are still there for their next row. */
static lap_status_t run_transpose(void *arg)
{
    const lap_transpose_t *t = arg;
    const char *src = t->src;
    char *dst = t->dst;
    for (size_t row = 0; row < t->rows; row += LINE)
        for (size_t col = 0; col < t->cols; col += LINE)
            for (size_t i = row; i < t->rows && i < row + LINE; i++)
                for (size_t j = col; j < t->cols && j < col + LINE; j++)
                    dst[j * t->dst_stride + i] = src[i * t->src_stride + j];
    return LAP_OK;
}

lap_status_t lap_host_transpose(lap_stream_t *stream, const lap_transpose_t *transpose)
{
    return lap_host_stream_call(stream, run_transpose, transpose, sizeof(*transpose));
}

typedef struct fill_task {
    lap_dtype_t dtype;
    char *memory;
    size_t count;
    uint64_t seed;
} fill_task_t;

/* splitmix64: element i gets a number of its own from seed + i. */
static float random_of(uint64_t x)
{
    x *= 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (float)(x >> 40) * 0x1p-23f - 1.0f;
}

static lap_status_t run_fill(void *arg)
{
    const fill_task_t *task = arg;
    float part[TILE];
    for (size_t begin = 0; begin < task->count; begin += TILE) {
        const size_t count = tile_of(task->count, begin);
        for (size_t i = 0; i < count; i++)
            part[i] = random_of(task->seed + begin + i);
        lap_from_float(task->dtype, part, task->memory + begin * lap_dtype_size(task->dtype),
                       count);
    }
    return LAP_OK;
}

lap_status_t lap_host_fill(lap_stream_t *stream, lap_dtype_t dtype, void *memory, size_t count,
                           uint64_t seed)
{
    LAP_TRY(lap_device_check_dtype("the memory to fill", dtype));
    const fill_task_t task = {dtype, memory, count, seed};
    return lap_host_stream_call(stream, run_fill, &task, sizeof(task));
}

static_assert(sizeof(lap_copy_t) <= LAP_STREAM_ARG_BYTES, "a copy is an argument of a stream call");
static_assert(sizeof(lap_reduce_t) <= LAP_STREAM_ARG_BYTES, "and so is a reduction");
static_assert(sizeof(lap_column_sums_t) <= LAP_STREAM_ARG_BYTES, "and so are sums of columns");
static_assert(sizeof(lap_cast_t) <= LAP_STREAM_ARG_BYTES, "and so is a cast");
static_assert(sizeof(lap_transpose_t) <= LAP_STREAM_ARG_BYTES, "and so is a transpose");
