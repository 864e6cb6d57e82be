/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worlds of processes over TCP that go wrong: a rank is killed at each step on the way to a world,
 * in it and at its end. Everybody else has to return the same failure, with the rank and the cause,
 * long before the timeout. Ranks are forked; of four, two are on each of two hosts.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/hub/hub.h"
#include "core/pass.h"
#include "rank_environment.h"
#include "tap.h"
#include "util/clock.h"

#define RANKS 4
#define SECOND ((uint64_t)1000000000)

/* Where a rank is on its way. A call is a step, and so is its return. */
typedef enum step {
    NOWHERE,
    BEFORE_MEETING,
    AFTER_MEETING,
    GATHER_FIRST,
    PASS_MEMORY,
    GATHER_LAST,
    IN_WORLD,
    IN_PART, /* of the world, in which rank 0 is not */
    AT_END,  /* others have ended their world in order */
    LEAVES,  /* it ends its world in order, before the others do */
} step_t;

static const char *const step_names[] = {"nowhere",
                                         "before the rendezvous",
                                         "after the rendezvous",
                                         "where ranks exchange whether all is well",
                                         "where the ranks of a host pass their memory",
                                         "where all say that they have a wire",
                                         "in the world",
                                         "in a part of the world",
                                         "at the end",
                                         "by leaving"};

typedef struct result {
    lap_status_t status;
    char sentence[LAP_ERROR_TEXT];
    uint64_t took_ns;
} result_t;

/* In memory that all ranks of a case have in common. */
static struct {
    _Atomic bool gone; /* the victim has died */
    _Atomic int ended; /* ranks that have ended their world, or have none */
    result_t results[RANKS];
} * shared;

/* What goes wrong: the victim is killed at a step. */
static step_t fatal;
static int victim;
static bool alone;     /* the victim has a host for itself */
static bool still;     /* it stands still there, until the others have ended */
static bool later;     /* rank 1 comes to rank 0 of its host when another host has failed */
static int hasty = -1; /* this rank has a timeout of its own, of 2 s */
static bool parts;     /* after a barrier of all, ranks but 0 do others among themselves */

static int rank, gathers;

static void reach(step_t step)
{
    if (rank != victim || step != fatal)
        return;
    while (still && atomic_load(&shared->ended) < RANKS - 1)
        lap_sleep_until_ns(lap_now_ns() + SECOND / 1000);
    atomic_store(&shared->gone, true);
    raise(SIGKILL);
}

lap_status_t __real_lap_hub_join(lap_hub_t *, lap_status_t, lap_deadline_t *);
lap_status_t __wrap_lap_hub_join(lap_hub_t *, lap_status_t, lap_deadline_t *);
lap_status_t __real_lap_hub_gather(lap_hub_t *, const void *, size_t, void *, lap_deadline_t *);
lap_status_t __wrap_lap_hub_gather(lap_hub_t *, const void *, size_t, void *, lap_deadline_t *);
lap_status_t __real_lap_pass_run(lap_pass_t *, lap_deadline_t *);
lap_status_t __wrap_lap_pass_run(lap_pass_t *, lap_deadline_t *);
lap_status_t __wrap_lap_hub_join(lap_hub_t *hub, lap_status_t ready, lap_deadline_t *deadline)
{
    reach(BEFORE_MEETING);
    const lap_status_t status = __real_lap_hub_join(hub, ready, deadline);
    reach(AFTER_MEETING);
    return status;
}

lap_status_t __wrap_lap_hub_gather(lap_hub_t *hub, const void *mine, size_t bytes, void *all,
                                   lap_deadline_t *deadline)
{
    static const step_t steps[] = {GATHER_FIRST, GATHER_LAST};
    reach(gathers < 2 ? steps[gathers] : NOWHERE);
    gathers++;
    return __real_lap_hub_gather(hub, mine, bytes, all, deadline);
}

lap_status_t __wrap_lap_pass_run(lap_pass_t *pass, lap_deadline_t *deadline)
{
    lap_deadline_t mine = *deadline;
    reach(PASS_MEMORY);
    if (later && rank < 2)
        mine.at += 2 * (mine.at - mine.seen);
    if (later && rank == 1)
        lap_sleep_until_ns(lap_now_ns() + 2 * SECOND);
    return __real_lap_pass_run(pass, &mine);
}

/* ---- ranks ---- */

/* Rank 0 has nothing to do with what the others do here, but that they talk through it. */
static lap_status_t live_in_part(lap_group_t *all)
{
    lap_group_t *part = NULL;
    LAP_TRY(lap_group_split(all, rank > 0 ? 0 : LAP_NO_GROUP, rank, &part));
    reach(IN_PART);
    lap_status_t status = LAP_OK;
    for (int i = 0; part && status == LAP_OK && i < 100; i++) {
        lap_sleep_until_ns(lap_now_ns() + SECOND / 100);
        status = lap_group_barrier(part);
    }
    lap_group_destroy(part);
    return status;
}

static lap_status_t live(void)
{
    lap_world_t *world = NULL;
    LAP_TRY(lap_world_create(NULL, &world));
    lap_group_t *all = lap_world_group(world);
    lap_status_t status = lap_group_barrier(all);
    if (status == LAP_OK) {
        reach(IN_WORLD);
        if (fatal == AT_END && rank == victim) {
            while (atomic_load(&shared->ended) < RANKS - 2) /* rank 0 ends last */
                lap_sleep_until_ns(lap_now_ns() + SECOND / 1000);
            reach(AT_END);
        }
        if (fatal == IN_WORLD || (fatal == LEAVES && rank != victim))
            status = lap_group_barrier(all);
        if (parts)
            status = live_in_part(all);
    }
    lap_world_destroy(world);
    return status;
}

static void rank_main(int port, const char *timeout_s)
{
    char text[32];
    result_t *result = &shared->results[rank];
    alarm(55); /* a rank that hangs is a failure, not a hanging test */
    set_rank_environment(rank, RANKS, rank == hasty ? "2" : timeout_s);
    snprintf(text, sizeof(text), "%d", alone ? rank == victim : rank / 2);
    setenv("LAP_NODE", text, 1);
    snprintf(text, sizeof(text), "127.0.0.1:%d", port);
    setenv("LAP_MASTER", text, 1);
    const uint64_t began = lap_now_ns();
    result->status = live();
    result->took_ns = lap_now_ns() - began;
    snprintf(result->sentence, sizeof(result->sentence), "%s",
             result->status == LAP_OK ? "" : lap_last_error());
    atomic_fetch_add(&shared->ended, 1);
    _exit(0);
}

/* A port that is free now, and that the kernel gives out to nobody who asks for any. */
static int find_port(void)
{
    static int port;
    for (port = port ? port + 1 : 20000 + (int)(getpid() % 6000) * 2;; port++) {
        int fd = -1, got;
        if (lap_tcp_listen(port, &fd, &got) != LAP_OK)
            continue;
        close(fd);
        return port;
    }
}

/* Runs a case: the others end by themselves, and the victim is killed, if that is its part. */
static void run(const char *timeout_s)
{
    pid_t pids[RANKS];
    const int port = find_port();
    memset(shared, 0, sizeof(*shared));
    fflush(stdout);
    for (rank = 0; rank < RANKS; rank++) {
        pids[rank] = fork();
        if (pids[rank] == 0)
            rank_main(port, timeout_s);
    }
    for (int i = 0; i < RANKS; i++) {
        int status = 0;
        while (waitpid(pids[i], &status, 0) < 0 && errno == EINTR)
            continue;
        const bool killed = i == victim && fatal != NOWHERE && fatal != LEAVES;
        tap_ok(killed ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                      : WIFEXITED(status) && WEXITSTATUS(status) == 0,
               "rank %d %s", i, killed ? "is killed" : "ends");
    }
}

/*
 * Whether all but the victim have returned that status and these words, well before 100 s were
 * over.
 */
static void check(lap_status_t status, const char *words)
{
    for (int i = 0; i < RANKS; i++) {
        const result_t *result = &shared->results[i];
        if (i == victim && fatal != NOWHERE)
            continue;
        const bool held =
            tap_ok(result->status == status && strstr(result->sentence, words) &&
                       result->took_ns < 50 * SECOND,
                   "... rank %d says so: '%s' (%.2f s)", i, words, (double)result->took_ns * 1e-9);
        if (!held)
            tap_note("rank %d: %s: %s", i, lap_status_string(result->status), result->sentence);
    }
}

/* ---- what goes wrong ---- */

static void test_kills(void)
{
    static const int victims[] = {0, 1, 3};
    char words[64];
    for (step_t step = AFTER_MEETING; step <= IN_WORLD; step++) {
        for (size_t i = 0; i < 3; i++) {
            fatal = step;
            victim = victims[i];
            tap_doing("rank %d is killed %s", victim, step_names[step]);
            tap_note("rank %d is killed %s", victim, step_names[step]);
            run("100");
            snprintf(words, sizeof(words), "rank %d ", victim);
            check(LAP_ERR_PEER_LOST, words);
        }
    }
    fatal = NOWHERE;
}

/* Nobody of its host can tell the others: they find it by its connections. */
static void test_kill_alone(void)
{
    alone = true;
    fatal = IN_WORLD;
    victim = 3;
    tap_doing("rank 3, alone on its host, is killed");
    tap_note("rank 3, alone on its host, is killed");
    run("100");
    check(LAP_ERR_PEER_LOST, "rank 3 ");
    alone = false;
    fatal = NOWHERE;
}

/* Who is killed before it comes is not known to anybody: the timeout finds it. */
static void test_absent(void)
{
    fatal = BEFORE_MEETING;
    victim = 2;
    tap_note("rank 2 is killed %s", step_names[fatal]);
    run("2");
    check(LAP_ERR_TIMEOUT, "within 2 s: 2");
    fatal = NOWHERE;
}

/*
 * A rank that stands still is named, and not the one that waits for it; which timeout has counted,
 * and whose it is, is told by all.
 */
static void test_still(void)
{
    static const struct {
        step_t step;
        int hasty, victim;
        const char *words, *time;
    } cases[] = {
        {BEFORE_MEETING, 1, 2,
         "these have not come to 127.0.0.1:", "within 2 s (the timeout of rank 1): 2"},
        {GATHER_FIRST, 2, 1, "rank 1 came to the others but has not answered",
         "within 2 s (the timeout of rank 2)"},
        {PASS_MEMORY, 0, 3, "of 2 ranks of one host these have not passed their memory",
         "in time (the timeout of rank 0 is 2 s): rank 3"},
        {PASS_MEMORY, 1, 2, "of 2 ranks of one host these have not passed their memory",
         "in time (the timeout of rank 1 is 2 s): rank 2"},
        {PASS_MEMORY, 2, 1, "of 2 ranks of one host these have not passed their memory",
         "in time (the timeout of rank 2 is 2 s): rank 1"},
        {PASS_MEMORY, 3, 0, "rank 0", ""}, /* who could send the others what its host knows */
    };
    still = true;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        fatal = cases[i].step;
        hasty = cases[i].hasty;
        victim = cases[i].victim;
        tap_doing("rank %d stands still %s", victim, step_names[fatal]);
        tap_note("rank %d stands still %s, rank %d has a timeout of 2 s", victim, step_names[fatal],
                 hasty);
        run("40");
        check(LAP_ERR_TIMEOUT, cases[i].words);
        check(LAP_ERR_TIMEOUT, cases[i].time);
    }
    hasty = -1;
    fatal = PASS_MEMORY;
    tap_note("rank 3 stands still %s, while rank 0 waits for rank 1 there", step_names[fatal]);
    victim = 3;
    later = true;
    run("2");
    check(LAP_ERR_TIMEOUT, "in time (the timeout of rank 0 is 2 s): rank 3");
    still = later = false;
    fatal = NOWHERE;
}

/* A goodbye is no death, and what comes after it is not missed. */
static void test_goodbye(void)
{
    fatal = LEAVES;
    victim = 2;
    tap_note("rank 2 leaves in order while the others wait for it");
    run("100");
    check(LAP_ERR_PEER_LOST, "has left the group");
    victim = 0;
    tap_note("rank 0 leaves in order while the others wait for it");
    run("100");
    check(LAP_ERR_PEER_LOST, "has left the group");
    victim = 2;
    fatal = AT_END;
    tap_note("rank 2 is killed when the others have ended their world in order");
    run("100");
    check(LAP_OK, "");
    fatal = NOWHERE;
}

/*
 * Ranks but 0 go on among themselves, as long as rank 0 lives, which has left the world in order.
 */
static void test_part(void)
{
    parts = true;
    tap_note("rank 0 leaves in order while the others go on without it");
    run("100");
    check(LAP_OK, "");
    fatal = IN_PART;
    victim = 0;
    tap_note("rank 0 is killed while the others go on without it");
    run("100");
    check(LAP_ERR_PEER_LOST, "ranks of several hosts talk through rank 0, to which the connection");
    victim = 3;
    alone = true; /* only rank 0 knows of it */
    tap_note("another rank is");
    run("100");
    for (int i = 0; i < RANKS; i++) /* rank 0 is not concerned */
        tap_ok(i == victim || shared->results[i].status == (i ? LAP_ERR_PEER_LOST : LAP_OK),
               "... rank %d: %s", i, shared->results[i].sentence);
    parts = alone = false;
    fatal = NOWHERE;
}

/*
 * A rank that is killed where it has made a directory for those of its host leaves that, and
 * nothing in it.
 */
static void remove_folder(const char *folder)
{
    DIR *left = opendir(folder);
    int others = left ? 0 : 1;
    for (struct dirent *entry; left && (entry = readdir(left));)
        if (strncmp(entry->d_name, ".", 1) != 0)
            others += unlinkat(dirfd(left), entry->d_name, AT_REMOVEDIR) != 0;
    if (left)
        closedir(left);
    tap_ok(rmdir(folder) == 0 && others == 0, "killed ranks leave empty directories at most");
}

int main(void)
{
    char folder[] = "/tmp/lap-tcp-XXXXXX";
    if (!mkdtemp(folder) || setenv("TMPDIR", folder, 1) != 0)
        return tap_ok(false, "a folder for the ranks"), tap_done();
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return tap_ok(false, "memory for the ranks"), tap_done();
    test_kills();
    test_kill_alone();
    test_absent();
    test_still();
    test_goodbye();
    test_part();
    remove_folder(folder);
    return tap_done();
}
