/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lap_world_create_with when memory runs out on one rank: before the ranks meet it calls nothing of
 * the caller's, so that it is never in the barrier while the others gather; afterwards it calls
 * both. Linked with --wrap, so that allocations fail on request.
 */
#include "failing_alloc.h"
#include "tap.h"

typedef struct calls {
    int gathers, barriers;
} calls_t;

/* As if there were a second rank, which fails in the same way. */
static int gather(void *context, const void *mine, size_t bytes, void *all)
{
    (void)mine;
    (void)bytes;
    (void)all;
    ((calls_t *)context)->gathers++;
    return 5;
}

static int barrier(void *context)
{
    calls_t *calls = context;
    tap_ok(calls->gathers == 1, "nobody comes to the barrier without having gathered");
    calls->barriers++;
    return 0;
}

int main(void)
{
    calls_t calls = {0, 0};
    lap_bootstrap_t bootstrap = LAP_BOOTSTRAP_INIT;
    lap_world_t *world = NULL;
    bootstrap.nranks = 2;
    bootstrap.context = &calls;
    bootstrap.allgather = gather;
    bootstrap.barrier = barrier;
    atomic_store(&countdown, 1);
    tap_failure(lap_world_create_with(&bootstrap, NULL, &world), LAP_ERR_NO_MEMORY, "2 ranks",
                NULL);
    tap_ok(calls.gathers == 0 && calls.barriers == 0, "without memory nothing is called");
    atomic_store(&countdown, 2);
    tap_failure(lap_world_create_with(&bootstrap, NULL, &world), LAP_ERR_SYSTEM, "allgather", "5",
                NULL);
    tap_ok(calls.gathers == 1 && calls.barriers == 1, "who has gathered comes to the barrier");
    atomic_store(&countdown, 1);
    tap_failure(lap_world_create_threads(3, NULL, &world), LAP_ERR_NO_MEMORY, "3 worlds", NULL);
    tap_ok(!world, "nothing is written on failure");
    return tap_done();
}
