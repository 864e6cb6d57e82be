/* SPDX-License-Identifier: Apache-2.0 */
/* Which GPU a world's device is, for callers with CUDA code of their own: see lap_cuda.h. */
#include <lap/lap_cuda.h>

#include "core/world.h"
#include "device/cuda/cuda.h"

extern const lap_device_ops_t lap_cuda_ops;

lap_status_t lap_world_gpu(lap_world_t *world, int *gpu_p)
{
    lap_device_t *device;
    if (!world || !gpu_p)
        return lap_error(LAP_ERR_INVALID, "lap_world_gpu: %s is NULL", world ? "gpu_p" : "world");
    LAP_TRY(lap_device_of(world, &device));
    if (device->ops != &lap_cuda_ops)
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "this world has device %s, which has no GPU: expected device cuda",
                         device->ops->name);
    *gpu_p = ((const lap_cuda_device_t *)device)->ordinal;
    return LAP_OK;
}
