/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams of a host: a worker thread and a ring of tasks that grows when it is full and never
 * shrinks. A task takes as many cells of the ring as its argument needs: a program has thousands of
 * tasks in flight, and most have two words. Pushing never waits for the worker; otherwise ranks whose
 * streams wait for one another could stop each other's issuing thread.
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/status.h"
#include "device/host/host.h"
#include "util/alloc.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/run_delay.h"
#include "util/thread.h"

#define FIRST_ROOM 256u /* cells: a power of two, as all sizes of the ring */
#define NO_FD (-2)

typedef struct cell {
    _Alignas(16) unsigned char bytes[16];
} cell_t;

/* The first cell of a task; those of its argument follow. */
typedef struct head {
    lap_stream_fn_t fn; /* NULL: nothing is to be done here */
    uint32_t cells;     /* all of them */
    bool always;        /* also after a failure */
} head_t;

#define MOST_CELLS (1 + (LAP_STREAM_ARG_BYTES + sizeof(cell_t) - 1) / sizeof(cell_t))

typedef struct task {
    head_t head;
    cell_t arg[MOST_CELLS - 1];
} task_t;

_Static_assert(sizeof(head_t) == sizeof(cell_t), "a head is a cell");
_Static_assert(FIRST_ROOM >= 2 * MOST_CELLS, "a ring that has doubled has room for any task");

/*
 * Cells are numbered from 0; cell i lies in ring[i % room]. No task goes over the end of the ring: also not
 * when that has grown, since an end of twice the room is one of the room, too. All is under the lock, but
 * for the worker's spin.
 */
struct lap_stream {
    const lap_device_ops_t *ops;
    pthread_t worker;
    pthread_mutex_t lock;
    pthread_cond_t work; /* for the worker: there is something to do, or to stop */
    pthread_cond_t idle; /* for who synchronises: all is done */
    cell_t *ring;
    size_t room;
    _Atomic uint64_t issued; /* cells */
    uint64_t done;
    uint64_t spin_ns;
    bool urgent; /* see lap_thread_be_urgent */
    bool asleep; /* the worker sleeps on `work` */
    bool waited; /* somebody sleeps on `idle` */
    bool stop;
    void *workspace; /* NULL until somebody asks for it */
    size_t workspace_bytes;
    int delay_fd;        /* schedstat of the worker; NO_FD: not opened yet, */
    uint64_t delay_ns;   /* and the latest delay read from it */
    lap_status_t status; /* the first failure since the last synchronisation, and its sentence */
    char text[LAP_ERROR_TEXT];
};

void lap_host_spin(const _Atomic uint64_t *counter, uint64_t target, uint64_t spin_ns)
{
    if (spin_ns == 0)
        return;
    const uint64_t end = lap_now_ns() + spin_ns;
    while (atomic_load_explicit(counter, memory_order_acquire) < target && lap_now_ns() < end)
        ;
}

/* Called and returns with the lock held. False: the stream ends and has nothing left to do. */
static bool next_task(lap_stream_t *stream, task_t *task_p)
{
    bool spin = stream->done > 0; /* more work is likely only where there has been some */
    while (stream->issued == stream->done) {
        if (stream->stop)
            return false;
        if (spin) {
            pthread_mutex_unlock(&stream->lock);
            lap_host_spin(&stream->issued, stream->done + 1, stream->spin_ns);
            pthread_mutex_lock(&stream->lock);
            spin = false;
            continue;
        }
        stream->asleep = true;
        pthread_cond_wait(&stream->work, &stream->lock);
        stream->asleep = false;
    }
    const cell_t *first = &stream->ring[stream->done % stream->room];
    memcpy(&task_p->head, first, sizeof(head_t)); /* a copy: the ring may move meanwhile */
    if (task_p->head.fn)
        memcpy(task_p->arg, first + 1, (task_p->head.cells - 1) * sizeof(cell_t));
    return true;
}

static void finish_task(lap_stream_t *stream, const head_t *head, lap_status_t status)
{
    if (status != LAP_OK && stream->status == LAP_OK) {
        stream->status = status;
        snprintf(stream->text, sizeof(stream->text), "%s", lap_last_error());
    }
    stream->done += head->cells;
    if (stream->done == stream->issued && stream->waited)
        pthread_cond_broadcast(&stream->idle);
}

static void *worker_main(void *context)
{
    lap_stream_t *stream = context;
    task_t task;
    if (stream->urgent)
        lap_thread_be_urgent();
    pthread_mutex_lock(&stream->lock);
    while (next_task(stream, &task)) {
        const bool skip = !task.head.fn || (stream->status != LAP_OK && !task.head.always);
        pthread_mutex_unlock(&stream->lock);
        lap_status_t status = skip ? LAP_OK : task.head.fn(task.arg);
        pthread_mutex_lock(&stream->lock);
        finish_task(stream, &task.head, status);
    }
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

lap_status_t lap_host_stream_create(lap_device_t *device, bool urgent, lap_stream_t **stream_p)
{
    lap_stream_t *stream = lap_alloc(1, sizeof(*stream));
    cell_t *ring = lap_alloc(FIRST_ROOM, sizeof(*ring));
    if (!stream || !ring) {
        lap_free(ring);
        lap_free(stream);
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the tasks of a stream");
    }
    stream->ops = device->ops;
    stream->ring = ring;
    stream->room = FIRST_ROOM;
    stream->spin_ns = device->spin_ns;
    stream->urgent = urgent;
    stream->delay_fd = NO_FD;
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->work, NULL);
    pthread_cond_init(&stream->idle, NULL);
    int error = lap_thread_start(&stream->worker, "lap-stream", worker_main, stream);
    if (error == 0) {
        *stream_p = stream;
        return LAP_OK;
    }
    pthread_cond_destroy(&stream->idle);
    pthread_cond_destroy(&stream->work);
    pthread_mutex_destroy(&stream->lock);
    lap_free(ring);
    lap_free(stream);
    errno = error;
    return lap_error_errno("cannot start the thread of a stream");
}

void lap_host_stream_destroy(lap_stream_t *stream)
{
    pthread_mutex_lock(&stream->lock);
    stream->stop = true;
    pthread_cond_signal(&stream->work);
    pthread_mutex_unlock(&stream->lock);
    pthread_join(stream->worker, NULL);
    if (stream->status != LAP_OK)
        lap_warn("a stream ends with a failure that no call has returned: %s", stream->text);
    pthread_cond_destroy(&stream->idle);
    pthread_cond_destroy(&stream->work);
    pthread_mutex_destroy(&stream->lock);
    if (stream->delay_fd >= 0)
        close(stream->delay_fd);
    lap_free(stream->workspace);
    lap_free(stream->ring);
    lap_free(stream);
}

lap_status_t lap_host_stream_workspace(lap_stream_t *stream, size_t bytes, void **workspace_p)
{
    lap_status_t status = LAP_OK;
    pthread_mutex_lock(&stream->lock);
    if (bytes > 0 && !stream->workspace) {
        stream->workspace = lap_alloc(1, bytes);
        stream->workspace_bytes = bytes;
    }
    if (bytes > 0 && !stream->workspace)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for a workspace of %zu bytes", bytes);
    else
        *workspace_p = bytes > 0 ? stream->workspace : NULL;
    assert(bytes <= stream->workspace_bytes);
    pthread_mutex_unlock(&stream->lock);
    return status;
}

static lap_status_t grow(lap_stream_t *stream)
{
    cell_t *ring =
        lap_ring_grow(stream->ring, stream->done, stream->issued, &stream->room, sizeof(*ring));
    if (!ring)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu bytes of tasks of a stream",
                         2 * stream->room * sizeof(*ring));
    stream->ring = ring;
    return LAP_OK;
}

/* The cells between the latest task and the end of the ring, if a task does not fit there; else 0. */
static uint32_t cells_left(const lap_stream_t *stream, uint32_t cells)
{
    const size_t left = stream->room - stream->issued % stream->room;
    return left < cells ? (uint32_t)left : 0;
}

/* Makes room for a task, which then begins at the cell `issued`. */
static lap_status_t make_room(lap_stream_t *stream, uint32_t cells)
{
    while (stream->issued - stream->done + cells_left(stream, cells) + cells > stream->room)
        LAP_TRY(grow(stream));
    const head_t none = {.cells = cells_left(stream, cells)};
    if (none.cells > 0) {
        memcpy(&stream->ring[stream->issued % stream->room], &none, sizeof(none));
        atomic_fetch_add_explicit(&stream->issued, none.cells, memory_order_relaxed);
    }
    return LAP_OK;
}

static lap_status_t push(lap_stream_t *stream, lap_stream_fn_t fn, const void *arg, size_t bytes,
                         bool always)
{
    if (bytes > LAP_STREAM_ARG_BYTES)
        return lap_error(LAP_ERR_INVALID, "the argument of a stream call has %zu bytes, at most %d",
                         bytes, LAP_STREAM_ARG_BYTES);
    const head_t head = {
        .fn = fn,
        .cells = (uint32_t)(1 + (bytes + sizeof(cell_t) - 1) / sizeof(cell_t)),
        .always = always,
    };
    pthread_mutex_lock(&stream->lock);
    assert(!stream->stop);
    lap_status_t status = make_room(stream, head.cells);
    if (status == LAP_OK) {
        cell_t *first = &stream->ring[stream->issued % stream->room];
        memcpy(first, &head, sizeof(head));
        if (bytes)
            memcpy(first + 1, arg, bytes);
        /*
         * Pairs with lap_host_spin in next_task, which then takes the lock before it reads the
         * task.
         */
        atomic_fetch_add_explicit(&stream->issued, head.cells, memory_order_release);
        if (stream->asleep)
            pthread_cond_signal(&stream->work);
    }
    pthread_mutex_unlock(&stream->lock);
    return status;
}

lap_status_t lap_host_stream_call(lap_stream_t *stream, lap_stream_fn_t fn, const void *arg,
                                  size_t bytes)
{
    return push(stream, fn, arg, bytes, false);
}

lap_status_t lap_host_stream_always(lap_stream_t *stream, lap_stream_fn_t fn, const void *arg,
                                    size_t bytes)
{
    return push(stream, fn, arg, bytes, true);
}

lap_status_t lap_host_stream_failure(lap_stream_t *stream, char *text)
{
    pthread_mutex_lock(&stream->lock);
    lap_status_t status = stream->status;
    if (status != LAP_OK)
        memcpy(text, stream->text, sizeof(stream->text));
    pthread_mutex_unlock(&stream->lock);
    return status;
}

lap_status_t lap_host_stream_synchronize(lap_stream_t *stream)
{
    char text[LAP_ERROR_TEXT];
    pthread_mutex_lock(&stream->lock);
    while (stream->done != stream->issued) {
        stream->waited = true;
        pthread_cond_wait(&stream->idle, &stream->lock);
        stream->waited = false;
    }
    lap_status_t status = stream->status;
    if (status != LAP_OK)
        memcpy(text, stream->text, sizeof(text));
    stream->status = LAP_OK;
    pthread_mutex_unlock(&stream->lock);
    return status == LAP_OK ? LAP_OK : lap_error(status, "%s", text);
}

static lap_status_t run_stamp(void *arg)
{
    uint64_t *ns;
    memcpy(&ns, arg, sizeof(ns));
    *ns = lap_now_ns();
    return LAP_OK;
}

lap_status_t lap_host_stamp(lap_stream_t *stream, uint64_t *ns_p)
{
    return lap_host_stream_call(stream, run_stamp, &ns_p, sizeof(ns_p));
}

uint64_t lap_host_stream_delay(lap_stream_t *stream)
{
    if (stream->delay_fd == NO_FD)
        stream->delay_fd = lap_run_delay_open();
    const uint64_t before = stream->delay_ns;
    stream->delay_ns = lap_run_delay_read(stream->delay_fd);
    return stream->delay_ns > before ? stream->delay_ns - before : 0;
}

typedef struct delay_task {
    lap_stream_t *stream;
    uint64_t *ns;
} delay_task_t;

static lap_status_t run_stamp_delay(void *arg)
{
    const delay_task_t *task = arg;
    *task->ns = lap_host_stream_delay(task->stream);
    return LAP_OK;
}

lap_status_t lap_host_stamp_delay(lap_stream_t *stream, uint64_t *ns_p)
{
    const delay_task_t task = {stream, ns_p};
    return lap_host_stream_call(stream, run_stamp_delay, &task, sizeof(task));
}
