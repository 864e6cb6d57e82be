/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pass "signals": where streams count the signals of a call, a CONSUME step does so after the last
 * of them, on a stream that has no later steps, if there is one.
 */
#include "core/status.h"
#include "schedule/lower.h"
#include "schedule/vclock.h"

static bool is_signal(const lap_schedule_t *schedule, uint32_t step)
{
    return lap_step_waits(schedule, step) || lap_step_sends(schedule, step);
}

/* ---- where CONSUME goes ---- */

/* After step `last`, on a stream; LAP_NO_STEP: there is no signal. */
typedef struct insert_point {
    uint32_t last;
    uint16_t stream;
} insert_point_t;

static insert_point_t find_insert_point(const lap_schedule_t *schedule)
{
    uint32_t last_steps[LAP_STREAMS], last_signals[LAP_STREAMS];
    insert_point_t point = {LAP_NO_STEP, LAP_STREAM_COMPUTE};
    for (int s = 0; s < LAP_STREAMS; s++)
        last_steps[s] = last_signals[s] = LAP_NO_STEP;
    for (uint32_t i = 0; i < schedule->nsteps; i++) {
        const uint16_t stream = schedule->steps[i].stream;
        last_steps[stream] = i;
        if (is_signal(schedule, i)) {
            last_signals[stream] = i;
            point = (insert_point_t){i, stream};
        }
    }
    for (int s = 0; s < LAP_STREAMS; s++)
        if (last_signals[s] != LAP_NO_STEP && last_steps[s] == last_signals[s] &&
            last_steps[point.stream] != last_signals[point.stream])
            point.stream = (uint16_t)s;
    return point;
}

/*
 * Inserts CONSUME. If it is on the stream of the last signal, steps that depend on that signal depend on
 * CONSUME instead, so that the end of the call need not wait for both.
 */
static void insert(lap_schedule_t *schedule, insert_point_t point)
{
    const uint32_t at = point.last + 1;
    lap_step_t *steps = schedule->steps;
    const lap_step_t consume = {.kind = LAP_STEP_CONSUME,
                                .stream = point.stream,
                                .origin = steps[point.last].origin,
                                .signal = LAP_SIGNAL_NONE};
    const bool here = steps[point.last].stream == point.stream;
    for (uint32_t i = schedule->nsteps - 1; i > at; i--)
        steps[i] = steps[i - 1];
    steps[at] = consume;
    for (uint32_t i = at + 1; i < schedule->nsteps; i++)
        for (uint16_t d = 0; d < steps[i].ndeps; d++) {
            uint32_t *dep = &schedule->deps[steps[i].first_dep + d];
            *dep += *dep > point.last || (*dep == point.last && here);
        }
}

static void add_consume(lap_schedule_t *schedule)
{
    uint16_t first = LAP_STREAM_COMPUTE;
    const insert_point_t point = find_insert_point(schedule);
    for (uint32_t i = 0; i < schedule->nsteps; i++)
        first = i == 0 || schedule->steps[i].stream < first ? schedule->steps[i].stream : first;
    const lap_step_t consume = {
        .kind = LAP_STEP_CONSUME, .stream = first, .signal = LAP_SIGNAL_NONE};
    lap_add_step(schedule, &consume);
    if (point.last != LAP_NO_STEP && schedule->status == LAP_OK)
        insert(schedule, point);
}

lap_status_t lap_lower_signals(lap_schedule_t *schedule, const lap_target_t *target)
{
    lap_vclocks_t clocks;
    lap_vclock_t signals = {{0}};
    (void)target;
    add_consume(schedule);
    const lap_status_t status = lap_vclocks_init(&clocks, schedule);
    for (uint32_t i = 0; i < schedule->nsteps && status == LAP_OK; i++) {
        const bool ends = schedule->steps[i].kind == LAP_STEP_CONSUME;
        lap_vclocks_visit(&clocks, i, ends ? &signals : NULL);
        if (is_signal(schedule, i))
            signals.end[schedule->steps[i].stream] = i + 1;
    }
    lap_vclocks_clear(&clocks);
    return status != LAP_OK ? status : schedule->status;
}

/* ---- the proof ---- */

lap_status_t lap_check_consume(const lap_schedule_t *schedule)
{
    lap_vclocks_t clocks;
    lap_vclock_t signals = {{0}};
    lap_schedule_t walked = *schedule; /* nothing is added to it */
    uint32_t consume = LAP_NO_STEP, last = LAP_NO_STEP, count = 0;
    lap_status_t status = lap_vclocks_init(&clocks, &walked);
    for (uint32_t i = 0; i < schedule->nsteps && status == LAP_OK; i++) {
        lap_vclocks_visit(&clocks, i, NULL);
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
        right = signals.end[s] <= clocks.begins[consume].end[s];
    if (status == LAP_OK && !right)
        status = lap_error(LAP_ERR_CHECK,
                           "rank %d %s consumes its signals in %u steps, expected one that comes "
                           "after all signals of the call",
                           schedule->rank, schedule->method, (unsigned)count);
    lap_vclocks_clear(&clocks);
    return status;
}
