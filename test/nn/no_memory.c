/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every so many-th allocation of the library fails once while layers are made and run, as in
 * overlap/no_memory.c: each failure must come back as a status on every rank, without a hang. Leaks
 * are the business of AddressSanitizer. Linked with --wrap for lap_alloc and lap_realloc. The device
 * is the one that LAP_DEVICE names.
 */
#include <lap/model.h>

#include "failing_alloc.h"
#include "nn/nn.h"
#include "tap.h"

enum { RANKS = 2, STRIDE = 7 };

/* What all ranks do, and how it went for each. */
typedef struct job {
    lap_fp8_recipe_t fp8;
    bool model;
    lap_status_t statuses[RANKS];
} job_t;

static lap_status_t pass(lap_nn_t *nn)
{
    const lap_nn_part_t part = lap_nn_input(nn, 0);
    const size_t count = part.rows * part.cols;
    lap_device_t *device = nn->engine->device;
    void *memory;
    lap_tensor_t t[4];
    double loss;
    lap_status_t status = device->ops->alloc_shared(device, 4 * count * sizeof(float), &memory);
    if (status != LAP_OK)
        return status;
    for (size_t i = 0; i < 4; i++)
        t[i] = lap_tensor((float *)memory + i * count, LAP_FLOAT32, part.rows, part.cols);
    status = lap_nn_trace(nn, 1);
    if (status == LAP_OK)
        status = lap_nn_forward(nn, 4, &t[0], &t[1]);
    if (status == LAP_OK)
        status = lap_nn_loss(nn, &t[1], &t[0], &t[2]);
    if (status == LAP_OK)
        status = lap_nn_backward(nn, &t[2], &t[3]);
    const lap_status_t waited = lap_nn_wait(nn);
    if (status == LAP_OK)
        status = waited;
    if (status == LAP_OK)
        status = lap_nn_loss_value(nn, &loss);
    device->ops->free_shared(device, memory);
    return status;
}

static lap_status_t pass_model(lap_nn_t *nn)
{
    const int32_t tokens[] = {1, 2, 3, 4}, targets[] = {2, 3, -1, 5};
    double loss;
    lap_status_t status = lap_model_forward(nn, 4, tokens, targets);
    if (status == LAP_OK)
        status = lap_model_backward(nn);
    const lap_status_t waited = lap_nn_wait(nn);
    if (status == LAP_OK)
        status = waited;
    return status == LAP_OK ? lap_nn_loss_value(nn, &loss) : status;
}

static void run(lap_world_t *world, void *arg)
{
    job_t *job = arg;
    lap_group_t *group = lap_world_group(world);
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    lap_nn_t *nn = NULL;
    desc.seq = 4;
    desc.hidden = 8;
    desc.heads = 2;
    desc.ffn = 8;
    desc.fp8 = job->fp8;
    if (job->model) {
        desc.kind = LAP_NN_MODEL;
        desc.vocab = 10;
        desc.positions = LAP_POSITIONS_ROPE;
    }
    lap_status_t status = lap_nn_create(group, &desc, &nn);
    if (status == LAP_OK)
        status = job->model ? pass_model(nn) : pass(nn);
    lap_nn_destroy(nn);
    /* Who had all it needed from a rank before that failed learns of it here. */
    if (status == LAP_OK)
        status = lap_group_barrier(group);
    job->statuses[lap_world_rank(world)] = status;
}

/* Returns whether an allocation was made to fail. */
static bool round_of(lap_fp8_recipe_t fp8, bool model, int nth)
{
    job_t job = {.fp8 = fp8, .model = model};
    if (!failing_ranks(RANKS, nth, run, &job))
        return true;
    int failed = 0;
    for (int r = 0; r < RANKS; r++)
        failed += job.statuses[r] != LAP_OK;
    const bool injected = atomic_load(&countdown) <= 0;
    tap_ok(failed == (injected ? RANKS : 0), "allocation %d fails: %d ranks return it", nth,
           failed);
    return injected;
}

int main(void)
{
    for (int i = 0; i < 3; i++) {
        int nth = 1;
        while (round_of(i == 1 ? LAP_FP8_DELAYED : LAP_FP8_NONE, i == 2, nth) && nth < 10000)
            nth += STRIDE;
        tap_ok(nth > 100, "allocations were made to fail up to %d", nth - 1);
    }
    return tap_done();
}
