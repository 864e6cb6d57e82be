/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pending launches: signals that follow one another in a stream become one launch. So do copies of
 * the same rows, or a sum, with the signals after them where the caller allows it: with small matrices
 * most of the time goes into launches. Whatever is pending is launched before anything else, on other
 * streams too. Streams may share a hardware queue, in which a wait blocks all later launches, so
 * that the order of launches must be the order in which the caller issued them.
 *
 * One launch has, in this order: copies, a sum or neither; raises; waits; and the count of the call's
 * signals, if these were the last. Paced signals, which have due times, have launches of their own, of
 * raises or of waits.
 *
 * Copies and a sum may also have raises and waits before them in the same launch. Then all of its
 * blocks wait, on most of the multiprocessors. This is done only where no other rank, which may be the
 * one that is waited for, needs the same multiprocessors.
 */
#include <string.h>

#include "device/cuda/cuda.h"

/* ---- launching ---- */

/* The pending signals as arguments of a launch that also does something else. */
static void fill_signals(const lap_cuda_device_t *device, const lap_stream_t *stream,
                         lap_cuda_signals_t *signals)
{
    const lap_cuda_waits_t *waits = &device->pending.waits;
    const lap_cuda_raises_t *raises = &device->pending.raises;
    signals->control = device->control;
    signals->slot = &device->control->slots[stream->slot];
    signals->lost = device->lost;
    signals->arrived = device->lost + 1 + stream->slot;
    signals->limit_ns = device->limit_ns;
    signals->n = waits->n;
    signals->checks_tag = waits->checks_tag;
    signals->nraises = raises->n;
    signals->nclears = 0; /* see cuda_clear.c */
    signals->ncounted = (uint32_t)device->pending.counted.n;
    signals->consumed = device->pending.counted.consumed;
    signals->calls = device->pending.counted.calls;
    for (size_t i = 0; i < device->pending.counted.n; i++)
        signals->raised[i] = (uint8_t)device->pending.counted.raised[i];
    signals->times.before = waits->n > 0 ? waits->times.before : NULL;
    signals->raise_times.before = raises->n > 0 ? raises->times.before : NULL;
    for (uint32_t i = 0; i < waits->n; i++) {
        signals->at[i] = waits->at[i];
        signals->times.after[i] = waits->times.after[i];
    }
    for (uint32_t i = 0; i < raises->n; i++) {
        signals->raises[i].word = raises->at[i].word;
        signals->raises[i].calls = raises->at[i].calls;
        signals->raises[i].tag = raises->at[i].tag;
        signals->raise_times.after[i] = raises->times.after[i];
    }
}

static lap_status_t launch_pending(lap_cuda_device_t *device, lap_stream_t *stream)
{
    lap_cuda_signals_t signals;
    switch (device->pending.work) {
    case LAP_CUDA_PENDING_MULTICAST:
        fill_signals(device, stream, &device->pending.multicast.signals);
        return lap_cuda_launch_raw(device, stream->stream, LAP_CUDA_KERNEL_multicast,
                                   device->pending.blocks, 1, LAP_CUDA_MULTICAST_THREADS, 1,
                                   &device->pending.multicast);
    case LAP_CUDA_PENDING_SUM:
        fill_signals(device, stream, &device->pending.sum.signals);
        return lap_cuda_launch_raw(device, stream->stream, LAP_CUDA_KERNEL_sum,
                                   device->pending.blocks, 1, LAP_CUDA_THREADS, 1,
                                   &device->pending.sum);
    default:
        break;
    }
    if (device->pending.waits.n == 0 && device->pending.counted.n == 0)
        return lap_cuda_launch_raw(device, stream->stream, LAP_CUDA_KERNEL_raise, 1, 1, 32, 1,
                                   &device->pending.raises);
    if (device->pending.raises.n == 0 && device->pending.counted.n == 0)
        return lap_cuda_launch_raw(device, stream->stream, LAP_CUDA_KERNEL_wait, 1, 1, 32, 1,
                                   &device->pending.waits);
    fill_signals(device, stream, &signals);
    return lap_cuda_launch_raw(device, stream->stream, LAP_CUDA_KERNEL_signal, 1, 1, 32, 1,
                               &signals);
}

lap_status_t lap_cuda_flush(lap_cuda_device_t *device)
{
    lap_stream_t *stream = device->pending.stream;
    if (!stream)
        return LAP_OK;
    device->pending.stream = NULL;
    const lap_status_t status = launch_pending(device, stream);
    device->pending.waits.n = device->pending.raises.n = 0;
    device->pending.work = LAP_CUDA_PENDING_NOTHING;
    return status;
}

static lap_status_t flush_entered(lap_cuda_device_t *device)
{
    LAP_TRY(lap_cuda_enter(device));
    return lap_cuda_leave(device, lap_cuda_flush(device));
}

uint64_t **lap_cuda_pending_stamp(lap_cuda_device_t *device, const lap_stream_t *stream)
{
    if (device->pending.stream != stream)
        return NULL;
    if (device->pending.waits.n > 0)
        return &device->pending.waits.times.after[device->pending.waits.n - 1];
    return device->pending.raises.n > 0
               ? &device->pending.raises.times.after[device->pending.raises.n - 1]
               : NULL;
}

/* ---- signals ---- */

/* Whether one more wait, or raise, can join the pending launch. */
static bool has_room(const lap_cuda_device_t *device, bool wait, bool paced)
{
    const uint32_t waits = device->pending.waits.n, raises = device->pending.raises.n;
    const bool work = device->pending.work != LAP_CUDA_PENDING_NOTHING;
    if (!wait)
        return waits == 0 && raises < (work ? LAP_CUDA_FEW : LAP_CUDA_BATCH);
    if (!work && raises == 0)
        return waits < LAP_CUDA_BATCH;
    return !paced && raises <= LAP_CUDA_FEW && waits < LAP_CUDA_FEW;
}

/* Makes room for a signal in the pending launch, or in a new one after flushing that. */
static lap_status_t make_room(lap_stream_t *stream, bool wait, bool paced)
{
    lap_cuda_device_t *device = stream->device;
    lap_cuda_signal_times_t *times =
        wait ? &device->pending.waits.times : &device->pending.raises.times;
    const uint32_t *n = wait ? &device->pending.waits.n : &device->pending.raises.n;
    if (device->pending.stream != stream || device->pending.paced != paced ||
        !has_room(device, wait, paced))
        LAP_TRY(flush_entered(device));
    if (*n == 0) /* later ones need no time before: it is that after their predecessor */
        times->before = lap_cuda_stamp_before(stream);
    device->pending.stream = stream;
    device->pending.paced = paced;
    device->pending.time = NULL;
    times->after[*n] = NULL;
    return LAP_OK;
}

lap_status_t lap_cuda_stream_wait(lap_stream_t *stream, const lap_cuda_wait_t *wait,
                                  bool checks_tag)
{
    lap_cuda_device_t *device = stream->device;
    lap_cuda_waits_t *waits = &device->pending.waits;
    LAP_TRY(make_room(stream, true, wait->paced));
    waits->control = device->control;
    waits->slot = &device->control->slots[stream->slot];
    waits->lost = device->lost;
    waits->limit_ns = device->limit_ns;
    waits->checks_tag = checks_tag;
    waits->at[waits->n++] = *wait;
    return LAP_OK;
}

/* Whether a pending raise is of this word: raises of a paced word each have a time of their own. */
static bool is_pending(const lap_cuda_device_t *device, const lap_cuda_word_t *word)
{
    for (uint32_t i = 0; device->pending.stream && i < device->pending.raises.n; i++)
        if (device->pending.raises.at[i].word == word)
            return true;
    return false;
}

lap_status_t lap_cuda_stream_raise(lap_stream_t *stream, const lap_cuda_raise_t *raise, bool paced)
{
    lap_cuda_device_t *device = stream->device;
    if (paced && is_pending(device, raise->word))
        LAP_TRY(flush_entered(device));
    LAP_TRY(make_room(stream, false, paced));
    device->pending.raises.paced = paced;
    device->pending.raises.lost = device->lost;
    device->pending.raises.at[device->pending.raises.n++] = *raise;
    return LAP_OK;
}

/* ---- the end of signals ---- */

/* Whether the pending launch can also count the call's signals at its end. */
static bool counts(const lap_cuda_device_t *device, const lap_stream_t *stream,
                   const uint32_t *raised, size_t n)
{
    bool few = device->pending.stream == stream && !device->pending.paced &&
               n <= LAP_CUDA_COUNTED && device->pending.waits.n <= LAP_CUDA_FEW &&
               device->pending.raises.n <= LAP_CUDA_FEW;
    for (size_t i = 0; i < n && few; i++)
        few = raised[i] <= UINT8_MAX;
    return few;
}

static lap_status_t advance(lap_stream_t *stream, uint32_t *consumed, uint32_t *calls,
                            const uint32_t *raised, size_t n)
{
    lap_cuda_device_t *device = stream->device;
    lap_cuda_advance_t args;
    if (counts(device, stream, raised, n)) {
        device->pending.counted = (lap_cuda_counted_t){consumed, calls, raised, n};
        const lap_status_t status = lap_cuda_flush(device);
        device->pending.counted.n = 0;
        return status;
    }
    LAP_TRY(lap_cuda_flush(device));
    for (size_t begin = 0; begin < n; begin += LAP_CUDA_ADVANCE) {
        args.consumed = consumed + begin;
        args.calls = begin == 0 ? calls : NULL;
        args.n = (uint32_t)(n - begin < LAP_CUDA_ADVANCE ? n - begin : LAP_CUDA_ADVANCE);
        memcpy(args.raised, raised + begin, args.n * sizeof(uint32_t));
        LAP_TRY(lap_cuda_launch(stream, LAP_CUDA_KERNEL_advance, 1, 1, 32, 1, &args));
    }
    return LAP_OK;
}

lap_status_t lap_cuda_stream_advance(lap_stream_t *stream, uint32_t *consumed, uint32_t *calls,
                                     const uint32_t *raised, size_t n)
{
    LAP_TRY(lap_cuda_enter(stream->device));
    return lap_cuda_leave(stream->device, advance(stream, consumed, calls, raised, n));
}

/* ---- work with signals before and after it ---- */

/* Whether a timestamp of a pending signal is asked for. */
static bool is_timed(const lap_cuda_device_t *device)
{
    const lap_cuda_waits_t *waits = &device->pending.waits;
    const lap_cuda_raises_t *raises = &device->pending.raises;
    bool timed = (waits->n > 0 && waits->times.before) || (raises->n > 0 && raises->times.before);
    for (uint32_t i = 0; i < waits->n; i++)
        timed = timed || waits->times.after[i];
    for (uint32_t i = 0; i < raises->n; i++)
        timed = timed || raises->times.after[i];
    return timed;
}

/* For work that is to be deferred: pending signals become part of its launch, or are launched. */
static lap_status_t merge_before(lap_stream_t *stream, lap_cuda_signals_t *before)
{
    lap_cuda_device_t *device = stream->device;
    const bool flushes =
        device->pending.stream != stream || device->pending.work != LAP_CUDA_PENDING_NOTHING ||
        device->pending.paced || device->share.shares_sms ||
        device->pending.waits.n > LAP_CUDA_FEW || device->pending.raises.n > LAP_CUDA_FEW ||
        is_timed(device) || stream->time;
    if (flushes) /* first: `before` may be that of pending work */
        LAP_TRY(lap_cuda_flush_stream(stream));
    *before = (lap_cuda_signals_t){.n = 0};
    if (flushes)
        return LAP_OK;
    fill_signals(device, stream, before);
    device->pending.waits.n = device->pending.raises.n = 0;
    return LAP_OK;
}

static void defer_work(lap_stream_t *stream, lap_cuda_pending_work_t work, size_t blocks)
{
    lap_cuda_device_t *device = stream->device;
    device->pending.stream = stream;
    device->pending.paced = false;
    device->pending.time = NULL;
    device->pending.work = work;
    device->pending.blocks = blocks;
}

lap_status_t lap_cuda_defer_sum(lap_stream_t *stream, const lap_cuda_reduce_t *reduce,
                                size_t blocks)
{
    LAP_TRY(merge_before(stream, &stream->device->pending.sum.before));
    stream->device->pending.sum.reduce = *reduce;
    defer_work(stream, LAP_CUDA_PENDING_SUM, blocks);
    return LAP_OK;
}

lap_status_t lap_cuda_defer_copy(lap_stream_t *stream, const lap_cuda_copy_t *copy, size_t blocks)
{
    lap_cuda_device_t *device = stream->device;
    lap_cuda_multicast_t *multicast = &device->pending.multicast;
    const bool more =
        device->pending.stream == stream && device->pending.work == LAP_CUDA_PENDING_MULTICAST &&
        device->pending.waits.n + device->pending.raises.n == 0 && multicast->n < LAP_CUDA_COPIES &&
        multicast->src == copy->src && multicast->rows == copy->rows &&
        multicast->row_bytes == copy->row_bytes && multicast->src_stride == copy->src_stride &&
        multicast->dst_stride == copy->dst_stride && multicast->vector == copy->vector;
    if (!more) {
        LAP_TRY(merge_before(stream, &multicast->before));
        multicast->src = copy->src;
        multicast->rows = copy->rows;
        multicast->row_bytes = copy->row_bytes;
        multicast->dst_stride = copy->dst_stride;
        multicast->src_stride = copy->src_stride;
        multicast->vector = copy->vector;
        multicast->n = 0;
        defer_work(stream, LAP_CUDA_PENDING_MULTICAST, blocks);
    }
    multicast->dst[multicast->n++] = copy->dst;
    return LAP_OK;
}
