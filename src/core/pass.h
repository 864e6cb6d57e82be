/* SPDX-License-Identifier: Apache-2.0 */
/* File descriptors from rank to rank, for memory that is known by them. */
#ifndef LAP_CORE_PASS_H
#define LAP_CORE_PASS_H

#include "core/world.h"
#include "util/deadline.h"

/*
 * Every rank of a group, all of them processes of this host, gives a descriptor, or -1, and gets
 * its own copies of the others'. Collective; blocks. `fds` has room for lap_group_size descriptors:
 * filled on success, with -1 for this rank and for who gave none; the caller closes them. Its own
 * descriptor stays with each rank. When one rank fails, all do.
 */
lap_status_t lap_group_pass_fds(lap_group_t *group, int mine, int *fds);

/* ---- the same for ranks that have no group yet, but know one another's sockets ---- */

/* The name of a socket. Plain bytes: it travels. */
typedef struct lap_pass_name {
    uint32_t bytes;
    char text[28];
} lap_pass_name_t;

/* A rank that takes part. */
typedef struct lap_pass_peer {
    int rank; /* its number, for sentences */
    lap_pass_name_t name;
    int pid;
    int fd;    /* has come from it; -1: none */
    bool came; /* its message */
} lap_pass_peer_t;

typedef struct lap_pass {
    int socket;
    int rank, size;
    uint32_t round; /* the same on all: messages of another one are not taken */
    int mine;
    lap_pass_peer_t *peers;              /* `size` of them */
    int sent, received;                  /* to and from how many ranks, this one included */
    lap_status_t (*look)(void *context); /* now and then: a failure ends the wait */
    void *context;
    bool timed_out; /* here: a timeout may also be a failure that the look has found */
} lap_pass_t;

static inline lap_pass_peer_t lap_pass_peer(int rank, const lap_pass_name_t *name, int pid)
{
    return (lap_pass_peer_t){.rank = rank, .name = *name, .pid = pid, .fd = -1};
}

/* A socket for the messages of the others, and its name for them. */
lap_status_t lap_pass_open(int *socket_p, lap_pass_name_t *name_p);

/*
 * Passes `mine` to all peers, and fills in those of all that have `came`, which the caller closes,
 * also on failure. When it has timed out LAP_ERR_TIMEOUT comes without a sentence.
 */
lap_status_t lap_pass_run(lap_pass_t *pass, lap_deadline_t *deadline);

#endif
