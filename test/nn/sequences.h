/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences of tokens that a small model learns, the same for every grid. */
#ifndef LAP_TEST_NN_SEQUENCES_H
#define LAP_TEST_NN_SEQUENCES_H

#include <stddef.h>
#include <stdint.h>

#include "tap.h"

/* A sequence of all replicas: mostly a function of the token before, so that it is learned. */
static inline void fill_tokens(int step, size_t sequence, size_t seq, uint64_t vocab,
                               int32_t *tokens, int32_t *targets)
{
    uint64_t token = tap_random(5, (uint64_t)step * 64 + sequence) % vocab;
    for (size_t s = 0; s < seq; s++) {
        const uint64_t random = tap_random(6, ((uint64_t)step * 64 + sequence) * seq + s);
        const uint64_t next = random % 8 == 0 ? random / 8 % vocab : (token * 3 + 1) % vocab;
        tokens[s] = (int32_t)token;
        targets[s] = (int32_t)next;
        token = next;
    }
    targets[sequence % seq] = -100; /* each sequence has as many that count */
}

#endif
