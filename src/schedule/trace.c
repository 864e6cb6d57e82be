/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces: room for the records of a call, which the executor fills; bringing those of all ranks to
 * rank 0; and what was hidden or exposed on a rank. What a record means is in trace.h; the picture
 * is in draw.c.
 */
#include "schedule/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "core/world.h"
#include "schedule/gather_records.h"
#include "util/alloc.h"
#include "util/clock.h"
#include "util/run_delay.h"

lap_status_t lap_trace_create(lap_trace_t **trace_p)
{
    if (!trace_p)
        return lap_error(LAP_ERR_INVALID,
                         "trace_p is NULL: expected a pointer to write the trace to");
    lap_trace_t *trace = lap_alloc(1, sizeof(lap_trace_t));
    if (!trace)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a trace");
    *trace_p = trace;
    return LAP_OK;
}

void lap_trace_destroy(lap_trace_t *trace)
{
    if (!trace)
        return;
    lap_free(trace->records);
    lap_free(trace->calls);
    lap_free(trace);
}

lap_status_t lap_trace_begin(lap_trace_t *trace, lap_op_kind_t kind, const char *method, int size,
                             size_t m, bool emulated, size_t nrecords)
{
    trace->kind = kind;
    snprintf(trace->method, sizeof(trace->method), "%s", method);
    trace->size = size;
    trace->m = m;
    trace->emulated = emulated;
    trace->begin = trace->end = trace->delay = 0;
    trace->nrecords = 0;
    lap_free(trace->calls);
    trace->calls = NULL;
    if (nrecords > trace->records_room) {
        lap_trace_record_t *records =
            lap_realloc(trace->records, trace->records_room, nrecords, sizeof(*records));
        if (!records)
            return lap_error(LAP_ERR_NO_MEMORY, "no memory for a trace of %zu records", nrecords);
        trace->records = records;
        trace->records_room = nrecords;
    }
    if (nrecords > 0)
        memset(trace->records, 0, nrecords * sizeof(*trace->records));
    trace->nrecords = nrecords;
    return LAP_OK;
}

lap_status_t lap_trace_join(lap_trace_t *trace, const lap_trace_t *other)
{
    const size_t count = trace->nrecords + other->nrecords;
    lap_trace_record_t *records =
        lap_realloc(trace->records, trace->nrecords, count, sizeof(*records));
    if (!records)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a trace of %zu records", count);
    if (other->nrecords > 0)
        memcpy(records + trace->nrecords, other->records, other->nrecords * sizeof(*records));
    const uint32_t call = trace->nrecords > 0 ? records[trace->nrecords - 1].call + 1 : 0;
    for (size_t i = trace->nrecords; i < count; i++)
        records[i].call = call;
    trace->records = records;
    trace->nrecords = trace->records_room = count;
    trace->begin = other->begin < trace->begin ? other->begin : trace->begin;
    trace->end = other->end > trace->end ? other->end : trace->end;
    return LAP_OK;
}

double lap_trace_bytes(const lap_trace_t *trace)
{
    double bytes = 0;
    for (size_t i = 0; i < trace->nrecords; i++)
        if (trace->records[i].peer != trace->records[i].rank)
            bytes += (double)trace->records[i].bytes;
    return bytes;
}

void lap_trace_mark(lap_trace_t *trace)
{
    trace->delay_before = lap_run_delay_ns();
    trace->marked = true;
}

void lap_trace_start(lap_trace_t *trace)
{
    const uint64_t delay = trace->marked ? lap_run_delay_ns() : 0;
    trace->delay = delay > trace->delay_before ? delay - trace->delay_before : 0;
    trace->marked = false;
    trace->begin = lap_now_ns();
}

/* The steps of one rank, or all; a call without any stays as it is. */
static void trim(const lap_trace_t *trace, int rank, lap_trace_call_t *call)
{
    lap_trace_call_t found = {.begin = UINT64_MAX};
    for (size_t i = 0; i < trace->nrecords; i++) {
        const lap_trace_record_t *record = &trace->records[i];
        const lap_span_t *span = &record->span;
        if (span->end == 0 || (rank >= 0 && record->rank != rank))
            continue;
        if (span->ready < found.begin) {
            found.begin = span->ready;
            found.delay = record->delays.before;
        }
        found.end = span->end > found.end ? span->end : found.end;
    }
    if (found.end > 0)
        *call = found;
    else
        call->end = call->begin;
}

void lap_trace_trim(lap_trace_t *trace)
{
    lap_trace_call_t call = {trace->begin, trace->end, trace->delay};
    trim(trace, -1, &call);
    trace->begin = call.begin;
    trace->end = call.end;
    trace->delay = call.delay;
    for (int r = 0; trace->calls && r < trace->size; r++)
        trim(trace, r, &trace->calls[r]);
}

static void shift_span(lap_span_t *span, const lap_clock_offset_t *clock)
{
    lap_clock_shift(clock, &span->ready);
    lap_clock_shift(clock, &span->begin);
    lap_clock_shift(clock, &span->end);
}

/* Puts what was gathered in the place of what the trace held. */
static void adopt(lap_trace_t *trace, const lap_gathered_t *gathered, lap_trace_call_t *calls,
                  int size)
{
    lap_trace_record_t *next = gathered->records;
    for (int r = 0; r < size; r++) {
        const lap_clock_offset_t *clock = &gathered->clocks[r];
        lap_clock_shift(clock, &calls[r].begin);
        lap_clock_shift(clock, &calls[r].end);
        trace->begin = r == 0 || calls[r].begin < trace->begin ? calls[r].begin : trace->begin;
        trace->end = r == 0 || calls[r].end > trace->end ? calls[r].end : trace->end;
        for (size_t i = 0; i < gathered->counts[r]; i++, next++) {
            shift_span(&next->span, clock);
            shift_span(&next->flight, clock);
        }
    }
    lap_free(trace->records);
    trace->records = gathered->records;
    trace->nrecords = trace->records_room = gathered->total;
    trace->calls = calls;
    trace->size = size;
}

static lap_status_t gather_to(lap_trace_t *trace, lap_group_t *group, bool wanted)
{
    if (!trace || !group)
        return lap_error(LAP_ERR_INVALID, "%s is NULL: expected the %s of a call that has ended",
                         trace ? "group" : "trace", trace ? "group" : "trace");
    const lap_trace_call_t mine = {trace->begin, trace->end, trace->delay};
    void *calls = NULL;
    lap_gathered_t gathered;
    /* A rank that cannot take part says so before the others wait for its records. */
    LAP_TRY(lap_group_agree(
        group,
        trace->calls ? lap_error(LAP_ERR_INVALID, "the trace has been gathered already") : LAP_OK));
    LAP_TRY(lap_group_collect(group, &mine, sizeof(mine), &calls));
    const lap_status_t status = lap_gather(group, trace->records, trace->nrecords,
                                           sizeof(*trace->records), wanted, &gathered);
    if (status == LAP_OK && wanted) {
        adopt(trace, &gathered, calls, group->size);
        gathered.records = calls = NULL;
    }
    if (status == LAP_OK)
        lap_gathered_clear(&gathered);
    lap_free(calls);
    return status;
}

lap_status_t lap_trace_gather(lap_trace_t *trace, lap_group_t *group)
{
    return gather_to(trace, group, group && lap_group_rank(group) == 0);
}

lap_status_t lap_trace_share(lap_trace_t *trace, lap_group_t *group)
{
    return gather_to(trace, group, true);
}

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
    lap_interval_t *flight = lap_alloc(trace->nrecords, sizeof(*flight));
    view.idle = lap_alloc(2 * trace->nrecords + nwork + 1, sizeof(*view.idle));
    lap_status_t status = LAP_OK;
    if (!busy || !flight || !view.idle) {
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to look at a trace of %zu records",
                           trace->nrecords);
        goto out;
    }
    size_t nbusy = 0, nflight = 0;
    for (size_t i = 0; i < trace->nrecords; i++) {
        const lap_trace_record_t *record = &trace->records[i];
        if (record->rank == rank && lap_step_computes(record->kind, record->stream))
            append(busy, &nbusy, record->span.begin, record->span.end, &view.call);
        if (record->rank == rank || record->peer == rank)
            append(flight, &nflight, record->flight.begin, record->flight.end, &view.call);
    }
    for (size_t i = 0; i < nwork; i++)
        append(busy, &nbusy, work[i].begin, work[i].end, &view.call);
    nbusy = lap_intervals_join(busy, nbusy);
    nflight = lap_intervals_join(flight, nflight);
    view.flight_ns = lap_intervals_length(flight, nflight);
    /* First what was in flight and not hidden, then the pauses of all. */
    view.nidle = lap_intervals_without(flight, nflight, busy, nbusy, view.idle);
    view.hidden_ns = view.flight_ns - lap_intervals_length(view.idle, view.nidle);
    view.nidle = lap_intervals_without(&view.call, 1, busy, nbusy, view.idle);
    view.exposed_ns = lap_intervals_length(view.idle, view.nidle);
    status = lap_trace_find_causes(trace, rank, &view);
    if (status != LAP_OK)
        goto out;
    *view_p = view;
    view.idle = NULL;
    view.exposed = NULL;
out:
    lap_trace_view_clear(&view);
    lap_free(flight);
    lap_free(busy);
    return status;
}

void lap_trace_view_clear(lap_trace_view_t *view)
{
    lap_free(view->idle);
    lap_free(view->exposed);
    view->idle = NULL;
    view->exposed = NULL;
}
