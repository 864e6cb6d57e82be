/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transports `mpi` and `hosts`: ranks that have a wire between them. A put becomes packets that
 * the owner of the memory takes in a thread of its own, whatever its other threads do: its words
 * are raised there as if the peer had done so. `mpi` uses MPI between all ranks, `hosts` only where
 * memory cannot be mapped. They do not see MPI itself: that is in core/mpi. A wire over TCP is for
 * control alone; transport/nccl has its records and its signals from the host on either.
 */
#include "transport/wire/wire.h"

#include <string.h>

#include "core/status.h"
#include "transport/host/host.h"
#include "transport/link/link.h"
#include "util/alloc.h"
#include "util/clock.h"

enum { PACKET_PUT, PACKET_NOTE };

/* The words of a PACKET_PUT. Without rows it only raises. */
enum { PUT_OFFSET, PUT_ROWS, PUT_ROW_BYTES, PUT_STRIDE, PUT_SIGNAL, PUT_TAG };

/* The words of a PACKET_NOTE. */
enum { NOTE_CALL, NOTE_OP, NOTE_M, NOTE_NUMBER, NOTE_NAME };

/* Where packets for a buffer come in, here and on the other ranks. */
struct lap_slot {
    uint64_t port;
    bool open;
    uint64_t *ports;
    lap_call_record_t *records; /* the others' reports of theirs: LAP_CALL_RECORDS of each */
};

static struct lap_slot *slot_of(const lap_buffer_t *buffer)
{
    return buffer->slot;
}

/* ---- taking packets ---- */

static void take_put(lap_buffer_t *buffer, const lap_packet_t *packet, const char *body)
{
    const size_t offset = packet->words[PUT_OFFSET], rows = packet->words[PUT_ROWS];
    const size_t row_bytes = packet->words[PUT_ROW_BYTES], stride = packet->words[PUT_STRIDE];
    const uint64_t signal = packet->words[PUT_SIGNAL];
    const int rank = buffer->group->rank;
    /* The sender has looked at its arguments; this keeps a stray packet from doing harm. */
    if (rows > 0 &&
        (rows > packet->bytes || row_bytes > packet->bytes || row_bytes * rows != packet->bytes ||
         offset > buffer->bytes || row_bytes > buffer->bytes - offset ||
         (rows > 1 && stride > (buffer->bytes - offset - row_bytes) / (rows - 1))))
        return;
    const lap_copy_t copy = {.dst = buffer->data[rank] + offset,
                             .src = body,
                             .rows = rows,
                             .row_bytes = row_bytes,
                             .dst_stride = stride,
                             .src_stride = row_bytes};
    if (rows > 0)
        lap_copy_now(&copy);
    /* Releases the copy, and those of earlier packets of that rank, to who waits for the word. */
    if (signal < buffer->nsignals)
        lap_bank_raise_tagged(buffer->banks[rank], signal, packet->words[PUT_TAG]);
}

static void take_note(lap_buffer_t *buffer, const lap_packet_t *packet)
{
    char name[LAP_CALL_NAME + 1] = "";
    memcpy(name, &packet->words[NOTE_NAME], LAP_CALL_NAME);
    const lap_wait_reason_t reason = {
        .op = name,
        .call = (uint32_t)packet->words[NOTE_CALL],
        .op_index = (uint32_t)packet->words[NOTE_OP],
        .m = packet->words[NOTE_M],
        .number = packet->words[NOTE_NUMBER],
    };
    lap_buffer_write_call(buffer->records[packet->from], &reason);
}

static void deliver(void *context, const lap_packet_t *packet, const char *body)
{
    lap_buffer_t *buffer = context;
    if (packet->from >= (uint32_t)buffer->group->size)
        return;
    if (packet->kind == PACKET_PUT)
        take_put(buffer, packet, body);
    else if (packet->kind == PACKET_NOTE)
        take_note(buffer, packet);
}

/* ---- sending them ---- */

static lap_status_t begin_packet(lap_buffer_t *buffer, int peer, uint32_t kind, size_t bytes,
                                 lap_packet_t **packet_p)
{
    const lap_group_t *group = buffer->group;
    lap_wire_t *wire = group->world->wire;
    lap_buffer_watch_t watch;
    lap_packet_t *packet = NULL;
    lap_buffer_watch_init(&watch, buffer, peer, NULL);
    lap_status_t status = lap_wire_begin(wire, group->members[peer], bytes, &watch.watch, &packet);
    if (status == LAP_ERR_TIMEOUT && lap_group_broken(buffer->group) == LAP_OK) {
        lap_error(status, "rank %d could not send to rank %d within %g s", group->rank, peer,
                  (double)group->world->timeout_ns * 1e-9);
        lap_group_fail(buffer->group, status, lap_last_error());
    }
    LAP_TRY(status);
    packet->port = slot_of(buffer)->ports[peer];
    packet->kind = kind;
    packet->from = (uint32_t)group->rank;
    *packet_p = packet;
    return LAP_OK;
}

/* A part of a put that fits into one packet: `rows` rows of `bytes` bytes from (row, column) on. */
static lap_status_t send_part(lap_buffer_t *buffer, const lap_put_t *put, size_t row, size_t column,
                              size_t rows, size_t bytes)
{
    lap_wire_t *wire = buffer->group->world->wire;
    lap_packet_t *packet = NULL;
    LAP_TRY(begin_packet(buffer, put->peer, PACKET_PUT, rows * bytes, &packet));
    const bool last =
        rows == 0 || bytes == 0 || (row + rows >= put->rows && column + bytes >= put->row_bytes);
    packet->words[PUT_OFFSET] = put->offset + row * put->dst_stride + column;
    packet->words[PUT_ROWS] = bytes > 0 ? rows : 0;
    packet->words[PUT_ROW_BYTES] = bytes;
    packet->words[PUT_STRIDE] = put->dst_stride;
    packet->words[PUT_SIGNAL] = last ? put->signal : LAP_NO_SIGNAL;
    packet->words[PUT_TAG] = put->tag;
    for (size_t i = 0; i < rows && bytes > 0; i++)
        memcpy(lap_packet_body(packet) + i * bytes,
               (const char *)put->src + (row + i) * put->src_stride + column, bytes);
    wire->ops->send(wire, packet);
    return LAP_OK;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* As many whole rows to a packet as go, or one row in several packets. */
static lap_status_t send_parts(lap_buffer_t *buffer, const lap_put_t *put)
{
    const size_t bytes = smaller(put->row_bytes, LAP_WIRE_BODY);
    const size_t rows = bytes > 0 ? LAP_WIRE_BODY / bytes : put->rows;
    if (put->rows == 0 || put->row_bytes == 0)
        return send_part(buffer, put, 0, 0, put->rows, 0);
    for (size_t row = 0; row < put->rows; row += smaller(rows, put->rows - row))
        for (size_t column = 0; column < put->row_bytes; column += bytes)
            LAP_TRY(send_part(buffer, put, row, column, smaller(rows, put->rows - row),
                              smaller(bytes, put->row_bytes - column)));
    return LAP_OK;
}

static lap_status_t lap_wire_put_now(lap_buffer_t *buffer, const lap_put_t *put)
{
    if (buffer->data[put->peer])
        return lap_host_put_now(buffer, put);
    lap_put_t whole = *put;
    /* Rows without gaps are one row. */
    if (put->src_stride == put->row_bytes && put->dst_stride == put->row_bytes) {
        whole.row_bytes = put->rows * put->row_bytes;
        whole.rows = 1;
    }
    const uint64_t begin = put->span ? lap_now_ns() : 0;
    LAP_TRY(send_parts(buffer, &whole));
    if (put->span)
        *put->span = (lap_span_t){begin, begin, lap_now_ns()};
    return LAP_OK;
}

lap_status_t lap_wire_raise_now(lap_buffer_t *buffer, const lap_raise_t *raise)
{
    const lap_put_t put = {
        .peer = raise->peer, .signal = raise->signal, .tag = raise->tag, .span = raise->span};
    if (buffer->banks[raise->peer])
        return lap_host_raise_now(buffer, raise);
    return lap_wire_put_now(buffer, &put);
}

lap_status_t lap_wire_wait_now(lap_buffer_t *buffer, const lap_wait_t *wait)
{
    lap_wire_t *wire = buffer->group->world->wire;
    if (wire && !lap_bank_reached(buffer->banks[buffer->group->rank], wait->signal, wait->target))
        wire->ops->nudge(wire);
    return lap_host_wait_now(buffer, wait);
}

void lap_wire_send_record(lap_buffer_t *buffer, const lap_wait_reason_t *reason)
{
    lap_wire_t *wire = buffer->group->world->wire;
    for (int peer = 0; peer < buffer->group->size; peer++) {
        lap_packet_t *packet = NULL;
        /* Without memory for it a mismatch is found later, by the tag of a signal. */
        if (buffer->banks[peer] || begin_packet(buffer, peer, PACKET_NOTE, 0, &packet) != LAP_OK)
            continue;
        packet->words[NOTE_CALL] = reason->call;
        packet->words[NOTE_OP] = reason->op_index;
        packet->words[NOTE_M] = reason->m;
        packet->words[NOTE_NUMBER] = reason->number;
        char name[LAP_CALL_NAME] = "";
        memcpy(name, reason->op, strnlen(reason->op, LAP_CALL_NAME - 1));
        memcpy(&packet->words[NOTE_NAME], name, LAP_CALL_NAME);
        wire->ops->send(wire, packet);
    }
}

/* ---- making and ending buffers ---- */

void lap_wire_buffer_destroy(lap_buffer_t *buffer)
{
    lap_wire_t *wire = buffer->group->world->wire;
    struct lap_slot *slot = buffer->slot;
    if (slot) {
        if (slot->open)
            lap_wire_port_close(wire, slot->port); /* nothing comes into the memory after this */
        lap_free(slot->records);
        lap_free(slot->ports);
        lap_free(slot);
    }
    buffer->slot = NULL;
    lap_host_buffer_destroy(buffer);
}

static lap_status_t open_slot(lap_buffer_t *buffer)
{
    const size_t size = (size_t)buffer->group->size;
    const int rank = buffer->group->rank;
    lap_wire_t *wire = buffer->group->world->wire;
    struct lap_slot *slot = buffer->slot = lap_alloc(1, sizeof(*slot));
    if (slot) {
        slot->ports = lap_alloc(size, sizeof(*slot->ports));
        slot->records = lap_alloc(size * LAP_CALL_RECORDS, sizeof(*slot->records));
    }
    if (!slot || !slot->ports || !slot->records)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the ports of a buffer of %zu ranks",
                         size);
    for (size_t r = 0; r < size; r++)
        if (!buffer->records[r])
            buffer->records[r] = &slot->records[r * LAP_CALL_RECORDS];
    LAP_TRY(lap_wire_port_open(wire, deliver, buffer, buffer->banks[rank], &slot->port));
    slot->open = true;
    return LAP_OK;
}

/* Whether the world has a wire, which carries data to those ranks whose memory is not mapped. */
static lap_status_t check_wire(const lap_buffer_t *buffer,
                               bool (*maps)(const lap_buffer_t *buffer, int rank))
{
    const lap_group_t *group = buffer->group;
    const lap_wire_t *wire = group->world->wire;
    const char *name = buffer->ops->name;
    if (!wire)
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "transport %s needs a world over MPI: start the ranks with mpirun, and "
                         "make the world with the same transport, or with LAP_TRANSPORT=%s",
                         name, name);
    if (wire->ops->carries_data || buffer->ops->device)
        return LAP_OK;
    for (int rank = 0; rank < group->size; rank++)
        if (rank != group->rank && !maps(buffer, rank))
            return lap_error(
                LAP_ERR_UNSUPPORTED,
                "transport %s cannot bring data of rank %d to rank %d: these ranks met "
                "over %s, which carries none; expected mpirun (MPI carries data between "
                "hosts), or GPUs with NCCL (LAP_DEVICE=cuda)",
                name, rank, group->rank, wire->ops->name);
    return LAP_OK;
}

static lap_status_t buffer_create(lap_buffer_t *buffer, size_t bytes,
                                  bool (*maps)(const lap_buffer_t *buffer, int rank))
{
    LAP_TRY(check_wire(buffer, maps));
    LAP_TRY(lap_host_buffer_create_some(buffer, bytes, maps));
    lap_status_t status = lap_group_agree(buffer->group, open_slot(buffer));
    if (status == LAP_OK)
        status = lap_group_allgather(buffer->group, &slot_of(buffer)->port, sizeof(uint64_t),
                                     slot_of(buffer)->ports);
    if (status != LAP_OK)
        lap_wire_buffer_destroy(buffer);
    return status;
}

static bool maps_none(const lap_buffer_t *buffer, int rank)
{
    (void)buffer;
    (void)rank;
    return false;
}

static bool maps_local(const lap_buffer_t *buffer, int rank)
{
    const lap_group_t *group = buffer->group;
    return group->world->peers[group->members[rank]].heap_fd >= 0;
}

static lap_status_t lap_wire_buffer_create(lap_buffer_t *buffer)
{
    return buffer_create(buffer, buffer->bytes, maps_none);
}

lap_status_t lap_hosts_buffer_create_some(lap_buffer_t *buffer, size_t bytes)
{
    return buffer_create(buffer, bytes, maps_local);
}

static lap_status_t lap_hosts_buffer_create(lap_buffer_t *buffer)
{
    return lap_hosts_buffer_create_some(buffer, buffer->bytes);
}

/* They differ in what they map, and in the wire. */
#define OVER_A_WIRE                                                                                \
    .can = LAP_CAN_PUT | LAP_CAN_SPAN, .buffer_destroy = lap_wire_buffer_destroy,                  \
    .send_record = lap_wire_send_record, .put_now = lap_wire_put_now,                              \
    .raise_now = lap_wire_raise_now, .wait_now = lap_wire_wait_now, .put = lap_host_put,           \
    .raise = lap_host_raise, .wait = lap_host_wait, .link_begin = lap_link_begin

const lap_transport_ops_t lap_mpi_ops = {
    .name = "mpi",
    .summary = "processes that mpirun started, MPI between all",
    .buffer_create = lap_wire_buffer_create,
    OVER_A_WIRE,
};

const lap_transport_ops_t lap_hosts_ops = {
    .name = "hosts",
    .summary = "shared memory inside a host, MPI between hosts",
    .buffer_create = lap_hosts_buffer_create,
    OVER_A_WIRE,
};
