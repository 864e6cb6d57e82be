/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times: a kernel writes the GPU's clock into pinned memory, and the host brings it to where it
 * belongs when it has waited for something. Graphs keep the places that their kernels write to.
 *
 * A kernel for that costs as much as others do, so that there are few of them: a time is asked for
 * and launched only with what its stream is given next. If those are signals, they write it; and so
 * they do with those that are asked for after them. Times with nothing between them are one.
 *
 * The GPU's clock is not the host's, and does not even keep its pace. How far they are apart is
 * estimated first, and corrected by every time that comes: it came after the host had launched it,
 * and before the host read it.
 */
#include "device/cuda/cuda.h"
#include "util/alloc.h"
#include "util/clock.h"

#define CLOCK_ROUNDS 8 /* in which the clocks are compared first */

/* The shortest of a few looks at both clocks tells how far they are apart. */
lap_status_t lap_cuda_set_clock(lap_cuda_device_t *device)
{
    const lap_cuda_api_t *api = &device->api;
    const lap_cuda_stamp_t stamp = {device->clock.stamps};
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < CLOCK_ROUNDS; i++) {
        const uint64_t begin = lap_now_ns();
        LAP_TRY(
            lap_cuda_launch_raw(device, device->side, LAP_CUDA_KERNEL_stamp, 1, 1, 1, 1, &stamp));
        LAP_TRY(lap_cuda_check(api, api->cuStreamSynchronize(device->side), "lap_stamp"));
        const uint64_t end = lap_now_ns();
        if (end - begin < least) {
            least = end - begin;
            device->clock.offset = (int64_t)(begin + (end - begin) / 2 - device->clock.stamps[0]);
        }
    }
    device->clock.stamps[0] = 0;
    return LAP_OK;
}

/* With those that are the same; returns how many. */
static size_t give_back(lap_cuda_device_t *device, lap_cuda_time_t *time)
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
        (void)give_back(device, &device->clock.times[i]);
    }
    return LAP_OK;
}

static lap_status_t take(lap_cuda_device_t *device, uint64_t *ns_p, lap_cuda_time_t **time_p)
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
    time->foretold = false;
    time->next = *list;
    *list = time;
}

lap_status_t lap_cuda_await_arrival(lap_cuda_device_t *device, uint64_t *ns_p, uint64_t **stamp_p)
{
    lap_cuda_time_t *time = NULL;
    LAP_TRY(take(device, ns_p, &time));
    await(device, time);
    time->foretold = true;
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

static lap_status_t note_settled(lap_stream_t *stream, const lap_cuda_stamp_t *args)
{
    LAP_TRY(lap_cuda_settle(stream));
    return lap_cuda_launch_in_signal_ctx(stream, LAP_CUDA_KERNEL_stamp, 1, args);
}

lap_status_t lap_cuda_note(lap_stream_t *stream, uint64_t *at)
{
    const lap_cuda_stamp_t args = {at};
    LAP_TRY(lap_cuda_enter(stream->device));
    return lap_cuda_leave(stream->device, note_settled(stream, &args));
}

/* After a signal that runs in the companion, there too: times are in order. */
lap_status_t lap_cuda_stamp_now(lap_stream_t *stream)
{
    const lap_cuda_stamp_t args = {lap_cuda_stamp_before(stream)};
    if (!args.at)
        return LAP_OK;
    return stream->signals_apart
               ? lap_cuda_launch_in_signal_ctx(stream, LAP_CUDA_KERNEL_stamp, 1, &args)
               : lap_cuda_launch_raw(stream->device, stream->stream, LAP_CUDA_KERNEL_stamp, 1, 1, 1,
                                     1, &args);
}

lap_status_t lap_cuda_stamp(lap_stream_t *stream, uint64_t *ns_p)
{
    lap_cuda_device_t *device = stream->device;
    uint64_t **held = lap_cuda_held_place(device, stream);
    lap_cuda_time_t *time = NULL, **last = held ? &device->held.time : &stream->time;
    LAP_TRY(take(device, ns_p, &time));
    if (*last) {
        time->same = (*last)->same;
        (*last)->same = time;
        return LAP_OK;
    }
    await(device, time);
    *last = time;
    if (held)
        *held = time->at;
    return LAP_OK;
}

/* They have been given back: nothing must write them. */
static void forget_asked(lap_cuda_device_t *device)
{
    for (lap_stream_t *stream = device->streams; stream; stream = stream->next)
        stream->time = NULL;
}

/* ---- to where they belong ---- */

/* What times that have come say of the clock. */
typedef struct evidence {
    int64_t least; /* lap_now_ns() less the GPU's clock: no less, as none came before its launch */
    uint64_t last; /* the last that is over, by the GPU's clock; 0: none */
} evidence_t;

static void look_at(const lap_cuda_time_t *time, evidence_t *evidence)
{
    for (; time; time = time->next) {
        const uint64_t ns = __atomic_load_n(time->at, __ATOMIC_ACQUIRE);
        const int64_t least = (int64_t)(time->asked - ns);
        if (ns != 0 && least > evidence->least)
            evidence->least = least;
        if (ns > evidence->last && !time->foretold)
            evidence->last = ns;
    }
}

/* By all that have come, before any of them is told: they stay in order. */
static void correct_clock(lap_cuda_clock_t *clock)
{
    evidence_t evidence = {INT64_MIN, 0};
    look_at(clock->awaited, &evidence);
    for (const lap_cuda_times_t *times = clock->graphs; times; times = times->next)
        look_at(times->first, &evidence);
    const int64_t most = (int64_t)(lap_now_ns() - evidence.last);
    if (clock->offset < evidence.least)
        clock->offset = evidence.least;
    if (evidence.last != 0 && clock->offset > most)
        clock->offset = most;
}

/* Whether the time has come; it is where it belongs then. */
static bool bring(const lap_cuda_device_t *device, const lap_cuda_time_t *time)
{
    const uint64_t ns = __atomic_load_n(time->at, __ATOMIC_ACQUIRE);
    for (; time && ns != 0; time = time->same)
        *time->to = ns + (uint64_t)device->clock.offset;
    return ns != 0;
}

/* Whether all of a graph have come. */
static bool bring_all(const lap_cuda_device_t *device, const lap_cuda_times_t *times)
{
    bool all = true;
    for (const lap_cuda_time_t *time = times->first; time; time = time->next)
        all = bring(device, time) && all;
    return all;
}

void lap_cuda_read_stamps(lap_cuda_device_t *device)
{
    correct_clock(&device->clock);
    for (lap_cuda_time_t **link = &device->clock.awaited; *link;) {
        lap_cuda_time_t *time = *link;
        if (!bring(device, time)) {
            link = &time->next;
            continue;
        }
        *link = time->next;
        (void)give_back(device, time);
    }
    for (lap_cuda_times_t **link = &device->clock.graphs; *link;) {
        lap_cuda_times_t *times = *link;
        times->awaited = !bring_all(device, times);
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
        (void)give_back(device, time);
    }
    forget_asked(device);
}

/* ---- of graphs ---- */

static void give_back_graph_times(lap_cuda_device_t *device, lap_cuda_time_t *first)
{
    while (first) {
        lap_cuda_time_t *time = first;
        first = time->next;
        device->clock.nin_graphs -= give_back(device, time);
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
    give_back_graph_times(device, device->clock.in_graphs);
    device->clock.in_graphs = NULL;
    device->capturing = false;
    forget_asked(device);
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
    give_back_graph_times(device, times->first);
    *times = (lap_cuda_times_t){0};
}
