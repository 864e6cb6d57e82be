/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GEMM of every device with operands stored either way round. With the argument "liked" only sizes
 * and types that tensor cores take are tried.
 */
#include <stdlib.h>
#include <string.h>

#include "core/convert.h"
#include "each.h"
#include "shared.h"
#include "tap.h"

/* Whole numbers; element (i, k) of op(x) is at(x, i, k), where it is [rows, k] or transposed. */
typedef struct operand {
    lap_dtype_t dtype;
    bool transposed;
    size_t stride;
    float *values;
    void *given;
} operand_t;

static size_t at(const operand_t *x, size_t i, size_t k)
{
    return x->transposed ? k * x->stride + i : i * x->stride + k;
}

static operand_t new_operand(uint64_t seed, lap_dtype_t type, bool transposed, size_t rows,
                             size_t k, size_t gap)
{
    operand_t x = {
        .dtype = type, .transposed = transposed, .stride = (transposed ? rows : k) + gap};
    const size_t count = (transposed ? k : rows) * x.stride;
    x.values = malloc(count * sizeof(float));
    for (size_t i = 0; i < count; i++)
        x.values[i] = (float)(int)(tap_random(seed, i) % 9) - 4.0f;
    x.given = new_shared(device, count * lap_dtype_size(type));
    lap_from_float(type, x.values, x.given, count);
    return x;
}

static void free_operand(operand_t *x)
{
    free(x->values);
    free_shared(device, x->given);
}

/* d += a b in float32: exact, also where sums have 14 bits. */
static bool try_layout(const lap_dtype_t *types, int layout, const size_t *sizes, size_t gap)
{
    const size_t m = sizes[0], n = sizes[1], k = sizes[2];
    operand_t a = new_operand(1, types[0], layout & 1, m, k, gap);
    operand_t b = new_operand(2, types[1], layout & 2, n, k, gap);
    float *d = new_shared(device, m * n * sizeof(float));
    const lap_finish_t finish = {.beta = 1, .scale = 1};
    lap_gemm_block_t block = {.a = a.given,
                              .d = d,
                              .rows = m,
                              .a_stride = a.stride * lap_dtype_size(a.dtype),
                              .d_stride = n * sizeof(float)};
    const lap_gemm_t gemm = {.a_dtype = a.dtype,
                             .b_dtype = b.dtype,
                             .d_dtype = LAP_FLOAT32,
                             .a_transposed = a.transposed,
                             .b_plain = b.transposed,
                             .scale = 1,
                             .n = n,
                             .k = k,
                             .b = b.given,
                             .b_stride = b.stride * lap_dtype_size(b.dtype),
                             .finish = &finish,
                             .blocks = &block,
                             .nblocks = 1};
    for (size_t i = 0; i < m * n; i++)
        d[i] = (float)(i % 7);
    lap_status_t status = ops->gemm_prepare(stream, &gemm, false);
    if (status == LAP_OK)
        status = ops->gemm(stream, &gemm);
    if (status == LAP_OK)
        status = ops->stream_synchronize(stream);
    bool right = status == LAP_OK;
    for (size_t i = 0; i < m * n && right; i++) {
        float sum = (float)(i % 7);
        for (size_t j = 0; j < k; j++)
            sum += a.values[at(&a, i / n, j)] * b.values[at(&b, i % n, j)];
        right = d[i] == sum;
    }
    free_operand(&a);
    free_operand(&b);
    free_shared(device, d);
    return right;
}

/*
 * Layouts that tensor cores take, and, unless `liked`, those that they do not. Where both operands are
 * transposed, k may be any number.
 */
static void test_layouts(bool liked)
{
    static const lap_dtype_t types[][2] = {
        {LAP_FLOAT8_E4M3, LAP_FLOAT8_E4M3}, {LAP_FLOAT8_E5M2, LAP_FLOAT8_E4M3},
        {LAP_FLOAT8_E4M3, LAP_FLOAT8_E5M2}, {LAP_BFLOAT16, LAP_BFLOAT16},
        {LAP_FLOAT8_E5M2, LAP_FLOAT8_E5M2}, {LAP_FLOAT32, LAP_FLOAT32}};
    static const size_t sizes[][3] = {{64, 48, 32}, {272, 16, 144}, {33, 160, 48},
                                      {64, 48, 37}, {48, 16, 1},    {160, 144, 301},
                                      {16, 16, 24}, {5, 7, 9},      {20, 12, 16}};
    const size_t ntypes = liked ? 4 : 6, nsizes = liked ? 6 : 9;
    for (size_t t = 0; t < ntypes; t++)
        for (size_t s = 0; s < nsizes; s++)
            for (int layout = 0; layout < 4; layout++)
                for (size_t gap = 0; gap <= 16; gap += 16)
                    if ((!liked || layout == 3 || sizes[s][2] % 16 == 0) &&
                        !try_layout(types[t], layout, sizes[s], gap))
                        tap_ok(false, "%s: %s times %s, layout %d, %zu %zu %zu, %zu between rows",
                               ops->name, lap_dtype_name(types[t][0]), lap_dtype_name(types[t][1]),
                               layout, sizes[s][0], sizes[s][1], sizes[s][2], gap);
    tap_ok(true, "%s: operands stored either way round", ops->name);
}

static bool liked_only;

static void test_device(void)
{
    test_layouts(liked_only);
}

int main(int argc, char **argv)
{
    liked_only = argc > 1 && strcmp(argv[1], "liked") == 0;
    return test_devices(NULL, test_device);
}
