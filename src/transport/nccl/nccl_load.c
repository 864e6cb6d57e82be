/* SPDX-License-Identifier: Apache-2.0 */
/* Finds NCCL at run time, and turns what it returns into statuses. */
#include "transport/nccl/nccl_load.h"

#include <dlfcn.h>
#include <string.h>

#include "core/library.h"
#include "core/status.h"
#include "lap_config.h"
#include "transport/nccl/nccl_info.h"

static const lap_library_t library = {
    .title = "NCCL",
    .variable = "LAP_NCCL",
    .names = {"libnccl.so.2"},
    .dir = LAP_CUDA_LIBRARY_DIR,
    .least = "2.30 or later",
};

/* An older one lacks what is looked for next. */
static lap_status_t check_version(const lap_nccl_api_t *api)
{
    int version = 0;
    LAP_TRY(lap_nccl_check(api, api->ncclGetVersion(&version), "ncclGetVersion"));
    if (version >= LAP_NCCL_LEAST)
        return LAP_OK;
    return lap_error(
        LAP_ERR_UNSUPPORTED,
        "NCCL here is %d.%d.%d, expected 2.30 or later (LAP_NCCL); on one host, cuda_ipc "
        "needs none",
        version / 10000, version % 10000 / 100, version % 100);
}

static lap_status_t find_all(lap_nccl_api_t *api)
{
#define FIND(name, args) LAP_TRY(lap_library_find(&library, api->library, #name, &api->name));
    FIND(ncclGetErrorString, )
    FIND(ncclGetLastError, )
    FIND(ncclGetVersion, )
    LAP_TRY(check_version(api));
    LAP_NCCL_CALLS(FIND)
#undef FIND
    return LAP_OK;
}

lap_status_t lap_nccl_load(lap_nccl_api_t *api)
{
    memset(api, 0, sizeof(*api));
    LAP_TRY(lap_library_open(&library, &api->library));
    const lap_status_t status = find_all(api);
    if (status != LAP_OK) { /* nothing of it runs yet */
        dlclose(api->library);
        api->library = NULL;
    }
    return status;
}

lap_status_t lap_nccl_check(const lap_nccl_api_t *api, ncclResult_t result, const char *what)
{
    if (result == ncclSuccess || result == ncclInProgress)
        return LAP_OK;
    const lap_status_t status = result == ncclRemoteError    ? LAP_ERR_PEER_LOST
                                : result == ncclInvalidUsage ? LAP_ERR_UNSUPPORTED
                                                             : LAP_ERR_SYSTEM;
    const char *sentence = api->ncclGetLastError(NULL);
    return lap_error(status, "%s of NCCL failed: %s%s%s", what, api->ncclGetErrorString(result),
                     sentence && *sentence ? ": " : "", sentence ? sentence : "");
}

lap_status_t lap_nccl_version(int *version_p)
{
    lap_nccl_api_t api;
    int version = 0;
    LAP_TRY(lap_nccl_load(&api));
    LAP_TRY(lap_nccl_check(&api, api.ncclGetVersion(&version), "ncclGetVersion"));
    *version_p = version;
    return LAP_OK;
}
