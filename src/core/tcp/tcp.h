/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this folder share. */
#ifndef LAP_CORE_TCP_TCP_H
#define LAP_CORE_TCP_TCP_H

#include <netinet/in.h>
#include <stdint.h>
#include <sys/socket.h>

#include "core/bootstrap.h"
#include "core/environment.h"
#include "core/status.h"
#include "core/wire.h"
#include "core/world.h"
#include "util/deadline.h"
#include "util/keyed_hash.h"

/* ---- sockets: tcp_socket.c ---- */

/* An address of either family, as it travels between ranks. */
typedef union lap_tcp_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} lap_tcp_address_t;

/* "10.0.0.1:29501" or "[::1]:29501". Returns the text. */
#define LAP_TCP_TEXT 64
const char *lap_tcp_name(const lap_tcp_address_t *address, char text[LAP_TCP_TEXT]);

void lap_tcp_set_port(lap_tcp_address_t *address, int port);
int lap_tcp_port(const lap_tcp_address_t *address);

/*
 * Listens at all addresses of this host, IPv6 and IPv4. Port 0: any, which *port_p then tells.
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

/* All bytes, or LAP_ERR_PEER_LOST or LAP_ERR_TIMEOUT, which come without a sentence. */
lap_status_t lap_tcp_write(int fd, const void *data, size_t bytes, lap_deadline_t *deadline);
lap_status_t lap_tcp_read(int fd, void *data, size_t bytes, lap_deadline_t *deadline);

/* ---- who is who: tcp_proof.c ---- */

/* What a rank says first. It, and the proofs, are the same in all versions. */
typedef struct lap_tcp_hello {
    uint64_t magic;
    char version[24];
    int32_t rank, size;
    uint64_t left_ns; /* how long it can still wait */
    uint64_t timeout_ns;
    lap_key_t nonce; /* random: no answer to it has been heard before */
} lap_tcp_hello_t;

/* What rank 0 answers. */
typedef struct lap_tcp_challenge {
    uint64_t magic;
    lap_key_t nonce;
    uint64_t proof; /* that it has the key of the job */
} lap_tcp_challenge_t;

typedef enum lap_tcp_side { LAP_TCP_RANK_0 = 1, LAP_TCP_RANK } lap_tcp_side_t;

lap_status_t lap_tcp_random(lap_key_t *nonce_p);

/*
 * What only one who has the key of the job can say: of both nonces, of all of the hello, and of the
 * port of rank 0, so that one who listens at another port cannot pass on what both sides say.
 */
uint64_t lap_tcp_proof(const lap_key_t *key, lap_tcp_side_t side, const lap_tcp_hello_t *hello,
                       const lap_key_t *nonce, int port);

/* ---- the rendezvous of all ranks at rank 0: tcp_meet.c ---- */

/* So many more than there are ranks may wait there to be heard. */
#define LAP_TCP_STRANGERS 16

typedef struct lap_tcp_rendezvous {
    int rank, size;
    const lap_master_t *master;
    uint64_t timeout_ns; /* of this rank, */
    lap_limit_t limit;   /* and the one that counts, as far as this rank knows */
    int *fds;            /* of rank 0: to each rank; else the first is to rank 0; -1: none */
    bool failed;         /* a failure has been sent: nobody gathers any more */
} lap_tcp_rendezvous_t;

/*
 * All ranks come to rank 0. Needs rank, size, master and timeout_ns. Collective; on failure all who
 * came hear of it. `ready`: what came of this rank's preparations; a failure, with this thread's
 * sentence, is returned. Others than rank 0 come all the same and report it; rank 0 first tells it to those who come
 * within a moment. Ended by lap_tcp_part in any case.
 */
lap_status_t lap_tcp_meet(lap_tcp_rendezvous_t *rendezvous, lap_status_t ready,
                          lap_deadline_t *deadline);
void lap_tcp_part(lap_tcp_rendezvous_t *rendezvous);

/* The words for the timeout that counts, as lap_limit_within. */
const char *lap_tcp_within(const lap_tcp_rendezvous_t *rendezvous, char text[LAP_LIMIT_TEXT]);

/* ---- what they say there: tcp_gather.c ---- */

lap_status_t lap_tcp_send_frame(int fd, lap_status_t status, const void *data, size_t bytes,
                                lap_deadline_t *deadline);

/*
 * Takes bytes, exactly so many; or the verdict of the other side: a failure with its sentence.
 * PEER_LOST and TIMEOUT that are no verdict come without one.
 */
lap_status_t lap_tcp_receive_frame(int fd, void *data, size_t bytes, bool *verdict_p,
                                   lap_deadline_t *deadline);

/* Tells a failure, with this thread's sentence, to one who may not listen. */
void lap_tcp_tell(int fd, lap_status_t status);
void lap_tcp_tell_all(lap_tcp_rendezvous_t *rendezvous, lap_status_t status);

/* Gathers `bytes` of each rank on every rank. Collective. After a failure nobody can gather again. */
lap_status_t lap_tcp_gather(lap_tcp_rendezvous_t *rendezvous, const void *mine, size_t bytes,
                            void *all, lap_deadline_t *deadline);

/*
 * Instead of gathering: this rank has failed, with this thread's sentence. All hear of it at once.
 * Returns the failure that rank 0 heard of first, which all return: of a rank that has lost another,
 * that rank 0 went away, if it did.
 */
lap_status_t lap_tcp_report(lap_tcp_rendezvous_t *rendezvous, lap_status_t status,
                            lap_deadline_t *deadline);

/*
 * Before this rank gathers: poll() has found `revents` at its connection to `rank`. Returns the
 * failure of which it tells; of rank 0, all hear of it. *ready_p: that rank gathers already.
 */
lap_status_t lap_tcp_hear(lap_tcp_rendezvous_t *rendezvous, int rank, int revents, bool *ready_p);

/* The same, of all connections, without waiting. */
lap_status_t lap_tcp_look(lap_tcp_rendezvous_t *rendezvous);

/* ---- the control channel of the world: tcp_wire.c ---- */

/*
 * A wire over the connections of a rendezvous, at which ranks go on to gather until it starts; then it
 * has taken the connections over. Until then what is sent is dropped, and closing it leaves them open.
 */
lap_status_t lap_tcp_wire_open(lap_world_t *world, const int *fds, lap_wire_t **wire_p);
void lap_tcp_wire_start(lap_wire_t *wire);

#endif
