/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parameters of layers: which there are, where this rank's part of each lies in the whole, the
 * two arrays that hold all masters and all gradients, and the copies that GEMMs read. Values come
 * from the seed and the place in the whole, so that they do not depend on the number of ranks.
 */
#include <stdio.h>

#include "core/status.h"
#include "nn/nn.h"
#include "util/alloc.h"

#define ALIGN_FLOATS 16u
#define BLOCK_WEIGHTS 6 /* most parameters of a block */

static size_t padded(size_t count)
{
    return (count + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
}

/* ---- which there are ---- */

/* A parameter that is whole on every rank, until it is cut. */
static lap_nn_weight_t *add_weight(lap_nn_t *nn, const lap_nn_shape_t *shape, const char *part,
                                   const char *what, size_t rows, size_t cols)
{
    lap_nn_weight_t *weight = &nn->weights[nn->nweights];
    weight->index = nn->nweights++;
    snprintf(weight->name, sizeof(weight->name), "layer%zu.%s.%s", shape->layer, part, what);
    weight->param = (lap_nn_param_t){
        .name = weight->name,
        .rows = rows,
        .cols = cols,
        .all_rows = rows,
        .all_cols = cols,
        .nparts = 1,
        .part_rows = {rows},
        .replicated = nn->plan.nranks == 1,
    };
    return weight;
}

/* Gives this rank its share of `rows` more rows of the whole. */
static void add_part(const lap_nn_t *nn, lap_nn_param_t *param, size_t *before, size_t rows)
{
    size_t begin;
    const size_t share = lap_shard_features(rows, nn->plan.nranks, nn->group->rank, &begin);
    param->part_rows[param->nparts] = share;
    param->global_row[param->nparts++] = *before + begin;
    param->rows += share;
    *before += rows;
}

/* Cuts the rows of a column-parallel weight or its bias: queries, keys, values; or g, u. */
static void cut_rows(const lap_nn_t *nn, const lap_nn_shape_t *shape, lap_nn_param_t *param)
{
    const lap_nn_desc_t *desc = &nn->plan.desc;
    size_t before = 0;
    param->nparts = param->rows = 0;
    if (shape->middle == LAP_MIDDLE_ATTENTION) {
        add_part(nn, param, &before, desc->heads * desc->head_dim);
        add_part(nn, param, &before, desc->kv_heads * desc->head_dim);
        add_part(nn, param, &before, desc->kv_heads * desc->head_dim);
    } else if (shape->middle == LAP_MIDDLE_SWIGLU) {
        add_part(nn, param, &before, shape->mid);
        add_part(nn, param, &before, shape->mid);
    } else {
        add_part(nn, param, &before, shape->pre);
    }
}

static void cut_cols(const lap_nn_t *nn, lap_nn_param_t *param)
{
    param->cols =
        lap_shard_features(param->all_cols, nn->plan.nranks, nn->group->rank, &param->global_col);
}

static lap_nn_weight_t *add_vector(lap_nn_t *nn, const lap_nn_shape_t *shape, const char *part,
                                   const char *what, size_t rows)
{
    lap_nn_weight_t *weight = add_weight(nn, shape, part, what, rows, 1);
    weight->param.vector = 1;
    return weight;
}

static lap_nn_weight_t *add_norm(lap_nn_t *nn, const lap_nn_shape_t *shape, const char *what)
{
    lap_nn_weight_t *weight = add_vector(nn, shape, shape->norm_name, what, shape->width);
    weight->param.replicated = 1;
    weight->of_norm = true;
    weight->summed = nn->plan.desc.sequence_parallel != 0;
    return weight;
}

static void list_norm(lap_nn_t *nn, lap_nn_block_t *block)
{
    const lap_nn_shape_t *shape = &block->shape;
    block->gamma = add_norm(nn, shape, "weight");
    if (nn->plan.desc.norm == LAP_LAYERNORM)
        block->beta = add_norm(nn, shape, "bias");
}

static void list_block(lap_nn_t *nn, lap_nn_block_t *block)
{
    const lap_nn_shape_t *shape = &block->shape;
    const bool bias = nn->plan.desc.bias != 0;
    if (shape->norm)
        list_norm(nn, block);
    if (shape->column) {
        block->column =
            add_weight(nn, shape, shape->column_name, "weight", shape->pre, shape->width);
        cut_rows(nn, shape, &block->column->param);
    }
    if (shape->column && bias) {
        block->column_bias = add_vector(nn, shape, shape->column_name, "bias", shape->pre);
        cut_rows(nn, shape, &block->column_bias->param);
    }
    if (shape->row) {
        block->row = add_weight(nn, shape, shape->row_name, "weight", shape->out, shape->mid);
        cut_cols(nn, &block->row->param);
    }
    if (shape->row && bias) {
        block->row_bias = add_vector(nn, shape, shape->row_name, "bias", shape->out);
        block->row_bias->param.replicated = 1;
    }
}

/* ---- their memory ---- */

static lap_status_t alloc_floats(lap_nn_t *nn, size_t count, float **floats_p)
{
    void *memory;
    LAP_TRY(lap_nn_alloc(nn, count * sizeof(float), &memory));
    *floats_p = memory;
    return LAP_OK;
}

static lap_status_t alloc_arrays(lap_nn_t *nn)
{
    for (size_t i = 0; i < nn->nweights; i++)
        nn->nfloats += padded(nn->weights[i].param.rows * nn->weights[i].param.cols);
    LAP_TRY(alloc_floats(nn, nn->nfloats, &nn->masters));
    LAP_TRY(alloc_floats(nn, nn->nfloats, &nn->grads));
    size_t at = 0;
    for (size_t i = 0; i < nn->nweights; i++) {
        lap_nn_param_t *param = &nn->weights[i].param;
        param->master = lap_tensor(nn->masters + at, LAP_FLOAT32, param->rows, param->cols);
        param->grad = lap_tensor(nn->grads + at, LAP_FLOAT32, param->rows, param->cols);
        at += padded(param->rows * param->cols);
    }
    return LAP_OK;
}

/* Copies in the type of GEMMs, where that is another. */
static lap_status_t alloc_copy(lap_nn_t *nn, lap_nn_weight_t *weight)
{
    lap_nn_param_t *param = &weight->param;
    const lap_dtype_t dtype = nn->plan.desc.dtype;
    void *memory;
    param->weight = param->master;
    if (nn->plan.desc.fp8 != LAP_FP8_NONE && !param->vector) {
        LAP_TRY(lap_nn_fp8_add(nn, &weight->fp8, LAP_FLOAT8_E4M3, param->rows * param->cols));
        param->weight = lap_tensor(weight->fp8.data, LAP_FLOAT8_E4M3, param->rows, param->cols);
        return lap_nn_alloc(nn, param->rows * param->cols, &weight->turned);
    }
    if (dtype == LAP_FLOAT32 || weight->of_norm)
        return LAP_OK;
    LAP_TRY(lap_nn_alloc(nn, param->rows * param->cols * lap_dtype_size(dtype), &memory));
    param->weight = lap_tensor(memory, dtype, param->rows, param->cols);
    return LAP_OK;
}

/* The gradients of vectors in one backward; those that ranks must sum lie together. */
static lap_status_t alloc_partials(lap_nn_t *nn)
{
    const size_t sums = lap_nn_plan_sums(&nn->plan);
    size_t at = 0;
    if (sums > 0) {
        LAP_TRY(alloc_floats(nn, sums, &nn->sums));
        LAP_TRY(alloc_floats(nn, sums, &nn->sums_r));
        LAP_TRY(alloc_floats(nn, sums, &nn->sums_all));
        LAP_TRY(alloc_floats(nn, sums / LAP_NN_SUM_COLS, &nn->sums_rest));
    }
    for (size_t i = 0; i < nn->nweights; i++) {
        lap_nn_weight_t *weight = &nn->weights[i];
        if (!weight->param.vector)
            continue;
        const size_t room = padded(weight->param.rows);
        if (weight->summed)
            weight->partial = nn->sums + at;
        else
            LAP_TRY(alloc_floats(nn, room, &weight->partial));
        weight->reduction = (lap_nn_reduction_t){
            .src = weight->summed ? nn->sums_all + at : weight->partial,
            .src_stride = weight->param.rows * sizeof(float),
            .scale = nn->grad_scale,
            .finish = {.scale = 1},
        };
        at += weight->summed ? room : 0;
    }
    return LAP_OK;
}

/* ---- their values ---- */

static lap_status_t fill_array(lap_nn_t *nn, float *array, size_t count, float value)
{
    lap_stream_t *stream;
    const lap_fill_normal_t fill = {.dtype = LAP_FLOAT32,
                                    .mean = value,
                                    .rows = 1,
                                    .cols = count,
                                    .stride = count,
                                    .out = array};
    if (!array)
        return LAP_OK;
    LAP_TRY(lap_nn_stream(nn, &stream));
    return nn->kernels->fill_normal(stream, &fill);
}

static lap_status_t fill_matrix(lap_nn_t *nn, const lap_nn_weight_t *weight)
{
    const lap_nn_param_t *param = &weight->param;
    lap_stream_t *stream;
    float *out = param->master.data;
    LAP_TRY(lap_nn_stream(nn, &stream));
    for (size_t p = 0; p < param->nparts; p++) {
        const lap_fill_normal_t fill = {
            .dtype = LAP_FLOAT32,
            .std = nn->plan.desc.init_std,
            .rows = param->part_rows[p],
            .cols = param->cols,
            .stride = param->cols,
            .out = out,
            .seed = nn->plan.desc.seed,
            .tensor = weight->index,
            .first = param->global_row[p] * param->all_cols + param->global_col,
            .row_step = param->all_cols,
        };
        LAP_TRY(nn->kernels->fill_normal(stream, &fill));
        out += param->part_rows[p] * param->cols;
    }
    return LAP_OK;
}

static lap_status_t fill_params(lap_nn_t *nn)
{
    LAP_TRY(fill_array(nn, nn->masters, nn->nfloats, 0));
    LAP_TRY(fill_array(nn, nn->grads, nn->nfloats, 0));
    LAP_TRY(fill_array(nn, nn->sums, lap_nn_plan_sums(&nn->plan), 0));
    for (size_t i = 0; i < nn->nweights; i++)
        if (!nn->weights[i].param.vector)
            LAP_TRY(fill_matrix(nn, &nn->weights[i]));
    for (size_t b = 0; b < nn->plan.nblocks; b++)
        if (nn->blocks[b].gamma)
            LAP_TRY(fill_array(nn, nn->blocks[b].gamma->param.master.data,
                               nn->blocks[b].gamma->param.rows, 1));
    return LAP_OK;
}

lap_status_t lap_nn_create_params(lap_nn_t *nn)
{
    nn->weights = lap_alloc(nn->plan.nblocks * BLOCK_WEIGHTS, sizeof(*nn->weights));
    if (!nn->weights)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the parameters of %zu layers",
                         nn->plan.desc.layers);
    for (size_t b = 0; b < nn->plan.nblocks; b++)
        list_block(nn, &nn->blocks[b]);
    LAP_TRY(alloc_arrays(nn));
    for (size_t i = 0; i < nn->nweights; i++)
        LAP_TRY(alloc_copy(nn, &nn->weights[i]));
    LAP_TRY(alloc_partials(nn));
    return fill_params(nn);
}

lap_status_t lap_nn_add_partial(lap_nn_t *nn, lap_nn_weight_t *weight)
{
    weight->reduction.finish.beta = nn->fresh ? 0.0f : 1.0f;
    return lap_nn_reduce(nn, &weight->reduction, LAP_FLOAT32, LAP_FLOAT32, weight->param.grad.data,
                         1, weight->param.rows);
}

lap_status_t lap_nn_refresh(lap_nn_t *nn)
{
    if (!nn)
        return lap_error(LAP_ERR_INVALID, "lap_nn_refresh: nn is NULL");
    nn->kernel_last = false;
    for (size_t i = 0; i < nn->nweights; i++) {
        const lap_nn_param_t *param = &nn->weights[i].param;
        const lap_tensor_t all =
            lap_tensor(param->master.data, LAP_FLOAT32, 1, param->rows * param->cols);
        if (param->weight.data != param->master.data && !nn->weights[i].fp8.data)
            LAP_TRY(lap_nn_cast(nn, &all, param->weight.dtype, param->weight.data, NULL, NULL));
    }
    return nn->plan.desc.fp8 != LAP_FP8_NONE ? lap_nn_fp8_weights(nn) : LAP_OK;
}

size_t lap_nn_params(const lap_nn_t *nn)
{
    return nn ? nn->nweights : 0;
}

const lap_nn_param_t *lap_nn_param(const lap_nn_t *nn, size_t index)
{
    return nn && index < nn->nweights ? &nn->weights[index].param : NULL;
}

float *lap_nn_masters(lap_nn_t *nn, size_t *count_p)
{
    *count_p = nn->nfloats;
    return nn->masters;
}

float *lap_nn_gradients(lap_nn_t *nn, size_t *count_p)
{
    *count_p = nn->nfloats;
    return nn->grads;
}

void lap_nn_on_gradient(lap_nn_t *nn, lap_nn_ready_t ready, void *context)
{
    nn->ready = ready;
    nn->ready_context = context;
}
