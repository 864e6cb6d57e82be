/* SPDX-License-Identifier: Apache-2.0 */
/* The cost model: rates, measured at a few sizes, become the seconds of a step. */
#include "schedule/cost.h"

#include <math.h>

#include "schedule/range.h"

void lap_cost_add_link(lap_cost_t *cost, const lap_link_t *link)
{
    const double rate = cost->link.bytes_per_s;
    if (link->bytes_per_s > 0 && (rate == 0 || link->bytes_per_s < rate))
        cost->link.bytes_per_s = link->bytes_per_s;
    cost->link.latency_s += link->latency_s;
}

double lap_curve_at(const lap_curve_t *curve, double size)
{
    if (curve->count == 0)
        return 0;
    size_t i = 0;
    while (i < curve->count && curve->sizes[i] < size)
        i++;
    if (i == 0 || i == curve->count)
        return curve->values[i == 0 ? 0 : curve->count - 1];
    const double below = log(curve->sizes[i - 1]), above = log(curve->sizes[i]);
    const double part = (log(size) - below) / (above - below);
    return curve->values[i - 1] * (1 - part) + curve->values[i] * part;
}

double lap_cost_gemm(const lap_cost_t *cost, lap_gemm_shape_t shape)
{
    const double rows = (double)shape.rows, n = (double)shape.n;
    const double work = rows * n * (double)shape.k;
    if (work <= 0)
        return 0;
    return work / (lap_curve_at(&cost->gemm, rows) * lap_curve_at(&cost->columns, n));
}

double lap_cost_copy(const lap_cost_t *cost, const lap_range_t *range)
{
    const double bytes = (double)lap_range_bytes(range);
    return bytes > 0 ? bytes / lap_curve_at(&cost->copy, bytes) : 0;
}

double lap_cost_reduce(const lap_cost_t *cost, const lap_schedule_t *schedule,
                       const lap_step_t *step)
{
    uint32_t count;
    const lap_use_t *first = lap_step_uses(schedule, step, LAP_ROLE_A, &count);
    const double read = count * (double)lap_range_bytes(&first->range);
    const lap_range_t *d = lap_step_range(schedule, step, LAP_ROLE_D);
    return (read + (double)lap_range_bytes(d)) / cost->reduce;
}

double lap_cost_finish(const lap_fragment_cost_t *costs, const lap_range_t *d)
{
    return d->place == LAP_OUTPUT ? costs->finish * (double)lap_range_bytes(d) : 0;
}
