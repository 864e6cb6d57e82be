/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `lap plan`: what is asked, and how answers are printed. */
#ifndef LAP_CLI_PLAN_H
#define LAP_CLI_PLAN_H

#include "plan/search.h"
#include "plan/validate.h"

typedef struct lap_plan_request {
    const char *model, *gpu, *validate, *trace;
    lap_plan_config_t config; /* what is 0 in it is free */
    lap_machine_t machine;
    bool explain, json;
    int top;
    int schedule;   /* by its number; in the config by its name */
    double price;   /* of a GPU for an hour; 0: not given */
    double power_w; /* of a GPU; 0: not given */
} lap_plan_request_t;

/* ---- plan_print.c ---- */

/* The best grids as a table, and why others were left out. */
void lap_plan_print_found(const lap_plan_request_t *request, const lap_plan_found_t *found);
void lap_plan_json_found(const lap_plan_request_t *request, const lap_plan_found_t *found);

/* One grid: where its time and its memory go. */
void lap_plan_print_one(const lap_plan_request_t *request, const lap_plan_choice_t *choice);
void lap_plan_json_one(const lap_plan_request_t *request, const lap_plan_choice_t *choice);

/* ---- plan_rows.c ---- */

/* Rows that have no plan, and so no error. */
size_t lap_plan_count_refused(const lap_plan_rows_t *rows, const lap_plan_verdict_t *verdicts);

/* The errors of all rows, by source. */
void lap_plan_print_rows(const lap_plan_rows_t *rows, const lap_plan_verdict_t *verdicts);
void lap_plan_json_rows(const lap_plan_rows_t *rows, const lap_plan_verdict_t *verdicts);

#endif
