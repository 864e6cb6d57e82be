/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Issuing a call round by round. A round is issued when the last of its puts is reached, which is
 * before any wait for what it brings; a stream that puts goes on when the round is over, as it does
 * on transports that put alone.
 */
#include "schedule/meet.h"

#include "util/alloc.h"

static lap_status_t create_events(lap_meeting_t *meeting, lap_device_t *device)
{
    for (int s = 0; s < LAP_STREAMS; s++)
        LAP_TRY(device->ops->event_create(device, &meeting->ready[s]));
    LAP_TRY(device->ops->event_create(device, &meeting->joined));
    for (uint32_t i = 0; i < meeting->rounds.nrounds; i++) {
        LAP_TRY(device->ops->event_create(device, &meeting->done[i]));
        meeting->rounds.rounds[i].done = meeting->done[i];
    }
    return LAP_OK;
}

lap_status_t lap_meeting_create(lap_program_t *program, const lap_schedule_t *const *schedules)
{
    const lap_schedule_t *own = &program->schedule;
    lap_meeting_t *meeting = program->meeting = lap_alloc(1, sizeof(*meeting));
    if (!meeting)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the rounds of a program");
    LAP_TRY(lap_rounds_plan(schedules, own->size, own->rank, &meeting->rounds));
    meeting->done = lap_alloc(meeting->rounds.nrounds, sizeof(lap_event_t *));
    if (!meeting->done)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %u rounds", meeting->rounds.nrounds);
    return create_events(meeting, program->engine->device);
}

void lap_meeting_destroy(lap_program_t *program)
{
    lap_meeting_t *meeting = program->meeting;
    const lap_device_ops_t *ops = program->engine->device->ops;
    if (!meeting)
        return;
    for (int s = 0; s < LAP_STREAMS; s++)
        if (meeting->ready[s])
            ops->event_destroy(meeting->ready[s]);
    if (meeting->joined)
        ops->event_destroy(meeting->joined);
    for (uint32_t i = 0; meeting->done && i < meeting->rounds.nrounds; i++)
        if (meeting->done[i])
            ops->event_destroy(meeting->done[i]);
    lap_free(meeting->done);
    lap_rounds_clear(&meeting->rounds);
    lap_free(meeting);
    program->meeting = NULL;
}

/* Behind the sources of its puts and, if it is the first one, behind earlier calls. */
static lap_status_t gather_after(lap_program_t *program, lap_round_t *round)
{
    lap_meeting_t *meeting = program->meeting;
    lap_engine_t *engine = program->engine;
    uint32_t count = 0;
    if (meeting->follows)
        meeting->after[count++] = meeting->joined;
    meeting->follows = false;
    for (int s = 0; s < LAP_STREAMS; s++) {
        if (!meeting->sent[s])
            continue;
        LAP_TRY(engine->device->ops->event_record(meeting->ready[s], engine->streams[s]));
        meeting->after[count++] = meeting->ready[s];
    }
    round->after = meeting->after;
    round->nafter = count;
    return LAP_OK;
}

/* Issues the rounds of which all puts have been reached. */
static lap_status_t issue_rounds(lap_program_t *program, const lap_binding_t *binding)
{
    lap_meeting_t *meeting = program->meeting;
    lap_engine_t *engine = program->engine;
    const lap_device_ops_t *device = engine->device->ops;
    while (meeting->next < meeting->rounds.nrounds) {
        lap_round_t *round = &meeting->rounds.rounds[meeting->next];
        const lap_put_t *end = round->sends + round->nsends;
        if (round->nsends > 0 && end > meeting->rounds.sends + meeting->sends)
            return LAP_OK;
        LAP_TRY(gather_after(program, round));
        round->story = &program->stories[meeting->rounds.steps[meeting->next]];
        LAP_TRY(binding->buffer->ops->exchange(binding->buffer, device, round));
        for (int s = 0; s < LAP_STREAMS; s++) {
            if (meeting->sent[s])
                LAP_TRY(device->stream_wait_event(engine->streams[s], round->done));
            meeting->sent[s] = false;
        }
        meeting->next++;
    }
    return LAP_OK;
}

lap_status_t lap_meet_begin(lap_program_t *program, const lap_binding_t *binding)
{
    lap_meeting_t *meeting = program->meeting;
    const lap_engine_t *engine = program->engine;
    meeting->next = meeting->sends = 0;
    meeting->follows = binding->buffer->in_flight > 0;
    if (meeting->follows) /* every stream has been joined with all others: see lap_program_issue */
        LAP_TRY(engine->device->ops->event_record(meeting->joined,
                                                  engine->streams[LAP_STREAM_COMPUTE]));
    for (int s = 0; s < LAP_STREAMS; s++)
        meeting->sent[s] = false;
    return issue_rounds(program, binding);
}

lap_status_t lap_meet_put(lap_program_t *program, const lap_binding_t *binding, int stream,
                          const lap_put_t *put)
{
    lap_meeting_t *meeting = program->meeting;
    meeting->rounds.sends[meeting->sends++] = *put;
    meeting->sent[stream] = true;
    return issue_rounds(program, binding);
}

lap_status_t lap_meet_wait(lap_program_t *program, lap_stream_t *stream, const lap_wait_t *wait)
{
    const lap_meeting_t *meeting = program->meeting;
    uint32_t round;
    if (!lap_rounds_of(&meeting->rounds, wait->signal, wait->count, &round))
        return LAP_OK; /* a credit: the peer's receive says as much */
    return program->engine->device->ops->stream_wait_event(stream, meeting->done[round]);
}
