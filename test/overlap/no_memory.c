/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every allocation of the library fails once: the first in the first round, the second in the
 * second, and so on until a round needs no more. Each failure must come back as a status on every
 * rank, without a hang; leaks are the business of AddressSanitizer. Linked with --wrap for
 * lap_alloc and lap_realloc.
 */
#include <string.h>

#include "data.h"
#include "failing_alloc.h"
#include "overlap/overlap.h"
#include "tap.h"
#include "transport/transport.h"

enum { RANKS = 3 };

typedef struct outcome {
    lap_status_t status;
    bool right;
} outcome_t;

/* What is done: operators that between them use most of the library. */
typedef struct plan {
    lap_op_kind_t kind;
    const char *method;
    int gather;
    size_t cols;
    lap_link_t link;
    lap_dtype_t dtype;
    lap_epilogue_t epilogue;
    int stride; /* 1: each allocation fails; else one of so many, where the same ones come often */
} plan_t;

static const plan_t plans[] = {
    {LAP_GEMM_RS, "pipeline", 0, 0, {0, 0}, LAP_FLOAT32, 0, 1},
    {LAP_AG_GEMM, "fused", 1, 0, {1e9, 1e-6}, LAP_FLOAT32, 0, 1},
    {LAP_GEMM_AR, "fused", 0, 0, {0, 0}, LAP_BFLOAT16, 0, 1},
    {LAP_AG_GEMM, "direct", 1, 0, {0, 0}, LAP_FLOAT8_E4M3, LAP_EPILOGUE_BIAS_GRAD, 1},
    {LAP_BULK_RS, "direct", 0, 7, {0, 0}, LAP_FLOAT8_E5M2, LAP_EPILOGUE_BIAS, 1},
    {LAP_GEMM_RS, "auto", 0, 0, {0, 0}, LAP_FLOAT32, 0, 7},
};

typedef struct job {
    const plan_t *plan;
    outcome_t outcomes[RANKS];
} job_t;

static lap_op_desc_t describe(const plan_t *plan)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = plan->kind;
    desc.dtype = plan->dtype;
    desc.m = 11;
    desc.n = 6;
    desc.k = 5;
    desc.cols = plan->cols;
    desc.method = plan->method;
    desc.epilogue = plan->epilogue;
    desc.gather_input = plan->gather;
    return desc;
}

static lap_status_t make(lap_group_t *group, const plan_t *plan, lap_buffer_t **buffer_p,
                         lap_op_t **op_p)
{
    lap_op_desc_t desc = describe(plan);
    lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
    size_t bytes, nsignals;
    options.link = plan->link;
    lap_status_t status = lap_op_buffer_size(&desc, RANKS, &bytes, &nsignals);
    if (status == LAP_OK)
        status = lap_buffer_create(group, bytes, nsignals, &options, buffer_p);
    desc.buffer = *buffer_p;
    return status == LAP_OK ? lap_op_create(group, &desc, op_p) : status;
}

static lap_status_t work(lap_world_t *world, const plan_t *plan, bool *right_p)
{
    lap_group_t *group = NULL;
    lap_buffer_t *buffer = NULL;
    lap_op_t *op = NULL;
    lap_trace_t *trace = NULL;
    lap_status_t status = lap_group_split(lap_world_group(world), 0, 0, &group);
    if (status == LAP_OK)
        status = make(group, plan, &buffer, &op);
    if (status == LAP_OK)
        status = lap_trace_create(&trace);
    test_call_t call = {.desc = describe(plan),
                        .m = 11,
                        .exact = true,
                        .size = RANKS,
                        .rank = lap_world_rank(world)};
    test_call_init(&call);
    if (status == LAP_OK) {
        call.args.trace = trace;
        status = lap_op_run(op, &call.args);
        *right_p = status != LAP_OK || test_call_error(&call) == 0;
    }
    /* Who had all it needed from a rank before that failed learns of it here. */
    if (status == LAP_OK)
        status = lap_group_barrier(group);
    test_call_clear(&call);
    lap_trace_destroy(trace);
    lap_op_destroy(op);
    lap_buffer_destroy(buffer);
    lap_group_destroy(group);
    return status;
}

static void run(lap_world_t *world, void *arg)
{
    job_t *job = arg;
    outcome_t *outcome = &job->outcomes[lap_world_rank(world)];
    outcome->right = true;
    outcome->status = work(world, job->plan, &outcome->right);
}

/* Returns whether an allocation was made to fail. */
static bool round_of(const plan_t *plan, int nth)
{
    job_t job = {.plan = plan};
    if (!failing_ranks(RANKS, nth, run, &job))
        return true;
    bool right = true;
    int failed = 0;
    for (int r = 0; r < RANKS; r++) {
        right = right && job.outcomes[r].right;
        failed += job.outcomes[r].status != LAP_OK;
    }
    bool injected = atomic_load(&countdown) <= 0;
    /* Where there is no memory to try what it has chosen, auto takes it untried. */
    const bool untried = failed == 0 && strcmp(plan->method, "auto") == 0;
    tap_ok(right && (failed == (injected ? RANKS : 0) || untried),
           "%s: allocation %d fails: %d ranks return it", plan->method, nth, failed);
    return injected;
}

/* All methods as a GPU has them, with lanes, and with rows for all that they do with them. */
static void build(const lap_op_kind_t kind, const char *method)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = kind;
    desc.m = 2560;
    desc.n = desc.k = 16;
    desc.method = method;
    for (int nth = 1;; nth++) {
        lap_problem_t problem;
        const lap_builder_t *builder;
        lap_schedule_t schedule;
        atomic_store(&countdown, 0);
        lap_status_t status = lap_problem_init(&problem, &builder, &desc, 5,
                                               LAP_CAN_PUT | LAP_CAN_ADDRESS | LAP_CAN_LANES);
        if (!tap_success(status, "%s", method))
            return;
        atomic_store(&countdown, nth);
        status = lap_build(builder, &problem, &schedule);
        lap_schedule_clear(&schedule);
        if (atomic_load(&countdown) > 0) {
            tap_ok(status == LAP_OK && nth > 2, "%s is built with %d allocations", method, nth - 1);
            return;
        }
        tap_ok(status == LAP_ERR_NO_MEMORY, "%s: allocation %d fails while it is built", method,
               nth);
    }
}

int main(void)
{
    static const char *const methods[][5] = {{"serial", "ring", "direct", "fused", NULL},
                                             {"serial", "ring", "pipeline", "pull", "fused"},
                                             {"serial", "direct", "pipeline", "fused", NULL}};
    for (size_t i = 0; i < 15; i++)
        if (methods[i / 5][i % 5])
            build((lap_op_kind_t[]){LAP_AG_GEMM, LAP_GEMM_RS, LAP_GEMM_AR}[i / 5],
                  methods[i / 5][i % 5]);
    for (size_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++) {
        int nth = 1;
        while (round_of(&plans[i], nth) && nth < 5000)
            nth += plans[i].stride;
        tap_ok(nth > 20, "%s: allocations were made to fail up to %d", plans[i].method, nth - 1);
    }
    return tap_done();
}
