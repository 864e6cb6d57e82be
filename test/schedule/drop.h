/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Taking something out of a schedule, for tests that a proof finds it missing (false: it is not
 * there), and what order is left without it.
 */
#ifndef LAP_TEST_SCHEDULE_DROP_H
#define LAP_TEST_SCHEDULE_DROP_H

#include <stdlib.h>
#include <string.h>

#include "schedule/schedule.h"

/* A use of a step, or of a tile, to be changed; it must be there. */
static inline lap_range_t *range_in(lap_schedule_t *schedule, uint32_t first, uint32_t count,
                                    lap_role_t role)
{
    for (uint32_t i = first; i < first + count; i++)
        if (schedule->uses[i].role == role)
            return &schedule->uses[i].range;
    exit(1);
}

static inline lap_range_t *step_range(lap_schedule_t *schedule, uint32_t step, lap_role_t role)
{
    const lap_step_t *of = &schedule->steps[step];
    return range_in(schedule, of->first_use, of->nuses, role);
}

static inline lap_range_t *tile_range(lap_schedule_t *schedule, uint32_t tile, lap_role_t role)
{
    const lap_tile_t *of = &schedule->tiles[tile];
    return range_in(schedule, of->first_use, of->nuses, role);
}

/* A step that does nothing, on the same stream with the same dependencies. */
static inline void make_idle(lap_step_t *step)
{
    *step = (lap_step_t){.kind = LAP_STEP_COPY,
                         .stream = step->stream,
                         .ndeps = step->ndeps,
                         .first_dep = step->first_dep,
                         .signal = LAP_SIGNAL_NONE};
}

/* The signal of a put. */
static inline bool drop_signal(lap_step_t *step)
{
    const bool there = step->kind == LAP_STEP_PUT && step->signal.word != LAP_NO_SIGNAL;
    if (there)
        step->signal.word = LAP_NO_SIGNAL;
    return there;
}

/* The table keeps what the step had: a step that is put back has it again. */
static inline bool drop_dep(lap_schedule_t *schedule, uint32_t index, uint32_t item)
{
    lap_step_t *step = &schedule->steps[index];
    const lap_step_t whole = *step;
    if (item >= whole.ndeps)
        return false;
    step->ndeps = 0;
    for (uint32_t d = 0; d < whole.ndeps; d++)
        if (d != item)
            lap_add_dep(schedule, index, lap_step_dep(schedule, &whole, d));
    return true;
}

/* The signal that a tile waits for, or that it raises. */
static inline bool drop_tile_signal(lap_signal_t *signal)
{
    const bool there = signal->word != LAP_NO_SIGNAL;
    signal->word = LAP_NO_SIGNAL;
    return there;
}

/* Whether `step` comes after `other` in a schedule whose dependency `dep` of `step` is left out. */
static inline bool is_behind(const lap_schedule_t *schedule, uint32_t step, uint32_t other,
                             uint32_t dep)
{
    static bool past[1 << 16];
    memset(past, 0, step + 1);
    past[step] = true;
    for (uint32_t later = step; later > other; later--) {
        const lap_step_t *taken = &schedule->steps[later];
        for (uint32_t i = 0; past[later] && i < later; i++)
            past[i] = past[i] || schedule->steps[i].stream == taken->stream;
        for (uint16_t d = 0; past[later] && d < taken->ndeps; d++)
            if (later != step || d != dep)
                past[lap_step_dep(schedule, taken, d)] = true;
    }
    return past[other];
}

/* Whether what `step` waits for at that place has been waited for before it. */
static inline bool is_waited_for(const lap_schedule_t *schedule, uint32_t index,
                                 const lap_step_t *step)
{
    bool found = false;
    for (uint32_t i = 0; i < index && step->kind == LAP_STEP_WAIT; i++) {
        const lap_step_t *other = &schedule->steps[i];
        found = found || (other->kind == LAP_STEP_WAIT && other->signal.word == step->signal.word &&
                          other->signal.count >= step->signal.count &&
                          is_behind(schedule, index, i, UINT32_MAX));
    }
    return found;
}

#endif
