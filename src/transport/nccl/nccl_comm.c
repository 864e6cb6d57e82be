/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The communicator of a group: how it is made and ended, and windows of memory. Calls of NCCL may
 * wait for peers that have died; so it is set not to block, and polled, with a
 * deadline and an eye on the peers. It is always ended by ncclCommAbort, which waits for nobody:
 * when a group ends well, nothing is under way any more.
 */
#include "transport/nccl/nccl_comm.h"

#include <lap/lap_cuda.h>
#include <stdlib.h>
#include <string.h>

#include "core/group.h"
#include "util/alloc.h"
#include "util/clock.h"

#define NAP_NS 50000u
#define PROBE_BYTES 4096u

lap_status_t lap_nccl_enter(lap_nccl_comm_t *comm)
{
    LAP_TRY(lap_cuda_enter(comm->device));
    const lap_status_t status = lap_cuda_push(comm->device, comm->device->primary);
    return status == LAP_OK ? LAP_OK : lap_cuda_leave(comm->device, status);
}

lap_status_t lap_nccl_leave(lap_nccl_comm_t *comm, lap_status_t status)
{
    return lap_cuda_leave(comm->device, lap_cuda_pop(comm->device, status));
}

/* ---- waiting ---- */

/* Whether what is awaited has ended: LAP_IN_PROGRESS if not. */
typedef lap_status_t (*lap_nccl_poll_t)(lap_nccl_comm_t *comm, const char *what);

static lap_status_t poll_comm(lap_nccl_comm_t *comm, const char *what)
{
    ncclResult_t state = ncclSuccess;
    LAP_TRY(lap_nccl_check(&comm->api, comm->api.ncclCommGetAsyncError(comm->comm, &state),
                           "ncclCommGetAsyncError"));
    return state == ncclInProgress ? LAP_IN_PROGRESS : lap_nccl_check(&comm->api, state, what);
}

static lap_status_t poll_wire(lap_nccl_comm_t *comm, const char *what)
{
    const lap_cuda_api_t *api = &comm->device->api;
    const CUresult result = api->cuStreamQuery(comm->wire);
    return result == CUDA_ERROR_NOT_READY ? LAP_IN_PROGRESS : lap_cuda_check(api, result, what);
}

lap_status_t lap_nccl_agree(lap_group_t *group, lap_status_t status)
{
    return lap_group_agree(group, status == LAP_IN_PROGRESS ? LAP_OK : status);
}

lap_status_t lap_nccl_look(lap_group_t *group, uint64_t now, uint64_t *since_p)
{
    if (!lap_group_fails_ahead(group))
        *since_p = 0;
    else if (*since_p == 0)
        *since_p = now;
    else if (now - *since_p > LAP_NCCL_LAST_NS)
        return LAP_IN_PROGRESS;
    return LAP_OK;
}

static lap_status_t await(lap_nccl_comm_t *comm, lap_nccl_poll_t poll, const char *what)
{
    const lap_world_t *world = comm->group->world;
    lap_deadline_t deadline = lap_deadline_after(world->timeout_ns);
    const uint64_t begin = deadline.seen;
    uint64_t next_look = begin + LAP_WATCH_NS, given_up = 0;
    for (;;) {
        const lap_status_t status = poll(comm, what);
        if (status != LAP_IN_PROGRESS)
            return status;
        const uint64_t now = lap_now_ns();
        if (now >= next_look) {
            LAP_TRY(lap_group_look(comm->group));
            if (comm->in_step)
                LAP_TRY(lap_nccl_look(comm->group, now, &given_up));
            next_look = now + LAP_WATCH_NS;
        }
        if (lap_deadline_passed(&deadline))
            return lap_error(LAP_ERR_TIMEOUT, "%s of NCCL did not end within %g s on rank %d", what,
                             (double)world->timeout_ns * 1e-9, comm->group->rank);
        if (now - begin > world->spin_ns)
            lap_sleep_until_ns(now + NAP_NS);
    }
}

lap_status_t lap_nccl_await(lap_nccl_comm_t *comm, ncclResult_t result, const char *what)
{
    LAP_TRY(lap_nccl_check(&comm->api, result, what));
    return await(comm, poll_comm, what);
}

lap_status_t lap_nccl_await_wire(lap_nccl_comm_t *comm)
{
    return await(comm, poll_wire, "a put");
}

/* ---- windows ---- */

static lap_status_t allocate(lap_nccl_comm_t *comm, size_t bytes, void **memory_p)
{
    size_t left = 0, total;
    const ncclResult_t result = comm->api.ncclMemAlloc(memory_p, bytes);
    if (result == ncclSuccess)
        return lap_cuda_clear(comm->device, (CUdeviceptr)(uintptr_t)*memory_p, bytes);
    *memory_p = NULL;
    if (comm->device->api.cuMemGetInfo(&left, &total) == CUDA_SUCCESS && left < bytes)
        return lap_cuda_no_memory(comm->device, bytes);
    return lap_nccl_check(&comm->api, result, "ncclMemAlloc");
}

/* Where the memory of a window goes, and its handle. */
typedef struct wanted {
    size_t bytes;
    lap_nccl_cell_t *cell;
} wanted_t;

/* A step that all ranks take, and may wait in for one another. */
typedef lap_status_t (*lap_nccl_step_t)(lap_nccl_comm_t *comm, void *context);

static lap_status_t take_step(lap_nccl_comm_t *comm, lap_nccl_step_t step, void *context)
{
    lap_status_t status = lap_nccl_enter(comm);
    if (status == LAP_OK) {
        comm->in_step = true;
        status = step(comm, context);
        comm->in_step = false;
        status = lap_nccl_leave(comm, status);
    }
    return lap_nccl_agree(comm->group, status);
}

static lap_status_t take_memory(lap_nccl_comm_t *comm, void *context)
{
    wanted_t *wanted = context;
    wanted->cell = lap_alloc(1, sizeof(*wanted->cell));
    if (!wanted->cell)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a window of NCCL");
    return allocate(comm, wanted->bytes, &wanted->cell->memory);
}

static lap_status_t register_window(lap_nccl_comm_t *comm, void *context)
{
    const wanted_t *wanted = context;
    lap_nccl_cell_t *cell = wanted->cell;
    LAP_TRY(lap_nccl_await(
        comm,
        comm->api.ncclCommWindowRegister(comm->comm, cell->memory, wanted->bytes, &cell->window,
                                         NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING),
        "ncclCommWindowRegister"));
    if (cell->window)
        return LAP_OK;
    return lap_error(LAP_ERR_UNSUPPORTED,
                     "NCCL has no symmetric memory for these GPUs, which it has where NVLink or a "
                     "network that writes into GPUs connects them: expected transport cuda_ipc, "
                     "for ranks of one host");
}

static void free_cell(lap_nccl_comm_t *comm, lap_nccl_cell_t *cell)
{
    if (cell && cell->memory && lap_nccl_enter(comm) == LAP_OK) {
        (void)comm->api.ncclMemFree(cell->memory);
        (void)lap_nccl_leave(comm, LAP_OK);
    }
    lap_free(cell);
}

lap_status_t lap_nccl_window_create(lap_nccl_comm_t *comm, size_t bytes,
                                    lap_nccl_window_t *window_p)
{
    wanted_t wanted = {.bytes = bytes};
    lap_status_t status = take_step(comm, take_memory, &wanted);
    if (status != LAP_OK) {
        free_cell(comm, wanted.cell);
        return status;
    }
    status = take_step(comm, register_window, &wanted);
    if (status != LAP_OK) { /* NCCL may still be at it: see lap_nccl_cell_t */
        wanted.cell->next = comm->unfinished;
        comm->unfinished = wanted.cell;
        return status;
    }
    *window_p = (lap_nccl_window_t){wanted.cell->memory, wanted.cell->window};
    lap_free(wanted.cell);
    comm->users++;
    return LAP_OK;
}

void lap_nccl_window_destroy(lap_nccl_comm_t *comm, lap_nccl_window_t *window)
{
    if (!window->memory)
        return;
    comm->users--;
    if (lap_nccl_enter(comm) == LAP_OK) {
        (void)comm->api.ncclCommWindowDeregister(comm->comm, window->window);
        (void)comm->api.ncclMemFree(window->memory);
        (void)lap_nccl_leave(comm, LAP_OK);
    }
    *window = (lap_nccl_window_t){NULL, NULL};
}

/* ---- ending ---- */

/*
 * What is on its way over a network may wait for a peer that is gone. A communicator of the
 * caller's has other users, whom the failure of a call of ours is nothing to.
 */
static void client_end(lap_cuda_client_t *client)
{
    lap_nccl_comm_t *comm = (lap_nccl_comm_t *)client;
    if (comm->all_near || comm->borrowed || !comm->comm || lap_nccl_enter(comm) != LAP_OK)
        return;
    (void)comm->api.ncclCommRevoke(comm->comm, 0);
    (void)lap_nccl_leave(comm, LAP_OK);
}

/* Its end joins what NCCL is still at, which may write what is freed then. */
static void free_inside(lap_nccl_comm_t *comm)
{
    const lap_cuda_api_t *api = &comm->device->api;
    if (comm->comm && !comm->borrowed)
        (void)comm->api.ncclCommAbort(comm->comm);
    while (comm->unfinished && !comm->borrowed) {
        lap_nccl_cell_t *cell = comm->unfinished;
        comm->unfinished = cell->next;
        (void)comm->api.ncclMemFree(cell->memory);
        lap_free(cell);
    }
    if (comm->wire)
        (void)api->cuStreamDestroy(comm->wire);
    if (comm->done)
        (void)api->cuEventDestroy(comm->done);
}

static void comm_free(void *context)
{
    lap_nccl_comm_t *comm = context;
    lap_saved_error_t saved;
    lap_error_save(&saved);
    if (lap_nccl_enter(comm) == LAP_OK) {
        free_inside(comm);
        (void)lap_nccl_leave(comm, LAP_OK);
    }
    lap_cuda_client_detach(comm->device, &comm->client);
    if (comm->sent)
        lap_cuda_event_destroy(comm->sent);
    comm->group->channel = NULL;
    lap_free(comm);
    lap_error_restore(&saved);
}

/* The device is closed before the group of all ranks ends. */
static void client_close(lap_cuda_client_t *client)
{
    comm_free(client);
}

/* ---- making ---- */

static lap_status_t create_own(lap_group_t *group, lap_nccl_comm_t **comm_p)
{
    lap_device_t *device;
    LAP_TRY(lap_device_of(group->world, &device));
    lap_nccl_comm_t *comm = lap_alloc(1, sizeof(*comm));
    if (!comm)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a communicator of NCCL");
    comm->group = group;
    comm->device = (lap_cuda_device_t *)device;
    comm->client = (lap_cuda_client_t){client_end, client_close, NULL};
    lap_cuda_client_attach(comm->device, &comm->client);
    *comm_p = comm;
    return lap_nccl_load(&comm->api);
}

/* `context` is the id. */
static lap_status_t init(lap_nccl_comm_t *comm, void *context)
{
    const ncclUniqueId *id = context;
    ncclConfig_t config = LAP_NCCL_CONFIG;
    const ncclResult_t result = comm->api.ncclCommInitRankConfig(&comm->comm, comm->group->size,
                                                                 *id, comm->group->rank, &config);
    return lap_nccl_await(comm, result, "ncclCommInitRankConfig");
}

static lap_status_t make_id(lap_nccl_comm_t *comm, ncclUniqueId *id)
{
    if (comm->group->rank != 0)
        return LAP_OK;
    LAP_TRY(lap_nccl_enter(comm));
    return lap_nccl_leave(
        comm, lap_nccl_check(&comm->api, comm->api.ncclGetUniqueId(id), "ncclGetUniqueId"));
}

/* Every rank takes part in every collective step, also when it has failed. */
static lap_status_t connect(lap_nccl_comm_t *comm)
{
    ncclUniqueId id = {{0}};
    void *ids;
    LAP_TRY(lap_group_agree(comm->group, make_id(comm, &id)));
    LAP_TRY(lap_group_collect(comm->group, &id, sizeof(id), &ids));
    const lap_status_t status = take_step(comm, init, ids); /* that of rank 0 */
    lap_free(ids);
    return status;
}

/* Whether NCCL gives this rank the address of all others' memory. */
static lap_status_t look_near(lap_nccl_comm_t *comm, const lap_nccl_window_t *window, bool *near_p)
{
    const char *asked = getenv("LAP_NCCL_ADDRESSES");
    *near_p = !(asked && strcmp(asked, "0") == 0);
    for (int r = 0; r < comm->group->size && *near_p; r++) {
        void *address = NULL;
        LAP_TRY(lap_nccl_check(&comm->api,
                               comm->api.ncclGetPeerDevicePointer(window->window, 0, r, &address),
                               "ncclGetPeerDevicePointer"));
        *near_p = address != NULL;
    }
    return LAP_OK;
}

/* What ranks need that are not near each other: all of one rank alone, */
static lap_status_t open_wire(lap_nccl_comm_t *comm, void *unused)
{
    (void)unused;
    lap_cuda_device_t *device = comm->device;
    const lap_cuda_api_t *api = &device->api;
    CUkernel kernel;
    LAP_TRY(lap_cuda_kernel_find(device, LAP_CUDA_KERNEL_raise, &kernel));
    LAP_TRY(
        lap_cuda_check(api, api->cuKernelGetFunction(&comm->raise, kernel), "cuKernelGetFunction"));
    LAP_TRY(lap_cuda_check(api, api->cuFuncLoad(comm->raise), "cuFuncLoad"));
    LAP_TRY(lap_cuda_check(
        api,
        api->cuStreamCreateWithPriority(&comm->wire, CU_STREAM_NON_BLOCKING, device->share.urgent),
        "cuStreamCreateWithPriority"));
    return lap_cuda_check(api, api->cuEventCreate(&comm->done, CU_EVENT_DISABLE_TIMING),
                          "cuEventCreate");
}

/* and what NCCL makes with the first signal, on all ranks together. */
static lap_status_t use_wire(lap_nccl_comm_t *comm, void *unused)
{
    (void)unused;
    const int next = (comm->group->rank + 1) % comm->group->size;
    LAP_TRY(lap_nccl_await(comm, comm->api.ncclSignal(next, 0, 0, 0, comm->comm, comm->wire),
                           "ncclSignal"));
    return lap_nccl_await_wire(comm);
}

/* Collective: who is near whom, which all ranks must know alike. */
static lap_status_t find_near(lap_nccl_comm_t *comm)
{
    lap_nccl_window_t probe;
    bool near = false;
    void *memory;
    LAP_TRY(lap_nccl_window_create(comm, PROBE_BYTES, &probe));
    lap_status_t status = lap_nccl_enter(comm);
    if (status == LAP_OK)
        status = lap_nccl_leave(comm, look_near(comm, &probe, &near));
    status = lap_group_agree(comm->group, status);
    lap_nccl_window_destroy(comm, &probe);
    LAP_TRY(status);
    LAP_TRY(lap_group_collect(comm->group, &near, sizeof(near), &memory));
    const bool *all = memory;
    comm->all_near = true;
    for (int r = 0; r < comm->group->size; r++)
        comm->all_near = comm->all_near && all[r];
    lap_free(memory);
    if (comm->all_near)
        return LAP_OK;
    status = lap_cuda_event_create(&comm->device->base, &comm->sent);
    LAP_TRY(lap_group_agree(comm->group, status));
    LAP_TRY(take_step(comm, open_wire, NULL));
    return take_step(comm, use_wire, NULL);
}

/* Local: whether the caller's communicator is that of the group, on the GPU of its device. */
static lap_status_t take_given(lap_nccl_comm_t *comm, ncclComm_t given)
{
    const int gpu = comm->device->base.ops->gpu(&comm->device->base);
    int size = 0, rank = 0, its_gpu = gpu;
    LAP_TRY(lap_nccl_check(&comm->api, comm->api.ncclCommCount(given, &size), "ncclCommCount"));
    LAP_TRY(
        lap_nccl_check(&comm->api, comm->api.ncclCommUserRank(given, &rank), "ncclCommUserRank"));
    if (size != comm->group->size || rank != comm->group->rank)
        return lap_error(LAP_ERR_INVALID,
                         "the communicator given has %d ranks, of which this is %d, expected those "
                         "of the group: %d ranks, of which this is %d",
                         size, rank, comm->group->size, comm->group->rank);
    LAP_TRY(lap_nccl_check(&comm->api, comm->api.ncclCommCuDevice(given, &its_gpu),
                           "ncclCommCuDevice"));
    if (its_gpu != gpu)
        return lap_error(LAP_ERR_INVALID,
                         "the communicator given is on GPU %d, expected that of this rank, GPU %d",
                         its_gpu, gpu);
    comm->comm = given;
    comm->borrowed = true;
    return LAP_OK;
}

/* Collective. `given` is NULL on all ranks, or on none. */
static lap_status_t create(lap_group_t *group, ncclComm_t given)
{
    lap_nccl_comm_t *comm = NULL;
    lap_status_t status = create_own(group, &comm);
    if (status == LAP_OK && given)
        status = take_given(comm, given);
    status = lap_group_agree(group, status);
    if (status == LAP_OK && !given)
        status = connect(comm);
    if (status == LAP_OK)
        status = find_near(comm);
    if (status != LAP_OK) {
        if (comm)
            comm_free(comm);
        return status;
    }
    group->channel = comm;
    group->channel_free = comm_free;
    return LAP_OK;
}

/* Whether one that has not finished a window can be replaced. Local. */
static lap_status_t check_renewal(const lap_nccl_comm_t *comm)
{
    if (comm->borrowed || comm->users > 0)
        return lap_error(LAP_ERR_SYSTEM,
                         "NCCL did not make a window before, and its communicator can make no "
                         "other: expected %s",
                         comm->borrowed ? "another group, with another communicator"
                                        : "all that uses it in this group to be destroyed first");
    return LAP_OK;
}

lap_status_t lap_nccl_comm_get(lap_group_t *group, lap_nccl_comm_t **comm_p)
{
    lap_nccl_comm_t *before = group->channel;
    if (before && before->unfinished) { /* on all ranks alike */
        LAP_TRY(lap_group_agree(group, check_renewal(before)));
        comm_free(before);
    }
    if (!group->channel)
        LAP_TRY(create(group, NULL));
    *comm_p = group->channel;
    return LAP_OK;
}

static lap_status_t check_group(lap_group_t *group, const void *given)
{
    lap_device_t *device;
    if (!given)
        return lap_error(LAP_ERR_INVALID, "lap_group_set_nccl: comm is NULL");
    if (group->channel)
        return lap_error(LAP_ERR_INVALID, "lap_group_set_nccl: the group has a communicator "
                                          "already: expected to be called before its first buffer");
    LAP_TRY(lap_device_of(group->world, &device));
    if (device->ops->gpu(device) < 0)
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "this world has device %s, which has no GPU: expected device cuda",
                         device->ops->name);
    return LAP_OK;
}

lap_status_t lap_group_set_nccl(lap_group_t *group, struct ncclComm *comm)
{
    if (!group)
        return lap_error(LAP_ERR_INVALID, "lap_group_set_nccl: group is NULL");
    const char *before = lap_enter(group->world, "lap_group_set_nccl");
    lap_status_t status = lap_group_agree(group, check_group(group, comm));
    if (status == LAP_OK)
        status = create(group, comm);
    lap_leave(group->world, before);
    return status;
}
