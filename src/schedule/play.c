/* SPDX-License-Identifier: Apache-2.0 */
#include "schedule/play.h"

#include "core/status.h"
#include "util/alloc.h"

struct lap_played_call {
    lap_trace_label_t label;
    char name[48];
    lap_op_text_t op; /* of a call */
    uint32_t number;  /* among the calls of its group */
};

static uint64_t ns_of(double seconds)
{
    return (uint64_t)(seconds * 1e9) + 1; /* 0 is no time */
}

static int in_world(const lap_play_t *play, int rank)
{
    return play->world_rank ? play->world_rank(play->context, rank) : rank;
}

/* Rank r of the group of a fragment, in the world of the timeline; -1 stays -1. */
static int member(const lap_play_t *play, const lap_fragment_t *fragment, int r)
{
    return r < 0 ? -1 : in_world(play, lap_fragment_rank(fragment, r));
}

static void add_step(void *context, int rank, uint32_t f, uint32_t step, uint32_t tile,
                     const lap_step_times_t *times)
{
    const lap_play_t *play = context;
    const lap_linked_t *program = &play->programs[rank];
    const lap_fragment_t *fragment = &program->fragments[f];
    const lap_schedule_t *schedule = &fragment->schedule;
    const lap_played_call_t *played = &play->calls[(size_t)rank * play->most + f];
    const lap_span_t span = {ns_of(times->ready), ns_of(times->begin), ns_of(times->end)};
    if (lap_schedule_is_kernel(schedule)) {
        lap_trace_add_span(play->timeline, in_world(play, rank), LAP_STEP_KERNEL,
                           schedule->steps[0].stream, &played->label, &span);
        return;
    }
    lap_trace_record_t record = {.span = span};
    if (tile == LAP_NO_STEP)
        lap_record_step(schedule, step, &record);
    else
        lap_record_tile(schedule, step, &schedule->tiles[tile], &record);
    if (times->came > 0)
        record.flight = (lap_span_t){ns_of(times->sent), ns_of(times->sent), ns_of(times->came)};
    record.rank = member(play, fragment, record.rank);
    record.peer = member(play, fragment, record.peer);
    record.from = member(play, fragment, record.from);
    lap_record_label(&record, &played->label, played->number);
    lap_trace_add(play->timeline, &record);
}

lap_status_t lap_play_init(lap_play_t *play)
{
    play->most = 0;
    for (int r = 0; r < play->size; r++)
        if (play->programs[r].nfragments > play->most)
            play->most = play->programs[r].nfragments;
    play->calls = lap_alloc((size_t)play->size * play->most, sizeof(*play->calls));
    if (!play->calls)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a timeline of %d ranks", play->size);
    play->watch = (lap_step_watch_t){add_step, play};
    for (int r = 0; r < play->size; r++) {
        lap_linked_t *program = &play->programs[r];
        lap_trace_t counter = {.size = play->size};
        program->watch = &play->watch;
        for (uint32_t f = 0; f < program->nfragments; f++) {
            const lap_schedule_t *schedule = &program->fragments[f].schedule;
            lap_played_call_t *played = &play->calls[(size_t)r * play->most + f];
            lap_trace_label_t *label = &played->label;
            if (schedule->nsteps == 0)
                continue;
            play->describe(play->context, r, f, label, played->name, sizeof(played->name));
            for (int i = 0; i < schedule->size; i++)
                lap_trace_group_add(&label->group, member(play, &program->fragments[f], i));
            label->name = played->name;
            label->op = schedule->steps[0].name;
            if (lap_schedule_is_kernel(schedule))
                continue;
            played->op = lap_op_text(schedule->kind, schedule->method);
            label->op = played->op.text;
            played->number = lap_trace_number(&counter, &label->group);
        }
    }
    return LAP_OK;
}

void lap_play_clear(lap_play_t *play)
{
    lap_free(play->calls);
    play->calls = NULL;
}
