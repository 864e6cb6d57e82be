/* SPDX-License-Identifier: Apache-2.0 */
/* What the environment says: which rank this is, of how many, where they meet; and settings. */
#ifndef LAP_CORE_ENVIRONMENT_H
#define LAP_CORE_ENVIRONMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lap/status.h>

#include "util/keyed_hash.h"

/*
 * The longest path of a directory to meet in, with its end: "<dir>/s" must fit in a socket address
 * of 108 bytes.
 */
#define LAP_DIR_BYTES 106

/* More ranks than one host can sensibly run. */
#define LAP_RANKS_MAX 4096

/* Where rank 0 can be reached over TCP. */
typedef struct lap_master {
    char hosts[256];    /* names or addresses, with blanks between; "": nobody says */
    int port, nports;   /* the first, and how many there are: rank 0 takes one that is free */
    const char *source; /* the variables that say so */
    bool given;         /* by LAP_MASTER, which is there for nothing else */
    int listener;       /* of rank 0, if it listens there already; -1: not yet */
    lap_key_t key;      /* of the job, which ranks of another one do not have */
} lap_master_t;

typedef struct lap_environment {
    int rank, size;
    int local_size;          /* ranks on this host, as far as the launcher says */
    const char *launcher;    /* "lap run", "mpirun of Open MPI", ...; "nobody" */
    char dir[LAP_DIR_BYTES]; /* "" for a world of one, and for one that spans hosts */
    bool named;              /* by LAP_JOB, which another job may have as well */
    char hosts[96];          /* why the ranks may not all be on this host; "": they are */
    char host[128];          /* the same for the ranks of one host, and no others */
    lap_master_t master;
} lap_environment_t;

/* Whether a launcher has made this process a rank, be it the only one. */
bool lap_environment_launched(void);

/* Finds out who started this process as which rank. A world of one when nobody did. */
lap_status_t lap_environment_read(lap_environment_t *environment_p);

/*
 * What distinguishes this host from others: LAP_NODE, or else that of processes that can share
 * memory, and meet in a directory. Of a container, not of a machine.
 */
void lap_environment_host(char *text, size_t bytes);

/* Seconds, as options or LAP_TIMEOUT_S give them, in nanoseconds. `name` is for the sentence. */
lap_status_t lap_timeout_from_seconds(const char *name, double seconds, uint64_t *ns_p);

/* The same from a text, such as 3 or 0.25, which may be of an option as well; as seconds. */
lap_status_t lap_timeout_parse(const char *name, const char *text, double *seconds_p);

#define LAP_TIMEOUT_DEFAULT_NS 60000000000u

/* LAP_TIMEOUT_S, or the default when it is not set. */
lap_status_t lap_environment_timeout(uint64_t *ns_p);

/*
 * LAP_SPIN_US in nanoseconds: how long a wait keeps its core busy before it sleeps; 50 us unless
 * set.
 */
lap_status_t lap_environment_spin(uint64_t *ns_p);

/*
 * LAP_BLAS_EVEN: whether bits of GEMMs that do not depend on the schedule come before speed; 1
 * unless set.
 */
lap_status_t lap_environment_blas_even(bool *even_p);

/*
 * Where private directories go: XDG_RUNTIME_DIR, TMPDIR, or /tmp. It is the first that leaves
 * `room` bytes for a name and where nobody else can remove or rename what is ours: a directory of
 * this user or of root, and sticky if others may write to it. The text lives as long as the
 * environment.
 */
lap_status_t lap_environment_base(size_t room, const char **base_p);

#endif
