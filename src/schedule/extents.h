/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An index of extents of bytes [begin, end) that come and go. The caller lists all that there will
 * ever be, in the order in which they begin: those that are there and reach past an address are then
 * found without a look at the others.
 */
#ifndef LAP_SCHEDULE_EXTENTS_H
#define LAP_SCHEDULE_EXTENTS_H

#include <stdbool.h>
#include <stddef.h>

/* A complete binary tree over the list; a node has the furthest end below it, 0 for none. */
typedef struct lap_extents {
    size_t width; /* of its lowest level: a power of two */
    size_t *ends; /* [2 * width]; the children of node i are 2 i and 2 i + 1 */
} lap_extents_t;

/* Of `count` places, at none of which an extent is yet. False: no memory. */
bool lap_extents_init(lap_extents_t *extents, size_t count);
void lap_extents_clear(lap_extents_t *extents);

/* The extent at a place of the list is there, and ends so; 0: it is there no more. */
void lap_extents_set(lap_extents_t *extents, size_t place, size_t end);

/* The first place from `from` on whose extent ends after `begin`; SIZE_MAX: none. */
size_t lap_extents_next(const lap_extents_t *extents, size_t from, size_t begin);

#endif
