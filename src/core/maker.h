/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How processes become a world, over a stream that they have met on: that of rank 0 (core/hub), or
 * a communicator of MPI (core/mpi).
 */
#ifndef LAP_CORE_MAKER_H
#define LAP_CORE_MAKER_H

#include "core/limit.h"
#include "core/make.h"
#include "core/status.h"

typedef struct lap_maker lap_maker_t;

/* How the ranks talk while they make a world. */
typedef struct lap_maker_ops {
    /* Gathers `bytes` of each rank, in their order, on every rank, before the deadline. */
    lap_status_t (*gather)(lap_maker_t *maker, const void *mine, size_t bytes, void *all);
    /*
     * Instead of gathering: this rank has failed, with this thread's sentence, and its record says
     * so. Returns the failure by which the world ends here.
     */
    lap_status_t (*report)(lap_maker_t *maker, lap_status_t status);
    /*
     * While this rank waits for others of its host: a failure that another rank has reported, or
     * its end.
     */
    lap_status_t (*look)(lap_maker_t *maker);
    /*
     * Connects all ranks of the world. (optional) Without: all are of one host, and share a control
     * page.
     */
    lap_status_t (*open_wire)(lap_maker_t *maker, lap_world_t *world, lap_wire_t **wire_p);
} lap_maker_ops_t;

typedef struct lap_maker_record lap_maker_record_t;

/* A world being made. Each way of talking has it as the first field of what it needs. */
struct lap_maker {
    const lap_maker_ops_t *ops;
    const lap_settings_t *settings;
    lap_deadline_t deadline;
    uint64_t grace_ns; /* so much more of it than rank 0 has, which is the first to give up */
    lap_limit_t limit; /* whose timeout it is */
    int rank, size;
    const char *host; /* the same for the ranks of one host; NULL: `locals` are known */
    int local_rank, local_size;
    int *locals; /* the ranks of this host, in order */
    int socket;  /* by which those pass descriptors; -1: not yet */

    /* What lap_maker_run adds. */
    lap_maker_record_t *records; /* of all ranks, and this one's last */
    struct lap_pass_peer *peers; /* of this host: what they pass */
    lap_region_t control;        /* without a wire */
    lap_world_t *world;
    bool gathered; /* the records are of all ranks, as they are now */
};

/*
 * Makes the world: all ranks do, or none. `status` is a failure of this rank before, of which the
 * others learn. Needs the fields up to `socket`. Collective.
 */
lap_status_t lap_maker_run(lap_maker_t *maker, lap_status_t status, lap_world_t **world_p);

/* Slots for who can only gather: the record goes to all with those of the others. */
lap_status_t lap_maker_report(lap_maker_t *maker, lap_status_t status);
lap_status_t lap_maker_no_look(lap_maker_t *maker);

/* Whether a rank had its wire, as all ranks know. */
bool lap_maker_any_wire(const lap_maker_t *maker);

/* Frees what a maker has, but not itself. Not while somebody may still write to its records. */
void lap_maker_clear(lap_maker_t *maker);

#define LAP_SPARE_FILES 8 /* of the wire and of the world itself */

/*
 * Whether this process can open so many more files. It tries: a rank that finds that out while it
 * waits for others would leave them waiting for it.
 */
lap_status_t lap_maker_check_files(const lap_maker_t *maker, int expected);

#endif
