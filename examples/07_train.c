/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training with tensor and data parallelism: pairs of ranks share the weights of an MLP, and the
 * pairs are replicas with data of their own. The layers learn to give -x for x.
 *
 *   forward   AG+GEMM, then GEMM+RS, each overlapped with its communication
 *   backward  the same the other way round; each bucket of gradients is sent to the replicas while
 *             the rest of backward runs
 *   step      AdamW, on gradients whose norm over all ranks is clipped
 *
 * Run it with: lap run -n 4 07_train
 */
#include <stdio.h>

#include <lap/lap.h>

enum { SEQ = 32, BATCH = 2, HIDDEN = 64, ITERATIONS = 8 };

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != LAP_OK) {                                                                    \
            fprintf(stderr, "%s failed: %s\n", #call, lap_last_error());                           \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* Room for x, y, the target of y, and dx: more than this rank's part of each. */
static float memory[4][SEQ * BATCH * HIDDEN];

static lap_tensor_t room(int index, const lap_nn_part_t *part)
{
    return lap_tensor(memory[index], LAP_FLOAT32, part->rows, part->cols);
}

int main(void)
{
    lap_world_t *world;
    TRY(lap_world_create(NULL, &world));
    const int rank = lap_world_rank(world), tp = lap_world_size(world) % 2 == 0 ? 2 : 1;

    /* Ranks that share weights are neighbours; the replicas of a rank are tp ranks apart. */
    lap_group_t *weights, *replicas;
    TRY(lap_group_split(lap_world_group(world), rank / tp, rank, &weights));
    TRY(lap_group_split(lap_world_group(world), rank % tp, rank, &replicas));

    lap_nn_desc_t desc = LAP_NN_DESC_INIT; /* the same seed on every rank: the same weights */
    desc.kind = LAP_NN_LAYERNORM_MLP;
    desc.seq = SEQ;
    desc.batch = BATCH;
    desc.hidden = HIDDEN;
    lap_nn_t *nn;
    TRY(lap_nn_create(weights, &desc, &nn));

    lap_optimizer_desc_t how = LAP_OPTIMIZER_DESC_INIT;
    how.lr = 0.01f;
    how.clip_norm = 1;
    lap_optimizer_t *optimizer;
    TRY(lap_optimizer_create(nn, weights, &how, &optimizer));

    lap_dp_options_t options = LAP_DP_OPTIONS_INIT;
    options.bucket = 8192;
    lap_dp_t *dp;
    TRY(lap_dp_create(nn, replicas, &options, &dp));

    const lap_nn_part_t part = lap_nn_input(nn, 0); /* of an MLP, y is as x */
    const lap_tensor_t x = room(0, &part), y = room(1, &part);
    const lap_tensor_t target = room(2, &part), dx = room(3, &part);
    double loss = 0, first = 0, norm;
    for (int i = 0; i < ITERATIONS; i++) {
        /* Every replica its own data: a tensor of another number. */
        const unsigned long long tensor = (i + 1ull) << 32 | (unsigned)lap_group_rank(replicas);
        TRY(lap_nn_fill(nn, &x, &part, desc.seed, tensor, 1));
        TRY(lap_nn_fill(nn, &target, &part, desc.seed, tensor, -1));
        lap_nn_zero_gradients(nn);
        TRY(lap_nn_forward(nn, SEQ, &x, &y));
        TRY(lap_nn_loss(nn, &y, &target, &y)); /* dy takes the place of y */
        TRY(lap_nn_backward(nn, &y, &dx));
        TRY(lap_dp_wait(dp)); /* the gradients are now the sums over replicas */
        TRY(lap_optimizer_step(optimizer, 1.0f / (float)lap_group_size(replicas), &norm));
        TRY(lap_nn_wait(nn));
        TRY(lap_nn_loss_value(nn, &loss));
        first = i == 0 ? loss : first;
        if (lap_group_rank(weights) == 0)
            printf("replica %d, iteration %d: loss %.6f, norm of the gradients %.6f\n",
                   lap_group_rank(replicas), i + 1, loss, norm);
    }

    lap_dp_destroy(dp);
    lap_optimizer_destroy(optimizer);
    lap_nn_destroy(nn);
    lap_group_destroy(replicas);
    lap_group_destroy(weights);
    lap_world_destroy(world);
    if (loss < first)
        return 0;
    fprintf(stderr, "rank %d: the loss was %g and is now %g: expected less\n", rank, first, loss);
    return 1;
}
