/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a call of `lap bench` is spent on: a few calls of a method are traced, and the median one becomes
 * figures, a picture, and a file for other programs (bench_trace.c).
 */
#include <stdio.h>

#include "bench.h"
#include "core/status.h"
#include "progress.h"
#include "ranks.h"
#include "schedule/trace.h"

#define TRACED_CALLS 5 /* of each method, of which the median one is reported, or drawn */

/* What was called, and which of the calls that were traced this is. */
static void write_title(const lap_bench_call_t *call, const lap_bench_result_t *result, char *title,
                        size_t bytes)
{
    const lap_bench_case_t *it = call->it;
    const lap_bench_traced_t *traced = &result->methods[call->method].traced;
    char link[64], types[LAP_BENCH_TYPES_TEXT];
    lap_bench_link_text(&result->link, link, sizeof(link));
    lap_bench_types_text(&result->shape, types, sizeof(types));
    snprintf(title, bytes,
             "%s %s, M N K = %zu %zu %zu, %s, %d ranks (%s, %s), %s: call %d of %d, the median",
             lap_kind_words[it->kind].title, it->methods[call->method].label, it->m, it->n, it->k,
             types, lap_group_size(call->group), call->bench->device, call->bench->transport, link,
             traced->call, traced->calls);
}

/* The index of the median of a few times. */
static size_t median_call(const double *ns, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t below = 0;
        for (size_t j = 0; j < count; j++)
            below += ns[j] < ns[i] || (j < i && ns[j] == ns[i]);
        if (below == count / 2)
            return i;
    }
    return 0;
}

/* A full disk must not cost what was measured: the table is printed all the same. */
static void write_picture(const lap_bench_call_t *call, lap_bench_result_t *result)
{
    const lap_status_t status = lap_trace_draw(call->trace, call->title, call->bench->timeline);
    result->undrawn = status != LAP_OK;
    if (status == LAP_OK)
        return;
    lap_progress_end(true);
    lap_ranks_warn("lap bench", 0, status);
}

/* What the ranks saw of a gathered call, as means. */
static lap_status_t view_call(const lap_trace_t *trace, lap_bench_traced_t *traced)
{
    const double part = 1e-6 / trace->size;
    for (int r = 0; r < trace->size; r++) {
        lap_trace_view_t view;
        LAP_TRY(lap_trace_view(trace, r, NULL, &view));
        traced->comm_ms += (double)view.times.flight_ns * part;
        traced->hidden_ms += (double)view.times.hidden_ns * part;
        traced->waited_ms += (double)view.waited_ns * part;
        for (int c = 0; c < LAP_CAUSES; c++)
            traced->cause_ms[c] += (double)view.cause_ns[c] * part;
        lap_trace_view_clear(&view);
    }
    traced->bytes = lap_trace_bytes(trace) / trace->size;
    return LAP_OK;
}

/* The figures, the picture and the file of a call that is known here; collective. */
static lap_status_t report(const lap_bench_call_t *call, bool draws, bool writes,
                           lap_bench_result_t *result)
{
    lap_status_t status = lap_trace_gather(call->trace, call->group);
    if (status == LAP_OK && lap_group_rank(call->group) == 0)
        status = view_call(call->trace, &result->methods[call->method].traced);
    LAP_TRY(lap_group_agree(call->group, status));
    if (lap_group_rank(call->group) == 0 && draws)
        write_picture(call, result);
    return writes ? lap_bench_write_trace(call, &result->unwritten) : LAP_OK;
}

/* The figures of an unlucky call would mislead: the median one is looked at. */
lap_status_t lap_bench_trace_calls(lap_bench_call_t *call, lap_bench_result_t *result)
{
    const bool chosen = call->it == &call->bench->cases[0] && call->method == result->drawn;
    const bool draws = chosen && call->bench->timeline, writes = chosen && call->bench->trace_path;
    lap_trace_t *traces[TRACED_CALLS] = {NULL};
    double ns[TRACED_CALLS];
    lap_status_t status = LAP_OK;
    lap_progress(call->shows, "%s %s", draws ? "drawing" : "tracing",
                 call->it->methods[call->method].label);
    for (size_t i = 0; i < TRACED_CALLS && status == LAP_OK; i++)
        status = lap_trace_create(&traces[i]);
    status = lap_group_agree(call->group, status);
    for (size_t i = 0; i < TRACED_CALLS && status == LAP_OK; i++)
        status = call->time(call->context, call->method, traces[i], &ns[i]);
    if (status == LAP_OK) {
        const size_t median = median_call(ns, TRACED_CALLS);
        char title[384];
        result->methods[call->method].traced = (lap_bench_traced_t){
            .calls = TRACED_CALLS, .call = (int)median + 1, .total_ms = ns[median] * 1e-6};
        write_title(call, result, title, sizeof(title));
        call->trace = traces[median];
        call->title = title;
        status = report(call, draws, writes, result);
        call->trace = NULL;
        call->title = NULL;
    }
    for (size_t i = 0; i < TRACED_CALLS; i++)
        lap_trace_destroy(traces[i]);
    return status;
}
