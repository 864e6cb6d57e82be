/* SPDX-License-Identifier: Apache-2.0 */
/* Costs for tests of the simulator: by hand, none is measured. */
#ifndef LAP_TEST_SCHEDULE_COSTS_H
#define LAP_TEST_SCHEDULE_COSTS_H

#include "schedule/simulate.h"

static inline lap_curve_t flat(double value)
{
    return (lap_curve_t){1, {1}, {value}};
}

/* One byte copied, or one multiply-add, a second; all else is free. */
static inline lap_cost_t unit_cost(void)
{
    return (lap_cost_t){.gemm = flat(1),
                        .columns = flat(1),
                        .copy = flat(1),
                        .reduce = 1,
                        .cores = 1000,
                        .gemm_cores = 1};
}

/* Rates of the order of a CPU's; a GEMM of few rows is slow. */
static inline lap_cost_t plain_cost(double link_bytes_per_s)
{
    lap_cost_t cost = unit_cost();
    cost.gemm = (lap_curve_t){2, {32, 512}, {8e9, 16e9}};
    cost.columns = flat(1);
    cost.copy = flat(1e10);
    cost.reduce = 1e10;
    cost.step_s = 1e-6;
    cost.signal_s = cost.event_s = 5e-6;
    cost.link.bytes_per_s = link_bytes_per_s;
    return cost;
}

#endif
