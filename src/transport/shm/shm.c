/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport `shm`: ranks that are processes of one host. All it adds to mapped memory is its
 * name and its bounds.
 */
#include "core/status.h"
#include "transport/host/host.h"

static lap_status_t lap_shm_buffer_create(lap_buffer_t *buffer)
{
    const lap_group_t *group = buffer->group;
    if (group->size > 1 && group->world->kind == LAP_WORLD_THREADS)
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "transport shm is for ranks that are processes of one host; these are "
                         "threads: use self");
    /* Some rank is elsewhere for every rank of such a group: all come to the same end. */
    for (int rank = 0; group->size > 1 && rank < group->size; rank++)
        if (group->world->kind == LAP_WORLD_WIRED &&
            group->world->peers[group->members[rank]].heap_fd < 0)
            return lap_error(LAP_ERR_UNSUPPORTED,
                             "transport shm is for ranks that are processes of one host; rank %d "
                             "is on another host than rank %d: use hosts",
                             rank, group->rank);
    return lap_host_buffer_create(buffer);
}

const lap_transport_ops_t lap_shm_ops = {
    .name = "shm",
    .summary = "processes of one host, memory mapped by all",
    .can = LAP_SHM_CAN,
    .buffer_create = lap_shm_buffer_create,
    LAP_MAPPED_SLOTS,
};
