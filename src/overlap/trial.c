/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trial of methods: each becomes an operator and is called as a user would call it. The first
 * call finds kernels, the second is kept as a graph where the device has such; what follows is
 * timed. What other work at the same time would change is not known here.
 */
#include "overlap/trial.h"

#include <math.h>
#include <string.h>

#include "core/status.h"
#include "overlap/op.h"
#include "util/alloc.h"
#include "util/clock.h"

#define ALIGNMENT 256u
#define WARM_UP 2
#define ROUNDS_LEAST 3
#define ROUNDS_MOST 10
#define TIME_S 20e-3 /* about what one candidate may take, beyond the least rounds */
#define NOISE 0.005  /* by how much overlap must beat serial */

struct lap_trial {
    lap_group_t *group;
    lap_engine_t *engine;
    lap_op_desc_t desc;       /* with a buffer */
    lap_buffer_t *own_buffer; /* NULL: the caller gave one */
    lap_problem_t problem;    /* of this rank */
    lap_op_args_t args;
    char *memory;
};

/* ---- memory ---- */

static size_t bytes_of(const lap_tensor_t *tensor)
{
    return tensor->rows * tensor->stride * lap_dtype_size(tensor->dtype);
}

/* Lays the tensors out one after the other; returns the bytes they need. */
static size_t lay_out(lap_tensor_t *const *tensors, size_t count, char *memory)
{
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        if (memory)
            tensors[i]->data = memory + used;
        used += (bytes_of(tensors[i]) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    return used;
}

/* Local. */
static lap_status_t make_memory(lap_trial_t *trial)
{
    const lap_device_ops_t *ops = trial->engine->device->ops;
    lap_stream_t *stream = trial->engine->streams[LAP_STREAM_COMPUTE];
    lap_tensor_t *tensors[LAP_ARGS_TENSORS];
    void *memory;
    trial->args.m = trial->desc.m;
    const size_t count = lap_args_shape(&trial->problem, &trial->args, tensors);
    const size_t scales = lay_out(tensors, count, NULL);
    LAP_TRY(ops->alloc(trial->engine->device,
                       scales + (size_t)trial->group->size * sizeof(float) + ALIGNMENT, &memory));
    trial->memory = memory;
    lay_out(tensors, count, trial->memory);
    trial->args.scales = (float *)(void *)(trial->memory + scales);
    for (size_t i = 0; i < count; i++)
        LAP_TRY(ops->fill(stream, tensors[i]->dtype, tensors[i]->data,
                          tensors[i]->rows * tensors[i]->stride, i + 1));
    return ops->stream_synchronize(stream);
}

static lap_status_t begin(lap_trial_t *trial)
{
    const lap_builder_t *builder;
    size_t bytes, nsignals;
    LAP_TRY(lap_problem_init(&trial->problem, &builder, &trial->desc, trial->group->size, ~0u));
    trial->problem.rank = trial->group->rank;
    LAP_TRY(lap_op_buffer_size(&trial->desc, trial->group->size, &bytes, &nsignals));
    if (!trial->desc.buffer)
        LAP_TRY(lap_buffer_create(trial->group, bytes, nsignals, NULL, &trial->own_buffer));
    if (trial->own_buffer)
        trial->desc.buffer = trial->own_buffer;
    return lap_group_agree(trial->group, make_memory(trial));
}

lap_status_t lap_trial_begin(lap_group_t *group, lap_engine_t *engine, const lap_op_desc_t *desc,
                             lap_trial_t **trial_p)
{
    lap_trial_t *trial = lap_alloc(1, sizeof(*trial));
    LAP_TRY(lap_group_agree(group, trial ? LAP_OK
                                         : lap_error(LAP_ERR_NO_MEMORY, "no memory for a trial")));
    *trial = (lap_trial_t){.group = group, .engine = engine, .desc = *desc};
    trial->args = (lap_op_args_t)LAP_OP_ARGS_INIT;
    const lap_status_t status = begin(trial);
    if (status != LAP_OK) {
        lap_trial_end(trial);
        return status;
    }
    *trial_p = trial;
    return LAP_OK;
}

void lap_trial_end(lap_trial_t *trial)
{
    if (!trial)
        return;
    if (trial->memory)
        trial->engine->device->ops->free(trial->engine->device, trial->memory);
    lap_buffer_destroy(trial->own_buffer);
    lap_free(trial);
}

/* ---- calls ---- */

/* The largest of what the ranks say. Collective. */
static lap_status_t slowest(lap_group_t *group, double *seconds)
{
    void *memory;
    LAP_TRY(lap_group_collect(group, seconds, sizeof(*seconds), &memory));
    const double *all = memory;
    for (int r = 0; r < group->size; r++)
        *seconds = fmax(*seconds, all[r]);
    lap_free(memory);
    return LAP_OK;
}

/* The best of a few calls. */
static lap_status_t time_calls(lap_trial_t *trial, lap_op_t *op, int rounds, double *seconds_p)
{
    *seconds_p = INFINITY;
    for (int i = 0; i < rounds; i++) {
        LAP_TRY(lap_group_barrier(trial->group));
        const uint64_t begin = lap_now_ns();
        LAP_TRY(lap_op_run(op, &trial->args));
        *seconds_p = fmin(*seconds_p, (double)(lap_now_ns() - begin) * 1e-9);
    }
    return slowest(trial->group, seconds_p);
}

static lap_status_t try_op(lap_trial_t *trial, lap_op_t *op, double *seconds_p)
{
    double first;
    for (int i = 0; i < WARM_UP; i++)
        LAP_TRY(lap_op_run(op, &trial->args));
    LAP_TRY(time_calls(trial, op, 1, &first));
    const double rounds = fmin(ROUNDS_MOST, fmax(ROUNDS_LEAST, TIME_S / first));
    return time_calls(trial, op, (int)rounds, seconds_p);
}

static lap_status_t try_candidate(lap_trial_t *trial, const lap_candidate_t *candidate,
                                  double *seconds_p)
{
    lap_op_desc_t desc = trial->desc;
    lap_op_t *op;
    desc.method = candidate->builder->name;
    desc.aggregate = candidate->problem.aggregate;
    if (candidate->builder->knobs & LAP_KNOB_NUM_SPLITS)
        desc.num_splits = candidate->problem.num_splits;
    if (candidate->builder->knobs & LAP_KNOB_BLOCK_ROWS)
        desc.block_rows = candidate->problem.block_rows;
    LAP_TRY(lap_op_create(trial->group, &desc, &op));
    const lap_status_t status = try_op(trial, op, seconds_p);
    lap_op_destroy(op);
    return status;
}

/* Whether a candidate is serial, or one of the fastest of another forecast. */
static bool is_among(const lap_forecast_t *among, size_t most, size_t index)
{
    size_t faster = 0;
    for (size_t i = 0; i < among->count; i++)
        faster += among->seconds[i] < among->seconds[index];
    return index == 0 || faster < most;
}

lap_status_t lap_trial_run(lap_trial_t *trial, size_t m, const lap_forecast_t *among, size_t most,
                           lap_forecast_t *forecast)
{
    lap_tensor_t *tensors[LAP_ARGS_TENSORS];
    trial->args.m = m;
    lap_args_shape(&trial->problem, &trial->args, tensors);
    const bool all = !among || among->count != forecast->count;
    size_t best = 0;
    for (size_t i = 0; i < forecast->count; i++) {
        if (!all && !is_among(among, most, i)) {
            forecast->seconds[i] = among->seconds[i];
            continue;
        }
        LAP_TRY(try_candidate(trial, &forecast->candidates[i], &forecast->seconds[i]));
        if (forecast->seconds[i] < forecast->seconds[best])
            best = i;
    }
    if (forecast->seconds[best] > (1 - NOISE) * forecast->seconds[0])
        best = 0;
    forecast->picked = best;
    return LAP_OK;
}
