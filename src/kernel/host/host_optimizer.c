/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of optimizers on the host: plain loops over floats, which a compiler can vectorise.
 * They run in the thread of their stream; memory is what bounds them.
 */
#include <math.h>

#include "kernel/clip.h"
#include "kernel/host/host.h"

#define LANES 8 /* sums that go on side by side, so that no addition waits for the last one */

void lap_run_sum_squares(const lap_sum_squares_t *sum)
{
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
}

void lap_run_total(const lap_total_t *total)
{
    *total->total = lap_total_of(total);
}

void lap_run_clip(const lap_clip_t *clip)
{
    *clip->rates = *clip->result = lap_clip_rates(clip);
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

void lap_run_update(const lap_update_t *update)
{
    if (update->rates->made)
        (update->kind == LAP_SGD ? sgd : adamw)(update, *update->rates);
}
