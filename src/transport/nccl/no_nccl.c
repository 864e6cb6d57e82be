/* SPDX-License-Identifier: Apache-2.0 */
/* A build without NCCL: what there would be says so. */
#include "core/status.h"
#include "transport/nccl/nccl_info.h"

lap_status_t lap_nccl_version(int *version_p)
{
    (void)version_p;
    return lap_error(LAP_ERR_UNSUPPORTED,
                     "this build has no NCCL: install CUDA and nccl.h and build again");
}
