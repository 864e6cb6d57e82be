/* SPDX-License-Identifier: Apache-2.0 */
/* The directory of a job and its guardian: see place.h. */
#include "place.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/private_dir.h"
#include "core/status.h"

/* Nobody writes to the pipe: its end is the launcher's. */
static _Noreturn void guard(const char *dir, int fd, int hold)
{
    char byte;
    while (read(hold, &byte, 1) < 0 && errno == EINTR)
        continue;
    lap_rendezvous_dir_remove(dir, fd);
    _exit(0);
}

/* What the guardian needs to outlive the launcher, and to hold nothing of its. */
static _Noreturn void become_guardian(const char *dir, int fd, int hold)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    setsid();
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    /* Above what is overwritten next. */
    const int high_fd = fcntl(fd, F_DUPFD, 8), high_hold = fcntl(hold, F_DUPFD, 8);
    if (null < 0 || high_fd < 0 || high_hold < 0 || chdir("/") != 0)
        _exit(1);
    for (int i = 0; i < 3; i++)
        dup2(null, i);
    if (dup2(high_fd, 3) < 0 || dup2(high_hold, 4) < 0)
        _exit(1);
    close_range(5, ~0u, 0);
    prctl(PR_SET_NAME, "lap-place-guard");
    guard(dir, 3, 4);
}

bool lap_place_make(lap_place_t *place_p)
{
    lap_place_t place = {.hold = -1};
    int ends[2];
    if (lap_rendezvous_dir_make(place.dir, &place.fd) != LAP_OK)
        return false;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        lap_error_errno("making a pipe for the guardian of '%s'", place.dir);
        goto err_remove;
    }
    place.hold = ends[1];
    place.guardian = fork();
    if (place.guardian == 0) {
        close(ends[1]);
        become_guardian(place.dir, place.fd, ends[0]);
    }
    if (place.guardian < 0)
        lap_error_errno("starting the guardian of '%s'", place.dir);
    close(ends[0]);
    if (place.guardian < 0) {
        close(ends[1]);
        goto err_remove;
    }
    *place_p = place;
    return true;

err_remove:
    lap_rendezvous_dir_remove(place.dir, place.fd);
    return false;
}

void lap_place_remove(lap_place_t *place)
{
    if (!place->dir[0])
        return;
    lap_rendezvous_dir_remove(place->dir, place->fd);
    /* There is nothing left for it to do; it may be stopped, and is not waited for. */
    kill(place->guardian, SIGKILL);
    while (waitpid(place->guardian, NULL, 0) < 0 && errno == EINTR)
        continue;
    close(place->hold);
    *place = (lap_place_t){.hold = -1};
}
