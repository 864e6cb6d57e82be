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
#include "util/alloc.h"
#include "util/clock.h"
#include "util/run_delay.h"

#define GATHER_RECORDS 32 /* records of each rank that move in one round of lap_trace_gather */

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

/* What each rank says of its trace before the records move. */
typedef struct gather_head {
    uint64_t begin, end, delay;
    uint64_t nrecords;
    uint64_t now; /* read by all at about the same moment */
} gather_head_t;

/* Everything that gathering allocates; `records` only on ranks that keep them. */
typedef struct gather {
    gather_head_t *heads;
    lap_trace_record_t *mine, *all; /* one round: GATHER_RECORDS of this rank, and of every rank */
    lap_trace_record_t *records;
    size_t *ends; /* where the next record of each rank goes */
    lap_trace_call_t *calls;
    size_t total, most;
} gather_t;

static void gather_clear(gather_t *gather)
{
    lap_free(gather->heads);
    lap_free(gather->mine);
    lap_free(gather->all);
    lap_free(gather->records);
    lap_free(gather->ends);
    lap_free(gather->calls);
}

/* Room for what every rank said it has. */
static lap_status_t gather_alloc(gather_t *gather, size_t size, bool keeps)
{
    for (size_t r = 0; r < size; r++) {
        gather->total += gather->heads[r].nrecords;
        if (gather->heads[r].nrecords > gather->most)
            gather->most = gather->heads[r].nrecords;
    }
    gather->mine = lap_alloc(GATHER_RECORDS, sizeof(*gather->mine));
    gather->all = lap_alloc(size * GATHER_RECORDS, sizeof(*gather->all));
    gather->ends = lap_alloc(size, sizeof(*gather->ends));
    if (keeps) {
        gather->records = lap_alloc(gather->total, sizeof(*gather->records));
        gather->calls = lap_alloc(size, sizeof(*gather->calls));
    }
    if (!gather->mine || !gather->all || !gather->ends ||
        (keeps && (!gather->records || !gather->calls)))
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to gather %zu records of a trace",
                         gather->total);
    return LAP_OK;
}

/*
 * Clocks of different hosts count from different moments. The times of each rank are set by what
 * its clock showed when that of rank 0 showed heads[0].now: right to some tens of microseconds.
 */
static void shift_time(uint64_t *time, uint64_t offset)
{
    if (*time != 0)
        *time += offset; /* across the wrap, when the other clock is ahead */
}

static void shift_span(lap_span_t *span, uint64_t offset)
{
    shift_time(&span->ready, offset);
    shift_time(&span->begin, offset);
    shift_time(&span->end, offset);
}

/* To be added to the times of a rank; 0 for those of this host, who have one clock. */
static uint64_t clock_offset(const gather_t *gather, const lap_group_t *group, size_t rank)
{
    const bool near = group->world->peers[group->members[rank]].heap_fd >= 0 ||
                      group->world->kind == LAP_WORLD_THREADS;
    return near ? 0 : gather->heads[0].now - gather->heads[rank].now;
}

/* Moves the records, a few of every rank at a time; who keeps them has them in rank order. */
static lap_status_t gather_records(gather_t *gather, const lap_trace_t *trace, lap_group_t *group)
{
    size_t size = (size_t)lap_group_size(group);
    for (size_t r = 1; r < size; r++)
        gather->ends[r] = gather->ends[r - 1] + gather->heads[r - 1].nrecords;
    for (size_t first = 0; first < gather->most; first += GATHER_RECORDS) {
        size_t count = trace->nrecords > first ? trace->nrecords - first : 0;
        if (count > GATHER_RECORDS)
            count = GATHER_RECORDS;
        if (count > 0)
            memcpy(gather->mine, trace->records + first, count * sizeof(*gather->mine));
        LAP_TRY(lap_group_allgather(group, gather->mine, GATHER_RECORDS * sizeof(*gather->mine),
                                    gather->all));
        for (size_t r = 0; gather->records && r < size; r++) {
            size_t left = gather->heads[r].nrecords > first ? gather->heads[r].nrecords - first : 0;
            size_t take = left < GATHER_RECORDS ? left : GATHER_RECORDS;
            lap_trace_record_t *records = gather->records + gather->ends[r];
            memcpy(records, gather->all + r * GATHER_RECORDS, take * sizeof(*records));
            for (size_t i = 0; i < take; i++) {
                shift_span(&records[i].span, clock_offset(gather, group, r));
                shift_span(&records[i].flight, clock_offset(gather, group, r));
            }
            gather->ends[r] += take;
        }
    }
    return LAP_OK;
}

/* Puts what was gathered in the place of what the trace held. */
static void gather_adopt(gather_t *gather, lap_trace_t *trace, const lap_group_t *group)
{
    const size_t size = (size_t)lap_group_size(group);
    trace->begin = gather->heads[0].begin;
    trace->end = gather->heads[0].end;
    for (size_t r = 0; r < size; r++) {
        gather_head_t *head = &gather->heads[r];
        shift_time(&head->begin, clock_offset(gather, group, r));
        shift_time(&head->end, clock_offset(gather, group, r));
        gather->calls[r] = (lap_trace_call_t){head->begin, head->end, head->delay};
        if (head->begin < trace->begin)
            trace->begin = head->begin;
        if (head->end > trace->end)
            trace->end = head->end;
    }
    lap_free(trace->records);
    trace->records = gather->records;
    trace->nrecords = trace->records_room = gather->total;
    trace->calls = gather->calls;
    trace->size = (int)size;
    gather->records = NULL;
    gather->calls = NULL;
}

static lap_status_t gather_to(lap_trace_t *trace, lap_group_t *group, bool keeps)
{
    if (!trace || !group)
        return lap_error(LAP_ERR_INVALID, "%s is NULL: expected the %s of a call that has ended",
                         trace ? "group" : "trace", trace ? "group" : "trace");
    size_t size = (size_t)lap_group_size(group);
    gather_t gather = {.heads = lap_alloc(size, sizeof(gather_head_t))};
    lap_status_t status = LAP_OK;
    if (!gather.heads)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to gather the traces of %zu ranks", size);
    else if (trace->calls)
        status = lap_error(LAP_ERR_INVALID, "the trace has been gathered already");
    /* A rank that cannot take part says so before the others wait for its records. */
    status = lap_group_agree(group, status);
    if (status != LAP_OK)
        goto out;
    gather_head_t mine = {trace->begin, trace->end, trace->delay, trace->nrecords, lap_now_ns()};
    status = lap_group_allgather(group, &mine, sizeof(mine), gather.heads);
    if (status != LAP_OK)
        goto out;
    status = lap_group_agree(group, gather_alloc(&gather, size, keeps));
    if (status != LAP_OK)
        goto out;
    status = gather_records(&gather, trace, group);
    if (status == LAP_OK && keeps)
        gather_adopt(&gather, trace, group);
out:
    gather_clear(&gather);
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

/* Sorts intervals and joins those that touch; returns how many are left. */
static size_t join(lap_interval_t *list, size_t count)
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

/* Appends what of a span lies within the call. */
static void append(lap_interval_t *list, size_t *count, const lap_span_t *span,
                   const lap_interval_t *call)
{
    uint64_t begin = span->begin > call->begin ? span->begin : call->begin;
    uint64_t end = span->end < call->end ? span->end : call->end;
    if (begin < end)
        list[(*count)++] = (lap_interval_t){begin, end};
}

/*
 * The parts of the call that none of the joined `busy` intervals covers; `idle` has room for one
 * more than those.
 */
static size_t complement(const lap_interval_t *busy, size_t nbusy, const lap_interval_t *call,
                         lap_interval_t *idle)
{
    size_t count = 0;
    uint64_t at = call->begin;
    for (size_t i = 0; i < nbusy; i++) {
        if (busy[i].begin > at)
            idle[count++] = (lap_interval_t){at, busy[i].begin};
        at = busy[i].end;
    }
    if (call->end > at)
        idle[count++] = (lap_interval_t){at, call->end};
    return count;
}

static uint64_t length(const lap_interval_t *list, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += list[i].end - list[i].begin;
    return sum;
}

/* The time that two joined lists have in common. */
static uint64_t common(const lap_interval_t *a, size_t na, const lap_interval_t *b, size_t nb)
{
    uint64_t sum = 0;
    for (size_t i = 0, j = 0; i < na && j < nb;) {
        uint64_t begin = a[i].begin > b[j].begin ? a[i].begin : b[j].begin;
        uint64_t end = a[i].end < b[j].end ? a[i].end : b[j].end;
        if (begin < end)
            sum += end - begin;
        if (a[i].end < b[j].end)
            i++;
        else
            j++;
    }
    return sum;
}

static bool is_work(uint32_t kind)
{
    return kind == LAP_STEP_GEMM || kind == LAP_STEP_REDUCE || kind == LAP_STEP_COPY ||
           kind == LAP_STEP_SUMS;
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
    view.idle = lap_alloc(trace->nrecords + nwork + 1, sizeof(*view.idle));
    lap_status_t status = LAP_OK;
    if (!busy || !flight || !view.idle) {
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to look at a trace of %zu records",
                           trace->nrecords);
        goto out;
    }
    size_t nbusy = 0, nflight = 0;
    for (size_t i = 0; i < trace->nrecords; i++) {
        const lap_trace_record_t *record = &trace->records[i];
        const bool computes = record->stream % LAP_STREAM_KINDS == LAP_STREAM_COMPUTE ||
                              record->stream % LAP_STREAM_KINDS == LAP_STREAM_LANE;
        if (record->rank == rank && computes && is_work(record->kind))
            append(busy, &nbusy, &record->span, &view.call);
        if (record->rank == rank || record->peer == rank)
            append(flight, &nflight, &record->flight, &view.call);
    }
    for (size_t i = 0; i < nwork; i++) {
        const lap_span_t span = {.begin = work[i].begin, .end = work[i].end};
        append(busy, &nbusy, &span, &view.call);
    }
    nbusy = join(busy, nbusy);
    nflight = join(flight, nflight);
    view.nidle = complement(busy, nbusy, &view.call, view.idle);
    view.flight_ns = length(flight, nflight);
    view.hidden_ns = common(busy, nbusy, flight, nflight);
    view.exposed_ns = length(view.idle, view.nidle);
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
