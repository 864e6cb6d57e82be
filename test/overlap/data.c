/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrices and expectations for tests of operators: see data.h. Plain loops, independent of the
 * library's own, but for the conversion of single elements, which has tests of its own.
 */
#include "data.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/convert.h"
#include "tap.h"

enum { MATRIX_A = 1, MATRIX_B = 2 };

static const float unwritten = -12345.5f; /* no sum of either kind of data gives it */

static float element(const test_call_t *call, int matrix, size_t row, size_t column)
{
    uint64_t bits = tap_random(call->seed * 4 + (uint64_t)matrix, row * 1000003u + column);
    /* With 16-bit types the integers are larger, so that results need rounding. */
    if (call->exact)
        return call->dtype == LAP_FLOAT32 ? (float)(int)(bits % 9) - 4.0f
                                          : (float)(int)(bits % 33) - 16.0f;
    return tap_rounded(call->dtype, (float)(bits >> 40) / 16777216.0f - 0.5f);
}

static void *address(const lap_tensor_t *tensor, size_t row, size_t column)
{
    return (char *)tensor->data + (row * tensor->stride + column) * lap_dtype_size(tensor->dtype);
}

static void set(const lap_tensor_t *tensor, size_t row, size_t column, float value)
{
    lap_from_float(tensor->dtype, &value, address(tensor, row, column), 1);
}

static float get(const lap_tensor_t *tensor, size_t row, size_t column)
{
    float value;
    lap_to_float(tensor->dtype, address(tensor, row, column), &value, 1);
    return value;
}

static lap_tensor_t matrix(const test_call_t *call, size_t rows, size_t cols)
{
    size_t stride = cols + call->stride_pad;
    void *data = malloc((rows * stride + 1) * lap_dtype_size(call->dtype));
    if (!data) {
        printf("Bail out! no memory for a matrix of %zu x %zu\n", rows, cols);
        exit(1);
    }
    lap_tensor_t tensor = {data, call->dtype, rows, cols, stride};
    for (size_t i = 0; i < rows * stride; i++)
        set(&tensor, 0, i, unwritten);
    return tensor;
}

static lap_tensor_t part(const test_call_t *call, int which, size_t row, size_t rows, size_t column,
                         size_t cols)
{
    lap_tensor_t tensor = matrix(call, rows, cols);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            set(&tensor, i, j, element(call, which, row + i, column + j));
    return tensor;
}

void test_call_init(test_call_t *call)
{
    size_t m0, n0, k0;
    const size_t m_r = lap_shard(call->m, call->size, call->rank, &m0);
    const size_t n_r = lap_shard(call->n, call->size, call->rank, &n0);
    const size_t k_r = lap_shard(call->k, call->size, call->rank, &k0);
    lap_op_args_t args = LAP_OP_ARGS_INIT;
    args.m = call->m;
    if (call->kind == LAP_AG_GEMM) {
        args.a = part(call, MATRIX_A, m0, m_r, 0, call->k);
        args.b = part(call, MATRIX_B, n0, n_r, 0, call->k);
        args.d = matrix(call, call->m, n_r);
        if (call->gather)
            args.gathered = matrix(call, call->m, call->k);
    } else {
        args.a = part(call, MATRIX_A, 0, call->m, k0, k_r);
        args.b = part(call, MATRIX_B, 0, call->n, k0, k_r);
        args.d = matrix(call, call->kind == LAP_GEMM_RS ? m_r : call->m, call->n);
    }
    call->args = args;
}

void test_call_clear(test_call_t *call)
{
    free(call->args.a.data);
    free(call->args.b.data);
    free(call->args.d.data);
    free(call->args.gathered.data);
}

static bool padding_untouched(const lap_tensor_t *tensor)
{
    for (size_t i = 0; i < tensor->rows; i++)
        for (size_t j = tensor->cols; j < tensor->stride; j++)
            if (get(tensor, i, j) != tap_rounded(tensor->dtype, unwritten))
                return false;
    return true;
}

static bool gathered_right(const test_call_t *call)
{
    if (!call->gather)
        return true;
    const lap_tensor_t *gathered = &call->args.gathered;
    for (size_t i = 0; i < call->m; i++)
        for (size_t j = 0; j < call->k; j++)
            if (get(gathered, i, j) != element(call, MATRIX_A, i, j))
                return false;
    return padding_untouched(gathered);
}

/* What an element of the result should be. */
typedef struct truth {
    double sum;    /* without any rounding */
    double bound;  /* how far from it a right result may be */
    float rounded; /* the only right result with exact data */
} truth_t;

/* The products of k in [begin, begin + count), for one element; adds their sizes to *magnitude. */
static double sum_of(const test_call_t *call, size_t row, size_t column, size_t begin, size_t count,
                     double *magnitude)
{
    double sum = 0;
    for (size_t k = begin; k < begin + count; k++) {
        double product =
            (double)element(call, MATRIX_A, row, k) * (double)element(call, MATRIX_B, column, k);
        sum += product;
        *magnitude += fabs(product);
    }
    return sum;
}

/*
 * Standard bound for a sum of k products in any order, then `size` partial sums: (k + size) u sum
 * |a b| / (1 - ...), with u = 2^-24; 1.01 covers the higher-order terms for any k that a test uses.
 * 16-bit types add half a unit in the last place for each rounding: of every rank's partial result,
 * where there is more than one, and of the sum.
 */
static truth_t truth_of(const test_call_t *call, size_t row, size_t column)
{
    const int parts = call->kind == LAP_AG_GEMM ? 1 : call->size;
    double partial_sums[64], magnitude = 0;
    truth_t truth = {0};
    for (int r = 0; r < parts; r++) {
        size_t begin, count = lap_shard(call->k, parts, r, &begin);
        partial_sums[r] = sum_of(call, row, column, begin, count, &magnitude);
        truth.sum += partial_sums[r];
        truth.rounded += tap_rounded(call->dtype, (float)partial_sums[r]);
    }
    truth.rounded = tap_rounded(call->dtype, truth.rounded);
    const double sums = 1.01 * (double)(call->k + (size_t)call->size) * 0x1p-24 * magnitude;
    truth.bound = sums;
    for (int r = 0; r < parts && parts > 1; r++)
        truth.bound += tap_half_unit(call->dtype, fabs(partial_sums[r]) + sums);
    truth.bound += tap_half_unit(call->dtype, fabs(truth.sum) + truth.bound);
    return truth;
}

static double error_over_bound(const test_call_t *call, float got, const truth_t *truth)
{
    if (call->exact)
        return got == truth->rounded ? 0 : INFINITY;
    double error = fabs((double)got - truth->sum);
    if (error == 0)
        return 0;
    return isnan(got) ? INFINITY : error / truth->bound;
}

/* Where this rank's result begins in the whole one. */
static void find_origin(const test_call_t *call, size_t *row_p, size_t *column_p)
{
    *row_p = *column_p = 0;
    if (call->kind == LAP_AG_GEMM)
        lap_shard(call->n, call->size, call->rank, column_p);
    if (call->kind == LAP_GEMM_RS)
        lap_shard(call->m, call->size, call->rank, row_p);
}

double test_call_error(const test_call_t *call)
{
    const lap_tensor_t *d = &call->args.d;
    size_t row0, column0;
    find_origin(call, &row0, &column0);
    if (!padding_untouched(d) || !gathered_right(call))
        return INFINITY;
    double worst = 0;
    for (size_t i = 0; i < d->rows; i++) {
        for (size_t j = 0; j < d->cols; j++) {
            const truth_t truth = truth_of(call, row0 + i, column0 + j);
            worst = fmax(worst, error_over_bound(call, get(d, i, j), &truth));
        }
    }
    return worst;
}

bool test_call_spoil(test_call_t *call)
{
    const lap_tensor_t *d = &call->args.d;
    size_t row0, column0;
    find_origin(call, &row0, &column0);
    if (!d->rows || !d->cols)
        return false;
    const size_t i = d->rows / 2, j = d->cols / 2;
    const truth_t truth = truth_of(call, row0 + i, column0 + j);
    /* Half a unit more, so that it is still beyond when it has been rounded. */
    const double least = truth.sum + 1.001 * truth.bound;
    const double beyond = least + 1.001 * tap_half_unit(call->dtype, least);
    set(d, i, j, nextafterf((float)beyond, INFINITY));
    return true;
}
