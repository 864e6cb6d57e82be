/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of the reference device. Attention is plain loops in double over one query at a time,
 * rounded once; the scores of a query are stored, those of the others are not.
 */
#include <math.h>
#include <string.h>

#include "core/convert.h"
#include "kernel/host/host.h"

/* Scratch: one sequence of a head of each matrix in double, and the scores of a query. */
typedef struct head {
    double *q, *dout, *dq;   /* [seq, dim] */
    double *k, *v, *dk, *dv; /* [keys, dim] */
    double *p, *dp;          /* [keys] */
    double *row;             /* [dim] */
} head_t;

static size_t keys_of(const lap_attention_t *a)
{
    return a->keys > 0 ? a->keys : a->seq;
}

static size_t ref_attention_scratch(const lap_attention_t *a)
{
    const size_t keys = keys_of(a);
    return (3 * a->seq * a->dim + 4 * keys * a->dim + 2 * keys + a->dim) * sizeof(double);
}

static head_t cut(const lap_attention_t *a)
{
    const size_t queries = a->seq * a->dim, keys = a->keys * a->dim;
    double *all = a->scratch, *k = all + 3 * queries, *scores = k + 4 * keys;
    return (head_t){
        .q = all,
        .dout = all + queries,
        .dq = all + 2 * queries,
        .k = k,
        .v = k + keys,
        .dk = k + 2 * keys,
        .dv = k + 3 * keys,
        .p = scores,
        .dp = scores + a->keys,
        .row = scores + 2 * a->keys,
    };
}

static void widen_row(const lap_attention_t *a, lap_dtype_t dtype, const char *row, double *out)
{
    for (size_t c = 0; c < a->dim; c++) {
        float value;
        lap_to_float(dtype, row + c * lap_dtype_size(dtype), &value, 1);
        out[c] = (double)value;
    }
}

static void widen(const lap_attention_t *a, lap_dtype_t dtype, const void *matrix, size_t stride,
                  size_t rows, size_t b, size_t head, double *out)
{
    for (size_t s = 0; s < rows; s++)
        widen_row(a, dtype, lap_head_of(a, dtype, matrix, stride, s, b, head), out + s * a->dim);
}

static void narrow(const lap_attention_t *a, void *matrix, size_t stride, size_t rows, size_t b,
                   size_t head, const double *values)
{
    for (size_t s = 0; s < rows; s++)
        lap_from_double(a->sum_dtype, values + s * a->dim,
                        lap_head_of(a, a->sum_dtype, matrix, stride, s, b, head), a->dim);
}

static double dot(const double *x, const double *y, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += x[i] * y[i];
    return sum;
}

static void add(double *x, double factor, const double *y, size_t count)
{
    for (size_t i = 0; i < count; i++)
        x[i] += factor * y[i];
}

/*
 * The scores of query `i`, as p[j] for the keys that it sees; returns the logarithm of the sum of
 * their e^.
 */
static double score(const lap_attention_t *a, const head_t *head, size_t i)
{
    const size_t seen = lap_keys_seen(a, i);
    double most = -INFINITY, sum = 0;
    for (size_t j = 0; j < seen; j++) {
        head->p[j] = (double)a->scale * dot(head->q + i * a->dim, head->k + j * a->dim, a->dim);
        most = fmax(most, head->p[j]);
    }
    for (size_t j = 0; j < seen; j++)
        sum += exp(head->p[j] - most);
    return seen == 0 ? -INFINITY : most + log(sum);
}

static void load(const lap_attention_t *a, const head_t *head, size_t b, size_t query)
{
    const size_t kv = query / (a->heads / a->kv_heads);
    widen(a, a->dtype, a->qkv, a->qkv_stride, a->seq, b, query, head->q);
    widen(a, a->dtype, a->kv, a->kv_stride, a->keys, b, kv, head->k);
    widen(a, a->dtype, a->kv, a->kv_stride, a->keys, b, a->kv_heads + kv, head->v);
}

/* Of two logarithms of sums, that of the sum of both. */
static double both(double x, double y)
{
    const double most = fmax(x, y);
    return isinf(most) ? most : most + log(exp(x - most) + exp(y - most));
}

/* What the mask multiplies the probability of key j for query i with. */
static double mask(const lap_attention_t *a, size_t b, size_t query, size_t i, size_t j)
{
    return (double)lap_mask_at(&a->mask, lap_mask_sample(&a->mask, b), lap_mask_row(a, query, i),
                               a->mask_seq, lap_position(a->keys_at, j));
}

static void attend(const lap_attention_t *a, size_t b, size_t query)
{
    const head_t head = cut(a);
    float *lse = a->lse + (query * a->batch + b) * a->seq;
    load(a, &head, b, query);
    if (a->merges) /* what is there is where gradients are in backward */
        widen(a, a->sum_dtype, a->out, a->out_stride, a->seq, b, query, head.dq);
    for (size_t i = 0; i < a->seq; i++) {
        const size_t seen = lap_keys_seen(a, i);
        const double before = a->merges ? (double)lse[i] : -INFINITY;
        const double all = both(before, score(a, &head, i));
        memset(head.row, 0, a->dim * sizeof(double));
        if (a->merges && !isinf(before))
            add(head.row, exp(before - all), head.dq + i * a->dim, a->dim);
        for (size_t j = 0; j < seen; j++)
            add(head.row, mask(a, b, query, i, j) * exp(head.p[j] - all), head.v + j * a->dim,
                a->dim);
        lse[i] = (float)all;
        lap_from_double(a->sum_dtype, head.row,
                        lap_head_of(a, a->sum_dtype, a->out, a->out_stride, i, b, query), a->dim);
    }
}

/*
 * Query `i`: its gradient, and what it adds to those of the keys and values. The mean of dp, weighted
 * with p, is over all keys: dout out, where these are not all.
 */
static void turn_query(const lap_attention_t *a, const head_t *head, size_t b, size_t query,
                       size_t i, double lse, const double *out)
{
    const size_t seen = lap_keys_seen(a, i);
    const double *q = head->q + i * a->dim, *dout = head->dout + i * a->dim;
    double *dq = head->dq + i * a->dim;
    const double own = score(a, head, i);
    double mean = 0;
    for (size_t j = 0; j < seen; j++) {
        head->p[j] = exp(head->p[j] - (out ? lse : own));
        head->dp[j] = mask(a, b, query, i, j) * dot(dout, head->v + j * a->dim, a->dim);
        mean += head->p[j] * head->dp[j];
    }
    mean = out ? dot(dout, out, a->dim) : mean;
    for (size_t j = 0; j < seen; j++) {
        const double ds = (double)a->scale * head->p[j] * (head->dp[j] - mean);
        add(dq, ds, head->k + j * a->dim, a->dim);
        add(head->dk + j * a->dim, ds, q, a->dim);
        add(head->dv + j * a->dim, mask(a, b, query, i, j) * head->p[j], dout, a->dim);
    }
}

/* All query heads that use one key and value head. */
static void turn(const lap_attention_t *a, size_t b, size_t kv)
{
    const head_t head = cut(a);
    const size_t group = a->heads / a->kv_heads;
    memset(head.dk, 0, a->keys * a->dim * sizeof(double));
    memset(head.dv, 0, a->keys * a->dim * sizeof(double));
    for (size_t query = kv * group; query < (kv + 1) * group; query++) {
        load(a, &head, b, query);
        widen(a, a->dtype, a->dout, a->out_stride, a->seq, b, query, head.dout);
        memset(head.dq, 0, a->seq * a->dim * sizeof(double));
        if (a->merges)
            widen(a, a->sum_dtype, a->dqkv, a->dq_stride, a->seq, b, query, head.dq);
        for (size_t i = 0; i < a->seq; i++) {
            const char *out = lap_head_of(a, a->dtype, a->out, a->out_stride, i, b, query);
            widen_row(a, a->dtype, out, head.row);
            turn_query(a, &head, b, query, i, (double)a->lse[(query * a->batch + b) * a->seq + i],
                       a->whole ? NULL : head.row);
        }
        narrow(a, a->dqkv, a->dq_stride, a->seq, b, query, head.dq);
    }
    narrow(a, a->dkv, a->dkv_stride, a->keys, b, kv, head.dk);
    narrow(a, a->dkv, a->dkv_stride, a->keys, b, a->kv_heads + kv, head.dv);
}

static lap_status_t ref_attention_forward(lap_stream_t *stream, const lap_attention_t *attention)
{
    return lap_host_attention(stream, attention, attention->heads, attend);
}

static lap_status_t ref_attention_backward(lap_stream_t *stream, const lap_attention_t *attention)
{
    return lap_host_attention(stream, attention, attention->kv_heads, turn);
}

const lap_kernels_t lap_ref_kernels = {
    .device = "ref",
    .prepare = lap_host_prepare,
    .norm_scratch = lap_host_norm_scratch,
#define KERNEL(id, slot, args_t, label, reads, writes) .slot = lap_host_##slot,
#define KERNEL_ATTENTION KERNEL_AS
#include "kernel/kernels.def"
    .attention_scratch = ref_attention_scratch,
    .attention_forward = ref_attention_forward,
    .attention_backward = ref_attention_backward,
};
