/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timelines: what has no room is counted, gathering brings all records and all counts to rank 0, sharing brings them to
 * all ranks, by the clock of each, and waits are matched with the raises of their call.
 */
#include "core/status.h"
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

enum { AHEAD = 100 }; /* of the clock of the next rank */
static bool apart;    /* clocks differ */

lap_status_t __real_lap_gather(lap_group_t *group, const void *records, size_t count, size_t bytes,
                               bool wanted, lap_gathered_t *gathered_p);
lap_status_t __wrap_lap_gather(lap_group_t *group, const void *records, size_t count, size_t bytes,
                               bool wanted, lap_gathered_t *gathered_p);
lap_status_t __wrap_lap_gather(lap_group_t *group, const void *records, size_t count, size_t bytes,
                               bool wanted, lap_gathered_t *gathered_p)
{
    LAP_TRY(__real_lap_gather(group, records, count, bytes, wanted, gathered_p));
    for (int r = 0; apart && r < lap_group_size(group); r++)
        gathered_p->clocks[r].ns = AHEAD * r;
    return LAP_OK;
}

/* The same moment is 1000 on the clock of rank 0, 900 on that of rank 1, ... */
static void share(lap_world_t *world, void *arg)
{
    (void)arg;
    const int rank = lap_world_rank(world);
    const uint64_t here = 1000u - AHEAD * (unsigned)rank;
    lap_trace_t timeline = {.size = RANKS, .begin = here, .end = here + 1};
    const lap_trace_record_t record = record_of(rank, here);
    lap_trace_add(&timeline, &record);
    tap_success(lap_trace_share(&timeline, lap_world_group(world)), "rank %d has all records",
                rank);
    bool same = timeline.nrecords == RANKS && timeline.calls;
    for (int r = 0; same && r < RANKS; r++)
        same = timeline.records[r].rank == r && timeline.records[r].span.begin == here &&
               timeline.calls[r].begin == here;
    tap_ok(same, "... by its own clock");
    lap_trace_clear(&timeline);
}

/* A wait that rank 1 released, in this call of their group. */
static uint32_t released_in(uint32_t call)
{
    lap_trace_record_t records[] = {
        {.kind = LAP_STEP_RAISE,
         .rank = 1,
         .peer = 0,
         .signal = 3,
         .call = call,
         .span = {1, 1, 2}},
        {.kind = LAP_STEP_WAIT, .rank = 0, .peer = 1, .from = 1, .awaited = 3, .call = call},
    };
    records[0].flight = records[0].span;
    records[1].count = 1;
    records[1].signal = LAP_NO_SIGNAL;
    records[0].group = records[1].group = (lap_trace_group_t){.size = 2};
    const lap_trace_t trace = {.size = 2, .records = records, .nrecords = 2};
    uint32_t released[2] = {0};
    tap_success(lap_trace_match(&trace, released), "waits of call %u are matched", (unsigned)call);
    return released[1];
}

/* The number of the next call of a group of ranks. */
static uint32_t number_in(lap_trace_t *trace, const int *ranks, int size)
{
    lap_trace_group_t group = {0};
    for (int r = 0; r < size; r++)
        lap_trace_group_add(&group, ranks[r]);
    return lap_trace_number(trace, &group);
}

static uint32_t number_of(lap_trace_t *trace, int base)
{
    return number_in(trace, (int[]){base, base + 1}, 2);
}

/* Whether what each rank of a group did, with each other, is known of the ranks of the world. */
static bool knows(const int *ranks, int size)
{
    const lap_trace_label_t label = {.ranks = ranks};
    bool same = true;
    for (int r = 0; r < size; r++) {
        lap_trace_record_t record = {.rank = r, .peer = size - 1 - r, .from = -1};
        lap_record_label(&record, &label, 0);
        same = same && record.rank == ranks[r] && record.peer == ranks[size - 1 - r] &&
               record.from == -1;
    }
    return same;
}

static void test_ranks_of_groups(void)
{
    tap_ok(knows((int[]){5}, 1), "a group of one rank knows it");
    tap_ok(knows((int[]){1, 3, 9, 11}, 4), "... contexts in a pipeline, and their replicas");
    tap_ok(knows((int[]){0, 1, 3, 7}, 4), "... ranks that no grid has as a group");
    tap_ok(knows((int[]){4, 0, 7}, 3), "... in another order than that of the world");
}

static void test_groups(void)
{
    lap_trace_t trace = {.size = 1};
    for (int i = 0; i < LAP_TRACE_GROUPS; i++)
        tap_ok(number_of(&trace, i) == 0, "the first call of group %d has a number", i);
    tap_ok(number_of(&trace, 0) == 1, "... and so has the second");
    tap_ok(number_of(&trace, LAP_TRACE_GROUPS) == LAP_NO_CALL, "that of a group too many has none");
    lap_trace_clear(&trace);
    trace = (lap_trace_t){.size = 1};
    tap_ok(number_of(&trace, 0) == 0 && number_in(&trace, (int[]){0, 1, 3, 7}, 4) == 0 &&
               number_in(&trace, (int[]){0, 1, 3, 4}, 4) == 0,
           "the ranks of a context are another group than its replicas, which begin with the same "
           "two");
    tap_ok(released_in(0) == 0, "a wait is matched with the raise of its call");
    tap_ok(released_in(LAP_NO_CALL) == LAP_NO_STEP, "... if that has a number");
    lap_trace_clear(&trace);
}

int main(void)
{
    test_groups();
    test_ranks_of_groups();
    tap_ranks(RANKS, NULL, fill_and_gather, NULL);
    apart = true;
    tap_ranks(RANKS, NULL, share, NULL);
    return tap_done();
}
