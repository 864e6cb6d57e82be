/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The step of an optimizer as a part of the list: sums of squares of all gradients and their sum
 * over ranks, the rates of the step, and the updates of masters and moments, or of this rank's part of
 * them. The copies of weights follow it: LAP_NN_REFRESH. Lists it all; runs nothing.
 */
#include "core/status.h"
#include "nn/buckets.h"
#include "nn/context.h"

#define TOTAL_FLOATS 4u /* of a rank's sum on its way: a double, and as much to be aligned */

static const size_t double_floats = sizeof(double) / sizeof(float);

/* Memory of the optimizer; `made`: each step writes it before it is read. */
static uint32_t state(lap_nn_list_t *list, const char *name, size_t rows, size_t cols, bool made)
{
    const uint32_t region = lap_nn_add_region(list, name, LAP_NN_NONE, LAP_NN_STATE, LAP_NN_FIXED,
                                              LAP_FLOAT32, rows, cols);
    if (list->status == LAP_OK)
        list->regions[region].made = made;
    return region;
}

/* ---- the norm ---- */

lap_op_desc_t lap_nn_norm_desc(int nranks)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = LAP_EXTERNAL_AG;
    desc.method = "direct";
    desc.m = (size_t)nranks;
    desc.cols = TOTAL_FLOATS;
    return desc;
}

static uint32_t list_total(lap_nn_list_t *list, uint32_t numbers, const char *name)
{
    const uint32_t total = state(list, name, 1, TOTAL_FLOATS, true);
    lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_TOTAL, "norm", LAP_NN_NONE);
    entry->reads[0] = numbers;
    entry->writes[0] = total;
    return total;
}

/* A piece of an array of all weights. */
typedef struct piece {
    size_t begin, count; /* floats */
} piece_t;

static piece_t common(piece_t a, piece_t b)
{
    const size_t begin = a.begin > b.begin ? a.begin : b.begin;
    const size_t a_end = a.begin + a.count, b_end = b.begin + b.count;
    const size_t end = a_end < b_end ? a_end : b_end;
    return (piece_t){begin, end > begin ? end - begin : 0};
}

/* Where a parameter lies among the gradients, without the zeros after it. */
static piece_t weight_piece(const lap_nn_list_t *list, uint32_t place)
{
    const lap_nn_weight_t *weight = &list->weights[list->order[place]];
    size_t at;
    (void)lap_nn_region_root(list, weight->grad, &at);
    return (piece_t){at / sizeof(float), weight->param.rows * weight->param.cols};
}

/* What this rank has of a bucket. */
static piece_t own_piece(const lap_nn_list_t *list, size_t bucket)
{
    piece_t own;
    own.count = lap_nn_bucket_shard(list->shards, bucket, list->shard, &own.begin);
    return own;
}

static uint32_t part_of(lap_nn_list_t *list, uint32_t array, size_t begin, size_t count)
{
    if (array == LAP_NN_NONE || list->status != LAP_OK)
        return array;
    return lap_nn_add_part(list, list->regions[array].name, array, begin * sizeof(float), 1, count,
                           count);
}

/* The gradient of a parameter, or this rank's part of it; LAP_NN_NONE: it has none. */
static uint32_t gradient_of(lap_nn_list_t *list, const lap_nn_weight_t *weight)
{
    if (!list->shards)
        return weight->grad;
    const lap_nn_share_t own = lap_nn_own_share(list, weight);
    return own.count > 0 ? part_of(list, list->grads, own.begin, own.count) : LAP_NN_NONE;
}

/* The sum over the ranks of a group of the sums of each, in their order. */
static uint32_t list_group(lap_nn_list_t *list, uint32_t own, int nranks, int group,
                           const char *name, const char *sum)
{
    if (nranks == 1)
        return own;
    const uint32_t all = state(list, name, (size_t)nranks, TOTAL_FLOATS, true);
    const lap_op_desc_t desc = lap_nn_norm_desc(nranks);
    lap_nn_entry_t *entry = lap_nn_add_call(list, "norm", LAP_NN_NONE, (lap_tp_gemm_t)0, &desc);
    entry->reads[LAP_NN_X] = own;
    entry->writes[LAP_NN_SECOND] = all;
    if (list->status == LAP_OK)
        list->steps[entry->index].group = group;
    return list_total(list, all, sum);
}

/*
 * The sum of squares of each parameter, then of all of this rank, then of all ranks, in order. Gradients of the last
 * places are complete first, and come first: those of later buckets may still be on their way.
 */
static uint32_t list_norm(lap_nn_list_t *list, int nranks)
{
    const uint32_t squares = state(list, "squares", list->nweights, double_floats, true);
    for (uint32_t place = list->nweights; place-- > 0 && list->status == LAP_OK;) {
        const uint32_t i = list->order[place];
        const uint32_t grad = gradient_of(list, &list->weights[i]),
                       sum = lap_nn_add_part(list, "squares", squares, i * sizeof(double), 1,
                                             double_floats, double_floats);
        lap_nn_entry_t *entry =
            lap_nn_add_entry(list, LAP_NN_SQUARES, list->weights[i].name, LAP_NN_NONE);
        entry->reads[0] = grad;
        entry->writes[0] = sum;
        entry->index = i;
    }
    const uint32_t own = list_total(list, squares, "squares_r"),
                   layers = list_group(list, own, nranks, LAP_NN_BY_LAYERS, "squares_ranks",
                                       "squares_all");
    return list_group(list, layers, (int)list->plan.desc.shards, LAP_NN_BY_SHARDS, "squares_shards",
                      "squares_sum");
}

/* ---- updates ---- */

/*
 * Of a piece of the gradients: masters and moments lie from `at` on. It may be empty: all ranks have as many
 * entries.
 */
static void list_update(lap_nn_list_t *list, piece_t piece, size_t at, bool decays)
{
    const uint32_t grad = part_of(list, list->grads, piece.begin, piece.count),
                   master = part_of(list, list->masters, at, piece.count),
                   first = part_of(list, list->moments[0], at, piece.count),
                   second = part_of(list, list->moments[1], at, piece.count);
    lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_UPDATE, "update", LAP_NN_NONE);
    entry->index = decays;
    entry->reads[0] = grad;
    entry->reads[1] = list->rates;
    entry->reads[2] = entry->writes[0] = master;
    entry->reads[3] = entry->writes[1] = first;
    entry->reads[4] = entry->writes[2] = second;
}

/*
 * Parameters that lie one after the other and are treated alike are one, with the zeros between. `own`: what
 * of them this rank has, of which masters and moments lie from `at` on.
 */
static void list_updates(lap_nn_list_t *list, uint32_t first, uint32_t last, piece_t own, size_t at)
{
    piece_t run = weight_piece(list, first);
    for (uint32_t place = first; place <= last && list->status == LAP_OK; place++) {
        const piece_t piece = weight_piece(list, place);
        const int vector = list->weights[list->order[place]].param.vector;
        run.count = piece.begin + piece.count - run.begin;
        if (place < last && list->weights[list->order[place + 1]].param.vector == vector)
            continue;
        const piece_t mine = common(run, own);
        const size_t before = mine.count > 0 ? mine.begin - own.begin : 0;
        list_update(list, mine, at + before, !vector);
        if (place < last)
            run = weight_piece(list, place + 1);
    }
}

/* Of this rank's part of all buckets; those that the next forward needs first, first. */
static void list_shards(lap_nn_list_t *list)
{
    lap_nn_buckets_t *shards = list->shards;
    for (size_t i = shards->count; i-- > 0;) {
        list_updates(list, shards->list[i].first, shards->list[i].last, own_piece(list, i),
                     lap_nn_shard_begin(shards, i, list->shard));
        shards->list[i].updated = list->nentries;
    }
}

/* ---- all of it ---- */

lap_status_t lap_nn_list_step(lap_nn_list_t *list, const lap_optimizer_desc_t *desc, int nranks)
{
    const size_t count = lap_nn_optimized(list);
    uint32_t total = LAP_NN_NONE;
    LAP_TRY(list->status);
    list->own_regions = list->nregions;
    list->own_steps = list->nsteps;
    list->moments[0] = state(list, "first_moments", 1, count, false);
    list->moments[1] =
        desc->kind == LAP_ADAMW ? state(list, "second_moments", 1, count, false) : LAP_NN_NONE;
    if (desc->clip_norm > 0)
        total = list_norm(list, nranks);
    list->rates = state(list, "rates", 1, sizeof(lap_rates_t) / sizeof(float), true);
    lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_CLIP, "clip", LAP_NN_NONE);
    entry->reads[0] = total;
    entry->writes[0] = list->rates;
    if (list->shards)
        list_shards(list);
    else
        list_updates(list, 0, list->nweights - 1, (piece_t){0, count}, 0);
    LAP_TRY(list->status);
    list->parts[LAP_NN_LIST_PARTS] = list->nentries;
    lap_nn_lay_out_state(list);
    return LAP_OK;
}

void lap_nn_list_drop_step(lap_nn_list_t *list)
{
    list->status = LAP_OK;
    list->nregions = list->own_regions;
    list->nsteps = list->own_steps;
    list->nentries = list->parts[LAP_NN_LIST_PARTS] = list->parts[LAP_NN_STEP];
    list->bytes[LAP_NN_STATE] = 0;
}
