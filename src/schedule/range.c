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

size_t lap_range_common(const lap_range_t *a, const lap_range_t *b)
{
    size_t bytes = 0, begin, end, from = 0;
    for (; lap_range_next_common(a, b, from, &begin, &end); from = end)
        bytes += end - begin;
    return bytes;
}
