/* SPDX-License-Identifier: Apache-2.0 */
/* Layers with all matrices of a pass, for tests of FP8. */
#ifndef LAP_TEST_NN_FP8_STATE_H
#define LAP_TEST_NN_FP8_STATE_H

#include "memory.h"
#include "tap.h"

#define SEQ 8
#define BATCH 2

typedef struct state {
    lap_nn_t *nn;
    lap_nn_part_t in, out;
    lap_tensor_t x, y, target, dy, dx;
} state_t;

static inline lap_tensor_t alloc(lap_nn_t *nn, lap_dtype_t dtype, const lap_nn_part_t *part)
{
    return lap_tensor(nn_new(nn, part->rows * part->cols * sizeof(float)), dtype, part->rows,
                      part->cols);
}

static inline bool open_state(lap_group_t *group, const lap_nn_desc_t *desc, state_t *state)
{
    *state = (state_t){.nn = NULL};
    if (!tap_success(lap_nn_create(group, desc, &state->nn), "%s", lap_nn_kind_name(desc->kind)))
        return false;
    state->in = lap_nn_input(state->nn, 0);
    state->out = lap_nn_output(state->nn, 0);
    state->x = alloc(state->nn, desc->dtype, &state->in);
    state->dx = alloc(state->nn, desc->dtype, &state->in);
    state->y = alloc(state->nn, desc->dtype, &state->out);
    state->dy = alloc(state->nn, desc->dtype, &state->out);
    state->target = alloc(state->nn, desc->dtype, &state->out);
    return true;
}

static inline void close_state(state_t *state)
{
    if (!state->nn)
        return;
    nn_free(state->nn, state->x.data);
    nn_free(state->nn, state->y.data);
    nn_free(state->nn, state->target.data);
    nn_free(state->nn, state->dy.data);
    nn_free(state->nn, state->dx.data);
    lap_nn_destroy(state->nn);
}

/* A copy of all gradients, which the caller frees. */
static inline float *gradients(const state_t *state, size_t *count_p)
{
    const float *grads = lap_nn_gradients(state->nn, count_p);
    return nn_fetch(state->nn, grads, *count_p);
}

#endif
