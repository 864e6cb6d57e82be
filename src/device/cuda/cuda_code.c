/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of layers above: each fatbin is loaded once into a device, when the layer that has it
 * asks for that, and belongs to the device from then on.
 */
#include "device/cuda/cuda.h"
#include "util/alloc.h"

struct lap_cuda_loaded {
    const lap_cuda_code_t *code;
    CUlibrary library;
    CUdeviceptr memory;    /* of all streams, one after the other; 0: none */
    CUfunction *functions; /* as code->kernels */
    lap_cuda_loaded_t *next;
};

static lap_cuda_loaded_t *find(const lap_cuda_device_t *device, const lap_cuda_code_t *code)
{
    lap_cuda_loaded_t *loaded = device->loaded;
    while (loaded && loaded->code != code)
        loaded = loaded->next;
    return loaded;
}

static void unload(lap_cuda_device_t *device, lap_cuda_loaded_t *loaded)
{
    const lap_cuda_api_t *api = &device->api;
    if (loaded->memory)
        (void)api->cuMemFree(loaded->memory);
    if (loaded->library)
        (void)api->cuLibraryUnload(loaded->library);
    lap_free(loaded->functions);
    lap_free(loaded);
}

void lap_cuda_code_unload(lap_cuda_device_t *device)
{
    while (device->loaded) {
        lap_cuda_loaded_t *loaded = device->loaded;
        device->loaded = loaded->next;
        unload(device, loaded);
    }
}

/* A GPU that has less shared memory than a kernel would take refuses the launch, if there is one. */
static lap_status_t load_kernel(lap_cuda_device_t *device, CUlibrary library,
                                const struct lap_cuda_kernel_name *named, CUfunction *function)
{
    const lap_cuda_api_t *api = &device->api;
    const size_t most = (size_t)device->shared_most;
    const int shared = (int)(named->shared < most ? named->shared : most);
    CUkernel kernel;
    LAP_TRY(
        lap_cuda_check(api, api->cuLibraryGetKernel(&kernel, library, named->name), named->name));
    LAP_TRY(lap_cuda_check(api, api->cuKernelGetFunction(function, kernel), named->name));
    if (named->shared > 0)
        LAP_TRY(
            lap_cuda_check(api,
                           api->cuFuncSetAttribute(
                               *function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared),
                           named->name));
    return lap_cuda_check(api, api->cuFuncLoad(*function), named->name);
}

static lap_status_t load(lap_cuda_device_t *device, lap_cuda_loaded_t *loaded)
{
    const lap_cuda_api_t *api = &device->api;
    const lap_cuda_code_t *code = loaded->code;
    loaded->functions = lap_alloc(code->count, sizeof(CUfunction));
    if (!loaded->functions)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the handles of %zu kernels",
                         code->count);
    LAP_TRY(lap_cuda_check(
        api, api->cuLibraryLoadData(&loaded->library, code->fatbin, NULL, NULL, 0, NULL, NULL, 0),
        "cuLibraryLoadData"));
    for (size_t i = 0; i < code->count; i++)
        LAP_TRY(load_kernel(device, loaded->library, &code->kernels[i], &loaded->functions[i]));
    if (code->stream_bytes == 0)
        return LAP_OK;
    return lap_cuda_memory(device, LAP_CUDA_SLOTS * code->stream_bytes, &loaded->memory);
}

static lap_status_t load_new(lap_cuda_device_t *device, const lap_cuda_code_t *code)
{
    lap_cuda_loaded_t *loaded = lap_alloc(1, sizeof(*loaded));
    if (!loaded)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the handles of kernels");
    loaded->code = code;
    const lap_status_t status = load(device, loaded);
    if (status != LAP_OK) {
        unload(device, loaded);
        return status;
    }
    loaded->next = device->loaded;
    device->loaded = loaded;
    return LAP_OK;
}

lap_status_t lap_cuda_code_load(lap_cuda_device_t *device, const lap_cuda_code_t *code)
{
    if (find(device, code))
        return LAP_OK;
    LAP_TRY(lap_cuda_enter(device));
    return lap_cuda_leave(device, load_new(device, code));
}

void *lap_cuda_code_memory(lap_stream_t *stream, const lap_cuda_code_t *code)
{
    const CUdeviceptr memory = find(stream->device, code)->memory;
    return (void *)(uintptr_t)(memory + stream->slot * code->stream_bytes);
}

static lap_status_t launch(lap_stream_t *stream, CUfunction function, const char *name,
                           lap_cuda_grid_t grid, const void *args)
{
    const lap_cuda_api_t *api = &stream->device->api;
    void *params[] = {(void *)(uintptr_t)args};
    LAP_TRY(lap_cuda_flush_stream(stream));
    return lap_cuda_check(api,
                          api->cuLaunchKernel(function, (unsigned)grid.x,
                                              grid.y ? (unsigned)grid.y : 1, 1, grid.threads, 1, 1,
                                              (unsigned)grid.shared, stream->stream, params, NULL),
                          name);
}

lap_status_t lap_cuda_code_launch(lap_stream_t *stream, const lap_cuda_code_t *code, size_t kernel,
                                  lap_cuda_grid_t grid, const void *args)
{
    const lap_cuda_loaded_t *loaded = find(stream->device, code);
    if (grid.x == 0)
        return LAP_OK;
    LAP_TRY(lap_cuda_enter(stream->device));
    return lap_cuda_leave(stream->device, launch(stream, loaded->functions[kernel],
                                                 code->kernels[kernel].name, grid, args));
}
