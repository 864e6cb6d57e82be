/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the ranks of a subcommand come about: as processes that this one starts, as its threads, or
 * as what a launcher has made of it. What they do is the subcommand's.
 */
#include "ranks.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "core/make.h"
#include "core/status.h"
#include "failures.h"
#include "interrupt.h"
#include "launch.h"
#include "rendezvous.h"
#include "util/alloc.h"
#include "util/cores.h"
#include "util/thread.h"

void lap_ranks_warn(const char *name, int rank, lap_status_t status)
{
    char who[32] = "";
    if (rank >= 0)
        snprintf(who, sizeof(who), "rank %d: ", rank);
    lap_tell(name, "%s%s: %s", who, lap_status_string(status), lap_last_error());
}

int lap_ranks_fail(const char *name, int rank, lap_status_t status)
{
    char sentence[LAP_ERROR_TEXT + 64];
    lap_interrupt_stops();
    snprintf(sentence, sizeof(sentence), "%s: %s", lap_status_string(status), lap_last_error());
    if (rank < 0 || !lap_failure_report(name, sentence))
        lap_ranks_warn(name, rank, status);
    return LAP_CLI_FAILED;
}

char **lap_ranks_arguments(const lap_command_t *command, int argc, char **argv)
{
    static char program[] = "lap";
    char **again = lap_alloc((size_t)argc + 2, sizeof(*again));
    if (!again) {
        (void)lap_args_refused(
            command, lap_error(LAP_ERR_NO_MEMORY, "no memory for %d arguments", argc), "");
        return NULL;
    }
    again[0] = program;
    for (int i = 0; i < argc; i++)
        again[i + 1] = argv[i];
    return again;
}

static bool has_come; /* to the other ranks: they learn of its failures there */

/* Signals end it as while ranks meet. */
static void decline(void)
{
    lap_environment_t environment;
    const char *told = lap_args_told();
    if (!lap_environment_launched() || lap_environment_read(&environment) != LAP_OK)
        return;
    lap_rendezvous_begin(environment.rank == 0 ? environment.dir : "");
    (void)lap_error(LAP_ERR_INVALID, "its command line is refused%s%s", *told ? ": " : "", told);
    lap_world_decline(LAP_ERR_INVALID);
    lap_rendezvous_end();
}

int lap_ranks_end(char **again, int status)
{
    if ((status == LAP_CLI_USAGE || status == LAP_CLI_FAILED) && !has_come)
        decline();
    lap_free(again);
    return status;
}

int lap_ranks_here(int nranks)
{
    lap_environment_t environment;
    const bool launched =
        lap_environment_launched() && lap_environment_read(&environment) == LAP_OK;
    return launched && environment.size == nranks ? environment.local_size : nranks;
}

bool lap_ranks_suit(const lap_command_t *command, const char *given, const char *transport,
                    int nranks)
{
    const lap_transport_ops_t *ops;
    const bool launched = lap_environment_launched();
    char source[LAP_SOURCE_TEXT];
    lap_transport_source(given, transport, source);
    if (launched && strcmp(transport, "self") == 0)
        return lap_args_wrong(
            command, "%s runs its ranks as threads of one process: start it without a launcher",
            source);
    if (!launched && lap_transport_find(transport, &ops) == LAP_OK &&
        (ops->can & LAP_CAN_SPAN) != 0 && !ops->device)
        return lap_args_wrong(
            command, "%s needs ranks that mpirun started: mpirun -n %d %s ...%s%s", source, nranks,
            command->name, given ? " --transport " : "", given ? transport : "");
    return true;
}

/* Our own ranks read --gpu-share as well: LAP_GPU shows that they have been given their GPUs. */
static bool is_too_late(lap_gpu_mode_t mode)
{
    const char *gpu = getenv("LAP_GPU");
    return mode == LAP_GPU_ON && lap_environment_launched() && !(gpu && *gpu);
}

bool lap_ranks_gpus(const lap_command_t *command, const char *given, const char *device,
                    lap_gpu_mode_t *mode_p)
{
    const bool cuda = strcmp(device, "cuda") == 0;
    lap_gpu_mode_t mode = cuda ? LAP_GPU_AUTO : LAP_GPU_OFF;
    if (given && !lap_arg_gpu_share(command, given, &mode))
        return false;
    if (mode != LAP_GPU_OFF && !cuda)
        return lap_args_wrong(command, "--gpu-share=%s is for GPUs; expected --device cuda, or off",
                              lap_gpu_modes[mode]);
    if (is_too_late(mode))
        return lap_args_wrong(
            command,
            "--gpu-share=on is for ranks that %s starts, but a launcher started these; "
            "expected --gpu-share as an option of lap run, or LAP_GPU for each rank",
            command->name);
    *mode_p = mode;
    return true;
}

/* The cores are shared evenly among the GEMMs of the ranks. */
static lap_world_options_t world_options(const lap_ranks_t *job, int nranks)
{
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    options.timeout_s = job->timeout_s;
    options.device = job->device;
    options.transport = job->transport;
    options.cpu_threads = lap_cores() > nranks ? lap_cores() / nranks : 1;
    return options;
}

/* ---- ranks that are processes ---- */

/* Ranks may have been started by hand, each with a command line of its own. */
static lap_status_t compare(const lap_ranks_t *job, lap_world_t *world)
{
    lap_terms_t terms = {.of = NULL};
    lap_args_terms(job->args, job->context, &terms);
    const lap_status_t status = lap_terms_agree(&terms, lap_world_group(world), LAP_OK);
    lap_terms_clear(&terms);
    return status;
}

/* Signals are caught, and watched, while ranks are at work; `world` is NULL where they are threads. */
static void begin_watch(const lap_ranks_t *job, lap_world_t *world)
{
    if (!job->at_once)
        lap_interrupt_begin();
    lap_interrupt_watch(job->name, world);
}

/* Takes part in the world that a launcher started. */
static int join_world(const lap_ranks_t *job)
{
    lap_environment_t environment;
    lap_status_t status = lap_environment_read(&environment);
    if (status != LAP_OK) {
        lap_tell(job->name, "%s", lap_last_error());
        return LAP_CLI_USAGE;
    }
    /* A launcher that is killed cannot end its ranks. */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    int result = job->check(job->context, environment.size);
    if (result != LAP_CLI_GO)
        return result;
    lap_world_options_t options = world_options(job, environment.local_size);
    lap_world_t *world;
    status = job->start ? job->start(job->context, &environment) : LAP_OK;
    if (status == LAP_OK) {
        has_come = true;
        lap_rendezvous_begin(environment.rank == 0 ? environment.dir : "");
        status = lap_world_create(&options, &world);
        lap_rendezvous_end();
    }
    if (status != LAP_OK)
        return lap_ranks_fail(job->name, environment.rank, status);
    begin_watch(job, world);
    status = compare(job, world);
    result = status == LAP_OK ? job->run(job->context, world)
                              : lap_ranks_fail(job->name, environment.rank, status);
    lap_interrupt_unwatch();
    lap_world_destroy(world);
    /*
     * A rank that has failed does not wait for the others: the launcher ends them. When one was
     * interrupted, all have stopped together.
     */
    if (job->end && (result == LAP_CLI_OK || lap_interrupt_is_status(result)))
        job->end(job->context);
    lap_interrupt_end();
    return result;
}

/* Starts this program again, once per rank, with the same arguments. */
static int launch_ranks(const lap_ranks_t *job, char *const *argv,
                        const lap_gpu_answer_t *gpu_answer)
{
    lap_launch_t launch = {
        .name = job->name,
        .nranks = job->nranks,
        .program = "/proc/self/exe",
        .argv = argv,
        .grace_s = -1,
        .stop_s = job->stop_s > 0 ? job->stop_s + LAP_LAUNCH_STOP_S : 0,
        .gpus = job->gpus,
        .queues = job->queues,
        .gpu_answer = gpu_answer,
        /* A rank that fails prints why, or one does for all. */
        .reported = job->reported | 1u << LAP_CLI_FAILED | 1u << LAP_CLI_USAGE,
        .needs_reader = true,
    };
    return lap_launch(&launch);
}

/* ---- ranks that are threads ---- */

typedef struct rank_thread {
    pthread_t thread;
    const lap_ranks_t *job;
    lap_world_t *world;
    int result;
} rank_thread_t;

static void *thread_main(void *arg)
{
    rank_thread_t *rank = arg;
    /* A rank prints: where nobody reads that, the process ends as any other does. */
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_UNBLOCK, &pipe, NULL);
    rank->result = rank->job->run(rank->job->context, rank->world);
    /* Peers that still wait for this rank learn that it has left. */
    lap_world_destroy(rank->world);
    return NULL;
}

static int run_threads(const lap_ranks_t *job)
{
    size_t nranks = (size_t)job->nranks;
    lap_world_options_t options = world_options(job, job->nranks);
    lap_world_t **worlds = lap_alloc(nranks, sizeof(*worlds));
    rank_thread_t *ranks = lap_alloc(nranks, sizeof(*ranks));
    int result = LAP_CLI_OK;
    if (!worlds || !ranks) {
        lap_tell(job->name, "no memory for %zu ranks", nranks);
        result = LAP_CLI_FAILED;
        goto out;
    }
    lap_status_t status = lap_world_create_threads(job->nranks, &options, worlds);
    if (status != LAP_OK) {
        result = lap_ranks_fail(job->name, 0, status);
        goto out;
    }
    begin_watch(job, NULL);
    size_t started = 0;
    for (; started < nranks; started++) {
        rank_thread_t *rank = &ranks[started];
        rank->job = job;
        rank->world = worlds[started];
        if (lap_thread_start(&rank->thread, "lap-rank", thread_main, rank) != 0) {
            lap_tell(job->name, "cannot start the thread of rank %zu", started);
            result = LAP_CLI_FAILED;
            break;
        }
    }
    for (size_t i = started; i < nranks; i++)
        lap_world_destroy(worlds[i]);
    for (size_t i = 0; i < started; i++) {
        pthread_join(ranks[i].thread, NULL);
        result = result != LAP_CLI_OK ? result : ranks[i].result;
    }
    lap_interrupt_unwatch();
    lap_interrupt_end();
out:
    lap_free(ranks);
    lap_free(worlds);
    return result;
}

/* What would fail on every rank is found out here, and reported once. */

static bool uses_gpus(const lap_ranks_t *job)
{
    return strcmp(job->device, "cuda") == 0;
}

static bool check_device(const lap_ranks_t *job, lap_gpu_answer_t *answer_p)
{
    char why[LAP_GPU_WHY];
    const lap_gpu_needs_t needs = {job->transport, job->nranks, job->device_bytes, job->dtype};
    if (!uses_gpus(job) || lap_gpu_check(&needs, answer_p, why))
        return true;
    lap_tell(job->name, "device cuda: %s", why);
    return false;
}

static bool check_timeout(const lap_ranks_t *job)
{
    uint64_t ns;
    if (job->timeout_s > 0 || lap_environment_timeout(&ns) == LAP_OK)
        return true;
    lap_tell(job->name, "%s", lap_last_error());
    return false;
}

int lap_ranks_run(const lap_ranks_t *job, char *const *argv)
{
    if (!check_timeout(job))
        return LAP_CLI_USAGE;
    if (lap_environment_launched())
        return join_world(job);
    const int result = job->check(job->context, job->nranks);
    if (result != LAP_CLI_GO)
        return result;
    lap_gpu_answer_t answer = {0};
    if (!check_device(job, &answer))
        return LAP_CLI_USAGE;
    return strcmp(job->transport, "self") == 0
               ? run_threads(job)
               : launch_ranks(job, argv, uses_gpus(job) ? &answer : NULL);
}
