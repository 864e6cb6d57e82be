/* SPDX-License-Identifier: Apache-2.0 */
/* A build without CUDA: what there would be says so. */
#include <lap/lap_cuda.h>

#include "core/status.h"
#include "core/world.h"
#include "device/cuda/cuda_info.h"

lap_status_t lap_cuda_info(lap_cuda_info_t *info_p)
{
    (void)info_p;
    return lap_error(LAP_ERR_UNSUPPORTED,
                     "this build has no CUDA: install the CUDA toolkit and build again");
}

lap_status_t lap_world_gpu(lap_world_t *world, int *gpu_p)
{
    if (!world || !gpu_p)
        return lap_error(LAP_ERR_INVALID, "lap_world_gpu: %s is NULL", world ? "gpu_p" : "world");
    return lap_error(LAP_ERR_UNSUPPORTED,
                     "this world has device %s, which has no GPU: expected device cuda, and a "
                     "build that has it",
                     world->device_name);
}
