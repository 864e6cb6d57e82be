/* SPDX-License-Identifier: Apache-2.0 */
/* Looking after the waits of streams that wait for signals by themselves. */
#ifndef LAP_SCHEDULE_WATCHER_H
#define LAP_SCHEDULE_WATCHER_H

#include "schedule/run.h"

/* What somebody who looks now and then has seen of an engine. */
typedef struct lap_watcher {
    const lap_engine_t *engine;
    bool (*stall)(lap_stream_t *stream, lap_stall_t *stall_p); /* one of the device's */
    bool in_flight_only; /* waits in calls of others are not looked at: their memory may be gone */
    uint32_t numbers[LAP_STREAMS];    /* of the wait that each stream was in, */
    bool waits[LAP_STREAMS];          /* if it was in one, */
    lap_deadline_t ends[LAP_STREAMS]; /* and how long that may last */
    lap_stall_t lost;                 /* what cannot come any more, once a look has failed */
} lap_watcher_t;

/* A look at all streams, as that of a lap_watch_t: fails when a wait is in vain, or lasts too long. */
lap_status_t lap_watcher_look(void *watcher);

#endif
