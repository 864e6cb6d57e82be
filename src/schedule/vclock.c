/* SPDX-License-Identifier: Apache-2.0 */
/* A walk along a schedule with a vector clock for each stream and step. */
#include "schedule/vclock.h"

#include "core/status.h"
#include "util/alloc.h"

lap_status_t lap_vclocks_init(lap_vclocks_t *clocks, lap_schedule_t *schedule)
{
    *clocks = (lap_vclocks_t){.schedule = schedule};
    clocks->begins = lap_alloc(schedule->nsteps, sizeof(*clocks->begins));
    clocks->ends = lap_alloc(schedule->nsteps, sizeof(*clocks->ends));
    if (clocks->begins && clocks->ends)
        return LAP_OK;
    return lap_error(LAP_ERR_NO_MEMORY, "no memory to order %u steps", schedule->nsteps);
}

void lap_vclocks_clear(lap_vclocks_t *clocks)
{
    lap_free(clocks->begins);
    lap_free(clocks->ends);
}

/* The latest step that is needed and that the clock does not have; LAP_NO_STEP: there is none. */
static uint32_t latest_needed(const lap_vclock_t *clock, const lap_vclock_t *needs)
{
    uint32_t latest = LAP_NO_STEP;
    for (int s = 0; s < LAP_STREAMS; s++)
        if (needs->end[s] > clock->end[s] && (latest == LAP_NO_STEP || needs->end[s] - 1 > latest))
            latest = needs->end[s] - 1;
    return latest;
}

/* The latest dependency first: it implies earlier ones, which then need not be added. */
void lap_vclocks_visit(lap_vclocks_t *clocks, uint32_t index, const lap_vclock_t *needs)
{
    const lap_step_t *step = &clocks->schedule->steps[index];
    lap_vclock_t *clock = &clocks->streams[step->stream];
    for (uint16_t d = 0; d < step->ndeps; d++)
        lap_vclock_join(clock, &clocks->ends[lap_step_dep(clocks->schedule, step, d)]);
    while (needs && clocks->schedule->status == LAP_OK) {
        const uint32_t dep = latest_needed(clock, needs);
        if (dep == LAP_NO_STEP)
            break;
        lap_add_dep(clocks->schedule, index, dep);
        lap_vclock_join(clock, &clocks->ends[dep]);
    }
    clocks->begins[index] = *clock;
    clock->end[step->stream] = index + 1;
    clocks->ends[index] = *clock;
}
