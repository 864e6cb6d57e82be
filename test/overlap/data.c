/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrices and expectations for tests of operators: see data.h. Plain loops, independent of the
 * library's own.
 */
#include "data.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tap.h"

enum { MATRIX_A = 1, MATRIX_B = 2 };

static const float unwritten = -12345.5f; /* no sum of either kind of data gives it */

static float element(const test_call_t *call, int matrix, size_t row, size_t column)
{
    uint64_t bits = tap_random(call->seed * 4 + (uint64_t)matrix, row * 1000003u + column);
    if (call->exact)
        return (float)(int)(bits % 9) - 4.0f;
    return (float)(bits >> 40) / 16777216.0f - 0.5f;
}

static lap_tensor_t matrix(const test_call_t *call, size_t rows, size_t cols)
{
    size_t stride = cols + call->stride_pad;
    float *data = malloc((rows * stride + 1) * sizeof(float));
    if (!data) {
        printf("Bail out! no memory for a matrix of %zu x %zu\n", rows, cols);
        exit(1);
    }
    for (size_t i = 0; i < rows * stride; i++)
        data[i] = unwritten;
    lap_tensor_t tensor = {data, LAP_FLOAT32, rows, cols, stride};
    return tensor;
}

static lap_tensor_t part(const test_call_t *call, int which, size_t row, size_t rows, size_t column,
                         size_t cols)
{
    lap_tensor_t tensor = matrix(call, rows, cols);
    float *data = tensor.data;
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            data[i * tensor.stride + j] = element(call, which, row + i, column + j);
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
    const float *data = tensor->data;
    for (size_t i = 0; i < tensor->rows; i++)
        for (size_t j = tensor->cols; j < tensor->stride; j++)
            if (data[i * tensor->stride + j] != unwritten)
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
            if (((const float *)gathered->data)[i * gathered->stride + j] !=
                element(call, MATRIX_A, i, j))
                return false;
    return padding_untouched(gathered);
}

/*
 * Standard bound for a sum of k products in any order, then `size` partial sums: (k + size) u sum
 * |a b| / (1 - ...), with u = 2^-24; 1.01 covers the higher-order terms for any k that a test uses.
 */
static double error_over_bound(const test_call_t *call, float got, double sum, double magnitude)
{
    double error = fabs((double)got - sum);
    if (error == 0)
        return 0;
    if (call->exact || isnan(got))
        return INFINITY;
    return error / (1.01 * (double)(call->k + (size_t)call->size) * 0x1p-24 * magnitude);
}

double test_call_error(const test_call_t *call)
{
    const lap_tensor_t *d = &call->args.d;
    size_t row0 = 0, column0 = 0;
    if (call->kind == LAP_AG_GEMM)
        lap_shard(call->n, call->size, call->rank, &column0);
    if (call->kind == LAP_GEMM_RS)
        lap_shard(call->m, call->size, call->rank, &row0);
    if (!padding_untouched(d) || !gathered_right(call))
        return INFINITY;
    double worst = 0;
    for (size_t i = 0; i < d->rows; i++) {
        for (size_t j = 0; j < d->cols; j++) {
            double sum = 0, magnitude = 0;
            for (size_t k = 0; k < call->k; k++) {
                double product = (double)element(call, MATRIX_A, row0 + i, k) *
                                 (double)element(call, MATRIX_B, column0 + j, k);
                sum += product;
                magnitude += fabs(product);
            }
            float got = ((const float *)d->data)[i * d->stride + j];
            worst = fmax(worst, error_over_bound(call, got, sum, magnitude));
        }
    }
    return worst;
}
