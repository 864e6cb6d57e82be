/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `lap bench` prints for people: tables, and a line of progress on a terminal. What it prints
 * for programs is in bench_json.c.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "about.h"
#include "bench.h"

#define PAGE 100 /* columns */

/* ---- progress ---- */

void lap_bench_progress(bool speaks, const char *format, ...)
{
    if (!speaks || !isatty(STDERR_FILENO))
        return;
    char text[80]; /* a longer line would wrap, and could not be rewritten */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    fprintf(stderr, "\r\033[K%s", text);
    fflush(stderr);
}

void lap_bench_progress_end(bool speaks)
{
    lap_bench_progress(speaks, "%s", "");
}

/* ---- derived figures ---- */

#define WIDEST 0.5 /* an error bar from "nothing is hidden" to "all is" */

lap_bench_lack_t lap_bench_efficiency(const lap_bench_result_t *result, size_t method,
                                      double *efficiency_p, double *noise_p)
{
    const lap_bench_figure_t *serial = &result->methods[0], *figure = &result->methods[method];
    *noise_p = result->rounds > 1 ? figure->efficiency_noise : NAN;
    *efficiency_p = 1 - figure->ect_ms / serial->ect_ms;
    if (method == 0 || strcmp(figure->picked, "serial") == 0 ||
        strncmp(figure->picked, "serial:", strlen("serial:")) == 0)
        return LAP_BENCH_SERIAL;
    if (!serial->ok || !figure->ok)
        return LAP_BENCH_WRONG;
    if (serial->ect_ms <= serial->ect_noise_ms)
        return LAP_BENCH_NO_COST;
    /* Not even whether it is better or worse than serial would be known. */
    if (result->rounds > 1 && !(*noise_p < WIDEST && *noise_p < fabs(*efficiency_p)))
        return LAP_BENCH_NOISE;
    return LAP_BENCH_TELLS;
}

const char *lap_bench_lack_name(lap_bench_lack_t lack)
{
    static const char *const names[LAP_BENCH_LACKS] = {NULL, "serial", "wrong", "nothing to hide",
                                                       "noise"};
    return names[lack];
}

double lap_bench_flops(const lap_bench_shape_t *shape)
{
    return 2.0 * (double)shape->rows.count * (double)shape->cols.count * (double)shape->depth.count;
}

double lap_bench_tflops(const lap_bench_shape_t *shape, double ms)
{
    return ms > 0 ? lap_bench_flops(shape) / ms * 1e-9 : 0;
}

double lap_bench_wire_gbps(const lap_bench_figure_t *figure)
{
    return figure->traced.calls > 0 && figure->total_ms > 0
               ? figure->traced.bytes / figure->total_ms * 1e-6
               : NAN;
}

static bool is_emulated(const lap_link_t *link)
{
    return link->bytes_per_s > 0 || link->latency_s > 0;
}

void lap_bench_link_text(const lap_link_t *link, char *text, size_t bytes)
{
    char rate[32] = "", latency[32] = "";
    if (link->bytes_per_s >= 1e9)
        snprintf(rate, sizeof(rate), " %.3g GB/s", link->bytes_per_s * 1e-9);
    else if (link->bytes_per_s > 0)
        snprintf(rate, sizeof(rate), " %.3g MB/s", link->bytes_per_s * 1e-6);
    if (link->latency_s > 0)
        snprintf(latency, sizeof(latency), " %.3g us", link->latency_s * 1e6);
    snprintf(text, bytes, "%s%s%s%s", is_emulated(link) ? "emulated link" : "no emulated link",
             rate, *rate && *latency ? "," : "", latency);
}

/* ---- the table ---- */

void lap_bench_types_text(const lap_bench_shape_t *shape, char *text, size_t bytes)
{
    const lap_types_t *types = &shape->types;
    char to[32] = "", wire[48] = "", epilogue[LAP_EPILOGUE_TEXT];
    if (types->out != types->a)
        snprintf(to, sizeof(to), " to %s", lap_dtype_name(types->out));
    if (types->wire != (shape->sums ? types->out : types->a))
        snprintf(wire, sizeof(wire), ", %s %s", shape->moved ? "x is" : "wire",
                 lap_dtype_name(types->wire));
    lap_epilogue_text(shape->epilogue, epilogue, sizeof(epilogue));
    snprintf(text, bytes, "%s%s%s%s%s%s", lap_dtype_name(types->a), to, wire,
             shape->layout == LAP_DGRAD && !shape->moved ? ", dgrad" : "",
             shape->epilogue ? ", " : "", shape->epilogue ? epilogue : "");
}

void lap_bench_print_request(const lap_bench_t *bench, const char *sizes,
                             const lap_bench_result_t *result, const char *note)
{
    enum { PIECES = 5, MOST = LAP_BENCH_TYPES_TEXT };
    const lap_bench_shape_t *shape = &result->shape;
    char pieces[PIECES][MOST];
    snprintf(pieces[0], MOST, "%s  %s", lap_op_kind_name(shape->kind), sizes);
    lap_bench_types_text(shape, pieces[1], MOST);
    snprintf(pieces[2], MOST, "%d rank%s", shape->nranks, shape->nranks == 1 ? "" : "s");
    snprintf(pieces[3], MOST, "device %s, transport %s", bench->device, bench->transport);
    lap_bench_link_text(&result->link, pieces[4], MOST);
    size_t used = strlen(pieces[0]);
    printf("%s", pieces[0]);
    for (size_t i = 1; i < PIECES; i++) {
        const char *last = i + 1 == PIECES ? note : "";
        const size_t more = strlen(pieces[i]) + strlen(last) + 2;
        const bool fits = used + more < PAGE; /* with the comma after it */
        printf(",%s%s%s", fits ? " " : "\n  ", pieces[i], last);
        used = fits ? used + more : more;
    }
    printf("\n");
}

static void print_heading(const lap_bench_t *bench, size_t i, const lap_bench_result_t *result)
{
    const lap_bench_case_t *it = &bench->cases[i];
    char sizes[96];
    snprintf(sizes, sizeof(sizes), "M N K = %zu %zu %zu", it->m, it->n, it->k);
    lap_bench_print_request(bench, sizes, result, "");
}

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

/* How the rows of a table look. */
typedef struct layout {
    bool op, predicted, baseline; /* which columns there are */
    bool noise;                   /* one round has none */
    int label;                    /* width of the labels */
} layout_t;

static void print_time(const layout_t *layout, double ms, double noise_ms, double gemm_ms)
{
    printf(" %8.3f ", ms);
    /* The sign counts as two bytes and one column. */
    if (layout->noise)
        printf("\xc2\xb1%4.1f%%", percent(noise_ms, ms));
    else
        printf("%6s", "-");
    printf(" %6.2f", ms / gemm_ms);
}

size_t lap_bench_fastest(const lap_bench_case_t *it, const lap_bench_result_t *result,
                         bool asked_only)
{
    const lap_bench_figure_t *figures = result->methods;
    size_t fastest = SIZE_MAX;
    for (size_t i = 0; i < lap_bench_rows(it); i++)
        if (figures[i].ok && (it->methods[i].asked || !asked_only) &&
            (fastest == SIZE_MAX || figures[i].total_ms < figures[fastest].total_ms))
            fastest = i;
    return fastest;
}

static void print_row(const layout_t *layout, const char *op, const lap_bench_case_t *it,
                      const lap_bench_result_t *result, size_t method)
{
    const lap_bench_figure_t *figure = &result->methods[method];
    const char *mark = lap_bench_fastest(it, result, false) == method ? "*" : " ";
    const char *label = it->methods[method].label;
    char efficiency[32] = "-";
    double value, noise;
    int sign = 0; /* two bytes and one column */
    if (lap_bench_efficiency(result, method, &value, &noise) == LAP_BENCH_TELLS) {
        sign = layout->noise;
        snprintf(efficiency, sizeof(efficiency), sign ? "%.2f\xc2\xb1%.2f" : "%.2f", value, noise);
    }
    if ((int)strlen(label) > layout->label) { /* a line for itself */
        printf("%s %s%s\n", mark, op, label);
        mark = " ";
        label = "";
    }
    printf("%s %s%-*s", mark, op, layout->label, label);
    print_time(layout, figure->total_ms, figure->noise_ms, result->gemm_ms);
    printf(" %7.3f %*s %7.3g", figure->ect_ms, 9 + sign, efficiency,
           lap_bench_tflops(&result->shape, figure->total_ms));
    if (isfinite(lap_bench_wire_gbps(figure)))
        printf(" %6.3g", lap_bench_wire_gbps(figure));
    else
        printf(" %6s", "-");
    if (layout->predicted && figure->predicted_ms > 0)
        printf(" %8.3f %+4.0f%%", figure->predicted_ms,
               percent(figure->predicted_ms - figure->total_ms, figure->total_ms));
    else if (layout->predicted)
        printf(" %8s %5s", "-", "-");
    if (layout->baseline)
        printf(" %7.3f", figure->total_ms / result->methods[it->nmethods].total_ms);
    printf("  %s\n", figure->ok ? "ok" : "WRONG");
}

static void print_gemm(const layout_t *layout, const char *op, const lap_bench_result_t *result)
{
    printf("  %s%-*s", op, layout->label, "GEMM alone");
    print_time(layout, result->gemm_ms, result->gemm_noise_ms, result->gemm_ms);
    printf(" %7s %9s %7.3g\n", "-", "-", lap_bench_tflops(&result->shape, result->gemm_ms));
}

/* Where the time of a traced call went, and what the verdict rests on. */
static void print_traced(const layout_t *layout, const char *op, const lap_bench_case_t *it,
                         const lap_bench_figure_t *figure, size_t method)
{
    const lap_bench_traced_t *traced = &figure->traced;
    const char *label = it->methods[method].label;
    if ((int)strlen(label) > layout->label) { /* a line for itself */
        printf("  %s%s\n", op, label);
        label = "";
    }
    printf("  %s%-*s %9.1e %9.1e", op, layout->label, label, figure->verdict.error,
           figure->verdict.bound);
    if (traced->calls == 0) {
        printf("\n");
        return;
    }
    printf(" %9.3f %8.3f %8.3f", traced->comm_ms, traced->hidden_ms, traced->waited_ms);
    for (int c = 0; c < LAP_CAUSES; c++)
        printf(" %8.3f", traced->cause_ms[c]);
    printf("\n");
}

/* What auto picked, and why. */
static void print_pick(const lap_bench_t *bench, const lap_bench_result_t *result)
{
    const lap_bench_figure_t *figure = &result->methods[lap_bench_auto(&bench->cases[0])];
    printf("\nauto picked %s", figure->picked);
    if (figure->predicted_ms > 0)
        printf(": predicted %.3f ms, serial %.3f ms.", figure->predicted_ms,
               result->methods[0].predicted_ms);
    else
        printf(", without knowing the GEMM that is already running.");
}

/* The columns that are there, and as many for the labels as they need and the page leaves. */
static layout_t lay_out(const lap_bench_t *bench)
{
    layout_t layout = {.op = bench->ncases > 1,
                       .predicted = lap_bench_auto(&bench->cases[0]) != SIZE_MAX,
                       .baseline = bench->baseline != NULL,
                       .noise = bench->iters > 1};
    size_t widest = strlen("GEMM alone");
    for (size_t c = 0; c < bench->ncases; c++)
        for (size_t i = 0; i < lap_bench_rows(&bench->cases[c]); i++) {
            size_t width = strlen(bench->cases[c].methods[i].label);
            widest = width > widest ? width : widest;
        }
    const int most =
        PAGE - 67 - (layout.op ? 9 : 0) - (layout.predicted ? 15 : 0) - (layout.baseline ? 8 : 0);
    layout.label = (int)widest < most ? (int)widest : most;
    return layout;
}

/* Whether some method has no E, for this reason. */
static bool lacks(const lap_bench_t *bench, const lap_bench_result_t *results,
                  lap_bench_lack_t reason)
{
    double value, noise;
    for (size_t c = 0; c < bench->ncases; c++)
        for (size_t i = 1; i < lap_bench_rows(&bench->cases[c]); i++)
            if (lap_bench_efficiency(&results[c], i, &value, &noise) == reason)
                return true;
    return false;
}

void lap_bench_print_cores(const char *device, int local_ranks, int cores)
{
    if (local_ranks > cores && strcmp(device, "cuda") != 0)
        printf("%d ranks share %d core%s: times are those of an oversubscribed machine.\n",
               local_ranks, cores, cores == 1 ? "" : "s");
}

static void print_rows(const lap_bench_t *bench, const lap_bench_result_t *results,
                       const layout_t *layout)
{
    printf("\n  %s%-*s %8s %6s \xc3\x97 GEMM %7s %9s %7s %6s%s%s  %s\n",
           layout->op ? "op       " : "", layout->label, "method", "total ms", "noise", "ECT ms",
           "E", "TFLOP/s", "GB/s", layout->predicted ? " forecast   off" : "",
           layout->baseline ? "  \xc3\x97 base" : "", "verdict");
    for (size_t c = 0; c < bench->ncases; c++) {
        const lap_bench_case_t *it = &bench->cases[c];
        char op[16] = "";
        if (layout->op)
            snprintf(op, sizeof(op), "%-9s", lap_op_kind_name(it->kind));
        print_gemm(layout, op, &results[c]);
        for (size_t i = 0; i < lap_bench_rows(it); i++)
            print_row(layout, op, it, &results[c], i);
    }
}

static void print_causes(const lap_bench_t *bench, const lap_bench_result_t *results,
                         const layout_t *layout)
{
    printf("\n  %s%-*s %9s %9s", layout->op ? "op       " : "", layout->label, "one call", "error",
           "tolerance");
    if (bench->trace)
        printf(" %9s %8s %8s %8s %8s %8s", "comm", "hidden", "waited", "wire", "late", "core");
    printf("\n");
    for (size_t c = 0; c < bench->ncases; c++) {
        const lap_bench_case_t *it = &bench->cases[c];
        char op[16] = "";
        if (layout->op)
            snprintf(op, sizeof(op), "%-9s", lap_op_kind_name(it->kind));
        for (size_t i = 0; i < lap_bench_rows(it); i++)
            print_traced(layout, op, it, &results[c].methods[i], i);
    }
}

/* What the columns mean, and what is missing in them. */
static void print_remarks(const lap_bench_t *bench, const lap_bench_result_t *results)
{
    char calls[32] = "";
    if (bench->calls > 1)
        snprintf(calls, sizeof(calls), " of %d calls", bench->calls);
    printf("\n* fastest. Medians of %zu round%s%s, slowest rank; noise: half the distance of the "
           "quartiles.\nECT: total less GEMM alone of its round. E, efficiency: 1 - ECT / ECT of "
           "serial; 1 is fully\nhidden; its error bar is the noise over the rounds. TFLOP/s of a "
           "rank's GEMM, GB/s that a rank\nsends, over the total. error and tolerance: of the "
           "element with the largest error / tolerance.\n",
           results[0].rounds, results[0].rounds == 1 ? "" : "s", calls);
    if (bench->trace)
        printf(
            "comm to core: ms, mean of the ranks, in the median call of %d. comm: communication,\n"
            "hidden: the rank computed meanwhile. waited: it computed nothing, for data on the "
            "wire,\n"
            "for a rank that was late, or for a core.\n",
            results[0].methods[0].traced.calls);
    if (lacks(bench, results, LAP_BENCH_NO_COST))
        printf(
            "E is left out where ECT of serial is within the noise: there is nothing to hide.\n");
    if (lacks(bench, results, LAP_BENCH_NOISE))
        printf("E is left out where its error bar is wider than E, or than 0.5 to either side.\n");
    if (lacks(bench, results, LAP_BENCH_SERIAL))
        printf("E is left out for auto where it picked serial.\n");
    if (bench->rest_ms > 0)
        printf("A pause of %d ms before each timed part.\n", bench->rest_ms);
    if (bench->baseline)
        printf("The baseline %s is its collective and cblas_sgemm, one after the other.\n",
               bench->baseline->name);
}

void lap_bench_print_table(const lap_bench_t *bench, const lap_bench_result_t *results)
{
    const layout_t layout = lay_out(bench);
    for (size_t c = 0; c < bench->ncases; c++)
        print_heading(bench, c, &results[c]);
    print_rows(bench, results, &layout);
    print_causes(bench, results, &layout);
    if (layout.predicted)
        print_pick(bench, &results[0]);
    if (!bench->quiet)
        print_remarks(bench, results);
    else if (layout.predicted)
        printf("\n");
    lap_bench_print_cores(bench->device, results[0].local_ranks, results[0].cores);
    lap_bench_print_interrupted(bench);
}

/* ---- what was interrupted ---- */

void lap_bench_print_interrupted(const lap_bench_t *bench)
{
    if (!bench->interrupted)
        return;
    printf("Interrupted: %d of %d round%s", bench->last_rounds, bench->asked_iters,
           bench->asked_iters == 1 ? "" : "s");
    if (bench->asked_cases > 1)
        printf(" of case %zu of %zu", bench->begun_cases, bench->asked_cases);
    printf(".\n");
}

void lap_bench_print_nothing(const lap_bench_t *bench)
{
    const char *op = lap_op_kind_name(bench->cases[0].kind);
    const bool sweep = bench->mode == LAP_BENCH_SWEEP;
    lap_json_t json = {.file = stdout};
    if (!bench->json) {
        printf("Interrupted: 0 of %d rounds.\n", bench->asked_iters);
        return;
    }
    lap_json_put(&json, sweep ? "{op:'sweep' of:%s points:[]" : "{op:%s methods:[]", op);
    lap_json_put(&json, "rounds:0 interrupted:true}");
}

/* ---- latency ---- */

void lap_bench_print_latency(const lap_bench_t *bench, const lap_bench_latency_t *result,
                             int nranks)
{
    const lap_stats_t *trip = &result->trip_ns;
    if (bench->json) {
        lap_json_t json = {.file = stdout};
        lap_json_put(&json,
                     "{op:'latency' ranks:%d device:%s transport:%s signals:'host' trips:%d "
                     "round_trip_us:%.6g q1_us:%.6g q3_us:%.6g cores:%d own_core:%c step_us:%.6g",
                     nranks, bench->device, bench->transport, result->trips, trip->median * 1e-3,
                     trip->q1 * 1e-3, trip->q3 * 1e-3, result->cores, result->own_core,
                     result->step_ns * 1e-3);
        lap_about_json(&json, bench->device);
        if (result->interrupted)
            lap_json_put(&json, "interrupted:true");
        lap_json_put(&json, "}");
        return;
    }
    printf("signal there and back  %8.2f us  (quartiles %.2f and %.2f; %d trips between ranks 0 "
           "and 1, %s)\n",
           trip->median * 1e-3, trip->q1 * 1e-3, trip->q3 * 1e-3, result->trips, bench->transport);
    if (result->interrupted)
        printf("Interrupted: %d of %d trips.\n", result->trips, bench->iters);
    printf("executor, a step       %8.2f us  (device %s)\n", result->step_ns * 1e-3, bench->device);
    printf("%d ranks on %d core%s: %s\n", nranks, result->cores, result->cores == 1 ? "" : "s",
           result->own_core ? "each has a core of its own"
                            : "they share cores, so a signal may wait for one");
    if (strcmp(bench->device, "cuda") == 0)
        printf("The signal is that of lap_buffer_raise, from process to process, without the GPU; "
               "those that\noperators wait for on the GPU are not measured.\n");
}
