/* SPDX-License-Identifier: Apache-2.0 */
/* Bringing the records of all ranks of a group together, and their clocks. */
#ifndef LAP_SCHEDULE_GATHER_RECORDS_H
#define LAP_SCHEDULE_GATHER_RECORDS_H

#include <stdbool.h>
#include <stdint.h>

#include <lap/world.h>

/* The clock of a rank against that of rank 0. */
typedef struct lap_clock_offset {
    int64_t ns;     /* to be added to its times */
    uint64_t bound; /* the true one is at most so far away; 0: it is the same clock */
} lap_clock_offset_t;

/*
 * How the clocks of a group differ from that of its rank 0: `clocks` has room for one of each rank.
 * Ranks of one host have the same. Collective.
 */
lap_status_t lap_clock_offsets(lap_group_t *group, lap_clock_offset_t *clocks);

/* A time by the clock of rank 0; 0, no time, stays what it is. */
void lap_clock_shift(const lap_clock_offset_t *clock, uint64_t *time);

typedef struct lap_gathered {
    void *records; /* those of rank 0, then those of rank 1, ...; NULL: not wanted here */
    size_t total;
    size_t *counts; /* how many are of each rank */
    lap_clock_offset_t *clocks;
} lap_gathered_t;

/*
 * The records, `bytes` long each, of all ranks, on those that want them. Collective; when one rank fails,
 * all do. The caller clears it after success, and may take memory out of it before.
 */
lap_status_t lap_gather(lap_group_t *group, const void *records, size_t count, size_t bytes,
                        bool wanted, lap_gathered_t *gathered_p);
void lap_gathered_clear(lap_gathered_t *gathered);

#endif
