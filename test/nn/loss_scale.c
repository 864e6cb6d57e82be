/* SPDX-License-Identifier: Apache-2.0 */
/* Dynamic loss scaling: when the scale grows and falls, step by step, as Megatron's does. */
#include "nn/loss_scale.h"

#include "tap.h"

/* Steps as letters, + for one that is made and - for one that is not; the scale after each. */
static void check(const char *name, lap_loss_scale_t scale, const char *steps,
                  const double *expected)
{
    size_t wrong = 0, skipped = 0;
    lap_loss_scale_init(&scale);
    for (size_t i = 0; steps[i]; i++) {
        const bool least = scale.scale <= scale.least, made = steps[i] == '+';
        const bool goes_on = lap_loss_scale_update(&scale, made);
        skipped += !made;
        wrong += tap_wrong(scale.scale != expected[i], "step %zu: %g, expected %g", i + 1,
                           scale.scale, expected[i]);
        wrong += tap_wrong(goes_on != (made || !least), "step %zu: %d", i + 1, goes_on);
    }
    tap_ok(wrong == 0 && scale.skipped == skipped, "%s: %s", name, steps);
}

int main(void)
{
    const lap_loss_scale_t plain = {.scale = 8, .least = 1, .window = 3, .hysteresis = 1};
    lap_loss_scale_t patient = plain;
    patient.hysteresis = 2;
    check("it doubles after a window", plain, "+++++++",
          (const double[]){8, 8, 16, 16, 16, 32, 32});
    check("a step that is not made halves it, and the window begins again", plain, "++-++++",
          (const double[]){8, 8, 4, 4, 4, 8, 8});
    check("it never falls below the least", plain, "-----", (const double[]){4, 2, 1, 1, 1});
    check("with hysteresis one may fail", patient, "-+--+++-+",
          (const double[]){8, 8, 4, 2, 2, 2, 4, 4, 4});
    lap_loss_scale_t large = plain;
    large.scale = 0x1p126;
    large.window = 1;
    check("it stays a float", large, "++", (const double[]){0x1p126, 0x1p126});
    return tap_done();
}
