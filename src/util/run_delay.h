/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a thread was ready to run and had no core, as the scheduler of the system counts it.
 */
#ifndef LAP_UTIL_RUN_DELAY_H
#define LAP_UTIL_RUN_DELAY_H

#include <stdint.h>

/* A descriptor of the counters of the calling thread, to be closed; -1: this system has none. */
int lap_run_delay_open(void);

/* In nanoseconds, since the thread began; 0 where that is not known. */
uint64_t lap_run_delay_read(int fd);

/* The same for the calling thread, at the cost of opening a file. */
uint64_t lap_run_delay_ns(void);

#endif
