/* SPDX-License-Identifier: Apache-2.0 */
/* What was hidden on ranks, and when they waited, from the records of a trace. */
#include "core/status.h"
#include "schedule/trace.h"
#include "util/alloc.h"

/* ---- what ranks did ---- */

/* The ranks that are looked at, and when. */
typedef struct looking {
    int first, end;
    const lap_interval_t *within;
    lap_rank_times_t *times;
} looking_t;

static void add(const looking_t *looking, lap_intervals_t *list, uint64_t begin, uint64_t end)
{
    const lap_interval_t *within = looking->within;
    lap_intervals_add(list, begin > within->begin ? begin : within->begin,
                      end < within->end ? end : within->end);
}

/* NULL: the rank is not looked at. */
static lap_rank_times_t *times_of(const looking_t *looking, int rank)
{
    return rank >= looking->first && rank < looking->end ? &looking->times[rank - looking->first]
                                                         : NULL;
}

static void look(const looking_t *looking, const lap_trace_record_t *record)
{
    const lap_span_t *span = &record->span, *flight = &record->flight;
    lap_rank_times_t *own = times_of(looking, record->rank);
    lap_rank_times_t *peer = times_of(looking, record->peer);
    if (own && lap_step_computes(record->kind, record->stream))
        add(looking, &own->busy, span->begin, span->end);
    if (own && own != peer)
        add(looking, &own->flight, flight->begin, flight->end);
    if (peer && own != peer)
        add(looking, &peer->flight, flight->begin, flight->end);
}

static lap_status_t finish(const lap_trace_t *trace, lap_rank_times_t *times)
{
    lap_intervals_join(&times->busy);
    lap_intervals_join(&times->flight);
    times->unhidden = lap_intervals_without(&times->flight, &times->busy);
    times->busy_ns = lap_intervals_length(&times->busy);
    times->flight_ns = lap_intervals_length(&times->flight);
    times->hidden_ns = times->flight_ns - lap_intervals_length(&times->unhidden);
    return times->unhidden.failed
               ? lap_error(LAP_ERR_NO_MEMORY, "no memory to look at a trace of %zu records",
                           trace->nrecords)
               : LAP_OK;
}

lap_status_t lap_trace_times(const lap_trace_t *trace, int first, int end,
                             const lap_interval_t *within, const lap_intervals_t *work,
                             lap_rank_times_t *times)
{
    const looking_t looking = {first, end, within, times};
    for (size_t i = 0; i < trace->nrecords; i++)
        look(&looking, &trace->records[i]);
    for (lap_rank_times_t *it = times; it < times + (end - first); it++) {
        for (size_t i = 0; work && i < work->count; i++)
            add(&looking, &it->busy, work->list[i].begin, work->list[i].end);
        LAP_TRY(finish(trace, it));
    }
    return LAP_OK;
}

void lap_rank_times_clear(lap_rank_times_t *times)
{
    lap_intervals_clear(&times->busy);
    lap_intervals_clear(&times->flight);
    lap_intervals_clear(&times->unhidden);
}

/* ---- a call ---- */

lap_status_t lap_trace_view(const lap_trace_t *trace, int rank, const lap_intervals_t *work,
                            lap_trace_view_t *view_p)
{
    lap_trace_view_t view = {.call = {trace->begin, trace->end}};
    if (trace->calls)
        view.call = (lap_interval_t){trace->calls[rank].begin, trace->calls[rank].end};
    const lap_intervals_t call = {.list = &view.call, .count = view.call.begin < view.call.end};
    lap_status_t status = lap_trace_times(trace, rank, rank + 1, &view.call, work, &view.times);
    view.idle = lap_intervals_without(&call, &view.times.busy);
    view.waited_ns = lap_intervals_length(&view.idle);
    if (status == LAP_OK && view.idle.failed)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for the pauses of a call");
    if (status == LAP_OK)
        status = lap_trace_find_causes(trace, rank, &view);
    if (status == LAP_OK)
        *view_p = view;
    else
        lap_trace_view_clear(&view);
    return status;
}

void lap_trace_view_clear(lap_trace_view_t *view)
{
    lap_rank_times_clear(&view->times);
    lap_intervals_clear(&view->idle);
    lap_free(view->pauses);
    view->pauses = NULL;
}
