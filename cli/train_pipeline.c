/* SPDX-License-Identifier: Apache-2.0 */
/* Pipelines of `lap train`: what the command line says of them. */
#include <stdlib.h>
#include <string.h>

#include "nn/plan.h"
#include "train_options.h"

/* "3,2,3" */
static bool parse_layers(lap_train_pipeline_t *pipeline, const lap_args_t *args)
{
    const char *text = args->values[STAGE_LAYERS];
    for (const char *rest = text; rest; rest = *rest == ',' ? rest + 1 : NULL) {
        char *end;
        const unsigned long count = strtoul(rest, &end, 10);
        if (end == rest || *rest < '0' || *rest > '9' || (*end != ',' && *end != '\0') ||
            count < 1 || count > COUNT_MOST || pipeline->nlayers == LAP_TRAIN_STAGES)
            return lap_args_wrong(
                args->command,
                "--layers-per-stage is '%s'; expected numbers of layers, 1 or more, "
                "with a comma between two of them, of at most %d stages",
                text, LAP_TRAIN_STAGES);
        pipeline->layers[pipeline->nlayers++] = count;
        rest = end;
    }
    return true;
}

bool lap_train_pipeline(lap_train_t *train, const lap_args_t *args)
{
    lap_train_pipeline_t *pipeline = &train->pipeline;
    const char *schedule = args->values[SCHEDULE];
    *pipeline = (lap_train_pipeline_t){.overlap = !args->given[NO_OVERLAP_P2P]};
    if (args->values[VIRTUAL_PP] &&
        !lap_arg_int(args->command, "--virtual-pp", args->values[VIRTUAL_PP], 1, LAP_NN_CHUNKS,
                     &pipeline->virtual_stages))
        return false;
    pipeline->schedule = schedule                       ? schedule
                         : pipeline->virtual_stages > 1 ? "interleaved"
                                                        : "1f1b";
    if (strcmp(pipeline->schedule, "interleaved") == 0 && pipeline->virtual_stages == 1)
        return lap_args_wrong(args->command,
                              "--virtual-pp is 1 with --schedule interleaved; expected 2 to %d",
                              LAP_NN_CHUNKS);
    if (train->grid.pp > 1 && train->desc.kind != LAP_NN_MODEL)
        return lap_args_wrong(args->command,
                              "--pp is %d; expected --model with it: only models are cut into the "
                              "stages of a pipeline",
                              train->grid.pp);
    return parse_layers(pipeline, args);
}

lap_pp_options_t lap_train_stages(const lap_train_t *train, bool overlap)
{
    lap_pp_options_t options = LAP_PP_OPTIONS_INIT;
    options.schedule = train->pipeline.schedule;
    options.micro_batches = (size_t)train->micro;
    options.virtual_stages = (size_t)train->pipeline.virtual_stages;
    options.layers_per_stage = train->pipeline.nlayers ? train->pipeline.layers : NULL;
    options.nlayers_per_stage = train->pipeline.nlayers;
    options.overlap = overlap && train->pipeline.overlap;
    return options;
}
