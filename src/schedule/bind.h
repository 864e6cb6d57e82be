/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What steps are given: where the ranges of a schedule are in one call, and the operands of a program's
 * fragments. lap_at makes all addresses.
 */
#ifndef LAP_SCHEDULE_BIND_H
#define LAP_SCHEDULE_BIND_H

#include "kernel/kernel.h"
#include "schedule/link.h"
#include "schedule/run.h"

/* The byte of a place that has this offset in the packed matrix of the schedule. */
char *lap_at(const lap_bound_place_t *place, size_t offset);

/*
 * Where a memory of the program is. packed_stride 0: its matrices are as they were linked; else the caller's rows are
 * `stride` bytes apart.
 */
typedef lap_bound_place_t (*lap_base_of_t)(void *context, uint32_t memory);

/* Lists the operands of a fragment, LAP_OPERANDS_MOST at most, of which each role is there once; returns how many. */
#define LAP_OPERANDS_MOST 16
uint32_t lap_list_operands(const lap_linked_t *linked, const lap_fragment_t *fragment,
                           lap_arg_t *args);

/* Gives each its memory. */
void lap_bind_operands(lap_arg_t *args, uint32_t count, lap_base_of_t base, void *context);

/* Gives a call of a schedule the memory of its operands; numbers, and places that are none of them, stay. */
void lap_bind_call(const lap_operands_t *operands, const lap_schedule_t *schedule,
                   lap_binding_t *binding);

/* Where a range begins, and the bytes from row to row there. */
char *lap_bind_range(const lap_binding_t *binding, const lap_range_t *range, size_t *stride_p);

lap_copy_t lap_bind_copy(const lap_binding_t *binding, const lap_schedule_t *schedule,
                         const lap_step_t *step);

/* The element of aux that belongs to the first one of a range of d; NULL when there is no aux. */
void *lap_bind_aux(const lap_binding_t *binding, const lap_schedule_t *schedule,
                   const lap_range_t *d);

/*
 * What becomes of the results of a step that writes `dst`; NULL: nothing, they are only rounded.
 * Else `finish`, filled in.
 */
const lap_finish_t *lap_bind_finish(const lap_binding_t *binding, const lap_schedule_t *schedule,
                                    const lap_range_t *dst, lap_dtype_t to, lap_finish_t *finish);

/* Whether two calls mean the same memory and numbers; traces and delays are not looked at. */
bool lap_binding_same(const lap_binding_t *x, const lap_binding_t *y);

#endif
