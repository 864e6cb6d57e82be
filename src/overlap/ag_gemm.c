/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The builders of AG+GEMM: d = gather(a) b^T; and of all-gathers that stand alone or beside a GEMM
 * which they have nothing to do with: y = gather(x).
 *
 * Shard c of what is gathered is [m_c, k], the rows of rank c. In symmetric memory the gathered
 * matrix is [m, k], packed, each shard at its row, and after it, when it is FP8, the scale of each
 * shard; `fused` gathers nothing and keeps only the rank's own shard, and its scale, there. d is
 * [m, n_r]; an all-gather without a product of its own is one for a rank without output features.
 *
 * A rank receives only what it or a rank further down the ring can use: an empty shard is not sent,
 * and nothing is sent to a rank without output features that does not gather. Both sides follow
 * from the same functions of the problem, so that every signal raised is one that its receiver
 * waits for. Each WAIT stands before the step that needs it, and no WAIT is implied by another: the
 * tests of the checker take out each one and want to see it missed.
 */
#include "overlap/partial.h"
#include "transport/transport.h"

#define LATE_PART 4u        /* of the own rows come last in `fused`, */
#define LATE_ROWS 128u      /* in tiles of a GEMM, */
#define LATE_FEATURES 4096u /* if a row becomes so many numbers */

/* The columns of d on a rank, if d is made of what is gathered. */
static size_t features_of(const lap_problem_t *p, int rank)
{
    return p->kind == LAP_AG_GEMM ? lap_shard(p->n, p->size, rank, NULL) : 0;
}

/* Whether a rank has a use of its own for the shards of its peers. */
static bool wants(const lap_problem_t *p, int rank)
{
    return p->gather_input || features_of(p, rank) > 0;
}

/* Whether the shard of `source` goes straight to `dest`. */
static bool flows(const lap_problem_t *p, int source, int dest)
{
    return source != dest && lap_rows_of(p, source) > 0 && wants(p, dest);
}

static size_t a_row_bytes(const lap_problem_t *p)
{
    return (p->kind == LAP_AG_GEMM ? p->k : p->cols) * lap_dtype_size(p->types.wire);
}

/* The shards of `count` ranks from `first` on as rows of a [m, k] matrix. */
static lap_range_t shards(const lap_problem_t *p, lap_place_t place, int rank, int first, int count)
{
    size_t begin, rows = 0;
    lap_shard(p->m, p->size, first, &begin);
    for (int c = first; c < first + count; c++)
        rows += lap_rows_of(p, c);
    return lap_range_packed(place, rank, begin * a_row_bytes(p), rows, a_row_bytes(p));
}

static lap_range_t own_input(const lap_problem_t *p)
{
    return lap_range_packed(p->kind == LAP_AG_GEMM ? LAP_INPUT : LAP_MOVED, p->rank, 0,
                            lap_rows_of(p, p->rank), a_row_bytes(p));
}

static lap_range_t weight(const lap_problem_t *p)
{
    return lap_weight(p, features_of(p, p->rank), p->k,
                      (lap_columns_t){0, features_of(p, p->rank)});
}

/* The scales of the shards of `count` ranks from `first` on. */
static lap_range_t scales(const lap_problem_t *p, int rank, int first, int count)
{
    return lap_scale_range(rank, p->capacity * a_row_bytes(p), first, count);
}

/* Where a rank keeps its own scale for its peers to read. */
static lap_range_t open_scale(const lap_problem_t *p, int rank)
{
    size_t most = lap_shard(p->capacity, p->size, 0, NULL);
    return lap_scale_range(rank, most * a_row_bytes(p), 0, 1);
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

/* Puts the shards of `count` ranks from `first` on, which are at `src`, to a peer. */
static void add_put_with(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, int peer,
                         lap_range_t src, int first, int count, uint32_t signal)
{
    const int full = full_shards(p, first, count);
    if (lap_is_scaled(p))
        lap_add_put(s, stream, peer, LAP_NO_SIGNAL,
                    src.place == LAP_SYMMETRIC ? scales(p, p->rank, first, full) : lap_own_scale(p),
                    scales(p, peer, first, full));
    lap_add_put(s, stream, peer, signal, src, shards(p, LAP_SYMMETRIC, peer, first, count));
}

static void add_put(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, int peer,
                    lap_range_t src, int first, int count)
{
    add_put_with(p, s, stream, peer, src, first, count, lap_signal_data(p->rank));
}

/*
 * Copies the own shard to its place among the others. Its scale is read there only by who hands it
 * on.
 */
static uint32_t add_own_copy(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream,
                             bool with_scale)
{
    if (with_scale && lap_is_scaled(p))
        lap_add_copy(s, stream, lap_own_scale(p), scales(p, p->rank, p->rank, 1));
    return lap_add_copy(s, stream, own_input(p), shards(p, LAP_SYMMETRIC, p->rank, p->rank, 1));
}

/* Rows of d: `rows` of them, from row `skip` of the shard of rank `first` on. */
static lap_range_t output(const lap_problem_t *p, int first, size_t skip, size_t rows)
{
    size_t begin, row_bytes = features_of(p, p->rank) * lap_dtype_size(p->types.out);
    lap_shard(p->m, p->size, first, &begin);
    return lap_range_packed(LAP_OUTPUT, p->rank, (begin + skip) * row_bytes, rows, row_bytes);
}

/* Adds a block to the GEMM step that was added last: rows `a`, with the scale of rank `c`. */
static lap_block_t *add_block(const lap_problem_t *p, lap_schedule_t *s, lap_range_t a,
                              lap_range_t d, int c)
{
    lap_block_t *block = lap_gemm_rows(s, a, d);
    if (lap_is_scaled(p) && c == p->rank)
        block->scale = lap_own_scale(p);
    else if (lap_is_scaled(p))
        block->scale = a.rank == p->rank ? scales(p, p->rank, c, 1) : open_scale(p, c);
    return block;
}

/*
 * A GEMM of its own for the shards of `count` ranks from `first` on, which are at `a`. Shards that
 * have scales of their own are blocks of their own.
 */
static uint32_t add_rows_gemm(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream,
                              lap_range_t a, int first, int count)
{
    uint32_t step = lap_add_gemm(s, stream, weight(p), false);
    if (!lap_is_scaled(p)) {
        lap_gemm_rows(s, a, output(p, first, 0, a.rows));
        return step;
    }
    for (int c = first; c < first + count; c++) {
        a.rows = lap_rows_of(p, c);
        if (a.rows > 0)
            add_block(p, s, a, output(p, c, 0, a.rows), c);
        a.offset += a.rows * a.stride;
    }
    return step;
}

/* Copies the shards of `count` ranks from `first` on to the second result. */
static uint32_t add_gather(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream,
                           lap_range_t src, int first, int count)
{
    lap_range_t dst = shards(p, LAP_GATHERED, p->rank, first, count);
    const int full = lap_is_scaled(p) ? full_shards(p, first, count) : 0;
    for (int c = first; c < first + full; c++) {
        bool open = src.place == LAP_SYMMETRIC && src.rank != p->rank;
        lap_add_copy(s, stream,
                     c == p->rank ? lap_own_scale(p)
                     : open       ? open_scale(p, c)
                                  : scales(p, p->rank, c, 1),
                     gathered_scales(p, c, 1));
    }
    return lap_add_copy(s, stream, src, dst);
}

static void add_credit(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, int peer)
{
    lap_add_raise(s, stream, peer, lap_signal_credit(p->size, p->rank), 0);
}

/* What every method begins with. */
static void begin_schedule(const lap_problem_t *p, lap_schedule_t *s, size_t symmetric_rows)
{
    s->output = output(p, 0, 0, features_of(p, p->rank) > 0 ? p->m : 0);
    if (p->gather_input)
        s->gathered = shards(p, LAP_GATHERED, p->rank, 0, p->size);
    if (p->gather_input && lap_is_scaled(p))
        s->scales = gathered_scales(p, 0, full_shards(p, 0, p->size));
    if (p->size > 1)
        s->symmetric_bytes = symmetric_rows * a_row_bytes(p);
    if (p->size > 1 && lap_is_scaled(p))
        s->symmetric_bytes = lap_scales_end(s->symmetric_bytes, p->size);
}

/* The own shard needs no communication: all there is to do in a group of one. */
static void add_own_gather(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream)
{
    if (p->gather_input && lap_rows_of(p, p->rank) > 0)
        add_gather(p, s, stream, own_input(p), p->rank, 1);
}

static void add_own_gemm(const lap_problem_t *p, lap_schedule_t *s)
{
    if (features_of(p, p->rank) > 0 && lap_rows_of(p, p->rank) > 0)
        add_rows_gemm(p, s, LAP_STREAM_COMPUTE, own_input(p), p->rank, 1);
}

/* Lets every peer that will do so write here. */
static void add_credits(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream)
{
    for (int i = 1; i < p->size; i++) {
        int peer = lap_peer_at(p, i);
        if (flows(p, peer, p->rank)) {
            add_credit(p, s, stream, peer);
            lap_expect(s, lap_signal_data(peer));
        }
    }
}

/* Puts the own shard to a peer, if that can use it. */
static void add_own_put(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, int peer)
{
    if (!flows(p, p->rank, peer))
        return;
    lap_await_credit(p, s, stream, peer);
    add_put(p, s, stream, peer, own_input(p), p->rank, 1);
}

static void add_exchange_all(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream)
{
    add_credits(p, s, stream);
    for (int i = 1; i < p->size; i++)
        add_own_put(p, s, stream, lap_peer_at(p, i));
}

/*
 * Puts the own shard to all who can use it, side by side. Signals are launches that cost as much as
 * a small copy: they go together, when all has been copied.
 */
static void add_own_puts(const lap_problem_t *p, lap_schedule_t *s)
{
    const lap_range_t own = own_input(p);
    const uint16_t streams[] = {LAP_STREAM_COMPUTE, LAP_STREAM_SEND};
    uint32_t credit = 0, put = 0;
    int puts = 0, raises = 0;
    for (int i = 1; i < p->size; i++)
        if (flows(p, p->rank, lap_peer_at(p, i))) {
            credit = s->nsteps;
            lap_await_credit(p, s, LAP_STREAM_COMPUTE, lap_peer_at(p, i));
        }
    for (int i = 1; i < p->size; i++) {
        const uint32_t first = s->nsteps;
        if (!flows(p, p->rank, lap_peer_at(p, i)))
            continue;
        add_put_with(p, s, streams[puts % 2], lap_peer_at(p, i), own, p->rank, 1, LAP_NO_SIGNAL);
        if (puts == 1)
            lap_add_dep(s, first, credit);
        if (puts % 2)
            put = s->nsteps - 1;
        puts++;
    }
    for (int i = 1; i < p->size; i++) {
        if (!flows(p, p->rank, lap_peer_at(p, i)))
            continue;
        const uint32_t raise = lap_add_raise(s, LAP_STREAM_COMPUTE, lap_peer_at(p, i),
                                             lap_signal_data(p->rank), lap_range_bytes(&own));
        if (raises++ == 0 && puts > 1)
            lap_add_dep(s, raise, put);
    }
}

static void build_serial(const lap_problem_t *p, lap_schedule_t *s)
{
    bool multiplies = features_of(p, p->rank) > 0 && p->m > 0;
    begin_schedule(p, s, p->capacity);
    if (p->size == 1) {
        add_own_gemm(p, s);
        add_own_gather(p, s, LAP_STREAM_COMPUTE);
        lap_add_local_gemm(p, s);
        return;
    }
    /* Where copies can be made side by side, that is still no overlap: the GEMM is not there yet. */
    const bool aside = p->lanes && p->kind == LAP_AG_GEMM;
    const bool copies = wants(p, p->rank) && lap_rows_of(p, p->rank) > 0;
    uint32_t copy = 0;
    add_credits(p, s, LAP_STREAM_COMPUTE);
    if (aside)
        add_own_puts(p, s);
    for (int i = 1; i < p->size && !aside; i++)
        add_own_put(p, s, LAP_STREAM_COMPUTE, lap_peer_at(p, i));
    if (copies)
        copy = add_own_copy(p, s, aside ? LAP_STREAM_RECEIVE : LAP_STREAM_COMPUTE, false);
    for (int i = 1; i < p->size; i++)
        if (flows(p, lap_peer_at(p, i), p->rank))
            lap_add_wait(s, LAP_STREAM_COMPUTE, lap_peer_at(p, i),
                         lap_signal_data(lap_peer_at(p, i)), 1);
    lap_range_t all = shards(p, LAP_SYMMETRIC, p->rank, 0, p->size);
    const uint32_t reader = s->nsteps;
    if (multiplies)
        add_rows_gemm(p, s, LAP_STREAM_COMPUTE, all, 0, p->size);
    if (p->gather_input && p->m > 0)
        add_gather(p, s, LAP_STREAM_COMPUTE, all, 0, p->size);
    if (aside && copies)
        lap_add_dep(s, reader, copy);
    lap_add_local_gemm(p, s);
}

/*
 * The ring moves units: `width` shards of neighbouring ranks, held by all of these ranks. Rank r
 * gets from r - width, unit by unit, and hands on to r + width, so that the ranks of a unit stand
 * in rings of their own.
 */
typedef struct ring {
    const lap_problem_t *p;
    int width, units; /* shards of a unit, units in all */
    int unit;         /* the rank's own */
    int left, right;
} ring_t;

/* The unit that is `i` hops upstream of this rank's own. */
static int unit_at(const ring_t *ring, int i)
{
    return (ring->unit - i + ring->units) % ring->units;
}

/* Whether `rank`, or a rank to which it hands on, has a use for a unit. */
static bool useful(const ring_t *ring, int unit, int rank)
{
    for (int i = 0; i < ring->units; i++) {
        int at = (rank + i * ring->width) % ring->p->size;
        if (i > 0 && at / ring->width == unit)
            return false;
        if (wants(ring->p, at))
            return true;
    }
    return false;
}

static lap_range_t unit_range(const ring_t *ring, int unit, int rank)
{
    return shards(ring->p, LAP_SYMMETRIC, rank, unit * ring->width, ring->width);
}

/* Whether the unit of hop `i` moves to `rank`, which is this rank or its right neighbour. */
static bool moves(const ring_t *ring, int i, int rank)
{
    int unit = unit_at(ring, i);
    return unit_range(ring, unit, rank).rows > 0 && useful(ring, unit, rank);
}

/* How many units have come from the left when that of hop `i` is here. */
static uint32_t arrivals(const ring_t *ring, int i)
{
    uint32_t count = 0;
    for (int j = 1; j <= i; j++)
        count += moves(ring, j, ring->p->rank);
    return count;
}

/*
 * Whether `rank` of this rank's pair gives its shard to the other of the two, to make up their
 * unit.
 */
static bool swaps(const ring_t *ring, int rank)
{
    return ring->width == 2 && lap_rows_of(ring->p, rank) > 0 && useful(ring, ring->unit, rank ^ 1);
}

/*
 * Waits for the unit of hop `i` to be whole; the own unit of a pair is whole when the partner's
 * shard is here.
 */
static void await_unit(const ring_t *ring, lap_schedule_t *s, uint16_t stream, int i)
{
    int partner = ring->p->rank ^ 1;
    if (i > 0)
        lap_add_wait(s, stream, ring->left, lap_signal_data(ring->left), arrivals(ring, i));
    else if (swaps(ring, partner))
        lap_add_wait(s, stream, partner, lap_signal_data(partner), 1);
}

/*
 * Lets the neighbours write, and makes up the own unit in a ring of pairs. Returns the step that
 * copies the own shard. The credits come first: a copy before them would delay the neighbours.
 */
static uint32_t add_ring_start(const ring_t *ring, lap_schedule_t *s)
{
    const lap_problem_t *p = ring->p;
    int partner = p->rank ^ 1;
    const bool sends = ring->units > 1 && moves(ring, 0, ring->right);
    uint32_t copy = 0, hops = arrivals(ring, ring->units - 1);
    for (uint32_t i = 0; i < hops; i++)
        lap_expect(s, lap_signal_data(ring->left));
    if (hops > 0)
        add_credit(p, s, LAP_STREAM_SEND, ring->left);
    if (swaps(ring, partner)) {
        add_credit(p, s, LAP_STREAM_SEND, partner);
        lap_expect(s, lap_signal_data(partner));
    }
    if (ring->width == 2 && lap_rows_of(p, p->rank) > 0 && (sends || features_of(p, p->rank) > 0))
        copy = add_own_copy(p, s, LAP_STREAM_SEND, sends);
    if (swaps(ring, p->rank)) {
        lap_await_credit(p, s, LAP_STREAM_SEND, partner);
        add_put(p, s, LAP_STREAM_SEND, partner, own_input(p), p->rank, 1);
    }
    return copy;
}

/* Hands the unit of hop `i` on, the first one after the credit of the right neighbour. */
static void add_ring_send(const ring_t *ring, lap_schedule_t *s, int i, bool *first)
{
    const lap_problem_t *p = ring->p;
    int unit = unit_at(ring, i);
    if (i == ring->units - 1 || !moves(ring, i, ring->right))
        return;
    await_unit(ring, s, LAP_STREAM_SEND, i);
    if (*first)
        lap_await_credit(p, s, LAP_STREAM_SEND, ring->right);
    *first = false;
    bool straight = i == 0 && ring->width == 1;
    add_put(p, s, LAP_STREAM_SEND, ring->right,
            straight ? own_input(p) : unit_range(ring, unit, p->rank), unit * ring->width,
            ring->width);
}

static void add_ring_gemm(const ring_t *ring, lap_schedule_t *s, int i, uint32_t copy)
{
    const lap_problem_t *p = ring->p;
    int unit = unit_at(ring, i);
    lap_range_t a = unit_range(ring, unit, p->rank);
    if (a.rows == 0 || features_of(p, p->rank) == 0)
        return;
    const uint16_t lane = lap_lane(p, (size_t)i);
    await_unit(ring, s, lane, i);
    bool straight = i == 0 && ring->width == 1;
    uint32_t step =
        add_rows_gemm(p, s, lane, straight ? own_input(p) : a, unit * ring->width, ring->width);
    if (i == 0 && !straight && lap_rows_of(p, p->rank) > 0)
        lap_add_dep(s, step, copy);
}

/*
 * The second result is copied on a stream of its own, so that neither the GEMMs nor the sends wait
 * for it.
 */
static void add_ring_gather(const ring_t *ring, lap_schedule_t *s, int i)
{
    const lap_problem_t *p = ring->p;
    int unit = unit_at(ring, i), first = unit * ring->width, count = ring->width;
    if (!p->gather_input)
        return;
    if (i == 0)
        add_own_gather(p, s, LAP_STREAM_RECEIVE);
    if (i == 0 && !swaps(ring, p->rank ^ 1))
        return;
    if (i == 0) {
        first = p->rank ^ 1;
        count = 1;
    } else if (!moves(ring, i, p->rank)) {
        return;
    }
    await_unit(ring, s, LAP_STREAM_RECEIVE, i);
    add_gather(p, s, LAP_STREAM_RECEIVE, shards(p, LAP_SYMMETRIC, p->rank, first, count), first,
               count);
}

static void build_ring(const lap_problem_t *p, lap_schedule_t *s)
{
    int width = p->aggregate && p->size > 1 ? 2 : 1;
    ring_t ring = {.p = p,
                   .width = width,
                   .units = p->size / width,
                   .unit = p->rank / width,
                   .left = lap_peer_at(p, -width),
                   .right = lap_peer_at(p, width)};
    bool first = true;
    begin_schedule(p, s, p->capacity);
    uint32_t copy = add_ring_start(&ring, s);
    add_ring_send(&ring, s, 0, &first);
    lap_add_local_gemm(p, s);
    for (int i = 0; i < ring.units; i++) {
        add_ring_gemm(&ring, s, i, copy);
        add_ring_gather(&ring, s, i);
        if (i > 0)
            add_ring_send(&ring, s, i, &first);
    }
}

/* One GEMM whose blocks are the shards, as they come. */
static void add_direct_blocks(const lap_problem_t *p, lap_schedule_t *s)
{
    add_exchange_all(p, s, LAP_STREAM_SEND);
    lap_add_local_gemm(p, s);
    if (features_of(p, p->rank) == 0 || p->m == 0)
        return;
    lap_add_gemm(s, LAP_STREAM_COMPUTE, weight(p), true);
    if (lap_rows_of(p, p->rank) > 0)
        add_block(p, s, own_input(p), output(p, p->rank, 0, lap_rows_of(p, p->rank)), p->rank);
    for (int i = 1; i < p->size; i++) {
        int peer = lap_peer_at(p, -i);
        if (!flows(p, peer, p->rank))
            continue;
        lap_block_t *block = add_block(p, s, shards(p, LAP_SYMMETRIC, p->rank, peer, 1),
                                       output(p, peer, 0, lap_rows_of(p, peer)), peer);
        block->wait_peer = peer;
        block->wait_signal = lap_signal_data(peer);
        block->wait_count = 1;
    }
}

/* A GEMM for the shards of ranks [first, end), if there are any. */
static void add_run(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, int first, int end)
{
    lap_range_t a = shards(p, LAP_SYMMETRIC, p->rank, first, end > first ? end - first : 0);
    if (a.rows > 0)
        add_rows_gemm(p, s, stream, a, first, end - first);
}

/* The shards of the peers from `first` to before `end` places before this rank, when all came. */
static void add_round(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, int first,
                      int end)
{
    const int low = p->rank - end + 1, high = p->rank - first; /* below 0: from the last rank on */
    for (int i = first; i < end; i++) {
        int peer = lap_peer_at(p, -i);
        if (flows(p, peer, p->rank))
            lap_add_wait(s, stream, peer, lap_signal_data(peer), 1);
    }
    add_run(p, s, stream, low > 0 ? low : 0, high + 1);
    add_run(p, s, stream, low + p->size, high < 0 ? high + p->size + 1 : p->size);
}

/*
 * GEMMs for the shards of several peers at a time, side by side. Where a wait also waits for all
 * that was listed before it, what goes out in a round is all that has to have left.
 */
static void add_direct_rounds(const lap_problem_t *p, lap_schedule_t *s)
{
    const int peers = p->size - 1;
    const int rounds = p->num_splits < (size_t)peers ? (int)p->num_splits : peers;
    add_credits(p, s, LAP_STREAM_SEND);
    add_own_gemm(p, s);
    for (int i = 0; i < rounds; i++) {
        const int first = 1 + peers * i / rounds, end = 1 + peers * (i + 1) / rounds;
        for (int j = first; j < end; j++)
            add_own_put(p, s, LAP_STREAM_SEND, lap_peer_at(p, j));
        if (features_of(p, p->rank) > 0)
            add_round(p, s, lap_lane(p, (size_t)i + 1), first, end);
    }
}

static void build_direct(const lap_problem_t *p, lap_schedule_t *s)
{
    const bool rounds = p->lanes || p->num_splits + 1 < (size_t)p->size;
    begin_schedule(p, s, p->capacity);
    if (rounds && p->kind == LAP_AG_GEMM)
        add_direct_rounds(p, s);
    else
        add_direct_blocks(p, s);
    add_own_gather(p, s, LAP_STREAM_RECEIVE);
    for (int i = 1; i < p->size; i++) {
        int peer = lap_peer_at(p, -i);
        if (!p->gather_input || !flows(p, peer, p->rank))
            continue;
        lap_add_wait(s, LAP_STREAM_RECEIVE, peer, lap_signal_data(peer), 1);
        add_gather(p, s, LAP_STREAM_RECEIVE, shards(p, LAP_SYMMETRIC, p->rank, peer, 1), peer, 1);
    }
}

/*
 * Block `j` of the shard that rank `rank` keeps at the start of its symmetric memory; no rows past
 * the last one.
 */
static lap_range_t shard_block(const lap_problem_t *p, int rank, size_t j)
{
    size_t first = j * p->block_rows, rows = lap_rows_of(p, rank);
    size_t left = first < rows ? rows - first : 0;
    return lap_range_packed(LAP_SYMMETRIC, rank, first * a_row_bytes(p),
                            left < p->block_rows ? left : p->block_rows, a_row_bytes(p));
}

static uint32_t shard_blocks(const lap_problem_t *p, int rank)
{
    size_t rows = lap_rows_of(p, rank);
    return (uint32_t)(rows / p->block_rows + (rows % p->block_rows > 0));
}

/* Lays the own shard open, block by block, and tells each block to every peer that can use it. */
static void add_fused_sends(const lap_problem_t *p, lap_schedule_t *s)
{
    uint32_t readers = 0;
    for (int i = 1; i < p->size; i++)
        readers += flows(p, p->rank, lap_peer_at(p, i));
    if (lap_is_scaled(p) && readers > 0 && lap_rows_of(p, p->rank) > 0)
        lap_add_copy(s, LAP_STREAM_SEND, lap_own_scale(p), open_scale(p, p->rank));
    for (uint32_t j = 0; readers > 0 && j < shard_blocks(p, p->rank); j++) {
        lap_range_t block = shard_block(p, p->rank, j), src = block;
        src.place = own_input(p).place;
        lap_add_copy(s, LAP_STREAM_SEND, src, block);
        for (int i = 1; i < p->size; i++)
            if (flows(p, p->rank, lap_peer_at(p, i)))
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
    const bool much = p->lanes && p->size > 1 && features_of(p, p->rank) >= LATE_FEATURES;
    return much ? lap_rows_of(p, p->rank) / LATE_PART / LATE_ROWS * LATE_ROWS : 0;
}

/* Rows [begin, end) of the own shard as a block of the latest GEMM. */
static void add_own_block(const lap_problem_t *p, lap_schedule_t *s, size_t begin, size_t end)
{
    lap_range_t a = own_input(p);
    a.offset += begin * a.stride;
    a.rows = end - begin;
    if (a.rows > 0)
        add_block(p, s, a, output(p, p->rank, begin, a.rows), p->rank);
}

/*
 * One GEMM over the own shard, but for its late rows, and, in whatever order they come, the blocks
 * of the peers, read where they are.
 */
static void add_fused_gemm(const lap_problem_t *p, lap_schedule_t *s)
{
    if (features_of(p, p->rank) == 0 || p->m == 0)
        return;
    lap_add_gemm(s, LAP_STREAM_COMPUTE, weight(p), true);
    add_own_block(p, s, 0, lap_rows_of(p, p->rank) - late_rows(p));
    for (int i = 1; i < p->size; i++) {
        int peer = lap_peer_at(p, -i);
        for (uint32_t j = 0; j < shard_blocks(p, peer); j++) {
            lap_range_t a = shard_block(p, peer, j);
            lap_block_t *block =
                add_block(p, s, a, output(p, peer, j * p->block_rows, a.rows), peer);
            block->wait_peer = peer;
            block->wait_signal = lap_signal_open(p->size, peer);
            block->wait_count = j + 1;
        }
    }
}

/*
 * Tells each peer that its shard has been read. The second result, which reads it too, must have
 * been copied; where it is all that reads it, the copies' own stream tells it.
 */
static void add_fused_ends(const lap_problem_t *p, lap_schedule_t *s)
{
    bool multiplies = features_of(p, p->rank) > 0;
    for (int i = 1; i < p->size; i++) {
        int peer = lap_peer_at(p, -i);
        uint32_t copy = 0, blocks = shard_blocks(p, peer);
        if (!flows(p, peer, p->rank))
            continue;
        for (uint32_t j = 0; j < blocks; j++)
            lap_expect(s, lap_signal_open(p->size, peer));
        if (p->gather_input) {
            lap_range_t shard = shard_block(p, peer, 0);
            shard.rows = lap_rows_of(p, peer);
            lap_add_wait(s, LAP_STREAM_RECEIVE, peer, lap_signal_open(p->size, peer), blocks);
            copy = add_gather(p, s, LAP_STREAM_RECEIVE, shard, peer, 1);
        }
        uint32_t done = lap_add_raise(s, multiplies ? LAP_STREAM_COMPUTE : LAP_STREAM_RECEIVE, peer,
                                      lap_signal_done(p->size, p->rank), 0);
        if (p->gather_input && multiplies)
            lap_add_dep(s, done, copy);
    }
    if (late_rows(p) > 0) {
        const size_t rows = lap_rows_of(p, p->rank);
        lap_add_gemm(s, LAP_STREAM_BESIDE, weight(p), false);
        add_own_block(p, s, rows - late_rows(p), rows);
    }
    for (int i = 1; i < p->size; i++)
        if (flows(p, p->rank, lap_peer_at(p, i)))
            lap_await_done(p, s, LAP_STREAM_SEND, lap_peer_at(p, i));
}

static void build_fused(const lap_problem_t *p, lap_schedule_t *s)
{
    begin_schedule(p, s, lap_shard(p->capacity, p->size, 0, NULL));
    add_fused_sends(p, s);
    lap_add_local_gemm(p, s);
    add_fused_gemm(p, s);
    add_own_gather(p, s, LAP_STREAM_RECEIVE);
    add_fused_ends(p, s);
}

const lap_builder_t lap_ag_gemm_builders[] = {
    {"serial", "gather everything, then one GEMM: nothing overlaps", LAP_CAN_PUT,
     LAP_KNOB_GATHER_INPUT, build_serial},
    {"ring", "shards travel around a ring, a GEMM for each as it comes", LAP_CAN_PUT,
     LAP_KNOB_AGGREGATE | LAP_KNOB_GATHER_INPUT, build_ring},
    {"direct", "every shard goes straight to every peer, used in order of arrival", LAP_CAN_PUT,
     LAP_KNOB_GATHER_INPUT | LAP_KNOB_ROUNDS, build_direct},
    {"fused", "the GEMM reads the peers' shards in place, block by block", LAP_CAN_ADDRESS,
     LAP_KNOB_BLOCK_ROWS | LAP_KNOB_GATHER_INPUT, build_fused},
    {NULL, NULL, 0, 0, NULL},
};

const lap_builder_t lap_bulk_ag_builders[] = {
    {"serial", "gather everything, then the GEMM: nothing overlaps", LAP_CAN_PUT, 0, build_serial},
    {"ring", "shards travel around a ring beside the GEMM", LAP_CAN_PUT, LAP_KNOB_AGGREGATE,
     build_ring},
    {"direct", "every shard goes straight to every peer beside the GEMM", LAP_CAN_PUT, 0,
     build_direct},
    {"fused", "every rank reads its peers' shards in place beside the GEMM", LAP_CAN_ADDRESS,
     LAP_KNOB_BLOCK_ROWS, build_fused},
    {NULL, NULL, 0, 0, NULL},
};

const lap_builder_t lap_external_ag_builders[] = {
    {"serial", "every shard goes straight to every peer, in line with the GEMMs", LAP_CAN_PUT, 0,
     build_serial},
    {"ring", "shards travel around a ring, behind GEMMs already begun", LAP_CAN_PUT,
     LAP_KNOB_AGGREGATE, build_ring},
    {"direct", "every shard goes straight to every peer, behind GEMMs already begun", LAP_CAN_PUT,
     0, build_direct},
    {"fused", "every rank reads its peers' shards in place, behind GEMMs already begun",
     LAP_CAN_ADDRESS, LAP_KNOB_BLOCK_ROWS, build_fused},
    {NULL, NULL, 0, 0, NULL},
};
