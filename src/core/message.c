/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages over Unix sockets that keep message boundaries and carry descriptors. Who says what when
 * is in bootstrap.c.
 */
#include "core/message.h"

#include <lap/version.h>

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "util/clock.h"

#define MAGIC 0x4c415050u

lap_message_t lap_message_make(lap_message_kind_t kind)
{
    lap_message_t message = {.magic = MAGIC, .protocol = LAP_MESSAGE_PROTOCOL, .kind = kind};
    snprintf(message.version, sizeof(message.version), "%s", lap_version_string());
    return message;
}

lap_message_t lap_message_make_status(lap_message_kind_t kind, lap_status_t status)
{
    lap_message_t message = lap_message_make(kind);
    message.status = status;
    if (status != LAP_OK)
        snprintf(message.text, sizeof(message.text), "%s", lap_last_error());
    return message;
}

void lap_close_fds(const int *fds, int count)
{
    for (int i = 0; i < count; i++)
        close(fds[i]);
}

lap_status_t lap_wait_polls(struct pollfd *polls, int count, lap_deadline_t *deadline)
{
    for (;;) {
        int ready = poll(polls, (nfds_t)count, deadline ? lap_deadline_poll_ms(deadline) : 0);
        if (ready > 0)
            return LAP_OK;
        if (ready < 0 && errno != EINTR)
            return lap_error_errno("poll");
        if (!deadline || lap_deadline_passed(deadline))
            return LAP_ERR_TIMEOUT;
    }
}

static lap_status_t wait_fd(int fd, short events, lap_deadline_t *deadline)
{
    struct pollfd one = {.fd = fd, .events = events};
    return lap_wait_polls(&one, 1, deadline);
}

typedef union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(LAP_MESSAGE_FDS * sizeof(int))];
} control_t;

lap_status_t lap_message_send(int fd, const lap_message_t *message, const int *fds, int nfds,
                              lap_deadline_t *deadline)
{
    control_t control = {0};
    struct iovec part = {.iov_base = (void *)message, .iov_len = sizeof(*message)};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    if (nfds > 0) {
        header.msg_control = control.bytes;
        header.msg_controllen = CMSG_SPACE((size_t)nfds * sizeof(int));
        struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN((size_t)nfds * sizeof(int));
        memcpy(CMSG_DATA(rights), fds, (size_t)nfds * sizeof(int));
    }
    while (sendmsg(fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
        if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN)
            return LAP_ERR_PEER_LOST;
        if (errno == ETOOMANYREFS) {
            /* Too many descriptors are on their way; the others are about to take theirs. */
            if (!deadline || lap_deadline_passed(deadline))
                return LAP_ERR_TIMEOUT;
            lap_sleep_until_ns(lap_now_ns() + 1000000u);
        } else if (errno == EAGAIN) {
            LAP_TRY(wait_fd(fd, POLLOUT, deadline));
        } else if (errno != EINTR) {
            return lap_error_errno("sending to another rank");
        }
    }
    return LAP_OK;
}

/* Moves the descriptors that came with a message to fds[0..LAP_MESSAGE_FDS). */
static int take_fds(struct msghdr *header, int *fds)
{
    int nfds = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        /* There is room for the control data of LAP_MESSAGE_FDS descriptors, so no more come. */
        int count = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds + nfds, CMSG_DATA(c), (size_t)count * sizeof(int));
        nfds += count;
    }
    return nfds;
}

/* Whether what came is a message as this version has them. */
static lap_status_t check_message(lap_message_t *message, size_t bytes)
{
    message->version[sizeof(message->version) - 1] = '\0';
    message->text[sizeof(message->text) - 1] = '\0';
    if (bytes < offsetof(lap_message_t, kind) || message->magic != MAGIC)
        return lap_error(LAP_ERR_MISMATCH,
                         "a message of %zu bytes from something that is not a rank of this library",
                         bytes);
    if (bytes != sizeof(*message))
        return lap_error(LAP_ERR_MISMATCH,
                         "a rank runs version %s of this library, another one version %s",
                         message->version, lap_version_string());
    return LAP_OK;
}

lap_status_t lap_message_receive(int fd, lap_message_t *message_p, int *fds, int *nfds_p,
                                 lap_deadline_t *deadline)
{
    control_t control;
    struct iovec part = {.iov_base = message_p, .iov_len = sizeof(*message_p)};
    struct msghdr header;
    ssize_t got;
    do {
        LAP_TRY(wait_fd(fd, POLLIN, deadline));
        header = (struct msghdr){.msg_iov = &part,
                                 .msg_iovlen = 1,
                                 .msg_control = control.bytes,
                                 .msg_controllen = sizeof(control.bytes)};
        got = recvmsg(fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        /*
         * A reset is reported once, before the peer's last messages; only the end of file is final.
         */
    } while (got < 0 && (errno == EINTR || errno == EAGAIN || errno == ECONNRESET));
    if (got < 0)
        return lap_error_errno("receiving from another rank");
    int nfds = take_fds(&header, fds);
    if (got == 0) { /* the end; or a message without a byte, which may have brought something */
        lap_close_fds(fds, nfds);
        return LAP_ERR_PEER_LOST;
    }
    lap_status_t status = LAP_OK;
    if (header.msg_flags & MSG_CTRUNC)
        status = lap_error(LAP_ERR_SYSTEM,
                           "too many open files: a world needs two for each rank, so raise the "
                           "limit (ulimit -n)");
    else
        status = check_message(message_p, (size_t)got);
    if (status != LAP_OK) {
        lap_close_fds(fds, nfds);
        return status;
    }
    *nfds_p = nfds;
    return LAP_OK;
}

lap_status_t lap_socket_open(int *fd_p)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return lap_error_errno("socket");
    *fd_p = fd;
    return LAP_OK;
}
