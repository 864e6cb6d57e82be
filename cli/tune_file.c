/* SPDX-License-Identifier: Apache-2.0 */
/* The files of `lap tune`: the rules that it found, and those found so far beside them. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <lap/lap.h>

#include "core/output.h"
#include "core/status.h"
#include "tune.h"

const char *const lap_tune_way_names[LAP_TUNE_WAYS] = {
    [LAP_TUNE_TUNED] = "tuned",
    [LAP_TUNE_DEFAULT] = "defaults",
    [LAP_TUNE_AUTO] = "auto",
    [LAP_TUNE_SERIAL] = "serial",
};

/* Everything that a search depends on, in one line. */
static void describe(const lap_tune_t *tune, char *text, size_t bytes)
{
    const lap_train_t *train = &tune->train;
    const lap_nn_desc_t *desc = &train->desc;
    struct utsname machine;
    if (uname(&machine) != 0)
        memset(&machine, 0, sizeof(machine));
    snprintf(text, bytes,
             "lap %s, %s, %s, %s, tp %d, %s, hidden %zu, ffn %zu, %zu heads, %zu of keys, seq %zu, "
             "batch %zu, %s%s, recompute %d, sequence parallel %d, rounds %d",
             lap_version_string(), machine.nodename, train->device,
             train->transport ? train->transport : "any transport", train->grid.tp,
             lap_nn_kind_name(desc->kind), desc->hidden, desc->ffn ? desc->ffn : 4 * desc->hidden,
             desc->heads, desc->kv_heads ? desc->kv_heads : desc->heads, desc->seq, desc->batch,
             lap_dtype_name(desc->dtype), desc->fp8 == LAP_FP8_NONE ? "" : ", FP8",
             (int)desc->recompute, desc->sequence_parallel, tune->rounds);
    const size_t used = strlen(text);
    if (train->link.ratio > 0)
        snprintf(text + used, bytes - used, ", link ratio %g", train->link.ratio);
    else if (train->link.link.bytes_per_s > 0)
        snprintf(text + used, bytes - used, ", link %g bytes/s", train->link.link.bytes_per_s);
}

static lap_status_t part_path(const lap_tune_t *tune, char path[PATH_MAX])
{
    if (snprintf(path, PATH_MAX, "%s.part", tune->output) >= PATH_MAX)
        return lap_error(LAP_ERR_INVALID, "--output is a path of %zu bytes, expected fewer than %d",
                         strlen(tune->output), PATH_MAX - 5);
    return LAP_OK;
}

/* ---- what was found so far ---- */

#define LINE 1024

/* "NUMBER CANDIDATE RATIO LEAST MOST OTHER" */
static bool read_choice(const char *line, lap_tune_choice_t choices[LAP_TUNE_CHOICES])
{
    lap_tune_choice_t choice = {.decided = 1};
    int unit, used = 0;
    /* NOLINTNEXTLINE(cert-err34-c): a line that was not written by us is not taken */
    if (sscanf(line, "%d %d %lf %lf %lf %n", &unit, &choice.candidate, &choice.ratio, &choice.least,
               &choice.most, &used) != 5 ||
        unit < 0 || unit >= LAP_TUNE_CHOICES || choice.candidate < -1 ||
        choice.candidate >= LAP_TUNE_MOST)
        return false;
    snprintf(choice.other, sizeof(choice.other), "%.*s", (int)strcspn(line + used, "\n"),
             line + used);
    choices[unit] = choice;
    return true;
}

lap_status_t lap_tune_read(lap_tune_t *tune, int *found_p)
{
    char path[PATH_MAX], line[LINE], key[LINE];
    *found_p = 0;
    LAP_TRY(part_path(tune, path));
    FILE *file = fopen(path, "re");
    if (!file)
        return LAP_OK;
    describe(tune, key, sizeof(key));
    const bool same = fgets(line, sizeof(line), file) && strncmp(line, key, strlen(key)) == 0 &&
                      line[strlen(key)] == '\n';
    while (same && fgets(line, sizeof(line), file) && read_choice(line, tune->choices))
        ++*found_p;
    fclose(file);
    return LAP_OK;
}

lap_status_t lap_tune_keep(const lap_tune_t *tune)
{
    char path[PATH_MAX], key[LINE];
    lap_output_t output;
    LAP_TRY(part_path(tune, path));
    describe(tune, key, sizeof(key));
    LAP_TRY(lap_output_open("what was found so far", path, &output));
    fprintf(output.file, "%s\n", key);
    for (int u = 0; u < LAP_TUNE_CHOICES; u++) {
        const lap_tune_choice_t *choice = &tune->choices[u];
        if (choice->decided)
            fprintf(output.file, "%d %d %.17g %.17g %.17g %s\n", u, choice->candidate,
                    choice->ratio, choice->least, choice->most, choice->other);
    }
    return lap_output_close(&output, true);
}

/* ---- the rules ---- */

static void write_rule(FILE *file, lap_tp_gemm_t gemm, const lap_tp_rule_t *rule)
{
    fprintf(file, "%s:\n  method: %s\n", lap_tp_gemm_name(gemm), lap_tp_method_name(rule->method));
    if (rule->method == LAP_TP_PIPELINE && !rule->atomic_gemm)
        fprintf(file, "  num_splits: %d\n", rule->num_splits);
    if (rule->aggregate)
        fprintf(file, "  aggregate: 1\n");
    if (rule->atomic_gemm)
        fprintf(file, "  atomic_gemm: 1\n");
}

static void write_unit(FILE *file, const lap_tune_t *tune, int u, const lap_tp_overlap_t *rules,
                       bool tuned)
{
    const lap_tune_unit_t *unit = &lap_tune_units[u];
    const lap_tune_choice_t *choice = &tune->choices[u];
    const lap_tp_rule_t *rule = &rules->rules[unit->gemm];
    fprintf(file, "\n");
    if (tuned && choice->candidate >= 0)
        fprintf(file, "# The layer is %.1f %% faster (%.1f to %.1f) than with %s.\n",
                100 * (1 / choice->ratio - 1), 100 * (1 / choice->most - 1),
                100 * (1 / choice->least - 1), choice->other);
    else if (tuned && choice->other[0])
        fprintf(file,
                "# Nothing was surely faster: with the nearest, %s, %+.1f %% (%+.1f to %+.1f).\n",
                choice->other, 100 * (choice->ratio - 1), 100 * (choice->least - 1),
                100 * (choice->most - 1));
    write_rule(file, unit->gemm, rule);
    if (unit->both && !rule->is_reduce_scatter)
        write_rule(file, (lap_tp_gemm_t)(unit->gemm + 1), rule + 1);
}

lap_status_t lap_tune_write(const lap_tune_t *tune, const lap_tp_overlap_t *rules,
                            const lap_tune_end_t *end)
{
    char path[PATH_MAX], key[LINE], date[32];
    lap_output_t output;
    const time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(date, sizeof(date), "%Y-%m-%d", &utc);
    describe(tune, key, sizeof(key));
    LAP_TRY(part_path(tune, path));
    LAP_TRY(lap_output_open("the rules", tune->output, &output));
    fprintf(output.file,
            "# Measured by lap tune, %s: %s.\n# Forward and backward of a layer:", date, key);
    for (int w = 0; w < LAP_TUNE_WAYS; w++)
        fprintf(output.file, "%s %s %.4g ms", w ? "," : "", lap_tune_way_names[w],
                end->seconds[w] * 1e3);
    fprintf(output.file, ".\n");
    if (end->best != LAP_TUNE_TUNED)
        fprintf(output.file, "# In the end %s was the fastest, and is in this file.\n",
                lap_tune_way_names[end->best]);
    for (int u = 0; u < LAP_TUNE_UNITS; u++)
        if (tune->has[u])
            write_unit(output.file, tune, u, rules, end->best == LAP_TUNE_TUNED);
    LAP_TRY(lap_output_close(&output, true));
    if (unlink(path) != 0 && errno != ENOENT)
        return lap_error(LAP_ERR_SYSTEM, "%s cannot be removed: %s", path, strerror(errno));
    return LAP_OK;
}
