/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A schedule as a picture, before it has run: a column per rank and stream, a box per step, as high
 * up as its dependencies and signals allow; grey lines are dependencies, orange ones signals. Time
 * has no scale here: `lap bench --timeline` draws that.
 */
#include <stdio.h>

#include "core/output.h"
#include "show.h"
#include "util/alloc.h"

enum {
    LEFT = 16,
    TOP = 92,
    BOX_WIDTH = 176,
    BOX_HEIGHT = 30,
    COLUMN_STEP = 196,
    LEVEL_STEP = 50,
    RANK_GAP = 28,
};

/* The palette of the timeline. */
static const char *const colours[LAP_STEP_KINDS] = {
    [LAP_STEP_GEMM] = "#0072b2", [LAP_STEP_PUT] = "#e69f00",    [LAP_STEP_RAISE] = "#555555",
    [LAP_STEP_WAIT] = "#888888", [LAP_STEP_REDUCE] = "#009e73", [LAP_STEP_COPY] = "#cc79a7",
    [LAP_STEP_SUMS] = "#009e73", [LAP_STEP_KERNEL] = "#56b4e9", [LAP_STEP_CONSUME] = "#555555",
};

/* A raise of a word of a rank: by which step of which rank. */
typedef struct raise {
    int to, from;
    uint32_t signal, step;
} raise_t;

typedef struct drawing {
    FILE *file;
    const lap_show_t *show;
    uint32_t *first;  /* of each rank: the index of its first step among all */
    uint32_t *levels; /* per step of all ranks */
    uint32_t nsteps, nlevels;
    raise_t *raises;
    uint32_t nraises;
    int (*columns)[LAP_STREAMS]; /* x of each rank and stream; -1: not drawn */
    int width;
} drawing_t;

/* ---- who raises what ---- */

static void add_raise(drawing_t *drawing, int from, const lap_signal_t *signal, uint32_t step)
{
    if (drawing->raises && signal->word != LAP_NO_SIGNAL)
        drawing->raises[drawing->nraises] = (raise_t){signal->peer, from, signal->word, step};
    drawing->nraises += signal->word != LAP_NO_SIGNAL;
}

static void list_raises(drawing_t *drawing)
{
    drawing->nraises = 0;
    for (int rank = 0; rank < drawing->show->size; rank++) {
        const lap_schedule_t *schedule = &drawing->show->schedules[rank];
        for (uint32_t i = 0; i < schedule->nsteps; i++) {
            const lap_step_t *step = &schedule->steps[i];
            if (step->kind == LAP_STEP_PUT || step->kind == LAP_STEP_RAISE)
                add_raise(drawing, rank, &step->signal, i);
            for (uint32_t t = 0; t < step->ntiles; t++)
                add_raise(drawing, rank, &schedule->tiles[step->first_tile + t].raise, i);
        }
    }
}

/* The raise that a wait for `count` of them needs; NULL: there is none. */
static const raise_t *find_raise(const drawing_t *drawing, int rank, uint32_t signal,
                                 uint32_t count)
{
    for (uint32_t i = 0; i < drawing->nraises; i++) {
        const raise_t *raise = &drawing->raises[i];
        if (raise->to == rank && raise->signal == signal && --count == 0)
            return raise;
    }
    return NULL;
}

/* ---- levels ---- */

typedef void (*edge_fn_t)(drawing_t *drawing, int from_rank, uint32_t from, int rank, uint32_t step,
                          bool signal);

static void wait_edge(drawing_t *drawing, int rank, uint32_t step, const lap_signal_t *signal,
                      edge_fn_t edge)
{
    const raise_t *raise = signal->word == LAP_NO_SIGNAL
                               ? NULL
                               : find_raise(drawing, rank, signal->word, signal->count);
    if (raise)
        edge(drawing, raise->from, raise->step, rank, step, true);
}

/* Calls `edge` for each step that a step comes after, but for the one before it on its stream. */
static void for_edges(drawing_t *drawing, int rank, uint32_t index, edge_fn_t edge)
{
    const lap_schedule_t *schedule = &drawing->show->schedules[rank];
    const lap_step_t *step = &schedule->steps[index];
    for (uint16_t d = 0; d < step->ndeps; d++)
        edge(drawing, rank, lap_step_dep(schedule, step, d), rank, index, false);
    if (step->kind == LAP_STEP_WAIT)
        wait_edge(drawing, rank, index, &step->signal, edge);
    for (uint32_t t = 0; t < step->ntiles; t++)
        wait_edge(drawing, rank, index, &schedule->tiles[step->first_tile + t].wait, edge);
}

static uint32_t *level_of(const drawing_t *drawing, int rank, uint32_t step)
{
    return &drawing->levels[drawing->first[rank] + step];
}

static void raise_level(drawing_t *drawing, int from_rank, uint32_t from, int rank, uint32_t step,
                        bool signal)
{
    (void)signal;
    const uint32_t least = *level_of(drawing, from_rank, from) + 1;
    uint32_t *level = level_of(drawing, rank, step);
    if (*level < least)
        *level = least;
}

/* The longest way to each step; as many rounds as there are steps are enough, but for a deadlock. */
static void find_levels(drawing_t *drawing)
{
    bool changed = true;
    for (uint32_t round = 0; changed && round < drawing->nsteps; round++) {
        changed = false;
        for (int rank = 0; rank < drawing->show->size; rank++) {
            uint32_t next[LAP_STREAMS] = {0};
            const lap_schedule_t *schedule = &drawing->show->schedules[rank];
            for (uint32_t i = 0; i < schedule->nsteps; i++) {
                uint32_t *level = level_of(drawing, rank, i), before = *level;
                const uint16_t stream = schedule->steps[i].stream;
                *level = *level < next[stream] ? next[stream] : *level;
                for_edges(drawing, rank, i, raise_level);
                next[stream] = *level + 1;
                changed = changed || *level != before;
                drawing->nlevels = drawing->nlevels > *level + 1 ? drawing->nlevels : *level + 1;
            }
        }
    }
}

/* ---- drawing ---- */

static void place_columns(drawing_t *drawing)
{
    int x = LEFT;
    for (int rank = 0; rank < drawing->show->size; rank++) {
        const lap_schedule_t *schedule = &drawing->show->schedules[rank];
        bool used[LAP_STREAMS] = {false};
        for (uint32_t i = 0; i < schedule->nsteps; i++)
            used[schedule->steps[i].stream] = true;
        for (int s = 0; s < LAP_STREAMS; s++) {
            drawing->columns[rank][s] = used[s] && lap_show_has(drawing->show, rank) ? x : -1;
            x += drawing->columns[rank][s] >= 0 ? COLUMN_STEP : 0;
        }
        x += lap_show_has(drawing->show, rank) ? RANK_GAP : 0;
    }
    drawing->width = x - RANK_GAP < 480 ? 480 : x - RANK_GAP;
}

static int x_of(const drawing_t *drawing, int rank, uint32_t step)
{
    return drawing->columns[rank][drawing->show->schedules[rank].steps[step].stream];
}

static int y_of(const drawing_t *drawing, int rank, uint32_t step)
{
    return TOP + (int)*level_of(drawing, rank, step) * LEVEL_STEP;
}

static void draw_edge(drawing_t *drawing, int from_rank, uint32_t from, int rank, uint32_t step,
                      bool signal)
{
    const int x1 = x_of(drawing, from_rank, from), x2 = x_of(drawing, rank, step);
    if (x1 < 0 || x2 < 0)
        return;
    fprintf(drawing->file,
            "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"%s\" stroke-width=\"%s\" "
            "marker-end=\"url(#%s)\"/>\n",
            x1 + BOX_WIDTH / 2, y_of(drawing, from_rank, from) + BOX_HEIGHT, x2 + BOX_WIDTH / 2,
            y_of(drawing, rank, step), signal ? "#e69f00" : "#999999", signal ? "2" : "1.2",
            signal ? "signal" : "dep");
}

/* What fits into a box. */
static void label_step(const lap_schedule_t *schedule, const lap_step_t *step, char *text,
                       size_t bytes)
{
    char name[32] = "";
    uint32_t nsources;
    const lap_range_t *a = &lap_step_uses(schedule, step, LAP_ROLE_A, &nsources)->range;
    if (step->kind == LAP_STEP_PUT || step->kind == LAP_STEP_RAISE || step->kind == LAP_STEP_WAIT)
        if (step->signal.word != LAP_NO_SIGNAL)
            lap_signal_name(schedule->size, step->signal.word, name, sizeof(name));
    switch (step->kind) {
    case LAP_STEP_PUT:
        snprintf(text, bytes, "%zu rows to rank %d", a->rows, step->signal.peer);
        break;
    case LAP_STEP_RAISE:
        snprintf(text, bytes, "%s at rank %d", name, step->signal.peer);
        break;
    case LAP_STEP_WAIT:
        snprintf(text, bytes, "%s", name);
        break;
    case LAP_STEP_GEMM:
        snprintf(text, bytes, "%u block%s", (unsigned)step->ntiles, step->ntiles == 1 ? "" : "s");
        break;
    case LAP_STEP_REDUCE:
        snprintf(text, bytes, "%u ranges", (unsigned)nsources);
        break;
    case LAP_STEP_KERNEL:
        snprintf(text, bytes, "%s", step->name);
        break;
    default:
        snprintf(text, bytes, "%zu rows", a->rows);
        break;
    }
}

/* The whole sentence is the tooltip. */
static void draw_box(drawing_t *drawing, int rank, uint32_t index)
{
    const lap_schedule_t *schedule = &drawing->show->schedules[rank];
    const lap_step_t *step = &schedule->steps[index];
    const int x = x_of(drawing, rank, index), y = y_of(drawing, rank, index);
    char label[64], text[LAP_SHOW_TEXT];
    const char *colour = colours[step->kind] ? colours[step->kind] : "#444444";
    const char *ink = step->kind == LAP_STEP_PUT ? "#000" : "#fff"; /* legible on orange */
    label_step(schedule, step, label, sizeof(label));
    lap_show_step(&(lap_show_view_t){.schedule = schedule}, step, text);
    fprintf(drawing->file, "<g><title>rank %d step %u %s ", rank, (unsigned)index,
            lap_step_kind_name(step->kind));
    for (const char *at = text; *at; at++)
        fputs(*at == '>' ? "&gt;" : (char[]){*at, '\0'}, drawing->file);
    fprintf(drawing->file,
            "</title><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"3\" fill=\"%s\"/>"
            "<text x=\"%d\" y=\"%d\" fill=\"%s\"><tspan font-weight=\"bold\">%u %s</tspan> "
            "%s</text></g>\n",
            x, y, BOX_WIDTH, BOX_HEIGHT, colour, x + 6, y + BOX_HEIGHT / 2 + 4, ink,
            (unsigned)index, lap_step_kind_name(step->kind), label);
}

static void draw_rank(drawing_t *drawing, int rank, bool boxes)
{
    const lap_schedule_t *schedule = &drawing->show->schedules[rank];
    for (uint32_t i = 0; i < schedule->nsteps && lap_show_has(drawing->show, rank); i++)
        if (boxes)
            draw_box(drawing, rank, i);
        else
            for_edges(drawing, rank, i, draw_edge);
    for (int s = 0; s < LAP_STREAMS && boxes; s++)
        if (drawing->columns[rank][s] >= 0)
            fprintf(drawing->file, "<text x=\"%d\" y=\"%d\" fill=\"#333\">rank %d %s</text>\n",
                    drawing->columns[rank][s], TOP - 12, rank, lap_stream_name((uint16_t)s));
}

static void draw_marker(FILE *file, const char *id, const char *colour)
{
    fprintf(file,
            "<marker id=\"%s\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"8\" "
            "markerHeight=\"8\" markerUnits=\"userSpaceOnUse\" orient=\"auto\"><path "
            "d=\"M0 0L8 4L0 8z\" fill=\"%s\"/></marker>",
            id, colour);
}

static void draw(drawing_t *drawing)
{
    const lap_show_t *show = drawing->show;
    const int height = TOP + (int)drawing->nlevels * LEVEL_STEP + LEFT;
    fprintf(drawing->file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\">\n<defs>",
            drawing->width, height, drawing->width, height);
    draw_marker(drawing->file, "dep", "#999999");
    draw_marker(drawing->file, "signal", "#e69f00");
    fprintf(drawing->file,
            "</defs>\n<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n"
            "<text x=\"%d\" y=\"26\" font-size=\"15\">%s %s, %d rank%s, target %s, %s%s</text>\n"
            "<text x=\"%d\" y=\"48\" fill=\"#555\">grey: a dependency; orange: a signal. Steps of "
            "a column run in order.</text>\n",
            drawing->width, height, LEFT, lap_op_kind_name(show->desc->kind), show->label,
            show->size, show->size == 1 ? "" : "s", show->target->name,
            show->pass ? "after pass " : "as built", show->pass ? show->pass->name : "", LEFT);
    for (int boxes = 0; boxes < 2; boxes++)
        for (int rank = 0; rank < show->size; rank++)
            draw_rank(drawing, rank, boxes);
    fprintf(drawing->file, "</svg>\n");
}

static void lay_out(drawing_t *drawing)
{
    const lap_show_t *show = drawing->show;
    drawing->first = lap_alloc((size_t)show->size, sizeof(*drawing->first));
    drawing->columns = lap_alloc((size_t)show->size, sizeof(*drawing->columns));
    for (int rank = 0; rank < show->size && drawing->first; rank++) {
        drawing->first[rank] = drawing->nsteps;
        drawing->nsteps += show->schedules[rank].nsteps;
    }
    list_raises(drawing);
    drawing->raises = lap_alloc(drawing->nraises, sizeof(*drawing->raises));
    drawing->levels = lap_alloc(drawing->nsteps, sizeof(*drawing->levels));
    if (!drawing->first || !drawing->columns || !drawing->raises || !drawing->levels)
        return;
    list_raises(drawing);
    find_levels(drawing);
    place_columns(drawing);
}

lap_status_t lap_show_svg(const lap_show_t *show, const char *path)
{
    lap_output_t output;
    LAP_TRY(lap_output_open("the picture", path, &output));
    drawing_t drawing = {.file = output.file, .show = show};
    lay_out(&drawing);
    const bool room = drawing.first && drawing.columns && drawing.raises && drawing.levels;
    if (room)
        draw(&drawing);
    lap_free(drawing.first);
    lap_free(drawing.columns);
    lap_free(drawing.raises);
    lap_free(drawing.levels);
    return lap_output_close(
        &output, room ? LAP_OK : lap_error(LAP_ERR_NO_MEMORY, "no memory for the picture"));
}
