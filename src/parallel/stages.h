/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a pipeline table to what its ranks hold and do: the layers of each stage, the slots of activations
 * that each stage needs, one order of the actions of all ranks, and the messages between them. Pure: a
 * function of the table, the number of layers and whether weights are tied.
 *
 * The order is that of a simulation of the table: what an action waits for comes before it. The
 * programs of all ranks follow it, so no rank can wait for one that waits for it, whatever the number
 * of slots. A message comes right after the action that made it: one with activations not before the slot of the
 * receiver is free, one with gradients before the slot of the sender is used again.
 */
#ifndef LAP_PARALLEL_STAGES_H
#define LAP_PARALLEL_STAGES_H

#include "nn/plan.h"
#include "parallel/pipeline.h"

/* An action and the rank that does it. */
typedef struct lap_stage_action {
    uint32_t rank;
    lap_pipe_action_t action;
} lap_stage_action_t;

/* Two ranks of a pipeline, the lower one first, that send each other messages. */
typedef struct lap_stage_pair {
    uint32_t ranks[2];
    bool
        tied; /* they have tied weights, whose gradients they add up; else stages that are neighbours */
} lap_stage_pair_t;

#define LAP_NO_MESSAGE UINT32_MAX

typedef struct lap_stages {
    uint32_t ranks, stages, micros;
    bool split;             /* backward comes in two parts */
    uint32_t *rank_of;      /* of each stage */
    uint32_t *chunk_of;     /* which of the stages of its rank it is */
    size_t *first, *layers; /* of each stage */
    uint32_t *slots;        /* of each stage */
    uint32_t *slot_of;      /* [stage, micro-batch]: among those of the stage */
    lap_stage_action_t *order;
    uint32_t norder;
    /* Of each action of the order: the first forward whose input is sent after it, and of a forward the next. */
    uint32_t *messages, *next_message; /* LAP_NO_MESSAGE: none */
    lap_stage_pair_t *pairs;
    uint32_t npairs;
} lap_stages_t;

/*
 * Proves a table and makes its stages. `given`: the layers of each stage, `ngiven` of them, or NULL: as
 * evenly as can be, the first ones have one more. The caller clears it, also after a failure.
 * LAP_ERR_INVALID: the layers do not fit; LAP_ERR_CHECK: the table is wrong.
 */
lap_status_t lap_stages_init(lap_stages_t *stages, const lap_pipeline_t *pipeline, size_t layers,
                             const size_t *given, size_t ngiven, bool tied);
void lap_stages_clear(lap_stages_t *stages);

/* What a rank has of the model. */
lap_status_t lap_stages_cut(const lap_stages_t *stages, uint32_t rank, lap_nn_cut_t *cut_p);

/* The pair of two ranks, by its number. */
uint32_t lap_stages_pair(const lap_stages_t *stages, uint32_t a, uint32_t b, bool tied);

/* The micro-batch of which a stage does its first forward, or its first backward of either kind. */
uint32_t lap_stages_first(const lap_stages_t *stages, uint32_t stage, bool forward);

/* The slot of a list that a stage of its rank has a micro-batch in. */
uint32_t lap_stages_slot(const lap_stages_t *stages, uint32_t stage, uint32_t micro);

#endif
