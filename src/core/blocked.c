/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is blocked in which call. Why what is found here is sure: a rank that says it is blocked by
 * another cannot have gone on, because that has not begun the call, and knows best itself whether
 * it has. So a record may be as old as it likes.
 */
#include "core/blocked.h"

#include <stdio.h>
#include <string.h>

#include "core/group.h"
#include "core/status.h"
#include "util/clock.h"

enum { FLAG_BLOCKED = 1, FLAG_COLLECTIVE = 2, FLAG_ALL = 4 };

/* ---- records ---- */

static void write_text(_Atomic uint64_t *words, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes / 8; i++) {
        uint64_t word;
        memcpy(&word, text + 8 * i, 8);
        atomic_store_explicit(&words[i], word, memory_order_release);
    }
}

static void read_text(const _Atomic uint64_t *words, char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes / 8; i++) {
        const uint64_t word = atomic_load_explicit(&words[i], memory_order_acquire);
        memcpy(text + 8 * i, &word, 8);
    }
    text[bytes - 1] = '\0';
}

void lap_blocked_write(lap_blocked_record_t *record, const lap_blocked_words_t *words)
{
    /* Partner: read_blocked. Each store releases those before it. */
    atomic_fetch_add_explicit(&record->version, 1, memory_order_acq_rel);
    atomic_store_explicit(&record->flags, words->flags, memory_order_release);
    atomic_store_explicit(&record->number, words->number, memory_order_release);
    atomic_store_explicit(&record->peer, words->peer, memory_order_release);
    atomic_store_explicit(&record->group, words->group, memory_order_release);
    write_text(record->call, words->call, LAP_CALL_TEXT);
    for (int i = 0; i < LAP_WAITER_WORDS; i++)
        atomic_store_explicit(&record->waiters[i], words->waiters[i], memory_order_release);
    atomic_fetch_add_explicit(&record->version, 1, memory_order_release);
}

/*
 * What a rank of the world says; false: nothing, or it is just changing it. `all`: with those that
 * wait for it, which are many words.
 */
static bool read_blocked(const lap_blocked_record_t *record, bool all, lap_blocked_words_t *words_p)
{
    const uint32_t version = atomic_load_explicit(&record->version, memory_order_acquire);
    words_p->flags = atomic_load_explicit(&record->flags, memory_order_acquire);
    words_p->number = atomic_load_explicit(&record->number, memory_order_acquire);
    words_p->peer = atomic_load_explicit(&record->peer, memory_order_acquire);
    words_p->group = atomic_load_explicit(&record->group, memory_order_acquire);
    read_text(record->call, words_p->call, LAP_CALL_TEXT);
    for (int i = 0; all && i < LAP_WAITER_WORDS; i++)
        words_p->waiters[i] = atomic_load_explicit(&record->waiters[i], memory_order_acquire);
    return version % 2 == 0 && (words_p->flags & FLAG_BLOCKED) &&
           atomic_load_explicit(&record->version, memory_order_acquire) == version;
}

static const lap_blocked_record_t *note_of(const lap_group_t *group, int rank)
{
    return lap_group_blocked_record(group->world->group, group->members[rank]);
}

/* ---- places ---- */

void lap_call_place_add(lap_group_t *group, lap_call_place_t *place)
{
    pthread_mutex_lock(&group->world->calls_lock);
    place->next = group->places;
    group->places = place;
    pthread_mutex_unlock(&group->world->calls_lock);
}

void lap_call_place_remove(lap_group_t *group, lap_call_place_t *place)
{
    pthread_mutex_lock(&group->world->calls_lock);
    for (lap_call_place_t **link = &group->places; *link; link = &(*link)->next)
        if (*link == place) {
            *link = place->next;
            break;
        }
    pthread_mutex_unlock(&group->world->calls_lock);
}

/* What an operator's call is, as its record says. */
typedef struct call_report {
    uint64_t number, m;
    uint32_t op;
    char name[LAP_CALL_NAME];
} call_report_t;

/* False when the record is being written. */
static bool read_record(const lap_call_record_t *record, call_report_t *report_p)
{
    const uint64_t number = atomic_load_explicit(&record->number, memory_order_acquire);
    report_p->number = number;
    report_p->op = atomic_load_explicit(&record->op, memory_order_acquire);
    report_p->m = atomic_load_explicit(&record->m, memory_order_acquire);
    read_text(record->name, report_p->name, LAP_CALL_NAME);
    return number != 0 && atomic_load_explicit(&record->number, memory_order_acquire) == number;
}

/* The latest operator's call that a rank has begun in the group; number 0: none. With the lock. */
static call_report_t latest_of(const lap_group_t *group, int rank)
{
    call_report_t latest = {.number = 0}, report;
    for (const lap_call_place_t *place = group->places; place; place = place->next)
        for (int i = 0; i < LAP_CALL_RECORDS; i++)
            if (read_record(&place->records[rank][i], &report) && report.number > latest.number)
                latest = report;
    return latest;
}

static bool has_begun(const lap_blocked_t *mine, int rank)
{
    if (mine->collective)
        return lap_group_has_come(mine->group, rank, (uint32_t)mine->number);
    return latest_of(mine->group, rank).number >= mine->number;
}

/* ---- what the caller waits for ---- */

void lap_await_begin(lap_world_t *world, const void *buffer, uint64_t first, uint64_t last)
{
    atomic_store_explicit(&world->first_awaited, first, memory_order_relaxed);
    atomic_store_explicit(&world->last_awaited, last, memory_order_relaxed);
    /* Releases what this thread has counted, too, to lap_await_is. */
    atomic_store_explicit(&world->awaited, buffer, memory_order_release);
}

void lap_await_end(lap_world_t *world)
{
    atomic_store_explicit(&world->awaited, NULL, memory_order_release);
    lap_blocked_end(world);
}

bool lap_await_is(const lap_world_t *world, const void *buffer, uint64_t number)
{
    return atomic_load_explicit(&world->awaited, memory_order_acquire) == buffer &&
           atomic_load_explicit(&world->first_awaited, memory_order_relaxed) <= number &&
           atomic_load_explicit(&world->last_awaited, memory_order_relaxed) >= number;
}

/* ---- looking ---- */

static lap_blocked_words_t words_of(const lap_blocked_t *mine)
{
    lap_blocked_words_t words = {
        .flags =
            FLAG_BLOCKED | (mine->collective ? FLAG_COLLECTIVE : 0u) | (mine->all ? FLAG_ALL : 0u),
        .number = mine->number,
        .peer = (uint32_t)mine->group->members[mine->peer],
        .group = mine->group->id,
    };
    memcpy(words.call, mine->call, sizeof(words.call));
    return words;
}

/* Whether the words say nothing new. */
static bool is_written(const lap_blocked_words_t *before, const lap_blocked_words_t *words)
{
    if (before->flags == 0 && words->flags == 0)
        return true;
    return before->flags == words->flags && before->number == words->number &&
           before->group == words->group &&
           (before->peer == words->peer || words->flags & FLAG_ALL) &&
           memcmp(before->waiters, words->waiters, sizeof(words->waiters)) == 0;
}

/* Says it to all, unless that was the last that was report. With the lock. */
static void publish(lap_world_t *world, const lap_blocked_words_t *words)
{
    lap_blocked_words_t before = {.flags = 0};
    if (!read_blocked(lap_group_blocked_record(world->group, world->rank), true, &before))
        before.flags = 0;
    if (is_written(&before, words))
        return;
    lap_group_publish_blocked(world->group, words);
    atomic_store_explicit(&world->is_blocked, words->flags != 0, memory_order_relaxed);
}

void lap_blocked_end(lap_world_t *world)
{
    const lap_blocked_words_t nothing = {.flags = 0};
    if (!atomic_load_explicit(&world->is_blocked, memory_order_relaxed))
        return;
    pthread_mutex_lock(&world->calls_lock);
    publish(world, &nothing);
    world->circle.since = 0;
    pthread_mutex_unlock(&world->calls_lock);
}

/* The group of a call that a peer is blocked in, if it waits for this rank to begin that. */
static lap_group_t *find_unbegun(const lap_world_t *world, const lap_blocked_words_t *theirs)
{
    lap_group_t *group = world->groups;
    if (!(theirs->flags & FLAG_ALL) && theirs->peer != (uint32_t)world->rank)
        return NULL;
    while (group && group->id != theirs->group)
        group = group->next;
    if (!group)
        return NULL;
    const bool begun = theirs->flags & FLAG_COLLECTIVE
                           ? (int32_t)(group->round - (uint32_t)theirs->number) >= 0
                           : group->calls >= theirs->number;
    return begun ? NULL : group;
}

/* The lower rank comes first, so that both say the same. */
static void differ(const lap_blocked_t *mine, int rank, const lap_blocked_words_t *theirs,
                   bool another)
{
    char here[LAP_RANK_TEXT], there[LAP_RANK_TEXT], first[256], second[256];
    lap_group_name(mine->group, mine->group->rank, here);
    lap_group_name(mine->group, rank, there);
    snprintf(first, sizeof(first), "%s is in %s, which %s has not begun", here, mine->call, there);
    snprintf(second, sizeof(second), "%s is in %s%s, which %s has not begun", there, theirs->call,
             another ? " of another group" : "", here);
    const bool lower = mine->group->rank < rank;
    lap_error(LAP_ERR_MISMATCH, "%s; %s", lower ? first : second, lower ? second : first);
}

/* With the lock. */
static lap_group_t *find_mismatch(const lap_blocked_t *mine)
{
    const lap_group_t *group = mine->group;
    const lap_world_t *world = group->world;
    for (int rank = 0; rank < group->size; rank++) {
        lap_blocked_words_t theirs;
        if (rank == group->rank || !(mine->all || rank == mine->peer) ||
            !read_blocked(note_of(group, rank), false, &theirs))
            continue;
        lap_group_t *other = find_unbegun(world, &theirs);
        if (!other || has_begun(mine, rank))
            continue;
        differ(mine, rank, &theirs, other != group);
        return other;
    }
    return NULL;
}

/* ---- circles ---- */

/*
 * How long a circle must be seen until it is sure, and how long a rank that is sure stays in its
 * call before it reports that: the others are to become sure, too, before they see it leave.
 */
#define CIRCLE_SURE_NS 500000000u
#define CIRCLE_STAY_NS 500000000u

static bool has_rank(const uint64_t *set, int rank)
{
    return set[rank / 64] >> (rank % 64) & 1;
}

static void describe_circle(const lap_world_t *world, const uint64_t *ranks, char *text,
                            size_t bytes)
{
    lap_blocked_words_t words;
    size_t used = (size_t)snprintf(text, bytes,
                                   "ranks wait in a circle, each in a call that another "
                                   "has not begun");
    const char *before = ": ";
    for (int rank = 0; rank < world->size && used < bytes; rank++) {
        if (!has_rank(ranks, rank) ||
            !read_blocked(lap_group_blocked_record(world->group, rank), false, &words))
            continue;
        used += (size_t)snprintf(text + used, bytes - used, "%srank %d is in %s", before, rank,
                                 words.call);
        before = ", ";
    }
}

/*
 * Adds to what this rank says who waits for it: those that are blocked in a call which it has not
 * begun, as it knows best itself, and those that wait for them. Returns whether it is one of them,
 * and what to say of that. A rank that waits for this one cannot have gone on since its report, nor
 * can those that wait for it: see above. With the lock.
 */
static bool list_waiters(lap_world_t *world, lap_blocked_words_t *words, lap_circle_t *circle)
{
    bool found = false;
    words->waiters[world->rank / 64] |= (uint64_t)1 << (world->rank % 64);
    for (int rank = 0; rank < world->size; rank++) {
        const lap_blocked_record_t *record = lap_group_blocked_record(world->group, rank);
        lap_blocked_words_t theirs;
        if (rank == world->rank || !read_blocked(record, false, &theirs) ||
            !find_unbegun(world, &theirs) || !read_blocked(record, true, &theirs))
            continue;
        lap_group_t *group = find_unbegun(world, &theirs); /* it may be in another call by now */
        if (!group)
            continue;
        for (int i = 0; i < LAP_WAITER_WORDS; i++)
            words->waiters[i] |= theirs.waiters[i];
        if (found || !has_rank(theirs.waiters, world->rank))
            continue;
        found = true;
        circle->group = group;
        describe_circle(world, theirs.waiters, circle->text, sizeof(circle->text));
    }
    return found;
}

/* Whether a circle is sure. */
static bool watch_circle(lap_circle_t *circle, bool found)
{
    const uint64_t now = lap_now_ns();
    if (!found)
        circle->since = 0;
    else if (circle->since == 0)
        circle->since = now;
    return found && now - circle->since >= CIRCLE_SURE_NS;
}

lap_status_t lap_blocked_look(const lap_blocked_t *mine)
{
    lap_world_t *world = mine->group->world;
    lap_blocked_words_t words = words_of(mine);
    pthread_mutex_lock(&world->calls_lock);
    const bool found = list_waiters(world, &words, &world->circle);
    publish(world, &words);
    lap_group_t *other = find_mismatch(mine);
    const bool sure = watch_circle(&world->circle, found) && !other;
    if (sure) {
        other = world->circle.group;
        lap_error(LAP_ERR_MISMATCH, "%s", world->circle.text);
    }
    pthread_mutex_unlock(&world->calls_lock);
    if (sure)
        lap_sleep_until_ns(lap_now_ns() + CIRCLE_STAY_NS);
    if (!other)
        return LAP_OK;
    lap_group_fail(mine->group, LAP_ERR_MISMATCH, lap_last_error());
    if (other != mine->group)
        lap_group_fail(other, LAP_ERR_MISMATCH, lap_last_error());
    return LAP_ERR_MISMATCH;
}

/* ---- operators in another order ---- */

lap_status_t lap_calls_compare(const lap_blocked_t *mine, int rank, const lap_call_place_t *place,
                               uint32_t op)
{
    lap_group_t *group = mine->group;
    call_report_t report = {.number = 0}, found = {.number = 0};
    pthread_mutex_lock(&group->world->calls_lock);
    for (const lap_call_place_t *at = group->places; at && !found.number; at = at->next)
        for (int i = 0; i < LAP_CALL_RECORDS && !found.number; i++)
            if (read_record(&at->records[rank][i], &report) && report.number == mine->number &&
                (at != place || report.op != op))
                found = report;
    pthread_mutex_unlock(&group->world->calls_lock);
    if (found.number == 0)
        return LAP_OK;
    char names[2][LAP_RANK_TEXT], calls[2][96];
    lap_group_name(group, group->rank, names[0]);
    lap_group_name(group, rank, names[1]);
    snprintf(calls[0], sizeof(calls[0]), "%s", mine->call);
    snprintf(calls[1], sizeof(calls[1]), "%s with m = %llu", found.name,
             (unsigned long long)found.m);
    const int first = group->rank > rank;
    /* Two operators may have the same words, as those of several layers have. */
    const char *other = strcmp(calls[0], calls[1]) == 0 ? "another " : "";
    lap_error(LAP_ERR_MISMATCH, "%s calls %s, %s calls %s%s as call %llu of operators in the group",
              names[first], calls[first], names[!first], other, calls[!first],
              (unsigned long long)mine->number);
    lap_group_fail(group, LAP_ERR_MISMATCH, lap_last_error());
    return LAP_ERR_MISMATCH;
}

/* ---- time-outs ---- */

void lap_blocked_describe_rank(const lap_group_t *group, int rank, char *text, size_t bytes)
{
    lap_blocked_words_t theirs;
    text[0] = '\0';
    if (read_blocked(note_of(group, rank), false, &theirs)) {
        snprintf(text, bytes, ": it is in %s%s", theirs.call,
                 theirs.group == group->id ? "" : " of another group");
        return;
    }
    pthread_mutex_lock(&group->world->calls_lock);
    const call_report_t latest = latest_of(group, rank);
    pthread_mutex_unlock(&group->world->calls_lock);
    if (latest.number > 0 && latest.number != LAP_CALL_ANY)
        snprintf(text, bytes, ": the latest operator that it has called is %s with m = %llu",
                 latest.name, (unsigned long long)latest.m);
}

void lap_blocked_describe(const lap_blocked_t *mine, char *text, size_t bytes)
{
    const lap_group_t *group = mine->group;
    size_t used = 0;
    int listed = 0;
    text[0] = '\0';
    for (int rank = 0; rank < group->size && listed < 3 && used < bytes; rank++) {
        char name[LAP_RANK_TEXT], where[160];
        pthread_mutex_lock(&group->world->calls_lock);
        const bool begun = rank == group->rank || has_begun(mine, rank);
        pthread_mutex_unlock(&group->world->calls_lock);
        if (begun)
            continue;
        lap_blocked_describe_rank(group, rank, where, sizeof(where));
        used += (size_t)snprintf(text + used, bytes - used, "; %s has not begun the call%s",
                                 lap_group_name(group, rank, name), where);
        listed++;
    }
}
