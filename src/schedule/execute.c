/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running linked programs. Fragments that follow one another without the host are a segment: issued
 * step by step the first time, and then launched as a graph. Graphs of one program are launched on one
 * stream, which ends after all of each; so links lead from one segment to another only where no
 * graph is launched. A program whose foreground waits for its background is one graph, of both, where
 * each stream can have a hardware queue. Where they share queues its segments are graphs apart, which wait
 * for each other by events: branches of one graph may run in any order, and one that waits for a peer could
 * hold up the one that the peer waits for. For the same reason messages of a pipeline are issued step by step
 * between the graphs of what is computed.
 */
#include "schedule/execute.h"

#include "schedule/guarded.h"
#include "schedule/runnable.h"
#include "schedule/segments.h"
#include "util/alloc.h"

/* A fragment as it is issued. */
typedef struct part {
    lap_exec_fragment_t fragment;
    lap_runnable_t *runnable; /* NULL: a kernel */
    lap_binding_t *binding;   /* of a runnable; else NULL */
    lap_operands_t operands;
    lap_event_t *event;    /* of a kernel: recorded after it; NULL when nobody waits for that */
    lap_span_t span;       /* of a kernel that is timed, */
    lap_delays_t delays;   /* and of its stream's thread */
    lap_graph_t *graph;    /* of the segment that begins here; NULL: none */
    uint32_t graph_end;    /* where that ends */
    lap_event_t *launched; /* recorded after it where others wait for it; NULL: nowhere */
    uint32_t segment;      /* the first fragment of the graph that it is in; LAP_NO_STEP: none */
} part_t;

struct lap_exec {
    lap_engine_t *engine;
    uint32_t nparts;
    part_t *parts;           /* per fragment */
    lap_binding_t *bindings; /* of those that are calls */
    lap_arg_t *args;         /* of all, one after the other */
    bool *begins;            /* per fragment: a segment does, unless all is one graph */
    lap_exec_owner_t owner;
    unsigned streams; /* bits: those that it uses */
    bool graphs;      /* it may be launched as graphs, */
    bool one_graph;   /* ... or only as one, of all sets, */
    bool apart;       /* ... or as those of segments, which wait for each other by events */
    bool uncaptured;  /* there was no room for one */
    bool timed;       /* kernels are */
    uint64_t issues;  /* since it was bound */
    bool launches;    /* what is being issued goes as graphs */
    unsigned joined;  /* bits: sets that are ordered after all before the program */
    uint32_t first;   /* links to fragments before this one are not needed */
    lap_event_t *ends[LAP_STREAMS];
    unsigned ended; /* bits: of `ends`, those recorded by the latest issue */
};

/* ---- making ---- */

static lap_event_t *event_of(const lap_exec_t *exec, uint32_t fragment, uint32_t step)
{
    const part_t *part = &exec->parts[fragment];
    return part->runnable ? part->runnable->events[step] : part->event;
}

static lap_stream_set_t set_of(const lap_exec_t *exec, uint32_t fragment)
{
    return exec->parts[fragment].fragment.set;
}

/* Whether each stream can have a queue of its own. */
static bool has_queues(const lap_device_t *device, unsigned streams)
{
    unsigned count = 0;
    for (; streams; streams &= streams - 1)
        count++;
    return device->queues == 0 || count <= device->queues;
}

/*
 * A program whose foreground waits for its background is one graph. Where its streams share queues it is one for each
 * segment: branches of a graph may come to a queue in any order, but graphs come in that of their launches.
 */
static void choose_graphs(lap_exec_t *exec, const lap_linked_t *linked)
{
    const bool messages = lap_linked_has_messages(linked);
    const bool goes_back = lap_linked_goes_back(linked);
    exec->one_graph = goes_back && !messages && has_queues(exec->engine->device, exec->streams);
    exec->apart = messages || (goes_back && !exec->one_graph);
    lap_linked_cut(linked, exec->begins);
}

static lap_status_t create_events(lap_exec_t *exec)
{
    lap_device_t *device = exec->engine->device;
    for (uint32_t f = 0; f < exec->nparts; f++)
        for (uint32_t i = 0; i < exec->parts[f].fragment.nlinks; i++) {
            const lap_link_dep_t *link = &exec->parts[f].fragment.links[i];
            part_t *part = &exec->parts[link->fragment];
            if (part->runnable)
                LAP_TRY(lap_runnable_need_event(part->runnable, link->dep));
            else if (!part->event)
                LAP_TRY(device->ops->event_create(device, &part->event));
        }
    for (int s = 0; s < LAP_STREAMS; s++)
        if (exec->streams >> s & 1)
            LAP_TRY(device->ops->event_create(device, &exec->ends[s]));
    return LAP_OK;
}

static lap_exec_fragment_t fragment_of(const lap_fragment_t *from)
{
    const lap_schedule_t *schedule = &from->schedule;
    const bool kernel = from->kernel;
    return (lap_exec_fragment_t){
        .origin = from->origin,
        .buffer = from->buffer,
        .set = schedule->set,
        .size = schedule->size,
        .kernel = kernel ? schedule->steps[0].name : NULL,
        .stream = kernel ? schedule->steps[0].stream : 0,
        .nlinks = from->nlinks,
        .links = from->links,
    };
}

/* Those of its steps, as bits. */
static unsigned streams_of(const lap_schedule_t *schedule)
{
    unsigned bits = 0;
    for (uint32_t i = 0; i < schedule->nsteps; i++)
        bits |= 1u << schedule->steps[i].stream;
    return bits;
}

static void fill_parts(lap_exec_t *exec, const lap_linked_t *linked)
{
    lap_binding_t *binding = exec->bindings;
    lap_arg_t *args = exec->args;
    for (uint32_t f = 0; f < exec->nparts; f++) {
        const lap_fragment_t *fragment = &linked->fragments[f];
        part_t *part = &exec->parts[f];
        part->fragment = fragment_of(fragment);
        part->binding = fragment->kernel ? NULL : binding++;
        part->operands = (lap_operands_t){args, lap_list_operands(linked, fragment, args)};
        args += part->operands.n;
        part->segment = LAP_NO_STEP;
        exec->streams |= streams_of(&fragment->schedule);
        exec->graphs = exec->graphs && (fragment->kernel || fragment->schedule.graph);
    }
}

static lap_status_t make_runnables(lap_exec_t *exec, lap_linked_t *linked)
{
    for (uint32_t f = 0; f < exec->nparts; f++)
        if (exec->parts[f].binding)
            LAP_TRY(lap_runnable_create(exec->engine, &linked->fragments[f].schedule,
                                        &exec->parts[f].runnable));
    return LAP_OK;
}

static size_t count_operands(const lap_linked_t *linked, const lap_fragment_t *fragment)
{
    lap_arg_t args[LAP_OPERANDS_MOST];
    return lap_list_operands(linked, fragment, args);
}

/* All of the program but for its links, which the parts have. */
static void clear_rest(lap_linked_t *linked)
{
    for (uint32_t f = 0; f < linked->nfragments; f++)
        linked->fragments[f].links = NULL;
    lap_linked_clear(linked);
}

lap_status_t lap_exec_create(lap_engine_t *engine, lap_linked_t *linked,
                             const lap_exec_owner_t *owner, lap_exec_t **exec_p)
{
    const uint32_t count = linked->nfragments;
    size_t ncalls = 0, nargs = 0;
    for (uint32_t f = 0; f < count; f++) {
        ncalls += !linked->fragments[f].kernel;
        nargs += count_operands(linked, &linked->fragments[f]);
    }
    lap_exec_t *exec = lap_alloc(1, sizeof(*exec));
    part_t *parts = lap_alloc((size_t)count + 1, sizeof(*parts));
    lap_binding_t *bindings = lap_alloc(ncalls, sizeof(*bindings));
    lap_arg_t *args = lap_alloc(nargs + 1, sizeof(*args));
    bool *begins = lap_alloc((size_t)count + 1, sizeof(*begins));
    if (!exec || !parts || !bindings || !args || !begins) {
        lap_linked_clear(linked);
        lap_free(exec);
        lap_free(parts);
        lap_free(bindings);
        lap_free(args);
        lap_free(begins);
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a program of %u fragments",
                         (unsigned)count);
    }
    *exec = (lap_exec_t){
        .engine = engine,
        .nparts = count,
        .parts = parts,
        .bindings = bindings,
        .args = args,
        .begins = begins,
        .owner = *owner,
        .graphs = engine->device->ops->facts.graphs,
    };
    fill_parts(exec, linked);
    choose_graphs(exec, linked);
    lap_status_t status = make_runnables(exec, linked);
    clear_rest(linked);
    if (status == LAP_OK)
        status = lap_engine_need_streams(engine, exec->streams);
    if (status == LAP_OK)
        status = create_events(exec);
    if (status != LAP_OK) {
        lap_exec_destroy(exec);
        return status;
    }
    *exec_p = exec;
    return LAP_OK;
}

size_t lap_exec_fragment_bytes(const lap_linked_t *linked, const lap_fragment_t *fragment)
{
    return sizeof(part_t) + fragment->nlinks * sizeof(lap_link_dep_t) +
           count_operands(linked, fragment) * sizeof(lap_arg_t) +
           (fragment->kernel ? 0 : sizeof(lap_binding_t) + lap_runnable_bytes(&fragment->schedule));
}

void lap_exec_destroy(lap_exec_t *exec)
{
    if (!exec)
        return;
    const lap_device_ops_t *ops = exec->engine->device->ops;
    for (uint32_t f = 0; f < exec->nparts; f++) {
        part_t *part = &exec->parts[f];
        if (part->graph)
            ops->graph_destroy(part->graph);
        if (part->event)
            ops->event_destroy(part->event);
        if (part->launched)
            ops->event_destroy(part->launched);
        lap_runnable_destroy(part->runnable);
        lap_free(part->fragment.links);
    }
    for (int s = 0; s < LAP_STREAMS; s++)
        if (exec->ends[s])
            ops->event_destroy(exec->ends[s]);
    lap_free(exec->parts);
    lap_free(exec->bindings);
    lap_free(exec->args);
    lap_free(exec->begins);
    lap_free(exec);
}

uint32_t lap_exec_nfragments(const lap_exec_t *exec)
{
    return exec->nparts;
}

const lap_exec_fragment_t *lap_exec_fragment(const lap_exec_t *exec, uint32_t fragment)
{
    return &exec->parts[fragment].fragment;
}

lap_runnable_t *lap_exec_runnable(lap_exec_t *exec, uint32_t fragment)
{
    return exec->parts[fragment].runnable;
}

void lap_exec_time_kernels(lap_exec_t *exec, bool on)
{
    exec->timed = on;
}

const lap_span_t *lap_exec_kernel_span(const lap_exec_t *exec, uint32_t fragment)
{
    return &exec->parts[fragment].span;
}

lap_delays_t lap_exec_kernel_delays(const lap_exec_t *exec, uint32_t fragment)
{
    return exec->parts[fragment].delays;
}

static void bind_part(const lap_exec_t *exec, part_t *part)
{
    const lap_exec_owner_t *owner = &exec->owner;
    lap_arg_t *args = exec->args + (part->operands.at - exec->args);
    lap_bind_operands(args, part->operands.n, owner->base, owner->context);
    if (!part->runnable)
        return;
    *part->binding = owner->call(owner->context, part->fragment.origin, part->runnable->schedule.m);
    lap_bind_call(&part->operands, &part->runnable->schedule, part->binding);
}

/* Graphs are made anew when they are next needed; those that are there may serve for that. */
lap_status_t lap_exec_bind(lap_exec_t *exec)
{
    exec->issues = 0;
    exec->uncaptured = false;
    for (uint32_t f = 0; f < exec->nparts; f++) {
        part_t *part = &exec->parts[f];
        part->graph_end = 0;
        bind_part(exec, part);
        if (part->runnable)
            LAP_TRY(lap_runnable_prepare(part->runnable, part->binding, false));
        if (part->runnable && part->binding->chaos)
            exec->graphs = false;
    }
    return LAP_OK;
}

/* ---- issuing ---- */

/* The fragment being issued, and the first of its links that no step has reached yet. */
typedef struct walk {
    const lap_exec_t *exec;
    const lap_exec_fragment_t *fragment;
    uint32_t next;
} walk_t;

/* The step, or where it is in a graph that was launched, that. */
static lap_status_t await_link(const lap_exec_t *exec, const lap_link_dep_t *link,
                               lap_stream_t *stream)
{
    const uint32_t segment = exec->parts[link->fragment].segment;
    return exec->engine->device->ops->stream_wait_event(
        stream, segment == LAP_NO_STEP ? event_of(exec, link->fragment, link->dep)
                                       : exec->parts[segment].launched);
}

/* Links are in the order of steps. */
static lap_status_t await_links(void *context, uint32_t step, lap_stream_t *stream)
{
    walk_t *walk = context;
    const lap_exec_t *exec = walk->exec;
    const lap_exec_fragment_t *fragment = walk->fragment;
    for (; walk->next < fragment->nlinks && fragment->links[walk->next].step == step;
         walk->next++) {
        const lap_link_dep_t *link = &fragment->links[walk->next];
        if (link->fragment >= exec->first)
            LAP_TRY(await_link(exec, link, stream));
    }
    return LAP_OK;
}

static lap_status_t call_kernel(const lap_exec_t *exec, const part_t *part, lap_stream_t *stream)
{
    const lap_exec_owner_t *owner = &exec->owner;
    if (exec->engine->device->ops->guards)
        return lap_exec_issue_guarded(owner, &part->fragment, &part->operands, stream);
    return owner->kernel(owner->context, part->fragment.origin, &part->operands, stream);
}

static lap_status_t issue_kernel(lap_exec_t *exec, walk_t *walk, uint32_t f)
{
    const lap_device_ops_t *ops = exec->engine->device->ops;
    lap_stream_t *stream = exec->engine->streams[walk->fragment->stream];
    part_t *part = &exec->parts[f];
    LAP_TRY(await_links(walk, 0, stream));
    if (exec->timed) {
        LAP_TRY(ops->stamp_delay(stream, &part->delays.before));
        LAP_TRY(ops->stamp(stream, &part->span.begin));
    }
    LAP_TRY(call_kernel(exec, part, stream));
    if (exec->timed) {
        LAP_TRY(ops->stamp(stream, &part->span.end));
        LAP_TRY(ops->stamp_delay(stream, &part->delays.running));
    }
    return part->event ? ops->event_record(part->event, stream) : LAP_OK;
}

static lap_status_t join(const lap_exec_t *exec, lap_stream_set_t set)
{
    LAP_TRY(lap_engine_join(exec->engine, set));
    return lap_engine_take(exec->engine, exec->streams & lap_stream_bits(set));
}

static lap_status_t issue_fragment(lap_exec_t *exec, uint32_t f)
{
    const part_t *part = &exec->parts[f];
    walk_t walk = {.exec = exec, .fragment = &exec->parts[f].fragment};
    if (!part->runnable)
        return issue_kernel(exec, &walk, f);
    const lap_links_t links = {await_links, &walk};
    lap_binding_t binding = *part->binding;
    if (binding.chaos)
        binding.chaos += exec->issues;
    lap_marks_t *marks = exec->engine->marks;
    if (marks)
        lap_marks_push(marks, part->runnable->label);
    const lap_status_t status = lap_runnable_issue_linked(part->runnable, &binding, &links);
    if (marks)
        lap_marks_pop(marks);
    return status;
}

/* Before a fragment is issued, or launched. */
static void announce(part_t *part)
{
    part->span = (lap_span_t){0, 0, 0};
    part->delays = (lap_delays_t){0, 0};
    if (part->runnable && part->binding->buffer)
        lap_runnable_announce(part->runnable, part->binding, false);
    if (part->runnable && part->binding->traced)
        lap_runnable_forget_times(part->runnable);
}

static void count_signals(const part_t *part)
{
    if (part->runnable)
        lap_runnable_count_signals(part->runnable, part->binding->buffer);
}

static lap_status_t issue_steps(lap_exec_t *exec, uint32_t first, uint32_t end)
{
    for (uint32_t f = first; f < end; f++) {
        announce(&exec->parts[f]);
        const lap_stream_set_t set = set_of(exec, f);
        if (!(exec->joined >> set & 1))
            LAP_TRY(join(exec, set));
        exec->joined |= 1u << set;
        LAP_TRY(issue_fragment(exec, f));
        count_signals(&exec->parts[f]);
    }
    return LAP_OK;
}

/* ---- graphs ---- */

static bool is_launched(const lap_exec_t *exec, lap_stream_set_t set)
{
    return exec->launches && set <= LAP_BACKGROUND;
}

/* The streams of a set; where all sets are launched as one graph, those of all. */
static unsigned graph_bits(const lap_exec_t *exec, lap_stream_set_t set)
{
    return exec->streams & (exec->one_graph && exec->launches ? ~0u : lap_stream_bits(set));
}

static size_t list_streams(const lap_exec_t *exec, lap_stream_set_t set, lap_stream_t **streams)
{
    const unsigned bits = graph_bits(exec, set);
    size_t count = 0;
    for (int s = 0; s < LAP_STREAMS; s++)
        if (bits >> s & 1)
            streams[count++] = exec->engine->streams[s];
    return count;
}

static lap_status_t capture(lap_exec_t *exec, uint32_t first, uint32_t end)
{
    const lap_device_ops_t *device = exec->engine->device->ops;
    part_t *part = &exec->parts[first];
    lap_stream_t *streams[LAP_STREAMS];
    const size_t count = list_streams(exec, set_of(exec, first), streams);
    LAP_TRY(device->graph_begin(streams, count));
    lap_status_t status = LAP_OK;
    exec->first = first;
    for (uint32_t f = first; f < end && status == LAP_OK; f++)
        status = issue_fragment(exec, f);
    lap_saved_error_t saved;
    lap_error_save(&saved);
    const lap_status_t ended = device->graph_end(streams, count, &part->graph);
    exec->first = exec->apart ? 0 : first;
    if (status == LAP_OK)
        return ended;
    lap_error_restore(&saved);
    return status;
}

/* Makes the graph of a segment, unless it is there. A trace that has no room in graphs goes without. */
static lap_status_t get_graph(lap_exec_t *exec, uint32_t first, uint32_t end)
{
    part_t *part = &exec->parts[first];
    if (part->graph_end == end)
        return LAP_OK;
    const lap_status_t status = capture(exec, first, end);
    bool traced = exec->timed;
    for (uint32_t f = first; f < end; f++)
        traced = traced || (exec->parts[f].runnable && exec->parts[f].binding->traced);
    exec->uncaptured = status == LAP_ERR_UNSUPPORTED && traced;
    if (exec->uncaptured) /* the rest goes step by step, after the graphs so far */
        exec->launches = false;
    else
        LAP_TRY(status);
    part->graph_end = status == LAP_OK ? end : 0;
    return exec->apart && !part->launched
               ? exec->engine->device->ops->event_create(exec->engine->device, &part->launched)
               : LAP_OK;
}

/* What a graph waits for, of messages and of graphs on another stream: its first fragment does, see lap_linked_cut. */
static lap_status_t await_outside(const lap_exec_t *exec, uint32_t first, lap_stream_t *stream)
{
    const lap_exec_fragment_t *fragment = &exec->parts[first].fragment;
    for (uint32_t i = 0; i < fragment->nlinks; i++)
        if (set_of(exec, fragment->links[i].fragment) != set_of(exec, first))
            LAP_TRY(await_link(exec, &fragment->links[i], stream));
    return LAP_OK;
}

static lap_status_t launch(lap_exec_t *exec, uint32_t first, uint32_t end)
{
    const lap_device_ops_t *ops = exec->engine->device->ops;
    const lap_stream_set_t set = set_of(exec, first);
    lap_stream_t *streams[LAP_STREAMS];
    (void)list_streams(exec, set, streams);
    for (int other = LAP_FOREGROUND + 1; other < LAP_STREAM_SETS; other++)
        if (graph_bits(exec, set) & lap_stream_bits((lap_stream_set_t)other))
            LAP_TRY(lap_engine_join(exec->engine, (lap_stream_set_t)other));
    LAP_TRY(lap_engine_take_graph(exec->engine, graph_bits(exec, set)));
    if (exec->apart)
        LAP_TRY(await_outside(exec, first, streams[0]));
    for (uint32_t f = first; f < end; f++)
        announce(&exec->parts[f]);
    LAP_TRY(ops->graph_launch(exec->parts[first].graph, streams[0]));
    if (exec->apart)
        LAP_TRY(ops->event_record(exec->parts[first].launched, streams[0]));
    for (uint32_t f = first; f < end; f++) {
        if (exec->apart)
            exec->parts[f].segment = first;
        count_signals(&exec->parts[f]);
    }
    return LAP_OK;
}

/* ---- all of it ---- */

lap_status_t lap_exec_begin(lap_exec_t *exec)
{
    exec->launches = exec->graphs && exec->issues > 0 && !exec->uncaptured;
    exec->issues++;
    exec->first = 0;
    exec->ended = 0;
    exec->joined = 1u << LAP_FOREGROUND;
    for (uint32_t f = 0; exec->apart && f < exec->nparts; f++)
        exec->parts[f].segment = LAP_NO_STEP;
    return exec->launches ? lap_engine_join(exec->engine, LAP_FOREGROUND)
                          : join(exec, LAP_FOREGROUND);
}

/* Fragments of one set, or all. */
static lap_status_t issue_segment(lap_exec_t *exec, uint32_t first, uint32_t end)
{
    const lap_stream_set_t set = set_of(exec, first);
    if (is_launched(exec, set))
        LAP_TRY(get_graph(exec, first, end));
    if (is_launched(exec, set))
        return launch(exec, first, end);
    if (exec->uncaptured && set <= LAP_BACKGROUND) {
        exec->first = exec->apart ? 0 : first;
        LAP_TRY(join(exec, set));
    }
    return issue_steps(exec, first, end);
}

lap_status_t lap_exec_issue(lap_exec_t *exec, uint32_t first, uint32_t end)
{
    for (uint32_t next; first < end; first = next) {
        const bool all = exec->one_graph;
        for (next = first + 1; next < end && (all || !exec->begins[next]);)
            next++;
        LAP_TRY(issue_segment(exec, first, next));
    }
    return LAP_OK;
}

/* Of a set that is launched as graphs, the first stream ends after all of it; so it does of one graph. */
static unsigned last_streams(const lap_exec_t *exec, lap_stream_set_t set)
{
    const unsigned all = graph_bits(exec, set);
    return is_launched(exec, set) ? all & (~all + 1) : all;
}

lap_status_t lap_exec_end(lap_exec_t *exec)
{
    for (int set = 0; set < LAP_STREAM_SETS; set++)
        exec->ended |= last_streams(exec, (lap_stream_set_t)set);
    for (int s = 0; s < LAP_STREAMS; s++)
        if (exec->ended >> s & 1)
            LAP_TRY(
                exec->engine->device->ops->event_record(exec->ends[s], exec->engine->streams[s]));
    return LAP_OK;
}

void lap_exec_numbers(const lap_exec_t *exec, uint32_t buffer, uint64_t *first_p, uint64_t *last_p)
{
    *first_p = *last_p = 0;
    for (uint32_t f = 0; f < exec->nparts; f++) {
        const part_t *part = &exec->parts[f];
        const bool counts = part->runnable && part->fragment.buffer == buffer;
        const uint64_t number = counts ? lap_runnable_number(part->runnable) : 0;
        if (number > 0 && (*first_p == 0 || number < *first_p))
            *first_p = number;
        *last_p = number > *last_p ? number : *last_p;
    }
}

lap_status_t lap_exec_wait(lap_exec_t *exec, lap_stream_set_t set)
{
    const unsigned ended = exec->ended & last_streams(exec, set);
    for (int s = 0; s < LAP_STREAMS; s++)
        if (ended >> s & 1)
            LAP_TRY(lap_engine_await(exec->engine, exec->ends[s]));
    return LAP_OK;
}
