/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program of a pass as a picture: a row for each fragment, from top to bottom. On the left are
 * its steps by stream, with arrows for links; on the right the memory of activations, from left to
 * right as it is laid out, each as long as it lives.
 */
#include <stdio.h>
#include <string.h>

#include "core/output.h"
#include "show_train.h"

enum {
    LEFT = 16,
    TOP = 104,
    ROW = 26,
    BOX = 20,
    LABEL = 300,
    COLUMN = 208,
    BOX_WIDTH = 164,
    MEMORY = 460,
    GAP = 28,
    LETTER = 7, /* the width of one, about */
};

typedef struct drawing {
    FILE *file;
    const lap_show_train_t *show;
    int columns[LAP_STREAMS]; /* x; -1: the stream is not used */
    int memory;               /* x of the memory */
    int width, height;
} drawing_t;

static int y_of(uint32_t fragment)
{
    return TOP + (int)fragment * ROW;
}

static void place_columns(drawing_t *drawing)
{
    const lap_linked_t *linked = drawing->show->linked;
    bool used[LAP_STREAMS] = {false};
    int x = LEFT + LABEL;
    for (uint32_t f = 0; f < linked->nfragments; f++)
        for (uint32_t i = 0; i < linked->fragments[f].schedule.nsteps; i++)
            used[linked->fragments[f].schedule.steps[i].stream] = true;
    for (int s = 0; s < LAP_STREAMS; s++) {
        drawing->columns[s] = used[s] ? x : -1;
        x += used[s] ? COLUMN : 0;
    }
    drawing->memory = x + GAP;
    drawing->width = drawing->memory + MEMORY + LEFT;
    drawing->height = y_of(linked->nfragments) + LEFT;
}

/* ---- rows ---- */

/* "2 PUT, 1 RAISE": what a fragment does on a stream; empty: nothing. */
static void label_box(const lap_schedule_t *schedule, int stream, char *text, size_t bytes)
{
    uint32_t counts[LAP_STEP_KINDS] = {0};
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < schedule->nsteps; i++)
        if (schedule->steps[i].stream == stream)
            counts[schedule->steps[i].kind]++;
    for (int kind = 0; kind < LAP_STEP_KINDS && used < bytes; kind++) {
        if (counts[kind] == 0 || kind == LAP_STEP_CONSUME) /* that is bookkeeping */
            continue;
        used += (size_t)(kind == LAP_STEP_KERNEL
                             ? snprintf(text + used, bytes - used, "%s", schedule->steps[0].name)
                             : snprintf(text + used, bytes - used, "%s%u %s", used ? ", " : "",
                                        (unsigned)counts[kind],
                                        lap_step_kind_name((lap_step_kind_t)kind)));
    }
}

static void draw_box(drawing_t *drawing, uint32_t f, int stream)
{
    static const char *const colours[LAP_STREAM_KINDS] = {"#0072b2", "#e69f00", "#777777",
                                                          "#3a5fa0"};
    const lap_fragment_t *fragment = &drawing->show->linked->fragments[f];
    const bool kernel = lap_schedule_is_kernel(&fragment->schedule);
    char text[128], shown[32];
    label_box(&fragment->schedule, stream, text, sizeof(text));
    if (text[0] == '\0')
        return;
    snprintf(shown, sizeof(shown), "%.*s%s", BOX_WIDTH / LETTER, text,
             strlen(text) > BOX_WIDTH / LETTER ? ".." : "");
    fprintf(drawing->file,
            "<g class=\"box\"><title>fragment %u, %s: %s</title><rect x=\"%d\" y=\"%d\" "
            "width=\"%d\" height=\"%d\" rx=\"3\" fill=\"%s\"/><text x=\"%d\" y=\"%d\" "
            "fill=\"%s\">%s</text></g>\n",
            (unsigned)f, lap_stream_name((uint16_t)stream), text, drawing->columns[stream],
            y_of(f) + (ROW - BOX) / 2, BOX_WIDTH, BOX,
            kernel ? "#56b4e9" : colours[stream % LAP_STREAM_KINDS], drawing->columns[stream] + 6,
            y_of(f) + ROW / 2 + 4,
            kernel || stream % LAP_STREAM_KINDS == LAP_STREAM_SEND ? "#000" : "#fff", shown);
}

static void draw_row(drawing_t *drawing, uint32_t f)
{
    const lap_show_train_t *show = drawing->show;
    const int y = y_of(f);
    char does[LAP_SHOW_NAME], name[LAP_SHOW_NAME], layer[24] = "";
    lap_show_does(show, f, does);
    lap_show_name(show, f, name);
    if (show->train->desc.layers > 1 && lap_show_layer(show, f) >= 0)
        snprintf(layer, sizeof(layer), "%ld: ", lap_show_layer(show, f));
    if (f % 2 == 0)
        fprintf(drawing->file,
                "<rect x=\"0\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#f5f5f5\"/>\n", y,
                drawing->width, ROW);
    if (f == 0 || lap_show_part(show, f) != lap_show_part(show, f - 1))
        fprintf(drawing->file,
                "<line x1=\"0\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"#333\"/><text x=\"%d\" "
                "y=\"%d\" fill=\"#333\" text-anchor=\"end\" font-style=\"italic\">%s</text>\n",
                y, drawing->width, y, LEFT + LABEL - 8, y + ROW / 2 + 4, lap_show_part(show, f));
    fprintf(drawing->file,
            "<text x=\"%d\" y=\"%d\" fill=\"#333\" text-anchor=\"end\">%u</text><text x=\"%d\" "
            "y=\"%d\" fill=\"#333\">%s<tspan font-weight=\"bold\">%s</tspan> %s</text>\n",
            LEFT + 28, y + ROW / 2 + 4, (unsigned)f, LEFT + 36, y + ROW / 2 + 4, layer, name,
            lap_schedule_is_kernel(&show->linked->fragments[f].schedule) ? "" : does);
}

/* ---- links ---- */

/* From the box of the step that is waited for to that of the one that waits. */
static void draw_link(drawing_t *drawing, uint32_t f, const lap_link_dep_t *link)
{
    const lap_linked_t *linked = drawing->show->linked;
    const int from =
        drawing->columns[linked->fragments[link->fragment].schedule.steps[link->dep].stream];
    const int to = drawing->columns[linked->fragments[f].schedule.steps[link->step].stream];
    const int side = from < to ? BOX_WIDTH : 0;
    const int x1 = from + side, y1 = y_of(link->fragment) + ROW / 2;
    const int x2 = to + BOX_WIDTH - side, y2 = y_of(f) + ROW / 2, middle = (x1 + x2) / 2;
    char why[LAP_SHOW_RANGE];
    lap_show_why(drawing->show, f, link, why);
    fprintf(drawing->file,
            "<path class=\"link\" d=\"M%d %dC%d %d %d %d %d %d\" fill=\"none\" stroke=\"#d55e00\" "
            "stroke-opacity=\"0.75\" marker-end=\"url(#link)\"><title>fragment %u step %u after "
            "fragment %u step %u, %s</title></path>\n",
            x1, y1, middle, y1, middle, y2, x2, y2, (unsigned)f, (unsigned)link->step,
            (unsigned)link->fragment, (unsigned)link->dep, why);
}

/* Of several links between the same two columns from one fragment the first is drawn. */
static void draw_links(drawing_t *drawing, uint32_t f)
{
    const lap_linked_t *linked = drawing->show->linked;
    const lap_fragment_t *fragment = &linked->fragments[f];
    for (uint32_t i = 0; i < fragment->nlinks; i++) {
        const lap_link_dep_t *link = &fragment->links[i];
        bool drawn = false;
        for (uint32_t j = 0; j < i && !drawn; j++) {
            const lap_link_dep_t *other = &fragment->links[j];
            const lap_schedule_t *before = &linked->fragments[link->fragment].schedule;
            drawn = other->fragment == link->fragment &&
                    before->steps[other->dep].stream == before->steps[link->dep].stream &&
                    fragment->schedule.steps[other->step].stream ==
                        fragment->schedule.steps[link->step].stream;
        }
        if (!drawn)
            draw_link(drawing, f, link);
    }
}

/* ---- memory ---- */

static void draw_lifetime(drawing_t *drawing, const lap_lifetime_t *life, double scale)
{
    static const char *const colours[] = {"#a6cee3", "#b2df8a", "#fdbf6f",
                                          "#cab2d6", "#fb9a99", "#ffff99"};
    const char *name = drawing->show->linked->regions[life->region].name;
    const double x = drawing->memory + (double)life->offset * scale;
    const double width = (double)life->bytes * scale;
    const int y = y_of(life->first), height = (int)(life->last - life->first + 1) * ROW;
    const double letters = width / LETTER;
    fprintf(drawing->file,
            "<g class=\"life\"><title>%s: %zu bytes at %zu, fragments %u to %u</title><rect "
            "x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\" stroke=\"#555\" "
            "stroke-width=\"0.6\"/>",
            name, life->bytes, life->offset, (unsigned)life->first, (unsigned)life->last, x, y + 2,
            width < 1 ? 1 : width, height - 4,
            colours[life->region % (sizeof(colours) / sizeof(colours[0]))]);
    if (letters >= (double)strlen(name))
        fprintf(drawing->file, "<text x=\"%.1f\" y=\"%d\" fill=\"#000\" font-size=\"11\">%s</text>",
                x + 3, y + ROW / 2 + 4, name);
    else if (width > 12 && height > LETTER * (int)strlen(name))
        fprintf(drawing->file,
                "<text transform=\"translate(%.1f %d) rotate(90)\" fill=\"#000\" "
                "font-size=\"11\">%s</text>",
                x + width / 2 - 4, y + 8, name);
    fprintf(drawing->file, "</g>\n");
}

static void draw_memory(drawing_t *drawing)
{
    const lap_show_train_t *show = drawing->show;
    const size_t bytes = show->list->bytes[LAP_NN_PRIVATE];
    fprintf(drawing->file, "<text x=\"%d\" y=\"%d\" fill=\"#333\">activations: %zu bytes</text>\n",
            drawing->memory, TOP - 12, bytes);
    for (size_t i = 0; i < show->nlifetimes; i++)
        draw_lifetime(drawing, &show->lifetimes[i], MEMORY / (double)(bytes ? bytes : 1));
}

/* ---- all of it ---- */

static void draw_head(drawing_t *drawing)
{
    const lap_show_train_t *show = drawing->show;
    const lap_nn_desc_t *desc = &show->train->desc;
    fprintf(drawing->file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\">\n"
            "<defs><marker id=\"link\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"8\" "
            "markerHeight=\"8\" markerUnits=\"userSpaceOnUse\" orient=\"auto\"><path "
            "d=\"M0 0L8 4L0 8z\" fill=\"#d55e00\"/></marker></defs>\n"
            "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
            drawing->width, drawing->height, drawing->width, drawing->height, drawing->width,
            drawing->height);
    fprintf(drawing->file,
            "<text x=\"%d\" y=\"26\" font-size=\"15\">%s, %zu layer%s, rank %d of %d, target %s, "
            "%s%s</text>\n"
            "<text x=\"%d\" y=\"48\" fill=\"#555\">Fragments from top to bottom; steps of a stream "
            "run in order. An arrow is a link: a step waits for one of another stream.</text>\n",
            LEFT, lap_nn_kind_name(desc->kind), desc->layers, desc->layers == 1 ? "" : "s",
            show->rank, show->train->grid.tp, show->target->name,
            show->pass ? "after pass " : "as built", show->pass ? show->pass->name : "", LEFT);
    for (int s = 0; s < LAP_STREAMS; s++)
        if (drawing->columns[s] >= 0)
            fprintf(drawing->file, "<text x=\"%d\" y=\"%d\" fill=\"#333\">%s</text>\n",
                    drawing->columns[s], TOP - 12, lap_stream_name((uint16_t)s));
}

lap_status_t lap_show_train_svg(const lap_show_train_t *show, const char *path)
{
    lap_output_t output;
    LAP_TRY(lap_output_open("the picture", path, &output));
    drawing_t drawing = {.file = output.file, .show = show};
    const uint32_t count = show->linked->nfragments;
    place_columns(&drawing);
    draw_head(&drawing);
    for (uint32_t f = 0; f < count; f++)
        draw_row(&drawing, f);
    draw_memory(&drawing);
    for (uint32_t f = 0; f < count; f++) /* below the boxes that they pass */
        draw_links(&drawing, f);
    for (uint32_t f = 0; f < count; f++)
        for (int s = 0; s < LAP_STREAMS; s++)
            draw_box(&drawing, f, s);
    fprintf(drawing.file, "</svg>\n");
    return lap_output_close(&output, LAP_OK);
}
