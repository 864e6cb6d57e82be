/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that looks after waits which nobody else does: see guard.h. */
#include "schedule/guard.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "util/alloc.h"
#include "util/clock.h"
#include "util/thread.h"

#define INTERVAL_NS 100000000u
#define LOOKS                                                                                      \
    3 /* that must find the same wait in vain: a signal that comes at the last moment wins */

/* What was seen of a stream. */
typedef struct sight {
    uint32_t number; /* of its wait */
    int vain; /* so many looks in a row found the wait, and no hope for it but in the first */
} sight_t;

struct lap_guard {
    lap_engine_t *engine;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t end;
    bool ends;
    sight_t sights[2][LAP_STREAMS]; /* of the engine, and of the one beside it */
    atomic_bool found;
    lap_stall_t stall; /* that was found */
};

/* The group of a wait, by the buffer that it is on. The buffer itself may be gone: it is not read. */
static const lap_group_t *group_of(const lap_engine_t *engine, const void *buffer)
{
    for (const lap_engine_guest_t *guest = engine->guests; guest; guest = guest->next)
        if (guest->buffer == buffer)
            return guest->group;
    return NULL;
}

/* A signal of another call stays what it is; one that is missing stays so when a rank is lost. */
static bool is_hopeless(const lap_guard_t *guard, const lap_stall_t *stall)
{
    const lap_engine_t *engine = guard->engine;
    const lap_group_t *group = group_of(engine, stall->buffer);
    if (!group && engine->side)
        group = group_of(engine->side, stall->buffer);
    return stall->mismatch ||
           (group && !lap_stall_has_come(stall) && lap_group_has_lost(group, stall->peer));
}

static void look_at_stream(lap_guard_t *guard, lap_stream_t *stream, sight_t *sight)
{
    const lap_device_ops_t *ops = guard->engine->device->ops;
    lap_stall_t stall;
    if (!ops->own_stall(stream, &stall)) {
        *sight = (sight_t){0, 0};
        return;
    }
    if (sight->vain == 0 || sight->number != stall.number)
        *sight = (sight_t){stall.number, 1};
    else
        sight->vain = is_hopeless(guard, &stall) ? sight->vain + 1 : 1;
    if (sight->vain < LOOKS)
        return;
    guard->stall = stall;
    atomic_store(&guard->found, true);
    ops->let_go(guard->engine->device);
}

static void look(lap_guard_t *guard)
{
    const lap_engine_t *const engines[2] = {guard->engine, guard->engine->side};
    for (int i = 0; i < 2; i++)
        for (int s = 0; s < LAP_STREAMS && engines[i] && !atomic_load(&guard->found); s++)
            if (engines[i]->streams[s])
                look_at_stream(guard, engines[i]->streams[s], &guard->sights[i][s]);
}

static void *keep_watch(void *context)
{
    lap_guard_t *guard = context;
    pthread_mutex_lock(&guard->mutex);
    while (!guard->ends) {
        const uint64_t next = lap_now_ns() + INTERVAL_NS;
        const struct timespec until = {(time_t)(next / 1000000000u), (long)(next % 1000000000u)};
        look(guard);
        (void)pthread_cond_timedwait(&guard->end, &guard->mutex, &until);
    }
    pthread_mutex_unlock(&guard->mutex);
    return NULL;
}

static void guard_free(lap_guard_t *guard)
{
    pthread_cond_destroy(&guard->end);
    pthread_mutex_destroy(&guard->mutex);
    lap_free(guard);
}

lap_status_t lap_guard_start(lap_engine_t *engine, lap_guard_t **guard_p)
{
    lap_guard_t *guard = lap_alloc(1, sizeof(*guard));
    if (!guard)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the guard of an engine");
    guard->engine = engine;
    pthread_mutex_init(&guard->mutex, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC); /* the clock of lap_now_ns */
    pthread_cond_init(&guard->end, &attributes);
    pthread_condattr_destroy(&attributes);
    const int error = lap_thread_start(&guard->thread, "lap-guard", keep_watch, guard);
    if (error != 0) {
        guard_free(guard);
        return lap_error(LAP_ERR_SYSTEM, "no thread that guards calls in a caller's stream: %s",
                         strerror(error));
    }
    *guard_p = guard;
    return LAP_OK;
}

void lap_guard_stop(lap_guard_t *guard)
{
    if (!guard)
        return;
    pthread_mutex_lock(&guard->mutex);
    guard->ends = true;
    pthread_cond_signal(&guard->end);
    pthread_mutex_unlock(&guard->mutex);
    pthread_join(guard->thread, NULL);
    guard_free(guard);
}

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

bool lap_guard_found(lap_guard_t *guard, lap_stall_t *stall_p)
{
    if (!guard || !atomic_load(&guard->found))
        return false;
    pthread_mutex_lock(&guard->mutex);
    *stall_p = guard->stall;
    pthread_mutex_unlock(&guard->mutex);
    return true;
}

void lap_guard_forget(lap_guard_t *guard)
{
    if (!guard)
        return;
    memset(guard->sights, 0, sizeof(guard->sights));
    atomic_store(&guard->found, false);
}
