/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pass "waits": the order of the list as dependencies, as far as it matters. A wait comes after
 * all that is sent before it. Then a rank whose steps run one by one, in any order that the
 * dependencies allow, has sent whatever it sends in line when it gets to a wait, and
 * lap_schedule_check_in_line speaks for it too. Everything else keeps its freedom.
 */
#include "core/status.h"
#include "schedule/lower.h"
#include "schedule/past.h"

lap_status_t lap_lower_waits(lap_schedule_t *schedule)
{
    lap_pasts_t pasts;
    lap_past_t sent = {{0}};
    const lap_status_t status = lap_pasts_init(&pasts, schedule);
    for (uint32_t i = 0; i < schedule->nsteps && status == LAP_OK; i++) {
        lap_pasts_take(&pasts, i, lap_step_waits(schedule, i) ? &sent : NULL);
        if (lap_step_sends(schedule, i))
            sent.end[schedule->steps[i].stream] = i + 1;
    }
    lap_pasts_clear(&pasts);
    return status != LAP_OK ? status : schedule->status;
}
