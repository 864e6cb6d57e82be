/* SPDX-License-Identifier: Apache-2.0 */
/* A measured call of `lap bench` as a file for other programs: see trace_file.h. */
#include "bench.h"
#include "core/status.h"
#include "core/world.h"
#include "overlap/op.h"
#include "ranks.h"

/* The records of one operator, which are `number` among those that the trace has joined. */
static lap_status_t add_op(const lap_bench_call_t *call, const lap_op_t *op, uint32_t number,
                           const char *name, lap_timeline_t *timeline)
{
    const lap_trace_t *trace = call->trace;
    const lap_timeline_call_t words = {
        .name = name, .layer = -1, .stride = 1, .traffic = LAP_TRAFFIC_TP};
    lap_schedule_t schedule;
    size_t first = 0, end;
    while (first < trace->nrecords && trace->records[first].call != number)
        first++;
    for (end = first; end < trace->nrecords && trace->records[end].call == number;)
        end++;
    lap_status_t status = lap_op_schedule(op, call->it->m, call->group->rank, &schedule);
    if (status == LAP_OK)
        lap_timeline_add_call(timeline, &words, &schedule, trace->records + first, end - first);
    lap_schedule_clear(&schedule);
    return status;
}

static lap_status_t fill(const lap_bench_call_t *call, lap_timeline_t *timeline)
{
    const lap_timeline_call_t host = {.name = "call", .layer = -1};
    const lap_span_t span = {call->trace->begin, call->trace->begin, call->trace->end};
    timeline->emulated = call->trace->emulated;
    LAP_TRY(add_op(call, call->op, 0, lap_kind_words[call->it->kind].word, timeline));
    if (call->gemm)
        LAP_TRY(add_op(call, call->gemm, 1, "gemm", timeline));
    lap_timeline_add_span(timeline, call->group->world->rank, LAP_TIMELINE_HOST,
                          LAP_TIMELINE_HOST_STREAM, &host, "begin to end", &span);
    return LAP_OK;
}

static void put_place(const void *context, int rank, char *text, size_t bytes)
{
    (void)context;
    snprintf(text, bytes, "tp%d", rank);
}

/* A full disk must not cost what was measured. */
static void write_file(const lap_bench_call_t *call, const lap_timeline_t *timeline,
                       bool *unwritten_p)
{
    const lap_trace_file_t file = {.path = call->bench->trace_path,
                                   .format = call->bench->trace_format,
                                   .command = "lap bench",
                                   .title = call->title,
                                   .measured = timeline,
                                   .place = put_place};
    const lap_status_t status = lap_trace_file_write(&file);
    *unwritten_p = status != LAP_OK;
    if (status == LAP_OK && timeline->dropped == 0)
        return;
    lap_bench_progress_end(true);
    if (status != LAP_OK)
        lap_ranks_fail("lap bench", 0, status);
    else
        fprintf(stderr, "lap bench: the trace lacks %zu records, which had no room in memory\n",
                timeline->dropped);
}

lap_status_t lap_bench_write_trace(const lap_bench_call_t *call, bool *unwritten_p)
{
    lap_timeline_t timeline = {.size = call->group->size};
    lap_status_t status = lap_group_agree(call->group, fill(call, &timeline));
    if (status == LAP_OK)
        status = lap_timeline_gather(&timeline, call->group);
    if (status == LAP_OK && call->group->rank == 0)
        write_file(call, &timeline, unwritten_p);
    lap_timeline_clear(&timeline);
    return status;
}
