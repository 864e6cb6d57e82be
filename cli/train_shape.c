/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `lap train` trains, as the command line says it: the kind of layers or a model, and sizes.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/status.h"
#include "nn/nn_fields.h"
#include "nn/plan.h"
#include "train_options.h"

/* A layer, also by the name of TransformerEngine's module, such as LayerNormMLP. */
static bool parse_layer(const lap_args_t *args, size_t *kind_p)
{
    const char *text = args->values[LAYER];
    static const char *const modules[] = {"Linear", "LayerNormLinear", "LayerNormMLP",
                                          "MultiheadAttention", "TransformerLayer"};
    for (size_t i = 0; i < sizeof(modules) / sizeof(modules[0]); i++)
        if (strcasecmp(text, modules[i]) == 0) {
            *kind_p = i;
            return true;
        }
    return lap_arg_choice(args->command, "--layer", text, lap_nn_kind_names, kind_p);
}

/* A preset, or layers. */
bool lap_train_kind(lap_train_t *train)
{
    const lap_args_t *args = &train->args;
    size_t kind;
    if (train->model && lap_model_preset(train->model, &train->desc) != LAP_OK)
        return lap_args_wrong(args->command, "--model: %s", lap_last_error());
    if (train->model)
        return true;
    if (!parse_layer(args, &kind))
        return false;
    if (kind == LAP_NN_MODEL)
        return lap_args_wrong(args->command,
                              "--layer is 'model'; expected --model NAME in its place");
    train->desc.kind = (lap_nn_kind_t)kind;
    return true;
}

bool lap_train_read_dtype(const lap_args_t *args, int option, void *to)
{
    const char *text = args->values[option];
    lap_dtype_t dtype;
    const bool known = lap_dtype_parse(text, &dtype) == LAP_OK;
    const bool fp8 = strncmp(text, "fp8", 3) == 0 || (known && lap_dtype_is_fp8(dtype));
    if (!known || fp8)
        return lap_args_wrong(args->command,
                              "--dtype is '%s'; expected float32, bfloat16 or float16%s", text,
                              fp8 ? " (for GEMMs in FP8, add --fp8)" : "");
    ((lap_train_t *)to)->desc.dtype = dtype;
    return true;
}

bool lap_train_read_wire(const lap_args_t *args, int option, void *to)
{
    const char *text = args->values[option];
    lap_dtype_t dtype;
    if (lap_dtype_parse(text, &dtype) != LAP_OK || (dtype != LAP_FLOAT32 && dtype != LAP_BFLOAT16))
        return lap_args_wrong(args->command, "--grad-sync-dtype is '%s'; expected fp32 or bf16",
                              text);
    ((lap_train_t *)to)->replicas.wire_dtype = dtype;
    return true;
}

/* `size`: of a micro-batch, or 0. */
static bool refuse_batch(const lap_train_t *train, const lap_args_t *args, size_t size)
{
    const size_t dp = (size_t)train->grid.dp;
    const char *plural = dp > 1 ? "s" : "";
    const bool own = args->given[BATCH_SIZE]; /* what replicas do not share */
    const char *why = args->given[MICRO] ? "" : ", the fewest of an interleaved pipeline";
    if (own && size > 0)
        return lap_args_wrong(args->command,
                              "--batch-size is %zu; expected a multiple of the --micro-batch of "
                              "%zu, up to %d times that",
                              train->batch / dp, size, MICRO_MOST);
    if (own)
        return lap_args_wrong(args->command,
                              "--batch-size is %zu; expected a multiple of the %d micro-batches%s",
                              train->batch / dp, train->micro, why);
    if (size > 0)
        return lap_args_wrong(args->command,
                              "--batch is %zu; expected a multiple of %zu, the --micro-batch of "
                              "%zu for each of %zu replica%s, up to %d times that",
                              train->batch, dp * size, size, dp, plural, MICRO_MOST);
    if (train->micro == 1)
        return lap_args_wrong(
            args->command,
            "--batch is %zu; expected a multiple of the %zu replicas, which share it", train->batch,
            dp);
    return lap_args_wrong(
        args->command,
        "--batch is %zu; expected a multiple of %zu: %zu replica%s times %d micro-batches%s",
        train->batch, dp * (size_t)train->micro, dp, plural, train->micro, why);
}

/* Of two options for one number, at most one. */
static bool check_one(const lap_args_t *args, int option, int other)
{
    return !args->given[option] || !args->given[other] ||
           lap_args_wrong(args->command, "--%s and --%s are both given; expected one of them",
                          lap_train_options[option].name, lap_train_options[other].name);
}

/* The sequences of an iteration, which replicas and their micro-batches share. */
static bool settle_batch(lap_train_t *train)
{
    const lap_args_t *args = &train->args;
    const size_t replicas = (size_t)train->grid.dp;
    const size_t size = args->given[MICRO_SIZE] ? train->desc.batch : 0; /* of a micro-batch */
    if (!check_one(args, MICRO_SIZE, MICRO) || !check_one(args, BATCH, BATCH_SIZE))
        return false;
    /* Ranks of an interleaved pipeline take turns with a micro-batch of each. */
    if (!args->given[MICRO])
        train->micro = strcmp(train->pipeline.schedule, "interleaved") == 0 ? train->grid.pp : 1;
    size_t sharers = replicas * (size_t)train->micro;
    if (size > 0)
        sharers = size <= COUNT_MOST / replicas ? replicas * size : COUNT_MOST;
    if (args->given[BATCH_SIZE]) {
        if (!lap_arg_size(args->command, "--batch-size", args->values[BATCH_SIZE], 1,
                          COUNT_MOST / replicas, &train->batch))
            return false;
        train->batch *= replicas;
    } else if (!args->given[BATCH]) {
        train->batch = sharers > 2 || size > 0 ? sharers : 2;
    }
    if (train->batch % sharers != 0 || (size > 0 && train->batch / sharers > MICRO_MOST))
        return refuse_batch(train, args, size);
    train->micro = size > 0 ? (int)(train->batch / sharers) : train->micro;
    train->desc.batch = size > 0 ? size : train->batch / sharers;
    return true;
}

/* A part of the hidden size, which should be a multiple of `by`. */
static bool divide(const lap_args_t *args, size_t hidden, size_t by, const char *of,
                   const char *instead, size_t *part_p)
{
    if (hidden % by != 0)
        return lap_args_wrong(args->command,
                              "--hidden is %zu; expected a multiple of the %zu %s, or %s", hidden,
                              by, of, instead);
    *part_p = hidden / by;
    return true;
}

/* Heads, or the features of one, that are not given come of the hidden size. */
static bool share_hidden(const lap_args_t *args, lap_nn_desc_t *desc)
{
    const bool heads = args->given[HEADS], dim = args->given[HEAD_DIM];
    if (heads && dim)
        return true;
    if (heads)
        return divide(args, desc->hidden, desc->heads, "heads", "--head-dim as well",
                      &desc->head_dim);
    return divide(args, desc->hidden, desc->head_dim, "features of a head",
                  "--heads or another --head-dim", &desc->heads);
}

/* The hidden size is that of all heads, unless it is given: then the heads fit it. */
static bool settle_layers(lap_train_t *train)
{
    const lap_args_t *args = &train->args;
    const bool cuda = strcmp(train->device, "cuda") == 0;
    lap_nn_desc_t *desc = &train->desc;
    const bool attends = desc->kind == LAP_NN_ATTENTION || desc->kind == LAP_NN_TRANSFORMER;
    if (!args->given[HEADS])
        desc->heads = cuda ? 64 : 24;
    if (!args->given[HEAD_DIM])
        desc->head_dim = cuda ? 128 : 32;
    if (!args->given[SEQ])
        desc->seq = cuda ? 2048 : 256;
    if (args->given[HIDDEN])
        return !attends || share_hidden(args, desc);
    if (!__builtin_mul_overflow(desc->heads, desc->head_dim, &desc->hidden) &&
        desc->hidden <= COUNT_MOST)
        return true;
    return lap_args_wrong(
        args->command, "--heads %zu times --head-dim %zu is the hidden size; expected at most %d",
        desc->heads, desc->head_dim, COUNT_MOST);
}

/*
 * Heads of a preset keep their size, and groups of heads and the MLP their proportions, unless they
 * are given too.
 */
static bool settle_model(lap_train_t *train)
{
    const lap_args_t *args = &train->args;
    lap_nn_desc_t preset = LAP_NN_DESC_INIT, *desc = &train->desc;
    if (lap_model_preset(train->model, &preset) != LAP_OK)
        return false; /* it was there before */
    if ((args->given[HEADS] || args->given[HEAD_DIM] || args->given[HIDDEN]) &&
        !share_hidden(args, desc))
        return false;
    const size_t group = preset.heads / preset.kv_heads;
    if (!args->given[KV_HEADS])
        desc->kv_heads = desc->heads % group == 0 ? desc->heads / group : desc->heads;
    if (!args->given[FFN])
        desc->ffn = (size_t)((double)preset.ffn * (double)desc->hidden / (double)preset.hidden);
    desc->ffn = desc->ffn > 0 ? desc->ffn : 1;
    const bool learned = desc->positions == LAP_POSITIONS_LEARNED;
    if (!learned)
        desc->max_positions = 0;
    else if (!args->given[MAX_POSITIONS] && desc->max_positions < desc->seq)
        desc->max_positions = desc->seq;
    return true;
}

/* "3,2,3" */
static bool parse_layers(lap_train_t *train, const lap_args_t *args)
{
    size_t *count_p = &train->pipeline.nlayers_per_stage;
    const char *text = args->values[STAGE_LAYERS];
    for (const char *rest = text; rest; rest = *rest == ',' ? rest + 1 : NULL) {
        char *end;
        const unsigned long count = strtoul(rest, &end, 10);
        if (end == rest || *rest < '0' || *rest > '9' || (*end != ',' && *end != '\0') ||
            count < 1 || count > COUNT_MOST || *count_p == LAP_TRAIN_STAGES)
            return lap_args_wrong(
                args->command,
                "--layers-per-stage is '%s'; expected numbers of layers, 1 or more, "
                "with a comma between two of them, of at most %d stages",
                text, LAP_TRAIN_STAGES);
        train->stages[(*count_p)++] = count;
        rest = end;
    }
    return true;
}

bool lap_train_pipeline(lap_train_t *train)
{
    const lap_args_t *args = &train->args;
    lap_pp_options_t *pipeline = &train->pipeline;
    if (!args->values[SCHEDULE])
        pipeline->schedule = pipeline->virtual_stages > 1 ? "interleaved" : "1f1b";
    if (strcmp(pipeline->schedule, "interleaved") == 0 && pipeline->virtual_stages == 1)
        return lap_args_wrong(args->command,
                              "--virtual-pp is 1 with --schedule interleaved; expected 2 to %d",
                              LAP_NN_CHUNKS);
    if (train->grid.pp > 1 && train->desc.kind != LAP_NN_MODEL)
        return lap_args_wrong(args->command,
                              "--pp is %d; expected --model with it: only models are cut into the "
                              "stages of a pipeline",
                              train->grid.pp);
    return parse_layers(train, args);
}

bool lap_train_shape(lap_train_t *train)
{
    lap_nn_desc_t *desc = &train->desc;
    if (!train->args.values[DTYPE])
        desc->dtype = strcmp(train->device, "cuda") == 0 ? LAP_BFLOAT16 : LAP_FLOAT32;
    if (!(train->model ? settle_model : settle_layers)(train) || !settle_batch(train) ||
        !lap_arg_expansion(&train->args, FFN, EXPANSION, desc->hidden, &desc->ffn))
        return false;
    desc->ffn = lap_nn_ffn(desc); /* what ranks have alike, also where only some of them say it */
    return true;
}

void lap_json_digest(lap_json_t *json, uint64_t digest)
{
    char text[24];
    snprintf(text, sizeof(text), "%016" PRIx64, digest);
    lap_json_put(json, "digest:%s", digest ? text : NULL);
}
