/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One allocation after another fails while what several groups of ranks have in common is made: layers whose ranks share
 * weights, sequences and the optimizer, and pipelines and replicas, which are used, too. On every rank the failure comes back as
 * what it is, the lack of memory, and not as what it has led to, a rank that is in another call or has left.
 * Linked with --wrap for lap_alloc and lap_realloc.
 */
#include <stdio.h>
#include <stdlib.h>

#include <lap/data_parallel.h>
#include <lap/model.h>
#include <lap/optimizer.h>
#include <lap/pipeline.h>

#include "failing_alloc.h"
#include "nn/sequences.h"
#include "parallel/grid.h"
#include "tap.h"

enum { MOST_RANKS = 4, SEQ = 4, VOCAB = 13, MICRO = 2, STRIDE = 17 };

/* What is made. */
typedef struct scene {
    const char *name;
    lap_grid_t grid;
    lap_cp_comm_t cp_comm;
    bool shards, joins; /* the optimizer; replicas */
} scene_t;

static const scene_t scenes[] = {
    {"a pipeline of three ranks", {1, 1, 3, 1}, LAP_CP_P2P, false, false},
    {"two pipelines whose ranks share layers", {2, 1, 2, 1}, LAP_CP_P2P, false, false},
    {"layers of two ranks", {2, 1, 1, 1}, LAP_CP_P2P, false, false},
    {"two contexts whose ranks share layers", {2, 2, 1, 1}, LAP_CP_P2P, false, false},
    {"a context of two rings", {1, 4, 1, 1}, LAP_CP_A2A_P2P, false, false},
    {"two optimizers whose ranks share layers", {2, 1, 1, 2}, LAP_CP_P2P, true, false},
    {"an optimizer of two contexts", {1, 2, 1, 2}, LAP_CP_P2P, true, false},
    {"two groups of replicas whose ranks share layers", {2, 1, 1, 2}, LAP_CP_P2P, false, true},
};

typedef struct outcome {
    lap_status_t status;
    char sentence[200];
} outcome_t;

typedef struct job {
    const scene_t *scene;
    int nth;
    outcome_t outcomes[MOST_RANKS];
} job_t;

static lap_status_t step(lap_pp_t *pp)
{
    int32_t tokens[MICRO * SEQ], targets[MICRO * SEQ];
    for (size_t m = 0; m < MICRO; m++)
        fill_tokens(0, m, SEQ, VOCAB, tokens + m * SEQ, targets + m * SEQ);
    const lap_status_t status = lap_pp_step(pp, SEQ, tokens, targets);
    return status == LAP_OK ? lap_pp_wait(pp) : status;
}

/* That sums over ranks. */
static lap_status_t make_optimizer(lap_nn_t *nn, const lap_grid_groups_t *groups)
{
    lap_optimizer_desc_t desc = LAP_OPTIMIZER_DESC_INIT;
    lap_optimizer_t *optimizer = NULL;
    desc.clip_norm = 1;
    const lap_status_t status = lap_optimizer_create(nn, groups->model, &desc, &optimizer);
    lap_optimizer_destroy(optimizer);
    return status;
}

static lap_status_t make_pipeline(const lap_grid_groups_t *groups, const lap_nn_desc_t *desc)
{
    lap_pp_options_t options = LAP_PP_OPTIONS_INIT;
    lap_pp_t *pp = NULL;
    options.micro_batches = MICRO;
    lap_status_t status = lap_pp_create(groups->tp, groups->pp, desc, &options, &pp);
    if (status == LAP_OK)
        status = make_optimizer(lap_pp_layers(pp), groups);
    if (status == LAP_OK)
        status = step(pp);
    lap_pp_destroy(pp);
    return status;
}

/* From here on allocations are counted. */
static lap_status_t arm(const job_t *job, lap_world_t *world)
{
    lap_group_t *group = lap_world_group(world);
    lap_status_t status = lap_group_barrier(group);
    if (status == LAP_OK && lap_world_rank(world) == 0)
        atomic_store(&countdown, job->nth);
    return status == LAP_OK ? lap_group_barrier(group) : status;
}

/* A step, whose gradients are summed over replicas. Those whose layers could not be made know nothing of the others. */
static lap_status_t use_replicas(const job_t *job, lap_world_t *world, lap_nn_t *nn,
                                 const lap_grid_groups_t *groups)
{
    int32_t tokens[SEQ], targets[SEQ];
    lap_dp_t *dp = NULL;
    fill_tokens(0, 0, SEQ, VOCAB, tokens, targets);
    lap_status_t status = arm(job, world);
    if (status == LAP_OK)
        status = lap_dp_create(nn, groups->replicas, NULL, &dp);
    if (status == LAP_OK)
        status = lap_model_forward(nn, SEQ, tokens, targets);
    if (status == LAP_OK)
        status = lap_model_backward(nn);
    if (status == LAP_OK)
        status = lap_dp_wait(dp);
    lap_dp_destroy(dp);
    return status;
}

static lap_status_t make(const job_t *job, lap_world_t *world, const lap_grid_groups_t *groups)
{
    const scene_t *scene = job->scene;
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    lap_nn_t *nn = NULL;
    (void)lap_model_preset("gpt2-124m", &desc);
    desc.layers = (size_t)scene->grid.pp;
    desc.seq = desc.max_positions = SEQ;
    desc.batch = 1;
    desc.hidden = 16;
    desc.heads = desc.kv_heads = 4;
    desc.head_dim = 4;
    desc.ffn = 8;
    desc.vocab = VOCAB;
    desc.tied = 1;
    desc.cp = (size_t)scene->grid.cp;
    desc.cp_group = groups->cp;
    desc.cp_comm = scene->cp_comm;
    desc.shards = scene->shards ? (size_t)(scene->grid.cp * scene->grid.dp) : 1;
    desc.shard_group = scene->shards ? groups->replicas : NULL;
    lap_status_t status = scene->joins ? LAP_OK : arm(job, world);
    if (status == LAP_OK && scene->grid.pp > 1)
        return make_pipeline(groups, &desc);
    if (status == LAP_OK)
        status = lap_nn_create(groups->tp, &desc, &nn);
    if (status == LAP_OK && (scene->shards || scene->grid.cp == 1)) /* all have one */
        status = make_optimizer(nn, groups);
    if (status == LAP_OK && scene->joins)
        status = use_replicas(job, world, nn, groups);
    lap_nn_destroy(nn);
    return status;
}

static void run(lap_world_t *world, void *arg)
{
    job_t *job = arg;
    outcome_t *outcome = &job->outcomes[lap_world_rank(world)];
    lap_grid_groups_t groups;
    lap_status_t status = lap_grid_groups_init(&groups, &job->scene->grid, lap_world_group(world));
    if (status == LAP_OK)
        status = make(job, world, &groups);
    outcome->status = status;
    snprintf(outcome->sentence, sizeof(outcome->sentence), "%s", lap_last_error());
    lap_grid_groups_clear(&groups);
}

/* Returns whether an allocation was made to fail. */
static bool round_of(const scene_t *scene, int nth)
{
    const int size = (int)lap_grid_ranks(&scene->grid, LAP_SLICE_WORLD);
    job_t job = {.scene = scene, .nth = nth};
    if (!failing_ranks(size, 0, run, &job))
        return false;
    const bool injected = atomic_load(&countdown) <= 0;
    for (int r = 0; r < size; r++)
        tap_ok(job.outcomes[r].status == (injected ? LAP_ERR_NO_MEMORY : LAP_OK),
               "%s, allocation %d fails: rank %d returns %s: %s", scene->name, nth, r,
               lap_status_string(job.outcomes[r].status), job.outcomes[r].sentence);
    return injected;
}

int main(int argc, char **argv)
{
    const int stride = argc > 1 ? atoi(argv[1]) : STRIDE;
    for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++) {
        int nth = 1;
        while (round_of(&scenes[i], nth) && nth < 20000)
            nth += stride;
        tap_ok(nth > 100, "%s: allocations were made to fail up to %d", scenes[i].name,
               nth - stride);
    }
    return tap_done();
}
