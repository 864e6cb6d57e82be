/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the command line of `lap train`: everything that one process can find wrong is found before
 * any rank starts.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "core/environment.h"
#include "core/output.h"
#include "core/status.h"
#include "launch.h"
#include "nn/nn_fields.h"
#include "piped.h"
#include "ranks.h"
#include "rules.h"
#include "train_options.h"
#include "util/alloc.h"

/* ---- values ---- */

bool lap_train_count(const lap_args_t *args, int option, const char *otherwise, size_t *count_p)
{
    char what[64];
    snprintf(what, sizeof(what), "--%s", lap_train_options[option].name);
    const char *text = args->values[option] ? args->values[option] : otherwise;
    return lap_arg_size(args->command, what, text, 1, COUNT_MOST, count_p);
}

static bool parse_number(const lap_args_t *args, int option, float most, const char *expected,
                         float otherwise, float *number_p)
{
    const char *text = args->values[option];
    char *end = NULL;
    const float number = text ? strtof(text, &end) : otherwise;
    if (text && (end == text || *end != '\0' || !(number >= 0) || number > most))
        return lap_args_wrong(args->command, "--%s is '%s'; expected %s",
                              lap_train_options[option].name, text, expected);
    *number_p = number;
    return true;
}

bool lap_train_rate(const lap_args_t *args, int option, float otherwise, float *rate_p)
{
    return parse_number(args, option, 1e30f, "a number, 0 to 1e+30", otherwise, rate_p);
}

int lap_train_ranks(const lap_train_t *train)
{
    return (int)lap_grid_ranks(&train->grid, LAP_SLICE_WORLD);
}

static bool parse_ranks(lap_train_t *train, const lap_args_t *args)
{
    lap_environment_t environment;
    lap_grid_t *grid = &train->grid;
    char text[LAP_GRID_TEXT];
    if (!lap_arg_int(args->command, "--num-replicas", args->values[REPLICAS], 1, LAP_LAUNCH_MAX,
                     &grid->dp))
        return false;
    if (!lap_arg_int(args->command, "--cp", args->values[CP], 1, LAP_LAUNCH_MAX, &grid->cp))
        return false;
    if (!lap_arg_int(args->command, "--pp", args->values[PP], 1, LAP_LAUNCH_MAX, &grid->pp))
        return false;
    grid->tp = args->values[MODEL]
                   ? 1
                   : 4; /* layers by themselves are there for their tensor parallelism */
    if (args->values[TP] &&
        !lap_arg_int(args->command, "--tp", args->values[TP], 1, LAP_LAUNCH_MAX, &grid->tp))
        return false;
    const int64_t others = lap_grid_ranks(grid, LAP_SLICE_WORLD & ~LAP_SLICE_TP);
    if (!args->values[TP] && lap_environment_launched() &&
        lap_environment_read(&environment) == LAP_OK)
        grid->tp = environment.size > others ? (int)(environment.size / others) : 1;
    if (lap_grid_ranks(grid, LAP_SLICE_WORLD) <= LAP_LAUNCH_MAX)
        return true;
    lap_grid_text(grid, text);
    return lap_args_wrong(args->command, "a grid of %s is %lld ranks; expected at most %d", text,
                          (long long)lap_grid_ranks(grid, LAP_SLICE_WORLD), LAP_LAUNCH_MAX);
}

/*
 * The first steps of AdamW move every weight by the rate, all of them in step: what a row of weights
 * gives then changes by the rate times its length. Wider layers would be thrown off at once.
 */
static float adamw_rate(const lap_nn_desc_t *desc)
{
    return fminf(0.001f, 0.4f / (float)desc->hidden);
}

/*
 * Few steps, whatever --iters is: a run that goes on from a checkpoint has the rates of one that was
 * not interrupted. Who gives a rate, or its decay, gives its warm-up.
 */
static const char *warmup_of(const lap_train_t *train, const lap_args_t *args, size_t kind)
{
    if (args->values[WARMUP])
        return args->values[WARMUP];
    const char *decay = args->values[LR_DECAY];
    const bool constant = !decay || strcmp(decay, lap_lr_decay_names[LAP_LR_CONSTANT]) == 0;
    return train->model && kind == LAP_ADAMW && !args->values[LR] && constant ? "10" : "0";
}

static bool parse_part(const lap_args_t *args, int option, float *part_p)
{
    return parse_number(args, option, nextafterf(1, 0), "a number from 0 to less than 1", 0,
                        part_p);
}

/* With 0 a weight without a gradient would be divided by 0. */
static bool parse_epsilon(const lap_args_t *args, float *epsilon_p)
{
    if (!lap_train_rate(args, ADAM_EPSILON, 0, epsilon_p))
        return false;
    return *epsilon_p > 0 ||
           lap_args_wrong(args->command, "--adam-eps is '%s'; expected a number above 0",
                          args->values[ADAM_EPSILON]);
}

static bool parse_decay(lap_train_t *train, const lap_args_t *args)
{
    lap_optimizer_desc_t *optimizer = &train->optimizer;
    size_t kind, steps = (size_t)train->iters;
    if (!lap_arg_choice(args->command, "--lr-decay-style", args->values[LR_DECAY],
                        lap_lr_decay_names, &kind) ||
        (args->values[LR_DECAY_ITERS] && !lap_train_count(args, LR_DECAY_ITERS, "", &steps)) ||
        !lap_train_rate(args, MIN_LR, 0, &optimizer->min_lr) ||
        !parse_part(args, BETA1, &optimizer->beta1) ||
        !parse_part(args, BETA2, &optimizer->beta2) || !parse_epsilon(args, &optimizer->epsilon))
        return false;
    optimizer->lr_decay = (lap_lr_decay_t)kind;
    /* By default the decay ends with the run, which may be over before its warm-up is. */
    if (!args->values[LR_DECAY_ITERS] && steps <= optimizer->warmup)
        steps = optimizer->warmup + 1;
    optimizer->lr_decay_steps = kind == LAP_LR_CONSTANT ? 0 : steps;
    return true;
}

/* A number above 0; or "dynamic", and what it needs. */
static bool parse_scale(lap_train_t *train, const lap_args_t *args)
{
    const char *text = args->values[LOSS_SCALE];
    float first = 1, least = 1;
    size_t window, hysteresis;
    train->dynamic = text ? strcmp(text, "dynamic") == 0 : train->desc.dtype == LAP_FLOAT16;
    if ((text && !train->dynamic && !lap_train_rate(args, LOSS_SCALE, 1, &first)) ||
        (train->dynamic && !lap_train_rate(args, INITIAL_SCALE, 1, &first)) ||
        !lap_train_rate(args, MIN_SCALE, 1, &least) ||
        !lap_train_count(args, SCALE_WINDOW, "", &window) ||
        !lap_train_count(args, HYSTERESIS, "", &hysteresis))
        return false;
    if (!train->dynamic && !(first > 0))
        return lap_args_wrong(args->command,
                              "--loss-scale is '%s'; expected a number above 0, or dynamic", text);
    if (train->dynamic && (!(first > 0) || !(least > 0) || least > first))
        return lap_args_wrong(
            args->command,
            "--initial-loss-scale is %g and --min-loss-scale is %g; expected numbers above 0, the "
            "first not below the other",
            (double)first, (double)least);
    train->scale = (lap_loss_scale_t){
        .scale = (double)first, .least = (double)least, .window = window, .hysteresis = hysteresis};
    lap_loss_scale_init(&train->scale);
    return true;
}

static bool parse_checkpoints(lap_train_t *train, const lap_args_t *args)
{
    train->save = args->values[SAVE];
    train->load = args->values[LOAD];
    for (const int *option = (const int[]){SAVE, LOAD, NOPTIONS}; *option != NOPTIONS; option++)
        if (args->given[*option] && !*args->values[*option])
            return lap_args_wrong(args->command, "--%s is ''; expected a folder",
                                  lap_train_options[*option].name);
    if (args->values[KEEP] &&
        !lap_arg_int(args->command, "--keep", args->values[KEEP], 1, 1000000, &train->keep))
        return false;
    return !args->values[SAVE_EVERY] ||
           lap_arg_int(args->command, "--save-every", args->values[SAVE_EVERY], 1, 1000000,
                       &train->save_every);
}

static bool parse_order(lap_train_t *train, const lap_args_t *args)
{
    int shuffle = train->data != NULL;
    if (!lap_arg_yes(args, SHUFFLE, &shuffle))
        return false;
    train->shuffle = shuffle;
    train->order_given = args->given[SHUFFLE] || args->given[DATA_SEED];
    train->data_seed = train->desc.seed;
    return !args->values[DATA_SEED] ||
           lap_arg_number(args->command, "--data-seed", args->values[DATA_SEED], &train->data_seed);
}

static bool parse_buckets(lap_train_t *train, const lap_args_t *args)
{
    static const char *const names[] = {"size", "layer", NULL};
    size_t by;
    if (!lap_arg_choice(args->command, "--bucket-by", args->values[BUCKET_BY], names, &by))
        return false;
    train->replicas.by_layer = by == 1;
    if (train->replicas.by_layer && !args->given[BUCKET])
        return true;
    return lap_train_count(args, BUCKET, strcmp(train->device, "cuda") == 0 ? "4M" : "256K",
                           &train->replicas.bucket);
}

static bool parse_training(lap_train_t *train, const lap_args_t *args)
{
    lap_optimizer_desc_t *optimizer = &train->optimizer;
    size_t kind;
    if (!lap_arg_choice(args->command, "--optimizer", args->values[OPTIMIZER], lap_optimizer_names,
                        &kind) ||
        !lap_arg_int(args->command, "--iters", args->values[ITERS], 1, 1000000, &train->iters) ||
        !lap_train_rate(args, LR, kind == LAP_SGD ? 1 : adamw_rate(&train->desc), &optimizer->lr) ||
        !lap_train_rate(args, WEIGHT_DECAY, kind == LAP_SGD ? 0 : 0.01f,
                        &optimizer->weight_decay) ||
        !lap_train_rate(args, CLIP, 1, &optimizer->clip_norm) ||
        !lap_arg_size(args->command, "--lr-warmup-iters", warmup_of(train, args, kind), 0,
                      COUNT_MOST, &optimizer->warmup) ||
        !lap_arg_int(args->command, "--log-interval", args->values[LOG_INTERVAL], 1, 1000000,
                     &train->log_interval) ||
        !lap_arg_number(args->command, "--seed", args->values[SEED], &train->desc.seed) ||
        !parse_decay(train, args) || !parse_checkpoints(train, args) || !parse_scale(train, args) ||
        !parse_order(train, args) || !parse_buckets(train, args))
        return false;
    if (!lap_train_count(args, AMAX_HISTORY, "", &train->desc.amax_history) ||
        !parse_part(args, ATTENTION_DROPOUT, &train->desc.attention_dropout) ||
        !parse_part(args, HIDDEN_DROPOUT, &train->desc.hidden_dropout))
        return false;
    if (!train->model) /* as a file of --config may have it */
        train->desc.attention_dropout = train->desc.hidden_dropout = 0;
    optimizer->kind = (lap_optimizer_kind_t)kind;
    train->replicas.overlap = !args->given[NO_OVERLAP_GRAD];
    train->replicas.overlap_weights = !args->given[NO_OVERLAP_PARAM];
    train->replicas.overlap_step = args->given[OVERLAP_STEP];
    if (args->given[DISTRIBUTED]) {
        train->desc.shards = (size_t)train->grid.cp * (size_t)train->grid.dp;
        train->desc.shard_bucket = train->replicas.bucket;
        train->desc.shard_by_layer = train->replicas.by_layer;
        train->desc.fp8_params = args->given[FP8_PARAMS];
    }
    if (lap_dtype_parse(args->values[GRAD_DTYPE], &train->replicas.wire_dtype) == LAP_OK &&
        (train->replicas.wire_dtype == LAP_FLOAT32 || train->replicas.wire_dtype == LAP_BFLOAT16))
        return true;
    return lap_args_wrong(args->command, "--grad-sync-dtype is '%s'; expected fp32 or bf16",
                          args->values[GRAD_DTYPE]);
}

/* How the ranks of a context attend to each other. */
static bool parse_context(lap_train_t *train, const lap_args_t *args)
{
    lap_nn_desc_t *desc = &train->desc;
    size_t way;
    if (!lap_arg_choice(args->command, "--cp-comm-type", args->values[CP_COMM], lap_cp_comm_names,
                        &way) ||
        (args->values[CP_A2A] && !lap_train_count(args, CP_A2A, "", &desc->cp_a2a)))
        return false;
    desc->cp = (size_t)train->grid.cp;
    desc->cp_comm = (lap_cp_comm_t)way;
    return true;
}

/* A build without CUDA has neither the device nor its transports, only their targets. */
static bool is_foreign(const lap_args_t *args)
{
    const char *device = args->values[DEVICE], *transport = args->values[TRANSPORT];
    const lap_device_ops_t *found;
    return device && strcmp(device, "cuda") == 0 && lap_device_find(device, &found) != LAP_OK &&
           (!transport || strcmp(transport, "cuda_ipc") == 0 || strcmp(transport, "nccl") == 0);
}

static bool parse_backends(lap_train_t *train, const lap_args_t *args, bool runs)
{
    const lap_device_ops_t *device;
    const lap_transport_ops_t *transport;
    if (!runs && is_foreign(args)) {
        train->device = "cuda";
        train->transport = args->values[TRANSPORT] ? args->values[TRANSPORT] : "cuda_ipc";
    } else if (lap_arg_backends(args->command, args->values[DEVICE], args->values[TRANSPORT],
                                &device, &transport)) {
        train->device = device->name;
        train->transport = transport->name;
    } else {
        return false;
    }
    if (!lap_ranks_gpus(args->command, args->values[GPU_SHARE], train->device, &train->gpus))
        return false;
    float peak = 0;
    if (!lap_train_rate(args, PEAK, 0, &peak))
        return false;
    train->peak_tflops = (double)peak;
    if (args->values[TIMEOUT] &&
        !lap_arg_timeout(args->command, args->values[TIMEOUT], &train->timeout_s))
        return false;
    return lap_ranks_suit(args->command, args->values[TRANSPORT], train->transport,
                          lap_train_ranks(train));
}

/* ---- overlap ---- */

/* The rules of the file, or the defaults, with the switches turned; and the same all off. */
static bool parse_overlap(lap_train_t *train, const lap_args_t *args)
{
    lap_tp_switches_t switches = LAP_TP_SWITCHES_INIT;
    train->rules_path = args->values[RULES];
    train->overlap = !args->given[NO_OVERLAP] && lap_train_ranks(train) > 1;
    train->compare = args->given[COMPARE];
    switches.overlap = train->grid.tp > 1;
    lap_status_t status = train->rules_path
                              ? lap_rules_load(train->rules_path, train->grid.tp, &train->rules)
                              : lap_tp_overlap_init(train->grid.tp, &train->rules);
    switches.overlap_ag = !args->given[NO_AG];
    switches.overlap_rs = !args->given[NO_RS];
    switches.overlap_rs_dgrad = args->given[RS_DGRAD];
    switches.bulk_dgrad = !args->given[NO_BULK_DGRAD];
    switches.bulk_wgrad = !args->given[NO_BULK_WGRAD];
    switches.automatic = train->switches.automatic;
    train->switches = switches;
    train->cache = !args->given[NO_CACHE];
    if (status == LAP_OK)
        status = lap_tp_overlap_switch(&train->rules, &switches);
    train->serial = train->rules;
    switches.overlap = 0;
    if (status == LAP_OK)
        status = lap_tp_overlap_switch(&train->serial, &switches);
    if (status != LAP_OK)
        lap_args_fail(args->command, "%s%s", train->rules_path ? "--tp-comm-overlap-cfg: " : "",
                      lap_last_error());
    if (train->rules_path)
        train->rules_path = lap_piped_name(train->rules_path);
    return status == LAP_OK;
}

static bool parse_link(lap_train_t *train, const lap_args_t *args)
{
    const char *text = args->values[LINK];
    if (!text)
        return true;
    return lap_arg_link(args->command, "--link", text, &train->link);
}

/* What --trace and --assert-hidden say. */
static bool parse_trace(lap_train_t *train, const lap_args_t *args)
{
    size_t format = LAP_TRACE_PERFETTO;
    const char *hidden = args->values[ASSERT_HIDDEN];
    train->trace_path = args->values[TRACE];
    train->report = args->values[REPORT];
    if (train->trace_path && train->report && lap_output_same(train->trace_path, train->report))
        return lap_args_wrong(args->command, "--trace and --report are both %s; expected two files",
                              train->report);
    train->trace_simulated = args->given[TRACE_SIMULATED];
    train->least_hidden = NAN;
    if (args->values[TRACE_FORMAT] &&
        !lap_arg_choice(args->command, "--trace-format", args->values[TRACE_FORMAT],
                        lap_trace_formats, &format))
        return false;
    train->trace_format = (lap_trace_format_t)format;
    if (hidden &&
        !lap_arg_real(args->command, "--assert-hidden", hidden, 0, 100, &train->least_hidden))
        return false;
    return true;
}

/* Whether the trace and the page can be written, before there is anything to put into them. */
static int check_files(const lap_train_t *train, const lap_command_t *command)
{
    const lap_trace_file_t file = {.path = train->trace_path}, page = {.report = train->report};
    lap_status_t status = lap_trace_file_check(&file);
    if (status != LAP_OK)
        return lap_args_refused(command, status, "--trace");
    status = lap_trace_file_check(&page);
    return status == LAP_OK ? LAP_CLI_GO : lap_args_refused(command, status, "--report");
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
    lap_arg_settle(args, TP, "%d", train->grid.tp);
    lap_arg_settle(args, CP_A2A, "%zu", desc->cp_a2a);
    lap_arg_settle(args, VIRTUAL_PP, "%zu", train->pipeline.virtual_stages);
    lap_arg_settle(args, SCHEDULE, "%s", train->pipeline.schedule);
    const char *layers = args->values[STAGE_LAYERS];
    lap_arg_settle(args, STAGE_LAYERS, "%s", layers ? layers : "even");
    lap_arg_settle(args, BATCH, "%zu", train->batch);
    lap_arg_settle(args, BATCH_SIZE, "%zu", train->batch / (size_t)train->grid.dp);
    lap_arg_settle(args, HIDDEN, "%zu", desc->hidden);
    lap_arg_settle(args, FFN, "%zu", lap_nn_ffn(desc));
    lap_arg_settle(args, EXPANSION, "as --ffn");
    lap_arg_settle(args, MICRO, "%d", train->micro);
    lap_arg_settle(args, MICRO_SIZE, "as --micro-batches");
    lap_arg_settle(args, SEQ, "%zu", desc->seq);
    lap_arg_settle(args, HEADS, "%zu", desc->heads);
    lap_arg_settle(args, KV_HEADS, "%zu", lap_nn_kv_heads(desc));
    lap_arg_settle(args, HEAD_DIM, "%zu", desc->head_dim);
    lap_arg_settle(args, VOCAB, "%zu", desc->vocab);
    lap_arg_settle(args, POSITIONS, "%s", lap_positions_names[desc->positions]);
    lap_arg_settle(args, MAX_POSITIONS, "%zu", desc->max_positions);
    settle_rate(args, EPSILON, desc->epsilon);
    settle_rate(args, INIT_STD, desc->init_std);
    settle_rate(args, ROPE_THETA, desc->rope_theta);
    settle_rate(args, ROPE_FACTOR, desc->rope_factor);
    settle_rate(args, ROPE_LOW, desc->rope_low_freq);
    settle_rate(args, ROPE_HIGH, desc->rope_high_freq);
    lap_arg_settle(args, ROPE_ORIGINAL, "%zu", desc->rope_original);
    lap_arg_settle(args, TIED, "%s", desc->tied ? "yes" : "no");
    lap_arg_settle(args, DTYPE, "%s", lap_dtype_name(desc->dtype));
    lap_arg_settle(args, FP8, "%s", lap_fp8_recipe_names[desc->fp8]);
    settle_rate(args, LR, train->optimizer.lr);
    settle_rate(args, WEIGHT_DECAY, train->optimizer.weight_decay);
    settle_rate(args, MIN_LR, train->optimizer.min_lr);
    lap_arg_settle(args, LR_DECAY_ITERS, "%zu", train->optimizer.lr_decay_steps);
    settle_rate(args, BETA1, train->optimizer.beta1);
    settle_rate(args, BETA2, train->optimizer.beta2);
    settle_rate(args, ADAM_EPSILON, train->optimizer.epsilon);
    settle_rate(args, ATTENTION_DROPOUT, desc->attention_dropout);
    settle_rate(args, HIDDEN_DROPOUT, desc->hidden_dropout);
    settle_rate(args, CLIP, train->optimizer.clip_norm);
    if (train->dynamic)
        lap_arg_settle(args, LOSS_SCALE, "dynamic");
    else
        settle_rate(args, LOSS_SCALE, (float)train->scale.scale);
    lap_arg_settle(args, AUTO, "%s", train->switches.automatic ? "yes" : "no");
    lap_arg_settle(args, SHUFFLE, "%s", train->shuffle ? "yes" : "no");
    if (train->data_seed == train->desc.seed)
        lap_arg_settle(args, DATA_SEED, "as --seed");
    else
        lap_arg_settle(args, DATA_SEED, "%" PRIu64, train->data_seed);
    lap_arg_settle(args, GRAD_DTYPE, "%s", lap_dtype_name(train->replicas.wire_dtype));
    lap_arg_settle(args, BUCKET, "%zu", train->replicas.bucket);
    lap_arg_settle(args, DEVICE, "%s", train->device);
    lap_arg_settle(args, TRANSPORT, "%s", train->transport);
    lap_arg_settle(args, TRACE, "%s", train->trace_path ? "given" : "not given");
    lap_arg_settle(args, REPORT, "%s", train->report ? "given" : "not given");
}

int lap_train_parse(const lap_command_t *command, bool runs, int argc, char **argv,
                    lap_train_t *train_p)
{
    static const size_t pairs[][2] = {{FFN, EXPANSION}, {MICRO, MICRO_SIZE}, {BATCH, BATCH_SIZE}};
    static const lap_config_use_t use = {
        .option = CONFIG, .keys = KEYS, .pairs = pairs, .npairs = sizeof(pairs) / sizeof(pairs[0])};
    lap_args_t args;
    const char *unused;
    bool line[LAP_OPTIONS_MAX];
    int status = lap_config_parse(command, &use, argc, argv, &args, line, &unused);
    if (status != LAP_CLI_GO)
        return status;
    lap_train_t train = {.grid = LAP_GRID_INIT,
                         .pipeline = LAP_PP_OPTIONS_INIT,
                         .replicas = LAP_DP_OPTIONS_INIT,
                         .desc = LAP_NN_DESC_INIT,
                         .optimizer = LAP_OPTIMIZER_DESC_INIT};
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
    /* Only what runs can measure; a file of rules is there to be followed. */
    train.switches.automatic = runs && command == &lap_train_command && !args.values[RULES];
    if (!lap_arg_yes(&args, AUTO, &train.switches.automatic) || !parse_ranks(&train, &args) ||
        !parse_context(&train, &args) || !parse_backends(&train, &args, runs) ||
        !lap_train_kinds(&train, &args) || !lap_train_pipeline(&train, &args) ||
        !lap_train_shape(&train, &args) ||
        (train.config && !lap_config_fits(command, &train.desc)) ||
        !parse_training(&train, &args) || !lap_train_sense(&train, &args, line) ||
        !parse_overlap(&train, &args) || !parse_link(&train, &args) || !parse_trace(&train, &args))
        return LAP_CLI_USAGE;
    status = check_files(&train, command);
    if (status != LAP_CLI_GO)
        return status;
    train.apart = train.trace && strcmp(train.device, "cuda") == 0 && train.iters >= 3;
    train.predicts = !args.given[NO_PREDICT];
    settle(&train, &args);
    train.args = args;
    *train_p = train;
    return LAP_CLI_GO;
}
