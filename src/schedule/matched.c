/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Issuing a call round by round. A round is issued when the last of its puts is reached, which is
 * before any wait for what it brings; a stream that puts goes on when the round is over, as it does
 * on transports that put alone.
 */
#include "schedule/matched.h"

#include "util/alloc.h"

static lap_status_t create_events(lap_matched_t *matched, lap_device_t *device)
{
    for (int s = 0; s < LAP_STREAMS; s++)
        LAP_TRY(device->ops->event_create(device, &matched->ready[s]));
    LAP_TRY(device->ops->event_create(device, &matched->joined));
    for (uint32_t i = 0; i < matched->rounds.nrounds; i++) {
        LAP_TRY(device->ops->event_create(device, &matched->done[i]));
        matched->rounds.rounds[i].done = matched->done[i];
    }
    return LAP_OK;
}

lap_status_t lap_matched_create(lap_program_t *program, const lap_schedule_t *const *schedules)
{
    const lap_schedule_t *own = &program->schedule;
    lap_matched_t *matched = program->matched = lap_alloc(1, sizeof(*matched));
    if (!matched)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the rounds of a program");
    LAP_TRY(lap_rounds_plan(schedules, own->size, own->rank, &matched->rounds));
    matched->done = lap_alloc(matched->rounds.nrounds, sizeof(lap_event_t *));
    if (!matched->done)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %u rounds", matched->rounds.nrounds);
    return create_events(matched, program->engine->device);
}

void lap_matched_destroy(lap_program_t *program)
{
    lap_matched_t *matched = program->matched;
    const lap_device_ops_t *ops = program->engine->device->ops;
    if (!matched)
        return;
    for (int s = 0; s < LAP_STREAMS; s++)
        if (matched->ready[s])
            ops->event_destroy(matched->ready[s]);
    if (matched->joined)
        ops->event_destroy(matched->joined);
    for (uint32_t i = 0; matched->done && i < matched->rounds.nrounds; i++)
        if (matched->done[i])
            ops->event_destroy(matched->done[i]);
    lap_free(matched->done);
    lap_rounds_clear(&matched->rounds);
    lap_free(matched);
    program->matched = NULL;
}

/* Behind the sources of its puts and, if it is the first one, behind earlier calls. */
static lap_status_t gather_after(lap_program_t *program, lap_round_t *round)
{
    lap_matched_t *matched = program->matched;
    lap_engine_t *engine = program->engine;
    uint32_t count = 0;
    if (matched->follows)
        matched->after[count++] = matched->joined;
    matched->follows = false;
    for (int s = 0; s < LAP_STREAMS; s++) {
        if (!matched->sent[s])
            continue;
        LAP_TRY(engine->device->ops->event_record(matched->ready[s], engine->streams[s]));
        matched->after[count++] = matched->ready[s];
    }
    round->after = matched->after;
    round->nafter = count;
    return LAP_OK;
}

/* Issues the rounds of which all puts have been reached. */
static lap_status_t issue_rounds(lap_program_t *program, const lap_binding_t *binding)
{
    lap_matched_t *matched = program->matched;
    lap_engine_t *engine = program->engine;
    const lap_device_ops_t *device = engine->device->ops;
    while (matched->next < matched->rounds.nrounds) {
        lap_round_t *round = &matched->rounds.rounds[matched->next];
        const lap_put_t *end = round->sends + round->nsends;
        if (round->nsends > 0 && end > matched->rounds.sends + matched->sends)
            return LAP_OK;
        LAP_TRY(gather_after(program, round));
        round->reason = &program->reasons[matched->rounds.steps[matched->next]];
        LAP_TRY(binding->buffer->ops->exchange(binding->buffer, device, round));
        for (int s = 0; s < LAP_STREAMS; s++) {
            if (matched->sent[s])
                LAP_TRY(device->stream_wait_event(engine->streams[s], round->done));
            matched->sent[s] = false;
        }
        matched->next++;
    }
    return LAP_OK;
}

lap_status_t lap_matched_begin(lap_program_t *program, const lap_binding_t *binding)
{
    lap_matched_t *matched = program->matched;
    const lap_engine_t *engine = program->engine;
    const uint16_t compute = lap_stream_of(lap_program_set(program), LAP_STREAM_COMPUTE);
    matched->next = matched->sends = 0;
    matched->follows = binding->buffer->in_flight > 0;
    if (matched->follows) /* every stream has been joined with all others: see lap_program_issue */
        LAP_TRY(engine->device->ops->event_record(matched->joined, engine->streams[compute]));
    for (int s = 0; s < LAP_STREAMS; s++)
        matched->sent[s] = false;
    return issue_rounds(program, binding);
}

lap_status_t lap_matched_put(lap_program_t *program, const lap_binding_t *binding, int stream,
                             const lap_put_t *put)
{
    lap_matched_t *matched = program->matched;
    matched->rounds.sends[matched->sends++] = *put;
    matched->sent[stream] = true;
    return issue_rounds(program, binding);
}

lap_status_t lap_matched_wait(lap_program_t *program, lap_stream_t *stream, const lap_wait_t *wait)
{
    const lap_matched_t *matched = program->matched;
    uint32_t round;
    if (!lap_rounds_of(&matched->rounds, wait->signal, wait->count, &round))
        return LAP_OK; /* a credit: the peer's receive says as much */
    return program->engine->device->ops->stream_wait_event(stream, matched->done[round]);
}
