/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transposes of bytes on every device: sizes that are odd, that fit into squares and vectors, and
 * that nearly do, with gaps between rows that nobody may write to.
 */
#include <stdlib.h>
#include <string.h>

#include "each.h"
#include "shared.h"
#include "tap.h"

#define GUARD 0x5a

typedef struct problem {
    size_t rows, cols, src_gap, dst_gap, shift; /* shift: bytes that both begin behind an address */
} problem_t;

static bool try_transpose(uint64_t seed, const problem_t *p)
{
    const size_t src_stride = p->cols + p->src_gap, dst_stride = p->rows + p->dst_gap;
    const size_t taken = p->rows * src_stride + p->shift, bytes = p->cols * dst_stride + p->shift;
    unsigned char *src = new_shared(device, taken), *dst = new_shared(device, bytes);
    unsigned char *expected = malloc(bytes + 1);
    for (size_t i = 0; i < taken; i++)
        src[i] = (unsigned char)tap_random(seed, i);
    memset(dst, GUARD, bytes);
    memset(expected, GUARD, bytes);
    for (size_t i = 0; i < p->rows; i++)
        for (size_t j = 0; j < p->cols; j++)
            expected[p->shift + j * dst_stride + i] = src[p->shift + i * src_stride + j];
    const lap_transpose_t transpose = {.src = src + p->shift,
                                       .dst = dst + p->shift,
                                       .rows = p->rows,
                                       .cols = p->cols,
                                       .src_stride = src_stride,
                                       .dst_stride = dst_stride};
    const bool right = ops->transpose(stream, &transpose) == LAP_OK &&
                       ops->stream_synchronize(stream) == LAP_OK &&
                       memcmp(dst, expected, bytes) == 0;
    free_shared(device, src);
    free_shared(device, dst);
    free(expected);
    return right;
}

static void test_sizes(void)
{
    static const problem_t problems[] = {
        {0, 5, 0, 0, 0},     {5, 0, 0, 0, 0},        {1, 1, 0, 0, 0},       {3, 7, 2, 1, 0},
        {1, 300, 0, 3, 1},   {257, 2, 1, 0, 0},      {129, 127, 0, 0, 5},   {16, 16, 0, 0, 0},
        {128, 128, 0, 0, 0}, {144, 272, 0, 0, 0},    {64, 400, 16, 32, 0},  {272, 48, 48, 16, 16},
        {256, 384, 0, 0, 8}, {256, 256, 8, 0, 0},    {256, 256, 0, 8, 0},   {136, 128, 0, 8, 0},
        {128, 136, 8, 0, 0}, {1008, 1040, 16, 0, 0}, {100, 1000, 0, 28, 0},
    };
    for (size_t i = 0; i < sizeof(problems) / sizeof(problems[0]); i++)
        tap_ok(try_transpose(i, &problems[i]), "%s: [%zu, %zu] turned", ops->name, problems[i].rows,
               problems[i].cols);
}

int main(void)
{
    return test_devices(NULL, test_sizes);
}
