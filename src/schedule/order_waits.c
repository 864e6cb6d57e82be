/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of the list as dependencies, as far as it matters: a wait comes after all that is sent
 * before it. Then a rank whose steps run one by one, in any order that the dependencies allow, has
 * sent whatever it sends in line when it gets to a wait, and lap_schedule_check_in_line speaks for
 * it too. Everything else keeps its freedom.
 */
#include "core/status.h"
#include "schedule/schedule.h"
#include "util/alloc.h"

/* What a step, or a stream, has behind it: of each stream, the index after its latest step. */
typedef struct past {
    uint32_t end[LAP_STREAMS];
} past_t;

static void join(past_t *past, const past_t *other)
{
    for (int s = 0; s < LAP_STREAMS; s++)
        if (past->end[s] < other->end[s])
            past->end[s] = other->end[s];
}

static bool waits(const lap_schedule_t *schedule, const lap_step_t *step)
{
    bool found = step->kind == LAP_STEP_WAIT;
    for (uint32_t b = 0; step->kind == LAP_STEP_GEMM && b < step->count; b++)
        found = found || schedule->blocks[step->first + b].wait_signal != LAP_NO_SIGNAL;
    return found;
}

static bool sends(const lap_schedule_t *schedule, const lap_step_t *step)
{
    bool found = step->kind == LAP_STEP_PUT || step->kind == LAP_STEP_RAISE;
    for (uint32_t b = 0; step->kind == LAP_STEP_GEMM && b < step->count; b++)
        found = found || schedule->blocks[step->first + b].raise_signal != LAP_NO_SIGNAL;
    return found;
}

lap_status_t lap_schedule_order_waits(lap_schedule_t *schedule)
{
    past_t streams[LAP_STREAMS] = {{{0}}};
    uint32_t sent[LAP_STREAMS] = {0}; /* of each stream, the index after its latest that sends */
    past_t *pasts = lap_alloc(schedule->nsteps, sizeof(*pasts));
    if (!pasts)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to order %u steps", schedule->nsteps);
    for (uint32_t i = 0; i < schedule->nsteps; i++) {
        const lap_step_t *step = &schedule->steps[i];
        past_t *past = &streams[step->stream];
        for (uint16_t d = 0; d < step->ndeps; d++)
            join(past, &pasts[step->deps[d]]);
        for (int s = 0; s < LAP_STREAMS && waits(schedule, step); s++) {
            if (sent[s] <= past->end[s])
                continue;
            lap_add_dep(schedule, i, sent[s] - 1);
            schedule->steps[i].nwait_deps++;
            join(past, &pasts[sent[s] - 1]);
        }
        past->end[step->stream] = i + 1;
        pasts[i] = *past;
        if (sends(schedule, step))
            sent[step->stream] = i + 1;
    }
    lap_free(pasts);
    return schedule->status;
}
