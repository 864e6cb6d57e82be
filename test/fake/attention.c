/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels of attention do, as loops: see fake.h. The variants for types and numbers of
 * columns differ in speed alone, and so not here.
 */
#include <math.h>
#include <stdlib.h>

#include "core/convert.h"
#include "fake.h"
#include "nn/cuda/attention_kernels.h"

/* One sequence of a head, or of a key or value head, as [count, dim] doubles; the caller frees. */
static double *open_head(const lap_cuda_attention_t *a, lap_dtype_t dtype, const void *matrix,
                         size_t stride, int b, int head, int count)
{
    const size_t dim = (size_t)a->dim;
    double *values = malloc(((size_t)count * dim + 1) * sizeof(double));
    for (size_t s = 0; s < (size_t)count; s++)
        for (size_t c = 0; c < dim; c++)
            values[s * dim + c] = (double)fake_load(dtype, matrix,
                                                    (s * (size_t)a->batch + (size_t)b) * stride +
                                                        (size_t)head * dim + c);
    return values;
}

/* Stores it, times `scale`, and frees it. */
static void close_head(const lap_cuda_attention_t *a, double *values, double scale, void *matrix,
                       size_t stride, int b, int head, int count)
{
    const size_t dim = (size_t)a->dim;
    for (size_t s = 0; s < (size_t)count; s++)
        for (size_t c = 0; c < dim; c++)
            fake_store((lap_dtype_t)a->sum_dtype, matrix,
                       (s * (size_t)a->batch + (size_t)b) * stride + (size_t)head * dim + c,
                       (float)(values[s * dim + c] * scale));
    free(values);
}

/* The queries of a head, or with another number its keys or values, and the rest that it needs. */
typedef struct head {
    double *q, *k, *v, *dout;
    float *lse, *delta;
} head_t;

static head_t take_head(const lap_cuda_attention_t *a, int b, int query)
{
    const int kv = query / (a->heads / a->kv_heads);
    const size_t first = (size_t)(query * a->batch + b) * (size_t)a->seq;
    return (head_t){
        open_head(a, (lap_dtype_t)a->dtype, a->qkv, a->qkv_stride, b, query, a->seq),
        open_head(a, (lap_dtype_t)a->dtype, a->kv, a->kv_stride, b, kv, a->keys),
        open_head(a, (lap_dtype_t)a->dtype, a->kv, a->kv_stride, b, a->kv_heads + kv, a->keys),
        a->dout ? open_head(a, (lap_dtype_t)a->dtype, a->dout, a->out_stride, b, query, a->seq)
                : NULL,
        (float *)fake_at(a->lse) + first,
        a->delta ? (float *)fake_at(a->delta) + first : NULL,
    };
}

static void leave_head(head_t *head)
{
    free(head->q);
    free(head->k);
    free(head->v);
    free(head->dout);
}

static double dot(const lap_cuda_attention_t *a, const double *x, int row_x, const double *y,
                  int row_y)
{
    double sum = 0;
    for (int c = 0; c < a->dim; c++)
        sum += x[row_x * a->dim + c] * y[row_y * a->dim + c];
    return sum;
}

/* Row `row` of sums += factor times row `from` of x. */
static void add(const lap_cuda_attention_t *a, double *sums, int row, double factor,
                const double *x, int from)
{
    for (int c = 0; c < a->dim; c++)
        sums[row * a->dim + c] += factor * x[from * a->dim + c];
}

static double *new_sums(const lap_cuda_attention_t *a, int rows)
{
    return calloc((size_t)rows * (size_t)a->dim + 1, sizeof(double));
}

/* What is there, or zeros. */
static double *take_sums(const lap_cuda_attention_t *a, const void *matrix, size_t stride, int b,
                         int head)
{
    return a->merges ? open_head(a, (lap_dtype_t)a->sum_dtype, matrix, stride, b, head, a->seq)
                     : new_sums(a, a->seq);
}

/* What the mask multiplies the probability of key j for query i with. */
static double mask(const lap_cuda_attention_t *a, int b, int query, int i, int j)
{
    lap_mask_t own = a->mask;
    own.ids = own.ids ? fake_at(own.ids) : NULL;
    const size_t row = (size_t)(a->first_head + query) * (size_t)a->mask_seq;
    return (double)lap_mask_at(&own, lap_mask_sample(&own, (size_t)b),
                               row + lap_position(a->queries_at, (size_t)i), (size_t)a->mask_seq,
                               lap_position(a->keys_at, (size_t)j));
}

static void attend(const lap_cuda_attention_t *a, int b, int query)
{
    head_t head = take_head(a, b, query);
    double *out = take_sums(a, a->out, a->out_stride, b, query);
    double *scores = calloc((size_t)a->keys + 1, sizeof(double));
    for (int i = 0; i < a->seq; i++) {
        const int seen = lap_cuda_keys_seen(a, i);
        double most = a->merges ? (double)head.lse[i] : -INFINITY;
        const double before = most;
        for (int j = 0; j < seen; j++) {
            scores[j] = (double)a->scale * dot(a, head.q, i, head.k, j);
            most = fmax(most, scores[j]);
        }
        if (isinf(most)) {
            head.lse[i] = -INFINITY;
            continue;
        }
        double sum = exp(before - most);
        for (int j = 0; j < seen; j++)
            sum += exp(scores[j] - most);
        const double lse = most + log(sum);
        for (int c = 0; c < a->dim; c++)
            out[i * a->dim + c] *= exp(before - lse);
        for (int j = 0; j < seen; j++)
            add(a, out, i, mask(a, b, query, i, j) * exp(scores[j] - lse), head.v, j);
        head.lse[i] = (float)lse;
    }
    close_head(a, out, 1, a->out, a->out_stride, b, query, a->seq);
    free(scores);
    leave_head(&head);
}

static void run_forward(void *args)
{
    const lap_cuda_attention_t *a = args;
    for (int i = 0; i < a->batch * a->heads; i++)
        attend(a, i / a->heads, i % a->heads);
}

static void run_delta(void *args)
{
    const lap_cuda_attention_t *a = args;
    for (int i = 0; i < a->batch * a->heads; i++) {
        const int b = i / a->heads, query = i % a->heads;
        head_t head = take_head(a, b, query);
        double *out = open_head(a, (lap_dtype_t)a->dtype, a->out, a->out_stride, b, query, a->seq);
        for (int s = 0; s < a->seq; s++)
            head.delta[s] = (float)dot(a, out, s, head.dout, s);
        free(out);
        leave_head(&head);
    }
}

/* The probability of key j for query i, masked, and in *ds_p the gradient of the score. */
static double turn_score(const lap_cuda_attention_t *a, const head_t *head, double factor, int i,
                         int j, double *ds_p)
{
    const double p = exp((double)a->scale * dot(a, head->q, i, head->k, j) - (double)head->lse[i]);
    *ds_p = p * (factor * dot(a, head->dout, i, head->v, j) - (double)head->delta[i]);
    return factor * p;
}

static void run_queries(void *args)
{
    const lap_cuda_attention_t *a = args;
    for (int n = 0; n < a->batch * a->heads; n++) {
        const int b = n / a->heads, query = n % a->heads;
        head_t head = take_head(a, b, query);
        double *dq = take_sums(a, a->dqkv, a->dq_stride, b, query), ds;
        for (int i = 0; i < a->seq; i++)
            for (int j = 0; j < lap_cuda_keys_seen(a, i); j++) {
                turn_score(a, &head, mask(a, b, query, i, j), i, j, &ds);
                add(a, dq, i, ds * (double)a->scale, head.k, j);
            }
        close_head(a, dq, 1, a->dqkv, a->dq_stride, b, query, a->seq);
        leave_head(&head);
    }
}

static void turn_keys(const lap_cuda_attention_t *a, int b, int kv)
{
    const int group = a->heads / a->kv_heads;
    double *dk = new_sums(a, a->keys), *dv = new_sums(a, a->keys), ds;
    for (int query = kv * group; query < (kv + 1) * group; query++) {
        head_t head = take_head(a, b, query);
        for (int i = 0; i < a->seq; i++)
            for (int j = 0; j < lap_cuda_keys_seen(a, i); j++) {
                const double factor = mask(a, b, query, i, j);
                add(a, dv, j, turn_score(a, &head, factor, i, j, &ds), head.dout, i);
                add(a, dk, j, ds, head.q, i);
            }
        leave_head(&head);
    }
    close_head(a, dk, (double)a->scale, a->dkv, a->dkv_stride, b, kv, a->keys);
    close_head(a, dv, 1, a->dkv, a->dkv_stride, b, a->kv_heads + kv, a->keys);
}

static void run_keys(void *args)
{
    const lap_cuda_attention_t *a = args;
    for (int i = 0; i < a->batch * a->kv_heads; i++)
        turn_keys(a, i / a->kv_heads, i % a->kv_heads);
}

#define KERNEL(name, work)                                                                         \
    {                                                                                              \
        name, work, sizeof(lap_cuda_attention_t), false                                            \
    }
#define VARIANTS(name, work)                                                                       \
    KERNEL(name "_f16_64", work), KERNEL(name "_f16_128", work), KERNEL(name "_bf16_64", work),    \
        KERNEL(name "_bf16_128", work)

const fake_kernel_t fake_attention_kernels[] = {
    VARIANTS("lap_attention_forward", run_forward),
    VARIANTS("lap_attention_keys", run_keys),
    VARIANTS("lap_attention_queries", run_queries),
    VARIANTS("lap_attention_forward_blocks", run_forward),
    VARIANTS("lap_attention_keys_blocks", run_keys),
    VARIANTS("lap_attention_queries_blocks", run_queries),
    KERNEL("lap_attention_plain_forward", run_forward),
    KERNEL("lap_attention_plain_keys", run_keys),
    KERNEL("lap_attention_plain_queries", run_queries),
    KERNEL("lap_attention_delta", run_delta),
    {NULL, NULL, 0, false},
};
