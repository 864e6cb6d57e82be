/* SPDX-License-Identifier: Apache-2.0 */
/* The monotonic clock in nanoseconds. It never speaks of the time of day. */
#include "util/clock.h"

#include <time.h>

uint64_t lap_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void lap_sleep_until_ns(uint64_t when)
{
    struct timespec until = {.tv_sec = (time_t)(when / 1000000000u),
                             .tv_nsec = (long)(when % 1000000000u)};
    /* An absolute time makes a sleep that a signal cut short end when it should all the same. */
    while (lap_now_ns() < when)
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}
