/* SPDX-License-Identifier: Apache-2.0 */
/* A training as one object: see lap/train.h. It only calls what programs could call themselves. */
#include <lap/train.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include <lap/checkpoint.h>

#include "checkpoint/checkpoint.h"
#include "core/options.h"
#include "core/status.h"
#include "core/terms.h"
#include "core/world.h"
#include "parallel/grid.h"
#include "util/alloc.h"
#include "util/clock.h"

struct lap_trainer {
    lap_trainer_desc_t desc;
    lap_nn_desc_t model;
    lap_optimizer_desc_t rates;
    lap_grid_groups_t groups;
    lap_pp_t *pp; /* NULL: no pipeline */
    lap_nn_t *nn; /* of a pipeline: what this rank has of it */
    lap_optimizer_t *optimizer;
    lap_dp_t *dp;                 /* NULL: one replica */
    lap_checkpoint_t *checkpoint; /* NULL: nothing is saved or loaded */
    int32_t *tokens, *targets;    /* of a micro-batch; of a pipeline: of all */
    uint64_t step, samples;       /* so far */
    uint64_t saved;               /* the step of the latest checkpoint */
    bool saving;
};

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
    if (desc->pp == 1) {
        LAP_TRY(lap_nn_create(trainer->groups.tp, &trainer->model, &trainer->nn));
        return lap_nn_defer(trainer->nn, 1); /* a step is one program */
    }
    if (desc->pipeline)
        LAP_TRY(lap_read_options(&options, sizeof(options), desc->pipeline, "LAP_PP_OPTIONS"));
    options.micro_batches = desc->micro_batches;
    LAP_TRY(lap_pp_create(trainer->groups.tp, trainer->groups.pp, &trainer->model, &options,
                          &trainer->pp));
    trainer->nn = lap_pp_layers(trainer->pp);
    return LAP_OK;
}

/* The grid of a description; with dp 0 as many replicas as the ranks make. */
static lap_grid_t grid_of(const lap_trainer_desc_t *desc, int size)
{
    lap_grid_t grid = {.tp = desc->tp, .cp = desc->cp, .pp = desc->pp, .dp = 1};
    const int64_t others = lap_grid_ranks(&grid, LAP_SLICE_WORLD);
    grid.dp = desc->dp > 0 ? desc->dp : others <= size ? size / (int)others : 1;
    return grid;
}

static lap_status_t make_parts(lap_trainer_t *trainer, lap_world_t *world)
{
    const lap_trainer_desc_t *desc = &trainer->desc;
    const lap_grid_t grid = grid_of(desc, lap_world_size(world));
    const size_t count =
        trainer->model.batch * trainer->model.seq * (desc->pp > 1 ? desc->micro_batches : 1);
    LAP_TRY(lap_grid_groups_init(&trainer->groups, &grid, lap_world_group(world)));
    trainer->model.cp = (size_t)grid.cp;
    trainer->model.cp_group = trainer->groups.cp;
    if (desc->distributed_optimizer && trainer->groups.replicas) {
        trainer->model.shards = (size_t)grid.dp * (size_t)grid.cp;
        trainer->model.shard_bucket = desc->replicas ? desc->replicas->bucket : 0;
        trainer->model.shard_by_layer = desc->replicas ? desc->replicas->by_layer : 0;
        trainer->model.shard_group = trainer->groups.replicas;
    }
    LAP_TRY(make_layers(trainer));
    LAP_TRY(lap_optimizer_create(trainer->nn, trainer->groups.model, &trainer->rates,
                                 &trainer->optimizer));
    if (trainer->groups.replicas)
        LAP_TRY(lap_dp_create(trainer->nn, trainer->groups.replicas, desc->replicas, &trainer->dp));
    trainer->tokens = lap_alloc(count, sizeof(*trainer->tokens));
    trainer->targets = lap_alloc(count, sizeof(*trainer->targets));
    const bool room = trainer->tokens && trainer->targets;
    return lap_group_agree(trainer->groups.world,
                           room ? LAP_OK
                                : lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu tokens", count));
}

/* Whether checkpoints can be written, before there is anything to lose. By the first rank. */
static lap_status_t try_place(const lap_trainer_t *trainer)
{
    int lock = -1;
    if (lap_group_rank(trainer->groups.world) != 0)
        return LAP_OK;
    LAP_TRY(lap_ckpt_folder_lock(trainer->desc.save, &lock));
    close(lock);
    return LAP_OK;
}

static lap_status_t begin(lap_trainer_t *trainer)
{
    const lap_trainer_desc_t *desc = &trainer->desc;
    lap_checkpoint_state_t state = LAP_CHECKPOINT_STATE_INIT;
    if (!desc->save && !desc->load)
        return LAP_OK;
    LAP_TRY(lap_group_agree(trainer->groups.world,
                            lap_checkpoint_create(trainer->groups.world, trainer->nn,
                                                  trainer->optimizer, &trainer->checkpoint)));
    if (desc->save)
        LAP_TRY(lap_group_agree(trainer->groups.world, try_place(trainer)));
    if (!desc->load)
        return LAP_OK;
    LAP_TRY(lap_checkpoint_load(trainer->checkpoint, desc->load, &state));
    trainer->step = trainer->saved = state.step;
    trainer->samples = state.samples;
    return LAP_OK;
}

/* The description of this rank, with those that it points to. */
static lap_status_t read_desc(lap_trainer_t *trainer, const lap_trainer_desc_t *given)
{
    lap_trainer_desc_t *desc = &trainer->desc;
    *desc = (lap_trainer_desc_t)LAP_TRAINER_DESC_INIT;
    trainer->model = (lap_nn_desc_t)LAP_NN_DESC_INIT;
    trainer->rates = (lap_optimizer_desc_t)LAP_OPTIMIZER_DESC_INIT;
    LAP_TRY(lap_read_options(desc, sizeof(*desc), given, "LAP_TRAINER_DESC"));
    LAP_TRY(check(desc));
    LAP_TRY(lap_read_options(&trainer->model, sizeof(trainer->model), desc->model, "LAP_NN_DESC"));
    return desc->optimizer ? lap_read_options(&trainer->rates, sizeof(trainer->rates),
                                              desc->optimizer, "LAP_OPTIMIZER_DESC")
                           : LAP_OK;
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
    lap_status_t status = compare(trainer, world, read_desc(trainer, given));
    if (status == LAP_OK)
        status = make_parts(trainer, world);
    if (status == LAP_OK)
        status = begin(trainer);
    if (status != LAP_OK) {
        lap_trainer_destroy(trainer);
        return status;
    }
    *trainer_p = trainer;
    return LAP_OK;
}

void lap_trainer_destroy(lap_trainer_t *trainer)
{
    lap_saved_error_t saved;
    if (!trainer)
        return;
    lap_error_save(&saved);
    lap_checkpoint_destroy(trainer->checkpoint);
    lap_dp_destroy(trainer->dp);
    lap_optimizer_destroy(trainer->optimizer);
    if (trainer->pp)
        lap_pp_destroy(trainer->pp);
    else
        lap_nn_destroy(trainer->nn);
    lap_grid_groups_clear(&trainer->groups);
    lap_free(trainer->tokens);
    lap_free(trainer->targets);
    lap_free(trainer);
    lap_error_restore(&saved);
}

/* ---- a step ---- */

/*
 * Whoever is called back may have a sentence of the library for its failure, or none: then lap_last_error would tell
 * nothing, or of something else.
 */
static void forget_error(void)
{
    (void)lap_error(LAP_OK, "%s", "");
}

static lap_status_t explain(lap_status_t status, const char *what, uint64_t step)
{
    if (status == LAP_OK || *lap_last_error())
        return status;
    const char *text = lap_status_string(status);
    const bool known = strcmp(text, lap_status_string((lap_status_t)INT32_MIN)) != 0;
    return lap_error(known ? status : LAP_ERR_INVALID,
                     "step %" PRIu64 ": the function of the description that %s returned %d (%s)%s",
                     step, what, (int)status, text,
                     known ? "" : ", expected a status of the library");
}

/* One that is in progress ends first. */
static lap_status_t end_save(lap_trainer_t *trainer)
{
    if (!trainer->saving)
        return LAP_OK;
    trainer->saving = false;
    return lap_checkpoint_wait(trainer->checkpoint);
}

/*
 * A failure that all ranks have, of which they have told each other. They finish a save together while they can: no step
 * may follow. Where a rank has died meanwhile this ends at once.
 */
static lap_status_t fail_together(lap_trainer_t *trainer, lap_status_t status)
{
    lap_saved_error_t saved;
    if (status == LAP_OK)
        return LAP_OK;
    lap_error_save(&saved);
    (void)end_save(trainer);
    lap_error_restore(&saved);
    return status;
}

/*
 * The sequences of a step are dealt out to replicas in order, and those of a replica to its micro-batches: those of
 * micro-batches [m, m + count).
 */
static lap_status_t read_data(lap_trainer_t *trainer, size_t m, size_t count)
{
    const lap_nn_desc_t *model = &trainer->model;
    const uint64_t before = (uint64_t)trainer->groups.at.dp * trainer->desc.micro_batches + m;
    const uint64_t first = trainer->samples + before * model->batch;
    forget_error();
    const lap_status_t status =
        trainer->desc.data(trainer->desc.context, first, count * model->batch, model->seq,
                           trainer->tokens, trainer->targets);
    const lap_status_t agreed =
        lap_group_agree(trainer->groups.world, explain(status, "gives data", trainer->step + 1));
    LAP_TRY(fail_together(trainer, agreed));
    return lap_model_samples(trainer->nn, first);
}

/* The optimizer's step follows the last of the passes. */
static lap_status_t run_passes(lap_trainer_t *trainer, float scale, double *loss_p)
{
    const size_t micro = trainer->desc.micro_batches, seq = trainer->model.seq;
    double mean = 0;
    lap_nn_zero_gradients(trainer->nn);
    for (size_t m = 0; m < micro; m++) {
        double loss;
        LAP_TRY(read_data(trainer, m, 1));
        lap_nn_accumulate(trainer->nn, m + 1 < micro);
        LAP_TRY(lap_model_forward(trainer->nn, seq, trainer->tokens, trainer->targets));
        LAP_TRY(lap_model_backward(trainer->nn));
        if (m + 1 == micro)
            LAP_TRY(lap_optimizer_step(trainer->optimizer, scale, NULL));
        LAP_TRY(lap_nn_wait(trainer->nn));
        LAP_TRY(lap_nn_loss_value(trainer->nn, &loss));
        mean += loss / (double)micro;
    }
    *loss_p = mean;
    return LAP_OK;
}

/* The same of a pipeline, which has all micro-batches at once. */
static lap_status_t run_pipeline(lap_trainer_t *trainer, float scale, double *loss_p)
{
    lap_nn_zero_gradients(trainer->nn);
    LAP_TRY(read_data(trainer, 0, trainer->desc.micro_batches));
    LAP_TRY(lap_pp_step(trainer->pp, trainer->model.seq, trainer->tokens, trainer->targets));
    LAP_TRY(lap_pp_wait(trainer->pp));
    LAP_TRY(lap_pp_loss(trainer->pp, loss_p));
    if (trainer->dp)
        LAP_TRY(lap_dp_wait(trainer->dp));
    LAP_TRY(lap_optimizer_step(trainer->optimizer, scale, NULL));
    return lap_nn_wait(trainer->nn);
}

static lap_status_t save(lap_trainer_t *trainer)
{
    lap_checkpoint_state_t state = LAP_CHECKPOINT_STATE_INIT;
    LAP_TRY(end_save(trainer));
    state.step = trainer->step;
    state.samples = trainer->samples;
    LAP_TRY(lap_checkpoint_save(trainer->checkpoint, trainer->desc.save, &state));
    trainer->saved = trainer->step;
    trainer->saving = true;
    return LAP_OK;
}

/* Finishes a save whose thread has ended: it is whole only then. */
static lap_status_t poll_save(lap_trainer_t *trainer)
{
    if (!trainer->saving)
        return LAP_OK;
    const lap_status_t status = lap_checkpoint_poll(trainer->checkpoint);
    trainer->saving = status == LAP_IN_PROGRESS;
    return trainer->saving ? LAP_OK : status;
}

/* No step may follow the last one, and lap_trainer_destroy cannot finish a save: it is local. */
static lap_status_t save_where_due(lap_trainer_t *trainer)
{
    const lap_trainer_desc_t *desc = &trainer->desc;
    const uint64_t every = desc->save_every;
    if (desc->save && (trainer->step == desc->steps || (every > 0 && trainer->step % every == 0)))
        LAP_TRY(save(trainer));
    return trainer->step >= desc->steps ? end_save(trainer) : LAP_OK;
}

lap_status_t lap_trainer_step(lap_trainer_t *trainer, lap_trainer_log_t *log_p)
{
    lap_trainer_log_t log = {0};
    const uint64_t begin_ns = lap_now_ns();
    if (!trainer)
        return lap_error(LAP_ERR_INVALID, "lap_trainer_step: trainer is NULL");
    const lap_trainer_desc_t *desc = &trainer->desc;
    const double sharers = (double)trainer->groups.grid.dp * (double)desc->micro_batches;
    LAP_TRY((trainer->pp ? run_pipeline : run_passes)(trainer, (float)(1 / sharers), &log.loss));
    if (trainer->dp)
        LAP_TRY(lap_group_mean(trainer->groups.replicas, &log.loss, 1));
    LAP_TRY(lap_optimizer_norm(trainer->optimizer, &log.grad_norm));
    LAP_TRY(poll_save(trainer));
    trainer->step++;
    trainer->samples += (uint64_t)sharers * trainer->model.batch;
    if (!isfinite(log.loss) || !isfinite(log.grad_norm))
        return fail_together(
            trainer, lap_error(LAP_ERR_INVALID,
                               "step %" PRIu64 ": the loss is %g and the norm of the gradients %g, "
                               "expected finite numbers",
                               trainer->step, log.loss, log.grad_norm));
    LAP_TRY(save_where_due(trainer));
    log.step = trainer->step;
    log.samples = trainer->samples;
    log.lr = lap_optimizer_rate(&trainer->rates, (size_t)trainer->step);
    log.seconds = (double)(lap_now_ns() - begin_ns) * 1e-9;
    if (log_p)
        *log_p = log;
    if (!desc->log)
        return LAP_OK;
    forget_error();
    const lap_status_t logged = explain(desc->log(desc->context, &log), "logs steps", log.step);
    return fail_together(trainer, lap_group_agree(trainer->groups.world, logged));
}

lap_status_t lap_trainer_run(lap_trainer_t *trainer)
{
    if (!trainer)
        return lap_error(LAP_ERR_INVALID, "lap_trainer_run: trainer is NULL");
    while (trainer->step < trainer->desc.steps)
        LAP_TRY(lap_trainer_step(trainer, NULL));
    if (trainer->desc.save && trainer->saved < trainer->step)
        LAP_TRY(save(trainer));
    return end_save(trainer);
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
