/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A search of `lap tune` as text: what it depends on, line by line; then what was found. Both the file of
 * a search that goes on and the entries of the cache are of this form.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lap/lap.h>

#include "about.h"
#include "core/status.h"
#include "device/cuda/cuda_info.h"
#include "nn/nn_fields.h"
#include "nn/tp_overlap.h"
#include "tune.h"
#include "util/cores.h"
#include "util/digest.h"

#define FORMAT 1
#define LINE 512
#define VALUE_MOST (1 << 20) /* of any whole number */

/* ---- what a search depends on ---- */

void lap_tune_layer(lap_nn_desc_t *desc)
{
    desc->layers = 1;
    if (desc->kind != LAP_NN_MODEL)
        return;
    desc->kind = LAP_NN_TRANSFORMER;
    desc->vocab = 0;
    desc->max_positions = 0;
    desc->tied = 0;
    if (desc->positions == LAP_POSITIONS_LEARNED)
        desc->positions = LAP_POSITIONS_NONE;
}

/* What the time of a layer depends on: fields that are only numbers in its kernels are as they are always. */
static lap_nn_desc_t timed_fields(const lap_nn_desc_t *given)
{
    const lap_nn_desc_t usual = LAP_NN_DESC_INIT;
    lap_nn_desc_t desc = *given;
    lap_tune_layer(&desc);
    desc.ffn = lap_nn_ffn(&desc);
    desc.kv_heads = lap_nn_kv_heads(&desc);
    desc.seed = usual.seed;
    desc.init_std = usual.init_std;
    desc.epsilon = usual.epsilon;
    desc.loss_scale = usual.loss_scale;
    desc.cp_overlap = usual.cp_overlap; /* there is no context parallelism */
    desc.rope_theta = usual.rope_theta;
    desc.rope_factor = usual.rope_factor;
    desc.rope_low_freq = usual.rope_low_freq;
    desc.rope_high_freq = usual.rope_high_freq;
    desc.rope_original = usual.rope_original;
    return desc;
}

static void add_machine(const lap_train_t *train, lap_terms_t *terms)
{
    char cpu[LAP_ABOUT_TEXT];
    lap_cuda_info_t gpus;
    lap_about_cpu(cpu);
    lap_terms_text(terms, "cpu", cpu);
    lap_terms_number(terms, "cores", (uint64_t)lap_cores());
    if (strcmp(train->device, "cuda") == 0 && lap_cuda_info(&gpus) == LAP_OK) {
        lap_terms_text(terms, "gpu", gpus.gpus[0].name);
        lap_terms_number(terms, "gpus", (uint64_t)gpus.count);
        lap_terms_number(terms, "gpu_share", (uint64_t)train->gpus);
    }
    lap_terms_text(terms, "device", train->device);
    lap_terms_text(terms, "transport", train->transport);
}

lap_status_t lap_tune_key_init(const lap_train_t *train, lap_tune_key_t *key)
{
    const lap_nn_desc_t desc = timed_fields(&train->desc);
    lap_terms_t terms = {.count = 0};
    lap_terms_text(&terms, "version", lap_version_string());
    add_machine(train, &terms);
    lap_terms_real(&terms, "link_ratio", train->link.ratio);
    lap_terms_real(&terms, "link_bytes_per_s", train->link.link.bytes_per_s);
    lap_terms_real(&terms, "link_latency_s", train->link.link.latency_s);
    lap_terms_number(&terms, "tp", (uint64_t)train->grid.tp);
    lap_fields_terms(lap_nn_fields, 0, &desc, &terms);
    lap_status_t status = terms.status;
    int used = snprintf(key->text, sizeof(key->text), "lap tune %d\n", FORMAT);
    for (size_t i = 0; i < terms.count && status == LAP_OK; i++) {
        used += snprintf(key->text + used, sizeof(key->text) - (size_t)used, "%s: %s\n",
                         terms.all[i].name, terms.all[i].value);
        if ((size_t)used >= sizeof(key->text))
            status = lap_error(LAP_ERR_INVALID,
                               "the description of a layer has more than %zu "
                               "bytes, expected fewer",
                               sizeof(key->text) - 1);
    }
    key->digest = lap_digest(LAP_DIGEST_INIT, key->text, strlen(key->text));
    lap_terms_clear(&terms);
    return status;
}

uint64_t lap_tune_rules_digest(const lap_tp_overlap_t *rules)
{
    uint64_t digest = LAP_DIGEST_INIT;
    for (int g = 0; g < LAP_TP_GEMMS; g++) {
        digest = lap_digest(digest, &rules->rules[g].method, sizeof(rules->rules[g].method));
        for (size_t f = 0; f < LAP_TP_FIELDS; f++) {
            const uint64_t value = lap_field_number(&lap_tp_fields[f], &rules->rules[g]);
            digest = lap_digest(digest, &value, sizeof(value));
        }
    }
    return digest;
}

/* ---- written ---- */

static void write_rule(FILE *file, int g, const lap_tp_rule_t *rule)
{
    fprintf(file, "rule %d %d", g, (int)rule->method);
    for (size_t f = 0; f < LAP_TP_FIELDS; f++)
        fprintf(file, " %d", (int)lap_field_number(&lap_tp_fields[f], rule));
    fprintf(file, "\n");
}

void lap_tune_entry_write(FILE *file, const lap_tune_key_t *key, const lap_tune_entry_t *entry)
{
    fprintf(file, "%srounds %d\nstart %016" PRIx64 "\n", key->text, entry->rounds, entry->start);
    for (int u = 0; u < LAP_TUNE_CHOICES; u++) {
        const lap_tune_choice_t *choice = &entry->choices[u];
        if (!choice->decided && choice->next == 0)
            continue;
        if (choice->decided)
            fprintf(file, "choice");
        else
            fprintf(file, "begun %d", choice->next);
        fprintf(file, " %d %d %.17g %.17g %.17g %s\n", u, choice->candidate, choice->ratio,
                choice->least, choice->most, choice->other);
    }
    if (!entry->date[0])
        return;
    fprintf(file, "date %s\nend %d", entry->date, entry->end.best);
    for (int w = 0; w < LAP_TUNE_WAYS; w++)
        fprintf(file, " %.17g", entry->end.seconds[w]);
    fprintf(file, "\n");
    for (int g = 0; g < LAP_TP_GEMMS; g++)
        write_rule(file, g, &entry->rules.rules[g]);
}

/* ---- read ---- */

/* The numbers of a line, as many as there should be; *rest_p is what follows them. */
static bool read_numbers(const char *line, double *values, int count, const char **rest_p)
{
    for (int i = 0; i < count; i++) {
        char *end;
        values[i] = strtod(line, &end);
        if (end == line || (*end != ' ' && *end != '\n' && *end != '\0') || !(values[i] < 1e9) ||
            !(values[i] > -1e9))
            return false;
        line = end;
    }
    *rest_p = *line == ' ' ? line + 1 : line;
    return true;
}

/* A whole number within bounds, of a line. */
static bool is_within(double value, int least, int most)
{
    return value >= least && value <= most && value == (double)(int)value;
}

/* The beginning has one, all serial. */
static int candidates_of(int choice, int tp)
{
    lap_tune_candidate_t candidates[LAP_TUNE_MOST];
    return choice == LAP_TUNE_START
               ? 1
               : (int)lap_tune_candidates(&lap_tune_units[choice], tp, candidates);
}

/* "UNIT CANDIDATE RATIO LEAST MOST OTHER", of what was decided; or so far, with the candidate that is the next. */
static bool read_choice(const char *line, int next, int tp, lap_tune_entry_t *entry)
{
    double values[5];
    if (!read_numbers(line, values, 5, &line) || !is_within(values[0], 0, LAP_TUNE_CHOICES - 1))
        return false;
    const int count = candidates_of((int)values[0], tp);
    if (next > count || !is_within(values[1], -1, count - 1))
        return false;
    lap_tune_choice_t *choice = &entry->choices[(int)values[0]];
    *choice = (lap_tune_choice_t){.decided = next == 0,
                                  .next = next,
                                  .candidate = (int)values[1],
                                  .ratio = values[2],
                                  .least = values[3],
                                  .most = values[4]};
    snprintf(choice->other, sizeof(choice->other), "%.*s", (int)strcspn(line, "\n"), line);
    return true;
}

/* "BEST SECONDS SECONDS ..." */
static bool read_end(const char *line, lap_tune_entry_t *entry)
{
    double values[1 + LAP_TUNE_WAYS];
    if (!read_numbers(line, values, 1 + LAP_TUNE_WAYS, &line) ||
        !is_within(values[0], 0, LAP_TUNE_WAYS - 1))
        return false;
    entry->end.best = (int)values[0];
    memcpy(entry->end.seconds, values + 1, sizeof(entry->end.seconds));
    return true;
}

/* "GEMM METHOD FIELD FIELD ..." */
static bool read_rule(const char *line, int tp, lap_tune_entry_t *entry)
{
    double values[2 + LAP_TP_FIELDS];
    if (!read_numbers(line, values, 2 + LAP_TP_FIELDS, &line) ||
        !is_within(values[0], 0, LAP_TP_GEMMS - 1) || !is_within(values[1], 0, LAP_TP_AUTO))
        return false;
    const lap_tp_gemm_t gemm = (lap_tp_gemm_t)(int)values[0];
    lap_tp_rule_t *rule = &entry->rules.rules[gemm];
    *rule = (lap_tp_rule_t){.method = (lap_tp_method_t)(int)values[1]};
    for (size_t f = 0; f < LAP_TP_FIELDS; f++) {
        if (!is_within(values[2 + f], -VALUE_MOST, VALUE_MOST))
            return false;
        lap_field_set(&lap_tp_fields[f], rule, (uint64_t)(int64_t)values[2 + f]);
    }
    return lap_tp_rule_check(gemm, rule, tp) == LAP_OK;
}

/* What has been read so far. */
typedef struct reader {
    lap_tune_entry_t *entry;
    int tp, rules;
    bool ends;
} reader_t;

static bool read_line(reader_t *reader, const char *line)
{
    static const char *const words[] = {"rounds", "start", "begun", "choice",
                                        "date",   "end",   "rule",  NULL};
    enum { ROUNDS, START, BEGUN, CHOICE, DATE, END, RULE, WORDS };
    lap_tune_entry_t *entry = reader->entry;
    const char *rest = strchr(line, ' '), *unused;
    double number;
    int word = 0;
    if (!rest || !strchr(line, '\n'))
        return false;
    while (words[word] && strncmp(line, words[word], (size_t)(rest - line)) != 0)
        word++;
    rest++;
    switch (word) {
    case ROUNDS:
        if (!read_numbers(rest, &number, 1, &unused) || !is_within(number, 1, VALUE_MOST))
            return false;
        entry->rounds = (int)number;
        return true;
    case START:
        entry->start = strtoull(rest, NULL, 16);
        return true;
    case BEGUN:
        return read_numbers(rest, &number, 1, &rest) && is_within(number, 1, LAP_TUNE_MOST) &&
               read_choice(rest, (int)number, reader->tp, entry);
    case CHOICE:
        return read_choice(rest, 0, reader->tp, entry);
    case DATE:
        snprintf(entry->date, sizeof(entry->date), "%.*s", (int)strcspn(rest, "\n"), rest);
        return true;
    case END:
        reader->ends = true;
        return read_end(rest, entry);
    case RULE:
        reader->rules++;
        return read_rule(rest, reader->tp, entry);
    default:
        return false;
    }
}

bool lap_tune_entry_read(FILE *file, const lap_tune_key_t *key, int tp, lap_tune_entry_t *entry)
{
    char line[LINE];
    reader_t reader = {.entry = entry, .tp = tp};
    *entry = (lap_tune_entry_t){.rounds = 0};
    if (lap_tp_overlap_init(tp, &entry->rules) != LAP_OK)
        return false;
    for (const char *at = key->text; *at; at += strcspn(at, "\n") + 1)
        if (!fgets(line, sizeof(line), file) || strncmp(line, at, strcspn(at, "\n") + 1) != 0)
            return false;
    while (fgets(line, sizeof(line), file))
        if (!read_line(&reader, line))
            return false;
    const bool whole = reader.ends && entry->date[0] && reader.rules == LAP_TP_GEMMS;
    return entry->rounds > 0 && (whole || (!reader.ends && !entry->date[0] && reader.rules == 0));
}
