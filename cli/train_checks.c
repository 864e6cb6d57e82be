/* SPDX-License-Identifier: Apache-2.0 */
/* What the command line of `lap train` says that makes no sense together, or not for so many ranks. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/environment.h"
#include "core/status.h"
#include "heads.h"
#include "nn/list.h"
#include "nn/nn_fields.h"
#include "nn/plan.h"
#include "parallel/grid.h"
#include "parallel/stage.h"
#include "ranks.h"
#include "schedule/target.h"
#include "train_options.h"

/* Options that say nothing with the others, and why: the first that is given is refused. */
typedef struct useless {
    bool is;
    const char *why;
    const int *options; /* NOPTIONS at the end */
} useless_t;

#define LIST(...) ((const int[]){__VA_ARGS__, NOPTIONS})

/* One replica takes options of several, since the same command serves any number of them. */
bool lap_train_alone(const lap_train_t *train, char text[LAP_TRAIN_ALONE_TEXT])
{
    static const int options[] = {GRAD_DTYPE,  BUCKET,           BUCKET_BY,  NO_OVERLAP_GRAD,
                                  DISTRIBUTED, NO_OVERLAP_PARAM, FP8_PARAMS, OVERLAP_STEP};
    size_t used = 0;
    if (train->grid.dp * train->grid.cp > 1)
        return false;
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
        if (train->args.given[options[i]])
            used += (size_t)snprintf(text + used, LAP_TRAIN_ALONE_TEXT - used, "%s--%s",
                                     used ? ", " : "without effect with one replica: ",
                                     lap_train_options[options[i]].name);
    return used > 0;
}

/* `line`: what the command line itself has; a file may have more than is of use. */
bool lap_train_sense(const lap_train_t *train, const lap_args_t *args, const bool *line)
{
    const lap_nn_kind_t kind = train->desc.kind;
    const bool model = kind == LAP_NN_MODEL, transformer = lap_nn_is_transformer(&train->desc);
    const bool attends = lap_nn_has_attention(&train->desc);
    const bool mlp = kind == LAP_NN_LAYERNORM_MLP || transformer;
    const bool tunes = strcmp(args->command->name, "lap tune") == 0;
    const bool alone = train->grid.dp * train->grid.cp == 1;
    const useless_t rows[] = {
        {model, "has no effect on a model; expected no --model with it", LIST(LAYER)},
        {!model, "is for language models; expected --model with it",
         LIST(VOCAB, TIED, DATA, ATTENTION_DROPOUT, HIDDEN_DROPOUT)},
        {train->desc.shards <= 1 && !alone,
         "is for a shared optimizer; expected --distributed-optimizer",
         LIST(NO_OVERLAP_PARAM, FP8_PARAMS, OVERLAP_STEP)},
        {!train->replicas.overlap_weights,
         "is for weights gathered during forward; expected no --no-overlap-param-sync",
         LIST(OVERLAP_STEP)},
        {train->desc.fp8 == LAP_FP8_NONE, "is for weights in FP8; expected --fp8 with it",
         LIST(FP8_PARAMS)},
        {train->grid.pp == 1, "is for pipelines; expected --pp 2 or more with it",
         LIST(VIRTUAL_PP, SCHEDULE, STAGE_LAYERS, NO_OVERLAP_P2P)},
        {!train->data, "is for files of tokens; expected --data with it", LIST(DATA_ENDS)},
        {!attends, "is for attention; expected --model, --layer attention or transformer",
         LIST(POSITIONS)},
        {!attends, "is for attention; expected --layer attention or transformer", LIST(KV_HEADS)},
        {train->desc.positions != LAP_POSITIONS_ROPE,
         "is for rotary positions; expected a model with them, or --positions rope",
         LIST(ROPE_THETA, ROPE_FACTOR, ROPE_LOW, ROPE_HIGH, ROPE_ORIGINAL)},
        {!model || train->desc.positions != LAP_POSITIONS_LEARNED,
         "is for learned positions; expected a model with them, or --positions learned",
         LIST(MAX_POSITIONS)},
        {!attends && args->given[HIDDEN],
         "has no effect with --hidden on a layer without attention", LIST(HEADS, HEAD_DIM)},
        {!mlp, "is for the MLP; expected --layer layernorm_mlp or transformer",
         LIST(ACTIVATION, FFN, EXPANSION)},
        {kind == LAP_NN_LINEAR, "has no effect on --layer linear; expected another layer",
         LIST(NORM, EPSILON, RECOMPUTE)},
        {!model, "is for language models, whose sequences ranks share; expected --model with it",
         LIST(CP, CP_COMM, CP_A2A)},
        {train->grid.cp == 1, "is for context parallel; expected --cp 2 or more",
         LIST(CP_COMM, CP_A2A)},
        {train->desc.cp_comm != LAP_CP_A2A_P2P,
         "is for --cp-comm-type a2a+p2p; expected that with it", LIST(CP_A2A)},
        {lap_train_ranks(train) == 1, "is for ranks that communicate; expected 2 ranks or more",
         LIST(COMPARE, LINK, ASSERT_HIDDEN)},
        {train->optimizer.kind == LAP_SGD, "is for AdamW; expected --optimizer adamw",
         LIST(BETA1, BETA2, ADAM_EPSILON)},
        {train->optimizer.lr_decay == LAP_LR_CONSTANT,
         "needs a learning rate that falls; expected --lr-decay-style linear or cosine",
         LIST(LR_DECAY_ITERS, MIN_LR)},
        {!train->save, "needs a place; expected --save DIR with it", LIST(SAVE_EVERY, KEEP)},
        {!train->data, "is for files of tokens; expected --data with it", LIST(SHUFFLE, DATA_SEED)},
        {!train->shuffle, "is for samples in a random order; expected no --shuffle=no with it",
         LIST(DATA_SEED)},
        {!train->dynamic, "is for a scale that changes; expected --loss-scale dynamic",
         LIST(INITIAL_SCALE, SCALE_WINDOW, MIN_SCALE, HYSTERESIS)},
        {!args->given[TRACE], "needs a file; expected --trace FILE.json with it",
         LIST(TRACE_FORMAT)},
        {!args->given[TRACE] && !args->given[REPORT],
         "needs a file; expected --trace FILE.json or --report FILE.html with it",
         LIST(TRACE_SIMULATED)},
        {args->given[NO_PREDICT], "needs a prediction; expected no --no-predict with it",
         LIST(TRACE_SIMULATED)},
        {args->given[NO_TRACE], "needs traces; expected no --no-trace with it",
         LIST(TRACE, REPORT, ASSERT_HIDDEN)},
        {tunes, "is for a training; expected lap train with it",
         LIST(SAVE, LOAD, COMPARE, TRACE, REPORT, ASSERT_HIDDEN)},
        {!train->switches.automatic && !tunes, "is for what --auto uses; expected --auto with it",
         LIST(NO_CACHE)},
        {args->given[COMPARE], "is for one training; expected no --compare with it",
         LIST(SAVE, LOAD)},
        {args->given[NO_SEQUENCE_PARALLEL],
         "needs sequence parallelism; expected no --no-sequence-parallel with it",
         LIST(NO_AG, RS_DGRAD, NO_BULK_WGRAD)},
        {args->given[NO_OVERLAP] && train->switches.automatic,
         "needs overlap; expected no --no-comm-overlap with it", LIST(AUTO)},
        {args->given[NO_OVERLAP], "needs overlap; expected no --no-comm-overlap with it",
         LIST(COMPARE, RULES, NO_AG, NO_RS, RS_DGRAD, NO_BULK_DGRAD, NO_BULK_WGRAD)},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (const int *option = rows[i].options; rows[i].is && *option != NOPTIONS; option++)
            if (line[*option])
                return lap_args_wrong(args->command, "--%s %s", lap_train_options[*option].name,
                                      rows[i].why);
    return true;
}

lap_status_t lap_train_target(const lap_train_t *train, const lap_target_t **target_p)
{
    const bool nccl = strcmp(train->transport, "nccl") == 0;
    const bool cuda = strcmp(train->device, "cuda") == 0;
    return lap_target_find(nccl ? "nccl" : cuda ? "cuda" : "cpu", target_p);
}

/* Of the rank of a pipeline that has most. */
static lap_status_t stage_bytes(const lap_train_t *train, double moments, double *bytes_p)
{
    const lap_pp_options_t options = lap_train_stages(train, true);
    lap_stages_t stages;
    lap_status_t status = lap_stage_plan(&train->desc, train->grid.pp, &options, &stages);
    *bytes_p = 0;
    for (int r = 0; r < train->grid.pp && status == LAP_OK; r++) {
        lap_nn_plan_t plan;
        lap_nn_cut_t cut;
        double bytes = 0;
        status = lap_stages_cut(&stages, (uint32_t)r, &cut);
        if (status == LAP_OK)
            status = lap_nn_plan_stage(&train->desc, train->grid.tp, &cut, &plan);
        if (status == LAP_OK)
            status = lap_nn_list_bytes(&plan, 0, NULL, moments, &bytes);
        *bytes_p = bytes > *bytes_p ? bytes : *bytes_p;
    }
    lap_stages_clear(&stages);
    return status;
}

lap_status_t lap_train_device_bytes(const lap_train_t *train, double *bytes_p)
{
    const double moments = train->optimizer.kind == LAP_SGD ? 4 : 8; /* bytes of a weight */
    lap_nn_plan_t plan;
    lap_status_t status;
    *bytes_p = 0;
    if (train->grid.pp > 1) {
        status = stage_bytes(train, moments, bytes_p);
    } else {
        LAP_TRY(lap_nn_plan_init(&train->desc, train->grid.tp, &plan));
        status = lap_nn_list_bytes(&plan, 0, NULL, moments, bytes_p);
    }
    *bytes_p *= train->compare ? 2 : 1;
    return status;
}

/* What this machine has, or as much of it as the ranks of several have on each. */
static int check_memory(const lap_train_t *train, int nranks)
{
    const double there = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    double needed;
    const lap_status_t status = lap_train_device_bytes(train, &needed);
    const bool refused = status == LAP_ERR_NO_MEMORY && needed > there; /* for one matrix alone */
    const bool cuda = strcmp(train->device, "cuda") == 0;
    if (status != LAP_OK && (!refused || cuda))
        return lap_args_refused(train->args.command, status, "");
    needed *= lap_ranks_here(nranks);
    if (needed <= there || cuda)
        return LAP_CLI_GO;
    return lap_args_fail(train->args.command,
                         "this needs %s %.4g GiB of memory; expected at most %.4g GiB, which this "
                         "machine has",
                         refused ? "more than" : "about", needed / (1 << 30), there / (1 << 30));
}

/* Where ranks cannot share heads, the sentence says what would do. */
static void advise(const lap_train_t *train, int option, char *sentence, size_t bytes)
{
    char advice[LAP_HEADS_TEXT];
    if ((option != HEADS && option != KV_HEADS) || train->desc.heads == 0 ||
        lap_heads_divide(&train->desc, (size_t)train->grid.tp))
        return;
    /* All ranks of a launcher must have a place in the grid. */
    const size_t tp = (size_t)train->grid.tp, dp = (size_t)train->grid.dp;
    const bool started = lap_environment_launched();
    lap_heads_advise(&train->desc, tp, started ? tp * dp : 0, started, advice);
    const size_t used = strlen(sentence);
    snprintf(sentence + used, bytes - used, " (%s would do)", advice);
}

int lap_train_refuse(const lap_train_t *train, lap_status_t status)
{
    const lap_command_t *command = train->args.command;
    char sentence[LAP_ERROR_TEXT];
    const int option = lap_args_of_field(command, lap_last_error(), sentence, sizeof(sentence));
    if (option >= 0) {
        advise(train, option, sentence, sizeof(sentence));
        status = lap_error(status, "%s", sentence);
    }
    return lap_args_refused(command, status, "");
}

int lap_train_check(const lap_train_t *train, int nranks)
{
    const lap_nn_desc_t desc = lap_train_layers(train, train->overlap);
    lap_status_t status = lap_grid_check(&train->grid, nranks);
    if (status == LAP_OK)
        status = lap_nn_validate(&desc, train->grid.tp);
    const lap_pp_options_t options = lap_train_stages(train, true);
    if (status == LAP_OK && train->grid.pp > 1)
        status = lap_pp_validate(&desc, train->grid.tp, train->grid.pp, &options);
    if (status == LAP_OK)
        status = lap_optimizer_validate(&train->optimizer);
    if (status == LAP_OK)
        status = lap_train_data_check(train);
    if (status != LAP_OK)
        return lap_train_refuse(train, status);
    /* Ranks of a launcher first compare their command lines, and look for it together then. */
    const int found = lap_environment_launched() ? LAP_CLI_GO : lap_train_load_check(train);
    return found == LAP_CLI_GO ? check_memory(train, nranks) : found;
}
