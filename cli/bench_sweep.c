/* SPDX-License-Identifier: Apache-2.0 */
/* What `lap bench sweep` prints: a line, or an object, for each number of rows. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "table.h"

/* What one line shows. */
typedef struct line {
    const lap_bench_result_t *result;
    const lap_bench_case_t *it;
    size_t best;      /* the fastest correct method other than auto, serial too; SIZE_MAX: none */
    size_t chooser;   /* auto */
    double late_pct;  /* by how much auto is slower than the best */
    double error_pct; /* of the prediction for what auto picked */
} line_t;

static line_t read_line(const lap_bench_t *bench, const lap_bench_result_t *results, size_t i)
{
    line_t line = {.result = &results[i], .it = &bench->cases[i], .best = SIZE_MAX};
    const lap_bench_figure_t *figures = line.result->methods;
    line.chooser = lap_bench_auto(line.it);
    for (size_t method = 0; method < line.it->nmethods; method++)
        if (method != line.chooser && figures[method].ok &&
            (line.best == SIZE_MAX || figures[method].total_ms < figures[line.best].total_ms))
            line.best = method;
    const lap_bench_figure_t *chosen = &figures[line.chooser];
    if (line.best != SIZE_MAX)
        line.late_pct = 100 * (chosen->total_ms / figures[line.best].total_ms - 1);
    line.error_pct = 100 * (chosen->predicted_ms / chosen->total_ms - 1);
    return line;
}

/* Overlap pays where a method beats serial by more than the noise of the two, which takes rounds. */
static bool pays(const line_t *line)
{
    const lap_bench_figure_t *serial = &line->result->methods[0];
    if (line->best == SIZE_MAX || line->best == 0 || line->result->rounds < 2)
        return false;
    const lap_bench_figure_t *best = &line->result->methods[line->best];
    return best->total_ms + best->noise_ms < serial->total_ms - serial->noise_ms;
}

static double efficiency_of(const line_t *line)
{
    double efficiency, unused;
    if (line->best == SIZE_MAX ||
        lap_bench_efficiency(line->result, line->best, &efficiency, &unused) != LAP_BENCH_KNOWN)
        return NAN;
    return efficiency;
}

/* By how many per cent auto takes longer than the baseline. */
static double over_baseline(const line_t *line)
{
    const lap_bench_figure_t *figures = line->result->methods;
    return 100 * (figures[line->chooser].total_ms / figures[line->it->nmethods].total_ms - 1);
}

/*
 * "pipeline:num_splits=8" as "pipeline:8": no method has two knobs of its own with a number.
 * num_sm, which all have, keeps its name.
 */
static void shorten(const char *label, char text[LAP_LIST_TEXT])
{
    static const char whole[] = ":num_sm=";
    size_t used = 0;
    text[0] = '\0';
    while (*label) {
        const size_t length = 1 + strcspn(label + 1, ":"); /* of a knob with the colon before it */
        const char *sign = memchr(label, '=', length);
        const bool named = !sign || strncmp(label, whole, strlen(whole)) == 0;
        const char *rest = named ? label + 1 : sign + 1;
        used += (size_t)snprintf(text + used, LAP_LIST_TEXT - used, "%c%.*s", *label,
                                 (int)(label + length - rest), rest);
        label += length;
    }
}

static void best_text(const line_t *line, char text[LAP_LIST_TEXT])
{
    shorten(line->best == SIZE_MAX ? "-" : line->it->methods[line->best].label, text);
}

/* Of the column of the best methods. */
static int best_width(const lap_bench_t *bench, const lap_bench_result_t *results)
{
    int widest = 6;
    for (size_t i = 0; i < bench->ncases; i++) {
        const line_t line = read_line(bench, results, i);
        char best[LAP_LIST_TEXT];
        best_text(&line, best);
        widest = (int)strlen(best) > widest ? (int)strlen(best) : widest;
    }
    return widest;
}

/* "12.345 \xc2\xb1 7%" */
static void time_text(const line_t *line, size_t method, char text[LAP_LIST_TEXT])
{
    const lap_bench_figure_t *figure = method == SIZE_MAX ? NULL : &line->result->methods[method];
    if (!figure)
        snprintf(text, LAP_LIST_TEXT, "-      ");
    else if (line->result->rounds > 1)
        snprintf(text, LAP_LIST_TEXT, "%.3f \xc2\xb1%3.0f%%", figure->total_ms,
                 100 * figure->noise_ms / figure->total_ms);
    else
        snprintf(text, LAP_LIST_TEXT, "%.3f     -", figure->total_ms);
}

/* E of the best, with its error bar if there is one. */
static void efficiency_text(const line_t *line, char text[LAP_LIST_TEXT])
{
    double value, noise;
    if (line->best == SIZE_MAX ||
        lap_bench_efficiency(line->result, line->best, &value, &noise) != LAP_BENCH_KNOWN)
        snprintf(text, LAP_LIST_TEXT, "-");
    else
        snprintf(text, LAP_LIST_TEXT, isfinite(noise) ? "%.2f\xc2\xb1%.2f" : "%.2f", value, noise);
}

static void print_line(const line_t *line, const char *columns)
{
    const lap_bench_figure_t *figures = line->result->methods;
    const lap_bench_figure_t *chosen = &figures[line->chooser];
    const bool predicted = chosen->predicted_ms > 0, baseline = line->it->baseline;
    char best[LAP_LIST_TEXT], picked[LAP_LIST_TEXT], serial_ms[LAP_LIST_TEXT],
        best_ms[LAP_LIST_TEXT], auto_ms[LAP_LIST_TEXT], efficiency[LAP_LIST_TEXT];
    shorten(chosen->picked, picked);
    best_text(line, best);
    time_text(line, 0, serial_ms);
    time_text(line, line->best, best_ms);
    time_text(line, line->chooser, auto_ms);
    efficiency_text(line, efficiency);
    lap_table_row(columns, "%s\t%zu\t%.3f\t%s\t%s\t%s\t%s\t%s\t%.3f\t%+.0f%%\t%.3f\t%+.1f%%\t%s",
                  pays(line) ? "*" : "", line->it->m, line->result->gemm_ms, serial_ms, best,
                  best_ms, efficiency, auto_ms, predicted ? chosen->predicted_ms : NAN,
                  predicted ? line->error_pct : NAN,
                  baseline ? figures[line->it->nmethods].total_ms : NAN,
                  baseline ? over_baseline(line) : NAN, picked);
}

/*
 * The worst that auto does against the baseline; and where it should win, since the communication
 * of the baseline is more than a tenth of the GEMM, and does not.
 */
static void print_against_baseline(const lap_bench_t *bench, const lap_bench_result_t *results)
{
    double worst = -INFINITY;
    size_t worst_m = 0, should = 0, does = 0;
    for (size_t i = 0; i < bench->ncases; i++) {
        const line_t line = read_line(bench, results, i);
        const double over = over_baseline(&line);
        const double base_ms = line.result->methods[line.it->nmethods].total_ms;
        if (over > worst) {
            worst = over;
            worst_m = line.it->m;
        }
        if (base_ms > 1.1 * line.result->gemm_ms) {
            should++;
            does += over < 0;
        }
    }
    printf("Against the baseline %s auto did worst at M = %zu: %+.1f %%. Where the communication "
           "of\nthe baseline is more than 10 %% of the GEMM, auto is faster at %zu of %zu M.\n",
           bench->baseline->name, worst_m, worst, does, should);
}

void lap_bench_print_sweep(const lap_bench_t *bench, const lap_bench_result_t *results)
{
    const lap_bench_case_t *it = &bench->cases[0];
    char sizes[64];
    snprintf(sizes, sizeof(sizes), "N K = %zu %zu", it->n, it->k);
    lap_bench_print_request(bench, sizes, &results[0],
                            bench->link.ratio > 0 ? " for the first M" : "");
    const char *baseline = bench->baseline ? bench->baseline->name : "";
    const int width = bench->baseline ? 8 : 0;
    char columns[256];
    snprintf(columns, sizeof(columns),
             "%%-1[]%%6[M] %%7[GEMM] %%13[serial, noise] %%-%d[best] %%13[ms, noise] %%9[E] "
             "%%13[auto, noise] %%?7[f'cast] %%?5[off] %%%d[%s] %%%d[auto/%s] %%-6[picked]",
             best_width(bench, results), width, baseline, width, baseline);
    printf("\n");
    lap_table_head(columns);
    double latest = -INFINITY;
    size_t latest_m = 0;
    for (size_t i = 0; i < bench->ncases; i++) {
        const line_t line = read_line(bench, results, i);
        print_line(&line, columns);
        if (line.late_pct > latest) {
            latest = line.late_pct;
            latest_m = line.it->m;
        }
    }
    lap_bench_print_interrupted(bench);
    if (bench->quiet)
        return;
    printf("\n* overlap pays: the best method beats serial by more than the noise of the "
           "two%s.\nTimes in ms, medians of %d round%s, slowest rank; noise: half the distance of "
           "the quartiles. E of\nthe best method: 1 - ECT / ECT of serial, or - where its error "
           "bar is wider than E or there is\nnothing to hide. off: the forecast (f'cast) of auto "
           "against its time. Against the best method\nauto did worst at M = %zu: %+.1f %%.\n",
           bench->iters == 1 ? " (none in one round)" : "", bench->iters,
           bench->iters == 1 ? "" : "s", latest_m, latest);
    lap_bench_print_cores(bench->device, results[0].local_ranks, results[0].cores);
    if (bench->baseline)
        print_against_baseline(bench, results);
}

static void json_line(lap_json_t *json, const line_t *line)
{
    const lap_bench_result_t *result = line->result;
    const lap_bench_figure_t *figures = result->methods;
    const lap_bench_figure_t *chosen = &figures[line->chooser];
    const lap_bench_figure_t *best = line->best == SIZE_MAX ? NULL : &figures[line->best];
    const lap_bench_figure_t *baseline = line->it->baseline ? &figures[line->it->nmethods] : NULL;
    const bool noise = result->rounds > 1; /* a single round has none */
    lap_json_put(json, "{m:%zu", line->it->m);
    lap_bench_json_link(json, &result->link);
    lap_json_put(
        json,
        "gemm_ms:%.6g serial_ms:%.6g best:%s best_ms:%.6g best_noise_ms:%.6g efficiency:%.6g "
        "overlap_pays:%i auto_ms:%.6g auto_noise_ms:%.6g predicted_ms:%.6g picked:%s",
        result->gemm_ms, figures[0].total_ms, best ? line->it->methods[line->best].label : NULL,
        best ? best->total_ms : NAN, best && noise ? best->noise_ms : NAN, efficiency_of(line),
        pays(line), chosen->total_ms, noise ? chosen->noise_ms : NAN,
        chosen->predicted_ms > 0 ? chosen->predicted_ms : NAN, chosen->picked);
    if (baseline)
        lap_json_put(json, "baseline_ms:%.6g baseline_noise_ms:%.6g", baseline->total_ms,
                     noise ? baseline->noise_ms : NAN);
    lap_json_put(json, "gemm_noise_ms:%.6g serial_noise_ms:%.6g gemm_flops:%.6g gemm_tflops:%.6g",
                 noise ? result->gemm_noise_ms : NAN, noise ? figures[0].noise_ms : NAN,
                 lap_bench_flops(&result->shape),
                 lap_bench_tflops(&result->shape, result->gemm_ms));
    lap_bench_json_rounds(json, "gemm_rounds_ms", result->gemm_rounds_ms, 2 * result->rounds);
    lap_json_put(json, "methods:[");
    for (size_t i = 0; i < line->it->nmethods; i++)
        lap_bench_json_method(json, line->it, result, i);
    lap_json_put(json, "]}");
}

void lap_bench_print_sweep_json(const lap_bench_t *bench, const lap_bench_result_t *results)
{
    const lap_bench_case_t *it = &bench->cases[0];
    lap_json_t json = {.file = stdout};
    lap_json_put(&json, "{op:'sweep' of:%s n:%zu k:%zu", lap_op_kind_name(it->kind), it->n, it->k);
    lap_bench_json_types(&json, &results[0].shape);
    lap_json_put(&json, "ranks:%d device:%s transport:%s rounds:%d points:[",
                 results[0].shape.nranks, bench->device, bench->transport, bench->iters);
    for (size_t i = 0; i < bench->ncases; i++) {
        const line_t line = read_line(bench, results, i);
        json_line(&json, &line);
    }
    lap_json_put(&json, "]");
    lap_bench_json_end(&json, bench, &results[0]);
}
