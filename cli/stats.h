/* SPDX-License-Identifier: Apache-2.0 */
/* Median and quartiles of what was measured several times. */
#ifndef LAP_CLI_STATS_H
#define LAP_CLI_STATS_H

#include <stddef.h>

typedef struct lap_stats {
    double median, q1, q3;
    double noise; /* half the distance of the quartiles */
} lap_stats_t;

/* Sorts the samples. `count` is at least 1. */
lap_stats_t lap_stats(double *samples, size_t count);

#endif
