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
    return lap_schedule_play(list, size, &costs, &watch, NULL, &prediction->seconds);
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

/* What a fragment of a rank costs: kernels take what the rank of the group with most bytes takes to read and write them. */
static lap_status_t find_cost(const lap_machine_t *machine, const lap_nn_programs_t *programs,
                              const lap_calls_t *calls, int rank, uint32_t f, lap_cost_t *cost,
                              lap_fragment_cost_t *costs)
{
    const double rate = lap_machine_memory_rate(machine);
    const lap_fragment_t *own = &programs->list[rank]->fragments[f];
    const lap_linked_t *first = programs->list[lap_fragment_rank(own, 0)];
    const lap_schedule_t *schedule = &first->fragments[lap_calls_of(calls, rank, f, 0)].schedule;
    lap_plan_type_t type;
    *costs = (lap_fragment_cost_t){.cost = cost};
    for (int r = 0; r < schedule->size && lap_schedule_is_kernel(schedule); r++)
        costs->kernel_s =
            fmax(costs->kernel_s, lap_nn_kernel_estimate(programs->list[lap_fragment_rank(own, r)],
                                                         lap_calls_of(calls, rank, f, r), rate));
    LAP_TRY(find_type(machine, schedule->types.a, &type));
    *cost = lap_machine_cost(machine, lap_machine_wire(machine, (size_t)schedule->size), type,
                             schedule, programs->size);
    costs->finish = lap_machine_finish(machine, schedule->epilogue);
    return LAP_OK;
}

/* Simulates them; `costs`, `fragments` and `all` have room for those of all ranks. */
static lap_status_t play_program(const lap_machine_t *machine, const lap_nn_programs_t *programs,
                                 const lap_calls_t *calls, lap_cost_t *costs,
                                 lap_fragment_cost_t *fragments, const lap_fragment_cost_t **all,
                                 int rank, lap_fragment_span_t *spans, lap_simulated_t *simulated_p)
{
    for (int r = 0; r < programs->size; r++) {
        const size_t first = calls->first[r];
        all[r] = &fragments[first];
        for (uint32_t f = 0; f < programs->list[r]->nfragments; f++)
            LAP_TRY(find_cost(machine, programs, calls, r, f, &costs[first + f],
                              &fragments[first + f]));
    }
    return lap_linked_simulate_each(programs->list, programs->size, all, simulated_p, rank, spans);
}

lap_status_t lap_show_predict_program(const char *name, const lap_nn_programs_t *programs,
                                      lap_show_train_t *show, lap_fragment_span_t **spans_p)
{
    lap_machine_t machine;
    lap_simulated_t simulated = {.seconds = 0};
    lap_calls_t calls;
    LAP_TRY(lap_machine_load(name, &machine));
    lap_status_t status = lap_calls_init(&calls, programs->list, programs->size);
    const size_t count = status == LAP_OK ? calls.first[programs->size] : 0;
    lap_cost_t *costs = lap_alloc(count + 1, sizeof(*costs));
    lap_fragment_cost_t *fragments = lap_alloc(count + 1, sizeof(*fragments));
    const lap_fragment_cost_t **all = lap_alloc((size_t)programs->size, sizeof(*all));
    *spans_p = lap_alloc((size_t)show->linked->nfragments + 1, sizeof(**spans_p));
    if (status == LAP_OK && (!costs || !fragments || !all || !*spans_p))
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for the times of %zu fragments", count);
    if (status == LAP_OK)
        status = play_program(&machine, programs, &calls, costs, fragments, all, show->rank,
                              *spans_p, &simulated);
    lap_free(costs);
    lap_free(fragments);
    lap_free(all);
    lap_calls_clear(&calls);
    LAP_TRY(status);
    show->predicted = simulated.seconds;
    show->call_s = simulated.call;
    show->spans = *spans_p;
    return LAP_OK;
}
