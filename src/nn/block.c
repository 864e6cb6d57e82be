/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists forward and backward of one block: norm, column-parallel GEMM, middle, row-parallel GEMM.
 * Shapes are those of lap/nn.h; with sequence parallelism gradients take the way back through the
 * all-gather that mirrors each reduce-scatter. Runs nothing.
 */
#include "core/status.h"
#include "nn/context.h"
#include "nn/list.h"

enum { FPROP, DGRAD, WGRAD };
enum { IN_FORWARD, IN_BACKWARD };

/* ---- regions ---- */

static size_t pre_of(const lap_nn_list_t *list, const lap_nn_shape_t *shape)
{
    return lap_nn_pre_share(&list->plan, shape, list->rank);
}

static size_t mid_of(const lap_nn_list_t *list, const lap_nn_shape_t *shape)
{
    return lap_nn_mid_share(&list->plan, shape, list->rank);
}

static uint32_t matrix(lap_nn_list_t *list, const char *name, uint32_t b, lap_nn_extent_t extent,
                       size_t cols)
{
    return lap_nn_add_region(list, name, b, LAP_NN_PRIVATE, extent, list->plan.desc.dtype, 0, cols);
}

/* The FP8 copy of a matrix, and what is gathered of one: with its scale. LAP_NN_NONE: no FP8. */
static uint32_t copy_of(lap_nn_list_t *list, const char *name, uint32_t b, lap_nn_extent_t extent,
                        lap_dtype_t dtype, size_t cols)
{
    if (!list->blocks[b].shape.fp8)
        return LAP_NN_NONE;
    const uint32_t copy = lap_nn_add_region(list, name, b, LAP_NN_PRIVATE, extent, dtype, 0, cols);
    lap_nn_add_scale(list, copy);
    return copy;
}

static uint32_t gathered_of(lap_nn_list_t *list, const char *name, uint32_t b, uint32_t source,
                            size_t cols)
{
    if (list->status != LAP_OK)
        return 0;
    const lap_dtype_t dtype = list->regions[source].dtype;
    const uint32_t all =
        lap_nn_add_region(list, name, b, LAP_NN_PRIVATE, LAP_NN_ALL_ROWS, dtype, 0, cols);
    lap_nn_share_scale(list, all, source);
    return all;
}

static uint32_t scratch(lap_nn_list_t *list, uint32_t b, size_t bytes)
{
    return lap_nn_add_region(list, "scratch", b, LAP_NN_PRIVATE, LAP_NN_FIXED, LAP_FLOAT8_E4M3, 1,
                             bytes);
}

/* What the GEMMs of a block take: the result of the norm, or x itself; or the FP8 copy of it. */
static uint32_t column_input(const lap_nn_block_t *block, int when)
{
    return block->shape.fp8 ? block->input8 : block->shape.norm ? block->norm_out[when] : block->x;
}

/* Whether backward calls the first GEMM once more. */
static bool again(const lap_nn_list_t *list, const lap_nn_shape_t *shape)
{
    return list->plan.desc.recompute == LAP_RECOMPUTE_FULL && shape->column && shape->row;
}

/* A matrix that backward has as forward left it, or makes again in memory of its own. */
static void add_two(lap_nn_list_t *list, const char *name, uint32_t b, lap_nn_extent_t extent,
                    size_t cols, bool stored, uint32_t two[2])
{
    two[IN_FORWARD] = two[IN_BACKWARD] = matrix(list, name, b, extent, cols);
    if (!stored)
        two[IN_BACKWARD] = matrix(list, name, b, extent, cols);
}

/* Where the whole input of the first GEMM is put, if it is. */
static void add_full(lap_nn_list_t *list, uint32_t b)
{
    lap_nn_block_t *block = &list->blocks[b];
    const lap_nn_shape_t *shape = &block->shape;
    const bool keeps = lap_nn_plan_keeps_input(&list->plan, shape);
    if (!list->plan.desc.sequence_parallel)
        return;
    const uint32_t source = column_input(block, IN_FORWARD);
    block->full[IN_BACKWARD] = gathered_of(list, "full", b, source, shape->width);
    block->full[IN_FORWARD] = keeps && again(list, shape)
                                  ? gathered_of(list, "full", b, source, shape->width)
                                  : block->full[IN_BACKWARD];
}

void lap_nn_list_block(lap_nn_list_t *list, uint32_t b)
{
    lap_nn_block_t *block = &list->blocks[b];
    const lap_nn_shape_t *shape = &block->shape;
    const lap_nn_desc_t *desc = &list->plan.desc;
    const bool last = b + 1 == list->end_block, both = shape->column && shape->row;
    const bool keeps = desc->recompute == LAP_RECOMPUTE_NONE;
    block->x = b == list->first_block ? list->x : list->blocks[b - 1].y;
    block->y = last ? list->y : matrix(list, "y", b, LAP_NN_OWN_ROWS, shape->out);
    if (shape->norm) {
        add_two(list, "norm_out", b, LAP_NN_OWN_ROWS, shape->width, keeps, block->norm_out);
        block->mean =
            lap_nn_add_region(list, "mean", b, LAP_NN_PRIVATE, LAP_NN_OWN_ROWS, LAP_FLOAT32, 0, 1);
        block->rstd =
            lap_nn_add_region(list, "rstd", b, LAP_NN_PRIVATE, LAP_NN_OWN_ROWS, LAP_FLOAT32, 0, 1);
    }
    if (both) {
        add_two(list, "pre", b, LAP_NN_ALL_ROWS, pre_of(list, shape), !again(list, shape),
                block->pre);
        add_two(list, "mid", b, LAP_NN_ALL_ROWS, mid_of(list, shape), keeps, block->mid);
    }
    if (shape->middle == LAP_MIDDLE_ATTENTION)
        block->lse =
            lap_nn_add_region(list, "lse", b, LAP_NN_PRIVATE, LAP_NN_FIXED, LAP_FLOAT32,
                              desc->heads / (size_t)list->plan.nranks / desc->cp_a2a * desc->batch,
                              lap_nn_group_tokens(desc, desc->seq, 0));
    if (shape->middle == LAP_MIDDLE_ATTENTION && desc->cp > 1)
        lap_nn_list_context_regions(list, b, keeps);
    if (shape->column) {
        block->input8 = copy_of(list, "input8", b, LAP_NN_OWN_ROWS, LAP_FLOAT8_E4M3, shape->width);
        add_full(list, b);
    }
    if (shape->row)
        block->mid8 =
            copy_of(list, "mid8", b, LAP_NN_ALL_ROWS, LAP_FLOAT8_E4M3, mid_of(list, shape));
}

/* ---- entries ---- */

static lap_nn_entry_t *call(lap_nn_list_t *list, uint32_t b, bool column, unsigned which,
                            lap_op_desc_t *desc_p)
{
    const lap_nn_shape_t *shape = &list->blocks[b].shape;
    const lap_tp_gemm_t gemm =
        (lap_tp_gemm_t)((column ? shape->column_gemm : shape->row_gemm) + which);
    *desc_p = (lap_op_desc_t)LAP_OP_DESC_INIT;
    if (list->status == LAP_OK)
        list->status = lap_nn_plan_describe(&list->plan, shape, gemm, desc_p);
    return lap_nn_add_call(list, column ? shape->column_name : shape->row_name, b, gemm, desc_p);
}

/* Where calls put what they gather, and the scales of that. */
static void gather_to(lap_nn_list_t *list, lap_nn_entry_t *entry, uint32_t region)
{
    entry->writes[LAP_NN_SECOND] = region;
    if (list->blocks[entry->block].shape.fp8)
        entry->writes[LAP_NN_SCALES] = list->scales;
}

static uint32_t copy_region(const lap_nn_weight_t *weight)
{
    return weight ? weight->copy : LAP_NN_NONE;
}

/* ---- forward ---- */

static void normalize(lap_nn_list_t *list, uint32_t b, int when)
{
    const lap_nn_block_t *block = &list->blocks[b];
    const size_t rows = list->status == LAP_OK ? list->regions[block->norm_out[when]].rows : 0;
    const uint32_t room = scratch(list, b, list->kernels->norm_scratch(rows, block->shape.width));
    lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_NORM, block->shape.norm_name, b);
    entry->reads[0] = block->x;
    entry->reads[1] = block->gamma->master;
    entry->reads[2] = block->beta ? block->beta->master : LAP_NN_NONE;
    entry->writes[0] = block->norm_out[when];
    entry->writes[1] = block->mean;
    entry->writes[2] = block->rstd;
    entry->writes[3] = room;
}

/* Queries and keys by the angles of their positions, in place; or gradients back. */
static void rotate(lap_nn_list_t *list, uint32_t b, uint32_t qkv, lap_nn_work_t work)
{
    if (list->plan.desc.positions != LAP_POSITIONS_ROPE)
        return;
    lap_nn_entry_t *entry = lap_nn_add_entry(list, work, "rope", b);
    entry->reads[0] = qkv;
    entry->reads[1] = list->rope;
    entry->writes[0] = qkv;
}

/* The column-parallel GEMM; a block without a row-parallel one ends with it. */
static void multiply_column(lap_nn_list_t *list, uint32_t b, int when)
{
    const lap_nn_block_t *block = &list->blocks[b];
    lap_op_desc_t desc;
    lap_nn_entry_t *entry = call(list, b, true, FPROP, &desc);
    entry->reads[LAP_NN_A] = column_input(block, when);
    entry->reads[LAP_NN_B] = block->column->copy;
    entry->reads[LAP_NN_BIAS] = copy_region(block->column_bias);
    entry->writes[LAP_NN_D] = block->shape.row ? block->pre[when] : block->y;
    if (block->shape.middle == LAP_MIDDLE_GELU) {
        entry->writes[LAP_NN_AUX_OUT] = block->pre[when];
        entry->writes[LAP_NN_D] = block->mid[when];
    }
    if (desc.gather_input)
        gather_to(list, entry, block->full[when]);
    if (block->shape.middle == LAP_MIDDLE_ATTENTION)
        rotate(list, b, block->pre[when], LAP_NN_ROPE);
}

static size_t attention_scratch(const lap_nn_list_t *list)
{
    const lap_nn_desc_t *desc = &list->plan.desc;
    const size_t ranks = (size_t)list->plan.nranks;
    const lap_attention_t attention = {
        .dtype = desc->dtype,
        .seq = desc->seq,
        .batch = desc->batch,
        .heads = desc->heads / ranks,
        .kv_heads = desc->kv_heads / ranks,
        .dim = desc->head_dim,
    };
    return list->kernels->attention_scratch(&attention);
}

/* What is between the GEMMs, but for GELU, which the first of them does. */
static void middle_forward(lap_nn_list_t *list, uint32_t b, int when)
{
    const lap_nn_block_t *block = &list->blocks[b];
    const bool attention = block->shape.middle == LAP_MIDDLE_ATTENTION;
    if (!attention && block->shape.middle != LAP_MIDDLE_SWIGLU)
        return;
    if (attention && list->plan.desc.cp > 1) {
        lap_nn_list_context_keys(list, b, when);
        lap_nn_list_context_forward(list, b, when);
        return;
    }
    const uint32_t room = attention ? scratch(list, b, attention_scratch(list)) : LAP_NN_NONE;
    lap_nn_entry_t *entry = lap_nn_add_entry(list, attention ? LAP_NN_ATTEND : LAP_NN_GATE,
                                             attention ? "attention" : "swiglu", b);
    entry->reads[0] = block->pre[when];
    entry->writes[0] = block->mid[when];
    entry->writes[1] = attention ? block->lse : LAP_NN_NONE;
    entry->writes[2] = room;
    entry->reads[1] = attention ? lap_nn_attention_ids(list) : LAP_NN_NONE;
}

/* Whether what a block adds to its input is masked. */
static bool drops(const lap_nn_list_t *list, uint32_t b)
{
    return list->blocks[b].shape.residual && list->plan.desc.hidden_dropout > 0;
}

/*
 * The row-parallel GEMM. Where x is to be added it is put into y first: it is rounded once. With dropout
 * x is added to what the mask leaves.
 */
static void multiply_row(lap_nn_list_t *list, uint32_t b)
{
    const lap_nn_block_t *block = &list->blocks[b];
    const bool dropped = drops(list, b);
    lap_op_desc_t desc;
    const uint32_t out =
        dropped ? matrix(list, "added", b, LAP_NN_OWN_ROWS, block->shape.out) : block->y;
    if (block->shape.residual && !dropped) {
        lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_COPY, "residual", b);
        entry->reads[0] = block->x;
        entry->writes[0] = block->y;
    }
    const uint32_t a = lap_nn_list_cast(
        list, b, block->shape.column ? block->mid[IN_FORWARD] : block->x, block->mid8);
    lap_nn_entry_t *entry = call(list, b, false, FPROP, &desc);
    entry->reads[LAP_NN_A] = a;
    entry->reads[LAP_NN_B] = block->row->copy;
    entry->reads[LAP_NN_BIAS] = copy_region(block->row_bias);
    entry->writes[LAP_NN_D] = out;
    entry->beta = block->shape.residual && !dropped ? 1.0f : 0.0f;
    if (dropped)
        lap_nn_list_dropout(list, b, LAP_MASK_HIDDEN(lap_nn_plan_block(&list->plan, b)), out,
                            block->x, block->y);
}

void lap_nn_list_look(lap_nn_list_t *list, const char *name, uint32_t b, uint32_t region)
{
    lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_LOOK, name, b);
    entry->reads[0] = region;
    entry->index = list->nlooks++;
}

void lap_nn_list_look_weight(lap_nn_list_t *list, uint32_t b, const lap_nn_weight_t *weight)
{
    if (!weight || list->status != LAP_OK)
        return;
    lap_nn_list_look(list, weight->name, b, weight->master);
    if (weight->copy != weight->master && !lap_dtype_is_fp8(list->regions[weight->copy].dtype))
        lap_nn_list_look(list, weight->name, b, weight->copy);
}

/* All that a block has to look at, in the order in which forward uses or makes it. */
static void look_block(lap_nn_list_t *list, uint32_t b)
{
    const lap_nn_block_t *block = &list->blocks[b];
    const lap_nn_shape_t *shape = &block->shape;
    static const char *const middles[] = {"", "gelu", "swiglu", "attention"};
    lap_nn_list_look_weight(list, b, block->gamma);
    lap_nn_list_look_weight(list, b, block->beta);
    if (shape->norm)
        lap_nn_list_look(list, shape->norm_name, b, block->norm_out[IN_FORWARD]);
    lap_nn_list_look_weight(list, b, block->column);
    lap_nn_list_look_weight(list, b, block->column_bias);
    if (shape->row && shape->column) {
        lap_nn_list_look(list, shape->column_name, b, block->pre[IN_FORWARD]);
        lap_nn_list_look(list, middles[shape->middle], b, block->mid[IN_FORWARD]);
    }
    lap_nn_list_look_weight(list, b, block->row);
    lap_nn_list_look_weight(list, b, block->row_bias);
    lap_nn_list_look(list, shape->row ? shape->row_name : shape->column_name, b, block->y);
}

void lap_nn_list_forward(lap_nn_list_t *list, uint32_t b)
{
    const lap_nn_block_t *block = &list->blocks[b];
    if (block->shape.norm)
        normalize(list, b, IN_FORWARD);
    if (block->shape.column) {
        (void)lap_nn_list_cast(list, b, block->shape.norm ? block->norm_out[IN_FORWARD] : block->x,
                               block->input8);
        multiply_column(list, b, IN_FORWARD);
    }
    middle_forward(list, b, IN_FORWARD);
    if (block->shape.row)
        multiply_row(list, b);
    look_block(list, b);
}

/* ---- backward ---- */

/* Makes again what forward did not keep. FP8 operands it did keep. */
static void recompute(lap_nn_list_t *list, uint32_t b)
{
    const lap_nn_block_t *block = &list->blocks[b];
    const lap_nn_middle_t middle = block->shape.middle;
    const bool fp8 = block->shape.fp8;
    if (list->plan.desc.recompute == LAP_RECOMPUTE_NONE)
        return;
    if (block->shape.norm && !fp8)
        normalize(list, b, IN_BACKWARD);
    if (again(list, &block->shape)) {
        multiply_column(list, b, IN_BACKWARD);
    } else if (middle == LAP_MIDDLE_GELU && !fp8) {
        lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_ACTIVATE, "gelu", b);
        entry->reads[0] = block->pre[IN_BACKWARD];
        entry->writes[0] = block->mid[IN_BACKWARD];
        entry->index = list->nreductions++;
    }
    if (middle == LAP_MIDDLE_ATTENTION || !fp8)
        middle_forward(list, b, IN_BACKWARD);
}

/*
 * Where backward puts the gradient of a vector: to be summed, scaled or added to the one before; or
 * right where it belongs, when there is nothing of that to do.
 */
static uint32_t partial_of(const lap_nn_list_t *list, const lap_nn_weight_t *weight)
{
    const bool done = !list->more && !weight->summed && list->plan.desc.loss_scale == 1;
    return done ? weight->grad : weight->partial;
}

void lap_nn_list_ready(lap_nn_list_t *list, lap_nn_weight_t *weight)
{
    if (weight->param.vector && partial_of(list, weight) == weight->partial) {
        lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_ADD, weight->name, LAP_NN_NONE);
        entry->reads[0] = weight->summed ? weight->sums : weight->partial;
        entry->writes[0] = weight->grad;
        entry->beta = list->more ? 1.0f : 0.0f;
        entry->index = list->nreductions++;
        entry->weight_grad = !weight->plain; /* a bias: wgrad has made it */
    }
    lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_READY, weight->name, LAP_NN_NONE);
    entry->index = weight->index;
    entry->weight_grad = !weight->plain;
}

/* What the ranks hold in part becomes ready at the end of backward, as do embeddings. */
static void ready(lap_nn_list_t *list, lap_nn_weight_t *weight)
{
    if (weight && !weight->summed && weight != list->embedding)
        lap_nn_list_ready(list, weight);
}

/* What the two wgrad GEMMs have in common: dw = dy^T x, and the sums of the rows of dy. */
static lap_nn_entry_t *call_wgrad(lap_nn_list_t *list, uint32_t b, bool column, uint32_t dy,
                                  uint32_t x)
{
    const lap_nn_block_t *block = &list->blocks[b];
    const lap_nn_weight_t *bias = column ? block->column_bias : block->row_bias;
    lap_op_desc_t desc;
    lap_nn_entry_t *entry = call(list, b, column, WGRAD, &desc);
    entry->reads[LAP_NN_A] = dy;
    entry->reads[LAP_NN_B] = x;
    entry->writes[LAP_NN_D] = (column ? block->column : block->row)->grad;
    entry->alpha = 1 / list->plan.desc.loss_scale;
    entry->beta = list->more ? 1.0f : 0.0f;
    entry->weight_grad = true;
    if (bias)
        entry->writes[LAP_NN_BIAS_GRAD] = partial_of(list, bias);
    return entry;
}

/* Whether backward sends the keys of a block; where attention is computed again they are here already. */
static bool sends_keys(const lap_nn_list_t *list, uint32_t b)
{
    return list->blocks[b].shape.middle == LAP_MIDDLE_ATTENTION && list->plan.desc.cp > 1 &&
           list->plan.desc.recompute == LAP_RECOMPUTE_NONE;
}

/*
 * Keys leave as soon as their memory is free: at the begin of backward, or when the attention above is
 * over. They travel on streams of their own, but on a GPU (lower_waits.c), and hold up nothing that GEMMs receive.
 */
static void send_keys_below(lap_nn_list_t *list, uint32_t b)
{
    while (b > list->first_block && !sends_keys(list, b - 1))
        b--;
    if (b > list->first_block)
        lap_nn_list_context_keys(list, b - 1, IN_BACKWARD);
}

/* Through the row-parallel GEMM to `d`, the gradient of what it took. */
static void row_backward(lap_nn_list_t *list, uint32_t b, uint32_t dy, uint32_t d)
{
    const lap_nn_block_t *block = &list->blocks[b];
    const lap_nn_shape_t *shape = &block->shape;
    const uint32_t input = shape->fp8      ? block->mid8
                           : shape->column ? block->mid[IN_BACKWARD]
                                           : block->x;
    const uint32_t copy = copy_of(list, "dy8", b, LAP_NN_OWN_ROWS, LAP_FLOAT8_E5M2, shape->out);
    uint32_t gradient = lap_nn_list_cast(list, b, dy, copy);
    const uint32_t full = gathered_of(list, "dy_full", b, gradient, shape->out);
    lap_op_desc_t desc;
    lap_nn_entry_t *entry = call(list, b, false, DGRAD, &desc);
    entry->reads[LAP_NN_A] = gradient;
    entry->reads[LAP_NN_B] = block->row->turned;
    entry->writes[LAP_NN_D] = d;
    if (shape->middle == LAP_MIDDLE_GELU)
        entry->reads[LAP_NN_AUX_IN] = block->pre[IN_BACKWARD];
    if (desc.gather_input) {
        gather_to(list, entry, full);
        gradient = full;
    }
    (void)call_wgrad(list, b, false, gradient, input);
    ready(list, block->row_bias);
    ready(list, block->row);
}

/* Through what is between the GEMMs, but for GELU: the row-parallel GEMM has done that. */
static void middle_backward(lap_nn_list_t *list, uint32_t b, uint32_t dmid, uint32_t dpre)
{
    const lap_nn_block_t *block = &list->blocks[b];
    const bool attention = block->shape.middle == LAP_MIDDLE_ATTENTION;
    if (block->shape.middle == LAP_MIDDLE_GELU)
        return;
    if (attention && list->plan.desc.cp > 1) {
        lap_nn_list_context_backward(list, b, dmid, dpre);
        send_keys_below(list, b);
        rotate(list, b, dpre, LAP_NN_ROPE_BACKWARD);
        return;
    }
    const uint32_t room = attention ? scratch(list, b, attention_scratch(list)) : LAP_NN_NONE;
    lap_nn_entry_t *entry =
        lap_nn_add_entry(list, attention ? LAP_NN_ATTEND_BACKWARD : LAP_NN_GATE_BACKWARD,
                         attention ? "attention" : "swiglu", b);
    entry->reads[0] = block->pre[IN_BACKWARD];
    entry->reads[1] = dmid;
    if (attention) {
        entry->reads[2] = block->mid[IN_BACKWARD];
        entry->reads[3] = block->lse;
        entry->reads[4] = lap_nn_attention_ids(list);
    }
    entry->writes[0] = dpre;
    entry->writes[1] = room;
    if (attention)
        rotate(list, b, dpre, LAP_NN_ROPE_BACKWARD);
}

/*
 * Through the column-parallel GEMM to `d`, the gradient of what it took. By default the input is
 * gathered during dgrad and the gradient reduced during wgrad; or dgrad reduces by itself, and the
 * whole input is there.
 */
static void column_backward(lap_nn_list_t *list, uint32_t b, uint32_t dpre, uint32_t d)
{
    const lap_nn_block_t *block = &list->blocks[b];
    const lap_nn_shape_t *shape = &block->shape;
    const uint32_t input = column_input(block, IN_BACKWARD);
    const uint32_t copy =
        copy_of(list, "dpre8", b, LAP_NN_ALL_ROWS, LAP_FLOAT8_E5M2, pre_of(list, shape));
    const uint32_t gradient = lap_nn_list_cast(list, b, dpre, copy);
    const uint32_t part = matrix(list, "dx_part", b, LAP_NN_ALL_ROWS, shape->width);
    lap_op_desc_t desc;
    lap_nn_entry_t *entry = call(list, b, true, DGRAD, &desc);
    const bool bulk = desc.kind == LAP_BULK_AG;
    entry->reads[LAP_NN_A] = gradient;
    entry->reads[LAP_NN_B] = block->column->turned;
    entry->writes[LAP_NN_D] = bulk ? part : d;
    if (bulk) {
        entry->reads[LAP_NN_X] = input;
        gather_to(list, entry, block->full[IN_BACKWARD]);
    }
    const bool whole = list->plan.desc.sequence_parallel != 0;
    entry = call_wgrad(list, b, true, gradient, whole ? block->full[IN_BACKWARD] : input);
    if (bulk) {
        entry->reads[LAP_NN_X] = part;
        entry->writes[LAP_NN_SECOND] = d;
    }
    ready(list, block->column_bias);
    ready(list, block->column);
}

static void norm_backward(lap_nn_list_t *list, uint32_t b, uint32_t dnorm, uint32_t dy, uint32_t dx)
{
    const lap_nn_block_t *block = &list->blocks[b];
    const size_t rows = list->status == LAP_OK ? list->regions[dnorm].rows : 0;
    const uint32_t room = scratch(list, b, list->kernels->norm_scratch(rows, block->shape.width));
    lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_NORM_BACKWARD, block->shape.norm_name, b);
    entry->reads[0] = block->x;
    entry->reads[1] = dnorm;
    entry->reads[2] = block->shape.residual ? dy : LAP_NN_NONE;
    entry->reads[3] = block->gamma->master;
    entry->reads[4] = block->mean;
    entry->reads[5] = block->rstd;
    entry->writes[0] = dx;
    entry->writes[1] = partial_of(list, block->gamma);
    entry->writes[2] = block->beta ? partial_of(list, block->beta) : LAP_NN_NONE;
    entry->writes[3] = room;
    ready(list, block->beta);
    ready(list, block->gamma);
}

uint32_t lap_nn_list_backward(lap_nn_list_t *list, uint32_t b, uint32_t dy)
{
    const lap_nn_shape_t *shape = &list->blocks[b].shape;
    if (b + 1 == list->end_block)
        send_keys_below(list, list->end_block);
    const uint32_t dx =
        b == list->first_block ? list->dx : matrix(list, "dx", b, LAP_NN_OWN_ROWS, shape->width);
    recompute(list, b);
    if (!shape->column) {
        row_backward(list, b, dy, dx);
        return dx;
    }
    uint32_t dpre = dy, dnorm = dx;
    if (shape->row) {
        const bool gelu = shape->middle == LAP_MIDDLE_GELU;
        dpre = matrix(list, "dpre", b, LAP_NN_ALL_ROWS, pre_of(list, shape));
        const uint32_t dmid =
            gelu ? dpre : matrix(list, "dmid", b, LAP_NN_ALL_ROWS, mid_of(list, shape));
        uint32_t masked = dy;
        if (drops(list, b)) {
            masked = matrix(list, "dadded", b, LAP_NN_OWN_ROWS, shape->out);
            lap_nn_list_dropout(list, b, LAP_MASK_HIDDEN(lap_nn_plan_block(&list->plan, b)), dy,
                                LAP_NN_NONE, masked);
        }
        row_backward(list, b, masked, dmid);
        middle_backward(list, b, dmid, dpre);
    }
    if (shape->norm)
        dnorm = matrix(list, "dnorm", b, LAP_NN_OWN_ROWS, shape->width);
    column_backward(list, b, dpre, dnorm);
    if (shape->norm)
        norm_backward(list, b, dnorm, dy, dx);
    return dx;
}
