/* SPDX-License-Identifier: Apache-2.0 */
/*
 * float16 and bfloat16: every code, and between each two neighbours the midpoint and the floats
 * next to it. The truth is independent of the library's arithmetic: codes are read as the formats
 * define them, and the nearest value is looked for in the sorted list of all values.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "core/convert.h"
#include "tap.h"

typedef struct format {
    lap_dtype_t dtype;
    int exponent_bits, fraction_bits;
} format_t;

static const format_t formats[] = {{LAP_FLOAT16, 5, 10}, {LAP_BFLOAT16, 8, 7}};

/* A code as IEEE 754 defines it: sign, biased exponent, fraction. */
static double value_of(const format_t *f, unsigned code)
{
    const int bias = (1 << (f->exponent_bits - 1)) - 1, most = (1 << f->exponent_bits) - 1;
    const int exponent = (int)(code >> f->fraction_bits) & most;
    const unsigned fraction = code & ((1u << f->fraction_bits) - 1);
    double size = ldexp(fraction, 1 - bias - f->fraction_bits);
    if (exponent == most)
        size = fraction ? NAN : INFINITY;
    else if (exponent > 0)
        size = ldexp(1.0 + ldexp(fraction, -f->fraction_bits), exponent - bias);
    return code & 0x8000 ? -size : size;
}

static unsigned encode(const format_t *f, float value)
{
    uint16_t code;
    lap_from_float(f->dtype, &value, &code, 1);
    return code;
}

/*
 * The code nearest to a value that is not negative. Codes from 0 on are in the order of their
 * values; infinity stands for the value that would follow the largest.
 */
static unsigned nearest(const format_t *f, double value)
{
    const unsigned infinity = (unsigned)((1 << f->exponent_bits) - 1) << f->fraction_bits;
    unsigned low = 0, high = infinity; /* value_of(low) <= value < value_of(high) */
    if (value >= value_of(f, infinity))
        return infinity;
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        *(value_of(f, middle) <= value ? &low : &high) = middle;
    }
    const double below = value_of(f, low);
    const double above = high == infinity ? 2 * below - value_of(f, low - 1) : value_of(f, high);
    if (value - below != above - value)
        return value - below < above - value ? low : high;
    return low % 2 == 0 ? low : high;
}

static void test_codes(const format_t *f)
{
    static uint16_t codes[65536], back[65536];
    static float values[65536];
    bool exact = true, same = true;
    for (unsigned i = 0; i < 65536; i++)
        codes[i] = (uint16_t)i;
    lap_to_float(f->dtype, codes, values, 65536);
    lap_from_float(f->dtype, values, back, 65536);
    for (unsigned i = 0; i < 65536; i++) {
        const double truth = value_of(f, i);
        const unsigned quiet = isnan(truth) ? i | 1u << (f->fraction_bits - 1) : i;
        exact = exact && (isnan(truth) ? isnan(values[i]) : (double)values[i] == truth) &&
                !signbit(values[i]) == !(i & 0x8000);
        same = same && back[i] == quiet;
    }
    tap_ok(exact, "%s: all 65536 codes are decoded exactly", lap_dtype_name(f->dtype));
    tap_ok(same, "%s: and come back, as quiet ones if they are no number",
           lap_dtype_name(f->dtype));
}

/* Both signs of one value. */
static bool rounds_right(const format_t *f, float value)
{
    const unsigned want = nearest(f, (double)value);
    return encode(f, value) == want && encode(f, -value) == (want | 0x8000);
}

static void test_rounding(const format_t *f)
{
    const unsigned infinity = (unsigned)((1 << f->exponent_bits) - 1) << f->fraction_bits;
    unsigned wrong = 0;
    for (unsigned i = 0; i < infinity; i++) {
        const double low = value_of(f, i);
        const double high = i + 1 == infinity ? 2 * low - value_of(f, i - 1) : value_of(f, i + 1);
        const float middle = (float)((low + high) / 2); /* exact: float has more bits than both */
        wrong += (double)middle != (low + high) / 2;
        wrong += !rounds_right(f, middle) || !rounds_right(f, nextafterf(middle, INFINITY)) ||
                 !rounds_right(f, nextafterf(middle, 0.0f)) ||
                 !rounds_right(f, nextafterf((float)low, INFINITY)) ||
                 !rounds_right(f, nextafterf((float)high, 0.0f));
    }
    tap_ok(wrong == 0, "%s: midpoints and what lies beside them, %u wrong",
           lap_dtype_name(f->dtype), wrong);
    for (uint64_t i = 0; i < 1000000; i++) {
        float value = lap_float_of_bits((uint32_t)tap_random(21, i) & 0x7fffffff);
        wrong += isnan(value) ? !isnan(value_of(f, encode(f, value))) : !rounds_right(f, value);
    }
    tap_ok(wrong == 0, "%s: a million random floats, %u wrong", lap_dtype_name(f->dtype), wrong);
    tap_ok(encode(f, INFINITY) == infinity && encode(f, -INFINITY) == (infinity | 0x8000) &&
               encode(f, FLT_MAX) == infinity && encode(f, 0.0f) == 0 &&
               encode(f, -0.0f) == 0x8000 && encode(f, FLT_TRUE_MIN) == 0,
           "%s: infinities, the largest float, zeros, the smallest float",
           lap_dtype_name(f->dtype));
}

/* Through float, a double a little beside a midpoint would go the wrong way. */
static void test_doubles(const format_t *f)
{
    const unsigned infinity = (unsigned)((1 << f->exponent_bits) - 1) << f->fraction_bits;
    unsigned wrong = 0, differs = 0;
    for (unsigned i = 1; i + 1 < infinity; i++) {
        const double middle = (value_of(f, i) + value_of(f, i + 1)) / 2;
        const double values[] = {middle, nextafter(middle, 0), nextafter(middle, INFINITY),
                                 value_of(f, i), nextafter(value_of(f, i), 0)};
        for (int v = 0; v < 5; v++) {
            wrong += encode(f, lap_round_to_odd(values[v])) != nearest(f, values[v]);
            wrong += encode(f, lap_round_to_odd(-values[v])) != (nearest(f, values[v]) | 0x8000);
            differs += encode(f, (float)values[v]) != nearest(f, values[v]);
        }
    }
    tap_ok(wrong == 0 && differs > 0, "%s: doubles are rounded once, %u wrong (%u twice)",
           lap_dtype_name(f->dtype), wrong, differs);
    tap_ok(isnan(lap_round_to_odd(NAN)) && lap_round_to_odd(INFINITY) == INFINITY &&
               lap_round_to_odd(1e300) == FLT_MAX && lap_round_to_odd(-1e300) == -FLT_MAX &&
               lap_round_to_odd(1e-300) == FLT_TRUE_MIN && lap_round_to_odd(1.5) == 1.5f,
           "%s: doubles that no float comes near", lap_dtype_name(f->dtype));
}

static void test_float32(void)
{
    const float values[3] = {1.5f, -2.0f, 3e38f};
    float room[3] = {0}, copy[3] = {0};
    tap_ok(lap_as_float(LAP_FLOAT32, values, room, 3) == values && room[0] == 0,
           "float32 is used where it is");
    lap_to_float(LAP_FLOAT32, values, room, 3);
    lap_from_float(LAP_FLOAT32, room, copy, 3);
    tap_ok(memcmp(values, copy, sizeof(copy)) == 0, "or copied");
}

int main(void)
{
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        test_codes(&formats[i]);
        test_rounding(&formats[i]);
        test_doubles(&formats[i]);
    }
    test_float32();
    return tap_done();
}
