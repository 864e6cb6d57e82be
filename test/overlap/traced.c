/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that are traced again and again: every trace holds the times of its own call, all of them
 * and in order, also where a device keeps calls as graphs, and those calls are graphs. See suite.h
 * for how it is started.
 */
#include <stdlib.h>
#include <string.h>

#include "overlap/op.h"
#include "schedule/runnable.h"
#include "suite.h"
#include "tap.h"
#include "util/clock.h"

enum { CALLS = 5, MANY = 1 << 20, MOMENT_NS = 2000000, FEW = 12 };
#define PATIENCE_NS 20000000000u

typedef struct trial {
    lap_op_t *op;
    test_call_t call;
    uint64_t last; /* when all of the latest traced call had run */
    bool called;   /* before, with the same memory */
    bool failed;
} trial_t;

static lap_runnable_t *program_of(const trial_t *trial)
{
    return trial->op->cache[0].runnable;
}

/* Whether the latest call was a graph, wherever there are graphs. */
static bool was_graph(const trial_t *trial)
{
    const bool can = trial->op->engine->device->ops->facts.graphs && !trial->op->buffer->no_graphs;
    return !can || (program_of(trial)->captured && program_of(trial)->graph);
}

static bool is_ordered(const lap_span_t *span, uint64_t after)
{
    return span->ready > 0 && span->ready >= after && span->ready <= span->begin &&
           span->begin <= span->end;
}

/* Whether the trace holds a call that came after the one before, and nothing is missing in it. */
static bool is_whole(trial_t *trial, const lap_trace_t *trace)
{
    uint64_t last = 0;
    bool whole = trace->nrecords == lap_runnable_records(program_of(trial));
    for (size_t i = 0; i < trace->nrecords; i++) {
        const lap_trace_record_t *record = &trace->records[i];
        whole = whole && is_ordered(&record->span, trial->last) &&
                record->rank == program_of(trial)->schedule.rank &&
                record->kind == (uint32_t)program_of(trial)->schedule.steps[record->step].kind;
        if (record->bytes > 0) /* it may still be on its way when the call ends */
            whole = whole && is_ordered(&record->flight, trial->last);
        last = record->span.end > last ? record->span.end : last;
    }
    trial->last = last;
    return whole;
}

/* A few calls with this trace, or none; all are graphs, but for the first of all. */
static void call(trial_t *trial, lap_trace_t *trace, const char *what)
{
    const bool called = trial->called;
    trial->called = true;
    int wrong = 0, holes = 0, steps = 0;
    for (int i = 0; i < CALLS && !trial->failed; i++) {
        trial->call.args.trace = trace;
        trial->failed = test_call_run(trial->op, &trial->call) != LAP_OK;
        wrong += trial->failed || test_call_error(&trial->call) > 0;
        holes += trace && !is_whole(trial, trace);
        steps += (i > 0 || called) && !was_graph(trial);
    }
    tap_ok(wrong + holes + steps == 0,
           "%s/%s, %s: of %d calls %d are wrong, %d have times that are, %d should be graphs",
           lap_op_kind_name(trial->call.desc.kind), trial->call.desc.method, what, CALLS, wrong,
           holes, steps);
}

/* A trace is of one call: what runs later changes nothing in it. */
static void call_otherwise(trial_t *trial, lap_trace_t *trace, lap_trace_t *other)
{
    const size_t bytes = trace->nrecords * sizeof(*trace->records);
    void *before = malloc(bytes + 1);
    memcpy(before, trace->records, bytes);
    call(trial, NULL, "without a trace");
    call(trial, other, "with another trace");
    tap_ok(memcmp(before, trace->records, bytes) == 0, "the first trace is what it was");
    free(before);
}

/* ---- a peer that is late ---- */

/* Until one of the streams waits for the peer, who has not begun: that wait lasts. */
static bool await_stall(const trial_t *trial)
{
    const lap_engine_t *engine = trial->op->engine;
    const uint64_t deadline = lap_now_ns() + PATIENCE_NS;
    lap_stall_t stall;
    while (lap_now_ns() < deadline) {
        for (int s = 0; s < LAP_STREAMS; s++)
            if (engine->streams[s] && engine->device->ops->stall(engine->streams[s], &stall))
                return true;
        lap_sleep_until_ns(lap_now_ns() + MOMENT_NS);
    }
    return false;
}

/* Whether some step of the trace waited then. */
static bool has_waited(const lap_trace_t *trace, uint64_t then)
{
    bool waited = false;
    for (size_t i = 0; i < trace->nrecords; i++) {
        const lap_trace_record_t *record = &trace->records[i];
        const bool waits = record->kind == LAP_STEP_WAIT;
        const uint64_t begin = waits ? record->span.begin : record->span.ready;
        const uint64_t end = waits ? record->span.end : record->span.begin;
        waited = waited || (begin < then && then < end);
    }
    return waited;
}

/* Of two ranks the first begins when the other is known to wait for it, which its trace tells. */
static void call_late(trial_t *trial, lap_trace_t *trace, lap_group_t *group)
{
    if (lap_group_size(group) != 2 || !trial->op->engine->device->ops->waits_by_itself ||
        trial->op->buffer->no_graphs || trial->failed)
        return;
    bool waited = true;
    lap_status_t status = LAP_OK;
    trial->call.args.trace = trace;
    if (lap_group_rank(group) == 1) {
        status = test_call_begin(trial->op, &trial->call);
        const bool stalled = status == LAP_OK && await_stall(trial);
        /* Clocks of a GPU and of a host agree to less than that. */
        lap_sleep_until_ns(lap_now_ns() + MOMENT_NS);
        const uint64_t then = lap_now_ns();
        lap_sleep_until_ns(then + MOMENT_NS);
        (void)lap_group_barrier(group);
        status = status == LAP_OK ? test_call_end(trial->op, &trial->call) : status;
        waited = stalled && has_waited(trace, then);
    } else {
        (void)lap_group_barrier(group);
        status = test_call_run(trial->op, &trial->call);
    }
    trial->failed = status != LAP_OK;
    tap_ok(status == LAP_OK && is_whole(trial, trace) && waited && was_graph(trial),
           "%s/%s: the trace tells of the wait for a rank that is late",
           lap_op_kind_name(trial->call.desc.kind), trial->call.desc.method);
}

/* ---- room ---- */

/* A graph with so many times, or as many as there can be in graphs; NULL where that fails. */
static lap_graph_t *hog(lap_device_t *device, lap_stream_t *stream, int times, uint64_t *time)
{
    const lap_device_ops_t *ops = device->ops;
    lap_graph_t *graph = NULL;
    lap_status_t status = LAP_OK;
    tap_success(ops->graph_begin(&stream, 1), "a graph of times is begun");
    for (int i = 0; i < times && status == LAP_OK; i++)
        status = ops->stamp(stream, time);
    if (times == MANY)
        tap_failure(status, LAP_ERR_UNSUPPORTED, "timestamps in graphs", NULL);
    tap_success(ops->graph_end(&stream, 1, &graph), "and ended");
    return graph;
}

/* Three calls, while another graph has all times but a few. */
static void call_with_few(trial_t *trial, lap_trace_t *trace, lap_stream_t *stream, int few)
{
    lap_device_t *device = trial->op->engine->device;
    const lap_device_ops_t *ops = device->ops;
    uint64_t time = 0;
    lap_graph_t *room = hog(device, stream, few, &time);
    lap_graph_t *graph = hog(device, stream, MANY, &time);
    if (!room || !graph)
        return;
    ops->graph_destroy(room);
    trial->call.args.trace = trace;
    for (int i = 0; i < 3 && !trial->failed; i++) {
        trial->failed = test_call_run(trial->op, &trial->call) != LAP_OK ||
                        test_call_error(&trial->call) > 0 || !is_whole(trial, trace);
        trial->failed |= few == 0 && program_of(trial)->captured;
    }
    tap_ok(!trial->failed, "with room for %d times in graphs, calls are right", few);
    tap_success(ops->graph_launch(graph, stream), "the graph of times is launched");
    tap_success(ops->stream_synchronize(stream), "and runs");
    tap_ok(time > trial->last, "it has brought its time");
    ops->graph_destroy(graph);
}

/*
 * Where graphs have no room for times, calls are issued step by step, wherever in the call it was
 * that the room came to its end.
 */
static void call_without_room(trial_t *trial, lap_trace_t *trace)
{
    lap_device_t *device = trial->op->engine->device;
    const lap_device_ops_t *ops = device->ops;
    lap_stream_t *stream;
    if (!ops->facts.graphs || !tap_success(ops->stream_create(device, false, &stream), "a stream"))
        return;
    for (int few = 0; few < FEW && !trial->failed; few++) {
        trial->call.args.trace = NULL;
        trial->failed = test_call_run(trial->op, &trial->call) != LAP_OK;
        call_with_few(trial, trace, stream, few);
    }
    ops->stream_destroy(stream);
}

static void try_method(lap_group_t *group, const test_method_t *method, bool hogs)
{
    const test_flavour_t plain = test_plain();
    const test_shape_t shape = {5 * (size_t)lap_group_size(group) + 2, 19, 33};
    trial_t trial = {.call = test_call(group, method, &plain, &shape, shape.m, 4002, true)};
    lap_buffer_t *buffer = test_buffer(group, &plain, 1, &shape);
    lap_trace_t *trace = NULL, *other = NULL;
    trial.op = test_op(group, buffer, method, &plain, &shape);
    test_call_init(&trial.call);
    if (trial.op && tap_success(lap_trace_create(&trace), "a trace") &&
        tap_success(lap_trace_create(&other), "another")) {
        call(&trial, trace, "with a trace");
        call_late(&trial, trace, group);
        call_otherwise(&trial, trace, other);
        tap_success(lap_trace_gather(trace, group), "the first trace is gathered");
        if (hogs)
            call_without_room(&trial, trace);
        call(&trial, NULL, "without a trace");
        call(&trial, trace, "with the first trace");
    }
    test_call_clear(&trial.call);
    lap_op_destroy(trial.op);
    lap_trace_destroy(trace);
    lap_trace_destroy(other);
    lap_buffer_destroy(buffer);
}

static void suite(lap_group_t *group)
{
    static const test_method_t methods[] = {
        {LAP_AG_GEMM, "fused", 0, 0, 3, 0},  {LAP_AG_GEMM, "ring", 0, 0, 0, 0},
        {LAP_GEMM_RS, "fused", 0, 0, 0, 0},  {LAP_GEMM_RS, "pipeline", 0, 3, 0, 0},
        {LAP_BULK_RS, "direct", 0, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++)
        try_method(group, &methods[i], i < 2);
}

int main(int argc, char **argv)
{
    return test_suite(argc, argv, suite);
}
