/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tiny GPT of 08_gpt.c in a pipeline: each rank has some of its layers, and the micro-batches of a step
 * go from rank to rank and back, one forward and one backward in turn. While a rank computes, what it
 * computed before is on its way. With an argument the schedule is another one: interleaved, zb-h1, zb-v or
 * a file of PyTorch's.
 *
 * Run it with: lap run -n 2 09_pipeline
 */
#include <stdio.h>

#include <lap/lap.h>

enum { STEPS = 150 };

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

/* Each sequence is from another place of the text. */
static lap_status_t read_text(void *context, uint64_t first, size_t count, size_t seq,
                              int32_t *tokens, int32_t *targets)
{
    (void)context;
    for (size_t i = 0; i < count * seq; i++) {
        const size_t at = (size_t)(first + i / seq) * 37 % (sizeof(text) - 1 - seq - 1) + i % seq;
        tokens[i] = (unsigned char)text[at];
        targets[i] = (unsigned char)text[at + 1];
    }
    return LAP_OK;
}

int main(int argc, char **argv)
{
    lap_world_t *world;
    TRY(lap_world_create(NULL, &world));

    lap_nn_desc_t model = LAP_NN_DESC_INIT;
    TRY(lap_model_preset("gpt", &model)); /* a vocabulary of 256: bytes */
    model.layers = 4;
    model.hidden = 64;
    model.heads = model.kv_heads = 4;
    model.head_dim = 16;
    model.ffn = 256;
    model.seq = 32;
    model.batch = 2; /* of a micro-batch */
    lap_pp_options_t pipeline = LAP_PP_OPTIONS_INIT;
    pipeline.schedule = argc > 1 ? argv[1] : "1f1b";
    lap_optimizer_desc_t optimizer = LAP_OPTIMIZER_DESC_INIT;
    optimizer.lr = 0.003f;
    optimizer.clip_norm = 1; /* of all stages together */
    lap_trainer_desc_t desc = LAP_TRAINER_DESC_INIT;
    desc.model = &model;
    desc.pp = lap_world_size(world);
    desc.pipeline = &pipeline;
    desc.micro_batches = 4;
    desc.optimizer = &optimizer;
    desc.data = read_text;
    lap_trainer_t *trainer;
    TRY(lap_trainer_create(world, &desc, &trainer));

    lap_trainer_log_t log;
    double first = 0;
    for (int step = 0; step < STEPS; step++) {
        TRY(lap_trainer_step(trainer, &log));
        first = step == 0 ? log.loss : first;
        if (lap_world_rank(world) == 0 && log.step % 20 == 0)
            printf("step %d: loss %.3f\n", (int)log.step, log.loss);
    }

    lap_trainer_destroy(trainer);
    lap_world_destroy(world);
    if (log.loss < 1 && log.loss < first)
        return 0;
    fprintf(stderr, "the loss was %g and is now %g: expected less than 1\n", first, log.loss);
    return 1;
}
