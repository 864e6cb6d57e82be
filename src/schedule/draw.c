/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Draws a trace as an SVG timeline: a row per rank and stream, a colour per kind of step (the
 * palette of Okabe and Ito, which colour-blind readers can tell apart), a hatching per cause where a
 * rank's arithmetic stood still. It only draws what the records say; predicted times can be drawn the same
 * way. The file needs no fonts, scripts or styles from elsewhere.
 */
#include <inttypes.h>
#include <locale.h>
#include <string.h>

#include "core/output.h"
#include "schedule/draw.h"
#include "util/alloc.h"

/* ---- text ---- */

/* The bytes of the UTF-8 character at `text`; 0 when there is none. */
static size_t character(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    size_t bytes = at[0] < 0x80                    ? 1
                   : at[0] >= 0xc2 && at[0] < 0xe0 ? 2
                   : at[0] >= 0xe0 && at[0] < 0xf0 ? 3
                   : at[0] >= 0xf0 && at[0] < 0xf5 ? 4
                                                   : 0;
    for (size_t i = 1; i < bytes; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    return bytes;
}

/*
 * Text for XML. Control characters, which XML forbids, become spaces; what is no text becomes '?'.
 */
static void put_text(FILE *file, const char *text)
{
    while (*text) {
        const size_t bytes = character(text);
        const char *name = *text == '&'                                ? "&amp;"
                           : *text == '<'                              ? "&lt;"
                           : *text == '>'                              ? "&gt;"
                           : *text == '"'                              ? "&quot;"
                           : bytes == 0                                ? "?"
                           : bytes == 1 && (unsigned char)*text < 0x20 ? " "
                                                                       : NULL;
        if (name)
            fputs(name, file);
        else
            fwrite(text, 1, bytes, file);
        text += bytes ? bytes : 1;
    }
}

/* ---- the page ---- */

/* Title, then total time and what a rank saw on average. */
static void put_head(const lap_picture_t *picture, const char *title)
{
    const lap_trace_t *trace = picture->trace;
    char own[160];
    if (!title) {
        snprintf(own, sizeof(own), "%s, %s, %d ranks, m = %zu%s", lap_op_kind_name(trace->kind),
                 trace->method, trace->size, trace->m, trace->emulated ? ", emulated link" : "");
        title = own;
    }
    double room = (PAGE_WIDTH - 32.0) / (0.68 * (double)(strlen(title) + 1));
    fprintf(picture->file, "<text x=\"16\" y=\"30\" font-size=\"%.1f\" font-weight=\"bold\">",
            room < 19 ? room : 19);
    put_text(picture->file, title);
    fputs("</text>\n", picture->file);

    uint64_t flight = 0, hidden = 0, waited = 0, causes[LAP_CAUSES] = {0};
    unsigned ranks = 0;
    for (int r = 0; r < trace->size; r++) {
        flight += picture->views[r].times.flight_ns;
        hidden += picture->views[r].times.hidden_ns;
        waited += picture->views[r].waited_ns;
        for (int c = 0; c < LAP_CAUSES; c++)
            causes[c] += picture->views[r].cause_ns[c];
        ranks += picture->rows[r][LAP_STREAM_COMPUTE] > 0;
    }
    fprintf(picture->file,
            "<text x=\"16\" y=\"54\" font-size=\"13\" fill=\"#333\">total %.3f ms. Mean of a rank: "
            "communication %.3f ms, %.3f of it hidden behind arithmetic; waited, arithmetic "
            "standing still, %.3f: wire %.3f, late rank %.3f, core %.3f.</text>\n",
            ms(trace->end - trace->begin), ms(flight) / ranks, ms(hidden) / ranks,
            ms(waited) / ranks, ms(causes[LAP_CAUSE_WIRE]) / ranks,
            ms(causes[LAP_CAUSE_LATE]) / ranks, ms(causes[LAP_CAUSE_CORE]) / ranks);
}

static double put_legend_item(FILE *file, double x, const char *fill, const char *text)
{
    fprintf(file,
            "<rect x=\"%.1f\" y=\"70\" width=\"22\" height=\"14\" fill=\"%s\"/>"
            "<text x=\"%.1f\" y=\"81.5\" font-size=\"12.5\">%s</text>\n",
            x, fill, x + 28, text);
    return x + 28 + 6.9 * (double)strlen(text) + 22;
}

/* Hatched: arithmetic stands still. */
static void put_legend_hatches(FILE *file)
{
    double x = 16;
    fprintf(file,
            "<text x=\"%.1f\" y=\"103.5\" font-size=\"12.5\">waited, arithmetic standing "
            "still for:</text>\n",
            x);
    x += 250;
    for (int c = 0; c < LAP_CAUSES; c++) {
        fprintf(file,
                "<rect x=\"%.1f\" y=\"92\" width=\"22\" height=\"14\" fill=\"%s\" stroke=\"%s\" "
                "stroke-width=\"0.8\"/><text x=\"%.1f\" y=\"103.5\" font-size=\"12.5\">%s"
                "</text>\n",
                x, lap_hatches[c].fill, lap_hatches[c].colour, x + 28, lap_hatches[c].legend);
        x += 28 + 6.9 * (double)strlen(lap_hatches[c].legend) + 22;
    }
}

static void put_legend(const lap_picture_t *picture)
{
    FILE *file = picture->file;
    double x = 16;
    x = put_legend_item(file, x, COLOUR_GEMM, "GEMM");
    x = put_legend_item(file, x, COLOUR_REDUCE, "reduce (sum)");
    x = put_legend_item(file, x, COLOUR_COPY, "copy");
    if (picture->trace->emulated)
        x = put_legend_item(file, x, COLOUR_EMULATED, "transfer (emulated link)");
    x = put_legend_item(file, x, COLOUR_TRANSFER,
                        picture->trace->emulated ? "of it, copying" : "transfer");
    x = put_legend_item(file, x, COLOUR_WAIT, "wait");
    put_legend_item(file, x, COLOUR_SIGNAL, "signal");
    put_legend_hatches(file);
}

/*
 * The distance of ticks: 1, 2 or 5 times a power of ten, at most twelve of them; and the decimals
 * that it needs.
 */
static double tick_step(double range, int *decimals_p)
{
    static const double factors[] = {1, 2, 5};
    double power = 1e-6; /* a nanosecond, in ms */
    int decimals = 6;
    size_t i = 0;
    while (range > 12 * power * factors[i]) {
        if (++i < 3)
            continue;
        i = 0;
        power *= 10;
        decimals--;
    }
    *decimals_p = decimals > 0 ? decimals : 0;
    return power * factors[i];
}

static void put_axis(const lap_picture_t *picture)
{
    FILE *file = picture->file;
    double range = ms(picture->end - picture->begin);
    int decimals;
    double step = tick_step(range, &decimals);
    double scale = (PLOT_RIGHT - PLOT_LEFT) / range;
    for (int i = 0; i * step <= range * (1 + 1e-9); i++) {
        double x = PLOT_LEFT + i * step * scale;
        fprintf(file,
                "<line x1=\"%.2f\" y1=\"%d\" x2=\"%.2f\" y2=\"%.1f\" stroke=\"#e4e4e4\"/>"
                "<text x=\"%.2f\" y=\"%.1f\" text-anchor=\"middle\" font-size=\"12\">%.*f</text>\n",
                x, PLOT_TOP - 10, x, picture->bottom + 6, x, picture->bottom + 22, decimals,
                i * step);
    }
    fprintf(file,
            "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#333\"/>"
            "<text x=\"%d\" y=\"%.1f\" text-anchor=\"middle\" font-size=\"12\">time in ms</text>\n",
            PLOT_LEFT, picture->bottom + 6, PLOT_RIGHT, picture->bottom + 6,
            (PLOT_LEFT + PLOT_RIGHT) / 2, picture->bottom + 40);
}

/* The labels of a rank's rows, a pale ground for the time of its call, and a line above. */
static void put_ground(const lap_picture_t *picture, int rank)
{
    FILE *file = picture->file;
    const lap_interval_t *call = &picture->views[rank].call;
    double first = 0;
    for (int s = 0; s < LAP_STREAMS; s++) {
        double y = picture->rows[rank][s];
        if (y <= 0)
            continue;
        if (first <= 0)
            first = y;
        double x = x_at(picture, call->begin);
        fprintf(
            file,
            "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" fill=\"#f5f5f5\"/>"
            "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\" font-size=\"12\">rank %d %s</text>\n",
            x, y, x_at(picture, call->end) - x, ROW_HEIGHT, PLOT_LEFT - 10,
            y + ROW_HEIGHT / 2.0 + 4, rank, lap_stream_name((uint16_t)s));
    }
    if (first > PLOT_TOP)
        fprintf(file, "<line x1=\"16\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#bbb\"/>\n",
                first - (RANK_GAP + 4) / 2.0, PLOT_RIGHT, first - (RANK_GAP + 4) / 2.0);
}

static void put_page(const lap_picture_t *picture, const char *title)
{
    const lap_trace_t *trace = picture->trace;
    double height = picture->bottom + AXIS_HEIGHT;
    fprintf(picture->file,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" "
            "viewBox=\"0 0 %d %.0f\" font-family=\"Helvetica, Arial, sans-serif\">\n"
            "<rect width=\"%d\" height=\"%.0f\" fill=\"#fff\"/>\n<defs>",
            PAGE_WIDTH, height, PAGE_WIDTH, height, PAGE_WIDTH, height);
    for (int c = 0; c < LAP_CAUSES; c++)
        fprintf(picture->file,
                "<pattern id=\"%s\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\"%s"
                "</pattern>",
                lap_cause_name((lap_cause_t)c), lap_hatches[c].lines);
    fputs("</defs>\n", picture->file);
    put_head(picture, title);
    put_legend(picture);
    for (int r = 0; r < trace->size; r++)
        put_ground(picture, r);
    put_axis(picture);
    /* Waits lie undermost and what was waited on top, so that neither hides what was done. */
    for (size_t i = 0; i < trace->nrecords; i++)
        lap_draw_wait(picture, &trace->records[i]);
    for (size_t i = 0; i < trace->nrecords; i++)
        lap_draw_flight(picture, &trace->records[i]);
    for (size_t i = 0; i < trace->nrecords; i++)
        lap_draw_work(picture, &trace->records[i]);
    for (int r = 0; r < trace->size; r++)
        if (picture->rows[r][LAP_STREAM_COMPUTE] > 0)
            lap_draw_waited(picture, r);
    fputs("</svg>\n", picture->file);
}

/* ---- layout and file ---- */

/* Makes the axis long enough for a span. */
static void widen(lap_picture_t *picture, const lap_span_t *span)
{
    if (!lap_span_known(span))
        return;
    uint64_t begin = span->ready && span->ready < span->begin ? span->ready : span->begin;
    if (begin < picture->begin)
        picture->begin = begin;
    if (span->end > picture->end)
        picture->end = span->end;
}

/* Finds which rows there are and where they go. Every rank with records has a compute row. */
static lap_status_t lay_out(lap_picture_t *picture)
{
    const lap_trace_t *trace = picture->trace;
    picture->begin = trace->begin;
    picture->end = trace->end;
    for (size_t i = 0; i < trace->nrecords; i++) {
        const lap_trace_record_t *record = &trace->records[i];
        if (record->rank < 0 || record->rank >= trace->size || record->stream >= LAP_STREAMS)
            return lap_error(LAP_ERR_INVALID,
                             "record %zu of the trace is of rank %" PRId32 ", stream %" PRIu32
                             ": expected ranks below %d and streams below %d",
                             i, record->rank, record->stream, trace->size, LAP_STREAMS);
        picture->rows[record->rank][LAP_STREAM_COMPUTE] = 1;
        picture->rows[record->rank][record->stream] = 1;
        if (lap_span_known(&record->flight))
            picture->rows[record->rank][LAP_STREAM_SEND] = 1;
        widen(picture, &record->span);
        widen(picture, &record->flight);
    }
    if (picture->end <= picture->begin)
        return lap_error(LAP_ERR_INVALID,
                         "the trace is empty: expected the trace of a call that ran");
    double y = PLOT_TOP;
    for (int r = 0; r < trace->size; r++) {
        bool drawn = picture->rows[r][LAP_STREAM_COMPUTE] > 0;
        for (int s = 0; s < LAP_STREAMS; s++)
            if (picture->rows[r][s] > 0) {
                picture->rows[r][s] = y;
                y += ROW_STEP;
            }
        if (drawn) {
            LAP_TRY(lap_trace_view(trace, r, NULL, &picture->views[r]));
            y += RANK_GAP;
        }
    }
    picture->bottom = y - RANK_GAP;
    return LAP_OK;
}

/* A picture takes the place of what is at `path` only when it is complete. */
static lap_status_t write_page(lap_picture_t *picture, const char *title, const char *path)
{
    lap_output_t output;
    LAP_TRY(lap_output_open("the timeline", path, &output));
    picture->file = output.file;
    put_page(picture, title);
    return lap_output_close(&output, LAP_OK);
}

lap_status_t lap_trace_draw(const lap_trace_t *trace, const char *title, const char *path)
{
    if (!trace || trace->nrecords == 0)
        return lap_error(LAP_ERR_INVALID, "the trace is %s: expected the trace of a call that ran",
                         trace ? "empty" : "NULL");
    if (!path || !*path)
        return lap_error(LAP_ERR_INVALID, "path is %s: expected the file to write",
                         path ? "empty" : "NULL");
    lap_picture_t picture = {.trace = trace};
    picture.views = lap_alloc((size_t)trace->size, sizeof(*picture.views));
    picture.rows = lap_alloc((size_t)trace->size, sizeof(*picture.rows));
    /* Numbers in the file have a point, whatever the locale of the program says. */
    locale_t numbers = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    lap_status_t status = LAP_OK;
    if (!picture.views || !picture.rows || !numbers)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to draw %d ranks", trace->size);
    else
        status = lay_out(&picture);
    if (status == LAP_OK) {
        locale_t before = uselocale(numbers);
        status = write_page(&picture, title, path);
        uselocale(before);
    }
    if (numbers)
        freelocale(numbers);
    for (int r = 0; picture.views && r < trace->size; r++)
        lap_trace_view_clear(&picture.views[r]);
    lap_free(picture.views);
    lap_free(picture.rows);
    return status;
}
