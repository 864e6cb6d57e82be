/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passing descriptors: each rank opens a socket, to which the kernel gives a name, and tells it to
 * the others; then everybody sends its descriptor to everybody. The sockets are closed at the end.
 * The kernel says who has sent a message: one of a stranger is thrown away.
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

/* The name of a socket. Plain bytes: it travels. */
typedef struct name {
    uint32_t bytes;
    char text[28];
} name_t;

/* What goes with a descriptor. */
typedef struct note {
    int32_t rank; /* of the group */
    uint32_t round;
    uint32_t has_fd, reserved;
} note_t;

typedef struct passing {
    lap_group_t *group;
    int socket;
    int mine;
    const name_t *names;
    int *fds;
    int sent, received; /* to and from how many ranks, this one included */
    bool *came;
} passing_t;

static lap_status_t open_socket(int *socket_p, name_t *name_p)
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
static lap_status_t try_send(passing_t *passing, bool *done_p)
{
    const lap_group_t *group = passing->group;
    const int peer = (group->rank + passing->sent) % group->size;
    const name_t *name = &passing->names[peer];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, name->text, name->bytes);
    note_t note = {group->rank, group->round, passing->mine >= 0, 0};
    control_t control = {0};
    struct iovec part = {.iov_base = &note, .iov_len = sizeof(note)};
    struct msghdr header = {.msg_name = &address,
                            .msg_namelen =
                                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + name->bytes),
                            .msg_iov = &part,
                            .msg_iovlen = 1};
    if (passing->mine >= 0) {
        header.msg_control = control.bytes;
        header.msg_controllen = CMSG_SPACE(sizeof(int));
        struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(rights), &passing->mine, sizeof(int));
    }
    *done_p = sendmsg(passing->socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
    if (*done_p)
        passing->sent++;
    else if (errno != EAGAIN && errno != EINTR && errno != ETOOMANYREFS)
        return lap_error_errno("sending a descriptor to rank %d", peer);
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

/* Anybody may send to a socket without a directory. The kernel tells the sender's real user. */
static bool is_of_a_rank(const passing_t *passing, const note_t *note, const struct ucred *who)
{
    const lap_group_t *group = passing->group;
    return who->uid == getuid() && note->round == group->round && note->rank >= 0 &&
           note->rank < group->size && !passing->came[note->rank] &&
           who->pid == group->world->peers[group->members[note->rank]].pid;
}

static lap_status_t try_receive(passing_t *passing, bool *done_p)
{
    note_t note;
    control_t control = {0};
    struct iovec part = {.iov_base = &note, .iov_len = sizeof(note)};
    struct msghdr header = {.msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = CONTROL_BYTES};
    struct ucred who = {.pid = -1, .uid = (uid_t)-1};
    int fd = -1;
    const ssize_t got = recvmsg(passing->socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    *done_p = got >= 0;
    if (got < 0 && errno != EAGAIN && errno != EINTR)
        return lap_error_errno("receiving a descriptor");
    if (got < 0)
        return LAP_OK;
    /* CMSG_NXTHDR wants the padding, too. */
    header.msg_controllen = CMSG_ALIGN(header.msg_controllen);
    read_control(&header, &who, &fd);
    const bool ours = got == sizeof(note) && is_of_a_rank(passing, &note, &who);
    if (ours && !(header.msg_flags & MSG_CTRUNC) && (fd >= 0) == (note.has_fd != 0)) {
        passing->fds[note.rank] = fd;
        passing->came[note.rank] = true;
        passing->received++;
        return LAP_OK;
    }
    if (fd >= 0)
        close(fd);
    if (ours && (header.msg_flags & MSG_CTRUNC))
        return lap_error(LAP_ERR_SYSTEM,
                         "too many open files to take the descriptor of rank %d: raise the limit "
                         "(ulimit -n)",
                         note.rank);
    return LAP_OK;
}

static lap_status_t pass_all(passing_t *passing)
{
    const int size = passing->group->size;
    lap_deadline_t deadline = lap_deadline_after(passing->group->world->timeout_ns);
    while (passing->sent < size || passing->received < size) {
        bool sent = false, received = false;
        if (passing->sent < size)
            LAP_TRY(try_send(passing, &sent));
        LAP_TRY(try_receive(passing, &received));
        if (!sent && !received) {
            struct pollfd one = {.fd = passing->socket, .events = POLLIN};
            (void)poll(&one, 1, NAP_MS);
            LAP_TRY(lap_group_look(passing->group));
        }
        /* Also while messages come: a stranger's have no end. */
        if (lap_deadline_passed(&deadline))
            return lap_error(LAP_ERR_TIMEOUT, "of %d ranks only %d have passed their descriptors",
                             size, passing->received);
    }
    return LAP_OK;
}

static lap_status_t pass(lap_group_t *group, int mine, int *fds, int socket, const name_t *name)
{
    void *names;
    LAP_TRY(lap_group_collect(group, name, sizeof(*name), &names));
    passing_t passing = {.group = group,
                         .socket = socket,
                         .mine = mine,
                         .names = names,
                         .fds = fds,
                         .sent = 1, /* not to itself */
                         .received = 1,
                         .came = lap_alloc((size_t)group->size, sizeof(bool))};
    lap_status_t status = LAP_OK;
    if (!passing.came)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to pass descriptors");
    /* From here on the rounds of all ranks are the same, until all have all. */
    status = lap_group_agree(group, status);
    if (status == LAP_OK) {
        passing.came[group->rank] = true;
        status = lap_group_agree(group, pass_all(&passing));
    }
    lap_free(passing.came);
    lap_free(names);
    return status;
}

lap_status_t lap_group_pass_fds(lap_group_t *group, int mine, int *fds)
{
    int socket = -1;
    name_t name = {.bytes = 0};
    for (int r = 0; r < group->size; r++)
        fds[r] = -1;
    lap_status_t status = lap_group_agree(group, open_socket(&socket, &name));
    if (status == LAP_OK)
        status = pass(group, mine, fds, socket, &name);
    if (socket >= 0)
        close(socket);
    for (int r = 0; r < group->size && status != LAP_OK; r++)
        if (fds[r] >= 0)
            close(fds[r]);
    return status;
}
