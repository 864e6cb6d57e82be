/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls in the order of a caller's streams, on a GPU: one after the other with other work between
 * them and nobody waiting, from several streams, and captured in a caller's graph that is replayed
 * with fresh data. The caller is a program that uses the driver by itself, with a context and
 * streams of its own.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <lap/lap_cuda.h>

#include "caller.h"
#include "core/world.h"
#include "tap.h"
#include "transport/transport.h"

enum { CALLS = 4, MANY = 100 };

static const test_shape_t shape = {37, 24, 16};

/* The memory of the caller, in pieces that have room for all that belongs to any call. */
typedef struct bench {
    caller_t caller;
    size_t bytes;             /* of each piece: */
    CUdeviceptr given[CALLS]; /* what a call starts from, */
    CUdeviceptr got[CALLS];   /* what it left, */
    CUdeviceptr work;         /* and where it works */
    CUdeviceptr next;         /* what a replay starts from */
} bench_t;

/* Enough for all that belongs to any call. */
static size_t most_bytes(lap_group_t *group, const test_flavour_t *flavours, size_t nflavours)
{
    size_t most = 0;
    for (size_t f = 0; f < nflavours; f++)
        for (int i = 0; i < TEST_METHODS; i++) {
            test_call_t call =
                test_call(group, &test_methods[i], &flavours[f], &shape, shape.m, 2, true);
            test_call_init(&call);
            const size_t bytes = test_call_bytes(&call);
            most = bytes > most ? bytes : most;
            test_call_clear(&call);
        }
    return most;
}

static void begin(bench_t *bench)
{
    caller_t *caller = &bench->caller;
    for (int i = 0; i < CALLS; i++) {
        CALLER_DO(caller, cuMemAlloc(&bench->given[i], bench->bytes));
        CALLER_DO(caller, cuMemAlloc(&bench->got[i], bench->bytes));
    }
    CALLER_DO(caller, cuMemAlloc(&bench->work, bench->bytes));
    CALLER_DO(caller, cuMemAlloc(&bench->next, bench->bytes));
}

static void end(bench_t *bench)
{
    caller_t *caller = &bench->caller;
    for (int i = 0; i < CALLS; i++) {
        CALLER_DO(caller, cuMemFree(bench->given[i]));
        CALLER_DO(caller, cuMemFree(bench->got[i]));
    }
    CALLER_DO(caller, cuMemFree(bench->work));
    CALLER_DO(caller, cuMemFree(bench->next));
}

static void move(bench_t *bench, CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
    CALLER_DO(&bench->caller, cuMemcpyAsync(to, from, bench->bytes, stream));
}

static void synchronize(bench_t *bench, CUstream stream, const char *what)
{
    const lap_status_t status = lap_world_synchronize(bench->caller.group->world, stream);
    if (status != LAP_OK)
        tap_success(status, "%s can be waited for", what);
    caller_check_context(&bench->caller, "lap_world_synchronize");
}

static void enqueue(bench_t *bench, lap_op_t *op, test_call_t *call, CUdeviceptr memory,
                    CUstream stream, const char *what)
{
    const lap_op_args_t args = test_call_args_at(call, caller_pointer(memory));
    const lap_status_t status = lap_op_enqueue(op, &args, stream);
    if (status != LAP_OK)
        tap_success(status, "%s is enqueued", what);
    caller_check_context(&bench->caller, "lap_op_enqueue");
}

/* The error of a call whose memory lies there; the call is no longer needed. */
static double error_of(test_call_t *call, CUdeviceptr memory)
{
    double error = INFINITY;
    if (test_call_download(call, caller_pointer(memory)) == LAP_OK)
        error = test_call_error(call);
    test_call_clear(call);
    return error;
}

/* ---- calls ---- */

/* What is tried: an operator, and how to make calls of it. */
typedef struct trial {
    bench_t *bench;
    const test_method_t *method;
    const test_flavour_t *flavour;
    lap_op_t *op;
    const char *label;
} trial_t;

/* Calls that differ in their data; and, where there are any, in their scales. */
static test_call_t plan_call(const trial_t *trial, uint64_t seed, bool exact)
{
    test_call_t call = test_call(trial->bench->caller.group, trial->method, trial->flavour, &shape,
                                 shape.m - seed % 2, seed, exact);
    call.stride_pad = 1;
    return call;
}

static test_call_t make_call(const trial_t *trial, uint64_t seed, bool exact)
{
    test_call_t call = plan_call(trial, seed, exact);
    test_call_init(&call);
    return call;
}

/* All in one piece of memory, which is filled before and emptied after each, by the stream alone.
 */
static void try_in_line(const trial_t *trial, CUstream stream, const char *where)
{
    bench_t *bench = trial->bench;
    test_call_t calls[CALLS];
    double error = 0;
    for (int i = 0; i < CALLS; i++) {
        calls[i] = make_call(trial, (uint64_t)i, i % 2 == 0);
        test_call_upload(&calls[i], caller_pointer(bench->given[i]));
    }
    for (int i = 0; i < CALLS; i++) {
        move(bench, bench->work, bench->given[i], stream);
        enqueue(bench, trial->op, &calls[i], bench->work, stream, trial->label);
        move(bench, bench->got[i], bench->work, stream);
    }
    CALLER_DO(&bench->caller, cuMemsetD8Async(bench->work, 0xff, bench->bytes, stream));
    synchronize(bench, stream, trial->label);
    for (int i = 0; i < CALLS; i++)
        error = fmax(error, error_of(&calls[i], bench->got[i]));
    tap_ok(error <= 1, "%s: calls in line on %s are right: %g", trial->label, where, error);
}

/* On several streams, between which the caller makes no order; then one that is waited for. */
static void try_streams(const trial_t *trial)
{
    bench_t *bench = trial->bench;
    test_call_t calls[CALLS];
    double error = 0;
    for (int i = 0; i < CALLS; i++) {
        CUstream stream = bench->caller.streams[i % CALLER_STREAMS];
        calls[i] = make_call(trial, (uint64_t)i, true);
        test_call_upload(&calls[i], caller_pointer(bench->given[i]));
        move(bench, bench->got[i], bench->given[i], stream);
        enqueue(bench, trial->op, &calls[i], bench->got[i], stream, trial->label);
    }
    error = test_run(trial->op, test_call(bench->caller.group, trial->method, trial->flavour,
                                          &shape, shape.m, 7, true));
    for (int s = 0; s < CALLER_STREAMS; s++)
        synchronize(bench, bench->caller.streams[s], trial->label);
    for (int i = 0; i < CALLS; i++)
        error = fmax(error, error_of(&calls[i], bench->got[i]));
    tap_ok(error <= 1, "%s: calls on several streams are right: %g", trial->label, error);
}

/* ---- graphs ---- */

/* From `next` to `work`, a call there, and back. */
static bool capture(const trial_t *trial, CUstream stream, CUgraphExec *exec_p)
{
    bench_t *bench = trial->bench;
    CUgraph graph = NULL;
    test_call_t call = make_call(trial, 0, true);
    const lap_op_args_t args = test_call_args_at(&call, caller_pointer(bench->work));
    /* The strictest mode, but that it would forbid much to the other ranks if they are threads. */
    const bool in_turn = lap_op_buffer(trial->op)->no_graphs;
    CALLER_DO(&bench->caller,
              cuStreamBeginCapture(stream, in_turn ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
                                                   : CU_STREAM_CAPTURE_MODE_GLOBAL));
    move(bench, bench->work, bench->next, stream);
    const lap_status_t status = lap_op_enqueue(trial->op, &args, stream);
    if (in_turn)
        tap_failure(status, LAP_ERR_UNSUPPORTED, "captured", "threads", NULL);
    else if (status != LAP_OK)
        tap_success(status, "%s can be captured", trial->label);
    caller_check_context(&bench->caller, "lap_op_enqueue in a capture");
    const lap_status_t begun = status == LAP_OK ? lap_op_begin(trial->op, &args) : LAP_ERR_BUSY;
    const lap_status_t waited = lap_world_synchronize(bench->caller.group->world, stream);
    move(bench, bench->next, bench->work, stream);
    CALLER_DO(&bench->caller, cuStreamEndCapture(stream, &graph));
    test_call_clear(&call);
    if (begun != LAP_ERR_BUSY || waited != LAP_ERR_INVALID)
        tap_ok(false, "%s: what cannot be done in a capture is refused (%d, %d)", trial->label,
               (int)begun, (int)waited);
    if (status == LAP_OK)
        CALLER_DO(&bench->caller, cuGraphInstantiateWithFlags(exec_p, graph, 0));
    CALLER_DO(&bench->caller, cuGraphDestroy(graph));
    return status == LAP_OK;
}

/* A few replays with fresh data each, of which nobody waits for any but the last. */
static double replay(const trial_t *trial, CUstream stream, CUgraphExec exec, uint64_t seed)
{
    bench_t *bench = trial->bench;
    test_call_t calls[CALLS];
    double error = 0;
    for (int i = 0; i < CALLS; i++) {
        calls[i] = make_call(trial, 2 * (seed + (uint64_t)i), true);
        test_call_upload(&calls[i], caller_pointer(bench->given[i]));
    }
    for (int i = 0; i < CALLS; i++) {
        move(bench, bench->next, bench->given[i], stream);
        CALLER_DO(&bench->caller, cuGraphLaunch(exec, stream));
        move(bench, bench->got[i], bench->next, stream);
    }
    synchronize(bench, stream, trial->label);
    for (int i = 0; i < CALLS; i++)
        error = fmax(error, error_of(&calls[i], bench->got[i]));
    return error;
}

static void try_graph(const trial_t *trial, int replays)
{
    bench_t *bench = trial->bench;
    CUgraphExec exec = NULL;
    double error = 0;
    if (!capture(trial, bench->caller.streams[0], &exec))
        return;
    for (int i = 0; i < replays; i += CALLS) {
        error = fmax(error, replay(trial, bench->caller.streams[i / CALLS % CALLER_STREAMS], exec,
                                   (uint64_t)i));
        if (i % (5 * CALLS) == 0) /* calls of other kinds between the replays */
            error = fmax(error, test_run(trial->op, plan_call(trial, 5, true)));
    }
    CALLER_DO(&bench->caller, cuGraphExecDestroy(exec));
    tap_ok(error <= 1, "%s: %d replays of a caller's graph are right: %g", trial->label, replays,
           error);
}

/* Calls of more sizes than an operator keeps programs for, a few at a time. */
static double run_sizes(const trial_t *trial, CUstream stream)
{
    bench_t *bench = trial->bench;
    test_call_t calls[CALLS];
    double error = 0;
    for (size_t i = 0; i < 5 * CALLS; i++) {
        const size_t at = i % CALLS;
        calls[at] = plan_call(trial, i, true);
        calls[at].m = shape.m - 1 - i;
        test_call_init(&calls[at]);
        test_call_upload(&calls[at], caller_pointer(bench->got[at]));
        enqueue(bench, trial->op, &calls[at], bench->got[at], stream, trial->label);
        if (at != CALLS - 1)
            continue;
        synchronize(bench, stream, trial->label);
        for (int j = 0; j < CALLS; j++)
            error = fmax(error, error_of(&calls[j], bench->got[j]));
    }
    return error;
}

/* What a graph has in it stays, whatever sizes are called meanwhile. */
static void try_sizes(const trial_t *trial)
{
    CUstream stream = trial->bench->caller.streams[0];
    CUgraphExec exec = NULL;
    const bool captured = capture(trial, stream, &exec);
    double error = run_sizes(trial, stream);
    tap_ok(lap_op_is_captured(trial->op) == captured, "%s: is it captured: %d", trial->label,
           captured);
    if (captured) {
        error = fmax(error, replay(trial, stream, exec, 0));
        CALLER_DO(&trial->bench->caller, cuGraphExecDestroy(exec));
    }
    tap_ok(error <= 1, "%s: calls of many sizes are right, and a graph after them: %g",
           trial->label, error);
}

/* ---- the suite ---- */

/* What lap_cuda.h promises: in turn, unless the environment names one. */
static void check_gpu(caller_t *caller)
{
    const char *given = getenv("LAP_GPU");
    const int rank = lap_group_rank(caller->group);
    int count = 1;
    CALLER_DO(caller, cuDeviceGetCount(&count));
    const int expected = given && *given ? atoi(given) : rank % count;
    tap_ok((int)caller->gpu == expected, "rank %d has GPU %d of %d, expected %d", rank,
           (int)caller->gpu, count, expected);
}

static void try_method(bench_t *bench, const test_method_t *method, const test_flavour_t *flavour,
                       lap_buffer_t *buffer, int index)
{
    char text[128];
    trial_t trial = {.bench = bench, .method = method, .flavour = flavour};
    trial.label = test_label(method, flavour, text, sizeof(text));
    trial.op = test_op(bench->caller.group, buffer, method, flavour, &shape);
    if (!trial.op)
        return;
    tap_ok(!lap_op_is_captured(trial.op), "%s: is not captured yet", trial.label);
    /* Some are captured before they have run. */
    if (index % 3 == 0)
        try_graph(&trial, CALLS);
    try_in_line(&trial, bench->caller.streams[0], "a stream");
    try_in_line(&trial, NULL, "the default stream");
    try_streams(&trial);
    if (strcmp(method->method, "ring") == 0)
        try_sizes(&trial);
    try_graph(&trial, strcmp(method->method, "ring") == 0 && !method->gather ? MANY : CALLS);
    lap_op_destroy(trial.op);
}

/* While the caller captures a graph that has nothing to do with it; which must not suffer. */
static void try_beside_capture(bench_t *bench, const test_flavour_t *flavour, lap_buffer_t *buffer)
{
    caller_t *caller = &bench->caller;
    CUgraph graph = NULL;
    trial_t trial = {.bench = bench, .method = &test_methods[0], .flavour = flavour};
    CALLER_DO(caller, cuStreamBeginCapture(caller->streams[0], CU_STREAM_CAPTURE_MODE_GLOBAL));
    move(bench, bench->next, bench->work, caller->streams[0]);
    trial.op = test_op(caller->group, buffer, trial.method, flavour, &shape);
    const double error = trial.op ? test_run(trial.op, plan_call(&trial, 1, true)) : INFINITY;
    test_call_t call = make_call(&trial, 2, true);
    test_call_upload(&call, caller_pointer(bench->got[0]));
    if (trial.op)
        enqueue(bench, trial.op, &call, bench->got[0], caller->streams[1], "during a capture");
    synchronize(bench, caller->streams[1], "during a capture");
    const double later = error_of(&call, bench->got[0]);
    lap_op_destroy(trial.op);
    CALLER_DO(caller, cuStreamEndCapture(caller->streams[0], &graph));
    tap_ok(error == 0 && later == 0, "calls during a capture are right: %g, %g", error, later);
    tap_ok(graph != NULL, "the capture is none the worse");
    CALLER_DO(caller, cuGraphDestroy(graph));
}

/* A green context of all that this GPU has, and a stream in it; false: there are none such here. */
static bool make_green(caller_t *caller, CUgreenCtx *green_p, CUstream *stream_p)
{
    const lap_cuda_api_t *api = &caller->api;
    CUdevResource all;
    CUdevResourceDesc description;
    if (!api->cuGreenCtxStreamCreate ||
        api->cuDeviceGetDevResource(caller->gpu, &all, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS ||
        api->cuDevResourceGenerateDesc(&description, &all, 1) != CUDA_SUCCESS ||
        api->cuGreenCtxCreate(green_p, description, caller->gpu, CU_GREEN_CTX_DEFAULT_STREAM) !=
            CUDA_SUCCESS)
        return false;
    CALLER_DO(caller, cuGreenCtxStreamCreate(stream_p, *green_p, CU_STREAM_NON_BLOCKING, 0));
    return true;
}

/* Streams of two contexts in turn: one of them is not the library's own. */
static void try_contexts(bench_t *bench, const test_flavour_t *flavour, lap_buffer_t *buffer)
{
    caller_t *caller = &bench->caller;
    trial_t trial = {.bench = bench, .method = &test_methods[0], .flavour = flavour};
    CUstream streams[2] = {caller->streams[0], NULL};
    CUgreenCtx green = NULL;
    double error = 0;
    if (!make_green(caller, &green, &streams[1])) {
        tap_skip("this driver has no green contexts");
        return;
    }
    trial.op = test_op(caller->group, buffer, trial.method, flavour, &shape);
    /* The last one is on the primary context's stream: nothing of ours is left in the other. */
    for (int i = 0; trial.op && i < 10; i++) {
        test_call_t call = make_call(&trial, (uint64_t)i, true);
        CUstream stream = streams[i / 2 % 2];
        test_call_upload(&call, caller_pointer(bench->next));
        move(bench, bench->work, bench->next, stream);
        enqueue(bench, trial.op, &call, bench->work, stream, "a stream of another context");
        synchronize(bench, stream, "a stream of another context");
        error = fmax(error, error_of(&call, bench->work));
    }
    tap_ok(error == 0, "calls on streams of two contexts in turn are right: %g", error);
    lap_op_destroy(trial.op);
    CALLER_DO(caller, cuStreamDestroy(streams[1]));
    CALLER_DO(caller, cuGreenCtxDestroy(green));
}

/* Arguments that no GPU, or not this one, can use; nothing is broken by them. */
static void try_wrong_memory(bench_t *bench, const test_flavour_t *flavour, lap_buffer_t *buffer)
{
    caller_t *caller = &bench->caller;
    static float of_host[37 * 24];
    int reaches = 0;
    lap_trace_t *trace = NULL;
    trial_t trial = {.bench = bench, .method = &test_methods[0], .flavour = flavour};
    trial.op = test_op(caller->group, buffer, trial.method, flavour, &shape);
    test_call_t call = make_call(&trial, 0, true);
    lap_op_args_t args = test_call_args_at(&call, caller_pointer(bench->work));
    args.d.data = of_host;
    CALLER_DO(caller, cuDeviceGetAttribute(&reaches, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
                                           caller->gpu));
    if (reaches)
        tap_skip("this GPU reaches all memory of the host");
    else
        tap_failure(lap_op_enqueue(trial.op, &args, caller->streams[0]), LAP_ERR_INVALID,
                    "d lies in memory of the host", "pinned", NULL);
    args = test_call_args_at(&call, caller_pointer(bench->work));
    if (tap_success(lap_trace_create(&trace), "a trace"))
        args.trace = trace;
    tap_failure(lap_op_enqueue(trial.op, &args, caller->streams[0]), LAP_ERR_INVALID, "trace",
                NULL);
    lap_trace_destroy(trace);
    test_call_clear(&call);
    tap_ok(test_run(trial.op, plan_call(&trial, 0, true)) == 0, "a call after those is right");
    lap_op_destroy(trial.op);
}

static void suite(lap_group_t *group)
{
    test_flavour_t flavours[2] = {test_plain(), test_plain()};
    flavours[1].name = "fp8";
    flavours[1].a = flavours[1].wire = LAP_FLOAT8_E4M3;
    flavours[1].out = LAP_BFLOAT16;
    bench_t bench;
    if (!caller_begin(&bench.caller, group))
        return;
    check_gpu(&bench.caller);
    bench.bytes = most_bytes(group, flavours, 2);
    begin(&bench);
    lap_buffer_t *buffer = test_buffer(group, flavours, 2, &shape);
    for (int i = 0; buffer && i < TEST_METHODS; i++)
        for (int f = 0; f < 2; f++)
            if (test_suits(&test_methods[i], &flavours[f], lap_group_size(group)) &&
                strcmp(test_methods[i].method, "auto") != 0)
                try_method(&bench, &test_methods[i], &flavours[f], buffer, i + f);
    if (buffer) {
        try_contexts(&bench, &flavours[0], buffer);
        try_beside_capture(&bench, &flavours[0], buffer);
        try_wrong_memory(&bench, &flavours[0], buffer);
    }
    lap_buffer_destroy(buffer);
    end(&bench);
    caller_end(&bench.caller);
}

int main(int argc, char **argv)
{
    return test_suite(argc, argv, suite);
}
