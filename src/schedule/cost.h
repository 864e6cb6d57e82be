/* SPDX-License-Identifier: Apache-2.0 */
/* Seconds that steps take by the rates of a cost model, without issuing them. */
#ifndef LAP_SCHEDULE_COST_H
#define LAP_SCHEDULE_COST_H

#include "schedule/simulate.h"

double lap_cost_gemm(const lap_cost_t *cost, lap_gemm_shape_t shape);
double lap_cost_copy(const lap_cost_t *cost, const lap_range_t *range);

/* A sum reads and writes; the ranges that it reads are all alike. */
double lap_cost_reduce(const lap_cost_t *cost, const lap_schedule_t *schedule,
                       const lap_step_t *step);

/* The epilogue for a range of the result. */
double lap_cost_finish(const lap_fragment_cost_t *costs, const lap_range_t *d);

#endif
