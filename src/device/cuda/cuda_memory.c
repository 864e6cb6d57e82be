/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a GPU, pinned memory of the host, and whether a GPU reaches a caller's. */
#include <stdio.h>
#include <string.h>

#include "device/cuda/cuda.h"

lap_status_t lap_cuda_no_memory(lap_cuda_device_t *device, size_t bytes)
{
    size_t free = 0, total = 0;
    (void)device->api.cuMemGetInfo(&free, &total);
    return lap_error(LAP_ERR_NO_MEMORY,
                     "no memory for %zu bytes on device cuda: GPU %d has %zu of %zu bytes free",
                     bytes, device->ordinal, free, total);
}

static lap_status_t allocate(lap_cuda_device_t *device, size_t bytes, CUdeviceptr *memory_p)
{
    const lap_cuda_api_t *api = &device->api;
    const CUresult result = api->cuMemAlloc(memory_p, bytes ? bytes : 1);
    return result == CUDA_ERROR_OUT_OF_MEMORY ? lap_cuda_no_memory(device, bytes)
                                              : lap_cuda_check(api, result, "cuMemAlloc");
}

lap_status_t lap_cuda_clear(lap_cuda_device_t *device, CUdeviceptr memory, size_t bytes)
{
    const lap_cuda_api_t *api = &device->api;
    char what[80];
    /* An earlier failure is reported as such: it is not the fault of this memory. */
    const CUresult before = api->cuStreamQuery(device->internal);
    if (before != CUDA_ERROR_NOT_READY)
        LAP_TRY(lap_cuda_check(api, before, "what the GPU was given before"));
    LAP_TRY(lap_cuda_check(api, api->cuMemsetD8Async(memory, 0, bytes, device->internal),
                           "cuMemsetD8Async"));
    snprintf(what, sizeof(what), "clearing %zu bytes at %#llx, or what ran meanwhile,", bytes,
             (unsigned long long)memory);
    return lap_cuda_check(api, api->cuStreamSynchronize(device->internal), what);
}

lap_status_t lap_cuda_memory(lap_cuda_device_t *device, size_t bytes, CUdeviceptr *memory_p)
{
    CUdeviceptr memory;
    LAP_TRY(allocate(device, bytes, &memory));
    const lap_status_t status = lap_cuda_clear(device, memory, bytes);
    if (status != LAP_OK) {
        (void)device->api.cuMemFree(memory);
        return status;
    }
    *memory_p = memory;
    return LAP_OK;
}

lap_status_t lap_cuda_alloc(lap_device_t *handle, size_t bytes, void **memory_p)
{
    lap_cuda_device_t *device = (lap_cuda_device_t *)handle;
    CUdeviceptr memory;
    LAP_TRY(lap_cuda_enter(device));
    LAP_TRY(lap_cuda_leave(device, allocate(device, bytes, &memory)));
    *memory_p = (void *)(uintptr_t)memory;
    return LAP_OK;
}

void lap_cuda_free(lap_device_t *handle, void *memory)
{
    lap_cuda_device_t *device = (lap_cuda_device_t *)handle;
    if (!memory || lap_cuda_enter(device) != LAP_OK)
        return;
    (void)device->api.cuMemFree((CUdeviceptr)(uintptr_t)memory);
    (void)lap_cuda_leave(device, LAP_OK);
}

/* Memory that was not allocated by CUDA: on some machines GPUs reach all of the host's. */
static lap_status_t check_unknown(const lap_cuda_device_t *device, const char *name)
{
    int reaches = 0;
    (void)device->api.cuDeviceGetAttribute(&reaches, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
                                           device->gpu);
    if (reaches)
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID,
                     "%s lies in memory of the host that GPU %d does not reach, expected memory of "
                     "that GPU, or pinned memory",
                     name, device->ordinal);
}

static lap_status_t check_address(const lap_cuda_device_t *device, const char *name,
                                  CUdeviceptr address)
{
    const lap_cuda_api_t *api = &device->api;
    unsigned type = 0, managed = 0;
    int ordinal = device->ordinal;
    const CUresult result =
        api->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
    if (result == CUDA_ERROR_INVALID_VALUE)
        return check_unknown(device, name);
    LAP_TRY(lap_cuda_check(api, result, "cuPointerGetAttribute"));
    if (type != CU_MEMORYTYPE_DEVICE)
        return LAP_OK;
    LAP_TRY(lap_cuda_check(
        api, api->cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address),
        "cuPointerGetAttribute"));
    LAP_TRY(lap_cuda_check(
        api, api->cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address),
        "cuPointerGetAttribute"));
    if (!managed && ordinal != device->ordinal)
        return lap_error(LAP_ERR_INVALID,
                         "%s lies in the memory of GPU %d, expected that of GPU %d, which this "
                         "rank uses",
                         name, ordinal, device->ordinal);
    return LAP_OK;
}

lap_status_t lap_cuda_check_memory(lap_device_t *handle, const char *name, const void *memory)
{
    lap_cuda_device_t *device = (lap_cuda_device_t *)handle;
    LAP_TRY(lap_cuda_enter(device));
    return lap_cuda_leave(device, check_address(device, name, (CUdeviceptr)(uintptr_t)memory));
}

lap_status_t lap_cuda_pin(lap_cuda_device_t *device, size_t bytes, void **memory_p)
{
    const lap_cuda_api_t *api = &device->api;
    void *memory;
    LAP_TRY(lap_cuda_check(
        api,
        api->cuMemHostAlloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
        "cuMemHostAlloc"));
    memset(memory, 0, bytes);
    *memory_p = memory;
    return LAP_OK;
}

lap_status_t lap_cuda_alloc_shared(lap_device_t *handle, size_t bytes, void **memory_p)
{
    lap_cuda_device_t *device = (lap_cuda_device_t *)handle;
    LAP_TRY(lap_cuda_enter(device));
    return lap_cuda_leave(device, lap_cuda_pin(device, bytes, memory_p));
}

void lap_cuda_free_shared(lap_device_t *handle, void *memory)
{
    lap_cuda_device_t *device = (lap_cuda_device_t *)handle;
    if (!memory || lap_cuda_enter(device) != LAP_OK)
        return;
    (void)device->api.cuMemFreeHost(memory);
    (void)lap_cuda_leave(device, LAP_OK);
}
