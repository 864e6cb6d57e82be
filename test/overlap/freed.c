/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that frees its memory as soon as its own stream is over, as PyTorch's empty_cache does,
 * and then makes the next operator, with the method left to the library: nothing of ours runs later,
 * or beyond any memory. Over a driver without a GPU whose memory is strict (FAKE_STRICT), whatever
 * does so crashes. The streams are of the primary context, one of the caller's and the default one,
 * also where the rank has a part of its GPU and computes in a context of its own.
 */
#include <stdio.h>

#include <lap/lap_cuda.h>

#include "caller.h"
#include "core/world.h"
#include "tap.h"

enum { CALLS = 4, ROUNDS = 2 };

static const test_shape_t shapes[] = {{24, 32, 16}, {48, 16, 8}};

/* Calls in memory that is freed when the driver says that the stream is over. */
static void call_and_free(caller_t *caller, lap_op_t *op, test_call_t call, CUstream stream,
                          const char *label)
{
    CUdeviceptr memory;
    test_call_init(&call);
    CALLER_DO(caller, cuMemAlloc(&memory, test_call_bytes(&call)));
    test_call_upload(&call, caller_pointer(memory));
    const lap_op_args_t args = test_call_args_at(&call, caller_pointer(memory));
    lap_status_t status = LAP_OK;
    for (int round = 0; round < ROUNDS && status == LAP_OK; round++) {
        for (int i = 0; i < CALLS && status == LAP_OK; i++)
            status = lap_op_enqueue(op, &args, stream);
        CALLER_DO(caller, cuStreamSynchronize(stream));
    }
    tap_success(status, "%s is called", label);
    test_call_download(&call, caller_pointer(memory));
    CALLER_DO(caller, cuMemFree(memory));
    const double error = test_call_error(&call);
    tap_ok(error == 0, "%s is right: %g", label, error);
    test_call_clear(&call);
}

static void try_shapes(caller_t *caller, const test_flavour_t *flavour, CUstream stream)
{
    static const test_method_t methods[] = {{LAP_AG_GEMM, "auto", 0, 0, 0, 1},
                                            {LAP_GEMM_RS, "auto", 0, 0, 0, 0}};
    lap_op_t *ops[4] = {NULL};
    for (int i = 0; i < 4; i++) {
        const test_shape_t *shape = &shapes[i / 2];
        const test_method_t *method = &methods[i % 2];
        char label[64];
        snprintf(label, sizeof(label), "%s of shape %d", i % 2 ? "GEMM+RS" : "AG+GEMM", i / 2);
        ops[i] = test_op(caller->group, NULL, method, flavour, shape);
        if (ops[i])
            call_and_free(caller, ops[i],
                          test_call(caller->group, method, flavour, shape, shape->m, 1, true),
                          stream, label);
    }
    for (int i = 0; i < 4; i++)
        lap_op_destroy(ops[i]);
}

static void suite(lap_group_t *group)
{
    test_flavour_t flavour = test_plain();
    caller_t caller;
    flavour.layout = LAP_DGRAD;
    if (!caller_begin(&caller, group))
        return;
    try_shapes(&caller, &flavour, caller.streams[0]);
    try_shapes(&caller, &flavour, NULL);
    caller_end(&caller);
}

int main(int argc, char **argv)
{
    return test_suite(argc, argv, suite);
}
