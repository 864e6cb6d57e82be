/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pass "lanes": of independent blocks that a builder listed as one GEMM, every other one goes to
 * the second lane, with its wait. Each block depends on whatever the GEMM depended on, and steps that
 * depended on the GEMM depend on all of its blocks. Blocks that raise signals stay in one lane: a wait
 * in the other would have to come after these raises.
 */
#include "core/status.h"
#include "schedule/lower.h"
#include "schedule/vclock.h"
#include "util/alloc.h"

/* One past the last step that was made from the same GEMM as `first`. */
static uint32_t group_end(const lap_schedule_t *schedule, uint32_t first)
{
    uint32_t end = first + 1;
    while (end < schedule->nsteps && schedule->steps[end].origin == schedule->steps[first].origin)
        end++;
    return end;
}

static bool splits(const lap_schedule_t *schedule, uint32_t first, uint32_t end)
{
    uint32_t gemms = 0;
    for (uint32_t i = first; i < end; i++) {
        const lap_step_t *step = &schedule->steps[i];
        if (step->stream != LAP_STREAM_COMPUTE || step->kind == LAP_STEP_RAISE)
            return false;
        gemms += step->kind == LAP_STEP_GEMM;
    }
    return gemms > 1;
}

/* Sets the streams of a group; a wait is in the lane of the GEMM that follows it. */
static void choose_lanes(lap_schedule_t *schedule, uint32_t first, uint32_t end)
{
    bool second = false;
    for (uint32_t i = first; i < end; i++) {
        lap_step_t *step = &schedule->steps[i];
        step->stream = second ? LAP_STREAM_LANE : LAP_STREAM_COMPUTE;
        second = step->kind == LAP_STEP_GEMM ? !second : second;
    }
}

/*
 * The order that the builder asked for, when all blocks of a GEMM were in one stream, as vector clocks
 * over the streams that steps are in now.
 */
typedef struct order {
    lap_vclock_t streams[LAP_STREAMS];
    lap_vclock_t *ends; /* per step */
} order_t;

/* Orders a group, which was a single GEMM on `stream`, or a single step. */
static void visit(lap_vclocks_t *clocks, order_t *order, uint32_t first, uint32_t end,
                  uint16_t stream)
{
    lap_schedule_t *schedule = clocks->schedule;
    lap_step_t *step = &schedule->steps[first];
    lap_vclock_t needs = order->streams[stream];
    for (uint16_t d = 0; d < step->ndeps; d++)
        lap_vclock_join(&needs, &order->ends[lap_step_dep(schedule, step, d)]);
    lap_vclock_t done = needs;
    step->ndeps = 0;
    for (uint32_t i = first; i < end; i++) {
        lap_vclocks_visit(clocks, i, &needs);
        done.end[schedule->steps[i].stream] = i + 1;
    }
    order->ends[end - 1] = order->streams[stream] = done;
}

static lap_status_t move(lap_schedule_t *schedule, lap_vclocks_t *clocks)
{
    order_t order = {.ends = lap_alloc(schedule->nsteps, sizeof(lap_vclock_t))};
    if (!order.ends)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the lanes of %u steps",
                         schedule->nsteps);
    for (uint32_t first = 0, end; first < schedule->nsteps; first = end) {
        const uint16_t stream = schedule->steps[first].stream;
        end = group_end(schedule, first);
        if (splits(schedule, first, end))
            choose_lanes(schedule, first, end);
        else
            end = first + 1;
        visit(clocks, &order, first, end, stream);
    }
    lap_free(order.ends);
    return schedule->status;
}

lap_status_t lap_lower_lanes(lap_schedule_t *schedule, const lap_target_t *target)
{
    (void)target;
    lap_vclocks_t clocks;
    bool any = false;
    for (uint32_t first = 0; first < schedule->nsteps; first = group_end(schedule, first))
        any = any || splits(schedule, first, group_end(schedule, first));
    if (!any)
        return LAP_OK;
    lap_status_t status = lap_vclocks_init(&clocks, schedule);
    if (status == LAP_OK)
        status = move(schedule, &clocks);
    lap_vclocks_clear(&clocks);
    return status;
}
