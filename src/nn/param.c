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
    weight->layer = shape->layer;
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

/* A matrix of the rows of the vocabulary that this rank has; of the head: with zeros after them. */
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
    const lap_nn_shape_t of_none = {.layer = LAP_NN_NONE, .head = true};
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
    const lap_nn_shape_t of_none = {.layer = LAP_NN_NONE, .head = true};
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

static uint32_t made(lap_nn_list_t *list, const char *name, lap_dtype_t dtype, size_t rows,
                     size_t cols)
{
    const uint32_t region = lasting(list, name, dtype, rows, cols);
    if (list->status == LAP_OK)
        list->regions[region].made = true;
    return region;
}

/* Whether GEMMs multiply it in FP8. */
static bool is_fp8(const lap_nn_list_t *list, const lap_nn_weight_t *weight)
{
    return lap_nn_list_fp8(list) && !weight->param.vector && !weight->wide;
}

/*
 * Embeddings are read as fp32, also where the head has a copy of them; so is what FP8 is made from, unless it is made
 * before it is gathered.
 */
lap_dtype_t lap_nn_gathered_type(const lap_nn_list_t *list, const lap_nn_weight_t *weight)
{
    const lap_nn_desc_t *desc = &list->plan.desc;
    if (is_fp8(list, weight))
        return desc->fp8_params ? LAP_FLOAT8_E4M3 : LAP_FLOAT32;
    return weight->plain || weight == list->embedding ? LAP_FLOAT32 : desc->dtype;
}

/* Where the weights of a parameter are: see lap_nn_gathered_t. */
static int kind_of(const lap_nn_list_t *list, const lap_nn_weight_t *weight)
{
    const lap_dtype_t dtype = lap_nn_gathered_type(list, weight);
    return list->plan.desc.shards <= 1 || dtype == LAP_FLOAT32 ? LAP_NN_WIDE
           : lap_dtype_is_fp8(dtype)                           ? LAP_NN_EIGHT
                                                               : LAP_NN_NARROW;
}

/* The gradients of norms, of which ranks have parts, are summed after all others. */
bool lap_nn_is_late(const lap_nn_list_t *list, const lap_nn_weight_t *weight)
{
    return weight->summed || weight == list->embedding || weight == list->positions;
}

/*
 * Those first whose gradients are complete when backward ends: buckets, which are filled from the last weight
 * on, have the others one after the other. Ranks that share masters gather the weights of one type together.
 */
static void order_weights(lap_nn_list_t *list)
{
    uint32_t place = 0;
    for (int kind = 0; kind < 2 * LAP_NN_TYPES; kind++)
        for (uint32_t i = 0; i < list->nweights; i++) {
            lap_nn_weight_t *weight = &list->weights[i];
            if (2 * kind_of(list, weight) + !lap_nn_is_late(list, weight) != kind)
                continue;
            weight->place = place;
            list->order[place++] = i;
        }
}

static size_t count_floats(lap_nn_list_t *list)
{
    size_t count = 0;
    int kind = LAP_NN_WIDE; /* those of the next kinds are yet to come */
    for (uint32_t place = 0; place < list->nweights; place++) {
        lap_nn_weight_t *weight = &list->weights[list->order[place]];
        if (weight->rows < weight->param.rows)
            weight->rows = weight->param.rows;
        while (kind < kind_of(list, weight))
            list->gathered[++kind].begin = count;
        count += padded(weight->rows * weight->param.cols);
    }
    while (kind < LAP_NN_TYPES - 1)
        list->gathered[++kind].begin = count;
    return count;
}

/*
 * What ranks share: their parts of the masters, and all weights in the types that they are read in. The
 * weights have regions of their own, also where their type is that of the masters: nobody may read them
 * before they are gathered, and the proof finds who does.
 */
static void add_shards(lap_nn_list_t *list, size_t count)
{
    const lap_nn_desc_t *desc = &list->plan.desc;
    const bool one_type = desc->dtype == LAP_FLOAT32 && !desc->fp8_params;
    lap_nn_gathered_t *gathered = list->gathered;
    list->shards = lap_alloc(1, sizeof(*list->shards));
    if (!list->shards)
        list->status = lap_error(LAP_ERR_NO_MEMORY, "no memory for shards of %u parameters",
                                 (unsigned)list->nweights);
    if (list->status == LAP_OK)
        list->status =
            lap_nn_buckets_init(list->shards, list, desc->shard_bucket, desc->shard_by_layer != 0,
                                LAP_FLOAT32, (int)desc->shards, list->shard);
    if (list->status != LAP_OK)
        return;
    list->masters =
        lasting(list, "masters", LAP_FLOAT32, 1, lap_nn_shard_count(list->shards, list->shard));
    gathered[LAP_NN_WIDE].region = made(list, one_type ? "weights" : "plain_weights", LAP_FLOAT32,
                                        1, gathered[LAP_NN_NARROW].begin);
    if (desc->dtype != LAP_FLOAT32)
        gathered[LAP_NN_NARROW].region =
            made(list, "weights", desc->dtype, 1,
                 gathered[LAP_NN_EIGHT].begin - gathered[LAP_NN_NARROW].begin);
    if (desc->fp8_params)
        gathered[LAP_NN_EIGHT].region =
            made(list, "fp8_weights", LAP_FLOAT8_E4M3, 1, count - gathered[LAP_NN_EIGHT].begin);
}

/* All masters lie together, and all gradients. */
static void add_arrays(lap_nn_list_t *list)
{
    const lap_dtype_t types[LAP_NN_TYPES] = {LAP_FLOAT32, list->plan.desc.dtype, LAP_FLOAT8_E4M3};
    for (int kind = 0; kind < LAP_NN_TYPES; kind++)
        list->gathered[kind] = (lap_nn_gathered_t){LAP_NN_NONE, types[kind], 0};
    order_weights(list);
    const size_t count = count_floats(list);
    const bool shared = list->plan.desc.shards > 1;
    size_t at = 0;
    if (!shared)
        list->masters = list->gathered[LAP_NN_WIDE].region =
            lasting(list, "masters", LAP_FLOAT32, 1, count);
    list->grads = lasting(list, "gradients", LAP_FLOAT32, 1, count);
    for (uint32_t place = 0; place < list->nweights; place++) {
        lap_nn_weight_t *weight = &list->weights[list->order[place]];
        const size_t rows = weight->rows, cols = weight->param.cols;
        weight->grad =
            lap_nn_add_part(list, weight->name, list->grads, at * sizeof(float), rows, cols, cols);
        at += padded(rows * cols);
    }
    if (shared)
        add_shards(list, count);
    at = 0;
    for (uint32_t place = 0; place < list->nweights; place++) {
        lap_nn_weight_t *weight = &list->weights[list->order[place]];
        const size_t rows = weight->rows, cols = weight->param.cols;
        const lap_nn_gathered_t *gathered = &list->gathered[kind_of(list, weight)];
        weight->master = lap_nn_add_part(list, weight->name, gathered->region,
                                         (at - gathered->begin) * lap_dtype_size(gathered->dtype),
                                         rows, cols, cols);
        at += padded(rows * cols);
    }
}

size_t lap_nn_optimized(const lap_nn_list_t *list)
{
    return list->regions[list->masters].cols;
}

/* Copies in the type of GEMMs, where that is another. */
static void add_copy(lap_nn_list_t *list, lap_nn_weight_t *weight)
{
    const lap_nn_param_t *param = &weight->param;
    const lap_dtype_t dtype = list->plan.desc.dtype;
    const int kind = kind_of(list, weight);
    weight->copy = weight->turned = weight->master;
    if (kind == LAP_NN_NARROW)
        return;
    if (is_fp8(list, weight)) {
        if (kind != LAP_NN_EIGHT)
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
    const lap_fill_normal_t fill = {.out = lap_tensor(all.data, LAP_FLOAT32, 1, count),
                                    .mean = value};
    if (count == 0)
        return LAP_OK;
    LAP_TRY(lap_nn_stream(nn, &stream));
    return nn->kernels->fill_normal(stream, &fill);
}

/* Elements [begin, end) of a matrix as it lies here: whole rows together, and what is left of others. */
static lap_status_t fill_matrix(lap_nn_t *nn, const lap_nn_weight_t *weight, size_t begin,
                                size_t end, float *out)
{
    const lap_nn_param_t *param = &weight->param;
    const size_t cols = param->cols;
    lap_stream_t *stream;
    LAP_TRY(lap_nn_stream(nn, &stream));
    for (size_t p = 0, before = 0; p < param->nparts; before += param->part_rows[p++])
        while (begin < end && begin < (before + param->part_rows[p]) * cols) {
            const size_t row = begin / cols - before, col = begin % cols, left = end - begin;
            const size_t rows = param->part_rows[p] - row;
            const bool whole = col == 0 && left >= cols;
            const size_t height = !whole ? 1 : left / cols < rows ? left / cols : rows;
            const size_t width = whole ? cols : left < cols - col ? left : cols - col;
            const lap_fill_normal_t fill = {
                .out = lap_tensor(out, LAP_FLOAT32, height, width),
                .std = nn->list.plan.desc.init_std,
                .seed = nn->list.plan.desc.seed,
                .tensor = weight->tensor,
                .first = (param->global_row[p] + row) * param->all_cols + param->global_col + col,
                .row_step = param->all_cols,
            };
            LAP_TRY(nn->kernels->fill_normal(stream, &fill));
            begin += height * width;
            out += height * width;
        }
    return LAP_OK;
}

static bool is_gamma(const lap_nn_list_t *list, const lap_nn_weight_t *weight)
{
    bool found = false;
    for (size_t b = 0; b < list->plan.nblocks && !found; b++)
        found = list->blocks[b].gamma == weight;
    return found;
}

/* Elements [begin, end) of a parameter, to a place of the masters; those of biases are 0 already. */
static lap_status_t fill_weight(lap_nn_t *nn, const lap_nn_weight_t *weight, size_t begin,
                                size_t end, float *out)
{
    lap_stream_t *stream;
    const lap_fill_normal_t ones = {.out = lap_tensor(out, LAP_FLOAT32, 1, end - begin), .mean = 1};
    if (!weight->param.vector)
        return fill_matrix(nn, weight, begin, end, out);
    if (begin == end || !is_gamma(&nn->list, weight))
        return LAP_OK;
    LAP_TRY(lap_nn_stream(nn, &stream));
    return nn->kernels->fill_normal(stream, &ones);
}

/* What this rank has of a parameter among its masters. */
static lap_status_t fill_masters(lap_nn_t *nn, const lap_nn_weight_t *weight)
{
    const lap_nn_list_t *list = &nn->list;
    const size_t count = weight->param.rows * weight->param.cols;
    float *masters = lap_nn_tensor(nn, list->masters).data;
    size_t at;
    (void)lap_nn_region_root(list, weight->grad, &at);
    at /= sizeof(float);
    if (!list->shards)
        return fill_weight(nn, weight, 0, count, masters + at);
    const lap_nn_share_t own = lap_nn_own_share(list, weight);
    return fill_weight(nn, weight, own.begin - at, own.begin - at + own.count, masters + own.at);
}

lap_status_t lap_nn_fill_params(lap_nn_t *nn)
{
    const lap_nn_list_t *list = &nn->list;
    const uint32_t arrays[] = {list->masters, list->grads, list->sums};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
        LAP_TRY(fill_array(nn, arrays[i], 0));
    for (uint32_t i = 0; i < list->nweights; i++)
        LAP_TRY(fill_masters(nn, &list->weights[i]));
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

/* An array of all parameters. A caller that knows its length may pass no count_p. */
static float *whole_array(lap_nn_t *nn, uint32_t region, size_t *count_p)
{
    if (count_p)
        *count_p = nn->list.regions[region].cols;
    return lap_nn_tensor(nn, region).data;
}

float *lap_nn_masters(lap_nn_t *nn, size_t *count_p)
{
    return nn ? whole_array(nn, nn->list.masters, count_p) : NULL;
}

float *lap_nn_gradients(lap_nn_t *nn, size_t *count_p)
{
    return nn ? whole_array(nn, nn->list.grads, count_p) : NULL;
}

void lap_nn_on_gradient(lap_nn_t *nn, lap_nn_ready_t ready, void *context)
{
    if (!nn)
        return;
    nn->ready = ready;
    nn->ready_context = context;
}
