/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A forward whose weights come from the ranks that share the optimizer: each
 * bucket is gathered in the background, a bucket ahead of the first entry that
 * reads its weights. Entries wait for what they read by links, which follow
 * from ranges. Links only; runs nothing.
 */
#include "core/status.h"
#include "nn/program.h"

/* How many buckets, in the order of forward, have what a region has; 0: it has
 * no weights. */
static size_t buckets_until(const lap_nn_prefetch_t *walk, uint32_t region)
{
    const lap_nn_list_t *list = walk->list;
    const lap_nn_buckets_t *buckets = walk->buckets;
    size_t offset;
    if (region == LAP_NN_NONE)
        return 0;
    const uint32_t root = lap_nn_region_root(list, region, &offset);
    const lap_nn_gathered_t *gathered = list->gathered;
    while (gathered < list->gathered + LAP_NN_TYPES && gathered->region != root)
        gathered++;
    if (gathered == list->gathered + LAP_NN_TYPES)
        return 0;
    const size_t at = offset / lap_dtype_size(gathered->dtype) + gathered->begin;
    for (size_t i = 0; i < buckets->count; i++)
        if (at >= buckets->list[i].begin)
            return buckets->count - i;
    return 0;
}

/* Those that an entry needs, and the next one, which travels while the entry runs. */
static size_t buckets_for(const lap_nn_prefetch_t *walk, uint32_t index)
{
    size_t until = 0;
    for (int i = 0; i < LAP_NN_READS; i++) {
        const size_t own = buckets_until(walk, walk->list->entries[index].reads[i]);
        until = own > until ? own : until;
    }
    return until + 1;
}

/* The end of the copies of weights that an entry reads. */
static uint32_t copies_until(const lap_nn_prefetch_t *walk, uint32_t index)
{
    const lap_nn_list_t *list = walk->list;
    const lap_nn_entry_t *reader = &list->entries[index];
    uint32_t end = walk->refreshed;
    for (uint32_t e = walk->refreshed; e < list->parts[LAP_NN_REFRESH + 1]; e++)
        for (int i = 0; i < LAP_NN_READS; i++)
            if (reader->reads[i] != LAP_NN_NONE && reader->reads[i] == list->entries[e].writes[0])
                end = e + 1;
    return end;
}

lap_nn_prefetch_t lap_nn_prefetch(const lap_nn_list_t *list, const lap_nn_buckets_t *buckets)
{
    return (lap_nn_prefetch_t){
        .list = list, .buckets = buckets, .refreshed = list->parts[LAP_NN_REFRESH]};
}

bool lap_nn_prefetch_next(lap_nn_prefetch_t *walk, uint32_t index, size_t *bucket_p,
                          uint32_t *entry_p)
{
    const bool rest = index == LAP_NN_NONE;
    const size_t count = walk->buckets->count;
    const uint32_t end = rest ? walk->list->parts[LAP_NN_REFRESH + 1] : copies_until(walk, index);
    const bool copies = walk->refreshed < end;
    const size_t until = rest     ? count
                         : copies ? buckets_for(walk, walk->refreshed)
                                  : buckets_for(walk, index);
    *entry_p = LAP_NN_NONE;
    if (walk->gathered < until && walk->gathered < count) {
        *bucket_p = count - 1 - walk->gathered;
        if (lap_dtype_is_fp8(walk->buckets->list[*bucket_p].weights) &&
            walk->refreshed < walk->list->scaled)
            *entry_p = walk->refreshed++; /* the scales of weights come before them */
        else
            walk->gathered++;
        return true;
    }
    if (copies)
        *entry_p = walk->refreshed++;
    return copies;
}

/* FP8 weights are made after the step: their scales are. */
size_t lap_nn_prefetch_started(const lap_nn_list_t *list, const lap_nn_buckets_t *buckets)
{
    const lap_nn_prefetch_t walk = lap_nn_prefetch(list, buckets);
    size_t count = 0;
    const bool stage = lap_nn_list_is_stage(list);
    const uint32_t first = stage ? list->slots[0].forward : list->parts[LAP_NN_FORWARD],
                   end = stage ? list->slots[0].backward : list->parts[LAP_NN_FORWARD + 1];
    for (uint32_t i = first; i < end; i++) {
        const bool looks = list->entries[i].work == LAP_NN_LOOK;
        const size_t own = looks ? 0 : buckets_for(&walk, i) - 1;
        count = own > count ? own : count;
        if (list->entries[i].work == LAP_NN_OPERATOR &&
            list->entries[i].reads[LAP_NN_B] != LAP_NN_NONE)
            break;
    }
    size_t whole = 0; /* of no FP8 */
    while (whole < count && !lap_dtype_is_fp8(buckets->list[buckets->count - 1 - whole].weights))
        whole++;
    return whole;
}

lap_status_t lap_nn_link_step_start(const lap_nn_list_t *list, const lap_nn_source_t *source,
                                    const lap_nn_replicas_t *replicas, lap_linked_t *linked)
{
    const lap_nn_buckets_t *buckets = replicas->buckets;
    size_t left = lap_nn_prefetch_started(list, buckets), next = buckets->count;
    for (uint32_t i = list->parts[LAP_NN_STEP]; i < list->parts[LAP_NN_STEP + 1]; i++) {
        LAP_TRY(lap_nn_link_entry(list, i, 0, source, linked));
        const uint32_t first = linked->nfragments;
        for (; left > 0 && list->shards->list[next - 1].updated == i + 1; left--)
            LAP_TRY(lap_nn_link_bucket(list, replicas, --next, true, linked));
        lap_nn_set_after_step(linked, first);
    }
    return LAP_OK;
}

void lap_nn_forget_weights(const lap_nn_list_t *list, lap_linked_t *linked)
{
    for (uint32_t i = 0; i < list->nweights && linked->status == LAP_OK; i++) {
        const lap_nn_weight_t *weight = &list->weights[i];
        const uint32_t regions[] = {weight->master, weight->copy, weight->turned};
        size_t offset;
        for (size_t r = 0; r < sizeof(regions) / sizeof(regions[0]); r++)
            linked->regions[lap_nn_region_root(list, regions[r], &offset)].filled = false;
    }
}

/* What comes before an entry. */
static lap_status_t link_ahead(lap_nn_prefetch_t *walk, uint32_t index, size_t seq,
                               const lap_nn_replicas_t *replicas, const lap_nn_source_t *source,
                               lap_linked_t *linked)
{
    size_t bucket;
    uint32_t entry;
    while (lap_nn_prefetch_next(walk, index, &bucket, &entry))
        LAP_TRY(entry == LAP_NN_NONE
                    ? lap_nn_link_bucket(walk->list, replicas, bucket, true, linked)
                    : lap_nn_link_entry(walk->list, entry, seq, source, linked));
    return LAP_OK;
}

lap_status_t lap_nn_link_prefetch(const lap_nn_list_t *list, size_t seq, lap_nn_mode_t mode,
                                  const lap_nn_source_t *source, lap_linked_t *linked)
{
    lap_nn_prefetch_t walk = lap_nn_prefetch(list, mode.replicas->buckets);
    if (mode.started) /* the program of the step has ended */
        walk.gathered = lap_nn_prefetch_started(list, mode.replicas->buckets);
    else
        lap_nn_forget_weights(list, linked);
    for (uint32_t i = list->parts[LAP_NN_FORWARD]; i < list->parts[LAP_NN_FORWARD + 1]; i++) {
        if (!lap_nn_entry_runs(&list->entries[i], mode))
            continue;
        LAP_TRY(link_ahead(&walk, i, seq, mode.replicas, source, linked));
        LAP_TRY(lap_nn_link_entry(list, i, seq, source, linked));
    }
    return link_ahead(&walk, LAP_NN_NONE, seq, mode.replicas, source, linked);
}
