/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unix sockets in a private directory, for ranks of one host. Rank 0 makes the directory and
 * removes it again, also on failure. One that is there must be private and ours, and stays, unless
 * a rank 0 that was killed has left it with its socket. The kernel says who is at the other end of
 * a socket: only a process of this user has any business here.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/hub/hub.h"
#include "core/job.h"
#include "core/private_dir.h"

static const char *dir_place(const lap_hub_t *hub, char text[LAP_HUB_PLACE_TEXT])
{
    snprintf(text, LAP_HUB_PLACE_TEXT, "'%s'", hub->dir);
    return text;
}

/* With errno; keeps that this rank has no descriptors left, if that is the cause. */
static lap_status_t failed(lap_hub_t *hub, const char *doing, const char *file)
{
    hub->no_files = errno == EMFILE || errno == ENFILE;
    return lap_error_errno("%s '%s%s'", doing, hub->dir, file);
}

/* `doing` is the part of the other end. */
static lap_status_t check_user(const lap_hub_t *hub, int fd, const char *doing, int *pid_p)
{
    struct ucred who;
    socklen_t bytes = sizeof(who);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) != 0)
        return lap_error_errno("asking who %s '%s'", doing, hub->dir);
    *pid_p = (int)who.pid;
    if (who.uid != geteuid())
        return lap_error(LAP_ERR_MISMATCH, "user %lu %s '%s', expected user %lu",
                         (unsigned long)who.uid, doing, hub->dir, (unsigned long)geteuid());
    return LAP_OK;
}

/* ---- rank 0 ---- */

/* The process that listens in a directory; 0: none does yet. */
static int listener_pid(int dir_fd)
{
    const struct sockaddr_un address = lap_private_dir_socket(dir_fd);
    struct ucred who = {.pid = 0};
    socklen_t bytes = sizeof(who);
    const int fd = lap_private_dir_open_socket();
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0)
        (void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes);
    if (fd >= 0)
        close(fd);
    return (int)who.pid;
}

static lap_status_t open_dir(lap_hub_t *hub, int *fd_p)
{
    const lap_status_t status = lap_private_dir_open(hub->dir, fd_p);
    hub->no_files = status == LAP_ERR_SYSTEM && (errno == EMFILE || errno == ENFILE);
    return status;
}

static lap_status_t enter_dir(lap_hub_t *hub, lap_hub_listener_t *listener)
{
    listener->owns_dir = mkdir(hub->dir, 0700) == 0;
    if (!listener->owns_dir && errno != EEXIST)
        return lap_error_errno("making the directory '%s'", hub->dir);
    const lap_status_t status = open_dir(hub, &listener->dir_fd);
    if (status != LAP_OK && listener->owns_dir)
        rmdir(hub->dir); /* as a strange umask has made it */
    LAP_TRY(status);
    if (listener->dir_fd < 0)
        return lap_error(LAP_ERR_SYSTEM, "the directory '%s' was removed meanwhile", hub->dir);
    if (flock(listener->dir_fd, LOCK_EX | LOCK_NB) != 0)
        return lap_error(LAP_ERR_MISMATCH,
                         "another process (pid %d) says that it is rank 0 and waits for its ranks "
                         "in '%s'",
                         listener_pid(listener->dir_fd), hub->dir);
    return LAP_OK;
}

/* Nobody could be let in, nor learn why, without one more descriptor. */
static lap_status_t check_spare(lap_hub_t *hub, const lap_hub_listener_t *listener)
{
    const int spare = fcntl(listener->fd, F_DUPFD_CLOEXEC, 0);
    if (spare < 0)
        return failed(hub, "letting ranks in at", "/s");
    close(spare);
    return LAP_OK;
}

static lap_status_t dir_listen(lap_hub_t *hub, lap_hub_listener_t *listener)
{
    LAP_TRY(enter_dir(hub, listener));
    const struct sockaddr_un address = lap_private_dir_socket(listener->dir_fd);
    listener->fd = lap_private_dir_open_socket();
    if (listener->fd < 0)
        return failed(hub, "opening the socket", "/s");
    LAP_TRY(check_spare(hub, listener));
    /* Left by a rank 0 that was killed, and the directory with it: we hold the lock. */
    if (lap_private_dir_remove_socket(listener->dir_fd))
        listener->owns_dir = true;
    listener->bound = bind(listener->fd, (const struct sockaddr *)&address, sizeof(address)) == 0;
    if (!listener->bound && errno == EADDRINUSE)
        return lap_error(LAP_ERR_SYSTEM,
                         "'%s/s' exists and is not a socket of this library, expected a directory "
                         "that only these ranks use",
                         hub->dir);
    if (!listener->bound)
        return lap_error_errno("binding the socket '%s/s'", hub->dir);
    if (listen(listener->fd, hub->size + LAP_HUB_PENDING) != 0)
        return lap_error_errno("listening at '%s/s'", hub->dir);
    return LAP_OK;
}

/* Takes away all that dir_listen has made. What belongs to somebody else stays. */
static void dir_close(lap_hub_t *hub, lap_hub_listener_t *listener)
{
    if (listener->bound)
        lap_private_dir_remove_socket(listener->dir_fd);
    if (listener->fd >= 0)
        close(listener->fd);
    if (listener->owns_dir && listener->dir_fd >= 0)
        lap_private_dir_remove(hub->dir, listener->dir_fd);
    if (listener->dir_fd >= 0)
        close(listener->dir_fd);
}

static lap_status_t dir_accept(lap_hub_t *hub, const lap_hub_listener_t *listener, int *fd_p,
                               int *pid_p, char from[LAP_STREAM_TEXT])
{
    *fd_p = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (*fd_p < 0)
        return errno == EINTR || errno == EAGAIN || errno == ECONNABORTED
                   ? LAP_OK
                   : lap_error_errno("accepting a rank");
    const lap_status_t status = check_user(hub, *fd_p, "came to", pid_p);
    if (status != LAP_OK)
        close(*fd_p);
    snprintf(from, LAP_STREAM_TEXT, "pid %d", *pid_p);
    return status;
}

/* ---- the others ---- */

/* LAP_OK with -1: rank 0 is not there yet. */
static lap_status_t open_stream(lap_hub_t *hub, int dir_fd, int *fd_p)
{
    const struct sockaddr_un address = lap_private_dir_socket(dir_fd);
    const int fd = lap_private_dir_open_socket();
    int pid;
    if (fd < 0)
        return failed(hub, "opening a socket for", "/s");
    lap_status_t status = LAP_OK;
    if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0) {
        status = check_user(hub, fd, "listens in", &pid);
        *fd_p = fd;
    } else if (errno != ENOENT && errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) {
        status = lap_error_errno("connecting to '%s/s'", hub->dir);
    }
    if (status != LAP_OK || *fd_p < 0)
        close(fd);
    return status;
}

/* Who listens there is ours. If it goes away it may have left word why. */
static lap_status_t dir_connect(lap_hub_attempt_t *attempt)
{
    lap_hub_t *hub = attempt->hub;
    int dir_fd = -1, fd = -1;
    LAP_TRY(open_dir(hub, &dir_fd));
    if (dir_fd < 0)
        return LAP_OK;
    lap_status_t status = open_stream(hub, dir_fd, &fd);
    close(dir_fd);
    if (status != LAP_OK || fd < 0)
        return status;
    status = lap_hub_greet(attempt, fd, 0, hub->dir);
    if (attempt->reached || (status != LAP_ERR_PEER_LOST && status != LAP_ERR_TIMEOUT))
        return status;
    return status == LAP_ERR_TIMEOUT ? LAP_OK : lap_hub_lost(hub, 0);
}

static lap_status_t dir_absent(const lap_hub_attempt_t *attempt, const char *within)
{
    return lap_error(LAP_ERR_TIMEOUT, "rank 0 has not come to '%s' %s", attempt->hub->dir, within);
}

static lap_status_t dir_look(const lap_hub_t *hub, int rank)
{
    return lap_job_look(hub->dir, hub->rank, rank);
}

const lap_hub_kind_t lap_hub_dir = {
    .pause_most_ns = 20000000u,
    .place = dir_place,
    .listen = dir_listen,
    .close = dir_close,
    .accept = dir_accept,
    .connect = dir_connect,
    .absent = dir_absent,
    .look = dir_look,
};
