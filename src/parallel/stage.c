/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptions of pipelines: the table that options ask for, and whether a model fits. */
#include "parallel/stage.h"

#include <errno.h>
#include <string.h>

#include "core/options.h"
#include "core/status.h"

lap_status_t lap_stage_options(const lap_pp_options_t *given, lap_pp_options_t *options_p)
{
    lap_pp_options_t options = LAP_PP_OPTIONS_INIT;
    if (given)
        LAP_TRY(lap_read_options(&options, sizeof(options), given, "LAP_PP_OPTIONS"));
    if (!options.schedule)
        return lap_error(LAP_ERR_INVALID,
                         "schedule is NULL, expected 1f1b, interleaved, zb-h1, zb-v, "
                         "1f1b-eager or the name of a file");
    if (options.micro_batches < 1 || options.micro_batches > LAP_PIPE_MOST)
        return lap_error(LAP_ERR_INVALID, "micro_batches is %zu, expected 1 to %u",
                         options.micro_batches, LAP_PIPE_MOST);
    if (options.virtual_stages > LAP_NN_CHUNKS)
        return lap_error(LAP_ERR_INVALID, "virtual_stages is %zu, expected at most %d",
                         options.virtual_stages, LAP_NN_CHUNKS);
    *options_p = options;
    return LAP_OK;
}

static bool is_file(const char *schedule)
{
    const size_t length = strlen(schedule);
    return length > 4 && strcmp(schedule + length - 4, ".csv") == 0;
}

static lap_status_t read_table(const char *path, lap_pipeline_t *pipeline_p)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return lap_error(LAP_ERR_SYSTEM, "cannot open %s: %s", path, strerror(errno));
    const lap_status_t status = lap_pipeline_read(file, path, pipeline_p);
    (void)fclose(file);
    return status;
}

/* That of a file must be for as many ranks and micro-batches as there are. */
static lap_status_t check_table(const lap_pipeline_t *pipeline, const lap_pp_options_t *options,
                                int nranks)
{
    if (pipeline->ranks != (uint32_t)nranks)
        return lap_error(LAP_ERR_INVALID, "%s is for %u ranks, expected the %d of the pipeline",
                         options->schedule, (unsigned)pipeline->ranks, nranks);
    if (pipeline->micros != options->micro_batches)
        return lap_error(LAP_ERR_INVALID, "micro_batches is %zu, expected the %u that %s is for",
                         options->micro_batches, (unsigned)pipeline->micros, options->schedule);
    if (options->virtual_stages &&
        pipeline->stages != (uint32_t)nranks * (uint32_t)options->virtual_stages)
        return lap_error(LAP_ERR_INVALID, "%s has %u stages, expected %zu on each of %d ranks",
                         options->schedule, (unsigned)pipeline->stages, options->virtual_stages,
                         nranks);
    return LAP_OK;
}

static lap_status_t make_table(const lap_pp_options_t *options, int nranks,
                               lap_pipeline_t *pipeline_p)
{
    const bool interleaved = strcmp(options->schedule, "interleaved") == 0;
    const uint32_t chunks = options->virtual_stages ? (uint32_t)options->virtual_stages
                            : interleaved           ? 2
                                                    : 1;
    *pipeline_p = (lap_pipeline_t){.ranks = 0};
    if (is_file(options->schedule)) {
        LAP_TRY(read_table(options->schedule, pipeline_p));
        LAP_TRY(check_table(pipeline_p, options, nranks));
    } else {
        if (options->virtual_stages == 1 && strcmp(options->schedule, "zb-v") == 0)
            return lap_error(LAP_ERR_INVALID, "zb-v has 1 stage on a rank, expected 2");
        LAP_TRY(lap_pipeline_build(options->schedule, (uint32_t)nranks, chunks,
                                   (uint32_t)options->micro_batches, pipeline_p));
    }
    return lap_pipeline_check(pipeline_p);
}

lap_status_t lap_stage_plan(const lap_nn_desc_t *desc, int nranks, const lap_pp_options_t *options,
                            lap_stages_t *stages)
{
    lap_pipeline_t pipeline;
    *stages = (lap_stages_t){.ranks = 0};
    lap_status_t status = make_table(options, nranks, &pipeline);
    if (status == LAP_OK)
        status = lap_stages_init(stages, &pipeline, desc->layers, options->layers_per_stage,
                                 options->nlayers_per_stage, desc->tied != 0);
    lap_pipeline_clear(&pipeline);
    return status;
}

lap_status_t lap_pp_validate(const lap_nn_desc_t *desc, int tp, int nranks,
                             const lap_pp_options_t *given)
{
    lap_pp_options_t options;
    lap_stages_t stages;
    lap_nn_plan_t plan = {.nranks = tp};
    LAP_TRY(lap_nn_validate(desc, tp));
    LAP_TRY(lap_stage_options(given, &options));
    if (nranks < 1)
        return lap_error(LAP_ERR_INVALID, "nranks is %d, expected at least 1", nranks);
    LAP_TRY(lap_nn_plan_init(desc, tp, &plan));
    lap_status_t status = lap_stage_plan(&plan.desc, nranks, &options, &stages);
    for (int r = 0; r < nranks && status == LAP_OK; r++) {
        lap_nn_cut_t cut;
        status = lap_stages_cut(&stages, (uint32_t)r, &cut);
        if (status == LAP_OK)
            status = lap_nn_plan_stage(desc, tp, &cut, &plan);
    }
    lap_stages_clear(&stages);
    return status;
}
