/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a method is picked, with times that the test gives: on a clock of its own, operators are not
 * run but take as long as a table says, in each round and on each rank. What is picked and what is
 * reported of it must be the same on all ranks, whichever of them is slow.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lap/lap_cuda.h>

#include "core/world.h"
#include "overlap/op.h"
#include "overlap/trial.h"
#include "tap.h"

#define US 1e-6
#define SETTLED_S 40e-3

enum { RANKS = 2, ROUNDS = 16, ALL = LAP_AUTO_CANDIDATES };

/* What a candidate takes. */
typedef struct pace {
    double
        seconds[ROUNDS]; /* of a call in each round, the last for those after it; first: warm up */
    double slower;       /* times as long on rank 1; 0: as long */
    double settled;      /* times as long after SETTLED_S of nothing else; 0: as long */
} pace_t;

/* One rank's, with its clock; NULL: the clock is that of the machine. */
typedef struct script {
    const lap_forecast_t *forecast;
    const pace_t *paces;
    int rank;
    int rounds[ALL]; /* that each has made */
    uint64_t now_ns;
    double alone_s; /* for how long there was no other candidate */
    lap_op_t *last;
    size_t present, before; /* candidates: of this round and of the one before */
    size_t hot;             /* who follows this one takes a fifth longer; 0: none is */
    int simulated;
    lap_engine_t *fails; /* whose streams turn out to have failed when an operator is destroyed */
} script_t;

static _Thread_local script_t *script;

/* ---- in place of the library's ---- */

uint64_t __real_lap_now_ns(void);
uint64_t __wrap_lap_now_ns(void);
lap_status_t __real_lap_group_barrier(lap_group_t *group);
lap_status_t __wrap_lap_group_barrier(lap_group_t *group);
lap_status_t __wrap_lap_op_create(lap_group_t *group, const lap_op_desc_t *desc, lap_op_t **op_p);
lap_status_t __wrap_lap_op_run(lap_op_t *op, const lap_op_args_t *args);
lap_status_t __wrap_lap_op_enqueue(lap_op_t *op, const lap_op_args_t *args,
                                   struct CUstream_st *stream);
lap_status_t __wrap_lap_world_synchronize(lap_world_t *world, struct CUstream_st *stream);
void __wrap_lap_op_destroy(lap_op_t *op);
lap_status_t __wrap_lap_schedule_simulate(const lap_schedule_t *const *schedules, int size,
                                          const lap_cost_t *cost, double *seconds_p);

void *__real_lap_alloc(size_t count, size_t size);
void *__wrap_lap_alloc(size_t count, size_t size);
void __real_lap_free(void *memory);
void __wrap_lap_free(void *memory);

uint64_t __wrap_lap_now_ns(void)
{
    return script ? script->now_ns : __real_lap_now_ns();
}

/* Only what tells the candidates apart. */
lap_status_t __wrap_lap_op_create(lap_group_t *group, const lap_op_desc_t *desc, lap_op_t **op_p)
{
    lap_op_t *op = calloc(1, sizeof(*op));
    const lap_status_t status =
        lap_problem_init(&op->problem, &op->builder, desc, lap_group_size(group), ~0u);
    *op_p = op;
    return status;
}

void __wrap_lap_op_destroy(lap_op_t *op)
{
    if (script && script->fails) {
        script->fails->failures++;
        script->fails->status = LAP_ERR_SYSTEM;
        (void)snprintf(script->fails->text, sizeof(script->fails->text), "a stream has failed");
        script->fails = NULL;
    }
    free(op);
}

static size_t index_of(const lap_op_t *op)
{
    size_t i = 0;
    for (; i < script->forecast->count; i++) {
        const lap_problem_t *x = &script->forecast->candidates[i].problem, *y = &op->problem;
        if (script->forecast->candidates[i].builder == op->builder &&
            x->desc.aggregate == y->desc.aggregate && x->desc.num_splits == y->desc.num_splits &&
            x->desc.block_rows == y->desc.block_rows && x->desc.num_sm == y->desc.num_sm)
            return i;
    }
    tap_ok(false, "an operator is one of the candidates");
    return 0;
}

/* Before each round. */
lap_status_t __wrap_lap_group_barrier(lap_group_t *group)
{
    if (script)
        script->last = NULL;
    return __real_lap_group_barrier(group);
}

lap_status_t __wrap_lap_op_run(lap_op_t *op, const lap_op_args_t *args)
{
    const size_t i = index_of(op);
    const pace_t *pace = &script->paces[i];
    (void)args;
    if (script->present != i)
        script->alone_s = 0;
    if (script->last != op) {
        script->rounds[i]++;
        script->before = script->present;
        script->present = i;
    }
    script->last = op;
    int round = script->rounds[i] - 1;
    while (round > 0 && pace->seconds[round < ROUNDS ? round : ROUNDS - 1] == 0)
        round--;
    const double slower = script->rank == 1 && pace->slower > 0 ? pace->slower : 1;
    const double warm = script->hot > 0 && script->before == script->hot ? 1.2 : 1;
    const double settled = pace->settled > 0 && script->alone_s >= SETTLED_S ? pace->settled : 1;
    const double seconds = pace->seconds[round] * slower * warm * settled;
    script->alone_s += seconds;
    script->now_ns += (uint64_t)(seconds * 1e9);
    return LAP_OK;
}

lap_status_t __wrap_lap_op_enqueue(lap_op_t *op, const lap_op_args_t *args,
                                   struct CUstream_st *stream)
{
    (void)stream;
    return __wrap_lap_op_run(op, args);
}

lap_status_t __wrap_lap_world_synchronize(lap_world_t *world, struct CUstream_st *stream)
{
    (void)world;
    (void)stream;
    return LAP_OK;
}

lap_status_t __wrap_lap_schedule_simulate(const lap_schedule_t *const *schedules, int size,
                                          const lap_cost_t *cost, double *seconds_p)
{
    (void)schedules;
    (void)size;
    (void)cost;
    *seconds_p = script->paces[script->simulated++].seconds[0];
    return LAP_OK;
}

static _Thread_local bool next_fails; /* the next allocation of this thread */
static _Thread_local int allocated;   /* by this thread, and not given back */

void *__wrap_lap_alloc(size_t count, size_t size)
{
    void *memory = next_fails ? NULL : __real_lap_alloc(count, size);
    next_fails = false;
    allocated += memory != NULL;
    return memory;
}

void __wrap_lap_free(void *memory)
{
    allocated -= memory != NULL;
    __real_lap_free(memory);
}

/* ---- trials ---- */

static _Thread_local lap_buffer_t *buffer; /* of a rank */

static lap_op_desc_t describe(void)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.buffer = buffer;
    desc.kind = LAP_GEMM_RS;
    desc.m = 64;
    desc.n = 64;
    desc.k = 16;
    desc.method = "auto";
    return desc;
}

/* All take three times as long as serial, the first, but those that the caller names. */
static void set_paces(pace_t *paces, double serial)
{
    memset(paces, 0, ALL * sizeof(*paces));
    for (int i = 0; i < ALL; i++)
        paces[i].seconds[0] = 3 * serial;
    paces[0].seconds[0] = serial;
}

/* The candidates, all of them tried; `rounds_p` of each, where that is not NULL. */
static lap_forecast_t run_after(lap_world_t *world, const pace_t *paces, size_t hot,
                                const lap_forecast_t *among, size_t most, int *rounds_p)
{
    const lap_op_desc_t desc = describe();
    lap_group_t *group = lap_world_group(world);
    lap_engine_t *engine = NULL;
    lap_trial_t *trial = NULL;
    lap_forecast_t forecast = {.count = 0};
    script_t own = {
        .forecast = &forecast, .paces = paces, .hot = hot, .rank = lap_world_rank(world)};
    own.now_ns = __real_lap_now_ns();
    if (!tap_success(lap_engine_get(world, &engine), "an engine") ||
        !tap_success(lap_auto_list(&desc, RANKS, ~0u, desc.m, &forecast), "candidates") ||
        !tap_success(lap_trial_begin(group, engine, &desc, &trial), "a trial"))
        exit(tap_done());
    script = &own;
    const lap_status_t status = lap_trial_run(trial, desc.m, among, most, &forecast);
    script = NULL;
    tap_success(status, "it runs");
    lap_trial_end(trial);
    if (rounds_p)
        memcpy(rounds_p, own.rounds, sizeof(own.rounds));
    return forecast;
}

static lap_forecast_t run(lap_world_t *world, const pace_t *paces, const lap_forecast_t *among,
                          size_t most, int *rounds_p)
{
    return run_after(world, paces, 0, among, most, rounds_p);
}

static void expect(lap_world_t *world, const pace_t *paces, size_t picked, const char *what)
{
    const lap_forecast_t forecast = run(world, paces, NULL, 0, NULL);
    tap_ok(forecast.picked == picked, "rank %d picks %s, expected %s: %s", lap_world_rank(world),
           forecast.candidates[forecast.picked].label, forecast.candidates[picked].label, what);
}

/* Overlap must beat serial by 0.5 %, and by a microsecond besides. */
static void test_band(lap_world_t *world)
{
    pace_t paces[ALL];
    set_paces(paces, 1000 * US);
    paces[2].seconds[0] = 995 * US;
    expect(world, paces, 0, "995 us are not 0.5 % and 1 us below 1000");
    paces[2].seconds[0] = 994.2 * US;
    expect(world, paces, 0, "994.2 us are not, either");
    paces[2].seconds[0] = 993.8 * US;
    expect(world, paces, 2, "993.8 us are");
    paces[3].seconds[0] = 993.5 * US;
    expect(world, paces, 3, "993.5 us are better still");
    set_paces(paces, 100 * US);
    paces[1].seconds[0] = 98.7 * US;
    expect(world, paces, 0, "98.7 us are 1.3 % below 100, not 0.5 % and 1 us");
    paces[1].seconds[0] = 98.3 * US;
    expect(world, paces, 1, "98.3 us are");
    paces[0].seconds[0] = 90 * US;
    expect(world, paces, 0, "serial is faster");
}

/* A call takes as long as on the slowest rank, and all know it. */
static void test_slow_rank(lap_world_t *world)
{
    pace_t paces[ALL];
    set_paces(paces, 1000 * US);
    paces[2].seconds[0] = 500 * US;
    paces[2].slower = 2.2;
    paces[3].seconds[0] = 800 * US;
    const lap_forecast_t forecast = run(world, paces, NULL, 0, NULL);
    const int rank = lap_world_rank(world);
    tap_ok(forecast.picked == 3,
           "rank %d picks %s, expected %s: the one that is faster here is slow on rank 1", rank,
           forecast.candidates[forecast.picked].label, forecast.candidates[3].label);
    tap_ok(fabs(forecast.seconds[2] - 1100 * US) < US, "rank %d says %g s of it, expected 1.1 ms",
           rank, forecast.seconds[2]);
}

/* The median of the rounds counts; who is far behind has one round, the warm-up not counted. */
static void test_rounds(lap_world_t *world)
{
    pace_t paces[ALL];
    int rounds[ALL];
    set_paces(paces, 1000 * US);
    const double good[] = {1, 500 * US, 500 * US, 500 * US, 500 * US, 500 * US, 520 * US};
    const double bad[] = {1, 1100 * US, 1100 * US, 1100 * US, 400 * US, 1100 * US};
    memcpy(paces[1].seconds, good, sizeof(good));
    memcpy(paces[2].seconds, bad, sizeof(bad));
    const lap_forecast_t forecast = run(world, paces, NULL, 0, rounds);
    tap_ok(forecast.picked == 1 && forecast.seconds[1] < 521 * US,
           "a method with a slow warm-up is picked: %s, %g s",
           forecast.candidates[forecast.picked].label, forecast.seconds[1]);
    tap_ok(rounds[4] == 2 && rounds[1] > 5, "what takes six times as long is tried once, not %d",
           rounds[4] - 1);
    set_paces(paces, 1000 * US);
    memcpy(paces[2].seconds, bad, sizeof(bad));
    expect(world, paces, 0, "one round of 400 us among some of 1100 makes no fast method");
}

/* What a method does to the machine, it does not always do to the same other one. */
static void test_turns(lap_world_t *world)
{
    pace_t paces[ALL];
    for (size_t hot = 1; hot < 4; hot++) {
        const size_t next = hot + 1;
        set_paces(paces, 1000 * US);
        paces[hot].seconds[0] = 970 * US;
        paces[next].seconds[0] = 850 * US;
        const lap_forecast_t forecast = run_after(world, paces, hot, NULL, 0, NULL);
        tap_ok(forecast.picked == next && fabs(forecast.seconds[next] - 850 * US) < US,
               "rank %d picks %s, expected %s, which is as fast as any, but not after %s",
               lap_world_rank(world), forecast.candidates[forecast.picked].label,
               forecast.candidates[next].label, forecast.candidates[hot].label);
    }
}

/* The trial on a device whose calls go to streams, as those of a GPU do. */
static lap_forecast_t run_in_order(lap_world_t *world, const pace_t *paces, int *rounds_p)
{
    lap_engine_t *engine = NULL;
    if (!tap_success(lap_engine_get(world, &engine), "an engine"))
        exit(tap_done());
    const lap_device_ops_t *own = engine->device->ops;
    lap_device_ops_t streams = *own;
    streams.takes_streams = true;
    engine->device->ops = &streams;
    const lap_forecast_t forecast = run(world, paces, NULL, 0, rounds_p);
    engine->device->ops = own;
    return forecast;
}

/* At a GPU's limit of power a call takes another time alone than in turns with others: that counts. */
static void test_final(lap_world_t *world)
{
    const int rank = lap_world_rank(world);
    pace_t paces[ALL];
    int rounds[ALL];
    set_paces(paces, 9000 * US);
    paces[1].seconds[0] = 8000 * US; /* the best in turns, alone slower by a tenth */
    paces[1].settled = 1.1;
    paces[2].seconds[0] = 8200 * US;
    paces[3].seconds[0] = 8100 * US;
    paces[3].settled = 1.05;
    paces[4].seconds[0] = 8300 * US; /* alone the fastest */
    paces[4].settled = 0.9;
    paces[5].seconds[0] = 8340 * US; /* close to the best, too, but there are four before it */
    paces[5].settled = 0.5;
    paces[6].seconds[0] = 8350 * US; /* not close */
    paces[6].settled = 0.5;
    const lap_forecast_t all = run_in_order(world, paces, rounds);
    tap_ok(all.picked == 4 && fabs(all.seconds[4] - 0.9 * 8300 * US) < US,
           "rank %d picks %s, expected %s, which is the fastest alone: %g s", rank,
           all.candidates[all.picked].label, all.candidates[4].label, all.seconds[4]);
    tap_ok(fabs(all.seconds[1] - 1.1 * 8000 * US) < US && fabs(all.seconds[2] - 8200 * US) < US &&
               fabs(all.seconds[3] - 1.05 * 8100 * US) < US,
           "rank %d says %g, %g and %g s of the others, which ran alone", rank, all.seconds[1],
           all.seconds[2], all.seconds[3]);
    tap_ok(fabs(all.seconds[0] - 1.1 * 9000 * US) < US &&
               fabs(all.seconds[5] - 1.1 * 8340 * US) < US && rounds[5] == rounds[6],
           "rank %d says %g and %g s of those that did not, slower as the best of the turns", rank,
           all.seconds[0], all.seconds[5]);
    paces[4].slower = 1.2;
    tap_ok(run_in_order(world, paces, NULL).picked == 2,
           "rank %d picks the next if that one is slower on rank 1", rank);
    set_paces(paces, 900 * US);
    paces[1].seconds[0] = 800 * US;
    paces[1].settled = 1.5;
    paces[2].seconds[0] = 820 * US;
    tap_ok(run_in_order(world, paces, NULL).picked == 1, "rank %d: short calls have no final",
           rank);
    for (int i = 0; i < ALL; i++)
        paces[i].seconds[0] *= 10;
    tap_ok(run_in_order(world, paces, NULL).picked == 2 &&
               run(world, paces, NULL, 0, NULL).picked == 1,
           "rank %d: long ones have, but not on a host", rank);
    paces[2].seconds[0] = 8400 * US;
    tap_ok(run_in_order(world, paces, rounds).picked == 1 && rounds[1] == rounds[2],
           "rank %d: who is ahead of all others needs no final", rank);
}

/* With fewer rows only serial and the fastest of the capacity are tried. */
static void test_among(lap_world_t *world)
{
    pace_t paces[ALL];
    int rounds[ALL], tried = 0;
    set_paces(paces, 1000 * US);
    for (int i = 1; i < ALL; i++)
        paces[i].seconds[0] = (1000 + 10 * i) * US;
    const lap_forecast_t all = run(world, paces, NULL, 0, NULL);
    paces[2].seconds[0] = 600 * US;
    paces[3].seconds[0] = 500 * US; /* is not among the fastest two there, but would win here */
    const lap_forecast_t few = run(world, paces, &all, 3, rounds);
    for (size_t i = 0; i < few.count; i++)
        tried += rounds[i] > 0;
    tap_ok(tried == 3 && few.picked == 2 && few.seconds[3] == all.seconds[3],
           "serial and the fastest are tried, %d of 3, and %s is picked", tried,
           few.candidates[few.picked].label);
}

/* What the last calls have done may be known only when they are waited for, at their end. */
static void test_late_failure(lap_world_t *world)
{
    const lap_op_desc_t desc = describe();
    pace_t paces[ALL];
    lap_engine_t *engine = NULL;
    lap_trial_t *trial = NULL;
    lap_forecast_t forecast = {.count = 0};
    set_paces(paces, 1000 * US);
    tap_success(lap_engine_get(world, &engine), "an engine");
    tap_success(lap_auto_list(&desc, RANKS, ~0u, desc.m, &forecast), "candidates");
    if (!tap_success(lap_trial_begin(lap_world_group(world), engine, &desc, &trial), "a trial"))
        exit(tap_done());
    script_t own = {.forecast = &forecast, .paces = paces, .rank = lap_world_rank(world)};
    own.now_ns = __real_lap_now_ns();
    own.fails = engine;
    script = &own;
    const lap_status_t status = lap_trial_run(trial, desc.m, NULL, 0, &forecast);
    script = NULL;
    tap_failure(status, LAP_ERR_SYSTEM, "a stream has failed", NULL);
    lap_trial_end(trial);
}

/* ---- what a model picked ---- */

/* A choice as a model makes it: all rows by the candidate that takes `pick` of serial's 1 ms. */
static lap_auto_t choose(size_t picked, double serial, double pick)
{
    const lap_op_desc_t desc = describe();
    lap_auto_t choice = {.nbands = 2};
    for (size_t b = 0; b < choice.nbands; b++) {
        tap_success(lap_auto_list(&desc, RANKS, ~0u, desc.m >> b, &choice.capacity), "candidates");
        choice.bands[b] = choice.capacity.candidates[picked];
    }
    tap_success(lap_auto_list(&desc, RANKS, ~0u, desc.m, &choice.capacity), "candidates");
    for (size_t i = 0; i < choice.capacity.count; i++)
        choice.capacity.seconds[i] = i == picked ? pick : i == 0 ? serial : 1;
    choice.whole = choice.bands[0];
    return choice;
}

/* Whether it stays when calls take as long as `paces` say. */
static void confirm(lap_world_t *world, size_t picked, double serial, const pace_t *paces,
                    size_t expected, const char *what)
{
    const lap_op_desc_t desc = describe();
    lap_engine_t *engine = NULL;
    lap_forecast_t all;
    tap_success(lap_engine_get(world, &engine), "an engine");
    tap_success(lap_auto_list(&desc, RANKS, ~0u, desc.m, &all), "candidates");
    lap_auto_t choice = choose(picked, serial, 0.9 * serial);
    script_t own = {.forecast = &all, .paces = paces, .rank = lap_world_rank(world)};
    own.now_ns = __real_lap_now_ns();
    script = &own;
    const lap_status_t status =
        lap_auto_confirm(lap_world_group(world), engine, &desc, ~0u, &choice);
    script = NULL;
    tap_success(status, "it is confirmed, or not");
    const char *label = all.candidates[expected].label;
    tap_ok(strcmp(choice.whole.label, label) == 0 && strcmp(choice.bands[0].label, label) == 0 &&
               strncmp(choice.bands[1].label, label, strlen("serial")) == 0 &&
               (expected == picked || strcmp(choice.capacity.candidates[0].label, label) == 0),
           "rank %d has %s and for fewer rows %s, expected %s: %s", lap_world_rank(world),
           choice.whole.label, choice.bands[1].label, label, what);
}

static void test_confirmed(lap_world_t *world)
{
    pace_t paces[ALL];
    set_paces(paces, 1000 * US);
    paces[2].seconds[0] = 900 * US;
    confirm(world, 2, 1000 * US, paces, 2, "it is as fast as the model said");
    paces[2].seconds[0] = 1050 * US;
    confirm(world, 2, 1000 * US, paces, 0, "it is slower than serial");
    paces[2].seconds[0] = 996 * US;
    confirm(world, 2, 1000 * US, paces, 0, "it is no faster than noise");
    paces[2].seconds[0] = 900 * US;
    paces[2].slower = 1.2;
    confirm(world, 2, 1000 * US, paces, 0, "it is slower on rank 1, and that counts for both");
    paces[2].seconds[0] = 2000 * US;
    confirm(world, 2, 21000 * US, paces, 2, "what takes longer than 20 ms is not tried");
}

/* When one rank has no memory for a trial, none begins one, and nothing is left of it. */
static void test_no_memory(lap_world_t *world)
{
    const lap_op_desc_t desc = describe();
    lap_engine_t *engine = NULL;
    lap_trial_t *trial = NULL;
    tap_success(lap_engine_get(world, &engine), "an engine");
    const int before = allocated;
    next_fails = lap_world_rank(world) == 1;
    tap_failure(lap_trial_begin(lap_world_group(world), engine, &desc, &trial), LAP_ERR_NO_MEMORY,
                "no memory for a trial", NULL);
    tap_ok(allocated == before && !trial, "rank %d keeps %d allocations of it",
           lap_world_rank(world), allocated - before);
}

static void suite(lap_world_t *world, void *arg)
{
    (void)arg;
    size_t bytes, nsignals;
    const lap_op_desc_t desc = describe();
    if (!tap_success(lap_op_buffer_size(&desc, RANKS, &bytes, &nsignals), "the size of a buffer") ||
        !tap_success(lap_buffer_create(lap_world_group(world), bytes, nsignals, NULL, &buffer),
                     "a buffer"))
        exit(tap_done());
    test_no_memory(world);
    test_band(world);
    test_slow_rank(world);
    test_rounds(world);
    test_turns(world);
    test_final(world);
    test_among(world);
    test_late_failure(world);
    test_confirmed(world);
    lap_buffer_destroy(buffer);
}

/* ---- forecasts ---- */

static void forecast(const pace_t *paces, size_t picked, const char *what)
{
    const lap_op_desc_t desc = describe();
    const lap_cost_t cost = {.step_s = 0};
    lap_forecast_t forecast = {.count = 0};
    script_t own = {.paces = paces};
    tap_success(lap_auto_list(&desc, RANKS, ~0u, desc.m, &forecast), "candidates");
    script = &own;
    const lap_status_t status = lap_auto_predict(&forecast, lap_target_at(0), &cost);
    script = NULL;
    tap_success(status, "a forecast");
    tap_ok(forecast.picked == picked, "%s is picked, expected %s: %s",
           forecast.candidates[forecast.picked].label, forecast.candidates[picked].label, what);
}

static void test_margin(void)
{
    pace_t paces[ALL];
    set_paces(paces, 1000 * US);
    paces[2].seconds[0] = 981 * US;
    forecast(paces, 0, "981 us are not 2 % below 1000");
    paces[2].seconds[0] = 979 * US;
    forecast(paces, 2, "979 us are");
    paces[1].seconds[0] = 978 * US;
    forecast(paces, 1, "978 us are better still");
}

int main(void)
{
    test_margin();
    tap_ranks(RANKS, NULL, suite, NULL);
    return tap_done();
}
