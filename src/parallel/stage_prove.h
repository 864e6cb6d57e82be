/* SPDX-License-Identifier: Apache-2.0 */
/* The programs of all ranks of a pipeline for a step: to be proved, counted and shown. Runs nothing. */
#ifndef LAP_PARALLEL_STAGE_PROVE_H
#define LAP_PARALLEL_STAGE_PROVE_H

#include <lap/pipeline.h>

#include "parallel/stage_link.h"

/*
 * Rank p of the pipeline, d of the replicas, c of the context and t of those that share its layers is rank
 * ((p * dp + d) * cp + c) * tp + t: each group is a slice. The origin of a fragment is the number of its
 * entry, or after all entries (LAP_NN_BUCKET_ORIGIN) that of its item.
 */
typedef struct lap_stage_programs {
    lap_nn_programs_t all;
    lap_stage_program_t *programs; /* items only: what is linked is in `all` */
    lap_stages_t stages;
    lap_nn_buckets_t *buckets; /* of each rank; NULL: nothing of replicas is a part of the step */
} lap_stage_programs_t;

/* Rank `rank` of the grid of a description, as the programs number it; and the other way round. */
typedef struct lap_stage_proving lap_stage_proving_t;
int lap_stage_number(const lap_stage_proving_t *proving, int rank);
int lap_stage_world_rank(const lap_stage_proving_t *proving, int number);

struct lap_stage_proving {
    const lap_nn_desc_t *desc;
    int tp, pp;
    const lap_pp_options_t *options;
    /*
     * As passes are linked. `late` gradients travel after the step, and are a part of it with an optimizer only; `first`:
     * delayed FP8 scales have no history yet. There is neither `more` nor a source: see `chosen`.
     */
    lap_nn_linking_t how;
    /* Of each rank of the pipeline: the operators of its list, without those of an optimizer; NULL: as they are listed. */
    const lap_op_desc_t *const *chosen;
    uint64_t most; /* kernels and operators of all ranks, or LAP_ERR_NO_MEMORY; 0: any number */
};

/* Links them. The caller clears them, also after a failure. */
lap_status_t lap_stage_programs_init(lap_stage_programs_t *programs,
                                     const lap_stage_proving_t *proving);
void lap_stage_programs_clear(lap_stage_programs_t *programs);

/* Links and proves a step of a pipeline, and counts what a rank has of it at most. */
lap_status_t lap_stage_prove(const lap_stage_proving_t *proving, lap_nn_proof_t *proof_p);

#endif
