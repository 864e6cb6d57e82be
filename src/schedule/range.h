/* SPDX-License-Identifier: Apache-2.0 */
/* Exact geometry of strided ranges of bytes: which bytes two of them have in common. */
#ifndef LAP_SCHEDULE_RANGE_H
#define LAP_SCHEDULE_RANGE_H

#include "schedule/schedule.h"

/* `rows` rows of `row_bytes` bytes, one right after the other. */
static inline lap_range_t lap_range_packed(lap_place_t place, int rank, size_t offset, size_t rows,
                                           size_t row_bytes)
{
    lap_range_t range = {place, rank, offset, rows, row_bytes, row_bytes};
    return range;
}

/* The bytes of a range; its gaps do not count. */
static inline size_t lap_range_bytes(const lap_range_t *range)
{
    return range->rows * range->row_bytes;
}

/*
 * Whether a range is one: its rows do not overlap and its end is an address. Writes one past its
 * last byte to *end_p.
 */
bool lap_range_valid(const lap_range_t *range, size_t *end_p);

/*
 * The same bytes in the fewest rows: one row when there are no gaps, none when there are no bytes.
 */
lap_range_t lap_range_normal(lap_range_t range);

/*
 * The first piece of bytes at or after address `from` that two normal ranges of the same memory
 * have in common. Writes where it begins and ends; false when there is none.
 */
bool lap_range_next_common(const lap_range_t *a, const lap_range_t *b, size_t from, size_t *begin_p,
                           size_t *end_p);

/* How many bytes two normal ranges of the same memory have in common. */
size_t lap_range_common(const lap_range_t *a, const lap_range_t *b);

/* Whether they have one: of two blocks of columns of a matrix no row is gone through. */
static inline bool lap_range_overlaps(const lap_range_t *a, const lap_range_t *b)
{
    size_t begin, end;
    return a->rows <= 1 || b->rows <= 1 || a->stride == b->stride
               ? lap_range_common(a, b) > 0
               : lap_range_next_common(a, b, 0, &begin, &end);
}

#endif
