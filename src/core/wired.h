/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ranks of several hosts become a world with a wire, over whatever they can talk through: MPI
 * (core/mpi) or TCP (core/tcp).
 */
#ifndef LAP_CORE_WIRED_H
#define LAP_CORE_WIRED_H

#include "core/bootstrap.h"
#include "core/make.h"
#include "core/status.h"
#include "util/deadline.h"

typedef struct lap_wired lap_wired_t;

/* What ranks talk through while they make a world. */
typedef struct lap_wired_ops {
    /* Gathers `bytes` of each rank, in their order, on every rank, before the deadline. */
    lap_status_t (*gather)(lap_wired_t *maker, const void *mine, size_t bytes, void *all);
    /*
     * Instead of gathering: this rank has failed, with this thread's sentence, and its card says so.
     * Returns the failure by which the world ends here.
     */
    lap_status_t (*report)(lap_wired_t *maker, lap_status_t status);
    /* While this rank waits for others of its host: a failure that another rank has reported, or its end. */
    lap_status_t (*look)(lap_wired_t *maker);
    /* Connects all ranks of the world. */
    lap_status_t (*open_wire)(lap_wired_t *maker, lap_world_t *world, lap_wire_t **wire_p);
} lap_wired_ops_t;

typedef struct lap_wired_card lap_wired_card_t;

/* A world being made. Who talks through something has it as the first field of what it needs. */
struct lap_wired {
    const lap_wired_ops_t *ops;
    const lap_settings_t *settings;
    lap_deadline_t deadline;
    uint64_t grace_ns; /* so much more of it than rank 0 has, which is the first to give up */
    lap_limit_t limit; /* whose timeout it is */
    int rank, size;
    int local_rank, local_size;
    int *locals; /* the ranks of this host, in order */

    /* What lap_wired_make adds. */
    lap_wired_card_t *cards; /* of all ranks, and this one's last */
    lap_world_t *world;
    lap_world_t *host; /* only the ranks of this host, to meet; NULL: there is one */
    bool gathered;     /* the cards are of all ranks, as they are now */
};

/*
 * Makes the world: all ranks do, or none. `status` is what went wrong here before, which the others
 * hear. Needs the fields up to `locals`. Collective.
 */
lap_status_t lap_wired_make(lap_wired_t *maker, lap_status_t status, lap_world_t **world_p);

/* Slots for who can only gather: the card goes to all with those of the others. */
lap_status_t lap_wired_report(lap_wired_t *maker, lap_status_t status);
lap_status_t lap_wired_no_look(lap_wired_t *maker);

/* Whether a rank had its wire, as all ranks know. */
bool lap_wired_any(const lap_wired_t *maker);

/* Frees what a maker has, but not itself. Not while somebody may still write to its cards. */
void lap_wired_clear(lap_wired_t *maker);

#endif
