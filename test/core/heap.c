/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regions of shared memory: contents, alignment, counts of users, memory given back, requests that
 * are too large.
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/heap.h"
#include "core/world.h"
#include "tap.h"

static bool is_zero(const char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (data[i])
            return false;
    }
    return true;
}

/* Bytes that the heap of a process really holds; -1 for threads, where it cannot be asked. */
static long long heap_bytes(const lap_world_t *world)
{
    struct stat file;
    int fd = world->peers[world->rank].heap_fd;
    return fd >= 0 && fstat(fd, &file) == 0 ? (long long)file.st_blocks * 512 : -1;
}

/* Whether the kernel leaves the memory at an address out of core dumps. */
static bool is_left_out_of_dumps(const void *at)
{
    FILE *file = fopen("/proc/self/smaps", "re");
    char line[512];
    bool inside = false, found = false;
    unsigned long from, to;
    while (file && fgets(line, sizeof(line), file)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            inside = from <= (uintptr_t)at && (uintptr_t)at < to;
        else if (inside && strncmp(line, "VmFlags:", 8) == 0)
            found = strstr(line, " dd") != NULL;
    }
    if (file)
        fclose(file);
    return found;
}

/* What holds for both kinds of world. `other` is the world that maps what `world` makes. */
static void test_regions(lap_world_t *world, lap_world_t *other)
{
    const long page = sysconf(_SC_PAGESIZE);
    const long long before = heap_bytes(world);
    lap_region_t region, again;
    if (!tap_success(lap_region_create(world, 100000, 2, &region), "a region"))
        return;
    tap_ok(region.bytes == 100000 && region.owner == world->rank &&
               (uintptr_t)region.data % (uintptr_t)page == 0 && is_zero(region.data, 100000),
           "is page-aligned and zero");
    memset(region.data, 7, 100000);
    tap_failure(lap_region_map(other, region.owner, region.handle, 100001 + (size_t)page, &again),
                before < 0 ? LAP_ERR_MISMATCH : LAP_ERR_INTERNAL, "rank", NULL);
    tap_failure(lap_region_map(other, region.owner, region.handle, 99999, &again), LAP_ERR_MISMATCH,
                "100000", "99999", NULL);
    if (!tap_success(lap_region_map(other, region.owner, region.handle, 100000, &again), "mapped"))
        return;
    if (before >= 0)
        tap_ok(is_left_out_of_dumps(region.data) && is_left_out_of_dumps(again.data),
               "core dumps hold it neither here nor there");
    ((char *)again.data)[99999] = 9;
    tap_ok(((char *)region.data)[99999] == 9 && ((char *)again.data)[0] == 7, "the same memory");
    lap_region_t third;
    tap_failure(lap_region_map(other, region.owner, region.handle, 100000, &third),
                LAP_ERR_INTERNAL, "2 users", NULL);
    uint64_t handle = region.handle;
    lap_region_unmap(world, &region);
    tap_ok(!region.data && !region.bytes, "unmapping forgets the region");
    tap_ok(((char *)again.data)[5] == 7, "who still has it can still read it");
    lap_region_unmap(other, &again);
    lap_region_unmap(other, &again);
    tap_ok(heap_bytes(world) == before, "the last one out frees it, a second time is harmless");
    tap_failure(lap_region_map(other, world->rank, handle, 100000, &again), LAP_ERR_PEER_LOST,
                "rank 0", "given up", NULL);
}

static void test_sizes(lap_world_t *world)
{
    lap_region_t region, empty;
    if (tap_success(lap_region_create(world, 0, 1, &empty), "a region of nothing") &&
        tap_success(lap_region_create(world, 1, 1, &region), "a region of one byte")) {
        tap_ok(empty.data && *(char *)region.data == 0, "both are there");
        lap_region_unmap(world, &region);
        lap_region_unmap(world, &empty);
    }
    const long long before = heap_bytes(world);
    const size_t absurd[] = {(size_t)1 << 50, SIZE_MAX, SIZE_MAX - 4096, (size_t)INT64_MAX - 4096};
    for (size_t i = 0; i < sizeof(absurd) / sizeof(absurd[0]); i++)
        tap_failure(lap_region_create(world, absurd[i], 1, &region), LAP_ERR_NO_MEMORY, "asked",
                    "available", NULL);
    tap_ok(heap_bytes(world) == before, "a refused request leaves nothing");
    if (tap_success(lap_region_create(world, (size_t)70 << 20, 1, &region), "70 MiB")) {
        tap_ok(is_zero((char *)region.data + ((size_t)69 << 20), 1 << 20), "zero at the end");
        tap_ok(before < 0 || heap_bytes(world) >= before + (70LL << 20), "really reserved");
        lap_region_unmap(world, &region);
        tap_ok(heap_bytes(world) == before, "and given back");
    }
}

int main(void)
{
    lap_world_t *one, *threads[2];
    if (tap_success(lap_world_create(NULL, &one), "a world of one process")) {
        test_regions(one, one);
        test_sizes(one);
        lap_world_destroy(one);
    }
    if (tap_success(lap_world_create_threads(2, NULL, threads), "a world of two threads")) {
        test_regions(threads[0], threads[1]);
        test_sizes(threads[1]);
        lap_region_t orphan;
        tap_success(lap_region_create(threads[0], 1 << 20, 2, &orphan),
                    "a region that is never unmapped goes with the world");
        lap_world_destroy(threads[0]);
        lap_world_destroy(threads[1]);
    }
    return tap_done();
}
