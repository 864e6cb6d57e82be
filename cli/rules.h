/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of overlap from a file in YAML, from a pipe, or from standard input, which "-" stands for. */
#ifndef LAP_CLI_RULES_H
#define LAP_CLI_RULES_H

#include <lap/tp_overlap.h>

/* As lap_tp_overlap_load. */
lap_status_t lap_rules_load(const char *path, int tp, lap_tp_overlap_t *rules_p);

#endif
