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

/* A wrong description must fail on every rank and leave the group as it was. */
static void refuse(lap_group_t *group, lap_op_desc_t desc, lap_status_t expected, const char *word,
                   const char *value)
{
    lap_op_t *op = NULL;
    tap_failure(lap_op_create(group, &desc, &op), expected, word, value, NULL);
    tap_ok(op == NULL, "nothing was made for a wrong %s", word);
}

static void test_descriptions(lap_group_t *group)
{
    lap_op_desc_t desc = good_desc(LAP_AG_GEMM);
    desc.method = "rnig";
    refuse(group, desc, LAP_ERR_INVALID, "rnig", "ring");
    desc = good_desc(LAP_AG_GEMM);
    desc.method = "pipeline"; /* a method of the other operator */
    refuse(group, desc, LAP_ERR_INVALID, "pipeline", "direct");
    desc = good_desc(LAP_AG_GEMM);
    desc.n = 0;
    refuse(group, desc, LAP_ERR_INVALID, "n", "0");
    desc = good_desc(LAP_AG_GEMM);
    desc.k = (size_t)-5;
    refuse(group, desc, LAP_ERR_INVALID, "k", "18446744073709551611");
    desc = good_desc(LAP_AG_GEMM);
    desc.m = 0;
    refuse(group, desc, LAP_ERR_INVALID, "m", "0");
    desc = good_desc(LAP_AG_GEMM);
    desc.dtype = (lap_dtype_t)77;
    refuse(group, desc, LAP_ERR_UNSUPPORTED, "dtype", "77");
    desc = good_desc(LAP_AG_GEMM);
    desc.epilogue = 32;
    refuse(group, desc, LAP_ERR_UNSUPPORTED, "epilogue", "0x20");
    desc = good_desc(LAP_AG_GEMM);
    desc.num_sm = -1;
    refuse(group, desc, LAP_ERR_INVALID, "num_sm", "-1");
    desc = good_desc(LAP_AG_GEMM);
    desc.set_sm_margin = 1;
    refuse(group, desc, LAP_ERR_INVALID, "set_sm_margin", "num_sm = 0");
    desc = good_desc(LAP_AG_GEMM);
    desc.layout = LAP_WGRAD;
    refuse(group, desc, LAP_ERR_UNSUPPORTED, "LAP_WGRAD", "bulk_rs");
    desc = good_desc(LAP_AG_GEMM);
    desc.sharded = LAP_SHARDED_K;
    refuse(group, desc, LAP_ERR_INVALID, "sharded is 2", "expected 0 or 1");
    desc = good_desc(LAP_GEMM);
    desc.sharded = (lap_sharded_t)3;
    refuse(group, desc, LAP_ERR_INVALID, "sharded is 3", "LAP_SHARDED_N (1)");
    desc = good_desc(LAP_AG_GEMM);
    desc.n = 9;
    desc.shard_parts = 2;
    refuse(group, desc, LAP_ERR_INVALID, "shard_parts is 2", "divisor of n");
    desc = good_desc(LAP_GEMM);
    desc.shard_parts = 2;
    refuse(group, desc, LAP_ERR_INVALID, "shard_parts is 2", "neither n nor k is sharded");
    desc = good_desc(LAP_GEMM_AR);
    desc.out_dtype = LAP_FLOAT8_E4M3;
    refuse(group, desc, LAP_ERR_UNSUPPORTED, "out_dtype", "float8_e4m3");
    desc = good_desc((lap_op_kind_t)8);
    refuse(group, desc, LAP_ERR_INVALID, "kind", "7");
    desc = good_desc(LAP_GEMM_RS);
    desc.method = "pipeline";
    desc.num_splits = 7;
    refuse(group, desc, LAP_ERR_INVALID, "num_splits", "7");
    desc = good_desc(LAP_AG_GEMM);
    desc.size = 3;
    refuse(group, desc, LAP_ERR_INVALID, "size", "3");
    desc = good_desc(LAP_AG_GEMM);
    desc.method = "ring";
    desc.aggregate = 1;
    if (lap_group_size(group) % 2)
        refuse(group, desc, LAP_ERR_INVALID, "aggregate", "3");
    lap_op_t *op = NULL;
    tap_failure(lap_op_create(NULL, &desc, &op), LAP_ERR_INVALID, "group", NULL);
    tap_failure(lap_op_create(group, NULL, &op), LAP_ERR_INVALID, "desc", NULL);
    tap_success(lap_group_barrier(group), "the group works after all this");
}

/* The same for types, layout and epilogue. */
static void test_fields_disagree(lap_group_t *group)
{
    const int other = lap_group_rank(group) == 1;
    lap_op_desc_t desc[9];
    for (int i = 0; i < 9; i++) {
        desc[i] = good_desc(LAP_BULK_RS);
        desc[i].dtype = LAP_FLOAT8_E4M3;
    }
    desc[0].b_dtype = other ? LAP_FLOAT8_E5M2 : LAP_FLOAT8_E4M3;
    desc[1].out_dtype = other ? LAP_FLOAT32 : LAP_FLOAT16;
    desc[2].wire_dtype = other ? LAP_FLOAT32 : LAP_FLOAT16;
    desc[2].y_dtype = LAP_FLOAT32;
    desc[3].y_dtype = other ? LAP_FLOAT32 : LAP_FLOAT16;
    desc[4].layout = other ? LAP_DGRAD : LAP_FORWARD;
    desc[5].epilogue = other ? LAP_EPILOGUE_BIAS : LAP_EPILOGUE_BIAS_GRAD;
    desc[6].accumulate = other;
    desc[7].sharded = other ? LAP_SHARDED_N : LAP_SHARDED_K;
    desc[8].sharded = LAP_SHARDED_N;
    desc[8].shard_parts = other ? 2 : 3;
    static const char *const words[9][2] = {
        {"rank 0 says b_dtype = float8_e4m3", "rank 1 says b_dtype = float8_e5m2"},
        {"rank 0 says out_dtype = float16", "rank 1 says out_dtype = float32"},
        {"rank 0 says wire_dtype = float16", "rank 1 says wire_dtype = float32"},
        {"rank 0 says y_dtype = float16", "rank 1 says y_dtype = float32"},
        {"rank 0 says layout = forward", "rank 1 says layout = dgrad"},
        {"rank 0 says epilogue = 0x8", "rank 1 says epilogue = 0x1"},
        {"rank 0 says accumulate = 0", "rank 1 says accumulate = 1"},
        {"rank 0 says sharded = k", "rank 1 says sharded = n"},
        {"rank 0 says shard_parts = 3", "rank 1 says shard_parts = 2"},
    };
    lap_op_t *op = NULL;
    for (int i = 0; i < 9; i++)
        tap_failure(lap_op_create(group, &desc[i], &op), LAP_ERR_MISMATCH, words[i][0], words[i][1],
                    NULL);
    lap_op_desc_t cols = good_desc(LAP_BULK_RS);
    cols.cols += (size_t)other;
    tap_failure(lap_op_create(group, &cols, &op), LAP_ERR_MISMATCH, "cols = 5", "cols = 6", NULL);
    tap_ok(!op, "nothing was made");
}

/* One rank gives another value: the error of all ranks has both values, and the ranks. */
static void test_disagreement(lap_group_t *group)
{
    lap_op_t *op = NULL;
    lap_op_desc_t desc = good_desc(LAP_AG_GEMM);
    desc.k = lap_group_rank(group) == 1 ? 513 : 512;
    tap_failure(lap_op_create(group, &desc, &op), LAP_ERR_MISMATCH, "rank 0", "512", "rank 1",
                "513", "k", NULL);
    desc = good_desc(LAP_AG_GEMM);
    desc.method = lap_group_rank(group) == 2 ? "direct" : "ring";
    tap_failure(lap_op_create(group, &desc, &op), LAP_ERR_MISMATCH, "method", "ring", "rank 2",
                "direct", NULL);
    desc = good_desc(LAP_AG_GEMM);
    if (lap_group_rank(group) == 0)
        desc.n = 0; /* wrong on its own: the error of that rank; the others name rank 0 */
    tap_failure(lap_op_create(group, &desc, &op), LAP_ERR_INVALID, "n", "0", NULL);
    test_fields_disagree(group);
    lap_buffer_t *buffer = NULL;
    size_t bytes = lap_group_rank(group) == 2 ? 4096 : 8192;
    tap_failure(lap_buffer_create(group, bytes, 4, NULL, &buffer), LAP_ERR_MISMATCH, "4096", "8192",
                "rank 2", NULL);
    tap_ok(!op && !buffer, "nothing was made");
    tap_success(lap_group_barrier(group), "the group works after all this");
}

typedef void (*spoil_t)(lap_op_args_t *args);

static void spoil_m(lap_op_args_t *args)
{
    args->m = 9;
}
static void spoil_k(lap_op_args_t *args)
{
    args->b.cols = 5;
}
static void spoil_rows(lap_op_args_t *args)
{
    args->a.rows += 1;
}
static void spoil_stride(lap_op_args_t *args)
{
    args->d.stride = 1;
}
static void spoil_far(lap_op_args_t *args)
{
    args->a.stride = (size_t)INT32_MAX + 1;
}
static void spoil_null(lap_op_args_t *args)
{
    args->b.data = NULL;
}
static void spoil_alignment(lap_op_args_t *args)
{
    args->a.data = (char *)args->a.data + 1;
}
static void spoil_alias(lap_op_args_t *args)
{
    args->d.data = args->b.data;
}
static void spoil_size(lap_op_args_t *args)
{
    args->size = 1;
}
static void spoil_dtype(lap_op_args_t *args)
{
    args->a.dtype = LAP_FLOAT8_E4M3;
}

static void test_calls(lap_group_t *group)
{
    static const struct {
        spoil_t spoil;
        const char *word, *value;
    } cases[] = {{spoil_m, "m", "9"},
                 {spoil_k, "b", "5"},
                 {spoil_rows, "a", "rows"},
                 {spoil_stride, "d", "stride"},
                 {spoil_null, "b", "NULL"},
                 {spoil_alias, "d", "b"},
                 {spoil_size, "size", "1"},
                 {spoil_dtype, "a", "float32"},
                 {spoil_far, "a has a stride of 2147483648", "at most 2147483647"},
                 {spoil_alignment, "a.data", "multiple"}};
    lap_op_t *op = NULL;
    lap_op_desc_t desc = good_desc(LAP_GEMM_RS);
    if (!tap_success(lap_op_create(group, &desc, &op), "a good operator"))
        return;
    test_call_t call = {.desc = desc,
                        .m = 8,
                        .exact = true,
                        .seed = 4,
                        .rank = lap_group_rank(group),
                        .size = lap_group_size(group)};
    test_call_init(&call);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        lap_op_args_t args = call.args;
        cases[i].spoil(&args);
        tap_failure(lap_op_run(op, &args), LAP_ERR_INVALID, cases[i].word, cases[i].value, NULL);
    }
    tap_failure(lap_op_run(op, NULL), LAP_ERR_INVALID, "args", NULL);
    tap_failure(lap_op_run(NULL, &call.args), LAP_ERR_INVALID, "op", NULL);
    tap_failure(lap_op_end(op), LAP_ERR_INVALID, "begun", NULL);
    tap_success(lap_op_run(op, &call.args), "the operator works after all this");
    tap_ok(test_call_error(&call) == 0, "and is right");
    test_call_clear(&call);
    lap_op_destroy(op);
}

static void no_a_scale(lap_op_args_t *args)
{
    args->a_scale = 0;
}
static void infinite_b_scale(lap_op_args_t *args)
{
    args->b_scale = INFINITY;
}
static void large_scales(lap_op_args_t *args)
{
    args->a_scale = args->b_scale = 1e30f;
}
static void nan_d_scale(lap_op_args_t *args)
{
    args->d_scale = NAN;
}
static void negative_wire_scale(lap_op_args_t *args)
{
    args->wire_scale = -0.25f;
}
static void needless_wire_scale(lap_op_args_t *args)
{
    args->wire_scale = 2;
}
static void two_a_scales(lap_op_args_t *args)
{
    args->a_scale = 0.5f;
    args->a_scale_ptr = args->scales;
}
static void odd_b_scale_ptr(lap_op_args_t *args)
{
    args->b_scale = 1;
    args->b_scale_ptr = (const float *)(const void *)((const char *)args->scales + 1);
}
static void needless_b_scale_ptr(lap_op_args_t *args)
{
    args->b_scale_ptr = args->scales;
}
static void needless_wire_scale_ptr(lap_op_args_t *args)
{
    args->wire_scale_ptr = args->scales;
}
static void needless_b_scale(lap_op_args_t *args)
{
    args->b_scale = 0.5f;
}
static void needless_beta(lap_op_args_t *args)
{
    args->beta = 0.125f;
}
static void infinite_beta(lap_op_args_t *args)
{
    args->beta = -INFINITY;
}
static void nan_alpha(lap_op_args_t *args)
{
    args->alpha = NAN;
}
static void no_scales(lap_op_args_t *args)
{
    args->scales = NULL;
}
static void no_bias(lap_op_args_t *args)
{
    args->bias.data = NULL;
}
static void short_bias(lap_op_args_t *args)
{
    args->bias.cols--;
    args->bias.stride--;
}
static void fp8_bias(lap_op_args_t *args)
{
    args->bias.dtype = LAP_FLOAT8_E4M3;
}
static void no_such_bias(lap_op_args_t *args)
{
    args->bias.dtype = (lap_dtype_t)17;
}
static void fp8_aux(lap_op_args_t *args)
{
    args->aux.dtype = LAP_FLOAT8_E5M2;
}
static void no_aux(lap_op_args_t *args)
{
    args->aux.data = NULL;
}
static void wrong_aux(lap_op_args_t *args)
{
    args->aux.rows++;
}
static void aux_is_d(lap_op_args_t *args)
{
    args->aux.data = args->d.data;
}
static void no_bias_grad(lap_op_args_t *args)
{
    args->bias_grad.data = NULL;
}
static void bias_grad_in_d(lap_op_args_t *args)
{
    args->bias_grad.data = args->d.data;
}
static void gathered_is_a(lap_op_args_t *args)
{
    args->gathered.data = args->a.data;
}
static void no_x(lap_op_args_t *args)
{
    args->x.data = NULL;
}
static void wrong_x(lap_op_args_t *args)
{
    args->x.dtype = LAP_FLOAT32;
}
static void no_y(lap_op_args_t *args)
{
    args->y.data = NULL;
}
static void wrong_y(lap_op_args_t *args)
{
    args->y.cols = args->y.stride = 9;
}
static void y_is_x(lap_op_args_t *args)
{
    args->y.data = args->x.data;
}
static void y_is_d(lap_op_args_t *args)
{
    args->y.data = args->d.data;
}

/* Operators that between them have a use for every argument. */
enum { RICH, CURVED, MOVING, OPERATORS };

static lap_op_desc_t describe_operator(int which)
{
    lap_op_desc_t desc = good_desc(which == RICH     ? LAP_AG_GEMM
                                   : which == CURVED ? LAP_GEMM_RS
                                                     : LAP_BULK_RS);
    if (which == RICH) {
        desc.dtype = desc.out_dtype = LAP_FLOAT8_E4M3;
        desc.epilogue = LAP_EPILOGUE_BIAS | LAP_EPILOGUE_GELU | LAP_EPILOGUE_BIAS_GRAD;
        desc.accumulate = desc.gather_input = 1;
    } else if (which == CURVED) {
        desc.wire_dtype = LAP_FLOAT8_E5M2;
        desc.epilogue = LAP_EPILOGUE_DGELU;
    } else {
        desc.wire_dtype = LAP_BFLOAT16;
    }
    return desc;
}

/* Every argument that an operator has a use for is looked at before anything starts. */
static void test_all_arguments(lap_group_t *group)
{
    static const struct {
        int which;
        spoil_t spoil;
        const char *word, *value;
    } cases[] = {
        {RICH, no_a_scale, "a_scale is 0,", "finite number above 0"},
        {RICH, infinite_b_scale, "b_scale is inf", "finite number above 0"},
        {RICH, nan_d_scale, "d_scale is", "nan"},
        {RICH, needless_wire_scale, "wire_scale is 2", "expected 1"},
        {RICH, infinite_beta, "beta is -inf", "finite"},
        {RICH, nan_alpha, "alpha is", "nan"},
        {RICH, large_scales, "1e+30 and 1e+30", "a finite product"},
        {RICH, no_scales, "scales is NULL", "3 floats"},
        {RICH, no_bias, "bias.data is NULL", "[1, 2]"},
        {RICH, short_bias, "bias has 1 columns", "this rank's share of n (lap_shard_features) = 2"},
        {RICH, fp8_bias, "bias is float8_e4m3", "float32, float16 or bfloat16"},
        {RICH, no_such_bias, "bias is", "float32, float16 or bfloat16"},
        {RICH, fp8_aux, "aux is float8_e5m2", "float32, float16 or bfloat16"},
        {RICH, wrong_aux, "aux has 9 rows", "m = 8"},
        {RICH, aux_is_d, "d overlaps aux", "memory of its own"},
        {RICH, no_bias_grad, "bias_grad.data is NULL", "[1, 2]"},
        {RICH, bias_grad_in_d, "d overlaps bias_grad", "memory of its own"},
        {RICH, gathered_is_a, "gathered overlaps a", "memory of its own"},
        {CURVED, negative_wire_scale, "wire_scale is -0.25", "finite number above 0"},
        {RICH, two_a_scales, "a_scale is 0.5 and a_scale_ptr is given", "expected one of them"},
        {RICH, odd_b_scale_ptr, "b_scale_ptr is 0x", "a multiple of 16"},
        {CURVED, needless_b_scale_ptr, "b_scale_ptr is given", "no FP8 matrix"},
        {RICH, needless_wire_scale_ptr, "wire_scale_ptr is given", "no FP8 matrix"},
        {CURVED, needless_b_scale, "b_scale is 0.5", "not FP8"},
        {CURVED, needless_beta, "beta is 0.125", "without accumulate"},
        {CURVED, no_aux, "aux.data is NULL", "6"},
        {CURVED, aux_is_d, "d overlaps aux", "memory of its own"},
        {MOVING, no_x, "x.data is NULL", "[8, 5]"},
        {MOVING, wrong_x, "x is float32", "bfloat16"},
        {MOVING, no_y, "y.data is NULL", "5"},
        {MOVING, wrong_y, "y has 9 columns", "cols = 5"},
        {MOVING, y_is_x, "y overlaps x", "memory of its own"},
        {MOVING, y_is_d, "d overlaps y", "memory of its own"},
        {MOVING, needless_wire_scale, "wire_scale is 2", "not FP8"},
    };
    for (int which = 0; which < OPERATORS; which++) {
        lap_op_t *op = NULL;
        const lap_op_desc_t desc = describe_operator(which);
        if (!tap_success(lap_op_create(group, &desc, &op), "a good operator"))
            return;
        test_call_t call = {.desc = desc,
                            .m = 8,
                            .seed = 4,
                            .rank = lap_group_rank(group),
                            .size = lap_group_size(group)};
        test_call_init(&call);
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            lap_op_args_t args = call.args;
            cases[i].spoil(&args);
            if (cases[i].which == which)
                tap_failure(lap_op_run(op, &args), LAP_ERR_INVALID, cases[i].word, cases[i].value,
                            NULL);
        }
        tap_success(lap_op_run(op, &call.args), "the operator works after all this");
        tap_ok(test_call_error(&call) <= 1, "and is right");
        test_call_clear(&call);
        lap_op_destroy(op);
    }
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
    test_disagreement(group);
    test_calls(group);
    test_all_arguments(group);
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
