/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients against finite differences, on the device that LAP_DEVICE names, or else on the one
 * that sums in double. The loss is the sum of y times fixed numbers, added up in double. For x and
 * each parameter the derivative in a random direction of plus and minus ones must be the gradient
 * times that direction. Central differences of two steps, extrapolated, are off by the fourth power
 * of the step; what y is rounded by, over the step, is the rest.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "tap.h"
#include "util/random.h"

#define STEP 0x1p-7
#define SEQ 5
#define BATCH 2

typedef struct example {
    const char *name;
    lap_nn_desc_t desc;
} example_t;

/* One rank's layers with their x, y, dy and dx. */
typedef struct state {
    lap_group_t *group;
    lap_nn_t *nn;
    lap_nn_part_t in, out;
    float *x, *y, *dy, *dx;
    float *masters; /* the test's copy */
} state_t;

static lap_tensor_t matrix(float *data, const lap_nn_part_t *part)
{
    return lap_tensor(data, LAP_FLOAT32, part->rows, part->cols);
}

/* The sum over ranks of what each has. */
static double sum_over_ranks(lap_group_t *group, double mine)
{
    double all[16], sum = 0;
    if (lap_group_allgather(group, &mine, sizeof(mine), all) != LAP_OK)
        return NAN;
    for (int r = 0; r < lap_group_size(group); r++)
        sum += all[r];
    return sum;
}

static double loss(state_t *state)
{
    const lap_tensor_t x = matrix(state->x, &state->in), y = matrix(state->y, &state->out);
    double sum = 0;
    if (lap_nn_forward(state->nn, SEQ, &x, &y) != LAP_OK || lap_nn_wait(state->nn) != LAP_OK)
        return NAN;
    for (size_t i = 0; i < state->out.rows * state->out.cols; i++)
        sum += (double)state->y[i] * (double)state->dy[i];
    return sum_over_ranks(state->group, sum);
}

/* A matrix of which this rank holds a part, and its gradient. */
typedef struct variable {
    const char *name;
    float *values;
    const float *grad;
    size_t count, cols;
    bool replicated; /* all ranks hold the same */
    uint64_t seed;
    const lap_nn_param_t *param; /* NULL: x */
    const lap_nn_part_t *part;
} variable_t;

/* Element i of this rank's part is this element of the whole. */
static uint64_t whole_index(const variable_t *v, size_t i)
{
    size_t row = i / v->cols, col = i % v->cols, p = 0;
    if (!v->param)
        return (v->part->first_row + row) * v->part->all_cols + v->part->first_col + col;
    for (; row >= v->param->part_rows[p]; p++)
        row -= v->param->part_rows[p];
    return (v->param->global_row[p] + row) * v->param->all_cols + v->param->global_col + col;
}

static double direction(const variable_t *v, size_t i)
{
    return tap_random(v->seed, whole_index(v, i)) & 1 ? 1 : -1;
}

/* Brings the copy of the weights to the layers. */
static void set_masters(state_t *state)
{
    size_t count;
    float *masters = lap_nn_masters(state->nn, &count);
    if (!nn_copy(state->nn, masters, state->masters, count * sizeof(float)) ||
        lap_nn_refresh(state->nn) != LAP_OK)
        tap_ok(false, "weights are set");
}

static double loss_at(state_t *state, const variable_t *v, const float *saved, double step)
{
    for (size_t i = 0; i < v->count; i++)
        v->values[i] = (float)((double)saved[i] + step * direction(v, i));
    set_masters(state);
    return loss(state);
}

static double slope(state_t *state, const variable_t *v, const float *saved, double step)
{
    return (loss_at(state, v, saved, step) - loss_at(state, v, saved, -step)) / (2 * step);
}

static void check_variable(state_t *state, const variable_t *v, const char *example)
{
    float *saved = malloc(v->count * sizeof(float) + 1);
    double product = 0, squares = 0;
    memcpy(saved, v->values, v->count * sizeof(float));
    for (size_t i = 0; i < v->count; i++) {
        product += (double)v->grad[i] * direction(v, i);
        squares += (double)v->grad[i] * (double)v->grad[i];
    }
    const int ranks = lap_group_size(state->group);
    const double share = v->replicated ? 1.0 / ranks : 1;
    product = sum_over_ranks(state->group, product * share);
    squares = sum_over_ranks(state->group, squares * share);
    const double wide = slope(state, v, saved, STEP), narrow = slope(state, v, saved, STEP / 2);
    const double estimate = (4 * narrow - wide) / 3;
    memcpy(v->values, saved, v->count * sizeof(float));
    set_masters(state);
    /* The directional derivative is of the size of the gradient's norm. */
    const double bound = 4e-4 * sqrt(squares) + 1e-5;
    tap_ok(fabs(product - estimate) <= bound,
           "%s, %s: the derivative is %.7g, measured %.7g, may be off by %.1g (is %.1g)", example,
           v->name, product, estimate, bound, fabs(product - estimate));
    free(saved);
}

static void fill(float *values, const lap_nn_part_t *part, uint64_t seed)
{
    for (size_t i = 0; i < part->rows; i++)
        for (size_t j = 0; j < part->cols; j++)
            values[i * part->cols + j] = lap_random_normal(
                seed, 1, (part->first_row + i) * part->all_cols + part->first_col + j);
}

/* Where the copy of a parameter's master, or gradient, is in the copy of all of them. */
static float *copy_in(lap_nn_t *nn, const lap_nn_param_t *param, float *all)
{
    size_t count;
    return all + ((float *)param->master.data - lap_nn_masters(nn, &count));
}

/* Parameters that begin with 0 or 1 would hide much: all are moved. */
static void move_params(state_t *state)
{
    size_t count;
    const float *masters = lap_nn_masters(state->nn, &count);
    state->masters = nn_fetch(state->nn, masters, count);
    for (size_t p = 0; p < lap_nn_params(state->nn); p++) {
        const lap_nn_param_t *param = lap_nn_param(state->nn, p);
        variable_t v = {.cols = param->cols, .param = param};
        float *values = copy_in(state->nn, param, state->masters);
        for (size_t i = 0; i < param->rows * param->cols; i++)
            values[i] += 0.2f * lap_random_normal(7, p, whole_index(&v, i));
    }
    set_masters(state);
}

static void check_all(state_t *state, const example_t *example)
{
    const lap_tensor_t x = matrix(state->x, &state->in), y = matrix(state->y, &state->out);
    const lap_tensor_t dy = matrix(state->dy, &state->out), dx = matrix(state->dx, &state->in);
    if (!tap_success(lap_nn_forward(state->nn, SEQ, &x, &y), "forward") ||
        !tap_success(lap_nn_backward(state->nn, &dy, &dx), "backward") ||
        !tap_success(lap_nn_wait(state->nn), "both end"))
        return;
    const bool whole_x =
        state->in.rows == state->in.all_rows && state->in.cols == state->in.all_cols;
    const variable_t input = {
        "x", state->x, state->dx, state->in.rows * state->in.cols, state->in.cols, whole_x,
        99,  NULL,     &state->in};
    size_t count;
    const float *all = lap_nn_gradients(state->nn, &count);
    float *grads = nn_fetch(state->nn, all, count);
    check_variable(state, &input, example->name);
    for (size_t p = 0; p < lap_nn_params(state->nn); p++) {
        const lap_nn_param_t *param = lap_nn_param(state->nn, p);
        const variable_t v = {param->name,
                              copy_in(state->nn, param, state->masters),
                              copy_in(state->nn, param, grads),
                              param->rows * param->cols,
                              param->cols,
                              param->replicated != 0,
                              p,
                              param,
                              NULL};
        check_variable(state, &v, example->name);
    }
    free(grads);
}

static void run_rank(lap_world_t *world, void *arg)
{
    const example_t *example = arg;
    state_t state = {.group = lap_world_group(world)};
    if (!tap_success(lap_nn_create(state.group, &example->desc, &state.nn), "%s", example->name))
        return;
    state.in = lap_nn_input(state.nn, 0);
    state.out = lap_nn_output(state.nn, 0);
    const size_t in = state.in.rows * state.in.cols, out = state.out.rows * state.out.cols;
    state.x = nn_new(state.nn, in * sizeof(float));
    state.dx = nn_new(state.nn, in * sizeof(float));
    state.y = nn_new(state.nn, out * sizeof(float));
    state.dy = nn_new(state.nn, out * sizeof(float));
    fill(state.x, &state.in, 1);
    fill(state.dy, &state.out, 2);
    move_params(&state);
    check_all(&state, example);
    nn_free(state.nn, state.x);
    nn_free(state.nn, state.y);
    nn_free(state.nn, state.dy);
    nn_free(state.nn, state.dx);
    free(state.masters);
    lap_nn_destroy(state.nn);
}

static lap_nn_desc_t small(lap_nn_kind_t kind)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    desc.kind = kind;
    desc.seq = SEQ;
    desc.batch = BATCH;
    desc.hidden = 12;
    desc.heads = 4;
    desc.ffn = 20;
    desc.init_std = 0.2f;
    return desc;
}

int main(void)
{
    example_t examples[] = {
        {"linear", small(LAP_NN_LINEAR)},
        {"row-parallel linear", small(LAP_NN_LINEAR)},
        {"layernorm_linear", small(LAP_NN_LAYERNORM_LINEAR)},
        {"layernorm_mlp", small(LAP_NN_LAYERNORM_MLP)},
        {"attention", small(LAP_NN_ATTENTION)},
        {"transformer", small(LAP_NN_TRANSFORMER)},
        {"rmsnorm, swiglu, grouped", small(LAP_NN_TRANSFORMER)},
    };
    examples[1].desc.row_parallel = 1;
    examples[6].desc.norm = LAP_RMSNORM;
    examples[6].desc.activation = LAP_SWIGLU;
    examples[6].desc.kv_heads = 2;
    examples[6].desc.recompute = LAP_RECOMPUTE_FULL;
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    options.device = getenv("LAP_DEVICE") ? NULL : "ref";
    for (size_t i = 0; i < sizeof(examples) / sizeof(examples[0]); i++)
        for (int ranks = 1; ranks <= 2; ranks++)
            tap_launched_ranks(ranks, &options, run_rank, &examples[i]);
    return tap_done();
}
