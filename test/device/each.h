/* SPDX-License-Identifier: Apache-2.0 */
/* One device after the other, those that are here: what a test of all of them is at. */
#ifndef LAP_TEST_DEVICE_EACH_H
#define LAP_TEST_DEVICE_EACH_H

#include <string.h>

#include "core/status.h"
#include "device/device.h"
#include "tap.h"

static const lap_device_ops_t *ops;
static lap_device_t *device;
static lap_stream_t *stream;

/* Whether the device adds up products of FP8 as tap_fp8_loss says. */
static inline bool has_tensor_cores(void)
{
    return strcmp(ops->name, "cuda") == 0;
}

/* Tests every device, or the one of that name; a device that is not here is skipped. */
static inline int test_devices(const char *only, void (*test)(void))
{
    for (size_t i = 0; lap_device_at(i); i++) {
        ops = lap_device_at(i);
        if (only && strcmp(ops->name, only) != 0)
            continue;
        if (ops->probe() != LAP_OK) {
            tap_skip("%s: %s", ops->name, lap_last_error());
            continue;
        }
        if (!tap_success(ops->open(&(lap_device_options_t){.threads = 1}, &device), "%s opens",
                         ops->name) ||
            !tap_success(ops->stream_create(device, false, &stream), "%s: a stream", ops->name))
            break;
        test();
        ops->stream_destroy(stream);
        ops->close(device);
    }
    return tap_done();
}

#endif
