/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process announces something by listening at an abstract socket with a name for it. Nobody is
 * ever answered there: who wants to know connects, and the kernel says which process listens. The
 * name is gone with the process, however that ends. Another user who takes it keeps nobody from
 * anything.
 */
#include "core/job.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/status.h"
#include "util/clock.h"
#include "util/digest.h"

#define BACKLOG 1024 /* as many may ask: they are never accepted */
#define TRIES 50
#define PAUSE_NS 10000000u
#define TELL_S 5 /* how long a launcher may be busy */

/* A directory may be longer than an address: it is there by its FNV-1a hash. */
static socklen_t job_address(const char *dir, int rank, lap_job_word_t word,
                             struct sockaddr_un *address)
{
    const uint64_t hash = lap_digest(LAP_DIGEST_INIT, dir, strlen(dir));
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    const int length = snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1,
                                "lap-job:%016" PRIx64 ":%d:%d", hash, rank, (int)word);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

/* Who listens there: a pid and a uid; false when nobody does. */
static bool find_owner(const struct sockaddr_un *address, socklen_t bytes, struct ucred *who_p)
{
    socklen_t room = sizeof(*who_p);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const bool found = fd >= 0 && connect(fd, (const struct sockaddr *)address, bytes) == 0 &&
                       getsockopt(fd, SOL_SOCKET, SO_PEERCRED, who_p, &room) == 0;
    if (fd >= 0)
        close(fd);
    return found;
}

lap_status_t lap_job_take(const char *dir, int rank, int *fd_p)
{
    struct sockaddr_un address;
    const socklen_t bytes = job_address(dir, rank, LAP_JOB_TAKEN, &address);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return lap_error_errno("socket");
    struct ucred who = {.pid = -1};
    bool taken = false;
    for (int i = 0; i < TRIES && !taken; i++) {
        if (bind(fd, (const struct sockaddr *)&address, bytes) == 0 && listen(fd, BACKLOG) == 0) {
            *fd_p = fd;
            return LAP_OK;
        }
        /* One that does not listen has just come, or is about to go. */
        taken = find_owner(&address, bytes, &who);
        if (!taken)
            lap_sleep_until_ns(lap_now_ns() + PAUSE_NS);
    }
    close(fd);
    *fd_p = -1;
    if (!taken || who.uid != geteuid() || who.pid == getpid())
        return LAP_OK;
    const char *job = getenv("LAP_JOB");
    return lap_error(LAP_ERR_MISMATCH,
                     "the job '%s' is taken: process %d is its rank %d; expected a different "
                     "LAP_JOB for each job that runs at the same time",
                     job ? job : "", (int)who.pid, rank);
}

int lap_job_announce(const char *dir, int rank, lap_job_word_t word)
{
    struct sockaddr_un address;
    const socklen_t bytes = job_address(dir, rank, word, &address);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 ||
        (bind(fd, (const struct sockaddr *)&address, bytes) == 0 && listen(fd, BACKLOG) == 0))
        return fd;
    close(fd);
    return -1;
}

/* Whether a process of this user announces it. */
static bool is_announced(const char *dir, int rank, lap_job_word_t word)
{
    struct sockaddr_un address;
    struct ucred who;
    const socklen_t bytes = job_address(dir, rank, word, &address);
    return find_owner(&address, bytes, &who) && who.uid == geteuid();
}

static int open_no_files(const char *dir, int rank)
{
    struct rlimit limit;
    int fd = lap_job_announce(dir, rank, LAP_JOB_NO_FILES);
    if (fd >= 0 || errno != EMFILE || getrlimit(RLIMIT_NOFILE, &limit) != 0 ||
        limit.rlim_cur >= limit.rlim_max)
        return fd;
    const struct rlimit more = {limit.rlim_cur + 1, limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &more) != 0)
        return -1;
    fd = lap_job_announce(dir, rank, LAP_JOB_NO_FILES);
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    return fd;
}

/*
 * Each asks once. To count one takes a descriptor: without any, only that somebody asks is known.
 */
void lap_job_announce_no_files(const char *dir, int rank, int askers, uint64_t ns)
{
    const uint64_t end = lap_now_ns() + ns;
    const int fd = open_no_files(dir, rank);
    while (fd >= 0 && askers > 0 && lap_now_ns() < end) {
        struct pollfd asked = {.fd = fd, .events = POLLIN};
        struct ucred who = {.uid = (uid_t)-1};
        socklen_t room = sizeof(who);
        if (poll(&asked, 1, PAUSE_NS / 1000000) <= 0)
            continue;
        const int asker = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        if (asker >= 0 && getsockopt(asker, SOL_SOCKET, SO_PEERCRED, &who, &room) == 0)
            askers -= who.uid == geteuid();
        if (asker >= 0)
            close(asker);
        else if (askers == 1)
            askers = 0;
        else
            lap_sleep_until_ns(lap_now_ns() + PAUSE_NS);
    }
    if (fd >= 0)
        close(fd);
}

lap_status_t lap_job_look(const char *dir, int self, int rank)
{
    if (is_announced(dir, rank, LAP_JOB_NO_FILES))
        return lap_error(LAP_ERR_SYSTEM,
                         "rank %d cannot come to the other ranks: it has too many files open "
                         "(ulimit -n)",
                         rank);
    if (is_announced(dir, rank, LAP_JOB_ENDED))
        return lap_error(LAP_ERR_PEER_LOST,
                         "rank %d has ended, with status 0, and has not come to the other ranks",
                         rank);
    if (is_announced(dir, rank, LAP_JOB_WIRED))
        return lap_error(LAP_ERR_MISMATCH,
                         "rank %d has a transport over MPI or TCP (mpi or hosts), rank %d has not: "
                         "expected the same --transport, or LAP_TRANSPORT, on all ranks",
                         rank, self);
    return LAP_OK;
}

/* ---- messages ---- */

int lap_job_listen(const char *dir)
{
    struct sockaddr_un address;
    const socklen_t bytes = job_address(dir, -1, LAP_JOB_LAUNCHER, &address);
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;
    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) == 0 &&
        bind(fd, (const struct sockaddr *)&address, bytes) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

/* The launcher, whose directory it is, takes for its own what the kernel says is of its user. */
static bool is_of_launcher(const char *dir)
{
    struct stat about;
    return stat(dir, &about) == 0 && about.st_uid == getuid() && about.st_uid == geteuid();
}

bool lap_job_send(const char *dir, const void *bytes, size_t count)
{
    struct sockaddr_un address;
    const socklen_t length = job_address(dir, -1, LAP_JOB_LAUNCHER, &address);
    const struct timeval limit = {.tv_sec = TELL_S};
    if (!is_of_launcher(dir))
        return false;
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const bool sent =
        fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) == 0 &&
        sendto(fd, bytes, count, MSG_NOSIGNAL, (const struct sockaddr *)&address, length) ==
            (ssize_t)count;
    if (fd >= 0)
        close(fd);
    return sent;
}

ptrdiff_t lap_job_receive(int fd, void *bytes, size_t room)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(struct ucred))];
    } control;
    for (;;) {
        struct iovec part = {bytes, room};
        struct msghdr message = {.msg_iov = &part,
                                 .msg_iovlen = 1,
                                 .msg_control = &control,
                                 .msg_controllen = sizeof(control)};
        struct ucred who = {.uid = (uid_t)-1};
        const ssize_t count = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
        if (count < 0)
            return -1;
        const struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        if (head && head->cmsg_type == SCM_CREDENTIALS)
            memcpy(&who, CMSG_DATA(head), sizeof(who));
        if (who.uid == geteuid())
            return count;
    }
}
