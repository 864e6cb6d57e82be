/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a host does for language models: embeddings, rotary positions, cross-entropy. Row after row,
 * in tiles that are widened on the stack.
 */
#include <math.h>
#include <string.h>

#include "kernel/host/host.h"

#define TILE LAP_HOST_TILE

static int32_t id_of(const int32_t *ids, size_t row, int col)
{
    return ids[row * LAP_ID_COLS + (size_t)col];
}

/* ---- embeddings ---- */

static void embed_row(const lap_embedding_t *e, size_t row)
{
    const size_t token = (size_t)id_of(e->ids, row, LAP_ID_TOKEN);
    const bool own = token >= e->first && token - e->first < e->count;
    const float *values = own ? e->table + (token - e->first) * e->out.cols : NULL;
    const float *position =
        e->positions ? e->positions + lap_position(e->at, row / e->batch) * e->out.cols : NULL;
    float part[TILE];
    for (size_t begin = 0; begin < e->out.cols; begin += TILE) {
        const size_t count = lap_tile_of(e->out.cols, begin);
        for (size_t c = 0; c < count; c++)
            part[c] = own ? values[begin + c] + (position ? position[begin + c] : 0) : 0;
        lap_from_float(e->out.dtype, part, lap_element(&e->out, row, begin), count);
    }
}

void lap_run_embedding(const lap_embedding_t *embedding)
{
    for (size_t row = 0; row < embedding->out.rows; row++)
        embed_row(embedding, row);
}

/* The row at place i of the list that is ordered by tokens, and the row of the gradient it is for. */
static size_t row_at(const lap_embedding_backward_t *e, size_t i)
{
    return e->ids ? (size_t)id_of(e->ids, i, LAP_ID_BY_TOKEN) : i;
}

static size_t number_at(const lap_embedding_backward_t *e, size_t i)
{
    return e->ids ? (size_t)id_of(e->ids, row_at(e, i), LAP_ID_TOKEN)
                  : lap_position(e->at, i / e->batch);
}

/* Places [begin, end) of the list have one number. */
static void add_rows(const lap_embedding_backward_t *e, size_t begin, size_t end, float *grad)
{
    float room[TILE];
    for (size_t col = 0; col < e->dy.cols; col += TILE) {
        const size_t count = lap_tile_of(e->dy.cols, col);
        double sums[TILE] = {0};
        for (size_t i = begin; i < end; i++) {
            const float *dy = lap_floats_of(&e->dy, row_at(e, i), col, room, count);
            for (size_t c = 0; c < count; c++)
                sums[c] += (double)dy[c];
        }
        for (size_t c = 0; c < count; c++)
            grad[col + c] =
                (float)((double)e->beta * (double)grad[col + c] + (double)e->alpha * sums[c]);
    }
}

void lap_run_embedding_backward(const lap_embedding_backward_t *e)
{
    if (e->beta == 0)
        memset(e->grad, 0, e->count * e->dy.cols * sizeof(float));
    for (size_t begin = 0, end; begin < e->dy.rows; begin = end) {
        const size_t number = number_at(e, begin);
        for (end = begin + 1; end < e->dy.rows && number_at(e, end) == number;)
            end++;
        if (number >= e->first && number - e->first < e->count)
            add_rows(e, begin, end, e->grad + (number - e->first) * e->dy.cols);
    }
}

/* ---- rotary positions ---- */

static void rotate(const lap_rope_t *rope, size_t row, size_t head, const float *angles)
{
    const size_t half = rope->dim / 2, col = head * rope->dim;
    const float sign = rope->backward ? -1.0f : 1.0f;
    float a_room[TILE], b_room[TILE], turned[TILE], other[TILE];
    for (size_t begin = 0; begin < half; begin += TILE) {
        const size_t count = lap_tile_of(half, begin);
        const float *a = lap_floats_of(&rope->x, row, col + begin, a_room, count);
        const float *b = lap_floats_of(&rope->x, row, col + half + begin, b_room, count);
        for (size_t c = 0; c < count; c++) {
            const float cosine = angles[begin + c], sine = sign * angles[half + begin + c];
            turned[c] = a[c] * cosine - b[c] * sine;
            other[c] = b[c] * cosine + a[c] * sine;
        }
        lap_from_float(rope->x.dtype, turned, lap_element(&rope->x, row, col + begin), count);
        lap_from_float(rope->x.dtype, other, lap_element(&rope->x, row, col + half + begin), count);
    }
}

void lap_run_rope(const lap_rope_t *rope)
{
    for (size_t row = 0; row < rope->x.rows; row++)
        for (size_t head = 0; head < rope->heads; head++)
            rotate(rope, row, head,
                   rope->table + lap_position(rope->at, row / rope->batch) * rope->dim);
}

/* ---- dropout ---- */

static void drop_row(const lap_dropout_t *d, size_t i)
{
    const size_t row = d->first_row + i;
    const size_t position = lap_position(d->at, row / d->batch);
    const int32_t sample = lap_mask_sample(&d->mask, row % d->batch);
    float x_room[TILE], skip_room[TILE], result[TILE];
    for (size_t begin = 0; begin < d->x.cols; begin += TILE) {
        const size_t count = lap_tile_of(d->x.cols, begin);
        const float *x = lap_floats_of(&d->x, i, begin, x_room, count);
        lap_u32x4_t words = {{0}};
        for (size_t c = 0; c < count; c++) {
            if (sample >= 0 && c % 4 == 0) /* tiles begin at multiples of 4 */
                words = lap_mask_words(&d->mask, sample, position, d->x.cols, begin + c);
            result[c] = sample >= 0 ? x[c] * lap_mask_factor(&d->mask, words.word[c % 4]) : x[c];
        }
        if (d->skip.data) {
            const float *skip = lap_floats_of(&d->skip, i, begin, skip_room, count);
            for (size_t c = 0; c < count; c++)
                result[c] += skip[c];
        }
        lap_from_float(d->out.dtype, result, lap_element(&d->out, i, begin), count);
    }
}

void lap_run_dropout(const lap_dropout_t *dropout)
{
    for (size_t i = 0; i < dropout->x.rows; i++)
        drop_row(dropout, i);
}

/* ---- cross-entropy ---- */

static float largest(const lap_cross_entropy_t *e, size_t row)
{
    float room[TILE], most = -INFINITY;
    for (size_t begin = 0; begin < e->cols; begin += TILE) {
        const size_t count = lap_tile_of(e->cols, begin);
        const float *x = lap_floats_of(&e->logits, row, begin, room, count);
        for (size_t c = 0; c < count; c++)
            most = x[c] > most || isnan(x[c]) ? x[c] : most;
    }
    return most;
}

static double sum_exponentials(const lap_cross_entropy_t *e, size_t row, float most)
{
    float room[TILE];
    double sum = 0;
    for (size_t begin = 0; begin < e->cols; begin += TILE) {
        const size_t count = lap_tile_of(e->cols, begin);
        const float *x = lap_floats_of(&e->logits, row, begin, room, count);
        for (size_t c = 0; c < count; c++)
            sum += (double)expf(x[c] - most);
    }
    return sum;
}

/* The column of a row's target here; `cols` if another rank has it, or there is none. */
static size_t target_of(const lap_cross_entropy_t *e, size_t row)
{
    const int32_t target = id_of(e->ids, row, LAP_ID_TARGET);
    const bool own = target >= 0 && (size_t)target >= e->first;
    return own && (size_t)target - e->first < e->cols ? (size_t)target - e->first : e->cols;
}

void lap_run_logit_stats(const lap_cross_entropy_t *e)
{
    for (size_t i = 0; i < e->logits.rows; i++) {
        const size_t target = target_of(e, i);
        float *stats = e->stats + i * LAP_LOGIT_STATS;
        stats[LAP_LOGIT_MOST] = largest(e, i);
        stats[LAP_LOGIT_SUM] = (float)sum_exponentials(e, i, stats[LAP_LOGIT_MOST]);
        stats[LAP_LOGIT_TARGET] = 0;
        if (target < e->cols)
            lap_to_float(e->logits.dtype, lap_element(&e->logits, i, target),
                         &stats[LAP_LOGIT_TARGET], 1);
    }
}

/* The largest logit of a row, the logarithm of the sum, and the loss, from all ranks' numbers. */
static double join_stats(const lap_cross_entropy_t *e, size_t row, float *most_p, double *sum_p)
{
    const size_t step = e->logits.rows * LAP_LOGIT_STATS;
    const float *stats = e->stats + row * LAP_LOGIT_STATS;
    float most = stats[LAP_LOGIT_MOST];
    for (size_t r = 1; r < e->ranks; r++) {
        const float own = stats[r * step + LAP_LOGIT_MOST];
        most = own > most || isnan(own) ? own : most;
    }
    double sum = (double)stats[LAP_LOGIT_SUM] * (double)expf(stats[LAP_LOGIT_MOST] - most);
    double target = (double)stats[LAP_LOGIT_TARGET];
    for (size_t r = 1; r < e->ranks; r++) {
        const float *own = stats + r * step;
        sum += (double)own[LAP_LOGIT_SUM] * (double)expf(own[LAP_LOGIT_MOST] - most);
        target += (double)own[LAP_LOGIT_TARGET];
    }
    *most_p = most;
    *sum_p = sum;
    return log(sum) + (double)most - target;
}

/* Turns the logits of a row into their gradients: (probability - 1 at the target) times scale. */
static void turn_row(const lap_cross_entropy_t *e, size_t row, float most, float factor)
{
    const size_t target = target_of(e, row);
    float room[TILE], part[TILE];
    for (size_t begin = 0; begin < e->cols; begin += TILE) {
        const size_t count = lap_tile_of(e->cols, begin);
        const float *x = lap_floats_of(&e->logits, row, begin, room, count);
        for (size_t c = 0; c < count; c++)
            part[c] = factor == 0 ? 0 : expf(x[c] - most) * factor;
        if (target >= begin && target - begin < count)
            part[target - begin] -= *e->scale;
        lap_from_float(e->logits.dtype, part, lap_element(&e->logits, row, begin), count);
    }
}

void lap_run_cross_entropy(const lap_cross_entropy_t *e)
{
    double total = 0;
    for (size_t row = 0; row < e->logits.rows; row++) {
        float most = 0;
        double sum = 1, loss = 0;
        const bool counts = id_of(e->ids, row, LAP_ID_TARGET) >= 0;
        if (counts)
            loss = join_stats(e, row, &most, &sum);
        total += loss;
        turn_row(e, row, most, counts ? (float)((double)*e->scale / sum) : 0);
    }
    *e->sum = total;
}
