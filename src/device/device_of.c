/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device of a world: opened when the first buffer or operator needs it, closed with the world.
 */
#include "core/environment.h"
#include "core/status.h"
#include "core/world.h"
#include "device/device.h"
#include "util/cores.h"

uint64_t lap_device_spin_ns(const lap_device_options_t *options, uint64_t most)
{
    uint64_t set;
    if (lap_environment_spin(&set) != LAP_OK) /* the world has reported it */
        set = 0;
    return options->crowded || lap_cores() == 1 ? 0 : set < most ? set : most;
}

static void device_close(void *context)
{
    lap_device_t *device = context;
    device->ops->close(device);
}

/* Ranks of this host that come before this one: those whose process is known here. */
static int local_rank(const lap_world_t *world)
{
    if (world->local_size == world->size)
        return world->rank;
    int before = 0;
    for (int r = 0; r < world->rank; r++)
        before += world->peers[r].pid != 0;
    return before;
}

lap_status_t lap_device_of(lap_world_t *world, lap_device_t **device_p)
{
    if (!world->device) {
        const lap_device_ops_t *ops;
        lap_device_t *device;
        LAP_TRY(lap_device_find(world->device_name, &ops));
        const lap_device_options_t options = {
            .threads = world->cpu_threads,
            .rank = local_rank(world),
            .size = world->local_size,
            .timeout_ns = world->timeout_ns,
            .crowded = world->local_size > world->cores,
        };
        LAP_TRY(ops->open(&options, &device));
        world->device = device;
        world->device_close = device_close;
    }
    *device_p = world->device;
    return LAP_OK;
}
