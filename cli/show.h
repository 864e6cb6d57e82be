/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of `lap show` share. */
#ifndef LAP_CLI_SHOW_H
#define LAP_CLI_SHOW_H

#include "overlap/overlap.h"
#include "schedule/lower.h"

/* The schedules of all ranks of a call after a pass. */
typedef struct lap_show {
    const lap_op_desc_t *desc;
    const char *label; /* of the method with its knobs */
    const lap_target_t *target;
    const lap_pass_t *pass; /* that ran last; NULL: they are as built */
    const lap_schedule_t *schedules;
    int size;
    int rank; /* the one to show; -1: all */
} lap_show_t;

static inline const char *lap_show_stage(const lap_show_t *show)
{
    return show->pass ? show->pass->name : "build";
}

/* Whether a rank is shown. */
static inline bool lap_show_has(const lap_show_t *show, int rank)
{
    return show->rank < 0 || show->rank == rank;
}

#define LAP_SHOW_RANGE 192 /* room for a range in words, */
#define LAP_SHOW_TEXT 640  /* and for a step or a block */

/* "rows 4..7 of symmetric buffer of rank 1". */
void lap_show_range(const lap_schedule_t *schedule, const lap_range_t *range,
                    char text[LAP_SHOW_RANGE]);
/* A step in words, without its kind. */
void lap_show_step(const lap_schedule_t *schedule, const lap_step_t *step,
                   char text[LAP_SHOW_TEXT]);

/* On standard output. */
void lap_show_print(const lap_show_t *show);
void lap_show_json(const lap_show_t *show);
/* Into a file; a sentence in lap_last_error when it cannot be written. */
lap_status_t lap_show_svg(const lap_show_t *show, const char *path);

#endif
