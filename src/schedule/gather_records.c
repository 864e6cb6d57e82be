/* SPDX-License-Identifier: Apache-2.0 */
#include "schedule/gather_records.h"

#include <string.h>

#include "core/status.h"
#include "core/world.h"
#include "transport/transport.h"
#include "util/alloc.h"
#include "util/clock.h"

#define CLOCK_ROUNDS 16  /* in which clocks are compared */
#define ROUND_RECORDS 64 /* of each rank that move at once */

/* ---- clocks ---- */

/*
 * Each rank reads its clock before and after a collective. The last rank of a host came to it before the first of the
 * host of rank 0 left it, and the first left it after the last of that host came: this bounds the difference of the
 * clocks of two hosts from both sides, and the narrowest bounds of some rounds count.
 */
typedef struct bounds {
    int64_t least, most; /* of what is to be added to the times of a host */
} bounds_t;

/* Of a rank; or of a host: when its last rank came, and its first one left. */
typedef struct reading {
    uint64_t came, left;
    uint64_t host; /* the first rank of the group that has the same clock */
} reading_t;

static bool has_same_clock(const lap_group_t *group, int rank)
{
    const lap_world_t *world = group->world;
    return world->kind == LAP_WORLD_THREADS || world->peers[group->members[rank]].heap_fd >= 0;
}

static uint64_t host_of(const lap_group_t *group)
{
    int first = 0;
    while (first != group->rank && !has_same_clock(group, first))
        first++;
    return (uint64_t)first;
}

/* Makes the reading of each first rank that of its host. */
static void join_hosts(reading_t *all, size_t size)
{
    for (size_t r = 0; r < size; r++) {
        reading_t *host = &all[all[r].host];
        host->came = all[r].came > host->came ? all[r].came : host->came;
        host->left = all[r].left < host->left ? all[r].left : host->left;
    }
}

static void narrow(bounds_t *bounds, const reading_t *zero, const reading_t *own)
{
    const int64_t least = (int64_t)(zero->came - own->left),
                  most = (int64_t)(zero->left - own->came);
    bounds->least = least > bounds->least ? least : bounds->least;
    bounds->most = most < bounds->most ? most : bounds->most;
}

lap_status_t lap_clock_offsets(lap_group_t *group, lap_clock_offset_t *clocks)
{
    const size_t size = (size_t)lap_group_size(group);
    if (!lap_transport_spans(group)) {
        memset(clocks, 0, size * sizeof(*clocks));
        return LAP_OK;
    }
    bounds_t *bounds = lap_alloc(size, sizeof(*bounds));
    reading_t *all = lap_alloc(size, sizeof(*all));
    lap_status_t status = LAP_OK;
    if (!bounds || !all)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for the clocks of %zu ranks", size);
    status = lap_group_agree(group, status);
    for (size_t r = 0; r < size && status == LAP_OK; r++)
        bounds[r] = (bounds_t){INT64_MIN, INT64_MAX};
    for (int i = 0; i < CLOCK_ROUNDS && status == LAP_OK; i++) {
        reading_t mine = {.came = lap_now_ns(), .host = host_of(group)};
        status = lap_group_barrier(group);
        mine.left = lap_now_ns();
        if (status == LAP_OK)
            status = lap_group_allgather(group, &mine, sizeof(mine), all);
        if (status == LAP_OK)
            join_hosts(all, size);
        for (size_t r = 0; r < size && status == LAP_OK; r++)
            narrow(&bounds[all[r].host], &all[0], &all[all[r].host]);
    }
    for (size_t r = 0; r < size && status == LAP_OK; r++) {
        const bounds_t *host = &bounds[all[r].host];
        const int64_t width = host->most - host->least;
        clocks[r] = all[r].host == 0
                        ? (lap_clock_offset_t){0, 0}
                        : (lap_clock_offset_t){host->least + width / 2, (uint64_t)(width / 2) + 1};
    }
    lap_free(bounds);
    lap_free(all);
    return status;
}

void lap_clock_shift(const lap_clock_offset_t *clock, uint64_t *time)
{
    if (*time != 0)
        *time += (uint64_t)clock->ns; /* across the wrap, when the other clock is ahead */
}

/* ---- records ---- */

/* How many of the records from `first` on move in one round. */
static size_t in_round(size_t count, size_t first)
{
    const size_t left = count > first ? count - first : 0;
    return left < ROUND_RECORDS ? left : ROUND_RECORDS;
}

/* `round` has room for ROUND_RECORDS of this rank, and as many of every rank after them. */
static lap_status_t move_records(lap_group_t *group, const char *records, size_t count,
                                 size_t bytes, char *round, const lap_gathered_t *gathered)
{
    const size_t part = ROUND_RECORDS * bytes;
    size_t most = 0;
    for (int r = 0; r < group->size; r++)
        most = gathered->counts[r] > most ? gathered->counts[r] : most;
    for (size_t first = 0; first < most; first += ROUND_RECORDS) {
        const size_t own = in_round(count, first);
        if (own > 0)
            memcpy(round, records + first * bytes, own * bytes);
        LAP_TRY(lap_group_allgather(group, round, part, round + part));
        char *to = gathered->records;
        for (size_t r = 0; to && r < (size_t)group->size; r++) {
            const size_t count_of = gathered->counts[r];
            memcpy(to + first * bytes, round + (1 + r) * part, in_round(count_of, first) * bytes);
            to += count_of * bytes;
        }
    }
    return LAP_OK;
}

lap_status_t lap_gather(lap_group_t *group, const void *records, size_t count, size_t bytes,
                        bool wanted, lap_gathered_t *gathered_p)
{
    const size_t size = (size_t)lap_group_size(group);
    lap_gathered_t gathered = {.records = NULL};
    void *counts;
    LAP_TRY(lap_group_collect(group, &count, sizeof(count), &counts));
    gathered.counts = counts;
    for (size_t r = 0; r < size; r++)
        gathered.total += gathered.counts[r];
    char *round = lap_alloc((size + 1) * ROUND_RECORDS, bytes);
    gathered.clocks = lap_alloc(size, sizeof(*gathered.clocks));
    gathered.records = wanted ? lap_alloc(gathered.total, bytes) : NULL;
    lap_status_t status = LAP_OK;
    if (!round || !gathered.clocks || (wanted && !gathered.records))
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to gather %zu records of %zu ranks",
                           gathered.total, size);
    status = lap_group_agree(group, status);
    if (status == LAP_OK)
        status = lap_clock_offsets(group, gathered.clocks);
    if (status == LAP_OK)
        status = move_records(group, records, count, bytes, round, &gathered);
    lap_free(round);
    if (status != LAP_OK)
        lap_gathered_clear(&gathered);
    else
        *gathered_p = gathered;
    return status;
}

void lap_gathered_clear(lap_gathered_t *gathered)
{
    lap_free(gathered->records);
    lap_free(gathered->counts);
    lap_free(gathered->clocks);
}
