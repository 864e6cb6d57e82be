/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a step: passes, the sums over replicas, and the optimizer. */
#include "train/trainer.h"

#include <math.h>

#include "core/status.h"
#include "core/world.h"
#include "nn/nn.h"
#include "parallel/stage_run.h"
#include "schedule/digest.h"
#include "util/alloc.h"

void lap_trainer_join(lap_trainer_t *trainer, bool joins, bool whole)
{
    trainer->joins = joins;
    trainer->whole = whole || joins;
}

size_t lap_trainer_passes(const lap_trainer_t *trainer)
{
    return trainer->pp ? 1 : trainer->desc.micro_batches;
}

/* ---- passes ---- */

/* What the gradients of a step are multiplied with. */
static float gradient_scale(const lap_trainer_t *trainer)
{
    const double sharers = (double)trainer->groups.grid.dp * (double)trainer->desc.micro_batches;
    return (float)(1 / (sharers * trainer->scale.scale));
}

static lap_status_t begin_model(const lap_trainer_t *trainer, size_t micro, bool steps)
{
    const size_t seq = trainer->model.seq, at = micro * trainer->model.batch * seq;
    const int32_t *tokens = trainer->tokens + at, *targets = trainer->targets + at;
    if (trainer->whole)
        return lap_model_micro(trainer->nn, seq, tokens, targets, steps);
    LAP_TRY(lap_model_forward(trainer->nn, seq, tokens, targets));
    return lap_model_backward(trainer->nn);
}

static lap_status_t begin_layers(const lap_trainer_t *trainer, size_t micro, bool steps)
{
    const size_t seq = trainer->model.seq;
    const lap_tensor_t x = lap_trainer_part(trainer->x, micro),
                       target = lap_trainer_part(trainer->target, micro);
    if (trainer->whole)
        return lap_nn_micro(trainer->nn, seq, &x, &trainer->y, &target, &trainer->dx, steps);
    LAP_TRY(lap_nn_forward(trainer->nn, seq, &x, &trainer->y));
    LAP_TRY(lap_nn_loss(trainer->nn, &trainer->y, &target, &trainer->y));
    return lap_nn_backward(trainer->nn, &trainer->y, &trainer->dx);
}

lap_status_t lap_trainer_begin(lap_trainer_t *trainer, size_t micro)
{
    const bool last = micro + 1 == trainer->desc.micro_batches;
    const bool steps = trainer->joins && (last || trainer->pp);
    if (micro == 0) {
        lap_nn_zero_gradients(trainer->nn);
        LAP_TRY(lap_nn_scale_loss(trainer->nn, (float)trainer->scale.scale));
        trainer->loss = 0;
        trainer->not_finite = trainer->desc.micro_batches;
    }
    trainer->micro = micro;
    if (trainer->tokens)
        LAP_TRY(
            lap_model_samples(trainer->nn, trainer->samples + lap_trainer_first(trainer, micro)));
    if (steps)
        LAP_TRY(lap_optimizer_prepare(trainer->optimizer, gradient_scale(trainer)));
    if (trainer->pp)
        return lap_stage_step(trainer->pp, trainer->model.seq, trainer->tokens, trainer->targets,
                              steps);
    lap_nn_accumulate(trainer->nn, !last);
    return (trainer->tokens ? begin_model : begin_layers)(trainer, micro, steps);
}

lap_status_t lap_trainer_wait(lap_trainer_t *trainer)
{
    return trainer->pp ? lap_pp_wait(trainer->pp) : lap_nn_wait(trainer->nn);
}

lap_status_t lap_trainer_add_loss(lap_trainer_t *trainer)
{
    double loss;
    LAP_TRY(trainer->pp ? lap_pp_loss(trainer->pp, &loss) : lap_nn_loss_value(trainer->nn, &loss));
    trainer->loss += loss / (double)lap_trainer_passes(trainer);
    if (!isfinite(loss) && trainer->not_finite == trainer->desc.micro_batches)
        trainer->not_finite = trainer->micro;
    return LAP_OK;
}

/* ---- what follows them ---- */

lap_status_t lap_trainer_sync(lap_trainer_t *trainer, double *loss_p)
{
    double loss = trainer->loss;
    if (trainer->dp && !trainer->joins)
        LAP_TRY(lap_dp_wait(trainer->dp));
    if (trainer->dp)
        LAP_TRY(lap_group_mean(trainer->groups.replicas, &loss, 1));
    *loss_p = isnan(loss) ? (double)NAN : loss; /* without a sign, which some processors give it */
    return LAP_OK;
}

lap_status_t lap_trainer_update(lap_trainer_t *trainer, lap_trainer_result_t *result)
{
    result->scale = trainer->scale.scale;
    if (!trainer->joins)
        LAP_TRY(lap_optimizer_step(trainer->optimizer, gradient_scale(trainer), NULL));
    LAP_TRY(lap_optimizer_norm(trainer->optimizer, &result->norm));
    if (trainer->dynamic) {
        const bool made = isfinite(result->norm);
        const bool goes_on = lap_loss_scale_update(&trainer->scale, made);
        result->skipped = !made && goes_on;
    }
    result->skips = trainer->scale.skipped;
    return lap_nn_wait(trainer->nn);
}

lap_status_t lap_trainer_digest(lap_trainer_t *trainer, uint64_t *digest_p)
{
    lap_group_t *world = trainer->groups.world;
    uint64_t digest = LAP_NO_DIGEST;
    void *all;
    LAP_TRY(lap_group_collect(world, &trainer->nn->digest, sizeof(digest), &all));
    for (int rank = 0; rank < world->size; rank++)
        digest = lap_digest_add(digest, ((const uint64_t *)all)[rank]);
    lap_free(all);
    *digest_p = trainer->nn->digest ? digest : 0;
    return LAP_OK;
}

/* ---- numbers that are not finite ---- */

/* Of this rank's replica, if its loss is not finite, or no loss is to blame. */
static lap_status_t find(lap_trainer_t *trainer, double loss, lap_nn_not_finite_t *found)
{
    const bool own = trainer->not_finite < trainer->desc.micro_batches;
    const size_t micro = own ? trainer->not_finite : 0, seq = trainer->model.seq;
    const lap_tensor_t x = lap_trainer_part(trainer->x, micro);
    if ((!isfinite(loss) && !own) || trainer->pp)
        return LAP_OK;
    if (trainer->tokens) /* it looks at the latest ones */
        LAP_TRY(lap_model_forward(trainer->nn, seq,
                                  trainer->tokens + micro * trainer->model.batch * seq, NULL));
    LAP_TRY(lap_nn_find_not_finite(trainer->nn, seq, &x, &trainer->y, found));
    found->rank = lap_group_world_rank(trainer->groups.tp, found->rank);
    return LAP_OK;
}

lap_status_t lap_trainer_find_not_finite(lap_trainer_t *trainer, double loss,
                                         lap_nn_not_finite_t *found)
{
    lap_group_t *world = trainer->groups.world;
    void *given;
    *found = (lap_nn_not_finite_t){.what = LAP_NN_ALL_FINITE};
    if (trainer->model.shards > 1) /* by all: only replicas that look compute forward */
        LAP_TRY(lap_nn_refresh(trainer->nn));
    LAP_TRY(find(trainer, loss, found));
    LAP_TRY(lap_group_collect(world, found, sizeof(*found), &given));
    const lap_nn_not_finite_t *all = given;
    for (int r = lap_group_size(world); r-- > 0;)
        if (all[r].what != LAP_NN_ALL_FINITE)
            *found = all[r];
    lap_free(given);
    return LAP_OK;
}
