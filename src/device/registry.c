/* SPDX-License-Identifier: Apache-2.0 */
/* The devices of this build, a line each in the list, and the types of elements that they know. */
#include <string.h>

#include "core/convert.h"
#include "core/status.h"
#include "device/device.h"
#include "lap_config.h"
#include "util/join.h"
#include "util/nearest.h"

extern const lap_device_ops_t lap_ref_ops;
extern const lap_device_ops_t lap_cpu_ops;
extern const lap_device_ops_t lap_cuda_ops;

static const lap_device_ops_t *const devices[] = {
    &lap_cpu_ops,
    &lap_ref_ops,
#if LAP_HAVE_CUDA
    &lap_cuda_ops,
#endif
};

const lap_device_ops_t *lap_device_at(size_t index)
{
    return index < sizeof(devices) / sizeof(devices[0]) ? devices[index] : NULL;
}

lap_status_t lap_device_find(const char *name, const lap_device_ops_t **ops_p)
{
    char names[128] = "", hint[LAP_NEAREST_HINT];
    const char *all[sizeof(devices) / sizeof(devices[0]) + 1] = {NULL};
    if (!name)
        return lap_error(LAP_ERR_INVALID, "the name of the device is NULL");
    for (size_t i = 0; lap_device_at(i); i++) {
        const lap_device_ops_t *ops = lap_device_at(i);
        if (strcmp(ops->name, name) == 0) {
            *ops_p = ops;
            return LAP_OK;
        }
        lap_join(names, sizeof(names), ops->name);
        all[i] = ops->name;
    }
    return lap_error(LAP_ERR_INVALID, "there is no device '%s'; there are: %s%s", name, names,
                     lap_nearest_hint(name, all, hint));
}

lap_status_t lap_device_check_dtype(const char *what, lap_dtype_t dtype)
{
    if (lap_dtype_size(dtype) == 0)
        return lap_error(LAP_ERR_UNSUPPORTED, "%s of dtype %d: expected " LAP_DTYPE_NAMES, what,
                         (int)dtype);
    return LAP_OK;
}
