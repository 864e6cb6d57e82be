/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measuring the steps of operators, each by itself: as a runnable of the same step again and again,
 * without signals, with the memory, the kernels and the epilogues of the operator, captured as a graph where
 * calls are. What a step puts into the memory of a peer is not looked at by anybody. Where GEMMs run in
 * two lanes the same is done in both at once: so it is known how much of the device one of them wants.
 */
#include <math.h>

#include "core/status.h"
#include "nn/probe.h"
#include "overlap/knobs.h"
#include "schedule/range.h"
#include "util/alloc.h"

#define ALIGN 256u
#define FEW 4u       /* repeats */
#define MANY 32u     /* at most */
#define ROUND_S 1e-3 /* what a step is repeated for */

/* An operator whose steps are measured, and the memory of its calls. */
typedef struct call {
    lap_op_t *op;
    lap_binding_t binding;
    size_t m;
    const lap_schedule_t *schedule; /* of this rank */
} call_t;

/* ---- runnables of one step ---- */

static bool is_measured(const lap_step_t *step)
{
    switch (step->kind) {
    case LAP_STEP_GEMM:
        return step->ntiles > 0;
    case LAP_STEP_PUT:
    case LAP_STEP_COPY:
    case LAP_STEP_REDUCE:
    case LAP_STEP_SUMS:
        return true;
    default:
        return false;
    }
}

/* The step as it is issued, but nobody waits for it, nor it for anybody. */
static lap_step_t step_by_itself(lap_schedule_t *schedule, uint32_t index)
{
    lap_step_t step = schedule->steps[index];
    step.together = false;
    if (step.kind == LAP_STEP_PUT)
        step.signal.word = LAP_NO_SIGNAL;
    for (uint32_t t = step.first_tile; t < step.first_tile + step.ntiles; t++)
        schedule->tiles[t].wait = schedule->tiles[t].raise = LAP_SIGNAL_NONE;
    return step;
}

/* In its own stream, or in both lanes in turn. */
static lap_status_t repeat(lap_schedule_t *schedule, uint32_t index, uint32_t repeats, bool lanes)
{
    lap_step_t step = step_by_itself(schedule, index);
    lap_free(schedule->steps);
    schedule->steps = NULL;
    schedule->nsteps = schedule->steps_room = 0;
    for (uint32_t s = 0; s < schedule->nsignals; s++)
        schedule->raised[s] = 0;
    for (uint32_t i = 0; i < repeats; i++) {
        if (lanes)
            step.stream = i % 2 ? LAP_STREAM_LANE : LAP_STREAM_COMPUTE;
        (void)lap_add_step(schedule, &step);
    }
    return schedule->status;
}

static lap_status_t make_runnable(const call_t *call, uint32_t index, uint32_t repeats, bool lanes,
                                  lap_runnable_t **runnable_p)
{
    lap_schedule_t schedule;
    lap_status_t status = lap_op_schedule(call->op, call->m, call->op->group->rank, &schedule);
    if (status == LAP_OK)
        status = repeat(&schedule, index, repeats, lanes);
    if (status == LAP_OK)
        return lap_runnable_create(call->op->engine, &schedule, runnable_p);
    lap_schedule_clear(&schedule);
    return status;
}

typedef struct run {
    lap_runnable_t *runnable;
    const lap_binding_t *binding;
} run_t;

static lap_status_t run_program(lap_probe_t *probe, void *what)
{
    const run_t *run = what;
    if (!run->runnable)
        return LAP_OK; /* a step that this rank has not */
    lap_status_t status = lap_runnable_issue(run->runnable, run->binding);
    if (status == LAP_OK)
        status = lap_runnable_wait(run->runnable);
    if (status != LAP_OK)
        lap_engine_fail(probe->nn->engine, status, NULL);
    return status;
}

/* The seconds of so many repeats. Collective, also after a failure of this rank. */
static lap_status_t time_repeats(lap_probe_t *probe, const call_t *call, uint32_t index,
                                 uint32_t repeats, bool lanes, double *seconds_p)
{
    run_t run = {.binding = &call->binding};
    const lap_schedule_t *schedule = call->schedule;
    lap_status_t status = LAP_OK;
    if (index < schedule->nsteps && is_measured(&schedule->steps[index]))
        status = make_runnable(call, index, repeats, lanes, &run.runnable);
    if (status == LAP_OK && run.runnable)
        status = lap_runnable_prepare(run.runnable, &call->binding, false);
    for (int i = 0; i < 2 && status == LAP_OK; i++) /* the second one is captured */
        status = run_program(probe, &run);
    status = lap_probe_time(probe, run_program, &run, status, seconds_p);
    lap_runnable_destroy(run.runnable);
    return status;
}

/* ---- steps ---- */

/* What a call takes that does next to nothing. */
static double overhead_of(const lap_probe_t *probe)
{
    return probe->costs[0].call_s;
}

static bool moves(const lap_step_t *step)
{
    return step->kind == LAP_STEP_PUT || step->kind == LAP_STEP_COPY;
}

/* Two lanes that take twice as long as one leave nothing free. */
static lap_status_t measure_step(lap_probe_t *probe, const call_t *call, uint32_t index, bool lanes,
                                 lap_step_cost_t *cost_p)
{
    const double overhead = overhead_of(probe);
    double few, many, both;
    LAP_TRY(time_repeats(probe, call, index, FEW, false, &few));
    const double guess = fmax(few - overhead, 1e-9) / FEW;
    const uint32_t repeats = (uint32_t)fmax(FEW, fmin(MANY, ROUND_S / guess));
    LAP_TRY(time_repeats(probe, call, index, repeats, false, &many));
    const double seconds = fmax(0, many - overhead);
    *cost_p = (lap_step_cost_t){seconds / repeats, 1};
    if (!lanes)
        return LAP_OK;
    LAP_TRY(time_repeats(probe, call, index, 2 * repeats, true, &both));
    if (seconds > 0)
        cost_p->cores = fmax(0.5, fmin(1, fmax(0, both - overhead) / (2 * seconds)));
    return LAP_OK;
}

static bool is_same_range(const lap_range_t *a, const lap_range_t *b)
{
    return a->place == b->place && a->rows == b->rows && a->row_bytes == b->row_bytes &&
           a->stride == b->stride;
}

/* Whether uses are the same in their order, but for the rows. */
static bool are_alike(const lap_schedule_t *schedule, uint32_t a, uint32_t b, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const lap_use_t *one = &schedule->uses[a + i], *other = &schedule->uses[b + i];
        if (one->role != other->role || one->dtype != other->dtype ||
            !is_same_range(&one->range, &other->range))
            return false;
    }
    return true;
}

/* Whether two steps do the same with other rows. */
static bool is_alike(const lap_schedule_t *schedule, const lap_step_t *a, const lap_step_t *b)
{
    if (a->kind != b->kind || a->ntiles != b->ntiles || a->nuses != b->nuses ||
        !are_alike(schedule, a->first_use, b->first_use, a->nuses))
        return false;
    for (uint32_t t = 0; t < a->ntiles; t++) {
        const lap_tile_t *one = &schedule->tiles[a->first_tile + t];
        const lap_tile_t *other = &schedule->tiles[b->first_tile + t];
        if (one->nuses != other->nuses ||
            !are_alike(schedule, one->first_use, other->first_use, one->nuses))
            return false;
    }
    return true;
}

static bool has_lanes(const lap_schedule_t *schedule)
{
    bool lanes = false;
    for (uint32_t i = 0; i < schedule->nsteps; i++)
        lanes = lanes || schedule->steps[i].stream == LAP_STREAM_LANE;
    return lanes;
}

/* A step before that does the same as this one; itself if there is none. */
static uint32_t first_alike(const lap_schedule_t *schedule, uint32_t index)
{
    uint32_t i = 0;
    while (!is_alike(schedule, &schedule->steps[i], &schedule->steps[index]))
        i++;
    return i;
}

/* Whether any rank has a step to measure there, which none before is like; and a GEMM in lanes. */
static lap_status_t find_needs(lap_probe_t *probe, const call_t *call, uint32_t index,
                               bool *measures_p, bool *lanes_p)
{
    const lap_schedule_t *schedule = call->schedule;
    const bool there = index < schedule->nsteps;
    const lap_step_t *step = there ? &schedule->steps[index] : NULL;
    double needs = 0;
    if (there && is_measured(step) && first_alike(schedule, index) == index)
        needs = step->kind == LAP_STEP_GEMM && has_lanes(schedule) ? 2 : 1;
    LAP_TRY(lap_probe_most(probe, &needs));
    *measures_p = needs > 0;
    *lanes_p = needs > 1;
    return LAP_OK;
}

/* All ranks are at the same step, whatever each of them has there. */
static lap_status_t measure_steps(lap_probe_t *probe, const call_t *call, lap_probed_t *probed)
{
    const lap_schedule_t *schedule = call->schedule;
    double most = schedule->nsteps;
    LAP_TRY(lap_probe_most(probe, &most));
    for (uint32_t i = 0; i < (uint32_t)most; i++) {
        const bool there = i < schedule->nsteps;
        const uint32_t first = there ? first_alike(schedule, i) : i;
        lap_step_cost_t cost = {-1, 1};
        bool measures, lanes;
        LAP_TRY(find_needs(probe, call, i, &measures, &lanes));
        if (measures)
            LAP_TRY(measure_step(probe, call, i, lanes, &cost));
        if (there && first < i)
            cost = probed->steps[first];
        if (there && !is_measured(&schedule->steps[i]))
            cost.seconds = -1;
        if (there && moves(&schedule->steps[i]))
            cost.cores = 0;
        if (there)
            probed->steps[i] = cost;
    }
    return LAP_OK;
}

/* Collective, also after a failure of this rank: `status`. */
static lap_status_t measure_call(lap_probe_t *probe, call_t *call, lap_status_t status,
                                 lap_probed_t *probed)
{
    lap_schedule_t schedule = {.nsteps = 0};
    if (status == LAP_OK)
        status = lap_op_schedule(call->op, call->m, call->op->group->rank, &schedule);
    if (status == LAP_OK) {
        probed->steps = lap_alloc((size_t)schedule.nsteps + 1, sizeof(*probed->steps));
        probed->count = schedule.nsteps;
        call->schedule = &schedule;
        if (!probed->steps)
            status = lap_error(LAP_ERR_NO_MEMORY, "no memory for the costs of %u steps",
                               (unsigned)schedule.nsteps);
    }
    status = lap_probe_agree(probe, status);
    if (status == LAP_OK)
        status = measure_steps(probe, call, probed);
    call->schedule = NULL;
    lap_schedule_clear(&schedule);
    return status;
}

/* The costs of an operator that is called alike. */
static lap_probed_t shared(const lap_probed_t *other)
{
    return (lap_probed_t){.steps = other->steps, .count = other->count, .shared = true};
}

/* ---- operators of layers ---- */

/* Whether two operators are called alike: by the same method, with matrices of the same shapes. */
static bool is_alike_call(const lap_probe_t *probe, const lap_nn_entry_t *a,
                          const lap_nn_entry_t *b)
{
    const lap_op_t *one = probe->nn->calls[a->index].op, *other = probe->nn->calls[b->index].op;
    bool alike = one->builder == other->builder && one->problem.kind == other->problem.kind &&
                 one->problem.layout == other->problem.layout &&
                 one->problem.epilogue == other->problem.epilogue;
    for (const lap_op_field_t *row = lap_op_fields; row->field.name && alike; row++)
        if (lap_knob_of(row, one->builder))
            alike = lap_field_number(&row->field, &one->problem.desc) ==
                    lap_field_number(&row->field, &other->problem.desc);
    return alike && lap_probe_is_alike(&probe->nn->list, a, b);
}

/* The number of the operand of an entry that an operand of its call is; LAP_PROBE_OPERANDS: the entry does not name it. */
static uint32_t number_of(const lap_nn_entry_t *entry, uint32_t role)
{
    switch ((int)role) {
    case LAP_INPUT:
        return LAP_NN_A;
    case LAP_WEIGHT:
        return LAP_NN_B;
    case LAP_MOVED:
        return LAP_NN_X;
    case LAP_BIAS:
        return LAP_NN_BIAS;
    case LAP_AUX:
        return entry->writes[LAP_NN_AUX_OUT] != LAP_NN_NONE ? LAP_NN_READS + LAP_NN_AUX_OUT
                                                            : LAP_NN_AUX_IN;
    case LAP_OUTPUT:
        return LAP_NN_READS + LAP_NN_D;
    case LAP_GATHERED:
        return LAP_NN_READS + LAP_NN_SECOND;
    case LAP_SCALES:
        return LAP_NN_READS + LAP_NN_SCALES;
    case LAP_BIAS_GRAD:
        return LAP_NN_READS + LAP_NN_BIAS_GRAD;
    default:
        return LAP_PROBE_OPERANDS;
    }
}

/* The call of an entry; scales of operands are read where they are. */
static lap_binding_t bind_entry(const lap_probe_t *probe, const lap_nn_entry_t *entry,
                                const lap_op_t *op, size_t m)
{
    const lap_schedule_t schedule = {.kind = op->problem.kind};
    lap_link_place_t places[LAP_CALL_OPERANDS] = {[LAP_SYMMETRIC].region = LAP_NO_REGION};
    lap_arg_t args[LAP_CALL_OPERANDS];
    uint32_t count = 0;
    lap_nn_call_places(&probe->nn->list, entry, op->problem.kind, places);
    places[LAP_SCRATCH].region = LAP_NO_REGION; /* the operator's own */
    for (uint32_t role = 0; role < LAP_CALL_OPERANDS; role++) {
        const lap_link_place_t *place = &places[role];
        const uint32_t number = number_of(entry, role);
        if (place->region == LAP_NO_REGION)
            continue;
        const lap_bound_place_t there = {.base = probe->nn->tensors[place->region].data};
        args[count++] = (lap_arg_t){
            .data = number < LAP_PROBE_OPERANDS ? probe->at[number] : lap_at(&there, place->offset),
            .cols = place->row_bytes / lap_dtype_size(place->dtype),
            .pitch = place->stride,
            .dtype = place->dtype,
            .role = role};
    }
    lap_binding_t binding = lap_nn_numbers(&probe->shadow, entry, m);
    lap_bind_call(&(lap_operands_t){args, count}, &schedule, &binding);
    return binding;
}

static lap_status_t measure_entry(lap_probe_t *probe, const lap_nn_entry_t *entry)
{
    call_t call = {.op = probe->nn->calls[entry->index].op};
    lap_status_t status = lap_probe_place(probe, entry);
    call.m = lap_nn_step_rows(&probe->nn->list, entry->index, probe->shadow.seq);
    if (status == LAP_OK)
        call.binding = bind_entry(probe, entry, call.op, call.m);
    status = measure_call(probe, &call, status, &probe->calls[entry->index]);
    lap_probe_free(probe);
    return status;
}

static lap_status_t probe_layers(lap_probe_t *probe)
{
    const lap_nn_list_t *list = &probe->nn->list;
    for (uint32_t i = 0; i < list->parts[LAP_NN_BACKWARD_MORE]; i++) {
        const lap_nn_entry_t *entry = &list->entries[i];
        bool known = false;
        for (uint32_t j = 0; entry->work == LAP_NN_OPERATOR && j < i && !known; j++) {
            const lap_nn_entry_t *other = &list->entries[j];
            known = other->work == LAP_NN_OPERATOR && is_alike_call(probe, entry, other);
            if (known)
                probe->calls[entry->index] = shared(&probe->calls[other->index]);
        }
        if (entry->work == LAP_NN_OPERATOR && !known)
            LAP_TRY(measure_entry(probe, entry));
    }
    return LAP_OK;
}

/* ---- operators of buckets ---- */

static lap_status_t measure_bucket(lap_probe_t *probe, size_t index, int which,
                                   lap_probed_t *probed)
{
    const lap_nn_background_t *replicas = lap_probe_replicas(probe);
    lap_trace_t *trace;
    call_t call = {.op = replicas->call(replicas->context, index, which, &trace)};
    lap_op_args_t args = LAP_OP_ARGS_INIT;
    lap_tensor_t *tensors[LAP_ARGS_TENSORS]; /* x and y */
    call.m = args.m = call.op->problem.capacity;
    const size_t count = lap_args_shape(&call.op->problem, &args, tensors);
    size_t bytes[LAP_ARGS_TENSORS], all = 0;
    for (size_t i = 0; i < count; i++) { /* padded, so that what follows is aligned well */
        bytes[i] =
            (tensors[i]->rows * tensors[i]->stride * lap_dtype_size(tensors[i]->dtype) + ALIGN) /
            ALIGN * ALIGN;
        all += bytes[i];
    }
    const lap_status_t status = lap_probe_alloc(probe, all);
    char *at = probe->memory;
    for (size_t i = 0; at && i < count; at += bytes[i++])
        tensors[i]->data = at;
    call.binding = lap_op_bind(call.op, &args);
    const lap_status_t measured = measure_call(probe, &call, status, probed);
    lap_probe_free(probe);
    return measured;
}

static lap_status_t probe_buckets(lap_probe_t *probe)
{
    static const int calls[2] = {LAP_NN_BUCKET_SCATTER, LAP_NN_BUCKET_GATHER};
    const lap_nn_background_t *replicas = lap_probe_replicas(probe);
    const lap_nn_buckets_t *buckets = replicas ? replicas->replicas.buckets : NULL;
    for (size_t i = 0; buckets && i < 2 * buckets->count; i++) {
        const lap_nn_bucket_t *own = &buckets->list[i / 2];
        size_t j = i % 2;
        while (j < i &&
               (buckets->list[j / 2].rows != own->rows || buckets->list[j / 2].cols != own->cols ||
                buckets->list[j / 2].weights != own->weights))
            j += 2;
        if (j < i)
            probe->buckets[i] = shared(&probe->buckets[j]);
        else
            LAP_TRY(measure_bucket(probe, i / 2, calls[i % 2], &probe->buckets[i]));
    }
    return LAP_OK;
}

lap_status_t lap_probe_steps(lap_probe_t *probe)
{
    LAP_TRY(probe_layers(probe));
    return probe_buckets(probe);
}
