/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wrong arguments and ranks that disagree: a status, a sentence with the value, and nothing
 * changed.
 */
#include <stdlib.h>
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
    desc.epilogue = (lap_epilogue_t)9;
    refuse(group, desc, LAP_ERR_UNSUPPORTED, "epilogue", "9");
    desc = good_desc((lap_op_kind_t)5);
    refuse(group, desc, LAP_ERR_INVALID, "kind", "5");
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

/* One rank says something else: all ranks learn who said what. */
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
        desc.n = 0; /* wrong on its own: that rank is told so, the others that it was rank 0 */
    tap_failure(lap_op_create(group, &desc, &op), LAP_ERR_INVALID, "n", "0", NULL);
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
static void spoil_null(lap_op_args_t *args)
{
    args->b.data = NULL;
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
    args->a.dtype = (lap_dtype_t)3;
}

static void test_calls(lap_group_t *group)
{
    static const struct {
        spoil_t spoil;
        const char *word, *value;
    } cases[] = {{spoil_m, "m", "9"},       {spoil_k, "b", "5"},
                 {spoil_rows, "a", "rows"}, {spoil_stride, "d", "stride"},
                 {spoil_null, "b", "NULL"}, {spoil_alias, "d", "b"},
                 {spoil_size, "size", "1"}, {spoil_dtype, "a", "float32"}};
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
    test_rows_disagree(group);
}

int main(void)
{
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    options.timeout_s = 20;
    tap_ranks(3, &options, test_all, NULL);
    return tap_done();
}
