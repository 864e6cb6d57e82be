/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The timeline of the last iteration of `lap train` that was traced, as a file for other programs; and
 * whether its communication was as well hidden as was asked for.
 */
#include <math.h>
#include <stdio.h>

#include "bench.h"
#include "core/status.h"
#include "core/world.h"
#include "nn/nn.h"
#include "ranks.h"
#include "trace_file.h"
#include "train.h"
#include "util/clock.h"

/* ---- filling ---- */

/* Whether a file with the timeline of an iteration is written. */
static bool writes_trace(const lap_train_t *train)
{
    return train->trace_path || train->report;
}

lap_status_t lap_train_timeline_init(lap_train_model_t *model)
{
    const int size = lap_train_ranks(model->train);
    model->records = (lap_trace_t){.size = size, .most = LAP_TRACE_MOST / (size_t)size};
    /* Communication is hidden by kernels, too, which only a timeline times. */
    if (!model->train->trace)
        return LAP_OK;
    model->timeline = &model->records;
    return lap_nn_set_timeline(model->trainer.nn, model->timeline);
}

void lap_train_note(const lap_train_model_t *model, const char *what, uint64_t begin)
{
    const lap_trace_label_t label = {.name = what, .op = "host", .layer = -1};
    const lap_span_t span = {begin, begin, lap_now_ns()};
    if (model->timeline)
        lap_trace_add_span(model->timeline, model->trainer.groups.world->world->rank,
                           LAP_TRACE_HOST, LAP_TRACE_HOST_STREAM, &label, &span);
}

/* ---- what lap report reads besides ---- */

typedef struct context {
    const lap_train_t *train;
    const lap_train_result_t *result;
} context_t;

static void put_place(const void *given, int rank, char *text, size_t bytes)
{
    const lap_grid_t *grid = &((const context_t *)given)->train->grid;
    size_t used = 0;
    *text = '\0';
    for (int axis = 0; axis < LAP_AXES && used < bytes; axis++)
        if (axis == LAP_AXIS_TP || lap_grid_size(grid, (lap_axis_t)axis) > 1)
            used += (size_t)snprintf(text + used, bytes - used, "%s%s%d", used ? " " : "",
                                     lap_axis_name((lap_axis_t)axis),
                                     lap_grid_at(grid, (lap_axis_t)axis, rank));
}

/* A GEMM of all layers, or the gradients between replicas. */
static void put_row(lap_json_t *json, const char *name, const char *kind, const char *op,
                    const lap_train_comm_t *comm)
{
    lap_json_put(json, "{name:%s kind:%s op:%s", name, kind, op);
    lap_train_json_comm(json, comm, true);
    lap_json_put(json, "bytes:%.9g}", comm->bytes);
}

static void put_more(const void *given, lap_json_t *json)
{
    const context_t *context = given;
    const lap_train_t *train = context->train;
    const lap_train_result_t *result = context->result;
    const lap_grid_t *grid = &train->grid;
    const lap_train_iteration_t it = lap_train_typical(train, result);
    lap_json_put(
        json, "grid:{tp:%d cp:%d pp:%d dp:%d} micro_batches:%d step_ms:%.9g passes_ms:%.9g",
        grid->tp, grid->cp, grid->pp, grid->dp, train->micro, it.seconds * 1e3, it.passes * 1e3);
    if (grid->pp > 1)
        lap_json_put(json, "bubble_ms:%.9g", it.bubble * 1e3);
    lap_json_put(json, "predicted_ms:%.9g tokens_per_s:%.9g rows:[",
                 result->predicted > 0 ? result->predicted * 1e3 : NAN,
                 lap_train_tokens(train) / it.seconds);
    for (int g = 0; g < LAP_TRAIN_OTHERS; g++) {
        char op[80];
        if (!result->gemms[g].kind)
            continue;
        snprintf(op, sizeof(op), "%s %s", result->gemms[g].kind, result->gemms[g].method);
        put_row(json, lap_train_row_name(g), "tp", op, &it.rows[g]);
    }
    if (it.rows[LAP_TRAIN_OTHERS].bytes > 0)
        put_row(json, "others", "", "collectives", &it.rows[LAP_TRAIN_OTHERS]);
    if (grid->pp > 1)
        put_row(json, "messages", "pp", "p2p", &it.rows[LAP_TRAIN_MESSAGES]);
    if (grid->dp * grid->cp > 1)
        put_row(json, "gradients", "dp", "buckets", &it.rows[LAP_TRAIN_GRADIENTS]);
    lap_json_put(json, "]");
    if (it.traced) {
        lap_json_put(json, "all:");
        put_row(json, "all", "", "", &it.rows[LAP_TRAIN_ALL]);
    }
    lap_json_put(json, "iterations:[");
    for (int i = 0; i < result->done; i++)
        lap_json_put(json, "{step:%d loss:%.9g ms:%.9g}", result->first + i + 1,
                     result->iterations[i].loss, result->iterations[i].seconds * 1e3);
    lap_json_put(json, "]");
}

/* ---- writing ---- */

static void put_title(const lap_train_t *train, const lap_train_result_t *result, char *text,
                      size_t bytes)
{
    char link[64], grid[LAP_GRID_TEXT];
    lap_bench_link_text(&result->link, link, sizeof(link));
    lap_grid_text(&train->grid, grid);
    snprintf(text, bytes, "%s, %s, %s, hidden %zu, seq %zu, batch %zu, layers %zu (%s, %s), %s",
             train->model ? train->model : lap_nn_kind_name(train->desc.kind), grid,
             lap_dtype_name(train->desc.dtype), train->desc.hidden, train->desc.seq, train->batch,
             train->desc.layers, train->device, train->transport, link);
}

/* Rank 0. A full disk must not cost what was measured: the tables are printed all the same. */
static bool write_file(const lap_train_t *train, const lap_train_result_t *result,
                       const lap_trace_t *timeline)
{
    const context_t context = {train, result};
    char title[512];
    put_title(train, result, title, sizeof(title));
    const lap_trace_file_t file = {.path = train->trace_path,
                                   .report = train->report,
                                   .format = train->trace_format,
                                   .command = "lap train",
                                   .title = title,
                                   .measured = timeline,
                                   .simulated =
                                       result->simulated.nrecords ? &result->simulated : NULL,
                                   .place = put_place,
                                   .more = put_more,
                                   .context = &context};
    const lap_status_t status = lap_trace_file_write(&file);
    if (status != LAP_OK) {
        lap_ranks_warn(lap_train_command.name, 0, status);
        return false;
    }
    if (timeline->dropped > 0)
        lap_tell(lap_train_command.name,
                 "the trace lacks %zu records, for which a step has no room", timeline->dropped);
    return true;
}

/* False: it could not be, and that was reported. */
static bool add_simulated(const lap_train_result_t *result, lap_trace_t *timeline)
{
    if (result->simulated.dropped > 0)
        lap_tell(lap_train_command.name,
                 "the simulated trace lacks %zu records, for which a step has no room",
                 result->simulated.dropped);
    if (result->simulated.nrecords == 0 ||
        lap_trace_predict(timeline, &result->simulated) == LAP_OK)
        return true;
    lap_tell(lap_train_command.name, "no trace is written: %s", lap_last_error());
    return false;
}

static void report_not_written(const lap_train_t *train)
{
    const char *const paths[] = {train->trace_path, train->report};
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        if (paths[i])
            lap_tell(lap_train_command.name, "no iteration was traced: %s is not written",
                     paths[i]);
}

lap_status_t lap_train_write_trace(lap_train_model_t *model, const lap_train_result_t *result,
                                   int *end_p)
{
    const lap_train_t *train = model->train;
    lap_group_t *world = model->trainer.groups.world;
    lap_trace_t *timeline = &model->records;
    if (!writes_trace(train))
        return LAP_OK;
    timeline->emulated = result->link.bytes_per_s > 0 || result->link.latency_s > 0;
    LAP_TRY(lap_trace_gather(timeline, world));
    bool written = true;
    if (lap_group_rank(world) == 0 && timeline->nrecords == 0)
        report_not_written(train);
    else if (lap_group_rank(world) == 0)
        written = add_simulated(result, timeline) && write_file(train, result, timeline);
    LAP_TRY(lap_group_broadcast(world, &written, sizeof(written))); /* ranks end alike */
    if (!written && *end_p == LAP_CLI_OK)
        *end_p = LAP_CLI_FAILED;
    return LAP_OK;
}

/* ---- assertions ---- */

bool lap_train_is_hidden(const lap_train_t *train, const lap_train_result_t *result, bool speaks)
{
    const lap_train_iteration_t it = lap_train_typical(train, result);
    const lap_train_comm_t *all = &it.rows[LAP_TRAIN_ALL];
    if (isnan(train->least_hidden))
        return true;
    const bool known = it.traced && all->total > 0;
    const double percent = known ? 100 * all->hidden / all->total : 0;
    if (known && percent >= train->least_hidden)
        return true;
    if (speaks && known)
        lap_tell(lap_train_command.name,
                 "--assert-hidden %g: %.1f %% of communication was hidden, %.3f of %.3f ms",
                 train->least_hidden, percent, all->hidden * 1e3, all->total * 1e3);
    else if (speaks)
        lap_tell(lap_train_command.name, "--assert-hidden %g: no communication was traced",
                 train->least_hidden);
    return false;
}
