/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `lap bench` prints: tables for people, JSON for programs, and a line of progress on a
 * terminal.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

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

bool lap_bench_efficiency(const lap_bench_result_t *result, size_t method, double *efficiency_p)
{
    const lap_bench_figure_t *serial = &result->methods[0];
    double serial_ect = serial->total_ms - result->gemm_ms;
    if (method == 0 || !serial->ok || serial_ect <= serial->noise_ms + result->gemm_noise_ms)
        return false;
    *efficiency_p = 1 - (result->methods[method].total_ms - result->gemm_ms) / serial_ect;
    return true;
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

static void print_heading(const lap_bench_t *bench, size_t i, const lap_bench_result_t *result,
                          int nranks)
{
    const lap_bench_case_t *it = &bench->cases[i];
    char link[64];
    lap_bench_link_text(&result->link, link, sizeof(link));
    printf("%s  M N K = %zu %zu %zu, %s, %d rank%s, device %s, transport %s, %s\n",
           lap_op_kind_name(it->kind), it->m, it->n, it->k, lap_dtype_name(bench->dtype), nranks,
           nranks == 1 ? "" : "s", bench->device, bench->transport, link);
}

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

/* Text that is right-aligned: the sign in it counts as two bytes and one column. */
static void print_row(const char *op, int label_width, const lap_bench_case_t *it,
                      const lap_bench_result_t *result, size_t method, bool predicted)
{
    const lap_bench_figure_t *figure = &result->methods[method];
    const char *mark = result->best == method ? "*" : " ";
    char efficiency[16] = "-";
    double value;
    if (figure->ok && lap_bench_efficiency(result, method, &value))
        snprintf(efficiency, sizeof(efficiency), "%.2f", value);
    printf("%s %s%-*s %10.3f \xc2\xb1%5.1f%% %8.2f %9.3f %11s %10.2e", mark, op, label_width,
           it->methods[method].label, figure->total_ms, percent(figure->noise_ms, figure->total_ms),
           figure->total_ms / result->gemm_ms, figure->total_ms - result->gemm_ms, efficiency,
           figure->max_err);
    if (predicted && figure->predicted_ms > 0)
        printf(" %9.3f %+4.0f%%", figure->predicted_ms,
               percent(figure->predicted_ms - figure->total_ms, figure->total_ms));
    else if (predicted)
        printf(" %9s %5s", "-", "-");
    if (it->baseline)
        printf(" %8.3f", figure->total_ms / result->methods[it->nmethods].total_ms);
    printf("  %s\n", figure->ok ? "ok" : "WRONG");
}

static void print_gemm(const char *op, int label_width, const lap_bench_result_t *result)
{
    printf("  %s%-*s %10.3f \xc2\xb1%5.1f%% %8.2f\n", op, label_width, "GEMM alone",
           result->gemm_ms, percent(result->gemm_noise_ms, result->gemm_ms), 1.0);
}

/* What auto picked, and why. */
static void print_pick(const lap_bench_t *bench, const lap_bench_result_t *result)
{
    const lap_bench_figure_t *figure = &result->methods[lap_bench_auto(&bench->cases[0])];
    printf("\nauto picked %s: predicted %.3f ms, serial %.3f ms.", figure->picked,
           figure->predicted_ms, result->methods[0].predicted_ms);
}

static int widest_label(const lap_bench_t *bench)
{
    size_t widest = strlen("GEMM alone");
    for (size_t c = 0; c < bench->ncases; c++)
        for (size_t i = 0; i < bench->cases[c].nmethods; i++) {
            size_t width = strlen(bench->cases[c].methods[i].label);
            widest = width > widest ? width : widest;
        }
    return (int)widest;
}

void lap_bench_print_table(const lap_bench_t *bench, const lap_bench_result_t *results, int nranks)
{
    bool with_op = bench->ncases > 1;
    int width = widest_label(bench);
    for (size_t c = 0; c < bench->ncases; c++)
        print_heading(bench, c, &results[c], nranks);
    bool predicted = lap_bench_auto(&bench->cases[0]) != SIZE_MAX;
    printf("\n  %s%-*s %10s %7s   \xc3\x97 GEMM %9s %11s %10s%s%s  %s\n",
           with_op ? "op       " : "", width, "method", "total ms", "noise", "ECT ms", "efficiency",
           "max error", predicted ? " predicted error" : "",
           bench->baseline ? "   \xc3\x97 base" : "", "verdict");
    for (size_t c = 0; c < bench->ncases; c++) {
        const lap_bench_case_t *it = &bench->cases[c];
        char op[16] = "";
        if (with_op)
            snprintf(op, sizeof(op), "%-9s", lap_op_kind_name(it->kind));
        print_gemm(op, width, &results[c]);
        for (size_t i = 0; i < lap_bench_rows(it); i++)
            print_row(op, width, it, &results[c], i, predicted);
    }
    if (predicted)
        print_pick(bench, &results[0]);
    printf(
        "\n* best. Medians of %d rounds, slowest rank; noise: half the distance of the quartiles.\n"
        "ECT: total less GEMM alone. Efficiency: 1 - ECT / ECT of serial; 1 is fully hidden.\n",
        bench->iters);
    if (bench->baseline)
        printf("The baseline %s is its collective and cblas_sgemm, one after the other.\n",
               bench->baseline->name);
}

/* ---- JSON ---- */

void lap_bench_json_number(const char *key, double value)
{
    if (isfinite(value))
        printf("\"%s\":%.6g", key, value);
    else
        printf("\"%s\":null", key);
}

void lap_bench_json_link(const lap_link_t *link)
{
    if (!is_emulated(link)) {
        printf("\"link\":null");
        return;
    }
    /* Without a limit of the rate there is no number to give. */
    printf("\"link\":{");
    lap_bench_json_number("gbps", link->bytes_per_s > 0 ? link->bytes_per_s * 1e-9 : INFINITY);
    printf(",");
    lap_bench_json_number("latency_us", link->latency_s * 1e6);
    printf(",\"emulated\":true}");
}

static void json_method(const lap_bench_case_t *it, const lap_bench_result_t *result, size_t method)
{
    const lap_bench_figure_t *figure = &result->methods[method];
    double efficiency;
    if (!figure->ok || !lap_bench_efficiency(result, method, &efficiency))
        efficiency = NAN;
    printf("{\"method\":");
    lap_json_string(stdout, it->methods[method].label);
    printf(",");
    lap_bench_json_number("total_ms", figure->total_ms);
    printf(",");
    lap_bench_json_number("ect_ms", figure->total_ms - result->gemm_ms);
    printf(",");
    lap_bench_json_number("efficiency", efficiency);
    printf(",");
    lap_bench_json_number("max_err", figure->max_err);
    printf(",\"ok\":%s,", figure->ok ? "true" : "false");
    lap_bench_json_number("noise_pct", percent(figure->noise_ms, figure->total_ms));
    printf(",");
    lap_bench_json_number("predicted_ms", figure->predicted_ms > 0 ? figure->predicted_ms : NAN);
    printf(",\"picked\":");
    if (figure->picked[0])
        lap_json_string(stdout, figure->picked);
    else
        printf("null");
    printf("}");
}

void lap_bench_print_json(const lap_bench_t *bench, const lap_bench_result_t *result, int nranks)
{
    const lap_bench_case_t *it = &bench->cases[0];
    printf("{\"op\":\"%s\",\"m\":%zu,\"n\":%zu,\"k\":%zu,\"dtype\":\"%s\",\"ranks\":%d,"
           "\"device\":\"%s\",\"transport\":\"%s\",",
           lap_op_kind_name(it->kind), it->m, it->n, it->k, lap_dtype_name(bench->dtype), nranks,
           bench->device, bench->transport);
    lap_bench_json_link(&result->link);
    printf(",");
    lap_bench_json_number("gemm_ms", result->gemm_ms);
    printf(",");
    lap_bench_json_number("serial_ms", result->methods[0].total_ms);
    printf(",\"methods\":[");
    const char *comma = "";
    for (size_t i = 0; i < it->nmethods; i++) {
        if (!it->methods[i].asked)
            continue;
        fputs(comma, stdout);
        json_method(it, result, i);
        comma = ",";
    }
    printf("],\"best\":");
    if (result->best == SIZE_MAX)
        printf("null");
    else
        lap_json_string(stdout, it->methods[result->best].label);
    printf(",\"rounds\":%d,", bench->iters);
    lap_bench_json_number("gemm_noise_pct", percent(result->gemm_noise_ms, result->gemm_ms));
    if (it->baseline) {
        printf(",\"baseline\":");
        json_method(it, result, it->nmethods);
    }
    printf("}\n");
}

/* ---- latency ---- */

void lap_bench_print_latency(const lap_bench_t *bench, const lap_bench_latency_t *result,
                             int nranks)
{
    const lap_bench_stats_t *trip = &result->trip_ns;
    if (bench->json) {
        printf("{\"op\":\"latency\",\"ranks\":%d,\"device\":\"%s\",\"transport\":\"%s\","
               "\"trips\":%d,\"round_trip_us\":%.6g,\"q1_us\":%.6g,\"q3_us\":%.6g,\"cores\":%d,"
               "\"own_core\":%s,\"step_us\":%.6g}\n",
               nranks, bench->device, bench->transport, bench->iters, trip->median * 1e-3,
               trip->q1 * 1e-3, trip->q3 * 1e-3, result->cores, result->own_core ? "true" : "false",
               result->step_ns * 1e-3);
        return;
    }
    printf("signal there and back  %8.2f us  (quartiles %.2f and %.2f; %d trips between ranks 0 "
           "and 1, %s)\n",
           trip->median * 1e-3, trip->q1 * 1e-3, trip->q3 * 1e-3, bench->iters, bench->transport);
    printf("executor, a step       %8.2f us  (device %s)\n", result->step_ns * 1e-3, bench->device);
    printf("%d ranks on %d core%s: %s\n", nranks, result->cores, result->cores == 1 ? "" : "s",
           result->own_core ? "each has a core of its own"
                            : "they share cores, so a signal may wait for one");
}
