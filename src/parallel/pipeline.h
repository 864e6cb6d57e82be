/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pipeline schedules as tables: for each rank the forwards and backwards of its stages, in order. A
 * table is built by a rule or read from a file, proved, simulated and written; nothing is run here.
 *
 * A model is cut into stages; a rank holds one or more of them. A micro-batch goes forward through
 * stages 0, 1, ... and backward from the last one to the first. The backward of a stage is one action,
 * or two: the gradient of its input, which the stage before waits for, and that of its weights, which
 * nobody does.
 */
#ifndef LAP_PARALLEL_PIPELINE_H
#define LAP_PARALLEL_PIPELINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <lap/status.h>

typedef enum lap_pipe_work {
    LAP_PIPE_FORWARD = 0,
    LAP_PIPE_BACKWARD, /* both gradients */
    LAP_PIPE_INPUT_GRAD,
    LAP_PIPE_WEIGHT_GRAD,
    LAP_PIPE_WORKS
} lap_pipe_work_t;

typedef struct lap_pipe_action {
    lap_pipe_work_t work;
    uint32_t stage, micro;
} lap_pipe_action_t;

typedef struct lap_pipe_row {
    lap_pipe_action_t *actions;
    uint32_t nactions;
    size_t room;
} lap_pipe_row_t;

#define LAP_PIPE_MOST 65536u /* stages, or micro-batches */

typedef struct lap_pipeline {
    uint32_t ranks, stages, micros;
    lap_pipe_row_t *rows; /* per rank */
    lap_status_t status;  /* the first failure: nothing is added after it */
} lap_pipeline_t;

/* The schedules that are built by a rule: 1f1b, interleaved, zb-h1, zb-v, 1f1b-eager; ends with NULL. */
extern const char *const lap_pipe_schedules[];

/*
 * Builds a schedule by its name. `chunks`: the stages of a rank; 1 but for interleaved (2 or more) and
 * zb-v (2; 0 or 1 are taken as that). The caller clears the table, also after a failure.
 */
lap_status_t lap_pipeline_build(const char *schedule, uint32_t ranks, uint32_t chunks,
                                uint32_t micros, lap_pipeline_t *pipeline_p);
void lap_pipeline_clear(lap_pipeline_t *pipeline);

/* An action as tables of PyTorch write it, such as 0F3: stage 0, forward, micro-batch 3. */
#define LAP_PIPE_TEXT 24
const char *lap_pipe_text(const lap_pipe_action_t *action, char text[LAP_PIPE_TEXT]);

/* Adds an action to a row; a failure is in pipeline->status. */
void lap_pipe_add(lap_pipeline_t *pipeline, uint32_t rank, lap_pipe_work_t work, uint32_t stage,
                  uint32_t micro);

/* ---- pipeline_check.c ---- */

/*
 * Proves a table: each stage is on one rank; it has each micro-batch forward once and backward once,
 * whole or in its two parts, in this order; and no rank waits for one that waits for it. Says which
 * rank and action are wrong. Returns LAP_ERR_CHECK, LAP_ERR_NO_MEMORY.
 */
lap_status_t lap_pipeline_check(const lap_pipeline_t *pipeline);

/* The time of each kind of action on a stage, and of a message between two ranks. */
typedef struct lap_pipe_costs {
    double forward, input_grad, weight_grad, message;
    const struct lap_pipe_costs *stages; /* of each stage, where they differ; NULL: all are alike */
} lap_pipe_costs_t;

/* The time of an action. */
double lap_pipe_cost(const lap_pipe_costs_t *costs, const lap_pipe_action_t *action);

/* How many micro-batches of its stages a rank holds activations of at once. */
uint32_t lap_pipe_most_live(const lap_pipe_row_t *row);

/* What a rank does with its time. */
typedef struct lap_pipe_rank {
    double begin, end;  /* of its first and its last action */
    double busy;        /* in actions */
    uint32_t most_live; /* micro-batches of stages whose activations are held at once */
} lap_pipe_rank_t;

typedef struct lap_pipe_times {
    double span;            /* until all ranks have ended */
    lap_pipe_rank_t *ranks; /* per rank */
    double **begins;        /* per rank and action; NULL: not asked for */
} lap_pipe_times_t;

/* Runs a table that was proved with given costs. The caller clears the times, also after a failure. */
lap_status_t lap_pipeline_simulate(const lap_pipeline_t *pipeline, const lap_pipe_costs_t *costs,
                                   lap_pipe_times_t *times_p);
void lap_pipe_times_clear(lap_pipe_times_t *times, uint32_t ranks);

/* The same without the times of actions, which are most of the memory. */
lap_status_t lap_pipeline_simulate_ranks(const lap_pipeline_t *pipeline,
                                         const lap_pipe_costs_t *costs, lap_pipe_times_t *times_p);

/* ---- pipeline_csv.c ---- */

/*
 * Reads a table as PyTorch's pipeline schedules are stored: a line per rank, its actions between
 * commas, nothing where a rank idles. Actions that move data or weights (SEND_F, UNSHARD, ...) are left
 * out: they follow from the others. `name` is for sentences. Returns LAP_ERR_INVALID with line and
 * action, LAP_ERR_NO_MEMORY, LAP_ERR_SYSTEM.
 */
lap_status_t lap_pipeline_read(FILE *file, const char *name, lap_pipeline_t *pipeline_p);

/* Writes it so, a column per unit of time where all actions take as long. */
lap_status_t lap_pipeline_write(const lap_pipeline_t *pipeline, FILE *file);

#endif
