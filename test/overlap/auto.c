/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operators that choose their method: all ranks choose the same, say why, and compute the right
 * thing with any number of rows. Which method it is hangs on the machine and is not looked at.
 */
#include <math.h>
#include <string.h>

#include "data.h"
#include "overlap/auto.h"
#include "tap.h"

enum { M = 40, N = 24, K = 16, LABEL = 64 };

static lap_op_desc_t describe(lap_op_kind_t kind, const char *method)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = kind;
    desc.m = M;
    desc.n = N;
    desc.k = K;
    desc.method = method;
    desc.cols = kind == LAP_BULK_AG || kind == LAP_BULK_RS ? 13 : 0;
    return desc;
}

/* Whether all ranks have the same text. */
static bool same_everywhere(lap_group_t *group, const char *text)
{
    char mine[LABEL] = "", all[16][LABEL];
    strncpy(mine, text, LABEL - 1);
    if (lap_group_allgather(group, mine, sizeof(mine), all) != LAP_OK)
        return false;
    for (int r = 0; r < lap_group_size(group); r++)
        if (strcmp(all[0], all[r]) != 0)
            return false;
    return true;
}

static void check_reasons(lap_op_t *op, lap_group_t *group, const char *kind)
{
    const char *method = "", *next;
    double seconds = 0, serial = 0, before = 0, later;
    size_t count = 0;
    bool sorted = true;
    tap_success(lap_op_prediction(op, 0, &method, &seconds), "%s says why it picked %s", kind,
                lap_op_method(op));
    tap_ok(strncmp(method, lap_op_method(op), strlen(lap_op_method(op))) == 0,
           "the first prediction, %s, is of the method picked", method);
    tap_ok(same_everywhere(group, method), "all ranks pick it");
    for (; lap_op_prediction(op, count, &next, &later) == LAP_OK; count++) {
        sorted = sorted && later > 0 && (count < 2 || later >= before);
        serial = strcmp(next, "serial") == 0 ? later : serial;
        before = later;
    }
    tap_ok(count > 1 && sorted, "%zu predictions, from fast to slow", count);
    tap_ok(strcmp(method, "serial") == 0 || seconds <= (1 - LAP_AUTO_MARGIN) * serial,
           "serial (%g s) is beaten by the margin, or picked (%g s)", serial, seconds);
    tap_failure(lap_op_prediction(op, count, &next, &later), LAP_ERR_INVALID, "expected less than",
                NULL);
}

static void check_calls(lap_op_t *op, lap_group_t *group, const lap_op_desc_t *desc)
{
    double worst = 0;
    for (size_t m = 0; m <= M; m++) {
        test_call_t call = {.desc = *desc,
                            .m = m,
                            .rank = lap_group_rank(group),
                            .size = lap_group_size(group),
                            .seed = m,
                            .exact = true};
        test_call_init(&call);
        worst =
            fmax(worst, lap_op_run(op, &call.args) == LAP_OK ? test_call_error(&call) : INFINITY);
        test_call_clear(&call);
    }
    tap_ok(worst == 0, "every number of rows gives the right result");
}

static void test_auto(lap_group_t *group, lap_op_desc_t desc)
{
    const char *kind = lap_op_kind_name(desc.kind);
    lap_op_t *op = NULL;
    if (!tap_success(lap_op_create(group, &desc, &op), "%s with auto", kind))
        return;
    check_reasons(op, group, kind);
    check_calls(op, group, &desc);
    lap_op_destroy(op);
}

/* The same with 8-bit types and an epilogue, for which every method needs more steps. */
static void test_fp8(lap_group_t *group, lap_op_kind_t kind)
{
    lap_op_desc_t desc = describe(kind, "auto");
    desc.dtype = LAP_FLOAT8_E4M3;
    desc.epilogue = LAP_EPILOGUE_BIAS | LAP_EPILOGUE_BIAS_GRAD;
    desc.accumulate = 1;
    if (kind == LAP_AG_GEMM)
        desc.gather_input = 1;
    else
        desc.wire_dtype = LAP_FLOAT8_E5M2;
    test_auto(group, desc);
}

static void test_refusals(lap_group_t *group)
{
    const char *method;
    double seconds;
    lap_op_desc_t desc = describe(LAP_GEMM_RS, "serial");
    lap_op_t *op = NULL;
    tap_success(lap_op_create(group, &desc, &op), "an operator that does not choose");
    tap_failure(lap_op_prediction(op, 0, &method, &seconds), LAP_ERR_INVALID, "'serial'", "'auto'",
                NULL);
    tap_failure(lap_op_prediction(op, 0, NULL, &seconds), LAP_ERR_INVALID, "method_p", NULL);
    tap_failure(lap_op_prediction(NULL, 0, &method, &seconds), LAP_ERR_INVALID, "op", NULL);
    lap_op_destroy(op);
    desc.method = lap_group_rank(group) == 1 ? "ring" : "auto";
    if (lap_group_size(group) > 1)
        tap_failure(lap_op_create(group, &desc, &op), LAP_ERR_MISMATCH, "auto", "ring", NULL);
    desc.method = "auto";
    desc.block_rows = 7;
    tap_failure(lap_op_create(group, &desc, &op), LAP_ERR_INVALID, "block_rows", NULL);
}

static void suite(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *group = lap_world_group(world);
    for (int kind = LAP_AG_GEMM; kind <= (int)LAP_GEMM_AR; kind++) {
        test_auto(group, describe((lap_op_kind_t)kind, "auto"));
        test_fp8(group, (lap_op_kind_t)kind);
    }
    test_auto(group, describe(LAP_BULK_AG, "auto"));
    test_auto(group, describe(LAP_BULK_RS, "auto"));
    test_refusals(group);
}

int main(void)
{
    const int sizes[] = {1, 2, 3, 4};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        tap_ranks(sizes[i], NULL, suite, NULL);
    return tap_done();
}
