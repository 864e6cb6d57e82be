/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When communication of a rank was in flight, and when the rank waited for it: intervals instead of
 * sums, so that what happens at the same time, in whichever group, counts once.
 */
#ifndef LAP_SCHEDULE_COMM_TIMES_H
#define LAP_SCHEDULE_COMM_TIMES_H

#include "schedule/trace.h"

/* By the clock of the rank. All zero at first; lap_comm_times_clear ends it, and leaves it so. */
typedef struct lap_comm_times {
    lap_intervals_t flight;             /* something was on its way from the rank, or to it */
    lap_intervals_t waited[LAP_CAUSES]; /* the rank stood still in a call, for this */
} lap_comm_times_t;

/* What was in flight during a call. Here as below `times` may be NULL. */
void lap_comm_times_fly(lap_comm_times_t *times, const lap_intervals_t *flights);

/* An interval in which the rank waited. */
void lap_comm_times_wait(lap_comm_times_t *times, lap_cause_t cause, uint64_t begin, uint64_t end);

/* Those of a call by their causes. */
void lap_comm_times_explain(lap_comm_times_t *times, const lap_trace_view_t *view);

/* Adds all of another. */
void lap_comm_times_join(lap_comm_times_t *times, const lap_comm_times_t *other);
void lap_comm_times_clear(lap_comm_times_t *times);

/* The lengths, in nanoseconds. */
typedef struct lap_comm_sum {
    uint64_t flight;             /* something was on its way, */
    uint64_t hidden;             /* ... and the rank computed; the rest is exposed */
    uint64_t waited;             /* the rank waited, whether or not something was on its way, */
    uint64_t causes[LAP_CAUSES]; /* for these, which add up to it; for several at once: the first */
} lap_comm_sum_t;

/*
 * Adds up what lies within `step`. A rank that computed, in `busy`, did not wait, nor did it in a bubble of a
 * pipeline. Joins the intervals of the three lists. LAP_ERR_NO_MEMORY, also where an interval could not be added.
 */
lap_status_t lap_comm_times_sum(const lap_comm_times_t *times, lap_intervals_t *busy,
                                lap_intervals_t *bubbles, lap_intervals_t *step,
                                lap_comm_sum_t *sum_p);

#endif
