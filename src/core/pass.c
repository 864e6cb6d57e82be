/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passing descriptors: each rank opens a socket, to which the kernel gives a name, and sends that
 * to the others; then everybody sends its descriptor to everybody. The sockets are closed at the
 * end. The kernel says who has sent a message: one of another process is thrown away.
 */
#include "core/pass.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/status.h"
#include "util/alloc.h"

#define NAP_MS 10 /* between two looks at whether all are still there */

/* The message that goes with a descriptor. */
typedef struct header {
    int32_t rank; /* of the group */
    uint32_t round;
    uint32_t has_fd, reserved;
} header_t;

lap_status_t lap_pass_open(int *socket_p, lap_pass_name_t *name_p)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t bytes = sizeof(address);
    const int yes = 1;
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return lap_error_errno("socket");
    /* Without a name given, the kernel makes one up, in no directory. */
    if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &yes, sizeof(yes)) != 0 ||
        bind(fd, (struct sockaddr *)&address, sizeof(address.sun_family)) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &bytes) != 0 ||
        bytes - offsetof(struct sockaddr_un, sun_path) > sizeof(name_p->text)) {
        lap_status_t status = lap_error_errno("naming a socket");
        close(fd);
        return status;
    }
    name_p->bytes = (uint32_t)(bytes - offsetof(struct sockaddr_un, sun_path));
    memcpy(name_p->text, address.sun_path, name_p->bytes);
    *socket_p = fd;
    return LAP_OK;
}

/* Room for who has sent a message, which the kernel puts first, and for a descriptor. */
typedef union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(sizeof(int))];
} control_t;

/* The length that the kernel gets: in the padding there would be room for a second descriptor. */
#define CONTROL_BYTES (CMSG_SPACE(sizeof(struct ucred)) + CMSG_LEN(sizeof(int)))

/* False: not now. */
static lap_status_t try_send(lap_pass_t *pass, bool *done_p)
{
    const int peer = (pass->rank + pass->sent) % pass->size;
    const lap_pass_name_t *name = &pass->peers[peer].name;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, name->text, name->bytes);
    header_t note = {pass->rank, pass->round, pass->mine >= 0, 0};
    control_t control = {0};
    struct iovec part = {.iov_base = &note, .iov_len = sizeof(note)};
    struct msghdr header = {.msg_name = &address,
                            .msg_namelen =
                                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + name->bytes),
                            .msg_iov = &part,
                            .msg_iovlen = 1};
    if (pass->mine >= 0) {
        header.msg_control = control.bytes;
        header.msg_controllen = CMSG_SPACE(sizeof(int));
        struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(rights), &pass->mine, sizeof(int));
    }
    *done_p = sendmsg(pass->socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
    if (*done_p)
        pass->sent++;
    else if (errno != EAGAIN && errno != EINTR && errno != ETOOMANYREFS &&
             errno != ECONNREFUSED) /* it has ended, as the look will find */
        return lap_error_errno("sending a descriptor to rank %d", pass->peers[peer].rank);
    return LAP_OK;
}

/* Who sent a message, and the descriptor in it; -1: none. Others, were there any, are closed. */
static void read_control(struct msghdr *header, struct ucred *who, int *fd)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
        if (c->cmsg_level != SOL_SOCKET)
            continue;
        if (c->cmsg_type == SCM_CREDENTIALS && c->cmsg_len >= CMSG_LEN(sizeof(*who)))
            memcpy(who, CMSG_DATA(c), sizeof(*who));
        if (c->cmsg_type != SCM_RIGHTS)
            continue;
        const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            if (*fd >= 0)
                close(*fd);
            memcpy(fd, CMSG_DATA(c) + i * sizeof(int), sizeof(*fd));
        }
    }
}

/* Anybody may send to a socket without a directory. The kernel names the sender's real user. */
static bool is_of_a_rank(const lap_pass_t *pass, const header_t *note, const struct ucred *who)
{
    return who->uid == getuid() && note->round == pass->round && note->rank >= 0 &&
           note->rank < pass->size && !pass->peers[note->rank].came &&
           who->pid == pass->peers[note->rank].pid;
}

static lap_status_t try_receive(lap_pass_t *pass, bool *done_p)
{
    header_t note;
    control_t control = {0};
    struct iovec part = {.iov_base = &note, .iov_len = sizeof(note)};
    struct msghdr header = {.msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = CONTROL_BYTES};
    struct ucred who = {.pid = -1, .uid = (uid_t)-1};
    int fd = -1;
    const ssize_t got = recvmsg(pass->socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    *done_p = got >= 0;
    if (got < 0 && errno != EAGAIN && errno != EINTR)
        return lap_error_errno("receiving a descriptor");
    if (got < 0)
        return LAP_OK;
    /* CMSG_NXTHDR wants the padding, too. */
    header.msg_controllen = CMSG_ALIGN(header.msg_controllen);
    read_control(&header, &who, &fd);
    const bool ours = got == sizeof(note) && is_of_a_rank(pass, &note, &who);
    if (ours && !(header.msg_flags & MSG_CTRUNC) && (fd >= 0) == (note.has_fd != 0)) {
        pass->peers[note.rank].fd = fd;
        pass->peers[note.rank].came = true;
        pass->received++;
        return LAP_OK;
    }
    if (fd >= 0)
        close(fd);
    if (ours && (header.msg_flags & MSG_CTRUNC))
        return lap_error(LAP_ERR_SYSTEM,
                         "too many open files to take the descriptor of rank %d: raise the limit "
                         "(ulimit -n)",
                         pass->peers[note.rank].rank);
    return LAP_OK;
}

lap_status_t lap_pass_run(lap_pass_t *pass, lap_deadline_t *deadline)
{
    pass->sent = pass->received = 1; /* not to itself */
    pass->peers[pass->rank].came = true;
    while (pass->sent < pass->size || pass->received < pass->size) {
        bool sent = false, received = false;
        /* Also while messages come: those of other processes may have no end. */
        pass->timed_out = lap_deadline_passed(deadline);
        if (pass->timed_out)
            return LAP_ERR_TIMEOUT;
        if (pass->sent < pass->size)
            LAP_TRY(try_send(pass, &sent));
        LAP_TRY(try_receive(pass, &received));
        if (!sent && !received) {
            struct pollfd one = {.fd = pass->socket, .events = POLLIN};
            (void)poll(&one, 1, NAP_MS);
            LAP_TRY(pass->look(pass->context));
        }
    }
    return LAP_OK;
}

/* ---- in a group ---- */

static lap_status_t look(void *context)
{
    return lap_group_look(context);
}

static lap_status_t run_in_group(lap_group_t *group, lap_pass_t *pass, const lap_pass_name_t *names)
{
    lap_deadline_t deadline = lap_deadline_after(group->world->timeout_ns);
    for (int rank = 0; rank < group->size; rank++)
        pass->peers[rank] =
            lap_pass_peer(rank, &names[rank], group->world->peers[group->members[rank]].pid);
    const lap_status_t status = lap_pass_run(pass, &deadline);
    if (pass->timed_out)
        return lap_error(status, "of %d ranks only %d have passed their descriptors", group->size,
                         pass->received);
    return status;
}

static lap_status_t pass_names(lap_group_t *group, lap_pass_t *pass, const lap_pass_name_t *name)
{
    void *names;
    LAP_TRY(lap_group_collect(group, name, sizeof(*name), &names));
    pass->peers = lap_alloc((size_t)group->size, sizeof(*pass->peers));
    lap_status_t status = LAP_OK;
    if (!pass->peers)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to pass descriptors");
    /* From here on the rounds of all ranks are the same, until all have all. */
    status = lap_group_agree(group, status);
    pass->round = group->round;
    if (status == LAP_OK)
        status = lap_group_agree(group, run_in_group(group, pass, names));
    lap_free(names);
    return status;
}

lap_status_t lap_group_pass_fds(lap_group_t *group, int mine, int *fds)
{
    lap_pass_t pass = {.socket = -1,
                       .rank = group->rank,
                       .size = group->size,
                       .mine = mine,
                       .look = look,
                       .context = group};
    lap_pass_name_t name = {.bytes = 0};
    lap_status_t status = lap_group_agree(group, lap_pass_open(&pass.socket, &name));
    if (status == LAP_OK)
        status = pass_names(group, &pass, &name);
    if (pass.socket >= 0)
        close(pass.socket);
    for (int rank = 0; pass.peers && rank < group->size; rank++) {
        fds[rank] = status == LAP_OK ? pass.peers[rank].fd : -1;
        if (status != LAP_OK && pass.peers[rank].came && pass.peers[rank].fd >= 0)
            close(pass.peers[rank].fd);
    }
    lap_free(pass.peers);
    return status;
}
