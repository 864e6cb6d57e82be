/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pass "signals": where streams count the signals of a call, a CONSUME step counts them when the
 * last one is over, on a stream that has nothing left to do, if there is one. And signals learn
 * whether a GEMM of the call can be in flight, so that a device may give them more of itself.
 */
#include "core/status.h"
#include "schedule/lower.h"
#include "schedule/past.h"

static bool is_signal(const lap_schedule_t *schedule, uint32_t step)
{
    return lap_step_waits(schedule, step) || lap_step_sends(schedule, step);
}

/* ---- where signals are over ---- */

/* Where CONSUME goes: after step `last`, on a stream; LAP_NO_STEP: there is no signal. */
typedef struct spot {
    uint32_t last;
    uint16_t stream;
} spot_t;

static spot_t find_spot(const lap_schedule_t *schedule)
{
    uint32_t last_steps[LAP_STREAMS], last_signals[LAP_STREAMS];
    spot_t spot = {LAP_NO_STEP, LAP_STREAM_COMPUTE};
    for (int s = 0; s < LAP_STREAMS; s++)
        last_steps[s] = last_signals[s] = LAP_NO_STEP;
    for (uint32_t i = 0; i < schedule->nsteps; i++) {
        const uint16_t stream = schedule->steps[i].stream;
        last_steps[stream] = i;
        if (is_signal(schedule, i)) {
            last_signals[stream] = i;
            spot = (spot_t){i, stream};
        }
    }
    for (int s = 0; s < LAP_STREAMS; s++)
        if (last_signals[s] != LAP_NO_STEP && last_steps[s] == last_signals[s] &&
            last_steps[spot.stream] != last_signals[spot.stream])
            spot.stream = (uint16_t)s;
    return spot;
}

/*
 * Inserts CONSUME. What depends on the last signal depends on CONSUME if that is on the same stream,
 * and need not wait for two streams in the end.
 */
static void insert(lap_schedule_t *schedule, spot_t spot)
{
    const uint32_t at = spot.last + 1;
    lap_step_t *steps = schedule->steps;
    const lap_step_t consume = {.kind = LAP_STEP_CONSUME,
                                .stream = spot.stream,
                                .origin = steps[spot.last].origin,
                                .peer = -1,
                                .signal = LAP_NO_SIGNAL};
    const bool here = steps[spot.last].stream == spot.stream;
    for (uint32_t i = schedule->nsteps - 1; i > at; i--)
        steps[i] = steps[i - 1];
    steps[at] = consume;
    for (uint32_t i = at + 1; i < schedule->nsteps; i++)
        for (uint16_t d = 0; d < steps[i].ndeps; d++)
            if (steps[i].deps[d] > spot.last || (steps[i].deps[d] == spot.last && here))
                steps[i].deps[d]++;
}

static void add_consume(lap_schedule_t *schedule)
{
    uint16_t first = LAP_STREAM_COMPUTE;
    const spot_t spot = find_spot(schedule);
    for (uint32_t i = 0; i < schedule->nsteps; i++)
        first = i == 0 || schedule->steps[i].stream < first ? schedule->steps[i].stream : first;
    const lap_step_t consume = {
        .kind = LAP_STEP_CONSUME, .stream = first, .peer = -1, .signal = LAP_NO_SIGNAL};
    lap_add_step(schedule, &consume);
    if (spot.last != LAP_NO_STEP && schedule->status == LAP_OK)
        insert(schedule, spot);
}

/* ---- which GEMMs are in flight ---- */

/* Whether a step may run while a GEMM does: neither comes after the other. */
static bool may_overlap(const lap_pasts_t *pasts, uint32_t step, uint32_t gemm)
{
    const uint32_t first = step < gemm ? step : gemm, second = step < gemm ? gemm : step;
    return pasts->begins[second].end[pasts->schedule->steps[first].stream] <= first;
}

/* A call without a GEMM is made to run at the same time as those of others. */
static void note_gemms(lap_schedule_t *schedule, const lap_pasts_t *pasts)
{
    uint32_t first = 0; /* the first GEMM */
    while (first < schedule->nsteps && schedule->steps[first].kind != LAP_STEP_GEMM)
        first++;
    for (uint32_t i = 0; i < schedule->nsteps; i++) {
        bool overlaps = first == schedule->nsteps || !is_signal(schedule, i);
        for (uint32_t j = first; j < schedule->nsteps && !overlaps; j++)
            overlaps = schedule->steps[j].kind == LAP_STEP_GEMM && may_overlap(pasts, i, j);
        schedule->steps[i].no_gemm_in_flight = !overlaps;
    }
}

lap_status_t lap_lower_signals(lap_schedule_t *schedule, const lap_target_t *target)
{
    lap_pasts_t pasts;
    lap_past_t signals = {{0}};
    (void)target;
    add_consume(schedule);
    const lap_status_t status = lap_pasts_init(&pasts, schedule);
    for (uint32_t i = 0; i < schedule->nsteps && status == LAP_OK; i++) {
        const bool ends = schedule->steps[i].kind == LAP_STEP_CONSUME;
        lap_pasts_take(&pasts, i, ends ? &signals : NULL);
        if (is_signal(schedule, i))
            signals.end[schedule->steps[i].stream] = i + 1;
    }
    if (status == LAP_OK)
        note_gemms(schedule, &pasts);
    lap_pasts_clear(&pasts);
    return status != LAP_OK ? status : schedule->status;
}

/* ---- the proof ---- */

lap_status_t lap_check_consume(const lap_schedule_t *schedule)
{
    lap_pasts_t pasts;
    lap_past_t signals = {{0}};
    lap_schedule_t walked = *schedule; /* nothing is added to it */
    uint32_t consume = LAP_NO_STEP, last = LAP_NO_STEP, count = 0;
    lap_status_t status = lap_pasts_init(&pasts, &walked);
    for (uint32_t i = 0; i < schedule->nsteps && status == LAP_OK; i++) {
        lap_pasts_take(&pasts, i, NULL);
        if (schedule->steps[i].kind == LAP_STEP_CONSUME) {
            consume = i;
            count++;
        } else if (is_signal(schedule, i)) {
            last = i;
            signals.end[schedule->steps[i].stream] = i + 1;
        }
    }
    bool right = count == 1 && (last == LAP_NO_STEP || last < consume);
    for (int s = 0; s < LAP_STREAMS && right; s++)
        right = signals.end[s] <= pasts.begins[consume].end[s];
    if (status == LAP_OK && !right)
        status = lap_error(LAP_ERR_CHECK,
                           "rank %d %s consumes its signals in %u steps, expected one that comes "
                           "after all signals of the call",
                           schedule->rank, schedule->method, (unsigned)count);
    lap_pasts_clear(&pasts);
    return status;
}
