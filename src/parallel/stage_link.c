/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/stage_link.h"

#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "overlap/overlap.h"
#include "schedule/lower.h"
#include "schedule/range.h"
#include "util/alloc.h"

/* ---- items ---- */

static lap_status_t add_item(lap_stage_program_t *program, const lap_stage_item_t *item)
{
    lap_stage_item_t *items =
        lap_grow(program->items, program->nitems, &program->items_room, sizeof(*items));
    if (!items)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a program of %u fragments",
                         (unsigned)program->nitems + 1);
    program->items = items;
    items[program->nitems++] = *item;
    return LAP_OK;
}

/* The latest fragment is that of the latest item. */
static lap_fragment_t *own_fragment(lap_stage_program_t *program)
{
    lap_fragment_t *fragment = &program->linked.fragments[program->linked.nfragments - 1];
    fragment->origin = program->nitems - 1;
    fragment->iteration = program->items[program->nitems - 1].micro;
    return fragment;
}

/* ---- actions ---- */

/* The entries of the slot of an action, and whether one of them is a part of it. */
typedef struct span {
    uint32_t first, end;
} span_t;

static span_t entries_of(const lap_stages_t *stages, const lap_nn_list_t *list,
                         const lap_pipe_action_t *action)
{
    const lap_nn_slot_t *slot = &list->slots[lap_stages_slot(stages, action->stage, action->micro)];
    return action->work == LAP_PIPE_FORWARD ? (span_t){slot->forward, slot->backward}
                                            : (span_t){slot->backward, slot->end};
}

static bool is_part(const lap_nn_entry_t *entry, lap_pipe_work_t work)
{
    return (work != LAP_PIPE_INPUT_GRAD || !entry->weight_grad) &&
           (work != LAP_PIPE_WEIGHT_GRAD || entry->weight_grad);
}

lap_status_t lap_stage_add_entry(const lap_stage_linking_t *linking, uint32_t entry,
                                 const lap_pipe_action_t *action, lap_stage_program_t *program)
{
    const lap_stage_item_t item = {
        .kind = LAP_STAGE_ENTRY, .entry = entry, .micro = action->micro, .action = *action};
    LAP_TRY(add_item(program, &item));
    LAP_TRY(
        lap_nn_link_entry(linking->list, entry, linking->seq, linking->source, &program->linked));
    lap_fragment_t *fragment = own_fragment(program);
    fragment->section = action->stage;
    for (uint32_t i = 0; i < fragment->schedule.nuses; i++) {
        lap_range_t *range = &fragment->schedule.uses[i].range;
        const uint32_t region = (uint32_t)range->place - LAP_PLACES; /* a place is none */
        if (region < linking->list->nregions)
            range->offset += lap_nn_micro_offset(linking->list, region, action->micro);
    }
    return LAP_OK;
}

/* ---- buckets ---- */

/* The gradient that an entry has completed is a part of a bucket. */
static bool is_ready(const lap_nn_list_t *list, const lap_nn_buckets_t *buckets, size_t index,
                     uint32_t entry, lap_pipe_work_t work)
{
    return list->entries[entry].work == LAP_NN_READY && is_part(&list->entries[entry], work) &&
           lap_nn_bucket_has_weight(buckets, index, list, list->entries[entry].index);
}

/* Tied gradients are complete when both ranks that have them have summed them. */
static bool is_tied(const lap_nn_list_t *list, const lap_nn_buckets_t *buckets, size_t index)
{
    const lap_nn_weight_t *tied = lap_stage_tied(list);
    return tied && lap_nn_bucket_has_weight(buckets, index, list, tied->index);
}

/* Whether no entry after `entry` of action `at` of the order adds to a bucket. */
static bool is_complete(const lap_stages_t *stages, const lap_nn_list_t *list,
                        const lap_nn_buckets_t *buckets, size_t index, uint32_t at, uint32_t entry)
{
    const uint32_t rank = stages->order[at].rank;
    for (uint32_t i = at; i < stages->norder; i++) {
        const lap_pipe_action_t *action = &stages->order[i].action;
        if (stages->order[i].rank != rank || action->work == LAP_PIPE_FORWARD)
            continue;
        const span_t span = entries_of(stages, list, action);
        for (uint32_t e = i == at ? entry + 1 : span.first; e < span.end; e++)
            if (is_ready(list, buckets, index, e, action->work))
                return false;
    }
    return true;
}

lap_status_t lap_stage_add_bucket(const lap_stage_linking_t *linking, size_t index, bool weights,
                                  lap_stage_program_t *program)
{
    lap_linked_t *linked = &program->linked;
    const uint32_t first = linked->nfragments;
    LAP_TRY(lap_nn_link_bucket(linking->list, linking->replicas, index, weights, linked));
    for (uint32_t f = first; f < linked->nfragments; f++) {
        lap_stage_item_t item = {.kind = LAP_STAGE_BUCKET, .action = {.work = LAP_PIPE_WORKS}};
        (void)lap_nn_bucket_of(linked->fragments[f].origin, &index, &item.which);
        item.bucket = (uint32_t)index;
        LAP_TRY(add_item(program, &item));
        linked->fragments[f].origin = program->nitems - 1;
    }
    return LAP_OK;
}

/* Those that entry `entry` of action `at` has completed. */
static lap_status_t add_completed(const lap_stage_linking_t *linking, uint32_t at, uint32_t entry,
                                  lap_stage_program_t *program)
{
    const lap_pipe_work_t work = linking->stages->order[at].action.work;
    const lap_nn_list_t *list = linking->list;
    if (!linking->sends || list->entries[entry].work != LAP_NN_READY)
        return LAP_OK;
    const lap_nn_buckets_t *buckets = linking->replicas->buckets;
    for (size_t i = 0; i < buckets->count; i++)
        if (is_ready(list, buckets, i, entry, work) && !is_tied(list, buckets, i) &&
            is_complete(linking->stages, list, buckets, i, at, entry))
            return lap_stage_add_bucket(linking, i, false, program);
    return LAP_OK;
}

/* Those with tied gradients; all where they are late. */
static lap_status_t add_last_buckets(const lap_stage_linking_t *linking,
                                     lap_stage_program_t *program)
{
    const uint32_t first = program->linked.nfragments;
    const bool any = linking->sends || linking->late;
    for (size_t i = 0; any && i < linking->replicas->buckets->count; i++)
        if (linking->late || is_tied(linking->list, linking->replicas->buckets, i))
            LAP_TRY(lap_stage_add_bucket(linking, i, false, program));
    if (linking->late)
        lap_link_set_serial(&program->linked, first);
    return LAP_OK;
}

/* The weights that entry `entry` needs, and a bucket more; LAP_NN_NONE: all that are left. */
static lap_status_t add_weights(const lap_stage_linking_t *linking, uint32_t entry,
                                lap_nn_prefetch_t *walk, lap_stage_program_t *program)
{
    const lap_pipe_action_t none = {.work = LAP_PIPE_WORKS};
    size_t bucket;
    uint32_t copy;
    while (linking->gathers && lap_nn_prefetch_next(walk, entry, &bucket, &copy))
        LAP_TRY(copy == LAP_NN_NONE ? lap_stage_add_bucket(linking, bucket, true, program)
                                    : lap_stage_add_entry(linking, copy, &none, program));
    return LAP_OK;
}

static lap_status_t add_action(const lap_stage_linking_t *linking, uint32_t at,
                               lap_nn_prefetch_t *walk, lap_stage_program_t *program)
{
    const lap_stage_action_t *what = &linking->stages->order[at];
    const lap_nn_list_t *list = linking->list;
    const bool forward = what->action.work == LAP_PIPE_FORWARD;
    const lap_nn_mode_t mode = {
        .first =
            linking->first &&
            what->action.micro == lap_stages_first(linking->stages, what->action.stage, forward)};
    if (what->rank != linking->rank)
        return LAP_OK;
    const span_t span = entries_of(linking->stages, list, &what->action);
    for (uint32_t e = span.first; e < span.end; e++) {
        if (lap_nn_entry_runs(&list->entries[e], mode) &&
            is_part(&list->entries[e], what->action.work)) {
            LAP_TRY(add_weights(linking, e, walk, program));
            LAP_TRY(lap_stage_add_entry(linking, e, &what->action, program));
        }
        LAP_TRY(add_completed(linking, at, e, program));
    }
    return LAP_OK;
}

uint64_t lap_stage_count(const lap_stages_t *stages, uint32_t rank, const lap_nn_list_t *list)
{
    const lap_nn_mode_t mode = {.looks = false};
    uint64_t count = list->nrenew;
    for (uint32_t i = 0; i < stages->norder; i++) {
        const lap_pipe_action_t *action = &stages->order[i].action;
        if (stages->order[i].rank != rank)
            continue;
        const span_t span = entries_of(stages, list, action);
        for (uint32_t e = span.first; e < span.end; e++)
            count += lap_nn_entry_runs(&list->entries[e], mode) &&
                     is_part(&list->entries[e], action->work);
    }
    return count;
}

/* ---- messages ---- */

static const lap_nn_slot_t *slot_of(const lap_stage_linking_t *linking, uint32_t stage,
                                    uint32_t micro)
{
    return &linking->list->slots[lap_stages_slot(linking->stages, stage, micro)];
}

/*
 * The sender has the lower rank of the two, or the higher one. In line it goes on when the message has come,
 * which the receiver says at once, whatever it computes.
 */
static void add_steps(lap_schedule_t *s, bool sends, bool in_line, uint16_t send, uint16_t receive,
                      size_t rows, size_t row_bytes)
{
    const int own = s->rank, peer = 1 - s->rank;
    const lap_range_t there =
        lap_range_packed(LAP_SYMMETRIC, sends ? peer : own, 0, rows, row_bytes);
    s->symmetric_bytes = rows * row_bytes;
    if (rows == 0)
        return;
    if (sends) {
        lap_add_wait(s, send, peer, lap_signal_credit(2, peer), 1);
        lap_expect(s, lap_signal_credit(2, peer));
        lap_add_put(s, send, peer, lap_signal_data(own),
                    lap_range_packed(LAP_MOVED, own, 0, rows, row_bytes), there);
        if (in_line) {
            lap_add_wait(s, send, peer, lap_signal_done(2, peer), 1);
            lap_expect(s, lap_signal_done(2, peer));
        }
        return;
    }
    s->gathered = lap_range_packed(LAP_GATHERED, own, 0, rows, row_bytes);
    lap_add_raise(s, receive, peer, lap_signal_credit(2, own), 0);
    lap_add_wait(s, receive, peer, lap_signal_data(peer), 1);
    lap_expect(s, lap_signal_data(peer));
    if (in_line)
        lap_add_raise(s, receive, peer, lap_signal_done(2, own), 0);
    lap_add_copy(s, receive, there, s->gathered);
}

lap_status_t lap_stage_message(const lap_stage_linking_t *linking, const lap_stage_item_t *item,
                               lap_schedule_t *schedule_p)
{
    const bool sends = item->kind == LAP_STAGE_SEND;
    const uint32_t region = sends ? item->from : item->to;
    const lap_nn_list_t *list = linking->list;
    const lap_dtype_t dtype = list->regions[region].dtype;
    const size_t rows = lap_nn_region_rows(list, region, linking->seq);
    const lap_stage_pair_t *pair = &linking->stages->pairs[item->pair];
    const lap_problem_t problem = {.kind = LAP_EXTERNAL_AG,
                                   .rank = linking->rank == pair->ranks[1],
                                   .size = 2,
                                   .m = rows,
                                   .types = {dtype, dtype, dtype, dtype, dtype}};
    const lap_stream_set_t set = item->upstream ? LAP_UPSTREAM : LAP_DOWNSTREAM;
    const bool in_line = !linking->overlap;
    lap_schedule_init(schedule_p, &problem, "p2p");
    schedule_p->set = sends && in_line ? LAP_FOREGROUND : set;
    add_steps(schedule_p, sends, in_line,
              in_line ? LAP_STREAM_COMPUTE : lap_stream_of(set, LAP_STREAM_SEND),
              lap_stream_of(set, LAP_STREAM_RECEIVE), rows,
              list->regions[region].cols * lap_dtype_size(dtype));
    LAP_TRY(schedule_p->status);
    return linking->target ? lap_lower(schedule_p, 1, linking->target, linking->after) : LAP_OK;
}

/* Fragments of two ranks of the pipeline. */
static void join_pair(const lap_stage_linking_t *linking, const lap_stage_item_t *item,
                      lap_fragment_t *fragment)
{
    const lap_stage_pair_t *pair = &linking->stages->pairs[item->pair];
    fragment->buffer = lap_stage_buffer(item->pair, item->upstream);
    fragment->base = linking->base + (int)pair->ranks[0] * linking->stride;
    fragment->stride = (int)(pair->ranks[1] - pair->ranks[0]) * linking->stride;
}

static lap_status_t add_message(const lap_stage_linking_t *linking, const lap_stage_item_t *item,
                                lap_stage_program_t *program)
{
    lap_schedule_t schedule = {.nsteps = 0};
    LAP_TRY(add_item(program, item));
    const lap_status_t status = lap_stage_message(linking, item, &schedule);
    lap_fragment_t *fragment = status == LAP_OK ? lap_link_fragment(&program->linked) : NULL;
    if (!fragment) {
        lap_schedule_clear(&schedule);
        return status == LAP_OK ? program->linked.status : status;
    }
    fragment->schedule = schedule;
    if (item->kind == LAP_STAGE_SEND)
        fragment->places[LAP_MOVED] = lap_nn_place(linking->list, item->from);
    else
        fragment->places[LAP_GATHERED] = lap_nn_place(linking->list, item->to);
    join_pair(linking, item, own_fragment(program));
    return LAP_OK;
}

static lap_status_t add_copy(const lap_stage_linking_t *linking, const lap_stage_item_t *item,
                             lap_stage_program_t *program)
{
    lap_linked_t *linked = &program->linked;
    const lap_problem_t problem = {.rank = linking->list->rank, .size = linking->list->plan.nranks};
    LAP_TRY(add_item(program, item));
    if (!lap_link_kernel(linked, &problem, "stage", LAP_STREAM_COMPUTE, "copy"))
        return linked->status;
    const uint32_t regions[] = {item->from, item->to};
    for (uint32_t i = LAP_STAGE_FROM; i <= LAP_STAGE_TO; i++) {
        const lap_link_place_t place = lap_nn_place(linking->list, regions[i]);
        lap_link_operand(linked, i, i == LAP_STAGE_TO, &place,
                         lap_nn_region_rows(linking->list, regions[i], linking->seq));
    }
    own_fragment(program)->base = linked->rank - linking->list->rank;
    return linked->status;
}

/* The result of stage `from`, or the gradient of its input, on its way to stage `to`. */
static lap_status_t move(const lap_stage_linking_t *linking, const lap_pipe_action_t *action,
                         uint32_t from, uint32_t to, lap_stage_program_t *program)
{
    const lap_stages_t *stages = linking->stages;
    const bool upstream = to < from;
    const uint32_t sender = stages->rank_of[from], receiver = stages->rank_of[to];
    lap_stage_item_t item = {
        .micro = action->micro, .action = *action, .upstream = upstream, .from = LAP_NN_NONE};
    if (sender != receiver)
        item.message = program->nmessages++;
    if (linking->rank == sender) {
        const lap_nn_slot_t *slot = slot_of(linking, from, action->micro);
        item.from = upstream ? slot->dx : slot->y;
    }
    if (linking->rank == receiver) {
        const lap_nn_slot_t *slot = slot_of(linking, to, action->micro);
        item.to = upstream ? slot->dy : slot->x;
    }
    if (linking->rank != sender && linking->rank != receiver)
        return LAP_OK;
    if (sender == receiver) {
        item.kind = LAP_STAGE_COPY;
        return add_copy(linking, &item, program);
    }
    item.kind = linking->rank == sender ? LAP_STAGE_SEND : LAP_STAGE_RECEIVE;
    item.pair = lap_stages_pair(stages, sender, receiver, false);
    return add_message(linking, &item, program);
}

/* ---- tied weights ---- */

const lap_nn_weight_t *lap_stage_tied(const lap_nn_list_t *list)
{
    if (!list->plan.desc.tied)
        return NULL;
    for (uint32_t i = 0; i < list->nweights; i++)
        if (list->weights[i].twin)
            return &list->weights[i];
    const bool head = list->blocks[list->plan.nblocks - 1].shape.head;
    return list->embedding && !head ? list->embedding : NULL;
}

lap_op_desc_t lap_stage_tied_desc(const lap_nn_list_t *list, lap_stage_kind_t which)
{
    const lap_nn_weight_t *weight = lap_stage_tied(list);
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = which == LAP_STAGE_SCATTER ? LAP_EXTERNAL_RS : LAP_EXTERNAL_AG;
    desc.m = weight->rows;
    desc.cols = weight->param.cols;
    desc.dtype = LAP_FLOAT32;
    desc.method = "direct";
    desc.background = 1;
    return desc;
}

static lap_status_t add_tied_call(const lap_stage_linking_t *linking, lap_stage_kind_t which,
                                  uint32_t pair, uint32_t sum, lap_stage_program_t *program)
{
    const lap_nn_list_t *list = linking->list;
    const lap_stage_item_t item = {.kind = which, .pair = pair};
    const bool scatter = which == LAP_STAGE_SCATTER;
    const lap_link_place_t all = lap_nn_place(list, lap_stage_tied(list)->grad);
    lap_link_place_t own = all;
    lap_schedule_t schedule = {.nsteps = 0};
    LAP_TRY(add_item(program, &item));
    const int rank = linking->rank == linking->stages->pairs[pair].ranks[1];
    const lap_status_t status = linking->tied(linking->context, list, rank, which, &schedule);
    lap_fragment_t *fragment = status == LAP_OK ? lap_link_fragment(&program->linked) : NULL;
    if (!fragment) {
        lap_schedule_clear(&schedule);
        return status == LAP_OK ? program->linked.status : status;
    }
    own.region = sum;
    fragment->schedule = schedule;
    fragment->places[LAP_MOVED] = scatter ? all : own;
    fragment->places[LAP_GATHERED] = scatter ? own : all;
    fragment->phase = LAP_NN_PHASE_TIED;
    join_pair(linking, &item, own_fragment(program));
    return LAP_OK;
}

/* The gradients of tied weights become their sum on both ranks. */
static lap_status_t add_tied(const lap_stage_linking_t *linking, lap_stage_program_t *program)
{
    const lap_stages_t *stages = linking->stages;
    const uint32_t first = stages->rank_of[0], last = stages->rank_of[stages->stages - 1];
    const uint32_t pair = lap_stages_pair(stages, first, last, true);
    if (pair == stages->npairs)
        return LAP_OK;
    if (linking->rank != first && linking->rank != last)
        return LAP_OK;
    const lap_nn_weight_t *weight = lap_stage_tied(linking->list);
    const uint32_t sum =
        lap_link_add_region(&program->linked, "sum of tied gradients", LAP_NN_TIED_MEMORY, 0,
                            weight->rows * weight->param.cols * sizeof(float), false);
    LAP_TRY(add_tied_call(linking, LAP_STAGE_SCATTER, pair, sum, program));
    return add_tied_call(linking, LAP_STAGE_GATHER, pair, sum, program);
}

/* ---- names ---- */

void lap_stage_name(const lap_nn_list_t *list, const lap_stage_item_t *item, char *text,
                    size_t bytes)
{
    static const char *const words[] = {
        [LAP_STAGE_COPY] = "copy",
        [LAP_STAGE_SEND] = "send",
        [LAP_STAGE_RECEIVE] = "receive",
        [LAP_STAGE_SCATTER] = "tied embedding",
        [LAP_STAGE_GATHER] = "tied embedding",
    };
    char action[LAP_PIPE_TEXT] = "", name[64];
    const bool tied = item->kind == LAP_STAGE_SCATTER || item->kind == LAP_STAGE_GATHER;
    if (!tied && item->action.work < LAP_PIPE_WORKS)
        (void)lap_pipe_text(&item->action, action);
    if (item->kind == LAP_STAGE_BUCKET) {
        const bool weights = list->shards && (item->which == LAP_NN_BUCKET_PACK ||
                                              item->which == LAP_NN_BUCKET_GATHER);
        snprintf(text, bytes, "%s %u", weights ? "weights" : "bucket", (unsigned)item->bucket);
        return;
    }
    if (item->kind != LAP_STAGE_ENTRY) {
        snprintf(text, bytes, "%s%s%s", words[item->kind], *action ? " " : "", action);
        return;
    }
    lap_nn_fragment_name(list, item->entry, name, sizeof(name));
    snprintf(text, bytes, "%s%s%s", action, *action ? " " : "", name);
}

/* ---- all of it ---- */

/* The delayed FP8 scales of the layers are renewed, unless they have none yet. */
static lap_status_t add_renewals(const lap_stage_linking_t *linking, lap_stage_program_t *program)
{
    const lap_pipe_action_t none = {.work = LAP_PIPE_WORKS};
    const lap_nn_list_t *list = linking->list;
    for (uint32_t e = list->renew; e < list->renew + list->nrenew && !linking->first; e++)
        LAP_TRY(lap_stage_add_entry(linking, e, &none, program));
    return LAP_OK;
}

static lap_status_t add_all(const lap_stage_linking_t *linking, lap_nn_prefetch_t *walk,
                            lap_stage_program_t *program)
{
    const lap_stages_t *stages = linking->stages;
    const lap_pipe_action_t none = {.work = LAP_PIPE_WORKS};
    LAP_TRY(lap_stage_add_entry(linking, 0, &none, program)); /* gradients become 0 */
    if (linking->copies)
        LAP_TRY(lap_stage_add_copies(linking, program));
    LAP_TRY(add_renewals(linking, program));
    for (uint32_t i = 0; i < stages->norder; i++) {
        const lap_pipe_action_t *action = &stages->order[i].action;
        LAP_TRY(add_action(linking, i, walk, program));
        for (uint32_t m = stages->messages[i]; m != LAP_NO_MESSAGE; m = stages->next_message[m]) {
            const lap_pipe_action_t *taker = &stages->order[m].action;
            LAP_TRY(move(linking, taker, taker->stage - 1, taker->stage, program));
        }
        if (action->work != LAP_PIPE_FORWARD && action->work != LAP_PIPE_WEIGHT_GRAD &&
            action->stage > 0)
            LAP_TRY(move(linking, action, action->stage, action->stage - 1, program));
    }
    LAP_TRY(add_weights(linking, LAP_NN_NONE, walk, program));
    LAP_TRY(add_tied(linking, program));
    LAP_TRY(add_last_buckets(linking, program));
    return linking->steps ? lap_stage_add_step(linking, program) : LAP_OK;
}

static lap_status_t link_all(const lap_stage_linking_t *linking, lap_stage_program_t *program)
{
    const lap_nn_buckets_t *buckets = linking->replicas ? linking->replicas->buckets : NULL;
    lap_nn_prefetch_t walk = {.gathered = 0};
    if (linking->gathers)
        walk = lap_nn_prefetch(linking->list, buckets);
    if (linking->started)
        walk.gathered = lap_nn_prefetch_started(linking->list, buckets);
    return add_all(linking, &walk, program);
}

lap_status_t lap_stage_link(const lap_stage_linking_t *linking, lap_stage_program_t *program)
{
    *program =
        (lap_stage_program_t){.linked.rank = linking->base + (int)linking->rank * linking->stride};
    program->linked.shares_queues = linking->target && linking->target->device.shares_queues;
    lap_nn_link_regions(linking->list, linking->copies, &program->linked);
    if (linking->replicas)
        lap_nn_link_wire(linking->list, linking->replicas, &program->linked);
    LAP_TRY(program->linked.status);
    if (linking->gathers && !linking->started)
        lap_nn_forget_weights(linking->list, &program->linked);
    LAP_TRY(link_all(linking, program));
    LAP_TRY(program->linked.status);
    return lap_link(&program->linked);
}

void lap_stage_program_clear(lap_stage_program_t *program)
{
    lap_linked_clear(&program->linked);
    lap_free(program->items);
    *program = (lap_stage_program_t){.nitems = 0};
}
