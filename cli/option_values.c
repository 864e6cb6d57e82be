/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of options by the rows of their table: each goes from the command line into the field of
 * its row, and from there to what ranks must have alike. Values that depend on others are the
 * business of the command.
 */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

#define RATE_MOST 1e30f

const char *lap_option_name(const lap_args_t *args, int option, char text[LAP_OPTION_NAME])
{
    snprintf(text, LAP_OPTION_NAME, "--%s", args->command->options[option].name);
    return text;
}

/* ---- reading ---- */

void lap_option_put(const lap_args_t *args, int option, const void *value, void *to)
{
    const lap_field_t *field = &args->command->options[option].field;
    memcpy((char *)to + field->offset, value, field->bytes);
}

bool lap_read_number(const lap_args_t *args, int option, void *to)
{
    char name[LAP_OPTION_NAME];
    uint64_t number;
    if (!lap_arg_number(args->command, lap_option_name(args, option, name), args->values[option],
                        &number))
        return false;
    lap_option_put(args, option, &number, to);
    return true;
}

bool lap_read_real(const lap_args_t *args, int option, void *to)
{
    const lap_field_t *field = &args->command->options[option].field;
    char name[LAP_OPTION_NAME];
    double number;
    if (!lap_arg_real(args->command, lap_option_name(args, option, name), args->values[option],
                      field->least, field->most, &number))
        return false;
    lap_option_put(args, option, &number, to);
    return true;
}

bool lap_read_timeout(const lap_args_t *args, int option, void *to)
{
    double seconds;
    if (!lap_arg_timeout(args->command, args->values[option], &seconds))
        return false;
    lap_option_put(args, option, &seconds, to);
    return true;
}

bool lap_read_link(const lap_args_t *args, int option, void *to)
{
    char name[LAP_OPTION_NAME];
    lap_link_arg_t link;
    if (!lap_arg_link(args->command, lap_option_name(args, option, name), args->values[option],
                      &link))
        return false;
    lap_option_put(args, option, &link, to);
    return true;
}

bool lap_arg_single(const lap_args_t *args, int option, float below, float *number_p)
{
    const float most = below > 0 ? nextafterf(below, 0) : RATE_MOST;
    const char *text = args->values[option];
    char *end;
    const float number = strtof(text, &end);
    if (end == text || *end != '\0' || !(number >= 0) || number > most)
        return lap_args_wrong(
            args->command, "--%s is '%s'; expected %s", args->command->options[option].name, text,
            below > 0 ? "a number from 0 to less than 1" : "a number, 0 to 1e+30");
    *number_p = number;
    return true;
}

/* A float, also where the field is a double. */
static bool read_single(const lap_args_t *args, int option, void *to)
{
    const lap_field_t *field = &args->command->options[option].field;
    float number;
    if (!lap_arg_single(args, option, (float)field->most, &number))
        return false;
    const double wide = (double)number;
    lap_option_put(args, option, field->bytes == sizeof(wide) ? (const void *)&wide : &number, to);
    return true;
}

/* Of an option without a value, or [=YES], which may have no value: that is yes. */
static bool read_flag(const lap_args_t *args, int option, void *to)
{
    static const char *const words[] = {"no", "yes", NULL};
    const lap_option_t *row = &args->command->options[option];
    const char *text = args->values[option];
    char name[LAP_OPTION_NAME];
    size_t yes = !row->off;
    if (*text &&
        !lap_arg_choice(args->command, lap_option_name(args, option, name), text, words, &yes))
        return false;
    lap_field_set(&row->field, to, yes);
    return true;
}

static bool read_option(const lap_args_t *args, int option, void *to)
{
    const lap_option_t *row = &args->command->options[option];
    const char *text = args->values[option];
    char name[LAP_OPTION_NAME];
    if (row->read)
        return row->read(args, option, to);
    if (row->field.type == LAP_FIELD_FLAG)
        return read_flag(args, option, to);
    if (row->field.type == LAP_FIELD_SINGLE)
        return read_single(args, option, to);
    if (row->field.type == LAP_FIELD_TEXT) {
        lap_option_put(args, option, &text, to);
        return true;
    }
    return lap_arg_field(args->command, lap_option_name(args, option, name),
                         row->bare && !*text ? row->bare : text, &row->field, (int)row->field.least,
                         to);
}

bool lap_args_read(const lap_args_t *args, bool given_only, void *to)
{
    for (size_t o = 0; o < args->command->noptions; o++) {
        const bool has = args->values[o] && (!given_only || args->given[o]);
        if (args->command->options[o].field.name && has && !read_option(args, (int)o, to))
            return false;
    }
    return true;
}

/* ---- what ranks must have alike ---- */

/* A value that can be written in several ways, such as 2K and 2048, is written in one. */
static void add_value(lap_terms_t *terms, const char *name, const char *text)
{
    static const char letters[] = "KMG";
    char *end = NULL;
    errno = 0;
    unsigned long long number = isdigit((unsigned char)*text) ? strtoull(text, &end, 10) : 0;
    const char *letter = end && *end ? strchr(letters, toupper((unsigned char)*end)) : NULL;
    const int shift = letter && end[1] == '\0' ? 10 * (int)(letter - letters + 1) : 0;
    if (end && errno == 0 && (*end == '\0' || shift > 0) && number <= UINT64_MAX >> shift)
        lap_terms_number(terms, name, number << shift);
    else
        lap_terms_text(terms, name, text);
}

/* What a field holds. NULL: nothing: a number that no value can be, no type, no text. */
static const char *field_text(const lap_field_t *field, const void *of,
                              char text[LAP_FIELD_TEXT_BYTES])
{
    const void *at = (const char *)of + field->offset;
    const bool counts = field->type == LAP_FIELD_INT || field->type == LAP_FIELD_UNSIGNED;
    const char *word;
    double wide;
    if (counts && (double)(int64_t)lap_field_number(field, of) < field->least)
        return NULL;
    if (field->type == LAP_FIELD_DTYPE &&
        lap_dtype_size((lap_dtype_t)lap_field_number(field, of)) == 0)
        return NULL;
    if (field->type == LAP_FIELD_TEXT) {
        memcpy(&word, at, sizeof(word));
        return word;
    }
    if (field->type == LAP_FIELD_FLAG)
        return lap_field_number(field, of) ? "yes" : "no";
    if (field->type == LAP_FIELD_SINGLE && field->bytes == sizeof(wide)) {
        memcpy(&wide, at, sizeof(wide));
        return lap_single_text((float)wide, text);
    }
    return lap_field_text(field, of, text);
}

/*
 * The value of an option; NULL: it has none. A switch is given or not, whatever its field is for.
 */
static const char *option_text(const lap_args_t *args, size_t option, const void *of,
                               char text[LAP_FIELD_TEXT_BYTES])
{
    const lap_option_t *row = &args->command->options[option];
    const char *value = args->values[option];
    if (row->ranks == LAP_RANKS_GIVEN)
        return value ? "" : NULL;
    const bool as_given = row->field.type == LAP_FIELD_SKIPPED || row->read == lap_read_number;
    if (!row->value || !row->field.name || as_given)
        return value;
    return field_text(&row->field, of, text);
}

void lap_args_terms(const lap_args_t *args, const void *of, lap_terms_t *terms)
{
    const lap_command_t *command = args->command;
    char name[LAP_OPTION_NAME], space[LAP_FIELD_TEXT_BYTES];
    lap_terms_text(terms, "the command", command->name);
    for (size_t i = 0; i < args->npositionals; i++) {
        snprintf(name, sizeof(name), "argument %zu", i + 1);
        add_value(terms, name, args->positionals[i]);
    }
    for (size_t o = 0; o < command->noptions; o++) {
        if (command->options[o].ranks == LAP_RANKS_OWN)
            continue;
        const char *text = option_text(args, o, of, space);
        lap_option_name(args, (int)o, name);
        if (!text)
            lap_terms_text(terms, name, "not given");
        else
            add_value(terms, name, *text ? text : "given");
    }
}
