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

/* The first stream of which a step has something to send before a wait, and does not come after it. */
static int missing_stream(const lap_past_t *past, const lap_past_t *sent)
{
    int s = 0;
    while (s < LAP_STREAMS && sent->end[s] <= past->end[s])
        s++;
    return s;
}

lap_status_t lap_check_waits(const lap_schedule_t *schedule)
{
    lap_pasts_t pasts;
    lap_past_t sent = {{0}};
    lap_schedule_t walked = *schedule; /* nothing is added to it */
    lap_status_t status = lap_pasts_init(&pasts, &walked);
    for (uint32_t i = 0; i < schedule->nsteps && status == LAP_OK; i++) {
        lap_pasts_take(&pasts, i, NULL);
        const int s = missing_stream(&pasts.begins[i], &sent);
        if (lap_step_waits(schedule, i) && s < LAP_STREAMS) {
            char wait[160], send[160];
            lap_step_describe(schedule, i, wait, sizeof(wait));
            lap_step_describe(schedule, sent.end[s] - 1, send, sizeof(send));
            status = lap_error(LAP_ERR_CHECK,
                               "a wait that may hold up a shared queue: rank %d %s %s does not "
                               "come after %s, which is listed before it",
                               schedule->rank, schedule->method, wait, send);
        }
        if (lap_step_sends(schedule, i))
            sent.end[schedule->steps[i].stream] = i + 1;
    }
    lap_pasts_clear(&pasts);
    return status;
}

lap_status_t lap_lower_waits(lap_schedule_t *schedule, const lap_target_t *target)
{
    (void)target;
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
