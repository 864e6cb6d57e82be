/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that a test forks, with LAP_* set by hand. Each of them checks that it has as many open
 * descriptors at the end as at the beginning, and each case that nothing stays in the directory
 * where the ranks met.
 */
#ifndef LAP_TEST_CORE_FORKED_H
#define LAP_TEST_CORE_FORKED_H

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/world.h"
#include "rank_environment.h"
#include "tap.h"
#include "util/clock.h"

#define RANKS_MAX 16

static char base[64]; /* private to this run */

/* In memory shared by all ranks of a case. */
typedef struct shared {
    _Atomic int arrived, generation;
    char records[RANKS_MAX][4096];
    char sentences[RANKS_MAX][1024];
    int pids[RANKS_MAX];
} shared_t;

static shared_t *shared;
static int my_rank, my_size; /* in a rank, as it was started */

/* In a rank: what does not hold ends it with a failing status. */
static inline void expect(bool held, const char *what)
{
    if (held)
        return;
    printf("# pid %d: expected %s; last error: %s\n", (int)getpid(), what, lap_last_error());
    fflush(stdout);
    _exit(1);
}

static inline void expect_failure(lap_status_t status, lap_status_t expected, const char *word,
                                  const char *word2)
{
    expect(status == expected, lap_status_string(expected));
    expect(strstr(lap_last_error(), word) != NULL, word);
    expect(strstr(lap_last_error(), word2) != NULL, word2);
}

static inline int count_entries(const char *path)
{
    DIR *dir = opendir(path);
    int count = 0;
    while (dir && readdir(dir))
        count++;
    if (dir)
        closedir(dir);
    return dir ? count : -1;
}

static inline pid_t start_rank(int rank, int size, const char *dir, const char *timeout,
                               void (*fn)(void))
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    my_rank = rank;
    my_size = size;
    alarm(30); /* a rank that hangs is a failure, not a hanging test */
    set_rank_environment(rank, size, timeout);
    setenv("LAP_DIR", dir, 1);
    int before = count_entries("/proc/self/fd");
    fn();
    expect(count_entries("/proc/self/fd") == before, "as many open descriptors as before");
    _exit(0); /* a leak checker at the end of a hundred processes would take minutes */
}

static inline bool ended_well(pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(status))
        tap_note("pid %d ended by signal %d", (int)pid, WTERMSIG(status));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static inline void meeting_dir(char *dir, size_t bytes, const char *name)
{
    snprintf(dir, bytes, "%s/%s", base, name);
}

/*
 * Runs ranks `from` to size - 1 and tells whether all ended well; `lost`, if any, must have been
 * killed.
 */
static inline void run_case(const char *name, int from, int size, const char *timeout, int lost,
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

static inline lap_world_t *join(void)
{
    lap_world_t *world = NULL;
    expect(lap_world_create(NULL, &world) == LAP_OK, "a world");
    return world;
}

static inline void use(lap_world_t *world)
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
static inline void use_regions(lap_world_t *world)
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
    /* Rank 0 also holds the control page. */
    expect(rank == 0 || file.st_blocks == 0, "an empty heap");
}

static inline void good(void)
{
    lap_world_t *world = join();
    use(world);
    use_regions(world);
    lap_world_destroy(world);
}

/* What the cases share; false: there is none of it. */
static inline bool forked_begin(void)
{
    snprintf(base, sizeof(base), "/tmp/lap-test-XXXXXX");
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return mkdtemp(base) && shared != MAP_FAILED;
}

static inline int forked_end(void)
{
    tap_ok(rmdir(base) == 0, "the directory of this test is empty at the end");
    return tap_done();
}

#endif
