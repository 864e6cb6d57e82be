/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Multicast: one range of addresses that stands for the memory of all ranks of a buffer, each on a
 * GPU of its own behind an NVLink switch: what is written there is written to all. No method uses
 * it yet, and it has never run.
 */
#include <unistd.h>

#include "core/pass.h"
#include "transport/cuda_ipc/cuda_ipc.h"
#include "util/alloc.h"

typedef struct cast {
    lap_buffer_t *buffer;
    CUmemGenericAllocationHandle handle; /* 0: none yet */
    int mine, taken;                     /* descriptors of rank 0's: there, and elsewhere */
} cast_t;

/* Rank 0 makes it, and has a descriptor for the others. */
static lap_status_t make(cast_t *cast)
{
    const struct lap_part *part = cast->buffer->backend;
    const lap_cuda_api_t *api = &part->device->api;
    const CUmulticastObjectProp properties = {
        .numDevices = (unsigned)cast->buffer->group->size,
        .size = part->bytes,
        .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    };
    size_t multiple;
    if (cast->buffer->group->rank != 0)
        return LAP_OK;
    LAP_TRY(lap_cuda_check(
        api,
        api->cuMulticastGetGranularity(&multiple, &properties, CU_MULTICAST_GRANULARITY_MINIMUM),
        "cuMulticastGetGranularity"));
    if (part->bytes % multiple != 0)
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "multicast needs a multiple of %zu bytes, the buffer has %zu", multiple,
                         part->bytes);
    LAP_TRY(lap_cuda_check(api, api->cuMulticastCreate(&cast->handle, &properties),
                           "cuMulticastCreate"));
    return lap_cuda_check(
        api,
        api->cuMemExportToShareableHandle(&cast->mine, cast->handle,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        "cuMemExportToShareableHandle");
}

/* The others take it, and every rank adds its GPU. */
static lap_status_t join(cast_t *cast)
{
    const lap_cuda_device_t *device = lap_part_of(cast->buffer)->device;
    const lap_cuda_api_t *api = &device->api;
    if (cast->buffer->group->rank != 0)
        LAP_TRY(lap_cuda_check(
            api,
            api->cuMemImportFromShareableHandle(&cast->handle, (void *)(intptr_t)cast->taken,
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            "cuMemImportFromShareableHandle"));
    return lap_cuda_check(api, api->cuMulticastAddDevice(cast->handle, device->gpu),
                          "cuMulticastAddDevice");
}

/* When all GPUs have been added. */
static lap_status_t bind(cast_t *cast)
{
    struct lap_part *part = cast->buffer->backend;
    const lap_cuda_api_t *api = &part->device->api;
    LAP_TRY(lap_cuda_check(
        api, api->cuMulticastBindMem(cast->handle, 0, part->handle, 0, part->bytes, 0),
        "cuMulticastBindMem"));
    return lap_vmm_map(part->device, part->bytes, cast->handle, &part->multicast);
}

/* A step of all ranks. */
static lap_status_t together(cast_t *cast, lap_status_t (*step)(cast_t *cast))
{
    lap_cuda_device_t *device = lap_part_of(cast->buffer)->device;
    lap_status_t status = lap_cuda_enter(device);
    if (status == LAP_OK)
        status = lap_cuda_leave(device, step(cast));
    return lap_group_agree(cast->buffer->group, status);
}

static lap_status_t pass(cast_t *cast, int *fds)
{
    LAP_TRY(lap_group_pass_fds(cast->buffer->group, cast->mine, fds));
    cast->taken = fds[0];
    return LAP_OK;
}

lap_status_t lap_multicast_map(lap_buffer_t *buffer)
{
    cast_t cast = {.buffer = buffer, .mine = -1, .taken = -1};
    int *fds = lap_alloc((size_t)buffer->group->size, sizeof(*fds));
    lap_status_t status = LAP_OK;
    if (!fds)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for multicast");
    status = lap_group_agree(buffer->group, status);
    if (status == LAP_OK)
        status = together(&cast, make);
    if (status == LAP_OK)
        status = pass(&cast, fds);
    if (status == LAP_OK)
        status = together(&cast, join);
    if (status == LAP_OK)
        status = together(&cast, bind);
    if (cast.mine >= 0)
        close(cast.mine);
    if (cast.taken >= 0)
        close(cast.taken);
    lap_vmm_release(lap_part_of(buffer)->device, cast.handle);
    lap_free(fds);
    return status;
}
