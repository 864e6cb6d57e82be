/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes that do not become a world, or only after some trouble: ranks that never come, that
 * disagree or are killed while they meet, connections that say nothing, and directories that belong
 * to somebody else.
 */
#include <lap/version.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "core/forked.h"
#include "core/hub/hub.h"
#include "core/private_dir.h"

static void not_met(lap_status_t expected, const char *word, const char *word2)
{
    lap_world_t *world = NULL;
    expect_failure(lap_world_create(NULL, &world), expected, word, word2);
    expect(!world, "nothing written on failure");
}

static void without_some(void)
{
    const int rank = my_rank;
    if (rank == 1 || rank == 3)
        return;
    usleep(rank == 0 ? 200000 : 0); /* rank 1's time is up before rank 0's */
    not_met(LAP_ERR_TIMEOUT, "have not come", ": 1, 3");
    snprintf(shared->sentences[rank], sizeof(shared->sentences[rank]), "%s", lap_last_error());
}

/* All wait only as long as rank 1, which has a shorter timeout than the others, and say so. */
static void without_patience(void)
{
    const uint64_t begin = lap_now_ns();
    if (my_rank == 3)
        return;
    setenv("LAP_TIMEOUT_S", my_rank == 1 ? "3" : "20", 1);
    not_met(LAP_ERR_TIMEOUT, "of 4 ranks these have not come",
            "within 3 s (the timeout of rank 1): 3");
    expect(lap_now_ns() - begin < 10000000000u, "an end well before the timeout of rank 0");
}

static void without_host(void)
{
    not_met(LAP_ERR_TIMEOUT, "rank 0 has not come", "1 s");
}

static void other_size(void)
{
    if (my_rank == 1)
        setenv("LAP_SIZE", "4", 1);
    while (my_rank == 2 && !atomic_load(&shared->arrived))
        usleep(1000); /* comes after the failure and hears of it */
    not_met(LAP_ERR_MISMATCH, "says that it is rank 1 of 4", "expected ranks 1 to 2 of 3");
    if (my_rank == 1)
        atomic_store(&shared->arrived, 1);
}

static const char *other_version; /* NULL: the right one */

const char *__wrap_lap_version_string(void);
const char *__real_lap_version_string(void);
const char *__wrap_lap_version_string(void)
{
    return other_version ? other_version : __real_lap_version_string();
}

static void two_versions(void)
{
    if (my_rank == 2)
        other_version = "9.8.7";
    not_met(LAP_ERR_MISMATCH, "rank 0 runs version ", "version 9.8.7");
}

static void same_rank(void)
{
    if (my_rank == 2)
        setenv("LAP_RANK", "1", 1);
    not_met(LAP_ERR_MISMATCH, "both say", "rank 1");
}

/* A socket that is connected to rank 0. */
static int reach_host(void)
{
    int dir = -1;
    while ((dir = lap_private_dir_look(getenv("LAP_DIR"))) < 0)
        usleep(1000);
    const struct sockaddr_un address = lap_private_dir_socket(dir);
    const int fd = lap_private_dir_open_socket();
    expect(fd >= 0, "a socket");
    while (connect(fd, (const struct sockaddr *)&address, sizeof(address)) != 0)
        usleep(1000);
    close(dir);
    return fd;
}

enum { MANY = 64 };

/* Sends a byte that is none of a hello, with many descriptors. */
static void send_descriptors(int fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(MANY * sizeof(int))];
    } control = {0};
    char byte = 'x';
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    struct msghdr header = {.msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(MANY * sizeof(int));
    for (size_t i = 0; i < MANY; i++)
        memcpy(CMSG_DATA(rights) + i * sizeof(int), &(int){STDOUT_FILENO}, sizeof(int));
    expect(sendmsg(fd, &header, MSG_NOSIGNAL) == 1, "a byte");
}

static void unasked_descriptors(void)
{
    if (my_rank == 1) {
        const int fd = reach_host();
        send_descriptors(fd);
        close(fd);
    }
    good();
}

/* Connections that say nothing hold nobody up: more of them than there are ranks. */
static void silent_connections(void)
{
    int fds[RANKS_MAX] = {0};
    for (int i = 0; my_rank == 1 && i < RANKS_MAX; i++)
        fds[i] = reach_host();
    good();
    for (int i = 0; my_rank == 1 && i < RANKS_MAX; i++)
        close(fds[i]);
}

/* And nobody else is blamed for them. */
static void silent_and_alone(void)
{
    if (my_rank == 1) {
        const int fd = reach_host();
        while (!atomic_load(&shared->arrived)) /* until rank 0 has given up */
            usleep(1000);
        close(fd);
    } else if (my_rank == 0) {
        not_met(LAP_ERR_TIMEOUT, "have not come", ": 1, 2; 1 connection has sent nothing");
        atomic_store(&shared->arrived, 1);
    }
}

/* Comes as a rank does, and is killed. */
static void greet_and_die(void)
{
    const int fd = reach_host();
    const lap_key_t key = {{0, 0}};
    lap_deadline_t deadline = lap_deadline_after(20000000000u);
    lap_hub_challenge_t challenge;
    bool verdict = true;
    lap_hub_hello_t hello = {.magic = LAP_HUB_HELLO_MAGIC,
                             .rank = my_rank,
                             .size = my_size,
                             .pid = getpid(),
                             .left_ns = UINT64_MAX};
    snprintf(hello.version, sizeof(hello.version), "%s", lap_version_string());
    expect(lap_stream_write(fd, &hello, sizeof(hello), &deadline) == LAP_OK &&
               lap_stream_read(fd, &challenge, sizeof(challenge), &deadline) == LAP_OK,
           "a hello and its answer");
    const uint64_t proof = lap_hub_proof(&key, LAP_HUB_RANK, &hello, &challenge.nonce, 0);
    expect(lap_stream_write(fd, &proof, sizeof(proof), &deadline) == LAP_OK &&
               lap_hub_receive_frame(fd, NULL, 0, &verdict, &deadline) == LAP_OK,
           "a welcome");
    raise(SIGKILL);
}

static void killed_while_meeting(void)
{
    if (my_rank == 2)
        greet_and_die();
    if (my_rank == 3) { /* comes when rank 2 is dead */
        struct pollfd death = {.fd = (int)syscall(SYS_pidfd_open, shared->pids[2], 0),
                               .events = POLLIN};
        expect(poll(&death, 1, -1) == 1, "the death of rank 2");
        close(death.fd);
    }
    not_met(LAP_ERR_PEER_LOST, "rank 2", "went away");
}

static void public_dir(void)
{
    not_met(LAP_ERR_SYSTEM, "mode 755", "700");
}

static void not_a_dir(void)
{
    not_met(LAP_ERR_SYSTEM, "case", "irectory");
}

static void foreign_dir(void)
{
    not_met(LAP_ERR_SYSTEM, "belongs to user 65534", "case");
}

/*
 * A directory that is already there: of a host that was killed, of somebody else, or open to all.
 */
static void test_found_dirs(void)
{
    char dir[96], path[112];
    meeting_dir(dir, sizeof(dir), "case");
    snprintf(path, sizeof(path), "%s/s", dir);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path, strlen(path));
    mkdir(dir, 0700);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    tap_ok(bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0, "a stale socket");
    close(fd);
    run_case("a directory that a killed host left", 0, 3, "20", -1, good);

    mkdir(dir, 0700);
    chmod(dir, 0755);
    pid_t pids[2] = {start_rank(0, 2, dir, "1", public_dir),
                     start_rank(1, 2, dir, "1", public_dir)};
    bool well = ended_well(pids[0]);
    tap_ok(ended_well(pids[1]) && well, "a directory that others can enter is refused");
    if (geteuid() == 0) {
        chmod(dir, 0700);
        tap_ok(chown(dir, 65534, 65534) == 0, "a directory of another user");
        pids[0] = start_rank(0, 2, dir, "1", foreign_dir);
        pids[1] = start_rank(1, 2, dir, "1", foreign_dir);
        well = ended_well(pids[0]);
        tap_ok(ended_well(pids[1]) && well, "is refused");
    } else {
        tap_skip("only root can make a directory of another user");
    }
    tap_ok(rmdir(dir) == 0, "and left alone");
    FILE *file = fopen(dir, "we");
    fclose(file);
    pids[0] = start_rank(0, 2, dir, "1", not_a_dir);
    pids[1] = start_rank(1, 2, dir, "1", not_a_dir);
    well = ended_well(pids[0]);
    tap_ok(ended_well(pids[1]) && well, "a file in place of the directory is refused");
    tap_ok(unlink(dir) == 0, "and left alone");
}

static void met_a_stranger(void)
{
    not_met(LAP_ERR_MISMATCH, "user 65534 listens in", "expected user 0");
}

/* Listens where rank 0 should, as another user who has got hold of the directory's descriptor. */
static pid_t start_stranger(const char *dir)
{
    int ready[2];
    char byte = 0;
    if (pipe2(ready, O_CLOEXEC) != 0)
        return -1;
    const pid_t pid = fork();
    if (pid == 0) {
        const int fd = lap_private_dir_look(dir);
        const struct sockaddr_un address = lap_private_dir_socket(fd);
        const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
        if (bind(listener, (const struct sockaddr *)&address, sizeof(address)) != 0 ||
            setresuid(65534, 65534, 65534) != 0 || listen(listener, 8) != 0 ||
            write(ready[1], &byte, 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ready[1]);
    tap_ok(read(ready[0], &byte, 1) == 1, "another user listens");
    close(ready[0]);
    return pid;
}

static void test_stranger(void)
{
    char dir[96];
    if (geteuid() != 0) {
        tap_skip("only root can become another user");
        return;
    }
    meeting_dir(dir, sizeof(dir), "case");
    mkdir(dir, 0700);
    const pid_t stranger = start_stranger(dir), joiner = start_rank(1, 2, dir, "5", met_a_stranger);
    tap_ok(ended_well(joiner), "a rank asks who rank 0 is");
    kill(stranger, SIGKILL);
    ended_well(stranger);
    char path[112];
    snprintf(path, sizeof(path), "%s/s", dir);
    tap_ok(unlink(path) == 0 && rmdir(dir) == 0, "and leaves everything");
}

static void refused_file(void)
{
    not_met(LAP_ERR_SYSTEM, "/s' exists", "not a socket of this library");
}

/* What is in a directory that was there before the ranks belongs to somebody. */
static void test_kept_files(void)
{
    char dir[96], path[112], other[112];
    meeting_dir(dir, sizeof(dir), "case");
    snprintf(path, sizeof(path), "%s/s", dir);
    snprintf(other, sizeof(other), "%s/t", dir);
    mkdir(dir, 0700);
    FILE *file = fopen(path, "we");
    fclose(file);
    pid_t pid = start_rank(0, 2, dir, "1", refused_file);
    tap_ok(ended_well(pid), "a file in the place of the socket is refused");
    tap_ok(rename(path, other) == 0, "and stays");
    pid_t pids[2] = {start_rank(0, 2, dir, "20", good), start_rank(1, 2, dir, "20", good)};
    const bool well = ended_well(pids[0]);
    tap_ok(ended_well(pids[1]) && well, "next to another file ranks meet");
    tap_ok(access(path, F_OK) != 0 && unlink(other) == 0, "that stays, the socket goes");
    pids[0] = start_rank(0, 2, dir, "20", good);
    pids[1] = start_rank(1, 2, dir, "20", good);
    ended_well(pids[0]);
    ended_well(pids[1]);
    tap_ok(rmdir(dir) == 0, "a directory that was there before stays");
}

int main(void)
{
    if (!forked_begin())
        return 1;
    run_case("ranks that never come", 0, 5, "3", -1, without_some);
    tap_ok(shared->sentences[0][0] && strcmp(shared->sentences[0], shared->sentences[2]) == 0 &&
               strcmp(shared->sentences[0], shared->sentences[4]) == 0,
           "all give the same sentence: %s", shared->sentences[0]);
    run_case("a rank that never comes, and one that does not wait for it", 0, 4, "20", -1,
             without_patience);
    run_case("a host that never comes", 1, 3, "1", -1, without_host);
    run_case("ranks that disagree on how many they are", 0, 3, "20", -1, other_size);
    run_case("ranks of two versions", 0, 3, "20", -1, two_versions);
    run_case("two that say they are the same rank", 0, 3, "20", -1, same_rank);
    run_case("a rank killed while the ranks meet", 0, 4, "20", 2, killed_while_meeting);
    run_case("descriptors that nobody asked for", 0, 2, "20", -1, unasked_descriptors);
    run_case("connections that say nothing", 0, 3, "10", -1, silent_connections);
    run_case("a connection that says nothing instead of ranks", 0, 3, "3", -1, silent_and_alone);
    test_found_dirs();
    test_stranger();
    test_kept_files();
    return forked_end();
}
