/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All-gather + GEMM: the input is sharded by rows, the weight by output features, and the gather of
 * the input hides behind the arithmetic. Run it with: lap run -n 4 02_ag_gemm
 */
#include <stdio.h>
#include <stdlib.h>

#include <lap/lap.h>

enum { M = 1024, N = 512, K = 256 };

static int fail(const char *what, lap_status_t status)
{
    fprintf(stderr, "%s: %s: %s\n", what, lap_status_string(status), lap_last_error());
    return 1;
}

/*
 * a is [m_r, K]: row i of the whole input holds i mod 7 everywhere. b is [n_r, K]: row j of the
 * whole weight holds j.
 */
static void fill(float *rows, size_t first, size_t count, size_t modulus)
{
    for (size_t i = 0; i < count * K; i++)
        rows[i] = (float)((first + i / K) % modulus);
}

static int check(const float *d, size_t n0, size_t n_r)
{
    for (size_t i = 0; i < M; i++)
        for (size_t j = 0; j < n_r; j++)
            if (d[i * n_r + j] != (float)(i % 7 * ((n0 + j) % 100) * K))
                return 1;
    return 0;
}

int main(void)
{
    lap_world_t *world;
    lap_status_t status = lap_world_create(NULL, &world);
    if (status != LAP_OK)
        return fail("lap_world_create", status);
    const int rank = lap_world_rank(world), size = lap_world_size(world);

    /* Every rank gives the same description: global sizes, and how to overlap. */
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = LAP_AG_GEMM;
    desc.m = M;
    desc.n = N;
    desc.k = K;
    desc.method = "ring";
    lap_op_t *op;
    status = lap_op_create(lap_world_group(world), &desc, &op);
    if (status != LAP_OK)
        return fail("lap_op_create", status);

    /*
     * This rank's rows of the input and features of the weight; the result has all rows of its
     * features.
     */
    size_t m0, n0;
    const size_t m_r = lap_shard(M, size, rank, &m0), n_r = lap_shard_features(N, size, rank, &n0);
    float *a = malloc(m_r * K * sizeof(float));
    float *b = malloc(n_r * K * sizeof(float));
    float *d = malloc(M * n_r * sizeof(float));
    if (!a || !b || !d) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    fill(a, m0, m_r, 7);
    fill(b, n0, n_r, 100);

    lap_op_args_t args = LAP_OP_ARGS_INIT;
    args.m = M;
    args.a = lap_tensor(a, LAP_FLOAT32, m_r, K);
    args.b = lap_tensor(b, LAP_FLOAT32, n_r, K);
    args.d = lap_tensor(d, LAP_FLOAT32, M, n_r);
    status = lap_op_run(op, &args);
    if (status != LAP_OK)
        return fail("lap_op_run", status);
    const int wrong = check(d, n0, n_r);
    printf("rank %d of %d: ag_gemm by %s gave [%d, %zu], %s\n", rank, size, lap_op_method(op), M,
           n_r, wrong ? "WRONG" : "right");

    free(a);
    free(b);
    free(d);
    lap_op_destroy(op);
    lap_world_destroy(world);
    return wrong;
}
