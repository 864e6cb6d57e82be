/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of transformer layers of every device, but attention and optimizers, against loops in double: many
 * shapes, types, strides and alignments. A result may be off by the rounding to its type and by
 * what sums and functions of fp32 lose on the way, which the bounds count in units of 2^-24 of the
 * terms. What lies between rows must stay as it is, and all calls must give the same bits.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/kernel.h"
#include "nn/matrix.h"
#include "util/random.h"

#define STEPS 64 /* roundings of fp32 in a sum over a row and what follows it, at most */

static const lap_kernels_t *kernels;

static const shape_t shapes[] = {{1, 1, 0, 0},   {3, 8, 0, 0},    {5, 40, 8, 0},   {4, 33, 2, 1},
                                 {70, 7, 1, 3},  {2, 260, 0, 0},  {3, 600, 4, 0},  {300, 64, 16, 8},
                                 {700, 5, 0, 0}, {3, 4096, 0, 0}, {2, 8208, 0, 0}, {2, 8209, 0, 1}};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))
static const lap_dtype_t dtypes[] = {LAP_FLOAT32, LAP_FLOAT16, LAP_BFLOAT16};
#define DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))

/* ---- norms ---- */

static size_t try_norm_forward(uint64_t seed, lap_norm_t kind, lap_dtype_t dtype, shape_t shape)
{
    matrix_t x = new_matrix(seed, dtype, shape), y = new_matrix(0, dtype, shape);
    const size_t rows = shape.rows, cols = shape.cols;
    float *gamma = new_floats(seed + 1, cols), *moments = new_floats(seed, 2 * rows);
    float *beta = kind == LAP_LAYERNORM ? new_floats(seed + 2, cols) : NULL;
    double *lost = calloc(rows * cols + 1, sizeof(double));
    void *scratch = new_shared(device, kernels->norm_scratch(rows, cols));
    const lap_norm_forward_t norm = {.kind = kind,
                                     .x = tensor_of(&x),
                                     .gamma = gamma,
                                     .beta = beta,
                                     .y = tensor_of(&y),
                                     .mean = moments,
                                     .rstd = moments + rows,
                                     .scratch = scratch,
                                     .epsilon = 1e-5f};
    size_t wrong = finish(kernels->norm_forward(stream, &norm));
    for (size_t i = 0; i < rows; i++) {
        const double *row = x.values + i * cols;
        double mean = 0, size = 0, square = 0;
        for (size_t c = 0; c < cols; c++) {
            mean += kind == LAP_LAYERNORM ? row[c] / (double)cols : 0;
            size += fabs(row[c]) / (double)cols;
        }
        for (size_t c = 0; c < cols; c++)
            square += (row[c] - mean) * (row[c] - mean) / (double)cols;
        const double rstd = 1 / sqrt(square + (double)norm.epsilon);
        /* A difference to the mean is lost where it is small against both. */
        const double loss = STEPS * (1 + 4 * rstd);
        wrong +=
            tap_wrong(fabs((double)moments[i] - mean) > UNIT * STEPS * size,
                      "the mean of row %zu is %.9g, expected %.9g", i, (double)moments[i], mean);
        wrong += tap_wrong(fabs((double)moments[rows + i] - rstd) > UNIT * loss * rstd,
                           "1 / deviation of row %zu is %.9g, expected %.9g", i,
                           (double)moments[rows + i], rstd);
        for (size_t c = 0; c < cols; c++) {
            const double normal = (row[c] - mean) * rstd, g = (double)gamma[c];
            y.values[i * cols + c] = normal * g + (beta ? (double)beta[c] : 0);
            lost[i * cols + c] = loss * (fabs(normal) + (fabs(row[c]) + size) * rstd) * fabs(g) +
                                 (beta ? fabs((double)beta[c]) : 0);
        }
    }
    wrong += count_wrong(&y, lost);
    free_matrix(&x);
    free_matrix(&y);
    free_shared(device, gamma);
    free_shared(device, moments);
    if (beta)
        free_shared(device, beta);
    free_shared(device, scratch);
    free(lost);
    return wrong;
}

/* What a backward is given and leaves. */
typedef struct backward {
    lap_norm_backward_t norm;
    matrix_t x, dy, skip, dx;
    float *gamma, *moments, *sums; /* [cols], mean and rstd of rows, dgamma and dbeta */
    void *scratch;
} backward_t;

static backward_t new_backward(uint64_t seed, lap_norm_t kind, lap_dtype_t dtype, shape_t shape,
                               bool skips)
{
    backward_t b = {.x = new_matrix(seed, dtype, shape),
                    .dy = new_matrix(seed + 1, dtype, shape),
                    .skip = new_matrix(seed + 2, dtype, shape),
                    .dx = new_matrix(0, dtype, shape),
                    .gamma = new_floats(seed + 3, shape.cols),
                    .moments = new_floats(seed + 4, 2 * shape.rows),
                    .sums = new_floats(seed + 5, 2 * shape.cols),
                    .scratch = new_shared(device, kernels->norm_scratch(shape.rows, shape.cols))};
    for (size_t i = 0; i < shape.rows && kind == LAP_RMSNORM; i++)
        b.moments[i] = 0;
    b.norm =
        (lap_norm_backward_t){.kind = kind,
                              .x = tensor_of(&b.x),
                              .dy = tensor_of(&b.dy),
                              .skip = skips ? tensor_of(&b.skip) : (lap_tensor_t){.data = NULL},
                              .dx = tensor_of(&b.dx),
                              .gamma = b.gamma,
                              .mean = b.moments,
                              .rstd = b.moments + shape.rows,
                              .dgamma = b.sums,
                              .dbeta = kind == LAP_LAYERNORM ? b.sums + shape.cols : NULL,
                              .scratch = b.scratch};
    return b;
}

static void free_backward(backward_t *b)
{
    free_matrix(&b->x);
    free_matrix(&b->dy);
    free_matrix(&b->skip);
    free_matrix(&b->dx);
    free_shared(device, b->gamma);
    free_shared(device, b->moments);
    free_shared(device, b->sums);
    free_shared(device, b->scratch);
}

/* One row: what dx is, and what it may lose. `size` is what a number is at most before it cancels. */
static void expect_row(const backward_t *b, size_t i, double *lost)
{
    const lap_norm_backward_t *n = &b->norm;
    const double *x = b->x.values + i * n->x.cols, *dy = b->dy.values + i * n->x.cols;
    const double mean = (double)n->mean[i], rstd = (double)n->rstd[i];
    double means[2] = {0, 0}, sizes[2] = {0, 0};
    for (size_t c = 0; c < n->x.cols; c++) {
        const double g = dy[c] * (double)n->gamma[c] / (double)n->x.cols,
                     normal = (x[c] - mean) * rstd;
        means[0] += n->kind == LAP_LAYERNORM ? g : 0;
        means[1] += g * normal;
        sizes[0] += fabs(g);
        sizes[1] += fabs(g) * (fabs(x[c]) + fabs(mean)) * fabs(rstd);
    }
    for (size_t c = 0; c < n->x.cols; c++) {
        const size_t at = i * n->x.cols + c;
        const double g = dy[c] * (double)n->gamma[c], normal = (x[c] - mean) * rstd;
        const double skip = n->skip.data ? b->skip.values[at] : 0;
        const double size = (fabs(x[c]) + fabs(mean)) * fabs(rstd);
        b->dx.values[at] = rstd * (g - means[0] - normal * means[1]) + skip;
        lost[at] = STEPS * fabs(rstd) * (fabs(g) + sizes[0] + size * sizes[1]) + STEPS * fabs(skip);
    }
}

static size_t check_sums(const backward_t *b)
{
    const lap_norm_backward_t *n = &b->norm;
    size_t wrong = 0;
    for (size_t c = 0; c < n->x.cols; c++) {
        double dgamma = 0, dbeta = 0, sizes[2] = {0, 0};
        for (size_t i = 0; i < n->x.rows; i++) {
            const double mean = (double)n->mean[i], rstd = (double)n->rstd[i];
            const double dy = b->dy.values[i * n->x.cols + c], x = b->x.values[i * n->x.cols + c];
            dgamma += dy * (x - mean) * rstd;
            dbeta += dy;
            sizes[0] += fabs(dy) * (fabs(x) + fabs(mean)) * fabs(rstd);
            sizes[1] += fabs(dy);
        }
        const double roundings = UNIT * (double)(n->x.rows + 8);
        wrong += tap_wrong(fabs((double)n->dgamma[c] - dgamma) > roundings * sizes[0],
                           "dgamma[%zu] is %.9g, expected %.9g", c, (double)n->dgamma[c], dgamma);
        wrong += n->dbeta &&
                 tap_wrong(fabs((double)n->dbeta[c] - dbeta) > roundings * sizes[1],
                           "dbeta[%zu] is %.9g, expected %.9g", c, (double)n->dbeta[c], dbeta);
    }
    return wrong;
}

static size_t try_norm_backward(uint64_t seed, lap_norm_t kind, lap_dtype_t dtype, shape_t shape,
                                bool skips)
{
    backward_t b = new_backward(seed, kind, dtype, shape, skips);
    double *lost = calloc(shape.rows * shape.cols + 1, sizeof(double));
    size_t wrong = finish(kernels->norm_backward(stream, &b.norm));
    for (size_t i = 0; i < shape.rows; i++)
        expect_row(&b, i, lost);
    wrong += count_wrong(&b.dx, lost) + check_sums(&b);
    free_backward(&b);
    free(lost);
    return wrong;
}

static void test_norms(void)
{
    size_t wrong = 0, wrong_back = 0;
    uint64_t seed = 1;
    for (size_t d = 0; d < DTYPES; d++)
        for (size_t i = 0; i < SHAPES; i++)
            for (lap_norm_t kind = LAP_LAYERNORM; kind <= LAP_RMSNORM; kind++, seed += 10) {
                wrong += try_norm_forward(seed, kind, dtypes[d], shapes[i]);
                wrong_back += try_norm_backward(seed, kind, dtypes[d], shapes[i], seed % 4 < 2);
            }
    tap_ok(wrong == 0, "%s: norms: %zu wrong", ops->name, wrong);
    tap_ok(wrong_back == 0, "%s: gradients of norms: %zu wrong", ops->name, wrong_back);
    const shape_t many = {300, 8208, 0, 0}; /* more than a GPU has blocks for them */
    tap_ok(try_norm_forward(5, LAP_LAYERNORM, LAP_BFLOAT16, many) +
                   try_norm_backward(5, LAP_LAYERNORM, LAP_BFLOAT16, many, true) ==
               0,
           "%s: norms of many wide rows", ops->name);
    const shape_t none = {0, 24, 0, 0};
    tap_ok(try_norm_forward(7, LAP_LAYERNORM, LAP_BFLOAT16, none) +
                   try_norm_backward(7, LAP_LAYERNORM, LAP_BFLOAT16, none, true) ==
               0,
           "%s: norms of no rows, whose sums are zero", ops->name);
}

/* ---- elements ---- */

static size_t try_swiglu(uint64_t seed, lap_dtype_t dtype, shape_t shape)
{
    shape_t wide = shape;
    wide.cols *= 2;
    const size_t rows = shape.rows, cols = shape.cols;
    matrix_t pre = new_matrix(seed, dtype, wide), dpre = new_matrix(0, dtype, wide);
    matrix_t dout = new_matrix(seed + 1, dtype, shape), out = new_matrix(0, dtype, shape);
    double *lost = calloc(rows * cols + 1, sizeof(double));
    double *lost_back = calloc(2 * rows * cols + 1, sizeof(double));
    const lap_swiglu_t swiglu = {tensor_of(&pre), tensor_of(&out)};
    const lap_swiglu_backward_t back = {tensor_of(&pre), tensor_of(&dout), tensor_of(&dpre)};
    size_t wrong = finish(kernels->swiglu_forward(stream, &swiglu));
    wrong += finish(kernels->swiglu_backward(stream, &back));
    for (size_t i = 0; i < rows * cols; i++) {
        const size_t at = i / cols * 2 * cols + i % cols;
        const double g = pre.values[at], u = pre.values[at + cols], d = dout.values[i];
        const double gate = 1 / (1 + exp(-g)), rest = 1 / (1 + exp(g));
        out.values[i] = g * gate * u;
        lost[i] = STEPS * fabs(out.values[i]);
        dpre.values[at] = d * u * gate * (1 + g * rest);
        dpre.values[at + cols] = d * g * gate;
        lost_back[at] = STEPS * fabs(d * u) * gate * (1 + fabs(g) * rest);
        lost_back[at + cols] = STEPS * fabs(d * g) * gate;
    }
    wrong += count_wrong(&out, lost) + count_wrong(&dpre, lost_back);
    free_matrix(&pre);
    free_matrix(&dpre);
    free_matrix(&dout);
    free_matrix(&out);
    free(lost);
    free(lost_back);
    return wrong;
}

static size_t try_loss(uint64_t seed, lap_dtype_t dtype, shape_t shape, bool in_place)
{
    matrix_t y = new_matrix(seed, dtype, shape), target = new_matrix(seed + 1, dtype, shape);
    matrix_t apart = new_matrix(0, dtype, shape), *dy = in_place ? &y : &apart;
    const size_t count = shape.rows * shape.cols;
    double *lost = calloc(count + 1, sizeof(double));
    double *sum = new_shared(device, sizeof(double)), expected = 0;
    const lap_square_loss_t loss = {.y = tensor_of(&y),
                                    .target = tensor_of(&target),
                                    .dy = tensor_of(dy),
                                    .scale = 0.37f,
                                    .sum = sum};
    *sum = -1;
    size_t wrong = finish(kernels->square_loss(stream, &loss));
    for (size_t i = 0; i < count; i++) {
        const double error = y.values[i] - target.values[i];
        expected += error * error;
        dy->values[i] = error * (double)loss.scale;
        lost[i] = 2 * fabs(dy->values[i]);
    }
    wrong += count_wrong(dy, lost);
    wrong += tap_wrong(fabs(*sum - expected) > 0x1p-40 * expected,
                       "the loss is %.17g, expected %.17g", *sum, expected);
    free_matrix(&y);
    free_matrix(&target);
    free_matrix(&apart);
    free_shared(device, sum);
    free(lost);
    return wrong;
}

static void test_elements(void)
{
    size_t wrong = 0, wrong_loss = 0;
    uint64_t seed = 1000;
    for (size_t d = 0; d < DTYPES; d++)
        for (size_t i = 0; i < SHAPES; i++, seed += 10) {
            wrong += try_swiglu(seed, dtypes[d], shapes[i]);
            wrong_loss += try_loss(seed, dtypes[d], shapes[i], i % 2 == 0);
        }
    const shape_t none = {0, 16, 0, 0};
    wrong += try_swiglu(seed, LAP_FLOAT32, none);
    wrong_loss += try_loss(seed, LAP_FLOAT32, none, false);
    tap_ok(wrong == 0, "%s: SwiGLU and its gradients: %zu wrong", ops->name, wrong);
    tap_ok(wrong_loss == 0, "%s: square losses and their gradients: %zu wrong", ops->name,
           wrong_loss);
}

/* The numbers are those of util/random.h; a GPU's may be off by one bit of float32, but few are. */
static size_t try_fill(uint64_t seed, lap_dtype_t dtype, shape_t shape, size_t *others)
{
    matrix_t out = new_matrix(0, dtype, shape);
    const size_t count = shape.rows * shape.cols;
    const bool exact = !ops->transport;
    double *lost = calloc(count + 1, sizeof(double));
    const lap_fill_normal_t fill = {.out = tensor_of(&out),
                                    .mean = seed % 2 ? 0.25f : 0,
                                    .std = seed % 5 ? 0.02f : 0,
                                    .seed = seed,
                                    .tensor = seed + 3,
                                    .first = seed << 33 | 5,
                                    .row_step = shape.cols + 9};
    size_t wrong = finish(kernels->fill_normal(stream, &fill));
    for (size_t i = 0; i < count; i++) {
        const uint64_t index = fill.first + i / shape.cols * fill.row_step + i % shape.cols;
        float x = fill.mean;
        if (fill.std != 0)
            x += fill.std * lap_random_normal(fill.seed, fill.tensor, index);
        out.values[i] = (double)tap_rounded(dtype, x);
        lost[i] = 2 * fabs((double)x);
        *others += element(&out, i / shape.cols, i % shape.cols) != out.values[i];
    }
    wrong += count_wrong(&out, lost);
    wrong += exact && *others > 0;
    free_matrix(&out);
    free(lost);
    return wrong;
}

static size_t try_amax(uint64_t seed, lap_dtype_t dtype, shape_t shape, float special)
{
    matrix_t src = new_matrix(seed, dtype, shape);
    float *most = new_shared(device, sizeof(float));
    const lap_amax_t amax = {.src = tensor_of(&src), .amax = most};
    const size_t count = shape.rows * shape.cols, at = count ? seed % count : 0;
    double expected = 0;
    *most = 1e30f; /* of before: it does not count */
    for (size_t i = 0; i < count; i++)
        expected = fmax(expected, fabs(src.values[i]));
    if (count && special != 0) {
        lap_from_float(dtype, &special,
                       (char *)src.data +
                           (at / shape.cols * src.stride + at % shape.cols) * lap_dtype_size(dtype),
                       1);
        expected = isnan(special) ? INFINITY : fabs((double)special);
    }
    size_t wrong = finish(kernels->amax(stream, &amax));
    wrong += (double)*most != expected;
    free_matrix(&src);
    free_shared(device, most);
    return wrong;
}

static void test_numbers(void)
{
    static const float specials[] = {0, -512, NAN, -INFINITY, 0};
    size_t wrong = 0, wrong_amax = 0, others = 0, all = 0;
    uint64_t seed = 2000;
    for (size_t d = 0; d < DTYPES; d++)
        for (size_t i = 0; i < SHAPES; i++, seed++) {
            wrong += try_fill(seed, dtypes[d], shapes[i], &others);
            all += shapes[i].rows * shapes[i].cols;
            wrong_amax += try_amax(seed, dtypes[d], shapes[i], specials[seed % 5]);
        }
    wrong_amax += try_amax(seed, LAP_FLOAT16, (shape_t){0, 8, 0, 0}, 0);
    tap_ok(wrong == 0, "%s: normal numbers: %zu wrong", ops->name, wrong);
    tap_ok(others * 1000 <= all, "%s: %zu of %zu of them by a bit", ops->name, others, all);
    tap_ok(wrong_amax == 0, "%s: largest magnitudes: %zu wrong", ops->name, wrong_amax);
}

/* ---- scales of FP8 ---- */

/* The power of two that brings `amax` into the range of the type; 1 where there is none. */
static float true_scale(bool narrow, float amax)
{
    int exponent;
    if (!(amax > 0) || !isfinite(amax))
        return 1;
    const double fraction = frexp((double)amax / (narrow ? 448 : 57344), &exponent);
    exponent -= fraction == 0.5;
    exponent = exponent < -60 ? -60 : exponent > 60 ? 60 : exponent;
    return (float)ldexp(1, exponent);
}

/* Every exponent, with fractions at both sides of those where a scale changes. */
static size_t try_scales(bool narrow)
{
    static const uint32_t fractions[] = {0, 1, 0x5fffff, 0x600000, 0x600001, 0x7fffff};
    const size_t each = sizeof(fractions) / sizeof(fractions[0]), count = 256 * each;
    float *found = new_shared(device, count * sizeof(float));
    float *scales = new_shared(device, count * LAP_FP8_SLOT * sizeof(float));
    for (size_t i = 0; i < count; i++)
        found[i] = lap_float_of_bits((uint32_t)(i / each) << 23 | fractions[i % each]);
    memset(scales, GUARD, count * LAP_FP8_SLOT * sizeof(float));
    const lap_fp8_scales_t make = {
        .ranks = 1, .count = count, .narrow = narrow ? count : 0, .found = found, .scales = scales};
    const float untouched = scales[1];
    size_t wrong = finish(kernels->fp8_scales(stream, &make));
    for (size_t i = 0; i < count; i++) {
        wrong += scales[i * LAP_FP8_SLOT] != true_scale(narrow, found[i]);
        wrong += memcmp(&scales[i * LAP_FP8_SLOT + 1], &untouched, sizeof(float)) != 0;
    }
    free_shared(device, found);
    free_shared(device, scales);
    return wrong;
}

/* What a rank finds in a matrix: often nothing, now and then what is not finite. */
static float magnitude(uint64_t seed, size_t index)
{
    switch (tap_random(seed, index) % 16) {
    case 0:
        return NAN;
    case 1:
        return INFINITY;
    case 2:
    case 3:
        return ldexpf(1.75f, (int)(tap_random(seed + 1, index) % 200) - 100);
    case 4:
    case 5:
        return ldexpf((float)uniform(seed, index) + 2, (int)(tap_random(seed, index) % 40));
    default:
        return 0;
    }
}

/* Calls one after the other, against all magnitudes that there have been. */
static size_t try_history(uint64_t seed, size_t ranks, size_t count, size_t length)
{
    enum { CALLS = 40 };
    const size_t narrow = count / 3;
    float *found = new_shared(device, ranks * count * sizeof(float));
    float *amax = new_shared(device, count * sizeof(float));
    float *history = new_shared(device, length * count * sizeof(float));
    float *scales = new_shared(device, count * LAP_FP8_SLOT * sizeof(float));
    float *seen = calloc(CALLS * count, sizeof(float));
    const lap_fp8_scales_t make = {found, scales, history, amax, ranks, count, length, narrow};
    size_t wrong = seen == NULL;
    memset(history, 0, length * count * sizeof(float));
    for (size_t i = 0; i < count * LAP_FP8_SLOT; i++)
        scales[i] = 3;
    for (size_t call = 0; call < CALLS && seen; call++) {
        for (size_t i = 0; i < ranks * count; i++)
            found[i] = magnitude(seed + call, i);
        for (size_t i = 0; i < count; i++) {
            float *latest = &seen[call * count + i];
            for (size_t r = 0; r < ranks; r++) {
                const float x = found[r * count + i];
                *latest = fmaxf(*latest, isfinite(x) ? x : 0);
            }
            if (*latest == 0 && call > 0)
                *latest = seen[(call - 1) * count + i];
            amax[i] = 5;
        }
        wrong += finish(kernels->fp8_scales(stream, &make));
        for (size_t i = 0; i < count; i++) {
            float most = 0;
            for (size_t age = 0; age < length && age <= call; age++)
                most = fmaxf(most, seen[(call - age) * count + i]);
            wrong += scales[i * LAP_FP8_SLOT] != (most > 0 ? true_scale(i < narrow, most) : 3);
            wrong += amax[i] != 0;
        }
    }
    free_shared(device, found);
    free_shared(device, amax);
    free_shared(device, history);
    free_shared(device, scales);
    free(seen);
    return wrong;
}

static void test_scales(void)
{
    static const size_t lengths[] = {1, 2, 16};
    size_t wrong = try_scales(true) + try_scales(false), wrong_history = 0;
    for (size_t ranks = 1; ranks <= 4; ranks++)
        for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
            wrong_history += try_history(5000 + ranks, ranks, 1, lengths[i]);
            wrong_history += try_history(6000 + ranks, ranks, 300, lengths[i]);
        }
    tap_ok(wrong == 0, "%s: scales of FP8: %zu wrong", ops->name, wrong);
    tap_ok(wrong_history == 0, "%s: scales from a history: %zu wrong", ops->name, wrong_history);
}

/* ---- the same bits ---- */

/* Sums over many blocks of a GPU, which end in any order. */
static void test_repeats(void)
{
    const shape_t shape = {500, 264, 0, 0};
    const size_t count = shape.rows * shape.cols;
    backward_t b = new_backward(50, LAP_LAYERNORM, LAP_BFLOAT16, shape, true);
    matrix_t dy = new_matrix(0, LAP_BFLOAT16, shape);
    float *floats = new_floats(51, count), first[2 * 264];
    double *sums = new_shared(device, 2 * sizeof(double)), first_sums[2];
    const lap_square_loss_t loss = {.y = tensor_of(&b.x),
                                    .target = tensor_of(&b.dy),
                                    .dy = tensor_of(&dy),
                                    .scale = 1,
                                    .sum = &sums[0]};
    const lap_sum_squares_t squares = {.src = floats, .count = count, .sum = &sums[1]};
    size_t wrong = 0, others = 0;
    for (int i = 0; i < 20; i++) {
        wrong += finish(kernels->norm_backward(stream, &b.norm));
        wrong += finish(kernels->square_loss(stream, &loss));
        wrong += finish(kernels->sum_squares(stream, &squares));
        if (i == 0) {
            memcpy(first, b.sums, sizeof(first));
            memcpy(first_sums, sums, sizeof(first_sums));
        }
        others += memcmp(first, b.sums, sizeof(first)) != 0;
        others += memcmp(first_sums, sums, sizeof(first_sums)) != 0;
    }
    tap_ok(wrong == 0 && others == 0, "%s: the same bits in 20 calls: %zu others", ops->name,
           others);
    free_backward(&b);
    free_matrix(&dy);
    free_shared(device, floats);
    free_shared(device, sums);
}

static void test_device(void)
{
    if (!tap_success(lap_kernels_of(device, &kernels), "%s: kernels", ops->name))
        return;
    test_norms();
    test_elements();
    test_numbers();
    test_scales();
    test_repeats();
}

int main(void)
{
    return test_devices(NULL, test_device);
}
