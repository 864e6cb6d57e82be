/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wrong arguments and ranks that disagree: a status, a sentence with the value, and nothing
 * changed.
 */
#include <math.h>
#include <string.h>

#include "data.h"
#include "tap.h"

static lap_op_desc_t good_desc(lap_op_kind_t kind)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = kind;
    desc.m = 8;
    desc.n = 6;
    desc.k = 4;
    desc.cols = kind == LAP_BULK_RS ? 5 : 0;
    return desc;
}

/*
 * A wrong description must fail on every rank and leave the group as it was. schedule/problem
 * has all that may be wrong.
 */
static void test_descriptions(lap_group_t *group)
{
    lap_op_t *op = NULL;
    lap_op_desc_t desc = good_desc(LAP_AG_GEMM);
    desc.method = "rnig";
    tap_failure(lap_op_create(group, &desc, &op), LAP_ERR_INVALID, "rnig", "ring", NULL);
    desc = good_desc(LAP_AG_GEMM);
    desc.num_sm = -1;
    tap_failure(lap_op_create(group, &desc, &op), LAP_ERR_INVALID, "num_sm", "-1", NULL);
    desc = good_desc(LAP_AG_GEMM);
    desc.set_sm_margin = 1;
    tap_failure(lap_op_create(group, &desc, &op), LAP_ERR_INVALID, "set_sm_margin", "num_sm = 0",
                NULL);
    tap_failure(lap_op_create(NULL, &desc, &op), LAP_ERR_INVALID, "group", NULL);
    tap_failure(lap_op_create(group, NULL, &op), LAP_ERR_INVALID, "desc", NULL);
    tap_ok(!op, "nothing was made");
    tap_success(lap_group_barrier(group), "the group works after all this");
}

/*
 * A description that is wrong on its own: the error of that rank, and the others name it.
 * parallel/agree.c has what ranks disagree in.
 */
static void test_one_wrong(lap_group_t *group)
{
    lap_op_t *op = NULL;
    lap_op_desc_t desc = good_desc(LAP_AG_GEMM);
    if (lap_group_rank(group) == 0)
        desc.n = 0;
    tap_failure(lap_op_create(group, &desc, &op), LAP_ERR_INVALID, "n", "0", NULL);
    tap_ok(!op, "nothing was made");
    tap_success(lap_group_barrier(group), "the group works after all this");
}

/*
 * An argument that is changed: to these bytes, or to the pointer that another one is, and so
 * many bytes further.
 */
typedef struct change {
    size_t offset, bytes;
    const void *value;
    size_t from, further;
} change_t;

#define ARG(field) offsetof(lap_op_args_t, field)
#define TO(field, ...)                                                                             \
    {                                                                                              \
        ARG(field), sizeof(((lap_op_args_t *)0)->field),                                           \
            &(const __typeof__(((lap_op_args_t *)0)->field)){__VA_ARGS__}, 0, 0                    \
    }
#define AS(field, other, further)                                                                  \
    {                                                                                              \
        ARG(field), sizeof(void *), NULL, ARG(other), further                                      \
    }

static void apply(const change_t *change, lap_op_args_t *args)
{
    char *pointer;
    memcpy(&pointer, (const char *)args + change->from, sizeof(pointer));
    pointer += change->further;
    memcpy((char *)args + change->offset, change->value ? change->value : (const void *)&pointer,
           change->bytes);
}

/* Operators that between them have a use for every argument. */
enum { PLAIN, RICH, CURVED, MOVING, OPERATORS };

static lap_op_desc_t describe_operator(int which)
{
    static const lap_op_kind_t kinds[] = {LAP_GEMM_RS, LAP_AG_GEMM, LAP_GEMM_RS, LAP_BULK_RS};
    lap_op_desc_t desc = good_desc(kinds[which]);
    if (which == RICH) {
        desc.dtype = desc.out_dtype = LAP_FLOAT8_E4M3;
        desc.epilogue = LAP_EPILOGUE_BIAS | LAP_EPILOGUE_GELU | LAP_EPILOGUE_BIAS_GRAD;
        desc.accumulate = desc.gather_input = 1;
    } else if (which == CURVED) {
        desc.wire_dtype = LAP_FLOAT8_E5M2;
        desc.epilogue = LAP_EPILOGUE_DGELU;
    } else if (which == MOVING) {
        desc.wire_dtype = LAP_BFLOAT16;
    }
    return desc;
}

static const struct {
    int which;
    change_t changes[2];
    const char *word, *value;
} cases[] = {
    {PLAIN, {TO(m, 9)}, "m", "9"},
    {PLAIN, {TO(b.cols, 5)}, "b", "5"},
    {PLAIN, {TO(a.rows, 9)}, "a", "rows"},
    {PLAIN, {TO(d.stride, 1)}, "d", "stride"},
    {PLAIN, {TO(b.data, NULL)}, "b", "NULL"},
    {PLAIN, {AS(d.data, b.data, 0)}, "d overlaps", "memory of its own"},
    {PLAIN, {TO(size, 1)}, "size", "1"},
    {PLAIN, {TO(a.dtype, LAP_FLOAT8_E4M3)}, "a", "float32"},
    {PLAIN, {TO(a.stride, (size_t)INT32_MAX + 1)}, "a has a stride of 2147483648", "2147483647"},
    {PLAIN, {AS(a.data, a.data, 1)}, "a.data", "multiple"},
    {RICH, {TO(a_scale, 0)}, "a_scale is 0,", "finite number above 0"},
    {RICH, {TO(b_scale, INFINITY)}, "b_scale is inf", "finite number above 0"},
    {RICH, {TO(d_scale, NAN)}, "d_scale is", "nan"},
    {RICH, {TO(wire_scale, 2)}, "wire_scale is 2", "expected 1"},
    {RICH, {TO(beta, -INFINITY)}, "beta is -inf", "finite"},
    {RICH, {TO(alpha, NAN)}, "alpha is", "nan"},
    {RICH, {TO(a_scale, 1e30f), TO(b_scale, 1e30f)}, "1e+30 and 1e+30", "a finite product"},
    {RICH, {TO(scales, NULL)}, "scales is NULL", "3 floats"},
    {RICH, {TO(bias.data, NULL)}, "bias.data is NULL", "[1, 2]"},
    {RICH,
     {TO(bias.cols, 1), TO(bias.stride, 1)},
     "bias has 1 columns",
     "this rank's share of n (lap_shard_features) = 2"},
    {RICH, {TO(bias.dtype, LAP_FLOAT8_E4M3)}, "bias is float8_e4m3", "float32, float16 or"},
    {RICH, {TO(bias.dtype, (lap_dtype_t)17)}, "bias is", "float32, float16 or bfloat16"},
    {RICH, {TO(aux.dtype, LAP_FLOAT8_E5M2)}, "aux is float8_e5m2", "float32, float16 or"},
    {RICH, {TO(aux.rows, 9)}, "aux has 9 rows", "m = 8"},
    {RICH, {AS(aux.data, d.data, 0)}, "d overlaps aux", "memory of its own"},
    {RICH, {TO(bias_grad.data, NULL)}, "bias_grad.data is NULL", "[1, 2]"},
    {RICH, {AS(bias_grad.data, d.data, 0)}, "d overlaps bias_grad", "memory of its own"},
    {RICH, {AS(gathered.data, a.data, 0)}, "gathered overlaps a", "memory of its own"},
    {RICH,
     {TO(a_scale, 0.5f), AS(a_scale_ptr, scales, 0)},
     "a_scale is 0.5 and a_scale_ptr is given",
     "expected one of them"},
    {RICH, {TO(b_scale, 1), AS(b_scale_ptr, scales, 1)}, "b_scale_ptr is 0x", "a multiple of 16"},
    {RICH, {AS(wire_scale_ptr, scales, 0)}, "wire_scale_ptr is given", "no FP8 matrix"},
    {CURVED, {TO(wire_scale, -0.25f)}, "wire_scale is -0.25", "finite number above 0"},
    {CURVED, {AS(b_scale_ptr, scales, 0)}, "b_scale_ptr is given", "no FP8 matrix"},
    {CURVED, {TO(b_scale, 0.5f)}, "b_scale is 0.5", "not FP8"},
    {CURVED, {TO(beta, 0.125f)}, "beta is 0.125", "without accumulate"},
    {CURVED, {TO(aux.data, NULL)}, "aux.data is NULL", "6"},
    {CURVED, {AS(aux.data, d.data, 0)}, "d overlaps aux", "memory of its own"},
    {MOVING, {TO(x.data, NULL)}, "x.data is NULL", "[8, 5]"},
    {MOVING, {TO(x.dtype, LAP_FLOAT32)}, "x is float32", "bfloat16"},
    {MOVING, {TO(y.data, NULL)}, "y.data is NULL", "5"},
    {MOVING, {TO(y.cols, 9), TO(y.stride, 9)}, "y has 9 columns", "cols = 5"},
    {MOVING, {AS(y.data, x.data, 0)}, "y overlaps x", "memory of its own"},
    {MOVING, {AS(y.data, d.data, 0)}, "d overlaps y", "memory of its own"},
    {MOVING, {TO(wire_scale, 2)}, "wire_scale is 2", "not FP8"},
};

/* Every argument that an operator has a use for is looked at before anything starts. */
static void test_arguments(lap_group_t *group, int which)
{
    lap_op_t *op = NULL;
    const lap_op_desc_t desc = describe_operator(which);
    if (!tap_success(lap_op_create(group, &desc, &op), "a good operator"))
        return;
    test_call_t call = {.desc = desc,
                        .m = 8,
                        .exact = which == PLAIN,
                        .seed = 4,
                        .rank = lap_group_rank(group),
                        .size = lap_group_size(group)};
    test_call_init(&call);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        lap_op_args_t args = call.args;
        for (int c = 0; c < 2; c++)
            apply(&cases[i].changes[c], &args);
        if (cases[i].which == which)
            tap_failure(lap_op_run(op, &args), LAP_ERR_INVALID, cases[i].word, cases[i].value,
                        NULL);
    }
    tap_failure(lap_op_run(op, NULL), LAP_ERR_INVALID, "args", NULL);
    tap_failure(lap_op_run(NULL, &call.args), LAP_ERR_INVALID, "op", NULL);
    tap_failure(lap_op_end(op), LAP_ERR_INVALID, "begun", NULL);
    tap_success(lap_op_run(op, &call.args), "the operator works after all this");
    tap_ok(test_call_error(&call) <= (which == PLAIN ? 0 : 1), "and is right");
    test_call_clear(&call);
    lap_op_destroy(op);
}

/* Who was built before there were types, layouts and epilogues says nothing of them. */
static void test_short_structs(lap_group_t *group)
{
    lap_op_desc_t desc = good_desc(LAP_GEMM_RS), given = desc;
    given.size = offsetof(lap_op_desc_t, layout);
    memset(&given.layout, 0x5a, sizeof(given) - given.size);
    lap_op_t *op = NULL;
    if (!tap_success(lap_op_create(group, &given, &op), "a description of the first version"))
        return;
    test_call_t call = {.desc = desc,
                        .m = 8,
                        .exact = true,
                        .rank = lap_group_rank(group),
                        .size = lap_group_size(group)};
    test_call_init(&call);
    lap_op_args_t args = call.args;
    args.size = offsetof(lap_op_args_t, alpha);
    memset(&args.alpha, 0x5a, sizeof(args) - args.size);
    tap_success(lap_op_run(op, &args), "arguments of the first version");
    tap_ok(test_call_error(&call) == 0, "and the result is right");
    test_call_clear(&call);
    lap_op_destroy(op);
}

/*
 * Other active rows on one rank: no hang, no wrong data, an error that names both. Breaks the
 * group: comes last.
 */
static void test_rows_disagree(lap_group_t *group)
{
    lap_op_t *op = NULL;
    lap_op_desc_t desc = good_desc(LAP_AG_GEMM);
    if (!tap_success(lap_op_create(group, &desc, &op), "a good operator"))
        return;
    test_call_t call = {.desc = desc,
                        .m = lap_group_rank(group) == 1 ? 7 : 8,
                        .rank = lap_group_rank(group),
                        .size = lap_group_size(group)};
    test_call_init(&call);
    tap_failure(lap_op_run(op, &call.args), LAP_ERR_MISMATCH, "m = 7", "m = 8", "rank 1", NULL);
    test_call_clear(&call);
    lap_op_destroy(op);
}

static void test_all(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *group = lap_world_group(world);
    test_descriptions(group);
    test_one_wrong(group);
    for (int which = PLAIN; which < OPERATORS; which++)
        test_arguments(group, which);
    test_short_structs(group);
    test_rows_disagree(group);
}

int main(void)
{
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    options.timeout_s = 20;
    tap_ranks(3, &options, test_all, NULL);
    return tap_done();
}
