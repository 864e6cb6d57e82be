/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "auto" on a GPU that has room for the operator, but not for trials of its methods: the method is
 * chosen by simulation, the same on all ranks, whichever of them lacks the memory, and what the
 * trials had taken is free again. Ranks are the processes of the world that the environment
 * describes, with GPUs of about 100 MiB.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "device/device.h"
#include "tap.h"

#define ABSURD ((size_t)1 << 50)
#define MIB ((size_t)1 << 20)

enum { RANKS_MOST = 8 };

/* As the sentence of a failure tells it. */
static size_t free_bytes(lap_group_t *group)
{
    lap_device_t *device = test_device(group);
    void *memory;
    size_t free = 0;
    device->ops->alloc(device, ABSURD, &memory);
    const char *text = strstr(lap_last_error(), " has ");
    tap_ok(text && sscanf(text, " has %zu", &free) == 1, "%s", lap_last_error());
    return free;
}

/* All ranks say the same, of every method. */
static void check_forecast(lap_group_t *group, const lap_op_t *op)
{
    typedef struct line {
        char label[64];
        double seconds;
    } line_t;
    const char *label;
    size_t count = 0;
    bool same = true;
    for (line_t mine = {"", 0}; lap_op_prediction(op, count, &label, &mine.seconds) == LAP_OK;
         count++) {
        line_t all[RANKS_MOST];
        snprintf(mine.label, sizeof(mine.label), "%s", label);
        same = lap_group_allgather(group, &mine, sizeof(mine), all) == LAP_OK && same;
        for (int r = 0; r < lap_group_size(group); r++)
            same = same && strcmp(all[r].label, label) == 0 && all[r].seconds == mine.seconds;
        same = same && mine.seconds > 0;
    }
    tap_ok(count > 3 && same, "%zu methods are forecast, the same on all ranks", count);
}

/* What a trial needs is the caller's memory, of which d is the most; the operator needs little. */
static lap_op_desc_t describe(int size, size_t m)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = LAP_AG_GEMM;
    desc.m = m;
    desc.n = (size_t)32768 * (size_t)size;
    desc.k = 64;
    desc.method = "auto";
    return desc;
}

/* Returns the bytes that are free afterwards. */
static size_t try_without_memory(lap_group_t *group, size_t m)
{
    const lap_op_desc_t desc = describe(lap_group_size(group), m);
    lap_op_t *op = NULL;
    if (tap_success(lap_op_create(group, &desc, &op), "a method is chosen without trials"))
        check_forecast(group, op);
    lap_op_destroy(op);
    lap_group_barrier(group);
    return free_bytes(group);
}

/* Streams keep their workspaces from the first time on. Other rows: else the choice would be known. */
static void suite(lap_group_t *group)
{
    const size_t before = try_without_memory(group, 1024), after = try_without_memory(group, 1020);
    tap_ok(after + 8 * MIB > before, "%zu bytes were free the first time, %zu the second", before,
           after);
}

/* With "one", only the last rank has so little. */
int main(int argc, char **argv)
{
    const char *rank = getenv("LAP_RANK"), *size = getenv("LAP_SIZE");
    lap_world_t *world = NULL;
    if (argc > 1 && strcmp(argv[1], "one") == 0 && rank && size && atoi(rank) != atoi(size) - 1)
        setenv("FAKE_MEMORY", "300", 1);
    if (!tap_success(lap_world_create(NULL, &world), "a world from the environment"))
        return tap_done();
    suite(lap_world_group(world));
    lap_world_destroy(world);
    return tap_done();
}
