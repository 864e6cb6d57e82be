/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of `lap`, and what their pages of the manual say besides their options. */
#ifndef LAP_CLI_COMMANDS_H
#define LAP_CLI_COMMANDS_H

#include "cli.h"

#define LAP_EXAMPLES_MAX 5

/* A command line that works in any directory, and what it is for: a sentence. */
typedef struct lap_example {
    const char *line, *meaning;
} lap_example_t;

typedef struct lap_subcommand {
    const char *name;  /* "bench" */
    const char *brief; /* a phrase without a full stop */
    int (*run)(int argc, char **argv);
    const char *files; /* lines "name  meaning", as lap_command_t.details has them; NULL: none */
    lap_example_t examples[LAP_EXAMPLES_MAX]; /* fewer end with a line of NULL */
    const char
        *parts[3]; /* words that have a help of their own, such as train of lap check; NULL */
} lap_subcommand_t;

/* In the order of the help; the last has the name NULL. */
extern const lap_subcommand_t lap_subcommands[];

/* `lap` itself: as a command, and what its own page says. */
extern const lap_command_t lap_command;
extern const lap_subcommand_t lap_itself;

typedef struct lap_variable {
    const char *name, *meaning;
    const char *commands; /* the names of the subcommands that it concerns; NULL: all */
} lap_variable_t;

/* Variables of the environment; the last has the name NULL. */
extern const lap_variable_t lap_variables[];

/* The subcommand of that name, or NULL. */
const lap_subcommand_t *lap_subcommand_find(const char *name);

#endif
