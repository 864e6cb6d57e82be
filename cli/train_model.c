/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trainer of `lap train`: what the command line makes of its description, a step of it with what is logged and measured
 * of each part, and the report of numbers that are not finite.
 */
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>

#include "core/status.h"
#include "core/world.h"
#include "nn/nn.h"
#include "train.h"
#include "util/clock.h"

/* ---- a description ---- */

lap_nn_desc_t lap_train_layers(const lap_train_t *train, bool overlap)
{
    lap_nn_desc_t desc = train->desc;
    desc.overlap = overlap ? &train->rules : &train->serial;
    desc.cp_overlap = overlap;
    return desc;
}

lap_pp_options_t lap_train_stages(const lap_train_t *train, bool overlap)
{
    lap_pp_options_t options = train->pipeline;
    options.micro_batches = (size_t)train->micro;
    options.layers_per_stage = options.nlayers_per_stage ? train->stages : NULL;
    options.overlap = options.overlap && overlap;
    return options;
}

lap_dp_options_t lap_train_replicas(const lap_train_t *train, bool overlap)
{
    lap_dp_options_t options = train->replicas;
    options.overlap = options.overlap && overlap;
    options.overlap_weights = options.overlap_weights && overlap;
    return options;
}

lap_nn_replication_t lap_train_replication(const lap_train_t *train, int replicas)
{
    const lap_dp_options_t options = lap_train_replicas(train, train->overlap);
    return (lap_nn_replication_t){.replicas = replicas,
                                  .bucket = options.bucket,
                                  .by_layer = options.by_layer,
                                  .wire = options.wire_dtype,
                                  .late = !options.overlap,
                                  .ahead = options.overlap_weights,
                                  .starts = options.overlap_step};
}

/* ---- a trainer ---- */

lap_status_t lap_train_trace(lap_train_model_t *model, bool on)
{
    if (model->trainer.dp)
        LAP_TRY(lap_dp_measure(model->trainer.dp, on));
    return lap_nn_trace(model->trainer.nn, on);
}

lap_status_t lap_train_model_init(lap_train_model_t *model, const lap_train_t *train,
                                  const lap_grid_groups_t *groups, bool overlap, bool trace,
                                  lap_link_t link)
{
    lap_nn_desc_t layers = lap_train_layers(train, overlap);
    lap_buffer_options_t buffer = LAP_BUFFER_OPTIONS_INIT;
    lap_optimizer_desc_t optimizer = train->optimizer;
    lap_dp_options_t replicas = lap_train_replicas(train, overlap);
    lap_pp_options_t stages = lap_train_stages(train, overlap);
    lap_trainer_desc_t desc = LAP_TRAINER_DESC_INIT;
    *model = (lap_train_model_t){
        .train = train, .shuffle = train->shuffle, .data_seed = train->data_seed, .loaded = -1};
    buffer.transport = train->transport;
    buffer.link = link;
    layers.buffer_options = replicas.buffer_options = stages.buffer_options = &buffer;
    if (train->dynamic && optimizer.clip_norm == 0)
        optimizer.clip_norm = FLT_MAX; /* the norm shows whether gradients are finite */
    desc.model = &layers;
    desc.micro_batches = (size_t)train->micro;
    desc.optimizer = &optimizer;
    desc.replicas = &replicas;
    desc.pipeline = &stages;
    desc.distributed_optimizer = layers.shards > 1;
    desc.steps = (uint64_t)train->iters;
    desc.data = lap_train_data_give;
    desc.context = model;
    desc.save = train->save;
    desc.save_every = (uint64_t)train->save_every;
    desc.load = train->load;
    LAP_TRY(lap_trainer_init(&model->trainer, groups, &desc));
    model->trainer.scale = train->scale;
    model->trainer.dynamic = train->dynamic;
    model->trainer.keep = (uint64_t)train->keep;
    if (train->data)
        LAP_TRY(lap_train_data_open(train, &model->data));
    return lap_train_trace(model, trace);
}

void lap_train_model_clear(lap_train_model_t *model)
{
    lap_trainer_clear(&model->trainer);
    lap_data_close(model->data);
    lap_trace_clear(&model->records); /* passes in flight are added to them when layers end */
    lap_train_times_reset(&model->times);
    *model = (lap_train_model_t){.train = NULL};
}

/* ---- a step ---- */

bool lap_train_joins(const lap_train_t *train, bool traced)
{
    return !traced && train->optimizer.clip_norm > 0;
}

/* The lines of the parts of a pass, with its micro-batch where there are several. */
static void say_pass(const lap_train_model_t *model, size_t micro)
{
    static const char *const parts[2][4] = {{"Forward pass", "Compute loss", "Backward pass"},
                                            {"Forward pass and loss", "Backward pass"}};
    const lap_train_t *train = model->train;
    const lap_group_t *tp = model->trainer.groups.tp;
    char of[64] = "";
    if (train->micro > 1)
        snprintf(of, sizeof(of), ", micro-batch %zu of %d", micro + 1, train->micro);
    if (model->trainer.pp)
        lap_train_log(train, tp, "|-- Pipeline of %d micro-batches", train->micro);
    for (const char *const *part = parts[train->model != NULL]; *part && !model->trainer.pp; part++)
        lap_train_log(train, tp, "|-- %s%s", *part, of);
}

static double seconds_since(uint64_t begin)
{
    return (double)(lap_now_ns() - begin) * 1e-9;
}

/* What is looked at between two passes is no part of the iteration. */
static lap_status_t look_between(lap_train_model_t *model, lap_train_iteration_t *iteration)
{
    lap_train_times_pause(&model->times);
    LAP_TRY(lap_train_measure_passes(model, iteration));
    LAP_TRY(lap_group_barrier(model->trainer.groups.world));
    lap_train_times_resume(&model->times);
    return LAP_OK;
}

lap_status_t lap_train_step(lap_train_model_t *model, bool logs, lap_train_iteration_t *iteration)
{
    const lap_train_t *train = model->train;
    lap_trainer_t *trainer = &model->trainer;
    lap_trainer_result_t result = {.loss = 0};
    lap_train_times_reset(&model->times);
    lap_train_times_resume(&model->times);
    if (model->timeline && iteration->traced)
        lap_trace_reset(model->timeline);
    for (size_t m = 0; m < lap_trainer_passes(trainer); m++) {
        if (m > 0 && iteration->traced)
            LAP_TRY(look_between(model, iteration));
        if (logs)
            say_pass(model, m);
        const uint64_t begin = lap_now_ns();
        lap_train_forget(model);
        LAP_TRY(lap_trainer_begin(trainer, m));
        iteration->issue += seconds_since(begin);
        lap_train_note(model, "issue", begin);
        const uint64_t issued = lap_now_ns();
        LAP_TRY(lap_trainer_wait(trainer));
        iteration->passes += seconds_since(begin);
        LAP_TRY(lap_trainer_add_loss(trainer));
        lap_train_note(model, "wait for the pass", issued);
    }
    const uint64_t passed = lap_now_ns();
    LAP_TRY(lap_trainer_sync(trainer, &result.loss));
    lap_train_note(model, "wait for replicas", passed);
    if (isfinite(result.loss) || train->goes_on) {
        lap_train_log(train, logs ? trainer->groups.tp : NULL, "|-- Optimizer step");
        const uint64_t synced = lap_now_ns();
        LAP_TRY(lap_trainer_update(trainer, &result));
        lap_train_note(model, "optimizer step", synced);
    }
    lap_train_times_pause(&model->times);
    iteration->seconds = (double)model->times.ns * 1e-9;
    iteration->loss = result.loss;
    iteration->norm = result.norm;
    iteration->scale = result.scale;
    iteration->skipped = result.skipped;
    iteration->skips = result.skips;
    return LAP_OK;
}

/* ---- numbers that are not finite ---- */

lap_status_t lap_train_report_not_finite(lap_train_model_t *model, const char *way,
                                         const lap_train_iteration_t *iteration)
{
    static const char *const kinds[] = {"nothing", "parameter", "activation", "gradient of"};
    const lap_train_t *train = model->train;
    lap_trainer_t *trainer = &model->trainer;
    const int index = (int)trainer->step;
    lap_nn_not_finite_t found;
    LAP_TRY(lap_trainer_find_not_finite(trainer, iteration->loss, &found));
    model->reported = true;
    if (lap_group_rank(trainer->groups.world) != 0)
        return LAP_OK;
    char where[160] = "all parameters, activations and gradients are finite";
    if (trainer->pp)
        snprintf(where, sizeof(where), "with --pp no tensor is looked for");
    if (found.what != LAP_NN_ALL_FINITE)
        snprintf(where, sizeof(where), "the first tensor that is not finite is %s %s, of rank %d",
                 kinds[found.what], found.name, found.rank);
    const bool of_loss = !isfinite(iteration->loss), scaled = !of_loss && trainer->scale.scale > 1;
    const double value = of_loss ? iteration->loss : iteration->norm;
    char why[PATH_MAX + 64];
    if (train->load && index == model->loaded)
        snprintf(why, sizeof(why), "%s --load %s",
                 found.what == LAP_NN_PARAMETER ? "no step was made since it came with"
                                                : "no step was made since",
                 train->load);
    else if (scaled) /* a dynamic scale has fallen as far as it may */
        snprintf(why, sizeof(why), "--%s, which is %g, or --lr, which is %g, may be too large",
                 train->dynamic ? "min-loss-scale" : "loss-scale", trainer->scale.scale,
                 (double)train->optimizer.lr);
    else
        snprintf(why, sizeof(why), "--lr, which is %g, may be too large",
                 (double)train->optimizer.lr);
    lap_tell(lap_train_command.name, "iteration %d%s: the %s is %g: %s; %s%s", index + 1, way,
             of_loss ? "loss" : "norm of the gradients", isnan(value) ? fabs(value) : value, where,
             why, train->goes_on ? "" : " (--continue-on-nan goes on)");
    return LAP_OK;
}
