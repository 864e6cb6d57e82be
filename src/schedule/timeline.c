/* SPDX-License-Identifier: Apache-2.0 */
/* Timelines: filling and gathering them. What is made of them is up to the command. */
#include "schedule/timeline.h"

#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "core/world.h"
#include "schedule/range.h"
#include "util/alloc.h"

const char *lap_traffic_name(lap_traffic_t traffic)
{
    static const char *const names[LAP_TRAFFICS] = {"none", "tp", "pp", "cp", "dp"};
    return (unsigned)traffic < LAP_TRAFFICS ? names[traffic] : "none";
}

void lap_timeline_reset(lap_timeline_t *timeline)
{
    timeline->nrecords = timeline->dropped = timeline->ngroups = 0;
}

void lap_timeline_clear(lap_timeline_t *timeline)
{
    lap_free(timeline->records);
    lap_free(timeline->clocks);
    *timeline = (lap_timeline_t){.size = 0};
}

/* ---- filling ---- */

void lap_timeline_add(lap_timeline_t *timeline, const lap_timeline_record_t *record)
{
    const size_t most = timeline->most ? timeline->most : LAP_TIMELINE_MOST;
    if (timeline->nrecords == timeline->room && timeline->room < most) {
        size_t room = timeline->room ? 2 * timeline->room : 1024;
        room = room < most ? room : most;
        lap_timeline_record_t *records =
            lap_realloc(timeline->records, timeline->room, room, sizeof(*records));
        if (records) {
            timeline->records = records;
            timeline->room = room;
        }
    }
    if (timeline->nrecords == timeline->room || timeline->nrecords >= most)
        timeline->dropped++;
    else
        timeline->records[timeline->nrecords++] = *record;
}

uint32_t lap_timeline_number(lap_timeline_t *timeline, int base, int stride)
{
    size_t i = 0;
    while (i < timeline->ngroups &&
           (timeline->groups[i].base != base || timeline->groups[i].stride != stride))
        i++;
    if (i == LAP_TIMELINE_GROUPS)
        return UINT32_MAX; /* its signals are matched with nobody's */
    if (i == timeline->ngroups) {
        timeline->groups[i].base = base;
        timeline->groups[i].stride = stride;
        timeline->groups[i].calls = 0;
        timeline->ngroups++;
    }
    return timeline->groups[i].calls++;
}

static int32_t in_world(const lap_timeline_call_t *call, int rank)
{
    return rank < 0 ? -1 : call->base + rank * call->stride;
}

static void describe_gemm(const lap_schedule_t *schedule, const lap_step_t *step,
                          const lap_block_t *block, lap_timeline_record_t *record)
{
    const lap_gemm_shape_t shape = lap_block_shape(schedule, step, block);
    record->m = (uint32_t)shape.rows;
    record->n = (uint32_t)shape.n;
    record->k = (uint32_t)shape.k;
}

lap_timeline_record_t lap_timeline_describe(const lap_timeline_call_t *call, uint32_t number,
                                            const lap_schedule_t *schedule, uint32_t index,
                                            uint32_t block)
{
    const lap_step_t *step = &schedule->steps[index];
    lap_trace_record_t traced = {.peer = -1};
    if (block == LAP_NO_STEP) {
        lap_record_step(schedule, index, &traced);
        traced.bytes = step->kind == LAP_STEP_PUT     ? lap_range_bytes(&step->src)
                       : step->kind == LAP_STEP_RAISE ? step->bytes
                                                      : 0;
        traced.peer = step->kind == LAP_STEP_PUT || step->kind == LAP_STEP_RAISE ||
                              step->kind == LAP_STEP_WAIT
                          ? step->peer
                          : -1;
    } else {
        const lap_block_t *own = &schedule->blocks[block];
        lap_record_block(schedule, index, own, &traced);
        const bool raises = own->raise_signal != LAP_NO_SIGNAL;
        traced.bytes = raises ? lap_range_bytes(&own->d) : 0;
        traced.peer = raises                              ? own->raise_peer
                      : own->wait_signal != LAP_NO_SIGNAL ? own->wait_peer
                                                          : -1;
    }
    lap_timeline_record_t record = {
        .rank = in_world(call, schedule->rank),
        .kind = (uint32_t)step->kind,
        .stream = step->stream,
        .step = index,
        .call = number,
        .base = call->base,
        .stride = call->stride,
        .peer = in_world(call, traced.peer),
        .signal = traced.signal,
        .from = in_world(call, traced.from),
        .awaited = traced.awaited,
        .count = traced.count,
        .bytes = traced.bytes,
        .layer = call->layer,
        .traffic = (uint32_t)call->traffic,
        .live_bytes = call->live_bytes,
        .predicted_us = call->predicted_us,
    };
    if (block != LAP_NO_STEP)
        describe_gemm(schedule, step, &schedule->blocks[block], &record);
    snprintf(record.name, sizeof(record.name), "%s", call->name);
    snprintf(record.op, sizeof(record.op), "%s %s", lap_op_kind_name(schedule->kind),
             schedule->method ? schedule->method : "");
    return record;
}

/* The records of a GEMM step are those of its blocks, in their order. */
void lap_timeline_add_call(lap_timeline_t *timeline, const lap_timeline_call_t *call,
                           const lap_schedule_t *schedule, const lap_trace_record_t *records,
                           size_t nrecords)
{
    const uint32_t number = lap_timeline_number(timeline, call->base, call->stride);
    uint32_t nth = 0; /* of the records of its step */
    for (size_t i = 0; i < nrecords; i++) {
        const lap_trace_record_t *traced = &records[i];
        nth = i > 0 && traced->step == records[i - 1].step ? nth + 1 : 0;
        const lap_step_t *step = &schedule->steps[traced->step];
        const bool gemm = step->kind == LAP_STEP_GEMM && nth < step->count;
        const lap_span_t *span = &traced->span, *flight = &traced->flight;
        if (span->end == 0 && flight->end == 0)
            continue; /* no time is known: a block that was done with others */
        lap_timeline_record_t record = lap_timeline_describe(
            call, number, schedule, traced->step, gemm ? step->first + nth : LAP_NO_STEP);
        record.bytes = traced->bytes;
        record.ready = span->ready ? span->ready : span->begin;
        record.begin = span->begin;
        record.end = span->end;
        record.sent = flight->begin;
        record.came = flight->end;
        lap_timeline_add(timeline, &record);
    }
}

void lap_timeline_add_span(lap_timeline_t *timeline, int rank, uint32_t kind, uint32_t stream,
                           const lap_timeline_call_t *call, const char *op, const lap_span_t *span)
{
    lap_timeline_record_t record = {
        .rank = rank,
        .kind = kind,
        .stream = stream,
        .peer = -1,
        .signal = LAP_NO_SIGNAL,
        .from = -1,
        .layer = call->layer,
        .live_bytes = call->live_bytes,
        .predicted_us = call->predicted_us,
        .ready = span->ready ? span->ready : span->begin,
        .begin = span->begin,
        .end = span->end,
    };
    snprintf(record.name, sizeof(record.name), "%s", call->name);
    snprintf(record.op, sizeof(record.op), "%s", op);
    if (span->end != 0)
        lap_timeline_add(timeline, &record);
}

/* ---- gathering ---- */

typedef struct head {
    uint64_t dropped, emulated;
} head_t;

static void shift(lap_timeline_record_t *record, const lap_clock_offset_t *clock)
{
    uint64_t *const times[] = {&record->ready, &record->begin, &record->end, &record->sent,
                               &record->came};
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++)
        lap_clock_shift(clock, times[i]);
}

lap_status_t lap_timeline_gather(lap_timeline_t *timeline, lap_group_t *world)
{
    const head_t mine = {timeline->dropped, timeline->emulated};
    lap_gathered_t gathered;
    void *heads;
    LAP_TRY(lap_group_collect(world, &mine, sizeof(mine), &heads));
    lap_status_t status = lap_gather(world, timeline->records, timeline->nrecords,
                                     sizeof(*timeline->records), world->rank == 0, &gathered);
    if (status == LAP_OK) {
        lap_timeline_clear(timeline);
        *timeline = (lap_timeline_t){.size = world->size,
                                     .most = SIZE_MAX,
                                     .records = gathered.records,
                                     .clocks = gathered.clocks};
        timeline->nrecords = timeline->room = gathered.records ? gathered.total : 0;
        lap_timeline_record_t *next = timeline->records;
        for (int r = 0; r < world->size; r++) {
            const head_t *head = (const head_t *)heads + r;
            timeline->dropped += head->dropped;
            timeline->emulated = timeline->emulated || head->emulated;
            for (size_t i = 0; next && i < gathered.counts[r]; i++)
                shift(next++, &gathered.clocks[r]);
        }
        lap_free(gathered.counts);
    }
    lap_free(heads);
    return status;
}
