/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What calls, passes and steps have in common while they are in flight. Of each buffer that they use
 * the group must be whole before. It is registered with the engine meanwhile. A failure breaks it for
 * all ranks.
 */
#ifndef LAP_SCHEDULE_FLIGHT_H
#define LAP_SCHEDULE_FLIGHT_H

#include "schedule/run.h"

/* Who is in flight, in words: the rank by its name in a group, and what it does. */
typedef struct lap_flight {
    lap_engine_t *engine;
    lap_group_t *group;
    const char *what;   /* "a backward of layers", "ag_gemm" */
    const char *method; /* by which, printed after that; NULL: it has none */
} lap_flight_t;

/* Whether a group is whole; `when` goes before what is done: "was in", "was about to begin". */
lap_status_t lap_flight_check(const lap_flight_t *flight, lap_group_t *group, const char *when);

/* Whether what is in flight may use a buffer of a group: else why that cannot be used any more. */
lap_status_t lap_flight_check_usable(const lap_flight_t *flight, lap_group_t *group,
                                     const lap_buffer_t *buffer, const char *when);

/* A buffer of a group is in use from enter to leave. */
void lap_flight_enter(lap_engine_t *engine, lap_in_flight_t *in_flight, lap_group_t *group,
                      lap_buffer_t *buffer);
void lap_flight_leave(lap_engine_t *engine, lap_in_flight_t *in_flight, lap_buffer_t *buffer);

/* After a failure while it was in flight: see lap_engine_find_cause. LAP_OK stays. */
lap_status_t lap_flight_find_cause(const lap_flight_t *flight, lap_status_t status);

/*
 * After a failure of what had begun, with its sentence in lap_last_error: its signals are not counted,
 * so that nothing may use the buffer any more, on any rank. Returns the status with the same sentence.
 */
lap_status_t lap_flight_break(lap_group_t *group, lap_buffer_t *buffer, lap_status_t status);

#endif
