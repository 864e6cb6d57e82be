/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of buffers of the transport `cuda_ipc`: made on each rank's GPU, offered to the other
 * ranks and mapped by them. Ranks that are threads use each other's addresses. Processes use CUDA
 * IPC or, where that does not work, virtual memory management (cuda_ipc_vmm.c); LAP_CUDA_MEMORY
 * chooses.
 */
#include <string.h>
#include <unistd.h>

#include "core/pass.h"
#include "transport/cuda_ipc/cuda_ipc.h"
#include "transport/host/host.h"
#include "util/alloc.h"

#define GRANULE ((size_t)2 << 20) /* an allocation of whole ones shares nothing with others */
#define DATA_ALIGNMENT 4096u
#define GIVEN_UP ((uint32_t)1 << 31) /* a bit of `users`: the owner has no more use for it */

static bool is_threads(const lap_buffer_t *buffer)
{
    return buffer->group->world->kind == LAP_WORLD_THREADS;
}

/* ---- giving it up ---- */

/* Memory that was given up here while peers still had it mapped. */
struct lap_cuda_deferred_free {
    CUdeviceptr memory;
    const _Atomic uint32_t *users; /* in this region of host memory */
    lap_region_t region;
    lap_world_t *world;
    struct lap_cuda_deferred_free *next;
};

/* Frees what nobody uses any more; at the end, all of it. */
static void run_deferred_frees(lap_cuda_device_t *device, bool all)
{
    struct lap_cuda_deferred_free **link = &device->deferred_frees;
    while (*link) {
        struct lap_cuda_deferred_free *deferred = *link;
        if (!all && atomic_load_explicit(deferred->users, memory_order_acquire) > GIVEN_UP) {
            link = &deferred->next;
            continue;
        }
        lap_cuda_free(&device->base, (void *)(uintptr_t)deferred->memory);
        lap_region_unmap(deferred->world, &deferred->region);
        *link = deferred->next;
        lap_free(deferred);
    }
}

/* Memory by VMM lives on as long as peers map it. */
static void free_own(const struct lap_part *part, int rank)
{
    if (part->kinds[rank] == LAP_CUDA_MEMORY_IPC)
        lap_cuda_free(&part->device->base, part->bases[rank]);
    else
        lap_vmm_unmap(part->device, part->bytes, part->bases[rank]);
    part->bases[rank] = NULL;
}

/*
 * This rank's memory is freed, unless peers have it mapped by IPC or as threads. Then, if they are
 * threads, by the last of them; else here, when none has any more, or at the end, when mappings of
 * other processes keep what they map.
 */
static void give_up_own(lap_buffer_t *buffer)
{
    struct lap_part *part = buffer->backend;
    lap_cuda_device_t *device = part->device;
    const int rank = buffer->group->rank;
    void *memory = part->bases[rank];
    if (!memory)
        return;
    const uint32_t users =
        atomic_fetch_or_explicit(part->users[rank], GIVEN_UP, memory_order_acq_rel);
    if (users > 0 && is_threads(buffer))
        return;
    const bool stays = users > 0 && part->kinds[rank] == LAP_CUDA_MEMORY_IPC;
    struct lap_cuda_deferred_free *deferred = stays ? lap_alloc(1, sizeof(*deferred)) : NULL;
    if (!deferred) {
        free_own(part, rank);
        return;
    }
    *deferred = (struct lap_cuda_deferred_free){
        .memory = (CUdeviceptr)(uintptr_t)memory,
        .users = part->users[rank],
        .region = buffer->regions[rank],
        .world = buffer->group->world,
        .next = device->deferred_frees,
    };
    buffer->regions[rank] = (lap_region_t){.data = NULL};
    device->deferred_frees = deferred;
    device->run_deferred_frees = run_deferred_frees;
}

static void unmap(lap_buffer_t *buffer, int rank)
{
    struct lap_part *part = buffer->backend;
    lap_cuda_device_t *device = part->device;
    char *base = part->bases[rank];
    if (!base)
        return;
    const bool threads = is_threads(buffer), ipc = part->kinds[rank] == LAP_CUDA_MEMORY_IPC;
    if (!threads && !ipc)
        lap_vmm_unmap(device, part->bytes, base);
    if (!threads && ipc && lap_cuda_enter(device) == LAP_OK) {
        (void)device->api.cuIpcCloseMemHandle((CUdeviceptr)(uintptr_t)base);
        (void)lap_cuda_leave(device, LAP_OK);
    }
    part->bases[rank] = NULL;
    /* Releases to who frees it: nothing here touches the memory any more. */
    const uint32_t users = atomic_fetch_sub_explicit(part->users[rank], 1, memory_order_acq_rel);
    if (threads && users == (GIVEN_UP | 1))
        lap_cuda_free(&device->base, base);
}

static void unmap_peers(lap_buffer_t *buffer)
{
    for (int r = 0; r < buffer->group->size; r++)
        if (r != buffer->group->rank)
            unmap(buffer, r);
}

/* What was only needed while the others took it. */
static void close_handles(struct lap_part *part)
{
    lap_vmm_release(part->device, part->handle);
    if (part->fd >= 0)
        close(part->fd);
    part->handle = 0;
    part->fd = -1;
}

void lap_cuda_ipc_buffer_destroy(lap_buffer_t *buffer)
{
    struct lap_part *part = buffer->backend;
    if (part) {
        lap_paced_free(part);
        close_handles(part);
        if (part->bases && part->users && part->kinds) {
            unmap_peers(buffer);
            give_up_own(buffer);
        }
        run_deferred_frees(part->device, false);
        lap_free(part->bases);
        lap_free(part->users);
        lap_free(part->kinds);
        lap_free(part);
    }
    buffer->backend = NULL;
    lap_host_buffer_destroy(buffer);
}

/* ---- making it ---- */

static size_t round_up(size_t value, size_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

static lap_status_t choose_kind(lap_buffer_t *buffer)
{
    struct lap_part *part = buffer->backend;
    lap_cuda_memory_t *kind = &part->kinds[buffer->group->rank];
    if (is_threads(buffer))
        return LAP_OK;
    return lap_cuda_memory_chosen(kind, &part->chosen);
}

/* Everything but the memory itself. */
static lap_status_t create_part(lap_buffer_t *buffer)
{
    const size_t size = (size_t)buffer->group->size;
    lap_device_t *device;
    LAP_TRY(lap_device_of(buffer->group->world, &device));
    struct lap_part *part = lap_alloc(1, sizeof(*part));
    if (!part)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the handle of a buffer");
    buffer->backend = part;
    part->device = (lap_cuda_device_t *)device;
    part->fd = -1;
    part->bases = lap_alloc(size, sizeof(*part->bases));
    part->users = lap_alloc(size, sizeof(*part->users));
    part->kinds = lap_alloc(size, sizeof(*part->kinds));
    if (!part->bases || !part->users || !part->kinds)
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
    return choose_kind(buffer);
}

static lap_status_t create_own(lap_buffer_t *buffer)
{
    struct lap_part *part = buffer->backend;
    lap_cuda_device_t *device = part->device;
    const int rank = buffer->group->rank;
    CUdeviceptr memory;
    if (part->kinds[rank] == LAP_CUDA_MEMORY_IPC) {
        LAP_TRY(lap_cuda_enter(device));
        LAP_TRY(lap_cuda_leave(device, lap_cuda_memory(device, part->bytes, &memory)));
        part->bases[rank] = (char *)(uintptr_t)memory;
    } else {
        LAP_TRY(lap_vmm_create(device, part->bytes, &part->handle, &part->bases[rank]));
    }
    part->consumed =
        (uint32_t *)(void *)(part->bases[rank] + buffer->nsignals * sizeof(lap_cuda_word_t));
    part->calls = part->consumed + buffer->nsignals;
    return LAP_OK;
}

/* The record of a rank's memory for the others. No padding: it is sent as bytes. */
typedef struct offer {
    uint64_t base, context; /* for threads of one process */
    lap_part_place_t place;
    int32_t kind, chosen;  /* for processes: lap_cuda_memory_t, and whether it must be */
    int32_t failure;       /* a status: there is none */
    CUipcMemHandle handle; /* for IPC */
} offer_t;

static lap_status_t make_offer(lap_buffer_t *buffer, offer_t *offer)
{
    struct lap_part *part = buffer->backend;
    lap_cuda_device_t *device = part->device;
    char *base = part->bases[buffer->group->rank];
    offer->base = (uint64_t)(uintptr_t)base;
    offer->context = (uint64_t)(uintptr_t)device->context;
    if (is_threads(buffer))
        return LAP_OK;
    if (offer->kind != LAP_CUDA_MEMORY_IPC)
        return lap_vmm_export(device, part->handle, &part->fd);
    LAP_TRY(lap_cuda_enter(device));
    return lap_cuda_leave(device, lap_cuda_check(&device->api,
                                                 device->api.cuIpcGetMemHandle(
                                                     &offer->handle, (CUdeviceptr)(uintptr_t)base),
                                                 "cuIpcGetMemHandle"));
}

/* ---- taking the others' ---- */

/* Between enter and leave. */
static lap_status_t take_of_thread(lap_cuda_device_t *device, const offer_t *offer, char **base_p)
{
    CUresult result = CUDA_SUCCESS;
    if (offer->place.gpu != device->ordinal)
        result = device->api.cuCtxEnablePeerAccess((CUcontext)(uintptr_t)offer->context, 0);
    if (result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
        LAP_TRY(lap_cuda_check(&device->api, result, "cuCtxEnablePeerAccess"));
    *base_p = (char *)(uintptr_t)offer->base;
    return LAP_OK;
}

static lap_status_t take_by_ipc(lap_cuda_device_t *device, const offer_t *offer, char **base_p)
{
    CUdeviceptr base;
    LAP_TRY(lap_cuda_check(
        &device->api,
        device->api.cuIpcOpenMemHandle(&base, offer->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
        "cuIpcOpenMemHandle"));
    *base_p = (char *)(uintptr_t)base;
    return LAP_OK;
}

/* Another rank's memory, as an address that this rank's GPU can use. */
static lap_status_t take_offer(const lap_buffer_t *buffer, const offer_t *offer, int fd,
                               char **base_p)
{
    lap_cuda_device_t *device = lap_part_of(buffer)->device;
    if (offer->kind != LAP_CUDA_MEMORY_IPC)
        return lap_vmm_import(device, lap_part_of(buffer)->bytes, fd, base_p);
    LAP_TRY(lap_cuda_enter(device));
    return lap_cuda_leave(device, is_threads(buffer) ? take_of_thread(device, offer, base_p)
                                                     : take_by_ipc(device, offer, base_p));
}

static lap_status_t take_offers(lap_buffer_t *buffer, const offer_t *offers, const int *fds)
{
    struct lap_part *part = buffer->backend;
    for (int r = 0; r < buffer->group->size; r++) {
        if (r != buffer->group->rank) {
            char *base = NULL;
            part->kinds[r] = (lap_cuda_memory_t)offers[r].kind;
            LAP_TRY(take_offer(buffer, &offers[r], fds ? fds[r] : -1, &base));
            part->bases[r] = base;
            atomic_fetch_add_explicit(part->users[r], 1, memory_order_relaxed);
        }
        buffer->data[r] = part->bases[r] + part->data;
    }
    return LAP_OK;
}

/* With the descriptors of those whose memory is known by one. */
static lap_status_t take_with_fds(lap_buffer_t *buffer, const offer_t *offers)
{
    lap_group_t *group = buffer->group;
    int *fds = lap_alloc((size_t)group->size, sizeof(*fds));
    lap_status_t status = LAP_OK;
    if (!fds)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for %d descriptors", group->size);
    status = lap_group_agree(group, status);
    if (status == LAP_OK)
        status = lap_group_pass_fds(group, lap_part_of(buffer)->fd, fds);
    if (status == LAP_OK) {
        status = take_offers(buffer, offers, fds);
        for (int r = 0; r < group->size; r++)
            if (fds[r] >= 0)
                close(fds[r]);
    }
    lap_free(fds);
    return status;
}

/* ---- who computes where ---- */

lap_part_place_t lap_part_place(const lap_cuda_device_t *device)
{
    return (lap_part_place_t){device->ordinal, device->share.part, device->share.parts};
}

static bool is_on_this_host(const lap_buffer_t *buffer, int rank)
{
    const lap_group_t *group = buffer->group;
    return is_threads(buffer) || rank == group->rank ||
           group->world->peers[group->members[rank]].heap_fd >= 0;
}

void lap_part_share(lap_buffer_t *buffer, const lap_part_place_t *first, size_t stride)
{
    const lap_group_t *group = buffer->group;
    struct lap_part *part = buffer->backend;
    bool share = false, shares_sms = false;
    for (int r = 0; r < group->size; r++) {
        const lap_part_place_t *a =
            (const lap_part_place_t *)(const void *)((const char *)first + (size_t)r * stride);
        for (int other = 0; other < r; other++) {
            const lap_part_place_t *b =
                (const lap_part_place_t *)(const void *)((const char *)first +
                                                         (size_t)other * stride);
            const bool same =
                a->gpu == b->gpu && is_on_this_host(buffer, r) && is_on_this_host(buffer, other);
            share = share || same;
            shares_sms = shares_sms || (same && (a->parts != b->parts || a->part == b->part));
        }
        /* Of ranks that are not in the group nobody knows, but that parts are made for one each. */
        shares_sms = shares_sms || (a->parts == 1 && group->size < group->world->size);
    }
    part->in_turn = buffer->no_graphs = share && is_threads(buffer);
    part->device->share.shares_sms = part->device->share.shares_sms || shares_sms;
}

/* ---- all together ---- */

/* What all offers have in common; the same on every rank. */
typedef struct overview {
    bool failed;    /* one could not be made, */
    bool no_memory; /* for want of memory */
    bool chosen;    /* the kind of one must be what it is */
    bool all_ipc;   /* else descriptors are to be passed */
} overview_t;

static overview_t look_over(const lap_group_t *group, const offer_t *offers)
{
    overview_t view = {.all_ipc = true};
    for (int r = 0; r < group->size; r++) {
        view.failed = view.failed || offers[r].failure != LAP_OK;
        view.no_memory = view.no_memory || offers[r].failure == LAP_ERR_NO_MEMORY;
        view.chosen = view.chosen || offers[r].chosen;
        view.all_ipc = view.all_ipc && offers[r].kind == LAP_CUDA_MEMORY_IPC;
    }
    return view;
}

/*
 * Makes the memory and maps that of all. Every rank takes part in every collective step, also when
 * it has failed. Writes whether another kind of memory may be tried instead.
 */
static lap_status_t share_memory(lap_buffer_t *buffer, bool *again_p)
{
    lap_group_t *group = buffer->group;
    struct lap_part *part = buffer->backend;
    offer_t offer = {.place = lap_part_place(part->device),
                     .kind = (int32_t)part->kinds[group->rank],
                     .chosen = part->chosen};
    void *offers;
    lap_status_t status = create_own(buffer);
    if (status == LAP_OK)
        status = make_offer(buffer, &offer);
    offer.failure = (int32_t)status;
    char sentence[LAP_ERROR_TEXT] = "";
    if (status != LAP_OK)
        strncpy(sentence, lap_last_error(), sizeof(sentence) - 1);
    LAP_TRY(lap_group_collect(group, &offer, sizeof(offer), &offers));
    const overview_t view = look_over(group, offers);
    lap_part_share(buffer, &((const offer_t *)offers)->place, sizeof(offer_t));
    *again_p = view.all_ipc && !view.chosen && !view.no_memory && !is_threads(buffer);
    if (status != LAP_OK)
        lap_error(status, "%s", sentence);
    if (status == LAP_OK && !view.failed)
        status = view.all_ipc ? take_offers(buffer, offers, NULL) : take_with_fds(buffer, offers);
    lap_free(offers);
    status = lap_group_agree(group, status);
    close_handles(part);
    return status;
}

/* CUDA IPC does not work between these ranks: what there is of it goes, and VMM takes its place. */
static lap_status_t share_otherwise(lap_buffer_t *buffer)
{
    lap_group_t *group = buffer->group;
    struct lap_part *part = buffer->backend;
    bool again;
    unmap_peers(buffer);
    LAP_TRY(lap_group_agree(group, LAP_OK)); /* nobody maps what is freed now */
    free_own(part, group->rank);
    part->kinds[group->rank] = LAP_CUDA_MEMORY_VMM;
    LAP_TRY(lap_group_agree(group, lap_vmm_size(part->device, &part->bytes)));
    return share_memory(buffer, &again);
}

static lap_status_t create_all(lap_buffer_t *buffer)
{
    bool again = false;
    lap_status_t status = create_part(buffer);
    struct lap_part *part = buffer->backend;
    if (status == LAP_OK && part->kinds[buffer->group->rank] != LAP_CUDA_MEMORY_IPC)
        status = lap_vmm_size(part->device, &part->bytes);
    LAP_TRY(lap_group_agree(buffer->group, status));
    status = share_memory(buffer, &again);
    /* Of memory that there is not, VMM has no more. */
    if (status == LAP_OK || status == LAP_ERR_NO_MEMORY || !again)
        return status;
    return share_otherwise(buffer);
}

lap_status_t lap_cuda_ipc_buffer_create(lap_buffer_t *buffer)
{
    if (lap_transport_spans(buffer->group))
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "transport cuda_ipc is for ranks of one host; these are on several");
    LAP_TRY(lap_host_buffer_create_some(buffer, sizeof(uint32_t), NULL));
    const lap_status_t status = create_all(buffer);
    if (status != LAP_OK)
        lap_cuda_ipc_buffer_destroy(buffer);
    return status;
}
