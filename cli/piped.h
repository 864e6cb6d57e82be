/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text that can be read only once: from standard input, which "-" stands for, or from a pipe, such as <(COMMAND) of a shell. The
 * process that starts the ranks reads it, and passes it on to them in a variable of the environment.
 */
#ifndef LAP_CLI_PIPED_H
#define LAP_CLI_PIPED_H

#include <stdbool.h>

#include "core/status.h"

/* Whether a path is such text, and what it is called in sentences. */
bool lap_piped_is(const char *path);
const char *lap_piped_name(const char *path);

/*
 * Reads all of it into the variable, or finds it there, as a string that lives until the variable is set again. LAP_ERR_INVALID:
 * it is too long, or has a zero byte; ranks of a launcher cannot all read it; or nothing came through the pipe for a minute.
 * `expected`: what the text is.
 */
lap_status_t lap_piped_read(const char *path, const char *variable, const char *expected,
                            const char **text_p);

#endif
