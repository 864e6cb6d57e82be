/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pass "waits": the order of the list as dependencies, as far as it matters: a wait comes after all that is sent
 * before it. Then a rank whose steps run one by one, in any order that the dependencies allow, has
 * sent whatever it sends in line when it gets to a wait, and lap_schedule_check_in_line speaks for
 * it too. Everything else keeps its freedom.
 *
 * From that order follows as well which signals can never run beside a GEMM of the call.
 */
#include "core/status.h"
#include "schedule/lower.h"
#include "util/alloc.h"

/* What a step, or a stream, has behind it: of each stream, the index after its latest step. */
typedef struct past {
    uint32_t end[LAP_STREAMS];
} past_t;

/* The same when a step begins, which for a GEMM is before its waits, and when it ends. */
typedef struct pasts {
    past_t begin, end;
} pasts_t;

static void join(past_t *past, const past_t *other)
{
    for (int s = 0; s < LAP_STREAMS; s++)
        if (past->end[s] < other->end[s])
            past->end[s] = other->end[s];
}

/* Whether a step may run while a GEMM does: neither has the other behind it. */
static bool is_beside(const lap_schedule_t *schedule, const pasts_t *pasts, uint32_t step,
                      uint32_t gemm)
{
    const uint32_t first = step < gemm ? step : gemm, second = step < gemm ? gemm : step;
    return pasts[second].begin.end[schedule->steps[first].stream] <= first;
}

/* A call without a GEMM is made to run beside those of others. */
static void note_alone(lap_schedule_t *schedule, const pasts_t *pasts)
{
    for (uint32_t i = 0; i < schedule->nsteps; i++) {
        bool multiplies = false, beside = false;
        for (uint32_t j = 0; j < schedule->nsteps; j++)
            if (schedule->steps[j].kind == LAP_STEP_GEMM) {
                multiplies = true;
                beside = beside || is_beside(schedule, pasts, i, j);
            }
        schedule->steps[i].alone = multiplies && !beside;
    }
}

lap_status_t lap_lower_waits(lap_schedule_t *schedule)
{
    past_t streams[LAP_STREAMS] = {{{0}}};
    uint32_t sent[LAP_STREAMS] = {0}; /* of each stream, the index after its latest that sends */
    pasts_t *pasts = lap_alloc(schedule->nsteps, sizeof(*pasts));
    if (!pasts)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to order %u steps", schedule->nsteps);
    for (uint32_t i = 0; i < schedule->nsteps; i++) {
        const lap_step_t *step = &schedule->steps[i];
        past_t *past = &streams[step->stream];
        for (uint16_t d = 0; d < step->ndeps; d++)
            join(past, &pasts[step->deps[d]].end);
        pasts[i].begin = *past;
        for (int s = 0; s < LAP_STREAMS && lap_step_waits(schedule, i); s++) {
            if (sent[s] <= past->end[s])
                continue;
            lap_add_dep(schedule, i, sent[s] - 1);
            schedule->steps[i].nwait_deps++;
            join(past, &pasts[sent[s] - 1].end);
        }
        if (step->kind != LAP_STEP_GEMM)
            pasts[i].begin = *past;
        past->end[step->stream] = i + 1;
        pasts[i].end = *past;
        if (lap_step_sends(schedule, i))
            sent[step->stream] = i + 1;
    }
    note_alone(schedule, pasts);
    lap_free(pasts);
    return schedule->status;
}
