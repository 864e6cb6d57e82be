/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signal words in memory that several threads or processes share. A word only ever counts up, and
 * wraps. A bank holds the words of one rank and one doorbell: whoever raises a word rings the bell,
 * whoever waits for any word sleeps on the bell. So one wait can watch several words, and a raise
 * costs a system call only when somebody sleeps.
 */
#ifndef LAP_CORE_SIGNAL_H
#define LAP_CORE_SIGNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lap/status.h>

#include "util/deadline.h"

typedef struct lap_word {
    _Alignas(64) _Atomic uint32_t value; /* a cache line each: raisers do not disturb one another */
    _Atomic uint64_t tag;                /* what its latest raise was for */
} lap_word_t;

typedef struct lap_bank {
    _Alignas(64) _Atomic uint32_t bell; /* the futex; rung after every change of a word */
    _Atomic uint32_t sleepers;
    lap_word_t words[];
} lap_bank_t;

/* The bytes of a bank of `nwords` words. All zero is a valid bank. */
size_t lap_bank_bytes(size_t nwords);

/*
 * Adds one to a word. Releases: what the caller wrote before is visible to the waiter that sees the
 * new value.
 */
void lap_bank_raise(lap_bank_t *bank, size_t word);

/*
 * The same, leaving a tag that lap_bank_tag then reads. Whoever has seen the word reach its target
 * reads the tag of that raise, or of a later one.
 */
void lap_bank_raise_tagged(lap_bank_t *bank, size_t word, uint64_t tag);
uint64_t lap_bank_tag(const lap_bank_t *bank, size_t word);

/* Wakes whoever sleeps on the bank, so that it looks again. */
void lap_bank_ring(lap_bank_t *bank);

/* Whether a word has reached `target`, across the wrap. Acquires. */
bool lap_bank_reached(const lap_bank_t *bank, size_t word, uint32_t target);

/*
 * What a wait does besides sleeping: how long it may last, and who looks whether it still makes
 * sense.
 */
typedef struct lap_watch {
    uint64_t timeout_ns; /* unless there is a deadline below */
    uint64_t spin_ns; /* how long to spin before sleeping; 0 when there are more ranks than cores */
    /*
     * Called every LAP_WATCH_NS while waiting; anything but LAP_OK ends the wait with that status.
     */
    lap_status_t (*look)(void *context);
    void *context;
    lap_deadline_t *deadline; /* (optional) that several waits have in common */
} lap_watch_t;

#define LAP_WATCH_NS 20000000u /* 20 ms */

#define LAP_NO_SIGNAL UINT32_MAX /* in place of a word: none */

typedef struct lap_bank_wait {
    size_t word;
    uint32_t target;
} lap_bank_wait_t;

/*
 * Waits until one of `count` words has reached its target; writes its index to *which_p (the first
 * that has).
 * Returns what `look` returned, or LAP_ERR_TIMEOUT without a sentence: the caller knows what it
 * waited for.
 */
lap_status_t lap_bank_wait_any(lap_bank_t *bank, const lap_bank_wait_t *waits, size_t count,
                               const lap_watch_t *watch, size_t *which_p);

/* The same for a single word. */
lap_status_t lap_bank_wait(lap_bank_t *bank, size_t word, uint32_t target,
                           const lap_watch_t *watch);

#endif
