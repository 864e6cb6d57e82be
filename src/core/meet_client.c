/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of a rendezvous, any rank but 0: it looks for the host, says hello, takes the heaps and
 * pids of all, says that it is ready, and waits for the last word: see bootstrap.c.
 */
#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/group.h"
#include "core/meet.h"
#include "core/message.h"
#include "core/private_dir.h"
#include "core/status.h"
#include "util/clock.h"

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
        status = lap_meet_check_peer(fd, "listens in", dir, &who);
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
    const lap_limit_t limit = lap_meet_limit(world, place);
    char within[LAP_LIMIT_TEXT];
    int fd = -1;
    for (uint64_t pause = 1000000u;; pause = pause < 20000000u ? pause * 2 : pause) {
        LAP_TRY(client_try(place->dir, &fd));
        if (fd >= 0)
            break;
        LAP_TRY(lap_meet_look(place, world->rank, 0));
        const uint64_t left = lap_deadline_left(deadline);
        if (left == 0)
            return lap_error(LAP_ERR_TIMEOUT, "rank %d has not come to '%s' %s",
                             lap_meet_known(place, 0), place->dir,
                             lap_meet_within(world, place, &limit, within));
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
    const lap_limit_t limit = lap_meet_limit(world, place);
    char within[LAP_LIMIT_TEXT];
    lap_status_t status = lap_message_receive(fd, message_p, fds, nfds_p, deadline);
    if (status == LAP_ERR_PEER_LOST)
        return lap_error(status, "rank %d went away while the ranks were meeting",
                         lap_meet_known(place, 0));
    if (status == LAP_ERR_TIMEOUT)
        return lap_error(status, "rank %d has not gathered the ranks %s", lap_meet_known(place, 0),
                         lap_meet_within(world, place, &limit, within));
    if (status != LAP_OK)
        return status;
    if (message_p->kind == (uint32_t)kind)
        return LAP_OK;
    lap_close_fds(fds, *nfds_p);
    *nfds_p = 0;
    if (message_p->kind == LAP_MESSAGE_FAILURE && message_p->status != LAP_OK)
        return lap_error((lap_status_t)message_p->status, "%s", message_p->text);
    return lap_error(LAP_ERR_INTERNAL, "rank %d sent a message of kind %u, expected kind %d",
                     lap_meet_known(place, 0), message_p->kind, kind);
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
                             "rank %d sent the descriptors of %d heaps beginning with number %d, "
                             "expected number %d first",
                             lap_meet_known(place, 0), nfds, table.first, known);
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
    LAP_TRY(lap_meet_open_pidfds(world, place));
    return lap_region_map(world, 0, board, lap_board_bytes(world->size), region_p);
}

/*
 * After a failure of this rank: rank 0, which has been told, tells the others. Until then they must not take this rank
 * for a dead one. Who is lost here may have ended because of an earlier failure, which rank 0 tells. Whatever else
 * comes is thrown away, with the descriptors in it.
 */
static lap_status_t client_await_end(int fd, lap_deadline_t *deadline, lap_status_t status)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};
    lap_message_t message = {.kind = LAP_MESSAGE_HELLO};
    lap_saved_error_t saved;
    ssize_t got = 1;
    lap_error_save(&saved);
    while (got != 0 && lap_wait_polls(&one, 1, deadline) == LAP_OK) {
        got = recv(fd, &message, sizeof(message), MSG_DONTWAIT);
        if (got < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNRESET)
            break;
        const bool last = got == sizeof(message) && message.kind == LAP_MESSAGE_FAILURE;
        if (last && message.status != LAP_OK && status == LAP_ERR_PEER_LOST)
            return lap_error((lap_status_t)message.status, "%s", message.text);
    }
    lap_error_restore(&saved);
    return status;
}

static lap_status_t client_talk(lap_world_t *world, const lap_rendezvous_t *place, int fd,
                                lap_deadline_t *deadline, lap_region_t *region)
{
    const lap_limit_t limit = lap_meet_limit(world, place);
    if (place->declines != LAP_OK)
        (void)lap_error(place->declines, "%s", place->why);
    lap_message_t message = lap_message_make_status(LAP_MESSAGE_HELLO, place->declines);
    int fds[LAP_MESSAGE_FDS], nfds;
    message.rank = world->rank;
    message.size = world->size;
    message.pid = world->peers[world->rank].pid;
    message.left_ns = lap_deadline_left(deadline);
    message.timeout_ns = limit.timeout_ns;
    message.timeout_of = limit.rank;
    deadline->at += LAP_BOOTSTRAP_GRACE_NS;
    /*
     * What cannot be sent because the host is gone is no failure yet: it may have left its sentence.
     */
    lap_status_t status =
        lap_message_send(fd, &message, &world->peers[world->rank].heap_fd, 1, deadline);
    if (status != LAP_OK && status != LAP_ERR_PEER_LOST && status != LAP_ERR_TIMEOUT)
        return status;
    uint64_t board = 0;
    status = client_hear_table(world, place, fd, deadline, &board);
    if (status == LAP_OK)
        status = client_prepare(world, place, board, region);
    message = lap_message_make_status(LAP_MESSAGE_READY, status);
    const lap_status_t sent = lap_message_send(fd, &message, NULL, 0, deadline);
    if (status != LAP_OK)
        return client_await_end(fd, deadline, status);
    /* The host, which has not heard of us, waits for nothing else: it will see that we end. */
    if (sent != LAP_OK && sent != LAP_ERR_PEER_LOST)
        return sent;
    LAP_TRY(client_hear(world, place, fd, deadline, LAP_MESSAGE_GO, &message, fds, &nfds));
    lap_close_fds(fds, nfds);
    return LAP_OK;
}

lap_status_t lap_meet_client(lap_world_t *world, const lap_rendezvous_t *place,
                             lap_region_t *board_p)
{
    lap_deadline_t deadline = lap_meet_deadline(world, place);
    lap_region_t region = {0};
    int fd = -1;
    lap_status_t status = client_connect(world, place, &deadline, &fd);
    if (status == LAP_ERR_SYSTEM)
        lap_bootstrap_excuse(world, place->dir);
    LAP_TRY(status);
    status = client_talk(world, place, fd, &deadline, &region);
    close(fd);
    if (status != LAP_OK) {
        lap_region_unmap(world, &region);
        return status;
    }
    *board_p = region;
    return LAP_OK;
}
