/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What may go wrong inside NCCL, over the fakes of test/fake. Two ranks, started by
 * `lap run` with LAP_DEVICE=cuda and LAP_TRANSPORT=nccl.
 */
#include <string.h>
#include <unistd.h>

#include <lap/lap_cuda.h>

#include "tap.h"

/* A thread of NCCL goes on when nothing of the library is there any more. */
static void test_stays(lap_world_t *world)
{
    lap_buffer_t *buffer = NULL;
    tap_success(lap_buffer_create(lap_world_group(world), 64, 4, NULL, &buffer), "a buffer");
    lap_buffer_destroy(buffer);
    lap_world_destroy(world);
    usleep(200000);
    tap_ok(true, "this rank lives");
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*ends)(lap_world_t *world); /* it ends the world, too */
    } tests[] = {{"stays", test_stays}};
    lap_world_t *world;
    if (!tap_success(lap_world_create(NULL, &world), "a world"))
        return tap_done();
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
        if (argc < 2 || strcmp(argv[1], tests[i].name) != 0)
            continue;
        tests[i].ends(world);
    }
    return tap_done();
}
