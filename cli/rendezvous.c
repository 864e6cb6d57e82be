/* SPDX-License-Identifier: Apache-2.0 */
/* Signals that come while ranks meet: see rendezvous.h. */
#include "rendezvous.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/environment.h"
#include "core/private_dir.h"

static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
enum { NUMBERS = sizeof(numbers) / sizeof(numbers[0]) };

/* A handler is given nothing but its number. It only reads this, which is there before it is. */
static struct {
    char dir[LAP_DIR_BYTES];
    bool keep; /* the directory was there before, and nobody's remains: it stays */
    int fd;    /* a socket, to find out who listens there; -1: there is no rendezvous */
    bool handled[NUMBERS];
} rendezvous = {.fd = -1};

/* Whether nobody else listens there: another job may have the same directory. */
static bool is_ours(int dir)
{
    const struct sockaddr_un address = lap_private_dir_socket(dir);
    struct ucred who = {.pid = -1};
    socklen_t bytes = sizeof(who);
    if (connect(rendezvous.fd, (const struct sockaddr *)&address, sizeof(address)) != 0)
        return errno == ECONNREFUSED || errno == ENOENT; /* ENOENT: its socket is not there yet */
    return getsockopt(rendezvous.fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 &&
           who.pid == getpid();
}

static void end_by(int number)
{
    const int dir = rendezvous.dir[0] ? lap_private_dir_look(rendezvous.dir) : -1;
    if (dir >= 0 && is_ours(dir)) {
        lap_private_dir_remove_socket(dir);
        if (!rendezvous.keep)
            lap_private_dir_remove(rendezvous.dir, dir);
    }
    raise(number); /* it does what it always does, once this has returned */
}

void lap_rendezvous_begin(const char *dir)
{
    const struct sigaction ours = {.sa_handler = end_by, .sa_flags = SA_RESETHAND};
    struct sigaction action;
    rendezvous.fd = lap_private_dir_open_socket();
    if (rendezvous.fd < 0)
        return;
    snprintf(rendezvous.dir, sizeof(rendezvous.dir), "%s", dir);
    const int there = *dir ? lap_private_dir_look(dir) : -1;
    rendezvous.keep = there >= 0 && !lap_private_dir_has_socket(there);
    if (there >= 0)
        close(there);
    /* Those that are ignored, as SIGHUP is under nohup, or that somebody handles stay so. */
    for (size_t i = 0; i < NUMBERS; i++)
        rendezvous.handled[i] = sigaction(numbers[i], NULL, &action) == 0 &&
                                action.sa_handler == SIG_DFL &&
                                sigaction(numbers[i], &ours, NULL) == 0;
}

void lap_rendezvous_end(void)
{
    const struct sigaction standard = {.sa_handler = SIG_DFL};
    for (size_t i = 0; i < NUMBERS; i++)
        if (rendezvous.handled[i])
            sigaction(numbers[i], &standard, NULL);
    if (rendezvous.fd >= 0)
        close(rendezvous.fd);
    rendezvous.fd = -1;
}
