/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rates of a step of an optimizer, from the sum of the squares of all gradients: the lines of
 * every device, so that all of them choose the same bits.
 */
#ifndef LAP_KERNEL_CLIP_H
#define LAP_KERNEL_CLIP_H

#include <math.h>

#include "kernel/params.h"

#ifdef __CUDACC__
#define LAP_CLIP_INLINE static inline __host__ __device__
#else
#define LAP_CLIP_INLINE static inline
#endif

/* The sum of a lap_total_t, in the order of its numbers. */
LAP_CLIP_INLINE double lap_total_of(const lap_total_t *total)
{
    double sum = 0;
    for (size_t i = 0; i < total->count; i++)
        sum += total->src[i * total->stride];
    return sum;
}

LAP_CLIP_INLINE lap_rates_t lap_clip_rates(const lap_clip_t *clip)
{
    lap_rates_t rates = *clip->given;
    rates.made = 1;
    if (!clip->squares)
        return rates;
    rates.norm = sqrt(*clip->squares) * (double)rates.scale;
    rates.made = isfinite(rates.norm) ? 1 : 0;
    if (rates.norm > (double)clip->most)
        rates.scale = (float)((double)rates.scale * ((double)clip->most / (rates.norm + 1e-6)));
    return rates;
}

#endif
