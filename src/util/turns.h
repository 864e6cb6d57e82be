/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In which order several are measured, round by round: what one does to the machine, such as to
 * warm it, must not always be done to the same other one. Williams' design: over as many rounds as
 * there are, or twice as many if that is odd, each is at every place as often as all others, and
 * follows each of the others as often.
 */
#ifndef LAP_UTIL_TURNS_H
#define LAP_UTIL_TURNS_H

#include <stddef.h>

/*
 * Who of `count` is at a place of a round: 0, 1, n - 1, 2, n - 2, ..., all moved on by the round.
 */
static inline size_t lap_turn(size_t round, size_t place, size_t count)
{
    if (count % 2) { /* there is such an order and its mirror image */
        place = round % 2 ? count - 1 - place : place;
        round /= 2;
    }
    return ((place % 2 ? (place + 1) / 2 : count - place / 2) + round) % count;
}

#endif
