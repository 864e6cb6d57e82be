/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The third part of the checker: the order. One execution is played through, and the clock of each
 * node is the join of all that it needed. The raises of a word must come in one order in every
 * execution; then raise t of a word is always the same node, a wait for count t always learns of
 * that node, and the clocks hold for every execution. Words only count up, so that what can run in
 * one execution can run in all: a wait that blocks here blocks always.
 */
#include "schedule/check.h"

#include <string.h>

#include "core/status.h"
#include "util/alloc.h"

/* Nodes that may run, and for each node those that follow it. */
typedef struct play {
    lap_check_t *check;
    uint32_t *queue, head, tail;
    uint32_t *first_next,
        *next;           /* successors of node i: next[first_next[i] .. first_next[i + 1]) */
    uint32_t *last_sent; /* the latest node of each rank that sends to each other one */
} play_t;

static void release(play_t *play, uint32_t node)
{
    if (--play->check->nodes[node].pending == 0)
        play->queue[play->tail++] = node;
}

static uint32_t *clock_of(const lap_check_t *check, uint32_t node)
{
    return &check->clocks[(size_t)node * check->nthreads];
}

static void join(const lap_check_t *check, uint32_t node, uint32_t earlier)
{
    uint32_t *clock = clock_of(check, node);
    const uint32_t *other = clock_of(check, earlier);
    for (uint32_t i = 0; i < check->nthreads; i++)
        clock[i] = clock[i] > other[i] ? clock[i] : other[i];
}

/* Two raises without an order: a wait cannot know which of the two it saw. */
static lap_status_t ambiguous(const lap_check_t *check, uint32_t one, uint32_t other)
{
    char a[LAP_CHECK_TEXT], b[LAP_CHECK_TEXT];
    lap_check_describe(check, one, a, sizeof(a));
    lap_check_describe(check, other, b, sizeof(b));
    return lap_error(LAP_ERR_CHECK,
                     "ambiguous signal: %s and %s both raise signal %u of rank %d with no order "
                     "between them",
                     a, b, (unsigned)check->nodes[one].raise_signal, check->nodes[one].raise_rank);
}

/* A raise that its receiver does not account for in that call. */
static lap_status_t unexpected(const lap_check_t *check, uint32_t index)
{
    const lap_node_t *node = &check->nodes[index];
    char text[LAP_CHECK_TEXT];
    lap_check_describe(check, index, text, sizeof(text));
    return lap_error(
        LAP_ERR_CHECK,
        "miscounted signal: %s raises signal %u of rank %d, which expects %u raises of "
        "it in call %u and accounts for this one in another call or in none",
        text, (unsigned)node->raise_signal, node->raise_rank,
        (unsigned)lap_check_raised(check, node->raise_call, node->raise_rank, node->raise_signal),
        (unsigned)node->raise_call);
}

/* Whether a raise of a word comes before another in every execution. */
static bool raised_before(const lap_check_t *check, uint32_t earlier, uint32_t later)
{
    if (check->nodes[earlier].rank == check->nodes[later].rank)
        return lap_check_before(check, earlier, later);
    return lap_check_arrived(check, earlier, later);
}

static lap_status_t raise_signal(play_t *play, uint32_t index)
{
    lap_check_t *check = play->check;
    lap_node_t *node = &check->nodes[index];
    if (node->raise_signal == LAP_NO_SIGNAL)
        return LAP_OK;
    size_t word = (size_t)node->raise_rank * check->nsignals + node->raise_signal;
    uint32_t at = check->first_moment[word] + check->raised[word];
    if (check->raised[word] > 0) {
        uint32_t before = check->moments[at - 1].raise;
        if (!raised_before(check, before, index))
            return ambiguous(check, before, index);
    }
    if (at == check->first_moment[word + 1] || check->moments[at].call != node->raise_call)
        return unexpected(check, index);
    check->raised[word]++;
    check->moments[at].raise = index;
    node->moment = at;
    for (uint32_t waiter = check->moments[at].waiters; waiter != LAP_CHECK_NONE;
         waiter = check->nodes[waiter].next_waiter)
        release(play, waiter);
    return LAP_OK;
}

/* What one rank sends to another comes in this order: see lap_check_arrived. */
static void note_sent(play_t *play, uint32_t index)
{
    lap_check_t *check = play->check;
    lap_node_t *node = &check->nodes[index];
    node->next_sent = LAP_CHECK_NONE;
    if (node->raise_rank == node->rank)
        return;
    uint32_t *last =
        &play->last_sent[(size_t)node->rank * (size_t)check->size + (size_t)node->raise_rank];
    if (*last != LAP_CHECK_NONE)
        check->nodes[*last].next_sent = index;
    *last = index;
}

static lap_status_t run_node(play_t *play, uint32_t index)
{
    lap_check_t *check = play->check;
    lap_node_t *node = &check->nodes[index];
    for (uint32_t i = 0; i < node->npreds; i++)
        join(check, index, check->preds[node->first_pred + i]);
    if (node->wait != LAP_CHECK_NONE)
        join(check, index, check->moments[node->wait].raise);
    if (node->thread != LAP_CHECK_NONE)
        clock_of(check, index)[node->thread] = node->tick;
    node->done = true;
    note_sent(play, index);
    LAP_TRY(raise_signal(play, index));
    for (uint32_t i = play->first_next[index]; i < play->first_next[index + 1]; i++)
        release(play, play->next[i]);
    return LAP_OK;
}

static void list_successors(play_t *play)
{
    const lap_check_t *check = play->check;
    uint32_t *first = play->first_next;
    for (uint32_t i = 0; i < check->npreds; i++)
        first[check->preds[i] + 1]++;
    for (uint32_t i = 0; i < check->nnodes; i++)
        first[i + 1] += first[i];
    /* Filling moves each start to the next node's; going backward puts them right again. */
    for (uint32_t node = 0; node < check->nnodes; node++)
        for (uint32_t i = 0; i < check->nodes[node].npreds; i++)
            play->next[first[check->preds[check->nodes[node].first_pred + i]]++] = node;
    memmove(first + 1, first, check->nnodes * sizeof(*first));
    first[0] = 0;
}

/* The first node that should raise a signal for this wait and has not. */
static uint32_t missing_raise(const lap_check_t *check, const lap_node_t *wait, uint32_t signal)
{
    for (uint32_t i = 0; i < check->nnodes; i++) {
        const lap_node_t *node = &check->nodes[i];
        if (!node->done && node->raise_signal == signal && node->raise_rank == wait->rank &&
            node->raise_call <= wait->call)
            return i;
    }
    return LAP_CHECK_NONE;
}

static uint32_t waited_signal(const lap_check_t *check, const lap_node_t *node)
{
    const lap_schedule_t *schedule = lap_check_schedule(check, node->call, node->rank);
    return lap_check_signal(check, node->call, node->rank,
                            node->kind == LAP_NODE_TILE ? schedule->tiles[node->tile].wait.word
                                                        : schedule->steps[node->step].signal.word);
}

static lap_status_t deadlock(const lap_check_t *check, uint32_t index)
{
    const lap_node_t *node = &check->nodes[index];
    uint32_t signal = waited_signal(check, node);
    size_t word = (size_t)node->rank * check->nsignals + signal;
    uint32_t culprit = missing_raise(check, node, signal);
    char wait[LAP_CHECK_TEXT], raise[LAP_CHECK_TEXT] = "nothing";
    lap_check_describe(check, index, wait, sizeof(wait));
    if (culprit != LAP_CHECK_NONE)
        lap_check_describe(check, culprit, raise, sizeof(raise));
    return lap_error(LAP_ERR_CHECK,
                     "deadlock: %s waits for raise %u of its signal, counted from the first call, "
                     "and gets %u; %s would raise it%s",
                     wait, (unsigned)(node->wait - check->first_moment[word] + 1),
                     (unsigned)check->raised[word], raise,
                     culprit == LAP_CHECK_NONE ? "" : ", but never runs");
}

/*
 * Nothing can run any more. A node that only a signal holds up is what the others wait for in the
 * end.
 */
static lap_status_t check_deadlock(const play_t *play)
{
    const lap_check_t *check = play->check;
    if (play->tail == check->nnodes)
        return LAP_OK;
    for (uint32_t i = 0; i < check->nnodes; i++) {
        const lap_node_t *node = &check->nodes[i];
        if (!node->done && node->wait != LAP_CHECK_NONE && node->pending == 1) {
            bool ready = check->moments[node->wait].raise == LAP_CHECK_NONE;
            for (uint32_t p = 0; p < node->npreds; p++)
                ready = ready && check->nodes[check->preds[node->first_pred + p]].done;
            if (ready)
                return deadlock(check, i);
        }
    }
    return lap_error(LAP_ERR_INTERNAL, "the graph of the schedules has a cycle");
}

/* A signal that its owner may not have got by the end of the call that accounts for it. */
static lap_status_t stray(const lap_check_t *check, size_t word, const lap_moment_t *moment)
{
    uint32_t rank = (uint32_t)(word / check->nsignals), signal = (uint32_t)(word % check->nsignals);
    char text[LAP_CHECK_TEXT] = "nothing";
    if (moment->raise != LAP_CHECK_NONE)
        lap_check_describe(check, moment->raise, text, sizeof(text));
    return lap_error(LAP_ERR_CHECK,
                     "stray signal: rank %u expects signal %u to be raised %u times in call %u, "
                     "and may end the call before %s has raised it",
                     (unsigned)rank, (unsigned)signal,
                     (unsigned)lap_check_raised(check, moment->call, (int)rank, signal),
                     (unsigned)moment->call, text);
}

/*
 * A wait of an earlier call on a word must be over before the word is raised in a later one: after
 * a wait a rank looks at the word's tag, to see whether it was raised for the same call.
 */
static lap_status_t check_late_waits(const lap_check_t *check, const lap_moment_t *earlier,
                                     const lap_moment_t *later)
{
    for (uint32_t waiter = earlier->waiters; waiter != LAP_CHECK_NONE;
         waiter = check->nodes[waiter].next_waiter) {
        if (lap_check_before(check, waiter, later->raise))
            continue;
        char wait[LAP_CHECK_TEXT], raise[LAP_CHECK_TEXT];
        lap_check_describe(check, waiter, wait, sizeof(wait));
        lap_check_describe(check, later->raise, raise, sizeof(raise));
        return lap_error(LAP_ERR_CHECK,
                         "early signal: %s may raise signal %u of rank %d again before %s is over",
                         raise, (unsigned)check->nodes[later->raise].raise_signal,
                         check->nodes[later->raise].raise_rank, wait);
    }
    return LAP_OK;
}

/* The raises of one word. Those of a call come one after the other, so its first one decides. */
static lap_status_t check_word(const lap_check_t *check, size_t word)
{
    const lap_moment_t *moments = check->moments;
    const uint32_t first = check->first_moment[word], last = check->first_moment[word + 1];
    uint32_t call_first = first; /* of the call before that of `at` */
    for (uint32_t at = first; at < last; at++) {
        const int owner = (int)(word / check->nsignals);
        uint32_t end = check->ends[lap_check_at(check, moments[at].call, owner)];
        if (moments[at].raise == LAP_CHECK_NONE ||
            !lap_check_arrived(check, moments[at].raise, end))
            return stray(check, word, &moments[at]);
        if (at == first || moments[at].call == moments[at - 1].call)
            continue;
        for (; call_first < at; call_first++)
            LAP_TRY(check_late_waits(check, &moments[call_first], &moments[at]));
    }
    return LAP_OK;
}

static lap_status_t uncounted(const lap_check_t *check, uint32_t consume, uint32_t signal)
{
    char first[LAP_CHECK_TEXT], second[LAP_CHECK_TEXT];
    lap_check_describe(check, consume, first, sizeof(first));
    lap_check_describe(check, signal, second, sizeof(second));
    return lap_error(LAP_ERR_CHECK, "uncounted signals: %s may run before %s is over", second,
                     first);
}

/*
 * Where streams count the signals of a buffer, what a fragment raises or waits for is counted from
 * the CONSUME of the one before it. `latest`: of each buffer of each rank.
 */
static lap_status_t check_counts(const lap_check_t *check, uint32_t nbuffers, uint32_t *latest)
{
    for (uint32_t i = 0; i < check->nnodes; i++) {
        const lap_node_t *node = &check->nodes[i];
        if (node->kind != LAP_NODE_STEP)
            continue;
        const lap_fragment_t *fragment = lap_check_fragment(check, node->call, node->rank);
        const lap_schedule_t *schedule = &fragment->schedule;
        uint32_t *consume = &latest[(size_t)node->rank * nbuffers + fragment->buffer];
        if (!lap_link_counts(schedule, node->step))
            continue;
        if (*consume != LAP_CHECK_NONE && check->nodes[*consume].call != node->call &&
            !lap_check_before(check, *consume, i))
            return uncounted(check, *consume, i);
        if (schedule->steps[node->step].kind == LAP_STEP_CONSUME)
            *consume = i;
    }
    return LAP_OK;
}

static lap_status_t check_consumes(const lap_check_t *check)
{
    const uint32_t nbuffers = check->nsignals / check->buffer_words;
    const size_t count = (size_t)check->size * nbuffers;
    uint32_t *latest = lap_alloc(count, sizeof(*latest));
    if (!latest)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to check %zu buffers", count);
    for (size_t i = 0; i < count; i++)
        latest[i] = LAP_CHECK_NONE;
    const lap_status_t status = check_counts(check, nbuffers, latest);
    lap_free(latest);
    return status;
}

lap_status_t lap_check_signals(const lap_check_t *check)
{
    size_t nwords = (size_t)check->size * check->nsignals;
    for (size_t word = 0; word < nwords; word++)
        LAP_TRY(check_word(check, word));
    return check->programs ? check_consumes(check) : LAP_OK;
}

lap_status_t lap_check_order(lap_check_t *check)
{
    play_t play = {.check = check};
    lap_status_t status = LAP_OK;
    check->clocks = lap_alloc((size_t)check->nnodes * check->nthreads, sizeof(uint32_t));
    play.queue = lap_alloc(check->nnodes, sizeof(uint32_t));
    play.first_next = lap_alloc((size_t)check->nnodes + 1, sizeof(uint32_t));
    play.next = lap_alloc(check->npreds, sizeof(uint32_t));
    const size_t pairs = (size_t)check->size * (size_t)check->size;
    play.last_sent = lap_alloc(pairs, sizeof(uint32_t));
    if (!check->clocks || !play.queue || !play.first_next || !play.next || !play.last_sent) {
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for %u clocks of %u threads",
                           (unsigned)check->nnodes, (unsigned)check->nthreads);
        goto out;
    }
    memset(play.last_sent, 0xff, pairs * sizeof(uint32_t)); /* LAP_CHECK_NONE */
    list_successors(&play);
    for (uint32_t i = 0; i < check->nnodes; i++)
        if (check->nodes[i].pending == 0)
            play.queue[play.tail++] = i;
    while (status == LAP_OK && play.head < play.tail)
        status = run_node(&play, play.queue[play.head++]);
    if (status == LAP_OK)
        status = check_deadlock(&play);
out:
    check->sequence = play.queue;
    lap_free(play.first_next);
    lap_free(play.next);
    lap_free(play.last_sent);
    return status;
}
