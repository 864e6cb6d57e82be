/* SPDX-License-Identifier: Apache-2.0 */
/* A step that is being planned: what the files that make it up share. */
#ifndef LAP_PLAN_STEP_H
#define LAP_PLAN_STEP_H

#include "parallel/pipeline.h"
#include "plan/plan.h"

typedef struct lap_plan_state {
    const lap_plan_config_t *config;
    const lap_machine_t *machine;
    const lap_plan_layer_t *layer;
    size_t nstages, micros;
    size_t *layers;          /* of each stage */
    lap_pipe_costs_t *costs; /* of each stage */
    double *of_ranks;        /* sums that are being made, of each rank of the pipeline; else 0 */
    double message_s, message_bytes;
    double span, fast_span; /* of all micro-batches, and with messages that take no time */
    size_t rank;            /* of the pipeline: the one with the most work */
    size_t most_live;       /* stages' micro-batches that a rank holds at once */
} lap_plan_state_t;

/* Cuts layers into stages, with their costs. To be cleared, also after a failure. */
lap_status_t lap_plan_state_init(lap_plan_state_t *state, const lap_plan_config_t *config,
                                 const lap_machine_t *machine, const lap_plan_layer_t *layer);
void lap_plan_state_clear(lap_plan_state_t *state);

/* A pass of a micro-batch through a stage. */
lap_plan_span_t lap_plan_stage_span(const lap_plan_state_t *state, size_t stage, int pass);

/* The rank of the pipeline that has a stage, and the parameters of a stage and of a rank. */
size_t lap_plan_rank_of(const lap_plan_state_t *state, size_t stage);
double lap_plan_stage_weights(const lap_plan_state_t *state, size_t stage);
double lap_plan_rank_weights(const lap_plan_state_t *state, size_t rank);

/* ---- replicas.c ---- */

/* The ranks that have the same weights: replicas, and parts of sequences. */
double lap_plan_group_size(const lap_plan_state_t *state);

/* The optimizer, on a rank's share. */
double lap_plan_optimizer_s(const lap_plan_state_t *state);

/* Adds what gradients and weights take on their way. */
lap_status_t lap_plan_add_replicas(const lap_plan_state_t *state, lap_plan_result_t *result);

#endif
