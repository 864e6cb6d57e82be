/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one rendezvous, and the control channel between hosts: all ranks come to rank 0, the hub,
 * over a stream, gather bytes through it, and part; or, on several hosts, go on to talk through it.
 * The streams are Unix sockets in a directory, where all ranks are of one host, or TCP.
 */
#ifndef LAP_CORE_HUB_HUB_H
#define LAP_CORE_HUB_HUB_H

#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "core/environment.h"
#include "core/limit.h"
#include "core/status.h"
#include "core/wire.h"
#include "core/world.h"
#include "util/keyed_hash.h"

/* ---- sockets: hub_socket.c ---- */

/*
 * Waits for an event on one of `count` sockets; without a deadline only looks. LAP_ERR_TIMEOUT
 * comes without a sentence.
 */
lap_status_t lap_wait_polls(struct pollfd *polls, int count, lap_deadline_t *deadline);

/* All bytes, or LAP_ERR_PEER_LOST or LAP_ERR_TIMEOUT, which come without a sentence. */
lap_status_t lap_stream_write(int fd, const void *data, size_t bytes, lap_deadline_t *deadline);
lap_status_t lap_stream_read(int fd, void *data, size_t bytes, lap_deadline_t *deadline);

/* An address of either family of TCP. */
typedef union lap_tcp_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} lap_tcp_address_t;

/* "10.0.0.1:29501" or "[::1]:29501"; or "pid 123", of a Unix socket. Returns the text. */
#define LAP_STREAM_TEXT 64
const char *lap_tcp_name(const lap_tcp_address_t *address, char text[LAP_STREAM_TEXT]);

void lap_tcp_set_port(lap_tcp_address_t *address, int port);
int lap_tcp_port(const lap_tcp_address_t *address);

/*
 * Listens at all addresses of this host, IPv6 and IPv4. Port 0: any, which *port_p then is.
 * The sockets of this file do not block and end with an exec. LAP_ERR_SYSTEM leaves errno.
 */
lap_status_t lap_tcp_listen(int port, int *fd_p, int *port_p);

/*
 * One who has connected to this rank; -1: nobody has, or has gone again. An address of IPv4 is
 * returned as one. LAP_ERR_SYSTEM: a process without descriptors would be asked again and again.
 */
lap_status_t lap_tcp_accept(int listener, int rank, int size, int *fd_p, lap_tcp_address_t *from_p);

/* LAP_ERR_PEER_LOST and LAP_ERR_TIMEOUT come without a sentence, with an errno. */
lap_status_t lap_tcp_connect(const lap_tcp_address_t *address, lap_deadline_t *deadline, int *fd_p);

/* Small packets leave at once, and an idle host that is gone is noticed within `timeout_ns`. */
void lap_tcp_prepare(int fd, uint64_t timeout_ns);

/* ---- proofs of identity: hub_proof.c ---- */

#define LAP_HUB_HELLO_MAGIC 0x4c61704d65657434u /* also shows the order of bytes */
#define LAP_HUB_CHALLENGE_MAGIC 0x4c61704d65657433u

/* The first message of a rank. It, and the proofs, are the same in all versions. */
typedef struct lap_hub_hello {
    uint64_t magic;
    char version[24];
    int32_t rank, size;
    int64_t pid;
    uint64_t left_ns; /* how long it can still wait */
    uint64_t timeout_ns;
    lap_key_t nonce; /* random: an answer to it cannot be a copy of an earlier one */
} lap_hub_hello_t;

/* The answer of rank 0. */
typedef struct lap_hub_challenge {
    uint64_t magic;
    lap_key_t nonce;
    uint64_t proof; /* that it has the key of the job */
} lap_hub_challenge_t;

typedef enum lap_hub_side { LAP_HUB_RANK_0 = 1, LAP_HUB_RANK } lap_hub_side_t;

lap_status_t lap_hub_random(lap_key_t *nonce_p);

/*
 * Only one who has the key of the job can make it: of both nonces, of all of the hello, and of the
 * port of rank 0, so that one who listens at another port cannot pass on the messages of both
 * sides. In a directory, where the kernel proves the user, the key and the port are 0.
 */
uint64_t lap_hub_proof(const lap_key_t *key, lap_hub_side_t side, const lap_hub_hello_t *hello,
                       const lap_key_t *nonce, int port);

/* ---- the rendezvous: hub.c ---- */

/* So many more than there are ranks may have connected there and not yet proved who they are. */
#define LAP_HUB_PENDING 16

typedef struct lap_hub_kind lap_hub_kind_t;

typedef struct lap_hub {
    const lap_hub_kind_t *kind;
    int rank, size;
    const char *dir;            /* where the ranks come to, of lap_hub_dir, */
    const lap_master_t *master; /* and of lap_hub_tcp */
    uint64_t timeout_ns;        /* of this rank, */
    lap_limit_t limit;          /* and the one that counts, as far as this rank knows */
    int *fds;                   /* of rank 0: to each rank; else the first is to rank 0; -1: none */
    int *pids;     /* of rank 0: those of the ranks of this host that have come; else 0 */
    bool failed;   /* a failure has been sent: nobody gathers any more */
    bool no_files; /* this rank had no descriptor to come to the others, or to let them in */
} lap_hub_t;

/* The listening end of rank 0. */
typedef struct lap_hub_listener {
    int fd, port;
    int dir_fd; /* holds a lock, so that a second rank 0 does not take the place of a living one */
    bool owns_dir; /* to be removed at the end: this rank made it, or one that has died did */
    bool bound;    /* the socket is in the directory */
} lap_hub_listener_t;

/* One attempt to reach rank 0, and its result. */
typedef struct lap_hub_attempt {
    lap_hub_t *hub;
    lap_deadline_t *deadline;
    bool reached;    /* it was rank 0, with a welcome or a failure */
    char last[256];  /* why the latest did not reach it, */
    char other[128]; /* and that one came to another job */
} lap_hub_attempt_t;

#define LAP_HUB_PLACE_TEXT 320

/* The two kinds of stream. */
struct lap_hub_kind {
    uint64_t pause_most_ns; /* between two attempts to reach rank 0 */

    /* "gpu1:29501" or "'/tmp/lap-...'". Returns the text. */
    const char *(*place)(const lap_hub_t *hub, char text[LAP_HUB_PLACE_TEXT]);

    /* Rank 0 listens, and ends that; `listener` is as lap_hub_join begins it. */
    lap_status_t (*listen)(lap_hub_t *hub, lap_hub_listener_t *listener);
    void (*close)(lap_hub_t *hub, lap_hub_listener_t *listener);

    /*
     * One who has connected; -1: nobody has, or has gone again. *pid_p is 0 where it is not known.
     */
    lap_status_t (*accept)(lap_hub_t *hub, const lap_hub_listener_t *listener, int *fd_p,
                           int *pid_p, char from[LAP_STREAM_TEXT]);

    /* Tries all places where rank 0 may be, by lap_hub_greet. */
    lap_status_t (*connect)(lap_hub_attempt_t *attempt);

    /* Rank 0 was not found: the failure. `within` is how long it was looked for. */
    lap_status_t (*absent)(const lap_hub_attempt_t *attempt, const char *within);

    /* Whether a rank that has not come is known not to. */
    lap_status_t (*look)(const lap_hub_t *hub, int rank);
};

extern const lap_hub_kind_t lap_hub_dir; /* hub_dir.c */
extern const lap_hub_kind_t lap_hub_tcp; /* hub_tcp.c */

/*
 * Says hello over a new stream to who listens at `name`, which may be somebody else: nothing is
 * believed before its proof. Takes the stream over: it is that of the hub, or closed.
 * LAP_ERR_PEER_LOST and LAP_ERR_TIMEOUT of an attempt that has not reached rank 0 come without a
 * sentence.
 */
lap_status_t lap_hub_greet(lap_hub_attempt_t *attempt, int fd, int port, const char *name);

/*
 * All ranks come to rank 0. Needs the fields up to timeout_ns. Collective; on failure all who came
 * learn of it. `ready`: the result of this rank's preparations; a failure, with this thread's
 * sentence, is returned. Others than rank 0 come all the same and report it; rank 0 first sends it
 * to those who come within a moment. Ended by lap_hub_leave in any case.
 */
lap_status_t lap_hub_join(lap_hub_t *hub, lap_status_t ready, lap_deadline_t *deadline);
void lap_hub_leave(lap_hub_t *hub);

/* ---- gathering there: hub_gather.c ---- */

lap_status_t lap_hub_send_frame(int fd, lap_status_t status, const void *data, size_t bytes,
                                lap_deadline_t *deadline);

/*
 * Takes bytes, exactly so many; or the verdict of the other side: a failure with its sentence.
 * PEER_LOST and TIMEOUT that are no verdict come without one.
 */
lap_status_t lap_hub_receive_frame(int fd, void *data, size_t bytes, bool *verdict_p,
                                   lap_deadline_t *deadline);

/* Sends a failure, with this thread's sentence, to one who may not listen; and to all. */
void lap_hub_send_failure(int fd, lap_status_t status);
void lap_hub_fail_all(lap_hub_t *hub, lap_status_t status);

/* The connection to a rank has ended before its time. */
lap_status_t lap_hub_lost(const lap_hub_t *hub, int rank);

/*
 * Gathers `bytes` of each rank on every rank. Collective. After a failure nobody can gather again.
 */
lap_status_t lap_hub_gather(lap_hub_t *hub, const void *mine, size_t bytes, void *all,
                            lap_deadline_t *deadline);

/*
 * Instead of gathering: this rank has failed, with this thread's sentence. All learn of it at once.
 * Returns the first failure that reached rank 0, which all return: of a rank that has lost another,
 * that rank 0 went away, if it did.
 */
lap_status_t lap_hub_report(lap_hub_t *hub, lap_status_t status, lap_deadline_t *deadline);

/*
 * Before this rank gathers: poll() has found `revents` at its connection to `rank`. Returns the
 * failure that came; where this is rank 0, all learn of it. *ready_p: that rank gathers already.
 */
lap_status_t lap_hub_check(lap_hub_t *hub, int rank, int revents, bool *ready_p);

/* The same, of all connections, without waiting. */
lap_status_t lap_hub_check_all(lap_hub_t *hub);

/* ---- the control channel of the world: hub_wire.c ---- */

/*
 * A wire over the connections of a hub, at which ranks go on to gather until it starts; then it has
 * taken the connections over. Until then what is sent is dropped, and closing it leaves them open.
 */
lap_status_t lap_hub_wire_open(lap_world_t *world, const int *fds, lap_wire_t **wire_p);
void lap_hub_wire_start(lap_wire_t *wire);

#endif
