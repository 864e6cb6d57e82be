/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulating a call. Each stream of each rank is at rest (waiting for a signal or for a step of
 * another stream) or has one task: a step, or a block of a GEMM. Time moves to the next end of a
 * task or arrival of a signal, whichever is first. Left out: caches, the order in which an
 * operating system gives cores to threads, and the time that the link's own thread takes.
 */
#include "schedule/simulate.h"

#include <math.h>

#include "core/status.h"
#include "schedule/range.h"
#include "util/alloc.h"

#define NO_BLOCK UINT32_MAX
#define WORK_EPSILON 1e-15 /* what rounding leaves of a task that is done */

void lap_cost_add_link(lap_cost_t *cost, const lap_link_t *link)
{
    const double rate = cost->link.bytes_per_s;
    if (link->bytes_per_s > 0 && (rate == 0 || link->bytes_per_s < rate))
        cost->link.bytes_per_s = link->bytes_per_s;
    cost->link.latency_s += link->latency_s;
}

double lap_curve_at(const lap_curve_t *curve, double size)
{
    if (curve->count == 0)
        return 0;
    size_t i = 0;
    while (i < curve->count && curve->sizes[i] < size)
        i++;
    if (i == 0 || i == curve->count)
        return curve->values[i == 0 ? 0 : curve->count - 1];
    const double below = log(curve->sizes[i - 1]), above = log(curve->sizes[i]);
    const double part = (log(size) - below) / (above - below);
    return curve->values[i - 1] * (1 - part) + curve->values[i] * part;
}

/* ---- the state ---- */

/* A stream of a rank. */
typedef struct lane {
    uint32_t step;  /* the next or present one; nsteps: none is left */
    uint32_t block; /* of a GEMM at work; NO_BLOCK: of none */
    uint32_t blocks_done;
    bool busy;
    double begin; /* of the task */
    double work;  /* left of it, in seconds at full speed */
    double cores; /* that it wants */
} lane_t;

typedef struct simulation {
    const lap_schedule_t *const *schedules;
    const lap_cost_t *cost;
    int size;
    double now;
    double next;   /* the earliest arrival that somebody waits for */
    lane_t *lanes; /* [rank][stream] */
    double *ends;  /* of each step, negative before; first_step[rank] on */
    size_t *first_step;
    bool *block_done; /* of each block; first_block[rank] on */
    size_t *first_block;
    double *arrivals; /* of each raise of each word, in order; first_arrival[rank][word] on */
    size_t *first_arrival;
    uint32_t *raised; /* so far, [rank][word] */
    uint32_t nsignals;
    double *link_free; /* of each rank */
} simulation_t;

static void simulation_clear(simulation_t *sim)
{
    lap_free(sim->lanes);
    lap_free(sim->ends);
    lap_free(sim->first_step);
    lap_free(sim->block_done);
    lap_free(sim->first_block);
    lap_free(sim->arrivals);
    lap_free(sim->first_arrival);
    lap_free(sim->raised);
    lap_free(sim->link_free);
}

/* The first step from `step` on that is on a stream. */
static uint32_t next_on(const lap_schedule_t *schedule, uint32_t step, uint16_t stream)
{
    while (step < schedule->nsteps && schedule->steps[step].stream != stream)
        step++;
    return step;
}

static size_t word_index(const simulation_t *sim, int rank, uint32_t signal)
{
    return (size_t)rank * sim->nsignals + signal;
}

static lap_status_t simulation_init(simulation_t *sim)
{
    const size_t size = (size_t)sim->size;
    size_t nsteps = 0, nblocks = 0, narrivals = 0;
    for (int r = 0; r < sim->size; r++)
        if (sim->schedules[r]->nsignals > sim->nsignals)
            sim->nsignals = sim->schedules[r]->nsignals;
    sim->first_step = lap_alloc(size, sizeof(size_t));
    sim->first_block = lap_alloc(size, sizeof(size_t));
    sim->first_arrival = lap_alloc(size * sim->nsignals + 1, sizeof(size_t));
    sim->raised = lap_alloc(size * sim->nsignals, sizeof(uint32_t));
    sim->link_free = lap_alloc(size, sizeof(double));
    sim->lanes = lap_alloc(size * LAP_STREAMS, sizeof(lane_t));
    if (!sim->first_step || !sim->first_block || !sim->first_arrival || !sim->raised ||
        !sim->link_free || !sim->lanes)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to simulate %d ranks", sim->size);
    for (int r = 0; r < sim->size; r++) {
        const lap_schedule_t *schedule = sim->schedules[r];
        sim->first_step[r] = nsteps;
        sim->first_block[r] = nblocks;
        nsteps += schedule->nsteps;
        nblocks += schedule->nblocks;
        for (uint32_t s = 0; s < sim->nsignals; s++) {
            sim->first_arrival[word_index(sim, r, s)] = narrivals;
            narrivals += s < schedule->nsignals ? schedule->raised[s] : 0;
        }
        for (uint16_t s = 0; s < LAP_STREAMS; s++)
            sim->lanes[r * LAP_STREAMS + s] =
                (lane_t){.step = next_on(schedule, 0, s), .block = NO_BLOCK};
    }
    sim->first_arrival[size * sim->nsignals] = narrivals;
    sim->ends = lap_alloc(nsteps, sizeof(double));
    sim->block_done = lap_alloc(nblocks, sizeof(bool));
    sim->arrivals = lap_alloc(narrivals, sizeof(double));
    if (!sim->ends || !sim->block_done || !sim->arrivals)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to simulate %zu steps", nsteps);
    for (size_t i = 0; i < nsteps; i++)
        sim->ends[i] = -1;
    return LAP_OK;
}

/* ---- signals ---- */

/*
 * Raises a word of `peer`: as src/transport/link books it, one transfer at a time out of a rank and
 * signals without data past them. `begin` is when the transfer was issued; now is when its bytes
 * have been copied.
 */
static lap_status_t raise_word(simulation_t *sim, int rank, int peer, uint32_t signal, size_t bytes,
                               double begin)
{
    const lap_link_t *link = &sim->cost->link;
    double due = sim->now;
    if (peer != rank && (link->bytes_per_s > 0 || link->latency_s > 0)) {
        double end = begin;
        if (bytes > 0) {
            end = fmax(begin, sim->link_free[rank]);
            end += link->bytes_per_s > 0 ? (double)bytes / link->bytes_per_s : 0;
            sim->link_free[rank] = end;
        }
        due = fmax(due, end + link->latency_s);
    }
    const size_t word = word_index(sim, peer, signal);
    const size_t at = sim->first_arrival[word] + sim->raised[word];
    if (at >= sim->first_arrival[word + 1])
        return lap_error(LAP_ERR_CHECK,
                         "rank %d raises signal %u of rank %d more than the %u times "
                         "that its schedule expects",
                         rank, signal, peer, sim->raised[word]);
    due += sim->cost->signal_s;
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

static bool signal_came(simulation_t *sim, int rank, uint32_t signal, uint32_t count)
{
    const size_t word = word_index(sim, rank, signal);
    if (count == 0)
        return true;
    return sim->raised[word] >= count &&
           has_come(sim, sim->arrivals[sim->first_arrival[word] + count - 1]);
}

static bool deps_ended(simulation_t *sim, int rank, const lap_step_t *step)
{
    for (uint32_t d = 0; d < step->ndeps; d++) {
        const double end = sim->ends[sim->first_step[rank] + step->deps[d]];
        if (end < 0 || !has_come(sim, end + sim->cost->signal_s))
            return false;
    }
    return true;
}

/* ---- tasks ---- */

static double gemm_seconds(const lap_cost_t *cost, lap_gemm_shape_t shape)
{
    const double rows = (double)shape.rows, n = (double)shape.n;
    const double work = rows * n * (double)shape.k;
    if (work <= 0)
        return 0;
    return work / (lap_curve_at(&cost->gemm, rows) * lap_curve_at(&cost->columns, n));
}

static double copy_seconds(const lap_cost_t *cost, const lap_range_t *range)
{
    const double bytes = (double)lap_range_bytes(range);
    return bytes > 0 ? bytes / lap_curve_at(&cost->copy, bytes) : 0;
}

static void start(const simulation_t *sim, lane_t *lane, double work, double cores)
{
    lane->busy = true;
    lane->begin = sim->now;
    lane->work = work;
    lane->cores = cores;
}

static bool block_ready(simulation_t *sim, int rank, uint32_t block)
{
    const lap_block_t *plan = &sim->schedules[rank]->blocks[block];
    return plan->wait_signal == LAP_NO_SIGNAL ||
           signal_came(sim, rank, plan->wait_signal, plan->wait_count);
}

/* The next block of a GEMM that can run: in order, or the first one whose signal has come. */
static uint32_t find_block(simulation_t *sim, int rank, const lap_step_t *step)
{
    for (uint32_t b = step->first; b < step->first + step->count; b++) {
        if (sim->block_done[sim->first_block[rank] + b])
            continue;
        if (block_ready(sim, rank, b))
            return b;
        if (!step->any_order)
            break;
    }
    return NO_BLOCK;
}

static void start_block(simulation_t *sim, int rank, lane_t *lane, const lap_step_t *step)
{
    const lap_schedule_t *schedule = sim->schedules[rank];
    const double begin = lane->blocks_done == 0 ? sim->cost->step_s : 0;
    if (step->count == 0) {
        start(sim, lane, begin, 1);
        return;
    }
    lane->block = find_block(sim, rank, step);
    if (lane->block != NO_BLOCK)
        start(sim, lane,
              begin + gemm_seconds(sim->cost,
                                   lap_block_shape(schedule, step, &schedule->blocks[lane->block])),
              sim->cost->gemm_cores);
}

/* Starts the next task of a stream if what it waits for has come. */
static void try_start(simulation_t *sim, int rank, lane_t *lane)
{
    const lap_cost_t *cost = sim->cost;
    const lap_step_t *step = &sim->schedules[rank]->steps[lane->step];
    if (!deps_ended(sim, rank, step))
        return;
    switch (step->kind) {
    case LAP_STEP_GEMM:
        start_block(sim, rank, lane, step);
        break;
    case LAP_STEP_WAIT:
        if (signal_came(sim, rank, step->signal, step->count))
            start(sim, lane, cost->step_s, 1);
        break;
    case LAP_STEP_REDUCE:
        start(sim, lane,
              cost->step_s + (double)lap_range_bytes(&step->dst) * (step->count + 1) / cost->reduce,
              1);
        break;
    case LAP_STEP_SUMS:
        start(sim, lane, cost->step_s + (double)lap_range_bytes(&step->src) / cost->reduce, 1);
        break;
    case LAP_STEP_PUT:
    case LAP_STEP_COPY:
        start(sim, lane, cost->step_s + copy_seconds(cost, &step->src), 1);
        break;
    default:
        start(sim, lane, cost->step_s, 1);
        break;
    }
}

/* The task of a stream is done: what it raises is raised, and the stream goes on. */
static lap_status_t finish(simulation_t *sim, int rank, lane_t *lane)
{
    const lap_schedule_t *schedule = sim->schedules[rank];
    const lap_step_t *step = &schedule->steps[lane->step];
    lane->busy = false;
    if (step->kind == LAP_STEP_PUT && step->signal != LAP_NO_SIGNAL)
        LAP_TRY(raise_word(sim, rank, step->peer, step->signal, lap_range_bytes(&step->src),
                           lane->begin));
    else if (step->kind == LAP_STEP_RAISE)
        LAP_TRY(raise_word(sim, rank, step->peer, step->signal, step->bytes, sim->now));
    if (lane->block != NO_BLOCK) {
        const lap_block_t *block = &schedule->blocks[lane->block];
        sim->block_done[sim->first_block[rank] + lane->block] = true;
        lane->block = NO_BLOCK;
        lane->blocks_done++;
        if (block->raise_signal != LAP_NO_SIGNAL)
            LAP_TRY(raise_word(sim, rank, block->raise_peer, block->raise_signal,
                               lap_range_bytes(&block->d), sim->now));
        if (lane->blocks_done < step->count)
            return LAP_OK;
    }
    sim->ends[sim->first_step[rank] + lane->step] = sim->now;
    lane->blocks_done = 0;
    lane->step = next_on(schedule, lane->step + 1, step->stream);
    return LAP_OK;
}

/* ---- the clock ---- */

/* Starts whatever can start. Returns how many cores all that is at work wants. */
static double start_all(simulation_t *sim)
{
    double wanted = 0;
    sim->next = INFINITY;
    for (int i = 0; i < sim->size * LAP_STREAMS; i++) {
        lane_t *lane = &sim->lanes[i];
        const int rank = i / LAP_STREAMS;
        if (!lane->busy && lane->step < sim->schedules[rank]->nsteps)
            try_start(sim, rank, lane);
        wanted += lane->busy ? lane->cores : 0;
    }
    return wanted;
}

/* Moves the clock to the next thing that happens, and ends the tasks that are done then. */
static lap_status_t advance(simulation_t *sim, double wanted)
{
    const double speed = wanted > sim->cost->cores ? sim->cost->cores / wanted : 1;
    const int nlanes = sim->size * LAP_STREAMS;
    double least = INFINITY;
    for (int i = 0; i < nlanes; i++)
        if (sim->lanes[i].busy)
            least = fmin(least, sim->lanes[i].work);
    const double by_task = sim->now + least / speed;
    const bool task_first = by_task <= sim->next;
    const double done = task_first ? least : (sim->next - sim->now) * speed;
    sim->now = task_first ? by_task : sim->next;
    for (int i = 0; i < nlanes; i++)
        if (sim->lanes[i].busy)
            sim->lanes[i].work -= done;
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
        if (sim->lanes[i].step >= sim->schedules[rank]->nsteps)
            continue;
        lap_step_describe(sim->schedules[rank], sim->lanes[i].step, text, sizeof(text));
        return lap_error(LAP_ERR_CHECK, "simulated rank %d waits forever in %s", rank, text);
    }
    return LAP_OK;
}

lap_status_t lap_schedule_simulate(const lap_schedule_t *const *schedules, int size,
                                   const lap_cost_t *cost, double *seconds_p)
{
    simulation_t sim = {.schedules = schedules, .cost = cost, .size = size};
    lap_status_t status = simulation_init(&sim);
    while (status == LAP_OK) {
        const double wanted = start_all(&sim);
        if (wanted == 0 && isinf(sim.next))
            break;
        status = advance(&sim, wanted);
    }
    if (status == LAP_OK)
        status = conclude(&sim);
    if (status == LAP_OK)
        *seconds_p = sim.now + cost->call_s;
    simulation_clear(&sim);
    return status;
}
