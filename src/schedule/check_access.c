/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last part of the checker: memory. All accesses are listed, memory by memory, and played in an
 * order in which they can happen. Two with bytes in common of which one writes must have an order; a
 * write before a read of the same call covers a part of what is read, and all of it must be covered;
 * results must be written once, and whole. Then the rule of schedule.h: what peers do with a rank's
 * memory lies between its begin and its end of the same call.
 *
 * An order is transitive, with that in which what is sent arrives, too. So an access is held only against
 * those before it that none in between stands for: a write stands for all whose bytes are among its own,
 * and a read for reads that happen before it. That is few of them, however long a program is.
 *
 * In linked programs regions share memory: their bytes are those of the memory. What is read must have
 * been written for the same region, within its scope; a write for another region takes that away again. Accesses
 * of a region that conflict come in the order of the list that the program is made from, and nothing of that list
 * is left out: so each read finds what the list says, also of memory that is updated in place.
 */
#include "schedule/check_access.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/status.h"
#include "schedule/extents.h"
#include "schedule/link_uses.h"
#include "util/alloc.h"

#define BUFFER_MEMORIES (1u << 24) /* symmetric buffers of programs come after all regions */

/* Where bytes are in the memory of a program: regions may share some, and buffers are several. */
static void locate(const lap_check_t *check, lap_access_played_t *access)
{
    const lap_node_t *node = &check->nodes[access->node];
    const lap_linked_t *linked = check->programs[node->rank];
    if (access->symmetric) {
        access->range.place = (lap_place_t)(BUFFER_MEMORIES + linked->fragments[node->call].buffer);
        return;
    }
    const lap_link_region_t *region = &linked->regions[access->region - LAP_PLACES];
    const lap_fragment_t *fragment = &linked->fragments[node->call];
    access->order = fragment->order;
    access->phase = region->lasts ? fragment->phase : 0;
    access->range.place = (lap_place_t)(LAP_PLACES + region->memory);
    access->range.offset += region->base;
}

/* Whether an access of a program is in one of its regions, or in a buffer; else the check has failed. */
static bool is_placed(const lap_access_list_t *list, uint32_t node, const lap_range_t *range,
                      bool write)
{
    lap_check_t *check = list->check;
    const lap_linked_t *linked = check->programs[check->nodes[node].rank];
    const uint32_t region = (uint32_t)range->place - LAP_PLACES;
    const bool known = range->place >= LAP_PLACES && region < linked->nregions;
    char text[LAP_CHECK_TEXT], where[128];
    size_t end = SIZE_MAX; /* of a range that no memory can have */
    if (range->place == LAP_SYMMETRIC)
        return true;
    if (known && range->rank == linked->rank && lap_range_valid(range, &end) &&
        end <= linked->regions[region].bytes)
        return true;
    lap_check_describe(check, node, text, sizeof(text));
    if (known)
        check->status =
            lap_error(LAP_ERR_CHECK,
                      "an access outside a region: %s %s up to byte %zu of %s of rank "
                      "%d, which has %zu",
                      text, write ? "writes" : "reads", end, linked->regions[region].name,
                      range->rank, linked->regions[region].bytes);
    else {
        lap_range_describe(range, where, sizeof(where));
        check->status = lap_error(LAP_ERR_CHECK,
                                  "a place without a region: %s %s %s, which is no region of the "
                                  "program of rank %d",
                                  text, write ? "writes" : "reads", where, linked->rank);
    }
    return false;
}

/* The call of a node, as the rank counts whose memory it uses. */
static uint32_t call_of(const lap_check_t *check, const lap_node_t *node, int rank)
{
    const lap_fragment_t *fragment = lap_check_fragment(check, node->call, node->rank);
    int peer = 0;
    if (!fragment || rank == node->rank)
        return node->call;
    while (peer + 1 < fragment->schedule.size && lap_fragment_rank(fragment, peer) != rank)
        peer++;
    return lap_check_call(check, node->call, node->rank, peer);
}

static void add_access(lap_access_list_t *list, uint32_t node, lap_range_t range, bool write)
{
    if (list->check->programs && lap_range_bytes(&range) > 0 && list->check->status == LAP_OK &&
        !is_placed(list, node, &range, write))
        return;
    /* Nobody writes the caller's input: check_form.c has seen to that. Regions are those of programs. */
    if (lap_place_is_input(range.place) || list->check->status != LAP_OK ||
        (!list->check->programs && (uint32_t)range.place >= LAP_PLACES))
        return;
    lap_access_played_t access = {.node = node,
                                  .call =
                                      call_of(list->check, &list->check->nodes[node], range.rank),
                                  .write = write,
                                  .symmetric = range.place == LAP_SYMMETRIC,
                                  .region = (uint32_t)range.place,
                                  .range = lap_range_normal(range),
                                  .stranger = LAP_CHECK_NONE};
    if (access.range.rows == 0)
        return;
    if (list->check->programs)
        locate(list->check, &access);
    lap_access_played_t *accesses = lap_check_grow(list->check, list->accesses, list->count,
                                                   &list->room, sizeof(lap_access_played_t));
    if (!accesses)
        return;
    lap_range_valid(&access.range, &access.end);
    list->accesses = accesses;
    accesses[list->count++] = access;
}

/* Whose accesses are listed. */
typedef struct listed {
    lap_access_list_t *list;
    uint32_t node;
} listed_t;

static void add_listed(void *context, const lap_range_t *range, bool write)
{
    const listed_t *of = context;
    add_access(of->list, of->node, *range, write);
}

static void list_accesses(lap_access_list_t *list)
{
    const lap_check_t *check = list->check;
    for (uint32_t i = 0; i < check->nnodes; i++) {
        const lap_node_t *node = &check->nodes[i];
        const uint32_t tile = node->kind == LAP_NODE_TILE ? node->tile : LAP_NO_STEP;
        listed_t of = {list, i};
        if (node->kind != LAP_NODE_STEP && node->kind != LAP_NODE_TILE)
            continue;
        if (check->programs)
            lap_link_each(check->programs[node->rank],
                          lap_check_fragment(check, node->call, node->rank), node->step, tile,
                          add_listed, &of);
        else
            lap_schedule_each(lap_check_schedule(check, node->call, node->rank), node->step, tile,
                              add_listed, &of);
    }
}

/* By memory, then by where they begin. */
static int compare_accesses(const void *left, const void *right)
{
    const lap_access_played_t *a = left, *b = right;
    if (a->range.rank != b->range.rank)
        return a->range.rank < b->range.rank ? -1 : 1;
    if (a->range.place != b->range.place)
        return a->range.place < b->range.place ? -1 : 1;
    return (a->range.offset > b->range.offset) - (a->range.offset < b->range.offset);
}

void lap_access_describe(const lap_access_list_t *list, const lap_access_played_t *access,
                         lap_range_t range, char *text, size_t bytes)
{
    const lap_check_t *check = list->check;
    range.place = (lap_place_t)access->region;
    if (access->region < LAP_PLACES) {
        lap_range_describe(&range, text, bytes);
        return;
    }
    const lap_link_region_t *region =
        &check->programs[range.rank]->regions[access->region - LAP_PLACES];
    const size_t begin = range.offset - region->base;
    snprintf(text, bytes, "%s of rank %d, bytes %zu..%zu", region->name, range.rank, begin,
             begin + (range.rows ? (range.rows - 1) * range.stride + range.row_bytes - 1 : 0));
}

lap_status_t lap_access_conflict(const lap_access_list_t *list, const lap_access_played_t *a,
                                 const lap_access_played_t *b, const char *what)
{
    char one[LAP_CHECK_TEXT], other[LAP_CHECK_TEXT], where[128];
    size_t begin = 0, end = 0, from = 0, piece;
    for (bool first = true; lap_range_next_common(&a->range, &b->range, from, &piece, &end);
         first = false, from = end)
        begin = first ? piece : begin;
    lap_range_t common = a->range;
    common.offset = begin;
    common.rows = 1;
    common.row_bytes = common.stride = from - begin;
    lap_check_describe(list->check, a->node, one, sizeof(one));
    lap_check_describe(list->check, b->node, other, sizeof(other));
    lap_access_describe(list, a, common, where, sizeof(where));
    return lap_error(LAP_ERR_CHECK, "%s: %s %s and %s %s %s", what, one,
                     a->write ? "writes" : "reads", other, b->write ? "writes" : "reads", where);
}

/* Whether an access is what a put does in the memory of another rank. */
static bool is_sent(const lap_check_t *check, const lap_access_played_t *access)
{
    const lap_node_t *node = &check->nodes[access->node];
    return access->write && node->kind == LAP_NODE_STEP && node->raise_rank != node->rank &&
           node->raise_rank == access->range.rank;
}

/* Whether an access is over before a node, or, when that is another put, before its access. */
static bool access_before(const lap_check_t *check, const lap_access_played_t *earlier,
                          uint32_t later, bool later_is_sent)
{
    const int from = check->nodes[earlier->node].rank;
    /* What one rank puts into the memory of another comes in the order of sending. */
    if (!is_sent(check, earlier) || (later_is_sent && check->nodes[later].rank == from))
        return lap_check_before(check, earlier->node, later);
    return lap_check_arrived(check, earlier->node, later);
}

/* Whether the list that a program is made from has an access behind a later one. */
static bool is_too_early(const lap_check_t *check, const lap_access_played_t *access,
                         const lap_access_played_t *later)
{
    const int rank = access->range.rank;
    const bool phase = access->phase > later->phase;
    const bool order = access->phase == later->phase && later->order > 0;
    if (!phase && !(order && access->order > later->order))
        return false;
    const lap_link_region_t *regions = check->programs[rank]->regions;
    const lap_link_region_t *region = &regions[access->region - LAP_PLACES];
    const lap_fragment_t *a = lap_check_fragment(check, access->call, rank);
    const lap_fragment_t *b = lap_check_fragment(check, later->call, rank);
    return region->scope != LAP_SCOPE_CALL &&
           region->root == regions[later->region - LAP_PLACES].root &&
           (phase || (a->iteration == b->iteration && a->section == b->section));
}

/* Two accesses to the same bytes of which one writes. */
static lap_status_t check_pair(lap_access_list_t *list, const lap_access_played_t *a,
                               const lap_access_played_t *b)
{
    const lap_check_t *check = list->check;
    if (a->node == b->node) {
        /* What an epilogue adds to is read and written in place. */
        if (check->programs && a->write != b->write && a->region == b->region)
            return LAP_OK;
        return lap_access_conflict(list, a, b, "a step conflicts with itself");
    }
    bool a_first = access_before(check, a, b->node, is_sent(check, b));
    if (!a_first && !access_before(check, b, a->node, is_sent(check, a)))
        return lap_access_conflict(list, a, b, "no order between two accesses");
    if (is_too_early(check, a, b))
        return lap_access_conflict(list, a, b, "not in the order of the list");
    return LAP_OK;
}

/* ---- in the order of what happens ---- */

/* Accesses of the same memory, by where they begin: those that are there are held against later ones. */
typedef struct row {
    lap_extents_t extents;
    uint32_t *firsts; /* of each access: the first of its memory */
} row_t;

static void row_clear(row_t *row)
{
    lap_extents_clear(&row->extents);
    lap_free(row->firsts);
}

static bool row_init(row_t *row, const lap_access_list_t *list)
{
    *row = (row_t){.firsts = lap_alloc((size_t)list->count + 1, sizeof(uint32_t))};
    if (!lap_extents_init(&row->extents, (size_t)list->count + 1) || !row->firsts)
        return false;
    for (uint32_t i = 0; i < list->count; i++) {
        const lap_access_played_t *own = &list->accesses[i], *before = i > 0 ? own - 1 : own;
        const bool same =
            before->range.rank == own->range.rank && before->range.place == own->range.place;
        row->firsts[i] = i > 0 && same ? row->firsts[i - 1] : i;
    }
    return true;
}

/* The next access from `from` on that is there and may have bytes in common with one. */
static size_t row_next(const row_t *row, const lap_access_list_t *list, uint32_t access,
                       size_t from)
{
    const lap_access_played_t *own = &list->accesses[access];
    const size_t next = lap_extents_next(&row->extents, from, own->range.offset);
    return next < list->count && row->firsts[next] == row->firsts[access] &&
                   list->accesses[next].range.offset < own->end
               ? next
               : SIZE_MAX;
}

/* An access against those before it, in whose place it may be looked at from now on. */
static lap_status_t check_next(lap_access_list_t *list, row_t *row, uint32_t index)
{
    lap_access_played_t *own = &list->accesses[index];
    own->played = list->played++;
    list->nfinds = 0;
    for (size_t p = row_next(row, list, index, row->firsts[index]); p != SIZE_MAX;
         p = row_next(row, list, index, p + 1)) {
        const lap_access_played_t *other = &list->accesses[p];
        if ((own->write || other->write) && lap_range_overlaps(&other->range, &own->range)) {
            LAP_TRY(check_pair(list, other, own));
            if (!own->write)
                lap_access_add_find(list, (uint32_t)p);
        }
        const bool stands =
            own->write || (!other->write && !is_too_early(list->check, other, own) &&
                           lap_check_before(list->check, other->node, own->node));
        if (stands && lap_access_has_all(own, other))
            lap_extents_set(&row->extents, p, 0);
    }
    lap_extents_set(&row->extents, index, own->end);
    if (!own->write)
        lap_access_look_at_finds(list, own);
    return list->check->status;
}

/* Reads of a node before its writes: it does not find what it writes itself. */
static lap_status_t play_accesses(lap_access_list_t *list, row_t *row, uint32_t *first,
                                  uint32_t *next)
{
    const lap_check_t *check = list->check;
    for (uint32_t i = 0; i < check->nnodes; i++)
        first[i] = LAP_CHECK_NONE;
    for (int write = 1; write >= 0; write--)
        for (uint32_t i = 0; i < list->count; i++) {
            uint32_t *head = &first[list->accesses[i].node];
            if (list->accesses[i].write != (write == 1))
                continue;
            next[i] = *head;
            *head = i;
        }
    for (uint32_t n = 0; n < check->nnodes; n++)
        for (uint32_t i = first[check->sequence[n]]; i != LAP_CHECK_NONE; i = next[i])
            LAP_TRY(check_next(list, row, i));
    return LAP_OK;
}

static lap_status_t check_pairs(lap_access_list_t *list)
{
    row_t row;
    uint32_t *first = lap_alloc((size_t)list->check->nnodes + 1, sizeof(*first));
    uint32_t *next = lap_alloc((size_t)list->count + 1, sizeof(*next));
    lap_status_t status = LAP_OK;
    if (!row_init(&row, list) || !first || !next)
        status =
            lap_error(LAP_ERR_NO_MEMORY, "no memory to check %u accesses", (unsigned)list->count);
    if (status == LAP_OK)
        status = play_accesses(list, &row, first, next);
    row_clear(&row);
    lap_free(first);
    lap_free(next);
    return status;
}

/* Every byte that is read must be one that the same call wrote before, or the program for that region. */
static lap_status_t check_reads(const lap_access_list_t *list)
{
    for (uint32_t read = 0; read < list->count; read++) {
        const lap_access_played_t *access = &list->accesses[read];
        if (access->write || access->covered == lap_range_bytes(&access->range))
            continue;
        if (access->stranger != LAP_CHECK_NONE)
            return lap_access_conflict(list, access, &list->accesses[access->stranger],
                                       "a read of what was written for another region");
        char text[LAP_CHECK_TEXT], where[128];
        lap_check_describe(list->check, access->node, text, sizeof(text));
        lap_access_describe(list, access, access->range, where, sizeof(where));
        return lap_error(LAP_ERR_CHECK,
                         "a read of unwritten memory: %s reads %s, of which only %zu of %zu bytes "
                         "have been written in this call by then",
                         text, where, access->covered, lap_range_bytes(&access->range));
    }
    return LAP_OK;
}

/* The latest call before one in which a rank used its memory of the same buffer; NULL: none. */
static const lap_node_t *find_free(const lap_check_t *check, uint32_t call, int rank)
{
    const uint32_t buffer = lap_check_fragment(check, call, rank)->buffer;
    while (call-- > 0) {
        const lap_node_t *node = &check->nodes[check->frees[lap_check_at(check, call, rank)]];
        if (lap_check_fragment(check, call, rank)->buffer == buffer && node->npreds > 0)
            return node;
    }
    return NULL;
}

/* Whether a rank's memory was its own before a node of a later call. */
static bool free_before(const lap_check_t *check, uint32_t call, int rank, uint32_t later)
{
    const lap_node_t *before = find_free(check, call, rank);
    if (!before)
        return lap_check_before(check, check->begins[lap_check_at(check, 0, rank)], later);
    for (uint32_t i = 0; i < before->npreds; i++)
        if (!lap_check_before(check, check->preds[before->first_pred + i], later))
            return false;
    return true;
}

/*
 * The rule that makes the proof hold for any calls before and after, not only for those looked at.
 */
static lap_status_t check_rule(const lap_access_list_t *list)
{
    const lap_check_t *check = list->check;
    for (uint32_t i = 0; i < list->count; i++) {
        const lap_access_played_t *access = &list->accesses[i];
        const size_t at = lap_check_at(check, access->call, access->range.rank);
        if (check->programs && !access->symmetric)
            continue;
        bool begun = check->programs
                         ? free_before(check, access->call, access->range.rank, access->node)
                         : lap_check_before(check, check->begins[at], access->node);
        if (begun && access_before(check, access, check->ends[at], false))
            continue;
        char one[LAP_CHECK_TEXT], other[LAP_CHECK_TEXT], where[128];
        lap_check_describe(check, access->node, one, sizeof(one));
        lap_check_describe(check, begun || check->programs ? check->ends[at] : check->begins[at],
                           other, sizeof(other));
        lap_access_describe(list, access, access->range, where, sizeof(where));
        return lap_error(
            LAP_ERR_CHECK,
            "memory of a peer outside its call: %s %s %s, with no order between it and "
            "%s",
            one, access->write ? "writes" : "reads", where, other);
    }
    return LAP_OK;
}

lap_status_t lap_check_access(lap_check_t *check)
{
    lap_access_list_t list = {.check = check};
    list_accesses(&list);
    lap_status_t status = check->status;
    if (status == LAP_OK && list.count > 0)
        qsort(list.accesses, list.count, sizeof(lap_access_played_t), compare_accesses);
    if (status == LAP_OK)
        status = check_pairs(&list);
    if (status == LAP_OK)
        status = check_reads(&list);
    if (status == LAP_OK)
        status = lap_access_check_results(&list);
    if (status == LAP_OK)
        status = check_rule(&list);
    lap_free(list.accesses);
    lap_free(list.pieces);
    lap_free(list.finds);
    return status;
}
