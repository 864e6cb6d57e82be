/* SPDX-License-Identifier: Apache-2.0 */
/* Published step times: rows of a CSV file, each a configuration and what was measured with it. */
#ifndef LAP_PLAN_ROWS_H
#define LAP_PLAN_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

enum {
    LAP_ROW_SOURCE = 0,
    LAP_ROW_MODEL,
    LAP_ROW_GPU,
    LAP_ROW_PRECISION,
    LAP_ROW_NOTE,
    LAP_ROW_TEXTS
};

enum {
    LAP_ROW_PARAMS_B = 0,
    LAP_ROW_LAYERS,
    LAP_ROW_HIDDEN,
    LAP_ROW_FFN,
    LAP_ROW_HEADS,
    LAP_ROW_KV_HEADS,
    LAP_ROW_VOCAB,
    LAP_ROW_SEQ,
    LAP_ROW_GBS,
    LAP_ROW_MBS,
    LAP_ROW_GPUS,
    LAP_ROW_TP,
    LAP_ROW_PP,
    LAP_ROW_VP,
    LAP_ROW_CP,
    LAP_ROW_DP,
    LAP_ROW_TFLOPS,
    LAP_ROW_TOKENS,
    LAP_ROW_STEP_S,
    LAP_ROW_NUMBERS
};

typedef struct lap_plan_row {
    char *texts[LAP_ROW_TEXTS];      /* never NULL */
    double numbers[LAP_ROW_NUMBERS]; /* 0: not published */
    size_t line;
} lap_plan_row_t;

typedef struct lap_plan_rows {
    lap_plan_row_t *list;
    size_t count;
    size_t room;
    char *text; /* of the file */
} lap_plan_rows_t;

/*
 * Reads a file with a line of names and a line per row; columns that are not known are left out. The
 * caller clears the rows, also after a failure. LAP_ERR_INVALID with line and column.
 */
lap_status_t lap_plan_rows_read(const char *path, lap_plan_rows_t *rows_p);
void lap_plan_rows_clear(lap_plan_rows_t *rows);

#endif
