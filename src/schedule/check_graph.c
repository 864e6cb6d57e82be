/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The second part of the checker: the graph. Its edges are the order of each stream, the
 * dependencies between streams, and the calls, which all streams of a rank begin and end together.
 * The signals are only listed here, by the number of the raise that each wait needs; check_order.c
 * finds out which raise that is.
 */
#include "schedule/check.h"

#include "core/status.h"
#include "util/alloc.h"

/* A schedule being turned into nodes. */
typedef struct maker {
    lap_check_t *check;
    const lap_schedule_t *schedule;
    uint32_t call;
    int rank;
    uint32_t last[LAP_STREAMS]; /* the latest node of each stream */
    uint32_t *step_ends;        /* the last node of each step so far */
    uint32_t *accounted;        /* per word: raises that earlier calls account for */
} maker_t;

static size_t word_index(const lap_check_t *check, int rank, uint32_t signal)
{
    return (size_t)rank * check->nsignals + signal;
}

static uint32_t stream_thread(int rank, uint32_t stream)
{
    return (uint32_t)rank * LAP_STREAMS + stream;
}

/*
 * Appends a node. Edges into it follow with add_edge. A thread of LAP_CHECK_NONE: it never speaks
 * for itself.
 */
static uint32_t add_node(maker_t *maker, lap_node_kind_t kind, uint32_t step, uint32_t thread)
{
    lap_check_t *check = maker->check;
    if (check->status != LAP_OK)
        return 0;
    lap_node_t *nodes =
        lap_check_grow(check, check->nodes, check->nnodes, &check->nodes_room, sizeof(lap_node_t));
    if (!nodes)
        return 0;
    check->nodes = nodes;
    nodes[check->nnodes] = (lap_node_t){
        .kind = kind,
        .call = maker->call,
        .rank = maker->rank,
        .step = step,
        .thread = thread,
        .tick = thread == LAP_CHECK_NONE ? 0 : ++check->ticks[thread],
        .voice = check->nnodes,
        .first_pred = check->npreds,
        .wait = LAP_CHECK_NONE,
        .next_waiter = LAP_CHECK_NONE,
        .raise_rank = maker->rank,
        .raise_signal = LAP_NO_SIGNAL,
        .moment = LAP_CHECK_NONE,
    };
    return check->nnodes++;
}

/* `earlier` happens before the node that was added last. */
static void add_edge(maker_t *maker, uint32_t earlier)
{
    lap_check_t *check = maker->check;
    if (check->status != LAP_OK)
        return;
    uint32_t *preds =
        lap_check_grow(check, check->preds, check->npreds, &check->preds_room, sizeof(uint32_t));
    if (!preds)
        return;
    check->preds = preds;
    preds[check->npreds++] = earlier;
    lap_node_t *node = &check->nodes[check->nnodes - 1];
    node->npreds++;
    node->pending++;
}

static void set_wait(maker_t *maker, uint32_t index, uint32_t signal, uint32_t count)
{
    lap_check_t *check = maker->check;
    if (check->status != LAP_OK)
        return;
    size_t word = word_index(check, maker->rank, signal);
    lap_node_t *node = &check->nodes[index];
    node->wait = check->first_moment[word] + maker->accounted[word] + count - 1;
    node->next_waiter = check->moments[node->wait].waiters;
    check->moments[node->wait].waiters = index;
    node->pending++;
}

static void set_raise(maker_t *maker, uint32_t index, int peer, uint32_t signal)
{
    if (maker->check->status != LAP_OK)
        return;
    maker->check->nodes[index].raise_rank = peer;
    maker->check->nodes[index].raise_signal = signal;
}

static uint32_t add_block(maker_t *maker, uint32_t step, uint32_t index, uint32_t thread,
                          uint32_t earlier)
{
    const lap_block_t *block = &maker->schedule->blocks[index];
    uint32_t node = add_node(maker, LAP_NODE_BLOCK, step, thread);
    add_edge(maker, earlier);
    if (maker->check->status != LAP_OK)
        return 0;
    maker->check->nodes[node].block = index;
    if (block->wait_signal != LAP_NO_SIGNAL)
        set_wait(maker, node, block->wait_signal, block->wait_count);
    if (block->raise_signal != LAP_NO_SIGNAL)
        set_raise(maker, node, block->raise_peer, block->raise_signal);
    return node;
}

/*
 * Adds the blocks of a GEMM and a node for its end. In any order, a block that raises is a thread
 * by itself; one that does not is seen by others only through the end of the step, which then
 * speaks for it and saves a thread.
 */
static uint32_t add_blocks(maker_t *maker, uint32_t index, uint32_t begin)
{
    lap_check_t *check = maker->check;
    const lap_step_t *step = &maker->schedule->steps[index];
    uint32_t thread = stream_thread(maker->rank, step->stream), before = begin;
    uint32_t raising = check->block_thread[thread];
    for (uint32_t i = step->first; i < step->first + step->count; i++) {
        uint32_t own = thread;
        if (step->any_order)
            own = maker->schedule->blocks[i].raise_signal == LAP_NO_SIGNAL ? LAP_CHECK_NONE
                                                                           : raising++;
        before = add_block(maker, index, i, own, step->any_order ? begin : before);
    }
    uint32_t end = add_node(maker, LAP_NODE_STEP, index, thread);
    if (!step->any_order || step->count == 0) {
        add_edge(maker, before);
        return end;
    }
    for (uint32_t node = begin + 1; node < end && check->status == LAP_OK; node++) {
        add_edge(maker, node);
        if (check->nodes[node].thread == LAP_CHECK_NONE)
            check->nodes[node].voice = end;
    }
    return end;
}

static void add_step(maker_t *maker, uint32_t index)
{
    const lap_step_t *step = &maker->schedule->steps[index];
    uint32_t node = add_node(maker, LAP_NODE_STEP, index, stream_thread(maker->rank, step->stream));
    add_edge(maker, maker->last[step->stream]);
    for (uint16_t i = 0; i < step->ndeps; i++)
        add_edge(maker, maker->step_ends[step->deps[i]]);
    if (step->kind == LAP_STEP_GEMM)
        node = add_blocks(maker, index, node);
    else if (step->kind == LAP_STEP_WAIT)
        set_wait(maker, node, step->signal, step->count);
    else if (step->kind == LAP_STEP_PUT || step->kind == LAP_STEP_RAISE)
        set_raise(maker, node, step->peer, step->signal);
    maker->last[step->stream] = maker->step_ends[index] = node;
}

static void add_call(maker_t *maker)
{
    lap_check_t *check = maker->check;
    size_t at = (size_t)maker->call * (size_t)check->size + (size_t)maker->rank;
    uint32_t thread = stream_thread(maker->rank, LAP_STREAM_COMPUTE);
    check->begins[at] = add_node(maker, LAP_NODE_BEGIN, 0, thread);
    if (maker->call > 0)
        add_edge(maker, check->ends[at - (size_t)check->size]);
    for (int stream = 0; stream < LAP_STREAMS; stream++)
        maker->last[stream] = check->begins[at];
    for (uint32_t step = 0; step < maker->schedule->nsteps; step++)
        add_step(maker, step);
    check->ends[at] = add_node(maker, LAP_NODE_END, 0, thread);
    for (int stream = 0; stream < LAP_STREAMS; stream++)
        add_edge(maker, maker->last[stream]);
    for (uint32_t signal = 0; signal < check->nsignals; signal++)
        maker->accounted[word_index(check, maker->rank, signal)] += maker->schedule->raised[signal];
}

/*
 * Gives each stream of each rank as many more threads as its GEMMs have raising blocks in any
 * order.
 */
static lap_status_t count_threads(lap_check_t *check)
{
    uint32_t nstreams = stream_thread(check->size, 0);
    check->block_thread = lap_alloc(nstreams, sizeof(uint32_t));
    if (!check->block_thread)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to check %d ranks", check->size);
    for (size_t i = 0; i < (size_t)check->ncalls * (size_t)check->size; i++) {
        const lap_schedule_t *schedule = check->schedules[i];
        for (uint32_t j = 0; j < schedule->nsteps; j++) {
            const lap_step_t *step = &schedule->steps[j];
            uint32_t *most = &check->block_thread[stream_thread(schedule->rank, step->stream)];
            uint32_t raising = 0;
            for (uint32_t b = 0; step->kind == LAP_STEP_GEMM && step->any_order && b < step->count;
                 b++)
                raising += schedule->blocks[step->first + b].raise_signal != LAP_NO_SIGNAL;
            *most = raising > *most ? raising : *most;
        }
    }
    check->nthreads = nstreams;
    for (uint32_t i = 0; i < nstreams; i++) {
        uint32_t count = check->block_thread[i];
        check->block_thread[i] = check->nthreads;
        check->nthreads += count;
    }
    check->ticks = lap_alloc(check->nthreads, sizeof(uint32_t));
    return check->ticks ? LAP_OK
                        : lap_error(LAP_ERR_NO_MEMORY, "no memory to check %u threads",
                                    (unsigned)check->nthreads);
}

/* Lists every raise that the calls account for. */
static lap_status_t list_moments(lap_check_t *check)
{
    size_t nwords = (size_t)check->size * check->nsignals, total = 0;
    check->raised = lap_alloc(nwords, sizeof(uint32_t));
    check->first_moment = lap_alloc(nwords + 1, sizeof(uint32_t));
    for (size_t i = 0; i < (size_t)check->ncalls * (size_t)check->size; i++)
        for (uint32_t signal = 0; signal < check->nsignals; signal++)
            total += check->schedules[i]->raised[signal];
    if (total < UINT32_MAX)
        check->moments = lap_alloc(total, sizeof(lap_moment_t));
    if (!check->raised || !check->first_moment || !check->moments)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to check %zu signals", total);
    uint32_t at = 0;
    for (size_t word = 0; word < nwords; word++) {
        int rank = (int)(word / check->nsignals);
        check->first_moment[word] = at;
        for (uint32_t call = 0; call < check->ncalls; call++) {
            uint32_t count = lap_check_schedule(check, call, rank)->raised[word % check->nsignals];
            for (uint32_t i = 0; i < count; i++)
                check->moments[at++] = (lap_moment_t){LAP_CHECK_NONE, LAP_CHECK_NONE, call};
        }
    }
    check->first_moment[nwords] = at;
    return LAP_OK;
}

lap_status_t lap_check_graph(lap_check_t *check)
{
    size_t ncalls = (size_t)check->ncalls * (size_t)check->size;
    uint32_t most = 0;
    LAP_TRY(count_threads(check));
    LAP_TRY(list_moments(check));
    for (size_t i = 0; i < ncalls; i++)
        most = check->schedules[i]->nsteps > most ? check->schedules[i]->nsteps : most;
    maker_t maker = {.check = check};
    maker.step_ends = lap_alloc(most, sizeof(uint32_t));
    maker.accounted = lap_alloc((size_t)check->size * check->nsignals, sizeof(uint32_t));
    check->begins = lap_alloc(ncalls, sizeof(uint32_t));
    check->ends = lap_alloc(ncalls, sizeof(uint32_t));
    if (!maker.step_ends || !maker.accounted || !check->begins || !check->ends)
        check->status = lap_error(LAP_ERR_NO_MEMORY, "no memory to check %zu schedules", ncalls);
    for (size_t i = 0; i < ncalls && check->status == LAP_OK; i++) {
        maker.schedule = check->schedules[i];
        maker.call = (uint32_t)(i / (size_t)check->size);
        maker.rank = (int)(i % (size_t)check->size);
        add_call(&maker);
    }
    lap_free(maker.step_ends);
    lap_free(maker.accounted);
    return check->status;
}
