/* SPDX-License-Identifier: Apache-2.0 */
/* Shards and their scales, where they are, and what is made of them: see gather.h. */
#include "overlap/gather.h"

#include "overlap/partial.h"

size_t lap_gather_row_bytes(const lap_problem_t *p)
{
    return (p->kind == LAP_AG_GEMM ? p->k : p->desc.cols) * lap_dtype_size(p->types.wire);
}

lap_range_t lap_gather_shards(const lap_problem_t *p, lap_place_t place, int rank, int first,
                              int count)
{
    size_t begin, rows = 0;
    lap_shard(p->m, p->size, first, &begin);
    for (int c = first; c < first + count; c++)
        rows += lap_rows_of(p, c);
    return lap_range_packed(place, rank, begin * lap_gather_row_bytes(p), rows,
                            lap_gather_row_bytes(p));
}

lap_range_t lap_own_shard(const lap_problem_t *p)
{
    return lap_range_packed(p->kind == LAP_AG_GEMM ? LAP_INPUT : LAP_MOVED, p->rank, 0,
                            lap_rows_of(p, p->rank), lap_gather_row_bytes(p));
}

lap_range_t lap_gather_weight(const lap_problem_t *p)
{
    return lap_weight(p, lap_gather_features(p, p->rank), p->k,
                      (lap_columns_t){0, lap_gather_features(p, p->rank)});
}

lap_range_t lap_gather_output(const lap_problem_t *p, int first, size_t skip, size_t rows)
{
    size_t begin, row_bytes = lap_gather_features(p, p->rank) * lap_dtype_size(p->types.out);
    lap_shard(p->m, p->size, first, &begin);
    return lap_range_packed(LAP_OUTPUT, p->rank, (begin + skip) * row_bytes, rows, row_bytes);
}

lap_range_t lap_open_scale(const lap_problem_t *p, int rank)
{
    size_t most = lap_shard(p->capacity, p->size, 0, NULL);
    return lap_scale_range(rank, most * lap_gather_row_bytes(p), 0, 1);
}

/* The scales of the shards of `count` ranks from `first` on. */
static lap_range_t scales(const lap_problem_t *p, int rank, int first, int count)
{
    return lap_scale_range(rank, p->capacity * lap_gather_row_bytes(p), first, count);
}

/* The same in what the call returns. */
static lap_range_t gathered_scales(const lap_problem_t *p, int first, int count)
{
    return lap_range_packed(LAP_SCALES, p->rank, (size_t)first * sizeof(float), 1,
                            (size_t)count * sizeof(float));
}

/* How many of these shards have rows, and so a scale. The empty ones are the last. */
static int full_shards(const lap_problem_t *p, int first, int count)
{
    while (count > 0 && lap_rows_of(p, first + count - 1) == 0)
        count--;
    return count;
}

void lap_gather_begin(const lap_problem_t *p, lap_schedule_t *s, size_t symmetric_rows)
{
    s->output = lap_gather_output(p, 0, 0, lap_gather_features(p, p->rank) > 0 ? p->m : 0);
    if (p->gather_input)
        s->gathered = lap_gather_shards(p, LAP_GATHERED, p->rank, 0, p->size);
    if (p->gather_input && lap_is_scaled(p))
        s->scales = gathered_scales(p, 0, full_shards(p, 0, p->size));
    if (p->size > 1)
        s->symmetric_bytes = symmetric_rows * lap_gather_row_bytes(p);
    if (p->size > 1 && lap_is_scaled(p))
        s->symmetric_bytes = lap_scales_end(s->symmetric_bytes, p->size);
}

/* The scales of the shards that are at `src`, if they have any. */
static void add_scales(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, int peer,
                       lap_range_t src, int first, int count)
{
    const int full = full_shards(p, first, count);
    if (lap_is_scaled(p))
        lap_add_put(s, stream, peer, LAP_NO_SIGNAL,
                    src.place == LAP_SYMMETRIC ? scales(p, p->rank, first, full) : lap_own_scale(p),
                    scales(p, peer, first, full));
}

void lap_add_shards(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, int peer,
                    lap_range_t src, int first, int count, uint32_t signal)
{
    add_scales(p, s, stream, peer, src, first, count);
    lap_add_put(s, stream, peer, signal, src,
                lap_gather_shards(p, LAP_SYMMETRIC, peer, first, count));
}

void lap_add_shard_to_all(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream)
{
    const lap_range_t own = lap_own_shard(p);
    const uint32_t before = s->nsteps;
    for (int i = 1; i < p->size; i++)
        if (lap_gather_flows(p, p->rank, lap_peer_at(p, i)))
            add_scales(p, s, stream, lap_peer_at(p, i), own, p->rank, 1);
    for (int i = 1; i < p->size; i++)
        if (lap_gather_flows(p, p->rank, lap_peer_at(p, i)))
            lap_add_put(s, stream, lap_peer_at(p, i), LAP_NO_SIGNAL, own,
                        lap_gather_shards(p, LAP_SYMMETRIC, lap_peer_at(p, i), p->rank, 1));
    if (lap_gather_wants(p, p->rank) && own.rows > 0)
        (void)lap_add_own_shard(p, s, stream, false);
    lap_go_together(s, before);
}

uint32_t lap_add_own_shard(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream,
                           bool with_scale)
{
    if (with_scale && lap_is_scaled(p))
        lap_add_copy(s, stream, lap_own_scale(p), scales(p, p->rank, p->rank, 1));
    return lap_add_copy(s, stream, lap_own_shard(p),
                        lap_gather_shards(p, LAP_SYMMETRIC, p->rank, p->rank, 1));
}

lap_tile_t *lap_add_shard_block(const lap_problem_t *p, lap_schedule_t *s, lap_range_t a,
                                lap_range_t d, int c)
{
    lap_tile_t *tile = lap_gemm_rows(s, a, d);
    if (lap_is_scaled(p) && c == p->rank)
        lap_gemm_scale(s, lap_own_scale(p));
    else if (lap_is_scaled(p))
        lap_gemm_scale(s, a.rank == p->rank ? scales(p, p->rank, c, 1) : lap_open_scale(p, c));
    return tile;
}

uint32_t lap_add_shards_gemm(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream,
                             lap_range_t a, int first, int count)
{
    uint32_t step = lap_add_gemm(s, stream, lap_gather_weight(p), false);
    if (!lap_is_scaled(p)) {
        lap_gemm_rows(s, a, lap_gather_output(p, first, 0, a.rows));
        return step;
    }
    for (int c = first; c < first + count; c++) {
        a.rows = lap_rows_of(p, c);
        if (a.rows > 0)
            lap_add_shard_block(p, s, a, lap_gather_output(p, c, 0, a.rows), c);
        a.offset += a.rows * a.stride;
    }
    return step;
}

uint32_t lap_add_gather(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, lap_range_t src,
                        int first, int count)
{
    lap_range_t dst = lap_gather_shards(p, LAP_GATHERED, p->rank, first, count);
    const int full = lap_is_scaled(p) ? full_shards(p, first, count) : 0;
    for (int c = first; c < first + full; c++) {
        bool open = src.place == LAP_SYMMETRIC && src.rank != p->rank;
        lap_add_copy(s, stream,
                     c == p->rank ? lap_own_scale(p)
                     : open       ? lap_open_scale(p, c)
                                  : scales(p, p->rank, c, 1),
                     gathered_scales(p, c, 1));
    }
    return lap_add_copy(s, stream, src, dst);
}

void lap_add_own_gather(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream)
{
    if (p->gather_input && lap_rows_of(p, p->rank) > 0)
        lap_add_gather(p, s, stream, lap_own_shard(p), p->rank, 1);
}
