/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The matrices of `lap bench` and the truth about their product.
 *
 * An element of the random matrices depends on the seed, the matrix, its row and its column only,
 * so that every rank can make any part of them. It is rounded to the type, and so exact. The
 * reference is computed from the same elements, widened to float, by the device `ref`, which
 * accumulates in double.
 *
 * How far a correct result may be from it: an element of the product is a sum of k products.
 * Whatever the order, and with the P additions of a reduce-scatter, no term passes through more
 * than k + P roundings in fp32, so their error is at most gamma sum_i |a_i b_i| with gamma =
 * n u / (1 - n u), n = k + P + 1 and u = 2^-24; the last rounding is that of the reference to
 * float. By Cauchy and Schwarz the sum is at most |a| |b|, the norms of the row of a and the row of
 * b.
 *
 * A 16-bit type adds its own roundings, each of half a unit in the last place: at most v of the
 * number that is rounded (2^-11 for float16, 2^-8 for bfloat16), or half the smallest number that
 * there is. The sum is rounded once, and where P > 1 ranks have partial results, each of these
 * before; the sizes of the partial results add up to no more than (1 + gamma) |a| |b|.
 *
 * No correct result can fail, and a result that misses part of the sum does not pass.
 */
#include <math.h>
#include <string.h>

#include "bench.h"
#include "core/convert.h"
#include "core/status.h"
#include "util/alloc.h"

enum { MATRIX_A = 0, MATRIX_B = 1 };

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* A part [rows, cols] of a random matrix that is `width` columns wide; uniform in [-0.5, 0.5). */
typedef struct part {
    uint64_t seed;
    int matrix;
    size_t row, column; /* where the part begins */
    size_t width;
} part_t;

/* The columns of a row that are made at once. */
#define CHUNK 256u

/* Writes the part, rounded to `dtype`, to `out`, which is of that type or float32. */
static void generate(const part_t *part, lap_dtype_t dtype, const lap_tensor_t *out)
{
    const uint64_t key = mix(2 * part->seed + (uint64_t)part->matrix + 0x9e3779b97f4a7c15u);
    const size_t element = lap_dtype_size(out->dtype);
    float values[CHUNK];
    uint16_t narrow[CHUNK];
    for (size_t row = 0; row < out->rows; row++) {
        for (size_t at = 0; at < out->cols; at += CHUNK) {
            const size_t count = out->cols - at < CHUNK ? out->cols - at : CHUNK;
            const uint64_t index = (part->row + row) * part->width + part->column + at;
            for (size_t i = 0; i < count; i++)
                values[i] =
                    (float)(mix(key + (index + i) * 0x9e3779b97f4a7c15u) >> 40) * 0x1p-24f - 0.5f;
            void *dst = (char *)out->data + (row * out->stride + at) * element;
            if (out->dtype == dtype) {
                lap_from_float(dtype, values, dst, count);
            } else {
                lap_from_float(dtype, values, narrow, count);
                lap_to_float(dtype, narrow, dst, count);
            }
        }
    }
}

/* ---- the truth ---- */

/* d = a b^T; all three are float32 and packed. */
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

/* Fills in reference and norms: this rank's output is a b^T. */
static lap_status_t multiply(lap_bench_data_t *data, const lap_tensor_t *a, const lap_tensor_t *b)
{
    const lap_device_ops_t *ref;
    lap_device_t *device;
    data->reference = lap_alloc(a->rows * b->rows, sizeof(float));
    data->row_norms = norms_of_rows(a);
    data->column_norms = norms_of_rows(b);
    if (!data->reference || !data->row_norms || !data->column_norms)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a reference of %zu x %zu", a->rows,
                         b->rows);
    LAP_TRY(lap_device_find("ref", &ref));
    LAP_TRY(ref->open(&(lap_device_options_t){.threads = 0}, &device));
    lap_status_t status = run_gemm(ref, device, a, b, data->reference);
    ref->close(device);
    return status;
}

/* What rounding to a type costs: relative to the number that is rounded, and at least. */
static void know_type(lap_bench_data_t *data, lap_dtype_t dtype)
{
    if (dtype == LAP_FLOAT16) {
        data->unit = 0x1p-11;
        data->tiny = 0x1p-25;
    } else if (dtype == LAP_BFLOAT16) {
        data->unit = 0x1p-8;
        data->tiny = 0x1p-134;
    }
}

/*
 * Fills in all that verifying needs. This rank's output is made of all of k, `rows` rows of the
 * whole a from `row` on, and `columns` rows of the whole b from `column` on.
 */
static lap_status_t know_truth(lap_bench_data_t *data, const lap_bench_t *bench,
                               const lap_bench_case_t *it, int nranks, size_t row, size_t rows,
                               size_t column, size_t columns)
{
    const size_t k = it->k;
    float *whole = lap_alloc((rows + columns) * k, sizeof(float));
    if (!whole)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a reference over %zu rows of %zu",
                         rows + columns, k);
    lap_tensor_t a = lap_tensor(whole, LAP_FLOAT32, rows, k);
    lap_tensor_t b = lap_tensor(whole + rows * k, LAP_FLOAT32, columns, k);
    generate(&(part_t){bench->seed, MATRIX_A, row, 0, k}, bench->dtype, &a);
    generate(&(part_t){bench->seed, MATRIX_B, column, 0, k}, bench->dtype, &b);
    lap_status_t status = multiply(data, &a, &b);
    lap_free(whole);
    double roundings = ((double)k + nranks + 1) * 0x1p-24;
    data->gamma = roundings < 1 ? roundings / (1 - roundings) : INFINITY;
    data->partials = it->kind != LAP_AG_GEMM && nranks > 1 ? nranks : 0;
    know_type(data, bench->dtype);
    return status;
}

/* ---- the two operators ---- */

/* Cuts a matrix from the memory; each begins on a cache line. */
static lap_tensor_t cut(char **at, lap_dtype_t dtype, size_t rows, size_t cols)
{
    lap_tensor_t tensor = lap_tensor(*at, dtype, rows, cols);
    *at += (rows * cols * lap_dtype_size(dtype) + 63) / 64 * 64;
    return tensor;
}

static lap_status_t allocate(lap_bench_data_t *data, lap_dtype_t dtype, size_t elements,
                             char **at_p)
{
    const size_t gaps = 256; /* cut() may skip 63 bytes after each of four matrices */
    LAP_TRY(data->ops->alloc(data->device, elements * lap_dtype_size(dtype) + gaps, &data->memory));
    *at_p = data->memory;
    return LAP_OK;
}

/* The rank's own rows of a lie within the whole of it, which the GEMM alone reads. */
static lap_status_t init_ag(lap_bench_data_t *data, const lap_bench_t *bench,
                            const lap_bench_case_t *it, int rank, int nranks)
{
    const lap_dtype_t dtype = bench->dtype;
    size_t row, column, m = it->m, k = it->k;
    size_t own_m = lap_shard(m, nranks, rank, &row);
    size_t own_n = lap_shard(it->n, nranks, rank, &column);
    char *at;
    LAP_TRY(allocate(data, dtype, m * k + own_n * k + m * own_n, &at));
    data->gemm_a = cut(&at, dtype, m, k);
    data->b = cut(&at, dtype, own_n, k);
    data->d = data->gemm_d = cut(&at, dtype, m, own_n);
    data->a =
        lap_tensor((char *)data->gemm_a.data + row * k * lap_dtype_size(dtype), dtype, own_m, k);
    generate(&(part_t){bench->seed, MATRIX_A, 0, 0, k}, dtype, &data->gemm_a);
    generate(&(part_t){bench->seed, MATRIX_B, column, 0, k}, dtype, &data->b);
    return know_truth(data, bench, it, nranks, 0, m, column, own_n);
}

/*
 * Partial results of all rows are summed; a rank keeps its own rows (GEMM+RS) or all (GEMM+AR). The
 * reference needs all of k, of which the operator is given a part.
 */
static lap_status_t init_partial(lap_bench_data_t *data, const lap_bench_t *bench,
                                 const lap_bench_case_t *it, int rank, int nranks)
{
    const lap_dtype_t dtype = bench->dtype;
    size_t row = 0, column, m = it->m, n = it->n, k = it->k;
    size_t own_m = it->kind == LAP_GEMM_RS ? lap_shard(m, nranks, rank, &row) : m;
    size_t own_k = lap_shard(k, nranks, rank, &column);
    char *at;
    LAP_TRY(allocate(data, dtype, m * own_k + n * own_k + m * n + own_m * n, &at));
    data->a = data->gemm_a = cut(&at, dtype, m, own_k);
    data->b = cut(&at, dtype, n, own_k);
    data->gemm_d = cut(&at, dtype, m, n);
    data->d = cut(&at, dtype, own_m, n);
    generate(&(part_t){bench->seed, MATRIX_A, 0, column, k}, dtype, &data->a);
    generate(&(part_t){bench->seed, MATRIX_B, 0, column, k}, dtype, &data->b);
    return know_truth(data, bench, it, nranks, row, own_m, 0, n);
}

lap_status_t lap_bench_data_init(lap_bench_data_t *data, const lap_bench_t *bench,
                                 const lap_bench_case_t *it, lap_group_t *group,
                                 lap_device_t *device)
{
    *data = (lap_bench_data_t){.ops = device->ops, .device = device};
    int rank = lap_group_rank(group), nranks = lap_group_size(group);
    return it->kind == LAP_AG_GEMM ? init_ag(data, bench, it, rank, nranks)
                                   : init_partial(data, bench, it, rank, nranks);
}

void lap_bench_data_clear(lap_bench_data_t *data)
{
    if (data->memory)
        data->ops->free(data->device, data->memory);
    lap_free(data->reference);
    lap_free(data->row_norms);
    lap_free(data->column_norms);
    *data = (lap_bench_data_t){0};
}

double lap_bench_data_bytes(const lap_bench_t *bench, const lap_bench_case_t *it, int nranks)
{
    double m = (double)it->m, n = (double)it->n, k = (double)it->k, p = nranks;
    /*
     * The matrices above, and as symmetric memory the gathered input or a slot for every peer's
     * rows; then the reference with what it is made of.
     */
    double elements = 2 * m * k + n / p * k + m * n / p;
    double floats = m * n / p + (m + n / p) * k;
    if (it->kind == LAP_GEMM_RS) {
        elements = (m + n) * k / p + 2 * m * n + m / p * n;
        floats = m / p * n + (m / p + n) * k;
    }
    if (it->kind == LAP_GEMM_AR) { /* `direct` has a slot for the whole result of every peer */
        elements = (m + n) * k / p + (p + 2) * m * n;
        floats = m * n + (m + n) * k;
    }
    return elements * (double)lap_dtype_size(bench->dtype) + floats * sizeof(float);
}

void lap_bench_data_spoil(lap_bench_data_t *data)
{
    /* All bits set is not a number, in every type. */
    memset(data->d.data, 0xff, data->d.rows * data->d.stride * lap_dtype_size(data->d.dtype));
}

/* How far an element may be from `want`, when the norms of its vectors have this product. */
static double bound_of(const lap_bench_data_t *data, double norms, double want)
{
    double error = data->gamma * norms;
    if (data->partials)
        error += data->unit * (1 + data->gamma) * norms + data->partials * data->tiny;
    return error + data->unit * (fabs(want) + error) + data->tiny;
}

bool lap_bench_data_verify(const lap_bench_data_t *data, double *max_err_p)
{
    const lap_tensor_t *d = &data->d;
    double worst = 0;
    bool ok = true;
    float room[CHUNK];
    const float *got = NULL;
    for (size_t at = 0; at < d->rows * d->cols; at++) { /* d is packed */
        if (at % CHUNK == 0) {
            const size_t left = d->rows * d->cols - at;
            got = lap_as_float(d->dtype, (const char *)d->data + at * lap_dtype_size(d->dtype),
                               room, left < CHUNK ? left : CHUNK);
        }
        const double want = data->reference[at];
        const double norms = data->row_norms[at / d->cols] * data->column_norms[at % d->cols];
        const double error = fabs((double)got[at % CHUNK] - want);
        /* Written so that what is not a number fails, and stays the worst. */
        if (!(error <= bound_of(data, norms, want)))
            ok = false;
        if (!isnan(worst) && !(error <= worst))
            worst = error;
    }
    *max_err_p = worst;
    return ok;
}
