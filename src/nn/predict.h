/* SPDX-License-Identifier: Apache-2.0 */
/* How long a pass of layers will take, before it has run. */
#ifndef LAP_NN_PREDICT_H
#define LAP_NN_PREDICT_H

#include "nn/probe.h"
#include "schedule/simulate.h"

/* Seconds of a forward, a loss and a backward. */
typedef struct lap_nn_prediction {
    /*
     * [1][]: gradients are added to those before, [0][]: they replace them. [][1]: they go to replicas
     * as they are completed, if there are any; what is then still on its way does not count, unless
     * a step waits for it.
     */
    double seconds[2][2];
    double call_s; /* of each, to begin and end the pass: no fragment has it. Only on rank 0 */
    bool step;     /* given: [][1] ends with the step of the optimizer that the layers have */
    /*
     * Given by the caller, NULL: not asked for. `spans` gets when `rank` runs each fragment of a pass;
     * `timeline` gets what all ranks do. Only rank 0 of the group writes them. The pass is [0][0], or with
     * `last` the last one of a step, [0][1].
     */
    lap_fragment_span_t *spans;
    int rank;
    lap_trace_t *timeline;
    bool last;
} lap_nn_prediction_t;

/*
 * Measures what GEMMs, copies, signals, epilogues and kernels of these layers cost, each by itself
 * and on all ranks at once, and simulates the programs of all ranks, and of their replicas, with
 * that. The layers are as they were between two steps, nothing of them is in flight: what a forward
 * had left for its backward is gone. Collective over their group and the
 * replicas: all ranks of a group get the same. LAP_ERR_NO_MEMORY and what a group's
 * collectives return; when one rank fails, all do.
 */
lap_status_t lap_nn_predict(lap_nn_t *nn, lap_nn_prediction_t *prediction);

/* ---- for those who simulate other programs of layers ---- */

/* What fragment f of a program costs: an entry of a list, and one of the two operators of a bucket, or a cast. */
lap_fragment_cost_t lap_nn_entry_cost(const lap_probe_t *probe, const lap_nn_list_t *list,
                                      uint32_t index, const lap_linked_t *linked, uint32_t f);
lap_fragment_cost_t lap_nn_bucket_cost(const lap_probe_t *probe, const lap_nn_buckets_t *buckets,
                                       size_t index, int which);

/* The seconds of a kernel that was not measured, by the bytes that it reads and writes per second. */
double lap_nn_kernel_estimate(const lap_linked_t *linked, uint32_t f, double rate);

#endif
