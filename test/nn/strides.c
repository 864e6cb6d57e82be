/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrices of the caller's with gaps between their rows, on one rank only: layers make the same bits as with packed
 * ones, write nothing into the gaps, and follow when other matrices are given. They run on the device that LAP_DEVICE names.
 */
#include <lap/nn.h>

#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "tap.h"

enum { SEQ = 6, PASSES = 3 };
#define UNTOUCHED 12345.0f

/* What goes through layers, in float32. */
typedef struct matrices {
    lap_tensor_t x, y, dy, dx;
} matrices_t;

static lap_tensor_t alloc(lap_nn_t *nn, const lap_nn_part_t *part, size_t gap)
{
    lap_tensor_t matrix = lap_tensor(NULL, LAP_FLOAT32, part->rows, part->cols);
    matrix.stride += gap;
    float *data = nn_new(nn, part->rows * matrix.stride * sizeof(float));
    for (size_t i = 0; i < part->rows * matrix.stride; i++)
        data[i] = UNTOUCHED;
    matrix.data = data;
    return matrix;
}

static matrices_t alloc_all(lap_nn_t *nn, size_t gap)
{
    const lap_nn_part_t in = lap_nn_input(nn, 0), out = lap_nn_output(nn, 0);
    return (matrices_t){alloc(nn, &in, gap), alloc(nn, &out, gap), alloc(nn, &out, gap),
                        alloc(nn, &in, gap)};
}

static void free_all(lap_nn_t *nn, const matrices_t *m)
{
    nn_free(nn, m->x.data);
    nn_free(nn, m->y.data);
    nn_free(nn, m->dy.data);
    nn_free(nn, m->dx.data);
}

static lap_status_t run(lap_nn_t *nn, const matrices_t *m)
{
    const lap_nn_part_t in = lap_nn_input(nn, 0), out = lap_nn_output(nn, 0);
    for (uint64_t pass = 0; pass < PASSES;
         pass++) { /* the second as a graph is made, the third by it */
        LAP_TRY(lap_nn_fill(nn, &m->x, &in, pass, 1, 1));
        LAP_TRY(lap_nn_fill(nn, &m->dy, &out, pass, 2, 1));
        lap_nn_zero_gradients(nn);
        LAP_TRY(lap_nn_forward(nn, SEQ, &m->x, &m->y));
        LAP_TRY(lap_nn_backward(nn, &m->dy, &m->dx));
        LAP_TRY(lap_nn_wait(nn));
    }
    return LAP_OK;
}

static bool is_same(const lap_tensor_t *a, const lap_tensor_t *b)
{
    const float *one = a->data, *other = b->data;
    for (size_t r = 0; r < a->rows; r++) {
        if (memcmp(one + r * a->stride, other + r * b->stride, a->cols * sizeof(float)) != 0)
            return false;
        for (size_t c = b->cols; c < b->stride; c++)
            if (other[r * b->stride + c] != UNTOUCHED)
                return false;
    }
    return true;
}

static void check(lap_world_t *world, void *arg)
{
    const lap_nn_kind_t kind = *(const lap_nn_kind_t *)arg;
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    lap_nn_t *nn;
    size_t count;
    desc.kind = kind;
    desc.seq = SEQ;
    desc.hidden = 24;
    desc.heads = 12;
    if (!tap_success(lap_nn_create(lap_world_group(world), &desc, &nn), "layers"))
        exit(1);
    const matrices_t packed = alloc_all(nn, 0);
    const matrices_t apart = alloc_all(nn, lap_world_rank(world) == 0 ? 8 : 0);
    const float *gradients = lap_nn_gradients(nn, &count);
    tap_success(run(nn, &packed), "passes with packed matrices");
    float *before = nn_fetch(nn, gradients, count);
    tap_success(run(nn, &apart), "passes with gaps between rows on rank 0");
    float *after = nn_fetch(nn, gradients, count);
    tap_ok(is_same(&packed.y, &apart.y) && is_same(&packed.dx, &apart.dx),
           "have the same bits, and nothing is in the gaps");
    tap_ok(memcmp(before, after, count * sizeof(float)) == 0, "... and the same gradients");
    tap_success(run(nn, &packed), "passes with the packed ones again");
    float *again = nn_fetch(nn, gradients, count);
    tap_ok(memcmp(before, again, count * sizeof(float)) == 0, "... make the same again");
    free(before);
    free(after);
    free(again);
    free_all(nn, &packed);
    free_all(nn, &apart);
    lap_nn_destroy(nn);
}

int main(void)
{
    static lap_nn_kind_t kinds[] = {LAP_NN_LAYERNORM_MLP, LAP_NN_TRANSFORMER};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        for (int ranks = 1; ranks <= 2; ranks++)
            tap_launched_ranks(ranks, NULL, check, &kinds[i]);
    return tap_done();
}
