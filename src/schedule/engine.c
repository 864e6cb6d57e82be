/* SPDX-License-Identifier: Apache-2.0 */
/* The engine of a world: the streams on its device, made when the first operator needs them. */
#include <stdio.h>

#include "schedule/guard.h"
#include "schedule/watcher.h"
#include "util/alloc.h"
#include "util/clock.h"

#define CAUSE_NS 2000000000u /* how long a death may stay unseen after a GPU has failed of it */
#define OVERHEAD_ROUNDS 3    /* the first one warms up */
#define ALL_STREAMS ((1u << LAP_STREAMS) - 1)
#define COMPUTE (1u << LAP_STREAM_COMPUTE)

static void close_streams(lap_engine_t *engine)
{
    const lap_device_ops_t *ops = engine->device->ops;
    for (int s = 0; s < LAP_STREAMS; s++)
        if (engine->streams[s])
            ops->stream_destroy(engine->streams[s]);
    /* Only now: the last thing that a stream does may be to wait for another's. */
    for (int s = 0; s < LAP_STREAMS; s++) {
        if (engine->joins[s])
            ops->event_destroy(engine->joins[s]);
        if (engine->call_ends[s])
            ops->event_destroy(engine->call_ends[s]);
    }
    if (engine->enqueued_end)
        ops->event_destroy(engine->enqueued_end);
    if (engine->captured_end)
        ops->event_destroy(engine->captured_end);
    lap_marks_close(engine->marks);
    lap_free(engine);
}

/* The streams beside those of an engine may wait for them. */
static void engine_close(void *context)
{
    lap_engine_t *engine = context;
    lap_guard_stop(engine->guard);
    if (engine->side)
        close_streams(engine->side);
    close_streams(engine);
}

/* What moves data is urgent: the peers wait for it. */
static lap_status_t engine_open(lap_device_t *device, lap_engine_t **engine_p)
{
    const lap_device_ops_t *ops = device->ops;
    lap_engine_t *engine = lap_alloc(1, sizeof(*engine));
    if (!engine)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the engine of a world");
    engine->device = device;
    engine->marks = lap_marks_open();
    lap_status_t status = LAP_OK;
    for (int s = 0; s < LAP_STREAMS && status == LAP_OK; s++) {
        const bool computes = s == LAP_STREAM_COMPUTE || s == LAP_STREAM_LANE;
        if (s == LAP_STREAM_LANE && !ops->facts.lanes)
            continue;
        status = ops->stream_create(device, !computes, &engine->streams[s]);
        if (status == LAP_OK)
            status = ops->event_create(engine->device, &engine->joins[s]);
        if (status == LAP_OK)
            status = ops->event_create(engine->device, &engine->call_ends[s]);
    }
    if (status == LAP_OK)
        status = ops->event_create(engine->device, &engine->enqueued_end);
    if (status == LAP_OK)
        status = ops->event_create(engine->device, &engine->captured_end);
    if (status != LAP_OK) {
        engine_close(engine);
        return status;
    }
    *engine_p = engine;
    return LAP_OK;
}

lap_status_t lap_engine_get(lap_world_t *world, lap_engine_t **engine_p)
{
    if (!world->engine) {
        lap_device_t *device;
        lap_engine_t *engine;
        LAP_TRY(lap_device_of(world, &device));
        LAP_TRY(engine_open(device, &engine));
        world->engine = engine;
        world->engine_close = engine_close;
    }
    *engine_p = world->engine;
    return LAP_OK;
}

lap_status_t lap_engine_side(lap_engine_t *engine, lap_engine_t **side_p)
{
    if (!engine->side) {
        lap_engine_t *side;
        LAP_TRY(engine_open(engine->device, &side));
        side->side = engine;
        side->guard = engine->guard;
        lap_guard_hold(engine->guard);
        engine->side = side;
        lap_guard_go(engine->guard);
    }
    *side_p = engine->side;
    return LAP_OK;
}

lap_status_t lap_engine_calls_begin(const lap_engine_t *engine)
{
    const lap_device_ops_t *ops = engine->device->ops;
    return ops->calls_begin ? ops->calls_begin(engine->device) : LAP_OK;
}

void lap_engine_calls_end(const lap_engine_t *engine)
{
    if (engine->device->ops->calls_end)
        engine->device->ops->calls_end(engine->device);
}

/* `to` goes on when stream s of an engine is here. */
static lap_status_t await_stream(lap_stream_t *to, const lap_engine_t *engine, int s)
{
    const lap_device_ops_t *ops = engine->device->ops;
    LAP_TRY(ops->event_record(engine->joins[s], engine->streams[s]));
    return ops->stream_wait_event(to, engine->joins[s]);
}

/* The stream goes on when all is done that was issued to the streams of an engine but COMPUTE. */
static lap_status_t await_others(lap_stream_t *to, const lap_engine_t *engine)
{
    for (int s = 0; s < LAP_STREAMS; s++)
        if (engine->used >> s & 1)
            LAP_TRY(await_stream(to, engine, s));
    return LAP_OK;
}

static void put_behind(lap_engine_t *engine)
{
    engine->awaits_compute = ALL_STREAMS & ~COMPUTE;
    engine->recorded = false;
}

lap_status_t lap_engine_follow(lap_engine_t *engine, lap_engine_t *first)
{
    lap_stream_t *compute = engine->streams[LAP_STREAM_COMPUTE];
    LAP_TRY(await_stream(compute, first, LAP_STREAM_COMPUTE));
    LAP_TRY(await_others(compute, first));
    put_behind(engine);
    return LAP_OK;
}

lap_status_t lap_engine_join(lap_engine_t *engine)
{
    LAP_TRY(await_others(engine->streams[LAP_STREAM_COMPUTE], engine));
    engine->used = engine->awaits_enqueued = 0;
    put_behind(engine);
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

lap_status_t lap_engine_take(lap_engine_t *engine, unsigned streams)
{
    const lap_device_ops_t *ops = engine->device->ops;
    const unsigned behind = engine->awaits_compute & streams,
                   awaits_enqueued = engine->awaits_enqueued & streams;
    if (behind && !engine->recorded)
        LAP_TRY(ops->event_record(engine->joins[LAP_STREAM_COMPUTE],
                                  engine->streams[LAP_STREAM_COMPUTE]));
    engine->recorded = engine->recorded || behind;
    for (int s = 0; s < LAP_STREAMS; s++) {
        if (behind >> s & 1)
            LAP_TRY(ops->stream_wait_event(engine->streams[s], engine->joins[LAP_STREAM_COMPUTE]));
        if (awaits_enqueued >> s & 1)
            LAP_TRY(ops->stream_wait_event(engine->streams[s], engine->enqueued_end));
        if (streams >> s & 1)
            LAP_TRY(take_graphs(engine, s));
    }
    engine->awaits_compute &= ~streams;
    engine->awaits_enqueued &= ~streams;
    engine->used |= streams & ~COMPUTE;
    return LAP_OK;
}

lap_status_t lap_engine_take_graph(lap_engine_t *engine, unsigned streams)
{
    const unsigned first = streams & (~streams + 1), others = streams & ~first;
    unsigned before = engine->used & others;
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
    if (first == COMPUTE)
        engine->used &= ~before;
    return LAP_OK;
}

void lap_engine_enqueued(lap_engine_t *engine, int stream)
{
    engine->has_enqueued = true;
    engine->awaits_enqueued = ALL_STREAMS & ~(1u << stream);
}

/* Whether the device or the guard ended its waits; why. */
static lap_status_t look_back(lap_engine_t *engine)
{
    const lap_device_ops_t *ops = engine->device->ops;
    lap_stall_t stall;
    LAP_TRY(lap_guard_look_back(engine->guard));
    if (!ops->gave_up || !ops->gave_up(engine->device, &stall))
        return LAP_OK;
    return lap_buffer_stall_failed(&stall, LAP_ERR_TIMEOUT);
}

lap_status_t lap_engine_await(lap_engine_t *engine, lap_event_t *event)
{
    const lap_device_ops_t *ops = engine->device->ops;
    if (!ops->stall)
        return ops->event_synchronize(event, NULL);
    lap_watcher_t watcher = {.engine = engine, .stall = ops->stall};
    const lap_watch_t watch = {.look = lap_watcher_look, .context = &watcher};
    lap_status_t status = ops->event_synchronize(event, &watch);
    if (watcher.lost.buffer)
        return lap_buffer_stall_failed(&watcher.lost, status);
    return status == LAP_OK ? look_back(engine) : status;
}

/* Notes the failure of calls in flight on these streams. */
static void note_failure(lap_engine_t *engine, lap_status_t status, const char *text)
{
    engine->status = status;
    engine->failures++;
    snprintf(engine->text, sizeof(engine->text), "%s", text);
}

static void break_groups(const lap_engine_t *engine, lap_status_t status, const char *text)
{
    for (lap_in_flight_t *op = engine->in_flight; op; op = op->next)
        lap_group_fail_here(op->group, status, text);
}

void lap_engine_break_in_flight(const lap_engine_t *engine, lap_status_t status, const char *text)
{
    break_groups(engine, status, text);
    if (engine->side) /* what it waits for is let go too, or may never come */
        break_groups(engine->side, status, text);
}

static void drain(const lap_engine_t *engine)
{
    for (int s = 0; s < LAP_STREAMS; s++)
        if (engine->streams[s])
            (void)engine->device->ops->stream_synchronize(engine->streams[s]);
}

void lap_engine_fail(lap_engine_t *engine, lap_status_t status, lap_event_t *until)
{
    const lap_device_ops_t *ops = engine->device->ops;
    char text[LAP_ERROR_TEXT];
    snprintf(text, sizeof(text), "%s", lap_last_error());
    note_failure(engine, status, text);
    if (engine->side)
        note_failure(engine->side, status, text);
    lap_engine_break_in_flight(engine, status, text);
    lap_guard_hold(engine->guard);
    if (ops->release)
        ops->release(engine->device, until);
    lap_guard_forget(engine->guard);
    lap_guard_go(engine->guard);
    drain(engine);
    if (engine->side)
        drain(engine->side);
}

/* ---- operators in flight ---- */

/* Other processes in a group may die. */
static bool has_peers(const lap_group_t *group)
{
    return group->world->kind != LAP_WORLD_THREADS && group->size > 1;
}

static bool have_peers(const lap_engine_t *engine)
{
    const lap_in_flight_t *op = engine ? engine->in_flight : NULL;
    while (op && !has_peers(op->group))
        op = op->next;
    return op != NULL;
}

/* Whether one of them has died. */
static bool have_lost(const lap_engine_t *engine)
{
    const lap_in_flight_t *op = engine ? engine->in_flight : NULL;
    while (op && !(has_peers(op->group) && lap_group_look(op->group) == LAP_ERR_PEER_LOST))
        op = op->next;
    return op != NULL;
}

lap_status_t lap_engine_find_cause(const lap_engine_t *engine, lap_status_t status,
                                   const char *doing)
{
    const bool shared = have_peers(engine) || have_peers(engine->side);
    if (status != LAP_ERR_SYSTEM || !engine->device->ops->release || !shared)
        return status;
    char sentence[LAP_ERROR_TEXT], cause[LAP_ERROR_TEXT];
    snprintf(sentence, sizeof(sentence), "%s", lap_last_error());
    lap_deadline_t deadline = lap_deadline_after(CAUSE_NS);
    bool lost;
    while (!(lost = have_lost(engine) || have_lost(engine->side)) &&
           !lap_deadline_passed(&deadline))
        lap_sleep_until_ns(lap_now_ns() + LAP_WATCH_NS);
    if (!lost)
        return lap_error(status, "%s", sentence);
    snprintf(cause, sizeof(cause), "%s", lap_last_error());
    return lap_error(LAP_ERR_PEER_LOST, "%s; %s: %s", cause, doing, sentence);
}

void lap_engine_guard(lap_engine_t *engine, const lap_group_t *group)
{
    if (engine->guard || !engine->device->ops->let_go || !has_peers(group))
        return;
    engine->guard = lap_guard_start(engine);
    if (engine->side)
        engine->side->guard = engine->guard;
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

lap_status_t lap_engine_settle(lap_engine_t *engine)
{
    const lap_status_t status =
        engine->has_enqueued ? await_in_flight(engine, engine->enqueued_end) : LAP_OK;
    lap_guard_hold(engine->guard); /* it has ended its look at what is over: that may be freed */
    lap_guard_go(engine->guard);
    return status;
}

lap_status_t lap_engine_synchronize(lap_engine_t *engine, void *foreign)
{
    lap_device_t *device = engine->device;
    lap_event_t *here;
    bool keeps;
    LAP_TRY(device->ops->foreign_begin(device, foreign, &keeps));
    device->ops->foreign_end(device);
    if (keeps)
        return lap_error(LAP_ERR_INVALID, "the stream is being captured: nothing runs in it");
    LAP_TRY(device->ops->foreign_record(device, foreign, &here));
    return await_in_flight(engine, here);
}

/* Copies of one cache line within scratch memory, in turn on the streams that all devices have. */
static void overhead_schedule(lap_schedule_t *schedule, uint32_t nsteps)
{
    const lap_problem_t problem = {.kind = LAP_AG_GEMM, .size = 1};
    lap_schedule_init(schedule, &problem, "overhead");
    for (uint32_t i = 0; i < nsteps; i++) {
        lap_range_t src = {.place = LAP_SCRATCH, .rows = 1, .row_bytes = 64, .stride = 64};
        lap_range_t dst = src;
        dst.offset = (size_t)64 * (1 + i % LAP_STREAM_LANE);
        lap_add_copy(schedule, (uint16_t)(i % LAP_STREAM_LANE), src, dst);
    }
}

lap_status_t lap_engine_overhead(lap_engine_t *engine, uint32_t nsteps, double *seconds_p)
{
    lap_device_t *device = engine->device;
    void *scratch;
    lap_schedule_t schedule;
    overhead_schedule(&schedule, nsteps);
    schedule.graph = device->ops->facts.graphs;
    lap_program_t *program;
    LAP_TRY(lap_program_create(engine, &schedule, &program));
    lap_status_t status = device->ops->alloc(device, (size_t)64 * (1 + LAP_STREAM_LANE), &scratch);
    if (status != LAP_OK) {
        lap_program_destroy(program);
        return status;
    }
    lap_binding_t binding = {.places[LAP_SCRATCH] = {scratch, 64, 64}};
    uint64_t best = UINT64_MAX;
    for (int round = 0; round < OVERHEAD_ROUNDS && status == LAP_OK; round++) {
        const uint64_t begin = lap_now_ns();
        status = lap_program_issue(program, &binding);
        if (status == LAP_OK)
            status = lap_program_wait(program);
        const uint64_t spent = lap_now_ns() - begin;
        best = spent < best ? spent : best;
    }
    if (status == LAP_OK)
        *seconds_p = (double)best * 1e-9;
    else
        lap_engine_fail(engine, status, NULL);
    lap_program_destroy(program);
    device->ops->free(device, scratch);
    return status;
}

lap_status_t lap_run_overhead(const char *device, uint32_t nsteps, double *ns_per_step_p)
{
    const lap_device_ops_t *ops;
    const lap_device_options_t options = {.size = 1};
    lap_device_t *opened;
    lap_engine_t *engine;
    double seconds;
    LAP_TRY(lap_device_find(device, &ops));
    LAP_TRY(ops->open(&options, &opened));
    lap_status_t status = engine_open(opened, &engine);
    if (status == LAP_OK) {
        status = lap_engine_overhead(engine, nsteps, &seconds);
        engine_close(engine);
    }
    ops->close(opened);
    if (status == LAP_OK)
        *ns_per_step_p = seconds * 1e9 / nsteps;
    return status;
}
