/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of settings: each is looked at by the kind of its row, so that a wrong one has its line, and
 * gives options of ours. What keys mean together config.c and the options say.
 */
#include "config_values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/status.h"

lap_status_t lap_config_refuse(const lap_config_given_t *given, const lap_yaml_entry_t *entry,
                               const char *expected)
{
    static const char *const kinds[] = {[LAP_YAML_OTHER] = "a nested list",
                                        [LAP_YAML_ALIAS] = "an alias",
                                        [LAP_YAML_MAPPING] = "a mapping"};
    char value[LAP_YAML_VALUE + 32];
    if (entry->kind >= LAP_YAML_OTHER)
        snprintf(value, sizeof(value), "%s", kinds[entry->kind]);
    else
        snprintf(value, sizeof(value), entry->kind == LAP_YAML_LIST ? "[%s]" : "'%s'",
                 entry->value);
    return lap_error(LAP_ERR_INVALID, "%s:%zu: %s is %s, expected %s", given->path, entry->line,
                     entry->key, value, expected);
}

void lap_config_give(lap_config_given_t *given, const char *option, const char *value)
{
    snprintf(given->arguments[given->count++], LAP_CONFIG_ARGUMENT, "--%s%s%s", option,
             value ? "=" : "", value ? value : "");
}

/* The words for yes and no of YAML 1.1. */
static lap_status_t read_truth(const lap_config_given_t *given, const lap_yaml_entry_t *entry,
                               bool *truth_p)
{
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcasecmp(entry->value, words[i]) == 0) {
            *truth_p = i % 2 == 1;
            return LAP_OK;
        }
    return lap_config_refuse(given, entry, "true or false");
}

static bool is_number(const char *value, double least, double below, bool whole)
{
    char *end;
    const double number = strtod(value, &end);
    return end != value && *end == '\0' && number >= least && number < below &&
           (!whole || strspn(value, "0123456789") == strlen(value));
}

/* Whether a value is a word of a table, or the same number. */
static bool is_word(const char *word, const char *value)
{
    char *end, *end_of_word;
    const double number = strtod(value, &end), other = strtod(word, &end_of_word);
    const bool numbers =
        end != value && *end == '\0' && end_of_word != word && *end_of_word == '\0';
    return strcasecmp(word, value) == 0 || (numbers && !(number < other) && !(number > other));
}

/* Finds a value among "theirs=ours ..."; ours is "" where nothing follows it. */
static bool find_word(const char *words, const char *value, char ours[32])
{
    char all[256];
    snprintf(all, sizeof(all), "%s", words);
    for (char *rest = all, *word; (word = strsep(&rest, " ")) != NULL;) {
        char *equals = strchr(word, '=');
        if (equals)
            *equals = '\0';
        if (!is_word(word, value))
            continue;
        snprintf(ours, 32, "%s", equals ? equals + 1 : "");
        return true;
    }
    return false;
}

/* "layernorm, rmsnorm": what a value may be. */
static void list_words(const char *words, char text[256])
{
    char all[256];
    text[0] = '\0';
    snprintf(all, sizeof(all), "%s", words);
    for (char *rest = all, *word; (word = strsep(&rest, " ")) != NULL;) {
        word[strcspn(word, "=")] = '\0';
        const size_t used = strlen(text);
        snprintf(text + used, 256 - used, "%s%s", used ? ", " : "", word);
    }
}

static lap_status_t take_word(lap_config_given_t *given, const lap_yaml_entry_t *entry,
                              const row_t *row)
{
    char ours[32], expected[300], words[256];
    if (find_word(row->words, entry->value, ours)) {
        if (*ours)
            lap_config_give(given, row->option, ours);
        return LAP_OK;
    }
    list_words(row->words, words);
    snprintf(expected, sizeof(expected), "%s%s%s", strchr(words, ',') ? "one of " : "", words,
             row->kind == ONLY ? ": anything else is not there yet" : "");
    return lap_config_refuse(given, entry, expected);
}

static lap_status_t take_betas(lap_config_given_t *given, const lap_yaml_entry_t *entry)
{
    char first[LAP_YAML_VALUE];
    snprintf(first, sizeof(first), "%s", entry->value);
    char *second = strchr(first, ',');
    if (second)
        *second++ = '\0';
    if (entry->kind != LAP_YAML_LIST || !second || !is_number(first, 0, 1, false) ||
        !is_number(second, 0, 1, false))
        return lap_config_refuse(given, entry, "two numbers below 1, such as [0.9, 0.95]");
    lap_config_give(given, "adam-beta1", first);
    lap_config_give(given, "adam-beta2", second);
    return LAP_OK;
}

/*
 * NeMo writes those before and after a token, which counts besides; -1: all of them. One number counts the token itself.
 * Later ones are masked anyway. See lap_config_fits.
 */
static lap_status_t take_window(lap_config_given_t *given, const lap_yaml_entry_t *entry,
                                const row_t *row)
{
    const bool pair = entry->kind == LAP_YAML_LIST;
    char first[LAP_YAML_VALUE];
    snprintf(first, sizeof(first), "%s", entry->value);
    char *after = strchr(first, ',');
    if (after)
        *after++ = '\0';
    const bool all = strcmp(first, "-1") == 0;
    if (entry->kind == LAP_YAML_OTHER || pair != (after != NULL) ||
        (!all && !is_number(first, pair ? 0 : 1, 1e15, true)) ||
        (pair && strcmp(after, "-1") != 0 && !is_number(after, 0, 1e15, true)))
        return lap_config_refuse(
            given, entry, "null, a number of tokens, or two: of those before a token and after it");
    const uint64_t tokens = all ? 0 : strtoull(first, NULL, 10) + pair;
    if (given->window.tokens > 0 && (tokens == 0 || tokens > given->window.tokens))
        return LAP_OK; /* that of another key is narrower */
    given->window.tokens = tokens;
    given->window.key = row->key;
    given->window.line = entry->line;
    snprintf(given->window.text, sizeof(given->window.text), pair ? "[%.40s]" : "%.40s",
             entry->value);
    return LAP_OK;
}

static lap_status_t take_switch(lap_config_given_t *given, const lap_yaml_entry_t *entry,
                                const row_t *row)
{
    bool truth = false;
    LAP_TRY(read_truth(given, entry, &truth));
    if (row->option && truth == (row->kind == ON_TRUE))
        lap_config_give(given, row->option, NULL);
    return LAP_OK;
}

/* What Megatron's scaling of rotary positions has built in: numbers of Llama 3.1. */
static lap_status_t take_rope(lap_config_given_t *given, const lap_yaml_entry_t *entry)
{
    bool truth = false;
    LAP_TRY(read_truth(given, entry, &truth));
    if (!truth)
        return LAP_OK;
    lap_config_give(given, "rope-factor", "8");
    lap_config_give(given, "rope-low-freq", "1");
    lap_config_give(given, "rope-high-freq", "4");
    lap_config_give(given, "rope-original", "8192");
    return LAP_OK;
}

/* Whether the model has them is known when the command line was read, too: see lap_config_fits. */
static lap_status_t take_bias(lap_config_given_t *given, const lap_yaml_entry_t *entry,
                              const row_t *row)
{
    bool truth = false;
    LAP_TRY(read_truth(given, entry, &truth));
    const bool qkv = strstr(row->key, "qkv") != NULL;
    if (qkv && !truth)
        return LAP_OK; /* Megatron's are in addition to those of all matrices */
    const char *value = truth ? "true" : "false", *other = given->bias[qkv].key;
    if (other && other != row->key && strcmp(given->bias[qkv].value, value) != 0)
        return lap_error(LAP_ERR_INVALID,
                         "%s:%zu: %s is %s, and %s in line %zu is %s, expected both alike",
                         given->path, entry->line, entry->key, value, other, given->bias[qkv].line,
                         given->bias[qkv].value);
    given->bias[qkv].key = row->key;
    given->bias[qkv].value = value;
    given->bias[qkv].line = entry->line;
    return LAP_OK;
}

static lap_status_t take_number(lap_config_given_t *given, const lap_yaml_entry_t *entry,
                                const row_t *row)
{
    static const char *const expected[] = {[COUNT] = "a whole number, 1 or more",
                                           [WHOLE] = "a whole number",
                                           [HOLD] = "a whole number",
                                           [NUMBER] = "a number, 0 or more"};
    const bool whole = row->kind != NUMBER;
    if (!is_number(entry->value, row->kind == COUNT ? 1 : 0, 1e30, whole))
        return lap_config_refuse(given, entry, expected[row->kind]);
    if (row->kind == HOLD)
        given->constant_steps = strtoull(entry->value, NULL, 10);
    else
        lap_config_give(given, row->option, entry->value);
    return LAP_OK;
}

/* NeMo has other words for them, too: all that there are, a list of those to take. */
static lap_status_t take_gpus(lap_config_given_t *given, const lap_yaml_entry_t *entry,
                              const row_t *row)
{
    if (entry->kind == LAP_YAML_SCALAR && entry->whole && is_number(entry->value, 1, 1e9, true))
        lap_config_give(given, row->option, entry->value);
    return LAP_OK;
}

/* As if it were not there, unless the row says what it is. */
static lap_status_t take_null(lap_config_given_t *given, const row_t *row)
{
    char ours[32];
    if (row->words && find_word(row->words, "null", ours) && *ours)
        lap_config_give(given, row->option, ours);
    return LAP_OK;
}

lap_status_t lap_config_take(lap_config_given_t *given, const lap_yaml_entry_t *entry,
                             const row_t *row)
{
    if (entry->kind == LAP_YAML_NULL)
        return take_null(given, row);
    if (row->kind == BETAS)
        return take_betas(given, entry);
    if (row->kind == WINDOW)
        return take_window(given, entry, row);
    if (row->kind == GPUS)
        return take_gpus(given, entry, row);
    if (entry->kind != LAP_YAML_SCALAR || !entry->whole)
        return lap_config_refuse(given, entry, "one value");
    if (strstr(entry->value, "${"))
        return lap_config_refuse(given, entry, "a value: this reference is not followed");
    switch (row->kind) {
    case WORD:
        /* With such a name replicas share the optimizer, which makes no other weights. */
        if (row->option && strcmp(row->option, "optimizer") == 0 &&
            strstr(entry->value, "distributed"))
            lap_config_give(given, "distributed-optimizer", NULL);
        return take_word(given, entry, row);
    case ONLY:
        return take_word(given, entry, row);
    case BIAS:
        return take_bias(given, entry, row);
    case ROPE_3_1:
        return take_rope(given, entry);
    case ON_TRUE:
    case ON_FALSE:
    case MOOT:
        return take_switch(given, entry, row);
    case TEXT:
        lap_config_give(given, row->option, entry->value);
        return LAP_OK;
    default:
        return take_number(given, entry, row);
    }
}
