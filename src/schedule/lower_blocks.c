/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pass "blocks": where a device's GEMMs cannot wait for signals or raise them, each tile becomes
 * a GEMM step of its own, with a WAIT before it and a RAISE after it if it has such signals. Tiles
 * then run in the order of the list.
 */
#include "core/status.h"
#include "schedule/lower.h"
#include "util/alloc.h"

static bool is_plain(const lap_schedule_t *schedule, const lap_step_t *step)
{
    if (step->ntiles == 0)
        return true;
    const lap_tile_t *tile = &schedule->tiles[step->first_tile];
    return step->ntiles == 1 && tile->wait.word == LAP_NO_SIGNAL &&
           tile->raise.word == LAP_NO_SIGNAL;
}

/* A step that waits for the signal of a tile, or raises it, if the tile has one. */
static void add_signal(lap_schedule_t *schedule, lap_step_kind_t kind, const lap_step_t *whole,
                       lap_signal_t *signal)
{
    const lap_step_t step = {
        .kind = kind, .stream = whole->stream, .origin = whole->origin, .signal = *signal};
    if (signal->word != LAP_NO_SIGNAL)
        lap_add_step(schedule, &step);
    signal->word = LAP_NO_SIGNAL;
}

static void add_tile(lap_schedule_t *schedule, const lap_step_t *whole, uint32_t index)
{
    lap_tile_t *tile = &schedule->tiles[index];
    lap_step_t gemm = *whole;
    gemm.first_tile = index;
    gemm.ntiles = 1;
    add_signal(schedule, LAP_STEP_WAIT, whole, &tile->wait);
    lap_add_step(schedule, &gemm);
    add_signal(schedule, LAP_STEP_RAISE, whole, &tile->raise);
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
        for (uint32_t t = 0; t < step->ntiles; t++)
            add_tile(schedule, step, step->first_tile + t);
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
