/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How processes become a world: all meet at a Unix socket in a private directory, where rank 0 is
 * the host. Each guest says hello and hands in its heap; the host gives everybody the heaps and
 * pids of all, hears that everybody is ready, removes socket and directory, and says go. Then the
 * sockets are closed: a world has memory in common and nothing else. Whatever goes wrong, the host
 * tells its story to all who came.
 */
#include "core/bootstrap.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/environment.h"
#include "core/group.h"
#include "core/status.h"
#include "util/alloc.h"
#include "util/clock.h"

#define MAGIC 0x4c415050u
#define PROTOCOL 1
#define BATCH 64              /* heaps in one message; the kernel takes up to 253 */
#define GRACE_NS 1000000000u  /* a guest waits this much past its deadline for the host's verdict */
#define LINGER_NS 1000000000u /* after a failure the host waits this long for those to hear of it */

typedef enum message_kind { HELLO, TABLE, READY, GO, FAILURE } message_kind_t;

/* Everything is said with this one message; the sockets keep message boundaries. */
typedef struct message {
    uint32_t magic, protocol;
    uint32_t kind;
    int32_t rank, size, pid; /* HELLO: who */
    uint64_t deadline;       /* HELLO: until when it can wait, in lap_now_ns() */
    uint64_t board;          /* TABLE: handle of the board, a region of rank 0 */
    int32_t first, count;    /* TABLE: which ranks; the heap of each comes along */
    int32_t pids[BATCH];
    int32_t status; /* READY, FAILURE */
    char text[LAP_ERROR_TEXT];
} message_t;

static message_t make_message(message_kind_t kind)
{
    return (message_t){.magic = MAGIC, .protocol = PROTOCOL, .kind = kind};
}

static message_t make_status_message(message_kind_t kind, lap_status_t status)
{
    message_t message = make_message(kind);
    message.status = status;
    if (status != LAP_OK)
        snprintf(message.text, sizeof(message.text), "%s", lap_last_error());
    return message;
}

static void close_fds(const int *fds, int count)
{
    for (int i = 0; i < count; i++)
        close(fds[i]);
}

/* Sockets. */

/*
 * Waits for an event on one of `count` sockets. LAP_ERR_TIMEOUT has no sentence: the caller knows
 * what it waited for.
 */
static lap_status_t wait_polls(struct pollfd *polls, int count, uint64_t deadline)
{
    for (;;) {
        const uint64_t now = lap_now_ns();
        const uint64_t left_ms = now < deadline ? (deadline - now) / 1000000u + 1 : 0;
        int ready = poll(polls, (nfds_t)count, left_ms < 1000 ? (int)left_ms : 1000);
        if (ready > 0)
            return LAP_OK;
        if (ready < 0 && errno != EINTR)
            return lap_error_errno("poll");
        if (lap_now_ns() >= deadline)
            return LAP_ERR_TIMEOUT;
    }
}

static lap_status_t wait_fd(int fd, short events, uint64_t deadline)
{
    struct pollfd one = {.fd = fd, .events = events};
    return wait_polls(&one, 1, deadline);
}

typedef union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(BATCH * sizeof(int))];
} control_t;

/* LAP_ERR_PEER_LOST and LAP_ERR_TIMEOUT come without a sentence. */
static lap_status_t send_message(int fd, const message_t *message, const int *fds, int nfds,
                                 uint64_t deadline)
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
            if (lap_now_ns() >= deadline)
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

/* Moves the descriptors that came with a message to fds[0..BATCH). */
static int take_fds(struct msghdr *header, int *fds)
{
    int nfds = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        /* The room for control data is that of BATCH descriptors, so no more than that can come. */
        int count = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds + nfds, CMSG_DATA(c), (size_t)count * sizeof(int));
        nfds += count;
    }
    return nfds;
}

/*
 * Takes one message and the descriptors that come with it. LAP_ERR_PEER_LOST and LAP_ERR_TIMEOUT
 * come without a sentence.
 */
static lap_status_t receive_message(int fd, message_t *message_p, int *fds, int *nfds_p,
                                    uint64_t deadline)
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
         * A reset is reported once, before what the peer still said; only the end of file is final.
         */
    } while (got < 0 && (errno == EINTR || errno == EAGAIN || errno == ECONNRESET));
    if (got < 0)
        return lap_error_errno("receiving from another rank");
    if (got == 0)
        return LAP_ERR_PEER_LOST;
    int nfds = take_fds(&header, fds);
    message_p->text[sizeof(message_p->text) - 1] = '\0';
    lap_status_t status = LAP_OK;
    if (header.msg_flags & MSG_CTRUNC)
        status = lap_error(LAP_ERR_SYSTEM,
                           "too many open files: a world needs two for each rank, so raise the "
                           "limit (ulimit -n)");
    else if ((size_t)got != sizeof(*message_p) || message_p->magic != MAGIC)
        status = lap_error(LAP_ERR_MISMATCH,
                           "a message of %zd bytes from something that is not "
                           "a rank of this library",
                           got);
    if (status != LAP_OK) {
        close_fds(fds, nfds);
        return status;
    }
    *nfds_p = nfds;
    return LAP_OK;
}

static lap_status_t socket_open(int *fd_p)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return lap_error_errno("socket");
    *fd_p = fd;
    return LAP_OK;
}

static lap_status_t socket_address(const char *dir, struct sockaddr_un *address_p)
{
    *address_p = (struct sockaddr_un){.sun_family = AF_UNIX};
    const size_t room = sizeof(address_p->sun_path);
    if ((size_t)snprintf(address_p->sun_path, room, "%s/s", dir) >= room)
        return lap_error(LAP_ERR_INVALID, "the path '%s' is too long for a socket", dir);
    return LAP_OK;
}

/* Only a directory that nobody else can enter keeps other users out of the world. */
static lap_status_t check_dir(const char *dir, const struct stat *info)
{
    if (!S_ISDIR(info->st_mode))
        return lap_error(LAP_ERR_SYSTEM, "'%s' is not a directory", dir);
    if (info->st_uid != geteuid())
        return lap_error(LAP_ERR_SYSTEM, "the directory '%s' belongs to user %lu, expected %lu",
                         dir, (unsigned long)info->st_uid, (unsigned long)geteuid());
    if (info->st_mode & 077)
        return lap_error(LAP_ERR_SYSTEM, "the directory '%s' has mode %03o, expected 700", dir,
                         (unsigned)(info->st_mode & 0777));
    return LAP_OK;
}

/* Peers. */

static double timeout_seconds(const lap_world_t *world)
{
    return (double)world->timeout_ns * 1e-9;
}

/* A descriptor for each other process that tells when it has ended. */
static lap_status_t open_pidfds(lap_world_t *world)
{
    for (int rank = 0; rank < world->size; rank++) {
        lap_peer_t *peer = &world->peers[rank];
        if (rank == world->rank)
            continue;
        peer->pidfd = (int)syscall(SYS_pidfd_open, peer->pid, 0); /* close-on-exec by itself */
        if (peer->pidfd < 0 && errno == ESRCH)
            return lap_error(LAP_ERR_PEER_LOST, "rank %d (pid %d) has died", rank, peer->pid);
        if (peer->pidfd < 0)
            return lap_error_errno("watching rank %d (pid %d)", rank, peer->pid);
    }
    return LAP_OK;
}

/* What the host has. */
typedef struct host {
    lap_world_t *world;
    const char *dir;
    uint64_t deadline;
    bool owns_dir; /* to be removed at the end */
    int dir_fd;    /* holds a lock, so that a second host does not take the place of a living one */
    int listener;
    int *guests;          /* socket to each rank; -1: has not come, or has gone */
    struct pollfd *polls; /* room for the listener and all guests */
    lap_status_t failure; /* the first one while gathering, with its sentence */
    char story[LAP_ERROR_TEXT];
} host_t;

static lap_status_t host_enter_dir(host_t *host)
{
    host->owns_dir = mkdir(host->dir, 0700) == 0;
    if (!host->owns_dir && errno != EEXIST)
        return lap_error_errno("making the directory '%s'", host->dir);
    host->dir_fd = open(host->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (host->dir_fd < 0)
        return lap_error_errno("opening the directory '%s'", host->dir);
    struct stat info;
    if (fstat(host->dir_fd, &info) != 0)
        return lap_error_errno("looking at the directory '%s'", host->dir);
    LAP_TRY(check_dir(host->dir, &info));
    if (flock(host->dir_fd, LOCK_EX | LOCK_NB) != 0)
        return lap_error(LAP_ERR_MISMATCH,
                         "another process says that it is rank 0 and waits for its ranks in '%s'",
                         host->dir);
    host->owns_dir = true;
    return LAP_OK;
}

static lap_status_t host_listen(host_t *host)
{
    struct sockaddr_un address;
    LAP_TRY(socket_address(host->dir, &address));
    LAP_TRY(socket_open(&host->listener));
    unlinkat(host->dir_fd, "s", 0); /* of a host that was killed: we hold the lock */
    if (bind(host->listener, (struct sockaddr *)&address, sizeof(address)) != 0)
        return lap_error_errno("binding the socket '%s'", address.sun_path);
    if (listen(host->listener, host->world->size + 8) != 0)
        return lap_error_errno("listening at '%s'", address.sun_path);
    return LAP_OK;
}

/*
 * Takes away what host_enter_dir and host_listen made. What belongs to somebody else is left alone.
 */
static void host_leave_dir(host_t *host)
{
    if (host->listener >= 0) {
        unlinkat(host->dir_fd, "s", 0);
        close(host->listener);
    }
    if (host->owns_dir)
        rmdir(host->dir);
    if (host->dir_fd >= 0)
        close(host->dir_fd);
    host->listener = host->dir_fd = -1;
}

/* "1, 3" */
static void list_missing(const host_t *host, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int rank = 1; rank < host->world->size && used + 16 < bytes; rank++) {
        if (host->guests[rank] < 0)
            used += (size_t)snprintf(text + used, bytes - used, "%s%d", used ? ", " : "", rank);
    }
}

static lap_status_t host_timeout(const host_t *host)
{
    char missing[512];
    list_missing(host, missing, sizeof(missing));
    return lap_error(LAP_ERR_TIMEOUT, "of %d ranks these have not come to '%s' within %g s: %s",
                     host->world->size, host->dir, timeout_seconds(host->world), missing);
}

static lap_status_t guest_lost(const host_t *host, int rank)
{
    return lap_error(LAP_ERR_PEER_LOST, "rank %d (pid %d) went away while the ranks were meeting",
                     rank, host->world->peers[rank].pid);
}

static lap_status_t guest_failed(const host_t *host, int rank, lap_status_t status)
{
    if (status == LAP_ERR_PEER_LOST)
        return guest_lost(host, rank);
    if (status == LAP_ERR_TIMEOUT)
        return lap_error(status, "rank %d (pid %d) came to '%s' but has not answered within %g s",
                         rank, host->world->peers[rank].pid, host->dir,
                         timeout_seconds(host->world));
    return status;
}

/*
 * Finds out whether a guest has hung up, while waiting for an event on the listener until
 * `deadline`.
 */
static lap_status_t host_watch(host_t *host, uint64_t deadline)
{
    const int size = host->world->size;
    host->polls[0] = (struct pollfd){.fd = host->listener, .events = POLLIN};
    for (int rank = 1; rank < size; rank++)
        host->polls[rank] = (struct pollfd){.fd = host->guests[rank]}; /* hang-ups only */
    LAP_TRY(wait_polls(host->polls, size, deadline));
    for (int rank = 1; rank < size; rank++) {
        if (host->polls[rank].revents) {
            close(host->guests[rank]);
            host->guests[rank] = -1;
            return guest_lost(host, rank);
        }
    }
    return LAP_OK;
}

/* Whether a hello makes sense. The kernel says who really sent it. */
static lap_status_t check_hello(const host_t *host, int fd, const message_t *hello, int nfds)
{
    const lap_world_t *world = host->world;
    struct ucred who;
    socklen_t bytes = sizeof(who);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) != 0)
        return lap_error_errno("asking who connected");
    if (who.uid != geteuid())
        return lap_error(LAP_ERR_MISMATCH, "user %lu came to '%s', expected user %lu",
                         (unsigned long)who.uid, host->dir, (unsigned long)geteuid());
    if (hello->protocol != PROTOCOL)
        return lap_error(LAP_ERR_MISMATCH,
                         "pid %d speaks version %u of the protocol, rank 0 version %d", who.pid,
                         hello->protocol, PROTOCOL);
    if (hello->size != world->size)
        return lap_error(LAP_ERR_MISMATCH, "rank %d says there are %d ranks, rank 0 says %d",
                         hello->rank, hello->size, world->size);
    if (hello->pid != who.pid)
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "rank %d has pid %d but rank 0 sees it as pid %d: ranks in different PID "
                         "namespaces cannot watch each other",
                         hello->rank, hello->pid, who.pid);
    if (hello->rank == 0 ||
        (hello->rank > 0 && hello->rank < world->size && host->guests[hello->rank] >= 0))
        return lap_error(LAP_ERR_MISMATCH, "pid %d and pid %d both say that they are rank %d",
                         world->peers[hello->rank].pid, hello->pid, hello->rank);
    if (hello->kind != HELLO || hello->rank < 0 || hello->rank >= world->size || nfds != 1)
        return lap_error(LAP_ERR_INTERNAL, "pid %d does not say hello as a rank does", who.pid);
    return LAP_OK;
}

static void tell_failure(int fd, lap_status_t status)
{
    const message_t message = make_status_message(FAILURE, status);
    send_message(fd, &message, NULL, 0, 0); /* as well as it can be done without waiting */
}

/* Hears who has connected. Somebody who hangs up without a word is forgotten. */
static lap_status_t host_greet(host_t *host, int fd, int *came_p)
{
    message_t hello;
    int fds[BATCH], nfds = 0;
    lap_status_t status = receive_message(fd, &hello, fds, &nfds, host->deadline);
    if (status == LAP_ERR_PEER_LOST || status == LAP_ERR_TIMEOUT) {
        close(fd);
        return LAP_OK;
    }
    ++*came_p;
    if (status == LAP_OK)
        status = check_hello(host, fd, &hello, nfds);
    if (status != LAP_OK) {
        tell_failure(fd, status);
        close_fds(fds, nfds);
        close(fd);
        return status;
    }
    host->guests[hello.rank] = fd;
    host->world->peers[hello.rank].heap_fd = fds[0];
    host->world->peers[hello.rank].pid = hello.pid;
    /* Nobody waits longer than it said: the first to lose patience ends the meeting for all. */
    if (hello.deadline < host->deadline)
        host->deadline = hello.deadline;
    return LAP_OK;
}

static lap_status_t host_accept(host_t *host, int *came_p)
{
    int fd = accept4(host->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0)
        return host_greet(host, fd, came_p);
    if (errno == EINTR || errno == EAGAIN || errno == ECONNABORTED)
        return LAP_OK;
    return lap_error_errno("accepting a rank");
}

/*
 * Keeps the first failure, and leaves only a moment for the ranks that still are to come and hear
 * of it.
 */
static void host_note_failure(host_t *host, lap_status_t status)
{
    if (host->failure != LAP_OK)
        return;
    host->failure = status;
    snprintf(host->story, sizeof(host->story), "%s", lap_last_error());
    const uint64_t end = lap_now_ns() + LINGER_NS;
    host->deadline = end < host->deadline ? end : host->deadline;
}

static lap_status_t host_gather(host_t *host)
{
    int came = 1;
    while (came < host->world->size && lap_now_ns() < host->deadline) {
        lap_status_t status = host_watch(host, host->deadline);
        if (status == LAP_OK)
            status = host_accept(host, &came);
        if (status != LAP_OK && status != LAP_ERR_TIMEOUT)
            host_note_failure(host, status);
    }
    if (host->failure != LAP_OK)
        return lap_error(host->failure, "%s", host->story);
    return came < host->world->size ? host_timeout(host) : LAP_OK;
}

/* Sends the pids and heaps of all ranks to one guest. */
static lap_status_t host_send_table(const host_t *host, int guest, uint64_t board)
{
    const lap_world_t *world = host->world;
    for (int first = 0; first < world->size; first += BATCH) {
        message_t table = make_message(TABLE);
        int fds[BATCH];
        table.board = board;
        table.first = first;
        table.count = world->size - first < BATCH ? world->size - first : BATCH;
        for (int i = 0; i < table.count; i++) {
            table.pids[i] = world->peers[first + i].pid;
            fds[i] = world->peers[first + i].heap_fd;
        }
        lap_status_t status =
            send_message(host->guests[guest], &table, fds, table.count, host->deadline);
        if (status != LAP_OK)
            return guest_failed(host, guest, status);
    }
    return LAP_OK;
}

static lap_status_t host_hear_ready(const host_t *host, int guest)
{
    message_t ready;
    int fds[BATCH], nfds = 0;
    lap_status_t status = receive_message(host->guests[guest], &ready, fds, &nfds, host->deadline);
    if (status != LAP_OK)
        return guest_failed(host, guest, status);
    close_fds(fds, nfds);
    if (ready.status != LAP_OK)
        return lap_error((lap_status_t)ready.status, "rank %d: %s", guest, ready.text);
    return LAP_OK;
}

static lap_status_t host_share(host_t *host, uint64_t board)
{
    LAP_TRY(open_pidfds(host->world));
    for (int rank = 1; rank < host->world->size; rank++)
        LAP_TRY(host_send_table(host, rank, board));
    for (int rank = 1; rank < host->world->size; rank++)
        LAP_TRY(host_hear_ready(host, rank));
    /*
     * All are still here after all have opened their pidfds, so each pidfd is of the right process.
     */
    lap_status_t status = host_watch(host, 0);
    return status == LAP_ERR_TIMEOUT ? LAP_OK : status;
}

static lap_status_t host_run(host_t *host, lap_region_t *region_p)
{
    lap_world_t *world = host->world;
    LAP_TRY(host_enter_dir(host));
    LAP_TRY(host_listen(host));
    LAP_TRY(host_gather(host));
    lap_region_t region = {0};
    LAP_TRY(lap_region_create(world, lap_board_bytes(world->size), world->size, &region));
    lap_status_t status = host_share(host, region.handle);
    if (status != LAP_OK) {
        lap_region_unmap(world, &region);
        return status;
    }
    *region_p = region;
    return LAP_OK;
}

/* The last word to all who came. A guest that died meanwhile is found by the first collective. */
static void host_tell_all(host_t *host, lap_status_t status)
{
    const message_t go = make_message(GO);
    for (int rank = 1; rank < host->world->size; rank++) {
        if (host->guests[rank] < 0)
            continue;
        if (status == LAP_OK)
            send_message(host->guests[rank], &go, NULL, 0, host->deadline);
        else
            tell_failure(host->guests[rank], status);
        close(host->guests[rank]);
    }
}

static lap_status_t host_meet(lap_world_t *world, const char *dir, lap_region_t *board_p)
{
    host_t host = {.world = world,
                   .dir = dir,
                   .deadline = lap_now_ns() + world->timeout_ns,
                   .dir_fd = -1,
                   .listener = -1,
                   .guests = lap_alloc((size_t)world->size, sizeof(int)),
                   .polls = lap_alloc((size_t)world->size, sizeof(struct pollfd))};
    lap_status_t status;
    if (host.guests && host.polls) {
        for (int rank = 0; rank < world->size; rank++)
            host.guests[rank] = -1;
        status = host_run(&host, board_p);
        /* Before anybody hears go: the next world of the same ranks may meet at the same place. */
        host_leave_dir(&host);
        host_tell_all(&host, status);
    } else {
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to meet %d ranks", world->size);
    }
    lap_free(host.polls);
    lap_free(host.guests);
    return status;
}

/* Guests. */

/* One attempt: *fd_p stays -1 when the host is not there yet. */
static lap_status_t guest_try(const char *dir, int *fd_p)
{
    struct stat info;
    struct sockaddr_un address;
    LAP_TRY(socket_address(dir, &address));
    if (lstat(dir, &info) != 0)
        return errno == ENOENT ? LAP_OK : lap_error_errno("looking at the directory '%s'", dir);
    LAP_TRY(check_dir(dir, &info));
    int fd = -1;
    LAP_TRY(socket_open(&fd));
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0) {
        *fd_p = fd;
        return LAP_OK;
    }
    const int error = errno;
    close(fd);
    errno = error;
    if (error == ENOENT || error == ECONNREFUSED || error == EAGAIN || error == EINTR)
        return LAP_OK;
    return lap_error_errno("connecting to '%s'", address.sun_path);
}

static lap_status_t guest_connect(const lap_world_t *world, const char *dir, uint64_t deadline,
                                  int *fd_p)
{
    int fd = -1;
    for (uint64_t pause = 1000000u;; pause = pause < 20000000u ? pause * 2 : pause) {
        LAP_TRY(guest_try(dir, &fd));
        if (fd >= 0)
            break;
        const uint64_t now = lap_now_ns();
        if (now >= deadline)
            return lap_error(LAP_ERR_TIMEOUT, "rank 0 has not come to '%s' within %g s", dir,
                             timeout_seconds(world));
        lap_sleep_until_ns(now + pause < deadline ? now + pause : deadline);
    }
    *fd_p = fd;
    return LAP_OK;
}

/* Hears from the host. Its failures become ours, in its words. */
static lap_status_t guest_hear(const lap_world_t *world, int fd, uint64_t deadline,
                               message_kind_t kind, message_t *message_p, int *fds, int *nfds_p)
{
    lap_status_t status = receive_message(fd, message_p, fds, nfds_p, deadline + GRACE_NS);
    if (status == LAP_ERR_PEER_LOST)
        return lap_error(status, "rank 0 went away while the ranks were meeting");
    if (status == LAP_ERR_TIMEOUT)
        return lap_error(status, "rank 0 has not gathered the ranks within %g s",
                         timeout_seconds(world));
    if (status != LAP_OK)
        return status;
    if (message_p->kind == (uint32_t)kind)
        return LAP_OK;
    close_fds(fds, *nfds_p);
    *nfds_p = 0;
    if (message_p->kind == FAILURE && message_p->status != LAP_OK)
        return lap_error((lap_status_t)message_p->status, "%s", message_p->text);
    return lap_error(LAP_ERR_INTERNAL, "rank 0 said %u, expected %d", message_p->kind, kind);
}

static lap_status_t guest_hear_table(lap_world_t *world, int fd, uint64_t deadline,
                                     uint64_t *board_p)
{
    for (int known = 0; known < world->size;) {
        message_t table;
        int fds[BATCH], nfds = 0;
        LAP_TRY(guest_hear(world, fd, deadline, TABLE, &table, fds, &nfds));
        if (table.first != known || table.count != nfds || nfds > world->size - known) {
            close_fds(fds, nfds);
            return lap_error(LAP_ERR_INTERNAL,
                             "rank 0 sent %d heaps from rank %d on, expected "
                             "them from rank %d on",
                             nfds, table.first, known);
        }
        for (int i = 0; i < nfds; i++, known++) {
            if (known == world->rank) {
                close(fds[i]); /* we have it already */
                continue;
            }
            world->peers[known].heap_fd = fds[i];
            world->peers[known].pid = table.pids[i];
        }
        *board_p = table.board;
    }
    return LAP_OK;
}

/* All that this rank has to do itself before it is ready. */
static lap_status_t guest_prepare(lap_world_t *world, uint64_t board, lap_region_t *region_p)
{
    LAP_TRY(open_pidfds(world));
    return lap_region_map(world, 0, board, lap_board_bytes(world->size), region_p);
}

static lap_status_t guest_talk(lap_world_t *world, int fd, uint64_t deadline, lap_region_t *region)
{
    message_t message = make_message(HELLO);
    int fds[BATCH], nfds;
    message.rank = world->rank;
    message.size = world->size;
    message.pid = world->peers[world->rank].pid;
    message.deadline = deadline;
    /*
     * What cannot be sent because the host is gone is no failure yet: it may have left its story.
     */
    lap_status_t status =
        send_message(fd, &message, &world->peers[world->rank].heap_fd, 1, deadline);
    if (status != LAP_OK && status != LAP_ERR_PEER_LOST && status != LAP_ERR_TIMEOUT)
        return status;
    uint64_t board = 0;
    LAP_TRY(guest_hear_table(world, fd, deadline, &board));
    status = guest_prepare(world, board, region);
    message = make_status_message(READY, status);
    send_message(fd, &message, NULL, 0, deadline);
    LAP_TRY(status);
    return guest_hear(world, fd, deadline, GO, &message, fds, &nfds);
}

static lap_status_t guest_meet(lap_world_t *world, const char *dir, lap_region_t *board_p)
{
    const uint64_t deadline = lap_now_ns() + world->timeout_ns;
    lap_region_t region = {0};
    int fd = -1;
    LAP_TRY(guest_connect(world, dir, deadline, &fd));
    lap_status_t status = guest_talk(world, fd, deadline, &region);
    close(fd);
    if (status != LAP_OK) {
        lap_region_unmap(world, &region);
        return status;
    }
    *board_p = region;
    return LAP_OK;
}

lap_status_t lap_bootstrap_meet(lap_world_t *world, const char *dir, lap_region_t *board_p)
{
    return world->rank == 0 ? host_meet(world, dir, board_p) : guest_meet(world, dir, board_p);
}
