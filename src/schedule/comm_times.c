/* SPDX-License-Identifier: Apache-2.0 */
#include "schedule/comm_times.h"

#include "core/status.h"

void lap_comm_times_fly(lap_comm_times_t *times, const lap_intervals_t *flights)
{
    if (times)
        lap_intervals_append(&times->flight, flights);
}

void lap_comm_times_wait(lap_comm_times_t *times, lap_cause_t cause, uint64_t begin, uint64_t end)
{
    if (times)
        lap_intervals_add(&times->waited[cause], begin, end);
}

void lap_comm_times_explain(lap_comm_times_t *times, const lap_trace_view_t *view)
{
    for (size_t i = 0; i < view->npauses; i++) {
        const lap_pause_t *piece = &view->pauses[i];
        lap_comm_times_wait(times, piece->cause, piece->begin, piece->end);
    }
}

void lap_comm_times_join(lap_comm_times_t *times, const lap_comm_times_t *other)
{
    lap_intervals_append(&times->flight, &other->flight);
    for (int c = 0; c < LAP_CAUSES; c++)
        lap_intervals_append(&times->waited[c], &other->waited[c]);
}

void lap_comm_times_clear(lap_comm_times_t *times)
{
    lap_intervals_clear(&times->flight);
    for (int c = 0; c < LAP_CAUSES; c++)
        lap_intervals_clear(&times->waited[c]);
}

/* Takes out of a joined list what another covers. */
static void take_out(lap_intervals_t *list, const lap_intervals_t *other)
{
    const lap_intervals_t rest = lap_intervals_without(list, other);
    lap_intervals_clear(list);
    *list = rest;
}

/* What of a list lies within `step`, joined. */
static lap_intervals_t clip(const lap_intervals_t *list, const lap_intervals_t *step)
{
    lap_intervals_t inside = {.list = NULL};
    lap_intervals_append(&inside, list);
    lap_intervals_join(&inside);
    lap_intervals_t outside = lap_intervals_without(&inside, step);
    take_out(&inside, &outside);
    lap_intervals_clear(&outside);
    return inside;
}

/* What of a cause counts: within the step, while nothing computed, and for no cause before it. */
static uint64_t add_cause(const lap_intervals_t *list, const lap_intervals_t *busy,
                          const lap_intervals_t *bubbles, const lap_intervals_t *step,
                          lap_intervals_t *waited)
{
    lap_intervals_t own = clip(list, step);
    take_out(&own, busy);
    take_out(&own, bubbles);
    take_out(&own, waited);
    const uint64_t length = lap_intervals_length(&own);
    lap_intervals_append(waited, &own);
    lap_intervals_join(waited);
    lap_intervals_clear(&own);
    return length;
}

lap_status_t lap_comm_times_sum(const lap_comm_times_t *times, lap_intervals_t *busy,
                                lap_intervals_t *bubbles, lap_intervals_t *step,
                                lap_comm_sum_t *sum_p)
{
    lap_intervals_t waited = {.list = NULL};
    lap_comm_sum_t sum = {.flight = 0};
    lap_intervals_join(busy);
    lap_intervals_join(bubbles);
    lap_intervals_join(step);
    lap_intervals_t flight = clip(&times->flight, step);
    sum.flight = lap_intervals_length(&flight);
    take_out(&flight, busy);
    sum.hidden = sum.flight - lap_intervals_length(&flight);
    for (int c = 0; c < LAP_CAUSES; c++)
        sum.causes[c] = add_cause(&times->waited[c], busy, bubbles, step, &waited);
    sum.waited = lap_intervals_length(&waited);
    const bool failed = flight.failed || waited.failed; /* as any of those that they were made of */
    lap_intervals_clear(&flight);
    lap_intervals_clear(&waited);
    if (failed)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the times of communication");
    *sum_p = sum;
    return LAP_OK;
}
