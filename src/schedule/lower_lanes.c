/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pass "lanes": of blocks that a builder listed as one GEMM and that need nothing of each other,
 * every other one goes to the second lane, with its wait. All of them come after what the GEMM came
 * after, and what came after the GEMM comes after all of them. Blocks that raise signals stay in
 * one lane: a wait in the other would have to wait for what they raise.
 */
#include "core/status.h"
#include "schedule/lower.h"
#include "schedule/past.h"
#include "util/alloc.h"

/* The steps that were made from the same GEMM as `first`: one past the last of them. */
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

/* The streams of a group; a wait is in the lane of the GEMM that follows it. */
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
 * Which steps a step, or a stream, came after before steps moved to the second lane, in terms of where
 * they are now.
 */
typedef struct meant {
    lap_past_t streams[LAP_STREAMS];
    lap_past_t *ends; /* per step */
} meant_t;

/* Takes a group, which was a single GEMM on its stream; or a single step. */
static void take(lap_pasts_t *pasts, meant_t *meant, uint32_t first, uint32_t end, uint16_t stream)
{
    lap_schedule_t *schedule = pasts->schedule;
    lap_step_t *step = &schedule->steps[first];
    lap_past_t needs = meant->streams[stream];
    for (uint16_t d = 0; d < step->ndeps; d++)
        lap_past_join(&needs, &meant->ends[step->deps[d]]);
    lap_past_t done = needs;
    step->ndeps = 0;
    for (uint32_t i = first; i < end; i++) {
        lap_pasts_take(pasts, i, &needs);
        done.end[schedule->steps[i].stream] = i + 1;
    }
    meant->ends[end - 1] = meant->streams[stream] = done;
}

static lap_status_t move(lap_schedule_t *schedule, lap_pasts_t *pasts)
{
    meant_t meant = {.ends = lap_alloc(schedule->nsteps, sizeof(lap_past_t))};
    if (!meant.ends)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the lanes of %u steps",
                         schedule->nsteps);
    for (uint32_t first = 0, end; first < schedule->nsteps; first = end) {
        const uint16_t stream = schedule->steps[first].stream;
        end = group_end(schedule, first);
        if (splits(schedule, first, end))
            choose_lanes(schedule, first, end);
        else
            end = first + 1;
        take(pasts, &meant, first, end, stream);
    }
    lap_free(meant.ends);
    return schedule->status;
}

lap_status_t lap_lower_lanes(lap_schedule_t *schedule, const lap_target_t *target)
{
    (void)target;
    lap_pasts_t pasts;
    bool any = false;
    for (uint32_t first = 0; first < schedule->nsteps; first = group_end(schedule, first))
        any = any || splits(schedule, first, group_end(schedule, first));
    if (!any)
        return LAP_OK;
    lap_status_t status = lap_pasts_init(&pasts, schedule);
    if (status == LAP_OK)
        status = move(schedule, &pasts);
    lap_pasts_clear(&pasts);
    return status;
}
