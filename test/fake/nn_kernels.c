/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels of transformer layers on a GPU do, as loops: see fake.h. What a kernel would
 * read or write in pieces that its memory does not allow is left undone.
 */
#include <math.h>

#include "core/convert.h"
#include "fake.h"
#include "nn/clip.h"
#include "nn/cuda/nn_cuda_kernels.h"
#include "nn/fp8_scale.h"
#include "util/random.h"

/* Element (row, col) of a matrix. */
static double at(lap_dtype_t dtype, const void *matrix, size_t stride, size_t row, size_t col)
{
    return (double)fake_load((int32_t)dtype, matrix, row * stride + col);
}

static void set(lap_dtype_t dtype, void *matrix, size_t stride, size_t row, size_t col,
                double value)
{
    fake_store((int32_t)dtype, matrix, row * stride + col, (float)value);
}

/* Whether vectors of a matrix can be read, if that is what the kernel does; there may be none. */
static bool fits(uint32_t vector, lap_dtype_t dtype, const void *matrix, size_t rows, size_t stride)
{
    const uintptr_t bytes = rows > 1 ? stride * lap_dtype_size(dtype) : 0;
    return vector == 1 || ((uintptr_t)matrix | bytes) % 16 == 0;
}

/* ---- norms ---- */

/* Whether a block can have a row of them in a vector for each thread. */
static bool is_narrow(size_t cols, uint32_t vector)
{
    return vector == LAP_NN_CUDA_VECTOR && cols <= (size_t)LAP_NN_CUDA_NORM * vector;
}

static void run_norm_forward_wide(void *args)
{
    const lap_nn_cuda_norm_forward_t *forward = args;
    const lap_norm_forward_t *n = &forward->norm;
    const float *gamma = fake_at(n->gamma), *beta = n->beta ? fake_at(n->beta) : NULL;
    float *means = fake_at(n->mean), *rstds = fake_at(n->rstd);
    if (!fits(forward->vector, n->dtype, n->x, n->rows, n->x_stride) ||
        !fits(forward->vector, n->dtype, n->y, n->rows, n->y_stride))
        return;
    for (size_t row = 0; row < n->rows; row++) {
        double mean = 0, square = 0;
        for (size_t col = 0; col < n->cols && n->kind == LAP_LAYERNORM; col++)
            mean += at(n->dtype, n->x, n->x_stride, row, col) / (double)n->cols;
        for (size_t col = 0; col < n->cols; col++)
            square += pow(at(n->dtype, n->x, n->x_stride, row, col) - mean, 2) / (double)n->cols;
        const double rstd = 1 / sqrt(square + (double)n->epsilon);
        for (size_t col = 0; col < n->cols; col++)
            set(n->dtype, n->y, n->y_stride, row, col,
                (at(n->dtype, n->x, n->x_stride, row, col) - mean) * rstd * (double)gamma[col] +
                    (beta ? (double)beta[col] : 0));
        means[row] = (float)mean;
        rstds[row] = (float)rstd;
    }
}

static void run_norm_forward(void *args)
{
    const lap_nn_cuda_norm_forward_t *forward = args;
    if (is_narrow(forward->norm.cols, forward->vector))
        run_norm_forward_wide(args);
}

/* Blocks take rows in turn, and each leaves its own sums. */
static void run_norm_backward_wide(void *args)
{
    const lap_nn_cuda_norm_backward_t *backward = args;
    const lap_norm_backward_t *n = &backward->norm;
    const float *gamma = fake_at(n->gamma), *means = fake_at(n->mean), *rstds = fake_at(n->rstd);
    float *sums = fake_at(n->scratch);
    if (!fits(backward->vector, n->dtype, n->x, n->rows, n->x_stride) ||
        !fits(backward->vector, n->dtype, n->dy, n->rows, n->dy_stride) ||
        !fits(backward->vector, n->dtype, n->skip, n->rows, n->skip_stride) ||
        !fits(backward->vector, n->dtype, n->dx, n->rows, n->dx_stride))
        return;
    for (size_t i = 0; i < 2 * backward->parts * n->cols; i++)
        sums[i] = 0;
    for (size_t row = 0; row < n->rows; row++) {
        const double mean = (double)means[row], rstd = (double)rstds[row];
        float *dgamma = sums + 2 * (row % backward->parts) * n->cols, *dbeta = dgamma + n->cols;
        double g_mean = 0, gn_mean = 0;
        for (size_t col = 0; col < n->cols; col++) {
            const double normal = (at(n->dtype, n->x, n->x_stride, row, col) - mean) * rstd;
            const double dy = at(n->dtype, n->dy, n->dy_stride, row, col);
            dgamma[col] += (float)(dy * normal);
            dbeta[col] += (float)dy;
            g_mean += dy * (double)gamma[col] / (double)n->cols;
            gn_mean += dy * (double)gamma[col] * normal / (double)n->cols;
        }
        g_mean = n->kind == LAP_LAYERNORM ? g_mean : 0;
        for (size_t col = 0; col < n->cols; col++) {
            const double normal = (at(n->dtype, n->x, n->x_stride, row, col) - mean) * rstd;
            const double g = at(n->dtype, n->dy, n->dy_stride, row, col) * (double)gamma[col];
            const double skip = n->skip ? at(n->dtype, n->skip, n->skip_stride, row, col) : 0;
            set(n->dtype, n->dx, n->dx_stride, row, col,
                rstd * (g - g_mean - normal * gn_mean) + skip);
        }
    }
}

static void run_norm_backward(void *args)
{
    const lap_nn_cuda_norm_backward_t *backward = args;
    if (is_narrow(backward->norm.cols, backward->vector))
        run_norm_backward_wide(args);
}

/* ---- elements ---- */

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void run_swiglu_forward(void *args)
{
    const lap_nn_cuda_swiglu_t *forward = args;
    const lap_swiglu_t *s = &forward->swiglu;
    if (!fits(forward->span.vector, s->dtype, s->pre, s->rows, s->pre_stride) ||
        !fits(forward->span.vector, s->dtype, s->out, s->rows, s->out_stride))
        return;
    for (size_t row = 0; row < s->rows; row++)
        for (size_t col = 0; col < s->cols; col++) {
            const double g = at(s->dtype, s->pre, s->pre_stride, row, col);
            const double u = at(s->dtype, s->pre, s->pre_stride, row, s->cols + col);
            set(s->dtype, s->out, s->out_stride, row, col, g * sigmoid(g) * u);
        }
}

static void run_swiglu_backward(void *args)
{
    const lap_nn_cuda_swiglu_t *backward = args;
    const lap_swiglu_t *s = &backward->swiglu;
    if (!fits(backward->span.vector, s->dtype, s->pre, s->rows, s->pre_stride) ||
        !fits(backward->span.vector, s->dtype, s->dpre, s->rows, s->pre_stride) ||
        !fits(backward->span.vector, s->dtype, s->dout, s->rows, s->out_stride))
        return;
    for (size_t row = 0; row < s->rows; row++)
        for (size_t col = 0; col < s->cols; col++) {
            const double g = at(s->dtype, s->pre, s->pre_stride, row, col), gate = sigmoid(g);
            const double u = at(s->dtype, s->pre, s->pre_stride, row, s->cols + col);
            const double d = at(s->dtype, s->dout, s->out_stride, row, col);
            set(s->dtype, s->dpre, s->pre_stride, row, col, d * u * gate * (1 + g * (1 - gate)));
            set(s->dtype, s->dpre, s->pre_stride, row, s->cols + col, d * g * gate);
        }
}

static void run_square_loss(void *args)
{
    const lap_nn_cuda_square_loss_t *loss = args;
    const lap_square_loss_t *l = &loss->loss;
    double sum = 0;
    if (!fits(loss->span.vector, l->dtype, l->y, l->rows, l->y_stride) ||
        !fits(loss->span.vector, l->dtype, l->target, l->rows, l->target_stride) ||
        !fits(loss->span.vector, l->dtype, l->dy, l->rows, l->dy_stride))
        return;
    for (size_t row = 0; row < l->rows; row++)
        for (size_t col = 0; col < l->cols; col++) {
            const double error = at(l->dtype, l->y, l->y_stride, row, col) -
                                 at(l->dtype, l->target, l->target_stride, row, col);
            sum += error * error;
            set(l->dtype, l->dy, l->dy_stride, row, col, error * (double)l->scale);
        }
    *l->sum = sum;
}

/* ---- tokens ---- */

static void run_embedding(void *args)
{
    const lap_nn_cuda_embedding_t *embedding = args;
    const lap_embedding_t *e = &embedding->embedding;
    const int32_t *ids = fake_at(e->ids);
    if (!fits(embedding->span.vector, e->dtype, e->out, e->rows, e->out_stride) ||
        !fits(embedding->span.vector, LAP_FLOAT32, e->table, e->count, e->cols) ||
        !fits(embedding->span.vector, LAP_FLOAT32, e->positions, e->rows, e->cols))
        return;
    for (size_t row = 0; row < e->rows; row++)
        for (size_t col = 0; col < e->cols; col++) {
            const size_t token = (size_t)ids[row * LAP_ID_COLS + LAP_ID_TOKEN] - e->first;
            double x = 0;
            if (token < e->count)
                x = at(LAP_FLOAT32, e->table, e->cols, token, col) +
                    (e->positions ? at(LAP_FLOAT32, e->positions, e->cols,
                                       lap_position(e->at, row / e->batch), col)
                                  : 0);
            set(e->dtype, e->out, e->out_stride, row, col, x);
        }
}

/* Blocks where a number begins add up all its rows. */
static void run_embedding_backward(void *args)
{
    const lap_embedding_backward_t *e = args;
    const int32_t *ids = e->ids ? fake_at(e->ids) : NULL;
    size_t before = SIZE_MAX;
    for (size_t i = 0; i < e->rows; i++) {
        const size_t row = ids ? (size_t)ids[i * LAP_ID_COLS + LAP_ID_BY_TOKEN] : i;
        const size_t number = (ids ? (size_t)ids[row * LAP_ID_COLS + LAP_ID_TOKEN]
                                   : lap_position(e->at, i / e->batch)) -
                              e->first;
        for (size_t col = 0; col < e->cols && number < e->count; col++) {
            const double old = at(LAP_FLOAT32, e->grad, e->cols, number, col);
            set(LAP_FLOAT32, e->grad, e->cols, number, col,
                (number == before ? 1 : (double)e->beta) * old +
                    (double)e->alpha * at(e->dtype, e->dy, e->dy_stride, row, col));
        }
        before = number;
    }
}

static void run_rope(void *args)
{
    const lap_nn_cuda_rope_t *rope = args;
    const lap_rope_t *r = &rope->rope;
    const size_t half = r->dim / 2;
    if (!fits(rope->span.vector, r->dtype, r->x, r->rows, r->stride) ||
        (rope->span.vector > 1 && half % rope->span.vector != 0))
        return;
    for (size_t row = 0; row < r->rows; row++)
        for (size_t i = 0; i < r->heads * half; i++) {
            const size_t col = i / half * r->dim + i % half;
            const double a = at(r->dtype, r->x, r->stride, row, col);
            const double b = at(r->dtype, r->x, r->stride, row, col + half);
            const size_t token = lap_position(r->at, row / r->batch);
            const double c = at(LAP_FLOAT32, r->table, r->dim, token, i % half);
            const double s =
                at(LAP_FLOAT32, r->table, r->dim, token, half + i % half) * (r->backward ? -1 : 1);
            set(r->dtype, r->x, r->stride, row, col, a * c - b * s);
            set(r->dtype, r->x, r->stride, row, col + half, b * c + a * s);
        }
}

static void run_dropout(void *args)
{
    const lap_nn_cuda_dropout_t *dropout = args;
    const lap_dropout_t *d = &dropout->dropout;
    lap_mask_t mask = d->mask;
    mask.ids = fake_at(mask.ids);
    if (!fits(dropout->span.vector, d->dtype, d->x, d->rows, d->x_stride) ||
        !fits(dropout->span.vector, d->dtype, d->out, d->rows, d->out_stride))
        return;
    for (size_t i = 0; i < d->rows; i++) {
        const size_t row = d->first_row + i;
        const size_t position = lap_position(d->at, row / d->batch);
        const int32_t sample = lap_mask_sample(&mask, row % d->batch);
        for (size_t c = 0; c < d->cols; c++) {
            const double factor = (double)lap_mask_at(&mask, sample, position, d->cols, c);
            set(d->dtype, d->out, d->out_stride, i, c,
                at(d->dtype, d->x, d->x_stride, i, c) * factor +
                    (d->skip ? at(d->dtype, d->skip, d->skip_stride, i, c) : 0));
        }
    }
}

static void run_logit_stats(void *args)
{
    const lap_nn_cuda_cross_entropy_t *entropy = args;
    const lap_cross_entropy_t *e = &entropy->entropy;
    const int32_t *ids = fake_at(e->ids);
    float *stats = fake_at(e->stats);
    if (!fits(entropy->vector, e->dtype, e->logits, e->rows, e->stride))
        return;
    for (size_t row = 0; row < e->rows; row++, stats += LAP_LOGIT_STATS) {
        const int32_t target = ids[row * LAP_ID_COLS + LAP_ID_TARGET];
        const size_t hit = target < 0 ? e->cols : (size_t)target - e->first;
        double most = -INFINITY, sum = 0;
        for (size_t col = 0; col < e->cols; col++)
            most = fmax(most, at(e->dtype, e->logits, e->stride, row, col));
        for (size_t col = 0; col < e->cols; col++)
            sum += exp(at(e->dtype, e->logits, e->stride, row, col) - most);
        stats[LAP_LOGIT_MOST] = (float)most;
        stats[LAP_LOGIT_SUM] = (float)sum;
        stats[LAP_LOGIT_TARGET] =
            hit < e->cols ? (float)at(e->dtype, e->logits, e->stride, row, hit) : 0;
    }
}

/* The loss of a row, from the numbers of all ranks. */
static double join_stats(const lap_cross_entropy_t *e, const float *stats, double *most_p,
                         double *sum_p)
{
    const size_t step = e->rows * LAP_LOGIT_STATS;
    double most = -INFINITY, sum = 0, target = 0;
    for (size_t r = 0; r < e->ranks; r++)
        if ((double)stats[r * step + LAP_LOGIT_MOST] > most)
            most = (double)stats[r * step + LAP_LOGIT_MOST];
    for (size_t r = 0; r < e->ranks; r++) {
        sum += (double)stats[r * step + LAP_LOGIT_SUM] *
               exp((double)stats[r * step + LAP_LOGIT_MOST] - most);
        target += (double)stats[r * step + LAP_LOGIT_TARGET];
    }
    *most_p = most;
    *sum_p = sum;
    return (sum > 0 ? log(sum) : -INFINITY) + most - target;
}

static void run_cross_entropy(void *args)
{
    const lap_nn_cuda_cross_entropy_t *entropy = args;
    const lap_cross_entropy_t *e = &entropy->entropy;
    const int32_t *ids = fake_at(e->ids);
    const float *stats = fake_at(e->stats), *scale = fake_at(e->scale);
    double total = 0;
    if (!fits(entropy->vector, e->dtype, e->logits, e->rows, e->stride))
        return;
    for (size_t row = 0; row < e->rows; row++) {
        const int32_t target = ids[row * LAP_ID_COLS + LAP_ID_TARGET];
        double most, sum;
        const double loss = join_stats(e, stats + row * LAP_LOGIT_STATS, &most, &sum);
        if (target >= 0)
            total += loss;
        for (size_t col = 0; col < e->cols; col++) {
            const bool hit = target >= 0 && (size_t)target == e->first + col;
            const double p = exp(at(e->dtype, e->logits, e->stride, row, col) - most) / sum;
            set(e->dtype, e->logits, e->stride, row, col,
                target < 0 ? 0 : (p - hit) * (double)*scale);
        }
    }
    *e->sum = total;
}

static void run_fill_normal(void *args)
{
    const lap_fill_normal_t *f = &((const lap_nn_cuda_fill_normal_t *)args)->fill;
    for (size_t row = 0; row < f->rows; row++)
        for (size_t col = 0; col < f->cols; col++) {
            float x = f->mean;
            if (f->std != 0)
                x += f->std *
                     lap_random_normal(f->seed, f->tensor, f->first + row * f->row_step + col);
            fake_store((int32_t)f->dtype, f->out, row * f->stride + col, x);
        }
}

static void run_amax(void *args)
{
    const lap_nn_cuda_amax_t *amax = args;
    const lap_amax_t *a = &amax->amax;
    double most = 0;
    if (!fits(amax->span.vector, a->dtype, a->src, a->rows, a->stride))
        return;
    for (size_t row = 0; row < a->rows; row++)
        for (size_t col = 0; col < a->cols; col++) {
            const double x = at(a->dtype, a->src, a->stride, row, col);
            most = fmax(most, isnan(x) ? INFINITY : fabs(x));
        }
    *(float *)fake_at(a->amax) = (float)most;
}

static void run_fp8_scales(void *args)
{
    lap_fp8_scales_t scales = *(const lap_fp8_scales_t *)args;
    scales.found = fake_at(scales.found);
    scales.history = scales.history ? fake_at(scales.history) : NULL;
    scales.amax = scales.amax ? fake_at(scales.amax) : NULL;
    scales.scales = fake_at(scales.scales);
    for (size_t i = 0; i < scales.count; i++)
        lap_fp8_make_scale(&scales, i);
}

/* ---- optimizers ---- */

static void run_sum_squares(void *args)
{
    const lap_nn_cuda_sum_squares_t *squares = args;
    const lap_sum_squares_t *s = &squares->sum;
    const float *src = fake_at(s->src);
    double sum = 0;
    if (squares->aligned && (uintptr_t)src % 16 != 0)
        return;
    for (size_t i = 0; i < s->count; i++)
        sum += (double)src[i] * (double)src[i];
    *(double *)fake_at(s->sum) = sum;
}

static void run_total(void *args)
{
    lap_total_t total = *(const lap_total_t *)args;
    total.src = fake_at(total.src);
    *(double *)fake_at(total.total) = lap_total_of(&total);
}

static void run_clip(void *args)
{
    lap_clip_t clip = *(const lap_clip_t *)args;
    clip.squares = clip.squares ? fake_at(clip.squares) : NULL;
    *(lap_rates_t *)fake_at(clip.rates) = *clip.result = lap_clip_rates(&clip);
}

static void run_update(void *args)
{
    const lap_nn_cuda_update_t *update = args;
    const lap_update_t *u = &update->update;
    float *w = fake_at(u->master), *first = fake_at(u->first), *second = fake_at(u->second);
    const float *grad = fake_at(u->grad);
    const lap_rates_t *r = fake_at(u->rates);
    if (!r->made)
        return;
    if (update->aligned &&
        ((uintptr_t)w | (uintptr_t)first | (uintptr_t)second | (uintptr_t)grad) % 16 != 0)
        return;
    for (size_t i = 0; i < u->count; i++) {
        const float g = grad[i] * r->scale;
        if (u->kind == LAP_SGD) {
            first[i] = u->momentum * first[i] + (g + u->decay * w[i]);
            w[i] -= r->lr * first[i];
            continue;
        }
        first[i] = u->beta1 * first[i] + (1 - u->beta1) * g;
        second[i] = u->beta2 * second[i] + (1 - u->beta2) * (g * g);
        w[i] = w[i] * (1 - r->lr * u->decay) -
               r->lr / r->correction1 *
                   (first[i] / (sqrtf(second[i]) / sqrtf(r->correction2) + u->epsilon));
    }
}

const fake_kernel_t fake_nn_kernels[] = {
    {"lap_norm_forward", run_norm_forward, sizeof(lap_nn_cuda_norm_forward_t), false},
    {"lap_norm_backward", run_norm_backward, sizeof(lap_nn_cuda_norm_backward_t), false},
    {"lap_norm_forward_wide", run_norm_forward_wide, sizeof(lap_nn_cuda_norm_forward_t), false},
    {"lap_norm_backward_wide", run_norm_backward_wide, sizeof(lap_nn_cuda_norm_backward_t), false},
    {"lap_swiglu_forward", run_swiglu_forward, sizeof(lap_nn_cuda_swiglu_t), false},
    {"lap_swiglu_backward", run_swiglu_backward, sizeof(lap_nn_cuda_swiglu_t), false},
    {"lap_square_loss", run_square_loss, sizeof(lap_nn_cuda_square_loss_t), false},
    {"lap_embedding", run_embedding, sizeof(lap_nn_cuda_embedding_t), false},
    {"lap_embedding_backward", run_embedding_backward, sizeof(lap_embedding_backward_t), false},
    {"lap_rope", run_rope, sizeof(lap_nn_cuda_rope_t), false},
    {"lap_dropout", run_dropout, sizeof(lap_nn_cuda_dropout_t), false},
    {"lap_logit_stats", run_logit_stats, sizeof(lap_nn_cuda_cross_entropy_t), false},
    {"lap_cross_entropy", run_cross_entropy, sizeof(lap_nn_cuda_cross_entropy_t), false},
    {"lap_fill_normal", run_fill_normal, sizeof(lap_nn_cuda_fill_normal_t), false},
    {"lap_amax", run_amax, sizeof(lap_nn_cuda_amax_t), false},
    {"lap_fp8_scales", run_fp8_scales, sizeof(lap_fp8_scales_t), false},
    {"lap_sum_squares", run_sum_squares, sizeof(lap_nn_cuda_sum_squares_t), false},
    {"lap_total", run_total, sizeof(lap_total_t), false},
    {"lap_clip", run_clip, sizeof(lap_clip_t), false},
    {"lap_update", run_update, sizeof(lap_nn_cuda_update_t), false},
    {NULL, NULL, 0, false},
};
