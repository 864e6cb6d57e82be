/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timestamps: a kernel writes the GPU's clock into pinned memory, and the host copies it to the
 * caller's memory when it next waits for something. Graphs keep the stamps that their kernels write.
 *
 * A kernel for a timestamp costs as much as any other launch, so that there are few of them. A
 * timestamp is launched only with the next work of its stream. If that is signals, they write it,
 * and also those that are asked for after them. Timestamps with nothing between them are one.
 *
 * The GPU's clock differs from the host's, and drifts. Their offset is estimated first, and corrected
 * by every timestamp: the GPU wrote it after the host had launched it, and before the host read it.
 */
#include "device/cuda/cuda.h"
#include "util/alloc.h"
#include "util/clock.h"

#define CLOCK_ROUNDS 8 /* in which the clocks are compared first */

/* The offset of the clocks, by the shortest of a few readings of both. */
lap_status_t lap_cuda_set_clock(lap_cuda_device_t *device)
{
    const lap_cuda_api_t *api = &device->api;
    const lap_cuda_stamp_t stamp = {device->clock.stamps};
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < CLOCK_ROUNDS; i++) {
        const uint64_t begin = lap_now_ns();
        LAP_TRY(lap_cuda_launch_raw(device, device->internal, LAP_CUDA_KERNEL_stamp, 1, 1, 1, 1,
                                    &stamp));
        LAP_TRY(lap_cuda_check(api, api->cuStreamSynchronize(device->internal), "lap_stamp"));
        const uint64_t end = lap_now_ns();
        if (end - begin < least) {
            least = end - begin;
            device->clock.offset = (int64_t)(begin + (end - begin) / 2 - device->clock.stamps[0]);
        }
    }
    device->clock.stamps[0] = 0;
    return LAP_OK;
}

/* Also frees those that share its stamp; returns how many. */
static size_t free_time(lap_cuda_device_t *device, lap_cuda_time_t *time)
{
    size_t count = 0;
    for (lap_cuda_time_t *same; time; time = same, count++) {
        same = time->same;
        time->same = NULL;
        time->next = device->clock.unused;
        device->clock.unused = time;
    }
    return count;
}

lap_status_t lap_cuda_times_open(lap_cuda_device_t *device)
{
    device->clock.times = lap_alloc(LAP_CUDA_STAMPS, sizeof(*device->clock.times));
    if (!device->clock.times)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the timestamps of a GPU");
    for (size_t i = LAP_CUDA_STAMPS; i-- > 0;) {
        device->clock.times[i].at = &device->clock.stamps[i];
        (void)free_time(device, &device->clock.times[i]);
    }
    return LAP_OK;
}

static lap_status_t alloc_time(lap_cuda_device_t *device, uint64_t *ns_p, lap_cuda_time_t **time_p)
{
    lap_cuda_time_t *time = device->clock.unused;
    if (device->capturing && device->clock.nin_graphs == LAP_CUDA_GRAPH_STAMPS)
        return lap_error(LAP_ERR_UNSUPPORTED, "more than %d timestamps in graphs of a GPU",
                         LAP_CUDA_GRAPH_STAMPS);
    if (!time)
        return lap_error(LAP_ERR_UNSUPPORTED, "more than %d timestamps at once on a GPU",
                         LAP_CUDA_STAMPS);
    device->clock.unused = time->next;
    device->clock.nin_graphs += device->capturing;
    time->to = ns_p;
    *time_p = time;
    return LAP_OK;
}

static void await(lap_cuda_device_t *device, lap_cuda_time_t *time)
{
    lap_cuda_time_t **list = device->capturing ? &device->clock.in_graphs : &device->clock.awaited;
    *time->at = 0;
    time->asked = lap_now_ns();
    time->predicted = false;
    time->next = *list;
    *list = time;
}

lap_status_t lap_cuda_await_arrival(lap_cuda_device_t *device, uint64_t *ns_p, uint64_t **stamp_p)
{
    lap_cuda_time_t *time = NULL;
    LAP_TRY(alloc_time(device, ns_p, &time));
    await(device, time);
    time->predicted = true;
    *stamp_p = time->at;
    return LAP_OK;
}

/* ---- on streams ---- */

uint64_t *lap_cuda_stamp_before(lap_stream_t *stream)
{
    uint64_t *at = stream->time ? stream->time->at : NULL;
    stream->time = NULL;
    return at;
}

static lap_status_t write_time(lap_stream_t *stream, const lap_cuda_stamp_t *args)
{
    LAP_TRY(lap_cuda_flush_stream(stream));
    return lap_cuda_launch_raw(stream->device, stream->stream, LAP_CUDA_KERNEL_stamp, 1, 1, 1, 1,
                               args);
}

lap_status_t lap_cuda_write_time(lap_stream_t *stream, uint64_t *at)
{
    const lap_cuda_stamp_t args = {at};
    LAP_TRY(lap_cuda_enter(stream->device));
    return lap_cuda_leave(stream->device, write_time(stream, &args));
}

lap_status_t lap_cuda_stamp_now(lap_stream_t *stream)
{
    const lap_cuda_stamp_t args = {lap_cuda_stamp_before(stream)};
    if (!args.at)
        return LAP_OK;
    return lap_cuda_launch_raw(stream->device, stream->stream, LAP_CUDA_KERNEL_stamp, 1, 1, 1, 1,
                               &args);
}

lap_status_t lap_cuda_stamp(lap_stream_t *stream, uint64_t *ns_p)
{
    lap_cuda_device_t *device = stream->device;
    uint64_t **pending = lap_cuda_pending_stamp(device, stream);
    lap_cuda_time_t *time = NULL, **last = pending ? &device->pending.time : &stream->time;
    LAP_TRY(alloc_time(device, ns_p, &time));
    if (*last) {
        time->same = (*last)->same;
        (*last)->same = time;
        return LAP_OK;
    }
    await(device, time);
    *last = time;
    if (pending)
        *pending = time->at;
    return LAP_OK;
}

/* They have been freed: nothing may write them. */
static void drop_asked(lap_cuda_device_t *device)
{
    for (lap_stream_t *stream = device->streams; stream; stream = stream->next)
        stream->time = NULL;
}

/* ---- to the callers' memory ---- */

/* Bounds of the clock's offset that follow from timestamps. */
typedef struct bounds {
    int64_t least; /* of the offset: no timestamp was written before its launch */
    uint64_t last; /* the latest timestamp, by the GPU's clock; 0: none. It is not in the future */
} bounds_t;

static void tighten(const lap_cuda_time_t *time, bounds_t *bounds)
{
    for (; time; time = time->next) {
        const uint64_t ns = __atomic_load_n(time->at, __ATOMIC_ACQUIRE);
        const int64_t least = (int64_t)(time->asked - ns);
        if (ns != 0 && least > bounds->least)
            bounds->least = least;
        if (ns > bounds->last && !time->predicted)
            bounds->last = ns;
    }
}

/* By all that are written, before any of them is copied: so they stay in order. */
static void correct_clock(lap_cuda_clock_t *clock)
{
    bounds_t bounds = {INT64_MIN, 0};
    tighten(clock->awaited, &bounds);
    for (const lap_cuda_times_t *times = clock->graphs; times; times = times->next)
        tighten(times->first, &bounds);
    const int64_t most = (int64_t)(lap_now_ns() - bounds.last);
    if (clock->offset < bounds.least)
        clock->offset = bounds.least;
    if (bounds.last != 0 && clock->offset > most)
        clock->offset = most;
}

/* Whether the timestamp is written; then it has been copied to its destinations. */
static bool copy_out(const lap_cuda_device_t *device, const lap_cuda_time_t *time)
{
    const uint64_t ns = __atomic_load_n(time->at, __ATOMIC_ACQUIRE);
    for (; time && ns != 0; time = time->same)
        *time->to = ns + (uint64_t)device->clock.offset;
    return ns != 0;
}

/* Whether all of a graph are written. */
static bool copy_all(const lap_cuda_device_t *device, const lap_cuda_times_t *times)
{
    bool all = true;
    for (const lap_cuda_time_t *time = times->first; time; time = time->next)
        all = copy_out(device, time) && all;
    return all;
}

void lap_cuda_read_stamps(lap_cuda_device_t *device)
{
    correct_clock(&device->clock);
    for (lap_cuda_time_t **link = &device->clock.awaited; *link;) {
        lap_cuda_time_t *time = *link;
        if (!copy_out(device, time)) {
            link = &time->next;
            continue;
        }
        *link = time->next;
        (void)free_time(device, time);
    }
    for (lap_cuda_times_t **link = &device->clock.graphs; *link;) {
        lap_cuda_times_t *times = *link;
        times->awaited = !copy_all(device, times);
        if (times->awaited)
            link = &times->next;
        else
            *link = times->next;
    }
}

void lap_cuda_forget_stamps(lap_cuda_device_t *device)
{
    lap_cuda_read_stamps(device);
    while (device->clock.awaited) {
        lap_cuda_time_t *time = device->clock.awaited;
        device->clock.awaited = time->next;
        (void)free_time(device, time);
    }
    drop_asked(device);
}

/* ---- of graphs ---- */

static void free_graph_times(lap_cuda_device_t *device, lap_cuda_time_t *first)
{
    while (first) {
        lap_cuda_time_t *time = first;
        first = time->next;
        device->clock.nin_graphs -= free_time(device, time);
    }
}

void lap_cuda_times_capture(lap_cuda_device_t *device)
{
    device->capturing = true;
}

void lap_cuda_times_adopt(lap_cuda_device_t *device, lap_cuda_times_t *times)
{
    lap_cuda_times_free(device, times);
    times->first = device->clock.in_graphs;
    device->clock.in_graphs = NULL;
    device->capturing = false;
}

void lap_cuda_times_drop(lap_cuda_device_t *device)
{
    free_graph_times(device, device->clock.in_graphs);
    device->clock.in_graphs = NULL;
    device->capturing = false;
    drop_asked(device);
}

void lap_cuda_times_launch(lap_cuda_device_t *device, lap_cuda_times_t *times)
{
    const uint64_t now = lap_now_ns();
    for (lap_cuda_time_t *time = times->first; time; time = time->next) {
        *time->at = 0;
        time->asked = now;
    }
    if (times->awaited || !times->first)
        return;
    times->awaited = true;
    times->next = device->clock.graphs;
    device->clock.graphs = times;
}

void lap_cuda_times_free(lap_cuda_device_t *device, lap_cuda_times_t *times)
{
    lap_cuda_times_t **link = &device->clock.graphs;
    while (*link && *link != times)
        link = &(*link)->next;
    if (*link)
        *link = times->next;
    free_graph_times(device, times->first);
    *times = (lap_cuda_times_t){0};
}
