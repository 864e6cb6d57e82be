/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where numbers stop being finite: forward is computed once more, and every parameter, activation and
 * gradient is looked at in the order in which a step makes them. That is done when something went
 * wrong, so that a pass pays nothing for it: what recomputation and FP8 do not keep is there again.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "nn/nn.h"
#include "util/alloc.h"

/* What is looked at in a block, in the order of forward; a copy is in the type of GEMMs. */
enum {
    GAMMA,
    BETA,
    NORM_OUT,
    COLUMN,
    COLUMN_COPY,
    COLUMN_BIAS,
    COLUMN_BIAS_COPY,
    PRE,
    MID,
    ROW,
    ROW_COPY,
    ROW_BIAS,
    ROW_BIAS_COPY,
    OUT,
    BLOCK_LOOKS
};

/* The input comes first, then the blocks, then the gradients in the order of backward. */
static size_t look_of(size_t block, size_t what)
{
    return 1 + block * BLOCK_LOOKS + what;
}

static size_t gradient_look(const lap_nn_t *nn, size_t weight)
{
    return look_of(nn->plan.nblocks, 0) + nn->nweights - 1 - weight;
}

static size_t count_looks(const lap_nn_t *nn)
{
    return look_of(nn->plan.nblocks, 0) + nn->nweights;
}

/* ---- looking ---- */

static lap_status_t look(lap_nn_t *nn, size_t index, const lap_tensor_t *matrix)
{
    const lap_amax_t amax = {
        .dtype = matrix->dtype,
        .rows = matrix->rows,
        .cols = matrix->cols,
        .stride = matrix->stride,
        .src = matrix->data,
        .amax = &nn->looks[index],
    };
    lap_stream_t *stream;
    if (matrix->rows == 0 || matrix->cols == 0)
        return LAP_OK;
    LAP_TRY(lap_nn_stream(nn, &stream));
    return nn->kernels->amax(stream, &amax);
}

/* A parameter, and its copy behind it: that of a large number may be none. */
static lap_status_t look_weight(lap_nn_t *nn, size_t index, const lap_nn_weight_t *weight)
{
    if (!weight)
        return LAP_OK;
    const lap_nn_param_t *param = &weight->param;
    LAP_TRY(look(nn, index, &param->master));
    if (param->weight.data == param->master.data || lap_dtype_is_fp8(param->weight.dtype))
        return LAP_OK;
    return look(nn, index + 1, &param->weight);
}

static lap_status_t look_activation(lap_nn_t *nn, size_t index, void *data, size_t rows,
                                    size_t cols)
{
    const lap_tensor_t matrix = lap_tensor(data, nn->plan.desc.dtype, rows, cols);
    return look(nn, index, &matrix);
}

lap_status_t lap_nn_look_input(lap_nn_t *nn, const lap_tensor_t *x)
{
    return nn->looks ? look(nn, 0, x) : LAP_OK;
}

lap_status_t lap_nn_look_block(lap_nn_t *nn, size_t b, const lap_tensor_t *y)
{
    const lap_nn_block_t *block = &nn->blocks[b];
    const lap_nn_shape_t *shape = &block->shape;
    const int rank = nn->group->rank;
    const size_t rows = lap_nn_rows(nn);
    if (!nn->looks)
        return LAP_OK;
    LAP_TRY(look_weight(nn, look_of(b, GAMMA), block->gamma));
    LAP_TRY(look_weight(nn, look_of(b, BETA), block->beta));
    LAP_TRY(look_weight(nn, look_of(b, COLUMN), block->column));
    LAP_TRY(look_weight(nn, look_of(b, COLUMN_BIAS), block->column_bias));
    LAP_TRY(look_weight(nn, look_of(b, ROW), block->row));
    LAP_TRY(look_weight(nn, look_of(b, ROW_BIAS), block->row_bias));
    if (shape->norm)
        LAP_TRY(look_activation(nn, look_of(b, NORM_OUT), block->norm_out, lap_nn_own_rows(nn),
                                shape->width));
    if (shape->row && shape->column) {
        LAP_TRY(look_activation(nn, look_of(b, PRE), block->pre, rows,
                                lap_nn_pre_share(&nn->plan, shape, rank)));
        LAP_TRY(look_activation(nn, look_of(b, MID), block->mid, rows,
                                lap_nn_mid_share(&nn->plan, shape, rank)));
    }
    return look(nn, look_of(b, OUT), y);
}

/* ---- naming ---- */

static const char *middle_name(const lap_nn_shape_t *shape)
{
    return shape->middle == LAP_MIDDLE_ATTENTION ? "attention"
           : shape->middle == LAP_MIDDLE_SWIGLU  ? "swiglu"
                                                 : "gelu";
}

/* What was looked at in a block. */
static void name_in_block(const lap_nn_block_t *block, size_t what, lap_nn_not_finite_t *found)
{
    const lap_nn_shape_t *shape = &block->shape;
    const lap_nn_weight_t *const weights[BLOCK_LOOKS] = {
        [GAMMA] = block->gamma,
        [BETA] = block->beta,
        [COLUMN] = block->column,
        [COLUMN_COPY] = block->column,
        [COLUMN_BIAS] = block->column_bias,
        [COLUMN_BIAS_COPY] = block->column_bias,
        [ROW] = block->row,
        [ROW_COPY] = block->row,
        [ROW_BIAS] = block->row_bias,
        [ROW_BIAS_COPY] = block->row_bias,
    };
    const char *const outputs[BLOCK_LOOKS] = {
        [NORM_OUT] = shape->norm_name,
        [PRE] = shape->column_name,
        [MID] = middle_name(shape),
        [OUT] = shape->row ? shape->row_name : shape->column_name,
    };
    if (weights[what]) {
        found->what = LAP_NN_PARAMETER;
        const lap_dtype_t dtype = weights[what]->param.weight.dtype;
        const bool copy = what == COLUMN_COPY || what == COLUMN_BIAS_COPY || what == ROW_COPY ||
                          what == ROW_BIAS_COPY;
        snprintf(found->name, sizeof(found->name), "%s%s%s", weights[what]->name,
                 copy ? " as " : "", copy ? lap_dtype_name(dtype) : "");
        return;
    }
    found->what = LAP_NN_ACTIVATION;
    snprintf(found->name, sizeof(found->name), "layer%zu.%s.output", shape->layer, outputs[what]);
}

static lap_nn_not_finite_t name(const lap_nn_t *nn, size_t index, int rank)
{
    lap_nn_not_finite_t found = {.what = LAP_NN_ACTIVATION, .name = "input", .rank = rank};
    const size_t gradients = look_of(nn->plan.nblocks, 0);
    if (index >= gradients) {
        found.what = LAP_NN_GRADIENT;
        snprintf(found.name, sizeof(found.name), "%s",
                 nn->weights[nn->nweights - 1 - (index - gradients)].name);
    } else if (index > 0) {
        name_in_block(&nn->blocks[(index - 1) / BLOCK_LOOKS], (index - 1) % BLOCK_LOOKS, &found);
    }
    return found;
}

/* ---- all of it ---- */

/* The first of all ranks, and who has it. Collective. */
static lap_status_t agree(lap_nn_t *nn, size_t first, lap_nn_not_finite_t *found_p)
{
    void *memory;
    lap_nn_not_finite_t found = {.what = LAP_NN_ALL_FINITE};
    LAP_TRY(lap_group_collect(nn->group, &first, sizeof(first), &memory));
    const size_t *all = memory;
    int least = 0;
    for (int r = 1; r < nn->plan.nranks; r++)
        least = all[r] < all[least] ? r : least;
    if (all[least] < count_looks(nn))
        found = name(nn, all[least], least);
    lap_free(memory);
    *found_p = found;
    return LAP_OK;
}

static lap_status_t look_at_all(lap_nn_t *nn, size_t seq, const lap_tensor_t *x,
                                const lap_tensor_t *y, size_t *first_p)
{
    const size_t count = count_looks(nn);
    LAP_TRY(lap_nn_forward(nn, seq, x, y));
    for (size_t i = 0; i < nn->nweights; i++)
        LAP_TRY(look(nn, gradient_look(nn, i), &nn->weights[i].param.grad));
    LAP_TRY(lap_nn_wait(nn));
    size_t first = 0;
    while (first < count && isfinite(nn->looks[first]))
        first++;
    *first_p = first;
    return LAP_OK;
}

lap_status_t lap_nn_find_not_finite(lap_nn_t *nn, size_t seq, const lap_tensor_t *x,
                                    const lap_tensor_t *y, lap_nn_not_finite_t *found_p)
{
    if (!nn || !found_p)
        return lap_error(LAP_ERR_INVALID, "lap_nn_find_not_finite: %s is NULL",
                         nn ? "found_p" : "nn");
    lap_device_t *device = nn->engine->device;
    const size_t bytes = count_looks(nn) * sizeof(*nn->looks);
    void *memory = NULL;
    size_t first;
    LAP_TRY(lap_nn_wait(nn));
    /* A rank that has no memory for it leaves nobody waiting. */
    lap_status_t status =
        lap_group_agree(nn->group, device->ops->alloc_shared(device, bytes, &memory));
    if (status == LAP_OK) {
        nn->looks = memset(memory, 0, bytes);
        status = look_at_all(nn, seq, x, y, &first);
        nn->looks = NULL;
    }
    if (status == LAP_OK)
        status = agree(nn, first, found_p);
    if (memory)
        device->ops->free_shared(device, memory);
    return status;
}
