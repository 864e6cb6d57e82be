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
#include <string.h>

#include <lap/lap.h>

enum { SEQ = 32, BATCH = 2, MICRO_BATCHES = 4, STEPS = 150 };

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

int main(int argc, char **argv)
{
    lap_world_t *world;
    TRY(lap_world_create(NULL, &world));
    lap_group_t *pipeline = lap_world_group(world), *alone;
    const int rank = lap_world_rank(world);
    TRY(lap_group_split(pipeline, rank, 0, &alone)); /* the layers of a rank are its own */

    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    TRY(lap_model_preset("gpt", &desc)); /* a vocabulary of 256: bytes */
    desc.layers = 4;
    desc.hidden = 64;
    desc.heads = desc.kv_heads = 4;
    desc.head_dim = 16;
    desc.ffn = 256;
    desc.seq = SEQ;
    desc.batch = BATCH; /* of a micro-batch */
    lap_pp_options_t options = LAP_PP_OPTIONS_INIT;
    options.schedule = argc > 1 ? argv[1] : "1f1b";
    options.micro_batches = MICRO_BATCHES;
    lap_pp_t *pp;
    TRY(lap_pp_create(alone, pipeline, &desc, &options, &pp));
    lap_optimizer_desc_t how = LAP_OPTIMIZER_DESC_INIT;
    how.lr = 0.003f;
    how.clip_norm = 1; /* of all stages together */
    lap_optimizer_t *optimizer;
    TRY(lap_optimizer_create(lap_pp_layers(pp), pipeline, &how, &optimizer));

    int32_t tokens[MICRO_BATCHES * BATCH * SEQ], targets[MICRO_BATCHES * BATCH * SEQ];
    const size_t count = sizeof(tokens) / sizeof(tokens[0]), places = sizeof(text) - 1 - SEQ - 1;
    double loss = 0, first = 0;
    for (int step = 0; step < STEPS; step++) {
        for (size_t i = 0; i < count; i++) { /* each sequence from another place */
            const size_t sequence = (size_t)step * MICRO_BATCHES * BATCH + i / SEQ;
            const size_t at = sequence * 37 % places + i % SEQ;
            tokens[i] = (unsigned char)text[at];
            targets[i] = (unsigned char)text[at + 1];
        }
        TRY(lap_pp_step(pp, SEQ, tokens, targets));
        TRY(lap_pp_wait(pp));
        TRY(lap_pp_loss(pp, &loss));
        TRY(lap_optimizer_step(optimizer, 1.0f / MICRO_BATCHES, NULL));
        first = step == 0 ? loss : first;
        if (rank == 0 && (step + 1) % 20 == 0)
            printf("step %d: loss %.3f\n", step + 1, loss);
    }

    lap_optimizer_destroy(optimizer);
    lap_pp_destroy(pp);
    lap_group_destroy(alone);
    lap_world_destroy(world);
    if (loss < 1 && loss < first)
        return 0;
    fprintf(stderr, "the loss was %g and is now %g: expected less than 1\n", first, loss);
    return 1;
}
