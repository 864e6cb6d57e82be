/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timelines as files that others read: one in the Trace Event Format for Perfetto and lap report
 * (trace_write.c), or one for each rank as PyTorch's profiler writes them (trace_kineto.c). What they
 * have beyond the records is in trace_analyse.c.
 */
#ifndef LAP_CLI_TRACE_FILE_H
#define LAP_CLI_TRACE_FILE_H

#include "schedule/trace.h"
#include "util/json_write.h"

/* ---- what follows from a timeline ---- */

/* A piece of the critical path. */
typedef enum lap_path_kind {
    LAP_PATH_RUN = 0, /* the record ran */
    LAP_PATH_FLIGHT,  /* what the record sent was on its way */
    LAP_PATH_IDLE,    /* nothing that is known: its rank was not running, or woken late */
} lap_path_kind_t;

typedef struct lap_path_piece {
    lap_path_kind_t kind;
    int rank;
    uint32_t record; /* LAP_NO_STEP: none */
    uint64_t begin, end;
} lap_path_piece_t;

typedef struct lap_analysis {
    const lap_trace_t *timeline;
    uint64_t begin, end;   /* of all records */
    uint32_t *order;       /* records by rank, lane and begin */
    uint32_t *first;       /* where those of each rank begin in it; one more at the end */
    uint32_t *released_by; /* of each record: the one whose signal it waited for; or LAP_NO_STEP */
    lap_rank_times_t *ranks; /* of each rank */
    lap_path_piece_t *path;  /* from the beginning to the end */
    size_t npath;
} lap_analysis_t;

/* The timeline has been gathered, and outlives it. Cleared by the caller, also after a failure. */
lap_status_t lap_analyse(const lap_trace_t *timeline, lap_analysis_t *analysis);
void lap_analysis_clear(lap_analysis_t *analysis);

/* Of the time in which something was on its way, how much ranks computed: 0 to 1; 1 if nothing was. */
double lap_analysis_hidden(const lap_analysis_t *analysis);

/* Gives measured records the times that the same ones have in a simulation. */
lap_status_t lap_trace_predict(lap_trace_t *measured, const lap_trace_t *simulated);

/* ---- files ---- */

typedef enum lap_trace_format { LAP_TRACE_PERFETTO = 0, LAP_TRACE_KINETO } lap_trace_format_t;
extern const char *const lap_trace_formats[]; /* their names; NULL at the end */

typedef struct lap_trace_file {
    const char *path;   /* NULL: no trace */
    const char *report; /* of the page about it; NULL: none */
    lap_trace_format_t format;
    const char *command; /* "lap train" */
    const char *title;
    const lap_trace_t *measured, *simulated; /* either may be NULL */
    /* Where a rank is in the grid: "tp1 dp0"; NULL: nowhere. */
    void (*place)(const void *context, int rank, char *text, size_t bytes);
    /* Further members of what lap report reads; NULL: none. */
    void (*more)(const void *context, lap_json_t *json);
    const void *context;
} lap_trace_file_t;

#define LAP_PLACE_TEXT 64

/* Whether the files could be written; a sentence in lap_last_error if not. */
lap_status_t lap_trace_file_check(const lap_trace_file_t *trace);

/* Writes them, each whole or not at all; LAP_ERR_SYSTEM naming the path, LAP_ERR_NO_MEMORY. */
lap_status_t lap_trace_file_write(const lap_trace_file_t *trace);

/* Of both formats. */
lap_status_t lap_trace_put(const char *path, const char *text, size_t bytes);
lap_status_t lap_trace_write_kineto(const lap_trace_file_t *trace);
/* For qsort of pointers to records: by when what they sent began its way. */
int lap_trace_by_sent(const void *left, const void *right);

#endif
