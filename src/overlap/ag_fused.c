/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The method `fused` of AG+GEMM and of all-gathers: nothing is put anywhere. A rank lays its shard
 * open in its own symmetric memory, and its scale; the GEMMs and the copies of its peers read them
 * there, and tell it when they have.
 */
#include "overlap/gather.h"
#include "overlap/partial.h"

#define LATE_PART 4u        /* of the own rows come last in `fused`, */
#define LATE_ROWS 128u      /* in tiles of a GEMM, */
#define LATE_FEATURES 4096u /* if a row becomes so many numbers */

/*
 * Block `j` of the shard that rank `rank` keeps at the start of its symmetric memory; no rows past
 * the last one.
 */
static lap_range_t shard_block(const lap_problem_t *p, int rank, size_t j)
{
    size_t first = j * p->desc.block_rows, rows = lap_rows_of(p, rank);
    size_t left = first < rows ? rows - first : 0;
    return lap_range_packed(LAP_SYMMETRIC, rank, first * lap_gather_row_bytes(p),
                            left < p->desc.block_rows ? left : p->desc.block_rows,
                            lap_gather_row_bytes(p));
}

/* Lays the own shard open, block by block, and tells each block to every peer that can use it. */
static void add_fused_sends(const lap_problem_t *p, lap_schedule_t *s)
{
    uint32_t readers = 0;
    for (int i = 1; i < p->size; i++)
        readers += lap_gather_flows(p, p->rank, lap_peer_at(p, i));
    if (lap_is_scaled(p) && readers > 0 && lap_rows_of(p, p->rank) > 0)
        lap_add_copy(s, LAP_STREAM_SEND, lap_own_scale(p), lap_open_scale(p, p->rank));
    for (uint32_t j = 0; readers > 0 && j < lap_row_blocks(p, p->rank); j++) {
        lap_range_t block = shard_block(p, p->rank, j), src = block;
        src.place = lap_own_shard(p).place;
        lap_add_copy(s, LAP_STREAM_SEND, src, block);
        for (int i = 1; i < p->size; i++)
            if (lap_gather_flows(p, p->rank, lap_peer_at(p, i)))
                lap_add_raise(s, LAP_STREAM_SEND, lap_peer_at(p, i),
                              lap_signal_open(p->size, p->rank), lap_range_bytes(&block));
    }
}

/*
 * The own rows that come last in `fused`, where GEMMs can be side by side: in their time the ranks
 * tell each other that they have read everything. The others must last until the first shard of a
 * peer is here, which depends on the work that a row is.
 */
static size_t late_rows(const lap_problem_t *p)
{
    const bool much = p->lanes && p->size > 1 && lap_gather_features(p, p->rank) >= LATE_FEATURES;
    return much ? lap_rows_of(p, p->rank) / LATE_PART / LATE_ROWS * LATE_ROWS : 0;
}

/* Rows [begin, end) of the own shard as a block of the latest GEMM. */
static void add_own_block(const lap_problem_t *p, lap_schedule_t *s, size_t begin, size_t end)
{
    lap_range_t a = lap_own_shard(p);
    a.offset += begin * a.stride;
    a.rows = end - begin;
    if (a.rows > 0)
        lap_add_shard_block(p, s, a, lap_gather_output(p, p->rank, begin, a.rows), p->rank);
}

/*
 * One GEMM over the own shard, but for its late rows, and, in whatever order they come, the blocks
 * of the peers, read where they are.
 */
static void add_fused_gemm(const lap_problem_t *p, lap_schedule_t *s)
{
    if (lap_gather_features(p, p->rank) == 0 || p->m == 0)
        return;
    lap_add_gemm(s, LAP_STREAM_COMPUTE, lap_gather_weight(p), true);
    add_own_block(p, s, 0, lap_rows_of(p, p->rank) - late_rows(p));
    for (int i = 1; i < p->size; i++) {
        int peer = lap_peer_at(p, -i);
        for (uint32_t j = 0; j < lap_row_blocks(p, peer); j++) {
            lap_range_t a = shard_block(p, peer, j);
            lap_tile_t *tile = lap_add_shard_block(
                p, s, a, lap_gather_output(p, peer, j * p->desc.block_rows, a.rows), peer);
            tile->wait = (lap_signal_t){
                .peer = peer, .word = lap_signal_open(p->size, peer), .count = j + 1};
        }
    }
}

/*
 * Tells each peer that its shard has been read. The second result, which reads it too, must have
 * been copied; where it is all that reads it, the copies' own stream tells it.
 */
static void add_fused_ends(const lap_problem_t *p, lap_schedule_t *s)
{
    bool multiplies = lap_gather_features(p, p->rank) > 0;
    for (int i = 1; i < p->size; i++) {
        int peer = lap_peer_at(p, -i);
        uint32_t copy = 0, blocks = (uint32_t)lap_row_blocks(p, peer);
        if (!lap_gather_flows(p, peer, p->rank))
            continue;
        for (uint32_t j = 0; j < blocks; j++)
            lap_expect(s, lap_signal_open(p->size, peer));
        if (p->gather_input) {
            lap_range_t shard = shard_block(p, peer, 0);
            shard.rows = lap_rows_of(p, peer);
            lap_add_wait(s, LAP_STREAM_RECEIVE, peer, lap_signal_open(p->size, peer), blocks);
            copy = lap_add_gather(p, s, LAP_STREAM_RECEIVE, shard, peer, 1);
        }
        uint32_t done = lap_add_raise(s, multiplies ? LAP_STREAM_COMPUTE : LAP_STREAM_RECEIVE, peer,
                                      lap_signal_done(p->size, p->rank), 0);
        if (p->gather_input && multiplies)
            lap_add_dep(s, done, copy);
    }
    if (late_rows(p) > 0) {
        const size_t rows = lap_rows_of(p, p->rank);
        lap_add_gemm(s, LAP_STREAM_LANE, lap_gather_weight(p), false);
        add_own_block(p, s, rows - late_rows(p), rows);
    }
    for (int i = 1; i < p->size; i++)
        if (lap_gather_flows(p, p->rank, lap_peer_at(p, i)))
            lap_await_done(p, s, LAP_STREAM_SEND, lap_peer_at(p, i));
}

void lap_build_ag_fused(const lap_problem_t *p, lap_schedule_t *s)
{
    lap_gather_begin(p, s, lap_shard(p->capacity, p->size, 0, NULL));
    add_fused_sends(p, s);
    lap_add_local_gemm(p, s);
    add_fused_gemm(p, s);
    lap_add_own_gather(p, s, lap_receive_stream(p));
    add_fused_ends(p, s);
}
