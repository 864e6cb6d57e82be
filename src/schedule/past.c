/* SPDX-License-Identifier: Apache-2.0 */
/* A walk along a schedule that knows which steps are over when each step begins. */
#include "schedule/past.h"

#include "core/status.h"
#include "util/alloc.h"

lap_status_t lap_pasts_init(lap_pasts_t *pasts, lap_schedule_t *schedule)
{
    *pasts = (lap_pasts_t){.schedule = schedule};
    pasts->begins = lap_alloc(schedule->nsteps, sizeof(*pasts->begins));
    pasts->ends = lap_alloc(schedule->nsteps, sizeof(*pasts->ends));
    if (pasts->begins && pasts->ends)
        return LAP_OK;
    return lap_error(LAP_ERR_NO_MEMORY, "no memory to order %u steps", schedule->nsteps);
}

void lap_pasts_clear(lap_pasts_t *pasts)
{
    lap_free(pasts->begins);
    lap_free(pasts->ends);
}

/* The latest step that is needed and not over yet; LAP_NO_STEP: there is none. */
static uint32_t latest_needed(const lap_past_t *past, const lap_past_t *needs)
{
    uint32_t latest = LAP_NO_STEP;
    for (int s = 0; s < LAP_STREAMS; s++)
        if (needs->end[s] > past->end[s] && (latest == LAP_NO_STEP || needs->end[s] - 1 > latest))
            latest = needs->end[s] - 1;
    return latest;
}

/* The latest one first: the steps that it comes after are listed before it, and need not be added. */
void lap_pasts_take(lap_pasts_t *pasts, uint32_t index, const lap_past_t *needs)
{
    const lap_step_t *step = &pasts->schedule->steps[index];
    lap_past_t *past = &pasts->streams[step->stream];
    for (uint16_t d = 0; d < step->ndeps; d++)
        lap_past_join(past, &pasts->ends[step->deps[d]]);
    while (needs && pasts->schedule->status == LAP_OK) {
        const uint32_t dep = latest_needed(past, needs);
        if (dep == LAP_NO_STEP)
            break;
        lap_add_dep(pasts->schedule, index, dep);
        lap_past_join(past, &pasts->ends[dep]);
    }
    pasts->begins[index] = *past;
    past->end[step->stream] = index + 1;
    pasts->ends[index] = *past;
}
