/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport of process ranks: the conformance suite, with and without a link. Run under `lap
 * run`.
 */
#include "conformance.h"

static void refuse_self(lap_world_t *world)
{
    lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
    lap_buffer_t *buffer = NULL;
    options.transport = "self";
    lap_status_t status = lap_buffer_create(lap_world_group(world), 8, 1, &options, &buffer);
    if (lap_world_size(world) > 1)
        tap_failure(status, LAP_ERR_UNSUPPORTED, "self", "processes", "use shm", NULL);
    else
        tap_success(status, "alone, any transport will do");
    lap_buffer_destroy(buffer);
}

/* Memory outlives its owner's interest in it: the last one out frees it. */
static void check_early_destroy(lap_group_t *group)
{
    lap_buffer_t *buffer = new_buffer(group, 100000, 1, NULL);
    if (lap_group_rank(group) == 0)
        lap_buffer_destroy(buffer);
    tap_success(lap_group_barrier(group), "rank 0 has given up its part");
    if (lap_group_rank(group) == 0)
        return;
    tap_success(lap_buffer_put(buffer, 0, 0, "still there", 12, 0), "a put into it");
    tap_ok(strcmp(lap_buffer_data(buffer, 0), "still there") == 0, "is still possible");
    lap_buffer_destroy(buffer);
}

int main(void)
{
    lap_world_t *world = NULL;
    if (!tap_success(lap_world_create(NULL, &world), "a world from the environment"))
        return tap_done();
    lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
    transport_conformance(world, &options, "shm");
    options.transport = "shm";
    options.link.bytes_per_s = 200e6;
    options.link.latency_s = 20e-6;
    transport_conformance(world, &options, "shm");
    refuse_self(world);
    check_early_destroy(lap_world_group(world));
    lap_world_destroy(world);
    return tap_done();
}
