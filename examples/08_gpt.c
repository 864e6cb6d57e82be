/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tiny GPT that learns to write a text, byte by byte: all ranks share its weights, rows of its
 * vocabulary among them. Each step takes some places of the text, and the tokens that follow; at the
 * end the model writes what it takes to be the most probable continuation of a few letters.
 *
 * Run it with: lap run -n 2 08_gpt
 */
#include <stdio.h>
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

/* Each sample from another place; the same one whichever rank asks for it. */
static lap_status_t read_text(void *context, uint64_t first, size_t count, size_t seq,
                              int32_t *tokens, int32_t *targets)
{
    const size_t places = sizeof(text) - 1 - SEQ - 1;
    (void)context;
    for (size_t i = 0; i < count * seq; i++) {
        const size_t at = (size_t)(first + i / seq) * 37 % places + i % seq;
        tokens[i] = (unsigned char)text[at];
        targets[i] = (unsigned char)text[at + 1];
    }
    return LAP_OK;
}

typedef struct progress {
    int speaks;
    double first, last; /* losses */
} progress_t;

static lap_status_t log_step(void *context, const lap_trainer_log_t *log)
{
    progress_t *progress = context;
    progress->first = log->step == 1 ? log->loss : progress->first;
    progress->last = log->loss;
    if (progress->speaks && log->step % 20 == 0)
        printf("step %d: loss %.3f\n", (int)log->step, log->loss);
    return LAP_OK;
}

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
    if (lap_world_size(world) > 8) {
        fprintf(stderr, "%d ranks are too many, expected 1, 2, 4 or 8\n", lap_world_size(world));
        return 1;
    }

    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    TRY(lap_model_preset("gpt", &desc)); /* a vocabulary of 256: bytes */
    desc.layers = 2;
    desc.seq = SEQ;
    desc.batch = BATCH;
    lap_optimizer_desc_t how = LAP_OPTIMIZER_DESC_INIT;
    how.lr = 0.003f;
    how.clip_norm = 1;
    progress_t progress = {.speaks = lap_world_rank(world) == 0};
    lap_trainer_desc_t training = LAP_TRAINER_DESC_INIT;
    training.model = &desc;
    training.optimizer = &how;
    training.tp = lap_world_size(world);
    training.steps = STEPS;
    training.data = read_text;
    training.log = log_step;
    training.context = &progress;
    lap_trainer_t *trainer;
    TRY(lap_trainer_create(world, &training, &trainer));
    TRY(lap_trainer_run(trainer));

    lap_nn_t *nn = lap_trainer_model(trainer);
    lap_group_t *group = lap_trainer_group(trainer);
    int32_t tokens[BATCH * SEQ];
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

    lap_trainer_destroy(trainer);
    lap_world_destroy(world);
    if (progress.last < 1 && progress.last < progress.first)
        return 0;
    fprintf(stderr, "the loss was %g and is now %g: expected less than 1\n", progress.first,
            progress.last);
    return 1;
}
