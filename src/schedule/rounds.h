/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Schedules for matched transports: the receiver of a put takes part, at the same time,
 * and whatever a rank does there it does one after the other. Builders are pure, so that every rank
 * can know what its peers send to it, and when.
 *
 * All puts of all ranks are dealt out to rounds. A rank does its part of round after round, the
 * sends and receives of one at once. A put is in a later round than all that its rank has waited
 * for before, and than the put before it if there is work in between. So the first round that has
 * not ended can always end, even if a rank did all of its steps one by one as they are listed:
 * nothing that its sends come after is of that round or a later one.
 *
 * A credit says that memory may be written. Here a peer cannot write before the receive is there,
 * so that credits are not sent, and waits for them are none; they must be the first steps of a
 * call, when all symmetric memory is free.
 */
#ifndef LAP_SCHEDULE_ROUNDS_H
#define LAP_SCHEDULE_ROUNDS_H

#include "schedule/schedule.h"
#include "transport/transport.h"

/* The part of one rank. */
typedef struct lap_rounds {
    lap_round_t *rounds; /* without events and reason */
    uint32_t nrounds;
    uint32_t *steps;         /* per round: the step that is held up when the round does not end */
    lap_put_t *sends;        /* of the PUT steps, as they are listed; without what a call binds */
    lap_receive_t *receives; /* of all rounds, one after the other, */
    lap_lack_t *lacks;       /* and these */
    uint32_t *arrivals;      /* per raise of a signal: the round that brings it */
    uint32_t *first_arrival; /* per signal, and one past the last: where its raises begin */
    uint32_t nsends, nsignals;
} lap_rounds_t;

/*
 * Plans the rounds of `rank` from the schedules of all ranks. LAP_ERR_UNSUPPORTED when a schedule
 * sends anything but puts and first credits. The caller clears the plan after success.
 */
lap_status_t lap_rounds_plan(const lap_schedule_t *const *schedules, int size, int rank,
                             lap_rounds_t *rounds_p);
/* The same for every rank, parts[rank]; after a failure there is none. */
lap_status_t lap_rounds_plan_all(const lap_schedule_t *const *schedules, int size,
                                 lap_rounds_t *parts);
void lap_rounds_clear(lap_rounds_t *rounds);

/*
 * The round that brings a signal for the `count`th time in a call; for those that only let a rank
 * send, false.
 */
bool lap_rounds_of(const lap_rounds_t *rounds, uint32_t signal, uint32_t count, uint32_t *round_p);

/*
 * Proves the rounds of all ranks: see check_rounds.c. The schedules have been lowered: GEMMs have no
 * signals. LAP_ERR_CHECK with the rank and the message, step or round; LAP_ERR_NO_MEMORY.
 */
lap_status_t lap_check_rounds(const lap_schedule_t *const *schedules, int size,
                              const lap_rounds_t *parts);

#endif
