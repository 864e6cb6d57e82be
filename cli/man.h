/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of the manual. */
#ifndef LAP_CLI_MAN_H
#define LAP_CLI_MAN_H

#include "cli.h"

/* Prints the page lap-COMMAND(1), or lap(1), in the macros of man(7). */
void lap_man(FILE *file, const lap_command_t *command);

#endif
