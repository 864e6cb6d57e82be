/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the builders of AG+GEMM and of all-gathers have in common: who needs which shards, where
 * these are, and the steps that put, multiply and copy them. The order of the steps is left to the
 * builders.
 *
 * Shard c of what is gathered is [m_c, k], the rows of rank c. In symmetric memory the gathered
 * matrix is [m, k], packed, each shard at its row. With FP8 the scale of each shard follows it.
 * `fused` gathers nothing: only the rank's own shard, and its scale, are there. d is
 * [m, n_r]; an all-gather without a product of its own is one for a rank without output features.
 *
 * A rank receives only what it or a rank further down the ring can use: an empty shard is not sent,
 * and nothing is sent to a rank without output features that does not gather. Both sides follow
 * from the same functions of the problem, so that every signal raised is one that its receiver
 * waits for. Each WAIT stands before the step that needs it, and no WAIT is implied by another: the
 * tests of the checker take out each one and want to see it missed.
 */
#ifndef LAP_OVERLAP_GATHER_H
#define LAP_OVERLAP_GATHER_H

#include "overlap/overlap.h"
#include "schedule/range.h"

/* The columns of d on a rank, if d is made of what is gathered. */
static inline size_t lap_gather_features(const lap_problem_t *p, int rank)
{
    return p->kind == LAP_AG_GEMM ? lap_n_of(p, rank) : 0;
}

/* Whether a rank has a use of its own for the shards of its peers. */
static inline bool lap_gather_wants(const lap_problem_t *p, int rank)
{
    return p->gather_input || lap_gather_features(p, rank) > 0;
}

/* Whether the shard of `source` goes straight to `dest`. */
static inline bool lap_gather_flows(const lap_problem_t *p, int source, int dest)
{
    return source != dest && lap_rows_of(p, source) > 0 && lap_gather_wants(p, dest);
}

/* The bytes of a row of what is gathered. */
size_t lap_gather_row_bytes(const lap_problem_t *p);

/* The shards of `count` ranks from `first` on as rows of a [m, k] matrix; what this rank gives. */
lap_range_t lap_gather_shards(const lap_problem_t *p, lap_place_t place, int rank, int first,
                              int count);
lap_range_t lap_own_shard(const lap_problem_t *p);

/* The rank's weight; and rows of d: `rows` of them, from row `skip` of the shard of `first` on. */
lap_range_t lap_gather_weight(const lap_problem_t *p);
lap_range_t lap_gather_output(const lap_problem_t *p, int first, size_t skip, size_t rows);

/* Where a rank keeps its own scale for its peers to read. */
lap_range_t lap_open_scale(const lap_problem_t *p, int rank);

/* What every method begins with; it has so many rows in symmetric memory. */
void lap_gather_begin(const lap_problem_t *p, lap_schedule_t *s, size_t symmetric_rows);

/*
 * Puts the shards of `count` ranks from `first` on, which are at `src`, to a peer, and then raises
 * the signal, unless there is none.
 */
void lap_add_shards(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, int peer,
                    lap_range_t src, int first, int count, uint32_t signal);

/*
 * Puts the own shard to all peers that want it, without a signal, and to its own place: together,
 * as copies of the same rows.
 */
void lap_add_shard_to_all(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream);

/*
 * Copies the own shard to its place among the others. Its scale is read there only by who hands it
 * on. Returns the step.
 */
uint32_t lap_add_own_shard(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream,
                           bool with_scale);

/* Adds a tile to the GEMM step that was added last: rows `a`, with the scale of rank `c`. */
lap_tile_t *lap_add_shard_block(const lap_problem_t *p, lap_schedule_t *s, lap_range_t a,
                                lap_range_t d, int c);

/*
 * A GEMM of its own for the shards of `count` ranks from `first` on, which are at `a`. Shards that
 * have scales of their own are blocks of their own. Returns the step.
 */
uint32_t lap_add_shards_gemm(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream,
                             lap_range_t a, int first, int count);

/*
 * Copies the shards of `count` ranks from `first` on, which are at `src`, to the second result.
 * Returns the step. The own shard needs no communication; nothing if there is no such result.
 */
uint32_t lap_add_gather(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, lap_range_t src,
                        int first, int count);
void lap_add_own_gather(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream);

/* The method `fused`: see ag_fused.c. */
void lap_build_ag_fused(const lap_problem_t *p, lap_schedule_t *s);

#endif
