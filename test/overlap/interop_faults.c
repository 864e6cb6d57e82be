/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bad luck with calls in the order of a caller's stream, on a GPU, where nobody need be waiting in
 * the library: a peer that does not come, or calls something else, or ends. Streams must run on,
 * and the library tell what happened when it is next asked.
 *
 * interop_faults deadline|unguarded|late|mismatch|graph-mismatch|exit|abandon
 * interop_faults driver-mismatch|driver-notes|driver-exit|driver-graph-exit
 * interop_faults driver-stranger|driver-groups|driver-innocent, of three ranks
 * interop_faults driver-bystander, over the fake driver: some GEMMs must be slow
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lap/lap_cuda.h>

#include "caller.h"
#include "tap.h"
#include "util/clock.h"
#include "util/thread.h"

enum { OPS = 2 };

static bool unguarded; /* there is no thread to be had that would watch over calls */

int __real_lap_thread_start(pthread_t *thread_p, const char *name, void *(*main)(void *context),
                            void *context);
int __wrap_lap_thread_start(pthread_t *thread_p, const char *name, void *(*main)(void *context),
                            void *context);

int __wrap_lap_thread_start(pthread_t *thread_p, const char *name, void *(*main)(void *context),
                            void *context)
{
    if (unguarded && strcmp(name, "lap-guard") == 0)
        return EAGAIN;
    return __real_lap_thread_start(thread_p, name, main, context);
}

#define SOON_S 5.0     /* long before the timeout, which is a minute, or after it, where that is */
#define PATIENCE_S 3.0 /* for who never comes: longer than a rank is kept from running by load */
#define LATE_US 1500000u
#define EARLY_US 300000u

/* What the ranks have for a fault. */
typedef struct scene {
    lap_world_t *world;
    caller_t caller;
    lap_buffer_t *flags; /* of the host: one word per rank, to meet without the group */
    lap_buffer_t *buffer;
    lap_op_t *ops[OPS]; /* on the buffer */
    test_call_t calls[OPS];
    lap_op_args_t args[OPS];
    CUdeviceptr memory[OPS];
} scene_t;

/* `first` is the method of the first operator. */
static bool prepare(scene_t *scene, lap_world_t *world, lap_group_t *group, const char *first)
{
    const test_method_t methods[OPS] = {{LAP_AG_GEMM, first, 0, 0, 0, 0},
                                        {LAP_GEMM_RS, "ring", 0, 0, 0, 0}};
    static const test_shape_t shape = {37, 24, 16};
    const test_flavour_t plain = test_plain();
    lap_buffer_options_t mapped = LAP_BUFFER_OPTIONS_INIT;
    mapped.transport = "shm";
    scene->world = world;
    if (!caller_begin(&scene->caller, group) ||
        !tap_success(lap_buffer_create(group, 64, 0, &mapped, &scene->flags), "flags"))
        return false;
    scene->buffer = test_buffer(group, &plain, 1, &shape);
    for (int i = 0; i < OPS; i++) {
        scene->ops[i] = test_op(group, scene->buffer, &methods[i], &plain, &shape);
        if (!scene->ops[i])
            return false;
        scene->calls[i] = test_call(group, &methods[i], &plain, &shape, shape.m, 1, true);
        test_call_init(&scene->calls[i]);
        CALLER_DO(&scene->caller, cuMemAlloc(&scene->memory[i], test_call_bytes(&scene->calls[i])));
        scene->args[i] = test_call_args_at(&scene->calls[i], caller_pointer(scene->memory[i]));
    }
    return true;
}

static void take_down(scene_t *scene)
{
    for (int i = OPS - 1; i >= 0; i--) {
        lap_op_destroy(scene->ops[i]);
        test_call_clear(&scene->calls[i]);
        CALLER_DO(&scene->caller, cuMemFree(scene->memory[i]));
    }
    lap_buffer_destroy(scene->buffer);
    lap_buffer_destroy(scene->flags);
    caller_end(&scene->caller);
}

/* Once more. */
static void set_flag(scene_t *scene)
{
    _Atomic int *flag = lap_buffer_data(scene->flags, lap_world_rank(scene->world));
    atomic_fetch_add(flag, 1);
}

static void await_flag_times(scene_t *scene, int rank, int times)
{
    const _Atomic int *flag = lap_buffer_data(scene->flags, rank);
    while (atomic_load(flag) < times)
        usleep(1000);
}

static void await_flag(scene_t *scene, int rank)
{
    await_flag_times(scene, rank, 1);
}

static void await_flags(scene_t *scene)
{
    for (int rank = 0; rank < lap_world_size(scene->world); rank++)
        await_flag(scene, rank);
}

/* ---- the faults ---- */

static CUgraphExec capture(scene_t *scene, int which)
{
    caller_t *caller = &scene->caller;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    CALLER_DO(caller, cuStreamBeginCapture(caller->streams[0], CU_STREAM_CAPTURE_MODE_GLOBAL));
    tap_success(lap_op_enqueue(scene->ops[which], &scene->args[which], caller->streams[0]),
                "a call is captured");
    CALLER_DO(caller, cuStreamEndCapture(caller->streams[0], &graph));
    CALLER_DO(caller, cuGraphInstantiateWithFlags(&exec, graph, 0));
    CALLER_DO(caller, cuGraphDestroy(graph));
    return exec;
}

/* The peers never come; the caller waits by means of the driver, or of the library. */
static void come_alone(scene_t *scene, bool by_driver)
{
    CUstream stream = scene->caller.streams[0];
    if (lap_world_rank(scene->world) != 0) {
        await_flag(scene, 0);
        return;
    }
    const uint64_t begin = lap_now_ns();
    for (int i = 0; i < 3; i++)
        tap_success(lap_op_enqueue(scene->ops[0], &scene->args[0], stream), "a call alone");
    if (by_driver)
        CALLER_DO(&scene->caller, cuStreamSynchronize(stream));
    const lap_status_t status = by_driver ? lap_op_enqueue(scene->ops[1], &scene->args[1], stream)
                                          : lap_world_synchronize(scene->world, stream);
    const double seconds = (double)(lap_now_ns() - begin) * 1e-9;
    tap_failure(status, LAP_ERR_TIMEOUT, "ag_gemm", "ring", "signal", "rank 0 waited", NULL);
    tap_note("after %.3f s: %s", seconds, lap_last_error());
    tap_ok(seconds > PATIENCE_S && seconds < PATIENCE_S + SOON_S, "after %g s, and soon",
           PATIENCE_S);
    tap_ok(!unguarded || seconds > PATIENCE_S + 0.9, "and not before the GPU gave up");
    tap_ok(lap_op_run(scene->ops[0], &scene->args[0]) == LAP_ERR_TIMEOUT,
           "later calls fail in the same way");
    tap_ok(lap_world_synchronize(scene->world, stream) == LAP_ERR_TIMEOUT,
           "so does waiting for the stream");
    set_flag(scene);
}

/* The seconds for which the caller waits by means of the driver. */
static double time_driver(scene_t *scene)
{
    const uint64_t begin = lap_now_ns();
    CALLER_DO(&scene->caller, cuStreamSynchronize(scene->caller.streams[0]));
    return (double)(lap_now_ns() - begin) * 1e-9;
}

/* It knows nothing, and the caller is let go nevertheless. */
static void wait_by_driver(scene_t *scene)
{
    const double seconds = time_driver(scene);
    tap_ok(seconds < SOON_S, "the stream runs on after %.3f s", seconds);
}

/* Rank 0 calls one operator, the others another. */
static void differ(scene_t *scene, bool in_graph, bool by_driver)
{
    caller_t *caller = &scene->caller;
    const int which = lap_world_rank(scene->world) == 0 ? 0 : 1;
    CUgraphExec exec = in_graph ? capture(scene, which) : NULL;
    lap_status_t status = lap_group_barrier(lap_world_group(scene->world));
    tap_success(status, "all are there");
    if (in_graph)
        CALLER_DO(caller, cuGraphLaunch(exec, caller->streams[0]));
    else
        status = lap_op_enqueue(scene->ops[which], &scene->args[which], caller->streams[0]);
    if (by_driver) { /* no rank may need another one to ask */
        wait_by_driver(scene);
        set_flag(scene);
        await_flags(scene);
    }
    if (status == LAP_OK) /* else two others have found out before */
        status = lap_world_synchronize(scene->world, caller->streams[0]);
    tap_failure(status, LAP_ERR_MISMATCH, "calls operator", "m = 37", NULL);
    tap_note("%s", lap_last_error());
    if (exec)
        CALLER_DO(caller, cuGraphExecDestroy(exec));
}

/* The program exits, and has ended nothing of what it made. */
static void abandon(scene_t *scene)
{
    CUstream stream = scene->caller.streams[0];
    tap_success(lap_op_enqueue(scene->ops[0], &scene->args[0], stream), "a call");
    tap_success(lap_world_synchronize(scene->world, stream), "it has run");
    tap_success(lap_group_barrier(lap_world_group(scene->world)), "all have come as far");
    exit(tap_done());
}

/* The last rank ends while the others replay a graph. */
static void lose_one(scene_t *scene)
{
    caller_t *caller = &scene->caller;
    const int last = lap_world_size(scene->world) - 1;
    CUgraphExec exec = capture(scene, 0);
    lap_status_t status = LAP_OK;
    for (int i = 0; status == LAP_OK; i++) {
        if (i == 5 && lap_world_rank(scene->world) == last) {
            tap_done();
            _exit(0);
        }
        CALLER_DO(caller, cuGraphLaunch(exec, caller->streams[0]));
        status = lap_world_synchronize(scene->world, caller->streams[0]);
    }
    tap_failure(status, LAP_ERR_PEER_LOST, "has died", NULL);
    tap_note("%s", lap_last_error());
    CALLER_DO(caller, cuGraphExecDestroy(exec));
}

/* The last rank ends while the others wait for a call, or for a graph of their own with one. */
static void lose_one_unseen(scene_t *scene, bool in_graph)
{
    caller_t *caller = &scene->caller;
    const int last = lap_world_size(scene->world) - 1;
    CUgraphExec exec = in_graph ? capture(scene, 0) : NULL;
    if (lap_world_rank(scene->world) == last) {
        for (int rank = 0; rank < last; rank++)
            await_flag(scene, rank);
        tap_done();
        _exit(0);
    }
    if (in_graph)
        CALLER_DO(caller, cuGraphLaunch(exec, caller->streams[0]));
    else
        tap_success(lap_op_enqueue(scene->ops[0], &scene->args[0], caller->streams[0]), "a call");
    set_flag(scene);
    wait_by_driver(scene);
    tap_failure(lap_op_run(scene->ops[1], &scene->args[1]), LAP_ERR_PEER_LOST, "has died",
                "waited in ag_gemm (ring)", NULL);
    tap_note("%s", lap_last_error());
    tap_ok(lap_world_synchronize(scene->world, caller->streams[0]) == LAP_ERR_PEER_LOST,
           "waiting for the stream fails in the same way");
    if (exec)
        CALLER_DO(caller, cuGraphExecDestroy(exec));
}

/* A call of all but the last rank, which has ended: the others come late, and nothing is lost. */
static void call_without_last(scene_t *scene)
{
    CUstream stream = scene->caller.streams[0];
    const bool first = lap_world_rank(scene->world) == 0;
    if (!first) {
        await_flag(scene, 0);
        usleep(LATE_US);
    }
    tap_success(lap_op_enqueue(scene->ops[0], &scene->args[0], stream), "a call without it");
    const uint64_t begin = lap_now_ns();
    if (first)
        set_flag(scene);
    time_driver(scene);
    const double seconds = (double)(lap_now_ns() - begin) * 1e-9;
    tap_ok(!first || seconds > 1e-6 * LATE_US, "it waits for who is late: %.3f s", seconds);
    tap_success(lap_world_synchronize(scene->world, stream), "it is right");
}

/* The last rank has had calls with all, and ends; the others go on without it. */
static void lose_a_stranger(scene_t *scene)
{
    CUstream stream = scene->caller.streams[0];
    lap_world_t *world = scene->world;
    const bool last = lap_world_rank(world) == lap_world_size(world) - 1;
    lap_group_t *others;
    scene_t inner = {.world = NULL};
    if (!tap_success(lap_group_split(lap_world_group(world), last, 0, &others), "a group") ||
        !prepare(&inner, world, others, "ring"))
        return;
    tap_success(lap_op_enqueue(inner.ops[0], &inner.args[0], stream), "a call of some");
    tap_success(lap_op_enqueue(scene->ops[0], &scene->args[0], stream), "a call of all");
    tap_success(lap_world_synchronize(world, stream), "both have run");
    if (last) {
        tap_done();
        _exit(0);
    }
    call_without_last(&inner);
    take_down(&inner);
    lap_group_destroy(others);
}

/*
 * The first two ranks are a group, and the last two. Rank 1 has a call of each in flight when rank 0
 * ends; rank 2, which comes later, must not wait for it. Or it has one of the first alone, and the
 * others are none the worse: `later` they call as if nothing had been.
 */
static void lose_one_of_another(scene_t *scene, bool later)
{
    lap_world_t *world = scene->world;
    const int rank = lap_world_rank(world);
    lap_group_t *groups[2];
    scene_t pairs[2] = {{.world = NULL}, {.world = NULL}};
    for (int i = 0; i < 2; i++)
        if (!tap_success(lap_group_split(lap_world_group(world), i == 0 ? rank < 2 : rank > 0, 0,
                                         &groups[i]),
                         "a group") ||
            !prepare(&pairs[i], world, groups[i], "ring"))
            return;
    if (rank == 0) {
        await_flag(scene, 1);
        usleep(EARLY_US);
        tap_done();
        _exit(0);
    }
    if (rank == 1) {
        for (int i = 0; i < 2 - later; i++)
            tap_success(
                lap_op_enqueue(pairs[i].ops[0], &pairs[i].args[0], pairs[i].caller.streams[0]),
                "a call of group %d", i);
        set_flag(scene);
        wait_by_driver(&pairs[0]);
        wait_by_driver(&pairs[1]);
        set_flag(scene);
        if (later)
            tap_success(lap_op_run(pairs[1].ops[0], &pairs[1].args[0]), "a call of the others");
        await_flag(scene, 2); /* it learns what there is to learn without the library's help here */
    } else {
        await_flag_times(scene, 1, 2);
        const lap_status_t status = lap_op_run(pairs[1].ops[0], &pairs[1].args[0]);
        if (later)
            tap_success(status, "a call of the others");
        else
            tap_failure(status, LAP_ERR_PEER_LOST, "has died", "rank 1 waited", NULL);
        set_flag(scene);
    }
    for (int i = 1; i >= 0; i--) {
        take_down(&pairs[i]);
        lap_group_destroy(groups[i]);
    }
}

/*
 * The last rank ends between two calls. The first rank waits in the second one, which its peer has
 * not begun, since it is slow in the first: when the first rank is let go it writes into that one's
 * memory what is no result.
 */
static void lose_one_between(scene_t *scene)
{
    caller_t *caller = &scene->caller;
    test_call_t *call = &scene->calls[0];
    const int rank = lap_world_rank(scene->world);
    test_call_upload(call, caller_pointer(scene->memory[0]));
    tap_success(lap_group_barrier(lap_world_group(scene->world)), "all are there");
    if (rank == 1)
        (void)setenv("FAKE_SLOW_MS", "1500", 1);
    tap_success(lap_op_enqueue(scene->ops[0], &scene->args[0], caller->streams[0]), "a call");
    if (rank != 1)
        CALLER_DO(caller, cuStreamSynchronize(caller->streams[0]));
    if (rank == 2) {
        tap_done();
        _exit(0);
    }
    if (rank == 0) {
        CALLER_DO(caller, cuMemsetD8Async(scene->memory[0], 0x44, test_call_bytes(call),
                                          caller->streams[0]));
        for (int i = 0; i < 3; i++)
            tap_success(lap_op_enqueue(scene->ops[0], &scene->args[0], caller->streams[0]),
                        "a call more");
        wait_by_driver(scene);
        await_flag(scene, 1);
        return;
    }
    tap_failure(lap_world_synchronize(scene->world, caller->streams[0]), LAP_ERR_PEER_LOST,
                "has died", NULL);
    set_flag(scene);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    const char *fault = argv[1];
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    options.device = "cuda";
    unguarded = strcmp(fault, "unguarded") == 0;
    if (strcmp(fault, "deadline") == 0 || strcmp(fault, "late") == 0 || unguarded)
        options.timeout_s = PATIENCE_S;
    lap_world_t *world;
    if (!tap_success(lap_world_create(&options, &world), "a world"))
        return tap_done();
    scene_t scene = {.world = NULL};
    const char *first = strcmp(fault, "driver-notes") == 0 ? "fused" : "ring";
    if (prepare(&scene, world, lap_world_group(world), first)) {
        if (strcmp(fault, "exit") == 0)
            lose_one(&scene);
        else if (strcmp(fault, "abandon") == 0)
            abandon(&scene);
        else if (strcmp(fault, "driver-exit") == 0 || strcmp(fault, "driver-graph-exit") == 0)
            lose_one_unseen(&scene, strcmp(fault, "driver-exit") != 0);
        else if (strcmp(fault, "driver-stranger") == 0)
            lose_a_stranger(&scene);
        else if (strcmp(fault, "driver-groups") == 0)
            lose_one_of_another(&scene, false);
        else if (strcmp(fault, "driver-innocent") == 0)
            lose_one_of_another(&scene, true);
        else if (strcmp(fault, "driver-bystander") == 0)
            lose_one_between(&scene);
        else if (strstr(fault, "mismatch") || strcmp(fault, "driver-notes") == 0)
            differ(&scene, strcmp(fault, "graph-mismatch") == 0, strstr(fault, "driver") != NULL);
        else
            come_alone(&scene, strcmp(fault, "late") != 0);
        take_down(&scene);
    }
    lap_world_destroy(world);
    return tap_done();
}
