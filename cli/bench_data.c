/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The matrices of `lap bench` and the truth about their product.
 *
 * An element of the random matrices depends on the seed, the matrix, its row and its column only,
 * so that every rank can make any part of them. The reference is computed by the device `ref`,
 * which accumulates in double.
 *
 * How far a correct result may be from it: an element of the product is a sum of k products.
 * Whatever the order, and with the P additions of a reduce-scatter, no term passes through more
 * than k + P roundings, so the error is at most gamma sum_i |a_i b_i| with gamma = n u / (1 - n u),
 * n = k + P + 1 and u = 2^-24; the last rounding is that of the reference to float. By Cauchy and
 * Schwarz the sum is at most |a| |b|, the norms of the row of a and the row of b. No correct result
 * can fail, and a result that misses part of the sum does not pass.
 */
#include <math.h>
#include <string.h>

#include "bench.h"
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

static void generate(const part_t *part, lap_tensor_t *out)
{
    uint64_t key = mix(2 * part->seed + (uint64_t)part->matrix + 0x9e3779b97f4a7c15u);
    for (size_t i = 0; i < out->rows; i++) {
        float *row = (float *)out->data + i * out->stride;
        uint64_t index = (part->row + i) * part->width + part->column;
        for (size_t j = 0; j < out->cols; j++)
            row[j] = (float)(mix(key + (index + j) * 0x9e3779b97f4a7c15u) >> 40) * 0x1p-24f - 0.5f;
    }
}

/* ---- the truth ---- */

static lap_status_t run_gemm(const lap_device_ops_t *ops, lap_device_t *device,
                             const lap_tensor_t *a, const lap_tensor_t *b, const lap_tensor_t *d)
{
    lap_stream_t *stream;
    LAP_TRY(ops->stream_create(device, &stream));
    lap_gemm_block_t block = {.a = a->data,
                              .d = d->data,
                              .rows = d->rows,
                              .a_stride = a->stride * sizeof(float),
                              .d_stride = d->stride * sizeof(float)};
    lap_gemm_t gemm = {.dtype = a->dtype,
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

/* Fills in reference, norms and gamma: this rank's output is a b^T. */
static lap_status_t know_truth(lap_bench_data_t *data, const lap_tensor_t *a, const lap_tensor_t *b,
                               int nranks)
{
    const lap_device_ops_t *ref;
    lap_device_t *device;
    LAP_TRY(lap_device_find("ref", &ref));
    LAP_TRY(ref->open(0, &device));
    lap_status_t status = run_gemm(ref, device, a, b, &data->reference);
    ref->close(device);
    if (status != LAP_OK)
        return status;
    double roundings = ((double)a->cols + nranks + 1) * 0x1p-24;
    data->gamma = roundings < 1 ? roundings / (1 - roundings) : INFINITY;
    data->row_norms = norms_of_rows(a);
    data->column_norms = norms_of_rows(b);
    if (!data->row_norms || !data->column_norms)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the norms of %zu rows",
                         a->rows + b->rows);
    return LAP_OK;
}

/* ---- the two operators ---- */

/* Cuts a matrix from the memory; each begins on a cache line. */
static lap_tensor_t cut(float **at, size_t rows, size_t cols)
{
    lap_tensor_t tensor = lap_tensor(*at, LAP_FLOAT32, rows, cols);
    *at += (rows * cols + 15) / 16 * 16;
    return tensor;
}

static lap_status_t allocate(lap_bench_data_t *data, size_t elements, float **at_p)
{
    void *memory;
    const size_t gaps = 80; /* what cut() may skip after each of five matrices */
    LAP_TRY(data->ops->alloc(data->device, (elements + gaps) * sizeof(float), &memory));
    data->memory = *at_p = memory;
    return LAP_OK;
}

/* The rank's own rows of a lie within the whole of it, which the GEMM alone reads. */
static lap_status_t init_ag(lap_bench_data_t *data, const lap_bench_case_t *it, uint64_t seed,
                            int rank, int nranks)
{
    size_t row, column, m = it->m, k = it->k;
    size_t own_m = lap_shard(m, nranks, rank, &row);
    size_t own_n = lap_shard(it->n, nranks, rank, &column);
    float *at;
    LAP_TRY(allocate(data, m * k + own_n * k + 2 * m * own_n, &at));
    data->gemm_a = cut(&at, m, k);
    data->b = cut(&at, own_n, k);
    data->d = data->gemm_d = cut(&at, m, own_n);
    data->reference = cut(&at, m, own_n);
    data->a = lap_tensor((float *)data->gemm_a.data + row * k, LAP_FLOAT32, own_m, k);
    generate(&(part_t){seed, MATRIX_A, 0, 0, k}, &data->gemm_a);
    generate(&(part_t){seed, MATRIX_B, column, 0, k}, &data->b);
    return know_truth(data, &data->gemm_a, &data->b, nranks);
}

/*
 * Partial results of all rows are summed; a rank keeps its own rows (GEMM+RS) or all (GEMM+AR). The
 * reference needs all of k, of which the operator is given a part.
 */
static lap_status_t init_partial(lap_bench_data_t *data, const lap_bench_case_t *it, uint64_t seed,
                                 int rank, int nranks)
{
    size_t row = 0, column, m = it->m, n = it->n, k = it->k;
    size_t own_m = it->kind == LAP_GEMM_RS ? lap_shard(m, nranks, rank, &row) : m;
    size_t own_k = lap_shard(k, nranks, rank, &column);
    float *at;
    LAP_TRY(allocate(data, m * own_k + n * own_k + m * n + 2 * own_m * n, &at));
    data->a = data->gemm_a = cut(&at, m, own_k);
    data->b = cut(&at, n, own_k);
    data->gemm_d = cut(&at, m, n);
    data->d = cut(&at, own_m, n);
    data->reference = cut(&at, own_m, n);
    generate(&(part_t){seed, MATRIX_A, 0, column, k}, &data->a);
    generate(&(part_t){seed, MATRIX_B, 0, column, k}, &data->b);

    float *whole = lap_alloc((own_m + n) * k, sizeof(float));
    if (!whole)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a reference over %zu rows of %zu",
                         own_m + n, k);
    lap_tensor_t a = lap_tensor(whole, LAP_FLOAT32, own_m, k);
    lap_tensor_t b = lap_tensor(whole + own_m * k, LAP_FLOAT32, n, k);
    generate(&(part_t){seed, MATRIX_A, row, 0, k}, &a);
    generate(&(part_t){seed, MATRIX_B, 0, 0, k}, &b);
    lap_status_t status = know_truth(data, &a, &b, nranks);
    lap_free(whole);
    return status;
}

lap_status_t lap_bench_data_init(lap_bench_data_t *data, const lap_bench_t *bench,
                                 const lap_bench_case_t *it, lap_group_t *group,
                                 lap_device_t *device)
{
    *data = (lap_bench_data_t){.ops = device->ops, .device = device};
    int rank = lap_group_rank(group), nranks = lap_group_size(group);
    return it->kind == LAP_AG_GEMM ? init_ag(data, it, bench->seed, rank, nranks)
                                   : init_partial(data, it, bench->seed, rank, nranks);
}

void lap_bench_data_clear(lap_bench_data_t *data)
{
    if (data->memory)
        data->ops->free(data->device, data->memory);
    lap_free(data->row_norms);
    lap_free(data->column_norms);
    *data = (lap_bench_data_t){0};
}

double lap_bench_data_bytes(const lap_bench_case_t *it, int nranks)
{
    double m = (double)it->m, n = (double)it->n, k = (double)it->k, p = nranks;
    /*
     * The matrices above, and as symmetric memory the gathered input or a slot for every peer's
     * rows.
     */
    double elements = 2 * m * k + n / p * k + 2 * m * n / p;
    if (it->kind == LAP_GEMM_RS)
        elements = (m + n) * k / p + 2 * m * n + 2 * m / p * n + (m / p + n) * k;
    if (it->kind == LAP_GEMM_AR) /* `direct` has a slot for the whole result of every peer */
        elements = (m + n) * k / p + (p + 3) * m * n + (m + n) * k;
    return elements * sizeof(float);
}

void lap_bench_data_spoil(lap_bench_data_t *data)
{
    /* All bits set is not a number. */
    memset(data->d.data, 0xff, data->d.rows * data->d.stride * sizeof(float));
}

bool lap_bench_data_verify(const lap_bench_data_t *data, double *max_err_p)
{
    double worst = 0;
    bool ok = true;
    for (size_t i = 0; i < data->d.rows; i++) {
        const float *got = (const float *)data->d.data + i * data->d.stride;
        const float *want = (const float *)data->reference.data + i * data->reference.stride;
        double bound = data->gamma * data->row_norms[i];
        for (size_t j = 0; j < data->d.cols; j++) {
            double error = fabs((double)got[j] - want[j]);
            /* Written so that what is not a number fails, and stays the worst. */
            if (!(error <= bound * data->column_norms[j]))
                ok = false;
            if (!isnan(worst) && !(error <= worst))
                worst = error;
        }
    }
    *max_err_p = worst;
    return ok;
}
