/* SPDX-License-Identifier: Apache-2.0 */
/* A measured call of `lap bench` as a file for other programs: see trace_file.h. */
#include "bench.h"
#include "core/status.h"
#include "core/world.h"
#include "overlap/auto.h"
#include "overlap/op.h"
#include "progress.h"
#include "ranks.h"
#include "schedule/calibrate.h"
#include "schedule/play.h"
#include "schedule/simulate.h"
#include "util/alloc.h"

/* ---- a gathered call ---- */

static lap_trace_group_t all_ranks(int size)
{
    lap_trace_group_t group = {.size = 0};
    while (group.size < size)
        lap_trace_group_add(&group, (int)group.size);
    return group;
}

/* Names the records of all ranks; those that have no time, of blocks done with others, are left out. */
static void label_records(const lap_bench_call_t *call)
{
    lap_trace_t *trace = call->trace;
    const lap_op_t *const ops[] = {call->op, call->gemm}; /* as the trace has joined them */
    size_t kept = 0;
    for (size_t i = 0; i < trace->nrecords; i++) {
        lap_trace_record_t *record = &trace->records[i];
        const lap_op_t *op = ops[record->call];
        const lap_op_text_t text = lap_op_text(op->problem.kind, op->builder->name);
        const lap_trace_label_t label = {.name = record->call ? "gemm"
                                                              : lap_kind_words[call->it->kind].word,
                                         .op = text.text,
                                         .layer = -1,
                                         .group = all_ranks(trace->size),
                                         .traffic = LAP_TRAFFIC_TP};
        if (record->span.end == 0 && record->flight.end == 0)
            continue;
        lap_record_label(record, &label, record->call);
        trace->records[kept++] = *record;
    }
    trace->nrecords = kept;
}

static void add_host(lap_trace_t *trace)
{
    const lap_trace_label_t label = {.name = "call", .op = "begin to end", .layer = -1};
    for (int r = 0; r < trace->size; r++) {
        const lap_trace_call_t *call = &trace->calls[r];
        const lap_span_t span = {call->begin, call->begin, call->end};
        lap_trace_add_span(trace, r, LAP_TRACE_HOST, LAP_TRACE_HOST_STREAM, &label, &span);
    }
}

static void put_place(const void *context, int rank, char *text, size_t bytes)
{
    (void)context;
    snprintf(text, bytes, "tp%d", rank);
}

/* ---- the same call, simulated ---- */

static void describe(void *context, int rank, uint32_t fragment, lap_trace_label_t *label,
                     char *name, size_t bytes)
{
    const lap_bench_call_t *call = context;
    (void)rank;
    (void)fragment;
    *label = (lap_trace_label_t){.layer = -1, .traffic = LAP_TRAFFIC_TP};
    snprintf(name, bytes, "%s", lap_kind_words[call->it->kind].word);
}

static lap_status_t play(const lap_bench_call_t *call, const lap_cost_t *cost,
                         lap_trace_t *timeline)
{
    const size_t size = (size_t)call->group->size;
    lap_schedule_t *schedules = lap_alloc(size, sizeof(*schedules));
    const lap_schedule_t **list = lap_alloc(size, sizeof(*list));
    const lap_fragment_cost_t costs = {.cost = cost};
    lap_bench_call_t played = *call;
    lap_play_t playing = {.timeline = timeline, .describe = describe, .context = &played};
    lap_status_t status = LAP_OK;
    size_t made = 0;
    double seconds;
    if (!schedules || !list)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to simulate %zu ranks", size);
    for (; made < size && status == LAP_OK; made++) {
        list[made] = &schedules[made];
        status = lap_op_schedule(call->op, call->it->m, (int)made, &schedules[made]);
    }
    if (status == LAP_OK)
        status = lap_schedule_play(list, (int)size, &costs, NULL, &playing, &seconds);
    while (made > 0)
        lap_schedule_clear(&schedules[--made]);
    lap_free(schedules);
    lap_free(list);
    return status;
}

/* Measures what things cost here; rank 0 plays, and gives measured records the times that it finds. */
static lap_status_t simulate(const lap_bench_call_t *call, lap_trace_t *simulated)
{
    const lap_op_desc_t *desc = &call->op->problem.desc;
    const lap_transport_ops_t *transport = call->buffer->ops;
    lap_cost_t cost;
    size_t n, k;
    LAP_TRY(lap_auto_gemm(desc, call->group->size, transport->can, &n, &k));
    LAP_TRY(lap_calibrate(call->group, call->engine, transport->name, desc->dtype, n, k, &cost));
    lap_cost_add_link(&cost, &call->buffer->link);
    lap_status_t status = LAP_OK;
    if (call->group->rank == 0)
        status = play(call, &cost, simulated);
    if (call->group->rank == 0 && status == LAP_OK)
        status = lap_trace_predict(call->trace, simulated);
    simulated->emulated = call->trace->emulated;
    return lap_group_agree(call->group, status);
}

/* ---- the file ---- */

/* A full disk must not cost what was measured. */
static void write_file(const lap_bench_call_t *call, const lap_trace_t *simulated,
                       bool *unwritten_p)
{
    const lap_trace_file_t file = {.path = call->bench->trace_path,
                                   .format = call->bench->trace_format,
                                   .command = "lap bench",
                                   .title = call->title,
                                   .measured = call->trace,
                                   .simulated = call->bench->trace_simulated ? simulated : NULL,
                                   .place = put_place};
    const lap_status_t status = lap_trace_file_write(&file);
    *unwritten_p = status != LAP_OK;
    if (status == LAP_OK && call->trace->dropped == 0)
        return;
    lap_progress_end(true);
    if (status != LAP_OK)
        lap_ranks_warn("lap bench", 0, status);
    else
        lap_tell("lap bench", "the trace lacks %zu records, which had no room in memory",
                 call->trace->dropped);
}

lap_status_t lap_bench_write_trace(const lap_bench_call_t *call, bool *unwritten_p)
{
    lap_trace_t simulated = {.size = call->group->size};
    lap_status_t status = LAP_OK;
    if (call->group->rank == 0) {
        label_records(call);
        add_host(call->trace);
    }
    if (call->bench->trace_simulated)
        status = simulate(call, &simulated);
    if (status == LAP_OK && call->group->rank == 0)
        write_file(call, &simulated, unwritten_p);
    lap_trace_clear(&simulated);
    return status;
}
