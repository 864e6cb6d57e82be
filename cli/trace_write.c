/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A timeline as a file of the Trace Event Format, as Perfetto renders it best: a process per rank, a
 * thread per stream, link and the host, on which slices do not overlap; flows from puts to the waits
 * that they release; counters; and the critical path as a process of its own, on top. A simulated run
 * follows the measured one, its processes numbered from SIMULATED_PID on. What lap report needs
 * besides is the member "lapstrake".
 */
#include <inttypes.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include <lap/version.h>

#include "cli.h"
#include "core/output.h"
#include "gzip.h"
#include "report.h"
#include "trace_file.h"
#include "util/alloc.h"

enum {
    SIMULATED_PID = 100000,
    PATH_PID = 99999, /* of the critical path, after the ranks of its run */
    HOST_TID = 1,
    LANE_TID = 100, /* of the first stream; each has this many for slices that overlap */
    LINK_TID = LANE_TID * (1 + LAP_STREAMS),
    PATH_TID = 1,
};

const char *const lap_trace_formats[] = {"perfetto", "kineto", NULL};

/* ---- text ---- */

/* Compressed where the name ends so. */
lap_status_t lap_trace_put(const char *path, const char *text, size_t bytes)
{
    lap_output_t output;
    LAP_TRY(lap_output_open("the trace", path, &output));
    lap_status_t status = LAP_OK;
    if (lap_has_gzip_name(path))
        status = lap_gzip(text, bytes, output.file);
    else
        fwrite(text, 1, bytes, output.file);
    return lap_output_close(&output, status);
}

/* ---- a run ---- */

typedef struct run {
    lap_json_t *json;
    const lap_trace_file_t *trace;
    const lap_analysis_t *analysis;
    int first_pid;
    uint32_t *tids; /* of each record's slice */
} run_t;

static double us(const run_t *run, uint64_t when)
{
    return (double)(when - run->analysis->begin) * 1e-3;
}

/* What a process or thread is called, or where it stands. */
static void put_meta(const run_t *run, int pid, int tid, const char *what, const char *name)
{
    lap_json_put(run->json, "{ph:'M' pid:%d tid:%d name:%s args:{name:%s}}", pid, tid, what, name);
}

static void put_order(const run_t *run, int pid, int tid, const char *what, int index)
{
    lap_json_put(run->json, "{ph:'M' pid:%d tid:%d name:%s args:{sort_index:%d}}", pid, tid, what,
                 index);
}

static void put_thread(const run_t *run, int pid, int tid, const char *name)
{
    put_meta(run, pid, tid, "thread_name", name);
    put_order(run, pid, tid, "thread_sort_index", tid);
}

/* ---- slices ---- */

static bool waited(const lap_trace_record_t *record)
{
    return record->kind != LAP_STEP_WAIT && record->span.ready < record->span.begin &&
           record->count > 0;
}

static const char *category(const lap_trace_record_t *record)
{
    static const char *const names[] = {
        [LAP_STEP_GEMM] = "gemm",   [LAP_STEP_PUT] = "put",       [LAP_STEP_RAISE] = "raise",
        [LAP_STEP_WAIT] = "wait",   [LAP_STEP_REDUCE] = "reduce", [LAP_STEP_COPY] = "copy",
        [LAP_STEP_SUMS] = "reduce", [LAP_STEP_KERNEL] = "kernel", [LAP_STEP_CONSUME] = "raise",
        [LAP_TRACE_HOST] = "host",
    };
    return names[record->kind];
}

/* Begins a slice with what it is a part of, which end_slice ends. */
static void begin_slice(const run_t *run, int pid, uint32_t tid, const char *cat, const char *name,
                        uint64_t begin, uint64_t end)
{
    lap_json_put(run->json, "{ph:'X' pid:%d tid:%u cat:%s ts:%.3f dur:%.3f name:%s args:{", pid,
                 tid, cat, us(run, begin), (double)(end > begin ? end - begin : 1) * 1e-3, name);
}

static void end_slice(const run_t *run)
{
    lap_json_put(run->json, "}}");
}

/* What it was about. */
static void put_args(const run_t *run, const lap_trace_record_t *record, uint64_t begin,
                     uint64_t end)
{
    lap_json_t *json = run->json;
    const double seconds = (double)(end - begin) * 1e-9;
    lap_json_put(json, "call:%s op:%s", record->name, record->op);
    if (record->layer >= 0)
        lap_json_put(json, "layer:%d", record->layer);
    if (record->group.size > 1)
        lap_json_put(json, "step:%u", record->step);
    if (record->group.size > 1 || record->traffic != LAP_TRAFFIC_NONE)
        lap_json_put(json, "kind:%s", lap_traffic_name((lap_traffic_t)record->traffic));
    if (record->m > 0)
        lap_json_put(json, "m:%u n:%u k:%u", record->m, record->n, record->k);
    if (record->m > 0 && seconds > 0)
        lap_json_put(json, "tflops:%.6g",
                     2.0 * record->m * record->n * record->k / seconds * 1e-12);
    if (record->bytes > 0)
        lap_json_put(json, "bytes:%lu", record->bytes);
    if (record->bytes > 0 && seconds > 0 && record->kind != LAP_STEP_GEMM)
        lap_json_put(json, "gbs:%.6g", (double)record->bytes / seconds * 1e-9);
    if (record->peer >= 0)
        lap_json_put(json, "peer:%d", record->peer);
    if (record->predicted_us > 0)
        lap_json_put(json, "predicted_us:%.3f", (double)record->predicted_us);
}

static void put_wait(const run_t *run, uint32_t index, uint64_t begin, uint64_t end)
{
    const lap_trace_record_t *record = &run->analysis->timeline->records[index];
    char name[64];
    snprintf(name, sizeof(name), "wait for rank %" PRId32, record->from);
    begin_slice(run, run->first_pid + record->rank, run->tids[index], "wait", name, begin, end);
    lap_json_put(run->json, "call:%s from:%d kind:%s", record->name, record->from,
                 lap_traffic_name((lap_traffic_t)record->traffic));
    end_slice(run);
}

static void put_record(const run_t *run, uint32_t index)
{
    const lap_trace_record_t *record = &run->analysis->timeline->records[index];
    const lap_span_t *span = &record->span;
    const bool plain = record->kind == LAP_STEP_GEMM || record->kind == LAP_STEP_KERNEL ||
                       record->kind == LAP_TRACE_HOST;
    char name[64];
    if (!lap_span_known(span))
        return;
    if (record->kind == LAP_STEP_WAIT) {
        put_wait(run, index, span->ready, span->end);
        return;
    }
    if (waited(record))
        put_wait(run, index, span->ready, span->begin);
    snprintf(name, sizeof(name), "%s%s%s", plain ? "" : category(record), plain ? "" : " ",
             record->name);
    begin_slice(run, run->first_pid + record->rank, run->tids[index], category(record), name,
                span->begin, span->end);
    put_args(run, record, span->begin, span->end);
    end_slice(run);
}

/* What was on its way, on the sender's side. */
static void put_flight(const run_t *run, const lap_trace_record_t *record, uint32_t tid)
{
    char name[64];
    snprintf(name, sizeof(name), "%s to rank %" PRId32, record->name, record->peer);
    begin_slice(run, run->first_pid + record->rank, tid, "link", name, record->flight.begin,
                record->flight.end);
    put_args(run, record, record->flight.begin, record->flight.end);
    end_slice(run);
}

/* ---- tracks ---- */

enum { LANES_MOST = 64 }; /* of slices of one track that overlap */

/* The first lane of a track that is free at a moment; it is taken until `end`. */
static uint32_t take_lane(uint64_t *ends, uint64_t begin, uint64_t end)
{
    uint32_t lane = 0;
    while (lane + 1 < LANES_MOST && ends[lane] > begin)
        lane++;
    ends[lane] = end;
    return lane;
}

static void name_lanes(const run_t *run, int pid, int first, const char *name, const uint64_t *ends)
{
    char text[64];
    for (int lane = 0; lane < LANES_MOST && ends[lane] > 0; lane++) {
        snprintf(text, sizeof(text), lane ? "%s (%d)" : "%s", name, lane + 1);
        put_thread(run, pid, first + lane, text);
    }
}

/* Gives all slices of a rank's streams a thread. */
static void lay_out_streams(const run_t *run, int rank)
{
    const lap_analysis_t *analysis = run->analysis;
    uint64_t ends[LANES_MOST] = {0};
    const int pid = run->first_pid + rank;
    for (uint32_t i = analysis->first[rank]; i < analysis->first[rank + 1]; i++) {
        const uint32_t index = analysis->order[i];
        const lap_trace_record_t *record = &analysis->timeline->records[index];
        const bool host = record->stream == LAP_TRACE_HOST_STREAM;
        const int first = host ? HOST_TID : LANE_TID * (1 + (int)record->stream);
        if (lap_span_known(&record->span)) {
            run->tids[index] =
                (uint32_t)first + take_lane(ends, lap_record_start(record), record->span.end);
        }
        const uint32_t next = i + 1 < analysis->first[rank + 1] ? analysis->order[i + 1] : 0;
        if (i + 1 < analysis->first[rank + 1] &&
            analysis->timeline->records[next].stream == record->stream)
            continue;
        name_lanes(run, pid, first, host ? "host" : lap_stream_name((uint16_t)record->stream),
                   ends);
        memset(ends, 0, sizeof(ends));
    }
}

int lap_trace_by_sent(const void *left, const void *right)
{
    const lap_trace_record_t *const *a = left, *const *b = right;
    return (*a)->flight.begin < (*b)->flight.begin ? -1 : (*a)->flight.begin > (*b)->flight.begin;
}

/* What a rank has sent, in order; the caller frees it. NULL: no memory. */
static const lap_trace_record_t **list_flights(const run_t *run, int rank, size_t *count_p)
{
    const lap_analysis_t *analysis = run->analysis;
    const uint32_t first = analysis->first[rank], end = analysis->first[rank + 1];
    const lap_trace_record_t **list = lap_alloc(end - first, sizeof(const void *));
    size_t count = 0;
    for (uint32_t i = first; list && i < end; i++) {
        const lap_trace_record_t *record = &analysis->timeline->records[analysis->order[i]];
        if (record->flight.end && record->peer != rank)
            list[count++] = record;
    }
    if (list)
        qsort(list, count, sizeof(const void *), lap_trace_by_sent);
    *count_p = count;
    return list;
}

/* ---- counters ---- */

static void put_counter(const run_t *run, int rank, const char *name, const char *unit,
                        uint64_t when, double value)
{
    lap_json_put(run->json, "{ph:'C' pid:%d name:%s ts:%.3f args:{%s:%.10g}}",
                 run->first_pid + rank, name, us(run, when), unit, value);
}

typedef struct change {
    uint64_t when;
    double bytes;
} change_t;

static int by_when(const void *left, const void *right)
{
    const change_t *a = left, *b = right;
    return a->when < b->when ? -1 : a->when > b->when;
}

static lap_status_t put_links(const run_t *run, int rank)
{
    size_t count = 0;
    const lap_trace_record_t **list = list_flights(run, rank, &count);
    change_t *changes = lap_alloc(2 * count, sizeof(*changes));
    uint64_t ends[LANES_MOST] = {0};
    double bytes = 0;
    for (size_t i = 0; list && changes && i < count; i++) {
        put_flight(run, list[i],
                   LINK_TID + take_lane(ends, list[i]->flight.begin, list[i]->flight.end));
        changes[2 * i] = (change_t){list[i]->flight.begin, (double)list[i]->bytes};
        changes[2 * i + 1] = (change_t){list[i]->flight.end, -(double)list[i]->bytes};
    }
    if (list && changes) {
        name_lanes(run, run->first_pid + rank, LINK_TID, "link", ends);
        qsort(changes, 2 * count, sizeof(*changes), by_when);
    }
    for (size_t i = 0; list && changes && i < 2 * count; i++) {
        bytes += changes[i].bytes;
        if (i + 1 == 2 * count || changes[i + 1].when > changes[i].when)
            put_counter(run, rank, "bytes in flight", "bytes", changes[i].when, bytes);
    }
    const lap_status_t status =
        list && changes ? LAP_OK
                        : lap_error(LAP_ERR_NO_MEMORY, "no memory for the transfers of a rank");
    lap_free(list);
    lap_free(changes);
    return status;
}

static void put_exposed(const run_t *run, int rank)
{
    const lap_rank_times_t *times = &run->analysis->ranks[rank];
    double sum = 0;
    put_counter(run, rank, "exposed time", "us", run->analysis->begin, 0);
    for (size_t i = 0; i < times->unhidden.count; i++) {
        const lap_interval_t *piece = &times->unhidden.list[i];
        put_counter(run, rank, "exposed time", "us", piece->begin, sum);
        sum += (double)(piece->end - piece->begin) * 1e-3;
        put_counter(run, rank, "exposed time", "us", piece->end, sum);
    }
}

/* Records of the compute stream are in order; only changes count, and the end. */
static void put_memory(const run_t *run, int rank)
{
    const lap_analysis_t *analysis = run->analysis;
    uint64_t before = 0;
    for (uint32_t i = analysis->first[rank]; i < analysis->first[rank + 1]; i++) {
        const lap_trace_record_t *record = &analysis->timeline->records[analysis->order[i]];
        if (record->stream != LAP_STREAM_COMPUTE || record->live_bytes == 0 ||
            record->live_bytes == before)
            continue;
        before = record->live_bytes;
        put_counter(run, rank, "activations", "bytes", record->span.begin, (double)before);
    }
    if (before > 0)
        put_counter(run, rank, "activations", "bytes", analysis->end, (double)before);
}

/* ---- flows ---- */

/* Within a slice, as near to its end as its length allows. */
static uint64_t just_before(uint64_t begin, uint64_t end)
{
    return end > begin ? end - 1 : begin;
}

static void put_flow_end(const run_t *run, const char *phase, uint32_t id, int rank, uint32_t tid,
                         uint64_t when)
{
    lap_json_put(run->json, "{ph:%s cat:'signal' name:'signal' id:%u pid:%d tid:%u ts:%.3f", phase,
                 id + (uint32_t)run->first_pid * 16, run->first_pid + rank, tid, us(run, when));
    if (*phase == 'f')
        lap_json_put(run->json, "bp:'e'");
    lap_json_put(run->json, "}");
}

static void put_flow(const run_t *run, uint32_t index)
{
    const lap_trace_record_t *records = run->analysis->timeline->records;
    const uint32_t by = run->analysis->released_by[index];
    const lap_trace_record_t *record = &records[index];
    if (by == LAP_NO_STEP || !lap_span_known(&record->span) || !lap_span_known(&records[by].span))
        return;
    const lap_trace_record_t *sender = &records[by];
    const bool at_end = sender->kind == LAP_STEP_GEMM;
    put_flow_end(run, "s", index, sender->rank, run->tids[by],
                 at_end ? just_before(sender->span.begin, sender->span.end) : sender->span.begin);
    const uint64_t when = record->kind == LAP_STEP_WAIT
                              ? just_before(record->span.ready, record->span.end)
                          : waited(record) ? just_before(record->span.ready, record->span.begin)
                                           : record->span.begin;
    put_flow_end(run, "f", index, record->rank, run->tids[index], when);
}

/* ---- the critical path ---- */

static void put_path(const run_t *run)
{
    static const char *const kinds[] = {"run", "link", "idle"};
    const lap_analysis_t *analysis = run->analysis;
    const int pid = run->first_pid + PATH_PID;
    put_meta(run, pid, 0, "process_name",
             run->first_pid ? "critical path (simulated)" : "critical path");
    put_order(run, pid, 0, "process_sort_index", run->first_pid ? SIMULATED_PID - 1 : -1);
    put_thread(run, pid, PATH_TID, "critical path");
    for (size_t i = 0; i < analysis->npath; i++) {
        const lap_path_piece_t *piece = &analysis->path[i];
        const lap_trace_record_t *record =
            piece->record == LAP_NO_STEP ? NULL : &analysis->timeline->records[piece->record];
        char name[96];
        if (piece->kind == LAP_PATH_FLIGHT)
            snprintf(name, sizeof(name), "rank %d: %s to rank %" PRId32, piece->rank, record->name,
                     record->peer);
        else if (piece->kind == LAP_PATH_RUN)
            snprintf(name, sizeof(name), "rank %d: %s", piece->rank, record->name);
        else
            snprintf(name, sizeof(name), "rank %d: not running", piece->rank);
        begin_slice(run, pid, PATH_TID, "critical", name, piece->begin, piece->end);
        lap_json_put(run->json, "rank:%d what:%s of:%s call:%s kind:%s", piece->rank,
                     kinds[piece->kind],
                     record && piece->kind == LAP_PATH_RUN ? category(record) : "",
                     record ? record->name : "",
                     record ? lap_traffic_name((lap_traffic_t)record->traffic) : "none");
        end_slice(run);
    }
}

/* ---- all of it ---- */

static void put_process(const run_t *run, int rank)
{
    char name[LAP_PLACE_TEXT + 48], place[LAP_PLACE_TEXT] = "";
    if (run->trace->place)
        run->trace->place(run->trace->context, rank, place, sizeof(place));
    snprintf(name, sizeof(name), "rank %d%s%s%s", rank, *place ? " " : "", place,
             run->first_pid ? " (simulated)" : "");
    put_meta(run, run->first_pid + rank, 0, "process_name", name);
    put_order(run, run->first_pid + rank, 0, "process_sort_index", run->first_pid + rank);
}

static lap_status_t put_run(lap_json_t *json, const lap_trace_file_t *trace,
                            const lap_trace_t *timeline, int first_pid, lap_analysis_t *analysis)
{
    run_t run = {.json = json,
                 .trace = trace,
                 .analysis = analysis,
                 .first_pid = first_pid,
                 .tids = lap_alloc(timeline->nrecords, sizeof(uint32_t))};
    lap_status_t status = LAP_OK;
    if (!run.tids)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for a trace of %zu records",
                           timeline->nrecords);
    if (status == LAP_OK)
        status = lap_analyse(timeline, analysis);
    if (status == LAP_OK)
        put_path(&run);
    for (int r = 0; r < timeline->size && status == LAP_OK; r++) {
        put_process(&run, r);
        lay_out_streams(&run, r);
        for (uint32_t i = analysis->first[r]; i < analysis->first[r + 1]; i++)
            put_record(&run, analysis->order[i]);
        status = put_links(&run, r);
        put_exposed(&run, r);
        put_memory(&run, r);
    }
    for (size_t i = 0; i < timeline->nrecords && status == LAP_OK; i++)
        put_flow(&run, (uint32_t)i);
    lap_free(run.tids);
    return status;
}

/* How clocks were brought together: "one clock", or by how much each was moved. */
static void put_clocks(lap_json_t *json, const lap_trace_t *timeline)
{
    lap_json_put(json, "clocks:[");
    for (int r = 0; timeline->clocks && r < timeline->size; r++)
        lap_json_put(json, "{offset_us:%.3f bound_us:%.3f}", (double)timeline->clocks[r].ns * 1e-3,
                     (double)timeline->clocks[r].bound * 1e-3);
    lap_json_put(json, "]");
}

static void put_side(lap_json_t *json, const char *name, const lap_trace_t *timeline,
                     const lap_analysis_t *analysis, int first_pid)
{
    lap_json_put(json,
                 "%s:{first_pid:%d ranks:%d records:%zu dropped:%zu emulated_link:%i ms:%.6f "
                 "hidden:%.6f by_rank:[",
                 name, first_pid, timeline->size, timeline->nrecords, timeline->dropped,
                 timeline->emulated, (double)(analysis->end - analysis->begin) * 1e-6,
                 lap_analysis_hidden(analysis));
    for (int r = 0; r < timeline->size; r++) {
        const lap_rank_times_t *times = &analysis->ranks[r];
        lap_json_put(json, "{compute_ms:%.6f comm_ms:%.6f hidden_ms:%.6f exposed_ms:%.6f}",
                     (double)times->busy_ns * 1e-6, (double)times->flight_ns * 1e-6,
                     (double)times->hidden_ns * 1e-6,
                     (double)(times->flight_ns - times->hidden_ns) * 1e-6);
    }
    lap_json_put(json, "]");
    put_clocks(json, timeline);
    lap_json_put(json, "}");
}

static lap_status_t put_file(lap_json_t *json, const lap_trace_file_t *trace)
{
    lap_analysis_t measured = {.timeline = NULL}, simulated = {.timeline = NULL};
    lap_status_t status = LAP_OK;
    lap_json_put(json, "{displayTimeUnit:'ns' traceEvents:[\n");
    if (trace->measured)
        status = put_run(json, trace, trace->measured, 0, &measured);
    if (trace->simulated && status == LAP_OK)
        status = put_run(json, trace, trace->simulated, SIMULATED_PID, &simulated);
    if (status == LAP_OK) {
        lap_json_put(json, "] lapstrake:{version:%s command:%s title:%s", lap_version_string(),
                     trace->command, trace->title);
        if (trace->measured)
            put_side(json, "measured", trace->measured, &measured, 0);
        if (trace->simulated)
            put_side(json, "simulated", trace->simulated, &simulated, SIMULATED_PID);
        if (trace->more)
            trace->more(trace->context, json);
        lap_json_put(json, "}}");
    }
    lap_analysis_clear(&measured);
    lap_analysis_clear(&simulated);
    return status;
}

/* The caller frees the text. */
static lap_status_t make_text(const lap_trace_file_t *trace, char **text_p, size_t *bytes_p)
{
    lap_json_t json = {.file = open_memstream(text_p, bytes_p)};
    if (!json.file)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the text of a trace");
    lap_status_t status = put_file(&json, trace);
    const bool full = ferror(json.file) != 0;
    if ((fclose(json.file) != 0 || full) && status == LAP_OK)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for the text of a trace");
    return status;
}

/* The trace, and the page about it. */
static lap_status_t write_perfetto(const lap_trace_file_t *trace)
{
    char *text = NULL;
    size_t bytes = 0;
    lap_status_t status = make_text(trace, &text, &bytes);
    if (status == LAP_OK && trace->path)
        status = lap_trace_put(trace->path, text, bytes);
    lap_report_trace_t whole = {.data = NULL};
    if (status == LAP_OK && trace->report)
        status = lap_report_read(trace->report, text, bytes, &whole);
    if (status == LAP_OK && trace->report)
        status = lap_report_write(trace->report, &whole, 1);
    lap_report_clear(&whole);
    free(text);
    return status;
}

lap_status_t lap_trace_file_check(const lap_trace_file_t *trace)
{
    if (trace->path && !*trace->path)
        return lap_error(LAP_ERR_INVALID, "the path is empty: expected the file to write");
    if (trace->report)
        LAP_TRY(lap_report_check(trace->report));
    if (trace->path && lap_has_gzip_name(trace->path))
        LAP_TRY(lap_gzip_check());
    return trace->path ? lap_output_check("the trace", trace->path) : LAP_OK;
}

/* Numbers in the file have a point, whatever the locale of the program. */
lap_status_t lap_trace_file_write(const lap_trace_file_t *trace)
{
    locale_t numbers = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    if (!numbers)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to write a trace");
    locale_t before = uselocale(numbers);
    lap_trace_file_t page = *trace;
    lap_status_t status = LAP_OK;
    if (trace->format == LAP_TRACE_KINETO) {
        if (trace->path)
            status = lap_trace_write_kineto(trace);
        page.path = NULL;
    }
    if (status == LAP_OK && (page.path || page.report))
        status = write_perfetto(&page);
    uselocale(before);
    freelocale(numbers);
    return status;
}
