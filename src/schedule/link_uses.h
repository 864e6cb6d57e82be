/* SPDX-License-Identifier: Apache-2.0 */
/* What link.c shares with its neighbours, and with the checker. */
#ifndef LAP_SCHEDULE_LINK_USES_H
#define LAP_SCHEDULE_LINK_USES_H

#include "schedule/link.h"

/* Room for one more part of a program; NULL, with the failure in its status, when there is none. */
void *lap_link_grow(lap_linked_t *linked, void *array, uint32_t count, size_t *room_p, size_t size);

/* Calls `each` for all uses of a step, or of a tile of it (else LAP_NO_STEP). */
void lap_schedule_each(const lap_schedule_t *schedule, uint32_t index, uint32_t tile,
                       lap_each_access_t each, void *context);

/* Whether a signal lets a peer use this rank's memory: a credit, or what opens it. */
bool lap_link_grants(const lap_schedule_t *schedule, uint32_t signal);

/* Whether a wait for a signal is one for a peer that uses this rank's memory. */
bool lap_link_awaits_peer(const lap_schedule_t *schedule, uint32_t signal);

/* Whether a step uses this rank's symmetric memory, or lets a peer use it. */
bool lap_link_opens(const lap_linked_t *linked, const lap_fragment_t *fragment, uint32_t index);

#endif
