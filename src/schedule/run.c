/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running a schedule: a program is made once, with all that issuing its steps needs (issue.c), and
 * then called again and again, each call issued step by step or launched as a graph.
 */
#include "schedule/run.h"

#include <stdio.h>
#include <string.h>

#include "schedule/bind.h"
#include "schedule/guard.h"
#include "schedule/program.h"
#include "util/alloc.h"

lap_status_t lap_program_need_event(lap_program_t *program, uint32_t step)
{
    lap_device_t *device = program->engine->device;
    return program->events[step] ? LAP_OK
                                 : device->ops->event_create(device, &program->events[step]);
}

static lap_status_t create_events(lap_program_t *program)
{
    const lap_schedule_t *schedule = &program->schedule;
    lap_device_t *device = program->engine->device;
    for (uint32_t i = 0; i < schedule->nsteps; i++) {
        const lap_step_t *step = &schedule->steps[i];
        for (uint32_t d = 0; d < step->ndeps; d++)
            LAP_TRY(lap_program_need_event(program, step->deps[d]));
        if (!program->ends[step->stream])
            LAP_TRY(device->ops->event_create(device, &program->ends[step->stream]));
    }
    return LAP_OK;
}

static void fill_reasons(lap_program_t *program)
{
    const lap_schedule_t *schedule = &program->schedule;
    bool all = true; /* with rows of all ranks, what each has in the end is made from all */
    for (int rank = 0; rank < schedule->size; rank++)
        all = all && lap_shard(schedule->m, schedule->size, rank, NULL) > 0;
    for (uint32_t i = 0; i < schedule->nsteps; i++)
        program->reasons[i] = (lap_wait_reason_t){
            .op = lap_op_kind_name(schedule->kind),
            .method = schedule->method,
            .step = i,
            .m = schedule->m,
            .name_signal = lap_signal_name,
            .all = all,
        };
}

/* Whether any range of the schedule is the scale of what this rank sends. */
static bool sends_scale(const lap_schedule_t *schedule)
{
    bool found = false;
    for (uint32_t i = 0; i < schedule->nsteps; i++)
        found = found || schedule->steps[i].src.place == LAP_SCALE;
    for (uint32_t i = 0; i < schedule->nblocks; i++)
        found = found || (schedule->blocks[i].scale.rows > 0 &&
                          schedule->blocks[i].scale.place == LAP_SCALE);
    for (uint32_t i = 0; i < schedule->nranges; i++)
        found = found || schedule->ranges[i].place == LAP_SCALE;
    return found;
}

lap_status_t lap_program_create(lap_engine_t *engine, lap_schedule_t *schedule,
                                lap_program_t **program_p)
{
    lap_program_t *program = lap_alloc(1, sizeof(*program));
    if (!program) {
        lap_status_t status =
            lap_error(LAP_ERR_NO_MEMORY, "no memory for a program of %u steps", schedule->nsteps);
        lap_schedule_clear(schedule);
        return status;
    }
    program->engine = engine;
    program->schedule = *schedule;
    memset(schedule, 0, sizeof(*schedule));
    const lap_schedule_t *own = &program->schedule;
    lap_status_t status = own->status;
    program->blocks = lap_alloc(own->nblocks, sizeof(*program->blocks));
    program->raises = lap_alloc(own->nblocks, sizeof(*program->raises));
    program->gemms = lap_alloc(own->nsteps, sizeof(*program->gemms));
    program->reasons = lap_alloc(own->nsteps, sizeof(*program->reasons));
    program->events = lap_alloc(own->nsteps, sizeof(lap_event_t *));
    program->sources = lap_alloc(own->nranges, sizeof(void *));
    program->source_strides = lap_alloc(own->nranges, sizeof(size_t));
    program->finishes = lap_alloc(own->nsteps, sizeof(*program->finishes));
    program->records = lap_alloc(lap_program_records(program), sizeof(*program->records));
    bool room = program->blocks && program->raises && program->gemms && program->reasons &&
                program->events && program->sources && program->source_strides &&
                program->finishes && program->records;
    if (!room)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for a program of %u steps", own->nsteps);
    if (status == LAP_OK)
        status = lap_engine_need_set(engine, own->set);
    if (status == LAP_OK)
        status = create_events(program);
    if (status != LAP_OK) {
        lap_program_destroy(program);
        return status;
    }
    program->sends_scale = sends_scale(own);
    fill_reasons(program);
    snprintf(program->label, sizeof(program->label), "lap %s %s m=%zu", lap_op_kind_name(own->kind),
             own->method, own->m);
    *program_p = program;
    return LAP_OK;
}

void lap_program_destroy(lap_program_t *program)
{
    if (!program)
        return;
    for (uint32_t i = 0; program->events && i < program->schedule.nsteps; i++)
        if (program->events[i])
            program->engine->device->ops->event_destroy(program->events[i]);
    for (int stream = 0; stream < LAP_STREAMS; stream++)
        if (program->ends[stream])
            program->engine->device->ops->event_destroy(program->ends[stream]);
    if (program->graph)
        program->engine->device->ops->graph_destroy(program->graph);
    lap_free(program->blocks);
    lap_free(program->raises);
    lap_free(program->gemms);
    lap_free(program->reasons);
    lap_free(program->events);
    lap_free(program->sources);
    lap_free(program->source_strides);
    lap_free(program->finishes);
    lap_free(program->records);
    lap_schedule_clear(&program->schedule);
    lap_free(program);
}

const lap_schedule_t *lap_program_schedule(const lap_program_t *program)
{
    return &program->schedule;
}

/* A GEMM step has a record per block, what only counts has none, every other step one. */
size_t lap_program_records(const lap_program_t *program)
{
    size_t count = 0;
    for (uint32_t i = 0; i < program->schedule.nsteps; i++) {
        const lap_step_t *step = &program->schedule.steps[i];
        count += step->kind == LAP_STEP_GEMM ? step->count : step->kind != LAP_STEP_CONSUME;
    }
    return count;
}

/*
 * The number of a call in its group: all ranks begin calls that communicate in the same order. What
 * runs in a graph of the caller's is begun by nobody here.
 */
static uint64_t count_call(const lap_program_t *program, lap_group_t *group, bool captured)
{
    group->uncounted = group->uncounted || captured;
    if (program->schedule.kind == LAP_GEMM || group->size == 1)
        return 0;
    return group->uncounted ? LAP_CALL_ANY : ++group->calls;
}

/*
 * A call that is captured in a caller's graph runs any number of times, perhaps never: from then on calls have no numbers, and
 * peers that have none to compare leave it to the tags, which are counted where the calls run.
 */
void lap_program_announce(lap_program_t *program, const lap_binding_t *binding, bool captured)
{
    lap_buffer_t *buffer = binding->buffer;
    buffer->unnumbered = buffer->unnumbered || captured;
    const uint64_t number = count_call(program, buffer->group, captured);
    const uint32_t call = buffer->unnumbered ? 0 : ++buffer->calls;
    /* A call that is captured as a graph raises the same tags every time. */
    const bool replays = program->engine->device->ops->facts.graphs;
    const uint64_t tag = lap_call_tag(replays ? 0 : call, binding->op_index, program->schedule.m);
    lap_wait_reason_t reason = {.call = call, .op_index = binding->op_index, .number = number};
    reason.op = lap_op_kind_name(program->schedule.kind);
    reason.m = program->schedule.m;
    lap_guard_hold(program->engine->guard); /* an earlier call may still wait with these */
    for (uint32_t i = 0; i < program->schedule.nsteps; i++) {
        program->reasons[i].call = call;
        program->reasons[i].op_index = binding->op_index;
        program->reasons[i].tag = tag;
        program->reasons[i].number = number == LAP_CALL_ANY ? 0 : number;
    }
    lap_guard_go(program->engine->guard);
    program->number = number == LAP_CALL_ANY ? 0 : number;
    if (call != 0)
        lap_buffer_announce(buffer, &reason);
    else /* nothing that comes later tells how far this rank is */
        atomic_store_explicit(&buffer->notes[buffer->group->rank]->number, LAP_CALL_ANY,
                              memory_order_release);
}

uint64_t lap_program_number(const lap_program_t *program)
{
    return program->number;
}

size_t lap_program_streams(const lap_program_t *program, lap_stream_t **streams, int *first_p)
{
    size_t count = 0;
    for (int s = 0; s < LAP_STREAMS; s++) {
        if (!program->ends[s])
            continue;
        if (count == 0)
            *first_p = s;
        streams[count++] = program->engine->streams[s];
    }
    return count;
}

static lap_stream_set_t set_of(const lap_program_t *program)
{
    return program->schedule.set;
}

unsigned lap_program_stream_bits(const lap_program_t *program)
{
    unsigned bits = 0;
    for (int s = 0; s < LAP_STREAMS; s++)
        if (program->ends[s])
            bits |= 1u << s;
    return bits;
}

static lap_status_t record_ends(lap_program_t *program, unsigned streams)
{
    const lap_engine_t *engine = program->engine;
    program->ended = streams;
    for (int s = 0; s < LAP_STREAMS; s++)
        if (streams >> s & 1)
            LAP_TRY(engine->device->ops->event_record(program->ends[s], engine->streams[s]));
    return LAP_OK;
}

/* Makes the graph of calls that are bound like this one. */
static lap_status_t capture(lap_program_t *program, const lap_binding_t *binding,
                            lap_stream_t *const *streams, size_t count)
{
    const lap_device_ops_t *device = program->engine->device->ops;
    LAP_TRY(device->graph_begin(streams, count));
    const lap_status_t status = lap_program_issue_steps(program, binding);
    lap_saved_error_t saved;
    lap_error_save(&saved);
    const lap_status_t ended = device->graph_end(streams, count, &program->graph);
    if (status == LAP_OK)
        return ended;
    if (program->graph)
        device->graph_destroy(program->graph);
    program->graph = NULL;
    lap_error_restore(&saved);
    return status;
}

/* Before the call is issued, or launched. */
static lap_status_t take_streams(const lap_program_t *program, bool launched)
{
    const unsigned streams = lap_program_stream_bits(program);
    return launched ? lap_engine_take_graph(program->engine, streams)
                    : lap_engine_take(program->engine, streams);
}

/* The call as one graph. */
static lap_status_t launch(lap_program_t *program)
{
    lap_stream_t *streams[LAP_STREAMS];
    int first = 0;
    if (lap_program_streams(program, streams, &first) == 0)
        return LAP_OK;
    return program->engine->device->ops->graph_launch(program->graph, streams[0]);
}

/* Whether this call is bound as the latest one was; it is the latest one from now on. */
static bool is_repeated(lap_program_t *program, const lap_binding_t *binding)
{
    const bool same = program->called && lap_binding_same(&program->last, binding);
    const bool alike = same && program->last.traced == binding->traced;
    program->captured = program->captured && alike;
    program->uncaptured = program->uncaptured && alike;
    program->last = *binding;
    program->called = true;
    return same;
}

/*
 * Whether the call is launched as a graph; it is the latest one from now on. The graph is made when
 * the same memory is given for the second time, traced or not: the first time has then found all
 * that must be found or loaded while nothing is being captured. A trace that has no room in graphs goes
 * without.
 */
static lap_status_t choose_graph(lap_program_t *program, const lap_binding_t *binding,
                                 bool *launched_p)
{
    lap_stream_t *streams[LAP_STREAMS];
    int first = 0;
    const size_t count = lap_program_streams(program, streams, &first);
    const bool captures = program->schedule.graph && !binding->chaos;
    const bool launched = captures && is_repeated(program, binding) && !program->uncaptured;
    if (launched && !program->captured && count > 0) {
        const lap_status_t status = capture(program, binding, streams, count);
        program->uncaptured = status == LAP_ERR_UNSUPPORTED && binding->traced;
        program->captured = status == LAP_OK;
        if (!program->uncaptured)
            LAP_TRY(status);
    }
    *launched_p = launched && !program->uncaptured;
    return LAP_OK;
}

void lap_program_forget_times(lap_program_t *program)
{
    const size_t count = lap_program_records(program);
    for (size_t i = 0; i < count; i++) {
        program->records[i].span = (lap_span_t){0, 0, 0};
        program->records[i].flight = (lap_span_t){0, 0, 0};
        program->records[i].delays = (lap_delays_t){0, 0};
    }
}

/* The targets of a call that was issued are absolute already. */
void lap_program_count_signals(const lap_program_t *program, lap_buffer_t *buffer)
{
    for (uint32_t s = 0; s < program->schedule.nsignals && buffer; s++)
        buffer->consumed[s] += program->schedule.raised[s];
}

/* A call in the background begins after all in the foreground. */
static lap_status_t join_before(const lap_program_t *program, const lap_buffer_t *buffer)
{
    const lap_stream_set_t set = set_of(program);
    if (set == LAP_FOREGROUND && !(buffer && buffer->in_flight > 0))
        return LAP_OK;
    return lap_engine_join(program->engine, set);
}

static lap_status_t issue(lap_program_t *program, const lap_binding_t *binding)
{
    lap_buffer_t *buffer = binding->buffer;
    bool launched;
    LAP_TRY(choose_graph(program, binding, &launched));
    const unsigned streams = lap_program_stream_bits(program);
    LAP_TRY(join_before(program, buffer));
    LAP_TRY(take_streams(program, launched));
    if (buffer)
        lap_program_announce(program, binding, false);
    if (binding->traced)
        lap_program_forget_times(program);
    LAP_TRY(launched ? launch(program) : lap_program_issue_steps(program, binding));
    LAP_TRY(record_ends(program, launched ? streams & (~streams + 1) : streams));
    lap_program_count_signals(program, buffer);
    return LAP_OK;
}

/* What is around all that a call gives the device: a mark for a profiler, and a row of calls. */
static lap_status_t open_call(const lap_program_t *program)
{
    LAP_TRY(lap_engine_calls_begin(program->engine));
    if (program->engine->marks)
        lap_marks_push(program->engine->marks, program->label);
    return LAP_OK;
}

static lap_status_t close_call(const lap_program_t *program, lap_status_t status)
{
    if (program->engine->marks)
        lap_marks_pop(program->engine->marks);
    lap_engine_calls_end(program->engine);
    return status;
}

lap_status_t lap_program_issue(lap_program_t *program, const lap_binding_t *binding)
{
    LAP_TRY(open_call(program));
    return close_call(program, issue(program, binding));
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
static lap_status_t enqueue(lap_program_t *program, const lap_binding_t *binding, void *caller)
{
    lap_engine_t *engine = program->engine;
    const lap_device_ops_t *ops = engine->device->ops;
    lap_stream_t *streams[LAP_STREAMS];
    int first = 0;
    const size_t count = lap_program_streams(program, streams, &first);
    if (count == 0)
        return LAP_OK;
    bool launched;
    LAP_TRY(choose_graph(program, binding, &launched));
    if (binding->buffer->in_flight > 0)
        LAP_TRY(lap_engine_join(engine, set_of(program)));
    LAP_TRY(take_streams(program, launched));
    lap_program_announce(program, binding, false);
    LAP_TRY(fork_streams(engine, caller, streams, launched ? 1 : count));
    LAP_TRY(launched ? launch(program) : lap_program_issue_steps(program, binding));
    lap_event_t *end = engine->enqueued_end[set_of(program)];
    LAP_TRY(ops->event_record(end, streams[0]));
    lap_engine_enqueued(engine, first);
    lap_program_count_signals(program, binding->buffer);
    return ops->caller_wait_event(caller, end);
}

lap_status_t lap_program_enqueue(lap_program_t *program, const lap_binding_t *binding, void *caller)
{
    LAP_TRY(lap_engine_check_free(program->engine));
    LAP_TRY(open_call(program));
    return close_call(program, enqueue(program, binding, caller));
}

/* With nothing that happens outside of the graph: there is only its own order in it. */
static lap_status_t enqueue_captured(lap_program_t *program, const lap_binding_t *binding,
                                     void *caller)
{
    lap_engine_t *engine = program->engine;
    const lap_device_ops_t *ops = engine->device->ops;
    lap_stream_t *streams[LAP_STREAMS];
    int first;
    const size_t count = lap_program_streams(program, streams, &first);
    if (count == 0)
        return LAP_OK;
    lap_program_announce(program, binding, true);
    engine->capturing = true;
    LAP_TRY(fork_streams(engine, caller, streams, count));
    LAP_TRY(lap_program_issue_steps(program, binding));
    lap_event_t *end = engine->captured_end[set_of(program)];
    LAP_TRY(ops->event_record(end, streams[0]));
    return ops->caller_wait_event(caller, end);
}

lap_status_t lap_program_enqueue_captured(lap_program_t *program, const lap_binding_t *binding,
                                          void *caller)
{
    if (!program->schedule.graph)
        return lap_error(
            LAP_ERR_UNSUPPORTED,
            "calls cannot be captured in a graph where ranks that are threads share a GPU, nor "
            "where "
            "NCCL puts to other hosts: there each put of a graph would wait for its receiver");
    LAP_TRY(open_call(program));
    return close_call(program, enqueue_captured(program, binding, caller));
}

lap_status_t lap_program_wait(lap_program_t *program)
{
    for (int s = 0; s < LAP_STREAMS; s++)
        if (program->ended >> s & 1)
            LAP_TRY(lap_engine_await(program->engine, program->ends[s]));
    return LAP_OK;
}

void lap_program_read_trace(const lap_program_t *program, lap_trace_t *trace)
{
    const size_t count = lap_program_records(program);
    trace->nrecords = count < trace->records_room ? count : trace->records_room;
    if (trace->nrecords > 0)
        memcpy(trace->records, program->records, trace->nrecords * sizeof(*trace->records));
}

const lap_trace_record_t *lap_program_records_of(const lap_program_t *program)
{
    return program->records;
}
