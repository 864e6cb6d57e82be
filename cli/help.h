/* SPDX-License-Identifier: Apache-2.0 */
/* Help on a command, made from its tables: what people read, man formats, and shells complete. */
#ifndef LAP_CLI_HELP_H
#define LAP_CLI_HELP_H

#include "cli.h"

/* Of --help=FORMAT, as lap_help_formats names them. */
typedef enum lap_help_format {
    LAP_HELP_TEXT,  /* for a terminal of 80 columns */
    LAP_HELP_MAN,   /* a page of section 1 of the manual, in the macros of man(7) */
    LAP_HELP_WORDS, /* a line each: first arguments, and options by all their long names */
} lap_help_format_t;

extern const char *const lap_help_formats[];

/* The option that every command has. */
extern const lap_option_t lap_help_option;

void lap_help(FILE *file, const lap_command_t *command, lap_help_format_t format);

/* `--help`, or `--help=FORMAT` if `format` is not NULL: prints it; returns the exit status. */
int lap_help_asked(const lap_command_t *command, const char *format);

#define LAP_OPTION_TEXT 512

/* Its explanation, with its default. */
void lap_option_explain(const lap_option_t *option, char text[LAP_OPTION_TEXT]);

/* Whether the value of an option may be left out. */
bool lap_option_is_optional(const lap_option_t *option);

#define LAP_ALIAS_TEXT 96

/* An alias as an option, with `help` as its explanation: it is matched as one, and shown. */
lap_option_t lap_option_of_alias(const lap_command_t *command, const lap_alias_t *alias,
                                 char help[LAP_ALIAS_TEXT]);

#endif
