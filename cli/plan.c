/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lap plan`: how a model should be run on a cluster, how long a step takes there and whether it
 * fits. Nothing is run: rates come from a machine description.
 */
#include "plan.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <lap/model.h>

#include "cli.h"
#include "config.h"
#include "core/status.h"
#include "heads.h"
#include "interrupt.h"
#include "nn/nn_fields.h"
#include "parallel/pipeline.h"
#include "plan/step_trace.h"
#include "shared_options.h"
#include "trace_file.h"
#include "util/alloc.h"

enum {
    MODEL,
    LAYERS,
    HIDDEN,
    FFN,
    HEADS,
    KV_HEADS,
    HEAD_DIM,
    EXPANSION,
    VOCAB,
    NORM,
    ACTIVATION,
    POSITIONS,
    TIED,
    CONFIG,
    CONFIG_KEYS,
    GPU,
    GPUS,
    SEQ,
    GLOBAL_BATCH,
    MICRO_BATCH,
    PRECISION,
    TP,
    PP,
    CP,
    DP,
    VIRTUAL_PP,
    SCHEDULE,
    RECOMPUTE,
    NO_SEQUENCE_PARALLEL,
    WHOLE_OPTIMIZER,
    FSDP,
    NO_OVERLAP,
    NO_OVERLAP_TP,
    NO_OVERLAP_PP,
    NO_OVERLAP_DP,
    EXPLAIN,
    TRACE,
    TOP,
    PRICE,
    POWER,
    VALIDATE,
    JSON,
    NOPTIONS
};

/* clang-format off */
static const lap_option_t options[NOPTIONS] = {
    [MODEL] = {0, "model", "NAME", "a model of lap train, such as llama-70b; see there", NULL},
    [LAYERS] = {0, "layers", "COUNT", "layers (default: the model's own)", NULL},
    [HIDDEN] = {0, "hidden", "SIZE", "features between layers (default: the model's own)", NULL},
    [FFN] = {0, "ffn", "SIZE", "features inside an MLP (default: the model's own)", NULL},
    [HEADS] = {0, "heads", "COUNT", "heads of attention (default: the model's own)", NULL},
    [KV_HEADS] = {0, "kv-heads", "COUNT", "heads of keys and values (default: the model's own)", NULL},
    [HEAD_DIM] = {0, "head-dim", "COUNT", "features of a head (default: --hidden divided by --heads)", NULL},
    [EXPANSION] = {0, "mlp-expansion-factor", "N", "--ffn as a multiple of --hidden", NULL},
    [VOCAB] = {0, "vocab", "COUNT", "tokens that the model knows (default: the model's own)", NULL},
    [NORM] = {0, "norm", "KIND", "layernorm or rmsnorm (default: the model's own)", NULL},
    [ACTIVATION] = {0, "activation", "NAME",
                    "gelu, also for others that have two matrices, or swiglu (default: the model's own)", NULL},
    [POSITIONS] = {0, "positions", "KIND", "how it knows where tokens are: learned, rope or none (default: the model's own)", NULL},
    [TIED] = {0, "tied", "[=YES]", "embeddings are the weights of its logits, too: yes or no (default: the model's own)", NULL},
    [CONFIG] = {0, "config", "FILE.yaml",
                "the model, its grid and its batch by the names of NeMo and Megatron, as lap train reads them; options count more, "
                "and any (--tp any) has a size of the file searched for; -: standard input", NULL},
    [CONFIG_KEYS] = LAP_OPTION_CONFIG_KEYS,
    [GPU] = {0, "gpu", "NAME", "a machine: a100-sxm, h100-sxm, h200-sxm, b200, gb200, gb300, or FILE.yaml", "h100-sxm"},
    [GPUS] = {0, "gpus", "COUNT", "GPUs of the cluster", "8"},
    [SEQ] = {0, "seq", "TOKENS", "tokens of a sequence (default: the model's own)", NULL},
    [GLOBAL_BATCH] = {0, "global-batch", "COUNT", "sequences of a step", "512"},
    [MICRO_BATCH] = {0, "micro-batch", "COUNT", "sequences of a micro-batch (default: the best of 1, 2, 4, 8)", NULL},
    [PRECISION] = {0, "precision", "TYPE", "what GEMMs multiply: fp32, fp16, bf16, fp8, mxfp8 or fp4", "bf16"},
    [TP] = {0, "tp", "P", "tensor-parallel ranks (default: searched for)", NULL},
    [PP] = {0, "pp", "P", "pipeline-parallel ranks (default: searched for)", NULL},
    [CP] = {0, "cp", "P", "context-parallel ranks (default: searched for)", NULL},
    [DP] = {0, "dp", "P", "replicas (default: what GPUs are left)", NULL},
    [VIRTUAL_PP] = {0, "virtual-pp", "V", "stages on a rank of the pipeline (default: searched for)", NULL},
    [SCHEDULE] = {0, "schedule", "NAME",
                  "of the pipeline: 1f1b, interleaved, zb-h1, zb-v or 1f1b-eager (default: the best of the first three)", NULL},
    [RECOMPUTE] = {0, "recompute", "WHAT",
                   "what backward recomputes: none, selective or full as in lap train, layer: all of a layer's "
                   "forward (default: searched for)", NULL},
    [NO_SEQUENCE_PARALLEL] = {0, "no-sequence-parallel", NULL, "every rank has all rows, and sums are all-reduced", NULL},
    [WHOLE_OPTIMIZER] = {0, "no-distributed-optimizer", NULL, "each replica has the whole state of the optimizer, in place of a part of it", NULL},
    [FSDP] = {0, "fsdp", NULL, "weights are sharded over replicas, too, and gathered layer by layer", NULL},
    [NO_OVERLAP] = {0, "no-overlap", NULL, "communication of all kinds is not overlapped", NULL},
    [NO_OVERLAP_TP] = {0, "no-overlap-tp", NULL, "... that of tensor-parallel ranks", NULL},
    [NO_OVERLAP_PP] = {0, "no-overlap-pp", NULL, "... that of stages of a pipeline", NULL},
    [NO_OVERLAP_DP] = {0, "no-overlap-dp", NULL, "... that of replicas", NULL},
    [EXPLAIN] = {0, "explain", NULL, "where the time and the memory of the best grid, or of the one given, go", NULL},
    [TRACE] = LAP_OPTION_TRACE("that step, a rank for each of the pipeline"),
    [TOP] = {0, "top", "COUNT", "grids to show", "10"},
    [PRICE] = {0, "price", "MONEY", "of a GPU for an hour: what a step and a billion tokens cost", NULL},
    [POWER] = {0, "power", "WATTS", "of a GPU and its share of the rest: the energy of a step (default: of the GPU alone, as its description has it)", NULL},
    [VALIDATE] = {0, "validate", "FILE.csv", "plan published steps instead, and show the errors", NULL},
    [JSON] = LAP_OPTION_JSON,
};
/* clang-format on */

static const lap_command_t command = {
    .name = "lap plan",
    .usage = "--model NAME|--config FILE.yaml [OPTIONS]",
    .summary = "Says how to run a model on a cluster, how long a step takes and whether it fits.",
    .details =
        "Sizes of the grid that are not given are searched for. A layer is linked and simulated\n"
        "with the rates of the machine, the pipeline by its table; nothing is run. MFU counts the\n"
        "FLOPs of matrices, three times forward, attention as half of its scores, and no\n"
        "recomputation. docs/plan.md has the errors against published steps, and the format of\n"
        "machine descriptions.\n"
        "\n"
        "The sizes of a grid that a file of --config has are fixed; `--tp any --pp any` has them\n"
        "searched for. Settings of training, such as rates and seeds, are passed over. Other keys\n"
        "without effect on a plan are told on standard error.",
    .exit_status = "  0  there is a plan\n"
                   "  1  nothing fits, or a file could not be read\n"
                   "  2  the command line is wrong",
    .options = options,
    .noptions = NOPTIONS,
};

/* ---- a file of NeMo or Megatron ---- */

/*
 * What a plan has for options of `lap train` that it has not by their names; NULL: nothing, without a word. Much of a file is
 * about how a model learns, on which neither the time nor the memory of a step depends: a list of all that would hide the keys
 * on which they do, and which are not planned.
 */
static const lap_config_word_t words[] = {
    {"batch", "global-batch"},
    {"dtype=float32", "precision=fp32"},
    {"dtype=float16", "precision=fp16"},
    {"dtype=bfloat16", "precision=bf16"},
    {"fp8=none", NULL},
    {"fp8=mxfp8",
     "precision=mxfp8"}, /* behind the types of weights and activations: GEMMs are in FP8 */
    {"fp8", "precision=fp8"},
    {"fp8-recipe", NULL}, /* which fp8 has become by then */
    {"fp4", "precision=fp4"},
    {"devices", NULL}, /* of which there are --gpus */
    {"num-nodes", NULL},
    {"recompute=full", "recompute=layer"}, /* Megatron keeps the input of a layer, no more */
    {"no-comm-overlap", "no-overlap-tp"},
    {"no-overlap-p2p", "no-overlap-pp"},
    {"no-overlap-grad-sync", "no-overlap-dp"}, /* without it weights are not overlapped either */
    /* Every plan is so. */
    {"distributed-optimizer", NULL},
    {"optimizer=adamw", NULL},
    {"cp-comm-type=p2p", NULL},
    {"grad-sync-dtype=fp32", NULL},
    {"attention-dropout=0", NULL},
    {"attention-dropout=0.0", NULL},
    {"hidden-dropout=0", NULL},
    {"hidden-dropout=0.0", NULL},
    /* Other numbers of the same kernels. */
    {"norm-epsilon", NULL},
    {"rope-theta", NULL},
    {"rope-factor", NULL},
    {"rope-low-freq", NULL},
    {"rope-high-freq", NULL},
    {"rope-original", NULL},
    {"init-std", NULL},
    {"fp8-amax-history-len", NULL},
    /* How a model learns. */
    {"seed", NULL},
    {"lr", NULL},
    {"min-lr", NULL},
    {"lr-decay-style", NULL},
    {"lr-decay-iters", NULL},
    {"lr-warmup-iters", NULL},
    {"weight-decay", NULL},
    {"adam-beta1", NULL},
    {"adam-beta2", NULL},
    {"adam-eps", NULL},
    {"clip-grad", NULL},
    {"loss-scale", NULL},
    {"initial-loss-scale", NULL},
    {"min-loss-scale", NULL},
    {"loss-scale-window", NULL},
    {"hysteresis", NULL},
    {"iters", NULL},
    {NULL, NULL},
};

static const size_t pairs[][2] = {{FFN, EXPANSION}};
static const lap_config_use_t use = {.option = CONFIG,
                                     .keys = CONFIG_KEYS,
                                     .pairs = pairs,
                                     .npairs = sizeof(pairs) / sizeof(pairs[0]),
                                     .words = words};

/* A size of the file that the command line takes back: as if nobody had given it. */
static void free_any(lap_args_t *args)
{
    static const int searched[] = {TP, PP, CP, VIRTUAL_PP, SCHEDULE, MICRO_BATCH, RECOMPUTE};
    for (size_t i = 0; i < sizeof(searched) / sizeof(searched[0]); i++)
        if (args->values[searched[i]] && strcmp(args->values[searched[i]], "any") == 0)
            args->values[searched[i]] = NULL;
}

/* A model that only a file describes has no other sizes: those of the presets that it begins with are of toys. */
static bool check_described(const lap_args_t *args, const bool *line)
{
    static const int sizes[] = {LAYERS, HIDDEN, HEADS, VOCAB, SEQ};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && !line[MODEL]; i++)
        if (!args->given[sizes[i]])
            return lap_args_wrong(&command,
                                  "--%s is not given and %s has no key for it, expected one of "
                                  "them, or --model NAME, of which sizes are the model's own",
                                  options[sizes[i]].name, args->values[CONFIG]);
    return true;
}

/* ---- reading ---- */

/* `line`: the options of the command line itself. */
static bool parse_name(const lap_args_t *args, const bool *line, lap_plan_request_t *request,
                       lap_nn_desc_t *desc)
{
    const char *name = args->values[MODEL], *path = args->values[CONFIG];
    if (!name && path)
        return lap_args_wrong(&command,
                              "--model is not given and %s has neither a vocabulary nor "
                              "positions, expected one of them",
                              path);
    if (!name)
        return lap_args_wrong(&command,
                              "--model is not given, expected one, or --config or --validate");
    if (lap_model_preset(name, desc) != LAP_OK)
        return lap_args_wrong(&command, "--model: %s", lap_last_error());
    request->model = line[MODEL] ? name : path;
    return check_described(args, line);
}

/* What is given of a model, by the names of its fields. */
static bool parse_fields(const lap_args_t *args, lap_nn_desc_t *desc)
{
    static const int fields[] = {LAYERS, HIDDEN, FFN,        HEADS,     KV_HEADS, HEAD_DIM,
                                 VOCAB,  NORM,   ACTIVATION, POSITIONS, SEQ};
    if (args->given[HEADS] && !args->given[KV_HEADS])
        desc->kv_heads = 0;
    desc->head_dim = 0;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (!lap_arg_option(&command, fields[i], args->values[fields[i]], lap_nn_fields,
                            sizeof(lap_field_t), desc))
            return false;
    if (args->given[HIDDEN] && !args->given[FFN])
        desc->ffn = 4 * desc->hidden;
    return lap_arg_expansion(args, FFN, EXPANSION, desc->hidden, &desc->ffn) &&
           lap_arg_yes(args, TIED, &desc->tied);
}

static bool parse_model(const lap_args_t *args, const bool *line, lap_plan_request_t *request)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    if (!parse_name(args, line, request, &desc) || !parse_fields(args, &desc))
        return false;
    if (desc.heads == 0)
        return lap_args_wrong(&command, "--heads is 0, expected at least 1");
    if (desc.vocab > INT32_MAX)
        return lap_args_wrong(&command, "--vocab is %zu, expected at most %d", desc.vocab,
                              INT32_MAX);
    if (desc.head_dim == 0 && desc.hidden % desc.heads != 0)
        return lap_args_wrong(&command,
                              "--hidden is %zu, expected a multiple of the %zu heads, "
                              "or --head-dim as well",
                              desc.hidden, desc.heads);
    desc.kv_heads = lap_nn_kv_heads(&desc);
    if (desc.heads % desc.kv_heads != 0)
        return lap_args_wrong(&command, "--kv-heads is %zu, expected a divisor of the %zu heads",
                              desc.kv_heads, desc.heads);
    desc.head_dim = desc.head_dim ? desc.head_dim : desc.hidden / desc.heads;
    desc.max_positions = desc.positions == LAP_POSITIONS_LEARNED ? desc.seq : 0;
    request->config = lap_plan_config(&desc);
    return lap_config_fits(&command, &desc);
}

/* A size of the grid; one that is not given is free. */
static bool parse_size(const lap_args_t *args, int option, size_t *size_p)
{
    const size_t most =
        option == GLOBAL_BATCH || option == MICRO_BATCH ? LAP_PLAN_BATCH_MOST : LAP_PLAN_GPUS_MOST;
    char what[24];
    *size_p = 0;
    snprintf(what, sizeof(what), "--%s", options[option].name);
    return !args->values[option] ||
           lap_arg_size(&command, what, args->values[option], 1, most, size_p);
}

/* How many tensor-parallel ranks there are at most, of which theirs is a divisor: the GPUs that other given sizes leave. */
static size_t tensor_parallel_most(const lap_plan_config_t *config)
{
    const size_t others[] = {config->pp, config->cp, config->dp};
    size_t left = config->gpus;
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        left = others[i] > 0 && left % others[i] == 0 ? left / others[i] : left;
    return left;
}

/* Where the given ranks cannot share the heads, there is no grid to search for. */
static bool check_heads(const lap_plan_config_t *config)
{
    const lap_nn_desc_t *model = &config->model;
    char advice[LAP_HEADS_TEXT];
    const size_t ranks = tensor_parallel_most(config);
    if (config->tp == 0 || ranks % config->tp != 0 || lap_heads_divide(model, config->tp))
        return true;
    const bool heads = model->heads % config->tp != 0;
    lap_heads_advise(model, config->tp, ranks, false, advice);
    return lap_args_wrong(
        &command, "--%sheads is %zu, expected a multiple of --tp, %zu (%s would do)",
        heads ? "" : "kv-", heads ? model->heads : model->kv_heads, config->tp, advice);
}

static bool parse_grid(const lap_args_t *args, lap_plan_config_t *config)
{
    return parse_size(args, GPUS, &config->gpus) && parse_size(args, TP, &config->tp) &&
           parse_size(args, PP, &config->pp) && parse_size(args, CP, &config->cp) &&
           parse_size(args, DP, &config->dp) && parse_size(args, VIRTUAL_PP, &config->virtual_pp) &&
           parse_size(args, MICRO_BATCH, &config->micro_batch) &&
           parse_size(args, GLOBAL_BATCH, &config->global_batch) && check_heads(config);
}

static bool parse_ways(const lap_args_t *args, lap_plan_config_t *config)
{
    size_t type, recompute = LAP_PLAN_ANY_RECOMPUTE, schedule;
    if (!lap_arg_choice(&command, "--precision", args->values[PRECISION], lap_plan_type_names,
                        &type) ||
        (args->values[RECOMPUTE] &&
         !lap_arg_choice(&command, "--recompute", args->values[RECOMPUTE], lap_plan_recompute_names,
                         &recompute)) ||
        (args->values[SCHEDULE] && !lap_arg_choice(&command, "--schedule", args->values[SCHEDULE],
                                                   lap_pipe_schedules, &schedule)))
        return false;
    config->type = (lap_plan_type_t)type;
    config->recompute = (lap_plan_recompute_t)recompute;
    config->schedule = args->values[SCHEDULE];
    if (config->schedule && config->virtual_pp > 1 &&
        strcmp(config->schedule, "interleaved") != 0 &&
        !(strcmp(config->schedule, "zb-v") == 0 && config->virtual_pp == 2))
        return lap_args_wrong(
            &command, "--virtual-pp is %zu with --schedule %s, expected %s", config->virtual_pp,
            config->schedule,
            strcmp(config->schedule, "zb-v") == 0 ? "2" : "1, or --schedule interleaved");
    if (config->virtual_pp == 1 && config->schedule && strcmp(config->schedule, "interleaved") == 0)
        return lap_args_wrong(&command,
                              "--virtual-pp is 1 with --schedule interleaved, expected 2 or more");
    config->sequence_parallel = !args->given[NO_SEQUENCE_PARALLEL];
    config->sharded_optimizer = !args->given[WHOLE_OPTIMIZER];
    config->fsdp = args->given[FSDP];
    config->cp_overlap = !args->given[NO_OVERLAP];
    config->tp_overlap = config->cp_overlap && !args->given[NO_OVERLAP_TP];
    config->pp_overlap = config->cp_overlap && !args->given[NO_OVERLAP_PP];
    config->dp_overlap = config->cp_overlap && !args->given[NO_OVERLAP_DP];
    return true;
}

static bool parse_rate(const char *what, const char *text, double *value_p)
{
    char *end;
    *value_p = 0;
    if (!text)
        return true;
    *value_p = strtod(text, &end);
    if (end == text || *end || !(*value_p > 0 && *value_p < 1e9))
        return lap_args_wrong(
            &command, "%s is '%s', expected a number above 0 and below 1000000000", what, text);
    return true;
}

static bool parse(const lap_args_t *args, const bool *line, lap_plan_request_t *request)
{
    request->gpu = args->values[GPU];
    request->validate = args->values[VALIDATE];
    request->trace = args->values[TRACE];
    request->explain = args->given[EXPLAIN] || request->trace;
    request->json = args->given[JSON];
    for (int i = 0; request->validate && i < NOPTIONS; i++)
        if (line[i] && i != VALIDATE && i != GPU && i != JSON)
            return lap_args_wrong(&command,
                                  "--%s is given with --validate, expected one of them: the rows "
                                  "of the file say what is planned",
                                  options[i].name);
    if (request->validate)
        return true;
    if (line[FSDP] && line[WHOLE_OPTIMIZER])
        return lap_args_wrong(&command, "--no-distributed-optimizer is given with --fsdp, expected "
                                        "one of them: with --fsdp the optimizer is sharded, too");
    return parse_model(args, line, request) && parse_grid(args, &request->config) &&
           parse_ways(args, &request->config) &&
           lap_arg_int(&command, "--top", args->values[TOP], 1, LAP_PLAN_BEST_MOST,
                       &request->top) &&
           parse_rate("--price", args->values[PRICE], &request->price) &&
           parse_rate("--power", args->values[POWER], &request->power_w);
}

/* ---- answers ---- */

static int validate(const lap_plan_request_t *request, const char *machine)
{
    lap_plan_rows_t rows;
    lap_plan_verdict_t *verdicts = NULL;
    int result;
    lap_status_t status = lap_plan_rows_read(request->validate, &rows);
    if (status == LAP_OK && !(verdicts = lap_alloc(rows.count + 1, sizeof(*verdicts))))
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu rows", rows.count);
    if (status == LAP_OK)
        status = lap_plan_validate(&rows, machine, verdicts);
    if (status != LAP_OK) {
        result = lap_args_refused(&command, status, "");
    } else {
        (request->json ? lap_plan_json_rows : lap_plan_print_rows)(&rows, verdicts);
        result = lap_plan_count_refused(&rows, verdicts) < rows.count ? LAP_CLI_OK : LAP_CLI_FAILED;
    }
    lap_free(verdicts);
    lap_plan_rows_clear(&rows);
    return result;
}

/* A grid with all sizes that is none is an error of its own; others are left out of the search. */
static lap_status_t check_given(const lap_plan_request_t *request)
{
    lap_plan_config_t config = request->config;
    if (config.tp == 0 || config.pp == 0 || config.cp == 0)
        return LAP_OK;
    const size_t ranks = config.tp * config.pp * config.cp;
    config.dp = config.dp ? config.dp : config.gpus / ranks;
    config.micro_batch = config.micro_batch ? config.micro_batch : 1;
    config.virtual_pp = config.virtual_pp ? config.virtual_pp : 1;
    return lap_plan_check(&config, &request->machine);
}

/* Where a rank of the pipeline is. */
static void put_place(const void *context, int rank, char *text, size_t bytes)
{
    const lap_plan_config_t *config = context;
    snprintf(text, bytes, "pp%d of %zu GPUs", rank, config->gpus / config->pp);
}

static lap_trace_file_t trace_file(const lap_plan_request_t *request,
                                   const lap_plan_config_t *config, const lap_trace_t *timeline)
{
    return (lap_trace_file_t){.path = request->trace,
                              .command = "lap plan",
                              .title = request->model,
                              .simulated = timeline,
                              .place = put_place,
                              .context = config};
}

static lap_status_t write_trace(const lap_plan_request_t *request, const lap_plan_choice_t *choice)
{
    lap_trace_t timeline = {.size = (int)choice->config.pp, .most = LAP_TRACE_MOST};
    lap_status_t status =
        lap_plan_timeline(&choice->config, &request->machine, &choice->result, &timeline);
    const lap_trace_file_t file = trace_file(request, &choice->config, &timeline);
    if (status == LAP_OK)
        status = lap_trace_file_write(&file);
    if (status == LAP_OK && timeline.dropped > 0)
        lap_tell("lap plan", "the trace lacks %zu records: it has at most %d", timeline.dropped,
                 LAP_TRACE_MOST);
    lap_trace_clear(&timeline);
    return status;
}

/* Prints what was found. Returns the exit status. */
static int print_found(const lap_plan_request_t *request, const lap_plan_found_t *found)
{
    const lap_plan_choice_t *choice = found->count         ? &found->best[0]
                                      : found->any_nearest ? &found->nearest
                                                           : NULL;
    if (request->trace && choice) {
        const lap_status_t status = write_trace(request, choice);
        if (status != LAP_OK)
            return lap_args_refused(&command, status, "");
    }
    if (request->explain && choice)
        (request->json ? lap_plan_json_one : lap_plan_print_one)(request, choice);
    else
        (request->json ? lap_plan_json_found : lap_plan_print_found)(request, found);
    return found->count ? LAP_CLI_OK : LAP_CLI_FAILED;
}

static lap_status_t check_trace(const lap_plan_request_t *request)
{
    const lap_trace_t none = {.size = 1};
    const lap_trace_file_t file = trace_file(request, &request->config, &none);
    return request->trace ? lap_trace_file_check(&file) : LAP_OK;
}

static bool stops(void)
{
    return lap_interrupt_here() != 0;
}

/* The search, which a signal ends; a grid that takes long may not let it. */
static lap_status_t search(const lap_plan_request_t *request, lap_plan_found_t *found)
{
    lap_interrupt_begin();
    lap_interrupt_watch(command.name, NULL);
    const lap_status_t status =
        lap_plan_search(&request->config, &request->machine,
                        request->explain ? 1 : (size_t)request->top, stops, found);
    lap_interrupt_with_end();
    return status;
}

/* What was found until a signal came. Returns the exit status. */
static int print_interrupted(const lap_plan_request_t *request, const lap_plan_found_t *found)
{
    if (found->count > 0)
        (void)print_found(request, found);
    lap_tell(command.name, "interrupted: %zu configurations were tried, and others were not",
             found->tried);
    return lap_interrupt_status(lap_interrupt_here());
}

/* What the planner finds wrong with a field is wrong with an option. */
static int refuse(lap_status_t status)
{
    char sentence[LAP_ERROR_TEXT];
    if (lap_args_of_field(&command, lap_last_error(), sentence, sizeof(sentence)))
        status = lap_error(status, "%s", sentence);
    return lap_args_refused(&command, status, "");
}

static int answer(lap_plan_request_t *request)
{
    lap_plan_found_t *found = lap_alloc(1, sizeof(*found));
    lap_status_t status = lap_machine_load(request->gpu, &request->machine);
    if (!found)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to search");
    if (status == LAP_OK)
        status = check_given(request);
    if (status == LAP_OK)
        status = check_trace(request);
    if (status == LAP_OK)
        status = search(request, found);
    int result = status == LAP_OK ? LAP_CLI_OK : refuse(status);
    if (status == LAP_OK)
        result = (found->stopped ? print_interrupted : print_found)(request, found);
    lap_free(found);
    return result;
}

int lap_cli_plan(int argc, char **argv)
{
    lap_args_t args;
    lap_plan_request_t request = {.json = false};
    const char *unused;
    bool line[LAP_OPTIONS_MAX];
    const int parsed = lap_config_parse(&command, &use, argc, argv, &args, line, &unused);
    if (parsed != LAP_CLI_GO)
        return parsed;
    free_any(&args);
    if (!parse(&args, line, &request))
        return LAP_CLI_USAGE;
    if (*unused)
        lap_tell(command.name, "%s: without effect: %s", args.values[CONFIG], unused);
    return request.validate ? validate(&request, args.given[GPU] ? request.gpu : NULL)
                            : answer(&request);
}
