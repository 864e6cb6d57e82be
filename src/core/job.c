/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job is taken by listening at an abstract socket of its name. Nobody is ever answered there: who
 * finds the name taken connects, and the kernel tells which process listens. The name is gone with
 * the process, however that ends. Another user who takes it keeps nobody from anything.
 */
#include "core/job.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/status.h"
#include "util/clock.h"

#define BACKLOG 1024 /* as many may ask: they are never accepted */
#define TRIES 50
#define PAUSE_NS 10000000u

static socklen_t job_address(const char *dir, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    const int length =
        snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1, "lap-job:%s", dir);
    const size_t most = sizeof(address->sun_path) - 2;
    const size_t used = (size_t)length < most ? (size_t)length : most;
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + used);
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

lap_status_t lap_job_take(const char *dir, int *fd_p)
{
    struct sockaddr_un address;
    const socklen_t bytes = job_address(dir, &address);
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
                     "the job '%s' is taken: process %d is its rank 0; expected a different "
                     "LAP_JOB for each job that runs at the same time",
                     job ? job : "", (int)who.pid);
}
