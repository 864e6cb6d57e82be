/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of intervals, and the lengths of their unions. */
#include "schedule/comm_times.h"

#include "core/status.h"
#include "util/alloc.h"

void lap_interval_list_add(lap_interval_list_t *list, uint64_t begin, uint64_t end)
{
    if (begin >= end || list->failed)
        return;
    if (list->count == list->room) {
        const size_t room = list->room ? 2 * list->room : 64;
        lap_interval_t *more = lap_realloc(list->list, list->room, room, sizeof(*more));
        list->failed = !more;
        if (!more)
            return;
        list->list = more;
        list->room = room;
    }
    list->list[list->count++] = (lap_interval_t){begin, end};
}

void lap_interval_list_clear(lap_interval_list_t *list)
{
    lap_free(list->list);
    *list = (lap_interval_list_t){.list = NULL};
}

static void append(lap_interval_list_t *list, const lap_interval_list_t *other)
{
    list->failed = list->failed || other->failed;
    for (size_t i = 0; i < other->count; i++)
        lap_interval_list_add(list, other->list[i].begin, other->list[i].end);
}

static void join(lap_interval_list_t *list)
{
    list->count = lap_intervals_join(list->list, list->count);
}

void lap_comm_times_fly(lap_comm_times_t *times, const lap_trace_view_t *view)
{
    for (size_t i = 0; times && i < view->nflights; i++)
        lap_interval_list_add(&times->flight, view->flights[i].begin, view->flights[i].end);
}

void lap_comm_times_expose(lap_comm_times_t *times, lap_cause_t cause, uint64_t begin, uint64_t end)
{
    if (times)
        lap_interval_list_add(&times->exposed[cause], begin, end);
}

void lap_comm_times_explain(lap_comm_times_t *times, const lap_trace_view_t *view, uint64_t ahead)
{
    for (size_t i = 0; i < view->nexposed; i++) {
        const lap_exposed_t *piece = &view->exposed[i];
        lap_comm_times_expose(times, piece->cause, piece->begin - ahead, piece->end - ahead);
    }
}

void lap_comm_times_join(lap_comm_times_t *times, const lap_comm_times_t *other)
{
    append(&times->flight, &other->flight);
    for (int c = 0; c < LAP_CAUSES; c++)
        append(&times->exposed[c], &other->exposed[c]);
}

void lap_comm_times_clear(lap_comm_times_t *times)
{
    lap_interval_list_clear(&times->flight);
    for (int c = 0; c < LAP_CAUSES; c++)
        lap_interval_list_clear(&times->exposed[c]);
}

/* Makes *rest_p what of a joined list another does not cover. */
static bool without(const lap_interval_list_t *list, const lap_interval_list_t *other,
                    lap_interval_list_t *rest_p)
{
    const size_t room = list->count + other->count + 1;
    lap_interval_t *rest = lap_alloc(room, sizeof(*rest));
    if (!rest)
        return false;
    *rest_p = (lap_interval_list_t){.list = rest, .room = room};
    rest_p->count = lap_intervals_without(list->list, list->count, other->list, other->count, rest);
    return true;
}

static uint64_t length(const lap_interval_list_t *list)
{
    return lap_intervals_length(list->list, list->count);
}

/* Takes out of a joined list what another covers. */
static bool take_out(lap_interval_list_t *list, const lap_interval_list_t *other)
{
    lap_interval_list_t rest;
    if (!without(list, other, &rest))
        return false;
    lap_interval_list_clear(list);
    *list = rest;
    return true;
}

/* What of a list lies within `step`, joined. */
static bool clip(const lap_interval_list_t *list, const lap_interval_list_t *step,
                 lap_interval_list_t *inside)
{
    lap_interval_list_t outside = {.list = NULL};
    append(inside, list);
    join(inside);
    const bool done =
        !inside->failed && without(inside, step, &outside) && take_out(inside, &outside);
    lap_interval_list_clear(&outside);
    return done;
}

/* What of a cause counts: within the step, while nothing computed, and for no cause before it. */
static bool add_cause(const lap_interval_list_t *list, const lap_interval_list_t *busy,
                      const lap_interval_list_t *step, lap_interval_list_t *exposed,
                      uint64_t *length_p)
{
    lap_interval_list_t own = {.list = NULL};
    const bool done = clip(list, step, &own) && take_out(&own, busy) && take_out(&own, exposed);
    if (done) {
        *length_p = length(&own);
        append(exposed, &own);
        join(exposed);
    }
    lap_interval_list_clear(&own);
    return done && !exposed->failed;
}

lap_status_t lap_comm_times_sum(const lap_comm_times_t *times, lap_interval_list_t *busy,
                                lap_interval_list_t *step, lap_comm_sum_t *sum_p)
{
    lap_interval_list_t flight = {.list = NULL}, exposed = {.list = NULL};
    lap_comm_sum_t sum = {.flight = 0};
    join(busy);
    join(step);
    bool done = !busy->failed && !step->failed && clip(&times->flight, step, &flight);
    sum.flight = length(&flight);
    for (int c = 0; c < LAP_CAUSES; c++)
        done = done && add_cause(&times->exposed[c], busy, step, &exposed, &sum.causes[c]);
    sum.exposed = length(&exposed);
    done = done && take_out(&flight, &exposed);
    sum.hidden = length(&flight);
    lap_interval_list_clear(&flight);
    lap_interval_list_clear(&exposed);
    if (!done)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the times of communication");
    *sum_p = sum;
    return LAP_OK;
}
