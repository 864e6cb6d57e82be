/* SPDX-License-Identifier: Apache-2.0 */
/* A build without CUDA: what there would be says so. */
#include "core/status.h"
#include "device/cuda/cuda_info.h"

lap_status_t lap_cuda_info(lap_cuda_info_t *info_p)
{
    (void)info_p;
    return lap_error(LAP_ERR_UNSUPPORTED,
                     "this build has no CUDA: install the CUDA toolkit and build again");
}
