/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The geometry of ranges against brute force: every byte of small random ranges is marked and
 * counted.
 */
#include "schedule/range.h"

#include <string.h>

#include "tap.h"

enum { SPACE = 256, TRIES = 20000 };

static lap_range_t random_range(uint64_t seed)
{
    lap_range_t range = {.place = LAP_SYMMETRIC, .offset = tap_random(seed, 0) % 48};
    range.rows = tap_random(seed, 1) % 7;
    range.row_bytes = tap_random(seed, 2) % 9;
    range.stride = range.row_bytes + tap_random(seed, 3) % (tap_random(seed, 4) % 3 ? 12 : 1);
    return range;
}

static void mark(const lap_range_t *range, unsigned char *bytes)
{
    memset(bytes, 0, SPACE);
    for (size_t row = 0; row < range->rows; row++)
        for (size_t i = 0; i < range->row_bytes; i++)
            bytes[range->offset + row * range->stride + i]++;
}

/* The pieces must be the runs of common bytes: in order, inside both, and all of them. */
static bool pieces_agree(const lap_range_t *a, const lap_range_t *b, const unsigned char *in_a,
                         const unsigned char *in_b)
{
    size_t from = 0, begin, end, count = 0, expected = 0;
    for (size_t i = 0; i < SPACE; i++)
        expected += in_a[i] && in_b[i];
    for (; lap_range_next_common(a, b, from, &begin, &end); from = end) {
        if (begin < from || begin >= end || end > SPACE)
            return false;
        for (size_t i = begin; i < end; i++)
            if (!in_a[i] || !in_b[i])
                return false;
        count += end - begin;
    }
    return count == expected && lap_range_common(a, b) == expected &&
           lap_range_common(b, a) == expected;
}

static void test_random(void)
{
    unsigned char in_a[SPACE], in_b[SPACE], normal[SPACE];
    size_t wrong = 0, misshapen = 0, met = 0;
    for (uint64_t i = 0; i < TRIES; i++) {
        lap_range_t a = random_range(2 * i), b = random_range(2 * i + 1), raw = a;
        mark(&raw, in_a);
        mark(&b, in_b);
        a = lap_range_normal(a);
        b = lap_range_normal(b);
        mark(&a, normal);
        misshapen += memcmp(in_a, normal, SPACE) != 0;
        size_t end, last = 0;
        for (size_t j = 0; j < SPACE; j++)
            last = in_a[j] ? j + 1 : last;
        misshapen += !lap_range_valid(&raw, &end) || (last > 0 && end != last);
        wrong += tap_wrong(
            !pieces_agree(&a, &b, in_a, in_b),
            "%zu rows of %zu bytes at %zu every %zu, and %zu of %zu at %zu every %zu", a.rows,
            a.row_bytes, a.offset, a.stride, b.rows, b.row_bytes, b.offset, b.stride);
        met += lap_range_overlaps(&a, &b);
    }
    tap_ok(misshapen == 0, "normal forms hold the same bytes, extents end at the last (%zu wrong)",
           misshapen);
    tap_ok(wrong == 0, "common bytes of %d pairs agree with brute force (%zu wrong)", TRIES, wrong);
    tap_ok(met > TRIES / 10 && met < TRIES, "%zu of the pairs have bytes in common", met);
}

static void test_columns(void)
{
    /* Columns 0..3 and 4..7 of a [5, 8] matrix of bytes, and its row 2. */
    lap_range_t left = {LAP_OUTPUT, 0, 0, 5, 4, 8}, right = {LAP_OUTPUT, 0, 4, 5, 4, 8};
    lap_range_t row = {LAP_OUTPUT, 0, 16, 1, 8, 8};
    tap_ok(lap_range_common(&left, &right) == 0, "columns side by side have nothing in common");
    tap_ok(lap_range_common(&left, &row) == 4, "a column of four bytes meets a row in four bytes");
    tap_ok(lap_range_common(&left, &left) == 20, "a range has all of itself");
    /* Rows as no matrix has, of which the second begins two bytes before the end of a row of the first. */
    const size_t many = (size_t)1 << 40;
    lap_range_t high = {LAP_OUTPUT, 0, 0, many, 6, 8}, low = {LAP_OUTPUT, 0, 12, many, 6, 8};
    lap_range_t whole = {LAP_OUTPUT, 0, 0, 1, many * 8, 0};
    tap_ok(lap_range_common(&high, &low) == (many - 1) * 2 + (many - 2) * 2 &&
               lap_range_common(&low, &high) == (many - 1) * 2 + (many - 2) * 2 &&
               lap_range_common(&whole, &high) == many * 6,
           "rows are not looked at one by one");
}

static void test_invalid(void)
{
    size_t end;
    lap_range_t overlapping = {LAP_SCRATCH, 0, 0, 2, 8, 7};
    lap_range_t too_far = {LAP_SCRATCH, 0, 16, SIZE_MAX / 4, 8, 8};
    lap_range_t no_bytes = {LAP_SCRATCH, 0, 16, 3, 0, 0};
    tap_ok(!lap_range_valid(&overlapping, &end), "rows that overlap are no range");
    tap_ok(!lap_range_valid(&too_far, &end), "a range past the last address is none");
    tap_ok(lap_range_valid(&no_bytes, &end) && lap_range_normal(no_bytes).rows == 0,
           "rows of no bytes are a range without rows");
}

int main(void)
{
    test_random();
    test_columns();
    test_invalid();
    return tap_done();
}
