/* SPDX-License-Identifier: Apache-2.0 */
/* `lap show --predict`: when the steps of a call would run on GPUs of a machine description. */
#include <math.h>

#include "core/status.h"
#include "plan/machine.h"
#include "show.h"
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

static lap_status_t find_type(const lap_machine_t *machine, const lap_schedule_t *schedule,
                              lap_plan_type_t *type_p)
{
    const lap_dtype_t dtype = schedule->types.a;
    *type_p = dtype == LAP_FLOAT32    ? LAP_PLAN_FP32
              : dtype == LAP_FLOAT16  ? LAP_PLAN_FP16
              : dtype == LAP_BFLOAT16 ? LAP_PLAN_BF16
                                      : LAP_PLAN_FP8;
    for (uint32_t i = 0; i < schedule->nsteps; i++)
        if (schedule->steps[i].kind == LAP_STEP_KERNEL)
            return lap_error(
                LAP_ERR_UNSUPPORTED,
                "--predict: method %s is a call of another library, which nothing here "
                "simulates",
                schedule->method);
    if (machine->peak[*type_p] > 0)
        return LAP_OK;
    return lap_error(LAP_ERR_UNSUPPORTED, "--predict: %s multiplies no %s", machine->name,
                     lap_dtype_name(dtype));
}

static lap_status_t play(const lap_machine_t *machine, const lap_schedule_t *schedules, int size,
                         lap_show_prediction_t *prediction)
{
    const lap_schedule_t *list[LAP_SHOW_RANKS];
    const lap_step_watch_t watch = {note_step, prediction};
    lap_plan_type_t type;
    LAP_TRY(find_type(machine, &schedules[0], &type));
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
