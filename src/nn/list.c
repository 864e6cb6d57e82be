/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of a pass: its regions and entries, in the order of forward, loss, backward and step. Where in
 * memory regions lie is in list_memory.c.
 */
#include "nn/list.h"

#include "core/status.h"
#include "nn/buckets.h"
#include "nn/context.h"
#include "util/alloc.h"

#define MOST_ELEMENTS ((size_t)1 << 52) /* of a region: sums of bytes are in the range of size_t */

/* ---- adding ---- */

/* Makes room for one more element; NULL, with the failure in list->status, when there is none. */
static void *grow(lap_nn_list_t *list, void *array, uint32_t count, size_t *room_p, size_t size)
{
    if (list->status != LAP_OK)
        return NULL;
    void *grown = lap_grow(array, count, room_p, size);
    if (!grown)
        list->status = lap_error(LAP_ERR_NO_MEMORY, "no memory for a pass through %zu layers",
                                 list->plan.desc.layers);
    return grown;
}

static uint32_t add_region(lap_nn_list_t *list, const lap_nn_region_t *region)
{
    if (list->same_regions)
        return list->next_region++;
    lap_nn_region_t *regions =
        grow(list, list->regions, list->nregions, &list->regions_room, sizeof(*regions));
    if (!regions)
        return 0;
    list->regions = regions;
    regions[list->nregions] = *region;
    return list->nregions++;
}

size_t lap_nn_region_rows(const lap_nn_list_t *list, uint32_t region, size_t seq)
{
    const lap_nn_desc_t *desc = &list->plan.desc;
    const size_t m = lap_nn_tokens(list, seq) * desc->batch;
    const size_t group = lap_nn_group_tokens(desc, seq, (size_t)list->cp_rank / desc->cp_a2a);
    switch (list->regions[region].extent) {
    case LAP_NN_ALL_ROWS:
        return m;
    case LAP_NN_OWN_ROWS:
        return list->plan.desc.sequence_parallel ? lap_shard(m, list->plan.nranks, list->rank, NULL)
                                                 : m;
    case LAP_NN_SHARED_ROWS:
        return lap_shard(m, list->plan.nranks, list->rank, NULL);
    case LAP_NN_RANKS_ROWS:
        return m * (size_t)list->plan.nranks;
    case LAP_NN_GROUP_ROWS:
        return group * desc->batch;
    case LAP_NN_GROUP_TOKENS:
        return group;
    case LAP_NN_SEQ_TOKENS:
        return seq;
    case LAP_NN_PARTS_ROWS:
        return m * desc->cp_a2a;
    case LAP_NN_PARTS_TOKENS:
        return m / desc->batch * desc->cp_a2a;
    default:
        return list->regions[region].rows;
    }
}

static void check_size(lap_nn_list_t *list, const lap_nn_region_t *region)
{
    if (region->rows == 0 || region->cols <= MOST_ELEMENTS / region->rows)
        return;
    list->refused =
        (double)region->rows * (double)region->cols * (double)lap_dtype_size(region->dtype);
    list->status = lap_error(LAP_ERR_NO_MEMORY,
                             "this needs more than %.4g GiB of memory: %s is a matrix of "
                             "[%zu, %zu], expected at most %zu elements",
                             list->refused / (1 << 30), region->name, region->rows, region->cols,
                             MOST_ELEMENTS);
}

uint32_t lap_nn_add_region(lap_nn_list_t *list, const char *name, uint32_t block,
                           lap_nn_memory_t memory, lap_nn_extent_t extent, lap_dtype_t dtype,
                           size_t rows, size_t cols)
{
    const lap_nn_region_t region = {
        .name = name,
        .block = block,
        .memory = memory,
        .extent = extent,
        .dtype = dtype,
        .rows = rows,
        .cols = cols,
        .stride = cols,
        .part_of = LAP_NN_NONE,
        .scale = LAP_NN_NONE,
        .amax = LAP_NN_NONE,
        .slot = lap_nn_list_is_stage(list) && memory != LAP_NN_LASTING ? list->slot : LAP_NN_NONE,
        .first = LAP_NN_NONE,
    };
    const uint32_t index = add_region(list, &region);
    if (list->status != LAP_OK || list->same_regions)
        return index;
    lap_nn_region_t *added = &list->regions[index];
    added->rows = lap_nn_region_rows(list, index, list->plan.desc.seq);
    check_size(list, added);
    return index;
}

uint32_t lap_nn_add_part(lap_nn_list_t *list, const char *name, uint32_t part_of, size_t offset,
                         size_t rows, size_t cols, size_t stride)
{
    if (list->status != LAP_OK)
        return 0;
    lap_nn_region_t part = list->regions[part_of];
    part.name = name;
    part.part_of = part_of;
    part.offset = offset;
    part.rows = rows;
    part.cols = cols;
    part.stride = stride;
    check_size(list, &part);
    return add_region(list, &part);
}

uint32_t lap_nn_region_root(const lap_nn_list_t *list, uint32_t region, size_t *offset_p)
{
    *offset_p = 0;
    for (; list->regions[region].part_of != LAP_NN_NONE; region = list->regions[region].part_of)
        *offset_p += list->regions[region].offset;
    return region;
}

lap_nn_entry_t *lap_nn_add_entry(lap_nn_list_t *list, lap_nn_work_t work, const char *name,
                                 uint32_t block)
{
    lap_nn_entry_t *entries =
        grow(list, list->entries, list->nentries, &list->entries_room, sizeof(*entries));
    if (!entries)
        return &list->spare;
    list->entries = entries;
    lap_nn_entry_t *entry = &entries[list->nentries++];
    *entry = (lap_nn_entry_t){
        .work = work, .name = name, .block = block, .keeps = LAP_NN_NONE, .alpha = 1};
    for (int i = 0; i < LAP_NN_READS; i++)
        entry->reads[i] = LAP_NN_NONE;
    for (int i = 0; i < LAP_NN_WRITES; i++)
        entry->writes[i] = LAP_NN_NONE;
    return entry;
}

lap_nn_entry_t *lap_nn_add_call(lap_nn_list_t *list, const char *name, uint32_t block,
                                lap_tp_gemm_t gemm, const lap_op_desc_t *desc)
{
    lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_OPERATOR, name, block);
    if (list->same_steps) {
        entry->index = list->next_step++;
        return entry;
    }
    lap_nn_step_t *steps = grow(list, list->steps, list->nsteps, &list->steps_room, sizeof(*steps));
    if (!steps)
        return entry;
    list->steps = steps;
    steps[list->nsteps] =
        (lap_nn_step_t){.block = block,
                        .gemm = gemm,
                        .desc = *desc,
                        .extent = block == LAP_NN_NONE ? LAP_NN_FIXED : LAP_NN_ALL_ROWS};
    entry->index = list->nsteps++;
    return entry;
}

/* ---- what is not in blocks ---- */

/* The caller's matrices: as lap_nn_input and lap_nn_output have them. */
static void list_external(lap_nn_list_t *list)
{
    if (lap_nn_list_is_model(list)) {
        lap_nn_list_model(list);
        return;
    }
    const lap_nn_shape_t shape = lap_nn_plan_shape(&list->plan, 0);
    const lap_dtype_t dtype = list->plan.desc.dtype;
    const lap_nn_extent_t in = shape.column ? LAP_NN_OWN_ROWS : LAP_NN_ALL_ROWS;
    const lap_nn_extent_t out = shape.row ? LAP_NN_OWN_ROWS : LAP_NN_ALL_ROWS;
    const size_t width =
        shape.column ? shape.width : lap_nn_mid_share(&list->plan, &shape, list->rank);
    const size_t features =
        shape.row ? shape.out : lap_nn_pre_share(&list->plan, &shape, list->rank);
    struct {
        uint32_t *region;
        const char *name;
        lap_nn_extent_t extent;
        size_t cols;
    } all[] = {{&list->x, "x", in, width},
               {&list->y, "y", out, features},
               {&list->dy, "dy", out, features},
               {&list->dx, "dx", in, width},
               {&list->target, "target", out, features}};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        *all[i].region = lap_nn_add_region(list, all[i].name, LAP_NN_NONE, LAP_NN_EXTERNAL,
                                           all[i].extent, dtype, 0, all[i].cols);
}

static void list_loss(lap_nn_list_t *list)
{
    if (lap_nn_list_is_model(list)) {
        lap_nn_list_entropy(list);
        return;
    }
    lap_nn_entry_t *entry = lap_nn_add_entry(list, LAP_NN_LOSS, "loss", LAP_NN_NONE);
    entry->reads[0] = list->y;
    entry->reads[1] = list->target;
    entry->writes[0] = list->dy;
}

/* Whether a weight is one of the norms of the blocks being listed. */
static bool is_listed(const lap_nn_list_t *list, const lap_nn_weight_t *weight)
{
    bool found = false;
    for (uint32_t b = list->first_block; b < list->end_block && !found; b++)
        found = weight == list->blocks[b].gamma || weight == list->blocks[b].beta;
    return found;
}

/* The gradients of norms are summed over ranks by a reduce-scatter and a gather. */
static void list_sums(lap_nn_list_t *list)
{
    const lap_nn_plan_t *plan = &list->plan;
    const size_t before = lap_nn_plan_sums(plan, list->first_block) * sizeof(float);
    const size_t rows =
        lap_nn_plan_sums(plan, list->end_block - list->first_block) / LAP_NN_SUM_COLS;
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    if (rows == 0)
        return;
    const size_t own = lap_shard(rows, list->plan.nranks, list->rank, NULL);
    desc.m = rows;
    desc.cols = LAP_NN_SUM_COLS;
    desc.kind = LAP_EXTERNAL_RS;
    const uint32_t all = lap_nn_add_part(list, "sums", list->sums, before, rows, LAP_NN_SUM_COLS,
                                         LAP_NN_SUM_COLS),
                   mine = lap_nn_add_part(list, "sums_r", list->sums_r, before, own,
                                          LAP_NN_SUM_COLS, LAP_NN_SUM_COLS),
                   summed = lap_nn_add_part(list, "sums_all", list->sums_all, before, rows,
                                            LAP_NN_SUM_COLS, LAP_NN_SUM_COLS);
    lap_nn_entry_t *entry = lap_nn_add_call(list, "sums", LAP_NN_NONE, (lap_tp_gemm_t)0, &desc);
    entry->reads[LAP_NN_X] = all;
    entry->writes[LAP_NN_SECOND] = mine;
    desc.kind = LAP_EXTERNAL_AG;
    entry = lap_nn_add_call(list, "sums", LAP_NN_NONE, (lap_tp_gemm_t)1, &desc);
    entry->reads[LAP_NN_X] = mine;
    entry->writes[LAP_NN_SECOND] = summed;
    for (uint32_t i = list->nweights; i-- > 0;)
        if (list->weights[i].summed && is_listed(list, &list->weights[i]))
            lap_nn_list_ready(list, &list->weights[i]);
}

lap_nn_chunk_t lap_nn_list_chunk(const lap_nn_list_t *list)
{
    return lap_nn_plan_chunk(&list->plan, list->slots[list->slot].chunk);
}

/* From now on the slot is listed; first the regions that it begins and ends with. */
static void begin_slot(lap_nn_list_t *list, uint32_t slot)
{
    const uint32_t chunk = list->slots[slot].chunk;
    list->slot = slot;
    list->next_fp8 = 0;
    list->first_block = (uint32_t)lap_nn_plan_begin(&list->plan, chunk);
    list->end_block = (uint32_t)lap_nn_plan_begin(&list->plan, chunk + 1);
    list_external(list);
}

static void list_blocks(lap_nn_list_t *list)
{
    for (uint32_t b = list->first_block; b < list->end_block; b++)
        lap_nn_list_block(list, b);
}

static void list_forward(lap_nn_list_t *list)
{
    lap_nn_list_tokens(list);
    if (lap_nn_list_chunk(list).embedding)
        lap_nn_list_embedding(list);
    else
        lap_nn_list_look(list, "input", LAP_NN_NONE, list->x);
    for (uint32_t b = list->first_block; b < list->end_block; b++)
        lap_nn_list_forward(list, b);
}

static void list_backward(lap_nn_list_t *list)
{
    uint32_t dy = list->dy;
    for (uint32_t b = list->end_block; b-- > list->first_block;)
        dy = lap_nn_list_backward(list, b, dy);
    if (lap_nn_list_chunk(list).embedding)
        lap_nn_list_embedding_backward(list, dy);
    list_sums(list);
}

/* Layers without a pipeline: forward, loss, and both variants of backward. */
static void list_whole(lap_nn_list_t *list)
{
    uint32_t *parts = list->parts;
    lap_nn_list_renew(list);
    list_forward(list);
    parts[LAP_NN_LOSS_PART] = list->nentries;
    list_loss(list);
    parts[LAP_NN_BACKWARD] = list->nentries;
    list->next_step = list->nsteps;
    list->next_region = list->nregions;
    list_backward(list);
    lap_nn_list_renew_end(list);
    parts[LAP_NN_BACKWARD_MORE] = list->nentries;
    list->more = list->same_regions = list->same_steps = true;
    list_backward(list);
    list->more = list->same_regions = list->same_steps = false;
}

/*
 * A rank of a pipeline: gradients begin with zeros, and each backward of each slot adds to them. The slots
 * of a chunk have the same operators.
 */
static void list_stage(lap_nn_list_t *list)
{
    uint32_t first_step = 0;
    lap_nn_add_entry(list, LAP_NN_ZERO, "zero", LAP_NN_NONE)->writes[0] = list->grads;
    lap_nn_list_renew(list);
    for (uint32_t s = 0; s < list->nslots; s++) {
        lap_nn_slot_t *slot = &list->slots[s];
        if (s > 0) {
            begin_slot(list, s);
            list_blocks(list);
        }
        list->same_steps = s > 0 && list->slots[s - 1].chunk == slot->chunk;
        if (!list->same_steps)
            first_step = list->nsteps;
        list->next_step = first_step;
        slot->forward = list->nentries;
        list_forward(list);
        if (lap_nn_list_chunk(list).head)
            list_loss(list);
        slot->backward = list->nentries;
        list->more = true;
        list_backward(list);
        list->more = false;
        slot->end = list->nentries;
        slot->x = list->x;
        slot->y = list->y;
        slot->dy = list->dy;
        slot->dx = list->dx;
    }
    list->same_steps = false;
    lap_nn_list_renew_end(list);
    for (int part = 0; part < LAP_NN_LOOK_GRADIENTS; part++)
        list->parts[part] = list->nentries;
}

static void list_all(lap_nn_list_t *list)
{
    uint32_t *parts = list->parts;
    begin_slot(list, 0);
    lap_nn_list_rope(list);
    lap_nn_list_params(list);
    list_blocks(list);
    if (lap_nn_list_is_stage(list))
        list_stage(list);
    else
        list_whole(list);
    parts[LAP_NN_LOOK_GRADIENTS] = list->nentries;
    for (uint32_t i = list->nweights; i-- > 0;)
        lap_nn_list_look(list, "gradient", LAP_NN_NONE, list->weights[i].grad);
    parts[LAP_NN_SYNC] = parts[LAP_NN_REFRESH] = list->nentries;
    lap_nn_list_refresh(list);
    parts[LAP_NN_STEP] = parts[LAP_NN_LIST_PARTS] = list->nentries;
}

/* ---- all of it ---- */

#define BLOCK_WEIGHTS 6 /* most parameters of a block, */
#define TOKEN_WEIGHTS 2 /* and of what is before the first */

/* A loss may put dy where the caller's y was: backward cannot read that. */
static lap_status_t check_y(const lap_nn_list_t *list)
{
    if (list->regions[list->y].memory != LAP_NN_EXTERNAL)
        return LAP_OK;
    for (uint32_t i = list->parts[LAP_NN_BACKWARD]; i < list->parts[LAP_NN_LOOK_GRADIENTS]; i++)
        for (int r = 0; r < LAP_NN_READS; r++)
            if (list->entries[i].reads[r] == list->y)
                return lap_error(LAP_ERR_CHECK,
                                 "'%s' reads y in backward, where a loss may have put dy: expected "
                                 "a private region that forward has written",
                                 list->entries[i].name);
    return LAP_OK;
}

lap_status_t lap_nn_list_init(lap_nn_list_t *list, const lap_nn_plan_t *plan, int rank,
                              const lap_kernels_t *kernels)
{
    *list = (lap_nn_list_t){.plan = *plan,
                            .rank = rank % plan->nranks,
                            .cp_rank = rank / plan->nranks % (int)plan->desc.cp,
                            .shard = plan->desc.shards > 1 ? rank / plan->nranks : 0,
                            .kernels = kernels};
    if (!kernels)
        LAP_TRY(lap_kernels_find("cpu", &list->kernels));
    list->blocks = lap_alloc(plan->nblocks, sizeof(*list->blocks));
    list->weights =
        lap_alloc(plan->nblocks * BLOCK_WEIGHTS + TOKEN_WEIGHTS, sizeof(*list->weights));
    for (uint32_t c = 0; c < lap_nn_plan_chunks(plan); c++)
        list->nslots += lap_nn_plan_chunk(plan, c).slots;
    list->slots = lap_alloc(list->nslots, sizeof(*list->slots));
    list->order = lap_alloc(plan->nblocks * BLOCK_WEIGHTS + TOKEN_WEIGHTS, sizeof(*list->order));
    if (!list->blocks || !list->weights || !list->slots || !list->order)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu layers", plan->desc.layers);
    for (uint32_t b = 0; b < plan->nblocks; b++)
        list->blocks[b].shape = lap_nn_plan_shape(plan, b);
    for (uint32_t c = 0, slot = 0; c < lap_nn_plan_chunks(plan); c++)
        for (uint32_t i = 0; i < lap_nn_plan_chunk(plan, c).slots; i++)
            list->slots[slot++].chunk = c;
    list_all(list);
    LAP_TRY(list->status);
    LAP_TRY(check_y(list));
    lap_nn_find_lifetimes(list);
    return lap_nn_lay_out(list);
}

static lap_status_t count_bytes(const lap_nn_plan_t *given, int rank, const lap_kernels_t *kernels,
                                size_t layers, double state, double *bytes_p)
{
    lap_nn_plan_t plan = *given;
    lap_nn_list_t list;
    if (plan.cut.nchunks == 0)
        lap_nn_plan_cut(&plan, layers);
    const lap_status_t status = lap_nn_list_init(&list, &plan, rank, kernels);
    *bytes_p = list.refused;
    for (int i = 0; i < LAP_NN_MEMORIES && status == LAP_OK; i++)
        *bytes_p += (double)list.bytes[i];
    if (status == LAP_OK)
        *bytes_p += state * (double)lap_nn_optimized(&list);
    lap_nn_list_clear(&list);
    return status;
}

lap_status_t lap_nn_list_bytes(const lap_nn_plan_t *plan, int rank, const lap_kernels_t *kernels,
                               double state, double *bytes_p)
{
    const size_t layers = plan->desc.layers;
    double two;
    if (layers <= 3 || plan->cut.nchunks > 0)
        return count_bytes(plan, rank, kernels, layers, state, bytes_p);
    LAP_TRY(count_bytes(plan, rank, kernels, 2, state, bytes_p));
    two = *bytes_p;
    LAP_TRY(count_bytes(plan, rank, kernels, 3, state, bytes_p));
    *bytes_p = two + (double)(layers - 2) * (*bytes_p - two);
    return LAP_OK;
}

void lap_nn_list_clear(lap_nn_list_t *list)
{
    lap_free(list->regions);
    lap_free(list->entries);
    lap_free(list->steps);
    lap_free(list->weights);
    lap_free(list->order);
    if (list->shards)
        lap_nn_buckets_clear(list->shards);
    lap_free(list->shards);
    lap_free(list->blocks);
    lap_free(list->slots);
    *list = (lap_nn_list_t){.nregions = 0};
}
