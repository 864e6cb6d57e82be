/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the iterations of `lap train` cost: which calls there are, and a ratio of communication becomes a link. What each call
 * cost is in train_causes.c: a row of GEMMs adds up its calls. Calls of several groups are in flight together, and a rank waits
 * for several at once: kinds, messages and all of them are unions, in which that counts once.
 */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "core/status.h"
#include "core/world.h"
#include "nn/nn.h"
#include "overlap/op.h"
#include "parallel/data_parallel.h"
#include "parallel/stage_run.h"
#include "schedule/trace.h"
#include "train.h"
#include "util/alloc.h"
#include "util/clock.h"

/* ---- calls ---- */

/* The row of a call. */
static int row_of(const lap_train_model_t *model, size_t i)
{
    const lap_nn_list_t *list = &model->trainer.nn->list;
    const lap_nn_step_t *step = &list->steps[i];
    if (step->block == LAP_NN_NONE)
        return LAP_TRAIN_OTHERS;
    const lap_nn_gemm_t gemm = {.gemm = step->gemm, .layer = list->blocks[step->block].shape.layer};
    return lap_train_row(model->train, &gemm);
}

/* The kind of a group; LAP_AXES: not known, as of groups that are no part of a grid. */
static int kind_of(const char *group)
{
    int a = 0;
    while (a < LAP_AXES && !(group && strcmp(group, lap_axis_name((lap_axis_t)a)) == 0))
        a++;
    return a;
}

typedef struct walking {
    const lap_train_model_t *model;
    lap_train_each_t each;
    void *context;
} walking_t;

/* A call of layers, with the number of its operator in the list. */
static lap_status_t walk_call(void *context, uint32_t step, const lap_op_t *op, lap_trace_t *trace)
{
    const walking_t *walking = context;
    const bool tied = step == LAP_NN_NONE;
    const lap_train_call_t call = {.group = op->group,
                                   .trace = trace,
                                   .row = tied ? LAP_TRAIN_MESSAGES : row_of(walking->model, step),
                                   .kind = tied ? LAP_AXIS_PP : kind_of(trace->group)};
    return walking->each(walking->context, &call);
}

lap_status_t lap_train_each_call(const lap_train_model_t *model, lap_train_each_t each,
                                 void *context)
{
    const lap_nn_t *nn = model->trainer.nn;
    walking_t walking = {model, each, context};
    if (model->trainer.pp)
        LAP_TRY(lap_stage_each_call(model->trainer.pp, walk_call, &walking));
    for (size_t i = 0; i < nn->ncalls; i++) {
        const lap_op_t *op = nn->calls[i].op;
        lap_trace_t *trace = nn->calls[i].trace;
        const bool moves = nn->list.steps[i].desc.kind != LAP_GEMM && op->group->size > 1;
        if (moves && trace && trace->nrecords > 0)
            LAP_TRY(walk_call(&walking, (uint32_t)i, op, trace));
    }
    return LAP_OK;
}

/* Gathers of weights that a shared optimizer has made: buckets travel from the last to the first. */
static lap_status_t each_weights(const lap_train_model_t *model, lap_train_each_t each,
                                 void *context)
{
    for (size_t i = lap_dp_buckets(model->trainer.dp); i-- > 0;) {
        const lap_train_call_t call = {.group = model->trainer.groups.replicas,
                                       .trace = lap_dp_weights_trace(model->trainer.dp, i),
                                       .row = LAP_TRAIN_GRADIENTS,
                                       .kind = LAP_AXIS_DP};
        if (call.trace)
            LAP_TRY(each(context, &call));
    }
    return LAP_OK;
}

void lap_train_forget(const lap_train_model_t *model)
{
    for (size_t i = 0; i < model->trainer.nn->ncalls; i++)
        if (model->trainer.nn->calls[i].trace)
            model->trainer.nn->calls[i].trace->nrecords = 0;
}

int lap_train_row(const lap_train_t *train, const lap_nn_gemm_t *gemm)
{
    const bool head = train->model && gemm->layer == train->desc.layers;
    return head ? LAP_TRAIN_HEAD + (int)gemm->gemm % 3 : (int)gemm->gemm;
}

const char *lap_train_row_name(int row)
{
    static const char *const head[] = {"head_fprop", "head_dgrad", "head_wgrad"};
    return row < LAP_TRAIN_HEAD ? lap_tp_gemm_name((lap_tp_gemm_t)row) : head[row - LAP_TRAIN_HEAD];
}

void lap_train_add_work(const lap_trace_t *trace, int rank, lap_intervals_t *work)
{
    for (size_t i = 0; i < trace->nrecords; i++) {
        const lap_trace_record_t *record = &trace->records[i];
        if ((rank < 0 || record->rank == rank) && lap_step_computes(record->kind, record->stream))
            lap_intervals_add(work, record->span.begin, record->span.end);
    }
}

/* ---- times ---- */

void lap_train_times_reset(lap_train_times_t *times)
{
    for (size_t k = 0; k < sizeof(times->kinds) / sizeof(times->kinds[0]); k++)
        lap_comm_times_clear(&times->kinds[k]);
    lap_comm_times_clear(&times->messages);
    lap_intervals_clear(&times->bubbles);
    lap_intervals_clear(&times->busy);
    lap_intervals_clear(&times->step);
    times->ns = 0;
}

void lap_train_times_resume(lap_train_times_t *times)
{
    times->since = lap_now_ns();
}

void lap_train_times_pause(lap_train_times_t *times)
{
    const uint64_t now = lap_now_ns();
    lap_intervals_add(&times->step, times->since, now);
    times->ns += now - times->since;
}

/* The union in the place of what was added up; the bytes are a sum. */
static lap_status_t put(lap_train_times_t *times, const lap_comm_times_t *kind,
                        lap_train_comm_t *comm)
{
    lap_comm_sum_t sum;
    LAP_TRY(lap_comm_times_sum(kind, &times->busy, &times->bubbles, &times->step, &sum));
    comm->total = (double)sum.flight * 1e-9;
    comm->hidden = (double)sum.hidden * 1e-9;
    comm->exposed = (double)(sum.flight - sum.hidden) * 1e-9;
    comm->waited = (double)sum.waited * 1e-9;
    for (int c = 0; c < LAP_CAUSES; c++)
        comm->causes[c] = (double)sum.causes[c] * 1e-9;
    return LAP_OK;
}

/* The unions of messages, of each kind and of all become figures of the iteration. */
static lap_status_t sum_times(lap_train_times_t *times, lap_train_iteration_t *iteration)
{
    lap_comm_times_t all = {.flight = {.list = NULL}};
    lap_status_t status = put(times, &times->messages, &iteration->rows[LAP_TRAIN_MESSAGES]);
    lap_comm_times_join(&times->kinds[LAP_AXIS_PP], &times->messages);
    for (int k = 0; k <= LAP_AXES && status == LAP_OK; k++) {
        lap_comm_times_join(&all, &times->kinds[k]);
        if (k < LAP_AXES)
            status = put(times, &times->kinds[k], &iteration->kinds[k]);
    }
    if (status == LAP_OK)
        status = put(times, &all, &iteration->rows[LAP_TRAIN_ALL]);
    lap_comm_times_clear(&all);
    return status;
}

/* ---- what an iteration cost ---- */

/* Between stages of a pipeline. Collective over it. */
static lap_status_t measure_messages(lap_train_model_t *model, lap_train_iteration_t *iteration)
{
    lap_train_times_t *times = &model->times;
    double bytes;
    LAP_TRY(lap_stage_times(model->trainer.pp, &times->messages, &times->bubbles, &bytes));
    iteration->rows[LAP_TRAIN_MESSAGES].bytes += bytes;
    iteration->kinds[LAP_AXIS_PP].bytes += bytes;
    iteration->bubble += (double)lap_intervals_length(&times->bubbles) * 1e-9;
    return LAP_OK;
}

/* The groups that this rank calls operators in, one after another; NULL: there is none of this number. */
static lap_group_t *group_at(const lap_train_model_t *model, int number)
{
    const lap_nn_t *nn = model->trainer.nn;
    if (number < LAP_NN_GROUPS)
        return number == LAP_NN_BY_NORM ? nn->norm_group : nn->wires[number].group;
    return model->trainer.pp && model->trainer.pp->tied[0] ? model->trainer.pp->tied[0]->group
                                                           : NULL;
}

/* Collective over each of these groups, in the same order on every rank. */
static lap_status_t explain_passes(lap_train_model_t *model, lap_train_iteration_t *iteration)
{
    for (int i = 0; i <= LAP_NN_GROUPS; i++) {
        lap_group_t *group = group_at(model, i);
        for (int j = 0; j < i; j++) /* contexts may share the optimizer */
            group = group == group_at(model, j) ? NULL : group;
        if (group && group->size > 1)
            LAP_TRY(lap_train_explain(model, lap_train_each_call, group, iteration));
    }
    return LAP_OK;
}

lap_status_t lap_train_measure_passes(lap_train_model_t *model, lap_train_iteration_t *iteration)
{
    if (!iteration->traced)
        return LAP_OK;
    if (model->trainer.pp)
        LAP_TRY(measure_messages(model, iteration));
    return explain_passes(model, iteration);
}

lap_status_t lap_train_measure(lap_train_model_t *model, lap_train_iteration_t *iteration)
{
    lap_train_times_t *times = &model->times;
    if (!iteration->traced)
        return LAP_OK;
    LAP_TRY(lap_train_measure_passes(model, iteration));
    /* Gradients on their way to replicas, and weights on their way back from those that share an optimizer. */
    if (model->trainer.dp)
        LAP_TRY(lap_train_explain_gradients(model, iteration));
    if (model->trainer.dp)
        LAP_TRY(lap_train_explain(model, each_weights, model->trainer.groups.replicas, iteration));
    if (model->timeline)
        lap_train_add_work(model->timeline, -1, &times->busy);
    for (int i = 0; i < LAP_TRAIN_ALL; i++)
        iteration->rows[LAP_TRAIN_ALL].bytes += iteration->rows[i].bytes;
    return sum_times(times, iteration);
}

lap_status_t lap_train_average(lap_group_t *world, lap_train_iteration_t *iteration)
{
    enum { FIRST = offsetof(lap_train_iteration_t, seconds), BYTES = sizeof(*iteration) - FIRST };
    return lap_group_mean(world, (double *)(void *)((char *)iteration + FIRST),
                          BYTES / sizeof(double));
}

/* ---- a link ---- */

/* What the latest passes of this rank have sent for its GEMMs, and how long these took. */
static lap_status_t sum_gemms(const lap_train_model_t *model, double *bytes_p, double *seconds_p)
{
    double bytes = 0, seconds = 0;
    for (size_t i = 0; i < lap_nn_gemms(model->trainer.nn); i++) {
        lap_nn_gemm_t gemm;
        LAP_TRY(lap_nn_gemm(model->trainer.nn, i, &gemm));
        for (size_t r = 0; gemm.trace && r < gemm.trace->nrecords; r++) {
            const lap_trace_record_t *record = &gemm.trace->records[r];
            if (record->kind == LAP_STEP_PUT || record->kind == LAP_STEP_RAISE)
                bytes += (double)record->bytes;
            if (record->kind == LAP_STEP_GEMM)
                seconds += (double)(record->span.end - record->span.begin) * 1e-9;
        }
    }
    *bytes_p = bytes;
    *seconds_p = seconds;
    return LAP_OK;
}

/* An iteration without overlap and without a link: the bytes that this rank has sent, and the seconds. */
static lap_status_t try_step(lap_train_model_t *model, double figures[2])
{
    const bool whole = model->train->grid.tp == 1 || model->trainer.pp;
    lap_train_iteration_t iteration = {.traced = true};
    LAP_TRY(lap_trainer_read(&model->trainer));
    LAP_TRY(lap_train_step(model, false, &iteration));
    LAP_TRY(lap_trainer_end_step(&model->trainer));
    if (!whole)
        return sum_gemms(model, &figures[0], &figures[1]);
    LAP_TRY(lap_train_measure(model, &iteration));
    figures[0] = iteration.rows[LAP_TRAIN_ALL].bytes;
    figures[1] = iteration.seconds;
    return LAP_OK;
}

/*
 * The bytes that GEMMs have sent and the seconds that they took; where no GEMM communicates, and in a pipeline, those of
 * the whole step. The first iteration warms up; of the others the quickest counts: other programs took turns with
 * the rest. Of short ones there are more, since fewer of them are spared; all ranks know how many by the second.
 */
static lap_status_t try_out(lap_train_model_t *model, double figures[2])
{
    enum { FEW = 4, MANY = 20 };
    const double patience_s = 0.3;
    int trials = FEW;
    for (int i = 0; i < trials; i++) {
        double own[2] = {0};
        LAP_TRY(try_step(model, own));
        if (i <= 1 || own[1] < figures[1])
            memcpy(figures, own, sizeof(own));
        if (i == 1) {
            double seconds = own[1];
            LAP_TRY(lap_group_mean(model->trainer.groups.world, &seconds, 1));
            trials = (int)fmin(MANY, fmax(FEW, patience_s / fmax(seconds, 1e-9)));
        }
    }
    return lap_group_mean(model->trainer.groups.world, figures, 2);
}

lap_status_t lap_train_find_link(const lap_train_t *train, const lap_grid_groups_t *groups,
                                 lap_link_t *link_p)
{
    lap_link_t link = train->link.link;
    lap_train_model_t model;
    double figures[2] = {0};
    if (train->link.ratio > 0) {
        lap_status_t status =
            lap_train_model_init(&model, train, groups, false, true, (lap_link_t){0, 0});
        if (status == LAP_OK)
            status = try_out(&model, figures);
        lap_train_model_clear(&model);
        LAP_TRY(status);
        link.bytes_per_s = figures[0] / (train->link.ratio * figures[1]);
    }
    *link_p = link;
    return LAP_OK;
}
