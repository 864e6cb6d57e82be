/* SPDX-License-Identifier: Apache-2.0 */
/*
 * More ranks than fit in one poll: 70 processes meet, know each
 * other's pids and memory, and run operators. When one of them is killed, every other one names it.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/world.h"
#include "overlap/suite.h"
#include "rank_environment.h"
#include "tap.h"

enum { RANKS = 70, SHIFT = 10 };

_Static_assert(RANKS > 64 + 3, "the last ranks are looked for with a second poll");

/* What a rank says when it is done; in memory that all share. */
typedef struct answer {
    lap_status_t status;
    char text[1024];
} answer_t;

static answer_t *answers;
static char base[64];

/* Something that a rank expects; false: the answer says what. */
static bool expect(answer_t *answer, bool held, const char *what)
{
    if (!held) {
        answer->status = LAP_ERR_INTERNAL;
        snprintf(answer->text, sizeof(answer->text), "expected %s; last error: %.800s", what,
                 lap_last_error());
    }
    return held;
}

/* ---- what ranks do ---- */

/* Every rank reads what every other one wrote into memory of its own. */
static bool read_all(lap_world_t *world, answer_t *answer)
{
    const int rank = lap_world_rank(world);
    lap_group_t *all = lap_world_group(world);
    lap_region_t regions[RANKS];
    uint64_t handles[RANKS];
    bool right = true;
    if (!expect(answer, lap_region_create(world, 4096, RANKS, &regions[rank]) == LAP_OK, "memory"))
        return false;
    *(int *)regions[rank].data = 1000 + rank;
    if (!expect(answer,
                lap_group_allgather(all, &regions[rank].handle, sizeof(uint64_t), handles) ==
                    LAP_OK,
                "an allgather of handles"))
        return false;
    for (int r = 0; r < RANKS; r++) {
        if (r != rank && lap_region_map(world, r, handles[r], 4096, &regions[r]) != LAP_OK)
            return expect(answer, false, "a peer's memory");
        right = right && *(int *)regions[r].data == 1000 + r;
    }
    expect(answer, right, "what each rank wrote in the memory of that rank");
    right = expect(answer, lap_group_barrier(all) == LAP_OK, "a barrier") && right;
    for (int r = 0; r < RANKS; r++)
        lap_region_unmap(world, &regions[r]);
    return right;
}

static bool know_all(lap_world_t *world, answer_t *answer)
{
    const int pid = (int)getpid();
    int pids[RANKS];
    bool right = lap_group_allgather(lap_world_group(world), &pid, sizeof(pid), pids) == LAP_OK;
    for (int r = 0; r < RANKS && right; r++)
        right = world->peers[r].pid == pids[r];
    return expect(answer, right, "the pid of every rank") && read_all(world, answer);
}

/* An operator that gathers and one that sums, with an empty shard among them. */
static void run_operators(lap_world_t *world, answer_t *answer)
{
    static const test_method_t methods[] = {{LAP_AG_GEMM, "direct", 0, 1, 0, 1},
                                            {LAP_GEMM_RS, "serial", 0, 0, 0, 0}};
    const test_flavour_t plain = test_plain();
    const test_shape_t shape = {RANKS - 1, RANKS, RANKS};
    lap_group_t *group = lap_world_group(world);
    if (!know_all(world, answer))
        return;
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
        lap_op_t *op = test_op(group, NULL, &methods[i], &plain, &shape);
        const test_call_t call =
            test_call(group, &methods[i], &plain, &shape, shape.m, 3 + (uint64_t)i, true);
        expect(answer, op && test_run(op, call) == 0, methods[i].method);
        lap_op_destroy(op);
    }
}

/* One rank dies, and the others wait for it. */
static void lose(lap_world_t *world, lap_group_t *group, int lost, answer_t *answer)
{
    lap_status_t status = lap_group_barrier(group);
    if (lap_world_rank(world) == lost)
        raise(SIGKILL);
    for (int i = 0; i < 1000 && status == LAP_OK; i++)
        status = lap_group_barrier(group);
    answer->status = status;
    snprintf(answer->text, sizeof(answer->text), "%s", lap_last_error());
}

static void lose_66(lap_world_t *world, answer_t *answer)
{
    lose(world, lap_world_group(world), 66, answer);
}

/* It goes in good order: nobody says that it has died. */
static void leave_66(lap_world_t *world, answer_t *answer)
{
    if (lap_world_rank(world) != 66)
        lose(world, lap_world_group(world), -1, answer);
    else
        expect(answer, lap_group_barrier(lap_world_group(world)) == LAP_OK, "a barrier");
}

/* In a group of other numbers: its rank 66 is another one of the world. */
static void lose_66_of_group(lap_world_t *world, answer_t *answer)
{
    lap_group_t *group = NULL;
    const int key = (lap_world_rank(world) + SHIFT) % RANKS;
    if (!expect(answer, lap_group_split(lap_world_group(world), 0, key, &group) == LAP_OK,
                "a part"))
        return;
    lose(world, group, 66 - SHIFT, answer);
    lap_group_destroy(group);
}

/* ---- starting them ---- */

static void be_rank(int rank, void (*fn)(lap_world_t *, answer_t *))
{
    lap_world_t *world = NULL;
    answer_t *answer = &answers[rank];
    alarm(25); /* a rank that hangs is a failure, not a hanging test */
    set_rank_environment(rank, RANKS, "15");
    setenv("LAP_DIR", base, 1);
    if (expect(answer, lap_world_create(NULL, &world) == LAP_OK, "a world"))
        fn(world, answer);
    lap_world_destroy(world);
    fflush(stdout);
    _exit(0);
}

/* Which signal ended a rank; 0: it has ended by itself. */
static int await(pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/*
 * All ranks but `gone`, if any, end by themselves and say `status`, and what became of that one.
 */
static void run_case(const char *name, void (*fn)(lap_world_t *, answer_t *), int gone,
                     int ended_by, lap_status_t status, const char *fate)
{
    pid_t pids[RANKS];
    char expected[128] = "";
    int wrong = 0;
    memset(answers, 0, RANKS * sizeof(*answers));
    fflush(stdout);
    for (int rank = 0; rank < RANKS; rank++) {
        pids[rank] = fork();
        if (pids[rank] == 0)
            be_rank(rank, fn);
    }
    if (gone >= 0)
        snprintf(expected, sizeof(expected), "%s (%spid %d) has %s", "rank 66",
                 gone == 66 ? "" : "rank 56 of the world, ", (int)pids[gone], fate);
    for (int rank = 0; rank < RANKS; rank++) {
        const int signal = await(pids[rank]);
        const answer_t *answer = &answers[rank];
        const bool right = rank == gone ? signal == ended_by && answer->status == LAP_OK
                                        : signal == 0 && answer->status == status &&
                                              strstr(answer->text, expected) != NULL;
        if (!right && wrong++ == 0)
            tap_note("rank %d, expected '%s': signal %d, %s: %s", rank, expected, signal,
                     lap_status_string(answer->status), answer->text);
    }
    tap_ok(wrong == 0, "%s, %d ranks: %d of them do not say so", name, RANKS, wrong);
}

int main(void)
{
    char dir[] = "/tmp/lap-many-XXXXXX";
    void *memory = mmap(NULL, RANKS * sizeof(*answers), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || !mkdtemp(dir))
        return 1;
    answers = memory;
    snprintf(base, sizeof(base), "%s/rendezvous", dir);
    run_case("all know each other and run operators", run_operators, -1, 0, LAP_OK, "");
    run_case("rank 66 is killed", lose_66, 66, SIGKILL, LAP_ERR_PEER_LOST, "died");
    run_case("rank 66 leaves", leave_66, 66, 0, LAP_ERR_PEER_LOST, "left the group");
    run_case("rank 66 of a group is killed", lose_66_of_group, 66 - SHIFT, SIGKILL,
             LAP_ERR_PEER_LOST, "died");
    tap_ok(rmdir(dir) == 0, "nothing is left where they met");
    return tap_done();
}
