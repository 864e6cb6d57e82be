/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guard of an engine whose streams wait for signals by themselves, in calls for which nobody may
 * be waiting in the library: the caller waits for a stream of its own, by means of the driver. When
 * such a wait lasts and its group has lost a rank, or it has found another call's signal, the guard,
 * a thread, lets all waits of the device go. What comes of it is told by whoever next asks the
 * engine.
 *
 * Whatever the guard reads may be changed only between hold and go: the guests of both engines, the
 * engine beside, and whether the streams are stalled.
 */
#ifndef LAP_SCHEDULE_GUARD_H
#define LAP_SCHEDULE_GUARD_H

#include "schedule/run.h"

/* Starts to guard the engine and the one beside it. */
lap_status_t lap_guard_start(lap_engine_t *engine, lap_guard_t **guard_p);
void lap_guard_stop(lap_guard_t *guard); /* NULL is fine, as for the following */

void lap_guard_hold(lap_guard_t *guard);
void lap_guard_go(lap_guard_t *guard);

/* Whether it has let the waits go; which one it was for. Costs next to nothing. */
bool lap_guard_found(lap_guard_t *guard, lap_stall_t *stall_p);
/* Between hold and go, when the device has been released: the streams may be used again. */
void lap_guard_forget(lap_guard_t *guard);

#endif
