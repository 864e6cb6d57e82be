/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices of a device for tests of its kernels, with the numbers that are in them. */
#ifndef LAP_TEST_NN_MATRIX_H
#define LAP_TEST_NN_MATRIX_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/convert.h"
#include "device/each.h"
#include "device/shared.h"
#include "tap.h"

#define GUARD 0x5a
#define UNIT 0x1p-24

typedef struct shape {
    size_t rows, cols, gap, shift; /* gap after rows, and elements before the first */
} shape_t;

/* What is in memory of the device, and the same as numbers, packed. */
typedef struct matrix {
    lap_dtype_t dtype;
    shape_t shape;
    size_t stride, bytes;
    unsigned char *memory;
    void *data;
    double *values;
} matrix_t;

static inline double uniform(uint64_t seed, uint64_t i)
{
    return (double)(tap_random(seed, i) >> 11) * 0x1p-52 - 1;
}

/* Numbers of [-2.5, 3.5), or with seed 0 none: a place for results. */
static inline matrix_t new_matrix(uint64_t seed, lap_dtype_t dtype, shape_t shape)
{
    matrix_t m = {.dtype = dtype, .shape = shape, .stride = shape.cols + shape.gap};
    const size_t size = lap_dtype_size(dtype);
    m.bytes = (shape.shift + shape.rows * m.stride) * size;
    m.memory = new_shared(device, m.bytes);
    m.data = m.memory + shape.shift * size;
    m.values = calloc(shape.rows * shape.cols + 1, sizeof(double));
    memset(m.memory, GUARD, m.bytes);
    for (size_t i = 0; seed && i < shape.rows * shape.cols; i++) {
        const float x = tap_rounded(dtype, (float)(3 * uniform(seed, i) + 0.5));
        m.values[i] = (double)x;
        lap_from_float(dtype, &x,
                       (char *)m.data + (i / shape.cols * m.stride + i % shape.cols) * size, 1);
    }
    return m;
}

/* As a kernel is given it. */
static inline lap_tensor_t tensor_of(const matrix_t *m)
{
    return (lap_tensor_t){m->data, m->dtype, m->shape.rows, m->shape.cols, m->stride};
}

static inline void free_matrix(matrix_t *m)
{
    free_shared(device, m->memory);
    free(m->values);
}

static inline double element(const matrix_t *m, size_t row, size_t col)
{
    float x;
    lap_to_float(m->dtype,
                 (const char *)m->data + (row * m->stride + col) * lap_dtype_size(m->dtype), &x, 1);
    return (double)x;
}

/* Whether a result is what it should be, but for its rounding and for `lost`. */
static inline bool is_near(lap_dtype_t dtype, double x, double expected, double lost)
{
    return fabs(x - expected) <=
           tap_half_unit(dtype, expected) + lost + UNIT * fabs(expected) + 0x1p-140;
}

/* Elements that are not m->values, up to lost[i] * UNIT; and bytes that should not have changed. */
static inline size_t count_wrong(const matrix_t *m, const double *lost)
{
    const size_t size = lap_dtype_size(m->dtype);
    size_t wrong = 0;
    for (size_t i = 0; i < m->shape.rows * m->shape.cols; i++) {
        const size_t row = i / m->shape.cols, col = i % m->shape.cols;
        wrong += tap_wrong(!is_near(m->dtype, element(m, row, col), m->values[i], UNIT * lost[i]),
                           "element [%zu, %zu] of [%zu, %zu] %s is %.9g, expected %.9g", row, col,
                           m->shape.rows, m->shape.cols, lap_dtype_name(m->dtype),
                           element(m, row, col), m->values[i]);
    }
    for (size_t i = 0; i < m->bytes; i++) {
        const size_t at = i / size - m->shape.shift;
        const bool outside = i / size < m->shape.shift || at % m->stride >= m->shape.cols;
        wrong += tap_wrong(outside && m->memory[i] != GUARD,
                           "byte %zu, outside of [%zu, %zu] %s, was written", i, m->shape.rows,
                           m->shape.cols, lap_dtype_name(m->dtype));
    }
    return wrong;
}

static inline float *new_floats(uint64_t seed, size_t count)
{
    float *x = new_shared(device, count * sizeof(float));
    for (size_t i = 0; i < count; i++)
        x[i] = (float)(3 * uniform(seed, i) + 0.5);
    return x;
}

static inline size_t finish(lap_status_t status)
{
    const lap_status_t ended = ops->stream_synchronize(stream);
    return (status != LAP_OK) + (ended != LAP_OK);
}

#endif
