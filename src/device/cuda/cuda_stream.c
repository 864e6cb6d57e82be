/* SPDX-License-Identifier: Apache-2.0 */
/* Streams and events of the driver, and waits that stall. */
#include <string.h>

#include "device/cuda/cuda.h"
#include "util/alloc.h"
#include "util/clock.h"

#define SLEEP_NS 20000u      /* how long a wait for the GPU sleeps between two looks */
#define DRAIN_NS 3000000000u /* for streams to end when their waits have been ended */

/* ---- launching ---- */

lap_status_t lap_cuda_launch_raw(lap_cuda_device_t *device, CUstream stream,
                                 lap_cuda_kernel_t kernel, size_t grid_x, size_t grid_y,
                                 unsigned block_x, unsigned block_y, const void *args)
{
    static const char *const names[] = {
#define NAME(name) "the kernel lap_" #name,
        LAP_CUDA_KERNEL_LIST(NAME)
#undef NAME
    };
    void *params[] = {(void *)(uintptr_t)args};
    return lap_cuda_check(&device->api,
                          device->api.cuLaunchKernel(device->kernels[kernel], (unsigned)grid_x,
                                                     (unsigned)grid_y, 1, block_x, block_y, 1, 0,
                                                     stream, params, NULL),
                          names[kernel]);
}

lap_status_t lap_cuda_flush_stream(lap_stream_t *stream)
{
    LAP_TRY(lap_cuda_flush(stream->device));
    return lap_cuda_stamp_now(stream);
}

lap_status_t lap_cuda_launch(lap_stream_t *stream, lap_cuda_kernel_t kernel, size_t grid_x,
                             size_t grid_y, unsigned block_x, unsigned block_y, const void *args)
{
    LAP_TRY(lap_cuda_flush_stream(stream));
    return lap_cuda_launch_raw(stream->device, stream->stream, kernel, grid_x, grid_y, block_x,
                               block_y, args);
}

/* ---- streams ---- */

lap_status_t lap_cuda_own_stream(lap_cuda_device_t *device, bool urgent, CUstream *stream_p)
{
    const lap_cuda_api_t *api = &device->api;
    const int priority = urgent ? device->share.urgent : device->share.lazy;
    if (device->share.green)
        return lap_cuda_check(api,
                              api->cuGreenCtxStreamCreate(stream_p, device->share.green,
                                                          CU_STREAM_NON_BLOCKING, priority),
                              "cuGreenCtxStreamCreate");
    return lap_cuda_check(
        api, api->cuStreamCreateWithPriority(stream_p, CU_STREAM_NON_BLOCKING, priority),
        "cuStreamCreateWithPriority");
}

lap_status_t lap_cuda_stream_create(lap_device_t *handle, bool urgent, lap_stream_t **stream_p)
{
    lap_cuda_device_t *device = (lap_cuda_device_t *)handle;
    unsigned slot = 0;
    while (slot < LAP_CUDA_SLOTS && device->slots_used >> slot & 1)
        slot++;
    if (slot == LAP_CUDA_SLOTS)
        return lap_error(LAP_ERR_UNSUPPORTED, "a GPU has %d streams at most", LAP_CUDA_SLOTS);
    lap_stream_t *stream = lap_alloc(1, sizeof(*stream));
    if (!stream)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a stream");
    lap_status_t status = lap_cuda_enter(device);
    if (status == LAP_OK)
        status = lap_cuda_leave(device, lap_cuda_own_stream(device, urgent, &stream->stream));
    if (status != LAP_OK) {
        lap_free(stream);
        return status;
    }
    stream->ops = handle->ops;
    stream->device = device;
    stream->slot = slot;
    stream->next = device->streams;
    device->streams = stream;
    device->slots_used |= (uint64_t)1 << slot;
    memset(&device->control->slots[slot], 0, sizeof(device->control->slots[slot]));
    *stream_p = stream;
    return LAP_OK;
}

void lap_cuda_stream_destroy(lap_stream_t *stream)
{
    lap_cuda_device_t *device = stream->device;
    const lap_cuda_api_t *api = &device->api;
    (void)lap_cuda_stream_synchronize(stream);
    if (lap_cuda_enter(device) == LAP_OK) {
        if (stream->workspace)
            (void)api->cuMemFree(stream->workspace);
        if (stream->scratch)
            (void)api->cuMemFree(stream->scratch);
        for (unsigned i = 0; i < stream->noutgrown; i++)
            (void)api->cuMemFree(stream->outgrown[i]);
        (void)api->cuStreamDestroy(stream->stream);
        (void)lap_cuda_leave(device, LAP_OK);
    }
    lap_stream_t **link = &device->streams;
    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    device->slots_used &= ~((uint64_t)1 << stream->slot);
    lap_free(stream);
}

/* A function that a stream calls, with its copy of the argument. */
typedef struct call {
    lap_stream_t *stream;
    lap_stream_fn_t fn;
    _Alignas(16) unsigned char arg[LAP_STREAM_ARG_BYTES];
} call_t;

/* In a thread of the driver. The sentence of a failure belongs to that thread and stays there. */
static void run_call(void *context)
{
    call_t *call = context;
    const int status = (int)call->fn(call->arg);
    int none = LAP_OK;
    if (status != LAP_OK)
        atomic_compare_exchange_strong(&call->stream->failure, &none, status);
    lap_free(call);
}

lap_status_t lap_cuda_stream_call(lap_stream_t *stream, lap_stream_fn_t fn, const void *arg,
                                  size_t bytes)
{
    lap_cuda_device_t *device = stream->device;
    if (bytes > LAP_STREAM_ARG_BYTES)
        return lap_error(LAP_ERR_INVALID, "the argument of a stream call has %zu bytes, at most %d",
                         bytes, LAP_STREAM_ARG_BYTES);
    call_t *call = lap_alloc(1, sizeof(*call));
    if (!call)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a call on a stream");
    call->stream = stream;
    call->fn = fn;
    if (bytes > 0)
        memcpy(call->arg, arg, bytes);
    lap_status_t status = lap_cuda_enter(device);
    if (status == LAP_OK) {
        status = lap_cuda_flush_stream(stream);
        if (status == LAP_OK)
            status = lap_cuda_check(&device->api,
                                    device->api.cuLaunchHostFunc(stream->stream, run_call, call),
                                    "cuLaunchHostFunc");
        status = lap_cuda_leave(device, status);
    }
    if (status != LAP_OK)
        lap_free(call);
    return status;
}

static lap_status_t synchronize(lap_stream_t *stream)
{
    const lap_cuda_api_t *api = &stream->device->api;
    LAP_TRY(lap_cuda_flush_stream(stream));
    return lap_cuda_check(api, api->cuStreamSynchronize(stream->stream), "cuStreamSynchronize");
}

lap_status_t lap_cuda_stream_synchronize(lap_stream_t *stream)
{
    LAP_TRY(lap_cuda_enter(stream->device));
    LAP_TRY(lap_cuda_leave(stream->device, synchronize(stream)));
    lap_cuda_read_stamps(stream->device);
    const int failure = atomic_exchange(&stream->failure, LAP_OK);
    return failure == LAP_OK ? LAP_OK
                             : lap_error((lap_status_t)failure, "a function on a stream failed");
}

/* ---- events ---- */

lap_status_t lap_cuda_event_create(lap_device_t *handle, lap_event_t **event_p)
{
    lap_cuda_device_t *device = (lap_cuda_device_t *)handle;
    lap_event_t *event = lap_alloc(1, sizeof(*event));
    if (!event)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for an event");
    event->ops = handle->ops;
    event->device = device;
    lap_status_t status = lap_cuda_enter(device);
    if (status == LAP_OK)
        status = lap_cuda_leave(device, lap_cuda_check(&device->api,
                                                       device->api.cuEventCreate(
                                                           &event->event, CU_EVENT_DISABLE_TIMING),
                                                       "cuEventCreate"));
    if (status != LAP_OK) {
        lap_free(event);
        return status;
    }
    *event_p = event;
    return LAP_OK;
}

void lap_cuda_event_destroy(lap_event_t *event)
{
    if (lap_cuda_enter(event->device) == LAP_OK) {
        (void)event->device->api.cuEventDestroy(event->event);
        (void)lap_cuda_leave(event->device, LAP_OK);
    }
    lap_free(event);
}

static lap_status_t record(lap_event_t *event, lap_stream_t *stream)
{
    const lap_cuda_api_t *api = &stream->device->api;
    LAP_TRY(lap_cuda_flush(stream->device));
    /* In a graph that is being made, nobody looks for times before its end. */
    if (!stream->device->capturing)
        LAP_TRY(lap_cuda_stamp_now(stream));
    return lap_cuda_check(api, api->cuEventRecord(event->event, stream->stream), "cuEventRecord");
}

lap_status_t lap_cuda_event_record(lap_event_t *event, lap_stream_t *stream)
{
    LAP_TRY(lap_cuda_enter(stream->device));
    return lap_cuda_leave(stream->device, record(event, stream));
}

static lap_status_t await(lap_stream_t *stream, lap_event_t *event)
{
    const lap_cuda_api_t *api = &stream->device->api;
    LAP_TRY(lap_cuda_flush_stream(stream));
    return lap_cuda_check(api, api->cuStreamWaitEvent(stream->stream, event->event, 0),
                          "cuStreamWaitEvent");
}

lap_status_t lap_cuda_stream_wait_event(lap_stream_t *stream, lap_event_t *event)
{
    LAP_TRY(lap_cuda_enter(stream->device));
    return lap_cuda_leave(stream->device, await(stream, event));
}

/* Spins for a while, then sleeps between looks; calls watch->look now and then. */
static lap_status_t poll_event(lap_event_t *event, const lap_watch_t *watch)
{
    const lap_cuda_api_t *api = &event->device->api;
    const uint64_t start = lap_now_ns();
    uint64_t next_look = start + LAP_WATCH_NS;
    for (;;) {
        const CUresult result = api->cuEventQuery(event->event);
        if (result != CUDA_ERROR_NOT_READY)
            return lap_cuda_check(api, result, "the work in a stream of the GPU");
        const uint64_t now = lap_now_ns();
        if (now >= next_look && watch && watch->look)
            LAP_TRY(watch->look(watch->context));
        if (now >= next_look)
            next_look = now + LAP_WATCH_NS;
        if (now - start >= event->device->base.spin_ns)
            lap_sleep_until_ns(now + SLEEP_NS);
    }
}

lap_status_t lap_cuda_event_synchronize(lap_event_t *event, const lap_watch_t *watch)
{
    LAP_TRY(lap_cuda_enter(event->device));
    LAP_TRY(lap_cuda_leave(event->device, poll_event(event, watch)));
    lap_cuda_read_stamps(event->device);
    return LAP_OK;
}

/* ---- waits that stall ---- */

static bool read_slot(const lap_cuda_slot_t *slot, lap_stall_t *stall_p)
{
    /* Pairs with the release in report(), cuda_signals.cuh. */
    const uint32_t state = __atomic_load_n(&slot->state, __ATOMIC_ACQUIRE);
    const uint32_t number = __atomic_load_n(&slot->number, __ATOMIC_ACQUIRE);
    if (state == LAP_CUDA_RUNS)
        return false;
    const lap_stall_t stall = {
        .buffer = (void *)(uintptr_t)slot->buffer,
        .reason = (const void *)(uintptr_t)slot->reason,
        .peer = slot->peer,
        .signal = slot->signal,
        .count = slot->count,
        .come = slot->come,
        .number = number,
        .mismatch = state == LAP_CUDA_MISMATCH,
    };
    /* The next wait may be writing here already. */
    atomic_thread_fence(memory_order_acquire);
    if (__atomic_load_n(&slot->state, __ATOMIC_ACQUIRE) != state ||
        __atomic_load_n(&slot->number, __ATOMIC_RELAXED) != number || !stall.buffer)
        return false;
    *stall_p = stall;
    return true;
}

/* The slot of a dead GPU keeps its last stall for ever, while that buffer may have been destroyed. */
bool lap_cuda_stall(lap_stream_t *stream, lap_stall_t *stall_p)
{
    return !stream->device->dead &&
           read_slot(&stream->device->control->slots[stream->slot], stall_p);
}

void lap_cuda_client_attach(lap_cuda_device_t *device, lap_cuda_client_t *client)
{
    client->next = device->clients;
    device->clients = client;
}

void lap_cuda_client_detach(lap_cuda_device_t *device, lap_cuda_client_t *client)
{
    lap_cuda_client_t **link = &device->clients;
    while (*link != client)
        link = &(*link)->next;
    *link = client->next;
}

bool lap_cuda_timed_out(lap_device_t *handle, lap_stall_t *stall_p)
{
    const lap_cuda_control_t *control = ((lap_cuda_device_t *)handle)->control;
    /* Pairs with the release in time_out(), cuda_signals.cuh: that wait was reported before. */
    return __atomic_load_n(&control->abort, __ATOMIC_ACQUIRE) == LAP_CUDA_TIMED_OUT &&
           read_slot(&control->late, stall_p);
}

void lap_cuda_abort_waits(lap_device_t *handle)
{
    lap_cuda_device_t *device = (lap_cuda_device_t *)handle;
    __atomic_store_n(&device->control->abort, LAP_CUDA_ABORTED, __ATOMIC_SEQ_CST);
}

/* Called when no wait is in flight, not even in a caller's graph, so that none sets it again. */
static void clear_lost(lap_cuda_device_t *device)
{
    const lap_cuda_api_t *api = &device->api;
    if (lap_cuda_enter(device) != LAP_OK)
        return;
    (void)api->cuMemsetD32Async((CUdeviceptr)(uintptr_t)device->lost, 0, 1, device->internal);
    (void)api->cuStreamSynchronize(device->internal);
    (void)lap_cuda_leave(device, LAP_OK);
}

static bool is_busy(const lap_cuda_api_t *api, CUstream stream)
{
    return stream && api->cuStreamQuery(stream) == CUDA_ERROR_NOT_READY;
}

/* Whether all streams, and an event, have ended in time; a failure ends them, too. */
static bool drain(const lap_cuda_device_t *device, const lap_event_t *until)
{
    const lap_cuda_api_t *api = &device->api;
    const uint64_t deadline = lap_now_ns() + DRAIN_NS;
    const lap_stream_t *stream = device->streams;
    for (;;) {
        while (stream && !is_busy(api, stream->stream))
            stream = stream->next;
        if (!stream && !(until && api->cuEventQuery(until->event) == CUDA_ERROR_NOT_READY))
            return true;
        if (lap_now_ns() >= deadline)
            return false;
        lap_sleep_until_ns(lap_now_ns() + SLEEP_NS);
    }
}

void lap_cuda_abandon(lap_cuda_device_t *device)
{
    if (!device->dead && device->abandoned)
        device->abandoned();
    device->dead = true;
}

/*
 * A rank that was killed may have left the GPU in a state in which nothing ends. Then this process
 * abandons the GPU, and what it has there is freed at the end of the process.
 */
void lap_cuda_release(lap_device_t *handle, lap_event_t *until)
{
    lap_cuda_device_t *device = (lap_cuda_device_t *)handle;
    lap_cuda_abort_waits(handle);
    for (lap_cuda_client_t *client = device->clients; client; client = client->next)
        client->end(client);
    if (lap_cuda_enter(device) != LAP_OK)
        return;
    (void)lap_cuda_flush(device);
    const bool drained = drain(device, until);
    (void)lap_cuda_leave(device, LAP_OK);
    lap_cuda_forget_stamps(device);
    if (!drained) {
        lap_cuda_abandon(device);
        return;
    }
    for (unsigned i = 0; i < LAP_CUDA_SLOTS; i++)
        device->control->slots[i].state = LAP_CUDA_RUNS;
    __atomic_store_n(&device->control->abort, LAP_CUDA_GO, __ATOMIC_SEQ_CST);
    clear_lost(device);
}
