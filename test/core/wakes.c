/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who sleeps on a bank is woken by a raise of its word, all of them and at once, and by no other.
 * One that is left asleep finds its word all the same when it looks, 20 ms later, so that no result
 * tells: the futex is asked. Linked with --wrap=syscall. A sleep that ends by its time although the
 * word was raised before is one that nobody woke; time itself is not measured, so that a busy
 * machine makes no difference.
 */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#include "core/signal.h"
#include "tap.h"

#define WAITERS 4
#define ROUNDS 60

static _Atomic int slept_through, sleeps, woken;
static _Atomic uint32_t seen; /* raises, by all waiters */

typedef struct waiter {
    lap_bank_t *bank;
    size_t word;
    uint32_t round; /* the raise that it waits for */
    bool right;
} waiter_t;
static _Thread_local const waiter_t *self;

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);

long __wrap_syscall(long number, ...)
{
    long args[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        args[i] = va_arg(list, long);
    va_end(list);
    const long got = __real_syscall(number, args[0], args[1], args[2], args[3], args[4], args[5]);
    if (number == SYS_futex && args[1] == FUTEX_WAIT_BITSET) {
        const int error = errno;
        atomic_fetch_add(&sleeps, 1);
        atomic_fetch_add(&woken, got == 0);
        if (got != 0 && error == ETIMEDOUT && lap_bank_reached(self->bank, self->word, self->round))
            atomic_fetch_add(&slept_through, 1);
        errno = error;
    }
    return got;
}

/* Waits for each raise of its word. What it has seen it tells elsewhere: that wakes nobody. */
static void *wait_often(void *arg)
{
    waiter_t *waiter = arg;
    const lap_watch_t watch = {.timeout_ns = 50000000000u};
    self = waiter;
    waiter->right = true;
    for (waiter->round = 1; waiter->round <= ROUNDS && waiter->right; waiter->round++) {
        waiter->right = lap_bank_wait(waiter->bank, waiter->word, waiter->round, &watch) == LAP_OK;
        atomic_fetch_add(&seen, 1);
    }
    return NULL;
}

/* Raises a word once all sleep, and returns when `waiters` more have seen it. */
static void raise_asleep(lap_bank_t *bank, size_t word, uint32_t waiters)
{
    const uint32_t before = atomic_load(&seen);
    while (atomic_load(&bank->sleepers) < WAITERS)
        sched_yield();
    lap_bank_raise(bank, word);
    while (atomic_load(&seen) < before + waiters)
        sched_yield();
}

/*
 * All sleep when they are raised. They wait for one word, or for one each: then only one of them
 * has what it waits for, and the others sleep on.
 */
static void test_wakes(bool apart)
{
    const size_t words = apart ? WAITERS : 1;
    lap_bank_t *bank = aligned_alloc(64, lap_bank_bytes(words));
    pthread_t threads[WAITERS];
    waiter_t waiters[WAITERS];
    if (!bank)
        abort();
    memset(bank, 0, lap_bank_bytes(words));
    atomic_store(&slept_through, 0);
    atomic_store(&sleeps, 0);
    atomic_store(&woken, 0);
    atomic_store(&seen, 0);
    for (size_t i = 0; i < WAITERS; i++) {
        waiters[i] = (waiter_t){.bank = bank, .word = apart ? i : 0};
        if (pthread_create(&threads[i], NULL, wait_often, &waiters[i]) != 0)
            abort();
    }
    for (uint32_t round = 1; round < ROUNDS; round++)
        for (size_t word = 0; word < words; word++)
            raise_asleep(bank, word, WAITERS / (uint32_t)words);
    /* Who has seen the last raise of its word does not sleep again. */
    for (size_t word = 0; word < words; word++)
        lap_bank_raise(bank, word);
    int right = 0;
    for (int i = 0; i < WAITERS; i++) {
        pthread_join(threads[i], NULL);
        right += waiters[i].right;
    }
    tap_ok(right == WAITERS && atomic_load(&sleeps) >= ROUNDS,
           "%d rounds: %d waiters sleep and see %s (%d did, in %d sleeps)", ROUNDS, WAITERS,
           apart ? "a word each" : "one word", right, atomic_load(&sleeps));
    /* A sleep may end by its time at the very moment of a raise. */
    tap_ok(atomic_load(&slept_through) <= ROUNDS / 4,
           "... and are woken by the raise, not by their next look (%d slept on)",
           atomic_load(&slept_through));
    tap_ok(atomic_load(&woken) <= ROUNDS * WAITERS,
           "... and by no other: %d sleeps ended by a raise, of %d that were seen",
           atomic_load(&woken), ROUNDS * WAITERS);
    free(bank);
}

int main(void)
{
    test_wakes(false);
    test_wakes(true);
    return tap_done();
}
