/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranges of a schedule stand for in one call. */
#ifndef LAP_SCHEDULE_BIND_H
#define LAP_SCHEDULE_BIND_H

#include "schedule/run.h"

/* Where a range begins, and the bytes from row to row there. */
char *lap_bind_range(const lap_binding_t *binding, const lap_range_t *range, size_t *stride_p);

lap_copy_t lap_bind_copy(const lap_binding_t *binding, const lap_step_t *step);

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
