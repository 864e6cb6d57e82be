/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mutants of the layout of private memory: the lifetime of one region is cut short, and memory is laid
 * out anew. Whether the program is still right is found out in a simple way: its fragments are gone
 * through in their order, and each byte has the region that was written there last. The proof must say
 * the same.
 */
#ifndef LAP_TEST_NN_LAYOUT_H
#define LAP_TEST_NN_LAYOUT_H

#include <stdlib.h>
#include <string.h>

#include "../schedule/drop.h"
#include "nn/program.h"
#include "tap.h"

typedef struct layout_tally {
    size_t wrong, found; /* layouts that are wrong, and those of them that the proof finds */
    size_t right, alarms;
} layout_tally_t;

/* ---- whether a layout is right ---- */

typedef struct layout_play {
    const lap_linked_t *linked;
    uint32_t *owners; /* of each byte: the region that was written there last, and 1; */
    uint32_t *users;  /* the one that was used there last, */
    uint32_t *times;  /* by which fragment, and 1, */
    uint64_t *steps;  /* and by which of its steps: a bit each */
    size_t bytes;
    const lap_schedule_t *schedule;
    uint32_t now, step;
    bool wrong;
} layout_play_t;

/* Links are between fragments: within one, steps that share bytes need an order that it has already. */
static inline bool layout_has_order(const layout_play_t *play, size_t at)
{
    for (uint32_t i = 0; i <= play->step && play->times[at] == play->now; i++)
        if ((play->steps[at] >> i & 1) &&
            (i == play->step || !is_behind(play->schedule, play->step, i, UINT32_MAX)))
            return false;
    return true;
}

static inline void layout_byte(layout_play_t *play, size_t at, uint32_t root, bool write)
{
    play->wrong |= !write && play->owners[at] != root;
    play->wrong |= write && play->users[at] != root && !layout_has_order(play, at);
    play->steps[at] = (play->times[at] == play->now ? play->steps[at] : 0) | 1ull << play->step;
    play->owners[at] = write ? root : play->owners[at];
    play->users[at] = root;
    play->times[at] = play->now;
}

static inline void layout_access(void *context, const lap_range_t *range, bool write)
{
    layout_play_t *play = context;
    if (range->place < LAP_PLACES)
        return;
    const lap_link_region_t *region = &play->linked->regions[range->place - LAP_PLACES];
    if (region->memory != LAP_NN_PRIVATE)
        return;
    for (size_t row = 0; row < range->rows; row++)
        for (size_t i = 0; i < range->row_bytes; i++) {
            const size_t at = region->base + range->offset + row * range->stride + i;
            if (at < play->bytes)
                layout_byte(play, at, region->root + 1, write);
            else
                play->wrong = true;
        }
}

static inline void layout_fragment(layout_play_t *play, const lap_fragment_t *fragment)
{
    const lap_schedule_t *schedule = play->schedule = &fragment->schedule;
    if (schedule->nsteps > 64)
        exit(1);
    for (uint32_t s = 0; s < schedule->nsteps; s++) {
        play->step = s;
        lap_link_each_of_step(play->linked, fragment, s, layout_access, play);
    }
}

static inline bool layout_is_right(const lap_linked_t *linked, size_t bytes)
{
    layout_play_t play = {.linked = linked,
                          .owners = calloc(bytes + 1, sizeof(uint32_t)),
                          .users = calloc(bytes + 1, sizeof(uint32_t)),
                          .times = calloc(bytes + 1, sizeof(uint32_t)),
                          .steps = calloc(bytes + 1, sizeof(uint64_t)),
                          .bytes = bytes};
    if (!play.owners || !play.users || !play.times || !play.steps)
        exit(1);
    for (uint32_t f = 0; f < linked->nfragments; f++) {
        play.now = f + 1;
        layout_fragment(&play, &linked->fragments[f]);
    }
    free(play.owners);
    free(play.users);
    free(play.times);
    free(play.steps);
    return !play.wrong;
}

/* ---- mutants ---- */

/* The regions of a program go where those of its list are, and it is linked anew. */
static inline lap_status_t layout_relink(const lap_nn_list_t *list, lap_linked_t *linked)
{
    for (uint32_t i = 0; i < list->nregions; i++) {
        size_t offset;
        const uint32_t root = lap_nn_region_root(list, i, &offset);
        linked->regions[i].base = list->regions[root].offset + offset;
    }
    for (uint32_t f = 0; f < linked->nfragments; f++)
        linked->fragments[f].nlinks = 0;
    return lap_link(linked);
}

static inline void layout_try(lap_nn_programs_t *programs, int rank, uint32_t r, uint32_t first,
                              uint32_t last, layout_tally_t *tally)
{
    lap_nn_list_t *list = &programs->lists[rank];
    lap_linked_t *linked = &programs->programs[rank];
    lap_nn_region_t *region = &list->regions[r];
    const uint32_t first_before = region->first, last_before = region->last;
    if (first > last)
        return;
    region->first = first;
    region->last = last;
    if (lap_nn_lay_out(list) != LAP_OK || layout_relink(list, linked) != LAP_OK)
        exit(1);
    const bool right = layout_is_right(linked, list->bytes[LAP_NN_PRIVATE]);
    const lap_status_t status = lap_linked_check(programs->list, programs->size, false);
    tally->right += right;
    tally->wrong += !right;
    tally->alarms += right && status != LAP_OK;
    tally->found += !right && status == LAP_ERR_CHECK;
    if (right != (status == LAP_OK) && tally->alarms + tally->wrong - tally->found < 4)
        tap_note("%s of rank %d, entries %u..%u instead of %u..%u: %s", linked->regions[r].name,
                 rank, (unsigned)first, (unsigned)last, (unsigned)first_before,
                 (unsigned)last_before, right ? lap_last_error() : "not found");
    region->first = first_before;
    region->last = last_before;
}

/* All private regions of a rank, each with a lifetime cut short at its beginning or its end. */
static inline void layout_mutate(lap_nn_programs_t *programs, int rank, const char *name)
{
    lap_nn_list_t *list = &programs->lists[rank];
    layout_tally_t tally = {0};
    for (uint32_t r = 0; r < list->nregions; r++) {
        const lap_nn_region_t region = list->regions[r];
        if (region.memory != LAP_NN_PRIVATE || region.part_of != LAP_NN_NONE ||
            region.first == LAP_NN_NONE)
            continue;
        const uint32_t middle = region.first + (region.last - region.first) / 2;
        layout_try(programs, rank, r, region.first + 1, region.last, &tally);
        if (region.last > 0)
            layout_try(programs, rank, r, region.first, region.last - 1, &tally);
        layout_try(programs, rank, r, region.first, middle, &tally);
        layout_try(programs, rank, r, middle, region.last, &tally);
    }
    if (lap_nn_lay_out(list) != LAP_OK || layout_relink(list, &programs->programs[rank]) != LAP_OK)
        exit(1);
    tap_success(lap_linked_check(programs->list, programs->size, false), "%s is proved as it was",
                name);
    tap_ok(tally.wrong > 0 && tally.found == tally.wrong && tally.alarms == 0,
           "%s: %zu of %zu wrong layouts are found, %zu of %zu right ones are objected to", name,
           tally.found, tally.wrong, tally.alarms, tally.right);
}

#endif
