/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How processes that know only a directory become a world, and how long ranks wait for one another's
 * failures meanwhile, there and over TCP.
 */
#ifndef LAP_CORE_BOOTSTRAP_H
#define LAP_CORE_BOOTSTRAP_H

#include "core/world.h"

/*
 * Only rank 0 knows which ranks have not come. Each rank tells it how long it can wait, and then waits
 * this much longer: rank 0 is the first to give up, and all ranks fail with its sentence.
 */
#define LAP_BOOTSTRAP_GRACE_NS 3000000000u

/* After a failure rank 0 waits this long for ranks that have not come yet, so that they hear of it. */
#define LAP_BOOTSTRAP_LINGER_NS 2000000000u

/* Where ranks meet. */
typedef struct lap_rendezvous {
    const char *dir;
    /* NULL, but for those of one host among several: the numbers by which all ranks know them, */
    const int *ranks;
    /* and what is called now and then while somebody has not come: a failure ends the rendezvous. */
    lap_status_t (*look)(void *context);
    void *context;
} lap_rendezvous_t;

/*
 * Meets the other ranks of the world in the directory of `place`, which rank 0 makes and removes again,
 * also on failure. One that is there must be private and ours, and stays, unless a rank 0 that was
 * killed has left it with its socket. Needs rank, size, timeout_ns, peers (fds -1) and
 * the own heap in the world; fills in the other peers, and *board_p with the mapped board of the
 * group of all ranks. Collective. All ranks that came succeed, or all fail with the same sentence, at
 * the latest when the first of them has waited for timeout_ns. On failure some peers may be filled
 * in: who destroys the world closes them.
 */
lap_status_t lap_bootstrap_meet(lap_world_t *world, const lap_rendezvous_t *place,
                                lap_region_t *board_p);

#endif
