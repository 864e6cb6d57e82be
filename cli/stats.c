/* SPDX-License-Identifier: Apache-2.0 */
/* Median and quartiles: see stats.h. */
#include "stats.h"

#include <stdlib.h>

static int ascending(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* The value below which `part` of the sorted samples lie, interpolated. */
static double quantile(const double *samples, size_t count, double part)
{
    const double at = part * (double)(count - 1);
    const size_t below = (size_t)at, above = below + 1 < count ? below + 1 : below;
    const double weight = at - (double)below;
    return samples[below] * (1 - weight) + samples[above] * weight;
}

lap_stats_t lap_stats(double *samples, size_t count)
{
    qsort(samples, count, sizeof(*samples), ascending);
    lap_stats_t stats = {.median = quantile(samples, count, 0.5),
                         .q1 = quantile(samples, count, 0.25),
                         .q3 = quantile(samples, count, 0.75)};
    stats.noise = (stats.q3 - stats.q1) / 2;
    return stats;
}
