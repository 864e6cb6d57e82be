/* SPDX-License-Identifier: Apache-2.0 */
/* The environment of a process that a test makes a rank of. */
#ifndef LAP_TEST_CORE_RANK_ENVIRONMENT_H
#define LAP_TEST_CORE_RANK_ENVIRONMENT_H

#include <stdio.h>
#include <stdlib.h>

static inline void set_rank_environment(int rank, int size, const char *timeout_s)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", rank);
    setenv("LAP_RANK", text, 1);
    snprintf(text, sizeof(text), "%d", size);
    setenv("LAP_SIZE", text, 1);
    setenv("LAP_TIMEOUT_S", timeout_s, 1);
}

#endif
