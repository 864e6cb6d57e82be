/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which fragments of the programs of all ranks are one call. A rank has the calls that it takes part in, and no others.
 * Call n of a group in a buffer is the same call on all its ranks; n counts the calls of that group in that buffer, in
 * the order of each program.
 */
#ifndef LAP_SCHEDULE_CALLS_H
#define LAP_SCHEDULE_CALLS_H

#include "schedule/link.h"

typedef struct lap_calls {
    size_t *first;   /* of each rank: where its fragments begin among all, and one past the last */
    size_t *members; /* of each fragment: where those of its call begin in */
    uint32_t *
        fragments; /* ... this: the number of that fragment in the program of each rank of the group */
} lap_calls_t;

/*
 * Matches them. LAP_ERR_CHECK: ranks of a group do not agree on it, or on how many calls it has. The caller clears
 * it, also after a failure.
 */
lap_status_t lap_calls_init(lap_calls_t *calls, const lap_linked_t *const *programs, int size);
void lap_calls_clear(lap_calls_t *calls);

/* The fragment of rank `peer` of its group that is the same call as fragment `f` of rank `rank` of all. */
static inline uint32_t lap_calls_of(const lap_calls_t *calls, int rank, uint32_t f, int peer)
{
    return calls->fragments[calls->members[calls->first[rank] + f] + (size_t)peer];
}

#endif
