/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The step of an optimizer as a part of the program of a rank of a pipeline. Its only call of all ranks is the
 * sum of squares over all that have parts of the model: ranks that share layers are neighbours there, and
 * stages follow one another. Links only; runs nothing.
 */
#include "parallel/stage_link.h"

#include "core/status.h"

/* The entry of the step that sums over all ranks of the model; the end of the step: none does. */
static uint32_t find_sum(const lap_nn_list_t *list)
{
    uint32_t e = list->parts[LAP_NN_STEP];
    for (; e < list->parts[LAP_NN_STEP + 1]; e++)
        if (list->entries[e].work == LAP_NN_OPERATOR &&
            list->steps[list->entries[e].index].group == LAP_NN_BY_LAYERS)
            break;
    return e;
}

static lap_status_t add_entries(const lap_stage_linking_t *linking, uint32_t first, uint32_t end,
                                lap_stage_program_t *program)
{
    const lap_nn_mode_t mode = {.looks = false};
    const lap_pipe_action_t none = {.work = LAP_PIPE_WORKS};
    for (uint32_t e = first; e < end; e++)
        if (lap_nn_entry_runs(&linking->list->entries[e], mode))
            LAP_TRY(lap_stage_add_entry(linking, e, &none, program));
    return LAP_OK;
}

/* One call of all of them. */
static lap_status_t add_sum(const lap_stage_linking_t *linking, uint32_t sum,
                            lap_stage_program_t *program)
{
    const lap_pipe_action_t none = {.work = LAP_PIPE_WORKS};
    const lap_nn_list_t *list = linking->list;
    LAP_TRY(lap_stage_add_entry(linking, sum, &none, program));
    lap_fragment_t *fragment = &program->linked.fragments[program->linked.nfragments - 1];
    fragment->buffer = LAP_NN_BY_NORM;
    fragment->base = linking->base - list->rank;
    fragment->neighbours = list->plan.nranks;
    fragment->stride = linking->stride;
    return LAP_OK;
}

lap_status_t lap_stage_add_copies(const lap_stage_linking_t *linking, lap_stage_program_t *program)
{
    const lap_nn_list_t *list = linking->list;
    const bool gathers = list->shards && linking->replicas;
    const uint32_t first = list->parts[LAP_NN_REFRESH], end = list->parts[LAP_NN_REFRESH + 1];
    const uint32_t scaled = gathers && list->scaled > first ? list->scaled : first;
    if (list->shards && (!linking->replicas || linking->gathers))
        return LAP_OK;                                     /* the next step gathers them */
    LAP_TRY(add_entries(linking, first, scaled, program)); /* FP8 weights, with their scales */
    const uint32_t serial = program->linked.nfragments;
    for (size_t i = gathers ? linking->replicas->buckets->count : 0; i-- > 0;)
        LAP_TRY(lap_stage_add_bucket(linking, i, true, program));
    lap_link_set_serial(&program->linked, serial);
    return add_entries(linking, scaled, end, program);
}

/* The buckets of weights from *next_p down to `end` that the next step needs first, as entry `e` has completed them. */
static lap_status_t add_started(const lap_stage_linking_t *linking, uint32_t e, size_t end,
                                size_t *next_p, lap_stage_program_t *program)
{
    const lap_nn_bucket_t *shards = linking->list->shards->list;
    const uint32_t first = program->linked.nfragments;
    while (*next_p > end && shards[*next_p - 1].updated == e + 1)
        LAP_TRY(lap_stage_add_bucket(linking, --*next_p, true, program));
    lap_nn_set_after_step(&program->linked, first);
    return LAP_OK;
}

lap_status_t lap_stage_add_step(const lap_stage_linking_t *linking, lap_stage_program_t *program)
{
    const lap_nn_list_t *list = linking->list;
    const lap_nn_buckets_t *buckets = linking->starts ? linking->replicas->buckets : NULL;
    const size_t end = buckets ? buckets->count - lap_nn_prefetch_started(list, buckets) : 0;
    const uint32_t sum = find_sum(list);
    size_t next = buckets ? buckets->count : 0;
    for (uint32_t e = list->parts[LAP_NN_STEP]; e < list->parts[LAP_NN_STEP + 1]; e++) {
        LAP_TRY(e == sum ? add_sum(linking, e, program) : add_entries(linking, e, e + 1, program));
        if (buckets)
            LAP_TRY(add_started(linking, e, end, &next, program));
    }
    const uint32_t first = program->linked.nfragments;
    LAP_TRY(lap_stage_add_copies(linking, program));
    lap_nn_set_after_step(&program->linked, first);
    return LAP_OK;
}
