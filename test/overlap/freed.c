/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that frees its memory as soon as its own stream is over, as PyTorch's empty_cache
 * does, round after round: operators of all methods and of `auto`, made, called and destroyed,
 * with other sizes each time, from several streams and in graphs of the caller's. Nothing of ours
 * runs later, or beyond any memory: over a driver whose memory is strict (FAKE_STRICT, or
 * strict.c on a GPU), whatever does so crashes. The streams are of the primary context, two of
 * the caller's and the default one, also where the rank has a part of its GPU and computes in a
 * context of its own. FREED_ROUNDS is how many rounds there are. With FREED_EARLY some of them do
 * not wait for their stream: the driver's cuMemFree does, where it knows that the stream works.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <lap/lap_cuda.h>

#include "caller.h"
#include "core/world.h"
#include "tap.h"
#include "util/random.h"

enum { SLOTS = 4, FLAVOURS = 3, SHAPES = 4 };

static const test_shape_t shapes[SHAPES] = {{24, 32, 16}, {48, 16, 8}, {5, 24, 40}, {96, 48, 64}};

/* An operator, which several rounds call, and what it was made with. */
typedef struct slot {
    lap_op_t *op; /* NULL: none */
    test_method_t method;
    test_flavour_t flavour;
    test_shape_t shape;
} slot_t;

/* A round's part on the caller's side. */
typedef struct freed {
    caller_t caller;
    uint64_t rolls; /* of dice that fall alike on all ranks */
    bool early;     /* some rounds free without a wait */
    slot_t slots[SLOTS];
    test_flavour_t flavours[FLAVOURS];
    double error; /* the largest of all rounds */
} freed_t;

static size_t roll(freed_t *freed, size_t sides)
{
    return lap_random_u32x4(1, 0, freed->rolls++).word[0] % sides;
}

static void make_flavours(test_flavour_t *flavours)
{
    for (int f = 0; f < FLAVOURS; f++)
        flavours[f] = test_plain();
    flavours[1].layout = LAP_DGRAD;
    flavours[1].a = flavours[1].vector = LAP_BFLOAT16;
    flavours[2].epilogue = LAP_EPILOGUE_BIAS | LAP_EPILOGUE_GELU;
    flavours[2].moves = false;
}

/* Another operator in a slot: the one before is destroyed, whatever of it still runs. */
static bool make_op(freed_t *freed, slot_t *slot)
{
    const int size = lap_group_size(freed->caller.group);
    lap_op_destroy(slot->op);
    slot->op = NULL;
    do {
        slot->method = test_methods[roll(freed, TEST_METHODS)];
        slot->flavour = freed->flavours[roll(freed, FLAVOURS)];
    } while (!test_suits(&slot->method, &slot->flavour, size));
    slot->shape = shapes[roll(freed, SHAPES)];
    slot->op = test_op(freed->caller.group, NULL, &slot->method, &slot->flavour, &slot->shape);
    return slot->op != NULL;
}

/* The calls as one graph of the caller's, launched several times. */
static lap_status_t replay(freed_t *freed, lap_op_t *op, const lap_op_args_t *args, size_t calls,
                           CUstream stream)
{
    caller_t *caller = &freed->caller;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    lap_status_t status = lap_op_enqueue(op, args, stream);
    CALLER_DO(caller, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    if (status == LAP_OK)
        status = lap_op_enqueue(op, args, stream);
    CALLER_DO(caller, cuStreamEndCapture(stream, &graph));
    if (status != LAP_OK || !graph)
        return status;
    CALLER_DO(caller, cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (size_t i = 0; i < calls; i++)
        CALLER_DO(caller, cuGraphLaunch(exec, stream));
    CALLER_DO(caller, cuStreamSynchronize(stream));
    CALLER_DO(caller, cuGraphExecDestroy(exec));
    CALLER_DO(caller, cuGraphDestroy(graph));
    return LAP_OK;
}

/*
 * Calls in memory that is freed as soon as who enqueued them may know that they are over, or early:
 * then nobody sees the results, and late access is all that may be wrong. Returns the error.
 */
static double call_and_free(freed_t *freed, slot_t *slot, test_call_t *call, bool captured)
{
    caller_t *caller = &freed->caller;
    CUstream stream = (CUstream[]){caller->streams[0], caller->streams[1],
                                   NULL}[captured ? 0 : roll(freed, CALLER_STREAMS + 1)];
    const size_t bytes = test_call_bytes(call), calls = 1 + roll(freed, 4);
    const bool ends = roll(freed, 4) == 0; /* the operator, and so its calls */
    const bool early = freed->early && !captured && roll(freed, 3) == 0;
    CUdeviceptr memory, got;
    lap_status_t status = LAP_OK;
    CALLER_DO(caller, cuMemAlloc(&memory, bytes));
    CALLER_DO(caller, cuMemAlloc(&got, bytes));
    test_call_upload(call, caller_pointer(memory));
    const lap_op_args_t args = test_call_args_at(call, caller_pointer(memory));
    if (captured)
        status = replay(freed, slot->op, &args, calls, stream);
    for (size_t i = 0; i < (captured ? 0 : calls) && status == LAP_OK; i++)
        status = lap_op_enqueue(slot->op, &args, stream);
    if (status != LAP_OK)
        tap_success(status, "a round is enqueued");
    if (!early)
        CALLER_DO(caller, cuMemcpyAsync(got, memory, bytes, stream));
    if (ends) {
        lap_op_destroy(slot->op);
        slot->op = NULL;
    }
    if (!early)
        CALLER_DO(caller, cuStreamSynchronize(stream));
    CALLER_DO(caller, cuMemFree(memory));
    double error = early ? 0 : INFINITY;
    if (!early && test_call_download(call, caller_pointer(got)) == LAP_OK)
        error = test_call_error(call);
    CALLER_DO(caller, cuMemFree(got));
    return error;
}

static bool play(freed_t *freed, int round, bool captures)
{
    char label[128];
    slot_t *slot = &freed->slots[roll(freed, SLOTS)];
    if ((!slot->op || roll(freed, 4) == 0) && !make_op(freed, slot))
        return false;
    const size_t m = slot->shape.m - roll(freed, slot->shape.m / 2 + 1);
    const bool captured = captures && roll(freed, 6) == 0;
    test_call_t call = test_call(freed->caller.group, &slot->method, &slot->flavour, &slot->shape,
                                 m, (uint64_t)round, true);
    test_label(&slot->method, &slot->flavour, label, sizeof(label));
    test_call_init(&call);
    const double error = call_and_free(freed, slot, &call, captured);
    test_call_clear(&call);
    if (!(error <= 1))
        tap_ok(false, "round %d, %s with m = %zu, is right: %g", round, label, m, error);
    freed->error = fmax(freed->error, error);
    return error <= 1;
}

static void suite(lap_group_t *group)
{
    const char *text = getenv("FREED_ROUNDS");
    const int rounds = text ? atoi(text) : 100;
    freed_t freed = {.early = getenv("FREED_EARLY") != NULL};
    int done = 0;
    if (!caller_begin(&freed.caller, group))
        return;
    make_flavours(freed.flavours);
    while (done < rounds && play(&freed, done, done >= rounds / 2))
        done++;
    tap_ok(done == rounds, "%d of %d rounds are right, with errors up to %g of the bound", done,
           rounds, freed.error);
    for (int i = 0; i < SLOTS; i++)
        lap_op_destroy(freed.slots[i].op);
    caller_end(&freed.caller);
}

int main(int argc, char **argv)
{
    return test_suite(argc, argv, suite);
}
