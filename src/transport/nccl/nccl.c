/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport `nccl`: ranks on GPUs of one host or several, whose memory is windows of NCCL.
 * Where NCCL gives all ranks of a group the addresses of all others' memory, which it does inside a
 * host and wherever NVLink reaches, puts, signals and waits are those of `cuda_ipc`. In other
 * groups peers are reached by nccl_far.c; waits are the same there, so that they have tags and give
 * up by themselves.
 *
 * Besides, each rank has the memory that transports of hosts have, without data: the records by
 * which ranks find out that they are in different calls, and the words that lap_buffer_raise and
 * _wait use.
 */
#include <stdlib.h>
#include <string.h>

#include "transport/host/host.h"
#include "transport/nccl/nccl_comm.h"
#include "transport/wire/wire.h"
#include "util/alloc.h"

#define DATA_ALIGNMENT 4096u

/* Before there is a communicator, ranks of one host are taken to be near each other. */
static unsigned lap_nccl_group_can(const lap_group_t *group)
{
    const lap_nccl_comm_t *comm = group ? group->channel : NULL;
    const char *asked = getenv("LAP_NCCL_ADDRESSES");
    if (comm)
        return comm->all_near ? LAP_CAN_ADDRESS : 0;
    return (asked && strcmp(asked, "0") == 0) || (group && lap_transport_spans(group))
               ? 0
               : LAP_CAN_ADDRESS;
}

/* ---- memory ---- */

/* Memory that peers still have mapped lives until they have not. */
static void lap_nccl_buffer_destroy(lap_buffer_t *buffer)
{
    lap_nccl_part_t *part = buffer->backend;
    if (part) {
        lap_paced_free(&part->part);
        lap_nccl_window_destroy(part->comm, &part->window);
        lap_free(part->part.bases);
        lap_free(part);
    }
    buffer->backend = NULL;
    lap_wire_buffer_destroy(buffer);
}

static size_t round_up(size_t value)
{
    return (value + DATA_ALIGNMENT - 1) / DATA_ALIGNMENT * DATA_ALIGNMENT;
}

/* Everything but the memory itself. */
static lap_status_t create_part(lap_buffer_t *buffer, lap_nccl_comm_t *comm)
{
    const size_t size = (size_t)buffer->group->size;
    const size_t words = buffer->nsignals * sizeof(lap_cuda_word_t);
    lap_nccl_part_t *part = buffer->backend = lap_alloc(1, sizeof(*part));
    if (!part)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the handle of a buffer");
    part->comm = comm;
    part->part.device = comm->device;
    part->part.fd = -1;
    part->part.bases = lap_alloc(size, sizeof(*part->part.bases));
    if (!part->part.bases)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the tables of a buffer of %zu ranks",
                         size);
    part->part.data = round_up(words + (buffer->nsignals + 1) * sizeof(uint32_t));
    part->stage = part->part.data + round_up(buffer->bytes);
    part->out = part->stage + (comm->all_near ? 0 : round_up(buffer->bytes));
    part->part.bytes = part->out + (comm->all_near ? 0 : round_up(size * words));
    if (buffer->bytes > SIZE_MAX / 4)
        return lap_error(LAP_ERR_NO_MEMORY,
                         "a symmetric buffer of %zu bytes is more than a process can address",
                         buffer->bytes);
    return LAP_OK;
}

/* The addresses of all ranks' memory, as far as there are any. */
static lap_status_t find_bases(lap_buffer_t *buffer)
{
    lap_nccl_part_t *part = buffer->backend;
    lap_nccl_comm_t *comm = part->comm;
    for (int r = 0; r < buffer->group->size; r++) {
        void *base = r == buffer->group->rank ? part->window.memory : NULL;
        if (!base && comm->all_near)
            LAP_TRY(lap_nccl_check(
                &comm->api, comm->api.ncclGetPeerDevicePointer(part->window.window, 0, r, &base),
                "ncclGetPeerDevicePointer"));
        part->part.bases[r] = base;
        buffer->data[r] = base ? part->part.bases[r] + part->part.data : NULL;
    }
    part->part.consumed = (uint32_t *)(void *)(part->part.bases[buffer->group->rank] +
                                               buffer->nsignals * sizeof(lap_cuda_word_t));
    part->part.calls = part->part.consumed + buffer->nsignals;
    return LAP_OK;
}

/* Who computes where; collective. */
static lap_status_t find_sharing(lap_buffer_t *buffer)
{
    struct lap_part *part = buffer->backend;
    const lap_part_place_t own = lap_part_place(part->device);
    void *places;
    LAP_TRY(lap_group_collect(buffer->group, &own, sizeof(own), &places));
    lap_part_share(buffer, places, sizeof(own));
    lap_free(places);
    /* Over a network, what is issued must be issued anew: see nccl_far.c. */
    buffer->no_graphs = buffer->no_graphs || !lap_nccl_part_of(buffer)->comm->all_near;
    return LAP_OK;
}

static lap_status_t create_all(lap_buffer_t *buffer, lap_nccl_comm_t *comm)
{
    LAP_TRY(lap_group_agree(buffer->group, create_part(buffer, comm)));
    lap_nccl_part_t *part = buffer->backend;
    LAP_TRY(lap_nccl_window_create(comm, part->part.bytes, &part->window));
    lap_status_t status = lap_nccl_enter(comm);
    if (status == LAP_OK)
        status = lap_nccl_leave(comm, find_bases(buffer));
    LAP_TRY(lap_group_agree(buffer->group, status));
    return find_sharing(buffer);
}

static lap_status_t lap_nccl_buffer_create(lap_buffer_t *buffer)
{
    lap_group_t *group = buffer->group;
    lap_nccl_comm_t *comm = NULL;
    LAP_TRY(lap_nccl_comm_get(group, &comm));
    if (group->world->wire)
        LAP_TRY(lap_hosts_buffer_create_some(buffer, sizeof(uint32_t)));
    else
        LAP_TRY(lap_host_buffer_create_some(buffer, sizeof(uint32_t), NULL));
    const lap_status_t status = create_all(buffer, comm);
    if (status != LAP_OK)
        lap_nccl_buffer_destroy(buffer);
    return status;
}

static lap_status_t lap_nccl_link_begin(lap_buffer_t *buffer)
{
    if (lap_nccl_part_of(buffer)->comm->all_near)
        return lap_cuda_ipc_link_begin(buffer);
    return lap_error(LAP_ERR_UNSUPPORTED,
                     "transport %s cannot emulate a link between hosts: expected none",
                     buffer->ops->name);
}

/* ---- puts and signals ---- */

static bool is_near(const lap_buffer_t *buffer, int peer)
{
    return buffer->data[peer] != NULL;
}

static lap_status_t lap_nccl_put_now(lap_buffer_t *buffer, const lap_put_t *put)
{
    const lap_raise_t raise = lap_put_raise(put, 0);
    LAP_TRY(is_near(buffer, put->peer) ? lap_part_copy_now(buffer, put)
                                       : lap_nccl_far_put_now(buffer, put));
    return put->signal == LAP_NO_SIGNAL ? LAP_OK : lap_wire_raise_now(buffer, &raise);
}

static lap_status_t lap_nccl_put(lap_buffer_t *buffer, const lap_device_ops_t *device,
                                 lap_stream_t *stream, const lap_put_t *put)
{
    return is_near(buffer, put->peer) ? lap_cuda_ipc_put(buffer, device, stream, put)
                                      : lap_nccl_far_put(buffer, stream, put);
}

static lap_status_t lap_nccl_raise(lap_buffer_t *buffer, const lap_device_ops_t *device,
                                   lap_stream_t *stream, const lap_raise_t *raise)
{
    return is_near(buffer, raise->peer) ? lap_cuda_ipc_raise(buffer, device, stream, raise)
                                        : lap_nccl_far_raise(buffer, stream, raise);
}

const lap_transport_ops_t lap_nccl_ops = {
    .name = "nccl",
    .summary = "GPUs of one host or several, one-sided puts into windows of NCCL",
    .can = LAP_NCCL_CAN,
    .device = "cuda",
    .group_can = lap_nccl_group_can,
    .buffer_create = lap_nccl_buffer_create,
    .buffer_destroy = lap_nccl_buffer_destroy,
    .send_record = lap_wire_send_record,
    .put_now = lap_nccl_put_now,
    .raise_now = lap_wire_raise_now,
    .wait_now = lap_wire_wait_now,
    .put = lap_nccl_put,
    .raise = lap_nccl_raise,
    .wait = lap_cuda_ipc_wait,
    .end_signals = lap_cuda_ipc_end_signals,
    .link_begin = lap_nccl_link_begin,
};
