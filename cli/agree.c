/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks must have alike of a command line: all of it, in one way of writing, but the options
 * that the command's table says each rank may have its own of.
 */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

void lap_arg_settle(lap_args_t *args, int option, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vsnprintf(args->settled[option], sizeof(args->settled[option]), format, values);
    va_end(values);
}

static bool is_own(const lap_command_t *command, size_t option)
{
    for (size_t i = 0; i < command->nown; i++)
        if (command->own[i] == (int)option)
            return true;
    return false;
}

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

void lap_args_terms(const lap_command_t *command, const lap_args_t *args, lap_terms_t *terms)
{
    char name[64];
    lap_terms_text(terms, "the command", command->name);
    for (size_t i = 0; i < args->npositionals; i++) {
        snprintf(name, sizeof(name), "argument %zu", i + 1);
        add_value(terms, name, args->positionals[i]);
    }
    for (size_t o = 0; o < command->noptions; o++) {
        const char *text = args->settled[o][0] ? args->settled[o] : args->values[o];
        if (is_own(command, o))
            continue;
        snprintf(name, sizeof(name), "--%s", command->options[o].name);
        if (!text)
            lap_terms_text(terms, name, "not given");
        else
            add_value(terms, name, *text ? text : "given");
    }
}
