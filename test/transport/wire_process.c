/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transports over a wire: the conformance suite, with and without a link. Run under mpirun, or with
 * the variables of torchrun: wire_process mpi|tcp|hosts.
 */
#include "conformance.h"

/* What comes to a buffer that is gone is dropped, and does no harm. */
static void check_early_destroy(lap_group_t *group)
{
    static char source[300000];
    lap_buffer_t *buffer = new_buffer(group, sizeof(source), 1, NULL);
    if (lap_group_rank(group) == 0)
        lap_buffer_destroy(buffer);
    tap_success(lap_group_barrier(group), "rank 0 has given up its part");
    if (lap_group_rank(group) == 0)
        return;
    tap_success(lap_buffer_put(buffer, 0, 0, source, sizeof(source), 0), "a put into it");
    lap_buffer_destroy(buffer);
}

/* More than the kernel takes at once: the rest is sent by the thread of the wire. */
static void check_many_bytes(lap_group_t *group)
{
    const size_t bytes = (size_t)24 << 20;
    const int rank = lap_group_rank(group), size = lap_group_size(group);
    unsigned char *source = malloc(bytes);
    lap_buffer_t *buffer = new_buffer(group, bytes, 1, NULL);
    for (size_t i = 0; i < bytes; i++)
        source[i] = (unsigned char)(i * 31 + i / 4096 + (size_t)rank);
    tap_success(lap_buffer_put(buffer, (rank + 1) % size, 0, source, bytes, 0), "24 MiB");
    tap_success(lap_buffer_wait(buffer, (rank + size - 1) % size, 0, 1), "... have come");
    const unsigned char *got = lap_buffer_data(buffer, rank);
    const size_t from = (size_t)((rank + size - 1) % size);
    size_t wrong = 0;
    for (size_t i = 0; i < bytes; i++)
        wrong += got[i] != (unsigned char)(i * 31 + i / 4096 + from);
    tap_ok(wrong == 0, "... as they were sent: %zu are wrong", wrong);
    free(source);
    tap_success(lap_group_barrier(group), "all have looked");
    lap_buffer_destroy(buffer);
}

/* A world over the one is none over the other. */
static void refuse_other(lap_world_t *world)
{
    lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
    lap_buffer_t *buffer = NULL;
    const bool tcp = strcmp(world->wire->ops->name, "TCP") == 0;
    const lap_transport_ops_t *ops;
    options.transport = tcp ? "mpi" : "tcp";
    if (lap_transport_find(options.transport, &ops) == LAP_OK)
        tap_failure(lap_buffer_create(lap_world_group(world), 8, 1, &options, &buffer),
                    LAP_ERR_UNSUPPORTED, options.transport, "expected hosts", NULL);
    tap_success(lap_group_barrier(lap_world_group(world)), "all have heard it");
}

static void refuse_self(lap_group_t *group)
{
    lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
    lap_buffer_t *buffer = NULL;
    options.transport = "self";
    if (lap_group_size(group) > 1)
        tap_failure(lap_buffer_create(group, 8, 1, &options, &buffer), LAP_ERR_UNSUPPORTED, "self",
                    "processes", NULL);
    tap_success(lap_group_barrier(group), "all have heard it");
}

/* Ranks of one host still have memory in common for who asks. */
static void check_shm(lap_world_t *world)
{
    lap_group_t *group = lap_world_group(world);
    lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
    options.transport = "shm";
    if (world->local_size < world->size) {
        lap_buffer_t *buffer = NULL;
        tap_failure(lap_buffer_create(group, 8, 1, &options, &buffer), LAP_ERR_UNSUPPORTED,
                    "another host", "use hosts", NULL);
        return;
    }
    check_rounds(group, &options, 20);
    check_in_place(group, &options);
}

int main(int argc, char **argv)
{
    lap_world_t *world = NULL;
    lap_world_options_t world_options = LAP_WORLD_OPTIONS_INIT;
    const char *name = argc > 1 ? argv[1] : "mpi";
    world_options.transport = name;
    if (!tap_success(lap_world_create(&world_options, &world), "a world with a wire"))
        return tap_done();
    lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
    transport_conformance(world, &options, name);
    options.transport = name;
    options.link.bytes_per_s = 200e6;
    options.link.latency_s = 20e-6;
    transport_conformance(world, &options, name);
    refuse_self(lap_world_group(world));
    refuse_other(world);
    check_shm(world);
    check_many_bytes(lap_world_group(world));
    check_early_destroy(lap_world_group(world));
    lap_world_destroy(world);
    return tap_done();
}
