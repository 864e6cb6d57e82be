/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calibration: short measurements that all ranks of a group make at the same moment, so that what
 * they take from each other is in the figures, and whose best figures the group keeps. Streams of
 * their own do not disturb calls in flight. It measures once: a machine that is busy with something
 * else at that moment stays slow in the model. GEMMs are measured in calibrate_gemm.c.
 */
#include "schedule/calibrate_gemm.h"

#include <math.h>
#include <string.h>

#include "core/tensor.h"
#include "util/alloc.h"

#define COPY_BYTES ((size_t)4 << 20) /* more than a core's own cache */
#define COPY_ROUNDS 3
#define LINK_BYTES ((size_t)1 << 20)
#define TRIPS 8
#define TRIP_PAUSE_NS 300000u /* longer than a wait spins */
#define FEW_STEPS 3u
#define STEPS 192u
#define FIELD_BYTES 64u

static const lap_calibrate_extent_t host_extent = {
    {4, 32, 128, 512, 2048}, 134217728.0, 4194304.0, 8192, 32, 2097152.0, 1};
static const lap_calibrate_extent_t far_extent = {
    {64, 512, 2048, 8192, 16384}, 1e12, 268435456.0, 65536, 512, 8e9, 8};

static const size_t copy_bytes[] = {(size_t)16 << 10, (size_t)256 << 10, COPY_BYTES};
enum { COPY_POINTS = sizeof(copy_bytes) / sizeof(copy_bytes[0]) };

/* What the ranks measure: seconds. 0: this rank has no figure. Plain doubles: it travels. */
typedef struct times {
    double copy[COPY_POINTS];
    double reduce, signal, step, call;
    double edge; /* from the end of a step of a graph to one on another stream of it */
    double link; /* LINK_BYTES to a peer, until they are there; 0: a put is but a copy */
} times_t;

/* What a group keeps. */
typedef struct costs {
    times_t times;
    const lap_transport_ops_t *transport; /* whose times these are; NULL: none yet */
    lap_gemm_rates_t *gemms;
} costs_t;

static void costs_free(void *context)
{
    costs_t *costs = context;
    while (costs->gemms) {
        lap_gemm_rates_t *entry = costs->gemms;
        costs->gemms = entry->next;
        lap_free(entry);
    }
    lap_free(costs);
}

static const lap_calibrate_extent_t *extent_of(const lap_device_t *device)
{
    return device->ops->transport ? &far_extent : &host_extent;
}

lap_status_t lap_calibrate_best(lap_group_t *group, double *figures, size_t count,
                                bool more_is_better)
{
    void *memory;
    LAP_TRY(lap_group_collect(group, figures, count * sizeof(double), &memory));
    const double *all = memory;
    for (size_t i = 0; i < count; i++) {
        double best = 0;
        for (int r = 0; r < group->size; r++) {
            const double one = all[(size_t)r * count + i];
            if (one > 0 && (best == 0 || (more_is_better ? one > best : one < best)))
                best = one;
        }
        figures[i] = best;
    }
    lap_free(memory);
    return LAP_OK;
}

lap_status_t lap_calibrate_alloc(lap_calibration_t *bench, lap_dtype_t dtype, size_t bytes)
{
    void *memory;
    LAP_TRY(bench->ops->alloc(bench->engine->device, bytes, &memory));
    bench->memory = memory;
    LAP_TRY(bench->ops->fill(bench->stream, dtype, memory, bytes / lap_dtype_size(dtype), 1));
    return bench->ops->stream_synchronize(bench->stream);
}

void lap_calibrate_free(lap_calibration_t *bench)
{
    if (bench->memory)
        bench->ops->free(bench->engine->device, bench->memory);
    bench->memory = NULL;
}

/* ---- copies, sums, steps, signals ---- */

/* Whether a put goes over a network, and not by a copy into memory that both can address. */
static bool goes_far(const lap_buffer_t *buffer)
{
    return !(lap_buffer_can(buffer) & LAP_CAN_ADDRESS) && buffer->group->size > 1;
}

/* What is timed; exactly one of them. */
typedef struct timed {
    const lap_put_t *put;
    const lap_reduce_t *reduce;
} timed_t;

/* The seconds of one of several that are issued at once, at best. */
static lap_status_t time_repeats(lap_calibration_t *bench, timed_t what, double *seconds_p)
{
    *seconds_p = INFINITY;
    for (int i = 0; i < COPY_ROUNDS; i++) {
        const uint64_t begin = lap_now_ns();
        for (int j = 0; j < bench->extent.repeats; j++)
            LAP_TRY(what.put ? bench->buffer->ops->put(bench->buffer, bench->ops, bench->stream,
                                                       what.put)
                             : bench->ops->reduce(bench->stream, what.reduce));
        LAP_TRY(bench->ops->stream_synchronize(bench->stream));
        *seconds_p = fmin(*seconds_p, lap_calibrate_since(begin) / bench->extent.repeats);
    }
    return LAP_OK;
}

/* A put of the first bytes of the memory to the same place of a peer. */
static lap_put_t put_of(const lap_calibration_t *bench, size_t bytes, int peer, uint32_t signal)
{
    return (lap_put_t){.src = bench->memory,
                       .src_stride = bytes,
                       .dst_stride = bytes,
                       .rows = 1,
                       .row_bytes = bytes,
                       .peer = peer,
                       .signal = signal};
}

/*
 * A put to the next rank. Where it goes over a network, what it costs this rank is about a copy:
 * the rest is for time_link.
 */
static lap_status_t time_copy(lap_calibration_t *bench, size_t bytes, double *seconds_p)
{
    const int next = (bench->group->rank + 1) % bench->group->size;
    const int peer = goes_far(bench->buffer) ? bench->group->rank : next;
    const lap_put_t put = put_of(bench, bytes, peer, 0);
    return time_repeats(bench, (timed_t){.put = &put}, seconds_p);
}

/* The sum of two pieces of memory into a third. */
static lap_status_t time_reduce(lap_calibration_t *bench, double *seconds_p)
{
    const size_t half = COPY_BYTES / 2, strides[2] = {half, half};
    const void *const srcs[2] = {bench->memory, bench->memory + half};
    const lap_reduce_t reduce = {
        .from = LAP_FLOAT32,
        .to = LAP_FLOAT32,
        .dst = bench->memory + COPY_BYTES,
        .dst_stride = half,
        .srcs = srcs,
        .src_strides = strides,
        .nsrc = 2,
        .rows = 1,
        .cols = half / sizeof(float),
    };
    return time_repeats(bench, (timed_t){.reduce = &reduce}, seconds_p);
}

/* A call of a few tiny steps, and what each further step adds. */
static lap_status_t time_step(lap_calibration_t *bench, lap_overhead_t order, double *call_p,
                              double *step_p)
{
    double many;
    LAP_TRY(lap_engine_overhead(bench->engine, FEW_STEPS, order, call_p));
    LAP_TRY(lap_engine_overhead(bench->engine, STEPS, order, &many));
    *step_p = fmax(0, many - *call_p) / (STEPS - FEW_STEPS);
    return LAP_OK;
}

/*
 * The branches of a graph run at once: what a step takes shows where they are in line. It is no part of the
 * call: that is taken from what many short kernels take, of each of which it would be much.
 */
static lap_status_t time_steps(lap_calibration_t *bench, times_t *times)
{
    double linked, call;
    if (!bench->ops->facts.graphs)
        return time_step(bench, LAP_OVERHEAD_APART, &times->call, &times->step);
    LAP_TRY(time_step(bench, LAP_OVERHEAD_IN_LINE, &times->call, &times->step));
    LAP_TRY(time_step(bench, LAP_OVERHEAD_LINKED, &call, &linked));
    times->edge = fmax(0, linked - times->step);
    times->call = fmax(0, times->call - FEW_STEPS * times->step);
    return LAP_OK;
}

/* How long it takes until a put is there: all send to the next rank and wait for the one before. */
static lap_status_t time_link(lap_calibration_t *bench, double *seconds_p)
{
    lap_buffer_t *buffer = bench->buffer;
    const int rank = bench->group->rank, size = bench->group->size;
    *seconds_p = INFINITY;
    for (int i = 0; i < COPY_ROUNDS; i++) {
        LAP_TRY(lap_group_barrier(bench->group));
        const uint64_t begin = lap_now_ns();
        LAP_TRY(lap_buffer_put(buffer, (rank + 1) % size, 0, bench->memory, LINK_BYTES, 1));
        LAP_TRY(lap_buffer_wait(buffer, (rank + size - 1) % size, 1, 1));
        *seconds_p = fmin(*seconds_p, lap_calibrate_since(begin));
    }
    return LAP_OK;
}

/* There and back again by the streams of a device that waits by itself. */
static lap_status_t issue_trips(lap_calibration_t *bench, lap_stream_t *stream, int peer,
                                bool sends)
{
    lap_buffer_t *buffer = bench->buffer;
    for (uint32_t i = 1; i <= TRIPS; i++) {
        const lap_raise_t raise = {.peer = peer, .signal = sends ? 1 : 2};
        const lap_wait_t wait = {.peer = peer, .signal = sends ? 2 : 1, .target = i, .count = i};
        if (sends)
            LAP_TRY(buffer->ops->raise(buffer, bench->ops, stream, &raise));
        LAP_TRY(buffer->ops->wait(buffer, bench->ops, stream, &wait));
        if (!sends)
            LAP_TRY(buffer->ops->raise(buffer, bench->ops, stream, &raise));
    }
    return LAP_OK;
}

/* As time_signals, below, on a stream of the engine, whose waits are watched. */
static lap_status_t time_trips(lap_calibration_t *bench, bool even_sends, double *seconds_p)
{
    const int rank = bench->group->rank, size = bench->group->size;
    const int left = (rank + size - 1) % size, right = (rank + 1) % size;
    const bool sends = (rank % 2 == 0) == even_sends;
    const int peer = sends ? right : left;
    lap_stream_t *stream = bench->engine->streams[LAP_STREAM_SEND];
    lap_event_t *event;
    if (size == 1 || peer % 2 == rank % 2)
        return LAP_OK;
    LAP_TRY(bench->ops->event_create(bench->engine->device, &event));
    const uint64_t begin = lap_now_ns();
    lap_status_t status = issue_trips(bench, stream, peer, sends);
    if (status == LAP_OK)
        status = bench->ops->event_record(event, stream);
    if (status == LAP_OK)
        status = lap_engine_await(bench->engine, event);
    if (status != LAP_OK)
        lap_engine_fail(bench->engine, status, NULL);
    *seconds_p += lap_calibrate_since(begin) / 2 / TRIPS;
    bench->ops->event_destroy(event);
    return status;
}

/*
 * How long a signal takes to a rank that sleeps. The even ranks send and the odd ones answer after
 * a while, so that the sender sleeps too; then the other way round. The answer says how long it was
 * held back: ranks of different hosts have no clock in common.
 */
static lap_status_t time_signals(lap_calibration_t *bench, bool even_sends, double *seconds_p)
{
    lap_buffer_t *buffer = bench->buffer;
    const int rank = bench->group->rank, size = bench->group->size;
    const int left = (rank + size - 1) % size, right = (rank + 1) % size;
    const bool sends = (rank % 2 == 0) == even_sends;
    if (bench->ops->waits_by_itself)
        return time_trips(bench, even_sends, seconds_p);
    for (size_t i = 0; i < TRIPS && size > 1; i++) {
        const size_t offset = i * FIELD_BYTES;
        uint64_t held;
        if (sends && right % 2 != rank % 2) {
            lap_sleep_until_ns(lap_now_ns() + TRIP_PAUSE_NS);
            const uint64_t begin = lap_now_ns();
            LAP_TRY(lap_buffer_raise(buffer, right, 1));
            LAP_TRY(lap_buffer_wait(buffer, right, 2, 1));
            const double seconds = lap_calibrate_since(begin);
            memcpy(&held, buffer->data[rank] + offset, sizeof(held));
            *seconds_p += fmax(0, seconds - (double)held * 1e-9) / 2 / TRIPS;
        } else if (!sends && left % 2 != rank % 2) {
            LAP_TRY(lap_buffer_wait(buffer, left, 1, 1));
            const uint64_t begin = lap_now_ns();
            lap_sleep_until_ns(begin + TRIP_PAUSE_NS);
            held = lap_now_ns() - begin;
            LAP_TRY(lap_buffer_put(buffer, left, offset, &held, sizeof(held), 2));
        }
    }
    return LAP_OK;
}

/* All at once: a rank that has failed keeps the others company at the barriers. */
static lap_status_t measure_times(lap_calibration_t *bench, times_t *times)
{
    lap_status_t status = LAP_OK;
    for (int i = 0; i < COPY_POINTS; i++) {
        LAP_TRY(lap_group_barrier(bench->group));
        if (status == LAP_OK)
            status = time_copy(bench, copy_bytes[i], &times->copy[i]);
    }
    LAP_TRY(lap_group_barrier(bench->group));
    if (status == LAP_OK)
        status = time_reduce(bench, &times->reduce);
    LAP_TRY(lap_group_barrier(bench->group));
    if (status == LAP_OK)
        status = time_steps(bench, times);
    /* What follows needs both sides. */
    LAP_TRY(lap_group_agree(bench->group, status));
    if (goes_far(bench->buffer))
        LAP_TRY(lap_group_agree(bench->group, time_link(bench, &times->link)));
    status = time_signals(bench, true, &times->signal);
    LAP_TRY(lap_group_agree(bench->group, status));
    status = time_signals(bench, false, &times->signal);
    return lap_group_agree(bench->group, status);
}

static lap_status_t calibrate_times(lap_calibration_t *bench, const lap_transport_ops_t *transport,
                                    costs_t *costs)
{
    lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
    options.transport = transport->name;
    times_t times = {0};
    LAP_TRY(lap_buffer_create(bench->group, COPY_BYTES, 3, &options, &bench->buffer));
    LAP_TRY(lap_group_agree(bench->group, lap_calibrate_alloc(bench, LAP_FLOAT32, 2 * COPY_BYTES)));
    LAP_TRY(measure_times(bench, &times));
    /* Of a network the slowest part counts: some of the ranks may be neighbours on one host. */
    double reach[2] = {times.link, times.signal};
    LAP_TRY(lap_calibrate_best(bench->group, reach, 2, goes_far(bench->buffer)));
    LAP_TRY(
        lap_calibrate_best(bench->group, (double *)&times, sizeof(times) / sizeof(double), false));
    times.link = reach[0];
    times.signal = reach[1];
    costs->times = times;
    costs->transport = transport;
    return LAP_OK;
}

/* ---- the model ---- */

/*
 * A GEMM reads and packs a once, whatever n is: its time grows as 1 + c / n, and c follows from the
 * two figures that were measured.
 */
static void set_columns(lap_curve_t *columns, const lap_gemm_rates_t *entry)
{
    const double n = (double)entry->n, all = (double)entry->all_n, few = (double)entry->few_n;
    const double most = entry->rates.rows[LAP_MANY_ROWS - 1];
    const double part = most > 0 ? fmin(1, entry->rates.few_columns / most) : 1;
    const double c = few < all && part > few / all ? (1 - part) / (part / few - 1 / all) : 0;
    columns->count = LAP_COST_POINTS;
    for (int i = 0; i < LAP_COST_POINTS; i++) {
        columns->sizes[i] = fmax(1, n) * pow(4, i + 1 - LAP_COST_POINTS);
        columns->values[i] = (1 + c / fmax(1, n)) / (1 + c / columns->sizes[i]);
    }
}

static lap_cost_t model(const lap_group_t *group, lap_device_t *device, const times_t *times,
                        const lap_gemm_rates_t *entry)
{
    const lap_world_t *world = group->world;
    lap_cost_t cost = {
        .step_s = times->step,
        .signal_s = times->signal,
        .event_s = device->ops->facts.graphs ? times->edge : times->signal,
        .spin_s = device->ops->transport ? 0 : (double)world->step_spin_ns * 1e-9,
        .call_s = times->call,
        /* Ranks of the world that are not in the group have their share, too. */
        .cores = (double)world->cores * group->size / world->local_size,
        .gemm_cores = device->ops->gemm_threads(device),
    };
    /* What moves data there takes nothing of what multiplies. */
    if (device->ops->transport) {
        cost.cores = (double)LAP_STREAMS * group->size;
        cost.rank_cores = 1;
        cost.copy_engines = true;
    }
    /*
     * With more ranks than cores the best figure is that of a rank which had a core to itself while
     * the other cores were busy, too. GEMMs of several threads each were in each other's way.
     */
    const double at_once = fmin(group->size, fmax(1, cost.cores));
    const double gemm_share = fmin(1, cost.cores / (at_once * cost.gemm_cores));
    cost.copy.count = COPY_POINTS;
    for (int i = 0; i < COPY_POINTS; i++) {
        cost.copy.sizes[i] = (double)copy_bytes[i];
        cost.copy.values[i] = (double)copy_bytes[i] / fmax(times->copy[i], 1e-9);
    }
    if (times->link > 0)
        cost.link.bytes_per_s = (double)LINK_BYTES / fmax(times->link - times->signal, 1e-9);
    cost.reduce = 1.5 * (double)COPY_BYTES / fmax(times->reduce, 1e-9);
    double all = 0;
    cost.gemm.count = LAP_COST_POINTS;
    for (int i = 0; i < LAP_COST_POINTS; i++) {
        cost.gemm.sizes[i] = extent_of(device)->rows[i];
        /* More rows are not slower: where they were, something disturbed the measurement. */
        all = fmax(all, entry->rates.rows[i]);
        cost.gemm.values[i] = all / gemm_share;
    }
    if (entry->rates.rows[LAP_MANY_ROWS] > 0)
        cost.gemm.values[LAP_MANY_ROWS] = entry->rates.rows[LAP_MANY_ROWS] / gemm_share;
    set_columns(&cost.columns, entry);
    return cost;
}

/* What the group keeps, made when first asked for. */
static lap_status_t get_costs(lap_group_t *group, costs_t **costs_p)
{
    if (!group->costs) {
        group->costs = lap_alloc(1, sizeof(costs_t));
        if (!group->costs)
            return lap_error(LAP_ERR_NO_MEMORY, "no memory for the costs of a group");
        group->costs_free = costs_free;
    }
    *costs_p = group->costs;
    return LAP_OK;
}

static lap_status_t add_gemm(lap_calibration_t *bench, lap_dtype_t dtype, size_t n, size_t k,
                             costs_t *costs, lap_gemm_rates_t **entry_p)
{
    lap_gemm_rates_t *entry = lap_alloc(1, sizeof(*entry));
    lap_status_t status = lap_group_agree(
        bench->group,
        entry ? LAP_OK : lap_error(LAP_ERR_NO_MEMORY, "no memory for the rates of a GEMM"));
    if (status == LAP_OK) {
        *entry = (lap_gemm_rates_t){.dtype = dtype, .n = n, .k = k};
        status = lap_calibrate_gemm(bench, entry);
    }
    if (status != LAP_OK) {
        lap_free(entry);
        return status;
    }
    entry->next = costs->gemms;
    costs->gemms = *entry_p = entry;
    return LAP_OK;
}

lap_status_t lap_calibrate(lap_group_t *group, lap_engine_t *engine, const char *transport,
                           lap_dtype_t dtype, size_t n, size_t k, lap_cost_t *cost_p)
{
    costs_t *costs = NULL;
    const lap_transport_ops_t *ops = NULL;
    LAP_TRY(lap_group_agree(group, get_costs(group, &costs)));
    LAP_TRY(lap_transport_find(transport ? transport : lap_transport_default(group), &ops));
    lap_calibration_t bench = {.group = group,
                               .engine = engine,
                               .ops = engine->device->ops,
                               .extent = *extent_of(engine->device)};
    const lap_gemm_rates_t none = {.n = 0};
    lap_gemm_rates_t *entry = costs->gemms;
    while (entry && (entry->dtype != dtype || entry->n != n || entry->k != k))
        entry = entry->next;
    /* All ranks of a group have the same history, and so measure together or not at all. */
    lap_status_t status = LAP_OK;
    const bool multiplies = n > 0 && !entry;
    if (costs->transport != ops || multiplies)
        status =
            lap_group_agree(group, bench.ops->stream_create(engine->device, false, &bench.stream));
    if (status == LAP_OK && costs->transport != ops) {
        status = calibrate_times(&bench, ops, costs);
        lap_calibrate_free(&bench);
    }
    if (status == LAP_OK && multiplies)
        status = add_gemm(&bench, dtype, n, k, costs, &entry);
    lap_calibrate_free(&bench);
    if (bench.stream)
        bench.ops->stream_destroy(bench.stream);
    lap_buffer_destroy(bench.buffer);
    LAP_TRY(status);
    *cost_p = model(group, engine->device, &costs->times, entry ? entry : &none);
    return LAP_OK;
}
