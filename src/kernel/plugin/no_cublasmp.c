/* SPDX-License-Identifier: Apache-2.0 */
/* A build without CUDA: what there would be says so. */
#include "core/status.h"
#include "kernel/plugin/plugin.h"

lap_status_t lap_cublasmp_version(int *version_p)
{
    (void)version_p;
    return lap_error(LAP_ERR_UNSUPPORTED,
                     "this build has no CUDA: install the CUDA toolkit and build again");
}

lap_status_t lap_cublasmp_create(lap_group_t *group, const lap_foreign_shape_t *shape,
                                 lap_foreign_t **foreign_p)
{
    (void)group;
    (void)shape;
    (void)foreign_p;
    return lap_cublasmp_version(NULL);
}
