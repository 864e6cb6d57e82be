/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trial of methods: each becomes an operator and is called as a user would call it. The first
 * call finds kernels, the second becomes a graph where the device has such; what follows is
 * timed. What other work at the same time would change is not known here.
 */
#include "overlap/trial.h"

#include <math.h>
#include <string.h>

#include <lap/lap_cuda.h>

#include "core/status.h"
#include "overlap/op.h"
#include "util/alloc.h"
#include "util/clock.h"
#include "util/sorted.h"
#include "util/turns.h"

#define ALIGNMENT 256u
#define WARM_UP 2
#define CALLS_LEAST 4 /* in the order of a stream, that are timed at once; of a host one: */
#define CALLS_MOST 20 /* more of short ones, since to begin and to end takes time, too */
#define ROUND_S 1e-3  /* of about so many seconds */
#define ROUNDS_LEAST 5
#define ROUNDS_MOST 15
#define TIME_S 40e-3   /* about what one candidate may take, beyond the least rounds, */
#define HOST_S 10e-3   /* and on a host */
#define HOPELESS 1.2   /* over the best: not tried again */
#define LONG_S 1e-3    /* who takes so long for a call on a GPU has a final: */
#define FINALISTS 4    /* the best, */
#define CLOSE 1.04     /* as far as they take at most so many times the time of the very best, */
#define SETTLE_S 50e-3 /* run alone until the clock is theirs, */
#define FINAL_S 100e-3 /* and are timed for so long, */
#define FINAL_ROUNDS 3 /* so many times */
#define NOISE 0.005    /* by how much overlap must beat serial, */
#define NOISE_S 1e-6   /* and by so many seconds besides */

struct lap_trial {
    lap_group_t *group;
    lap_engine_t *engine;
    lap_op_desc_t desc;    /* with a buffer */
    lap_problem_t problem; /* of this rank */
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
    LAP_TRY(lap_problem_init(&trial->problem, &builder, &trial->desc, trial->group->size, ~0u));
    trial->problem.rank = trial->group->rank;
    return lap_group_agree(trial->group, make_memory(trial));
}

lap_status_t lap_trial_begin(lap_group_t *group, lap_engine_t *engine, const lap_op_desc_t *desc,
                             lap_trial_t **trial_p)
{
    lap_trial_t *trial = lap_alloc(1, sizeof(*trial));
    lap_status_t status = lap_group_agree(
        group, trial ? LAP_OK : lap_error(LAP_ERR_NO_MEMORY, "no memory for a trial"));
    if (status != LAP_OK) { /* of another rank, if this one has it */
        lap_free(trial);
        return status;
    }
    *trial = (lap_trial_t){.group = group, .engine = engine, .desc = *desc};
    trial->args = (lap_op_args_t)LAP_OP_ARGS_INIT;
    status = begin(trial);
    if (status != LAP_OK) {
        lap_trial_end(trial);
        return status;
    }
    *trial_p = trial;
    return LAP_OK;
}

void lap_trial_end(lap_trial_t *trial)
{
    lap_saved_error_t saved; /* the caller has yet to read why the trial failed */
    if (!trial)
        return;
    lap_error_save(&saved);
    if (trial->memory)
        trial->engine->device->ops->free(trial->engine->device, trial->memory);
    lap_free(trial);
    lap_error_restore(&saved);
}

/* ---- calls ---- */

/* Calls in a row, where several can be issued at once, as in a training step. */
static lap_status_t make_calls(lap_trial_t *trial, lap_op_t *op, int calls)
{
    const bool in_order = trial->engine->device->ops->takes_streams;
    for (int i = 0; i < calls; i++)
        LAP_TRY(in_order ? lap_op_enqueue(op, &trial->args, NULL) : lap_op_run(op, &trial->args));
    return in_order ? lap_world_synchronize(trial->group->world, NULL) : LAP_OK;
}

/* The seconds of a call on the slowest rank, in a round of several. Collective. */
static lap_status_t time_round(lap_trial_t *trial, lap_op_t *op, int calls, double *seconds_p)
{
    LAP_TRY(lap_group_barrier(trial->group));
    const uint64_t begin = lap_now_ns();
    LAP_TRY(make_calls(trial, op, calls));
    *seconds_p = (double)(lap_now_ns() - begin) * 1e-9 / calls;
    return lap_group_max(trial->group, seconds_p);
}

static lap_status_t make_op(const lap_trial_t *trial, const lap_candidate_t *candidate,
                            lap_op_t **op_p)
{
    lap_op_desc_t desc = candidate->problem.desc;
    desc.m = trial->desc.m;
    desc.buffer = trial->desc.buffer;
    return lap_op_create(trial->group, &desc, op_p);
}

/* Whether a candidate is serial, or one of the fastest of another forecast. */
static bool is_among(const lap_forecast_t *among, size_t most, size_t index)
{
    size_t faster = 0;
    for (size_t i = 0; i < among->count; i++)
        faster += among->seconds[i] < among->seconds[index];
    return index == 0 || faster < most;
}

/* The candidates of one number of rows, those that are tried as operators. */
typedef struct field {
    lap_op_t *ops[LAP_AUTO_CANDIDATES];               /* NULL: not tried */
    double seconds[LAP_AUTO_CANDIDATES][ROUNDS_MOST]; /* from fast to slow */
    int rounds[LAP_AUTO_CANDIDATES];
    size_t count;
} field_t;

/* By the median: a GPU has good and bad moments. */
static double seconds_of(const field_t *field, size_t i)
{
    return field->rounds[i] ? field->seconds[i][field->rounds[i] / 2] : 0;
}

static void add_round(field_t *field, size_t i, double seconds)
{
    lap_sorted_add(field->seconds[i], field->rounds[i]++, seconds);
}

static lap_status_t make_field(lap_trial_t *trial, const lap_forecast_t *forecast,
                               const lap_forecast_t *among, size_t most, field_t *field)
{
    const bool all = !among || among->count != forecast->count;
    for (size_t i = 0; i < forecast->count; i++) {
        if (!all && !is_among(among, most, i))
            continue;
        const lap_status_t status = make_op(trial, &forecast->candidates[i], &field->ops[i]);
        /* Another library may be missing, refuse, or need more memory: then all ranks do without it. */
        if ((status == LAP_ERR_UNSUPPORTED || status == LAP_ERR_NO_MEMORY) &&
            lap_builder_is_foreign(forecast->candidates[i].builder))
            continue;
        LAP_TRY(status);
        LAP_TRY(make_calls(trial, field->ops[i], WARM_UP));
    }
    return LAP_OK;
}

/* The candidates that are still tried, by index; returns how many. */
static size_t list_alive(const field_t *field, double best, size_t *alive)
{
    size_t count = 0;
    for (size_t i = 0; i < field->count; i++)
        if (field->ops[i] && seconds_of(field, i) <= HOPELESS * best)
            alive[count++] = i;
    return count;
}

static bool is_listed(const size_t *list, size_t count, size_t i)
{
    while (count > 0 && list[count - 1] != i)
        count--;
    return count > 0;
}

/* The fastest, the very fastest first, as far as they are close to it; returns how many. */
static size_t list_finalists(const field_t *field, size_t *finalists)
{
    size_t count = 0;
    for (size_t i = 0; i < field->count; i++) {
        size_t place = count;
        if (!field->ops[i])
            continue;
        for (; place > 0 && seconds_of(field, i) < seconds_of(field, finalists[place - 1]); place--)
            if (place < FINALISTS)
                finalists[place] = finalists[place - 1];
        if (place < FINALISTS)
            finalists[place] = i;
        if (count < FINALISTS)
            count++;
    }
    while (count > 1 &&
           seconds_of(field, finalists[count - 1]) > CLOSE * seconds_of(field, finalists[0]))
        count--;
    return count;
}

/*
 * In turns of some milliseconds all have the clock that their mean power leaves; who takes more
 * than that is slower when it runs alone, as for most of a training step, and who takes less is
 * faster. So the best run again, each for so long that the clock is its own. What is known of the
 * others changes by as much as it did for the very best of the turns: none of them becomes the best.
 */
static lap_status_t run_final(lap_trial_t *trial, field_t *field)
{
    size_t finalists[FINALISTS];
    const size_t count = list_finalists(field, finalists);
    const double best = seconds_of(field, finalists[0]);
    const int settling = (int)ceil(SETTLE_S / best), calls = (int)ceil(FINAL_S / best);
    if (count < 2)
        return LAP_OK;
    for (size_t i = 0; i < count; i++)
        field->rounds[finalists[i]] = 0;
    for (int round = 0; round < FINAL_ROUNDS; round++)
        for (size_t place = 0; place < count; place++) {
            const size_t i = finalists[lap_turn((size_t)round, place, count)];
            double seconds;
            LAP_TRY(make_calls(trial, field->ops[i], settling));
            LAP_TRY(time_round(trial, field->ops[i], calls, &seconds));
            add_round(field, i, seconds);
        }
    const double slower = seconds_of(field, finalists[0]) / best;
    for (size_t i = 0; i < field->count; i++)
        for (int round = 0; round < field->rounds[i]; round++)
            field->seconds[i][round] *= is_listed(finalists, count, i) ? 1 : slower;
    return LAP_OK;
}

/*
 * All take turns, so that what disturbs one disturbs all; those that are far slower are dropped. How
 * many calls and rounds there are follows from serial, the first.
 */
static lap_status_t run_field(lap_trial_t *trial, field_t *field)
{
    const bool in_order = trial->engine->device->ops->takes_streams;
    const int least = in_order ? CALLS_LEAST : 1;
    const double most_s = in_order ? TIME_S : HOST_S;
    double serial, best = INFINITY;
    LAP_TRY(time_round(trial, field->ops[0], least, &serial));
    const int calls = (int)fmin(CALLS_MOST, fmax(least, ROUND_S / serial));
    const int rounds = (int)fmin(ROUNDS_MOST, fmax(ROUNDS_LEAST, most_s / serial / calls));
    for (int round = 0; round < rounds; round++) {
        size_t alive[LAP_AUTO_CANDIDATES];
        const size_t count = list_alive(field, best, alive);
        for (size_t place = 0; place < count; place++) {
            const size_t i = alive[lap_turn((size_t)round, place, count)];
            double seconds;
            LAP_TRY(time_round(trial, field->ops[i], calls, &seconds));
            add_round(field, i, seconds);
            best = fmin(best, seconds_of(field, i));
        }
    }
    return in_order && best >= LONG_S ? run_final(trial, field) : LAP_OK;
}

void lap_trial_pick(lap_forecast_t *forecast)
{
    size_t best = 0;
    for (size_t i = 0; i < forecast->count; i++)
        if (forecast->tried[i] && forecast->seconds[i] < forecast->seconds[best])
            best = i;
    if (forecast->seconds[best] > (1 - NOISE) * forecast->seconds[0] - NOISE_S)
        best = 0;
    forecast->picked = best;
}

lap_status_t lap_trial_run(lap_trial_t *trial, size_t m, const lap_forecast_t *among, size_t most,
                           lap_forecast_t *forecast)
{
    lap_tensor_t *tensors[LAP_ARGS_TENSORS];
    field_t field = {.count = forecast->count};
    const uint32_t failures = trial->engine->failures;
    trial->args.m = m;
    lap_args_shape(&trial->problem, &trial->args, tensors);
    lap_status_t status = make_field(trial, forecast, among, most, &field);
    if (status == LAP_OK)
        status = run_field(trial, &field);
    for (size_t i = 0; i < field.count; i++) {
        forecast->seconds[i] = field.ops[i] ? seconds_of(&field, i)
                               : among      ? among->seconds[i]
                                            : INFINITY;
        forecast->tried[i] = field.ops[i] != NULL;
        lap_op_destroy(field.ops[i]);
    }
    lap_trial_pick(forecast);
    /* To destroy an operator waits for its calls, and says nothing: they broke the group if they failed. */
    if (status == LAP_OK && trial->engine->failures != failures)
        status = lap_error(trial->engine->status, "%s", trial->engine->text);
    return status;
}
