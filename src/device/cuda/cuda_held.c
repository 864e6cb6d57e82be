/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is held back on its way to a stream. Signals that follow one another are launched together,
 * and so are copies of the same rows, or a sum, with the signals after them if the caller lets them
 * go together: launches are what small matrices pay for. Nothing overtakes what is held back, not on
 * other streams either: streams may share a queue of the GPU, where a wait holds up what was
 * launched after it, so that the order of launches must be the order in which the caller issued.
 *
 * One launch has, in this order: copies or a sum or neither; raises; waits; and where they were the
 * last signals of a call, these are counted. Paced signals, which may
 * run elsewhere (cuda_signal_ctx.c), are launched by themselves, raises or waits.
 *
 * Copies and a sum may also have raises and waits before them in the same launch. Then all of its
 * blocks wait, which takes most of the multiprocessors: it is done only where no other rank, which may
 * be waited for, needs the same ones.
 */
#include <string.h>

#include "device/cuda/cuda.h"

/* ---- launching ---- */

/* The signals that are held back, as one launch with something else has them. */
static void take_signals(const lap_cuda_device_t *device, const lap_stream_t *stream,
                         lap_cuda_signals_t *signals)
{
    const lap_cuda_waits_t *waits = &device->held.waits;
    const lap_cuda_raises_t *raises = &device->held.raises;
    signals->board = device->board;
    signals->slot = &device->board->slots[stream->slot];
    signals->lost = device->lost;
    signals->arrived = device->lost + 1 + stream->slot;
    signals->limit_ns = device->limit_ns;
    signals->n = waits->n;
    signals->checks_tag = waits->checks_tag;
    signals->nraises = raises->n;
    signals->nclears = 0; /* see cuda_clear.c */
    signals->ncounted = (uint32_t)device->held.counted.n;
    signals->consumed = device->held.counted.consumed;
    signals->calls = device->held.counted.calls;
    for (size_t i = 0; i < device->held.counted.n; i++)
        signals->raised[i] = (uint8_t)device->held.counted.raised[i];
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

static lap_status_t launch_held(lap_cuda_device_t *device, lap_stream_t *stream)
{
    lap_cuda_signals_t signals;
    LAP_TRY(lap_cuda_join_signals(stream)); /* signals keep their order, and read what was noted */
    switch (device->held.work) {
    case LAP_CUDA_HELD_SPREAD:
        take_signals(device, stream, &device->held.spread.signals);
        return lap_cuda_launch_raw(device, stream->stream, LAP_CUDA_KERNEL_spread,
                                   device->held.blocks, 1, LAP_CUDA_SPREADERS, 1,
                                   &device->held.spread);
    case LAP_CUDA_HELD_SUM:
        take_signals(device, stream, &device->held.sum.signals);
        return lap_cuda_launch_raw(device, stream->stream, LAP_CUDA_KERNEL_sum, device->held.blocks,
                                   1, LAP_CUDA_THREADS, 1, &device->held.sum);
    default:
        break;
    }
    if (device->held.waits.n == 0 && device->held.counted.n == 0)
        return lap_cuda_launch_raw(device, stream->stream, LAP_CUDA_KERNEL_raise, 1, 1, 32, 1,
                                   &device->held.raises);
    if (device->held.raises.n == 0 && device->held.counted.n == 0)
        return lap_cuda_launch_raw(device, stream->stream, LAP_CUDA_KERNEL_wait, 1, 1, 32, 1,
                                   &device->held.waits);
    take_signals(device, stream, &signals);
    return lap_cuda_launch_raw(device, stream->stream, LAP_CUDA_KERNEL_signal, 1, 1, 32, 1,
                               &signals);
}

lap_status_t lap_cuda_flush(lap_cuda_device_t *device)
{
    lap_stream_t *stream = device->held.stream;
    lap_status_t status;
    if (!stream)
        return LAP_OK;
    device->held.stream = NULL;
    if (device->held.paced && !device->held.no_gemm_in_flight && device->held.waits.n > 0)
        status =
            lap_cuda_launch_in_signal_ctx(stream, LAP_CUDA_KERNEL_wait, 32, &device->held.waits);
    else if (device->held.paced && !device->held.no_gemm_in_flight)
        status =
            lap_cuda_launch_in_signal_ctx(stream, LAP_CUDA_KERNEL_raise, 32, &device->held.raises);
    else
        status = launch_held(device, stream);
    device->held.waits.n = device->held.raises.n = 0;
    device->held.work = LAP_CUDA_HELD_NOTHING;
    return status;
}

static lap_status_t flush_entered(lap_cuda_device_t *device)
{
    LAP_TRY(lap_cuda_enter(device));
    return lap_cuda_leave(device, lap_cuda_flush(device));
}

uint64_t **lap_cuda_held_place(lap_cuda_device_t *device, const lap_stream_t *stream)
{
    if (device->held.stream != stream)
        return NULL;
    if (device->held.waits.n > 0)
        return &device->held.waits.times.after[device->held.waits.n - 1];
    return device->held.raises.n > 0 ? &device->held.raises.times.after[device->held.raises.n - 1]
                                     : NULL;
}

/* ---- signals ---- */

/* Whether one more wait, or raise, can go with what is held back. */
static bool has_room(const lap_cuda_device_t *device, bool wait, bool paced)
{
    const uint32_t waits = device->held.waits.n, raises = device->held.raises.n;
    const bool work = device->held.work != LAP_CUDA_HELD_NOTHING;
    if (!wait)
        return waits == 0 && raises < (work ? LAP_CUDA_FEW : LAP_CUDA_BATCH);
    if (!work && raises == 0)
        return waits < LAP_CUDA_BATCH;
    return !paced && raises <= LAP_CUDA_FEW && waits < LAP_CUDA_FEW;
}

/* Makes room for a signal: it can go with what is held back, or that has been launched. */
static lap_status_t make_room(lap_stream_t *stream, bool wait, bool paced, bool no_gemm_in_flight)
{
    lap_cuda_device_t *device = stream->device;
    lap_cuda_signal_times_t *times = wait ? &device->held.waits.times : &device->held.raises.times;
    const uint32_t *n = wait ? &device->held.waits.n : &device->held.raises.n;
    if (device->held.stream != stream || device->held.paced != paced ||
        (paced && device->held.no_gemm_in_flight != no_gemm_in_flight) ||
        !has_room(device, wait, paced))
        LAP_TRY(flush_entered(device));
    if (*n == 0) /* a time that was asked for since what is held back is that of its last signal */
        times->before = lap_cuda_stamp_before(stream);
    device->held.stream = stream;
    device->held.paced = paced;
    device->held.no_gemm_in_flight = no_gemm_in_flight;
    device->held.time = NULL;
    times->after[*n] = NULL;
    return LAP_OK;
}

lap_status_t lap_cuda_stream_wait(lap_stream_t *stream, const lap_cuda_wait_t *wait,
                                  bool checks_tag, bool no_gemm_in_flight)
{
    lap_cuda_device_t *device = stream->device;
    lap_cuda_waits_t *waits = &device->held.waits;
    LAP_TRY(make_room(stream, true, wait->paced, no_gemm_in_flight));
    waits->board = device->board;
    waits->slot = &device->board->slots[stream->slot];
    waits->lost = device->lost;
    waits->limit_ns = device->limit_ns;
    waits->checks_tag = checks_tag;
    waits->at[waits->n++] = *wait;
    return LAP_OK;
}

/* Whether a word is raised by what is held back: each raise of a paced one has a time of its own. */
static bool is_held(const lap_cuda_device_t *device, const lap_cuda_word_t *word)
{
    for (uint32_t i = 0; device->held.stream && i < device->held.raises.n; i++)
        if (device->held.raises.at[i].word == word)
            return true;
    return false;
}

lap_status_t lap_cuda_stream_raise(lap_stream_t *stream, const lap_cuda_raise_t *raise, bool paced,
                                   bool no_gemm_in_flight)
{
    lap_cuda_device_t *device = stream->device;
    if (paced && is_held(device, raise->word))
        LAP_TRY(flush_entered(device));
    LAP_TRY(make_room(stream, false, paced, no_gemm_in_flight));
    device->held.raises.paced = paced;
    device->held.raises.lost = device->lost;
    device->held.raises.at[device->held.raises.n++] = *raise;
    return LAP_OK;
}

/* ---- the end of signals ---- */

/* Whether what is held back can count the call when it has been: it is one launch then. */
static bool counts(const lap_cuda_device_t *device, const lap_stream_t *stream,
                   const uint32_t *raised, size_t n)
{
    bool few = device->held.stream == stream && !device->held.paced && n <= LAP_CUDA_COUNTED &&
               device->held.waits.n <= LAP_CUDA_FEW && device->held.raises.n <= LAP_CUDA_FEW;
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
        device->held.counted = (lap_cuda_counted_t){consumed, calls, raised, n};
        const lap_status_t status = lap_cuda_flush(device);
        device->held.counted.n = 0;
        return status;
    }
    LAP_TRY(lap_cuda_flush(device));
    if (stream->signals_apart) /* raises read what it changes */
        LAP_TRY(lap_cuda_join_signals(stream));
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

/* Whether anybody asks when what is held back begins or ends. */
static bool is_timed(const lap_cuda_device_t *device)
{
    const lap_cuda_waits_t *waits = &device->held.waits;
    const lap_cuda_raises_t *raises = &device->held.raises;
    bool timed = (waits->n > 0 && waits->times.before) || (raises->n > 0 && raises->times.before);
    for (uint32_t i = 0; i < waits->n; i++)
        timed = timed || waits->times.after[i];
    for (uint32_t i = 0; i < raises->n; i++)
        timed = timed || raises->times.after[i];
    return timed;
}

/* Work that is to be held: takes the signals that are held back with it, or launches what is. */
static lap_status_t take_before(lap_stream_t *stream, lap_cuda_signals_t *before)
{
    lap_cuda_device_t *device = stream->device;
    const bool apart = device->held.stream != stream ||
                       device->held.work != LAP_CUDA_HELD_NOTHING || device->held.paced ||
                       device->share.crowded || device->held.waits.n > LAP_CUDA_FEW ||
                       device->held.raises.n > LAP_CUDA_FEW || is_timed(device) || stream->time;
    if (apart) /* first: `before` may be that of work that is held back */
        LAP_TRY(lap_cuda_settle(stream));
    *before = (lap_cuda_signals_t){.n = 0};
    if (apart)
        return LAP_OK;
    take_signals(device, stream, before);
    device->held.waits.n = device->held.raises.n = 0;
    return LAP_OK;
}

static void hold_work(lap_stream_t *stream, lap_cuda_held_work_t work, size_t blocks)
{
    lap_cuda_device_t *device = stream->device;
    device->held.stream = stream;
    device->held.paced = device->held.no_gemm_in_flight = false;
    device->held.time = NULL;
    device->held.work = work;
    device->held.blocks = blocks;
}

lap_status_t lap_cuda_hold_sum(lap_stream_t *stream, const lap_cuda_reduce_t *reduce, size_t blocks)
{
    LAP_TRY(take_before(stream, &stream->device->held.sum.before));
    stream->device->held.sum.reduce = *reduce;
    hold_work(stream, LAP_CUDA_HELD_SUM, blocks);
    return LAP_OK;
}

lap_status_t lap_cuda_hold_copy(lap_stream_t *stream, const lap_cuda_copy_t *copy, size_t blocks)
{
    lap_cuda_device_t *device = stream->device;
    lap_cuda_spread_t *spread = &device->held.spread;
    const bool more = device->held.stream == stream && device->held.work == LAP_CUDA_HELD_SPREAD &&
                      device->held.waits.n + device->held.raises.n == 0 &&
                      spread->n < LAP_CUDA_COPIES && spread->src == copy->src &&
                      spread->rows == copy->rows && spread->row_bytes == copy->row_bytes &&
                      spread->src_stride == copy->src_stride &&
                      spread->dst_stride == copy->dst_stride && spread->vector == copy->vector;
    if (!more) {
        LAP_TRY(take_before(stream, &spread->before));
        spread->src = copy->src;
        spread->rows = copy->rows;
        spread->row_bytes = copy->row_bytes;
        spread->dst_stride = copy->dst_stride;
        spread->src_stride = copy->src_stride;
        spread->vector = copy->vector;
        spread->n = 0;
        hold_work(stream, LAP_CUDA_HELD_SPREAD, blocks);
    }
    spread->dst[spread->n++] = copy->dst;
    return LAP_OK;
}
