/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How `lap bench` tells right results from wrong ones: what the library computes passes for every
 * operator, type, layout and epilogue; one element just beyond its bound, a result that misses a
 * rank's part, and one that was never written do not.
 */
#include "../../cli/bench_data.c"  /* NOLINT(bugprone-suspicious-include): no library holds it */
#include "../../cli/bench_shape.c" /* NOLINT(bugprone-suspicious-include) */
#include "../../cli/bench_truth.c" /* NOLINT(bugprone-suspicious-include) */

#include <stdio.h>

#include "tap.h"

enum { M = 37, N = 27, K = 700 };

static bool verify(const lap_bench_data_t *data)
{
    double worst;
    return lap_bench_data_verify(data, &worst);
}

/* Puts an element of a result beyond its bound by no more than the next number of the type. */
static void move(const lap_bench_data_t *data, const lap_tensor_t *tensor, expect_fn_t expect)
{
    const size_t index = tensor->rows * tensor->cols / 2;
    const expected_t want = expect(data, index / tensor->cols, index % tensor->cols);
    const double least = (want.value + 1.001 * want.bound) / (double)want.scale;
    const double beyond = least + 1.001 * tap_half_unit(tensor->dtype, least);
    const float value = nextafterf((float)beyond, INFINITY);
    void *at = (char *)tensor->data + index * lap_dtype_size(tensor->dtype);
    lap_from_float(tensor->dtype, &value, at, 1);
}

/* One call into spoilt results. */
static void call(lap_op_t *op, lap_op_t *gemm, lap_bench_data_t *data, const char *what)
{
    lap_op_args_t args = data->args;
    lap_bench_data_spoil(data);
    if (gemm) { /* each of the two has the scales of what it uses */
        args.wire_scale = 1;
        tap_success(lap_op_run(gemm, &args), "%s: a GEMM", what);
        args.wire_scale = data->args.wire_scale;
        args.a_scale = args.b_scale = args.d_scale = 1;
    }
    tap_success(lap_op_run(op, &args), "%s: a call", what);
}

/* Every result in turn is spoilt by one element. */
static void judge_elements(lap_op_t *op, lap_op_t *gemm, lap_bench_data_t *data, const char *what)
{
    const lap_epilogue_t epilogue = data->shape.epilogue;
    const struct {
        const char *name;
        bool there;
        const lap_tensor_t *tensor;
        expect_fn_t expect;
    } results[] = {
        {"d", true, &data->args.d, expect_d},
        {"y", data->shape.moved > 0, &data->args.y, expect_y},
        {"aux", epilogue & LAP_EPILOGUE_GELU, &data->args.aux, expect_aux},
        {"bias_grad", epilogue & LAP_EPILOGUE_BIAS_GRAD, &data->args.bias_grad, expect_bias_grad},
    };
    for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++) {
        if (!results[i].there)
            continue;
        call(op, gemm, data, what);
        tap_ok(verify(data), "%s: the results are right", what);
        move(data, results[i].tensor, results[i].expect);
        tap_ok(!verify(data), "%s: until an element of %s is beyond its bound", what,
               results[i].name);
    }
}

static void clear(const lap_tensor_t *tensor)
{
    memset(tensor->data, 0, tensor->rows * tensor->cols * lap_dtype_size(tensor->dtype));
}

static void judge(lap_op_t *op, lap_op_t *gemm, lap_bench_data_t *data, const char *what)
{
    lap_bench_data_spoil(data);
    tap_ok(!verify(data), "%s: nothing written is wrong", what);
    judge_elements(op, gemm, data, what);
    const bool moves = data->shape.moved > 0, first = data->shape.rank == 0;
    if (first)
        clear(moves ? &data->args.x : &data->args.a);
    call(op, gemm, data, what);
    tap_ok(!verify(data), "%s: without rank 0's part the result is wrong", what);
}

static void test_case(lap_group_t *group, lap_device_t *device, const lap_bench_t *bench,
                      lap_op_kind_t kind)
{
    const lap_bench_case_t it = {.kind = kind, .m = M, .n = N, .k = K};
    lap_bench_data_t data = {0};
    lap_op_t *op = NULL, *gemm = NULL;
    char what[160];
    snprintf(what, sizeof(what), "%s, %s, wire %s, epilogue %#x", lap_op_kind_name(kind),
             lap_dtype_name(bench->desc.dtype),
             bench->desc.wire_dtype == LAP_DTYPE_DEFAULT ? "-"
                                                         : lap_dtype_name(bench->desc.wire_dtype),
             bench->desc.epilogue);
    lap_op_desc_t desc = lap_bench_desc(bench, &it, 0);
    const lap_op_desc_t gemm_desc = lap_bench_gemm_desc(bench, &it);
    desc.method = NULL;
    bool there = tap_success(lap_op_create(group, &desc, &op), "%s: an operator", what);
    if (kind == LAP_EXTERNAL_AG)
        there = tap_success(lap_op_create(group, &gemm_desc, &gemm), "%s: a GEMM", what) && there;
    if (there &&
        tap_success(lap_bench_data_init(&data, bench, &it, group, device), "%s: data", what))
        judge(op, gemm, &data, what);
    lap_bench_data_clear(&data);
    lap_op_destroy(op);
    lap_op_destroy(gemm);
}

static void test_verdicts(lap_world_t *world, void *arg)
{
    static const lap_op_kind_t kinds[] = {LAP_AG_GEMM, LAP_GEMM_RS, LAP_GEMM_AR,
                                          LAP_BULK_AG, LAP_BULK_RS, LAP_EXTERNAL_AG};
    static const lap_epilogue_t backward = LAP_EPILOGUE_DGELU | LAP_EPILOGUE_BIAS_GRAD;
    static const lap_epilogue_t forward = LAP_EPILOGUE_BIAS | LAP_EPILOGUE_GELU;
    const lap_bench_t plain = {.seed = 5, .desc = LAP_OP_DESC_INIT};
    lap_group_t *group = lap_world_group(world);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const bool ag = kinds[i] == LAP_AG_GEMM, wgrad = kinds[i] == LAP_BULK_RS;
        lap_bench_t bench = plain;
        for (int dtype = LAP_FLOAT32; dtype <= LAP_FLOAT8_E5M2; dtype++) {
            bench.desc.dtype = (lap_dtype_t)dtype;
            test_case(group, arg, &bench, kinds[i]);
        }
        bench.desc.wire_dtype = ag ? LAP_DTYPE_DEFAULT : LAP_FLOAT8_E4M3;
        bench.desc.epilogue = wgrad ? LAP_EPILOGUE_BIAS_GRAD : backward;
        test_case(group, arg, &bench, kinds[i]);
        bench = plain;
        bench.desc.dtype = LAP_BFLOAT16;
        bench.desc.out_dtype = kinds[i] == LAP_GEMM_AR ? LAP_FLOAT32 : LAP_FLOAT8_E5M2;
        bench.desc.epilogue = wgrad ? LAP_EPILOGUE_NONE : forward;
        bench.desc.layout = LAP_DGRAD;
        test_case(group, arg, &bench, kinds[i]);
    }
}

int main(void)
{
    const lap_device_ops_t *ops;
    lap_device_t *device;
    if (lap_device_find("cpu", &ops) == LAP_OK &&
        ops->open(&(lap_device_options_t){.threads = 1}, &device) == LAP_OK) {
        tap_ranks(3, NULL, test_verdicts, device);
        ops->close(device);
    }
    return tap_done();
}
