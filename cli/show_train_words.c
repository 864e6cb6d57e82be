/* SPDX-License-Identifier: Apache-2.0 */
/* Words for the program of a pass: names of fragments, reasons of links, lifetimes. */
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "nn/buckets.h"
#include "schedule/range.h"
#include "show_train.h"
#include "util/alloc.h"

/* ---- fragments ---- */

const lap_nn_entry_t *lap_show_entry(const lap_show_train_t *show, uint32_t fragment)
{
    const uint32_t origin = show->linked->fragments[fragment].origin;
    return origin < LAP_NN_BUCKET_ORIGIN ? &show->list->entries[origin] : NULL;
}

static bool gathers_weights(const lap_show_train_t *show, uint32_t origin)
{
    size_t index;
    int which;
    return show->list->shards && lap_nn_bucket_of(origin, &index, &which) &&
           (which == LAP_NN_BUCKET_PACK || which == LAP_NN_BUCKET_GATHER);
}

static bool is_before_forward(const lap_show_train_t *show, uint32_t fragment)
{
    bool found = false;
    for (uint32_t f = fragment + 1; f < show->linked->nfragments && !found; f++)
        found = show->linked->fragments[f].origin < show->list->parts[LAP_NN_LOSS_PART];
    return found;
}

const char *lap_show_part(const lap_show_train_t *show, uint32_t fragment)
{
    const uint32_t origin = show->linked->fragments[fragment].origin;
    static const char *const works[LAP_PIPE_WORKS + 1] = {
        [LAP_PIPE_FORWARD] = "forward",
        [LAP_PIPE_BACKWARD] = "backward",
        [LAP_PIPE_INPUT_GRAD] = "input_grad",
        [LAP_PIPE_WEIGHT_GRAD] = "weight_grad",
        [LAP_PIPE_WORKS] = "step",
    };
    if (show->items) {
        const lap_stage_kind_t kind = show->items[fragment].kind;
        const bool tied = kind == LAP_STAGE_SCATTER || kind == LAP_STAGE_GATHER;
        return works[tied ? LAP_PIPE_WORKS : show->items[fragment].action.work];
    }
    if (origin >= show->list->parts[LAP_NN_REFRESH] && origin < LAP_NN_BUCKET_ORIGIN)
        return "step";
    if (gathers_weights(show, origin))
        return is_before_forward(show, fragment) ? "forward" : "step";
    return origin < show->list->parts[LAP_NN_LOSS_PART]  ? "forward"
           : origin < show->list->parts[LAP_NN_BACKWARD] ? "loss"
                                                         : "backward";
}

void lap_show_name(const lap_show_train_t *show, uint32_t fragment, char text[LAP_SHOW_NAME])
{
    if (show->items)
        lap_stage_name(show->list, &show->items[fragment], text, LAP_SHOW_NAME);
    else
        lap_nn_fragment_name(show->list, show->linked->fragments[fragment].origin, text,
                             LAP_SHOW_NAME);
}

/* Adds a region to a list, unless it is full or has it. */
static void add_region(uint32_t *regions, size_t room, uint32_t region)
{
    for (size_t i = 0; i < room && region != LAP_NO_REGION; i++) {
        if (regions[i] == region)
            return;
        if (regions[i] != LAP_NN_NONE)
            continue;
        regions[i] = region;
        return;
    }
}

void lap_show_regions(const lap_show_train_t *show, uint32_t f, lap_show_regions_t *regions)
{
    const lap_fragment_t *fragment = &show->linked->fragments[f];
    const lap_nn_entry_t *entry = lap_show_entry(show, f);
    static const lap_place_t read[] = {LAP_INPUT, LAP_WEIGHT, LAP_MOVED};
    static const lap_place_t written[] = {LAP_OUTPUT, LAP_GATHERED};
    memset(regions, 0xff, sizeof(*regions)); /* LAP_NN_NONE */
    for (int i = 0; entry && i < LAP_NN_READS; i++)
        add_region(regions->reads, LAP_NN_READS, entry->reads[i]);
    for (int i = 0; entry && i < LAP_NN_WRITES; i++)
        add_region(regions->writes, LAP_NN_WRITES, entry->writes[i]);
    if (entry)
        return;
    for (size_t i = 0; i < sizeof(read) / sizeof(read[0]); i++)
        add_region(regions->reads, LAP_NN_READS, fragment->places[read[i]].region);
    for (size_t i = 0; i < sizeof(written) / sizeof(written[0]); i++)
        add_region(regions->writes, LAP_NN_WRITES, fragment->places[written[i]].region);
    for (uint32_t i = 0; i < fragment->schedule.nuses; i++) {
        const lap_use_t *use = &fragment->schedule.uses[i];
        const bool write = use->access == LAP_WRITE;
        if ((uint32_t)use->range.place < LAP_PLACES || lap_range_bytes(&use->range) == 0)
            continue;
        add_region(write ? regions->writes : regions->reads, write ? LAP_NN_WRITES : LAP_NN_READS,
                   (uint32_t)use->range.place - LAP_PLACES);
    }
}

void lap_show_does(const lap_show_train_t *show, uint32_t fragment, char text[LAP_SHOW_NAME])
{
    const lap_schedule_t *schedule = &show->linked->fragments[fragment].schedule;
    const bool message = strcmp(schedule->method, "p2p") == 0;
    if (lap_schedule_is_kernel(&show->linked->fragments[fragment].schedule))
        snprintf(text, LAP_SHOW_NAME, "%s", schedule->steps[0].name);
    else if (message)
        snprintf(text, LAP_SHOW_NAME, "message");
    else
        snprintf(text, LAP_SHOW_NAME, "%s %s", lap_kind_words[schedule->kind].title,
                 schedule->method);
}

long lap_show_layer(const lap_show_train_t *show, uint32_t fragment)
{
    return lap_nn_fragment_layer(show->list, show->linked->fragments[fragment].origin);
}

/* ---- links ---- */

enum { MOST_ACCESSES = 256 };

/* What a step uses; of one with very many ranges the first ones. */
typedef struct accesses {
    lap_range_t ranges[MOST_ACCESSES];
    bool writes[MOST_ACCESSES];
    size_t count;
} accesses_t;

static void add_access(void *context, const lap_range_t *range, bool write)
{
    accesses_t *all = context;
    if (range->place < LAP_PLACES || all->count == MOST_ACCESSES)
        return;
    all->writes[all->count] = write;
    all->ranges[all->count++] = *range;
}

static void find_accesses(const lap_linked_t *linked, uint32_t fragment, uint32_t index,
                          accesses_t *all)
{
    all->count = 0;
    lap_link_each_of_step(linked, &linked->fragments[fragment], index, add_access, all);
}

static const lap_link_region_t *region_of(const lap_linked_t *linked, const lap_range_t *range)
{
    return &linked->regions[range->place - LAP_PLACES];
}

static bool share_bytes(const lap_linked_t *linked, const lap_range_t *a, const lap_range_t *b)
{
    const lap_link_region_t *of_a = region_of(linked, a), *of_b = region_of(linked, b);
    lap_range_t one = lap_range_normal(*a), other = lap_range_normal(*b);
    one.offset += of_a->base;
    other.offset += of_b->base;
    return of_a->memory == of_b->memory && lap_range_overlaps(&one, &other);
}

void lap_show_why(const lap_show_train_t *show, uint32_t fragment, const lap_link_dep_t *link,
                  char text[LAP_SHOW_RANGE])
{
    const lap_linked_t *linked = show->linked;
    accesses_t before, after;
    find_accesses(linked, link->fragment, link->dep, &before);
    find_accesses(linked, fragment, link->step, &after);
    const lap_fragment_t *waiter = &linked->fragments[fragment],
                         *sender = &linked->fragments[link->fragment];
    const bool serial = waiter->serial || sender->serial;
    const bool sends = waiter->buffer != sender->buffer &&
                       lap_step_waits(&waiter->schedule, link->step) &&
                       lap_step_sends(&sender->schedule, link->dep);
    snprintf(text, LAP_SHOW_RANGE, "%s",
             serial  ? "which it is not to overlap"
             : sends ? "which sends, and could be held up in a queue"
                     : "which uses the symmetric buffer, or waits for a rank that does");
    for (int found = 0, reads = 1; reads >= 0 && !found; reads--) /* what is read explains most */
        for (size_t i = 0; i < before.count && !found; i++)
            for (size_t j = 0; j < after.count && !found; j++) {
                if (reads ? !before.writes[i] || after.writes[j] : !after.writes[j])
                    continue;
                if (!share_bytes(linked, &before.ranges[i], &after.ranges[j]))
                    continue;
                const char *name = region_of(linked, &before.ranges[i])->name;
                const char *own = region_of(linked, &after.ranges[j])->name;
                const bool same = strcmp(name, own) == 0;
                snprintf(text, LAP_SHOW_RANGE, "which %s %s%s%s%s",
                         before.writes[i] ? "writes" : "reads", name, same ? "" : ", where ",
                         same ? "" : own, same ? "" : " lies");
                found = 1;
            }
}

/* ---- lifetimes ---- */

static uint32_t last_of_backward(const lap_show_train_t *show)
{
    uint32_t last = show->linked->nfragments - 1;
    while (last > 0 && strcmp(lap_show_part(show, last), "step") == 0)
        last--;
    return last;
}

static void note_use(const lap_show_train_t *show, uint32_t region, uint32_t fragment,
                     uint32_t *places, lap_lifetime_t *lifetimes, size_t *count)
{
    size_t offset;
    if (region == LAP_NN_NONE)
        return;
    const uint32_t root = lap_nn_region_root(show->list, region, &offset);
    const lap_nn_region_t *matrix = &show->list->regions[root];
    if (matrix->memory != LAP_NN_PRIVATE)
        return;
    if (places[root] == 0) {
        lifetimes[*count] =
            (lap_lifetime_t){.region = root,
                             .first = fragment,
                             .lasts = matrix->last == show->list->parts[LAP_NN_LOOK_GRADIENTS],
                             .bytes = matrix->rows * matrix->cols * lap_dtype_size(matrix->dtype),
                             .offset = matrix->offset};
        places[root] = (uint32_t)++ * count;
    }
    lap_lifetime_t *lifetime = &lifetimes[places[root] - 1];
    lifetime->last = lifetime->lasts ? last_of_backward(show) : fragment;
}

static void find_most(lap_show_train_t *show)
{
    for (uint32_t f = 0; f < show->linked->nfragments; f++) {
        size_t alive = 0;
        for (size_t i = 0; i < show->nlifetimes; i++)
            if (show->lifetimes[i].first <= f && f <= show->lifetimes[i].last)
                alive += show->lifetimes[i].bytes;
        if (alive > show->most_alive) {
            show->most_alive = alive;
            show->most_at = f;
        }
    }
}

lap_status_t lap_show_lifetimes(lap_show_train_t *show)
{
    uint32_t *places = lap_alloc(show->list->nregions, sizeof(*places));
    show->lifetimes = lap_alloc(show->list->nregions, sizeof(*show->lifetimes));
    if (!places || !show->lifetimes) {
        lap_free(places);
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the lifetimes of %u regions",
                         (unsigned)show->list->nregions);
    }
    for (uint32_t f = 0; f < show->linked->nfragments; f++) {
        const lap_nn_entry_t *entry = lap_show_entry(show, f);
        for (int i = 0; entry && i < LAP_NN_READS; i++)
            note_use(show, entry->reads[i], f, places, show->lifetimes, &show->nlifetimes);
        for (int i = 0; entry && i < LAP_NN_WRITES; i++)
            note_use(show, entry->writes[i], f, places, show->lifetimes, &show->nlifetimes);
        if (entry)
            note_use(show, entry->keeps, f, places, show->lifetimes, &show->nlifetimes);
    }
    lap_free(places);
    find_most(show);
    return LAP_OK;
}
