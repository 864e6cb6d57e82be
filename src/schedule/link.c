/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linking. Each step of a program has a clock: for each stream, how many of its steps are over when
 * the step runs. A link is added only where a step needs one that its clock does not have yet, and
 * of several needed ones only those that do not follow from the others.
 */
#include "schedule/link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "schedule/extents.h"
#include "schedule/range.h"
#include "util/alloc.h"

/* ---- adding ---- */

static void *grow(lap_linked_t *linked, void *array, uint32_t count, size_t *room_p, size_t size)
{
    if (linked->status != LAP_OK)
        return NULL;
    void *grown = lap_grow(array, count, room_p, size);
    if (!grown)
        linked->status = lap_error(LAP_ERR_NO_MEMORY, "no memory for a program of %u parts",
                                   (unsigned)count + 1);
    return grown;
}

uint32_t lap_link_add_region(lap_linked_t *linked, const char *name, uint32_t memory, size_t base,
                             size_t bytes, bool filled)
{
    lap_link_region_t *regions =
        grow(linked, linked->regions, linked->nregions, &linked->regions_room, sizeof(*regions));
    if (!regions)
        return 0;
    linked->regions = regions;
    lap_link_region_t *region = &regions[linked->nregions];
    *region = (lap_link_region_t){
        .memory = memory, .base = base, .bytes = bytes, .filled = filled, .root = linked->nregions};
    snprintf(region->name, sizeof(region->name), "%s", name);
    return linked->nregions++;
}

lap_fragment_t *lap_link_fragment(lap_linked_t *linked)
{
    lap_fragment_t *fragments = grow(linked, linked->fragments, linked->nfragments,
                                     &linked->fragments_room, sizeof(*fragments));
    if (!fragments)
        return NULL;
    linked->fragments = fragments;
    lap_fragment_t *fragment = &fragments[linked->nfragments++];
    *fragment = (lap_fragment_t){.stride = 1};
    for (int i = 0; i < LAP_PLACES; i++)
        fragment->places[i].region = LAP_NO_REGION;
    return fragment;
}

void lap_link_access(lap_linked_t *linked, uint32_t step, uint32_t block, bool write,
                     lap_range_t range)
{
    if (linked->status != LAP_OK || lap_range_bytes(&range) == 0)
        return;
    lap_fragment_t *fragment = &linked->fragments[linked->nfragments - 1];
    lap_access_t *accesses = grow(linked, fragment->accesses, fragment->naccesses,
                                  &fragment->accesses_room, sizeof(*accesses));
    if (!accesses)
        return;
    fragment->accesses = accesses;
    accesses[fragment->naccesses++] = (lap_access_t){step, block, write, range};
}

static lap_range_t range_of(const lap_linked_t *linked, const lap_link_place_t *place, size_t rows,
                            size_t row_bytes)
{
    return (lap_range_t){
        .place = (lap_place_t)(LAP_PLACES + place->region),
        .rank = linked->rank,
        .offset = place->offset,
        .rows = rows,
        .row_bytes = row_bytes,
        .stride = place->stride,
    };
}

/* What the epilogue uses for a range of d. */
static void add_epilogue(lap_linked_t *linked, uint32_t step, uint32_t block, const lap_range_t *d,
                         size_t d_element, const lap_link_epilogue_t *epilogue)
{
    const lap_fragment_t *fragment = &linked->fragments[linked->nfragments - 1];
    const size_t packed = fragment->places[LAP_OUTPUT].row_bytes;
    const size_t row = d->offset / packed, col = d->offset % packed / d_element;
    const size_t cols = d->row_bytes / d_element;
    if (epilogue->aux.region != LAP_NO_REGION) {
        lap_range_t aux = range_of(linked, &epilogue->aux, d->rows, cols * epilogue->aux_element);
        aux.offset += row * aux.stride + col * epilogue->aux_element;
        lap_link_access(linked, step, block, epilogue->writes_aux, aux);
    }
    if (epilogue->bias.region != LAP_NO_REGION) {
        lap_range_t bias = range_of(linked, &epilogue->bias, 1, cols * epilogue->bias_element);
        bias.offset += col * epilogue->bias_element;
        lap_link_access(linked, step, block, false, bias);
    }
    if (epilogue->reads_d)
        lap_link_access(linked, step, block, false, lap_link_resolve(linked, fragment, d));
}

/* The scales that a block of a GEMM, or the sums of the columns of a, take: a float each. */
static void add_scale(lap_linked_t *linked, uint32_t step, uint32_t block,
                      const lap_link_place_t *scale)
{
    if (scale->region != LAP_NO_REGION)
        lap_link_access(linked, step, block, false, range_of(linked, scale, 1, sizeof(float)));
}

void lap_link_epilogue(lap_linked_t *linked, const lap_link_epilogue_t *epilogue)
{
    if (linked->status != LAP_OK)
        return;
    const lap_schedule_t *schedule = &linked->fragments[linked->nfragments - 1].schedule;
    const size_t element = lap_dtype_size(schedule->types.out);
    for (uint32_t i = 0; i < schedule->nsteps; i++) {
        const lap_step_t *step = &schedule->steps[i];
        for (uint32_t b = step->first; step->kind == LAP_STEP_GEMM && b < step->first + step->count;
             b++) {
            add_scale(linked, i, b, &epilogue->a_scale);
            add_scale(linked, i, b, &epilogue->b_scale);
            if (schedule->blocks[b].d.place == LAP_OUTPUT)
                add_epilogue(linked, i, b, &schedule->blocks[b].d, element, epilogue);
        }
        if (step->kind == LAP_STEP_REDUCE && step->dst.place == LAP_OUTPUT)
            add_epilogue(linked, i, LAP_NO_STEP, &step->dst, element, epilogue);
        if (step->kind == LAP_STEP_SUMS && step->src.place != LAP_OUTPUT)
            add_scale(linked, i, LAP_NO_STEP, &epilogue->a_scale);
        if (step->kind == LAP_STEP_SUMS && epilogue->bias_grad.region != LAP_NO_REGION)
            lap_link_access(
                linked, i, LAP_NO_STEP, true,
                range_of(linked, &epilogue->bias_grad, 1, epilogue->bias_grad.row_bytes));
    }
}

void lap_linked_clear(lap_linked_t *linked)
{
    for (uint32_t i = 0; i < linked->nfragments; i++) {
        lap_schedule_clear(&linked->fragments[i].schedule);
        lap_free(linked->fragments[i].accesses);
        lap_free(linked->fragments[i].links);
    }
    lap_free(linked->fragments);
    lap_free(linked->regions);
    *linked = (lap_linked_t){.rank = linked->rank};
}

/* ---- what steps use ---- */

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

uint32_t lap_link_first(const void *items, uint32_t count, size_t size, uint32_t step)
{
    uint32_t low = 0, high = count, found;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        memcpy(&found, (const char *)items + middle * size, sizeof(found));
        if (found < step)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

typedef struct visit {
    const lap_linked_t *linked;
    const lap_fragment_t *fragment;
    lap_each_access_t each;
    void *context;
} visit_t;

static void visit(const visit_t *visit, const lap_range_t *range, bool write)
{
    const lap_range_t found = lap_link_resolve(visit->linked, visit->fragment, range);
    if (lap_range_bytes(&found) > 0)
        visit->each(visit->context, &found, write);
}

void lap_link_each(const lap_linked_t *linked, const lap_fragment_t *fragment, uint32_t index,
                   uint32_t block, lap_each_access_t each, void *context)
{
    const visit_t all = {linked, fragment, each, context};
    const lap_schedule_t *schedule = &fragment->schedule;
    const lap_step_t *step = &schedule->steps[index];
    if (block != LAP_NO_STEP) {
        visit(&all, &schedule->blocks[block].a, false);
        visit(&all, &step->src, false);
        visit(&all, &schedule->blocks[block].scale, false);
        visit(&all, &schedule->blocks[block].d, true);
    } else if (step->kind == LAP_STEP_PUT || step->kind == LAP_STEP_COPY) {
        visit(&all, &step->src, false);
        visit(&all, &step->dst, true);
    } else if (step->kind == LAP_STEP_SUMS) {
        visit(&all, &step->src, false);
    } else if (step->kind == LAP_STEP_REDUCE) {
        for (uint32_t j = 0; j < (step->scaled ? 2 : 1) * step->count; j++)
            visit(&all, &schedule->ranges[step->first + j], false);
        visit(&all, &step->dst, true);
    }
    for (uint32_t i = lap_link_first(fragment->accesses, fragment->naccesses,
                                     sizeof(fragment->accesses[0]), index);
         i < fragment->naccesses && fragment->accesses[i].step == index; i++)
        if (fragment->accesses[i].block == block)
            visit(&all, &fragment->accesses[i].range, fragment->accesses[i].write);
}

/* The same of a step and all its blocks. */
static void each_of_step(const lap_linked_t *linked, const lap_fragment_t *fragment, uint32_t index,
                         lap_each_access_t each, void *context)
{
    const lap_step_t *step = &fragment->schedule.steps[index];
    lap_link_each(linked, fragment, index, LAP_NO_STEP, each, context);
    for (uint32_t b = step->first; step->kind == LAP_STEP_GEMM && b < step->first + step->count;
         b++)
        lap_link_each(linked, fragment, index, b, each, context);
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
    each_of_step(linked, fragment, index, find_symmetric, &symmetric);
    return symmetric.used;
}

/* Whether a signal lets a peer use this rank's memory: a credit, or what opens it. */
static bool grants(const lap_schedule_t *schedule, uint32_t signal)
{
    return signal != LAP_NO_SIGNAL && signal >= lap_signal_credit(schedule->size, 0) &&
           signal < lap_signal_done(schedule->size, 0);
}

/* Whether a wait for a signal is one for a peer that uses this rank's memory. */
static bool awaits_peer(const lap_schedule_t *schedule, uint32_t signal)
{
    return signal != LAP_NO_SIGNAL && !grants(schedule, signal);
}

bool lap_link_occupies(const lap_linked_t *linked, const lap_fragment_t *fragment, uint32_t index)
{
    const lap_schedule_t *schedule = &fragment->schedule;
    const lap_step_t *step = &schedule->steps[index];
    if (step->kind == LAP_STEP_WAIT)
        return awaits_peer(schedule, step->signal);
    for (uint32_t b = step->first; step->kind == LAP_STEP_GEMM && b < step->first + step->count;
         b++)
        if (awaits_peer(schedule, schedule->blocks[b].wait_signal))
            return true;
    return uses_symmetric(linked, fragment, index);
}

/* Whether a step uses this rank's symmetric memory, or lets a peer use it. */
static bool opens(const lap_linked_t *linked, const lap_fragment_t *fragment, uint32_t index)
{
    const lap_schedule_t *schedule = &fragment->schedule;
    const lap_step_t *step = &schedule->steps[index];
    if (uses_symmetric(linked, fragment, index))
        return true;
    if (step->kind == LAP_STEP_RAISE || step->kind == LAP_STEP_PUT)
        return grants(schedule, step->signal);
    for (uint32_t b = step->first; step->kind == LAP_STEP_GEMM && b < step->first + step->count;
         b++)
        if (grants(schedule, schedule->blocks[b].raise_signal))
            return true;
    return false;
}

bool lap_link_counts(const lap_schedule_t *schedule, uint32_t index)
{
    return schedule->steps[index].kind == LAP_STEP_CONSUME || lap_step_waits(schedule, index) ||
           lap_step_sends(schedule, index);
}

/* ---- links ---- */

typedef struct ticks {
    uint32_t over[LAP_STREAMS];
} ticks_t;

/* A step of the program. */
typedef struct point {
    uint32_t fragment, step;
    uint32_t stream, tick; /* it is the tick-th step of its stream */
    uint32_t first_use;    /* among the uses; those of the next point follow */
    ticks_t clock;
} point_t;

/* Bytes that a step uses. */
typedef struct use {
    uint32_t point;
    uint32_t memory;
    bool write;
    lap_range_t range; /* normal, with the offset in the memory */
    size_t end;
    uint32_t place; /* in the order of memories and addresses */
    uint32_t first; /* place of that memory */
} use_t;

typedef struct linker {
    lap_linked_t *linked;
    point_t *points;
    uint32_t npoints;           /* that have their links */
    uint32_t first;             /* the first point of the fragment in work */
    uint32_t last[LAP_STREAMS]; /* the latest point of each stream; LAP_NO_STEP: none */
    uint32_t *lasts;            /* the same of steps that occupy a buffer, of fragments before */
    uint32_t *consumes;         /* of each buffer: the latest CONSUME of fragments before */
    uint32_t nbuffers;
    use_t *uses; /* of all points, in their order */
    uint32_t nuses;
    size_t uses_room;
    use_t **order;      /* by place */
    lap_extents_t past; /* by place: uses of fragments before that matter to those that follow */
    uint32_t needed[LAP_STREAMS]; /* points that the step in work needs */
} linker_t;

static void join(ticks_t *clock, const ticks_t *other)
{
    for (int s = 0; s < LAP_STREAMS; s++)
        clock->over[s] = clock->over[s] > other->over[s] ? clock->over[s] : other->over[s];
}

/* Notes that the step in work needs another one, unless it is over anyway or a later one is noted. */
static void need(linker_t *linker, uint32_t index)
{
    const point_t *point = &linker->points[index];
    uint32_t *needed = &linker->needed[point->stream];
    if (point->tick <= linker->points[linker->npoints].clock.over[point->stream])
        return;
    if (*needed == LAP_NO_STEP || linker->points[*needed].tick < point->tick)
        *needed = index;
}

/* The next of the past uses, from a place on, whose extent meets that of a use; NULL: none. */
static const use_t *next_past(const linker_t *linker, const use_t *now, size_t from)
{
    const size_t place = lap_extents_next(&linker->past, from, now->range.offset);
    const use_t *past = place < linker->nuses ? linker->order[place] : NULL;
    return past && past->memory == now->memory && past->range.offset < now->end ? past : NULL;
}

/* A step has no need to look at those of its own fragment: they have their order already. */
static void look_back(linker_t *linker, const use_t *now)
{
    const point_t *points = linker->points;
    const ticks_t *clock = &points[now->point].clock;
    for (const use_t *past = next_past(linker, now, now->first); past;
         past = next_past(linker, now, past->place + 1))
        if ((past->write || now->write) &&
            points[past->point].tick > clock->over[points[past->point].stream] &&
            lap_range_meets(&past->range, &now->range))
            need(linker, past->point);
}

/*
 * What a write covers needs no look any more: who comes after the write comes after that, too. So it
 * is with reads that a later read covers.
 */
static bool is_covered(const linker_t *linker, const use_t *past, const use_t *fresh)
{
    const point_t *point = &linker->points[past->point];
    return (fresh->write || !past->write) && past->point != fresh->point &&
           past->range.offset >= fresh->range.offset && past->end <= fresh->end &&
           linker->points[fresh->point].clock.over[point->stream] >= point->tick &&
           lap_range_common(&past->range, &fresh->range) == lap_range_bytes(&past->range);
}

/* The uses of a fragment become past ones. */
static void settle(linker_t *linker)
{
    for (uint32_t i = linker->points[linker->first].first_use;
         i < linker->points[linker->npoints].first_use; i++) {
        const use_t *fresh = &linker->uses[i];
        for (const use_t *past = next_past(linker, fresh, fresh->first); past;
             past = next_past(linker, fresh, past->place + 1))
            if (is_covered(linker, past, fresh))
                lap_extents_set(&linker->past, past->place, 0);
        lap_extents_set(&linker->past, fresh->place, fresh->end);
    }
}

static void add_link(linker_t *linker, lap_fragment_t *fragment, uint32_t step, uint32_t index)
{
    lap_linked_t *linked = linker->linked;
    lap_link_dep_t *links =
        grow(linked, fragment->links, fragment->nlinks, &fragment->links_room, sizeof(*links));
    if (!links)
        return;
    fragment->links = links;
    links[fragment->nlinks++] =
        (lap_link_dep_t){step, linker->points[index].fragment, linker->points[index].step};
}

/* Adds the links that are needed, the latest first: others may follow from it. */
static void add_needed(linker_t *linker, lap_fragment_t *fragment, uint32_t step)
{
    ticks_t *clock = &linker->points[linker->npoints].clock;
    for (;;) {
        uint32_t latest = LAP_NO_STEP;
        for (int s = 0; s < LAP_STREAMS; s++) {
            const uint32_t index = linker->needed[s];
            if (index != LAP_NO_STEP && linker->points[index].tick > clock->over[s] &&
                (latest == LAP_NO_STEP || index > latest))
                latest = index;
        }
        if (latest == LAP_NO_STEP)
            return;
        add_link(linker, fragment, step, latest);
        join(clock, &linker->points[latest].clock);
    }
}

/* The first step of the fragment in work, before `index`, that lets a peer use this rank's memory. */
static uint32_t find_grant(const lap_schedule_t *schedule, uint32_t index, int peer)
{
    for (uint32_t i = 0; i < index; i++) {
        const lap_step_t *step = &schedule->steps[i];
        if ((step->kind == LAP_STEP_RAISE || step->kind == LAP_STEP_PUT) && step->peer == peer &&
            grants(schedule, step->signal))
            return i;
    }
    return LAP_NO_STEP;
}

/*
 * A peer sends data, or is done with this rank's memory, only after it was let: what it is waited
 * for comes after that, too.
 */
static void join_grant(linker_t *linker, const lap_schedule_t *schedule, uint32_t index, int peer,
                       uint32_t signal)
{
    const uint32_t grant =
        awaits_peer(schedule, signal) ? find_grant(schedule, index, peer) : LAP_NO_STEP;
    if (grant != LAP_NO_STEP)
        join(&linker->points[linker->npoints].clock, &linker->points[linker->first + grant].clock);
}

static void link_step(linker_t *linker, uint32_t f, uint32_t index)
{
    lap_linked_t *linked = linker->linked;
    lap_fragment_t *fragment = &linked->fragments[f];
    const lap_step_t *step = &fragment->schedule.steps[index];
    point_t *point = &linker->points[linker->npoints];
    const uint32_t before = linker->last[step->stream];
    if (before != LAP_NO_STEP) {
        point->clock = linker->points[before].clock;
        point->tick += linker->points[before].tick;
    }
    for (uint16_t i = 0; i < step->ndeps; i++)
        join(&point->clock, &linker->points[linker->first + step->deps[i]].clock);
    if (step->kind == LAP_STEP_WAIT)
        join_grant(linker, &fragment->schedule, index, step->peer, step->signal);
    for (int s = 0; s < LAP_STREAMS; s++)
        linker->needed[s] = LAP_NO_STEP;
    for (uint32_t i = point->first_use; i < point[1].first_use; i++)
        look_back(linker, &linker->uses[i]);
    const uint32_t *lasts = &linker->lasts[(size_t)fragment->buffer * LAP_STREAMS];
    if (opens(linked, fragment, index))
        for (int s = 0; s < LAP_STREAMS; s++)
            if (lasts[s] != LAP_NO_STEP)
                need(linker, lasts[s]);
    if (lap_link_counts(&fragment->schedule, index) &&
        linker->consumes[fragment->buffer] != LAP_NO_STEP)
        need(linker, linker->consumes[fragment->buffer]);
    add_needed(linker, fragment, index);
    point->clock.over[step->stream] = point->tick;
    linker->last[step->stream] = linker->npoints++;
}

static void link_fragment(linker_t *linker, uint32_t f)
{
    lap_linked_t *linked = linker->linked;
    const lap_fragment_t *fragment = &linked->fragments[f];
    linker->first = linker->npoints;
    for (uint32_t i = 0; i < fragment->schedule.nsteps; i++)
        link_step(linker, f, i);
    for (uint32_t i = 0; i < fragment->schedule.nsteps; i++)
        if (lap_link_occupies(linked, fragment, i))
            linker->lasts[(size_t)fragment->buffer * LAP_STREAMS +
                          fragment->schedule.steps[i].stream] = linker->first + i;
    for (uint32_t i = 0; i < fragment->schedule.nsteps; i++)
        if (fragment->schedule.steps[i].kind == LAP_STEP_CONSUME)
            linker->consumes[fragment->buffer] = linker->first + i;
    settle(linker);
}

/* ---- the uses ---- */

static void add_use(void *context, const lap_range_t *range, bool write)
{
    linker_t *linker = context;
    lap_linked_t *linked = linker->linked;
    if (range->place < LAP_PLACES)
        return;
    use_t *uses = grow(linked, linker->uses, linker->nuses, &linker->uses_room, sizeof(*uses));
    if (!uses)
        return;
    const lap_link_region_t *region = &linked->regions[range->place - LAP_PLACES];
    use_t *use = &uses[linker->nuses++];
    *use = (use_t){.point = linker->npoints,
                   .memory = region->memory,
                   .write = write,
                   .range = lap_range_normal(*range)};
    use->range.offset += region->base;
    lap_range_valid(&use->range, &use->end);
    linker->uses = uses;
}

/* All points, without their clocks, and what they use. */
static void list_points(linker_t *linker)
{
    const lap_linked_t *linked = linker->linked;
    for (uint32_t f = 0; f < linked->nfragments; f++) {
        const lap_fragment_t *fragment = &linked->fragments[f];
        for (uint32_t i = 0; i < fragment->schedule.nsteps; i++) {
            linker->points[linker->npoints] =
                (point_t){.fragment = f,
                          .step = i,
                          .stream = fragment->schedule.steps[i].stream,
                          .tick = 1,
                          .first_use = linker->nuses};
            each_of_step(linked, fragment, i, add_use, linker);
            linker->npoints++;
        }
    }
    linker->points[linker->npoints].first_use = linker->nuses;
    linker->npoints = 0;
}

static int compare_uses(const void *left, const void *right)
{
    const use_t *a = *(use_t *const *)left, *b = *(use_t *const *)right;
    if (a->memory != b->memory)
        return a->memory < b->memory ? -1 : 1;
    if (a->range.offset != b->range.offset)
        return a->range.offset < b->range.offset ? -1 : 1;
    return (a > b) - (a < b);
}

static lap_status_t order_uses(linker_t *linker)
{
    linker->order = lap_alloc((size_t)linker->nuses + 1, sizeof(use_t *));
    if (!linker->order || !lap_extents_init(&linker->past, linker->nuses))
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to link %u uses of memory",
                         (unsigned)linker->nuses);
    for (uint32_t i = 0; i < linker->nuses; i++)
        linker->order[i] = &linker->uses[i];
    qsort(linker->order, linker->nuses, sizeof(use_t *), compare_uses);
    uint32_t first = 0;
    for (uint32_t i = 0; i < linker->nuses; i++) {
        use_t *use = linker->order[i];
        first = use->memory == linker->order[first]->memory ? first : i;
        use->place = i;
        use->first = first;
    }
    return LAP_OK;
}

lap_status_t lap_link(lap_linked_t *linked)
{
    linker_t linker = {.linked = linked};
    size_t count = 0;
    for (uint32_t f = 0; f < linked->nfragments; f++) {
        count += linked->fragments[f].schedule.nsteps;
        if (linked->fragments[f].buffer >= linker.nbuffers)
            linker.nbuffers = linked->fragments[f].buffer + 1;
    }
    linker.points = lap_alloc(count + 1, sizeof(*linker.points));
    linker.lasts = lap_alloc((size_t)linker.nbuffers * LAP_STREAMS + 1, sizeof(*linker.lasts));
    linker.consumes = lap_alloc((size_t)linker.nbuffers + 1, sizeof(*linker.consumes));
    if (linked->status == LAP_OK && (!linker.points || !linker.lasts || !linker.consumes))
        linked->status = lap_error(LAP_ERR_NO_MEMORY, "no memory to link %zu steps", count);
    for (int s = 0; s < LAP_STREAMS; s++)
        linker.last[s] = LAP_NO_STEP;
    for (size_t i = 0; linker.lasts && i < (size_t)linker.nbuffers * LAP_STREAMS; i++)
        linker.lasts[i] = LAP_NO_STEP;
    for (uint32_t i = 0; linker.consumes && i < linker.nbuffers; i++)
        linker.consumes[i] = LAP_NO_STEP;
    if (linked->status == LAP_OK)
        list_points(&linker);
    if (linked->status == LAP_OK)
        linked->status = order_uses(&linker);
    for (uint32_t f = 0; f < linked->nfragments && linked->status == LAP_OK; f++)
        link_fragment(&linker, f);
    lap_free(linker.points);
    lap_free(linker.lasts);
    lap_free(linker.consumes);
    lap_free(linker.uses);
    lap_free(linker.order);
    lap_extents_clear(&linker.past);
    return linked->status;
}
