/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control page of a group: what its ranks have written for one another, packets from page to
 * page in a world with a wire, the failure that broke the group, and who still lives.
 */
#include "core/control.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/group.h"
#include "core/wire_error.h"

enum { FAILURE_NONE, FAILURE_BEING_WRITTEN, FAILURE_SET };

static size_t bank_offset(int size)
{
    return sizeof(lap_control_t) + (size_t)size * sizeof(lap_control_rank_t);
}

static size_t blocked_offset(int size)
{
    return bank_offset(size) + lap_bank_bytes((size_t)size);
}

size_t lap_control_bytes(int size)
{
    return blocked_offset(size) + (size_t)size * sizeof(lap_blocked_record_t);
}

lap_bank_t *lap_control_bank(const lap_group_t *group)
{
    return (lap_bank_t *)(void *)((char *)group->control + bank_offset(group->size));
}

lap_blocked_record_t *lap_group_blocked_record(const lap_group_t *group, int rank)
{
    char *records = (char *)group->control + blocked_offset(group->size);
    return (lap_blocked_record_t *)(void *)records + rank;
}

bool lap_group_has_come(const lap_group_t *group, int rank, uint32_t round)
{
    return lap_bank_reached(lap_control_bank(group), (size_t)rank, round);
}

lap_control_slot_t *lap_control_slot(const lap_group_t *group, int rank)
{
    return &group->control->ranks[rank].slots[group->round % 2];
}

const char *lap_group_name(const lap_group_t *group, int rank, char text[LAP_RANK_TEXT])
{
    const int world_rank = group->members[rank];
    if (world_rank == rank)
        snprintf(text, LAP_RANK_TEXT, "rank %d", rank);
    else
        snprintf(text, LAP_RANK_TEXT, "rank %d (rank %d of the world)", rank, world_rank);
    return text;
}

const char *lap_group_describe(const lap_group_t *group, int rank, char *text, size_t bytes)
{
    const int world_rank = group->members[rank], pid = group->world->peers[world_rank].pid;
    char name[LAP_RANK_TEXT];
    if (world_rank != rank && pid > 0)
        snprintf(text, bytes, "rank %d (rank %d of the world, pid %d)", rank, world_rank, pid);
    else if (pid > 0)
        snprintf(text, bytes, "rank %d (pid %d)", rank, pid);
    else
        snprintf(text, bytes, "%s", lap_group_name(group, rank, name));
    return text;
}

/* Packets from page to page. */

/* So that publish waits for nobody, and has no need to watch anybody. */
_Static_assert(LAP_SLOT_BYTES <= LAP_WIRE_SMALL && LAP_ERROR_TEXT <= LAP_WIRE_SMALL,
               "packets between control pages must be small");

lap_status_t lap_control_publish(const lap_group_t *group, const lap_packet_t *what,
                                 const void *body)
{
    lap_wire_t *wire = group->world->wire;
    for (int rank = 0; group->ports_known && rank < group->size; rank++) {
        lap_packet_t *packet = NULL;
        if (rank == group->rank)
            continue;
        LAP_TRY(lap_wire_begin(wire, group->members[rank], what->bytes, NULL, &packet));
        *packet = *what;
        packet->port = group->ports[rank];
        packet->from = (uint32_t)group->rank;
        if (what->bytes > 0)
            memcpy(lap_packet_body(packet), body, what->bytes);
        wire->ops->send(wire, packet);
    }
    return LAP_OK;
}

void lap_group_publish_blocked(lap_group_t *group, const lap_blocked_words_t *words)
{
    const lap_packet_t packet = {.kind = LAP_PACKET_BLOCKED, .bytes = sizeof(*words)};
    lap_blocked_write(lap_group_blocked_record(group, group->rank), words);
    /* Without memory for packets others learn of it by a timeout. */
    (void)lap_control_publish(group, &packet, words);
}

/* Writes a failure on the control page; false when there is one already. */
static bool set_failure(lap_control_t *control, lap_status_t status, const char *sentence)
{
    uint32_t none = FAILURE_NONE;
    if (!atomic_compare_exchange_strong(&control->failure, &none, FAILURE_BEING_WRITTEN))
        return false;
    control->status = status;
    snprintf(control->sentence, sizeof(control->sentence), "%s", sentence);
    atomic_store_explicit(&control->failure, FAILURE_SET, memory_order_release);
    return true;
}

void lap_control_deliver(void *context, const lap_packet_t *packet, const char *body)
{
    lap_group_t *group = context;
    if (packet->from >= (uint32_t)group->size || packet->bytes > LAP_SLOT_BYTES)
        return;
    lap_control_rank_t *sender = &group->control->ranks[packet->from];
    lap_control_slot_t *slot = &sender->slots[packet->words[0] % 2];
    lap_blocked_words_t words;
    switch (packet->kind) {
    case LAP_PACKET_ROUND:
        slot->call = (uint32_t)packet->words[1];
        slot->bytes = packet->words[2];
        memcpy(slot->doing, &packet->words[3], LAP_DOING_BYTES);
        slot->doing[LAP_DOING_BYTES - 1] = '\0';
        memcpy(slot->data, body, packet->bytes);
        lap_bank_raise(lap_control_bank(group), packet->from);
        break;
    case LAP_PACKET_FAILURE:
        if (packet->bytes > 0 && body[packet->bytes - 1] == '\0')
            set_failure(group->control, (lap_status_t)(int32_t)packet->words[0], body);
        lap_bank_ring(lap_control_bank(group));
        break;
    case LAP_PACKET_LEFT:
        atomic_store_explicit(&sender->left, 1, memory_order_release);
        lap_bank_ring(lap_control_bank(group));
        break;
    case LAP_PACKET_BLOCKED:
        if (packet->bytes == sizeof(words)) {
            memcpy(&words, body, sizeof(words));
            lap_blocked_write(lap_group_blocked_record(group, (int)packet->from), &words);
        }
        break;
    default:
        break;
    }
}

/* Failures. */

static bool has_failed(const lap_control_t *control)
{
    return atomic_load_explicit(&control->failure, memory_order_acquire) == FAILURE_SET;
}

lap_status_t lap_group_broken(const lap_group_t *group)
{
    lap_control_t *control = group->control;
    if (atomic_load(&group->ended))
        return lap_error(
            LAP_ERR_INVALID,
            "rank %d has destroyed the group or its world, expected what was made from "
            "it to be destroyed before",
            group->rank);
    if (!has_failed(control))
        return LAP_OK;
    return lap_error((lap_status_t)control->status, "%s", control->sentence);
}

/*
 * Sends the failure on the control page. Without memory for packets the others find out by
 * themselves.
 */
static void publish_failure(const lap_group_t *group)
{
    const lap_control_t *control = group->control;
    const lap_packet_t packet = {.kind = LAP_PACKET_FAILURE,
                                 .words = {(uint64_t)(int64_t)control->status},
                                 .bytes = strlen(control->sentence) + 1};
    (void)lap_control_publish(group, &packet, control->sentence);
}

void lap_group_fail(lap_group_t *group, lap_status_t status, const char *sentence)
{
    if (set_failure(group->control, status, sentence))
        publish_failure(group);
    lap_bank_ring(lap_control_bank(group));
}

void lap_group_fail_here(lap_group_t *group, lap_status_t status, const char *sentence)
{
    char text[LAP_ERROR_TEXT], name[LAP_RANK_TEXT];
    lap_group_name(group, group->rank, name);
    snprintf(text, sizeof(text), "%s: %.*s", name, (int)(sizeof(text) - sizeof(name) - 2),
             sentence);
    lap_group_fail(group, status, text);
}

static bool has_left(const lap_group_t *group, int rank)
{
    return atomic_load_explicit(&group->control->ranks[rank].left, memory_order_acquire) != 0;
}

/* Whether all that a rank whose process has ended has written or sent is there. */
static bool is_over(const lap_group_t *group, int rank)
{
    lap_wire_t *wire = group->world->wire;
    return !wire || lap_wire_is_over(wire, group->members[rank]);
}

/* A rank whose process has ended without leaving, or that the wire has lost, or -1. */
static int find_dead(const lap_group_t *group)
{
    struct pollfd polls[64];
    for (int first = 0; first < group->size; first += 64) {
        nfds_t count = 0;
        for (; count < 64 && first + (int)count < group->size; count++) {
            int pidfd = group->world->peers[group->members[first + (int)count]].pidfd;
            polls[count] = (struct pollfd){.fd = pidfd, .events = POLLIN}; /* -1 is passed over */
        }
        for (nfds_t i = 0; i < count; i++) {
            const int rank = first + (int)i;
            if (atomic_load_explicit(&group->world->peers[group->members[rank]].lost,
                                     memory_order_acquire) &&
                !has_left(group, rank))
                return rank;
        }
        if (poll(polls, count, 0) <= 0)
            continue;
        /* The flag is read after the poll: a rank sets it before its process ends, or sends it. */
        for (nfds_t i = 0; i < count; i++) {
            const int rank = first + (int)i;
            if (polls[i].revents & POLLIN && is_over(group, rank) && !has_left(group, rank))
                return rank;
        }
    }
    return -1;
}

lap_status_t lap_group_look(lap_group_t *group)
{
    LAP_TRY(lap_group_broken(group));
    if (group->world->kind == LAP_WORLD_THREADS)
        return LAP_OK;
    const int dead = find_dead(group);
    if (dead < 0)
        return LAP_OK;
    char who[96];
    const lap_wire_t *wire = group->world->wire;
    const int error = wire ? lap_wire_error(wire, group->members[dead]) : 0;
    lap_group_describe(group, dead, who, sizeof(who));
    if (error == LAP_WIRE_NO_HUB)
        lap_error(LAP_ERR_PEER_LOST,
                  "%s cannot be reached any more: ranks of several hosts talk through rank 0, to "
                  "which the connection is lost",
                  who);
    else if (error)
        lap_error(LAP_ERR_PEER_LOST,
                  "%s cannot be reached any more (%s): its host, or the network to it, is down",
                  who, strerror(error));
    else
        lap_error(LAP_ERR_PEER_LOST, "%s has died", who);
    lap_group_fail(group, LAP_ERR_PEER_LOST, lap_last_error());
    /* Another rank may have been first with its own sentence, or have died while it wrote one. */
    LAP_TRY(lap_group_broken(group));
    return LAP_ERR_PEER_LOST;
}

bool lap_group_all_here(lap_group_t *group)
{
    return lap_group_look(group) != LAP_ERR_TIMEOUT && find_dead(group) < 0;
}

lap_status_t lap_group_look_for(lap_group_t *group, int rank)
{
    LAP_TRY(lap_group_look(group));
    if (!has_left(group, rank))
        return LAP_OK;
    /*
     * A rank may leave because of a failure that came after the look above: that one is the cause.
     */
    LAP_TRY(lap_group_broken(group));
    char who[96];
    return lap_error(LAP_ERR_PEER_LOST, "%s has left the group",
                     lap_group_describe(group, rank, who, sizeof(who)));
}

/*
 * Whether a process is stopped, by a signal or a debugger: the state after the name in
 * /proc/PID/stat.
 */
static bool is_stopped(int pid)
{
    char path[32], text[256];
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    lap_file_read_text(path, text, sizeof(text));
    const char *end = strrchr(text, ')');
    return end && (end[2] == 'T' || end[2] == 't');
}

void lap_group_list_stopped(const lap_group_t *group, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int rank = 0; rank < group->size && used < bytes; rank++) {
        char who[96];
        const int pid = group->world->peers[group->members[rank]].pid;
        if (rank == group->rank || pid <= 0 || !is_stopped(pid))
            continue;
        used += (size_t)snprintf(text + used, bytes - used, "; %s is stopped",
                                 lap_group_describe(group, rank, who, sizeof(who)));
    }
}
void lap_control_leave(lap_group_t *group)
{
    const lap_packet_t packet = {.kind = LAP_PACKET_LEFT};
    if (group->has_left)
        return;
    group->has_left = true;
    /* From another rank the failure may come later than from this one that it has left. */
    if (has_failed(group->control))
        publish_failure(group);
    /* Releases all that this rank has done here to who finds that it has left. */
    atomic_store_explicit(&group->control->ranks[group->rank].left, 1, memory_order_release);
    lap_bank_ring(lap_control_bank(group));
    (void)lap_control_publish(group, &packet, NULL);
}
