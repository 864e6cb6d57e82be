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

/* ---- ranks ---- */

int lap_train_ranks(const lap_train_t *train)
{
    return (int)lap_grid_ranks(&train->grid, LAP_SLICE_WORLD);
}

/* Tensor-parallel ranks where nobody says how many: those that a launcher has left. */
static void choose_tp(lap_train_t *train)
{
    lap_environment_t environment;
    lap_grid_t *grid = &train->grid;
    const int64_t others = lap_grid_ranks(grid, LAP_SLICE_WORLD & ~LAP_SLICE_TP);
    grid->tp =
        train->model ? 1 : 4; /* layers by themselves are there for their tensor parallelism */
    if (lap_environment_launched() && lap_environment_read(&environment) == LAP_OK)
        grid->tp = environment.size > others ? (int)(environment.size / others) : 1;
}

static bool check_ranks(const lap_train_t *train)
{
    const int64_t ranks = lap_grid_ranks(&train->grid, LAP_SLICE_WORLD);
    char text[LAP_GRID_TEXT];
    if (ranks <= LAP_LAUNCH_MAX)
        return true;
    lap_grid_text(&train->grid, text);
    return lap_args_wrong(train->args.command, "a grid of %s is %lld ranks; expected at most %d",
                          text, (long long)ranks, LAP_LAUNCH_MAX);
}

/*
 * The first steps of AdamW move every weight by the rate, all of them in step: what a row of
 * weights gives then changes by the rate times its length. Wider layers would be thrown off at
 * once.
 */
static float adamw_rate(const lap_nn_desc_t *desc)
{
    return fminf(0.001f, 0.4f / (float)desc->hidden);
}

/*
 * Few steps, whatever --iters is: a run that goes on from a checkpoint has the rates of one that
 * was not interrupted. Who gives a rate, or its decay, gives its warm-up.
 */
static size_t choose_warmup(const lap_train_t *train)
{
    const lap_optimizer_desc_t *optimizer = &train->optimizer;
    const bool own = train->args.values[LR] || optimizer->lr_decay != LAP_LR_CONSTANT;
    return train->model && optimizer->kind == LAP_ADAMW && !own ? 10 : 0;
}

/* By default the decay ends with the run, which may be over before its warm-up is. */
static size_t choose_decay(const lap_train_t *train)
{
    const size_t steps = (size_t)train->iters, warmup = train->optimizer.warmup;
    if (train->optimizer.lr_decay == LAP_LR_CONSTANT)
        return 0;
    if (train->args.values[LR_DECAY_ITERS])
        return train->optimizer.lr_decay_steps;
    return steps > warmup ? steps : warmup + 1;
}

static bool settle_optimizer(lap_train_t *train)
{
    const lap_args_t *args = &train->args;
    lap_optimizer_desc_t *optimizer = &train->optimizer;
    const bool sgd = optimizer->kind == LAP_SGD;
    if (!args->values[LR])
        optimizer->lr = sgd ? 1 : adamw_rate(&train->desc);
    if (!args->values[WEIGHT_DECAY])
        optimizer->weight_decay = sgd ? 0 : 0.01f;
    if (!args->values[WARMUP])
        optimizer->warmup = choose_warmup(train);
    optimizer->lr_decay_steps = choose_decay(train);
    /* With 0 a weight without a gradient would be divided by 0. */
    return optimizer->epsilon > 0 ||
           lap_args_wrong(args->command, "--adam-eps is '%s'; expected a number above 0",
                          args->values[ADAM_EPSILON]);
}

/* A number above 0; or "dynamic", and what it needs. */
static bool settle_scale(lap_train_t *train)
{
    const lap_args_t *args = &train->args;
    const char *text = args->values[LOSS_SCALE];
    lap_loss_scale_t *scale = &train->scale;
    float fixed = 1;
    train->dynamic = text ? strcmp(text, "dynamic") == 0 : train->desc.dtype == LAP_FLOAT16;
    train->loss_scale = text ? text : train->dynamic ? "dynamic" : "1";
    if (text && !train->dynamic && !lap_arg_single(args, LOSS_SCALE, 0, &fixed))
        return false;
    if (!train->dynamic)
        scale->scale = (double)fixed;
    if (!train->dynamic && !(fixed > 0))
        return lap_args_wrong(args->command,
                              "--loss-scale is '%s'; expected a number above 0, or dynamic", text);
    if (train->dynamic &&
        (!(scale->scale > 0) || !(scale->least > 0) || scale->least > scale->scale))
        return lap_args_wrong(
            args->command,
            "--initial-loss-scale is %g and --min-loss-scale is %g; expected numbers above 0, the "
            "first not below the other",
            scale->scale, scale->least);
    lap_loss_scale_init(scale);
    return true;
}

static bool check_folders(const lap_args_t *args)
{
    for (const int *option = (const int[]){SAVE, LOAD, NOPTIONS}; *option != NOPTIONS; option++)
        if (args->given[*option] && !*args->values[*option])
            return lap_args_wrong(args->command, "--%s is ''; expected a folder",
                                  lap_train_options[*option].name);
    return true;
}

/* The order of samples. */
static void settle_order(lap_train_t *train)
{
    lap_args_t *args = &train->args;
    train->order_given = args->given[SHUFFLE] || args->given[DATA_SEED];
    if (!args->values[SHUFFLE])
        train->shuffle = train->data != NULL;
    if (!args->values[DATA_SEED])
        train->data_seed = train->desc.seed;
    if (train->data_seed == train->desc.seed) /* said or not: what differs is --seed */
        args->values[DATA_SEED] = NULL;
}

static void settle_replicas(lap_train_t *train)
{
    const lap_args_t *args = &train->args;
    lap_dp_options_t *replicas = &train->replicas;
    if (!args->given[BUCKET] && !replicas->by_layer)
        replicas->bucket = (size_t)1 << (strcmp(train->device, "cuda") == 0 ? 22 : 18);
    if (!args->given[DISTRIBUTED])
        return;
    train->desc.shards = (size_t)train->grid.cp * (size_t)train->grid.dp;
    train->desc.shard_bucket = replicas->bucket;
    train->desc.shard_by_layer = replicas->by_layer;
    train->desc.fp8_params = args->given[FP8_PARAMS];
}

static bool settle_training(lap_train_t *train)
{
    settle_order(train);
    settle_replicas(train);
    if (!train->model) /* as a file of --config may have it */
        train->desc.attention_dropout = train->desc.hidden_dropout = 0;
    return settle_optimizer(train) && check_folders(&train->args) && settle_scale(train);
}

/* ---- backends ---- */

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
    return lap_ranks_suit(args->command, args->values[TRANSPORT], train->transport,
                          lap_train_ranks(train));
}

/* ---- overlap ---- */

/* The rules of the file, or the defaults, with the switches turned; and the same all off. */
static bool make_rules(lap_train_t *train)
{
    const lap_args_t *args = &train->args;
    lap_tp_switches_t off = train->switches;
    train->overlap = !args->given[NO_OVERLAP] && lap_train_ranks(train) > 1;
    train->switches.overlap = train->grid.tp > 1;
    off.overlap = 0;
    lap_status_t status = train->rules_path
                              ? lap_rules_load(train->rules_path, train->grid.tp, &train->rules)
                              : lap_tp_overlap_init(train->grid.tp, &train->rules);
    if (status == LAP_OK)
        status = lap_tp_overlap_switch(&train->rules, &train->switches);
    train->serial = train->rules;
    if (status == LAP_OK)
        status = lap_tp_overlap_switch(&train->serial, &off);
    if (status != LAP_OK)
        lap_args_fail(args->command, "%s%s", train->rules_path ? "--tp-comm-overlap-cfg: " : "",
                      lap_last_error());
    if (train->rules_path)
        train->rules_path = lap_piped_name(train->rules_path);
    return status == LAP_OK;
}

static bool check_paths(const lap_train_t *train)
{
    if (!train->trace_path || !train->report || !lap_output_same(train->trace_path, train->report))
        return true;
    return lap_args_wrong(train->args.command,
                          "--trace and --report are both %s; expected two files", train->report);
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

/* What is there before any option is read, besides what the table has as defaults. */
static lap_train_t begin(void)
{
    return (lap_train_t){.grid = LAP_GRID_INIT,
                         .pipeline = LAP_PP_OPTIONS_INIT,
                         .replicas = LAP_DP_OPTIONS_INIT,
                         .desc = LAP_NN_DESC_INIT,
                         .optimizer = LAP_OPTIMIZER_DESC_INIT,
                         .switches = LAP_TP_SWITCHES_INIT,
                         .cache = true,
                         .trace = true,
                         .predicts = true,
                         .least_hidden = NAN};
}

/*
 * What is given counts more than what a model is by its name, and that more than the defaults of
 * the table.
 */
static bool read_options(lap_train_t *train)
{
    return lap_args_read(&train->args, false, train) && lap_train_kind(train) &&
           (!train->model || lap_args_read(&train->args, true, train));
}

int lap_train_parse(const lap_command_t *command, bool runs, int argc, char **argv,
                    lap_train_t *train)
{
    static const size_t pairs[][2] = {{FFN, EXPANSION}, {MICRO, MICRO_SIZE}, {BATCH, BATCH_SIZE}};
    static const lap_config_use_t use = {
        .option = CONFIG, .keys = KEYS, .pairs = pairs, .npairs = sizeof(pairs) / sizeof(pairs[0])};
    bool line[LAP_OPTIONS_MAX];
    *train = begin();
    lap_args_t *args = &train->args;
    const int status =
        lap_config_parse(command, &use, argc, argv, args, line, &train->config_unused);
    if (status != LAP_CLI_GO)
        return status;
    /* Only what runs can measure; a file of rules is there to be followed. */
    train->switches.automatic = runs && command == &lap_train_command && !args->values[RULES];
    if (!read_options(train))
        return LAP_CLI_USAGE;
    if (!args->values[TP])
        choose_tp(train);
    train->desc.cp = (size_t)train->grid.cp;
    train->desc.debug = train->debug;
    if (!check_ranks(train) || !parse_backends(train, args, runs) || !lap_train_pipeline(train) ||
        !lap_train_shape(train) || (train->config && !lap_config_fits(command, &train->desc)) ||
        !settle_training(train) || !lap_train_sense(train, args, line) || !make_rules(train) ||
        !check_paths(train))
        return LAP_CLI_USAGE;
    train->apart = train->trace && strcmp(train->device, "cuda") == 0 && train->iters >= 3;
    return check_files(train, command);
}
