/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups over ranks that are threads: collectives, splits, agreement, mismatches, ranks that leave
 * or do not come.
 */
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/status.h"
#include "core/world.h"
#include "tap.h"

static unsigned char pattern(int seed, int rank, size_t i)
{
    return (unsigned char)tap_random((uint64_t)seed * 100 + (uint64_t)rank, i);
}

/* Gathers `bytes` bytes in which every byte depends on rank, place and seed. */
static bool gather_right(lap_group_t *group, size_t bytes, int seed)
{
    const int rank = lap_group_rank(group), size = lap_group_size(group);
    unsigned char *mine = malloc(bytes + 1), *all = malloc((size_t)size * bytes + 1);
    for (size_t i = 0; i < bytes; i++)
        mine[i] = pattern(seed, rank, i);
    bool right = mine && all && lap_group_allgather(group, mine, bytes, all) == LAP_OK;
    for (int r = 0; r < size && right; r++) {
        for (size_t i = 0; i < bytes && right; i++)
            right = all[(size_t)r * bytes + i] == pattern(seed, r, i);
    }
    free(mine);
    free(all);
    return right;
}

static void collectives(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *group = lap_world_group(world);
    tap_ok(lap_group_rank(group) == lap_world_rank(world) &&
               lap_group_size(group) == lap_world_size(world) &&
               lap_group_world_rank(group, lap_world_rank(world)) == lap_world_rank(world) &&
               lap_group_world_rank(group, lap_world_size(world)) == -1,
           "the group of all ranks is the world");
    const size_t sizes[] = {0, 1, 8, 4095, 4096, 4097, 20000};
    bool right = true;
    for (int i = 0; i < 7; i++)
        right = right && gather_right(group, sizes[i], i);
    for (int i = 0; i < 100; i++)
        right = right && gather_right(group, 24, i) && lap_group_barrier(group) == LAP_OK;
    tap_ok(right, "everything is gathered right on rank %d of %d", lap_world_rank(world),
           lap_world_size(world));
    const int rank = lap_world_rank(world), size = lap_world_size(world);
    double numbers[2] = {rank, -4 * rank}, first = 100 + rank;
    tap_success(lap_group_mean(group, numbers, 2), "means of two numbers");
    tap_ok(2 * numbers[0] == size - 1 && numbers[1] == -4 * numbers[0],
           "... are those of all ranks: %g and %g", numbers[0], numbers[1]);
    tap_success(lap_group_broadcast(group, &first, sizeof(first)), "a broadcast");
    tap_ok(first == 100, "... gives rank %d the number of rank 0: %g", rank, first);
}

/* Nobody comes out of a barrier before everybody has come in. */
static void barriers(lap_world_t *world, void *arg)
{
    _Atomic int *count = arg;
    bool right = true;
    const int size = lap_world_size(world);
    for (int i = 1; i <= 50; i++) {
        if (tap_random((uint64_t)lap_world_rank(world), (uint64_t)i) % 8 == 0)
            usleep(200);
        atomic_fetch_add(count, 1);
        right = right && lap_group_barrier(lap_world_group(world)) == LAP_OK &&
                atomic_load(count) >= i * size;
    }
    tap_ok(right, "barriers hold on rank %d", lap_world_rank(world));
}

static void splits(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *all = lap_world_group(world), *half = NULL, *back = NULL, *none = all, *one = NULL;
    const int rank = lap_world_rank(world), size = lap_world_size(world);

    tap_success(lap_group_split(all, rank % 2, 0, &half), "split into even and odd");
    tap_ok(lap_group_rank(half) == rank / 2 && lap_group_size(half) == (size + 1 - rank % 2) / 2 &&
               lap_group_world_rank(half, lap_group_rank(half)) == rank &&
               gather_right(half, 99, 1),
           "ties in key go by rank (rank %d)", rank);
    tap_success(lap_group_split(all, 7, INT_MAX - 2 * rank, &back), "split with all in one");
    tap_ok(lap_group_rank(back) == size - 1 - rank && lap_group_world_rank(back, 0) == size - 1 &&
               gather_right(back, 5000, 2),
           "the key turns the order round (rank %d)", rank);
    tap_success(lap_group_split(all, rank == 1 ? 3 : LAP_NO_GROUP, 0, &none), "only rank 1");
    tap_ok(rank == 1 ? none && lap_group_size(none) == 1 && gather_right(none, 10, 3) : !none,
           "a rank without colour gets no group (rank %d)", rank);
    /* A split of a split, whose ranks are neither those of its parent nor of the world. */
    tap_success(lap_group_split(back, lap_group_rank(back) / 2, 0, &one), "a split of a split");
    tap_ok(gather_right(one, 50, 4), "works too (rank %d)", rank);

    lap_group_t *unchanged = half;
    tap_failure(lap_group_split(all, rank == 2 ? -5 : 0, 0, &unchanged), LAP_ERR_INVALID, "rank 2",
                "-5", NULL);
    tap_ok(unchanged == half, "nothing is written on failure");
    tap_ok(gather_right(all, 8, 5), "the group goes on after a refused split");
    lap_group_destroy(one);
    lap_group_destroy(none);
    lap_group_destroy(back);
    lap_group_destroy(half);
    lap_group_destroy(all); /* belongs to the world: nothing happens */
    tap_ok(gather_right(all, 8, 6), "the group goes on after its parts have ended");
}

static void mismatches(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *group = lap_world_group(world);
    const int rank = lap_world_rank(world);
    char mine[9000] = "", *all = malloc(3 * sizeof(mine));
    tap_failure(lap_group_allgather(group, mine, rank == 1 ? 513 : 512, all), LAP_ERR_MISMATCH,
                "rank 0", "512", "rank 1", "513", NULL);
    tap_failure(lap_group_allgather(group, mine, rank == 2 ? 9000 : 10, all), LAP_ERR_MISMATCH,
                "rank 2", "9000", "10 bytes", NULL);
    lap_status_t status =
        rank == 1 ? lap_group_barrier(group) : lap_group_allgather(group, mine, 4, all);
    tap_failure(status, LAP_ERR_MISMATCH, "barrier", "allgather", "rank 1", NULL);
    tap_ok(gather_right(group, 77, 1), "the group goes on after a mismatch");
    tap_failure(lap_group_allgather(group, NULL, 4, all), LAP_ERR_INVALID, "mine", NULL);
    tap_failure(lap_group_barrier(NULL), LAP_ERR_INVALID, "group", NULL);
    free(all);
}

static void agreements(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *group = lap_world_group(world);
    const int rank = lap_world_rank(world);
    tap_success(lap_group_agree(group, LAP_OK), "all agree that it went well");
    lap_status_t mine =
        rank == 1 ? lap_error(LAP_ERR_NO_MEMORY, "9 bytes asked, 8 available") : LAP_OK;
    lap_status_t status = lap_group_agree(group, mine);
    if (rank == 1)
        tap_ok(status == mine && strcmp(lap_last_error(), "9 bytes asked, 8 available") == 0,
               "who failed keeps its sentence");
    else
        tap_failure(status, LAP_ERR_NO_MEMORY, "rank 1: 9 bytes asked, 8 available", NULL);
    tap_ok(gather_right(group, 7, 1), "the group goes on after a failed agreement");
}

static void leaving(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *group = lap_world_group(world);
    tap_success(lap_group_barrier(group), "all are there");
    if (lap_world_rank(world) == 1)
        return; /* and its world is destroyed */
    tap_failure(lap_group_barrier(group), LAP_ERR_PEER_LOST, "barrier", "rank 1", "left", NULL);
    tap_failure(lap_group_barrier(group), LAP_ERR_PEER_LOST, "rank 1", "left", NULL);
    tap_failure(lap_group_look(group), LAP_ERR_PEER_LOST, "rank 1", NULL);
    lap_group_t *part = NULL;
    tap_failure(lap_group_split(group, 0, 0, &part), LAP_ERR_PEER_LOST, "split", "rank 1", NULL);
    tap_failure(lap_group_agree(group, LAP_OK), LAP_ERR_PEER_LOST, "agreement of the ranks: rank 1",
                NULL);
}

static void leaving_unnoticed(lap_world_t *world, void *arg)
{
    _Atomic int *done = arg;
    lap_group_t *group = lap_world_group(world);
    const int rank = lap_world_rank(world);
    tap_success(lap_group_barrier(group), "all are there");
    if (rank == 1)
        return;
    while (lap_group_look_for(group, 1) == LAP_OK)
        usleep(1000);
    tap_success(lap_group_look(group), "who does not wait for rank 1 does not care that it left");
    tap_success(lap_group_look_for(group, 2 - rank), "nor who waits for another rank");
    tap_failure(lap_group_look_for(group, 1), LAP_ERR_PEER_LOST, "rank 1", "left", NULL);
    atomic_fetch_add(done, 1);
    while (atomic_load(done) < 2) /* the other one is not to leave before it is asked for */
        usleep(1000);
}

/*
 * Ranks 0 and 1 set out together, so that neither is late enough to be blamed itself; rank 2 comes
 * when they have given up.
 */
static void not_coming(lap_world_t *world, void *arg)
{
    _Atomic int *events = arg; /* ranks 0 and 1 set out, and give up */
    lap_group_t *group = lap_world_group(world);
    const bool late = lap_world_rank(world) == 2;
    if (!late)
        atomic_fetch_add(events, 1);
    while (atomic_load(events) < (late ? 4 : 2))
        usleep(1000);
    tap_failure(lap_group_barrier(group), LAP_ERR_TIMEOUT, "barrier", "rank 2", "2 s", NULL);
    atomic_fetch_add(events, 1);
}

static void failing(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *group = lap_world_group(world);
    tap_success(lap_group_barrier(group), "all are there");
    if (lap_world_rank(world) == 1) {
        usleep(50000); /* by now the others most likely wait; if not, they fail all the same */
        lap_group_fail(group, LAP_ERR_CHECK, "a sentence");
        lap_group_fail(group, LAP_ERR_BUSY, "a later sentence");
    }
    tap_failure(lap_group_barrier(group), LAP_ERR_CHECK, "a sentence", NULL);
}

static void test_arguments(void)
{
    lap_world_t *worlds[4] = {NULL};
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    tap_failure(lap_world_create_threads(0, NULL, worlds), LAP_ERR_INVALID, "nranks", "0", NULL);
    tap_failure(lap_world_create_threads(-3, NULL, worlds), LAP_ERR_INVALID, "-3", NULL);
    tap_failure(lap_world_create_threads(2, NULL, NULL), LAP_ERR_INVALID, "worlds_p", NULL);
    options.timeout_s = -1;
    tap_failure(lap_world_create_threads(2, &options, worlds), LAP_ERR_INVALID, "timeout_s", "-1",
                NULL);
    options = (lap_world_options_t)LAP_WORLD_OPTIONS_INIT;
    options.cpu_threads = -2;
    tap_failure(lap_world_create_threads(2, &options, worlds), LAP_ERR_INVALID, "cpu_threads", "-2",
                NULL);
    options = (lap_world_options_t)LAP_WORLD_OPTIONS_INIT;
    options.device = "a-device-with-too-long-a-name";
    tap_failure(lap_world_create_threads(2, &options, worlds), LAP_ERR_INVALID, "device", "a-dev",
                NULL);
    options = (lap_world_options_t)LAP_WORLD_OPTIONS_INIT;
    options.size = 0;
    tap_failure(lap_world_create_threads(2, &options, worlds), LAP_ERR_INVALID, "size is 0", NULL);
    options.size = (size_t)1 << 40;
    tap_failure(lap_world_create_threads(2, &options, worlds), LAP_ERR_INVALID, "size is", NULL);
    tap_ok(!worlds[0] && !worlds[1], "nothing is written on failure");

    struct {
        lap_world_options_t known;
        long unknown;
    } newer = {LAP_WORLD_OPTIONS_INIT, 0};
    newer.known.size = sizeof(newer);
    newer.known.timeout_s = 5;
    tap_success(lap_world_create_threads(1, &newer.known, worlds), "options of a newer caller");
    tap_ok(worlds[0]->timeout_ns == 5000000000u, "are read as far as they are known");
    lap_world_destroy(worlds[0]);
    newer.unknown = 1;
    tap_failure(lap_world_create_threads(1, &newer.known, worlds), LAP_ERR_UNSUPPORTED,
                "LAP_WORLD_OPTIONS.size is", "not know", NULL);

    options = (lap_world_options_t)LAP_WORLD_OPTIONS_INIT;
    options.size = sizeof(size_t) + sizeof(double); /* as if the struct had ended after timeout_s */
    options.timeout_s = 0.5;
    options.device = (const char *)8;
    options.cpu_threads = -7;
    tap_success(lap_world_create_threads(1, &options, worlds), "options of an older caller");
    tap_ok(worlds[0]->timeout_ns == 500000000u && strcmp(worlds[0]->device_name, "cpu") == 0 &&
               worlds[0]->cpu_threads == 0,
           "are read no further than they go");
    lap_world_destroy(worlds[0]);
    lap_world_destroy(NULL);
    lap_group_destroy(NULL);
    tap_ok(lap_world_rank(NULL) == -1 && lap_world_size(NULL) == 0 && !lap_world_group(NULL),
           "no world is no harm");
}

int main(void)
{
    const int sizes[] = {1, 2, 3, 5, 16};
    for (int i = 0; i < 5; i++)
        tap_ranks(sizes[i], NULL, collectives, NULL);
    _Atomic int count = 0;
    tap_ranks(4, NULL, barriers, &count);
    tap_ranks(5, NULL, splits, NULL);
    tap_ranks(3, NULL, mismatches, NULL);
    tap_ranks(3, NULL, agreements, NULL);
    tap_ranks(3, NULL, leaving, NULL);
    _Atomic int done = 0;
    tap_ranks(3, NULL, leaving_unnoticed, &done);
    tap_ranks(3, NULL, failing, NULL);
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    options.timeout_s = 2;
    _Atomic int events = 0;
    tap_ranks(3, &options, not_coming, &events);
    test_arguments();
    return tap_done();
}
