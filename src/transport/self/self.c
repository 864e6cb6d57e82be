/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport `self`: ranks that are threads of one process. All it adds to mapped memory is its
 * name and its bounds.
 */
#include "core/status.h"
#include "transport/host/host.h"

static lap_status_t lap_self_buffer_create(lap_buffer_t *buffer)
{
    if (buffer->group->size > 1 && buffer->group->world->kind != LAP_WORLD_THREADS)
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "transport self is for ranks that are threads of one process; these are "
                         "processes: use shm");
    return lap_host_buffer_create(buffer);
}

const lap_transport_ops_t lap_self_ops = {
    .name = "self",
    .summary = "threads of one process, memory mapped by all",
    .can = LAP_SHM_CAN,
    .buffer_create = lap_self_buffer_create,
    LAP_MAPPED_SLOTS,
};
