/* SPDX-License-Identifier: Apache-2.0 */
/* What the fake libraries have in common. */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

void fake_nap(void)
{
    const struct timespec while_ = {0, 20000};
    nanosleep(&while_, NULL);
}

uint64_t fake_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void fake_wrong(const char *sentence)
{
    fprintf(stderr, "fake: %s\n", sentence);
    abort();
}
