/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations of the library that fail on request: `countdown` is the number of the next
 * one that does. For programs linked with --wrap for lap_alloc and lap_realloc.
 */
#ifndef LAP_TEST_FAILING_ALLOC_H
#define LAP_TEST_FAILING_ALLOC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "tap.h"

void *__real_lap_alloc(size_t count, size_t size);
void *__real_lap_realloc(void *old, size_t old_count, size_t count, size_t size);
void *__wrap_lap_alloc(size_t count, size_t size);
void *__wrap_lap_realloc(void *old, size_t old_count, size_t count, size_t size);

static atomic_int countdown; /* the allocation that reaches 0 fails */

static bool fails(void)
{
    return atomic_fetch_sub(&countdown, 1) == 1;
}

void *__wrap_lap_alloc(size_t count, size_t size)
{
    return fails() ? NULL : __real_lap_alloc(count, size);
}

void *__wrap_lap_realloc(void *old, size_t old_count, size_t count, size_t size)
{
    return fails() ? NULL : __real_lap_realloc(old, old_count, count, size);
}

/*
 * Runs fn as each of `nranks` thread ranks of a new world, as tap_ranks does, and lets allocation `nth` from here on
 * fail; 0: none does until `countdown` is set. False: it was one of the world, which is then not there.
 */
static inline bool failing_ranks(int nranks, int nth, void (*fn)(lap_world_t *world, void *arg),
                                 void *arg)
{
    enum { MOST = 4 };
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    lap_world_t *worlds[MOST];
    options.timeout_s = 30;
    atomic_store(&countdown, nth);
    const lap_status_t status =
        nranks > MOST ? LAP_ERR_INVALID : lap_world_create_threads(nranks, &options, worlds);
    if (status == LAP_OK)
        tap_ranks_of(nranks, worlds, fn, arg);
    else
        tap_ok(status == (nth > 0 ? LAP_ERR_NO_MEMORY : LAP_OK), "allocation %d fails: no world",
               nth);
    return status == LAP_OK;
}

#endif
