/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport `self`: ranks that are threads of one process. All it adds to mapped memory is its
 * name and its bounds.
 */
#include "core/status.h"
#include "transport/host/host.h"
#include "transport/link/link.h"

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
    .buffer_destroy = lap_host_buffer_destroy,
    .tell_note = lap_host_tell_note,
    .link_begin = lap_link_begin,
    .put_now = lap_host_put_now,
    .raise_now = lap_host_raise_now,
    .wait_now = lap_host_wait_now,
    .put = lap_host_put,
    .raise = lap_host_raise,
    .wait = lap_host_wait,
};
