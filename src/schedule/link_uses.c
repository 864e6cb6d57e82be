/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the steps of a program use: ranges of regions, and the symmetric memory of this rank, which
 * they use themselves or let peers use.
 */
#include "schedule/link_uses.h"

#include "schedule/range.h"

lap_range_t lap_link_resolve(const lap_linked_t *linked, const lap_fragment_t *fragment,
                             const lap_range_t *range)
{
    lap_range_t found = *range;
    if (range->place >= LAP_PLACES)
        return found;
    if (range->place == LAP_SYMMETRIC) {
        found.rank = lap_fragment_rank(fragment, range->rank);
        return found;
    }
    const lap_link_place_t *place = &fragment->places[range->place];
    found.rank = linked->rank;
    if (place->region == LAP_NO_REGION)
        return found;
    found.place = (lap_place_t)(LAP_PLACES + place->region);
    found.offset += place->offset;
    if (place->row_bytes == 0 || place->row_bytes == place->stride)
        return found;
    found.offset = place->offset + range->offset / place->row_bytes * place->stride +
                   range->offset % place->row_bytes;
    found.stride = place->stride;
    return found;
}

uint32_t lap_link_first(const lap_fragment_t *fragment, uint32_t step)
{
    uint32_t low = 0, high = fragment->nlinks;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (fragment->links[middle].step < step)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void each_use(const lap_schedule_t *schedule, uint32_t first, uint32_t count,
                     lap_each_access_t each, void *context)
{
    for (uint32_t i = first; i < first + count; i++)
        each(context, &schedule->uses[i].range, schedule->uses[i].access == LAP_WRITE);
}

/* The tiles of a GEMM do all of it: what all of them use each of them uses. */
void lap_schedule_each(const lap_schedule_t *schedule, uint32_t index, uint32_t tile,
                       lap_each_access_t each, void *context)
{
    const lap_step_t *step = &schedule->steps[index];
    if (tile == LAP_NO_STEP && step->kind == LAP_STEP_GEMM)
        return;
    each_use(schedule, step->first_use, step->nuses, each, context);
    if (tile == LAP_NO_STEP)
        return;
    const lap_tile_t *own = &schedule->tiles[tile];
    each_use(schedule, own->first_use, own->nuses, each, context);
}

typedef struct visit {
    const lap_linked_t *linked;
    const lap_fragment_t *fragment;
    lap_each_access_t each;
    void *context;
} visit_t;

static void visit(void *context, const lap_range_t *range, bool write)
{
    const visit_t *visit = context;
    const lap_range_t found = lap_link_resolve(visit->linked, visit->fragment, range);
    if (lap_range_bytes(&found) > 0)
        visit->each(visit->context, &found, write);
}

void lap_link_each(const lap_linked_t *linked, const lap_fragment_t *fragment, uint32_t index,
                   uint32_t tile, lap_each_access_t each, void *context)
{
    visit_t all = {linked, fragment, each, context};
    lap_schedule_each(&fragment->schedule, index, tile, visit, &all);
}

void lap_link_each_of_step(const lap_linked_t *linked, const lap_fragment_t *fragment,
                           uint32_t index, lap_each_access_t each, void *context)
{
    const lap_step_t *step = &fragment->schedule.steps[index];
    lap_link_each(linked, fragment, index, LAP_NO_STEP, each, context);
    for (uint32_t t = 0; t < step->ntiles; t++)
        lap_link_each(linked, fragment, index, step->first_tile + t, each, context);
}

typedef struct symmetric {
    int rank; /* whose memory */
    bool used;
} symmetric_t;

static void find_symmetric(void *context, const lap_range_t *range, bool write)
{
    symmetric_t *symmetric = context;
    (void)write;
    symmetric->used |= range->place == LAP_SYMMETRIC && range->rank == symmetric->rank;
}

/* Whether a step uses this rank's symmetric memory. */
static bool uses_symmetric(const lap_linked_t *linked, const lap_fragment_t *fragment,
                           uint32_t index)
{
    symmetric_t symmetric = {linked->rank, false};
    lap_link_each_of_step(linked, fragment, index, find_symmetric, &symmetric);
    return symmetric.used;
}

bool lap_link_grants(const lap_schedule_t *schedule, uint32_t signal)
{
    return signal != LAP_NO_SIGNAL && signal >= lap_signal_credit(schedule->size, 0) &&
           signal < lap_signal_done(schedule->size, 0);
}

bool lap_link_awaits_peer(const lap_schedule_t *schedule, uint32_t signal)
{
    return signal != LAP_NO_SIGNAL && !lap_link_grants(schedule, signal);
}

bool lap_link_occupies(const lap_linked_t *linked, const lap_fragment_t *fragment, uint32_t index)
{
    const lap_schedule_t *schedule = &fragment->schedule;
    const lap_step_t *step = &schedule->steps[index];
    if (step->kind == LAP_STEP_WAIT)
        return lap_link_awaits_peer(schedule, step->signal.word);
    for (uint32_t t = 0; t < step->ntiles; t++)
        if (lap_link_awaits_peer(schedule, schedule->tiles[step->first_tile + t].wait.word))
            return true;
    return uses_symmetric(linked, fragment, index);
}

bool lap_link_opens(const lap_linked_t *linked, const lap_fragment_t *fragment, uint32_t index)
{
    const lap_schedule_t *schedule = &fragment->schedule;
    const lap_step_t *step = &schedule->steps[index];
    if (uses_symmetric(linked, fragment, index))
        return true;
    if (step->kind == LAP_STEP_RAISE || step->kind == LAP_STEP_PUT)
        return lap_link_grants(schedule, step->signal.word);
    for (uint32_t t = 0; t < step->ntiles; t++)
        if (lap_link_grants(schedule, schedule->tiles[step->first_tile + t].raise.word))
            return true;
    return false;
}

bool lap_link_counts(const lap_schedule_t *schedule, uint32_t index)
{
    return schedule->steps[index].kind == LAP_STEP_CONSUME || lap_step_waits(schedule, index) ||
           lap_step_sends(schedule, index);
}
