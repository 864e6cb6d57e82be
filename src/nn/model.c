/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists what language models do besides blocks. The ranks share the vocabulary by features, as
 * lap_shard_features does it of a number that may be padded. Each embeds the tokens that it has, and zeros for the others: the sum
 * over ranks, of which a rank gets its rows, is exact. Logits are never gathered: three numbers of
 * each row and rank are enough for the loss. Runs nothing.
 */
#include "core/status.h"
#include "nn/list.h"

#define LOGITS_ALIGN 64u /* elements: rows of logits begin where GEMMs are fast */

static uint32_t private(lap_nn_list_t *list, const char *name, lap_nn_extent_t extent,
                        lap_dtype_t dtype, size_t cols)
{
    return lap_nn_add_region(list, name, LAP_NN_NONE, LAP_NN_PRIVATE, extent, dtype, 0, cols);
}

/* Columns of logits that this rank has, with those of zeros, in rows of a length that is padded. */
static uint32_t add_logits(lap_nn_list_t *list)
{
    const lap_nn_plan_t *plan = &list->plan;
    const size_t cols = lap_nn_logits_share(plan, list->rank);
    const size_t stride = (cols + LOGITS_ALIGN - 1) / LOGITS_ALIGN * LOGITS_ALIGN;
    const uint32_t room = private(list, "logits", LAP_NN_ALL_ROWS, plan->desc.dtype, stride);
    return lap_nn_add_part(list, "logits", room, 0, plan->m, cols, stride);
}

/* What comes from the stage before, or goes to it, or the same with the next: a matrix as x. */
static uint32_t add_message(lap_nn_list_t *list, const char *name)
{
    const lap_nn_desc_t *desc = &list->plan.desc;
    const uint32_t region = private(list, name, LAP_NN_OWN_ROWS, desc->dtype, desc->hidden);
    if (list->status == LAP_OK && lap_nn_list_is_stage(list))
        list->regions[region].outlives = true;
    return region;
}

/* Tokens are int32, as wide as float32. */
void lap_nn_list_model(lap_nn_list_t *list)
{
    const lap_nn_chunk_t chunk = lap_nn_list_chunk(list);
    list->tokens = lap_nn_add_region(list, "tokens", LAP_NN_NONE, LAP_NN_EXTERNAL, LAP_NN_ALL_ROWS,
                                     LAP_FLOAT32, 0, LAP_ID_COLS);
    list->ids = private(list, "ids", LAP_NN_ALL_ROWS, LAP_FLOAT32, LAP_ID_COLS);
    list->x = add_message(list, "x");
    list->dx = add_message(list, "dx");
    list->target = LAP_NN_NONE;
    if (!chunk.head) {
        list->y = add_message(list, "y");
        list->dy = add_message(list, "dy");
        return;
    }
    list->y = list->dy = add_logits(list);
    list->stats = list->all_stats =
        private(list, "logit_stats", LAP_NN_ALL_ROWS, LAP_FLOAT32, LAP_LOGIT_STATS);
    if (list->plan.nranks > 1)
        list->all_stats =
            private(list, "all_logit_stats", LAP_NN_RANKS_ROWS, LAP_FLOAT32, LAP_LOGIT_STATS);
}

void lap_nn_list_rope(lap_nn_list_t *list)
{
    const lap_nn_desc_t *desc = &list->plan.desc;
    list->rope = LAP_NN_NONE;
    if (desc->positions == LAP_POSITIONS_ROPE)
        list->rope = lap_nn_add_region(list, "rope", LAP_NN_NONE, LAP_NN_LASTING, LAP_NN_FIXED,
                                       LAP_FLOAT32, desc->seq, desc->head_dim);
}

/* A reduce-scatter or an all-gather of rows of x, with nothing to overlap it. */
static void move(lap_nn_list_t *list, const char *name, lap_op_kind_t kind, uint32_t from,
                 uint32_t to)
{
    if (list->status != LAP_OK)
        return;
    const bool scatters = kind == LAP_EXTERNAL_RS;
    const lap_nn_region_t *whole = &list->regions[scatters ? from : to];
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = kind;
    /* The capacity of all ranks that share sequences, of which this one may have less. */
    desc.m = list->plan.m * (whole->extent == LAP_NN_RANKS_ROWS ? (size_t)list->plan.nranks : 1);
    desc.cols = whole->cols;
    desc.dtype = whole->dtype;
    const lap_nn_extent_t extent = whole->extent;
    lap_nn_entry_t *entry = lap_nn_add_call(list, name, LAP_NN_NONE, (lap_tp_gemm_t)0, &desc);
    if (list->status == LAP_OK)
        list->steps[entry->index].extent = extent;
    entry->reads[LAP_NN_X] = from;
    entry->writes[LAP_NN_SECOND] = to;
}

void lap_nn_list_dropout(lap_nn_list_t *list, uint32_t b, uint32_t site, uint32_t x, uint32_t skip,
                         uint32_t out)
{
    lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_DROPOUT, "dropout", b);
    entry->reads[0] = x;
    entry->reads[1] = skip;
    entry->reads[2] = list->ids;
    entry->writes[0] = out;
    entry->index = site;
}

/* ---- forward ---- */

static void embed(lap_nn_list_t *list, uint32_t out)
{
    lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_EMBED, "embedding", LAP_NN_NONE);
    entry->reads[0] = list->ids;
    entry->reads[1] = list->embedding->master;
    entry->reads[2] = list->positions ? list->positions->master : LAP_NN_NONE;
    entry->writes[0] = out;
}

void lap_nn_list_tokens(lap_nn_list_t *list)
{
    const lap_nn_desc_t *desc = &list->plan.desc;
    const lap_nn_chunk_t chunk = lap_nn_list_chunk(list);
    const bool masks = desc->attention_dropout > 0 || desc->hidden_dropout > 0;
    if (!chunk.embedding && !chunk.head && !(masks && lap_nn_list_is_model(list)))
        return;
    lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_COPY, "tokens", LAP_NN_NONE);
    entry->reads[0] = list->tokens;
    entry->writes[0] = list->ids;
}

void lap_nn_list_embedding(lap_nn_list_t *list)
{
    const lap_nn_desc_t *desc = &list->plan.desc;
    lap_nn_list_look_weight(list, LAP_NN_NONE, list->embedding);
    lap_nn_list_look_weight(list, LAP_NN_NONE, list->positions);
    if (list->plan.nranks == 1) {
        embed(list, list->x);
    } else {
        const uint32_t part = private(list, "x_part", LAP_NN_ALL_ROWS, desc->dtype, desc->hidden);
        uint32_t own = list->x;
        if (!desc->sequence_parallel)
            own = private(list, "x_r", LAP_NN_SHARED_ROWS, desc->dtype, desc->hidden);
        embed(list, part);
        move(list, "embedding", LAP_EXTERNAL_RS, part, own);
        if (!desc->sequence_parallel)
            move(list, "embedding", LAP_EXTERNAL_AG, own, list->x);
    }
    if (desc->hidden_dropout > 0)
        lap_nn_list_dropout(list, LAP_NN_NONE, LAP_MASK_EMBEDDING, list->x, LAP_NN_NONE, list->x);
    lap_nn_list_look(list, "embedding", LAP_NN_NONE, list->x);
}

/* ---- the loss ---- */

void lap_nn_list_entropy(lap_nn_list_t *list)
{
    lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_LOGIT_STATS, "loss", LAP_NN_NONE);
    entry->reads[0] = list->y;
    entry->reads[1] = list->ids;
    entry->writes[0] = list->stats;
    if (list->plan.nranks > 1)
        move(list, "loss", LAP_EXTERNAL_AG, list->stats, list->all_stats);
    entry = lap_nn_add_entry(list, LAP_NN_CROSS_ENTROPY, "loss", LAP_NN_NONE);
    entry->reads[0] = list->y;
    entry->reads[1] = list->ids;
    entry->reads[2] = list->all_stats;
    entry->writes[0] = list->dy;
}

/* ---- backward ---- */

/* Of embeddings by their tokens, or of positions. Tied, the head's gradient is there already. */
static void embed_backward(lap_nn_list_t *list, lap_nn_weight_t *weight, uint32_t dx, uint32_t ids,
                           bool adds)
{
    lap_nn_entry_t *entry =
        lap_nn_add_entry(list, LAP_NN_EMBED_BACKWARD, weight->name, LAP_NN_NONE);
    entry->reads[0] = dx;
    entry->reads[1] = ids;
    entry->writes[0] = weight->grad;
    entry->alpha = 1 / list->plan.desc.loss_scale;
    entry->beta = adds || list->more ? 1.0f : 0.0f;
    lap_nn_list_ready(list, weight);
}

void lap_nn_list_embedding_backward(lap_nn_list_t *list, uint32_t dx)
{
    const lap_nn_desc_t *desc = &list->plan.desc;
    uint32_t full = dx;
    if (desc->hidden_dropout > 0)
        lap_nn_list_dropout(list, LAP_NN_NONE, LAP_MASK_EMBEDDING, dx, LAP_NN_NONE, dx);
    if (list->plan.nranks > 1 && desc->sequence_parallel) {
        full = private(list, "dx_full", LAP_NN_ALL_ROWS, desc->dtype, desc->hidden);
        move(list, "embedding", LAP_EXTERNAL_AG, dx, full);
    }
    if (list->positions)
        embed_backward(list, list->positions, full, LAP_NN_NONE, false);
    embed_backward(list, list->embedding, full, list->ids,
                   desc->tied && list->blocks[list->plan.nblocks - 1].shape.head);
}
