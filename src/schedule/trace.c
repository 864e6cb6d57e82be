/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces: room for the records of a call, which the executor fills; adding those of calls and kernels to the
 * trace of a step; and bringing those of all ranks together. What follows from them is in view.c and
 * cause.c, the picture in draw.c.
 */
#include "schedule/trace.h"

#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "core/world.h"
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
    lap_trace_clear(trace);
    lap_free(trace);
}

static void forget_ranks(lap_trace_t *trace)
{
    lap_free(trace->calls);
    lap_free(trace->clocks);
    trace->calls = NULL;
    trace->clocks = NULL;
}

void lap_trace_clear(lap_trace_t *trace)
{
    forget_ranks(trace);
    lap_free(trace->records);
    *trace = (lap_trace_t){.size = 0};
}

void lap_trace_reset(lap_trace_t *trace)
{
    trace->nrecords = trace->dropped = trace->ngroups = 0;
}

/* ---- one call ---- */

lap_status_t lap_trace_begin(lap_trace_t *trace, lap_op_kind_t kind, const char *method, int size,
                             size_t m, bool emulated, size_t nrecords)
{
    trace->kind = kind;
    snprintf(trace->method, sizeof(trace->method), "%s", method);
    trace->size = size;
    trace->m = m;
    trace->emulated = emulated;
    trace->begin = trace->end = trace->delay = 0;
    lap_trace_reset(trace);
    forget_ranks(trace);
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

/* ---- a step ---- */

/* Makes room for one more; false: there is none. */
static bool grow(lap_trace_t *trace)
{
    if (trace->nrecords >= (trace->most ? trace->most : LAP_TRACE_MOST))
        return false;
    lap_trace_record_t *records =
        lap_grow(trace->records, trace->nrecords, &trace->records_room, sizeof(*records));
    if (records)
        trace->records = records;
    return records;
}

void lap_trace_add(lap_trace_t *trace, const lap_trace_record_t *record)
{
    if (grow(trace))
        trace->records[trace->nrecords++] = *record;
    else
        trace->dropped++;
}

uint32_t lap_trace_number(lap_trace_t *trace, const lap_trace_group_t *group)
{
    size_t i = 0;
    while (i < trace->ngroups && trace->groups[i].group.digest != group->digest)
        i++;
    if (i == LAP_TRACE_GROUPS)
        return LAP_NO_CALL;
    if (i == trace->ngroups) {
        trace->groups[i].group = *group;
        trace->groups[i].calls = 0;
        trace->ngroups++;
    }
    return trace->groups[i].calls++;
}

void lap_trace_add_call(lap_trace_t *trace, const lap_trace_label_t *label,
                        const lap_trace_record_t *records, size_t nrecords)
{
    const uint32_t number = lap_trace_number(trace, &label->group);
    for (size_t i = 0; i < nrecords; i++) {
        lap_trace_record_t record = records[i];
        if (record.span.end == 0 && record.flight.end == 0)
            continue; /* no time is known: a block that was done with others */
        lap_record_set_ready(&record);
        lap_record_label(&record, label, number);
        lap_trace_add(trace, &record);
    }
}

void lap_trace_add_span(lap_trace_t *trace, int rank, uint32_t kind, uint32_t stream,
                        const lap_trace_label_t *label, const lap_span_t *span)
{
    const lap_trace_label_t alone = {.name = label->name,
                                     .op = label->op,
                                     .layer = label->layer,
                                     .group = {.size = 1},
                                     .live_bytes = label->live_bytes,
                                     .predicted_us = label->predicted_us};
    lap_trace_record_t record = {.rank = rank,
                                 .kind = kind,
                                 .stream = stream,
                                 .peer = -1,
                                 .signal = LAP_NO_SIGNAL,
                                 .from = -1,
                                 .span = *span,
                                 .delays = label->delays};
    lap_record_set_ready(&record);
    lap_record_label(&record, &alone, 0);
    if (span->end != 0)
        lap_trace_add(trace, &record);
}

/* ---- all ranks ---- */

/* What a rank tells besides its records. */
typedef struct head {
    lap_trace_call_t call;
    uint64_t dropped, emulated;
} head_t;

static void shift_span(lap_span_t *span, const lap_clock_offset_t *clock)
{
    lap_clock_shift(clock, &span->ready);
    lap_clock_shift(clock, &span->begin);
    lap_clock_shift(clock, &span->end);
}

/* Puts what was gathered in the place of what the trace held, by the clock of rank `reader`. */
static void adopt(lap_trace_t *trace, const lap_gathered_t *gathered, const head_t *heads,
                  lap_trace_call_t *calls, int size, int reader)
{
    lap_trace_record_t *next = gathered->records;
    const int64_t own = gathered->clocks[reader].ns;
    trace->dropped = 0;
    for (int r = 0; r < size; r++) {
        lap_clock_offset_t *clock = &gathered->clocks[r];
        clock->ns -= own;
        calls[r] = heads[r].call;
        lap_clock_shift(clock, &calls[r].begin);
        lap_clock_shift(clock, &calls[r].end);
        trace->begin = r == 0 || calls[r].begin < trace->begin ? calls[r].begin : trace->begin;
        trace->end = r == 0 || calls[r].end > trace->end ? calls[r].end : trace->end;
        trace->dropped += heads[r].dropped;
        trace->emulated = trace->emulated || heads[r].emulated;
        for (size_t i = 0; i < gathered->counts[r]; i++, next++) {
            shift_span(&next->span, clock);
            shift_span(&next->flight, clock);
        }
    }
    lap_free(trace->records);
    trace->records = gathered->records;
    trace->nrecords = trace->records_room = gathered->total;
    trace->most = SIZE_MAX;
    trace->calls = calls;
    trace->clocks = gathered->clocks;
    trace->size = size;
}

/* `reader` is the rank whose clock counts: of those that want the records. */
static lap_status_t gather_to(lap_trace_t *trace, lap_group_t *group, bool wanted, int reader)
{
    if (!trace || !group)
        return lap_error(LAP_ERR_INVALID, "%s is NULL: expected the %s of a call that has ended",
                         trace ? "group" : "trace", trace ? "group" : "trace");
    const head_t mine = {{trace->begin, trace->end, trace->delay}, trace->dropped, trace->emulated};
    lap_trace_call_t *calls = lap_alloc((size_t)group->size, sizeof(*calls));
    lap_gathered_t gathered;
    void *heads = NULL;
    lap_status_t status = LAP_OK;
    if (trace->calls)
        status = lap_error(LAP_ERR_INVALID, "the trace has been gathered already");
    else if (!calls)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for the calls of %d ranks", group->size);
    /* A rank that cannot take part says so before the others wait for its records. */
    status = lap_group_agree(group, status);
    if (status == LAP_OK)
        status = lap_group_collect(group, &mine, sizeof(mine), &heads);
    if (status == LAP_OK)
        status = lap_gather(group, trace->records, trace->nrecords, sizeof(*trace->records), wanted,
                            &gathered);
    if (status == LAP_OK && wanted) {
        adopt(trace, &gathered, heads, calls, group->size, reader);
        gathered.records = NULL;
        gathered.clocks = NULL;
        calls = NULL;
    }
    if (status == LAP_OK)
        lap_gathered_clear(&gathered);
    lap_free(heads);
    lap_free(calls);
    return status;
}

lap_status_t lap_trace_gather(lap_trace_t *trace, lap_group_t *group)
{
    return gather_to(trace, group, group && lap_group_rank(group) == 0, 0);
}

lap_status_t lap_trace_share(lap_trace_t *trace, lap_group_t *group)
{
    return gather_to(trace, group, true, group ? lap_group_rank(group) : 0);
}
