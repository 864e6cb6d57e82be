/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport `cuda_ipc`: ranks of one host whose memory is that of GPUs, one or several, mapped
 * by all. A put is a copy by a copy engine; signals are words in the memory of the GPU, raised and
 * waited for by kernels in the order of a stream, and counted there, so that a call can be replayed
 * as a graph.
 *
 * Besides, each rank has the memory that transports of hosts have, without data. In it are the
 * notes by which ranks find out that they are in different calls, and the words that
 * lap_buffer_put, _raise and _wait use: those of operators are on the GPU.
 *
 * Ranks that are threads and share a GPU also share its queues, where a wait of one may hold up the
 * signal of another that would end it. Such ranks take turns: a wait is launched when the signal
 * that it is for has been launched, which words in host memory tell. Begun calls then proceed no
 * further than their peers have come.
 */
#include "transport/cuda_ipc/cuda_ipc.h"

#include "transport/host/host.h"
#include "util/alloc.h"

#define GRANULE ((size_t)2 << 20) /* an allocation of whole ones shares nothing with others */
#define DATA_ALIGNMENT 4096u
#define GIVEN_UP ((uint32_t)1 << 31) /* a bit of `users`: the owner has no more use for it */

/* ---- memory ---- */

/* Memory that was given up here while peers still had it mapped. */
struct lap_cuda_grave {
    CUdeviceptr memory;
    const _Atomic uint32_t *users; /* in this region of host memory */
    lap_region_t region;
    lap_world_t *world;
    struct lap_cuda_grave *next;
};

/* Frees what nobody uses any more; at the end, all of it. */
static void sweep(lap_cuda_device_t *device, bool all)
{
    struct lap_cuda_grave **link = &device->graves;
    while (*link) {
        struct lap_cuda_grave *grave = *link;
        if (!all && atomic_load_explicit(grave->users, memory_order_acquire) > GIVEN_UP) {
            link = &grave->next;
            continue;
        }
        lap_cuda_free(&device->base, (void *)(uintptr_t)grave->memory);
        lap_region_unmap(grave->world, &grave->region);
        *link = grave->next;
        lap_free(grave);
    }
}

/*
 * This rank's memory is freed, unless peers have it mapped. Then, if they are threads, by the last
 * of them; else here, when none has any more, or at the end, when mappings of other processes keep
 * what they map.
 */
static void give_up_own(lap_buffer_t *buffer)
{
    struct lap_part *part = buffer->part;
    lap_cuda_device_t *device = part->device;
    const int rank = buffer->group->rank;
    void *memory = part->bases[rank];
    if (!memory)
        return;
    const uint32_t users =
        atomic_fetch_or_explicit(part->users[rank], GIVEN_UP, memory_order_acq_rel);
    if (users > 0 && buffer->group->world->kind == LAP_WORLD_THREADS)
        return;
    struct lap_cuda_grave *grave = users > 0 ? lap_alloc(1, sizeof(*grave)) : NULL;
    if (!grave) {
        lap_cuda_free(&device->base, memory);
        return;
    }
    *grave = (struct lap_cuda_grave){
        .memory = (CUdeviceptr)(uintptr_t)memory,
        .users = part->users[rank],
        .region = buffer->regions[rank],
        .world = buffer->group->world,
        .next = device->graves,
    };
    buffer->regions[rank] = (lap_region_t){.data = NULL};
    device->graves = grave;
    device->sweep = sweep;
}

static void unmap(lap_buffer_t *buffer, int rank)
{
    struct lap_part *part = buffer->part;
    lap_cuda_device_t *device = part->device;
    if (!part->bases[rank])
        return;
    const bool threads = buffer->group->world->kind == LAP_WORLD_THREADS;
    if (!threads && lap_cuda_enter(device) == LAP_OK) {
        (void)device->api.cuIpcCloseMemHandle((CUdeviceptr)(uintptr_t)part->bases[rank]);
        (void)lap_cuda_leave(device, LAP_OK);
    }
    /* Releases to who frees it: nothing here touches the memory any more. */
    const uint32_t users = atomic_fetch_sub_explicit(part->users[rank], 1, memory_order_acq_rel);
    if (threads && users == (GIVEN_UP | 1))
        lap_cuda_free(&device->base, part->bases[rank]);
}

static void lap_cuda_ipc_buffer_destroy(lap_buffer_t *buffer)
{
    struct lap_part *part = buffer->part;
    if (part) {
        lap_paced_free(part);
        for (int r = 0; part->bases && r < buffer->group->size; r++)
            if (r != buffer->group->rank)
                unmap(buffer, r);
        if (part->bases)
            give_up_own(buffer);
        sweep(part->device, false);
        lap_free(part->bases);
        lap_free(part->users);
        lap_free(part);
    }
    buffer->part = NULL;
    lap_host_buffer_destroy(buffer);
}

static size_t round_up(size_t value, size_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

static lap_status_t create_own(lap_buffer_t *buffer)
{
    const size_t size = (size_t)buffer->group->size;
    lap_device_t *device;
    CUdeviceptr memory;
    LAP_TRY(lap_device_of(buffer->group->world, &device));
    struct lap_part *part = lap_alloc(1, sizeof(*part));
    if (!part)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the handle of a buffer");
    buffer->part = part;
    part->device = (lap_cuda_device_t *)device;
    part->bases = lap_alloc(size, sizeof(*part->bases));
    part->users = lap_alloc(size, sizeof(*part->users));
    if (!part->bases || !part->users)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the tables of a buffer of %zu ranks",
                         size);
    for (int r = 0; r < buffer->group->size; r++)
        part->users[r] = (_Atomic uint32_t *)(void *)buffer->data[r];
    const size_t words = buffer->nsignals * sizeof(lap_cuda_word_t);
    part->data = round_up(words + (buffer->nsignals + 1) * sizeof(uint32_t), DATA_ALIGNMENT);
    part->bytes = round_up(part->data + buffer->bytes, GRANULE);
    if (part->bytes < buffer->bytes)
        return lap_error(LAP_ERR_NO_MEMORY,
                         "a symmetric buffer of %zu bytes is more than a process can address",
                         buffer->bytes);
    LAP_TRY(lap_cuda_enter(part->device));
    LAP_TRY(lap_cuda_leave(part->device, lap_cuda_memory(part->device, part->bytes, &memory)));
    part->bases[buffer->group->rank] = (char *)(uintptr_t)memory;
    part->consumed = (uint32_t *)(uintptr_t)(memory + words);
    part->calls = part->consumed + buffer->nsignals;
    return LAP_OK;
}

/* What a rank tells the others of its memory. No padding: it is sent as bytes. */
typedef struct offer {
    uint64_t base, context; /* for threads of one process */
    int32_t gpu, reserved;
    CUipcMemHandle handle; /* for processes */
} offer_t;

static lap_status_t make_offer(lap_buffer_t *buffer, offer_t *offer)
{
    const struct lap_part *part = buffer->part;
    lap_cuda_device_t *device = part->device;
    char *base = part->bases[buffer->group->rank];
    *offer = (offer_t){
        .base = (uint64_t)(uintptr_t)base,
        .context = (uint64_t)(uintptr_t)device->context,
        .gpu = device->ordinal,
    };
    if (buffer->group->world->kind == LAP_WORLD_THREADS)
        return LAP_OK;
    LAP_TRY(lap_cuda_enter(device));
    return lap_cuda_leave(device, lap_cuda_check(&device->api,
                                                 device->api.cuIpcGetMemHandle(
                                                     &offer->handle, (CUdeviceptr)(uintptr_t)base),
                                                 "cuIpcGetMemHandle"));
}

/* Another rank's memory, as an address that this rank's GPU can use. Between enter and leave. */
static lap_status_t take_offer(const lap_buffer_t *buffer, const offer_t *offer, char **base_p)
{
    lap_cuda_device_t *device = buffer->part->device;
    const lap_cuda_api_t *api = &device->api;
    if (buffer->group->world->kind == LAP_WORLD_THREADS) {
        CUresult result = CUDA_SUCCESS;
        if (offer->gpu != device->ordinal)
            result = api->cuCtxEnablePeerAccess((CUcontext)(uintptr_t)offer->context, 0);
        if (result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
            LAP_TRY(lap_cuda_check(api, result, "cuCtxEnablePeerAccess"));
        *base_p = (char *)(uintptr_t)offer->base;
        return LAP_OK;
    }
    CUdeviceptr base;
    LAP_TRY(lap_cuda_check(
        api, api->cuIpcOpenMemHandle(&base, offer->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
        "cuIpcOpenMemHandle"));
    *base_p = (char *)(uintptr_t)base;
    return LAP_OK;
}

static lap_status_t take_offers(lap_buffer_t *buffer, const offer_t *offers)
{
    struct lap_part *part = buffer->part;
    for (int r = 0; r < buffer->group->size; r++) {
        if (r != buffer->group->rank) {
            char *base = NULL;
            LAP_TRY(lap_cuda_enter(part->device));
            LAP_TRY(lap_cuda_leave(part->device, take_offer(buffer, &offers[r], &base)));
            part->bases[r] = base;
            atomic_fetch_add_explicit(part->users[r], 1, memory_order_relaxed);
        }
        buffer->data[r] = part->bases[r] + part->data;
    }
    return LAP_OK;
}

static bool share_a_gpu(const lap_group_t *group, const offer_t *offers)
{
    bool found = false;
    for (int r = 1; r < group->size; r++)
        for (int other = 0; other < r; other++)
            found = found || offers[r].gpu == offers[other].gpu;
    return found && group->world->kind == LAP_WORLD_THREADS;
}

/* Every rank takes part in every collective step, also when it has failed. */
static lap_status_t create_all(lap_buffer_t *buffer)
{
    lap_group_t *group = buffer->group;
    offer_t offer = {.gpu = -1};
    void *offers;
    lap_status_t status = create_own(buffer);
    if (status == LAP_OK)
        status = make_offer(buffer, &offer);
    LAP_TRY(lap_group_agree(group, status));
    LAP_TRY(lap_group_collect(group, &offer, sizeof(offer), &offers));
    buffer->part->in_turn = buffer->in_person = share_a_gpu(group, offers);
    status = lap_group_agree(group, take_offers(buffer, offers));
    lap_free(offers);
    return status;
}

static lap_status_t lap_cuda_ipc_buffer_create(lap_buffer_t *buffer)
{
    const lap_world_t *world = buffer->group->world;
    if (world->local_size != world->size)
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "transport cuda_ipc is for ranks of one host; these are on several");
    LAP_TRY(lap_host_buffer_create_some(buffer, sizeof(uint32_t), NULL));
    const lap_status_t status = create_all(buffer);
    if (status != LAP_OK)
        lap_cuda_ipc_buffer_destroy(buffer);
    return status;
}

/* ---- by the host ---- */

static lap_status_t lap_cuda_ipc_put_now(lap_buffer_t *buffer, const lap_put_t *put)
{
    const lap_copy_t copy = {.dst = buffer->data[put->peer] + put->offset,
                             .src = put->src,
                             .rows = put->rows,
                             .row_bytes = put->row_bytes,
                             .dst_stride = put->dst_stride,
                             .src_stride = put->src_stride};
    const lap_raise_t raise = {put->peer, put->signal, put->tag, 0, put->span};
    LAP_TRY(lap_cuda_copy_now(buffer->part->device, &copy));
    return put->signal == LAP_NO_SIGNAL ? LAP_OK : lap_host_raise_now(buffer, &raise);
}

/* ---- by streams ---- */

/* After a signal was issued, to whom takes turns with this rank: its wait may be launched. */
static lap_status_t tell_launched(lap_buffer_t *buffer, const lap_raise_t *raise)
{
    lap_cuda_device_t *device = buffer->part->device;
    if (!buffer->part->in_turn)
        return LAP_OK;
    LAP_TRY(lap_cuda_enter(device));
    LAP_TRY(lap_cuda_leave(device, lap_cuda_flush(device)));
    lap_bank_raise_tagged(buffer->banks[raise->peer], raise->signal, raise->tag);
    return LAP_OK;
}

static lap_status_t raise_word(lap_buffer_t *buffer, lap_stream_t *stream, const lap_raise_t *raise)
{
    const lap_cuda_raise_t args = lap_part_raise(buffer->part, raise);
    LAP_TRY(lap_cuda_stream_raise(stream, &args));
    return tell_launched(buffer, raise);
}

/* What a rank sends to itself, and what carries no signal, needs no link. */
static bool is_paced(const lap_buffer_t *buffer, int peer, uint32_t signal)
{
    return buffer->part->paced && peer != buffer->group->rank && signal != LAP_NO_SIGNAL;
}

static lap_status_t lap_cuda_ipc_put(lap_buffer_t *buffer, const lap_device_ops_t *device,
                                     lap_stream_t *stream, const lap_put_t *put)
{
    const bool paced = is_paced(buffer, put->peer, put->signal);
    const uint64_t *issued = NULL;
    const lap_copy_t copy = {.dst = buffer->data[put->peer] + put->offset,
                             .src = put->src,
                             .rows = put->rows,
                             .row_bytes = put->row_bytes,
                             .dst_stride = put->dst_stride,
                             .src_stride = put->src_stride,
                             .sms = put->sms};
    const lap_raise_t raise = {put->peer, put->signal, put->tag, put->rows * put->row_bytes,
                               paced ? put->span : NULL};
    if (put->span)
        LAP_TRY(device->stamp(stream, &put->span->begin));
    if (paced)
        LAP_TRY(lap_paced_note(buffer->part, stream, &issued));
    LAP_TRY(device->copy(stream, &copy));
    if (paced) {
        LAP_TRY(lap_paced_raise(buffer, stream, issued, &raise));
        return tell_launched(buffer, &raise);
    }
    if (put->signal != LAP_NO_SIGNAL)
        LAP_TRY(raise_word(buffer, stream, &raise));
    return put->span ? device->stamp(stream, &put->span->end) : LAP_OK;
}

static lap_status_t lap_cuda_ipc_raise(lap_buffer_t *buffer, const lap_device_ops_t *device,
                                       lap_stream_t *stream, const lap_raise_t *raise)
{
    const uint64_t *issued = NULL;
    if (raise->span)
        LAP_TRY(device->stamp(stream, &raise->span->begin));
    if (is_paced(buffer, raise->peer, raise->signal) &&
        (raise->bytes > 0 || buffer->link.latency_s > 0)) {
        LAP_TRY(lap_paced_note(buffer->part, stream, &issued));
        LAP_TRY(lap_paced_raise(buffer, stream, issued, raise));
        return tell_launched(buffer, raise);
    }
    LAP_TRY(raise_word(buffer, stream, raise));
    return raise->span ? device->stamp(stream, &raise->span->end) : LAP_OK;
}

static lap_status_t lap_cuda_ipc_wait(lap_buffer_t *buffer, const lap_device_ops_t *device,
                                      lap_stream_t *stream, const lap_wait_t *wait)
{
    (void)device;
    struct lap_part *part = buffer->part;
    const int rank = buffer->group->rank;
    const lap_cuda_wait_t args = {
        .word = &lap_part_words(part, rank)[wait->signal],
        .consumed = &part->consumed[wait->signal],
        .calls = part->calls,
        .tag = wait->story ? wait->story->tag : 0,
        .buffer = (uint64_t)(uintptr_t)buffer,
        .story = (uint64_t)(uintptr_t)wait->story,
        .peer = wait->peer,
        .signal = wait->signal,
        .count = wait->count,
    };
    if (part->in_turn)
        LAP_TRY(lap_host_wait_now(buffer, wait));
    return lap_cuda_stream_wait(stream, &args, wait->story != NULL);
}

static lap_status_t lap_cuda_ipc_end_call(lap_buffer_t *buffer, const lap_device_ops_t *device,
                                          lap_stream_t *stream, const uint32_t *raised,
                                          size_t nsignals)
{
    (void)device;
    struct lap_part *part = buffer->part;
    if (buffer->group->size == 1)
        return LAP_OK;
    if (part->paced)
        LAP_TRY(lap_paced_join(part, stream));
    return lap_cuda_stream_advance(stream, part->consumed, part->calls, raised, nsignals);
}

const lap_transport_ops_t lap_cuda_ipc_ops = {
    .name = "cuda_ipc",
    .summary = "ranks of one host on GPUs, one or several, memory mapped by all",
    .can = LAP_CAN_PUT | LAP_CAN_ADDRESS | LAP_CAN_LANES,
    .needs_device = true,
    .buffer_create = lap_cuda_ipc_buffer_create,
    .buffer_destroy = lap_cuda_ipc_buffer_destroy,
    .tell_note = lap_host_tell_note,
    .put_now = lap_cuda_ipc_put_now,
    .raise_now = lap_host_raise_now,
    .wait_now = lap_host_wait_now,
    .put = lap_cuda_ipc_put,
    .raise = lap_cuda_ipc_raise,
    .wait = lap_cuda_ipc_wait,
    .end_call = lap_cuda_ipc_end_call,
    .link_begin = lap_cuda_ipc_link_begin,
};
