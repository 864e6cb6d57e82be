/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How processes become a world: all meet at a Unix socket in a private directory, where rank 0 is
 * the host. Each client says hello and hands in its heap; the host gives everybody the heaps and
 * pids of all, hears that everybody is ready, removes socket and directory, and says go. Then the
 * sockets are closed: a world has memory in common and nothing else. Whatever goes wrong, the host
 * tells its sentence to all who came. The messages themselves are in message.c.
 */
#include "core/bootstrap.h"

#include <lap/version.h>

#include <errno.h>
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
#include "core/job.h"
#include "core/message.h"
#include "core/private_dir.h"
#include "core/status.h"
#include "util/alloc.h"
#include "util/clock.h"

#define LOOK_NS 100000000u /* between two looks for who will not come */

/*
 * The kernel says who is at the other end of a socket: only a process of this user has any business
 * here. `doing` is what the other one does.
 */
static lap_status_t check_peer(int fd, const char *doing, const char *dir, struct ucred *who_p)
{
    socklen_t bytes = sizeof(*who_p);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, who_p, &bytes) != 0)
        return lap_error_errno("asking who %s '%s'", doing, dir);
    if (who_p->uid != geteuid())
        return lap_error(LAP_ERR_MISMATCH, "user %lu %s '%s', expected user %lu",
                         (unsigned long)who_p->uid, doing, dir, (unsigned long)geteuid());
    return LAP_OK;
}

/* Peers. */

static double timeout_seconds(const lap_world_t *world)
{
    return (double)world->timeout_ns * 1e-9;
}

/* The number by which all ranks know one of this rendezvous. */
static int known(const lap_rendezvous_t *place, int rank)
{
    return place->ranks ? place->ranks[rank] : rank;
}

/* Whether `rank`, for which `self` waits, is known not to come. */
static lap_status_t look(const lap_rendezvous_t *place, int self, int rank)
{
    if (place->look)
        LAP_TRY(place->look(place->context));
    return lap_job_look(place->dir, self, rank);
}

/* A descriptor for each other process that tells when it has ended. */
static lap_status_t open_pidfds(lap_world_t *world, const lap_rendezvous_t *place)
{
    for (int rank = 0; rank < world->size; rank++) {
        lap_peer_t *peer = &world->peers[rank];
        if (rank == world->rank)
            continue;
        peer->pidfd = (int)syscall(SYS_pidfd_open, peer->pid, 0); /* close-on-exec by itself */
        if (peer->pidfd < 0 && errno == ESRCH)
            return lap_error(LAP_ERR_PEER_LOST, "rank %d (pid %d) has died", known(place, rank),
                             peer->pid);
        if (peer->pidfd < 0)
            return lap_error_errno("watching rank %d (pid %d)", known(place, rank), peer->pid);
    }
    return LAP_OK;
}

/* What the host has. */
typedef struct host {
    lap_world_t *world;
    const lap_rendezvous_t *place;
    const char *dir;
    lap_deadline_t deadline;
    int hasty;     /* the rank whose deadline it is, if that is well before this one's; else 0 */
    bool owns_dir; /* to be removed at the end: this host made it, or one that has died did */
    int dir_fd;    /* holds a lock, so that a second host does not take the place of a living one */
    int listener;
    bool bound;           /* the socket of the listener is in the directory */
    int *clients;         /* socket to each rank; -1: has not come, or has gone */
    int *strangers;       /* connections that have not sent a hello yet, the eldest first */
    int nstrangers;       /* of them; there is room for host_strangers() */
    struct pollfd *polls; /* room for the listener, all clients and all strangers */
    lap_status_t failure; /* the first one while gathering, with its sentence */
    char sentence[LAP_ERROR_TEXT];
} host_t;

/* As many more as there are ranks: whoever connects beyond that takes the place of the eldest. */
static int host_strangers(const lap_world_t *world)
{
    return world->size + 16;
}

/* The process that listens in a directory; 0: none does yet. */
static int listener_pid(int dir_fd)
{
    const struct sockaddr_un address = lap_private_dir_socket(dir_fd);
    struct ucred who = {.pid = 0};
    socklen_t bytes = sizeof(who);
    int fd = -1;
    if (lap_socket_open(&fd) == LAP_OK &&
        connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0)
        (void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes);
    if (fd >= 0)
        close(fd);
    return (int)who.pid;
}

static lap_status_t host_enter_dir(host_t *host)
{
    host->owns_dir = mkdir(host->dir, 0700) == 0;
    if (!host->owns_dir && errno != EEXIST)
        return lap_error_errno("making the directory '%s'", host->dir);
    const lap_status_t status = lap_private_dir_open(host->dir, &host->dir_fd);
    if (status != LAP_OK && host->owns_dir)
        rmdir(host->dir); /* as a strange umask has made it */
    LAP_TRY(status);
    if (host->dir_fd < 0)
        return lap_error(LAP_ERR_SYSTEM, "the directory '%s' was removed meanwhile", host->dir);
    if (flock(host->dir_fd, LOCK_EX | LOCK_NB) != 0)
        return lap_error(LAP_ERR_MISMATCH,
                         "another process (pid %d) says that it is rank 0 and waits for its ranks "
                         "in '%s'",
                         listener_pid(host->dir_fd), host->dir);
    return LAP_OK;
}

static lap_status_t host_listen(host_t *host)
{
    const struct sockaddr_un address = lap_private_dir_socket(host->dir_fd);
    LAP_TRY(lap_socket_open(&host->listener));
    /* What a host that was killed has left, the directory with it: we hold the lock. */
    if (lap_private_dir_remove_socket(host->dir_fd))
        host->owns_dir = true;
    host->bound = bind(host->listener, (const struct sockaddr *)&address, sizeof(address)) == 0;
    if (!host->bound && errno == EADDRINUSE)
        return lap_error(LAP_ERR_SYSTEM,
                         "'%s/s' exists and is not a socket of this library, expected a directory "
                         "that only these ranks use",
                         host->dir);
    if (!host->bound)
        return lap_error_errno("binding the socket '%s/s'", host->dir);
    if (listen(host->listener, host->world->size + 8) != 0)
        return lap_error_errno("listening at '%s/s'", host->dir);
    return LAP_OK;
}

/*
 * Takes away what host_enter_dir and host_listen made. What belongs to somebody else stays.
 */
static void host_leave_dir(host_t *host)
{
    if (host->bound)
        lap_private_dir_remove_socket(host->dir_fd);
    if (host->listener >= 0)
        close(host->listener);
    if (host->owns_dir && host->dir_fd >= 0)
        lap_private_dir_remove(host->dir, host->dir_fd);
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
        if (host->clients[rank] < 0)
            used += (size_t)snprintf(text + used, bytes - used, "%s%d", used ? ", " : "",
                                     known(host->place, rank));
    }
}

static lap_status_t host_timeout(const host_t *host)
{
    char missing[512], silent[64] = "";
    list_missing(host, missing, sizeof(missing));
    if (host->nstrangers > 0)
        snprintf(silent, sizeof(silent), "; %d connection%s sent nothing", host->nstrangers,
                 host->nstrangers == 1 ? " has" : "s have");
    if (host->hasty)
        return lap_error(LAP_ERR_TIMEOUT,
                         "of %d ranks these have not come to '%s' within the timeout of rank %d, "
                         "which is shorter than the %g s of rank 0: %s%s",
                         host->world->size, host->dir, host->hasty, timeout_seconds(host->world),
                         missing, silent);
    return lap_error(LAP_ERR_TIMEOUT, "of %d ranks these have not come to '%s' within %g s: %s%s",
                     host->world->size, host->dir, timeout_seconds(host->world), missing, silent);
}

static lap_status_t client_lost(const host_t *host, int rank)
{
    return lap_error(LAP_ERR_PEER_LOST, "rank %d (pid %d) went away while the ranks were meeting",
                     known(host->place, rank), host->world->peers[rank].pid);
}

static lap_status_t client_failed(const host_t *host, int rank, lap_status_t status)
{
    if (status == LAP_ERR_PEER_LOST)
        return client_lost(host, rank);
    if (status == LAP_ERR_TIMEOUT)
        return lap_error(status, "rank %d (pid %d) came to '%s' but has not answered within %g s",
                         known(host->place, rank), host->world->peers[rank].pid, host->dir,
                         timeout_seconds(host->world));
    return status;
}

/*
 * Finds out whether a client has hung up, while waiting until `deadline`, if there is one, for an
 * event on the listener or of a stranger.
 */
static lap_status_t host_watch(host_t *host, lap_deadline_t *deadline)
{
    const int size = host->world->size;
    host->polls[0] = (struct pollfd){.fd = host->listener, .events = POLLIN};
    for (int rank = 1; rank < size; rank++)
        host->polls[rank] = (struct pollfd){.fd = host->clients[rank]}; /* hang-ups only */
    for (int i = 0; i < host->nstrangers; i++)
        host->polls[size + i] = (struct pollfd){.fd = host->strangers[i], .events = POLLIN};
    LAP_TRY(lap_wait_polls(host->polls, size + host->nstrangers, deadline));
    for (int rank = 1; rank < size; rank++) {
        if (host->polls[rank].revents) {
            close(host->clients[rank]);
            host->clients[rank] = -1;
            return client_lost(host, rank);
        }
    }
    return LAP_OK;
}

/* Whether a hello makes sense. The kernel says who really sent it. */
static lap_status_t check_hello(const host_t *host, int fd, const lap_message_t *hello, int nfds)
{
    const lap_world_t *world = host->world;
    struct ucred who;
    LAP_TRY(check_peer(fd, "came to", host->dir, &who));
    if (hello->protocol != LAP_MESSAGE_PROTOCOL)
        return lap_error(LAP_ERR_MISMATCH,
                         "pid %d speaks version %u of the protocol, rank 0 version %d", who.pid,
                         hello->protocol, LAP_MESSAGE_PROTOCOL);
    if (strcmp(hello->version, lap_version_string()) != 0)
        return lap_error(LAP_ERR_MISMATCH,
                         "rank 0 runs version %s of this library, rank %d (pid %d) version %s",
                         lap_version_string(), hello->rank, who.pid, hello->version);
    if (hello->size != world->size)
        return lap_error(LAP_ERR_MISMATCH, "rank %d says there are %d ranks, rank 0 says %d",
                         hello->rank, hello->size, world->size);
    if (hello->pid != who.pid)
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "rank %d has pid %d but rank 0 sees it as pid %d: ranks in different PID "
                         "namespaces cannot watch each other",
                         hello->rank, hello->pid, who.pid);
    if (hello->rank == 0 ||
        (hello->rank > 0 && hello->rank < world->size && host->clients[hello->rank] >= 0))
        return lap_error(LAP_ERR_MISMATCH, "pid %d and pid %d both say that they are rank %d",
                         world->peers[hello->rank].pid, hello->pid, hello->rank);
    if (hello->kind != LAP_MESSAGE_HELLO || hello->rank < 0 || hello->rank >= world->size ||
        nfds != 1)
        return lap_error(LAP_ERR_INTERNAL,
                         "pid %d sent no valid hello message, expected a rank of this library",
                         who.pid);
    return LAP_OK;
}

static void tell_failure(int fd, lap_status_t status)
{
    const lap_message_t message = lap_message_make_status(LAP_MESSAGE_FAILURE, status);
    lap_message_send(fd, &message, NULL, 0, NULL); /* as well as it can be done without waiting */
}

/* Hears who has connected and says something. Somebody who hangs up without a word is forgotten. */
static lap_status_t host_greet(host_t *host, int fd, int *came_p)
{
    lap_message_t hello;
    int fds[LAP_MESSAGE_FDS], nfds = 0;
    lap_status_t status = lap_message_receive(fd, &hello, fds, &nfds, NULL);
    if (status == LAP_ERR_PEER_LOST || status == LAP_ERR_TIMEOUT) {
        close(fd);
        return LAP_OK;
    }
    ++*came_p;
    if (status == LAP_OK)
        status = check_hello(host, fd, &hello, nfds);
    if (status != LAP_OK) {
        tell_failure(fd, status);
        lap_close_fds(fds, nfds);
        close(fd);
        return status;
    }
    host->clients[hello.rank] = fd;
    host->world->peers[hello.rank].heap_fd = fds[0];
    host->world->peers[hello.rank].pid = hello.pid;
    /* No rank waits longer than its hello says: the first timeout ends the rendezvous for all. */
    if (hello.left_ns < lap_deadline_left(&host->deadline) / 2)
        host->hasty = hello.rank;
    lap_deadline_shorten(&host->deadline, hello.left_ns);
    return LAP_OK;
}

static void forget_stranger(host_t *host, int index)
{
    host->nstrangers--;
    memmove(&host->strangers[index], &host->strangers[index + 1],
            (size_t)(host->nstrangers - index) * sizeof(int));
}

/* Lets one in. Nobody waits for what it says: others may come meanwhile. */
static lap_status_t host_accept(host_t *host)
{
    if (!(host->polls[0].revents & POLLIN))
        return LAP_OK;
    int fd = accept4(host->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        if (host->nstrangers == host_strangers(host->world)) {
            close(host->strangers[0]);
            forget_stranger(host, 0);
        }
        host->strangers[host->nstrangers++] = fd;
        return LAP_OK;
    }
    if (errno == EINTR || errno == EAGAIN || errno == ECONNABORTED)
        return LAP_OK;
    return lap_error_errno("accepting a rank");
}

/* Hears those strangers who, as host_watch found, have something to say, or have gone. */
static lap_status_t host_hear_strangers(host_t *host, int *came_p)
{
    lap_status_t first = LAP_OK;
    char sentence[LAP_ERROR_TEXT];
    const struct pollfd *polls = &host->polls[host->world->size];
    for (int i = host->nstrangers - 1; i >= 0; i--) {
        if (!polls[i].revents)
            continue;
        const int fd = host->strangers[i];
        forget_stranger(host, i);
        const lap_status_t status = host_greet(host, fd, came_p);
        if (status == LAP_OK || first != LAP_OK)
            continue;
        first = status;
        snprintf(sentence, sizeof(sentence), "%s", lap_last_error());
    }
    return first == LAP_OK ? LAP_OK : lap_error(first, "%s", sentence);
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
    snprintf(host->sentence, sizeof(host->sentence), "%s", lap_last_error());
    lap_deadline_shorten(&host->deadline, LAP_BOOTSTRAP_LINGER_NS);
}

/* Whether those who have not come are known not to. */
static lap_status_t host_look(const host_t *host)
{
    for (int rank = 1; rank < host->world->size; rank++)
        if (host->clients[rank] < 0)
            LAP_TRY(look(host->place, 0, rank));
    return LAP_OK;
}

/* As host_watch, and looks in between. */
static lap_status_t host_watch_and_look(host_t *host)
{
    lap_deadline_t look = lap_deadline_after(LOOK_NS);
    lap_deadline_t *next = lap_deadline_left(&host->deadline) < LOOK_NS ? &host->deadline : &look;
    const lap_status_t status = host_watch(host, next);
    return status == LAP_ERR_TIMEOUT && host->failure == LAP_OK ? host_look(host) : status;
}

static lap_status_t host_gather(host_t *host)
{
    int came = 1;
    while (came < host->world->size && !lap_deadline_passed(&host->deadline)) {
        lap_status_t status = host_watch_and_look(host);
        if (status == LAP_OK)
            status = host_hear_strangers(host, &came);
        if (status == LAP_OK)
            status = host_accept(host);
        if (status != LAP_OK && status != LAP_ERR_TIMEOUT)
            host_note_failure(host, status);
    }
    if (host->failure != LAP_OK)
        return lap_error(host->failure, "%s", host->sentence);
    return came < host->world->size ? host_timeout(host) : LAP_OK;
}

/* Sends the pids and heaps of all ranks to one client. */
static lap_status_t host_send_table(host_t *host, int client, uint64_t board)
{
    const lap_world_t *world = host->world;
    for (int first = 0; first < world->size; first += LAP_MESSAGE_FDS) {
        lap_message_t table = lap_message_make(LAP_MESSAGE_TABLE);
        int fds[LAP_MESSAGE_FDS];
        table.board = board;
        table.first = first;
        table.count = world->size - first < LAP_MESSAGE_FDS ? world->size - first : LAP_MESSAGE_FDS;
        for (int i = 0; i < table.count; i++) {
            table.pids[i] = world->peers[first + i].pid;
            fds[i] = world->peers[first + i].heap_fd;
        }
        lap_status_t status =
            lap_message_send(host->clients[client], &table, fds, table.count, &host->deadline);
        if (status != LAP_OK)
            return client_failed(host, client, status);
    }
    return LAP_OK;
}

static lap_status_t host_hear_ready(host_t *host, int client)
{
    lap_message_t ready;
    int fds[LAP_MESSAGE_FDS], nfds = 0;
    lap_status_t status =
        lap_message_receive(host->clients[client], &ready, fds, &nfds, &host->deadline);
    if (status != LAP_OK)
        return client_failed(host, client, status);
    lap_close_fds(fds, nfds);
    if (ready.status != LAP_OK)
        return lap_error((lap_status_t)ready.status, "rank %d: %s", known(host->place, client),
                         ready.text);
    return LAP_OK;
}

static lap_status_t host_share(host_t *host, uint64_t board)
{
    LAP_TRY(open_pidfds(host->world, host->place));
    for (int rank = 1; rank < host->world->size; rank++)
        LAP_TRY(host_send_table(host, rank, board));
    for (int rank = 1; rank < host->world->size; rank++)
        LAP_TRY(host_hear_ready(host, rank));
    /*
     * All are still here after all have opened their pidfds, so each pidfd is of the right process.
     */
    lap_status_t status = host_watch(host, NULL);
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

/* The last word to all who came. A client that died meanwhile is found by the first collective. */
static void host_tell_all(host_t *host, lap_status_t status)
{
    const lap_message_t go = lap_message_make(LAP_MESSAGE_GO);
    for (int rank = 1; rank < host->world->size; rank++) {
        if (host->clients[rank] < 0)
            continue;
        if (status == LAP_OK)
            lap_message_send(host->clients[rank], &go, NULL, 0, &host->deadline);
        else
            tell_failure(host->clients[rank], status);
        close(host->clients[rank]);
    }
}

static lap_status_t host_meet(lap_world_t *world, const lap_rendezvous_t *place,
                              lap_region_t *board_p)
{
    host_t host = {.world = world,
                   .place = place,
                   .dir = place->dir,
                   .deadline = lap_deadline_after(world->timeout_ns),
                   .dir_fd = -1,
                   .listener = -1,
                   .clients = lap_alloc((size_t)world->size, sizeof(int)),
                   .strangers = lap_alloc((size_t)host_strangers(world), sizeof(int)),
                   .polls = lap_alloc((size_t)world->size + (size_t)host_strangers(world),
                                      sizeof(struct pollfd))};
    lap_status_t status;
    if (host.clients && host.strangers && host.polls) {
        for (int rank = 0; rank < world->size; rank++)
            host.clients[rank] = -1;
        status = host_run(&host, board_p);
        /* Before anybody hears go: the next world of the same ranks may meet at the same place. */
        host_leave_dir(&host);
        host_tell_all(&host, status);
        lap_close_fds(host.strangers, host.nstrangers);
    } else {
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to meet %d ranks", world->size);
    }
    lap_free(host.polls);
    lap_free(host.strangers);
    lap_free(host.clients);
    return status;
}

/* Clients. */

/* One attempt: *fd_p stays -1 when the host is not there yet. */
static lap_status_t client_try(const char *dir, int *fd_p)
{
    int dir_fd = -1, fd = -1;
    LAP_TRY(lap_private_dir_open(dir, &dir_fd));
    if (dir_fd < 0)
        return LAP_OK;
    const struct sockaddr_un address = lap_private_dir_socket(dir_fd);
    lap_status_t status = lap_socket_open(&fd);
    if (status == LAP_OK && connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0) {
        struct ucred who;
        status = check_peer(fd, "listens in", dir, &who);
        if (status == LAP_OK)
            *fd_p = fd;
    } else if (status == LAP_OK) {
        if (errno != ENOENT && errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR)
            status = lap_error_errno("connecting to '%s/s'", dir);
    }
    if (fd >= 0 && *fd_p != fd)
        close(fd);
    close(dir_fd);
    return status;
}

static lap_status_t client_connect(const lap_world_t *world, const lap_rendezvous_t *place,
                                   lap_deadline_t *deadline, int *fd_p)
{
    int fd = -1;
    for (uint64_t pause = 1000000u;; pause = pause < 20000000u ? pause * 2 : pause) {
        LAP_TRY(client_try(place->dir, &fd));
        if (fd >= 0)
            break;
        LAP_TRY(look(place, world->rank, 0));
        const uint64_t left = lap_deadline_left(deadline);
        if (left == 0)
            return lap_error(LAP_ERR_TIMEOUT, "rank %d has not come to '%s' within %g s",
                             known(place, 0), place->dir, timeout_seconds(world));
        lap_sleep_until_ns(lap_now_ns() + (pause < left ? pause : left));
    }
    *fd_p = fd;
    return LAP_OK;
}

/* Hears from the host. Its failures become ours, in its words. */
static lap_status_t client_hear(const lap_world_t *world, const lap_rendezvous_t *place, int fd,
                                lap_deadline_t *deadline, lap_message_kind_t kind,
                                lap_message_t *message_p, int *fds, int *nfds_p)
{
    lap_status_t status = lap_message_receive(fd, message_p, fds, nfds_p, deadline);
    if (status == LAP_ERR_PEER_LOST)
        return lap_error(status, "rank %d went away while the ranks were meeting", known(place, 0));
    if (status == LAP_ERR_TIMEOUT)
        return lap_error(status, "rank %d has not gathered the ranks within %g s", known(place, 0),
                         timeout_seconds(world));
    if (status != LAP_OK)
        return status;
    if (message_p->kind == (uint32_t)kind)
        return LAP_OK;
    lap_close_fds(fds, *nfds_p);
    *nfds_p = 0;
    if (message_p->kind == LAP_MESSAGE_FAILURE && message_p->status != LAP_OK)
        return lap_error((lap_status_t)message_p->status, "%s", message_p->text);
    return lap_error(LAP_ERR_INTERNAL, "rank %d sent a message of kind %u, expected kind %d",
                     known(place, 0), message_p->kind, kind);
}

static lap_status_t client_hear_table(lap_world_t *world, const lap_rendezvous_t *place, int fd,
                                      lap_deadline_t *deadline, uint64_t *board_p)
{
    for (int known = 0; known < world->size;) {
        lap_message_t table;
        int fds[LAP_MESSAGE_FDS], nfds = 0;
        LAP_TRY(client_hear(world, place, fd, deadline, LAP_MESSAGE_TABLE, &table, fds, &nfds));
        if (table.first != known || table.count != nfds || nfds > world->size - known) {
            lap_close_fds(fds, nfds);
            return lap_error(LAP_ERR_INTERNAL,
                             "rank 0 sent the descriptors of %d heaps beginning with rank %d, "
                             "expected rank %d first",
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
static lap_status_t client_prepare(lap_world_t *world, const lap_rendezvous_t *place,
                                   uint64_t board, lap_region_t *region_p)
{
    LAP_TRY(open_pidfds(world, place));
    return lap_region_map(world, 0, board, lap_board_bytes(world->size), region_p);
}

static lap_status_t client_talk(lap_world_t *world, const lap_rendezvous_t *place, int fd,
                                lap_deadline_t *deadline, lap_region_t *region)
{
    lap_message_t message = lap_message_make(LAP_MESSAGE_HELLO);
    int fds[LAP_MESSAGE_FDS], nfds;
    message.rank = world->rank;
    message.size = world->size;
    message.pid = world->peers[world->rank].pid;
    message.left_ns = lap_deadline_left(deadline);
    deadline->at += LAP_BOOTSTRAP_GRACE_NS;
    /*
     * What cannot be sent because the host is gone is no failure yet: it may have left its sentence.
     */
    lap_status_t status =
        lap_message_send(fd, &message, &world->peers[world->rank].heap_fd, 1, deadline);
    if (status != LAP_OK && status != LAP_ERR_PEER_LOST && status != LAP_ERR_TIMEOUT)
        return status;
    uint64_t board = 0;
    LAP_TRY(client_hear_table(world, place, fd, deadline, &board));
    status = client_prepare(world, place, board, region);
    message = lap_message_make_status(LAP_MESSAGE_READY, status);
    const lap_status_t sent = lap_message_send(fd, &message, NULL, 0, deadline);
    LAP_TRY(status);
    /* The host, which has not heard of us, waits for nothing else: it will see that we end. */
    if (sent != LAP_OK && sent != LAP_ERR_PEER_LOST)
        return sent;
    LAP_TRY(client_hear(world, place, fd, deadline, LAP_MESSAGE_GO, &message, fds, &nfds));
    lap_close_fds(fds, nfds);
    return LAP_OK;
}

static lap_status_t client_meet(lap_world_t *world, const lap_rendezvous_t *place,
                                lap_region_t *board_p)
{
    lap_deadline_t deadline = lap_deadline_after(world->timeout_ns);
    lap_region_t region = {0};
    int fd = -1;
    LAP_TRY(client_connect(world, place, &deadline, &fd));
    lap_status_t status = client_talk(world, place, fd, &deadline, &region);
    close(fd);
    if (status != LAP_OK) {
        lap_region_unmap(world, &region);
        return status;
    }
    *board_p = region;
    return LAP_OK;
}

lap_status_t lap_bootstrap_meet(lap_world_t *world, const lap_rendezvous_t *place,
                                lap_region_t *board_p)
{
    return world->rank == 0 ? host_meet(world, place, board_p) : client_meet(world, place, board_p);
}
