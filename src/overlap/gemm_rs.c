/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The builders of GEMM+RS: d = rows m_r of the sum over ranks of a b^T.
 *
 * Every rank computes a partial result [m, n], of which rank c is owed rows m_c. It arrives in a
 * slot of c's symmetric memory: one slot [m_c, columns], packed, for each other rank, and with
 * several splits of n all slots of the first split, then those of the second. The rank's own part
 * stays in scratch. c adds them up in rank order.
 *
 * A rank without rows receives nothing and sums nothing; a rank without part in k still computes,
 * and sends, zeros.
 */
#include "overlap/overlap.h"
#include "schedule/range.h"
#include "transport/transport.h"

/* Columns of the result, for the methods that cut n: [begin, begin + count). */
typedef struct columns {
    size_t begin, count;
} columns_t;

static columns_t all_columns(const lap_problem_t *p)
{
    return (columns_t){0, p->n};
}

/* Part `i` of n; the first n mod num_splits parts have one column more. */
static columns_t split(const lap_problem_t *p, size_t i)
{
    size_t part = p->n / p->num_splits, more = p->n % p->num_splits;
    return (columns_t){i * part + (i < more ? i : more), part + (i < more)};
}

static size_t rows_of(const lap_problem_t *p, int rank)
{
    return lap_shard(p->m, p->size, rank, NULL);
}

/* The peer that is `step` places after this rank. */
static int peer_at(const lap_problem_t *p, int step)
{
    return (p->rank + step + p->size) % p->size;
}

static size_t row_bytes(const lap_problem_t *p, columns_t columns)
{
    return columns.count * lap_dtype_size(p->dtype);
}

/* Where the part of `source` arrives at `owner`. */
static lap_range_t slot(const lap_problem_t *p, int owner, int source, columns_t columns)
{
    size_t rows = rows_of(p, owner), index = (size_t)(source - (source > owner));
    size_t before = (size_t)(p->size - 1) * columns.begin + index * columns.count;
    return lap_range_packed(LAP_SYMMETRIC, owner, before * rows * lap_dtype_size(p->dtype), rows,
                            row_bytes(p, columns));
}

/* The partial result for the rows of `owner`. In scratch each split is a packed [m, columns]. */
static lap_range_t partial(const lap_problem_t *p, int owner, columns_t columns)
{
    size_t first, rows = lap_shard(p->m, p->size, owner, &first);
    size_t offset = p->m * columns.begin * lap_dtype_size(p->dtype) + first * row_bytes(p, columns);
    return lap_range_packed(LAP_SCRATCH, p->rank, offset, rows, row_bytes(p, columns));
}

static lap_range_t input(const lap_problem_t *p, size_t first, size_t rows)
{
    size_t k_bytes = lap_shard(p->k, p->size, p->rank, NULL) * lap_dtype_size(p->dtype);
    return lap_range_packed(LAP_INPUT, p->rank, first * k_bytes, rows, k_bytes);
}

static lap_range_t weight(const lap_problem_t *p, columns_t columns)
{
    size_t k_bytes = lap_shard(p->k, p->size, p->rank, NULL) * lap_dtype_size(p->dtype);
    return lap_range_packed(LAP_WEIGHT, p->rank, columns.begin * k_bytes, columns.count, k_bytes);
}

/* What every method begins with. */
static void begin_schedule(const lap_problem_t *p, lap_schedule_t *s, size_t scratch_rows)
{
    size_t n_bytes = row_bytes(p, all_columns(p));
    s->output = lap_range_packed(LAP_OUTPUT, p->rank, 0, rows_of(p, p->rank), n_bytes);
    if (p->size > 1) {
        s->symmetric_bytes =
            (size_t)(p->size - 1) * lap_shard(p->capacity, p->size, 0, NULL) * n_bytes;
        s->scratch_bytes = scratch_rows * n_bytes;
    }
}

/* A group of one has nothing to send: the GEMM writes the result. */
static void build_alone(const lap_problem_t *p, lap_schedule_t *s)
{
    begin_schedule(p, s, 0);
    if (p->m == 0)
        return;
    lap_add_gemm(s, LAP_STREAM_COMPUTE, weight(p, all_columns(p)), false);
    lap_gemm_rows(s, input(p, 0, p->m), s->output);
}

/* Lets every peer write into its slot here; each will raise its data signal `count` times. */
static void add_credits(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, size_t count)
{
    for (int i = 1; i < p->size && rows_of(p, p->rank) > 0; i++) {
        int peer = peer_at(p, -i);
        lap_add_raise(s, stream, peer, lap_signal_credit(p->size, p->rank), 0);
        for (size_t j = 0; j < count; j++)
            lap_expect(s, lap_signal_data(peer));
    }
}

/* Sends the partial result for the rows of `peer`. The first put to a peer waits for its credit. */
static uint32_t add_send(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, int peer,
                         columns_t columns)
{
    if (columns.begin == 0) {
        lap_add_wait(s, stream, peer, lap_signal_credit(p->size, peer), 1);
        lap_expect(s, lap_signal_credit(p->size, peer));
    }
    return lap_add_put(s, stream, peer, lap_signal_data(p->rank), partial(p, peer, columns),
                       slot(p, peer, p->rank, columns));
}

/*
 * Waits for the parts of all peers, then sums them in rank order. Returns the sum; the caller has
 * rows.
 */
static uint32_t add_sum(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, size_t count,
                        columns_t columns, lap_range_t own)
{
    for (int i = 1; i < p->size; i++)
        lap_add_wait(s, stream, peer_at(p, -i), lap_signal_data(peer_at(p, -i)), (uint32_t)count);
    lap_range_t dst = s->output;
    dst.offset = columns.begin * lap_dtype_size(p->dtype);
    dst.row_bytes = row_bytes(p, columns);
    uint32_t step = lap_add_reduce(s, stream, dst);
    for (int source = 0; source < p->size; source++)
        lap_reduce_source(s, source == p->rank ? own : slot(p, p->rank, source, columns));
    return step;
}

static void build_serial(const lap_problem_t *p, lap_schedule_t *s)
{
    columns_t all = all_columns(p);
    if (p->size == 1 || p->m == 0) {
        build_alone(p, s);
        return;
    }
    begin_schedule(p, s, p->capacity);
    add_credits(p, s, LAP_STREAM_COMPUTE, 1);
    lap_range_t whole = partial(p, 0, all);
    whole.rows = p->m;
    lap_add_gemm(s, LAP_STREAM_COMPUTE, weight(p, all), false);
    lap_gemm_rows(s, input(p, 0, p->m), whole);
    for (int i = 1; i < p->size; i++)
        if (rows_of(p, peer_at(p, i)) > 0)
            add_send(p, s, LAP_STREAM_COMPUTE, peer_at(p, i), all);
    if (rows_of(p, p->rank) > 0)
        add_sum(p, s, LAP_STREAM_COMPUTE, 1, all, partial(p, p->rank, all));
}

static void build_ring(const lap_problem_t *p, lap_schedule_t *s)
{
    columns_t all = all_columns(p);
    if (p->size == 1) {
        build_alone(p, s);
        return;
    }
    begin_schedule(p, s, p->capacity);
    add_credits(p, s, LAP_STREAM_SEND, 1);
    /* The own rows come last: their time hides the last transfer. */
    for (int i = 1; i <= p->size; i++) {
        int owner = peer_at(p, i);
        size_t first, rows = lap_shard(p->m, p->size, owner, &first);
        if (rows == 0)
            continue;
        uint32_t gemm = lap_add_gemm(s, LAP_STREAM_COMPUTE, weight(p, all), false);
        lap_gemm_rows(s, input(p, first, rows), partial(p, owner, all));
        if (owner != p->rank)
            lap_add_dep(s, add_send(p, s, LAP_STREAM_SEND, owner, all), gemm);
    }
    if (rows_of(p, p->rank) > 0)
        add_sum(p, s, LAP_STREAM_COMPUTE, 1, all, partial(p, p->rank, all));
}

/* One split: its GEMM, what it sends to each owner, and the sum of what came. */
static void add_split(const lap_problem_t *p, lap_schedule_t *s, size_t i)
{
    columns_t columns = split(p, i);
    lap_range_t whole = partial(p, 0, columns);
    whole.rows = p->m;
    uint32_t gemm = lap_add_gemm(s, LAP_STREAM_COMPUTE, weight(p, columns), false);
    lap_gemm_rows(s, input(p, 0, p->m), whole);
    bool first = true;
    for (int j = 1; j < p->size; j++) {
        if (rows_of(p, peer_at(p, j)) == 0)
            continue;
        uint32_t put = add_send(p, s, LAP_STREAM_SEND, peer_at(p, j), columns);
        if (first)
            lap_add_dep(s, put, gemm);
        first = false;
    }
    if (rows_of(p, p->rank) > 0)
        lap_add_dep(s,
                    add_sum(p, s, LAP_STREAM_RECEIVE, i + 1, columns, partial(p, p->rank, columns)),
                    gemm);
}

static void build_pipeline(const lap_problem_t *p, lap_schedule_t *s)
{
    if (p->size == 1 || p->m == 0) {
        build_alone(p, s);
        return;
    }
    begin_schedule(p, s, p->capacity);
    add_credits(p, s, LAP_STREAM_SEND, p->num_splits);
    for (size_t i = 0; i < p->num_splits; i++)
        add_split(p, s, i);
}

/*
 * The rows of one owner, block by block: straight into its slot, each block with its signal, or to
 * scratch if own.
 */
static void add_fused_blocks(const lap_problem_t *p, lap_schedule_t *s, int owner)
{
    columns_t all = all_columns(p);
    size_t first, rows = lap_shard(p->m, p->size, owner, &first);
    lap_range_t dst = slot(p, owner, p->rank, all);
    if (owner == p->rank)
        dst = lap_range_packed(LAP_SCRATCH, p->rank, 0, rows, row_bytes(p, all));
    for (size_t at = 0; at < rows; at += p->block_rows) {
        size_t count = rows - at < p->block_rows ? rows - at : p->block_rows;
        lap_range_t d = dst;
        d.offset += at * d.stride;
        d.rows = count;
        lap_block_t *block = lap_gemm_rows(s, input(p, first + at, count), d);
        if (owner == p->rank)
            continue;
        block->raise_peer = owner;
        block->raise_signal = lap_signal_data(p->rank);
        if (at == 0) {
            block->wait_peer = owner;
            block->wait_signal = lap_signal_credit(p->size, owner);
            block->wait_count = 1;
            lap_expect(s, block->wait_signal);
        }
    }
}

static void build_fused(const lap_problem_t *p, lap_schedule_t *s)
{
    columns_t all = all_columns(p);
    size_t rows = rows_of(p, p->rank);
    size_t blocks = rows / p->block_rows + (rows % p->block_rows > 0);
    if (p->size == 1 || p->m == 0) {
        build_alone(p, s);
        return;
    }
    begin_schedule(p, s, lap_shard(p->capacity, p->size, p->rank, NULL));
    add_credits(p, s, LAP_STREAM_SEND, blocks);
    lap_add_gemm(s, LAP_STREAM_COMPUTE, weight(p, all), false);
    for (int i = 1; i <= p->size; i++)
        add_fused_blocks(p, s, peer_at(p, i));
    if (rows > 0)
        add_sum(p, s, LAP_STREAM_COMPUTE, blocks, all,
                lap_range_packed(LAP_SCRATCH, p->rank, 0, rows, row_bytes(p, all)));
}

const lap_builder_t lap_gemm_rs_builders[] = {
    {"serial", "one GEMM, then send and sum: nothing overlaps", LAP_CAN_PUT, build_serial},
    {"ring", "a GEMM for the rows of each owner, sent while the next one runs", LAP_CAN_PUT,
     build_ring},
    {"pipeline", "a GEMM for each part of n, sent and summed while the next one runs", LAP_CAN_PUT,
     build_pipeline},
    {"fused", "the GEMM writes blocks into their owners' memory as they finish", LAP_CAN_ADDRESS,
     build_fused},
    {NULL, NULL, 0, NULL},
};
