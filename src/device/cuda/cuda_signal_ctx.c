/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signals while GEMMs run. The blocks of a GEMM fill a multiprocessor, so that a kernel of one
 * warp, which waits for a peer or raises a signal, finds room only when the GEMM ends. Where ranks
 * share a GPU its multiprocessors seldom divide evenly. Those that no part has are for such kernels
 * of all ranks. They are a second green context of each rank, in which each stream has a companion.
 * A launch in the companion waits for the stream. The stream waits for its companion only after a
 * wait, or where everything issued to the stream must have ended.
 *
 * A change of contexts takes some 10 us. So only paced signals go there, which model a slow link.
 */
#include "device/cuda/cuda.h"

static bool is_signal(lap_cuda_kernel_t kernel)
{
    return kernel == LAP_CUDA_KERNEL_wait || kernel == LAP_CUDA_KERNEL_raise ||
           kernel == LAP_CUDA_KERNEL_stamp;
}

/* ---- opening and closing ---- */

static lap_status_t open_inside(lap_cuda_device_t *device)
{
    const lap_cuda_api_t *api = &device->api;
    lap_cuda_signal_ctx_t *signal_ctx = &device->signal_ctx;
    for (int i = 0; i < LAP_CUDA_KERNELS; i++) {
        CUkernel kernel;
        if (!is_signal((lap_cuda_kernel_t)i))
            continue;
        LAP_TRY(lap_cuda_kernel_find(device, (lap_cuda_kernel_t)i, &kernel));
        LAP_TRY(lap_cuda_check(api, api->cuKernelGetFunction(&signal_ctx->kernels[i], kernel),
                               "cuKernelGetFunction"));
        LAP_TRY(lap_cuda_check(api, api->cuFuncLoad(signal_ctx->kernels[i]), "cuFuncLoad"));
    }
    return lap_cuda_check(api, api->cuEventCreate(&signal_ctx->join_event, CU_EVENT_DISABLE_TIMING),
                          "cuEventCreate");
}

static lap_status_t create(lap_cuda_device_t *device, CUdevResource *rest)
{
    const lap_cuda_api_t *api = &device->api;
    lap_cuda_signal_ctx_t *signal_ctx = &device->signal_ctx;
    CUdevResourceDesc description;
    LAP_TRY(lap_cuda_check(api, api->cuDevResourceGenerateDesc(&description, rest, 1),
                           "cuDevResourceGenerateDesc"));
    LAP_TRY(lap_cuda_check(api,
                           api->cuGreenCtxCreate(&signal_ctx->green, description, device->gpu,
                                                 CU_GREEN_CTX_DEFAULT_STREAM),
                           "cuGreenCtxCreate"));
    return lap_cuda_check(api, api->cuCtxFromGreenCtx(&signal_ctx->context, signal_ctx->green),
                          "cuCtxFromGreenCtx");
}

void lap_cuda_signal_ctx_choose(lap_cuda_device_t *device, CUdevResource *rest)
{
    if (rest->type == CU_DEV_RESOURCE_TYPE_SM && rest->sm.smCount > 0 &&
        create(device, rest) != LAP_OK)
        lap_cuda_signal_ctx_close(device);
}

void lap_cuda_signal_ctx_open(lap_cuda_device_t *device)
{
    if (device->signal_ctx.green && (lap_cuda_push(device, device->signal_ctx.context) != LAP_OK ||
                                     lap_cuda_pop(device, open_inside(device)) != LAP_OK))
        lap_cuda_signal_ctx_close(device);
}

void lap_cuda_signal_ctx_close(lap_cuda_device_t *device)
{
    const lap_cuda_api_t *api = &device->api;
    lap_cuda_signal_ctx_t *signal_ctx = &device->signal_ctx;
    if (signal_ctx->join_event && lap_cuda_push(device, device->signal_ctx.context) == LAP_OK) {
        (void)api->cuEventDestroy(signal_ctx->join_event);
        (void)lap_cuda_pop(device, LAP_OK);
    }
    if (signal_ctx->green && !device->dead)
        (void)api->cuGreenCtxDestroy(signal_ctx->green);
    *signal_ctx = (lap_cuda_signal_ctx_t){0};
}

void lap_cuda_signal_ctx_stream(lap_cuda_device_t *device, CUstream *stream_p)
{
    if (device->signal_ctx.green && device->api.cuGreenCtxStreamCreate(
                                        stream_p, device->signal_ctx.green, CU_STREAM_NON_BLOCKING,
                                        device->share.urgent) != CUDA_SUCCESS)
        *stream_p = NULL;
}

/* ---- launching ---- */

static lap_status_t launch_inside(const lap_stream_t *stream, lap_cuda_kernel_t kernel,
                                  unsigned threads, const void *args)
{
    const lap_cuda_device_t *device = stream->device;
    const lap_cuda_api_t *api = &device->api;
    void *params[] = {(void *)(uintptr_t)args};
    LAP_TRY(lap_cuda_check(api,
                           api->cuStreamWaitEvent(stream->signal_stream, device->join_event, 0),
                           "cuStreamWaitEvent"));
    return lap_cuda_check(api,
                          api->cuLaunchKernel(device->signal_ctx.kernels[kernel], 1, 1, 1, threads,
                                              1, 1, 0, stream->signal_stream, params, NULL),
                          "a signal");
}

lap_status_t lap_cuda_launch_in_signal_ctx(lap_stream_t *stream, lap_cuda_kernel_t kernel,
                                           unsigned threads, const void *args)
{
    lap_cuda_device_t *device = stream->device;
    const lap_cuda_api_t *api = &device->api;
    if (!stream->signal_stream)
        return lap_cuda_launch_raw(device, stream->stream, kernel, 1, 1, threads, 1, args);
    LAP_TRY(lap_cuda_check(api, api->cuEventRecord(device->join_event, stream->stream),
                           "cuEventRecord"));
    LAP_TRY(lap_cuda_push(device, device->signal_ctx.context));
    LAP_TRY(lap_cuda_pop(device, launch_inside(stream, kernel, threads, args)));
    if (kernel == LAP_CUDA_KERNEL_stamp)
        stream->times_unjoined = true;
    else
        stream->signals_unjoined = true;
    return kernel == LAP_CUDA_KERNEL_wait ? lap_cuda_join_signals(stream) : LAP_OK;
}

/* The latest record of the event may have been another stream's. */
static lap_status_t record_signals(const lap_stream_t *stream)
{
    const lap_cuda_device_t *device = stream->device;
    return lap_cuda_check(
        &device->api,
        device->api.cuEventRecord(device->signal_ctx.join_event, stream->signal_stream),
        "cuEventRecord");
}

lap_status_t lap_cuda_join_signals(lap_stream_t *stream)
{
    const lap_cuda_device_t *device = stream->device;
    if (!stream->signals_unjoined && !stream->times_unjoined)
        return LAP_OK;
    stream->signals_unjoined = stream->times_unjoined = false;
    LAP_TRY(lap_cuda_push(device, device->signal_ctx.context));
    LAP_TRY(lap_cuda_pop(device, record_signals(stream)));
    return lap_cuda_check(
        &device->api,
        device->api.cuStreamWaitEvent(stream->stream, device->signal_ctx.join_event, 0),
        "cuStreamWaitEvent");
}
