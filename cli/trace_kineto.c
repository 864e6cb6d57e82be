/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A timeline as PyTorch's profiler (Kineto) would have written it, a file for each rank, for tools such
 * as Holistic Trace Analysis. These distinguish communication from computation by the names of kernels: what
 * is on its way is called ncclKernel_Lapstrake_..., on both ranks, on streams of its own.
 */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "core/status.h"
#include "trace_file.h"
#include "util/alloc.h"

enum {
    COMM_STREAM = 64, /* of the first of those that transfers are on */
    STREAMS_MOST = 64,
};

typedef struct writer {
    lap_json_t json;
    const lap_trace_t *timeline;
    uint64_t begin;
    int rank;
    uint32_t correlation; /* of the latest kernel */
} writer_t;

/* A kernel, and the call of the host that launched it: some tools look for that. */
static void put_kernel(writer_t *writer, const char *prefix, const char *name, uint32_t stream,
                       uint64_t begin, uint64_t end)
{
    lap_json_t *json = &writer->json;
    const double ts = (double)(begin - writer->begin) * 1e-3;
    const uint32_t correlation = ++writer->correlation;
    char text[96];
    lap_json_put(json,
                 "{ph:'X' cat:'cuda_runtime' name:'cudaLaunchKernel' pid:%d tid:1 ts:%.3f "
                 "dur:0.001 args:{correlation:%u}}",
                 1000 + writer->rank, ts, correlation);
    snprintf(text, sizeof(text), "%s%s", prefix, name);
    lap_json_put(json,
                 "{ph:'X' cat:'kernel' name:%s pid:%d tid:%u ts:%.3f dur:%.3f args:{device:%d "
                 "context:1 stream:%u correlation:%u}}",
                 text, writer->rank, stream, ts, (double)(end - begin) * 1e-3, writer->rank, stream,
                 correlation);
}

static void put_transfer(writer_t *writer, const lap_trace_record_t *record, uint64_t *ends)
{
    char name[64];
    uint32_t stream = 0;
    while (stream + 1 < STREAMS_MOST && ends[stream] > record->flight.begin)
        stream++;
    ends[stream] = record->flight.end;
    snprintf(name, sizeof(name), "%s_%s_%" PRId32 "_to_%" PRId32,
             lap_traffic_name((lap_traffic_t)record->traffic), record->name, record->rank,
             record->peer);
    put_kernel(writer, "ncclKernel_Lapstrake_", name, COMM_STREAM + stream, record->flight.begin,
               record->flight.end);
}

/* Tools look for the rank with a space before it. */
static void begin_file(writer_t *writer)
{
    lap_json_t *json = &writer->json;
    char name[24];
    snprintf(name, sizeof(name), "rank %d", writer->rank);
    lap_json_put(json, "{schemaVersion:1 distributedInfo:{backend:'nccl' rank:");
    fputc(' ', json->file);
    lap_json_put(json,
                 "%d world_size:%d} traceEvents:[\n{ph:'M' name:'process_name' pid:%d tid:0 ts:0 "
                 "args:{name:%s}}",
                 writer->rank, writer->timeline->size, writer->rank, name);
}

static lap_status_t put_rank(writer_t *writer)
{
    const lap_trace_t *timeline = writer->timeline;
    const lap_trace_record_t **list = lap_alloc(timeline->nrecords, sizeof(const void *));
    size_t count = 0;
    uint64_t ends[STREAMS_MOST] = {0};
    if (!list)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a trace of %zu records",
                         timeline->nrecords);
    begin_file(writer);
    for (size_t i = 0; i < timeline->nrecords; i++) {
        const lap_trace_record_t *record = &timeline->records[i];
        const bool own = record->rank == writer->rank;
        if (own && lap_step_computes(record->kind, record->stream) &&
            record->span.end > record->span.begin)
            put_kernel(writer, record->m ? "lap_gemm_" : "lap_", record->name, record->stream + 7,
                       record->span.begin, record->span.end);
        if ((own || record->peer == writer->rank) && record->flight.end > record->flight.begin &&
            record->peer != record->rank)
            list[count++] = record;
    }
    qsort(list, count, sizeof(const void *), lap_trace_by_sent);
    for (size_t i = 0; i < count; i++)
        put_transfer(writer, list[i], ends);
    lap_json_put(&writer->json, "]}");
    lap_free(list);
    return LAP_OK;
}

/* "step.json.gz" of rank 3 is "step.3.json.gz". */
static void name_file(const char *path, int rank, char *text, size_t bytes)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const char *dot = strchr(name, '.');
    const size_t stem = dot && dot > name ? (size_t)(dot - path) : strlen(path);
    snprintf(text, bytes, "%.*s.%d%s", (int)stem, path, rank, path + stem);
}

static lap_status_t write_rank(const lap_trace_file_t *trace, uint64_t begin, int rank)
{
    char path[PATH_MAX], *text = NULL;
    size_t bytes = 0;
    name_file(trace->path, rank, path, sizeof(path));
    writer_t writer = {.json = {.file = open_memstream(&text, &bytes)},
                       .timeline = trace->measured,
                       .begin = begin,
                       .rank = rank};
    if (!writer.json.file)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the text of a trace");
    lap_status_t status = put_rank(&writer);
    const bool full = ferror(writer.json.file) != 0;
    if ((fclose(writer.json.file) != 0 || full) && status == LAP_OK)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for the text of a trace");
    if (status == LAP_OK)
        status = lap_trace_put(path, text, bytes);
    free(text);
    return status;
}

lap_status_t lap_trace_write_kineto(const lap_trace_file_t *trace)
{
    const lap_trace_t *timeline = trace->measured;
    uint64_t begin = UINT64_MAX;
    for (size_t i = 0; i < timeline->nrecords; i++) {
        const lap_trace_record_t *record = &timeline->records[i];
        begin = record->span.begin && record->span.begin < begin ? record->span.begin : begin;
        begin = record->flight.begin && record->flight.begin < begin ? record->flight.begin : begin;
    }
    for (int r = 0; r < timeline->size; r++)
        LAP_TRY(write_rank(trace, begin, r));
    return LAP_OK;
}
