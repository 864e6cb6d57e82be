/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exact geometry of strided ranges of bytes. Everything rests on one question, asked of each range
 * in turn: where is your next piece at or after this address? The caller compares place and rank;
 * here are only addresses.
 */
#include "schedule/range.h"

bool lap_range_valid(const lap_range_t *range, size_t *end_p)
{
    size_t end = range->offset, gaps;
    if (range->rows > 1 && range->stride < range->row_bytes)
        return false;
    if (lap_range_bytes(range) > 0) {
        if (__builtin_mul_overflow(range->rows - 1, range->stride, &gaps) ||
            __builtin_add_overflow(end, gaps, &end) ||
            __builtin_add_overflow(end, range->row_bytes, &end))
            return false;
    }
    *end_p = end;
    return true;
}

lap_range_t lap_range_normal(lap_range_t range)
{
    if (lap_range_bytes(&range) == 0) {
        range.rows = range.row_bytes = range.stride = 0;
    } else if (range.rows == 1 || range.stride == range.row_bytes) {
        range.row_bytes *= range.rows;
        range.stride = range.row_bytes;
        range.rows = 1;
    }
    return range;
}

/*
 * The first piece of one range at or after `from`; it begins at `from` when that is inside a row.
 */
static bool next_piece(const lap_range_t *range, size_t from, size_t *begin_p, size_t *end_p)
{
    size_t row = 0, skip = 0;
    if (range->rows == 0)
        return false;
    if (from > range->offset) {
        row = (from - range->offset) / range->stride;
        skip = (from - range->offset) % range->stride;
        if (skip >= range->row_bytes) {
            row++;
            skip = 0;
        }
    }
    if (row >= range->rows)
        return false;
    size_t start = range->offset + row * range->stride;
    *begin_p = start + skip;
    *end_p = start + range->row_bytes;
    return true;
}

bool lap_range_next_common(const lap_range_t *a, const lap_range_t *b, size_t from, size_t *begin_p,
                           size_t *end_p)
{
    size_t a_begin, a_end, b_begin, b_end;
    while (next_piece(a, from, &a_begin, &a_end) && next_piece(b, a_begin, &b_begin, &b_end)) {
        if (b_begin < a_end) {
            *begin_p = b_begin;
            *end_p = a_end < b_end ? a_end : b_end;
            return true;
        }
        from = b_begin;
    }
    return false;
}

/* The bytes of a range before `end`. */
static size_t bytes_before(const lap_range_t *range, size_t end)
{
    if (end <= range->offset || range->rows == 0)
        return 0;
    const size_t row = range->rows > 1 ? (end - range->offset) / range->stride : 0;
    const size_t part = end - range->offset - row * range->stride;
    if (row >= range->rows)
        return lap_range_bytes(range);
    return row * range->row_bytes + (part < range->row_bytes ? part : range->row_bytes);
}

/* How many of `rows` rows from `first` on are among `of` rows from 0 on. */
static size_t count_rows(ptrdiff_t first, size_t rows, size_t of)
{
    const ptrdiff_t begin = first > 0 ? first : 0, end = first + (ptrdiff_t)rows;
    const ptrdiff_t least = end < (ptrdiff_t)of ? end : (ptrdiff_t)of;
    return least > begin ? (size_t)(least - begin) : 0;
}

/*
 * Of two with the same stride, the second not before the first: `part` bytes into a row of the first a row
 * of the second begins, and may end in the row after.
 */
static size_t common_rows(const lap_range_t *a, const lap_range_t *b)
{
    const size_t stride = a->stride, part = (b->offset - a->offset) % stride;
    const ptrdiff_t row = (ptrdiff_t)((b->offset - a->offset) / stride);
    const size_t end = part + b->row_bytes;
    const size_t least = end < a->row_bytes ? end : a->row_bytes;
    const size_t here = least > part ? least - part : 0, over = end > stride ? end - stride : 0;
    return count_rows(row, b->rows, a->rows) * here +
           count_rows(row + 1, b->rows, a->rows) * (over < a->row_bytes ? over : a->row_bytes);
}

size_t lap_range_common(const lap_range_t *a, const lap_range_t *b)
{
    size_t bytes = 0, begin, end, from = 0;
    /* Matrices may have millions of rows. */
    if (b->rows == 1)
        return bytes_before(a, b->offset + b->row_bytes) - bytes_before(a, b->offset);
    if (a->rows == 1)
        return bytes_before(b, a->offset + a->row_bytes) - bytes_before(b, a->offset);
    if (a->stride == b->stride && a->rows > 0 && b->rows > 0)
        return a->offset <= b->offset ? common_rows(a, b) : common_rows(b, a);
    for (; lap_range_next_common(a, b, from, &begin, &end); from = end)
        bytes += end - begin;
    return bytes;
}
