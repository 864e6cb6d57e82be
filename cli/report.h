/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lap report`: traces as one page of HTML that needs nothing else. The page, with its style and its
 * script, is report.html; it computes what it shows of a trace, and the traces are in it, compressed. A picture and a table are
 * in it for where scripts do not run.
 */
#ifndef LAP_CLI_REPORT_H
#define LAP_CLI_REPORT_H

#include <stddef.h>
#include <stdio.h>

#include <lap/status.h>

#define LAP_REPORT_TRACES 8

/* The text of a trace, with a 0 after it, and what is shown of it without a script. */
typedef struct lap_report_trace {
    const char *data;
    size_t bytes;
    struct lap_picture *picture;
} lap_report_trace_t;

/*
 * Reads the text of a trace, which outlives *trace_p. LAP_ERR_INVALID: it is none of ours, with the byte and what was
 * expected there; `path` is for the sentence. LAP_ERR_NO_MEMORY. To be cleared, also after a failure.
 */
lap_status_t lap_report_read(const char *path, const char *text, size_t bytes,
                             lap_report_trace_t *trace_p);
void lap_report_clear(lap_report_trace_t *trace);

/*
 * Writes the page of 1 to LAP_REPORT_TRACES traces, whole or not at all; two are compared.
 * LAP_ERR_SYSTEM naming the path, LAP_ERR_NO_MEMORY.
 */
lap_status_t lap_report_write(const char *path, const lap_report_trace_t *traces, size_t count);

/* What is shown of a trace without a script. */
void lap_report_put_static(FILE *file, const lap_report_trace_t *trace);

/* Whether it could be written. */
lap_status_t lap_report_check(const char *path);

#endif
