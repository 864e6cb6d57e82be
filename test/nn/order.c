/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is destroyed before what was made from it: the world before an operator, a group before its
 * buffer, a buffer before its operator, layers before their optimizer and replicas. Calls are
 * refused then, and the last that is destroyed takes the rest with it.
 */
#include "tap.h"

enum { ROWS = 8, COLS = 16 };

static float memory[3][COLS * COLS]; /* b of one rank is the largest */

static lap_status_t call(lap_op_t *op, int rank, int size)
{
    const size_t rows = lap_shard(ROWS, size, rank, NULL);
    const size_t cols = lap_shard_features(COLS, size, rank, NULL);
    lap_op_args_t args = LAP_OP_ARGS_INIT;
    args.m = ROWS;
    args.a = lap_tensor(memory[0], LAP_FLOAT32, rows, COLS);
    args.b = lap_tensor(memory[1], LAP_FLOAT32, cols, COLS);
    args.d = lap_tensor(memory[2], LAP_FLOAT32, ROWS, cols);
    return lap_op_run(op, &args);
}

static lap_op_t *make_op(lap_group_t *group, lap_buffer_t *buffer)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    lap_op_t *op = NULL;
    desc.kind = LAP_AG_GEMM;
    desc.m = ROWS;
    desc.n = desc.k = COLS;
    desc.method = "ring";
    desc.buffer = buffer;
    tap_success(lap_op_create(group, &desc, &op), "an operator");
    return op;
}

static lap_world_t *make_world(void)
{
    lap_world_t *world = NULL;
    tap_success(lap_world_create(NULL, &world), "a world");
    return world;
}

/* A buffer goes on for the operator that was made on it. */
static void buffer_first(void)
{
    lap_world_t *world = make_world();
    lap_buffer_t *buffer = NULL;
    tap_success(lap_buffer_create(lap_world_group(world), 65536, 64, NULL, &buffer), "a buffer");
    lap_op_t *op = make_op(lap_world_group(world), buffer);
    lap_buffer_destroy(buffer);
    tap_success(call(op, lap_world_rank(world), lap_world_size(world)),
                "a call on a buffer that was given up");
    lap_op_destroy(op);
    tap_success(lap_group_barrier(lap_world_group(world)), "the group goes on");
    lap_world_destroy(world);
}

static void group_first(void)
{
    lap_world_t *world = make_world();
    lap_group_t *group = NULL;
    tap_success(lap_group_split(lap_world_group(world), 0, 0, &group), "a group");
    lap_op_t *op = make_op(group, NULL);
    lap_group_destroy(group);
    tap_failure(call(op, lap_world_rank(world), lap_world_size(world)), LAP_ERR_INVALID,
                "has destroyed the group", NULL);
    lap_op_destroy(op);
    tap_success(lap_group_barrier(lap_world_group(world)), "the world goes on");
    lap_world_destroy(world);
}

static void world_first(void)
{
    lap_world_t *world = make_world();
    const int rank = lap_world_rank(world), size = lap_world_size(world);
    lap_group_t *group = NULL;
    tap_success(lap_group_split(lap_world_group(world), 0, 0, &group), "a group");
    lap_op_t *op = make_op(lap_world_group(world), NULL), *other = make_op(group, NULL);
    lap_buffer_t *buffer = NULL;
    tap_success(lap_buffer_create(group, sizeof(rank), 1, NULL, &buffer), "a buffer");
    const int peer = lap_group_rank(group);
    tap_success(lap_buffer_put(buffer, peer, 0, &rank, sizeof(rank), 0), "a put into it");
    lap_world_destroy(world);
    tap_failure(lap_buffer_put(buffer, peer, 0, &rank, sizeof(rank), 0), LAP_ERR_INVALID,
                "has destroyed", "world", NULL);
    tap_failure(lap_buffer_raise(buffer, peer, 0), LAP_ERR_INVALID, "has destroyed", NULL);
    tap_failure(lap_buffer_wait(buffer, peer, 0, 1), LAP_ERR_INVALID, "has destroyed", NULL);
    lap_buffer_destroy(buffer);
    tap_failure(call(op, rank, size), LAP_ERR_INVALID, "has destroyed", "world", NULL);
    tap_failure(call(other, rank, size), LAP_ERR_INVALID, "has destroyed", "world", NULL);
    tap_failure(lap_group_barrier(group), LAP_ERR_INVALID, "has destroyed", NULL);
    lap_op_destroy(op);
    lap_group_destroy(group);
    lap_op_destroy(other);
}

static void layers_first(void)
{
    lap_world_t *world = make_world();
    lap_group_t *group = lap_world_group(world), *alone = NULL;
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    lap_optimizer_desc_t how = LAP_OPTIMIZER_DESC_INIT;
    lap_nn_t *nn = NULL;
    lap_optimizer_t *optimizer = NULL;
    lap_dp_t *dp = NULL;
    desc.kind = LAP_NN_LAYERNORM_MLP;
    desc.seq = ROWS;
    desc.hidden = COLS;
    how.clip_norm = 1;
    tap_success(lap_group_split(group, lap_world_rank(world), 0, &alone), "a group of one");
    tap_success(lap_nn_create(group, &desc, &nn), "layers");
    tap_success(lap_optimizer_create(nn, group, &how, &optimizer), "their optimizer");
    tap_success(lap_dp_create(nn, alone, NULL, &dp), "their replicas");
    lap_world_destroy(world);
    lap_nn_destroy(nn);
    tap_failure(lap_optimizer_step(optimizer, 1, NULL), LAP_ERR_INVALID, "has destroyed", NULL);
    lap_group_destroy(alone);
    lap_dp_destroy(dp);
    lap_optimizer_destroy(optimizer);
    tap_ok(true, "layers, replicas and optimizer end in any order");
}

int main(void)
{
    buffer_first();
    group_first();
    world_first();
    layers_first();
    return tap_done();
}
