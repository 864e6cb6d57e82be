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
#include "kernel/host/host.h"

#define BLOCK 128u /* queries at a time */

/* One sequence of one head of a matrix as float: [tokens, dim] with a stride in elements. */
typedef struct view {
    float *data;
    blasint stride;
} view_t;

enum { Q, OUT, DOUT, DQ, K, V, DK, DV, VIEWS }; /* from K on they have a row for each key */

/* A head of a matrix. */
typedef struct matrix {
    lap_dtype_t dtype;
    const void *data;
    size_t stride, head;
} matrix_t;

static size_t keys_of(const lap_attention_t *a)
{
    return a->keys > 0 ? a->keys : a->seq;
}

/* Where the room of a view begins in scratch memory; that of scores is after all views. */
static size_t room_of(const lap_attention_t *a, int which)
{
    const size_t queries = which < K ? (size_t)which : K;
    return (queries * a->seq + ((size_t)which - queries) * keys_of(a)) * a->dim;
}

/* Scratch: room for views that are not in place, and the scores of a block and their gradients. */
static size_t cpu_attention_scratch(const lap_attention_t *attention)
{
    return (room_of(attention, VIEWS) + (size_t)2 * BLOCK * keys_of(attention)) * sizeof(float);
}

static float *scores_of(const lap_attention_t *a, size_t which)
{
    return (float *)a->scratch + room_of(a, VIEWS) + which * BLOCK * a->keys;
}

static size_t rows_of(const lap_attention_t *a, int which)
{
    return which < K ? a->seq : a->keys;
}

static void *head_at(const lap_attention_t *a, matrix_t matrix, size_t s, size_t b)
{
    return lap_head_of(a, matrix.dtype, matrix.data, matrix.stride, s, b, matrix.head);
}

/* The view of a head of a matrix; `reads`: with the values that are there. */
static view_t open_view(const lap_attention_t *a, int which, matrix_t matrix, size_t b, bool reads)
{
    if (matrix.dtype == LAP_FLOAT32)
        return (view_t){head_at(a, matrix, 0, b), (blasint)(a->batch * matrix.stride)};
    view_t view = {(float *)a->scratch + room_of(a, which), (blasint)a->dim};
    for (size_t s = 0; reads && s < rows_of(a, which); s++)
        lap_to_float(matrix.dtype, head_at(a, matrix, s, b), view.data + s * a->dim, a->dim);
    return view;
}

/* Stores a view that was written. */
static void close_view(const lap_attention_t *a, int which, view_t view, matrix_t matrix, size_t b)
{
    for (size_t s = 0; matrix.dtype != LAP_FLOAT32 && s < rows_of(a, which); s++)
        lap_from_float(matrix.dtype, view.data + s * a->dim, head_at(a, matrix, s, b), a->dim);
}

/* The matrices of attention: those that are read are of its type. */
static matrix_t query_of(const lap_attention_t *a, size_t query)
{
    return (matrix_t){a->dtype, a->qkv, a->qkv_stride, query};
}

static matrix_t key_of(const lap_attention_t *a, size_t head)
{
    return (matrix_t){a->dtype, a->kv, a->kv_stride, head};
}

static matrix_t dkey_of(const lap_attention_t *a, size_t head)
{
    return (matrix_t){a->sum_dtype, a->dkv, a->dkv_stride, head};
}

static float *row_of(view_t view, size_t row)
{
    return view.data + row * (size_t)view.stride;
}

/* d [rows, cols] = alpha x op(y) + beta d; x is [rows, depth]. */
static void multiply(CBLAS_TRANSPOSE x_op, CBLAS_TRANSPOSE y_op, size_t rows, size_t cols,
                     size_t depth, float alpha, view_t x, view_t y, float beta, view_t d)
{
    const lap_blas_gemm_t gemm = {.a_op = x_op,
                                  .b_op = y_op,
                                  .m = (blasint)rows,
                                  .n = (blasint)cols,
                                  .k = (blasint)depth,
                                  .alpha = alpha,
                                  .beta = beta,
                                  .a = x.data,
                                  .b = y.data,
                                  .d = d.data,
                                  .lda = x.stride,
                                  .ldb = y.stride,
                                  .ldd = d.stride};
    lap_blas_sgemm(&gemm);
}

/* Queries [first, first + rows), which see keys [0, keys) at most. */
typedef struct block {
    size_t first, rows, keys;
} block_t;

static block_t block_at(const lap_attention_t *a, size_t first)
{
    const size_t rows = a->seq - first < BLOCK ? a->seq - first : BLOCK;
    return (block_t){first, rows, lap_keys_seen(a, first + rows - 1)};
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

static void scale_row(float *row, float factor, size_t count)
{
    for (size_t i = 0; i < count; i++)
        row[i] *= factor;
}

/*
 * The result so far of a query and that of these keys become one: the larger of two logarithms is
 * taken out of both sums. Returns the share of these keys; that of the others is in *other_p.
 */
static float merge(float *lse, float found, float *other_p)
{
    const float most = *lse > found ? *lse : found;
    const float both = most + log1pf(expf((*lse < found ? *lse : found) - most));
    *other_p = expf(*lse - both);
    *lse = both;
    return expf(found - both);
}

/*
 * Makes probabilities of scores, those of later keys 0; keeps the logarithm of the sums. What is
 * merged is scaled here, on both sides.
 */
static void soften(const lap_attention_t *a, block_t block, view_t scores, view_t out, float *lse)
{
    for (size_t i = 0; i < block.rows; i++) {
        float *row = row_of(scores, i), most = -INFINITY, other;
        const size_t seen = lap_keys_seen(a, block.first + i);
        double sum = 0;
        memset(row + seen, 0, (block.keys - seen) * sizeof(float));
        if (seen == 0) {
            lse[block.first + i] = a->merges ? lse[block.first + i] : -INFINITY;
            continue;
        }
        for (size_t j = 0; j < seen; j++)
            most = row[j] > most ? row[j] : most;
        for (size_t j = 0; j < seen; j++) {
            row[j] = expf(row[j] - most);
            sum += (double)row[j];
        }
        const float found = (float)((double)most + log(sum));
        scale_row(row, (float)(1 / sum), seen);
        if (!a->merges) {
            lse[block.first + i] = found;
            continue;
        }
        scale_row(row, merge(&lse[block.first + i], found, &other), seen);
        scale_row(row_of(out, i), other, a->dim);
    }
}

/* The results of queries that see none of the keys. */
static void leave(const lap_attention_t *a, block_t block, view_t out, float *lse)
{
    for (size_t i = 0; i < block.rows && !a->merges; i++) {
        memset(row_of(out, i), 0, a->dim * sizeof(float));
        lse[block.first + i] = -INFINITY;
    }
}

/* Multiplies what a block has for a head, those of probabilities or their gradients, with its mask. */
static void mask(const lap_attention_t *a, block_t block, view_t matrix, size_t b, size_t query)
{
    const int32_t sample = lap_mask_sample(&a->mask, b);
    for (size_t i = 0; sample >= 0 && i < block.rows; i++) {
        const uint64_t row = lap_mask_row(a, query, block.first + i);
        const size_t seen = lap_keys_seen(a, block.first + i);
        float *values = row_of(matrix, i);
        lap_u32x4_t words = {{0}};
        for (size_t j = 0; j < seen; j++) {
            const size_t key = lap_position(a->keys_at, j);
            if (key % 4 == 0 || j == 0 || j == a->keys_at.split)
                words = lap_mask_words(&a->mask, sample, row, a->mask_seq, key);
            values[j] *= lap_mask_factor(&a->mask, words.word[key % 4]);
        }
    }
}

static void attend(const lap_attention_t *a, size_t b, size_t query)
{
    const size_t kv = query / (a->heads / a->kv_heads);
    const matrix_t result = {a->sum_dtype, a->out, a->out_stride, query};
    const view_t q = open_view(a, Q, query_of(a, query), b, true);
    const view_t k = open_view(a, K, key_of(a, kv), b, true);
    const view_t v = open_view(a, V, key_of(a, a->kv_heads + kv), b, true);
    const view_t out = open_view(a, OUT, result, b, a->merges);
    float *lse = a->lse + (query * a->batch + b) * a->seq;
    for (size_t first = 0; first < a->seq; first += BLOCK) {
        const block_t block = block_at(a, first);
        const view_t rows = {row_of(out, first), out.stride};
        if (block.keys == 0) {
            leave(a, block, rows, lse);
            continue;
        }
        const view_t p = score(a, block, q, k);
        soften(a, block, p, rows, lse);
        mask(a, block, p, b, query);
        multiply(CblasNoTrans, CblasNoTrans, block.rows, a->dim, block.keys, 1, p, v,
                 a->merges ? 1 : 0, rows);
    }
    close_view(a, OUT, out, result, b);
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
        const size_t seen = lap_keys_seen(a, block.first + i);
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

static void clear(const lap_attention_t *a, view_t view, size_t rows)
{
    for (size_t s = 0; s < rows; s++)
        memset(row_of(view, s), 0, a->dim * sizeof(float));
}

static void turn_block(const lap_attention_t *a, const head_t *head, block_t block, size_t b,
                       size_t query)
{
    const float *lse = a->lse + (query * a->batch + b) * a->seq;
    const view_t *v = head->views;
    const view_t q = {row_of(v[Q], block.first), v[Q].stride};
    const view_t dq = {row_of(v[DQ], block.first), v[DQ].stride};
    const view_t dout = {row_of(v[DOUT], block.first), v[DOUT].stride};
    if (block.keys == 0) {
        clear(a, dq, a->merges ? 0 : block.rows);
        return;
    }
    const view_t p = score(a, block, v[Q], v[K]), dp = {scores_of(a, 1), (blasint)block.keys};
    multiply(CblasNoTrans, CblasTrans, block.rows, block.keys, a->dim, 1, dout, v[V], 0, dp);
    mask(a, block, dp, b, query);
    turn_scores(a, block, p, dp, lse, v[OUT], v[DOUT]);
    mask(a, block, p, b, query);
    multiply(CblasTrans, CblasNoTrans, block.keys, a->dim, block.rows, 1, p, dout, 1, v[DV]);
    multiply(CblasNoTrans, CblasNoTrans, block.rows, a->dim, block.keys, a->scale, dp, v[K],
             a->merges ? 1 : 0, dq);
    multiply(CblasTrans, CblasNoTrans, block.keys, a->dim, block.rows, a->scale, dp, q, 1, v[DK]);
}

/* All query heads that use one key and value head. */
static void turn(const lap_attention_t *a, size_t b, size_t kv)
{
    const size_t group = a->heads / a->kv_heads, value = a->kv_heads + kv;
    head_t head;
    view_t *v = head.views;
    v[K] = open_view(a, K, key_of(a, kv), b, true);
    v[V] = open_view(a, V, key_of(a, value), b, true);
    v[DK] = open_view(a, DK, dkey_of(a, kv), b, false);
    v[DV] = open_view(a, DV, dkey_of(a, value), b, false);
    clear(a, v[DK], a->keys);
    clear(a, v[DV], a->keys);
    for (size_t query = kv * group; query < (kv + 1) * group; query++) {
        const matrix_t out = {a->dtype, a->out, a->out_stride, query};
        const matrix_t dout = {a->dtype, a->dout, a->out_stride, query};
        const matrix_t dq = {a->sum_dtype, a->dqkv, a->dq_stride, query};
        v[Q] = open_view(a, Q, query_of(a, query), b, true);
        v[OUT] = open_view(a, OUT, out, b, true);
        v[DOUT] = open_view(a, DOUT, dout, b, true);
        v[DQ] = open_view(a, DQ, dq, b, a->merges);
        for (size_t first = 0; first < a->seq; first += BLOCK)
            turn_block(a, &head, block_at(a, first), b, query);
        close_view(a, DQ, v[DQ], dq, b);
    }
    close_view(a, DK, v[DK], dkey_of(a, kv), b);
    close_view(a, DV, v[DV], dkey_of(a, value), b);
}

static lap_status_t cpu_attention_forward(lap_stream_t *stream, const lap_attention_t *attention)
{
    return lap_host_attention(stream, attention, attention->heads, attend);
}

static lap_status_t cpu_attention_backward(lap_stream_t *stream, const lap_attention_t *attention)
{
    return lap_host_attention(stream, attention, attention->kv_heads, turn);
}

const lap_kernels_t lap_cpu_kernels = {
    .device = "cpu",
    .prepare = lap_host_prepare,
    .norm_scratch = lap_host_norm_scratch,
#define KERNEL(id, slot, args_t, label, reads, writes) .slot = lap_host_##slot,
#define KERNEL_ATTENTION KERNEL_AS
#include "kernel/kernels.def"
    .attention_scratch = cpu_attention_scratch,
    .attention_forward = cpu_attention_forward,
    .attention_backward = cpu_attention_backward,
};
