/* SPDX-License-Identifier: Apache-2.0 */
/* `lap tune`: what was found, as a table or as JSON. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "about.h"
#include "bench.h"
#include "table.h"
#include "tune.h"

static void print_json(const lap_tune_t *tune, const lap_tune_entry_t *entry,
                       const lap_tune_effort_t *effort)
{
    const lap_tune_end_t *end = &entry->end;
    const bool tuned = end->best == LAP_TUNE_TUNED; /* else other rules were timed */
    char text[LAP_TUNE_TEXT];
    lap_json_t json = {.file = stdout};
    lap_json_put(&json, "{file:%s gemms:{", tune->output);
    for (int u = 0; u < LAP_TUNE_UNITS; u++) {
        const lap_tune_choice_t *choice = &tune->choices[u];
        if (!tune->has[u])
            continue;
        lap_tune_words(&lap_tune_units[u], &entry->rules.rules[lap_tune_units[u].gemm], text);
        lap_json_put(&json, "%s:{rule:%s changed:%i ratio:%.6g}", lap_tune_units[u].name, text,
                     tuned && choice->candidate >= 0, tuned ? choice->ratio : NAN);
    }
    lap_json_put(&json, "}");
    for (int w = 0; w < LAP_TUNE_WAYS; w++) {
        snprintf(text, sizeof(text), "%s_ms", lap_tune_way_names[w]);
        lap_json_put(&json, "%s:%.6g", text, end->seconds[w] * 1e3);
    }
    lap_json_put(&json, "written:%s measured:%s cached:%i", lap_tune_way_names[end->best],
                 entry->date, !effort);
    if (effort)
        lap_json_put(&json, "timed:%d left_out:%d same:%d passes:%d", effort->timed,
                     effort->left_out, effort->same, effort->passes);
    lap_json_put(&json, "heads:%zu heads_given:%zu note:%s", tune->train.desc.heads, tune->heads,
                 *tune->note ? tune->note : NULL);
    lap_about_json(&json, tune->train.device);
    lap_json_put(&json, "}");
}

void lap_tune_print(const lap_tune_t *tune, const lap_tune_entry_t *entry,
                    const lap_tune_effort_t *effort)
{
    const lap_tune_end_t *end = &entry->end;
    if (tune->train.json) {
        print_json(tune, entry, effort);
        return;
    }
    const bool tuned = end->best == LAP_TUNE_TUNED; /* else what was timed were other rules */
    const char *columns =
        tuned ? "%-22[GEMM] %-28[rule] %-1[the layer with it]" : "%-22[GEMM] %-28[rule]";
    lap_table_head(columns);
    for (int u = 0; u < LAP_TUNE_UNITS; u++) {
        const lap_tune_choice_t *choice = &tune->choices[u];
        char text[LAP_TUNE_TEXT], with[LAP_TUNE_TEXT + 64];
        if (!tune->has[u])
            continue;
        lap_tune_words(&lap_tune_units[u], &entry->rules.rules[lap_tune_units[u].gemm], text);
        if (choice->candidate >= 0)
            snprintf(with, sizeof(with), "%.1f %% faster than with %s",
                     100 * (1 / choice->ratio - 1), choice->other);
        else if (choice->other[0])
            snprintf(with, sizeof(with), "nearest: %s, %+.1f %%", choice->other,
                     100 * (choice->ratio - 1));
        else
            snprintf(with, sizeof(with), "nothing else was timed");
        lap_table_row(columns, "%s\t%s\t%s", lap_tune_units[u].name, text, with);
    }
    if (effort)
        printf("\n%d timed in %d passes, %d left out by simulation, %d where auto changed nothing.",
               effort->timed, effort->passes, effort->left_out, effort->same);
    else
        printf("\nFrom the cache: measured on %s; --no-cache measures again.", entry->date);
    printf(" Forward and backward of a layer:\n");
    for (int w = 0; w < LAP_TUNE_WAYS; w++)
        printf("  %-10s %.4g ms\n", lap_tune_way_names[w], end->seconds[w] * 1e3);
    printf("%s has the %s rules\n", tune->output, lap_tune_way_names[end->best]);
}
