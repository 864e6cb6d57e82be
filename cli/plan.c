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
#include "option_rows.h"
#include "overlap/overlap.h"
#include "parallel/pipeline.h"
#include "plan/step_trace.h"
#include "shared_options.h"
#include "trace_file.h"
#include "util/alloc.h"

enum {
#define OPTION(name, ...) name,
#include "plan_options.def"
#undef OPTION
    NOPTIONS
};

#define OPTIONS_OF lap_plan_request_t
static const lap_option_t options[NOPTIONS] = {
#define OPTION(name, ...) [name] = {__VA_ARGS__},
#include "plan_options.def"
#undef OPTION
};

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
 * What a plan has for options of `lap train` that it has not by their names; NULL: nothing, without
 * a word. Much of a file is about how a model learns, on which neither the time nor the memory of a
 * step depends: a list of all that would hide the keys on which they do, and which are not planned.
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

/*
 * A model that only a file describes has no other sizes: those of the presets that it begins with
 * are of toys.
 */
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

/* A size that is not given is searched for. */
static void free_sizes(lap_plan_config_t *config)
{
    config->tp = config->pp = config->cp = config->dp = 0;
    config->virtual_pp = config->micro_batch = 0;
    config->recompute = (lap_plan_recompute_t)LAP_PLAN_ANY_RECOMPUTE;
}

/* `line`: the options of the command line itself. */
static bool parse_name(const lap_args_t *args, const bool *line, lap_plan_request_t *request)
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
    if (lap_model_preset(name, &request->config.model) != LAP_OK)
        return lap_args_wrong(&command, "--model: %s", lap_last_error());
    request->model = line[MODEL] ? name : path;
    return check_described(args, line);
}

/*
 * What is given of a model counts more than what it is by its name; what follows from that is not
 * the preset's.
 */
static bool read_model(const lap_args_t *args, lap_plan_request_t *request)
{
    lap_nn_desc_t *desc = &request->config.model;
    if (args->given[HEADS] && !args->given[KV_HEADS])
        desc->kv_heads = 0;
    desc->head_dim = 0;
    if (!lap_args_read(args, true, request))
        return false;
    if (args->given[HIDDEN] && !args->given[FFN])
        desc->ffn = 4 * desc->hidden;
    return lap_arg_expansion(args, FFN, EXPANSION, desc->hidden, &desc->ffn);
}

static bool parse_model(const lap_args_t *args, const bool *line, lap_plan_request_t *request)
{
    lap_nn_desc_t *desc = &request->config.model;
    if (!parse_name(args, line, request) || !read_model(args, request))
        return false;
    if (desc->heads == 0)
        return lap_args_wrong(&command, "--heads is 0, expected at least 1");
    if (desc->vocab > INT32_MAX)
        return lap_args_wrong(&command, "--vocab is %zu, expected at most %d", desc->vocab,
                              INT32_MAX);
    if (desc->head_dim == 0 && desc->hidden % desc->heads != 0)
        return lap_args_wrong(&command,
                              "--hidden is %zu, expected a multiple of the %zu heads, "
                              "or --head-dim as well",
                              desc->hidden, desc->heads);
    desc->kv_heads = lap_nn_kv_heads(desc);
    if (desc->heads % desc->kv_heads != 0)
        return lap_args_wrong(&command, "--kv-heads is %zu, expected a divisor of the %zu heads",
                              desc->kv_heads, desc->heads);
    desc->head_dim = desc->head_dim ? desc->head_dim : desc->hidden / desc->heads;
    desc->max_positions = desc->positions == LAP_POSITIONS_LEARNED ? desc->seq : 0;
    return lap_config_fits(&command, desc);
}

/*
 * How many tensor-parallel ranks there are at most, of which theirs is a divisor: the GPUs that
 * other given sizes leave.
 */
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

static bool settle_ways(const lap_args_t *args, lap_plan_request_t *request)
{
    lap_plan_config_t *config = &request->config;
    const char *schedule = args->values[SCHEDULE];
    const bool interleaved = schedule && strcmp(schedule, "interleaved") == 0;
    const bool zb_v = schedule && strcmp(schedule, "zb-v") == 0;
    config->schedule = schedule;
    if (schedule && config->virtual_pp > 1 && !interleaved && !(zb_v && config->virtual_pp == 2))
        return lap_args_wrong(&command, "--virtual-pp is %zu with --schedule %s, expected %s",
                              config->virtual_pp, schedule,
                              zb_v ? "2" : "1, or --schedule interleaved");
    if (config->virtual_pp == 1 && interleaved)
        return lap_args_wrong(&command,
                              "--virtual-pp is 1 with --schedule interleaved, expected 2 or more");
    config->tp_overlap = config->tp_overlap && config->cp_overlap;
    config->pp_overlap = config->pp_overlap && config->cp_overlap;
    config->dp_overlap = config->dp_overlap && config->cp_overlap;
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
    const lap_nn_desc_t none = LAP_NN_DESC_INIT;
    request->config = lap_plan_config(&none);
    free_sizes(&request->config);
    if (!lap_args_read(args, false, request))
        return false;
    request->explain = request->explain || request->trace;
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
    return parse_model(args, line, request) && check_heads(&request->config) &&
           settle_ways(args, request) &&
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
    if (lap_args_of_field(&command, lap_last_error(), sentence, sizeof(sentence)) >= 0)
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
