/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the results of `lap bench` should be, and how far from it a correct one may be. The
 * reference is computed from the same elements, widened to float, by the device `ref`, which
 * accumulates in double.
 *
 * An element of the product is a sum of k products. Whatever the order, and with the P additions of
 * a reduce-scatter and the few multiplications by scales, no term passes through more than
 * k + P + 8 roundings in fp32, and P in the reference, so their error is at most gamma
 * sum_i |a_i b_i| with gamma = n u / (1 - n u), n = k + 2 P + 8 and u = 2^-24. By Cauchy and
 * Schwarz the sum is at most |a| |b|, the norms of the row of a and the row of b.
 *
 * Rounding to a type costs half a unit in the last place: at most v of the number that is rounded
 * (2^-24, 2^-11, 2^-8, 2^-4 and 2^-3), or half the smallest number that there is, times the scale.
 * Where P > 1 ranks have partial results, each is rounded to the wire's type; how large they are is
 * known from the reference, which is made of them too. GEMM+AR rounds the sum before the epilogue.
 * What gelu makes of an error follows from its slope, which is below 1.13; computing it in fp32
 * costs at most 7 u of the result and 2 u of 1, its slope 12 u (see test/device/finish.c). The
 * result is rounded once more at the end.
 *
 * What is gathered must be exact. What is summed during a GEMM has P terms. A bias gradient is the
 * sum of the elements of a matrix that is there, so that its bound needs no more than u and v.
 *
 * No correct result can fail, and a result that misses part of the sum does not pass.
 */
#include <math.h>

#include "bench.h"
#include "core/convert.h"
#include "core/status.h"
#include "util/alloc.h"

#define KNOWN_MOST 4e9 /* multiply-adds that a rank may take to know what is right */
#define UNIT 0x1p-24   /* of fp32 */

/* ---- the reference ---- */

/* d = a b^T; all three are float32, d is packed. */
static lap_status_t run_gemm(const lap_device_ops_t *ops, lap_device_t *device,
                             const lap_tensor_t *a, const lap_tensor_t *b, float *d)
{
    lap_stream_t *stream;
    LAP_TRY(ops->stream_create(device, false, &stream));
    lap_gemm_block_t block = {.a = a->data,
                              .d = d,
                              .rows = a->rows,
                              .a_stride = a->stride * sizeof(float),
                              .d_stride = b->rows * sizeof(float)};
    lap_gemm_t gemm = {.a_dtype = a->dtype,
                       .b_dtype = a->dtype,
                       .d_dtype = a->dtype,
                       .scale = 1.0f,
                       .n = b->rows,
                       .k = a->cols,
                       .b = b->data,
                       .b_stride = b->stride * sizeof(float),
                       .blocks = &block,
                       .nblocks = 1};
    lap_status_t status = ops->gemm(stream, &gemm);
    if (status == LAP_OK)
        status = ops->stream_synchronize(stream);
    ops->stream_destroy(stream);
    return status;
}

static double *norms_of_rows(const lap_tensor_t *matrix)
{
    double *norms = lap_alloc(matrix->rows, sizeof(double));
    for (size_t i = 0; norms && i < matrix->rows; i++) {
        const float *row = (const float *)matrix->data + i * matrix->stride;
        double sum = 0;
        for (size_t j = 0; j < matrix->cols; j++)
            sum += (double)row[j] * row[j];
        norms[i] = sqrt(sum);
    }
    return norms;
}

static lap_tensor_t columns_of(const lap_tensor_t *matrix, size_t begin, size_t count)
{
    lap_tensor_t part = *matrix;
    part.data = (float *)matrix->data + begin;
    part.cols = count;
    return part;
}

/* Adds up the partial results of the ranks, and how large they are; one rank has all. */
static lap_status_t add_partials(lap_bench_data_t *data, const lap_device_ops_t *ops,
                                 lap_device_t *device, const lap_tensor_t *a, const lap_tensor_t *b,
                                 float *partial)
{
    const int ranks = data->shape.sums ? data->shape.nranks : 1;
    for (int r = 0; r < ranks; r++) {
        size_t begin, count = lap_shard_features(a->cols, ranks, r, &begin);
        const lap_tensor_t own_a = columns_of(a, begin, count), own_b = columns_of(b, begin, count);
        LAP_TRY(run_gemm(ops, device, &own_a, &own_b, partial));
        for (size_t i = 0; i < a->rows * b->rows; i++) {
            data->product[i] += partial[i];
            data->sizes[i] += fabsf(partial[i]);
        }
    }
    return LAP_OK;
}

/* Fills in product, sizes and norms: this rank's output is a b^T. */
static lap_status_t multiply(lap_bench_data_t *data, const lap_tensor_t *a, const lap_tensor_t *b)
{
    const size_t count = a->rows * b->rows;
    const lap_device_ops_t *ref;
    lap_device_t *device;
    float *partial = lap_alloc(count, sizeof(float));
    data->product = lap_alloc(count, sizeof(float));
    data->sizes = lap_alloc(count, sizeof(float));
    data->row_norms = norms_of_rows(a);
    data->column_norms = norms_of_rows(b);
    lap_status_t status = LAP_OK;
    if (!partial || !data->product || !data->sizes || !data->row_norms || !data->column_norms)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for a reference of %zu x %zu", a->rows,
                           b->rows);
    if (status == LAP_OK)
        status = lap_device_find("ref", &ref);
    if (status == LAP_OK)
        status = ref->open(&(lap_device_options_t){.threads = 0}, &device);
    if (status == LAP_OK) {
        status = add_partials(data, ref, device, a, b, partial);
        ref->close(device);
    }
    lap_free(partial);
    return status;
}

/* The depth of the sums that d holds. */
static lap_bench_extent_t whole_depth(const lap_bench_shape_t *shape)
{
    const lap_bench_extent_t depth = shape->depth, all = {depth.total, 0, depth.total};
    return shape->sums ? all : depth;
}

/*
 * Hosts know every row of d. What a GPU multiplies in a moment takes them minutes: then some rows,
 * an odd number apart, so that they lie differently in their blocks.
 */
static size_t choose_step(const lap_bench_data_t *data)
{
    const lap_bench_shape_t *shape = &data->shape;
    const double all =
        (double)shape->d_rows.count * (double)shape->cols.count * (double)whole_depth(shape).count;
    if (!data->ops->transport || all <= KNOWN_MOST)
        return 1;
    return (size_t)(all / KNOWN_MOST) | 1;
}

static lap_status_t know_product(lap_bench_data_t *data)
{
    const lap_bench_shape_t *shape = &data->shape;
    const lap_bench_extent_t depth = whole_depth(shape);
    const size_t columns = shape->cols.count, k = depth.count, step = choose_step(data);
    const size_t rows = (shape->d_rows.count + step - 1) / step;
    data->row_step = step;
    float *whole = lap_alloc((rows + columns) * k, sizeof(float));
    if (!whole)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a reference over %zu rows of %zu",
                         rows + columns, k);
    const lap_tensor_t a = lap_tensor(whole, LAP_FLOAT32, rows, k);
    const lap_tensor_t b = lap_tensor(whole + rows * k, LAP_FLOAT32, columns, k);
    for (size_t i = 0; i < rows; i++) {
        const lap_bench_extent_t one = {shape->d_rows.total, shape->d_rows.begin + i * step, 1};
        const lap_bench_part_t part = lap_bench_a(shape, one, depth);
        const lap_tensor_t row = lap_tensor(whole + i * k, LAP_FLOAT32, 1, k);
        lap_bench_generate(data, &part, &row);
    }
    lap_bench_part_t part = lap_bench_b(shape, shape->cols, depth);
    lap_bench_generate(data, &part, &b);
    lap_status_t status = multiply(data, &a, &b);
    lap_free(whole);
    return status;
}

/* What y should be: the rows of all ranks, or the sum of what they have. */
static lap_status_t know_moved(lap_bench_data_t *data)
{
    const lap_bench_shape_t *shape = &data->shape;
    const size_t count = shape->y_rows.count * shape->moved;
    const int terms = lap_kind_sums_x(shape->kind) ? shape->nranks : 1;
    if (!shape->moved)
        return LAP_OK;
    data->moved = lap_alloc(count, sizeof(float));
    float *term = lap_alloc(count, sizeof(float));
    if (!data->moved || !term) {
        lap_free(term);
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a reference of %zu x %zu",
                         shape->y_rows.count, shape->moved);
    }
    const lap_tensor_t out = lap_tensor(term, LAP_FLOAT32, shape->y_rows.count, shape->moved);
    for (int r = 0; r < terms; r++) {
        const lap_bench_part_t part = lap_bench_x(shape, shape->y_rows, r);
        lap_bench_generate(data, &part, &out);
        for (size_t i = 0; i < count; i++)
            data->moved[i] += term[i];
    }
    lap_free(term);
    return LAP_OK;
}

lap_status_t lap_bench_truth_init(lap_bench_data_t *data)
{
    LAP_TRY(know_product(data));
    return know_moved(data);
}

/* ---- bounds ---- */

/* What an element should be, how far from it a correct one may be, and its scale. */
typedef struct expected {
    double value, bound;
    float scale;
} expected_t;

/* What rounding to a type costs: relative to the number that is rounded, and at least. */
typedef struct rounding {
    double unit, least;
} rounding_t;

static const rounding_t roundings[] = {[LAP_FLOAT32] = {UNIT, 0},
                                       [LAP_FLOAT16] = {0x1p-11, 0x1p-25},
                                       [LAP_BFLOAT16] = {0x1p-8, 0x1p-134},
                                       [LAP_FLOAT8_E4M3] = {0x1p-4, 0x1p-10},
                                       [LAP_FLOAT8_E5M2] = {0x1p-3, 0x1p-17}};

static expected_t rounded(expected_t x, lap_dtype_t dtype, float scale)
{
    const rounding_t r = roundings[dtype];
    x.bound += r.unit * (fabs(x.value) + x.bound) + r.least * (double)scale;
    x.scale = scale;
    return x;
}

static double gamma_of(size_t terms, int nranks)
{
    const double n = ((double)terms + 2 * nranks + 8) * UNIT;
    return n < 1 ? n / (1 - n) : INFINITY;
}

static double inner(double x)
{
    return sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
}

static expected_t gelu(expected_t x)
{
    const double value = 0.5 * x.value * (1 + tanh(inner(x.value)));
    x.bound = 1.13 * x.bound + UNIT * (7 * fabs(value) + 2);
    x.value = value;
    return x;
}

static expected_t dgelu(expected_t x, double aux)
{
    const double h = tanh(inner(aux)), rise = sqrt(2 / M_PI) * (1 + 3 * 0.044715 * aux * aux);
    const double slope = 0.5 * (1 + h) + 0.5 * aux * (1 - h * h) * rise;
    x.bound = x.bound * fabs(slope) + 13 * UNIT * (fabs(x.value) + x.bound);
    x.value *= slope;
    return x;
}

static double element(const lap_tensor_t *tensor, size_t row, size_t col)
{
    float value;
    lap_to_float(tensor->dtype,
                 (const char *)tensor->data +
                     (row * tensor->stride + col) * lap_dtype_size(tensor->dtype),
                 &value, 1);
    return (double)value;
}

/* The sum over ranks, rounded as far as it is so that it can travel. */
static expected_t expect_product(const lap_bench_data_t *data, size_t row, size_t col)
{
    const lap_bench_shape_t *shape = &data->shape;
    const double gamma = gamma_of(whole_depth(shape).count, shape->nranks);
    const size_t known = row / data->row_step;
    const double norms = data->row_norms[known] * data->column_norms[col];
    const size_t at = known * shape->cols.count + col;
    expected_t x = {(double)data->product[at], gamma * norms, 1};
    if (!shape->sums || shape->nranks == 1)
        return x;
    const rounding_t wire = roundings[shape->types.wire];
    x.bound += wire.unit * ((double)data->sizes[at] + gamma * norms);
    for (int r = 0; r < shape->nranks; r++)
        x.bound += wire.least * (double)lap_bench_wire_scale(shape, r);
    return shape->kind == LAP_GEMM_AR ? rounded(x, shape->types.out, 1) : x;
}

/* What gelu is applied to. */
static expected_t expect_before(const lap_bench_data_t *data, size_t row, size_t col)
{
    expected_t x = expect_product(data, row, col);
    if (data->shape.epilogue & LAP_EPILOGUE_BIAS) {
        x.value += element(&data->args.bias, 0, col);
        x.bound += UNIT * (fabs(x.value) + x.bound);
    }
    return x;
}

static expected_t expect_aux(const lap_bench_data_t *data, size_t row, size_t col)
{
    return rounded(expect_before(data, row, col), data->args.aux.dtype, 1);
}

static expected_t expect_d(const lap_bench_data_t *data, size_t row, size_t col)
{
    expected_t x = expect_before(data, row, col);
    if (data->shape.epilogue & LAP_EPILOGUE_GELU)
        x = gelu(x);
    if (data->shape.epilogue & LAP_EPILOGUE_DGELU)
        x = dgelu(x, element(&data->args.aux, row, col));
    return rounded(x, data->args.d.dtype, data->args.d_scale);
}

/* The sum of a column of d as it is; of a where that is the gradient. */
static expected_t expect_bias_grad(const lap_bench_data_t *data, size_t row, size_t col)
{
    const bool wgrad = data->shape.layout == LAP_WGRAD;
    const lap_tensor_t *of = wgrad ? &data->args.a : &data->args.d;
    const double scale = (double)(wgrad ? data->args.a_scale : data->args.d_scale);
    expected_t x = {0, 0, 1};
    for (size_t i = row; i < of->rows; i++) { /* from 0 on: it has one row */
        const double value = scale * element(of, i, col);
        x.value += value;
        x.bound += UNIT * fabs(value);
    }
    return rounded(x, data->args.bias_grad.dtype, 1);
}

static expected_t expect_y(const lap_bench_data_t *data, size_t row, size_t col)
{
    const lap_bench_shape_t *shape = &data->shape;
    expected_t x = {(double)data->moved[row * shape->moved + col], 0, 1};
    if (lap_kind_sums_x(shape->kind)) {
        x.bound = gamma_of(0, shape->nranks) * 0.5 * shape->nranks; /* P terms of at most a half */
        return rounded(x, shape->types.y, 1);
    }
    int owner = 0;
    for (size_t end = 0;; owner++) { /* some rank has the row */
        end += lap_shard(shape->y_rows.total, shape->nranks, owner, NULL);
        if (row < end)
            break;
    }
    if (lap_dtype_is_fp8(shape->types.y))
        x.scale = data->args.scales[owner]; /* as the call returned it */
    return x;
}

/* ---- the verdict ---- */

#define CHUNK 256u

typedef expected_t (*expect_fn_t)(const lap_bench_data_t *data, size_t row, size_t col);

/* Notes an element: what is not a number is the worst, and stays so. */
static void note(lap_bench_verdict_t *verdict, double error, double bound)
{
    const double ratio = error == bound ? bound > 0 : error / bound; /* 0 / 0 is no error */
    if (isnan(verdict->ratio) || ratio <= verdict->ratio)
        return;
    *verdict = (lap_bench_verdict_t){ratio, error, bound};
}

/* Compares a row of a packed tensor. Raises *worst. */
static void compare_row(const lap_bench_data_t *data, const lap_tensor_t *got, size_t row,
                        expect_fn_t expect, lap_bench_verdict_t *verdict, double *worst)
{
    float room[CHUNK];
    const float *values = NULL;
    for (size_t col = 0; col < got->cols; col++) {
        if (col % CHUNK == 0) {
            const size_t left = got->cols - col, at = row * got->cols + col;
            values =
                lap_as_float(got->dtype, (const char *)got->data + at * lap_dtype_size(got->dtype),
                             room, left < CHUNK ? left : CHUNK);
        }
        const expected_t want = expect(data, row, col);
        const double value = (double)values[col % CHUNK] * (double)want.scale;
        const double error = fabs(value - want.value);
        note(verdict, error, want.bound);
        /* Written so that what is not a number stays the worst. */
        if (!isnan(*worst) && !(error <= *worst))
            *worst = error;
    }
}

/* Of one row in `step`. */
static void compare(const lap_bench_data_t *data, const lap_tensor_t *got, size_t step,
                    expect_fn_t expect, lap_bench_verdict_t *verdict, double *worst)
{
    for (size_t row = 0; row < got->rows; row += step)
        compare_row(data, got, row, expect, verdict, worst);
}

lap_bench_verdict_t lap_bench_data_judge(const lap_bench_data_t *data, double *max_err_p)
{
    const lap_op_args_t *args = &data->args;
    lap_bench_verdict_t verdict = {-1, 0, 0}; /* before the first element */
    double worst = 0;
    compare(data, &args->d, data->row_step, expect_d, &verdict, &worst);
    if (data->shape.epilogue & LAP_EPILOGUE_GELU)
        compare(data, &args->aux, data->row_step, expect_aux, &verdict, &worst);
    if (data->shape.epilogue & LAP_EPILOGUE_BIAS_GRAD)
        compare(data, &args->bias_grad, 1, expect_bias_grad, &verdict, &worst);
    if (data->shape.moved)
        compare(data, &args->y, 1, expect_y, &verdict, &worst);
    *max_err_p = worst;
    return verdict;
}

bool lap_bench_data_verify(const lap_bench_data_t *data, double *max_err_p)
{
    return lap_bench_data_judge(data, max_err_p).ratio <= 1;
}
