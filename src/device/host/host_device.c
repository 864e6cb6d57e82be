/* SPDX-License-Identifier: Apache-2.0 */
/* A host as a device: its handle, and its memory, which is aligned for vector units. */
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "device/host/host.h"
#include "util/alloc.h"

#define ALIGNMENT 64u
#define SPIN_NS 5000u /* about what it costs to be woken */

lap_status_t lap_host_open(const lap_device_ops_t *ops, const lap_device_options_t *options,
                           lap_device_t **device_p)
{
    lap_device_t *device = lap_alloc(1, sizeof(*device));
    if (!device)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the handle of device %s", ops->name);
    device->ops = ops;
    device->spin_ns = lap_device_spin_ns(options, SPIN_NS);
    *device_p = device;
    return LAP_OK;
}

void lap_host_close(lap_device_t *device)
{
    lap_free(device);
}

lap_status_t lap_host_alloc(lap_device_t *device, size_t bytes, void **memory_p)
{
    void *memory;
    if (posix_memalign(&memory, ALIGNMENT, bytes ? bytes : 1) != 0)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu bytes on device %s", bytes,
                         device->ops->name);
    *memory_p = memory;
    return LAP_OK;
}

lap_status_t lap_host_alloc_shared(lap_device_t *device, size_t bytes, void **memory_p)
{
    LAP_TRY(lap_host_alloc(device, bytes, memory_p));
    memset(*memory_p, 0, bytes);
    return LAP_OK;
}

void lap_host_free(lap_device_t *device, void *memory)
{
    (void)device;
    free(memory);
}
