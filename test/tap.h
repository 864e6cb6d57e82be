/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every test needs: results in TAP, and ranks to run as threads. A test program prints one
 * line per check, the plan at the end, and exits with 1 if any check failed or none was made.
 * Checks may come from any thread.
 */
#ifndef LAP_TEST_TAP_H
#define LAP_TEST_TAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lap/lap.h>

/* Notes a check and returns whether it held. The text says what should be true. */
bool tap_ok(bool held, const char *format, ...) __attribute__((format(printf, 2, 3)));

/*
 * Returns `wrong`, to be counted; if it is, the text is an example for the next check of this
 * thread, which prints it if it fails. The first one counts.
 */
bool tap_wrong(bool wrong, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A status that should be LAP_OK; prints lap_last_error when it is not. */
bool tap_success(lap_status_t status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/*
 * A status that should be `expected`, with all of the words (NULL at the end) in lap_last_error;
 * prints what it was, and what is missing, when it is not.
 */
bool tap_failure(lap_status_t status, lap_status_t expected, const char *first_word, ...);

/* A check that cannot be made here, and why. Not counted as passed. */
void tap_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));

/*
 * Says what is being done, for the case that it never ends: a program that is about to be killed for
 * its time (LAP_TEST_LIMIT_S seconds, which lap_test sets a little below ctest's limit) prints it
 * with its last check, and fails.
 */
void tap_doing(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints a comment line. */
void tap_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints the plan; main returns it. */
int tap_done(void);

/*
 * Runs fn as each of `nranks` thread ranks of one new world, with its options (may be NULL); joins
 * and destroys them.
 */
void tap_ranks(int nranks, const lap_world_options_t *options,
               void (*fn)(lap_world_t *world, void *arg), void *arg);

/* The same with worlds that are there, one for each rank. */
void tap_ranks_of(int nranks, lap_world_t *const *worlds, void (*fn)(lap_world_t *world, void *arg),
                  void *arg);

/*
 * The same, but where a launcher has started this process, the ranks are its ranks; nothing is done
 * if they are not `nranks`.
 */
void tap_launched_ranks(int nranks, const lap_world_options_t *options,
                        void (*fn)(lap_world_t *world, void *arg), void *arg);

/*
 * A counter-based generator: the same numbers for the same seed and index, on any rank, in any
 * order.
 */
uint64_t tap_random(uint64_t seed, uint64_t index);

/*
 * Half a unit in the last place of the type's number nearest to `value`, or how far it is from the
 * largest of an 8-bit type: how far rounding can move it. 0 for float32, whose roundings the bounds
 * of tests count themselves.
 */
double tap_half_unit(lap_dtype_t dtype, double value);

/*
 * What tensor cores may lose, beyond sums in fp32, in a sum of k products of FP8 numbers, with the
 * zeros that a device adds to them. `range` is the largest less the smallest of the sums of the
 * first 0, 1, ... k of them.
 */
double tap_fp8_loss(size_t k, double range);

/* The value rounded to the type. */
float tap_rounded(lap_dtype_t dtype, float value);

/* The descriptors that this process has open. */
int tap_count_fds(void);

/* The bytes of memory that this process has mapped to share, as /proc/self/maps tells. */
size_t tap_shared_bytes(void);

#endif
