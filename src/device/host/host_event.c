/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events of a host: a counter of the records issued and of those that have happened. A wait is for
 * the latest record issued when the wait was, so that an event can be recorded again while an older
 * wait is still on its way.
 */
#include <pthread.h>
#include <stdio.h>

#include "core/status.h"
#include "device/host/host.h"
#include "util/alloc.h"

struct lap_event {
    const lap_device_ops_t *ops;
    uint64_t spin_ns;
    _Atomic uint64_t issued; /* the latest record handed to a stream */
    pthread_mutex_t lock;    /* of all below */
    pthread_cond_t changed;
    _Atomic uint64_t reached; /* the latest record that has happened */
    uint64_t failed;          /* the latest record of a stream that had failed, with its failure */
    lap_status_t status;
    char *text; /* NULL until there is one: a program has many events, which do not fail */
};

typedef struct record {
    lap_event_t *event;
    lap_stream_t *stream;
    uint64_t number;
} record_t;

lap_status_t lap_host_event_create(lap_device_t *device, lap_event_t **event_p)
{
    lap_event_t *event = lap_alloc(1, sizeof(*event));
    if (!event)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for an event");
    event->ops = device->ops;
    event->spin_ns = device->spin_ns;
    pthread_mutex_init(&event->lock, NULL);
    pthread_cond_init(&event->changed, NULL);
    *event_p = event;
    return LAP_OK;
}

void lap_host_event_destroy(lap_event_t *event)
{
    pthread_cond_destroy(&event->changed);
    pthread_mutex_destroy(&event->lock);
    lap_free(event->text);
    lap_free(event);
}

/* Runs also on a stream that has failed: who waits for the event must not wait for ever. */
static lap_status_t run_record(void *arg)
{
    const record_t *record = arg;
    lap_event_t *event = record->event;
    char text[LAP_ERROR_TEXT];
    lap_status_t status = lap_host_stream_failure(record->stream, text);
    pthread_mutex_lock(&event->lock);
    if (status != LAP_OK) {
        event->failed = record->number;
        event->status = status;
        if (!event->text)
            event->text = lap_alloc(1, sizeof(text));
        if (event->text)
            snprintf(event->text, sizeof(text), "%s", text);
    }
    if (record->number > event->reached)
        event->reached = record->number;
    pthread_cond_broadcast(&event->changed);
    pthread_mutex_unlock(&event->lock);
    return LAP_OK;
}

lap_status_t lap_host_event_record(lap_event_t *event, lap_stream_t *stream)
{
    record_t record = {event, stream, event->issued + 1};
    LAP_TRY(lap_host_stream_always(stream, run_record, &record, sizeof(record)));
    event->issued = record.number;
    return LAP_OK;
}

static lap_status_t await_record(lap_event_t *event, uint64_t number)
{
    char text[LAP_ERROR_TEXT];
    lap_host_spin(&event->reached, number, event->spin_ns);
    pthread_mutex_lock(&event->lock);
    while (event->reached < number)
        pthread_cond_wait(&event->changed, &event->lock);
    lap_status_t status = event->failed >= number ? event->status : LAP_OK;
    if (status != LAP_OK)
        snprintf(text, sizeof(text), "%s", event->text ? event->text : lap_status_string(status));
    pthread_mutex_unlock(&event->lock);
    return status == LAP_OK ? LAP_OK : lap_error(status, "%s", text);
}

static lap_status_t run_wait(void *arg)
{
    const record_t *record = arg;
    return await_record(record->event, record->number);
}

lap_status_t lap_host_stream_wait_event(lap_stream_t *stream, lap_event_t *event)
{
    record_t record = {event, stream, event->issued};
    if (record.number == 0) /* never recorded: nothing to wait for */
        return LAP_OK;
    return lap_host_stream_call(stream, run_wait, &record, sizeof(record));
}

lap_status_t lap_host_event_synchronize(lap_event_t *event, const lap_watch_t *watch)
{
    (void)watch; /* whatever waits on a stream has its own */
    const uint64_t number = event->issued;
    return number == 0 ? LAP_OK : await_record(event, number);
}
