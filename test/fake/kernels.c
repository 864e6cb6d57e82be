/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of the device `cuda` do, as loops: see fake.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/convert.h"
#include "device/cuda/cuda_kernels.h"
#include "fake.h"

enum { BIAS = 1, GELU = 2, DGELU = 4 }; /* as lap_epilogue_t */

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The longer it has waited, the longer it sleeps before it looks again: many wait at a time, on few cores. */
static void nap(uint64_t waited_ns)
{
    const uint64_t ns = waited_ns / 4;
    nanosleep(&(struct timespec){0, ns < 20000 ? 20000 : ns < 200000 ? (long)ns : 200000}, NULL);
}

/* ---- elements ---- */

float fake_load(int32_t dtype, const void *memory, size_t i)
{
    float value;
    const char *x = fake_at(memory);
    if (dtype == LAP_FLOAT32) { /* as most are, of many millions */
        memcpy(&value, x + i * sizeof(value), sizeof(value));
        return value;
    }
    lap_to_float((lap_dtype_t)dtype, x + i * lap_dtype_size((lap_dtype_t)dtype), &value, 1);
    return value;
}

void fake_store(int32_t dtype, void *memory, size_t i, float value)
{
    char *x = fake_at(memory);
    if (dtype == LAP_FLOAT32) {
        memcpy(x + i * sizeof(value), &value, sizeof(value));
        return;
    }
    lap_from_float((lap_dtype_t)dtype, &value, x + i * lap_dtype_size((lap_dtype_t)dtype), 1);
}

/* Between 0 and 1: gelu(x) = x gate(x). */
static double gate(double x)
{
    return 1 / (1 + exp(-2 * sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

double fake_gelu(double x)
{
    return x < -40 ? 0 : x * gate(x);
}

double fake_gelu_slope(double x)
{
    const double inner = 2 * sqrt(2 / 3.14159265358979323846) * (1 + 3 * 0.044715 * x * x);
    return fabs(x) > 40 ? x > 0 : gate(x) + x * gate(x) * gate(-x) * inner;
}

static float finish(const lap_cuda_finish_t *f, float sum, int32_t dtype, const void *d, size_t row,
                    size_t col)
{
    double x = sum;
    if (f->plain)
        return sum;
    void *aux = f->aux ? (char *)f->aux + row * f->aux_stride : NULL;
    if (f->beta != 0)
        x += (double)f->beta * (double)fake_load(dtype, d, col);
    if (f->epilogue & BIAS)
        x += (double)fake_load(f->bias_dtype, f->bias, col);
    if (f->epilogue & GELU) {
        if (aux)
            fake_store(f->aux_dtype, aux, col, (float)x);
        x = fake_gelu(x);
    }
    if (f->epilogue & DGELU)
        x *= fake_gelu_slope((double)fake_load(f->aux_dtype, aux, col));
    return (float)(x / (double)f->scale);
}

/* ---- signals ---- */

static uint64_t full_tag(uint64_t tag, const uint32_t *calls)
{
    return tag ^ *(const uint32_t *)fake_at(calls) * 0xd1b54a32d192ed03u;
}

/* When a transfer began, which was noted for one signal, and before it. */
static uint64_t take_note(const uint64_t *note)
{
    const uint64_t noted = __atomic_exchange_n((uint64_t *)fake_at(note), 0, __ATOMIC_ACQ_REL);
    if (noted == 0) {
        fprintf(stderr, "fake: a signal does not wait for when its transfer began\n");
        abort();
    }
    return noted;
}

/* When a transfer over an emulated link comes. */
static uint64_t carry(const lap_cuda_transit_t *transit)
{
    const uint64_t issued = transit->issued ? take_note(transit->issued) : now();
    uint64_t due = issued;
    if (transit->link_free) {
        uint64_t *link_free = fake_at(transit->link_free);
        uint64_t seen = __atomic_load_n(link_free, __ATOMIC_RELAXED);
        do {
            due = (issued > seen ? issued : seen) + transit->carry_ns;
        } while (!__atomic_compare_exchange_n(link_free, &seen, due, false, __ATOMIC_RELAXED,
                                              __ATOMIC_RELAXED));
    }
    due += transit->latency_ns;
    const uint64_t copied = now();
    return due > copied ? due : copied;
}

static void set_due(lap_cuda_word_t *word, uint64_t due)
{
    const uint32_t nth = __atomic_load_n(&word->value, __ATOMIC_RELAXED) + 1;
    __atomic_store_n(&word->due[nth % LAP_CUDA_DUES], due, __ATOMIC_RELAXED);
}

static bool is_due(const lap_cuda_word_t *word, uint32_t nth, uint32_t value)
{
    const uint32_t known = value - nth < LAP_CUDA_DUES ? nth : value - (LAP_CUDA_DUES - 1);
    return __atomic_load_n(&word->due[known % LAP_CUDA_DUES], __ATOMIC_RELAXED) <= now();
}

/* Where somebody asks for it. */
static void write_this(uint64_t *place, uint64_t time)
{
    static int written; /* see FAKE_CLOCK_MS */
    if (!place)
        return;
    const bool first = __atomic_fetch_add(&written, 1, __ATOMIC_RELAXED) < 8;
    const int64_t ahead = first ? 0 : (int64_t)fake_number("FAKE_CLOCK_MS", 0) * 1000000;
    __atomic_store_n((uint64_t *)fake_at(place), time + (uint64_t)ahead, __ATOMIC_RELEASE);
}

static void write_time(uint64_t *place)
{
    write_this(place, now());
}

/* Nothing is raised after a wait that timed out. */
static void raise_word(const lap_cuda_raise_t *raise, const uint32_t *lost, bool paced,
                       uint64_t due)
{
    lap_cuda_word_t *word = fake_at(raise->word);
    if (__atomic_load_n((const uint32_t *)fake_at(lost), __ATOMIC_ACQUIRE) != 0)
        return;
    if (paced)
        set_due(word, due);
    __atomic_store_n(&word->tag, full_tag(raise->tag, raise->calls), __ATOMIC_RELAXED);
    __atomic_fetch_add(&word->value, 1, __ATOMIC_RELEASE);
}

static void report(lap_cuda_slot_t *slot, const lap_cuda_wait_t *wait, uint32_t come,
                   uint32_t state)
{
    __atomic_store_n(&slot->state, LAP_CUDA_RUNS, __ATOMIC_SEQ_CST);
    slot->buffer = wait->buffer;
    slot->reason = wait->reason;
    slot->peer = wait->peer;
    slot->signal = wait->signal;
    slot->count = wait->count;
    slot->come = come;
    __atomic_fetch_add(&slot->number, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->state, state, __ATOMIC_RELEASE);
}

static bool aborted(const lap_cuda_control_t *control)
{
    return __atomic_load_n(&control->abort, __ATOMIC_ACQUIRE) != LAP_CUDA_GO;
}

/* Naps, unless all waits end, or this one does for its limit. */
static bool waits_on(const lap_cuda_waits_t *waits, const lap_cuda_wait_t *wait, uint32_t come,
                     uint32_t state, uint64_t since)
{
    if (aborted(waits->control)) {
        __atomic_store_n((uint32_t *)fake_at(waits->lost), 1, __ATOMIC_RELEASE);
        return false;
    }
    const uint64_t waited = now() - since;
    if (waited <= waits->limit_ns) {
        nap(waited);
        return true;
    }
    if (__atomic_exchange_n((uint32_t *)fake_at(waits->lost), 1, __ATOMIC_ACQ_REL) == 0) {
        report(&waits->control->late, wait, come, state);
        __atomic_store_n(&waits->control->abort, LAP_CUDA_TIMED_OUT, __ATOMIC_RELEASE);
    }
    return false;
}

/* False: it has ended before the signals had come. */
static bool await_signals(const lap_cuda_waits_t *waits, const lap_cuda_wait_t *wait, bool *told_p)
{
    const lap_cuda_word_t *word = fake_at(wait->word);
    const uint32_t base = *(const uint32_t *)fake_at(wait->consumed);
    uint64_t since = 0;
    for (;;) {
        const uint32_t value = __atomic_load_n(&word->value, __ATOMIC_ACQUIRE);
        const uint32_t come = value - base;
        if ((int32_t)(come - wait->count) >= 0 &&
            (!wait->paced || is_due(word, base + wait->count, value)))
            return true;
        if (since == 0) {
            report(waits->slot, wait, come, LAP_CUDA_STALLED);
            since = now();
        }
        __atomic_store_n(&waits->slot->come, come, __ATOMIC_RELAXED);
        *told_p = true;
        if (!waits_on(waits, wait, come, LAP_CUDA_STALLED, since))
            return false;
    }
}

/* A kernel for signals has a lane for each. */
static void check_lanes(const char *kernel, uint32_t n)
{
    if (n <= LAP_CUDA_BATCH)
        return;
    fprintf(stderr, "fake: %s was given %u signals, expected at most %d\n", kernel, n,
            LAP_CUDA_BATCH);
    abort();
}

static void run_wait(void *args)
{
    const lap_cuda_waits_t *waits = args;
    bool reported = false;
    check_lanes("lap_wait", waits->n);
    write_time(waits->times.before);
    for (uint32_t i = 0; i < waits->n; i++) {
        if (!await_signals(waits, &waits->at[i], &reported))
            return;
        write_time(waits->times.after[i]);
    }
    for (uint32_t i = 0; i < waits->n && waits->checks_tag; i++) {
        const lap_cuda_wait_t *wait = &waits->at[i];
        const lap_cuda_word_t *word = fake_at(wait->word);
        if (__atomic_load_n(&word->tag, __ATOMIC_RELAXED) == full_tag(wait->tag, wait->calls))
            continue;
        report(waits->slot, wait, 0, LAP_CUDA_MISMATCH);
        for (const uint64_t since = now(); waits_on(waits, wait, 0, LAP_CUDA_MISMATCH, since);)
            continue;
        return;
    }
    if (reported)
        __atomic_store_n(&waits->slot->state, LAP_CUDA_RUNS, __ATOMIC_RELEASE);
}

static void run_raise(void *args)
{
    const lap_cuda_raises_t *raises = args;
    uint64_t due[LAP_CUDA_BATCH] = {0};
    check_lanes("lap_raise", raises->n);
    write_time(raises->times.before);
    for (uint32_t i = 0; raises->paced && i < raises->n; i++)
        due[i] = carry(&raises->at[i].transit);
    for (uint32_t i = 0; i < raises->n; i++)
        raise_word(&raises->at[i], raises->lost, raises->paced, due[i]);
    const uint64_t at = now();
    for (uint32_t i = 0; i < raises->n; i++) {
        write_this(raises->times.after[i], at);
        if (raises->paced)
            write_this(raises->at[i].transit.arrival, due[i] > at ? due[i] : at);
    }
}

static void run_clear(void *args)
{
    const lap_cuda_clear_t *clear = args;
    for (uint32_t i = 0; i < clear->n; i++)
        *(uint32_t *)fake_at(clear->words[i]) = 0;
}

/* First the raises, then the waits: by the last block of a launch that has other work, too. */
static void run_signals(const lap_cuda_signals_t *signals)
{
    static const lap_cuda_waits_t no_waits;
    static const lap_cuda_raises_t no_raises;
    lap_cuda_waits_t waits = no_waits;
    lap_cuda_raises_t raises = no_raises;
    if (signals->n > LAP_CUDA_FEW || signals->nraises > LAP_CUDA_FEW) {
        fprintf(stderr, "fake: a launch was given %u waits and %u raises, expected at most %d\n",
                signals->n, signals->nraises, LAP_CUDA_FEW);
        abort();
    }
    for (uint32_t i = 0; i < signals->nclears; i++)
        *(uint32_t *)fake_at(signals->clears[i]) = 0;
    raises.lost = signals->lost;
    raises.n = signals->nraises;
    raises.times.before = signals->raise_times.before;
    for (uint32_t i = 0; i < raises.n; i++) {
        raises.at[i].word = signals->raises[i].word;
        raises.at[i].calls = signals->raises[i].calls;
        raises.at[i].tag = signals->raises[i].tag;
        raises.times.after[i] = signals->raise_times.after[i];
    }
    if (raises.n > 0)
        run_raise(&raises);
    waits.control = signals->control;
    waits.slot = signals->slot;
    waits.lost = signals->lost;
    waits.limit_ns = signals->limit_ns;
    waits.n = signals->n;
    waits.checks_tag = signals->checks_tag;
    waits.times.before = signals->times.before;
    for (uint32_t i = 0; i < waits.n; i++) {
        waits.at[i] = signals->at[i];
        waits.times.after[i] = signals->times.after[i];
    }
    if (waits.n > 0)
        run_wait(&waits);
    for (uint32_t i = 0; i < signals->ncounted; i++)
        ((uint32_t *)fake_at(signals->consumed))[i] += signals->raised[i];
    if (signals->ncounted > 0)
        ++*(uint32_t *)fake_at(signals->calls);
}

static void run_signal(void *args)
{
    run_signals(args);
}

static void run_advance(void *args)
{
    const lap_cuda_advance_t *advance = args;
    uint32_t *consumed = fake_at(advance->consumed);
    if (advance->calls)
        ++*(uint32_t *)fake_at(advance->calls);
    for (uint32_t i = 0; i < advance->n; i++)
        consumed[i] += advance->raised[i];
}

static void run_stamp(void *args)
{
    const lap_cuda_stamp_t *stamp = args;
    write_time(stamp->at);
}

/* ---- arithmetic ---- */

static void run_reduce(void *args)
{
    const lap_cuda_reduce_t *r = args;
    for (size_t row = 0; row < r->rows; row++) {
        char *d = (char *)r->dst + row * r->dst_stride;
        for (size_t col = 0; col < r->cols; col++) {
            float x = 0;
            for (uint32_t s = 0; s < r->nsrc; s++) {
                const char *src = (const char *)r->srcs[s] + row * r->strides[s];
                const float scale = r->scales[s] ? *(const float *)fake_at(r->scales[s]) : 1;
                const float term = fake_load(r->from, src, col) * scale;
                x = s == 0 ? term : x + term;
            }
            fake_store(r->to, d, col, finish(&r->finish, x, r->to, d, row, col));
        }
    }
}

static void run_column_sums(void *args)
{
    const lap_cuda_column_sums_t *s = args;
    char *dst = fake_at(s->dst);
    for (size_t col = 0; col < s->cols; col++) {
        double sum = 0;
        for (size_t row = 0; row < s->rows; row++)
            sum += (double)fake_load(s->from, (const char *)s->src + row * s->src_stride, col);
        sum *=
            (double)s->scale * (s->scaled_by ? (double)*(const float *)fake_at(s->scaled_by) : 1);
        lap_from_double((lap_dtype_t)s->to, &sum, dst + col * lap_dtype_size((lap_dtype_t)s->to),
                        1);
    }
}

/* op(x) as fp32, packed: [rows, depth]; stored so, or turned. */
static float *operand(int32_t dtype, const void *x, size_t stride, bool turned, size_t rows,
                      size_t depth)
{
    float *wide = malloc((rows * depth + 1) * sizeof(float));
    for (size_t row = 0; row < rows; row++)
        for (size_t k = 0; k < depth; k++)
            wide[row * depth + k] =
                fake_load(dtype, (const char *)x + (turned ? k : row) * stride, turned ? row : k);
    return wide;
}

static void run_multiply(void *args)
{
    const lap_cuda_multiply_t *g = args;
    const float scale = g->scale * (g->b_scale ? *(const float *)fake_at(g->b_scale) : 1) *
                        (g->a_scale ? *(const float *)fake_at(g->a_scale) : 1);
    float *a = operand(g->a_dtype, g->a, g->a_stride, g->a_transposed, g->rows, g->k);
    float *b = operand(g->b_dtype, g->b, g->b_stride, g->b_plain, g->n, g->k);
    for (size_t row = 0; row < g->rows; row++) {
        char *d = (char *)g->d + row * g->d_stride;
        for (size_t col = 0; col < g->n; col++) {
            float x = 0;
            for (size_t k = 0; k < g->k; k++)
                x += a[row * g->k + k] * b[col * g->k + k];
            fake_store(g->d_dtype, d, col, finish(&g->finish, x * scale, g->d_dtype, d, row, col));
        }
    }
    free(a);
    free(b);
}

static void run_cast(void *args)
{
    const lap_cuda_cast_t *c = args;
    const float scale = c->scale ? *(const float *)fake_at(c->scale) : 1;
    float *amax = c->amax ? fake_at(c->amax) : NULL;
    uint32_t most = amax ? lap_bits_of_float(*amax) : 0;
    for (size_t row = 0; row < c->rows; row++)
        for (size_t col = 0; col < c->cols; col++) {
            const float x = fake_load(c->from, (const char *)c->src + row * c->src_stride, col);
            const uint32_t size = lap_bits_of_float(x) & 0x7fffffff;
            most = size > most ? size : most;
            fake_store(c->to, (char *)c->dst + row * c->dst_stride, col, x / scale);
        }
    if (amax)
        *amax = lap_float_of_bits(most);
}

/* What is not aligned as the arguments say would be an error on a GPU. */
static void run_copy(void *args)
{
    const lap_cuda_copy_t *c = args;
    char *dst = fake_at(c->dst);
    const char *src = fake_at(c->src);
    if (((uintptr_t)dst | (uintptr_t)src | c->dst_stride | c->src_stride) % c->vector != 0)
        return;
    for (size_t row = 0; row < c->rows; row++)
        memcpy(dst + row * c->dst_stride, src + row * c->src_stride, c->row_bytes);
}

static void run_sum(void *args)
{
    lap_cuda_sum_t *sum = args;
    run_signals(&sum->before);
    run_reduce(&sum->reduce);
    run_signals(&sum->signals);
}

/*
 * What is not in multiples of a vector, the kernel would miss: it stays as it was. FAKE_NO_SPREAD: so does all,
 * as if nothing were sent.
 */
static void run_multicast(void *args)
{
    const lap_cuda_multicast_t *s = args;
    const size_t all = (size_t)s->src | s->row_bytes | (s->rows > 1 ? s->dst_stride : 0) |
                       (s->rows > 1 ? s->src_stride : 0);
    run_signals(&s->before);
    const bool copies = all % s->vector == 0 && !getenv("FAKE_NO_SPREAD");
    for (uint32_t d = 0; d < s->n && copies; d++)
        for (size_t row = 0; row < s->rows && (size_t)s->dst[d] % s->vector == 0; row++)
            memcpy((char *)fake_at(s->dst[d]) + row * s->dst_stride,
                   (const char *)fake_at(s->src) + row * s->src_stride, s->row_bytes);
    run_signals(&s->signals);
}

/* Likewise. */
static void run_transpose(void *args)
{
    const lap_cuda_transpose_t *t = args;
    const char *src = fake_at(t->src);
    char *dst = fake_at(t->dst);
    const size_t all =
        (size_t)t->src | (size_t)t->dst | t->padded | t->cols | t->src_stride | t->dst_stride;
    if (t->vectors && all % 16 != 0)
        return;
    for (size_t row = 0; row < t->padded; row++)
        for (size_t col = 0; col < t->cols; col++)
            dst[col * t->dst_stride + row] = row < t->rows ? src[row * t->src_stride + col] : 0;
}

static void run_fill(void *args)
{
    const lap_cuda_fill_t *fill = args;
    for (size_t i = 0; i < fill->count; i++) {
        uint64_t x = (fill->seed + i) * 0x9e3779b97f4a7c15u;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        fake_store(fill->dtype, fill->memory, i, (float)(x >> 40) * 0x1p-23f - 1.0f);
    }
}

/* The kernel of that name, or, without one, that does that work. */
static const fake_kernel_t *find_kernel(const char *name, fake_work_t work)
{
    static const fake_kernel_t kernels[] = {
        {"lap_wait", run_wait, sizeof(lap_cuda_waits_t), true},
        {"lap_raise", run_raise, sizeof(lap_cuda_raises_t), false},
        {"lap_signal", run_signal, sizeof(lap_cuda_signals_t), true},
        {"lap_multicast", run_multicast, sizeof(lap_cuda_multicast_t), true},
        {"lap_sum", run_sum, sizeof(lap_cuda_sum_t), true},
        {"lap_advance", run_advance, sizeof(lap_cuda_advance_t), false},
        {"lap_clear", run_clear, sizeof(lap_cuda_clear_t), false},
        {"lap_stamp", run_stamp, sizeof(lap_cuda_stamp_t), false},
        {"lap_reduce", run_reduce, sizeof(lap_cuda_reduce_t), false},
        {"lap_column_sums", run_column_sums, sizeof(lap_cuda_column_sums_t), false},
        {"lap_multiply", run_multiply, sizeof(lap_cuda_multiply_t), false},
        {"lap_cast", run_cast, sizeof(lap_cuda_cast_t), false},
        {"lap_transpose", run_transpose, sizeof(lap_cuda_transpose_t), false},
        {"lap_copy", run_copy, sizeof(lap_cuda_copy_t), false},
        {"lap_fill", run_fill, sizeof(lap_cuda_fill_t), false},
        {NULL, NULL, 0, false},
    };
    const fake_kernel_t *const tables[] = {kernels, fake_nn_kernels, fake_attention_kernels};
    for (size_t t = 0; t < sizeof(tables) / sizeof(tables[0]); t++)
        for (const fake_kernel_t *kernel = tables[t]; kernel->name; kernel++)
            if (name ? strcmp(kernel->name, name) == 0 : kernel->work == work)
                return kernel;
    return NULL;
}

const fake_kernel_t *fake_kernel(const char *name)
{
    return find_kernel(name, NULL);
}

const fake_kernel_t *fake_kernel_of(fake_work_t work)
{
    return find_kernel(NULL, work);
}
