/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of intervals of time, which grow, and what of them overlaps. */
#ifndef LAP_SCHEDULE_INTERVALS_H
#define LAP_SCHEDULE_INTERVALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct lap_interval {
    uint64_t begin, end;
} lap_interval_t;

/* All zero at first; lap_intervals_clear ends it, and leaves it so. */
typedef struct lap_intervals {
    lap_interval_t *list;
    size_t count, room;
    bool failed; /* no memory for one of them, or for one of a list that this was made of */
} lap_intervals_t;

void lap_intervals_clear(lap_intervals_t *list);

/* Appends an interval, if it is not empty, and if there is memory for it: see `failed`. */
void lap_intervals_add(lap_intervals_t *list, uint64_t begin, uint64_t end);
void lap_intervals_append(lap_intervals_t *list, const lap_intervals_t *other);

/* Sorts intervals and joins those that touch. */
void lap_intervals_join(lap_intervals_t *list);

/* The parts of a joined list that another, joined too, does not cover. The caller clears them. */
lap_intervals_t lap_intervals_without(const lap_intervals_t *list, const lap_intervals_t *other);

uint64_t lap_intervals_length(const lap_intervals_t *list);

#endif
