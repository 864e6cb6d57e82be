/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Real calls in which a rank is late on purpose: the traces of the others say that it was this rank
 * they stood still for, and not the wire or a core. See suite.h for how it is started.
 */
#include <inttypes.h>

#include "core/group.h"
#include "schedule/trace.h"
#include "suite.h"
#include "tap.h"
#include "util/clock.h"

enum { LATE = 1 };
#define PAUSE_NS 300000000u
#define MOMENT_NS 600000000u /* in which they may still wait for each other, on a busy machine */

/* What the peers of the late rank see, on rank 0. */
static void check_views(const lap_trace_t *trace, const char *label)
{
    for (int r = 0; r < trace->size; r++) {
        lap_trace_view_t view;
        uint64_t sum = 0, blamed = 0;
        if (r == LATE || !tap_success(lap_trace_view(trace, r, NULL, &view), "%s: a view", label))
            continue;
        for (int c = 0; c < LAP_CAUSES; c++)
            sum += view.cause_ns[c];
        for (size_t i = 0; i < view.npauses; i++)
            if (view.pauses[i].cause == LAP_CAUSE_LATE && view.pauses[i].who == LATE &&
                view.pauses[i].from >= 0)
                blamed += view.pauses[i].end - view.pauses[i].begin;
        tap_ok(sum == view.waited_ns, "%s: the causes add up on rank %d", label, r);
        tap_ok(blamed >= PAUSE_NS,
               "%s: rank %d waited for %" PRIu64 " us, %" PRIu64 " of them for the late rank "
               "(wire %" PRIu64 ", late %" PRIu64 ", core %" PRIu64 ")",
               label, r, view.waited_ns / 1000, blamed / 1000, view.cause_ns[LAP_CAUSE_WIRE] / 1000,
               view.cause_ns[LAP_CAUSE_LATE] / 1000, view.cause_ns[LAP_CAUSE_CORE] / 1000);
        lap_trace_view_clear(&view);
    }
}

/* Returns when all others have reported that they are blocked in the call, which this rank has not begun. */
static void await_others(const lap_group_t *group)
{
    for (int r = 0; r < group->size; r++)
        while (r != LATE && atomic_load(&lap_group_blocked_record(group, r)->number) == 0)
            lap_sleep_until_ns(lap_now_ns() + 1000000u);
}

static void try_method(lap_group_t *group, const test_method_t *method)
{
    const test_flavour_t plain = test_plain();
    const test_shape_t shape = {32 * (size_t)lap_group_size(group), 48, 64};
    const bool root = lap_group_rank(group) == 0;
    test_call_t call = test_call(group, method, &plain, &shape, shape.m, 4003, true);
    lap_buffer_t *buffer = test_buffer(group, &plain, 1, &shape);
    lap_op_t *op = test_op(group, buffer, method, &plain, &shape);
    lap_trace_t *trace = NULL;
    char label[96];
    test_label(method, &plain, label, sizeof(label));
    test_call_init(&call);
    if (op && tap_success(lap_trace_create(&trace), "%s: a trace", label)) {
        tap_success(test_call_run(op, &call), "%s: a call to warm up", label);
        call.args.trace = trace;
        lap_trace_mark(trace);
        (void)lap_group_barrier(group);
        if (lap_group_rank(group) == LATE) {
            await_others(group);
            lap_sleep_until_ns(lap_now_ns() + PAUSE_NS + MOMENT_NS);
        }
        tap_success(test_call_run(op, &call), "%s: a call with a late rank", label);
        if (tap_success(lap_trace_gather(trace, group), "%s: its trace is gathered", label) && root)
            check_views(trace, label);
    }
    test_call_clear(&call);
    lap_op_destroy(op);
    lap_trace_destroy(trace);
    lap_buffer_destroy(buffer);
}

static void suite(lap_group_t *group)
{
    static const test_method_t methods[] = {
        {LAP_AG_GEMM, "serial", 0, 0, 0, 0},   {LAP_AG_GEMM, "ring", 0, 0, 0, 0},
        {LAP_AG_GEMM, "direct", 0, 0, 0, 0},   {LAP_AG_GEMM, "fused", 0, 0, 3, 0},
        {LAP_GEMM_RS, "serial", 0, 0, 0, 0},   {LAP_GEMM_RS, "ring", 0, 0, 0, 0},
        {LAP_GEMM_RS, "pipeline", 0, 3, 0, 0}, {LAP_GEMM_RS, "fused", 0, 0, 0, 0},
        {LAP_GEMM_AR, "serial", 0, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++)
        try_method(group, &methods[i]);
}

int main(int argc, char **argv)
{
    return test_suite(argc, argv, suite);
}
