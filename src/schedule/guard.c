/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that looks after waits which nobody else does: see guard.h. */
#include "schedule/guard.h"

#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "schedule/watcher.h"
#include "util/alloc.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/thread.h"

#define INTERVAL_NS 100000000u

/*
 * What the C library calls when the process exits, or this library is unloaded. It cannot be taken
 * back: it outlives the guard, and whoever is last frees it.
 */
typedef struct exit_call {
    pthread_mutex_t mutex;
    lap_guard_t *guard; /* NULL: it has been stopped */
    bool over;          /* it has been called */
    pid_t owner;        /* the process that has the thread; one that was forked has none */
} exit_call_t;

struct lap_guard {
    lap_engine_t *engine;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t end;
    bool ends;
    bool joined;
    exit_call_t *exit_call;
    lap_watcher_t watcher;
    _Atomic int status; /* a lap_status_t: why it has let the waits go; LAP_OK: it has not */
    char text[LAP_ERROR_TEXT];
};

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
    if (guard->watcher.lost.buffer)
        status = lap_buffer_stall_failed(&guard->watcher.lost, status);
    snprintf(guard->text, sizeof(guard->text), "%s", lap_last_error());
    lap_engine_break_in_flight(guard->engine, status, guard->text);
    atomic_store(&guard->status, (int)status);
    device->ops->abort_waits(device);
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

/* As atexit of the C library has it, which takes no argument: so there is no list of guards. */
extern int __cxa_atexit(void (*call)(void *), void *argument, void *dso);
extern void *__dso_handle __attribute__((visibility("hidden")));

static void exit_call_free(exit_call_t *call)
{
    pthread_mutex_destroy(&call->mutex);
    lap_free(call);
}

/*
 * A program that exits without having ended its worlds takes their memory away from the guards, and
 * one that unloads the library their code.
 */
static void end_at_exit(void *argument)
{
    exit_call_t *call = argument;
    if (getpid() != call->owner || !lock_soon(&call->mutex))
        return;
    lap_guard_t *guard = call->guard;
    if (guard && lock_soon(&guard->mutex)) {
        tell_to_end(guard);
        pthread_mutex_unlock(&guard->mutex);
        guard->joined = pthread_join(guard->thread, NULL) == 0;
    }
    call->over = true;
    pthread_mutex_unlock(&call->mutex);
    if (!guard)
        exit_call_free(call);
}

/* The guard is stopped by its owner. */
static void forget_exit_call(exit_call_t *call)
{
    pthread_mutex_lock(&call->mutex);
    const bool over = call->over;
    call->guard = NULL;
    pthread_mutex_unlock(&call->mutex);
    if (over)
        exit_call_free(call);
}

static bool add_exit_call(lap_guard_t *guard)
{
    exit_call_t *call = lap_alloc(1, sizeof(*call));
    if (!call)
        return false;
    pthread_mutex_init(&call->mutex, NULL);
    call->guard = guard;
    call->owner = getpid();
    guard->exit_call = call;
    if (__cxa_atexit(end_at_exit, call, __dso_handle) == 0)
        return true;
    exit_call_free(call);
    return false;
}

static void end_thread(lap_guard_t *guard)
{
    lap_guard_hold(guard);
    tell_to_end(guard);
    lap_guard_go(guard);
    if (!guard->joined)
        pthread_join(guard->thread, NULL);
}

lap_guard_t *lap_guard_start(lap_engine_t *engine)
{
    lap_guard_t *guard = lap_alloc(1, sizeof(*guard));
    if (!guard)
        goto err_none;
    guard->engine = engine;
    guard->watcher = new_watcher(engine);
    init_locks(guard);
    if (lap_thread_start(&guard->thread, "lap-guard", keep_watch, guard) != 0)
        goto err_guard;
    if (!add_exit_call(guard))
        goto err_thread;
    return guard;

err_thread:
    end_thread(guard);
err_guard:
    guard_free(guard);
err_none:
    lap_warn("cannot start the thread that watches calls in a caller's stream: "
             "cudaStreamSynchronize and the like wait for a lost peer until the timeout");
    return NULL;
}

void lap_guard_stop(lap_guard_t *guard)
{
    if (!guard)
        return;
    forget_exit_call(guard->exit_call);
    end_thread(guard);
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
