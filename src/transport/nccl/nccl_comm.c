/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The communicator of a group: how it is made, watched and ended. Calls of NCCL may wait for peers
 * that have died; so it is told not to block, and asked again and again, with a deadline and an eye
 * on the peers. It is always ended by ncclCommAbort, which waits for nobody: when a group ends well,
 * nothing is under way any more.
 */
#include "transport/nccl/nccl_comm.h"
#include "util/alloc.h"
#include "util/clock.h"

#define NAP_NS 50000u

/* ---- watching ---- */

/* The round that the wire is in, and one of its peers that is still there. */
static bool find_stall(lap_nccl_comm_t *comm, lap_stall_t *stall_p)
{
    const uint32_t ended = __atomic_load_n(&comm->progress[1].value, __ATOMIC_ACQUIRE);
    const uint32_t begun = __atomic_load_n(&comm->progress[0].value, __ATOMIC_ACQUIRE);
    const lap_nccl_flight_t *flight = &comm->flights[(ended + 1) % LAP_NCCL_FLIGHTS];
    if (begun == ended || flight->number != ended + 1 || flight->round.nlacks == 0)
        return false;
    /* A peer that has left may have done its part of the round: another one is asked for first. */
    const uint32_t nlacks = flight->round.nlacks;
    uint32_t at = comm->looks++ % nlacks;
    for (uint32_t i = 1; i < nlacks; i++) {
        if (lap_group_look_for(comm->group, flight->round.lacks[at].peer) == LAP_OK)
            break;
        at = (at + 1) % nlacks;
    }
    const lap_lack_t *lack = &flight->round.lacks[at];
    *stall_p = (lap_stall_t){
        .buffer = flight->buffer,
        .reason = flight->round.reason,
        .peer = lack->peer,
        .signal = lack->signal,
        .count = lack->count,
        .come = lack->count - 1,
        .number = ended + 1,
    };
    return true;
}

static bool client_stall(lap_cuda_client_t *client, lap_stall_t *stall_p)
{
    lap_nccl_comm_t *comm = (lap_nccl_comm_t *)client;
    ncclResult_t result = ncclSuccess;
    if (lap_cuda_own_stall(comm->wire, stall_p))
        return true;
    if (!comm->comm || !find_stall(comm, stall_p))
        return false;
    if (comm->api.ncclCommGetAsyncError(comm->comm, &result) == ncclSuccess)
        stall_p->failed = lap_nccl_check(&comm->api, result, "a send or receive");
    return true;
}

/* Between enter and leave. */
static void abort_comm(lap_nccl_comm_t *comm)
{
    if (comm->comm)
        (void)comm->api.ncclCommAbort(comm->comm);
    comm->comm = NULL;
}

static void client_end(lap_cuda_client_t *client)
{
    lap_nccl_comm_t *comm = (lap_nccl_comm_t *)client;
    if (lap_cuda_enter(comm->device) != LAP_OK)
        return;
    abort_comm(comm);
    (void)lap_cuda_leave(comm->device, LAP_OK);
}

/* ---- ending ---- */

static void comm_free(void *context)
{
    lap_nccl_comm_t *comm = context;
    lap_cuda_device_t *device = comm->device;
    client_end(&comm->client);
    lap_cuda_client_detach(device, &comm->client);
    if (comm->wire)
        lap_cuda_stream_destroy(comm->wire);
    if (comm->mark)
        lap_cuda_event_destroy(comm->mark);
    lap_cuda_free_shared(&device->base, comm->progress);
    lap_cuda_free(&device->base, comm->packed);
    for (unsigned i = 0; i < comm->noutgrown; i++)
        lap_cuda_free(&device->base, comm->outgrown[i]);
    lap_nccl_unload(&comm->api);
    comm->group->channel = NULL;
    lap_free(comm);
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
    void *progress;
    LAP_TRY(lap_device_of(group->world, &device));
    lap_nccl_comm_t *comm = lap_alloc(1, sizeof(*comm));
    if (!comm)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a communicator of NCCL");
    comm->group = group;
    comm->device = (lap_cuda_device_t *)device;
    comm->client = (lap_cuda_client_t){client_stall, client_end, client_close, NULL};
    lap_cuda_client_attach(comm->device, &comm->client);
    *comm_p = comm;
    LAP_TRY(lap_nccl_load(&comm->api));
    LAP_TRY(lap_cuda_stream_create(device, true, &comm->wire));
    LAP_TRY(lap_cuda_event_create(device, &comm->mark));
    LAP_TRY(lap_cuda_alloc_shared(device, 2 * sizeof(lap_cuda_word_t), &progress));
    comm->progress = progress;
    return LAP_OK;
}

lap_status_t lap_nccl_await(lap_nccl_comm_t *comm, const char *what)
{
    const lap_world_t *world = comm->group->world;
    lap_deadline_t deadline = lap_deadline_after(world->timeout_ns);
    const uint64_t begin = deadline.seen;
    uint64_t next_look = begin + LAP_WATCH_NS;
    for (;;) {
        ncclResult_t state = ncclSuccess;
        LAP_TRY(lap_nccl_check(&comm->api, comm->api.ncclCommGetAsyncError(comm->comm, &state),
                               "ncclCommGetAsyncError"));
        if (state != ncclInProgress)
            return lap_nccl_check(&comm->api, state, what);
        const uint64_t now = lap_now_ns();
        if (now >= next_look) {
            LAP_TRY(lap_group_look(comm->group));
            next_look = now + LAP_WATCH_NS;
        }
        if (lap_deadline_passed(&deadline))
            return lap_error(LAP_ERR_TIMEOUT, "%s of NCCL did not end within %g s on rank %d", what,
                             (double)world->timeout_ns * 1e-9, comm->group->rank);
        if (now - begin > world->spin_ns)
            lap_sleep_until_ns(now + NAP_NS);
    }
}

/* Between enter and leave. */
static lap_status_t init(lap_nccl_comm_t *comm, const ncclUniqueId *id)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    LAP_TRY(lap_nccl_check(&comm->api,
                           comm->api.ncclCommInitRankConfig(&comm->comm, comm->group->size, *id,
                                                            comm->group->rank, &config),
                           "ncclCommInitRankConfig"));
    return lap_nccl_await(comm, "ncclCommInitRankConfig");
}

static lap_status_t make_id(lap_nccl_comm_t *comm, ncclUniqueId *id)
{
    if (comm->group->rank != 0)
        return LAP_OK;
    LAP_TRY(lap_cuda_enter(comm->device));
    return lap_cuda_leave(
        comm->device, lap_nccl_check(&comm->api, comm->api.ncclGetUniqueId(id), "ncclGetUniqueId"));
}

/* Every rank takes part in every collective step, also when it has failed. */
static lap_status_t connect(lap_nccl_comm_t *comm)
{
    ncclUniqueId id = {{0}};
    void *ids;
    LAP_TRY(lap_group_agree(comm->group, make_id(comm, &id)));
    LAP_TRY(lap_group_collect(comm->group, &id, sizeof(id), &ids));
    lap_status_t status = lap_cuda_enter(comm->device);
    if (status == LAP_OK) {
        status = init(comm, ids); /* that of rank 0 */
        if (status != LAP_OK)
            abort_comm(comm);
        status = lap_cuda_leave(comm->device, status);
    }
    lap_free(ids);
    return lap_group_agree(comm->group, status);
}

lap_status_t lap_nccl_comm_get(lap_group_t *group, lap_nccl_comm_t **comm_p)
{
    lap_nccl_comm_t *comm = group->channel;
    if (!comm) {
        lap_status_t status = lap_group_agree(group, create_own(group, &comm));
        if (status == LAP_OK)
            status = connect(comm);
        if (status != LAP_OK) {
            if (comm)
                comm_free(comm);
            return status;
        }
        group->channel = comm;
        group->channel_free = comm_free;
    }
    *comm_p = comm;
    return LAP_OK;
}
