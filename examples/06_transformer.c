/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transformer layer, trained by the ranks together: each has a part of the heads and of the MLP,
 * and a part of the tokens in between. Every token is to become the one before it. The losses do
 * not depend on the number of ranks, but for rounding.
 *
 * Run it with: lap run -n 4 06_transformer
 */
#include <stdio.h>
#include <stdlib.h>

#include <lap/lap.h>

enum { SEQ = 16, BATCH = 2, HIDDEN = 32, HEADS = 4, STEPS = 60 }; /* HEADS: multiple of ranks */

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != LAP_OK) {                                                                    \
            fprintf(stderr, "%s failed: %s\n", #call, lap_last_error());                           \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* This rank's part of a matrix of tokens. */
static lap_tensor_t matrix(const lap_nn_part_t *part)
{
    float *data = malloc((part->rows * part->cols + 1) * sizeof(float));
    if (!data)
        exit(1);
    return lap_tensor(data, LAP_FLOAT32, part->rows, part->cols);
}

enum { X, Y, TARGET, DY, DX, TENSORS };

/* Returns 0, and the losses of the first and the last step. */
static int train(lap_nn_t *nn, const lap_tensor_t *t, double *first_p, double *last_p)
{
    const lap_nn_part_t part = lap_nn_input(nn, SEQ);
    lap_nn_part_t before = part; /* rows are sequence-major: the token before is BATCH rows up */
    before.first_row -= BATCH;
    size_t count;
    float *weights = lap_nn_masters(nn, &count), *gradients = lap_nn_gradients(nn, &count);
    for (uint64_t step = 0; step < STEPS; step++) {
        const uint64_t data = ((uint64_t)1 << 32) + step; /* another batch every time */
        TRY(lap_nn_fill(nn, &t[X], &part, 1, data, 1));
        TRY(lap_nn_fill(nn, &t[TARGET], &before, 1, data, 1));
        /* All of this is only issued; the host waits once. */
        lap_nn_zero_gradients(nn);
        TRY(lap_nn_forward(nn, SEQ, &t[X], &t[Y]));
        TRY(lap_nn_loss(nn, &t[Y], &t[TARGET], &t[DY]));
        TRY(lap_nn_backward(nn, &t[DY], &t[DX]));
        TRY(lap_nn_wait(nn));
        TRY(lap_nn_loss_value(nn, step == 0 ? first_p : last_p));
        for (size_t i = 0; i < count; i++)
            weights[i] -= 4 * gradients[i];
        TRY(lap_nn_refresh(nn));
    }
    return 0;
}

int main(void)
{
    lap_world_t *world;
    TRY(lap_world_create(NULL, &world));

    lap_nn_desc_t desc = LAP_NN_DESC_INIT; /* a transformer layer, sequence parallel, overlapped */
    desc.seq = SEQ;
    desc.batch = BATCH;
    desc.hidden = HIDDEN;
    desc.heads = HEADS;
    desc.init_std = 0.1f;
    lap_nn_t *nn;
    TRY(lap_nn_create(lap_world_group(world), &desc, &nn));

    const lap_nn_part_t part = lap_nn_input(nn, SEQ);
    lap_tensor_t tensors[TENSORS];
    for (size_t i = 0; i < TENSORS; i++)
        tensors[i] = matrix(&part);
    double first = 0, last = 0;
    int failed = train(nn, tensors, &first, &last);
    if (lap_world_rank(world) == 0 && !failed)
        printf("%d ranks: the loss went from %.4f to %.4f in %d steps\n", lap_world_size(world),
               first, last, STEPS);
    lap_nn_destroy(nn);
    lap_world_destroy(world);
    for (size_t i = 0; i < TENSORS; i++)
        free(tensors[i].data);
    return failed || last > 0.8 * first;
}
