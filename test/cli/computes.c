/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What hides communication is the same for one call (lap_trace_view, of which the tables are made), for a
 * step (lap_analyse, of which traces and pages are made), and by the names that a page looks at: for steps
 * of every kind, on every stream.
 */
#include <string.h>

#include "schedule/trace.h"
#include "tap.h"
#include "trace_file.h"

enum { BEGIN = 1000, END = 1100 };

/* Written down once more, by kind and by lane. */
static bool expected(uint32_t kind, uint32_t stream)
{
    static const bool kinds[LAP_TRACE_HOST + 1] = {
        [LAP_STEP_GEMM] = true,   [LAP_STEP_PUT] = false,   [LAP_STEP_RAISE] = false,
        [LAP_STEP_WAIT] = false,  [LAP_STEP_REDUCE] = true, [LAP_STEP_COPY] = true,
        [LAP_STEP_SUMS] = true,   [LAP_STEP_KERNEL] = true, [LAP_STEP_CONSUME] = false,
        [LAP_TRACE_HOST] = false,
    };
    static const bool lanes[] = {[LAP_STREAM_COMPUTE] = true, [LAP_STREAM_LANE] = true};
    return stream < LAP_STREAMS && lanes[stream % LAP_STREAM_KINDS] && kinds[kind];
}

/* Nanoseconds of a flight from rank 1 to rank 0 that are hidden by a step of rank 0 that runs all the while. */
static uint64_t hidden_in_call(uint32_t kind, uint32_t stream)
{
    lap_trace_record_t records[2] = {
        {.rank = 0, .kind = kind, .stream = stream, .peer = -1, .span = {BEGIN, BEGIN, END}},
        {.rank = 1,
         .kind = LAP_STEP_PUT,
         .stream = LAP_STREAM_SEND,
         .peer = 0,
         .span = {BEGIN, BEGIN, END},
         .flight = {BEGIN, BEGIN, END}},
    };
    lap_trace_call_t calls[2] = {{.begin = BEGIN, .end = END}, {.begin = BEGIN, .end = END}};
    lap_trace_t trace = {
        .size = 2, .begin = BEGIN, .end = END, .records = records, .nrecords = 2, .calls = calls};
    lap_trace_view_t view;
    if (!tap_success(lap_trace_view(&trace, 0, NULL, &view), "a view"))
        return 0;
    const uint64_t hidden = view.times.hidden_ns;
    tap_ok(hidden + view.waited_ns == END - BEGIN, "what is not hidden is waited for");
    lap_trace_view_clear(&view);
    return hidden;
}

static uint64_t hidden_in_step(uint32_t kind, uint32_t stream)
{
    lap_trace_record_t records[2] = {
        {.rank = 0,
         .kind = kind,
         .stream = stream,
         .peer = -1,
         .signal = LAP_NO_SIGNAL,
         .span = {BEGIN, BEGIN, END}},
        {.rank = 1,
         .kind = LAP_STEP_PUT,
         .stream = LAP_STREAM_SEND,
         .peer = 0,
         .signal = LAP_NO_SIGNAL,
         .span = {BEGIN, BEGIN, END},
         .flight = {BEGIN, BEGIN, END}},
    };
    const lap_trace_t timeline = {.size = 2, .most = 2, .nrecords = 2, .records = records};
    lap_analysis_t analysis = {.timeline = NULL};
    const bool done = tap_success(lap_analyse(&timeline, &analysis), "an analysis");
    const uint64_t hidden = done ? analysis.ranks[0].hidden_ns : 0;
    lap_analysis_clear(&analysis);
    return hidden;
}

int main(void)
{
    for (uint32_t stream = 0; stream < LAP_TRACE_LANES; stream++) {
        const bool named = strstr(lap_stream_name((uint16_t)stream), "compute") != NULL;
        tap_ok(named == expected(LAP_STEP_GEMM, stream), "stream %u is called '%s'", stream,
               lap_stream_name((uint16_t)stream));
        for (uint32_t kind = 0; kind <= LAP_TRACE_HOST; kind++) {
            const char *name = lap_step_kind_name((lap_step_kind_t)kind);
            const bool hides = expected(kind, stream);
            tap_ok(hidden_in_call(kind, stream) == (hides ? END - BEGIN : 0),
                   "%s on stream %u %s in a call", name, stream, hides ? "hides" : "hides nothing");
            tap_ok(hidden_in_step(kind, stream) == (hides ? END - BEGIN : 0),
                   "%s on stream %u %s in a step", name, stream, hides ? "hides" : "hides nothing");
        }
    }
    return tap_done();
}
