/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of optimizers of every device against loops in double: sums of squares, the rates that
 * follow from them, and steps. A result may be off by what fp32 loses on the way, which the bounds
 * count in units of 2^-24 of the terms.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/kernel.h"
#include "nn/matrix.h"

static const lap_kernels_t *kernels;

/* The same sum wherever the numbers lie. */
static size_t try_squares(uint64_t seed, size_t count)
{
    float *src = new_floats(seed, count + 4);
    double *sums = new_shared(device, 2 * sizeof(double)), expected = 0;
    lap_sum_squares_t sum = {.src = src, .count = count, .sum = &sums[0]};
    size_t wrong = finish(kernels->sum_squares(stream, &sum));
    for (size_t i = 0; i < count; i++)
        expected += (double)src[i] * (double)src[i];
    memmove(src + 1, src, count * sizeof(float));
    sum.src = src + 1;
    sum.sum = &sums[1];
    wrong += finish(kernels->sum_squares(stream, &sum));
    wrong += fabs(sums[0] - expected) > 0x1p-40 * expected;
    wrong += sums[1] != sums[0];
    free_shared(device, src);
    free_shared(device, sums);
    return wrong;
}

/* One weight with its gradient and moments: what they become, and what is lost of each. */
static size_t check_weight(const lap_update_t *u, const float *before, const float *after)
{
    const lap_rates_t *rates = u->rates;
    const double w = (double)before[0], g = (double)before[1] * (double)rates->scale;
    const double m = (double)before[2], v = (double)before[3], lr = (double)rates->lr;
    if (u->kind == LAP_SGD) {
        const double kept = (double)u->momentum * m, decay = (double)u->decay * w;
        const double lost = 8 * UNIT * (fabs(kept) + fabs(g) + fabs(decay));
        const double first = kept + g + decay;
        return (fabs((double)after[2] - first) > lost) +
               (fabs((double)after[0] - (w - lr * first)) >
                lr * lost + 8 * UNIT * (fabs(w) + fabs(lr * first)));
    }
    const double b1 = (double)u->beta1, b2 = (double)u->beta2;
    const double first = b1 * m + (1 - b1) * g, second = b2 * v + (1 - b2) * g * g;
    const double lost = 8 * UNIT * (fabs(b1 * m) + fabs((1 - b1) * g));
    const double rate = lr / (double)rates->correction1 /
                        (sqrt(second) / sqrt((double)rates->correction2) + (double)u->epsilon);
    const double result = w * (1 - lr * (double)u->decay) - rate * first;
    return (fabs((double)after[2] - first) > lost) +
           (fabs((double)after[3] - second) > 8 * UNIT * second) +
           (fabs((double)after[0] - result) >
            rate * lost + 32 * UNIT * (fabs(w) + rate * fabs(first)));
}

/* `made` 0: the step is skipped, and nothing changes. */
static size_t try_update(uint64_t seed, lap_optimizer_kind_t kind, size_t count, size_t shift,
                         int made)
{
    lap_rates_t *rates = new_shared(device, sizeof(*rates));
    *rates = (lap_rates_t){
        .scale = 0.7f, .lr = 0.01f, .correction1 = 0.271f, .correction2 = 0.142625f, .made = made};
    float *arrays[4], *before = malloc(4 * (count + 1) * sizeof(float));
    size_t wrong = 0;
    for (size_t a = 0; a < 4; a++) {
        arrays[a] = new_floats(seed + a, count + shift + 1);
        for (size_t i = 0; i < count; i++) {
            if (a == 3) /* squares */
                arrays[a][shift + i] = fabsf(arrays[a][shift + i]);
            before[4 * i + a] = arrays[a][shift + i];
        }
    }
    const float guard = arrays[0][shift + count];
    const lap_update_t update = {.kind = kind,
                                 .count = count,
                                 .master = arrays[0] + shift,
                                 .grad = arrays[1] + shift,
                                 .first = arrays[2] + shift,
                                 .second = kind == LAP_SGD ? NULL : arrays[3] + shift,
                                 .rates = rates,
                                 .decay = 0.1f,
                                 .momentum = 0.9f,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.95f,
                                 .epsilon = 1e-8f};
    wrong += finish(kernels->update(stream, &update));
    for (size_t i = 0; i < count; i++) {
        const float after[] = {arrays[0][shift + i], arrays[1][shift + i], arrays[2][shift + i],
                               arrays[3][shift + i]};
        wrong +=
            made ? check_weight(&update, before + 4 * i, after) + (after[1] != before[4 * i + 1])
                 : memcmp(before + 4 * i, after, sizeof(after)) != 0;
    }
    wrong += arrays[0][shift + count] != guard;
    for (size_t a = 0; a < 4; a++)
        free_shared(device, arrays[a]);
    free_shared(device, rates);
    free(before);
    return wrong;
}

/* Sums in order, whatever lies between the numbers. */
static size_t try_total(size_t count, size_t stride)
{
    double *numbers = new_shared(device, (count * stride + 1) * sizeof(double)), expected = 0;
    for (size_t i = 0; i < count * stride; i++)
        numbers[1 + i] = i % stride ? NAN : 1 / (double)(i + 3);
    for (size_t i = 0; i < count; i++)
        expected += numbers[1 + i * stride];
    const lap_total_t total = {
        .src = numbers + 1, .count = count, .stride = stride, .total = numbers};
    size_t wrong = finish(kernels->total(stream, &total));
    wrong += numbers[0] != expected;
    free_shared(device, numbers);
    return wrong;
}

/* The rates that a step is given and the sum of squares: what comes of them. */
static size_t try_clip(double squares, float most, bool clips)
{
    lap_rates_t *rates = new_shared(device, 3 * sizeof(*rates));
    double *sum = new_shared(device, sizeof(*sum));
    *sum = squares;
    rates[0] = (lap_rates_t){.scale = 0.5f, .lr = 0.25f, .correction1 = 0.1f, .correction2 = 0.2f};
    const lap_clip_t clip = {.given = &rates[0],
                             .squares = clips ? sum : NULL,
                             .most = most,
                             .rates = &rates[1],
                             .result = &rates[2]};
    size_t wrong = finish(kernels->clip(stream, &clip));
    const double norm = clips ? sqrt(squares) * 0.5 : 0;
    const float scale =
        clips && norm > (double)most ? (float)(0.5 * ((double)most / (norm + 1e-6))) : 0.5f;
    wrong += rates[1].made != (isfinite(norm) ? 1 : 0);
    wrong += rates[1].made && (rates[1].scale != scale || rates[1].norm != norm);
    wrong += isnan(norm) && !isnan(rates[1].norm);
    wrong += rates[1].lr != rates[0].lr || rates[1].correction1 != rates[0].correction1 ||
             rates[1].correction2 != rates[0].correction2;
    wrong += memcmp(&rates[1], &rates[2], sizeof(rates[1])) != 0;
    free_shared(device, rates);
    free_shared(device, sum);
    return wrong;
}

static void test_device(void)
{
    if (!tap_success(lap_kernels_of(device, &kernels), "%s: kernels", ops->name))
        return;
    static const size_t counts[] = {0, 1, 3, 4, 29, 1000, 2048, 30011};
    size_t wrong = 0, wrong_update = 0;
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        wrong += try_squares(3000 + i, counts[i]);
        for (lap_optimizer_kind_t kind = LAP_SGD; kind <= LAP_ADAMW; kind++)
            for (size_t shift = 0; shift < 5; shift += 4 - i % 4)
                wrong_update += try_update(4000 + i, kind, counts[i], shift, i != 4);
    }
    size_t wrong_clip = 0;
    for (size_t count = 0; count < 700; count += 1 + count / 3)
        wrong_clip += try_total(count, 1) + try_total(count, 2);
    static const double squares[] = {0, 1e-3, 4, 1e30, INFINITY, NAN};
    for (size_t i = 0; i < sizeof(squares) / sizeof(squares[0]); i++)
        wrong_clip += try_clip(squares[i], 1, true) + try_clip(squares[i], 0, false);
    tap_ok(wrong_clip == 0, "%s: sums of sums, and rates by the norm: %zu wrong", ops->name,
           wrong_clip);
    tap_ok(wrong == 0, "%s: sums of squares: %zu wrong", ops->name, wrong);
    tap_ok(wrong_update == 0, "%s: steps of optimizers: %zu wrong", ops->name, wrong_update);
}

int main(void)
{
    return test_devices(NULL, test_device);
}
