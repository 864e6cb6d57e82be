/* SPDX-License-Identifier: Apache-2.0 */
/*
 * float16, bfloat16 and the two 8-bit types: every code, and between each two neighbours the
 * midpoint and the floats next to it. The truth is independent of the library's arithmetic: codes
 * are read as the formats define them, and the nearest value is looked for in the sorted list of
 * all values.
 */
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "core/convert.h"
#include "tap.h"

typedef struct format {
    lap_dtype_t dtype;
    int exponent_bits, fraction_bits;
    unsigned largest; /* code of the largest number */
    bool saturates;   /* what is larger becomes it, not infinity */
} format_t;

static const format_t formats[] = {{LAP_FLOAT16, 5, 10, 0x7bff, false},
                                   {LAP_BFLOAT16, 8, 7, 0x7f7f, false},
                                   {LAP_FLOAT8_E4M3, 4, 3, 0x7e, true},
                                   {LAP_FLOAT8_E5M2, 5, 2, 0x7b, true}};

static unsigned sign_of(const format_t *f)
{
    return 1u << (f->exponent_bits + f->fraction_bits);
}

/* What becomes of infinity and of what is too large. */
static unsigned most_of(const format_t *f)
{
    return f->saturates ? f->largest : f->largest + 1;
}

/*
 * A code as IEEE 754 and OCP define it: sign, biased exponent, fraction. In e4m3 the largest
 * exponent is an exponent like others, but for the one NaN.
 */
static double value_of(const format_t *f, unsigned code)
{
    const int bias = (1 << (f->exponent_bits - 1)) - 1, most = (1 << f->exponent_bits) - 1;
    const int exponent = (int)(code >> f->fraction_bits) & most;
    const unsigned fraction = code & ((1u << f->fraction_bits) - 1);
    double size = ldexp(fraction, 1 - bias - f->fraction_bits);
    if (f->dtype == LAP_FLOAT8_E4M3 && (code & 0x7f) == 0x7f)
        size = NAN;
    else if (f->dtype != LAP_FLOAT8_E4M3 && exponent == most)
        size = fraction ? NAN : INFINITY;
    else if (exponent > 0)
        size = ldexp(1.0 + ldexp(fraction, -f->fraction_bits), exponent - bias);
    return code & sign_of(f) ? -size : size;
}

static unsigned encode(const format_t *f, float value)
{
    unsigned char codes[2] = {0, 0};
    uint16_t code;
    lap_from_float(f->dtype, &value, codes, 1);
    memcpy(&code, codes, sizeof(code));
    return lap_dtype_size(f->dtype) == 1 ? codes[0] : code;
}

/* The value after that of a code, and after the largest what would follow if there were more. */
static double value_after(const format_t *f, unsigned code)
{
    return code == f->largest ? 2 * value_of(f, code) - value_of(f, code - 1)
                              : value_of(f, code + 1);
}

/*
 * The values of codes from 0 on that are not negative, in their order; made once for each format.
 */
static const double *values_of(const format_t *f)
{
    static double values[sizeof(formats) / sizeof(formats[0])][0x8000];
    double *of = values[f - formats];
    if (of[1] == 0)
        for (unsigned code = 0; code <= f->largest; code++)
            of[code] = value_of(f, code);
    return of;
}

/* The code nearest to a value that is not negative. */
static unsigned nearest(const format_t *f, double value)
{
    const double *values = values_of(f);
    unsigned low = 0, high = f->largest + 1; /* low's value <= value < high's */
    if (value >= value_after(f, f->largest))
        return most_of(f);
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        *(values[middle] <= value ? &low : &high) = middle;
    }
    const double below = value_of(f, low), above = value_after(f, low);
    if (high > most_of(f))
        return low;
    if (value - below != above - value)
        return value - below < above - value ? low : high;
    return low % 2 == 0 ? low : high;
}

/* The code that a code's value gets: itself, but NaNs are quiet, and infinity saturates. */
static unsigned again(const format_t *f, unsigned code)
{
    const double value = value_of(f, code);
    if (isnan(value))
        return code | 1u << (f->fraction_bits - 1);
    return isinf(value) ? most_of(f) | (code & sign_of(f)) : code;
}

static void test_codes(const format_t *f)
{
    static unsigned char codes[2 * 65536], back[2 * 65536];
    static float values[65536];
    const unsigned count = 2 * sign_of(f);
    bool exact = true, same = true;
    for (unsigned i = 0; i < count; i++) {
        const uint16_t wide = (uint16_t)i;
        if (lap_dtype_size(f->dtype) == 1)
            codes[i] = (unsigned char)i;
        else
            memcpy(codes + 2 * i, &wide, sizeof(wide));
    }
    lap_to_float(f->dtype, codes, values, count);
    lap_from_float(f->dtype, values, back, count);
    for (unsigned i = 0; i < count; i++) {
        const double truth = value_of(f, i);
        const unsigned want = again(f, i);
        uint16_t wide;
        memcpy(&wide, back + 2 * (lap_dtype_size(f->dtype) == 1 ? 0 : i), sizeof(wide));
        exact =
            exact && !tap_wrong(!(isnan(truth) ? isnan(values[i]) : (double)values[i] == truth) ||
                                    !signbit(values[i]) != !(i & sign_of(f)),
                                "code 0x%x is %a, expected %a", i, (double)values[i], truth);
        same = same && (lap_dtype_size(f->dtype) == 1 ? back[i] : wide) == want &&
               encode(f, values[i]) == want;
    }
    tap_ok(exact, "%s: all %u codes are decoded exactly", lap_dtype_name(f->dtype), count);
    tap_ok(same, "%s: and come back, as quiet ones if they are no number",
           lap_dtype_name(f->dtype));
}

/* Both signs of one value. */
static bool rounds_right(const format_t *f, float value)
{
    const unsigned want = nearest(f, (double)value);
    return !tap_wrong(
        encode(f, value) != want || encode(f, -value) != (want | sign_of(f)),
        "%a becomes 0x%x, and less than zero 0x%x, expected 0x%x and that with a sign",
        (double)value, encode(f, value), encode(f, -value), want);
}

static void test_rounding(const format_t *f)
{
    const unsigned most = most_of(f), sign = sign_of(f);
    unsigned wrong = 0;
    for (unsigned i = 0; i <= f->largest; i++) {
        const double low = value_of(f, i), high = value_after(f, i);
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
    tap_ok(encode(f, INFINITY) == most && encode(f, -INFINITY) == (most | sign) &&
               encode(f, FLT_MAX) == most && encode(f, -FLT_MAX) == (most | sign) &&
               encode(f, 0.0f) == 0 && encode(f, -0.0f) == sign && encode(f, FLT_TRUE_MIN) == 0,
           "%s: infinities, the largest float, zeros, the smallest float",
           lap_dtype_name(f->dtype));
}

/* Through float, a double a little beside a midpoint would go the wrong way. */
static void test_doubles(const format_t *f)
{
    unsigned wrong = 0, differs = 0;
    for (unsigned i = 1; i < f->largest; i++) {
        const double middle = (value_of(f, i) + value_of(f, i + 1)) / 2;
        const double values[] = {middle, nextafter(middle, 0), nextafter(middle, INFINITY),
                                 value_of(f, i), nextafter(value_of(f, i), 0)};
        for (int v = 0; v < 5; v++) {
            const double minus = -values[v];
            unsigned char code[2];
            wrong += tap_wrong(encode(f, lap_round_to_odd(values[v])) != nearest(f, values[v]),
                               "%a becomes 0x%x, expected 0x%x", values[v],
                               encode(f, lap_round_to_odd(values[v])), nearest(f, values[v]));
            wrong += tap_wrong(
                encode(f, lap_round_to_odd(minus)) != (nearest(f, values[v]) | sign_of(f)),
                "%a becomes 0x%x, expected 0x%x", minus, encode(f, lap_round_to_odd(minus)),
                nearest(f, values[v]) | sign_of(f));
            differs += encode(f, (float)values[v]) != nearest(f, values[v]);
            float back;
            lap_from_double(f->dtype, &minus, code, 1);
            lap_to_float(f->dtype, code, &back, 1);
            wrong += (double)back != -value_of(f, nearest(f, values[v]));
        }
    }
    tap_ok(wrong == 0 && differs > 0, "%s: doubles are rounded once, %u wrong (%u twice)",
           lap_dtype_name(f->dtype), wrong, differs);
    tap_ok(isnan(lap_round_to_odd(NAN)) && lap_round_to_odd(INFINITY) == INFINITY &&
               lap_round_to_odd(1e300) == FLT_MAX && lap_round_to_odd(-1e300) == -FLT_MAX &&
               lap_round_to_odd(1e-300) == FLT_TRUE_MIN && lap_round_to_odd(1.5) == 1.5f,
           "%s: doubles that no float comes near", lap_dtype_name(f->dtype));
}

/* What the two specifications print: a check of this test's own reading of the formats. */
static void test_fp8_limits(void)
{
    static const struct {
        lap_dtype_t dtype;
        uint8_t code;
        float value;
    } known[] = {{LAP_FLOAT8_E4M3, 0x7e, 448.0f},
                 {LAP_FLOAT8_E4M3, 0x08, 0x1p-6f},
                 {LAP_FLOAT8_E4M3, 0x07, 0.875f * 0x1p-6f},
                 {LAP_FLOAT8_E4M3, 0x01, 0x1p-9f},
                 {LAP_FLOAT8_E4M3, 0xb8, -1.0f},
                 {LAP_FLOAT8_E5M2, 0x7b, 57344.0f},
                 {LAP_FLOAT8_E5M2, 0x04, 0x1p-14f},
                 {LAP_FLOAT8_E5M2, 0x03, 0.75f * 0x1p-14f},
                 {LAP_FLOAT8_E5M2, 0x01, 0x1p-16f},
                 {LAP_FLOAT8_E5M2, 0xbc, -1.0f},
                 {LAP_FLOAT8_E5M2, 0x7c, INFINITY}};
    bool good = true;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        float value;
        lap_to_float(known[i].dtype, &known[i].code, &value, 1);
        good = good && value == known[i].value;
    }
    tap_ok(good, "the largest and smallest numbers of the 8-bit types");
    const float nan[2] = {NAN, -NAN};
    uint8_t e4m3[2], e5m2[2];
    lap_from_float(LAP_FLOAT8_E4M3, nan, e4m3, 2);
    lap_from_float(LAP_FLOAT8_E5M2, nan, e5m2, 2);
    tap_ok((e4m3[0] & 0x7f) == 0x7f && (e5m2[0] & 0x7f) == 0x7e && (e4m3[0] ^ e4m3[1]) == 0x80 &&
               (e5m2[0] ^ e5m2[1]) == 0x80,
           "their NaNs keep the sign");
}

static void test_names(void)
{
    static const struct {
        const char *name;
        lap_dtype_t dtype;
    } names[] = {{"e4m3", LAP_FLOAT8_E4M3},    {"FP8_E4M3", LAP_FLOAT8_E4M3},
                 {"fp8e4m3", LAP_FLOAT8_E4M3}, {"float8_e4m3fn", LAP_FLOAT8_E4M3},
                 {"e5m2", LAP_FLOAT8_E5M2},    {"fp8_e5m2", LAP_FLOAT8_E5M2},
                 {"half", LAP_FLOAT16},        {"BF16", LAP_BFLOAT16}};
    bool good = true;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        lap_dtype_t dtype = LAP_FLOAT32;
        good = good && lap_dtype_parse(names[i].name, &dtype) == LAP_OK && dtype == names[i].dtype;
    }
    for (lap_dtype_t type = LAP_FLOAT32; type <= LAP_FLOAT8_E5M2; type++) {
        lap_dtype_t dtype = LAP_DTYPE_DEFAULT;
        good = good && lap_dtype_parse(lap_dtype_name(type), &dtype) == LAP_OK && dtype == type &&
               lap_dtype_is_fp8(type) == (lap_dtype_size(type) == 1);
    }
    tap_ok(good && lap_dtype_size(LAP_DTYPE_DEFAULT) == 0,
           "types are found by the names people type");
    lap_dtype_t dtype;
    tap_failure(lap_dtype_parse("fp8", &dtype), LAP_ERR_INVALID, "'fp8'", "bfloat16", "float8_e4m3",
                "float8_e5m2", NULL);
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

/* What a program is given: the same conversions, with its mistakes reported. */
static void test_public(void)
{
    const float values[4] = {0.3f, -1e9f, 65504.0f, 1e-9f};
    bool same = true;
    for (lap_dtype_t type = LAP_FLOAT32; type <= LAP_FLOAT8_E5M2; type++) {
        unsigned char codes[16] = {0}, want[16] = {0};
        float back[4] = {0}, truth[4] = {0};
        lap_from_float(type, values, want, 4);
        lap_to_float(type, want, truth, 4);
        same = same && lap_dtype_from_float(type, values, codes, 4) == LAP_OK &&
               lap_dtype_to_float(type, codes, back, 4) == LAP_OK &&
               memcmp(codes, want, sizeof(want)) == 0 && memcmp(back, truth, sizeof(truth)) == 0;
    }
    tap_ok(same, "lap_dtype_from_float and lap_dtype_to_float convert as the library does");
    float value = 1;
    tap_failure(lap_dtype_to_float((lap_dtype_t)9, &value, &value, 1), LAP_ERR_INVALID,
                "dtype is 9", "bfloat16", NULL);
    tap_failure(lap_dtype_from_float(LAP_DTYPE_DEFAULT, &value, &value, 1), LAP_ERR_INVALID,
                "dtype is -1", NULL);
    tap_failure(lap_dtype_to_float(LAP_FLOAT16, NULL, &value, 3), LAP_ERR_INVALID, "src is NULL",
                "3 elements", NULL);
    tap_failure(lap_dtype_from_float(LAP_FLOAT16, &value, NULL, 3), LAP_ERR_INVALID, "dst is NULL",
                NULL);
    tap_success(lap_dtype_to_float(LAP_FLOAT16, NULL, NULL, 0), "no elements need no memory");
}

int main(void)
{
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        test_codes(&formats[i]);
        test_rounding(&formats[i]);
        test_doubles(&formats[i]);
    }
    test_float32();
    test_fp8_limits();
    test_names();
    test_public();
    return tap_done();
}
