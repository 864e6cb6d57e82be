/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the ranks of several hosts become a world. Ranks of one host meet there as processes without a
 * wire do, so that they can share memory and watch each other; a wire connects all. Every step that
 * waits for others has the world's deadline.
 */
#include "core/wired.h"

#include <lap/version.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/bootstrap.h"
#include "core/group.h"
#include "core/private_dir.h"
#include "util/alloc.h"
#include "util/clock.h"

/* What each rank tells the others. */
struct lap_wired_card {
    char version[24];        /* of the library; always at the beginning */
    int32_t status;          /* a failure of one is a failure of all */
    int32_t wired;           /* it has its wire */
    char dir[LAP_DIR_BYTES]; /* where the ranks of its host meet, if it is the first of them */
    char text[LAP_ERROR_TEXT];
};

static lap_wired_card_t *mine_of(const lap_wired_t *maker)
{
    return &maker->cards[maker->size];
}

static lap_status_t gather_cards(lap_wired_t *maker)
{
    const lap_wired_card_t *mine = mine_of(maker);
    const lap_status_t met = maker->ops->gather(maker, mine, sizeof(*mine), maker->cards);
    maker->gathered = met == LAP_OK;
    return met;
}

lap_status_t lap_wired_report(lap_wired_t *maker, lap_status_t status)
{
    (void)gather_cards(maker);
    /* What went wrong here says more than that the others did not come to hear of it. */
    return lap_error(status, "%s", mine_of(maker)->text);
}

/* Tells all how it went here; fails when it did not go well on some rank. */
static lap_status_t exchange(lap_wired_t *maker, lap_status_t status)
{
    lap_wired_card_t *mine = mine_of(maker);
    const lap_wired_card_t *cards = maker->cards;
    const int length = (int)sizeof(mine->version);
    snprintf(mine->version, sizeof(mine->version), "%s", lap_version_string());
    mine->status = status;
    mine->wired = maker->world && maker->world->wire;
    if (status != LAP_OK) {
        snprintf(mine->text, sizeof(mine->text), "%s", lap_last_error());
        return maker->ops->report(maker, status);
    }
    LAP_TRY(gather_cards(maker));
    for (int rank = 1; rank < maker->size; rank++)
        if (strncmp(cards[rank].version, cards[0].version, sizeof(mine->version)) != 0)
            return lap_error(LAP_ERR_MISMATCH,
                             "rank 0 runs version %.*s of this library, rank %d version %.*s",
                             length, cards[0].version, rank, length, cards[rank].version);
    for (int rank = 0; rank < maker->size; rank++)
        if (cards[rank].status != LAP_OK)
            return lap_error((lap_status_t)cards[rank].status, "rank %d: %.*s", rank,
                             LAP_ERROR_TEXT - 1, cards[rank].text);
    return LAP_OK;
}

static lap_status_t look(void *context)
{
    lap_wired_t *maker = context;
    return maker->ops->look(maker);
}

lap_status_t lap_wired_no_look(lap_wired_t *maker)
{
    (void)maker;
    return LAP_OK;
}

/*
 * The ranks of this host meet as if they were a world by themselves; what they learn of each other
 * goes into the real one. All others wait for them: who waits here gives up first, since it alone
 * knows which rank has not come.
 */
static lap_status_t meet_locals(lap_wired_t *maker)
{
    lap_world_t *world = maker->world, *host = maker->host;
    lap_region_t board = {0};
    const uint64_t left = lap_deadline_left(&maker->deadline), grace = maker->grace_ns;
    host->peers[maker->local_rank] = world->peers[maker->rank];
    const lap_rendezvous_t place = {.dir = maker->cards[maker->locals[0]].dir,
                                    .ranks = maker->locals,
                                    .most_ns = left > grace ? (left - grace) / 2 : 0,
                                    .limit = maker->limit,
                                    .look = look,
                                    .context = maker};
    lap_status_t status = lap_bootstrap_meet(host, &place, &board);
    maker->deadline.seen = lap_now_ns(); /* that was no stop */
    if (status == LAP_OK)
        lap_region_unmap(host, &board);
    for (int i = 0; i < maker->local_size; i++) {
        lap_peer_t *peer = &world->peers[maker->locals[i]];
        peer->heap_fd = host->peers[i].heap_fd;
        peer->pidfd = host->peers[i].pidfd;
        peer->pid = host->peers[i].pid;
        host->peers[i].heap_fd = host->peers[i].pidfd = -1;
    }
    world->heap_end = host->heap_end;
    return status;
}

/* The board is this rank's own: the packets of the others fill it in. */
static lap_status_t make_group(lap_world_t *world)
{
    lap_region_t board = {0};
    LAP_TRY(lap_region_create(world, lap_board_bytes(world->size), 1, &board));
    lap_status_t status = lap_group_create_world(world, &board, &world->group);
    if (status != LAP_OK)
        lap_region_unmap(world, &board);
    return status;
}

/*
 * What a rank does by itself. It comes before the first exchange, so that nobody waits at the
 * rendezvous for a rank that has no memory.
 */
static lap_status_t prepare_world(lap_wired_t *maker, int *place_p)
{
    LAP_TRY(
        lap_world_alloc(LAP_WORLD_WIRED, maker->rank, maker->size, maker->settings, &maker->world));
    lap_world_t *world = maker->world;
    world->peers[world->rank].pid = (int)getpid();
    LAP_TRY(lap_heap_open(&world->peers[world->rank].heap_fd));
    if (maker->local_size == 1)
        return LAP_OK;
    LAP_TRY(lap_world_alloc(LAP_WORLD_PROCESSES, maker->local_rank, maker->local_size,
                            maker->settings, &maker->host));
    return maker->local_rank == 0
               ? lap_rendezvous_dir_make(maker->settings->note_place, mine_of(maker)->dir, place_p)
               : LAP_OK;
}

static lap_status_t make_world(lap_wired_t *maker)
{
    lap_world_t *world = maker->world;
    if (maker->host)
        LAP_TRY(meet_locals(maker));
    lap_world_set_local(world, maker->local_size);
    LAP_TRY(maker->ops->open_wire(maker, world, &world->wire));
    return make_group(world);
}

/* Takes a world down that not all ranks have: nobody is there to say goodbye to. */
static void give_up(lap_world_t *world)
{
    if (world && world->wire) {
        lap_group_release(world->group);
        world->group = NULL;
        world->wire->ops->close(world->wire, false);
        world->wire = NULL;
    }
    lap_world_destroy(world);
}

lap_status_t lap_wired_make(lap_wired_t *maker, lap_status_t status, lap_world_t **world_p)
{
    int place = -1;
    maker->cards = lap_alloc((size_t)maker->size + 1, sizeof(lap_wired_card_t));
    if (!maker->cards)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to gather %d ranks", maker->size);
    if (status == LAP_OK)
        status = prepare_world(maker, &place);
    status = exchange(maker, status);
    if (status == LAP_OK)
        status = exchange(maker, make_world(maker));
    lap_rendezvous_dir_remove(maker->settings->note_place, mine_of(maker)->dir, place);
    lap_world_destroy(maker->host);
    maker->host = NULL;
    if (status == LAP_OK)
        *world_p = maker->world;
    else
        give_up(maker->world);
    return status;
}

bool lap_wired_any(const lap_wired_t *maker)
{
    for (int rank = 0; rank < maker->size; rank++)
        if (maker->cards[rank].wired)
            return true;
    return false;
}

void lap_wired_clear(lap_wired_t *maker)
{
    lap_free(maker->locals);
    lap_free(maker->cards);
}
