/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of check_access.c share: accesses as they are played, and the writes that a read finds. */
#ifndef LAP_SCHEDULE_CHECK_ACCESS_H
#define LAP_SCHEDULE_CHECK_ACCESS_H

#include "schedule/check.h"

typedef struct lap_access_played {
    uint32_t node;
    uint32_t call; /* as the rank counts whose memory it is */
    bool write;
    bool symmetric;
    uint32_t region;   /* or place */
    uint32_t order;    /* of its fragment, */
    uint32_t phase;    /* ... if the region lasts; else 0 */
    lap_range_t range; /* normal; of a region: in its memory */
    size_t end;        /* one past the last byte */
    uint32_t played;   /* its place in the order of what happens */
    size_t covered;    /* bytes of a read that writes before it cover */
    uint32_t
        stranger; /* a write for another region that the read would find; LAP_CHECK_NONE: none */
} lap_access_played_t;

/* A write that has bytes in common with a read. */
typedef struct lap_access_find {
    uint32_t played, write;
} lap_access_find_t;

/* Some of them. */
typedef struct lap_access_piece {
    size_t begin, end;
} lap_access_piece_t;

typedef struct lap_access_list {
    lap_check_t *check;
    lap_access_played_t *accesses; /* by memory, then by where they begin */
    uint32_t count;
    size_t room;
    lap_access_piece_t *pieces; /* of the read that is looked at */
    uint32_t npieces;
    size_t pieces_room;
    lap_access_find_t *finds; /* of the same read */
    uint32_t nfinds;
    size_t finds_room;
    uint32_t played; /* how many have happened */
} lap_access_list_t;

/* Whether all bytes of an access are among those of another. */
static inline bool lap_access_has_all(const lap_access_played_t *all,
                                      const lap_access_played_t *part)
{
    if (part->range.offset < all->range.offset || part->end > all->end)
        return false;
    const bool same = part->range.offset == all->range.offset && part->end == all->end &&
                      part->range.rows == all->range.rows &&
                      part->range.stride == all->range.stride;
    return all->range.rows == 1 || same ||
           lap_range_common(&all->range, &part->range) == lap_range_bytes(&part->range);
}

/* Bytes of the memory of an access, in words. */
void lap_access_describe(const lap_access_list_t *list, const lap_access_played_t *access,
                         lap_range_t range, char *text, size_t bytes);

/*
 * A failure of two accesses: both in words, and from the first to the last byte that they have in
 * common.
 */
lap_status_t lap_access_conflict(const lap_access_list_t *list, const lap_access_played_t *a,
                                 const lap_access_played_t *b, const char *what);

/* ---- check_results.c ---- */

/* Results are written once, and whole; and a program has all that its list has. */
lap_status_t lap_access_check_results(const lap_access_list_t *list);

/* ---- check_reads.c ---- */

/* A write that has bytes in common with the read that is looked at. */
void lap_access_add_find(lap_access_list_t *list, uint32_t write);

/* What of a read has been written for it, by the writes that it meets. */
void lap_access_look_at_finds(lap_access_list_t *list, lap_access_played_t *own);

#endif
