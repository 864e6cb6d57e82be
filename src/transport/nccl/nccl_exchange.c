/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A round over NCCL: all its sends and receives as one group on the wire. Rows with gaps are packed
 * before and unpacked behind it.
 */
#include "transport/nccl/nccl_comm.h"

/* Of stage->word_received: a word that nobody has looked at. */
#define FRESH 2u

/* What goes over the wire for a put, or a receive. */
typedef struct piece {
    char *data; /* packed */
    size_t bytes;
    int peer;
} piece_t;

static bool is_packed(size_t rows, size_t row_bytes, size_t stride)
{
    return rows <= 1 || stride == row_bytes;
}

static size_t gaps_of(size_t rows, size_t row_bytes, size_t stride)
{
    /* Multiples of what NCCL copies at its best. */
    return is_packed(rows, row_bytes, stride) ? 0 : (rows * row_bytes + 127) / 128 * 128;
}

/* ---- memory for rows without gaps ---- */

static lap_status_t make_room(lap_nccl_comm_t *comm, const lap_round_t *round)
{
    size_t bytes = 0;
    void *memory;
    for (uint32_t i = 0; i < round->nsends; i++)
        bytes +=
            gaps_of(round->sends[i].rows, round->sends[i].row_bytes, round->sends[i].src_stride);
    for (uint32_t i = 0; i < round->nreceives; i++)
        bytes += gaps_of(round->receives[i].rows, round->receives[i].row_bytes,
                         round->receives[i].stride);
    if (bytes <= comm->packed_bytes)
        return LAP_OK;
    if (bytes < 2 * comm->packed_bytes)
        bytes = 2 * comm->packed_bytes;
    LAP_TRY(lap_cuda_alloc(&comm->device->base, bytes, &memory));
    if (comm->packed)
        comm->outgrown[comm->noutgrown++] = comm->packed;
    comm->packed = memory;
    comm->packed_bytes = bytes;
    return LAP_OK;
}

/* Where a put's bytes are packed; *at is the first free byte of comm->packed. */
static piece_t send_piece(const lap_nccl_comm_t *comm, const lap_put_t *put, size_t *at)
{
    const size_t gaps = gaps_of(put->rows, put->row_bytes, put->src_stride);
    char *data = gaps ? comm->packed + *at : (char *)(uintptr_t)put->src;
    *at += gaps;
    return (piece_t){data, put->rows * put->row_bytes, put->peer};
}

static piece_t receive_piece(const lap_buffer_t *buffer, const lap_receive_t *receive, size_t *at)
{
    const size_t gaps = gaps_of(receive->rows, receive->row_bytes, receive->stride);
    char *data = gaps ? lap_nccl_stage_of(buffer)->comm->packed + *at
                      : buffer->data[buffer->group->rank] + receive->offset;
    *at += gaps;
    return (piece_t){data, receive->rows * receive->row_bytes, receive->peer};
}

static lap_status_t pack(lap_nccl_comm_t *comm, const lap_round_t *round)
{
    size_t at = 0;
    for (uint32_t i = 0; i < round->nsends; i++) {
        const lap_put_t *put = &round->sends[i];
        const piece_t piece = send_piece(comm, put, &at);
        const lap_copy_t copy = {.dst = piece.data,
                                 .src = put->src,
                                 .rows = put->rows,
                                 .row_bytes = put->row_bytes,
                                 .dst_stride = put->row_bytes,
                                 .src_stride = put->src_stride,
                                 .sms = put->sms};
        if (piece.data != put->src)
            LAP_TRY(lap_cuda_copy(comm->wire, &copy));
    }
    return LAP_OK;
}

static size_t sends_end(const lap_nccl_comm_t *comm, const lap_round_t *round)
{
    size_t at = 0;
    for (uint32_t i = 0; i < round->nsends; i++)
        (void)send_piece(comm, &round->sends[i], &at);
    return at;
}

static lap_status_t unpack(lap_buffer_t *buffer, const lap_round_t *round)
{
    lap_nccl_comm_t *comm = lap_nccl_stage_of(buffer)->comm;
    size_t at = sends_end(comm, round);
    for (uint32_t i = 0; i < round->nreceives; i++) {
        const lap_receive_t *receive = &round->receives[i];
        const piece_t piece = receive_piece(buffer, receive, &at);
        const lap_copy_t copy = {.dst = buffer->data[buffer->group->rank] + receive->offset,
                                 .src = piece.data,
                                 .rows = receive->rows,
                                 .row_bytes = receive->row_bytes,
                                 .dst_stride = receive->stride,
                                 .src_stride = receive->row_bytes};
        if (piece.data != copy.dst)
            LAP_TRY(lap_cuda_copy(comm->wire, &copy));
    }
    return LAP_OK;
}

/* ---- the group ---- */

static lap_status_t send(lap_nccl_comm_t *comm, const void *data, size_t bytes, int peer)
{
    if (bytes == 0)
        return LAP_OK;
    return lap_nccl_check(
        &comm->api,
        comm->api.ncclSend(data, bytes, ncclUint8, peer, comm->comm, comm->wire->stream),
        "ncclSend");
}

static lap_status_t receive(lap_nccl_comm_t *comm, void *data, size_t bytes, int peer)
{
    if (bytes == 0)
        return LAP_OK;
    return lap_nccl_check(
        &comm->api,
        comm->api.ncclRecv(data, bytes, ncclUint8, peer, comm->comm, comm->wire->stream),
        "ncclRecv");
}

/* The word of the call goes ahead of the first rows to a peer, and comes ahead of its first. */
static lap_status_t send_all(lap_buffer_t *buffer, const lap_round_t *round)
{
    struct lap_stage *stage = buffer->backend;
    lap_nccl_comm_t *comm = stage->comm;
    size_t at = 0;
    for (uint32_t i = 0; i < round->nsends; i++) {
        const piece_t piece = send_piece(comm, &round->sends[i], &at);
        if (!stage->word_sent[piece.peer])
            LAP_TRY(send(comm, &stage->out[piece.peer], sizeof(lap_cuda_word_t), piece.peer));
        stage->word_sent[piece.peer] = 1;
        LAP_TRY(send(comm, piece.data, piece.bytes, piece.peer));
    }
    for (uint32_t i = 0; i < round->nreceives; i++) {
        const piece_t piece = receive_piece(buffer, &round->receives[i], &at);
        if (!stage->word_received[piece.peer])
            LAP_TRY(receive(comm, &stage->in[piece.peer], sizeof(lap_cuda_word_t), piece.peer));
        if (!stage->word_received[piece.peer])
            stage->word_received[piece.peer] = FRESH;
        LAP_TRY(receive(comm, piece.data, piece.bytes, piece.peer));
    }
    return LAP_OK;
}

/* Between enter and leave. A group that was begun is ended, whatever happens. */
static lap_status_t run_group(lap_buffer_t *buffer, const lap_round_t *round)
{
    lap_nccl_comm_t *comm = lap_nccl_stage_of(buffer)->comm;
    LAP_TRY(lap_cuda_settle(comm->wire));
    LAP_TRY(lap_nccl_check(&comm->api, comm->api.ncclGroupStart(), "ncclGroupStart"));
    const lap_status_t status = send_all(buffer, round);
    const ncclResult_t result = comm->api.ncclGroupEnd();
    LAP_TRY(status);
    LAP_TRY(lap_nccl_check(&comm->api, result, "ncclGroupEnd"));
    /* Until then the wire may not have been given all of it. */
    return lap_nccl_await(comm, "ncclGroupEnd");
}

/* ---- the round ---- */

static lap_status_t raise_word(lap_buffer_t *buffer, lap_cuda_word_t *word, uint64_t tag)
{
    const lap_cuda_raise_t raise = {
        .word = word, .calls = lap_nccl_stage_of(buffer)->calls, .tag = tag};
    return lap_cuda_stream_raise(lap_nccl_stage_of(buffer)->comm->wire, &raise, false, true);
}

static lap_status_t begin(lap_buffer_t *buffer, const lap_round_t *round)
{
    const struct lap_stage *stage = buffer->backend;
    lap_nccl_comm_t *comm = stage->comm;
    for (uint32_t i = 0; i < round->nafter; i++)
        LAP_TRY(lap_cuda_stream_wait_event(comm->wire, round->after[i]));
    for (uint32_t i = 0; i < round->nsends; i++)
        if (round->sends[i].span)
            LAP_TRY(lap_cuda_stamp(comm->wire, &round->sends[i].span->begin));
    LAP_TRY(pack(comm, round));
    for (uint32_t i = 0; i < round->nsends; i++) {
        const lap_put_t *put = &round->sends[i];
        bool first = !stage->word_sent[put->peer];
        for (uint32_t j = 0; j < i; j++)
            first = first && round->sends[j].peer != put->peer;
        if (first)
            LAP_TRY(raise_word(buffer, &stage->out[put->peer], put->tag));
    }
    return raise_word(buffer, &comm->progress[0], 0);
}

/* Compares the words that came for the first time in this call; what behind it waits for them. */
static lap_status_t check_words(lap_buffer_t *buffer, const lap_round_t *round)
{
    struct lap_stage *stage = buffer->backend;
    for (uint32_t i = 0; i < round->nreceives; i++) {
        const int peer = round->receives[i].peer;
        if (stage->word_received[peer] != FRESH)
            continue;
        stage->word_received[peer] = 1;
        const lap_cuda_wait_t wait = {
            .word = &stage->in[peer],
            .consumed = &stage->consumed[peer],
            .calls = stage->calls,
            .tag = round->reason ? round->reason->tag : 0,
            .buffer = (uint64_t)(uintptr_t)buffer,
            .reason = (uint64_t)(uintptr_t)round->reason,
            .peer = peer,
            .count = 1,
        };
        LAP_TRY(lap_cuda_stream_wait(stage->comm->wire, &wait, round->reason != NULL, true));
    }
    return LAP_OK;
}

static lap_status_t end(lap_buffer_t *buffer, const lap_round_t *round)
{
    lap_nccl_comm_t *comm = lap_nccl_stage_of(buffer)->comm;
    LAP_TRY(unpack(buffer, round));
    LAP_TRY(raise_word(buffer, &comm->progress[1], 0));
    for (uint32_t i = 0; i < round->nsends; i++)
        if (round->sends[i].span)
            LAP_TRY(lap_cuda_stamp(comm->wire, &round->sends[i].span->end));
    return lap_cuda_event_record(round->done, comm->wire);
}

/* For the sentence, if it does not come to an end. */
static void note(lap_buffer_t *buffer, const lap_round_t *round)
{
    lap_nccl_comm_t *comm = lap_nccl_stage_of(buffer)->comm;
    const uint32_t number = ++comm->issued;
    comm->flights[number % LAP_NCCL_FLIGHTS] = (lap_nccl_flight_t){number, buffer, *round};
}

lap_status_t lap_nccl_exchange(lap_buffer_t *buffer, const lap_device_ops_t *device,
                               const lap_round_t *round)
{
    (void)device;
    lap_nccl_comm_t *comm = lap_nccl_stage_of(buffer)->comm;
    if (!comm->comm)
        return lap_error(LAP_ERR_PEER_LOST, "the communicator of NCCL was ended by a failure");
    LAP_TRY(make_room(comm, round));
    note(buffer, round);
    LAP_TRY(begin(buffer, round));
    LAP_TRY(lap_cuda_enter(comm->device));
    LAP_TRY(lap_cuda_leave(comm->device, run_group(buffer, round)));
    LAP_TRY(check_words(buffer, round));
    return end(buffer, round);
}
