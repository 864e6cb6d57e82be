/* SPDX-License-Identifier: Apache-2.0 */
/* The search over grids, micro-batches, recomputation and schedules. */
#ifndef LAP_PLAN_SEARCH_H
#define LAP_PLAN_SEARCH_H

#include "plan/plan.h"

#define LAP_PLAN_BEST_MOST 64
#define LAP_PLAN_ANY_RECOMPUTE LAP_PLAN_RECOMPUTES

/* Why a configuration was left out. */
typedef enum lap_plan_reason {
    LAP_PLAN_HEADS = 0, /* heads do not divide by tp */
    LAP_PLAN_NODE,      /* tensor parallel over more than a node */
    LAP_PLAN_SEQ,
    LAP_PLAN_STAGES,  /* layers do not divide by stages */
    LAP_PLAN_VIRTUAL, /* virtual stages without a pipeline */
    LAP_PLAN_BATCH,
    LAP_PLAN_MICROS, /* the schedule needs a multiple of its ranks */
    LAP_PLAN_SLOW,   /* slower than the best ones, even without a bubble */
    LAP_PLAN_LARGE,  /* it does not fit */
    LAP_PLAN_SHARES, /* a rank would have nothing of something, or too much to count */
    LAP_PLAN_REASONS
} lap_plan_reason_t;
extern const char *const lap_plan_reason_names[LAP_PLAN_REASONS + 1];

typedef struct lap_plan_choice {
    lap_plan_config_t config;
    lap_plan_result_t result;
} lap_plan_choice_t;

typedef struct lap_plan_found {
    size_t most;                                /* to be found */
    lap_plan_choice_t best[LAP_PLAN_BEST_MOST]; /* the fastest first */
    size_t count;
    lap_plan_choice_t nearest; /* of those that do not fit, the one that needs least; tried > 0 */
    bool any_nearest;
    size_t tried;
    bool stopped; /* before all were tried */
    size_t left_out[LAP_PLAN_REASONS];
    lap_plan_config_t example[LAP_PLAN_REASONS]; /* the first that was left out so */
} lap_plan_found_t;

/*
 * Looks for the fastest configurations that fit. Of `given`, what is 0 is free: tp, pp, cp, dp,
 * virtual_pp, micro_batch; a schedule that is NULL, and LAP_PLAN_ANY_RECOMPUTE. Finding none is no
 * failure, and neither is it that `stops`, which is asked before each one, unless it is NULL, ends the search.
 * LAP_ERR_INVALID: no grid can be one; LAP_ERR_NO_MEMORY.
 */
lap_status_t lap_plan_search(const lap_plan_config_t *given, const lap_machine_t *machine,
                             size_t most, bool (*stops)(void), lap_plan_found_t *found_p);

/*
 * Chooses what is 0 in a configuration whose grid is known: the fastest that fits, or else what
 * needs least memory. Writes both on success.
 */
lap_status_t lap_plan_complete(lap_plan_config_t *config, const lap_machine_t *machine,
                               lap_plan_result_t *result_p);

#endif
