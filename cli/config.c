/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of NeMo and Megatron: each key that concerns us is a row (config_rows.h), which says which option it is and
 * what its value may be. Values are looked at here, so that a wrong one has its line; what they mean together the options
 * say.
 */
#include "config.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <lap/tp_overlap.h>

#include "config_rows.h"
#include "core/status.h"
#include "core/yaml.h"

enum { ROWS = sizeof(rows) / sizeof(rows[0]), ARGUMENTS = 2 * ROWS, ARGUMENT = 320, ASSUMED = 160 };

typedef struct config {
    const char *path;
    size_t lines[ROWS]; /* 0: not there */
    char values[ROWS][LAP_YAML_VALUE];
    char arguments[ARGUMENTS][ARGUMENT];
    const row_t *from[ARGUMENTS]; /* which of the rows each comes from */
    size_t count;
    const char
        *model;  /* a file with a vocabulary, or embeddings, is of one: which it is made from */
    bool serial; /* nothing is overlapped: switches of overlap say nothing */
    bool positions_of_seq; /* max_position_embeddings refers to the length of sequences */
    uint64_t constant_steps;
    struct {
        const char *key, *value; /* NULL: the file does not say */
        size_t line;
    } bias[2]; /* of all matrices, and of query, key and value */
    struct {
        uint64_t tokens; /* with the one that attends to them; 0: all, or the file does not say */
        size_t line;
        char text[48]; /* as the file has it */
    } window;
    char unused[8192]; /* a whole file of NeMo has about 3000 letters of them */
    bool cut;          /* there are more of them */
} config_t;

static config_t config_read; /* the last one */

/* ---- values ---- */

static lap_status_t refuse(const config_t *config, const lap_yaml_entry_t *entry,
                           const char *expected)
{
    char value[LAP_YAML_VALUE + 32] = "an alias or a nested list";
    if (entry->kind != LAP_YAML_OTHER)
        snprintf(value, sizeof(value), entry->kind == LAP_YAML_LIST ? "[%s]" : "'%s'",
                 entry->value);
    return lap_error(LAP_ERR_INVALID, "%s:%zu: %s is %s, expected %s", config->path, entry->line,
                     entry->key, value, expected);
}

static void give(config_t *config, const char *option, const char *value)
{
    snprintf(config->arguments[config->count++], ARGUMENT, "--%s%s%s", option, value ? "=" : "",
             value ? value : "");
}

/* The words for yes and no of YAML 1.1; -1: none of them. */
static int truth_of(const char *value)
{
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcasecmp(value, words[i]) == 0)
            return (int)(i % 2);
    return -1;
}

static bool is_number(const char *value, double least, double below, bool whole)
{
    char *end;
    const double number = strtod(value, &end);
    return end != value && *end == '\0' && number >= least && number < below &&
           (!whole || strspn(value, "0123456789") == strlen(value));
}

/* Finds a value among "theirs=ours ..."; *ours_p is NULL where nothing follows it. */
static bool find_word(const char *words, const char *value, char ours[32], bool *given_p)
{
    char all[256];
    snprintf(all, sizeof(all), "%s", words);
    for (char *rest = all, *word; (word = strsep(&rest, " ")) != NULL;) {
        char *equals = strchr(word, '=');
        if (equals)
            *equals = '\0';
        if (strcasecmp(word, value) != 0)
            continue;
        *given_p = equals != NULL;
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

static lap_status_t take_word(config_t *config, const lap_yaml_entry_t *entry, const row_t *row)
{
    char ours[32], expected[300], words[256];
    bool given = false;
    if (find_word(row->words, entry->value, ours, &given)) {
        if (given)
            give(config, row->option, ours);
        return LAP_OK;
    }
    list_words(row->words, words);
    snprintf(expected, sizeof(expected), "%s%s%s", strchr(words, ',') ? "one of " : "", words,
             row->kind == ONLY ? ": anything else is not there yet" : "");
    return refuse(config, entry, expected);
}

static lap_status_t take_betas(config_t *config, const lap_yaml_entry_t *entry)
{
    char first[LAP_YAML_VALUE];
    snprintf(first, sizeof(first), "%s", entry->value);
    char *second = strchr(first, ',');
    if (second)
        *second++ = '\0';
    if (entry->kind != LAP_YAML_LIST || !second || !is_number(first, 0, 1, false) ||
        !is_number(second, 0, 1, false))
        return refuse(config, entry, "two numbers below 1, such as [0.9, 0.95]");
    give(config, "adam-beta1", first);
    give(config, "adam-beta2", second);
    return LAP_OK;
}

/*
 * NeMo writes those before and after a token, which counts besides; -1: all of them. One number counts the token itself.
 * Later ones are masked anyway. See lap_config_fits.
 */
static lap_status_t take_window(config_t *config, const lap_yaml_entry_t *entry)
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
        return refuse(config, entry,
                      "null, a number of tokens, or two: of those before a token and after it");
    config->window.tokens = all ? 0 : strtoull(first, NULL, 10) + pair;
    config->window.line = entry->line;
    snprintf(config->window.text, sizeof(config->window.text), pair ? "[%.40s]" : "%.40s",
             entry->value);
    return LAP_OK;
}

/* What Megatron's scaling of rotary positions has built in: numbers of Llama 3.1. */
static lap_status_t take_rope(config_t *config, const lap_yaml_entry_t *entry)
{
    const int truth = truth_of(entry->value);
    if (truth < 0)
        return refuse(config, entry, "true or false");
    if (!truth)
        return LAP_OK;
    give(config, "rope-factor", "8");
    give(config, "rope-low-freq", "1");
    give(config, "rope-high-freq", "4");
    give(config, "rope-original", "8192");
    return LAP_OK;
}

/* Whether the model has them is known when the command line was read, too: see lap_config_fits. */
static lap_status_t take_bias(config_t *config, const lap_yaml_entry_t *entry, const row_t *row)
{
    const int truth = truth_of(entry->value);
    if (truth < 0)
        return refuse(config, entry, "true or false");
    const bool qkv = strstr(row->key, "qkv") != NULL;
    if (qkv && !truth)
        return LAP_OK; /* Megatron's are in addition to those of all matrices */
    const char *value = truth ? "true" : "false", *other = config->bias[qkv].key;
    if (other && other != row->key && strcmp(config->bias[qkv].value, value) != 0)
        return lap_error(LAP_ERR_INVALID,
                         "%s:%zu: %s is %s, and %s in line %zu is %s, expected both alike",
                         config->path, entry->line, entry->key, value, other,
                         config->bias[qkv].line, config->bias[qkv].value);
    config->bias[qkv].key = row->key;
    config->bias[qkv].value = value;
    config->bias[qkv].line = entry->line;
    return LAP_OK;
}

static lap_status_t take_number(config_t *config, const lap_yaml_entry_t *entry, const row_t *row)
{
    static const char *const expected[] = {[COUNT] = "a whole number, 1 or more",
                                           [WHOLE] = "a whole number",
                                           [HOLD] = "a whole number",
                                           [NUMBER] = "a number, 0 or more"};
    const bool whole = row->kind != NUMBER;
    if (!is_number(entry->value, row->kind == COUNT ? 1 : 0, 1e30, whole))
        return refuse(config, entry, expected[row->kind]);
    if (row->kind == HOLD)
        config->constant_steps = strtoull(entry->value, NULL, 10);
    else
        give(config, row->option, entry->value);
    return LAP_OK;
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
    if (row->option && strcmp(row->option, "ffn") == 0 &&
        strncmp(value, product, strlen(product)) == 0 &&
        sscanf(value + strlen(product), "%7[0-9] , ${%63[a-z_.]}}%n", factor, name, &end) == 2 &&
        value[strlen(product) + (size_t)end] == '\0' && end > 0 &&
        ends_in(name + strspn(name, "."), "hidden_size")) {
        give(config, "mlp-expansion-factor", factor);
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

/* As if it were not there, unless the row says what it is. */
static lap_status_t take_null(config_t *config, const row_t *row)
{
    char ours[32];
    bool given = false;
    if (row->words && find_word(row->words, "null", ours, &given) && given)
        give(config, row->option, ours);
    return LAP_OK;
}

static lap_status_t take_value(config_t *config, const lap_yaml_entry_t *entry, const row_t *row)
{
    if (entry->kind == LAP_YAML_NULL)
        return take_null(config, row);
    if (row->kind == BETAS)
        return take_betas(config, entry);
    if (row->kind == WINDOW)
        return take_window(config, entry);
    if (entry->kind != LAP_YAML_SCALAR || !entry->whole)
        return refuse(config, entry, "one value");
    if (follow(config, entry, row))
        return LAP_OK;
    if (strstr(entry->value, "${"))
        return refuse(config, entry, "a value: this reference is not followed");
    switch (row->kind) {
    case WORD:
        /* With such a name replicas share the optimizer, which makes no other weights. */
        if (row->option && strcmp(row->option, "optimizer") == 0 &&
            strstr(entry->value, "distributed"))
            give(config, "distributed-optimizer", NULL);
        return take_word(config, entry, row);
    case ONLY:
        return take_word(config, entry, row);
    case BIAS:
        return take_bias(config, entry, row);
    case ROPE_3_1:
        return take_rope(config, entry);
    case ON_TRUE:
    case ON_FALSE:
    case MOOT:
        if (truth_of(entry->value) < 0)
            return refuse(config, entry, "true or false");
        if (row->option && truth_of(entry->value) == (row->kind == ON_TRUE))
            give(config, row->option, NULL);
        return LAP_OK;
    case TEXT:
        give(config, row->option, entry->value);
        return LAP_OK;
    default:
        return take_number(config, entry, row);
    }
}

/* ---- keys ---- */

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
        for (size_t j = first; j < config->count; j++)
            same +=
                config->from[i] == row && strcmp(config->arguments[i], config->arguments[j]) == 0;
    }
    return had == config->count - first && same == had;
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
    if (first == config->count || !row->option)
        return LAP_OK;
    while (a < sizeof(alike) / sizeof(alike[0]) && strcmp(row->option, alike[a].option) != 0)
        a++;
    for (size_t i = 0; i < first && a < sizeof(alike) / sizeof(alike[0]); i++) {
        const row_t *other = config->from[i];
        if (other != row && !is_of_samples(row) && !is_of_samples(other) && other->option &&
            strcmp(other->option, row->option) == 0 &&
            strcmp(config->arguments[i], config->arguments[first]) != 0)
            return lap_error(
                LAP_ERR_INVALID, "%s:%zu: %s is '%s', and %s in line %zu is '%s', expected %s",
                config->path, entry->line, entry->key, entry->value, other->key,
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
                             config->path, entry->line, gemm);
    }
    if (!row) {
        const char *near = find_near(entry->key);
        if (near)
            return lap_error(LAP_ERR_INVALID, "%s:%zu: unknown key '%s'; did you mean '%s'?",
                             config->path, entry->line, entry->key, near);
        add_unused(config, entry->path);
        return LAP_OK;
    }
    if (row->kind == MOOT || row->kind == NO_EFFECT)
        add_unused(config, entry->path);
    if (row->kind == NO_EFFECT)
        return LAP_OK;
    size_t *line = &config->lines[row - rows];
    const size_t before = config->count;
    LAP_TRY(take_value(config, entry, row));
    for (size_t i = before; i < config->count; i++)
        config->from[i] = row;
    LAP_TRY(check_others(config, entry, row, before));
    if (*line != 0 && !is_again(config, row, before, entry->value))
        return lap_error(LAP_ERR_INVALID,
                         "%s:%zu: %s is there twice, first in line %zu with another value",
                         config->path, entry->line, entry->key, *line);
    if (*line != 0) {
        config->count = before;
        return LAP_OK;
    }
    *line = entry->line;
    snprintf(config->values[row - rows], LAP_YAML_VALUE, "%s", entry->value);
    if (config->count > before && strstr("vocab positions tied", row->option ? row->option : "?"))
        config->model = config->model ? config->model : "gpt";
    if (config->count > before && strcmp(config->arguments[before], "--positions=rope") == 0)
        config->model =
            "llama"; /* which has no biases, as models with rotary positions have none */
    config->serial = config->serial || (config->count > before && row->option &&
                                        strcmp(row->option, "no-comm-overlap") == 0);
    return LAP_OK;
}

/* The value that the file gives an option, or NULL. */
static const char *find_given(const config_t *config, const char *option)
{
    const size_t length = strlen(option);
    for (size_t i = 0; i < config->count; i++) {
        const char *argument = config->arguments[i] + strlen("--");
        if (strncmp(argument, option, length) == 0 && argument[length] == '=')
            return argument + length + 1;
    }
    return NULL;
}

static void give_later(config_t *config, const char *key, const char *value)
{
    const row_t *row = find_row(key);
    config->from[config->count] = row;
    give(config, row->option, value);
}

/* What follows from two keys together. */
static void settle(config_t *config)
{
    const char *seq = find_given(config, "seq"), *iters = find_given(config, "iters");
    const char *style = find_given(config, "lr-decay-style");
    const size_t before = config->count;
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
    if (config->constant_steps == 0)
        return;
    if (!iters || !style || strcmp(style, "cosine") != 0) {
        add_unused(config, "sched.constant_steps");
        return;
    }
    /* NeMo's rate is the least from there on, and at once where that is before the end of the warm-up. */
    const char *warmup = find_given(config, "lr-warmup-iters");
    const uint64_t steps = strtoull(iters, NULL, 10);
    const uint64_t least = (warmup ? strtoull(warmup, NULL, 10) : 0) + 1;
    uint64_t end = steps > config->constant_steps ? steps - config->constant_steps : 0;
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
    static char *all[ARGUMENTS + 513];
    static char model[32];
    int count = 1;
    config_read = (config_t){.path = path};
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
    for (size_t i = 0; i < config->count; i++)
        if (!is_idle(config, config->arguments[i]))
            all[count++] = config->arguments[i];
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
    for (size_t i = config_read.count; i-- > 0;) {
        const char *argument = config_read.arguments[i] + strlen("--");
        const row_t *row = config_read.from[i];
        if (strncmp(argument, option, length) != 0 || !strchr("=", argument[length]))
            continue;
        *line_p = config_read.lines[row - rows];
        return row->kind == ON_FALSE ? NULL : row->key;
    }
    return NULL;
}

bool lap_config_fits(const lap_command_t *command, const lap_nn_desc_t *model)
{
    const config_t *config = &config_read;
    const bool biases = model->bias != 0;
    for (size_t i = 0; i < sizeof(config->bias) / sizeof(config->bias[0]); i++)
        if (config->bias[i].key && biases != (truth_of(config->bias[i].value) == 1))
            return lap_args_wrong(command,
                                  "%s:%zu: %s is %s, expected %s: models like GPT have biases, "
                                  "and those like Llama (position_embedding_type: rope) have none",
                                  config->path, config->bias[i].line, config->bias[i].key,
                                  config->bias[i].value, biases ? "true" : "false");
    if (config->window.tokens == 0 || config->window.tokens >= model->seq)
        return true;
    return lap_args_wrong(command,
                          "%s:%zu: window_size is %s, expected null, or one of at least the %zu "
                          "tokens of a sequence: attention to fewer is not there yet",
                          config->path, config->window.line, config->window.text, model->seq);
}
