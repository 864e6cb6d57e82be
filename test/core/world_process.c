/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of a world of processes, for `lap run -n P world_process [MODE [RANK]]`. Modes:
 * collectives (the default), twice (two worlds after each other and two at once), die (RANK is
 * killed in a barrier), stop (RANK stops for good; the others expect a timeout, so set
 * LAP_TIMEOUT_S), leave (RANK ends its world early) and forever (barriers, until one fails).
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tap.h"

/* Gathers pids by the world and squares by the two halves of it. */
static void collectives(lap_world_t *world)
{
    const int rank = lap_world_rank(world), size = lap_world_size(world);
    lap_group_t *all = lap_world_group(world), *half = NULL;
    const long mine = getpid();
    long *pids = calloc((size_t)size, sizeof(long));
    tap_success(lap_group_allgather(all, &mine, sizeof(mine), pids), "pids gathered");
    bool right = pids[rank] == mine;
    for (int r = 1; r < size; r++)
        right = right && pids[r] > 0 && pids[r] != pids[r - 1];
    tap_ok(right, "every rank has a process of its own");
    free(pids);

    if (!tap_success(lap_group_split(all, rank < size / 2, 0, &half), "split in halves"))
        return;
    const int square = rank * rank;
    int *squares = calloc((size_t)size, sizeof(int));
    tap_success(lap_group_allgather(half, &square, sizeof(square), squares), "squares gathered");
    right = true;
    for (int r = 0; r < lap_group_size(half); r++) {
        const int world_rank = lap_group_world_rank(half, r);
        right = right && squares[r] == world_rank * world_rank;
    }
    tap_ok(right, "every rank of the half has its square");
    free(squares);
    lap_group_destroy(half);
    tap_success(lap_group_barrier(all), "barrier");
}

static void twice(lap_world_t *first)
{
    lap_world_t *second = NULL, *third = NULL;
    if (tap_success(lap_world_create(NULL, &second), "a second world beside the first")) {
        collectives(second);
        collectives(first);
        lap_world_destroy(second);
    }
    if (tap_success(lap_world_create(NULL, &third), "a third after the second")) {
        collectives(third);
        lap_world_destroy(third);
    }
}

/* Rank `lost` goes away in its own way; the others wait for it in a barrier. */
static void lose(lap_world_t **world_p, const char *mode, int lost)
{
    lap_group_t *all = lap_world_group(*world_p);
    char name[32];
    snprintf(name, sizeof(name), "rank %d", lost);
    tap_success(lap_group_barrier(all), "all are there");
    if (lap_world_rank(*world_p) == lost) {
        if (strcmp(mode, "die") == 0)
            raise(SIGKILL);
        if (strcmp(mode, "stop") == 0)
            raise(SIGSTOP);
        lap_world_destroy(*world_p);
        *world_p = NULL;
        return;
    }
    const bool stopped = strcmp(mode, "stop") == 0;
    tap_failure(lap_group_barrier(all), stopped ? LAP_ERR_TIMEOUT : LAP_ERR_PEER_LOST, name,
                "barrier", NULL);
}

/* What ends it is for who has started it to see. */
static int forever(lap_world_t *world)
{
    lap_status_t status;
    while ((status = lap_group_barrier(lap_world_group(world))) == LAP_OK)
        continue;
    fprintf(stderr, "rank %d: %s: %s\n", lap_world_rank(world), lap_status_string(status),
            lap_last_error());
    lap_world_destroy(world);
    return 1;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "collectives";
    lap_world_t *world = NULL;
    if (!tap_success(lap_world_create(NULL, &world), "a world from the environment"))
        return tap_done();
    if (strcmp(mode, "collectives") == 0)
        collectives(world);
    else if (strcmp(mode, "twice") == 0)
        twice(world);
    else if (strcmp(mode, "forever") == 0)
        return forever(world);
    else
        lose(&world, mode, argc > 2 ? atoi(argv[2]) : lap_world_size(world) - 1);
    lap_world_destroy(world);
    return tap_done();
}
