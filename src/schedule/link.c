/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linking. Each step of a program has a vector clock: for each stream, how many of its steps have
 * ended when the step runs. A link is added only to a step that the clock does not have yet, and
 * of several only those that do not follow from the others. Programs are described in
 * link_add.c; what their steps use is in link_uses.c.
 */
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "schedule/extents.h"
#include "schedule/link_uses.h"
#include "schedule/range.h"
#include "schedule/vclock.h"
#include "util/alloc.h"

/* A step of the program. */
typedef struct point {
    uint32_t fragment, step;
    uint32_t stream, tick; /* it is the tick-th step of its stream */
    uint32_t first_use;    /* among the uses; those of the next point follow */
    lap_vclock_t clock;    /* how many steps of each stream have ended */
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
    uint32_t npoints;            /* that have their links */
    uint32_t first;              /* the first point of the fragment in work */
    uint32_t last[LAP_STREAMS];  /* the latest point of each stream; LAP_NO_STEP: none */
    uint32_t fence[LAP_STREAMS]; /* where a serial fragment began or ended: all since follow it */
    uint32_t sent[LAP_STREAMS];  /* the latest point of each that sends */
    uint32_t *lasts;             /* the latest of steps that occupy a buffer, of fragments before */
    uint32_t *consumes;          /* of each buffer: the latest CONSUME of fragments before */
    uint32_t nbuffers;
    use_t *uses; /* of all points, in their order */
    uint32_t nuses;
    size_t uses_room;
    use_t **order;      /* by place */
    lap_extents_t past; /* by place: uses of fragments before that matter to those that follow */
    uint32_t needed[LAP_STREAMS]; /* points that the step in work needs */
} linker_t;

/* Notes that the step in work needs another one, unless it is over anyway or a later one is noted. */
static void need(linker_t *linker, uint32_t index)
{
    const point_t *point = &linker->points[index];
    uint32_t *needed = &linker->needed[point->stream];
    if (point->tick <= linker->points[linker->npoints].clock.end[point->stream])
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
    const lap_vclock_t *clock = &points[now->point].clock;
    for (const use_t *past = next_past(linker, now, now->first); past;
         past = next_past(linker, now, past->place + 1))
        if ((past->write || now->write) &&
            points[past->point].tick > clock->end[points[past->point].stream] &&
            lap_range_overlaps(&past->range, &now->range))
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
           linker->points[fresh->point].clock.end[point->stream] >= point->tick &&
           lap_range_common(&past->range, &fresh->range) == lap_range_bytes(&past->range);
}

/* The uses of a fragment become past ones; those that they cover need no look any more. */
static void add_past_uses(linker_t *linker)
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
    lap_link_dep_t *links = lap_link_grow(linked, fragment->links, fragment->nlinks,
                                          &fragment->links_room, sizeof(*links));
    if (!links)
        return;
    fragment->links = links;
    links[fragment->nlinks++] =
        (lap_link_dep_t){step, linker->points[index].fragment, linker->points[index].step};
}

/* Adds the links that are needed, the latest first: others may follow from it. */
static void add_needed(linker_t *linker, lap_fragment_t *fragment, uint32_t step)
{
    lap_vclock_t *clock = &linker->points[linker->npoints].clock;
    for (;;) {
        uint32_t latest = LAP_NO_STEP;
        for (int s = 0; s < LAP_STREAMS; s++) {
            const uint32_t index = linker->needed[s];
            if (index != LAP_NO_STEP && linker->points[index].tick > clock->end[s] &&
                (latest == LAP_NO_STEP || index > latest))
                latest = index;
        }
        if (latest == LAP_NO_STEP)
            return;
        add_link(linker, fragment, step, latest);
        lap_vclock_join(clock, &linker->points[latest].clock);
    }
}

/* The first step of the fragment in work, before `index`, that lets a peer use this rank's memory. */
static uint32_t find_grant(const lap_schedule_t *schedule, uint32_t index, int peer)
{
    for (uint32_t i = 0; i < index; i++) {
        const lap_step_t *step = &schedule->steps[i];
        if ((step->kind == LAP_STEP_RAISE || step->kind == LAP_STEP_PUT) &&
            step->signal.peer == peer && lap_link_grants(schedule, step->signal.word))
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
        lap_link_awaits_peer(schedule, signal) ? find_grant(schedule, index, peer) : LAP_NO_STEP;
    if (grant != LAP_NO_STEP)
        lap_vclock_join(&linker->points[linker->npoints].clock,
                        &linker->points[linker->first + grant].clock);
}

/* What fragments before have sent on these streams: a wait must not hold it up. */
static void need_sent(linker_t *linker, unsigned streams)
{
    for (int s = 0; s < LAP_STREAMS; s++)
        if (streams >> s & 1 && linker->sent[s] != LAP_NO_STEP)
            need(linker, linker->sent[s]);
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
    for (uint16_t i = 0; i < step->ndeps; i++) {
        const uint32_t dep = lap_step_dep(&fragment->schedule, step, i);
        lap_vclock_join(&point->clock, &linker->points[linker->first + dep].clock);
    }
    if (step->kind == LAP_STEP_WAIT)
        join_grant(linker, &fragment->schedule, index, step->signal.peer, step->signal.word);
    for (int s = 0; s < LAP_STREAMS; s++)
        linker->needed[s] = LAP_NO_STEP;
    for (int s = 0; s < LAP_STREAMS; s++)
        if (linker->fence[s] != LAP_NO_STEP)
            need(linker, linker->fence[s]);
    for (uint32_t i = point->first_use; i < point[1].first_use; i++)
        look_back(linker, &linker->uses[i]);
    const uint32_t *lasts = &linker->lasts[(size_t)fragment->buffer * LAP_STREAMS];
    if (lap_link_opens(linked, fragment, index))
        for (int s = 0; s < LAP_STREAMS; s++)
            if (lasts[s] != LAP_NO_STEP)
                need(linker, lasts[s]);
    if (linked->shares_queues && lap_step_waits(&fragment->schedule, index))
        need_sent(linker, lap_stream_bits(fragment->schedule.set));
    if (lap_link_counts(&fragment->schedule, index) &&
        linker->consumes[fragment->buffer] != LAP_NO_STEP)
        need(linker, linker->consumes[fragment->buffer]);
    add_needed(linker, fragment, index);
    point->clock.end[step->stream] = point->tick;
    linker->last[step->stream] = linker->npoints++;
}

static void link_fragment(linker_t *linker, uint32_t f)
{
    lap_linked_t *linked = linker->linked;
    const lap_fragment_t *fragment = &linked->fragments[f];
    linker->first = linker->npoints;
    if (fragment->serial)
        memcpy(linker->fence, linker->last, sizeof(linker->fence));
    for (uint32_t i = 0; i < fragment->schedule.nsteps; i++)
        link_step(linker, f, i);
    if (fragment->serial)
        memcpy(linker->fence, linker->last, sizeof(linker->fence));
    for (uint32_t i = 0; i < fragment->schedule.nsteps; i++)
        if (lap_link_occupies(linked, fragment, i))
            linker->lasts[(size_t)fragment->buffer * LAP_STREAMS +
                          fragment->schedule.steps[i].stream] = linker->first + i;
    for (uint32_t i = 0; i < fragment->schedule.nsteps; i++)
        if (lap_step_sends(&fragment->schedule, i))
            linker->sent[fragment->schedule.steps[i].stream] = linker->first + i;
    for (uint32_t i = 0; i < fragment->schedule.nsteps; i++)
        if (fragment->schedule.steps[i].kind == LAP_STEP_CONSUME)
            linker->consumes[fragment->buffer] = linker->first + i;
    add_past_uses(linker);
}

/* ---- the uses ---- */

static void add_use(void *context, const lap_range_t *range, bool write)
{
    linker_t *linker = context;
    lap_linked_t *linked = linker->linked;
    if (range->place < LAP_PLACES)
        return;
    use_t *uses =
        lap_link_grow(linked, linker->uses, linker->nuses, &linker->uses_room, sizeof(*uses));
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
            lap_link_each_of_step(linked, fragment, i, add_use, linker);
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
        linker.last[s] = linker.fence[s] = linker.sent[s] = LAP_NO_STEP;
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
