/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of every device against loops in double. How far a result may be off is derived along
 * with it: sums in fp32, probabilities and gradients of scores rounded to the type, results rounded
 * once. Nothing else may be written, later tokens leave no trace in earlier results, and the bits
 * do not change from call to call. With --device NAME only that one; with "all" behind that no
 * problem is left out for its length, with "few" there is one of each kind. With --speed it measures
 * a GPU instead.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/convert.h"
#include "device/each.h"
#include "kernel/kernel.h"
#include "tap.h"

#define UNIT 0x1p-23 /* of a sum in fp32; tensor cores cut off */
#define GUARD 0x5a
#define ALIGNMENT 256u

static const lap_kernels_t *kernels;

typedef struct problem {
    lap_dtype_t dtype;
    size_t seq, batch, heads, kv_heads, dim;
    size_t gap, shift; /* elements between rows, and that matrices lie off what is aligned */
    float scale;
} problem_t;

/* ---- memory ---- */

enum { QKV, OUT, LSE, DOUT, DQKV, SCRATCH, SECTIONS };

/* All that a call gets, in one piece of memory. */
typedef struct layout {
    size_t at[SECTIONS], bytes[SECTIONS], all;
    size_t qkv_cols, out_cols;
    lap_attention_t attention; /* without its memory */
} layout_t;

static layout_t lay_out(const problem_t *p)
{
    layout_t l = {.qkv_cols = (p->heads + 2 * p->kv_heads) * p->dim, .out_cols = p->heads * p->dim};
    l.attention = (lap_attention_t){.dtype = p->dtype,
                                    .scale = p->scale,
                                    .seq = p->seq,
                                    .batch = p->batch,
                                    .heads = p->heads,
                                    .kv_heads = p->kv_heads,
                                    .dim = p->dim,
                                    .qkv_stride = l.qkv_cols + p->gap,
                                    .out_stride = l.out_cols + p->gap};
    const size_t rows = p->seq * p->batch, size = lap_dtype_size(p->dtype);
    l.bytes[QKV] = l.bytes[DQKV] = rows * l.attention.qkv_stride * size;
    l.bytes[OUT] = l.bytes[DOUT] = rows * l.attention.out_stride * size;
    l.bytes[LSE] = rows * p->heads * sizeof(float);
    l.bytes[SCRATCH] = kernels->attention_scratch(&l.attention);
    for (int i = 0; i < SECTIONS; i++) {
        l.at[i] = l.all + (i == LSE || i == SCRATCH ? 0 : p->shift * size);
        l.all = (l.at[i] + l.bytes[i] + 2 * ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    return l;
}

static lap_attention_t with_memory(const layout_t *l, char *memory)
{
    lap_attention_t a = l->attention;
    a.qkv = memory + l->at[QKV];
    a.out = memory + l->at[OUT];
    a.lse = (float *)(void *)(memory + l->at[LSE]);
    a.dout = memory + l->at[DOUT];
    a.dqkv = memory + l->at[DQKV];
    a.scratch = memory + l->at[SCRATCH];
    return a;
}

static void fill_rows(const layout_t *l, char *matrix, size_t cols, size_t stride, uint64_t seed,
                      size_t first_row)
{
    const size_t size = lap_dtype_size(l->attention.dtype);
    for (size_t r = first_row; r < l->attention.seq * l->attention.batch; r++)
        for (size_t c = 0; c < cols; c++) {
            const float x = (float)(tap_random(seed, r * cols + c) >> 40) / 0x1p22f - 2.0f;
            lap_from_float(l->attention.dtype, &x, matrix + (r * stride + c) * size, 1);
        }
}

/* Inputs from row `first_row` on. */
static void fill(const layout_t *l, char *memory, uint64_t seed, size_t first_row)
{
    fill_rows(l, memory + l->at[QKV], l->qkv_cols, l->attention.qkv_stride, seed, first_row);
    fill_rows(l, memory + l->at[DOUT], l->out_cols, l->attention.out_stride, seed + 1, first_row);
}

static char *new_memory(const layout_t *l, uint64_t seed)
{
    char *memory = malloc(l->all);
    memset(memory, GUARD, l->all);
    fill(l, memory, seed, 0);
    return memory;
}

/* Forward, and backward with it, on a copy of the memory that travels there and back. */
static lap_status_t call(const layout_t *l, char *memory, char *there)
{
    const lap_copy_t go = {there, memory, 1, l->all, l->all, l->all, 0, false};
    const lap_copy_t come = {memory, there, 1, l->all, l->all, l->all, 0, false};
    const lap_attention_t a = with_memory(l, there);
    LAP_TRY(ops->copy(stream, &go));
    LAP_TRY(kernels->attention_forward(stream, &a));
    LAP_TRY(kernels->attention_backward(stream, &a));
    LAP_TRY(ops->copy(stream, &come));
    return ops->stream_synchronize(stream);
}

static lap_status_t call_once(const layout_t *l, char *memory)
{
    void *there;
    LAP_TRY(ops->alloc(device, l->all, &there));
    const lap_status_t status = call(l, memory, there);
    ops->free(device, there);
    return status;
}

/* ---- what it should be ---- */

/* A result and how far it may be off. */
typedef struct number {
    double value, bound;
} number_t;

typedef struct truth {
    const lap_attention_t *a;
    size_t qkv_cols, out_cols;
    double *qkv, *dout; /* [rows, cols], the inputs */
    number_t *out, *dqkv, *lse;
    double *p, *dp,
        *size; /* of one query: for each key, and how large the terms of the score are */
    double rounding, tiny; /* of a number of the type: relative, and at least */
} truth_t;

static double *widen(const lap_attention_t *a, const void *matrix, size_t cols, size_t stride)
{
    const size_t rows = a->seq * a->batch;
    double *wide = malloc((rows * cols + 1) * sizeof(double));
    for (size_t i = 0; i < rows * cols; i++) {
        float x;
        const size_t at = i / cols * stride + i % cols;
        lap_to_float(a->dtype, (const char *)matrix + at * lap_dtype_size(a->dtype), &x, 1);
        wide[i] = (double)x;
    }
    return wide;
}

/* Adds a term that may be off by `off`, times a factor. */
static void add(number_t *sum, double term, double off, double factor)
{
    sum->value += term * factor;
    sum->bound += off * fabs(factor);
}

/* Row `s` of sequence b of a head: `matrix` is dense. */
#define ROW(truth, matrix, cols, s, b, head)                                                       \
    ((truth)->matrix + ((s) * (truth)->a->batch + (b)) * (truth)->cols + (head) * (truth)->a->dim)

/* The probabilities of query i. Returns what part of themselves they may be off, unrounded. */
static double soften(truth_t *t, size_t b, size_t head, size_t kv, size_t i, number_t *lse)
{
    const size_t dim = t->a->dim, keys = t->a->heads + kv;
    const double *q = ROW(t, qkv, qkv_cols, i, b, head);
    double most = -INFINITY, sum = 0, off = 0;
    for (size_t j = 0; j <= i; j++) {
        const double *k = ROW(t, qkv, qkv_cols, j, b, keys);
        double score = 0, size = 0;
        for (size_t c = 0; c < dim; c++) {
            score += q[c] * k[c];
            size += fabs(q[c] * k[c]);
        }
        t->p[j] = score * (double)t->a->scale;
        most = fmax(most, t->p[j]);
        off = fmax(off, ((double)dim + 8) * UNIT * size * fabs((double)t->a->scale));
    }
    for (size_t j = 0; j <= i; j++)
        sum += exp(t->p[j] - most);
    lse->value = most + log(sum);
    off += 8 * UNIT * (1 + fabs(lse->value));
    lse->bound = off + (double)(i + 8) * UNIT + 2 * UNIT * fabs(lse->value);
    for (size_t j = 0; j <= i; j++)
        t->p[j] = exp(t->p[j] - lse->value);
    return off;
}

/* Query i of a head: its out and dq, and what it adds to the gradients of keys and values. */
static void turn(truth_t *t, size_t b, size_t head, size_t kv, size_t i)
{
    const lap_attention_t *a = t->a;
    const size_t dim = a->dim, keys = a->heads + kv, values = keys + a->kv_heads;
    const double *q = ROW(t, qkv, qkv_cols, i, b, head), *dout = ROW(t, dout, out_cols, i, b, head);
    const double scale = (double)a->scale, terms = (double)(a->seq * a->heads);
    number_t *out = ROW(t, out, out_cols, i, b, head), *dq = ROW(t, dqkv, qkv_cols, i, b, head);
    number_t *lse = &t->lse[(head * a->batch + b) * a->seq + i], mean = {0, 0};
    const double off = soften(t, b, head, kv, i, lse);
    for (size_t j = 0; j <= i; j++) {
        const double *v = ROW(t, qkv, qkv_cols, j, b, values), p = t->p[j];
        t->dp[j] = t->size[j] = 0;
        for (size_t c = 0; c < dim; c++) {
            add(&out[c], p, p * (2 * off + t->rounding + terms * UNIT) + t->tiny, v[c]);
            t->dp[j] += dout[c] * v[c];
            t->size[j] += fabs(dout[c] * v[c]);
        }
        mean.value += p * t->dp[j];
    }
    for (size_t c = 0; c < dim; c++) {
        out[c].bound += 2 * UNIT * fabs(out[c].value);
        out[c].bound += tap_half_unit(a->dtype, fabs(out[c].value) + out[c].bound);
        mean.bound +=
            out[c].bound * fabs(dout[c]) + ((double)dim + 8) * UNIT * fabs(out[c].value * dout[c]);
    }
    for (size_t j = 0; j <= i; j++) {
        const double *k = ROW(t, qkv, qkv_cols, j, b, keys), p = t->p[j];
        number_t *dk = ROW(t, dqkv, qkv_cols, j, b, keys);
        number_t *dv = ROW(t, dqkv, qkv_cols, j, b, values);
        const double again = off + lse->bound, ds = p * (t->dp[j] - mean.value);
        const double dp_off = ((double)dim + 8) * UNIT * t->size[j] + mean.bound;
        const double ds_off = p * dp_off * (1 + t->rounding) + t->tiny +
                              fabs(ds) * (again + t->rounding + (8 + terms) * UNIT);
        for (size_t c = 0; c < dim; c++) {
            add(&dq[c], ds, ds_off, scale * k[c]);
            add(&dk[c], ds, ds_off, scale * q[c]);
            add(&dv[c], p, p * (again + t->rounding + terms * UNIT) + t->tiny, dout[c]);
        }
    }
}

static truth_t find_truth(const layout_t *l, const lap_attention_t *a)
{
    const size_t rows = a->seq * a->batch;
    truth_t t = {.a = a,
                 .qkv_cols = l->qkv_cols,
                 .out_cols = l->out_cols,
                 .qkv = widen(a, a->qkv, l->qkv_cols, a->qkv_stride),
                 .dout = widen(a, a->dout, l->out_cols, a->out_stride),
                 .out = calloc(rows * l->out_cols + 1, sizeof(number_t)),
                 .dqkv = calloc(rows * l->qkv_cols + 1, sizeof(number_t)),
                 .lse = calloc(rows * a->heads + 1, sizeof(number_t)),
                 .p = malloc((3 * a->seq + 1) * sizeof(double)),
                 .rounding = tap_half_unit(a->dtype, 1),
                 .tiny = tap_half_unit(a->dtype, 0)};
    t.dp = t.p + a->seq;
    t.size = t.dp + a->seq;
    for (size_t b = 0; b < a->batch; b++)
        for (size_t head = 0; head < a->heads; head++)
            for (size_t i = 0; i < a->seq; i++)
                turn(&t, b, head, head / (a->heads / a->kv_heads), i);
    for (size_t i = 0; i < rows * l->qkv_cols; i++) {
        t.dqkv[i].bound += 2 * UNIT * fabs(t.dqkv[i].value);
        t.dqkv[i].bound += tap_half_unit(a->dtype, fabs(t.dqkv[i].value) + t.dqkv[i].bound);
    }
    return t;
}

static void free_truth(truth_t *t)
{
    free(t->qkv);
    free(t->dout);
    free(t->out);
    free(t->dqkv);
    free(t->lse);
    free(t->p);
}

/* ---- tests ---- */

/* The largest error, in units of what it may be; infinite for what is no number. */
static double worst(const lap_attention_t *a, const void *matrix, const number_t *truth,
                    size_t cols, size_t stride)
{
    double *values = widen(a, matrix, cols, stride), most = 0;
    for (size_t i = 0; i < a->seq * a->batch * cols; i++) {
        const double error = fabs(values[i] - truth[i].value);
        if (!(error <= most * truth[i].bound)) /* a bound may be 0, and so may the error */
            most = error / truth[i].bound;
        if (isnan(error))
            most = INFINITY;
    }
    free(values);
    return most;
}

static double worst_lse(const lap_attention_t *a, const number_t *truth)
{
    double most = 0;
    for (size_t i = 0; i < a->seq * a->batch * a->heads; i++) {
        const double error = fabs((double)a->lse[i] - truth[i].value) / truth[i].bound;
        most = isnan(error) ? INFINITY : fmax(most, error);
    }
    return most;
}

/* How many bytes were written that are no results. */
static size_t count_written(const layout_t *l, const char *memory, uint64_t seed)
{
    char *before = new_memory(l, seed);
    const size_t size = lap_dtype_size(l->attention.dtype),
                 rows = l->attention.seq * l->attention.batch;
    size_t written = 0;
    for (size_t r = 0; r < rows; r++) {
        const size_t out = l->at[OUT] + r * l->attention.out_stride * size;
        const size_t dqkv = l->at[DQKV] + r * l->attention.qkv_stride * size;
        memcpy(before + out, memory + out, l->out_cols * size);
        memcpy(before + dqkv, memory + dqkv, l->qkv_cols * size);
    }
    memcpy(before + l->at[LSE], memory + l->at[LSE], l->bytes[LSE]);
    memcpy(before + l->at[SCRATCH], memory + l->at[SCRATCH], l->bytes[SCRATCH]);
    for (size_t i = 0; i < l->all; i++)
        written += before[i] != memory[i];
    free(before);
    return written;
}

static void check_problem(const problem_t *p, uint64_t seed)
{
    const layout_t l = lay_out(p);
    char *memory = new_memory(&l, seed);
    const lap_status_t status = call_once(&l, memory);
    const lap_attention_t a = with_memory(&l, memory);
    truth_t t = find_truth(&l, &a);
    const double out = worst(&a, a.out, t.out, l.out_cols, a.out_stride);
    const double dqkv = worst(&a, a.dqkv, t.dqkv, l.qkv_cols, a.qkv_stride);
    const double lse = worst_lse(&a, t.lse);
    const size_t written = count_written(&l, memory, seed);
    if (status != LAP_OK)
        tap_note("%s", lap_last_error());
    tap_ok(status == LAP_OK && out <= 1 && lse <= 1 && dqkv <= 1 && written == 0,
           "%s, %s, %zu x %zu tokens, heads %zu/%zu of %zu, gap %zu, shift %zu: errors are %.2g, "
           "%.2g (lse), %.2g (backward) of what they may be; %zu bytes elsewhere written",
           ops->name, lap_dtype_name(p->dtype), p->batch, p->seq, p->heads, p->kv_heads, p->dim,
           p->gap, p->shift, out, lse, dqkv, written);
    free_truth(&t);
    free(memory);
}

/* Every type with every number of columns and of tokens; what else there is takes turns. */
static void test_results(bool all)
{
    static const size_t dims[] = {8, 64, 128, 80, 96};
    static const size_t seqs[] = {1, 5, 63, 64, 65, 200, 257};
    static const size_t kv_heads[] = {4, 2, 1};
    static const size_t gaps[] = {0, 8, 0, 3, 16};
    uint64_t seed = 1;
    for (lap_dtype_t dtype = LAP_FLOAT32; dtype <= LAP_BFLOAT16; dtype++)
        for (size_t d = 0; d < sizeof(dims) / sizeof(dims[0]); d++)
            for (size_t s = 0; s < sizeof(seqs) / sizeof(seqs[0]); s++, seed += 2) {
                const size_t turn = d + s + dtype;
                if (!all && seqs[s] >= 200 && turn % 3 != 0)
                    continue;
                const problem_t p = {
                    .dtype = dtype,
                    .seq = seqs[s],
                    .batch = turn % 2 && seqs[s] < 257 ? 3 : 1,
                    .heads = 4,
                    .kv_heads = kv_heads[turn % 3],
                    .dim = dims[d],
                    .gap = gaps[(d + 2 * s) % 5],
                    .shift = (d + 3 * s) % 7 == 6,
                    .scale = (float)((turn % 5 == 0 ? 4 : 1) / sqrt((double)dims[d])),
                };
                check_problem(&p, seed);
            }
}

static void test_edges(void)
{
    const problem_t none = {LAP_BFLOAT16, 0, 2, 4, 2, 64, 0, 0, 1.0f};
    const problem_t negative = {LAP_BFLOAT16, 70, 1, 2, 2, 64, 0, 0, -0.2f};
    const problem_t wide = {LAP_FLOAT32, 70, 1, 2, 1, 256, 0, 0, 0.1f};
    check_problem(&none, 1001);
    check_problem(&negative, 1003);
    check_problem(&wide, 1005);
}

/* Shapes that take the different ways there are. */
static const problem_t ways[] = {
    {LAP_BFLOAT16, 200, 2, 4, 2, 128, 0, 0, 0.09f},
    {LAP_FLOAT16, 150, 1, 4, 4, 64, 8, 0, 0.125f},
    {LAP_FLOAT32, 100, 1, 4, 1, 40, 3, 0, 0.16f},
};

/* Other tokens from the middle on: the results before are the same to the bit. */
static void test_causal(void)
{
    for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
        const layout_t l = lay_out(&ways[w]);
        char *one = new_memory(&l, 31), *other = new_memory(&l, 31);
        const size_t middle = ways[w].seq / 2, rows = middle * ways[w].batch;
        const size_t bytes = rows * l.attention.out_stride * lap_dtype_size(ways[w].dtype);
        fill(&l, other, 77, rows);
        bool same = call_once(&l, one) == LAP_OK && call_once(&l, other) == LAP_OK;
        same = same && memcmp(one + l.at[OUT], other + l.at[OUT], bytes) == 0;
        for (size_t h = 0; h < ways[w].heads * ways[w].batch; h++)
            same = same && memcmp(one + l.at[LSE] + h * ways[w].seq * sizeof(float),
                                  other + l.at[LSE] + h * ways[w].seq * sizeof(float),
                                  middle * sizeof(float)) == 0;
        const bool differs = memcmp(one + l.at[OUT], other + l.at[OUT], l.bytes[OUT]) != 0;
        tap_ok(same && differs, "%s, %s, dim %zu: results depend on no later token", ops->name,
               lap_dtype_name(ways[w].dtype), ways[w].dim);
        free(one);
        free(other);
    }
}

static void test_repeat(void)
{
    for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
        const layout_t l = lay_out(&ways[w]);
        char *first = new_memory(&l, 51);
        bool same = call_once(&l, first) == LAP_OK;
        for (int i = 1; same && i < 20; i++) {
            char *again = new_memory(&l, 51);
            same = call_once(&l, again) == LAP_OK && memcmp(first, again, l.at[SCRATCH]) == 0;
            free(again);
        }
        tap_ok(same, "%s, %s, dim %zu: 20 calls, the same bits", ops->name,
               lap_dtype_name(ways[w].dtype), ways[w].dim);
        free(first);
    }
}

/* ---- speed ---- */

typedef lap_status_t (*pass_t)(lap_stream_t *stream, const lap_attention_t *attention);

/* Milliseconds of one call among `count`, by the clock of the device. */
static double measure(pass_t pass, const lap_attention_t *a, int count)
{
    uint64_t from = 0, to = 0;
    lap_status_t status = LAP_OK;
    for (int i = -3; status == LAP_OK && i < count; i++) {
        if (i == 0)
            status = ops->stamp(stream, &from);
        if (status == LAP_OK)
            status = pass(stream, a);
    }
    if (status == LAP_OK)
        status = ops->stamp(stream, &to);
    if (status == LAP_OK)
        status = ops->stream_synchronize(stream);
    if (status != LAP_OK) {
        printf("# %s\n", lap_last_error());
        return NAN;
    }
    return (double)(to - from) / 1e6 / count;
}

static void show_speed(const problem_t *p)
{
    const layout_t l = lay_out(p);
    /* A product is 2 operations per element of half a square, for each column. */
    const double product = (double)(p->seq * p->seq * p->dim * p->heads * p->batch);
    void *there;
    if (ops->alloc(device, l.all, &there) != LAP_OK) {
        printf("# %s\n", lap_last_error());
        return;
    }
    const lap_attention_t a = with_memory(&l, there);
    ops->fill(stream, p->dtype, there, l.all / lap_dtype_size(p->dtype), 1);
    const double forward = measure(kernels->attention_forward, &a, 20);
    const double backward = measure(kernels->attention_backward, &a, 20);
    printf("%-8s seq %4zu batch %zu heads %zu/%zu dim %3zu: forward %.3f ms, %.0f GFLOP/s; "
           "backward %.3f ms, %.0f GFLOP/s\n",
           lap_dtype_name(p->dtype), p->seq, p->batch, p->heads, p->kv_heads, p->dim, forward,
           2 * product / forward / 1e6, backward, 5 * product / backward / 1e6);
    ops->free(device, there);
}

static void show_speeds(void)
{
    static const problem_t problems[] = {
        {LAP_BFLOAT16, 2048, 2, 8, 8, 128, 0, 0, 0.0884f},
        {LAP_FLOAT16, 2048, 2, 8, 8, 128, 0, 0, 0.0884f},
        {LAP_BFLOAT16, 2048, 2, 8, 2, 128, 0, 0, 0.0884f},
        {LAP_BFLOAT16, 4096, 2, 8, 8, 128, 0, 0, 0.0884f},
        {LAP_BFLOAT16, 2048, 2, 16, 16, 64, 0, 0, 0.125f},
        {LAP_BFLOAT16, 1024, 2, 8, 8, 80, 0, 0, 0.1118f},
        {LAP_FLOAT32, 1024, 2, 8, 8, 128, 0, 0, 0.0884f},
    };
    for (size_t i = 0; i < sizeof(problems) / sizeof(problems[0]); i++)
        show_speed(&problems[i]);
}

static bool speed, all, few; /* arguments of main */

static void test_device(void)
{
    if (!tap_success(lap_kernels_of(device, &kernels), "%s: kernels", ops->name))
        return;
    if (speed) {
        show_speeds();
        return;
    }
    for (size_t w = 0; few && w < sizeof(ways) / sizeof(ways[0]); w++)
        check_problem(&ways[w], 2001 + 2 * w);
    if (few)
        return;
    test_results(all);
    test_edges();
    test_causal();
    test_repeat();
}

int main(int argc, char **argv)
{
    const bool one = argc > 2 && strcmp(argv[1], "--device") == 0;
    speed = argc > 1 && strcmp(argv[1], "--speed") == 0;
    all = one && argc > 3 && strcmp(argv[3], "all") == 0;
    few = one && argc > 3 && strcmp(argv[3], "few") == 0;
    return test_devices(speed ? "cuda" : one ? argv[2] : NULL, test_device);
}
