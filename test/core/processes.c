/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worlds of processes, good luck and bad: forks ranks with LAP_* set by hand and looks at how each
 * of them ends. Every rank also checks that it has as many open descriptors at the end as at the
 * beginning, and every case that nothing stays in the directory where the ranks met.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/message.h"
#include "core/private_dir.h"
#include "core/world.h"
#include "tap.h"
#include "util/clock.h"

#define RANKS_MAX 16

static char base[64]; /* private to this run */

/* In memory shared by all ranks of a case. */
typedef struct shared {
    _Atomic int arrived, generation;
    char cards[RANKS_MAX][4096];
    char sentences[RANKS_MAX][1024];
    int pids[RANKS_MAX];
} shared_t;

static shared_t *shared;
static int my_rank, my_size; /* in a rank, as it was started */

/* In a rank: what does not hold ends it with a failing status. */
static void expect(bool held, const char *what)
{
    if (held)
        return;
    printf("# pid %d: expected %s; last error: %s\n", (int)getpid(), what, lap_last_error());
    fflush(stdout);
    _exit(1);
}

static void expect_failure(lap_status_t status, lap_status_t expected, const char *word,
                           const char *word2)
{
    expect(status == expected, lap_status_string(expected));
    expect(strstr(lap_last_error(), word) != NULL, word);
    expect(strstr(lap_last_error(), word2) != NULL, word2);
}

static int count_entries(const char *path)
{
    DIR *dir = opendir(path);
    int count = 0;
    while (dir && readdir(dir))
        count++;
    if (dir)
        closedir(dir);
    return dir ? count : -1;
}

static pid_t start_rank(int rank, int size, const char *dir, const char *timeout, void (*fn)(void))
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    char text[16];
    my_rank = rank;
    my_size = size;
    alarm(30); /* a rank that hangs is a failure, not a hanging test */
    snprintf(text, sizeof(text), "%d", rank);
    setenv("LAP_RANK", text, 1);
    snprintf(text, sizeof(text), "%d", size);
    setenv("LAP_SIZE", text, 1);
    setenv("LAP_DIR", dir, 1);
    setenv("LAP_TIMEOUT_S", timeout, 1);
    int before = count_entries("/proc/self/fd");
    fn();
    expect(count_entries("/proc/self/fd") == before, "as many open descriptors as before");
    _exit(0); /* a leak checker at the end of a hundred processes would take minutes */
}

static bool ended_well(pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(status))
        tap_note("pid %d ended by signal %d", (int)pid, WTERMSIG(status));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void meeting_dir(char *dir, size_t bytes, const char *name)
{
    snprintf(dir, bytes, "%s/%s", base, name);
}

/*
 * Runs ranks `from` to size - 1 and tells whether all ended well; `lost`, if any, must have been
 * killed.
 */
static void run_case(const char *name, int from, int size, const char *timeout, int lost,
                     void (*fn)(void))
{
    char dir[96];
    pid_t pids[RANKS_MAX];
    meeting_dir(dir, sizeof(dir), "case");
    memset(shared, 0, sizeof(*shared));
    const uint64_t start = lap_now_ns();
    for (int rank = from; rank < size; rank++)
        shared->pids[rank] = (int)(pids[rank] = start_rank(rank, size, dir, timeout, fn));
    bool well = true;
    for (int rank = from; rank < size; rank++) {
        if (rank != lost)
            well = ended_well(pids[rank]) && well;
    }
    if (lost >= 0) {
        kill(pids[lost], SIGKILL); /* it may only have stopped */
        well = !ended_well(pids[lost]) && well;
    }
    tap_ok(well, "%s, %d ranks (%.2f s)", name, size, (double)(lap_now_ns() - start) * 1e-9);
    tap_ok(count_entries(base) == 2, "nothing is left of it");
}

static lap_world_t *join(void)
{
    lap_world_t *world = NULL;
    expect(lap_world_create(NULL, &world) == LAP_OK, "a world");
    return world;
}

/* What a rank does when all is well. */

static void use(lap_world_t *world)
{
    const int rank = lap_world_rank(world), size = lap_world_size(world);
    lap_group_t *all = lap_world_group(world), *part = NULL;
    int pid = (int)getpid(), pids[RANKS_MAX];
    expect(lap_group_allgather(all, &pid, sizeof(pid), pids) == LAP_OK, "allgather");
    for (int r = 0; r < size; r++)
        expect(pids[r] == world->peers[r].pid && (r == rank) == (pids[r] == pid), "the pids");
    for (int i = 0; i < 50; i++)
        expect(lap_group_barrier(all) == LAP_OK, "barrier");
    expect(lap_group_split(all, rank % 2, -rank, &part) == LAP_OK, "split");
    expect(lap_group_world_rank(part, lap_group_rank(part)) == rank, "my place");
    expect(lap_group_allgather(part, &rank, sizeof(rank), pids) == LAP_OK, "allgather in a part");
    for (int r = 0; r < lap_group_size(part); r++)
        expect(pids[r] == lap_group_world_rank(part, r) && pids[r] % 2 == rank % 2, "the part");
    lap_group_destroy(part);
}

/*
 * Every rank makes a region, all map all, each writes one byte per peer and reads what the peers
 * wrote.
 */
static void use_regions(lap_world_t *world)
{
    const int rank = lap_world_rank(world), size = lap_world_size(world);
    lap_group_t *all = lap_world_group(world);
    lap_region_t regions[RANKS_MAX];
    uint64_t handles[RANKS_MAX];
    expect(lap_region_create(world, 5000, size, &regions[rank]) == LAP_OK, "a region");
    lap_region_t *mine = &regions[rank];
    expect(lap_group_allgather(all, &mine->handle, sizeof(uint64_t), handles) == LAP_OK, "handles");
    for (int r = 0; r < size; r++)
        expect(r == rank || lap_region_map(world, r, handles[r], 5000, &regions[r]) == LAP_OK,
               "a peer's region");
    expect(lap_group_agree(all, LAP_OK) == LAP_OK, "agreement");
    for (int r = 0; r < size; r++)
        ((char *)regions[r].data)[4096 + rank] = (char)(rank + 1);
    expect(lap_group_barrier(all) == LAP_OK, "barrier");
    for (int r = 0; r < size; r++)
        expect(((char *)mine->data)[4096 + r] == (char)(r + 1), "what a peer wrote");
    expect(lap_group_barrier(all) == LAP_OK, "barrier");
    /* In a different order on every rank: the last one out frees, whoever it is. */
    for (int i = 0; i < size; i++)
        lap_region_unmap(world, &regions[(i + rank) % size]);
    expect(lap_group_barrier(all) == LAP_OK, "barrier");
    struct stat file;
    lap_region_t probe;
    expect(lap_region_create(world, 1, 1, &probe) == LAP_OK, "another region");
    lap_region_unmap(world, &probe);
    fstat(world->peers[rank].heap_fd, &file);
    /* Rank 0 also holds the board. */
    expect(rank == 0 || file.st_blocks == 0, "an empty heap");
}

static void good(void)
{
    lap_world_t *world = join();
    use(world);
    use_regions(world);
    lap_world_destroy(world);
}

static void again_and_again(void)
{
    for (int i = 0; i < 10; i++) {
        lap_world_t *world = join();
        expect(lap_group_barrier(lap_world_group(world)) == LAP_OK, "barrier");
        lap_world_destroy(world);
    }
    lap_world_t *first = join(), *second = join();
    use(second);
    use(first);
    lap_world_destroy(first);
    use(second);
    lap_world_destroy(second);
}

static void slow_start(void)
{
    usleep((useconds_t)(tap_random((uint64_t)getpid(), 0) % 150000));
    good();
}

/* Ranks that go away. */

/*
 * The others return before their timeout, with a sentence about who and what; afterwards everything can be
 * destroyed.
 */
static void mourn(lap_world_t *world, lap_status_t expected, const char *word)
{
    lap_group_t *all = lap_world_group(world);
    char name[64];
    snprintf(name, sizeof(name), "rank 2 (pid %d)", world->peers[2].pid);
    expect_failure(lap_group_barrier(all), expected, name, word);
    expect(strncmp(lap_last_error(), "barrier: ", 9) == 0, "the name of the call");
    expect_failure(lap_group_look(all), expected, name, word);
    char all_bytes[RANKS_MAX];
    expect_failure(lap_group_allgather(all, "x", 1, all_bytes), expected, name, word);
    lap_group_t *part = NULL;
    expect_failure(lap_group_split(all, 0, 0, &part), expected, name, word);
    lap_world_destroy(world);
}

static void killed(void)
{
    lap_world_t *world = join();
    use(world);
    if (lap_world_rank(world) == 2) {
        usleep(100000); /* by now the others most likely wait; if not, they hear it as well */
        raise(SIGKILL);
    }
    mourn(world, LAP_ERR_PEER_LOST, "died");
}

static void stopped(void)
{
    lap_world_t *world = join();
    use(world);
    if (lap_world_rank(world) == 2)
        raise(SIGSTOP);
    mourn(world, LAP_ERR_TIMEOUT, "3 s");
}

static void exited(void)
{
    lap_world_t *world = join();
    if (lap_world_rank(world) == 2)
        _exit(1); /* without lap_world_destroy */
    mourn(world, LAP_ERR_PEER_LOST, "died");
}

static int own_barrier(void *context);

static void left(void)
{
    lap_world_t *world = join();
    if (lap_world_rank(world) == 2) {
        lap_world_destroy(world);
        own_barrier(NULL);
        return;
    }
    /* Whether or not its process has ended: it has left, and has not died. */
    while (lap_group_look_for(lap_world_group(world), 2) == LAP_OK)
        usleep(1000);
    expect(lap_group_look(lap_world_group(world)) == LAP_OK, "no failure while nobody waits");
    own_barrier(NULL); /* the first that waits for it makes the group fail for all */
    mourn(world, LAP_ERR_PEER_LOST, "left");
}

static void killed_in_part(void)
{
    lap_world_t *world = join();
    lap_group_t *part = NULL;
    const int rank = lap_world_rank(world);
    expect(lap_group_split(lap_world_group(world), rank % 2, 0, &part) == LAP_OK, "split");
    if (rank == 3)
        raise(SIGKILL);
    if (rank == 1)
        expect_failure(lap_group_barrier(part), LAP_ERR_PEER_LOST, "rank 1 (rank 3 of the world",
                       "died");
    else
        expect(lap_group_barrier(part) == LAP_OK, "a part without it to go on");
    lap_group_destroy(part);
    lap_world_destroy(world);
}

/* Ranks that do not get as far as a world. */

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
    not_met(LAP_ERR_TIMEOUT, "within the timeout of rank 1", ": 3");
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
    not_met(LAP_ERR_MISMATCH, "rank 1 says there are 4 ranks", "rank 0 says 3");
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
    int fd = -1, dir = -1;
    while ((dir = lap_private_dir_look(getenv("LAP_DIR"))) < 0)
        usleep(1000);
    const struct sockaddr_un address = lap_private_dir_socket(dir);
    expect(lap_socket_open(&fd) == LAP_OK, "a socket");
    while (connect(fd, (const struct sockaddr *)&address, sizeof(address)) != 0)
        usleep(1000);
    close(dir);
    return fd;
}

/* Sends a message without a byte, but with many descriptors. */
static void send_nothing(int fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(LAP_MESSAGE_FDS * sizeof(int))];
    } control = {0};
    struct iovec part = {.iov_base = &control, .iov_len = 0};
    struct msghdr header = {.msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(LAP_MESSAGE_FDS * sizeof(int));
    for (size_t i = 0; i < LAP_MESSAGE_FDS; i++)
        memcpy(CMSG_DATA(rights) + i * sizeof(int), &(int){STDOUT_FILENO}, sizeof(int));
    expect(sendmsg(fd, &header, MSG_NOSIGNAL) == 0, "a message of nothing");
}

static void empty_message(void)
{
    if (my_rank == 1) {
        const int fd = reach_host();
        send_nothing(fd);
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

/* Says hello as a rank does, and is killed. */
static void greet_and_die(void)
{
    const int heap = STDOUT_FILENO; /* any descriptor will do */
    const int fd = reach_host();
    lap_message_t hello = lap_message_make(LAP_MESSAGE_HELLO);
    hello.rank = my_rank;
    hello.size = my_size;
    hello.pid = (int)getpid();
    hello.left_ns = UINT64_MAX;
    expect(lap_message_send(fd, &hello, &heap, 1, NULL) == LAP_OK, "a hello");
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

/* Worlds with a caller's own ranks. */

/* A barrier over the shared memory; every rank calls it in the same order. */
static int own_barrier(void *context)
{
    (void)context;
    const int generation = atomic_load(&shared->generation);
    if (atomic_fetch_add(&shared->arrived, 1) == my_size - 1) {
        atomic_store(&shared->arrived, 0);
        atomic_fetch_add(&shared->generation, 1);
    }
    while (atomic_load(&shared->generation) == generation)
        usleep(100);
    return 0;
}

static int own_allgather(void *context, const void *mine, size_t bytes, void *all)
{
    const int rank = my_rank, size = my_size;
    if (bytes > sizeof(shared->cards[0]))
        return -1;
    memcpy(shared->cards[rank], mine, bytes);
    own_barrier(context);
    for (int r = 0; r < size; r++)
        memcpy((char *)all + (size_t)r * bytes, shared->cards[r], bytes);
    return own_barrier(context);
}

static int broken_barrier(void *context)
{
    own_barrier(context);
    return 17;
}

static int broken_allgather(void *context, const void *mine, size_t bytes, void *all)
{
    own_allgather(context, mine, bytes, all);
    return 18;
}

/* Makes the cards of the last rank say that it runs on another machine. */
static int far_allgather(void *context, const void *mine, size_t bytes, void *all)
{
    const int rank = my_rank, size = my_size;
    char card[4096], name[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    expect(file && fgets(name, sizeof(name), file), "a boot id");
    fclose(file);
    name[strcspn(name, "\n")] = '\0';
    memcpy(card, mine, bytes);
    char *id = memmem(card, bytes, name, strlen(name));
    expect(id != NULL, "the boot id in the card");
    if (rank == size - 1)
        id[0] = 'x';
    return own_allgather(context, card, bytes, all);
}

static lap_bootstrap_t own_bootstrap(void)
{
    lap_bootstrap_t bootstrap = LAP_BOOTSTRAP_INIT;
    unsetenv("LAP_DIR");
    setenv("XDG_RUNTIME_DIR", base, 1);
    bootstrap.rank = my_rank;
    bootstrap.nranks = my_size;
    bootstrap.allgather = own_allgather;
    bootstrap.barrier = own_barrier;
    return bootstrap;
}

static void with_callbacks(void)
{
    lap_bootstrap_t bootstrap = own_bootstrap();
    lap_world_t *world = NULL;
    for (int i = 0; i < 3; i++) {
        expect(lap_world_create_with(&bootstrap, NULL, &world) == LAP_OK, "a world by callbacks");
        use(world);
        use_regions(world);
        lap_world_destroy(world);
    }
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    options.transport = my_rank == 0 ? "tcp" : NULL;
    for (int i = 0; i < 2; i++) {
        bootstrap.allgather = i == 0 ? own_allgather : far_allgather;
        expect(lap_world_create_with(&bootstrap, i == 0 ? &options : NULL, &world) == LAP_OK,
               "a world by callbacks over TCP");
        expect(my_size == 1 || world->wire, "with a wire");
        use(world);
        lap_world_destroy(world);
    }
}

static void with_bad_callbacks(void)
{
    lap_bootstrap_t bootstrap = own_bootstrap();
    lap_world_t *world = NULL;
    bootstrap.barrier = broken_barrier;
    expect_failure(lap_world_create_with(&bootstrap, NULL, &world), LAP_ERR_SYSTEM, "barrier",
                   "17");
    bootstrap = own_bootstrap();
    bootstrap.allgather = broken_allgather;
    expect_failure(lap_world_create_with(&bootstrap, NULL, &world), LAP_ERR_SYSTEM, "allgather",
                   "18");
    bootstrap = own_bootstrap();
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    options.timeout_s = bootstrap.rank == 1 ? -4 : 0;
    expect_failure(lap_world_create_with(&bootstrap, &options, &world), LAP_ERR_INVALID,
                   "timeout_s", "-4");
    bootstrap.nranks = 0;
    expect_failure(lap_world_create_with(&bootstrap, NULL, &world), LAP_ERR_INVALID, "nranks", "0");
    bootstrap = own_bootstrap();
    bootstrap.rank = 9;
    expect_failure(lap_world_create_with(&bootstrap, NULL, &world), LAP_ERR_INVALID, "rank", "9");
    bootstrap = own_bootstrap();
    bootstrap.barrier = NULL;
    expect_failure(lap_world_create_with(&bootstrap, NULL, &world), LAP_ERR_INVALID, "barrier",
                   "NULL");
    bootstrap.size = 3;
    expect_failure(lap_world_create_with(&bootstrap, NULL, &world), LAP_ERR_INVALID, "size", "3");
    expect(!world, "nothing written on failure");
}

/* Cases that need something of their own. */

static void test_two_jobs(void)
{
    char dirs[2][96];
    pid_t pids[6];
    meeting_dir(dirs[0], sizeof(dirs[0]), "job-a");
    meeting_dir(dirs[1], sizeof(dirs[1]), "job-b");
    for (int i = 0; i < 6; i++)
        pids[i] = start_rank(i / 2, 3, dirs[i % 2], "20", slow_start);
    bool well = true;
    for (int i = 0; i < 6; i++)
        well = ended_well(pids[i]) && well;
    tap_ok(well, "two jobs at once do not meet");
    tap_ok(count_entries(base) == 2, "nothing is left of them");
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
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
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
        const int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);
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
    snprintf(base, sizeof(base), "/tmp/lap-test-XXXXXX");
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!mkdtemp(base) || shared == MAP_FAILED)
        return 1;
    const int sizes[] = {1, 2, 3, 16};
    for (int i = 0; i < 4; i++)
        run_case("a world", 0, sizes[i], "20", -1, good);
    run_case("ranks that come late", 0, 5, "20", -1, slow_start);
    run_case("worlds one after another", 0, 3, "20", -1, again_and_again);
    test_two_jobs();
    run_case("a rank killed in a barrier", 0, 4, "20", 2, killed);
    run_case("a rank stopped in a barrier", 0, 4, "3", 2, stopped);
    run_case("a rank that exits", 0, 4, "20", 2, exited);
    run_case("a rank that leaves", 0, 4, "20", -1, left);
    run_case("a rank killed in a part of the world", 0, 4, "20", 3, killed_in_part);
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
    run_case("a message of nothing, with descriptors", 0, 2, "20", -1, empty_message);
    run_case("connections that say nothing", 0, 3, "10", -1, silent_connections);
    run_case("a connection that says nothing instead of ranks", 0, 3, "3", -1, silent_and_alone);
    run_case("a world by callbacks", 0, 3, "20", -1, with_callbacks);
    run_case("a world of one by callbacks", 0, 1, "20", -1, with_callbacks);
    run_case("callbacks that fail", 0, 3, "20", -1, with_bad_callbacks);
    test_found_dirs();
    test_stranger();
    test_kept_files();
    tap_ok(rmdir(base) == 0, "the directory of this test is empty at the end");
    return tap_done();
}
