/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport `cuda_ipc`: ranks of one host whose memory is that of GPUs, one or several, mapped
 * by all. A put is a copy that the driver makes; signals are words in the memory of the GPU, raised
 * and waited for by kernels in the order of a stream, and counted there, so that a call can be
 * replayed as a graph. The memory itself is the business of cuda_ipc_memory.c.
 *
 * Besides, each rank has the memory that transports of hosts have, without data. In it are the
 * records by which ranks find out that they are in different calls, and the words that
 * lap_buffer_put, _raise and _wait use: those of operators are on the GPU.
 *
 * Ranks that are threads and share a GPU also share its queues, where a wait of one may hold up the
 * signal of another that would end it. Such ranks take turns: a wait is launched when the signal
 * that it is for has been launched, as words in host memory say. Begun calls then proceed no
 * further than their peers have come.
 */
#include "transport/cuda_ipc/cuda_ipc.h"

#include "transport/host/host.h"

/* ---- by the host ---- */

lap_status_t lap_part_copy_now(lap_buffer_t *buffer, const lap_put_t *put)
{
    const lap_copy_t copy = lap_put_copy(buffer, put);
    return lap_cuda_copy_now(lap_part_of(buffer)->device, &copy);
}

static lap_status_t lap_cuda_ipc_put_now(lap_buffer_t *buffer, const lap_put_t *put)
{
    const lap_raise_t raise = lap_put_raise(put, 0);
    LAP_TRY(lap_part_copy_now(buffer, put));
    return put->signal == LAP_NO_SIGNAL ? LAP_OK : lap_host_raise_now(buffer, &raise);
}

/* ---- by streams ---- */

/* After a signal was issued, to whom takes turns with this rank: its wait may be launched. */
static lap_status_t tell_launched(lap_buffer_t *buffer, const lap_raise_t *raise)
{
    lap_cuda_device_t *device = lap_part_of(buffer)->device;
    if (!lap_part_of(buffer)->in_turn)
        return LAP_OK;
    LAP_TRY(lap_cuda_enter(device));
    LAP_TRY(lap_cuda_leave(device, lap_cuda_flush(device)));
    lap_bank_raise_tagged(buffer->banks[raise->peer], raise->signal, raise->tag);
    return LAP_OK;
}

/* The partner of tell_launched. It is the caller that waits. */
static lap_status_t await_launch(lap_buffer_t *buffer, const lap_wait_t *wait)
{
    lap_world_t *world = buffer->group->world;
    const uint64_t number = wait->reason ? wait->reason->number : 0;
    lap_await_begin(world, buffer, number, number);
    const lap_status_t status = lap_host_wait_now(buffer, wait);
    lap_await_end(world);
    return status;
}

/* Raises a signal, and says when it has come. */
static lap_status_t raise_word(lap_buffer_t *buffer, lap_stream_t *stream, const lap_raise_t *raise)
{
    const struct lap_part *part = buffer->backend;
    lap_cuda_raise_t args = {
        &lap_part_words(part, raise->peer)[raise->signal], part->calls, raise->tag, {0}};
    if (part->paced)
        LAP_TRY(lap_paced_transit(buffer, raise, &args.transit));
    LAP_TRY(lap_cuda_stream_raise(stream, &args, part->paced));
    LAP_TRY(tell_launched(buffer, raise));
    return raise->span && !part->paced ? lap_cuda_stamp(stream, &raise->span->end) : LAP_OK;
}

lap_status_t lap_cuda_ipc_put(lap_buffer_t *buffer, const lap_device_ops_t *device,
                              lap_stream_t *stream, const lap_put_t *put)
{
    const bool signals = put->signal != LAP_NO_SIGNAL;
    lap_copy_t copy = lap_put_copy(buffer, put);
    const lap_raise_t raise = lap_put_raise(put, put->rows * put->row_bytes);
    copy.sms = put->sms;
    copy.together = put->together && !lap_part_of(buffer)->paced;
    if (put->span)
        LAP_TRY(device->stamp(stream, &put->span->begin));
    if (lap_part_of(buffer)->paced)
        LAP_TRY(lap_paced_begin(buffer, stream, put->peer));
    LAP_TRY(device->copy(stream, &copy));
    if (signals)
        return raise_word(buffer, stream, &raise);
    return put->span ? device->stamp(stream, &put->span->end) : LAP_OK;
}

lap_status_t lap_cuda_ipc_raise(lap_buffer_t *buffer, const lap_device_ops_t *device,
                                lap_stream_t *stream, const lap_raise_t *raise)
{
    if (raise->span)
        LAP_TRY(device->stamp(stream, &raise->span->begin));
    return raise_word(buffer, stream, raise);
}

lap_status_t lap_cuda_ipc_wait(lap_buffer_t *buffer, const lap_device_ops_t *device,
                               lap_stream_t *stream, const lap_wait_t *wait)
{
    (void)device;
    struct lap_part *part = buffer->backend;
    const int rank = buffer->group->rank;
    const lap_cuda_wait_t args = {
        .word = &lap_part_words(part, rank)[wait->signal],
        .consumed = &part->consumed[wait->signal],
        .calls = part->calls,
        .tag = wait->reason ? wait->reason->tag : 0,
        .buffer = (uint64_t)(uintptr_t)buffer,
        .reason = (uint64_t)(uintptr_t)wait->reason,
        .peer = wait->peer,
        .signal = wait->signal,
        .count = wait->count,
        .paced = part->paced != NULL,
    };
    if (part->in_turn)
        LAP_TRY(await_launch(buffer, wait));
    return lap_cuda_stream_wait(stream, &args, wait->reason != NULL);
}

lap_status_t lap_cuda_ipc_end_signals(lap_buffer_t *buffer, const lap_device_ops_t *device,
                                      lap_stream_t *stream, const uint32_t *raised, size_t nsignals)
{
    (void)device;
    struct lap_part *part = buffer->backend;
    if (buffer->group->size == 1)
        return LAP_OK;
    return lap_cuda_stream_advance(stream, part->consumed, part->calls, raised, nsignals);
}

const lap_transport_ops_t lap_cuda_ipc_ops = {
    .name = "cuda_ipc",
    .summary = "ranks of one host on GPUs, one or several, memory mapped by all",
    .can = LAP_CUDA_IPC_CAN,
    .device = "cuda",
    .buffer_create = lap_cuda_ipc_buffer_create,
    .buffer_destroy = lap_cuda_ipc_buffer_destroy,
    .send_record = lap_host_send_record,
    .put_now = lap_cuda_ipc_put_now,
    .raise_now = lap_host_raise_now,
    .wait_now = lap_host_wait_now,
    .put = lap_cuda_ipc_put,
    .raise = lap_cuda_ipc_raise,
    .wait = lap_cuda_ipc_wait,
    .end_signals = lap_cuda_ipc_end_signals,
    .link_begin = lap_cuda_ipc_link_begin,
};
