/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The matrices of `lap bench`.
 *
 * An element of the random matrices depends on the seed, the matrix, its row and its column only,
 * so that every rank can make any part of them. It is rounded to the type, and so exact. FP8
 * matrices have a scale that differs from rank to rank; scales have few bits, so that an element
 * times its scale is exact in float32 too. The scales of what is computed are large enough that
 * nothing saturates.
 */
#include <math.h>
#include <string.h>

#include "bench.h"
#include "core/convert.h"
#include "core/status.h"
#include "core/tensor.h"
#include "util/alloc.h"

/* ---- random matrices ---- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* The columns of a row that are made at once. */
#define CHUNK 256u

/* Where the elements of a row of `out` are in the whole matrix: the first, and how far apart. */
typedef struct source {
    uint64_t key, first, row_step, step;
    lap_dtype_t dtype;
    float scale;
} source_t;

/* `count` elements from `index` on, rounded to the type and stored, or widened again. */
static void fill_chunk(const source_t *source, uint64_t index, lap_dtype_t stored, void *dst,
                       size_t count)
{
    float values[CHUNK];
    unsigned char narrow[CHUNK * sizeof(float)];
    if (count == 0)
        return;
    for (size_t i = 0; i < count; i++) {
        const uint64_t at = index + i * source->step;
        const float value = (float)(mix(source->key + at * 0x9e3779b97f4a7c15u) >> 40);
        values[i] = (value * 0x1p-24f - 0.5f) / source->scale;
    }
    if (stored == source->dtype) {
        lap_from_float(stored, values, dst, count);
        return;
    }
    lap_from_float(source->dtype, values, narrow, count);
    lap_to_float(source->dtype, narrow, dst, count);
    for (size_t i = 0; i < count; i++)
        ((float *)dst)[i] *= source->scale;
}

static void fill(const source_t *source, const lap_tensor_t *out)
{
    for (size_t row = 0; row < out->rows; row++)
        for (size_t at = 0; at < out->cols; at += CHUNK) {
            const size_t left = out->cols - at;
            fill_chunk(source, source->first + row * source->row_step + at * source->step,
                       out->dtype,
                       (char *)out->data + (row * out->stride + at) * lap_dtype_size(out->dtype),
                       left < CHUNK ? left : CHUNK);
        }
}

/* What of an extent belongs to a rank. */
static lap_bench_extent_t cut_extent(lap_bench_extent_t extent, int nranks, int rank, bool rows)
{
    size_t begin, count = rows ? lap_shard(extent.total, nranks, rank, &begin)
                               : lap_shard_features(extent.total, nranks, rank, &begin);
    const size_t end = begin + count, extent_end = extent.begin + extent.count;
    const size_t from = begin > extent.begin ? begin : extent.begin;
    const size_t to = end < extent_end ? end : extent_end;
    return (lap_bench_extent_t){extent.total, from, to > from ? to - from : 0};
}

/* Few bits, and different for neighbours. */
static float own_factor(int rank)
{
    return 1.0f + (float)(rank % 8) / 8.0f;
}

/* The scale of the elements of a random matrix, if they are FP8; else 1. */
static float random_scale(int matrix, lap_dtype_t dtype, int rank)
{
    const bool fp8 = lap_dtype_is_fp8(dtype);
    return fp8 ? 0x1p-9f * own_factor(rank + matrix) : 1.0f; /* the codes end at 256 */
}

void lap_bench_generate(const lap_bench_data_t *data, const lap_bench_part_t *part,
                        const lap_tensor_t *out)
{
    const int nranks = part->owner == LAP_BENCH_ONE ? 1 : data->shape.nranks;
    const size_t width = part->cols.total, element = lap_dtype_size(out->dtype);
    for (int r = 0; r < nranks; r++) {
        lap_bench_extent_t rows = part->rows, cols = part->cols;
        if (part->owner == LAP_BENCH_BY_ROWS)
            rows = cut_extent(rows, nranks, r, true);
        if (part->owner == LAP_BENCH_BY_COLS)
            cols = cut_extent(cols, nranks, r, false);
        size_t row = rows.begin - part->rows.begin, col = cols.begin - part->cols.begin;
        lap_tensor_t piece = {NULL, out->dtype, rows.count, cols.count, out->stride};
        source_t source = {.key = mix(mix(data->seed + 1) + (uint64_t)part->matrix),
                           .first = rows.begin * width + cols.begin,
                           .row_step = width,
                           .step = 1,
                           .dtype = part->dtype};
        source.scale =
            random_scale(part->matrix, part->dtype, part->owner == LAP_BENCH_ONE ? part->rank : r);
        if (rows.count == 0 || cols.count == 0)
            continue;
        if (part->transposed) {
            const size_t swapped = row;
            row = col;
            col = swapped;
            piece.rows = cols.count;
            piece.cols = rows.count;
            source.row_step = 1;
            source.step = width;
        }
        piece.data = (char *)out->data + (row * out->stride + col) * element;
        fill(&source, &piece);
    }
}

/* A scale with which FP8 can hold numbers up to `largest`. */
static float result_scale(lap_dtype_t dtype, double largest, int rank)
{
    const double smaller_limit = 256; /* below that of both types, so that roundings fit too */
    int exponent;
    frexp(largest / smaller_limit, &exponent);
    return lap_dtype_is_fp8(dtype) ? ldexpf(own_factor(rank), exponent) : 1.0f;
}

float lap_bench_wire_scale(const lap_bench_shape_t *shape, int rank)
{
    if (shape->moved)
        return random_scale(LAP_BENCH_X + (lap_kind_sums_x(shape->kind) ? rank : 0),
                            shape->types.wire, rank);
    const size_t depth = lap_shard_features(shape->depth.total, shape->nranks, rank, NULL);
    return shape->sums ? result_scale(shape->types.wire, 0.25 * (double)depth, rank) : 1.0f;
}

/* ---- parts ---- */

lap_bench_part_t lap_bench_a(const lap_bench_shape_t *shape, lap_bench_extent_t rows,
                             lap_bench_extent_t depth)
{
    return (lap_bench_part_t){.matrix = LAP_BENCH_A,
                              .dtype = shape->types.a,
                              .rows = rows,
                              .cols = depth,
                              .owner = shape->kind == LAP_AG_GEMM ? LAP_BENCH_BY_ROWS
                                       : shape->sums              ? LAP_BENCH_BY_COLS
                                                                  : LAP_BENCH_ONE,
                              .rank = shape->rank};
}

lap_bench_part_t lap_bench_b(const lap_bench_shape_t *shape, lap_bench_extent_t cols,
                             lap_bench_extent_t depth)
{
    return (lap_bench_part_t){.matrix = LAP_BENCH_B,
                              .dtype = shape->types.b,
                              .rows = cols,
                              .cols = depth,
                              .owner = shape->sums ? LAP_BENCH_BY_COLS : LAP_BENCH_ONE,
                              .rank = shape->rank};
}

lap_bench_part_t lap_bench_x(const lap_bench_shape_t *shape, lap_bench_extent_t rows, int rank)
{
    const bool rs = lap_kind_sums_x(shape->kind);
    return (lap_bench_part_t){.matrix = LAP_BENCH_X + (rs ? rank : 0),
                              .dtype = shape->types.wire,
                              .rows = rows,
                              .cols = {shape->moved, 0, shape->moved},
                              .owner = rs ? LAP_BENCH_ONE : LAP_BENCH_BY_ROWS,
                              .rank = rank};
}

/* ---- the memory of a rank ---- */

/* Cuts matrices from memory, each on a cache line; without memory it only counts. */
typedef struct cutter {
    char *memory;
    size_t used;
} cutter_t;

static lap_tensor_t cut(cutter_t *cutter, lap_dtype_t dtype, size_t rows, size_t cols)
{
    char *data = cutter->memory ? cutter->memory + cutter->used : NULL;
    cutter->used += (rows * cols * lap_dtype_size(dtype) + 63) / 64 * 64;
    return lap_tensor(data, dtype, rows, cols);
}

/* The vectors and aux have no scale: they are as d, unless that is FP8. */
static lap_dtype_t side_type(const lap_bench_shape_t *shape)
{
    return lap_dtype_unscaled(shape->types.out);
}

static void cut_product(lap_bench_data_t *data, cutter_t *cutter)
{
    const lap_bench_shape_t *s = &data->shape;
    lap_op_args_t *args = &data->args;
    const bool wgrad = s->layout == LAP_WGRAD, plain = s->layout != LAP_FORWARD;
    const size_t rows = s->rows.count, cols = s->cols.count, depth = s->depth.count;
    const lap_dtype_t side = side_type(s);
    data->gemm_a = cut(cutter, s->types.a, wgrad ? depth : rows, wgrad ? rows : depth);
    args->b = cut(cutter, s->types.b, plain ? depth : cols, plain ? cols : depth);
    args->d = cut(cutter, s->types.out, s->d_rows.count, cols);
    data->gemm_d = s->sums ? cut(cutter, s->types.wire, rows, cols) : args->d;
    args->a = data->gemm_a;
    if (s->kind == LAP_AG_GEMM && args->a.data) { /* the rank's own rows, within the whole */
        args->a.rows = s->a_rows.count;
        args->a.data = (char *)args->a.data + s->a_rows.begin * depth * lap_dtype_size(s->types.a);
    }
    args->bias = cut(cutter, side, 1, s->epilogue & LAP_EPILOGUE_BIAS ? cols : 0);
    args->bias_grad =
        cut(cutter, side, 1, s->epilogue & LAP_EPILOGUE_BIAS_GRAD ? (wgrad ? rows : cols) : 0);
    if (s->epilogue & (LAP_EPILOGUE_GELU | LAP_EPILOGUE_DGELU))
        args->aux = cut(cutter, side, s->d_rows.count, cols);
}

static void cut_all(lap_bench_data_t *data, cutter_t *cutter)
{
    const lap_bench_shape_t *s = &data->shape;
    cut_product(data, cutter);
    if (!s->moved)
        return;
    data->args.x = cut(cutter, s->types.wire, s->x_rows.count, s->moved);
    data->args.y = cut(cutter, s->types.y, s->y_rows.count, s->moved);
    data->args.scales = cut(cutter, LAP_FLOAT32, 1, (size_t)s->nranks).data;
}

static lap_status_t allocate(lap_bench_data_t *data)
{
    cutter_t cutter = {NULL, 0};
    cut_all(data, &cutter);
    data->bytes = cutter.used;
    LAP_TRY(data->ops->alloc(data->device, data->bytes, &data->memory));
    data->near = data->ops->transport ? lap_alloc(data->bytes, 1) : data->memory;
    if (!data->near)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu bytes of matrices", data->bytes);
    cutter = (cutter_t){data->near, 0};
    cut_all(data, &cutter);
    return LAP_OK;
}

/* ---- devices that have their own memory ---- */

void *lap_bench_far(const lap_bench_data_t *data, const void *near)
{
    return near ? (char *)data->memory + ((const char *)near - (const char *)data->near) : NULL;
}

lap_op_args_t lap_bench_far_args(const lap_bench_data_t *data)
{
    lap_op_args_t args = data->args;
    lap_tensor_t *const tensors[] = {&args.a,         &args.b,    &args.d,
                                     &args.gathered,  &args.bias, &args.aux,
                                     &args.bias_grad, &args.x,    &args.y};
    for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++)
        tensors[i]->data = lap_bench_far(data, tensors[i]->data);
    args.scales = lap_bench_far(data, args.scales);
    return args;
}

/* Copies all of it there, or back. */
static lap_status_t carry(lap_bench_data_t *data, bool back)
{
    const lap_copy_t copy = {.dst = back ? data->near : data->memory,
                             .src = back ? data->memory : data->near,
                             .rows = 1,
                             .row_bytes = data->bytes};
    lap_stream_t *stream;
    if (data->near == data->memory)
        return LAP_OK;
    LAP_TRY(data->ops->stream_create(data->device, false, &stream));
    lap_status_t status = data->ops->copy(stream, &copy);
    if (status == LAP_OK)
        status = data->ops->stream_synchronize(stream);
    data->ops->stream_destroy(stream);
    return status;
}

lap_status_t lap_bench_data_fetch(lap_bench_data_t *data)
{
    return carry(data, true);
}

static void set_scales(lap_bench_data_t *data)
{
    const lap_bench_shape_t *s = &data->shape;
    const size_t depth = s->sums ? s->depth.total : s->depth.count;
    const double largest = 1.2 * (0.25 * (double)depth + 0.5); /* with a bias; gelu' is below 1.2 */
    data->args.a_scale = random_scale(LAP_BENCH_A, s->types.a, s->rank);
    data->args.b_scale = random_scale(LAP_BENCH_B, s->types.b, s->rank);
    data->args.d_scale = result_scale(s->types.out, largest, s->rank);
    data->args.wire_scale = lap_bench_wire_scale(s, s->rank);
    /* Partial results are finished when they have been summed, others by the GEMM itself. */
    data->gemm_finish = (lap_finish_t){
        .epilogue = s->sums ? LAP_EPILOGUE_NONE : s->epilogue,
        .scale = s->sums ? data->args.wire_scale : data->args.d_scale,
        .bias_dtype = data->args.bias.dtype,
        .aux_dtype = data->args.aux.dtype,
        .bias = lap_bench_far(data, data->args.bias.data),
        .aux_stride = data->args.aux.stride * lap_dtype_size(data->args.aux.dtype),
    };
}

static void generate_all(lap_bench_data_t *data)
{
    const lap_bench_shape_t *s = &data->shape;
    const lap_bench_extent_t one = {1, 0, 1};
    lap_bench_part_t part = lap_bench_a(s, s->rows, s->depth);
    part.transposed = s->layout == LAP_WGRAD;
    lap_bench_generate(data, &part, &data->gemm_a);
    part = lap_bench_b(s, s->cols, s->depth);
    part.transposed = s->layout != LAP_FORWARD;
    lap_bench_generate(data, &part, &data->args.b);
    part = (lap_bench_part_t){LAP_BENCH_BIAS, side_type(s), one, s->cols, LAP_BENCH_ONE, 0, false};
    if (s->epilogue & LAP_EPILOGUE_BIAS)
        lap_bench_generate(data, &part, &data->args.bias);
    part.matrix = LAP_BENCH_AUX;
    part.rows = s->d_rows;
    if (s->epilogue & LAP_EPILOGUE_DGELU)
        lap_bench_generate(data, &part, &data->args.aux);
    part = lap_bench_x(s, s->x_rows, s->rank);
    if (s->moved)
        lap_bench_generate(data, &part, &data->args.x);
}

lap_status_t lap_bench_data_init(lap_bench_data_t *data, const lap_bench_t *bench,
                                 const lap_bench_case_t *it, lap_group_t *group,
                                 lap_device_t *device)
{
    const lap_op_args_t nothing = LAP_OP_ARGS_INIT;
    *data = (lap_bench_data_t){
        .ops = device->ops, .device = device, .seed = bench->seed, .args = nothing};
    LAP_TRY(lap_bench_shape(bench, it, lap_group_rank(group), lap_group_size(group), &data->shape));
    data->args.m = it->m;
    LAP_TRY(allocate(data));
    set_scales(data);
    generate_all(data);
    LAP_TRY(carry(data, false));
    return lap_bench_truth_init(data);
}

void lap_bench_data_clear(lap_bench_data_t *data)
{
    if (data->near != data->memory)
        lap_free(data->near);
    if (data->memory)
        data->ops->free(data->device, data->memory);
    lap_free(data->product);
    lap_free(data->sizes);
    lap_free(data->row_norms);
    lap_free(data->column_norms);
    lap_free(data->moved);
    *data = (lap_bench_data_t){0};
}

/* All bits set is not a number, in every type. */
static void spoil(const lap_tensor_t *tensor)
{
    if (tensor->data)
        memset(tensor->data, 0xff, tensor->rows * tensor->stride * lap_dtype_size(tensor->dtype));
}

lap_status_t lap_bench_data_spoil(lap_bench_data_t *data)
{
    spoil(&data->args.d);
    spoil(&data->args.y);
    spoil(&data->args.bias_grad);
    if (data->shape.epilogue & LAP_EPILOGUE_GELU)
        spoil(&data->args.aux);
    if (data->args.scales)
        memset(data->args.scales, 0xff, (size_t)data->shape.nranks * sizeof(float));
    return carry(data, false);
}
