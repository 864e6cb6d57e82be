/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a rank of a pipeline, and what a step that was traced has cost. */
#ifndef LAP_PARALLEL_STAGE_RUN_H
#define LAP_PARALLEL_STAGE_RUN_H

#include <lap/pipeline.h>

#include "nn/nn.h"
#include "parallel/stage_choices.h"
#include "parallel/stage_prove.h"
#include "schedule/comm_times.h"
#include "schedule/execute.h"

/* Another rank, and the memory that messages of both go through. */
typedef struct lap_stage_peer {
    lap_group_t *group; /* NULL: this rank is none of the pair */
    lap_buffer_t *buffers[LAP_STAGE_BUFFERS];
    lap_in_flight_t in_flight[LAP_STAGE_BUFFERS];
} lap_stage_peer_t;

struct lap_pp {
    lap_group_t *pipeline;
    lap_stages_t stages;
    lap_pp_options_t options;
    lap_nn_t *nn;
    lap_stage_peer_t *peers; /* of each pair */
    lap_target_t target;
    lap_stage_choices_t choices;
    lap_op_t *tied[2]; /* the sum of the gradients of tied weights; NULL: none */
    void *sum;         /* of own rows of them */
    lap_stage_program_t program;
    lap_exec_t *exec; /* of it */
    uint64_t digest;
    size_t seq;           /* for so many tokens, */
    bool steps;           /* ... with the step of the optimizer, */
    bool first;           /* ... without a history of delayed FP8 scales */
    bool traced;          /* its calls and messages are, and its kernels are timed; */
    bool buckets_traced;  /* what goes to replicas is */
    bool bound;           /* it is, to the memory of the layers and for these traces */
    uint32_t backgrounds; /* nn->backgrounds when it was made, */
    const lap_nn_background_t *background; /* ... and its replicas; NULL: none */
    bool started; /* the step before has begun to gather what it needs first */
    lap_in_flight_t in_flight[LAP_NN_GROUPS];
    bool begun;
    bool sending;      /* ... to replicas, or tied gradients: in the background */
    uint64_t begin_ns; /* of the latest step */
    uint32_t failures_before;
    lap_status_t cause;         /* of a step that has failed, as its groups report it */
    size_t *counted;            /* targets of each micro-batch of the latest step */
    bool stepped;               /* there was one */
    lap_clock_offset_t *clocks; /* of the ranks of the pipeline, at the latest traced step */
};

/* ---- stage_program.c ---- */

/*
 * The program for a number of active tokens, with or without the step of the optimizer, bound for the next step; the one
 * before is forgotten.
 */
lap_status_t lap_stage_get_program(lap_pp_t *pp, size_t seq, bool steps);

/*
 * How the programs of all ranks of a step are linked, with that of the optimizer, if there is one; the description
 * is part of it.
 */
lap_stage_proving_t lap_stage_own_proving(const lap_pp_t *pp, lap_nn_desc_t *desc);

/*
 * Proves a step of all ranks of a pipeline, lap_pp_t, with replicas where it sends to some, for this device and
 * transport, with the methods that their operators have.
 */
lap_status_t lap_stage_prove_own(void *pp);

/*
 * To whom the next step, with or without that of the optimizer, sends gradients, or from whom it gathers weights; NULL:
 * nobody. Of the latest, pp->background is.
 */
const lap_nn_background_t *lap_stage_background(const lap_pp_t *pp, bool steps);

/* The operator that an item is a call of, and the trace of the call if there is one; NULL: none. */
lap_op_t *lap_stage_op(const lap_pp_t *pp, const lap_stage_item_t *item, lap_trace_t **trace_p);

/* ---- stage_predict.c ---- */

/*
 * Who looks at a prediction: how programs were linked, with the operators that were chosen, and when a
 * rank is at each of its fragments.
 */
typedef struct lap_stage_viewer {
    lap_status_t (*view)(void *context, const lap_stage_proving_t *proving,
                         const lap_fragment_span_t *spans, uint32_t count, double seconds,
                         double call_s); /* of these, what beginning and ending the step takes */
    void *context;
    int rank; /* of the grid */
} lap_stage_viewer_t;

/*
 * Predicts the seconds from lap_pp_step to the end of lap_pp_wait, as lap_nn_predict does those of a pass; if it `steps`,
 * with the step of the optimizer.
 * What all ranks do is added to `timeline`, and `viewer` is shown what one of them does, unless they are NULL;
 * only rank 0 of the world may have them.
 * LAP_ERR_NO_MEMORY: a step is too long to be simulated next to the training. Collective over `world`: all
 * ranks of the grid.
 */
lap_status_t lap_stage_predict(lap_pp_t *pp, lap_group_t *world, bool steps, lap_trace_t *timeline,
                               const lap_stage_viewer_t *viewer, double *seconds_p);

/* ---- stage_run.c ---- */

/* As lap_pp_step, with the step of the optimizer, whose rates are set, in the same program if it `steps`. */
lap_status_t lap_stage_step(lap_pp_t *pp, size_t seq, const int32_t *tokens, const int32_t *targets,
                            bool steps);

/*
 * Waits for the passes of a step of a pipeline, lap_pp_t, and with `background` for all of it: sets of
 * streams leave its buffers together.
 */
lap_status_t lap_stage_end(void *pp, bool background);

/* ---- stage_trace.c ---- */

/*
 * Adds to the timeline of the layers what has ended of a step that was traced: what is in the background,
 * or the rest.
 */
void lap_stage_add_to_timeline(lap_pp_t *pp, bool background);

/*
 * Calls `each` for the calls between ranks that layers have made in the latest step, which was traced and
 * has ended: `step` is the number in the list of the operator, LAP_NN_NONE for the sum of tied gradients. The trace
 * is valid during the call.
 */
typedef lap_status_t (*lap_stage_each_t)(void *context, uint32_t step, const lap_op_t *op,
                                         lap_trace_t *trace);
lap_status_t lap_stage_each_call(const lap_pp_t *pp, lap_stage_each_t each, void *context);

/*
 * What messages between stages have cost this rank in that step: adds to `times` when
 * messages from it and to it were on their way, and when it waited for the wire, or they had come
 * and it had not gone on; to `bubbles` when it had nothing to do and no message was on its way. Writes the bytes that it
 * has sent. Collective over the pipeline.
 */
lap_status_t lap_stage_times(lap_pp_t *pp, lap_comm_times_t *times, lap_intervals_t *bubbles,
                             double *bytes_p);

#endif
