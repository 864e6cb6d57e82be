/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizers: the norm of all gradients, and a step on all weights. What is done to the numbers is
 * the device's (kernels.h); here is which of them, and in which order.
 */
#include <lap/optimizer.h>

#include <math.h>

#include "core/options.h"
#include "core/status.h"
#include "core/world.h"
#include "nn/nn.h"
#include "nn/nn_fields.h"
#include "schedule/run.h"
#include "util/alloc.h"

/* Parameters that lie side by side and are treated alike. */
typedef struct segment {
    size_t begin, count; /* floats */
    bool decays;
} segment_t;

struct lap_optimizer {
    lap_nn_t *nn;
    lap_group_t *group;
    lap_engine_t *engine;
    const lap_nn_kernels_t *kernels;
    lap_optimizer_desc_t desc;
    segment_t *segments;
    size_t nsegments;
    float *moments; /* the first ones of all weights, then the second ones, if there are any */
    double *sums;   /* of squares, per parameter; shared with the streams */
    lap_event_t *summed;
    size_t steps; /* made so far */
};

/* ---- descriptions ---- */

static bool decays(const lap_optimizer_desc_t *desc)
{
    return desc->lr_decay != LAP_LR_CONSTANT && desc->lr_decay_steps > 0;
}

static lap_status_t read_desc(const lap_optimizer_desc_t *given, lap_optimizer_desc_t *desc_p)
{
    lap_optimizer_desc_t desc = LAP_OPTIMIZER_DESC_INIT;
    if (!given)
        return lap_error(LAP_ERR_INVALID, "desc is NULL, expected a description");
    LAP_TRY(lap_read_options(&desc, sizeof(desc), given, "LAP_OPTIMIZER_DESC"));
    LAP_TRY(lap_fields_check(lap_optimizer_fields, &desc));
    if (decays(&desc) && desc.lr_decay_steps <= desc.warmup)
        return lap_error(LAP_ERR_INVALID,
                         "lr_decay_steps is %zu, expected more than the %zu steps of warmup",
                         desc.lr_decay_steps, desc.warmup);
    if (decays(&desc) && desc.min_lr > desc.lr)
        return lap_error(LAP_ERR_INVALID, "min_lr is %g, expected at most lr, %g",
                         (double)desc.min_lr, (double)desc.lr);
    *desc_p = desc;
    return LAP_OK;
}

lap_status_t lap_optimizer_validate(const lap_optimizer_desc_t *desc)
{
    lap_optimizer_desc_t known;
    return read_desc(desc, &known);
}

double lap_optimizer_rate(const lap_optimizer_desc_t *desc, size_t step)
{
    const double pi = 3.14159265358979323846, lr = desc->lr, least = desc->min_lr;
    const double warmup = (double)desc->warmup, steps = (double)desc->lr_decay_steps;
    if (step < desc->warmup)
        return lr * ((double)step / warmup);
    if (!decays(desc))
        return lr;
    const double part = fmin(1, ((double)step - warmup) / (steps - warmup));
    if (desc->lr_decay == LAP_LR_LINEAR)
        return lr - (lr - least) * part;
    return least + (lr - least) * (1 + cos(pi * part)) / 2;
}

/* ---- making one ---- */

static size_t offset_of(const lap_optimizer_t *optimizer, const lap_nn_param_t *param)
{
    size_t count;
    return (size_t)((float *)param->grad.data - lap_nn_gradients(optimizer->nn, &count));
}

/* Joins parameters that are treated alike, with the zeros between them. */
static lap_status_t find_segments(lap_optimizer_t *optimizer)
{
    const size_t nparams = lap_nn_params(optimizer->nn);
    optimizer->segments = lap_alloc(nparams, sizeof(*optimizer->segments));
    if (!optimizer->segments)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for an optimizer of %zu parameters",
                         nparams);
    for (size_t i = 0; i < nparams; i++) {
        const lap_nn_param_t *param = lap_nn_param(optimizer->nn, i);
        const size_t begin = offset_of(optimizer, param);
        const size_t end = begin + param->rows * param->cols;
        const bool decays = !param->vector;
        segment_t *last = &optimizer->segments[optimizer->nsegments];
        if (i > 0 && last[-1].decays == decays)
            last[-1].count = end - last[-1].begin;
        else
            optimizer->segments[optimizer->nsegments++] =
                (segment_t){.begin = begin, .count = end - begin, .decays = decays};
    }
    return LAP_OK;
}

/* Moments begin with zeros. */
static lap_status_t alloc_moments(lap_optimizer_t *optimizer, size_t count)
{
    const lap_device_ops_t *ops = optimizer->engine->device->ops;
    const size_t all = optimizer->desc.kind == LAP_ADAMW ? 2 * count : count;
    void *memory;
    LAP_TRY(ops->alloc(optimizer->engine->device, all * sizeof(float), &memory));
    optimizer->moments = memory;
    const lap_fill_normal_t zeros = {
        .dtype = LAP_FLOAT32, .rows = 1, .cols = all, .stride = all, .out = memory};
    return optimizer->kernels->fill_normal(optimizer->engine->streams[LAP_STREAM_COMPUTE], &zeros);
}

static lap_status_t fill_in(lap_optimizer_t *optimizer)
{
    size_t count;
    LAP_TRY(lap_engine_get(optimizer->group->world, &optimizer->engine));
    lap_device_t *device = optimizer->engine->device;
    LAP_TRY(lap_nn_kernels_of(device, &optimizer->kernels));
    LAP_TRY(find_segments(optimizer));
    (void)lap_nn_masters(optimizer->nn, &count);
    LAP_TRY(alloc_moments(optimizer, count));
    void *sums;
    LAP_TRY(
        device->ops->alloc_shared(device, lap_nn_params(optimizer->nn) * sizeof(double), &sums));
    optimizer->sums = sums;
    return device->ops->event_create(device, &optimizer->summed);
}

lap_status_t lap_optimizer_create(lap_nn_t *nn, lap_group_t *group,
                                  const lap_optimizer_desc_t *desc, lap_optimizer_t **optimizer_p)
{
    lap_optimizer_desc_t known;
    if (!nn || !group || !optimizer_p)
        return lap_error(LAP_ERR_INVALID, "%s is NULL, expected %s",
                         !nn      ? "nn"
                         : !group ? "group"
                                  : "optimizer_p",
                         !nn      ? "layers"
                         : !group ? "their group"
                                  : "a pointer to write it to");
    lap_status_t status = read_desc(desc, &known);
    lap_optimizer_t *optimizer = lap_alloc(1, sizeof(*optimizer));
    if (status == LAP_OK && !optimizer)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for an optimizer");
    if (status == LAP_OK) {
        *optimizer =
            (lap_optimizer_t){.nn = lap_nn_keep(nn), .group = lap_group_keep(group), .desc = known};
        status = fill_in(optimizer);
    }
    /* A rank that cannot go on says so, instead of leaving the others to wait. */
    const char *before = lap_enter(group->world, "lap_optimizer_create");
    status = lap_nn_take_optimizer(nn, group, &known, status);
    lap_leave(group->world, before);
    if (status != LAP_OK) {
        lap_optimizer_destroy(optimizer);
        return status;
    }
    *optimizer_p = optimizer;
    return LAP_OK;
}

void lap_optimizer_destroy(lap_optimizer_t *optimizer)
{
    lap_saved_error_t saved;
    if (!optimizer)
        return;
    lap_error_save(&saved);
    if (optimizer->engine) {
        lap_device_t *device = optimizer->engine->device;
        (void)device->ops->stream_synchronize(optimizer->engine->streams[LAP_STREAM_COMPUTE]);
        if (optimizer->summed)
            device->ops->event_destroy(optimizer->summed);
        if (optimizer->sums)
            device->ops->free_shared(device, optimizer->sums);
        if (optimizer->moments)
            device->ops->free(device, optimizer->moments);
    }
    lap_nn_let_go(optimizer->nn);
    lap_group_t *group = optimizer->group;
    lap_free(optimizer->segments);
    lap_free(optimizer);
    lap_group_let_go(group);
    lap_error_restore(&saved);
}

/* ---- a step ---- */

/*
 * The sum of the squares of this rank's gradients; what all ranks that share the layers have is counted by
 * the first of them, and what two stages have by the first of these.
 */
static lap_status_t sum_own_squares(lap_optimizer_t *optimizer, double *sum_p)
{
    lap_engine_t *engine = optimizer->engine;
    lap_stream_t *stream = engine->streams[LAP_STREAM_COMPUTE];
    const size_t nparams = lap_nn_params(optimizer->nn);
    double total = 0;
    for (size_t i = 0; i < nparams; i++) {
        const lap_nn_param_t *param = lap_nn_param(optimizer->nn, i);
        const lap_sum_squares_t sum = {.src = param->grad.data,
                                       .count = param->rows * param->cols,
                                       .sum = &optimizer->sums[i]};
        LAP_TRY(optimizer->kernels->sum_squares(stream, &sum));
    }
    LAP_TRY(engine->device->ops->event_record(optimizer->summed, stream));
    LAP_TRY(lap_engine_await(engine, optimizer->summed));
    for (size_t i = 0; i < nparams; i++) {
        const lap_nn_weight_t *weight = &optimizer->nn->list.weights[i];
        if ((!weight->param.replicated || optimizer->nn->group->rank == 0) && !weight->twin)
            total += optimizer->sums[i];
    }
    *sum_p = total;
    return LAP_OK;
}

/* The norm over all parameters, the same bits on every rank of the group. Collective. */
static lap_status_t find_norm(lap_optimizer_t *optimizer, double *norm_p)
{
    double mine, total = 0;
    void *all;
    LAP_TRY(sum_own_squares(optimizer, &mine));
    LAP_TRY(lap_group_collect(optimizer->group, &mine, sizeof(mine), &all));
    for (int r = 0; r < optimizer->group->size; r++)
        total += ((const double *)all)[r];
    lap_free(all);
    *norm_p = sqrt(total);
    return LAP_OK;
}

static lap_status_t update(lap_optimizer_t *optimizer, float scale)
{
    const lap_optimizer_desc_t *desc = &optimizer->desc;
    const double t = (double)++optimizer->steps;
    size_t count;
    float *masters = lap_nn_masters(optimizer->nn, &count);
    const float *gradients = lap_nn_gradients(optimizer->nn, &count);
    for (size_t i = 0; i < optimizer->nsegments; i++) {
        const segment_t *segment = &optimizer->segments[i];
        const lap_update_t step = {
            .kind = desc->kind,
            .count = segment->count,
            .master = masters + segment->begin,
            .grad = gradients + segment->begin,
            .first = optimizer->moments + segment->begin,
            .second = desc->kind == LAP_ADAMW ? optimizer->moments + count + segment->begin : NULL,
            .scale = scale,
            .lr = (float)lap_optimizer_rate(desc, optimizer->steps),
            .decay = segment->decays ? desc->weight_decay : 0,
            .momentum = desc->momentum,
            .beta1 = desc->beta1,
            .beta2 = desc->beta2,
            .epsilon = desc->epsilon,
            .correction1 = (float)(1 - pow(desc->beta1, t)),
            .correction2 = (float)(1 - pow(desc->beta2, t)),
        };
        LAP_TRY(optimizer->kernels->update(optimizer->engine->streams[LAP_STREAM_COMPUTE], &step));
    }
    return lap_nn_refresh(optimizer->nn);
}

/* A step on the gradients of a part of the data would be a wrong one. */
static lap_status_t check_gradients(const lap_nn_t *nn)
{
    LAP_TRY(lap_nn_step_ended(nn, "lap_optimizer_step"));
    if (nn->joined && nn->sync == LAP_NN_LEAVING)
        return lap_error(LAP_ERR_INVALID,
                         "lap_optimizer_step: gradients are on their way to other replicas: "
                         "expected lap_dp_wait before");
    return LAP_OK;
}

lap_status_t lap_optimizer_step(lap_optimizer_t *optimizer, float scale, double *norm_p)
{
    double norm = 0;
    if (!optimizer)
        return lap_error(LAP_ERR_INVALID, "lap_optimizer_step: optimizer is NULL");
    if (!(scale > 0) || !isfinite(scale))
        return lap_error(LAP_ERR_INVALID, "scale is %g, expected a finite number above 0",
                         (double)scale);
    LAP_TRY(check_gradients(optimizer->nn));
    LAP_TRY(lap_nn_wait(optimizer->nn));
    const double clip = optimizer->desc.clip_norm;
    if (clip > 0) {
        LAP_TRY(find_norm(optimizer, &norm));
        norm *= scale;
        if (norm > clip)
            scale = (float)(scale * (clip / (norm + 1e-6)));
    }
    if (isfinite(norm))
        LAP_TRY(update(optimizer, scale));
    if (norm_p)
        *norm_p = norm;
    return LAP_OK;
}

/* ---- state ---- */

float *lap_optimizer_moments(lap_optimizer_t *optimizer, size_t which, size_t *count_p)
{
    if (!optimizer || which >= (optimizer->desc.kind == LAP_ADAMW ? 2u : 1u))
        return NULL;
    (void)lap_nn_masters(optimizer->nn, count_p);
    return optimizer->moments + which * *count_p;
}

size_t lap_optimizer_steps(const lap_optimizer_t *optimizer)
{
    return optimizer ? optimizer->steps : 0;
}

void lap_optimizer_set_steps(lap_optimizer_t *optimizer, size_t steps)
{
    if (optimizer)
        optimizer->steps = steps;
}
