/* SPDX-License-Identifier: Apache-2.0 */
/* What `lap train` trains, as the command line says it: the kind of layers or a model, and sizes. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/status.h"
#include "nn/nn_fields.h"
#include "nn/plan.h"
#include "train_options.h"

#define MICRO_MOST 65536
#define LAYERS_MOST 100000 /* each has calls that are planned before anything else is looked at */

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

/* An option that has the name of a field of layers. */
static bool parse_field(lap_train_t *train, const lap_args_t *args, int option, const char *text)
{
    return lap_arg_option(args->command, option, text, lap_nn_fields, sizeof(lap_field_t),
                          &train->desc);
}

/* A preset, or layers. */
static bool parse_kind(lap_train_t *train, const lap_args_t *args)
{
    size_t kind;
    train->model = args->values[MODEL];
    if (train->model) {
        if (lap_model_preset(train->model, &train->desc) == LAP_OK)
            return true;
        return lap_args_wrong(args->command, "--model: %s", lap_last_error());
    }
    if (!parse_layer(args, &kind))
        return false;
    if (kind == LAP_NN_MODEL)
        return lap_args_wrong(args->command,
                              "--layer is 'model'; expected --model NAME in its place");
    train->desc.kind = (lap_nn_kind_t)kind;
    return true;
}

/* What was given, or is the default of layers. */
static bool parse_own_field(lap_train_t *train, const lap_args_t *args, int option)
{
    if (!args->values[option] || (train->model && !args->given[option]))
        return true;
    return parse_field(train, args, option, args->values[option]);
}

/* What is given of rotary positions, of norms and of first weights. */
static bool parse_numbers(lap_train_t *train, const lap_args_t *args)
{
    lap_nn_desc_t *desc = &train->desc;
    return lap_train_rate(args, EPSILON, desc->epsilon, &desc->epsilon) &&
           lap_train_rate(args, INIT_STD, desc->init_std, &desc->init_std) &&
           lap_train_rate(args, ROPE_THETA, desc->rope_theta, &desc->rope_theta) &&
           lap_train_rate(args, ROPE_FACTOR, desc->rope_factor, &desc->rope_factor) &&
           lap_train_rate(args, ROPE_LOW, desc->rope_low_freq, &desc->rope_low_freq) &&
           lap_train_rate(args, ROPE_HIGH, desc->rope_high_freq, &desc->rope_high_freq) &&
           (!args->values[ROPE_ORIGINAL] ||
            lap_train_count(args, ROPE_ORIGINAL, "", &desc->rope_original));
}

bool lap_train_kinds(lap_train_t *train, const lap_args_t *args)
{
    const char *recipe = args->values[FP8] ? args->values[FP8] : "none";
    if (!parse_kind(train, args) || !parse_own_field(train, args, NORM) ||
        !parse_own_field(train, args, ACTIVATION) || !parse_own_field(train, args, POSITIONS) ||
        !parse_numbers(train, args) || !lap_arg_yes(args, TIED, &train->desc.tied) ||
        !parse_field(train, args, RECOMPUTE, args->values[RECOMPUTE]) ||
        !parse_field(train, args, FP8, *recipe ? recipe : "delayed"))
        return false;
    train->desc.sequence_parallel = !args->given[NO_SEQUENCE_PARALLEL];
    return true;
}

/* FP8 is no type of weights and activations, but of what GEMMs multiply. */
static bool parse_dtype(const lap_args_t *args, const char *text, lap_dtype_t *dtype_p)
{
    lap_dtype_t dtype;
    const bool known = lap_dtype_parse(text, &dtype) == LAP_OK;
    const bool fp8 = strncmp(text, "fp8", 3) == 0 || (known && lap_dtype_is_fp8(dtype));
    if (known && !fp8) {
        *dtype_p = dtype;
        return true;
    }
    return lap_args_wrong(args->command, "--dtype is '%s'; expected float32, bfloat16 or float16%s",
                          text, fp8 ? " (for GEMMs in FP8, add --fp8)" : "");
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

/* The sequences of an iteration, which replicas and their micro-batches share. */
static bool parse_batch(lap_train_t *train, const lap_args_t *args)
{
    char batch[24];
    /* Ranks of an interleaved pipeline take turns with a micro-batch of each. */
    train->micro = strcmp(train->pipeline.schedule, "interleaved") == 0 ? train->grid.pp : 1;
    if (args->given[MICRO] && !lap_arg_int(args->command, "--micro-batches", args->values[MICRO], 1,
                                           MICRO_MOST, &train->micro))
        return false;
    const size_t replicas = (size_t)train->grid.dp;
    size_t size = 0, sharers = replicas * (size_t)train->micro;
    if (args->given[MICRO_SIZE] && !lap_train_count(args, MICRO_SIZE, "", &size))
        return false;
    if (size > 0 && args->given[MICRO])
        return lap_args_wrong(
            args->command,
            "--micro-batch and --micro-batches are both given; expected one of them");
    if (size > 0)
        sharers = size <= COUNT_MOST / replicas ? replicas * size : COUNT_MOST;
    snprintf(batch, sizeof(batch), "%zu", sharers > 2 || size > 0 ? sharers : 2);
    if (args->given[BATCH] && args->given[BATCH_SIZE])
        return lap_args_wrong(args->command,
                              "--batch and --batch-size are both given; expected one of them");
    if (args->given[BATCH_SIZE]) {
        if (!lap_arg_size(args->command, "--batch-size", args->values[BATCH_SIZE], 1,
                          COUNT_MOST / replicas, &train->batch))
            return false;
        train->batch *= replicas;
    } else if (!lap_train_count(args, BATCH, batch, &train->batch)) {
        return false;
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

/* The hidden size is that of all heads, unless it is given: then the heads fit it. */
static bool parse_hidden(lap_train_t *train, const lap_args_t *args)
{
    const bool cuda = strcmp(train->device, "cuda") == 0;
    lap_nn_desc_t *desc = &train->desc;
    const bool attends = desc->kind == LAP_NN_ATTENTION || desc->kind == LAP_NN_TRANSFORMER;
    const bool heads = args->given[HEADS], dim = args->given[HEAD_DIM];
    if (!lap_train_count(args, HEADS, cuda ? "64" : "24", &desc->heads) ||
        !lap_train_count(args, HEAD_DIM, cuda ? "128" : "32", &desc->head_dim) ||
        (args->given[HIDDEN] && !lap_train_count(args, HIDDEN, "", &desc->hidden)))
        return false;
    if (args->given[HIDDEN] && attends && heads && !dim)
        return divide(args, desc->hidden, desc->heads, "heads", "--head-dim as well",
                      &desc->head_dim);
    if (args->given[HIDDEN] && attends && !heads)
        return divide(args, desc->hidden, desc->head_dim, "features of a head",
                      "--heads or another --head-dim", &desc->heads);
    if (args->given[HIDDEN])
        return true;
    if (!__builtin_mul_overflow(desc->heads, desc->head_dim, &desc->hidden) &&
        desc->hidden <= COUNT_MOST)
        return true;
    return lap_args_wrong(
        args->command, "--heads %zu times --head-dim %zu is the hidden size; expected at most %d",
        desc->heads, desc->head_dim, COUNT_MOST);
}

/* A number of a model, if it is given. */
static bool parse_own(const lap_args_t *args, int option, size_t *count_p)
{
    return !args->given[option] || lap_train_count(args, option, "", count_p);
}

/*
 * The numbers of a preset that are given. Heads keep their size, and groups of heads and the MLP their
 * proportions, unless they are given too.
 */
static bool parse_model_sizes(lap_train_t *train, const lap_args_t *args)
{
    const lap_nn_desc_t preset = train->desc;
    lap_nn_desc_t *desc = &train->desc;
    const bool heads = args->given[HEADS], dim = args->given[HEAD_DIM];
    if (!parse_own(args, HEADS, &desc->heads) || !parse_own(args, HEAD_DIM, &desc->head_dim) ||
        !parse_own(args, HIDDEN, &desc->hidden) || !parse_own(args, VOCAB, &desc->vocab) ||
        !parse_own(args, LAYERS, &desc->layers) || !parse_own(args, SEQ, &desc->seq))
        return false;
    if (heads && !dim &&
        !divide(args, desc->hidden, desc->heads, "heads", "--head-dim as well", &desc->head_dim))
        return false;
    if (!heads && (dim || args->given[HIDDEN]) &&
        !divide(args, desc->hidden, desc->head_dim, "features of a head",
                "--heads or another --head-dim", &desc->heads))
        return false;
    const size_t group = preset.heads / preset.kv_heads;
    desc->kv_heads = desc->heads % group == 0 ? desc->heads / group : desc->heads;
    desc->ffn = (size_t)((double)preset.ffn * (double)desc->hidden / (double)preset.hidden);
    desc->ffn = desc->ffn > 0 ? desc->ffn : 1;
    const bool learned = desc->positions == LAP_POSITIONS_LEARNED;
    if (!learned || desc->max_positions < desc->seq)
        desc->max_positions = learned ? desc->seq : 0;
    return !learned || !args->values[MAX_POSITIONS] ||
           lap_train_count(args, MAX_POSITIONS, "", &desc->max_positions);
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

bool lap_train_pipeline(lap_train_t *train, const lap_args_t *args)
{
    lap_pp_options_t *pipeline = &train->pipeline;
    const char *schedule = args->values[SCHEDULE];
    int virtual_stages = 0;
    if (args->values[VIRTUAL_PP] &&
        !lap_arg_int(args->command, "--virtual-pp", args->values[VIRTUAL_PP], 1, LAP_NN_CHUNKS,
                     &virtual_stages))
        return false;
    pipeline->overlap = !args->given[NO_OVERLAP_P2P];
    pipeline->virtual_stages = (size_t)virtual_stages;
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
    return parse_layers(train, args);
}

bool lap_train_shape(lap_train_t *train, const lap_args_t *args)
{
    const bool cuda = strcmp(train->device, "cuda") == 0;
    lap_nn_desc_t *desc = &train->desc;
    if (!(train->model ? parse_model_sizes(train, args)
                       : parse_hidden(train, args) &&
                             lap_train_count(args, SEQ, cuda ? "2048" : "256", &desc->seq)))
        return false;
    return parse_batch(train, args) &&
           lap_arg_expansion(args, FFN, EXPANSION, desc->hidden, &desc->ffn) &&
           (!args->given[FFN] || lap_train_count(args, FFN, "", &desc->ffn)) &&
           ((train->model && !args->given[LAYERS]) ||
            lap_arg_size(args->command, "--layers", args->values[LAYERS], 1, LAYERS_MOST,
                         &desc->layers)) &&
           (!args->values[KV_HEADS] || lap_train_count(args, KV_HEADS, "", &desc->kv_heads)) &&
           parse_dtype(args,
                       args->values[DTYPE] ? args->values[DTYPE]
                       : cuda              ? "bfloat16"
                                           : "float32",
                       &desc->dtype);
}

void lap_json_digest(lap_json_t *json, uint64_t digest)
{
    char text[24];
    snprintf(text, sizeof(text), "%016" PRIx64, digest);
    lap_json_put(json, "digest:%s", digest ? text : NULL);
}
