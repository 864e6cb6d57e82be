/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks tell their launcher: the same is one line with the ranks that say so, and what differs
 * stays. The sentences are those of ranks that lost a peer.
 */
#include "told.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/job.h"
#include "tap.h"

#define RANKS 12

static char dir[] = "/tmp/lap-told-XXXXXX";
static lap_told_box_t box;

static void tell_as(const char *name, int rank, const char *text)
{
    lap_told_t told = {.rank = rank};
    snprintf(told.name, sizeof(told.name), "%s", name);
    snprintf(told.text, sizeof(told.text), "%s", text);
    tap_ok(lap_told_send(dir, &told), "rank %d tells", rank);
}

static void tell(int rank, const char *text)
{
    tell_as("lap test", rank, text);
}

/* The next line is this one; "": there is none. */
static void expect(const char *line)
{
    char found[LAP_TOLD_LINE] = "";
    (void)lap_told_read(&box);
    if (!lap_told_next(&box, found))
        box.count = 0;
    tap_ok(strcmp(found, line) == 0, "'%s'", line);
    if (strcmp(found, line) != 0)
        tap_note("it is '%s'", found);
}

static void check_same(void)
{
    tell(3, "peer lost: rank 2 (pid 7) has died");
    tell(0, "peer lost: rank 2 (pid 7) has died");
    tell(1, "peer lost: rank 2 (pid 7) has died");
    expect("lap test: ranks 0, 1, 3: peer lost: rank 2 (pid 7) has died");
    expect("");
    for (int r = 0; r < RANKS; r++)
        if (r != 5 && r != 7)
            tell(r, "timeout: it is late");
    expect("lap test: ranks 0-4, 6, 8-11: timeout: it is late");
    expect("");
    tell(4, "no memory");
    expect("lap test: rank 4: no memory");
    expect("");
}

/* Word by word the same, although each rank names itself. */
static void check_words(void)
{
    tell(0, "the ranks disagree: rank 0 says --lr = 1, rank 1 says --lr = 2");
    tell(1, "the ranks disagree: rank 0 says --lr = 1, rank 1 says --lr = 2");
    expect("lap test: ranks 0, 1: the ranks disagree: rank 0 says --lr = 1, rank 1 says --lr = 2");
    expect("");
}

static void check_own_names(void)
{
    tell(0, "peer lost: rank 2 (pid 7) has died; rank 0 waited in ag_gemm, step 9, of rank 2");
    tell(1, "peer lost: rank 2 (pid 7) has died; rank 1 waited in ag_gemm, step 9, of rank 2");
    tell(11, "peer lost: rank 2 (pid 7) has died; rank 11 waited in ag_gemm, step 9, of rank 2");
    expect("lap test: ranks 0, 1, 11: peer lost: rank 2 (pid 7) has died; each waited in ag_gemm, "
           "step 9, of rank 2");
    expect("");
}

/* Nothing is lost: what they have in common comes once, then the rest of each. */
static void check_rest(void)
{
    tell(0,
         "peer lost: rank 2 (pid 7) has died; rank 0 waited in ag_gemm, step 8; it has not come");
    tell(1,
         "peer lost: rank 2 (pid 7) has died; rank 1 waited in ag_gemm, step 9; it has not come");
    tell(3,
         "peer lost: rank 2 (pid 7) has died; rank 3 waited in ag_gemm, step 9; it has not come");
    tell(4, "peer lost: rank 2 (pid 7) has died");
    tell(5, "timeout: rank 2 (pid 7) is late; rank 5 waited in ag_gemm, step 9; it has not come");
    expect("lap test: ranks 0, 1, 3, 4: peer lost: rank 2 (pid 7) has died");
    expect("lap test: rank 0 waited in ag_gemm, step 8; it has not come");
    expect("lap test: ranks 1, 3: each waited in ag_gemm, step 9; it has not come");
    expect("lap test: rank 5: timeout: rank 2 (pid 7) is late; rank 5 waited in ag_gemm, step 9; "
           "it has not come");
    expect("");
    tell(0, "peer lost: rank 2 has died; nobody knows why");
    tell(1, "peer lost: rank 2 has died; somebody does");
    expect("lap test: ranks 0, 1: peer lost: rank 2 has died");
    expect("lap test: rank 0: nobody knows why");
    expect("lap test: rank 1: somebody does");
    expect("");
}

/* In groups a rank has other numbers: who died is the same. */
static void check_groups(void)
{
    tell(1, "peer lost: rank 1 (rank 2 of the world, pid 7) has died; rank 0 (rank 1 of the world) "
            "waited for rank 1 (rank 2 of the world)");
    tell(3, "peer lost: rank 0 (rank 2 of the world, pid 7) has died; rank 1 (rank 3 of the world) "
            "waited for rank 0 (rank 2 of the world)");
    expect("lap test: ranks 1, 3: peer lost: rank 2 (pid 7) has died; each waited for rank 2");
    expect("");
    tell(1, "peer lost: rank 1 (rank 2 of the world) has died");
    tell(2, "peer lost: rank 1 (rank 3 of the world) has died");
    expect("lap test: rank 1: peer lost: rank 1 (rank 2 of the world) has died");
    expect("lap test: rank 2: peer lost: rank 1 (rank 3 of the world) has died");
    expect("");
}

/* What one rank says of itself, and the others say of it. */
static void check_origin(void)
{
    tell(0, "out of memory: rank 1: no memory for a trace");
    tell(1, "out of memory: no memory for a trace");
    tell(2, "out of memory: rank 0 (rank 1 of the world): no memory for a trace");
    tell(3, "out of memory: rank 1: no memory for a trace; rank 3 was about to call ag_gemm");
    tell(4, "out of memory: rank 5: no memory for a trace");
    expect("lap test: ranks 0-3: out of memory: rank 1: no memory for a trace");
    expect("lap test: rank 3 was about to call ag_gemm");
    expect("lap test: rank 4: out of memory: rank 5: no memory for a trace");
    expect("");
    tell(1, "timeout: rank 0 (rank 1 of the world");
    tell(2, "timeout: rank 1 (rank 2 of the world");
    expect("lap test: ranks 1, 2: timeout: each");
    expect("");
    tell(6, "no colon");
    expect("lap test: rank 6: no colon");
    expect("");
}

static void check_others(void)
{
    tell(0, "no memory: rank 1 has none");
    tell(1, "no memory: rank 0 has none");
    tell_as("lap other", 2, "no memory: rank 1 has none");
    expect("lap test: rank 0: no memory: rank 1 has none");
    expect("lap test: rank 1: no memory: rank 0 has none");
    expect("lap other: rank 2: no memory: rank 1 has none");
    expect("");
    tell(RANKS, "no memory"); /* of a larger world that a rank has started by hand */
    expect("lap test: rank 12: no memory");
    expect("");
    tell(-1, "no such rank");
    tap_ok(lap_job_tell(dir, "short", 5), "somebody else tells something");
    expect("");
}

/* More than a box has room for: the rest comes afterwards. */
static void check_many(void)
{
    lap_told_box_t small;
    lap_outbox_t outbox = {0};
    char text[256] = "";
    int ends[2];
    lap_told_close(&box);
    lap_told_open(&small, dir, 2);
    for (int i = 0; i < 5; i++)
        tell(i % 2, "again");
    tap_ok(lap_told_read(&small) && lap_told_wait_ms(&small, 7) == 0,
           "a full box is not waited for");
    tap_ok(lap_told_print(&small, &outbox) == 5, "all of them are printed");
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
    lap_told_close(&small);
}

/*
 * As many ranks as a job may have, and each says something else, at length. The bound is far from what this
 * takes, and from what it takes to compare each with each.
 */
static void check_all_differ(void)
{
    enum { MANY = 1024 };
    static char line[LAP_TOLD_LINE], expected[LAP_TOLD_LINE];
    lap_told_box_t large;
    int told = 0, right = 0;
    lap_told_open(&large, dir, MANY);
    for (int rank = 0; rank < MANY; rank++) {
        lap_told_t one = {.rank = rank, .name = "lap test"};
        snprintf(one.text, sizeof(one.text), "timeout: rank %d is late; %01900d", rank ^ 1, rank);
        told += lap_told_send(dir, &one);
        (void)lap_told_read(&large);
    }
    tap_ok(told == MANY && large.count == MANY, "%d ranks tell", MANY);
    const clock_t begin = clock();
    for (int rank = 0; rank < MANY && lap_told_next(&large, line); rank++) {
        snprintf(expected, sizeof(expected), "lap test: rank %d: timeout: rank %d is late; %01900d",
                 rank, rank ^ 1, rank);
        right += strcmp(line, expected) == 0;
    }
    const double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    tap_ok(right == MANY && !lap_told_next(&large, line), "each has its line");
    tap_ok(seconds < 4, "... without comparing each with each");
    tap_note("%.2f s of processor time", seconds);
    lap_told_close(&large);
}

int main(void)
{
    if (!mkdtemp(dir)) /* of this user, as that of a launcher is */
        return 1;
    const lap_told_t nobody = {.rank = 0};
    tap_ok(!lap_told_send(dir, &nobody), "without a launcher a rank prints by itself");
    lap_told_open(&box, dir, RANKS);
    tap_ok(lap_told_wait_ms(&box, -1) == -1 && lap_told_wait_ms(&box, 3) == 3,
           "nothing is told yet");
    tell(0, "x");
    tap_ok(lap_told_read(&box) && lap_told_wait_ms(&box, -1) > 1 && lap_told_wait_ms(&box, 1) == 1,
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
