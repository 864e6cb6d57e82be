/* SPDX-License-Identifier: Apache-2.0 */
/* Time in nanoseconds on a clock that all processes of a host share. */
#ifndef LAP_UTIL_CLOCK_H
#define LAP_UTIL_CLOCK_H

#include <stdint.h>

/* CLOCK_MONOTONIC, so that times of different ranks of one host can be compared. */
uint64_t lap_now_ns(void);

/* Sleeps until lap_now_ns() is at least `when`. */
void lap_sleep_until_ns(uint64_t when);

#endif
