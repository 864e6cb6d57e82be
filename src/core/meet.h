/* SPDX-License-Identifier: Apache-2.0 */
/* The two sides of a rendezvous, see bootstrap.c, and what both of them do. */
#ifndef LAP_CORE_MEET_H
#define LAP_CORE_MEET_H

#include "core/bootstrap.h"

struct ucred;

/* As lap_bootstrap_meet: of rank 0, and of any other. */
lap_status_t lap_meet_host(lap_world_t *world, const lap_rendezvous_t *place,
                           lap_region_t *board_p);
lap_status_t lap_meet_client(lap_world_t *world, const lap_rendezvous_t *place,
                             lap_region_t *board_p);

/*
 * The kernel says who is at the other end of a socket: only a process of this user has any business
 * here. `doing` is what the other one does.
 */
lap_status_t lap_meet_check_peer(int fd, const char *doing, const char *dir, struct ucred *who_p);

/* The number by which all ranks know one of this rendezvous. */
int lap_meet_known(const lap_rendezvous_t *place, int rank);

/* How long this rank waits there at most, by which timeout, and the words for it. */
lap_deadline_t lap_meet_deadline(const lap_world_t *world, const lap_rendezvous_t *place);
lap_limit_t lap_meet_limit(const lap_world_t *world, const lap_rendezvous_t *place);
const char *lap_meet_within(const lap_world_t *world, const lap_rendezvous_t *place,
                            const lap_limit_t *limit, char text[LAP_LIMIT_TEXT]);

/* Whether `rank`, for which `self` waits, is known not to come. */
lap_status_t lap_meet_look(const lap_rendezvous_t *place, int self, int rank);

/* A descriptor for each other process that tells when it has ended. */
lap_status_t lap_meet_open_pidfds(lap_world_t *world, const lap_rendezvous_t *place);

#endif
