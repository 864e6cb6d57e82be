/* SPDX-License-Identifier: Apache-2.0 */
/* A line of progress on a terminal. */
#ifndef LAP_CLI_PROGRESS_H
#define LAP_CLI_PROGRESS_H

#include <stdbool.h>

/* Rewrites the line, if this process `shows` it; does nothing where standard error is no terminal. */
void lap_progress(bool shows, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Removes it. */
void lap_progress_end(bool shows);

#endif
