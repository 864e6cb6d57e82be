/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels of the device `cuda` do that wait, raise and copy: see fake.h. Sums are in
 * arithmetic.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/cuda/cuda_kernels.h"
#include "fake.h"

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/*
 * The longer it has waited, the longer it sleeps before it looks again: many wait at a time, on
 * few cores.
 */
static void nap(uint64_t waited_ns)
{
    const uint64_t ns = waited_ns / 4;
    nanosleep(&(struct timespec){0, ns < 20000 ? 20000 : ns < 200000 ? (long)ns : 200000}, NULL);
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

/* ---- copies ---- */

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
    fake_reduce(&sum->reduce);
    run_signals(&sum->signals);
}

/*
 * What is not in multiples of a vector, the kernel would miss: it stays as it was.
 * FAKE_NO_SPREAD: so does all, as if nothing were sent.
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
        {"lap_copy", run_copy, sizeof(lap_cuda_copy_t), false},
        {NULL, NULL, 0, false},
    };
    const fake_kernel_t *const tables[] = {kernels, fake_arithmetic, fake_nn_kernels};
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
