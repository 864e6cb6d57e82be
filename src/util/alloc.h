/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is zeroed, checked for overflow, and says how much was asked when there is none. */
#ifndef LAP_UTIL_ALLOC_H
#define LAP_UTIL_ALLOC_H

#include <stddef.h>

/* count * size bytes of zeros, or NULL. count or size 0 gives a valid pointer. */
void *lap_alloc(size_t count, size_t size);

/*
 * Grows an array to `count` elements; the new ones are zero. NULL, with `old` untouched, when there
 * is no memory.
 */
void *lap_realloc(void *old, size_t old_count, size_t count, size_t size);

/* NULL is fine. */
void lap_free(void *p);

#endif
