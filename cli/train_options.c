/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of `lap train`: everything that one process can find wrong is found here, before
 * any rank starts.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "config.h"
#include "core/environment.h"
#include "core/status.h"
#include "launch.h"
#include "nn/list.h"
#include "nn/nn_fields.h"
#include "nn/plan.h"
#include "ranks.h"
#include "rules.h"
#include "schedule/target.h"
#include "shared_options.h"
#include "train.h"
#include "util/alloc.h"

enum {
    LAYER,
    MODEL,
    VOCAB,
    POSITIONS,
    TIED,
    TP,
    REPLICAS,
    ITERS,
    BATCH,
    BATCH_SIZE,
    MICRO,
    MICRO_SIZE,
    DATA,
    DATA_ENDS,
    SEQ,
    HEADS,
    KV_HEADS,
    HEAD_DIM,
    HIDDEN,
    FFN,
    EXPANSION,
    LAYERS,
    NORM,
    ACTIVATION,
    RECOMPUTE,
    NO_SEQUENCE_PARALLEL,
    DTYPE,
    FP8,
    OPTIMIZER,
    LR,
    WARMUP,
    WEIGHT_DECAY,
    CLIP,
    GRAD_DTYPE,
    BUCKET,
    LR_DECAY,
    LR_DECAY_ITERS,
    MIN_LR,
    BETA1,
    BETA2,
    CONFIG,
    SAVE,
    SAVE_EVERY,
    LOAD,
    SEED,
    NO_OVERLAP,
    RULES,
    AUTO,
    NO_AG,
    NO_RS,
    RS_DGRAD,
    NO_BULK_DGRAD,
    NO_BULK_WGRAD,
    COMPARE,
    LINK,
    DEVICE,
    TRANSPORT,
    GPU_SHARE,
    TIMEOUT,
    CONTINUE,
    NO_TRACE,
    NO_PREDICT,
    DEBUG,
    QUIET,
    LOG_INTERVAL,
    JSON,
    NOPTIONS
};

static const lap_option_t options[NOPTIONS] = {
    [LAYER] = {0, "layer", "KIND",
               "linear, layernorm_linear, layernorm_mlp, attention or transformer", "transformer"},
    [MODEL] = {0, "model", "NAME",
               "a language model instead of layers: gpt2-124m, gpt2-350m, gpt2-774m, gpt2-1.5b, "
               "llama-tiny, llama-1b, llama-8b, llama-70b, or gpt or llama, which are small. The "
               "options that follow change its numbers",
               NULL},
    [VOCAB] = {0, "vocab", "COUNT", "tokens that a model knows (default: the model's own)", NULL},
    [POSITIONS] = {0, "positions", "KIND",
                   "how a model knows where tokens are: learned, rope or none (default: the "
                   "model's own); rope is for all layers with attention",
                   NULL},
    [TIED] = {0, "tied", "[=YES]",
              "embeddings are the weights of a model's logits, too: yes or no (default: the "
              "model's own)",
              NULL},
    [TP] = {0, "tp", "P",
            "tensor-parallel ranks, over which weights are sharded (default 4, or the ranks that a "
            "launcher started)",
            NULL},
    [REPLICAS] = {0, "num-replicas", "N", "data-parallel replicas, of P ranks each", "1"},
    [ITERS] = {0, "iters", "COUNT", "iterations", "5"},
    [BATCH] = {0, "batch", "COUNT",
               "sequences per iteration, of all replicas together (default 2, or a sequence for "
               "each micro-batch of each replica)",
               NULL},
    [BATCH_SIZE] = {'b', "batch-size", "COUNT",
                    "sequences per iteration and replica, instead of --batch", NULL},
    [MICRO] = {0, "micro-batches", "N",
               "micro-batches per iteration and replica: gradients are accumulated, and sent to "
               "other replicas during the last backward",
               "1"},
    [MICRO_SIZE] = {0, "micro-batch", "COUNT",
                    "sequences of a micro-batch, instead of --micro-batches", NULL},
    [DATA] = {0, "data", "FILES",
              "train a model on files of tokens, with commas between them, or patterns; see lap "
              "data (default: tokens made from the seed)",
              NULL},
    [DATA_ENDS] = {0, "no-data-wrap", NULL,
                   "refuse to train on more than --data has, instead of beginning again", NULL},
    [SEQ] = {0, "seq", "COUNT",
             "tokens per sequence (default 256; cuda: 2048; of a model: its own)", NULL},
    [HEADS] = {0, "heads", "COUNT",
               "attention heads (default 24; cuda: 64; with --hidden: the hidden size divided by "
               "--head-dim)",
               NULL},
    [KV_HEADS] = {0, "kv-heads", "COUNT",
                  "heads of keys and values, each shared by a group of heads (default: as --heads)",
                  NULL},
    [HEAD_DIM] = {'d', "head-dim", "COUNT",
                  "features per head (default 32; cuda: 128; with --hidden and --heads: one "
                  "divided by the other)",
                  NULL},
    [HIDDEN] =
        {0, "hidden", "SIZE",
         "hidden size: features per token between layers (default: --heads times --head-dim)",
         NULL},
    [FFN] = {0, "ffn", "SIZE", "features inside the MLP (default: 4 times the hidden size)", NULL},
    [EXPANSION] = {0, "mlp-expansion-factor", "N", "--ffn as a multiple of the hidden size", NULL},
    [LAYERS] = {0, "layers", "COUNT", "number of layers", "1"},
    [NORM] = {0, "norm", "KIND", "layernorm or rmsnorm", "layernorm"},
    [ACTIVATION] = {0, "activation", "KIND", "gelu or swiglu", "gelu"},
    [RECOMPUTE] = {0, "recompute", "WHAT",
                   "activations that backward recomputes: none, selective or full", "none"},
    [NO_SEQUENCE_PARALLEL] = {0, "no-sequence-parallel", NULL,
                              "every rank has all rows, and sums are all-reduced", NULL},
    [DTYPE] = {0, "dtype", "TYPE", "float32, bfloat16 or float16 (default float32; cuda: bfloat16)",
               NULL},
    [FP8] = {0, "fp8", "[=RECIPE]",
             "GEMMs in FP8, and how they are scaled: none (no FP8), delayed (the default) or "
             "current",
             NULL},
    [OPTIMIZER] = {0, "optimizer", "KIND", "adamw or sgd", "adamw"},
    [LR] = {0, "lr", "RATE",
            "learning rate (default 0.4 divided by the hidden size, 0.001 at most; sgd: 1)", NULL},
    [WARMUP] = {0, "lr-warmup-iters", "COUNT",
                "iterations in which the learning rate grows to --lr", "0"},
    [WEIGHT_DECAY] = {0, "weight-decay", "RATE", "weight decay of matrices (default 0.01; sgd: 0)",
                      NULL},
    [CLIP] = {0, "clip-grad", "NORM",
              "clip gradients to this norm, of all of them together; 0: do not clip", "1"},
    [GRAD_DTYPE] = {0, "grad-sync-dtype", "TYPE",
                    "type of gradients sent to other replicas: fp32 or bf16", "fp32"},
    [BUCKET] = {0, "bucket-size", "COUNT",
                "elements of gradients that are sent together (default 256K; cuda: 4M)", NULL},
    [LR_DECAY] = {0, "lr-decay-style", "KIND",
                  "how the learning rate falls after the warm-up: constant, linear or cosine",
                  "constant"},
    [LR_DECAY_ITERS] = {0, "lr-decay-iters", "COUNT",
                        "iterations until it is --min-lr, with those of the warm-up (default: "
                        "--iters)",
                        NULL},
    [MIN_LR] = {0, "min-lr", "RATE", "the learning rate at the end of the decay", "0"},
    [BETA1] = {0, "adam-beta1", "PART", "how much of the first moment stays in a step", "0.9"},
    [BETA2] = {0, "adam-beta2", "PART", "how much of the second moment stays in a step", "0.999"},
    [CONFIG] = {0, "config", "FILE.yaml",
                "settings of the model, of parallelism, overlap and training by the names of NeMo "
                "and Megatron; options count more",
                NULL},
    [SAVE] = {0, "save", "DIR",
              "write a checkpoint at the end, into a folder of DIR named for its step", NULL},
    [SAVE_EVERY] = {0, "save-every", "COUNT", "also after every COUNT iterations", NULL},
    [LOAD] = {0, "load", "DIR",
              "go on from the newest whole checkpoint in DIR, until --iters in all; or from one "
              "checkpoint, or with weights from files of safetensors",
              NULL},
    [SEED] = {0, "seed", "N", "seed of weights and data", "1234"},
    [NO_OVERLAP] = {0, "no-comm-overlap", NULL, "first communicate, then compute", NULL},
    [RULES] = {0, "tp-comm-overlap-cfg", "FILE.yaml",
               "the method and knobs of each GEMM, as in NeMo and Megatron; -: standard input",
               NULL},
    [AUTO] = {0, "auto", NULL, "measure, and choose the method of each GEMM", NULL},
    [NO_AG] = {0, "disable-tp-comm-overlap-ag", NULL, "no overlap of AG+GEMM", NULL},
    [NO_RS] = {0, "disable-tp-comm-overlap-rs", NULL, "no overlap of GEMM+RS", NULL},
    [RS_DGRAD] = {0, "tp-comm-overlap-rs-dgrad", NULL,
                  "dgrad of qkv and fc1 is GEMM+RS, with no reduction during wgrad", NULL},
    [NO_BULK_DGRAD] = {0, "disable-tp-comm-bulk-dgrad", NULL, "no gather during dgrad", NULL},
    [NO_BULK_WGRAD] = {0, "disable-tp-comm-bulk-wgrad", NULL, "no reduction during wgrad", NULL},
    [COMPARE] = {0, "compare", NULL, "train twice, with overlap and without", NULL},
    [LINK] = {0, "link", "LINK",
              "emulate a link out of each rank: a rate such as 2GB/s, a rate with a latency as in "
              "2GB/s,5us, or ratio:0.4, the rate at which communication that is not overlapped "
              "takes 0.4 of the time of the GEMMs",
              NULL},
    [DEVICE] = LAP_OPTION_DEVICE,
    [TRANSPORT] = LAP_OPTION_TRANSPORT,
    [GPU_SHARE] = LAP_OPTION_GPU_SHARE,
    [TIMEOUT] = LAP_OPTION_TIMEOUT,
    [CONTINUE] = {0, "continue-on-nan", NULL,
                  "go on when a loss, or the norm of the gradients, is not finite", NULL},
    [NO_TRACE] = {0, "no-trace", NULL,
                  "do not trace the GEMMs: no figures of communication (on GPUs, of three or more "
                  "iterations only the second half is traced)",
                  NULL},
    [NO_PREDICT] =
        {0, "no-predict", NULL,
         "do not measure GEMMs and kernels by themselves to predict forward and backward "
         "(on GPUs and with replicas nothing is predicted)",
         NULL},
    [DEBUG] = {0, "debug", NULL, "prove the calls of a pass safe before it runs; show norms", NULL},
    [QUIET] = {0, "quiet", NULL, "tables only: no progress, no explanations", NULL},
    [LOG_INTERVAL] = {0, "log-interval", "COUNT",
                      "print the progress, loss and time of one in COUNT iterations", "1"},
    [JSON] = {0, "json", NULL,
              "print one JSON object on one line; with --model one more for each step before it",
              NULL},
};

/* The layers compare the rules of a file; whatever is printed is rank 0's. */
static const int own[] = {RULES, CONFIG, GPU_SHARE, TIMEOUT, DEBUG, QUIET, LOG_INTERVAL, JSON};

/* The names that TransformerEngine's examples have for them, and other trainers. */
static const lap_alias_t aliases[] = {
    {0, "layer-type", LAYER}, {0, "tp-size", TP},      {'i', "num-iters", ITERS},
    {'s', "seq-length", SEQ}, {0, "num-heads", HEADS}, {0, "save-interval", SAVE_EVERY},
    {0, "steps", ITERS},      {0, "dp", REPLICAS},     {0, "global-batch", BATCH},
};

const lap_command_t lap_train_command = {
    .name = "lap train",
    .usage = "[OPTIONS]",
    .summary = "Trains layers whose weights are sharded over P ranks, on random data, overlaps\n"
               "their communication with their GEMMs, and says how much of it was hidden.",
    .details =
        "The data x are normally distributed, and the layers learn to give -x: the loss is half\n"
        "the mean square of the difference. A language model learns the tokens of --data, or a\n"
        "Markov chain, and its loss is the mean cross-entropy. The same seed gives the same\n"
        "weights and data for any P and any number of replicas; so do the same files.\n"
        "\n"
        "time           forward, backward, gradients between replicas and the optimizer step\n"
        "passes         forward and backward alone\n"
        "predicted      the same, by a simulation of all ranks' programs with what GEMMs, "
        "kernels,\n"
        "               copies and signals cost by themselves\n"
        "communication  time in which data that a rank sent were on their way; mean of the ranks\n"
        "               (of a model without that of embeddings and of the loss)\n"
        "hidden         ... while the rank computed\n"
        "exposed        within the GEMMs that communicate, the rank did not compute: it waited\n"
        "  wire         ... for data on their way\n"
        "  late         ... for a rank that was late, because it computed or slept\n"
        "  core         ... for a core: a thread that could go on, of this rank or of the rank\n"
        "               that it waited for, was not running\n"
        "tokens/s       of all replicas; TFLOP/s (of the GEMMs of a rank) and GB/s (sent by a\n"
        "               rank) are over the time of an iteration, too\n"
        "\n"
        "Under `lap run`, mpirun, srun or torchrun each process is one of their ranks; all ranks\n"
        "need the same arguments.",
    .exit_status =
        "  0        all iterations were done\n"
        "  1        a rank failed\n"
        "  128 + n  signal n killed a rank, or asked lap train to end\n"
        "  2        the command line is wrong\n"
        "  3        a loss, or the norm of the gradients, is not finite: standard error names\n"
        "           the first layer and tensor that is not finite, in the order of forward and\n"
        "           then backward, and what was measured so far is printed",
    .options = options,
    .noptions = NOPTIONS,
    .own = own,
    .nown = sizeof(own) / sizeof(own[0]),
    .aliases = aliases,
    .naliases = sizeof(aliases) / sizeof(aliases[0]),
};

/* ---- values ---- */

#define COUNT_MOST INT32_MAX

static bool parse_count(const lap_args_t *args, int option, const char *otherwise, size_t *count_p)
{
    char what[64];
    snprintf(what, sizeof(what), "--%s", options[option].name);
    const char *text = args->values[option] ? args->values[option] : otherwise;
    return lap_arg_size(args->command, what, text, 1, COUNT_MOST, count_p);
}

#define RATE_MOST 1e30f
#define MICRO_MOST 65536
#define LAYERS_MOST 100000 /* each has calls that are planned before anything else is looked at */

static bool parse_rate(const lap_args_t *args, int option, float otherwise, float *rate_p)
{
    const char *text = args->values[option];
    char *end = NULL;
    const float rate = text ? strtof(text, &end) : otherwise;
    if (text && (end == text || *end != '\0' || !(rate >= 0) || rate > RATE_MOST))
        return lap_args_wrong(args->command, "--%s is '%s'; expected a number, 0 to %g",
                              options[option].name, text, (double)RATE_MOST);
    *rate_p = rate;
    return true;
}

static bool parse_ranks(lap_train_t *train, const lap_args_t *args)
{
    lap_environment_t environment;
    if (!lap_arg_int(args->command, "--num-replicas", args->values[REPLICAS], 1, LAP_LAUNCH_MAX,
                     &train->replicas))
        return false;
    train->tp = 4;
    if (args->values[TP] &&
        !lap_arg_int(args->command, "--tp", args->values[TP], 1, LAP_LAUNCH_MAX, &train->tp))
        return false;
    if (!args->values[TP] && lap_environment_launched() &&
        lap_environment_read(&environment) == LAP_OK)
        train->tp = environment.size > train->replicas ? environment.size / train->replicas : 1;
    if (train->tp * train->replicas <= LAP_LAUNCH_MAX)
        return true;
    return lap_args_wrong(args->command,
                          "--tp %d times --num-replicas %d is %d ranks; expected at most %d",
                          train->tp, train->replicas, train->tp * train->replicas, LAP_LAUNCH_MAX);
}

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

static bool parse_tied(lap_train_t *train, const lap_args_t *args)
{
    static const char *const words[] = {"no", "yes", NULL};
    const char *text = args->values[TIED];
    size_t tied = 1;
    if (!text)
        return true;
    if (*text && !lap_arg_choice(args->command, "--tied", text, words, &tied))
        return false;
    train->desc.tied = (int)tied;
    return true;
}

static bool parse_kinds(lap_train_t *train, const lap_args_t *args)
{
    const char *recipe = args->values[FP8] ? args->values[FP8] : "none";
    if (!parse_kind(train, args) || !parse_own_field(train, args, NORM) ||
        !parse_own_field(train, args, ACTIVATION) || !parse_own_field(train, args, POSITIONS) ||
        !parse_tied(train, args) || !parse_field(train, args, RECOMPUTE, args->values[RECOMPUTE]) ||
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

static bool refuse_batch(const lap_train_t *train, const lap_args_t *args)
{
    if (train->micro == 1)
        return lap_args_wrong(
            args->command, "--batch is %zu; expected a multiple of the %d replicas, which share it",
            train->batch, train->replicas);
    return lap_args_wrong(
        args->command,
        "--batch is %zu; expected a multiple of %d: %d replica%s times %d micro-batches",
        train->batch, train->replicas * train->micro, train->replicas,
        train->replicas > 1 ? "s" : "", train->micro);
}

/* The sequences of an iteration, which replicas and their micro-batches share. */
static bool parse_batch(lap_train_t *train, const lap_args_t *args)
{
    char batch[24];
    if (!lap_arg_int(args->command, "--micro-batches", args->values[MICRO], 1, MICRO_MOST,
                     &train->micro))
        return false;
    const size_t replicas = (size_t)train->replicas;
    size_t size = 0, sharers = replicas * (size_t)train->micro;
    if (args->given[MICRO_SIZE] && !parse_count(args, MICRO_SIZE, "", &size))
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
    } else if (!parse_count(args, BATCH, batch, &train->batch)) {
        return false;
    }
    if (size > 0 && (train->batch % sharers != 0 || train->batch / sharers > MICRO_MOST))
        return lap_args_wrong(
            args->command,
            "--batch is %zu; expected a multiple of %zu, the --micro-batch of %zu "
            "for each of %d replicas, up to %d times that",
            train->batch, sharers, size, train->replicas, MICRO_MOST);
    if (train->batch % sharers != 0)
        return refuse_batch(train, args);
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
    if (!parse_count(args, HEADS, cuda ? "64" : "24", &desc->heads) ||
        !parse_count(args, HEAD_DIM, cuda ? "128" : "32", &desc->head_dim) ||
        (args->given[HIDDEN] && !parse_count(args, HIDDEN, "", &desc->hidden)))
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
    return !args->given[option] || parse_count(args, option, "", count_p);
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
    return true;
}

static bool parse_ffn(lap_train_t *train, const lap_args_t *args)
{
    lap_nn_desc_t *desc = &train->desc;
    size_t factor;
    if (args->given[FFN] && args->given[EXPANSION])
        return lap_args_wrong(
            args->command, "--ffn and --mlp-expansion-factor are both given; expected one of them");
    if (args->given[FFN] && !parse_count(args, FFN, "", &desc->ffn))
        return false;
    if (!args->given[EXPANSION])
        return true;
    if (!lap_arg_size(args->command, "--mlp-expansion-factor", args->values[EXPANSION], 1,
                      COUNT_MOST / desc->hidden, &factor))
        return false;
    desc->ffn = factor * desc->hidden;
    return true;
}

static bool parse_shape(lap_train_t *train, const lap_args_t *args)
{
    const bool cuda = strcmp(train->device, "cuda") == 0;
    lap_nn_desc_t *desc = &train->desc;
    if (!(train->model ? parse_model_sizes(train, args)
                       : parse_hidden(train, args) &&
                             parse_count(args, SEQ, cuda ? "2048" : "256", &desc->seq)))
        return false;
    return parse_batch(train, args) && parse_ffn(train, args) &&
           ((train->model && !args->given[LAYERS]) ||
            lap_arg_size(args->command, "--layers", args->values[LAYERS], 1, LAYERS_MOST,
                         &desc->layers)) &&
           (!args->values[KV_HEADS] || parse_count(args, KV_HEADS, "", &desc->kv_heads)) &&
           parse_dtype(args,
                       args->values[DTYPE] ? args->values[DTYPE]
                       : cuda              ? "bfloat16"
                                           : "float32",
                       &desc->dtype);
}

/*
 * The first steps of AdamW move every weight by the rate, all of them in step: what a row of weights
 * gives then changes by the rate times its length. Wider layers would be thrown off at once.
 */
static float adamw_rate(const lap_nn_desc_t *desc)
{
    return fminf(0.001f, 0.4f / (float)desc->hidden);
}

/* Less than 1. */
static bool parse_beta(const lap_args_t *args, int option, float *beta_p)
{
    if (!parse_rate(args, option, 0, beta_p))
        return false;
    return *beta_p < 1 || lap_args_wrong(args->command, "--%s is '%s'; expected less than 1",
                                         options[option].name, args->values[option]);
}

static bool parse_decay(lap_train_t *train, const lap_args_t *args)
{
    lap_optimizer_desc_t *optimizer = &train->optimizer;
    size_t kind, steps = (size_t)train->iters;
    if (!lap_arg_choice(args->command, "--lr-decay-style", args->values[LR_DECAY],
                        lap_lr_decay_names, &kind) ||
        (args->values[LR_DECAY_ITERS] && !parse_count(args, LR_DECAY_ITERS, "", &steps)) ||
        !parse_rate(args, MIN_LR, 0, &optimizer->min_lr) ||
        !parse_beta(args, BETA1, &optimizer->beta1) || !parse_beta(args, BETA2, &optimizer->beta2))
        return false;
    optimizer->lr_decay = (lap_lr_decay_t)kind;
    /* By default the decay ends with the run, which may be over before its warm-up is. */
    if (!args->values[LR_DECAY_ITERS] && steps <= optimizer->warmup)
        steps = optimizer->warmup + 1;
    optimizer->lr_decay_steps = kind == LAP_LR_CONSTANT ? 0 : steps;
    return true;
}

static bool parse_checkpoints(lap_train_t *train, const lap_args_t *args)
{
    train->save = args->values[SAVE];
    train->load = args->values[LOAD];
    return !args->values[SAVE_EVERY] ||
           lap_arg_int(args->command, "--save-every", args->values[SAVE_EVERY], 1, 1000000,
                       &train->save_every);
}

static bool parse_training(lap_train_t *train, const lap_args_t *args)
{
    lap_optimizer_desc_t *optimizer = &train->optimizer;
    size_t kind;
    if (!lap_arg_choice(args->command, "--optimizer", args->values[OPTIMIZER], lap_optimizer_names,
                        &kind) ||
        !lap_arg_int(args->command, "--iters", args->values[ITERS], 1, 1000000, &train->iters) ||
        !parse_rate(args, LR, kind == LAP_SGD ? 1 : adamw_rate(&train->desc), &optimizer->lr) ||
        !parse_rate(args, WEIGHT_DECAY, kind == LAP_SGD ? 0 : 0.01f, &optimizer->weight_decay) ||
        !parse_rate(args, CLIP, 1, &optimizer->clip_norm) ||
        !lap_arg_size(args->command, "--lr-warmup-iters", args->values[WARMUP], 0, COUNT_MOST,
                      &optimizer->warmup) ||
        !lap_arg_int(args->command, "--log-interval", args->values[LOG_INTERVAL], 1, 1000000,
                     &train->log_interval) ||
        !lap_arg_number(args->command, "--seed", args->values[SEED], &train->desc.seed) ||
        !parse_decay(train, args) || !parse_checkpoints(train, args) ||
        !parse_count(args, BUCKET, strcmp(train->device, "cuda") == 0 ? "4M" : "256K",
                     &train->bucket))
        return false;
    optimizer->kind = (lap_optimizer_kind_t)kind;
    if (lap_dtype_parse(args->values[GRAD_DTYPE], &train->grad_dtype) == LAP_OK &&
        (train->grad_dtype == LAP_FLOAT32 || train->grad_dtype == LAP_BFLOAT16))
        return true;
    return lap_args_wrong(args->command, "--grad-sync-dtype is '%s'; expected fp32 or bf16",
                          args->values[GRAD_DTYPE]);
}

static bool parse_backends(lap_train_t *train, const lap_args_t *args)
{
    const lap_device_ops_t *device;
    const lap_transport_ops_t *transport;
    if (!lap_arg_backends(args->command, args->values[DEVICE], args->values[TRANSPORT], &device,
                          &transport))
        return false;
    train->device = device->name;
    train->transport = transport->name;
    if (!lap_ranks_gpus(args->command, args->values[GPU_SHARE], train->device, &train->gpus))
        return false;
    if (args->values[TIMEOUT] &&
        !lap_arg_timeout(args->command, args->values[TIMEOUT], &train->timeout_s))
        return false;
    return lap_ranks_suit(args->command, args->values[TRANSPORT], train->transport,
                          train->tp * train->replicas);
}

/* ---- overlap ---- */

/* Options that say nothing with the others, and why: the first that is given is refused. */
typedef struct useless {
    bool is;
    const char *why;
    const int *options; /* NOPTIONS at the end */
} useless_t;

#define LIST(...) ((const int[]){__VA_ARGS__, NOPTIONS})

/* `line`: what the command line itself has; a file may have more than is of use. */
static bool check_sense(const lap_train_t *train, const lap_args_t *args, const bool *line)
{
    const lap_nn_kind_t kind = train->desc.kind;
    const bool model = kind == LAP_NN_MODEL, transformer = model || kind == LAP_NN_TRANSFORMER;
    const bool attends = kind == LAP_NN_ATTENTION || transformer;
    const bool mlp = kind == LAP_NN_LAYERNORM_MLP || transformer;
    const useless_t rows[] = {
        {model, "has no effect on a model; expected no --model with it", LIST(LAYER)},
        {!model, "is for language models; expected --model with it", LIST(VOCAB, TIED, DATA)},
        {!train->data, "is for files of tokens; expected --data with it", LIST(DATA_ENDS)},
        {!attends, "is for attention; expected --model, --layer attention or transformer",
         LIST(POSITIONS)},
        {!attends, "is for attention; expected --layer attention or transformer", LIST(KV_HEADS)},
        {!attends && args->given[HIDDEN],
         "has no effect with --hidden on a layer without attention", LIST(HEADS, HEAD_DIM)},
        {!mlp, "is for the MLP; expected --layer layernorm_mlp or transformer",
         LIST(ACTIVATION, FFN, EXPANSION)},
        {kind == LAP_NN_LINEAR, "has no effect on --layer linear; expected another layer",
         LIST(NORM, RECOMPUTE)},
        {train->replicas == 1,
         "is for gradients sent to other replicas; expected --num-replicas 2 or more",
         LIST(GRAD_DTYPE, BUCKET)},
        {train->tp * train->replicas == 1,
         "is for ranks that communicate; expected 2 ranks or more", LIST(COMPARE, LINK)},
        {train->optimizer.kind == LAP_SGD, "is for AdamW; expected --optimizer adamw",
         LIST(BETA1, BETA2)},
        {train->optimizer.lr_decay == LAP_LR_CONSTANT,
         "needs a learning rate that falls; expected --lr-decay-style linear or cosine",
         LIST(LR_DECAY_ITERS, MIN_LR)},
        {!train->save, "needs a place; expected --save DIR with it", LIST(SAVE_EVERY)},
        {args->given[COMPARE], "is for one training; expected no --compare with it",
         LIST(SAVE, LOAD)},
        {args->given[NO_SEQUENCE_PARALLEL],
         "needs sequence parallelism; expected no --no-sequence-parallel with it",
         LIST(NO_AG, RS_DGRAD, NO_BULK_WGRAD)},
        {args->given[NO_OVERLAP], "needs overlap; expected no --no-comm-overlap with it",
         LIST(COMPARE, AUTO, RULES, NO_AG, NO_RS, RS_DGRAD, NO_BULK_DGRAD, NO_BULK_WGRAD)},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (const int *option = rows[i].options; rows[i].is && *option != NOPTIONS; option++)
            if (line[*option])
                return lap_args_wrong(args->command, "--%s %s", options[*option].name, rows[i].why);
    return true;
}

/* The rules of the file, or the defaults, with the switches turned; and the same all off. */
static bool parse_overlap(lap_train_t *train, const lap_args_t *args)
{
    lap_tp_switches_t switches = LAP_TP_SWITCHES_INIT;
    train->rules_path = args->values[RULES];
    train->overlap = !args->given[NO_OVERLAP] && train->tp * train->replicas > 1;
    train->compare = args->given[COMPARE];
    switches.overlap = train->tp > 1;
    lap_status_t status = train->rules_path
                              ? lap_rules_load(train->rules_path, train->tp, &train->rules)
                              : lap_tp_overlap_init(train->tp, &train->rules);
    switches.overlap_ag = !args->given[NO_AG];
    switches.overlap_rs = !args->given[NO_RS];
    switches.overlap_rs_dgrad = args->given[RS_DGRAD];
    switches.bulk_dgrad = !args->given[NO_BULK_DGRAD];
    switches.bulk_wgrad = !args->given[NO_BULK_WGRAD];
    switches.automatic = args->given[AUTO];
    if (status == LAP_OK)
        status = lap_tp_overlap_switch(&train->rules, &switches);
    train->serial = train->rules;
    switches.overlap = 0;
    if (status == LAP_OK)
        status = lap_tp_overlap_switch(&train->serial, &switches);
    if (status != LAP_OK)
        lap_args_fail(args->command, "%s%s", train->rules_path ? "--tp-comm-overlap-cfg: " : "",
                      lap_last_error());
    if (train->rules_path && lap_rules_is_stdin(train->rules_path))
        train->rules_path = LAP_RULES_STDIN;
    return status == LAP_OK;
}

static bool parse_link(lap_train_t *train, const lap_args_t *args)
{
    const char *text = args->values[LINK];
    if (!text)
        return true;
    if (!lap_arg_link(args->command, "--link", text, &train->link))
        return false;
    if (train->link.ratio > 0 && train->tp == 1)
        return lap_args_wrong(
            args->command,
            "--link %s needs GEMMs that communicate; expected --tp 2 or more, or a rate", text);
    return true;
}

static void settle_rate(lap_args_t *args, int option, float rate)
{
    char text[LAP_SINGLE_TEXT];
    lap_arg_settle(args, option, "%s", lap_single_text(rate, text));
}

/* What became of options that may be left out. */
static void settle(const lap_train_t *train, lap_args_t *args)
{
    const lap_nn_desc_t *desc = &train->desc;
    lap_arg_settle(args, TP, "%d", train->tp);
    lap_arg_settle(args, BATCH, "%zu", train->batch);
    lap_arg_settle(args, BATCH_SIZE, "%zu", train->batch / (size_t)train->replicas);
    lap_arg_settle(args, HIDDEN, "%zu", desc->hidden);
    lap_arg_settle(args, FFN, "%zu", desc->ffn ? desc->ffn : 4 * desc->hidden);
    lap_arg_settle(args, EXPANSION, "as --ffn");
    lap_arg_settle(args, MICRO, "%d", train->micro);
    lap_arg_settle(args, MICRO_SIZE, "as --micro-batches");
    lap_arg_settle(args, SEQ, "%zu", desc->seq);
    lap_arg_settle(args, HEADS, "%zu", desc->heads);
    lap_arg_settle(args, KV_HEADS, "%zu", desc->kv_heads ? desc->kv_heads : desc->heads);
    lap_arg_settle(args, HEAD_DIM, "%zu", desc->head_dim);
    lap_arg_settle(args, VOCAB, "%zu", desc->vocab);
    lap_arg_settle(args, POSITIONS, "%s", lap_positions_names[desc->positions]);
    lap_arg_settle(args, TIED, "%s", desc->tied ? "yes" : "no");
    lap_arg_settle(args, DTYPE, "%s", lap_dtype_name(desc->dtype));
    lap_arg_settle(args, FP8, "%s", lap_fp8_recipe_names[desc->fp8]);
    settle_rate(args, LR, train->optimizer.lr);
    settle_rate(args, WEIGHT_DECAY, train->optimizer.weight_decay);
    settle_rate(args, MIN_LR, train->optimizer.min_lr);
    lap_arg_settle(args, LR_DECAY_ITERS, "%zu", train->optimizer.lr_decay_steps);
    settle_rate(args, BETA1, train->optimizer.beta1);
    settle_rate(args, BETA2, train->optimizer.beta2);
    settle_rate(args, CLIP, train->optimizer.clip_norm);
    lap_arg_settle(args, GRAD_DTYPE, "%s", lap_dtype_name(train->grad_dtype));
    lap_arg_settle(args, BUCKET, "%zu", train->bucket);
    lap_arg_settle(args, DEVICE, "%s", train->device);
    lap_arg_settle(args, TRANSPORT, "%s", train->transport);
}

_Static_assert(NOPTIONS + LAP_TRAIN_OWN_MAX <= LAP_OPTIONS_MAX,
               "room for options of other commands");

const lap_command_t *lap_train_extend(lap_train_form_t *form, const lap_option_t *own, size_t nown)
{
    lap_command_t *command = &form->command;
    memcpy(form->options, options, sizeof(options));
    memcpy(form->options + NOPTIONS, own, nown * sizeof(*own));
    command->options = form->options;
    command->noptions = NOPTIONS + nown;
    command->aliases = aliases;
    command->naliases = sizeof(aliases) / sizeof(aliases[0]);
    return command;
}

const char *lap_train_own(const lap_train_t *train, size_t own)
{
    return train->args.values[NOPTIONS + own];
}

/* Puts what the file of --config says in front of the arguments. */
static int read_config(const lap_command_t *command, int *argc_p, char ***argv_p,
                       const char **unused_p, bool *line)
{
    lap_args_t args = {.positionals = NULL};
    char **copy = lap_alloc((size_t)*argc_p + 1, sizeof(*copy)); /* parsing re-orders them */
    if (!copy)
        return lap_args_refused(
            command, lap_error(LAP_ERR_NO_MEMORY, "no memory for %d arguments", *argc_p), "");
    memcpy(copy, *argv_p, (size_t)*argc_p * sizeof(*copy));
    int status = lap_args_parse(command, *argc_p, copy, &args);
    lap_free(copy);
    memcpy(line, args.given, sizeof(args.given));
    if (status == LAP_CLI_GO && args.values[CONFIG])
        status = lap_config_read(command, args.values[CONFIG], *argc_p, *argv_p, argc_p, argv_p,
                                 unused_p);
    return status;
}

int lap_train_parse(const lap_command_t *command, int argc, char **argv, lap_train_t *train_p)
{
    lap_args_t args;
    const char *unused = "";
    bool line[LAP_OPTIONS_MAX] = {false};
    int status = read_config(command, &argc, &argv, &unused, line);
    if (status == LAP_CLI_GO)
        status = lap_args_parse(command, argc, argv, &args);
    if (status != LAP_CLI_GO)
        return status;
    lap_train_t train = {.desc = LAP_NN_DESC_INIT, .optimizer = LAP_OPTIMIZER_DESC_INIT};
    train.data = args.values[DATA];
    train.data_ends = args.given[DATA_ENDS];
    train.config = args.values[CONFIG];
    train.config_unused = unused;
    train.json = args.given[JSON];
    train.debug = args.given[DEBUG];
    train.quiet = args.given[QUIET];
    train.goes_on = args.given[CONTINUE];
    train.trace = !args.given[NO_TRACE];
    train.desc.debug = train.debug;
    if (!parse_ranks(&train, &args) || !parse_backends(&train, &args) ||
        !parse_kinds(&train, &args) || !parse_shape(&train, &args) ||
        !parse_training(&train, &args) || !check_sense(&train, &args, line) ||
        !parse_overlap(&train, &args) || !parse_link(&train, &args))
        return LAP_CLI_USAGE;
    train.apart = train.trace && strcmp(train.device, "cuda") == 0 && train.iters >= 3;
    train.predicts =
        !args.given[NO_PREDICT] && train.replicas == 1 && strcmp(train.device, "cuda") != 0;
    settle(&train, &args);
    train.args = args;
    *train_p = train;
    return LAP_CLI_GO;
}

lap_status_t lap_train_target(const lap_train_t *train, const char *name,
                              const lap_target_t **target_p)
{
    const bool nccl = strcmp(train->transport, "nccl") == 0;
    const bool cuda = strcmp(train->device, "cuda") == 0;
    return lap_target_find(name ? name : nccl ? "nccl" : cuda ? "cuda" : "cpu", target_p);
}

lap_status_t lap_train_device_bytes(const lap_train_t *train, double *bytes_p)
{
    const double moments = train->optimizer.kind == LAP_SGD ? 4 : 8; /* bytes of a weight */
    lap_nn_plan_t plan;
    double bytes;
    LAP_TRY(lap_nn_plan_init(&train->desc, train->tp, &plan));
    LAP_TRY(lap_nn_list_bytes(&plan, 0, NULL, moments, &bytes));
    *bytes_p = (train->compare ? 2 : 1) * bytes;
    return LAP_OK;
}

/* What this machine has, or as much of it as the ranks of several have on each. */
static int check_memory(const lap_train_t *train, int nranks)
{
    const double there = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    double needed;
    const lap_status_t status = lap_train_device_bytes(train, &needed);
    if (status != LAP_OK)
        return lap_args_refused(train->args.command, status, "");
    needed *= lap_ranks_here(nranks);
    if (needed <= there || strcmp(train->device, "cuda") == 0)
        return LAP_CLI_GO;
    return lap_args_fail(
        train->args.command,
        "this needs about %.3g GiB of memory; expected at most %.3g GiB, which this "
        "machine has",
        needed / (1 << 30), there / (1 << 30));
}

int lap_train_check(const lap_train_t *train, int nranks)
{
    lap_nn_desc_t desc = train->desc;
    if (train->tp * train->replicas != nranks)
        return lap_args_fail(
            train->args.command,
            "--tp %d times --num-replicas %d is %d, but %d %s started: let them agree", train->tp,
            train->replicas, train->tp * train->replicas, nranks,
            nranks == 1 ? "rank was" : "ranks were");
    desc.overlap = train->overlap ? &train->rules : &train->serial;
    lap_status_t status = lap_nn_validate(&desc, train->tp);
    if (status == LAP_OK)
        status = lap_optimizer_validate(&train->optimizer);
    if (status == LAP_OK)
        status = lap_train_data_check(train);
    if (status != LAP_OK)
        return lap_args_refused(train->args.command, status, "");
    return check_memory(train, nranks);
}
