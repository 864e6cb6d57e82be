/* SPDX-License-Identifier: Apache-2.0 */
/* A few numbers from small to large, for medians of what comes one by one. */
#ifndef LAP_UTIL_SORTED_H
#define LAP_UTIL_SORTED_H

/* Puts a number where it belongs among `count` that are sorted; there is room for it. */
static inline void lap_sorted_add(double *sorted, int count, double number)
{
    int at = count;
    for (; at > 0 && sorted[at - 1] > number; at--)
        sorted[at] = sorted[at - 1];
    sorted[at] = number;
}

#endif
