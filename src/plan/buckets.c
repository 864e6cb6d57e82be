/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/buckets.h"

#include "core/status.h"
#include "nn/context.h"
#include "overlap/overlap.h"
#include "schedule/lower.h"
#include "util/alloc.h"

#define NO_TIME 1e-12
#define FAST 1e30 /* bytes per second */

lap_status_t lap_plan_buckets_init(lap_plan_buckets_t *buckets, const lap_machine_t *machine,
                                   size_t rows, size_t cols)
{
    static const char *const names[LAP_PLAN_PLACES] = {"gradients", "shard", "weights"};
    *buckets = (lap_plan_buckets_t){.machine = machine, .cols = cols};
    buckets->cost = (lap_cost_t){
        .copy = {.count = 1, .sizes = {1}, .values = {FAST}},
        .reduce = FAST,
        .step_s = NO_TIME,
        .signal_s = NO_TIME,
        .event_s = NO_TIME,
        .cores = LAP_STREAMS * LAP_PLAN_TWO,
        .rank_cores = 1,
        .gemm_cores = 1,
        .copy_engines = true,
        .put_cores = machine->network.sms / machine->sms,
    };
    for (int r = 0; r < LAP_PLAN_TWO; r++) {
        buckets->programs[r].rank = r;
        for (uint32_t i = 0; i < LAP_PLAN_PLACES; i++)
            (void)lap_link_add_region(&buckets->programs[r], names[i], i, 0,
                                      rows * cols * sizeof(float), true);
        LAP_TRY(buckets->programs[r].status);
    }
    return lap_target_find("cuda", &buckets->target);
}

void lap_plan_buckets_clear(lap_plan_buckets_t *buckets)
{
    for (uint32_t i = 0; i < buckets->ncosts; i++)
        lap_free((void *)(uintptr_t)buckets->costs[i].steps);
    lap_free(buckets->costs);
    for (int r = 0; r < LAP_PLAN_TWO; r++)
        lap_linked_clear(&buckets->programs[r]);
    *buckets = (lap_plan_buckets_t){.ncosts = 0};
}

static lap_fragment_cost_t *add_cost(lap_plan_buckets_t *buckets)
{
    lap_fragment_cost_t *grown =
        lap_grow(buckets->costs, buckets->ncosts, &buckets->costs_room, sizeof(*buckets->costs));
    if (!grown) {
        (void)lap_error(LAP_ERR_NO_MEMORY, "no memory for the costs of %u fragments",
                        buckets->ncosts + 1u);
        return NULL;
    }
    buckets->costs = grown;
    grown[buckets->ncosts] = (lap_fragment_cost_t){.cost = &buckets->cost};
    return &grown[buckets->ncosts++];
}

/* ---- kernels ---- */

static lap_link_place_t place_of(const lap_plan_buckets_t *buckets, lap_plan_slice_t rows)
{
    const size_t row = buckets->cols * sizeof(float);
    return (lap_link_place_t){(uint32_t)rows.place, LAP_FLOAT32, rows.begin * row, row, row};
}

lap_status_t lap_plan_add_kernel(lap_plan_buckets_t *buckets, const char *name, double seconds,
                                 lap_plan_slice_t reads, lap_plan_slice_t writes)
{
    lap_fragment_cost_t *cost = add_cost(buckets);
    if (!cost)
        return LAP_ERR_NO_MEMORY;
    cost->kernel_s = seconds;
    buckets->kernels_s += seconds;
    for (int r = 0; r < LAP_PLAN_TWO; r++) {
        const lap_problem_t problem = {.rank = 0, .size = 1};
        lap_linked_t *linked = &buckets->programs[r];
        const lap_link_place_t from = place_of(buckets, reads), to = place_of(buckets, writes);
        lap_fragment_t *fragment =
            lap_link_kernel(linked, &problem, name, LAP_STREAM_COMPUTE, name);
        if (!fragment)
            return linked->status;
        fragment->base = r;
        fragment->stride = 1;
        lap_link_operand(linked, 0, false, &from, reads.end - reads.begin);
        lap_link_operand(linked, 1, true, &to, writes.end - writes.begin);
        LAP_TRY(linked->status);
    }
    return LAP_OK;
}

/* ---- buckets ---- */

/* The operator that sums a bucket of gradients, or gathers one, on a rank. */
static lap_status_t build(const lap_plan_buckets_t *buckets, lap_op_kind_t kind, size_t rows,
                          int rank, lap_schedule_t *schedule_p)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    const lap_builder_t *builder;
    lap_problem_t problem;
    desc.kind = kind;
    desc.m = rows;
    desc.cols = buckets->cols;
    desc.dtype = LAP_FLOAT32;
    desc.method = "direct";
    desc.background = 1;
    LAP_TRY(lap_problem_init(&problem, &builder, &desc, LAP_PLAN_TWO, buckets->target->can));
    problem.rank = rank;
    LAP_TRY(lap_build(builder, &problem, schedule_p));
    return lap_lower(schedule_p, 1, buckets->target, NULL);
}

/* What goes to the other replica takes the time of all, and SMs meanwhile, which sum what comes. */
static lap_status_t set_steps(lap_plan_buckets_t *buckets, const lap_schedule_t *schedule,
                              double seconds)
{
    const lap_machine_t *machine = buckets->machine;
    lap_fragment_cost_t *cost = add_cost(buckets);
    lap_step_cost_t *steps = cost ? lap_alloc(schedule->nsteps, sizeof(*steps)) : NULL;
    if (!steps)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the costs of a bucket");
    for (uint32_t s = 0; s < schedule->nsteps; s++) {
        const bool moves = schedule->steps[s].kind == LAP_STEP_PUT;
        steps[s] =
            (lap_step_cost_t){moves ? seconds : NO_TIME, machine->network.sms / machine->sms};
    }
    cost->steps = steps;
    cost->nsteps = schedule->nsteps;
    buckets->wire_s += seconds;
    return LAP_OK;
}

static lap_status_t add_call(lap_plan_buckets_t *buckets, lap_op_kind_t kind, double seconds,
                             lap_plan_slice_t from, lap_plan_slice_t to)
{
    for (int r = 0; r < LAP_PLAN_TWO; r++) {
        lap_linked_t *linked = &buckets->programs[r];
        lap_schedule_t schedule = {.nsteps = 0};
        lap_status_t status = build(buckets, kind, from.end - from.begin, r, &schedule);
        if (status == LAP_OK && r == 0)
            status = set_steps(buckets, &schedule, seconds);
        lap_fragment_t *fragment = status == LAP_OK ? lap_link_fragment(linked) : NULL;
        if (!fragment) {
            lap_schedule_clear(&schedule);
            return status == LAP_OK ? linked->status : status;
        }
        fragment->schedule = schedule;
        fragment->places[LAP_MOVED] = place_of(buckets, from);
        fragment->places[LAP_GATHERED] = place_of(buckets, to);
        fragment->buffer = LAP_NN_BY_REPLICAS;
        fragment->base = 0;
        fragment->stride = 1;
    }
    return LAP_OK;
}

lap_status_t lap_plan_add_scatter(lap_plan_buckets_t *buckets, double seconds,
                                  lap_plan_slice_t from, lap_plan_slice_t to)
{
    return add_call(buckets, LAP_EXTERNAL_RS, seconds, from, to);
}

lap_status_t lap_plan_add_gather(lap_plan_buckets_t *buckets, double seconds, lap_plan_slice_t from,
                                 lap_plan_slice_t to)
{
    return add_call(buckets, LAP_EXTERNAL_AG, seconds, from, to);
}

/* ---- all of it ---- */

lap_status_t lap_plan_buckets_simulate(lap_plan_buckets_t *buckets, double *seconds_p)
{
    const lap_linked_t *programs[LAP_PLAN_TWO];
    lap_simulated_t simulated;
    for (int r = 0; r < LAP_PLAN_TWO; r++) {
        LAP_TRY(lap_link(&buckets->programs[r]));
        programs[r] = &buckets->programs[r];
    }
    LAP_TRY(lap_linked_simulate(programs, LAP_PLAN_TWO, buckets->costs, &simulated, 0, NULL));
    *seconds_p = simulated.seconds;
    return LAP_OK;
}
