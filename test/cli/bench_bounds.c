/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bounds of `lap bench` against others that are computed here: from products in double, and from
 * how far apart the numbers of a type are. A right result is never refused; one that is off by two
 * units of its last place is, where nothing but that one rounding happens; and no bound is wider
 * than twice what the roundings of the types can add up to and what sums in fp32 can lose.
 */
#include "../../cli/bench_data.c"  /* NOLINT(bugprone-suspicious-include): no library holds it */
#include "../../cli/bench_shape.c" /* NOLINT(bugprone-suspicious-include) */
#include "../../cli/bench_truth.c" /* NOLINT(bugprone-suspicious-include) */

#include <float.h>
#include <stdio.h>

#include "tap.h"

#define U 0x1p-24

enum { M = 12, N = 8 };

/* How far rounding moves a number: a part of it at most, or so much if it is small. */
static double unit_of(lap_dtype_t dtype)
{
    return dtype == LAP_FLOAT32 ? U : tap_half_unit(dtype, 1);
}

static double least_of(lap_dtype_t dtype)
{
    return dtype == LAP_FLOAT32 ? 0 : tap_half_unit(dtype, DBL_MIN);
}

/* An element of the product of this rank's a and b, in double, and the product of their norms. */
static double product(const lap_bench_data_t *data, size_t row, size_t col, double *norms_p)
{
    const lap_tensor_t *a = &data->args.a, *b = &data->args.b;
    double sum = 0, rows = 0, cols = 0;
    for (size_t i = 0; i < a->cols; i++) {
        const double x = element(a, row, i) * (double)data->args.a_scale;
        const double y = element(b, col, i) * (double)data->args.b_scale;
        sum += x * y;
        rows += x * x;
        cols += y * y;
    }
    *norms_p = sqrt(rows * cols);
    return sum;
}

/* ---- one rank ---- */

/* What is stored, `steps` numbers of the type farther from zero; false: there is none such. */
static bool step(const lap_tensor_t *d, size_t index, int steps)
{
    unsigned char *at = (unsigned char *)d->data + index * lap_dtype_size(d->dtype);
    const size_t bytes = lap_dtype_size(d->dtype);
    uint32_t bits = 0;
    float before, after;
    memcpy(&bits, at, bytes);
    lap_to_float(d->dtype, at, &before, 1);
    const uint32_t size = bits & ((1u << (8 * bytes - 1)) - 1);
    if (steps < 0 && size < (uint32_t)-steps)
        return false;
    bits += (uint32_t)steps;
    memcpy(at, &bits, bytes);
    lap_to_float(d->dtype, at, &after, 1);
    return isfinite(after) && (before < 0) == (after < 0);
}

/* How many elements pass though they are two numbers of the type off, to either side. */
static int count_passing(lap_bench_data_t *data)
{
    const lap_tensor_t *d = &data->args.d;
    const size_t bytes = lap_dtype_size(d->dtype);
    int passing = 0, tried = 0;
    for (size_t i = 0; i < d->rows * d->cols; i++)
        for (int steps = -2; steps <= 2; steps += 4) {
            char saved[sizeof(float)], *at = (char *)d->data + i * bytes;
            double worst;
            memcpy(saved, at, bytes);
            if (step(d, i, steps)) {
                passing += lap_bench_data_verify(data, &worst);
                tried++;
            }
            memcpy(at, saved, bytes);
        }
    return tried < (int)(d->rows * d->cols) ? -1 : passing;
}

/* In float32 sums have more roundings: the exact value and this part of all that there may be. */
static bool passes_at(lap_bench_data_t *data, double part)
{
    const lap_tensor_t *d = &data->args.d;
    const double n = (double)data->args.a.cols + 2 * data->shape.nranks + 8;
    bool passes = true;
    for (size_t i = 0; i < d->rows * d->cols; i++) {
        float *at = (float *)d->data + i, saved = *at;
        double norms, worst;
        const double x = product(data, i / d->cols, i % d->cols, &norms);
        *at = (float)(x + part * (n * U * norms + U * fabs(x)));
        passes = lap_bench_data_verify(data, &worst);
        *at = saved;
        if (passes != (part < 1))
            break;
    }
    return passes;
}

/* ---- several ranks ---- */

/* How many bounds are less than half a unit of the result, or too wide. */
static int count_odd(const lap_bench_data_t *data)
{
    const lap_bench_shape_t *shape = &data->shape;
    const lap_tensor_t *d = &data->args.d;
    const lap_dtype_t out = d->dtype, wire = shape->types.wire;
    const size_t depth = shape->sums ? shape->depth.total : shape->depth.count;
    const double n = (double)depth + 2 * shape->nranks + 8, scale = (double)data->args.d_scale;
    int odd = 0;
    for (size_t i = 0; i < d->rows * d->cols; i++) {
        const expected_t want = expect_d(data, i / d->cols, i % d->cols);
        const double x = fabs(want.value), size = (double)data->sizes[i];
        const double lost = n * U * data->row_norms[i / d->cols] * data->column_norms[i % d->cols];
        double most = lost + unit_of(out) * x + least_of(out) * scale;
        if (shape->sums && shape->nranks > 1) {
            most += unit_of(wire) * size;
            for (int r = 0; r < shape->nranks; r++)
                most += least_of(wire) * (double)lap_bench_wire_scale(shape, r);
            if (shape->kind == LAP_GEMM_AR)
                most += unit_of(out) * x + least_of(out);
        }
        const double least =
            out == LAP_FLOAT32 ? U * x / 2 : scale * tap_half_unit(out, fmax(x / scale, DBL_MIN));
        /* Roundings of what was rounded are a third more at most: of FP8, which loses an eighth. */
        odd += want.bound < least || want.bound > 1.34 * most;
    }
    return odd;
}

/* The same of what is summed beside a GEMM, P terms of at most a half; and of a bias gradient. */
static int count_odd_others(const lap_bench_data_t *data)
{
    const lap_tensor_t *y = &data->args.y, *grad = &data->args.bias_grad, *d = &data->args.d;
    const int ranks = data->shape.nranks;
    int odd = 0;
    for (size_t i = 0; data->shape.moved && i < y->rows * y->cols; i++) {
        const expected_t want = expect_y(data, i / y->cols, i % y->cols);
        const double x = fabs(want.value), lost = (2 * ranks + 8) * U * 0.5 * ranks;
        odd += want.bound < unit_of(y->dtype) * x / 2 ||
               want.bound > 1.34 * (lost + unit_of(y->dtype) * x + least_of(y->dtype));
    }
    for (size_t col = 0; data->shape.epilogue & LAP_EPILOGUE_BIAS_GRAD && col < grad->cols; col++) {
        const expected_t want = expect_bias_grad(data, 0, col);
        double sum = 0, size = 0;
        for (size_t row = 0; row < d->rows; row++) {
            sum += element(d, row, col) * (double)data->args.d_scale;
            size += fabs(element(d, row, col)) * (double)data->args.d_scale;
        }
        const double unit = unit_of(grad->dtype) * fabs(sum);
        odd += fabs(want.value - sum) > 1e-12 * size || want.bound < unit / 2 ||
               want.bound > 1.34 * (U * size + unit + least_of(grad->dtype));
    }
    return odd;
}

/* ---- cases ---- */

static bool begin(lap_group_t *group, lap_device_t *device, const lap_bench_t *bench,
                  const lap_bench_case_t *it, lap_bench_data_t *data, const char *what)
{
    lap_op_t *op = NULL;
    lap_op_desc_t desc = lap_bench_desc(bench, it, 0);
    desc.method = "serial";
    const bool made =
        tap_success(lap_op_create(group, &desc, &op), "%s: an operator", what) &&
        tap_success(lap_bench_data_init(data, bench, it, group, device), "%s: data", what) &&
        tap_success(lap_op_run(op, &data->args), "%s: a call", what);
    lap_op_destroy(op);
    return made;
}

static void test_type(lap_group_t *group, lap_device_t *device, lap_op_kind_t kind,
                      lap_dtype_t dtype, lap_dtype_t out)
{
    lap_bench_t bench = {.seed = 7, .desc = LAP_OP_DESC_INIT};
    bench.desc.dtype = dtype;
    bench.desc.out_dtype = out;
    const size_t depths[] = {1, 40};
    for (size_t i = 0; i < 2; i++) {
        const lap_bench_case_t it = {
            .kind = kind, .m = M, .n = N, .k = depths[i] * (size_t)lap_group_size(group)};
        lap_bench_data_t data = {0};
        double worst;
        char what[128];
        snprintf(what, sizeof(what), "%s, %s to %s, k = %zu, %d ranks", lap_op_kind_name(kind),
                 lap_dtype_name(dtype), lap_dtype_name(out), it.k, lap_group_size(group));
        if (begin(group, device, &bench, &it, &data, what)) {
            const int odd = count_odd(&data);
            tap_ok(lap_bench_data_verify(&data, &worst), "%s: what was computed is right", what);
            tap_ok(odd == 0, "%s: %d bounds are none of rounding and summing", what, odd);
            if (lap_group_size(group) == 1 && out == LAP_FLOAT32)
                tap_ok(passes_at(&data, 0.75) && !passes_at(&data, 1.25),
                       "%s: three quarters of what a sum may lose pass, five do not", what);
            if (lap_group_size(group) == 1 && out != LAP_FLOAT32 && it.k == 1) {
                const int passing = count_passing(&data);
                tap_ok(passing == 0, "%s: %d elements that are 2 units off pass", what, passing);
            }
        }
        lap_bench_data_clear(&data);
    }
}

static void test_others(lap_group_t *group, lap_device_t *device, lap_dtype_t dtype)
{
    static const lap_op_kind_t kinds[] = {LAP_BULK_RS, LAP_AG_GEMM};
    for (size_t i = 0; i < 2; i++) {
        lap_bench_t bench = {.seed = 8, .desc = LAP_OP_DESC_INIT};
        bench.desc.dtype = dtype;
        bench.desc.epilogue = i == 1 ? LAP_EPILOGUE_BIAS_GRAD : LAP_EPILOGUE_NONE;
        const lap_bench_case_t it = {.kind = kinds[i], .m = M, .n = N, .k = 24};
        lap_bench_data_t data = {0};
        double worst;
        char what[128];
        snprintf(what, sizeof(what), "%s of %s, %d ranks", i == 1 ? "bias_grad" : "y",
                 lap_dtype_name(dtype), lap_group_size(group));
        if (begin(group, device, &bench, &it, &data, what)) {
            const int odd = count_odd_others(&data);
            tap_ok(lap_bench_data_verify(&data, &worst) && odd == 0,
                   "%s: %d bounds are none of rounding and summing", what, odd);
        }
        lap_bench_data_clear(&data);
    }
}

static void test_bounds(lap_world_t *world, void *arg)
{
    static const lap_op_kind_t kinds[] = {LAP_AG_GEMM, LAP_GEMM_RS, LAP_GEMM_AR};
    static const lap_dtype_t dtypes[] = {LAP_FLOAT32, LAP_FLOAT16, LAP_BFLOAT16, LAP_FLOAT8_E4M3,
                                         LAP_FLOAT8_E5M2};
    for (size_t a = 0; a < 5; a++)
        test_others(lap_world_group(world), arg, dtypes[a]);
    for (size_t k = 0; k < 3; k++)
        for (size_t a = 0; a < 5; a++)
            for (size_t out = 0; out < 5; out++)
                if (kinds[k] != LAP_GEMM_AR || !lap_dtype_is_fp8(dtypes[out]))
                    test_type(lap_world_group(world), arg, kinds[k], dtypes[a], dtypes[out]);
}

int main(void)
{
    const lap_device_ops_t *ops;
    lap_device_t *device;
    if (lap_device_find("cpu", &ops) == LAP_OK &&
        ops->open(&(lap_device_options_t){.threads = 1}, &device) == LAP_OK) {
        tap_ranks(1, NULL, test_bounds, device);
        tap_ranks(2, NULL, test_bounds, device);
        ops->close(device);
    }
    return tap_done();
}
