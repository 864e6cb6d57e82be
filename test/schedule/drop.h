/* SPDX-License-Identifier: Apache-2.0 */
/* Taking something out of a schedule, for tests that a proof finds it missing. False: it is not there. */
#ifndef LAP_TEST_SCHEDULE_DROP_H
#define LAP_TEST_SCHEDULE_DROP_H

#include <string.h>

#include "schedule/schedule.h"

/* A step that does nothing, on the same stream with the same dependencies. */
static inline void make_idle(lap_step_t *step, int rank)
{
    lap_step_t idle = {.kind = LAP_STEP_COPY, .stream = step->stream, .ndeps = step->ndeps};
    memcpy(idle.deps, step->deps, sizeof(idle.deps));
    idle.src.place = idle.dst.place = LAP_SCRATCH;
    idle.src.rank = idle.dst.rank = rank;
    *step = idle;
}

/* The signal of a put. */
static inline bool drop_signal(lap_step_t *step)
{
    if (step->kind != LAP_STEP_PUT || step->signal == LAP_NO_SIGNAL)
        return false;
    step->signal = LAP_NO_SIGNAL;
    return true;
}

static inline bool drop_dep(lap_step_t *step, uint32_t item)
{
    if (item >= step->ndeps)
        return false;
    step->deps[item] = step->deps[--step->ndeps];
    return true;
}

/* The signal that a block waits for, or that it raises: a field of it. */
static inline bool drop_block_signal(uint32_t *signal)
{
    const bool there = *signal != LAP_NO_SIGNAL;
    *signal = LAP_NO_SIGNAL;
    return there;
}

#endif
