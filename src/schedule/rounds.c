/* SPDX-License-Identifier: Apache-2.0 */
/* Deals the puts of all ranks out to rounds: see rounds.h. What is sent is left to matched.c. */
#include "schedule/rounds.h"

#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "util/alloc.h"

#define NONE UINT32_MAX

/* A put, once its round is known. */
typedef struct message {
    int from, to;
    uint32_t step;   /* of the sender */
    uint32_t round;  /* from 1 */
    uint32_t signal; /* LAP_NO_SIGNAL: none */
    uint32_t next;   /* that raises the same signal of the same rank; NONE: there is none yet */
    uint32_t waited; /* the first step of the receiver that waits for it; NONE: no step */
    uint32_t place;  /* of its round among those of the receiver */
} message_t;

/* How far a rank has come in its list. */
typedef struct walker {
    uint32_t step, block;
    uint32_t floor; /* what it sends next comes after this round */
    uint32_t last;  /* of its latest put; 0: none */
    int last_peer;  /* of that put */
    bool apart;     /* peers use what it sends as it comes: each has a round of its own */
} walker_t;

typedef struct plan {
    const lap_schedule_t *const *schedules;
    int size;
    uint32_t nsignals;
    walker_t *walkers;
    message_t *messages;
    uint32_t nmessages, room;
    uint32_t *heads, *tails; /* per signal of each rank: the messages that raise it */
} plan_t;

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static bool is_credit(const plan_t *plan, uint32_t signal)
{
    return signal >= lap_signal_credit(plan->size, 0) &&
           signal < lap_signal_credit(plan->size, plan->size);
}

/* ---- the walk ---- */

static void add_message(plan_t *plan, int from, uint32_t index)
{
    const lap_step_t *step = &plan->schedules[from]->steps[index];
    walker_t *walker = &plan->walkers[from];
    if (walker->apart && walker->last_peer != step->peer)
        walker->floor = larger(walker->floor, walker->last);
    walker->last = walker->floor + 1;
    walker->last_peer = step->peer;
    const uint32_t number = plan->nmessages++;
    plan->messages[number] = (message_t){
        .from = from,
        .to = step->peer,
        .step = index,
        .round = walker->last,
        .signal = step->signal,
        .next = NONE,
        .waited = NONE,
    };
    if (step->signal == LAP_NO_SIGNAL)
        return;
    const size_t word = (size_t)step->peer * plan->nsignals + step->signal;
    if (plan->heads[word] == NONE)
        plan->heads[word] = number;
    else
        plan->messages[plan->tails[word]].next = number;
    plan->tails[word] = number;
}

/* The message that raises a signal of `rank` for the `count`th time; NONE: not known yet. */
static uint32_t find_message(const plan_t *plan, int rank, uint32_t signal, uint32_t count)
{
    uint32_t at = plan->heads[(size_t)rank * plan->nsignals + signal];
    while (at != NONE && --count > 0)
        at = plan->messages[at].next;
    return at;
}

/* Whether a rank gets past a wait. */
static bool pass(plan_t *plan, int rank, uint32_t signal, uint32_t count)
{
    walker_t *walker = &plan->walkers[rank];
    if (signal == LAP_NO_SIGNAL || count == 0 || is_credit(plan, signal))
        return true;
    const uint32_t message = find_message(plan, rank, signal, count);
    if (message == NONE)
        return false;
    walker->floor = larger(walker->floor, plan->messages[message].round);
    if (plan->messages[message].waited == NONE)
        plan->messages[message].waited = walker->step;
    return true;
}

static bool pass_blocks(plan_t *plan, int rank, const lap_step_t *step)
{
    walker_t *walker = &plan->walkers[rank];
    for (; walker->block < step->count; walker->block++) {
        const lap_block_t *block = &plan->schedules[rank]->blocks[step->first + walker->block];
        if (!pass(plan, rank, block->wait_signal, block->wait_count))
            return false;
    }
    walker->block = 0;
    return true;
}

/* Takes one step; false when it must wait for what a peer has not sent yet. */
static bool take_step(plan_t *plan, int rank)
{
    walker_t *walker = &plan->walkers[rank];
    const lap_step_t *step = &plan->schedules[rank]->steps[walker->step];
    if (step->kind == LAP_STEP_WAIT && !pass(plan, rank, step->signal, step->count))
        return false;
    if (step->kind == LAP_STEP_GEMM && !pass_blocks(plan, rank, step))
        return false;
    if (step->kind == LAP_STEP_PUT)
        add_message(plan, rank, walker->step);
    else if (step->kind != LAP_STEP_WAIT && step->kind != LAP_STEP_RAISE)
        walker->floor = larger(walker->floor, walker->last);
    walker->step++;
    return true;
}

static lap_status_t walk(plan_t *plan)
{
    bool moved = true;
    while (moved) {
        moved = false;
        for (int rank = 0; rank < plan->size; rank++)
            while (plan->walkers[rank].step < plan->schedules[rank]->nsteps &&
                   take_step(plan, rank))
                moved = true;
    }
    for (int rank = 0; rank < plan->size; rank++)
        if (plan->walkers[rank].step < plan->schedules[rank]->nsteps)
            return lap_error(LAP_ERR_INTERNAL,
                             "%s: step %u of rank %d waits for data that no rank sends",
                             plan->schedules[rank]->method, plan->walkers[rank].step, rank);
    return LAP_OK;
}

/* ---- what a schedule may have ---- */

static lap_status_t check_step(const plan_t *plan, int rank, uint32_t index, bool *begun)
{
    const lap_schedule_t *schedule = plan->schedules[rank];
    const lap_step_t *step = &schedule->steps[index];
    bool fits = true;
    for (uint32_t b = 0; step->kind == LAP_STEP_GEMM && b < step->count; b++)
        fits = fits && schedule->blocks[step->first + b].raise_signal == LAP_NO_SIGNAL;
    /* A put has ended when its round has, and the stream goes on; its own event would not say so. */
    for (uint16_t d = 0; d < step->ndeps; d++)
        fits = fits && schedule->steps[step->deps[d]].kind != LAP_STEP_PUT;
    if (step->kind == LAP_STEP_RAISE)
        fits = fits && is_credit(plan, step->signal) && !*begun;
    else
        *begun = true;
    if (fits)
        return LAP_OK;
    return lap_error(LAP_ERR_UNSUPPORTED,
                     "%s: step %u of rank %d raises a signal that is not an initial credit, or "
                     "depends on a put: a transport with two-sided puts cannot do that",
                     schedule->method, index, rank);
}

static bool uses_as_it_comes(const lap_schedule_t *schedule)
{
    bool found = false;
    for (uint32_t i = 0; i < schedule->nsteps; i++)
        found = found || (schedule->steps[i].kind == LAP_STEP_GEMM && schedule->steps[i].any_order);
    return found;
}

static lap_status_t check_schedule(plan_t *plan, int rank)
{
    const lap_schedule_t *schedule = plan->schedules[rank];
    bool begun = false;
    for (uint32_t i = 0; i < schedule->nsteps; i++) {
        LAP_TRY(check_step(plan, rank, i, &begun));
        plan->room += schedule->steps[i].kind == LAP_STEP_PUT;
    }
    plan->walkers[rank].apart = uses_as_it_comes(schedule);
    return LAP_OK;
}

/* ---- the part of one rank ---- */

static lap_lack_t lack_of(const plan_t *plan, int rank, const message_t *message)
{
    if (message->from == rank)
        return (lap_lack_t){message->to, lap_signal_credit(plan->size, message->to), 1};
    const uint32_t signal =
        message->signal == LAP_NO_SIGNAL ? lap_signal_data(message->from) : message->signal;
    uint32_t count = 1;
    const uint32_t number = (uint32_t)(message - plan->messages);
    for (uint32_t at = plan->heads[(size_t)rank * plan->nsignals + signal];
         at != NONE && at < number; at = plan->messages[at].next)
        count++;
    return (lap_lack_t){message->from, signal, count};
}

static lap_receive_t receive_of(const plan_t *plan, const message_t *message)
{
    const lap_step_t *step = &plan->schedules[message->from]->steps[message->step];
    return (lap_receive_t){
        .peer = message->from,
        .offset = step->dst.offset,
        .stride = step->dst.stride,
        .rows = step->src.rows,
        .row_bytes = step->src.row_bytes,
    };
}

/* By rounds; those of one sender stay in the order in which it sends them. */
static int compare(const void *a, const void *b)
{
    const message_t *x = *(const message_t *const *)a, *y = *(const message_t *const *)b;
    if (x->round != y->round)
        return x->round < y->round ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Adds a message to the last round of the rank, or begins another one with it. */
static void put_into_round(const plan_t *plan, int rank, message_t *message, uint32_t round,
                           uint32_t *last, lap_rounds_t *rounds)
{
    if (rounds->nrounds == 0 || round != *last) {
        lap_round_t *begun = &rounds->rounds[rounds->nrounds++];
        const lap_round_t *before = begun - 1;
        *begun = (lap_round_t){
            .sends = rounds->sends, .receives = rounds->receives, .lacks = rounds->lacks};
        if (rounds->nrounds > 1) {
            begun->sends = before->sends + before->nsends;
            begun->receives = before->receives + before->nreceives;
            begun->lacks = before->lacks + before->nlacks;
        }
        rounds->steps[rounds->nrounds - 1] = NONE;
    }
    *last = round;
    const uint32_t place = rounds->nrounds - 1;
    lap_round_t *own = &rounds->rounds[place];
    rounds->lacks[own->lacks - rounds->lacks + own->nlacks++] = lack_of(plan, rank, message);
    uint32_t held = message->step;
    if (message->from == rank) {
        own->nsends++;
        rounds->nsends++;
    } else {
        rounds->receives[own->receives - rounds->receives + own->nreceives++] =
            receive_of(plan, message);
        message->place = place;
        held = message->waited;
    }
    if (held < rounds->steps[place])
        rounds->steps[place] = held;
}

/* Which round brings each signal. */
static void list_arrivals(const plan_t *plan, int rank, lap_rounds_t *rounds)
{
    uint32_t count = 0;
    for (uint32_t signal = 0; signal < plan->nsignals; signal++) {
        rounds->first_arrival[signal] = count;
        for (uint32_t at = plan->heads[(size_t)rank * plan->nsignals + signal]; at != NONE;
             at = plan->messages[at].next)
            rounds->arrivals[count++] = plan->messages[at].place;
    }
    rounds->first_arrival[plan->nsignals] = count;
}

static lap_status_t make_part(const plan_t *plan, int rank, lap_rounds_t *rounds)
{
    uint32_t own = 0, last = 0;
    for (uint32_t i = 0; i < plan->nmessages; i++)
        own += plan->messages[i].from == rank || plan->messages[i].to == rank;
    message_t **list = lap_alloc(own, sizeof(message_t *));
    rounds->rounds = lap_alloc(own, sizeof(*rounds->rounds));
    rounds->steps = lap_alloc(own, sizeof(*rounds->steps));
    rounds->sends = lap_alloc(own, sizeof(*rounds->sends));
    rounds->receives = lap_alloc(own, sizeof(*rounds->receives));
    rounds->lacks = lap_alloc(own, sizeof(*rounds->lacks));
    rounds->arrivals = lap_alloc(own, sizeof(*rounds->arrivals));
    rounds->first_arrival = lap_alloc((size_t)plan->nsignals + 1, sizeof(uint32_t));
    rounds->nsignals = plan->nsignals;
    if (!list || !rounds->rounds || !rounds->steps || !rounds->sends || !rounds->receives ||
        !rounds->lacks || !rounds->arrivals || !rounds->first_arrival) {
        lap_free(list);
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the rounds of %u puts", own);
    }
    own = 0;
    for (uint32_t i = 0; i < plan->nmessages; i++)
        if (plan->messages[i].from == rank || plan->messages[i].to == rank)
            list[own++] = &plan->messages[i];
    qsort(list, own, sizeof(*list), compare);
    for (uint32_t i = 0; i < own; i++)
        put_into_round(plan, rank, list[i], list[i]->round, &last, rounds);
    for (uint32_t r = 0; r < rounds->nrounds; r++)
        if (rounds->steps[r] == NONE) /* a later signal of the same peer speaks for it */
            rounds->steps[r] = 0;
    list_arrivals(plan, rank, rounds);
    lap_free(list);
    return LAP_OK;
}

/* ---- the whole ---- */

static lap_status_t make_plan(plan_t *plan)
{
    const size_t words = (size_t)plan->size * plan->nsignals;
    plan->walkers = lap_alloc((size_t)plan->size, sizeof(*plan->walkers));
    plan->heads = lap_alloc(words, sizeof(*plan->heads));
    plan->tails = lap_alloc(words, sizeof(*plan->tails));
    if (!plan->walkers || !plan->heads || !plan->tails)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the rounds of %d ranks", plan->size);
    for (size_t i = 0; i < words; i++)
        plan->heads[i] = NONE;
    for (int rank = 0; rank < plan->size; rank++)
        LAP_TRY(check_schedule(plan, rank));
    plan->messages = lap_alloc(plan->room, sizeof(*plan->messages));
    if (!plan->messages)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the rounds of %u puts", plan->room);
    return walk(plan);
}

static void clear_plan(const plan_t *plan)
{
    lap_free(plan->walkers);
    lap_free(plan->heads);
    lap_free(plan->tails);
    lap_free(plan->messages);
}

lap_status_t lap_rounds_plan(const lap_schedule_t *const *schedules, int size, int rank,
                             lap_rounds_t *rounds_p)
{
    plan_t plan = {.schedules = schedules, .size = size, .nsignals = lap_signal_count(size)};
    lap_rounds_t rounds = {.nrounds = 0};
    lap_status_t status = make_plan(&plan);
    if (status == LAP_OK)
        status = make_part(&plan, rank, &rounds);
    clear_plan(&plan);
    if (status == LAP_OK)
        *rounds_p = rounds;
    else
        lap_rounds_clear(&rounds);
    return status;
}

lap_status_t lap_rounds_plan_all(const lap_schedule_t *const *schedules, int size,
                                 lap_rounds_t *parts)
{
    plan_t plan = {.schedules = schedules, .size = size, .nsignals = lap_signal_count(size)};
    lap_status_t status = make_plan(&plan);
    memset(parts, 0, (size_t)size * sizeof(*parts));
    for (int rank = 0; rank < size && status == LAP_OK; rank++)
        status = make_part(&plan, rank, &parts[rank]);
    for (int rank = 0; rank < size && status != LAP_OK; rank++)
        lap_rounds_clear(&parts[rank]);
    clear_plan(&plan);
    return status;
}

void lap_rounds_clear(lap_rounds_t *rounds)
{
    lap_free(rounds->rounds);
    lap_free(rounds->steps);
    lap_free(rounds->sends);
    lap_free(rounds->receives);
    lap_free(rounds->lacks);
    lap_free(rounds->arrivals);
    lap_free(rounds->first_arrival);
    memset(rounds, 0, sizeof(*rounds));
}

bool lap_rounds_of(const lap_rounds_t *rounds, uint32_t signal, uint32_t count, uint32_t *round_p)
{
    const uint32_t first = rounds->first_arrival[signal];
    if (count == 0 || count > rounds->first_arrival[signal + 1] - first)
        return false;
    *round_p = rounds->arrivals[first + count - 1];
    return true;
}
