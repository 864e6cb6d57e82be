/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A part of the checker: what calls write. A result is written once and whole, and each region of a
 * program by as many fragments as the list has that the program is made from.
 */
#include "core/status.h"
#include "schedule/check_access.h"
#include "util/alloc.h"

/* The results of a call of a rank; in linked programs they are regions. */
static void find_results(const lap_check_t *check, uint32_t call, int rank, lap_range_t results[3])
{
    const lap_schedule_t *schedule = lap_check_schedule(check, call, rank);
    const lap_fragment_t *fragment = lap_check_fragment(check, call, rank);
    results[0] = schedule->output;
    results[1] = schedule->gathered;
    results[2] = schedule->scales;
    for (int i = 0; fragment && i < 3; i++)
        results[i] = lap_link_resolve(check->programs[rank], fragment, &results[i]);
}

/* Accesses that write to the memory of a rank in a call: the first of them, and the next of each. */
typedef struct writes {
    uint32_t *first, *next;
} writes_t;

static lap_status_t list_writes(const lap_access_list_t *list, writes_t *writes)
{
    const size_t count = (size_t)list->check->ncalls * (size_t)list->check->size;
    writes->first = lap_alloc(count + 1, sizeof(uint32_t));
    writes->next = lap_alloc((size_t)list->count + 1, sizeof(uint32_t));
    if (!writes->first || !writes->next)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to check %u accesses",
                         (unsigned)list->count);
    for (size_t i = 0; i < count; i++)
        writes->first[i] = LAP_CHECK_NONE;
    for (uint32_t i = list->count; i-- > 0;) {
        const lap_access_played_t *access = &list->accesses[i];
        uint32_t *first =
            &writes->first[lap_check_at(list->check, access->call, access->range.rank)];
        if (!access->write)
            continue;
        writes->next[i] = *first;
        *first = i;
    }
    return LAP_OK;
}

/* No other write of the call has bytes in common with one to a result; those that begin after it follow. */
static lap_status_t check_once(const lap_access_list_t *list, const writes_t *writes,
                               uint32_t index)
{
    const lap_access_played_t *access = &list->accesses[index];
    for (uint32_t i = writes->next[index]; i != LAP_CHECK_NONE; i = writes->next[i]) {
        const lap_access_played_t *other = &list->accesses[i];
        if (other->range.place != access->range.place || other->range.offset >= access->end)
            break;
        if (other->node != access->node && lap_range_overlaps(&access->range, &other->range))
            return lap_access_conflict(list, access, other, "a result is written twice in a call");
    }
    return LAP_OK;
}

/* The results of a call: no two writes overlap, all are inside, and they add up to the whole. */
static lap_status_t check_result(const lap_access_list_t *list, const writes_t *writes,
                                 uint32_t call, int rank, const lap_range_t *result)
{
    lap_range_t whole = lap_range_normal(*result);
    char text[LAP_CHECK_TEXT], where[128];
    size_t written = 0;
    if (list->check->programs && whole.rows > 0 && whole.place >= LAP_PLACES)
        whole.offset += list->check->programs[rank]->regions[whole.place - LAP_PLACES].base;
    for (uint32_t i = writes->first[lap_check_at(list->check, call, rank)]; i != LAP_CHECK_NONE;
         i = writes->next[i]) {
        const lap_access_played_t *access = &list->accesses[i];
        if (access->region != (uint32_t)result->place)
            continue;
        LAP_TRY(check_once(list, writes, i));
        size_t bytes = lap_range_bytes(&access->range);
        written += bytes;
        if (lap_range_common(&access->range, &whole) == bytes)
            continue;
        lap_check_describe(list->check, access->node, text, sizeof(text));
        lap_access_describe(list, access, access->range, where, sizeof(where));
        return lap_error(LAP_ERR_CHECK, "%s writes %s, which is not all part of the result", text,
                         where);
    }
    if (written == lap_range_bytes(&whole))
        return LAP_OK;
    lap_range_describe(&whole, where, sizeof(where));
    return lap_error(LAP_ERR_CHECK,
                     "an incomplete result: call %u rank %d writes %zu of %zu bytes of %s",
                     (unsigned)call, rank, written, lap_range_bytes(&whole), where);
}

/* How many fragments of a rank write each region; `seen`: the latest call that does, and 1. */
static void count_writers(const lap_access_list_t *list, const writes_t *writes, int rank,
                          uint32_t *counts, uint32_t *seen)
{
    const lap_check_t *check = list->check;
    for (uint32_t call = 0; call < lap_check_ncalls(check, rank); call++)
        for (uint32_t i = writes->first[lap_check_at(check, call, rank)]; i != LAP_CHECK_NONE;
             i = writes->next[i]) {
            const lap_access_played_t *access = &list->accesses[i];
            const uint32_t region = access->region - LAP_PLACES;
            if (access->symmetric || seen[region] == call + 1)
                continue;
            seen[region] = call + 1;
            counts[region]++;
        }
}

/* A program has all that its list has: each region is written as often. */
static lap_status_t check_writers(const lap_access_list_t *list, const writes_t *writes, int rank)
{
    const lap_linked_t *linked = list->check->programs ? list->check->programs[rank] : NULL;
    if (!linked || !linked->counted)
        return LAP_OK;
    uint32_t *counts = lap_alloc((size_t)linked->nregions + 1, sizeof(*counts));
    uint32_t *seen = lap_alloc((size_t)linked->nregions + 1, sizeof(*seen));
    lap_status_t status = LAP_OK;
    if (!counts || !seen)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to check %u regions",
                           (unsigned)linked->nregions);
    else
        count_writers(list, writes, rank, counts, seen);
    for (uint32_t i = 0; i < linked->nregions && status == LAP_OK; i++)
        if (linked->regions[i].scope != LAP_SCOPE_CALL && counts[i] != linked->regions[i].writers)
            status = lap_error(LAP_ERR_CHECK,
                               "a program that is not all of its list: %u fragments of rank %d "
                               "write %s, expected %u",
                               (unsigned)counts[i], rank, linked->regions[i].name,
                               (unsigned)linked->regions[i].writers);
    lap_free(counts);
    lap_free(seen);
    return status;
}

lap_status_t lap_access_check_results(const lap_access_list_t *list)
{
    const lap_check_t *check = list->check;
    writes_t writes = {NULL, NULL};
    lap_status_t status = list_writes(list, &writes);
    for (uint32_t call = 0; call < check->ncalls && status == LAP_OK; call++)
        for (int rank = 0; rank < check->size; rank++) {
            lap_range_t results[3];
            if (call >= lap_check_ncalls(check, rank))
                continue;
            find_results(check, call, rank, results);
            for (int i = 0; i < 3 && status == LAP_OK; i++)
                if (!check->programs || results[i].rows > 0)
                    status = check_result(list, &writes, call, rank, &results[i]);
        }
    for (int rank = 0; rank < check->size && status == LAP_OK; rank++)
        status = check_writers(list, &writes, rank);
    lap_free(writes.first);
    lap_free(writes.next);
    return status;
}
