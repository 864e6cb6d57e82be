/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversions between float and the narrower types, by integer arithmetic that every machine has.
 * Encoding rounds to nearest, ties to even; what is not a number stays so and becomes quiet. What
 * is too large becomes infinity in the 16-bit types. In the 8-bit ones that and infinity itself
 * become the largest number, which is the saturating mode of OCP. Decoding is exact. Subnormal
 * numbers are right also where the processor is set to flush those of float to zero.
 */
#ifndef LAP_CORE_CONVERT_H
#define LAP_CORE_CONVERT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <lap/tensor.h>

/* For sentences about a type that is none. */
#define LAP_DTYPE_NAMES "float32, float16, bfloat16, float8_e4m3 or float8_e5m2"

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

/* e4m3 has no infinity: the codes next to its only NaN are numbers. */
static inline float lap_e4m3_decode(uint8_t code)
{
    const uint32_t size = code & 0x7fu, sign = (uint32_t)(code & 0x80) << 24;
    const uint32_t wide = size << 20;
    /* As in lap_f16_decode: a subnormal code counts units of 2^-9, less 2^-6. */
    const uint32_t small = lap_bits_of_float(lap_float_of_bits(wide + 0x3c800000) - 0x1p-6f);
    const uint32_t normal = wide + lap_pick(size == 0x7f, 0x77d00000, 0x3c000000);
    return lap_float_of_bits(lap_pick(size < 8, small, normal) | sign);
}

/* e5m2 is the upper half of a float16. */
static inline float lap_e5m2_decode(uint8_t code)
{
    return lap_f16_decode((uint16_t)(code << 8));
}

/*
 * An 8-bit code of 1 sign bit and `fraction` bits of fraction; `largest` is the largest number's
 * float.
 */
static inline uint8_t lap_fp8_encode(float value, int fraction, int bias, uint32_t largest,
                                     uint32_t nan)
{
    const uint32_t bits = lap_bits_of_float(value), sign = bits >> 24 & 0x80;
    const uint32_t all = bits & 0x7fffffff, size = lap_pick(all < largest, all, largest);
    const int shift = 23 - fraction;
    const uint32_t rebias = (uint32_t)(127 - bias) << 23, half = (1u << (shift - 1)) - 1;
    /* The unit in the last place of this float is that of subnormal codes: the addition rounds. */
    const uint32_t unit = (uint32_t)(127 + 24 - bias - fraction) << 23;
    const uint32_t small =
        lap_bits_of_float(lap_float_of_bits(size) + lap_float_of_bits(unit)) - unit;
    const uint32_t normal = (size - rebias + half + (size >> shift & 1)) >> shift;
    const uint32_t finite = lap_pick(size < rebias + (1u << 23), small, normal);
    return (uint8_t)(lap_pick(all > 0x7f800000, nan, finite) | sign);
}

static inline uint8_t lap_e4m3_encode(float value)
{
    return lap_fp8_encode(value, 3, 7, 0x43e00000, 0x7f);
}

static inline uint8_t lap_e5m2_encode(float value)
{
    return lap_fp8_encode(value, 2, 15, 0x47600000, 0x7e | (lap_bits_of_float(value) >> 21 & 3));
}

/*
 * A double as float, rounded to odd: encoding the result gives what rounding the double once to a
 * narrower type would give, because float has two bits more than each at least.
 */
float lap_round_to_odd(double value);

/* Converts `count` elements; src and dst do not overlap. float32 is copied. */
void lap_to_float(lap_dtype_t dtype, const void *src, float *dst, size_t count);
void lap_from_float(lap_dtype_t dtype, const float *src, void *dst, size_t count);

/* The same for doubles, rounded once. */
void lap_from_double(lap_dtype_t dtype, const double *src, void *dst, size_t count);

/* The elements as float: where they are if they are float32, else converted into `room`. */
const float *lap_as_float(lap_dtype_t dtype, const void *src, float *room, size_t count);

#endif
