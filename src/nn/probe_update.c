/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measuring the kernels of an optimizer. Ranks have other parts of the weights, and updates of a whole
 * model want as much memory as its state has: so a piece is measured, which gives a rate.
 */
#include <math.h>

#include "nn/probe.h"

enum {
    ARRAYS = 4, /* masters, gradients and two moments: */
    ALIGN = 64  /* each begins at a multiple of so many floats */
};

/* The weights of the largest update of any rank, or as many as fit. Collective. */
static lap_status_t piece_of(const lap_probe_t *probe, size_t *count_p)
{
    const lap_nn_list_t *list = &probe->nn->list;
    double largest = 1;
    for (uint32_t i = list->parts[LAP_NN_STEP]; i < list->parts[LAP_NN_LIST_PARTS]; i++) {
        const lap_nn_entry_t *entry = &list->entries[i];
        if (entry->work == LAP_NN_UPDATE)
            largest = fmax(largest, (double)list->regions[entry->writes[0]].cols);
    }
    LAP_TRY(lap_probe_most(probe, &largest));
    largest = fmin(largest, (double)LAP_PROBE_BYTES / (ARRAYS * sizeof(float)));
    *count_p = ((size_t)largest + ALIGN - 1) / ALIGN * ALIGN;
    return LAP_OK;
}

size_t lap_nn_update_bytes(size_t count)
{
    return ARRAYS * count * sizeof(float) + sizeof(lap_rates_t);
}

/* Rates are 1, and the step is made. It makes squares of what is in the second moments: roots follow. */
lap_status_t lap_nn_update_place(const lap_kernels_t *kernels, lap_device_t *device,
                                 lap_stream_t *stream, void *memory, lap_update_t *update)
{
    static const lap_rates_t ones = {
        .scale = 1, .lr = 1, .correction1 = 1, .correction2 = 1, .norm = 1, .made = 1};
    const size_t count = update->count;
    const float beta2 = update->beta2;
    float *numbers = memory;
    lap_rates_t *rates = (lap_rates_t *)(void *)(numbers + ARRAYS * count);
    const lap_copy_t copy = {.dst = rates, .src = &ones, .rows = 1, .row_bytes = sizeof(ones)};
    LAP_TRY(device->ops->fill(stream, LAP_FLOAT32, numbers, ARRAYS * count, 1));
    LAP_TRY(device->ops->copy(stream, &copy));
    update->master = numbers;
    update->grad = numbers + count;
    update->first = numbers + 2 * count;
    update->second = numbers + 3 * count;
    update->rates = rates;
    update->beta2 = 0;
    LAP_TRY(kernels->update(stream, update));
    update->beta2 = beta2;
    return device->ops->stream_synchronize(stream);
}

static lap_status_t issue_update(lap_probe_t *probe, const void *what, int turn)
{
    (void)turn;
    return probe->nn->kernels->update(probe->stream, what);
}

static lap_status_t issue_squares(lap_probe_t *probe, const void *what, int turn)
{
    (void)turn;
    return probe->nn->kernels->sum_squares(probe->stream, what);
}

static lap_status_t place(lap_probe_t *probe, lap_update_t *update)
{
    LAP_TRY(lap_probe_alloc(probe, lap_nn_update_bytes(update->count)));
    return lap_nn_update_place(probe->nn->kernels, probe->nn->engine->device, probe->stream,
                               probe->memory, update);
}

/* Gradients are read; masters, and one moment or two, are read and written. */
static double moved_bytes(const lap_update_t *update)
{
    const int moments = update->kind == LAP_ADAMW ? 2 : 1;
    return (double)update->count * sizeof(float) * (3 + 2 * moments);
}

lap_status_t lap_probe_update(lap_probe_t *probe, bool step)
{
    const lap_optimizer_desc_t *desc = &probe->nn->optimizer;
    lap_update_t update = {.kind = desc->kind,
                           .decay = desc->weight_decay,
                           .momentum = desc->momentum,
                           .beta1 = desc->beta1,
                           .beta2 = desc->beta2,
                           .epsilon = desc->epsilon};
    double updating = 0, summing = 0;
    probe->update_rate = probe->squares_rate = probe->costs[0].reduce;
    if (!step || !probe->nn->has_optimizer)
        return LAP_OK;
    LAP_TRY(piece_of(probe, &update.count));
    lap_status_t status = place(probe, &update);
    const lap_sum_squares_t squares = {
        .src = update.grad, .count = update.count, .sum = probe->loss};
    status = lap_probe_work(probe, issue_update, &update, status, &updating);
    if (status == LAP_OK)
        status = lap_probe_work(probe, issue_squares, &squares, status, &summing);
    lap_probe_free(probe);
    LAP_TRY(status);
    probe->update_rate = moved_bytes(&update) / fmax(updating, 1e-9);
    probe->squares_rate = (double)update.count * sizeof(float) / fmax(summing, 1e-9);
    return LAP_OK;
}
