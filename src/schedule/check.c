/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proves the schedules of all ranks, called back to back: they cannot deadlock, no two accesses to
 * the same bytes conflict without an order, every read finds what its own call wrote, every result
 * is written whole and once, every signal is accounted for, and between calls a rank's symmetric
 * memory is its own. It does not follow the values: that the right rows are multiplied is for the
 * tests of the operators.
 */
#include "schedule/check.h"

#include <stdio.h>

#include "core/status.h"
#include "util/alloc.h"

void lap_check_describe(const lap_check_t *check, uint32_t index, char *text, size_t bytes)
{
    const lap_node_t *node = &check->nodes[index];
    const lap_schedule_t *schedule = lap_check_schedule(check, node->call, node->rank);
    char step[LAP_CHECK_TEXT], block[32] = "";
    if (node->kind == LAP_NODE_BEGIN || node->kind == LAP_NODE_END) {
        snprintf(text, bytes, "call %u rank %d %s of %s %s", (unsigned)node->call, node->rank,
                 node->kind == LAP_NODE_BEGIN ? "begin" : "end", lap_op_kind_name(schedule->kind),
                 schedule->method);
        return;
    }
    lap_step_describe(schedule, node->step, step, sizeof(step));
    if (node->kind == LAP_NODE_TILE)
        snprintf(block, sizeof(block), ", block %u",
                 (unsigned)(node->tile - schedule->steps[node->step].first_tile));
    snprintf(text, bytes, "call %u rank %d %s %s %s%s", (unsigned)node->call, node->rank,
             lap_op_kind_name(schedule->kind), schedule->method, step, block);
}

void *lap_check_grow(lap_check_t *check, void *array, uint32_t count, size_t *room_p,
                     size_t element)
{
    void *grown = lap_grow(array, count, room_p, element);
    if (!grown && check->status == LAP_OK)
        check->status =
            lap_error(LAP_ERR_NO_MEMORY, "no memory to check %u nodes", (unsigned)count + 1);
    return grown;
}

bool lap_check_before(const lap_check_t *check, uint32_t earlier, uint32_t later)
{
    const lap_node_t *voice = &check->nodes[check->nodes[earlier].voice];
    return check->clocks[(size_t)later * check->nthreads + voice->thread] >= voice->tick;
}

/* Whether somebody has waited for what a node raises, before `later` or as `later`. */
static bool waited_for(const lap_check_t *check, uint32_t raise, uint32_t later)
{
    const uint32_t moment = check->nodes[raise].moment;
    if (moment == LAP_CHECK_NONE)
        return false;
    for (uint32_t waiter = check->moments[moment].waiters; waiter != LAP_CHECK_NONE;
         waiter = check->nodes[waiter].next_waiter)
        if (waiter == later || lap_check_before(check, waiter, later))
            return true;
    return false;
}

bool lap_check_arrived(const lap_check_t *check, uint32_t earlier, uint32_t later)
{
    const lap_node_t *node = &check->nodes[earlier];
    if (!lap_check_before(check, earlier, later))
        return false;
    if (node->raise_rank == node->rank || waited_for(check, earlier, later))
        return true;
    for (uint32_t i = node->next_sent; i != LAP_CHECK_NONE; i = check->nodes[i].next_sent)
        if (lap_check_before(check, earlier, i) && waited_for(check, i, later))
            return true;
    return false;
}

static void check_clear(lap_check_t *check)
{
    lap_free(check->nodes);
    lap_free(check->preds);
    lap_free(check->begins);
    lap_free(check->ends);
    lap_free(check->frees);
    lap_free(check->clocks);
    lap_free(check->ticks);
    lap_free(check->sequence);
    lap_free(check->tile_thread);
    lap_free(check->moments);
    lap_free(check->first_moment);
    lap_free(check->raised);
}

/* Deadlocks and ambiguous signals only. */
static lap_status_t play(lap_check_t *check)
{
    lap_status_t status = lap_check_graph(check);
    if (status == LAP_OK)
        status = lap_check_order(check);
    check_clear(check);
    return status;
}

lap_status_t lap_schedule_check_in_line(const lap_schedule_t *const *schedules, uint32_t ncalls,
                                        int size)
{
    lap_check_t check = {.schedules = schedules,
                         .ncalls = ncalls,
                         .size = size,
                         .nsignals = lap_signal_count(size),
                         .in_line = true};
    LAP_TRY(lap_check_form(&check));
    return play(&check);
}

static lap_status_t prove(lap_check_t *check)
{
    lap_status_t status = lap_check_graph(check);
    if (status == LAP_OK)
        status = lap_check_order(check);
    if (status == LAP_OK)
        status = lap_check_access(check);
    if (status == LAP_OK)
        status = lap_check_signals(check);
    if (status == LAP_OK && check->programs)
        status = lap_check_serial(check);
    if (status == LAP_OK && check->shares_queues)
        status = lap_check_queues(check);
    check_clear(check);
    return status;
}

lap_status_t lap_schedule_check(const lap_schedule_t *const *schedules, uint32_t ncalls, int size)
{
    lap_check_t check = {
        .schedules = schedules, .ncalls = ncalls, .size = size, .nsignals = lap_signal_count(size)};
    LAP_TRY(lap_check_form(&check));
    return prove(&check);
}

/* ---- programs ---- */

/* What a fragment comes after is before it. */
static lap_status_t check_links(const lap_linked_t *linked, uint32_t call)
{
    const lap_fragment_t *fragment = &linked->fragments[call];
    const lap_schedule_t *schedule = &fragment->schedule;
    for (uint32_t i = 0; i < fragment->nlinks; i++) {
        const lap_link_dep_t *link = &fragment->links[i];
        if (link->step >= schedule->nsteps || link->fragment >= call ||
            link->dep >= linked->fragments[link->fragment].schedule.nsteps)
            return lap_error(
                LAP_ERR_CHECK,
                "fragment %u of rank %d has a link from step %u of fragment %u to its step "
                "%u of %u: expected steps that there are, of a fragment before it",
                (unsigned)call, linked->rank, (unsigned)link->dep, (unsigned)link->fragment,
                (unsigned)link->step, (unsigned)schedule->nsteps);
    }
    return LAP_OK;
}

/* The form of a call of a group, by the first of its ranks. */
static lap_status_t check_call(const lap_check_t *check, uint32_t call, int rank,
                               const lap_schedule_t **group)
{
    const lap_fragment_t *first = lap_check_fragment(check, call, rank);
    for (int r = 0; r < first->schedule.size; r++)
        group[r] = lap_check_schedule(check, lap_check_call(check, call, rank, r),
                                      lap_fragment_rank(first, r));
    const lap_check_t form = {.schedules = group,
                              .ncalls = 1,
                              .size = first->schedule.size,
                              .nsignals = lap_signal_count(first->schedule.size)};
    return lap_check_form(&form);
}

static lap_status_t check_fragments(lap_check_t *check, const lap_schedule_t **group)
{
    uint32_t nbuffers = 1;
    for (int rank = 0; rank < check->size; rank++)
        for (uint32_t call = 0; call < lap_check_ncalls(check, rank); call++) {
            const lap_fragment_t *fragment = lap_check_fragment(check, call, rank);
            const uint32_t words = lap_signal_count(fragment->schedule.size);
            LAP_TRY(check_links(check->programs[rank], call));
            if (fragment->schedule.rank == 0)
                LAP_TRY(check_call(check, call, rank, group));
            check->buffer_words = words > check->buffer_words ? words : check->buffer_words;
            nbuffers = fragment->buffer >= nbuffers ? fragment->buffer + 1 : nbuffers;
        }
    check->nsignals = nbuffers * check->buffer_words;
    return LAP_OK;
}

lap_status_t lap_linked_check(const lap_linked_t *const *programs, int size, bool shares_queues)
{
    lap_calls_t matched;
    lap_check_t check = {
        .programs = programs, .matched = &matched, .size = size, .shares_queues = shares_queues};
    for (int rank = 0; rank < size; rank++)
        if (programs[rank]->nfragments > check.ncalls)
            check.ncalls = programs[rank]->nfragments;
    lap_status_t status = lap_calls_init(&matched, programs, size);
    const lap_schedule_t **group = lap_alloc((size_t)size, sizeof(*group));
    if (status == LAP_OK && !group)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to check %d ranks", size);
    if (status == LAP_OK)
        status = check_fragments(&check, group);
    lap_check_t line = check;
    line.in_line = true;
    if (status == LAP_OK)
        status = prove(&check);
    if (status == LAP_OK && shares_queues)
        status = play(&line);
    lap_free(group);
    lap_calls_clear(&matched);
    return status;
}
