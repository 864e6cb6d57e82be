/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way of fp32 results to d: accumulation, bias, GELU and its derivative, and the one rounding.
 * All of it is loops without branches and without calls, which compilers turn into vector
 * instructions.
 *
 * With t = 2 sqrt(2/pi) (x + 0.044715 x^3) and s = 1 / (1 + e^-t), gelu(x) = x s and its derivative
 * is s + x s (1 - s) dt/dx. Both are computed from w = e^-|t|, which never overflows. In units of
 * u = 2^-24, t is off by 5 |t| and w by a further 3, relative to it. What an error of t does to
 * gelu is it times |x| w / (1 + w)^2, and 5 |x| |t| w / (1 + w)^2 is 1.3 at most, so that gelu is
 * off by at most 7 u |gelu(x)| + 2 u, and, by the same reckoning, the derivative by 12 u.
 */
#include <math.h>

#include "core/convert.h"
#include "device/host/host.h"

#define TILE 256u            /* columns at a time, converted on the stack */
#define LIMIT 12.0f          /* beyond it gelu is 0 or x, and the derivative 0 or 1 */
#define SLOPE 1.595769167f   /* 2 sqrt(2/pi) */
#define CUBIC 0.07135481387f /* and times 0.044715 */

static inline float pick(int condition, float yes, float no)
{
    return lap_float_of_bits(lap_pick(condition, lap_bits_of_float(yes), lap_bits_of_float(no)));
}

/*
 * e^y for y <= 0, and NaN for NaN: 2^k e^r with a whole k and |r| <= ln(2)/2. The polynomial is off
 * by 0.2 u at most. Below 2^-126.5 the result is 0.
 */
static inline float exp_minus(float y)
{
    const float whole = 12582912.0f; /* the unit in the last place is 1: adding it rounds */
    const float low = pick(y < -88.0f, -88.0f, y);
    const float shifted = low * 1.442695022f + whole, k = shifted - whole;
    const float r = low - k * 0.693359375f - k * -2.12194440e-4f; /* ln 2; the first is exact */
    float p = 0x1.6d110ap-10f;
    p = p * r + 0x1.120b6ep-7f;
    p = p * r + 0x1.55551ap-5f;
    p = p * r + 0x1.5554dcp-3f;
    p = p * r + 0.5f;
    p = p * (r * r) + r + 1.0f;
    const uint32_t exponent = lap_bits_of_float(shifted) - lap_bits_of_float(whole) + 127;
    return p * lap_float_of_bits(exponent << 23);
}

static inline float gelu_of(float x)
{
    const float z = pick(x < -LIMIT, -LIMIT, x);
    const float t = z * (SLOPE + CUBIC * (z * z));
    const float w = exp_minus(-fabsf(t));
    return z * pick(t >= 0, 1.0f, w) / (1 + w);
}

static inline float gelu_slope_of(float x)
{
    const float low = pick(x < -LIMIT, -LIMIT, x), z = pick(low > LIMIT, LIMIT, low);
    const float t = z * (SLOPE + CUBIC * (z * z));
    const float w = exp_minus(-fabsf(t)), q = 1 / (1 + w);
    return pick(t >= 0, 1.0f, w) * q + z * (SLOPE + 3 * CUBIC * (z * z)) * (w * q * q);
}

static void gelu(float *x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        x[i] = gelu_of(x[i]);
}

static void times_gelu_slope(float *restrict x, const float *restrict at, size_t count)
{
    for (size_t i = 0; i < count; i++)
        x[i] *= gelu_slope_of(at[i]);
}

static void add(float *restrict x, float factor, const float *restrict y, size_t count)
{
    for (size_t i = 0; i < count; i++)
        x[i] += factor * y[i];
}

static void divide(float *x, float by, size_t count)
{
    for (size_t i = 0; i < count; i++)
        x[i] /= by;
}

/* Up to TILE columns; everything points at the first of them. */
static void finish_part(const lap_finish_t *finish, float *x, size_t cols, lap_dtype_t dtype,
                        void *d, const void *bias, void *aux)
{
    float room[TILE];
    if (finish->beta != 0)
        add(x, finish->beta * finish->scale, lap_as_float(dtype, d, room, cols), cols);
    if (finish->epilogue & LAP_EPILOGUE_BIAS)
        add(x, 1, lap_as_float(finish->bias_dtype, bias, room, cols), cols);
    if (finish->epilogue & LAP_EPILOGUE_GELU) {
        if (aux)
            lap_from_float(finish->aux_dtype, x, aux, cols);
        gelu(x, cols);
    }
    if (finish->epilogue & LAP_EPILOGUE_DGELU)
        times_gelu_slope(x, lap_as_float(finish->aux_dtype, aux, room, cols), cols);
    if (finish->scale != 1)
        divide(x, finish->scale, cols);
    if (d != x)
        lap_from_float(dtype, x, d, cols);
}

/* Element `col` of a row, or NULL where there is no row. */
static void *element_of(lap_dtype_t dtype, const void *row, size_t col)
{
    return row ? (char *)row + col * lap_dtype_size(dtype) : NULL;
}

void lap_host_finish(const lap_finish_t *finish, float *x, size_t col, size_t cols,
                     lap_dtype_t dtype, void *d, void *aux)
{
    if (!finish) {
        lap_from_float(dtype, x, element_of(dtype, d, col), cols);
        return;
    }
    for (size_t begin = 0; begin < cols; begin += TILE) {
        const size_t at = col + begin, left = cols - begin;
        finish_part(finish, x + begin, left < TILE ? left : TILE, dtype, element_of(dtype, d, at),
                    element_of(finish->bias_dtype, finish->bias, at),
                    element_of(finish->aux_dtype, aux, at));
    }
}
