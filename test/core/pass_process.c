/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors passed between the ranks of a world of processes, started by `lap run`. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/pass.h"
#include "tap.h"

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
