/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/context.h"

#include "core/status.h"
#include "nn/nn_fields.h"
#include "overlap/overlap.h"

/* ---- descriptions ---- */

/*
 * The largest number of ranks below cp that can exchange heads, and leave a ring of equal groups; all of them where only
 * that can be: their ring is one group.
 */
static size_t choose_heads(const lap_nn_desc_t *desc, size_t kv_heads)
{
    for (size_t n = desc->cp - 1; n > 1; n--)
        if (desc->cp % n == 0 && kv_heads % n == 0)
            return n;
    return kv_heads % desc->cp == 0 ? desc->cp : 0;
}

/* Every rank of a group has as many heads. */
static lap_status_t check_heads(const lap_nn_desc_t *desc, int nranks)
{
    const size_t here = desc->heads / (size_t)nranks, kv_here = desc->kv_heads / (size_t)nranks;
    const bool queries = here % desc->cp_a2a != 0;
    if (!queries && kv_here % desc->cp_a2a == 0)
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID,
                     "cp_comm is %s, where %zu ranks exchange heads, but a rank has %zu %s: "
                     "expected a multiple of %zu, or p2p or all_gather",
                     lap_cp_comm_names[desc->cp_comm], desc->cp_a2a, queries ? here : kv_here,
                     queries ? "heads" : "kv_heads", desc->cp_a2a);
}

static lap_status_t check_sizes(lap_nn_desc_t *desc, int nranks)
{
    const size_t kv_here = desc->kv_heads / (size_t)nranks;
    if (desc->cp_comm == LAP_CP_P2P || desc->cp_comm == LAP_CP_ALL_GATHER)
        desc->cp_a2a = 1;
    else if (desc->cp_comm == LAP_CP_A2A)
        desc->cp_a2a = desc->cp;
    else if (desc->cp_a2a == 0)
        desc->cp_a2a = choose_heads(desc, kv_here);
    if (desc->cp_a2a == 0)
        return lap_error(LAP_ERR_INVALID,
                         "cp_comm is a2a+p2p with cp %zu and %zu kv_heads on a rank: expected a "
                         "number of ranks above 1 that divides both, to exchange heads",
                         desc->cp, kv_here);
    if (desc->cp % desc->cp_a2a != 0)
        return lap_error(LAP_ERR_INVALID, "cp_a2a is %zu, expected a divisor of cp, which is %zu",
                         desc->cp_a2a, desc->cp);
    return check_heads(desc, nranks);
}

lap_status_t lap_nn_context_check(lap_nn_desc_t *desc, int nranks)
{
    if (desc->cp <= 1) {
        desc->cp = desc->cp_a2a = 1;
        return LAP_OK;
    }
    if (desc->kind != LAP_NN_MODEL)
        return lap_error(LAP_ERR_INVALID,
                         "cp is %zu with %s, expected 1: only models share sequences among ranks",
                         desc->cp, lap_nn_kind_name(desc->kind));
    if (desc->cp > LAP_SIZE_MOST || desc->seq < desc->cp)
        return lap_error(LAP_ERR_INVALID,
                         "seq is %zu, expected at least a token for each of the %zu ranks of cp",
                         desc->seq, desc->cp);
    return check_sizes(desc, nranks);
}

lap_status_t lap_nn_shards_check(lap_nn_desc_t *desc)
{
    if (desc->fp8_params && desc->fp8 == LAP_FP8_NONE)
        return lap_error(LAP_ERR_INVALID,
                         "fp8_params is %d with fp8 none, expected fp8, whose weights are gathered",
                         desc->fp8_params);
    if (desc->shards <= 1) { /* nothing is gathered: a description serves any number of ranks */
        desc->shards = 1;
        desc->fp8_params = 0;
        return LAP_OK;
    }
    if (desc->shards > LAP_SIZE_MOST || desc->shards % desc->cp != 0)
        return lap_error(LAP_ERR_INVALID,
                         "shards is %zu, expected a multiple of the %zu ranks that share sequences",
                         desc->shards, desc->cp);
    return LAP_OK;
}

/* ---- tokens ---- */

size_t lap_nn_group_tokens(const lap_nn_desc_t *desc, size_t seq, size_t group)
{
    return lap_shard(seq, (int)lap_nn_ring(desc), (int)group, NULL);
}

size_t lap_nn_context_tokens(const lap_nn_desc_t *desc, size_t seq, size_t rank)
{
    return lap_shard(lap_nn_group_tokens(desc, seq, rank / desc->cp_a2a), (int)desc->cp_a2a,
                     (int)(rank % desc->cp_a2a), NULL);
}

/* Of the tokens of a rank, those in the first half of the sequence. */
static size_t early_tokens(const lap_nn_desc_t *desc, size_t seq, size_t rank)
{
    return (lap_nn_context_tokens(desc, seq, rank) + 1) / 2;
}

lap_halves_t lap_nn_context_halves(const lap_nn_desc_t *desc, size_t seq, size_t rank, size_t count)
{
    lap_halves_t halves = {0, 0, 0};
    for (size_t r = 0; r < desc->cp; r++) {
        const size_t early = early_tokens(desc, seq, r);
        halves.first += r < rank ? early : 0;
        halves.split += r >= rank && r < rank + count ? early : 0;
        halves.second += early;
        if (r >= rank + count)
            halves.second += lap_nn_context_tokens(desc, seq, r) - early;
    }
    return halves;
}

size_t lap_nn_tokens(const lap_nn_list_t *list, size_t seq)
{
    return lap_nn_context_tokens(&list->plan.desc, seq, (size_t)list->cp_rank);
}

lap_halves_t lap_nn_halves(const lap_nn_list_t *list, size_t seq)
{
    return lap_nn_context_halves(&list->plan.desc, seq, (size_t)list->cp_rank, 1);
}

/* ---- groups ---- */

lap_nn_slice_t lap_nn_slice(const lap_nn_list_t *list, int group)
{
    const int heads = (int)list->plan.desc.cp_a2a, nranks = list->plan.nranks;
    if (group == LAP_NN_BY_RING)
        return (lap_nn_slice_t){(int)lap_nn_ring(&list->plan.desc), list->cp_rank / heads,
                                heads * nranks};
    if (group == LAP_NN_BY_SHARDS)
        return (lap_nn_slice_t){(int)list->plan.desc.shards, list->shard, nranks};
    if (group == LAP_NN_BY_HEADS)
        return (lap_nn_slice_t){heads, list->cp_rank % heads, nranks};
    return (lap_nn_slice_t){nranks, list->rank, 1};
}

int lap_nn_list_place(const lap_nn_list_t *list)
{
    const int before = list->plan.desc.shards > 1 ? list->shard : list->cp_rank;
    return before * list->plan.nranks + list->rank;
}

/* Blocks of attention use the tokens of one group of what has those of all. */
size_t lap_nn_entry_rows(const lap_nn_list_t *list, const lap_nn_entry_t *entry, uint32_t region,
                         size_t seq, size_t *first_p)
{
    const bool block =
        entry->work == LAP_NN_ATTEND_BLOCK || entry->work == LAP_NN_ATTEND_BLOCK_BACKWARD;
    const int ring = (int)lap_nn_ring(&list->plan.desc);
    *first_p = 0;
    if (!block || list->regions[region].extent != LAP_NN_SEQ_TOKENS || (int)entry->index == ring)
        return lap_nn_region_rows(list, region, seq);
    return lap_shard(seq, ring, (int)entry->index, first_p);
}

/* ---- lists ---- */

enum { FORWARD, BACKWARD };

static bool is_ring(const lap_nn_list_t *list)
{
    return lap_nn_ring(&list->plan.desc) > 1;
}

/* Columns of the queries and of the keys and values of attention here. */
static size_t query_cols(const lap_nn_list_t *list)
{
    const lap_nn_desc_t *desc = &list->plan.desc;
    return desc->heads / (size_t)list->plan.nranks / desc->cp_a2a * desc->head_dim;
}

static size_t key_cols(const lap_nn_list_t *list)
{
    const lap_nn_desc_t *desc = &list->plan.desc;
    return 2 * (desc->kv_heads / (size_t)list->plan.nranks / desc->cp_a2a) * desc->head_dim;
}

static uint32_t add(lap_nn_list_t *list, const char *name, uint32_t b, lap_nn_extent_t extent,
                    lap_dtype_t dtype, size_t cols)
{
    return lap_nn_add_region(list, name, b, LAP_NN_PRIVATE, extent, dtype, 0, cols);
}

/* A matrix of rows as one of tokens: all rows of a token are one. */
static uint32_t by_tokens(lap_nn_list_t *list, uint32_t rows, lap_nn_extent_t extent)
{
    const size_t batch = list->plan.desc.batch;
    if (list->status != LAP_OK)
        return 0;
    const lap_nn_region_t whole = list->regions[rows];
    const uint32_t view = lap_nn_add_part(list, whole.name, rows, 0, whole.rows / batch,
                                          whole.cols * batch, whole.cols * batch);
    if (list->status == LAP_OK && !list->same_regions)
        list->regions[view].extent = extent;
    return view;
}

/* Columns of a matrix. */
static uint32_t columns(lap_nn_list_t *list, uint32_t matrix, size_t first, size_t cols)
{
    if (list->status != LAP_OK)
        return 0;
    const lap_nn_region_t whole = list->regions[matrix];
    return lap_nn_add_part(list, whole.name, matrix, first * lap_dtype_size(whole.dtype),
                           whole.rows, cols, whole.stride);
}

/* What travels: all-gathers of keys and values, reduce-scatters of their gradients. */
static void move(lap_nn_list_t *list, const char *name, lap_op_kind_t kind, int group,
                 uint32_t from, uint32_t to)
{
    if (list->status != LAP_OK)
        return;
    const lap_nn_desc_t *desc = &list->plan.desc;
    const bool gathers = kind == LAP_EXTERNAL_AG;
    lap_op_desc_t call = LAP_OP_DESC_INIT;
    const lap_nn_region_t *whole = &list->regions[gathers ? to : from];
    const bool heads = group == LAP_NN_BY_HEADS;
    call.kind = kind;
    call.m = heads ? lap_nn_group_tokens(desc, desc->seq, 0) : desc->seq; /* of all groups */
    call.alltoall = heads;
    call.aside = desc->cp_overlap;
    call.cols = whole->cols;
    call.dtype = whole->dtype;
    call.method = !desc->cp_overlap                             ? "serial"
                  : heads || desc->cp_comm == LAP_CP_ALL_GATHER ? "direct"
                                                                : "ring";
    const lap_nn_extent_t extent = whole->extent;
    lap_nn_entry_t *entry = lap_nn_add_call(list, name, LAP_NN_NONE, (lap_tp_gemm_t)0, &call);
    if (list->status == LAP_OK) {
        list->steps[entry->index].extent = extent;
        list->steps[entry->index].group = group;
    }
    entry->reads[LAP_NN_X] = from;
    entry->writes[LAP_NN_SECOND] = to;
}

static void convert(lap_nn_list_t *list, uint32_t b, uint32_t from, uint32_t to)
{
    lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_CONVERT, "attention", b);
    entry->reads[0] = from;
    entry->writes[0] = to;
    entry->index = list->nreductions++;
}

static void reorder(lap_nn_list_t *list, uint32_t b, uint32_t from, uint32_t to, bool back)
{
    lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_REORDER, "attention", b);
    entry->reads[0] = from;
    entry->writes[0] = to;
    entry->index = back;
}

static uint32_t scratch(lap_nn_list_t *list, uint32_t b)
{
    const lap_nn_desc_t *desc = &list->plan.desc;
    const size_t shared = (size_t)list->plan.nranks * desc->cp_a2a;
    const size_t all = desc->cp_comm == LAP_CP_ALL_GATHER ? 1 : lap_nn_ring(desc);
    const lap_attention_t attention = {
        .dtype = desc->dtype,
        .seq = lap_nn_group_tokens(desc, desc->seq, 0),
        .keys = lap_shard(desc->seq, (int)all, 0, NULL),
        .batch = desc->batch,
        .heads = desc->heads / shared,
        .kv_heads = desc->kv_heads / shared,
        .dim = desc->head_dim,
    };
    return lap_nn_add_region(list, "scratch", b, LAP_NN_PRIVATE, LAP_NN_FIXED, LAP_FLOAT8_E4M3, 1,
                             list->kernels->attention_scratch(&attention));
}

/* ---- heads against tokens ---- */

static bool exchanges(const lap_nn_list_t *list)
{
    return list->plan.desc.cp_a2a > 1;
}

static void pack(lap_nn_list_t *list, uint32_t b, uint32_t from, uint32_t to, bool back)
{
    lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_PACK, "heads", b);
    entry->reads[0] = from;
    entry->writes[0] = to;
    entry->index = back;
}

/* Own tokens of all heads become the tokens of all ranks of some heads, in the order of positions. */
static void take_tokens(lap_nn_list_t *list, uint32_t b, uint32_t from, uint32_t to, size_t cols)
{
    const lap_dtype_t dtype = list->plan.desc.dtype;
    const uint32_t parts = add(list, "heads_of_ranks", b, LAP_NN_PARTS_ROWS, dtype, cols);
    const uint32_t ranks = add(list, "tokens_of_ranks", b, LAP_NN_GROUP_ROWS, dtype, cols);
    const uint32_t sent = by_tokens(list, parts, LAP_NN_PARTS_TOKENS);
    const uint32_t come = by_tokens(list, ranks, LAP_NN_GROUP_TOKENS);
    const uint32_t sorted = by_tokens(list, to, LAP_NN_GROUP_TOKENS);
    pack(list, b, from, parts, false);
    move(list, "heads", LAP_EXTERNAL_AG, LAP_NN_BY_HEADS, sent, come);
    reorder(list, b, come, sorted, false);
}

/* And back. */
static void take_heads(lap_nn_list_t *list, uint32_t b, uint32_t from, uint32_t to, size_t cols)
{
    const lap_dtype_t dtype = list->plan.desc.dtype;
    const uint32_t ranks = add(list, "tokens_of_ranks", b, LAP_NN_GROUP_ROWS, dtype, cols);
    const uint32_t parts = add(list, "heads_of_ranks", b, LAP_NN_PARTS_ROWS, dtype, cols);
    const uint32_t sorted = by_tokens(list, from, LAP_NN_GROUP_TOKENS);
    const uint32_t sent = by_tokens(list, ranks, LAP_NN_GROUP_TOKENS);
    const uint32_t come = by_tokens(list, parts, LAP_NN_PARTS_TOKENS);
    reorder(list, b, sorted, sent, true);
    move(list, "heads", LAP_EXTERNAL_RS, LAP_NN_BY_HEADS, sent, come);
    pack(list, b, parts, to, true);
}

/* ---- keys ---- */

static uint32_t add_group(lap_nn_list_t *list, const char *name, uint32_t b, size_t cols)
{
    return add(list, name, b, LAP_NN_GROUP_ROWS, list->plan.desc.dtype, cols);
}

void lap_nn_list_context_regions(lap_nn_list_t *list, uint32_t b, bool keeps)
{
    lap_nn_block_t *block = &list->blocks[b];
    const lap_nn_desc_t *desc = &list->plan.desc;
    const size_t queries = query_cols(list), keys = key_cols(list);
    for (int when = FORWARD; when <= BACKWARD; when++) {
        const bool again = when == BACKWARD && keeps; /* as forward left it */
        block->qkv[when] = !exchanges(list) ? block->pre[when]
                           : again          ? block->qkv[FORWARD]
                                            : add_group(list, "qkv", b, queries + keys);
        block->out[when] = !exchanges(list) ? block->mid[when]
                           : again          ? block->out[FORWARD]
                                            : add_group(list, "attention", b, queries);
        if (!is_ring(list))
            continue;
        block->kv[when] = add_group(list, "kv", b, keys);
        block->kv_all[when] =
            add(list, "kv_all", b, LAP_NN_SEQ_TOKENS, desc->dtype, desc->batch * keys);
    }
}

/* Keys and values of all groups, in the order of groups, on their way. */
void lap_nn_list_context_keys(lap_nn_list_t *list, uint32_t b, int when)
{
    const lap_nn_block_t *block = &list->blocks[b];
    const size_t cols = query_cols(list) + key_cols(list);
    if (exchanges(list) && (when == FORWARD || block->qkv[BACKWARD] != block->qkv[FORWARD]))
        take_tokens(list, b, block->pre[when], block->qkv[when], cols);
    if (!is_ring(list))
        return;
    const uint32_t own = columns(list, block->qkv[when], query_cols(list), key_cols(list));
    const uint32_t sent = by_tokens(list, block->kv[when], LAP_NN_GROUP_TOKENS);
    lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_COPY, "keys and values", b);
    entry->reads[0] = own;
    entry->writes[0] = block->kv[when];
    move(list, "keys and values", LAP_EXTERNAL_AG, LAP_NN_BY_RING, sent, block->kv_all[when]);
}

/* The group whose keys come as number `i`, from 1 on, around a ring. */
static uint32_t group_at(const lap_nn_list_t *list, size_t i)
{
    const size_t ring = lap_nn_ring(&list->plan.desc);
    return (uint32_t)(((size_t)lap_nn_slice(list, LAP_NN_BY_RING).rank + ring - i) % ring);
}

static uint32_t own_group(const lap_nn_list_t *list)
{
    return group_at(list, 0);
}

/* All keys in the order of their positions. */
static uint32_t add_sorted(lap_nn_list_t *list, uint32_t b, const char *name, lap_dtype_t dtype)
{
    return add(list, name, b, LAP_NN_SEQ_TOKENS, dtype, list->plan.desc.batch * key_cols(list));
}

static void attend(lap_nn_list_t *list, uint32_t b, int when, uint32_t group, uint32_t keys,
                   uint32_t sum, bool merges)
{
    const lap_nn_block_t *block = &list->blocks[b];
    const uint32_t room = scratch(list, b);
    lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_ATTEND_BLOCK, "attention", b);
    entry->reads[0] = block->qkv[when];
    entry->reads[1] = keys;
    entry->reads[2] = merges ? block->lse : LAP_NN_NONE;
    entry->reads[3] = lap_nn_attention_ids(list);
    entry->writes[0] = sum;
    entry->writes[1] = block->lse;
    entry->writes[2] = room;
    entry->index = group;
    entry->beta = merges ? 1.0f : 0.0f;
}

/*
 * What is being sent lives as long as the attention that runs meanwhile, whose latest entry is the last of the
 * list: if what that writes took its place, it would have to wait until all of it has left.
 */
static void keep(lap_nn_list_t *list, uint32_t region)
{
    if (list->status == LAP_OK)
        list->entries[list->nentries - 1].keeps = region;
}

/* To all tokens, which are here. */
static void attend_whole(lap_nn_list_t *list, uint32_t b, int when)
{
    const lap_nn_block_t *block = &list->blocks[b];
    const uint32_t room = scratch(list, b);
    lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_ATTEND, "attention", b);
    entry->reads[0] = block->qkv[when];
    entry->reads[1] = lap_nn_attention_ids(list);
    entry->writes[0] = block->out[when];
    entry->writes[1] = block->lse;
    entry->writes[2] = room;
}

/* Of the ring: the own keys first, while those of others travel, and then these as they come. */
static void attend_ring(lap_nn_list_t *list, uint32_t b, int when)
{
    const lap_nn_block_t *block = &list->blocks[b];
    const lap_nn_desc_t *desc = &list->plan.desc;
    const size_t ring = lap_nn_ring(desc);
    const uint32_t sum =
        add(list, "attention_sum", b, LAP_NN_GROUP_ROWS, LAP_FLOAT32, query_cols(list));
    if (desc->cp_comm == LAP_CP_ALL_GATHER) {
        const uint32_t sorted = add_sorted(list, b, "kv_sorted", desc->dtype);
        reorder(list, b, block->kv_all[when], sorted, false);
        attend(list, b, when, (uint32_t)ring, sorted, sum, false);
    } else {
        attend(list, b, when, own_group(list), LAP_NN_NONE, sum, false);
        for (size_t i = 1; i < ring; i++)
            attend(list, b, when, group_at(list, i), block->kv_all[when], sum, true);
        keep(list, block->kv[when]);
    }
    convert(list, b, sum, block->out[when]);
}

void lap_nn_list_context_forward(lap_nn_list_t *list, uint32_t b, int when)
{
    const lap_nn_block_t *block = &list->blocks[b];
    if (is_ring(list))
        attend_ring(list, b, when);
    else
        attend_whole(list, b, when);
    if (exchanges(list))
        take_heads(list, b, block->out[when], block->mid[when], query_cols(list));
}

/* dq and the gradients of a block of keys. */
static void turn(lap_nn_list_t *list, uint32_t b, uint32_t group, uint32_t keys, uint32_t dout,
                 uint32_t dq, uint32_t dkeys, bool merges)
{
    const lap_nn_block_t *block = &list->blocks[b];
    const uint32_t room = scratch(list, b);
    lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_ATTEND_BLOCK_BACKWARD, "attention", b);
    entry->reads[0] = block->qkv[BACKWARD];
    entry->reads[1] = keys;
    entry->reads[2] = dout;
    entry->reads[3] = block->out[BACKWARD];
    entry->reads[4] = block->lse;
    entry->reads[5] = lap_nn_attention_ids(list);
    entry->writes[0] = dq;
    entry->writes[1] = dkeys;
    entry->writes[2] = room;
    entry->index = group;
    entry->beta = merges ? 1.0f : 0.0f;
}

static void turn_whole(lap_nn_list_t *list, uint32_t b, uint32_t dout, uint32_t dqkv)
{
    const lap_nn_block_t *block = &list->blocks[b];
    const uint32_t room = scratch(list, b);
    lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_ATTEND_BACKWARD, "attention", b);
    entry->reads[0] = block->qkv[BACKWARD];
    entry->reads[1] = dout;
    entry->reads[2] = block->out[BACKWARD];
    entry->reads[3] = block->lse;
    entry->reads[4] = lap_nn_attention_ids(list);
    entry->writes[0] = dqkv;
    entry->writes[1] = room;
}

/*
 * Gradients of the keys of others leave as soon as they are made, in the order in which their keys
 * come; the own block is the last, and hides the last of them.
 */
static void turn_ring(lap_nn_list_t *list, uint32_t b, uint32_t dout, uint32_t dqkv)
{
    const lap_nn_block_t *block = &list->blocks[b];
    const lap_nn_desc_t *desc = &list->plan.desc;
    const size_t ring = lap_nn_ring(desc), keys = key_cols(list), queries = query_cols(list);
    const uint32_t dq = add(list, "dq", b, LAP_NN_GROUP_ROWS, LAP_FLOAT32, queries);
    const uint32_t dkv_all = add_sorted(list, b, "dkv_all", LAP_FLOAT32);
    const uint32_t dkv = add(list, "dkv", b, LAP_NN_GROUP_ROWS, LAP_FLOAT32, keys);
    const uint32_t summed = by_tokens(list, dkv, LAP_NN_GROUP_TOKENS);
    const uint32_t dq_to = columns(list, dqkv, 0, queries);
    const uint32_t dkv_to = columns(list, dqkv, queries, keys);
    if (desc->cp_comm == LAP_CP_ALL_GATHER) {
        const uint32_t sorted = add_sorted(list, b, "kv_sorted", desc->dtype);
        const uint32_t dsorted = add_sorted(list, b, "dkv_sorted", LAP_FLOAT32);
        reorder(list, b, block->kv_all[BACKWARD], sorted, false);
        turn(list, b, (uint32_t)ring, sorted, dout, dq, dsorted, false);
        reorder(list, b, dsorted, dkv_all, true);
    } else {
        for (size_t i = 1; i < ring; i++)
            turn(list, b, group_at(list, i), block->kv_all[BACKWARD], dout, dq, dkv_all, i > 1);
        turn(list, b, own_group(list), LAP_NN_NONE, dout, dq, dkv_all, true);
        keep(list, block->kv[BACKWARD]);
    }
    move(list, "gradients of keys", LAP_EXTERNAL_RS, LAP_NN_BY_RING, dkv_all, summed);
    convert(list, b, dq, dq_to);
    convert(list, b, dkv, dkv_to);
}

void lap_nn_list_context_backward(lap_nn_list_t *list, uint32_t b, uint32_t dmid, uint32_t dpre)
{
    const size_t queries = query_cols(list), cols = queries + key_cols(list);
    uint32_t dout = dmid, dqkv = dpre;
    if (exchanges(list)) {
        dout = add_group(list, "dattention", b, queries);
        dqkv = add_group(list, "dqkv", b, cols);
        take_tokens(list, b, dmid, dout, queries);
    }
    if (is_ring(list))
        turn_ring(list, b, dout, dqkv);
    else
        turn_whole(list, b, dout, dqkv);
    if (exchanges(list))
        take_heads(list, b, dqkv, dpre, cols);
}
