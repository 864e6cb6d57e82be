/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kernels of layers take besides operands: numbers of the model, of the entry and of the call, and memory that they share with
 * the host.
 */
#include <math.h>

#include "nn/context.h"
#include "nn/nn.h"

/* The mask of a site of the model (mask.h), with operand `ids`, which is none where nothing is dropped. */
static lap_mask_t mask_of(const lap_nn_issue_t *issue, uint32_t site, uint32_t ids, float rate)
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
    return mask_of(issue, site, ids, plan->desc.attention_dropout);
}

/* Of all heads, the first that is attended to here: those of a rank are shared by its neighbours. */
static size_t first_head(const lap_nn_t *nn)
{
    const lap_nn_desc_t *desc = &nn->list.plan.desc;
    const size_t here = desc->heads / (size_t)nn->list.plan.nranks;
    return here * (size_t)nn->list.rank +
           here / desc->cp_a2a * ((size_t)nn->list.cp_rank % desc->cp_a2a);
}

static void norm(const lap_nn_issue_t *issue, lap_kernel_args_t *args)
{
    args->norm_forward.kind = issue->nn->list.plan.desc.norm;
    args->norm_forward.epsilon = issue->nn->list.plan.desc.epsilon;
}

static void norm_backward(const lap_nn_issue_t *issue, lap_kernel_args_t *args)
{
    args->norm_backward.kind = issue->nn->list.plan.desc.norm;
}

static void attention(const lap_nn_issue_t *issue, lap_kernel_args_t *args)
{
    const lap_nn_t *nn = issue->nn;
    const lap_nn_entry_t *entry = issue->entry;
    const lap_nn_desc_t *desc = &nn->list.plan.desc;
    const size_t ranks = (size_t)nn->list.plan.nranks * desc->cp_a2a; /* that share heads */
    const bool backward = entry->work == LAP_NN_ATTEND_BACKWARD;
    const lap_arg_t *out = backward ? lap_nn_in(issue, 2) : lap_nn_out(issue, 0);
    args->attention_forward = (lap_attention_t){
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
}

/* Attention to the keys of one group of the context, or to all: see context.h. */
static void block(const lap_nn_issue_t *issue, lap_kernel_args_t *args)
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
    args->attention_forward = block;
}

static void scales(const lap_nn_issue_t *issue, lap_kernel_args_t *args)
{
    const lap_arg_t *found = lap_nn_in(issue, 0);
    args->fp8_scales.ranks = found->rows;
    args->fp8_scales.count = found->cols;
    args->fp8_scales.length = issue->nn->list.plan.desc.amax_history;
    args->fp8_scales.narrow = issue->entry->index;
}

static void loss(const lap_nn_issue_t *issue, lap_kernel_args_t *args)
{
    const lap_nn_t *nn = issue->nn;
    args->square_loss.scale = lap_nn_loss_factor(nn) / (float)nn->loss_count;
    args->square_loss.sum = nn->loss;
}

/* ---- of tokens ---- */

static void embedding(const lap_nn_issue_t *issue, lap_kernel_args_t *args)
{
    const lap_nn_t *nn = issue->nn;
    const lap_nn_param_t *param = &nn->list.embedding->param;
    args->embedding.batch = nn->list.plan.desc.batch;
    args->embedding.first = param->global_row[0];
    args->embedding.count = param->rows;
    args->embedding.at = lap_nn_halves(&nn->list, nn->seq);
}

static void embedding_backward(const lap_nn_issue_t *issue, lap_kernel_args_t *args)
{
    const lap_nn_t *nn = issue->nn;
    const lap_nn_entry_t *entry = issue->entry;
    const bool by_tokens = entry->reads[1] != LAP_NN_NONE;
    const lap_nn_param_t *param = &(by_tokens ? nn->list.embedding : nn->list.positions)->param;
    lap_embedding_backward_t *back = &args->embedding_backward;
    back->batch = nn->list.plan.desc.batch;
    back->first = param->global_row[0];
    back->count = param->rows;
    back->alpha = entry->alpha;
    back->beta = entry->beta;
    back->at = lap_nn_halves(&nn->list, nn->seq);
}

static void rope(const lap_nn_issue_t *issue, lap_kernel_args_t *args)
{
    const lap_nn_t *nn = issue->nn;
    const lap_nn_desc_t *desc = &nn->list.plan.desc;
    args->rope.batch = desc->batch;
    args->rope.heads = (desc->heads + desc->kv_heads) / (size_t)nn->list.plan.nranks;
    args->rope.dim = desc->head_dim;
    args->rope.backward = issue->entry->work == LAP_NN_ROPE_BACKWARD;
    args->rope.at = lap_nn_halves(&nn->list, nn->seq);
}

/* Rows are those of x, which ranks share if they do. */
static void dropout(const lap_nn_issue_t *issue, lap_kernel_args_t *args)
{
    const lap_nn_t *nn = issue->nn;
    const lap_nn_plan_t *plan = &nn->list.plan;
    args->dropout.batch = plan->desc.batch;
    if (plan->desc.sequence_parallel)
        (void)lap_shard(lap_nn_tokens(&nn->list, nn->seq) * plan->desc.batch, plan->nranks,
                        nn->list.rank, &args->dropout.first_row);
    args->dropout.mask = mask_of(issue, issue->entry->index, 2, plan->desc.hidden_dropout);
    args->dropout.at = lap_nn_halves(&nn->list, nn->seq);
}

static void entropy(const lap_nn_issue_t *issue, lap_kernel_args_t *args)
{
    const lap_nn_t *nn = issue->nn;
    const lap_nn_plan_t *plan = &nn->list.plan;
    lap_cross_entropy_t *entropy = &args->cross_entropy;
    entropy->cols = lap_nn_vocab_share(plan, nn->list.rank, &entropy->first);
    entropy->ranks = (size_t)plan->nranks;
    entropy->scale = nn->tokens.entropy + nn->micro;
    entropy->sum = nn->loss + nn->micro;
}

/* ---- of an optimizer ---- */

/* What all ranks that share layers have is counted by the first, and what two stages have by one. */
static void squares(const lap_nn_issue_t *issue, lap_kernel_args_t *args)
{
    const lap_nn_t *nn = issue->nn;
    const lap_nn_entry_t *entry = issue->entry;
    const lap_nn_weight_t *weight = &nn->list.weights[entry->index];
    const lap_nn_param_t *param = &weight->param;
    const uint32_t grad = entry->reads[0];
    const bool counts =
        (!param->replicated || nn->list.rank == 0) && !weight->twin && grad != LAP_NN_NONE;
    args->sum_squares.count = !counts                ? 0
                              : grad == weight->grad ? param->rows * param->cols
                                                     : lap_nn_in(issue, 0)->cols;
}

/* A row of the matrix begins with each number. */
static void total(const lap_nn_issue_t *issue, lap_kernel_args_t *args)
{
    const lap_arg_t *numbers = lap_nn_in(issue, 0);
    args->total.count = numbers->rows;
    args->total.stride = numbers->pitch / sizeof(double);
}

static void clip(const lap_nn_issue_t *issue, lap_kernel_args_t *args)
{
    const lap_nn_t *nn = issue->nn;
    args->clip.given = &nn->rates[0];
    args->clip.result = &nn->rates[1];
    args->clip.most = nn->optimizer.clip_norm;
}

static void update(const lap_nn_issue_t *issue, lap_kernel_args_t *args)
{
    const lap_optimizer_desc_t *desc = &issue->nn->optimizer;
    lap_update_t *update = &args->update;
    update->kind = desc->kind;
    update->count = lap_nn_out(issue, 0)->cols;
    update->decay = issue->entry->index ? desc->weight_decay : 0;
    update->momentum = desc->momentum;
    update->beta1 = desc->beta1;
    update->beta2 = desc->beta2;
    update->epsilon = desc->epsilon;
}

/* Kernels that take more than operands. */
static void (*const constants[LAP_KERNELS])(const lap_nn_issue_t *, lap_kernel_args_t *) = {
    [LAP_KERNEL_NORM] = norm,
    [LAP_KERNEL_NORM_BACKWARD] = norm_backward,
    [LAP_KERNEL_ATTEND] = attention,
    [LAP_KERNEL_ATTEND_BACKWARD] = attention,
    [LAP_KERNEL_ATTEND_BLOCK] = block,
    [LAP_KERNEL_ATTEND_BLOCK_BACKWARD] = block,
    [LAP_KERNEL_DROPOUT] = dropout,
    [LAP_KERNEL_EMBED] = embedding,
    [LAP_KERNEL_EMBED_BACKWARD] = embedding_backward,
    [LAP_KERNEL_ROPE] = rope,
    [LAP_KERNEL_ROPE_BACKWARD] = rope,
    [LAP_KERNEL_LOGIT_STATS] = entropy,
    [LAP_KERNEL_CROSS_ENTROPY] = entropy,
    [LAP_KERNEL_LOSS] = loss,
    [LAP_KERNEL_SCALE] = scales,
    [LAP_KERNEL_SQUARES] = squares,
    [LAP_KERNEL_TOTAL] = total,
    [LAP_KERNEL_CLIP] = clip,
    [LAP_KERNEL_UPDATE] = update,
};

void lap_nn_add_constants(const lap_nn_issue_t *issue, lap_kernel_args_t *args)
{
    if (constants[issue->entry->work])
        constants[issue->entry->work](issue, args);
}
