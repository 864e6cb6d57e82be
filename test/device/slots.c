/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nobody asks whether a slot of a device, a transport or a table of kernels is there: all are, but
 * for those of which a fact says that they are not.
 */
#include <stddef.h>
#include <string.h>

#include "device/device.h"
#include "kernel/kernel.h"
#include "tap.h"
#include "transport/transport.h"

typedef void (*slot_t)(void);

/* Whether slot `i` of a table, from one member on, is there. */
static bool is_there(const void *first, size_t i)
{
    slot_t slot;
    memcpy(&slot, (const char *)first + i * sizeof(slot), sizeof(slot));
    return slot != NULL;
}

#define SLOT(type, first, slot) ((offsetof(type, slot) - offsetof(type, first)) / sizeof(slot_t))

static void check_device(const lap_device_ops_t *ops)
{
    const size_t count = (sizeof(*ops) - offsetof(lap_device_ops_t, probe)) / sizeof(slot_t);
    for (size_t i = 0; i < count; i++) {
        bool expected = true;
        if (i == SLOT(lap_device_ops_t, probe, set))
            expected = ops->transport != NULL;
        if (i >= SLOT(lap_device_ops_t, probe, graph_begin) &&
            i <= SLOT(lap_device_ops_t, probe, graph_destroy))
            expected = ops->facts.graphs;
        if (i >= SLOT(lap_device_ops_t, probe, caller_begin) &&
            i <= SLOT(lap_device_ops_t, probe, caller_wait_event))
            expected = ops->takes_streams;
        tap_ok(is_there(&ops->probe, i) == expected, "device %s: slot %zu of %zu is %s", ops->name,
               i, count, expected ? "there" : "not there, as its facts say");
    }
}

static void check_transport(const lap_transport_ops_t *ops)
{
    const size_t count =
        (sizeof(*ops) - offsetof(lap_transport_ops_t, buffer_create)) / sizeof(slot_t);
    for (size_t i = 0; i < count; i++) {
        bool expected = true;
        if (i == SLOT(lap_transport_ops_t, buffer_create, end_signals))
            expected = ops->device != NULL;
        tap_ok(is_there(&ops->buffer_create, i) == expected, "transport %s: slot %zu of %zu is %s",
               ops->name, i, count, expected ? "there" : "not there, as its facts say");
    }
}

static void check_kernels(const char *device)
{
    const lap_kernels_t *kernels;
    if (!tap_success(lap_kernels_find(device, &kernels), "kernels of %s", device))
        return;
    const size_t count = (sizeof(*kernels) - offsetof(lap_kernels_t, prepare)) / sizeof(slot_t);
    size_t missing = 0;
    for (size_t i = 0; i < count; i++)
        missing += !is_there(&kernels->prepare, i);
    tap_ok(missing == 0, "kernels of %s: all %zu are there, %zu are not", device, count, missing);
}

int main(void)
{
    const lap_device_ops_t *device;
    const lap_transport_ops_t *transport;
    for (size_t i = 0; (device = lap_device_at(i)); i++) {
        check_device(device);
        check_kernels(device->name);
    }
    for (size_t i = 0; (transport = lap_transport_at(i)); i++)
        check_transport(transport);
    return tap_done();
}
