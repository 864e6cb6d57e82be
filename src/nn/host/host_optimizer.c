/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of optimizers on the host: plain loops over floats, which a compiler can vectorise.
 * They run in the thread of their stream; memory is what bounds them.
 */
#include <math.h>

#include "device/host/host.h"
#include "nn/clip.h"
#include "nn/host/host.h"

#define LANES 8 /* sums that go on side by side, so that no addition waits for the last one */

static lap_status_t run_sum_squares(void *arg)
{
    const lap_sum_squares_t *sum = arg;
    double lanes[LANES] = {0}, total = 0;
    const size_t whole = sum->count / LANES * LANES;
    for (size_t i = 0; i < whole; i += LANES)
        for (size_t l = 0; l < LANES; l++)
            lanes[l] += (double)sum->src[i + l] * sum->src[i + l];
    for (size_t i = whole; i < sum->count; i++)
        lanes[i - whole] += (double)sum->src[i] * sum->src[i];
    for (size_t l = 0; l < LANES; l++)
        total += lanes[l];
    *sum->sum = total;
    return LAP_OK;
}

lap_status_t lap_host_sum_squares(lap_stream_t *stream, const lap_sum_squares_t *sum)
{
    return lap_host_stream_call(stream, run_sum_squares, sum, sizeof(*sum));
}

static lap_status_t run_total(void *arg)
{
    const lap_total_t *total = arg;
    *total->total = lap_total_of(total);
    return LAP_OK;
}

lap_status_t lap_host_total(lap_stream_t *stream, const lap_total_t *total)
{
    return lap_host_stream_call(stream, run_total, total, sizeof(*total));
}

static lap_status_t run_clip(void *arg)
{
    const lap_clip_t *clip = arg;
    *clip->rates = *clip->result = lap_clip_rates(clip);
    return LAP_OK;
}

lap_status_t lap_host_clip(lap_stream_t *stream, const lap_clip_t *clip)
{
    return lap_host_stream_call(stream, run_clip, clip, sizeof(*clip));
}

static void sgd(const lap_update_t *u, lap_rates_t rates)
{
    float *restrict w = u->master, *restrict v = u->first;
    const float *restrict grad = u->grad;
    for (size_t i = 0; i < u->count; i++) {
        v[i] = u->momentum * v[i] + (grad[i] * rates.scale + u->decay * w[i]);
        w[i] -= rates.lr * v[i];
    }
}

static void adamw(const lap_update_t *u, lap_rates_t rates)
{
    float *restrict w = u->master, *restrict m = u->first, *restrict v = u->second;
    const float *restrict grad = u->grad;
    const float keep = 1 - rates.lr * u->decay, rate = rates.lr / rates.correction1;
    const float root = sqrtf(rates.correction2);
    for (size_t i = 0; i < u->count; i++) {
        const float g = grad[i] * rates.scale;
        m[i] = u->beta1 * m[i] + (1 - u->beta1) * g;
        v[i] = u->beta2 * v[i] + (1 - u->beta2) * (g * g);
        w[i] = w[i] * keep - rate * (m[i] / (sqrtf(v[i]) / root + u->epsilon));
    }
}

static lap_status_t run_update(void *arg)
{
    const lap_update_t *update = arg;
    if (update->rates->made)
        (update->kind == LAP_SGD ? sgd : adamw)(update, *update->rates);
    return LAP_OK;
}

lap_status_t lap_host_update(lap_stream_t *stream, const lap_update_t *update)
{
    return lap_host_stream_call(stream, run_update, update, sizeof(*update));
}
