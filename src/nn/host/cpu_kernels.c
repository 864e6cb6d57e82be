/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of the CPU. Attention multiplies with OpenBLAS, a block of queries at a time, so that
 * the scores of a block stay in the cache; what is to the right of a block's diagonal is never
 * computed. In backward the scores are computed again. float32 is read and written where it is,
 * other types are widened a head at a time.
 */
#include <math.h>
#include <string.h>

#include "core/convert.h"
#include "device/cpu/cpu_blas.h"
#include "nn/host/host.h"

#define BLOCK 128u /* queries at a time */

/* One sequence of one head of a matrix as float: [seq, dim] with a stride in elements. */
typedef struct view {
    float *data;
    blasint stride;
} view_t;

enum { Q, K, V, OUT, DOUT, DQ, DK, DV, VIEWS };

/* Scratch: room for views that are not in place, and the scores of a block and their gradients. */
static size_t cpu_attention_scratch(const lap_attention_t *attention)
{
    const size_t matrix = attention->seq * attention->dim;
    return (VIEWS * matrix + (size_t)2 * BLOCK * attention->seq) * sizeof(float);
}

static float *scores_of(const lap_attention_t *attention, size_t which)
{
    return (float *)attention->scratch + VIEWS * attention->seq * attention->dim +
           which * BLOCK * attention->seq;
}

/* The view of columns from `col` on; `reads`: with the values that are there. */
static view_t open_view(const lap_attention_t *a, int which, const void *matrix, size_t stride,
                        size_t b, size_t col, bool reads)
{
    if (a->dtype == LAP_FLOAT32)
        return (view_t){lap_head_of(a, matrix, stride, 0, b, col), (blasint)(a->batch * stride)};
    view_t view = {(float *)a->scratch + (size_t)which * a->seq * a->dim, (blasint)a->dim};
    for (size_t s = 0; reads && s < a->seq; s++)
        lap_to_float(a->dtype, lap_head_of(a, matrix, stride, s, b, col), view.data + s * a->dim,
                     a->dim);
    return view;
}

/* Stores a view that was written. */
static void close_view(const lap_attention_t *a, view_t view, void *matrix, size_t stride, size_t b,
                       size_t col)
{
    for (size_t s = 0; a->dtype != LAP_FLOAT32 && s < a->seq; s++)
        lap_from_float(a->dtype, view.data + s * a->dim, lap_head_of(a, matrix, stride, s, b, col),
                       a->dim);
}

static float *row_of(view_t view, size_t row)
{
    return view.data + row * (size_t)view.stride;
}

/* d [rows, cols] = alpha x op(y) + beta d; x is [rows, depth]. */
static void multiply(CBLAS_TRANSPOSE x_op, CBLAS_TRANSPOSE y_op, size_t rows, size_t cols,
                     size_t depth, float alpha, view_t x, view_t y, float beta, view_t d)
{
    lap_blas_sgemm(x_op, y_op, (blasint)rows, (blasint)cols, (blasint)depth, alpha, x.data,
                   x.stride, y.data, y.stride, beta, d.data, d.stride);
}

/* Queries [first, first + rows), which see keys [0, keys). */
typedef struct block {
    size_t first, rows, keys;
} block_t;

static block_t block_at(const lap_attention_t *a, size_t first)
{
    const size_t rows = a->seq - first < BLOCK ? a->seq - first : BLOCK;
    return (block_t){first, rows, first + rows};
}

/* The scores of a block: [rows, keys]. */
static view_t score(const lap_attention_t *a, block_t block, view_t q, view_t k)
{
    const view_t scores = {scores_of(a, 0), (blasint)block.keys};
    const view_t rows = {row_of(q, block.first), q.stride};
    multiply(CblasNoTrans, CblasTrans, block.rows, block.keys, a->dim, a->scale, rows, k, 0,
             scores);
    return scores;
}

/* Makes probabilities of scores, those of later keys 0; keeps the logarithm of the sums. */
static void soften(block_t block, view_t scores, float *lse)
{
    for (size_t i = 0; i < block.rows; i++) {
        float *row = row_of(scores, i), most = -INFINITY;
        const size_t seen = block.first + i + 1;
        double sum = 0;
        for (size_t j = 0; j < seen; j++)
            most = row[j] > most ? row[j] : most;
        for (size_t j = 0; j < seen; j++) {
            row[j] = expf(row[j] - most);
            sum += (double)row[j];
        }
        const float inverse = (float)(1 / sum);
        for (size_t j = 0; j < seen; j++)
            row[j] *= inverse;
        memset(row + seen, 0, (block.keys - seen) * sizeof(float));
        lse[block.first + i] = (float)((double)most + log(sum));
    }
}

/* Multiplies what a block has for a head, those of probabilities or their gradients, with its mask. */
static void mask(const lap_attention_t *a, block_t block, view_t matrix, size_t b, size_t query)
{
    const int32_t sample = lap_mask_sample(&a->mask, b);
    for (size_t i = 0; sample >= 0 && i < block.rows; i++) {
        const uint64_t row = (a->first_head + query) * a->seq + block.first + i;
        float *values = row_of(matrix, i);
        lap_u32x4_t words = {{0}};
        for (size_t j = 0; j <= block.first + i; j++) {
            if (j % 4 == 0)
                words = lap_mask_words(&a->mask, sample, row, a->seq, j);
            values[j] *= lap_mask_factor(&a->mask, words.word[j % 4]);
        }
    }
}

static void attend(const lap_attention_t *a, size_t b, size_t query)
{
    const size_t kv = query / (a->heads / a->kv_heads), col = lap_query_col(a, query);
    const view_t q = open_view(a, Q, a->qkv, a->qkv_stride, b, col, true);
    const view_t k = open_view(a, K, a->qkv, a->qkv_stride, b, lap_key_col(a, kv), true);
    const view_t v = open_view(a, V, a->qkv, a->qkv_stride, b, lap_value_col(a, kv), true);
    const view_t out = open_view(a, OUT, a->out, a->out_stride, b, col, false);
    for (size_t first = 0; first < a->seq; first += BLOCK) {
        const block_t block = block_at(a, first);
        const view_t p = score(a, block, q, k), rows = {row_of(out, first), out.stride};
        soften(block, p, a->lse + (query * a->batch + b) * a->seq);
        mask(a, block, p, b, query);
        multiply(CblasNoTrans, CblasNoTrans, block.rows, a->dim, block.keys, 1, p, v, 0, rows);
    }
    close_view(a, out, a->out, a->out_stride, b, col);
}

/*
 * Makes probabilities of scores, and of dp, the gradients of probabilities, those of scores:
 * p (dp - the sum of p dp), where that sum is dout out.
 */
static void turn_scores(const lap_attention_t *a, block_t block, view_t p, view_t dp,
                        const float *lse, view_t out, view_t dout)
{
    for (size_t i = 0; i < block.rows; i++) {
        const float *o = row_of(out, block.first + i), *d = row_of(dout, block.first + i);
        const size_t seen = block.first + i + 1;
        float *p_row = row_of(p, i), *dp_row = row_of(dp, i);
        double sum = 0;
        for (size_t c = 0; c < a->dim; c++)
            sum += (double)o[c] * (double)d[c];
        for (size_t j = 0; j < seen; j++) {
            p_row[j] = expf(p_row[j] - lse[block.first + i]);
            dp_row[j] = p_row[j] * (dp_row[j] - (float)sum);
        }
        memset(p_row + seen, 0, (block.keys - seen) * sizeof(float));
        memset(dp_row + seen, 0, (block.keys - seen) * sizeof(float));
    }
}

/* The views of one head in backward. */
typedef struct head {
    view_t views[VIEWS];
} head_t;

static void turn_block(const lap_attention_t *a, const head_t *head, block_t block, size_t b,
                       size_t query)
{
    const float *lse = a->lse + (query * a->batch + b) * a->seq;
    const view_t *v = head->views;
    const view_t q = {row_of(v[Q], block.first), v[Q].stride};
    const view_t dq = {row_of(v[DQ], block.first), v[DQ].stride};
    const view_t dout = {row_of(v[DOUT], block.first), v[DOUT].stride};
    const view_t p = score(a, block, v[Q], v[K]), dp = {scores_of(a, 1), (blasint)block.keys};
    multiply(CblasNoTrans, CblasTrans, block.rows, block.keys, a->dim, 1, dout, v[V], 0, dp);
    mask(a, block, dp, b, query);
    turn_scores(a, block, p, dp, lse, v[OUT], v[DOUT]);
    mask(a, block, p, b, query);
    multiply(CblasTrans, CblasNoTrans, block.keys, a->dim, block.rows, 1, p, dout, 1, v[DV]);
    multiply(CblasNoTrans, CblasNoTrans, block.rows, a->dim, block.keys, a->scale, dp, v[K], 0, dq);
    multiply(CblasTrans, CblasNoTrans, block.keys, a->dim, block.rows, a->scale, dp, q, 1, v[DK]);
}

static void clear(const lap_attention_t *a, view_t view)
{
    for (size_t s = 0; s < a->seq; s++)
        memset(row_of(view, s), 0, a->dim * sizeof(float));
}

/* All query heads that use one key and value head. */
static void turn(const lap_attention_t *a, size_t b, size_t kv)
{
    const size_t group = a->heads / a->kv_heads, k_col = lap_key_col(a, kv);
    const size_t v_col = lap_value_col(a, kv);
    head_t head;
    view_t *v = head.views;
    v[K] = open_view(a, K, a->qkv, a->qkv_stride, b, k_col, true);
    v[V] = open_view(a, V, a->qkv, a->qkv_stride, b, v_col, true);
    v[DK] = open_view(a, DK, a->dqkv, a->qkv_stride, b, k_col, false);
    v[DV] = open_view(a, DV, a->dqkv, a->qkv_stride, b, v_col, false);
    clear(a, v[DK]);
    clear(a, v[DV]);
    for (size_t query = kv * group; query < (kv + 1) * group; query++) {
        const size_t col = lap_query_col(a, query);
        v[Q] = open_view(a, Q, a->qkv, a->qkv_stride, b, col, true);
        v[OUT] = open_view(a, OUT, a->out, a->out_stride, b, col, true);
        v[DOUT] = open_view(a, DOUT, a->dout, a->out_stride, b, col, true);
        v[DQ] = open_view(a, DQ, a->dqkv, a->qkv_stride, b, col, false);
        for (size_t first = 0; first < a->seq; first += BLOCK)
            turn_block(a, &head, block_at(a, first), b, query);
        close_view(a, v[DQ], a->dqkv, a->qkv_stride, b, col);
    }
    close_view(a, v[DK], a->dqkv, a->qkv_stride, b, k_col);
    close_view(a, v[DV], a->dqkv, a->qkv_stride, b, v_col);
}

static lap_status_t cpu_attention_forward(lap_stream_t *stream, const lap_attention_t *attention)
{
    return lap_host_attention(stream, attention, attention->heads, attend);
}

static lap_status_t cpu_attention_backward(lap_stream_t *stream, const lap_attention_t *attention)
{
    return lap_host_attention(stream, attention, attention->kv_heads, turn);
}

const lap_nn_kernels_t lap_nn_cpu_kernels = {
    .device = "cpu",
    LAP_NN_HOST_SLOTS,
    LAP_NN_HOST_TOKEN_SLOTS,
    .attention_scratch = cpu_attention_scratch,
    .attention_forward = cpu_attention_forward,
    .attention_backward = cpu_attention_backward,
};
