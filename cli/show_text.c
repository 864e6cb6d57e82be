/* SPDX-License-Identifier: Apache-2.0 */
/* A schedule as text that a person can follow, and as JSON. */
#include <stdio.h>
#include <string.h>

#include "about.h"
#include "cli.h"
#include "overlap/op.h"
#include "show.h"

/* ---- words ---- */

static const char *name_place(const lap_show_view_t *view, lap_place_t place)
{
    const uint32_t region = view->linked ? view->fragment->places[place].region : LAP_NO_REGION;
    return region == LAP_NO_REGION || place == LAP_SCRATCH ? lap_place_name(place)
                                                           : view->linked->regions[region].name;
}

/* Columns are in bytes where a range has not whole rows. */
static void describe_range(const lap_show_view_t *view, const lap_range_t *range,
                           char text[LAP_SHOW_RANGE])
{
    const lap_schedule_t *schedule = view->schedule;
    char columns[64] = "", rank[32] = "";
    const size_t first = range->stride ? range->offset / range->stride : 0;
    const size_t column = range->stride ? range->offset % range->stride : 0;
    if (range->rows == 0 || range->row_bytes == 0) {
        snprintf(text, LAP_SHOW_RANGE, "nothing");
        return;
    }
    if (range->row_bytes < range->stride && range->rows > 1)
        snprintf(columns, sizeof(columns), ", bytes %zu..%zu of each", column,
                 column + range->row_bytes - 1);
    if (range->place == LAP_SYMMETRIC && range->rank != schedule->rank)
        snprintf(rank, sizeof(rank), " of rank %d", range->rank);
    snprintf(text, LAP_SHOW_RANGE, "%s%s rows %zu..%zu%s", name_place(view, range->place), rank,
             first, first + range->rows - 1, columns);
}

static void name_signal(const lap_schedule_t *schedule, uint32_t signal, char text[32])
{
    lap_signal_name(schedule->size, signal, text, 32);
}

static void describe_tile(const lap_show_view_t *view, const lap_tile_t *tile,
                          char text[LAP_SHOW_TEXT])
{
    const lap_schedule_t *schedule = view->schedule;
    char a[LAP_SHOW_RANGE], d[LAP_SHOW_RANGE], name[32];
    char wait[96] = "", raise[96] = "";
    describe_range(view, lap_tile_range(schedule, tile, LAP_ROLE_A), a);
    describe_range(view, lap_tile_range(schedule, tile, LAP_ROLE_D), d);
    if (tile->wait.word != LAP_NO_SIGNAL) {
        name_signal(schedule, tile->wait.word, name);
        snprintf(wait, sizeof(wait), ", after %s has come %u time%s", name,
                 (unsigned)tile->wait.count, tile->wait.count == 1 ? "" : "s");
    }
    if (tile->raise.word != LAP_NO_SIGNAL) {
        name_signal(schedule, tile->raise.word, name);
        snprintf(raise, sizeof(raise), "; raises %s of rank %d", name, tile->raise.peer);
    }
    snprintf(text, LAP_SHOW_TEXT, "%s -> %s%s%s", a, d, wait, raise);
}

static void describe_put(const lap_show_view_t *view, const lap_step_t *step,
                         char text[LAP_SHOW_TEXT])
{
    const lap_schedule_t *schedule = view->schedule;
    char src[LAP_SHOW_RANGE], dst[LAP_SHOW_RANGE], name[32], raise[64] = "";
    describe_range(view, lap_step_range(schedule, step, LAP_ROLE_A), src);
    describe_range(view, lap_step_range(schedule, step, LAP_ROLE_D), dst);
    if (step->signal.word != LAP_NO_SIGNAL) {
        name_signal(schedule, step->signal.word, name);
        snprintf(raise, sizeof(raise), "; raises %s of rank %d", name, step->signal.peer);
    }
    snprintf(text, LAP_SHOW_TEXT, "%s -> %s%s", src, dst, raise);
}

void lap_show_step(const lap_show_view_t *view, const lap_step_t *step, char text[LAP_SHOW_TEXT])
{
    const lap_schedule_t *schedule = view->schedule;
    char src[LAP_SHOW_RANGE], dst[LAP_SHOW_RANGE], name[32];
    uint32_t nsources;
    (void)lap_step_uses(schedule, step, LAP_ROLE_A, &nsources);
    const lap_role_t read = step->kind == LAP_STEP_GEMM ? LAP_ROLE_B : LAP_ROLE_A;
    describe_range(view, lap_step_range(schedule, step, read), src);
    describe_range(view, lap_step_range(schedule, step, LAP_ROLE_D), dst);
    name_signal(schedule, step->signal.word, name);
    switch (step->kind) {
    case LAP_STEP_GEMM:
        snprintf(text, LAP_SHOW_TEXT, "%s, %u block%s%s", src, (unsigned)step->ntiles,
                 step->ntiles == 1 ? "" : "s", step->any_order ? " in any order" : "");
        break;
    case LAP_STEP_PUT:
        describe_put(view, step, text);
        break;
    case LAP_STEP_RAISE:
        snprintf(text, LAP_SHOW_TEXT, "%s of rank %d", name, step->signal.peer);
        break;
    case LAP_STEP_WAIT:
        snprintf(text, LAP_SHOW_TEXT, "until rank %d has raised %s %u time%s", step->signal.peer,
                 name, (unsigned)step->signal.count, step->signal.count == 1 ? "" : "s");
        break;
    case LAP_STEP_REDUCE:
        snprintf(text, LAP_SHOW_TEXT, "sum of %u ranges -> %s", (unsigned)nsources, dst);
        break;
    case LAP_STEP_COPY:
        snprintf(text, LAP_SHOW_TEXT, "%s -> %s", src, dst);
        break;
    case LAP_STEP_SUMS:
        snprintf(text, LAP_SHOW_TEXT, "columns of %s -> bias_grad", src);
        break;
    case LAP_STEP_KERNEL:
        snprintf(text, LAP_SHOW_TEXT, "%s", step->name);
        break;
    case LAP_STEP_CONSUME:
        snprintf(text, LAP_SHOW_TEXT, "the signals of the call");
        break;
    default:
        snprintf(text, LAP_SHOW_TEXT, "%s", "");
        break;
    }
}

/* ---- the table ---- */

void lap_show_print_step(const lap_show_view_t *view, uint32_t index, int indent, const char *links)
{
    const lap_schedule_t *schedule = view->schedule;
    const lap_step_t *step = &schedule->steps[index];
    const int inside = indent + (view->spans ? 46 : 25); /* under the ranges of the step */
    char text[LAP_SHOW_TEXT], range[LAP_SHOW_RANGE];
    lap_show_step(view, step, text);
    printf("%*s%5u  ", indent, "", (unsigned)index);
    if (view->spans)
        printf("%9.1f %9.1f  ", view->spans[index].begin * 1e6, view->spans[index].end * 1e6);
    printf("%-8s  %-7s %s", lap_stream_name(step->stream), lap_step_kind_name(step->kind), text);
    for (uint16_t d = 0; d < step->ndeps; d++)
        printf("%s%u", d ? ", " : "   [after step ", (unsigned)lap_step_dep(schedule, step, d));
    printf("%s%s\n", step->ndeps ? "]" : "", links);
    for (uint32_t t = 0; t < step->ntiles; t++) {
        describe_tile(view, &schedule->tiles[step->first_tile + t], text);
        printf("%*s%s\n", inside, "", text);
    }
    uint32_t nsources;
    const lap_use_t *sources = lap_step_uses(schedule, step, LAP_ROLE_A, &nsources);
    for (uint32_t i = 0; step->kind == LAP_STEP_REDUCE && i < nsources; i++) {
        describe_range(view, &sources[i].range, range);
        printf("%*s%s %s\n", inside, "", i ? "+" : " ", range);
    }
}

/* A rank as it is shown. */
static lap_show_view_t view_of(const lap_show_t *show, int rank)
{
    const lap_show_prediction_t *prediction = &show->prediction;
    return (lap_show_view_t){
        .schedule = &show->schedules[rank],
        .spans = prediction->spans ? prediction->spans + (size_t)rank * prediction->stride : NULL};
}

static void print_rank(const lap_show_t *show, int rank)
{
    const lap_show_view_t view = view_of(show, rank);
    const lap_schedule_t *schedule = view.schedule;
    char name[32];
    printf("rank %d: %u steps; symmetric memory %zu bytes, scratch %zu bytes\n", rank,
           (unsigned)schedule->nsteps, schedule->symmetric_bytes, schedule->scratch_bytes);
    printf(" step  %sstream    kind\n", view.spans ? " begin us    end us  " : "");
    for (uint32_t i = 0; i < schedule->nsteps; i++)
        lap_show_print_step(&view, i, 0, "");
    bool any = false;
    for (uint32_t s = 0; s < schedule->nsignals; s++) {
        if (schedule->raised[s] == 0)
            continue;
        name_signal(schedule, s, name);
        printf("%s%s %u", any ? ", " : " signals that peers raise here: ", name,
               (unsigned)schedule->raised[s]);
        any = true;
    }
    printf("%s", any ? "\n" : "");
}

void lap_show_print(const lap_show_t *show)
{
    const lap_op_desc_t *desc = show->desc;
    printf("%s, method %s, M N K = %zu %zu %zu, %d rank%s, target %s: %s%s%s\n",
           lap_kind_words[desc->kind].title, show->label, desc->m, desc->n, desc->k, show->size,
           show->size == 1 ? "" : "s", show->target->name, show->pass ? "after pass " : "as built",
           show->pass ? show->pass->name : "",
           show->pass && !show->pass->applies(show->target) ? " (which this target does not need)"
                                                            : "");
    if (show->pass)
        printf("%s: %s\n", show->pass->name, show->pass->summary);
    if (show->prediction.machine)
        printf("predicted on %s: %.1f us\n", show->prediction.machine,
               show->prediction.seconds * 1e6);
    for (int rank = 0; rank < show->size; rank++)
        if (lap_show_has(show, rank)) {
            printf("\n");
            print_rank(show, rank);
        }
}

/* ---- JSON ---- */

static void json_range(lap_json_t *json, const char *key, const lap_range_t *range)
{
    if (key && range->rows == 0)
        return;
    if (key)
        lap_json_put(json, "%s:", key);
    lap_json_put(json, "{place:%s rank:%d offset:%zu rows:%zu row_bytes:%zu stride:%zu}",
                 lap_place_name(range->place), range->rank, range->offset, range->rows,
                 range->row_bytes, range->stride);
}

static void json_uses(lap_json_t *json, const char *key, const lap_use_t *uses, uint32_t count)
{
    lap_json_put(json, "%s:[", key);
    for (uint32_t i = 0; i < count; i++)
        json_range(json, NULL, &uses[i].range);
    lap_json_put(json, "]");
}

static void json_signal(lap_json_t *json, const lap_schedule_t *schedule, const char *key,
                        uint32_t signal)
{
    char name[32];
    if (signal == LAP_NO_SIGNAL)
        return;
    name_signal(schedule, signal, name);
    lap_json_put(json, "%s:%s", key, name);
}

static void json_tile(lap_json_t *json, const lap_schedule_t *schedule, const lap_tile_t *tile)
{
    const lap_range_t *d = lap_tile_range(schedule, tile, LAP_ROLE_D);
    lap_json_put(json, "{rows:%zu", d->rows);
    json_range(json, "a", lap_tile_range(schedule, tile, LAP_ROLE_A));
    json_range(json, "d", d);
    json_range(json, "scale", lap_tile_range(schedule, tile, LAP_ROLE_SCALE));
    json_signal(json, schedule, "wait", tile->wait.word);
    if (tile->wait.word != LAP_NO_SIGNAL)
        lap_json_put(json, "wait_peer:%d wait_count:%u", tile->wait.peer, tile->wait.count);
    json_signal(json, schedule, "raise", tile->raise.word);
    if (tile->raise.word != LAP_NO_SIGNAL)
        lap_json_put(json, "raise_peer:%d", tile->raise.peer);
    lap_json_put(json, "}");
}

/* What a sum is of, in its order. */
static void json_sum(lap_json_t *json, const lap_schedule_t *schedule, const lap_step_t *step)
{
    uint32_t count, nscales, one;
    const lap_use_t *sources = lap_step_uses(schedule, step, LAP_ROLE_A, &count);
    const lap_use_t *scales = lap_step_uses(schedule, step, LAP_ROLE_SCALE, &nscales);
    const lap_use_t *d = lap_step_uses(schedule, step, LAP_ROLE_D, &one);
    lap_json_put(json, "from:%s to:%s", lap_dtype_name(sources->dtype), lap_dtype_name(d->dtype));
    json_uses(json, "sources", sources, count);
    if (nscales > 0)
        json_uses(json, "scales", scales, nscales);
}

static void json_step(lap_json_t *json, const lap_show_view_t *view, uint32_t index)
{
    const lap_schedule_t *schedule = view->schedule;
    const lap_step_t *step = &schedule->steps[index];
    lap_json_put(json, "{step:%u kind:%s stream:%s after:[", index, lap_step_kind_name(step->kind),
                 lap_stream_name(step->stream));
    for (uint16_t d = 0; d < step->ndeps; d++)
        lap_json_put(json, "%u", lap_step_dep(schedule, step, d));
    lap_json_put(json, "]");
    if (view->spans)
        lap_json_put(json, "begin_us:%.17g end_us:%.17g", view->spans[index].begin * 1e6,
                     view->spans[index].end * 1e6);
    if (step->kind == LAP_STEP_PUT || step->kind == LAP_STEP_RAISE || step->kind == LAP_STEP_WAIT) {
        lap_json_put(json, "peer:%d", step->signal.peer);
        json_signal(json, schedule, "signal", step->signal.word);
    }
    if (step->kind == LAP_STEP_WAIT)
        lap_json_put(json, "count:%u", step->signal.count);
    if (step->kind == LAP_STEP_RAISE)
        lap_json_put(json, "bytes:%zu", step->signal.bytes);
    if (step->kind == LAP_STEP_KERNEL)
        lap_json_put(json, "name:%s", step->name);
    lap_json_put(json, "any_order:%i together:%i", step->any_order, step->together);
    const bool sums = step->kind == LAP_STEP_REDUCE;
    json_range(json, "b", lap_step_range(schedule, step, LAP_ROLE_B));
    if (!sums)
        json_range(json, "src", lap_step_range(schedule, step, LAP_ROLE_A));
    json_range(json, "dst", lap_step_range(schedule, step, LAP_ROLE_D));
    if (sums)
        json_sum(json, schedule, step);
    if (step->ntiles > 0) {
        lap_json_put(json, "blocks:[");
        for (uint32_t t = 0; t < step->ntiles; t++)
            json_tile(json, schedule, &schedule->tiles[step->first_tile + t]);
        lap_json_put(json, "]");
    }
    lap_json_put(json, "}");
}

void lap_show_json_steps(lap_json_t *json, const lap_show_view_t *view)
{
    lap_json_put(json, "steps:[");
    for (uint32_t i = 0; i < view->schedule->nsteps; i++)
        json_step(json, view, i);
    lap_json_put(json, "]");
}

void lap_show_json_call(lap_json_t *json, const lap_schedule_t *schedule)
{
    const lap_types_t *types = &schedule->types;
    lap_json_put(json,
                 "kind:%s rows:%zu layout:%d epilogue:%d graph:%i types:[%s %s %s %s %s] raised:{",
                 lap_op_kind_name(schedule->kind), schedule->m, (int)schedule->layout,
                 (int)schedule->epilogue, schedule->graph, lap_dtype_name(types->a),
                 lap_dtype_name(types->b), lap_dtype_name(types->out), lap_dtype_name(types->wire),
                 lap_dtype_name(types->y));
    for (uint32_t s = 0; s < schedule->nsignals; s++) {
        char name[32];
        if (schedule->raised[s] == 0)
            continue;
        name_signal(schedule, s, name);
        lap_json_put(json, "%s:%u", name, schedule->raised[s]);
    }
    lap_json_put(json, "}");
    json_range(json, "output", &schedule->output);
    json_range(json, "gathered", &schedule->gathered);
    json_range(json, "gathered_scales", &schedule->scales);
}

/* The matrices of a rank that ranges of places are parts of: packed. */
static void json_tensors(lap_json_t *json, const lap_show_t *show, int rank)
{
    lap_problem_t problem = *show->problem;
    lap_op_args_t args = LAP_OP_ARGS_INIT;
    lap_tensor_t *tensors[LAP_ARGS_TENSORS];
    const struct {
        lap_place_t place;
        const lap_tensor_t *tensor;
    } places[] = {{LAP_INPUT, &args.a},  {LAP_WEIGHT, &args.b},          {LAP_MOVED, &args.x},
                  {LAP_OUTPUT, &args.d}, {LAP_GATHERED, &args.gathered}, {LAP_GATHERED, &args.y}};
    problem.rank = rank;
    args.m = problem.m;
    const size_t count = lap_args_shape(&problem, &args, tensors);
    lap_json_put(json, "tensors:{");
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < sizeof(places) / sizeof(places[0]); j++) {
            if (tensors[i] != places[j].tensor)
                continue;
            lap_json_put(json, "%s:{dtype:%s rows:%zu cols:%zu}", lap_place_name(places[j].place),
                         lap_dtype_name(tensors[i]->dtype), tensors[i]->rows, tensors[i]->cols);
        }
    lap_json_put(json, "}");
}

void lap_show_json(const lap_show_t *show)
{
    const lap_op_desc_t *desc = show->desc;
    lap_json_t json = {.file = stdout};
    lap_json_put(&json, "{op:%s method:%s m:%zu n:%zu k:%zu ranks:%d target:%s after:%s",
                 lap_kind_words[desc->kind].word, show->label, desc->m, desc->n, desc->k,
                 show->size, show->target->name, lap_show_stage(show));
    if (show->prediction.machine)
        lap_json_put(&json, "machine:%s predicted_us:%.17g", show->prediction.machine,
                     show->prediction.seconds * 1e6);
    lap_json_put(&json, "programs:[");
    for (int rank = 0; rank < show->size; rank++) {
        const lap_show_view_t view = view_of(show, rank);
        const lap_schedule_t *schedule = view.schedule;
        if (!lap_show_has(show, rank))
            continue;
        lap_json_put(&json, "{rank:%d symmetric_bytes:%zu scratch_bytes:%zu", rank,
                     schedule->symmetric_bytes, schedule->scratch_bytes);
        lap_show_json_call(&json, schedule);
        json_tensors(&json, show, rank);
        lap_show_json_steps(&json, &view);
        lap_json_put(&json, "}");
    }
    lap_json_put(&json, "]");
    lap_about_json(&json, "cpu");
    lap_json_put(&json, "}");
}
