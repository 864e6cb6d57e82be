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
 * Makes room in an array of `count` elements for `more`, by doubling *room_p until they fit, from
 * 1: most lists of a program have one or two. New elements are zero. NULL, with both untouched,
 * when there is no memory. Inline, so that a test that makes lap_realloc fail fails this too,
 * whoever calls it.
 */
static inline void *lap_grow_by(void *array, size_t count, size_t more, size_t *room_p, size_t size)
{
    size_t room = *room_p ? *room_p : 1;
    if (array && count <= *room_p && more <= *room_p - count)
        return array;
    if (count > SIZE_MAX / 4 || more > SIZE_MAX / 4)
        return NULL;
    while (room < count + more)
        room *= 2;
    void *grown = lap_realloc(array, *room_p, room, size);
    if (grown)
        *room_p = room;
    return grown;
}

/* The same for one more. 2^32 elements are too many: most lists number theirs with uint32_t. */
static inline void *lap_grow(void *array, size_t count, size_t *room_p, size_t size)
{
    return count < UINT32_MAX ? lap_grow_by(array, count, 1, room_p, size) : NULL;
}

/*
 * Doubles a ring, whose element number i lies at i % *room_p and whose elements [first, end) are in
 * use; *room_p is a power of two. The new ring takes the place of the old one, or is NULL, with all
 * untouched, when there is no memory.
 */
void *lap_ring_grow(void *ring, uint64_t first, uint64_t end, size_t *room_p, size_t size);

/* NULL is fine. */
void lap_free(void *p);

#endif
