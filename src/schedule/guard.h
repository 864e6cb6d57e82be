/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guard of an engine whose streams wait for signals by themselves, in calls for which nobody may
 * be waiting in the library: the caller waits for a stream of its own, by means of the driver. The
 * guard is a thread that watches over them. When a wait is in vain it breaks the groups of all
 * operators in flight, so that no peer takes what comes for a result. Then it cancels all waits of the device. The next
 * call that asks the engine gets the failure.
 *
 * The operators in flight, the streams and the reasons of waits are changed only between hold and
 * go, and the device is released so.
 */
#ifndef LAP_SCHEDULE_GUARD_H
#define LAP_SCHEDULE_GUARD_H

#include "schedule/run.h"

/* Guards the engine; NULL, after a warning: there is no guard to be had. */
lap_guard_t *lap_guard_start(lap_engine_t *engine);
void lap_guard_stop(lap_guard_t *guard); /* NULL is fine, as for the following */

void lap_guard_hold(lap_guard_t *guard);
void lap_guard_go(lap_guard_t *guard);

/* Why it has let the waits go; LAP_OK: it has not. Costs next to nothing then. */
lap_status_t lap_guard_look_back(lap_guard_t *guard);
/* Between hold and go, when the device has been released: the streams may be used again. */
void lap_guard_forget(lap_guard_t *guard);

#endif
