/* SPDX-License-Identifier: Apache-2.0 */
/* Puts, signals and waits over mapped memory, at once and on a stream. */
#include <assert.h>

#include "core/status.h"
#include "transport/host/host.h"
#include "util/clock.h"

lap_status_t lap_host_put_now(lap_buffer_t *buffer, const lap_put_t *put)
{
    const uint64_t begin = put->span ? lap_now_ns() : 0;
    const lap_copy_t copy = lap_put_copy(buffer, put);
    lap_copy_now(&copy);
    /* Releases the copy to the peer's lap_bank_wait on the same word. */
    if (put->signal != LAP_NO_SIGNAL)
        lap_bank_raise_tagged(buffer->banks[put->peer], put->signal, put->tag);
    if (put->span)
        *put->span = (lap_span_t){begin, begin, lap_now_ns()};
    return LAP_OK;
}

lap_status_t lap_host_raise_now(lap_buffer_t *buffer, const lap_raise_t *raise)
{
    const uint64_t begin = raise->span ? lap_now_ns() : 0;
    lap_bank_raise_tagged(buffer->banks[raise->peer], raise->signal, raise->tag);
    if (raise->span)
        *raise->span = (lap_span_t){begin, begin, lap_now_ns()};
    return LAP_OK;
}

void lap_host_send_record(lap_buffer_t *buffer, const lap_wait_reason_t *reason)
{
    /* The peers read it where it is. */
    (void)buffer;
    (void)reason;
}

lap_status_t lap_host_wait_now(lap_buffer_t *buffer, const lap_wait_t *wait)
{
    lap_buffer_watch_t watch;
    lap_buffer_watch_init(&watch, buffer, wait->peer, wait->reason);
    lap_status_t status =
        lap_bank_wait(buffer->banks[buffer->group->rank], wait->signal, wait->target, &watch.watch);
    if (status != LAP_OK)
        return lap_buffer_wait_failed(buffer, wait, status);
    return lap_buffer_wait_passed(buffer, wait);
}

typedef struct put_task {
    lap_buffer_t *buffer;
    lap_put_t put;
} put_task_t;

typedef struct raise_task {
    lap_buffer_t *buffer;
    lap_raise_t raise;
} raise_task_t;

typedef struct wait_task {
    lap_buffer_t *buffer;
    lap_wait_t wait;
} wait_task_t;

static_assert(sizeof(put_task_t) <= LAP_STREAM_ARG_BYTES, "a put is an argument of a stream call");
static_assert(sizeof(raise_task_t) <= LAP_STREAM_ARG_BYTES, "and so is a raise");
static_assert(sizeof(wait_task_t) <= LAP_STREAM_ARG_BYTES, "and so is a wait");

static lap_status_t run_put(void *arg)
{
    const put_task_t *task = arg;
    return task->buffer->ops->put_now(task->buffer, &task->put);
}

static lap_status_t run_raise(void *arg)
{
    const raise_task_t *task = arg;
    return task->buffer->ops->raise_now(task->buffer, &task->raise);
}

static lap_status_t run_wait(void *arg)
{
    const wait_task_t *task = arg;
    return task->buffer->ops->wait_now(task->buffer, &task->wait);
}

lap_status_t lap_host_put(lap_buffer_t *buffer, const lap_device_ops_t *device,
                          lap_stream_t *stream, const lap_put_t *put)
{
    const put_task_t task = {buffer, *put};
    return device->stream_call(stream, run_put, &task, sizeof(task));
}

lap_status_t lap_host_raise(lap_buffer_t *buffer, const lap_device_ops_t *device,
                            lap_stream_t *stream, const lap_raise_t *raise)
{
    const raise_task_t task = {buffer, *raise};
    return device->stream_call(stream, run_raise, &task, sizeof(task));
}

lap_status_t lap_host_wait(lap_buffer_t *buffer, const lap_device_ops_t *device,
                           lap_stream_t *stream, const lap_wait_t *wait)
{
    const wait_task_t task = {buffer, *wait};
    return device->stream_call(stream, run_wait, &task, sizeof(task));
}
