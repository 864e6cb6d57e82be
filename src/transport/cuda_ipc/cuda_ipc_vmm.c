/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of GPUs by way of virtual memory management: a piece of physical memory, known to other
 * processes by a file descriptor, and addresses at which each maps it. It lives as long as anybody
 * has it mapped: who made it may unmap it first. For machines where CUDA IPC does not work, as in
 * some containers.
 */
#include "transport/cuda_ipc/cuda_ipc.h"

static CUmemAllocationProp properties_of(const lap_cuda_device_t *device)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->gpu},
    };
}

static size_t round_up(size_t value, size_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

lap_status_t lap_vmm_size(lap_cuda_device_t *device, size_t *bytes)
{
    const CUmemAllocationProp properties = properties_of(device);
    size_t multiple;
    LAP_TRY(lap_cuda_check(&device->api,
                           device->api.cuMemGetAllocationGranularity(
                               &multiple, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                           "cuMemGetAllocationGranularity"));
    *bytes = round_up(*bytes, multiple);
    return LAP_OK;
}

/* ---- mapping ---- */

static lap_status_t map_at(const lap_cuda_device_t *device, CUdeviceptr base, size_t bytes,
                           CUmemGenericAllocationHandle handle)
{
    const lap_cuda_api_t *api = &device->api;
    const CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->gpu},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    LAP_TRY(lap_cuda_check(api, api->cuMemMap(base, bytes, 0, handle, 0), "cuMemMap"));
    lap_status_t status =
        lap_cuda_check(api, api->cuMemSetAccess(base, bytes, &access, 1), "cuMemSetAccess");
    if (status != LAP_OK)
        (void)api->cuMemUnmap(base, bytes);
    return status;
}

/* Between enter and leave of the device. */
static lap_status_t map_handle(lap_cuda_device_t *device, size_t bytes,
                               CUmemGenericAllocationHandle handle, char **base_p)
{
    const lap_cuda_api_t *api = &device->api;
    CUdeviceptr base;
    LAP_TRY(lap_cuda_check(api, api->cuMemAddressReserve(&base, bytes, 0, 0, 0),
                           "cuMemAddressReserve"));
    lap_status_t status = map_at(device, base, bytes, handle);
    if (status != LAP_OK) {
        (void)api->cuMemAddressFree(base, bytes);
        return status;
    }
    *base_p = (char *)(uintptr_t)base;
    return LAP_OK;
}

void lap_vmm_unmap(lap_cuda_device_t *device, size_t bytes, char *base)
{
    const lap_cuda_api_t *api = &device->api;
    if (!base || lap_cuda_enter(device) != LAP_OK)
        return;
    (void)api->cuMemUnmap((CUdeviceptr)(uintptr_t)base, bytes);
    (void)api->cuMemAddressFree((CUdeviceptr)(uintptr_t)base, bytes);
    (void)lap_cuda_leave(device, LAP_OK);
}

/* ---- memory ---- */

static lap_status_t create(lap_cuda_device_t *device, size_t bytes,
                           CUmemGenericAllocationHandle *handle_p, char **base_p)
{
    const lap_cuda_api_t *api = &device->api;
    const CUmemAllocationProp properties = properties_of(device);
    CUmemGenericAllocationHandle handle;
    char *base;
    const CUresult result = api->cuMemCreate(&handle, bytes, &properties, 0);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return lap_cuda_no_memory(device, bytes);
    LAP_TRY(lap_cuda_check(api, result, "cuMemCreate"));
    lap_status_t status = map_handle(device, bytes, handle, &base);
    if (status != LAP_OK)
        goto err_release;
    status = lap_cuda_clear(device, (CUdeviceptr)(uintptr_t)base, bytes);
    if (status != LAP_OK)
        goto err_unmap;
    *handle_p = handle;
    *base_p = base;
    return LAP_OK;

err_unmap:
    lap_vmm_unmap(device, bytes, base);
err_release:
    (void)api->cuMemRelease(handle);
    return status;
}

lap_status_t lap_vmm_create(lap_cuda_device_t *device, size_t bytes,
                            CUmemGenericAllocationHandle *handle_p, char **base_p)
{
    LAP_TRY(lap_cuda_enter(device));
    return lap_cuda_leave(device, create(device, bytes, handle_p, base_p));
}

lap_status_t lap_vmm_export(lap_cuda_device_t *device, CUmemGenericAllocationHandle handle,
                            int *fd_p)
{
    const lap_cuda_api_t *api = &device->api;
    LAP_TRY(lap_cuda_enter(device));
    return lap_cuda_leave(
        device, lap_cuda_check(api,
                               api->cuMemExportToShareableHandle(
                                   fd_p, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                               "cuMemExportToShareableHandle"));
}

/* A mapping keeps what it maps: the handle goes at once. */
static lap_status_t import(lap_cuda_device_t *device, size_t bytes, int fd, char **base_p)
{
    const lap_cuda_api_t *api = &device->api;
    CUmemGenericAllocationHandle handle;
    LAP_TRY(
        lap_cuda_check(api,
                       api->cuMemImportFromShareableHandle(
                           &handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                       "cuMemImportFromShareableHandle"));
    const lap_status_t status = map_handle(device, bytes, handle, base_p);
    (void)api->cuMemRelease(handle);
    return status;
}

lap_status_t lap_vmm_import(lap_cuda_device_t *device, size_t bytes, int fd, char **base_p)
{
    LAP_TRY(lap_cuda_enter(device));
    return lap_cuda_leave(device, import(device, bytes, fd, base_p));
}

void lap_vmm_release(lap_cuda_device_t *device, CUmemGenericAllocationHandle handle)
{
    if (handle == 0 || lap_cuda_enter(device) != LAP_OK)
        return;
    (void)device->api.cuMemRelease(handle);
    (void)lap_cuda_leave(device, LAP_OK);
}
