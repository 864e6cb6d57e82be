/* SPDX-License-Identifier: Apache-2.0 */
/* `lap tune`: what was found, as a table or as JSON. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "about.h"
#include "bench.h"
#include "tune.h"

static void print_json(const lap_tune_t *tune, const lap_tune_entry_t *entry,
                       const lap_tune_effort_t *effort)
{
    const lap_tune_end_t *end = &entry->end;
    printf("{\"file\":");
    lap_json_string(stdout, tune->output);
    printf(",\"gemms\":{");
    const char *comma = "";
    for (int u = 0; u < LAP_TUNE_UNITS; u++) {
        const lap_tune_choice_t *choice = &tune->choices[u];
        char text[LAP_TUNE_TEXT];
        if (!tune->has[u])
            continue;
        lap_tune_words(&lap_tune_units[u], &entry->rules.rules[lap_tune_units[u].gemm], text);
        const bool tuned = end->best == LAP_TUNE_TUNED; /* else other rules were timed */
        printf("%s\"%s\":{\"rule\":\"%s\",\"changed\":%s,", comma, lap_tune_units[u].name, text,
               tuned && choice->candidate >= 0 ? "true" : "false");
        lap_bench_json_number("ratio", tuned ? choice->ratio : NAN);
        printf("}");
        comma = ",";
    }
    printf("}");
    for (int w = 0; w < LAP_TUNE_WAYS; w++)
        printf(",\"%s_ms\":%.6g", lap_tune_way_names[w], end->seconds[w] * 1e3);
    printf(",\"written\":\"%s\",\"measured\":\"%s\",\"cached\":%s", lap_tune_way_names[end->best],
           entry->date, effort ? "false" : "true");
    if (effort)
        printf(",\"timed\":%d,\"left_out\":%d,\"same\":%d,\"passes\":%d", effort->timed,
               effort->left_out, effort->same, effort->passes);
    printf(",\"heads\":%zu,\"heads_given\":%zu", tune->train.desc.heads, tune->heads);
    lap_json_text("note", *tune->note ? tune->note : NULL);
    lap_about_json(tune->train.device);
    printf("}\n");
}

void lap_tune_print(const lap_tune_t *tune, const lap_tune_entry_t *entry,
                    const lap_tune_effort_t *effort)
{
    const lap_tune_end_t *end = &entry->end;
    if (tune->train.json) {
        print_json(tune, entry, effort);
        return;
    }
    if (end->best == LAP_TUNE_TUNED)
        printf("%-22s %-28s %s\n", "GEMM", "rule", "the layer with it");
    else
        printf("%-22s %s\n", "GEMM", "rule");
    for (int u = 0; u < LAP_TUNE_UNITS; u++) {
        const lap_tune_choice_t *choice = &tune->choices[u];
        char text[LAP_TUNE_TEXT];
        if (!tune->has[u])
            continue;
        lap_tune_words(&lap_tune_units[u], &entry->rules.rules[lap_tune_units[u].gemm], text);
        if (end->best != LAP_TUNE_TUNED) { /* what was timed were other rules */
            printf("%-22s %s\n", lap_tune_units[u].name, text);
            continue;
        }
        printf("%-22s %-28s ", lap_tune_units[u].name, text);
        if (choice->candidate >= 0)
            printf("%.1f %% faster than with %s\n", 100 * (1 / choice->ratio - 1), choice->other);
        else if (choice->other[0])
            printf("nearest: %s, %+.1f %%\n", choice->other, 100 * (choice->ratio - 1));
        else
            printf("nothing else was timed\n");
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
