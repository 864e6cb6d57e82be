/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention to blocks of keys, on every device: the ranks of a context of 1 to 3, one after the other,
 * attend to the keys of each, and the merged results, and the sums of gradients, are those of loops in
 * double over the whole sequence. Positions are those of halves from either end. With --device NAME
 * only that one; then --exact where it rounds no factor.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/convert.h"
#include "device/each.h"
#include "kernel/kernel.h"
#include "tap.h"

static const lap_kernels_t *kernels;
static bool exact; /* --exact: a fake GPU, which has no tensor cores */

typedef struct problem {
    lap_dtype_t dtype;
    size_t seq, batch, heads, kv_heads, dim, cp;
} problem_t;

/* The whole sequence, [seq, batch, cols] in the order of positions, as doubles. */
typedef struct truth {
    double *q, *k, *v, *dout; /* inputs */
    double *out, *lse, *dq, *dk, *dv;
} truth_t;

static double *zeros(size_t count)
{
    return calloc(count + 1, sizeof(double));
}

static double *fill(const problem_t *p, size_t cols, uint64_t seed)
{
    double *all = zeros(p->seq * p->batch * cols);
    for (size_t i = 0; i < p->seq * p->batch * cols; i++) {
        float x = (float)(tap_random(seed, i) >> 40) / 0x1p23f - 1.0f;
        char bytes[4];
        lap_from_float(p->dtype, &x, bytes, 1);
        lap_to_float(p->dtype, bytes, &x, 1);
        all[i] = (double)x;
    }
    return all;
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

/* Query `i` of a head, against all keys up to it. */
static void attend(const problem_t *p, truth_t *t, size_t b, size_t h, size_t i, double *scores)
{
    const size_t d = p->dim, kv = h / (p->heads / p->kv_heads);
    const size_t q = ((i * p->batch + b) * p->heads + h) * d;
    double most = -INFINITY, sum = 0, mean;
    for (size_t j = 0; j <= i; j++) {
        const size_t k = ((j * p->batch + b) * p->kv_heads + kv) * d;
        scores[j] = dot(t->q + q, t->k + k, d) / sqrt((double)d);
        most = fmax(most, scores[j]);
    }
    for (size_t j = 0; j <= i; j++)
        sum += exp(scores[j] - most);
    const double lse = t->lse[(h * p->batch + b) * p->seq + i] = most + log(sum);
    for (size_t j = 0; j <= i; j++)
        add(t->out + q, exp(scores[j] - lse), t->v + ((j * p->batch + b) * p->kv_heads + kv) * d,
            d);
    mean = dot(t->out + q, t->dout + q, d);
    for (size_t j = 0; j <= i; j++) {
        const size_t k = ((j * p->batch + b) * p->kv_heads + kv) * d;
        const double x = exp(scores[j] - lse);
        const double ds = x * (dot(t->dout + q, t->v + k, d) - mean) / sqrt((double)d);
        add(t->dq + q, ds, t->k + k, d);
        add(t->dk + k, ds, t->q + q, d);
        add(t->dv + k, x, t->dout + q, d);
    }
}

static truth_t find_truth(const problem_t *p, uint64_t seed)
{
    const size_t rows = p->seq * p->batch, q = p->heads * p->dim, k = p->kv_heads * p->dim;
    truth_t t = {fill(p, q, seed),     fill(p, k, seed + 1), fill(p, k, seed + 2),
                 fill(p, q, seed + 3), zeros(rows * q),      zeros(rows * p->heads),
                 zeros(rows * q),      zeros(rows * k),      zeros(rows * k)};
    double *scores = zeros(p->seq);
    for (size_t b = 0; b < p->batch; b++)
        for (size_t h = 0; h < p->heads; h++)
            for (size_t i = 0; i < p->seq; i++)
                attend(p, &t, b, h, i, scores);
    free(scores);
    return t;
}

static void free_truth(truth_t *t)
{
    double *all[] = {t->q, t->k, t->v, t->dout, t->out, t->lse, t->dq, t->dk, t->dv};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
}

/* ---- ranks ---- */

/* Which positions rank r has: a chunk from either end. */
static lap_halves_t halves_of(const problem_t *p, size_t r, size_t *count_p)
{
    lap_halves_t halves = {0, 0, 0};
    for (size_t i = 0; i < p->cp; i++) {
        const size_t count = lap_shard(p->seq, (int)p->cp, (int)i, NULL), early = (count + 1) / 2;
        halves.first += i < r ? early : 0;
        halves.second += early + (i > r ? count - early : 0);
        if (i == r) {
            halves.split = early;
            *count_p = count;
        }
    }
    return halves;
}

/* Memory of the device, and a copy of it here. */
typedef struct both {
    char *here;
    void *there;
    size_t bytes;
} both_t;

static both_t new_both(size_t bytes)
{
    both_t both = {calloc(bytes + 16, 1), NULL, bytes + 16};
    if (ops->alloc(device, both.bytes, &both.there) != LAP_OK)
        tap_ok(false, "%zu bytes of memory", bytes);
    return both;
}

static void free_both(both_t *both)
{
    ops->free(device, both->there);
    free(both->here);
}

static lap_status_t copy(const both_t *both, bool back)
{
    const lap_copy_t go = {back ? both->here : both->there,
                           back ? both->there : both->here,
                           1,
                           both->bytes,
                           both->bytes,
                           both->bytes,
                           0,
                           false};
    LAP_TRY(ops->copy(stream, &go));
    return ops->stream_synchronize(stream);
}

/* Rows of a rank, of columns [first, first + cols) of rows of `width` elements. */
static void take(const problem_t *p, size_t r, const double *all, size_t cols, both_t *to,
                 size_t first, size_t width)
{
    size_t count = 0;
    const lap_halves_t halves = halves_of(p, r, &count);
    for (size_t row = 0; row < count * p->batch; row++)
        for (size_t c = 0; c < cols; c++) {
            const size_t from = lap_position(halves, row / p->batch) * p->batch + row % p->batch;
            const float x = (float)all[from * cols + c];
            lap_from_float(p->dtype, &x,
                           to->here + (row * width + first + c) * lap_dtype_size(p->dtype), 1);
        }
}

/* The largest difference of rows of floats of a rank; `sums` are to be compared later. */
static double worst_of(const problem_t *p, size_t r, const double *all, size_t cols,
                       const float *rows)
{
    size_t count = 0;
    double most = 0;
    const lap_halves_t halves = halves_of(p, r, &count);
    for (size_t row = 0; row < count * p->batch; row++)
        for (size_t c = 0; c < cols; c++) {
            const size_t from = lap_position(halves, row / p->batch) * p->batch + row % p->batch;
            const double error = fabs((double)rows[row * cols + c] - all[from * cols + c]);
            most = error > most || isnan(error) ? error : most;
        }
    return most;
}

static double worst_lse(const problem_t *p, size_t r, const double *all, const float *lse)
{
    size_t count = 0;
    double most = 0;
    const lap_halves_t halves = halves_of(p, r, &count);
    for (size_t h = 0; h < p->heads * p->batch; h++)
        for (size_t s = 0; s < count; s++) {
            const double error =
                fabs((double)lse[h * count + s] - all[h * p->seq + lap_position(halves, s)]);
            most = error > most || isnan(error) ? error : most;
        }
    return most;
}

typedef struct errors {
    double out, lse, dq, dkv;
} errors_t;

/* Rank r attends to the keys of all; the gradients of keys are added to `dkv`. */
static lap_status_t run_rank(const problem_t *p, const truth_t *t, size_t r, double *dk, double *dv,
                             errors_t *errors)
{
    const size_t most = lap_shard(p->seq, (int)p->cp, 0, NULL) * p->batch;
    const size_t q = p->heads * p->dim, k = p->kv_heads * p->dim, size = lap_dtype_size(p->dtype);
    size_t count = 0;
    const lap_halves_t own = halves_of(p, r, &count);
    lap_attention_t a = {
        .dtype = p->dtype,
        .scale = (float)(1 / sqrt((double)p->dim)),
        .seq = count,
        .batch = p->batch,
        .heads = p->heads,
        .kv_heads = p->kv_heads,
        .dim = p->dim,
        .qkv_stride = q + 2 * k,
        .out_stride = q,
        .queries_at = own,
        .kv_stride = 2 * k,
        .dq_stride = q,
        .dkv_stride = 2 * k,
        .keys = most / p->batch,
    };
    both_t qkv = new_both(most * (q + 2 * k) * size), kv = new_both(most * 2 * k * size);
    both_t sum = new_both(most * q * sizeof(float)), out = new_both(most * q * size);
    both_t lse = new_both(most * p->heads * sizeof(float)), dout = new_both(most * q * size);
    both_t dq = new_both(most * q * sizeof(float)), dkv = new_both(most * 2 * k * sizeof(float));
    both_t scratch = new_both(kernels->attention_scratch(&a));
    lap_status_t status = LAP_OK;
    take(p, r, t->q, q, &qkv, 0, q + 2 * k);
    take(p, r, t->dout, q, &dout, 0, q);
    a.qkv = qkv.there;
    a.kv = kv.there;
    a.lse = lse.there;
    a.scratch = scratch.there;
    memset(sum.here, 0x7f, sum.bytes);
    memset(lse.here, 0x7f, lse.bytes);
    memset(dq.here, 0x7f, dq.bytes);
    status = copy(&qkv, false);
    if (status == LAP_OK)
        status = copy(&dout, false);
    for (int backward = 0; backward < 2 && status == LAP_OK; backward++) {
        const both_t *marked[] = {&sum, &lse, &dq};
        for (int i = backward ? 2 : 0; i < 3 && status == LAP_OK; i++)
            status = copy(marked[i], false);
        for (size_t i = 0; i < p->cp && status == LAP_OK; i++) {
            const size_t other = (r + p->cp - i) % p->cp;
            a.keys_at = halves_of(p, other, &a.keys);
            a.merges = i > 0;
            take(p, other, t->k, k, &kv, 0, 2 * k);
            take(p, other, t->v, k, &kv, k, 2 * k);
            status = copy(&kv, false);
            a.out = backward ? out.there : sum.there;
            a.dout = backward ? dout.there : NULL;
            a.dqkv = backward ? dq.there : NULL;
            a.dkv = backward ? dkv.there : NULL;
            memset(dkv.here, 0x7f, dkv.bytes);
            if (status == LAP_OK)
                status = copy(&dkv, false);
            if (status == LAP_OK)
                status = backward ? kernels->attention_backward(stream, &a)
                                  : kernels->attention_forward(stream, &a);
            if (status == LAP_OK)
                status = copy(&dkv, true);
            for (size_t row = 0; backward && row < a.keys * p->batch; row++)
                for (size_t c = 0; c < 2 * k; c++) {
                    const size_t at =
                        lap_position(a.keys_at, row / p->batch) * p->batch + row % p->batch;
                    double *to = c < k ? dk + at * k + c : dv + at * k + c - k;
                    *to += (double)((float *)(void *)dkv.here)[row * 2 * k + c];
                }
        }
        if (backward || status != LAP_OK)
            continue;
        status = copy(&sum, true);
        lap_from_float(p->dtype, (float *)(void *)sum.here, out.here, count * p->batch * q);
        if (status == LAP_OK)
            status = copy(&out, false);
        if (status == LAP_OK)
            status = copy(&lse, true);
    }
    if (status == LAP_OK)
        status = copy(&dq, true);
    errors->out = fmax(errors->out, worst_of(p, r, t->out, q, (float *)(void *)sum.here));
    errors->lse = fmax(errors->lse, worst_lse(p, r, t->lse, (float *)(void *)lse.here));
    errors->dq = fmax(errors->dq, worst_of(p, r, t->dq, q, (float *)(void *)dq.here));
    both_t *all[] = {&qkv, &kv, &sum, &out, &lse, &dout, &dq, &dkv, &scratch};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free_both(all[i]);
    return status;
}

/* Whether tensor cores do it: they take probabilities, and gradients of scores, in the type. */
static bool rounds_factors(const problem_t *p)
{
    return strcmp(ops->name, "cuda") == 0 && !exact && p->dtype != LAP_FLOAT32 &&
           (p->dim == 64 || p->dim == 128);
}

/*
 * Inputs are exact and at most 1 in size; probabilities add up to 1. So forward is off by roundings of
 * fp32, and so is backward, but for the rounding of its `out` to the type. Where factors are rounded,
 * each probability is off by half a unit of itself. Each gradient of a score is, too: at most dim times
 * its probability, twice, before the scale of 1 / sqrt(dim).
 */
static void check(const problem_t *p, uint64_t seed)
{
    const size_t k = p->kv_heads * p->dim, rows = p->seq * p->batch;
    truth_t t = find_truth(p, seed);
    double *dk = zeros(rows * k), *dv = zeros(rows * k);
    errors_t errors = {0, 0, 0, 0};
    lap_status_t status = LAP_OK;
    for (size_t r = 0; r < p->cp && status == LAP_OK; r++)
        status = run_rank(p, &t, r, dk, dv, &errors);
    for (size_t i = 0; i < rows * k; i++) {
        const double error = fmax(fabs(dk[i] - t.dk[i]), fabs(dv[i] - t.dv[i]));
        errors.dkv = error > errors.dkv || isnan(error) ? error : errors.dkv;
    }
    const double unit = p->dtype == LAP_FLOAT32   ? 0x1p-23
                        : p->dtype == LAP_FLOAT16 ? 0x1p-11
                                                  : 0x1p-8;
    const double rounded = rounds_factors(p) ? unit : 0, root = sqrt((double)p->dim);
    const double forward = 2e-6 + rounded / 2, backward = 4e-6 + (unit + rounded) * root;
    if (status != LAP_OK)
        tap_note("%s", lap_last_error());
    tap_ok(status == LAP_OK && errors.out <= forward && errors.lse <= 8e-6 &&
               errors.dq <= backward && errors.dkv <= 4 * backward,
           "%s, %s, %zu x %zu tokens on %zu ranks, heads %zu/%zu of %zu: errors are %.2g, %.2g "
           "(lse), %.2g (queries), %.2g (keys)",
           ops->name, lap_dtype_name(p->dtype), p->batch, p->seq, p->cp, p->heads, p->kv_heads,
           p->dim, errors.out, errors.lse, errors.dq, errors.dkv);
    free_truth(&t);
    free(dk);
    free(dv);
}

static void test_device(void)
{
    static const problem_t problems[] = {
        {LAP_FLOAT32, 40, 2, 4, 2, 8, 1},    {LAP_FLOAT32, 37, 2, 4, 2, 8, 2},
        {LAP_FLOAT32, 7, 1, 2, 1, 16, 3},    {LAP_FLOAT32, 300, 1, 2, 1, 64, 2},
        {LAP_BFLOAT16, 41, 2, 4, 4, 64, 3},  {LAP_BFLOAT16, 130, 1, 2, 1, 128, 2},
        {LAP_FLOAT16, 65, 1, 4, 1, 40, 2},   {LAP_FLOAT32, 3, 2, 2, 2, 8, 3},
        {LAP_FLOAT16, 257, 1, 4, 2, 64, 3},  {LAP_BFLOAT16, 300, 2, 2, 2, 128, 2},
        {LAP_BFLOAT16, 192, 1, 2, 1, 64, 1},
    };
    if (!tap_success(lap_kernels_of(device, &kernels), "%s: kernels", ops->name))
        return;
    for (size_t i = 0; i < sizeof(problems) / sizeof(problems[0]); i++)
        check(&problems[i], 100 + 10 * i);
}

int main(int argc, char **argv)
{
    exact = argc > 3 && strcmp(argv[3], "--exact") == 0;
    return test_devices(argc > 2 && strcmp(argv[1], "--device") == 0 ? argv[2] : NULL, test_device);
}
