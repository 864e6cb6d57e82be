/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a case of `lap bench` means for a rank: the descriptions of its operators, which part of
 * which matrix is the rank's, and how many bytes that makes. The sizes M, N and K are those of a
 * linear layer, so that the bulk and external cases are what its backward pass does: N is shared
 * among the ranks, the gradient dY is [M, N], the weight W is [N, K] and the input X is [M, K].
 */
#include "bench.h"
#include "core/status.h"
#include "overlap/knobs.h"

/* ---- descriptions ---- */

/*
 * The GEMM of a bulk case: dX = dY W (dgrad) during an all-gather, dW = dY^T X (wgrad) during a
 * reduce-scatter.
 */
static void describe_local(const lap_bench_case_t *it, lap_op_desc_t *desc)
{
    const bool wgrad = lap_kind_sums_x(it->kind);
    desc->layout = wgrad ? LAP_WGRAD : LAP_DGRAD;
    desc->n = wgrad ? it->n : it->k;
    desc->k = wgrad ? it->k : it->n;
    desc->sharded = wgrad ? LAP_SHARDED_N : LAP_SHARDED_K;
}

static lap_op_desc_t describe(const lap_bench_t *bench, const lap_bench_case_t *it)
{
    lap_op_desc_t desc = bench->desc;
    desc.kind = it->kind;
    desc.m = it->m;
    desc.n = it->n;
    desc.k = it->k;
    if (lap_kind_moves(it->kind)) {
        describe_local(it, &desc);
        desc.cols = it->k;
    }
    return desc;
}

lap_op_desc_t lap_bench_desc(const lap_bench_t *bench, const lap_bench_case_t *it, size_t method)
{
    const lap_bench_method_t *chosen = &it->methods[method];
    lap_op_desc_t desc = describe(bench, it);
    desc.method = chosen->desc.method;
    for (const lap_op_field_t *row = lap_op_fields; row->field.name; row++)
        if (row->knob && lap_field_number(&row->field, &chosen->desc) != 0)
            lap_field_set(&row->field, &desc, lap_field_number(&row->field, &chosen->desc));
    if (!lap_kind_multiplies(it->kind)) { /* the GEMM is another operator */
        desc.layout = LAP_FORWARD;
        desc.epilogue = LAP_EPILOGUE_NONE;
        desc.n = desc.k = 0;
        desc.sharded = LAP_SHARDED_NONE;
    }
    return desc;
}

lap_op_desc_t lap_bench_gemm_desc(const lap_bench_t *bench, const lap_bench_case_t *it)
{
    lap_op_desc_t desc = describe(bench, it);
    desc.kind = LAP_GEMM;
    desc.cols = 0;
    desc.wire_dtype = LAP_DTYPE_DEFAULT;
    return desc;
}

/* ---- matrices ---- */

static lap_bench_extent_t whole(size_t total)
{
    return (lap_bench_extent_t){total, 0, total};
}

static lap_bench_extent_t share_of_rows(const lap_bench_shape_t *shape, size_t total)
{
    lap_bench_extent_t extent = {.total = total};
    extent.count = lap_shard(total, shape->nranks, shape->rank, &extent.begin);
    return extent;
}

static lap_bench_extent_t share_of_features(const lap_bench_shape_t *shape, size_t total)
{
    lap_bench_extent_t extent = {.total = total};
    extent.count = lap_shard_features(total, shape->nranks, shape->rank, &extent.begin);
    return extent;
}

static void find_product(lap_bench_shape_t *shape, const lap_bench_case_t *it)
{
    const lap_op_kind_t kind = it->kind;
    const bool ag = kind == LAP_AG_GEMM, wgrad = lap_kind_sums_x(kind);
    shape->rows = shape->a_rows = shape->d_rows = whole(it->m);
    shape->cols = whole(it->n);
    shape->depth = share_of_features(shape, it->k);
    shape->sums = kind == LAP_GEMM_RS || kind == LAP_GEMM_AR;
    if (ag) {
        shape->a_rows = share_of_rows(shape, it->m);
        shape->cols = share_of_features(shape, it->n);
        shape->depth = whole(it->k);
    }
    if (kind == LAP_GEMM_RS)
        shape->d_rows = share_of_rows(shape, it->m);
    if (lap_kind_moves(kind)) {
        shape->cols = whole(it->k);
        shape->depth = wgrad ? whole(it->m) : share_of_features(shape, it->n);
    }
    if (wgrad)
        shape->rows = shape->a_rows = shape->d_rows = share_of_features(shape, it->n);
}

lap_status_t lap_bench_shape(const lap_bench_t *bench, const lap_bench_case_t *it, int rank,
                             int nranks, lap_bench_shape_t *shape_p)
{
    const lap_op_desc_t gemm = describe(bench, it);
    const lap_op_desc_t desc = lap_bench_desc(bench, it, 0);
    lap_bench_shape_t shape = {
        .kind = it->kind, .baseline = it->baseline, .rank = rank, .nranks = nranks};
    lap_problem_t problem;
    const lap_builder_t *builder;
    LAP_TRY(lap_problem_init(&problem, &builder, &desc, nranks, ~0u));
    shape.types = problem.types;
    shape.layout = gemm.layout;
    shape.epilogue = gemm.epilogue;
    find_product(&shape, it);
    if (lap_kind_moves(it->kind)) {
        const bool rs = lap_kind_sums_x(it->kind);
        shape.x_rows = rs ? whole(it->m) : share_of_rows(&shape, it->m);
        shape.y_rows = rs ? share_of_rows(&shape, it->m) : whole(it->m);
        shape.moved = it->k;
    }
    *shape_p = shape;
    return LAP_OK;
}

/* ---- bytes ---- */

static double size_of(lap_dtype_t dtype)
{
    return (double)lap_dtype_size(dtype);
}

/* Elements, in doubles, which do not overflow. */
static double area(size_t rows, size_t cols)
{
    return (double)rows * (double)cols;
}

/* The symmetric memory of the method that wants most. */
static double symmetric_bytes(const lap_bench_shape_t *shape)
{
    const double wire = size_of(shape->types.wire);
    if (shape->moved)
        return area(shape->x_rows.total, shape->moved) * wire;
    if (shape->kind == LAP_AG_GEMM)
        return area(shape->rows.count, shape->depth.count) * wire;
    /* `direct` has a slot for the whole result of every peer. */
    return area(shape->rows.count, shape->cols.count) * wire *
           (shape->kind == LAP_GEMM_AR ? shape->nranks : 1);
}

double lap_bench_matrix_bytes(const lap_bench_shape_t *shape)
{
    const lap_types_t *types = &shape->types;
    const double result = area(shape->d_rows.count, shape->cols.count);
    double bytes = area(shape->rows.count, shape->depth.count) * size_of(types->a) +
                   area(shape->cols.count, shape->depth.count) * size_of(types->b) +
                   result * size_of(types->out);
    if (shape->sums)
        bytes += area(shape->rows.count, shape->cols.count) * size_of(types->wire);
    if (shape->epilogue & (LAP_EPILOGUE_GELU | LAP_EPILOGUE_DGELU))
        bytes += result * size_of(types->out);
    return bytes + area(shape->x_rows.count, shape->moved) * size_of(types->wire) +
           area(shape->y_rows.count, shape->moved) * size_of(types->y);
}

double lap_bench_data_bytes(const lap_bench_shape_t *shape)
{
    const size_t depth = shape->sums ? shape->depth.total : shape->depth.count;
    const double result = area(shape->d_rows.count, shape->cols.count);
    double bytes = lap_bench_matrix_bytes(shape) + symmetric_bytes(shape);
    if (shape->baseline && shape->kind == LAP_AG_GEMM)
        bytes += area(shape->rows.count, shape->depth.count) * sizeof(float);
    /* The reference, and what it is made of. */
    return bytes +
           sizeof(float) * (result + area(shape->y_rows.count, shape->moved) +
                            area(shape->d_rows.count, depth) + area(shape->cols.count, depth));
}

double lap_bench_serial_bytes(const lap_bench_shape_t *shape)
{
    const lap_types_t *types = &shape->types;
    const int peers = shape->nranks - 1;
    const bool gathers =
        shape->kind == LAP_AG_GEMM || (shape->moved && !lap_kind_sums_x(shape->kind));
    const size_t m = shape->moved ? shape->x_rows.total : shape->rows.total;
    const double most = (double)lap_shard(m, shape->nranks, 0, NULL);
    const double least = (double)lap_shard(m, shape->nranks, peers, NULL);
    const double width = (double)(shape->moved ? shape->moved
                                  : gathers    ? shape->depth.count
                                               : shape->cols.count);
    if (gathers)
        return peers * most * width * size_of(types->wire);
    if (shape->kind != LAP_GEMM_AR)
        return ((double)m - least) * width * size_of(types->wire);
    /* The partial rows of the other owners, and the own sums to every peer. */
    return width * (((double)m - most) * size_of(types->wire) + peers * most * size_of(types->out));
}
