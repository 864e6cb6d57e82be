/* SPDX-License-Identifier: Apache-2.0 */
/* The method "auto": simulate or try every method, run the best, and be able to say why. */
#ifndef LAP_OVERLAP_AUTO_H
#define LAP_OVERLAP_AUTO_H

#include "overlap/overlap.h"
#include "schedule/run.h"
#include "schedule/simulate.h"

#define LAP_AUTO_CANDIDATES 16
#define LAP_AUTO_BANDS 8
#define LAP_AUTO_LABEL 48
/* By how much overlap must beat serial to be believed: the model is no better than that. */
#define LAP_AUTO_MARGIN 0.02

/* A method with its knobs. */
typedef struct lap_candidate {
    const lap_builder_t *builder;
    lap_problem_t problem;      /* rank 0 */
    char label[LAP_AUTO_LABEL]; /* "pipeline:num_splits=8" */
} lap_candidate_t;

/* The methods for calls of one number of rows, serial first, with their times. */
typedef struct lap_forecast {
    lap_candidate_t candidates[LAP_AUTO_CANDIDATES];
    double seconds[LAP_AUTO_CANDIDATES];
    bool tried[LAP_AUTO_CANDIDATES]; /* by lap_trial_run */
    size_t count;
    size_t picked;
} lap_forecast_t;

/*
 * What there is to choose from for calls of `m` rows: every method that a transport which `can` can
 * do, with its defaults and a few other settings of its knobs. Pure. desc has been checked.
 */
lap_status_t lap_auto_list(const lap_op_desc_t *desc, int size, unsigned can, size_t m,
                           lap_forecast_t *forecast_p);

/*
 * Fills in the times, and picks: the fastest, but serial unless it is beaten by the margin. Pure.
 */
lap_status_t lap_auto_predict(lap_forecast_t *forecast, const lap_target_t *target,
                              const lap_cost_t *cost);

/* A choice. Band b is for calls of (capacity >> (b + 1), capacity >> b] rows. */
typedef struct lap_auto {
    bool is_made;
    lap_forecast_t capacity; /* picked: first; then from fast to slow */
    lap_candidate_t bands[LAP_AUTO_BANDS];
    size_t nbands;
    lap_candidate_t whole; /* of calls of the capacity: bands[0], or what can do no fewer rows */
} lap_auto_t;

/*
 * The choice of all operators of a group with this description, whatever their buffers are if these have
 * one transport and link: that of an earlier one, or one that is still to be made. It lives as long as the
 * group. Local; desc has been settled (lap_problem_init). LAP_ERR_NO_MEMORY.
 */
lap_status_t lap_auto_get(lap_group_t *group, const lap_op_desc_t *desc,
                          const lap_transport_ops_t *transport, lap_auto_t **auto_p);

/*
 * Makes a choice, unless it is made: measures what is not known yet, simulates, or tries, and chooses
 * for every band. Collective. As lap_calibrate; when one rank fails, all do, and it is not made.
 */
lap_status_t lap_auto_choose(lap_group_t *group, lap_engine_t *engine, const lap_op_desc_t *desc,
                             const lap_target_t *target, lap_auto_t *auto_p);

/*
 * Calls the choice of a model for the capacity in turns with serial. Serial takes its place, for all
 * rows, unless it is beaten by more than noise (lap_trial_run): the model does not know which
 * thread the system lets run first, nor what is in a cache. Where serial takes longer than 20 ms, or
 * there is no memory for it, the choice stays as it is. Collective; all ranks end with the same.
 */
lap_status_t lap_auto_confirm(lap_group_t *group, lap_engine_t *engine, const lap_op_desc_t *desc,
                              unsigned can, lap_auto_t *choice);

/* The choice for `m` active rows. */
const lap_candidate_t *lap_auto_for(const lap_auto_t *choice, size_t m);

/* The columns of the result of rank 0's GEMM, and what it sums over: what lap_calibrate takes. */
lap_status_t lap_auto_gemm(const lap_op_desc_t *desc, int size, unsigned can, size_t *n_p,
                           size_t *k_p);

#endif
