/* SPDX-License-Identifier: Apache-2.0 */
/* The planner against published step times. */
#ifndef LAP_PLAN_VALIDATE_H
#define LAP_PLAN_VALIDATE_H

#include "plan/plan.h"
#include "plan/rows.h"

/* Whether a row counts for the error that is claimed, or is shown by itself. */
typedef enum lap_plan_class {
    LAP_PLAN_COUNTED = 0, /* Megatron, NeMo, Bridge or dgxc; fp16, bf16 or FP8; A100 or H100 */
    LAP_PLAN_SHARDED,     /* weights are sharded, too */
    LAP_PLAN_OTHER,       /* another GPU, type or source */
    LAP_PLAN_REFUSED,     /* no plan: why says it */
    LAP_PLAN_CLASSES
} lap_plan_class_t;
extern const char *const lap_plan_class_names[LAP_PLAN_CLASSES + 1];

typedef struct lap_plan_verdict {
    lap_plan_class_t class;
    lap_plan_config_t config; /* with what was not published chosen */
    lap_plan_result_t result;
    double published, error; /* seconds; (planned - published) / published */
    char why[160];
} lap_plan_verdict_t;

/* The errors of a class, without their signs. */
typedef struct lap_plan_errors {
    size_t rows;
    double median, p90, within; /* within: the part of the rows with at most 20 % */
} lap_plan_errors_t;

/*
 * Plans every row on the machine of its GPU; `machine` of NULL: those that are installed. Writes a
 * verdict per row. LAP_ERR_INVALID: a description cannot be read; LAP_ERR_NO_MEMORY.
 */
lap_status_t lap_plan_validate(const lap_plan_rows_t *rows, const char *machine,
                               lap_plan_verdict_t *verdicts);

/* The errors of a class among them; 0 rows: none. */
lap_plan_errors_t lap_plan_errors(const lap_plan_verdict_t *verdicts, size_t count,
                                  lap_plan_class_t class);

#endif
