/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pass "waits": makes each wait depend on all sends that are listed before it. Then a rank whose
 * steps run one by one, in any order that the dependencies allow, has sent at each wait all that it
 * would have sent in the order of the list. So what lap_schedule_check_in_line proves holds for it,
 * too. The pass adds no other dependencies. In a graph of several calls the streams go on with that from
 * call to call (check_queues.c proves it), so a call has no streams of its own: the second pair becomes the first.
 */
#include "core/status.h"
#include "schedule/lower.h"
#include "schedule/vclock.h"

/* The first stream with a send that the clock does not have; LAP_STREAMS: it has all of them. */
static int missing_stream(const lap_vclock_t *clock, const lap_vclock_t *sent)
{
    int s = 0;
    while (s < LAP_STREAMS && sent->end[s] <= clock->end[s])
        s++;
    return s;
}

lap_status_t lap_check_waits(const lap_schedule_t *schedule)
{
    lap_vclocks_t clocks;
    lap_vclock_t sent = {{0}};
    lap_schedule_t walked = *schedule; /* nothing is added to it */
    lap_status_t status = lap_vclocks_init(&clocks, &walked);
    for (uint32_t i = 0; i < schedule->nsteps && status == LAP_OK; i++) {
        lap_vclocks_visit(&clocks, i, NULL);
        const int s = missing_stream(&clocks.begins[i], &sent);
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
    lap_vclocks_clear(&clocks);
    return status;
}

/* Waits on a second pair would come after what other calls send on the first by links only. */
static void leave_second_pair(lap_schedule_t *schedule)
{
    for (uint32_t i = 0; i < schedule->nsteps; i++) {
        uint16_t *stream = &schedule->steps[i].stream;
        if (*stream == LAP_STREAM_SEND2)
            *stream = LAP_STREAM_SEND;
        else if (*stream == LAP_STREAM_RECEIVE2)
            *stream = LAP_STREAM_RECEIVE;
    }
}

lap_status_t lap_lower_waits(lap_schedule_t *schedule, const lap_target_t *target)
{
    (void)target;
    leave_second_pair(schedule);
    lap_vclocks_t clocks;
    lap_vclock_t sent = {{0}};
    const lap_status_t status = lap_vclocks_init(&clocks, schedule);
    for (uint32_t i = 0; i < schedule->nsteps && status == LAP_OK; i++) {
        lap_vclocks_visit(&clocks, i, lap_step_waits(schedule, i) ? &sent : NULL);
        if (lap_step_sends(schedule, i))
            sent.end[schedule->steps[i].stream] = i + 1;
    }
    lap_vclocks_clear(&clocks);
    return status != LAP_OK ? status : schedule->status;
}
