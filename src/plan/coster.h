/* SPDX-License-Identifier: Apache-2.0 */
/* Programs of a layer that are simulated with the rates of a machine: what layer.c and ring.c share. */
#ifndef LAP_PLAN_COSTER_H
#define LAP_PLAN_COSTER_H

#include "nn/program.h"
#include "plan/plan.h"

typedef struct lap_plan_coster {
    const lap_plan_config_t *config;
    const lap_machine_t *machine;
    const lap_plan_wire_t *wire; /* that the ranks of the programs have between them */
    const lap_nn_list_t *list;   /* of rank 0, */
    const lap_linked_t *linked;  /* and its program */
    int ranks;
    lap_cost_t *costs; /* per fragment */
    lap_fragment_cost_t *fragments;
    lap_fragment_span_t *spans[2]; /* with the wires, and with infinitely fast ones */
} lap_plan_coster_t;

/* Links a layer for GPUs and plays it both ways; the programs are the caller's to clear, as the coster is. */
lap_status_t lap_plan_coster_play(lap_plan_coster_t *coster, const lap_nn_plan_t *plan,
                                  lap_nn_programs_t *programs);
void lap_plan_coster_clear(lap_plan_coster_t *coster);

/* What fragment f puts on the wire, in bytes; *puts_p: in so many messages. */
double lap_plan_wire_bytes(const lap_plan_coster_t *coster, uint32_t f, double *puts_p);

/* ---- ring.c ---- */

/*
 * Adds what a context sends around its ring in a layer, hidden and not. `layer` is how a layer of the
 * model was listed for the tensor-parallel ranks, each with its part of the tokens.
 */
lap_status_t lap_plan_add_ring(const lap_plan_config_t *config, const lap_machine_t *machine,
                               const lap_nn_desc_t *layer, lap_plan_span_t spans[LAP_PLAN_PASSES]);

#endif
