/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes JSON from templates that look like it: commas, quotes and escapes come by themselves.
 *
 *     lap_json_t json = {.file = stdout};
 *     lap_json_put(&json, "{op:'bench' method:%s m:%zu ok:%i rounds_ms:[", name, m, true);
 *     for (size_t i = 0; i < count; i++)
 *         lap_json_put(&json, "%.9g", ms[i]);
 *     lap_json_put(&json, "] best:{%s:%.3f}}", name, best);
 *
 * A failure to write stays in the file: see ferror.
 */
#ifndef LAP_UTIL_JSON_WRITE_H
#define LAP_UTIL_JSON_WRITE_H

#include <stdbool.h>
#include <stdio.h>

typedef struct lap_json {
    FILE *file;
    int depth;  /* objects and arrays that are open */
    int lines;  /* the depth at which each element has a line of its own; 0: none */
    bool comma; /* something stands before what comes next */
} lap_json_t;

/*
 * Writes a piece of JSON, which goes on where the one before ended. Braces and brackets are
 * themselves; a line break after [ gives each element a line. Keys are words, or %s, with a colon.
 * Values are as in JSON, but with single quotes, or conversions of printf: %s a string, NULL is
 * null; %i true or false; %d, %ld, %u, %lu and %zu whole numbers; %.9g and %.3f numbers, and null
 * where JSON has none. What is outermost ends a line.
 */
void lap_json_put(lap_json_t *json, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
