/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of the sums of GEMMs and reductions, on every device: all mixtures of types,
 * layouts, scales, accumulation and epilogues, against plain sums in double that are finished as
 * op.h says, within a bound that follows from the types and k. gemm.c has the signals and shapes.
 */
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

static matrix_t new_matrix(uint64_t seed, lap_dtype_t dtype, size_t rows, size_t cols)
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

static void free_matrix(matrix_t *x)
{
    free(x->values);
    free_shared(device, x->data);
    free(x->before);
}

/* Bytes that are no number in any type: where nothing may be read. */
static void poison(matrix_t *x)
{
    memset(x->data, 0xff, x->bytes);
    memcpy(x->before, x->data, x->bytes);
}

static void *element(const matrix_t *x, size_t i, size_t j)
{
    return x->data + (i * x->stride + j) * lap_dtype_size(x->dtype);
}

static float got(const matrix_t *x, size_t i, size_t j)
{
    float value;
    lap_to_float(x->dtype, element(x, i, j), &value, 1);
    return value;
}

static double value(const matrix_t *x, size_t i, size_t j)
{
    return (double)x->values[i * x->stride + j];
}

static size_t stride_of(const matrix_t *x)
{
    return x->stride * lap_dtype_size(x->dtype);
}

/* Nothing was written between the rows and behind the last one. */
static bool gaps_kept(const matrix_t *x)
{
    const size_t size = lap_dtype_size(x->dtype), gap = (x->stride - x->cols) * size;
    bool kept = true;
    for (size_t i = 0; i < x->rows; i++) {
        const size_t at = (i * x->stride + x->cols) * size;
        kept = kept && memcmp(x->data + at, x->before + at, gap) == 0;
    }
    return kept && memcmp(x->data + x->bytes - size, x->before + x->bytes - size, size) == 0;
}

/* ---- what should come out ---- */

/* A result, and how far the device's may be from it, in all and before it is scaled and stored. */
typedef struct truth {
    double x, bound, before;
} truth_t;

/* One operation: its rounding, and that of what went into it. */
static truth_t rounded(double x, double bound)
{
    return (truth_t){.x = x, .bound = bound + unit * (fabs(x) + bound)};
}

/* As tap_half_unit, and for float32 too. */
static double half_unit(lap_dtype_t dtype, double x)
{
    return dtype == LAP_FLOAT32 ? SINGLE * fabs(x) + 0x1p-150 : tap_half_unit(dtype, x);
}

static truth_t stored(lap_dtype_t dtype, truth_t t)
{
    t.bound += half_unit(dtype, fabs(t.x) + t.bound);
    return t;
}

static double inner(double x)
{
    return sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
}

/* The slope is 1.13 at most. The device may be off by 7 units of the result and 2 of 1. */
static truth_t gelu(truth_t t)
{
    const double x = 0.5 * t.x * (1 + tanh(inner(t.x)));
    const double bound = 1.13 * t.bound + unit * (7 * fabs(x) + 2) + 0x1p-52 * fabs(t.x);
    return (truth_t){.x = x, .bound = bound};
}

static double gelu_slope(double x)
{
    const double h = tanh(inner(x)), slope = sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    return 0.5 * (1 + h) + 0.5 * x * (1 - h * h) * slope;
}

typedef struct results {
    matrix_t d, bias, aux;
    lap_finish_t finish;
    bool with_aux;
} results_t;

/* Element (i, j) of d, and of aux where it is written. */
static truth_t finished(const results_t *r, truth_t t, size_t i, size_t j, truth_t *aux_p)
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

/* The worst error over its bound, and the loosest bound of all, before the last rounding. */
typedef struct score {
    double worst, loosest;
} score_t;

static void compare(score_t *score, truth_t t, float value)
{
    const double error = fabs((double)value - t.x);
    score->worst = fmax(score->worst, error <= t.bound ? error / t.bound : 2);
    score->loosest = fmax(score->loosest, t.before);
}

/* A number of the type that is a little farther from a result than the bound, towards 0. */
static float beyond(lap_dtype_t dtype, truth_t t)
{
    const double largest = (double)tap_rounded(dtype, 3e38f); /* rounding there is no saturating */
    const double far = t.bound + 2.1 * half_unit(dtype, fmin(fabs(t.x) + 2 * t.bound, largest));
    return tap_rounded(dtype, (float)(t.x > 0 ? t.x - far : t.x + far));
}

/* ---- GEMM ---- */

typedef struct problem {
    results_t r;
    matrix_t a, b;
    bool a_transposed, b_plain;
    size_t m, n, k;
    float scale, *a_scale;
} problem_t;

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

/* Bias and aux have the types that are not FP8, in turn. An FP8 d has a scale. */
static results_t new_results(uint64_t seed, lap_dtype_t dtype, const variant_t *v, size_t rows,
                             size_t cols)
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

static void free_results(results_t *r)
{
    free_matrix(&r->d);
    free_matrix(&r->bias);
    free_matrix(&r->aux);
}

static problem_t new_problem(uint64_t seed, const lap_dtype_t *types, const variant_t *v,
                             int layout, size_t m, size_t n, size_t k)
{
    problem_t p = {.m = m, .n = n, .k = k, .scale = 1.7f};
    p.a_scale = new_shared(device, sizeof(float));
    *p.a_scale = 0.6f;
    p.a_transposed = layout & 1;
    p.b_plain = layout & 2;
    p.a = new_matrix(seed * 7 + 1, types[0], p.a_transposed ? k : m, p.a_transposed ? m : k);
    p.b = new_matrix(seed * 7 + 2, types[1], p.b_plain ? k : n, p.b_plain ? n : k);
    p.r = new_results(seed * 7 + 3, types[2], v, m, n);
    return p;
}

static void free_problem(problem_t *p)
{
    free_matrix(&p->a);
    free_matrix(&p->b);
    free_results(&p->r);
    free_shared(device, p->a_scale);
}

/* In two blocks, the second with the scale of a and the first without. */
static lap_status_t multiply(problem_t *p)
{
    const size_t half = p->m / 2;
    lap_gemm_block_t blocks[2];
    for (size_t i = 0; i < 2; i++) {
        const size_t row = i * half;
        blocks[i] = (lap_gemm_block_t){
            .a = element(&p->a, p->a_transposed ? 0 : row, p->a_transposed ? row : 0),
            .d = element(&p->r.d, row, 0),
            .rows = i ? p->m - half : half,
            .a_stride = stride_of(&p->a),
            .d_stride = stride_of(&p->r.d),
            .a_scale = i ? p->a_scale : NULL,
            .aux = p->r.with_aux ? element(&p->r.aux, row, 0) : NULL};
    }
    const lap_gemm_t gemm = {.a_dtype = p->a.dtype,
                             .b_dtype = p->b.dtype,
                             .d_dtype = p->r.d.dtype,
                             .a_transposed = p->a_transposed,
                             .b_plain = p->b_plain,
                             .scale = p->scale,
                             .n = p->n,
                             .k = p->k,
                             .b = p->b.data,
                             .b_stride = stride_of(&p->b),
                             .finish = &p->r.finish,
                             .blocks = blocks,
                             .nblocks = 2};
    LAP_TRY(ops->gemm(stream, &gemm));
    return ops->stream_synchronize(stream);
}

/* k products and sums, and the two scales: each is off by a unit at most. */
static truth_t product(const problem_t *p, size_t i, size_t j)
{
    const double scale = (double)p->scale * (i < p->m / 2 ? 1.0 : (double)*p->a_scale);
    double sum = 0, size = 0;
    for (size_t k = 0; k < p->k; k++) {
        const double term = (p->a_transposed ? value(&p->a, k, i) : value(&p->a, i, k)) *
                            (p->b_plain ? value(&p->b, k, j) : value(&p->b, j, k));
        sum += term;
        size += fabs(term);
    }
    return (truth_t){.x = scale * sum,
                     .bound = ((double)p->k + 3) * unit * fabs(scale) * size * 1.01};
}

/* Infinity when something was written where nothing belongs. */
static score_t judge(const problem_t *p, bool by_columns)
{
    score_t score = {0, 0};
    const results_t *r = &p->r;
    const size_t step = by_columns ? 1 + p->m * p->n * (p->k + 1) / 1000000 : 1;
    for (size_t e = 0; e < p->m * p->n; e += step) {
        truth_t aux;
        const size_t i = e / p->n, j = e % p->n;
        const truth_t d = finished(r, product(p, i, j), i, j, &aux);
        compare(&score, d, got(&r->d, i, j));
        if (r->with_aux && r->finish.epilogue & LAP_EPILOGUE_GELU)
            compare(&score, aux, got(&r->aux, i, j));
    }
    const bool writes = r->with_aux && r->finish.epilogue & LAP_EPILOGUE_GELU;
    if (!gaps_kept(&r->d) || !gaps_kept(&r->aux) ||
        (!writes && memcmp(r->aux.data, r->aux.before, r->aux.bytes) != 0))
        score.worst = INFINITY;
    return score;
}

/* What passes fails when one element of d, or of aux, moves to the next number past its bound. */
static bool notices(problem_t *p, uint64_t seed)
{
    results_t *r = &p->r;
    truth_t aux;
    const size_t i = seed % p->m, j = seed / 3 % p->n;
    const truth_t d = finished(r, product(p, i, j), i, j, &aux);
    const float right = got(&r->d, i, j), wrong = beyond(r->d.dtype, d);
    lap_from_float(r->d.dtype, &wrong, element(&r->d, i, j), 1);
    bool noticed = judge(p, false).worst > 1;
    lap_from_float(r->d.dtype, &right, element(&r->d, i, j), 1);
    if (r->with_aux && r->finish.epilogue & LAP_EPILOGUE_GELU) {
        const float off = beyond(r->aux.dtype, aux);
        lap_from_float(r->aux.dtype, &off, element(&r->aux, i, j), 1);
        noticed = noticed && judge(p, false).worst > 1;
    }
    return noticed;
}

static score_t total; /* of what was tried since it was cleared */
static size_t unnoticed;

static void try_problem(uint64_t seed, const lap_dtype_t *types, const variant_t *v, int layout,
                        size_t m, size_t n, size_t k)
{
    problem_t p = new_problem(seed, types, v, layout, m, n, k);
    const lap_status_t status = multiply(&p);
    const score_t score = judge(&p, true);
    if (status != LAP_OK || score.worst > 1)
        tap_ok(false, "%s: %s %s %s, layout %d, epilogue %u, aux %d, beta %g, %zu %zu %zu: %g",
               ops->name, lap_dtype_name(types[0]), lap_dtype_name(types[1]),
               lap_dtype_name(types[2]), layout, v->epilogue, v->aux, (double)v->beta, m, n, k,
               score.worst);
    if (m > 0 && n > 0 && m * n * k < 10000)
        unnoticed += !notices(&p, seed);
    total.worst = fmax(total.worst, score.worst);
    total.loosest = fmax(total.loosest, score.loosest);
    free_problem(&p);
}

static void report(const char *what, double loosest)
{
    tap_ok(total.worst <= 1 && unnoticed == 0 && total.loosest <= loosest,
           "%s: %s: %.3f of the bound; %zu errors past it missed; %.1e before the last rounding",
           ops->name, what, total.worst, unnoticed, total.loosest);
    total = (score_t){0, 0};
    unnoticed = 0;
}

/*
 * Every pair of types of a and b that has a use and some that have none, every d, and layout. k is
 * no multiple of 16, with which a GPU may add up FP8 with fewer bits: that is in gemm.c.
 */
static void test_types(void)
{
    static const lap_dtype_t pairs[][2] = {
        {LAP_FLOAT32, LAP_FLOAT32},         {LAP_FLOAT16, LAP_FLOAT16},
        {LAP_BFLOAT16, LAP_BFLOAT16},       {LAP_FLOAT8_E4M3, LAP_FLOAT8_E4M3},
        {LAP_FLOAT8_E5M2, LAP_FLOAT8_E5M2}, {LAP_FLOAT8_E4M3, LAP_FLOAT8_E5M2},
        {LAP_FLOAT8_E5M2, LAP_FLOAT8_E4M3}, {LAP_FLOAT32, LAP_BFLOAT16},
        {LAP_FLOAT8_E4M3, LAP_FLOAT16}};
    uint64_t seed = 0;
    for (size_t pair = 0; pair < sizeof(pairs) / sizeof(pairs[0]); pair++)
        for (lap_dtype_t d = LAP_FLOAT32; d < TYPES; d++)
            for (int layout = 0; layout < 4; layout++)
                for (size_t v = 0; v < VARIANTS; v++, seed++) {
                    const lap_dtype_t types[3] = {pairs[pair][0], pairs[pair][1], d};
                    const size_t k = 1 + tap_random(3, seed) % 40;
                    try_problem(seed, types, &variants[v], layout, 1 + tap_random(1, seed) % 9,
                                1 + tap_random(2, seed) % 9, k + (k % 16 == 0));
                }
    report("all mixtures of types, layouts and epilogues", 1e-4);
}

/* Sizes and rows that libraries like: they do some of this by themselves then. */
static void test_aligned(void)
{
    uint64_t seed = 30000;
    aligned = true;
    for (lap_dtype_t a = LAP_FLOAT32; a <= LAP_BFLOAT16; a++)
        for (int wide = 0; wide < 2; wide++)
            for (int layout = 0; layout < 4; layout++)
                for (size_t v = 0; v < VARIANTS; v++, seed++) {
                    const lap_dtype_t types[3] = {a, a, wide ? LAP_FLOAT32 : a};
                    try_problem(seed, types, &variants[v], layout, 32, 16, 16);
                }
    aligned = false;
    report("sizes that are multiples of 16", 1e-4);
}

/* Around the edges of what is converted and computed at once, in each of the two blocks. */
static void test_edges(void)
{
    static const size_t sizes[][3] = {{1030, 3, 5}, {3, 513, 5},    {2, 257, 3},  {5, 3, 513},
                                      {65, 9, 257}, {2, 515, 1030}, {1200, 1, 2}, {1, 1, 1}};
    static const lap_dtype_t types[][3] = {{LAP_FLOAT32, LAP_FLOAT32, LAP_FLOAT32},
                                           {LAP_FLOAT32, LAP_FLOAT32, LAP_BFLOAT16},
                                           {LAP_FLOAT8_E5M2, LAP_FLOAT8_E4M3, LAP_BFLOAT16}};
    uint64_t seed = 50000;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (size_t t = 0; t < 3; t++)
            for (size_t v = VARIANTS - 4; v < VARIANTS; v++, seed++)
                try_problem(seed, types[t], &variants[v], (int)((i + v) % 4), sizes[i][0],
                            sizes[i][1], sizes[i][2]);
    report("edges of tiles", 0.05); /* k = 1030 */
    for (lap_dtype_t d = LAP_FLOAT32; d < TYPES; d++)
        for (size_t v = 0; v < VARIANTS; v++, seed++) {
            const lap_dtype_t same[3] = {d, d, d};
            try_problem(seed, same, &variants[v], (int)(seed % 4), 3, 5, 0);
            try_problem(seed, same, &variants[v], (int)(seed % 4), 0, 5, 3);
            try_problem(seed, same, &variants[v], (int)(seed % 4), 3, 0, 3);
        }
    report("no rows, no columns, and k = 0, which still is finished", 1e-5);
}

/* The scale of a comes with a, after the GEMM was issued. */
static void test_late_scale(void)
{
    lap_bank_t *bank = aligned_alloc(64, (lap_bank_bytes(1) + 63) / 64 * 64);
    memset(bank, 0, lap_bank_bytes(1));
    const uint8_t a[2] = {0x38, 0x40}, b[2] = {0x38, 0x38}; /* 1, 2 and 1, 1 */
    float d = 0, a_scale = NAN;
    lap_gemm_block_t block = {.a = a,
                              .d = &d,
                              .rows = 1,
                              .a_stride = 2,
                              .d_stride = 4,
                              .a_scale = &a_scale,
                              .has_wait = true,
                              .wait = {0, 1}};
    const lap_watch_t watch = {.timeout_ns = 20000000000u};
    const lap_gemm_t gemm = {.a_dtype = LAP_FLOAT8_E4M3,
                             .b_dtype = LAP_FLOAT8_E4M3,
                             .scale = 0.5f,
                             .n = 1,
                             .k = 2,
                             .b = b,
                             .b_stride = 2,
                             .blocks = &block,
                             .nblocks = 1,
                             .wait_bank = bank,
                             .watch = &watch};
    ops->gemm(stream, &gemm);
    a_scale = 8;
    lap_bank_raise(bank, 0);
    tap_success(ops->stream_synchronize(stream), "%s: a block waits", ops->name);
    tap_ok(d == 12.0f, "%s: and then reads the scale of a", ops->name);
    free(bank);
}

/* ---- GELU by itself: k = 0, so that x is the bias ---- */

#define SAMPLES 131072u

static void finish_row(const float *bias, float *aux, lap_epilogue_t epilogue, float *d)
{
    const lap_finish_t finish = {
        .epilogue = epilogue | LAP_EPILOGUE_BIAS, .scale = 1, .bias = bias};
    lap_gemm_block_t block = {.d = d, .rows = 1, .d_stride = SAMPLES * 4, .aux = aux};
    const lap_gemm_t gemm = {
        .scale = 1, .n = SAMPLES, .finish = &finish, .blocks = &block, .nblocks = 1};
    ops->gemm(stream, &gemm);
    tap_success(ops->stream_synchronize(stream), "%s: a row of %u", ops->name, SAMPLES);
}

/* Floats of both signs from the smallest to 2^5, evenly by their bits, and the special ones. */
static void test_gelu(void)
{
    static const float specials[] = {0.0f,  -0.0f,  INFINITY, -INFINITY, NAN,
                                     3e38f, -3e38f, 1e13f,    -1e13f,    1e-45f};
    float *x = new_shared(device, SAMPLES * sizeof(float));
    float *ones = new_shared(device, SAMPLES * sizeof(float));
    float *d = new_shared(device, SAMPLES * sizeof(float));
    float *slope = new_shared(device, SAMPLES * sizeof(float));
    const size_t nspecials = sizeof(specials) / sizeof(specials[0]);
    score_t values = {0, 0}, slopes = {0, 0};
    for (uint32_t i = 0; i < SAMPLES; i++) {
        x[i] = lap_float_of_bits(i / 2 * (0x42000000u / (SAMPLES / 2)) | i % 2 << 31);
        ones[i] = 1;
    }
    memcpy(x, specials, sizeof(specials));
    finish_row(x, NULL, LAP_EPILOGUE_GELU, d);
    finish_row(ones, x, LAP_EPILOGUE_DGELU, slope);
    for (size_t i = nspecials; i < SAMPLES; i++) {
        const truth_t exactly = {.x = (double)x[i]};
        compare(&values, stored(LAP_FLOAT32, gelu(exactly)), d[i]);
        const truth_t s = {.x = gelu_slope((double)x[i]), .bound = 12 * unit + 0x1p-50};
        compare(&slopes, stored(LAP_FLOAT32, s), slope[i]);
    }
    tap_ok(values.worst <= 1, "%s: gelu is within 7 u of itself and 2 u of 1 (%.3f of it)",
           ops->name, values.worst);
    tap_ok(slopes.worst <= 1, "%s: its slope is within 12 u (%.3f of it)", ops->name, slopes.worst);
    tap_ok(d[0] == 0 && d[1] == 0 && d[2] == INFINITY && d[3] == 0 && isnan(d[4]) &&
               d[5] == 3e38f && d[6] == 0 && d[7] == 1e13f && d[8] == 0,
           "%s: gelu of zeros, infinities, NaN and huge numbers", ops->name);
    tap_ok(slope[0] == 0.5f && slope[1] == 0.5f && slope[2] == 1 && slope[3] == 0 &&
               isnan(slope[4]) && slope[5] == 1 && slope[6] == 0 && slope[7] == 1 &&
               slope[8] == 0 && slope[9] == 0.5f,
           "%s: and its slope there", ops->name);
    free_shared(device, x);
    free_shared(device, ones);
    free_shared(device, d);
    free_shared(device, slope);
}

/* ---- reductions ---- */

#define SOURCES 6

/* The sum as it is promised: products in fp32, then sums in fp32 in the order of sources. */
static float sum_of(const matrix_t *srcs, size_t nsrc, const float *scales, size_t i, size_t j)
{
    float sum = 0;
    for (size_t s = 0; s < nsrc; s++) {
        const float x = srcs[s].values[i * srcs[s].stride + j];
        const float term = scales ? x * scales[s] : x;
        sum = s == 0 ? term : sum + term;
    }
    return sum;
}

static void try_reduce(uint64_t seed, lap_dtype_t from, lap_dtype_t to, const variant_t *v,
                       size_t rows, size_t cols)
{
    static const float factors[SOURCES] = {0.7f, 1.9f, 1.3f, -0.6f, 1.1f, 0.4f};
    float *scales = new_shared(device, sizeof(factors));
    memcpy(scales, factors, sizeof(factors));
    const float *scale_ps[SOURCES];
    matrix_t srcs[SOURCES];
    const void *sources[SOURCES];
    size_t strides[SOURCES];
    const size_t nsrc = 1 + seed % SOURCES;
    for (size_t s = 0; s < SOURCES; s++) {
        srcs[s] = new_matrix(seed * 11 + s, from, rows, cols);
        sources[s] = srcs[s].data;
        strides[s] = stride_of(&srcs[s]);
        scale_ps[s] = &scales[s];
    }
    results_t r = new_results(seed * 11 + 5, to, v, rows, cols);
    const bool scaled = seed / 3 % 2, plain = v->epilogue == 0 && v->beta == 0;
    const lap_reduce_t reduce = {.from = from,
                                 .to = to,
                                 .dst = r.d.data,
                                 .dst_stride = stride_of(&r.d),
                                 .srcs = sources,
                                 .src_strides = strides,
                                 .scales = scaled ? scale_ps : NULL,
                                 .nsrc = nsrc,
                                 .rows = rows,
                                 .cols = cols,
                                 .finish = plain ? NULL : &r.finish,
                                 .aux = v->aux ? r.aux.data : NULL};
    ops->reduce(stream, &reduce);
    const lap_status_t status = ops->stream_synchronize(stream);
    score_t score = {0, 0};
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++) {
            truth_t aux;
            const float sum = sum_of(srcs, nsrc, scaled ? scales : NULL, i, j);
            const truth_t d = finished(&r, (truth_t){.x = (double)sum}, i, j, &aux);
            if (plain)
                score.worst = fmax(score.worst, got(&r.d, i, j) == tap_rounded(to, sum) ? 0 : 2);
            else
                compare(&score, d, got(&r.d, i, j));
            if (v->aux && v->epilogue & LAP_EPILOGUE_GELU)
                compare(&score, aux, got(&r.aux, i, j));
        }
    if (status != LAP_OK || score.worst > 1 || !gaps_kept(&r.d) || !gaps_kept(&r.aux))
        tap_ok(false, "%s: a sum of %zu %s into %s, epilogue %u, beta %g: %g", ops->name, nsrc,
               lap_dtype_name(from), lap_dtype_name(to), v->epilogue, (double)v->beta, score.worst);
    total.worst = fmax(total.worst, score.worst);
    total.loosest = fmax(total.loosest, score.loosest);
    for (size_t s = 0; s < SOURCES; s++)
        free_matrix(&srcs[s]);
    free_shared(device, scales);
    free_results(&r);
}

static void test_reduce(void)
{
    uint64_t seed = 0;
    for (lap_dtype_t from = LAP_FLOAT32; from < TYPES; from++)
        for (lap_dtype_t to = LAP_FLOAT32; to < TYPES; to++)
            for (size_t v = 0; v < VARIANTS; v++, seed++)
                try_reduce(seed, from, to, &variants[v], 1 + seed % 4,
                           seed % 7 ? 1 + tap_random(4, seed) % 20
                                    : 250 + tap_random(4, seed) % 20);
    report("reductions of all types into all, with scales and epilogues", 1e-5);
}

/*
 * Rows that a device may take in larger pieces. By the seed, bias and aux have all types; 6 and 15
 * give them the type of the result, with 1 source and 4.
 */
static void test_aligned_reduce(void)
{
    uint64_t seed = 0;
    aligned = true;
    for (lap_dtype_t from = LAP_FLOAT32; from <= LAP_BFLOAT16; from++)
        for (lap_dtype_t to = LAP_FLOAT32; to <= LAP_BFLOAT16; to++)
            for (size_t v = 0; v < VARIANTS; v++)
                for (size_t i = 0; i < 9; i++, seed++)
                    try_reduce(seed, from, to, &variants[v], 1 + tap_random(5, seed) % 9,
                               8 * (1 + tap_random(6, seed) % 12));
    for (size_t v = 2; v < VARIANTS; v++)
        try_reduce(v % 2 ? 6 : 15, v % 3 ? LAP_FLOAT32 : LAP_BFLOAT16, LAP_BFLOAT16, &variants[v],
                   70, 1048);
    try_reduce(6, LAP_FLOAT32, LAP_BFLOAT16, &variants[10], 1601, 1048);
    try_reduce(15, LAP_BFLOAT16, LAP_BFLOAT16, &variants[3], 1601, 1048);
    aligned = false;
    report("reductions of sizes that are multiples of 8", 1e-5);
}

/* Returns how many are wrong. */
static size_t try_sums(lap_dtype_t from, lap_dtype_t to, size_t rows, size_t cols)
{
    matrix_t x = new_matrix(from * 7 + to, from, rows, cols);
    matrix_t sum = new_matrix(100, to, 1, cols);
    const lap_column_sums_t sums = {.from = from,
                                    .to = to,
                                    .src = x.data,
                                    .src_stride = stride_of(&x),
                                    .rows = rows,
                                    .cols = cols,
                                    .scale = 1.9f,
                                    .dst = sum.data};
    ops->column_sums(stream, &sums);
    size_t wrong = ops->stream_synchronize(stream) != LAP_OK || !gaps_kept(&sum);
    for (size_t j = 0; j < cols; j++) {
        double exactly = 0;
        for (size_t i = 0; i < rows; i++)
            exactly += value(&x, i, j);
        exactly *= (double)1.9f;
        wrong += got(&sum, 0, j) !=
                 (to == LAP_FLOAT32 ? (float)exactly : tap_rounded(to, lap_round_to_odd(exactly)));
    }
    free_matrix(&x);
    free_matrix(&sum);
    return wrong;
}

/*
 * A sum of 300 rows in float would lose what the bits of double keep; one of sums rounded to the
 * type on the way, much more.
 */
static void test_column_sums(void)
{
    size_t wrong = 0;
    for (lap_dtype_t from = LAP_FLOAT32; from < TYPES; from++)
        for (lap_dtype_t to = LAP_FLOAT32; to < TYPES; to++) {
            const size_t few = (size_t)(from + to) % 4;
            wrong += try_sums(from, to, from == to ? 300 : few, 259);
            aligned = true;
            wrong += try_sums(from, to, from == to ? 1300 : few, 264);
            aligned = false;
        }
    aligned = true;
    wrong += try_sums(LAP_BFLOAT16, LAP_FLOAT32, 300, 17000); /* wide, and in larger pieces too */
    aligned = false;
    tap_ok(wrong == 0, "%s: sums of rows are taken in double and rounded once, %zu wrong",
           ops->name, wrong);
}

static void test_device(void)
{
    unit = strcmp(ops->name, "ref") == 0 ? 0x1p-52 : SINGLE;
    test_types();
    test_aligned();
    test_edges();
    if (ops->gemm_signals)
        test_late_scale();
    test_gelu();
    unit = SINGLE; /* reductions are the same on every host */
    test_reduce();
    test_aligned_reduce();
    test_column_sums();
}

int main(void)
{
    return test_devices(NULL, test_device);
}
