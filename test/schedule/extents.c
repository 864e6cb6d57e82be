/* SPDX-License-Identifier: Apache-2.0 */
/* The index of extents against a look at all of them, while they come and go at random. */
#include "schedule/extents.h"

#include <stdint.h>

#include "tap.h"

enum { MOST = 37, TRIES = 4000 };

static size_t look(const size_t *ends, size_t count, size_t from, size_t begin)
{
    for (size_t i = from; i < count; i++)
        if (ends[i] > begin)
            return i;
    return SIZE_MAX;
}

static bool agrees(size_t count)
{
    size_t ends[MOST] = {0};
    lap_extents_t extents;
    bool same = lap_extents_init(&extents, count);
    for (uint64_t i = 0; i < TRIES && same; i++) {
        const size_t place = tap_random(i, count) % (count ? count : 1);
        const size_t end = tap_random(i, count + 1) % 3 ? 1 + tap_random(i, count + 2) % 50 : 0;
        if (count > 0) {
            ends[place] = end;
            lap_extents_set(&extents, place, end);
        }
        const size_t from = tap_random(i, count + 3) % (count + 2);
        const size_t begin = tap_random(i, count + 4) % 52;
        same = lap_extents_next(&extents, from, begin) == look(ends, count, from, begin);
    }
    lap_extents_clear(&extents);
    return same;
}

int main(void)
{
    for (size_t count = 0; count <= MOST; count++)
        tap_ok(agrees(count), "the next of %zu extents is the one that a look at all finds", count);
    return tap_done();
}
