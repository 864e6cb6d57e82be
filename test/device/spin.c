/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams of a host, and waits for a GPU, spin before they sleep only while every rank has a core for
 * itself: what spins beyond that keeps another rank from its work. `spin [DEVICE]`.
 */
#include <sched.h>
#include <stdlib.h>

#include "core/world.h"
#include "device/device.h"
#include "tap.h"
#include "util/cores.h"

static void check_device(const char *name)
{
    const lap_device_ops_t *ops;
    tap_success(lap_device_find(name, &ops), "there is a device %s", name);
    for (int crowded = 0; crowded <= 1; crowded++) {
        lap_device_t *device;
        const lap_device_options_t options = {.threads = 1, .crowded = crowded};
        if (!tap_success(ops->open(&options, &device), "%s opens", name))
            return;
        const bool spins = device->spin_ns > 0;
        tap_ok(spins == (!crowded && lap_cores() > 1), "%s, %s ranks than cores: it %s", name,
               crowded ? "more" : "no more", spins ? "spins" : "sleeps");
        ops->close(device);
    }
}

static void check_world(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_device_t *device;
    if (!tap_success(lap_device_of(world, &device), "rank %d has a device", world->rank))
        return;
    const bool spins = device->spin_ns > 0;
    tap_ok(spins == (world->size <= lap_cores() && lap_cores() > 1), "rank %d of %d: it %s",
           world->rank, world->size, spins ? "spins" : "sleeps");
}

/* Two cores, where there are as many: a rank more than cores is then no large number. */
static void keep_two_cores(void)
{
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof(cores), &cores) != 0)
        return;
    for (int core = 0, kept = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &cores) && kept++ >= 2)
            CPU_CLR(core, &cores);
    (void)sched_setaffinity(0, sizeof(cores), &cores);
}

/* As users ask for it. */
static void check_none(const char *name)
{
    const lap_device_ops_t *ops;
    const lap_device_options_t options = {.threads = 1};
    lap_device_t *device;
    setenv("LAP_SPIN_US", "0", 1);
    if (tap_success(lap_device_find(name, &ops), "there is a device %s", name) &&
        tap_success(ops->open(&options, &device), "%s opens", name)) {
        tap_ok(device->spin_ns == 0, "%s, with LAP_SPIN_US=0: it sleeps", name);
        ops->close(device);
    }
    unsetenv("LAP_SPIN_US");
}

int main(int argc, char **argv)
{
    const char *const hosts[] = {"ref", "cpu"};
    keep_two_cores();
    unsetenv("LAP_SPIN_US");
    for (int i = 0; i < (argc > 1 ? 1 : 2); i++) {
        check_device(argc > 1 ? argv[1] : hosts[i]);
        check_none(argc > 1 ? argv[1] : hosts[i]);
    }
    setenv("LAP_DEVICE", argc > 1 ? argv[1] : "ref", 1);
    tap_ranks(1, NULL, check_world, NULL);
    tap_ranks(lap_cores(), NULL, check_world, NULL);
    tap_ranks(lap_cores() + 1, NULL, check_world, NULL);
    return tap_done();
}
