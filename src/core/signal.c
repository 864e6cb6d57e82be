/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Raising and waiting for signal words: a spin, then a futex on the bell of the bank. It knows
 * nothing of ranks; whether a wait still makes sense is the business of the watch.
 */
#include "core/signal.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "util/clock.h"

size_t lap_bank_bytes(size_t nwords)
{
    return sizeof(lap_bank_t) + nwords * sizeof(lap_word_t);
}

/*
 * The bell rings in one of 32 tones, and a sleeper is woken by those of its words only: a raise
 * does not wake who waits for another word, such as another stream of the rank, only to sleep
 * again.
 */
static uint32_t tone_of(size_t word)
{
    return 1u << word % 32;
}

static void ring(lap_bank_t *bank, uint32_t tones)
{
    /*
     * Partner: sleep_on. In the single order of the seq_cst operations, either this add comes
     * first, and the waiter's futex finds another value than it expects, or the waiter's count
     * comes first, and the load below sees it.
     */
    atomic_fetch_add_explicit(&bank->bell, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&bank->sleepers, memory_order_seq_cst) > 0) {
        /* Not a private futex: the sleepers may be other processes. */
        syscall(SYS_futex, &bank->bell, FUTEX_WAKE_BITSET, INT_MAX, NULL, NULL, tones);
    }
}

void lap_bank_ring(lap_bank_t *bank)
{
    ring(bank, FUTEX_BITSET_MATCH_ANY);
}

void lap_bank_raise_tagged(lap_bank_t *bank, size_t word, uint64_t tag)
{
    atomic_store_explicit(&bank->words[word].tag, tag, memory_order_relaxed);
    /* Releases what the caller wrote, and the tag, to the acquiring load in lap_bank_reached. */
    atomic_fetch_add_explicit(&bank->words[word].value, 1, memory_order_release);
    ring(bank, tone_of(word));
}

void lap_bank_raise(lap_bank_t *bank, size_t word)
{
    lap_bank_raise_tagged(bank, word, 0);
}

uint64_t lap_bank_tag(const lap_bank_t *bank, size_t word)
{
    return atomic_load_explicit(&bank->words[word].tag, memory_order_relaxed);
}

bool lap_bank_reached(const lap_bank_t *bank, size_t word, uint32_t target)
{
    uint32_t value = atomic_load_explicit(&bank->words[word].value, memory_order_acquire);
    return (int32_t)(value - target) >= 0;
}

static bool find_reached(const lap_bank_t *bank, const lap_bank_wait_t *waits, size_t count,
                         size_t *which_p)
{
    for (size_t i = 0; i < count; i++) {
        if (lap_bank_reached(bank, waits[i].word, waits[i].target)) {
            *which_p = i;
            return true;
        }
    }
    return false;
}

static void relax(void)
{
#if defined(__aarch64__)
    __asm__ volatile("isb" ::
                         : "memory"); /* yield is a no-op on most cores; this costs a few cycles */
#elif defined(__x86_64__)
    __asm__ volatile("pause" ::: "memory");
#endif
}

static bool spin(const lap_bank_t *bank, const lap_bank_wait_t *waits, size_t count, uint64_t until,
                 size_t *which_p)
{
    do {
        for (int i = 0; i < 16; i++) {
            if (find_reached(bank, waits, count, which_p))
                return true;
            relax();
        }
    } while (lap_now_ns() < until);
    return false;
}

/*
 * Sleeps at most `ns` unless the bell has been rung since it showed `bell`, until it is rung in one
 * of these tones. May wake early.
 */
static void sleep_on(lap_bank_t *bank, uint32_t bell, uint32_t tones, uint64_t ns)
{
    struct timespec until; /* this futex takes a point in time, not a duration */
    clock_gettime(CLOCK_MONOTONIC, &until);
    ns += (uint64_t)until.tv_nsec;
    until.tv_sec += (time_t)(ns / 1000000000u);
    until.tv_nsec = (long)(ns % 1000000000u);
    atomic_fetch_add_explicit(&bank->sleepers, 1, memory_order_seq_cst);
    syscall(SYS_futex, &bank->bell, FUTEX_WAIT_BITSET, bell, &until, NULL, tones);
    atomic_fetch_sub_explicit(&bank->sleepers, 1, memory_order_seq_cst);
}

lap_status_t lap_bank_wait_any(lap_bank_t *bank, const lap_bank_wait_t *waits, size_t count,
                               const lap_watch_t *watch, size_t *which_p)
{
    if (find_reached(bank, waits, count, which_p))
        return LAP_OK;
    lap_deadline_t own = lap_deadline_after(watch->timeout_ns);
    lap_deadline_t *deadline = watch->deadline ? watch->deadline : &own;
    const uint64_t start = own.seen;
    uint64_t next_look = start + LAP_WATCH_NS;
    if (watch->spin_ns > 0 && spin(bank, waits, count, start + watch->spin_ns, which_p))
        return LAP_OK;
    uint32_t tones = 0;
    for (size_t i = 0; i < count; i++)
        tones |= tone_of(waits[i].word);
    for (;;) {
        /*
         * The bell is read before the words: a word raised after the test below has rung it since.
         */
        uint32_t bell = atomic_load_explicit(&bank->bell, memory_order_seq_cst);
        if (find_reached(bank, waits, count, which_p))
            return LAP_OK;
        uint64_t now = lap_now_ns();
        if (now >= next_look || now >= deadline->at) {
            lap_status_t status = watch->look ? watch->look(watch->context) : LAP_OK;
            if (status == LAP_OK && lap_deadline_passed(deadline))
                status = LAP_ERR_TIMEOUT;
            /*
             * A word that came at the last moment wins: the peer may have raised it and then left.
             */
            if (status != LAP_OK)
                return find_reached(bank, waits, count, which_p) ? LAP_OK : status;
            next_look = now + LAP_WATCH_NS;
        }
        sleep_on(bank, bell, tones, (next_look < deadline->at ? next_look : deadline->at) - now);
    }
}

lap_status_t lap_bank_wait(lap_bank_t *bank, size_t word, uint32_t target, const lap_watch_t *watch)
{
    size_t which;
    const lap_bank_wait_t wait = {.word = word, .target = target};
    return lap_bank_wait_any(bank, &wait, 1, watch, &which);
}
