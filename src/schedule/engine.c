/* SPDX-License-Identifier: Apache-2.0 */
/* The engine of a world: the streams on its device, made when the first operator needs them. */
#include <stdio.h>

#include "schedule/guard.h"
#include "schedule/watcher.h"
#include "util/alloc.h"
#include "util/clock.h"

#define CAUSE_NS 2000000000u /* how long a death may stay unseen after a GPU has failed of it */
#define OVERHEAD_ROUNDS 3    /* the first one warms up */

static unsigned compute_bit(lap_stream_set_t set)
{
    return 1u << lap_stream_of(set, LAP_STREAM_COMPUTE);
}

/* Those of all sets. */
static unsigned computes(void)
{
    unsigned bits = 0;
    for (int set = 0; set < LAP_STREAM_SETS; set++)
        bits |= compute_bit((lap_stream_set_t)set);
    return bits;
}

static lap_stream_set_t set_of(int stream)
{
    const int set = stream / LAP_STREAM_KINDS;
    return set < LAP_STREAM_SETS ? (lap_stream_set_t)set : LAP_FOREGROUND;
}

static void engine_close(void *context)
{
    lap_engine_t *engine = context;
    const lap_device_ops_t *ops = engine->device->ops;
    lap_guard_stop(engine->guard);
    for (int s = LAP_STREAMS - 1; s >= 0; s--)
        if (engine->streams[s])
            ops->stream_destroy(engine->streams[s]);
    /* Only now: the last thing that a stream does may be to wait for another's. */
    for (int s = 0; s < LAP_STREAMS; s++) {
        if (engine->joins[s])
            ops->event_destroy(engine->joins[s]);
        if (engine->call_ends[s])
            ops->event_destroy(engine->call_ends[s]);
    }
    for (int set = 0; set < LAP_STREAM_SETS; set++) {
        if (engine->enqueued_end[set])
            ops->event_destroy(engine->enqueued_end[set]);
        if (engine->captured_end[set])
            ops->event_destroy(engine->captured_end[set]);
    }
    lap_marks_close(engine->marks);
    lap_free(engine);
}

/*
 * What moves data is urgent: the peers wait for it. On a CPU so are casts and sums in the background, which are short: a
 * thread that multiplies would hold them up. GPUs run them side by side.
 */
static lap_status_t open_stream(lap_engine_t *engine, lap_stream_set_t set, int kind)
{
    lap_device_t *device = engine->device;
    const lap_device_ops_t *ops = device->ops;
    const bool computes = (kind == LAP_STREAM_COMPUTE || kind == LAP_STREAM_LANE) &&
                          (set != LAP_BACKGROUND || ops->facts.graphs);
    const uint16_t s = lap_stream_of(set, kind);
    lap_stream_t *stream;
    if (engine->streams[s] || (kind == LAP_STREAM_LANE && !ops->facts.lanes))
        return LAP_OK;
    if (!engine->joins[s])
        LAP_TRY(ops->event_create(device, &engine->joins[s]));
    if (!engine->call_ends[s])
        LAP_TRY(ops->event_create(device, &engine->call_ends[s]));
    LAP_TRY(ops->stream_create(device, !computes, &stream));
    lap_guard_hold(engine->guard);
    engine->streams[s] = stream;
    lap_guard_go(engine->guard);
    return LAP_OK;
}

lap_status_t lap_engine_need_set(lap_engine_t *engine, lap_stream_set_t set)
{
    lap_device_t *device = engine->device;
    for (int kind = 0; kind < LAP_STREAM_KINDS; kind++)
        LAP_TRY(open_stream(engine, set, kind));
    if (!engine->enqueued_end[set])
        LAP_TRY(device->ops->event_create(device, &engine->enqueued_end[set]));
    if (!engine->captured_end[set])
        LAP_TRY(device->ops->event_create(device, &engine->captured_end[set]));
    return LAP_OK;
}

static lap_status_t engine_open(lap_device_t *device, lap_engine_t **engine_p)
{
    lap_engine_t *engine = lap_alloc(1, sizeof(*engine));
    if (!engine)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the engine of a world");
    engine->device = device;
    engine->marks = lap_marks_open();
    const lap_status_t status = lap_engine_need_set(engine, LAP_FOREGROUND);
    if (status != LAP_OK) {
        engine_close(engine);
        return status;
    }
    *engine_p = engine;
    return LAP_OK;
}

lap_status_t lap_engine_need_streams(lap_engine_t *engine, unsigned streams)
{
    for (int set = 0; set < LAP_STREAM_SETS; set++)
        if (streams & lap_stream_bits((lap_stream_set_t)set))
            LAP_TRY(lap_engine_need_set(engine, (lap_stream_set_t)set));
    for (int s = LAP_STREAM_SEND2; s <= LAP_STREAM_RECEIVE2; s++)
        if (streams >> s & 1)
            LAP_TRY(open_stream(engine, LAP_FOREGROUND, s));
    return LAP_OK;
}

lap_status_t lap_engine_get(lap_world_t *world, lap_engine_t **engine_p)
{
    if (!world->engine) {
        lap_device_t *device;
        lap_engine_t *engine = NULL;
        LAP_TRY(lap_device_of(world, &device));
        LAP_TRY(engine_open(device, &engine));
        world->engine = engine;
        world->engine_close = engine_close;
    }
    *engine_p = world->engine;
    return LAP_OK;
}

lap_status_t lap_engine_calls_begin(const lap_engine_t *engine)
{
    const lap_device_ops_t *ops = engine->device->ops;
    return ops->calls_begin(engine->device);
}

void lap_engine_calls_end(const lap_engine_t *engine)
{
    engine->device->ops->calls_end(engine->device);
}

/* `to` goes on when stream s of an engine is here. */
static lap_status_t await_stream(lap_stream_t *to, const lap_engine_t *engine, int s)
{
    const lap_device_ops_t *ops = engine->device->ops;
    LAP_TRY(ops->event_record(engine->joins[s], engine->streams[s]));
    return ops->stream_wait_event(to, engine->joins[s]);
}

/* The stream goes on when all is done that was issued to the streams of a set but COMPUTE. */
static lap_status_t await_others(lap_stream_t *to, const lap_engine_t *engine, lap_stream_set_t set)
{
    const unsigned used = engine->used & lap_stream_bits(set);
    for (int s = 0; s < LAP_STREAMS; s++)
        if (used >> s & 1)
            LAP_TRY(await_stream(to, engine, s));
    return LAP_OK;
}

lap_status_t lap_engine_join(lap_engine_t *engine, lap_stream_set_t set)
{
    const unsigned all = lap_stream_bits(set), compute = compute_bit(set);
    lap_stream_t *stream = engine->streams[lap_stream_of(set, LAP_STREAM_COMPUTE)];
    LAP_TRY(await_others(stream, engine, set));
    if (set != LAP_FOREGROUND) {
        LAP_TRY(await_stream(stream, engine, LAP_STREAM_COMPUTE));
        LAP_TRY(await_others(stream, engine, LAP_FOREGROUND));
    }
    engine->used &= ~all;
    engine->awaits_enqueued &= ~all;
    engine->awaits_compute |= all & ~compute;
    engine->recorded &= ~compute;
    return LAP_OK;
}

/* Stream s goes on when those are here on which graphs with work of it were launched. */
static lap_status_t take_graphs(lap_engine_t *engine, int s)
{
    for (int other = 0; other < LAP_STREAMS; other++)
        if (engine->awaits_graphs[s] >> other & 1)
            LAP_TRY(await_stream(engine->streams[s], engine, other));
    engine->awaits_graphs[s] = 0;
    return LAP_OK;
}

/* Before streams wait for COMPUTE of their set: joins[COMPUTE] tells where that was, or later. */
static lap_status_t record_compute(lap_engine_t *engine, unsigned streams)
{
    for (int set = 0; set < LAP_STREAM_SETS; set++) {
        const unsigned compute = compute_bit((lap_stream_set_t)set);
        const uint16_t s = lap_stream_of((lap_stream_set_t)set, LAP_STREAM_COMPUTE);
        if (!(streams & lap_stream_bits((lap_stream_set_t)set)) || engine->recorded & compute)
            continue;
        LAP_TRY(engine->device->ops->event_record(engine->joins[s], engine->streams[s]));
        engine->recorded |= compute;
    }
    return LAP_OK;
}

lap_status_t lap_engine_take(lap_engine_t *engine, unsigned streams)
{
    const lap_device_ops_t *ops = engine->device->ops;
    const unsigned awaits_compute = engine->awaits_compute & streams,
                   awaits_enqueued = engine->awaits_enqueued & streams;
    LAP_TRY(record_compute(engine, awaits_compute));
    for (int s = 0; s < LAP_STREAMS; s++) {
        const lap_stream_set_t set = set_of(s);
        if (awaits_compute >> s & 1)
            LAP_TRY(ops->stream_wait_event(engine->streams[s],
                                           engine->joins[lap_stream_of(set, LAP_STREAM_COMPUTE)]));
        if (awaits_enqueued >> s & 1)
            LAP_TRY(ops->stream_wait_event(engine->streams[s], engine->enqueued_end[set]));
        if (streams >> s & 1)
            LAP_TRY(take_graphs(engine, s));
    }
    engine->awaits_compute &= ~streams;
    engine->awaits_enqueued &= ~streams;
    engine->used |= streams & ~computes();
    return LAP_OK;
}

lap_status_t lap_engine_take_graph(lap_engine_t *engine, unsigned streams)
{
    const unsigned first = streams & (~streams + 1), others = streams & ~first;
    unsigned before =
        (engine->used | computes()) & others; /* COMPUTE of another set is never "used" */
    lap_stream_t *stream = NULL;
    LAP_TRY(lap_engine_take(engine, first));
    for (int s = 0; s < LAP_STREAMS; s++) {
        if (first >> s & 1)
            stream = engine->streams[s];
        if (others >> s & 1) {
            before |= engine->awaits_graphs[s];
            engine->awaits_graphs[s] = first;
        }
    }
    before &= ~first;
    for (int s = 0; s < LAP_STREAMS; s++)
        if (before >> s & 1)
            LAP_TRY(await_stream(stream, engine, s));
    if (first & computes())
        engine->used &= ~before;
    return LAP_OK;
}

void lap_engine_enqueued(lap_engine_t *engine, int stream)
{
    const lap_stream_set_t set = set_of(stream);
    engine->has_enqueued[set] = true;
    engine->awaits_enqueued |= lap_stream_bits(set) & ~(1u << stream);
    engine->awaits_enqueued &= ~(1u << stream);
}

/* Whether the device or the guard ended its waits; why. */
static lap_status_t look_back(lap_engine_t *engine)
{
    const lap_device_ops_t *ops = engine->device->ops;
    lap_stall_t stall;
    LAP_TRY(lap_guard_look_back(engine->guard));
    if (!ops->timed_out(engine->device, &stall))
        return LAP_OK;
    return lap_buffer_stall_failed(&stall, LAP_ERR_TIMEOUT);
}

lap_status_t lap_engine_await(lap_engine_t *engine, lap_event_t *event)
{
    const lap_device_ops_t *ops = engine->device->ops;
    if (!ops->waits_by_itself)
        return ops->event_synchronize(event, NULL);
    lap_watcher_t watcher = {.engine = engine, .stall = ops->stall};
    const lap_watch_t watch = {.look = lap_watcher_look, .context = &watcher};
    lap_status_t status = ops->event_synchronize(event, &watch);
    if (watcher.lost.buffer)
        return lap_buffer_stall_failed(&watcher.lost, status);
    return status == LAP_OK ? look_back(engine) : status;
}

void lap_engine_break_in_flight(const lap_engine_t *engine, lap_status_t status, const char *text)
{
    for (lap_in_flight_t *op = engine->in_flight; op; op = op->next)
        lap_group_fail_here(op->group, status, text);
}

void lap_engine_fail(lap_engine_t *engine, lap_status_t status, lap_event_t *until)
{
    const lap_device_ops_t *ops = engine->device->ops;
    char text[LAP_ERROR_TEXT];
    snprintf(text, sizeof(text), "%s", lap_last_error());
    engine->status = status;
    engine->failures++;
    snprintf(engine->text, sizeof(engine->text), "%s", text);
    lap_engine_break_in_flight(engine, status, text);
    lap_guard_hold(engine->guard);
    ops->release(engine->device, until);
    lap_guard_forget(engine->guard);
    lap_guard_go(engine->guard);
    for (int s = 0; s < LAP_STREAMS; s++)
        if (engine->streams[s])
            (void)ops->stream_synchronize(engine->streams[s]);
}

/* ---- operators in flight ---- */

/* Other processes in a group may die. */
static bool has_peers(const lap_group_t *group)
{
    return group->world->kind != LAP_WORLD_THREADS && group->size > 1;
}

static bool have_peers(const lap_engine_t *engine)
{
    const lap_in_flight_t *op = engine->in_flight;
    while (op && !has_peers(op->group))
        op = op->next;
    return op != NULL;
}

/* Whether one of them has died. */
static bool have_lost(const lap_engine_t *engine)
{
    const lap_in_flight_t *op = engine->in_flight;
    while (op && !(has_peers(op->group) && lap_group_look(op->group) == LAP_ERR_PEER_LOST))
        op = op->next;
    return op != NULL;
}

/* Whether a cause is known already, of one of them. */
static bool are_broken(const lap_engine_t *engine)
{
    const lap_in_flight_t *op = engine->in_flight;
    while (op && lap_group_broken(op->group) == LAP_OK)
        op = op->next;
    return op != NULL;
}

lap_status_t lap_engine_find_cause(const lap_engine_t *engine, lap_status_t status,
                                   const char *doing)
{
    const bool shared = have_peers(engine);
    if (status != LAP_ERR_SYSTEM || !engine->device->ops->waits_by_itself || !shared)
        return status;
    char sentence[LAP_ERROR_TEXT], cause[LAP_ERROR_TEXT];
    snprintf(sentence, sizeof(sentence), "%s", lap_last_error());
    lap_deadline_t deadline = lap_deadline_after(CAUSE_NS);
    bool lost;
    while (!(lost = have_lost(engine)) && !are_broken(engine) && !lap_deadline_passed(&deadline))
        lap_sleep_until_ns(lap_now_ns() + LAP_WATCH_NS);
    if (!lost)
        return lap_error(status, "%s", sentence);
    snprintf(cause, sizeof(cause), "%s", lap_last_error());
    return lap_error(LAP_ERR_PEER_LOST, "%s; %s: %s", cause, doing, sentence);
}

void lap_engine_guard(lap_engine_t *engine, const lap_group_t *group)
{
    if (engine->guard || engine->unguarded || !engine->device->ops->waits_by_itself ||
        !has_peers(group))
        return;
    engine->guard = lap_guard_start(engine);
    engine->unguarded = !engine->guard;
}

void lap_engine_add_in_flight(lap_engine_t *engine, lap_in_flight_t *op)
{
    lap_guard_hold(engine->guard);
    op->next = engine->in_flight;
    engine->in_flight = op;
    lap_guard_go(engine->guard);
}

void lap_engine_remove_in_flight(lap_engine_t *engine, lap_in_flight_t *op)
{
    lap_in_flight_t **link = &engine->in_flight;
    while (*link != op)
        link = &(*link)->next;
    lap_guard_hold(engine->guard);
    *link = op->next;
    lap_guard_go(engine->guard);
}

/* ---- calls in the order of a caller's stream ---- */

static lap_status_t fail_with_sentence(lap_engine_t *engine, lap_status_t status,
                                       lap_event_t *until)
{
    lap_engine_fail(engine, status, until);
    return lap_error(status, "%s", engine->text);
}

lap_status_t lap_engine_check(lap_engine_t *engine)
{
    const lap_status_t status = look_back(engine);
    return status == LAP_OK ? LAP_OK : fail_with_sentence(engine, status, NULL);
}

lap_status_t lap_engine_check_group(lap_engine_t *engine, lap_group_t *group)
{
    lap_saved_error_t saved;
    const lap_status_t status = lap_engine_check(engine);
    if (status == LAP_OK)
        return LAP_OK;
    lap_error_save(&saved);
    if (lap_group_broken(group) == LAP_OK)
        return LAP_OK;
    lap_error_restore(&saved);
    return status;
}

lap_status_t lap_engine_check_free(lap_engine_t *engine)
{
    for (int s = 0; s < LAP_STREAMS && engine->capturing; s++)
        if (engine->streams[s] && engine->device->ops->is_capturing(engine->streams[s]))
            return lap_error(LAP_ERR_BUSY, "a graph with calls of this world is being captured: "
                                           "end the capture before other calls");
    engine->capturing = false;
    return LAP_OK;
}

/* As for a call that is ended: a rank that has failed may have written where a result lies. */
static lap_status_t await_in_flight(lap_engine_t *engine, lap_event_t *event)
{
    lap_status_t status = lap_engine_find_cause(engine, lap_engine_await(engine, event),
                                                "this rank waited for its calls");
    for (lap_in_flight_t *op = engine->in_flight; op && status == LAP_OK; op = op->next)
        status = lap_group_broken(op->group);
    return status == LAP_OK ? LAP_OK : fail_with_sentence(engine, status, event);
}

lap_status_t lap_engine_await_enqueued(lap_engine_t *engine)
{
    lap_status_t status = LAP_OK;
    for (int set = 0; set < LAP_STREAM_SETS && status == LAP_OK; set++)
        if (engine->has_enqueued[set])
            status = await_in_flight(engine, engine->enqueued_end[set]);
    lap_guard_hold(engine->guard); /* it has ended its look at what is over: that may be freed */
    lap_guard_go(engine->guard);
    return status;
}

lap_status_t lap_engine_synchronize(lap_engine_t *engine, void *caller)
{
    lap_device_t *device = engine->device;
    lap_event_t *here;
    bool capturing;
    LAP_TRY(device->ops->caller_begin(device, caller, &capturing));
    device->ops->caller_end(device);
    if (capturing)
        return lap_error(LAP_ERR_INVALID, "the stream is being captured: nothing runs in it");
    LAP_TRY(device->ops->caller_record(device, caller, &here));
    return await_in_flight(engine, here);
}

/* Copies of one cache line within scratch memory, in turn on the streams that all devices have, or on one. */
static void overhead_schedule(lap_schedule_t *schedule, uint32_t nsteps, lap_overhead_t order)
{
    const uint32_t streams = order == LAP_OVERHEAD_IN_LINE ? 1 : LAP_STREAM_LANE;
    const lap_problem_t problem = {.kind = LAP_AG_GEMM, .size = 1};
    lap_schedule_init(schedule, &problem, "overhead");
    for (uint32_t i = 0; i < nsteps; i++) {
        lap_range_t src = {.place = LAP_SCRATCH, .rows = 1, .row_bytes = 64, .stride = 64};
        lap_range_t dst = src;
        dst.offset = (size_t)64 * (1 + i % streams);
        lap_add_copy(schedule, (uint16_t)(i % streams), src, dst);
        if (order == LAP_OVERHEAD_LINKED && i > 0)
            lap_add_dep(schedule, i, i - 1);
    }
}

lap_status_t lap_engine_overhead(lap_engine_t *engine, uint32_t nsteps, lap_overhead_t order,
                                 double *seconds_p)
{
    lap_device_t *device = engine->device;
    void *scratch;
    lap_schedule_t schedule;
    overhead_schedule(&schedule, nsteps, order);
    schedule.graph = device->ops->facts.graphs;
    lap_runnable_t *runnable;
    LAP_TRY(lap_runnable_create(engine, &schedule, &runnable));
    lap_status_t status = device->ops->alloc(device, (size_t)64 * (1 + LAP_STREAM_LANE), &scratch);
    if (status != LAP_OK) {
        lap_runnable_destroy(runnable);
        return status;
    }
    lap_binding_t binding = {.places[LAP_SCRATCH] = {scratch, 64, 64}};
    uint64_t best = UINT64_MAX;
    for (int round = 0; round < OVERHEAD_ROUNDS && status == LAP_OK; round++) {
        const uint64_t begin = lap_now_ns();
        status = lap_runnable_issue(runnable, &binding);
        if (status == LAP_OK)
            status = lap_runnable_wait(runnable);
        const uint64_t spent = lap_now_ns() - begin;
        best = spent < best ? spent : best;
    }
    if (status == LAP_OK)
        *seconds_p = (double)best * 1e-9;
    else
        lap_engine_fail(engine, status, NULL);
    lap_runnable_destroy(runnable);
    device->ops->free(device, scratch);
    return status;
}

lap_status_t lap_run_overhead(const char *device, uint32_t nsteps, double *ns_per_step_p)
{
    const lap_device_ops_t *ops;
    const lap_device_options_t options = {.size = 1};
    lap_device_t *opened;
    lap_engine_t *engine = NULL;
    double seconds;
    LAP_TRY(lap_device_find(device, &ops));
    LAP_TRY(ops->open(&options, &opened));
    lap_status_t status = engine_open(opened, &engine);
    if (status == LAP_OK) {
        status = lap_engine_overhead(engine, nsteps, LAP_OVERHEAD_APART, &seconds);
        engine_close(engine);
    }
    ops->close(opened);
    if (status == LAP_OK)
        *ns_per_step_p = seconds * 1e9 / nsteps;
    return status;
}
