/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The builders of AG+GEMM: d = gather(a) b^T; and of all-gathers by themselves or at the same
 * time as a GEMM that they do not depend on: y = gather(x). What is gathered, where, and for whom is in
 * gather.h; `fused` is in ag_fused.c.
 */
#include "overlap/gather.h"
#include "overlap/partial.h"

static void add_put(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, int peer,
                    lap_range_t src, int first, int count)
{
    lap_add_shards(p, s, stream, peer, src, first, count, lap_signal_data(p->rank));
}

static void add_credit(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, int peer)
{
    lap_add_raise(s, stream, peer, lap_signal_credit(p->size, p->rank), 0);
}

static void add_own_gemm(const lap_problem_t *p, lap_schedule_t *s)
{
    if (lap_gather_features(p, p->rank) > 0 && lap_rows_of(p, p->rank) > 0)
        lap_add_shards_gemm(p, s, LAP_STREAM_COMPUTE, lap_own_shard(p), p->rank, 1);
}

/* Lets every peer that will do so write here. */
static void add_credits(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream)
{
    for (int i = 1; i < p->size; i++) {
        int peer = lap_peer_at(p, i);
        if (lap_gather_flows(p, peer, p->rank)) {
            add_credit(p, s, stream, peer);
            lap_expect(s, lap_signal_data(peer));
        }
    }
}

/* Puts the own shard to a peer, if that can use it. */
static void add_own_put(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, int peer)
{
    if (!lap_gather_flows(p, p->rank, peer))
        return;
    lap_await_credit(p, s, stream, peer);
    add_put(p, s, stream, peer, lap_own_shard(p), p->rank, 1);
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
    const lap_range_t own = lap_own_shard(p);
    const uint16_t streams[] = {LAP_STREAM_COMPUTE, LAP_STREAM_SEND};
    uint32_t credit = 0, put = 0;
    int puts = 0, raises = 0;
    for (int i = 1; i < p->size; i++)
        if (lap_gather_flows(p, p->rank, lap_peer_at(p, i))) {
            credit = s->nsteps;
            lap_await_credit(p, s, LAP_STREAM_COMPUTE, lap_peer_at(p, i));
        }
    for (int i = 1; i < p->size; i++) {
        const uint32_t first = s->nsteps;
        if (!lap_gather_flows(p, p->rank, lap_peer_at(p, i)))
            continue;
        lap_add_shards(p, s, streams[puts % 2], lap_peer_at(p, i), own, p->rank, 1, LAP_NO_SIGNAL);
        if (puts == 1)
            lap_add_dep(s, first, credit);
        if (puts % 2)
            put = s->nsteps - 1;
        puts++;
    }
    for (int i = 1; i < p->size; i++) {
        if (!lap_gather_flows(p, p->rank, lap_peer_at(p, i)))
            continue;
        const uint32_t raise = lap_add_raise(s, LAP_STREAM_COMPUTE, lap_peer_at(p, i),
                                             lap_signal_data(p->rank), lap_range_bytes(&own));
        if (raises++ == 0 && puts > 1)
            lap_add_dep(s, raise, put);
    }
}

static void build_serial(const lap_problem_t *p, lap_schedule_t *s)
{
    bool multiplies = lap_gather_features(p, p->rank) > 0 && p->m > 0;
    lap_gather_begin(p, s, p->capacity);
    if (p->size == 1) {
        add_own_gemm(p, s);
        lap_add_own_gather(p, s, LAP_STREAM_COMPUTE);
        lap_add_local_gemm(p, s);
        return;
    }
    /* Where copies can be side by side, that is still no overlap: the GEMM is not there yet. */
    const bool in_lane = p->lanes && p->kind == LAP_AG_GEMM;
    const bool copies = lap_gather_wants(p, p->rank) && lap_rows_of(p, p->rank) > 0;
    uint32_t copy = 0;
    add_credits(p, s, LAP_STREAM_COMPUTE);
    if (in_lane)
        add_own_puts(p, s);
    for (int i = 1; i < p->size && !in_lane; i++)
        add_own_put(p, s, LAP_STREAM_COMPUTE, lap_peer_at(p, i));
    if (copies)
        copy = lap_add_own_shard(p, s, in_lane ? LAP_STREAM_RECEIVE : LAP_STREAM_COMPUTE, false);
    for (int i = 1; i < p->size; i++)
        if (lap_gather_flows(p, lap_peer_at(p, i), p->rank))
            lap_add_wait(s, LAP_STREAM_COMPUTE, lap_peer_at(p, i),
                         lap_signal_data(lap_peer_at(p, i)), 1);
    lap_range_t all = lap_gather_shards(p, LAP_SYMMETRIC, p->rank, 0, p->size);
    const uint32_t reader = s->nsteps;
    if (multiplies)
        lap_add_shards_gemm(p, s, LAP_STREAM_COMPUTE, all, 0, p->size);
    if (p->gather_input && p->m > 0)
        lap_add_gather(p, s, LAP_STREAM_COMPUTE, all, 0, p->size);
    if (in_lane && copies)
        lap_add_dep(s, reader, copy);
    lap_add_local_gemm(p, s);
}

/*
 * The shortest way for few bytes, where what a launch takes is more than what a copy takes: the own
 * shard is read once and written to all places that it has, and all signals go and come at once.
 */
static void build_oneshot(const lap_problem_t *p, lap_schedule_t *s)
{
    const uint16_t stream = LAP_STREAM_COMPUTE;
    const lap_range_t own = lap_own_shard(p);
    lap_gather_begin(p, s, p->capacity);
    if (p->size == 1) {
        add_own_gemm(p, s);
        lap_add_own_gather(p, s, stream);
        return;
    }
    add_credits(p, s, stream);
    for (int i = 1; i < p->size; i++)
        if (lap_gather_flows(p, p->rank, lap_peer_at(p, i)))
            lap_await_credit(p, s, stream, lap_peer_at(p, i));
    lap_add_shard_to_all(p, s, stream);
    for (int i = 1; i < p->size; i++)
        if (lap_gather_flows(p, p->rank, lap_peer_at(p, i)))
            lap_add_raise(s, stream, lap_peer_at(p, i), lap_signal_data(p->rank),
                          lap_range_bytes(&own));
    for (int i = 1; i < p->size; i++)
        if (lap_gather_flows(p, lap_peer_at(p, i), p->rank))
            lap_add_wait(s, stream, lap_peer_at(p, i), lap_signal_data(lap_peer_at(p, i)), 1);
    const lap_range_t all = lap_gather_shards(p, LAP_SYMMETRIC, p->rank, 0, p->size);
    if (lap_gather_features(p, p->rank) > 0 && p->m > 0)
        lap_add_shards_gemm(p, s, stream, all, 0, p->size);
    if (p->gather_input && p->m > 0)
        lap_add_gather(p, s, stream, all, 0, p->size);
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
        if (lap_gather_wants(ring->p, at))
            return true;
    }
    return false;
}

static lap_range_t unit_range(const ring_t *ring, int unit, int rank)
{
    return lap_gather_shards(ring->p, LAP_SYMMETRIC, rank, unit * ring->width, ring->width);
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
    if (ring->width == 2 && lap_rows_of(p, p->rank) > 0 &&
        (sends || lap_gather_features(p, p->rank) > 0))
        copy = lap_add_own_shard(p, s, LAP_STREAM_SEND, sends);
    if (swaps(ring, p->rank)) {
        lap_await_credit(p, s, LAP_STREAM_SEND, partner);
        add_put(p, s, LAP_STREAM_SEND, partner, lap_own_shard(p), p->rank, 1);
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
            straight ? lap_own_shard(p) : unit_range(ring, unit, p->rank), unit * ring->width,
            ring->width);
}

static void add_ring_gemm(const ring_t *ring, lap_schedule_t *s, int i, uint32_t copy)
{
    const lap_problem_t *p = ring->p;
    int unit = unit_at(ring, i);
    lap_range_t a = unit_range(ring, unit, p->rank);
    if (a.rows == 0 || lap_gather_features(p, p->rank) == 0)
        return;
    const uint16_t lane = lap_lane(p, (size_t)i);
    await_unit(ring, s, lane, i);
    bool straight = i == 0 && ring->width == 1;
    uint32_t step = lap_add_shards_gemm(p, s, lane, straight ? lap_own_shard(p) : a,
                                        unit * ring->width, ring->width);
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
        lap_add_own_gather(p, s, lap_receive_stream(p));
    if (i == 0 && !swaps(ring, p->rank ^ 1))
        return;
    if (i == 0) {
        first = p->rank ^ 1;
        count = 1;
    } else if (!moves(ring, i, p->rank)) {
        return;
    }
    await_unit(ring, s, LAP_STREAM_RECEIVE, i);
    lap_add_gather(p, s, LAP_STREAM_RECEIVE,
                   lap_gather_shards(p, LAP_SYMMETRIC, p->rank, first, count), first, count);
}

static void build_ring(const lap_problem_t *p, lap_schedule_t *s)
{
    int width = p->desc.aggregate && p->size > 1 ? 2 : 1;
    ring_t ring = {.p = p,
                   .width = width,
                   .units = p->size / width,
                   .unit = p->rank / width,
                   .left = lap_peer_at(p, -width),
                   .right = lap_peer_at(p, width)};
    bool first = true;
    lap_gather_begin(p, s, p->capacity);
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
    if (lap_gather_features(p, p->rank) == 0 || p->m == 0)
        return;
    lap_add_gemm(s, LAP_STREAM_COMPUTE, lap_gather_weight(p), true);
    if (lap_rows_of(p, p->rank) > 0)
        lap_add_shard_block(p, s, lap_own_shard(p),
                            lap_gather_output(p, p->rank, 0, lap_rows_of(p, p->rank)), p->rank);
    for (int i = 1; i < p->size; i++) {
        int peer = lap_peer_at(p, -i);
        if (!lap_gather_flows(p, peer, p->rank))
            continue;
        lap_tile_t *tile =
            lap_add_shard_block(p, s, lap_gather_shards(p, LAP_SYMMETRIC, p->rank, peer, 1),
                                lap_gather_output(p, peer, 0, lap_rows_of(p, peer)), peer);
        tile->wait = (lap_signal_t){.peer = peer, .word = lap_signal_data(peer), .count = 1};
    }
}

/* A GEMM for the shards of ranks [first, end), if there are any. */
static void add_run(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, int first, int end)
{
    lap_range_t a =
        lap_gather_shards(p, LAP_SYMMETRIC, p->rank, first, end > first ? end - first : 0);
    if (a.rows > 0)
        lap_add_shards_gemm(p, s, stream, a, first, end - first);
}

/* The shards of the peers from `first` to before `end` places before this rank, when all came. */
static void add_round(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, int first,
                      int end)
{
    const int low = p->rank - end + 1, high = p->rank - first; /* below 0: from the last rank on */
    for (int i = first; i < end; i++) {
        int peer = lap_peer_at(p, -i);
        if (lap_gather_flows(p, peer, p->rank))
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
    const int rounds = p->desc.num_splits < (size_t)peers ? (int)p->desc.num_splits : peers;
    add_credits(p, s, LAP_STREAM_SEND);
    add_own_gemm(p, s);
    for (int i = 0; i < rounds; i++) {
        const int first = 1 + peers * i / rounds, end = 1 + peers * (i + 1) / rounds;
        for (int j = first; j < end; j++)
            add_own_put(p, s, LAP_STREAM_SEND, lap_peer_at(p, j));
        if (lap_gather_features(p, p->rank) > 0)
            add_round(p, s, lap_lane(p, (size_t)i + 1), first, end);
    }
}

static void build_direct(const lap_problem_t *p, lap_schedule_t *s)
{
    const bool rounds = p->lanes || p->desc.num_splits + 1 < (size_t)p->size;
    lap_gather_begin(p, s, p->capacity);
    if (rounds && p->kind == LAP_AG_GEMM)
        add_direct_rounds(p, s);
    else
        add_direct_blocks(p, s);
    lap_add_own_gather(p, s, lap_receive_stream(p));
    for (int i = 1; i < p->size; i++) {
        int peer = lap_peer_at(p, -i);
        if (!p->gather_input || !lap_gather_flows(p, peer, p->rank))
            continue;
        lap_add_wait(s, LAP_STREAM_RECEIVE, peer, lap_signal_data(peer), 1);
        lap_add_gather(p, s, LAP_STREAM_RECEIVE,
                       lap_gather_shards(p, LAP_SYMMETRIC, p->rank, peer, 1), peer, 1);
    }
}

const lap_builder_t lap_ag_gemm_builders[] = {
    {"serial", "gather everything, then one GEMM: nothing overlaps", LAP_CAN_PUT,
     LAP_KNOB_GATHER_INPUT, build_serial},
    {"ring", "shards travel around a ring, a GEMM for each as it comes", LAP_CAN_PUT,
     LAP_KNOB_AGGREGATE | LAP_KNOB_GATHER_INPUT, build_ring},
    {"direct", "every shard goes straight to every peer, used in order of arrival", LAP_CAN_PUT,
     LAP_KNOB_GATHER_INPUT | LAP_KNOB_ROUNDS, build_direct},
    {"fused", "the GEMM reads the peers' shards in place, block by block", LAP_CAN_ADDRESS,
     LAP_KNOB_BLOCK_ROWS | LAP_KNOB_GATHER_INPUT, lap_build_ag_fused},
    {"oneshot", "one read of the shard goes to all peers at once, then one GEMM: for few rows",
     LAP_CAN_ADDRESS, LAP_KNOB_GATHER_INPUT, build_oneshot},
    {NULL, NULL, 0, 0, NULL},
};

const lap_builder_t lap_bulk_ag_builders[] = {
    {"serial", "gather everything, then the GEMM: nothing overlaps", LAP_CAN_PUT, 0, build_serial},
    {"ring", "shards travel around a ring during the GEMM", LAP_CAN_PUT, LAP_KNOB_AGGREGATE,
     build_ring},
    {"direct", "every shard goes straight to every peer during the GEMM", LAP_CAN_PUT, 0,
     build_direct},
    {"fused", "every rank reads its peers' shards in place during the GEMM", LAP_CAN_ADDRESS,
     LAP_KNOB_BLOCK_ROWS, lap_build_ag_fused},
    {NULL, NULL, 0, 0, NULL},
};

const lap_builder_t lap_external_ag_builders[] = {
    {"serial", "every shard goes straight to every peer, in line with the GEMMs", LAP_CAN_PUT, 0,
     build_serial},
    {"ring", "shards travel around a ring, during GEMMs already begun", LAP_CAN_PUT,
     LAP_KNOB_AGGREGATE, build_ring},
    {"direct", "every shard goes straight to every peer, during GEMMs already begun", LAP_CAN_PUT,
     0, build_direct},
    {"fused", "every rank reads its peers' shards in place, during GEMMs already begun",
     LAP_CAN_ADDRESS, LAP_KNOB_BLOCK_ROWS, lap_build_ag_fused},
    {NULL, NULL, 0, 0, NULL},
};
