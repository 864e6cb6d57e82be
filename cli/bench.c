/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lap bench`: which overlap method pays for which shape on this machine? The process that the user
 * starts reads the command line, then starts itself once per rank; the ranks measure and rank 0
 * prints. With --transport self the ranks are threads instead, and under lap run, mpirun and their
 * like this process is a rank already.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#include "bench.h"
#include "core/environment.h"
#include "launch.h"
#include "util/alloc.h"
#include "util/cores.h"

/* ---- a rank ---- */

/*
 * Prints why a rank failed and returns the exit status. `rank` is -1 when it does not know its own.
 */
static int fail(int rank, lap_status_t status)
{
    char who[32] = "";
    if (rank >= 0)
        snprintf(who, sizeof(who), "rank %d: ", rank);
    lap_bench_progress_end(rank == 0);
    fprintf(stderr, "lap bench: %s%s: %s\n", who, lap_status_string(status), lap_last_error());
    return LAP_CLI_FAILED;
}

/* Names the methods whose results are wrong; returns whether there are none. */
static bool judge(const lap_bench_case_t *it, const lap_bench_result_t *result)
{
    bool correct = true;
    for (size_t i = 0; i < lap_bench_rows(it); i++) {
        if (result->methods[i].ok)
            continue;
        correct = false;
        fprintf(stderr, "lap bench: wrong result: %s %s is off by up to %g\n",
                lap_op_kind_name(it->kind), it->methods[i].label, result->methods[i].max_err);
    }
    return correct;
}

static int run_cases(const lap_bench_t *bench, lap_world_t *world)
{
    lap_bench_result_t results[LAP_BENCH_CASES];
    for (size_t i = 0; i < bench->ncases; i++) {
        lap_status_t status = lap_bench_measure(bench, &bench->cases[i], world, &results[i]);
        if (status != LAP_OK)
            return fail(lap_world_rank(world), status);
    }
    /* All ranks know the results; rank 0 speaks, and answers for them. */
    if (lap_world_rank(world) != 0)
        return LAP_CLI_OK;
    if (bench->mode == LAP_BENCH_SWEEP)
        (bench->json ? lap_bench_print_sweep_json : lap_bench_print_sweep)(bench, results);
    else
        (bench->json ? lap_bench_print_json : lap_bench_print_table)(bench, results);
    if (bench->timeline && !bench->json)
        printf("\ntimeline: %s\n", bench->timeline);
    bool correct = true;
    for (size_t i = 0; i < bench->ncases; i++)
        correct = judge(&bench->cases[i], &results[i]) && correct;
    return correct ? LAP_CLI_OK : LAP_CLI_FAILED;
}

static int run_latency(const lap_bench_t *bench, lap_world_t *world)
{
    lap_bench_latency_t result;
    lap_status_t status = lap_bench_latency(bench, world, &result);
    if (status != LAP_OK)
        return fail(lap_world_rank(world), status);
    if (lap_world_rank(world) == 0)
        lap_bench_print_latency(bench, &result, lap_world_size(world));
    return LAP_CLI_OK;
}

static int run_rank(const lap_bench_t *bench, lap_world_t *world)
{
    return bench->mode == LAP_BENCH_LATENCY ? run_latency(bench, world) : run_cases(bench, world);
}

/* The cores are shared evenly among the GEMMs of the ranks. */
static lap_world_options_t world_options(const lap_bench_t *bench, int nranks)
{
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    options.timeout_s = bench->timeout_s;
    options.device = bench->device;
    options.transport = bench->transport;
    options.cpu_threads = lap_cores() > nranks ? lap_cores() / nranks : 1;
    return options;
}

/* ---- ranks that are processes ---- */

/* Takes part in the world that a launcher started. */
static int join_world(const lap_bench_t *bench)
{
    lap_environment_t environment;
    lap_status_t status = lap_environment_read(&environment);
    if (status != LAP_OK)
        return fail(-1, status);
    /* A launcher that is killed cannot end its ranks. */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    int result = lap_bench_check(bench, environment.size);
    if (result != LAP_CLI_GO)
        return result;
    lap_world_options_t options = world_options(bench, environment.local_size);
    lap_world_t *world;
    status = bench->baseline ? bench->baseline->start(&environment) : LAP_OK;
    if (status == LAP_OK)
        status = lap_world_create(&options, &world);
    if (status != LAP_OK)
        return fail(environment.rank, status);
    result = run_rank(bench, world);
    lap_world_destroy(world);
    /* A rank that has failed does not wait for the others: the launcher ends them. */
    if (bench->baseline && result == LAP_CLI_OK)
        bench->baseline->end();
    return result;
}

/* Starts this program again, once per rank, with the same arguments. */
static int launch_ranks(const lap_bench_t *bench, char **argv)
{
    lap_launch_t job = {
        .name = "lap bench",
        .nranks = bench->ranks,
        .program = "/proc/self/exe",
        .argv = argv,
        .grace_s = LAP_LAUNCH_GRACE_S,
        .gpus = bench->gpus,
    };
    return lap_launch(&job);
}

/* ---- ranks that are threads ---- */

typedef struct rank_thread {
    pthread_t thread;
    const lap_bench_t *bench;
    lap_world_t *world;
    int result;
} rank_thread_t;

static void *thread_main(void *arg)
{
    rank_thread_t *rank = arg;
    rank->result = run_rank(rank->bench, rank->world);
    /* Peers that still wait for this rank learn that it has left. */
    lap_world_destroy(rank->world);
    return NULL;
}

static int run_threads(const lap_bench_t *bench)
{
    size_t nranks = (size_t)bench->ranks;
    lap_world_options_t options = world_options(bench, bench->ranks);
    lap_world_t **worlds = lap_alloc(nranks, sizeof(*worlds));
    rank_thread_t *ranks = lap_alloc(nranks, sizeof(*ranks));
    int result = LAP_CLI_OK;
    if (!worlds || !ranks) {
        fprintf(stderr, "lap bench: no memory for %zu ranks\n", nranks);
        result = LAP_CLI_FAILED;
        goto out;
    }
    lap_status_t status = lap_world_create_threads(bench->ranks, &options, worlds);
    if (status != LAP_OK) {
        result = fail(0, status);
        goto out;
    }
    size_t started = 0;
    for (; started < nranks; started++) {
        rank_thread_t *rank = &ranks[started];
        rank->bench = bench;
        rank->world = worlds[started];
        if (pthread_create(&rank->thread, NULL, thread_main, rank) != 0) {
            fprintf(stderr, "lap bench: cannot start the thread of rank %zu\n", started);
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
out:
    lap_free(ranks);
    lap_free(worlds);
    return result;
}

/* ---- the command ---- */

int lap_cli_bench(int argc, char **argv)
{
    bool ranks_exist = lap_environment_launched();
    /* The ranks get the arguments as the user gave them; parsing re-orders its own. */
    char **again = lap_alloc((size_t)argc + 2, sizeof(*again));
    if (!again) {
        fprintf(stderr, "lap bench: no memory for %d arguments\n", argc);
        return LAP_CLI_FAILED;
    }
    static char program[] = "lap", name[] = "bench";
    again[0] = program;
    again[1] = name;
    for (int i = 1; i < argc; i++)
        again[i + 1] = argv[i];
    lap_bench_t bench;
    int result = lap_bench_parse(argc, argv, ranks_exist, &bench);
    if (result == LAP_CLI_GO && ranks_exist) {
        result = join_world(&bench);
    } else if (result == LAP_CLI_GO) {
        result = lap_bench_check(&bench, bench.ranks);
        if (result == LAP_CLI_GO)
            result = strcmp(bench.transport, "self") == 0 ? run_threads(&bench)
                                                          : launch_ranks(&bench, again);
    }
    lap_free(again);
    return result;
}
