/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the iterations of `lap train` cost: the traces of all calls become seconds of communication,
 * hidden and exposed, and what they were exposed for, and a ratio of communication becomes a link. A row
 * of GEMMs, or of gradients, adds up its calls; kinds, messages and all of them are unions, see train_times.c.
 */
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

static void add(lap_train_comm_t *sum, lap_train_comm_t part)
{
    sum->total += part.total;
    sum->hidden += part.hidden;
    sum->exposed += part.exposed;
    for (int c = 0; c < LAP_CAUSES; c++)
        sum->causes[c] += part.causes[c];
    sum->bytes += part.bytes;
}

/*
 * Calls `each` for the calls between ranks of the latest passes, with the number of their operator in the
 * list: those of a pipeline's step, and those that layers have made by themselves.
 */
static lap_status_t each_call(const lap_train_model_t *model, lap_stage_each_t each, void *context)
{
    const lap_nn_t *nn = model->nn;
    if (model->pp)
        LAP_TRY(lap_stage_each_call(model->pp, each, context));
    for (size_t i = 0; i < nn->ncalls; i++) {
        const lap_op_t *op = nn->calls[i].op;
        lap_trace_t *trace = nn->calls[i].trace;
        const bool moves = nn->list.steps[i].desc.kind != LAP_GEMM && op->group->size > 1;
        if (moves && trace && trace->nrecords > 0)
            LAP_TRY(each(context, (uint32_t)i, op, trace));
    }
    return LAP_OK;
}

/* Whether the ranks that share weights make it together: they tell each other why they waited. */
static bool is_explained(const lap_train_model_t *model, const lap_op_t *op)
{
    return op->group == model->nn->group;
}

void lap_train_forget(const lap_train_model_t *model)
{
    for (size_t i = 0; i < model->nn->ncalls; i++)
        if (model->nn->calls[i].trace)
            model->nn->calls[i].trace->nrecords = 0;
}

/* The row of a call. */
static int row_of(const lap_train_model_t *model, size_t i)
{
    const lap_nn_list_t *list = &model->nn->list;
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

bool lap_train_is_traced(const lap_train_t *train, int index)
{
    return train->trace && (!train->apart || index >= train->iters - train->iters / 2);
}

/* Adds what a rank, or whoever the trace is of (-1), has computed. */
static void add_work(const lap_trace_t *trace, int rank, lap_intervals_t *work)
{
    for (size_t i = 0; i < trace->nrecords; i++) {
        const lap_trace_record_t *record = &trace->records[i];
        if ((rank < 0 || record->rank == rank) && lap_step_computes(record->kind, record->stream))
            lap_intervals_add(work, record->span.begin, record->span.end);
    }
}

/* In any call and kernel of the latest iteration, as far as that is known. */
static lap_status_t list_work(const lap_train_model_t *model, lap_intervals_t *work_p)
{
    *work_p = (lap_intervals_t){.list = NULL};
    if (model->timeline)
        add_work(model->timeline, -1, work_p);
    return work_p->failed ? lap_error(LAP_ERR_NO_MEMORY, "no memory for the work of a rank")
                          : LAP_OK;
}

/*
 * One call, which waited for those before it. A collective without a GEMM has no work of its own: it
 * is hidden by that of others. What came before *until_p counts for another call; NULL: nothing does.
 * No `work`: others find out when it was exposed, and what for.
 */
static lap_status_t measure_call(lap_trace_t *trace, int rank, const lap_intervals_t *work,
                                 uint64_t *until_p, lap_comm_times_t *times,
                                 lap_train_comm_t *comm_p)
{
    lap_trace_view_t view;
    lap_trace_trim(trace);
    if (until_p) {
        trace->begin = trace->begin > *until_p ? trace->begin : *until_p;
        trace->end = trace->end > *until_p ? trace->end : *until_p;
        *until_p = trace->end;
    }
    LAP_TRY(lap_trace_view(trace, rank, work, &view));
    *comm_p = (lap_train_comm_t){.total = (double)view.times.flight_ns * 1e-9,
                                 .hidden = (double)view.times.hidden_ns * 1e-9,
                                 .exposed = work ? (double)view.exposed_ns * 1e-9 : 0,
                                 .bytes = lap_trace_bytes(trace)};
    comm_p->causes[LAP_CAUSE_WIRE] = comm_p->exposed;
    lap_comm_times_fly(times, &view.times.flight);
    for (size_t i = 0; work && i < view.idle.count; i++)
        lap_comm_times_expose(times, LAP_CAUSE_WIRE, view.idle.list[i].begin,
                              view.idle.list[i].end);
    lap_trace_view_clear(&view);
    return LAP_OK;
}

/* What is no pause of a call. */
typedef struct spent {
    lap_intervals_t work;  /* of all calls, joined */
    lap_intervals_t calls; /* the time of those before, joined */
} spent_t;

/*
 * The pauses in one call, and what they were for: `call` has the records of all ranks, `begin` is when it began by the
 * clock of this rank. Calls may be in flight together, and a pause counts once, for the first of them.
 */
static lap_status_t find_causes(lap_trace_t *call, int rank, uint64_t begin, spent_t *spent,
                                const lap_intervals_t *bubbles, lap_comm_times_t *times,
                                lap_train_comm_t *comm_p)
{
    lap_train_comm_t comm = {0};
    lap_trace_view_t view;
    lap_trace_trim(call);
    lap_intervals_t both = {.list = NULL};
    lap_intervals_append(&both, &spent->calls);
    for (size_t i = 0; i < spent->work.count; i++)
        if (spent->work.list[i].end > call->calls[rank].begin &&
            spent->work.list[i].begin < call->calls[rank].end)
            lap_intervals_add(&both, spent->work.list[i].begin, spent->work.list[i].end);
    /* A call may have raised its first signals before the bubble in which its input came. */
    const uint64_t ahead = call->calls[rank].begin - begin;
    for (size_t i = 0; i < bubbles->count; i++)
        lap_intervals_add(&both, bubbles->list[i].begin + ahead, bubbles->list[i].end + ahead);
    lap_status_t status = both.failed ? lap_error(LAP_ERR_NO_MEMORY, "no memory for a call's time")
                                      : lap_trace_view(call, rank, &both, &view);
    lap_intervals_clear(&both);
    LAP_TRY(status);
    comm.exposed = (double)view.exposed_ns * 1e-9;
    for (int c = 0; c < LAP_CAUSES; c++)
        comm.causes[c] = (double)view.cause_ns[c] * 1e-9;
    lap_comm_times_explain(times, &view, ahead);
    lap_intervals_add(&spent->calls, view.call.begin, view.call.end);
    lap_intervals_join(&spent->calls);
    lap_trace_view_clear(&view);
    *comm_p = comm;
    return LAP_OK;
}

typedef struct joining {
    const lap_train_model_t *model;
    lap_trace_t *all;
} joining_t;

static lap_status_t join_call(void *context, uint32_t step, const lap_op_t *op, lap_trace_t *trace)
{
    const joining_t *joining = context;
    (void)step;
    if (!is_explained(joining->model, op))
        return LAP_OK;
    joining->all->emulated = joining->all->emulated || trace->emulated;
    return lap_trace_join(joining->all, trace);
}

/* All calls in one trace: what ranks tell each other takes a while each time. */
static lap_status_t join_calls(const lap_train_model_t *model, lap_trace_t **all_p)
{
    joining_t joining = {.model = model};
    LAP_TRY(lap_trace_create(&joining.all));
    lap_status_t status = lap_trace_begin(joining.all, LAP_AG_GEMM, "", model->train->grid.tp,
                                          model->nn->list.plan.m, false, 0);
    if (status == LAP_OK)
        status = each_call(model, join_call, &joining);
    if (status == LAP_OK)
        *all_p = joining.all;
    else
        lap_trace_destroy(joining.all);
    return status;
}

/*
 * The records of one call out of those of all, each rank's of which come in the order of the calls:
 * ends[r] is how far those of rank r have been taken.
 */
static void take_call(const lap_trace_t *all, uint32_t number, size_t *ends, lap_trace_t *call)
{
    call->nrecords = 0;
    for (int r = 0; r < all->size; r++)
        for (; ends[r] < all->nrecords && all->records[ends[r]].rank == r &&
               all->records[ends[r]].call == number;
             ends[r]++)
            call->records[call->nrecords++] = all->records[ends[r]];
}

/* Where the records of each rank begin. */
static void find_ranks(const lap_trace_t *all, size_t *ends)
{
    for (size_t i = all->nrecords; i-- > 0;)
        ends[all->records[i].rank] = i;
}

typedef struct explaining {
    lap_train_model_t *model;
    const lap_trace_t *all;
    lap_trace_t call;
    size_t *ends;
    spent_t spent;
    uint32_t number;
    lap_train_iteration_t *iteration;
} explaining_t;

static lap_status_t explain_call(void *context, uint32_t step, const lap_op_t *op,
                                 lap_trace_t *trace)
{
    explaining_t *explaining = context;
    lap_train_model_t *model = explaining->model;
    lap_train_comm_t comm;
    if (!is_explained(model, op))
        return LAP_OK;
    lap_trace_trim(trace);
    take_call(explaining->all, explaining->number++, explaining->ends, &explaining->call);
    LAP_TRY(find_causes(&explaining->call, lap_group_rank(model->groups.tp), trace->begin,
                        &explaining->spent, &model->times.bubbles,
                        &model->times.kinds[kind_of(trace->group)], &comm));
    add(&explaining->iteration->rows[row_of(model, step)], comm);
    return LAP_OK;
}

static lap_status_t explain_calls(lap_train_model_t *model, const lap_trace_t *all,
                                  lap_train_iteration_t *iteration)
{
    const size_t size = (size_t)all->size;
    explaining_t explaining = {
        .model = model,
        .all = all,
        .call = {.size = all->size, .m = all->m, .emulated = all->emulated},
        .iteration = iteration,
    };
    explaining.call.records = lap_alloc(all->nrecords, sizeof(*explaining.call.records));
    explaining.call.calls = lap_alloc(size, sizeof(*explaining.call.calls));
    explaining.ends = lap_alloc(size, sizeof(*explaining.ends));
    lap_status_t status = LAP_OK;
    add_work(all, lap_group_rank(model->groups.tp), &explaining.spent.work);
    lap_intervals_join(&explaining.spent.work);
    if (!explaining.call.records || !explaining.call.calls || !explaining.ends ||
        explaining.spent.work.failed)
        status =
            lap_error(LAP_ERR_NO_MEMORY, "no memory for the calls of %zu records", all->nrecords);
    else
        find_ranks(all, explaining.ends);
    if (status == LAP_OK)
        status = each_call(model, explain_call, &explaining);
    lap_free(explaining.call.records);
    lap_free(explaining.call.calls);
    lap_free(explaining.ends);
    lap_intervals_clear(&explaining.spent.work);
    lap_intervals_clear(&explaining.spent.calls);
    return status;
}

/* Collective over the ranks that share weights: each learns from the others why it waited. */
static lap_status_t measure_causes(lap_train_model_t *model, lap_train_iteration_t *iteration)
{
    lap_trace_t *all = NULL;
    lap_status_t status = lap_group_agree(model->groups.tp, join_calls(model, &all));
    if (status == LAP_OK)
        status = lap_trace_share(all, model->groups.tp);
    if (status == LAP_OK)
        status = explain_calls(model, all, iteration);
    lap_trace_destroy(all);
    return status;
}

typedef struct measuring {
    lap_train_model_t *model;
    const lap_intervals_t *work;
    lap_train_iteration_t *iteration;
} measuring_t;

static lap_status_t add_call(void *context, uint32_t step, const lap_op_t *op, lap_trace_t *trace)
{
    const measuring_t *measuring = context;
    const lap_intervals_t *work = is_explained(measuring->model, op) ? NULL : measuring->work;
    lap_train_times_t *times = &measuring->model->times;
    const int kind = kind_of(trace->group);
    lap_train_comm_t comm;
    LAP_TRY(measure_call(trace, op->group->rank, work, NULL, &times->kinds[kind], &comm));
    add_work(trace, -1, &times->busy);
    add(&measuring->iteration->rows[row_of(measuring->model, step)], comm);
    if (kind < LAP_AXES)
        measuring->iteration->kinds[kind].bytes += comm.bytes;
    return LAP_OK;
}

/* Between stages of a pipeline. Collective over it. */
static lap_status_t measure_messages(lap_train_model_t *model, lap_train_iteration_t *iteration)
{
    lap_train_times_t *times = &model->times;
    double bytes;
    LAP_TRY(lap_stage_times(model->pp, &times->messages, &times->bubbles, &bytes));
    iteration->rows[LAP_TRAIN_MESSAGES].bytes += bytes;
    iteration->kinds[LAP_AXIS_PP].bytes += bytes;
    iteration->bubble += (double)lap_intervals_length(&times->bubbles) * 1e-9;
    return LAP_OK;
}

lap_status_t lap_train_measure_passes(lap_train_model_t *model, lap_train_iteration_t *iteration)
{
    lap_intervals_t work;
    if (!iteration->traced)
        return LAP_OK;
    LAP_TRY(list_work(model, &work));
    measuring_t measuring = {model, &work, iteration};
    const lap_status_t status = each_call(model, add_call, &measuring);
    lap_intervals_clear(&work);
    LAP_TRY(status);
    if (model->pp)
        LAP_TRY(measure_messages(model, iteration));
    return model->train->grid.tp > 1 ? measure_causes(model, iteration) : LAP_OK;
}

static lap_status_t measure_gradients(lap_train_model_t *model, lap_train_comm_t *comm_p)
{
    lap_train_comm_t comm = {0};
    uint64_t causes[LAP_CAUSES];
    lap_dp_cost(model->dp, &comm.total, &comm.exposed);
    comm.hidden = comm.total > comm.exposed ? comm.total - comm.exposed : 0;
    LAP_TRY(lap_dp_find_causes(model->dp, &model->times.kinds[LAP_AXIS_DP], causes, &comm.bytes));
    for (int c = 0; c < LAP_CAUSES; c++)
        comm.causes[c] = (double)causes[c] * 1e-9;
    *comm_p = comm;
    return LAP_OK;
}

/*
 * Weights that a shared optimizer has made: hidden by any work of this rank, or exposed. Buckets travel from the
 * last to the first, and one may begin before another has ended: no time counts twice.
 */
static lap_status_t measure_weights(lap_train_model_t *model, const lap_intervals_t *work,
                                    lap_train_comm_t *comm_p)
{
    lap_status_t status = LAP_OK;
    uint64_t until = 0, begin = 0;
    for (size_t i = lap_dp_buckets(model->dp); i-- > 0 && status == LAP_OK;) {
        lap_trace_t *trace = lap_dp_weights_trace(model->dp, i);
        lap_train_comm_t comm = {0};
        if (!trace)
            continue;
        if (trace->begin < begin) /* the one before was that of the step, which comes last */
            until = 0;
        begin = trace->begin;
        status = measure_call(trace, lap_group_rank(model->groups.replicas), work, &until,
                              &model->times.kinds[LAP_AXIS_DP], &comm);
        add(comm_p, comm);
    }
    return status;
}

/* What the timeline says of the whole iteration. */
static lap_status_t measure_work(lap_train_model_t *model, lap_train_comm_t *weights)
{
    lap_intervals_t work;
    LAP_TRY(list_work(model, &work));
    lap_intervals_append(&model->times.busy, &work);
    lap_intervals_append(&model->times.busy, &model->times.bubbles);
    const lap_status_t status = model->dp ? measure_weights(model, &work, weights) : LAP_OK;
    lap_intervals_clear(&work);
    return status;
}

lap_status_t lap_train_measure(lap_train_model_t *model, lap_train_iteration_t *iteration)
{
    if (!iteration->traced)
        return LAP_OK;
    LAP_TRY(lap_train_measure_passes(model, iteration));
    if (model->dp)
        LAP_TRY(measure_gradients(model, &iteration->rows[LAP_TRAIN_GRADIENTS]));
    LAP_TRY(measure_work(model, &iteration->rows[LAP_TRAIN_GRADIENTS]));
    iteration->kinds[LAP_AXIS_DP].bytes += iteration->rows[LAP_TRAIN_GRADIENTS].bytes;
    for (int i = 0; i < LAP_TRAIN_ALL; i++)
        iteration->rows[LAP_TRAIN_ALL].bytes += iteration->rows[i].bytes;
    return lap_train_times_sum(&model->times, iteration);
}

lap_status_t lap_train_average(lap_group_t *world, lap_train_iteration_t *iteration)
{
    enum { TIMES = 4, EACH = sizeof(lap_train_comm_t) / sizeof(double) };
    enum { ROWS = TIMES + EACH * LAP_TRAIN_ROWS, ALL = ROWS + EACH * LAP_AXES };
    double figures[ALL] = {iteration->seconds, iteration->passes, iteration->issue,
                           iteration->bubble};
    memcpy(&figures[TIMES], iteration->rows, sizeof(iteration->rows));
    memcpy(&figures[ROWS], iteration->kinds, sizeof(iteration->kinds));
    LAP_TRY(lap_group_mean(world, figures, sizeof(figures) / sizeof(figures[0])));
    iteration->seconds = figures[0];
    iteration->passes = figures[1];
    iteration->issue = figures[2];
    iteration->bubble = figures[3];
    memcpy(iteration->rows, &figures[TIMES], sizeof(iteration->rows));
    memcpy(iteration->kinds, &figures[ROWS], sizeof(iteration->kinds));
    return LAP_OK;
}

/* ---- a link ---- */

/* What the latest passes of this rank have sent for its GEMMs, and how long these took. */
static lap_status_t sum_gemms(const lap_train_model_t *model, double *bytes_p, double *seconds_p)
{
    double bytes = 0, seconds = 0;
    for (size_t i = 0; i < lap_nn_gemms(model->nn); i++) {
        lap_nn_gemm_t gemm;
        LAP_TRY(lap_nn_gemm(model->nn, i, &gemm));
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
static lap_status_t try_step(lap_train_model_t *model, int index, double figures[2])
{
    const bool whole = model->train->grid.tp == 1 || model->pp;
    const int count = model->pp ? 1 : model->train->micro;
    lap_train_iteration_t iteration = {.traced = true};
    double loss;
    lap_train_times_reset(&model->times);
    LAP_TRY(lap_group_agree(model->groups.world, lap_train_generate(model, index)));
    for (int m = 0; m < count; m++) {
        if (m > 0)
            LAP_TRY(lap_train_measure_passes(model, &iteration));
        LAP_TRY(lap_group_barrier(model->groups.world));
        lap_train_times_resume(&model->times);
        LAP_TRY(lap_train_begin(model, m, false));
        LAP_TRY(lap_train_wait(model));
        LAP_TRY(lap_train_add_loss(model));
        lap_train_times_pause(&model->times);
    }
    lap_train_times_resume(&model->times);
    LAP_TRY(lap_train_sync(model, &loss));
    LAP_TRY(lap_train_step(model, &iteration));
    lap_train_times_pause(&model->times);
    iteration.seconds = (double)model->times.ns * 1e-9;
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
 * the rest.
 */
static lap_status_t try_out(lap_train_model_t *model, double figures[2])
{
    enum { TRIALS = 4 };
    for (int i = 0; i < TRIALS; i++) {
        double own[2] = {0};
        LAP_TRY(try_step(model, i, own));
        if (i <= 1 || own[1] < figures[1])
            memcpy(figures, own, sizeof(own));
    }
    return lap_group_mean(model->groups.world, figures, 2);
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
