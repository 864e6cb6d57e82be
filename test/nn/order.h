/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mutants of the order of programs: a call is taken out of the programs of its ranks, or moved to an earlier place of an
 * order of the calls of all ranks, and what is left is linked anew, so that it has no race. Whether the program is still right is found out in a simple
 * way: its fragments are gone through in their order, each byte has who wrote it last, and each fragment must read
 * what it read before. Gradients have the sum of all that was added to them. The proof must say the same.
 */
#ifndef LAP_TEST_NN_ORDER_H
#define LAP_TEST_NN_ORDER_H

#include <stdlib.h>
#include <string.h>

#include "nn/program.h"
#include "schedule/calls.h"
#include "tap.h"

typedef struct order_tally {
    size_t wrong, found; /* mutants that are wrong, and those of them that the proof finds */
    size_t right, alarms;
} order_tally_t;

/* ---- whether a program is right ---- */

typedef struct order_play {
    const lap_linked_t *linked;
    const lap_fragment_t *fragment;
    uint64_t **bytes; /* what each byte has, by memory; of scratch memory of calls: NULL */
    size_t *sizes;
    uint64_t id, read; /* of the fragment, and the sum of what it reads */
    bool *updates;     /* regions that it reads and writes, */
    bool *reads;       /* or reads, so far */
} order_play_t;

static inline uint64_t order_hash(uint64_t x)
{
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
    return x ^ x >> 32;
}

static inline void order_find_updates(void *context, const lap_range_t *range, bool write)
{
    order_play_t *play = context;
    if (range->place < LAP_PLACES)
        return;
    const uint32_t region = (uint32_t)range->place - LAP_PLACES;
    play->reads[region] = play->reads[region] || !write;
    play->updates[region] =
        play->updates[region] ||
        (write && play->reads[region] && play->linked->regions[region].memory == LAP_NN_LASTING &&
         play->fragment->phase == LAP_NN_PHASE_LAYERS);
}

static inline void order_access(void *context, const lap_range_t *range, bool write)
{
    order_play_t *play = context;
    if (range->place < LAP_PLACES)
        return;
    const uint32_t index = (uint32_t)range->place - LAP_PLACES;
    const lap_link_region_t *region = &play->linked->regions[index];
    if (region->scope == LAP_SCOPE_CALL)
        return;
    for (size_t row = 0; row < range->rows; row++)
        for (size_t i = 0; i < range->row_bytes; i++) {
            const size_t at = region->base + range->offset + row * range->stride + i;
            uint64_t *byte = &play->bytes[region->memory][at];
            if (write)
                *byte = play->updates[index] ? *byte + order_hash(play->id) : order_hash(play->id);
            else if (!play->updates[index])
                play->read += order_hash(*byte + order_hash(at));
        }
}

static inline void order_each(order_play_t *play, lap_each_access_t each)
{
    const lap_schedule_t *schedule = &play->fragment->schedule;
    for (uint32_t s = 0; s < schedule->nsteps; s++)
        lap_link_each_of_step(play->linked, play->fragment, s, each, play);
}

static inline void *order_array(size_t count, size_t size)
{
    void *array = calloc(count + 1, size);
    if (!array)
        exit(1);
    return array;
}

static inline uint32_t order_memories(order_play_t *play)
{
    const lap_linked_t *linked = play->linked;
    uint32_t count = 0;
    for (uint32_t i = 0; i < linked->nregions; i++)
        count = linked->regions[i].memory >= count ? linked->regions[i].memory + 1 : count;
    play->bytes = order_array(count, sizeof(*play->bytes));
    play->sizes = order_array(count, sizeof(*play->sizes));
    for (uint32_t i = 0; i < linked->nregions; i++) {
        const lap_link_region_t *region = &linked->regions[i];
        size_t *size = &play->sizes[region->memory];
        if (region->scope != LAP_SCOPE_CALL && region->base + region->bytes > *size)
            *size = region->base + region->bytes;
    }
    for (uint32_t i = 0; i < count; i++)
        play->bytes[i] = order_array(play->sizes[i], sizeof(uint64_t));
    return count;
}

/* What each fragment reads, by its id, and what memory that lasts, and the caller's, has in the end. */
static inline void order_run(const lap_nn_list_t *list, const lap_linked_t *linked,
                             const uint32_t *ids, uint64_t *end, uint64_t *reads)
{
    order_play_t play = {.linked = linked};
    const uint32_t count = order_memories(&play);
    play.updates = order_array(linked->nregions, sizeof(bool));
    play.reads = order_array(linked->nregions, sizeof(bool));
    for (uint32_t f = 0; f < linked->nfragments; f++) {
        play.fragment = &linked->fragments[f];
        play.id = ids[f] + 1;
        play.read = 0;
        memset(play.updates, 0, linked->nregions);
        memset(play.reads, 0, linked->nregions);
        order_each(&play, order_find_updates);
        order_each(&play, order_access);
        reads[ids[f]] = play.read;
    }
    *end = 0;
    for (uint32_t i = 0; i < count; i++) {
        const bool ends = i != LAP_NN_PRIVATE && i < LAP_NN_MEMORIES + list->nregions;
        for (size_t at = 0; ends && at < play.sizes[i]; at++)
            *end += order_hash(play.bytes[i][at] + order_hash(at));
        free(play.bytes[i]);
    }
    free(play.bytes);
    free(play.sizes);
    free(play.updates);
    free(play.reads);
}

/* ---- mutants ---- */

static inline lap_status_t order_relink(lap_linked_t *linked)
{
    for (uint32_t f = 0; f < linked->nfragments; f++)
        linked->fragments[f].nlinks = 0;
    return lap_link(linked);
}

/* Element `from` becomes element `to`. */
static inline void order_rotate(void *array, size_t size, uint32_t from, uint32_t to)
{
    char *bytes = array, *moved = malloc(size);
    if (!moved)
        exit(1);
    memcpy(moved, bytes + from * size, size);
    if (from < to)
        memmove(bytes + from * size, bytes + (from + 1) * size, (to - from) * size);
    else
        memmove(bytes + (to + 1) * size, bytes + to * size, (from - to) * size);
    memcpy(bytes + to * size, moved, size);
    free(moved);
}

/* The calls of all ranks, in an order that the programs of all follow; and what all ranks read, by the ids of calls. */
typedef struct order_state {
    const lap_nn_programs_t *programs;
    uint32_t count;
    uint32_t *order; /* the call at each place */
    bool *has;       /* whether a rank is in a call, [call * size + rank] */
    uint64_t **before;
} order_state_t;

static inline bool order_has(const order_state_t *state, uint32_t place, int rank)
{
    return state->has[(size_t)state->order[place] * (size_t)state->programs->size + (size_t)rank];
}

/* How many of the calls before a place a rank is in: at the place of one of its calls, that is its fragment. */
static inline uint32_t order_fragment(const order_state_t *state, uint32_t place, int rank)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < place; i++)
        count += order_has(state, i, rank);
    return count;
}

/* The place of a fragment of a rank. */
static inline uint32_t order_place(const order_state_t *state, int rank, uint32_t f)
{
    uint32_t place = 0;
    while (!order_has(state, place, rank) || order_fragment(state, place, rank) < f)
        place++;
    return place;
}

/* The first of the ranks that are in the call at a place, and its fragment. */
static inline const lap_fragment_t *order_first(const order_state_t *state, uint32_t place)
{
    int rank = 0;
    while (!order_has(state, place, rank))
        rank++;
    return &state->programs->programs[rank].fragments[order_fragment(state, place, rank)];
}

static inline void order_move(order_state_t *state, uint32_t from, uint32_t to)
{
    for (int rank = 0; rank < state->programs->size; rank++) {
        lap_linked_t *linked = &state->programs->programs[rank];
        if (!order_has(state, from, rank))
            continue;
        order_rotate(linked->fragments, sizeof(lap_fragment_t), order_fragment(state, from, rank),
                     from < to ? order_fragment(state, to + 1, rank) - 1
                               : order_fragment(state, to, rank));
        if (order_relink(linked) != LAP_OK)
            exit(1);
    }
    order_rotate(state->order, sizeof(*state->order), from, to);
}

/* What a rank reads. */
static inline void order_read(const order_state_t *state, int rank, uint64_t *reads)
{
    uint32_t *ids = order_array(state->count, sizeof(*ids)), at = 0;
    for (uint32_t i = 0; i < state->count; i++)
        if (order_has(state, i, rank))
            ids[at++] = state->order[i];
    order_run(&state->programs->lists[rank], &state->programs->programs[rank], ids,
              &reads[state->count], reads);
    free(ids);
}

/* Whether all ranks read what they read before. */
static inline bool order_is_right(const order_state_t *state)
{
    bool right = true;
    uint64_t *reads = order_array(state->count, sizeof(*reads));
    for (int rank = 0; rank < state->programs->size && right; rank++) {
        memset(reads, 0, (state->count + 1) * sizeof(*reads));
        order_read(state, rank, reads);
        right = memcmp(reads, state->before[rank], (state->count + 1) * sizeof(*reads)) == 0;
    }
    free(reads);
    return right;
}

static inline bool order_objects(const lap_nn_programs_t *programs)
{
    return lap_linked_check(programs->list, programs->size, false) == LAP_ERR_CHECK;
}

typedef struct order_find {
    const lap_linked_t *linked;
    bool writes;
} order_find_t;

static inline void order_find_write(void *context, const lap_range_t *range, bool write)
{
    order_find_t *find = context;
    find->writes =
        find->writes || (write && range->place >= LAP_PLACES &&
                         find->linked->regions[range->place - LAP_PLACES].scope != LAP_SCOPE_CALL);
}

/* Whether a fragment writes something: of a matrix without rows there is nothing. */
static inline bool order_writes(const lap_linked_t *linked, const lap_fragment_t *fragment)
{
    order_find_t find = {linked, false};
    for (uint32_t s = 0; s < fragment->schedule.nsteps; s++)
        lap_link_each_of_step(linked, fragment, s, order_find_write, &find);
    return find.writes;
}

/* Each call is taken out. */
static inline void order_drop(order_state_t *state, order_tally_t *tally)
{
    const lap_nn_programs_t *programs = state->programs;
    const uint32_t last = state->count - 1;
    for (uint32_t i = 0; i <= last; i++) {
        bool writes = false;
        for (int rank = 0; rank < programs->size; rank++) {
            const lap_linked_t *linked = &programs->programs[rank];
            writes = writes ||
                     (order_has(state, i, rank) &&
                      order_writes(linked, &linked->fragments[order_fragment(state, i, rank)]));
        }
        if (!writes)
            continue;
        order_move(state, i, last);
        for (int rank = 0; rank < programs->size; rank++) {
            programs->programs[rank].nfragments -= order_has(state, last, rank);
            (void)order_relink(&programs->programs[rank]);
        }
        tally->wrong++;
        const bool found = order_objects(programs);
        tally->found += found;
        for (int rank = 0; rank < programs->size; rank++)
            programs->programs[rank].nfragments += order_has(state, last, rank);
        if (!found)
            tap_note("survived: call %u, %s, taken out", (unsigned)i,
                     order_first(state, last)->schedule.method);
        order_move(state, last, i);
    }
}

/* The call at place `from` comes before that at `to`. */
static inline void order_try(order_state_t *state, uint32_t from, uint32_t to, order_tally_t *tally)
{
    order_move(state, from, to);
    const bool right = order_is_right(state), found = order_objects(state->programs);
    tally->wrong += !right;
    tally->found += !right && found;
    tally->right += right;
    tally->alarms += right && found;
    if (found == right)
        tap_note("%s: call %u, %s, before %u: %s", right ? "alarm" : "survived", (unsigned)from,
                 order_first(state, to)->schedule.method, (unsigned)to,
                 right ? lap_last_error() : "");
    order_move(state, to, from);
}

/* Each rank goes on to its next fragment when all ranks of that call have come to it. */
static inline void order_merge(order_state_t *state, const lap_calls_t *calls)
{
    const lap_nn_programs_t *programs = state->programs;
    const size_t size = (size_t)programs->size;
    uint32_t *next = order_array(size, sizeof(*next));
    state->count = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int rank = 0; rank < programs->size; rank++) {
            const lap_linked_t *linked = &programs->programs[rank];
            if (next[rank] == linked->nfragments)
                continue;
            const lap_fragment_t *fragment = &linked->fragments[next[rank]];
            bool ready = true;
            for (int r = 0; r < fragment->schedule.size; r++)
                ready = ready && lap_calls_of(calls, rank, next[rank], r) ==
                                     next[lap_fragment_rank(fragment, r)];
            for (int r = 0; ready && r < fragment->schedule.size; r++) {
                const int peer = lap_fragment_rank(fragment, r);
                state->has[state->count * size + (size_t)peer] = true;
                next[peer]++;
            }
            state->count += ready;
            moved = moved || ready;
        }
    }
    for (size_t rank = 0; rank < size; rank++)
        if (next[rank] != programs->programs[rank].nfragments)
            exit(1); /* there is no such order */
    free(next);
}

/* order_end frees it. */
static inline order_state_t order_begin(const lap_nn_programs_t *programs)
{
    const size_t size = (size_t)programs->size;
    order_state_t state = {.programs = programs, .before = order_array(size, sizeof(uint64_t *))};
    lap_calls_t calls;
    if (lap_calls_init(&calls, programs->list, programs->size) != LAP_OK)
        exit(1);
    state.has = order_array(calls.first[size] * size, sizeof(bool));
    order_merge(&state, &calls);
    state.order = order_array(state.count, sizeof(uint32_t));
    for (uint32_t i = 0; i < state.count; i++)
        state.order[i] = i;
    for (int rank = 0; rank < programs->size; rank++) {
        state.before[rank] = order_array(state.count, sizeof(uint64_t));
        order_read(&state, rank, state.before[rank]);
    }
    lap_calls_clear(&calls);
    return state;
}

static inline void order_end(order_state_t *state, const char *what)
{
    tap_ok(!order_objects(state->programs), "%s: as it was, it is proved", what);
    for (int rank = 0; rank < state->programs->size; rank++)
        free(state->before[rank]);
    free(state->before);
    free(state->order);
    free(state->has);
}

/* Each call of late phases, or every one, is moved to earlier places: every `stride`-th. */
static inline void order_mutate(const lap_nn_programs_t *programs, bool late, uint32_t stride,
                                const char *what)
{
    order_tally_t dropped = {0}, moved = {0};
    order_state_t state = order_begin(programs);
    order_drop(&state, &dropped);
    for (uint32_t f = 1; f < state.count; f++)
        for (uint32_t to = f - 1; !late || order_first(&state, f)->phase > LAP_NN_PHASE_LAYERS;
             to -= stride) {
            order_try(&state, f, to, &moved);
            if (to < stride)
                break;
        }
    tap_ok(dropped.wrong > 0 && dropped.found == dropped.wrong,
           "%s: %zu calls taken out are missed, of %zu", what, dropped.found, dropped.wrong);
    tap_ok(moved.wrong > 0 && moved.right > 0 && moved.found == moved.wrong && moved.alarms == 0,
           "%s: %zu of %zu calls that come too early are found, of %zu that do not %zu", what,
           moved.found, moved.wrong, moved.right, moved.alarms);
    order_end(&state, what);
}

static inline bool order_is_kernel(const lap_fragment_t *fragment, const char *name)
{
    return fragment->schedule.nsteps == 1 && fragment->schedule.steps[0].kind == LAP_STEP_KERNEL &&
           strcmp(fragment->schedule.steps[0].name, name) == 0;
}

#endif
