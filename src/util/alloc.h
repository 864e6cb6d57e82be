/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is zeroed, checked for overflow, and says how much was asked when there is none. */
#ifndef LAP_UTIL_ALLOC_H
#define LAP_UTIL_ALLOC_H

#include <stddef.h>
#include <stdint.h>

/* count * size bytes of zeros, or NULL. count or size 0 gives a valid pointer. */
void *lap_alloc(size_t count, size_t size);

/*
 * Grows an array to `count` elements; the new ones are zero. NULL, with `old` untouched, when there
 * is no memory.
 */
void *lap_realloc(void *old, size_t old_count, size_t count, size_t size);

/*
 * Makes room in an array of `count` elements for one more, by doubling *room_p when it is full.
 * NULL, with both untouched, when there is no memory, or room for 2^31 elements is not enough.
 */
static inline void *lap_grow(void *array, uint32_t count, uint32_t *room_p, size_t size)
{
    if (count < *room_p)
        return array;
    if (*room_p > UINT32_MAX / 2)
        return NULL;
    const uint32_t room = *room_p ? 2 * *room_p : 32;
    void *grown = lap_realloc(array, *room_p, room, size);
    if (grown)
        *room_p = room;
    return grown;
}

/* NULL is fine. */
void lap_free(void *p);

#endif
