/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What builders have in common: parts of the weight, scales, local GEMMs, and
 * partial results, which GEMM+RS and GEMM+AR send. a is [m, k_r] and b is [n, k_r], the rank's part
 * of k, so that a b^T is a partial result [m, n]; of the sum over ranks, rank c owns rows m_c. Some
 * methods cut n into splits; in scratch memory each split of the partial result is a packed [m,
 * columns] of its own. A reduce-scatter that runs with a GEMM has x, [m, cols], for its partial result.
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

/* The part of a weight that gives these columns; in the layout of the problem it is n by k. */
lap_range_t lap_weight(const lap_problem_t *p, size_t n, size_t k, lap_columns_t columns);

/* Where elements of another type may begin after `bytes` bytes. */
size_t lap_align(size_t bytes);

/* The scale of what this rank sends; and scales [first, first + count) after `bytes` bytes. */
lap_range_t lap_own_scale(const lap_problem_t *p);
lap_range_t lap_scale_range(int rank, size_t bytes, int first, int count);
size_t lap_scales_end(size_t bytes, int count);

/* The GEMM of kinds whose GEMM is local, and what it writes; nothing for the others. */
void lap_add_local_gemm(const lap_problem_t *p, lap_schedule_t *s);

/* Part `i` of n, which is cut as features are among ranks: see lap_shard_features. */
lap_columns_t lap_split_columns(const lap_problem_t *p, size_t i);

/* The bytes of a row of these columns as it travels. */
size_t lap_columns_bytes(const lap_problem_t *p, lap_columns_t columns);

/* The partial result of the whole m, and its rows that `owner` owns, in scratch memory. */
lap_range_t lap_partial(const lap_problem_t *p, lap_columns_t columns);
lap_range_t lap_partial_of(const lap_problem_t *p, int owner, lap_columns_t columns);

/* Rows of a, and the rows of b that give the columns. */
lap_range_t lap_partial_input(const lap_problem_t *p, size_t first, size_t rows);
lap_range_t lap_partial_weight(const lap_problem_t *p, lap_columns_t columns);

/*
 * Where the part of `source` arrives in the symmetric memory of `owner`: one slot [m_owner,
 * columns], packed, for each other rank. With several splits all slots of the first one come first,
 * then those of the second. With FP8 a scale for each rank follows. lap_slots_bytes is what all of
 * it takes at most.
 */
lap_range_t lap_slot(const lap_problem_t *p, int owner, int source, lap_columns_t columns);
size_t lap_slots_bytes(const lap_problem_t *p);

/* The number of blocks of block_rows rows that the rows of `owner` make. */
size_t lap_row_blocks(const lap_problem_t *p, int owner);

/*
 * Sends its rows of a partial result, which are at `src`, to their owner; with the first columns
 * goes the scale. Returns the first of these steps.
 */
uint32_t lap_add_part(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, int owner,
                      lap_columns_t columns, lap_range_t src);

/*
 * Sends all owners their rows, when they have given credit. Where there are lanes, on a GPU, signals
 * are launches that cost as much as a small copy: they go together. Returns the first step that
 * reads the rows; LAP_NO_STEP: no owner has any.
 */
uint32_t lap_add_parts(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream,
                       lap_columns_t columns);

/* One GEMM of the columns for all rows, into scratch. Returns the step. */
uint32_t lap_add_partial(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream,
                         lap_columns_t columns);

/*
 * A group of one has nothing to send: the GEMM writes the result. Nothing when there are no rows.
 */
void lap_add_single_rank(const lap_problem_t *p, lap_schedule_t *s);

/*
 * What must come before the GEMM that writes into the slots of its peers: their credits, if the
 * scales have to go there first.
 */
void lap_add_scales(const lap_problem_t *p, lap_schedule_t *s);

/*
 * Adds the blocks of `owner` to the GEMM step that was added last. They go straight into its slot,
 * each with its signal, the first one after its credit unless lap_add_scales has waited for that. If
 * they are this rank's own, they go to `own`.
 */
void lap_add_partial_blocks(const lap_problem_t *p, lap_schedule_t *s, int owner, lap_range_t own);

/* Sums the parts of all ranks in rank order, of which this rank's is `own`, into dst. */
uint32_t lap_add_sum(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream,
                     lap_columns_t columns, lap_range_t own, lap_range_t dst);

#endif
