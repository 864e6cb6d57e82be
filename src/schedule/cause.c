/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why arithmetic stood still: from the moment at which it went on, a walk goes back in time along
 * what had to end first. Each stretch of that path is data on the wire, a rank that was busy with
 * something else or had not begun the call, or somebody who could have gone on and was not running:
 * what ranks did besides the call (`work`) tells who was busy. A wait leads to the rank that raised
 * the signal, and on from there, so that who waits for a rank that has no core waits for a core.
 */
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "schedule/trace.h"
#include "util/alloc.h"

#define DEPTH_MOST 128 /* ranks that wait for one another, one after the other */

typedef struct walk {
    const lap_trace_t *trace;
    int rank;          /* whose time it is */
    lap_pause_t *list; /* latest first */
    size_t count, room;
    int from; /* of the wait of this rank that led here; -1: none */
    uint32_t signal;
    uint32_t *released_by;          /* of each record: see lap_trace_match */
    uint32_t first_call, last_call; /* of the trace */
    bool failed;                    /* no memory */
} walk_t;

const char *lap_cause_name(lap_cause_t cause)
{
    static const char *const names[LAP_CAUSES] = {"wire", "late", "core"};
    return (unsigned)cause < LAP_CAUSES ? names[cause] : "unknown";
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t sooner(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- pieces ---- */

/* Adds [begin, end), which comes right before what was added last. */
static void add(walk_t *walk, uint64_t begin, uint64_t end, lap_cause_t cause, int who)
{
    if (begin >= end || walk->failed)
        return;
    lap_pause_t *last = walk->count > 0 ? &walk->list[walk->count - 1] : NULL;
    if (last && last->begin == end && last->cause == cause && last->who == who &&
        last->from == walk->from && last->signal == walk->signal) {
        last->begin = begin;
        return;
    }
    lap_pause_t *list = lap_grow(walk->list, walk->count, &walk->room, sizeof(*list));
    walk->failed = !list;
    if (!list)
        return;
    walk->list = list;
    list[walk->count++] = (lap_pause_t){begin, end, cause, who, walk->from, walk->signal};
}

/* The same, of which the end, `delay` long, was time without a core. */
static void add_delayed(walk_t *walk, uint64_t begin, uint64_t end, lap_cause_t cause, int who,
                        uint64_t delay)
{
    const uint64_t middle = end - sooner(delay, end - begin);
    add(walk, middle, end, LAP_CAUSE_CORE, who);
    add(walk, begin, middle, cause, who);
}

/* How long something that ran for [begin, end), a part of its time, had no core meanwhile: a part like any other. */
static uint64_t delay_in(const lap_trace_record_t *record, uint64_t begin, uint64_t end)
{
    const double whole = (double)(record->span.end - record->span.begin);
    return (uint64_t)((double)record->delays.running * ((double)(end - begin) / whole));
}

/* ---- what ranks did besides ---- */

static int compare_done(const void *left, const void *right)
{
    const lap_done_t *a = left, *b = right;
    if (a->record->rank != b->record->rank)
        return a->record->rank < b->record->rank ? -1 : 1;
    const uint64_t x = a->record->span.end, y = b->record->span.end;
    return x != y ? (x < y ? -1 : 1) : (a->record > b->record) - (a->record < b->record);
}

lap_status_t lap_work_init(lap_work_t *work, const lap_trace_t *trace)
{
    *work = (lap_work_t){.list = lap_alloc(trace->nrecords, sizeof(*work->list))};
    if (!work->list)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the work of %zu records",
                         trace->nrecords);
    for (size_t i = 0; i < trace->nrecords; i++) {
        const lap_trace_record_t *it = &trace->records[i];
        if (it->span.begin < it->span.end &&
            (it->count > 0 || lap_step_computes(it->kind, it->stream)))
            work->list[work->count++] = (lap_done_t){it, lap_record_start(it)};
    }
    qsort(work->list, work->count, sizeof(*work->list), compare_done);
    for (size_t i = work->count; i-- > 1;)
        if (work->list[i - 1].record->rank == work->list[i].record->rank)
            work->list[i - 1].first = sooner(work->list[i - 1].first, work->list[i].first);
    return LAP_OK;
}

void lap_work_clear(lap_work_t *work)
{
    lap_free(work->list);
    *work = (lap_work_t){.list = NULL};
}

/* How many are of ranks before this one, or of this one and ended before a moment. */
static size_t done_before(const lap_work_t *work, int rank, uint64_t when)
{
    size_t low = 0, high = work->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const lap_trace_record_t *it = work->list[middle].record;
        if (it->rank < rank || (it->rank == rank && it->span.end < when))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Something that a rank computed, or that it waited for in another call. */
static bool is_work(const walk_t *walk, const lap_trace_record_t *record)
{
    const bool other = record->call < walk->first_call || record->call > walk->last_call;
    return lap_step_computes(record->kind, record->stream) || (record->count > 0 && other);
}

/* What a rank did besides the call before a moment, the last to end; NULL: nothing that is known. */
static const lap_trace_record_t *last_work(const walk_t *walk, int rank, uint64_t when)
{
    const lap_work_t *work = walk->trace->work;
    const size_t ended = work ? done_before(work, rank, when) : 0;
    for (size_t i = ended; work && i < work->count; i++) { /* what was not over yet */
        const lap_trace_record_t *it = work->list[i].record;
        if (it->rank != rank || work->list[i].first >= when)
            break;
        if (lap_record_start(it) < when && is_work(walk, it))
            return it;
    }
    for (size_t i = ended; i > 0 && work->list[i - 1].record->rank == rank; i--)
        if (is_work(walk, work->list[i - 1].record))
            return work->list[i - 1].record;
    return NULL;
}

/* [begin, end) of a rank between two steps of the call: for `cause`, unless it did something else. */
static void add_gap(walk_t *walk, uint64_t begin, uint64_t end, lap_cause_t cause, int who)
{
    while (begin < end) {
        const lap_trace_record_t *busy = last_work(walk, who, end);
        const uint64_t until = busy ? later(begin, sooner(busy->span.end, end)) : begin;
        const uint64_t from = busy ? later(begin, lap_record_start(busy)) : begin;
        add(walk, until, end, cause, who);
        if (from < until)
            add_delayed(walk, from, until, LAP_CAUSE_LATE, who, delay_in(busy, from, until));
        end = sooner(from, until);
    }
}

/* ---- what came before what ---- */

static bool waits(const lap_trace_record_t *record)
{
    return record->count > 0;
}

static bool depends(const lap_trace_record_t *record, const lap_trace_record_t *other)
{
    bool found = record->stream == other->stream;
    for (uint32_t d = 0; d < record->ndeps && d < LAP_RECORD_DEPS; d++)
        found = found || (record->deps[d] == other->step && record->call == other->call);
    return found;
}

/* What `record` came after: of all that it depends on, the last to end; NULL: nothing. */
static const lap_trace_record_t *before(const walk_t *walk, const lap_trace_record_t *record)
{
    const lap_trace_t *trace = walk->trace;
    const uint64_t start = lap_record_start(record);
    const lap_trace_record_t *best = NULL;
    for (const lap_trace_record_t *it = trace->records; it < trace->records + trace->nrecords;
         it++) {
        const bool earlier = it->span.end < start || (it->span.end == start && it < record);
        if (it->rank == record->rank && it != record && lap_span_known(&it->span) && earlier &&
            (!best || it->span.end >= best->span.end) && depends(record, it))
            best = it;
    }
    return best;
}

/* The last of a rank's records to end, up to a moment; NULL: none has. */
static const lap_trace_record_t *last_until(const walk_t *walk, int rank, uint64_t when)
{
    const lap_trace_t *trace = walk->trace;
    const lap_trace_record_t *best = NULL;
    for (const lap_trace_record_t *it = trace->records; it < trace->records + trace->nrecords; it++)
        if (it->rank == rank && lap_span_known(&it->span) && it->span.end <= when &&
            (!best || it->span.end >= best->span.end))
            best = it;
    return best;
}

/* Who raised a signal that came, as often as it was waited for; NULL: the trace does not know. */
static const lap_trace_record_t *raiser(const walk_t *walk, const lap_trace_record_t *wait)
{
    const lap_trace_record_t *records = walk->trace->records;
    const uint32_t by = walk->released_by[wait - records];
    return by != LAP_NO_STEP && lap_span_known(&records[by].span) ? &records[by] : NULL;
}

/* ---- the walk ---- */

/* [begin, end) of a rank before its first step of this call. */
static void walk_before(walk_t *walk, int rank, uint64_t begin, uint64_t end)
{
    const lap_trace_call_t *call = walk->trace->calls ? &walk->trace->calls[rank] : NULL;
    const uint64_t began = call ? call->begin : walk->trace->begin;
    const uint64_t middle = later(begin, sooner(began, end));
    add_gap(walk, middle, end, LAP_CAUSE_CORE, rank); /* begun, and not running yet */
    /* What lay between a begin that is after `end` and `end` was no delay of this time. */
    const uint64_t past = began > middle ? began - middle : 0;
    const uint64_t delay = call && call->delay > past ? call->delay - past : 0;
    const uint64_t due = middle - sooner(delay, middle - begin);
    add(walk, due, middle, LAP_CAUSE_CORE, rank);
    add_gap(walk, begin, due, LAP_CAUSE_LATE, rank);
}

/* [begin, end) of something that ran. */
static void walk_run(walk_t *walk, const lap_trace_record_t *record, uint64_t begin, uint64_t end)
{
    const bool moves = record->kind == LAP_STEP_PUT || record->kind == LAP_STEP_RAISE;
    const lap_cause_t cause = moves || record->rank == walk->rank ? LAP_CAUSE_WIRE : LAP_CAUSE_LATE;
    add_delayed(walk, begin, end, cause, record->rank, delay_in(record, begin, end));
}

/* A stretch of time that is still to be explained, by a record of a rank and what was before. */
typedef struct stretch {
    const lap_trace_record_t *record; /* NULL: the rank had not begun */
    const lap_trace_record_t *next;   /* what came after it there; NULL: not known */
    int rank;
    uint64_t begin, end;
} stretch_t;

/*
 * [begin, end) of a wait: woken late, on the wire, or not sent yet. That part is left to be
 * explained by the reason of the sender: returns it.
 */
static stretch_t walk_wait(walk_t *walk, const lap_trace_record_t *wait, uint64_t begin,
                           uint64_t end)
{
    const lap_trace_record_t *sender = raiser(walk, wait);
    if (!sender) {
        add(walk, begin, end, LAP_CAUSE_WIRE, wait->from);
        return (stretch_t){NULL, NULL, wait->rank, begin, begin};
    }
    const uint64_t came = later(begin, sooner(lap_record_delivered(sender), end));
    const lap_span_t *flight = &sender->flight;
    const uint64_t left = !lap_span_known(flight) ? sender->span.begin
                          : flight->ready         ? flight->ready
                                                  : flight->begin;
    const uint64_t sent = later(begin, sooner(left, came));
    /* On an emulated link the copying is no part of the time that it takes. */
    const uint64_t delay = walk->trace->emulated ? 0 : sender->delays.running;
    add(walk, came, end, LAP_CAUSE_CORE, wait->rank);
    if (sent < came)
        add_delayed(walk, sent, came, LAP_CAUSE_WIRE, sender->rank, delay);
    /* A block of a GEMM ran before it raised; all else is sent when it begins. */
    const lap_trace_record_t *reason = sender;
    if (sender->kind != LAP_STEP_GEMM && begin < sent)
        reason = before(walk, sender);
    return (stretch_t){reason, reason == sender ? NULL : sender, sender->rank, begin, sent};
}

/*
 * Explains the end of a stretch, and makes it so much shorter; or turns to what was before its
 * record. Returns what must be explained first.
 */
static stretch_t walk_step(walk_t *walk, stretch_t *stretch)
{
    const lap_trace_record_t *record = stretch->record;
    const lap_span_t *span = &record->span;
    const uint64_t begin = stretch->begin, end = stretch->end, start = lap_record_start(record);
    const stretch_t none = {NULL, NULL, stretch->rank, begin, begin};
    if (span->end < end) { /* its turn had come */
        stretch->end = later(begin, span->end);
        const uint64_t delay = stretch->next ? stretch->next->delays.before : 0;
        const uint64_t due = end - sooner(delay, end - stretch->end);
        add(walk, due, end, LAP_CAUSE_CORE, stretch->rank);
        add_gap(walk, stretch->end, due, LAP_CAUSE_CORE, stretch->rank);
    } else if (record->kind != LAP_STEP_WAIT && span->begin < end) {
        stretch->end = later(begin, span->begin);
        walk_run(walk, record, stretch->end, end);
    } else if (start < end) {
        stretch->end = later(begin, start);
        if (waits(record))
            return walk_wait(walk, record, stretch->end, end);
        add(walk, stretch->end, end,
            record->kind == LAP_STEP_WAIT ? LAP_CAUSE_WIRE : LAP_CAUSE_CORE, stretch->rank);
    } else {
        stretch->next = record;
        stretch->record = before(walk, record);
    }
    return none;
}

/* Explains a stretch of the rank's own time, which `record` ended. */
static void walk_back(walk_t *walk, const lap_trace_record_t *record, uint64_t begin, uint64_t end)
{
    stretch_t stack[DEPTH_MOST] = {{record, NULL, walk->rank, begin, end}};
    const size_t most = 8 * walk->trace->nrecords + 64; /* more visits would be a circle */
    size_t depth = 1, visits = 0;
    while (depth > 0) {
        stretch_t *top = &stack[depth - 1];
        const lap_trace_record_t *own = top->record;
        if (depth == 1) { /* what this rank waits for is named, wherever that leads */
            const bool named = own && waits(own) && own->span.end >= top->end;
            walk->from = named ? own->from : -1;
            walk->signal = named ? own->awaited : LAP_NO_SIGNAL;
        }
        if (top->begin >= top->end || !own || visits++ > most) {
            walk_before(walk, top->rank, top->begin, top->end);
            depth--;
            continue;
        }
        const stretch_t first = walk_step(walk, top);
        if (first.begin < first.end && depth < DEPTH_MOST)
            stack[depth++] = first;
        else
            add(walk, first.begin, first.end, LAP_CAUSE_LATE, first.rank);
    }
}

/* The arithmetic of the rank that began then; else whatever ended last until then. */
static const lap_trace_record_t *went_on(const walk_t *walk, uint64_t when)
{
    const lap_trace_t *trace = walk->trace;
    for (const lap_trace_record_t *it = trace->records; it < trace->records + trace->nrecords; it++)
        if (it->rank == walk->rank && it->span.begin == when && lap_span_known(&it->span) &&
            lap_step_computes(it->kind, it->stream))
            return it;
    return last_until(walk, walk->rank, when);
}

lap_status_t lap_trace_find_causes(const lap_trace_t *trace, int rank, lap_trace_view_t *view)
{
    walk_t walk = {.trace = trace, .rank = rank, .first_call = LAP_NO_CALL};
    for (size_t i = 0; i < trace->nrecords; i++) {
        const uint32_t call = trace->records[i].call;
        walk.first_call = call < walk.first_call ? call : walk.first_call;
        walk.last_call = call > walk.last_call ? call : walk.last_call;
    }
    walk.released_by = lap_alloc(trace->nrecords, sizeof(*walk.released_by));
    walk.failed = !walk.released_by || lap_trace_match(trace, walk.released_by) != LAP_OK;
    for (size_t i = view->idle.count; i-- > 0 && !walk.failed;) {
        const lap_interval_t *idle = &view->idle.list[i];
        walk.from = -1;
        walk.signal = LAP_NO_SIGNAL;
        walk_back(&walk, went_on(&walk, idle->end), idle->begin, idle->end);
    }
    lap_free(walk.released_by);
    if (walk.failed) {
        lap_free(walk.list);
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the causes in a trace of %zu records",
                         trace->nrecords);
    }
    for (size_t i = 0; i < walk.count / 2; i++) { /* latest first becomes first first */
        const lap_pause_t swap = walk.list[i];
        walk.list[i] = walk.list[walk.count - 1 - i];
        walk.list[walk.count - 1 - i] = swap;
    }
    memset(view->cause_ns, 0, sizeof(view->cause_ns));
    for (size_t i = 0; i < walk.count; i++)
        view->cause_ns[walk.list[i].cause] += walk.list[i].end - walk.list[i].begin;
    view->pauses = walk.list;
    view->npauses = walk.count;
    return LAP_OK;
}
