/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How processes that know only a directory become a world, and how long ranks wait for one another's
 * failures meanwhile, there and over TCP.
 */
#ifndef LAP_CORE_BOOTSTRAP_H
#define LAP_CORE_BOOTSTRAP_H

#include "core/world.h"
#include "util/deadline.h"

/*
 * Only rank 0 knows which ranks have not come. Each rank tells it how long it can wait, and then waits
 * this much longer: rank 0 is the first to give up, and all ranks fail with its sentence.
 */
#define LAP_BOOTSTRAP_GRACE_NS 3000000000u

/* After a failure rank 0 waits this long for ranks that have not come yet, so that they hear of it. */
#define LAP_BOOTSTRAP_LINGER_NS 2000000000u

/* The timeout that ends a meeting, of all those the one that is over first, and the rank that has it. */
typedef struct lap_limit {
    uint64_t timeout_ns;
    int64_t rank;
} lap_limit_t;

/* As lap_deadline_shorten, by what a rank has left of another limit. An equal one may keep its rank. */
void lap_limit_shorten(lap_limit_t *limit, lap_deadline_t *deadline, uint64_t left_ns,
                       lap_limit_t other);

/*
 * What was waited for in vain has not come "within 2 s", or "within 2 s (the timeout of rank 3)" where
 * this rank's own is another; or, where only a part of that time was left for it, "in time (the
 * timeout of rank 3 is 2 s)". Both return the text.
 */
#define LAP_LIMIT_TEXT 64
const char *lap_limit_within(const lap_limit_t *limit, uint64_t own_ns, char text[LAP_LIMIT_TEXT]);
const char *lap_limit_in_time(const lap_limit_t *limit, char text[LAP_LIMIT_TEXT]);

/* Where ranks meet. */
typedef struct lap_rendezvous {
    const char *dir;
    /* NULL, but for those of one host among several: the numbers by which all ranks know them, */
    const int *ranks;
    /* how long they wait, which is less than the timeout, and that timeout, */
    uint64_t most_ns;
    lap_limit_t limit;
    /* and what is called now and then while somebody has not come: a failure ends the rendezvous. */
    lap_status_t (*look)(void *context);
    void *context;
    /* As in lap_settings_t: this rank comes to tell why it fails. */
    lap_status_t declines;
    const char *why;
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

/*
 * Right after a failure before this rank could come to the others in `dir`: where errno says that it was for want of
 * files, they hear of it, at once if they wait already. Takes a moment. The world is of no use any more: what
 * it has open serves for this. The sentence of this thread stays.
 */
void lap_bootstrap_excuse(lap_world_t *world, const char *dir);

#endif
