/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts the cores that the calling thread may run on. Quotas of control groups are not looked at.
 */
#include "util/cores.h"

#include <sched.h>
#include <unistd.h>

int lap_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
    /* The machine has more processors than the set can hold. */
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}
