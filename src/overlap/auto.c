/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice of a method. Rank 0 builds the schedules of all ranks for every candidate and has them
 * simulated with what the group has measured; the others take its word for it, and then what was
 * picked is called, in turns with serial. On devices that want it so, all candidates are called
 * instead (trial.h). What calls cost when the machine is busier or
 * idler than at the time of measuring is not known here.
 */
#include "overlap/auto.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "overlap/knobs.h"
#include "overlap/trial.h"
#include "schedule/calibrate.h"
#include "schedule/lower.h"
#include "transport/transport.h"
#include "util/alloc.h"

#define MANY_RANKS 32 /* from here on only the capacity is simulated, and serves all m */
#define TRIED_ROWS 64 /* calls of fewer rows are not tried: they take what this many do */
#define FAVOURITES 3  /* of the capacity, that are tried with fewer rows */
#define TRIED_S 20e-3 /* of serial: what takes longer is taken as simulated, and not tried */

/* Adds a method with the knobs of a description, or with another one turned. */
static lap_status_t add_candidate(lap_op_desc_t desc, const lap_op_field_t *row, size_t listed,
                                  const lap_knob_view_t *view, lap_forecast_t *forecast)
{
    lap_candidate_t *candidate = &forecast->candidates[forecast->count];
    if (forecast->count == LAP_AUTO_CANDIDATES)
        return LAP_OK;
    snprintf(candidate->label, LAP_AUTO_LABEL, "%s", desc.method);
    if (row) {
        const lap_knob_view_t turned = {&desc, view->builder, view->size, view->can};
        lap_field_set(&row->field, &desc, lap_knob_value(row, listed, &desc, view->size));
        if (row->knob == LAP_KNOB_NUM_SM)
            desc.set_sm_margin = 0; /* there is nothing to leave them free for */
        if (row->is_worth && !row->is_worth(&turned))
            return LAP_OK;
        lap_knob_label(row, &desc, ':', candidate->label, LAP_AUTO_LABEL);
    }
    LAP_TRY(
        lap_problem_init(&candidate->problem, &candidate->builder, &desc, view->size, view->can));
    candidate->problem.capacity = view->desc->m;
    /* Equal operators on other buffers take the choice, too. */
    candidate->problem.desc.buffer = NULL;
    forecast->count++;
    return LAP_OK;
}

lap_status_t lap_auto_list(const lap_op_desc_t *given, int size, unsigned can, size_t m,
                           lap_forecast_t *forecast_p)
{
    lap_knob_view_t view = {given, lap_builders(given->kind), size, can};
    *forecast_p = (lap_forecast_t){.count = 0};
    /* On the stream of a GEMM that was begun before, a collective would begin only after it. */
    if (!lap_kind_multiplies(given->kind))
        view.builder++;
    for (; view.builder->name; view.builder++) {
        lap_op_desc_t desc = *given;
        desc.m = m;
        desc.method = view.builder->name;
        if ((view.builder->needs & ~can) != 0 || !lap_knobs_suit(&desc, view.builder))
            continue;
        LAP_TRY(add_candidate(desc, NULL, 0, &view, forecast_p));
        for (const lap_op_field_t *row = lap_op_fields; row->field.name; row++)
            for (size_t i = 0; lap_knob_of(row, view.builder) && row->tried[i]; i++)
                LAP_TRY(add_candidate(desc, row, row->tried[i], &view, forecast_p));
    }
    if (forecast_p->count == 0)
        return lap_error(LAP_ERR_UNSUPPORTED, "%s has no method that this transport can do",
                         lap_op_kind_name(given->kind));
    return LAP_OK;
}

/* Adds cuBLASMp after the others, where that was asked for and can do it: for calls of the capacity. */
static lap_status_t add_foreign(const lap_op_desc_t *given, int size, unsigned can,
                                lap_forecast_t *forecast)
{
    const lap_knob_view_t view = {given, lap_foreign_builder(given->kind), size, can};
    lap_op_desc_t desc = *given;
    if (!given->auto_foreign || !view.builder || (view.builder->needs & ~can) != 0 ||
        !lap_knobs_suit(given, view.builder))
        return LAP_OK;
    if (given->buffer && lap_buffer_is_paced(given->buffer))
        return LAP_OK; /* it would not be slowed down */
    desc.method = view.builder->name;
    LAP_TRY(add_candidate(desc, NULL, 0, &view, forecast));
    if (lap_foreign_check(&forecast->candidates[forecast->count - 1].problem) != LAP_OK)
        forecast->count--;
    return LAP_OK;
}

/* The time of one candidate. */
static lap_status_t predict(const lap_candidate_t *candidate, const lap_target_t *target,
                            const lap_cost_t *cost, double *seconds_p)
{
    const lap_problem_t *problem = &candidate->problem;
    lap_all_ranks_t all;
    LAP_TRY(lap_all_ranks_create(problem->size, 1, &all));
    lap_status_t status = lap_all_ranks_build(&all, 0, candidate->builder, problem);
    if (status == LAP_OK)
        status = lap_lower(all.schedules, all.size, target, NULL);
    if (status == LAP_OK)
        status = lap_schedule_simulate(all.list, problem->size, cost, seconds_p);
    lap_all_ranks_clear(&all);
    return status;
}

lap_status_t lap_auto_predict(lap_forecast_t *forecast, const lap_target_t *target,
                              const lap_cost_t *cost)
{
    size_t best = 0;
    for (size_t i = 0; i < forecast->count; i++) {
        LAP_TRY(predict(&forecast->candidates[i], target, cost, &forecast->seconds[i]));
        if (forecast->seconds[i] < forecast->seconds[best])
            best = i;
    }
    if (forecast->seconds[best] > (1 - LAP_AUTO_MARGIN) * forecast->seconds[0])
        best = 0;
    forecast->picked = best;
    return LAP_OK;
}

/* ---- the decision ---- */

/* What rank 0 found, plain bytes: it travels. The candidates follow from the description. */
typedef struct decision {
    double seconds[LAP_AUTO_CANDIDATES]; /* of the capacity */
    uint64_t picked[LAP_AUTO_BANDS];     /* per band */
} decision_t;

static lap_status_t decide(const lap_op_desc_t *desc, int size, const lap_target_t *target,
                           const lap_cost_t *cost, size_t nbands, decision_t *decision)
{
    lap_forecast_t forecast;
    for (size_t b = 0; b < nbands; b++) {
        LAP_TRY(lap_auto_list(desc, size, target->can, desc->m >> b, &forecast));
        LAP_TRY(lap_auto_predict(&forecast, target, cost));
        decision->picked[b] = forecast.picked;
        if (b == 0)
            memcpy(decision->seconds, forecast.seconds, sizeof(decision->seconds));
    }
    return LAP_OK;
}

static void swap(lap_forecast_t *forecast, size_t i, size_t j)
{
    const lap_candidate_t candidate = forecast->candidates[i];
    const double seconds = forecast->seconds[i];
    forecast->candidates[i] = forecast->candidates[j];
    forecast->seconds[i] = forecast->seconds[j];
    forecast->candidates[j] = candidate;
    forecast->seconds[j] = seconds;
}

/* The pick first, the others from fast to slow. */
static void sort(lap_forecast_t *forecast)
{
    swap(forecast, 0, forecast->picked);
    forecast->picked = 0;
    for (size_t i = 1; i < forecast->count; i++)
        for (size_t j = i + 1; j < forecast->count; j++)
            if (forecast->seconds[j] < forecast->seconds[i])
                swap(forecast, i, j);
}

/* Of the capacity: what is picked, and what else there was. */
static void take_whole(const lap_forecast_t *forecast, lap_auto_t *choice)
{
    choice->whole = forecast->candidates[forecast->picked];
    choice->capacity = *forecast;
    sort(&choice->capacity);
}

static lap_status_t apply(const lap_op_desc_t *desc, int size, unsigned can,
                          const decision_t *decision, lap_auto_t *choice)
{
    lap_forecast_t forecast;
    for (size_t b = 0; b < choice->nbands; b++) {
        LAP_TRY(lap_auto_list(desc, size, can, desc->m >> b, &forecast));
        forecast.picked = decision->picked[b];
        choice->bands[b] = forecast.candidates[forecast.picked];
        if (b > 0)
            continue;
        memcpy(forecast.seconds, decision->seconds, sizeof(forecast.seconds));
        take_whole(&forecast, choice);
    }
    return LAP_OK;
}

lap_status_t lap_auto_gemm(const lap_op_desc_t *desc, int size, unsigned can, size_t *n_p,
                           size_t *k_p)
{
    lap_problem_t problem;
    const lap_builder_t *builder;
    LAP_TRY(lap_problem_init(&problem, &builder, desc, size, can));
    *n_p = lap_n_of(&problem, 0);
    *k_p = lap_k_of(&problem, 0);
    if (desc->layout == LAP_WGRAD) {
        *n_p = *k_p;
        *k_p = desc->m;
    }
    if (!lap_kind_multiplies(desc->kind)) /* no GEMM: any will do */
        *n_p = *k_p = 1;
    return LAP_OK;
}

/*
 * Collective; the ranks share what they measure, and so choose alike. Fewer rows than the capacity
 * are for methods of our own.
 */
static lap_status_t try_bands(lap_trial_t *trial, const lap_op_desc_t *desc, int size, unsigned can,
                              lap_auto_t *choice)
{
    lap_forecast_t capacity, forecast;
    for (size_t b = 0; b < choice->nbands; b++) {
        LAP_TRY(lap_auto_list(desc, size, can, desc->m >> b, &forecast));
        const size_t ours = forecast.count;
        if (b == 0)
            LAP_TRY(add_foreign(desc, size, can, &forecast));
        LAP_TRY(
            lap_trial_run(trial, desc->m >> b, b > 0 ? &capacity : NULL, FAVOURITES, &forecast));
        if (b == 0) {
            if (isinf(forecast.seconds[forecast.count - 1])) /* cuBLASMp was refused */
                forecast.count--;
            take_whole(&forecast, choice);
            forecast.count = ours;
            lap_trial_pick(&forecast);
            capacity = forecast;
        }
        choice->bands[b] = forecast.candidates[forecast.picked];
    }
    return LAP_OK;
}

static lap_status_t choose_by_trial(lap_group_t *group, lap_engine_t *engine,
                                    const lap_op_desc_t *desc, unsigned can, lap_auto_t *auto_p)
{
    lap_trial_t *trial;
    auto_p->nbands = 1;
    while (auto_p->nbands < LAP_AUTO_BANDS && desc->m >> auto_p->nbands >= TRIED_ROWS)
        auto_p->nbands++;
    LAP_TRY(lap_trial_begin(group, engine, desc, &trial));
    const lap_status_t status = try_bands(trial, desc, group->size, can, auto_p);
    lap_trial_end(trial);
    return lap_group_agree(group, status);
}

/* Serial, for all rows. */
static lap_status_t take_back(const lap_op_desc_t *desc, int size, unsigned can, lap_auto_t *choice)
{
    lap_forecast_t forecast;
    for (size_t b = 0; b < choice->nbands; b++) {
        LAP_TRY(lap_auto_list(desc, size, can, desc->m >> b, &forecast));
        choice->bands[b] = forecast.candidates[0];
    }
    choice->whole = choice->bands[0];
    for (size_t i = 0; i < choice->capacity.count; i++)
        if (strcmp(choice->capacity.candidates[i].label, choice->whole.label) == 0)
            choice->capacity.picked = i;
    sort(&choice->capacity);
    return LAP_OK;
}

lap_status_t lap_auto_confirm(lap_group_t *group, lap_engine_t *engine, const lap_op_desc_t *desc,
                              unsigned can, lap_auto_t *choice)
{
    lap_forecast_t both;
    lap_trial_t *trial;
    double serial = 0;
    LAP_TRY(lap_group_agree(group, lap_auto_list(desc, group->size, can, desc->m, &both)));
    for (size_t i = 0; i < choice->capacity.count; i++)
        if (strcmp(choice->capacity.candidates[i].label, both.candidates[0].label) == 0)
            serial = choice->capacity.seconds[i];
    if (choice->whole.builder == both.candidates[0].builder || serial > TRIED_S)
        return LAP_OK;
    both.candidates[1] = choice->whole;
    both.count = 2;
    lap_status_t status = lap_trial_begin(group, engine, desc, &trial);
    if (status == LAP_ERR_NO_MEMORY)
        return LAP_OK;
    LAP_TRY(status);
    status = lap_trial_run(trial, desc->m, NULL, 0, &both);
    lap_trial_end(trial);
    LAP_TRY(status);
    return both.picked > 0 ? LAP_OK
                           : lap_group_agree(group, take_back(desc, group->size, can, choice));
}

static lap_status_t choose_by_model(lap_group_t *group, lap_engine_t *engine,
                                    const lap_op_desc_t *desc, const lap_target_t *target,
                                    lap_auto_t *auto_p)
{
    const unsigned can = target->can;
    const char *transport = desc->buffer ? desc->buffer->ops->name : NULL;
    lap_cost_t cost;
    size_t n, k;
    LAP_TRY(lap_auto_gemm(desc, group->size, can, &n, &k));
    LAP_TRY(lap_calibrate(group, engine, transport, desc->dtype, n, k, &cost));
    if (desc->buffer)
        lap_cost_add_link(&cost, &desc->buffer->link);
    auto_p->nbands = 1;
    while (auto_p->nbands < LAP_AUTO_BANDS && desc->m >> auto_p->nbands > 0 &&
           group->size < MANY_RANKS)
        auto_p->nbands++;
    decision_t decision = {.picked = {0}};
    lap_status_t status = LAP_OK;
    if (group->rank == 0)
        status = decide(desc, group->size, target, &cost, auto_p->nbands, &decision);
    LAP_TRY(lap_group_agree(group, status));
    LAP_TRY(lap_group_broadcast(group, &decision, sizeof(decision)));
    LAP_TRY(lap_group_agree(group, apply(desc, group->size, can, &decision, auto_p)));
    return lap_kind_multiplies(desc->kind) && group->size > 1
               ? lap_auto_confirm(group, engine, desc, can, auto_p)
               : LAP_OK;
}

static lap_status_t choose(lap_group_t *group, lap_engine_t *engine, const lap_op_desc_t *desc,
                           const lap_target_t *target, lap_auto_t *auto_p)
{
    if (engine->device->ops->tries_methods) {
        const lap_status_t status = choose_by_trial(group, engine, desc, target->can, auto_p);
        if (status != LAP_ERR_NO_MEMORY)
            return status;
    }
    return choose_by_model(group, engine, desc, target, auto_p);
}

/* All ranks of a group have the same history: they choose together, or take what they chose before. */
lap_status_t lap_auto_choose(lap_group_t *group, lap_engine_t *engine, const lap_op_desc_t *desc,
                             const lap_target_t *target, lap_auto_t *auto_p)
{
    if (!auto_p->is_made)
        LAP_TRY(choose(group, engine, desc, target, auto_p));
    auto_p->is_made = true;
    return LAP_OK;
}

const lap_candidate_t *lap_auto_for(const lap_auto_t *choice, size_t m)
{
    const size_t capacity = choice->bands[0].problem.capacity;
    size_t band = 0;
    if (m == capacity)
        return &choice->whole;
    while (band + 1 < choice->nbands && m <= capacity >> (band + 1))
        band++;
    return &choice->bands[band];
}
