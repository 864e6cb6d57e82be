/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GEMM + reduce-scatter with another number of rows in each call: each rank multiplies its part of
 * k, the partial results are summed in rank order, and every rank keeps its rows. One call is
 * traced and drawn to gemm_rs.svg, or to the path given. Run it with: lap run -n 4 03_gemm_rs
 * [PICTURE.svg]
 */
#include <stdio.h>
#include <stdlib.h>

#include <lap/lap.h>

enum { CAPACITY = 2048, N = 512, K = 512 };

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != LAP_OK) {                                                                    \
            fprintf(stderr, "%s failed: %s\n", #call, lap_last_error());                           \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* Everything is 1, so that every element of the sum is K. */
static int call(lap_op_t *op, lap_group_t *group, size_t m, lap_trace_t *trace)
{
    const int rank = lap_group_rank(group), size = lap_group_size(group);
    const size_t m_r = lap_shard(m, size, rank, NULL),
                 k_r = lap_shard_features(K, size, rank, NULL);
    float *a = malloc((m * k_r + 1) * sizeof(float));
    float *b = malloc((N * k_r + 1) * sizeof(float));
    float *d = malloc((m_r * N + 1) * sizeof(float));
    if (!a || !b || !d)
        return 1;
    for (size_t i = 0; i < m * k_r; i++)
        a[i] = 1;
    for (size_t i = 0; i < N * k_r; i++)
        b[i] = 1;
    lap_op_args_t args = LAP_OP_ARGS_INIT;
    args.m = m;
    args.a = lap_tensor(a, LAP_FLOAT32, m, k_r);
    args.b = lap_tensor(b, LAP_FLOAT32, N, k_r);
    args.d = lap_tensor(d, LAP_FLOAT32, m_r, N);
    args.trace = trace;
    TRY(lap_op_begin(op, &args));
    /* Between begin and end the caller may do other work; the memory belongs to the call. */
    TRY(lap_op_end(op));
    int wrong = 0;
    for (size_t i = 0; i < m_r * N; i++)
        wrong |= d[i] != (float)K;
    free(a);
    free(b);
    free(d);
    return wrong;
}

int main(int argc, char **argv)
{
    lap_world_t *world;
    TRY(lap_world_create(NULL, &world));
    lap_group_t *group = lap_world_group(world);
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = LAP_GEMM_RS;
    desc.m = CAPACITY;
    desc.n = N;
    desc.k = K;
    desc.method = "pipeline";
    desc.num_splits = 4;
    lap_op_t *op;
    TRY(lap_op_create(group, &desc, &op));

    /* The rows that are active may change from call to call, up to the capacity. */
    int wrong = 0;
    for (size_t m = CAPACITY; m > 0; m /= 3)
        wrong |= call(op, group, m, NULL);

    lap_trace_t *trace;
    TRY(lap_trace_create(&trace));
    wrong |= call(op, group, CAPACITY, trace);
    TRY(lap_trace_gather(trace, group));
    const char *path = argc > 1 ? argv[1] : "gemm_rs.svg";
    if (lap_group_rank(group) == 0) {
        TRY(lap_trace_draw(trace, "GEMM + reduce-scatter by pipeline", path));
        printf("%s; see %s\n", wrong ? "WRONG" : "all sums are right", path);
    }
    lap_trace_destroy(trace);
    lap_op_destroy(op);
    lap_world_destroy(world);
    return wrong;
}
