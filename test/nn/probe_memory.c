/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layers that are measured take no more memory of their device than those that are not: kernels are
 * measured where passes put their results. Only a kernel that wants more than that has memory of its own for
 * a while.
 */
#include "nn/predict.h"
#include "tap.h"

static const lap_device_ops_t *real;
static unsigned taken, given;

static lap_status_t count_alloc(lap_device_t *device, size_t bytes, void **memory_p)
{
    taken++;
    return real->alloc(device, bytes, memory_p);
}

static void count_free(lap_device_t *device, void *memory)
{
    given++;
    real->free(device, memory);
}

/* The first prediction of a group calibrates copies and GEMMs; the second one knows them. */
static void predict(lap_group_t *group, const lap_nn_desc_t *desc)
{
    lap_nn_prediction_t prediction = {.step = false};
    lap_nn_t *nn = NULL;
    if (!tap_success(lap_nn_create(group, desc, &nn), "a model of %zu tokens, vocabulary %zu",
                     desc->seq, desc->vocab))
        return;
    lap_device_t *device = nn->engine->device;
    tap_success(lap_nn_predict(nn, &prediction), "a prediction");
    real = device->ops;
    lap_device_ops_t counting = *real;
    counting.alloc = count_alloc;
    counting.free = count_free;
    device->ops = &counting;
    taken = given = 0;
    tap_success(lap_nn_predict(nn, &prediction), "another one");
    device->ops = real;
    lap_nn_destroy(nn);
}

static void rank_main(lap_world_t *world, void *arg)
{
    lap_group_t *group = lap_world_group(world);
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    (void)arg;
    desc.kind = LAP_NN_MODEL;
    desc.hidden = 24;
    desc.heads = 3;
    desc.seq = 512;
    desc.vocab = 512;
    predict(group, &desc);
    tap_ok(taken == 0 && given == 0, "took no memory (%u times)", taken);
    desc.seq = 2;
    desc.vocab = 8192; /* a kernel of the embedding has the whole table */
    predict(group, &desc);
    tap_ok(taken > 0 && given == taken, "took memory %u times, and gave it back %u times", taken,
           given);
}

int main(void)
{
    tap_ranks(1, NULL, rank_main, NULL);
    return tap_done();
}
