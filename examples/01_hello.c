/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The smallest program: every rank says who it is. Start it with `lap run -n 4 ./01_hello`, with
 * mpirun, torchrun or srun on one host, or alone. It makes a world, splits it in two halves,
 * gathers a number from every rank of its half and waits until all are done.
 */
#include <stdio.h>
#include <unistd.h>

#include <lap/lap.h>

#define HALF_MAX 64

/* Everything that can fail; what goes wrong is told by main. */
static lap_status_t hello(lap_world_t *world, lap_group_t **half_p)
{
    const int rank = lap_world_rank(world), size = lap_world_size(world);

    /* Ranks with the same colour come together; the key keeps them in the order of the world. */
    const int colour = 2 * rank >= size;
    lap_status_t status = lap_group_split(lap_world_group(world), colour, rank, half_p);
    if (status != LAP_OK)
        return status;

    int pid = (int)getpid(), pids[HALF_MAX] = {0};
    const int half_rank = lap_group_rank(*half_p), half_size = lap_group_size(*half_p);
    if (half_size <= HALF_MAX) {
        status = lap_group_allgather(*half_p, &pid, sizeof(pid), pids);
        if (status != LAP_OK)
            return status;
    }
    printf("rank %d of %d is rank %d of %d in half %d, whose rank 0 has pid %d\n", rank, size,
           half_rank, half_size, colour, pids[0]);
    fflush(stdout);
    return lap_group_barrier(lap_world_group(world));
}

int main(void)
{
    lap_world_t *world = NULL;
    lap_group_t *half = NULL;
    lap_status_t status = lap_world_create(NULL, &world);
    if (status == LAP_OK)
        status = hello(world, &half);
    if (status != LAP_OK)
        fprintf(stderr, "01_hello: %s: %s\n", lap_status_string(status), lap_last_error());
    lap_group_destroy(half);
    lap_world_destroy(world);
    return status == LAP_OK ? 0 : 1;
}
