/* SPDX-License-Identifier: Apache-2.0 */
/* The programs of all ranks of a pipeline for a step: to be proved, counted and shown. Runs nothing. */
#ifndef LAP_PARALLEL_STAGE_PROVE_H
#define LAP_PARALLEL_STAGE_PROVE_H

#include <lap/pipeline.h>

#include "parallel/stage_link.h"

/*
 * Rank p of the pipeline and rank t of those that share its layers are rank p * tp + t. The origin of a
 * fragment is the number of its entry, or behind all entries (LAP_NN_BUCKET_ORIGIN) that of its item.
 */
typedef struct lap_stage_programs {
    lap_nn_programs_t all;
    lap_stage_program_t *programs; /* items only: what is linked is in `all` */
    lap_stages_t stages;
} lap_stage_programs_t;

typedef struct lap_stage_proving {
    const lap_nn_desc_t *desc;
    int tp, pp;
    const lap_pp_options_t *options;
    const lap_target_t *target;
    bool as_built;     /* no pass of lowering runs */
    const char *after; /* the pass of lowering to stop after; NULL: all run */
    bool aligned;      /* fragment i of all ranks is one call, as proofs need it */
} lap_stage_proving_t;

/* Links them. The caller clears them, also after a failure. */
lap_status_t lap_stage_programs_init(lap_stage_programs_t *programs,
                                     const lap_stage_proving_t *proving);
void lap_stage_programs_clear(lap_stage_programs_t *programs);

/* Links and proves a step of a pipeline, and counts what a rank has of it at most. */
lap_status_t lap_stage_prove(const lap_stage_proving_t *proving, lap_nn_proof_t *proof_p);

#endif
