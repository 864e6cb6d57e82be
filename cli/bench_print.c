/* SPDX-License-Identifier: Apache-2.0 */
/* What `lap bench` prints for people: tables. What it prints for programs is in bench_json.c. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "about.h"
#include "bench.h"
#include "table.h"

#define PAGE 100 /* columns */

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
    return LAP_BENCH_KNOWN;
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

/* How both tables begin: a mark, the operator if there are several, and the method. */
typedef struct layout {
    char rows[256], traced[256]; /* their columns */
    int label;                   /* the width of methods */
} layout_t;

/* Prints a label that is wider than its column as a line of its own, and takes it away. */
static void print_wide(const layout_t *layout, const char **mark_p, const char *op,
                       const char **label_p)
{
    if ((int)strlen(*label_p) <= layout->label)
        return;
    lap_table_row(layout->rows, "%s\t%s\t%s", *mark_p, op, *label_p);
    *mark_p = *label_p = "";
}

static void print_row(const layout_t *layout, const lap_bench_case_t *it,
                      const lap_bench_result_t *result, size_t method)
{
    const lap_bench_figure_t *figure = &result->methods[method];
    const char *mark = lap_bench_fastest(it, result, false) == method ? "*" : "";
    const char *op = lap_op_kind_name(it->kind), *label = it->methods[method].label;
    const double ms = figure->total_ms;
    const double predicted_ms = figure->predicted_ms > 0 ? figure->predicted_ms : NAN;
    const bool noise = result->rounds > 1;
    char efficiency[32] = "-";
    double value, error;
    if (lap_bench_efficiency(result, method, &value, &error) == LAP_BENCH_KNOWN)
        snprintf(efficiency, sizeof(efficiency), noise ? "%.2f\xc2\xb1%.2f" : "%.2f", value, error);
    print_wide(layout, &mark, op, &label);
    lap_table_row(layout->rows,
                  "%s\t%s\t%s\t%.3f\t\xc2\xb1%4.1f%%\t%.2f\t%.3f\t%s\t%.3g\t%.3g\t%.3f\t%+.0f%%\t"
                  "%.3f\t%s",
                  mark, op, label, ms, noise ? percent(figure->noise_ms, ms) : NAN,
                  ms / result->gemm_ms, figure->ect_ms, efficiency,
                  lap_bench_tflops(&result->shape, ms), lap_bench_wire_gbps(figure), predicted_ms,
                  percent(predicted_ms - ms, ms),
                  it->baseline ? ms / result->methods[it->nmethods].total_ms : NAN,
                  figure->ok ? "ok" : "WRONG");
}

static void print_gemm(const layout_t *layout, const lap_bench_case_t *it,
                       const lap_bench_result_t *result)
{
    lap_table_row(layout->rows, "\t%s\tGEMM alone\t%.3f\t\xc2\xb1%4.1f%%\t%.2f\t-\t-\t%.3g",
                  lap_op_kind_name(it->kind), result->gemm_ms,
                  result->rounds > 1 ? percent(result->gemm_noise_ms, result->gemm_ms) : NAN, 1.0,
                  lap_bench_tflops(&result->shape, result->gemm_ms));
}

/* Where the time of a traced call went, and what the verdict rests on. */
static void print_traced(const layout_t *layout, const lap_bench_case_t *it,
                         const lap_bench_figure_t *figure, size_t method)
{
    const lap_bench_traced_t *traced = &figure->traced;
    const char *mark = "", *op = lap_op_kind_name(it->kind), *label = it->methods[method].label;
    char times[96] = "";
    print_wide(layout, &mark, op, &label);
    if (traced->calls > 0)
        snprintf(times, sizeof(times), "%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f", traced->comm_ms,
                 traced->hidden_ms, traced->waited_ms, traced->cause_ms[LAP_CAUSE_WIRE],
                 traced->cause_ms[LAP_CAUSE_LATE], traced->cause_ms[LAP_CAUSE_CORE]);
    lap_table_row(layout->traced, "\t%s\t%s\t%.1e\t%.1e\t%s", op, label, figure->verdict.error,
                  figure->verdict.bound, times);
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

/* The columns that are there, and as many characters for the labels as they need and the page leaves. */
static void lay_out(const lap_bench_t *bench, layout_t *layout)
{
    const bool predicted = lap_bench_auto(&bench->cases[0]) != SIZE_MAX;
    const bool baseline = bench->baseline, traced = bench->trace;
    const int op = bench->ncases > 1 ? 8 : 0;
    size_t widest = strlen("GEMM alone");
    for (size_t c = 0; c < bench->ncases; c++)
        for (size_t i = 0; i < lap_bench_rows(&bench->cases[c]); i++) {
            size_t width = strlen(bench->cases[c].methods[i].label);
            widest = width > widest ? width : widest;
        }
    const int most = PAGE - 67 - (op ? 9 : 0) - (predicted ? 15 : 0) - (baseline ? 8 : 0);
    layout->label = (int)widest < most ? (int)widest : most;
    snprintf(layout->rows, sizeof(layout->rows),
             "%%-1[] %%-%d[op] %%-%d[method] %%8[total ms] %%?6[noise] %%6[\xc3\x97 GEMM] "
             "%%7[ECT ms] %%9[E] %%7[TFLOP/s] %%?6[GB/s] %%?%d[forecast] %%?%d[off] "
             "%%%d[\xc3\x97 base]  %%-7[verdict]",
             op, layout->label, predicted ? 8 : 0, predicted ? 5 : 0, baseline ? 7 : 0);
    snprintf(layout->traced, sizeof(layout->traced),
             "%%-1[] %%-%d[op] %%-%d[one call] %%9[error] %%9[tolerance]%s", op, layout->label,
             traced ? " %9[comm] %8[hidden] %8[waited] %8[wire] %8[late] %8[core]" : "");
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

static void print_rows(const lap_bench_t *bench, const lap_bench_result_t *results)
{
    layout_t layout;
    lay_out(bench, &layout);
    printf("\n");
    lap_table_head(layout.rows);
    for (size_t c = 0; c < bench->ncases; c++) {
        const lap_bench_case_t *it = &bench->cases[c];
        print_gemm(&layout, it, &results[c]);
        for (size_t i = 0; i < lap_bench_rows(it); i++)
            print_row(&layout, it, &results[c], i);
    }
    printf("\n");
    lap_table_head(layout.traced);
    for (size_t c = 0; c < bench->ncases; c++)
        for (size_t i = 0; i < lap_bench_rows(&bench->cases[c]); i++)
            print_traced(&layout, &bench->cases[c], &results[c].methods[i], i);
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
    const bool predicted = lap_bench_auto(&bench->cases[0]) != SIZE_MAX;
    for (size_t c = 0; c < bench->ncases; c++)
        print_heading(bench, c, &results[c]);
    print_rows(bench, results);
    if (predicted)
        print_pick(bench, &results[0]);
    if (!bench->quiet)
        print_remarks(bench, results);
    else if (predicted)
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
                     "round_trip_us:%.6g q1_us:%.6g q3_us:%.6g cores:%d own_core:%i step_us:%.6g",
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
