/* SPDX-License-Identifier: Apache-2.0 */
/* Losses and norms of gradients of the steps of a training, to compare with those of another one. */
#ifndef LAP_TEST_NN_CURVES_H
#define LAP_TEST_NN_CURVES_H

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { STEPS = 20 };

typedef struct curves {
    double losses[STEPS], norms[STEPS];
} curves_t;

/* The largest difference of two series, as a part of them; infinite where one is not a number. */
static inline double series_difference(const double one[STEPS], const double other[STEPS])
{
    double most = 0;
    for (int i = 0; i < STEPS; i++) {
        const double part = fabs(one[i] / other[i] - 1);
        if (!(part <= most))
            most = isnan(part) ? INFINITY : part;
    }
    return most;
}

static inline double difference(const curves_t *one, const curves_t *other)
{
    return fmax(series_difference(one->losses, other->losses),
                series_difference(one->norms, other->norms));
}

static inline bool same_bits(const curves_t *one, const curves_t *other)
{
    return memcmp(one, other, sizeof(*one)) == 0;
}

#endif
