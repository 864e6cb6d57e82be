/* SPDX-License-Identifier: Apache-2.0 */
/* What lap/pipeline.h and the proofs of pipelines have in common. */
#ifndef LAP_PARALLEL_STAGE_H
#define LAP_PARALLEL_STAGE_H

#include <lap/pipeline.h>

#include "parallel/stages.h"

/* The options with their defaults. */
lap_status_t lap_stage_options(const lap_pp_options_t *given, lap_pp_options_t *options_p);

/* The stages of a model, from its description. The caller clears them, also after a failure. */
lap_status_t lap_stage_plan(const lap_nn_desc_t *desc, int nranks, const lap_pp_options_t *options,
                            lap_stages_t *stages);

#endif
