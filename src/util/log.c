/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warnings on standard error, one line each. Failures are not logged here: they go up as statuses.
 */
#include "util/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void lap_warn(const char *format, ...)
{
    const char *setting = getenv("LAP_LOG");
    if (setting && strcmp(setting, "quiet") == 0)
        return;
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    /* One call, so that the lines of several ranks do not mix. */
    fprintf(stderr, "lap: warning: %s\n", text);
}
