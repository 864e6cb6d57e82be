/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lap check train`: links the whole pass of a `lap train` with the same options, for all ranks that
 * share weights, and proves it. Runs nothing, and needs neither ranks nor a GPU.
 */
#include <string.h>

#include <lap/lap.h>

#include "about.h"
#include "nn/program.h"
#include "train.h"
#include "util/clock.h"

/* NCCL is asked for as a transport; else the device says which target it is. */
static lap_status_t find_target(const lap_train_t *train, const lap_target_t **target_p)
{
    const bool nccl = train->transport && strcmp(train->transport, "nccl") == 0;
    const bool cuda = strcmp(train->device, "cuda") == 0;
    return lap_target_find(nccl ? "nccl" : cuda ? "cuda" : "cpu", target_p);
}

static void print_text(const lap_train_t *train, const lap_target_t *target,
                       const lap_nn_proof_t *proof, lap_status_t status, double seconds)
{
    printf("%s, %zu layer%s, %d rank%s, target %s\n", lap_nn_kind_name(train->desc.kind),
           train->desc.layers, train->desc.layers == 1 ? "" : "s", train->tp,
           train->tp == 1 ? "" : "s", target->name);
    if (status != LAP_OK) {
        printf("not safe: %s\n", lap_last_error());
        return;
    }
    printf("forward, loss and backward are proved safe in %.2f s\n", seconds);
    printf("launches per rank: %zu (%zu operators, %zu kernels), of %zu steps with %zu links\n",
           proof->fragments, proof->fragments - proof->kernels, proof->kernels, proof->steps,
           proof->links);
    printf("memory per rank: %zu bytes (activations %zu, parameters and gradients %zu, symmetric "
           "%zu)\n",
           proof->private_bytes + proof->lasting_bytes + proof->symmetric_bytes,
           proof->private_bytes, proof->lasting_bytes, proof->symmetric_bytes);
    if (train->replicas > 1)
        printf("gradients on their way to other replicas are not part of the proof\n");
}

static void print_json(const lap_train_t *train, const lap_target_t *target,
                       const lap_nn_proof_t *proof, lap_status_t status, double seconds)
{
    printf("{\"layer\":\"%s\",\"layers\":%zu,\"tp\":%d,\"target\":\"%s\",\"ok\":%s",
           lap_nn_kind_name(train->desc.kind), train->desc.layers, train->tp, target->name,
           status == LAP_OK ? "true" : "false");
    lap_json_text("error", status == LAP_OK ? NULL : lap_last_error());
    printf(",\"launches\":%zu,\"kernels\":%zu,\"steps\":%zu,\"links\":%zu", proof->fragments,
           proof->kernels, proof->steps, proof->links);
    printf(",\"activation_bytes\":%zu,\"parameter_bytes\":%zu,\"symmetric_bytes\":%zu",
           proof->private_bytes, proof->lasting_bytes, proof->symmetric_bytes);
    printf(",\"seconds\":%.3f", seconds);
    lap_about_json(train->device);
    printf("}\n");
}

int lap_cli_check_train(int argc, char **argv)
{
    lap_train_t train;
    lap_nn_plan_t plan;
    lap_nn_proof_t proof = {.steps = 0};
    const lap_target_t *target;
    const int result = lap_train_parse(argc, argv, &train);
    if (result != LAP_CLI_GO)
        return result;
    lap_nn_desc_t desc = train.desc;
    desc.overlap = train.overlap ? &train.rules : &train.serial;
    lap_status_t status = find_target(&train, &target);
    if (status == LAP_OK)
        status = lap_nn_plan_init(&desc, train.tp, &plan);
    if (status != LAP_OK)
        return lap_args_refused(&lap_train_command, status, "");
    const uint64_t begin = lap_now_ns();
    status = lap_nn_prove(&plan, target, &proof);
    const double seconds = (double)(lap_now_ns() - begin) * 1e-9;
    if (status != LAP_OK && status != LAP_ERR_CHECK)
        return lap_args_refused(&lap_train_command, status, "");
    if (train.json)
        print_json(&train, target, &proof, status, seconds);
    else
        print_text(&train, target, &proof, status, seconds);
    return status == LAP_OK ? LAP_CLI_OK : LAP_CLI_FAILED;
}
