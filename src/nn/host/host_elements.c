/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a host does to elements one by one: SwiGLU, the square loss, normal numbers, the largest
 * magnitude and the scale that follows from it. In double, rounded once; in tiles that are widened on the stack.
 */
#include <math.h>

#include "core/convert.h"
#include "device/host/host.h"
#include "nn/fp8_scale.h"
#include "nn/host/host.h"
#include "util/random.h"

#define TILE LAP_HOST_TILE

/* There is nothing to load. */
lap_status_t lap_host_prepare(lap_device_t *device)
{
    (void)device;
    return LAP_OK;
}

/* Element `col` of a row. */
static void *at(lap_dtype_t dtype, const void *row, size_t col)
{
    return (char *)row + col * lap_dtype_size(dtype);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static lap_status_t run_swiglu_forward(void *arg)
{
    const lap_swiglu_t *s = arg;
    float g_room[TILE], u_room[TILE];
    double result[TILE];
    for (size_t i = 0; i < s->rows; i++) {
        const void *pre = lap_row_of(s->dtype, s->pre, s->pre_stride, i);
        void *out = lap_row_of(s->dtype, s->out, s->out_stride, i);
        for (size_t begin = 0; begin < s->cols; begin += TILE) {
            const size_t count = lap_tile_of(s->cols, begin);
            const float *g = lap_as_float(s->dtype, at(s->dtype, pre, begin), g_room, count);
            const float *u =
                lap_as_float(s->dtype, at(s->dtype, pre, s->cols + begin), u_room, count);
            for (size_t c = 0; c < count; c++)
                result[c] = (double)g[c] * sigmoid((double)g[c]) * (double)u[c];
            lap_from_double(s->dtype, result, at(s->dtype, out, begin), count);
        }
    }
    return LAP_OK;
}

lap_status_t lap_host_swiglu_forward(lap_stream_t *stream, const lap_swiglu_t *swiglu)
{
    return lap_host_stream_call(stream, run_swiglu_forward, swiglu, sizeof(*swiglu));
}

static lap_status_t run_swiglu_backward(void *arg)
{
    const lap_swiglu_t *s = arg;
    float g_room[TILE], u_room[TILE], d_room[TILE];
    double dg[TILE], du[TILE];
    for (size_t i = 0; i < s->rows; i++) {
        const void *pre = lap_row_of(s->dtype, s->pre, s->pre_stride, i);
        const void *dout = lap_row_of(s->dtype, s->dout, s->out_stride, i);
        void *dpre = lap_row_of(s->dtype, s->dpre, s->pre_stride, i);
        for (size_t begin = 0; begin < s->cols; begin += TILE) {
            const size_t count = lap_tile_of(s->cols, begin), second = s->cols + begin;
            const float *g = lap_as_float(s->dtype, at(s->dtype, pre, begin), g_room, count);
            const float *u = lap_as_float(s->dtype, at(s->dtype, pre, second), u_room, count);
            const float *d = lap_as_float(s->dtype, at(s->dtype, dout, begin), d_room, count);
            for (size_t c = 0; c < count; c++) {
                const double x = (double)g[c], gate = sigmoid(x);
                dg[c] = (double)d[c] * (double)u[c] * gate * (1 + x * (1 - gate));
                du[c] = (double)d[c] * x * gate;
            }
            lap_from_double(s->dtype, dg, at(s->dtype, dpre, begin), count);
            lap_from_double(s->dtype, du, at(s->dtype, dpre, second), count);
        }
    }
    return LAP_OK;
}

lap_status_t lap_host_swiglu_backward(lap_stream_t *stream, const lap_swiglu_t *swiglu)
{
    return lap_host_stream_call(stream, run_swiglu_backward, swiglu, sizeof(*swiglu));
}

static lap_status_t run_square_loss(void *arg)
{
    const lap_square_loss_t *loss = arg;
    const lap_dtype_t dtype = loss->dtype;
    float y_room[TILE], target_room[TILE];
    double dy[TILE], sum = 0;
    for (size_t i = 0; i < loss->rows; i++) {
        for (size_t begin = 0; begin < loss->cols; begin += TILE) {
            const size_t count = lap_tile_of(loss->cols, begin);
            const float *y =
                lap_as_float(dtype, at(dtype, lap_row_of(dtype, loss->y, loss->y_stride, i), begin),
                             y_room, count);
            const float *target = lap_as_float(
                dtype, at(dtype, lap_row_of(dtype, loss->target, loss->target_stride, i), begin),
                target_room, count);
            for (size_t c = 0; c < count; c++) {
                const double error = (double)y[c] - (double)target[c];
                sum += error * error;
                dy[c] = error * (double)loss->scale;
            }
            lap_from_double(dtype, dy,
                            at(dtype, lap_row_of(dtype, loss->dy, loss->dy_stride, i), begin),
                            count);
        }
    }
    *loss->sum = sum;
    return LAP_OK;
}

lap_status_t lap_host_square_loss(lap_stream_t *stream, const lap_square_loss_t *loss)
{
    return lap_host_stream_call(stream, run_square_loss, loss, sizeof(*loss));
}

static lap_status_t run_fill_normal(void *arg)
{
    const lap_fill_normal_t *fill = arg;
    float part[TILE];
    for (size_t i = 0; i < fill->rows; i++) {
        const uint64_t first = fill->first + i * fill->row_step;
        void *row = lap_row_of(fill->dtype, fill->out, fill->stride, i);
        for (size_t begin = 0; begin < fill->cols; begin += TILE) {
            const size_t count = lap_tile_of(fill->cols, begin);
            for (size_t c = 0; c < count; c++) {
                part[c] = fill->mean;
                if (fill->std != 0)
                    part[c] +=
                        fill->std * lap_random_normal(fill->seed, fill->tensor, first + begin + c);
            }
            lap_from_float(fill->dtype, part, at(fill->dtype, row, begin), count);
        }
    }
    return LAP_OK;
}

lap_status_t lap_host_fill_normal(lap_stream_t *stream, const lap_fill_normal_t *fill)
{
    return lap_host_stream_call(stream, run_fill_normal, fill, sizeof(*fill));
}

static lap_status_t run_amax(void *arg)
{
    const lap_amax_t *amax = arg;
    float room[TILE], most = 0;
    for (size_t i = 0; i < amax->rows; i++) {
        const void *row = lap_row_of(amax->dtype, amax->src, amax->stride, i);
        for (size_t begin = 0; begin < amax->cols; begin += TILE) {
            const size_t count = lap_tile_of(amax->cols, begin);
            const float *x = lap_as_float(amax->dtype, at(amax->dtype, row, begin), room, count);
            for (size_t c = 0; c < count; c++) {
                const float size = isnan(x[c]) ? INFINITY : fabsf(x[c]);
                most = size > most ? size : most;
            }
        }
    }
    *amax->amax = most;
    return LAP_OK;
}

lap_status_t lap_host_amax(lap_stream_t *stream, const lap_amax_t *amax)
{
    return lap_host_stream_call(stream, run_amax, amax, sizeof(*amax));
}

static lap_status_t run_fp8_scales(void *arg)
{
    const lap_fp8_scales_t *scales = arg;
    for (size_t i = 0; i < scales->count; i++)
        lap_fp8_make_scale(scales, i);
    return LAP_OK;
}

lap_status_t lap_host_fp8_scales(lap_stream_t *stream, const lap_fp8_scales_t *scales)
{
    return lap_host_stream_call(stream, run_fp8_scales, scales, sizeof(*scales));
}
