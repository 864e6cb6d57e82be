/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks report to their launcher: the same is one line with the ranks that say so, and what differs
 * stays. The sentences are those of ranks that lost a peer.
 */
#include "failures.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/job.h"
#include "tap.h"

#define RANKS 12

static char dir[] = "/tmp/lap-failures-XXXXXX";
static lap_failures_t box;

static void report_as(const char *name, int rank, const char *text)
{
    lap_failure_t failure = {.rank = rank};
    snprintf(failure.name, sizeof(failure.name), "%s", name);
    snprintf(failure.text, sizeof(failure.text), "%s", text);
    tap_ok(lap_failure_send(dir, &failure), "rank %d reports", rank);
}

static void report(int rank, const char *text)
{
    report_as("lap test", rank, text);
}

/* The next line is this one; "": there is none. */
static void expect(const char *line)
{
    char found[LAP_FAILURES_LINE] = "";
    (void)lap_failures_read(&box);
    if (!lap_failures_next(&box, found))
        box.count = 0;
    tap_ok(strcmp(found, line) == 0, "'%s'", line);
    if (strcmp(found, line) != 0)
        tap_note("it is '%s'", found);
}

static void check_same(void)
{
    report(3, "peer lost: rank 2 (pid 7) has died");
    report(0, "peer lost: rank 2 (pid 7) has died");
    report(1, "peer lost: rank 2 (pid 7) has died");
    expect("lap test: ranks 0, 1, 3: peer lost: rank 2 (pid 7) has died");
    expect("");
    for (int r = 0; r < RANKS; r++)
        if (r != 5 && r != 7)
            report(r, "timeout: it is late");
    expect("lap test: ranks 0-4, 6, 8-11: timeout: it is late");
    expect("");
    report(4, "no memory");
    expect("lap test: rank 4: no memory");
    expect("");
}

/* Word by word the same, although each rank names itself. */
static void check_words(void)
{
    report(0, "the ranks disagree: rank 0 says --lr = 1, rank 1 says --lr = 2");
    report(1, "the ranks disagree: rank 0 says --lr = 1, rank 1 says --lr = 2");
    expect("lap test: ranks 0, 1: the ranks disagree: rank 0 says --lr = 1, rank 1 says --lr = 2");
    expect("");
}

static void check_own_names(void)
{
    report(0, "peer lost: rank 2 (pid 7) has died; rank 0 waited in ag_gemm, step 9, of rank 2");
    report(1, "peer lost: rank 2 (pid 7) has died; rank 1 waited in ag_gemm, step 9, of rank 2");
    report(11, "peer lost: rank 2 (pid 7) has died; rank 11 waited in ag_gemm, step 9, of rank 2");
    expect("lap test: ranks 0, 1, 11: peer lost: rank 2 (pid 7) has died; each waited in ag_gemm, "
           "step 9, of rank 2");
    expect("");
}

/* Nothing is lost: what they have in common comes once, then the rest of each. */
static void check_rest(void)
{
    report(0,
           "peer lost: rank 2 (pid 7) has died; rank 0 waited in ag_gemm, step 8; it has not come");
    report(1,
           "peer lost: rank 2 (pid 7) has died; rank 1 waited in ag_gemm, step 9; it has not come");
    report(3,
           "peer lost: rank 2 (pid 7) has died; rank 3 waited in ag_gemm, step 9; it has not come");
    report(4, "peer lost: rank 2 (pid 7) has died");
    report(5, "timeout: rank 2 (pid 7) is late; rank 5 waited in ag_gemm, step 9; it has not come");
    expect("lap test: ranks 0, 1, 3, 4: peer lost: rank 2 (pid 7) has died");
    expect("lap test: rank 0 waited in ag_gemm, step 8; it has not come");
    expect("lap test: ranks 1, 3: each waited in ag_gemm, step 9; it has not come");
    expect("lap test: rank 5: timeout: rank 2 (pid 7) is late; rank 5 waited in ag_gemm, step 9; "
           "it has not come");
    expect("");
    report(0, "peer lost: rank 2 has died; nobody knows why");
    report(1, "peer lost: rank 2 has died; somebody does");
    expect("lap test: ranks 0, 1: peer lost: rank 2 has died");
    expect("lap test: rank 0: nobody knows why");
    expect("lap test: rank 1: somebody does");
    expect("");
}

/* In groups a rank has other numbers: who died is the same. */
static void check_groups(void)
{
    report(1,
           "peer lost: rank 1 (rank 2 of the world, pid 7) has died; rank 0 (rank 1 of the world) "
           "waited for rank 1 (rank 2 of the world)");
    report(3,
           "peer lost: rank 0 (rank 2 of the world, pid 7) has died; rank 1 (rank 3 of the world) "
           "waited for rank 0 (rank 2 of the world)");
    expect("lap test: ranks 1, 3: peer lost: rank 2 (pid 7) has died; each waited for rank 2");
    expect("");
    report(1, "peer lost: rank 1 (rank 2 of the world) has died");
    report(2, "peer lost: rank 1 (rank 3 of the world) has died");
    expect("lap test: rank 1: peer lost: rank 1 (rank 2 of the world) has died");
    expect("lap test: rank 2: peer lost: rank 1 (rank 3 of the world) has died");
    expect("");
}

/* What one rank says of itself, and the others say of it. */
static void check_origin(void)
{
    report(0, "out of memory: rank 1: no memory for a trace");
    report(1, "out of memory: no memory for a trace");
    report(2, "out of memory: rank 0 (rank 1 of the world): no memory for a trace");
    report(3, "out of memory: rank 1: no memory for a trace; rank 3 was about to call ag_gemm");
    report(4, "out of memory: rank 5: no memory for a trace");
    expect("lap test: ranks 0-3: out of memory: rank 1: no memory for a trace");
    expect("lap test: rank 3 was about to call ag_gemm");
    expect("lap test: rank 4: out of memory: rank 5: no memory for a trace");
    expect("");
    report(1, "timeout: rank 0 (rank 1 of the world");
    report(2, "timeout: rank 1 (rank 2 of the world");
    expect("lap test: ranks 1, 2: timeout: each");
    expect("");
    report(6, "no colon");
    expect("lap test: rank 6: no colon");
    expect("");
}

static void check_others(void)
{
    report(0, "no memory: rank 1 has none");
    report(1, "no memory: rank 0 has none");
    report_as("lap other", 2, "no memory: rank 1 has none");
    expect("lap test: rank 0: no memory: rank 1 has none");
    expect("lap test: rank 1: no memory: rank 0 has none");
    expect("lap other: rank 2: no memory: rank 1 has none");
    expect("");
    report(RANKS, "no memory"); /* of a larger world that a rank has started by hand */
    expect("lap test: rank 12: no memory");
    expect("");
    report(-1, "no such rank");
    tap_ok(lap_job_send(dir, "short", 5), "somebody else tells something");
    expect("");
}

/* More than a box has room for: the rest comes afterwards. */
static void check_many(void)
{
    lap_failures_t small;
    lap_outbox_t outbox = {0};
    char text[256] = "";
    int ends[2];
    lap_failures_close(&box);
    lap_failures_open(&small, dir, 2);
    for (int i = 0; i < 5; i++)
        report(i % 2, "again");
    tap_ok(lap_failures_read(&small) && lap_failures_wait_ms(&small, 7) == 0,
           "a full box is not waited for");
    tap_ok(lap_failures_print(&small, &outbox) == 5, "all of them are printed");
    const int kept = dup(STDERR_FILENO);
    tap_ok(pipe(ends) == 0 && dup2(ends[1], STDERR_FILENO) >= 0, "to a pipe");
    while (lap_outbox_fd(&outbox) >= 0)
        (void)lap_outbox_write(&outbox);
    dup2(kept, STDERR_FILENO);
    tap_ok(read(ends[0], text, sizeof(text) - 1) > 0 &&
               strcmp(text, "lap test: ranks 0, 1: again\nlap test: ranks 0, 1: again\n"
                            "lap test: rank 0: again\n") == 0,
           "... as lines");
    close(ends[0]);
    close(ends[1]);
    close(kept);
    lap_failures_close(&small);
}

/*
 * As many ranks as a job may have, and each says something else, at length. The bound is far from what this
 * takes, and from what it takes to compare each with each.
 */
static void check_all_differ(void)
{
    enum { MANY = 1024 };
    static char line[LAP_FAILURES_LINE], expected[LAP_FAILURES_LINE];
    lap_failures_t large;
    int sent = 0, right = 0;
    lap_failures_open(&large, dir, MANY);
    for (int rank = 0; rank < MANY; rank++) {
        lap_failure_t one = {.rank = rank, .name = "lap test"};
        snprintf(one.text, sizeof(one.text), "timeout: rank %d is late; %01900d", rank ^ 1, rank);
        sent += lap_failure_send(dir, &one);
        (void)lap_failures_read(&large);
    }
    tap_ok(sent == MANY && large.count == MANY, "%d ranks report", MANY);
    const clock_t begin = clock();
    for (int rank = 0; rank < MANY && lap_failures_next(&large, line); rank++) {
        snprintf(expected, sizeof(expected), "lap test: rank %d: timeout: rank %d is late; %01900d",
                 rank, rank ^ 1, rank);
        right += strcmp(line, expected) == 0;
    }
    const double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    tap_ok(right == MANY && !lap_failures_next(&large, line), "each has its line");
    tap_ok(seconds < 4, "... without comparing each with each");
    tap_note("%.2f s of processor time", seconds);
    lap_failures_close(&large);
}

int main(void)
{
    if (!mkdtemp(dir)) /* of this user, as that of a launcher is */
        return 1;
    const lap_failure_t nobody = {.rank = 0};
    tap_ok(!lap_failure_send(dir, &nobody), "without a launcher a rank prints by itself");
    lap_failures_open(&box, dir, RANKS);
    tap_ok(lap_failures_wait_ms(&box, -1) == -1 && lap_failures_wait_ms(&box, 3) == 3,
           "nothing is printed yet");
    report(0, "x");
    tap_ok(lap_failures_read(&box) && lap_failures_wait_ms(&box, -1) > 1 &&
               lap_failures_wait_ms(&box, 1) == 1,
           "others may tell the same for a while");
    expect("lap test: rank 0: x");
    expect("");
    check_same();
    check_words();
    check_own_names();
    check_rest();
    check_groups();
    check_origin();
    check_others();
    check_many();
    check_all_differ();
    rmdir(dir);
    return tap_done();
}
