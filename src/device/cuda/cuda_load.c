/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the NVIDIA driver and cuBLASLt at run time, and turns what they return into statuses. The
 * runtime library of CUDA is not used.
 */
#include "device/cuda/cuda_load.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "core/library.h"
#include "core/status.h"
#include "lap_config.h"

/* ISO C has no cast from an object's address to a function's; POSIX promises that this works. */
static void set_function(void *field, void *function)
{
    memcpy(field, &function, sizeof(function));
}

static lap_status_t find_call(PFN_cuGetProcAddress_v12000 find, const char *name, int version,
                              void *field)
{
    void *function = NULL;
    if (find(name, &function, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, NULL) != CUDA_SUCCESS ||
        !function)
        return lap_error(
            LAP_ERR_UNSUPPORTED,
            "the NVIDIA driver here has no %s: expected a driver of CUDA 12.5 or later", name);
    set_function(field, function);
    return LAP_OK;
}

static lap_status_t load_driver(lap_cuda_api_t *api)
{
    PFN_cuGetProcAddress_v12000 find;
    api->driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!api->driver)
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "there is no NVIDIA driver here: libcuda.so.1 cannot be loaded");
    void *symbol = dlsym(api->driver, "cuGetProcAddress_v2");
    if (!symbol)
        return lap_error(
            LAP_ERR_UNSUPPORTED,
            "the NVIDIA driver here is too old: expected a driver of CUDA 12.5 or later");
    set_function(&find, symbol);
#define FIND(name, version) LAP_TRY(find_call(find, #name, version, &api->name));
    LAP_CUDA_CALLS(FIND)
#undef FIND
    return LAP_OK;
}

static lap_status_t load_blas(lap_cuda_api_t *api)
{
    static const lap_library_t library = {
        .title = "cuBLASLt",
        .variable = "LAP_CUBLASLT",
        .names = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"},
        .dir = LAP_CUDA_LIBRARY_DIR,
    };
    LAP_TRY(lap_library_open(&library, &api->blas));
#define FIND(name) LAP_TRY(lap_library_find(&library, api->blas, #name, &api->name));
    LAP_CUBLAS_CALLS(FIND)
#undef FIND
    return LAP_OK;
}

lap_status_t lap_cuda_load(lap_cuda_api_t *api)
{
    memset(api, 0, sizeof(*api));
    lap_status_t status = load_driver(api);
    if (status == LAP_OK)
        status = lap_cuda_check(api, api->cuInit(0), "cuInit");
    if (status == LAP_OK)
        status = load_blas(api);
    if (status != LAP_OK)
        lap_cuda_unload(api);
    return status;
}

void lap_cuda_unload(lap_cuda_api_t *api)
{
    if (api->blas)
        dlclose(api->blas);
    if (api->driver)
        dlclose(api->driver);
    api->blas = api->driver = NULL;
}

#define FREE_TEXT 96

/* What of the GPU's memory is free, for a sentence; "" where no context is current to ask in. */
static const char *tell_free(const lap_cuda_api_t *api, char text[FREE_TEXT])
{
    size_t free, total;
    text[0] = '\0';
    if (api->cuMemGetInfo(&free, &total) == CUDA_SUCCESS)
        snprintf(text, FREE_TEXT, ", with %zu of %zu bytes of the GPU free", free, total);
    return text;
}

lap_status_t lap_cuda_check(const lap_cuda_api_t *api, CUresult result, const char *what)
{
    const char *name = "an unknown error", *text = "";
    char free[FREE_TEXT];
    if (result == CUDA_SUCCESS)
        return LAP_OK;
    (void)api->cuGetErrorName(result, &name);
    (void)api->cuGetErrorString(result, &text);
    const lap_status_t status = result == CUDA_ERROR_OUT_OF_MEMORY   ? LAP_ERR_NO_MEMORY
                                : result == CUDA_ERROR_NOT_SUPPORTED ? LAP_ERR_UNSUPPORTED
                                                                     : LAP_ERR_SYSTEM;
    return lap_error(status, "%s failed: the NVIDIA driver says %s (%s)%s", what, name, text,
                     status == LAP_ERR_NO_MEMORY ? tell_free(api, free) : "");
}

lap_status_t lap_cublas_check(const lap_cuda_api_t *api, cublasStatus_t result, const char *what)
{
    char free[FREE_TEXT];
    if (result == CUBLAS_STATUS_SUCCESS)
        return LAP_OK;
    const lap_status_t status = result == CUBLAS_STATUS_ALLOC_FAILED    ? LAP_ERR_NO_MEMORY
                                : result == CUBLAS_STATUS_NOT_SUPPORTED ? LAP_ERR_UNSUPPORTED
                                                                        : LAP_ERR_SYSTEM;
    return lap_error(status, "%s failed: cuBLASLt says %s%s", what,
                     api->cublasLtGetStatusString(result),
                     status == LAP_ERR_NO_MEMORY ? tell_free(api, free) : "");
}
