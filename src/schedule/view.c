/* SPDX-License-Identifier: Apache-2.0 */
/* What was hidden and what was exposed on a rank, from the records of a trace. */
#include <stdlib.h>

#include "core/status.h"
#include "schedule/trace.h"
#include "util/alloc.h"

static int compare_intervals(const void *left, const void *right)
{
    const lap_interval_t *a = left, *b = right;
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

size_t lap_intervals_join(lap_interval_t *list, size_t count)
{
    if (count == 0)
        return 0;
    qsort(list, count, sizeof(*list), compare_intervals);
    size_t last = 0;
    for (size_t i = 1; i < count; i++) {
        if (list[i].begin > list[last].end)
            list[++last] = list[i];
        else if (list[i].end > list[last].end)
            list[last].end = list[i].end;
    }
    return last + 1;
}

void lap_intervals_add(lap_interval_t *list, size_t *count, uint64_t begin, uint64_t end)
{
    if (begin < end)
        list[(*count)++] = (lap_interval_t){begin, end};
}

size_t lap_intervals_without(const lap_interval_t *list, size_t count, const lap_interval_t *other,
                             size_t nother, lap_interval_t *rest)
{
    size_t nrest = 0, first = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t at = list[i].begin;
        while (first < nother && other[first].end <= at)
            first++;
        for (size_t j = first; j < nother && other[j].begin < list[i].end; j++) {
            lap_intervals_add(rest, &nrest, at, other[j].begin);
            at = other[j].end;
        }
        lap_intervals_add(rest, &nrest, at, list[i].end);
    }
    return nrest;
}

uint64_t lap_intervals_length(const lap_interval_t *list, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += list[i].end - list[i].begin;
    return sum;
}

/* Appends what of a span lies within the call. */
static void append(lap_interval_t *list, size_t *count, uint64_t begin, uint64_t end,
                   const lap_interval_t *call)
{
    lap_intervals_add(list, count, begin > call->begin ? begin : call->begin,
                      end < call->end ? end : call->end);
}

lap_status_t lap_trace_view(const lap_trace_t *trace, int rank, lap_trace_view_t *view_p)
{
    return lap_trace_view_among(trace, rank, NULL, 0, view_p);
}

lap_status_t lap_trace_view_among(const lap_trace_t *trace, int rank, const lap_interval_t *work,
                                  size_t nwork, lap_trace_view_t *view_p)
{
    lap_trace_view_t view = {.call = {trace->begin, trace->end}};
    if (trace->calls)
        view.call = (lap_interval_t){trace->calls[rank].begin, trace->calls[rank].end};
    lap_interval_t *busy = lap_alloc(trace->nrecords + nwork, sizeof(*busy));
    view.flights = lap_alloc(trace->nrecords, sizeof(*view.flights));
    view.idle = lap_alloc(2 * trace->nrecords + nwork + 1, sizeof(*view.idle));
    lap_status_t status = LAP_OK;
    if (!busy || !view.flights || !view.idle) {
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to look at a trace of %zu records",
                           trace->nrecords);
        goto out;
    }
    size_t nbusy = 0;
    for (size_t i = 0; i < trace->nrecords; i++) {
        const lap_trace_record_t *record = &trace->records[i];
        if (record->rank == rank && lap_step_computes(record->kind, record->stream))
            append(busy, &nbusy, record->span.begin, record->span.end, &view.call);
        if (record->rank == rank || record->peer == rank)
            append(view.flights, &view.nflights, record->flight.begin, record->flight.end,
                   &view.call);
    }
    for (size_t i = 0; i < nwork; i++)
        append(busy, &nbusy, work[i].begin, work[i].end, &view.call);
    nbusy = lap_intervals_join(busy, nbusy);
    view.nflights = lap_intervals_join(view.flights, view.nflights);
    view.flight_ns = lap_intervals_length(view.flights, view.nflights);
    /* First what was in flight and not hidden, then the pauses of all. */
    view.nidle = lap_intervals_without(view.flights, view.nflights, busy, nbusy, view.idle);
    view.hidden_ns = view.flight_ns - lap_intervals_length(view.idle, view.nidle);
    view.nidle = lap_intervals_without(&view.call, 1, busy, nbusy, view.idle);
    view.exposed_ns = lap_intervals_length(view.idle, view.nidle);
    status = lap_trace_find_causes(trace, rank, &view);
    if (status != LAP_OK)
        goto out;
    *view_p = view;
    view = (lap_trace_view_t){.idle = NULL};
out:
    lap_trace_view_clear(&view);
    lap_free(busy);
    return status;
}

void lap_trace_view_clear(lap_trace_view_t *view)
{
    lap_free(view->idle);
    lap_free(view->flights);
    lap_free(view->exposed);
    view->idle = view->flights = NULL;
    view->exposed = NULL;
}
