/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport `nccl`: ranks on GPUs of one host or several, whose puts are sends and receives of
 * NCCL. A put must be met there: programs issue rounds, which nccl_exchange.c sends, and their waits
 * are waits for rounds; see schedule/rounds.h.
 *
 * Besides, each rank has the memory that transports of hosts have, without data: the notes by which
 * ranks find out that they are in different calls, and the words that lap_buffer_raise and _wait
 * use. A put by the host has nobody to meet it, and is refused.
 */
#include "transport/nccl/nccl_comm.h"

#include <string.h>

#include "transport/host/host.h"
#include "transport/mpi/mpi.h"
#include "util/alloc.h"

#define DATA_ALIGNMENT 4096u

/* ---- memory ---- */

static void lap_nccl_buffer_destroy(lap_buffer_t *buffer)
{
    struct lap_stage *stage = buffer->backend;
    if (stage) {
        lap_cuda_free(&stage->comm->device->base, stage->memory);
        lap_free(stage->word_received);
        lap_free(stage->word_sent);
        lap_free(stage);
    }
    buffer->backend = NULL;
    lap_mpi_buffer_destroy(buffer);
}

/* Sets where the parts of the memory begin; the result is its size. */
static lap_status_t lay_out(const lap_buffer_t *buffer, size_t *data_p, size_t *bytes_p)
{
    const size_t size = (size_t)buffer->group->size;
    const size_t head = 2 * size * sizeof(lap_cuda_word_t) + (size + 1) * sizeof(uint32_t);
    *data_p = (head + DATA_ALIGNMENT - 1) / DATA_ALIGNMENT * DATA_ALIGNMENT;
    *bytes_p = *data_p + buffer->bytes;
    if (*bytes_p < buffer->bytes)
        return lap_error(LAP_ERR_NO_MEMORY,
                         "a symmetric buffer of %zu bytes is more than a process can address",
                         buffer->bytes);
    return LAP_OK;
}

static lap_status_t create_own(lap_buffer_t *buffer, lap_nccl_comm_t *comm)
{
    const size_t size = (size_t)buffer->group->size;
    struct lap_stage *stage = buffer->backend = lap_alloc(1, sizeof(*stage));
    size_t data, bytes;
    CUdeviceptr memory;
    if (!stage)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the handle of a buffer");
    stage->comm = comm;
    stage->word_received = lap_alloc(size, sizeof(*stage->word_received));
    stage->word_sent = lap_alloc(size, sizeof(*stage->word_sent));
    if (!stage->word_received || !stage->word_sent)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the tables of a buffer of %zu ranks",
                         size);
    LAP_TRY(lay_out(buffer, &data, &bytes));
    LAP_TRY(lap_cuda_enter(comm->device));
    LAP_TRY(lap_cuda_leave(comm->device, lap_cuda_memory(comm->device, bytes, &memory)));
    stage->memory = (char *)(uintptr_t)memory;
    stage->out = (lap_cuda_word_t *)(void *)stage->memory;
    stage->in = stage->out + size;
    stage->consumed = (uint32_t *)(void *)(stage->in + size);
    stage->calls = stage->consumed + size;
    /* The memory of peers cannot be addressed; that of this rank is the GPU's. */
    for (size_t r = 0; r < size; r++)
        buffer->data[r] = NULL;
    buffer->data[buffer->group->rank] = stage->memory + data;
    return LAP_OK;
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
    const lap_status_t status = lap_group_agree(group, create_own(buffer, comm));
    if (status != LAP_OK)
        lap_nccl_buffer_destroy(buffer);
    /* What NCCL does for a graph has not been tried: each call is issued anew. */
    buffer->in_person = group->size > 1;
    return status;
}

static lap_status_t lap_nccl_link_begin(lap_buffer_t *buffer)
{
    return lap_error(LAP_ERR_UNSUPPORTED, "transport %s cannot emulate a link: expected none",
                     buffer->ops->name);
}

/* ---- by the host ---- */

static lap_status_t alone(const lap_buffer_t *buffer, int peer)
{
    return lap_error(LAP_ERR_UNSUPPORTED,
                     "transport %s cannot put into the memory of rank %d from rank %d alone: use "
                     "an operator, in which both take part",
                     buffer->ops->name, peer, buffer->group->rank);
}

static lap_copy_t own_copy(const lap_buffer_t *buffer, const lap_put_t *put)
{
    return (lap_copy_t){.dst = buffer->data[put->peer] + put->offset,
                        .src = put->src,
                        .rows = put->rows,
                        .row_bytes = put->row_bytes,
                        .dst_stride = put->dst_stride,
                        .src_stride = put->src_stride};
}

static lap_status_t lap_nccl_put_now(lap_buffer_t *buffer, const lap_put_t *put)
{
    if (put->peer != buffer->group->rank)
        return alone(buffer, put->peer);
    const lap_copy_t copy = own_copy(buffer, put);
    const lap_raise_t raise = lap_put_raise(put, 0);
    LAP_TRY(lap_cuda_copy_now(lap_nccl_stage_of(buffer)->comm->device, &copy));
    return put->signal == LAP_NO_SIGNAL ? LAP_OK : lap_host_raise_now(buffer, &raise);
}

/* ---- by streams, into the own memory ---- */

static lap_status_t lap_nccl_put(lap_buffer_t *buffer, const lap_device_ops_t *device,
                                 lap_stream_t *stream, const lap_put_t *put)
{
    if (put->peer != buffer->group->rank)
        return alone(buffer, put->peer);
    const lap_copy_t copy = own_copy(buffer, put);
    return device->copy(stream, &copy);
}

static lap_status_t lap_nccl_raise(lap_buffer_t *buffer, const lap_device_ops_t *device,
                                   lap_stream_t *stream, const lap_raise_t *raise)
{
    (void)device;
    (void)stream;
    return alone(buffer, raise->peer);
}

static lap_status_t lap_nccl_wait(lap_buffer_t *buffer, const lap_device_ops_t *device,
                                  lap_stream_t *stream, const lap_wait_t *wait)
{
    (void)device;
    (void)stream;
    return alone(buffer, wait->peer);
}

/* The wire counts the call; then the stream has it, and all rounds, behind it. */
static lap_status_t lap_nccl_end_signals(lap_buffer_t *buffer, const lap_device_ops_t *device,
                                         lap_stream_t *stream, const uint32_t *raised,
                                         size_t nsignals)
{
    (void)device;
    (void)raised;
    (void)nsignals;
    struct lap_stage *stage = buffer->backend;
    lap_nccl_comm_t *comm = stage->comm;
    const size_t size = (size_t)buffer->group->size;
    if (size == 1)
        return LAP_OK;
    LAP_TRY(lap_cuda_stream_advance(comm->wire, stage->consumed, stage->calls, stage->word_received,
                                    size));
    memset(stage->word_received, 0, size * sizeof(*stage->word_received));
    memset(stage->word_sent, 0, size * sizeof(*stage->word_sent));
    LAP_TRY(lap_cuda_event_record(comm->mark, comm->wire));
    return lap_cuda_stream_wait_event(stream, comm->mark);
}

const lap_transport_ops_t lap_nccl_ops = {
    .name = "nccl",
    .summary = "GPUs of one host or several, messages of NCCL between all",
    .can = LAP_NCCL_CAN,
    .device = "cuda",
    .buffer_create = lap_nccl_buffer_create,
    .buffer_destroy = lap_nccl_buffer_destroy,
    .tell_note = lap_mpi_tell_note,
    .put_now = lap_nccl_put_now,
    .raise_now = lap_mpi_raise_now,
    .wait_now = lap_mpi_wait_now,
    .put = lap_nccl_put,
    .raise = lap_nccl_raise,
    .wait = lap_nccl_wait,
    .exchange = lap_nccl_exchange,
    .end_signals = lap_nccl_end_signals,
    .link_begin = lap_nccl_link_begin,
};
