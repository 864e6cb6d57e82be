/* SPDX-License-Identifier: Apache-2.0 */
/* When the scale of a loss grows and falls: see loss_scale.h. */
#include "nn/loss_scale.h"

#define MOST 0x1p126 /* twice that is still a float */

void lap_loss_scale_init(lap_loss_scale_t *scale)
{
    scale->made = scale->skipped = 0;
    scale->left = scale->hysteresis;
}

bool lap_loss_scale_update(lap_loss_scale_t *scale, bool made)
{
    if (!made) {
        const bool least = scale->scale <= scale->least;
        scale->made = 0;
        scale->skipped++;
        if (scale->left > 0)
            scale->left--;
        if (scale->left == 0)
            scale->scale = scale->scale / 2 > scale->least ? scale->scale / 2 : scale->least;
        return !least;
    }
    if (++scale->made >= scale->window) {
        scale->made = 0;
        scale->left = scale->hysteresis;
        scale->scale = scale->scale < MOST ? 2 * scale->scale : scale->scale;
    }
    return true;
}
