/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pipelines with a paced clock: every GEMM of a layer lasts as long as it is set, so that forward, input
 * gradient and weight gradient of a stage last as long as each other, whatever the machine does; messages,
 * credits and the order of things are those of any training. Ranks are threads. For each schedule: the time
 * of a step beside that of the simulation, and, with an emulated link, how much of the messages is hidden
 * in the steady state: what more micro-batches cost beyond the same without a link, as a part of the time
 * that their messages take.
 *
 *     bench_pipeline [MS [SCHEDULE]]        MS: of a forward, 20; SCHEDULE: only that
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <lap/lap.h>

#include "core/world.h"
#include "device/device.h"
#include "nn/nn.h"
#include "parallel/pipeline.h"
#include "util/clock.h"

enum { RANKS = 4, SEQ = 4, HIDDEN = 16, VOCAB = 12, GEMMS = 4, STEPS = 4 };

static uint64_t pace_ns; /* of a GEMM */
static lap_device_ops_t paced;
static const lap_device_ops_t *plain;

typedef struct trial {
    const char *schedule;
    size_t micro, virtual_stages;
    double message_s; /* 0: no link */
    int overlap;
    lap_world_t *world;
    double seconds; /* of a step, the shortest */
    int failed;
} trial_t;

/* A sleep that lasts too long is made up for by the next ones. */
static lap_status_t rest(void *arg)
{
    static _Thread_local int64_t debt;
    const int64_t wanted = (int64_t)pace_ns - debt;
    const uint64_t begin = lap_now_ns();
    (void)arg;
    if (wanted > 0)
        lap_sleep_until_ns(begin + (uint64_t)wanted);
    debt = (int64_t)(lap_now_ns() - begin) - wanted;
    return LAP_OK;
}

/* Those of logits are no part of a stage's layers. */
static lap_status_t paced_gemm(lap_stream_t *stream, const lap_gemm_t *gemm)
{
    const bool logits = gemm->n == VOCAB || gemm->k == VOCAB || gemm->blocks[0].rows == VOCAB;
    const char none = 0;
    if (!logits) {
        const lap_status_t status = plain->stream_call(stream, rest, &none, sizeof(none));
        if (status != LAP_OK)
            return status;
    }
    return plain->gemm(stream, gemm);
}

static lap_status_t run_steps(trial_t *trial, lap_pp_t *pp)
{
    const size_t count = trial->micro * SEQ;
    int32_t *tokens = calloc(2 * count, sizeof(*tokens));
    lap_status_t status = tokens ? LAP_OK : LAP_ERR_NO_MEMORY;
    trial->seconds = INFINITY;
    for (int i = 0; i < STEPS && status == LAP_OK; i++) {
        status = lap_group_barrier(lap_world_group(trial->world));
        const uint64_t begin = lap_now_ns();
        if (status == LAP_OK)
            status = lap_pp_step(pp, SEQ, tokens, tokens + count);
        if (status == LAP_OK)
            status = lap_pp_wait(pp);
        if (status == LAP_OK)
            status = lap_group_barrier(lap_world_group(trial->world));
        trial->seconds = fmin(trial->seconds, (double)(lap_now_ns() - begin) * 1e-9);
    }
    free(tokens);
    return status;
}

static lap_status_t run_rank(trial_t *trial)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    lap_pp_options_t options = LAP_PP_OPTIONS_INIT;
    lap_buffer_options_t buffer = LAP_BUFFER_OPTIONS_INIT;
    lap_group_t *alone = NULL, *all = lap_world_group(trial->world);
    lap_device_t *device;
    lap_pp_t *pp = NULL;
    (void)lap_model_preset("gpt", &desc);
    desc.layers = RANKS * 2;
    desc.seq = SEQ;
    desc.batch = 1;
    desc.hidden = desc.ffn = HIDDEN;
    desc.heads = desc.kv_heads = 1;
    desc.head_dim = HIDDEN;
    desc.vocab = VOCAB;
    desc.max_positions = SEQ;
    desc.tied = 0;
    options.schedule = trial->schedule;
    options.micro_batches = trial->micro;
    options.virtual_stages = trial->virtual_stages;
    options.overlap = trial->overlap;
    if (trial->message_s > 0)
        buffer.link.bytes_per_s = SEQ * HIDDEN * sizeof(float) / trial->message_s;
    options.buffer_options = &buffer;
    lap_status_t status = lap_group_split(all, lap_world_rank(trial->world), 0, &alone);
    if (status == LAP_OK)
        status = lap_pp_create(alone, all, &desc, &options, &pp);
    if (status == LAP_OK)
        status = lap_device_of(trial->world, &device);
    if (status == LAP_OK) {
        device->ops = &paced;
        status = run_steps(trial, pp);
        device->ops = plain;
    }
    lap_pp_destroy(pp);
    lap_group_destroy(alone);
    return status;
}

static void *run_thread(void *arg)
{
    trial_t *trial = arg;
    trial->failed = run_rank(trial) != LAP_OK;
    if (trial->failed)
        fprintf(stderr, "%s: %s\n", trial->schedule, lap_last_error());
    lap_world_destroy(trial->world);
    return NULL;
}

/* The time of a step, in seconds. */
static double run(trial_t trial)
{
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    lap_world_t *worlds[RANKS];
    trial_t trials[RANKS];
    pthread_t threads[RANKS];
    double most = 0;
    options.device = "ref";
    if (lap_world_create_threads(RANKS, &options, worlds) != LAP_OK)
        exit(1);
    for (int r = 0; r < RANKS; r++) {
        trials[r] = trial;
        trials[r].world = worlds[r];
        if (pthread_create(&threads[r], NULL, run_thread, &trials[r]) != 0)
            exit(1);
    }
    for (int r = 0; r < RANKS; r++) {
        (void)pthread_join(threads[r], NULL);
        if (trials[r].failed)
            exit(1);
        most = fmax(most, trials[r].seconds);
    }
    return most;
}

/* Stages of zb-v and interleaved are half as long. */
static double simulate(const trial_t *trial, double forward_s, double message_s, double *busy_p)
{
    const bool halves = trial->virtual_stages > 1 || strcmp(trial->schedule, "zb-v") == 0;
    const double unit = halves ? forward_s / 2 : forward_s;
    const lap_pipe_costs_t costs = {
        .forward = unit, .input_grad = unit, .weight_grad = unit, .message = message_s};
    lap_pipeline_t table;
    lap_pipe_times_t times;
    if (lap_pipeline_build(trial->schedule, RANKS, (uint32_t)trial->virtual_stages,
                           (uint32_t)trial->micro, &table) != LAP_OK ||
        lap_pipeline_simulate(&table, &costs, &times) != LAP_OK)
        exit(1);
    const double span = times.span;
    *busy_p = times.ranks[0].busy;
    lap_pipe_times_clear(&times, RANKS);
    lap_pipeline_clear(&table);
    return span;
}

int main(int argc, char **argv)
{
    static const trial_t schedules[] = {{.schedule = "1f1b", .virtual_stages = 1},
                                        {.schedule = "1f1b-eager", .virtual_stages = 1},
                                        {.schedule = "interleaved", .virtual_stages = 2},
                                        {.schedule = "zb-h1", .virtual_stages = 1},
                                        {.schedule = "zb-v", .virtual_stages = 2}};
    const double forward_s = (argc > 1 ? atof(argv[1]) : 20) * 1e-3;
    const double message_s = forward_s / 4;
    pace_ns = (uint64_t)(forward_s * 1e9 / (2 * GEMMS));
    if (lap_device_find("ref", &plain) != LAP_OK)
        return 1;
    paced = *plain;
    paced.gemm = paced_gemm;
    printf("%d ranks, 8 micro-batches, forward %.3g ms; a message %.3g ms (emulated)\n", RANKS,
           forward_s * 1e3, message_s * 1e3);
    printf("| schedule | simulated ms | measured | bubble simulated | measured | forward ms | "
           "hidden simulated | measured | in line |\n");
    printf("| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (size_t i = 0; i < sizeof(schedules) / sizeof(schedules[0]); i++) {
        trial_t trial = schedules[i];
        if (argc > 2 && strcmp(argv[2], trial.schedule) != 0)
            continue;
        double busy, exposed[2];
        trial.micro = 8;
        trial.overlap = 1;
        const double measured = run(trial);
        trial.micro = 24;
        const double free_s = run(trial) - measured; /* of 16 more micro-batches, without a link */
        const double unit_s = free_s / 16 / 3; /* a forward with all that is around its GEMMs */
        double late =
            simulate(&trial, unit_s, message_s, &busy) - simulate(&trial, unit_s, 0, &busy);
        trial.micro = 8;
        late -= simulate(&trial, unit_s, message_s, &busy);
        const double span = simulate(&trial, unit_s, 0, &busy);
        late += span;
        const double messages = 16 * 2 * message_s * (double)trial.virtual_stages;
        trial.message_s = message_s;
        for (trial.overlap = 1; trial.overlap >= 0; trial.overlap--) {
            trial.micro = 8;
            const double few = run(trial);
            trial.micro = 24;
            exposed[trial.overlap] = run(trial) - few - free_s;
        }
        printf("| %s | %.1f | %.1f | %.1f %% | %.1f %% | %.2f | %.0f %% | %.0f %% | %.0f %% |\n",
               trial.schedule, span * 1e3, measured * 1e3, 100 * (1 - busy / span),
               100 * (1 - busy / measured), unit_s * 1e3, 100 * (1 - late / messages),
               100 * (1 - exposed[1] / messages), 100 * (1 - exposed[0] / messages));
        fflush(stdout);
    }
    return 0;
}
