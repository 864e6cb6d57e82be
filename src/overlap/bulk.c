/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The builders of a local GEMM, and of a reduce-scatter by itself or at the same time as a GEMM
 * that it does not depend on: y = rows m_r of the sum over ranks of x. The rows of x go to their owners, who add
 * them up in rank order, as the partial results of GEMM+RS do (see partial.h); here they are there
 * from the beginning.
 */
#include "overlap/partial.h"

static void begin_schedule(const lap_problem_t *p, lap_schedule_t *s)
{
    s->gathered = lap_range_packed(LAP_GATHERED, p->rank, 0, lap_rows_of(p, p->rank),
                                   p->desc.cols * lap_dtype_size(p->types.y));
    if (p->size > 1)
        s->symmetric_bytes = lap_slots_bytes(p);
}

/* Lets the peers write, and sends them their rows. */
static void add_sends(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream)
{
    for (int i = 1; i < p->size && lap_rows_of(p, p->rank) > 0; i++) {
        int peer = lap_peer_at(p, -i);
        lap_add_raise(s, stream, peer, lap_signal_credit(p->size, p->rank), 0);
        lap_expect(s, lap_signal_data(peer));
    }
    (void)lap_add_parts(p, s, stream, lap_all_columns(p));
}

/* Adds up the own rows when all parts are here. */
static void add_own_sum(const lap_problem_t *p, lap_schedule_t *s, uint16_t stream)
{
    lap_columns_t all = lap_all_columns(p);
    if (lap_rows_of(p, p->rank) == 0)
        return;
    for (int i = 1; i < p->size; i++) {
        int peer = lap_peer_at(p, -i);
        lap_add_wait(s, stream, peer, lap_signal_data(peer), 1);
    }
    lap_add_sum(p, s, stream, all, lap_partial_of(p, p->rank, all), s->gathered);
}

static void build_serial(const lap_problem_t *p, lap_schedule_t *s)
{
    begin_schedule(p, s);
    add_sends(p, s, LAP_STREAM_COMPUTE);
    add_own_sum(p, s, LAP_STREAM_COMPUTE);
    lap_add_local_gemm(p, s);
}

static void build_direct(const lap_problem_t *p, lap_schedule_t *s)
{
    begin_schedule(p, s);
    add_sends(p, s, LAP_STREAM_SEND);
    lap_add_local_gemm(p, s);
    add_own_sum(p, s, lap_receive_stream(p));
}

/*
 * Rows go to the rank before this one first, and to that after it last: as shards come around a ring,
 * so that what is made of the first that came leaves first.
 */
static void build_ring(const lap_problem_t *p, lap_schedule_t *s)
{
    const lap_columns_t all = lap_all_columns(p);
    begin_schedule(p, s);
    for (int i = 1; i < p->size && lap_rows_of(p, p->rank) > 0; i++) {
        const int peer = lap_peer_at(p, i);
        lap_add_raise(s, LAP_STREAM_SEND, peer, lap_signal_credit(p->size, p->rank), 0);
        lap_expect(s, lap_signal_data(peer));
    }
    for (int i = 1; i < p->size; i++) {
        const int owner = lap_peer_at(p, -i);
        if (lap_rows_of(p, owner) == 0)
            continue;
        lap_await_credit(p, s, LAP_STREAM_SEND, owner);
        (void)lap_add_part(p, s, LAP_STREAM_SEND, owner, all, lap_partial_of(p, owner, all));
    }
    add_own_sum(p, s, lap_receive_stream(p));
}

const lap_builder_t lap_bulk_rs_builders[] = {
    {"serial", "send and sum, then the GEMM: nothing overlaps", LAP_CAN_PUT, 0, build_serial},
    {"direct", "every rank sends its rows of x to their owners during the GEMM", LAP_CAN_PUT, 0,
     build_direct},
    {NULL, NULL, 0, 0, NULL},
};

const lap_builder_t lap_external_rs_builders[] = {
    {"serial", "send and sum, in line with the GEMMs", LAP_CAN_PUT, 0, build_serial},
    {"ring",
     "every rank sends its rows of x to their owners, to those before it first, as they are made",
     LAP_CAN_PUT, 0, build_ring},
    {"direct", "every rank sends its rows of x to their owners, during GEMMs already begun",
     LAP_CAN_PUT, 0, build_direct},
    {NULL, NULL, 0, 0, NULL},
};

const lap_builder_t lap_gemm_builders[] = {
    {"serial", "one GEMM, and nothing to send", 0, 0, lap_add_local_gemm},
    {NULL, NULL, 0, 0, NULL},
};
