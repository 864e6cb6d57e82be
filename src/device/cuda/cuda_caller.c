/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caller's own streams. A call in the order of such a stream runs after all earlier work of the
 * stream and before all later work, also while the caller captures a graph from it. The stream may
 * be of another context than the device's, such as the primary context of a GPU of which this rank
 * has a part. Events that are recorded on it belong to that context.
 */
#include "device/cuda/cuda.h"

/* The default streams, which have no context of their own, are those of the current one. */
static lap_status_t context_of(const lap_cuda_device_t *device, CUstream stream,
                               CUcontext *context_p)
{
    const lap_cuda_api_t *api = &device->api;
    CUcontext context = NULL;
    CUgreenCtx green = NULL;
    const CUresult result = api->cuStreamGetCtx(stream, &context, &green);
    if (result == CUDA_ERROR_INVALID_CONTEXT)
        context = device->context;
    else
        LAP_TRY(lap_cuda_check(api, result, "cuStreamGetCtx"));
    if (green)
        LAP_TRY(lap_cuda_check(api, api->cuCtxFromGreenCtx(&context, green), "cuCtxFromGreenCtx"));
    *context_p = context;
    return LAP_OK;
}

/* Between enter and leave nothing else of the device is called: its context need not be current. */
static lap_status_t enter(lap_cuda_device_t *device)
{
    return device->caller.context == device->context
               ? lap_cuda_enter(device)
               : lap_cuda_push(device, device->caller.context);
}

static lap_status_t leave(lap_cuda_device_t *device, lap_status_t status)
{
    return device->caller.context == device->context ? lap_cuda_leave(device, status)
                                                     : lap_cuda_pop(device, status);
}

static lap_status_t make_event(lap_cuda_device_t *device)
{
    const lap_cuda_api_t *api = &device->api;
    CUdevice gpu;
    LAP_TRY(lap_cuda_check(api, api->cuCtxGetDevice(&gpu), "cuCtxGetDevice"));
    if (gpu != device->gpu)
        return lap_error(LAP_ERR_INVALID, "the stream is of GPU %d, expected GPU %d of this rank",
                         (int)gpu, (int)device->gpu);
    return lap_cuda_check(api,
                          api->cuEventCreate(&device->caller.event.event, CU_EVENT_DISABLE_TIMING),
                          "cuEventCreate");
}

static void drop_event(lap_cuda_device_t *device)
{
    if (device->caller.event.event)
        (void)device->api.cuEventDestroy(device->caller.event.event);
    device->caller.event.event = NULL;
}

/* The event belongs to one context: for a stream of another one it is created again. */
static lap_status_t take_context(lap_cuda_device_t *device, CUcontext context)
{
    if (device->caller.context == context && device->caller.event.event)
        return LAP_OK;
    drop_event(device);
    device->caller.context = context;
    device->caller.event.ops = device->base.ops;
    device->caller.event.device = device;
    LAP_TRY(enter(device));
    return leave(device, make_event(device));
}

/* The word is memory of the primary context, which green contexts reach, too. */
lap_status_t lap_cuda_caller_open(lap_cuda_device_t *device)
{
    void *word;
    if (!device->share.green)
        return LAP_OK;
    LAP_TRY(lap_cuda_push(device, device->primary));
    LAP_TRY(lap_cuda_pop(device, lap_cuda_alloc(&device->base, sizeof(uint32_t), &word)));
    device->caller.word = (CUdeviceptr)(uintptr_t)word;
    return LAP_OK;
}

void lap_cuda_caller_close(lap_cuda_device_t *device)
{
    drop_event(device);
    if (device->caller.word)
        (void)device->api.cuMemFree(device->caller.word);
    device->caller.word = 0;
}

/* Whether a graph is captured from it. */
static lap_status_t ask_stream(const lap_cuda_device_t *device, CUstream stream, bool *capturing_p)
{
    const lap_cuda_api_t *api = &device->api;
    CUstreamCaptureStatus state;
    LAP_TRY(lap_cuda_check(api, api->cuStreamIsCapturing(stream, &state), "cuStreamIsCapturing"));
    if (state == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
        return lap_error(LAP_ERR_INVALID,
                         "the stream's capture has been invalidated: end the capture");
    *capturing_p = state == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return LAP_OK;
}

static lap_status_t take_stream(lap_cuda_device_t *device, CUcontext context, CUstream stream,
                                bool *capturing_p)
{
    LAP_TRY(take_context(device, context));
    LAP_TRY(enter(device));
    return leave(device, ask_stream(device, stream, capturing_p));
}

lap_status_t lap_cuda_caller_begin(lap_device_t *handle, void *caller, bool *capturing_p)
{
    lap_cuda_device_t *device = (lap_cuda_device_t *)handle;
    CUcontext context;
    LAP_TRY(context_of(device, caller, &context));
    LAP_TRY(lap_cuda_enter(device));
    const lap_status_t status = take_stream(device, context, caller, capturing_p);
    return status == LAP_OK ? LAP_OK : lap_cuda_leave(device, status);
}

void lap_cuda_caller_end(lap_device_t *handle)
{
    (void)lap_cuda_leave((lap_cuda_device_t *)handle, LAP_OK);
}

lap_status_t lap_cuda_caller_record(lap_device_t *handle, void *caller, lap_event_t **event_p)
{
    lap_cuda_device_t *device = (lap_cuda_device_t *)handle;
    const lap_cuda_api_t *api = &device->api;
    LAP_TRY(enter(device));
    LAP_TRY(
        leave(device, lap_cuda_check(api, api->cuEventRecord(device->caller.event.event, caller),
                                     "cuEventRecord on the caller's stream")));
    *event_p = &device->caller.event;
    return LAP_OK;
}

/*
 * cuMemFree waits for kernels of all streams, but not for a graph that was launched on a stream of
 * a green context, not even where another stream waits for the graph (driver 580.159). So a piece
 * of work follows the wait: without it a caller that frees memory and leaves the waiting to
 * cuMemFree, as PyTorch's empty_cache does, would take that memory from a graph that runs.
 */
static lap_status_t wait_event(lap_cuda_device_t *device, CUstream caller, CUevent event)
{
    const lap_cuda_api_t *api = &device->api;
    LAP_TRY(lap_cuda_check(api, api->cuStreamWaitEvent(caller, event, 0),
                           "cuStreamWaitEvent on the caller's stream"));
    if (!device->share.green)
        return LAP_OK;
    return lap_cuda_check(api, api->cuMemsetD32Async(device->caller.word, 0, 1, caller),
                          "cuMemsetD32Async on the caller's stream");
}

lap_status_t lap_cuda_caller_wait_event(void *caller, lap_event_t *event)
{
    lap_cuda_device_t *device = event->device;
    LAP_TRY(enter(device));
    return leave(device, wait_event(device, caller, event->event));
}

bool lap_cuda_is_capturing(lap_stream_t *stream)
{
    lap_cuda_device_t *device = stream->device;
    CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
    if (lap_cuda_enter(device) != LAP_OK)
        return false;
    (void)device->api.cuStreamIsCapturing(stream->stream, &state);
    (void)lap_cuda_leave(device, LAP_OK);
    return state != CU_STREAM_CAPTURE_STATUS_NONE;
}
