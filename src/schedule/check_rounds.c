/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the checker for matched targets: what a rank receives is what its peers put, in their
 * order; what is sent is not held up by a wait for a round that comes with it or later; no step waits
 * for a round that has not been issued; and all rounds come to an end where a send ends only when it
 * has been received, and each rank does nothing but round after round.
 */
#include "core/status.h"
#include "schedule/check.h"
#include "schedule/rounds.h"
#include "util/alloc.h"

/* Of each rank, its puts in the order of the list. */
typedef struct rounds {
    const lap_schedule_t *const *schedules;
    const lap_rounds_t *parts;
    size_t size;
    const lap_step_t ***puts; /* [rank][put] */
    uint32_t *nputs;
    uint32_t *at;      /* per rank: the round that it is in */
    uint32_t *sending; /* [from][to]: messages of the rounds up to that one */
    uint32_t *receiving;
} rounds_t;

static lap_status_t list_puts(rounds_t *all, size_t rank)
{
    const lap_schedule_t *schedule = all->schedules[rank];
    all->puts[rank] = lap_alloc(schedule->nsteps, sizeof(lap_step_t *));
    if (!all->puts[rank])
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to check %u steps", schedule->nsteps);
    for (uint32_t i = 0; i < schedule->nsteps; i++)
        if (schedule->steps[i].kind == LAP_STEP_PUT)
            all->puts[rank][all->nputs[rank]++] = &schedule->steps[i];
    return LAP_OK;
}

/* ---- messages ---- */

/* The `k`th put of a rank to `peer`, from 0; NULL: there are not so many. */
static const lap_step_t *find_put(const rounds_t *all, size_t rank, int peer, uint32_t k)
{
    for (uint32_t i = 0; i < all->nputs[rank]; i++)
        if (all->puts[rank][i]->peer == peer && k-- == 0)
            return all->puts[rank][i];
    return NULL;
}

static bool is_same(const lap_step_t *put, const lap_receive_t *receive)
{
    return put && put->dst.offset == receive->offset && put->dst.stride == receive->stride &&
           put->src.rows == receive->rows && put->src.row_bytes == receive->row_bytes;
}

static lap_status_t check_messages(const rounds_t *all, size_t rank)
{
    const lap_rounds_t *part = &all->parts[rank];
    uint32_t *seen = &all->receiving[rank * all->size];
    for (uint32_t i = 0; i < part->nrounds; i++)
        for (uint32_t j = 0; j < part->rounds[i].nreceives; j++) {
            const lap_receive_t *receive = &part->rounds[i].receives[j];
            const uint32_t k = seen[receive->peer]++;
            if (!is_same(find_put(all, (size_t)receive->peer, (int)rank, k), receive))
                return lap_error(LAP_ERR_CHECK,
                                 "unmatched message: receive %u of rank %zu from rank %d, in round "
                                 "%u, is not what that rank puts",
                                 k, rank, receive->peer, i);
        }
    for (size_t peer = 0; peer < all->size; peer++) {
        if (find_put(all, peer, (int)rank, seen[peer]))
            return lap_error(LAP_ERR_CHECK,
                             "unmatched message: rank %zu does not receive put %u of rank %zu",
                             rank, seen[peer], peer);
        seen[peer] = 0;
    }
    return LAP_OK;
}

/* ---- a rank by itself ---- */

/* The round that has put number `put` of a rank; all are over: the number of rounds. */
static uint32_t round_of_put(const lap_rounds_t *part, uint32_t put)
{
    uint32_t round = 0, sends = 0;
    while (round < part->nrounds && sends + part->rounds[round].nsends <= put)
        sends += part->rounds[round++].nsends;
    return round;
}

/* In line: a wait is for a round all of whose puts are listed before it, and puts come after it. */
static lap_status_t check_steps(const rounds_t *all, size_t rank)
{
    const lap_schedule_t *schedule = all->schedules[rank];
    const lap_rounds_t *part = &all->parts[rank];
    const uint32_t first_credit = lap_signal_credit(schedule->size, 0);
    uint32_t puts = 0, waited = 0,
             round; /* waited: the round after the latest that was waited for */
    for (uint32_t i = 0; i < schedule->nsteps; i++) {
        const lap_step_t *step = &schedule->steps[i];
        char text[LAP_CHECK_TEXT];
        bool right = true;
        if (step->kind == LAP_STEP_PUT)
            right = round_of_put(part, puts++) >= waited;
        if (step->kind == LAP_STEP_WAIT && step->signal - first_credit >= all->size) {
            right = lap_rounds_of(part, step->signal, step->count, &round) &&
                    round < round_of_put(part, puts);
            waited = right && round >= waited ? round + 1 : waited;
        }
        if (right)
            continue;
        lap_step_describe(schedule, i, text, sizeof(text));
        return lap_error(LAP_ERR_CHECK,
                         "rounds out of order: rank %zu %s %s comes before its round", rank,
                         schedule->method, text);
    }
    return round_of_put(part, puts) == part->nrounds
               ? LAP_OK
               : lap_error(LAP_ERR_CHECK, "a round of rank %zu is never issued", rank);
}

/* ---- all ranks, round after round ---- */

/* Adds the messages of the round that a rank begins. */
static void begin_round(rounds_t *all, size_t rank)
{
    const lap_rounds_t *part = &all->parts[rank];
    const lap_round_t *round = &part->rounds[all->at[rank]];
    uint32_t first = 0;
    if (all->at[rank] >= part->nrounds)
        return;
    for (uint32_t i = 0; i < all->at[rank]; i++)
        first += part->rounds[i].nsends;
    for (uint32_t i = 0; i < round->nsends; i++)
        all->sending[rank * all->size + (size_t)all->puts[rank][first + i]->peer]++;
    for (uint32_t i = 0; i < round->nreceives; i++)
        all->receiving[rank * all->size + (size_t)round->receives[i].peer]++;
}

/* Whether each message of the round that a rank is in has its other end. */
static bool can_end(const rounds_t *all, size_t rank)
{
    bool can = true;
    for (size_t peer = 0; peer < all->size; peer++) {
        const size_t out = rank * all->size + peer, in = peer * all->size + rank;
        can = can && all->receiving[in] >= all->sending[out] &&
              all->sending[in] >= all->receiving[out];
    }
    return can;
}

static lap_status_t check_end(rounds_t *all)
{
    bool moved = true;
    for (size_t rank = 0; rank < all->size; rank++)
        begin_round(all, rank);
    while (moved) {
        moved = false;
        for (size_t rank = 0; rank < all->size; rank++)
            while (all->at[rank] < all->parts[rank].nrounds && can_end(all, rank)) {
                all->at[rank]++;
                begin_round(all, rank);
                moved = true;
            }
    }
    for (size_t rank = 0; rank < all->size; rank++)
        if (all->at[rank] < all->parts[rank].nrounds)
            return lap_error(LAP_ERR_CHECK, "deadlock: rank %zu is held up in round %u of %u", rank,
                             all->at[rank], all->parts[rank].nrounds);
    return LAP_OK;
}

static lap_status_t check_all(rounds_t *all)
{
    all->puts = lap_alloc(all->size, sizeof(*all->puts));
    all->nputs = lap_alloc(all->size, sizeof(uint32_t));
    all->at = lap_alloc(all->size, sizeof(uint32_t));
    all->sending = lap_alloc(all->size * all->size, sizeof(uint32_t));
    all->receiving = lap_alloc(all->size * all->size, sizeof(uint32_t));
    if (!all->puts || !all->nputs || !all->at || !all->sending || !all->receiving)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to check the rounds of %zu ranks",
                         all->size);
    for (size_t rank = 0; rank < all->size; rank++)
        LAP_TRY(list_puts(all, rank));
    for (size_t rank = 0; rank < all->size; rank++) {
        LAP_TRY(check_messages(all, rank));
        LAP_TRY(check_steps(all, rank));
    }
    return check_end(all);
}

lap_status_t lap_check_rounds(const lap_schedule_t *const *schedules, int size,
                              const lap_rounds_t *parts)
{
    rounds_t all = {.schedules = schedules, .parts = parts, .size = (size_t)size};
    const lap_status_t status = check_all(&all);
    for (int rank = 0; rank < size && all.puts; rank++)
        lap_free(all.puts[rank]);
    lap_free(all.puts);
    lap_free(all.nputs);
    lap_free(all.at);
    lap_free(all.sending);
    lap_free(all.receiving);
    return status;
}
