/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces and their picture: a trace of known times is accounted for to the nanosecond, gathered
 * over thread ranks, and drawn; the SVG must be well-formed XML and hold every row, colour, tooltip
 * and mark that the trace calls for. Whether it is a good picture only a person can tell.
 */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "schedule/trace.h"
#include "tap.h"

#define RANKS 4
#define US 1000u
#define START 5000000000u /* when the synthetic call begins */

static char folder[] = "/tmp/lap-draw-XXXXXX";

static lap_trace_record_t *fill(lap_trace_record_t *record, int rank, lap_step_kind_t kind,
                                int stream, int peer, uint64_t begin_us, uint64_t end_us)
{
    static const lap_trace_record_t empty;
    *record = empty;
    record->rank = rank;
    record->kind = (uint32_t)kind;
    record->stream = (uint32_t)stream;
    record->peer = peer;
    record->signal = LAP_NO_SIGNAL;
    record->group.size = 2;
    record->from = -1;
    record->span.begin = record->span.ready = START + begin_us * US;
    record->span.end = START + end_us * US;
    return record;
}

/*
 * A direct AG+GEMM as rank `rank` might see it: a credit, three puts one after another, waits for
 * the peers' puts, and four blocks of GEMM, of which the last waits 200 us for its rows; a sum and
 * a copy at the end.
 */
enum { RECORDS = 13, CALL_US = 2600 };

static void synthesize(lap_trace_t *trace, int rank)
{
    lap_trace_record_t *record = trace->records;
    fill(record++, rank, LAP_STEP_RAISE, LAP_STREAM_SEND, (rank + 1) % RANKS, 2, 3);
    for (int i = 1; i < RANKS; i++) {
        uint64_t begin = 20 + 700 * (uint64_t)(i - 1);
        int to = (rank + i) % RANKS, from = (rank + RANKS - i) % RANKS;
        lap_trace_record_t *put =
            fill(record++, rank, LAP_STEP_PUT, LAP_STREAM_SEND, to, begin, begin + 120);
        put->step = (uint32_t)i;
        put->bytes = 1 << 20;
        put->signal = lap_signal_data(rank);
        put->first_row = 16 * (uint64_t)rank;
        put->rows = 16;
        put->flight = (lap_span_t){0, put->span.begin, put->span.begin + 600 * US};
        fill(record++, rank, LAP_STEP_WAIT, LAP_STREAM_RECEIVE, from, i == 1 ? 5 : begin - 80,
             begin + 600);
    }
    fill(record++, rank, LAP_STEP_GEMM, LAP_STREAM_COMPUTE, -1, 10, 560);
    fill(record++, rank, LAP_STEP_GEMM, LAP_STREAM_COMPUTE, 1, 620, 1200);
    fill(record++, rank, LAP_STEP_GEMM, LAP_STREAM_COMPUTE, 2, 1320, 1820);
    fill(record, rank, LAP_STEP_GEMM, LAP_STREAM_COMPUTE, 3, 2020, 2500);
    record->from = (rank + RANKS - 3) % RANKS; /* the last to put something here */
    record->awaited = lap_signal_data(record->from);
    record->count = 1;
    (record++)->span.ready = START + 1820 * US;
    fill(record++, rank, LAP_STEP_REDUCE, LAP_STREAM_COMPUTE, 0, 2500, 2540);
    fill(record++, rank, LAP_STEP_COPY, LAP_STREAM_COMPUTE, 0, 2540, 2560);
    trace->begin = START + (uint64_t)rank * US;
    trace->end = START + CALL_US * US;
}

/* ---- a small judge of XML ---- */

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == ':' || c == '_';
}

/*
 * The attributes of a tag, up to "/" or ">": name="value", separated by space. NULL when they are
 * not well-formed.
 */
static const char *skip_attributes(const char *at)
{
    while (*at == ' ') {
        while (*at == ' ')
            at++;
        const char *name = at;
        while (is_name(*at))
            at++;
        if (at == name || at[0] != '=' || at[1] != '"')
            return NULL;
        for (at += 2; *at && *at != '"'; at++)
            if (*at == '<')
                return NULL;
        if (*at++ != '"')
            return NULL;
    }
    return at;
}

static bool is_entity(const char *at)
{
    static const char *const known[] = {"&amp;", "&lt;", "&gt;", "&quot;"};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strncmp(at, known[i], strlen(known[i])) == 0)
            return true;
    return false;
}

/*
 * Whether every tag is closed in order, attributes are quoted and entities known. Writes where it
 * went wrong.
 */
static bool well_formed(const char *at, const char **where_p)
{
    struct {
        const char *name;
        size_t length;
    } open[16];
    size_t depth = 0, elements = 0;
    if (strncmp(at, "<?xml ", 6) == 0)
        at = strchr(at, '>') + 1;
    for (; *where_p = at, *at; at++) {
        if (*at == '&' && !is_entity(at))
            return false;
        if (*at != '<')
            continue;
        bool closes = *++at == '/';
        const char *name = at += closes;
        while (is_name(*at))
            at++;
        size_t length = (size_t)(at - name);
        at = skip_attributes(at);
        if (!at || length == 0 || (elements > 0 && depth == 0))
            return false;
        bool empty = *at == '/';
        if (*(at += empty) != '>')
            return false;
        elements++;
        if (closes) {
            if (depth == 0 || open[depth - 1].length != length ||
                strncmp(open[depth - 1].name, name, length) != 0)
                return false;
            depth--;
        } else if (!empty) {
            if (depth == 16)
                return false;
            open[depth].name = name;
            open[depth++].length = length;
        }
    }
    return depth == 0 && elements > 0;
}

/* ---- helpers ---- */

static char *read_whole(const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file)
        return NULL;
    char *text = calloc(1, 1 << 20);
    size_t bytes = text ? fread(text, 1, (1 << 20) - 1, file) : 0;
    fclose(file);
    if (bytes == 0) {
        free(text);
        return NULL;
    }
    return text;
}

static size_t occurrences(const char *text, const char *words)
{
    size_t count = 0;
    for (; (text = strstr(text, words)); text += strlen(words))
        count++;
    return count;
}

static size_t files_in_folder(void)
{
    DIR *dir = opendir(folder);
    size_t count = 0;
    while (dir && readdir(dir))
        count++;
    if (dir)
        closedir(dir);
    return count - 2;
}

static void path_of(const char *name, char *path, size_t bytes)
{
    snprintf(path, bytes, "%s/%s", folder, name);
}

/* ---- the tests ---- */

static void test_account(void)
{
    lap_trace_t *trace;
    if (!tap_success(lap_trace_create(&trace), "a trace is made"))
        return;
    tap_success(lap_trace_begin(trace, LAP_AG_GEMM, "direct", RANKS, 64, true, RECORDS + 2),
                "it makes room for its records");
    synthesize(trace, 0);
    /* Of two transfers of rank 1, that to rank 0 concerns rank 0 too. */
    for (int peer = 0; peer <= 2; peer += 2) {
        lap_trace_record_t *record = &trace->records[RECORDS + peer / 2];
        uint64_t begin = peer == 0 ? 2100 : 2300;
        fill(record, 1, LAP_STEP_PUT, LAP_STREAM_SEND, peer, begin, begin + 10);
        record->flight = (lap_span_t){0, START + begin * US, START + (begin + 100) * US};
    }
    lap_trace_view_t view;
    if (tap_success(lap_trace_view(trace, 0, NULL, &view), "it is seen from rank 0")) {
        /* Idle: 0-10, 560-620, 1200-1320, 1820-2020, 2560-2600. */
        /* In flight: 20-620, 720-1320, 1420-2020, 2100-2200. */
        tap_ok(view.idle.count == 5, "compute stood still five times: %zu", view.idle.count);
        tap_ok(view.waited_ns == 430 * US, "waited for 430 us: %" PRIu64 " ns", view.waited_ns);
        tap_ok(view.npauses == 5 && view.cause_ns[LAP_CAUSE_WIRE] == 200 * US &&
                   view.cause_ns[LAP_CAUSE_LATE] == 0 && view.cause_ns[LAP_CAUSE_CORE] == 230 * US,
               "200 us of it for data, 230 us to go on");
        tap_ok(view.times.flight_ns == 1900 * US, "in flight for 1900 us: %" PRIu64 " ns",
               view.times.flight_ns);
        tap_ok(view.times.hidden_ns == 1520 * US, "1520 us of it hidden: %" PRIu64 " ns",
               view.times.hidden_ns);
        lap_trace_view_clear(&view);
    }
    tap_success(lap_trace_begin(trace, LAP_AG_GEMM, "direct", RANKS, 64, true, 2),
                "the next call replaces it");
    tap_ok(trace->nrecords == 2 && trace->records[0].span.end == 0, "its records are zero again");
    lap_trace_destroy(trace);
    lap_trace_destroy(NULL);
}

/* Bars and hatchings are within the page of 1200 pixels. */
static void check_bounds(const char *text)
{
    size_t rects = 0, wrong = 0;
    for (const char *at = strstr(text, "<rect x="); at; at = strstr(at + 1, "<rect x=")) {
        const char *width = strstr(at, " width=\"");
        const double left = strtod(at + strlen("<rect x=\""), NULL);
        const double wide = width ? strtod(width + strlen(" width=\""), NULL) : -1;
        wrong += tap_wrong(!(left >= 0 && wide >= 0 && left + wide <= 1200),
                           "a bar from %g, %g wide: %.80s", left, wide, at);
        rects++;
    }
    tap_ok(rects > RANKS * RECORDS / 2 && wrong == 0,
           "%zu bars, of which %zu reach beyond the page", rects, wrong);
}

static void check_page(const char *text)
{
    check_bounds(text);
    const char *where = text;
    tap_ok(well_formed(text, &where), "the picture is well-formed XML: '%.40s'", where);
    for (int r = 0; r < RANKS; r++)
        for (int s = 0; s < LAP_STREAMS; s++) {
            char label[32];
            snprintf(label, sizeof(label), ">rank %d %s<", r,
                     s == 0   ? "compute"
                     : s == 1 ? "send"
                              : "receive");
            tap_ok(occurrences(text, label) == 1, "a row %s", label);
        }
    static const char *const words[] = {
        ">GEMM<",
        "reduce (sum)",
        ">wait<",
        "transfer (emulated link)",
        "time in ms",
        "waited, arithmetic",
        ">signal<",
        "a &lt;title&gt; &amp; &quot;more&quot; ?t\xc3\xa9",
        "total 2.600 ms",
        "PUT to rank 2, rows 0..15, 1.00 MiB",
        "1.420 of it hidden behind arithmetic",
        "wire 0.200, late rank 0.000, core 0.228",
        "a rank that is late",
        "waiting for data[1] of rank 1: on the wire from rank 1",
        ">\342\206\2201<", /* an arrow to the left */
        "shard 2<",
    };
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        tap_ok(strstr(text, words[i]) != NULL, "the picture has '%s'", words[i]);
    tap_ok(occurrences(text, "class=\"waited core\"") == RANKS * 4 &&
               occurrences(text, "class=\"waited wire\"") == RANKS,
           "every pause is marked: %zu and %zu", occurrences(text, "class=\"waited core\""),
           occurrences(text, "class=\"waited wire\""));
    tap_ok(occurrences(text, "fill=\"#0072b2\"") == RANKS * 4 + 1, "every block of GEMM is a bar");
    tap_ok(occurrences(text, "in flight on the emulated link:") == RANKS * 3,
           "so is every transfer");
    tap_ok(occurrences(text, "<title>") == RANKS * (RECORDS + 3 + 1 + 5),
           "all bars have a tooltip");
}

static void draw_gathered(lap_trace_t *trace)
{
    char path[128];
    path_of("timeline.svg", path, sizeof(path));
    if (!tap_success(lap_trace_draw(trace, "a <title> & \"more\" \xe9t\xc3\xa9", path),
                     "the trace is drawn"))
        return;
    tap_ok(files_in_folder() == 1, "nothing but the picture is left in its folder");
    tap_success(lap_trace_draw(trace, "a <title> & \"more\" \xe9t\xc3\xa9", path),
                "it is drawn again over it");
    char *text = read_whole(path);
    if (tap_ok(text != NULL, "the picture can be read"))
        check_page(text);
    free(text);
    tap_success(lap_trace_draw(trace, NULL, path), "the trace is drawn without a title");
    text = read_whole(path);
    tap_ok(text && strstr(text, "direct, 4 ranks"), "it then gets one of its own");
    free(text);
}

static void draw_refused(lap_trace_t *trace)
{
    char path[128];
    path_of("nowhere/timeline.svg", path, sizeof(path));
    tap_failure(lap_trace_draw(trace, NULL, path), LAP_ERR_SYSTEM, path, NULL);
    tap_failure(lap_trace_draw(trace, NULL, folder), LAP_ERR_SYSTEM, folder, "regular file", NULL);
    tap_failure(lap_trace_draw(trace, NULL, "/dev/null"), LAP_ERR_SYSTEM, "/dev/null", NULL);
    tap_failure(lap_trace_draw(trace, NULL, NULL), LAP_ERR_INVALID, "path", NULL);
    tap_failure(lap_trace_draw(NULL, NULL, path), LAP_ERR_INVALID, "trace", NULL);
    tap_ok(files_in_folder() == 1, "a picture that failed leaves nothing");
    lap_trace_t *empty;
    if (lap_trace_create(&empty) == LAP_OK) {
        path_of("empty.svg", path, sizeof(path));
        tap_failure(lap_trace_draw(empty, NULL, path), LAP_ERR_INVALID, "empty", NULL);
        lap_trace_destroy(empty);
    }
}

/*
 * Each rank has another number of records, more than move at once, so that pieces of every length
 * occur.
 */
static void gather_uneven(lap_world_t *world, lap_trace_t *trace)
{
    int rank = lap_world_rank(world);
    size_t count = 40 * (size_t)rank;
    tap_success(lap_trace_begin(trace, LAP_GEMM_RS, "ring", RANKS, 1, false, count), "%zu records",
                count);
    for (size_t i = 0; i < count; i++)
        fill(&trace->records[i], rank, LAP_STEP_GEMM, 0, -1, i, i + 1)->step = (uint32_t)i;
    trace->begin = START + (uint64_t)(RANKS - rank);
    trace->end = START + 100 * US + (uint64_t)rank;
    if (!tap_success(lap_trace_gather(trace, lap_world_group(world)), "gathered") || rank != 0)
        return;
    size_t at = 0, wrong = 0;
    for (int r = 0; r < RANKS; r++)
        for (size_t i = 0; i < 40 * (size_t)r; i++, at++)
            wrong += at >= trace->nrecords || trace->records[at].rank != r ||
                     trace->records[at].step != i;
    tap_ok(at == trace->nrecords && wrong == 0, "all %zu records are there, in order", at);
    tap_ok(trace->begin == START + 1 && trace->end == START + 100 * US + RANKS - 1,
           "the call lasts from the first to the last rank");
}

static void test_rank(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_trace_t *trace;
    int rank = lap_world_rank(world);
    if (!tap_success(lap_trace_create(&trace), "a trace on rank %d", rank))
        return;
    gather_uneven(world, trace);
    tap_success(lap_trace_begin(trace, LAP_AG_GEMM, "direct", RANKS, 64, true, RECORDS), "room");
    synthesize(trace, rank);
    if (tap_success(lap_trace_gather(trace, lap_world_group(world)), "gathered on rank %d", rank) &&
        rank == 0) {
        draw_gathered(trace);
        draw_refused(trace);
    }
    lap_status_t again = lap_trace_gather(trace, lap_world_group(world));
    tap_ok(again == LAP_ERR_INVALID, "gathering twice is refused on rank %d", rank);
    lap_trace_destroy(trace);
}

int main(int argc, char **argv)
{
    if (!mkdtemp(folder))
        return 99;
    test_account();
    tap_ranks(RANKS, NULL, test_rank, NULL);
    char path[128];
    path_of("timeline.svg", path, sizeof(path));
    /* With an argument the picture is kept under that name, to be looked at. */
    if (argc > 1 && rename(path, argv[1]) != 0)
        perror(argv[1]);
    unlink(path);
    rmdir(folder);
    return tap_done();
}
