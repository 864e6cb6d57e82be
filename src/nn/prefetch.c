/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A forward whose weights come from the ranks that share the optimizer: each
 * bucket is gathered in the background, a bucket ahead of the first entry that
 * reads its weights. Entries wait for what they read by links, which follow
 * from ranges. Links only; runs nothing.
 */
#include "core/status.h"
#include "nn/program.h"

/* How far a forward is linked. */
typedef struct walk {
    const lap_nn_list_t *list;
    const lap_nn_replicas_t *replicas;
    const lap_nn_source_t *source;
    lap_linked_t *linked;
    size_t seq;
    size_t gathered;    /* buckets: the last of the list is the first that forward
                         needs */
    uint32_t refreshed; /* the first entry of LAP_NN_REFRESH that is not linked */
} walk_t;

/* How many buckets, in the order of forward, have what a region has; 0: it has
 * no weights. */
static size_t buckets_until(const walk_t *walk, uint32_t region)
{
    const lap_nn_list_t *list = walk->list;
    const lap_nn_buckets_t *buckets = walk->replicas->buckets;
    size_t offset;
    if (region == LAP_NN_NONE)
        return 0;
    const uint32_t root = lap_nn_region_root(list, region, &offset);
    const bool narrow = root == list->narrowed;
    if (!narrow && root != list->whole)
        return 0;
    const size_t at =
        offset / lap_dtype_size(list->regions[root].dtype) + (narrow ? list->narrow : 0);
    for (size_t i = 0; i < buckets->count; i++)
        if (at >= buckets->list[i].begin)
            return buckets->count - i;
    return 0;
}

static lap_status_t gather(walk_t *walk, size_t until)
{
    const size_t count = walk->replicas->buckets->count;
    for (; walk->gathered < until && walk->gathered < count; walk->gathered++)
        LAP_TRY(lap_nn_link_bucket(walk->list, walk->replicas, count - 1 - walk->gathered, true,
                                   walk->linked));
    return LAP_OK;
}

static lap_status_t link_entry(walk_t *walk, uint32_t index)
{
    const lap_nn_entry_t *entry = &walk->list->entries[index];
    size_t until = 0;
    for (int i = 0; i < LAP_NN_READS; i++) {
        const size_t own = buckets_until(walk, entry->reads[i]);
        until = own > until ? own : until;
    }
    LAP_TRY(gather(walk, until + 1)); /* the next one travels while this entry runs */
    return lap_nn_link_entry(walk->list, index, walk->seq, walk->source, walk->linked);
}

/* The copies of weights up to the last one that an entry reads; all with NULL.
 */
static lap_status_t refresh(walk_t *walk, const lap_nn_entry_t *reader)
{
    const lap_nn_list_t *list = walk->list;
    uint32_t end = reader ? walk->refreshed : list->parts[LAP_NN_REFRESH + 1];
    for (uint32_t e = walk->refreshed; reader && e < list->parts[LAP_NN_REFRESH + 1]; e++)
        for (int i = 0; i < LAP_NN_READS; i++)
            if (reader->reads[i] != LAP_NN_NONE && reader->reads[i] == list->entries[e].writes[0])
                end = e + 1;
    for (; walk->refreshed < end; walk->refreshed++)
        LAP_TRY(link_entry(walk, walk->refreshed));
    return LAP_OK;
}

/* What weights and their copies have of a step before is not to be read: the proof takes it for nothing. */
static void forget_weights(const lap_nn_list_t *list, lap_linked_t *linked)
{
    for (uint32_t i = 0; i < list->nweights && linked->status == LAP_OK; i++) {
        const lap_nn_weight_t *weight = &list->weights[i];
        const uint32_t regions[] = {weight->master, weight->copy, weight->turned};
        size_t offset;
        for (size_t r = 0; r < sizeof(regions) / sizeof(regions[0]); r++)
            linked->regions[lap_nn_region_root(list, regions[r], &offset)].filled = false;
    }
}

lap_status_t lap_nn_link_prefetch(const lap_nn_list_t *list, size_t seq, lap_nn_mode_t mode,
                                  const lap_nn_source_t *source, lap_linked_t *linked)
{
    walk_t walk = {.list = list,
                   .replicas = mode.replicas,
                   .source = source,
                   .linked = linked,
                   .seq = seq,
                   .refreshed = list->parts[LAP_NN_REFRESH]};
    forget_weights(list, linked);
    for (uint32_t i = list->parts[LAP_NN_FORWARD]; i < list->parts[LAP_NN_FORWARD + 1]; i++) {
        if (!lap_nn_entry_runs(&list->entries[i], mode))
            continue;
        LAP_TRY(refresh(&walk, &list->entries[i]));
        LAP_TRY(link_entry(&walk, i));
    }
    LAP_TRY(gather(&walk, SIZE_MAX));
    return refresh(&walk, NULL);
}
