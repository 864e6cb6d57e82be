/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks say to one another while they meet, and the sockets that they say it through. */
#ifndef LAP_CORE_MESSAGE_H
#define LAP_CORE_MESSAGE_H

#include <poll.h>
#include <stdint.h>

#include "core/status.h"
#include "util/deadline.h"

#define LAP_MESSAGE_PROTOCOL 4
#define LAP_MESSAGE_VERSION 24
#define LAP_MESSAGE_FDS 64 /* descriptors in one message; the kernel takes up to 253 */

typedef enum lap_message_kind {
    LAP_MESSAGE_HELLO,
    LAP_MESSAGE_TABLE,
    LAP_MESSAGE_READY,
    LAP_MESSAGE_GO,
    LAP_MESSAGE_FAILURE,
} lap_message_kind_t;

/* The only kind of message; the sockets keep message boundaries. */
typedef struct lap_message {
    uint32_t magic, protocol;
    char version[LAP_MESSAGE_VERSION]; /* of the library; up to here it is always the same */
    uint32_t kind;
    int32_t rank, size, pid; /* HELLO: who */
    uint64_t left_ns;        /* HELLO: how long it can still wait, */
    uint64_t timeout_ns;     /* by which timeout, */
    int64_t timeout_of;      /* and whose that is */
    uint64_t board;          /* TABLE: handle of the board, a region of rank 0 */
    int32_t first, count;    /* TABLE: which ranks; the heap of each comes along */
    int32_t pids[LAP_MESSAGE_FDS];
    int32_t status; /* HELLO, READY, FAILURE */
    char text[LAP_ERROR_TEXT];
} lap_message_t;

/* A message that says nothing yet; and one that tells of `status`, with this thread's sentence. */
lap_message_t lap_message_make(lap_message_kind_t kind);
lap_message_t lap_message_make_status(lap_message_kind_t kind, lap_status_t status);

/*
 * Sends a message with nfds <= LAP_MESSAGE_FDS descriptors; without a deadline, if that can be done
 * without waiting. LAP_ERR_PEER_LOST and LAP_ERR_TIMEOUT come without a sentence: the caller knows whom it talks to.
 */
lap_status_t lap_message_send(int fd, const lap_message_t *message, const int *fds, int nfds,
                              lap_deadline_t *deadline);

/*
 * Takes one message and the descriptors that come with it; fds has room for LAP_MESSAGE_FDS of
 * them, and the caller closes them. LAP_ERR_PEER_LOST and LAP_ERR_TIMEOUT come without a sentence.
 */
lap_status_t lap_message_receive(int fd, lap_message_t *message_p, int *fds, int *nfds_p,
                                 lap_deadline_t *deadline);

void lap_close_fds(const int *fds, int count);

/*
 * Waits for an event on one of `count` sockets; without a deadline only looks. LAP_ERR_TIMEOUT
 * comes without a sentence.
 */
lap_status_t lap_wait_polls(struct pollfd *polls, int count, lap_deadline_t *deadline);

/* A socket that never blocks. */
lap_status_t lap_socket_open(int *fd_p);

#endif
