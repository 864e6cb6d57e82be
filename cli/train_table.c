/* SPDX-License-Identifier: Apache-2.0 */
/* The options of `lap train`, their texts and their other names. */
#include <string.h>

#include "shared_options.h"
#include "train_options.h"

const lap_option_t lap_train_options[NOPTIONS] = {
    [LAYER] = {0, "layer", "KIND",
               "linear, layernorm_linear, layernorm_mlp, attention or transformer", "transformer"},
    [MODEL] = {0, "model", "NAME",
               "a language model instead of layers: gpt2-124m, gpt2-350m, gpt2-774m, gpt2-1.5b, "
               "llama-tiny, llama-1b, llama-8b, llama-70b, llama-405b, gpt3-175b, or gpt or llama, "
               "which are small. The options that follow change its numbers",
               NULL},
    [VOCAB] = {0, "vocab", "COUNT", "tokens that a model knows (default: the model's own)", NULL},
    [POSITIONS] = {0, "positions", "KIND",
                   "how a model knows where tokens are: learned, rope or none (default: the "
                   "model's own); rope is for all layers with attention",
                   NULL},
    [MAX_POSITIONS] = {0, "max-positions", "COUNT",
                       "learned: positions that a model has, of which --seq tokens use the first "
                       "(default: the model's own, or as many as --seq)",
                       NULL},
    [ROPE_THETA] = {0, "rope-theta", "NUMBER",
                    "rope: the base of its angles (default: the model's own, else 10000)", NULL},
    [ROPE_FACTOR] = {0, "rope-factor", "NUMBER",
                     "rope, as in Llama 3.1 and 3.2: slow angles turn so much slower", NULL},
    [ROPE_LOW] = {0, "rope-low-freq", "NUMBER",
                  "... those with fewer turns than this in --rope-original tokens", NULL},
    [ROPE_HIGH] = {0, "rope-high-freq", "NUMBER",
                   "... and none with more turns; between the two they are mixed", NULL},
    [ROPE_ORIGINAL] = {0, "rope-original", "COUNT", "tokens that the model first learned with",
                       NULL},
    [TIED] = {0, "tied", "[=YES]",
              "embeddings are the weights of a model's logits, too: yes or no (default: the "
              "model's own)",
              NULL},
    [TP] =
        {0, "tp", "P",
         "tensor-parallel ranks, over which weights are sharded (default 1 for a model and 4 for "
         "layers; where a launcher started the ranks, as many as there are)",
         NULL},
    [CP] = {0, "cp", "C",
            "context-parallel ranks, which share each sequence of a model: each has two chunks of "
            "it, one from either end",
            "1"},
    [CP_COMM] = {0, "cp-comm-type", "WAY",
                 "how they attend to the tokens of each other: p2p, keys and values around a ring "
                 "during attention; all_gather, before it; a2a, heads are exchanged against "
                 "tokens; or a2a+p2p, this among neighbours and a ring of these",
                 "p2p"},
    [CP_A2A] =
        {0, "cp-a2a", "N",
         "with a2a+p2p, how many neighbours exchange heads (default: the most that can and leave a "
         "ring, or all where none do, as with 2 ranks)",
         NULL},
    [PP] = {0, "pp", "S",
            "pipeline-parallel ranks, over which the layers of a model are cut into stages; each "
            "has P tensor-parallel ranks",
            "1"},
    [VIRTUAL_PP] = {0, "virtual-pp", "V",
                    "stages of each rank of a pipeline (default 2 with --schedule interleaved and "
                    "zb-v, else 1)",
                    NULL},
    [SCHEDULE] = {0, "schedule", "NAME",
                  "the order in which a pipeline works on micro-batches: 1f1b, interleaved, zb-h1, "
                  "zb-v, 1f1b-eager, or a table FILE.csv as of PyTorch; see lap show pipeline "
                  "(default 1f1b; "
                  "with --virtual-pp 2 or more: interleaved)",
                  NULL},
    [STAGE_LAYERS] = {0, "layers-per-stage", "N,N,...",
                      "the layers of each stage of a pipeline (default: as evenly as can be)",
                      NULL},
    [NO_OVERLAP_P2P] = {0, "no-overlap-p2p", NULL,
                        "ranks of a pipeline compute, then send, then compute", NULL},
    [REPLICAS] = {0, "num-replicas", "N", "data-parallel replicas, of S times C times P ranks each",
                  "1"},
    [ITERS] = {0, "iters", "COUNT", "iterations", "5"},
    [BATCH] = {0, "batch", "COUNT",
               "sequences per iteration, of all replicas together (default 2, or a sequence for "
               "each micro-batch of each replica)",
               NULL},
    [BATCH_SIZE] = {'b', "batch-size", "COUNT",
                    "sequences per iteration and replica, instead of --batch", NULL},
    [MICRO] =
        {0, "micro-batches", "N",
         "micro-batches per iteration and replica: gradients are accumulated, and sent to "
         "other replicas during the last backward (default 1; --schedule interleaved: as many "
         "as a pipeline has ranks, the fewest that it can have)",
         NULL},
    [MICRO_SIZE] = {0, "micro-batch", "COUNT",
                    "sequences of a micro-batch, instead of --micro-batches", NULL},
    [DATA] = {0, "data", "FILES",
              "train a model on files of tokens, with commas between them, or patterns; see lap "
              "data (default: tokens made from the seed)",
              NULL},
    [DATA_ENDS] = {0, "no-data-wrap", NULL,
                   "refuse to train on more than --data has, instead of beginning again", NULL},
    [SHUFFLE] =
        {0, "shuffle", "[=YES]",
         "take the samples of --data in a random order, another one each time through, the same "
         "on any ranks: yes or no (default yes; with --load as the checkpoint has it)",
         NULL},
    [DATA_SEED] = {0, "data-seed", "N", "seed of that order (default: as --seed)", NULL},
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
    [EPSILON] = {0, "norm-epsilon", "NUMBER", "what norms add to the variance (default 1e-05)",
                 NULL},
    [INIT_STD] = {0, "init-std", "NUMBER",
                  "standard deviation of the first weights of matrices (default 0.023; of a model "
                  "0.02)",
                  NULL},
    [ACTIVATION] = {0, "activation", "KIND", "gelu or swiglu", "gelu"},
    [RECOMPUTE] = {0, "recompute", "WHAT",
                   "activations that backward recomputes: none, selective or full", "none"},
    [ATTENTION_DROPOUT] = {0, "attention-dropout", "PART",
                           "of a model: of the probabilities of attention, the part that becomes 0 "
                           "in training",
                           "0"},
    [HIDDEN_DROPOUT] = {0, "hidden-dropout", "PART",
                        "the same of embeddings, and of what attention and MLP add to them. Masks "
                        "are those of the seed, on any ranks",
                        "0"},
    [NO_SEQUENCE_PARALLEL] = {0, "no-sequence-parallel", NULL,
                              "every rank has all rows, and sums are all-reduced", NULL},
    [DTYPE] = {0, "dtype", "TYPE", "float32, bfloat16 or float16 (default float32; cuda: bfloat16)",
               NULL},
    [FP8] = {0, "fp8", "[=RECIPE]",
             "GEMMs in FP8, and how they are scaled: none (no FP8), delayed (the default) or "
             "current",
             NULL},
    [AMAX_HISTORY] = {0, "fp8-amax-history-len", "COUNT",
                      "--fp8=delayed: steps whose largest numbers scales follow", "16"},
    [OPTIMIZER] = {0, "optimizer", "KIND", "adamw or sgd", "adamw"},
    [LR] = {0, "lr", "RATE",
            "learning rate (default 0.4 divided by the hidden size, 0.001 at most; sgd: 1)", NULL},
    [WARMUP] = {0, "lr-warmup-iters", "COUNT",
                "iterations in which the learning rate grows to --lr (default 0; of a model with "
                "adamw, no --lr and no decay: 10)",
                NULL},
    [WEIGHT_DECAY] = {0, "weight-decay", "RATE", "weight decay of matrices (default 0.01; sgd: 0)",
                      NULL},
    [CLIP] = {0, "clip-grad", "NORM",
              "clip gradients to this norm, of all of them together; 0: do not clip", "1"},
    [LOSS_SCALE] =
        {0, "loss-scale", "NUMBER",
         "what the loss is multiplied with, so that no gradient is too small for its type; "
         "dynamic: as large as gradients allow (default 1; float16: dynamic)",
         NULL},
    [INITIAL_SCALE] = {0, "initial-loss-scale", "NUMBER", "--loss-scale dynamic: the first one",
                       "65536"},
    [SCALE_WINDOW] = {0, "loss-scale-window", "COUNT", "steps in a row after which it is doubled",
                      "1000"},
    [MIN_SCALE] = {0, "min-loss-scale", "NUMBER", "it never falls below that", "1"},
    [HYSTERESIS] =
        {0, "hysteresis", "COUNT",
         "steps with gradients that are not finite, before it is halved: they are not made", "2"},
    [GRAD_DTYPE] = {0, "grad-sync-dtype", "TYPE",
                    "type of gradients sent to other replicas: fp32 or bf16", "fp32"},
    [BUCKET] = {0, "bucket-size", "COUNT",
                "elements of gradients that are sent together (default 256K; cuda: 4M; --bucket-by "
                "layer: those of a layer)",
                NULL},
    [BUCKET_BY] = {0, "bucket-by", "WHAT",
                   "where buckets of gradients and of weights end: size (when they have "
                   "--bucket-size elements), or layer (also where a layer ends)",
                   "size"},
    [NO_OVERLAP_GRAD] = {0, "no-overlap-grad-sync", NULL,
                         "gradients are sent to other replicas after backward, not during it",
                         NULL},
    [DISTRIBUTED] =
        {0, "distributed-optimizer", NULL,
         "replicas share the optimizer: each has a part of its fp32 masters and moments, makes "
         "these weights and gathers the others",
         NULL},
    [NO_OVERLAP_PARAM] =
        {0, "no-overlap-param-sync", NULL,
         "weights of --distributed-optimizer are gathered after its step, not in the "
         "background of the next forward",
         NULL},
    [OVERLAP_STEP] =
        {0, "overlap-param-gather-with-optimizer-step", NULL,
         "the weights that a forward of --distributed-optimizer needs first are gathered "
         "while its step makes the others",
         NULL},
    [FP8_PARAMS] =
        {0, "fp8-param-gather", NULL,
         "weights of --distributed-optimizer that GEMMs take in FP8 are gathered as FP8: "
         "one byte each, not four",
         NULL},
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
    [ADAM_EPSILON] = {0, "adam-eps", "NUMBER",
                      "added to the root of the second moment, by which steps are divided", "1e-8"},
    [CONFIG] = {0, "config", "FILE.yaml",
                "settings of the model, of parallelism, overlap and training by the names of NeMo "
                "and Megatron; options count more; -: standard input",
                NULL},
    [KEYS] = LAP_OPTION_CONFIG_KEYS,
    [SAVE] = {0, "save", "DIR",
              "write a checkpoint at the end, into a folder of DIR named for its step", NULL},
    [SAVE_EVERY] = {0, "save-every", "COUNT", "also after every COUNT iterations", NULL},
    [KEEP] = {0, "keep", "COUNT",
              "remove older checkpoints of --save than the COUNT newest whole ones", NULL},
    [LOAD] =
        {0, "load", "DIR",
         "go on from the newest whole checkpoint in DIR, until --iters in all; or from one "
         "checkpoint, or with weights from files of safetensors. The DIR of --save may be empty "
         "at first: so one command line begins a training, and goes on with it",
         NULL},
    [SEED] = {0, "seed", "N", "seed of weights and data", "1234"},
    [NO_OVERLAP] = {0, "no-comm-overlap", NULL, "first communicate, then compute", NULL},
    [RULES] = {0, "tp-comm-overlap-cfg", "FILE.yaml",
               "the method and knobs of each GEMM, as in NeMo and Megatron; -: standard input",
               NULL},
    [AUTO] =
        {0, "auto", "[=YES]",
         "the rules that lap tune has found for this layer on this machine; without them measure, "
         "and choose the method of each GEMM: yes, or no for the methods of --tp-comm-overlap-cfg, "
         "or fixed ones (default: lap train does, but for rules of a file)",
         NULL},
    [NO_CACHE] = {0, "no-cache", NULL, "neither use nor store what lap tune has found", NULL},
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
              "takes 0.4 of the time of the GEMMs, or with --tp 1 or --pp of a step without a link",
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
    [PEAK] = {0, "peak-tflops", "NUMBER",
              "what a rank can do at most, for MFU (default: by the name of the GPU, where it is "
              "known)",
              NULL},
    [TRACE] = LAP_OPTION_TRACE("the last iteration of all ranks"),
    [TRACE_FORMAT] = LAP_OPTION_TRACE_FORMAT,
    [TRACE_SIMULATED] = {0, "trace-simulated", NULL,
                         "simulate forward and backward, too: both are in the file of --trace, and "
                         "in the page of --report",
                         NULL},
    [REPORT] = {0, "report", "FILE.html",
                "write a page about the last iteration, as lap report does", NULL},
    [ASSERT_HIDDEN] = {0, "assert-hidden", "PERCENT",
                       "end with status 4 unless at least so much of the time of communication was "
                       "hidden, such as 80",
                       NULL},
    [NO_PREDICT] =
        {0, "no-predict", NULL,
         "do not measure GEMMs, kernels and copies by themselves to predict forward and backward",
         NULL},
    [DEBUG] = {0, "debug", NULL, "prove the calls of a pass safe before it runs; show norms", NULL},
    [QUIET] = {0, "quiet", NULL, "tables only: no progress, no explanations", NULL},
    [LOG_INTERVAL] =
        {0, "log-interval", "COUNT",
         "print the progress, loss and time of one in COUNT iterations; of a model, the "
         "table at the end has the same ones and the last",
         "1"},
    [JSON] = {0, "json", NULL,
              "print one JSON object on one line; with --model, and no --compare, one more for "
              "each step before it",
              NULL},
};

/* The layers compare the rules of a file; whatever is printed is rank 0's. */
static const int own[] = {RULES, CONFIG, KEYS,  GPU_SHARE,    TIMEOUT,
                          PEAK,  DEBUG,  QUIET, LOG_INTERVAL, JSON};

/* The names that TransformerEngine's examples have for them, and other trainers. */
static const lap_alias_t aliases[] = {
    {0, "layer-type", LAYER},
    {0, "tp-size", TP},
    {'i', "num-iters", ITERS},
    {'s', "seq-length", SEQ},
    {0, "num-heads", HEADS},
    {0, "save-interval", SAVE_EVERY},
    {0, "steps", ITERS},
    {0, "dp", REPLICAS},
    {0, "global-batch", BATCH},
    {0, "no-overlap-p2p-communication", NO_OVERLAP_P2P},
    {0, "use-distributed-optimizer", DISTRIBUTED},
};

const lap_command_t lap_train_command = {
    .name = "lap train",
    .usage = "[OPTIONS]",
    .summary = "Trains layers on random data, or a language model on text, over ranks that share\n"
               "the weights, the sequences or the layers; overlaps their communication with their\n"
               "GEMMs, and says how much of it was hidden.",
    .details =
        "The data x are normally distributed, and the layers learn to give -x: the loss is half\n"
        "the mean square of the difference. A language model learns the tokens of --data, or a\n"
        "Markov chain, and its loss is the mean cross-entropy. The same seed gives the same\n"
        "weights and data for any P and any number of replicas; so do the same files.\n"
        "\n"
        "time           forward, backward, gradients between replicas and the optimizer step\n"
        "passes         forward and backward; with the optimizer step where all of it is\n"
        "               one launch: without traces, and with --clip-grad\n"
        "predicted      the same, by a simulation of all ranks' programs with what GEMMs, "
        "kernels,\n"
        "               copies and signals cost by themselves\n"
        "communication  time in which data were on their way from a rank or to it; mean of the "
        "ranks\n"
        "hidden         ... while the rank computed\n"
        "exposed        ... while it did not: communication is hidden and exposed\n"
        "waited         within the calls that communicate, the rank did not compute, whether or\n"
        "               not something was on its way: it waited\n"
        "  wire         ... for data on their way\n"
        "  late         ... for a rank that was late, because it computed or slept\n"
        "  core         ... for a core: a thread that could go on, of this rank or of the rank\n"
        "               that it waited for, was not running\n"
        "messages       between stages of a pipeline\n"
        "bubble         a rank of a pipeline stood still for what other stages compute; it is not\n"
        "               a part of waited\n"
        "tokens/s       of all replicas; TFLOP/s (of the GEMMs of a rank) and GB/s (sent by a\n"
        "               rank) are over the time of an iteration, too\n"
        "MFU            GEMMs and causal attention of a rank over the time of an iteration, as a\n"
        "               part of the peak of its GPU for their type, or of --peak-tflops\n"
        "\n"
        "Under `lap run`, mpirun, srun or torchrun each process is one of their ranks; all ranks\n"
        "need the same arguments.",
    .exit_status =
        "  0        all iterations were done\n"
        "  1        a rank failed, or a file cannot be written\n"
        "  128 + n  signal n killed a rank, or asked lap train to end\n"
        "  2        the command line is wrong\n"
        "  3        a loss, or the norm of the gradients, is not finite: standard error names\n"
        "           the first layer and tensor that is not finite, in the order of forward and\n"
        "           then backward, and what was measured so far is printed\n"
        "  4        less communication was hidden than --assert-hidden asks for, or none was\n"
        "           traced",
    .options = lap_train_options,
    .noptions = NOPTIONS,
    .own = own,
    .nown = sizeof(own) / sizeof(own[0]),
    .aliases = aliases,
    .naliases = sizeof(aliases) / sizeof(aliases[0]),
};

_Static_assert(NOPTIONS + LAP_TRAIN_OWN_MAX <= LAP_OPTIONS_MAX,
               "room for options of other commands");

const lap_command_t *lap_train_extend(lap_train_form_t *form, const lap_option_t *own, size_t nown)
{
    lap_command_t *command = &form->command;
    memcpy(form->options, lap_train_options, sizeof(lap_train_options));
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
