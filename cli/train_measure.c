/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the iterations of `lap train` cost: the traces of all GEMMs become seconds of communication,
 * hidden and exposed, and a ratio of communication becomes a link.
 */
#include <string.h>

#include "core/status.h"
#include "core/world.h"
#include "schedule/trace.h"
#include "train.h"
#include "util/alloc.h"

static void add(lap_train_comm_t *sum, lap_train_comm_t part)
{
    sum->total += part.total;
    sum->hidden += part.hidden;
    sum->exposed += part.exposed;
}

/* The latest call of a GEMM; a call is one that waited in line behind others. */
static lap_status_t measure_call(lap_trace_t *trace, int rank, lap_train_comm_t *comm_p)
{
    lap_trace_view_t view;
    lap_trace_trim(trace);
    LAP_TRY(lap_trace_view(trace, rank, &view));
    *comm_p = (lap_train_comm_t){(double)view.flight_ns * 1e-9, (double)view.hidden_ns * 1e-9,
                                 (double)view.exposed_ns * 1e-9};
    lap_trace_view_clear(&view);
    return LAP_OK;
}

/* Whether a GEMM has something to send. */
static bool communicates(const lap_train_model_t *model, const lap_nn_gemm_t *gemm)
{
    return model->train->tp > 1 && gemm->trace && strcmp(gemm->kind, "gemm") != 0;
}

bool lap_train_is_traced(const lap_train_t *train, int index)
{
    return train->trace && (!train->apart || index >= train->iters - train->iters / 2);
}

lap_status_t lap_train_measure_passes(const lap_train_model_t *model,
                                      lap_train_iteration_t *iteration)
{
    if (!iteration->traced)
        return LAP_OK;
    for (size_t i = 0; i < lap_nn_gemms(model->nn); i++) {
        lap_nn_gemm_t gemm;
        lap_train_comm_t comm;
        LAP_TRY(lap_nn_gemm(model->nn, i, &gemm));
        if (!communicates(model, &gemm))
            continue;
        LAP_TRY(measure_call(gemm.trace, lap_group_rank(model->groups.tp), &comm));
        add(&iteration->rows[gemm.gemm], comm);
    }
    return LAP_OK;
}

lap_status_t lap_train_measure(const lap_train_model_t *model, lap_train_iteration_t *iteration)
{
    if (!iteration->traced)
        return LAP_OK;
    LAP_TRY(lap_train_measure_passes(model, iteration));
    if (model->dp) {
        lap_train_comm_t comm = {0};
        lap_dp_cost(model->dp, &comm.total, &comm.exposed);
        comm.hidden = comm.total > comm.exposed ? comm.total - comm.exposed : 0;
        iteration->rows[LAP_TRAIN_GRADIENTS] = comm;
    }
    for (int i = 0; i < LAP_TRAIN_ALL; i++)
        add(&iteration->rows[LAP_TRAIN_ALL], iteration->rows[i]);
    return LAP_OK;
}

/* The mean of the figures of all ranks, each of which are `count` doubles. Collective. */
static lap_status_t average(lap_group_t *group, double *figures, size_t count)
{
    const int size = lap_group_size(group);
    void *all;
    LAP_TRY(lap_group_collect(group, figures, count * sizeof(double), &all));
    for (size_t i = 0; i < count; i++) {
        double sum = 0;
        for (int r = 0; r < size; r++)
            sum += ((const double *)all)[(size_t)r * count + i];
        figures[i] = sum / size;
    }
    lap_free(all);
    return LAP_OK;
}

lap_status_t lap_train_average(lap_group_t *world, lap_train_iteration_t *iteration)
{
    enum { TIMES = 3, EACH = sizeof(lap_train_comm_t) / sizeof(double) };
    double figures[TIMES + EACH * LAP_TRAIN_ROWS] = {iteration->seconds, iteration->passes,
                                                     iteration->issue};
    memcpy(&figures[TIMES], iteration->rows, sizeof(iteration->rows));
    LAP_TRY(average(world, figures, sizeof(figures) / sizeof(figures[0])));
    iteration->seconds = figures[0];
    iteration->passes = figures[1];
    iteration->issue = figures[2];
    memcpy(iteration->rows, &figures[TIMES], sizeof(iteration->rows));
    return LAP_OK;
}

/* ---- a link ---- */

/* What the latest passes of this rank have sent, and how long its GEMMs took. */
static lap_status_t sum_work(const lap_train_model_t *model, double *bytes_p, double *seconds_p)
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

/* Two iterations without overlap and without a link; the first one warms up. */
static lap_status_t try_out(lap_train_model_t *model, double figures[2])
{
    for (int i = 0; i < 2; i++) {
        double loss, norm;
        LAP_TRY(lap_train_generate(model, i));
        LAP_TRY(lap_group_barrier(model->groups.world));
        for (int m = 0; m < model->train->micro; m++) {
            LAP_TRY(lap_train_begin(model, m, false));
            LAP_TRY(lap_train_wait(model));
            LAP_TRY(lap_train_add_loss(model));
        }
        LAP_TRY(lap_train_sync(model, &loss));
        LAP_TRY(lap_train_step(model, &norm));
    }
    LAP_TRY(sum_work(model, &figures[0], &figures[1]));
    return average(model->groups.world, figures, 2);
}

lap_status_t lap_train_find_link(const lap_train_t *train, const lap_train_groups_t *groups,
                                 lap_link_t *link_p)
{
    lap_link_t link = train->link.link;
    lap_train_model_t model;
    double figures[2] = {0};
    if (train->link.ratio > 0 && train->tp > 1) {
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
