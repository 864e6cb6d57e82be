/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One allocation after another fails while replicas and optimizers are made and used, as in
 * nn/no_memory.c, which sees to the layers: each failure must come back as a status on every rank,
 * without a hang. Leaks are the business of AddressSanitizer. Linked with --wrap for lap_alloc and
 * lap_realloc. The device is the one that LAP_DEVICE names.
 */
#include "failing_alloc.h"
#include "nn/memory.h"
#include "tap.h"

enum { RANKS = 2, SEQ = 4, HIDDEN = 8, STRIDE = 5 };

typedef struct job {
    int nth;
    lap_status_t statuses[RANKS];
} job_t;

/* A pass, the sums of its gradients, and a step. */
static lap_status_t train(lap_nn_t *nn, lap_dp_t *dp, lap_optimizer_t *optimizer, float *memory)
{
    lap_tensor_t t[4];
    for (size_t i = 0; i < 4; i++)
        t[i] = lap_tensor(memory + i * SEQ * HIDDEN, LAP_FLOAT32, SEQ, HIDDEN);
    lap_status_t status = lap_dp_measure(dp, 1);
    if (status == LAP_OK)
        status = lap_nn_forward(nn, SEQ, &t[0], &t[1]);
    if (status == LAP_OK)
        status = lap_nn_loss(nn, &t[1], &t[0], &t[2]);
    if (status == LAP_OK)
        status = lap_nn_backward(nn, &t[2], &t[3]);
    if (status == LAP_OK)
        status = lap_dp_wait(dp);
    else
        (void)lap_nn_wait(nn); /* its memory is about to be freed */
    return status == LAP_OK ? lap_optimizer_step(optimizer, 0.5f, NULL) : status;
}

/* `weights`: of this rank alone, whose replica is the other one. */
static lap_status_t use(lap_group_t *group, lap_group_t *weights, lap_nn_t *nn, float *memory)
{
    lap_dp_options_t options = LAP_DP_OPTIONS_INIT;
    lap_optimizer_desc_t how = LAP_OPTIMIZER_DESC_INIT;
    lap_dp_t *dp = NULL;
    lap_optimizer_t *optimizer = NULL;
    options.bucket = 300;
    options.wire_dtype = LAP_BFLOAT16;
    how.clip_norm = 1;
    lap_status_t status = lap_dp_create(nn, group, &options, &dp);
    if (status == LAP_OK)
        status = lap_optimizer_create(nn, weights, &how, &optimizer);
    if (status == LAP_OK)
        status = train(nn, dp, optimizer, memory);
    lap_optimizer_destroy(optimizer);
    lap_dp_destroy(dp);
    return status;
}

static void run(lap_world_t *world, void *arg)
{
    job_t *job = arg;
    lap_group_t *group = lap_world_group(world), *weights = NULL;
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    lap_nn_t *nn = NULL;
    desc.kind = LAP_NN_LAYERNORM_MLP;
    desc.seq = SEQ;
    desc.hidden = HIDDEN;
    lap_status_t status = lap_group_split(group, lap_world_rank(world), 0, &weights);
    if (status == LAP_OK)
        status = lap_nn_create(weights, &desc, &nn);
    float *memory = status == LAP_OK ? nn_new(nn, sizeof(float) * 4 * SEQ * HIDDEN) : NULL;
    if (status == LAP_OK)
        status = lap_group_barrier(group);
    if (status == LAP_OK && lap_world_rank(world) == 0)
        atomic_store(&countdown, job->nth);
    if (status == LAP_OK)
        status = lap_group_barrier(group);
    if (status == LAP_OK)
        status = use(group, weights, nn, memory);
    if (memory)
        nn_free(nn, memory);
    lap_nn_destroy(nn);
    /* Who had all it needed from a rank before that failed learns of it here. */
    if (status == LAP_OK)
        status = lap_group_barrier(group);
    lap_group_destroy(weights);
    job->statuses[lap_world_rank(world)] = status;
}

/* Returns whether an allocation was made to fail. */
static bool round_of(int nth)
{
    job_t job = {.nth = nth};
    if (!failing_ranks(RANKS, 0, run, &job))
        return false;
    int failed = 0, late = 0;
    for (int r = 0; r < RANKS; r++) {
        failed += job.statuses[r] != LAP_OK;
        late += job.statuses[r] == LAP_ERR_TIMEOUT;
    }
    const bool injected = atomic_load(&countdown) <= 0;
    tap_ok(failed == (injected ? RANKS : 0) && late == 0,
           "allocation %d fails: %d ranks return it, %d of them late", nth, failed, late);
    return injected;
}

int main(void)
{
    int nth = 1;
    while (round_of(nth) && nth < 10000)
        nth += STRIDE;
    tap_ok(nth > 50, "allocations were made to fail up to %d", nth - 1);
    return tap_done();
}
