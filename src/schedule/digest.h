/* SPDX-License-Identifier: Apache-2.0 */
/* A number that names a program: two that have it in common do the same, in the same order, with the same memory. */
#ifndef LAP_SCHEDULE_DIGEST_H
#define LAP_SCHEDULE_DIGEST_H

#include "schedule/link.h"

/* That of the program of one rank, linked. The same on every machine. */
lap_status_t lap_linked_digest(const lap_linked_t *linked, uint64_t *digest_p);

/*
 * One for several: begins with LAP_NO_DIGEST, and then one after the other. Those of the programs of a step on a rank, in
 * their order, are one; and so are those of all ranks.
 */
#define LAP_NO_DIGEST UINT64_C(14695981039346656037)
uint64_t lap_digest_add(uint64_t digests, uint64_t digest);

#endif
