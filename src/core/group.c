/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups: collectives for set-up, in rounds over the control page (control.h), and how groups are
 * made, split and ended.
 */
#include "core/group.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/control.h"
#include "core/status.h"
#include "util/alloc.h"

typedef enum call { CALL_BARRIER, CALL_ALLGATHER, CALL_SPLIT, CALL_AGREE } call_t;

static const char *const call_names[] = {
    [CALL_BARRIER] = "barrier",
    [CALL_ALLGATHER] = "allgather",
    [CALL_SPLIT] = "split",
    [CALL_AGREE] = "agreement of the ranks",
};

/* What a rank says to the others in lap_group_agree. */
typedef struct verdict {
    int32_t status;
    char sentence[LAP_ERROR_TEXT];
} verdict_t;

_Static_assert(sizeof(verdict_t) <= LAP_SLOT_BYTES, "a verdict must fit in one slot");

typedef struct split_request {
    int32_t colour, key;
} split_request_t;

/* Rounds. */

/* What this rank waits for in a collective is that the others come to it. */
static lap_blocked_t blocked_in(lap_group_t *group, call_t call, int rank)
{
    const char *doing = group->world->doing;
    lap_blocked_t blocked = {
        .group = group, .collective = true, .number = group->round, .all = true, .peer = rank};
    snprintf(blocked.call, sizeof(blocked.call), "%s", doing ? doing : call_names[call]);
    return blocked;
}

static lap_status_t look_for_expected(void *context)
{
    const lap_blocked_t *expected = context;
    LAP_TRY(lap_group_look_for(expected->group, expected->peer));
    return lap_blocked_look(expected);
}

/* Puts the name of the call before the sentence of the failure. */
static lap_status_t failed_in(const lap_group_t *group, call_t call, lap_status_t status)
{
    const char *doing = group->world->doing;
    return lap_error(status, "%s: %s", doing ? doing : call_names[call], lap_last_error());
}

/* Waits for the arrival of `rank` in this round. Breaks the group when it does not come. */
static lap_status_t await_rank(lap_group_t *group, call_t call, int rank, lap_deadline_t *deadline)
{
    lap_blocked_t expected = blocked_in(group, call, rank);
    const lap_watch_t watch = {.deadline = deadline,
                               .spin_ns = group->world->spin_ns,
                               .look = look_for_expected,
                               .context = &expected};
    lap_status_t status =
        lap_bank_wait(lap_control_bank(group), (size_t)rank, group->round, &watch);
    if (status == LAP_OK)
        return LAP_OK;
    /*
     * A timeout is either our own, which has no sentence yet, or one that another rank wrote on the
     * control page.
     */
    lap_status_t recorded = lap_group_broken(group);
    if (recorded != LAP_OK)
        return failed_in(group, call, recorded);
    char who[96], where[192], stopped[256];
    if (status == LAP_ERR_TIMEOUT) {
        lap_group_list_stopped(group, stopped, sizeof(stopped));
        lap_blocked_describe_rank(group, rank, where, sizeof(where));
        lap_error(status, "%s has not come within %g s%s%s",
                  lap_group_describe(group, rank, who, sizeof(who)),
                  (double)group->world->timeout_ns * 1e-9, where, stopped);
    }
    lap_group_fail(group, status, lap_last_error());
    return failed_in(group, call, status);
}

static const char *name_of(const lap_control_slot_t *slot)
{
    return slot->doing[0] ? slot->doing : call_names[slot->call % 4];
}

/* All ranks compare with rank 0, so that all say the same. */
static lap_status_t compare_slots(const lap_group_t *group)
{
    const lap_control_slot_t *zero = lap_control_slot(group, 0);
    for (int rank = 1; rank < group->size; rank++) {
        const lap_control_slot_t *slot = lap_control_slot(group, rank);
        const bool together = strncmp(slot->doing, zero->doing, LAP_DOING_BYTES) == 0;
        if (together && slot->call == zero->call && slot->bytes == zero->bytes)
            continue;
        if (!together)
            return lap_error(LAP_ERR_MISMATCH, "rank 0 called %s, rank %d %s", name_of(zero), rank,
                             name_of(slot));
        return lap_error(LAP_ERR_MISMATCH,
                         "rank 0 called %s with %llu bytes, rank %d %s with %llu bytes",
                         call_names[zero->call % 4], (unsigned long long)zero->bytes, rank,
                         call_names[slot->call % 4], (unsigned long long)slot->bytes);
    }
    return LAP_OK;
}

/*
 * One round: gives `bytes` bytes of a call over `total` bytes to all, and returns when slot_of can
 * be read for every rank, until the next round. After a mismatch the group is still in step and can
 * go on.
 */
static lap_status_t run_round(lap_group_t *group, call_t call, const void *mine, size_t bytes,
                              size_t total)
{
    lap_status_t broken = lap_group_broken(group);
    if (broken != LAP_OK)
        return failed_in(group, call, broken);
    group->round++;
    lap_control_slot_t *slot = lap_control_slot(group, group->rank);
    slot->call = call;
    slot->bytes = total;
    snprintf(slot->doing, sizeof(slot->doing), "%s",
             group->world->doing ? group->world->doing : "");
    if (bytes > 0)
        memcpy(slot->data, mine, bytes);
    lap_packet_t packet = {
        .kind = LAP_PACKET_ROUND, .words = {group->round, call, total}, .bytes = bytes};
    memcpy(&packet.words[3], slot->doing, LAP_DOING_BYTES);
    lap_status_t status = lap_control_publish(group, &packet, mine);
    if (status != LAP_OK) {
        lap_group_fail(group, status, lap_last_error());
        return failed_in(group, call, status);
    }
    /* Releases the slot to the waits of the other ranks for this word. */
    lap_bank_raise(lap_control_bank(group), (size_t)group->rank);
    lap_deadline_t deadline = lap_deadline_after(group->world->timeout_ns);
    for (int rank = 0; rank < group->size && status == LAP_OK; rank++) {
        if (rank != group->rank)
            status = await_rank(group, call, rank, &deadline);
    }
    lap_blocked_end(group->world);
    return status == LAP_OK ? compare_slots(group) : status;
}

lap_status_t lap_group_barrier(lap_group_t *group)
{
    if (!group)
        return lap_error(LAP_ERR_INVALID, "group is NULL");
    return run_round(group, CALL_BARRIER, NULL, 0, 0);
}

lap_status_t lap_group_allgather(lap_group_t *group, const void *mine, size_t bytes, void *all)
{
    if (!group || (bytes > 0 && (!mine || !all)))
        return lap_error(LAP_ERR_INVALID, "%s is NULL", !group ? "group" : !mine ? "mine" : "all");
    size_t done = 0;
    do {
        const size_t part = bytes - done < LAP_SLOT_BYTES ? bytes - done : LAP_SLOT_BYTES;
        LAP_TRY(run_round(group, CALL_ALLGATHER, bytes ? (const char *)mine + done : NULL, part,
                          bytes));
        for (int rank = 0; rank < group->size && part > 0; rank++)
            memcpy((char *)all + (size_t)rank * bytes + done, lap_control_slot(group, rank)->data,
                   part);
        done += part;
    } while (done < bytes);
    return LAP_OK;
}

lap_status_t lap_group_agree(lap_group_t *group, lap_status_t mine)
{
    verdict_t verdict = {.status = mine};
    if (mine != LAP_OK)
        snprintf(verdict.sentence, sizeof(verdict.sentence), "%s", lap_last_error());
    lap_status_t status = run_round(group, CALL_AGREE, &verdict, sizeof(verdict), sizeof(verdict));
    if (mine != LAP_OK)
        return lap_error(mine, "%s", verdict.sentence);
    if (status != LAP_OK)
        return status;
    for (int rank = 0; rank < group->size; rank++) {
        memcpy(&verdict, lap_control_slot(group, rank)->data, sizeof(verdict));
        if (verdict.status != LAP_OK)
            return lap_error((lap_status_t)verdict.status, "rank %d: %s", rank, verdict.sentence);
    }
    return LAP_OK;
}

bool lap_group_fails_ahead(const lap_group_t *group)
{
    const uint32_t next = group->round + 1;
    for (int rank = 0; rank < group->size; rank++) {
        int32_t status; /* the first of a verdict */
        if (rank == group->rank || !lap_group_has_come(group, rank, next))
            continue;
        const lap_control_slot_t *slot = &group->control->ranks[rank].slots[next % 2];
        memcpy(&status, slot->data, sizeof(status));
        if (slot->call == CALL_AGREE && status != LAP_OK)
            return true;
    }
    return false;
}

lap_status_t lap_group_collect(lap_group_t *group, const void *mine, size_t bytes, void **all_p)
{
    void *all = lap_alloc((size_t)group->size, bytes);
    lap_status_t status = LAP_OK;
    if (!all)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu bytes of each of %d ranks", bytes,
                           group->size);
    status = lap_group_agree(group, status);
    if (status == LAP_OK)
        status = lap_group_allgather(group, mine, bytes, all);
    if (status != LAP_OK) {
        lap_free(all);
        return status;
    }
    *all_p = all;
    return LAP_OK;
}

lap_status_t lap_group_broadcast(lap_group_t *group, void *data, size_t bytes)
{
    void *all;
    LAP_TRY(lap_group_collect(group, data, bytes, &all));
    memcpy(data, all, bytes);
    lap_free(all);
    return LAP_OK;
}

lap_status_t lap_group_mean(lap_group_t *group, double *numbers, size_t count)
{
    void *memory;
    LAP_TRY(lap_group_collect(group, numbers, count * sizeof(*numbers), &memory));
    const double *all = memory;
    for (size_t i = 0; i < count; i++) {
        numbers[i] = 0;
        for (int rank = 0; rank < group->size; rank++)
            numbers[i] += all[(size_t)rank * count + i] / group->size;
    }
    lap_free(memory);
    return LAP_OK;
}

static lap_status_t pick(lap_group_t *group, double (*better)(double, double), double *number)
{
    void *memory;
    LAP_TRY(lap_group_collect(group, number, sizeof(*number), &memory));
    const double *all = memory;
    for (int rank = 0; rank < group->size; rank++)
        *number = better(*number, all[rank]);
    lap_free(memory);
    return LAP_OK;
}

lap_status_t lap_group_max(lap_group_t *group, double *number)
{
    return pick(group, fmax, number);
}

lap_status_t lap_group_min(lap_group_t *group, double *number)
{
    return pick(group, fmin, number);
}

/* Making and ending groups. */

static lap_status_t group_alloc(lap_world_t *world, int size, lap_group_t **group_p)
{
    lap_group_t *group = lap_alloc(1, sizeof(*group));
    if (group)
        group->members = lap_alloc((size_t)size, sizeof(int));
    if (!group || !group->members) {
        lap_free(group);
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a group of %d ranks", size);
    }
    group->world = world;
    group->size = size;
    *group_p = group;
    return LAP_OK;
}

/* It is one of the world's from now on. */
static void enlist(lap_group_t *group)
{
    pthread_mutex_lock(&group->world->calls_lock);
    group->next = group->world->groups;
    group->world->groups = group;
    pthread_mutex_unlock(&group->world->calls_lock);
}

static void strike(lap_group_t *group)
{
    pthread_mutex_lock(&group->world->calls_lock);
    for (lap_group_t **link = &group->world->groups; *link; link = &(*link)->next)
        if (*link == group) {
            *link = group->next;
            break;
        }
    pthread_mutex_unlock(&group->world->calls_lock);
}

static void set_page(lap_group_t *group, const lap_region_t *region)
{
    group->control_region = *region;
    group->control = region->data;
}

/* Lets the packets of the other ranks in, in a world with a wire. */
static lap_status_t open_port(lap_group_t *group)
{
    lap_wire_t *wire = group->world->wire;
    if (!wire)
        return LAP_OK;
    group->ports = lap_alloc((size_t)group->size, sizeof(*group->ports));
    lap_status_t status = LAP_OK;
    if (!group->ports)
        status =
            lap_error(LAP_ERR_NO_MEMORY, "no memory for the ports of a group of %d", group->size);
    if (status == LAP_OK)
        status = lap_wire_port_open(wire, lap_control_deliver, group, lap_control_bank(group),
                                    &group->port);
    if (status != LAP_OK) {
        lap_free(group->ports);
        group->ports = NULL;
    }
    return status;
}

lap_status_t lap_group_create_world(lap_world_t *world, lap_region_t *control,
                                    lap_group_t **group_p)
{
    lap_group_t *group = NULL;
    LAP_TRY(group_alloc(world, world->size, &group));
    group->rank = world->rank;
    for (int rank = 0; rank < world->size; rank++)
        group->members[rank] = rank;
    set_page(group, control);
    lap_status_t status = open_port(group);
    if (status != LAP_OK) {
        lap_free(group->members);
        lap_free(group);
        return status;
    }
    group->ports_known = group->ports != NULL; /* it is the first one on every rank */
    for (int rank = 0; group->ports && rank < group->size; rank++)
        group->ports[rank] = group->port;
    enlist(group);
    *control = (lap_region_t){0};
    *group_p = group;
    return LAP_OK;
}

static void end(lap_group_t *group)
{
    atomic_store(&group->ended, true);
    lap_control_leave(group);
}

lap_group_t *lap_group_keep(lap_group_t *group)
{
    group->keepers++;
    return group;
}

/* `group` is that of all ranks, or NULL. */
static void let_go_of_world(lap_group_t *group)
{
    if (group && --group->keepers == 0 && group->ended)
        lap_world_destroy(group->world);
}

void lap_group_let_go(lap_group_t *group)
{
    if (!group || group == group->world->group)
        let_go_of_world(group);
    else if (--group->keepers == 0 && group->ended && group->is_destroyed)
        lap_group_release(group);
}

void lap_group_end_all(lap_world_t *world)
{
    for (lap_group_t *group = world->groups; group; group = group->next)
        end(group);
}

void lap_group_release(lap_group_t *group)
{
    if (!group)
        return;
    lap_group_t *world_group = group->keeps_world ? group->world->group : NULL;
    strike(group);
    if (group->channel)
        group->channel_free(group->channel);
    if (group->control) {
        lap_control_leave(group);
        if (group->ports)
            lap_wire_port_close(group->world->wire, group->port);
        lap_region_unmap(group->world, &group->control_region);
    }
    if (group->costs)
        group->costs_free(group->costs);
    if (group->choices)
        group->choices_free(group->choices);
    lap_free(group->ports);
    lap_free(group->members);
    lap_free(group);
    let_go_of_world(world_group);
}

void lap_group_destroy(lap_group_t *group)
{
    lap_saved_error_t saved;
    lap_error_save(&saved);
    /* The group of all ranks belongs to the world. */
    if (group && group != group->world->group) {
        group->is_destroyed = true;
        if (group->keepers > 0)
            end(group);
        else
            lap_group_release(group);
    }
    lap_error_restore(&saved);
}

static split_request_t request_of(const lap_group_t *group, int rank)
{
    split_request_t request;
    memcpy(&request, lap_control_slot(group, rank)->data, sizeof(request));
    return request;
}

/* Every rank sees the requests of all, so that all refuse together. */
static lap_status_t check_colours(const lap_group_t *group)
{
    for (int rank = 0; rank < group->size; rank++) {
        const int colour = request_of(group, rank).colour;
        if (colour < 0 && colour != LAP_NO_GROUP)
            return lap_error(LAP_ERR_INVALID,
                             "split: rank %d gave colour %d, expected 0 or more, or LAP_NO_GROUP",
                             rank, colour);
    }
    return LAP_OK;
}

/*
 * The place of `rank` among the ranks of its colour, by key and then by rank; and how many there
 * are.
 */
static int place_in_colour(const lap_group_t *group, int rank, int *count_p)
{
    const split_request_t mine = request_of(group, rank);
    int place = 0, count = 0;
    for (int other = 0; other < group->size; other++) {
        const split_request_t its = request_of(group, other);
        if (its.colour != mine.colour)
            continue;
        count++;
        place += its.key < mine.key || (its.key == mine.key && other < rank);
    }
    *count_p = count;
    return place;
}

/*
 * The new group of this rank, still without a control page, from the requests of the round just
 * made.
 */
static lap_status_t child_create(lap_group_t *group, int *leader_p, lap_group_t **child_p)
{
    int size, unused;
    const int place = place_in_colour(group, group->rank, &size);
    lap_group_t *child = NULL;
    LAP_TRY(group_alloc(group->world, size, &child));
    child->rank = place;
    const int colour = request_of(group, group->rank).colour;
    /* All its ranks have come to this round of this group with this colour, and no others. */
    child->id = ((group->id * 0x9e3779b97f4a7c15u + group->round) * 0xd1b54a32d192ed03u) +
                (uint64_t)colour + 1;
    for (int rank = 0; rank < group->size; rank++) {
        if (request_of(group, rank).colour != colour)
            continue;
        const int its_place = place_in_colour(group, rank, &unused);
        child->members[its_place] = group->members[rank];
        if (its_place == 0)
            *leader_p = rank;
    }
    *child_p = child;
    return LAP_OK;
}

/* The rank in `group` of a rank of the world. */
static int find_member(const lap_group_t *group, int world_rank)
{
    int rank = 0;
    while (group->members[rank] != world_rank)
        rank++;
    return rank;
}

static uint64_t handle_of(const lap_group_t *group, int rank)
{
    uint64_t handle;
    memcpy(&handle, lap_control_slot(group, rank)->data, sizeof(handle));
    return handle;
}

/*
 * Whoever has made a control page sends its handle to all: the leader of each new group, and the
 * others map it; or everybody, and the handle is that of its port.
 */
static lap_status_t share_pages(lap_group_t *group, int leader, lap_group_t *child)
{
    uint64_t handle = !child ? 0 : child->ports ? child->port : child->control_region.handle;
    LAP_TRY(run_round(group, CALL_SPLIT, &handle, sizeof(handle), sizeof(handle)));
    lap_status_t status = LAP_OK;
    for (int rank = 0; child && child->ports && rank < child->size; rank++)
        child->ports[rank] = handle_of(group, find_member(group, child->members[rank]));
    if (child && !child->control) {
        lap_region_t region = {0};
        status = lap_region_map(group->world, child->members[0], handle_of(group, leader),
                                lap_control_bytes(child->size), &region);
        if (status == LAP_OK)
            set_page(child, &region);
    }
    return lap_group_agree(group, status);
}

static lap_status_t make_page(lap_group_t *child)
{
    lap_region_t region = {0};
    const int users = child->world->wire ? 1 : child->size;
    LAP_TRY(lap_region_create(child->world, lap_control_bytes(child->size), users, &region));
    set_page(child, &region);
    return open_port(child);
}

lap_status_t lap_group_split(lap_group_t *group, int colour, int key, lap_group_t **group_p)
{
    if (!group || !group_p)
        return lap_error(LAP_ERR_INVALID, "%s is NULL", group ? "group_p" : "group");
    const split_request_t mine = {.colour = colour, .key = key};
    LAP_TRY(run_round(group, CALL_SPLIT, &mine, sizeof(mine), sizeof(mine)));
    LAP_TRY(check_colours(group));
    lap_group_t *child = NULL;
    int leader = 0;
    lap_status_t status = colour == LAP_NO_GROUP ? LAP_OK : child_create(group, &leader, &child);
    if (status == LAP_OK && child && (child->rank == 0 || group->world->wire))
        status = make_page(child);
    /* From here on all ranks make their groups or none does. */
    status = lap_group_agree(group, status);
    if (status == LAP_OK)
        status = share_pages(group, leader, child);
    if (status != LAP_OK) {
        lap_group_release(child);
        return status;
    }
    if (child) {
        child->ports_known = child->ports != NULL;
        lap_group_keep(child->world->group);
        child->keeps_world = true;
        enlist(child);
    }
    *group_p = child;
    return LAP_OK;
}

int lap_group_rank(const lap_group_t *group)
{
    return group ? group->rank : -1;
}

int lap_group_size(const lap_group_t *group)
{
    return group ? group->size : 0;
}

int lap_group_world_rank(const lap_group_t *group, int rank)
{
    return group && rank >= 0 && rank < group->size ? group->members[rank] : -1;
}
