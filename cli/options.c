/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of the subcommands: parsing, and the values of options, as cli.h describes them.
 * It knows no subcommand, and leaves out what none of them needs: bundled letters, abbreviations.
 */
#include "cli.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/environment.h"
#include "core/status.h"
#include "failures.h"
#include "help.h"

static char latest[LAP_ERROR_TEXT + 256];

const char *lap_args_told(void)
{
    return latest;
}

/* What the launcher prints, which says who tells it, or this rank itself. */
static void tell(const lap_command_t *command, const char *who, const char *sentence)
{
    snprintf(latest, sizeof(latest), "%s", sentence);
    if (!lap_failure_report(command->name, sentence))
        lap_tell(command->name, "%s%s", who, sentence);
}

static void vtell(const lap_command_t *command, const char *format, va_list args)
{
    char *sentence = NULL;
    va_list again;
    va_copy(again, args);
    if (vasprintf(&sentence, format, args) >= 0) {
        tell(command, "", sentence);
        free(sentence);
    } else {
        lap_vtell(command->name, format, again);
    }
    va_end(again);
}

int lap_args_fail(const lap_command_t *command, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vtell(command, format, args);
    va_end(args);
    return LAP_CLI_USAGE;
}

bool lap_args_wrong(const lap_command_t *command, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vtell(command, format, args);
    va_end(args);
    return false;
}

int lap_args_refused(const lap_command_t *command, lap_status_t status, const char *what)
{
    const bool requested = status != LAP_ERR_NO_MEMORY && status != LAP_ERR_SYSTEM;
    lap_environment_t environment;
    char who[32] = "", sentence[LAP_ERROR_TEXT + 256];
    lap_saved_error_t saved;
    lap_error_save(&saved);
    /* Bad luck is that of one rank. */
    if (!requested && lap_environment_launched() && lap_environment_read(&environment) == LAP_OK)
        snprintf(who, sizeof(who), "rank %d: ", environment.rank);
    lap_error_restore(&saved);
    snprintf(sentence, sizeof(sentence), "%s%s%s", what, *what ? ": " : "", lap_last_error());
    tell(command, who, sentence);
    return requested ? LAP_CLI_USAGE : LAP_CLI_FAILED;
}

/* Whether two names are alike, whichever of - and _ stands between their words. */
static bool is_alike(const char *one, const char *other)
{
    for (; *one && *other; one++, other++)
        if ((*one == '-' ? '_' : *one) != (*other == '-' ? '_' : *other))
            return false;
    return *one == *other;
}

/* Whether an option is for a field of the library: "desc.kv_heads" for kv_heads. */
static bool is_for(const lap_option_t *option, const char *name)
{
    const char *dot = option->field.name ? strrchr(option->field.name, '.') : NULL;
    return option->field.name && is_alike(dot ? dot + 1 : option->field.name, name);
}

/* The option for a field, or else that with its name; as many as there are: none. */
static size_t option_of(const lap_command_t *command, const char *name)
{
    size_t o = 0;
    while (o < command->noptions && !is_for(&command->options[o], name))
        o++;
    if (o < command->noptions)
        return o;
    for (o = 0; o < command->noptions && !is_alike(command->options[o].name, name);)
        o++;
    return o;
}

int lap_args_of_field(const lap_command_t *command, const char *sentence, char *told, size_t bytes)
{
    const size_t length = strcspn(sentence, " ");
    char name[64];
    snprintf(name, sizeof(name), "%.*s", (int)length, sentence);
    const size_t option = option_of(command, name);
    if (option == command->noptions || strncmp(sentence + length, " is ", 4) != 0)
        return -1;
    snprintf(told, bytes, "--%s%s", command->options[option].name, sentence + length);
    return (int)option;
}

static int fail_unknown(const lap_command_t *command, const char *arg)
{
    const char *names[LAP_OPTIONS_MAX + LAP_ALIASES_MAX + 2] = {"help"};
    for (size_t i = 0; i < command->noptions; i++)
        names[i + 1] = command->options[i].name;
    for (size_t i = 0; i < command->naliases; i++)
        names[command->noptions + 1 + i] = command->aliases[i].name;
    int length = (int)strcspn(arg, "=");
    char name[64];
    snprintf(name, sizeof(name), "%.*s", length, arg);
    const char *nearest = lap_nearest(name + strspn(name, "-"), names);
    if (nearest)
        return lap_args_fail(command, "unknown option '%.*s'; did you mean '--%s'?", length, arg,
                             nearest);
    return lap_args_fail(command, "unknown option '%.*s'; '%s --help' lists the options", length,
                         arg, command->name);
}

/* Whether `arg` is this option; *value_p is then what is joined to it, or NULL. */
static bool option_matches(const lap_option_t *option, char *arg, char **value_p)
{
    if (arg[1] != '-') {
        bool matches = option->letter == arg[1] && (option->value || arg[2] == '\0');
        *value_p = matches && arg[2] ? arg + 2 : NULL;
        return matches;
    }
    size_t length = strlen(option->name);
    if (strncmp(arg + 2, option->name, length) != 0)
        return false;
    char *end = arg + 2 + length;
    *value_p = *end == '=' ? end + 1 : NULL;
    return *end == '=' || *end == '\0';
}

/* The index of the option that `arg` is, by whichever name, or the number of them. */
static size_t find_option(const lap_command_t *command, char *arg, char **value_p)
{
    for (size_t o = 0; o < command->noptions; o++)
        if (option_matches(&command->options[o], arg, value_p))
            return o;
    for (size_t i = 0; i < command->naliases; i++) {
        char help[LAP_ALIAS_TEXT];
        const lap_option_t option = lap_option_of_alias(command, &command->aliases[i], help);
        if (option_matches(&option, arg, value_p))
            return command->aliases[i].option;
    }
    return command->noptions;
}

/* Values that take a place in a list are shown so: LIST, NAME,... and N,N,... */
static bool is_list(const lap_option_t *option)
{
    const char *value = option->value ? option->value : "";
    const size_t length = strlen(value);
    return strcmp(value, "LIST") == 0 || (length > 4 && strcmp(value + length - 4, ",...") == 0);
}

/* Takes the option at argv[*i_p], and its value, which may be the next argument. */
static int take_option(const lap_command_t *command, char **argv, int *i_p, lap_args_t *args)
{
    char *arg = argv[*i_p], *value = NULL;
    if (option_matches(&lap_help_option, arg, &value))
        return lap_help_asked(command, value);
    const size_t o = find_option(command, arg, &value);
    if (o == command->noptions)
        return fail_unknown(command, arg);
    const lap_option_t *option = &command->options[o];
    char typed[LAP_SPELLING_TEXT]; /* without a value that is joined to it */
    snprintf(typed, sizeof(typed), "%.*s", arg[1] == '-' ? (int)strcspn(arg, "=") : 2, arg);
    lap_spelling_note(o, typed);
    if (!option->value && value)
        return lap_args_fail(command, "option '%s' takes no value, but was given '%s'", typed,
                             value);
    const bool needed = option->value && !lap_option_is_optional(option);
    if (needed && !value)
        value = argv[++*i_p];
    if (needed && !value)
        return lap_args_fail(command, "option '%s' needs a value: %s %s", typed, typed,
                             option->value);
    /*
     * A value that comes again takes the place of an earlier one; who names a list twice wants
     * both.
     */
    if (args->given[o] && is_list(option))
        return lap_args_fail(command,
                             "option '%s' is given twice, as '%s' and as '%s'; expected it once, "
                             "with commas: %s %s,%s",
                             typed, args->values[o], value, typed, args->values[o], value);
    args->open = lap_option_is_optional(option) && !value ? option->name : NULL;
    args->values[o] = value ? value : "";
    args->given[o] = true;
    return LAP_CLI_GO;
}

static bool is_option(const char *arg)
{
    return arg[0] == '-' && arg[1] != '\0' && !isdigit((unsigned char)arg[1]) && arg[1] != '.';
}

static int check_positionals(const lap_command_t *command, const lap_args_t *args)
{
    const char *unexpected = args->npositionals > command->max_positionals
                                 ? args->positionals[command->max_positionals]
                                 : NULL;
    if (unexpected && unexpected == args->apart)
        return lap_args_fail(command, "unexpected argument '%s'; did you mean '--%s=%s'?",
                             unexpected, args->apart_from, unexpected);
    if (unexpected)
        return lap_args_fail(command, "unexpected argument '%s'; usage: %s %s", unexpected,
                             command->name, command->usage);
    if (args->npositionals < command->min_positionals)
        return lap_args_fail(command, "%s; usage: %s %s",
                             args->npositionals ? "arguments are missing" : "arguments are needed",
                             command->name, command->usage);
    return LAP_CLI_GO;
}

int lap_args_parse(const lap_command_t *command, int argc, char **argv, lap_args_t *args_p)
{
    assert(command->noptions <= LAP_OPTIONS_MAX && command->naliases <= LAP_ALIASES_MAX);
    lap_args_t args = {.command = command, .positionals = argv + 1};
    lap_spelling_begin(command);
    for (size_t o = 0; o < command->noptions; o++)
        args.values[o] = command->options[o].default_value;
    bool options_end = false;
    for (int i = 1; i < argc; i++) {
        if (!options_end && strcmp(argv[i], "--") == 0) {
            options_end = true;
        } else if (!options_end && is_option(argv[i])) {
            int status = take_option(command, argv, &i, &args);
            if (status != LAP_CLI_GO)
                return status;
        } else {
            if (args.open && !args.apart) {
                args.apart = argv[i];
                args.apart_from = args.open;
            }
            args.open = NULL;
            /* Positionals move to the front; each is read before its place is written. */
            args.positionals[args.npositionals++] = argv[i];
            options_end = options_end || command->stop_at_positional;
        }
    }
    args.positionals[args.npositionals] = NULL;
    int status = check_positionals(command, &args);
    if (status == LAP_CLI_GO)
        *args_p = args;
    return status;
}

bool lap_arg_int(const lap_command_t *command, const char *what, const char *text, int min, int max,
                 int *value_p)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    bool whole = end != text && *end == '\0' && !isspace((unsigned char)*text) && errno == 0;
    if (!whole || value < min || value > max)
        return lap_args_wrong(command, "%s is '%s'; expected a whole number from %d to %d", what,
                              text, min, max);
    *value_p = (int)value;
    return true;
}

bool lap_arg_number(const lap_command_t *command, const char *what, const char *text,
                    uint64_t *value_p)
{
    char *end = NULL;
    errno = 0;
    const unsigned long long value = isdigit((unsigned char)*text) ? strtoull(text, &end, 10) : 0;
    if (!end || *end != '\0' || errno != 0)
        return lap_args_wrong(command, "%s is '%s'; expected a whole number, 0 to %llu", what, text,
                              (unsigned long long)UINT64_MAX);
    *value_p = value;
    return true;
}

/* The power of two that a letter after a size stands for, or -1. */
static int size_shift(const char *suffix)
{
    static const char letters[] = "KMG";
    if (*suffix == '\0')
        return 0;
    const char *letter = strchr(letters, toupper((unsigned char)*suffix));
    return letter && suffix[1] == '\0' ? 10 * (int)(letter - letters + 1) : -1;
}

bool lap_arg_size(const lap_command_t *command, const char *what, const char *text, size_t min,
                  size_t max, size_t *value_p)
{
    char *end = NULL;
    errno = 0;
    unsigned long long value = isdigit((unsigned char)*text) ? strtoull(text, &end, 10) : 0;
    int shift = end && errno == 0 ? size_shift(end) : -1;
    if (shift < 0 || value > SIZE_MAX >> shift || value << shift < min || value << shift > max) {
        if (max == SIZE_MAX)
            return lap_args_wrong(command,
                                  "%s is '%s'; expected a size such as 2048 or 2K, at least %zu",
                                  what, text, min);
        return lap_args_wrong(command, "%s is '%s'; expected a size such as 2048 or 2K, %zu to %zu",
                              what, text, min, max);
    }
    *value_p = (size_t)(value << shift);
    return true;
}

/* Digits and perhaps a point, no sign or exponent, followed by something that *end_p is left at. */
static bool parse_number(const char *text, double *value_p, char **end_p)
{
    size_t length = strspn(text, "0123456789.");
    double value = strtod(text, end_p);
    if (length == 0 || *end_p != text + length || !isfinite(value))
        return false;
    *value_p = value;
    return true;
}

static bool parse_real(const lap_command_t *command, const char *what, const char *text,
                       const char *unit, double min, double max, double *value_p)
{
    double value;
    char *end;
    if (!parse_number(text, &value, &end) || *end != '\0' || value < min || value > max)
        return lap_args_wrong(command, "%s is '%s'; expected %s, from %.12g to %.12g", what, text,
                              unit, min, max);
    *value_p = value;
    return true;
}

bool lap_arg_seconds(const lap_command_t *command, const char *what, const char *text, double min,
                     double max, double *value_p)
{
    return parse_real(command, what, text, "seconds", min, max, value_p);
}

bool lap_arg_real(const lap_command_t *command, const char *what, const char *text, double min,
                  double max, double *value_p)
{
    return parse_real(command, what, text, "a number", min, max, value_p);
}

bool lap_arg_timeout(const lap_command_t *command, const char *text, double *seconds_p)
{
    if (lap_timeout_parse("--timeout", text, seconds_p) == LAP_OK)
        return true;
    return lap_args_wrong(command, "%s", lap_last_error());
}

bool lap_arg_choice(const lap_command_t *command, const char *what, const char *text,
                    const char *const *names, size_t *index_p)
{
    char all[512] = "", hint[LAP_NEAREST_HINT];
    size_t used = 0;
    for (size_t i = 0; names[i]; i++) {
        if (strcmp(text, names[i]) == 0) {
            *index_p = i;
            return true;
        }
        const char *before = i == 0 ? "" : names[i + 1] ? ", " : " or ";
        if (used < sizeof(all))
            used += (size_t)snprintf(all + used, sizeof(all) - used, "%s%s", before, names[i]);
    }
    return lap_args_wrong(command, "%s is '%s'; expected %s%s", what, text, all,
                          lap_nearest_hint(text, names, hint));
}

bool lap_arg_list(const lap_command_t *command, const char *what, const char *text,
                  lap_list_t *list_p)
{
    lap_list_t list = {0};
    for (const char *rest = text;; rest++) {
        size_t length = strcspn(rest, ",");
        if (length == 0 || length >= LAP_LIST_TEXT || list.count == LAP_LIST_MAX)
            return lap_args_wrong(
                command,
                "%s is '%s'; expected 1 to %d names of 1 to %d characters with commas "
                "between",
                what, text, LAP_LIST_MAX, LAP_LIST_TEXT - 1);
        memcpy(list.items[list.count++], rest, length);
        rest += length;
        if (*rest == '\0')
            break;
    }
    *list_p = list;
    return true;
}

typedef struct unit {
    const char *name;
    double value;
} unit_t;

/* A number with one of the units, up to a comma or the end; returns where it ended, or NULL. */
static const char *parse_quantity(const char *text, const unit_t *units, double *value_p)
{
    double number;
    char *unit;
    if (!parse_number(text, &number, &unit))
        return NULL;
    size_t length = strcspn(unit, ",");
    for (; units->name; units++) {
        if (strlen(units->name) == length && strncmp(unit, units->name, length) == 0) {
            *value_p = number * units->value;
            return unit + length;
        }
    }
    return NULL;
}

bool lap_arg_link(const lap_command_t *command, const char *what, const char *text,
                  lap_link_arg_t *link_p)
{
    static const unit_t rates[] = {{"B/s", 1},    {"kB/s", 1e3},  {"KB/s", 1e3}, {"MB/s", 1e6},
                                   {"GB/s", 1e9}, {"TB/s", 1e12}, {NULL, 0}};
    static const unit_t times[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {NULL, 0}};
    static const unit_t plain[] = {{"", 1}, {NULL, 0}};
    static const char ratio[] = "ratio:";
    lap_link_arg_t arg = {0};
    bool is_ratio = strncmp(text, ratio, strlen(ratio)) == 0;
    const char *end = is_ratio ? parse_quantity(text + strlen(ratio), plain, &arg.ratio)
                               : parse_quantity(text, rates, &arg.link.bytes_per_s);
    if (end && *end == ',')
        end = parse_quantity(end + 1, times, &arg.link.latency_s);
    bool positive = is_ratio ? arg.ratio > 0 : arg.link.bytes_per_s > 0;
    if (!end || *end != '\0' || !positive)
        return lap_args_wrong(
            command,
            "%s is '%s'; expected a rate such as 2GB/s, a rate and a latency such as "
            "2GB/s,5us, or a part of the GEMM time such as ratio:0.4",
            what, text);
    *link_p = arg;
    return true;
}
