/* SPDX-License-Identifier: Apache-2.0 */
/* A training as one object: see lap/train.h. */
#include "train/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include <lap/checkpoint.h>

#include "core/options.h"
#include "core/status.h"
#include "core/terms.h"
#include "core/world.h"
#include "device/device.h"
#include "util/alloc.h"
#include "util/clock.h"

/* ---- making one ---- */

static lap_status_t check(const lap_trainer_desc_t *desc)
{
    if (!desc->model || desc->model->kind != LAP_NN_MODEL)
        return lap_error(LAP_ERR_INVALID, "model is %s, expected a model: see lap_model_preset",
                         desc->model ? lap_nn_kind_name(desc->model->kind) : "NULL");
    const int sizes[] = {desc->tp, desc->cp, desc->pp, desc->dp};
    for (int axis = 0; axis < LAP_AXES; axis++)
        if (sizes[axis] < (axis != LAP_AXIS_DP))
            return lap_error(LAP_ERR_INVALID, "%s is %d, expected at least %d",
                             lap_axis_name((lap_axis_t)axis), sizes[axis], axis != LAP_AXIS_DP);
    if (desc->micro_batches < 1 || desc->micro_batches > INT32_MAX)
        return lap_error(LAP_ERR_INVALID, "micro_batches is %zu, expected 1 to %d",
                         desc->micro_batches, INT32_MAX);
    if (!desc->data)
        return lap_error(LAP_ERR_INVALID, "data is NULL, expected a function that gives samples");
    return LAP_OK;
}

/*
 * Ends what a rank made of its description by itself, and compares what neither layers, optimizer nor replicas compare over
 * all ranks. A rank that saves alone, or makes other steps, would wait for the others in the middle of a training.
 */
static lap_status_t compare(const lap_trainer_t *trainer, lap_world_t *world, lap_status_t mine)
{
    const lap_trainer_desc_t *desc = &trainer->desc;
    const lap_nn_desc_t *model = &trainer->model;
    lap_terms_t terms = {.of = "lap_trainer_create"};
    if (mine == LAP_OK) {
        lap_terms_number(&terms, "tp", (uint64_t)desc->tp);
        lap_terms_number(&terms, "cp", (uint64_t)desc->cp);
        lap_terms_number(&terms, "pp", (uint64_t)desc->pp);
        lap_terms_number(&terms, "dp", (uint64_t)desc->dp);
        lap_terms_number(&terms, "micro_batches", desc->micro_batches);
        lap_terms_number(&terms, "steps", desc->steps);
        lap_terms_text(&terms, "save", desc->save);
        lap_terms_number(&terms, "save_every", desc->save_every);
        lap_terms_text(&terms, "load", desc->load);
        lap_terms_number(&terms, "distributed_optimizer", desc->distributed_optimizer != 0);
        lap_terms_text(&terms, "log", desc->log ? "a function" : "NULL");
        lap_terms_number(&terms, "model.batch", model->batch);
        lap_terms_number(&terms, "model.seq", model->seq);
        lap_terms_real(&terms, "model.hidden_dropout", (double)model->hidden_dropout);
        lap_terms_real(&terms, "model.attention_dropout", (double)model->attention_dropout);
    }
    const lap_status_t status = lap_terms_agree(&terms, lap_world_group(world), mine);
    lap_terms_clear(&terms);
    return status;
}

/* Layers, or what this rank of a pipeline has of the model. */
static lap_status_t make_layers(lap_trainer_t *trainer)
{
    const lap_trainer_desc_t *desc = &trainer->desc;
    lap_pp_options_t options = LAP_PP_OPTIONS_INIT;
    if (!trainer->groups.pp)
        return lap_nn_create(trainer->groups.tp, &trainer->model, &trainer->nn);
    if (desc->pipeline)
        LAP_TRY(lap_read_options(&options, sizeof(options), desc->pipeline, "LAP_PP_OPTIONS"));
    options.micro_batches = desc->micro_batches;
    LAP_TRY(lap_pp_create(trainer->groups.tp, trainer->groups.pp, &trainer->model, &options,
                          &trainer->pp));
    trainer->nn = lap_pp_layers(trainer->pp);
    return LAP_OK;
}

static lap_status_t make_parts(lap_trainer_t *trainer)
{
    const lap_trainer_desc_t *desc = &trainer->desc;
    const lap_grid_groups_t *groups = &trainer->groups;
    lap_nn_desc_t *model = &trainer->model;
    LAP_TRY(lap_device_of(groups->world->world, &trainer->device));
    model->cp = (size_t)groups->grid.cp;
    model->cp_group = groups->cp;
    if (desc->distributed_optimizer && groups->replicas) {
        model->shards = (size_t)groups->grid.dp * (size_t)groups->grid.cp;
        model->shard_bucket = desc->replicas ? desc->replicas->bucket : 0;
        model->shard_by_layer = desc->replicas ? desc->replicas->by_layer : 0;
        model->shard_group = groups->replicas;
    }
    LAP_TRY(make_layers(trainer));
    LAP_TRY(lap_optimizer_create(trainer->nn, groups->model, &trainer->rates, &trainer->optimizer));
    if (groups->replicas)
        LAP_TRY(lap_dp_create(trainer->nn, groups->replicas, desc->replicas, &trainer->dp));
    return lap_group_agree(groups->world, lap_trainer_data_init(trainer));
}

/* The description of this rank, and those that it points to; checked if groups are its `own`. */
static lap_status_t read_desc(lap_trainer_t *trainer, const lap_trainer_desc_t *given, bool own)
{
    lap_trainer_desc_t *desc = &trainer->desc;
    *trainer = (lap_trainer_t){
        .desc = LAP_TRAINER_DESC_INIT, .model = LAP_NN_DESC_INIT, .rates = LAP_OPTIMIZER_DESC_INIT};
    trainer->scale.scale = 1;
    LAP_TRY(lap_read_options(desc, sizeof(*desc), given, "LAP_TRAINER_DESC"));
    LAP_TRY(own ? check(desc) : LAP_OK);
    LAP_TRY(lap_read_options(&trainer->model, sizeof(trainer->model), desc->model, "LAP_NN_DESC"));
    return desc->optimizer ? lap_read_options(&trainer->rates, sizeof(trainer->rates),
                                              desc->optimizer, "LAP_OPTIMIZER_DESC")
                           : LAP_OK;
}

lap_status_t lap_trainer_init(lap_trainer_t *trainer, const lap_grid_groups_t *groups,
                              const lap_trainer_desc_t *given)
{
    LAP_TRY(read_desc(trainer, given, false));
    trainer->groups = *groups;
    return make_parts(trainer);
}

/* The grid of a description; with dp 0 as many replicas as the ranks make. */
static lap_grid_t grid_of(const lap_trainer_desc_t *desc, int size)
{
    lap_grid_t grid = {.tp = desc->tp, .cp = desc->cp, .pp = desc->pp, .dp = 1};
    const int64_t others = lap_grid_ranks(&grid, LAP_SLICE_WORLD);
    grid.dp = desc->dp > 0 ? desc->dp : others <= size ? size / (int)others : 1;
    return grid;
}

/* A model on groups of its own, and what it goes on from. A step is one program. */
static lap_status_t make(lap_trainer_t *trainer, lap_world_t *world)
{
    const lap_grid_t grid = grid_of(&trainer->desc, lap_world_size(world));
    trainer->own_groups = true;
    LAP_TRY(lap_grid_groups_init(&trainer->groups, &grid, lap_world_group(world)));
    LAP_TRY(make_parts(trainer));
    lap_trainer_join(trainer, true, true);
    LAP_TRY(lap_trainer_open(trainer));
    return trainer->desc.load ? lap_trainer_load(trainer) : LAP_OK;
}

lap_status_t lap_trainer_create(lap_world_t *world, const lap_trainer_desc_t *given,
                                lap_trainer_t **trainer_p)
{
    if (!world || !given || !trainer_p)
        return lap_error(LAP_ERR_INVALID, "lap_trainer_create: %s is NULL",
                         !world  ? "world"
                         : given ? "trainer_p"
                                 : "desc");
    lap_trainer_t *trainer = lap_alloc(1, sizeof(*trainer));
    if (!trainer)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a training");
    lap_status_t status = compare(trainer, world, read_desc(trainer, given, true));
    if (status == LAP_OK)
        status = make(trainer, world);
    if (status != LAP_OK) {
        lap_trainer_destroy(trainer);
        return status;
    }
    *trainer_p = trainer;
    return LAP_OK;
}

void lap_trainer_clear(lap_trainer_t *trainer)
{
    const lap_tensor_t tensors[] = {trainer->x, trainer->y, trainer->target, trainer->dx};
    lap_checkpoint_destroy(trainer->checkpoint);
    if (trainer->lock > 0)
        close(trainer->lock);
    lap_dp_destroy(trainer->dp);
    lap_optimizer_destroy(trainer->optimizer);
    if (trainer->pp)
        lap_pp_destroy(trainer->pp);
    else
        lap_nn_destroy(trainer->nn);
    for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++)
        if (tensors[i].data)
            trainer->device->ops->free(trainer->device, tensors[i].data);
    lap_free(trainer->tokens);
    lap_free(trainer->targets);
    if (trainer->own_groups)
        lap_grid_groups_clear(&trainer->groups);
    memset(trainer, 0, sizeof(*trainer));
}

void lap_trainer_destroy(lap_trainer_t *trainer)
{
    lap_saved_error_t saved;
    if (!trainer)
        return;
    lap_error_save(&saved);
    lap_trainer_clear(trainer);
    lap_free(trainer);
    lap_error_restore(&saved);
}

/* ---- a step ---- */

/* Where the loss is not finite the optimizer makes no step, unless that is a part of the pass. */
static lap_status_t make_step(lap_trainer_t *trainer, lap_trainer_result_t *result)
{
    LAP_TRY(lap_trainer_fail(trainer, lap_trainer_read(trainer)));
    for (size_t m = 0; m < lap_trainer_passes(trainer); m++) {
        LAP_TRY(lap_trainer_begin(trainer, m));
        LAP_TRY(lap_trainer_wait(trainer));
        LAP_TRY(lap_trainer_add_loss(trainer));
    }
    LAP_TRY(lap_trainer_sync(trainer, &result->loss));
    if (isfinite(result->loss))
        LAP_TRY(lap_trainer_update(trainer, result));
    if (isfinite(result->loss) && isfinite(result->norm))
        return LAP_OK;
    return lap_trainer_fail(trainer, lap_error(LAP_ERR_INVALID,
                                               "step %" PRIu64
                                               ": the loss is %g and the norm of the gradients %g, "
                                               "expected finite numbers",
                                               trainer->step + 1, result->loss, result->norm));
}

/* Whoever is called back may have a sentence of the library for its failure, or none. */
static lap_status_t log_step(lap_trainer_t *trainer, const lap_trainer_log_t *log)
{
    const lap_trainer_desc_t *desc = &trainer->desc;
    if (!desc->log)
        return LAP_OK;
    (void)lap_error(LAP_OK, "%s", "");
    const lap_status_t logged =
        lap_trainer_explain(desc->log(desc->context, log), "logs steps", log->step);
    return lap_trainer_fail(trainer, lap_group_agree(trainer->groups.world, logged));
}

lap_status_t lap_trainer_step(lap_trainer_t *trainer, lap_trainer_log_t *log_p)
{
    lap_trainer_result_t result = {.loss = 0};
    const uint64_t begin_ns = lap_now_ns();
    if (!trainer)
        return lap_error(LAP_ERR_INVALID, "lap_trainer_step: trainer is NULL");
    LAP_TRY(make_step(trainer, &result));
    LAP_TRY(lap_trainer_end_step(trainer));
    /* No step may follow the last, and lap_trainer_destroy cannot finish a save: it is local. */
    if (trainer->step >= trainer->desc.steps)
        LAP_TRY(lap_trainer_end(trainer, trainer->step == trainer->desc.steps));
    const lap_trainer_log_t log = {.step = trainer->step,
                                   .loss = result.loss,
                                   .grad_norm = result.norm,
                                   .lr = lap_optimizer_rate(&trainer->rates, (size_t)trainer->step),
                                   .seconds = (double)(lap_now_ns() - begin_ns) * 1e-9,
                                   .samples = trainer->samples};
    if (log_p)
        *log_p = log;
    return log_step(trainer, &log);
}

lap_status_t lap_trainer_run(lap_trainer_t *trainer)
{
    if (!trainer)
        return lap_error(LAP_ERR_INVALID, "lap_trainer_run: trainer is NULL");
    while (trainer->step < trainer->desc.steps)
        LAP_TRY(lap_trainer_step(trainer, NULL));
    return LAP_OK;
}

lap_nn_t *lap_trainer_model(lap_trainer_t *trainer)
{
    return trainer ? trainer->nn : NULL;
}

lap_group_t *lap_trainer_group(lap_trainer_t *trainer)
{
    return trainer ? trainer->groups.tp : NULL;
}

uint64_t lap_trainer_steps(const lap_trainer_t *trainer)
{
    return trainer ? trainer->step : 0;
}
