/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizers: the rates of each step, which is a pass of the layers (step.c), and the count of steps.
 * Whether a step was made is found on the device, so the latest one is counted when it has ended.
 */
#include <lap/optimizer.h>

#include <math.h>

#include "core/options.h"
#include "core/status.h"
#include "core/world.h"
#include "nn/nn.h"
#include "nn/nn_fields.h"
#include "util/alloc.h"

struct lap_optimizer {
    lap_nn_t *nn;
    lap_group_t *group;
    lap_optimizer_desc_t desc;
    bool added;   /* its step is a part of the layers' list */
    size_t steps; /* made so far, */
    bool issued;  /* but for the latest one, of which the rates of the layers tell */
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
    if (!desc)
        return 0;
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

/* Local. */
static lap_status_t fill_in(lap_optimizer_t *optimizer, const lap_optimizer_desc_t *desc)
{
    LAP_TRY(read_desc(desc, &optimizer->desc));
    if (optimizer->nn->has_optimizer)
        return lap_error(LAP_ERR_INVALID,
                         "lap_optimizer_create: the layers have an optimizer already, expected "
                         "lap_optimizer_destroy of it before");
    optimizer->added = true;
    return lap_nn_add_step(optimizer->nn, optimizer->group, &optimizer->desc);
}

lap_status_t lap_optimizer_create(lap_nn_t *nn, lap_group_t *group,
                                  const lap_optimizer_desc_t *desc, lap_optimizer_t **optimizer_p)
{
    if (!nn || !group || !optimizer_p)
        return lap_error(LAP_ERR_INVALID, "%s is NULL, expected %s",
                         !nn      ? "nn"
                         : !group ? "group"
                                  : "optimizer_p",
                         !nn      ? "layers"
                         : !group ? "their group"
                                  : "a pointer to write it to");
    lap_optimizer_t *optimizer = lap_alloc(1, sizeof(*optimizer));
    lap_status_t status = LAP_OK;
    if (optimizer) {
        optimizer->nn = lap_nn_keep(nn);
        optimizer->group = lap_group_keep(group);
        status = fill_in(optimizer, desc);
    } else {
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for an optimizer");
    }
    /* A rank that cannot go on says so, instead of leaving the others to wait. */
    const char *before = lap_enter(group->world, "lap_optimizer_create");
    status = lap_nn_take_optimizer(nn, group, optimizer ? &optimizer->desc : NULL, status);
    if (status == LAP_OK)
        status = lap_nn_start_step(nn);
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
    if (optimizer->added)
        lap_nn_drop_step(optimizer->nn);
    lap_nn_let_go(optimizer->nn);
    lap_group_t *group = optimizer->group;
    lap_free(optimizer);
    lap_group_let_go(group);
    lap_error_restore(&saved);
}

/* ---- a step ---- */

/* The steps that were made; of one that is in flight nobody knows yet. */
static size_t count_steps(const lap_optimizer_t *optimizer)
{
    return optimizer->steps + (optimizer->issued && optimizer->nn->rates[1].made);
}

lap_status_t lap_optimizer_prepare(lap_optimizer_t *optimizer, float scale)
{
    const lap_optimizer_desc_t *desc = &optimizer->desc;
    lap_rates_t *rates = optimizer->nn->rates;
    LAP_TRY(lap_nn_end_part(optimizer->nn, LAP_NN_STEP)); /* nothing of a step is in flight */
    optimizer->steps = count_steps(optimizer);
    const size_t step = optimizer->steps + 1;
    rates[0] = (lap_rates_t){
        .scale = scale,
        .lr = (float)lap_optimizer_rate(desc, step),
        .correction1 = (float)(1 - pow(desc->beta1, (double)step)),
        .correction2 = (float)(1 - pow(desc->beta2, (double)step)),
    };
    rates[1] = (lap_rates_t){.made = 0};
    optimizer->issued = true;
    return LAP_OK;
}

/* A step on the gradients of a part of the data would be a wrong one. */
static lap_status_t check_gradients(const lap_nn_t *nn)
{
    LAP_TRY(lap_nn_step_ended(nn, "lap_optimizer_step"));
    if (nn->joined && nn->sync == LAP_NN_LEAVING)
        return lap_error(LAP_ERR_INVALID,
                         "lap_optimizer_step: gradients are on their way to other replicas: "
                         "expected lap_dp_wait before");
    if (nn->sharers && !nn->background)
        return lap_error(LAP_ERR_INVALID,
                         "lap_optimizer_step: ranks share the optimizer: expected lap_dp_create, "
                         "which joins them, before");
    return LAP_OK;
}

lap_status_t lap_optimizer_step(lap_optimizer_t *optimizer, float scale, double *norm_p)
{
    if (!optimizer)
        return lap_error(LAP_ERR_INVALID, "lap_optimizer_step: optimizer is NULL");
    if (!(scale > 0) || !isfinite(scale))
        return lap_error(LAP_ERR_INVALID, "scale is %g, expected a finite number above 0",
                         (double)scale);
    LAP_TRY(check_gradients(optimizer->nn));
    LAP_TRY(lap_optimizer_prepare(optimizer, scale));
    LAP_TRY(lap_nn_run_step(optimizer->nn));
    return norm_p ? lap_optimizer_norm(optimizer, norm_p) : LAP_OK;
}

lap_status_t lap_optimizer_norm(lap_optimizer_t *optimizer, double *norm_p)
{
    if (!optimizer || !norm_p)
        return lap_error(LAP_ERR_INVALID, "lap_optimizer_norm: %s is NULL",
                         optimizer ? "norm_p" : "optimizer");
    const bool clips = optimizer->desc.clip_norm > 0;
    if (clips)
        LAP_TRY(lap_nn_end_part(optimizer->nn, LAP_NN_STEP));
    *norm_p = clips ? fabs(optimizer->nn->rates[1].norm) : 0; /* an x86 makes -nan of 0 * inf */
    return LAP_OK;
}

/* ---- state ---- */

float *lap_optimizer_moments(lap_optimizer_t *optimizer, size_t which, size_t *count_p)
{
    if (!optimizer || which >= (optimizer->desc.kind == LAP_ADAMW ? 2u : 1u))
        return NULL;
    const lap_tensor_t moments = lap_nn_tensor(optimizer->nn, optimizer->nn->list.moments[which]);
    if (count_p)
        *count_p = moments.cols;
    return moments.data;
}

size_t lap_optimizer_steps(const lap_optimizer_t *optimizer)
{
    return optimizer ? count_steps(optimizer) : 0;
}

void lap_optimizer_set_steps(lap_optimizer_t *optimizer, size_t steps)
{
    if (!optimizer)
        return;
    optimizer->steps = steps;
    optimizer->issued = false;
}
