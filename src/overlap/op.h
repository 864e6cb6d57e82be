/* SPDX-License-Identifier: Apache-2.0 */
/* What op.c shares with its neighbours, and what tests may do to an operator. */
#ifndef LAP_OVERLAP_OP_H
#define LAP_OVERLAP_OP_H

#include <stdint.h>

#include <lap/op.h>

#include "overlap/overlap.h"
#include "transport/transport.h"

/*
 * Whether the arguments fit an operator that works in `buffer`: LAP_OK, or LAP_ERR_INVALID with the
 * argument, its value and what was expected.
 */
lap_status_t lap_args_check(const lap_problem_t *problem, const lap_buffer_t *buffer,
                            const lap_op_args_t *args);

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
