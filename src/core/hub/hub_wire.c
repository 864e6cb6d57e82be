/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control channel between hosts: packets through rank 0. Every other rank has the connection by
 * which it met rank 0, and rank 0 passes on what is for others. Who sends a packet writes it to its
 * socket at once, as far as the kernel takes it. One thread per world does the rest: it sleeps
 * until a socket can be read, or written where something is left over. A connection that ends
 * without a goodbye is a rank that is lost, which rank 0 reports to the others.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "core/hub/hub.h"
#include "core/wire_error.h"
#include "util/alloc.h"
#include "util/clock.h"
#include "util/thread.h"

#define EVENTS 64
#define STALL_NS 3000000000u /* how long the end waits, if all is well, for the next packet to go */
#define PAUSE_NS 200000u
#define LOST_PORT (LAP_WIRE_BYE - 1) /* rank 0 says that it has lost a rank: which, and the errno */

/* Frames begin where a uint64_t may: bodies are padded. */
#define PADDED(bytes) (((size_t)(bytes) + 7) / 8 * 8)
_Static_assert(LAP_WIRE_SMALL % 8 == 0, "a packet has room for its padding");

/* What travels: a packet with its body, and between which ranks of the world. */
typedef struct frame {
    int32_t to, from;
    lap_packet_t packet;
} frame_t;

#define IN_BYTES (16 * (sizeof(frame_t) + LAP_WIRE_SMALL))

/* The connection to a rank. */
typedef struct conn {
    int fd;
    int peer;
    pthread_mutex_t lock; /* of what follows */
    char *out;            /* frames to be sent: of its bytes from `sent` to `end` */
    size_t sent, end, room;
    bool writes; /* the thread waits until the socket takes more, too */
    bool broken; /* nothing can be sent any more, */
    int error;   /* for a reason of the network's; 0: another */

    _Atomic bool ended; /* nothing more comes */

    /* Used only by the thread. */
    char *in; /* IN_BYTES, of which some have come; NULL: none ever did */
    size_t got;
} conn_t;

typedef struct hub_wire {
    lap_wire_base_t base;
    pthread_t thread;
    int epoll, wake; /* the latter is an eventfd, by which the thread begins and ends */
    _Atomic bool started, stops;
    conn_t *conns; /* in rank 0 one per rank, else one, to rank 0 */
    int nconns;    /* whose locks are there */
    bool *bye;     /* of each rank: it is well, sends nothing more, and may go; of the thread */
} hub_wire_t;

static hub_wire_t *self_of(lap_wire_t *wire)
{
    return (hub_wire_t *)(void *)wire;
}

static bool is_hub(const hub_wire_t *self)
{
    return self->base.world->rank == 0;
}

static conn_t *conn_to(hub_wire_t *self, int peer)
{
    return &self->conns[is_hub(self) ? peer : 0];
}

/* ---- sending ---- */

/* The events of a socket that the thread waits for. */
static void watch(hub_wire_t *self, conn_t *conn, bool writes)
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

/*
 * With the lock of the connection held, as in flush. Without memory for a packet to a rank it is
 * lost: the thread finds the end of the connection.
 */
static void append(conn_t *conn, int to, int from, const lap_packet_t *packet)
{
    const frame_t frame = {.to = to, .from = from, .packet = *packet};
    const size_t body = PADDED(packet->bytes);
    if (conn->broken)
        return;
    if (conn->sent > conn->room / 2) {
        memmove(conn->out, conn->out + conn->sent, conn->end - conn->sent);
        conn->end -= conn->sent;
        conn->sent = 0;
    }
    char *out = lap_grow_by(conn->out, conn->end, sizeof(frame) + body, &conn->room, 1);
    if (!out) {
        conn->broken = true;
        conn->error = ENOMEM;
        (void)shutdown(conn->fd, SHUT_RDWR);
        return;
    }
    conn->out = out;
    memcpy(out + conn->end, &frame, sizeof(frame));
    memcpy(out + conn->end + sizeof(frame), packet + 1, packet->bytes);
    conn->end += sizeof(frame) + body;
}

/*
 * Writes what the kernel takes. A failure is not yet a lost rank: it may have sent its goodbye,
 * which the thread has yet to read.
 */
static void flush(hub_wire_t *self, conn_t *conn)
{
    while (conn->sent < conn->end && !conn->broken) {
        const ssize_t sent = send(conn->fd, conn->out + conn->sent, conn->end - conn->sent,
                                  MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && errno == EAGAIN)
            break;
        if (sent < 0) {
            conn->broken = true;
            conn->error = network_error(errno);
        } else {
            conn->sent += (size_t)sent;
        }
    }
    if (conn->sent == conn->end || conn->broken)
        conn->sent = conn->end = 0;
    if (conn->writes != (conn->end > 0) && !conn->broken)
        watch(self, conn, conn->end > 0);
}

/* Before the world is made, packets are dropped: ranks still gather at the connections. */
static void lap_hub_send(lap_wire_t *wire, lap_packet_t *packet)
{
    hub_wire_t *self = self_of(wire);
    lap_out_t *out = lap_wire_out_of(packet);
    conn_t *conn = conn_to(self, out->peer);
    pthread_mutex_lock(&conn->lock);
    if (atomic_load(&self->started)) {
        append(conn, out->peer, self->base.world->rank, packet);
        if (!conn->writes)
            flush(self, conn);
    }
    pthread_mutex_unlock(&conn->lock);
    lap_wire_put_back(&self->base, out);
}

/* The thread sleeps in the kernel, which wakes it as soon as a packet comes. */
static void lap_hub_nudge(lap_wire_t *wire)
{
    (void)wire;
}

/* ---- the thread ---- */

/* What rank 0 has to say to another, or to pass on; it goes with the next flush_all. */
static void append_to(hub_wire_t *self, int to, int from, const lap_packet_t *packet)
{
    conn_t *conn = conn_to(self, to);
    pthread_mutex_lock(&conn->lock);
    append(conn, to, from, packet);
    pthread_mutex_unlock(&conn->lock);
}

static void flush_all(hub_wire_t *self)
{
    for (int i = 0; i < self->nconns; i++) {
        conn_t *conn = &self->conns[i];
        pthread_mutex_lock(&conn->lock);
        if (conn->end > 0 && !conn->writes)
            flush(self, conn);
        pthread_mutex_unlock(&conn->lock);
    }
}

static void lose(hub_wire_t *self, int peer, int error)
{
    lap_wire_set_error(&self->base, peer, error);
    lap_wire_lose(&self->base, peer);
}

/* Whether a frame is from where it came, and for this rank or, in rank 0, for another. */
static bool fits(const hub_wire_t *self, const conn_t *conn, const frame_t *frame)
{
    const int size = self->base.world->size;
    if (frame->packet.bytes > LAP_WIRE_SMALL)
        return false;
    return is_hub(self) ? frame->from == conn->peer && frame->to >= 0 && frame->to < size &&
                              frame->to != conn->peer
                        : frame->to == self->base.world->rank && frame->from >= 0 &&
                              frame->from < size && frame->from != frame->to;
}

static void take(hub_wire_t *self, const frame_t *frame)
{
    const lap_packet_t *packet = &frame->packet;
    if (frame->to != self->base.world->rank)
        append_to(self, frame->to, frame->from, packet);
    else if (packet->port == LAP_WIRE_BYE)
        self->bye[frame->from] =
            packet->words[0] != 0; /* else it gives up, and may not have left */
    else if (packet->port == LOST_PORT && frame->from == 0 &&
             packet->words[0] < (uint64_t)self->base.world->size)
        lose(self, (int)packet->words[0], (int)packet->words[1]);
    else
        lap_wire_deliver(&self->base, packet);
}

/* Takes the whole frames of what has come; false: they are none of ours. */
static bool take_frames(hub_wire_t *self, conn_t *conn)
{
    size_t at = 0;
    while (conn->got - at >= sizeof(frame_t)) {
        const frame_t *frame = (const frame_t *)(const void *)(conn->in + at);
        if (!fits(self, conn, frame))
            return false;
        const size_t bytes = sizeof(*frame) + PADDED(frame->packet.bytes);
        if (conn->got - at < bytes)
            break;
        take(self, frame);
        at += bytes;
    }
    memmove(conn->in, conn->in + at, conn->got - at);
    conn->got -= at;
    return true;
}

/*
 * Rank 0 has lost a rank, and reports it to the others; another one has lost with rank 0 all who
 * are left.
 */
static void lose_all(hub_wire_t *self, const conn_t *conn, int error)
{
    const lap_packet_t news = {.port = LOST_PORT, .words = {(uint64_t)conn->peer, (uint64_t)error}};
    const int size = self->base.world->size, rank = self->base.world->rank;
    if (is_hub(self) && self->bye[conn->peer])
        return;
    if (is_hub(self))
        lose(self, conn->peer, error);
    for (int peer = 0; peer < size; peer++)
        if (peer != rank && is_hub(self) && peer != conn->peer)
            append_to(self, peer, rank, &news);
        else if (peer != rank && !is_hub(self) && !self->bye[peer])
            lose(self, peer, peer == 0 ? error : LAP_WIRE_NO_HUB);
}

/* Nothing more comes from a rank. Of an error, who sends may have learned instead. */
static void end_conn(hub_wire_t *self, conn_t *conn, int error)
{
    (void)epoll_ctl(self->epoll, EPOLL_CTL_DEL, conn->fd, NULL);
    pthread_mutex_lock(&conn->lock);
    error = error ? error : conn->error;
    conn->broken = true;
    conn->sent = conn->end = 0;
    pthread_mutex_unlock(&conn->lock);
    lose_all(self, conn, error);
    atomic_store(&conn->ended, true);
}

static void receive(hub_wire_t *self, conn_t *conn)
{
    if (!conn->in)
        conn->in = lap_alloc(1, IN_BYTES);
    if (!conn->in) {
        end_conn(self, conn, ENOMEM); /* for its packets: they cannot be received */
        return;
    }
    const ssize_t got = recv(conn->fd, conn->in + conn->got, IN_BYTES - conn->got, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got < 0)
        end_conn(self, conn, network_error(errno));
    conn->got += got > 0 ? (size_t)got : 0;
    if (got == 0 || (got > 0 && !take_frames(self, conn)))
        end_conn(self, conn, got == 0 ? 0 : EPROTO);
}

/* It begins when the world is made, or ends without having begun. */
static bool await_start(hub_wire_t *self)
{
    uint64_t count;
    while (read(self->wake, &count, sizeof(count)) < 0 && errno == EINTR)
        continue;
    return !atomic_load(&self->stops);
}

static void *wire_main(void *context)
{
    hub_wire_t *self = context;
    struct epoll_event events[EVENTS];
    lap_thread_be_urgent();
    if (!await_start(self))
        return NULL;
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
        flush_all(self);
    }
}

static void wake(hub_wire_t *self)
{
    const uint64_t one = 1;
    while (write(self->wake, &one, sizeof(one)) < 0 && errno == EINTR)
        continue;
}

/* ---- the ends ---- */

/* How much of what was sent has not come to the other host, and still may. */
static size_t undelivered(conn_t *conn)
{
    int unsent = 0;
    pthread_mutex_lock(&conn->lock);
    size_t bytes = conn->end - conn->sent;
    if (!conn->broken && ioctl(conn->fd, SIOCOUTQ, &unsent) == 0)
        bytes += (size_t)unsent;
    pthread_mutex_unlock(&conn->lock);
    return bytes;
}

/*
 * Until the other hosts have what was sent, as long as it gets on. A host behind a link that is
 * down takes nothing, and is not waited for as long as a rank that is late.
 */
static void drain(hub_wire_t *self, bool well)
{
    lap_deadline_t deadline =
        lap_deadline_after(well ? self->base.world->timeout_ns : LAP_WIRE_LINGER_NS);
    lap_deadline_t stall = lap_deadline_after(well ? STALL_NS : LAP_WIRE_LINGER_NS);
    for (int i = 0; i < self->nconns; i++) {
        size_t before = SIZE_MAX, left;
        while ((left = undelivered(&self->conns[i])) > 0 && !lap_deadline_passed(&deadline) &&
               !lap_deadline_passed(&stall)) {
            if (left < before && before != SIZE_MAX)
                stall = lap_deadline_after(well ? STALL_NS : LAP_WIRE_LINGER_NS);
            before = left;
            lap_sleep_until_ns(lap_now_ns() + PAUSE_NS);
        }
    }
}

/* Rank 0 goes last: the others talk through it. */
static void await_others(hub_wire_t *self, bool well)
{
    lap_deadline_t deadline =
        lap_deadline_after(well ? self->base.world->timeout_ns : LAP_WIRE_LINGER_NS);
    for (int peer = 1; peer < self->nconns; peer++)
        while (!atomic_load(&self->conns[peer].ended) && !lap_deadline_passed(&deadline))
            lap_sleep_until_ns(lap_now_ns() + PAUSE_NS);
}

static void wire_free(hub_wire_t *self)
{
    for (int i = 0; i < self->nconns; i++) {
        pthread_mutex_destroy(&self->conns[i].lock);
        lap_free(self->conns[i].out);
        lap_free(self->conns[i].in);
    }
    if (self->epoll >= 0)
        close(self->epoll);
    if (self->wake >= 0)
        close(self->wake);
    lap_free(self->bye);
    lap_free(self->conns);
    lap_wire_base_free(&self->base);
    lap_free(self);
}

/*
 * A socket that is closed before the kernel of the other host has what was sent, with something
 * left to read, would take it back. A process that this one has forked may hold it open: it is shut
 * down.
 */
static void lap_hub_close(lap_wire_t *wire, bool well)
{
    hub_wire_t *self = self_of(wire);
    const bool started = atomic_load(&self->started);
    lap_wire_send_bye(&self->base, well);
    if (started && is_hub(self))
        await_others(self, well);
    if (started)
        drain(self, well);
    atomic_store(&self->stops, true);
    wake(self);
    pthread_join(self->thread, NULL);
    for (int i = 0; started && i < self->nconns; i++)
        if (self->conns[i].fd >= 0) {
            (void)shutdown(self->conns[i].fd, SHUT_WR);
            close(self->conns[i].fd);
        }
    wire_free(self);
}

static const lap_wire_ops_t wire_ops = {
    .name = "TCP",
    .send = lap_hub_send,
    .nudge = lap_hub_nudge,
    .close = lap_hub_close,
};

static lap_status_t wire_init(hub_wire_t *self, lap_world_t *world, const int *fds)
{
    const int nconns = world->rank == 0 ? world->size : 1;
    LAP_TRY(lap_wire_base_init(&self->base, &wire_ops, world));
    self->conns = lap_alloc((size_t)nconns, sizeof(*self->conns));
    self->bye = lap_alloc((size_t)world->size, sizeof(*self->bye));
    if (!self->conns || !self->bye)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a wire to %d ranks", world->size);
    self->epoll = epoll_create1(EPOLL_CLOEXEC);
    self->wake = eventfd(0, EFD_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (self->epoll < 0 || self->wake < 0 ||
        epoll_ctl(self->epoll, EPOLL_CTL_ADD, self->wake, &event) != 0)
        return lap_error_errno("making the control channel");
    for (; self->nconns < nconns; self->nconns++) {
        conn_t *conn = &self->conns[self->nconns];
        conn->fd = fds[self->nconns];
        conn->peer = self->nconns;
        conn->broken = conn->fd < 0;
        pthread_mutex_init(&conn->lock, NULL);
        event.data.ptr = conn;
        if (conn->fd >= 0 && epoll_ctl(self->epoll, EPOLL_CTL_ADD, conn->fd, &event) != 0)
            return lap_error_errno("making the control channel to rank %d", conn->peer);
    }
    errno = lap_thread_start(&self->thread, "lap-hub", wire_main, self);
    if (errno != 0)
        return lap_error_errno("cannot start the thread of the control channel");
    return LAP_OK;
}

lap_status_t lap_hub_wire_open(lap_world_t *world, const int *fds, lap_wire_t **wire_p)
{
    hub_wire_t *self = lap_alloc(1, sizeof(*self));
    if (!self)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a wire");
    self->epoll = self->wake = -1;
    const lap_status_t status = wire_init(self, world, fds);
    if (status != LAP_OK) {
        wire_free(self);
        return status;
    }
    *wire_p = &self->base.wire;
    return LAP_OK;
}

void lap_hub_wire_start(lap_wire_t *wire)
{
    hub_wire_t *self = self_of(wire);
    atomic_store(&self->started, true);
    wake(self);
}
