/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the errors of the planner against published steps. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "about.h"
#include "cli.h"
#include "plan.h"
#include "table.h"

enum { SOURCE_WIDTH = 100 };

static bool same_source(const lap_plan_row_t *a, const lap_plan_row_t *b)
{
    return strcmp(a->texts[LAP_ROW_SOURCE], b->texts[LAP_ROW_SOURCE]) == 0;
}

static const char columns[] = "  %-32[model] %-9[GPU] %-8[type] %-26[GPUs = tp x pp x cp x dp] "
                              "%9[step s] %9[planned]  %6[error %]  %-1[]";

static void print_row(const lap_plan_row_t *row, const lap_plan_verdict_t *verdict)
{
    const lap_plan_config_t *config = &verdict->config;
    char what[64];
    snprintf(what, sizeof(what), "%.32s\t%.9s\t%.8s", row->texts[LAP_ROW_MODEL],
             row->texts[LAP_ROW_GPU], row->texts[LAP_ROW_PRECISION]);
    if (verdict->class == LAP_PLAN_REFUSED)
        lap_table_row(columns, "%s\tno plan, line %zu: %s", what, row->line, verdict->why);
    else
        lap_table_row(columns, "%s\t%zu = %zu x %zu x %zu x %zu\t%.3f\t%.3f\t%+.1f\t%s", what,
                      config->gpus, config->tp, config->pp, config->cp, config->dp,
                      verdict->published, verdict->result.seconds, 100 * verdict->error,
                      lap_plan_class_names[verdict->class]);
}

size_t lap_plan_count_refused(const lap_plan_rows_t *rows, const lap_plan_verdict_t *verdicts)
{
    size_t count = 0;
    for (size_t i = 0; i < rows->count; i++)
        count += verdicts[i].class == LAP_PLAN_REFUSED;
    return count;
}

static void print_errors(const lap_plan_rows_t *rows, const lap_plan_verdict_t *verdicts)
{
    static const char *const titles[LAP_PLAN_CLASSES] = {
        "Megatron, NeMo, Bridge, dgxc; fp16, bf16, FP8; A100, H100", "FSDP",
        "other GPUs, types and sources", "no plan"};
    const size_t refused = lap_plan_count_refused(rows, verdicts);
    static const char of[] =
        "%-58[errors]  %4[rows]  %8[median %]  %14[90 % of them %]  %10[within 20 %]";
    printf("\n");
    lap_table_head(of);
    for (int class = 0; class < LAP_PLAN_REFUSED; class ++) {
        const lap_plan_errors_t errors =
            lap_plan_errors(verdicts, rows->count, (lap_plan_class_t) class);
        if (errors.rows > 0)
            lap_table_row(of, "%s\t%zu\t%.1f\t%.1f\t%.0f %%", titles[class], errors.rows,
                          100 * errors.median, 100 * errors.p90, 100 * errors.within);
    }
    if (refused > 0)
        lap_table_row(of, "%s\t%zu", titles[LAP_PLAN_REFUSED], refused);
}

void lap_plan_print_rows(const lap_plan_rows_t *rows, const lap_plan_verdict_t *verdicts)
{
    lap_table_head(columns);
    for (size_t i = 0; i < rows->count; i++) {
        if (i == 0 || !same_source(&rows->list[i - 1], &rows->list[i]))
            printf("%.*s\n", SOURCE_WIDTH, rows->list[i].texts[LAP_ROW_SOURCE]);
        print_row(&rows->list[i], &verdicts[i]);
    }
    print_errors(rows, verdicts);
}

/* ---- JSON ---- */

/* Of no rows there is no error: 0 would be the best. */
static void json_errors(lap_json_t *json, const lap_plan_rows_t *rows,
                        const lap_plan_verdict_t *verdicts, lap_plan_class_t class)
{
    const lap_plan_errors_t errors = lap_plan_errors(verdicts, rows->count, class);
    const bool any = errors.rows > 0;
    lap_json_put(json, "rows:%zu median_error:%.6g p90_error:%.6g within_20_percent:%.6g",
                 errors.rows, any ? errors.median : NAN, any ? errors.p90 : NAN,
                 any ? errors.within : NAN);
}

static void json_row(lap_json_t *json, const lap_plan_row_t *row, const lap_plan_verdict_t *verdict)
{
    const lap_plan_config_t *config = &verdict->config;
    lap_json_put(json, "{line:%zu source:%s model:%s gpu:%s precision:%s class:%s", row->line,
                 row->texts[LAP_ROW_SOURCE], row->texts[LAP_ROW_MODEL], row->texts[LAP_ROW_GPU],
                 row->texts[LAP_ROW_PRECISION], lap_plan_class_names[verdict->class]);
    if (verdict->class == LAP_PLAN_REFUSED)
        lap_json_put(json, "why:%s", verdict->why);
    else
        lap_json_put(json,
                     "gpus:%zu tp:%zu pp:%zu cp:%zu dp:%zu virtual_pp:%zu micro_batch:%zu "
                     "published_s:%.9g planned_s:%.9g error:%.6g",
                     config->gpus, config->tp, config->pp, config->cp, config->dp,
                     config->virtual_pp, config->micro_batch, verdict->published,
                     verdict->result.seconds, verdict->error);
    lap_json_put(json, "}");
}

void lap_plan_json_rows(const lap_plan_rows_t *rows, const lap_plan_verdict_t *verdicts)
{
    lap_json_t json = {.file = stdout};
    lap_json_put(&json, "{");
    json_errors(&json, rows, verdicts, LAP_PLAN_COUNTED);
    for (int class = LAP_PLAN_SHARDED; class < LAP_PLAN_REFUSED; class ++) {
        lap_json_put(&json, "%s:{", lap_plan_class_names[class]);
        json_errors(&json, rows, verdicts, (lap_plan_class_t) class);
        lap_json_put(&json, "}");
    }
    lap_json_put(&json, "%s:%zu by_row:[", lap_plan_class_names[LAP_PLAN_REFUSED],
                 lap_plan_count_refused(rows, verdicts));
    for (size_t i = 0; i < rows->count; i++)
        json_row(&json, &rows->list[i], &verdicts[i]);
    lap_json_put(&json, "]");
    lap_about_json(&json, "cpu");
    lap_json_put(&json, "}");
}
