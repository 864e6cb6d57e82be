/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks as threads of one process, and a symmetric buffer used directly: each rank puts a number
 * into its right neighbour's memory and waits for its left neighbour's. Run it with: 04_threads
 */
#include <pthread.h>
#include <stdio.h>

#include <lap/lap.h>

enum { RANKS = 4 };

static void *rank_main(void *arg)
{
    lap_world_t *world = arg;
    const int rank = lap_world_rank(world), size = lap_world_size(world);
    const int left = (rank + size - 1) % size, right = (rank + 1) % size;
    lap_buffer_t *buffer = NULL;
    const int number = 100 + rank;
    void *wrong = world;
    if (lap_buffer_create(lap_world_group(world), sizeof(int), 1, NULL, &buffer) == LAP_OK &&
        lap_buffer_put(buffer, right, 0, &number, sizeof(number), 0) == LAP_OK &&
        lap_buffer_wait(buffer, left, 0, 1) == LAP_OK) {
        const int got = *(const int *)lap_buffer_data(buffer, rank);
        printf("rank %d got %d from rank %d\n", rank, got, left);
        wrong = got == 100 + left ? NULL : world;
    } else {
        fprintf(stderr, "rank %d: %s\n", rank, lap_last_error());
    }
    lap_buffer_destroy(buffer);
    lap_world_destroy(world);
    return wrong;
}

int main(void)
{
    lap_world_t *worlds[RANKS];
    pthread_t threads[RANKS];
    if (lap_world_create_threads(RANKS, NULL, worlds) != LAP_OK) {
        fprintf(stderr, "%s\n", lap_last_error());
        return 1;
    }
    for (int r = 0; r < RANKS; r++)
        if (pthread_create(&threads[r], NULL, rank_main, worlds[r]) != 0)
            return 1;
    int failed = 0;
    for (int r = 0; r < RANKS; r++) {
        void *wrong;
        pthread_join(threads[r], &wrong);
        failed |= wrong != NULL;
    }
    return failed;
}
