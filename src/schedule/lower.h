/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lowering: passes that turn the schedules of builders into the steps that a target runs. Each pass is
 * a pure function in a file of its own (lower_NAME.c), and a caller can stop after any of them to look
 * at its result. The result of the last pass is proved, simulated, drawn and run.
 */
#ifndef LAP_SCHEDULE_LOWER_H
#define LAP_SCHEDULE_LOWER_H

#include "schedule/schedule.h"
#include "schedule/target.h"

typedef struct lap_pass {
    const char *name;
    const char *summary; /* a line for people */
    bool (*applies)(const lap_target_t *target);
    lap_status_t (*lower)(lap_schedule_t *schedule, const lap_target_t *target);
} lap_pass_t;

/* The passes, in the order in which they run; NULL past the last one. */
const lap_pass_t *lap_pass_at(size_t index);

/*
 * Lowers schedules of any ranks in place. `after` names the pass to stop after; NULL: all run. Passes
 * that the target does not need change nothing. LAP_ERR_INVALID names the passes there are;
 * LAP_ERR_NO_MEMORY. After a failure the schedules can only be cleared.
 */
lap_status_t lap_lower(lap_schedule_t *schedules, size_t count, const lap_target_t *target,
                       const char *after);

/*
 * Proves schedules that were lowered for a target, schedules[call * size + rank], as
 * lap_schedule_check does. Where streams may share queues, it also proves what
 * lap_schedule_check_in_line does, and that each wait depends on all sends listed before it. Then the
 * steps of a rank can run one at a time in any order that their dependencies allow.
 */
lap_status_t lap_lowered_check(const lap_schedule_t *const *schedules, uint32_t ncalls, int size,
                               const lap_target_t *target);

/* The passes, each of one schedule: see their files. */
lap_status_t lap_lower_blocks(lap_schedule_t *schedule, const lap_target_t *target);
lap_status_t lap_lower_lanes(lap_schedule_t *schedule, const lap_target_t *target);
lap_status_t lap_lower_waits(lap_schedule_t *schedule, const lap_target_t *target);
lap_status_t lap_lower_signals(lap_schedule_t *schedule, const lap_target_t *target);

/* LAP_ERR_CHECK when a wait does not come after a send that is listed before it. */
lap_status_t lap_check_waits(const lap_schedule_t *schedule);

/* LAP_ERR_CHECK unless there is exactly one CONSUME, and it comes after all signals. */
lap_status_t lap_check_consume(const lap_schedule_t *schedule);

#endif
