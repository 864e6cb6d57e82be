/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls around a step of a pipeline with replicas, in other orders than the usual one: replicas that
 * are joined while a step runs are no part of it; lap_dp_wait before lap_pp_wait ends all of the step,
 * with the same bits; and so does leaving the replicas. A rank that cannot make its step says so to all.
 */
#include <math.h>
#include <string.h>

#include <lap/data_parallel.h>
#include <lap/model.h>
#include <lap/pipeline.h>

#include "nn/nn.h"
#include "nn/sequences.h"
#include "parallel/grid.h"
#include "tap.h"
#include "util/alloc.h"

enum { SEQ = 8, VOCAB = 31, MICRO = 4 };

static const lap_grid_t grid = {1, 1, 2, 2};

static lap_status_t create(const lap_grid_groups_t *groups, lap_pp_t **pp_p)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    lap_pp_options_t options = LAP_PP_OPTIONS_INIT;
    (void)lap_model_preset("llama", &desc);
    desc.layers = 2;
    desc.seq = SEQ;
    desc.batch = 1;
    desc.hidden = 24;
    desc.heads = desc.kv_heads = 6;
    desc.head_dim = 4;
    desc.ffn = 32;
    desc.vocab = VOCAB;
    desc.max_positions = 0;
    desc.debug = 1;
    options.micro_batches = MICRO;
    return lap_pp_create(groups->tp, groups->pp, &desc, &options, pp_p);
}

/* The same sequences each time. */
static lap_status_t begin(lap_pp_t *pp, int replica)
{
    int32_t tokens[MICRO * SEQ], targets[MICRO * SEQ];
    for (size_t m = 0; m < MICRO; m++)
        fill_tokens(0, (size_t)replica * MICRO + m, SEQ, VOCAB, tokens + m * SEQ,
                    targets + m * SEQ);
    return lap_pp_step(pp, SEQ, tokens, targets);
}

static void has_loss(lap_pp_t *pp, const char *when)
{
    double loss = NAN;
    tap_success(lap_pp_loss(pp, &loss), "%s, the step has ended", when);
    tap_ok(loss > 2 && loss < 5, "... with a loss: %g", loss);
}

static void test_orders(lap_pp_t *pp, const lap_grid_groups_t *groups)
{
    lap_dp_t *dp = NULL;
    size_t count;
    const float *gradients = lap_nn_gradients(lap_pp_layers(pp), &count);
    float *usual = lap_alloc(count, sizeof(*usual));
    const int replica = groups->at.dp;

    tap_success(begin(pp, replica), "a step without replicas begins");
    tap_success(lap_dp_create(lap_pp_layers(pp), groups->replicas, NULL, &dp),
                "replicas are joined while it runs");
    tap_success(lap_pp_wait(pp), "... which it does not know of");
    has_loss(pp, "then");
    tap_failure(lap_dp_wait(dp), LAP_ERR_INVALID, "no gradients are on their way", NULL);

    tap_success(begin(pp, replica), "a step with replicas begins");
    tap_success(lap_pp_wait(pp), "its passes end");
    tap_success(lap_dp_wait(dp), "... and gradients have come");
    memcpy(usual, gradients, count * sizeof(*usual));

    tap_success(begin(pp, replica), "a step begins");
    tap_success(lap_dp_wait(dp), "gradients are waited for at once");
    has_loss(pp, "after that");
    tap_ok(memcmp(usual, gradients, count * sizeof(*usual)) == 0,
           "... and %zu gradients are those of the usual order", count);
    tap_success(lap_pp_wait(pp), "nothing is left to wait for");

    tap_success(begin(pp, replica), "one more begins");
    lap_dp_destroy(dp);
    has_loss(pp, "when its replicas have been left");
    tap_success(begin(pp, replica), "a step without replicas begins again");
    tap_success(lap_pp_wait(pp), "... and ends");
    lap_free(usual);
}

/* One rank cannot make the program of a step with replicas: the others do not wait until their time is up. */
static void test_failure(lap_pp_t *pp, const lap_grid_groups_t *groups, bool is_last)
{
    lap_dp_t *dp = NULL;
    size_t *layers = &lap_pp_layers(pp)->list.plan.desc.layers;
    tap_success(lap_dp_create(lap_pp_layers(pp), groups->replicas, NULL, &dp),
                "replicas once more");
    if (is_last)
        *layers = 1;
    lap_status_t status = begin(pp, groups->at.dp);
    if (status == LAP_OK)
        status = lap_dp_wait(dp);
    /* The first rank is in no group with the last: others pass the failure on, or leave. */
    const bool knows = groups->at.dp + groups->at.pp == 0 || strstr(lap_last_error(), "stages");
    tap_ok(status != LAP_OK && status != LAP_ERR_TIMEOUT && knows,
           "a step that one rank cannot make fails on all: %s", lap_last_error());
    *layers = 2;
    lap_dp_destroy(dp);
}

static void train(lap_world_t *world, void *arg)
{
    lap_grid_groups_t groups;
    lap_pp_t *pp = NULL;
    (void)arg;
    if (tap_success(lap_grid_groups_init(&groups, &grid, lap_world_group(world)), "groups") &&
        tap_success(create(&groups, &pp), "a pipeline")) {
        test_orders(pp, &groups);
        test_failure(pp, &groups, lap_world_rank(world) + 1 == lap_world_size(world));
    }
    lap_pp_destroy(pp);
    lap_grid_groups_clear(&groups);
}

int main(void)
{
    tap_ranks((int)lap_grid_ranks(&grid, LAP_SLICE_WORLD), NULL, train, NULL);
    return tap_done();
}
