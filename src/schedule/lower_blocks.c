/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pass "blocks": where a device's GEMMs cannot wait for signals or raise them, each block becomes
 * a GEMM step of its own, with a WAIT before it and a RAISE after it if it has such signals. Blocks
 * then run in the order of the list.
 */
#include "core/status.h"
#include "schedule/lower.h"
#include "util/alloc.h"

static bool is_plain(const lap_schedule_t *schedule, const lap_step_t *step)
{
    if (step->kind != LAP_STEP_GEMM || step->count == 0)
        return true;
    const lap_block_t *block = &schedule->blocks[step->first];
    return step->count == 1 && block->wait_signal == LAP_NO_SIGNAL &&
           block->raise_signal == LAP_NO_SIGNAL;
}

static void add_block(lap_schedule_t *schedule, const lap_step_t *whole, uint32_t index)
{
    lap_block_t *block = &schedule->blocks[index];
    lap_step_t gemm = *whole;
    gemm.first = index;
    gemm.count = 1;
    lap_step_t wait = {.kind = LAP_STEP_WAIT,
                       .stream = whole->stream,
                       .origin = whole->origin,
                       .peer = block->wait_peer,
                       .signal = block->wait_signal,
                       .count = block->wait_count};
    lap_step_t raise = {.kind = LAP_STEP_RAISE,
                        .stream = whole->stream,
                        .origin = whole->origin,
                        .peer = block->raise_peer,
                        .signal = block->raise_signal,
                        .bytes = block->d.rows * block->d.row_bytes};
    if (block->wait_signal != LAP_NO_SIGNAL)
        lap_add_step(schedule, &wait);
    lap_add_step(schedule, &gemm);
    if (block->raise_signal != LAP_NO_SIGNAL)
        lap_add_step(schedule, &raise);
    block->wait_signal = block->raise_signal = LAP_NO_SIGNAL;
}

/* Adds the steps that a step becomes. The first of them has its dependencies. */
static void add_parts(lap_schedule_t *schedule, const lap_schedule_t *whole, uint32_t index,
                      const uint32_t *lasts)
{
    const lap_step_t *step = &whole->steps[index];
    const uint32_t first = schedule->nsteps;
    if (is_plain(schedule, step))
        lap_add_step(schedule, step);
    else
        for (uint32_t b = 0; b < step->count; b++)
            add_block(schedule, step, step->first + b);
    if (schedule->status != LAP_OK)
        return;
    for (uint16_t d = 0; d < step->ndeps; d++)
        lap_add_dep(schedule, first, lasts[lap_step_dep(whole, step, d)]);
}

lap_status_t lap_lower_blocks(lap_schedule_t *schedule, const lap_target_t *target)
{
    (void)target;
    lap_schedule_t whole = *schedule;
    const uint32_t count = whole.nsteps;
    uint32_t *lasts = lap_alloc(count, sizeof(*lasts)); /* of the steps that each step has become */
    if (!lasts)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the blocks of %u steps", count);
    schedule->steps = NULL;
    schedule->deps = NULL;
    schedule->nsteps = schedule->ndeps = 0;
    schedule->steps_room = schedule->deps_room = 0;
    for (uint32_t i = 0; i < count && schedule->status == LAP_OK; i++) {
        add_parts(schedule, &whole, i, lasts);
        lasts[i] = schedule->nsteps - 1;
    }
    lap_free(whole.steps);
    lap_free(whole.deps);
    lap_free(lasts);
    return schedule->status;
}
