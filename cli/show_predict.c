/* SPDX-License-Identifier: Apache-2.0 */
/* `lap show --predict`: when the steps of a call, or of a program, would run on GPUs of a machine description. */
#include <math.h>

#include "core/status.h"
#include "nn/predict.h"
#include "plan/machine.h"
#include "show_train.h"
#include "util/alloc.h"

/* A step of several blocks is from the begin of its first one to the end of its last. */
static void note_step(void *context, int rank, uint32_t fragment, uint32_t step, uint32_t block,
                      const lap_step_times_t *times)
{
    const lap_show_prediction_t *prediction = context;
    lap_fragment_span_t *span = &prediction->spans[(size_t)rank * prediction->stride + step];
    (void)fragment;
    (void)block;
    span->begin = fmin(span->begin, times->ready);
    span->end = fmax(span->end, fmax(times->end, times->came));
}

static lap_status_t find_type(const lap_machine_t *machine, lap_dtype_t dtype,
                              lap_plan_type_t *type_p)
{
    *type_p = dtype == LAP_FLOAT32    ? LAP_PLAN_FP32
              : dtype == LAP_FLOAT16  ? LAP_PLAN_FP16
              : dtype == LAP_BFLOAT16 ? LAP_PLAN_BF16
                                      : LAP_PLAN_FP8;
    if (machine->peak[*type_p] > 0)
        return LAP_OK;
    return lap_error(LAP_ERR_UNSUPPORTED, "--predict: %s multiplies no %s", machine->name,
                     lap_dtype_name(dtype));
}

static lap_status_t check_own(const lap_schedule_t *schedule)
{
    for (uint32_t i = 0; i < schedule->nsteps; i++)
        if (schedule->steps[i].kind == LAP_STEP_KERNEL)
            return lap_error(
                LAP_ERR_UNSUPPORTED,
                "--predict: method %s is a call of another library, which nothing here "
                "simulates",
                schedule->method);
    return LAP_OK;
}

static lap_status_t play(const lap_machine_t *machine, const lap_schedule_t *schedules, int size,
                         lap_show_prediction_t *prediction)
{
    const lap_schedule_t *list[LAP_SHOW_RANKS];
    const lap_step_watch_t watch = {note_step, prediction};
    lap_plan_type_t type;
    LAP_TRY(check_own(&schedules[0]));
    LAP_TRY(find_type(machine, schedules[0].types.a, &type));
    const lap_cost_t cost = lap_machine_cost(machine, lap_machine_wire(machine, (size_t)size), type,
                                             &schedules[0], size);
    const lap_fragment_cost_t costs = {
        .cost = &cost, .finish = lap_machine_finish(machine, schedules[0].epilogue)};
    for (int r = 0; r < size; r++)
        list[r] = &schedules[r];
    return lap_schedule_play(list, size, &costs, &watch, &prediction->seconds);
}

lap_status_t lap_show_predict(const char *name, const lap_schedule_t *schedules, int size,
                              lap_show_prediction_t *prediction_p)
{
    lap_machine_t machine;
    lap_show_prediction_t prediction = {.machine = name};
    LAP_TRY(lap_machine_load(name, &machine));
    for (int r = 0; r < size; r++)
        if (schedules[r].nsteps > prediction.stride)
            prediction.stride = schedules[r].nsteps;
    const size_t count = (size_t)size * prediction.stride;
    prediction.spans = lap_alloc(count, sizeof(*prediction.spans));
    if (!prediction.spans)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the times of %zu steps", count);
    for (size_t i = 0; i < count; i++)
        prediction.spans[i].begin = INFINITY;
    const lap_status_t status = play(&machine, schedules, size, &prediction);
    if (status != LAP_OK) {
        lap_free(prediction.spans);
        return status;
    }
    *prediction_p = prediction;
    return LAP_OK;
}

/* ---- programs ---- */

/*
 * What fragment f costs on each rank that has it: kernels take what the rank with most bytes takes to read and write them.
 * In a pipeline only some ranks have it.
 */
static lap_status_t find_cost(const lap_machine_t *machine, const lap_nn_programs_t *programs,
                              uint32_t f, lap_cost_t *cost, lap_fragment_cost_t *costs)
{
    const double rate = lap_machine_memory_rate(machine);
    const lap_schedule_t *schedule = &programs->list[0]->fragments[f].schedule;
    lap_plan_type_t type;
    *costs = (lap_fragment_cost_t){.cost = cost};
    for (int r = 0; r < programs->size; r++) {
        const lap_schedule_t *own = &programs->list[r]->fragments[f].schedule;
        schedule = schedule->nsteps > 0 ? schedule : own;
        if (lap_schedule_is_kernel(own))
            costs->kernel_s =
                fmax(costs->kernel_s, lap_nn_kernel_estimate(programs->list[r], f, rate));
    }
    LAP_TRY(find_type(machine, schedule->types.a, &type));
    *cost = lap_machine_cost(machine, lap_machine_wire(machine, (size_t)schedule->size), type,
                             schedule, programs->size);
    costs->finish = lap_machine_finish(machine, schedule->epilogue);
    return LAP_OK;
}

lap_status_t lap_show_predict_program(const char *name, const lap_nn_programs_t *programs,
                                      lap_show_train_t *show, lap_fragment_span_t **spans_p)
{
    lap_machine_t machine;
    lap_simulated_t simulated;
    LAP_TRY(lap_machine_load(name, &machine));
    const uint32_t count = show->linked->nfragments;
    lap_cost_t *costs = lap_alloc(count, sizeof(*costs));
    lap_fragment_cost_t *fragments = lap_alloc(count, sizeof(*fragments));
    *spans_p = lap_alloc(count, sizeof(**spans_p));
    lap_status_t status =
        costs && fragments && *spans_p
            ? LAP_OK
            : lap_error(LAP_ERR_NO_MEMORY, "no memory for the times of %u fragments", count);
    for (uint32_t f = 0; f < count && status == LAP_OK; f++)
        status = find_cost(&machine, programs, f, &costs[f], &fragments[f]);
    if (status == LAP_OK)
        status = lap_linked_simulate(programs->list, programs->size, fragments, &simulated,
                                     show->rank, *spans_p);
    lap_free(costs);
    lap_free(fragments);
    LAP_TRY(status);
    show->predicted = simulated.seconds;
    show->call_s = simulated.call;
    show->spans = *spans_p;
    return LAP_OK;
}
