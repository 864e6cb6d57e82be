/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Issuing the kernels of layers: each is given the operands that it was linked and proved with, and the numbers of its
 * entry. What each comes after is no business of theirs.
 */
#include <math.h>

#include "core/status.h"
#include "nn/context.h"
#include "nn/nn.h"
#include "nn/program.h"
#include "overlap/op.h"

/* ---- tensors ---- */

lap_tensor_t lap_nn_tensor(const lap_nn_t *nn, uint32_t region)
{
    if (region == LAP_NN_NONE)
        return (lap_tensor_t){.data = NULL};
    lap_tensor_t tensor = nn->tensors[region];
    if (nn->list.regions[region].memory != LAP_NN_EXTERNAL)
        tensor.rows = lap_nn_region_rows(&nn->list, region, nn->seq);
    return tensor;
}

/*
 * Where a memory of a program is. The caller's matrices were linked as packed ones; of a pipeline they are the tokens of
 * all micro-batches.
 */
lap_bound_place_t lap_nn_base(void *context, uint32_t memory)
{
    const lap_nn_t *nn = context;
    if (memory < LAP_NN_MEMORIES)
        return (lap_bound_place_t){.base = nn->memory[memory]};
    if (memory < LAP_NN_WIRE_MEMORY)
        return (lap_bound_place_t){.base = nn->scratch[memory - LAP_NN_SCRATCH_MEMORY].memory};
    if (memory < LAP_NN_TIED_MEMORY)
        return (lap_bound_place_t){.base = nn->background->memory[memory - LAP_NN_WIRE_MEMORY]};
    if (lap_nn_list_is_stage(&nn->list))
        return (lap_bound_place_t){.base = (char *)nn->tokens.ids};
    const lap_tensor_t *given = &nn->tensors[memory - LAP_NN_GIVEN_MEMORY];
    const lap_nn_region_t *region = &nn->list.regions[memory - LAP_NN_GIVEN_MEMORY];
    const size_t element = lap_dtype_size(region->dtype);
    return (lap_bound_place_t){.base = given->data,
                               .packed_stride = region->stride * element,
                               .stride = given->stride * element};
}

/* ---- streams ---- */

lap_status_t lap_nn_stream(lap_nn_t *nn, lap_stream_t **stream_p)
{
    LAP_TRY(lap_engine_join(nn->engine, LAP_FOREGROUND));
    *stream_p = nn->engine->streams[LAP_STREAM_COMPUTE];
    return LAP_OK;
}

/* ---- operators ---- */

lap_binding_t lap_nn_numbers(const lap_nn_t *nn, const lap_nn_entry_t *entry, size_t m)
{
    const lap_nn_call_t *call = &nn->calls[entry->index];
    lap_op_args_t args = LAP_OP_ARGS_INIT;
    args.m = m;
    args.alpha = entry->alpha;
    args.beta = entry->beta;
    args.trace = nn->tracing ? call->trace : NULL;
    return lap_op_bind(call->op, &args);
}

/* ---- kernels ---- */

const lap_arg_t *lap_nn_in(const lap_nn_issue_t *issue, uint32_t i)
{
    return lap_operand(issue->operands, i);
}

const lap_arg_t *lap_nn_out(const lap_nn_issue_t *issue, uint32_t i)
{
    return lap_operand(issue->operands, LAP_NN_READS + i);
}

lap_mask_t lap_nn_mask_of(const lap_nn_issue_t *issue, uint32_t site, uint32_t ids, float rate)
{
    return (lap_mask_t){.rate = rate,
                        .site = site,
                        .seed = issue->nn->list.plan.desc.seed,
                        .ids = lap_nn_in(issue, ids)->data};
}

/* Of the probabilities of attention. */
static lap_mask_t attention_mask(const lap_nn_issue_t *issue, uint32_t ids)
{
    const lap_nn_plan_t *plan = &issue->nn->list.plan;
    const uint32_t site = LAP_MASK_ATTENTION(lap_nn_plan_block(plan, issue->entry->block));
    return lap_nn_mask_of(issue, site, ids, plan->desc.attention_dropout);
}

/* Of all heads, the first that is attended to here: those of a rank are shared by its neighbours. */
static size_t first_head(const lap_nn_t *nn)
{
    const lap_nn_desc_t *desc = &nn->list.plan.desc;
    const size_t here = desc->heads / (size_t)nn->list.plan.nranks;
    return here * (size_t)nn->list.rank +
           here / desc->cp_a2a * ((size_t)nn->list.cp_rank % desc->cp_a2a);
}

static lap_status_t issue_norm(const lap_nn_issue_t *issue)
{
    const lap_nn_t *nn = issue->nn;
    const lap_arg_t *x = lap_nn_in(issue, 0);
    const lap_norm_forward_t norm = {
        .kind = nn->list.plan.desc.norm,
        .dtype = x->dtype,
        .rows = x->rows,
        .cols = x->cols,
        .x_stride = lap_arg_stride(x),
        .y_stride = x->cols,
        .x = x->data,
        .y = lap_nn_out(issue, 0)->data,
        .gamma = lap_nn_in(issue, 1)->data,
        .beta = lap_nn_in(issue, 2)->data,
        .mean = lap_nn_out(issue, 1)->data,
        .rstd = lap_nn_out(issue, 2)->data,
        .scratch = lap_nn_out(issue, 3)->data,
        .epsilon = nn->list.plan.desc.epsilon,
    };
    return nn->kernels->norm_forward(issue->stream, &norm);
}

static lap_status_t issue_norm_backward(const lap_nn_issue_t *issue)
{
    const lap_nn_t *nn = issue->nn;
    const lap_arg_t *x = lap_nn_in(issue, 0);
    const lap_arg_t *skip = lap_nn_in(issue, 2);
    const lap_arg_t *dx = lap_nn_out(issue, 0);
    const lap_norm_backward_t norm = {
        .kind = nn->list.plan.desc.norm,
        .dtype = x->dtype,
        .rows = x->rows,
        .cols = x->cols,
        .x_stride = lap_arg_stride(x),
        .dy_stride = x->cols,
        .skip_stride = lap_arg_stride(skip),
        .dx_stride = lap_arg_stride(dx),
        .x = x->data,
        .dy = lap_nn_in(issue, 1)->data,
        .skip = skip->data,
        .dx = dx->data,
        .gamma = lap_nn_in(issue, 3)->data,
        .mean = lap_nn_in(issue, 4)->data,
        .rstd = lap_nn_in(issue, 5)->data,
        .dgamma = lap_nn_out(issue, 1)->data,
        .dbeta = lap_nn_out(issue, 2)->data,
        .scratch = lap_nn_out(issue, 3)->data,
    };
    return nn->kernels->norm_backward(issue->stream, &norm);
}

static lap_status_t issue_attention(const lap_nn_issue_t *issue)
{
    const lap_nn_t *nn = issue->nn;
    const lap_nn_entry_t *entry = issue->entry;
    const lap_nn_desc_t *desc = &nn->list.plan.desc;
    const size_t ranks = (size_t)nn->list.plan.nranks * desc->cp_a2a; /* that share heads */
    const bool backward = entry->work == LAP_NN_ATTEND_BACKWARD;
    const lap_arg_t *out = backward ? lap_nn_in(issue, 2) : lap_nn_out(issue, 0);
    const lap_attention_t attention = {
        .dtype = desc->dtype,
        .scale = (float)(1 / sqrt((double)desc->head_dim)),
        .seq = nn->seq,
        .batch = desc->batch,
        .heads = desc->heads / ranks,
        .kv_heads = desc->kv_heads / ranks,
        .dim = desc->head_dim,
        .qkv_stride = lap_arg_stride(lap_nn_in(issue, 0)),
        .out_stride = lap_arg_stride(out),
        .qkv = lap_nn_in(issue, 0)->data,
        .out = out->data,
        .lse = (backward ? lap_nn_in(issue, 3) : lap_nn_out(issue, 1))->data,
        .dout = backward ? lap_nn_in(issue, 1)->data : NULL,
        .dqkv = backward ? lap_nn_out(issue, 0)->data : NULL,
        .scratch = lap_nn_out(issue, backward ? 1 : 2)->data,
        .mask = attention_mask(issue, backward ? 4 : 1),
        .first_head = first_head(nn),
    };
    return backward ? nn->kernels->attention_backward(issue->stream, &attention)
                    : nn->kernels->attention_forward(issue->stream, &attention);
}

/* Attention to the keys of one group of the context, or to all: see context.h. */
static lap_status_t issue_block(const lap_nn_issue_t *issue)
{
    const lap_nn_t *nn = issue->nn;
    const lap_nn_entry_t *entry = issue->entry;
    const lap_nn_desc_t *desc = &nn->list.plan.desc;
    const size_t shared = (size_t)nn->list.plan.nranks * desc->cp_a2a;
    const size_t ring = lap_nn_ring(desc), own = (size_t)nn->list.cp_rank / desc->cp_a2a;
    const bool backward = entry->work == LAP_NN_ATTEND_BLOCK_BACKWARD, whole = entry->index == ring;
    const lap_arg_t *qkv = lap_nn_in(issue, 0);
    const lap_arg_t *out = backward ? lap_nn_in(issue, 3) : lap_nn_out(issue, 0);
    const lap_arg_t *sums = lap_nn_out(issue, 0);
    const size_t width = 2 * (desc->kv_heads / shared) * desc->head_dim;
    lap_attention_t block = {
        .dtype = desc->dtype,
        .scale = (float)(1 / sqrt((double)desc->head_dim)),
        .seq = lap_nn_group_tokens(desc, nn->seq, own),
        .batch = desc->batch,
        .heads = desc->heads / shared,
        .kv_heads = desc->kv_heads / shared,
        .dim = desc->head_dim,
        .qkv_stride = lap_arg_stride(qkv),
        .out_stride = lap_arg_stride(out),
        .qkv = qkv->data,
        .out = out->data,
        .lse = (backward ? lap_nn_in(issue, 4) : lap_nn_out(issue, 1))->data,
        .dout = backward ? lap_nn_in(issue, 2)->data : NULL,
        .dqkv = backward ? sums->data : NULL,
        .dq_stride = lap_arg_stride(sums),
        .scratch = lap_nn_out(issue, 2)->data,
        .keys = whole ? nn->seq : lap_shard(nn->seq, (int)ring, (int)entry->index, NULL),
        .queries_at = lap_nn_context_halves(desc, nn->seq, own * desc->cp_a2a, desc->cp_a2a),
        .kv_stride = width,
        .dkv_stride = width,
        .merges = entry->beta != 0,
        .mask = attention_mask(issue, backward ? 5 : 3),
        .first_head = first_head(nn),
        .mask_seq = nn->seq,
    };
    if (!whole)
        block.keys_at =
            lap_nn_context_halves(desc, nn->seq, entry->index * desc->cp_a2a, desc->cp_a2a);
    block.kv = lap_nn_in(issue, 1)->data;
    if (!block.kv) { /* the own ones, where they were made */
        block.kv =
            (const char *)qkv->data + block.heads * desc->head_dim * lap_dtype_size(desc->dtype);
        block.kv_stride = lap_arg_stride(qkv);
    }
    if (backward)
        block.dkv = lap_nn_out(issue, 1)->data;
    return backward ? nn->kernels->attention_backward(issue->stream, &block)
                    : nn->kernels->attention_forward(issue->stream, &block);
}

static lap_status_t issue_swiglu(const lap_nn_issue_t *issue)
{
    const lap_nn_t *nn = issue->nn;
    const lap_nn_entry_t *entry = issue->entry;
    const bool backward = entry->work == LAP_NN_GATE_BACKWARD;
    const lap_arg_t *out = backward ? lap_nn_in(issue, 1) : lap_nn_out(issue, 0);
    const lap_swiglu_t swiglu = {
        .dtype = out->dtype,
        .rows = out->rows,
        .cols = out->cols,
        .pre_stride = lap_arg_stride(lap_nn_in(issue, 0)),
        .out_stride = lap_arg_stride(out),
        .pre = lap_nn_in(issue, 0)->data,
        .out = backward ? NULL : out->data,
        .dout = backward ? out->data : NULL,
        .dpre = backward ? lap_nn_out(issue, 0)->data : NULL,
    };
    return backward ? nn->kernels->swiglu_backward(issue->stream, &swiglu)
                    : nn->kernels->swiglu_forward(issue->stream, &swiglu);
}

/* dst = src, scaled and finished as the reduction of the entry says; both are packed. */
static lap_status_t issue_reduction(const lap_nn_issue_t *issue)
{
    const lap_nn_t *nn = issue->nn;
    const lap_nn_entry_t *entry = issue->entry;
    const lap_nn_reduction_t *reduction = &nn->reductions[entry->index];
    const lap_arg_t *src = lap_nn_in(issue, 0);
    const lap_arg_t *dst = lap_nn_out(issue, 0);
    const lap_reduce_t reduce = {
        .from = src->dtype,
        .to = dst->dtype,
        .dst = dst->data,
        .dst_stride =
            entry->work == LAP_NN_CONVERT ? dst->pitch : src->cols * lap_dtype_size(dst->dtype),
        .srcs = (const void *const *)&src->data,
        .src_strides = &src->pitch,
        .scales = reduction->scale ? &reduction->scale : NULL,
        .nsrc = 1,
        .rows = src->rows,
        .cols = src->cols,
        .finish = &reduction->finish,
    };
    return nn->engine->device->ops->reduce(issue->stream, &reduce);
}

static lap_status_t issue_copy(const lap_nn_issue_t *issue)
{
    const lap_nn_t *nn = issue->nn;
    const lap_arg_t *src = lap_nn_in(issue, 0);
    const lap_arg_t *dst = lap_nn_out(issue, 0);
    const lap_copy_t copy = {
        .dst = dst->data,
        .src = src->data,
        .rows = src->rows,
        .row_bytes = src->cols * lap_dtype_size(src->dtype),
        .dst_stride = dst->pitch,
        .src_stride = src->pitch,
    };
    return nn->engine->device->ops->copy(issue->stream, &copy);
}

/*
 * Tokens of several ranks, which have their early half and then their late one, in the order of
 * positions: all early halves, and then the late ones from the last rank on. Or back.
 */
static lap_status_t issue_reorder(const lap_nn_issue_t *issue)
{
    const lap_nn_t *nn = issue->nn;
    const lap_nn_entry_t *entry = issue->entry;
    const lap_nn_desc_t *desc = &nn->list.plan.desc;
    const bool all = nn->list.regions[entry->reads[0]].extent == LAP_NN_SEQ_TOKENS;
    const size_t heads = desc->cp_a2a, width = all ? heads : 1;
    const size_t begin = all ? 0 : (size_t)nn->list.cp_rank / heads * heads;
    const lap_arg_t *src = lap_nn_in(issue, 0);
    const lap_arg_t *dst = lap_nn_out(issue, 0);
    const size_t row = src->pitch;
    const lap_halves_t group = lap_nn_context_halves(desc, nn->seq, begin, all ? desc->cp : heads);
    size_t by_rank = 0; /* tokens before */
    for (size_t r = begin; r < begin + (all ? desc->cp : heads); r += width) {
        const lap_halves_t own = lap_nn_context_halves(desc, nn->seq, r, width);
        const size_t count = all ? lap_nn_group_tokens(desc, nn->seq, r / heads)
                                 : lap_nn_context_tokens(desc, nn->seq, r);
        const size_t places[] = {own.first - group.first, own.second - group.second + group.split};
        const size_t counts[] = {own.split, count - own.split};
        for (int half = 0; half < 2; half++) {
            const size_t from = entry->index ? places[half] : by_rank;
            const size_t to = entry->index ? by_rank : places[half];
            const lap_copy_t copy = {.dst = (char *)dst->data + to * row,
                                     .src = (const char *)src->data + from * row,
                                     .rows = counts[half],
                                     .row_bytes = row,
                                     .dst_stride = row,
                                     .src_stride = row};
            if (counts[half] > 0)
                LAP_TRY(nn->engine->device->ops->copy(issue->stream, &copy));
            by_rank += counts[half];
        }
    }
    return LAP_OK;
}

/* Columns of a matrix of heads, and where they are in the part of a rank. */
static lap_status_t copy_heads(const lap_nn_issue_t *issue, const lap_arg_t *all, size_t col,
                               char *part, size_t part_col, size_t width, size_t cols, bool back)
{
    const size_t element = lap_dtype_size(all->dtype);
    char *heads = (char *)all->data + col * element, *own = part + part_col * element;
    const lap_copy_t copy = {
        .dst = back ? heads : own,
        .src = back ? own : heads,
        .rows = all->rows,
        .row_bytes = cols * element,
        .dst_stride = back ? all->pitch : width * element,
        .src_stride = back ? width * element : all->pitch,
    };
    return issue->nn->engine->device->ops->copy(issue->stream, &copy);
}

/* Queries, and with them keys and values if the matrix has them: of each rank its share of heads. */
static lap_status_t issue_pack(const lap_nn_issue_t *issue)
{
    const lap_nn_t *nn = issue->nn;
    const lap_nn_entry_t *entry = issue->entry;
    const lap_nn_desc_t *desc = &nn->list.plan.desc;
    const bool back = entry->index != 0;
    const lap_arg_t *all = back ? lap_nn_out(issue, 0) : lap_nn_in(issue, 0);
    const lap_arg_t *parts = back ? lap_nn_in(issue, 0) : lap_nn_out(issue, 0);
    const size_t ranks = desc->cp_a2a, nranks = (size_t)nn->list.plan.nranks;
    const size_t queries = desc->heads / nranks * desc->head_dim;
    const size_t keys = desc->kv_heads / nranks * desc->head_dim;
    const bool has_keys = all->cols > queries;
    for (size_t r = 0; r < ranks && all->rows > 0; r++) {
        char *part = (char *)parts->data + r * all->rows * parts->pitch;
        const size_t q = queries / ranks, k = keys / ranks;
        LAP_TRY(copy_heads(issue, all, r * q, part, 0, lap_arg_stride(parts), q, back));
        for (size_t i = 0; i < 2 && has_keys; i++)
            LAP_TRY(copy_heads(issue, all, queries + i * keys + r * k, part, q + i * k,
                               lap_arg_stride(parts), k, back));
    }
    return LAP_OK;
}

/* The copy of a matrix in another type, which is packed; the elements of a vector are one row. */
static lap_status_t issue_cast(const lap_nn_issue_t *issue)
{
    const lap_nn_t *nn = issue->nn;
    const lap_arg_t *src = lap_nn_in(issue, 0);
    const lap_arg_t *dst = lap_nn_out(issue, 0);
    const bool one_row = lap_arg_stride(src) == src->cols && !lap_dtype_is_fp8(dst->dtype);
    const size_t cols = one_row ? src->rows * src->cols : src->cols;
    const lap_cast_t cast = {
        .from = src->dtype,
        .to = dst->dtype,
        .src = src->data,
        .dst = dst->data,
        .src_stride = src->pitch,
        .dst_stride = cols * lap_dtype_size(dst->dtype),
        .rows = one_row ? 1 : src->rows,
        .cols = cols,
        .scale = lap_nn_in(issue, 1)->data,
        .amax = lap_nn_out(issue, 1)->data,
    };
    return nn->engine->device->ops->cast(issue->stream, &cast);
}

static lap_status_t issue_scale(const lap_nn_issue_t *issue)
{
    const lap_nn_t *nn = issue->nn;
    const lap_nn_entry_t *entry = issue->entry;
    const lap_arg_t *found = lap_nn_in(issue, 0);
    const lap_fp8_scales_t scales = {
        .ranks = found->rows,
        .count = found->cols,
        .narrow = entry->index,
        .found = found->data,
        .history = lap_nn_out(issue, 1)->data,
        .length = nn->list.plan.desc.amax_history,
        .amax = lap_nn_out(issue, 2)->data,
        .scales = lap_nn_out(issue, 0)->data,
    };
    return nn->kernels->fp8_scales(issue->stream, &scales);
}

static lap_status_t issue_transpose(const lap_nn_issue_t *issue)
{
    const lap_nn_t *nn = issue->nn;
    const lap_arg_t *src = lap_nn_in(issue, 0), *dst = lap_nn_out(issue, 0);
    const lap_transpose_t transpose = {
        .src = src->data,
        .dst = dst->data,
        .rows = src->rows,
        .cols = src->cols,
        .src_stride = lap_arg_stride(src),
        .dst_stride = lap_arg_stride(dst),
    };
    return nn->engine->device->ops->transpose(issue->stream, &transpose);
}

static lap_status_t issue_loss(const lap_nn_issue_t *issue)
{
    const lap_nn_t *nn = issue->nn;
    const lap_arg_t *y = lap_nn_in(issue, 0);
    const lap_arg_t *target = lap_nn_in(issue, 1);
    const lap_arg_t *dy = lap_nn_out(issue, 0);
    const lap_square_loss_t loss = {
        .dtype = y->dtype,
        .rows = y->rows,
        .cols = y->cols,
        .y_stride = lap_arg_stride(y),
        .target_stride = lap_arg_stride(target),
        .dy_stride = lap_arg_stride(dy),
        .y = y->data,
        .target = target->data,
        .dy = dy->data,
        .scale = lap_nn_loss_factor(nn) / (float)nn->loss_count,
        .sum = nn->loss,
    };
    return nn->kernels->square_loss(issue->stream, &loss);
}

static lap_status_t issue_zero(const lap_nn_issue_t *issue)
{
    const lap_nn_t *nn = issue->nn;
    const lap_arg_t *all = lap_nn_out(issue, 0);
    const lap_fill_normal_t fill = {.dtype = all->dtype,
                                    .rows = all->rows,
                                    .cols = all->cols,
                                    .stride = lap_arg_stride(all),
                                    .out = all->data};
    return nn->kernels->fill_normal(issue->stream, &fill);
}

/* ---- of an optimizer ---- */

/* What all ranks that share layers have is counted by the first, and what two stages have by one. */
static lap_status_t issue_squares(const lap_nn_issue_t *issue)
{
    const lap_nn_t *nn = issue->nn;
    const lap_nn_entry_t *entry = issue->entry;
    const lap_nn_weight_t *weight = &nn->list.weights[entry->index];
    const lap_nn_param_t *param = &weight->param;
    const uint32_t grad = entry->reads[0];
    const bool counts =
        (!param->replicated || nn->list.rank == 0) && !weight->twin && grad != LAP_NN_NONE;
    const size_t count = !counts                ? 0
                         : grad == weight->grad ? param->rows * param->cols
                                                : lap_nn_in(issue, 0)->cols;
    const lap_sum_squares_t squares = {

        .src = lap_nn_in(issue, 0)->data, .count = count, .sum = lap_nn_out(issue, 0)->data};
    return nn->kernels->sum_squares(issue->stream, &squares);
}

/* A row of the matrix begins with each number. */
static lap_status_t issue_total(const lap_nn_issue_t *issue)
{
    const lap_nn_t *nn = issue->nn;
    const lap_arg_t *numbers = lap_nn_in(issue, 0);
    const lap_total_t total = {.src = numbers->data,
                               .count = numbers->rows,
                               .stride = numbers->pitch / sizeof(double),
                               .total = lap_nn_out(issue, 0)->data};
    return nn->kernels->total(issue->stream, &total);
}

static lap_status_t issue_clip(const lap_nn_issue_t *issue)
{
    const lap_nn_t *nn = issue->nn;
    const lap_clip_t clip = {.given = &nn->rates[0],
                             .squares = lap_nn_in(issue, 0)->data,
                             .most = nn->optimizer.clip_norm,
                             .rates = lap_nn_out(issue, 0)->data,
                             .result = &nn->rates[1]};
    return nn->kernels->clip(issue->stream, &clip);
}

static lap_status_t issue_update(const lap_nn_issue_t *issue)
{
    const lap_nn_t *nn = issue->nn;
    const lap_nn_entry_t *entry = issue->entry;
    const lap_optimizer_desc_t *desc = &nn->optimizer;
    const lap_update_t update = {.kind = desc->kind,
                                 .count = lap_nn_out(issue, 0)->cols,
                                 .master = lap_nn_out(issue, 0)->data,
                                 .grad = lap_nn_in(issue, 0)->data,
                                 .first = lap_nn_out(issue, 1)->data,
                                 .second = lap_nn_out(issue, 2)->data,
                                 .rates = lap_nn_in(issue, 1)->data,
                                 .decay = entry->index ? desc->weight_decay : 0,
                                 .momentum = desc->momentum,
                                 .beta1 = desc->beta1,
                                 .beta2 = desc->beta2,
                                 .epsilon = desc->epsilon};
    return update.count > 0 ? nn->kernels->update(issue->stream, &update) : LAP_OK;
}

/* ---- entries ---- */

static lap_status_t find_amax(const lap_nn_issue_t *issue, float *amax)
{
    const lap_arg_t *matrix = lap_nn_in(issue, 0);
    const lap_amax_t measure = {
        .dtype = matrix->dtype,
        .rows = matrix->rows,
        .cols = matrix->cols,
        .stride = lap_arg_stride(matrix),
        .src = matrix->data,
        .amax = amax,
    };
    return issue->nn->kernels->amax(issue->stream, &measure);
}

static lap_status_t issue_amax(const lap_nn_issue_t *issue)
{
    return find_amax(issue, lap_nn_out(issue, 0)->data);
}

/* See finite.c. */
static lap_status_t issue_look(const lap_nn_issue_t *issue)
{
    const lap_arg_t *matrix = lap_nn_in(issue, 0);
    return matrix->rows > 0 && matrix->cols > 0
               ? find_amax(issue, &issue->nn->looks[issue->entry->index])
               : LAP_OK;
}

static lap_status_t issue_tokens(const lap_nn_issue_t *issue)
{
    return lap_nn_issue_tokens(issue);
}

/* Of entries that are no kernels. */
static lap_status_t issue_nothing(const lap_nn_issue_t *issue)
{
    return lap_error(LAP_ERR_INVALID, "entry '%s' is no kernel: nothing can be issued for it",
                     issue->entry->name);
}

/* ---- of buckets ---- */

/* What this rank has of each weight of a bucket becomes FP8, by its scale. */
static lap_status_t pack_fp8(const lap_nn_t *nn, size_t index, const lap_operands_t *operands,
                             lap_stream_t *stream)
{
    const lap_nn_list_t *list = &nn->list;
    const lap_nn_buckets_t *buckets = nn->background->replicas.buckets;
    const lap_nn_bucket_t *bucket = &buckets->list[index];
    const float *masters = lap_operand(operands, LAP_NN_CAST_FROM)->data;
    const char *scales = lap_operand(operands, LAP_NN_CAST_SCALES)->data;
    uint8_t *packed = lap_operand(operands, LAP_NN_CAST_TO)->data;
    const size_t first = lap_nn_shard_begin(buckets, index, buckets->replica);
    size_t begin, offset;
    (void)lap_nn_bucket_shard(buckets, index, buckets->replica, &begin);
    for (uint32_t place = bucket->first; place <= bucket->last; place++) {
        const lap_nn_weight_t *weight = &list->weights[list->order[place]];
        const lap_nn_share_t own = lap_nn_own_share(list, weight);
        (void)lap_nn_region_root(list, list->regions[weight->copy].scale, &offset);
        const lap_cast_t cast = {.from = LAP_FLOAT32,
                                 .to = LAP_FLOAT8_E4M3,
                                 .src = masters + (own.at - first),
                                 .dst = packed + (own.begin - begin),
                                 .src_stride = own.count * sizeof(float),
                                 .dst_stride = own.count,
                                 .rows = 1,
                                 .cols = own.count,
                                 .scale = (const float *)(const void *)(scales + offset)};
        if (own.count > 0)
            LAP_TRY(nn->engine->device->ops->cast(stream, &cast));
    }
    return LAP_OK;
}

lap_status_t lap_nn_issue_cast(const lap_nn_t *nn, size_t index, int which,
                               const lap_operands_t *operands, lap_stream_t *stream)
{
    const lap_nn_bucket_t *bucket = &nn->background->replicas.buckets->list[index];
    const lap_arg_t *from = lap_operand(operands, LAP_NN_CAST_FROM);
    const lap_arg_t *to = lap_operand(operands, LAP_NN_CAST_TO);
    if (which == LAP_NN_BUCKET_PACK && lap_dtype_is_fp8(bucket->weights))
        return pack_fp8(nn, index, operands, stream);
    const lap_reduce_t cast = {.from = from->dtype,
                               .to = to->dtype,
                               .nsrc = 1,
                               .rows = from->rows,
                               .cols = from->cols,
                               .dst = to->data,
                               .dst_stride = to->pitch,
                               .srcs = (const void *const *)&from->data,
                               .src_strides = &from->pitch};
    return cast.rows > 0 ? nn->engine->device->ops->reduce(stream, &cast) : LAP_OK;
}

/* ---- all of them ---- */

lap_status_t lap_nn_issue_entry(const lap_nn_t *nn, uint32_t entry, const lap_operands_t *operands,
                                lap_stream_t *stream)
{
    static lap_status_t (*const issuers[])(const lap_nn_issue_t *) = {
#define ISSUER(work, name, issuer) issue_##issuer,
        LAP_NN_WORK_LIST(ISSUER)
#undef ISSUER
    };
    const lap_nn_issue_t issue = {nn, &nn->list.entries[entry], operands, stream};
    return issuers[issue.entry->work](&issue);
}

lap_status_t lap_nn_issue_kernel(void *context, uint32_t origin, const lap_operands_t *operands,
                                 lap_stream_t *stream)
{
    const lap_nn_t *nn = context;
    size_t index;
    int which;
    return lap_nn_bucket_of(origin, &index, &which)
               ? lap_nn_issue_cast(nn, index, which, operands, stream)
               : lap_nn_issue_entry(nn, origin, operands, stream);
}
