/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first tensor that is not finite: one number of one rank is made so, in each parameter, in each
 * gradient and in the input, and lap_nn_find_not_finite names that tensor on every rank; with what
 * forward keeps and with what it does not.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nn/memory.h"
#include "tap.h"

enum { SEQ = 4, BATCH = 2, HIDDEN = 24 };

typedef struct trial {
    int nranks;
    lap_nn_kind_t kind;
    lap_dtype_t dtype;
    lap_recompute_t recompute;
    lap_fp8_recipe_t fp8;
    int sequence_parallel;
    lap_activation_t activation;
} trial_t;

static const trial_t trials[] = {
    {1, LAP_NN_TRANSFORMER, LAP_FLOAT32, LAP_RECOMPUTE_NONE, LAP_FP8_NONE, 1, LAP_GELU},
    {2, LAP_NN_TRANSFORMER, LAP_FLOAT32, LAP_RECOMPUTE_FULL, LAP_FP8_NONE, 1, LAP_GELU},
    {2, LAP_NN_TRANSFORMER, LAP_BFLOAT16, LAP_RECOMPUTE_SELECTIVE, LAP_FP8_NONE, 0, LAP_SWIGLU},
    {3, LAP_NN_TRANSFORMER, LAP_FLOAT16, LAP_RECOMPUTE_NONE, LAP_FP8_NONE, 1, LAP_SWIGLU},
    {2, LAP_NN_TRANSFORMER, LAP_BFLOAT16, LAP_RECOMPUTE_NONE, LAP_FP8_DELAYED, 1, LAP_GELU},
    {2, LAP_NN_LAYERNORM_MLP, LAP_BFLOAT16, LAP_RECOMPUTE_FULL, LAP_FP8_CURRENT, 1, LAP_GELU},
    {2, LAP_NN_LAYERNORM_LINEAR, LAP_FLOAT32, LAP_RECOMPUTE_NONE, LAP_FP8_NONE, 1, LAP_GELU},
    {1, LAP_NN_LINEAR, LAP_FLOAT16, LAP_RECOMPUTE_NONE, LAP_FP8_NONE, 1, LAP_GELU},
};

typedef struct state {
    const trial_t *trial;
    lap_group_t *group;
    lap_nn_t *nn;
    void *memory[3];
    lap_tensor_t x, y, dx;
} state_t;

static bool make(state_t *state)
{
    const trial_t *trial = state->trial;
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    desc.kind = trial->kind;
    desc.layers = trial->kind == LAP_NN_TRANSFORMER || trial->kind == LAP_NN_LAYERNORM_MLP ? 2 : 1;
    desc.seq = SEQ;
    desc.batch = BATCH;
    desc.hidden = HIDDEN;
    desc.heads = 6;
    desc.dtype = trial->dtype;
    desc.recompute = trial->recompute;
    desc.fp8 = trial->fp8;
    desc.sequence_parallel = trial->sequence_parallel;
    desc.activation = trial->activation;
    desc.init_std = 0.3f;
    if (!tap_success(lap_nn_create(state->group, &desc, &state->nn), "layers"))
        return false;
    const lap_nn_part_t in = lap_nn_input(state->nn, 0), out = lap_nn_output(state->nn, 0);
    const lap_nn_part_t *parts[] = {&in, &out, &in};
    lap_tensor_t *tensors[] = {&state->x, &state->y, &state->dx};
    for (size_t i = 0; i < 3; i++) {
        state->memory[i] = nn_new(state->nn, sizeof(float) * SEQ * BATCH * HIDDEN);
        *tensors[i] = lap_tensor(state->memory[i], trial->dtype, parts[i]->rows, parts[i]->cols);
    }
    return tap_success(lap_nn_fill(state->nn, &state->x, &in, 7, (uint64_t)1 << 32, 1), "data") &&
           tap_success(lap_nn_forward(state->nn, SEQ, &state->x, &state->y), "forward") &&
           tap_success(lap_nn_backward(state->nn, &state->y, &state->dx), "backward") &&
           tap_success(lap_nn_wait(state->nn), "both");
}

static void finish(state_t *state)
{
    for (size_t i = 0; i < 3; i++)
        if (state->memory[i])
            nn_free(state->nn, state->memory[i]);
    lap_nn_destroy(state->nn);
}

static void expect(state_t *state, lap_nn_what_t what, const char *name, int rank)
{
    lap_nn_not_finite_t found = {.what = LAP_NN_ALL_FINITE};
    const lap_status_t status =
        lap_nn_find_not_finite(state->nn, SEQ, &state->x, &state->y, &found);
    tap_success(status, "a look at all tensors");
    tap_ok(found.what == what && strcmp(found.name, name) == 0 && found.rank == rank,
           "%s of %d ranks, %s: expected %d '%s' of rank %d, found %d '%s' of rank %d",
           lap_nn_kind_name(state->trial->kind), state->trial->nranks,
           lap_dtype_name(state->trial->dtype), (int)what, name, rank, (int)found.what, found.name,
           found.rank);
}

/* Puts a number where one rank has `place`, and takes it out again; `what` is found meanwhile. */
static void spoil(state_t *state, lap_nn_what_t what, const lap_nn_param_t *param, size_t index,
                  float value)
{
    const lap_tensor_t *tensor = what == LAP_NN_GRADIENT ? &param->grad : &param->master;
    float *place = (float *)tensor->data + index;
    /* Of what is the same on all ranks, all copies are spoilt, as they would be. */
    const int last = lap_group_size(state->group) - 1;
    const bool mine = param->replicated || lap_group_rank(state->group) == last;
    float *before = nn_fetch(state->nn, place, 1);
    if (mine)
        tap_ok(nn_copy(state->nn, place, &value, sizeof(value)), "%s is spoilt", param->name);
    if (what == LAP_NN_PARAMETER)
        tap_success(lap_nn_refresh(state->nn), "copies of it");
    expect(state, what, param->name, param->replicated ? 0 : last);
    if (mine)
        tap_ok(nn_copy(state->nn, place, before, sizeof(value)), "%s is mended", param->name);
    if (what == LAP_NN_PARAMETER)
        tap_success(lap_nn_refresh(state->nn), "copies of it");
    free(before);
}

/* A weight that float16 cannot hold. */
static void overflow(state_t *state)
{
    const float large = 1e6f;
    for (size_t i = 0; i < lap_nn_params(state->nn); i++) {
        const lap_nn_param_t *param = lap_nn_param(state->nn, i);
        char name[80];
        if (param->weight.dtype != LAP_FLOAT16)
            continue;
        snprintf(name, sizeof(name), "%s as float16", param->name);
        float *before = nn_fetch(state->nn, param->master.data, 1);
        (void)nn_copy(state->nn, param->master.data, &large, sizeof(large));
        tap_success(lap_nn_refresh(state->nn), "copies");
        expect(state, LAP_NN_PARAMETER, name, 0);
        (void)nn_copy(state->nn, param->master.data, before, sizeof(large));
        tap_success(lap_nn_refresh(state->nn), "copies");
        free(before);
    }
}

/* Weights so large that a product is not finite, while they are. */
static void explode(state_t *state, const char *weight, const char *output)
{
    size_t index = 0;
    while (strcmp(lap_nn_param(state->nn, index)->name, weight) != 0)
        index++;
    const lap_nn_param_t *param = lap_nn_param(state->nn, index);
    const size_t count = param->rows * param->cols;
    float *before = nn_fetch(state->nn, param->master.data, count);
    float *large = nn_fetch(state->nn, param->master.data, count);
    for (size_t i = 0; i < count; i++)
        large[i] = 3e38f;
    (void)nn_copy(state->nn, param->master.data, large, count * sizeof(float));
    tap_success(lap_nn_refresh(state->nn), "copies");
    expect(state, LAP_NN_ACTIVATION, output, 0);
    (void)nn_copy(state->nn, param->master.data, before, count * sizeof(float));
    tap_success(lap_nn_refresh(state->nn), "copies");
    free(large);
    free(before);
}

static void run_rank(lap_world_t *world, void *arg)
{
    state_t state = {.trial = arg, .group = lap_world_group(world)};
    static const float values[] = {NAN, INFINITY, -INFINITY};
    if (make(&state)) {
        expect(&state, LAP_NN_ALL_FINITE, "", 0);
        for (size_t i = 0; i < lap_nn_params(state.nn); i++) {
            const lap_nn_param_t *param = lap_nn_param(state.nn, i);
            const size_t last = param->rows * param->cols - 1;
            spoil(&state, LAP_NN_PARAMETER, param, i % 2 ? last : 0, values[i % 3]);
            spoil(&state, LAP_NN_GRADIENT, param, i % 2 ? 0 : last, values[i % 3]);
        }
        if (state.trial->dtype == LAP_FLOAT16)
            overflow(&state);
        if (state.trial->kind == LAP_NN_TRANSFORMER && state.trial->dtype == LAP_FLOAT32) {
            explode(&state, "layer0.norm1.weight", "layer0.norm1.output");
            explode(&state, "layer0.qkv.weight", "layer0.qkv.output");
            explode(&state, "layer1.proj.weight", "layer1.proj.output");
            explode(&state, "layer1.fc1.weight", "layer1.fc1.output");
            explode(&state, "layer1.fc2.weight", "layer1.fc2.output");
        }
        expect(&state, LAP_NN_ALL_FINITE, "", 0);
        memset(state.memory[0], 0xff, lap_dtype_size(state.trial->dtype)); /* a NaN in all types */
        expect(&state, LAP_NN_ACTIVATION, "input", 0);
    }
    finish(&state);
}

static void run_mistakes(lap_world_t *world, void *arg)
{
    state_t state = {.trial = arg, .group = lap_world_group(world)};
    lap_nn_not_finite_t found;
    if (make(&state)) {
        tap_failure(lap_nn_find_not_finite(NULL, SEQ, &state.x, &state.y, &found), LAP_ERR_INVALID,
                    "nn is NULL", NULL);
        tap_failure(lap_nn_find_not_finite(state.nn, SEQ, &state.x, &state.y, NULL),
                    LAP_ERR_INVALID, "found_p is NULL", NULL);
        tap_failure(lap_nn_find_not_finite(state.nn, SEQ, &state.x, NULL, &found), LAP_ERR_INVALID,
                    "y is NULL", NULL);
        expect(&state, LAP_NN_ALL_FINITE, "", 0);
    }
    finish(&state);
}

int main(void)
{
    for (size_t i = 0; i < sizeof(trials) / sizeof(trials[0]); i++)
        tap_launched_ranks(trials[i].nranks, NULL, run_rank, (void *)&trials[i]);
    tap_launched_ranks(1, NULL, run_mistakes, (void *)&trials[0]);
    return tap_done();
}
