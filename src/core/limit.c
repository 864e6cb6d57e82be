/* SPDX-License-Identifier: Apache-2.0 */
/* The timeout that counts, and the words for it: see limit.h. */
#include "core/limit.h"

#include <stdio.h>

void lap_limit_shorten(lap_limit_t *limit, lap_deadline_t *deadline, uint64_t left_ns,
                       lap_limit_t other)
{
    if (left_ns < lap_deadline_left(deadline) && other.timeout_ns != limit->timeout_ns)
        *limit = other;
    lap_deadline_shorten(deadline, left_ns);
}

const char *lap_limit_within(const lap_limit_t *limit, uint64_t own_ns, char text[LAP_LIMIT_TEXT])
{
    const double seconds = (double)limit->timeout_ns * 1e-9;
    if (limit->timeout_ns == own_ns)
        snprintf(text, LAP_LIMIT_TEXT, "within %g s", seconds);
    else
        snprintf(text, LAP_LIMIT_TEXT, "within %g s (the timeout of rank %d)", seconds,
                 (int)limit->rank);
    return text;
}

const char *lap_limit_in_time(const lap_limit_t *limit, char text[LAP_LIMIT_TEXT])
{
    snprintf(text, LAP_LIMIT_TEXT, "in time (the timeout of rank %d is %g s)", (int)limit->rank,
             (double)limit->timeout_ns * 1e-9);
    return text;
}
