/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host of a rendezvous, rank 0: it makes the directory and listens there, hears who comes, gives
 * everybody the heaps and pids of all, and has the last word: see bootstrap.c.
 */
#include <lap/version.h>

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/group.h"
#include "core/meet.h"
#include "core/message.h"
#include "core/private_dir.h"
#include "core/status.h"
#include "util/alloc.h"
#include "util/clock.h"

#define LOOK_NS 100000000u /* between two looks for who will not come */

/* What the host has. */
typedef struct host {
    lap_world_t *world;
    const lap_rendezvous_t *place;
    const char *dir;
    lap_deadline_t deadline;
    lap_limit_t limit; /* whose timeout the deadline is */
    bool owns_dir;     /* to be removed at the end: this host made it, or one that has died did */
    int dir_fd; /* holds a lock, so that a second host does not take the place of a living one */
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

/* Both. Without descriptors for them there is another way to say so. */
static lap_status_t host_open(host_t *host)
{
    lap_status_t status = host_enter_dir(host);
    if (status == LAP_OK)
        status = host_listen(host);
    if (status == LAP_ERR_SYSTEM) {
        const int error = errno;
        host_leave_dir(host);
        errno = error;
        lap_bootstrap_excuse(host->world, host->dir);
    }
    return status;
}

/* "1, 3" */
static void list_missing(const host_t *host, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int rank = 1; rank < host->world->size && used + 16 < bytes; rank++) {
        if (host->clients[rank] < 0)
            used += (size_t)snprintf(text + used, bytes - used, "%s%d", used ? ", " : "",
                                     lap_meet_known(host->place, rank));
    }
}

static lap_status_t host_timeout(const host_t *host)
{
    char missing[512], silent[64] = "", within[LAP_LIMIT_TEXT];
    list_missing(host, missing, sizeof(missing));
    if (host->nstrangers > 0)
        snprintf(silent, sizeof(silent), "; %d connection%s sent nothing", host->nstrangers,
                 host->nstrangers == 1 ? " has" : "s have");
    return lap_error(LAP_ERR_TIMEOUT, "of %d ranks%s these have not come to '%s' %s: %s%s",
                     host->world->size, host->place->ranks ? " of one host" : "", host->dir,
                     lap_meet_within(host->world, host->place, &host->limit, within), missing,
                     silent);
}

static lap_status_t client_lost(const host_t *host, int rank)
{
    return lap_error(LAP_ERR_PEER_LOST, "rank %d (pid %d) went away while the ranks were meeting",
                     lap_meet_known(host->place, rank), host->world->peers[rank].pid);
}

static lap_status_t client_failed(const host_t *host, int rank, lap_status_t status)
{
    char within[LAP_LIMIT_TEXT];
    if (status == LAP_ERR_PEER_LOST)
        return client_lost(host, rank);
    if (status == LAP_ERR_TIMEOUT)
        return lap_error(status, "rank %d (pid %d) came to '%s' but has not answered %s",
                         lap_meet_known(host->place, rank), host->world->peers[rank].pid, host->dir,
                         lap_meet_within(host->world, host->place, &host->limit, within));
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
    LAP_TRY(lap_meet_check_peer(fd, "came to", host->dir, &who));
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
    if (host->failure != LAP_OK)
        status = lap_error(host->failure, "%s", host->sentence);
    else if (status == LAP_OK)
        status = check_hello(host, fd, &hello, nfds);
    if (status == LAP_OK &&
        hello.status != LAP_OK) /* it only comes to say why it does not take part */
        status = lap_error((lap_status_t)hello.status, "rank %d: %s",
                           lap_meet_known(host->place, hello.rank), hello.text);
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
    lap_limit_shorten(&host->limit, &host->deadline, hello.left_ns,
                      (lap_limit_t){hello.timeout_ns, hello.timeout_of});
    return LAP_OK;
}

static void forget_stranger(host_t *host, int index)
{
    host->nstrangers--;
    memmove(&host->strangers[index], &host->strangers[index + 1],
            (size_t)(host->nstrangers - index) * sizeof(int));
}

/*
 * Without a descriptor for who comes there will be no world: those serve that were for it, and then that of the
 * eldest who has not said who it is.
 */
static void host_make_room(host_t *host)
{
    int *heap = &host->world->peers[0].heap_fd;
    if (*heap >= 0) {
        close(*heap);
        *heap = -1;
    } else if (host->nstrangers > 0) {
        (void)lap_error(host->failure, "%s", host->sentence);
        tell_failure(host->strangers[0], host->failure);
        close(host->strangers[0]);
        forget_stranger(host, 0);
    }
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
    const lap_status_t status = lap_error_errno("accepting a rank");
    host_make_room(host);
    return status;
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
        host->clients[rank] = -1;
    }
}

/*
 * Keeps the first failure, of which all hear who have come, and leaves only a moment for the ranks that still are
 * to come and hear of it.
 */
static void host_note_failure(host_t *host, lap_status_t status)
{
    if (host->failure != LAP_OK)
        return;
    host->failure = status;
    snprintf(host->sentence, sizeof(host->sentence), "%s", lap_last_error());
    host_tell_all(host, status);
    lap_deadline_shorten(&host->deadline, LAP_BOOTSTRAP_LINGER_NS);
}

/* Whether one of those who have not come is known not to; it counts as one that has. */
static lap_status_t host_look(const host_t *host, int *came_p)
{
    for (int rank = 1; rank < host->world->size; rank++) {
        const lap_status_t status =
            host->clients[rank] < 0 ? lap_meet_look(host->place, 0, rank) : LAP_OK;
        if (status == LAP_OK)
            continue;
        ++*came_p;
        return status;
    }
    return LAP_OK;
}

/*
 * As host_watch, and looks in between. What that finds is noted at once: it may be a timeout, of
 * another rank, and this one's is none.
 */
static lap_status_t host_watch_and_look(host_t *host, int *came_p)
{
    lap_deadline_t look = lap_deadline_after(LOOK_NS);
    lap_deadline_t *next = lap_deadline_left(&host->deadline) < LOOK_NS ? &host->deadline : &look;
    const lap_status_t status = host_watch(host, next);
    const bool looks = status == LAP_ERR_TIMEOUT && host->failure == LAP_OK;
    const lap_status_t found = looks ? host_look(host, came_p) : LAP_OK;
    if (found != LAP_OK)
        host_note_failure(host, found);
    return status;
}

static lap_status_t host_gather(host_t *host)
{
    int came = 1;
    while (came < host->world->size && !lap_deadline_passed(&host->deadline)) {
        lap_status_t status = host_watch_and_look(host, &came);
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
        return lap_error((lap_status_t)ready.status, "rank %d: %s",
                         lap_meet_known(host->place, client), ready.text);
    return LAP_OK;
}

static lap_status_t host_share(host_t *host, uint64_t board)
{
    LAP_TRY(lap_meet_open_pidfds(host->world, host->place));
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
    LAP_TRY(host_open(host));
    if (host->place->declines != LAP_OK)
        host_note_failure(host, lap_error(host->place->declines, "%s", host->place->why));
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

lap_status_t lap_meet_host(lap_world_t *world, const lap_rendezvous_t *place, lap_region_t *board_p)
{
    host_t host = {.world = world,
                   .place = place,
                   .dir = place->dir,
                   .deadline = lap_meet_deadline(world, place),
                   .limit = lap_meet_limit(world, place),
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
