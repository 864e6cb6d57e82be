/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a host does to elements one by one: SwiGLU, the square loss, normal numbers, the largest
 * magnitude and the scale that follows from it. In double, rounded once; in tiles that are widened on the stack.
 */
#include <math.h>

#include "core/convert.h"
#include "device/host/host.h"
#include "kernel/fp8_scale.h"
#include "kernel/host/host.h"
#include "util/random.h"

#define TILE LAP_HOST_TILE

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

void lap_run_swiglu_forward(const lap_swiglu_t *s)
{
    const size_t cols = s->out.cols;
    float g_room[TILE], u_room[TILE];
    double result[TILE];
    for (size_t i = 0; i < s->out.rows; i++) {
        for (size_t begin = 0; begin < cols; begin += TILE) {
            const size_t count = lap_tile_of(cols, begin);
            const float *g = lap_floats_of(&s->pre, i, begin, g_room, count);
            const float *u = lap_floats_of(&s->pre, i, cols + begin, u_room, count);
            for (size_t c = 0; c < count; c++)
                result[c] = (double)g[c] * sigmoid((double)g[c]) * (double)u[c];
            lap_from_double(s->out.dtype, result, lap_element(&s->out, i, begin), count);
        }
    }
}

void lap_run_swiglu_backward(const lap_swiglu_backward_t *s)
{
    const size_t cols = s->dout.cols;
    float g_room[TILE], u_room[TILE], d_room[TILE];
    double dg[TILE], du[TILE];
    for (size_t i = 0; i < s->dout.rows; i++) {
        for (size_t begin = 0; begin < cols; begin += TILE) {
            const size_t count = lap_tile_of(cols, begin), second = cols + begin;
            const float *g = lap_floats_of(&s->pre, i, begin, g_room, count);
            const float *u = lap_floats_of(&s->pre, i, second, u_room, count);
            const float *d = lap_floats_of(&s->dout, i, begin, d_room, count);
            for (size_t c = 0; c < count; c++) {
                const double x = (double)g[c], gate = sigmoid(x);
                dg[c] = (double)d[c] * (double)u[c] * gate * (1 + x * (1 - gate));
                du[c] = (double)d[c] * x * gate;
            }
            lap_from_double(s->dpre.dtype, dg, lap_element(&s->dpre, i, begin), count);
            lap_from_double(s->dpre.dtype, du, lap_element(&s->dpre, i, second), count);
        }
    }
}

void lap_run_square_loss(const lap_square_loss_t *loss)
{
    float y_room[TILE], target_room[TILE];
    double dy[TILE], sum = 0;
    for (size_t i = 0; i < loss->y.rows; i++) {
        for (size_t begin = 0; begin < loss->y.cols; begin += TILE) {
            const size_t count = lap_tile_of(loss->y.cols, begin);
            const float *y = lap_floats_of(&loss->y, i, begin, y_room, count);
            const float *target = lap_floats_of(&loss->target, i, begin, target_room, count);
            for (size_t c = 0; c < count; c++) {
                const double error = (double)y[c] - (double)target[c];
                sum += error * error;
                dy[c] = error * (double)loss->scale;
            }
            lap_from_double(loss->dy.dtype, dy, lap_element(&loss->dy, i, begin), count);
        }
    }
    *loss->sum = sum;
}

void lap_run_fill_normal(const lap_fill_normal_t *fill)
{
    const lap_tensor_t *out = &fill->out;
    float part[TILE];
    for (size_t i = 0; i < out->rows; i++) {
        const uint64_t first = fill->first + i * fill->row_step;
        for (size_t begin = 0; begin < out->cols; begin += TILE) {
            const size_t count = lap_tile_of(out->cols, begin);
            for (size_t c = 0; c < count; c++) {
                part[c] = fill->mean;
                if (fill->std != 0)
                    part[c] +=
                        fill->std * lap_random_normal(fill->seed, fill->tensor, first + begin + c);
            }
            lap_from_float(out->dtype, part, lap_element(out, i, begin), count);
        }
    }
}

void lap_run_amax(const lap_amax_t *amax)
{
    float room[TILE], most = 0;
    for (size_t i = 0; i < amax->src.rows; i++) {
        for (size_t begin = 0; begin < amax->src.cols; begin += TILE) {
            const size_t count = lap_tile_of(amax->src.cols, begin);
            const float *x = lap_floats_of(&amax->src, i, begin, room, count);
            for (size_t c = 0; c < count; c++) {
                const float size = isnan(x[c]) ? INFINITY : fabsf(x[c]);
                most = size > most ? size : most;
            }
        }
    }
    *amax->amax = most;
}

void lap_run_fp8_scales(const lap_fp8_scales_t *scales)
{
    for (size_t i = 0; i < scales->count; i++)
        lap_fp8_make_scale(scales, i);
}
