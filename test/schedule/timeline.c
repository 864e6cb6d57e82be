/* SPDX-License-Identifier: Apache-2.0 */
/* Timelines: what has no room is counted, and gathering brings all records and all counts to rank 0. */
#include "schedule/trace.h"
#include "tap.h"

enum { RANKS = 3, ROOM = 100 };

static lap_trace_record_t record_of(int rank, uint64_t at)
{
    lap_trace_record_t record = {.rank = rank, .span = {at, at, at + 1}};
    return record;
}

/* Ranks have 150, 100 and 50 records for ROOM each. */
static void fill_and_gather(lap_world_t *world, void *arg)
{
    (void)arg;
    const int rank = lap_world_rank(world);
    lap_trace_t timeline = {.size = RANKS, .most = ROOM};
    for (int i = 0; i < 150 - 50 * rank; i++) {
        const lap_trace_record_t record = record_of(rank, 1000u * (unsigned)rank + (unsigned)i + 1);
        lap_trace_add(&timeline, &record);
    }
    const size_t dropped = timeline.dropped;
    const lap_status_t status = lap_trace_gather(&timeline, lap_world_group(world));
    if (rank == 0) {
        size_t counts[RANKS] = {0};
        bool in_order = true;
        for (size_t i = 0; i < timeline.nrecords; i++) {
            const lap_trace_record_t *record = &timeline.records[i];
            in_order = in_order && record->span.begin ==
                                       1000u * (unsigned)record->rank + ++counts[record->rank];
        }
        tap_ok(dropped == 50, "a full timeline counts what had no room");
        tap_ok(status == LAP_OK && counts[0] == ROOM && counts[1] == 100 && counts[2] == 50,
               "rank 0 has the records of all");
        tap_ok(in_order, "... each rank's in their order, with their times");
        tap_ok(timeline.dropped == 50, "... and knows how many there are not");
        tap_ok(timeline.clocks && timeline.clocks[1].ns == 0 && timeline.clocks[1].bound == 0,
               "... ranks of one host have one clock");
    }
    tap_ok(rank == 0 || (timeline.nrecords == 150 - 50 * (size_t)rank && !timeline.calls),
           "other ranks have their own");
    lap_trace_clear(&timeline);
}

int main(void)
{
    tap_ranks(RANKS, NULL, fill_and_gather, NULL);
    return tap_done();
}
