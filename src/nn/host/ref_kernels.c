/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of the reference device. Attention is plain loops in double over one query at a time,
 * rounded once; the scores of a query are kept, those of the others are not.
 */
#include <math.h>
#include <string.h>

#include "core/convert.h"
#include "nn/host/host.h"

/* Scratch: one sequence of a head of each matrix in double, and the scores of a query. */
typedef struct head {
    double *q, *k, *v, *dout, *dk, *dv; /* [seq, dim] */
    double *p, *dp;                     /* [seq] */
    double *row;                        /* [dim] */
} head_t;

static size_t ref_attention_scratch(const lap_attention_t *attention)
{
    const size_t matrix = attention->seq * attention->dim;
    return (6 * matrix + 2 * attention->seq + attention->dim) * sizeof(double);
}

static head_t cut(const lap_attention_t *attention)
{
    const size_t matrix = attention->seq * attention->dim;
    double *all = attention->scratch, *scores = all + 6 * matrix;
    return (head_t){all,
                    all + matrix,
                    all + 2 * matrix,
                    all + 3 * matrix,
                    all + 4 * matrix,
                    all + 5 * matrix,
                    scores,
                    scores + attention->seq,
                    scores + 2 * attention->seq};
}

static void widen(const lap_attention_t *attention, const void *matrix, size_t stride, size_t b,
                  size_t col, double *out)
{
    for (size_t s = 0; s < attention->seq; s++) {
        const char *row = lap_head_of(attention, matrix, stride, s, b, col);
        for (size_t c = 0; c < attention->dim; c++) {
            float value;
            lap_to_float(attention->dtype, row + c * lap_dtype_size(attention->dtype), &value, 1);
            out[s * attention->dim + c] = (double)value;
        }
    }
}

static void narrow(const lap_attention_t *attention, void *matrix, size_t stride, size_t b,
                   size_t col, const double *values)
{
    for (size_t s = 0; s < attention->seq; s++)
        lap_from_double(attention->dtype, values + s * attention->dim,
                        lap_head_of(attention, matrix, stride, s, b, col), attention->dim);
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

/* The scores of query `i`, as p[j] for j <= i; returns the logarithm of the sum of their e^. */
static double score(const lap_attention_t *a, const head_t *head, size_t i)
{
    double most = -INFINITY, sum = 0;
    for (size_t j = 0; j <= i; j++) {
        head->p[j] = (double)a->scale * dot(head->q + i * a->dim, head->k + j * a->dim, a->dim);
        most = fmax(most, head->p[j]);
    }
    for (size_t j = 0; j <= i; j++)
        sum += exp(head->p[j] - most);
    return most + log(sum);
}

static void load(const lap_attention_t *a, const head_t *head, size_t b, size_t query)
{
    const size_t kv = query / (a->heads / a->kv_heads);
    widen(a, a->qkv, a->qkv_stride, b, lap_query_col(a, query), head->q);
    widen(a, a->qkv, a->qkv_stride, b, lap_key_col(a, kv), head->k);
    widen(a, a->qkv, a->qkv_stride, b, lap_value_col(a, kv), head->v);
}

/* What the mask multiplies the probability of key j for query i with. */
static double mask(const lap_attention_t *a, size_t b, size_t query, size_t i, size_t j)
{
    return (double)lap_mask_at(&a->mask, lap_mask_sample(&a->mask, b),
                               (a->first_head + query) * a->seq + i, a->seq, j);
}

static void attend(const lap_attention_t *a, size_t b, size_t query)
{
    const head_t head = cut(a);
    load(a, &head, b, query);
    for (size_t i = 0; i < a->seq; i++) {
        const double lse = score(a, &head, i);
        memset(head.row, 0, a->dim * sizeof(double));
        for (size_t j = 0; j <= i; j++)
            add(head.row, mask(a, b, query, i, j) * exp(head.p[j] - lse), head.v + j * a->dim,
                a->dim);
        a->lse[(query * a->batch + b) * a->seq + i] = (float)lse;
        lap_from_double(a->dtype, head.row,
                        lap_head_of(a, a->out, a->out_stride, i, b, lap_query_col(a, query)),
                        a->dim);
    }
}

/* Query `i`: its gradient, and what it adds to those of the keys and values. */
static void turn_query(const lap_attention_t *a, const head_t *head, size_t b, size_t query,
                       size_t i)
{
    const double *q = head->q + i * a->dim, *dout = head->dout + i * a->dim;
    const double lse = score(a, head, i);
    double mean = 0; /* of dp, weighted with p */
    for (size_t j = 0; j <= i; j++) {
        head->p[j] = exp(head->p[j] - lse);
        head->dp[j] = mask(a, b, query, i, j) * dot(dout, head->v + j * a->dim, a->dim);
        mean += head->p[j] * head->dp[j];
    }
    memset(head->row, 0, a->dim * sizeof(double));
    for (size_t j = 0; j <= i; j++) {
        const double ds = (double)a->scale * head->p[j] * (head->dp[j] - mean);
        add(head->row, ds, head->k + j * a->dim, a->dim);
        add(head->dk + j * a->dim, ds, q, a->dim);
        add(head->dv + j * a->dim, mask(a, b, query, i, j) * head->p[j], dout, a->dim);
    }
}

/* All query heads that use one key and value head. */
static void turn(const lap_attention_t *a, size_t b, size_t kv)
{
    const head_t head = cut(a);
    const size_t group = a->heads / a->kv_heads, matrix = a->seq * a->dim;
    memset(head.dk, 0, matrix * sizeof(double));
    memset(head.dv, 0, matrix * sizeof(double));
    for (size_t query = kv * group; query < (kv + 1) * group; query++) {
        const size_t col = lap_query_col(a, query);
        load(a, &head, b, query);
        widen(a, a->dout, a->out_stride, b, col, head.dout);
        for (size_t i = 0; i < a->seq; i++) {
            turn_query(a, &head, b, query, i);
            lap_from_double(a->dtype, head.row, lap_head_of(a, a->dqkv, a->qkv_stride, i, b, col),
                            a->dim);
        }
    }
    narrow(a, a->dqkv, a->qkv_stride, b, lap_key_col(a, kv), head.dk);
    narrow(a, a->dqkv, a->qkv_stride, b, lap_value_col(a, kv), head.dv);
}

static lap_status_t ref_attention_forward(lap_stream_t *stream, const lap_attention_t *attention)
{
    return lap_host_attention(stream, attention, attention->heads, attend);
}

static lap_status_t ref_attention_backward(lap_stream_t *stream, const lap_attention_t *attention)
{
    return lap_host_attention(stream, attention, attention->kv_heads, turn);
}

const lap_nn_kernels_t lap_nn_ref_kernels = {
    .device = "ref",
    LAP_NN_HOST_SLOTS,
    LAP_NN_HOST_TOKEN_SLOTS,
    .attention_scratch = ref_attention_scratch,
    .attention_forward = ref_attention_forward,
    .attention_backward = ref_attention_backward,
};
