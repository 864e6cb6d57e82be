/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The builder of an all-to-all: operators that move an x in which each rank has rows of its own for
 * every other (lap_op_desc_t.alltoall). As an all-gather x is [P m_r, cols], rows c m_r to (c + 1) m_r
 * of which go to rank c, and y is [m, cols], the rows of each rank in their place; as a reduce-scatter
 * it is the way back: x is [m, cols], and y has the parts of all ranks one after the other, not their
 * sum. Parts arrive in symmetric memory where they lie in y, packed.
 */
#include "overlap/partial.h"

/* Where in x the rows of this rank for `peer` begin, in y those of `peer` for `rank`; how many. */
typedef struct part {
    size_t first, rows;
} part_t;

static size_t begin_of(const lap_problem_t *p, int rank)
{
    size_t first;
    lap_shard(p->m, p->size, rank, &first);
    return first;
}

static part_t part_of_x(const lap_problem_t *p, int peer)
{
    const size_t own = lap_rows_of(p, p->rank);
    if (lap_kind_sums_x(p->kind))
        return (part_t){begin_of(p, peer), lap_rows_of(p, peer)};
    return (part_t){(size_t)peer * own, own};
}

static part_t part_of_y(const lap_problem_t *p, int rank, int peer)
{
    const size_t own = lap_rows_of(p, rank);
    if (lap_kind_sums_x(p->kind))
        return (part_t){(size_t)peer * own, own};
    return (part_t){begin_of(p, peer), lap_rows_of(p, peer)};
}

static lap_range_t range_of(const lap_problem_t *p, lap_place_t place, int rank, part_t part)
{
    const size_t row = p->desc.cols * lap_dtype_size(p->types.wire);
    return lap_range_packed(place, rank, part.first * row, part.rows, row);
}

static void begin(const lap_problem_t *p, lap_schedule_t *s)
{
    const size_t row = p->desc.cols * lap_dtype_size(p->types.wire), size = (size_t)p->size;
    const bool back = lap_kind_sums_x(p->kind);
    const size_t rows = back ? size * lap_rows_of(p, p->rank) : p->m;
    s->gathered = lap_range_packed(LAP_GATHERED, p->rank, 0, rows, row);
    if (p->size > 1)
        s->symmetric_bytes =
            row * (back ? size * lap_shard(p->capacity, p->size, 0, NULL) : p->capacity);
}

void lap_build_alltoall(const lap_problem_t *p, lap_schedule_t *s, bool serial)
{
    const uint16_t send = serial ? LAP_STREAM_COMPUTE : LAP_STREAM_SEND;
    const uint16_t receive = serial ? LAP_STREAM_COMPUTE : LAP_STREAM_RECEIVE;
    begin(p, s);
    for (int i = 1; i < p->size; i++) {
        const int peer = lap_peer_at(p, -i);
        if (part_of_y(p, p->rank, peer).rows == 0)
            continue;
        lap_add_raise(s, send, peer, lap_signal_credit(p->size, p->rank), 0);
        lap_expect(s, lap_signal_data(peer));
    }
    for (int i = 1; i < p->size; i++) {
        const int peer = lap_peer_at(p, i);
        const lap_range_t rows = range_of(p, LAP_MOVED, p->rank, part_of_x(p, peer));
        if (rows.rows == 0)
            continue;
        lap_await_credit(p, s, send, peer);
        lap_add_put(s, send, peer, lap_signal_data(p->rank), rows,
                    range_of(p, LAP_SYMMETRIC, peer, part_of_y(p, peer, p->rank)));
    }
    for (int i = 0; i < p->size; i++) {
        const int peer = lap_peer_at(p, -i);
        const part_t part = part_of_y(p, p->rank, peer);
        if (part.rows == 0)
            continue;
        if (i > 0)
            lap_add_wait(s, receive, peer, lap_signal_data(peer), 1);
        lap_add_copy(s, receive,
                     i == 0 ? range_of(p, LAP_MOVED, p->rank, part_of_x(p, p->rank))
                            : range_of(p, LAP_SYMMETRIC, p->rank, part),
                     range_of(p, LAP_GATHERED, p->rank, part));
    }
}
