/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What signals and steps cost: the time of a signal from rank 0 to rank 1 and back, through the
 * public calls that any program can make, and what the executor spends on a step that does next to
 * nothing. Ranks beyond 1 only wait. The signals are those of the host on every device: what
 * kernels of a GPU raise and wait for is left out.
 */
#include <sched.h>

#include "bench.h"
#include "core/status.h"
#include "core/world.h"
#include "interrupt.h"
#include "progress.h"
#include "util/alloc.h"
#include "util/clock.h"

#define WARMUP_TRIPS 100
#define CHUNK 10000 /* trips; more than are made by default */
#define OVERHEAD_STEPS 20000

/*
 * Keeps the calling thread on the core that is `rank`-th among those it may use, so that the
 * scheduler does not put two ranks on one core while another is free. Writes what to go back to.
 */
static void pin(int rank, cpu_set_t *before)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof(*before), before) != 0) {
        CPU_ZERO(before);
        return;
    }
    for (int core = 0, nth = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, before) && nth++ == rank)
            CPU_SET(core, &one);
    /* Where pinning is not allowed the figure is only noisier. */
    sched_setaffinity(0, sizeof(one), &one);
}

static void unpin(const cpu_set_t *before)
{
    if (CPU_COUNT(before) > 0)
        sched_setaffinity(0, sizeof(*before), before);
}

/* Rank 1 answers each signal of rank 0; rank 0 keeps the time of each trip from `first` on. */
static lap_status_t make_trips(lap_buffer_t *buffer, int rank, int first, int end, double *samples)
{
    for (int i = first; i < end; i++) {
        uint64_t begin = lap_now_ns();
        if (rank == 0)
            LAP_TRY(lap_buffer_raise(buffer, 1, 0));
        LAP_TRY(lap_buffer_wait(buffer, 1 - rank, 0, 1));
        if (rank == 1)
            LAP_TRY(lap_buffer_raise(buffer, 0, 0));
        if (i >= 0)
            samples[i] = (double)(lap_now_ns() - begin);
    }
    return LAP_OK;
}

/* Between some of them all ranks look whether somebody was asked to stop. */
static lap_status_t make_all_trips(const lap_bench_t *bench, lap_group_t *group,
                                   lap_buffer_t *buffer, double *samples,
                                   lap_bench_latency_t *result)
{
    const int rank = lap_group_rank(group);
    for (int first = -WARMUP_TRIPS; first < bench->iters && !result->interrupted;) {
        const int left = bench->iters - first, end = first + (left < CHUNK ? left : CHUNK);
        if (rank < 2)
            LAP_TRY(make_trips(buffer, rank, first, end, samples));
        LAP_TRY(lap_interrupt_agree(group, &result->interrupted));
        result->trips = first = end;
    }
    return LAP_OK;
}

static lap_status_t measure(const lap_bench_t *bench, lap_group_t *group, lap_buffer_t *buffer,
                            double *samples, lap_bench_latency_t *result)
{
    int rank = lap_group_rank(group);
    lap_progress(rank == 0 && !bench->quiet, "sending signals");
    LAP_TRY(lap_group_barrier(group));
    cpu_set_t before;
    CPU_ZERO(&before);
    if (rank < 2 && result->own_core)
        pin(rank, &before);
    lap_status_t status = make_all_trips(bench, group, buffer, samples, result);
    unpin(&before); /* the threads that are made from here on may go anywhere */
    LAP_TRY(status);
    if (rank == 0 && result->trips > 0) {
        result->trip_ns = lap_stats(samples, (size_t)result->trips);
        lap_progress(!bench->quiet, "running steps");
        status = lap_run_overhead(bench->device, OVERHEAD_STEPS, &result->step_ns);
    }
    return lap_group_agree(group, status);
}

lap_status_t lap_bench_latency(const lap_bench_t *bench, lap_world_t *world,
                               lap_bench_latency_t *result_p)
{
    lap_group_t *group = lap_world_group(world);
    lap_bench_latency_t result = {.cores = world->cores};
    result.own_core = result.cores >= lap_group_size(group);
    double *samples = lap_alloc((size_t)bench->iters, sizeof(double));
    lap_status_t status = LAP_OK;
    if (!samples)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for the times of %d trips", bench->iters);
    status = lap_group_agree(group, status);
    lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
    options.transport = bench->transport;
    lap_buffer_t *buffer = NULL;
    if (status == LAP_OK)
        status = lap_buffer_create(group, 64, 1, &options, &buffer);
    if (status == LAP_OK)
        status = measure(bench, group, buffer, samples, &result);
    lap_progress_end(lap_group_rank(group) == 0);
    lap_buffer_destroy(buffer);
    lap_free(samples);
    if (status == LAP_OK)
        *result_p = result;
    return status;
}
