/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transports over a wire: the conformance suite, with and without a link. Run under mpirun:
 * wire_process mpi|hosts; or with the variables of torchrun, over TCP: wire_process control.
 */
#include <stdatomic.h>

#include "conformance.h"
#include "core/control.h"
#include "util/clock.h"

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

/* Between hosts TCP carries no data: ranks of one share memory, and others are told what does. */
static void refuse_data(lap_world_t *world)
{
    lap_group_t *all = lap_world_group(world), *near;
    lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
    lap_buffer_t *buffer = NULL;
    char *names[] = {NULL, "hosts", "mpi", "tcp"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        options.transport = names[i];
        const lap_status_t status = lap_buffer_create(all, 8, 1, &options, &buffer);
        if (i == 3)
            tap_failure(status, LAP_ERR_INVALID, "tcp was removed", "MPI carries data", "NCCL",
                        NULL);
        else if (status == LAP_ERR_INVALID) /* a build without MPI */
            tap_failure(status, LAP_ERR_INVALID, "no transport 'mpi'", NULL);
        else
            tap_failure(status, LAP_ERR_UNSUPPORTED, "met over TCP, which carries none",
                        "mpirun (MPI carries data between hosts)", "GPUs with NCCL", NULL);
    }
    const int node = lap_world_rank(world) / world->local_size;
    if (!tap_success(lap_group_split(all, node, 0, &near), "the ranks of this host"))
        return;
    options.transport = NULL;
    check_rounds(near, &options, 20);
    options.transport = "hosts";
    check_rounds(near, &options, 20);
    lap_group_destroy(near);
    tap_success(lap_group_barrier(all), "all go on");
}

/*
 * What has come to a port: of each rank how many packets, in order and whole, and how many others.
 */
typedef struct taken {
    _Atomic size_t right[64], wrong;
} taken_t;

static void take(void *context, const lap_packet_t *packet, const char *body)
{
    taken_t *taken = context;
    if (packet->words[1]) /* the kernels are full before the first is taken */
        lap_sleep_until_ns(lap_now_ns() + 300000000u);
    bool right = packet->words[0] == atomic_load(&taken->right[packet->from]);
    for (size_t i = 0; i < packet->bytes; i++)
        right = right && (unsigned char)body[i] == (unsigned char)(i + packet->words[0]);
    atomic_fetch_add(right ? &taken->right[packet->from] : &taken->wrong, 1);
}

/*
 * More than the kernel takes at once, of many sizes: the wire sends the rest. From the last rank to
 * the first, which has nothing to say that would wake it, or from each rank to each.
 */
static void check_many_packets(lap_world_t *world, bool one_way)
{
    const size_t packets = one_way ? 8000 : 3000;
    taken_t taken = {.wrong = 0};
    lap_group_t *all = lap_world_group(world);
    uint64_t port, ports[64];
    const int size = world->size;
    const lap_bank_t *bank = lap_control_bank(all);
    tap_success(lap_wire_port_open(world->wire, take, &taken, bank, &port), "a port");
    tap_success(lap_group_allgather(all, &port, sizeof(port), ports), "the ports of all");
    for (size_t n = 0; n < packets; n++)
        for (int peer = 0; peer < size; peer++) {
            lap_packet_t *packet;
            const size_t bytes = n * 977 % LAP_WIRE_SMALL;
            if (peer == world->rank || (one_way && (peer > 0 || world->rank < size - 1)) ||
                lap_wire_begin(world->wire, peer, bytes, NULL, &packet) != LAP_OK)
                continue;
            packet->port = ports[peer];
            packet->from = (uint32_t)world->rank;
            packet->words[0] = n;
            packet->words[1] = one_way && n == 0;
            for (size_t i = 0; i < bytes; i++)
                lap_packet_body(packet)[i] = (char)(i + n);
            world->wire->ops->send(world->wire, packet);
        }
    tap_success(lap_group_barrier(all), "whose packets come after these");
    size_t right = 0;
    for (int peer = 0; peer < size; peer++)
        right += atomic_load(&taken.right[peer]);
    const size_t senders = one_way ? world->rank == 0 : (size_t)size - 1;
    tap_ok(right == senders * packets && atomic_load(&taken.wrong) == 0,
           "packets come in order and whole: %zu, and %zu do not", right,
           atomic_load(&taken.wrong));
    tap_success(lap_group_barrier(all), "all have looked");
    lap_wire_port_close(world->wire, port);
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
    const bool control = strcmp(name, "control") == 0;
    world_options.transport = control ? NULL : name;
    if (!tap_success(lap_world_create(&world_options, &world), "a world with a wire"))
        return tap_done();
    if (control) {
        refuse_data(world);
        check_many_packets(world, true);
        check_many_packets(world, false);
        lap_world_destroy(world);
        return tap_done();
    }
    lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
    transport_conformance(world, &options, name);
    options.transport = name;
    options.link.bytes_per_s = 200e6;
    options.link.latency_s = 20e-6;
    transport_conformance(world, &options, name);
    refuse_self(lap_world_group(world));
    check_shm(world);
    check_many_bytes(lap_world_group(world));
    check_early_destroy(lap_world_group(world));
    lap_world_destroy(world);
    return tap_done();
}
