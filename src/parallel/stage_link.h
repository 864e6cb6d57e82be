/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program of a rank of a pipeline for a whole step: the actions of its row of the table, each the
 * entries of a slot of its list, and the messages to and from other ranks. Pure.
 *
 * A message is a call of two ranks with a buffer for each direction. The receiver raises a credit when its
 * buffer is free, the sender puts a matrix there, and the receiver copies it into the slot. The order
 * follows from ranges. Messages have streams of their own, one set for each direction, and run at the
 * same time as computing. Without `overlap` a message is sent on the compute stream.
 */
#ifndef LAP_PARALLEL_STAGE_LINK_H
#define LAP_PARALLEL_STAGE_LINK_H

#include "nn/context.h"
#include "nn/program.h"
#include "parallel/stages.h"

typedef enum lap_stage_kind {
    LAP_STAGE_ENTRY = 0, /* of the list */
    LAP_STAGE_COPY,      /* from a stage of this rank to another */
    LAP_STAGE_SEND,
    LAP_STAGE_RECEIVE,
    LAP_STAGE_SCATTER, /* of the gradients of tied weights: the sum of own rows, */
    LAP_STAGE_GATHER,  /* and those of both */
    LAP_STAGE_BUCKET, /* a fragment of a bucket: gradients go to replicas, or weights come from them */
} lap_stage_kind_t;

/* What a fragment of the program is; the origin of a fragment is the number of its item. */
typedef struct lap_stage_item {
    lap_stage_kind_t kind;
    uint32_t entry, micro;
    lap_pipe_action_t action;
    uint32_t from, to; /* copy: regions; send: from; receive: to */
    uint32_t pair;     /* of what two ranks do */
    bool upstream;     /* a message with gradients */
    uint32_t message;  /* which of those of all ranks a message is */
    uint32_t bucket;
    int which; /* of the fragments of a bucket */
} lap_stage_item_t;

/* The operands of a copy from one stage to the next on the same rank. */
enum { LAP_STAGE_FROM = 0, LAP_STAGE_TO };

typedef struct lap_stage_program {
    lap_linked_t linked;
    lap_stage_item_t *items;
    uint32_t nitems;
    size_t items_room;
    uint32_t nmessages; /* between all ranks */
} lap_stage_program_t;

/* The symmetric buffers of a pair in a program, after those of layers: see nn/context.h. */
#define LAP_STAGE_BUFFERS 2u
static inline uint32_t lap_stage_buffer(uint32_t pair, bool upstream)
{
    return LAP_NN_GROUPS + LAP_STAGE_BUFFERS * pair + upstream;
}

typedef struct lap_stage_linking {
    const lap_stages_t *stages;
    uint32_t rank;             /* in the pipeline */
    const lap_nn_list_t *list; /* what the rank does */
    int base, stride; /* rank p of the pipeline is rank base + p * stride of the program's world */
    const lap_nn_replicas_t *replicas; /* NULL: nothing goes to them, nor comes from them */
    bool sends;                        /* gradients go to replicas as backward completes them */
    bool gathers; /* the weights of a shared optimizer come from them as actions need them, */
    bool started; /* but for those that the step before has begun to gather, */
    bool starts;  /* as this one does for the next */
    bool late;    /* ... or when all passes have ended */
    bool
        steps; /* the step of the optimizer follows, which the lists have, and what gathers weights after it */
    size_t seq;
    bool
        first; /* delayed FP8 scales have no history: the first micro-batch of each stage gives them */
    bool
        copies; /* ... nor do copies of weights: they come first, so that nothing is taken to be there before */
    bool overlap;
    const lap_target_t *target;    /* what messages are lowered for; NULL: as they are built */
    const char *after;             /* the pass of lowering to stop after; NULL: all run */
    const lap_nn_source_t *source; /* of the operators of the layers */
    /* The schedule of the sum of tied gradients, LAP_STAGE_SCATTER or _GATHER; the caller clears it. */
    lap_status_t (*tied)(void *context, const lap_nn_list_t *list, int rank, lap_stage_kind_t which,
                         lap_schedule_t *schedule_p);
    void *context;
} lap_stage_linking_t;

/* How many kernels and operators of its layers a rank of a pipeline has in a step. */
uint64_t lap_stage_count(const lap_stages_t *stages, uint32_t rank, const lap_nn_list_t *list);

/* Links it. The caller clears it, also after a failure. */
lap_status_t lap_stage_link(const lap_stage_linking_t *linking, lap_stage_program_t *program);
void lap_stage_program_clear(lap_stage_program_t *program);

/* ---- what stage_step.c takes ---- */

lap_status_t lap_stage_add_entry(const lap_stage_linking_t *linking, uint32_t entry,
                                 const lap_pipe_action_t *action, lap_stage_program_t *program);

/* A bucket of gradients or of weights. */
lap_status_t lap_stage_add_bucket(const lap_stage_linking_t *linking, size_t index, bool weights,
                                  lap_stage_program_t *program);

/* The weights: they are gathered, unless actions do so, and copies are made: stage_step.c. */
lap_status_t lap_stage_add_copies(const lap_stage_linking_t *linking, lap_stage_program_t *program);

/* The step of the optimizer: stage_step.c. */
lap_status_t lap_stage_add_step(const lap_stage_linking_t *linking, lap_stage_program_t *program);

/* ---- names and parts ---- */

/* The schedule of a message of this rank, one of two, as it is built. */
lap_status_t lap_stage_message(const lap_stage_linking_t *linking, const lap_stage_item_t *item,
                               lap_schedule_t *schedule_p);

/* What an item is: "1F3 qkv_fprop", the action that it is a part of, or "send 1F3", that made it or takes it. */
void lap_stage_name(const lap_nn_list_t *list, const lap_stage_item_t *item, char *text,
                    size_t bytes);

/* The weight that is tied to that of another rank; NULL: none. */
const lap_nn_weight_t *lap_stage_tied(const lap_nn_list_t *list);

/* The operator of the sum of its gradients, without a buffer. */
lap_op_desc_t lap_stage_tied_desc(const lap_nn_list_t *list, lap_stage_kind_t which);

#endif
