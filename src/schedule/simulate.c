/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulating a program. Each stream of each rank is at rest (waiting for a signal or for a step of
 * another stream) or has one task: a step, or a tile of a GEMM. Time moves to the next end of a
 * task or arrival of a signal, whichever is first. Left out: caches, the order in which an
 * operating system gives cores to threads, and the time that the link's own thread takes.
 */
#include "schedule/simulate.h"

#include <math.h>

#include "core/status.h"
#include "schedule/cost.h"
#include "schedule/play.h"
#include "schedule/range.h"
#include "util/alloc.h"

#define NO_TILE UINT32_MAX
#define LEAST_CORES 1e-12  /* that puts leave to all else */
#define WORK_EPSILON 1e-15 /* what rounding leaves of a task that is done */

/* ---- the state ---- */

/* A stream of a rank. */
typedef struct lane {
    uint32_t fragment, step; /* the next or present one; all fragments: none is left */
    uint32_t tile;           /* of a GEMM at work; NO_TILE: of none */
    uint32_t tiles_done;
    bool busy;
    bool waits, spins; /* for a signal; and keeps a core busy meanwhile */
    double since;      /* when it began to wait */
    double begin;      /* of the task */
    double ended;      /* when the task before did */
    double work;       /* left of it, in seconds at full speed */
    double cores;      /* that it wants, */
    bool first;        /* and has before all else */
} lane_t;

typedef struct simulation {
    const lap_linked_t *const *programs;
    const lap_fragment_cost_t *const *costs; /* of each fragment of each rank */
    lap_calls_t calls;
    int size;
    double now;
    double next;       /* the earliest arrival that somebody waits for */
    double foreground; /* when the last step outside of the background ended */
    double *wanted;    /* by what is at work on each rank: cores, */
    double *first;     /* and of those the ones that it has before all else */
    lane_t *lanes;     /* [rank][stream] */
    double *ends;      /* of each step, negative before */
    bool *tile_done;
    double *arrivals; /* of each raise of each word of each call, in order */
    uint32_t *raised; /* so far, of each word of each call */
    /* Where those of a fragment of a rank begin: see index_of. */
    size_t *first_step, *first_tile, *first_word;
    size_t *first_arrival; /* of each word */
    double *link_free;     /* [rank][buffer]: each buffer has a link of its own */
    uint32_t nbuffers;
    lap_fragment_span_t *spans; /* of the fragments of `spans_rank`; NULL: not asked for */
    int spans_rank;
    double sent, came; /* of what the task that ends has raised; 0: nothing with bytes */
} simulation_t;

static void simulation_clear(simulation_t *sim)
{
    lap_free(sim->lanes);
    lap_free(sim->ends);
    lap_free(sim->tile_done);
    lap_free(sim->arrivals);
    lap_free(sim->raised);
    lap_free(sim->first_step);
    lap_free(sim->first_tile);
    lap_free(sim->first_word);
    lap_free(sim->first_arrival);
    lap_free(sim->link_free);
    lap_free(sim->wanted);
    lap_free(sim->first);
    lap_calls_clear(&sim->calls);
}

static const lap_schedule_t *schedule_of(const simulation_t *sim, int rank, uint32_t fragment)
{
    return &sim->programs[rank]->fragments[fragment].schedule;
}

static size_t index_of(const simulation_t *sim, int rank, uint32_t fragment)
{
    return sim->calls.first[rank] + fragment;
}

static uint32_t count_of(const simulation_t *sim, int rank)
{
    return sim->programs[rank]->nfragments;
}

static const lap_cost_t *cost_of(const simulation_t *sim, int rank, uint32_t fragment)
{
    return sim->costs[rank][fragment].cost;
}

/* Moves a lane to the first step from where it is that is on its stream. */
static void find_next(const simulation_t *sim, int rank, uint16_t stream, lane_t *lane)
{
    for (; lane->fragment < count_of(sim, rank); lane->fragment++, lane->step = 0) {
        const lap_schedule_t *schedule = schedule_of(sim, rank, lane->fragment);
        while (lane->step < schedule->nsteps && schedule->steps[lane->step].stream != stream)
            lane->step++;
        if (lane->step < schedule->nsteps)
            return;
    }
}

static size_t word_index(const simulation_t *sim, int rank, uint32_t fragment, uint32_t signal)
{
    return sim->first_word[index_of(sim, rank, fragment)] + signal;
}

/* Counts steps, blocks and words before each fragment of each rank. */
static size_t count_parts(simulation_t *sim, size_t *nsteps_p, size_t *ntiles_p)
{
    size_t nwords = 0;
    for (int r = 0; r < sim->size; r++)
        for (uint32_t f = 0; f < count_of(sim, r); f++) {
            const lap_schedule_t *schedule = schedule_of(sim, r, f);
            const size_t at = index_of(sim, r, f);
            sim->first_step[at] = *nsteps_p;
            sim->first_tile[at] = *ntiles_p;
            sim->first_word[at] = nwords;
            *nsteps_p += schedule->nsteps;
            *ntiles_p += schedule->ntiles;
            nwords += schedule->nsignals;
        }
    return nwords;
}

static size_t count_arrivals(simulation_t *sim, size_t nwords)
{
    size_t narrivals = 0, word = 0;
    for (int r = 0; r < sim->size; r++)
        for (uint32_t f = 0; f < count_of(sim, r); f++)
            for (uint32_t s = 0; s < schedule_of(sim, r, f)->nsignals; s++) {
                sim->first_arrival[word++] = narrivals;
                narrivals += schedule_of(sim, r, f)->raised[s];
            }
    sim->first_arrival[nwords] = narrivals;
    return narrivals;
}

static uint32_t count_buffers(const simulation_t *sim)
{
    uint32_t count = 1;
    for (int r = 0; r < sim->size; r++)
        for (uint32_t f = 0; f < count_of(sim, r); f++) {
            const uint32_t buffer = sim->programs[r]->fragments[f].buffer;
            count = buffer >= count ? buffer + 1 : count;
        }
    return count;
}

static lap_status_t simulation_init(simulation_t *sim)
{
    const size_t size = (size_t)sim->size, count = sim->calls.first[size];
    size_t nsteps = 0, ntiles = 0;
    sim->nbuffers = count_buffers(sim);
    sim->first_step = lap_alloc(count, sizeof(size_t));
    sim->first_tile = lap_alloc(count, sizeof(size_t));
    sim->first_word = lap_alloc(count, sizeof(size_t));
    sim->link_free = lap_alloc(size * sim->nbuffers, sizeof(double));
    sim->wanted = lap_alloc(size, sizeof(double));
    sim->first = lap_alloc(size, sizeof(double));
    sim->lanes = lap_alloc(size * LAP_STREAMS, sizeof(lane_t));
    if (!sim->first_step || !sim->first_tile || !sim->first_word || !sim->link_free ||
        !sim->wanted || !sim->first || !sim->lanes)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to simulate %d ranks", sim->size);
    const size_t nwords = count_parts(sim, &nsteps, &ntiles);
    sim->first_arrival = lap_alloc(nwords + 1, sizeof(size_t));
    sim->raised = lap_alloc(nwords, sizeof(uint32_t));
    sim->ends = lap_alloc(nsteps, sizeof(double));
    sim->tile_done = lap_alloc(ntiles, sizeof(bool));
    if (sim->first_arrival)
        sim->arrivals = lap_alloc(count_arrivals(sim, nwords), sizeof(double));
    if (!sim->raised || !sim->ends || !sim->tile_done || !sim->arrivals)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to simulate %zu steps", nsteps);
    for (size_t i = 0; i < nsteps; i++)
        sim->ends[i] = -1;
    for (int r = 0; r < sim->size; r++)
        for (int s = 0; s < LAP_STREAMS; s++) {
            lane_t *lane = &sim->lanes[r * LAP_STREAMS + s];
            *lane = (lane_t){.tile = NO_TILE};
            find_next(sim, r, (uint16_t)s, lane);
        }
    return LAP_OK;
}

/* ---- signals ---- */

/*
 * Raises a word of a peer: as src/transport/link books it, one transfer of a buffer at a time out of a
 * rank and signals without data past them. `begin` is when the transfer was issued; now is when its bytes
 * have been copied.
 */
static lap_status_t raise_word(simulation_t *sim, int rank, uint32_t f, const lap_signal_t *signal,
                               double begin)
{
    const lap_fragment_t *fragment = &sim->programs[rank]->fragments[f];
    const lap_cost_t *cost = cost_of(sim, rank, f);
    const lap_link_t *link = &cost->link;
    double *link_free = &sim->link_free[(size_t)rank * sim->nbuffers + fragment->buffer];
    const int to = lap_fragment_rank(fragment, signal->peer);
    const size_t bytes = signal->bytes;
    double due = sim->now;
    if (to != rank && (link->bytes_per_s > 0 || link->latency_s > 0)) {
        double end = begin;
        if (bytes > 0) {
            end = fmax(begin, *link_free);
            end += link->bytes_per_s > 0 ? (double)bytes / link->bytes_per_s : 0;
            *link_free = end;
        }
        due = fmax(due, end + link->latency_s);
    }
    const size_t word =
        word_index(sim, to, lap_calls_of(&sim->calls, rank, f, signal->peer), signal->word);
    const size_t at = sim->first_arrival[word] + sim->raised[word];
    if (at >= sim->first_arrival[word + 1])
        return lap_error(LAP_ERR_CHECK,
                         "rank %d raises signal %u of rank %d more than the %u times "
                         "that its schedule expects",
                         rank, signal->word, to, sim->raised[word]);
    if (bytes > 0) {
        sim->sent = begin;
        sim->came = due;
    }
    due += cost->signal_s;
    /* Raises of one word arrive in the order in which they were made. */
    if (sim->raised[word] > 0)
        due = fmax(due, sim->arrivals[at - 1]);
    sim->arrivals[at] = due;
    sim->raised[word]++;
    return LAP_OK;
}

/* Whether something that comes at `when` is here; if not, it is something to wait for. */
static bool has_come(simulation_t *sim, double when)
{
    if (when <= sim->now)
        return true;
    sim->next = fmin(sim->next, when);
    return false;
}

static bool signal_came(simulation_t *sim, int rank, uint32_t fragment, const lap_signal_t *signal)
{
    const size_t word = word_index(sim, rank, fragment, signal->word);
    if (signal->count == 0)
        return true;
    return sim->raised[word] >= signal->count &&
           has_come(sim, sim->arrivals[sim->first_arrival[word] + signal->count - 1]);
}

static bool has_ended(simulation_t *sim, int rank, uint32_t fragment, uint32_t step,
                      const lap_cost_t *cost)
{
    const double end = sim->ends[sim->first_step[index_of(sim, rank, fragment)] + step];
    return end >= 0 && has_come(sim, end + cost->event_s);
}

static bool deps_ended(simulation_t *sim, int rank, const lane_t *lane)
{
    const lap_fragment_t *fragment = &sim->programs[rank]->fragments[lane->fragment];
    const lap_step_t *step = &fragment->schedule.steps[lane->step];
    const lap_cost_t *cost = cost_of(sim, rank, lane->fragment);
    for (uint32_t d = 0; d < step->ndeps; d++)
        if (!has_ended(sim, rank, lane->fragment, lap_step_dep(&fragment->schedule, step, d), cost))
            return false;
    for (uint32_t i = lap_link_first(fragment, lane->step);
         i < fragment->nlinks && fragment->links[i].step == lane->step; i++)
        if (!has_ended(sim, rank, fragment->links[i].fragment, fragment->links[i].dep, cost))
            return false;
    return true;
}

/* ---- tasks ---- */

/* The stream waits for a signal that has not come: with a core to itself for a while. */
static void wait_on(simulation_t *sim, int rank, lane_t *lane)
{
    if (!lane->waits)
        lane->since = sim->now;
    lane->waits = true;
    lane->spins = !has_come(sim, lane->since + cost_of(sim, rank, lane->fragment)->spin_s);
}

/* The present step of a stream, if it was measured; else NULL. */
static const lap_step_cost_t *measured(const simulation_t *sim, int rank, const lane_t *lane)
{
    const lap_fragment_cost_t *costs = &sim->costs[rank][lane->fragment];
    const lap_step_cost_t *step =
        costs->steps && lane->step < costs->nsteps ? &costs->steps[lane->step] : NULL;
    return step && step->seconds >= 0 ? step : NULL;
}

/* A task; what was measured of its step, which has `parts` such tasks, is taken instead. */
static void start_part(const simulation_t *sim, int rank, lane_t *lane, double work, double cores,
                       uint32_t parts)
{
    const lap_step_cost_t *step = measured(sim, rank, lane);
    if (step) {
        const bool launches = lane->tiles_done == 0 && step->cores > 0;
        work = step->seconds / parts;
        work += launches ? cost_of(sim, rank, lane->fragment)->launch_s : 0;
        cores = step->cores;
    }
    lane->busy = true;
    lane->waits = lane->spins = false;
    lane->begin = sim->now;
    lane->work = work;
    lane->cores = cores;
    lane->first = false;
}

static void start(const simulation_t *sim, int rank, lane_t *lane, double work, double cores)
{
    start_part(sim, rank, lane, work, cores, 1);
}

static bool *tile_done(const simulation_t *sim, int rank, uint32_t fragment, uint32_t tile)
{
    return &sim->tile_done[sim->first_tile[index_of(sim, rank, fragment)] + tile];
}

/* The next tile of a GEMM that can run: in order, or the first one whose signal has come. */
static uint32_t find_tile(simulation_t *sim, int rank, const lane_t *lane)
{
    const lap_schedule_t *schedule = schedule_of(sim, rank, lane->fragment);
    const lap_step_t *step = &schedule->steps[lane->step];
    for (uint32_t t = step->first_tile; t < step->first_tile + step->ntiles; t++) {
        const lap_signal_t *wait = &schedule->tiles[t].wait;
        if (*tile_done(sim, rank, lane->fragment, t))
            continue;
        if (wait->word == LAP_NO_SIGNAL || signal_came(sim, rank, lane->fragment, wait))
            return t;
        if (!step->any_order)
            break;
    }
    return NO_TILE;
}

static void start_tile(simulation_t *sim, int rank, lane_t *lane)
{
    const lap_schedule_t *schedule = schedule_of(sim, rank, lane->fragment);
    const lap_step_t *step = &schedule->steps[lane->step];
    const lap_fragment_cost_t *costs = &sim->costs[rank][lane->fragment];
    const double begin = lane->tiles_done == 0 ? costs->cost->step_s : 0;
    if (step->ntiles == 0) {
        start(sim, rank, lane, begin, 1);
        return;
    }
    lane->tile = find_tile(sim, rank, lane);
    if (lane->tile == NO_TILE) {
        wait_on(sim, rank, lane);
        return;
    }
    const lap_tile_t *tile = &schedule->tiles[lane->tile];
    start_part(sim, rank, lane,
               begin + lap_cost_gemm(costs->cost, lap_tile_shape(schedule, step, tile)) +
                   lap_cost_finish(costs, lap_tile_range(schedule, tile, LAP_ROLE_D)),
               costs->cost->gemm_cores, step->ntiles);
}

/* A link paces the put that takes cores for as long: nothing that it has to share slows it down. */
static void start_put(const simulation_t *sim, int rank, lane_t *lane, const lap_range_t *src,
                      double mover)
{
    const lap_cost_t *cost = cost_of(sim, rank, lane->fragment);
    const double bytes = (double)lap_range_bytes(src);
    const bool first = cost->put_cores > 0;
    start(sim, rank, lane,
          cost->step_s + (first ? bytes / cost->link.bytes_per_s : lap_cost_copy(cost, src)),
          first ? cost->put_cores : mover);
    lane->first = first;
}

/* Starts the next task of a stream if what it waits for has come. */
static void try_start(simulation_t *sim, int rank, lane_t *lane)
{
    const lap_fragment_cost_t *costs = &sim->costs[rank][lane->fragment];
    const lap_cost_t *cost = costs->cost;
    const lap_schedule_t *schedule = schedule_of(sim, rank, lane->fragment);
    const lap_step_t *step = &schedule->steps[lane->step];
    const lap_range_t *a = lap_step_range(schedule, step, LAP_ROLE_A);
    const double mover = cost->copy_engines ? 0 : 1;
    if (!deps_ended(sim, rank, lane))
        return;
    switch (step->kind) {
    case LAP_STEP_GEMM:
        start_tile(sim, rank, lane);
        break;
    case LAP_STEP_WAIT:
        if (signal_came(sim, rank, lane->fragment, &step->signal))
            start(sim, rank, lane, cost->step_s, mover);
        else
            wait_on(sim, rank, lane);
        break;
    case LAP_STEP_REDUCE:
        start(sim, rank, lane,
              cost->step_s + lap_cost_reduce(cost, schedule, step) +
                  lap_cost_finish(costs, lap_step_range(schedule, step, LAP_ROLE_D)),
              1);
        break;
    case LAP_STEP_SUMS:
        start(sim, rank, lane, cost->step_s + (double)lap_range_bytes(a) / cost->reduce, 1);
        break;
    case LAP_STEP_PUT:
        start_put(sim, rank, lane, a, mover);
        break;
    case LAP_STEP_COPY:
        start(sim, rank, lane, cost->step_s + lap_cost_copy(cost, a), mover);
        break;
    case LAP_STEP_KERNEL:
        start(sim, rank, lane, cost->step_s + costs->kernel_s, 1);
        break;
    default:
        start(sim, rank, lane, cost->step_s, mover);
        break;
    }
}

/* The task of a stream is done: what it raises is raised, and the stream goes on. */
static lap_status_t end_task(simulation_t *sim, int rank, lane_t *lane)
{
    const uint32_t f = lane->fragment;
    const lap_schedule_t *schedule = schedule_of(sim, rank, f);
    const lap_step_t *step = &schedule->steps[lane->step];
    lane->busy = false;
    if (sim->spans && rank == sim->spans_rank) {
        sim->spans[f].begin = fmin(sim->spans[f].begin, lane->begin);
        sim->spans[f].end = sim->now;
    }
    if (step->kind == LAP_STEP_PUT && step->signal.word != LAP_NO_SIGNAL)
        LAP_TRY(raise_word(sim, rank, f, &step->signal, lane->begin));
    else if (step->kind == LAP_STEP_RAISE)
        LAP_TRY(raise_word(sim, rank, f, &step->signal, sim->now));
    if (lane->tile != NO_TILE) {
        const lap_signal_t *raise = &schedule->tiles[lane->tile].raise;
        *tile_done(sim, rank, f, lane->tile) = true;
        lane->tile = NO_TILE;
        lane->tiles_done++;
        if (raise->word != LAP_NO_SIGNAL)
            LAP_TRY(raise_word(sim, rank, f, raise, sim->now));
        if (lane->tiles_done < step->ntiles)
            return LAP_OK;
    }
    sim->ends[sim->first_step[index_of(sim, rank, f)] + lane->step] = sim->now;
    if (schedule->set != LAP_BACKGROUND)
        sim->foreground = sim->now;
    lane->tiles_done = 0;
    lane->step++;
    find_next(sim, rank, step->stream, lane);
    return LAP_OK;
}

/* The same, and calls the function that watches. */
static lap_status_t finish(simulation_t *sim, int rank, lane_t *lane)
{
    const lap_step_watch_t *watch = sim->programs[rank]->watch;
    const lane_t was = *lane;
    sim->sent = sim->came = 0;
    lane->ended = sim->now;
    LAP_TRY(end_task(sim, rank, lane));
    if (!watch)
        return LAP_OK;
    const bool waited = was.since >= was.ended && was.since < was.begin;
    const lap_step_times_t times = {waited ? was.since : was.begin, was.begin, sim->now, sim->sent,
                                    sim->came};
    watch->step(watch->context, rank, was.fragment, was.step, was.tile, &times);
    return LAP_OK;
}

/* ---- the clock ---- */

/* Starts whatever can start. Returns how many cores all that is at work wants. */
static double start_all(simulation_t *sim)
{
    double wanted = 0;
    sim->next = INFINITY;
    for (int r = 0; r < sim->size; r++)
        sim->wanted[r] = sim->first[r] = 0;
    for (int i = 0; i < sim->size * LAP_STREAMS; i++) {
        lane_t *lane = &sim->lanes[i];
        const int rank = i / LAP_STREAMS;
        if (!lane->busy && lane->fragment < count_of(sim, rank))
            try_start(sim, rank, lane);
        sim->wanted[rank] += lane->busy ? lane->cores : lane->spins ? 1 : 0;
        sim->first[rank] += lane->busy && lane->first ? lane->cores : 0;
    }
    for (int r = 0; r < sim->size; r++)
        wanted += sim->wanted[r];
    return wanted;
}

/* What is left of full speed for the task of a lane. */
static double speed_of(const simulation_t *sim, int index, double wanted)
{
    const int rank = index / LAP_STREAMS;
    const lap_cost_t *cost = cost_of(sim, rank, 0); /* there is one: it is at work */
    const double all = wanted > cost->cores ? cost->cores / wanted : 1;
    const double left = fmax(LEAST_CORES, cost->rank_cores - sim->first[rank]);
    const double rest = sim->wanted[rank] - sim->first[rank];
    if (sim->lanes[index].first)
        return 1;
    return cost->rank_cores > 0 && rest > left ? fmin(all, left / rest) : all;
}

static bool is_idle(const simulation_t *sim)
{
    bool idle = isinf(sim->next);
    for (int i = 0; i < sim->size * LAP_STREAMS; i++)
        idle = idle && !sim->lanes[i].busy;
    return idle;
}

/* Moves the clock to the next thing that happens, and ends the tasks that are done then. */
static lap_status_t advance(simulation_t *sim, double wanted)
{
    const int nlanes = sim->size * LAP_STREAMS;
    double least = INFINITY; /* seconds until a task is done */
    for (int i = 0; i < nlanes; i++)
        if (sim->lanes[i].busy)
            least = fmin(least, sim->lanes[i].work / speed_of(sim, i, wanted));
    const double passed = fmin(least, sim->next - sim->now);
    sim->now = sim->now + least <= sim->next ? sim->now + least : sim->next;
    for (int i = 0; i < nlanes; i++)
        if (sim->lanes[i].busy)
            sim->lanes[i].work -= passed * speed_of(sim, i, wanted);
    for (int i = 0; i < nlanes; i++)
        if (sim->lanes[i].busy && sim->lanes[i].work <= WORK_EPSILON)
            LAP_TRY(finish(sim, i / LAP_STREAMS, &sim->lanes[i]));
    return LAP_OK;
}

/* Nothing is at work and nothing is under way: LAP_OK when all is done, else who waits in vain. */
static lap_status_t conclude(const simulation_t *sim)
{
    for (int i = 0; i < sim->size * LAP_STREAMS; i++) {
        const int rank = i / LAP_STREAMS;
        char text[160];
        if (sim->lanes[i].fragment >= count_of(sim, rank))
            continue;
        lap_step_describe(schedule_of(sim, rank, sim->lanes[i].fragment), sim->lanes[i].step, text,
                          sizeof(text));
        return lap_error(LAP_ERR_CHECK, "simulated rank %d waits forever in %s", rank, text);
    }
    return LAP_OK;
}

/* Until nothing is at work, and nothing under way. */
static lap_status_t play(simulation_t *sim)
{
    LAP_TRY(simulation_init(sim));
    for (;;) {
        const double wanted = start_all(sim);
        if (is_idle(sim))
            return conclude(sim);
        LAP_TRY(advance(sim, wanted));
    }
}

lap_status_t lap_linked_simulate_each(const lap_linked_t *const *programs, int size,
                                      const lap_fragment_cost_t *const *costs,
                                      lap_simulated_t *simulated_p, int rank,
                                      lap_fragment_span_t *spans)
{
    simulation_t sim = {
        .programs = programs, .costs = costs, .size = size, .spans = spans, .spans_rank = rank};
    for (uint32_t f = 0; spans && f < programs[rank]->nfragments; f++)
        spans[f] = (lap_fragment_span_t){INFINITY, 0};
    if (programs[0]->nfragments == 0) {
        *simulated_p = (lap_simulated_t){0, 0, 0};
        return LAP_OK;
    }
    lap_status_t status = lap_calls_init(&sim.calls, programs, size);
    if (status == LAP_OK)
        status = play(&sim);
    const double call = cost_of(&sim, 0, 0)->call_s;
    if (status == LAP_OK)
        *simulated_p = (lap_simulated_t){sim.now + call, sim.foreground + call, call};
    simulation_clear(&sim);
    return status;
}

lap_status_t lap_linked_simulate(const lap_linked_t *const *programs, int size,
                                 const lap_fragment_cost_t *costs, lap_simulated_t *simulated_p,
                                 int rank, lap_fragment_span_t *spans)
{
    const lap_fragment_cost_t **all = lap_alloc((size_t)size, sizeof(*all));
    if (!all)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the costs of %d ranks", size);
    for (int r = 0; r < size; r++)
        all[r] = costs;
    const lap_status_t status =
        lap_linked_simulate_each(programs, size, all, simulated_p, rank, spans);
    lap_free(all);
    return status;
}

lap_status_t lap_schedule_simulate(const lap_schedule_t *const *schedules, int size,
                                   const lap_cost_t *cost, double *seconds_p)
{
    return lap_schedule_play(schedules, size, &(lap_fragment_cost_t){.cost = cost}, NULL, NULL,
                             seconds_p);
}

/* A call by itself is a program of one fragment. */
lap_status_t lap_schedule_play(const lap_schedule_t *const *schedules, int size,
                               const lap_fragment_cost_t *costs, const lap_step_watch_t *watch,
                               struct lap_play *play, double *seconds_p)
{
    lap_fragment_t *fragments = lap_alloc((size_t)size, sizeof(*fragments));
    lap_linked_t *programs = lap_alloc((size_t)size, sizeof(*programs));
    const lap_linked_t **list = lap_alloc((size_t)size, sizeof(*list));
    lap_simulated_t simulated;
    lap_status_t status = LAP_OK;
    if (!fragments || !programs || !list)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to simulate %d ranks", size);
    for (int r = 0; r < size && status == LAP_OK; r++) {
        fragments[r] = (lap_fragment_t){.schedule = *schedules[r], .stride = 1};
        programs[r] =
            (lap_linked_t){.rank = r, .fragments = &fragments[r], .nfragments = 1, .watch = watch};
        list[r] = &programs[r];
    }
    if (status == LAP_OK && play) {
        play->programs = programs;
        play->size = size;
        status = lap_play_init(play);
    }
    if (status == LAP_OK)
        status = lap_linked_simulate(list, size, costs, &simulated, 0, NULL);
    if (status == LAP_OK)
        *seconds_p = simulated.seconds;
    if (play)
        lap_play_clear(play);
    lap_free(fragments);
    lap_free(programs);
    lap_free(list);
    return status;
}
