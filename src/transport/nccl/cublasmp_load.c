/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/nccl/cublasmp_load.h"

#include "core/library.h"
#include "core/status.h"
#include "lap_config.h"
#include "transport/nccl/nccl_info.h"

#define LEAST 800 /* 0.8, which has no need of NVSHMEM */

enum { ALLOCATION_FAILED = 2 }; /* of cublasMpStatus_t */

static const lap_library_t library = {
    .title = "cuBLASMp",
    .variable = "LAP_CUBLASMP",
    .names = {"libcublasmp.so.0"},
    .dir = LAP_CUDA_LIBRARY_DIR,
    .least = "0.8 or later",
};

lap_status_t lap_cublasmp_check(const lap_cublasmp_api_t *api, int status, const char *what)
{
    if (status == 0)
        return LAP_OK;
    return lap_error(status == ALLOCATION_FAILED ? LAP_ERR_NO_MEMORY : LAP_ERR_UNSUPPORTED,
                     "%s of cuBLASMp failed: %s", what, api->cublasMpGetStatusString(status));
}

lap_status_t lap_cublasmp_load(lap_cublasmp_api_t *api, int *version_p)
{
    LAP_TRY(lap_library_open(&library, &api->library));
#define FIND(name, args) LAP_TRY(lap_library_find(&library, api->library, #name, &api->name));
    FIND(cublasMpGetStatusString, )
    LAP_CUBLASMP_CALLS(FIND)
#undef FIND
    LAP_TRY(lap_cublasmp_check(api, api->cublasMpGetVersion(version_p), "cublasMpGetVersion"));
    if (*version_p >= LEAST)
        return LAP_OK;
    return lap_error(LAP_ERR_UNSUPPORTED, "cuBLASMp here is %d.%d.%d, expected 0.8 or later",
                     *version_p / 10000, *version_p / 100 % 100, *version_p % 100);
}

/* It is linked against NCCL, and shall find the one that is used here. */
lap_status_t lap_cublasmp_version(int *version_p)
{
    lap_cublasmp_api_t api;
    lap_nccl_api_t nccl;
    LAP_TRY(lap_nccl_load(&nccl));
    return lap_cublasmp_load(&api, version_p);
}
