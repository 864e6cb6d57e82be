/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A part of check_access.c: what a read finds. That is what was written last for its own region, within its scope.
 */
#include "schedule/check_access.h"

#include <stdlib.h>

/* Whether a region has contents that no call wrote. */
static bool is_filled(const lap_check_t *check, const lap_access_played_t *access)
{
    return access->region >= LAP_PLACES && check->programs[check->nodes[access->node].rank]
                                               ->regions[access->region - LAP_PLACES]
                                               .filled;
}

/* Whether two accesses to the same memory are to the same region, or to parts of one. */
static bool same_region(const lap_check_t *check, const lap_access_played_t *a,
                        const lap_access_played_t *b)
{
    if (a->region < LAP_PLACES)
        return true; /* places have a memory each */
    const lap_link_region_t *regions = check->programs[a->range.rank]->regions;
    return regions[a->region - LAP_PLACES].root == regions[b->region - LAP_PLACES].root;
}

/* Whether what was written to a region may be read there: within its scope. */
static bool in_scope(const lap_check_t *check, const lap_access_played_t *write,
                     const lap_access_played_t *read)
{
    const int rank = read->range.rank;
    const lap_link_scope_t scope =
        read->region < LAP_PLACES ? LAP_SCOPE_CALL
                                  : check->programs[rank]->regions[read->region - LAP_PLACES].scope;
    if (scope == LAP_SCOPE_ITERATION)
        return lap_check_fragment(check, write->call, rank)->iteration ==
               lap_check_fragment(check, read->call, rank)->iteration;
    return scope == LAP_SCOPE_PROGRAM || write->call == read->call;
}

static int compare_pieces(const void *left, const void *right)
{
    const lap_access_piece_t *a = left, *b = right;
    return (a->begin > b->begin) - (a->begin < b->begin);
}

/* Pieces that overlap or touch become one. Returns the bytes of all. */
static size_t merge_pieces(lap_access_list_t *list)
{
    size_t covered = 0;
    uint32_t last = 0;
    if (list->npieces > 1)
        qsort(list->pieces, list->npieces, sizeof(lap_access_piece_t), compare_pieces);
    for (uint32_t i = 1; i < list->npieces; i++) {
        const lap_access_piece_t piece = list->pieces[i];
        lap_access_piece_t *before = &list->pieces[last];
        if (piece.begin > before->end)
            list->pieces[++last] = piece;
        else if (piece.end > before->end)
            before->end = piece.end;
    }
    list->npieces = list->npieces > 0 ? last + 1 : 0;
    for (uint32_t i = 0; i < list->npieces; i++)
        covered += list->pieces[i].end - list->pieces[i].begin;
    return covered;
}

/* Adds what a write covers of a read. */
static void cover(lap_access_list_t *list, const lap_access_played_t *write,
                  const lap_access_played_t *read)
{
    size_t begin, end;
    for (size_t from = 0; lap_range_next_common(&write->range, &read->range, from, &begin, &end);
         from = end) {
        lap_access_piece_t *pieces = lap_check_grow(list->check, list->pieces, list->npieces,
                                                    &list->pieces_room, sizeof(lap_access_piece_t));
        if (!pieces)
            return;
        list->pieces = pieces;
        pieces[list->npieces++] = (lap_access_piece_t){begin, end};
    }
}

/* Whether the pieces, which are merged, have all that a read has of a write. */
static bool is_covered(const lap_access_list_t *list, const lap_access_played_t *write,
                       const lap_access_played_t *read)
{
    size_t begin, end;
    uint32_t i = 0;
    for (size_t from = 0; lap_range_next_common(&write->range, &read->range, from, &begin, &end);
         from = end) {
        while (i < list->npieces && list->pieces[i].end <= begin)
            i++;
        if (i == list->npieces || list->pieces[i].begin > begin || list->pieces[i].end < end)
            return false;
    }
    return true;
}

static int compare_finds(const void *left, const void *right)
{
    const lap_access_find_t *a = left, *b = right;
    return (a->played < b->played) - (a->played > b->played);
}

void lap_access_add_find(lap_access_list_t *list, uint32_t write)
{
    lap_access_find_t *finds = lap_check_grow(list->check, list->finds, list->nfinds,
                                              &list->finds_room, sizeof(lap_access_find_t));
    if (!finds)
        return;
    list->finds = finds;
    finds[list->nfinds++] = (lap_access_find_t){list->accesses[write].played, write};
}

/*
 * From the latest of the writes that it meets to the first: one for another region, or out of scope, may not
 * be the latest of any byte.
 */
void lap_access_look_at_finds(lap_access_list_t *list, lap_access_played_t *own)
{
    const size_t bytes = lap_range_bytes(&own->range);
    bool filled = is_filled(list->check, own);
    if (list->nfinds > 1)
        qsort(list->finds, list->nfinds, sizeof(lap_access_find_t), compare_finds);
    list->npieces = 0;
    for (uint32_t i = 0; i < list->nfinds; i++) {
        const lap_access_played_t *write = &list->accesses[list->finds[i].write];
        const bool same = same_region(list->check, write, own);
        if (!same || !in_scope(list->check, write, own)) {
            (void)merge_pieces(list);
            if (is_covered(list, write, own))
                continue;
            own->stranger = same ? LAP_CHECK_NONE : list->finds[i].write;
            filled = false;
            break;
        }
        if (lap_access_has_all(write, own)) {
            own->covered = bytes;
            return;
        }
        cover(list, write, own);
    }
    own->covered = filled ? bytes : merge_pieces(list);
}
