/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that looks after waits which nobody else does: see guard.h. */
#include "schedule/guard.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "schedule/watcher.h"
#include "util/alloc.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/thread.h"

#define INTERVAL_NS 100000000u

struct lap_guard {
    lap_engine_t *engine;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t end;
    bool ends;
    bool joined;
    lap_watcher_t watcher;
    _Atomic int status; /* a lap_status_t: why it has let the waits go; LAP_OK: it has not */
    char text[LAP_ERROR_TEXT];
    lap_guard_t *next;
};

static pthread_mutex_t all_mutex = PTHREAD_MUTEX_INITIALIZER;
static lap_guard_t *all; /* guards that there are */
static pid_t owner;      /* the process that has them */

/* ---- the thread ---- */

static lap_watcher_t new_watcher(const lap_engine_t *engine)
{
    return (lap_watcher_t){
        .engine = engine, .stall = engine->device->ops->stall, .in_flight_only = true};
}

static void look(lap_guard_t *guard)
{
    lap_device_t *device = guard->engine->device;
    lap_status_t status = lap_watcher_look(&guard->watcher);
    if (status == LAP_OK)
        return;
    status = lap_buffer_stall_failed(&guard->watcher.lost, status);
    snprintf(guard->text, sizeof(guard->text), "%s", lap_last_error());
    lap_engine_break_in_flight(guard->engine, status, guard->text);
    atomic_store(&guard->status, (int)status);
    device->ops->let_go(device);
}

static void *keep_watch(void *context)
{
    lap_guard_t *guard = context;
    pthread_mutex_lock(&guard->mutex);
    while (!guard->ends) {
        const uint64_t next = lap_now_ns() + INTERVAL_NS;
        const struct timespec until = {(time_t)(next / 1000000000u), (long)(next % 1000000000u)};
        if (atomic_load(&guard->status) == LAP_OK)
            look(guard);
        (void)pthread_cond_timedwait(&guard->end, &guard->mutex, &until);
    }
    pthread_mutex_unlock(&guard->mutex);
    return NULL;
}

/* ---- its life ---- */

static void init_locks(lap_guard_t *guard)
{
    pthread_condattr_t attributes;
    pthread_mutex_init(&guard->mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC); /* the clock of lap_now_ns */
    pthread_cond_init(&guard->end, &attributes);
    pthread_condattr_destroy(&attributes);
}

static void guard_free(lap_guard_t *guard)
{
    pthread_cond_destroy(&guard->end);
    pthread_mutex_destroy(&guard->mutex);
    lap_free(guard);
}

/* Between hold and go. */
static void tell_to_end(lap_guard_t *guard)
{
    guard->ends = true;
    pthread_cond_signal(&guard->end);
}

/* Whoever exits in a handler of a signal may have been in the library, and holds what it waits for. */
static bool lock_soon(pthread_mutex_t *mutex)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    return pthread_mutex_timedlock(mutex, &until) == 0;
}

/*
 * A program that exits without having ended its worlds takes their memory away from the guards, and
 * one that unloads the library their code. A process that was forked has none.
 */
static void end_all(void)
{
    if (getpid() != owner || !lock_soon(&all_mutex))
        return;
    for (lap_guard_t *guard = all; guard; guard = guard->next)
        if (lock_soon(&guard->mutex)) {
            tell_to_end(guard);
            pthread_mutex_unlock(&guard->mutex);
            guard->joined = pthread_join(guard->thread, NULL) == 0;
        }
    pthread_mutex_unlock(&all_mutex);
}

static void add_to_all(lap_guard_t *guard)
{
    pthread_mutex_lock(&all_mutex);
    if (owner != getpid()) {
        all = NULL; /* those of whoever forked this process */
        (void)atexit(end_all);
    }
    owner = getpid();
    guard->next = all;
    all = guard;
    pthread_mutex_unlock(&all_mutex);
}

static void remove_from_all(lap_guard_t *guard)
{
    pthread_mutex_lock(&all_mutex);
    lap_guard_t **link = &all;
    while (*link != guard)
        link = &(*link)->next;
    *link = guard->next;
    pthread_mutex_unlock(&all_mutex);
}

lap_guard_t *lap_guard_start(lap_engine_t *engine)
{
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    lap_guard_t *guard = lap_alloc(1, sizeof(*guard));
    if (!guard)
        goto err_none;
    guard->engine = engine;
    guard->watcher = new_watcher(engine);
    init_locks(guard);
    if (lap_thread_start(&guard->thread, "lap-guard", keep_watch, guard) != 0)
        goto err_guard;
    add_to_all(guard);
    return guard;

err_guard:
    guard_free(guard);
err_none:
    if (!atomic_flag_test_and_set(&warned))
        lap_warn("cannot start the thread that watches calls in a caller's stream: "
                 "cudaStreamSynchronize and the like wait for a lost peer until the timeout");
    return NULL;
}

void lap_guard_stop(lap_guard_t *guard)
{
    if (!guard)
        return;
    remove_from_all(guard);
    lap_guard_hold(guard);
    tell_to_end(guard);
    lap_guard_go(guard);
    if (!guard->joined)
        pthread_join(guard->thread, NULL);
    guard_free(guard);
}

/* ---- those it guards ---- */

void lap_guard_hold(lap_guard_t *guard)
{
    if (guard)
        pthread_mutex_lock(&guard->mutex);
}

void lap_guard_go(lap_guard_t *guard)
{
    if (guard)
        pthread_mutex_unlock(&guard->mutex);
}

lap_status_t lap_guard_look_back(lap_guard_t *guard)
{
    const lap_status_t status = guard ? (lap_status_t)atomic_load(&guard->status) : LAP_OK;
    return status == LAP_OK ? LAP_OK : lap_error(status, "%s", guard->text);
}

void lap_guard_forget(lap_guard_t *guard)
{
    if (!guard)
        return;
    guard->watcher = new_watcher(guard->engine);
    atomic_store(&guard->status, LAP_OK);
}
