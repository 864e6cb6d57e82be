/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of `lap show` share. */
#ifndef LAP_CLI_SHOW_H
#define LAP_CLI_SHOW_H

#include "cli.h"
#include "overlap/overlap.h"
#include "schedule/link.h"
#include "schedule/lower.h"
#include "schedule/simulate.h"
#include "util/json_write.h"

/* When the steps of all ranks would run, by simulation: see show_predict.c. */
typedef struct lap_show_prediction {
    const char *machine;        /* NULL: there is none */
    double seconds;             /* of the call */
    lap_fragment_span_t *spans; /* [rank][step]; a put or raise ends when it has arrived */
    size_t stride;              /* steps of a rank in it */
} lap_show_prediction_t;

/* The schedules of all ranks of a call after a pass. */
typedef struct lap_show {
    const lap_op_desc_t *desc;
    const lap_problem_t *problem; /* with all defaults; of rank 0 */
    const char *label;            /* of the method with its knobs */
    const lap_target_t *target;
    const lap_pass_t *pass; /* that ran last; NULL: they are as built */
    const lap_schedule_t *schedules;
    int size;
    int rank; /* the one to show; -1: all */
    lap_show_prediction_t prediction;
} lap_show_t;

/*
 * Simulates the schedules on GPUs of a machine description: a name, or a file. The caller frees the
 * spans. LAP_ERR_INVALID of the description; LAP_ERR_UNSUPPORTED names the type that these GPUs do not
 * multiply, or a method that is another library's; LAP_ERR_NO_MEMORY.
 */
lap_status_t lap_show_predict(const char *machine, const lap_schedule_t *schedules, int size,
                              lap_show_prediction_t *prediction_p);

static inline const char *lap_show_stage(const lap_show_t *show)
{
    return show->pass ? show->pass->name : "build";
}

/* Whether a rank is shown. */
static inline bool lap_show_has(const lap_show_t *show, int rank)
{
    return show->rank < 0 || show->rank == rank;
}

/*
 * --after names "build" or a pass; its reader. Two ways of showing at once, or a picture of several passes, make no sense.
 * Both print a sentence and return false.
 */
bool lap_show_read_after(const lap_args_t *args, int option, void *to);
#define AFTER_OF(member) READ_BY(lap_show_read_after, member)
bool lap_show_check_sense(const lap_command_t *of, const char *svg, bool json, bool each,
                          const char *after);

/* The pass of a name; NULL for a name: the last one that the target needs, if it needs any. */
const lap_pass_t *lap_show_find_pass(const lap_target_t *target, const char *name);

/* Shows as built, with NULL, and after each pass that a target needs. */
typedef lap_status_t (*lap_show_pass_t)(const void *context, const lap_pass_t *pass);
lap_status_t lap_show_each(const lap_target_t *target, lap_show_pass_t show, const void *context);

#define LAP_SHOW_RANKS 64  /* at most, in a call that is shown */
#define LAP_SHOW_RANGE 192 /* room for a range in words, */
#define LAP_SHOW_TEXT 640  /* and for a step or a block */

/* A schedule that is shown; as part of a program its places have the names of regions. */
typedef struct lap_show_view {
    const lap_schedule_t *schedule;
    const lap_linked_t *linked; /* NULL: by itself */
    const lap_fragment_t *fragment;
    const lap_fragment_span_t *spans; /* of its steps; NULL: not predicted */
} lap_show_view_t;

/* A step in words, without its kind. */
void lap_show_step(const lap_show_view_t *view, const lap_step_t *step, char text[LAP_SHOW_TEXT]);
/* The lines of a step: `indent` columns to the right, its links at the end. */
void lap_show_print_step(const lap_show_view_t *view, uint32_t index, int indent,
                         const char *links);
/* The steps of a schedule as a member of an object of JSON; and what holds for all of them, as more. */
void lap_show_json_steps(lap_json_t *json, const lap_show_view_t *view);
void lap_show_json_call(lap_json_t *json, const lap_schedule_t *schedule);

/* On standard output. */
void lap_show_print(const lap_show_t *show);
void lap_show_json(const lap_show_t *show);
/* Into a file; a sentence in lap_last_error when it cannot be written. */
lap_status_t lap_show_svg(const lap_show_t *show, const char *path);

#endif
