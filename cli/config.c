/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of NeMo and Megatron: each key that concerns us is a row (config_rows.h), which says which option it is and
 * what its value may be (config_values.c). Here is what keys mean: which row each is, references to others, contradictions,
 * and what follows from two of them. What options mean together they say themselves.
 */
#include "config.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <lap/tp_overlap.h>

#include "config_values.h"
#include "core/status.h"
#include "core/yaml.h"
#include "nn/nn_fields.h"

enum { ASSUMED = 160 };

typedef struct config {
    lap_config_given_t given;
    size_t lines[ROWS]; /* 0: not there */
    char values[ROWS][LAP_YAML_VALUE];
    const row_t *from[LAP_CONFIG_ARGUMENTS]; /* which of the rows each comes from */
    const char
        *model;  /* a file with a vocabulary, or embeddings, is of one: which it is made from */
    bool serial; /* nothing is overlapped: switches of overlap say nothing */
    bool positions_of_seq; /* max_position_embeddings refers to the length of sequences */
    char unused[8192];     /* a whole file of NeMo has about 3000 letters of them */
    bool cut;              /* there are more of them */
} config_t;

static config_t config_read; /* the last one */

/* Whether a path ends in a key, from a whole name on. */
static bool ends_in(const char *path, const char *key)
{
    const size_t length = strlen(path), own = strlen(key);
    return length >= own && strcmp(path + length - own, key) == 0 &&
           (length == own || path[length - own - 1] == '.');
}

static const row_t *find_row(const char *path)
{
    for (size_t i = 0; i < ROWS; i++)
        if (ends_in(path, rows[i].key))
            return &rows[i];
    return NULL;
}

/*
 * References as files of NeMo have them: to the key that is another name of the same, which gives the value itself; and
 * ${multiply:4, ${.hidden_size}}. False: it is none of these.
 */
static bool follow(config_t *config, const lap_yaml_entry_t *entry, const row_t *row)
{
    static const char product[] = "${multiply:";
    const char *value = entry->value;
    char name[64], factor[8];
    int end = 0;
    if (entry->kind != LAP_YAML_SCALAR || !entry->whole)
        return false;
    if (row->option && strcmp(row->option, "ffn") == 0 &&
        strncmp(value, product, strlen(product)) == 0 &&
        sscanf(value + strlen(product), "%7[0-9] , ${%63[a-z_.]}}%n", factor, name, &end) == 2 &&
        value[strlen(product) + (size_t)end] == '\0' && end > 0 &&
        ends_in(name + strspn(name, "."), "hidden_size")) {
        lap_config_give(&config->given, "mlp-expansion-factor", factor);
        return true;
    }
    if (sscanf(value, "${%63[a-z_.]}%n", name, &end) != 1 || end == 0 || value[end] != '\0')
        return false;
    const row_t *other = find_row(name + strspn(name, "."));
    if (other && other->option && row->option && strcmp(other->option, "seq") == 0 &&
        strcmp(row->option, "max-positions") == 0)
        return config->positions_of_seq = true;
    return other && other != row && other->option && row->option &&
           strcmp(other->option, row->option) == 0;
}

/* The name that was meant, or NULL. Up to a quarter of a name may be wrong: others have theirs. */
static const char *find_near(const char *key)
{
    const char *names[ROWS + 1] = {NULL};
    size_t count = 0;
    for (size_t i = 0; i < ROWS; i++)
        if (rows[i].kind != NO_EFFECT && !strchr(rows[i].key, '.'))
            names[count++] = rows[i].key;
    const char *near = lap_nearest_within(key, names, 4);
    const size_t length = strlen(key), own = near ? strlen(near) : 0;
    /* A beginning of a name, or a long one of another meaning, is none of its mistakes. */
    return near && own + 3 >= length && length + 3 >= own && length >= 6 ? near : NULL;
}

static void add_unused(config_t *config, const char *path)
{
    static const char more[] = ", ...";
    const size_t used = strlen(config->unused);
    if (config->cut)
        return;
    config->cut = used + strlen(path) + 2 + sizeof(more) + ASSUMED > sizeof(config->unused);
    snprintf(config->unused + used, sizeof(config->unused) - used, "%s%s",
             used && !config->cut ? ", " : "", config->cut ? more : path);
}

/* Whether the arguments of a row from `first` on are those that the row had before; without arguments, its value. */
static bool is_again(const config_t *config, const row_t *row, size_t first, const char *value)
{
    size_t had = 0, same = 0;
    if (row->kind == HOLD || row->kind == BIAS || row->kind == WINDOW)
        return strcasecmp(config->values[row - rows], value) == 0;
    for (size_t i = 0; i < first; i++) {
        had += config->from[i] == row;
        for (size_t j = first; j < config->given.count; j++)
            same += config->from[i] == row &&
                    strcmp(config->given.arguments[i], config->given.arguments[j]) == 0;
    }
    return had == config->given.count - first && same == had;
}

static bool is_of_samples(const row_t *row)
{
    return strncmp(row->key, "data.", strlen("data.")) == 0;
}

/*
 * Keys that are names of the same must not contradict one another, such as gelu with a gate, which layers do not have.
 * Of other options one key may refine or replace another. A key whose value gives no option, as bf16: false, says nothing.
 */
static lap_status_t check_others(const config_t *config, const lap_yaml_entry_t *entry,
                                 const row_t *row, size_t first)
{
    static const struct {
        const char *option, *expected;
    } alike[] = {
        {"activation", "one activation: gelu without a gate, or swiglu"},
        {"dtype", "one type of numbers"},
        {"tied", "embeddings and output weights that are the same, or are not"},
        {"seq", "one length of sequences"},
    };
    size_t a = 0;
    if (first == config->given.count || !row->option)
        return LAP_OK;
    while (a < sizeof(alike) / sizeof(alike[0]) && strcmp(row->option, alike[a].option) != 0)
        a++;
    for (size_t i = 0; i < first && a < sizeof(alike) / sizeof(alike[0]); i++) {
        const row_t *other = config->from[i];
        if (other != row && !is_of_samples(row) && !is_of_samples(other) && other->option &&
            strcmp(other->option, row->option) == 0 &&
            strcmp(config->given.arguments[i], config->given.arguments[first]) != 0)
            return lap_error(
                LAP_ERR_INVALID, "%s:%zu: %s is '%s', and %s in line %zu is '%s', expected %s",
                config->given.path, entry->line, entry->key, entry->value, other->key,
                config->lines[other - rows], config->values[other - rows], alike[a].expected);
    }
    return LAP_OK;
}

static lap_status_t take_entry(void *context, const lap_yaml_entry_t *entry)
{
    config_t *config = context;
    const row_t *row = find_row(entry->path);
    for (int g = 0; g < LAP_TP_GEMMS && !row; g++) {
        const char *gemm = lap_tp_gemm_name((lap_tp_gemm_t)g);
        const size_t length = strlen(gemm);
        if (strncmp(entry->path, gemm, length) == 0 && strchr(".", entry->path[length]))
            return lap_error(LAP_ERR_INVALID,
                             "%s:%zu: %s is a rule of overlap; expected such files as "
                             "--tp-comm-overlap-cfg, not --config",
                             config->given.path, entry->line, gemm);
    }
    if (!row) {
        const char *near = find_near(entry->key);
        if (near)
            return lap_error(LAP_ERR_INVALID, "%s:%zu: unknown key '%s'; did you mean '%s'?",
                             config->given.path, entry->line, entry->key, near);
        add_unused(config, entry->path);
        return LAP_OK;
    }
    if (row->kind == MOOT || row->kind == NO_EFFECT)
        add_unused(config, entry->path);
    if (row->kind == NO_EFFECT)
        return LAP_OK;
    size_t *line = &config->lines[row - rows];
    const size_t before = config->given.count;
    if (!follow(config, entry, row))
        LAP_TRY(lap_config_take(&config->given, entry, row));
    for (size_t i = before; i < config->given.count; i++)
        config->from[i] = row;
    LAP_TRY(check_others(config, entry, row, before));
    if (*line != 0 && !is_again(config, row, before, entry->value))
        return lap_error(LAP_ERR_INVALID,
                         "%s:%zu: %s is there twice, first in line %zu with another value",
                         config->given.path, entry->line, entry->key, *line);
    if (*line != 0) {
        config->given.count = before;
        return LAP_OK;
    }
    *line = entry->line;
    snprintf(config->values[row - rows], LAP_YAML_VALUE, "%s", entry->value);
    if (config->given.count > before &&
        strstr("vocab positions tied", row->option ? row->option : "?"))
        config->model = config->model ? config->model : "gpt";
    if (config->given.count > before &&
        strcmp(config->given.arguments[before], "--positions=rope") == 0)
        config->model =
            "llama"; /* which has no biases, as models with rotary positions have none */
    config->serial = config->serial || (config->given.count > before && row->option &&
                                        strcmp(row->option, "no-comm-overlap") == 0);
    return LAP_OK;
}

/* The value that the file gives an option, or NULL. */
static const char *find_given(const config_t *config, const char *option)
{
    const size_t length = strlen(option);
    for (size_t i = 0; i < config->given.count; i++) {
        const char *argument = config->given.arguments[i] + strlen("--");
        if (strncmp(argument, option, length) == 0 && argument[length] == '=')
            return argument + length + 1;
    }
    return NULL;
}

static void give_later(config_t *config, const char *key, const char *value)
{
    const row_t *row = find_row(key);
    config->from[config->given.count] = row;
    lap_config_give(&config->given, row->option, value);
}

/* What follows from two keys together. */
static void settle(config_t *config)
{
    const char *seq = find_given(config, "seq"), *iters = find_given(config, "iters");
    const char *style = find_given(config, "lr-decay-style");
    const size_t before = config->given.count;
    char text[32];
    for (size_t i = 0; i < before; i++)
        if (is_of_samples(config->from[i])) { /* counts more, wherever it stands */
            snprintf(text, sizeof(text), "%s", config->values[config->from[i] - rows]);
            give_later(config, config->from[i]->key, text);
        }
    if (config->positions_of_seq && seq)
        give_later(config, "max_position_embeddings", seq);
    if (!config->model && find_given(config, "max-positions"))
        config->model = "gpt"; /* NeMo's positions are learned unless a file says otherwise */
    if (config->given.constant_steps == 0)
        return;
    if (!iters || !style || strcmp(style, "cosine") != 0) {
        add_unused(config, "sched.constant_steps");
        return;
    }
    /* NeMo's rate is the least from there on, and at once where that is before the end of the warm-up. */
    const char *warmup = find_given(config, "lr-warmup-iters");
    const uint64_t steps = strtoull(iters, NULL, 10);
    const uint64_t least = (warmup ? strtoull(warmup, NULL, 10) : 0) + 1;
    uint64_t end = steps > config->given.constant_steps ? steps - config->given.constant_steps : 0;
    end = end < least ? least : end;
    snprintf(text, sizeof(text), "%" PRIu64, end);
    give_later(config, "sched.constant_steps", text);
}

static bool is_on_line(int argc, char **argv, const char *option)
{
    const size_t length = strlen(option);
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], "--", 2) == 0 && strncmp(argv[i] + 2, option, length) == 0 &&
            strchr("=", argv[i][2 + length]))
            return true;
    return false;
}

/*
 * Rotary positions make it a Llama, but Megatron has LayerNorm and GELU with any positions: who meant those should read what
 * was taken. It stands behind the keys without effect.
 */
static void tell_assumed(config_t *config, int argc, char **argv)
{
    static const struct {
        const char *option, *value;
    } assumed[] = {{"norm", "rmsnorm"}, {"activation", "swiglu"}};
    char text[ASSUMED / 2] = "";
    if (!config->model || strcmp(config->model, "llama") != 0 || is_on_line(argc, argv, "model"))
        return;
    for (size_t i = 0; i < sizeof(assumed) / sizeof(assumed[0]); i++)
        if (!find_given(config, assumed[i].option) && !is_on_line(argc, argv, assumed[i].option))
            snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s %s",
                     *text ? " and " : "", assumed[i].option, assumed[i].value);
    const size_t used = strlen(config->unused);
    if (*text)
        snprintf(config->unused + used, sizeof(config->unused) - used,
                 "%s; as of Llama, since it has rotary positions and says nothing else: %s",
                 used ? "" : "none", text);
}

/* Switches of overlap say nothing where there is none, and are left out. */
static bool is_idle(const config_t *config, const char *argument)
{
    return config->serial && strstr(argument, "tp-comm-") != NULL;
}

int lap_config_read(const lap_command_t *command, const char *path, int argc, char **argv,
                    int *argc_p, char ***argv_p, const char **unused_p)
{
    static char *all[LAP_CONFIG_ARGUMENTS + 513];
    static char model[32];
    int count = 1;
    config_read = (config_t){.given = {.path = path}};
    config_t *config = &config_read;
    const lap_status_t status = lap_yaml_read(path, take_entry, config);
    if (status != LAP_OK)
        return lap_args_refused(command, status, "--config");
    settle(config);
    tell_assumed(config, argc, argv);
    if (argc > 512)
        return lap_args_fail(command, "there are %d arguments; expected at most 512 with --config",
                             argc);
    all[0] = argv[0];
    if (config->model) {
        snprintf(model, sizeof(model), "--model=%s", config->model);
        all[count++] = model;
    }
    for (size_t i = 0; i < config->given.count; i++)
        if (!is_idle(config, config->given.arguments[i]))
            all[count++] = config->given.arguments[i];
    for (int i = 1; i < argc; i++)
        all[count++] = argv[i];
    all[count] = NULL;
    *argc_p = count;
    *argv_p = all;
    *unused_p = config->unused;
    return LAP_CLI_GO;
}

const char *lap_config_key(const char *option, size_t *line_p)
{
    const size_t length = strlen(option);
    for (size_t i = config_read.given.count; i-- > 0;) {
        const char *argument = config_read.given.arguments[i] + strlen("--");
        const row_t *row = config_read.from[i];
        if (strncmp(argument, option, length) != 0 || !strchr("=", argument[length]))
            continue;
        *line_p = config_read.lines[row - rows];
        return row->kind == ON_FALSE ? NULL : row->key;
    }
    return NULL;
}

bool lap_config_fits(const lap_command_t *command, const lap_nn_desc_t *desc)
{
    const lap_config_given_t *given = &config_read.given;
    const bool model = desc->kind == LAP_NN_MODEL, biases = desc->bias != 0;
    for (size_t i = 0; model && i < sizeof(given->bias) / sizeof(given->bias[0]); i++)
        if (given->bias[i].key && biases != (strcmp(given->bias[i].value, "true") == 0))
            return lap_args_wrong(command,
                                  "%s:%zu: %s is %s, expected %s: models like GPT have biases, "
                                  "and those like Llama (position_embedding_type: rope) have none",
                                  given->path, given->bias[i].line, given->bias[i].key,
                                  given->bias[i].value, biases ? "true" : "false");
    if (!lap_nn_has_attention(desc) || given->window.tokens == 0 ||
        given->window.tokens >= desc->seq)
        return true;
    return lap_args_wrong(command,
                          "%s:%zu: window_size is %s, expected null, or one of at least the %zu "
                          "tokens of a sequence: attention to fewer is not there yet",
                          given->path, given->window.line, given->window.text, desc->seq);
}
