/* SPDX-License-Identifier: Apache-2.0 */
/* The bars of a timeline, with their labels and tooltips: a record, or a piece of time in which a rank waited. */
#include "schedule/draw.h"

#include <inttypes.h>
#include <string.h>

const lap_hatch_t lap_hatches[LAP_CAUSES] = {
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
static void name_shard(const lap_picture_t *picture, const lap_trace_record_t *record,
                       const char *word, bar_t *bar)
{
    const int shard = shard_of(picture->trace, record);
    if (shard < 0)
        snprintf(bar->label, sizeof(bar->label), "%s", word);
    else
        snprintf(bar->label, sizeof(bar->label), "%s shard %d|%s %d|%d", word, shard, word, shard,
                 shard);
}

static void put_bar(const lap_picture_t *picture, const bar_t *bar,
                    const lap_trace_record_t *record)
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
void lap_draw_wait(const lap_picture_t *picture, const lap_trace_record_t *record)
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
void lap_draw_flight(const lap_picture_t *picture, const lap_trace_record_t *record)
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
static void put_copying(const lap_picture_t *picture, const lap_trace_record_t *record)
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

void lap_draw_work(const lap_picture_t *picture, const lap_trace_record_t *record)
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
static void tell_waited(const lap_picture_t *picture, const lap_pause_t *piece, char *text,
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
static void label_waited(const lap_picture_t *picture, const lap_pause_t *piece, char *text,
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

void lap_draw_waited(const lap_picture_t *picture, int rank)
{
    const lap_trace_view_t *view = &picture->views[rank];
    double y = picture->rows[rank][LAP_STREAM_COMPUTE];
    for (size_t i = 0; i < view->npauses; i++) {
        const lap_pause_t *piece = &view->pauses[i];
        const lap_hatch_t *hatch = &lap_hatches[piece->cause];
        double x = x_at(picture, piece->begin);
        double width = x_at(picture, piece->end) - x;
        char sentence[192], label[96], edge[64] = "";
        if (width < 0.5)
            continue;
        tell_waited(picture, piece, sentence, sizeof(sentence));
        label_waited(picture, piece, label, sizeof(label));
        if (width > 2)
            snprintf(edge, sizeof(edge), " stroke=\"%s\" stroke-width=\"0.8\"", hatch->colour);
        fprintf(picture->file,
                "<rect class=\"waited %s\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" "
                "fill=\"%s\"%s><title>rank %d: waited, no arithmetic for %.3f ms, "
                "from %.3f to %.3f, %s</title></rect>\n",
                lap_cause_name(piece->cause), x, y, width, ROW_HEIGHT, hatch->fill, edge, rank,
                ms(piece->end - piece->begin), ms(piece->begin - picture->begin),
                ms(piece->end - picture->begin), sentence);
        /* A rim of the page's colour keeps letters apart from the hatching. */
        put_label(picture->file, label, x, y + ROW_HEIGHT / 2.0 + 4, width,
                  "fill=\"#000\" stroke=\"#fff\" stroke-width=\"3\" paint-order=\"stroke\"");
    }
}
