/* SPDX-License-Identifier: Apache-2.0 */
/* A measured call of `lap bench` as a file for other programs: see trace_file.h. */
#include "bench.h"
#include "core/status.h"
#include "core/world.h"
#include "overlap/auto.h"
#include "overlap/op.h"
#include "ranks.h"
#include "schedule/calibrate.h"
#include "schedule/play.h"
#include "schedule/simulate.h"
#include "util/alloc.h"

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

/* ---- the same call, simulated ---- */

static int describe(void *context, int rank, uint32_t fragment, lap_timeline_call_t *call,
                    char *name, size_t bytes)
{
    const lap_op_kind_t *kind = context;
    (void)fragment;
    *call = (lap_timeline_call_t){.layer = -1, .stride = 1, .traffic = LAP_TRAFFIC_TP};
    snprintf(name, bytes, "%s", lap_kind_words[*kind].word);
    return rank;
}

/* A call by itself is a program of one fragment. */
static lap_status_t play(const lap_bench_call_t *call, const lap_cost_t *cost,
                         lap_timeline_t *timeline)
{
    const size_t size = (size_t)call->group->size;
    lap_fragment_t *fragments = lap_alloc(size, sizeof(*fragments));
    lap_linked_t *programs = lap_alloc(size, sizeof(*programs));
    const lap_linked_t **list = lap_alloc(size, sizeof(*list));
    lap_op_kind_t kind = call->it->kind;
    lap_play_t playing = {.timeline = timeline,
                          .programs = programs,
                          .size = (int)size,
                          .describe = describe,
                          .context = &kind};
    lap_status_t status = LAP_OK;
    size_t made = 0;
    lap_simulated_t simulated;
    if (!fragments || !programs || !list)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to simulate %zu ranks", size);
    while (made < size && status == LAP_OK) {
        fragments[made].stride = 1;
        programs[made] =
            (lap_linked_t){.rank = (int)made, .fragments = &fragments[made], .nfragments = 1};
        list[made] = &programs[made];
        status = lap_op_schedule(call->op, call->it->m, (int)made, &fragments[made].schedule);
        made++;
    }
    const lap_fragment_cost_t costs = {.cost = cost};
    if (status == LAP_OK)
        status = lap_play_init(&playing);
    if (status == LAP_OK)
        status = lap_linked_simulate(list, (int)size, &costs, &simulated, 0, NULL);
    lap_play_clear(&playing);
    while (made > 0)
        lap_schedule_clear(&fragments[--made].schedule);
    lap_free(fragments);
    lap_free(programs);
    lap_free(list);
    return status;
}

/* Measures what things cost here; rank 0 plays, and gives measured records the times that it finds. */
static lap_status_t simulate(const lap_bench_call_t *call, lap_timeline_t *measured,
                             lap_timeline_t *timeline)
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
        status = play(call, &cost, timeline);
    if (call->group->rank == 0 && status == LAP_OK)
        status = lap_timeline_predict(measured, timeline);
    timeline->emulated = measured->emulated;
    return lap_group_agree(call->group, status);
}

/* ---- the file ---- */

/* A full disk must not cost what was measured. */
static void write_file(const lap_bench_call_t *call, const lap_timeline_t *timeline,
                       const lap_timeline_t *simulated, bool *unwritten_p)
{
    const lap_trace_file_t file = {.path = call->bench->trace_path,
                                   .format = call->bench->trace_format,
                                   .command = "lap bench",
                                   .title = call->title,
                                   .measured = timeline,
                                   .simulated = call->bench->trace_simulated ? simulated : NULL,
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
    lap_timeline_t timeline = {.size = call->group->size}, simulated = timeline;
    lap_status_t status = lap_group_agree(call->group, fill(call, &timeline));
    if (status == LAP_OK)
        status = lap_timeline_gather(&timeline, call->group);
    if (status == LAP_OK && call->bench->trace_simulated)
        status = simulate(call, &timeline, &simulated);
    if (status == LAP_OK && call->group->rank == 0)
        write_file(call, &timeline, &simulated, unwritten_p);
    lap_timeline_clear(&timeline);
    lap_timeline_clear(&simulated);
    return status;
}
