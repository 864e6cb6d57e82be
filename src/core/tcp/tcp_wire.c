/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets over TCP. Who sends a packet writes it to its socket at once, as far as the kernel takes
 * it. One thread per world does the rest: it sleeps until a socket can be read, or written where
 * something is left over. A connection that ends without a goodbye is a rank that is lost.
 */
#include "core/tcp/tcp.h"

#include <errno.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "core/wire_error.h"
#include "util/alloc.h"
#include "util/clock.h"
#include "util/thread.h"

#define EVENTS 64
#define IN_BYTES (2 * (sizeof(lap_packet_t) + LAP_WIRE_BODY))
#define STALL_NS 3000000000u /* how long the end waits, if all is well, for the next packet to go */
#define PAUSE_NS 200000u

/* Packets begin where a uint64_t may: bodies are padded. */
#define PADDED(bytes) (((size_t)(bytes) + 7) / 8 * 8)
_Static_assert(LAP_WIRE_SMALL % 8 == 0 && LAP_WIRE_BODY % 8 == 0,
               "a packet has room for its padding");

/* The connection to a rank. */
typedef struct conn {
    int fd;
    int peer;
    pthread_mutex_t lock; /* of what follows */
    lap_out_t *first, **last;
    bool writes; /* the thread waits until the socket takes more, too */
    bool broken; /* nothing can be sent any more, */
    int error;   /* for a reason of the network's; 0: another */

    /* Used only by the thread. */
    bool bye; /* its rank is well, sends nothing more, and may go */
    char *in; /* IN_BYTES, of which some have come; NULL: none ever did */
    size_t got;
} conn_t;

typedef struct tcp_wire {
    lap_wire_base_t base;
    pthread_t thread;
    int epoll, stop; /* the latter is an eventfd */
    conn_t *conns;   /* one per rank */
    int nconns;      /* whose locks are there */
} tcp_wire_t;

static tcp_wire_t *self_of(lap_wire_t *wire)
{
    return (tcp_wire_t *)(void *)wire;
}

/* ---- sending ---- */

/* The events of a socket that the thread waits for. */
static void watch(tcp_wire_t *self, conn_t *conn, bool writes)
{
    struct epoll_event event = {.events = EPOLLIN | (writes ? (uint32_t)EPOLLOUT : 0u),
                                .data.ptr = conn};
    if (epoll_ctl(self->epoll, EPOLL_CTL_MOD, conn->fd, &event) == 0)
        conn->writes = writes;
}

/* An error that says nothing of the process at the other end; else 0. */
static int network_error(int error)
{
    return error == ECONNRESET || error == EPIPE ? 0 : error;
}

/* With the lock of the connection held. */
static void break_off(tcp_wire_t *self, conn_t *conn)
{
    conn->broken = true;
    while (conn->first) {
        lap_out_t *out = conn->first;
        conn->first = out->next;
        lap_wire_put_back(&self->base, out);
    }
    conn->last = &conn->first;
}

/*
 * Writes what the kernel takes, with the lock of the connection held. A failure is not yet a lost rank: it
 * may have sent its goodbye, which the thread has yet to read.
 */
static void flush(tcp_wire_t *self, conn_t *conn)
{
    while (conn->first) {
        lap_out_t *out = conn->first;
        const size_t bytes = sizeof(out->packet) + PADDED(out->packet.bytes) - out->state.sent;
        const ssize_t sent = send(conn->fd, (const char *)&out->packet + out->state.sent, bytes,
                                  MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && errno != EAGAIN) {
            conn->error = network_error(errno);
            break_off(self, conn);
        }
        if (sent < 0)
            break;
        out->state.sent += (size_t)sent;
        if ((size_t)sent < bytes)
            continue;
        conn->first = out->next;
        if (!conn->first)
            conn->last = &conn->first;
        lap_wire_put_back(&self->base, out);
    }
    if (conn->writes != (conn->first != NULL) && !conn->broken)
        watch(self, conn, conn->first != NULL);
}

static void lap_tcp_send(lap_wire_t *wire, lap_packet_t *packet)
{
    tcp_wire_t *self = self_of(wire);
    lap_out_t *out = lap_wire_out_of(packet);
    conn_t *conn = &self->conns[out->peer];
    out->state.sent = 0;
    pthread_mutex_lock(&conn->lock);
    *conn->last = out;
    conn->last = &out->next;
    if (conn->broken)
        break_off(self, conn);
    else if (conn->first == out)
        flush(self, conn);
    pthread_mutex_unlock(&conn->lock);
}

/* The thread sleeps in the kernel, which wakes it as soon as a packet comes. */
static void lap_tcp_nudge(lap_wire_t *wire)
{
    (void)wire;
}

/* ---- the thread ---- */

/* Takes the whole packets of what has come; false: they are none of ours. */
static bool take_packets(tcp_wire_t *self, conn_t *conn)
{
    size_t at = 0;
    while (conn->got - at >= sizeof(lap_packet_t)) {
        const lap_packet_t *packet = (const lap_packet_t *)(const void *)(conn->in + at);
        if (packet->bytes > LAP_WIRE_BODY)
            return false;
        const size_t bytes = sizeof(*packet) + PADDED(packet->bytes);
        if (conn->got - at < bytes)
            break;
        if (packet->port == LAP_WIRE_BYE)
            conn->bye = packet->words[0] != 0; /* else it gives up, and may not have left */
        else
            lap_wire_deliver(&self->base, packet);
        at += bytes;
    }
    memmove(conn->in, conn->in + at, conn->got - at);
    conn->got -= at;
    return true;
}

/* Nothing more comes from a rank. Of an error, who sends may have heard instead. */
static void end_conn(tcp_wire_t *self, conn_t *conn, int error)
{
    (void)epoll_ctl(self->epoll, EPOLL_CTL_DEL, conn->fd, NULL);
    pthread_mutex_lock(&conn->lock);
    error = error ? error : conn->error;
    break_off(self, conn);
    pthread_mutex_unlock(&conn->lock);
    if (conn->bye)
        return;
    lap_wire_note_error(&self->base, conn->peer, error);
    lap_wire_lose(&self->base, conn->peer);
}

static void receive(tcp_wire_t *self, conn_t *conn)
{
    if (!conn->in)
        conn->in = lap_alloc(1, IN_BYTES);
    if (!conn->in) {
        end_conn(self, conn, ENOMEM); /* for its packets: the rank cannot be heard */
        return;
    }
    const ssize_t got = recv(conn->fd, conn->in + conn->got, IN_BYTES - conn->got, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got < 0)
        end_conn(self, conn, network_error(errno));
    conn->got += got > 0 ? (size_t)got : 0;
    if (got == 0 || (got > 0 && !take_packets(self, conn)))
        end_conn(self, conn, got == 0 ? 0 : EPROTO);
}

static void *wire_main(void *context)
{
    tcp_wire_t *self = context;
    struct epoll_event events[EVENTS];
    lap_thread_be_urgent();
    for (;;) {
        const int count = epoll_wait(self->epoll, events, EVENTS, -1);
        for (int i = 0; i < count; i++) {
            conn_t *conn = events[i].data.ptr;
            if (!conn) /* the eventfd */
                return NULL;
            if (events[i].events & EPOLLOUT) {
                pthread_mutex_lock(&conn->lock);
                flush(self, conn);
                pthread_mutex_unlock(&conn->lock);
            }
            if (events[i].events & ~(uint32_t)EPOLLOUT)
                receive(self, conn);
        }
    }
}

/* ---- the ends ---- */

/* How much of what was sent has not come to the other host, and still may. */
static size_t undelivered(conn_t *conn)
{
    int unsent = 0;
    size_t bytes = 0;
    pthread_mutex_lock(&conn->lock);
    for (const lap_out_t *out = conn->first; out; out = out->next)
        bytes += sizeof(out->packet) + PADDED(out->packet.bytes) - out->state.sent;
    if (!conn->broken && ioctl(conn->fd, SIOCOUTQ, &unsent) == 0)
        bytes += (size_t)unsent;
    pthread_mutex_unlock(&conn->lock);
    return bytes;
}

/*
 * Until the other hosts have what was sent, as long as it gets on. A host behind a link that is down
 * takes nothing, and is not waited for as long as a rank that is late.
 */
static void drain(tcp_wire_t *self, bool well)
{
    lap_deadline_t deadline =
        lap_deadline_after(well ? self->base.world->timeout_ns : LAP_WIRE_LINGER_NS);
    lap_deadline_t stall = lap_deadline_after(well ? STALL_NS : LAP_WIRE_LINGER_NS);
    for (int peer = 0; peer < self->nconns; peer++) {
        size_t before = SIZE_MAX, left;
        while ((left = undelivered(&self->conns[peer])) > 0 && !lap_deadline_passed(&deadline) &&
               !lap_deadline_passed(&stall)) {
            if (left < before && before != SIZE_MAX)
                stall = lap_deadline_after(well ? STALL_NS : LAP_WIRE_LINGER_NS);
            before = left;
            lap_sleep_until_ns(lap_now_ns() + PAUSE_NS);
        }
    }
}

static void wire_free(tcp_wire_t *self)
{
    for (int peer = 0; peer < self->nconns; peer++) {
        conn_t *conn = &self->conns[peer];
        lap_wire_free_outs(conn->first);
        pthread_mutex_destroy(&conn->lock);
        lap_free(conn->in);
    }
    if (self->epoll >= 0)
        close(self->epoll);
    if (self->stop >= 0)
        close(self->stop);
    lap_free(self->conns);
    lap_wire_base_free(&self->base);
    lap_free(self);
}

/*
 * Waits for nobody but until the kernels of the others have what was sent: a socket that is closed
 * before, with something left to read, would take it back.
 */
static void lap_tcp_close(lap_wire_t *wire, bool well)
{
    tcp_wire_t *self = self_of(wire);
    const uint64_t one = 1;
    lap_wire_say_bye(&self->base, well);
    drain(self, well);
    while (write(self->stop, &one, sizeof(one)) < 0 && errno == EINTR)
        continue;
    pthread_join(self->thread, NULL);
    for (int peer = 0; peer < self->nconns; peer++)
        if (self->conns[peer].fd >= 0)
            close(self->conns[peer].fd);
    wire_free(self);
}

static const lap_wire_ops_t wire_ops = {
    .name = "TCP",
    .send = lap_tcp_send,
    .nudge = lap_tcp_nudge,
    .close = lap_tcp_close,
};

static lap_status_t wire_init(tcp_wire_t *self, lap_world_t *world, const int *fds)
{
    LAP_TRY(lap_wire_base_init(&self->base, &wire_ops, world));
    self->conns = lap_alloc((size_t)world->size, sizeof(*self->conns));
    if (!self->conns)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a wire to %d ranks", world->size);
    self->epoll = epoll_create1(EPOLL_CLOEXEC);
    self->stop = eventfd(0, EFD_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (self->epoll < 0 || self->stop < 0 ||
        epoll_ctl(self->epoll, EPOLL_CTL_ADD, self->stop, &event) != 0)
        return lap_error_errno("making a wire over TCP");
    for (; self->nconns < world->size; self->nconns++) {
        conn_t *conn = &self->conns[self->nconns];
        conn->fd = fds[self->nconns];
        conn->peer = self->nconns;
        conn->last = &conn->first;
        conn->broken = conn->fd < 0;
        pthread_mutex_init(&conn->lock, NULL);
        event.data.ptr = conn;
        if (conn->fd >= 0 && epoll_ctl(self->epoll, EPOLL_CTL_ADD, conn->fd, &event) != 0)
            return lap_error_errno("making a wire over TCP to rank %d", conn->peer);
    }
    errno = lap_thread_start(&self->thread, "lap-tcp", wire_main, self);
    if (errno != 0)
        return lap_error_errno("cannot start the thread that reads from TCP");
    return LAP_OK;
}

lap_status_t lap_tcp_wire_open(lap_world_t *world, int *fds, lap_wire_t **wire_p)
{
    tcp_wire_t *self = lap_alloc(1, sizeof(*self));
    if (!self)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a wire");
    self->epoll = self->stop = -1;
    const lap_status_t status = wire_init(self, world, fds);
    if (status != LAP_OK) {
        wire_free(self);
        return status;
    }
    lap_free(fds);
    *wire_p = &self->base.wire;
    return LAP_OK;
}
