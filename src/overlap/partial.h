/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Partial results: what the builders of GEMM+RS and GEMM+AR have in common. a is [m, k_r] and b is
 * [n, k_r], the rank's part of k, so that a b^T is a partial result [m, n]; of the sum over ranks,
 * rank c owns rows m_c. Some methods cut n into splits; in scratch memory each split of the partial
 * result is a packed [m, columns] of its own.
 */
#ifndef LAP_OVERLAP_PARTIAL_H
#define LAP_OVERLAP_PARTIAL_H

#include "overlap/overlap.h"
#include "schedule/range.h"

/* Columns [begin, begin + count) of the result. */
typedef struct lap_columns {
    size_t begin, count;
} lap_columns_t;

lap_columns_t lap_all_columns(const lap_problem_t *p);

/* Part `i` of n; the first n mod num_splits parts have one column more. */
lap_columns_t lap_split_columns(const lap_problem_t *p, size_t i);

size_t lap_columns_bytes(const lap_problem_t *p, lap_columns_t columns);

/* The partial result of the whole m, and its rows that `owner` owns, in scratch memory. */
lap_range_t lap_partial(const lap_problem_t *p, lap_columns_t columns);
lap_range_t lap_partial_of(const lap_problem_t *p, int owner, lap_columns_t columns);

/* Rows of a, and the rows of b that give the columns. */
lap_range_t lap_partial_input(const lap_problem_t *p, size_t first, size_t rows);
lap_range_t lap_partial_weight(const lap_problem_t *p, lap_columns_t columns);

/*
 * Where the part of `source` arrives in the symmetric memory of `owner`: one slot [m_owner,
 * columns], packed, for each other rank; with several splits all slots of the first one, then those
 * of the second. lap_slots_bytes is what they take at most.
 */
lap_range_t lap_slot(const lap_problem_t *p, int owner, int source, lap_columns_t columns);
size_t lap_slots_bytes(const lap_problem_t *p);

/* The number of blocks of block_rows rows that the rows of `owner` make. */
size_t lap_row_blocks(const lap_problem_t *p, int owner);

/* One GEMM of the columns for all rows, into scratch. Returns the step. */
uint32_t lap_add_partial(const lap_problem_t *p, lap_schedule_t *s, lap_columns_t columns);

/*
 * A group of one has nothing to send: the GEMM writes the result. Nothing when there are no rows.
 */
void lap_add_alone(const lap_problem_t *p, lap_schedule_t *s);

/*
 * Adds the blocks of `owner` to the GEMM step that was added last: straight into its slot, each
 * block with its signal, the first one after its credit; or, if they are this rank's own, to `own`.
 */
void lap_add_partial_blocks(const lap_problem_t *p, lap_schedule_t *s, int owner, lap_range_t own);

/* Sums the parts of all ranks in rank order, of which this rank's is `own`, into dst. */
uint32_t lap_add_sum(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream,
                     lap_columns_t columns, lap_range_t own, lap_range_t dst);

#endif
