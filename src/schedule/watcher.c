/* SPDX-License-Identifier: Apache-2.0 */
#include "schedule/watcher.h"

#include <stdio.h>

#include "util/clock.h"

#define LAST_MOMENT_NS 2000000u /* for a signal that was raised to be seen */
#define LAST_CALL_NS 500000000u /* for a call to end whose peer has left after its part of it */

static bool is_in_flight(const lap_engine_t *engine, const void *buffer)
{
    const lap_in_flight_t *op = engine->in_flight;
    while (op && op->buffer != buffer)
        op = op->next;
    return op != NULL;
}

static bool is_stalled(const lap_watcher_t *watcher, lap_stream_t *stream, lap_stall_t *stall_p)
{
    return stream && watcher->stall(stream, stall_p) &&
           (!watcher->in_flight_only || is_in_flight(watcher->engine, stall_p->buffer));
}

/* Whether the stream is still in that wait a moment later, for that reason. */
static bool still_stalled(const lap_watcher_t *watcher, lap_stream_t *stream,
                          const lap_stall_t *stall, lap_status_t reason)
{
    lap_stall_t later;
    lap_sleep_until_ns(lap_now_ns() + LAST_MOMENT_NS);
    return is_stalled(watcher, stream, &later) && later.number == stall->number &&
           (reason == LAP_ERR_TIMEOUT || !lap_stall_has_come(&later));
}

/* The deadline counts from when the wait was first seen. */
static lap_status_t look_at_stall(const lap_watcher_t *watcher, lap_stream_t *stream,
                                  const lap_stall_t *stall, lap_deadline_t *deadline)
{
    lap_buffer_watch_t watch;
    lap_buffer_watch_init(&watch, stall->buffer, stall->peer, stall->reason);
    lap_status_t status = LAP_OK;
    if (!lap_stall_has_come(stall))
        status = stall->mismatch ? LAP_ERR_MISMATCH : watch.watch.look(watch.watch.context);
    if (status == LAP_OK && lap_deadline_passed(deadline))
        status = LAP_ERR_TIMEOUT;
    if (status == LAP_OK)
        return LAP_OK;
    char text[LAP_ERROR_TEXT];
    snprintf(text, sizeof(text), "%s", lap_last_error());
    /* A signal that came at the last moment wins: the peer may have raised it and then left. */
    return still_stalled(watcher, stream, stall, status) ? lap_error(status, "%s", text) : LAP_OK;
}

static lap_status_t look_at_stream(lap_watcher_t *watcher, lap_stream_t *stream, int s)
{
    lap_stall_t stall;
    const bool waited = watcher->waits[s];
    watcher->waits[s] = is_stalled(watcher, stream, &stall);
    if (!watcher->waits[s])
        return LAP_OK;
    if (!waited || watcher->numbers[s] != stall.number) {
        watcher->ends[s] =
            lap_deadline_after(((const lap_buffer_t *)stall.buffer)->group->world->timeout_ns);
        watcher->numbers[s] = stall.number;
    }
    const lap_status_t status = look_at_stall(watcher, stream, &stall, &watcher->ends[s]);
    if (status != LAP_OK)
        watcher->lost = stall;
    return status;
}

/* As a wait that failed tells it: why, and in what this rank was. */
static lap_status_t foreign_failed(const lap_in_flight_t *op, lap_status_t status,
                                   const char *cause)
{
    char name[LAP_RANK_TEXT];
    lap_error(status, "%s; %s was in %s (%s)", cause,
              lap_group_name(op->group, op->group->rank, name), op->what, op->method);
    lap_group_fail(op->group, status, lap_last_error());
    return status;
}

/* A call of another library ends, or its peers are lost, or it lasts too long. */
static lap_status_t look_at_foreign(lap_in_flight_t *op)
{
    const uint64_t number = op->foreign->running(op->foreign);
    char cause[LAP_ERROR_TEXT], stopped[256];
    if (number == 0)
        return LAP_OK;
    if (op->foreign_call != number) {
        op->foreign_call = number;
        op->foreign_lost_ns = 0;
        op->foreign_end = lap_deadline_after(op->group->world->timeout_ns);
    }
    const lap_status_t status = lap_group_look(op->group);
    if (status != LAP_OK && op->foreign_lost_ns == 0) {
        op->foreign_lost_ns = lap_now_ns();
    } else if (status != LAP_OK && lap_now_ns() - op->foreign_lost_ns > LAST_CALL_NS) {
        snprintf(cause, sizeof(cause), "%s", lap_last_error());
        return foreign_failed(op, status, cause);
    }
    if (!lap_deadline_passed(&op->foreign_end))
        return LAP_OK;
    lap_group_list_stopped(op->group, stopped, sizeof(stopped));
    snprintf(cause, sizeof(cause), "timeout after %g s%s",
             (double)op->group->world->timeout_ns * 1e-9, stopped);
    return foreign_failed(op, LAP_ERR_TIMEOUT, cause);
}

lap_status_t lap_watcher_look(void *context)
{
    lap_watcher_t *watcher = context;
    for (lap_in_flight_t *op = watcher->engine->in_flight; op; op = op->next)
        if (op->foreign)
            LAP_TRY(look_at_foreign(op));
    for (int s = 0; s < LAP_STREAMS; s++)
        LAP_TRY(look_at_stream(watcher, watcher->engine->streams[s], s));
    return LAP_OK;
}
