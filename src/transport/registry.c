/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transports of this build. A new one is a line in the list. `link` is not one: it wraps
 * whichever is chosen.
 */
#include <string.h>

#include "core/status.h"
#include "lap_config.h"
#include "transport/transport.h"
#include "util/join.h"
#include "util/nearest.h"

extern const lap_transport_ops_t lap_self_ops;
extern const lap_transport_ops_t lap_shm_ops;
extern const lap_transport_ops_t lap_mpi_ops;
extern const lap_transport_ops_t lap_hosts_ops;
extern const lap_transport_ops_t lap_cuda_ipc_ops;
extern const lap_transport_ops_t lap_nccl_ops;

static const lap_transport_ops_t *const transports[] = {
    &lap_self_ops,     &lap_shm_ops,
#if LAP_HAVE_MPI
    &lap_mpi_ops,
#endif
    &lap_hosts_ops,
#if LAP_HAVE_CUDA
    &lap_cuda_ipc_ops, &lap_nccl_ops,
#endif
};

const lap_transport_ops_t *lap_transport_at(size_t index)
{
    return index < sizeof(transports) / sizeof(transports[0]) ? transports[index] : NULL;
}

lap_status_t lap_transport_find(const char *name, const lap_transport_ops_t **ops_p)
{
    char names[128] = "", hint[LAP_NEAREST_HINT];
    const char *all[sizeof(transports) / sizeof(transports[0]) + 1] = {NULL};
    if (!name)
        return lap_error(LAP_ERR_INVALID, "the name of the transport is NULL");
    for (size_t i = 0; lap_transport_at(i); i++) {
        const lap_transport_ops_t *ops = lap_transport_at(i);
        if (strcmp(ops->name, name) == 0) {
            *ops_p = ops;
            return LAP_OK;
        }
        lap_join(names, sizeof(names), ops->name);
        all[i] = ops->name;
    }
    if (strcmp(name, "tcp") == 0)
        return lap_error(
            LAP_ERR_INVALID,
            "the transport tcp was removed: between hosts MPI carries data (mpi, hosts; "
            "started by mpirun), or NCCL between GPUs (nccl); there are: %s",
            names);
    return lap_error(LAP_ERR_INVALID, "there is no transport '%s'; there are: %s%s", name, names,
                     lap_nearest_hint(name, all, hint));
}

bool lap_transport_fits(const lap_transport_ops_t *ops, const lap_device_ops_t *device)
{
    return device->transport ? ops->device && strcmp(ops->device, device->name) == 0 : !ops->device;
}

unsigned lap_transport_can(const lap_transport_ops_t *ops, const lap_group_t *group)
{
    return ops->can | (ops->group_can ? ops->group_can(group) : 0);
}

bool lap_transport_spans(const lap_group_t *group)
{
    const lap_world_t *world = group->world;
    for (int rank = 0; rank < group->size && world->kind != LAP_WORLD_THREADS; rank++)
        if (world->peers[group->members[rank]].heap_fd < 0)
            return true;
    return false;
}

/*
 * Of those that reach the memory of such a device: the one that the world was given, or by where
 * ranks are.
 */
static const char *default_of(const lap_group_t *group, const lap_device_ops_t *device)
{
    const bool far = lap_transport_spans(group);
    for (size_t i = 0; lap_transport_at(i); i++) {
        const lap_transport_ops_t *ops = lap_transport_at(i);
        if (!lap_transport_fits(ops, device))
            continue;
        if (far ? ops->can & LAP_CAN_SPAN : strcmp(ops->name, group->world->transport_name) == 0)
            return ops->name;
    }
    return device->transport;
}

const char *lap_transport_default(const lap_group_t *group)
{
    const lap_world_t *world = group->world;
    const lap_device_ops_t *device;
    if (lap_device_find(world->device_name, &device) == LAP_OK && device->transport)
        return default_of(group, device);
    if (world->kind == LAP_WORLD_THREADS)
        return "self";
    if (world->transport_name[0])
        return world->transport_name;
    return lap_transport_spans(group) ? "hosts" : "shm";
}
