/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backward pass of a column-parallel layer y = x w^T with sequence parallelism: w [N, K] is
 * shared by N, and rank r has rows m_r of x. Two GEMMs, and during each a collective:
 *
 *   dgrad  dx = dy w      while x is gathered, which wgrad needs
 *   wgrad  dw = dy^T x    while dx is summed over the ranks and scattered
 *
 * Run it with: lap run -n 4 05_backward
 */
#include <stdio.h>
#include <stdlib.h>

#include <lap/lap.h>

enum { M = 96, N = 64, K = 48 }; /* any M, N and K */

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != LAP_OK) {                                                                    \
            fprintf(stderr, "%s failed: %s\n", #call, lap_last_error());                           \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* Small integers that depend on row and column, so that every sum is exact. */
static float element(size_t row, size_t column)
{
    return (float)((row * 7 + column * 5) % 9) - 4;
}

/* A matrix [rows, cols] whose first element is (row, column) of the whole one. */
static lap_tensor_t matrix(size_t row, size_t rows, size_t column, size_t cols)
{
    float *data = malloc((rows * cols + 1) * sizeof(float));
    if (!data)
        exit(1);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            data[i * cols + j] = element(row + i, column + j);
    return lap_tensor(data, LAP_FLOAT32, rows, cols);
}

static float at(const lap_tensor_t *tensor, size_t row, size_t column)
{
    return ((const float *)tensor->data)[row * tensor->stride + column];
}

/* dx of all ranks together is dy w with all of N; rows m_r of it, from `row` on. */
static int wrong_dx(const lap_tensor_t *dx, size_t row)
{
    int wrong = 0;
    for (size_t i = 0; i < dx->rows; i++)
        for (size_t j = 0; j < K; j++) {
            float sum = 0;
            for (size_t n = 0; n < N; n++)
                sum += element(row + i, n) * element(n, j);
            wrong += at(dx, i, j) != sum;
        }
    return wrong;
}

/* Rows n_r of dw = dy^T x, from `first` on. */
static int wrong_dw(const lap_tensor_t *dw, size_t first)
{
    int wrong = 0;
    for (size_t i = 0; i < dw->rows; i++)
        for (size_t j = 0; j < K; j++) {
            float sum = 0;
            for (size_t m = 0; m < M; m++)
                sum += element(m, first + i) * element(m, j);
            wrong += at(dw, i, j) != sum;
        }
    return wrong;
}

int main(void)
{
    lap_world_t *world;
    TRY(lap_world_create(NULL, &world));
    lap_group_t *group = lap_world_group(world);
    const int rank = lap_group_rank(group), size = lap_group_size(group);
    size_t row, first;
    const size_t m_r = lap_shard(M, size, rank, &row),
                 n_r = lap_shard_features(N, size, rank, &first);

    /* The GEMM during a collective has this rank's share of N: all ranks give the same. */
    lap_op_desc_t dgrad_desc = LAP_OP_DESC_INIT, wgrad_desc = LAP_OP_DESC_INIT;
    dgrad_desc.kind = LAP_BULK_AG;
    dgrad_desc.layout = LAP_DGRAD;
    dgrad_desc.n = K;
    dgrad_desc.k = N;
    dgrad_desc.sharded = LAP_SHARDED_K;
    wgrad_desc.kind = LAP_BULK_RS;
    wgrad_desc.layout = LAP_WGRAD;
    wgrad_desc.n = N;
    wgrad_desc.sharded = LAP_SHARDED_N;
    wgrad_desc.k = K;
    dgrad_desc.m = wgrad_desc.m = M;
    dgrad_desc.cols = wgrad_desc.cols = K;
    lap_op_t *dgrad_op, *wgrad_op;
    TRY(lap_op_create(group, &dgrad_desc, &dgrad_op));
    TRY(lap_op_create(group, &wgrad_desc, &wgrad_op));

    /* The input that forward had, and the gradient that comes from the next layer. */
    lap_tensor_t x = matrix(row, m_r, 0, K), w = matrix(first, n_r, 0, K);
    lap_tensor_t dy = matrix(0, M, first, n_r);
    lap_tensor_t x_all = matrix(0, M, 0, K), dx_part = matrix(0, M, 0, K); /* both overwritten */
    lap_tensor_t dx = matrix(0, m_r, 0, K), dw = matrix(0, n_r, 0, K);

    lap_op_args_t dgrad = LAP_OP_ARGS_INIT, wgrad = LAP_OP_ARGS_INIT;
    dgrad.m = wgrad.m = M;
    dgrad.a = dy;
    dgrad.b = w;
    dgrad.d = dx_part;
    dgrad.x = x;
    dgrad.y = x_all;
    TRY(lap_op_run(dgrad_op, &dgrad));
    wgrad.a = dy;
    wgrad.b = x_all;
    wgrad.d = dw;
    wgrad.x = dx_part;
    wgrad.y = dx;
    TRY(lap_op_run(wgrad_op, &wgrad));

    const int wrong = wrong_dx(&dx, row) + wrong_dw(&dw, first);
    printf("rank %d: dx [%zu, %d] and dw [%zu, %d] %s\n", rank, m_r, K, n_r, K,
           wrong ? "are WRONG" : "are right");
    lap_op_destroy(dgrad_op);
    lap_op_destroy(wgrad_op);
    lap_world_destroy(world);
    const lap_tensor_t all[] = {x, w, dy, x_all, dx_part, dx, dw};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i].data);
    return wrong != 0;
}
