/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The methods and knobs that the operators of all ranks of a pipeline have: proofs and predictions link the programs of
 * other ranks from them. They are chosen when an operator is made, and stay.
 */
#ifndef LAP_PARALLEL_STAGE_CHOICES_H
#define LAP_PARALLEL_STAGE_CHOICES_H

#include "nn/nn.h"

typedef struct lap_stage_choices {
    void *all; /* as they were told */
    lap_op_desc_t *descs;
    const lap_op_desc_t *
        *of; /* of each rank: of each operator of its list, before an optimizer adds its own */
} lap_stage_choices_t;

/* Tells them to all ranks. Collective over the pipeline. The caller clears them, also after a failure. */
lap_status_t lap_stage_choices_share(lap_stage_choices_t *choices, const lap_nn_t *nn,
                                     lap_group_t *pipeline);
void lap_stage_choices_clear(lap_stage_choices_t *choices);

#endif
