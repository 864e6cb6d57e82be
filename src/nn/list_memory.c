/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where in memory the regions of a list lie. Private regions whose lifetimes do not overlap share memory;
 * what forward keeps for backward lives to the end of it, so that a backward can be repeated.
 */
#include <stdlib.h>

#include "core/status.h"
#include "nn/list.h"
#include "util/alloc.h"

#define REGION_ALIGN 256u

/* ---- lifetimes ---- */

/* The action of a pipeline that an entry is a part of, as a number. */
static uint32_t action_of(const lap_nn_list_t *list, uint32_t entry)
{
    uint32_t slot = 0;
    while (slot < list->nslots && entry >= list->slots[slot].end)
        slot++;
    const bool backward = slot < list->nslots && entry >= list->slots[slot].backward;
    const bool apart = list->plan.cut.split && list->entries[entry].weight_grad;
    return 3 * slot + backward + (backward && apart);
}

static void use(lap_nn_list_t *list, uint32_t region, uint32_t entry)
{
    size_t offset;
    if (region == LAP_NN_NONE)
        return;
    lap_nn_region_t *root = &list->regions[lap_nn_region_root(list, region, &offset)];
    const bool stage = lap_nn_list_is_stage(list);
    const bool saved = !stage && root->first < list->parts[LAP_NN_LOSS_PART] &&
                       entry >= list->parts[LAP_NN_BACKWARD];
    if (root->first == LAP_NN_NONE)
        root->first = entry;
    else if (stage)
        root->outlives = root->outlives || action_of(list, root->first) != action_of(list, entry);
    root->last = saved ? list->parts[LAP_NN_LOOK_GRADIENTS] : entry;
}

/* Actions come in any order: what outlives one of them has its memory for itself. */
static void keep_regions(lap_nn_list_t *list)
{
    for (uint32_t i = 0; i < list->nregions; i++)
        if (list->regions[i].outlives) {
            list->regions[i].first = 0;
            list->regions[i].last = list->nentries;
        }
}

/* The two variants of backward have one order; the one that adds to gradients has more entries. */
void lap_nn_find_lifetimes(lap_nn_list_t *list)
{
    for (uint32_t i = 0; i < list->nentries; i++) {
        if (i == list->parts[LAP_NN_BACKWARD] && !lap_nn_list_is_stage(list))
            i = list->parts[LAP_NN_BACKWARD_MORE];
        const lap_nn_entry_t *entry = &list->entries[i];
        for (int r = 0; r < LAP_NN_READS; r++)
            use(list, entry->reads[r], i);
        for (int w = 0; w < LAP_NN_WRITES; w++)
            use(list, entry->writes[w], i);
        use(list, entry->keeps, i);
    }
    keep_regions(list);
}

/* ---- places ---- */

static size_t aligned(size_t bytes)
{
    return (bytes + REGION_ALIGN - 1) / REGION_ALIGN * REGION_ALIGN;
}

static size_t bytes_of(const lap_nn_region_t *region)
{
    return aligned(region->rows * region->cols * lap_dtype_size(region->dtype));
}

static int compare_sizes(const void *left, const void *right)
{
    const lap_nn_region_t *a = *(lap_nn_region_t *const *)left;
    const lap_nn_region_t *b = *(lap_nn_region_t *const *)right;
    if (bytes_of(a) != bytes_of(b))
        return bytes_of(a) > bytes_of(b) ? -1 : 1;
    return (a->first > b->first) - (a->first < b->first);
}

/*
 * Puts a region at the lowest place that none of those with which it shares time has. The placed ones
 * are in the order of their places, and stay so.
 */
static void place(lap_nn_region_t **placed, size_t count, lap_nn_region_t *region)
{
    const size_t bytes = bytes_of(region);
    size_t offset = 0, at = 0;
    for (size_t i = 0; i < count; i++) {
        const lap_nn_region_t *other = placed[i];
        if (other->last < region->first || region->last < other->first)
            continue;
        if (other->offset >= offset + bytes)
            break;
        const size_t end = other->offset + bytes_of(other);
        offset = end > offset ? end : offset;
    }
    region->offset = offset;
    while (at < count && placed[at]->offset <= offset)
        at++;
    for (size_t i = count; i > at; i--)
        placed[i] = placed[i - 1];
    placed[at] = region;
}

/* The large regions first: small ones fit between them. */
lap_status_t lap_nn_lay_out(lap_nn_list_t *list)
{
    size_t count = 0;
    list->bytes[LAP_NN_PRIVATE] = list->bytes[LAP_NN_LASTING] = 0;
    lap_nn_region_t **order = lap_alloc(2 * (size_t)list->nregions + 1, sizeof(*order));
    if (!order)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the places of %u regions",
                         (unsigned)list->nregions);
    for (uint32_t i = 0; i < list->nregions; i++) {
        lap_nn_region_t *region = &list->regions[i];
        if (region->part_of != LAP_NN_NONE)
            continue;
        if (region->memory == LAP_NN_PRIVATE && region->first != LAP_NN_NONE)
            order[count++] = region;
        if (region->memory == LAP_NN_LASTING) {
            region->offset = list->bytes[LAP_NN_LASTING];
            list->bytes[LAP_NN_LASTING] += bytes_of(region);
        }
    }
    qsort(order, count, sizeof(*order), compare_sizes);
    for (size_t i = 0; i < count; i++) {
        place(order + list->nregions, i, order[i]);
        const size_t end = order[i]->offset + bytes_of(order[i]);
        if (end > list->bytes[LAP_NN_PRIVATE])
            list->bytes[LAP_NN_PRIVATE] = end;
    }
    lap_free(order);
    return LAP_OK;
}

void lap_nn_lay_out_state(lap_nn_list_t *list)
{
    for (uint32_t i = list->own_regions; i < list->nregions; i++) {
        lap_nn_region_t *region = &list->regions[i];
        if (region->part_of != LAP_NN_NONE || region->memory != LAP_NN_STATE)
            continue;
        region->offset = list->bytes[LAP_NN_STATE];
        list->bytes[LAP_NN_STATE] += bytes_of(region);
    }
}
