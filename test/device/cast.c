/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Casts of every type into every other, on every device: to the bit what core/convert.h makes of
 * each element divided by the scale, and the largest size among them.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/convert.h"
#include "each.h"
#include "shared.h"
#include "tap.h"

#define TYPES 5
#define GUARD 0x5a

/* Numbers of both signs of many sizes; the largest of them is somewhere, and known. */
static float *random_numbers(uint64_t seed, lap_dtype_t dtype, size_t count, void *data)
{
    float *values = malloc((count + 1) * sizeof(float));
    for (size_t i = 0; i < count; i++)
        values[i] = ldexpf((float)(tap_random(seed, i) >> 40) / (float)(1 << 23) - 1.0f,
                           (int)(tap_random(seed + 1, i) % 16) - 8);
    lap_from_float(dtype, values, data, count);
    lap_to_float(dtype, data, values, count);
    return values;
}

typedef struct problem {
    lap_dtype_t from, to;
    size_t rows, cols, from_stride, to_stride; /* in elements */
    float scale, before;                       /* *amax before; below 0: none */
} problem_t;

static size_t try_cast(uint64_t seed, const problem_t *p)
{
    const size_t from = lap_dtype_size(p->from), to = lap_dtype_size(p->to);
    const size_t bytes = p->rows * p->to_stride * to + 1;
    void *src = new_shared(device, p->rows * p->from_stride * from);
    unsigned char *dst = new_shared(device, bytes), *expected = malloc(bytes);
    float *numbers = new_shared(device, 2 * sizeof(float)); /* scale, amax */
    float *values = random_numbers(seed, p->from, p->rows * p->from_stride, src);
    numbers[0] = p->scale;
    numbers[1] = p->before;
    memset(dst, GUARD, bytes);
    memset(expected, GUARD, bytes);
    float most = p->before;
    for (size_t i = 0; i < p->rows; i++)
        for (size_t j = 0; j < p->cols; j++) {
            const float x = values[i * p->from_stride + j], scaled = x / p->scale;
            most = fmaxf(most, fabsf(x));
            lap_from_float(p->to, &scaled, expected + (i * p->to_stride + j) * to, 1);
        }
    const lap_cast_t cast = {.from = p->from,
                             .to = p->to,
                             .src = src,
                             .dst = dst,
                             .src_stride = p->from_stride * from,
                             .dst_stride = p->to_stride * to,
                             .rows = p->rows,
                             .cols = p->cols,
                             .scale = p->scale == 1 && seed % 2 ? NULL : &numbers[0],
                             .amax = p->before < 0 ? NULL : &numbers[1]};
    size_t wrong = ops->cast(stream, &cast) != LAP_OK;
    wrong += ops->stream_synchronize(stream) != LAP_OK;
    size_t at = 0;
    while (at < bytes && ((unsigned char *)dst)[at] == ((unsigned char *)expected)[at])
        at++;
    wrong +=
        tap_wrong(at < bytes, "[%zu, %zu] from %s to %s times %g: byte %zu differs", p->rows,
                  p->cols, lap_dtype_name(p->from), lap_dtype_name(p->to), (double)p->scale, at);
    const float amax = p->before < 0 ? p->before : most;
    wrong += tap_wrong(numbers[1] != amax, "[%zu, %zu] of %s: amax is %.9g, expected %.9g", p->rows,
                       p->cols, lap_dtype_name(p->from), (double)numbers[1], (double)amax);
    free_shared(device, src);
    free_shared(device, dst);
    free_shared(device, numbers);
    free(expected);
    free(values);
    return wrong;
}

/* Rows that are whole vectors and rows that are not, shorter and longer than what is taken at once. */
static void test_types(void)
{
    static const size_t shapes[][4] = {/* rows, cols, and the gaps after rows */
                                       {1, 1, 0, 0},  {3, 64, 0, 0},   {5, 40, 8, 16},
                                       {4, 33, 2, 5}, {2, 2500, 0, 0}, {3, 4160, 16, 8},
                                       {70, 7, 1, 0}, {0, 5, 1, 1},    {5, 0, 3, 3}};
    static const float scales[] = {1, 0.37f, 1000.0f, 0x1p-6f};
    uint64_t seed = 0;
    size_t wrong = 0;
    for (lap_dtype_t from = LAP_FLOAT32; from < TYPES; from++)
        for (lap_dtype_t to = LAP_FLOAT32; to < TYPES; to++)
            for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++, seed++) {
                const problem_t p = {.from = from,
                                     .to = to,
                                     .rows = shapes[i][0],
                                     .cols = shapes[i][1],
                                     .from_stride = shapes[i][1] + shapes[i][2],
                                     .to_stride = shapes[i][1] + shapes[i][3],
                                     .scale = scales[seed % 4],
                                     .before = seed % 5 == 0   ? -1.0f
                                               : seed % 5 == 1 ? 1e6f
                                                               : 0.0f};
                wrong += try_cast(seed, &p);
            }
    tap_ok(wrong == 0, "%s: casts of all types into all: %zu wrong", ops->name, wrong);
}

/* What is too large saturates in FP8; infinity and NaN are seen in amax. */
static void test_specials(void)
{
    static const float given[4] = {1e30f, -3.0f, INFINITY, NAN};
    float *src = new_shared(device, sizeof(given)), *amax = new_shared(device, sizeof(float));
    uint8_t *dst = new_shared(device, 4);
    memcpy(src, given, sizeof(given));
    lap_cast_t cast = {.from = LAP_FLOAT32,
                       .to = LAP_FLOAT8_E4M3,
                       .src = src,
                       .dst = dst,
                       .rows = 1,
                       .cols = 3,
                       .src_stride = sizeof(given),
                       .dst_stride = 4,
                       .amax = amax};
    ops->cast(stream, &cast);
    tap_success(ops->stream_synchronize(stream), "%s: a cast of what FP8 has not", ops->name);
    tap_ok(lap_e4m3_decode(dst[0]) == 448 && lap_e4m3_decode(dst[1]) == -3 &&
               lap_e4m3_decode(dst[2]) == 448 && *amax == INFINITY,
           "%s: it saturates, and amax is infinite", ops->name);
    cast.cols = 4;
    ops->cast(stream, &cast);
    ops->stream_synchronize(stream);
    tap_ok(isnan(lap_e4m3_decode(dst[3])) && isnan(*amax), "%s: NaN stays, and is the largest",
           ops->name);
    cast.to = (lap_dtype_t)77;
    tap_failure(ops->cast(stream, &cast), LAP_ERR_UNSUPPORTED, "77", "a cast", NULL);
    free_shared(device, src);
    free_shared(device, amax);
    free_shared(device, dst);
}

static void test_device(void)
{
    test_types();
    test_specials();
}

int main(void)
{
    return test_devices(NULL, test_device);
}
