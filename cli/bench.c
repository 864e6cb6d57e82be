/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lap bench`: which overlap method pays for which shape on this machine? The ranks measure and
 * rank 0 prints.
 */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "interrupt.h"
#include "progress.h"
#include "ranks.h"
#include "util/alloc.h"

/* ---- a rank ---- */

static int fail(const lap_world_t *world, lap_status_t status)
{
    const int rank = lap_world_rank(world);
    lap_progress_end(rank == 0);
    return lap_ranks_fail("lap bench", rank, status);
}

/* Names the methods whose results are wrong; returns whether there are none. */
static bool judge(const lap_bench_case_t *it, const lap_bench_result_t *result)
{
    bool correct = true;
    for (size_t i = 0; i < lap_bench_rows(it); i++) {
        if (result->methods[i].ok)
            continue;
        correct = false;
        lap_tell("lap bench", "wrong result: %s %s is off by up to %g", lap_op_kind_name(it->kind),
                 it->methods[i].label, result->methods[i].max_err);
    }
    return correct;
}

/* The fastest method that overlaps; 0: there is none. */
static size_t find_best(const lap_bench_case_t *it, const lap_bench_result_t *result)
{
    size_t best = 0;
    for (size_t i = 1; i < it->nmethods; i++)
        if (result->methods[i].ok &&
            (best == 0 || result->methods[i].total_ms < result->methods[best].total_ms))
            best = i;
    return best;
}

/* Whether a case has the efficiency that was asked for; prints what it has if not. */
static bool is_hidden(const lap_bench_t *bench, const lap_bench_case_t *it,
                      const lap_bench_result_t *result)
{
    const size_t best = find_best(it, result);
    double value = NAN, noise = NAN;
    const lap_bench_lack_t lack = lap_bench_efficiency(result, best, &value, &noise);
    if (lack == LAP_BENCH_KNOWN && value >= bench->least_efficiency)
        return true;
    char what[LAP_LIST_TEXT + 80];
    if (best == 0)
        snprintf(what, sizeof(what), "has no method that overlaps");
    else if (lack == LAP_BENCH_KNOWN)
        snprintf(what, sizeof(what), "has an efficiency of %.3f, with %s", value,
                 it->methods[best].label);
    else
        snprintf(what, sizeof(what), "has no efficiency that could be measured, with %s (%s)",
                 it->methods[best].label, lap_bench_lack_name(lack));
    lap_tell("lap bench", "--assert-efficiency %g: %s %zu %zu %zu %s", bench->least_efficiency,
             lap_kind_words[it->kind].word, it->m, it->n, it->k, what);
    return false;
}

static void print(const lap_bench_t *bench, const lap_bench_result_t *results)
{
    if (bench->mode == LAP_BENCH_SWEEP)
        (bench->json ? lap_bench_print_sweep_json : lap_bench_print_sweep)(bench, results);
    else
        (bench->json ? lap_bench_print_json : lap_bench_print_table)(bench, results);
}

static int print_cases(const lap_bench_t *bench, const lap_bench_result_t *results)
{
    print(bench, results);
    bool correct = !results[0].undrawn && !results[0].unwritten, hidden = true;
    if (bench->timeline && correct && !bench->json)
        printf("\ntimeline: %s\n", bench->timeline);
    if (bench->trace_path && !results[0].unwritten && !bench->json)
        printf("\ntrace: %s\n", bench->trace_path);
    for (size_t i = 0; i < bench->ncases; i++)
        correct = judge(&bench->cases[i], &results[i]) && correct;
    for (size_t i = 0; i < bench->ncases && !isnan(bench->least_efficiency); i++)
        hidden = is_hidden(bench, &bench->cases[i], &results[i]) && hidden;
    return !correct ? LAP_CLI_FAILED : hidden ? LAP_CLI_OK : LAP_CLI_NOT_HIDDEN;
}

/* As if no more had been asked for than the `begun` cases, with a remark. */
static void print_so_far(const lap_bench_t *bench, const lap_bench_result_t *results, size_t begun)
{
    const lap_bench_result_t *last = &results[begun - 1];
    lap_bench_t shown = *bench;
    shown.interrupted = last->interrupted;
    shown.asked_iters = bench->iters;
    shown.asked_cases = bench->ncases;
    shown.begun_cases = begun;
    shown.last_rounds = (int)last->rounds;
    shown.ncases = last->rounds > 0 ? begun : begun - 1;
    shown.iters = bench->ncases > 1 ? bench->iters : (int)last->rounds;
    shown.trace = false; /* that comes last */
    shown.timeline = NULL;
    if (shown.ncases == 0)
        lap_bench_print_nothing(&shown);
    else
        print(&shown, results);
    for (size_t i = 0; i < shown.ncases; i++)
        judge(&bench->cases[i], &results[i]);
}

/*
 * Another library knows more reasons to refuse a case than can be known before it is asked: then the case
 * goes on without it. Collective.
 */
static lap_status_t leave_out_refused(const lap_bench_t *bench, lap_bench_case_t *it,
                                      lap_world_t *world)
{
    for (size_t i = 0; i < it->nmethods; i++) {
        lap_op_t *op = NULL;
        if (!it->methods[i].optional)
            continue;
        const lap_op_desc_t desc = lap_bench_desc(bench, it, i);
        const lap_status_t status = lap_op_create(lap_world_group(world), &desc, &op);
        lap_op_destroy(op);
        if (status != LAP_ERR_UNSUPPORTED)
            return status;
        if (lap_world_rank(world) == 0 && !bench->quiet)
            lap_tell("lap bench", "%s is left out: %s", it->methods[i].label, lap_last_error());
        it->nmethods--;
        memmove(&it->methods[i], &it->methods[i + 1],
                (it->nmethods - i + it->baseline) * sizeof(it->methods[0]));
        return LAP_OK;
    }
    return LAP_OK;
}

/* What a rank measures, of which some cases have been begun. */
typedef struct cases {
    lap_bench_t *bench;
    lap_bench_result_t *results;
    size_t begun;
} cases_t;

/* As if all ranks had stopped here; in a thread of its own, while this rank goes on. */
static void print_now(void *context, int signal)
{
    const cases_t *cases = context;
    const size_t begun = cases->begun > 0 ? cases->begun : 1;
    lap_bench_result_t *last = &cases->results[begun - 1];
    lap_progress_end(true);
    lap_bench_measured(last);
    last->interrupted = signal;
    print_so_far(cases->bench, cases->results, begun);
}

static void begin_case(cases_t *cases)
{
    lap_interrupt_lock();
    cases->begun++;
    lap_interrupt_unlock();
}

static lap_status_t measure_cases(cases_t *cases, lap_world_t *world, int *interrupted_p)
{
    lap_bench_t *bench = cases->bench;
    while (cases->begun < bench->ncases && !*interrupted_p) {
        lap_bench_case_t *it = &bench->cases[cases->begun];
        lap_bench_result_t *result = &cases->results[cases->begun];
        LAP_TRY(leave_out_refused(bench, it, world));
        begin_case(cases);
        LAP_TRY(lap_bench_measure(bench, it, world, result));
        *interrupted_p = result->interrupted;
    }
    return LAP_OK;
}

static int run_cases(const lap_bench_t *asked, lap_world_t *world)
{
    lap_bench_t *bench = lap_alloc(1, sizeof(*bench));
    lap_bench_result_t *results = lap_alloc(asked->ncases, sizeof(*results));
    lap_status_t status = LAP_OK;
    int interrupted = 0;
    cases_t cases = {bench, results, 0};
    if (!bench || !results)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu results", asked->ncases);
    status = lap_group_agree(lap_world_group(world), status);
    if (status == LAP_OK) {
        *bench = *asked;
        if (lap_world_rank(world) == 0)
            lap_interrupt_prints(print_now, &cases);
        status = measure_cases(&cases, world, &interrupted);
    }
    if (lap_world_rank(world) == 0) /* from here on it prints by itself */
        lap_interrupt_prints(NULL, NULL);
    if (interrupted)
        lap_interrupt_stops();
    /* All ranks know the results; rank 0 speaks, and answers for them. */
    int result = interrupted ? lap_interrupt_status(interrupted) : LAP_CLI_OK;
    if (status != LAP_OK)
        result = fail(world, status);
    else if (lap_world_rank(world) == 0 && interrupted)
        print_so_far(bench, results, cases.begun);
    else if (lap_world_rank(world) == 0)
        result = print_cases(bench, results);
    for (size_t i = 0; results && i < asked->ncases; i++)
        lap_bench_result_clear(&results[i]);
    lap_free(results);
    lap_free(bench);
    return result;
}

static int run_latency(const lap_bench_t *bench, lap_world_t *world)
{
    lap_bench_latency_t result;
    lap_status_t status = lap_bench_latency(bench, world, &result);
    if (status != LAP_OK)
        return fail(world, status);
    if (lap_world_rank(world) == 0)
        lap_bench_print_latency(bench, &result, lap_world_size(world));
    return result.interrupted ? lap_interrupt_status(result.interrupted) : LAP_CLI_OK;
}

static int check_ranks(const void *context, int nranks)
{
    return lap_bench_check(context, nranks);
}

static int run_rank(const void *context, lap_world_t *world)
{
    const lap_bench_t *bench = context;
    return bench->mode == LAP_BENCH_LATENCY ? run_latency(bench, world) : run_cases(bench, world);
}

static lap_status_t start_baseline(const void *context, const lap_environment_t *environment)
{
    return ((const lap_bench_t *)context)->baseline->start(environment);
}

static void end_baseline(const void *context)
{
    ((const lap_bench_t *)context)->baseline->end();
}

/* ---- the command ---- */

int lap_cli_bench(int argc, char **argv)
{
    char **again = lap_ranks_arguments(&lap_bench_command, argc, argv);
    if (!again)
        return LAP_CLI_FAILED;
    static lap_bench_t bench; /* too large for small stacks, and needed once */
    int result = lap_bench_parse(argc, argv, lap_environment_launched(), &bench);
    if (result == LAP_CLI_GO) {
        const lap_ranks_t job = {
            .name = "lap bench",
            .nranks = bench.ranks,
            .timeout_s = bench.timeout_s,
            .device = bench.device,
            .transport = bench.transport,
            .gpus = bench.gpus,
            .device_bytes = lap_bench_device_bytes(&bench, bench.ranks),
            .dtype = bench.desc.dtype,
            .reported = 1u << LAP_CLI_NOT_HIDDEN,
            .check = check_ranks,
            .run = run_rank,
            .start = bench.baseline ? start_baseline : NULL,
            .end = bench.baseline ? end_baseline : NULL,
            .context = &bench,
            .args = &bench.args,
        };
        result = lap_ranks_run(&job, again);
    }
    return lap_ranks_end(again, result);
}
