/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for streams, their bytes, and sockets of TCP over IPv4 and IPv6, with deadlines. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/hub/hub.h"

#define BACKLOG 4096 /* all ranks may come at once; the kernel has a bound of its own */

/* ---- streams ---- */

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
    const lap_status_t status = lap_wait_polls(&one, 1, deadline);
    if (status == LAP_ERR_TIMEOUT)
        errno = ETIMEDOUT;
    return status;
}

lap_status_t lap_stream_write(int fd, const void *data, size_t bytes, lap_deadline_t *deadline)
{
    const char *at = data;
    while (bytes > 0) {
        const ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL);
        if (sent > 0) {
            at += sent;
            bytes -= (size_t)sent;
        } else if (errno == EAGAIN) {
            LAP_TRY(wait_fd(fd, POLLOUT, deadline));
        } else if (errno != EINTR) {
            return LAP_ERR_PEER_LOST;
        }
    }
    return LAP_OK;
}

lap_status_t lap_stream_read(int fd, void *data, size_t bytes, lap_deadline_t *deadline)
{
    char *at = data;
    while (bytes > 0) {
        const ssize_t got = recv(fd, at, bytes, 0);
        if (got > 0) {
            at += got;
            bytes -= (size_t)got;
        } else if (got < 0 && errno == EAGAIN) {
            LAP_TRY(wait_fd(fd, POLLIN, deadline));
        } else if (got == 0 || errno != EINTR) {
            return LAP_ERR_PEER_LOST;
        }
    }
    return LAP_OK;
}

/* ---- addresses ---- */

const char *lap_tcp_name(const lap_tcp_address_t *address, char text[LAP_STREAM_TEXT])
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (address->any.sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &address->v6.sin6_addr, host, sizeof(host));
        snprintf(text, LAP_STREAM_TEXT, "[%s]:%u", host, ntohs(address->v6.sin6_port));
    } else {
        inet_ntop(AF_INET, &address->v4.sin_addr, host, sizeof(host));
        snprintf(text, LAP_STREAM_TEXT, "%s:%u", host, ntohs(address->v4.sin_port));
    }
    return text;
}

void lap_tcp_set_port(lap_tcp_address_t *address, int port)
{
    if (address->any.sa_family == AF_INET6)
        address->v6.sin6_port = htons((uint16_t)port);
    else
        address->v4.sin_port = htons((uint16_t)port);
}

int lap_tcp_port(const lap_tcp_address_t *address)
{
    return ntohs(address->any.sa_family == AF_INET6 ? address->v6.sin6_port : address->v4.sin_port);
}

static socklen_t bytes_of(const lap_tcp_address_t *address)
{
    return address->any.sa_family == AF_INET6 ? sizeof(address->v6) : sizeof(address->v4);
}

static int open_socket(int family)
{
    return socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* ---- listening ---- */

static bool listen_at(int fd, lap_tcp_address_t *address, int *port_p)
{
    const int on = 1, off = 0;
    socklen_t bytes = bytes_of(address);
    /* What a world that has ended still has under way does not keep the next one from the port. */
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (address->any.sa_family == AF_INET6 &&
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) != 0)
        return false;
    if (bind(fd, &address->any, bytes) != 0 || listen(fd, BACKLOG) != 0 ||
        getsockname(fd, &address->any, &bytes) != 0)
        return false;
    *port_p = lap_tcp_port(address);
    return true;
}

lap_status_t lap_tcp_listen(int port, int *fd_p, int *port_p)
{
    lap_tcp_address_t any6 = {.v6 = {.sin6_family = AF_INET6}};
    lap_tcp_address_t any4 = {.v4 = {.sin_family = AF_INET}};
    lap_tcp_address_t *both[] = {&any6, &any4};
    for (int i = 0; i < 2; i++) {
        lap_tcp_set_port(both[i], port);
        const int fd = open_socket(both[i]->any.sa_family);
        if (fd >= 0 && listen_at(fd, both[i], port_p)) {
            *fd_p = fd;
            return LAP_OK;
        }
        const int error = errno;
        if (fd >= 0)
            close(fd);
        errno = error;
        if (error == EADDRINUSE || error == EMFILE || error == ENFILE)
            break; /* it is not for want of IPv6 */
    }
    return lap_error_errno("listening at port %d", port);
}

/* An address of IPv4 that came to a socket of IPv6 is of use where there is no IPv6. */
static void make_plain(lap_tcp_address_t *address)
{
    if (address->any.sa_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&address->v6.sin6_addr))
        return;
    lap_tcp_address_t plain = {.v4 = {.sin_family = AF_INET, .sin_port = address->v6.sin6_port}};
    memcpy(&plain.v4.sin_addr, &address->v6.sin6_addr.s6_addr[12], sizeof(plain.v4.sin_addr));
    *address = plain;
}

lap_status_t lap_tcp_accept(int listener, int rank, int size, int *fd_p, lap_tcp_address_t *from_p)
{
    socklen_t bytes = sizeof(*from_p);
    *from_p = (lap_tcp_address_t){.any.sa_family = AF_INET};
    *fd_p = accept4(listener, &from_p->any, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (*fd_p >= 0)
        make_plain(from_p);
    else if (errno == EMFILE || errno == ENFILE)
        return lap_error_errno("rank %d has no descriptors left for %d ranks", rank, size);
    return LAP_OK;
}

/* ---- connecting ---- */

/* What has become of a connection that was begun. */
static lap_status_t end_connect(int fd)
{
    int error = 0;
    socklen_t bytes = sizeof(error);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0)
        error = errno;
    errno = error;
    return error == 0 ? LAP_OK : LAP_ERR_PEER_LOST;
}

lap_status_t lap_tcp_connect(const lap_tcp_address_t *address, lap_deadline_t *deadline, int *fd_p)
{
    const int fd = open_socket(address->any.sa_family);
    if (fd < 0)
        return errno == EAFNOSUPPORT ? LAP_ERR_PEER_LOST : lap_error_errno("socket");
    lap_status_t status = LAP_ERR_PEER_LOST;
    if (connect(fd, &address->any, bytes_of(address)) == 0 || errno == EINPROGRESS)
        status = wait_fd(fd, POLLOUT, deadline);
    if (status == LAP_OK)
        status = end_connect(fd);
    if (status == LAP_OK) {
        *fd_p = fd;
        return LAP_OK;
    }
    const int error = errno;
    close(fd);
    errno = error;
    return status;
}

/*
 * The kernel asks the host of an idle peer for a sign of life: one that is gone is found before
 * those that wait give up. There is no TCP_USER_TIMEOUT: it also counts the time in which a peer
 * that is stopped reads nothing, and would end a job that is stopped as a whole, whose deadlines
 * rest.
 */
void lap_tcp_prepare(int fd, uint64_t timeout_ns)
{
    const uint64_t seconds = timeout_ns / 1000000000u;
    const int on = 1, least = 1, most = 3600, probes = 3;
    const int every = seconds / 8 < 1 ? least : seconds / 8 > 3600 ? most : (int)(seconds / 8);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &every, sizeof(every));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof(every));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}
