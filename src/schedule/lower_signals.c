/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pass "signals": notes which signals can never be in flight while a GEMM of the call is, so
 * that a device may give them more of itself.
 */
#include "core/status.h"
#include "schedule/lower.h"
#include "schedule/past.h"

/* Whether a step may run while a GEMM does: neither has the other behind it. */
static bool may_overlap(const lap_pasts_t *pasts, uint32_t step, uint32_t gemm)
{
    const uint32_t first = step < gemm ? step : gemm, second = step < gemm ? gemm : step;
    return pasts->begins[second].end[pasts->schedule->steps[first].stream] <= first;
}

/* A call without a GEMM is made to run at the same time as those of others. */
static void note_gemms(lap_schedule_t *schedule, const lap_pasts_t *pasts)
{
    for (uint32_t i = 0; i < schedule->nsteps; i++) {
        bool multiplies = false, overlaps = false;
        for (uint32_t j = 0; j < schedule->nsteps; j++)
            if (schedule->steps[j].kind == LAP_STEP_GEMM) {
                multiplies = true;
                overlaps = overlaps || may_overlap(pasts, i, j);
            }
        schedule->steps[i].no_gemm_in_flight = multiplies && !overlaps;
    }
}

lap_status_t lap_lower_signals(lap_schedule_t *schedule)
{
    lap_pasts_t pasts;
    const lap_status_t status = lap_pasts_init(&pasts, schedule);
    for (uint32_t i = 0; i < schedule->nsteps && status == LAP_OK; i++)
        lap_pasts_take(&pasts, i, NULL);
    if (status == LAP_OK)
        note_gemms(schedule, &pasts);
    lap_pasts_clear(&pasts);
    return status;
}
