/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layers that are to prove what they run (`debug`) prove it with the replicas that lap_dp_create joins: gradients
 * during backward or after it, weights of a shared optimizer during forward or after the step. A plan that does not
 * go with the replicas is found before anything runs. A pipeline proves its step with that of its optimizer when
 * that is made, and with its replicas when they are joined.
 */
#include <lap/data_parallel.h>
#include <lap/model.h>
#include <lap/optimizer.h>

#include <string.h>

#include "nn/nn.h"
#include "nn/program.h"
#include "parallel/grid.h"
#include "parallel/stage_run.h"
#include "tap.h"

typedef struct scene {
    int debug, overlap, overlap_weights;
    size_t shards;
    const lap_tp_overlap_t *rules;
    bool spoiled; /* the plan is that of more ranks than there are */
} scene_t;

static void play(lap_world_t *world, void *arg)
{
    const scene_t *scene = arg;
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    lap_dp_options_t options = LAP_DP_OPTIONS_INIT;
    lap_group_t *all = lap_world_group(world), *own = NULL;
    lap_nn_t *nn = NULL;
    lap_dp_t *dp = NULL;
    desc.kind = LAP_NN_LAYERNORM_MLP;
    desc.seq = 4;
    desc.hidden = desc.heads = 8;
    desc.debug = scene->debug;
    desc.shards = scene->shards;
    desc.shard_bucket = 100;
    desc.shard_group = scene->shards > 1 ? all : NULL;
    options.bucket = 100;
    options.overlap = scene->overlap;
    options.overlap_weights = scene->overlap_weights;
    tap_success(lap_group_split(all, lap_world_rank(world), 0, &own), "a group of one rank");
    tap_success(lap_nn_create(own, &desc, &nn), "layers");
    if (scene->spoiled)
        nn->list.plan.desc.shards = 3;
    const lap_status_t status = lap_dp_create(nn, all, &options, &dp);
    if (scene->spoiled && scene->debug)
        tap_ok(status == LAP_ERR_CHECK, "replicas that the plan does not have are found: %s",
               lap_last_error());
    else
        tap_success(status, "two replicas%s, debug %d", scene->shards > 1 ? " with shards" : "",
                    scene->debug);
    const lap_nn_replication_t proved = lap_nn_replication(nn);
    if (status == LAP_OK)
        tap_ok(proved.replicas == 2 && proved.bucket == 100 && proved.late == !scene->overlap &&
                   proved.ahead == (scene->shards > 1 && scene->overlap_weights),
               "what is proved has gradients %s backward, weights %s forward",
               proved.late ? "after" : "during", proved.ahead ? "during" : "before");
    lap_dp_destroy(dp);
    lap_nn_destroy(nn);
    lap_group_destroy(own);
}

/* ---- pipelines ---- */

static lap_status_t create_stages(const lap_grid_groups_t *groups, const scene_t *scene,
                                  lap_pp_t **pp_p)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    lap_pp_options_t options = LAP_PP_OPTIONS_INIT;
    (void)lap_model_preset("gpt", &desc);
    desc.layers = 2;
    desc.seq = desc.max_positions = 4;
    desc.batch = 1;
    desc.hidden = desc.ffn = 16;
    desc.heads = desc.kv_heads = 2;
    desc.head_dim = 8;
    desc.vocab = 12;
    desc.debug = scene->debug;
    desc.shards = scene->shards;
    desc.shard_bucket = 100;
    desc.shard_group = scene->shards > 1 ? groups->replicas : NULL;
    desc.overlap = scene->rules;
    options.micro_batches = 2;
    return lap_pp_create(groups->tp, groups->pp, &desc, &options, pp_p);
}

/* The result of the proof that belongs to a call, for the step of the optimizer. */
static void is_proved(const lap_pp_t *pp, const scene_t *scene, lap_status_t status,
                      const char *what)
{
    lap_nn_desc_t desc;
    const lap_stage_proving_t proved = lap_stage_own_proving(pp, &desc);
    if (scene->spoiled && scene->debug)
        tap_ok(status == LAP_ERR_INVALID, "%s: stages that there are not are found: %s", what,
               lap_last_error());
    else
        tap_success(status, "%s of a pipeline, debug %d", what, scene->debug);
    if (!scene->spoiled)
        tap_ok(proved.how.optimizer == &pp->nn->optimizer && pp->nn->has_optimizer,
               "%s: the optimizer's step is a part of what is proved", what);
    if (pp->nn->background && !scene->spoiled)
        tap_ok(proved.how.replication.replicas == 2 &&
                   proved.how.replication.late == !scene->overlap,
               "%s: two replicas, gradients %s backward", what,
               proved.how.replication.late ? "after" : "during");
}

/* Whether all calls of this rank of an operator of its list have that method in what is proved. */
static bool proves_method(const lap_pp_t *pp, uint32_t call, const char *method)
{
    lap_nn_desc_t desc;
    const lap_stage_proving_t proving = lap_stage_own_proving(pp, &desc);
    const int rank = pp->pipeline->rank * proving.tp + pp->nn->list.rank;
    lap_stage_programs_t programs;
    bool good = lap_stage_programs_init(&programs, &proving) == LAP_OK;
    size_t found = 0;
    for (uint32_t f = 0; good && f < programs.all.programs[rank].nfragments; f++) {
        const lap_stage_item_t *item = &programs.programs[rank].items[f];
        const lap_nn_entry_t *entry = &pp->nn->list.entries[item->entry];
        if (item->kind != LAP_STAGE_ENTRY || entry->work != LAP_NN_OPERATOR || entry->index != call)
            continue;
        found++;
        good = strcmp(programs.all.programs[rank].fragments[f].schedule.method, method) == 0;
    }
    lap_stage_programs_clear(&programs);
    return good && found > 0;
}

/* Methods that "auto" has chosen are those that are proved, of all ranks. */
static void play_choices(lap_world_t *world, void *arg)
{
    const lap_grid_t grid = {2, 1, 2, 1};
    lap_tp_overlap_t rules;
    lap_tp_switches_t switches = LAP_TP_SWITCHES_INIT;
    const scene_t scene = {.overlap = 1, .rules = &rules};
    lap_grid_groups_t groups;
    lap_pp_t *pp = NULL;
    (void)arg;
    switches.automatic = 1;
    tap_success(lap_tp_overlap_init(grid.tp, &rules), "rules");
    tap_success(lap_tp_overlap_switch(&rules, &switches), "... that are auto");
    tap_success(lap_grid_groups_init(&groups, &grid, lap_world_group(world)), "groups");
    tap_success(create_stages(&groups, &scene, &pp), "a pipeline");
    const lap_nn_list_t *list = &pp->nn->list;
    const lap_op_desc_t *own = pp->choices.of[pp->pipeline->rank];
    size_t chosen = 0, same = 0;
    for (uint32_t i = 0; i < list->nsteps; i++) {
        const char *method = list->steps[i].desc.method;
        chosen += method && strcmp(method, LAP_AUTO) == 0;
        same += strcmp(own[i].method, lap_op_method(pp->nn->calls[i].op)) == 0 &&
                proves_method(pp, i, own[i].method);
    }
    tap_ok(chosen > 0 && same == list->nsteps,
           "%zu of %u operators are proved with the method that they have, %zu of them by auto",
           same, (unsigned)list->nsteps, chosen);
    uint32_t gather = 0;
    while (list->steps[gather].desc.kind != LAP_AG_GEMM)
        gather++;
    lap_op_desc_t *other = &pp->choices.descs[own - pp->choices.descs + gather];
    *other = list->steps[gather].desc; /* without the knobs of what was chosen */
    other->method = "ring";
    tap_ok(proves_method(pp, gather, "ring"), "... and with another, had auto chosen that");
    lap_pp_destroy(pp);
    lap_grid_groups_clear(&groups);
}

static void play_stages(lap_world_t *world, void *arg)
{
    const scene_t *scene = arg;
    const lap_grid_t grid = {1, 1, 2, 2};
    lap_optimizer_desc_t how = LAP_OPTIMIZER_DESC_INIT;
    lap_dp_options_t options = LAP_DP_OPTIONS_INIT;
    lap_grid_groups_t groups;
    lap_pp_t *pp = NULL;
    lap_dp_t *dp = NULL;
    lap_optimizer_t *optimizer = NULL;
    how.clip_norm = 1;
    options.bucket = 100;
    options.overlap = scene->overlap;
    options.overlap_weights = scene->overlap_weights;
    tap_success(lap_grid_groups_init(&groups, &grid, lap_world_group(world)), "groups");
    tap_success(create_stages(&groups, scene, &pp), "a pipeline");
    if (scene->spoiled)
        pp->nn->list.plan.desc.layers = 1; /* of two ranks: only the proof looks at it again */
    is_proved(pp, scene, lap_optimizer_create(pp->nn, groups.model, &how, &optimizer), "optimizer");
    if (!scene->spoiled)
        is_proved(pp, scene, lap_dp_create(pp->nn, groups.replicas, &options, &dp), "replicas");
    lap_dp_destroy(dp);
    lap_optimizer_destroy(optimizer);
    lap_pp_destroy(pp);
    lap_grid_groups_clear(&groups);
}

int main(void)
{
    tap_ranks(4, NULL, play_choices, NULL);
    for (int i = 0; i < 8; i++) {
        scene_t scene = {1, i & 1, i >> 1 & 1, i & 4 ? 2 : 0, NULL, false};
        tap_ranks(4, NULL, play_stages, &scene);
    }
    for (int debug = 0; debug < 2; debug++) {
        scene_t scene = {debug, 1, 1, 0, NULL, true};
        tap_ranks(4, NULL, play_stages, &scene);
    }
    for (int i = 0; i < 8; i++) {
        scene_t scene = {1, i & 1, i >> 1 & 1, i & 4 ? 2 : 0, NULL, false};
        tap_ranks(2, NULL, play, &scene);
    }
    for (int debug = 0; debug < 2; debug++) {
        scene_t scene = {debug, 1, 1, 2, NULL, true};
        tap_ranks(2, NULL, play, &scene);
    }
    return tap_done();
}
