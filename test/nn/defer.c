/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passes that are deferred (lap_nn_defer): forward, loss, backward and step as one program make the same bits as one
 * by one, with replicas too; what is given in between, or read, is what was given, or is there; and mistakes are reported.
 * They run on the device that LAP_DEVICE names.
 */
#include <lap/data_parallel.h>
#include <lap/optimizer.h>

#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "tap.h"

enum { STEPS = 4 };

/* Layers, what they are trained with and on, in float32. */
typedef struct state {
    lap_nn_t *nn;
    lap_optimizer_t *optimizer;
    lap_dp_t *dp; /* NULL: no replicas */
    lap_nn_part_t in, out;
    lap_tensor_t x, y, target, dx;
    double losses[STEPS], norms[STEPS];
} state_t;

static lap_tensor_t alloc(lap_nn_t *nn, const lap_nn_part_t *part)
{
    return lap_tensor(nn_new(nn, part->rows * part->cols * sizeof(float)), LAP_FLOAT32, part->rows,
                      part->cols);
}

static bool open_state(lap_group_t *group, lap_group_t *replicas, bool overlap, state_t *state)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    lap_optimizer_desc_t rates = LAP_OPTIMIZER_DESC_INIT;
    lap_dp_options_t options = LAP_DP_OPTIONS_INIT;
    *state = (state_t){.nn = NULL};
    desc.kind = LAP_NN_TRANSFORMER;
    desc.seq = 6;
    desc.hidden = 24;
    desc.heads = 12;
    rates.clip_norm = 0.5f;
    options.overlap = overlap;
    options.bucket = 1000;
    lap_status_t status = lap_nn_create(group, &desc, &state->nn);
    if (status == LAP_OK)
        status = lap_optimizer_create(state->nn, group, &rates, &state->optimizer);
    if (status == LAP_OK && replicas)
        status = lap_dp_create(state->nn, replicas, &options, &state->dp);
    if (!tap_success(status, "layers with an optimizer"))
        return false;
    state->in = lap_nn_input(state->nn, 0);
    state->out = lap_nn_output(state->nn, 0);
    state->x = alloc(state->nn, &state->in);
    state->dx = alloc(state->nn, &state->in);
    state->y = alloc(state->nn, &state->out);
    state->target = alloc(state->nn, &state->out);
    return true;
}

static void close_state(state_t *state)
{
    lap_dp_destroy(state->dp);
    lap_optimizer_destroy(state->optimizer);
    nn_free(state->nn, state->x.data);
    nn_free(state->nn, state->y.data);
    nn_free(state->nn, state->target.data);
    nn_free(state->nn, state->dx.data);
    lap_nn_destroy(state->nn);
}

static lap_status_t fill(state_t *state, uint64_t seed)
{
    LAP_TRY(lap_nn_fill(state->nn, &state->x, &state->in, seed, 1, 1));
    return lap_nn_fill(state->nn, &state->target, &state->out, seed, 2, 1);
}

static lap_status_t passes(state_t *state)
{
    LAP_TRY(lap_nn_forward(state->nn, 6, &state->x, &state->y));
    LAP_TRY(lap_nn_loss(state->nn, &state->y, &state->target, &state->y));
    return lap_nn_backward(state->nn, &state->y, &state->dx);
}

/* The data of the next step are issued before anybody has waited for this one: it has read its own. */
static lap_status_t train(state_t *state, uint64_t replica, bool deferred)
{
    LAP_TRY(lap_nn_defer(state->nn, deferred));
    LAP_TRY(fill(state, replica));
    for (int s = 0; s < STEPS; s++) {
        lap_nn_zero_gradients(state->nn);
        LAP_TRY(passes(state));
        if (state->dp && !deferred)
            LAP_TRY(lap_dp_wait(state->dp));
        LAP_TRY(lap_optimizer_step(state->optimizer, 0.5f, NULL));
        LAP_TRY(fill(state, replica + 10 * (uint64_t)(s + 1)));
        LAP_TRY(lap_optimizer_norm(state->optimizer, &state->norms[s]));
        LAP_TRY(lap_nn_wait(state->nn));
        LAP_TRY(lap_nn_loss_value(state->nn, &state->losses[s]));
    }
    return LAP_OK;
}

static bool is_same(const state_t *a, const state_t *b)
{
    size_t count;
    const float *first = lap_nn_masters(a->nn, &count), *second = lap_nn_masters(b->nn, &count);
    float *one = nn_fetch(a->nn, first, count), *other = nn_fetch(b->nn, second, count);
    const bool same = memcmp(one, other, count * sizeof(float)) == 0 &&
                      memcmp(a->losses, b->losses, sizeof(a->losses)) == 0 &&
                      memcmp(a->norms, b->norms, sizeof(a->norms)) == 0 &&
                      memcmp(a->dx.data, b->dx.data, a->in.rows * a->in.cols * sizeof(float)) == 0;
    free(one);
    free(other);
    return same && a->norms[0] > 0 && a->losses[STEPS - 1] < a->losses[0] * 2;
}

static void compare(lap_group_t *group, lap_group_t *replicas, bool overlap)
{
    const uint64_t replica = replicas ? (uint64_t)lap_group_rank(replicas) : 0;
    const char *how = !replicas ? ""
                      : overlap ? " with replicas"
                                : " with replicas, without overlap";
    state_t now, later;
    if (!open_state(group, replicas, overlap, &now) ||
        !open_state(group, replicas, overlap, &later))
        exit(1);
    tap_success(train(&now, replica, false), "steps, one pass after the other%s", how);
    tap_success(train(&later, replica, true), "steps as programs%s", how);
    tap_ok(is_same(&now, &later), "have the same bits%s", how);
    close_state(&now);
    close_state(&later);
}

static void check_group(lap_world_t *world, void *arg)
{
    (void)arg;
    compare(lap_world_group(world), NULL, false);
}

static void check_replicas(lap_world_t *world, void *arg)
{
    lap_group_t *own;
    (void)arg;
    if (!tap_success(lap_group_split(lap_world_group(world), lap_world_rank(world), 0, &own),
                     "a group of one"))
        exit(1);
    compare(own, lap_world_group(world), true);
    compare(own, lap_world_group(world), false);
    lap_group_destroy(own);
}

/* What is noted is issued when something else is given in its place, and dropped with the layers. */
static void check_given(lap_world_t *world, void *arg)
{
    state_t state;
    (void)arg;
    if (!open_state(lap_world_group(world), NULL, false, &state))
        exit(1);
    lap_nn_t *nn = state.nn;
    const size_t bytes = state.out.rows * state.out.cols * sizeof(float);
    lap_tensor_t other = alloc(nn, &state.out);
    float *right = malloc(bytes), *y = malloc(bytes);
    lap_status_t status = fill(&state, 1);
    if (status == LAP_OK)
        status = passes(&state);
    if (status == LAP_OK)
        status = lap_nn_wait(nn);
    memcpy(right, state.y.data, bytes); /* dy */
    memset(state.y.data, 0, bytes);
    if (status == LAP_OK)
        status = lap_nn_defer(nn, 1);
    for (int again = 0; again < 2 && status == LAP_OK; again++) {
        status = lap_nn_forward(nn, 6, &state.x, &other);
        if (status == LAP_OK)
            status = lap_nn_wait(nn);
        memcpy(y, other.data, bytes);
        memset(state.y.data, 0, bytes);
        if (status == LAP_OK)
            status = lap_nn_forward(nn, 6, &state.x, &state.y);
        if (status == LAP_OK) /* the loss of the forward before, whose y it is given */
            status = lap_nn_loss(nn, &other, &state.target, &other);
        if (status == LAP_OK)
            status = lap_nn_scale_loss(nn, 1);
        if (status == LAP_OK)
            status = lap_nn_wait(nn);
        tap_ok(memcmp(other.data, right, bytes) == 0, "a loss takes the y that it is given");
        tap_ok(memcmp(state.y.data, y, bytes) == 0,
               "... and forward makes that which it was given");
    }
    tap_success(status, "passes with other matrices");
    tap_failure(lap_nn_defer(NULL, 1), LAP_ERR_INVALID, "lap_nn_defer: nn is NULL", NULL);
    double norm;
    tap_failure(lap_optimizer_norm(NULL, &norm), LAP_ERR_INVALID,
                "lap_optimizer_norm: optimizer is NULL", NULL);
    tap_failure(lap_optimizer_norm(state.optimizer, NULL), LAP_ERR_INVALID,
                "lap_optimizer_norm: norm_p is NULL", NULL);
    tap_success(lap_nn_forward(nn, 6, &state.x, &state.y), "a forward that nobody waits for");
    free(right);
    free(y);
    nn_free(nn, other.data);
    close_state(&state);
}

int main(void)
{
    for (int ranks = 1; ranks <= 2; ranks++) {
        tap_launched_ranks(ranks, NULL, check_group, NULL);
        tap_launched_ranks(ranks, NULL, check_given, NULL);
    }
    tap_launched_ranks(2, NULL, check_replicas, NULL);
    return tap_done();
}
