/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parameters of layers: which there are, where this rank's part of each lies in the whole, the
 * two arrays that hold all masters and all gradients, and the copies that GEMMs read. Values come
 * from the seed and the place in the whole, so that they do not depend on the number of ranks.
 */
#include <stdio.h>

#include "core/status.h"
#include "nn/nn.h"

#define ALIGN_FLOATS 16u

static size_t padded(size_t count)
{
    return (count + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
}

/* ---- which there are ---- */

/* A parameter that is whole on every rank, until it is cut. */
static lap_nn_weight_t *add_weight(lap_nn_list_t *list, const lap_nn_shape_t *shape,
                                   const char *part, const char *what, size_t rows, size_t cols)
{
    lap_nn_weight_t *weight = &list->weights[list->nweights];
    weight->index = list->nweights++;
    weight->tensor = list->ntensors++;
    if (shape->head)
        snprintf(weight->name, sizeof(weight->name), "%s.%s", part, what);
    else
        snprintf(weight->name, sizeof(weight->name), "layer%zu.%s.%s", shape->layer, part, what);
    weight->param = (lap_nn_param_t){
        .name = weight->name,
        .rows = rows,
        .cols = cols,
        .all_rows = rows,
        .all_cols = cols,
        .nparts = 1,
        .part_rows = {rows},
        .replicated = list->plan.nranks == 1,
    };
    weight->wide = shape->head;
    return weight;
}

/* Gives this rank its share of `rows` more rows of the whole. */
static void add_part(const lap_nn_list_t *list, lap_nn_param_t *param, size_t *before, size_t rows)
{
    size_t begin;
    const size_t share = lap_shard_features(rows, list->plan.nranks, list->rank, &begin);
    param->part_rows[param->nparts] = share;
    param->global_row[param->nparts++] = *before + begin;
    param->rows += share;
    *before += rows;
}

/* Cuts the rows of a column-parallel weight or its bias: queries, keys, values; or g, u. */
static void cut_rows(const lap_nn_list_t *list, const lap_nn_shape_t *shape, lap_nn_param_t *param)
{
    const lap_nn_desc_t *desc = &list->plan.desc;
    size_t before = 0;
    param->nparts = param->rows = 0;
    if (shape->middle == LAP_MIDDLE_ATTENTION) {
        add_part(list, param, &before, desc->heads * desc->head_dim);
        add_part(list, param, &before, desc->kv_heads * desc->head_dim);
        add_part(list, param, &before, desc->kv_heads * desc->head_dim);
    } else if (shape->middle == LAP_MIDDLE_SWIGLU) {
        add_part(list, param, &before, shape->mid);
        add_part(list, param, &before, shape->mid);
    } else {
        add_part(list, param, &before, shape->pre);
    }
}

static void cut_cols(const lap_nn_list_t *list, lap_nn_param_t *param)
{
    param->cols =
        lap_shard_features(param->all_cols, list->plan.nranks, list->rank, &param->global_col);
}

static lap_nn_weight_t *add_vector(lap_nn_list_t *list, const lap_nn_shape_t *shape,
                                   const char *part, const char *what, size_t rows)
{
    lap_nn_weight_t *weight = add_weight(list, shape, part, what, rows, 1);
    weight->param.vector = 1;
    return weight;
}

static lap_nn_weight_t *add_norm(lap_nn_list_t *list, const lap_nn_shape_t *shape, const char *what)
{
    lap_nn_weight_t *weight = add_vector(list, shape, shape->norm_name, what, shape->width);
    weight->param.replicated = 1;
    weight->plain = true;
    weight->summed = list->plan.desc.sequence_parallel != 0;
    return weight;
}

/* A matrix of the rows of the vocabulary that this rank has; of the head: with zeros behind them. */
static lap_nn_weight_t *add_vocab(lap_nn_list_t *list, const lap_nn_shape_t *shape,
                                  const char *part, bool of_head)
{
    const lap_nn_plan_t *plan = &list->plan;
    lap_nn_weight_t *weight =
        add_weight(list, shape, part, "weight", plan->desc.vocab, plan->desc.hidden);
    lap_nn_param_t *param = &weight->param;
    param->rows = param->part_rows[0] = lap_nn_vocab_share(plan, list->rank, &param->global_row[0]);
    weight->plain = !of_head;
    if (of_head)
        weight->rows = lap_nn_logits_share(plan, list->rank);
    return weight;
}

/* Of tokens, and all positions. */
static void list_embedding(lap_nn_list_t *list)
{
    const lap_nn_desc_t *desc = &list->plan.desc;
    const lap_nn_shape_t of_none = {.head = true};
    list->embedding = add_vocab(list, &of_none, "embedding", desc->tied != 0);
    if (desc->positions != LAP_POSITIONS_LEARNED)
        return;
    list->positions =
        add_weight(list, &of_none, "positions", "weight", desc->max_positions, desc->hidden);
    list->positions->param.replicated = 1;
    list->positions->plain = true;
}

/* Tied weights where another rank of the pipeline has the embedding: the same matrix once more. */
static lap_nn_weight_t *add_twin(lap_nn_list_t *list)
{
    const lap_nn_shape_t of_none = {.head = true};
    lap_nn_weight_t *weight = add_vocab(list, &of_none, "embedding", true);
    list->ntensors--;
    weight->tensor = 0; /* the first of all */
    weight->twin = true;
    return weight;
}

static void list_block(lap_nn_list_t *list, lap_nn_block_t *block)
{
    const lap_nn_shape_t *shape = &block->shape;
    const bool bias = shape->bias;
    if (shape->norm)
        block->gamma = add_norm(list, shape, "weight");
    if (shape->norm && list->plan.desc.norm == LAP_LAYERNORM)
        block->beta = add_norm(list, shape, "bias");
    if (shape->head && list->plan.desc.tied) {
        block->column = list->embedding ? list->embedding : add_twin(list);
    } else if (shape->head) {
        block->column = add_vocab(list, shape, shape->column_name, true);
    } else if (shape->column) {
        block->column =
            add_weight(list, shape, shape->column_name, "weight", shape->pre, shape->width);
        cut_rows(list, shape, &block->column->param);
    }
    if (shape->column && bias) {
        block->column_bias = add_vector(list, shape, shape->column_name, "bias", shape->pre);
        cut_rows(list, shape, &block->column_bias->param);
    }
    if (shape->row) {
        block->row = add_weight(list, shape, shape->row_name, "weight", shape->out, shape->mid);
        cut_cols(list, &block->row->param);
    }
    if (shape->row && bias) {
        block->row_bias = add_vector(list, shape, shape->row_name, "bias", shape->out);
        block->row_bias->param.replicated = 1;
    }
}

/* ---- their memory ---- */

static uint32_t lasting(lap_nn_list_t *list, const char *name, lap_dtype_t dtype, size_t rows,
                        size_t cols)
{
    return lap_nn_add_region(list, name, LAP_NN_NONE, LAP_NN_LASTING, LAP_NN_FIXED, dtype, rows,
                             cols);
}

/* All masters lie together, and all gradients. */
static void add_arrays(lap_nn_list_t *list)
{
    size_t count = 0, at = 0;
    for (uint32_t i = 0; i < list->nweights; i++) {
        lap_nn_weight_t *weight = &list->weights[i];
        if (weight->rows < weight->param.rows)
            weight->rows = weight->param.rows;
        count += padded(weight->rows * weight->param.cols);
    }
    list->masters = lasting(list, "masters", LAP_FLOAT32, 1, count);
    list->grads = lasting(list, "gradients", LAP_FLOAT32, 1, count);
    for (uint32_t i = 0; i < list->nweights; i++) {
        lap_nn_weight_t *weight = &list->weights[i];
        const size_t rows = weight->rows, cols = weight->param.cols;
        weight->master = lap_nn_add_part(list, weight->name, list->masters, at * sizeof(float),
                                         rows, cols, cols);
        weight->grad =
            lap_nn_add_part(list, weight->name, list->grads, at * sizeof(float), rows, cols, cols);
        at += padded(rows * cols);
    }
}

static uint32_t made(lap_nn_list_t *list, const char *name, lap_dtype_t dtype, size_t rows,
                     size_t cols)
{
    const uint32_t region = lasting(list, name, dtype, rows, cols);
    if (list->status == LAP_OK)
        list->regions[region].made = true;
    return region;
}

/* Copies in the type of GEMMs, where that is another. */
static void add_copy(lap_nn_list_t *list, lap_nn_weight_t *weight)
{
    const lap_nn_param_t *param = &weight->param;
    const lap_dtype_t dtype = list->plan.desc.dtype;
    weight->copy = weight->turned = weight->master;
    if (lap_nn_list_fp8(list) && !param->vector && !weight->wide) {
        weight->copy = made(list, weight->name, LAP_FLOAT8_E4M3, param->rows, param->cols);
        lap_nn_add_scale(list, weight->copy);
        weight->turned = made(list, weight->name, LAP_FLOAT8_E4M3, param->cols, param->rows);
        lap_nn_share_scale(list, weight->turned, weight->copy);
    } else if (dtype != LAP_FLOAT32 && !weight->plain) {
        weight->copy = weight->turned = made(list, weight->name, dtype, weight->rows, param->cols);
    }
}

/* The gradients of vectors in one backward; those that ranks must sum lie together. */
static void add_partials(lap_nn_list_t *list)
{
    const size_t sums = lap_nn_plan_sums(&list->plan, list->plan.nblocks);
    size_t at = 0;
    list->sums = lasting(list, "sums", LAP_FLOAT32, 1, sums);
    list->sums_r = lasting(list, "sums_r", LAP_FLOAT32, 1, sums);
    list->sums_all = lasting(list, "sums_all", LAP_FLOAT32, 1, sums);
    for (uint32_t i = 0; i < list->nweights; i++) {
        lap_nn_weight_t *weight = &list->weights[i];
        const size_t rows = weight->param.rows;
        if (!weight->param.vector)
            continue;
        if (weight->summed) {
            weight->partial =
                lap_nn_add_part(list, weight->name, list->sums, at * sizeof(float), 1, rows, rows);
            weight->sums = lap_nn_add_part(list, weight->name, list->sums_all, at * sizeof(float),
                                           1, rows, rows);
            at += padded(rows);
        } else {
            weight->partial = lap_nn_add_region(list, weight->name, LAP_NN_NONE, LAP_NN_PRIVATE,
                                                LAP_NN_FIXED, LAP_FLOAT32, 1, rows);
            if (list->status == LAP_OK)
                list->regions[weight->partial].slot = LAP_NN_NONE;
        }
    }
}

/* In the order of the whole model, also those of a rank of a pipeline that has some of its blocks. */
static void list_blocks(lap_nn_list_t *list)
{
    const lap_nn_plan_t *plan = &list->plan;
    lap_nn_plan_t whole = *plan;
    bool embedding = false;
    for (uint32_t c = 0; c < lap_nn_plan_chunks(plan); c++)
        embedding = embedding || lap_nn_plan_chunk(plan, c).embedding;
    if (embedding)
        list_embedding(list);
    else if (lap_nn_list_is_model(list))
        list->ntensors += plan->desc.positions == LAP_POSITIONS_LEARNED ? 2 : 1;
    whole.cut.nchunks = 0;
    for (size_t b = 0, own; b < lap_nn_plan_total(plan); b++) {
        const lap_nn_shape_t shape = lap_nn_plan_shape(&whole, b);
        if (lap_nn_plan_has(plan, b, &own))
            list_block(list, &list->blocks[own]);
        else
            list->ntensors += (uint32_t)lap_nn_plan_params(plan, &shape);
    }
}

void lap_nn_list_params(lap_nn_list_t *list)
{
    list_blocks(list);
    add_arrays(list);
    lap_nn_list_slots(list);
    for (uint32_t i = 0; i < list->nweights; i++)
        add_copy(list, &list->weights[i]);
    list->nfp8_weights = list->nfp8;
    add_partials(list);
}

/* ---- their values ---- */

static lap_status_t fill_array(lap_nn_t *nn, uint32_t region, float value)
{
    lap_stream_t *stream;
    const lap_tensor_t all = lap_nn_tensor(nn, region);
    const size_t count = all.rows * all.cols;
    const lap_fill_normal_t fill = {.dtype = LAP_FLOAT32,
                                    .mean = value,
                                    .rows = 1,
                                    .cols = count,
                                    .stride = count,
                                    .out = all.data};
    if (count == 0)
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
            .std = nn->list.plan.desc.init_std,
            .rows = param->part_rows[p],
            .cols = param->cols,
            .stride = param->cols,
            .out = out,
            .seed = nn->list.plan.desc.seed,
            .tensor = weight->tensor,
            .first = param->global_row[p] * param->all_cols + param->global_col,
            .row_step = param->all_cols,
        };
        LAP_TRY(nn->kernels->fill_normal(stream, &fill));
        out += param->part_rows[p] * param->cols;
    }
    return LAP_OK;
}

lap_status_t lap_nn_fill_params(lap_nn_t *nn)
{
    const lap_nn_list_t *list = &nn->list;
    const uint32_t arrays[] = {list->masters, list->grads, list->sums};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
        LAP_TRY(fill_array(nn, arrays[i], 0));
    for (uint32_t i = 0; i < list->nweights; i++)
        if (!list->weights[i].param.vector)
            LAP_TRY(fill_matrix(nn, &list->weights[i]));
    for (size_t b = 0; b < nn->list.plan.nblocks; b++)
        if (list->blocks[b].gamma)
            LAP_TRY(fill_array(nn, list->blocks[b].gamma->master, 1));
    if (lap_nn_list_fp8(list)) {
        LAP_TRY(fill_array(nn, list->fp8_scales, 1));
        LAP_TRY(fill_array(nn, list->fp8_amax, 0));
    }
    return list->plan.desc.fp8 == LAP_FP8_DELAYED ? fill_array(nn, list->fp8_history, 0) : LAP_OK;
}

size_t lap_nn_params(const lap_nn_t *nn)
{
    return nn ? nn->list.nweights : 0;
}

const lap_nn_param_t *lap_nn_param(const lap_nn_t *nn, size_t index)
{
    return nn && index < nn->list.nweights ? &nn->list.weights[index].param : NULL;
}

float *lap_nn_masters(lap_nn_t *nn, size_t *count_p)
{
    *count_p = nn->list.regions[nn->list.masters].cols;
    return lap_nn_tensor(nn, nn->list.masters).data;
}

float *lap_nn_gradients(lap_nn_t *nn, size_t *count_p)
{
    *count_p = nn->list.regions[nn->list.grads].cols;
    return lap_nn_tensor(nn, nn->list.grads).data;
}

void lap_nn_on_gradient(lap_nn_t *nn, lap_nn_ready_t ready, void *context)
{
    nn->ready = ready;
    nn->ready_context = context;
}
