/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules of overlap from a file in YAML. "-" is standard input: the process that starts the ranks
 * reads it, and passes the text on to them in a variable of the environment.
 */
#ifndef LAP_CLI_RULES_H
#define LAP_CLI_RULES_H

#include <stdbool.h>

#include <lap/tp_overlap.h>

#define LAP_RULES_STDIN "standard input" /* in the place of its path in sentences */

bool lap_rules_is_stdin(const char *path);

/* As lap_tp_overlap_load. */
lap_status_t lap_rules_load(const char *path, int tp, lap_tp_overlap_t *rules_p);

#endif
