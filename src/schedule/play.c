/* SPDX-License-Identifier: Apache-2.0 */
#include "schedule/play.h"

#include "core/status.h"
#include "util/alloc.h"

struct lap_played_call {
    lap_timeline_call_t call;
    char name[48];
    int rank;
    uint32_t number; /* among the calls of its group */
};

static bool is_kernel(const lap_schedule_t *schedule)
{
    return schedule->steps[0].kind == LAP_STEP_KERNEL;
}

static uint64_t ns_of(double seconds)
{
    return (uint64_t)(seconds * 1e9) + 1; /* 0 is no time */
}

static void add_step(void *context, int rank, uint32_t f, uint32_t step, uint32_t block,
                     const lap_step_times_t *times)
{
    const lap_play_t *play = context;
    const lap_linked_t *program = &play->programs[rank];
    const lap_schedule_t *schedule = &program->fragments[f].schedule;
    const lap_played_call_t *played = &play->calls[(size_t)rank * program->nfragments + f];
    const lap_span_t span = {ns_of(times->ready), ns_of(times->begin), ns_of(times->end)};
    if (is_kernel(schedule)) {
        lap_timeline_add_span(play->timeline, played->rank, LAP_STEP_KERNEL,
                              schedule->steps[0].stream, &played->call, schedule->steps[0].name,
                              &span);
        return;
    }
    lap_timeline_record_t record =
        lap_timeline_describe(&played->call, played->number, schedule, step, block);
    record.ready = span.ready;
    record.begin = span.begin;
    record.end = span.end;
    record.sent = times->came > 0 ? ns_of(times->sent) : 0;
    record.came = times->came > 0 ? ns_of(times->came) : 0;
    lap_timeline_add(play->timeline, &record);
}

lap_status_t lap_play_init(lap_play_t *play)
{
    const uint32_t count = play->programs[0].nfragments;
    play->calls = lap_alloc((size_t)play->size * count, sizeof(*play->calls));
    if (!play->calls)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a timeline of %d ranks", play->size);
    play->watch = (lap_step_watch_t){add_step, play};
    for (int r = 0; r < play->size; r++) {
        lap_linked_t *program = &play->programs[r];
        lap_timeline_t counter = {.size = play->size};
        program->watch = &play->watch;
        for (uint32_t f = 0; f < count; f++) {
            const lap_schedule_t *schedule = &program->fragments[f].schedule;
            lap_played_call_t *played = &play->calls[(size_t)r * count + f];
            lap_timeline_call_t *call = &played->call;
            if (schedule->nsteps == 0)
                continue;
            played->rank =
                play->describe(play->context, r, f, call, played->name, sizeof(played->name));
            call->name = played->name;
            if (!is_kernel(schedule))
                played->number = lap_timeline_number(&counter, call->base, call->stride);
        }
    }
    return LAP_OK;
}

void lap_play_clear(lap_play_t *play)
{
    lap_free(play->calls);
    play->calls = NULL;
}
