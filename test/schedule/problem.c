/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptions that make no sense: each gets a status and a sentence with the argument, its value
 * and what was expected.
 */
#include "overlap/overlap.h"
#include "tap.h"
#include "transport/transport.h"

static lap_op_desc_t good(lap_op_kind_t kind)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = kind;
    desc.m = 64;
    desc.n = 32;
    desc.k = 16;
    desc.cols = kind == LAP_BULK_AG || kind == LAP_BULK_RS || kind >= LAP_EXTERNAL_AG ? 24 : 0;
    if (kind >= LAP_EXTERNAL_AG)
        desc.n = desc.k = 0;
    return desc;
}

static lap_status_t init(const lap_op_desc_t *desc, int size, unsigned can)
{
    lap_problem_t problem;
    const lap_builder_t *builder;
    return lap_problem_init(&problem, &builder, desc, size, can);
}

static void test_sizes(void)
{
    lap_op_desc_t desc = good(LAP_AG_GEMM);
    tap_success(init(&desc, 4, ~0u), "a good description");
    tap_failure(init(NULL, 4, ~0u), LAP_ERR_INVALID, "desc is NULL", NULL);
    desc.size = 3;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_INVALID, "size is 3", "LAP_OP_DESC_INIT", NULL);
    desc = good(LAP_AG_GEMM);
    desc.m = 0;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_INVALID, "m is 0", "expected 1 to", NULL);
    desc = good(LAP_GEMM_RS);
    desc.n = 0;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_INVALID, "n is 0", NULL);
    desc = good(LAP_GEMM_RS);
    desc.k = 0;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_INVALID, "k is 0", NULL);
    desc = good(LAP_GEMM_RS);
    desc.m = (size_t)-64;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_INVALID, "18446744073709551552", "2147483647", NULL);
    desc = good(LAP_AG_GEMM);
    desc.k = (size_t)INT32_MAX + 1;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_INVALID, "k is 2147483648", "2147483647", NULL);
    desc = good(LAP_AG_GEMM);
    tap_failure(init(&desc, 0, ~0u), LAP_ERR_INVALID, "0 ranks", NULL);
    desc.cols = 7;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_INVALID, "cols is 7 with ag_gemm", "expected 0", NULL);
    desc = good(LAP_BULK_RS);
    desc.cols = 0;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_INVALID, "cols is 0", "expected 1 to", NULL);
    desc = good(LAP_EXTERNAL_AG);
    desc.k = 5;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_INVALID, "k is 5 with external_ag",
                "this operator has no GEMM", NULL);
}

/* What the description of a kind becomes; all types -2 when it is refused. */
static lap_types_t types_of(const lap_op_desc_t *desc)
{
    lap_problem_t problem;
    const lap_builder_t *builder;
    const lap_dtype_t none = (lap_dtype_t)-2;
    const lap_types_t refused = {none, none, none, none, none};
    return lap_problem_init(&problem, &builder, desc, 4, ~0u) == LAP_OK ? problem.types : refused;
}

static void test_default_types(void)
{
    lap_op_desc_t desc = good(LAP_GEMM_RS);
    desc.dtype = LAP_FLOAT16;
    lap_types_t types = types_of(&desc);
    tap_ok(types.b == LAP_FLOAT16 && types.out == LAP_FLOAT16 && types.wire == LAP_FLOAT16,
           "all types are that of a");
    desc.dtype = LAP_FLOAT8_E5M2;
    types = types_of(&desc);
    tap_ok(types.b == LAP_FLOAT8_E5M2 && types.out == LAP_BFLOAT16 && types.wire == LAP_BFLOAT16,
           "but for results of FP8, which are bfloat16, and travel so");
    desc.kind = LAP_AG_GEMM;
    types = types_of(&desc);
    tap_ok(types.out == LAP_BFLOAT16 && types.wire == LAP_FLOAT8_E5M2, "an all-gather moves FP8");
    desc.b_dtype = LAP_FLOAT8_E4M3;
    tap_ok(types_of(&desc).b == LAP_FLOAT8_E4M3, "of two FP8 types b may have the other");
    desc = good(LAP_BULK_RS);
    desc.wire_dtype = LAP_FLOAT8_E4M3;
    types = types_of(&desc);
    tap_ok(types.wire == LAP_FLOAT8_E4M3 && types.y == LAP_BFLOAT16 && types.out == LAP_FLOAT32,
           "x has a type of its own, and its sum is bfloat16 if that is FP8");
}

static void test_types(void)
{
    lap_op_desc_t desc = good((lap_op_kind_t)8);
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_INVALID, "kind is 8", NULL);
    desc = good(LAP_AG_GEMM);
    desc.dtype = (lap_dtype_t)5;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_UNSUPPORTED, "dtype is 5", "LAP_FLOAT32",
                "LAP_FLOAT16", "LAP_BFLOAT16", "LAP_FLOAT8_E4M3", "LAP_FLOAT8_E5M2", NULL);
    desc.dtype = LAP_DTYPE_DEFAULT;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_UNSUPPORTED, "dtype is -1", NULL);
    desc = good(LAP_AG_GEMM);
    desc.out_dtype = (lap_dtype_t)9;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_UNSUPPORTED, "out_dtype is 9", NULL);
    desc = good(LAP_AG_GEMM);
    desc.b_dtype = LAP_FLOAT16;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_UNSUPPORTED, "b_dtype is float16",
                "a dtype of float32", NULL);
    desc.dtype = LAP_FLOAT8_E4M3;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_UNSUPPORTED, "b_dtype is float16",
                "float8_e4m3 or float8_e5m2", NULL);
    desc = good(LAP_AG_GEMM);
    desc.wire_dtype = LAP_BFLOAT16;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_UNSUPPORTED, "wire_dtype is bfloat16 with ag_gemm",
                "expected float32", NULL);
    desc = good(LAP_GEMM);
    desc.wire_dtype = LAP_BFLOAT16;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_UNSUPPORTED, "wire_dtype is bfloat16 with gemm", NULL);
    desc = good(LAP_GEMM_RS);
    desc.y_dtype = LAP_BFLOAT16;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_UNSUPPORTED, "y_dtype is bfloat16 with gemm_rs", NULL);
    desc = good(LAP_BULK_AG);
    desc.y_dtype = LAP_BFLOAT16;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_UNSUPPORTED, "y_dtype is bfloat16 with bulk_ag",
                "expected float32", NULL);
    desc = good(LAP_BULK_RS);
    desc.y_dtype = LAP_FLOAT8_E4M3;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_UNSUPPORTED, "y_dtype is float8_e4m3 with bulk_rs",
                NULL);
    desc = good(LAP_GEMM_AR);
    desc.out_dtype = LAP_FLOAT8_E5M2;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_UNSUPPORTED, "out_dtype is float8_e5m2 with gemm_ar",
                "float32, float16 or bfloat16", NULL);
}

static void test_epilogues(void)
{
    lap_op_desc_t desc = good(LAP_AG_GEMM);
    desc.epilogue = 16;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_UNSUPPORTED, "epilogue is 0x10",
                "expected only bits of 0xf", NULL);
    desc.epilogue = LAP_EPILOGUE_GELU | LAP_EPILOGUE_DGELU;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_INVALID, "epilogue is 0x6", "not both", NULL);
    desc = good(LAP_AG_GEMM);
    desc.layout = LAP_WGRAD;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_UNSUPPORTED, "LAP_WGRAD with ag_gemm", "gemm, bulk_ag",
                "bulk_rs", NULL);
    desc.kind = LAP_GEMM_RS;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_UNSUPPORTED, "LAP_WGRAD with gemm_rs", NULL);
    desc = good(LAP_GEMM);
    desc.layout = LAP_WGRAD;
    desc.epilogue = LAP_EPILOGUE_BIAS_GRAD;
    tap_success(init(&desc, 4, ~0u), "LAP_WGRAD with the gradient of the bias");
    desc.epilogue = LAP_EPILOGUE_BIAS;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_UNSUPPORTED, "epilogue is 0x1 with LAP_WGRAD",
                "LAP_EPILOGUE_BIAS_GRAD", NULL);
    desc = good(LAP_GEMM);
    desc.layout = (lap_layout_t)3;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_INVALID, "layout is 3", "LAP_WGRAD (2)", NULL);
    desc = good(LAP_EXTERNAL_AG);
    desc.epilogue = LAP_EPILOGUE_BIAS;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_INVALID, "epilogue is 0x1 with external_ag", NULL);
    desc = good(LAP_EXTERNAL_AG);
    desc.accumulate = 1;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_INVALID, "accumulate is 1 with external_ag", NULL);
}

static void test_methods(void)
{
    lap_problem_t problem;
    const lap_builder_t *builder = NULL;
    lap_op_desc_t desc = good(LAP_AG_GEMM);
    for (int kind = LAP_AG_GEMM; kind <= (int)LAP_EXTERNAL_RS; kind++) {
        desc = good((lap_op_kind_t)kind);
        tap_ok(lap_problem_init(&problem, &builder, &desc, 4, LAP_CAN_PUT) == LAP_OK &&
                   builder == &lap_builders((lap_op_kind_t)kind)[kind != LAP_GEMM],
               "%s: the default is the first method that overlaps, if one does",
               lap_op_kind_name((lap_op_kind_t)kind));
    }
    desc = good(LAP_AG_GEMM);
    desc.method = "rings";
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_INVALID, "'rings'", "serial, ring, direct, fused",
                NULL);
    desc = good(LAP_GEMM_RS);
    desc.method = "direct";
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_INVALID, "'direct'", "gemm_rs",
                "serial, ring, pipeline, pull, fused", NULL);
    desc.method = "fused";
    tap_failure(init(&desc, 4, LAP_CAN_PUT), LAP_ERR_UNSUPPORTED, "'fused'",
                "it can do serial, ring, pipeline", NULL);
    desc = good(LAP_EXTERNAL_AG);
    desc.method = "fused";
    tap_failure(init(&desc, 4, LAP_CAN_PUT), LAP_ERR_UNSUPPORTED, "'fused' of external_ag",
                "it can do serial, ring, direct", NULL);
    desc = good(LAP_BULK_RS);
    desc.method = "ring";
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_INVALID, "'ring'", "bulk_rs", "serial, direct", NULL);
    tap_ok(!lap_op_methods(LAP_AG_GEMM, 5, NULL) && !lap_op_methods((lap_op_kind_t)9, 0, NULL),
           "there is no method past the last one, nor of an unknown operator");
}

static void test_shares(void)
{
    lap_op_desc_t desc = good(LAP_AG_GEMM);
    desc.sharded = LAP_SHARDED_K;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_INVALID, "sharded is 2", "expected 0 or 1", NULL);
    desc = good(LAP_GEMM);
    desc.sharded = (lap_sharded_t)3;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_INVALID, "sharded is 3", "LAP_SHARDED_N (1)", NULL);
    desc = good(LAP_AG_GEMM);
    desc.n = 9;
    desc.shard_parts = 2;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_INVALID, "shard_parts is 2", "divisor of n", NULL);
    desc = good(LAP_GEMM);
    desc.shard_parts = 2;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_INVALID, "shard_parts is 2",
                "neither n nor k is sharded", NULL);
}

static void test_knobs(void)
{
    lap_op_desc_t desc = good(LAP_AG_GEMM);
    desc.aggregate = 1;
    tap_success(init(&desc, 4, ~0u), "aggregate with an even group");
    tap_success(init(&desc, 1, ~0u), "aggregate with a group of one");
    tap_failure(init(&desc, 3, ~0u), LAP_ERR_INVALID, "aggregate needs an even group size, got 3",
                NULL);
    desc.method = "direct";
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_INVALID, "aggregate", "'direct'", "only ring has it",
                NULL);
    desc = good(LAP_GEMM_RS);
    desc.aggregate = 1;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_INVALID, "aggregate", "gemm_rs", NULL);
    desc = good(LAP_GEMM_RS);
    desc.num_splits = 3;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_INVALID, "num_splits is 3",
                "only pipeline, pull has it", NULL);
    desc.method = "pipeline";
    desc.num_splits = 33;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_INVALID, "num_splits is 33", "n = 32", NULL);
    desc = good(LAP_AG_GEMM);
    desc.block_rows = 5;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_INVALID, "block_rows is 5", "only fused has it", NULL);
    desc = good(LAP_GEMM_RS);
    desc.gather_input = 1;
    tap_failure(init(&desc, 4, ~0u), LAP_ERR_INVALID, "gather_input is 1", "gemm_rs",
                "no method has it", NULL);
}

static void test_defaults(void)
{
    lap_problem_t problem;
    const lap_builder_t *builder;
    lap_op_desc_t desc = good(LAP_GEMM_RS);
    desc.method = "pipeline";
    desc.n = 3;
    tap_ok(lap_problem_init(&problem, &builder, &desc, 4, ~0u) == LAP_OK &&
               problem.desc.num_splits == 3,
           "num_splits is n when n is less than 4");
    desc.n = 100;
    tap_ok(lap_problem_init(&problem, &builder, &desc, 4, ~0u) == LAP_OK &&
               problem.desc.num_splits == 4,
           "num_splits is 4 otherwise");
    desc.method = "fused";
    desc.m = 100;
    tap_ok(lap_problem_init(&problem, &builder, &desc, 4,
                            (unsigned)(LAP_CAN_PUT | LAP_CAN_ADDRESS)) == LAP_OK &&
               problem.desc.block_rows == 128,
           "blocks have at least 128 rows");
    desc.m = 4096;
    tap_ok(lap_problem_init(&problem, &builder, &desc, 2,
                            (unsigned)(LAP_CAN_PUT | LAP_CAN_ADDRESS)) == LAP_OK &&
               problem.desc.block_rows == 512,
           "a shard of 2048 rows comes in four blocks");
    tap_ok(lap_problem_init(&problem, &builder, &desc, 2, ~0u) == LAP_OK &&
               problem.desc.block_rows == 2048,
           "where GEMMs run side by side it comes whole");
    desc.kind = LAP_AG_GEMM;
    desc.method = "direct";
    desc.n = 2;
    tap_ok(lap_problem_init(&problem, &builder, &desc, 4, ~0u) == LAP_OK &&
               problem.desc.num_splits == 3,
           "direct has a GEMM for each peer, whatever n is");
}

static void test_op_check(void)
{
    lap_op_desc_t desc = good(LAP_AG_GEMM);
    const size_t rows[1] = {65};
    size_t bytes, nsignals;
    tap_success(lap_op_check(&desc, NULL, 1, 4, NULL), "a call is safe");
    tap_failure(lap_op_check(NULL, NULL, 1, 4, NULL), LAP_ERR_INVALID, "descs is NULL", NULL);
    tap_failure(lap_op_check(&desc, NULL, 0, 4, NULL), LAP_ERR_INVALID, "ncalls is 0", NULL);
    tap_failure(lap_op_check(&desc, NULL, 1, -2, NULL), LAP_ERR_INVALID, "nranks is -2", NULL);
    tap_failure(lap_op_check(&desc, rows, 1, 4, NULL), LAP_ERR_INVALID, "rows is 65", "m = 64",
                NULL);
    tap_failure(lap_op_check(&desc, NULL, 1, 4, "pigeon"), LAP_ERR_INVALID, "pigeon", NULL);
    tap_failure(lap_op_buffer_size(&desc, 4, NULL, &nsignals), LAP_ERR_INVALID, "bytes_p", NULL);
    tap_failure(lap_op_buffer_size(&desc, -1, &bytes, &nsignals), LAP_ERR_INVALID, "-1 ranks",
                NULL);
}

int main(void)
{
    test_sizes();
    test_types();
    test_default_types();
    test_epilogues();
    test_methods();
    test_shares();
    test_knobs();
    test_defaults();
    test_op_check();
    return tap_done();
}
