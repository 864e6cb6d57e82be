/* SPDX-License-Identifier: Apache-2.0 */
/* A line of progress on a terminal: see progress.h. */
#include "progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

void lap_progress(bool shows, const char *format, ...)
{
    if (!shows || !isatty(STDERR_FILENO))
        return;
    char text[80]; /* a longer line would wrap, and could not be rewritten */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    fprintf(stderr, "\r\033[K%s", text);
    fflush(stderr);
}

void lap_progress_end(bool shows)
{
    lap_progress(shows, "%s", "");
}
