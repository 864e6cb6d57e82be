/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dynamic loss scaling, for float16: gradients of activations below its smallest number would be lost, so the
 * loss is scaled up until gradients overflow. A step whose gradients are not finite is not made, and the scale
 * falls; after `window` steps in a row that were made it grows. All ranks see the same norm, so they all do the same.
 */
#ifndef LAP_NN_LOSS_SCALE_H
#define LAP_NN_LOSS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

/* What is asked for, as by Megatron: a first scale, the least one, and how it changes. */
typedef struct lap_loss_scale {
    double scale;        /* of the next step */
    double least;        /* it never falls below that */
    uint64_t window;     /* steps in a row after which it doubles */
    uint64_t hysteresis; /* steps that may overflow before it is halved */
    uint64_t made, left; /* steps in a row so far; that may still overflow */
    uint64_t skipped;    /* steps that were not made so far */
} lap_loss_scale_t;

/* Begins with the first scale. */
void lap_loss_scale_init(lap_loss_scale_t *scale);

/* After a step, which was made if its norm is finite. Returns false where it was not, and the scale is as small as it may be. */
bool lap_loss_scale_update(lap_loss_scale_t *scale, bool made);

#endif
