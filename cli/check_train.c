/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lap check train`: links the whole pass of a `lap train` with the same options, for all ranks that
 * share weights and their replicas, and proves it. Runs nothing, and needs neither ranks nor a GPU.
 */
#include <inttypes.h>
#include <stdio.h>

#include <lap/lap.h>

#include "about.h"
#include "check_guard.h"
#include "core/environment.h"
#include "core/status.h"
#include "nn/nn_fields.h"
#include "nn/program.h"
#include "option_rows.h"
#include "parallel/stage_prove.h"
#include "ranks.h"
#include "schedule/trace.h"
#include "shared_options.h"
#include "train.h"
#include "tune.h"
#include "util/clock.h"

enum { TARGET, GUARD, NOPTIONS };

typedef struct request {
    lap_train_t train;          /* first: see lap_train_extend */
    const lap_target_t *target; /* NULL: that of the device */
    bool guards;
} request_t;

#define OPTIONS_OF request_t
static const lap_option_t own[NOPTIONS] = {
    [TARGET] = {LAP_OPTION_TARGET_OF_DEVICE, TARGET_OF(target)},
    [GUARD] = {0, "guard", NULL, "also make steps on ref, where kernels reach only their operands",
               NULL, ON(guards)},
};

static lap_train_form_t form = {
    .command = {
        .name = "lap check train",
        .usage = "[OPTIONS]",
        .summary =
            "Proves forward, loss, backward and the optimizer's step of a lap train with the\n"
            "same options, for all ranks, and says what a rank launches and needs.",
        .details =
            "--guard then makes three steps on the device ref. Each kernel, GEMM, copy and sum\n"
            "gets copies of the operands that it was proved with, which end, and then begin,\n"
            "where no memory is; matrices of the layers are out of reach meanwhile. A touch of\n"
            "anything else, a write into what is only read, and a result that depends on bytes\n"
            "that are not declared to be read end the command with a sentence. What a transport\n"
            "sends, and numbers in memory that the host shares, such as the loss, are not\n"
            "guarded; nor are the kernels of other devices.",
        .exit_status = "  0  they are safe\n"
                       "  1  it is not; the sentence says why\n"
                       "  2  the command line is wrong, or the target cannot do a method",
    }};

/* ---- memory ---- */

/*
 * What a rank on CPUs has resident, whatever it trains, as measured: the code of lap, libc and OpenBLAS; and buffers of
 * GEMMs, OpenBLAS's own with float32, and with other types half of these and the tiles that are converted.
 */
#define CODE_BYTES ((size_t)5400000)
#define FLOAT_GEMM_BYTES ((size_t)2700000)
#define OTHER_GEMM_BYTES ((size_t)4400000)

enum {
    ACTIVATIONS,
    PARAMETERS,
    SCRATCH,
    SYMMETRIC,
    OPTIMIZER,
    DATA,
    BUCKETS,
    PROGRAMS,
    TRACES,
    PROCESS,
    PARTS
};

static const struct {
    const char *name, *key;
} parts[PARTS] = {
    [ACTIVATIONS] = {"activations", "activation_bytes"},
    [PARAMETERS] = {"parameters and gradients", "parameter_bytes"},
    [SCRATCH] = {"scratch of operators", "scratch_bytes"},
    [SYMMETRIC] = {"symmetric buffer", "symmetric_bytes"},
    [OPTIMIZER] = {"state of the optimizer", "optimizer_bytes"},
    [DATA] = {"x, target, y and dx", "data_bytes"},
    [BUCKETS] = {"buckets of gradients", "bucket_bytes"},
    [PROGRAMS] = {"programs", "program_bytes"},
    [TRACES] = {"traces of a step", "trace_bytes"},
    [PROCESS] = {"code, buffers of GEMMs", "process_bytes"},
};

/* The most ranks that exchange what they did. */
static size_t largest_group(const lap_train_t *train)
{
    const int sharers = train->grid.cp * train->grid.dp;
    return (size_t)(train->grid.tp > sharers ? train->grid.tp : sharers);
}

/*
 * A timeline of this rank and all micro-batches, in twice the room at most, and traces of its calls. And what the
 * ranks of a group exchange: these calls and all that each computes, its own and that of all.
 */
static size_t trace_bytes(const lap_train_t *train, const lap_nn_proof_t *proof)
{
    const size_t passes = train->grid.pp > 1 ? 1 : (size_t)train->micro; /* of the program */
    const size_t shared = proof->shared_records;
    const size_t exchanged = shared > 0 ? shared + proof->records : 0;
    return (2 * passes * proof->records + shared + (1 + largest_group(train)) * exchanged) *
           sizeof(lap_trace_record_t);
}

static size_t process_bytes(const lap_train_t *train)
{
    const bool floats = train->desc.dtype == LAP_FLOAT32 && !train->desc.fp8;
    return CODE_BYTES + (floats ? FLOAT_GEMM_BYTES : OTHER_GEMM_BYTES);
}

/* Where the device has memory of its own, what lies in the host's is none of it. */
static size_t part_bytes(const lap_train_t *train, const lap_target_t *target,
                         const lap_nn_proof_t *proof, int part)
{
    const size_t host = target->device.own_memory ? 0 : 1;
    const size_t micro = (size_t)train->micro;
    const size_t moments = train->optimizer.kind == LAP_ADAMW ? 2 : 1; /* of a pipeline */
    const size_t bytes[PARTS] = {
        [ACTIVATIONS] = proof->private_bytes,
        [PARAMETERS] = proof->lasting_bytes,
        [SCRATCH] = proof->scratch_bytes,
        [SYMMETRIC] = proof->symmetric_bytes,
        [OPTIMIZER] =
            proof->state_bytes > 0 ? proof->state_bytes : moments * proof->weights * sizeof(float),
        /* each micro-batch has an x and a target */
        [DATA] = micro * proof->given_bytes + proof->made_bytes,
        [BUCKETS] = proof->bucket_bytes,
        [PROGRAMS] = host * proof->program_bytes,
        [TRACES] = host * trace_bytes(train, proof),
        [PROCESS] = host * process_bytes(train),
    };
    return bytes[part];
}

static size_t all_bytes(const lap_train_t *train, const lap_target_t *target,
                        const lap_nn_proof_t *proof)
{
    size_t sum = 0;
    for (int i = 0; i < PARTS; i++)
        sum += part_bytes(train, target, proof, i);
    return sum;
}

/* ---- replicas ---- */

#define MOST_RANKS 16 /* of a proof in a few seconds */

/* More than two show nothing new but larger numbers. */
static int proved_replicas(const lap_train_t *train)
{
    return train->grid.dp > 2 && lap_train_ranks(train) > MOST_RANKS ? 2 : train->grid.dp;
}

/* ---- pipelines ---- */

static lap_status_t prove_stages(const lap_train_t *train, const lap_nn_desc_t *desc,
                                 const lap_nn_linking_t *how, lap_nn_proof_t *proof_p)
{
    const lap_pp_options_t options = lap_train_stages(train, train->overlap);
    const lap_stage_proving_t proving = {
        .desc = desc, .tp = train->grid.tp, .pp = train->grid.pp, .options = &options, .how = *how};
    return lap_stage_prove(&proving, proof_p);
}

/* Where replicas share the optimizer, and not all are part of the proof: what one of all has. */
static lap_status_t count_shards(const lap_train_t *train, const lap_nn_desc_t *desc,
                                 lap_nn_proof_t *proof)
{
    lap_nn_plan_t plan;
    lap_nn_list_t list = {.nregions = 0};
    LAP_TRY(lap_nn_plan_init(desc, train->grid.tp, &plan));
    lap_status_t status = lap_nn_list_init(&list, &plan, 0, NULL);
    if (status == LAP_OK)
        status = lap_nn_list_step(&list, &train->optimizer, train->grid.tp);
    proof->lasting_bytes = list.bytes[LAP_NN_LASTING];
    proof->state_bytes = list.bytes[LAP_NN_STATE];
    lap_nn_list_clear(&list);
    return status;
}

static lap_status_t prove(const lap_train_t *train, const lap_nn_desc_t *desc,
                          const lap_target_t *target, lap_nn_proof_t *proof_p)
{
    const lap_nn_linking_t how = {.target = target,
                                  .replication =
                                      lap_train_replication(train, proved_replicas(train)),
                                  .optimizer = &train->optimizer,
                                  .separate_step = !lap_train_joins(train, false),
                                  .micros = (size_t)train->micro};
    lap_nn_plan_t plan;
    lap_nn_desc_t proved = *desc;
    if (desc->shards > 1)
        proved.shards = desc->cp * (size_t)proved_replicas(train);
    if (train->grid.pp > 1)
        return prove_stages(train, &proved, &how, proof_p);
    LAP_TRY(lap_nn_plan_init(&proved, train->grid.tp, &plan));
    LAP_TRY(lap_nn_prove_linking(&plan, &how, proof_p));
    return proved.shards == desc->shards ? LAP_OK : count_shards(train, desc, proof_p);
}

/* Whether the proof has the digest of a step: that of all programs that it runs, of all ranks. */
static bool has_digest(const lap_train_t *train)
{
    return lap_train_joins(train, false) && proved_replicas(train) == train->grid.dp;
}

/* ---- printing ---- */

static void print_text(const lap_train_t *train, const lap_target_t *target,
                       const lap_nn_proof_t *proof, lap_status_t status, double seconds)
{
    char replicas[48] = "";
    if (train->grid.dp > 1)
        snprintf(replicas, sizeof(replicas), " in each of %d replicas", train->grid.dp);
    const int ranks = train->grid.tp * train->grid.cp * train->grid.pp;
    printf("%s, %zu layer%s, %d rank%s%s, target %s\n", lap_nn_kind_name(train->desc.kind),
           train->desc.layers, train->desc.layers == 1 ? "" : "s", ranks, ranks == 1 ? "" : "s",
           replicas, target->name);
    if (train->grid.cp > 1)
        printf("context of %d ranks, %s\n", train->grid.cp, lap_cp_comm_names[train->desc.cp_comm]);
    if (train->grid.pp > 1)
        printf("pipeline of %d ranks, schedule %s, %d micro-batches\n", train->grid.pp,
               train->pipeline.schedule, train->micro);
    if (status != LAP_OK) {
        printf("not safe: %s\n", lap_last_error());
        return;
    }
    printf("%s proved safe in %.2f s\n",
           train->grid.pp > 1 ? "a step with all its messages and the optimizer's is"
                              : "forward, loss, backward and the optimizer's step are",
           seconds);
    printf("launches per rank: %zu (%zu operators, %zu kernels), of %zu steps with %zu links\n",
           proof->fragments, proof->fragments - proof->kernels, proof->kernels, proof->steps,
           proof->links);
    if (proof->automatic > 0)
        printf(
            "auto: %zu of these operators are proved as serial; they run with the method that is "
            "fastest when it is measured\n",
            proof->automatic);
    if (has_digest(train))
        printf("digest of a repeated step: %016" PRIx64 "\n", proof->digest);
    if (proof->launches < proof->fragments)
        printf("a pass that is repeated: %zu launch%s of graphs\n", proof->launches,
               proof->launches > 1 ? "es" : "");
    printf("memory per rank: %zu bytes\n", all_bytes(train, target, proof));
    for (int i = 0; i < PARTS; i++)
        if ((i != BUCKETS || train->grid.dp > 1) && (i < PROGRAMS || !target->device.own_memory))
            printf("  %-26s %14zu\n", parts[i].name, part_bytes(train, target, proof, i));
    if (proved_replicas(train) < train->grid.dp)
        printf("replicas: %d of %d are part of the proof\n", proved_replicas(train),
               train->grid.dp);
}

static void print_json(const lap_train_t *train, const lap_target_t *target,
                       const lap_nn_proof_t *proof, lap_status_t status, double seconds)
{
    lap_json_t json = {.file = stdout};
    lap_json_put(&json,
                 "{layer:%s layers:%zu tp:%d cp:%d pp:%d target:%s ok:%i error:%s launches:%zu "
                 "repeated_launches:%zu kernels:%zu proved_as_serial:%zu steps:%zu links:%zu",
                 lap_nn_kind_name(train->desc.kind), train->desc.layers, train->grid.tp,
                 train->grid.cp, train->grid.pp, target->name, status == LAP_OK,
                 status == LAP_OK ? NULL : lap_last_error(), proof->fragments, proof->launches,
                 proof->kernels, proof->automatic, proof->steps, proof->links);
    for (int i = 0; i < PARTS; i++)
        lap_json_put(&json, "%s:%zu", parts[i].key, part_bytes(train, target, proof, i));
    lap_json_put(&json, "bytes:%zu", all_bytes(train, target, proof));
    lap_json_digest(&json, has_digest(train) && status == LAP_OK ? proof->digest : 0);
    lap_json_put(&json, "seconds:%.3f", seconds);
    lap_about_json(&json, train->device);
    lap_json_put(&json, "}");
}

static int run(const lap_command_t *command, int argc, char **argv, char *const *again)
{
    request_t request = {.target = NULL};
    lap_train_t *const train = &request.train;
    lap_nn_proof_t proof = {.steps = 0};
    const int result = lap_train_parse(command, false, argc, argv, train);
    if (result != LAP_CLI_GO)
        return result;
    if (request.guards && lap_environment_launched())
        return lap_check_guarded(train, again);
    char alone[LAP_TRAIN_ALONE_TEXT];
    if (lap_train_alone(train, alone))
        lap_tell(command->name, "%s", alone);
    if (train->config && *train->config_unused)
        lap_tell(command->name, "%s: without effect: %s", train->config, train->config_unused);
    lap_status_t status = lap_tune_use(train, NULL);
    const lap_nn_desc_t desc = lap_train_layers(train, train->overlap);
    const lap_pp_options_t stages = lap_train_stages(train, train->overlap);
    const lap_target_t *target = request.target;
    if (status == LAP_OK && !target)
        status = lap_train_target(train, &target);
    if (status == LAP_OK)
        status = lap_nn_validate(&desc, train->grid.tp);
    if (status == LAP_OK && train->grid.pp > 1)
        status = lap_pp_validate(&desc, train->grid.tp, train->grid.pp, &stages);
    if (status != LAP_OK)
        return lap_train_refuse(train, status);
    const uint64_t begin = lap_now_ns();
    status = prove(train, &desc, target, &proof);
    const double seconds = (double)(lap_now_ns() - begin) * 1e-9;
    if (status != LAP_OK && status != LAP_ERR_CHECK)
        return lap_train_refuse(train, status);
    if (train->json)
        print_json(train, target, &proof, status, seconds);
    else
        print_text(train, target, &proof, status, seconds);
    if (status != LAP_OK)
        return LAP_CLI_FAILED;
    return request.guards ? lap_check_guarded(train, again) : LAP_CLI_OK;
}

/* argv[-1] is "check": ranks are started with both words. */
int lap_cli_check_train(int argc, char **argv)
{
    const lap_command_t *command = lap_train_extend(&form, own, NOPTIONS);
    char **again = lap_ranks_arguments(command, argc + 1, argv - 1);
    if (!again)
        return LAP_CLI_FAILED;
    return lap_ranks_end(again, run(command, argc, argv, again));
}
