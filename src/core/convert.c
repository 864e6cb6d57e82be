/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions of arrays: loops without branches, which compilers turn into vector instructions. */
#include "core/convert.h"

#include <assert.h>
#include <math.h>

float lap_round_to_odd(double value)
{
    const float nearest = (float)value;
    if ((double)nearest == value || isnan(value))
        return nearest;
    uint32_t bits = lap_bits_of_float(nearest);
    if (fabs((double)nearest) > fabs(value))
        bits--; /* towards zero; infinity becomes the largest float */
    return lap_float_of_bits(bits | 1);
}

static void decode_f16(const uint16_t *restrict src, float *restrict dst, size_t count)
{
    for (size_t i = 0; i < count; i++)
        dst[i] = lap_f16_decode(src[i]);
}

static void decode_bf16(const uint16_t *restrict src, float *restrict dst, size_t count)
{
    for (size_t i = 0; i < count; i++)
        dst[i] = lap_bf16_decode(src[i]);
}

static void encode_f16(const float *restrict src, uint16_t *restrict dst, size_t count)
{
    for (size_t i = 0; i < count; i++)
        dst[i] = lap_f16_encode(src[i]);
}

static void encode_bf16(const float *restrict src, uint16_t *restrict dst, size_t count)
{
    for (size_t i = 0; i < count; i++)
        dst[i] = lap_bf16_encode(src[i]);
}

static void decode_e4m3(const uint8_t *restrict src, float *restrict dst, size_t count)
{
    for (size_t i = 0; i < count; i++)
        dst[i] = lap_e4m3_decode(src[i]);
}

static void decode_e5m2(const uint8_t *restrict src, float *restrict dst, size_t count)
{
    for (size_t i = 0; i < count; i++)
        dst[i] = lap_e5m2_decode(src[i]);
}

static void encode_e4m3(const float *restrict src, uint8_t *restrict dst, size_t count)
{
    for (size_t i = 0; i < count; i++)
        dst[i] = lap_e4m3_encode(src[i]);
}

static void encode_e5m2(const float *restrict src, uint8_t *restrict dst, size_t count)
{
    for (size_t i = 0; i < count; i++)
        dst[i] = lap_e5m2_encode(src[i]);
}

void lap_to_float(lap_dtype_t dtype, const void *src, float *dst, size_t count)
{
    if (dtype == LAP_FLOAT16) {
        decode_f16(src, dst, count);
    } else if (dtype == LAP_BFLOAT16) {
        decode_bf16(src, dst, count);
    } else if (dtype == LAP_FLOAT8_E4M3) {
        decode_e4m3(src, dst, count);
    } else if (dtype == LAP_FLOAT8_E5M2) {
        decode_e5m2(src, dst, count);
    } else {
        assert(dtype == LAP_FLOAT32);
        memcpy(dst, src, count * sizeof(float));
    }
}

void lap_from_float(lap_dtype_t dtype, const float *src, void *dst, size_t count)
{
    if (dtype == LAP_FLOAT16) {
        encode_f16(src, dst, count);
    } else if (dtype == LAP_BFLOAT16) {
        encode_bf16(src, dst, count);
    } else if (dtype == LAP_FLOAT8_E4M3) {
        encode_e4m3(src, dst, count);
    } else if (dtype == LAP_FLOAT8_E5M2) {
        encode_e5m2(src, dst, count);
    } else {
        assert(dtype == LAP_FLOAT32);
        memcpy(dst, src, count * sizeof(float));
    }
}

void lap_from_double(lap_dtype_t dtype, const double *src, void *dst, size_t count)
{
    const size_t element = lap_dtype_size(dtype);
    for (size_t i = 0; i < count; i++) {
        const float rounded = dtype == LAP_FLOAT32 ? (float)src[i] : lap_round_to_odd(src[i]);
        lap_from_float(dtype, &rounded, (char *)dst + i * element, 1);
    }
}

const float *lap_as_float(lap_dtype_t dtype, const void *src, float *room, size_t count)
{
    if (dtype == LAP_FLOAT32)
        return src;
    lap_to_float(dtype, src, room, count);
    return room;
}
