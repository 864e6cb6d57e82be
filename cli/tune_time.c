/* SPDX-License-Identifier: Apache-2.0 */
/* `lap tune`: times layers with rules in turns, and shows how far the search is. */
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "core/world.h"
#include "interrupt.h"
#include "nn/predict.h"
#include "progress.h"
#include "tune.h"
#include "util/alloc.h"
#include "util/clock.h"
#include "util/turns.h"

#define WARM 2     /* passes before a layer is timed */
#define LONG_S 1.0 /* of a pass: the first was enough */

/* ---- contenders ---- */

lap_status_t lap_tune_enter(lap_tune_contender_t *contender, const lap_tune_t *tune,
                            const lap_tp_overlap_t *rules, const lap_grid_groups_t *groups,
                            lap_link_t link)
{
    memset(contender, 0, sizeof(*contender));
    contender->train = tune->train;
    contender->train.rules = *rules;
    LAP_TRY(lap_train_model_init(&contender->model, &contender->train, groups, true, false, link));
    return lap_trainer_read(&contender->model.trainer);
}

void lap_tune_leave(lap_tune_contender_t *contender)
{
    lap_train_model_clear(&contender->model);
    memset(contender, 0, sizeof(*contender));
}

lap_status_t lap_tune_predict(lap_tune_contender_t *contender, double *seconds_p)
{
    lap_nn_prediction_t prediction = {.spans = NULL};
    *seconds_p = 0;
    if (!contender->train.predicts)
        return LAP_OK;
    LAP_TRY(lap_nn_predict(contender->model.trainer.nn, &prediction));
    *seconds_p = prediction.seconds[0][0];
    return LAP_OK;
}

/* ---- progress ---- */

/* `part` of the trial at hand is done. */
static void show(const lap_tune_progress_t *progress, double part)
{
    const double seconds = (double)(lap_now_ns() - progress->begin) * 1e-9;
    const double done = progress->done + part,
                 left = seconds / done * (progress->of > done ? progress->of - done : 0);
    char time[32] = "";
    if (done > 0)
        snprintf(time, sizeof(time), "; about %.0f %s left", left < 120 ? left : left / 60,
                 left < 120 ? "s" : "min");
    lap_progress(progress->speaks, "%d of %d%s: %s", (int)progress->done + 1, (int)progress->of,
                 time, progress->what);
}

/* ---- timing ---- */

/* Of the slowest rank. Collective. */
static lap_status_t time_pass(lap_tune_contender_t *contender, double *seconds_p)
{
    lap_train_model_t *model = &contender->model;
    lap_group_t *world = model->trainer.groups.world;
    LAP_TRY(lap_group_barrier(world));
    const uint64_t begin = lap_now_ns();
    lap_train_forget(model);
    LAP_TRY(lap_trainer_begin(&model->trainer, 0));
    LAP_TRY(lap_trainer_wait(&model->trainer));
    *seconds_p = (double)(lap_now_ns() - begin) * 1e-9;
    return lap_group_max(world, seconds_p);
}

/* Layers that were timed before are warm. Where a pass takes long, one of them is enough. Collective. */
static lap_status_t warm_up(lap_tune_contender_t *const *contenders, int count,
                            lap_tune_progress_t *progress, int *interrupted_p)
{
    for (int i = 0; i < WARM * count && !*interrupted_p; i++) {
        lap_tune_contender_t *contender = contenders[i % count];
        double seconds;
        if (contender->warmed >= WARM)
            continue;
        show(progress, 0);
        LAP_TRY(time_pass(contender, &seconds));
        contender->warmed = seconds > LONG_S ? WARM : contender->warmed + 1;
        progress->passes++;
        LAP_TRY(lap_interrupt_agree(contender->model.trainer.groups.world, interrupted_p));
    }
    return LAP_OK;
}

/* Round i of `rounds`: each of them once. Collective. */
static lap_status_t time_round(lap_tune_contender_t *const *contenders, int count, int i,
                               int rounds, lap_tune_progress_t *progress, double *seconds,
                               int *interrupted_p)
{
    for (int n = 0; n < count && !*interrupted_p; n++) {
        const int w = (int)lap_turn((size_t)i, (size_t)n, (size_t)count);
        show(progress, (double)(i * count + n) / (rounds * count));
        LAP_TRY(time_pass(contenders[w], &seconds[w * rounds + i]));
        progress->passes++;
        LAP_TRY(lap_interrupt_agree(contenders[0]->model.trainer.groups.world, interrupted_p));
    }
    return LAP_OK;
}

lap_status_t lap_tune_time(lap_tune_contender_t *const *contenders, int count, int rounds,
                           lap_tune_progress_t *progress, double *seconds, int *interrupted_p)
{
    LAP_TRY(warm_up(contenders, count, progress, interrupted_p));
    for (int i = 0; i < rounds && !*interrupted_p; i++)
        LAP_TRY(time_round(contenders, count, i, rounds, progress, seconds, interrupted_p));
    return LAP_OK;
}

/* Whether the third quartile of `rounds` ratios is 1 or more, whatever the rest of them will be. */
static bool has_lost(int losses, int rounds)
{
    return losses >= rounds - (int)(0.75 * (rounds - 1));
}

lap_status_t lap_tune_compare(lap_tune_contender_t *one, lap_tune_contender_t *other, int rounds,
                              lap_tune_progress_t *progress, lap_stats_t *ratio_p,
                              int *interrupted_p)
{
    lap_tune_contender_t *const both[] = {one, other};
    double *seconds = lap_alloc(2 * (size_t)rounds, sizeof(*seconds));
    int done = 0, losses = 0;
    lap_status_t status =
        seconds ? LAP_OK : lap_error(LAP_ERR_NO_MEMORY, "no memory for %d rounds", rounds);
    status = lap_group_agree(one->model.trainer.groups.world, status);
    if (status == LAP_OK)
        status = warm_up(both, 2, progress, interrupted_p);
    while (status == LAP_OK && !*interrupted_p && done < rounds && !has_lost(losses, rounds)) {
        status = time_round(both, 2, done, rounds, progress, seconds, interrupted_p);
        if (status == LAP_OK && !*interrupted_p) {
            seconds[done] /= seconds[rounds + done];
            losses += seconds[done++] >= 1;
        }
    }
    if (status == LAP_OK && !*interrupted_p)
        *ratio_p = lap_stats(seconds, (size_t)done);
    lap_free(seconds);
    return status;
}
