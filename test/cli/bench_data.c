/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How `lap bench` tells right results from wrong ones: what the library computes passes in every
 * type; one element just beyond its bound, a result that misses a rank's part, and one that was
 * never written do not.
 */
#include "../../cli/bench_data.c" /* NOLINT(bugprone-suspicious-include): no library holds it */

#include <stdio.h>

#include "tap.h"

static bool verify(const lap_bench_data_t *data)
{
    double worst;
    return lap_bench_data_verify(data, &worst);
}

/* Puts an element of d beyond its bound by no more than the next number of the type. */
static void move(lap_bench_data_t *data, size_t index)
{
    const size_t cols = data->d.cols;
    const double want = data->reference[index];
    const double norms = data->row_norms[index / cols] * data->column_norms[index % cols];
    const double least = want + 1.001 * bound_of(data, norms, want);
    const double beyond = least + 1.001 * tap_half_unit(data->d.dtype, least);
    const float value = nextafterf((float)beyond, INFINITY);
    void *at = (char *)data->d.data + index * lap_dtype_size(data->d.dtype);
    lap_from_float(data->d.dtype, &value, at, 1);
}

static void judge(lap_op_t *op, lap_bench_data_t *data, int rank, const char *what)
{
    lap_op_args_t args = LAP_OP_ARGS_INIT;
    args.m = 37;
    args.a = data->a;
    args.b = data->b;
    args.d = data->d;
    lap_bench_data_spoil(data);
    tap_ok(!verify(data), "%s: nothing written is wrong", what);
    tap_success(lap_op_run(op, &args), "%s: a call", what);
    tap_ok(verify(data), "%s: its result is right", what);
    move(data, data->d.rows * data->d.cols / 2);
    tap_ok(!verify(data), "%s: until one element is beyond its bound", what);
    if (rank == 0)
        memset(data->a.data, 0, data->a.rows * data->a.cols * lap_dtype_size(data->a.dtype));
    tap_success(lap_op_run(op, &args), "%s: a call without rank 0's part", what);
    tap_ok(!verify(data), "%s: whose result is wrong", what);
}

static void test_verdicts(lap_world_t *world, void *arg)
{
    lap_device_t *device = arg;
    lap_group_t *group = lap_world_group(world);
    for (int kind = LAP_AG_GEMM; kind <= LAP_GEMM_AR; kind++) {
        for (int dtype = LAP_FLOAT32; dtype <= LAP_BFLOAT16; dtype++) {
            const lap_bench_t bench = {.seed = 5, .dtype = (lap_dtype_t)dtype};
            const lap_bench_case_t it = {.kind = (lap_op_kind_t)kind, .m = 37, .n = 29, .k = 700};
            lap_op_desc_t desc = LAP_OP_DESC_INIT;
            lap_bench_data_t data = {0};
            lap_op_t *op = NULL;
            char what[64];
            desc.kind = it.kind;
            desc.dtype = bench.dtype;
            desc.m = it.m;
            desc.n = it.n;
            desc.k = it.k;
            snprintf(what, sizeof(what), "%s, %s", lap_op_kind_name(it.kind),
                     lap_dtype_name(bench.dtype));
            if (tap_success(lap_op_create(group, &desc, &op), "%s: an operator", what) &&
                tap_success(lap_bench_data_init(&data, &bench, &it, group, device), "%s: data",
                            what))
                judge(op, &data, lap_world_rank(world), what);
            lap_bench_data_clear(&data);
            lap_op_destroy(op);
        }
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
