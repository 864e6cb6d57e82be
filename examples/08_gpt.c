/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tiny GPT that learns to write a text, byte by byte: all ranks share its weights, rows of its
 * vocabulary among them. Each step takes some places of the text, and the tokens that follow; at the
 * end the model writes what it takes to be the most probable continuation of a few letters.
 *
 * Run it with: lap run -n 2 08_gpt
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lap/lap.h>

enum { SEQ = 32, BATCH = 8, STEPS = 120, WRITTEN = 40 };

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != LAP_OK) {                                                                    \
            fprintf(stderr, "%s failed: %s\n", #call, lap_last_error());                           \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

static const char text[] =
    "The planks of a clinker-built boat overlap, each upon the next, and the "
    "overlap makes the hull both light and strong. The ranks of a training "
    "job overlap what they compute and what they send, and nobody waits. ";

/* The most probable token after the last one of a sequence, the same on every rank. */
static int predict(lap_nn_t *nn, lap_group_t *group, size_t seq, int32_t *token_p)
{
    lap_tensor_t logits;
    size_t first;
    TRY(lap_nn_wait(nn));
    TRY(lap_model_logits(nn, &logits, &first));
    struct best {
        float logit;
        int32_t token;
    } mine = {0, -1}, all[8];
    const float *row = (const float *)logits.data + (seq - 1) * BATCH * logits.stride;
    for (size_t i = 0; i < logits.cols; i++) /* this rank's columns, of the first sequence */
        if (mine.token < 0 || row[i] > mine.logit)
            mine = (struct best){row[i], (int32_t)(first + i)};
    TRY(lap_group_allgather(group, &mine, sizeof(mine), all));
    for (int r = 0; r < lap_group_size(group); r++)
        mine = all[r].logit > mine.logit ? all[r] : mine;
    *token_p = mine.token;
    return 0;
}

int main(void)
{
    lap_world_t *world;
    TRY(lap_world_create(NULL, &world));
    lap_group_t *group = lap_world_group(world);
    if (lap_world_size(world) > 8) {
        fprintf(stderr, "%d ranks are too many, expected 1, 2, 4 or 8\n", lap_world_size(world));
        return 1;
    }

    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    TRY(lap_model_preset("gpt", &desc)); /* a vocabulary of 256: bytes */
    desc.layers = 2;
    desc.seq = SEQ;
    desc.batch = BATCH;
    lap_nn_t *nn;
    TRY(lap_nn_create(group, &desc, &nn));
    lap_optimizer_desc_t how = LAP_OPTIMIZER_DESC_INIT;
    how.lr = 0.003f;
    how.clip_norm = 1;
    lap_optimizer_t *optimizer;
    TRY(lap_optimizer_create(nn, group, &how, &optimizer));

    int32_t tokens[BATCH * SEQ], targets[BATCH * SEQ];
    const size_t places = sizeof(text) - 1 - SEQ - 1;
    double loss = 0, first = 0;
    for (int step = 0; step < STEPS; step++) {
        for (size_t i = 0; i < (size_t)BATCH * SEQ; i++) { /* each sequence from another place */
            const size_t at = ((size_t)step * BATCH + i / SEQ) * 37 % places + i % SEQ;
            tokens[i] = (unsigned char)text[at];
            targets[i] = (unsigned char)text[at + 1];
        }
        lap_nn_zero_gradients(nn);
        TRY(lap_model_forward(nn, SEQ, tokens, targets));
        TRY(lap_model_backward(nn));
        TRY(lap_optimizer_step(optimizer, 1, NULL));
        TRY(lap_nn_wait(nn));
        TRY(lap_nn_loss_value(nn, &loss));
        first = step == 0 ? loss : first;
        if (lap_world_rank(world) == 0 && (step + 1) % 20 == 0)
            printf("step %d: loss %.3f\n", step + 1, loss);
    }

    char written[WRITTEN + 1] = "The ranks";
    for (size_t length = strlen(written); length < WRITTEN; length++) {
        const size_t seq = length < SEQ ? length : SEQ; /* the last so many bytes, in every row */
        for (size_t i = 0; i < BATCH * seq; i++)
            tokens[i] = (unsigned char)written[length - seq + i % seq];
        int32_t next;
        TRY(lap_model_forward(nn, seq, tokens, NULL));
        if (predict(nn, group, seq, &next) != 0)
            return 1;
        written[length] = (char)next;
    }
    if (lap_world_rank(world) == 0)
        printf("it writes: %s\n", written);

    lap_optimizer_destroy(optimizer);
    lap_nn_destroy(nn);
    lap_world_destroy(world);
    if (loss < 1 && loss < first)
        return 0;
    fprintf(stderr, "the loss was %g and is now %g: expected less than 1\n", first, loss);
    return 1;
}
