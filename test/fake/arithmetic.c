/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels of the device `cuda` compute, a row each: the host's kernel (src/device/host)
 * with the addresses that the memory really has.
 */
#include <math.h>

#include "core/convert.h"
#include "device/cuda/cuda_kernels.h"
#include "device/host/host.h"
#include "fake.h"

/* ---- elements ---- */

float fake_load(int32_t dtype, const void *memory, size_t i)
{
    float value;
    const char *x = fake_at(memory);
    if (dtype == LAP_FLOAT32) { /* as most are, of many millions */
        memcpy(&value, x + i * sizeof(value), sizeof(value));
        return value;
    }
    lap_to_float((lap_dtype_t)dtype, x + i * lap_dtype_size((lap_dtype_t)dtype), &value, 1);
    return value;
}

void fake_store(int32_t dtype, void *memory, size_t i, float value)
{
    char *x = fake_at(memory);
    lap_from_float((lap_dtype_t)dtype, &value, x + i * lap_dtype_size((lap_dtype_t)dtype), 1);
}

/* Between 0 and 1: gelu(x) = x gate(x). */
static double gate(double x)
{
    return 1 / (1 + exp(-2 * sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

double fake_gelu(double x)
{
    return x < -40 ? 0 : x * gate(x);
}

double fake_gelu_slope(double x)
{
    const double inner = 2 * sqrt(2 / 3.14159265358979323846) * (1 + 3 * 0.044715 * x * x);
    return fabs(x) > 40 ? x > 0 : gate(x) + x * gate(x) * gate(-x) * inner;
}

/* ---- kernels ---- */

static lap_finish_t finish_of(const lap_cuda_finish_t *f)
{
    return (lap_finish_t){.epilogue = f->epilogue,
                          .beta = f->beta / f->scale,
                          .scale = f->scale,
                          .bias_dtype = (lap_dtype_t)f->bias_dtype,
                          .aux_dtype = (lap_dtype_t)f->aux_dtype,
                          .bias = fake_at(f->bias),
                          .aux_stride = f->aux_stride};
}

void fake_reduce(void *args)
{
    static const float one = 1;
    const lap_cuda_reduce_t *r = args;
    const lap_finish_t finish = finish_of(&r->finish);
    const void *srcs[LAP_CUDA_SOURCES];
    const float *scales[LAP_CUDA_SOURCES];
    bool scaled = false;
    for (uint32_t s = 0; s < r->nsrc; s++) {
        srcs[s] = fake_at(r->srcs[s]);
        scales[s] = r->scales[s] ? fake_at(r->scales[s]) : &one;
        scaled = scaled || r->scales[s];
    }
    const lap_reduce_t reduce = {.from = (lap_dtype_t)r->from,
                                 .to = (lap_dtype_t)r->to,
                                 .dst = fake_at(r->dst),
                                 .dst_stride = r->dst_stride,
                                 .srcs = srcs,
                                 .src_strides = r->strides,
                                 .scales = scaled ? scales : NULL,
                                 .nsrc = r->nsrc,
                                 .rows = r->rows,
                                 .cols = r->cols,
                                 .finish = r->finish.plain ? NULL : &finish,
                                 .aux = fake_at(r->finish.aux)};
    lap_host_reduce(NULL, &reduce);
}

static void run_column_sums(void *args)
{
    const lap_cuda_column_sums_t *s = args;
    const lap_column_sums_t sums = {.from = (lap_dtype_t)s->from,
                                    .to = (lap_dtype_t)s->to,
                                    .src = fake_at(s->src),
                                    .src_stride = s->src_stride,
                                    .rows = s->rows,
                                    .cols = s->cols,
                                    .scale = s->scale,
                                    .scaled_by = fake_at(s->scaled_by),
                                    .dst = fake_at(s->dst)};
    lap_host_column_sums(NULL, &sums);
}

/* op(x) as fp32, packed: [rows, depth]; stored so, or turned. */
static float *operand(int32_t dtype, const void *x, size_t stride, bool turned, size_t rows,
                      size_t depth)
{
    float *wide = malloc((rows * depth + 1) * sizeof(float));
    for (size_t row = 0; row < rows; row++)
        for (size_t k = 0; k < depth; k++)
            wide[row * depth + k] =
                fake_load(dtype, (const char *)x + (turned ? k : row) * stride, turned ? row : k);
    return wide;
}

static void run_multiply(void *args)
{
    const lap_cuda_multiply_t *g = args;
    const lap_finish_t finish = finish_of(&g->finish);
    const float scale = g->scale * (g->b_scale ? *(const float *)fake_at(g->b_scale) : 1) *
                        (g->a_scale ? *(const float *)fake_at(g->a_scale) : 1);
    float *a = operand(g->a_dtype, g->a, g->a_stride, g->a_transposed, g->rows, g->k);
    float *b = operand(g->b_dtype, g->b, g->b_stride, g->b_plain, g->n, g->k);
    float *x = malloc((g->n + 1) * sizeof(float));
    char *aux = fake_at(g->finish.aux);
    for (size_t row = 0; row < g->rows; row++) {
        for (size_t col = 0; col < g->n; col++) {
            float sum = 0;
            for (size_t k = 0; k < g->k; k++)
                sum += a[row * g->k + k] * b[col * g->k + k];
            x[col] = sum * scale;
        }
        lap_host_finish(g->finish.plain ? NULL : &finish, x, 0, g->n, (lap_dtype_t)g->d_dtype,
                        (char *)fake_at(g->d) + row * g->d_stride,
                        aux ? aux + row * g->finish.aux_stride : NULL);
    }
    free(a);
    free(b);
    free(x);
}

static void run_cast(void *args)
{
    const lap_cuda_cast_t *c = args;
    const lap_cast_t cast = {.from = (lap_dtype_t)c->from,
                             .to = (lap_dtype_t)c->to,
                             .src = fake_at(c->src),
                             .dst = fake_at(c->dst),
                             .src_stride = c->src_stride,
                             .dst_stride = c->dst_stride,
                             .rows = c->rows,
                             .cols = c->cols,
                             .scale = fake_at(c->scale),
                             .amax = fake_at(c->amax)};
    lap_host_cast(NULL, &cast);
}

/* What is not in multiples of a vector, the kernel would miss: it stays as it was. */
static void run_transpose(void *args)
{
    const lap_cuda_transpose_t *t = args;
    const size_t all =
        (size_t)t->src | (size_t)t->dst | t->padded | t->cols | t->src_stride | t->dst_stride;
    if (t->vectors && all % 16 != 0)
        return;
    const lap_transpose_t transpose = {.src = fake_at(t->src),
                                       .dst = fake_at(t->dst),
                                       .rows = t->rows,
                                       .cols = t->cols,
                                       .src_stride = t->src_stride,
                                       .dst_stride = t->dst_stride};
    lap_host_transpose(NULL, &transpose);
    for (size_t col = 0; col < t->cols; col++)
        memset((char *)fake_at(t->dst) + col * t->dst_stride + t->rows, 0, t->padded - t->rows);
}

static void run_fill(void *args)
{
    const lap_cuda_fill_t *f = args;
    lap_host_fill(NULL, (lap_dtype_t)f->dtype, fake_at(f->memory), f->count, f->seed);
}

const fake_kernel_t fake_arithmetic[] = {
    {"lap_reduce", fake_reduce, sizeof(lap_cuda_reduce_t), false},
    {"lap_column_sums", run_column_sums, sizeof(lap_cuda_column_sums_t), false},
    {"lap_multiply", run_multiply, sizeof(lap_cuda_multiply_t), false},
    {"lap_cast", run_cast, sizeof(lap_cuda_cast_t), false},
    {"lap_transpose", run_transpose, sizeof(lap_cuda_transpose_t), false},
    {"lap_fill", run_fill, sizeof(lap_cuda_fill_t), false},
    {NULL, NULL, 0, false},
};
