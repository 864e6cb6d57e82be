/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps as one program each, with that of the optimizer, make the same bits as forward, loss, backward and step one by
 * one: of layers and of models, with replicas and pipelines. They run on the device that LAP_DEVICE names.
 */
#include <stdlib.h>
#include <string.h>

#include "nn/memory.h"
#include "tap.h"
#include "train/trainer.h"

enum { STEPS = 4, SEQ = 6, VOCAB = 17 };

typedef struct way {
    const char *name;
    lap_nn_kind_t kind;
    int tp, pp, dp;
    int shared, late; /* replicas share the optimizer; nothing travels behind passes */
    lap_fp8_recipe_t fp8;
    size_t micros;
} way_t;

/* What came of a training. */
typedef struct made {
    double losses[STEPS], norms[STEPS];
    float *masters;
    size_t count;
} made_t;

static lap_status_t give(void *context, uint64_t first, size_t count, size_t seq, int32_t *tokens,
                         int32_t *targets)
{
    (void)context;
    for (size_t i = 0; i < count * seq; i++) {
        tokens[i] = (int32_t)(tap_random(1, first * seq + i) % VOCAB);
        targets[i] = (int32_t)(tap_random(2, first * seq + i) % VOCAB);
    }
    return LAP_OK;
}

static lap_nn_desc_t describe(const way_t *way)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    desc.kind = way->kind;
    desc.layers = way->kind == LAP_NN_MODEL ? 2 : 1;
    desc.vocab = way->kind == LAP_NN_MODEL ? VOCAB : 0;
    desc.seq = SEQ;
    desc.hidden = way->fp8 ? 64 : 24;
    desc.heads = way->fp8 ? 4 : 12;
    desc.fp8 = way->fp8;
    desc.dtype = way->fp8 ? LAP_BFLOAT16 : LAP_FLOAT32;
    return desc;
}

static lap_status_t step(lap_trainer_t *trainer, lap_trainer_result_t *result)
{
    LAP_TRY(lap_trainer_read(trainer));
    for (size_t m = 0; m < lap_trainer_passes(trainer); m++) {
        LAP_TRY(lap_trainer_begin(trainer, m));
        LAP_TRY(lap_trainer_wait(trainer));
        LAP_TRY(lap_trainer_add_loss(trainer));
    }
    LAP_TRY(lap_trainer_sync(trainer, &result->loss));
    LAP_TRY(lap_trainer_update(trainer, result));
    return lap_trainer_end_step(trainer);
}

static lap_status_t train(const lap_grid_groups_t *groups, const way_t *way, bool joined,
                          made_t *made)
{
    const lap_nn_desc_t model = describe(way);
    lap_optimizer_desc_t rates = LAP_OPTIMIZER_DESC_INIT;
    lap_dp_options_t replicas = LAP_DP_OPTIONS_INIT;
    lap_trainer_desc_t desc = LAP_TRAINER_DESC_INIT;
    lap_trainer_t trainer;
    rates.clip_norm = 0.5f;
    replicas.bucket = 1000;
    replicas.overlap = replicas.overlap_weights = !way->late;
    replicas.overlap_step = way->shared && !way->late;
    desc.model = &model;
    desc.micro_batches = way->micros;
    desc.optimizer = &rates;
    desc.replicas = &replicas;
    desc.distributed_optimizer = way->shared;
    desc.steps = STEPS + 1;
    desc.data = give;
    lap_status_t status = lap_trainer_init(&trainer, groups, &desc);
    if (status == LAP_OK)
        lap_trainer_join(&trainer, joined, joined);
    for (int s = 0; s < STEPS && status == LAP_OK; s++) {
        lap_trainer_result_t result = {.loss = 0};
        status = step(&trainer, &result);
        made->losses[s] = result.loss;
        made->norms[s] = result.norm;
    }
    if (status == LAP_OK && way->shared)
        status = lap_nn_refresh(trainer.nn);
    if (status == LAP_OK)
        status = lap_nn_wait(trainer.nn);
    if (status == LAP_OK) {
        const float *masters = lap_nn_masters(trainer.nn, &made->count);
        made->masters = nn_fetch(trainer.nn, masters, made->count);
    }
    lap_trainer_clear(&trainer);
    return status;
}

static void compare(lap_world_t *world, void *arg)
{
    const way_t *way = arg;
    const lap_grid_t grid = {.tp = way->tp, .cp = 1, .pp = way->pp, .dp = way->dp};
    lap_grid_groups_t groups;
    made_t apart = {.masters = NULL}, joined = {.masters = NULL};
    tap_success(lap_grid_groups_init(&groups, &grid, lap_world_group(world)), "%s: groups",
                way->name);
    tap_success(train(&groups, way, false, &apart), "... one pass after the other");
    tap_success(train(&groups, way, true, &joined), "... and steps as programs");
    tap_ok(apart.masters && joined.masters && apart.count == joined.count &&
               memcmp(apart.masters, joined.masters, apart.count * sizeof(float)) == 0 &&
               memcmp(apart.losses, joined.losses, sizeof(apart.losses)) == 0 &&
               memcmp(apart.norms, joined.norms, sizeof(apart.norms)) == 0 && apart.norms[0] > 0 &&
               apart.losses[STEPS - 1] < apart.losses[0] * 2,
           "... have the same bits, losses %g to %g", apart.losses[0], apart.losses[STEPS - 1]);
    free(apart.masters);
    free(joined.masters);
    lap_grid_groups_clear(&groups);
}

int main(void)
{
    static way_t ways[] = {
        {"layers", LAP_NN_TRANSFORMER, 1, 1, 1, .micros = 1},
        {"layers of two ranks", LAP_NN_TRANSFORMER, 2, 1, 1, .micros = 2},
        {"replicas", LAP_NN_TRANSFORMER, 1, 1, 2, .micros = 2},
        {"replicas without overlap", LAP_NN_TRANSFORMER, 1, 1, 2, .late = 1, .micros = 1},
        {"a shared optimizer", LAP_NN_MODEL, 1, 1, 2, .shared = 1, .micros = 1},
        {"... without overlap", LAP_NN_MODEL, 1, 1, 2, .shared = 1, .late = 1, .micros = 1},
        {"delayed FP8", LAP_NN_MODEL, 2, 1, 1, .fp8 = LAP_FP8_DELAYED, .micros = 2},
        {"a pipeline", LAP_NN_MODEL, 1, 2, 1, .micros = 3},
        {"pipelines", LAP_NN_MODEL, 1, 2, 2, .micros = 2},
        {"... without overlap", LAP_NN_MODEL, 1, 2, 2, .late = 1, .micros = 2},
        {"... that share the optimizer", LAP_NN_MODEL, 1, 2, 2, .shared = 1, .micros = 2},
        {"... both", LAP_NN_MODEL, 1, 2, 2, .shared = 1, .late = 1, .micros = 2},
    };
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
        tap_launched_ranks(ways[i].tp * ways[i].pp * ways[i].dp, NULL, compare, &ways[i]);
    return tap_done();
}
