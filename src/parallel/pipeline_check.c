/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proofs and simulation of pipeline tables. Both walk along the rows of all ranks, each as far as the
 * results that it waits for are there; where no rank can go on before all are through, the table
 * deadlocks.
 */
#include <math.h>
#include <string.h>

#include "core/status.h"
#include "parallel/pipeline.h"
#include "util/alloc.h"

/* ---- form ---- */

static const char *work_name(lap_pipe_work_t work)
{
    static const char *const names[LAP_PIPE_WORKS] = {
        [LAP_PIPE_FORWARD] = "forward",
        [LAP_PIPE_BACKWARD] = "backward",
        [LAP_PIPE_INPUT_GRAD] = "gradient of the input",
        [LAP_PIPE_WEIGHT_GRAD] = "gradient of the weights",
    };
    return names[work];
}

static lap_status_t wrong(uint32_t rank, uint32_t index, const lap_pipe_action_t *action,
                          const char *why)
{
    char text[LAP_PIPE_TEXT];
    return lap_error(LAP_ERR_CHECK, "rank %u, action %u, %s: %s", (unsigned)rank, (unsigned)index,
                     lap_pipe_text(action, text), why);
}

#define BIT(work) (1u << (work))
#define WHOLE (BIT(LAP_PIPE_FORWARD) | BIT(LAP_PIPE_BACKWARD))
#define PARTS (BIT(LAP_PIPE_FORWARD) | BIT(LAP_PIPE_INPUT_GRAD) | BIT(LAP_PIPE_WEIGHT_GRAD))

/* `done`: bits of what the stage has done with the micro-batch before. */
static lap_status_t check_action(const lap_pipeline_t *pipeline, uint32_t rank, uint32_t index,
                                 uint32_t *rank_of, uint8_t *done)
{
    const lap_pipe_action_t *action = &pipeline->rows[rank].actions[index];
    const unsigned backward = BIT(LAP_PIPE_BACKWARD) | BIT(LAP_PIPE_INPUT_GRAD);
    char text[96];
    if (action->stage >= pipeline->stages || action->micro >= pipeline->micros)
        return wrong(rank, index, action, "there is no such stage or micro-batch");
    if (rank_of[action->stage] != rank && rank_of[action->stage] != UINT32_MAX) {
        snprintf(text, sizeof(text), "rank %u has this stage already",
                 (unsigned)rank_of[action->stage]);
        return wrong(rank, index, action, text);
    }
    rank_of[action->stage] = rank;
    uint8_t *bits = &done[(size_t)action->stage * pipeline->micros + action->micro];
    const bool again =
        *bits & BIT(action->work) || (BIT(action->work) & backward && *bits & backward);
    if (again)
        return wrong(rank, index, action, "the row has it already");
    if (action->work != LAP_PIPE_FORWARD && !(*bits & BIT(LAP_PIPE_FORWARD)))
        return wrong(rank, index, action, "its forward does not come before it");
    if (action->work == LAP_PIPE_WEIGHT_GRAD && !(*bits & BIT(LAP_PIPE_INPUT_GRAD)))
        return wrong(rank, index, action, "its gradient of the input does not come before it");
    *bits |= (uint8_t)BIT(action->work);
    return LAP_OK;
}

static lap_status_t check_missing(const lap_pipeline_t *pipeline, const uint32_t *rank_of,
                                  const uint8_t *done)
{
    for (uint32_t stage = 0; stage < pipeline->stages; stage++) {
        if (rank_of[stage] == UINT32_MAX)
            return lap_error(LAP_ERR_CHECK, "no rank has stage %u of %u", (unsigned)stage,
                             (unsigned)pipeline->stages);
        for (uint32_t micro = 0; micro < pipeline->micros; micro++) {
            const unsigned bits = done[(size_t)stage * pipeline->micros + micro];
            const unsigned all = bits & BIT(LAP_PIPE_INPUT_GRAD) ? PARTS : WHOLE;
            lap_pipe_work_t work = LAP_PIPE_FORWARD;
            while (work < LAP_PIPE_WORKS && !(all & ~bits & BIT(work)))
                work++;
            if (work < LAP_PIPE_WORKS)
                return lap_error(
                    LAP_ERR_CHECK, "rank %u, stage %u: the %s of micro-batch %u is missing",
                    (unsigned)rank_of[stage], (unsigned)stage, work_name(work), (unsigned)micro);
        }
    }
    return LAP_OK;
}

static lap_status_t check_form(const lap_pipeline_t *pipeline, uint32_t *rank_of, uint8_t *done)
{
    memset(rank_of, 0xff, pipeline->stages * sizeof(*rank_of));
    for (uint32_t rank = 0; rank < pipeline->ranks; rank++)
        for (uint32_t i = 0; i < pipeline->rows[rank].nactions; i++)
            LAP_TRY(check_action(pipeline, rank, i, rank_of, done));
    return check_missing(pipeline, rank_of, done);
}

/* ---- the walk ---- */

typedef struct walk {
    const lap_pipeline_t *pipeline;
    lap_pipe_costs_t costs;
    uint32_t *rank_of; /* of each stage */
    uint32_t *next;    /* of each rank: its next action */
    double *free;      /* when each rank has ended the one before */
    double *ends[2]; /* per stage and micro-batch: of forward, of the gradient of the input; NAN */
} walk_t;

static double *end_of(const walk_t *walk, bool backward, uint32_t stage, uint32_t micro)
{
    return &walk->ends[backward][(size_t)stage * walk->pipeline->micros + micro];
}

/* The result of another stage that an action needs; false: it needs none. */
static bool find_needed(const walk_t *walk, const lap_pipe_action_t *action,
                        lap_pipe_action_t *needed_p)
{
    const uint32_t last = walk->pipeline->stages - 1;
    *needed_p = *action;
    if (action->work == LAP_PIPE_FORWARD && action->stage > 0) {
        needed_p->stage--;
        return true;
    }
    if (action->work == LAP_PIPE_FORWARD || action->work == LAP_PIPE_WEIGHT_GRAD ||
        action->stage == last)
        return false;
    needed_p->stage++;
    return true;
}

double lap_pipe_cost(const lap_pipe_costs_t *costs, const lap_pipe_action_t *action)
{
    if (costs->stages)
        costs = &costs->stages[action->stage];
    switch (action->work) {
    case LAP_PIPE_FORWARD:
        return costs->forward;
    case LAP_PIPE_BACKWARD:
        return costs->input_grad + costs->weight_grad;
    case LAP_PIPE_INPUT_GRAD:
        return costs->input_grad;
    default:
        return costs->weight_grad;
    }
}

/* When the rank can begin its next action; NAN: not yet. */
static double begin_of(const walk_t *walk, uint32_t rank, const lap_pipe_action_t *action)
{
    lap_pipe_action_t needed;
    if (!find_needed(walk, action, &needed))
        return walk->free[rank];
    const double there =
        *end_of(walk, action->work != LAP_PIPE_FORWARD, needed.stage, needed.micro) +
        (walk->rank_of[needed.stage] == rank ? 0 : walk->costs.message);
    return isnan(there) ? there : fmax(there, walk->free[rank]);
}

/* Lets a rank do all that it can. Returns how many actions that was. */
static uint32_t go_on(walk_t *walk, uint32_t rank, lap_pipe_times_t *times)
{
    const lap_pipe_row_t *row = &walk->pipeline->rows[rank];
    uint32_t done = 0;
    for (; walk->next[rank] < row->nactions; done++) {
        const lap_pipe_action_t *action = &row->actions[walk->next[rank]];
        const double begin = begin_of(walk, rank, action);
        if (isnan(begin))
            break;
        const double cost = lap_pipe_cost(&walk->costs, action);
        walk->free[rank] = begin + cost;
        if (action->work != LAP_PIPE_WEIGHT_GRAD)
            *end_of(walk, action->work != LAP_PIPE_FORWARD, action->stage, action->micro) =
                begin + cost;
        if (times) {
            lap_pipe_rank_t *its = &times->ranks[rank];
            its->begin = walk->next[rank] == 0 ? begin : its->begin;
            its->end = begin + cost;
            its->busy += cost;
        }
        if (times && times->begins)
            times->begins[rank][walk->next[rank]] = begin;
        walk->next[rank]++;
    }
    return done;
}

/* A rank that can go on no more, what it waits for, and where the rank is that should do it. */
static lap_status_t tell_deadlock(const walk_t *walk)
{
    const lap_pipeline_t *pipeline = walk->pipeline;
    uint32_t rank = 0;
    while (walk->next[rank] == pipeline->rows[rank].nactions)
        rank++;
    const lap_pipe_action_t *action = &pipeline->rows[rank].actions[walk->next[rank]];
    lap_pipe_action_t needed;
    char texts[3][LAP_PIPE_TEXT];
    (void)find_needed(walk, action, &needed);
    const uint32_t other = walk->rank_of[needed.stage];
    const lap_pipe_action_t *its = &pipeline->rows[other].actions[walk->next[other]];
    return lap_error(LAP_ERR_CHECK,
                     "deadlock: rank %u, action %u, %s waits for %s, which rank %u would do after "
                     "its action %u, %s, which waits as well",
                     (unsigned)rank, (unsigned)walk->next[rank], lap_pipe_text(action, texts[0]),
                     lap_pipe_text(&needed, texts[1]), (unsigned)other, (unsigned)walk->next[other],
                     lap_pipe_text(its, texts[2]));
}

static lap_status_t walk_all(walk_t *walk, lap_pipe_times_t *times)
{
    const lap_pipeline_t *pipeline = walk->pipeline;
    uint64_t left = 0;
    for (uint32_t rank = 0; rank < pipeline->ranks; rank++)
        left += pipeline->rows[rank].nactions;
    while (left > 0) {
        uint64_t done = 0;
        for (uint32_t rank = 0; rank < pipeline->ranks; rank++)
            done += go_on(walk, rank, times);
        if (done == 0)
            return tell_deadlock(walk);
        left -= done;
    }
    return LAP_OK;
}

static void walk_clear(walk_t *walk)
{
    lap_free(walk->rank_of);
    lap_free(walk->next);
    lap_free(walk->free);
    lap_free(walk->ends[0]);
    lap_free(walk->ends[1]);
}

/* Proves the form, and walks; `times` may be NULL. */
static lap_status_t check_and_walk(const lap_pipeline_t *pipeline, const lap_pipe_costs_t *costs,
                                   lap_pipe_times_t *times)
{
    const size_t cells = (size_t)pipeline->stages * pipeline->micros;
    walk_t walk = {.pipeline = pipeline, .costs = *costs};
    walk.rank_of = lap_alloc(pipeline->stages, sizeof(*walk.rank_of));
    walk.next = lap_alloc(pipeline->ranks, sizeof(*walk.next));
    walk.free = lap_alloc(pipeline->ranks, sizeof(*walk.free));
    walk.ends[0] = lap_alloc(cells, sizeof(double));
    walk.ends[1] = lap_alloc(cells, sizeof(double));
    uint8_t *done = lap_alloc(cells, 1);
    lap_status_t status = LAP_OK;
    if (!walk.rank_of || !walk.next || !walk.free || !walk.ends[0] || !walk.ends[1] || !done)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for %u stages of %u micro-batches",
                           (unsigned)pipeline->stages, (unsigned)pipeline->micros);
    if (status == LAP_OK)
        status = check_form(pipeline, walk.rank_of, done);
    for (size_t i = 0; status == LAP_OK && i < cells; i++)
        walk.ends[0][i] = walk.ends[1][i] = NAN;
    if (status == LAP_OK)
        status = walk_all(&walk, times);
    lap_free(done);
    walk_clear(&walk);
    return status;
}

lap_status_t lap_pipeline_check(const lap_pipeline_t *pipeline)
{
    const lap_pipe_costs_t costs = {.forward = 1, .input_grad = 1, .weight_grad = 1};
    return check_and_walk(pipeline, &costs, NULL);
}

/* ---- simulation ---- */

/* Activations are held from forward until the gradient of the weights. */
uint32_t lap_pipe_most_live(const lap_pipe_row_t *row)
{
    uint32_t live = 0, most = 0;
    for (uint32_t i = 0; i < row->nactions; i++) {
        const lap_pipe_work_t work = row->actions[i].work;
        live += work == LAP_PIPE_FORWARD;
        most = live > most ? live : most;
        live -= work == LAP_PIPE_BACKWARD || work == LAP_PIPE_WEIGHT_GRAD;
    }
    return most;
}

static lap_status_t alloc_times(const lap_pipeline_t *pipeline, bool begins,
                                lap_pipe_times_t *times)
{
    times->ranks = lap_alloc(pipeline->ranks, sizeof(*times->ranks));
    times->begins = begins ? lap_alloc(pipeline->ranks, sizeof(*times->begins)) : NULL;
    bool room = times->ranks && (times->begins || !begins);
    for (uint32_t rank = 0; room && begins && rank < pipeline->ranks; rank++) {
        times->begins[rank] = lap_alloc(pipeline->rows[rank].nactions, sizeof(double));
        room = times->begins[rank];
    }
    return room ? LAP_OK
                : lap_error(LAP_ERR_NO_MEMORY, "no memory for the times of %u ranks",
                            (unsigned)pipeline->ranks);
}

static lap_status_t simulate(const lap_pipeline_t *pipeline, const lap_pipe_costs_t *costs,
                             bool begins, lap_pipe_times_t *times_p)
{
    *times_p = (lap_pipe_times_t){.span = 0};
    LAP_TRY(alloc_times(pipeline, begins, times_p));
    LAP_TRY(check_and_walk(pipeline, costs, times_p));
    for (uint32_t rank = 0; rank < pipeline->ranks; rank++) {
        times_p->ranks[rank].most_live = lap_pipe_most_live(&pipeline->rows[rank]);
        times_p->span = fmax(times_p->span, times_p->ranks[rank].end);
    }
    return LAP_OK;
}

lap_status_t lap_pipeline_simulate(const lap_pipeline_t *pipeline, const lap_pipe_costs_t *costs,
                                   lap_pipe_times_t *times_p)
{
    return simulate(pipeline, costs, true, times_p);
}

lap_status_t lap_pipeline_simulate_ranks(const lap_pipeline_t *pipeline,
                                         const lap_pipe_costs_t *costs, lap_pipe_times_t *times_p)
{
    return simulate(pipeline, costs, false, times_p);
}

void lap_pipe_times_clear(lap_pipe_times_t *times, uint32_t ranks)
{
    for (uint32_t rank = 0; times->begins && rank < ranks; rank++)
        lap_free(times->begins[rank]);
    lap_free(times->begins);
    lap_free(times->ranks);
    *times = (lap_pipe_times_t){.span = 0};
}
