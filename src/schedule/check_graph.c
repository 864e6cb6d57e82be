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
    uint32_t *last;      /* the latest node of each stream of each rank; LAP_CHECK_NONE: none */
    uint32_t *in_line;   /* of each rank: the latest node, whatever its stream */
    uint32_t *step_ends; /* the last node of each step of each call of each rank */
    size_t *first_ends;  /* where those of a call begin, [call * size + rank] */
    uint32_t *accounted; /* per word: raises that earlier calls account for */
} maker_t;

static size_t word_index(const lap_check_t *check, int rank, uint32_t signal)
{
    return (size_t)rank * check->nsignals + signal;
}

/* The words of a call of a rank follow one another from there. */
static size_t first_word(const lap_check_t *check, uint32_t call, int rank)
{
    return word_index(check, rank, lap_check_signal(check, call, rank, 0));
}

/* Streams that no schedule uses are no threads. */
static uint32_t stream_thread(const lap_check_t *check, int rank, uint32_t stream)
{
    return (uint32_t)rank * check->nstreams + check->streams[stream];
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
        .raise_call = maker->call,
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

static void set_wait(maker_t *maker, uint32_t index, const lap_signal_t *signal)
{
    lap_check_t *check = maker->check;
    if (check->status != LAP_OK)
        return;
    size_t word = word_index(check, maker->rank,
                             lap_check_signal(check, maker->call, maker->rank, signal->word));
    lap_node_t *node = &check->nodes[index];
    node->wait = check->first_moment[word] + maker->accounted[word] + signal->count - 1;
    node->next_waiter = check->moments[node->wait].waiters;
    check->moments[node->wait].waiters = index;
    node->pending++;
}

static void set_raise(maker_t *maker, uint32_t index, const lap_signal_t *signal)
{
    const lap_check_t *check = maker->check;
    if (check->status != LAP_OK)
        return;
    check->nodes[index].raise_rank = lap_check_peer(check, maker->call, maker->rank, signal->peer);
    check->nodes[index].raise_call = lap_check_call(check, maker->call, maker->rank, signal->peer);
    check->nodes[index].raise_signal =
        lap_check_signal(check, maker->call, maker->rank, signal->word);
}

static uint32_t add_tile(maker_t *maker, uint32_t step, uint32_t index, uint32_t thread,
                         uint32_t earlier)
{
    const lap_tile_t *tile = &maker->schedule->tiles[index];
    uint32_t node = add_node(maker, LAP_NODE_TILE, step, thread);
    add_edge(maker, earlier);
    if (maker->check->status != LAP_OK)
        return 0;
    maker->check->nodes[node].tile = index;
    if (tile->wait.word != LAP_NO_SIGNAL)
        set_wait(maker, node, &tile->wait);
    if (tile->raise.word != LAP_NO_SIGNAL)
        set_raise(maker, node, &tile->raise);
    return node;
}

/*
 * Adds the tiles of a GEMM and a node for its end. In any order, a tile that raises is a thread
 * by itself; one that does not is seen by others only through the end of the step, which then
 * speaks for it and saves a thread.
 */
static uint32_t add_tiles(maker_t *maker, uint32_t index, uint32_t begin)
{
    lap_check_t *check = maker->check;
    const lap_step_t *step = &maker->schedule->steps[index];
    uint32_t thread = stream_thread(maker->check, maker->rank, step->stream), before = begin;
    uint32_t raising = check->tile_thread[thread];
    const bool any_order = step->any_order && !check->in_line;
    for (uint32_t i = step->first_tile; i < step->first_tile + step->ntiles; i++) {
        uint32_t own = thread;
        if (any_order)
            own =
                maker->schedule->tiles[i].raise.word == LAP_NO_SIGNAL ? LAP_CHECK_NONE : raising++;
        before = add_tile(maker, index, i, own, any_order ? begin : before);
    }
    uint32_t end = add_node(maker, LAP_NODE_STEP, index, thread);
    if (!any_order || step->ntiles == 0) {
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

static uint32_t *last_of(const maker_t *maker, int stream)
{
    return &maker->last[stream_thread(maker->check, maker->rank, (uint32_t)stream)];
}

static size_t call_index(const maker_t *maker, uint32_t call)
{
    return lap_check_at(maker->check, call, maker->rank);
}

/* An edge to the node that was added last, if there is where it would come from. */
static void add_edge_from(maker_t *maker, uint32_t earlier)
{
    if (earlier != LAP_CHECK_NONE)
        add_edge(maker, earlier);
}

static void add_links(maker_t *maker, uint32_t index)
{
    const lap_fragment_t *fragment = lap_check_fragment(maker->check, maker->call, maker->rank);
    for (uint32_t i = 0; fragment && i < fragment->nlinks; i++)
        if (fragment->links[i].step == index)
            add_edge(
                maker,
                maker->step_ends[maker->first_ends[call_index(maker, fragment->links[i].fragment)] +
                                 fragment->links[i].dep]);
}

static void add_step(maker_t *maker, uint32_t index)
{
    const lap_step_t *step = &maker->schedule->steps[index];
    uint32_t *ends = &maker->step_ends[maker->first_ends[call_index(maker, maker->call)]];
    uint32_t node = add_node(maker, LAP_NODE_STEP, index,
                             stream_thread(maker->check, maker->rank, step->stream));
    add_edge_from(maker, *last_of(maker, step->stream));
    for (uint16_t i = 0; i < step->ndeps; i++)
        add_edge(maker, ends[lap_step_dep(maker->schedule, step, i)]);
    add_links(maker, index);
    if (maker->check->in_line)
        add_edge_from(maker, maker->in_line[maker->rank]);
    if (step->kind == LAP_STEP_GEMM)
        node = add_tiles(maker, index, node);
    else if (step->kind == LAP_STEP_WAIT)
        set_wait(maker, node, &step->signal);
    else if (step->kind == LAP_STEP_PUT || step->kind == LAP_STEP_RAISE)
        set_raise(maker, node, &step->signal);
    *last_of(maker, step->stream) = ends[index] = maker->in_line[maker->rank] = node;
}

/*
 * Streams of a call of an operator begin when those of the call before have ended; those of a
 * program begin once, together.
 */
static void begin_call(maker_t *maker)
{
    lap_check_t *check = maker->check;
    const size_t at = call_index(maker, maker->call);
    check->begins[at] = add_node(maker, LAP_NODE_BEGIN, 0,
                                 stream_thread(maker->check, maker->rank, LAP_STREAM_COMPUTE));
    if (maker->call > 0)
        add_edge(maker, check->ends[at - 1]);
    uint32_t *lasts = last_of(maker, LAP_STREAM_COMPUTE); /* the first of them */
    for (uint32_t stream = 0; stream < check->nstreams; stream++)
        lasts[stream] = check->begins[at];
    maker->in_line[maker->rank] = check->begins[at];
}

/* A node that only sees: the latest steps of each stream that count are over: `waits`: all that wait. */
static uint32_t add_sight(maker_t *maker, bool waits)
{
    const lap_check_t *check = maker->check;
    const lap_linked_t *linked = check->programs[maker->rank];
    const lap_fragment_t *fragment = lap_check_fragment(check, maker->call, maker->rank);
    const uint32_t *ends = &maker->step_ends[maker->first_ends[call_index(maker, maker->call)]];
    uint32_t lasts[LAP_STREAMS];
    for (int stream = 0; stream < LAP_STREAMS; stream++)
        lasts[stream] = LAP_CHECK_NONE;
    for (uint32_t i = 0; i < fragment->schedule.nsteps; i++)
        if (lap_link_occupies(linked, fragment, i) ||
            (waits && lap_step_waits(&fragment->schedule, i)))
            lasts[fragment->schedule.steps[i].stream] = ends[i];
    const uint32_t node = add_node(maker, LAP_NODE_END, 0, LAP_CHECK_NONE);
    for (int stream = 0; stream < LAP_STREAMS; stream++)
        add_edge_from(maker, lasts[stream]);
    return node;
}

static void end_call(maker_t *maker)
{
    lap_check_t *check = maker->check;
    const size_t at = call_index(maker, maker->call);
    if (check->programs) {
        check->frees[at] = add_sight(maker, false);
        check->ends[at] = add_sight(maker, true);
        return;
    }
    check->ends[at] = add_node(maker, LAP_NODE_END, 0,
                               stream_thread(maker->check, maker->rank, LAP_STREAM_COMPUTE));
    const uint32_t *lasts = last_of(maker, LAP_STREAM_COMPUTE);
    for (uint32_t stream = 0; stream < check->nstreams; stream++)
        add_edge(maker, lasts[stream]);
}

static void add_call(maker_t *maker)
{
    lap_check_t *check = maker->check;
    if (!check->programs || maker->call == 0)
        begin_call(maker);
    for (uint32_t step = 0; step < maker->schedule->nsteps; step++)
        add_step(maker, step);
    end_call(maker);
    uint32_t *accounted = &maker->accounted[first_word(check, maker->call, maker->rank)];
    for (uint32_t signal = 0; signal < maker->schedule->nsignals; signal++)
        accounted[signal] += maker->schedule->raised[signal];
}

/* COMPUTE is the first of them, also where nothing is on it. */
static void count_streams(lap_check_t *check)
{
    bool used[LAP_STREAMS] = {[LAP_STREAM_COMPUTE] = true};
    for (int rank = 0; rank < check->size; rank++)
        for (uint32_t call = 0; call < lap_check_ncalls(check, rank); call++) {
            const lap_schedule_t *schedule = lap_check_schedule(check, call, rank);
            for (uint32_t j = 0; j < schedule->nsteps; j++)
                used[schedule->steps[j].stream] = true;
        }
    check->nstreams = 0;
    for (int s = 0; s < LAP_STREAMS; s++)
        check->streams[s] = used[s] ? check->nstreams++ : LAP_CHECK_NONE;
}

/* The most raising tiles in any order of a GEMM of a call on each stream of its rank. */
static void count_tiles(lap_check_t *check, uint32_t call, int rank)
{
    const lap_schedule_t *schedule = lap_check_schedule(check, call, rank);
    for (uint32_t j = 0; j < schedule->nsteps; j++) {
        const lap_step_t *step = &schedule->steps[j];
        uint32_t *most = &check->tile_thread[stream_thread(check, rank, step->stream)];
        uint32_t raising = 0;
        for (uint32_t t = 0; step->any_order && t < step->ntiles; t++)
            raising += schedule->tiles[step->first_tile + t].raise.word != LAP_NO_SIGNAL;
        *most = raising > *most ? raising : *most;
    }
}

/*
 * Gives each stream of each rank as many more threads as its GEMMs have raising tiles in any
 * order.
 */
static lap_status_t count_threads(lap_check_t *check)
{
    count_streams(check);
    uint32_t nstreams = stream_thread(check, check->size, 0);
    check->tile_thread = lap_alloc(nstreams, sizeof(uint32_t));
    if (!check->tile_thread)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to check %d ranks", check->size);
    for (int rank = 0; rank < check->size; rank++)
        for (uint32_t call = 0; call < lap_check_ncalls(check, rank); call++)
            count_tiles(check, call, rank);
    check->nthreads = nstreams;
    for (uint32_t i = 0; i < nstreams; i++) {
        uint32_t count = check->tile_thread[i];
        check->tile_thread[i] = check->nthreads;
        check->nthreads += count;
    }
    check->ticks = lap_alloc(check->nthreads, sizeof(uint32_t));
    return check->ticks ? LAP_OK
                        : lap_error(LAP_ERR_NO_MEMORY, "no memory to check %u threads",
                                    (unsigned)check->nthreads);
}

/* Calls `each` for all raises of a word that a call accounts for, in the order of calls. */
static void each_raised(lap_check_t *check,
                        void (*each)(lap_check_t *, size_t word, uint32_t call, uint32_t count))
{
    for (int rank = 0; rank < check->size; rank++)
        for (uint32_t call = 0; call < lap_check_ncalls(check, rank); call++) {
            const lap_schedule_t *schedule = lap_check_schedule(check, call, rank);
            for (uint32_t signal = 0; signal < schedule->nsignals; signal++)
                each(check, first_word(check, call, rank) + signal, call, schedule->raised[signal]);
        }
}

static void count_moments(lap_check_t *check, size_t word, uint32_t call, uint32_t count)
{
    (void)call;
    check->first_moment[word + 1] += count;
}

static void add_moments(lap_check_t *check, size_t word, uint32_t call, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        check->moments[check->first_moment[word] + check->raised[word]++] =
            (lap_moment_t){LAP_CHECK_NONE, LAP_CHECK_NONE, call};
}

/* Lists every raise that the calls account for. */
static lap_status_t list_moments(lap_check_t *check)
{
    size_t nwords = (size_t)check->size * check->nsignals, total = 0;
    check->raised = lap_alloc(nwords, sizeof(uint32_t));
    check->first_moment = lap_alloc(nwords + 1, sizeof(uint32_t));
    if (check->raised && check->first_moment)
        each_raised(check, count_moments);
    for (size_t word = 0; check->first_moment && word < nwords; word++) {
        total += check->first_moment[word + 1];
        check->first_moment[word + 1] += check->first_moment[word];
    }
    if (total < UINT32_MAX)
        check->moments = lap_alloc(total, sizeof(lap_moment_t));
    if (!check->raised || !check->first_moment || !check->moments)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to check %zu signals", total);
    each_raised(check, add_moments);
    for (size_t word = 0; word < nwords; word++)
        check->raised[word] = 0; /* none has happened yet */
    return LAP_OK;
}

static lap_status_t make_room(maker_t *maker)
{
    lap_check_t *check = maker->check;
    const size_t ncalls = (size_t)check->ncalls * (size_t)check->size;
    const size_t nstreams = stream_thread(check, check->size, 0);
    size_t nsteps = 0;
    maker->first_ends = lap_alloc(ncalls, sizeof(*maker->first_ends));
    for (int rank = 0; maker->first_ends && rank < check->size; rank++)
        for (uint32_t call = 0; call < lap_check_ncalls(check, rank); call++) {
            maker->first_ends[lap_check_at(check, call, rank)] = nsteps;
            nsteps += lap_check_schedule(check, call, rank)->nsteps;
        }
    maker->step_ends = lap_alloc(nsteps, sizeof(uint32_t));
    maker->last = lap_alloc(nstreams, sizeof(uint32_t));
    maker->in_line = lap_alloc((size_t)check->size, sizeof(uint32_t));
    maker->accounted = lap_alloc((size_t)check->size * check->nsignals, sizeof(uint32_t));
    check->begins = lap_alloc(ncalls, sizeof(uint32_t));
    check->ends = lap_alloc(ncalls, sizeof(uint32_t));
    check->frees = lap_alloc(ncalls, sizeof(uint32_t));
    if (!maker->first_ends || !maker->step_ends || !maker->last || !maker->in_line ||
        !maker->accounted || !check->begins || !check->ends || !check->frees)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to check %zu schedules", ncalls);
    for (size_t i = 0; i < nstreams; i++)
        maker->last[i] = LAP_CHECK_NONE;
    for (int i = 0; i < check->size; i++)
        maker->in_line[i] = LAP_CHECK_NONE;
    return LAP_OK;
}

lap_status_t lap_check_graph(lap_check_t *check)
{
    LAP_TRY(count_threads(check));
    LAP_TRY(list_moments(check));
    maker_t maker = {.check = check};
    check->status = make_room(&maker);
    for (maker.call = 0; maker.call < check->ncalls && check->status == LAP_OK; maker.call++)
        for (maker.rank = 0; maker.rank < check->size && check->status == LAP_OK; maker.rank++) {
            if (maker.call >= lap_check_ncalls(check, maker.rank))
                continue;
            maker.schedule = lap_check_schedule(check, maker.call, maker.rank);
            add_call(&maker);
        }
    lap_free(maker.first_ends);
    lap_free(maker.step_ends);
    lap_free(maker.last);
    lap_free(maker.in_line);
    lap_free(maker.accounted);
    return check->status;
}
