/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which steps of a schedule are over when a step begins: vector clocks, with a component for each stream.
 * For lowering passes, which add and prune dependencies by them.
 */
#ifndef LAP_SCHEDULE_PAST_H
#define LAP_SCHEDULE_PAST_H

#include "schedule/schedule.h"

/* Of each stream, the index after the latest step that is over; 0: none is. */
typedef struct lap_past {
    uint32_t end[LAP_STREAMS];
} lap_past_t;

static inline void lap_past_join(lap_past_t *past, const lap_past_t *other)
{
    for (int s = 0; s < LAP_STREAMS; s++)
        if (past->end[s] < other->end[s])
            past->end[s] = other->end[s];
}

/* A walk along the list of a schedule. */
typedef struct lap_pasts {
    lap_schedule_t *schedule;
    lap_past_t streams[LAP_STREAMS]; /* of what comes next on each */
    lap_past_t *begins, *ends;       /* per step: when it begins, and when it has ended */
} lap_pasts_t;

/* Makes room for a walk; the caller gives it back with lap_pasts_clear, also after a failure. */
lap_status_t lap_pasts_init(lap_pasts_t *pasts, lap_schedule_t *schedule);
void lap_pasts_clear(lap_pasts_t *pasts);

/*
 * Takes the next step of the list, with the dependencies that it has. What else it `needs` becomes
 * dependencies, as few as possible; NULL: nothing.
 */
void lap_pasts_take(lap_pasts_t *pasts, uint32_t step, const lap_past_t *needs);

#endif
