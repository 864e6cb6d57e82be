/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of transformer layers on a GPU, a row each: the host's kernel of the same name
 * (src/kernel/host) with the addresses that the memory really has. Variants for types and sizes
 * differ in speed alone, and so not here. What a kernel would read or write in pieces that its
 * memory does not allow is left undone.
 */
#include "device/host/host.h"
#include "fake.h"
#include "kernel/cuda/attention_kernels.h"
#include "kernel/cuda/cuda_args.h"
#include "kernel/host/host.h"

/* In place of those of src/device: a kernel is already in the order of its stream. */
lap_status_t lap_host_stream_call(lap_stream_t *stream, lap_stream_fn_t fn, const void *arg,
                                  size_t bytes)
{
    char copy[LAP_STREAM_ARG_BYTES];
    (void)stream;
    memcpy(copy, arg, bytes);
    return fn(copy);
}

lap_status_t lap_device_check_dtype(const char *what, lap_dtype_t dtype)
{
    (void)what;
    (void)dtype;
    return LAP_OK;
}

/* Makes a pointer of arguments one that the host can follow. */
#define REACH(pointer) ((pointer) = fake_at(pointer))

/* Whether vectors of a matrix can be read, if that is what the kernel does; there may be none. */
static bool fits(uint32_t vector, const lap_tensor_t *matrix)
{
    const uintptr_t bytes = matrix->rows > 1 ? matrix->stride * lap_dtype_size(matrix->dtype) : 0;
    return vector == 1 || ((uintptr_t)matrix->data | bytes) % 16 == 0;
}

static bool floats_fit(uint32_t vector, const float *matrix, size_t cols)
{
    return vector == 1 || ((uintptr_t)matrix | cols * sizeof(float)) % 16 == 0;
}

/* ---- norms ---- */

/* Whether a block can have a row of them in a vector for each thread. */
static bool is_narrow(size_t cols, uint32_t vector)
{
    return vector == LAP_KERNEL_CUDA_VECTOR && cols <= (size_t)LAP_KERNEL_CUDA_NORM * vector;
}

static void run_norm_forward_wide(void *args)
{
    lap_kernel_cuda_norm_forward_t k = *(const lap_kernel_cuda_norm_forward_t *)args;
    lap_norm_forward_t *n = &k.norm;
    if (!fits(k.vector, &n->x) || !fits(k.vector, &n->y))
        return;
    REACH(n->x.data), REACH(n->y.data), REACH(n->gamma), REACH(n->beta), REACH(n->mean),
        REACH(n->rstd);
    n->scratch = malloc(lap_host_norm_scratch(n->x.rows, n->x.cols));
    lap_run_norm_forward(n);
    free(n->scratch);
}

static void run_norm_forward(void *args)
{
    const lap_kernel_cuda_norm_forward_t *k = args;
    if (is_narrow(k->norm.x.cols, k->vector))
        run_norm_forward_wide(args);
}

/* Blocks take parts of the rows, and each leaves its own sums. */
static void run_norm_backward_wide(void *args)
{
    lap_kernel_cuda_norm_backward_t k = *(const lap_kernel_cuda_norm_backward_t *)args;
    lap_norm_backward_t *n = &k.norm;
    if (!fits(k.vector, &n->x) || !fits(k.vector, &n->dy) || !fits(k.vector, &n->skip) ||
        !fits(k.vector, &n->dx))
        return;
    REACH(n->x.data), REACH(n->dy.data), REACH(n->skip.data), REACH(n->dx.data);
    REACH(n->gamma), REACH(n->mean), REACH(n->rstd);
    float *sums = fake_at(n->scratch);
    const lap_norm_backward_t all = *n;
    n->scratch = malloc(lap_host_norm_scratch(n->x.rows, n->x.cols));
    for (size_t part = 0; part < k.parts; part++) {
        const size_t first = all.x.rows * part / k.parts;
        n->x.rows = all.x.rows * (part + 1) / k.parts - first;
        n->x.data = lap_element(&all.x, first, 0);
        n->dy.data = lap_element(&all.dy, first, 0);
        n->skip.data = all.skip.data ? lap_element(&all.skip, first, 0) : NULL;
        n->dx.data = lap_element(&all.dx, first, 0);
        n->mean = all.mean + first;
        n->rstd = all.rstd + first;
        n->dgamma = sums + 2 * part * n->x.cols;
        n->dbeta = n->dgamma + n->x.cols;
        lap_run_norm_backward(n);
    }
    free(n->scratch);
}

static void run_norm_backward(void *args)
{
    const lap_kernel_cuda_norm_backward_t *k = args;
    if (is_narrow(k->norm.x.cols, k->vector))
        run_norm_backward_wide(args);
}

/* ---- elements ---- */

static void run_swiglu_forward(void *args)
{
    lap_kernel_cuda_swiglu_t k = *(const lap_kernel_cuda_swiglu_t *)args;
    lap_swiglu_t *s = &k.swiglu;
    if (!fits(k.span.vector, &s->pre) || !fits(k.span.vector, &s->out))
        return;
    REACH(s->pre.data), REACH(s->out.data);
    lap_run_swiglu_forward(s);
}

static void run_swiglu_backward(void *args)
{
    lap_kernel_cuda_swiglu_backward_t k = *(const lap_kernel_cuda_swiglu_backward_t *)args;
    lap_swiglu_backward_t *s = &k.swiglu;
    if (!fits(k.span.vector, &s->pre) || !fits(k.span.vector, &s->dpre) ||
        !fits(k.span.vector, &s->dout))
        return;
    REACH(s->pre.data), REACH(s->dpre.data), REACH(s->dout.data);
    lap_run_swiglu_backward(s);
}

static void run_square_loss(void *args)
{
    lap_kernel_cuda_square_loss_t k = *(const lap_kernel_cuda_square_loss_t *)args;
    lap_square_loss_t *l = &k.loss;
    if (!fits(k.span.vector, &l->y) || !fits(k.span.vector, &l->target) ||
        !fits(k.span.vector, &l->dy))
        return;
    REACH(l->y.data), REACH(l->target.data), REACH(l->dy.data);
    lap_run_square_loss(l);
}

static void run_fill_normal(void *args)
{
    lap_fill_normal_t fill = ((const lap_kernel_cuda_fill_normal_t *)args)->fill;
    REACH(fill.out.data);
    lap_run_fill_normal(&fill);
}

static void run_amax(void *args)
{
    lap_kernel_cuda_amax_t k = *(const lap_kernel_cuda_amax_t *)args;
    lap_amax_t *a = &k.amax;
    if (!fits(k.span.vector, &a->src))
        return;
    REACH(a->src.data), REACH(a->amax);
    lap_run_amax(a);
}

static void run_fp8_scales(void *args)
{
    lap_fp8_scales_t s = *(const lap_fp8_scales_t *)args;
    REACH(s.found), REACH(s.history), REACH(s.amax), REACH(s.scales);
    lap_run_fp8_scales(&s);
}

/* ---- tokens ---- */

static void run_embedding(void *args)
{
    lap_kernel_cuda_embedding_t k = *(const lap_kernel_cuda_embedding_t *)args;
    lap_embedding_t *e = &k.embedding;
    if (!fits(k.span.vector, &e->out) || !floats_fit(k.span.vector, e->table, e->out.cols) ||
        !floats_fit(k.span.vector, e->positions, e->out.cols))
        return;
    REACH(e->ids), REACH(e->table), REACH(e->positions), REACH(e->out.data);
    lap_run_embedding(e);
}

/* The device sets all to 0 before the kernel, where beta is 0. */
static void run_embedding_backward(void *args)
{
    lap_embedding_backward_t e = *(const lap_embedding_backward_t *)args;
    REACH(e.ids), REACH(e.dy.data), REACH(e.grad);
    e.beta = e.beta == 0 ? 1 : e.beta;
    lap_run_embedding_backward(&e);
}

static void run_rope(void *args)
{
    lap_kernel_cuda_rope_t k = *(const lap_kernel_cuda_rope_t *)args;
    lap_rope_t *r = &k.rope;
    if (!fits(k.span.vector, &r->x) || (k.span.vector > 1 && r->dim / 2 % k.span.vector != 0))
        return;
    REACH(r->x.data), REACH(r->table);
    lap_run_rope(r);
}

static void run_dropout(void *args)
{
    lap_kernel_cuda_dropout_t k = *(const lap_kernel_cuda_dropout_t *)args;
    lap_dropout_t *d = &k.dropout;
    if (!fits(k.span.vector, &d->x) || !fits(k.span.vector, &d->out))
        return;
    REACH(d->x.data), REACH(d->skip.data), REACH(d->out.data), REACH(d->mask.ids);
    lap_run_dropout(d);
}

/* Of both kernels: false where vectors do not fit. */
static bool reach_logits(lap_kernel_cuda_cross_entropy_t *k)
{
    lap_cross_entropy_t *e = &k->entropy;
    const bool does = fits(k->vector, &e->logits);
    REACH(e->logits.data), REACH(e->ids), REACH(e->stats), REACH(e->scale);
    return does;
}

static void run_logit_stats(void *args)
{
    lap_kernel_cuda_cross_entropy_t k = *(const lap_kernel_cuda_cross_entropy_t *)args;
    if (reach_logits(&k))
        lap_run_logit_stats(&k.entropy);
}

static void run_cross_entropy(void *args)
{
    lap_kernel_cuda_cross_entropy_t k = *(const lap_kernel_cuda_cross_entropy_t *)args;
    if (reach_logits(&k))
        lap_run_cross_entropy(&k.entropy);
}

/* ---- optimizers ---- */

static void run_sum_squares(void *args)
{
    lap_kernel_cuda_sum_squares_t k = *(const lap_kernel_cuda_sum_squares_t *)args;
    if (k.aligned && (uintptr_t)k.sum.src % 16 != 0)
        return;
    REACH(k.sum.src), REACH(k.sum.sum);
    lap_run_sum_squares(&k.sum);
}

static void run_total(void *args)
{
    lap_total_t total = *(const lap_total_t *)args;
    REACH(total.src), REACH(total.total);
    lap_run_total(&total);
}

static void run_clip(void *args)
{
    lap_clip_t clip = *(const lap_clip_t *)args;
    REACH(clip.squares), REACH(clip.rates);
    lap_run_clip(&clip);
}

static void run_update(void *args)
{
    lap_kernel_cuda_update_t k = *(const lap_kernel_cuda_update_t *)args;
    lap_update_t *u = &k.update;
    const uintptr_t all =
        (uintptr_t)u->master | (uintptr_t)u->first | (uintptr_t)u->second | (uintptr_t)u->grad;
    if (k.aligned && all % 16 != 0)
        return;
    REACH(u->master), REACH(u->grad), REACH(u->first), REACH(u->second), REACH(u->rates);
    lap_run_update(u);
}

/* ---- attention ---- */

/* As the device ref is given it; the caller frees its scratch. */
static lap_attention_t attention_of(const lap_cuda_attention_t *a)
{
    lap_attention_t host = {
        .dtype = (lap_dtype_t)a->dtype,
        .scale = a->scale,
        .seq = (size_t)a->seq,
        .batch = (size_t)a->batch,
        .heads = (size_t)a->heads,
        .kv_heads = (size_t)a->kv_heads,
        .dim = (size_t)a->dim,
        .qkv_stride = a->qkv_stride,
        .out_stride = a->out_stride,
        .qkv = fake_at(a->qkv),
        .out = fake_at(a->out),
        .lse = fake_at(a->lse),
        .dout = fake_at(a->dout),
        .dqkv = fake_at(a->dqkv),
        .mask = a->mask,
        .first_head = (size_t)a->first_head,
        .mask_seq = (size_t)a->mask_seq,
        .keys = (size_t)a->keys,
        .queries_at = a->queries_at,
        .keys_at = a->keys_at,
        .kv = fake_at(a->kv),
        .dkv = fake_at(a->dkv),
        .kv_stride = a->kv_stride,
        .dq_stride = a->dq_stride,
        .dkv_stride = a->dkv_stride,
        .sum_dtype = (lap_dtype_t)a->sum_dtype,
        .merges = a->merges,
    };
    REACH(host.mask.ids);
    host.scratch = malloc(lap_ref_kernels.attention_scratch(&host));
    return host;
}

static void run_forward(void *args)
{
    lap_attention_t a = attention_of(args);
    lap_ref_kernels.attention_forward(NULL, &a);
    free(a.scratch);
}

/* The sums of dout out over the columns of a head. */
static void sum_columns(const lap_cuda_attention_t *a, float *delta)
{
    for (int head = 0; head < a->heads; head++)
        for (int row = 0; row < a->batch * a->seq; row++) {
            const int b = row / a->seq, s = row % a->seq;
            const size_t at = (size_t)(s * a->batch + b) * a->out_stride + (size_t)(head * a->dim);
            float *sum = &delta[(head * a->batch + b) * a->seq + s];
            *sum = 0;
            for (size_t c = at; c < at + (size_t)a->dim; c++)
                *sum += fake_load(a->dtype, a->out, c) * fake_load(a->dtype, a->dout, c);
        }
}

static void run_delta(void *args)
{
    const lap_cuda_attention_t *a = args;
    sum_columns(a, fake_at(a->delta));
}

/* Whether the sums are there that run_delta makes. */
static bool has_sums(const lap_cuda_attention_t *a)
{
    const size_t bytes = (size_t)(a->heads * a->batch * a->seq) * sizeof(float);
    float *own = malloc(bytes);
    sum_columns(a, own);
    const bool has = memcmp(own, fake_at(a->delta), bytes) == 0;
    free(own);
    return has;
}

/* One of the two results of backward, of which the other one goes nowhere. */
static void run_backward(const lap_cuda_attention_t *args, bool queries)
{
    if (!has_sums(args))
        return;
    lap_attention_t a = attention_of(args);
    const size_t rows = queries ? a.keys : a.seq, stride = queries ? a.dkv_stride : a.dq_stride;
    void *nowhere = calloc(rows * a.batch * stride, lap_dtype_size(a.sum_dtype));
    if (queries)
        a.dkv = nowhere;
    else
        a.dqkv = nowhere;
    lap_ref_kernels.attention_backward(NULL, &a);
    free(nowhere);
    free(a.scratch);
}

static void run_queries(void *args)
{
    run_backward(args, true);
}

static void run_keys(void *args)
{
    run_backward(args, false);
}

#define KERNEL(name, work, args_t)                                                                 \
    {                                                                                              \
        "lap_" name, work, sizeof(args_t), false                                                   \
    }
#define ATTENTION(name, work) KERNEL("attention_" name, work, lap_cuda_attention_t)
#define VARIANTS(name, work)                                                                       \
    ATTENTION(name "_f16_64", work), ATTENTION(name "_f16_128", work),                             \
        ATTENTION(name "_bf16_64", work), ATTENTION(name "_bf16_128", work)

const fake_kernel_t fake_nn_kernels[] = {
    KERNEL("norm_forward", run_norm_forward, lap_kernel_cuda_norm_forward_t),
    KERNEL("norm_backward", run_norm_backward, lap_kernel_cuda_norm_backward_t),
    KERNEL("norm_forward_wide", run_norm_forward_wide, lap_kernel_cuda_norm_forward_t),
    KERNEL("norm_backward_wide", run_norm_backward_wide, lap_kernel_cuda_norm_backward_t),
    KERNEL("swiglu_forward", run_swiglu_forward, lap_kernel_cuda_swiglu_t),
    KERNEL("swiglu_backward", run_swiglu_backward, lap_kernel_cuda_swiglu_backward_t),
    KERNEL("square_loss", run_square_loss, lap_kernel_cuda_square_loss_t),
    KERNEL("embedding", run_embedding, lap_kernel_cuda_embedding_t),
    KERNEL("embedding_backward", run_embedding_backward, lap_embedding_backward_t),
    KERNEL("rope", run_rope, lap_kernel_cuda_rope_t),
    KERNEL("dropout", run_dropout, lap_kernel_cuda_dropout_t),
    KERNEL("logit_stats", run_logit_stats, lap_kernel_cuda_cross_entropy_t),
    KERNEL("cross_entropy", run_cross_entropy, lap_kernel_cuda_cross_entropy_t),
    KERNEL("fill_normal", run_fill_normal, lap_kernel_cuda_fill_normal_t),
    KERNEL("amax", run_amax, lap_kernel_cuda_amax_t),
    KERNEL("fp8_scales", run_fp8_scales, lap_fp8_scales_t),
    KERNEL("sum_squares", run_sum_squares, lap_kernel_cuda_sum_squares_t),
    KERNEL("total", run_total, lap_total_t),
    KERNEL("clip", run_clip, lap_clip_t),
    KERNEL("update", run_update, lap_kernel_cuda_update_t),
    VARIANTS("forward", run_forward),
    VARIANTS("keys", run_keys),
    VARIANTS("queries", run_queries),
    VARIANTS("forward_blocks", run_forward),
    VARIANTS("keys_blocks", run_keys),
    VARIANTS("queries_blocks", run_queries),
    ATTENTION("plain_forward", run_forward),
    ATTENTION("plain_keys", run_keys),
    ATTENTION("plain_queries", run_queries),
    ATTENTION("delta", run_delta),
    {NULL, NULL, 0, false},
};
