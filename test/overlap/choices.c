/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What "auto" has chosen for an operator serves all of its group that are described alike, and only
 * those. Each choice that is made measures or tries (lap_calibrate, lap_trial_run): who does neither
 * has made none.
 */
#include <string.h>

#include "core/status.h"
#include "data.h"
#include "overlap/trial.h"
#include "schedule/calibrate.h"
#include "tap.h"

enum { RANKS = 2, M = 40, N = 24, K = 16, LABEL = 64 };

/* ---- choices are counted ---- */

static _Thread_local int made;
static _Thread_local bool next_fails;

lap_status_t __real_lap_calibrate(lap_group_t *group, lap_engine_t *engine, const char *transport,
                                  lap_dtype_t dtype, size_t n, size_t k, lap_cost_t *cost_p);
lap_status_t __wrap_lap_calibrate(lap_group_t *group, lap_engine_t *engine, const char *transport,
                                  lap_dtype_t dtype, size_t n, size_t k, lap_cost_t *cost_p)
{
    made++;
    if (next_fails) {
        next_fails = false;
        return lap_error(LAP_ERR_SYSTEM, "the clock has stopped");
    }
    return __real_lap_calibrate(group, engine, transport, dtype, n, k, cost_p);
}

lap_status_t __real_lap_trial_run(lap_trial_t *trial, size_t m, const lap_forecast_t *among,
                                  size_t most, lap_forecast_t *forecast);
lap_status_t __wrap_lap_trial_run(lap_trial_t *trial, size_t m, const lap_forecast_t *among,
                                  size_t most, lap_forecast_t *forecast)
{
    made++;
    if (next_fails) {
        next_fails = false;
        return lap_error(LAP_ERR_SYSTEM, "the clock has stopped");
    }
    return __real_lap_trial_run(trial, m, among, most, forecast);
}

static lap_op_desc_t describe(void)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = LAP_AG_GEMM;
    desc.m = M;
    desc.n = N;
    desc.k = K;
    desc.method = "auto";
    return desc;
}

/* Whether an operator is made, and a choice for it if `anew`, and only then. */
static lap_op_t *create(lap_group_t *group, const lap_op_desc_t *desc, bool anew, const char *what)
{
    lap_op_t *op = NULL;
    made = 0;
    tap_success(lap_op_create(group, desc, &op), "%s", what);
    tap_ok((made > 0) == anew, "rank %d measures or tries %d times, expected %s: %s",
           lap_group_rank(group), made, anew ? "any" : "none", what);
    return op;
}

static void check_once(lap_group_t *group, const lap_op_desc_t *desc, bool anew, const char *what)
{
    lap_op_destroy(create(group, desc, anew, what));
}

/* ---- equal ones ---- */

static void check_call(lap_group_t *group, lap_op_t *op, const lap_op_desc_t *desc, size_t m)
{
    tap_success(test_call_check(op, test_exact_call(group, desc, m, m)), "a call of %zu rows", m);
}

/* The first is gone by then, and its buffer, and the text of its method. */
static void test_equal(lap_group_t *group)
{
    char method[] = "auto";
    lap_op_desc_t desc = describe();
    desc.method = method;
    const char *label = "";
    char first[LABEL] = "";
    double seconds[2] = {0, 0};
    lap_op_t *op = create(group, &desc, true, "the first");
    tap_success(lap_op_prediction(op, 0, &label, &seconds[0]), "its prediction");
    strncpy(first, label, LABEL - 1);
    lap_op_destroy(op);
    memset(method, '?', sizeof(method) - 1);
    desc = describe();
    op = create(group, &desc, false, "an equal one");
    tap_success(lap_op_prediction(op, 0, &label, &seconds[1]), "its prediction");
    tap_ok(strcmp(label, first) == 0 && seconds[1] == seconds[0], "it has %s of %g s, expected %s",
           label, seconds[1], first);
    for (size_t m = 1; m <= M; m += 13)
        check_call(group, op, &desc, m);
    lap_op_destroy(op);
    desc.out_dtype = desc.dtype;
    check_once(group, &desc, false, "one that names its default");
    desc.method = "serial";
    check_once(group, &desc, false, "one that does not choose");
}

/* ---- others ---- */

/* Each has one field unlike the rest. */
static void test_fields(lap_group_t *group)
{
    enum { OTHERS = 15 };
    lap_op_desc_t others[OTHERS];
    size_t i = 0;
    for (size_t j = 0; j < OTHERS; j++)
        others[j] = describe();
    others[i++].m = M / 2;
    others[i++].n = 2 * N;
    others[i++].k = 2 * K;
    others[i++].kind = LAP_GEMM_RS;
    others[i++].kind = LAP_GEMM_AR;
    others[i++].dtype = LAP_BFLOAT16;
    others[i++].out_dtype = LAP_BFLOAT16;
    others[i++].epilogue = LAP_EPILOGUE_BIAS;
    others[i++].layout = LAP_DGRAD;
    others[i++].accumulate = 1;
    others[i++].gather_input = 1;
    others[i++].background = 1;
    others[i++].auto_foreign = 1;
    others[i].kind = LAP_GEMM_RS;
    others[i++].wire_dtype = LAP_BFLOAT16;
    others[i].kind = LAP_BULK_AG;
    others[i].cols = 13;
    for (size_t j = 0; j < OTHERS; j++) {
        check_once(group, &others[j], true, "another description");
        check_once(group, &others[j], false, "the same once more");
    }
    const lap_op_desc_t desc = describe();
    check_once(group, &desc, false, "the first description is known all the while");
}

/* A slower link is another choice, another buffer is none. */
static void test_buffers(lap_group_t *group)
{
    const double speeds[] = {0, 1e9, 0, 1e9, 1e8};
    const double waits[] = {0, 0, 1e-5, 0, 0};
    const bool anew[] = {false, true, true, false, true};
    for (size_t i = 0; i < sizeof(speeds) / sizeof(speeds[0]); i++) {
        lap_op_desc_t desc = describe();
        lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
        size_t bytes, nsignals;
        options.link = (lap_link_t){speeds[i], waits[i]};
        tap_success(lap_op_buffer_size(&desc, lap_group_size(group), &bytes, &nsignals), "sizes");
        if (!tap_success(lap_buffer_create(group, bytes, nsignals, &options, &desc.buffer), "one"))
            return;
        lap_op_t *op = create(group, &desc, anew[i], "on a buffer of its own");
        tap_ok(lap_op_buffer(op) == desc.buffer, "it is on its buffer");
        check_call(group, op, &desc, M);
        lap_op_destroy(op);
        lap_buffer_destroy(desc.buffer);
    }
}

/* What a group knows goes with it. */
static void test_groups(lap_group_t *world)
{
    const lap_op_desc_t desc = describe();
    for (int i = 0; i < 2; i++) {
        lap_group_t *group = NULL;
        if (!tap_success(lap_group_split(world, 0, 0, &group), "a group"))
            return;
        check_once(group, &desc, true, "the first of a group");
        check_once(group, &desc, false, "its second");
        lap_op_t *op = create(group, &desc, false, "its last");
        const char *label = NULL;
        double seconds;
        lap_group_destroy(group);
        tap_success(lap_op_prediction(op, 0, &label, &seconds), "it outlives its group");
        lap_op_destroy(op);
    }
}

/* A choice that fails is none. */
static void test_failure(lap_group_t *group)
{
    lap_op_t *op = NULL;
    lap_op_desc_t desc = describe();
    desc.m = 3 * M;
    next_fails = true;
    tap_failure(lap_op_create(group, &desc, &op), LAP_ERR_SYSTEM, "the clock has stopped", NULL);
    check_once(group, &desc, true, "after one that failed");
    check_once(group, &desc, false, "after one that was made");
}

static void suite(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *group = lap_world_group(world);
    test_equal(group);
    test_fields(group);
    test_buffers(group);
    test_groups(group);
    test_failure(group);
}

int main(int argc, char **argv)
{
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    options.device = argc > 1 ? argv[1] : NULL;
    tap_ranks(RANKS, &options, suite, NULL);
    return tap_done();
}
