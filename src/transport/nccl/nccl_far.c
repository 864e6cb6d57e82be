/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts and raises to ranks whose memory NCCL gives no address of: those of other hosts, but for the
 * few that one NVLink connects. ncclPutSignal carries the rows, and after them the word that is
 * raised, as 16 bytes more: puts to a peer come in their order. NCCL's own signals are not used:
 * they have no limit after which a wait would give up, and in a graph each waits for the receiver.
 *
 * All of it is on the wire, one thing after the other. A stream that puts goes on when the wire has
 * carried its rows.
 */
#include "transport/nccl/nccl_comm.h"

#define WORD_BYTES 16u /* of a word: its value and its tag */

/* ---- the wire ---- */

/* The wire goes on when the stream is here; then between enter and leave. */
static lap_status_t wire_begin(lap_nccl_comm_t *comm, lap_stream_t *stream)
{
    const lap_cuda_api_t *api = &comm->device->api;
    if (comm->device->capturing || stream->ops->is_capturing(stream))
        return lap_error(LAP_ERR_UNSUPPORTED, "puts of NCCL to other hosts cannot be captured: in "
                                              "a graph each would wait for its receiver");
    LAP_TRY(lap_cuda_event_record(comm->sent, stream));
    LAP_TRY(lap_nccl_enter(comm));
    const lap_status_t status = lap_cuda_check(
        api, api->cuStreamWaitEvent(comm->wire, comm->sent->event, 0), "cuStreamWaitEvent");
    return status == LAP_OK ? LAP_OK : lap_nccl_leave(comm, status);
}

/* Between enter and leave, which it ends. */
static lap_status_t wire_end(lap_nccl_comm_t *comm, lap_stream_t *stream, lap_status_t status)
{
    const lap_cuda_api_t *api = &comm->device->api;
    if (status == LAP_OK)
        status = lap_cuda_check(api, api->cuEventRecord(comm->done, comm->wire), "cuEventRecord");
    LAP_TRY(lap_nccl_leave(comm, status));
    LAP_TRY(lap_cuda_enter(comm->device));
    status = lap_cuda_check(api, api->cuStreamWaitEvent(stream->stream, comm->done, 0),
                            "cuStreamWaitEvent");
    return lap_cuda_leave(comm->device, status);
}

/* ---- rows ---- */

static bool is_in_window(const lap_nccl_part_t *part, const lap_put_t *put)
{
    const char *source = put->src, *memory = part->window.memory;
    return source >= memory && source < memory + part->out;
}

/* NCCL takes rows out of a window only: others are copied into it, where they lie at the peer. */
static lap_status_t stage(const lap_nccl_part_t *part, lap_put_t *put)
{
    const lap_cuda_api_t *api = &part->comm->device->api;
    char *to = (char *)part->window.memory + part->stage + put->offset;
    const CUDA_MEMCPY2D copy = {
        .srcMemoryType = CU_MEMORYTYPE_DEVICE,
        .srcDevice = (CUdeviceptr)(uintptr_t)put->src,
        .srcPitch = put->src_stride,
        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
        .dstDevice = (CUdeviceptr)(uintptr_t)to,
        .dstPitch = put->dst_stride,
        .WidthInBytes = put->row_bytes,
        .Height = put->rows,
    };
    put->src = to;
    put->src_stride = put->dst_stride;
    return lap_cuda_check(api, api->cuMemcpy2DAsync(&copy, part->comm->wire), "cuMemcpy2DAsync");
}

static ncclResult_t put_bytes(const lap_nccl_part_t *part, int peer, const void *source,
                              size_t bytes, size_t offset)
{
    const lap_nccl_comm_t *comm = part->comm;
    return comm->api.ncclPutSignal(source, bytes, ncclUint8, peer, part->window.window, offset, 0,
                                   0, 0, comm->comm, comm->wire);
}

/* Rows with gaps go one by one. */
static ncclResult_t put_each(const lap_nccl_part_t *part, const lap_put_t *put)
{
    const bool packed = put->src_stride == put->row_bytes && put->dst_stride == put->row_bytes;
    const size_t count = packed ? 1 : put->rows;
    const size_t bytes = packed ? put->rows * put->row_bytes : put->row_bytes;
    ncclResult_t result = ncclSuccess;
    for (size_t i = 0; i < count && (result == ncclSuccess || result == ncclInProgress); i++)
        result = put_bytes(part, put->peer, (const char *)put->src + i * put->src_stride, bytes,
                           part->part.data + put->offset + i * put->dst_stride);
    return result;
}

/* Between enter and leave. A group that was begun is ended, whatever happens. */
static lap_status_t put_rows(const lap_nccl_part_t *part, const lap_put_t *put)
{
    lap_nccl_comm_t *comm = part->comm;
    if (put->rows == 0 || put->row_bytes == 0)
        return LAP_OK;
    LAP_TRY(lap_nccl_check(&comm->api, comm->api.ncclGroupStart(), "ncclGroupStart"));
    const ncclResult_t result = put_each(part, put);
    const ncclResult_t ended = comm->api.ncclGroupEnd();
    LAP_TRY(lap_nccl_check(&comm->api, result, "ncclPutSignal"));
    return lap_nccl_await(comm, ended, "ncclPutSignal");
}

static lap_status_t send_rows(const lap_nccl_part_t *part, const lap_put_t *given)
{
    lap_put_t put = *given;
    if (put.rows == 1)
        put.src_stride = put.dst_stride = put.row_bytes;
    if (put.rows > 0 && put.row_bytes > 0 && !is_in_window(part, &put))
        LAP_TRY(stage(part, &put));
    return put_rows(part, &put);
}

/* ---- words ---- */

/* Raises this rank's copy of the word, unless a wait has ended in vain, and puts it. */
static lap_status_t send_word(const lap_buffer_t *buffer, const lap_raise_t *raise)
{
    const lap_nccl_part_t *part = buffer->backend;
    lap_nccl_comm_t *comm = part->comm;
    const lap_cuda_api_t *api = &comm->device->api;
    const size_t index = (size_t)raise->peer * buffer->nsignals + raise->signal;
    lap_cuda_word_t *word =
        (lap_cuda_word_t *)(void *)((char *)part->window.memory + part->out) + index;
    lap_cuda_raises_t raises = {.lost = comm->device->lost, .n = 1};
    raises.at[0] = (lap_cuda_raise_t){.word = word, .calls = part->part.calls, .tag = raise->tag};
    void *params[] = {&raises};
    LAP_TRY(lap_cuda_check(
        api, api->cuLaunchKernel(comm->raise, 1, 1, 1, 32, 1, 1, 0, comm->wire, params, NULL),
        "the kernel lap_raise"));
    const ncclResult_t result =
        put_bytes(part, raise->peer, word, WORD_BYTES, raise->signal * sizeof(lap_cuda_word_t));
    return lap_nccl_await(comm, result, "ncclPutSignal");
}

/* ---- slots ---- */

lap_status_t lap_nccl_far_put(lap_buffer_t *buffer, lap_stream_t *stream, const lap_put_t *put)
{
    const lap_nccl_part_t *part = buffer->backend;
    const lap_raise_t raise = lap_put_raise(put, put->rows * put->row_bytes);
    if (put->span)
        LAP_TRY(lap_cuda_stamp(stream, &put->span->begin));
    LAP_TRY(wire_begin(part->comm, stream));
    lap_status_t status = send_rows(part, put);
    if (status == LAP_OK && put->signal != LAP_NO_SIGNAL)
        status = send_word(buffer, &raise);
    LAP_TRY(wire_end(part->comm, stream, status));
    return put->span ? lap_cuda_stamp(stream, &put->span->end) : LAP_OK;
}

lap_status_t lap_nccl_far_raise(lap_buffer_t *buffer, lap_stream_t *stream,
                                const lap_raise_t *raise)
{
    lap_nccl_comm_t *comm = lap_nccl_part_of(buffer)->comm;
    if (raise->span)
        LAP_TRY(lap_cuda_stamp(stream, &raise->span->begin));
    LAP_TRY(wire_begin(comm, stream));
    LAP_TRY(wire_end(comm, stream, send_word(buffer, raise)));
    return raise->span ? lap_cuda_stamp(stream, &raise->span->end) : LAP_OK;
}

lap_status_t lap_nccl_far_put_now(lap_buffer_t *buffer, const lap_put_t *put)
{
    const lap_nccl_part_t *part = buffer->backend;
    lap_put_t staged = *put;
    staged.src = (char *)part->window.memory + part->stage + put->offset;
    staged.src_stride = put->dst_stride;
    const lap_copy_t copy = {.dst = (char *)part->window.memory + part->stage + put->offset,
                             .src = put->src,
                             .rows = put->rows,
                             .row_bytes = put->row_bytes,
                             .dst_stride = put->dst_stride,
                             .src_stride = put->src_stride};
    LAP_TRY(lap_cuda_copy_now(part->comm->device, &copy));
    LAP_TRY(lap_nccl_enter(part->comm));
    lap_status_t status = send_rows(part, &staged);
    if (status == LAP_OK)
        status = lap_nccl_await_wire(part->comm);
    return lap_nccl_leave(part->comm, status);
}
