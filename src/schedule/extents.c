/* SPDX-License-Identifier: Apache-2.0 */
#include "schedule/extents.h"

#include <stdint.h>

#include "util/alloc.h"

bool lap_extents_init(lap_extents_t *extents, size_t count)
{
    extents->width = 1;
    while (extents->width < count)
        extents->width *= 2;
    extents->ends = lap_alloc(2 * extents->width, sizeof(*extents->ends));
    return extents->ends != NULL;
}

void lap_extents_clear(lap_extents_t *extents)
{
    lap_free(extents->ends);
    *extents = (lap_extents_t){.ends = NULL};
}

void lap_extents_set(lap_extents_t *extents, size_t place, size_t end)
{
    size_t *ends = extents->ends;
    size_t node = extents->width + place;
    ends[node] = end;
    for (node /= 2; node > 0; node /= 2) {
        const size_t left = ends[2 * node], right = ends[2 * node + 1];
        ends[node] = left > right ? left : right;
    }
}

/* Up until a subtree to the right, or the leaf itself, reaches far enough; then down its left side. */
size_t lap_extents_next(const lap_extents_t *extents, size_t from, size_t begin)
{
    const size_t *ends = extents->ends;
    if (from >= extents->width)
        return SIZE_MAX;
    size_t node = extents->width + from;
    while (ends[node] <= begin) {
        while (node % 2 == 1)
            node /= 2;
        if (node == 0)
            return SIZE_MAX;
        node++;
    }
    while (node < extents->width)
        node = ends[2 * node] > begin ? 2 * node : 2 * node + 1;
    return node - extents->width;
}
