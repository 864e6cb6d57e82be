/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lap check train --guard`: makes steps of the training on the device ref, whose kernels reach nothing but their
 * operands; and `lap check --guard`, the same of a list of trainings.
 */
#include "check_guard.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli.h"
#include "core/status.h"
#include "device/host/host_guard.h"
#include "ranks.h"
#include "tune.h"

/* The first pass of a step has other kernels than those that follow, and the third is as all others. */
#define STEPS 3

/* ---- one training ---- */

static lap_status_t make_steps(lap_train_model_t *model)
{
    lap_trainer_t *trainer = &model->trainer;
    lap_trainer_join(trainer, lap_train_joins(model->train, false), true);
    for (int step = 0; step < STEPS; step++)
        LAP_TRY(lap_trainer_step(trainer, NULL));
    return LAP_OK;
}

static lap_status_t run_steps(lap_train_t *train, const lap_grid_groups_t *groups)
{
    lap_train_model_t model = {.train = NULL};
    LAP_TRY(lap_host_guard_start());
    LAP_TRY(lap_tune_use(train, groups->world));
    lap_status_t status =
        lap_train_model_init(&model, train, groups, train->overlap, false, (lap_link_t){0, 0});
    if (status == LAP_OK)
        status = make_steps(&model);
    lap_train_model_clear(&model);
    return status;
}

/* Processes count for themselves, threads together. */
static void print_count(const lap_train_t *train, int rank)
{
    if (rank != 0)
        return;
    if (train->json)
        printf("{\"guarded_steps\":%d,\"guarded_kernels\":%" PRIu64 "}\n", STEPS,
               lap_host_guard_count());
    else
        printf("%d steps on ref: %" PRIu64 " kernels of the first rank touched nothing but their "
               "operands\n",
               STEPS, lap_host_guard_count());
}

static int run_rank(const void *context, lap_world_t *world)
{
    lap_train_t train = *(const lap_train_t *)context;
    lap_grid_groups_t groups;
    const int rank = lap_world_rank(world);
    lap_status_t status = lap_grid_groups_init(&groups, &train.grid, lap_world_group(world));
    if (status == LAP_OK)
        status = run_steps(&train, &groups);
    lap_grid_groups_clear(&groups);
    if (status != LAP_OK)
        return lap_ranks_fail(train.args.command->name, rank, status);
    print_count(&train, rank);
    return LAP_CLI_OK;
}

int lap_check_guarded(const lap_train_t *given, char *const *again)
{
    lap_train_t train = *given;
    train.device = "ref";
    train.iters = STEPS;
    train.save = train.load = NULL;
    return lap_train_start(&train, run_rank, &train, again);
}

/* ---- the list ---- */

#define GPT                                                                                        \
    "--auto=no", "--model", "gpt", "--layers", "2", "--hidden", "24", "--heads", "12", "--vocab",  \
        "61", "--seq", "12", "--global-batch", "8"
#define LLAMA                                                                                      \
    "--auto=no", "--model", "llama", "--layers", "2", "--hidden", "32", "--heads", "8",            \
        "--kv-heads", "4", "--vocab", "61", "--seq", "12", "--global-batch", "8"
#define MOST_WORDS 40

static const char *const trainings[][MOST_WORDS] = {
    {GPT, "--tp", "1", "--dtype", "fp32"},
    {GPT, "--tp", "2", "--dtype", "bf16", "--recompute", "selective", "--clip-grad", "0.5"},
    {GPT, "--tp", "1", "--dtype", "fp16", "--loss-scale", "dynamic", "--attention-dropout", "0.1",
     "--hidden-dropout", "0.1"},
    {GPT, "--tp", "1", "--cp", "2", "--dtype", "fp32"},
    {GPT, "--tp", "2", "--cp", "2", "--cp-comm-type", "a2a", "--dtype", "fp32"},
    {GPT, "--tp", "1", "--pp", "2", "--micro-batches", "4", "--schedule", "zb-h1", "--dtype",
     "fp32"},
    {GPT, "--tp", "1", "--dp", "2", "--distributed-optimizer", "--bucket-size", "2000", "--dtype",
     "bf16"},
    {LLAMA, "--tp", "2", "--dtype", "bf16", "--micro-batches", "2"},
    {LLAMA, "--tp", "2", "--dp", "2", "--fp8", "--distributed-optimizer", "--fp8-param-gather",
     "--dtype", "bf16"},
    {"--auto=no", "--layer", "layernorm_mlp", "--heads", "12", "--head-dim", "4", "--seq", "12",
     "--batch", "4", "--tp", "2", "--optimizer", "sgd", "--dtype", "fp32"},
};
#define TRAININGS (sizeof(trainings) / sizeof(trainings[0]))

/* Its words begin with "lap check", as the command was given them: check_train starts ranks with them. */
static int check_one(const char *const *words)
{
    char *argv[MOST_WORDS + 5] = {"check", "train", "--guard"};
    int argc = 3;
    printf("lap check train --guard");
    for (; *words; words++) {
        argv[argc++] = (char *)(uintptr_t)*words;
        printf(" %s", *words);
    }
    printf("\n");
    return lap_cli_check_train(argc - 1, argv + 1);
}

/* Each in a process of its own, which ends with its streams and its memory. */
int lap_check_guard_all(void)
{
    int failed = 0;
    for (size_t i = 0; i < TRAININGS; i++) {
        int status = -1;
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            const int result = check_one(trainings[i]);
            fflush(stdout);
            _exit(result);
        }
        if (child < 0 || waitpid(child, &status, 0) != child) {
            lap_tell("lap check", "cannot start a process");
            return LAP_CLI_FAILED;
        }
        failed += !WIFEXITED(status) || WEXITSTATUS(status) != LAP_CLI_OK;
    }
    printf("\n%zu trainings, %d failed\n", TRAININGS, failed);
    return failed > 0 ? LAP_CLI_FAILED : LAP_CLI_OK;
}
