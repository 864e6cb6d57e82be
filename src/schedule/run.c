/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running a schedule: a runnable is made once, with all that issuing its steps needs (issue.c), and
 * then called again and again, each call issued step by step or launched as a graph.
 */
#include "schedule/run.h"

#include <stdio.h>
#include <string.h>

#include "schedule/bind.h"
#include "schedule/guard.h"
#include "schedule/link_uses.h"
#include "schedule/runnable.h"
#include "util/alloc.h"

lap_status_t lap_runnable_need_event(lap_runnable_t *runnable, uint32_t step)
{
    lap_device_t *device = runnable->engine->device;
    return runnable->events[step] ? LAP_OK
                                  : device->ops->event_create(device, &runnable->events[step]);
}

static lap_status_t create_events(lap_runnable_t *runnable)
{
    const lap_schedule_t *schedule = &runnable->schedule;
    lap_device_t *device = runnable->engine->device;
    for (uint32_t i = 0; i < schedule->nsteps; i++) {
        const lap_step_t *step = &schedule->steps[i];
        for (uint32_t d = 0; d < step->ndeps; d++)
            LAP_TRY(lap_runnable_need_event(runnable, lap_step_dep(schedule, step, d)));
        if (!runnable->ends[step->stream])
            LAP_TRY(device->ops->event_create(device, &runnable->ends[step->stream]));
    }
    return LAP_OK;
}

static void fill_reasons(lap_runnable_t *runnable)
{
    const lap_schedule_t *schedule = &runnable->schedule;
    bool all = true; /* with rows of all ranks, what each has in the end is made from all */
    for (int rank = 0; rank < schedule->size; rank++)
        all = all && lap_shard(schedule->m, schedule->size, rank, NULL) > 0;
    for (uint32_t i = 0; i < schedule->nsteps; i++)
        runnable->reasons[i] = (lap_wait_reason_t){
            .op = lap_op_kind_name(schedule->kind),
            .method = schedule->method,
            .step = i,
            .m = schedule->m,
            .name_signal = lap_signal_name,
            .all = all,
        };
}

static void find_scale(void *context, const lap_range_t *range, bool write)
{
    bool *found = context;
    (void)write;
    *found = *found || range->place == LAP_SCALE;
}

/* Whether any step reads the scale of what this rank sends. */
static bool sends_scale(const lap_schedule_t *schedule)
{
    bool found = false;
    for (uint32_t i = 0; i < schedule->nsteps; i++) {
        const lap_step_t *step = &schedule->steps[i];
        lap_schedule_each(schedule, i, LAP_NO_STEP, find_scale, &found);
        for (uint32_t t = 0; t < step->ntiles; t++)
            lap_schedule_each(schedule, i, step->first_tile + t, find_scale, &found);
    }
    return found;
}

static unsigned stream_bits(const lap_schedule_t *schedule)
{
    unsigned bits = 1u << lap_stream_of(schedule->set, LAP_STREAM_COMPUTE);
    for (uint32_t i = 0; i < schedule->nsteps; i++)
        bits |= 1u << schedule->steps[i].stream;
    return bits;
}

lap_status_t lap_runnable_create(lap_engine_t *engine, lap_schedule_t *schedule,
                                 lap_runnable_t **runnable_p)
{
    lap_runnable_t *runnable = lap_alloc(1, sizeof(*runnable));
    if (!runnable) {
        lap_status_t status =
            lap_error(LAP_ERR_NO_MEMORY, "no memory to issue %u steps", schedule->nsteps);
        lap_schedule_clear(schedule);
        return status;
    }
    runnable->engine = engine;
    runnable->schedule = *schedule;
    memset(schedule, 0, sizeof(*schedule));
    const lap_schedule_t *own = &runnable->schedule;
    lap_status_t status = own->status;
    runnable->blocks = lap_alloc(own->ntiles, sizeof(*runnable->blocks));
    runnable->raises = lap_alloc(own->ntiles, sizeof(*runnable->raises));
    runnable->gemms = lap_alloc(own->nsteps, sizeof(*runnable->gemms));
    runnable->reasons = lap_alloc(own->nsteps, sizeof(*runnable->reasons));
    runnable->events = lap_alloc(own->nsteps, sizeof(lap_event_t *));
    runnable->sources = lap_alloc(own->nuses, sizeof(void *));
    runnable->source_strides = lap_alloc(own->nuses, sizeof(size_t));
    runnable->finishes = lap_alloc(own->nsteps, sizeof(*runnable->finishes));
    runnable->records = lap_alloc(lap_runnable_records(runnable), sizeof(*runnable->records));
    bool room = runnable->blocks && runnable->raises && runnable->gemms && runnable->reasons &&
                runnable->events && runnable->sources && runnable->source_strides &&
                runnable->finishes && runnable->records;
    if (!room)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to issue %u steps", own->nsteps);
    if (status == LAP_OK)
        status = lap_engine_need_streams(engine, stream_bits(own));
    if (status == LAP_OK)
        status = create_events(runnable);
    if (status != LAP_OK) {
        lap_runnable_destroy(runnable);
        return status;
    }
    runnable->sends_scale = sends_scale(own);
    fill_reasons(runnable);
    snprintf(runnable->label, sizeof(runnable->label), "lap %s %s m=%zu",
             lap_op_kind_name(own->kind), own->method, own->m);
    *runnable_p = runnable;
    return LAP_OK;
}

void lap_runnable_destroy(lap_runnable_t *runnable)
{
    if (!runnable)
        return;
    for (uint32_t i = 0; runnable->events && i < runnable->schedule.nsteps; i++)
        if (runnable->events[i])
            runnable->engine->device->ops->event_destroy(runnable->events[i]);
    for (int stream = 0; stream < LAP_STREAMS; stream++)
        if (runnable->ends[stream])
            runnable->engine->device->ops->event_destroy(runnable->ends[stream]);
    if (runnable->graph)
        runnable->engine->device->ops->graph_destroy(runnable->graph);
    lap_free(runnable->blocks);
    lap_free(runnable->raises);
    lap_free(runnable->gemms);
    lap_free(runnable->reasons);
    lap_free(runnable->events);
    lap_free(runnable->sources);
    lap_free(runnable->source_strides);
    lap_free(runnable->finishes);
    lap_free(runnable->records);
    lap_schedule_clear(&runnable->schedule);
    lap_free(runnable);
}

const lap_schedule_t *lap_runnable_schedule(const lap_runnable_t *runnable)
{
    return &runnable->schedule;
}

/* A GEMM step has a record per block, what only counts has none, every other step one. */
size_t lap_runnable_records(const lap_runnable_t *runnable)
{
    return lap_schedule_records(&runnable->schedule);
}

size_t lap_schedule_records(const lap_schedule_t *schedule)
{
    size_t count = 0;
    for (uint32_t i = 0; i < schedule->nsteps; i++) {
        const lap_step_t *step = &schedule->steps[i];
        count += step->kind == LAP_STEP_GEMM ? step->ntiles : step->kind != LAP_STEP_CONSUME;
    }
    return count;
}

/* As lap_runnable_create has it. */
size_t lap_runnable_bytes(const lap_schedule_t *schedule)
{
    const lap_runnable_t *of = NULL; /* for the sizes of what it points to */
    const size_t step = sizeof(*of->gemms) + sizeof(*of->reasons) + sizeof(*of->events) +
                        sizeof(*of->finishes) + sizeof(lap_step_t);
    const size_t tile = sizeof(*of->blocks) + sizeof(*of->raises) + sizeof(lap_tile_t);
    const size_t use = sizeof(*of->sources) + sizeof(*of->source_strides) + sizeof(lap_use_t);
    return sizeof(*of) + schedule->nsteps * step + schedule->ndeps * sizeof(*schedule->deps) +
           schedule->ntiles * tile + schedule->nuses * use +
           schedule->nsignals * sizeof(*schedule->raised) +
           lap_schedule_records(schedule) * sizeof(*of->records);
}

/*
 * The number of a call in its group: all ranks begin calls that communicate in the same order. What
 * runs in a graph of the caller's is begun by nobody here.
 */
static uint64_t count_call(const lap_runnable_t *runnable, lap_group_t *group, bool captured)
{
    group->uncounted = group->uncounted || captured;
    if (runnable->schedule.kind == LAP_GEMM || group->size == 1)
        return 0;
    return group->uncounted ? LAP_CALL_ANY : ++group->calls;
}

/*
 * A call that is captured in a caller's graph runs any number of times, perhaps never: from then on calls have no numbers, and
 * peers that have none to compare leave it to the tags, which are counted where the calls run.
 */
void lap_runnable_announce(lap_runnable_t *runnable, const lap_binding_t *binding, bool captured)
{
    lap_buffer_t *buffer = binding->buffer;
    buffer->unnumbered = buffer->unnumbered || captured;
    const uint64_t number = count_call(runnable, buffer->group, captured);
    const uint32_t call = buffer->unnumbered ? 0 : ++buffer->calls;
    /* A call that is captured as a graph raises the same tags every time. */
    const bool replays = runnable->engine->device->ops->facts.graphs;
    const uint64_t tag = lap_call_tag(replays ? 0 : call, binding->op_index, runnable->schedule.m);
    lap_wait_reason_t reason = {.call = call, .op_index = binding->op_index, .number = number};
    reason.op = lap_op_kind_name(runnable->schedule.kind);
    reason.m = runnable->schedule.m;
    lap_guard_hold(runnable->engine->guard); /* an earlier call may still wait with these */
    for (uint32_t i = 0; i < runnable->schedule.nsteps; i++) {
        runnable->reasons[i].call = call;
        runnable->reasons[i].op_index = binding->op_index;
        runnable->reasons[i].tag = tag;
        runnable->reasons[i].number = number == LAP_CALL_ANY ? 0 : number;
    }
    lap_guard_go(runnable->engine->guard);
    runnable->number = number == LAP_CALL_ANY ? 0 : number;
    if (call != 0)
        lap_buffer_announce(buffer, &reason);
    else /* nothing that comes later tells how far this rank is */
        atomic_store_explicit(&buffer->records[buffer->group->rank]->number, LAP_CALL_ANY,
                              memory_order_release);
}

uint64_t lap_runnable_number(const lap_runnable_t *runnable)
{
    return runnable->number;
}

size_t lap_runnable_streams(const lap_runnable_t *runnable, lap_stream_t **streams, int *first_p)
{
    size_t count = 0;
    for (int s = 0; s < LAP_STREAMS; s++) {
        if (!runnable->ends[s])
            continue;
        if (count == 0)
            *first_p = s;
        streams[count++] = runnable->engine->streams[s];
    }
    return count;
}

static lap_stream_set_t set_of(const lap_runnable_t *runnable)
{
    return runnable->schedule.set;
}

unsigned lap_runnable_stream_bits(const lap_runnable_t *runnable)
{
    unsigned bits = 0;
    for (int s = 0; s < LAP_STREAMS; s++)
        if (runnable->ends[s])
            bits |= 1u << s;
    return bits;
}

static lap_status_t record_ends(lap_runnable_t *runnable, unsigned streams)
{
    const lap_engine_t *engine = runnable->engine;
    runnable->ended = streams;
    for (int s = 0; s < LAP_STREAMS; s++)
        if (streams >> s & 1)
            LAP_TRY(engine->device->ops->event_record(runnable->ends[s], engine->streams[s]));
    return LAP_OK;
}

/* Makes the graph of calls that are bound like this one. */
static lap_status_t capture(lap_runnable_t *runnable, const lap_binding_t *binding,
                            lap_stream_t *const *streams, size_t count)
{
    const lap_device_ops_t *device = runnable->engine->device->ops;
    LAP_TRY(device->graph_begin(streams, count));
    const lap_status_t status = lap_runnable_issue_steps(runnable, binding);
    lap_saved_error_t saved;
    lap_error_save(&saved);
    const lap_status_t ended = device->graph_end(streams, count, &runnable->graph);
    if (status == LAP_OK)
        return ended;
    if (runnable->graph)
        device->graph_destroy(runnable->graph);
    runnable->graph = NULL;
    lap_error_restore(&saved);
    return status;
}

/* Before the call is issued, or launched. */
static lap_status_t take_streams(const lap_runnable_t *runnable, bool launched)
{
    const unsigned streams = lap_runnable_stream_bits(runnable);
    return launched ? lap_engine_take_graph(runnable->engine, streams)
                    : lap_engine_take(runnable->engine, streams);
}

/* The call as one graph. */
static lap_status_t launch(lap_runnable_t *runnable)
{
    lap_stream_t *streams[LAP_STREAMS];
    int first = 0;
    if (lap_runnable_streams(runnable, streams, &first) == 0)
        return LAP_OK;
    return runnable->engine->device->ops->graph_launch(runnable->graph, streams[0]);
}

/* Whether this call is bound as the latest one was; it is the latest one from now on. */
static bool is_repeated(lap_runnable_t *runnable, const lap_binding_t *binding)
{
    const bool same = runnable->called && lap_binding_same(&runnable->last, binding);
    const bool alike = same && runnable->last.traced == binding->traced;
    runnable->captured = runnable->captured && alike;
    runnable->uncaptured = runnable->uncaptured && alike;
    runnable->last = *binding;
    runnable->called = true;
    return same;
}

/*
 * Whether the call is launched as a graph; it is the latest one from now on. The graph is made when
 * the same memory is given for the second time, traced or not: the first time has then found all
 * that must be found or loaded while nothing is being captured. A trace that has no room in graphs goes
 * without.
 */
static lap_status_t choose_graph(lap_runnable_t *runnable, const lap_binding_t *binding,
                                 bool *launched_p)
{
    lap_stream_t *streams[LAP_STREAMS];
    int first = 0;
    const size_t count = lap_runnable_streams(runnable, streams, &first);
    const bool captures = runnable->schedule.graph && !binding->chaos;
    const bool launched = captures && is_repeated(runnable, binding) && !runnable->uncaptured;
    if (launched && !runnable->captured && count > 0) {
        const lap_status_t status = capture(runnable, binding, streams, count);
        runnable->uncaptured = status == LAP_ERR_UNSUPPORTED && binding->traced;
        runnable->captured = status == LAP_OK;
        if (!runnable->uncaptured)
            LAP_TRY(status);
    }
    *launched_p = launched && !runnable->uncaptured;
    return LAP_OK;
}

void lap_runnable_forget_times(lap_runnable_t *runnable)
{
    const size_t count = lap_runnable_records(runnable);
    for (size_t i = 0; i < count; i++) {
        runnable->records[i].span = (lap_span_t){0, 0, 0};
        runnable->records[i].flight = (lap_span_t){0, 0, 0};
        runnable->records[i].delays = (lap_delays_t){0, 0};
    }
}

/* The targets of a call that was issued are absolute already. */
void lap_runnable_count_signals(const lap_runnable_t *runnable, lap_buffer_t *buffer)
{
    for (uint32_t s = 0; s < runnable->schedule.nsignals && buffer; s++)
        buffer->consumed[s] += runnable->schedule.raised[s];
}

/* A call in the background begins after all in the foreground. */
static lap_status_t join_before(const lap_runnable_t *runnable, const lap_buffer_t *buffer)
{
    const lap_stream_set_t set = set_of(runnable);
    if (set == LAP_FOREGROUND && !(buffer && buffer->in_flight > 0))
        return LAP_OK;
    return lap_engine_join(runnable->engine, set);
}

static lap_status_t issue(lap_runnable_t *runnable, const lap_binding_t *binding)
{
    lap_buffer_t *buffer = binding->buffer;
    bool launched;
    LAP_TRY(choose_graph(runnable, binding, &launched));
    const unsigned streams = lap_runnable_stream_bits(runnable);
    LAP_TRY(join_before(runnable, buffer));
    LAP_TRY(take_streams(runnable, launched));
    if (buffer)
        lap_runnable_announce(runnable, binding, false);
    if (binding->traced)
        lap_runnable_forget_times(runnable);
    LAP_TRY(launched ? launch(runnable) : lap_runnable_issue_steps(runnable, binding));
    LAP_TRY(record_ends(runnable, launched ? streams & (~streams + 1) : streams));
    lap_runnable_count_signals(runnable, buffer);
    return LAP_OK;
}

/* What is around all that a call gives the device: a mark for a profiler, and a row of calls. */
static lap_status_t open_call(const lap_runnable_t *runnable)
{
    LAP_TRY(lap_engine_calls_begin(runnable->engine));
    if (runnable->engine->marks)
        lap_marks_push(runnable->engine->marks, runnable->label);
    return LAP_OK;
}

static lap_status_t close_call(const lap_runnable_t *runnable, lap_status_t status)
{
    if (runnable->engine->marks)
        lap_marks_pop(runnable->engine->marks);
    lap_engine_calls_end(runnable->engine);
    return status;
}

lap_status_t lap_runnable_issue(lap_runnable_t *runnable, const lap_binding_t *binding)
{
    LAP_TRY(open_call(runnable));
    return close_call(runnable, issue(runnable, binding));
}

/* ---- in the order of a caller's stream ---- */

/* The streams go on when the caller's is here. */
static lap_status_t fork_streams(const lap_engine_t *engine, void *caller,
                                 lap_stream_t *const *streams, size_t count)
{
    const lap_device_ops_t *ops = engine->device->ops;
    lap_event_t *here;
    LAP_TRY(ops->caller_record(engine->device, caller, &here));
    for (size_t i = 0; i < count; i++)
        LAP_TRY(ops->stream_wait_event(streams[i], here));
    return LAP_OK;
}

/* The first stream of a call ends after all others: see end_call in issue.c. */
static lap_status_t enqueue(lap_runnable_t *runnable, const lap_binding_t *binding, void *caller)
{
    lap_engine_t *engine = runnable->engine;
    const lap_device_ops_t *ops = engine->device->ops;
    lap_stream_t *streams[LAP_STREAMS];
    int first = 0;
    const size_t count = lap_runnable_streams(runnable, streams, &first);
    if (count == 0)
        return LAP_OK;
    bool launched;
    LAP_TRY(choose_graph(runnable, binding, &launched));
    if (binding->buffer->in_flight > 0)
        LAP_TRY(lap_engine_join(engine, set_of(runnable)));
    LAP_TRY(take_streams(runnable, launched));
    lap_runnable_announce(runnable, binding, false);
    LAP_TRY(fork_streams(engine, caller, streams, launched ? 1 : count));
    LAP_TRY(launched ? launch(runnable) : lap_runnable_issue_steps(runnable, binding));
    lap_event_t *end = engine->enqueued_end[set_of(runnable)];
    LAP_TRY(ops->event_record(end, streams[0]));
    lap_engine_enqueued(engine, first);
    lap_runnable_count_signals(runnable, binding->buffer);
    return ops->caller_wait_event(caller, end);
}

lap_status_t lap_runnable_enqueue(lap_runnable_t *runnable, const lap_binding_t *binding,
                                  void *caller)
{
    LAP_TRY(lap_engine_check_free(runnable->engine));
    LAP_TRY(open_call(runnable));
    return close_call(runnable, enqueue(runnable, binding, caller));
}

/* With nothing that happens outside of the graph: there is only its own order in it. */
static lap_status_t enqueue_captured(lap_runnable_t *runnable, const lap_binding_t *binding,
                                     void *caller)
{
    lap_engine_t *engine = runnable->engine;
    const lap_device_ops_t *ops = engine->device->ops;
    lap_stream_t *streams[LAP_STREAMS];
    int first;
    const size_t count = lap_runnable_streams(runnable, streams, &first);
    if (count == 0)
        return LAP_OK;
    lap_runnable_announce(runnable, binding, true);
    engine->capturing = true;
    LAP_TRY(fork_streams(engine, caller, streams, count));
    LAP_TRY(lap_runnable_issue_steps(runnable, binding));
    lap_event_t *end = engine->captured_end[set_of(runnable)];
    LAP_TRY(ops->event_record(end, streams[0]));
    return ops->caller_wait_event(caller, end);
}

lap_status_t lap_runnable_enqueue_captured(lap_runnable_t *runnable, const lap_binding_t *binding,
                                           void *caller)
{
    if (!runnable->schedule.graph)
        return lap_error(
            LAP_ERR_UNSUPPORTED,
            "calls cannot be captured in a graph where ranks that are threads share a GPU, nor "
            "where "
            "NCCL puts to other hosts: there each put of a graph would wait for its receiver");
    LAP_TRY(open_call(runnable));
    return close_call(runnable, enqueue_captured(runnable, binding, caller));
}

lap_status_t lap_runnable_wait(lap_runnable_t *runnable)
{
    for (int s = 0; s < LAP_STREAMS; s++)
        if (runnable->ended >> s & 1)
            LAP_TRY(lap_engine_await(runnable->engine, runnable->ends[s]));
    return LAP_OK;
}

void lap_runnable_read_trace(const lap_runnable_t *runnable, lap_trace_t *trace)
{
    const size_t count = lap_runnable_records(runnable);
    trace->nrecords = count < trace->records_room ? count : trace->records_room;
    if (trace->nrecords > 0)
        memcpy(trace->records, runnable->records, trace->nrecords * sizeof(*trace->records));
}

const lap_trace_record_t *lap_runnable_records_of(const lap_runnable_t *runnable)
{
    return runnable->records;
}
