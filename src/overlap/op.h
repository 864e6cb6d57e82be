/* SPDX-License-Identifier: Apache-2.0 */
/* What op.c shares with its neighbours, and what tests may do to an operator. */
#ifndef LAP_OVERLAP_OP_H
#define LAP_OVERLAP_OP_H

#include <stdint.h>

#include <lap/op.h>

#include "overlap/auto.h"
#include "overlap/overlap.h"
#include "schedule/run.h"
#include "schedule/target.h"

#define LAP_OP_PROGRAMS 16 /* that an operator keeps */
#define LAP_OP_ARGS 12     /* arguments that are memory */

/* A runnable that an operator keeps for calls with m active rows. */
typedef struct lap_op_cached {
    lap_runnable_t *runnable; /* NULL: free */
    size_t m;
    uint64_t used; /* when, in calls of this operator */
    bool captured; /* a graph of the caller's has calls of it: it stays */
} lap_op_cached_t;

/* Memory of calls that do not run at the same time: as much as the most of them need. */
typedef struct lap_scratch {
    void *memory;
    size_t bytes;
} lap_scratch_t;
void lap_scratch_clear(lap_scratch_t *scratch, lap_device_t *device);

struct lap_op {
    lap_group_t *group;
    lap_engine_t *engine;
    lap_buffer_t *buffer;
    bool owns_buffer;
    uint32_t index; /* among the operators of the buffer */
    const lap_builder_t *builder;
    lap_problem_t problem;  /* of this rank, with m = capacity */
    lap_target_t target;    /* what the calls are lowered for */
    lap_foreign_t *foreign; /* of the method, if that is another library's; else NULL */
    lap_auto_t
        *choice; /* of the method, the group's, when that was left to the library; else NULL */
    lap_scratch_t *scratch; /* its own, or shared with other operators */
    lap_scratch_t own_scratch;
    size_t scratch_bytes; /* that it needs */
    float *own_scale;     /* of what this rank sends; memory of the device */
    lap_op_cached_t cache[LAP_OP_PROGRAMS];
    uint64_t calls;
    uint64_t chaos;
    const void *known[LAP_OP_ARGS]; /* addresses in the latest args that were looked at */

    lap_runnable_t *runnable; /* of the call in flight; NULL: none */
    uint32_t failures_before; /* engine->failures when the call began */
    lap_trace_t *trace;       /* of the call in flight */

    lap_in_flight_t in_flight; /* while a call is in flight, */
    bool stays_in_flight; /* and always once it has been called in the order of a caller's stream */
};

/*
 * As lap_op_create, with scratch memory that operators share; it grows with them, and the caller
 * clears it after them. Nothing may be in flight on it, nor be bound to it.
 */
lap_status_t lap_op_create_sharing(lap_group_t *group, const lap_op_desc_t *desc,
                                   lap_scratch_t *scratch, lap_op_t **op_p);

/* From now on calls may be in flight. */
void lap_op_enter_flight(lap_op_t *op);

/* When a call, or what was called before, has failed: see lap_engine_find_cause. */
lap_status_t lap_op_find_cause(const lap_op_t *op, lap_status_t status);

/*
 * Whether a call may begin: LAP_ERR_BUSY, or the failure that broke the group or the device's
 * streams earlier.
 */
lap_status_t lap_op_check_usable(lap_op_t *op);

/*
 * The schedule of any rank for m active rows, as it was chosen, lowered for the target of the calls.
 * The caller clears it, also after a failure.
 */
lap_status_t lap_op_schedule(const lap_op_t *op, size_t m, int rank, lap_schedule_t *schedule_p);

/* The same of this rank, as it was built. */
lap_status_t lap_op_build(const lap_op_t *op, size_t m, lap_schedule_t *schedule);

/* The cached runnable for m active rows, made if need be. */
lap_status_t lap_op_cached(lap_op_t *op, size_t m, lap_op_cached_t **cached_p);

/* The description of calls with m active rows, with the method and knobs that were chosen. */
lap_op_desc_t lap_op_chosen(const lap_op_t *op, size_t m);

/* Of an operator whose calls are those of programs: these have runnables of their own. */
void lap_op_drop_runnables(lap_op_t *op);

/* The memory and numbers of a call. */
lap_binding_t lap_op_bind(lap_op_t *op, const lap_op_args_t *args);

/* A builder whose schedules for fewer rows need more memory than for the capacity would be wrong. */
lap_status_t lap_op_check_fits(const lap_op_t *op, const lap_schedule_t *schedule);

/* Around a call that is traced. */
lap_status_t lap_op_begin_trace(const lap_op_t *op, const lap_runnable_t *runnable,
                                lap_trace_t *trace);
void lap_op_end_trace(const lap_runnable_t *runnable, lap_trace_t *trace);

/* The runnable of a call, made if need be, and the memory and numbers of the call. */
lap_status_t lap_op_ready(lap_op_t *op, const lap_op_args_t *args, lap_op_cached_t **cached_p,
                          lap_binding_t *binding_p);

/*
 * After a failure of a call that had begun, with its sentence in lap_last_error: nothing may use
 * the buffer any more, on any rank. Returns the status with the same sentence.
 */
lap_status_t lap_op_break(lap_op_t *op, lap_status_t status);

/*
 * Whether the arguments fit the operator: LAP_OK, or LAP_ERR_INVALID with the argument, its value
 * and what was expected.
 */
lap_status_t lap_args_check(lap_op_t *op, const lap_op_args_t *args);

/*
 * Gives every tensor that a call with args->m rows has a use for its type, if the operator says
 * which, and its sizes, packed; the data stays. Writes them to tensors_p and returns how many there
 * are, LAP_ARGS_TENSORS at most. `rank` of the problem is this one.
 */
#define LAP_ARGS_TENSORS 8
size_t lap_args_shape(const lap_problem_t *problem, lap_op_args_t *args, lap_tensor_t **tensors_p);

/*
 * The arguments that most calls of the capacity will have, as far as that can be known: matrices
 * without gaps in memory that is aligned well. It is not there: nothing may touch it.
 */
lap_op_args_t lap_args_usual(const lap_problem_t *problem);

/* From now on calls delay random steps and take ready blocks in random order; 0 ends it. Local. */
void lap_op_set_chaos(lap_op_t *op, uint64_t seed);

#endif
