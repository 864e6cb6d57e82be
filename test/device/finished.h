/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tests of GEMMs and of reductions share: matrices, results with all that a finish needs, and
 * what should be in them, as op.h says, with a bound that follows from the types.
 */
#ifndef LAP_TEST_DEVICE_FINISHED_H
#define LAP_TEST_DEVICE_FINISHED_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/convert.h"
#include "each.h"
#include "shared.h"
#include "tap.h"

#define TYPES 5
#define SINGLE 0x1p-24 /* half a unit in the last place of 1, in float */

static double unit;  /* of the arithmetic of the device's GEMM */
static bool aligned; /* rows begin at multiples of 16 elements */

/* A matrix, the values of its elements, and its bytes as they were, gaps between rows included. */
typedef struct matrix {
    lap_dtype_t dtype;
    size_t rows, cols, stride, bytes;
    float *values;
    unsigned char *data, *before;
} matrix_t;

static inline matrix_t new_matrix(uint64_t seed, lap_dtype_t dtype, size_t rows, size_t cols)
{
    matrix_t x = {.dtype = dtype, .rows = rows, .cols = cols, .stride = cols + 1 + seed % 3};
    if (aligned)
        x.stride = (cols + 31) / 16 * 16;
    const size_t count = rows * x.stride + 1;
    x.bytes = count * lap_dtype_size(dtype);
    x.values = malloc(count * sizeof(float));
    x.data = new_shared(device, x.bytes);
    x.before = malloc(x.bytes);
    for (size_t i = 0; i < count; i++)
        x.values[i] = (float)(tap_random(seed, i) >> 40) / (float)(1 << 23) - 1.0f;
    lap_from_float(dtype, x.values, x.data, count);
    lap_to_float(dtype, x.data, x.values, count);
    memcpy(x.before, x.data, x.bytes);
    return x;
}

static inline void free_matrix(matrix_t *x)
{
    free(x->values);
    free_shared(device, x->data);
    free(x->before);
}

/* Bytes that are no number in any type: where nothing may be read. */
static inline void poison(matrix_t *x)
{
    memset(x->data, 0xff, x->bytes);
    memcpy(x->before, x->data, x->bytes);
}

static inline void *element(const matrix_t *x, size_t i, size_t j)
{
    return x->data + (i * x->stride + j) * lap_dtype_size(x->dtype);
}

static inline float got(const matrix_t *x, size_t i, size_t j)
{
    float value;
    lap_to_float(x->dtype, element(x, i, j), &value, 1);
    return value;
}

static inline double value(const matrix_t *x, size_t i, size_t j)
{
    return (double)x->values[i * x->stride + j];
}

static inline size_t stride_of(const matrix_t *x)
{
    return x->stride * lap_dtype_size(x->dtype);
}

/* Nothing was written between the rows and after the last one. */
static inline bool gaps_kept(const matrix_t *x)
{
    const size_t size = lap_dtype_size(x->dtype), gap = (x->stride - x->cols) * size;
    bool unchanged = true;
    for (size_t i = 0; i < x->rows; i++) {
        const size_t at = (i * x->stride + x->cols) * size;
        unchanged = unchanged && memcmp(x->data + at, x->before + at, gap) == 0;
    }
    return unchanged && memcmp(x->data + x->bytes - size, x->before + x->bytes - size, size) == 0;
}

/* ---- results ---- */

typedef struct variant {
    lap_epilogue_t epilogue;
    bool aux;
    float beta;
} variant_t;

static const variant_t variants[] = {
    {0, false, 0},
    {0, false, 0.75f},
    {LAP_EPILOGUE_BIAS, false, 0},
    {LAP_EPILOGUE_BIAS, false, -1.3f},
    {LAP_EPILOGUE_GELU, false, 0},
    {LAP_EPILOGUE_GELU, true, 0},
    {LAP_EPILOGUE_GELU, true, 1},
    {LAP_EPILOGUE_DGELU, true, 0},
    {LAP_EPILOGUE_DGELU, true, 0.5f},
    {LAP_EPILOGUE_BIAS | LAP_EPILOGUE_GELU, false, 0},
    {LAP_EPILOGUE_BIAS | LAP_EPILOGUE_GELU, true, 0},
    {LAP_EPILOGUE_BIAS | LAP_EPILOGUE_GELU | LAP_EPILOGUE_BIAS_GRAD, true, 2},
    {LAP_EPILOGUE_BIAS | LAP_EPILOGUE_DGELU, true, 0},
    {LAP_EPILOGUE_BIAS | LAP_EPILOGUE_DGELU, true, 0.3f},
};
#define VARIANTS (sizeof(variants) / sizeof(variants[0]))

typedef struct results {
    matrix_t d, bias, aux;
    lap_finish_t finish;
    bool with_aux;
} results_t;

/* Bias and aux have the types that are not FP8, in turn. An FP8 d has a scale. */
static inline results_t new_results(uint64_t seed, lap_dtype_t dtype, const variant_t *v,
                                    size_t rows, size_t cols)
{
    results_t r = {.with_aux = v->aux};
    r.d = new_matrix(seed, dtype, rows, cols);
    r.bias = new_matrix(seed + 1, (lap_dtype_t)(seed % 3), 1, cols);
    r.aux = new_matrix(seed + 2, (lap_dtype_t)(seed / 3 % 3), rows, cols);
    if (v->beta == 0)
        poison(&r.d);
    if (!(v->epilogue & LAP_EPILOGUE_DGELU))
        poison(&r.aux);
    r.finish = (lap_finish_t){.epilogue = v->epilogue,
                              .beta = v->beta,
                              .scale = !lap_dtype_is_fp8(dtype) ? 1
                                       : seed % 4               ? 0.37f
                                                                : 0.0042f,
                              .bias_dtype = r.bias.dtype,
                              .aux_dtype = r.aux.dtype,
                              .bias = v->epilogue & LAP_EPILOGUE_BIAS ? r.bias.data : NULL,
                              .aux_stride = stride_of(&r.aux)};
    return r;
}

static inline void free_results(results_t *r)
{
    free_matrix(&r->d);
    free_matrix(&r->bias);
    free_matrix(&r->aux);
}

/* ---- what should come out ---- */

/* A result, and how far the device's may be from it, in all and before it is scaled and stored. */
typedef struct truth {
    double x, bound, before;
} truth_t;

/* One operation: its rounding, and that of what went into it. */
static inline truth_t rounded(double x, double bound)
{
    return (truth_t){.x = x, .bound = bound + unit * (fabs(x) + bound)};
}

/* As tap_half_unit, and for float32 too. */
static inline double half_unit(lap_dtype_t dtype, double x)
{
    return dtype == LAP_FLOAT32 ? SINGLE * fabs(x) + 0x1p-150 : tap_half_unit(dtype, x);
}

static inline truth_t stored(lap_dtype_t dtype, truth_t t)
{
    t.bound += half_unit(dtype, fabs(t.x) + t.bound);
    return t;
}

static inline double inner(double x)
{
    return sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
}

/* The slope is 1.13 at most. The device may be off by 7 units of the result and 2 of 1. */
static inline truth_t gelu(truth_t t)
{
    const double x = 0.5 * t.x * (1 + tanh(inner(t.x)));
    const double bound = 1.13 * t.bound + unit * (7 * fabs(x) + 2) + 0x1p-52 * fabs(t.x);
    return (truth_t){.x = x, .bound = bound};
}

static inline double gelu_slope(double x)
{
    const double h = tanh(inner(x)), slope = sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    return 0.5 * (1 + h) + 0.5 * x * (1 - h * h) * slope;
}

/* Element (i, j) of d, and of aux where it is written. */
static inline truth_t finished(const results_t *r, truth_t t, size_t i, size_t j, truth_t *aux_p)
{
    const lap_finish_t *f = &r->finish;
    const double scale = (double)f->scale;
    if (f->beta != 0) {
        const truth_t old = rounded((double)f->beta * scale * value(&r->d, i, j), 0);
        t = rounded(t.x + old.x, t.bound + 2 * old.bound);
    }
    if (f->epilogue & LAP_EPILOGUE_BIAS)
        t = rounded(t.x + value(&r->bias, 0, j), t.bound);
    *aux_p = stored(f->aux_dtype, t);
    if (f->epilogue & LAP_EPILOGUE_GELU)
        t = gelu(t);
    if (f->epilogue & LAP_EPILOGUE_DGELU) {
        const double slope = gelu_slope(value(&r->aux, i, j));
        t = rounded(t.x * slope, t.bound * fabs(slope) + 12 * unit * (fabs(t.x) + t.bound));
    }
    const double before = t.bound / (1 + fabs(t.x));
    if (f->scale != 1)
        t = rounded(t.x / scale, t.bound / scale);
    t = stored(r->d.dtype, t);
    t.before = before;
    return t;
}

/* ---- the verdict ---- */

/* The worst error over its bound, and the loosest bound of all, before the last rounding. */
typedef struct score {
    double worst, loosest;
} score_t;

static inline void compare(score_t *score, truth_t t, float value)
{
    const double error = fabs((double)value - t.x);
    score->worst = fmax(score->worst, error <= t.bound ? error / t.bound : 2);
    score->loosest = fmax(score->loosest, t.before);
}

static score_t total; /* of what was tried since it was cleared */
static size_t unnoticed;

static inline void report(const char *what, double loosest)
{
    tap_ok(total.worst <= 1 && unnoticed == 0 && total.loosest <= loosest,
           "%s: %s: %.3f of the bound; %zu errors past it missed; %.1e before the last rounding",
           ops->name, what, total.worst, unnoticed, total.loosest);
    total = (score_t){0, 0};
    unnoticed = 0;
}

#endif
