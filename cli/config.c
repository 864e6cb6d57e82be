/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of NeMo and Megatron: each key that concerns us is a row (config_rows.h), which says which option it is and
 * what its value may be (config_values.c). Here is what keys mean: which row each is, references to others, contradictions,
 * and what follows from two of them. What options mean together they say themselves. Rows name options of `lap train`; the words
 * of another command say what it has in their place.
 */
#include "config.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <lap/tp_overlap.h>

#include "config_sections.h"
#include "core/status.h"
#include "core/yaml.h"
#include "nn/nn_fields.h"
#include "piped.h"

/* Letters of what is told of a file: all of it, keys of other tools, and what is assumed. A whole file of NeMo has about 3000. */
enum { TOLD = 8192, OTHERS = 6144, ASSUMED = 160 };
enum { FEW = 8 }; /* keys of other tools that are named; of more there is a count */

typedef struct config {
    const lap_command_t *command;   /* that reads it */
    const lap_config_word_t *words; /* of the command; NULL: it has the options of lap train */
    lap_config_given_t given;
    size_t lines[ROWS]; /* 0: not there */
    char values[ROWS][LAP_YAML_VALUE];
    const row_t *from[LAP_CONFIG_ARGUMENTS]; /* the row of each; NULL: it is not given on */
    const char
        *model;  /* a file with a vocabulary, or embeddings, is of one: which it is made from */
    bool serial; /* nothing is overlapped: switches of overlap say nothing */
    bool positions_of_seq; /* max_position_embeddings refers to the length of sequences */
    char unused[TOLD];     /* keys that we know, and that have no effect here, */
    char others[OTHERS];   /* and those of other tools */
    size_t nothers;
} config_t;

static config_t config_read; /* the last one */

/* Whether an argument is the option with a name of this length; *value_p is then its value, or NULL. */
static bool is_named(const char *argument, const char *option, size_t length, const char **value_p)
{
    const char *rest = argument + strlen("--");
    if (strncmp(rest, option, length) != 0)
        return false;
    rest += length;
    *value_p = *rest == '=' ? rest + 1 : NULL;
    return *rest == '=' || *rest == '\0';
}

static bool is_option(const char *argument, const char *option, const char **value_p)
{
    return is_named(argument, option, strlen(option), value_p);
}

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

/*
 * The name that was meant, or NULL. Up to a quarter of a name may be wrong: others have theirs. There are many names of what we do
 * not do, and many like them: of such an eighth.
 */
static const char *find_near(const char *key)
{
    const char *near = NULL;
    for (int only = 0; only < 2 && !near; only++) {
        const char *names[ROWS + 1] = {NULL};
        size_t count = 0;
        for (size_t i = 0; i < ROWS; i++)
            if (rows[i].kind != NO_EFFECT && !strchr(rows[i].key, '.') &&
                (rows[i].kind == ONLY) == (only == 1))
                names[count++] = rows[i].key;
        near = lap_nearest_within(key, names, only ? 8 : 4);
    }
    const size_t length = strlen(key), own = near ? strlen(near) : 0;
    /* A beginning of a name, or a long one of another meaning, is none of its mistakes. */
    return near && own + 3 >= length && length + 3 >= own && length >= 6 ? near : NULL;
}

/* Adds a name to a list. One that is full ends with "...", and `rest` letters are left. */
static void add_name(char *list, size_t room, size_t rest, const char *name)
{
    static const char more[] = "...";
    const size_t used = strlen(list), end = strlen(more);
    if (used >= end && strcmp(list + used - end, more) == 0)
        return;
    const bool full = used + strlen(name) + 2 * sizeof(more) + rest > room;
    snprintf(list + used, room - used, "%s%s", used ? ", " : "", full ? more : name);
}

static void add_unused(config_t *config, const char *path)
{
    add_name(config->unused, TOLD, OTHERS + ASSUMED, path);
}

/* Many keys of other tools would hide those that are of interest: they are named if somebody asks. */
static void tell_others(config_t *config, bool all)
{
    char text[64];
    snprintf(text, sizeof(text), "%zu %skeys (--config-keys lists them)", config->nothers,
             *config->unused ? "other " : "");
    if (config->nothers > 0)
        add_name(config->unused, TOLD, ASSUMED,
                 all || config->nothers <= FEW ? config->others : text);
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

/* ---- other commands ---- */

/* Which option an argument of a file is; noptions: none of the command. */
static size_t find_option(const lap_command_t *command, const char *argument, const char **value_p)
{
    size_t o = 0;
    while (o < command->noptions && !is_option(argument, command->options[o].name, value_p))
        o++;
    return o;
}

static bool has_option(const lap_command_t *command, const char *argument)
{
    const char *value;
    return find_option(command, argument, &value) < command->noptions;
}

/* Whether the command makes nothing of an argument, and somebody might think that it does. */
static bool is_lost(const config_t *config, const char *argument)
{
    const char *value;
    for (const lap_config_word_t *word = config->words; word->option; word++)
        if (is_option(argument, word->option, &value))
            return false;
    return !has_option(config->command, argument);
}

/* A key is without effect where one of its arguments, from `first` on, is. */
static void tell_lost(config_t *config, const lap_yaml_entry_t *entry, size_t first)
{
    for (size_t i = first; i < config->given.count && config->words; i++)
        if (is_lost(config, config->given.arguments[i])) {
            add_unused(config, entry->path);
            return;
        }
}

/*
 * Replicas of `lap train` share the optimizer where they are told to, those of a plan unless they are told not to: by a switch that is
 * off, or by a name of NeMo for an optimizer that is not shared.
 */
static void give_whole_optimizer(config_t *config, const lap_yaml_entry_t *entry, const row_t *row,
                                 size_t first)
{
    static const char whole[] = "--no-distributed-optimizer";
    const bool off = row->option && strcmp(row->option, "distributed-optimizer") == 0 &&
                     config->given.count == first;
    const bool named = strcmp(row->key, "optim.name") == 0 && config->given.count == first + 1;
    if ((off || named) && entry->kind == LAP_YAML_SCALAR && config->words &&
        has_option(config->command, whole))
        lap_config_give(&config->given, whole + strlen("--"), NULL);
}

/* Whether no later argument is the same option, which would count more. */
static bool is_last(const config_t *config, size_t which, size_t count)
{
    const char *name = config->given.arguments[which] + strlen("--"), *value;
    for (size_t i = which + 1; i < count; i++)
        if (is_named(config->given.arguments[i], name, strcspn(name, "="), &value))
            return false;
    return true;
}

/* Puts options of the command in place of those of `lap train`. They come in the order of its words, of which later ones count more. */
static void translate(config_t *config)
{
    lap_config_given_t *given = &config->given;
    const size_t count = given->count;
    const char *value;
    for (const lap_config_word_t *word = config->words; word && word->option; word++)
        for (size_t i = 0; i < count; i++) {
            if (!config->from[i] || !is_option(given->arguments[i], word->option, &value))
                continue;
            if (word->own && is_last(config, i, count)) {
                config->from[given->count] = config->from[i];
                lap_config_give(given, word->own, strchr(word->own, '=') ? NULL : value);
            }
            config->from[i] = NULL;
        }
    for (size_t i = 0; i < given->count && config->words; i++)
        if (config->from[i] && !has_option(config->command, given->arguments[i]))
            config->from[i] = NULL;
}

/* ---- keys ---- */

static lap_status_t refuse_rules(const config_t *config, const lap_yaml_entry_t *entry)
{
    for (int g = 0; g < LAP_TP_GEMMS; g++) {
        const char *gemm = lap_tp_gemm_name((lap_tp_gemm_t)g);
        const size_t length = strlen(gemm);
        if (strncmp(entry->path, gemm, length) == 0 && strchr(".", entry->path[length]))
            return lap_error(LAP_ERR_INVALID,
                             "%s:%zu: %s is a rule of overlap; expected such files as "
                             "--tp-comm-overlap-cfg, not --config",
                             config->given.path, entry->line, gemm);
    }
    return LAP_OK;
}

/* What the keys of a row make of the model. */
static void note_model(config_t *config, const row_t *row, size_t first)
{
    const char *option = row->option ? row->option : "?";
    if (first == config->given.count)
        return;
    if (strstr("vocab positions tied", option))
        config->model = config->model ? config->model : "gpt";
    if (strcmp(config->given.arguments[first], "--positions=rope") == 0)
        config->model =
            "llama"; /* which has no biases, as models with rotary positions have none */
    config->serial = config->serial || strcmp(option, "no-comm-overlap") == 0;
}

/* A key that we know, and its value. */
static lap_status_t take_key(config_t *config, const lap_yaml_entry_t *entry, const row_t *row)
{
    size_t *line = &config->lines[row - rows];
    const size_t before = config->given.count;
    if (row->kind == MOOT || (row->kind == GPUS && !config->words))
        add_unused(config, entry->path);
    if (!follow(config, entry, row))
        LAP_TRY(lap_config_take(&config->given, entry, row));
    give_whole_optimizer(config, entry, row, before);
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
    tell_lost(config, entry, before);
    if (row->kind == GPUS && config->words && config->given.count == before)
        add_unused(config, entry->path);
    *line = entry->line;
    snprintf(config->values[row - rows], LAP_YAML_VALUE, "%s", entry->value);
    note_model(config, row, before);
    return LAP_OK;
}

static lap_status_t take_entry(void *context, const lap_yaml_entry_t *entry)
{
    config_t *config = context;
    char path[LAP_YAML_PATH];
    bool read = false;
    LAP_TRY(refuse_rules(config, entry));
    lap_config_unwrap(entry, path);
    const row_t *row = find_row(path);
    const bool key = row && row->kind != NO_EFFECT;
    LAP_TRY(lap_config_section(&config->given, entry, path, key, &read));
    if (entry->kind == LAP_YAML_MAPPING)
        return LAP_OK;
    if (read && key)
        return take_key(config, entry, row);
    const char *near = read && !row ? find_near(entry->key) : NULL;
    if (near)
        return lap_error(LAP_ERR_INVALID, "%s:%zu: unknown key '%s'; did you mean '%s'?",
                         config->given.path, entry->line, entry->key, near);
    add_name(config->others, OTHERS, 0, entry->path);
    config->nothers++;
    return LAP_OK;
}

/* The value that the file gives an option, or NULL. */
static const char *find_given(const config_t *config, const char *option)
{
    const char *value;
    for (size_t i = 0; i < config->given.count; i++)
        if (is_option(config->given.arguments[i], option, &value) && value)
            return value;
    return NULL;
}

/* Another option that comes of a key. */
static void give_for(config_t *config, const char *key, const char *option, const char *value)
{
    config->from[config->given.count] = find_row(key);
    lap_config_give(&config->given, option, value);
}

static void give_later(config_t *config, const char *key, const char *value)
{
    give_for(config, key, find_row(key)->option, value);
}

/* Whether a key is there with this value. */
static bool says(const config_t *config, const char *key, const char *value)
{
    return strcasecmp(config->values[find_row(key) - rows], value) == 0;
}

static lap_status_t refuse(const config_t *config, const char *key, const char *expected)
{
    const size_t row = (size_t)(find_row(key) - rows);
    return lap_error(LAP_ERR_INVALID, "%s:%zu: %s is '%s', expected %s", config->given.path,
                     config->lines[row], key, config->values[row], expected);
}

/* A recipe turns nothing on: Megatron writes one where fp8 is null. Without one, scales are delayed. */
static lap_status_t settle_fp8(config_t *config)
{
    static const char *const recipes[][2] = {
        {"delayed", "delayed"}, {"tensorwise", "current"}, {"mxfp8", "mxfp8"}};
    const char *fp8 = find_given(config, "fp8"), *recipe = find_given(config, "fp8-recipe");
    const bool plans = config->words != NULL;
    size_t r = 0;
    if (find_given(config, "fp4") && !plans)
        return refuse(config, "fp4", "null or false: there are only plans of FP4 (lap plan)");
    if (says(config, "fp8_e4m3", "true") && !plans)
        return refuse(config, "fp8_e4m3", "false: gradients are in e5m2");
    if (says(config, "fp8_amax_compute_algo", "most_recent")) /* of a history of any length */
        give_for(config, "fp8_amax_compute_algo", "fp8-amax-history-len", "1");
    if (!fp8 || strcmp(fp8, "none") == 0) {
        if (recipe)
            add_unused(config, "fp8_recipe");
        return LAP_OK;
    }
    if (says(config, "fp8_hybrid", "false") && !says(config, "fp8_e4m3", "true"))
        return refuse(config, "fp8_hybrid",
                      "true: what is multiplied is in e4m3, gradients in e5m2");
    if (strcmp(fp8, "e4m3") == 0 && !plans)
        return refuse(config, "fp8", "one of true, false, hybrid: gradients are in e5m2");
    while (recipe && r < 3 && strcasecmp(recipes[r][0], recipe) != 0)
        r++;
    if (r == 3 && plans)
        return refuse(config, "fp8_recipe", "one of delayed, tensorwise, mxfp8");
    if (r >= 2 && !plans)
        return refuse(config, "fp8_recipe",
                      "one of delayed, tensorwise: there are only plans of mxfp8 (lap plan)");
    if (recipe)
        give_for(config, "fp8_recipe", "fp8", recipes[r][1]);
    return LAP_OK;
}

/* As many as each host has, on all of them. */
static void settle_gpus(config_t *config)
{
    const char *devices = find_given(config, "devices"), *nodes = find_given(config, "num-nodes");
    char text[48];
    if (!devices && nodes && config->words)
        add_unused(config, "trainer.num_nodes");
    if (!devices)
        return;
    snprintf(text, sizeof(text), "%.0f", strtod(devices, NULL) * (nodes ? strtod(nodes, NULL) : 1));
    give_for(config, "trainer.devices", "gpus", text);
}

/* Of MiB of gradients as they are sent. */
static void settle_bucket(config_t *config)
{
    const char *cap = find_given(config, "bucket-cap-mb"), *type;
    char text[LAP_YAML_VALUE + 16];
    if (!cap)
        return;
    type = find_given(config, "grad-sync-dtype");
    snprintf(text, sizeof(text), "%.0f",
             strtod(cap, NULL) * (1 << 20) / (type && strcmp(type, "bf16") == 0 ? 2 : 4));
    give_for(config, "bucket_cap_mb", "bucket-size", text);
}

/* What follows from two keys together. */
static lap_status_t settle(config_t *config)
{
    const char *seq = find_given(config, "seq"), *iters = find_given(config, "iters");
    const char *style = find_given(config, "lr-decay-style");
    const char *end_of_decay = find_given(config, "lr-decay-iters");
    const size_t before = config->given.count;
    char text[32];
    LAP_TRY(settle_fp8(config));
    settle_gpus(config);
    settle_bucket(config);
    for (size_t i = 0; i < before; i++)
        if (is_of_samples(config->from[i])) { /* counts more, wherever it stands */
            snprintf(text, sizeof(text), "%s", config->values[config->from[i] - rows]);
            give_later(config, config->from[i]->key, text);
        }
    if (config->positions_of_seq && seq)
        give_later(config, "max_position_embeddings", seq);
    if (!config->model && find_given(config, "max-positions"))
        config->model = "gpt"; /* NeMo's positions are learned unless a file says otherwise */
    if (config->given.constant_steps == 0 || config->words)
        return LAP_OK; /* other commands than lap train have no rates */
    iters = end_of_decay ? end_of_decay : iters;
    if (!iters || !style || strcmp(style, "cosine") != 0) {
        add_unused(config, "sched.constant_steps");
        return LAP_OK;
    }
    /* NeMo's rate is the least from there on, and at once where that is before the end of the warm-up. */
    const char *warmup = find_given(config, "lr-warmup-iters");
    const uint64_t steps = strtoull(iters, NULL, 10);
    const uint64_t least = (warmup ? strtoull(warmup, NULL, 10) : 0) + 1;
    uint64_t end = steps > config->given.constant_steps ? steps - config->given.constant_steps : 0;
    end = end < least ? least : end;
    snprintf(text, sizeof(text), "%" PRIu64, end);
    give_later(config, "sched.constant_steps", text);
    return LAP_OK;
}

static bool has_given(const lap_args_t *args, const char *option)
{
    for (size_t o = 0; o < args->command->noptions; o++)
        if (args->given[o] && strcmp(args->command->options[o].name, option) == 0)
            return true;
    return false;
}

/*
 * Rotary positions make it a Llama, but Megatron has LayerNorm and GELU with any positions: who meant those should read what
 * was taken. It stands behind the keys without effect.
 */
static void tell_assumed(config_t *config, const lap_args_t *args)
{
    static const struct {
        const char *option, *value;
    } assumed[] = {{"norm", "rmsnorm"}, {"activation", "swiglu"}};
    char text[ASSUMED / 2] = "";
    if (!config->model || strcmp(config->model, "llama") != 0 || has_given(args, "model"))
        return;
    for (size_t i = 0; i < sizeof(assumed) / sizeof(assumed[0]); i++)
        if (!find_given(config, assumed[i].option) && !has_given(args, assumed[i].option))
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

/*
 * An option of the file counts unless the command line has it; of several that are the same the last one counts. `otherwise` is
 * the value of an argument without one.
 */
static void take_option(const bool *line, lap_args_t *args, const char *argument,
                        const char *otherwise)
{
    const char *value;
    const size_t o = find_option(args->command, argument, &value);
    if (o == args->command->noptions || line[o])
        return;
    args->values[o] = value ? value : otherwise;
    args->given[o] = true;
}

static lap_status_t read_entries(config_t *config, const char *path)
{
    const char *text;
    config->given.path = path;
    if (!lap_piped_is(path))
        return lap_yaml_read(path, take_entry, config);
    config->given.path = lap_piped_name(path);
    LAP_TRY(lap_piped_read(path, "LAP_PIPED_CONFIG", "settings in YAML", &text));
    return lap_yaml_parse(config->given.path, text, strlen(text), take_entry, config);
}

/* Adds the options of a file to those of the command line. */
static int read_file(const lap_command_t *command, const char *path, const lap_config_use_t *use,
                     const bool *line, lap_args_t *args)
{
    config_t *config = &config_read;
    *config = (config_t){.command = command, .words = use->words};
    lap_status_t status = read_entries(config, path);
    if (status == LAP_OK)
        status = settle(config);
    if (status != LAP_OK)
        return lap_args_refused(command, status, "--config");
    args->values[use->option] = config->given.path;
    tell_others(config, args->given[use->keys]);
    tell_assumed(config, args);
    translate(config);
    if (config->model)
        take_option(line, args, "--model", config->model);
    for (size_t i = 0; i < config->given.count; i++)
        if (config->from[i] && !is_idle(config, config->given.arguments[i]))
            take_option(line, args, config->given.arguments[i], "");
    return LAP_CLI_GO;
}

/* The key of the file that an option was made of, and its line; or NULL. */
static const char *find_key(const char *option, size_t *line_p)
{
    const char *value;
    for (size_t i = config_read.given.count; i-- > 0;) {
        const row_t *row = config_read.from[i];
        if (!row || !is_option(config_read.given.arguments[i], option, &value))
            continue;
        *line_p = config_read.lines[row - rows];
        return row->kind == ON_FALSE || row->kind == GPUS ? NULL : row->key;
    }
    return NULL;
}

/* Of two options for the same, that of the command line counts more than that of a file. */
static void prefer_line(const lap_config_use_t *use, lap_args_t *args, const bool *given)
{
    for (size_t i = 0; i < use->npairs; i++)
        for (int k = 0; k < 2; k++) {
            const size_t mine = use->pairs[i][k], other = use->pairs[i][1 - k];
            if (given[mine] && !given[other]) {
                args->given[other] = false;
                args->values[other] = NULL;
            }
        }
}

/* What the file has is spelled as there, unless the command line has it, too. */
static void spell(const char *path, const lap_args_t *args, const bool *given)
{
    const lap_command_t *command = args->command;
    for (size_t o = 0; o < command->noptions; o++) {
        size_t line = 0;
        const char *key =
            args->given[o] && !given[o] ? find_key(command->options[o].name, &line) : NULL;
        if (key)
            lap_spelling_file(o, key, path, line);
    }
}

int lap_config_parse(const lap_command_t *command, const lap_config_use_t *use, int argc,
                     char **argv, lap_args_t *args_p, bool given[LAP_OPTIONS_MAX],
                     const char **unused_p)
{
    const int status = lap_args_parse(command, argc, argv, args_p);
    config_read = (config_t){.command = command};
    *unused_p = config_read.unused;
    if (status != LAP_CLI_GO)
        return status;
    const char *path = args_p->values[use->option];
    memcpy(given, args_p->given, sizeof(args_p->given));
    if (!path && given[use->keys])
        return lap_args_fail(command, "--config-keys is for files of settings; expected --config "
                                      "with it");
    if (!path)
        return LAP_CLI_GO;
    const int read = read_file(command, path, use, given, args_p);
    if (read != LAP_CLI_GO)
        return read;
    prefer_line(use, args_p, given);
    spell(args_p->values[use->option], args_p, given);
    return LAP_CLI_GO;
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
                          "%s:%zu: %s is %s, expected null, or one of at least the %zu "
                          "tokens of a sequence: attention to fewer is not there yet",
                          given->path, given->window.line, given->window.key, given->window.text,
                          desc->seq);
}
