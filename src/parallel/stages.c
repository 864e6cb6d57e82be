/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/stages.h"

#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "util/alloc.h"

/* ---- layers ---- */

static lap_status_t check_given(const lap_stages_t *stages, size_t layers, const size_t *given,
                                size_t ngiven)
{
    size_t sum = 0;
    if (ngiven != stages->stages)
        return lap_error(LAP_ERR_INVALID, "layers are given for %zu stage%s, expected %u", ngiven,
                         ngiven == 1 ? "" : "s", (unsigned)stages->stages);
    for (size_t s = 0; s < ngiven; s++) {
        if (given[s] < 1 || given[s] > layers)
            return lap_error(LAP_ERR_INVALID, "stage %zu has %zu layers, expected 1 to %zu", s,
                             given[s], layers);
        sum += given[s];
    }
    if (sum != layers)
        return lap_error(LAP_ERR_INVALID,
                         "the stages have %zu layers, expected the %zu of the model", sum, layers);
    return LAP_OK;
}

static lap_status_t share_layers(lap_stages_t *stages, size_t layers, const size_t *given,
                                 size_t ngiven)
{
    if (given)
        LAP_TRY(check_given(stages, layers, given, ngiven));
    else if (layers < stages->stages)
        return lap_error(LAP_ERR_INVALID,
                         "layers is %zu, expected at least one for each of %u stages", layers,
                         (unsigned)stages->stages);
    size_t first = 0;
    for (uint32_t s = 0; s < stages->stages; s++) {
        stages->layers[s] = given ? given[s] : lap_shard(layers, (int)stages->stages, (int)s, NULL);
        stages->first[s] = first;
        first += stages->layers[s];
    }
    return LAP_OK;
}

/* ---- slots ---- */

/* The lowest slot of a stage that no micro-batch has. */
static uint32_t find_slot(const uint32_t *holders, uint32_t micros)
{
    uint32_t slot = 0;
    while (slot < micros && holders[slot] != UINT32_MAX)
        slot++;
    return slot;
}

/* A micro-batch has a slot from its forward until the gradients of the weights. */
static void take_slot(lap_stages_t *stages, const lap_pipe_action_t *action, uint32_t *holders)
{
    const size_t row = (size_t)action->stage * stages->micros;
    uint32_t *slot = &stages->slot_of[row + action->micro];
    if (action->work == LAP_PIPE_FORWARD) {
        *slot = find_slot(holders + row, stages->micros);
        holders[row + *slot] = action->micro;
        if (*slot >= stages->slots[action->stage])
            stages->slots[action->stage] = *slot + 1;
    } else if (action->work != LAP_PIPE_INPUT_GRAD) {
        holders[row + *slot] = UINT32_MAX;
    }
}

static lap_status_t share_slots(lap_stages_t *stages, const lap_pipeline_t *pipeline)
{
    const size_t cells = (size_t)stages->stages * stages->micros;
    uint32_t *holders = lap_alloc(cells, sizeof(*holders));
    if (!holders)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the slots of %u stages",
                         (unsigned)stages->stages);
    memset(holders, 0xff, cells * sizeof(*holders));
    for (uint32_t r = 0; r < pipeline->ranks; r++)
        for (uint32_t i = 0; i < pipeline->rows[r].nactions; i++) {
            const lap_pipe_action_t *action = &pipeline->rows[r].actions[i];
            stages->rank_of[action->stage] = r;
            stages->split = stages->split || action->work == LAP_PIPE_INPUT_GRAD;
            take_slot(stages, action, holders);
        }
    lap_free(holders);
    for (uint32_t s = 0; s < stages->stages; s++)
        for (uint32_t t = 0; t < s; t++)
            stages->chunk_of[s] += stages->rank_of[t] == stages->rank_of[s];
    return LAP_OK;
}

/* ---- order ---- */

typedef struct timed {
    double begin;
    uint32_t index; /* in its row */
    lap_stage_action_t what;
} timed_t;

static int compare_times(const void *left, const void *right)
{
    const timed_t *a = left, *b = right;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    if (a->what.rank != b->what.rank)
        return a->what.rank < b->what.rank ? -1 : 1;
    return a->index < b->index ? -1 : 1;
}

/* An action begins after what it waits for, which takes time. */
static lap_status_t find_order(lap_stages_t *stages, const lap_pipeline_t *pipeline)
{
    const lap_pipe_costs_t costs = {.forward = 1, .input_grad = 1, .weight_grad = 1};
    lap_pipe_times_t times;
    uint32_t count = 0;
    for (uint32_t r = 0; r < pipeline->ranks; r++)
        count += pipeline->rows[r].nactions;
    timed_t *all = lap_alloc(count, sizeof(*all));
    stages->order = lap_alloc(count, sizeof(*stages->order));
    lap_status_t status = lap_pipeline_simulate(pipeline, &costs, &times);
    if (status == LAP_OK && (!all || !stages->order))
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for %u actions", (unsigned)count);
    count = 0;
    for (uint32_t r = 0; r < pipeline->ranks && status == LAP_OK; r++)
        for (uint32_t i = 0; i < pipeline->rows[r].nactions; i++)
            all[count++] = (timed_t){times.begins[r][i], i, {r, pipeline->rows[r].actions[i]}};
    if (status == LAP_OK && all)
        qsort(all, count, sizeof(*all), compare_times);
    for (uint32_t i = 0; i < count && status == LAP_OK; i++)
        stages->order[i] = all[i].what;
    stages->norder = count;
    lap_pipe_times_clear(&times, pipeline->ranks);
    lap_free(all);
    return status;
}

/* ---- messages ---- */

/* By stage and micro-batch: the forward of it; by stage and slot: what has freed that. From 1 on; 0: nothing. */
typedef struct past {
    uint32_t *forwards, *freed;
} past_t;

/* The action after which the input of a forward is sent. */
static uint32_t sent_after(const lap_stages_t *stages, const past_t *past,
                           const lap_pipe_action_t *action)
{
    const size_t row = (size_t)action->stage * stages->micros;
    const uint32_t made = past->forwards[row - stages->micros + action->micro];
    const uint32_t freed = past->freed[row + stages->slot_of[row + action->micro]];
    return (made > freed ? made : freed) - 1;
}

/* Adds forward `i` to those of action `at`, which come in their order. */
static void add_message(lap_stages_t *stages, uint32_t at, uint32_t i)
{
    uint32_t *place = &stages->messages[at];
    while (*place != LAP_NO_MESSAGE)
        place = &stages->next_message[*place];
    *place = i;
}

static lap_status_t place_messages(lap_stages_t *stages)
{
    const size_t cells = (size_t)stages->stages * stages->micros;
    past_t past = {lap_alloc(cells, sizeof(*past.forwards)), lap_alloc(cells, sizeof(*past.freed))};
    stages->messages = lap_alloc(stages->norder, sizeof(*stages->messages));
    stages->next_message = lap_alloc(stages->norder, sizeof(*stages->next_message));
    lap_status_t status = LAP_OK;
    if (!past.forwards || !past.freed || !stages->messages || !stages->next_message)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for the messages of %u actions",
                           (unsigned)stages->norder);
    for (uint32_t i = 0; i < stages->norder && status == LAP_OK; i++)
        stages->messages[i] = stages->next_message[i] = LAP_NO_MESSAGE;
    for (uint32_t i = 0; i < stages->norder && status == LAP_OK; i++) {
        const lap_pipe_action_t *action = &stages->order[i].action;
        const size_t row = (size_t)action->stage * stages->micros;
        if (action->work == LAP_PIPE_FORWARD && action->stage > 0)
            add_message(stages, sent_after(stages, &past, action), i);
        if (action->work == LAP_PIPE_FORWARD)
            past.forwards[row + action->micro] = i + 1;
        else if (action->work != LAP_PIPE_INPUT_GRAD)
            past.freed[row + stages->slot_of[row + action->micro]] = i + 1;
    }
    lap_free(past.forwards);
    lap_free(past.freed);
    return status;
}

/* ---- pairs ---- */

static lap_stage_pair_t pair_of(uint32_t a, uint32_t b, bool tied)
{
    return (lap_stage_pair_t){{a < b ? a : b, a < b ? b : a}, tied};
}

uint32_t lap_stages_pair(const lap_stages_t *stages, uint32_t a, uint32_t b, bool tied)
{
    const lap_stage_pair_t pair = pair_of(a, b, tied);
    uint32_t i = 0;
    while (i < stages->npairs &&
           (stages->pairs[i].ranks[0] != pair.ranks[0] ||
            stages->pairs[i].ranks[1] != pair.ranks[1] || stages->pairs[i].tied != tied))
        i++;
    return i;
}

static void add_pair(lap_stages_t *stages, uint32_t a, uint32_t b, bool tied)
{
    if (a != b && lap_stages_pair(stages, a, b, tied) == stages->npairs)
        stages->pairs[stages->npairs++] = pair_of(a, b, tied);
}

/* ---- all of it ---- */

lap_status_t lap_stages_init(lap_stages_t *stages, const lap_pipeline_t *pipeline, size_t layers,
                             const size_t *given, size_t ngiven, bool tied)
{
    const size_t count = pipeline->stages;
    *stages = (lap_stages_t){
        .ranks = pipeline->ranks, .stages = pipeline->stages, .micros = pipeline->micros};
    LAP_TRY(lap_pipeline_check(pipeline));
    stages->rank_of = lap_alloc(count, sizeof(*stages->rank_of));
    stages->chunk_of = lap_alloc(count, sizeof(*stages->chunk_of));
    stages->first = lap_alloc(count, sizeof(*stages->first));
    stages->layers = lap_alloc(count, sizeof(*stages->layers));
    stages->slots = lap_alloc(count, sizeof(*stages->slots));
    stages->slot_of = lap_alloc(count * stages->micros, sizeof(*stages->slot_of));
    stages->pairs = lap_alloc(count + 1, sizeof(*stages->pairs));
    if (!stages->rank_of || !stages->chunk_of || !stages->first || !stages->layers ||
        !stages->slots || !stages->slot_of || !stages->pairs)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %u stages", (unsigned)stages->stages);
    LAP_TRY(share_layers(stages, layers, given, ngiven));
    LAP_TRY(share_slots(stages, pipeline));
    LAP_TRY(find_order(stages, pipeline));
    LAP_TRY(place_messages(stages));
    for (uint32_t s = 0; s + 1 < stages->stages; s++)
        add_pair(stages, stages->rank_of[s], stages->rank_of[s + 1], false);
    if (tied)
        add_pair(stages, stages->rank_of[0], stages->rank_of[stages->stages - 1], true);
    return LAP_OK;
}

void lap_stages_clear(lap_stages_t *stages)
{
    lap_free(stages->rank_of);
    lap_free(stages->chunk_of);
    lap_free(stages->first);
    lap_free(stages->layers);
    lap_free(stages->slots);
    lap_free(stages->slot_of);
    lap_free(stages->order);
    lap_free(stages->messages);
    lap_free(stages->next_message);
    lap_free(stages->pairs);
    *stages = (lap_stages_t){.ranks = 0};
}

lap_status_t lap_stages_cut(const lap_stages_t *stages, uint32_t rank, lap_nn_cut_t *cut_p)
{
    lap_nn_cut_t cut = {.micros = stages->micros, .split = stages->split};
    for (uint32_t s = 0; s < stages->stages; s++) {
        if (stages->rank_of[s] != rank)
            continue;
        if (cut.nchunks == LAP_NN_CHUNKS)
            return lap_error(LAP_ERR_INVALID, "rank %u of the pipeline has more than %d stages",
                             (unsigned)rank, LAP_NN_CHUNKS);
        cut.chunks[cut.nchunks++] = (lap_nn_chunk_t){.first = stages->first[s],
                                                     .layers = stages->layers[s],
                                                     .embedding = s == 0,
                                                     .head = s + 1 == stages->stages,
                                                     .slots = stages->slots[s]};
    }
    if (cut.nchunks == 0)
        return lap_error(LAP_ERR_INVALID, "rank %u of the pipeline has no stage, expected one",
                         (unsigned)rank);
    *cut_p = cut;
    return LAP_OK;
}

uint32_t lap_stages_slot(const lap_stages_t *stages, uint32_t stage, uint32_t micro)
{
    uint32_t slot = stages->slot_of[(size_t)stage * stages->micros + micro];
    for (uint32_t s = 0; s < stage; s++)
        slot += stages->rank_of[s] == stages->rank_of[stage] ? stages->slots[s] : 0;
    return slot;
}

uint32_t lap_stages_first(const lap_stages_t *stages, uint32_t stage, bool forward)
{
    uint32_t i = 0;
    while (stages->order[i].action.stage != stage ||
           (stages->order[i].action.work == LAP_PIPE_FORWARD) != forward)
        i++;
    return stages->order[i].action.micro;
}
