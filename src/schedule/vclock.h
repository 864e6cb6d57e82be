/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vector clocks: which steps of a schedule have ended when a step begins, with a component for each
 * stream. Lowering passes add and prune dependencies by them.
 */
#ifndef LAP_SCHEDULE_VCLOCK_H
#define LAP_SCHEDULE_VCLOCK_H

#include "schedule/schedule.h"

/* Of each stream, the index after the latest step that has ended, or how many have; 0: none has. */
typedef struct lap_vclock {
    uint32_t end[LAP_STREAMS];
} lap_vclock_t;

static inline void lap_vclock_join(lap_vclock_t *clock, const lap_vclock_t *other)
{
    for (int s = 0; s < LAP_STREAMS; s++)
        if (clock->end[s] < other->end[s])
            clock->end[s] = other->end[s];
}

/* A walk along the steps of a schedule. */
typedef struct lap_vclocks {
    lap_schedule_t *schedule;
    lap_vclock_t streams[LAP_STREAMS]; /* of the next step of each */
    lap_vclock_t *begins, *ends;       /* per step: when it begins, and when it has ended */
} lap_vclocks_t;

/* Begins a walk; the caller ends it with lap_vclocks_clear, also after a failure. */
lap_status_t lap_vclocks_init(lap_vclocks_t *clocks, lap_schedule_t *schedule);
void lap_vclocks_clear(lap_vclocks_t *clocks);

/*
 * Visits the next step, with the dependencies that it has. Steps in `needs` that these do not imply
 * become dependencies, as few as possible; NULL: none.
 */
void lap_vclocks_visit(lap_vclocks_t *clocks, uint32_t step, const lap_vclock_t *needs);

#endif
