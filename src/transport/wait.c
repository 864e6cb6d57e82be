/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What waits on a symmetric buffer have in common: who is watched meanwhile, the sentence when one
 * fails, and the records by which ranks find out that they are not in the same call.
 */
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "transport/transport.h"

/* The call of a reason, in which this rank waits for a peer. */
static lap_blocked_t blocked_in(const lap_buffer_t *buffer, int peer,
                                const lap_wait_reason_t *reason)
{
    lap_blocked_t blocked = {
        .group = buffer->group, .number = reason->number, .all = reason->all, .peer = peer};
    snprintf(blocked.call, sizeof(blocked.call), "%s with m = %llu", reason->op,
             (unsigned long long)reason->m);
    return blocked;
}

lap_status_t lap_buffer_look(lap_buffer_t *buffer, int peer, const lap_wait_reason_t *reason)
{
    /* A peer that is in another call may also have left; the first is the cause. */
    LAP_TRY(lap_buffer_compare(buffer, peer, reason));
    if (!reason || reason->number == 0)
        return lap_group_look_for(buffer->group, peer);
    const lap_blocked_t mine = blocked_in(buffer, peer, reason);
    LAP_TRY(lap_calls_compare(&mine, peer, &buffer->place, reason->op_index));
    LAP_TRY(lap_group_look_for(buffer->group, peer));
    return lap_await_is(buffer->group->world, buffer, reason->number) ? lap_blocked_look(&mine)
                                                                      : LAP_OK;
}

static lap_status_t look(void *context)
{
    const lap_buffer_watch_t *watch = context;
    return lap_buffer_look(watch->buffer, watch->peer, watch->reason);
}

void lap_buffer_watch_init(lap_buffer_watch_t *watch, lap_buffer_t *buffer, int peer,
                           const lap_wait_reason_t *reason)
{
    const lap_world_t *world = buffer->group->world;
    *watch = (lap_buffer_watch_t){
        .watch = {.timeout_ns = world->timeout_ns,
                  .spin_ns = reason ? world->step_spin_ns : world->spin_ns,
                  .look = look,
                  .context = watch},
        .buffer = buffer,
        .peer = peer,
        .reason = reason,
    };
}

/*
 * "it has come 1 time in this call". Within an operator raises are counted by the call: a user has
 * no use for those of the calls before, and a GPU does not count them.
 */
static void tell_come(const lap_buffer_t *buffer, const lap_wait_t *wait, uint32_t come, char *text,
                      size_t bytes)
{
    const uint32_t here = wait->reason ? come - (wait->target - wait->count) : come;
    const bool paced = lap_buffer_is_paced(buffer);
    char times[32] = "not come";
    if (here > 0)
        snprintf(times, sizeof(times), "come %u time%s", here, here == 1 ? "" : "s");
    if (paced && (int32_t)(come - wait->target) >= 0)
        snprintf(text, bytes, "been sent, over an emulated link slower than that");
    else
        snprintf(text, bytes, "%s%s%s", times, wait->reason ? " in this call" : "",
                 paced ? ", over an emulated link" : "");
}

/*
 * "rank 0 waited in ag_gemm (ring), step 7, for signal data[3] number 2 of rank 3; it has come 1
 * time in this call"
 */
static void describe(const lap_buffer_t *buffer, const lap_wait_t *wait, uint32_t come, char *text,
                     size_t bytes)
{
    char signal[32], where[96] = "", how_far[96], mine[LAP_RANK_TEXT], theirs[LAP_RANK_TEXT];
    const lap_wait_reason_t *reason = wait->reason;
    snprintf(signal, sizeof(signal), "%u", wait->signal);
    if (reason)
        reason->name_signal(buffer->group->size, wait->signal, signal, sizeof(signal));
    if (reason)
        snprintf(where, sizeof(where), " in %s (%s), step %u,", reason->op, reason->method,
                 reason->step);
    tell_come(buffer, wait, come, how_far, sizeof(how_far));
    snprintf(text, bytes, "%s waited%s for signal %s number %u of %s; it has %s",
             lap_group_name(buffer->group, buffer->group->rank, mine), where, signal,
             reason ? wait->count : wait->target, lap_group_name(buffer->group, wait->peer, theirs),
             how_far);
}

/* "; rank 1 has not begun the call: it is in barrier", or "" when all have. */
static void tell_late(const lap_buffer_t *buffer, const lap_wait_t *wait, char *text, size_t bytes)
{
    text[0] = '\0';
    if (!wait->reason || wait->reason->number == 0)
        return;
    const lap_blocked_t mine = blocked_in(buffer, wait->peer, wait->reason);
    lap_blocked_describe(&mine, text, bytes);
}

static lap_status_t wait_failed(lap_buffer_t *buffer, const lap_wait_t *wait, uint32_t come,
                                lap_status_t status)
{
    lap_group_t *group = buffer->group;
    char cause[LAP_ERROR_TEXT], context[448];
    describe(buffer, wait, come, context, sizeof(context));
    /*
     * A wait that ran out of time has no sentence, unless another rank broke the group just before.
     */
    lap_status_t broken = status == LAP_ERR_TIMEOUT ? lap_group_look(group) : status;
    if (broken == LAP_OK) {
        char stopped[256], late[448];
        tell_late(buffer, wait, late, sizeof(late));
        lap_group_list_stopped(group, stopped, sizeof(stopped));
        snprintf(cause, sizeof(cause), "timeout after %g s%s%s",
                 (double)group->world->timeout_ns / 1e9, late, stopped);
    } else {
        snprintf(cause, sizeof(cause), "%s", lap_last_error());
    }
    status = broken == LAP_OK ? status : broken;
    lap_error(status, "%s; %s", cause, context);
    if (status == LAP_ERR_TIMEOUT || status == LAP_ERR_PEER_LOST)
        lap_group_fail(group, status, lap_last_error());
    return status;
}

lap_status_t lap_buffer_wait_failed(lap_buffer_t *buffer, const lap_wait_t *wait,
                                    lap_status_t status)
{
    const lap_bank_t *bank = buffer->banks[buffer->group->rank];
    const uint32_t come =
        atomic_load_explicit(&bank->words[wait->signal].value, memory_order_relaxed);
    return wait_failed(buffer, wait, come, status);
}

/* What a rank says of the call that it is in. */
typedef struct call {
    uint32_t number, op;
    uint64_t m;
} call_t;

/* The lower rank comes first, so that both sides say the same. */
static lap_status_t mismatch(lap_buffer_t *buffer, int peer, const lap_wait_reason_t *reason,
                             call_t their)
{
    char mine[96], theirs[96];
    const int rank = buffer->group->rank;
    if (reason->call == 0 || their.number == 0) { /* calls have no numbers to look up */
        lap_error(LAP_ERR_MISMATCH,
                  "rank %d calls operator %u with m = %llu on this buffer, rank %d calls another "
                  "operator or with another m; found in %s (%s), step %u",
                  rank, reason->op_index, (unsigned long long)reason->m, peer, reason->op,
                  reason->method, reason->step);
        lap_group_fail(buffer->group, LAP_ERR_MISMATCH, lap_last_error());
        return LAP_ERR_MISMATCH;
    }
    snprintf(mine, sizeof(mine), "rank %d calls operator %u with m = %llu (call %u)", rank,
             reason->op_index, (unsigned long long)reason->m, reason->call);
    snprintf(theirs, sizeof(theirs), "rank %d calls operator %u with m = %llu (call %u)", peer,
             their.op, (unsigned long long)their.m, their.number);
    lap_error(LAP_ERR_MISMATCH, "%s on this buffer, %s; found in %s (%s), step %u",
              rank < peer ? mine : theirs, rank < peer ? theirs : mine, reason->op, reason->method,
              reason->step);
    lap_group_fail(buffer->group, LAP_ERR_MISMATCH, lap_last_error());
    return LAP_ERR_MISMATCH;
}

/* The latest call that a rank has announced; good enough for a sentence. */
static call_t latest_call(const lap_buffer_t *buffer, int rank)
{
    call_t latest = {0, 0, 0};
    for (int i = 0; i < LAP_CALL_RECORDS; i++) {
        lap_call_record_t *record = &buffer->records[rank][i];
        const uint32_t number = atomic_load_explicit(&record->call, memory_order_acquire);
        if (number > latest.number)
            latest = (call_t){number, atomic_load_explicit(&record->op, memory_order_relaxed),
                              atomic_load_explicit(&record->m, memory_order_relaxed)};
    }
    return latest;
}

uint64_t lap_call_tag(uint32_t call, uint32_t op_index, uint64_t m)
{
    /* Odd multipliers keep different m apart; a shift keeps different calls and operators apart. */
    const uint64_t which = (uint64_t)call << 32 | op_index;
    uint64_t tag = (m * 0x9e3779b97f4a7c15u) ^ (which * 0xd1b54a32d192ed03u);
    return tag ^ tag >> 29;
}

lap_status_t lap_buffer_wait_passed(lap_buffer_t *buffer, const lap_wait_t *wait)
{
    const lap_wait_reason_t *reason = wait->reason;
    if (!reason || lap_bank_tag(buffer->banks[buffer->group->rank], wait->signal) == reason->tag)
        return LAP_OK;
    return mismatch(buffer, wait->peer, reason, latest_call(buffer, wait->peer));
}

lap_status_t lap_buffer_stall_failed(const lap_stall_t *stall, lap_status_t status)
{
    lap_buffer_t *buffer = stall->buffer;
    const lap_wait_t wait = {
        .peer = stall->peer,
        .signal = stall->signal,
        .target = stall->count,
        .reason = stall->reason,
        .count = stall->count,
    };
    if (stall->mismatch)
        return mismatch(buffer, stall->peer, stall->reason, latest_call(buffer, stall->peer));
    return wait_failed(buffer, &wait, stall->come, status);
}

lap_status_t lap_buffer_compare(lap_buffer_t *buffer, int peer, const lap_wait_reason_t *reason)
{
    if (!reason || reason->call == 0)
        return LAP_OK;
    lap_call_record_t *record = &buffer->records[peer][reason->call % LAP_CALL_RECORDS];
    /* Pairs with the last store in lap_buffer_write_record: op and m are those of this call. */
    if (atomic_load_explicit(&record->call, memory_order_acquire) != reason->call)
        return LAP_OK;
    const uint32_t op = atomic_load_explicit(&record->op, memory_order_acquire);
    const uint64_t m = atomic_load_explicit(&record->m, memory_order_acquire);
    if (op == reason->op_index && m == reason->m)
        return LAP_OK;
    /*
     * A peer that begins several calls without ending them may be writing a later one into this
     * record. The loads above pair with the releases in lap_buffer_write_record: whoever has read a
     * part of the later one sees here that the number has changed.
     */
    if (atomic_load_explicit(&record->call, memory_order_relaxed) != reason->call)
        return LAP_OK;
    return mismatch(buffer, peer, reason, (call_t){reason->call, op, m});
}

void lap_buffer_write_record(lap_call_record_t *records, uint32_t call, uint32_t op, uint64_t m)
{
    lap_call_record_t *record = &records[call % LAP_CALL_RECORDS];
    /* Each store releases the ones before it to the loads in lap_buffer_compare. */
    atomic_store_explicit(&record->call, 0, memory_order_relaxed);
    atomic_store_explicit(&record->m, m, memory_order_release);
    atomic_store_explicit(&record->op, op, memory_order_release);
    atomic_store_explicit(&record->call, call, memory_order_release);
}

void lap_buffer_write_call(lap_call_record_t *records, const lap_wait_reason_t *reason)
{
    lap_call_record_t *record = &records[reason->call % LAP_CALL_RECORDS];
    char name[LAP_CALL_NAME];
    memset(name, 0, sizeof(name));
    snprintf(name, sizeof(name), "%s", reason->op);
    /* The number is 0 while the rest changes: see read_record in core/blocked.c. */
    atomic_store_explicit(&record->number, 0, memory_order_relaxed);
    for (size_t i = 0; i < LAP_CALL_NAME / sizeof(uint64_t); i++) {
        uint64_t word;
        memcpy(&word, name + i * sizeof(word), sizeof(word));
        atomic_store_explicit(&record->name[i], word, memory_order_release);
    }
    lap_buffer_write_record(records, reason->call, reason->op_index, reason->m);
    atomic_store_explicit(&record->number, reason->number, memory_order_release);
}

void lap_buffer_announce(lap_buffer_t *buffer, const lap_wait_reason_t *reason)
{
    lap_buffer_write_call(buffer->records[buffer->group->rank], reason);
    buffer->ops->send_record(buffer, reason);
}
