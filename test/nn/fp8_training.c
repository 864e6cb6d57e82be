/* SPDX-License-Identifier: Apache-2.0 */
/* FP8: 200 steps of training end where those of bfloat16 do. The device is the one of LAP_DEVICE. */
#include <math.h>
#include <stdlib.h>

#include "fp8_state.h"

#define STEPS 200

/* Every token is to become the one before it; those before the first cannot be known. */
static lap_status_t fill_batch(state_t *state, uint64_t step)
{
    const uint64_t data = ((uint64_t)1 << 32) + step;
    lap_nn_part_t before = state->out;
    before.first_row -= BATCH;
    lap_status_t status = lap_nn_fill(state->nn, &state->x, &state->in, 1, data, 1);
    return status == LAP_OK ? lap_nn_fill(state->nn, &state->target, &before, 1, data, 1) : status;
}

/* Against the gradient. */
static lap_status_t descend(state_t *state)
{
    size_t count;
    float *masters = lap_nn_masters(state->nn, &count);
    float *values = nn_fetch(state->nn, masters, count), *grads = gradients(state, &count);
    for (size_t i = 0; i < count; i++)
        values[i] -= 2.0f * grads[i];
    const bool set = nn_copy(state->nn, masters, values, count * sizeof(float));
    free(values);
    free(grads);
    return set ? lap_nn_refresh(state->nn) : LAP_ERR_INTERNAL;
}

/* Plain gradient descent; returns the mean of the last ten losses. */
static double train(lap_world_t *world, const lap_nn_desc_t *desc)
{
    state_t state;
    double mean = 0, first = 0, loss = NAN;
    if (!open_state(lap_world_group(world), desc, &state))
        return NAN;
    for (int i = 0; i < STEPS; i++) {
        lap_nn_zero_gradients(state.nn);
        lap_status_t status = fill_batch(&state, (uint64_t)i);
        if (status == LAP_OK)
            status = lap_nn_forward(state.nn, SEQ, &state.x, &state.y);
        if (status == LAP_OK)
            status = lap_nn_loss(state.nn, &state.y, &state.target, &state.dy);
        if (status == LAP_OK)
            status = lap_nn_backward(state.nn, &state.dy, &state.dx);
        if (status == LAP_OK)
            status = lap_nn_wait(state.nn);
        if (status == LAP_OK)
            status = lap_nn_loss_value(state.nn, &loss);
        if (status == LAP_OK)
            status = descend(&state);
        if (status != LAP_OK) {
            tap_success(status, "step %d", i);
            mean = NAN;
            break;
        }
        first = i == 0 ? loss : first;
        mean += i >= STEPS - 10 ? loss / 10 : 0;
    }
    tap_ok(mean < 0.7 * first, "%d steps bring the loss from %.4f to %.4f", STEPS, first, mean);
    close_state(&state);
    return mean;
}

static void check_training(lap_world_t *world, void *arg)
{
    lap_nn_desc_t desc = *(const lap_nn_desc_t *)arg;
    desc.dtype = LAP_BFLOAT16;
    desc.fp8 = LAP_FP8_NONE;
    const double bf16 = train(world, &desc);
    for (int recipe = LAP_FP8_DELAYED; recipe <= LAP_FP8_CURRENT; recipe++) {
        desc.fp8 = (lap_fp8_recipe_t)recipe;
        const double fp8 = train(world, &desc);
        tap_ok(fabs(fp8 - bf16) <= 0.02 * bf16, "FP8 ends with %.4f, bfloat16 with %.4f", fp8,
               bf16);
    }
}

int main(void)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    desc.kind = LAP_NN_TRANSFORMER;
    desc.seq = SEQ;
    desc.batch = BATCH;
    desc.hidden = 32;
    desc.features = 192;
    desc.heads = 8;
    desc.init_std = 0.1f;
    desc.sequence_parallel = 1;
    desc.activation = LAP_GELU;
    tap_launched_ranks(2, NULL, check_training, &desc);
    return tap_done();
}
