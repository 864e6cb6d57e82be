/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GEMM of every device and type: exact where sums are exact, within a bound that follows from k
 * where they are not, and with blocks that wait for signals and raise them, in order and in the order
 * of arrival. Layouts of operands are in gemm_layouts.c.
 */
#ifdef __x86_64__
#include <cpuid.h>
#endif
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/convert.h"
#include "each.h"
#include "shared.h"
#include "tap.h"
#include "util/clock.h"

#define GUARD (-80.0f) /* between rows and after the last one; all types have it */

static lap_dtype_t dtype; /* of the products made now */

/*
 * Matrices of one product, with rows further apart than they are long. a and b are the values of
 * what the GEMM is given as given_a and given_b; d is of the type.
 */
typedef struct product {
    lap_dtype_t dtype;
    size_t m, n, k, lda, ldb, ldd;
    float *a, *b;
    void *given_a, *given_b, *d;
} product_t;

static float *random_matrix(uint64_t seed, size_t rows, size_t stride, bool integers)
{
    float *x = malloc((rows * stride + 1) * sizeof(float));
    for (size_t i = 0; i <= rows * stride; i++) {
        uint64_t r = tap_random(seed, i);
        x[i] = integers ? (float)(int)(r % 9) - 4.0f : (float)(r >> 40) / (float)(1 << 23) - 1.0f;
    }
    return x;
}

/* A copy in the type of now; the values become those that it can have. */
static void *narrow(float *x, size_t count)
{
    void *copy = new_shared(device, count * lap_dtype_size(dtype));
    lap_from_float(dtype, x, copy, count);
    lap_to_float(dtype, copy, x, count);
    return copy;
}

static product_t new_product(uint64_t seed, size_t m, size_t n, size_t k, bool integers)
{
    product_t p = {.dtype = dtype, .m = m, .n = n, .k = k};
    p.lda = k + seed % 3;
    p.ldb = k + seed % 2;
    p.ldd = n + seed % 4;
    p.a = random_matrix(3 * seed, m, p.lda, integers);
    p.b = random_matrix(3 * seed + 1, n, p.ldb, integers);
    p.given_a = narrow(p.a, m * p.lda + 1);
    p.given_b = narrow(p.b, n * p.ldb + 1);
    float *guards = malloc((m * p.ldd + 1) * sizeof(float));
    for (size_t i = 0; i <= m * p.ldd; i++)
        guards[i] = GUARD;
    p.d = narrow(guards, m * p.ldd + 1);
    free(guards);
    return p;
}

static void free_product(product_t *p)
{
    free(p->a);
    free(p->b);
    free_shared(device, p->given_a);
    free_shared(device, p->given_b);
    free_shared(device, p->d);
}

static void *element_of(const product_t *p, void *matrix, size_t index)
{
    return (char *)matrix + index * lap_dtype_size(p->dtype);
}

/* Element `index` of d. */
static float got(const product_t *p, size_t index)
{
    float value;
    lap_to_float(p->dtype, element_of(p, p->d, index), &value, 1);
    return value;
}

static lap_gemm_block_t block_of(const product_t *p, size_t begin, size_t rows)
{
    return (lap_gemm_block_t){.a = element_of(p, p->given_a, begin * p->lda),
                              .d = element_of(p, p->d, begin * p->ldd),
                              .rows = rows,
                              .a_stride = p->lda * lap_dtype_size(p->dtype),
                              .d_stride = p->ldd * lap_dtype_size(p->dtype)};
}

static lap_gemm_t gemm_of(const product_t *p, lap_gemm_block_t *blocks, size_t nblocks)
{
    return (lap_gemm_t){.a_dtype = p->dtype,
                        .b_dtype = p->dtype,
                        .d_dtype = p->dtype,
                        .scale = 1,
                        .n = p->n,
                        .k = p->k,
                        .b = p->given_b,
                        .b_stride = p->ldb * lap_dtype_size(p->dtype),
                        .blocks = blocks,
                        .nblocks = nblocks};
}

static lap_status_t multiply(const product_t *p)
{
    lap_gemm_block_t block = block_of(p, 0, p->m);
    const lap_gemm_t gemm = gemm_of(p, &block, 1);
    LAP_TRY(ops->gemm(stream, &gemm));
    return ops->stream_synchronize(stream);
}

/*
 * The largest error over its bound, or infinity when something was written where nothing belongs.
 */
static double worst(const product_t *p)
{
    const bool loses = lap_dtype_is_fp8(p->dtype) && has_tensor_cores();
    double worst = 0;
    for (size_t i = 0; i < p->m; i++) {
        for (size_t j = 0; j < p->n; j++) {
            double sum = 0, size = 0, least = 0, most = 0;
            for (size_t k = 0; k < p->k; k++) {
                double term = (double)p->a[i * p->lda + k] * (double)p->b[j * p->ldb + k];
                sum += term;
                size += fabs(term);
                least = loses ? fmin(least, sum) : 0;
                most = loses ? fmax(most, sum) : 0;
            }
            /*
             * k products and sums, each off by half a unit in the last place at most: k u / (1 - k
             * u). Then one rounding to the type.
             */
            double bound = ((double)p->k + 1) * 0x1p-24 * size * 1.01;
            if (loses)
                bound += tap_fp8_loss(p->k, most - least);
            bound += tap_half_unit(p->dtype, fabs(sum) + bound);
            double error = fabs((double)got(p, i * p->ldd + j) - sum);
            worst = fmax(worst, error == 0 ? 0 : error / bound);
            tap_wrong(error > bound, "%s, %zu x %zu x %zu: d[%zu, %zu] is %.9g, expected %.9g",
                      lap_dtype_name(p->dtype), p->m, p->n, p->k, i, j,
                      (double)got(p, i * p->ldd + j), sum);
        }
        for (size_t j = p->n; j < p->ldd; j++)
            if (tap_wrong(got(p, i * p->ldd + j) != GUARD,
                          "%s, %zu x %zu x %zu: something was written after row %zu",
                          lap_dtype_name(p->dtype), p->m, p->n, p->k, i))
                return INFINITY;
    }
    return got(p, p->m * p->ldd) == GUARD ? worst : INFINITY;
}

/* The sums of integers are exact: what is stored is the sum, rounded once. */
static bool exact(const product_t *p)
{
    for (size_t i = 0; i < p->m; i++)
        for (size_t j = 0; j < p->n; j++) {
            int sum = 0;
            for (size_t k = 0; k < p->k; k++)
                sum += (int)p->a[i * p->lda + k] * (int)p->b[j * p->ldb + k];
            if (tap_wrong(got(p, i * p->ldd + j) != tap_rounded(p->dtype, (float)sum),
                          "%s, %zu x %zu x %zu: d[%zu, %zu] is %.9g, expected %.9g",
                          lap_dtype_name(p->dtype), p->m, p->n, p->k, i, j,
                          (double)got(p, i * p->ldd + j),
                          (double)tap_rounded(p->dtype, (float)sum)))
                return false;
        }
    return true;
}

static void test_shapes(void)
{
    static const size_t edges[][3] = {{0, 3, 3},   {3, 0, 3},     {3, 3, 0},    {1, 1, 1},
                                      {4, 8, 16},  {5, 9, 257},   {64, 8, 256}, {65, 17, 513},
                                      {513, 2, 3}, {2, 515, 1030}};
    const size_t nedges = sizeof(edges) / sizeof(edges[0]);
    double most = 0;
    bool equal = true;
    for (size_t i = 0; i < nedges + 40; i++) {
        size_t m = i < nedges ? edges[i][0] : 1 + tap_random(1, i) % 90;
        size_t n = i < nedges ? edges[i][1] : 1 + tap_random(2, i) % 70;
        size_t k = i < nedges ? edges[i][2] : 1 + tap_random(3, i) % 600;
        tap_doing("%s, %s: a GEMM of %zu x %zu x %zu", ops->name, lap_dtype_name(dtype), m, n, k);
        product_t p = new_product(i, m, n, k, false), q = new_product(i, m, n, k, true);
        if (multiply(&p) != LAP_OK || multiply(&q) != LAP_OK)
            tap_ok(false, "%s: a GEMM of %zu x %zu x %zu: %s", ops->name, m, n, k,
                   lap_last_error());
        most = fmax(most, worst(&p));
        equal = equal && exact(&q) && isfinite(worst(&q));
        free_product(&p);
        free_product(&q);
    }
    tap_ok(equal, "%s: small integers give exact sums, rounded once to %s", ops->name,
           lap_dtype_name(dtype));
    tap_ok(most <= 1.0, "%s: random numbers stay within the bound (%.3f of it)", ops->name, most);
}

/* The bound is not empty: two units in the last place of a narrow type are beyond it. */
static void test_bound(void)
{
    tap_doing("%s, %s: the bound", ops->name, lap_dtype_name(dtype));
    product_t p = new_product(7, 5, 6, 300, false);
    multiply(&p);
    const double before = worst(&p);
    const size_t index = 3 * p.ldd + 2;
    if (dtype == LAP_FLOAT32)
        ((float *)p.d)[index] *= 1 + 0x1p-10f;
    else if (lap_dtype_size(dtype) == 1)
        ((uint8_t *)p.d)[index] = (uint8_t)(((uint8_t *)p.d)[index] + 2);
    else
        ((uint16_t *)p.d)[index] = (uint16_t)(((uint16_t *)p.d)[index] + 2);
    tap_ok(before <= 1 && worst(&p) > 1, "%s: an error of %.3f of the bound passes, %.3f fails",
           ops->name, before, worst(&p));
    free_product(&p);
}

/* What ref promises: the sum in double, in the order of k, rounded once. */
static bool is_truth(const product_t *p)
{
    for (size_t i = 0; i < p->m; i++)
        for (size_t j = 0; j < p->n; j++) {
            double sum = 0;
            for (size_t k = 0; k < p->k; k++)
                sum += (double)p->a[i * p->lda + k] * (double)p->b[j * p->ldb + k];
            const float once =
                p->dtype == LAP_FLOAT32 ? (float)sum : tap_rounded(p->dtype, lap_round_to_odd(sum));
            if (got(p, i * p->ldd + j) != once)
                return false;
        }
    return true;
}

/*
 * Splitting by rows changes no bit of ref, where the sum of every element has one order, and none of
 * cpu, whatever processor this is.
 */
static void test_splits(void)
{
    tap_doing("%s, %s: a GEMM in four blocks", ops->name, lap_dtype_name(dtype));
    const size_t m = 97, n = 33, k = 700;
    product_t whole = new_product(5, m, n, k, false), parts = new_product(5, m, n, k, false);
    lap_gemm_block_t blocks[4] = {block_of(&parts, 0, 1), block_of(&parts, 1, 50),
                                  block_of(&parts, 51, 0), block_of(&parts, 51, 46)};
    const lap_gemm_t gemm = gemm_of(&parts, blocks, 4);
    multiply(&whole);
    ops->gemm(stream, &gemm);
    tap_success(ops->stream_synchronize(stream), "%s: a GEMM in four blocks", ops->name);
    tap_ok(worst(&parts) <= 1.0, "%s: is right", ops->name);
    if (strcmp(ops->name, "ref") == 0 || strcmp(ops->name, "cpu") == 0)
        tap_ok(memcmp(whole.d, parts.d, m * whole.ldd * lap_dtype_size(dtype)) == 0,
               "%s: gives the bits that one block gives", ops->name);
    if (strcmp(ops->name, "ref") == 0)
        tap_ok(is_truth(&parts), "ref: and they are the truth");
    free_product(&whole);
    free_product(&parts);
}

/* To look for the fastest way touches no matrix, and what it finds is right, every time alike. */
static void test_prepared(void)
{
    tap_doing("%s, %s: a GEMM that is prepared", ops->name, lap_dtype_name(dtype));
    product_t p = new_product(4, 256, 512, 512, true);
    const size_t bytes = p.m * p.ldd * lap_dtype_size(dtype);
    lap_gemm_block_t block = block_of(&p, 0, p.m);
    const lap_gemm_t gemm = gemm_of(&p, &block, 1);
    tap_success(ops->gemm_prepare(stream, &gemm, true), "%s: a GEMM is prepared", ops->name);
    bool touched = false;
    for (size_t i = 0; i <= p.m * p.ldd; i++)
        touched = touched || got(&p, i) != GUARD;
    tap_ok(!touched, "%s: and writes nothing yet", ops->name);
    tap_ok(multiply(&p) == LAP_OK && exact(&p) && isfinite(worst(&p)), "%s: then it is right",
           ops->name);
    void *first = malloc(bytes);
    memcpy(first, p.d, bytes);
    tap_ok(multiply(&p) == LAP_OK && memcmp(first, p.d, bytes) == 0, "%s: and again, to the bit",
           ops->name);
    free(first);
    free_product(&p);
}

/* ---- blocks with signals ---- */

#define BLOCKS 400
#define WORDS 16

typedef struct signals {
    lap_bank_t *bank;
    size_t order[BLOCKS]; /* in which the words are raised, at random */
    uint64_t delay_ns;
    int head_start; /* blocks that need no signal and run before the first one comes */
    _Atomic int passed, failed, raised;
    _Atomic int at[BLOCKS]; /* raised as the how-manieth */
} signals_t;

static lap_status_t passed(void *context, size_t block)
{
    (void)block;
    ((signals_t *)context)->passed++;
    return LAP_OK;
}

static lap_status_t failed(void *context, size_t block, lap_status_t status)
{
    ((signals_t *)context)->failed++;
    return lap_error(status, "block %zu waited for nothing", block);
}

static lap_status_t raised(void *context, void *arg)
{
    signals_t *signals = context;
    _Atomic int *at = arg;
    *at = ++signals->raised;
    return LAP_OK;
}

/* Block i waits for word i % WORDS to come to i / WORDS + 1: each is a signal of its own. */
static void *raise_words(void *context)
{
    signals_t *signals = context;
    const uint64_t begin = lap_now_ns();
    while (signals->raised < signals->head_start && lap_now_ns() - begin < 10000000000u)
        lap_sleep_until_ns(lap_now_ns() + signals->delay_ns);
    for (size_t i = 0; i < BLOCKS; i++) {
        lap_bank_raise(signals->bank, signals->order[i]);
        if (tap_random(8, i) % 8 == 0)
            lap_sleep_until_ns(lap_now_ns() + signals->delay_ns);
    }
    return NULL;
}

static void shuffle_words(signals_t *signals, uint64_t seed)
{
    for (size_t i = 0; i < BLOCKS; i++)
        signals->order[i] = i % WORDS;
    for (size_t i = BLOCKS - 1; i > 0; i--) {
        size_t other = tap_random(seed, i) % (i + 1), word = signals->order[i];
        signals->order[i] = signals->order[other];
        signals->order[other] = word;
    }
}

static lap_bank_t *new_bank(size_t nwords)
{
    size_t bytes = (lap_bank_bytes(nwords) + 63) / 64 * 64;
    lap_bank_t *bank = aligned_alloc(64, bytes);
    memset(bank, 0, bytes);
    return bank;
}

static void test_signals(bool any_order, uint64_t shuffle)
{
    tap_doing("%s, %s: %d blocks with signals%s%s", ops->name, lap_dtype_name(dtype), BLOCKS,
              any_order ? ", in any order" : "", shuffle ? ", shuffled" : "");
    static signals_t signals;
    memset(&signals, 0, sizeof(signals));
    signals.bank = new_bank(WORDS);
    signals.delay_ns = 30000;
    signals.head_start = any_order ? 2 : 1; /* the second one overtakes */
    shuffle_words(&signals, shuffle + 1);
    product_t p = new_product(9 + shuffle, BLOCKS * 2, 5, 7, true);
    lap_gemm_block_t *blocks = calloc(BLOCKS, sizeof(*blocks));
    static lap_span_t spans[BLOCKS];
    for (size_t i = 0; i < BLOCKS; i++) {
        blocks[i] = block_of(&p, 2 * i, 2);
        blocks[i].has_wait = i % 5 != 0;
        blocks[i].wait = (lap_bank_wait_t){i % WORDS, (uint32_t)(i / WORDS + 1)};
        blocks[i].raise_arg = &signals.at[i];
        blocks[i].span = &spans[i];
    }
    const lap_watch_t watch = {.timeout_ns = 20000000000u};
    lap_gemm_t gemm = gemm_of(&p, blocks, BLOCKS);
    gemm.any_order = any_order;
    gemm.wait_bank = signals.bank;
    gemm.watch = &watch;
    gemm.wait_failed = failed;
    gemm.wait_passed = passed;
    gemm.raise = raised;
    gemm.context = &signals;
    gemm.shuffle = shuffle;
    pthread_t raiser;
    ops->gemm(stream, &gemm);
    pthread_create(&raiser, NULL, raise_words, &signals);
    tap_success(ops->stream_synchronize(stream), "%s: %d blocks with signals%s%s", ops->name,
                BLOCKS, any_order ? ", in any order" : "", shuffle ? ", shuffled" : "");
    pthread_join(raiser, NULL);
    tap_ok(exact(&p) && isfinite(worst(&p)), "%s: every block is right", ops->name);
    bool ordered = true, once = signals.raised == BLOCKS, spanned = true;
    for (size_t i = 0; i < BLOCKS; i++) {
        ordered = ordered && signals.at[i] == (int)i + 1;
        once = once && signals.at[i] != 0;
        spanned = spanned && spans[i].ready != 0 && spans[i].ready <= spans[i].begin &&
                  spans[i].begin <= spans[i].end;
    }
    tap_ok(once && signals.passed == BLOCKS - BLOCKS / 5 && signals.failed == 0,
           "%s: each was looked at and raised once", ops->name);
    tap_ok(ordered == !any_order, "%s: %s", ops->name,
           any_order ? "those that are ready overtake" : "in the order given");
    tap_ok(spanned, "%s: spans tell when", ops->name);
    /*
     * The same blocks again: everything has come, so that they run in the order given unless
     * shuffled.
     */
    signals.raised = 0;
    ops->gemm(stream, &gemm);
    tap_success(ops->stream_synchronize(stream), "%s: the same blocks once more", ops->name);
    ordered = signals.raised == BLOCKS;
    for (size_t i = 0; i < BLOCKS; i++)
        ordered = ordered && signals.at[i] == (int)i + 1;
    tap_ok(ordered == (shuffle == 0), "%s: run %s", ops->name, shuffle ? "shuffled" : "in order");
    free(blocks);
    free(signals.bank);
    free_product(&p);
}

/*
 * Two blocks wait for each word, one of them for its first signal. The second signal is raised only
 * when the block of the first has run.
 */
static void test_same_word(void)
{
    tap_doing("%s, %s: blocks that wait for one word", ops->name, lap_dtype_name(dtype));
    static const lap_bank_wait_t waits[4] = {{0, 2}, {0, 1}, {1, 1}, {1, 2}};
    static const size_t order[4] = {1, 0, 2, 3};
    signals_t signals = {.bank = new_bank(2)};
    product_t p = new_product(6, 4, 3, 3, true);
    lap_gemm_block_t blocks[4];
    for (size_t i = 0; i < 4; i++) {
        blocks[i] = block_of(&p, i, 1);
        blocks[i].has_wait = true;
        blocks[i].wait = waits[i];
        blocks[i].raise_arg = &signals.at[i];
    }
    const lap_watch_t watch = {.timeout_ns = 30000000000u};
    lap_gemm_t gemm = gemm_of(&p, blocks, 4);
    gemm.any_order = true;
    gemm.wait_bank = signals.bank;
    gemm.watch = &watch;
    gemm.raise = raised;
    gemm.context = &signals;
    ops->gemm(stream, &gemm);
    const uint64_t deadline = lap_now_ns() + 20000000000u;
    bool ordered = true;
    for (int i = 0; i < 4; i++) {
        lap_bank_raise(signals.bank, waits[order[i]].word);
        while (signals.at[order[i]] == 0 && lap_now_ns() < deadline)
            lap_sleep_until_ns(lap_now_ns() + 20000);
        ordered = ordered && signals.at[order[i]] == i + 1;
    }
    ops->stream_synchronize(stream);
    tap_ok(ordered && exact(&p), "%s: blocks that wait for one word run as it counts", ops->name);
    free(signals.bank);
    free_product(&p);
}

static lap_status_t give_up(void *context)
{
    (void)context;
    return LAP_ERR_PEER_LOST;
}

static void test_failed_wait(bool any_order)
{
    tap_doing("%s, %s: blocks whose signal never comes%s", ops->name, lap_dtype_name(dtype),
              any_order ? ", in any order" : "");
    signals_t signals = {.bank = new_bank(WORDS)};
    product_t p = new_product(4, 6, 3, 3, true);
    lap_gemm_block_t blocks[3] = {block_of(&p, 0, 2), block_of(&p, 2, 2), block_of(&p, 4, 2)};
    for (int i = 0; i < 3; i++) {
        blocks[i].has_wait = i != 0;
        blocks[i].wait = (lap_bank_wait_t){(size_t)i, 1};
        blocks[i].raise_arg = &signals.at[i];
    }
    lap_watch_t watch = {.timeout_ns = 30000000u};
    lap_gemm_t gemm = gemm_of(&p, blocks, 3);
    gemm.any_order = any_order;
    gemm.wait_bank = signals.bank;
    gemm.watch = &watch;
    gemm.wait_failed = failed;
    gemm.wait_passed = passed;
    gemm.raise = raised;
    gemm.context = &signals;
    ops->gemm(stream, &gemm);
    tap_failure(ops->stream_synchronize(stream), LAP_ERR_TIMEOUT, "block 1", NULL);
    watch = (lap_watch_t){.timeout_ns = 20000000000u, .look = give_up};
    ops->gemm(stream, &gemm);
    tap_failure(ops->stream_synchronize(stream), LAP_ERR_PEER_LOST, "block 1", NULL);
    tap_ok(signals.failed == 2 && signals.passed == 0 && signals.raised == 2 &&
               got(&p, 2 * p.ldd) == GUARD,
           "%s: a block whose signal never came does not run", ops->name);
    free(signals.bank);
    free_product(&p);
}

static void test_too_large(void)
{
    if (strcmp(ops->name, "cpu") != 0)
        return;
    float x = 0;
    lap_gemm_block_t block = {.a = &x, .d = &x, .rows = 1, .a_stride = 4, .d_stride = 4};
    const lap_gemm_t gemm = {
        .n = (size_t)1 << 31, .k = 1, .b = &x, .b_stride = 4, .blocks = &block, .nblocks = 1};
    ops->gemm(stream, &gemm);
    tap_failure(ops->stream_synchronize(stream), LAP_ERR_UNSUPPORTED, "n = 2147483648",
                "2147483647", NULL);
}

/* XINUSE of the processor: bit 2 are the upper halves of vector registers. ~0: it cannot say. */
static uint32_t registers_in_use(void)
{
    uint32_t low = UINT32_MAX;
#ifdef __x86_64__
    uint32_t state = 0, b, c, d;
    if (!__get_cpuid_count(0xd, 1, &state, &b, &c, &d) || !(state & 1u << 2))
        return low;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(d) : "c"(1));
#endif
    return low;
}

static lap_status_t take_registers(void *arg)
{
    **(uint32_t **)arg = registers_in_use();
    return LAP_OK;
}

/* Code that has no AVX is slow where they are in use. */
static void test_registers(void)
{
    uint32_t before = 0, after = 0, *now = &before;
    product_t p = new_product(5, 64, 384, 128, true);
    tap_success(ops->stream_call(stream, take_registers, &now, sizeof(now)), "a look");
    tap_success(multiply(&p), "a product");
    now = &after;
    tap_success(ops->stream_call(stream, take_registers, &now, sizeof(now)), "another look");
    tap_success(ops->stream_synchronize(stream), "and the end");
    if (before & 1u << 2)
        tap_skip("%s: the processor does not say which registers are in use", ops->name);
    else
        tap_ok(!(after & 1u << 2), "%s: a GEMM leaves no upper halves of registers in use",
               ops->name);
    free_product(&p);
}

static void test_type(void)
{
    tap_note("%s, %s", ops->name, lap_dtype_name(dtype));
    test_shapes();
    test_bound();
    test_splits();
    test_prepared();
    if (!ops->facts.gemm_signals)
        return;
    test_signals(false, 0);
    test_signals(true, 0);
    test_signals(true, 12345);
    test_same_word();
    test_failed_wait(false);
    test_failed_wait(true);
    if (dtype == LAP_FLOAT32) {
        test_too_large();
        test_registers();
    }
}

static void test_device(void)
{
    for (dtype = LAP_FLOAT32; dtype <= LAP_FLOAT8_E5M2; dtype++)
        test_type();
}

int main(void)
{
    return test_devices(NULL, test_device);
}
