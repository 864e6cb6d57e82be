/* SPDX-License-Identifier: Apache-2.0 */
/* Issuing a call on a matched transport: round by round, see rounds.h. */
#ifndef LAP_SCHEDULE_MATCHED_H
#define LAP_SCHEDULE_MATCHED_H

#include "schedule/program.h"
#include "schedule/rounds.h"

/* What a program has for it. */
typedef struct lap_matched {
    lap_rounds_t rounds;
    lap_event_t **done;              /* per round */
    lap_event_t *ready[LAP_STREAMS]; /* when a stream has the sources of its puts behind it */
    lap_event_t *joined;             /* when calls on the buffer that are in flight have ended */
    lap_event_t *after[LAP_STREAMS + 1];
    uint32_t next;          /* round to be issued */
    uint32_t sends;         /* of this call so far */
    bool follows;           /* the round to be issued comes after `joined` */
    bool sent[LAP_STREAMS]; /* the stream has puts in the round to be issued */
} lap_matched_t;

/* From the schedules of all ranks; the program has its own one already. */
lap_status_t lap_matched_create(lap_program_t *program, const lap_schedule_t *const *schedules);
void lap_matched_destroy(lap_program_t *program);

/* The call begins, ... */
lap_status_t lap_matched_begin(lap_program_t *program, const lap_binding_t *binding);
/* ... comes to a put on a stream of the engine, */
lap_status_t lap_matched_put(lap_program_t *program, const lap_binding_t *binding, int stream,
                             const lap_put_t *put);
/* ... or to a wait. */
lap_status_t lap_matched_wait(lap_program_t *program, lap_stream_t *stream, const lap_wait_t *wait);

#endif
