/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How processes become a world: all meet at a Unix socket in a private directory, where rank 0 is
 * the host. Each client says hello and hands in its heap; the host gives everybody the heaps and
 * pids of all, hears that everybody is ready, removes socket and directory, and says go. Then the
 * sockets are closed: a world has memory in common and nothing else. Whatever goes wrong, the host
 * tells its sentence to all who came. Host and clients are in meet_host.c and meet_client.c, the
 * messages in message.c; here is what both sides do.
 */
#include "core/bootstrap.h"

#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/job.h"
#include "core/meet.h"
#include "core/status.h"

lap_status_t lap_meet_check_peer(int fd, const char *doing, const char *dir, struct ucred *who_p)
{
    socklen_t bytes = sizeof(*who_p);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, who_p, &bytes) != 0)
        return lap_error_errno("asking who %s '%s'", doing, dir);
    if (who_p->uid != geteuid())
        return lap_error(LAP_ERR_MISMATCH, "user %lu %s '%s', expected user %lu",
                         (unsigned long)who_p->uid, doing, dir, (unsigned long)geteuid());
    return LAP_OK;
}

void lap_limit_shorten(lap_limit_t *limit, lap_deadline_t *deadline, uint64_t left_ns,
                       lap_limit_t other)
{
    if (left_ns < lap_deadline_left(deadline) && other.timeout_ns != limit->timeout_ns)
        *limit = other;
    lap_deadline_shorten(deadline, left_ns);
}

const char *lap_limit_within(const lap_limit_t *limit, uint64_t own_ns, char text[LAP_LIMIT_TEXT])
{
    const double seconds = (double)limit->timeout_ns * 1e-9;
    if (limit->timeout_ns == own_ns)
        snprintf(text, LAP_LIMIT_TEXT, "within %g s", seconds);
    else
        snprintf(text, LAP_LIMIT_TEXT, "within %g s (the timeout of rank %d)", seconds,
                 (int)limit->rank);
    return text;
}

const char *lap_limit_in_time(const lap_limit_t *limit, char text[LAP_LIMIT_TEXT])
{
    snprintf(text, LAP_LIMIT_TEXT, "in time (the timeout of rank %d is %g s)", (int)limit->rank,
             (double)limit->timeout_ns * 1e-9);
    return text;
}

int lap_meet_known(const lap_rendezvous_t *place, int rank)
{
    return place->ranks ? place->ranks[rank] : rank;
}

lap_limit_t lap_meet_limit(const lap_world_t *world, const lap_rendezvous_t *place)
{
    return place->ranks ? place->limit : (lap_limit_t){world->timeout_ns, world->rank};
}

lap_deadline_t lap_meet_deadline(const lap_world_t *world, const lap_rendezvous_t *place)
{
    return lap_deadline_after(place->ranks ? place->most_ns : world->timeout_ns);
}

const char *lap_meet_within(const lap_world_t *world, const lap_rendezvous_t *place,
                            const lap_limit_t *limit, char text[LAP_LIMIT_TEXT])
{
    return place->ranks ? lap_limit_in_time(limit, text)
                        : lap_limit_within(limit, world->timeout_ns, text);
}

lap_status_t lap_meet_look(const lap_rendezvous_t *place, int self, int rank)
{
    if (place->look)
        LAP_TRY(place->look(place->context));
    if (lap_job_has_no_files(place->dir, rank))
        return lap_error(LAP_ERR_SYSTEM,
                         "rank %d cannot come to the other ranks: it has too many files open "
                         "(ulimit -n)",
                         lap_meet_known(place, rank));
    return lap_job_look(place->dir, self, rank);
}

static void let_go(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void lap_bootstrap_excuse(lap_world_t *world, const char *dir)
{
    const int askers = world->rank == 0 ? world->size - 1 : 1; /* rank 0 tells the others */
    if (errno != EMFILE && errno != ENFILE)
        return;
    let_go(&world->peers[world->rank].heap_fd);
    let_go(&world->job_fd);
    lap_job_say_no_files(dir, world->rank, askers, LAP_BOOTSTRAP_LINGER_NS);
}

lap_status_t lap_meet_open_pidfds(lap_world_t *world, const lap_rendezvous_t *place)
{
    for (int rank = 0; rank < world->size; rank++) {
        lap_peer_t *peer = &world->peers[rank];
        if (rank == world->rank)
            continue;
        peer->pidfd = (int)syscall(SYS_pidfd_open, peer->pid, 0); /* close-on-exec by itself */
        if (peer->pidfd < 0 && errno == ESRCH)
            return lap_error(LAP_ERR_PEER_LOST, "rank %d (pid %d) has died",
                             lap_meet_known(place, rank), peer->pid);
        if (peer->pidfd < 0)
            return lap_error_errno("watching rank %d (pid %d)", lap_meet_known(place, rank),
                                   peer->pid);
    }
    return LAP_OK;
}

lap_status_t lap_bootstrap_meet(lap_world_t *world, const lap_rendezvous_t *place,
                                lap_region_t *board_p)
{
    return world->rank == 0 ? lap_meet_host(world, place, board_p)
                            : lap_meet_client(world, place, board_p);
}
