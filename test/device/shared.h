/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a test of devices and the device itself both reach. Exits without memory. */
#ifndef LAP_TEST_DEVICE_SHARED_H
#define LAP_TEST_DEVICE_SHARED_H

#include <stdio.h>
#include <stdlib.h>

#include "device/device.h"

static inline void *new_shared(lap_device_t *device, size_t bytes)
{
    void *memory;
    if (device->ops->alloc_shared(device, bytes + 1, &memory) != LAP_OK) {
        printf("Bail out! no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return memory;
}

static inline void free_shared(lap_device_t *device, void *memory)
{
    device->ops->free_shared(device, memory);
}

#endif
