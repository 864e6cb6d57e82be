/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads traces for `lap report`: whether they are ours, and what the page shows of them where scripts do not run. That is
 * what ranks computed and communicated, as a picture and as a table. All else is drawn by the script.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "report.h"
#include "schedule/intervals.h"
#include "util/alloc.h"
#include "util/json.h"

enum {
    SHOWN = 16, /* ranks: of more only the first are shown */
    LANES = 32, /* of a rank that compute */
    SIMULATED = 100000,
    PATH = 99999, /* the critical path has the process after all ranks */
    WIDTH = 1100,
    LEFT = 130,
    ROW = 34,
    BAR = 13,
    NAME = 64,
    TITLE = 512,
};

typedef struct rank {
    char name[NAME];
    uint64_t lanes[LANES]; /* that compute, by their threads */
    size_t nlanes;
    lap_intervals_t busy, flight, exposed; /* computing; on its way; that, and not computing */
} rank_t;

typedef struct side {
    rank_t ranks[SHOWN];
    uint64_t count; /* of all ranks */
    uint64_t end;
} side_t;

typedef struct lap_picture {
    side_t sides[2]; /* measured, simulated */
    char command[NAME], title[TITLE];
    bool has_events, is_ours, has_step; /* what a trace of ours has */
} picture_t;

/* What is read of an event. */
typedef struct event {
    char phase[NAME], cat[NAME], name[NAME], of[NAME]; /* of: args.name */
    uint64_t pid, tid;
    double begin, length; /* microseconds; negative: none */
    uint64_t peer;        /* args.peer; UINT64_MAX: none */
} event_t;

/* ---- reading ---- */

/* What is next; the text has a 0 behind it. */
static const char *next_of(const lap_json_reader_t *json)
{
    return json->text + json->at + strspn(json->text + json->at, " \t\r\n");
}

/* A number at hand; of anything else -1. */
static bool take_real(lap_json_reader_t *json, void *number)
{
    char *end;
    const char *at = next_of(json);
    *(double *)number = strtod(at, &end);
    if (end == at)
        *(double *)number = -1;
    return lap_json_skip(json);
}

static bool take_time(lap_json_reader_t *json, void *time)
{
    if (!isdigit((unsigned char)*next_of(json)))
        return lap_json_fail(json, "expected a number, 0 or above, of microseconds");
    return take_real(json, time);
}

static bool take_count(lap_json_reader_t *json, void *count)
{
    double number;
    const bool is = take_real(json, &number);
    *(uint64_t *)count = number >= 0 && number < 1e9 ? (uint64_t)number : UINT64_MAX;
    return is;
}

/* A string, if it is one; of one that is too long nothing. */
static bool take_text(lap_json_reader_t *json, char *text, size_t room)
{
    lap_json_reader_t again = *json;
    if (lap_json_take_string(&again, text, room)) {
        *json = again;
        return true;
    }
    text[0] = '\0';
    return lap_json_skip(json);
}

static bool take_name(lap_json_reader_t *json, void *name)
{
    return take_text(json, name, NAME);
}

static bool take_title(lap_json_reader_t *json, void *title)
{
    return take_text(json, title, TITLE);
}

static bool take_args(lap_json_reader_t *json, void *to)
{
    event_t *event = to;
    const lap_json_member_t members[] = {
        {"peer", take_count, &event->peer}, {"name", take_name, event->of}, {.key = NULL}};
    return *next_of(json) == '{' ? lap_json_take_members(json, members) : lap_json_skip(json);
}

static bool computes(const rank_t *rank, const event_t *event)
{
    static const char *const kinds[] = {"gemm", "reduce", "copy", "kernel"};
    bool is = false;
    for (size_t i = 0; i < rank->nlanes; i++)
        is = is || rank->lanes[i] == event->tid;
    for (size_t i = 0; is && i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (strcmp(event->cat, kinds[i]) == 0)
            return true;
    return false;
}

/* Names come before slices. */
static void add_name(rank_t *rank, const event_t *event)
{
    if (strcmp(event->name, "process_name") == 0)
        snprintf(rank->name, sizeof(rank->name), "%s", event->of);
    else if (strcmp(event->name, "thread_name") == 0 && strstr(event->of, "compute") &&
             rank->nlanes < LANES)
        rank->lanes[rank->nlanes++] = event->tid;
}

static void add_event(picture_t *picture, const event_t *event)
{
    const bool simulated = event->pid >= SIMULATED;
    const uint64_t number = event->pid - (simulated ? SIMULATED : 0);
    side_t *side = &picture->sides[simulated];
    if (number >= PATH)
        return;
    side->count = number >= side->count ? number + 1 : side->count;
    if (event->phase[0] == 'M' && number < SHOWN)
        add_name(&side->ranks[number], event);
    if (event->phase[0] != 'X' || !(event->begin + event->length < 1e15))
        return;
    const uint64_t begin = (uint64_t)(event->begin * 1e3);
    const uint64_t end = begin + (uint64_t)(event->length * 1e3);
    side->end = end > side->end ? end : side->end;
    if (strcmp(event->cat, "link") == 0) {
        if (number < SHOWN)
            lap_intervals_add(&side->ranks[number].flight, begin, end);
        if (event->peer < SHOWN && event->peer != number)
            lap_intervals_add(&side->ranks[event->peer].flight, begin, end);
    } else if (number < SHOWN && computes(&side->ranks[number], event)) {
        lap_intervals_add(&side->ranks[number].busy, begin, end);
    }
}

/* An object, whose times are numbers; a slice has two. */
static bool take_event(lap_json_reader_t *json, picture_t *picture)
{
    event_t event = {
        .peer = UINT64_MAX, .pid = UINT64_MAX, .tid = UINT64_MAX, .begin = -1, .length = -1};
    const lap_json_member_t members[] = {{"ph", take_name, event.phase},
                                         {"cat", take_name, event.cat},
                                         {"name", take_name, event.name},
                                         {"pid", take_count, &event.pid},
                                         {"tid", take_count, &event.tid},
                                         {"ts", take_time, &event.begin},
                                         {"dur", take_time, &event.length},
                                         {"args", take_args, &event},
                                         {.key = NULL}};
    if (!lap_json_take_members(json, members))
        return false;
    if (strcmp(event.phase, "X") == 0 && (event.begin < 0 || event.length < 0))
        return lap_json_fail(json, "expected ts and dur before the end of a slice");
    add_event(picture, &event);
    return true;
}

static bool take_events(lap_json_reader_t *json, void *to)
{
    picture_t *picture = to;
    picture->has_events = true;
    for (bool more = lap_json_open(json, '['); more; more = lap_json_next(json, ']'))
        if (!take_event(json, picture))
            return false;
    return !json->wrong;
}

static bool take_step(lap_json_reader_t *json, void *has_step)
{
    *(bool *)has_step = true;
    return lap_json_skip(json);
}

/* What we add to events: of a measured step, a simulated one, or both. */
static bool take_own(lap_json_reader_t *json, void *to)
{
    picture_t *picture = to;
    const lap_json_member_t members[] = {{"command", take_name, picture->command},
                                         {"title", take_title, picture->title},
                                         {"measured", take_step, &picture->has_step},
                                         {"simulated", take_step, &picture->has_step},
                                         {.key = NULL}};
    picture->is_ours = true;
    return lap_json_take_members(json, members);
}

/* Whether what was read is a trace of ours. */
static lap_status_t judge(const char *path, lap_json_reader_t *json, const picture_t *picture)
{
    if (!lap_json_end(json))
        return lap_error(LAP_ERR_INVALID, "%s is no trace: byte %zu: %s", path, json->at,
                         json->wrong);
    if (!picture->has_events || !picture->is_ours)
        return lap_error(LAP_ERR_INVALID,
                         "%s is no trace of lap: it has no member \"%s\"; expected a file that "
                         "--trace has written, in the format perfetto",
                         path, picture->has_events ? "lapstrake" : "traceEvents");
    if (!picture->has_step)
        return lap_error(LAP_ERR_INVALID,
                         "%s has no step: in \"lapstrake\" there is neither \"measured\" nor "
                         "\"simulated\"; expected a file as --trace has written it",
                         path);
    return LAP_OK;
}

lap_status_t lap_report_read(const char *path, const char *text, size_t bytes,
                             lap_report_trace_t *trace_p)
{
    lap_json_reader_t json = {.text = text, .bytes = bytes};
    picture_t *picture = lap_alloc(1, sizeof(*picture));
    const lap_json_member_t members[] = {
        {"traceEvents", take_events, picture}, {"lapstrake", take_own, picture}, {.key = NULL}};
    bool failed = !picture;
    (void)(picture && lap_json_take_members(&json, members));
    for (int i = 0; picture && i < 2 * SHOWN; i++) {
        rank_t *rank = &picture->sides[i / SHOWN].ranks[i % SHOWN];
        lap_intervals_join(&rank->busy);
        lap_intervals_join(&rank->flight);
        rank->exposed = lap_intervals_without(&rank->flight, &rank->busy);
        failed = failed || rank->exposed.failed;
    }
    *trace_p = (lap_report_trace_t){text, bytes, picture};
    return failed ? lap_error(LAP_ERR_NO_MEMORY, "no memory for the picture of a trace")
                  : judge(path, &json, picture);
}

void lap_report_clear(lap_report_trace_t *trace)
{
    picture_t *picture = trace->picture;
    for (int i = 0; picture && i < 2 * SHOWN; i++) {
        rank_t *rank = &picture->sides[i / SHOWN].ranks[i % SHOWN];
        lap_intervals_clear(&rank->busy);
        lap_intervals_clear(&rank->flight);
        lap_intervals_clear(&rank->exposed);
    }
    lap_free(picture);
    *trace = (lap_report_trace_t){.picture = NULL};
}

/* ---- writing ---- */

static void put_text(FILE *file, const char *text)
{
    for (; *text; text++)
        if (strchr("&<>\"", *text))
            fprintf(file, "&#%d;", *text);
        else
            putc(*text, file);
}

/* Bars of intervals; those that are less than half a pixel apart are one, so that a row has only so many. */
static void put_bars(FILE *file, const lap_intervals_t *list, double scale, int y,
                     const char *colour)
{
    fprintf(file, "<path style=\"fill:var(--%s)\" d=\"", colour);
    for (size_t i = 0; i < list->count;) {
        const double begin = (double)list->list[i].begin * scale;
        double end = (double)list->list[i].end * scale;
        for (i++; i < list->count && (double)list->list[i].begin * scale < end + 0.5; i++)
            end = (double)list->list[i].end * scale;
        fprintf(file, "M%.1f %dh%.1fv%dh%.1fz", LEFT + begin, y, end - begin + 0.1, BAR,
                begin - end - 0.1);
    }
    fputs("\"/>", file);
}

static void put_picture(FILE *file, const side_t *side, uint64_t shown)
{
    const double scale = side->end > 0 ? (WIDTH - LEFT) / (double)side->end : 0;
    fprintf(file,
            "<svg class=\"chart\" role=\"img\" aria-label=\"What each rank computed and "
            "communicated, by time\" viewBox=\"0 0 %d %d\" width=\"%d\">\n",
            WIDTH, (int)shown * ROW + 24, WIDTH);
    for (uint64_t r = 0; r < shown; r++) {
        const rank_t *rank = &side->ranks[r];
        const int y = (int)r * ROW + 4;
        fprintf(file, "<text x=\"8\" y=\"%d\">", y + 2 * BAR / 2 + 4);
        put_text(file, rank->name);
        fputs("</text>", file);
        put_bars(file, &rank->busy, scale, y, "gemm");
        put_bars(file, &rank->flight, scale, y + BAR + 1, "hidden");
        put_bars(file, &rank->exposed, scale, y + BAR + 1, "exposed");
        fputc('\n', file);
    }
    fprintf(file,
            "<text x=\"%d\" y=\"%d\">0</text><text x=\"%d\" y=\"%d\" text-anchor=\"end\">%.3f "
            "ms</text></svg>\n",
            LEFT, (int)shown * ROW + 18, WIDTH - 4, (int)shown * ROW + 18,
            (double)side->end * 1e-6);
}

static void put_row(FILE *file, const char *name, const double ms[3])
{
    fputs("<tr><td>", file);
    put_text(file, name);
    fprintf(file, "</td><td>%.3f</td><td>%.3f</td><td>%.3f</td><td>%.3f</td><td>", ms[0], ms[1],
            ms[1] - ms[2], ms[2]);
    if (ms[1] > 0)
        fprintf(file, "%.1f %%", 100 * (1 - ms[2] / ms[1]));
    fputs("</td></tr>\n", file);
}

static void put_table(FILE *file, const side_t *side, uint64_t shown)
{
    double means[3] = {0};
    fputs("<table><thead><tr><th>rank</th><th>computing ms</th><th>communication ms</th>"
          "<th>hidden ms</th><th>exposed ms</th><th>hidden</th></tr></thead><tbody>\n",
          file);
    for (uint64_t r = 0; r < shown; r++) {
        const rank_t *rank = &side->ranks[r];
        const double ms[3] = {(double)lap_intervals_length(&rank->busy) * 1e-6,
                              (double)lap_intervals_length(&rank->flight) * 1e-6,
                              (double)lap_intervals_length(&rank->exposed) * 1e-6};
        for (int i = 0; i < 3; i++)
            means[i] += ms[i] / (double)shown;
        put_row(file, rank->name, ms);
    }
    put_row(file, "mean", means);
    fputs("</tbody></table>\n", file);
}

void lap_report_put_static(FILE *file, const lap_report_trace_t *trace)
{
    const picture_t *picture = trace->picture;
    const bool measured = picture->sides[0].count > 0;
    const side_t *side = &picture->sides[!measured];
    const uint64_t shown = side->count < SHOWN ? side->count : SHOWN;
    fputs("<h1>", file);
    put_text(file, picture->command);
    fprintf(file, "%s</h1>\n<p class=\"soft\">", measured ? "" : " (simulated)");
    put_text(file, picture->title);
    fputs("</p>\n", file);
    if (shown < side->count)
        fprintf(file, "<p>The first %d of %llu ranks.</p>\n", SHOWN,
                (unsigned long long)side->count);
    fputs("<p>Of the step that is drawn, of each rank above: it computes. Below: something is on "
          "its way from it or to it, "
          "<b style=\"color:var(--hidden)\">hidden</b> while it computes, else "
          "<b style=\"color:var(--exposed)\">exposed</b>.</p>\n",
          file);
    put_picture(file, side, shown);
    put_table(file, side, shown);
}
