/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups: collectives for set-up, and who still lives. All of it goes over the board, a region of
 * shared memory that the group's rank 0 made: one seat with two slots per rank, a signal word
 * per rank that counts its arrivals, and the failure that broke the group. In a world with a wire
 * every rank has a board of its own, and whatever a rank writes on its own it also writes, by a
 * packet, on those of the others. It is made for small messages; the data of operators never comes
 * here.
 */
#include "core/group.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "core/blocked.h"
#include "core/status.h"
#include "util/alloc.h"
#include "util/clock.h"

#define SLOT_BYTES 4096

typedef enum call { CALL_BARRIER, CALL_ALLGATHER, CALL_SPLIT, CALL_AGREE } call_t;

static const char *const call_names[] = {
    [CALL_BARRIER] = "barrier",
    [CALL_ALLGATHER] = "allgather",
    [CALL_SPLIT] = "split",
    [CALL_AGREE] = "agreement of the ranks",
};

#define DOING_BYTES 24

typedef struct slot {
    uint32_t call;           /* what the sender is doing */
    uint64_t bytes;          /* of the whole call, which may take several rounds */
    char doing[DOING_BYTES]; /* as part of which call of its caller's; "": of none */
    char data[SLOT_BYTES];
} slot_t;

/*
 * In round n a rank writes its slot n mod 2, arrives, waits until all have arrived, and reads
 * all slots n mod 2. One wait per round is enough: the slot is written again in round n + 2,
 * after all have arrived in round n + 1, and a rank arrives there only when it has read what it
 * wanted of round n.
 */
typedef struct seat {
    _Alignas(64) _Atomic uint32_t left; /* 1: gone on purpose */
    slot_t slots[2];
} seat_t;

enum { FAILURE_NONE, FAILURE_BEING_WRITTEN, FAILURE_SET };

struct lap_board {
    _Alignas(64) _Atomic uint32_t failure; /* FAILURE_SET, stored last, releases the two below */
    int32_t status;
    char sentence[LAP_ERROR_TEXT];
    /* One per rank; the bank with one word per rank follows, and a lap_blocked_note_t for each. */
    seat_t seats[];
};

/* What a rank says to the others in lap_group_agree. */
typedef struct verdict {
    int32_t status;
    char sentence[LAP_ERROR_TEXT];
} verdict_t;

_Static_assert(sizeof(verdict_t) <= SLOT_BYTES, "a verdict must fit in one slot");

typedef struct split_request {
    int32_t colour, key;
} split_request_t;

static size_t bank_offset(int size)
{
    return sizeof(lap_board_t) + (size_t)size * sizeof(seat_t);
}

static size_t blocked_offset(int size)
{
    return bank_offset(size) + lap_bank_bytes((size_t)size);
}

size_t lap_board_bytes(int size)
{
    return blocked_offset(size) + (size_t)size * sizeof(lap_blocked_note_t);
}

static lap_bank_t *bank_of(const lap_group_t *group)
{
    return (lap_bank_t *)(void *)((char *)group->board + bank_offset(group->size));
}

lap_blocked_note_t *lap_group_blocked_note(const lap_group_t *group, int rank)
{
    char *notes = (char *)group->board + blocked_offset(group->size);
    return (lap_blocked_note_t *)(void *)notes + rank;
}

bool lap_group_has_come(const lap_group_t *group, int rank, uint32_t round)
{
    return lap_bank_reached(bank_of(group), (size_t)rank, round);
}

static slot_t *slot_of(const lap_group_t *group, int rank)
{
    return &group->board->seats[rank].slots[group->round % 2];
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

/* "rank 2 (pid 123)", with what is known and adds something. */
static const char *describe(const lap_group_t *group, int rank, char *text, size_t bytes)
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

/* Packets from board to board. */

/* What a packet writes on the board: see deliver. */
enum { PACKET_ROUND, PACKET_FAILURE, PACKET_LEFT, PACKET_BLOCKED };

/* So that publish waits for nobody, and has no need to watch anybody. */
_Static_assert(SLOT_BYTES <= LAP_WIRE_SMALL && LAP_ERROR_TEXT <= LAP_WIRE_SMALL,
               "packets between boards must be small");

/* Sends a packet to the boards of all other ranks; does nothing in a world without a wire. */
static lap_status_t publish(const lap_group_t *group, const lap_packet_t *what, const void *body)
{
    lap_wire_t *wire = group->world->wire;
    for (int rank = 0; group->ports_known && rank < group->size; rank++) {
        lap_packet_t *packet = NULL;
        if (rank == group->rank)
            continue;
        LAP_TRY(wire->ops->begin(wire, group->members[rank], what->bytes, NULL, &packet));
        *packet = *what;
        packet->port = group->ports[rank];
        packet->from = (uint32_t)group->rank;
        if (what->bytes > 0)
            memcpy(lap_packet_body(packet), body, what->bytes);
        wire->ops->send(wire, packet);
    }
    return LAP_OK;
}

void lap_group_tell_blocked(lap_group_t *group, const lap_blocked_words_t *words)
{
    const lap_packet_t packet = {.kind = PACKET_BLOCKED, .bytes = sizeof(*words)};
    lap_blocked_write(lap_group_blocked_note(group, group->rank), words);
    /* Without memory for packets others learn of it by a timeout. */
    (void)publish(group, &packet, words);
}

/* Writes a failure on the board; false when there is one already. */
static bool note_failure(lap_board_t *board, lap_status_t status, const char *sentence)
{
    uint32_t none = FAILURE_NONE;
    if (!atomic_compare_exchange_strong(&board->failure, &none, FAILURE_BEING_WRITTEN))
        return false;
    board->status = status;
    snprintf(board->sentence, sizeof(board->sentence), "%s", sentence);
    atomic_store_explicit(&board->failure, FAILURE_SET, memory_order_release);
    return true;
}

/* Writes on this rank's board what another rank has written on its own. */
static void deliver(void *context, const lap_packet_t *packet, const char *body)
{
    lap_group_t *group = context;
    if (packet->from >= (uint32_t)group->size || packet->bytes > SLOT_BYTES)
        return;
    seat_t *seat = &group->board->seats[packet->from];
    slot_t *slot = &seat->slots[packet->words[0] % 2];
    lap_blocked_words_t words;
    switch (packet->kind) {
    case PACKET_ROUND:
        slot->call = (uint32_t)packet->words[1];
        slot->bytes = packet->words[2];
        memcpy(slot->doing, &packet->words[3], DOING_BYTES);
        slot->doing[DOING_BYTES - 1] = '\0';
        memcpy(slot->data, body, packet->bytes);
        lap_bank_raise(bank_of(group), packet->from);
        break;
    case PACKET_FAILURE:
        if (packet->bytes > 0 && body[packet->bytes - 1] == '\0')
            note_failure(group->board, (lap_status_t)(int32_t)packet->words[0], body);
        lap_bank_ring(bank_of(group));
        break;
    case PACKET_LEFT:
        atomic_store_explicit(&seat->left, 1, memory_order_release);
        lap_bank_ring(bank_of(group));
        break;
    case PACKET_BLOCKED:
        if (packet->bytes == sizeof(words)) {
            memcpy(&words, body, sizeof(words));
            lap_blocked_write(lap_group_blocked_note(group, (int)packet->from), &words);
        }
        break;
    default:
        break;
    }
}

/* Failures. */

lap_status_t lap_group_broken(const lap_group_t *group)
{
    lap_board_t *board = group->board;
    if (atomic_load(&group->ended))
        return lap_error(
            LAP_ERR_INVALID,
            "rank %d has destroyed the group or its world, expected what was made from "
            "it to be destroyed before",
            group->rank);
    if (atomic_load_explicit(&board->failure, memory_order_acquire) != FAILURE_SET)
        return LAP_OK;
    return lap_error((lap_status_t)board->status, "%s", board->sentence);
}

void lap_group_fail(lap_group_t *group, lap_status_t status, const char *sentence)
{
    const lap_packet_t packet = {.kind = PACKET_FAILURE,
                                 .words = {(uint64_t)(int64_t)status},
                                 .bytes = strnlen(sentence, LAP_ERROR_TEXT - 1) + 1};
    /* Without memory for packets the others find out by themselves. */
    if (note_failure(group->board, status, sentence))
        publish(group, &packet, group->board->sentence);
    lap_bank_ring(bank_of(group));
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
    return atomic_load_explicit(&group->board->seats[rank].left, memory_order_acquire) != 0;
}

/* A rank whose process has ended without leaving, or that MPI has lost, or -1. */
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
        /* The flag is read after the poll: a rank sets it before its process ends. */
        for (nfds_t i = 0; i < count; i++) {
            if (polls[i].revents & POLLIN && !has_left(group, first + (int)i))
                return first + (int)i;
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
    lap_error(LAP_ERR_PEER_LOST, "%s has died", describe(group, dead, who, sizeof(who)));
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
    char who[96];
    return lap_error(LAP_ERR_PEER_LOST, "%s has left the group",
                     describe(group, rank, who, sizeof(who)));
}

/*
 * Whether a process is stopped, by a signal or a debugger: the state after the name in
 * /proc/PID/stat.
 */
static bool is_stopped(int pid)
{
    char path[32], line[256];
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    const char *end = fgets(line, sizeof(line), file) ? strrchr(line, ')') : NULL;
    fclose(file);
    return end && (end[2] == 'T' || end[2] == 't');
}

void lap_group_tell_stopped(const lap_group_t *group, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int rank = 0; rank < group->size && used < bytes; rank++) {
        char who[96];
        const int pid = group->world->peers[group->members[rank]].pid;
        if (rank == group->rank || pid <= 0 || !is_stopped(pid))
            continue;
        used += (size_t)snprintf(text + used, bytes - used, "; %s is stopped",
                                 describe(group, rank, who, sizeof(who)));
    }
}

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
    lap_status_t status = lap_bank_wait(bank_of(group), (size_t)rank, group->round, &watch);
    if (status == LAP_OK)
        return LAP_OK;
    /*
     * A timeout is either our own, which has no sentence yet, or one that another rank wrote on the
     * board.
     */
    lap_status_t recorded = lap_group_broken(group);
    if (recorded != LAP_OK)
        return failed_in(group, call, recorded);
    char who[96], where[192], stopped[256];
    if (status == LAP_ERR_TIMEOUT) {
        lap_group_tell_stopped(group, stopped, sizeof(stopped));
        lap_blocked_tell_rank(group, rank, where, sizeof(where));
        lap_error(status, "%s has not come within %g s%s%s",
                  describe(group, rank, who, sizeof(who)), (double)group->world->timeout_ns * 1e-9,
                  where, stopped);
    }
    lap_group_fail(group, status, lap_last_error());
    return failed_in(group, call, status);
}

static const char *name_of(const slot_t *slot)
{
    return slot->doing[0] ? slot->doing : call_names[slot->call % 4];
}

/* All ranks compare with rank 0, so that all say the same. */
static lap_status_t compare_slots(const lap_group_t *group)
{
    const slot_t *zero = slot_of(group, 0);
    for (int rank = 1; rank < group->size; rank++) {
        const slot_t *slot = slot_of(group, rank);
        const bool together = strncmp(slot->doing, zero->doing, DOING_BYTES) == 0;
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
static lap_status_t meet(lap_group_t *group, call_t call, const void *mine, size_t bytes,
                         size_t total)
{
    lap_status_t broken = lap_group_broken(group);
    if (broken != LAP_OK)
        return failed_in(group, call, broken);
    group->round++;
    slot_t *slot = slot_of(group, group->rank);
    slot->call = call;
    slot->bytes = total;
    snprintf(slot->doing, sizeof(slot->doing), "%s",
             group->world->doing ? group->world->doing : "");
    if (bytes > 0)
        memcpy(slot->data, mine, bytes);
    lap_packet_t packet = {
        .kind = PACKET_ROUND, .words = {group->round, call, total}, .bytes = bytes};
    memcpy(&packet.words[3], slot->doing, DOING_BYTES);
    lap_status_t status = publish(group, &packet, mine);
    if (status != LAP_OK) {
        lap_group_fail(group, status, lap_last_error());
        return failed_in(group, call, status);
    }
    /* Releases the slot to the waits of the other ranks for this word. */
    lap_bank_raise(bank_of(group), (size_t)group->rank);
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
    return meet(group, CALL_BARRIER, NULL, 0, 0);
}

lap_status_t lap_group_allgather(lap_group_t *group, const void *mine, size_t bytes, void *all)
{
    if (!group || (bytes > 0 && (!mine || !all)))
        return lap_error(LAP_ERR_INVALID, "%s is NULL", !group ? "group" : !mine ? "mine" : "all");
    size_t done = 0;
    do {
        const size_t part = bytes - done < SLOT_BYTES ? bytes - done : SLOT_BYTES;
        LAP_TRY(meet(group, CALL_ALLGATHER, bytes ? (const char *)mine + done : NULL, part, bytes));
        for (int rank = 0; rank < group->size && part > 0; rank++)
            memcpy((char *)all + (size_t)rank * bytes + done, slot_of(group, rank)->data, part);
        done += part;
    } while (done < bytes);
    return LAP_OK;
}

lap_status_t lap_group_agree(lap_group_t *group, lap_status_t mine)
{
    verdict_t verdict = {.status = mine};
    if (mine != LAP_OK)
        snprintf(verdict.sentence, sizeof(verdict.sentence), "%s", lap_last_error());
    lap_status_t status = meet(group, CALL_AGREE, &verdict, sizeof(verdict), sizeof(verdict));
    if (mine != LAP_OK)
        return lap_error(mine, "%s", verdict.sentence);
    if (status != LAP_OK)
        return status;
    for (int rank = 0; rank < group->size; rank++) {
        memcpy(&verdict, slot_of(group, rank)->data, sizeof(verdict));
        if (verdict.status != LAP_OK)
            return lap_error((lap_status_t)verdict.status, "rank %d: %s", rank, verdict.sentence);
    }
    return LAP_OK;
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

static void set_board(lap_group_t *group, const lap_region_t *region)
{
    group->board_region = *region;
    group->board = region->data;
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
        status = wire->ops->port_open(wire, deliver, group, bank_of(group), &group->port);
    if (status != LAP_OK) {
        lap_free(group->ports);
        group->ports = NULL;
    }
    return status;
}

lap_status_t lap_group_create_world(lap_world_t *world, lap_region_t *board, lap_group_t **group_p)
{
    lap_group_t *group = NULL;
    LAP_TRY(group_alloc(world, world->size, &group));
    group->rank = world->rank;
    for (int rank = 0; rank < world->size; rank++)
        group->members[rank] = rank;
    set_board(group, board);
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
    *board = (lap_region_t){0};
    *group_p = group;
    return LAP_OK;
}

static void tell_left(lap_group_t *group)
{
    if (group->told_left)
        return;
    group->told_left = true;
    /* Releases all that this rank has done here to who finds that it has left. */
    atomic_store_explicit(&group->board->seats[group->rank].left, 1, memory_order_release);
    lap_bank_ring(bank_of(group));
    const lap_packet_t packet = {.kind = PACKET_LEFT};
    publish(group, &packet, NULL);
}

static void end(lap_group_t *group)
{
    atomic_store(&group->ended, true);
    tell_left(group);
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
    lap_group_t *kept = group->keeps_world ? group->world->group : NULL;
    strike(group);
    if (group->channel)
        group->channel_free(group->channel);
    if (group->board) {
        tell_left(group);
        if (group->ports)
            group->world->wire->ops->port_close(group->world->wire, group->port);
        lap_region_unmap(group->world, &group->board_region);
    }
    if (group->costs)
        group->costs_free(group->costs);
    lap_free(group->ports);
    lap_free(group->members);
    lap_free(group);
    let_go_of_world(kept);
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
    memcpy(&request, slot_of(group, rank)->data, sizeof(request));
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

/* The new group of this rank, still without a board, from the requests of the round just made. */
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
    memcpy(&handle, slot_of(group, rank)->data, sizeof(handle));
    return handle;
}

/*
 * Whoever has made a board tells its handle to all: the leader of each new group, and the others
 * map it; or everybody, and the handle is that of its port.
 */
static lap_status_t share_boards(lap_group_t *group, int leader, lap_group_t *child)
{
    uint64_t handle = !child ? 0 : child->ports ? child->port : child->board_region.handle;
    LAP_TRY(meet(group, CALL_SPLIT, &handle, sizeof(handle), sizeof(handle)));
    lap_status_t status = LAP_OK;
    for (int rank = 0; child && child->ports && rank < child->size; rank++)
        child->ports[rank] = handle_of(group, find_member(group, child->members[rank]));
    if (child && !child->board) {
        lap_region_t region = {0};
        status = lap_region_map(group->world, child->members[0], handle_of(group, leader),
                                lap_board_bytes(child->size), &region);
        if (status == LAP_OK)
            set_board(child, &region);
    }
    return lap_group_agree(group, status);
}

static lap_status_t make_board(lap_group_t *child)
{
    lap_region_t region = {0};
    const int users = child->world->wire ? 1 : child->size;
    LAP_TRY(lap_region_create(child->world, lap_board_bytes(child->size), users, &region));
    set_board(child, &region);
    return open_port(child);
}

lap_status_t lap_group_split(lap_group_t *group, int colour, int key, lap_group_t **group_p)
{
    if (!group || !group_p)
        return lap_error(LAP_ERR_INVALID, "%s is NULL", group ? "group_p" : "group");
    const split_request_t mine = {.colour = colour, .key = key};
    LAP_TRY(meet(group, CALL_SPLIT, &mine, sizeof(mine), sizeof(mine)));
    LAP_TRY(check_colours(group));
    lap_group_t *child = NULL;
    int leader = 0;
    lap_status_t status = colour == LAP_NO_GROUP ? LAP_OK : child_create(group, &leader, &child);
    if (status == LAP_OK && child && (child->rank == 0 || group->world->wire))
        status = make_board(child);
    /* From here on all ranks make their groups or none does. */
    status = lap_group_agree(group, status);
    if (status == LAP_OK)
        status = share_boards(group, leader, child);
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
