/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step of a pipeline did and what its messages cost, from the times of its fragments. The rank stands
 * still between two fragments that compute where the second waits for a message: as long as that is on
 * its way, for the wire; before it was sent, for the other stages, which is the pipeline's bubble. When a
 * message was on its way is known to its sender, so that ranks tell each other.
 */
#include "parallel/stage_run.h"

#include <stdlib.h>

#include "core/status.h"
#include "overlap/op.h"
#include "util/alloc.h"

static bool is_message(const lap_stage_item_t *item)
{
    return item->kind == LAP_STAGE_SEND || item->kind == LAP_STAGE_RECEIVE;
}

static bool is_tied(const lap_stage_item_t *item)
{
    return item->kind == LAP_STAGE_SCATTER || item->kind == LAP_STAGE_GATHER;
}

/* ---- timelines ---- */

static const lap_group_t *group_of(const lap_pp_t *pp, const lap_stage_item_t *item)
{
    lap_trace_t *trace;
    if (is_message(item))
        return pp->peers[item->pair].group;
    const lap_op_t *op = lap_stage_op(pp, item, &trace);
    return op ? op->group : pp->nn->group;
}

void lap_stage_add_to_timeline(lap_pp_t *pp, bool background)
{
    const lap_nn_t *nn = pp->nn;
    for (uint32_t f = 0; f < lap_exec_nfragments(pp->exec) && pp->traced && nn->timeline; f++) {
        const lap_exec_fragment_t *fragment = lap_exec_fragment(pp->exec, f);
        if ((fragment->set == LAP_BACKGROUND) != background)
            continue;
        const lap_stage_item_t *item = &pp->program.items[f];
        const bool entry = item->kind == LAP_STAGE_ENTRY;
        const bool layers = entry || item->kind == LAP_STAGE_BUCKET;
        char name[64];
        lap_stage_name(&nn->list, item, name, sizeof(name));
        const lap_trace_label_t label = {
            .name = name,
            .layer = entry ? (int)lap_nn_fragment_layer(&nn->list, item->entry) : -1,
            .traffic =
                layers ? lap_nn_fragment_traffic(fragment->size, fragment->buffer) : LAP_TRAFFIC_PP,
            .live_bytes = entry ? nn->live_bytes[item->entry] : 0,
        };
        lap_nn_add_fragment(nn, pp->exec, f, group_of(pp, item), label);
    }
}

/* ---- calls of layers ---- */

lap_status_t lap_stage_each_call(const lap_pp_t *pp, lap_stage_each_t each, void *context)
{
    lap_trace_t *trace;
    LAP_TRY(lap_trace_create(&trace));
    lap_status_t status = LAP_OK;
    for (uint32_t f = 0; f < lap_exec_nfragments(pp->exec) && status == LAP_OK; f++) {
        const lap_stage_item_t *item = &pp->program.items[f];
        const lap_runnable_t *runnable = lap_exec_runnable(pp->exec, f);
        const bool entry = item->kind == LAP_STAGE_ENTRY;
        lap_trace_t *own;
        const lap_op_t *op = entry || is_tied(item) ? lap_stage_op(pp, item, &own) : NULL;
        if (!op || !pp->traced || op->problem.kind == LAP_GEMM || op->group->size == 1)
            continue;
        status = lap_op_begin_trace(op, runnable, trace);
        if (status == LAP_OK) {
            lap_op_end_trace(runnable, trace);
            status = each(context, entry ? pp->nn->list.entries[item->entry].index : LAP_NN_NONE,
                          op, trace);
        }
    }
    lap_trace_destroy(trace);
    return status;
}

/* ---- messages ---- */

/* Intervals by their ends, of which pauses have seen those before `next`. */
typedef struct ends {
    lap_interval_t *list;
    size_t count, next;
} ends_t;

/* When messages were on their way so far, and what was waited for. */
typedef struct bill {
    double bytes; /* that this rank has sent */
    lap_comm_times_t *times;
    lap_intervals_t *bubbles;
    ends_t arrivals, waits; /* of awaited messages, and of calls of layers */
} bill_t;

/* From the first to the last of a fragment's work, and of its waits, in line with computing. */
static lap_interval_t extent_of(const lap_pp_t *pp, uint32_t f)
{
    lap_runnable_t *runnable = lap_exec_runnable(pp->exec, f);
    lap_interval_t extent = {UINT64_MAX, 0};
    if (!runnable) {
        const lap_span_t *span = lap_exec_kernel_span(pp->exec, f);
        return (lap_interval_t){span->begin, span->end};
    }
    for (size_t i = 0; i < lap_runnable_records(runnable); i++) {
        const lap_trace_record_t *record = &lap_runnable_records_of(runnable)[i];
        const uint32_t kind = record->stream % LAP_STREAM_KINDS;
        if (record->span.end == 0 || (kind != LAP_STREAM_COMPUTE && kind != LAP_STREAM_LANE))
            continue;
        extent.begin = record->span.begin < extent.begin ? record->span.begin : extent.begin;
        extent.end = record->span.end > extent.end ? record->span.end : extent.end;
    }
    return extent;
}

/* When a message of this rank was on its way. */
static lap_interval_t flight_of(const lap_pp_t *pp, uint32_t f, bill_t *bill)
{
    lap_runnable_t *runnable = lap_exec_runnable(pp->exec, f);
    for (size_t i = 0; i < lap_runnable_records(runnable); i++) {
        const lap_trace_record_t *record = &lap_runnable_records_of(runnable)[i];
        if (record->kind != LAP_STEP_PUT)
            continue;
        bill->bytes += (double)record->bytes;
        return (lap_interval_t){record->flight.begin, record->flight.end};
    }
    return (lap_interval_t){0, 0};
}

/* The messages whose end this rank waits for, in the order in which all ranks have them. */
static bool is_awaited(const lap_pp_t *pp, const lap_stage_item_t *item)
{
    return item->kind == LAP_STAGE_RECEIVE ||
           (item->kind == LAP_STAGE_SEND && pp->options.overlap == 0);
}

/* Collective: flights[i], of message i, by the clock of this rank; none is where nobody knows. */
static lap_status_t share_flights(lap_pp_t *pp, lap_interval_t *flights, size_t count)
{
    const int size = pp->pipeline->size;
    void *given;
    LAP_TRY(lap_group_collect(pp->pipeline, flights, count * sizeof(*flights), &given));
    const lap_interval_t *all = given;
    for (int r = 0; r < size; r++) {
        const uint64_t shift = (uint64_t)(pp->clocks[r].ns - pp->clocks[pp->pipeline->rank].ns);
        for (size_t i = 0; i < count; i++) {
            const lap_interval_t *flight = &all[(size_t)r * count + i];
            if (flight->end > 0)
                flights[i] = (lap_interval_t){flight->begin + shift, flight->end + shift};
        }
    }
    lap_free(given);
    return LAP_OK;
}

/* ---- pauses ---- */

static int by_end(const void *left, const void *right)
{
    const lap_interval_t *a = left, *b = right;
    return a->end < b->end ? -1 : a->end > b->end;
}

/* Pauses follow one another, so that each looks on from where the one before has ended. */
static void sort_ends(ends_t *ends)
{
    if (ends->count > 0)
        qsort(ends->list, ends->count, sizeof(*ends->list), by_end);
}

/* The next that ends after `from` and until `end`; NULL: there is none left. */
static const lap_interval_t *next_end(ends_t *ends, uint64_t from, uint64_t end)
{
    while (ends->next < ends->count && ends->list[ends->next].end <= from)
        ends->next++;
    const bool found = ends->next < ends->count && ends->list[ends->next].end <= end;
    return found ? &ends->list[ends->next++] : NULL;
}

/* The records of a call of layers; 0: the item is none. */
static size_t count_records(const lap_pp_t *pp, uint32_t f)
{
    lap_runnable_t *runnable = lap_exec_runnable(pp->exec, f);
    return !runnable || is_message(&pp->program.items[f]) ? 0 : lap_runnable_records(runnable);
}

/* From when until when calls of layers have waited. */
static void find_waits(const lap_pp_t *pp, ends_t *waits)
{
    for (uint32_t f = 0; f < pp->program.nitems; f++) {
        const size_t count = count_records(pp, f);
        for (size_t i = 0; i < count; i++) {
            const lap_trace_record_t *record =
                &lap_runnable_records_of(lap_exec_runnable(pp->exec, f))[i];
            const lap_span_t *span = &record->span;
            if (record->count > 0)
                waits->list[waits->count++] =
                    (lap_interval_t){lap_record_start(record),
                                     record->kind == LAP_STEP_WAIT ? span->end : span->begin};
        }
    }
    sort_ends(waits);
}

static void find_arrivals(const lap_pp_t *pp, const lap_interval_t *flights, ends_t *arrivals)
{
    for (uint32_t f = 0; f < pp->program.nitems; f++)
        if (is_awaited(pp, &pp->program.items[f]))
            arrivals->list[arrivals->count++] = flights[pp->program.items[f].message];
    sort_ends(arrivals);
}

/* The wait of a call of layers that ends from `from` on and until `end`: when it began, or `from`; `end`: there is none. */
static uint64_t waits_from(bill_t *bill, uint64_t from, uint64_t end)
{
    uint64_t first = end;
    const lap_interval_t *wait;
    while ((wait = next_end(&bill->waits, from, end)))
        if (wait->begin < first)
            first = wait->begin > from ? wait->begin : from;
    return first;
}

/* The rank stood still from `begin` to `end`: what for, if a message came meanwhile. */
static void add_pause(uint64_t begin, uint64_t end, bill_t *bill)
{
    lap_intervals_t wire = {.list = NULL}; /* two may come at once */
    uint64_t last = begin;
    const lap_interval_t *flight;
    while ((flight = next_end(&bill->arrivals, begin, end))) {
        const uint64_t from = flight->begin > begin ? flight->begin : begin;
        lap_intervals_add(&wire, from, flight->end);
        lap_comm_times_wait(bill->times, LAP_CAUSE_WIRE, from, flight->end);
        last = flight->end;
    }
    if (last == begin)
        return;
    lap_interval_t pause = {begin, last};
    lap_intervals_join(&wire);
    lap_intervals_t bubble =
        lap_intervals_without(&(lap_intervals_t){.list = &pause, .count = 1}, &wire);
    lap_comm_times_wait(bill->times, LAP_CAUSE_CORE, last, waits_from(bill, last, end));
    lap_intervals_append(bill->bubbles, &bubble);
    lap_intervals_clear(&bubble);
    lap_intervals_clear(&wire);
}

/* Fragments that compute follow one another; what is in line with them and only moves is no work. */
static void add_pauses(const lap_pp_t *pp, bill_t *bill)
{
    uint64_t at = pp->begin_ns;
    for (uint32_t f = 0; f < lap_exec_nfragments(pp->exec); f++) {
        const lap_interval_t extent = extent_of(pp, f);
        if (lap_exec_fragment(pp->exec, f)->set != LAP_FOREGROUND ||
            is_message(&pp->program.items[f]) || extent.end == 0)
            continue;
        if (extent.begin > at)
            add_pause(at, extent.begin, bill);
        at = extent.end > at ? extent.end : at;
    }
    const ends_t *arrivals =
        &bill->arrivals; /* in line, the last may be sent when all is computed */
    const uint64_t last = arrivals->count > 0 ? arrivals->list[arrivals->count - 1].end : 0;
    if (last > at)
        add_pause(at, last, bill);
}

static lap_status_t add_messages(lap_pp_t *pp, lap_interval_t *flights, bill_t *bill)
{
    const size_t count = pp->program.nmessages;
    for (uint32_t f = 0; f < pp->program.nitems; f++)
        if (pp->program.items[f].kind == LAP_STAGE_SEND)
            flights[pp->program.items[f].message] = flight_of(pp, f, bill);
    LAP_TRY(share_flights(pp, flights, count));
    for (uint32_t f = 0; f < pp->program.nitems; f++) {
        lap_interval_t *flight = &flights[pp->program.items[f].message];
        if (is_message(&pp->program.items[f]))
            lap_comm_times_fly(bill->times, &(lap_intervals_t){.list = flight, .count = 1});
    }
    find_arrivals(pp, flights, &bill->arrivals);
    find_waits(pp, &bill->waits);
    add_pauses(pp, bill);
    return LAP_OK;
}

/* Room for all that add_messages may find. */
static bool alloc_ends(const lap_pp_t *pp, bill_t *bill)
{
    size_t records = 0;
    for (uint32_t f = 0; f < pp->program.nitems; f++)
        records += count_records(pp, f);
    bill->arrivals.list = lap_alloc((size_t)pp->program.nitems + 1, sizeof(*bill->arrivals.list));
    bill->waits.list = lap_alloc(records + 1, sizeof(*bill->waits.list));
    return bill->arrivals.list && bill->waits.list;
}

lap_status_t lap_stage_times(lap_pp_t *pp, lap_comm_times_t *times, lap_intervals_t *bubbles,
                             double *bytes_p)
{
    bill_t bill = {.times = times, .bubbles = bubbles};
    if (!pp->traced || pp->program.nmessages == 0) {
        *bytes_p = 0;
        return LAP_OK;
    }
    lap_interval_t *flights = lap_alloc(pp->program.nmessages, sizeof(*flights));
    lap_clock_offset_t *clocks =
        pp->clocks ? pp->clocks : lap_alloc((size_t)pp->pipeline->size, sizeof(*clocks));
    lap_status_t status = LAP_OK;
    if (!flights || !clocks || !alloc_ends(pp, &bill))
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for the times of %u messages",
                           (unsigned)pp->program.nmessages);
    status = lap_group_agree(pp->pipeline, status);
    if (clocks)
        pp->clocks = clocks;
    if (status == LAP_OK)
        status = lap_clock_offsets(pp->pipeline, clocks); /* each time: clocks of hosts drift */
    if (status == LAP_OK)
        status = add_messages(pp, flights, &bill);
    lap_free(flights);
    lap_free(bill.arrivals.list);
    lap_free(bill.waits.list);
    if (status == LAP_OK)
        *bytes_p = bill.bytes;
    return status;
}
