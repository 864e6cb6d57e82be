/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What waits on a symmetric buffer have in common: who is watched meanwhile, the sentence when one
 * fails, and the notes by which ranks find out that they are not in the same call.
 */
#include <stdio.h>

#include "core/status.h"
#include "transport/transport.h"

static lap_status_t look(void *context)
{
    const lap_buffer_watch_t *watch = context;
    LAP_TRY(lap_group_look_for(watch->buffer->group, watch->peer));
    return lap_buffer_compare(watch->buffer, watch->peer, watch->story);
}

void lap_buffer_watch_init(lap_buffer_watch_t *watch, lap_buffer_t *buffer, int peer,
                           const lap_wait_story_t *story)
{
    const lap_world_t *world = buffer->group->world;
    *watch = (lap_buffer_watch_t){
        .watch = {world->timeout_ns, world->spin_ns, look, watch},
        .buffer = buffer,
        .peer = peer,
        .story = story,
    };
}

/*
 * "data[3]" or "credit[3]" within an operator, which shares out the words so; else just the number.
 */
static void name_signal(const lap_buffer_t *buffer, const lap_wait_t *wait, char *text,
                        size_t bytes)
{
    const uint32_t size = (uint32_t)buffer->group->size;
    if (!wait->story || wait->signal >= 2 * size)
        snprintf(text, bytes, "%u", wait->signal);
    else if (wait->signal < size)
        snprintf(text, bytes, "data[%u]", wait->signal);
    else
        snprintf(text, bytes, "credit[%u]", wait->signal - size);
}

/*
 * "rank 0 waited in ag_gemm (ring), step 7, for signal data[3] number 2 of rank 3; it has come 1
 * times"
 */
static void tell(const lap_buffer_t *buffer, const lap_wait_t *wait, char *text, size_t bytes)
{
    char signal[32], where[96] = "";
    const lap_wait_story_t *story = wait->story;
    const lap_bank_t *bank = buffer->banks[buffer->group->rank];
    const uint32_t come =
        atomic_load_explicit(&bank->words[wait->signal].value, memory_order_relaxed);
    name_signal(buffer, wait, signal, sizeof(signal));
    if (story)
        snprintf(where, sizeof(where), " in %s (%s), step %u,", story->op, story->method,
                 story->step);
    snprintf(text, bytes,
             "rank %d waited%s for signal %s number %u of rank %d; it has come %u times",
             buffer->group->rank, where, signal, wait->target, wait->peer, come);
}

lap_status_t lap_buffer_wait_failed(lap_buffer_t *buffer, const lap_wait_t *wait,
                                    lap_status_t status)
{
    lap_group_t *group = buffer->group;
    char cause[LAP_ERROR_TEXT], context[256];
    tell(buffer, wait, context, sizeof(context));
    /*
     * A wait that ran out of time has no sentence, unless another rank broke the group just before.
     */
    lap_status_t broken = status == LAP_ERR_TIMEOUT ? lap_group_look(group) : status;
    if (broken == LAP_OK) {
        char stopped[256];
        lap_group_tell_stopped(group, stopped, sizeof(stopped));
        snprintf(cause, sizeof(cause), "timeout after %g s%s",
                 (double)group->world->timeout_ns / 1e9, stopped);
    } else {
        snprintf(cause, sizeof(cause), "%s", lap_last_error());
    }
    status = broken == LAP_OK ? status : broken;
    lap_error(status, "%s; %s", cause, context);
    if (status == LAP_ERR_TIMEOUT || status == LAP_ERR_PEER_LOST)
        lap_group_fail(group, status, wait->peer, lap_last_error());
    return status;
}

/* The lower rank comes first, so that both sides tell the same. */
static lap_status_t mismatch(lap_buffer_t *buffer, int peer, const lap_wait_story_t *story,
                             uint32_t op, uint64_t m)
{
    char mine[96], theirs[96];
    const int rank = buffer->group->rank;
    snprintf(mine, sizeof(mine), "rank %d calls operator %u (%s) with m = %llu", rank,
             story->op_index, story->op, (unsigned long long)story->m);
    snprintf(theirs, sizeof(theirs), "rank %d calls operator %u with m = %llu", peer, op,
             (unsigned long long)m);
    lap_error(LAP_ERR_MISMATCH, "%s, %s (call %u on this buffer)", rank < peer ? mine : theirs,
              rank < peer ? theirs : mine, story->call);
    lap_group_fail(buffer->group, LAP_ERR_MISMATCH, -1, lap_last_error());
    return LAP_ERR_MISMATCH;
}

lap_status_t lap_buffer_compare(lap_buffer_t *buffer, int peer, const lap_wait_story_t *story)
{
    if (!story || story->call == 0)
        return LAP_OK;
    lap_call_note_t *note = &buffer->notes[peer][story->call % LAP_CALL_NOTES];
    /* Pairs with the last store in lap_buffer_announce: op and m are those of this call. */
    if (atomic_load_explicit(&note->call, memory_order_acquire) != story->call)
        return LAP_OK;
    const uint32_t op = atomic_load_explicit(&note->op, memory_order_acquire);
    const uint64_t m = atomic_load_explicit(&note->m, memory_order_acquire);
    if (op == story->op_index && m == story->m)
        return LAP_OK;
    /*
     * A peer that begins several calls without ending them may be writing a later one into this
     * note. The loads above pair with the releases in lap_buffer_announce: whoever has read a part
     * of the later one sees here that the number has changed.
     */
    if (atomic_load_explicit(&note->call, memory_order_relaxed) != story->call)
        return LAP_OK;
    return mismatch(buffer, peer, story, op, m);
}

void lap_buffer_announce(lap_buffer_t *buffer, const lap_wait_story_t *story)
{
    lap_call_note_t *note = &buffer->notes[buffer->group->rank][story->call % LAP_CALL_NOTES];
    /* Each store releases the ones before it to the loads in lap_buffer_compare on other ranks. */
    atomic_store_explicit(&note->call, 0, memory_order_relaxed);
    atomic_store_explicit(&note->m, story->m, memory_order_release);
    atomic_store_explicit(&note->op, story->op_index, memory_order_release);
    atomic_store_explicit(&note->call, story->call, memory_order_release);
}
