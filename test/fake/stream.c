/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, events and captures of the fake driver: see fake.h. Graphs are in exec.c and nodes.c. */
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "graph.h"

#define BRANCHES 32 /* streams that may take part in a graph */

typedef struct event {
    CUcontext context;
    record_t *latest;
    struct graph *graph; /* the latest record was captured in this one, as number `mark` */
    int mark;
} event_t;

typedef struct queue {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t more, less;
    op_t *first, *last;
    uint64_t issued, done; /* the last op that was issued, and that has run, by their numbers */
    bool ends;
} queue_t;

typedef struct stream {
    CUcontext context;
    bool is_default; /* of its context */
    queue_t *queue;
    uint64_t awaited; /* number of its last op for which cuMemFree waits */
    graph_t *capture; /* what is issued goes there */
    CUstreamCaptureMode mode;
    struct stream *next;
} stream_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows */
static stream_t *streams;
static queue_t *shared; /* with FAKE_ONE_QUEUE */
static atomic_uint launches;
static atomic_int passed;             /* seconds that the clock of events is ahead */
static atomic_int strict;             /* captures that forbid things to all threads, */
static _Thread_local int strict_here; /* and to this one only */
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* Sets a mark, and wakes those that sleep until it is set. Only its address counts by then. */
static void set_mark(atomic_int *mark)
{
    atomic_store(mark, 1);
    syscall(SYS_futex, mark, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void await_mark(atomic_int *mark)
{
    while (!atomic_load(mark))
        syscall(SYS_futex, mark, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
}

void fake_pass(int seconds)
{
    atomic_fetch_add(&passed, seconds);
}

static record_t *use_record(record_t *record)
{
    if (record)
        atomic_fetch_add(&record->users, 1);
    return record;
}

/* ---- running ---- */

/* A graph that runs, with a mark for each record in it. */
typedef struct run {
    const graph_t *graph;
    stream_t *branches[BRANCHES];
    int nbranches;
    atomic_int *marks;
} run_t;

/* Whatever is no graph; `marks` of the graph that it is in, or NULL. */
static void run_op(op_t *op, atomic_int *marks)
{
    switch (op->kind) {
    case WORK:
        op->work(op->args);
        break;
    case RECORD:
        if (!marks) {
            clock_gettime(CLOCK_MONOTONIC, &op->record->when);
            op->record->when.tv_sec += atomic_load(&passed);
        }
        set_mark(marks ? &marks[op->mark] : &op->record->done);
        break;
    case AWAIT:
        if (marks || op->record)
            await_mark(marks ? &marks[op->mark] : &op->record->done);
        break;
    case GRAPH:
        break;
    }
}

static op_t *next_of(op_t *op, const stream_t *branch)
{
    while (op && op->branch != branch)
        op = op->next;
    return op;
}

typedef struct branch {
    const run_t *run;
    stream_t *stream;
} branch_t;

static void *run_branch(void *arg)
{
    const branch_t *branch = arg;
    for (op_t *op = next_of(branch->run->graph->first, branch->stream); op;
         op = next_of(op->next, branch->stream))
        run_op(op, branch->run->marks);
    return NULL;
}

/* All branches at once. */
static void run_side_by_side(const run_t *run)
{
    branch_t branches[BRANCHES];
    pthread_t threads[BRANCHES];
    for (int i = 0; i < run->nbranches; i++) {
        branches[i] = (branch_t){run, run->branches[i]};
        pthread_create(&threads[i], NULL, run_branch, &branches[i]);
    }
    for (int i = 0; i < run->nbranches; i++)
        pthread_join(threads[i], NULL);
}

/* One by one: mostly the waits first, as soon as they may, so that they hold up all the rest. */
static void run_in_line(const run_t *run)
{
    op_t *at[BRANCHES];
    unsigned seed = atomic_fetch_add(&launches, 1);
    for (int i = 0; i < run->nbranches; i++)
        at[i] = next_of(run->graph->first, run->branches[i]);
    for (;;) {
        int ready[BRANCHES], count = 0, wait = -1;
        bool left = false;
        for (int i = 0; i < run->nbranches; i++) {
            left = left || at[i];
            if (!at[i] || (at[i]->kind == AWAIT && !atomic_load(&run->marks[at[i]->mark])))
                continue;
            ready[count++] = i;
            if (at[i]->waits)
                wait = i;
        }
        if (!left)
            return;
        if (count == 0) {
            fprintf(stderr, "fake: a graph waits for itself\n");
            abort();
        }
        const int i = wait >= 0 && rand_r(&seed) & 3 ? wait : ready[rand_r(&seed) % count];
        run_op(at[i], run->marks);
        at[i] = next_of(at[i]->next, run->branches[i]);
    }
}

static void run_graph(const graph_t *graph)
{
    run_t run = {.graph = graph, .marks = calloc((size_t)graph->marks + 1, sizeof(atomic_int))};
    for (const op_t *op = graph->first; op; op = op->next) {
        int i = 0;
        while (i < run.nbranches && run.branches[i] != op->branch)
            i++;
        if (i == BRANCHES) {
            fprintf(stderr, "fake: a graph has more than %d streams\n", BRANCHES);
            abort();
        }
        if (i == run.nbranches)
            run.branches[run.nbranches++] = op->branch;
    }
    if (graph->added)
        run_op(graph->added, NULL);
    if (shared)
        run_in_line(&run);
    else
        run_side_by_side(&run);
    free(run.marks);
}

static void *run_queue(void *arg)
{
    queue_t *queue = arg;
    pthread_mutex_lock(&queue->mutex);
    while (queue->first || !queue->ends) {
        op_t *op = queue->first;
        if (!op) {
            pthread_cond_wait(&queue->more, &queue->mutex);
            continue;
        }
        queue->first = op->next;
        pthread_mutex_unlock(&queue->mutex);
        if (op->kind == GRAPH) {
            run_graph(op->graph);
            fake_drop_graph(op->graph);
        }
        run_op(op, NULL);
        fake_drop_record(op->record);
        free(op);
        pthread_mutex_lock(&queue->mutex);
        queue->done++;
        pthread_cond_broadcast(&queue->less);
    }
    pthread_mutex_unlock(&queue->mutex);
    return NULL;
}

/* ---- issuing ---- */

static op_t *new_op(int kind, size_t bytes)
{
    op_t *op = calloc(1, sizeof(*op) + bytes);
    op->kind = kind;
    return op;
}

static CUresult issue(stream_t *stream, op_t *op)
{
    queue_t *queue = stream->queue;
    graph_t *graph = stream->capture;
    if (graph) {
        op->branch = stream;
        op->graph = graph;
        *(graph->first ? &graph->last->next : &graph->first) = op;
        graph->last = op;
        return CUDA_SUCCESS;
    }
    pthread_mutex_lock(&queue->mutex);
    *(queue->first ? &queue->last->next : &queue->first) = op;
    queue->last = op;
    queue->issued++;
    if (op->kind == WORK || (op->kind == GRAPH && !fake_green(stream->context)))
        stream->awaited = queue->issued;
    pthread_cond_signal(&queue->more);
    pthread_mutex_unlock(&queue->mutex);
    return CUDA_SUCCESS;
}

/* ---- streams ---- */

static queue_t *new_queue(void)
{
    queue_t *queue = calloc(1, sizeof(*queue));
    pthread_mutex_init(&queue->mutex, NULL);
    pthread_cond_init(&queue->more, NULL);
    pthread_cond_init(&queue->less, NULL);
    pthread_create(&queue->thread, NULL, run_queue, queue);
    return queue;
}

static void drain(queue_t *queue)
{
    pthread_mutex_lock(&queue->mutex);
    const uint64_t issued = queue->issued;
    while (queue->done < issued)
        pthread_cond_wait(&queue->less, &queue->mutex);
    pthread_mutex_unlock(&queue->mutex);
}

void fake_drain(void)
{
    pthread_mutex_lock(&lock);
    queue_t *queue = shared;
    pthread_mutex_unlock(&lock);
    if (queue)
        drain(queue);
}

static bool has_work(void)
{
    bool has = false;
    pthread_mutex_lock(&lock);
    for (const stream_t *stream = streams; stream && !has; stream = stream->next) {
        pthread_mutex_lock(&stream->queue->mutex);
        has = stream->queue->done < stream->awaited;
        pthread_mutex_unlock(&stream->queue->mutex);
    }
    pthread_mutex_unlock(&lock);
    return has;
}

void fake_await_work(void)
{
    while (has_work())
        (void)usleep(100);
}

/* With the lock. */
static stream_t *create(CUcontext context)
{
    stream_t *stream = calloc(1, sizeof(*stream));
    fake_count(FAKE_STREAMS, 1);
    if (!shared && fake_number("FAKE_ONE_QUEUE", 0))
        shared = new_queue();
    stream->queue = shared ? shared : new_queue();
    stream->context = context;
    stream->next = streams;
    streams = stream;
    return stream;
}

static CUresult cu_stream_create(CUstream *stream_p, unsigned flags, int priority)
{
    (void)priority;
    if (!fake_context() || flags != CU_STREAM_NON_BLOCKING) /* others wait for the default stream */
        return fake_context() ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    *stream_p = (CUstream)create(fake_context());
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUresult cu_green_stream_create(CUstream *stream_p, CUgreenCtx context, unsigned flags,
                                       int priority)
{
    (void)flags, (void)priority;
    pthread_mutex_lock(&lock);
    *stream_p = (CUstream)create((CUcontext)context);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

/* NULL is the default stream of the current context, made when it is first used, and stored. */
static stream_t *stream_of(CUstream handle)
{
    CUcontext context = fake_context();
    if (handle || !context)
        return (stream_t *)handle;
    pthread_mutex_lock(&lock);
    stream_t *stream = streams;
    while (stream && !(stream->is_default && stream->context == context))
        stream = stream->next;
    if (!stream)
        stream = create(context);
    stream->is_default = true;
    pthread_mutex_unlock(&lock);
    return stream;
}

CUresult fake_issue(CUstream handle, fake_work_t work, const void *args, size_t bytes, bool waits)
{
    stream_t *stream = stream_of(handle);
    if (!stream || fake_fate() != CUDA_SUCCESS)
        return stream ? fake_fate() : CUDA_ERROR_INVALID_CONTEXT;
    op_t *op = new_op(WORK, bytes);
    fake_count(FAKE_WORK, 1);
    op->work = work;
    op->waits = waits;
    memcpy(op->args, args, bytes);
    return issue(stream, op);
}

bool fake_forbids(void)
{
    return (atomic_load(&strict) > 0 || strict_here > 0) &&
           thread_mode != CU_STREAM_CAPTURE_MODE_RELAXED;
}

static CUresult cu_exchange_mode(CUstreamCaptureMode *mode)
{
    const CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

static CUresult cu_stream_context(CUstream handle, CUcontext *context_p, CUgreenCtx *green_p)
{
    CUcontext context = handle ? ((stream_t *)handle)->context : fake_context();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    *green_p = fake_green(context);
    *context_p = fake_primary(context);
    return CUDA_SUCCESS;
}

static CUresult cu_stream_synchronize(CUstream handle)
{
    const stream_t *stream = stream_of(handle);
    if (!stream)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (stream->capture || fake_forbids())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (fake_fate() == CUDA_SUCCESS)
        drain(stream->queue);
    return fake_fate();
}

static CUresult cu_stream_query(CUstream handle)
{
    const stream_t *stream = stream_of(handle);
    if (!stream)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (stream->capture || fake_forbids())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (fake_failure("cuStreamQuery now")) /* from when the variable is set, not from the start */
        return (CUresult)fake_failure("cuStreamQuery now");
    if (fake_fate() != CUDA_SUCCESS)
        return fake_fate();
    queue_t *queue = stream->queue;
    pthread_mutex_lock(&queue->mutex);
    const bool done = queue->done == queue->issued;
    pthread_mutex_unlock(&queue->mutex);
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

/* A GPU ends what its streams were given; so does this. */
static CUresult cu_stream_destroy(CUstream handle)
{
    stream_t *stream = (stream_t *)handle;
    queue_t *queue = stream->queue;
    if (fake_fate() != CUDA_SUCCESS)
        return fake_fate();
    drain(queue);
    pthread_mutex_lock(&lock);
    stream_t **link = &streams;
    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    pthread_mutex_unlock(&lock);
    free(stream);
    if (queue == shared)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&queue->mutex);
    queue->ends = true;
    pthread_cond_signal(&queue->more);
    pthread_mutex_unlock(&queue->mutex);
    pthread_join(queue->thread, NULL);
    pthread_cond_destroy(&queue->more);
    pthread_cond_destroy(&queue->less);
    pthread_mutex_destroy(&queue->mutex);
    free(queue);
    return CUDA_SUCCESS;
}

/* ---- events ---- */

static CUresult cu_event_create(CUevent *event_p, unsigned flags)
{
    (void)flags;
    if (!fake_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    event_t *event = calloc(1, sizeof(*event));
    fake_count(FAKE_EVENTS, 1);
    event->context = fake_context();
    *event_p = (CUevent)event;
    return CUDA_SUCCESS;
}

static CUresult cu_event_destroy(CUevent handle)
{
    event_t *event = (event_t *)handle;
    fake_drop_record(event->latest);
    fake_drop_graph(event->graph);
    free(event);
    return CUDA_SUCCESS;
}

static CUresult cu_event_record(CUevent handle, CUstream to)
{
    event_t *event = (event_t *)handle;
    stream_t *stream = stream_of(to);
    if (!stream || stream->context != event->context)
        return CUDA_ERROR_INVALID_HANDLE;
    op_t *op = new_op(RECORD, 0);
    fake_count(FAKE_RECORDS, 1);
    fake_drop_graph(event->graph);
    event->graph = stream->capture;
    if (stream->capture) {
        atomic_fetch_add(&stream->capture->users, 1);
        op->mark = event->mark = stream->capture->marks++;
    } else {
        fake_drop_record(event->latest);
        event->latest = calloc(1, sizeof(record_t));
        atomic_store(&event->latest->users, 2);
        op->record = event->latest;
    }
    return issue(stream, op);
}

static CUresult cu_stream_wait_event(CUstream of, CUevent handle, unsigned flags)
{
    (void)flags;
    const event_t *event = (event_t *)handle;
    stream_t *stream = stream_of(of);
    if (!stream)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (event->graph && atomic_load(&event->graph->ended))
        return CUDA_ERROR_CAPTURED_EVENT;
    if (stream->capture && !event->graph)
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    if (stream->capture && stream->capture != event->graph)
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    op_t *op = new_op(AWAIT, 0);
    fake_count(FAKE_AWAITS, 1);
    stream->capture = event->graph; /* it takes part from here on */
    op->mark = event->mark;
    op->record = event->graph ? NULL : use_record(event->latest);
    return issue(stream, op);
}

static CUresult cu_event_query(CUevent handle)
{
    const event_t *event = (event_t *)handle;
    if (fake_fate() != CUDA_SUCCESS)
        return fake_fate();
    if (fake_forbids())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (event->graph)
        return CUDA_ERROR_CAPTURED_EVENT;
    return !event->latest || atomic_load(&event->latest->done) ? CUDA_SUCCESS
                                                               : CUDA_ERROR_NOT_READY;
}

static CUresult cu_event_elapsed(float *ms_p, CUevent from, CUevent to)
{
    const record_t *begin = ((event_t *)from)->latest, *end = ((event_t *)to)->latest;
    if (!begin || !end)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!atomic_load(&begin->done) || !atomic_load(&end->done))
        return CUDA_ERROR_NOT_READY;
    *ms_p = (float)(end->when.tv_sec - begin->when.tv_sec) * 1e3f +
            (float)(end->when.tv_nsec - begin->when.tv_nsec) * 1e-6f;
    return CUDA_SUCCESS;
}

/* ---- captures ---- */

static CUresult cu_begin_capture(CUstream handle, CUstreamCaptureMode mode)
{
    stream_t *stream = (stream_t *)handle;
    if (!stream) /* the default stream */
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    stream->capture = calloc(1, sizeof(graph_t));
    atomic_store(&stream->capture->users, 1);
    stream->mode = mode;
    atomic_fetch_add(&strict, mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    strict_here += mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    return CUDA_SUCCESS;
}

/* Whether the first stream comes after everything of that branch. */
static bool is_joined(const graph_t *graph, const stream_t *branch)
{
    const op_t *last = NULL;
    for (const op_t *op = graph->first; op; op = op->next)
        if (op->branch == branch)
            last = op;
    return !last || last->kind == RECORD || last->kind == AWAIT;
}

static CUresult cu_end_capture(CUstream handle, CUgraph *graph_p)
{
    const stream_t *stream = (stream_t *)handle;
    graph_t *graph = stream->capture;
    CUresult result = CUDA_SUCCESS;
    if (!graph)
        return CUDA_ERROR_ILLEGAL_STATE;
    atomic_fetch_sub(&strict, stream->mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    strict_here -= stream->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    atomic_store(&graph->ended, true);
    pthread_mutex_lock(&lock);
    for (stream_t *other = streams; other; other = other->next) {
        if (other->capture != graph)
            continue;
        if (other != stream && !is_joined(graph, other))
            result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        other->capture = NULL;
    }
    pthread_mutex_unlock(&lock);
    if (result != CUDA_SUCCESS) {
        fake_drop_graph(graph);
        graph = NULL;
    }
    *graph_p = (CUgraph)graph;
    return result;
}

static CUresult cu_is_capturing(CUstream handle, CUstreamCaptureStatus *status_p)
{
    const stream_t *stream = stream_of(handle);
    if (!stream)
        return CUDA_ERROR_INVALID_CONTEXT;
    *status_p = stream->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

CUresult fake_issue_graph(CUstream of, graph_t *graph)
{
    stream_t *stream = stream_of(of);
    if (!stream || stream->capture) /* a graph within a graph is not known here */
        return stream ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_ERROR_INVALID_CONTEXT;
    if (fake_fate() != CUDA_SUCCESS)
        return fake_fate();
    op_t *op = new_op(GRAPH, 0);
    fake_tell_launch();
    op->graph = graph;
    atomic_fetch_add(&op->graph->users, 1);
    return issue(stream, op);
}

const fake_call_t fake_stream_calls[] = {
    FAKE_CALL("cuStreamCreateWithPriority", cu_stream_create),
    FAKE_CALL("cuGreenCtxStreamCreate", cu_green_stream_create),
    FAKE_CALL("cuStreamSynchronize", cu_stream_synchronize),
    FAKE_CALL("cuStreamQuery", cu_stream_query),
    FAKE_CALL("cuStreamDestroy", cu_stream_destroy),
    FAKE_CALL("cuStreamWaitEvent", cu_stream_wait_event),
    FAKE_CALL("cuStreamBeginCapture", cu_begin_capture),
    FAKE_CALL("cuStreamEndCapture", cu_end_capture),
    FAKE_CALL("cuStreamIsCapturing", cu_is_capturing),
    FAKE_CALL("cuStreamGetCtx", cu_stream_context),
    FAKE_CALL("cuThreadExchangeStreamCaptureMode", cu_exchange_mode),
    FAKE_CALL("cuEventCreate", cu_event_create),
    FAKE_CALL("cuEventDestroy", cu_event_destroy),
    FAKE_CALL("cuEventRecord", cu_event_record),
    FAKE_CALL("cuEventQuery", cu_event_query),
    FAKE_CALL("cuEventElapsedTime", cu_event_elapsed),
    {NULL, NULL},
};
