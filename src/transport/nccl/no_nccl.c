/* SPDX-License-Identifier: Apache-2.0 */
/* A build without CUDA: what there would be says so. */
#include <lap/lap_cuda.h>

#include "core/status.h"
#include "transport/nccl/nccl_info.h"

lap_status_t lap_nccl_version(int *version_p)
{
    (void)version_p;
    return lap_error(LAP_ERR_UNSUPPORTED,
                     "this build has no CUDA: install the CUDA toolkit and build again");
}

lap_status_t lap_group_set_nccl(lap_group_t *group, struct ncclComm *comm)
{
    (void)group;
    (void)comm;
    return lap_error(LAP_ERR_UNSUPPORTED,
                     "this build has no CUDA: install the CUDA toolkit and build again");
}
