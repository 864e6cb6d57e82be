/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Zeroed memory with checked sizes. It writes no sentence: whoever asked knows what the memory was
 * for.
 */
#include "util/alloc.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

void *lap_alloc(size_t count, size_t size)
{
    /* calloc may answer NULL to a size of zero, which would look like a failure. */
    if (count == 0 || size == 0)
        return calloc(1, 1);
    return count <= SIZE_MAX / size ? calloc(count, size) : NULL;
}

void *lap_realloc(void *old, size_t old_count, size_t count, size_t size)
{
    if (!old)
        return lap_alloc(count, size);
    if (size != 0 && count > SIZE_MAX / size)
        return NULL;
    size_t bytes = count * size;
    char *grown = realloc(old, bytes ? bytes : 1);
    if (grown && count > old_count)
        memset(grown + old_count * size, 0, (count - old_count) * size);
    return grown;
}

void *lap_ring_grow(void *ring, uint64_t first, uint64_t end, size_t *room_p, size_t size)
{
    const size_t old = *room_p, room = 2 * old;
    char *grown = old <= SIZE_MAX / 2 ? lap_alloc(room, size) : NULL;
    if (!grown)
        return NULL;
    for (uint64_t i = first; i != end; i++)
        memcpy(grown + i % room * size, (const char *)ring + i % old * size, size);
    lap_free(ring);
    *room_p = room;
    return grown;
}

void lap_free(void *p)
{
    free(p);
}
