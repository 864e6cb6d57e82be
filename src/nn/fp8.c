/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FP8 operands: every matrix that a GEMM takes gets a copy in FP8 and one scale for all ranks, so
 * that shards gathered from several of them are one matrix. Scales are powers of two, which change
 * seldom and lose nothing; the largest magnitude comes to at most the largest number of the type.
 *
 * Delayed scaling takes the largest magnitude of the passes before, which is exchanged once per
 * forward: nothing waits in between. Current scaling takes that of the matrix itself: the host
 * waits for it and for the other ranks. A matrix that has not been seen yet is scaled so too, and
 * weights are always, all at once. Weights have a second copy that is transposed, for dgrad.
 */
#include <math.h>

#include "core/status.h"
#include "nn/nn.h"
#include "util/alloc.h"

/* The power of two that brings `amax` into the range of the type; 1 where there is none. */
static float scale_of(lap_dtype_t dtype, float amax)
{
    const double most = dtype == LAP_FLOAT8_E4M3 ? 448 : 57344;
    int exponent;
    if (!(amax > 0) || !isfinite(amax))
        return 1;
    const double fraction = frexp((double)amax / most, &exponent); /* of [0.5, 1) */
    exponent -= fraction == 0.5;
    /* The product of two scales stays in the range of float. */
    exponent = exponent < -60 ? -60 : exponent > 60 ? 60 : exponent;
    return (float)ldexp(1, exponent);
}

static float *cast_scale(const lap_nn_t *nn, uint32_t index)
{
    return (float *)nn->tensors[nn->list.cast_scales].data + index;
}

static float *cast_amax(const lap_nn_t *nn, uint32_t index)
{
    return (float *)nn->tensors[nn->list.cast_amax].data + index;
}

/* Casts begin anew to look for magnitudes. */
static lap_status_t clear_amax(lap_nn_t *nn)
{
    const uint32_t count = nn->list.nfp8;
    const lap_fill_normal_t fill = {
        .dtype = LAP_FLOAT32, .rows = 1, .cols = count, .stride = count, .out = cast_amax(nn, 0)};
    lap_stream_t *stream;
    LAP_TRY(lap_nn_stream(nn, &stream));
    return nn->kernels->fill_normal(stream, &fill);
}

lap_status_t lap_nn_fp8_start(lap_nn_t *nn)
{
    lap_device_t *device = nn->engine->device;
    const size_t count = nn->list.nfp8;
    void *memory;
    if (!lap_nn_list_fp8(&nn->list))
        return LAP_OK;
    LAP_TRY(device->ops->alloc_shared(device, 2 * count * sizeof(float), &memory));
    nn->amax = memory;
    nn->found = nn->amax + count;
    nn->history = lap_alloc(count * nn->list.plan.desc.amax_history, sizeof(float));
    nn->fp8 = lap_alloc(count, sizeof(*nn->fp8));
    if (!nn->history || !nn->fp8)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the magnitudes of %zu matrices", count);
    for (uint32_t i = 0; i < nn->list.nregions; i++)
        if (nn->list.regions[i].fp8 != LAP_NN_NONE)
            nn->fp8[nn->list.regions[i].fp8].dtype = nn->list.regions[i].dtype;
    return clear_amax(nn);
}

/* The largest of all ranks, element by element. Collective. */
static lap_status_t exchange(lap_nn_t *nn, float *values, size_t count)
{
    void *memory;
    LAP_TRY(lap_group_collect(nn->group, values, count * sizeof(float), &memory));
    const float *all = memory;
    for (size_t r = 0; r < (size_t)nn->list.plan.nranks; r++)
        for (size_t i = 0; i < count; i++)
            values[i] = all[r * count + i] > values[i] ? all[r * count + i] : values[i];
    lap_free(memory);
    return LAP_OK;
}

/* ---- delayed scaling ---- */

/* The scale that the passes so far ask for; as it is when they saw nothing. */
static float delayed_scale(const lap_nn_t *nn, uint32_t index)
{
    const size_t length = nn->list.plan.desc.amax_history;
    const float *history = nn->history + index * length;
    float most = 0;
    for (size_t i = 0; i < length; i++)
        most = history[i] > most ? history[i] : most;
    return most > 0 ? scale_of(nn->fp8[index].dtype, most) : nn->fp8[index].scale;
}

/* Waits for all passes and takes over what their casts have found. */
static lap_status_t collect_amax(lap_nn_t *nn)
{
    const lap_copy_t copy = {.dst = nn->found,
                             .src = cast_amax(nn, 0),
                             .rows = 1,
                             .row_bytes = nn->list.nfp8 * sizeof(float)};
    lap_stream_t *stream;
    LAP_TRY(lap_nn_stream(nn, &stream));
    LAP_TRY(nn->engine->device->ops->copy(stream, &copy));
    LAP_TRY(clear_amax(nn));
    LAP_TRY(lap_nn_wait(nn));
    for (size_t i = 0; i < nn->list.nfp8; i++) {
        const float found = isnan(nn->found[i]) ? INFINITY : nn->found[i];
        nn->amax[i] = found > nn->amax[i] ? found : nn->amax[i];
    }
    return LAP_OK;
}

lap_status_t lap_nn_fp8_renew(lap_nn_t *nn)
{
    if (nn->list.plan.desc.fp8 != LAP_FP8_DELAYED)
        return LAP_OK;
    LAP_TRY(collect_amax(nn));
    LAP_TRY(exchange(nn, nn->amax, nn->list.nfp8));
    const size_t length = nn->list.plan.desc.amax_history;
    for (size_t i = 0; i < nn->list.nfp8; i++)
        nn->history[i * length + nn->passes % length] = nn->amax[i];
    nn->passes++;
    return LAP_OK;
}

/* ---- taking ---- */

/* Nothing that was issued still reads the scale before it, where the host writes it itself. */
static lap_status_t set_scale(lap_nn_t *nn, uint32_t index, float scale)
{
    const lap_device_ops_t *ops = nn->engine->device->ops;
    lap_stream_t *stream;
    if (nn->fp8[index].scale == scale)
        return LAP_OK;
    nn->fp8[index].scale = scale;
    if (ops->set) {
        LAP_TRY(lap_nn_stream(nn, &stream));
        return ops->set(stream, cast_scale(nn, index), scale);
    }
    *cast_scale(nn, index) = scale;
    return LAP_OK;
}

static lap_status_t scale_now(lap_nn_t *nn, uint32_t index)
{
    LAP_TRY(lap_nn_settle(nn));
    float most = nn->amax[index];
    LAP_TRY(exchange(nn, &most, 1));
    return set_scale(nn, index, scale_of(nn->fp8[index].dtype, most));
}

/* Casts the matrix with the scale that there is. `looks`: and finds its magnitude on the way. */
static lap_status_t cast(lap_nn_t *nn, uint32_t copy, const lap_tensor_t *matrix, bool looks)
{
    const uint32_t index = nn->list.regions[copy].fp8;
    if (looks)
        nn->amax[index] = 0; /* until it is collected */
    return lap_nn_cast(nn, matrix, nn->fp8[index].dtype, nn->tensors[copy].data,
                       cast_scale(nn, index), looks ? cast_amax(nn, index) : NULL);
}

lap_status_t lap_nn_fp8_cast(lap_nn_t *nn, uint32_t source, uint32_t copy)
{
    const uint32_t index = nn->list.regions[copy].fp8;
    const lap_tensor_t matrix = lap_nn_tensor(nn, source);
    if (nn->list.plan.desc.fp8 == LAP_FP8_CURRENT || nn->fp8[index].scale == 0) {
        LAP_TRY(lap_nn_amax(nn, &matrix, &nn->amax[index]));
        LAP_TRY(scale_now(nn, index));
        return cast(nn, copy, &matrix, false);
    }
    /* It is known before: once through the matrix is enough. */
    LAP_TRY(set_scale(nn, index, delayed_scale(nn, index)));
    return cast(nn, copy, &matrix, true);
}

/* Transposes the copy of a weight. */
static lap_status_t turn(lap_nn_t *nn, const lap_nn_weight_t *weight)
{
    const lap_transpose_t transpose = {
        .src = nn->tensors[weight->copy].data,
        .dst = nn->tensors[weight->turned].data,
        .rows = weight->param.rows,
        .cols = weight->param.cols,
        .src_stride = weight->param.cols,
        .dst_stride = weight->param.rows,
    };
    lap_stream_t *stream;
    LAP_TRY(lap_nn_stream(nn, &stream));
    return nn->engine->device->ops->transpose(stream, &transpose);
}

lap_status_t lap_nn_fp8_weights(lap_nn_t *nn)
{
    for (uint32_t i = 0; i < nn->list.nweights; i++) {
        const lap_nn_weight_t *weight = &nn->list.weights[i];
        const uint32_t index = nn->list.regions[weight->copy].fp8;
        if (index != LAP_NN_NONE)
            LAP_TRY(lap_nn_amax(nn, &weight->param.master, &nn->amax[index]));
    }
    LAP_TRY(lap_nn_settle(nn));
    LAP_TRY(exchange(nn, nn->amax, nn->list.nfp8));
    for (uint32_t i = 0; i < nn->list.nweights; i++) {
        const lap_nn_weight_t *weight = &nn->list.weights[i];
        const uint32_t index = nn->list.regions[weight->copy].fp8;
        if (index == LAP_NN_NONE)
            continue;
        LAP_TRY(set_scale(nn, index, scale_of(nn->fp8[index].dtype, nn->amax[index])));
        LAP_TRY(cast(nn, weight->copy, &weight->param.master, false));
        LAP_TRY(turn(nn, weight));
    }
    return LAP_OK;
}
