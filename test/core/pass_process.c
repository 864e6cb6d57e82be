/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors passed between the ranks of a world of processes, started by `lap run`; while another
 * process, of another user where that can be, sends to the same sockets.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/group.h"
#include "core/pass.h"
#include "tap.h"

#define STRANGER 65534u
#define MANY 64

/* Its messages look as those of ranks do: see note_t in pass.c. */
typedef struct note {
    int32_t rank;
    uint32_t round, has_fd, reserved;
} note_t;

static lap_group_t *attacked; /* whose sockets the stranger sends to; NULL: there is none */

/* Sends `bytes` of a note with `nfds` descriptors, as somebody else if `who` says so. */
static bool send_to(const struct sockaddr *address, socklen_t length, const note_t *note,
                    size_t bytes, int nfds, const struct ucred *who)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(MANY * sizeof(int))];
    } control = {0};
    const int socket_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct iovec part = {.iov_base = (void *)note, .iov_len = bytes};
    struct msghdr header = {.msg_name = (void *)address,
                            .msg_namelen = length,
                            .msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&header);
    size_t used = 0;
    if (who) {
        *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                              .cmsg_type = SCM_CREDENTIALS,
                              .cmsg_len = CMSG_LEN(sizeof(*who))};
        memcpy(CMSG_DATA(c), who, sizeof(*who));
        used = CMSG_SPACE(sizeof(*who));
        c = (struct cmsghdr *)(void *)(control.bytes + used);
    }
    *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                          .cmsg_type = SCM_RIGHTS,
                          .cmsg_len = CMSG_LEN((size_t)nfds * sizeof(int))};
    for (int i = 0; i < nfds; i++)
        memcpy(CMSG_DATA(c) + (size_t)i * sizeof(int), &(int){STDOUT_FILENO}, sizeof(int));
    header.msg_controllen = used + CMSG_SPACE((size_t)nfds * sizeof(int));
    const bool sent = sendmsg(socket_fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes;
    close(socket_fd);
    return sent;
}

/* The life of the stranger: more descriptors than one, none asked for, and somebody else's name. */
static _Noreturn void disturb(const struct sockaddr *address, socklen_t length)
{
    const bool root = geteuid() == 0;
    const int victim = lap_group_size(attacked) - 1;
    const int pid = attacked->world->peers[attacked->members[victim]].pid;
    const struct ucred who = {.pid = pid, .uid = STRANGER, .gid = STRANGER};
    bool sent = true;
    /* The round of the messages themselves is one of the next. Root may lie about its pid. */
    for (uint32_t i = 0; i < 6; i++) {
        const note_t note = {victim, attacked->round + i, 1, 0};
        sent = sent && (!root || send_to(address, length, &note, sizeof(note), 1, &who));
    }
    if (root && setresuid(STRANGER, STRANGER, STRANGER) != 0)
        _exit(1);
    const note_t note = {victim, attacked->round, 1, 0};
    sent = sent && send_to(address, length, &note, sizeof(note), 2, NULL) &&
           send_to(address, length, &note, 0, MANY, NULL) &&
           send_to(address, length, &note, 3, 1, NULL);
    _exit(sent ? 0 : 1);
}

int __real_getsockname(int fd, struct sockaddr *address, socklen_t *length);
int __wrap_getsockname(int fd, struct sockaddr *address, socklen_t *length);

/* The name of the socket is known to nobody yet but to us, and so what we send comes first. */
int __wrap_getsockname(int fd, struct sockaddr *address, socklen_t *length)
{
    const int result = __real_getsockname(fd, address, length);
    if (result != 0 || !attacked)
        return result;
    int status = -1;
    const pid_t pid = fork();
    if (pid == 0)
        disturb(address, *length);
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
        tap_ok(false, "a stranger has sent its messages: status %d", status);
    return result;
}

/* A file that says whose it is, and in which round. */
static int make_file(int rank, int round)
{
    const int fd = memfd_create("pass", MFD_CLOEXEC);
    const int text[2] = {rank, round};
    if (write(fd, text, sizeof(text)) != (ssize_t)sizeof(text))
        tap_ok(false, "a file for rank %d", rank);
    return fd;
}

/* Every rank gives one, but that in each round another gives none. */
static void pass(lap_group_t *group, int round, int *fds)
{
    const int rank = lap_group_rank(group), size = lap_group_size(group);
    const int mine = round % size == rank ? -1 : make_file(rank, round);
    if (!tap_success(lap_group_pass_fds(group, mine, fds), "round %d", round))
        return;
    bool right = true;
    for (int r = 0; r < size; r++) {
        int text[2] = {-1, -1};
        if (r == rank || r == round % size) {
            right = right && fds[r] == -1;
            continue;
        }
        right = right && pread(fds[r], text, sizeof(text), 0) == (ssize_t)sizeof(text) &&
                text[0] == r && text[1] == round;
        close(fds[r]);
    }
    tap_ok(right, "round %d: the files are the others'", round);
    if (mine >= 0)
        close(mine);
}

int main(void)
{
    lap_world_t *world;
    if (!tap_success(lap_world_create(NULL, &world), "a world"))
        return tap_done();
    lap_group_t *group = lap_world_group(world), *half = NULL;
    int *fds = calloc((size_t)lap_world_size(world), sizeof(*fds));
    const int before = tap_count_fds();
    for (int round = 0; round < 20; round++)
        pass(group, round, fds);
    attacked = lap_world_rank(world) == 0 ? group : NULL;
    for (int round = 0; round < 20; round++)
        pass(group, round, fds);
    attacked = NULL;
    /* Ranks of a smaller group have other numbers than in the world. */
    const int rank = lap_world_rank(world);
    if (tap_success(lap_group_split(group, rank % 2, -rank, &half), "a group"))
        pass(half, 1, fds);
    tap_ok(tap_count_fds() == before, "no descriptor is left open");
    lap_group_destroy(half);
    free(fds);
    lap_world_destroy(world);
    return tap_done();
}
