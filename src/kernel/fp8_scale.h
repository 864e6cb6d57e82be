/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scale of an FP8 matrix, made from the magnitudes that the ranks have found in it: the lines of
 * every device, so that all of them choose the same bits.
 */
#ifndef LAP_KERNEL_FP8_SCALE_H
#define LAP_KERNEL_FP8_SCALE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernel/params.h"

#ifdef __CUDACC__
#define LAP_FP8_INLINE static inline __host__ __device__
#else
#define LAP_FP8_INLINE static inline
#endif

/*
 * The least power of two with which `amax` comes to at most the largest number of the type: 1.75
 * times 2^8 (e4m3) or 2^15 (e5m2). 1 where there is no magnitude, or none that is finite. The product
 * of two scales stays in the range of float.
 */
LAP_FP8_INLINE float lap_fp8_scale(lap_dtype_t dtype, float amax)
{
    const int largest = dtype == LAP_FLOAT8_E4M3 ? 8 : 15, most = 60, bias = 127;
    uint32_t bits;
    float scale;
    memcpy(&bits, &amax, sizeof(bits));
    if (bits == 0 || bits >= 0x7f800000) /* nothing, not finite, or negative */
        return 1;
    const uint32_t fraction = bits & 0x7fffff, three_quarters = 0x600000;
    int exponent = (int)(bits >> 23) - bias - largest + (fraction > three_quarters ? 1 : 0);
    exponent = exponent < -most ? -most : exponent > most ? most : exponent;
    bits = (uint32_t)(exponent + bias) << 23;
    memcpy(&scale, &bits, sizeof(scale));
    return scale;
}

/*
 * Matrix `i` of a lap_fp8_scales_t. Where a matrix is not finite, its scale is 1; a history takes no
 * note of it, since a loss scale lets training skip such a step.
 */
LAP_FP8_INLINE void lap_fp8_make_scale(const lap_fp8_scales_t *s, size_t i)
{
    float most = 0;
    for (size_t r = 0; r < s->ranks; r++) {
        const float found = s->found[r * s->count + i];
        const float size = isfinite(found) ? found : s->history ? 0 : INFINITY;
        most = size > most ? size : most;
    }
    if (s->amax)
        s->amax[i] = 0;
    if (s->history) {
        /* What no pass has seen since then is as large as it was. */
        const float latest = most > 0 ? most : s->history[i];
        most = latest;
        for (size_t age = s->length - 1; age > 0; age--) {
            const float older = s->history[(age - 1) * s->count + i];
            s->history[age * s->count + i] = older;
            most = older > most ? older : most;
        }
        s->history[i] = latest;
        if (!(most > 0))
            return;
    }
    s->scales[i * LAP_FP8_SLOT] =
        lap_fp8_scale(i < s->narrow ? LAP_FLOAT8_E4M3 : LAP_FLOAT8_E5M2, most);
}

#endif
