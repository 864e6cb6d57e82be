/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Draws a trace as an SVG timeline: a row per rank and stream, a colour per kind of step (the
 * palette of Okabe and Ito, which colour-blind readers can tell apart), a hatching per cause where a
 * rank's arithmetic stood still. It only draws what the records say; predicted times can be drawn the same
 * way. The file needs no fonts, scripts or styles from elsewhere.
 */
#include <inttypes.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>

#include "core/output.h"
#include "schedule/trace.h"
#include "util/alloc.h"

/* The page, in pixels. */
enum {
    PAGE_WIDTH = 1200,
    PLOT_LEFT = 136,
    PLOT_RIGHT = 1176,
    PLOT_TOP = 134,
    ROW_HEIGHT = 20,
    ROW_STEP = 24,
    RANK_GAP = 12,
    AXIS_HEIGHT = 48,
};

#define COLOUR_GEMM "#0072b2"
#define COLOUR_REDUCE "#009e73"
#define COLOUR_COPY "#cc79a7"
#define COLOUR_TRANSFER "#e69f00"
#define COLOUR_EMULATED "#f8d98c"
#define COLOUR_WAIT "#d9d9d9"
#define COLOUR_SIGNAL "#555555"

/* How each cause is hatched. */
typedef struct hatch {
    const char *colour, *fill;
    const char *lines; /* within 6 by 6 pixels */
    const char *legend;
} hatch_t;

static const hatch_t hatches[LAP_CAUSES] = {
    [LAP_CAUSE_WIRE] = {"#d0021b", "url(#wire)",
                        " patternTransform=\"rotate(45)\"><rect width=\"1.6\" height=\"6\" "
                        "fill=\"#d0021b\"/>",
                        "data on the wire"},
    [LAP_CAUSE_LATE] = {"#7a3fa0", "url(#late)",
                        " patternTransform=\"rotate(-45)\"><rect width=\"1.6\" height=\"6\" "
                        "fill=\"#7a3fa0\"/><rect width=\"6\" height=\"1.6\" fill=\"#7a3fa0\"/>",
                        "a rank that is late"},
    [LAP_CAUSE_CORE] = {"#444444", "url(#core)",
                        "><circle cx=\"2\" cy=\"2\" r=\"1.1\" fill=\"#444444\"/>"
                        "<circle cx=\"5\" cy=\"5\" r=\"1.1\" fill=\"#444444\"/>",
                        "a core"},
};

typedef struct picture {
    FILE *file;
    const lap_trace_t *trace;
    lap_trace_view_t *views;     /* per rank */
    double (*rows)[LAP_STREAMS]; /* top of the row of each rank and stream; 0: not drawn */
    uint64_t begin, end;         /* what the axis shows */
    double bottom;               /* of the last row */
} picture_t;

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

static double ms(uint64_t ns)
{
    return (double)ns * 1e-6;
}

static double x_at(const picture_t *picture, uint64_t when)
{
    double part = (double)(when - picture->begin) / (double)(picture->end - picture->begin);
    return PLOT_LEFT + part * (PLOT_RIGHT - PLOT_LEFT);
}

/* ---- bars ---- */

/* What a record is about, for its tooltip: "rank 0, step 7 PUT to rank 2, 1.00 MiB". */
static void put_sentence(FILE *file, const lap_trace_record_t *record)
{
    fprintf(file, "rank %" PRId32 ", step %" PRIu32 " %s", record->rank, record->step,
            lap_step_kind_name((lap_step_kind_t)record->kind));
    bool sends = record->kind == LAP_STEP_PUT || record->kind == LAP_STEP_RAISE ||
                 (record->kind == LAP_STEP_GEMM && record->bytes > 0);
    bool hears = record->kind == LAP_STEP_WAIT || (record->kind == LAP_STEP_GEMM && !sends);
    if (record->peer >= 0 && (sends || hears))
        fprintf(file, " %s rank %" PRId32, sends ? "to" : "for", record->peer);
    if (record->rows > 0)
        fprintf(file, ", rows %" PRIu64 "..%" PRIu64, record->first_row,
                record->first_row + record->rows - 1);
    if (record->bytes >= 1 << 20)
        fprintf(file, ", %.2f MiB", (double)record->bytes / (1 << 20));
    else if (record->bytes > 0)
        fprintf(file, ", %.1f KiB", (double)record->bytes / (1 << 10));
}

typedef struct bar {
    double y, height;
    uint64_t begin, end;
    const char *fill, *ink; /* the bar, and the label in it */
    const char *what;       /* for the tooltip, before the times; NULL: nothing */
    char label[96];         /* with '|' between: the first that fits is drawn */
} bar_t;

/* The characters of a label up to its end or the next one; an arrow is three bytes of them. */
static size_t label_bytes(const char *label, size_t *length_p)
{
    const size_t bytes = strcspn(label, "|");
    *length_p = 0;
    for (size_t i = 0; i < bytes; i++)
        *length_p += ((unsigned char)label[i] & 0xc0) != 0x80;
    return bytes;
}

/* The first of some labels that fits into a bar. */
static void put_label(FILE *file, const char *labels, double x, double y, double width,
                      const char *style)
{
    while (*labels) {
        size_t length;
        const size_t bytes = label_bytes(labels, &length);
        if (width > 6.4 * (double)length + 8) {
            fprintf(file,
                    "<text x=\"%.2f\" y=\"%.1f\" text-anchor=\"middle\" font-size=\"11\" %s "
                    "pointer-events=\"none\">%.*s</text>\n",
                    x + width / 2, y, style, (int)bytes, labels);
            return;
        }
        labels += bytes + (labels[bytes] == '|');
    }
}

/* The shard that rows lie in, all of them; -1: none, or not known. */
static int shard_of(const lap_trace_t *trace, const lap_trace_record_t *record)
{
    size_t end = 0;
    for (int r = 0; r < trace->size && record->rows > 0; r++) {
        size_t begin, count = lap_shard(trace->m, trace->size, r, &begin);
        end = begin + count;
        if (record->first_row >= begin && record->first_row + record->rows <= end)
            return r;
    }
    return -1;
}

/* Labels that begin with a word and go on with the shard, as long as there is one. */
static void name_shard(const picture_t *picture, const lap_trace_record_t *record, const char *word,
                       bar_t *bar)
{
    const int shard = shard_of(picture->trace, record);
    if (shard < 0)
        snprintf(bar->label, sizeof(bar->label), "%s", word);
    else
        snprintf(bar->label, sizeof(bar->label), "%s shard %d|%s %d|%d", word, shard, word, shard,
                 shard);
}

static void put_bar(const picture_t *picture, const bar_t *bar, const lap_trace_record_t *record)
{
    FILE *file = picture->file;
    double x = x_at(picture, bar->begin);
    double width = x_at(picture, bar->end) - x;
    double least = record->kind == LAP_STEP_RAISE ? 1.5 : 0.5; /* however short, it can be seen */
    if (width < least)
        width = least;
    fprintf(file, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\"", x,
            bar->y, width, bar->height, bar->fill);
    /* An edge of the page's colour tells neighbours apart; a narrow bar would drown in it. */
    fputs(width > 3 ? " stroke=\"#fff\" stroke-width=\"0.6\">" : ">", file);
    fputs("<title>", file);
    put_sentence(file, record);
    fprintf(file, "%s%s: %.3f ms, from %.3f to %.3f", bar->what ? ", " : "",
            bar->what ? bar->what : "", ms(bar->end - bar->begin), ms(bar->begin - picture->begin),
            ms(bar->end - picture->begin));
    if (bar->begin == record->span.begin && ms(record->delays.running) >= 0.001)
        fprintf(file, ", %.3f of it without a core", ms(record->delays.running));
    fputs("</title></rect>\n", file);
    char style[32];
    snprintf(style, sizeof(style), "fill=\"%s\"", bar->ink);
    put_label(file, bar->label, x, bar->y + bar->height / 2 + 4, width, style);
}

/* Time in which a step waited: all of a WAIT, or what a block of a GEMM waited before it ran. */
static void put_wait(const picture_t *picture, const lap_trace_record_t *record)
{
    const lap_span_t *span = &record->span;
    bool is_wait = record->kind == LAP_STEP_WAIT;
    bool waited = span->ready != 0 && span->ready < span->begin;
    if (!lap_span_known(span) || (!is_wait && !waited))
        return;
    bar_t bar = {.y = picture->rows[record->rank][record->stream],
                 .height = ROW_HEIGHT,
                 .begin = waited ? span->ready : span->begin,
                 .end = is_wait ? span->end : span->begin,
                 .fill = COLOUR_WAIT,
                 .ink = "#333",
                 .what = is_wait ? NULL : "waiting"};
    /* On the compute row the hatching comes on top and leaves no room for a label. */
    if (is_wait && record->stream != LAP_STREAM_COMPUTE)
        snprintf(bar.label, sizeof(bar.label), "\xe2\x86\x90%" PRId32, record->peer);
    put_bar(picture, &bar, record);
}

/* A transfer from its start to its delivery, on the sender's row, whichever stream started it. */
static void put_flight(const picture_t *picture, const lap_trace_record_t *record)
{
    if (!lap_span_known(&record->flight))
        return;
    bar_t bar = {.y = picture->rows[record->rank][LAP_STREAM_SEND],
                 .height = ROW_HEIGHT,
                 .begin = record->flight.begin,
                 .end = record->flight.end,
                 .fill = picture->trace->emulated ? COLOUR_EMULATED : COLOUR_TRANSFER,
                 .ink = "#000",
                 .what = picture->trace->emulated ? "in flight on the emulated link" : "in flight"};
    const int shard = record->kind == LAP_STEP_PUT ? shard_of(picture->trace, record) : -1;
    if (shard < 0)
        snprintf(bar.label, sizeof(bar.label), "\xe2\x86\x92%" PRId32, record->peer);
    else
        snprintf(bar.label, sizeof(bar.label),
                 "\xe2\x86\x92%" PRId32 " shard %d|\xe2\x86\x92%" PRId32, record->peer, shard,
                 record->peer);
    put_bar(picture, &bar, record);
}

/*
 * A PUT as its stream saw it: the copying itself, a thin strip within the time that the link takes.
 */
static void put_copying(const picture_t *picture, const lap_trace_record_t *record)
{
    bool in_flight_row = record->stream == LAP_STREAM_SEND;
    if (in_flight_row && !picture->trace->emulated)
        return;
    double strip = in_flight_row ? 5 : ROW_HEIGHT;
    bar_t bar = {.y = picture->rows[record->rank][record->stream] + ROW_HEIGHT - strip,
                 .height = strip,
                 .begin = record->span.begin,
                 .end = record->span.end,
                 .fill = COLOUR_TRANSFER,
                 .what = "copying"};
    put_bar(picture, &bar, record);
}

static void put_work(const picture_t *picture, const lap_trace_record_t *record)
{
    bar_t bar = {.y = picture->rows[record->rank][record->stream],
                 .height = ROW_HEIGHT,
                 .begin = record->span.begin,
                 .end = record->span.end,
                 .ink = "#fff"};
    if (!lap_span_known(&record->span))
        return;
    switch ((lap_step_kind_t)record->kind) {
    case LAP_STEP_GEMM:
        bar.fill = COLOUR_GEMM;
        name_shard(picture, record, "GEMM", &bar);
        break;
    case LAP_STEP_REDUCE:
    case LAP_STEP_SUMS:
        bar.fill = COLOUR_REDUCE;
        strcpy(bar.label, "sum");
        break;
    case LAP_STEP_COPY:
        bar.fill = COLOUR_COPY;
        strcpy(bar.label, "copy");
        break;
    case LAP_STEP_RAISE:
        bar.fill = COLOUR_SIGNAL;
        bar.y += ROW_HEIGHT * 0.25;
        bar.height = ROW_HEIGHT * 0.5;
        break;
    case LAP_STEP_PUT:
        put_copying(picture, record);
        return;
    default:
        return;
    }
    put_bar(picture, &bar, record);
}

/* "waiting for data[2] of rank 2: rank 1 was late" */
static void tell_exposed(const picture_t *picture, const lap_exposed_t *piece, char *text,
                         size_t bytes)
{
    static const char *const first[LAP_CAUSES] = {"on the wire from ", "", ""};
    static const char *const last[LAP_CAUSES] = {"", " was late", " had no core"};
    char signal[32], what[96] = "";
    lap_signal_name(picture->trace->size, piece->signal, signal, sizeof(signal));
    if (piece->from >= 0)
        snprintf(what, sizeof(what), "waiting for %s of rank %d: ", signal, piece->from);
    snprintf(text, bytes, "%s%srank %d%s", what, first[piece->cause], piece->who,
             last[piece->cause]);
}

/* What there is room for in the hatching. */
static void label_exposed(const picture_t *picture, const lap_exposed_t *piece, char *text,
                          size_t bytes)
{
    char signal[32];
    lap_signal_name(picture->trace->size, piece->signal, signal, sizeof(signal));
    if (piece->from >= 0 && piece->cause == LAP_CAUSE_WIRE)
        snprintf(text, bytes, "%s of rank %d|\xe2\x86\x90%d", signal, piece->from, piece->from);
    else if (piece->from >= 0)
        snprintf(text, bytes, "%s: rank %d %s|%s %d", signal, piece->who,
                 piece->cause == LAP_CAUSE_LATE ? "late" : "no core", lap_cause_name(piece->cause),
                 piece->who);
    else
        snprintf(text, bytes, "%s %d", lap_cause_name(piece->cause), piece->who);
}

/*
 * Hatches the time in which a rank's compute stream stood still. Gaps too narrow to see only count
 * in the sum.
 */
static void put_exposed(const picture_t *picture, int rank)
{
    const lap_trace_view_t *view = &picture->views[rank];
    double y = picture->rows[rank][LAP_STREAM_COMPUTE];
    for (size_t i = 0; i < view->nexposed; i++) {
        const lap_exposed_t *piece = &view->exposed[i];
        const hatch_t *hatch = &hatches[piece->cause];
        double x = x_at(picture, piece->begin);
        double width = x_at(picture, piece->end) - x;
        char sentence[192], label[96], edge[64] = "";
        if (width < 0.5)
            continue;
        tell_exposed(picture, piece, sentence, sizeof(sentence));
        label_exposed(picture, piece, label, sizeof(label));
        if (width > 2)
            snprintf(edge, sizeof(edge), " stroke=\"%s\" stroke-width=\"0.8\"", hatch->colour);
        fprintf(picture->file,
                "<rect class=\"exposed %s\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" "
                "fill=\"%s\"%s><title>rank %d: exposed, no arithmetic for %.3f ms, "
                "from %.3f to %.3f, %s</title></rect>\n",
                lap_cause_name(piece->cause), x, y, width, ROW_HEIGHT, hatch->fill, edge, rank,
                ms(piece->end - piece->begin), ms(piece->begin - picture->begin),
                ms(piece->end - picture->begin), sentence);
        /* A rim of the page's colour keeps letters apart from the hatching. */
        put_label(picture->file, label, x, y + ROW_HEIGHT / 2.0 + 4, width,
                  "fill=\"#000\" stroke=\"#fff\" stroke-width=\"3\" paint-order=\"stroke\"");
    }
}

/* ---- the page ---- */

/* Title, then total time and what a rank saw on average. */
static void put_head(const picture_t *picture, const char *title)
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

    uint64_t flight = 0, hidden = 0, exposed = 0, causes[LAP_CAUSES] = {0};
    unsigned ranks = 0;
    for (int r = 0; r < trace->size; r++) {
        flight += picture->views[r].times.flight_ns;
        hidden += picture->views[r].times.hidden_ns;
        exposed += picture->views[r].exposed_ns;
        for (int c = 0; c < LAP_CAUSES; c++)
            causes[c] += picture->views[r].cause_ns[c];
        ranks += picture->rows[r][LAP_STREAM_COMPUTE] > 0;
    }
    fprintf(picture->file,
            "<text x=\"16\" y=\"54\" font-size=\"13\" fill=\"#333\">total %.3f ms. Mean of a rank: "
            "in flight %.3f ms, %.3f of it hidden behind arithmetic; exposed, arithmetic "
            "standing still, %.3f: wire %.3f, late rank %.3f, core %.3f.</text>\n",
            ms(trace->end - trace->begin), ms(flight) / ranks, ms(hidden) / ranks,
            ms(exposed) / ranks, ms(causes[LAP_CAUSE_WIRE]) / ranks,
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
            "<text x=\"%.1f\" y=\"103.5\" font-size=\"12.5\">exposed communication, arithmetic "
            "standing still for:</text>\n",
            x);
    x += 346;
    for (int c = 0; c < LAP_CAUSES; c++) {
        fprintf(file,
                "<rect x=\"%.1f\" y=\"92\" width=\"22\" height=\"14\" fill=\"%s\" stroke=\"%s\" "
                "stroke-width=\"0.8\"/><text x=\"%.1f\" y=\"103.5\" font-size=\"12.5\">%s"
                "</text>\n",
                x, hatches[c].fill, hatches[c].colour, x + 28, hatches[c].legend);
        x += 28 + 6.9 * (double)strlen(hatches[c].legend) + 22;
    }
}

static void put_legend(const picture_t *picture)
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

static void put_axis(const picture_t *picture)
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
static void put_ground(const picture_t *picture, int rank)
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

static void put_page(const picture_t *picture, const char *title)
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
                lap_cause_name((lap_cause_t)c), hatches[c].lines);
    fputs("</defs>\n", picture->file);
    put_head(picture, title);
    put_legend(picture);
    for (int r = 0; r < trace->size; r++)
        put_ground(picture, r);
    put_axis(picture);
    /* Waits lie undermost and what was exposed on top, so that neither hides what was done. */
    for (size_t i = 0; i < trace->nrecords; i++)
        put_wait(picture, &trace->records[i]);
    for (size_t i = 0; i < trace->nrecords; i++)
        put_flight(picture, &trace->records[i]);
    for (size_t i = 0; i < trace->nrecords; i++)
        put_work(picture, &trace->records[i]);
    for (int r = 0; r < trace->size; r++)
        if (picture->rows[r][LAP_STREAM_COMPUTE] > 0)
            put_exposed(picture, r);
    fputs("</svg>\n", picture->file);
}

/* ---- layout and file ---- */

/* Makes the axis long enough for a span. */
static void widen(picture_t *picture, const lap_span_t *span)
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
static lap_status_t lay_out(picture_t *picture)
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
static lap_status_t write_page(picture_t *picture, const char *title, const char *path)
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
    picture_t picture = {.trace = trace};
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
