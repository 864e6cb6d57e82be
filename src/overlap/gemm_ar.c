/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The builders of GEMM+AR: d = the sum over ranks of a b^T, [m, n] on every rank. All but `direct`
 * reduce as GEMM+RS does (see partial.h): the rows of each partial result go to their owner, who
 * adds them up in rank order; then the owner's sums go to everybody. `direct` sends every partial
 * result to everybody, who all add in the same order. Either way all ranks end with the same bits.
 *
 * Symmetric memory holds the slots of partial results, then the sums of the owners, [m, n] as in d,
 * one split of the columns after the other; `fused` keeps only the own sums there, to be read in
 * place. Without an epilogue the own sums are made in d and sent from there; with one they are made
 * among the others, and every rank applies it to all of them on their way to d.
 */
#include "overlap/partial.h"
#include "transport/transport.h"

static void begin_schedule(const lap_problem_t *p, lap_schedule_t *s, size_t symmetric_bytes,
                           size_t scratch_rows)
{
    s->output = lap_range_packed(LAP_OUTPUT, p->rank, 0, p->m, p->n * lap_dtype_size(p->types.out));
    if (p->size > 1) {
        s->symmetric_bytes = symmetric_bytes;
        s->scratch_bytes = scratch_rows * lap_columns_bytes(p, lap_all_columns(p));
    }
}

/* Whether d is more than the sum. */
static bool has_epilogue(const lap_problem_t *p)
{
    return (p->epilogue & ~(lap_epilogue_t)LAP_EPILOGUE_BIAS_GRAD) != 0 || p->desc.accumulate;
}

static size_t sum_bytes(const lap_problem_t *p, lap_columns_t columns)
{
    return columns.count * lap_dtype_size(p->types.out);
}

static size_t result_bytes(const lap_problem_t *p)
{
    return p->capacity * sum_bytes(p, lap_all_columns(p));
}

/* The rows of `owner` in these columns of d. */
static lap_range_t output(const lap_problem_t *p, int owner, lap_columns_t columns)
{
    size_t first, n_bytes = sum_bytes(p, lap_all_columns(p));
    size_t rows = lap_shard(p->m, p->size, owner, &first);
    return (lap_range_t){LAP_OUTPUT,
                         p->rank,
                         first * n_bytes + columns.begin * lap_dtype_size(p->types.out),
                         rows,
                         sum_bytes(p, columns),
                         n_bytes};
}

/* Where sums begin, after the slots or the rank's own part; they may have another type. */
static size_t sums_begin(const lap_problem_t *p)
{
    return lap_align(lap_slots_bytes(p));
}

static size_t whole_sums_begin(const lap_problem_t *p)
{
    return lap_align(p->capacity * lap_columns_bytes(p, lap_all_columns(p)));
}

/* Where the sums of `owner` arrive in the symmetric memory of `rank`. */
static lap_range_t arrived(const lap_problem_t *p, int rank, int owner, lap_columns_t columns)
{
    size_t first, rows = lap_shard(p->m, p->size, owner, &first);
    size_t before = p->m * columns.begin * lap_dtype_size(p->types.out);
    return lap_range_packed(LAP_SYMMETRIC, rank,
                            sums_begin(p) + before + first * sum_bytes(p, columns), rows,
                            sum_bytes(p, columns));
}

/* Where this rank adds up its own rows. */
static lap_range_t own_sums(const lap_problem_t *p, lap_columns_t columns)
{
    return has_epilogue(p) ? arrived(p, p->rank, p->rank, columns) : output(p, p->rank, columns);
}

/* From sums to d. */
static void add_output(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, lap_range_t sums,
                       lap_range_t dst)
{
    if (!has_epilogue(p)) {
        lap_add_copy(s, stream, sums, dst);
        return;
    }
    lap_add_reduce(s, stream, dst, p->types.out);
    lap_reduce_source(s, sums, p->types.out);
}

/*
 * With `splits` splits a rank sends to each peer, on one stream, first the parts of split 0 and 1,
 * then in turn the sums of one split and the parts of the one after next: the sums of a split need
 * the parts of all ranks, and would otherwise hold up the parts of the next one. So the raises of a
 * word have an order, and these are the counts at which the parts and the sums of split `i` of
 * `source` are here. Owners without rows get no parts and send no sums.
 */
static uint32_t parts_count(const lap_problem_t *p, int source, size_t i)
{
    size_t sums = lap_rows_of(p, source) > 0 && i >= 2 ? i - 1 : 0;
    return (uint32_t)(i + 1 + sums);
}

static uint32_t sums_count(const lap_problem_t *p, size_t splits, size_t i)
{
    size_t parts = i + 2 < splits ? i + 2 : splits;
    return (uint32_t)((lap_rows_of(p, p->rank) > 0 ? parts : 0) + i + 1);
}

/*
 * Lets every peer send its parts, and counts what will come. The sums need no credit: an owner has
 * them when the parts of all ranks are there, so it knows that all have begun the call.
 */
static void add_credits(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, size_t splits)
{
    const size_t own = lap_rows_of(p, p->rank) > 0;
    for (int i = 1; i < p->size; i++) {
        int peer = lap_peer_at(p, -i);
        if (own)
            lap_add_raise(s, stream, peer, lap_signal_credit(p->size, p->rank), 0);
        for (size_t j = 0; j < (own + (lap_rows_of(p, peer) > 0)) * splits; j++)
            lap_expect(s, lap_signal_data(peer));
    }
}

/* Sends every owner its rows of the partial result; `gemm` made them, if on another stream. */
static void add_parts(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream,
                      lap_columns_t columns, uint32_t gemm)
{
    bool first = stream != LAP_STREAM_COMPUTE;
    for (int i = 1; i < p->size; i++) {
        int peer = lap_peer_at(p, i);
        if (lap_rows_of(p, peer) == 0)
            continue;
        if (columns.begin == 0)
            lap_await_credit(p, s, stream, peer);
        uint32_t put = lap_add_part(p, s, stream, peer, columns, lap_partial_of(p, peer, columns));
        if (first)
            lap_add_dep(s, put, gemm);
        first = false;
    }
}

/*
 * Waits for the parts of split `i` of all peers and adds them up, into the own rows of d. Returns
 * the sum.
 */
static uint32_t add_own_sum(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, size_t i,
                            lap_columns_t columns)
{
    for (int j = 1; j < p->size; j++) {
        int peer = lap_peer_at(p, -j);
        lap_add_wait(s, stream, peer, lap_signal_data(peer), parts_count(p, peer, i));
    }
    uint32_t sum = lap_add_sum(p, s, stream, columns, lap_partial_of(p, p->rank, columns),
                               own_sums(p, columns));
    if (has_epilogue(p))
        add_output(p, s, stream, own_sums(p, columns), output(p, p->rank, columns));
    return sum;
}

/* Sends the own sums to every peer; `sum` made them, if on another stream. */
static void add_sums(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream,
                     lap_columns_t columns, uint32_t sum)
{
    bool first = stream != LAP_STREAM_COMPUTE;
    if (lap_rows_of(p, p->rank) == 0)
        return;
    for (int i = 1; i < p->size; i++) {
        int peer = lap_peer_at(p, i);
        uint32_t put = lap_add_put(s, stream, peer, lap_signal_data(p->rank), own_sums(p, columns),
                                   arrived(p, peer, p->rank, columns));
        if (first)
            lap_add_dep(s, put, sum);
        first = false;
    }
}

/* Waits for the sums of split `i` of every other owner and copies them into d. */
static void add_arrivals(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream, size_t splits,
                         size_t i, lap_columns_t columns)
{
    for (int j = 1; j < p->size; j++) {
        int peer = lap_peer_at(p, -j);
        if (lap_rows_of(p, peer) == 0)
            continue;
        lap_add_wait(s, stream, peer, lap_signal_data(peer), sums_count(p, splits, i));
        add_output(p, s, stream, arrived(p, p->rank, peer, columns), output(p, peer, columns));
    }
}

static void build_serial(const lap_problem_t *p, lap_schedule_t *s)
{
    lap_columns_t all = lap_all_columns(p);
    begin_schedule(p, s, sums_begin(p) + result_bytes(p), p->capacity);
    if (p->size == 1 || p->m == 0) {
        lap_add_single_rank(p, s);
        return;
    }
    add_credits(p, s, LAP_STREAM_COMPUTE, 1);
    lap_add_partial(p, s, LAP_STREAM_COMPUTE, all);
    add_parts(p, s, LAP_STREAM_COMPUTE, all, 0);
    if (lap_rows_of(p, p->rank) > 0)
        add_own_sum(p, s, LAP_STREAM_COMPUTE, 0, all);
    add_sums(p, s, LAP_STREAM_COMPUTE, all, 0);
    add_arrivals(p, s, LAP_STREAM_COMPUTE, 1, 0, all);
}

/* Sends the sums of split `i`, and copies those of the others, after the GEMMs. */
static void add_gather(const lap_problem_t *p, lap_schedule_t *s, size_t i, uint32_t sum)
{
    lap_columns_t columns = lap_split_columns(p, i);
    add_sums(p, s, LAP_STREAM_SEND, columns, sum);
    add_arrivals(p, s, LAP_STREAM_RECEIVE, p->desc.num_splits, i, columns);
}

static void build_pipeline(const lap_problem_t *p, lap_schedule_t *s)
{
    uint32_t sum = 0;
    begin_schedule(p, s, sums_begin(p) + result_bytes(p), p->capacity);
    if (p->size == 1 || p->m == 0) {
        lap_add_single_rank(p, s);
        return;
    }
    add_credits(p, s, LAP_STREAM_SEND, p->desc.num_splits);
    for (size_t i = 0; i < p->desc.num_splits; i++) {
        lap_columns_t columns = lap_split_columns(p, i);
        uint32_t gemm = lap_add_partial(p, s, lap_lane(p, i), columns), last = sum;
        add_parts(p, s, LAP_STREAM_SEND, columns, gemm);
        if (lap_rows_of(p, p->rank) > 0) {
            sum = add_own_sum(p, s, LAP_STREAM_RECEIVE, i, columns);
            lap_add_dep(s, sum, gemm);
        }
        if (i > 0)
            add_gather(p, s, i - 1, last);
    }
    add_gather(p, s, p->desc.num_splits - 1, sum);
}

/* Where the whole partial result of `source` arrives at `rank`: one slot [m, n] per peer. */
static lap_range_t whole_slot(const lap_problem_t *p, int rank, int source)
{
    size_t index = (size_t)(source - (source > rank));
    size_t row_bytes = lap_columns_bytes(p, lap_all_columns(p));
    return lap_range_packed(LAP_SYMMETRIC, rank, index * p->capacity * row_bytes, p->m, row_bytes);
}

static size_t whole_slots_bytes(const lap_problem_t *p)
{
    return (size_t)(p->size - 1) * p->capacity * lap_columns_bytes(p, lap_all_columns(p));
}

/* Where its scale arrives. */
static lap_range_t whole_slot_scale(const lap_problem_t *p, int rank, int source)
{
    return lap_scale_range(rank, whole_slots_bytes(p), source, 1);
}

/* Adds up all partial results, each rank for itself. With an epilogue the sums come first. */
static void add_whole_sum(const lap_problem_t *p, lap_schedule_t *s)
{
    lap_range_t own = lap_partial(p, lap_all_columns(p)), sums = s->output;
    if (has_epilogue(p))
        sums = lap_range_packed(LAP_SCRATCH, p->rank, whole_sums_begin(p), p->m,
                                sum_bytes(p, lap_all_columns(p)));
    lap_add_reduce(s, LAP_STREAM_COMPUTE, sums, p->types.out);
    for (int source = 0; source < p->size; source++)
        lap_reduce_source(s, source == p->rank ? own : whole_slot(p, p->rank, source),
                          p->types.wire);
    for (int source = 0; source < p->size && lap_is_scaled(p); source++)
        lap_reduce_scale(s, source == p->rank ? lap_own_scale(p)
                                              : whole_slot_scale(p, p->rank, source));
    if (has_epilogue(p))
        add_output(p, s, LAP_STREAM_COMPUTE, sums, s->output);
}

static void build_direct(const lap_problem_t *p, lap_schedule_t *s)
{
    lap_columns_t all = lap_all_columns(p);
    size_t bytes = whole_slots_bytes(p);
    begin_schedule(p, s, lap_is_scaled(p) ? lap_scales_end(bytes, p->size) : bytes, p->capacity);
    if (p->size == 1 || p->m == 0) {
        lap_add_single_rank(p, s);
        return;
    }
    if (has_epilogue(p))
        s->scratch_bytes = whole_sums_begin(p) + result_bytes(p);
    for (int i = 1; i < p->size; i++) {
        int peer = lap_peer_at(p, -i);
        lap_add_raise(s, LAP_STREAM_SEND, peer, lap_signal_credit(p->size, p->rank), 0);
        lap_expect(s, lap_signal_data(peer));
    }
    uint32_t gemm = lap_add_partial(p, s, LAP_STREAM_COMPUTE, all);
    for (int i = 1; i < p->size; i++) {
        int peer = lap_peer_at(p, i);
        lap_await_credit(p, s, LAP_STREAM_SEND, peer);
        if (lap_is_scaled(p))
            lap_add_put(s, LAP_STREAM_SEND, peer, LAP_NO_SIGNAL, lap_own_scale(p),
                        whole_slot_scale(p, peer, p->rank));
        uint32_t put = lap_add_put(s, LAP_STREAM_SEND, peer, lap_signal_data(p->rank),
                                   lap_partial(p, all), whole_slot(p, peer, p->rank));
        if (i == 1)
            lap_add_dep(s, put, gemm);
    }
    for (int i = 1; i < p->size; i++)
        lap_add_wait(s, LAP_STREAM_COMPUTE, lap_peer_at(p, -i), lap_signal_data(lap_peer_at(p, -i)),
                     1);
    add_whole_sum(p, s);
}

/* The sums of `owner` where it lays them open for its peers, after its slots. */
static lap_range_t open_sums(const lap_problem_t *p, int owner)
{
    return lap_range_packed(LAP_SYMMETRIC, owner, sums_begin(p), lap_rows_of(p, owner),
                            sum_bytes(p, lap_all_columns(p)));
}

/* Adds up the own rows where the peers can read them, and tells them. */
static void add_open_sums(const lap_problem_t *p, lap_schedule_t *s, lap_range_t own)
{
    lap_columns_t all = lap_all_columns(p);
    lap_range_t sums = open_sums(p, p->rank);
    for (int i = 1; i < p->size; i++) {
        int peer = lap_peer_at(p, -i);
        lap_add_wait(s, LAP_STREAM_COMPUTE, peer, lap_signal_data(peer),
                     (uint32_t)lap_row_blocks(p, p->rank));
    }
    lap_add_sum(p, s, LAP_STREAM_COMPUTE, all, own, sums);
    for (int i = 1; i < p->size; i++)
        lap_add_raise(s, LAP_STREAM_COMPUTE, lap_peer_at(p, i), lap_signal_open(p->size, p->rank),
                      lap_range_bytes(&sums));
    add_output(p, s, LAP_STREAM_COMPUTE, sums, output(p, p->rank, all));
}

/*
 * Reads the sums of the other owners in place, tells them when it is done, and waits for the same.
 */
static void add_fused_gather(const lap_problem_t *p, lap_schedule_t *s)
{
    for (int i = 1; i < p->size; i++) {
        int peer = lap_peer_at(p, -i);
        if (lap_rows_of(p, peer) == 0)
            continue;
        lap_add_wait(s, LAP_STREAM_COMPUTE, peer, lap_signal_open(p->size, peer), 1);
        lap_expect(s, lap_signal_open(p->size, peer));
        add_output(p, s, LAP_STREAM_COMPUTE, open_sums(p, peer),
                   output(p, peer, lap_all_columns(p)));
        lap_add_raise(s, LAP_STREAM_COMPUTE, peer, lap_signal_done(p->size, p->rank), 0);
    }
    for (int i = 1; i < p->size && lap_rows_of(p, p->rank) > 0; i++)
        lap_await_done(p, s, LAP_STREAM_COMPUTE, lap_peer_at(p, i));
}

static void build_fused(const lap_problem_t *p, lap_schedule_t *s)
{
    lap_columns_t all = lap_all_columns(p);
    size_t most = lap_shard(p->capacity, p->size, 0, NULL), rows = lap_rows_of(p, p->rank);
    begin_schedule(p, s, sums_begin(p) + most * sum_bytes(p, all), most);
    if (p->size == 1 || p->m == 0) {
        lap_add_single_rank(p, s);
        return;
    }
    lap_range_t own = lap_range_packed(LAP_SCRATCH, p->rank, 0, rows, lap_columns_bytes(p, all));
    for (int i = 1; i < p->size; i++) {
        int peer = lap_peer_at(p, -i);
        if (rows > 0)
            lap_add_raise(s, LAP_STREAM_SEND, peer, lap_signal_credit(p->size, p->rank), 0);
        for (size_t j = 0; j < lap_row_blocks(p, p->rank); j++)
            lap_expect(s, lap_signal_data(peer));
    }
    lap_add_scales(p, s);
    lap_add_gemm(s, LAP_STREAM_COMPUTE, lap_partial_weight(p, all), false);
    for (int i = 1; i <= p->size; i++)
        lap_add_partial_blocks(p, s, lap_peer_at(p, i), own);
    if (rows > 0)
        add_open_sums(p, s, own);
    add_fused_gather(p, s);
}

const lap_builder_t lap_gemm_ar_builders[] = {
    {"serial", "one GEMM, then send, sum and send the sums: nothing overlaps", LAP_CAN_PUT, 0,
     build_serial},
    {"pipeline", "a GEMM for each part of n, reduced and gathered while the next ones run",
     LAP_CAN_PUT, LAP_KNOB_NUM_SPLITS, build_pipeline},
    {"direct", "every partial result goes straight to every peer: for small results", LAP_CAN_PUT,
     0, build_direct},
    {"fused", "blocks go to their owners as they finish, sums are read in place", LAP_CAN_ADDRESS,
     LAP_KNOB_BLOCK_ROWS, build_fused},
    {NULL, NULL, 0, 0, NULL},
};
