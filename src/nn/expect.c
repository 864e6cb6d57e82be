/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many fragments of a program are to write each region: counted from the list, and not from the program, which
 * has the same in another order. So the checker finds what was left out of the program or is there twice.
 */
#include "nn/context.h"
#include "nn/program.h"

/* The region of the program that an entry writes as the i-th of its own; LAP_NN_NONE: none, or nothing of it. */
static uint32_t written(const lap_nn_list_t *list, const lap_nn_entry_t *entry, int i, size_t seq)
{
    const uint32_t region = entry->writes[i];
    size_t first, offset;
    if (region == LAP_NN_NONE || list->regions[region].cols == 0 ||
        lap_nn_entry_rows(list, entry, region, seq, &first) == 0)
        return LAP_NN_NONE;
    return lap_nn_linked_region(list, region, &offset);
}

void lap_nn_expect_entry(const lap_nn_list_t *list, uint32_t index, size_t seq,
                         lap_linked_t *linked)
{
    const lap_nn_entry_t *entry = &list->entries[index];
    for (int i = 0; i < LAP_NN_WRITES && linked->status == LAP_OK; i++) {
        const uint32_t region = written(list, entry, i, seq);
        bool again = false; /* one fragment, however many parts of it */
        for (int j = 0; j < i; j++)
            again = again || written(list, entry, j, seq) == region;
        if (region != LAP_NN_NONE && !again)
            linked->regions[region].writers++;
    }
}

void lap_nn_expect_entries(const lap_nn_list_t *list, uint32_t first, uint32_t end, size_t seq,
                           lap_nn_mode_t mode, lap_linked_t *linked)
{
    for (uint32_t i = first; i < end; i++)
        if (lap_nn_entry_runs(&list->entries[i], mode))
            lap_nn_expect_entry(list, i, seq, linked);
}

static void expect_part(const lap_nn_list_t *list, int part, lap_nn_mode_t mode,
                        lap_linked_t *linked)
{
    lap_nn_expect_entries(list, list->parts[part], list->parts[part + 1], list->plan.desc.seq, mode,
                          linked);
}

void lap_nn_expect_copies(const lap_nn_list_t *list, const lap_nn_buckets_t *buckets,
                          size_t started, lap_linked_t *linked)
{
    const lap_nn_mode_t mode = {.first = false};
    expect_part(list, LAP_NN_REFRESH, mode, linked);
    for (size_t i = 0; buckets && i + started < buckets->count; i++)
        lap_nn_expect_bucket(list, buckets, i, true, linked);
}

void lap_nn_expect_step(const lap_nn_list_t *list, const lap_nn_buckets_t *buckets, size_t started,
                        lap_linked_t *linked)
{
    const lap_nn_mode_t mode = {.first = false};
    expect_part(list, LAP_NN_STEP, mode, linked);
    for (size_t i = 0; i < started; i++) /* the last are needed first */
        lap_nn_expect_bucket(list, buckets, buckets->count - 1 - i, true, linked);
}

void lap_nn_expect(const lap_nn_list_t *list, const lap_nn_linking_t *linking,
                   const lap_nn_buckets_t *buckets, lap_linked_t *linked)
{
    const lap_nn_mode_t mode = {.first = linking->first, .more = linking->more};
    const lap_nn_replication_t *how = &linking->replication;
    const lap_nn_buckets_t *shared = list->shards ? buckets : NULL; /* whose weights are gathered */
    const bool ahead = shared && how->ahead;
    linked->counted = true;
    expect_part(list, LAP_NN_FORWARD, mode, linked);
    expect_part(list, LAP_NN_LOSS_PART, mode, linked);
    expect_part(list, linking->more ? LAP_NN_BACKWARD_MORE : LAP_NN_BACKWARD, mode, linked);
    const size_t started = ahead && how->starts ? lap_nn_prefetch_started(list, buckets) : 0;
    if (ahead ? !linking->more : linking->first)
        lap_nn_expect_copies(list, shared, lap_nn_is_started(linking) ? started : 0, linked);
    for (size_t i = 0; buckets && !how->held && i < buckets->count; i++)
        lap_nn_expect_bucket(list, buckets, i, false, linked);
    if (!linking->optimizer || how->held)
        return;
    lap_nn_expect_step(list, buckets, started, linked);
    if (!ahead && (shared || !list->shards))
        lap_nn_expect_copies(list, shared, 0, linked);
}
