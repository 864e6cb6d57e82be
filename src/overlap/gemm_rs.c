/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The builders of GEMM+RS: d = rows m_r of the sum over ranks of a b^T. Every rank sends the rows
 * of its partial result to their owners (see partial.h), who add them up in rank order.
 *
 * A rank without rows receives nothing and sums nothing; a rank without part in k still computes,
 * and sends, zeros.
 */
#include "overlap/partial.h"
#include "transport/transport.h"

#define EARLY_PART 4u   /* of the own rows come first in `fused`, */
#define EARLY_ROWS 128u /* in tiles of a GEMM */

/* What every method begins with. */
static void begin_schedule(const lap_problem_t *p, lap_schedule_t *s, size_t scratch_rows)
{
    s->output = lap_range_packed(LAP_OUTPUT, p->rank, 0, lap_rows_of(p, p->rank),
                                 p->n * lap_dtype_size(p->types.out));
    if (p->size > 1) {
        s->symmetric_bytes = lap_slots_bytes(p);
        s->scratch_bytes = scratch_rows * lap_columns_bytes(p, lap_all_columns(p));
    }
}

/* Lets every peer write into its slot here; each will raise its data signal `count` times. */
static void add_credits(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, size_t count)
{
    for (int i = 1; i < p->size && lap_rows_of(p, p->rank) > 0; i++) {
        int peer = lap_peer_at(p, -i);
        lap_add_raise(s, stream, peer, lap_signal_credit(p->size, p->rank), 0);
        for (size_t j = 0; j < count; j++)
            lap_expect(s, lap_signal_data(peer));
    }
}

/*
 * Sends the partial result for the rows of `peer`; returns the first step after the wait for its
 * credit, with which the first columns begin.
 */
static uint32_t add_send(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, int peer,
                         lap_columns_t columns)
{
    if (columns.begin == 0)
        lap_await_credit(p, s, stream, peer);
    return lap_add_part(p, s, stream, peer, columns, lap_partial_of(p, peer, columns));
}

/* Waits for the parts of all peers. Returns the last wait. */
static uint32_t await_parts(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream,
                            size_t count)
{
    uint32_t last = LAP_NO_STEP;
    for (int i = 1; i < p->size; i++) {
        int peer = lap_peer_at(p, -i);
        last = lap_add_wait(s, stream, peer, lap_signal_data(peer), (uint32_t)count);
    }
    return last;
}

/* Sums what was waited for. Returns the sum; the caller has rows. */
static uint32_t add_sum(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream,
                        lap_columns_t columns, lap_range_t own)
{
    lap_range_t dst = s->output;
    dst.offset = columns.begin * lap_dtype_size(p->types.out);
    dst.row_bytes = columns.count * lap_dtype_size(p->types.out);
    return lap_add_sum(p, s, stream, columns, own, dst);
}

static void build_serial(const lap_problem_t *p, lap_schedule_t *s)
{
    lap_columns_t all = lap_all_columns(p);
    begin_schedule(p, s, p->capacity);
    if (p->size == 1 || p->m == 0) {
        lap_add_single_rank(p, s);
        return;
    }
    add_credits(p, s, LAP_STREAM_COMPUTE, 1);
    lap_add_partial(p, s, LAP_STREAM_COMPUTE, all);
    (void)lap_add_parts(p, s, LAP_STREAM_COMPUTE, all);
    if (lap_rows_of(p, p->rank) > 0) {
        await_parts(p, s, LAP_STREAM_COMPUTE, 1);
        add_sum(p, s, LAP_STREAM_COMPUTE, all, lap_partial_of(p, p->rank, all));
    }
}

static void build_ring(const lap_problem_t *p, lap_schedule_t *s)
{
    lap_columns_t all = lap_all_columns(p);
    begin_schedule(p, s, p->capacity);
    if (p->size == 1) {
        lap_add_single_rank(p, s);
        return;
    }
    add_credits(p, s, LAP_STREAM_SEND, 1);
    /* The own rows come last: their time hides the last transfer. */
    for (int i = 1; i <= p->size; i++) {
        int owner = lap_peer_at(p, i);
        size_t first, rows = lap_shard(p->m, p->size, owner, &first);
        if (rows == 0)
            continue;
        uint32_t gemm =
            lap_add_gemm(s, lap_lane(p, (size_t)(p->size - i)), lap_partial_weight(p, all), false);
        lap_gemm_rows(s, lap_partial_input(p, first, rows), lap_partial_of(p, owner, all));
        if (owner != p->rank)
            lap_add_dep(s, add_send(p, s, LAP_STREAM_SEND, owner, all), gemm);
    }
    if (lap_rows_of(p, p->rank) > 0) {
        await_parts(p, s, LAP_STREAM_COMPUTE, 1);
        add_sum(p, s, LAP_STREAM_COMPUTE, all, lap_partial_of(p, p->rank, all));
    }
}

/* One split: its GEMM, what it sends to each owner, and the sum of what came. */
static void add_split(const lap_problem_t *p, lap_schedule_t *s, size_t i)
{
    lap_columns_t columns = lap_split_columns(p, i);
    uint32_t gemm = lap_add_partial(p, s, lap_lane(p, i), columns);
    const uint32_t put = lap_add_parts(p, s, LAP_STREAM_SEND, columns);
    if (put != LAP_NO_STEP)
        lap_add_dep(s, put, gemm);
    if (lap_rows_of(p, p->rank) > 0) {
        await_parts(p, s, LAP_STREAM_RECEIVE, i + 1);
        uint32_t sum =
            add_sum(p, s, LAP_STREAM_RECEIVE, columns, lap_partial_of(p, p->rank, columns));
        lap_add_dep(s, sum, gemm);
    }
}

static void build_pipeline(const lap_problem_t *p, lap_schedule_t *s)
{
    begin_schedule(p, s, p->capacity);
    if (p->size == 1 || p->m == 0) {
        lap_add_single_rank(p, s);
        return;
    }
    add_credits(p, s, LAP_STREAM_SEND, p->desc.num_splits);
    for (size_t i = 0; i < p->desc.num_splits; i++)
        add_split(p, s, i);
}

/*
 * The partial result of `source` with its rows that `owner` owns, in symmetric memory, where peers
 * read it; split by split as in scratch memory.
 */
static lap_range_t open_partial(const lap_problem_t *p, int source, int owner,
                                lap_columns_t columns)
{
    lap_range_t range = lap_partial_of(p, owner, columns);
    range.place = LAP_SYMMETRIC;
    range.rank = source;
    return range;
}

static size_t open_bytes(const lap_problem_t *p)
{
    return p->capacity * lap_columns_bytes(p, lap_all_columns(p));
}

/* Where a rank keeps the scale of it. */
static lap_range_t open_scale(const lap_problem_t *p, int source)
{
    return lap_scale_range(source, open_bytes(p), 0, 1);
}

/* Waits until all peers have laid open so many splits. */
static void await_open(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, uint32_t splits)
{
    for (int j = 1; j < p->size; j++) {
        int peer = lap_peer_at(p, -j);
        lap_add_wait(s, stream, peer, lap_signal_open(p->size, peer), splits);
        lap_expect(s, lap_signal_open(p->size, peer));
    }
}

/* What all ranks have laid open of these columns are the parts of the sum that was added last. */
static void add_open_sources(const lap_problem_t *p, lap_schedule_t *s, lap_columns_t columns)
{
    for (int source = 0; source < p->size; source++)
        lap_reduce_source(s, open_partial(p, source, p->rank, columns), p->types.wire);
    for (int source = 0; source < p->size && lap_is_scaled(p); source++)
        lap_reduce_scale(s, source == p->rank ? lap_own_scale(p) : open_scale(p, source));
}

/* Sums split `i` of what all ranks have laid open, when they have; `gemm` is this rank's part. */
static void add_open_sum(const lap_problem_t *p, lap_schedule_t *s, size_t i, uint32_t gemm)
{
    lap_columns_t columns = lap_split_columns(p, i);
    lap_range_t dst = s->output;
    if (dst.rows == 0)
        return;
    await_open(p, s, LAP_STREAM_RECEIVE, (uint32_t)i + 1);
    dst.offset = columns.begin * lap_dtype_size(p->types.out);
    dst.row_bytes = columns.count * lap_dtype_size(p->types.out);
    uint32_t sum = lap_add_reduce(s, LAP_STREAM_RECEIVE, dst, p->types.out);
    lap_add_dep(s, sum, gemm);
    add_open_sources(p, s, columns);
}

/* The GEMM of split `i`; tells each owner that its rows are there. Returns the GEMM. */
static uint32_t add_open_part(const lap_problem_t *p, lap_schedule_t *s, size_t i)
{
    lap_columns_t columns = lap_split_columns(p, i);
    lap_range_t d = lap_partial(p, columns);
    bool first = true;
    d.place = LAP_SYMMETRIC;
    uint32_t gemm = lap_add_gemm(s, lap_lane(p, i), lap_partial_weight(p, columns), false);
    lap_gemm_rows(s, lap_partial_input(p, 0, p->m), d);
    for (int j = 1; j < p->size; j++) {
        int peer = lap_peer_at(p, j);
        lap_range_t rows = open_partial(p, p->rank, peer, columns);
        if (rows.rows == 0)
            continue;
        uint32_t raise = lap_add_raise(s, LAP_STREAM_SEND, peer, lap_signal_open(p->size, p->rank),
                                       lap_range_bytes(&rows));
        if (first)
            lap_add_dep(s, raise, gemm);
        first = false;
    }
    return gemm;
}

/* Begins a schedule whose partial products peers read in place; false: there is nobody to do so. */
static bool begin_open(const lap_problem_t *p, lap_schedule_t *s)
{
    begin_schedule(p, s, 0);
    if (p->size > 1)
        s->symmetric_bytes = lap_is_scaled(p) ? lap_scales_end(open_bytes(p), 1) : open_bytes(p);
    if (p->size > 1 && p->m > 0)
        return true;
    lap_add_single_rank(p, s);
    return false;
}

static void build_pull(const lap_problem_t *p, lap_schedule_t *s)
{
    uint32_t gemm = 0;
    bool read = false;
    if (!begin_open(p, s))
        return;
    for (int j = 1; j < p->size; j++)
        read = read || lap_rows_of(p, lap_peer_at(p, j)) > 0;
    if (lap_is_scaled(p) && read)
        lap_add_copy(s, LAP_STREAM_SEND, lap_own_scale(p), open_scale(p, p->rank));
    for (size_t i = 0; i < p->desc.num_splits; i++) {
        const uint32_t last = gemm;
        gemm = add_open_part(p, s, i);
        if (i > 0)
            add_open_sum(p, s, i - 1, last);
    }
    add_open_sum(p, s, p->desc.num_splits - 1, gemm);
    /* What was read may be written again when all who read it have signalled that. */
    for (int j = 1; j < p->size && s->output.rows > 0; j++)
        lap_add_raise(s, LAP_STREAM_RECEIVE, lap_peer_at(p, -j), lap_signal_done(p->size, p->rank),
                      0);
    for (int j = 1; j < p->size; j++)
        if (lap_rows_of(p, lap_peer_at(p, j)) > 0)
            lap_await_done(p, s, LAP_STREAM_SEND, lap_peer_at(p, j));
}

/*
 * The shortest way for few rows: one GEMM, then all signals at once, one sum that reads what all
 * ranks have, in place, and all signals again.
 */
static void build_oneshot(const lap_problem_t *p, lap_schedule_t *s)
{
    const uint16_t stream = LAP_STREAM_COMPUTE;
    const lap_columns_t all = lap_all_columns(p);
    if (!begin_open(p, s))
        return;
    lap_range_t d = lap_partial(p, all);
    bool read = false;
    d.place = LAP_SYMMETRIC;
    for (int j = 1; j < p->size; j++)
        read = read || lap_rows_of(p, lap_peer_at(p, j)) > 0;
    if (lap_is_scaled(p) && read)
        lap_add_copy(s, stream, lap_own_scale(p), open_scale(p, p->rank));
    lap_add_gemm(s, stream, lap_partial_weight(p, all), false);
    lap_gemm_rows(s, lap_partial_input(p, 0, p->m), d);
    for (int j = 1; j < p->size; j++) {
        const lap_range_t rows = open_partial(p, p->rank, lap_peer_at(p, j), all);
        if (rows.rows > 0)
            lap_add_raise(s, stream, lap_peer_at(p, j), lap_signal_open(p->size, p->rank),
                          lap_range_bytes(&rows));
    }
    if (s->output.rows > 0) {
        await_open(p, s, stream, 1);
        const uint32_t sum = lap_add_reduce(s, stream, s->output, p->types.out);
        add_open_sources(p, s, all);
        lap_go_together(s, sum);
        for (int j = 1; j < p->size; j++)
            lap_add_raise(s, stream, lap_peer_at(p, -j), lap_signal_done(p->size, p->rank), 0);
    }
    for (int j = 1; j < p->size; j++)
        if (lap_rows_of(p, lap_peer_at(p, j)) > 0)
            lap_await_done(p, s, stream, lap_peer_at(p, j));
}

/* The GEMM of rows [begin, end) of a shard, which go to the same rows of `d`. */
static uint32_t add_rows(const lap_problem_t *p, lap_schedule_t *s, uint16_t lane, int owner,
                         lap_range_t d, size_t begin, size_t end)
{
    size_t first;
    (void)lap_shard(p->m, p->size, owner, &first);
    d.offset += begin * d.stride;
    d.rows = end - begin;
    const uint32_t gemm = lap_add_gemm(s, lane, lap_partial_weight(p, lap_all_columns(p)), false);
    lap_gemm_rows(s, lap_partial_input(p, first + begin, end - begin), d);
    return gemm;
}

/* The own rows that come first: a few, where there are many. */
static size_t early_rows(size_t own)
{
    return own / EARLY_PART / EARLY_ROWS * EARLY_ROWS;
}

/* That of the own rows that come first; those that come last are on COMPUTE. */
static uint16_t first_lane(const lap_problem_t *p)
{
    return lap_lane(p, (size_t)p->size);
}

/* Waits for the credits of the owners from number `first` to before `end`; returns the last wait. */
static uint32_t await_credits(const lap_problem_t *p, lap_schedule_t *s, int first, int end)
{
    uint32_t last = LAP_NO_STEP;
    for (int i = first; i < end; i++)
        if (lap_rows_of(p, lap_peer_at(p, i)) > 0) {
            last = s->nsteps;
            lap_await_credit(p, s, LAP_STREAM_SEND, lap_peer_at(p, i));
        }
    return last;
}

/*
 * The same with a GEMM for the rows of each owner, side by side with others. Some of the own rows
 * come first, while the credits of the peers are on their way; the others last: their time hides
 * the last transfer. The first owner's GEMM waits only for the credit of that owner, and so begins
 * before the second one's: if both began at once the lanes could swap, and the own rows would come
 * before those of the last owner. Returns the GEMM of the rows that come first, LAP_NO_STEP if there
 * are none.
 */
static uint32_t add_fused_lanes(const lap_problem_t *p, lap_schedule_t *s, lap_range_t own)
{
    const size_t early = early_rows(own.rows);
    const uint16_t lanes[] = {first_lane(p), lap_lane(p, (size_t)p->size + 1)};
    bool credited[] = {false, false};
    const uint32_t begun =
        early > 0 ? add_rows(p, s, lanes[0], p->rank, own, 0, early) : LAP_NO_STEP;
    const uint32_t first = await_credits(p, s, 1, 2), others = await_credits(p, s, 2, p->size);
    for (int i = 1; i < p->size; i++) {
        const int owner = lap_peer_at(p, i);
        const lap_range_t d = lap_slot(p, owner, p->rank, lap_all_columns(p));
        if (lap_rows_of(p, owner) == 0)
            continue;
        const uint32_t gemm = add_rows(p, s, lanes[i % 2], owner, d, 0, lap_rows_of(p, owner));
        if (!credited[i % 2])
            lap_add_dep(s, gemm, i == 1 ? first : others);
        credited[i % 2] = i > 1;
        const uint32_t raise =
            lap_add_raise(s, LAP_STREAM_SEND, owner, lap_signal_data(p->rank), lap_range_bytes(&d));
        lap_add_dep(s, raise, gemm);
    }
    if (own.rows > 0)
        add_rows(p, s, LAP_STREAM_COMPUTE, p->rank, own, early, own.rows);
    return begun;
}

static void build_fused(const lap_problem_t *p, lap_schedule_t *s)
{
    lap_columns_t all = lap_all_columns(p);
    begin_schedule(p, s, lap_shard(p->capacity, p->size, p->rank, NULL));
    if (p->size == 1 || p->m == 0) {
        lap_add_single_rank(p, s);
        return;
    }
    const bool whole = p->lanes && p->desc.block_rows >= lap_rows_of(p, 0) && !lap_is_scaled(p);
    size_t blocks = lap_row_blocks(p, p->rank);
    uint32_t begun = LAP_NO_STEP;
    lap_range_t own = lap_range_packed(LAP_SCRATCH, p->rank, 0, lap_rows_of(p, p->rank),
                                       lap_columns_bytes(p, all));
    add_credits(p, s, LAP_STREAM_SEND, blocks);
    if (whole) {
        begun = add_fused_lanes(p, s, own);
    } else {
        lap_add_scales(p, s);
        lap_add_gemm(s, LAP_STREAM_COMPUTE, lap_partial_weight(p, all), false);
        for (int i = 1; i <= p->size; i++)
            lap_add_partial_blocks(p, s, lap_peer_at(p, i), own);
    }
    if (own.rows == 0)
        return;
    /* Where GEMMs run side by side the wait is on the stream of the last of them: the sum follows at once. */
    const uint16_t receive = whole ? LAP_STREAM_RECEIVE : LAP_STREAM_COMPUTE;
    const uint32_t wait = await_parts(p, s, receive, blocks);
    const uint32_t sum = add_sum(p, s, LAP_STREAM_COMPUTE, all, own);
    if (whole)
        lap_add_dep(s, sum, wait);
    if (begun != LAP_NO_STEP && first_lane(p) != LAP_STREAM_COMPUTE)
        lap_add_dep(s, sum, begun);
}

const lap_builder_t lap_gemm_rs_builders[] = {
    {"serial", "one GEMM, then send and sum: nothing overlaps", LAP_CAN_PUT, 0, build_serial},
    {"ring", "a GEMM for the rows of each owner, sent while the next one runs", LAP_CAN_PUT, 0,
     build_ring},
    {"pipeline", "a GEMM for each part of n, sent and summed while the next one runs", LAP_CAN_PUT,
     LAP_KNOB_NUM_SPLITS, build_pipeline},
    {"pull", "a GEMM for each part of n, read and summed in place by the owners", LAP_CAN_ADDRESS,
     LAP_KNOB_NUM_SPLITS, build_pull},
    {"fused", "the GEMM writes blocks into their owners' memory as they finish", LAP_CAN_ADDRESS,
     LAP_KNOB_BLOCK_ROWS, build_fused},
    {"oneshot", "one GEMM, then one sum that reads all ranks' parts in place: for few rows",
     LAP_CAN_ADDRESS, 0, build_oneshot},
    {NULL, NULL, 0, 0, NULL},
};
