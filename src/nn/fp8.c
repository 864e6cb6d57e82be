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

static bool is_on(const lap_nn_t *nn)
{
    return nn->plan.desc.fp8 != LAP_FP8_NONE;
}

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

lap_status_t lap_nn_fp8_add(lap_nn_t *nn, lap_nn_fp8_t *fp8, lap_dtype_t dtype, size_t count)
{
    fp8->dtype = dtype;
    fp8->index = nn->nfp8++;
    return fp8->data ? LAP_OK : lap_nn_alloc(nn, count, &fp8->data);
}

/* Casts begin anew to look for magnitudes. */
static lap_status_t clear_amax(lap_nn_t *nn)
{
    const lap_fill_normal_t fill = {.dtype = LAP_FLOAT32,
                                    .rows = 1,
                                    .cols = nn->nfp8,
                                    .stride = nn->nfp8,
                                    .out = nn->cast_amax};
    lap_stream_t *stream;
    LAP_TRY(lap_nn_stream(nn, &stream));
    return nn->kernels->fill_normal(stream, &fill);
}

lap_status_t lap_nn_fp8_start(lap_nn_t *nn)
{
    lap_device_t *device = nn->engine->device;
    void *memory;
    if (!is_on(nn))
        return LAP_OK;
    LAP_TRY(lap_nn_alloc(nn, (size_t)nn->plan.nranks * sizeof(float), &memory));
    nn->scales = memory;
    LAP_TRY(lap_nn_alloc(nn, 2 * nn->nfp8 * sizeof(float), &memory));
    nn->cast_scales = memory;
    nn->cast_amax = nn->cast_scales + nn->nfp8;
    LAP_TRY(device->ops->alloc_shared(device, 2 * nn->nfp8 * sizeof(float), &memory));
    nn->amax = memory;
    nn->found = nn->amax + nn->nfp8;
    nn->history = lap_alloc(nn->nfp8 * nn->plan.desc.amax_history, sizeof(float));
    if (!nn->history)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the magnitudes of %zu matrices",
                         nn->nfp8);
    return clear_amax(nn);
}

/* The largest of all ranks, element by element. Collective. */
static lap_status_t exchange(lap_nn_t *nn, float *values, size_t count)
{
    void *memory;
    LAP_TRY(lap_group_collect(nn->group, values, count * sizeof(float), &memory));
    const float *all = memory;
    for (size_t r = 0; r < (size_t)nn->plan.nranks; r++)
        for (size_t i = 0; i < count; i++)
            values[i] = all[r * count + i] > values[i] ? all[r * count + i] : values[i];
    lap_free(memory);
    return LAP_OK;
}

/* ---- delayed scaling ---- */

/* The scale that the passes so far ask for; as it is when they saw nothing. */
static float delayed_scale(const lap_nn_t *nn, const lap_nn_fp8_t *fp8)
{
    const size_t length = nn->plan.desc.amax_history;
    const float *history = nn->history + fp8->index * length;
    float most = 0;
    for (size_t i = 0; i < length; i++)
        most = history[i] > most ? history[i] : most;
    return most > 0 ? scale_of(fp8->dtype, most) : fp8->scale;
}

/* Waits for all passes and takes over what their casts have found. */
static lap_status_t collect_amax(lap_nn_t *nn)
{
    const lap_copy_t copy = {
        .dst = nn->found, .src = nn->cast_amax, .rows = 1, .row_bytes = nn->nfp8 * sizeof(float)};
    lap_stream_t *stream;
    nn->kernel_last = false; /* others may have issued something */
    LAP_TRY(lap_nn_stream(nn, &stream));
    LAP_TRY(nn->engine->device->ops->copy(stream, &copy));
    LAP_TRY(clear_amax(nn));
    LAP_TRY(lap_nn_wait(nn));
    for (size_t i = 0; i < nn->nfp8; i++) {
        const float found = isnan(nn->found[i]) ? INFINITY : nn->found[i];
        nn->amax[i] = found > nn->amax[i] ? found : nn->amax[i];
    }
    return LAP_OK;
}

lap_status_t lap_nn_fp8_renew(lap_nn_t *nn)
{
    if (nn->plan.desc.fp8 != LAP_FP8_DELAYED)
        return LAP_OK;
    LAP_TRY(collect_amax(nn));
    LAP_TRY(exchange(nn, nn->amax, nn->nfp8));
    const size_t length = nn->plan.desc.amax_history;
    for (size_t i = 0; i < nn->nfp8; i++)
        nn->history[i * length + nn->passes % length] = nn->amax[i];
    nn->passes++;
    return LAP_OK;
}

/* ---- taking ---- */

static lap_status_t measure(lap_nn_t *nn, const lap_nn_fp8_t *fp8, const lap_tensor_t *matrix)
{
    const lap_amax_t amax = {
        .dtype = matrix->dtype,
        .rows = matrix->rows,
        .cols = matrix->cols,
        .stride = matrix->stride,
        .src = matrix->data,
        .amax = &nn->amax[fp8->index],
    };
    lap_stream_t *stream;
    LAP_TRY(lap_nn_stream(nn, &stream));
    return nn->kernels->amax(stream, &amax);
}

/* Nothing that was issued still reads the scale before it, where the host writes it itself. */
static lap_status_t set_scale(lap_nn_t *nn, lap_nn_fp8_t *fp8, float scale)
{
    const lap_device_ops_t *ops = nn->engine->device->ops;
    float *place = &nn->cast_scales[fp8->index];
    lap_stream_t *stream;
    if (fp8->scale == scale)
        return LAP_OK;
    fp8->scale = scale;
    if (ops->set) {
        LAP_TRY(lap_nn_stream(nn, &stream));
        return ops->set(stream, place, scale);
    }
    *place = scale;
    return LAP_OK;
}

static lap_status_t scale_now(lap_nn_t *nn, lap_nn_fp8_t *fp8)
{
    LAP_TRY(lap_nn_settle(nn));
    float most = nn->amax[fp8->index];
    LAP_TRY(exchange(nn, &most, 1));
    return set_scale(nn, fp8, scale_of(fp8->dtype, most));
}

/* Casts the matrix with the scale that there is. `looks`: and finds its magnitude on the way. */
static lap_status_t cast(lap_nn_t *nn, const lap_nn_fp8_t *fp8, const lap_tensor_t *matrix,
                         bool looks)
{
    if (looks)
        nn->amax[fp8->index] = 0; /* until it is collected */
    return lap_nn_cast(nn, matrix, fp8->dtype, fp8->data, &nn->cast_scales[fp8->index],
                       looks ? &nn->cast_amax[fp8->index] : NULL);
}

/* The scale is that of the matrix itself. */
static lap_status_t take_now(lap_nn_t *nn, lap_nn_fp8_t *fp8, const lap_tensor_t *matrix)
{
    LAP_TRY(measure(nn, fp8, matrix));
    LAP_TRY(scale_now(nn, fp8));
    return cast(nn, fp8, matrix, false);
}

/* It is known before: once through the matrix is enough. */
static lap_status_t take_delayed(lap_nn_t *nn, lap_nn_fp8_t *fp8, const lap_tensor_t *matrix)
{
    LAP_TRY(set_scale(nn, fp8, delayed_scale(nn, fp8)));
    return cast(nn, fp8, matrix, true);
}

lap_status_t lap_nn_fp8_take(lap_nn_t *nn, lap_nn_fp8_t *fp8, const lap_tensor_t *matrix,
                             lap_nn_operand_t *operand_p)
{
    if (is_on(nn) && (nn->plan.desc.fp8 == LAP_FP8_CURRENT || fp8->scale == 0))
        LAP_TRY(take_now(nn, fp8, matrix));
    else if (is_on(nn))
        LAP_TRY(take_delayed(nn, fp8, matrix));
    *operand_p = lap_nn_fp8_kept(nn, fp8, matrix);
    return LAP_OK;
}

lap_nn_operand_t lap_nn_fp8_kept(const lap_nn_t *nn, const lap_nn_fp8_t *fp8,
                                 const lap_tensor_t *matrix)
{
    if (!is_on(nn))
        return (lap_nn_operand_t){*matrix, 1};
    return (lap_nn_operand_t){lap_tensor(fp8->data, fp8->dtype, matrix->rows, matrix->cols),
                              fp8->scale};
}

lap_nn_operand_t lap_nn_fp8_turned(const lap_nn_t *nn, const lap_nn_weight_t *weight)
{
    const lap_nn_param_t *param = &weight->param;
    if (!is_on(nn))
        return (lap_nn_operand_t){param->weight, 1};
    return (lap_nn_operand_t){
        lap_tensor(weight->turned, weight->fp8.dtype, param->cols, param->rows), weight->fp8.scale};
}

/* Transposes the copy of a weight. */
static lap_status_t turn(lap_nn_t *nn, const lap_nn_weight_t *weight)
{
    const lap_transpose_t transpose = {
        .src = weight->fp8.data,
        .dst = weight->turned,
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
    for (size_t i = 0; i < nn->nweights; i++)
        if (nn->weights[i].fp8.data)
            LAP_TRY(measure(nn, &nn->weights[i].fp8, &nn->weights[i].param.master));
    LAP_TRY(lap_nn_settle(nn));
    LAP_TRY(exchange(nn, nn->amax, nn->nfp8));
    for (size_t i = 0; i < nn->nweights; i++) {
        lap_nn_fp8_t *fp8 = &nn->weights[i].fp8;
        if (!fp8->data)
            continue;
        LAP_TRY(set_scale(nn, fp8, scale_of(fp8->dtype, nn->amax[fp8->index])));
        LAP_TRY(cast(nn, fp8, &nn->weights[i].param.master, false));
        LAP_TRY(turn(nn, &nn->weights[i]));
    }
    return LAP_OK;
}
