/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lap train`: the groups of a rank, and the iterations. What is trained is in train_model.c, what
 * it cost in train_measure.c.
 */
#include "train.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "core/world.h"
#include "interrupt.h"
#include "nn/predict.h"
#include "parallel/stage_run.h"
#include "ranks.h"
#include "tune.h"
#include "util/alloc.h"
#include "util/clock.h"

/* ---- groups ---- */

static lap_status_t make_groups(const lap_train_t *train, lap_world_t *world,
                                lap_grid_groups_t *groups)
{
    LAP_TRY(lap_grid_groups_init(groups, &train->grid, lap_world_group(world)));
    lap_train_log_group(train, "tensor-parallel", groups->tp);
    lap_train_log_group(train, "context-parallel", groups->cp);
    lap_train_log_group(train, "pipeline-parallel", groups->pp);
    lap_train_log_group(train, "data-parallel", groups->dp);
    return LAP_OK;
}

/* ---- iterations ---- */

/* Of a rank, in an iteration, as the mean of the ranks, which share n or k of every GEMM. */
static double flops_of(const lap_train_t *train, const lap_nn_gemm_t *gemm)
{
    return 2.0 * (double)gemm->m * (double)gemm->n * (double)gemm->k * train->micro /
           train->grid.tp;
}

/*
 * What the GEMMs are that other stages of a pipeline have: those of the logits, which the first rank has
 * not. Collective.
 */
static lap_status_t share_gemms(lap_group_t *pp, lap_train_result_t *result)
{
    lap_train_words_t own[LAP_TRAIN_OTHERS] = {{.bytes = 0}};
    void *given;
    if (!pp)
        return LAP_OK;
    for (int g = 0; g < LAP_TRAIN_OTHERS; g++) {
        const lap_nn_gemm_t *gemm = &result->gemms[g];
        own[g].bytes = gemm->bytes;
        snprintf(own[g].kind, sizeof(own[g].kind), "%s", gemm->kind ? gemm->kind : "");
        snprintf(own[g].method, sizeof(own[g].method), "%s", gemm->kind ? gemm->method : "");
    }
    LAP_TRY(lap_group_collect(pp, own, sizeof(own), &given));
    const lap_train_words_t *all = given;
    for (int i = 0; i < lap_group_size(pp) * LAP_TRAIN_OTHERS; i++) {
        lap_nn_gemm_t *gemm = &result->gemms[i % LAP_TRAIN_OTHERS];
        lap_train_words_t *words = &result->words[i % LAP_TRAIN_OTHERS];
        if (gemm->kind || !*all[i].kind)
            continue;
        *words = all[i];
        gemm->kind = words->kind;
        gemm->method = words->method;
        gemm->bytes = words->bytes;
    }
    lap_free(given);
    return LAP_OK;
}

/* What each GEMM of the first layer is, and the work of all. */
static lap_status_t list_gemms(const lap_train_model_t *model, lap_train_result_t *result)
{
    for (size_t i = 0; i < lap_nn_gemms(model->trainer.nn); i++) {
        lap_nn_gemm_t gemm;
        LAP_TRY(lap_nn_gemm(model->trainer.nn, i, &gemm));
        const int row = lap_train_row(model->train, &gemm);
        if (!result->gemms[row].kind)
            result->gemms[row] = gemm;
        result->flops += flops_of(model->train, &gemm);
    }
    LAP_TRY(share_gemms(model->trainer.groups.pp, result));
    /* The ranks of a pipeline have other layers. */
    return model->trainer.groups.pp ? lap_group_mean(model->trainer.groups.pp, &result->flops, 1)
                                    : LAP_OK;
}

/* The same on every rank. */
static bool is_finite(const lap_train_iteration_t *iteration)
{
    return isfinite(iteration->loss) && (isfinite(iteration->norm) || iteration->skipped);
}

/*
 * A model logs one line of a step, layers log each of its parts. Data that a rank cannot have or read end all of them,
 * with *end_p: one of them reports why.
 */
static lap_status_t iterate(lap_train_model_t *model, const char *way,
                            const lap_train_result_t *result, lap_train_iteration_t *iteration,
                            int *end_p)
{
    const lap_train_t *train = model->train;
    lap_trainer_t *trainer = &model->trainer;
    const int index = (int)trainer->step;
    const bool logged = (index + 1) % train->log_interval == 0;
    const bool logs = logged && (!train->model || train->debug);
    const lap_group_t *tp = logs ? trainer->groups.tp : NULL;
    lap_train_log(train, tp, "Iter %d%s", index + 1, way);
    /* All of them, or where those that are traced do not count the second half. */
    iteration->traced = train->trace && (!train->apart || index >= train->iters - train->iters / 2);
    if (train->apart)
        LAP_TRY(lap_train_trace(model, iteration->traced));
    lap_trainer_join(trainer, lap_train_joins(train, iteration->traced), !iteration->traced);
    lap_train_log(train, tp, "|-- %s", model->data ? "Read tokens" : "Generate random input batch");
    const lap_status_t filled = lap_trainer_read(trainer);
    if (filled == LAP_ERR_INVALID || filled == LAP_ERR_SYSTEM)
        *end_p = LAP_CLI_FAILED;
    LAP_TRY(filled);
    LAP_TRY(lap_train_step(model, logs, iteration));
    lap_train_log(train, tp, "|-- Loss: %.9g", iteration->loss);
    lap_train_log(train, tp, "|-- Time: %.3f ms, %.0f tokens/s", iteration->seconds * 1e3,
                  lap_train_tokens(train) / iteration->seconds);
    if (train->debug)
        lap_train_log(train, tp, "|-- Norm of the gradients: %.9g", iteration->norm);
    LAP_TRY(lap_train_measure(model, iteration));
    LAP_TRY(lap_train_average(trainer->groups.world, iteration));
    if (logged && train->model)
        lap_train_log_step(train, trainer->groups.world, result, index + 1, way, iteration);
    if (is_finite(iteration) || model->reported)
        return LAP_OK;
    return lap_train_report_not_finite(model, way, iteration);
}

/* What the passes of an iteration should take. Collective. */
static lap_status_t predict(const lap_train_model_t *model, lap_train_result_t *result)
{
    const lap_train_t *train = model->train;
    const bool traced = train->trace && !train->apart; /* those whose times count */
    const bool plays = train->trace_simulated && lap_group_rank(model->trainer.groups.world) == 0;
    const int micro = train->micro;
    result->simulated =
        (lap_trace_t){.size = lap_train_ranks(train),
                      .most = LAP_TRACE_MOST,
                      .emulated = result->link.bytes_per_s > 0 || result->link.latency_s > 0};
    lap_nn_prediction_t prediction = {.step = lap_train_joins(train, traced),
                                      .timeline = plays ? &result->simulated : NULL,
                                      .last = micro == 1};
    double step = 0;
    if (!train->predicts)
        return LAP_OK;
    const lap_status_t status =
        model->trainer.pp ? lap_stage_predict(model->trainer.pp, model->trainer.groups.world,
                                              prediction.step, prediction.timeline, NULL, &step)
                          : lap_nn_predict(model->trainer.nn, &prediction);
    if (status == LAP_ERR_NO_MEMORY) { /* on all ranks: they train without */
        if (lap_group_rank(model->trainer.groups.world) == 0)
            lap_tell(lap_train_command.name, "nothing is predicted: %s", lap_last_error());
        return LAP_OK;
    }
    LAP_TRY(status);
    const double(*seconds)[2] = (const double(*)[2])prediction.seconds;
    result->predicted = model->trainer.pp ? step
                        : micro == 1      ? seconds[0][1]
                                     : seconds[0][0] + (micro - 2) * seconds[1][0] + seconds[1][1];
    return LAP_OK;
}

/* Makes the model of one way of training. */
static lap_status_t prepare(const lap_train_t *train, const lap_grid_groups_t *groups,
                            lap_train_model_t *model, lap_train_result_t *result)
{
    result->iterations = lap_alloc((size_t)train->iters, sizeof(*result->iterations));
    if (!result->iterations)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %d iterations", train->iters);
    LAP_TRY(
        lap_train_model_init(model, train, groups, result->overlap, train->trace, result->link));
    LAP_TRY(list_gemms(model, result));
    LAP_TRY(predict(model, result));
    lap_train_log_gemms(train, groups->tp, result);
    return lap_train_timeline_init(model);
}

/* What was measured, of the iterations that each way has. */
static void report(const lap_train_t *train, const lap_train_result_t *results, int count,
                   bool interrupted)
{
    lap_train_t so_far = *train;
    const int iters = results[count - 1].done;
    so_far.trace = train->trace && iters > 0 && results[0].iterations[iters - 1].traced;
    so_far.apart = train->apart && so_far.trace;
    so_far.interrupted = interrupted ? train->iters : 0;
    if (results[0].done > 0 || interrupted)
        lap_train_report(&so_far, results, (size_t)count);
}

/* What a training that a signal ends prints. */
typedef struct so_far {
    const lap_train_result_t *results;
    int count;
    const lap_train_saver_t *saver;
} so_far_t;

static void print_interrupted(const so_far_t *so_far)
{
    report(so_far->saver->train, so_far->results, so_far->count, true);
    fflush(stdout);
    lap_train_saver_report(so_far->saver);
}

/* In a thread of its own, while this rank goes on. */
static void print_now(void *context, int signal)
{
    const so_far_t *so_far = context;
    (void)signal;
    lap_train_progress_end(so_far->saver->train, so_far->saver->world);
    print_interrupted(so_far);
}

/*
 * With overlap, without, or both: these take turns, so that whatever else goes on in the machine
 * troubles them alike.
 */
static lap_status_t train_all(const lap_train_t *train, const lap_grid_groups_t *groups, int *end_p)
{
    static const char *const ways[] = {", with overlap", ", without overlap"};
    lap_train_result_t results[2] = {{.overlap = train->overlap}, {.overlap = false}};
    lap_train_model_t models[2] = {{.train = NULL}, {.train = NULL}};
    const int count = train->compare ? 2 : 1;
    lap_train_saver_t saver = {.train = train, .world = groups->world};
    so_far_t so_far = {results, count, &saver};
    const bool first = lap_group_rank(groups->world) == 0;
    lap_link_t link;
    if (first)
        lap_interrupt_prints(print_now, &so_far);
    lap_train_log_unused(train, groups->world);
    lap_status_t status = lap_train_find_link(train, groups, &link);
    for (int w = 0; w < count && status == LAP_OK; w++) {
        results[w].link = link;
        results[w].cores = groups->world->world->cores;
        results[w].local_ranks = groups->world->world->local_size;
        results[w].peak = lap_train_peak(train, results[w].local_ranks);
        status = prepare(train, groups, &models[w], &results[w]);
    }
    int done = 0, interrupted = 0; /* by all ways together */
    if (status == LAP_OK) {
        status = lap_train_saver_init(&saver, &models[0]);
        /* All ranks fail together: one of them reports why. */
        if (status == LAP_ERR_INVALID || status == LAP_ERR_SYSTEM || status == LAP_ERR_UNSUPPORTED)
            *end_p = LAP_CLI_FAILED;
    }
    if (status == LAP_OK)
        lap_train_log_data(&models[0]);
    results[0].first = saver.step;
    if (train->save) /* what was trained is worth more than a second */
        lap_interrupt_takes(
            LAP_TRAIN_SAVE_S,
            "stops when this step is made and its checkpoint is written, or in 25 s; "
            "the signal again ends it at once");
    const uint64_t begin = lap_now_ns();
    if (status == LAP_OK)
        status = lap_interrupt_agree(groups->world, &interrupted);
    while (done < count * (train->iters - results[0].first) && status == LAP_OK &&
           *end_p == LAP_CLI_OK && !interrupted) {
        const int w = done % count;
        lap_train_iteration_t *iteration = &results[w].iterations[done / count];
        status = iterate(&models[w], count > 1 ? ways[w] : "", &results[w], iteration, end_p);
        if (status == LAP_OK && !is_finite(iteration) && !train->goes_on)
            *end_p = LAP_CLI_NOT_FINITE;
        const bool made = status == LAP_OK && *end_p == LAP_CLI_OK;
        lap_interrupt_lock();
        saver.step += made;
        lap_interrupt_unlock();
        if (made)
            status = lap_trainer_end_step(&models[w].trainer);
        if (status == LAP_OK)
            status = lap_interrupt_agree(groups->world, &interrupted);
        lap_interrupt_lock();
        results[w].done++;
        lap_interrupt_unlock();
        done++;
        lap_train_progress(train, groups->world, done, count * (train->iters - results[0].first),
                           iteration->loss, (double)(lap_now_ns() - begin) * 1e-9);
    }
    lap_train_progress_end(train, groups->world);
    saver.ended = true;
    if (status == LAP_OK)
        status = lap_trainer_end(&models[0].trainer, *end_p == LAP_CLI_OK);
    else if (*end_p == LAP_CLI_FAILED) /* on all ranks, which are all there */
        (void)lap_trainer_fail(&models[0].trainer, status);
    for (int w = 0; w < count && status == LAP_OK && lap_train_joins(train, false); w++)
        status = lap_trainer_digest(&models[w].trainer, &results[w].digest);
    if (first) /* from here on it prints by itself */
        lap_interrupt_prints(NULL, NULL);
    if (interrupted) {
        lap_interrupt_stops();
        *end_p = lap_interrupt_status(interrupted);
    } else if (saver.failed && *end_p == LAP_CLI_OK) {
        *end_p = LAP_CLI_FAILED;
    }
    if (status == LAP_OK && first && interrupted)
        print_interrupted(&so_far);
    else if (status == LAP_OK && first)
        report(train, results, count, false);
    if (status == LAP_OK)
        status = lap_train_write_trace(&models[0], &results[0], end_p);
    if (status == LAP_OK && *end_p == LAP_CLI_OK && results[0].done > 0 &&
        !lap_train_is_hidden(train, &results[0], lap_group_rank(groups->world) == 0))
        *end_p = LAP_CLI_NOT_HIDDEN;
    if (status == LAP_OK && *end_p != LAP_CLI_OK) /* ranks that stop together end together */
        status = lap_group_barrier(groups->world);
    for (int w = 0; w < count; w++) {
        lap_train_model_clear(&models[w]);
        lap_free(results[w].iterations);
        lap_trace_clear(&results[w].simulated);
    }
    return status;
}

/* ---- the command ---- */

static int check_ranks(const void *context, int nranks)
{
    return lap_train_check(context, nranks);
}

static int run_rank(const void *context, lap_world_t *world)
{
    lap_train_t train = *(const lap_train_t *)context; /* ranks may be threads */
    lap_grid_groups_t groups;
    int end = LAP_CLI_OK; /* the exit status, if nothing fails */
    lap_status_t status = make_groups(&train, world, &groups);
    if (status == LAP_OK)
        status = lap_tune_use(&train, groups.world);
    if (status == LAP_OK)
        status = train_all(&train, &groups, &end);
    const int rank = lap_world_rank(world);
    const bool together = end == LAP_CLI_FAILED; /* the first of them speaks for all ranks */
    if (status != LAP_OK)
        end = together && rank != 0
                  ? LAP_CLI_FAILED
                  : lap_ranks_fail(lap_train_command.name, together ? -1 : rank, status);
    lap_grid_groups_clear(&groups);
    return end;
}

int lap_train_start(const lap_train_t *train, int (*run)(const void *, lap_world_t *),
                    const void *context, char *const *again)
{
    double device_bytes = 0;
    /* A wrong description, and one that no memory has, is refused once the number of ranks is known. */
    if (lap_train_device_bytes(train, &device_bytes) == LAP_ERR_NO_MEMORY && device_bytes == 0)
        return lap_args_refused(train->args.command, LAP_ERR_NO_MEMORY, "");
    const lap_ranks_t job = {
        .name = train->args.command->name,
        .nranks = lap_train_ranks(train),
        .timeout_s = train->timeout_s,
        .stop_s = train->save ? LAP_TRAIN_SAVE_S : 0,
        .device = train->device,
        .transport = train->transport,
        .gpus = train->gpus,
        .queues = train->grid.dp * train->grid.cp * train->grid.pp > 1,
        .device_bytes = device_bytes,
        .dtype = train->desc.fp8 == LAP_FP8_NONE ? train->desc.dtype : LAP_FLOAT8_E4M3,
        .reported = 1u << LAP_CLI_NOT_FINITE | 1u << LAP_CLI_NOT_HIDDEN,
        .check = check_ranks,
        .run = run,
        .context = context,
        .args = &train->args,
    };
    return lap_ranks_run(&job, again);
}

int lap_cli_train(int argc, char **argv)
{
    char **again = lap_ranks_arguments(&lap_train_command, argc, argv);
    if (!again)
        return LAP_CLI_FAILED;
    lap_train_t train;
    int result = lap_train_parse(&lap_train_command, true, argc, argv, &train);
    train.again = again;
    if (result == LAP_CLI_GO)
        result = lap_train_start(&train, run_rank, &train, again);
    return lap_ranks_end(again, result);
}
