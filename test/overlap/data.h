/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Global matrices that any rank can make any part of, and the results to expect, for tests of
 * operators.
 */
#ifndef LAP_TEST_OVERLAP_DATA_H
#define LAP_TEST_OVERLAP_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lap/lap.h>

/*
 * One call seen from one rank. `stride_pad` elements lie between the rows of every matrix, to find
 * who ignores them.
 */
typedef struct test_call {
    lap_op_kind_t kind;
    lap_dtype_t dtype;
    size_t m, n, k; /* global, m active */
    int rank, size;
    uint64_t seed;
    bool exact; /* small integers: every sum is exact in any order; else within [-0.5, 0.5] */
    size_t stride_pad;
    bool gather;
    lap_op_args_t args; /* with memory */
} test_call_t;

/*
 * Makes the rank's parts of A and B from the seed, and room for the results, filled with NaN. Exits
 * without memory.
 */
void test_call_init(test_call_t *call);
void test_call_clear(test_call_t *call);

/*
 * Moves one element of d just beyond its bound, so that test_call_error must find it. False when d
 * has no elements.
 */
bool test_call_spoil(test_call_t *call);

/*
 * The largest error of d (and of gathered, which must be exact) against sums in double precision,
 * divided by the bound for its type and k: at most 1 is right. With exact data only the roundings
 * that op.h describes may happen, and any other result counts as an infinite error. Also infinite
 * when a result was not written or memory between rows was.
 */
double test_call_error(const test_call_t *call);

#endif
