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

#endif
