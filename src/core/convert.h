/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversions between float and the 16-bit types, by integer arithmetic that every machine has.
 * Encoding rounds to nearest, ties to even; what is too large becomes infinity, and what is not a
 * number stays so and becomes quiet. Decoding is exact. Subnormal numbers are right also where the
 * processor has been told to flush those of float to zero.
 */
#ifndef LAP_CORE_CONVERT_H
#define LAP_CORE_CONVERT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <lap/tensor.h>

static inline uint32_t lap_bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float lap_float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* `yes` where the condition holds, else `no`. A mask, because compilers make branches of `?:`. */
static inline uint32_t lap_pick(int condition, uint32_t yes, uint32_t no)
{
    const uint32_t mask = 0u - (uint32_t)condition;
    return (yes & mask) | (no & ~mask);
}

static inline float lap_bf16_decode(uint16_t code)
{
    return lap_float_of_bits((uint32_t)code << 16);
}

static inline uint16_t lap_bf16_encode(float value)
{
    const uint32_t bits = lap_bits_of_float(value);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const uint32_t nan = bits >> 16 | 0x40;
    return (uint16_t)lap_pick((bits & 0x7fffffff) > 0x7f800000, nan, rounded);
}

static inline float lap_f16_decode(uint16_t code)
{
    const uint32_t size = code & 0x7fffu, sign = (uint32_t)(code & 0x8000) << 16;
    const uint32_t wide = size << 13;
    /* A subnormal code counts units of 2^-24: as the fraction of 2^-14 (1 + ...), less 2^-14. */
    const uint32_t small = lap_bits_of_float(lap_float_of_bits(wide + 0x38800000) - 0x1p-14f);
    const uint32_t normal = wide + lap_pick(size >= 0x7c00, 0x70000000, 0x38000000);
    return lap_float_of_bits(lap_pick(size < 0x400, small, normal) | sign);
}

static inline uint16_t lap_f16_encode(float value)
{
    const uint32_t bits = lap_bits_of_float(value), sign = bits >> 16 & 0x8000;
    const uint32_t size = bits & 0x7fffffff;
    /* The unit in the last place of 0.5f is 2^-24, that of subnormal codes: the addition rounds. */
    const uint32_t small = lap_bits_of_float(lap_float_of_bits(size) + 0.5f) - 0x3f000000;
    const uint32_t normal = (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13;
    const uint32_t finite = lap_pick(size < 0x38800000, small, normal);
    const uint32_t nan = 0x7e00 | (size >> 13 & 0x3ff);
    const uint32_t large = lap_pick(size > 0x7f800000, nan, 0x7c00);
    return (uint16_t)(lap_pick(size < 0x47800000, finite, large) | sign);
}

/*
 * A double as float, rounded to odd: encoding the result gives what rounding the double once to a
 * 16-bit type would give, because float has two bits more than either at least.
 */
float lap_round_to_odd(double value);

/* Converts `count` elements; src and dst do not overlap. float32 is copied. */
void lap_to_float(lap_dtype_t dtype, const void *src, float *dst, size_t count);
void lap_from_float(lap_dtype_t dtype, const float *src, void *dst, size_t count);

/* The elements as float: where they are if they are float32, else converted into `room`. */
const float *lap_as_float(lap_dtype_t dtype, const void *src, float *room, size_t count);

#endif
