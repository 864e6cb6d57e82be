/* SPDX-License-Identifier: Apache-2.0 */
/* A program that uses the driver by itself: see caller.h. */
#include "caller.h"

#include <lap/lap_cuda.h>

#include "core/world.h"
#include "tap.h"

void caller_went_well(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS)
        tap_ok(false, "%s returns %d", what, (int)result);
}

bool caller_begin(caller_t *caller, lap_group_t *group)
{
    int ordinal;
    *caller = (caller_t){.group = group, .device = test_device(group)};
    if (!tap_ok(caller->device != NULL, "the device has memory of its own") ||
        !tap_success(lap_world_gpu(group->world, &ordinal), "the caller is told its GPU") ||
        !tap_success(lap_cuda_load(&caller->api), "a driver for the caller"))
        return false;
    CALLER_DO(caller, cuDeviceGet(&caller->gpu, ordinal));
    CALLER_DO(caller, cuDevicePrimaryCtxRetain(&caller->context, caller->gpu));
    CALLER_DO(caller, cuCtxPushCurrent(caller->context));
    for (int s = 0; s < CALLER_STREAMS; s++)
        CALLER_DO(caller,
                  cuStreamCreateWithPriority(&caller->streams[s], CU_STREAM_NON_BLOCKING, 0));
    return true;
}

void caller_check_context(caller_t *caller, const char *after)
{
    CUcontext context = NULL;
    CALLER_DO(caller, cuCtxPopCurrent(&context));
    if (context != caller->context)
        tap_ok(false, "after %s the caller's context is current", after);
    CALLER_DO(caller, cuCtxPushCurrent(caller->context));
}

void caller_end(caller_t *caller)
{
    CUcontext context = NULL;
    for (int s = 0; s < CALLER_STREAMS; s++)
        CALLER_DO(caller, cuStreamDestroy(caller->streams[s]));
    CALLER_DO(caller, cuCtxPopCurrent(&context));
    tap_ok(context == caller->context, "at the end the caller's context is still current");
    CALLER_DO(caller, cuDevicePrimaryCtxRelease(caller->gpu));
    lap_cuda_unload(&caller->api);
}
