/* SPDX-License-Identifier: Apache-2.0 */
/* The files of `lap tune`: the rules that it found, and a file of those found so far. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <lap/lap.h>

#include "core/output.h"
#include "core/status.h"
#include "nn/nn_fields.h"
#include "nn/tp_overlap.h"
#include "tune.h"

const char *const lap_tune_way_names[LAP_TUNE_WAYS] = {
    [LAP_TUNE_TUNED] = "tuned",
    [LAP_TUNE_DEFAULT] = "defaults",
    [LAP_TUNE_AUTO] = "auto",
    [LAP_TUNE_SERIAL] = "serial",
};

#define LINE 1024

/* The machine and the layer, in a line for people. */
static void describe(const lap_tune_t *tune, int rounds, char *text, size_t bytes)
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
             lap_nn_kind_name(desc->kind), desc->hidden, lap_nn_ffn(desc), desc->heads,
             lap_nn_kv_heads(desc), desc->seq, desc->batch, lap_dtype_name(desc->dtype),
             desc->fp8 == LAP_FP8_NONE ? "" : ", FP8", (int)desc->recompute,
             desc->sequence_parallel, rounds);
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

lap_status_t lap_tune_read(lap_tune_t *tune, int *found_p, bool *other_p)
{
    char path[PATH_MAX];
    lap_tune_key_t key = {.digest = 0};
    lap_tune_entry_t entry;
    *found_p = 0;
    *other_p = false;
    LAP_TRY(part_path(tune, path));
    LAP_TRY(lap_tune_key_init(&tune->train, &key));
    FILE *file = fopen(path, "re");
    if (!file)
        return LAP_OK;
    const bool same = lap_tune_entry_read(file, &key, tune->start.tp, &entry) &&
                      entry.rounds == tune->rounds &&
                      entry.start == lap_tune_rules_digest(&tune->start);
    fclose(file);
    *other_p = !same;
    if (!same)
        return LAP_OK;
    memcpy(tune->choices, entry.choices, sizeof(tune->choices));
    for (int u = 0; u < LAP_TUNE_CHOICES; u++)
        *found_p += entry.choices[u].decided;
    return LAP_OK;
}

lap_status_t lap_tune_keep(const lap_tune_t *tune)
{
    char path[PATH_MAX];
    lap_tune_key_t key = {.digest = 0};
    lap_output_t output;
    lap_tune_entry_t entry = {.rounds = tune->rounds, .start = lap_tune_rules_digest(&tune->start)};
    LAP_TRY(part_path(tune, path));
    LAP_TRY(lap_tune_key_init(&tune->train, &key));
    memcpy(entry.choices, tune->choices, sizeof(entry.choices));
    LAP_TRY(lap_output_open("what was found so far", path, &output));
    lap_tune_entry_write(output.file, &key, &entry);
    return lap_output_close(&output, LAP_OK);
}

/* ---- the rules ---- */

/*
 * All of a rule that is not the default of its method and has an effect on the device, so that it does
 * the same when it is read.
 */
static void write_rule(FILE *file, const lap_tune_t *tune, lap_tp_gemm_t gemm,
                       const lap_tp_overlap_t *rules)
{
    const lap_tp_rule_t *rule = &rules->rules[gemm];
    const lap_tp_rule_t usual = lap_tp_rule_default(gemm, rule->method, rules->tp);
    const unsigned used = lap_tp_overlap_used(rules, gemm, tune->train.device);
    fprintf(file, "%s:\n  method: %s\n", lap_tp_gemm_name(gemm), lap_tp_method_name(rule->method));
    for (size_t f = 0; f < LAP_TP_FIELDS; f++) {
        const lap_field_t *field = &lap_tp_fields[f];
        const uint64_t value = lap_field_number(field, rule);
        if ((used >> f & 1) && value != lap_field_number(field, &usual))
            fprintf(file, "  %s: %d\n", field->name, (int)value);
    }
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
    write_rule(file, tune, unit->gemm, rules);
    if (unit->both && !rule->is_reduce_scatter)
        write_rule(file, tune, (lap_tp_gemm_t)(unit->gemm + 1), rules);
}

/* Whether a rule of the file has a method that is ours alone. */
static bool has_own(const lap_tune_t *tune, const lap_tp_overlap_t *rules)
{
    bool own = false;
    for (int u = 0; u < LAP_TUNE_UNITS; u++) {
        const lap_tp_method_t method = rules->rules[lap_tune_units[u].gemm].method;
        own = own || (tune->has[u] && (method == LAP_TP_SERIAL || method == LAP_TP_AUTO));
    }
    return own;
}

lap_status_t lap_tune_write(const lap_tune_t *tune, const lap_tune_entry_t *entry)
{
    const lap_tune_end_t *end = &entry->end;
    char path[PATH_MAX], text[LINE];
    lap_output_t output;
    describe(tune, entry->rounds, text, sizeof(text));
    LAP_TRY(part_path(tune, path));
    LAP_TRY(lap_output_open("the rules", tune->output, &output));
    fprintf(output.file,
            "# Measured by lap tune, %s: %s.\n# Forward and backward of a layer:", entry->date,
            text);
    for (int w = 0; w < LAP_TUNE_WAYS; w++)
        fprintf(output.file, "%s %s %.4g ms", w ? "," : "", lap_tune_way_names[w],
                end->seconds[w] * 1e3);
    fprintf(output.file, ".\n");
    if (*tune->note)
        fprintf(output.file, "# %s.\n", tune->note);
    if (end->best != LAP_TUNE_TUNED)
        fprintf(output.file, "# In the end %s was the fastest, and is in this file.\n",
                lap_tune_way_names[end->best]);
    if (has_own(tune, &entry->rules))
        fprintf(output.file,
                "# NeMo and Megatron do not know the methods serial and auto: they overlap "
                "such a GEMM in a way of theirs, unless\n# a switch as tp_comm_overlap_ag "
                "turns off all of its kind.\n");
    for (int u = 0; u < LAP_TUNE_UNITS; u++)
        if (tune->has[u])
            write_unit(output.file, tune, u, &entry->rules, end->best == LAP_TUNE_TUNED);
    LAP_TRY(lap_output_close(&output, LAP_OK));
    if (unlink(path) != 0 && errno != ENOENT)
        return lap_error(LAP_ERR_SYSTEM, "%s cannot be removed: %s", path, strerror(errno));
    return LAP_OK;
}
