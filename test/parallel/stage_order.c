/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls around a step of a pipeline with replicas, in other orders than the usual one: replicas that
 * are joined while a step runs are no part of it; lap_dp_wait before lap_pp_wait ends all of the step,
 * with the same bits, and counts none of the passes as a wait for gradients; and so does leaving the replicas. A
 * rank that cannot make its step, or has wrong arguments, says so to all, also to other processes.
 */
#include <math.h>
#include <string.h>

#include <lap/data_parallel.h>
#include <lap/model.h>
#include <lap/pipeline.h>

#include "core/status.h"
#include "nn/nn.h"
#include "nn/sequences.h"
#include "parallel/grid.h"
#include "tap.h"
#include "util/alloc.h"
#include "util/clock.h"

enum { SEQ = 8, VOCAB = 31, MICRO = 4 };

static const uint64_t late_ns = 200000000; /* of one stage */

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

    const uint64_t before_ns = lap_now_ns(); /* the passes here end when the last stage has begun */
    tap_success(lap_group_barrier(groups->world), "a barrier");
    if (groups->at.pp == 1)
        lap_sleep_until_ns(lap_now_ns() + late_ns);
    tap_success(begin(pp, replica), "a step begins");
    tap_success(lap_dp_wait(dp), "gradients are waited for at once");
    const double elapsed = (double)(lap_now_ns() - before_ns - late_ns) * 1e-9;
    double total, exposed;
    lap_dp_cost(dp, &total, &exposed);
    tap_ok(exposed <= elapsed, "passes are no wait for gradients: %.3f s, of at most %.3f s",
           exposed, elapsed);
    has_loss(pp, "after that");
    tap_ok(memcmp(usual, gradients, count * sizeof(*usual)) == 0,
           "... and %zu gradients are those of the usual order", count);
    tap_success(lap_pp_wait(pp), "nothing is left to wait for");

    tap_success(begin(pp, replica), "one more begins");
    tap_success(lap_nn_wait(lap_pp_layers(pp)), "its layers are waited for");
    has_loss(pp, "without replicas");
    tap_success(lap_dp_wait(dp), "... which come after that");

    tap_success(begin(pp, replica), "one more begins");
    lap_dp_destroy(dp);
    has_loss(pp, "when its replicas have been left");
    tap_success(begin(pp, replica), "a step without replicas begins again");
    tap_success(lap_pp_wait(pp), "... and ends");
    lap_free(usual);
}

static lap_status_t cannot_build(void *context, size_t index, int which, lap_schedule_t *schedule_p)
{
    (void)context, (void)which, (void)schedule_p;
    return lap_error(LAP_ERR_NO_MEMORY, "no memory for bucket %zu", index);
}

/* One rank cannot make the program of a step with replicas: the others do not wait until their time is up. */
static void test_failure(lap_pp_t *pp, const lap_grid_groups_t *groups, bool is_last)
{
    lap_dp_t *dp = NULL;
    lap_nn_t *nn = lap_pp_layers(pp);
    tap_success(lap_dp_create(nn, groups->replicas, NULL, &dp), "replicas once more");
    const lap_nn_background_t *background = nn->background;
    lap_nn_background_t spoiled = *background;
    spoiled.replicas.build = cannot_build;
    if (is_last)
        lap_nn_set_background(nn, &spoiled);
    lap_status_t status = begin(pp, groups->at.dp);
    if (status == LAP_OK)
        status = lap_dp_wait(dp);
    /* The first rank is in no group with the last: others pass the failure on, or leave. */
    const bool knows = groups->at.dp + groups->at.pp == 0 || strstr(lap_last_error(), "bucket");
    tap_ok(status != LAP_OK && status != LAP_ERR_TIMEOUT && knows,
           "a step that one rank cannot make fails on all: %s", lap_last_error());
    lap_nn_set_background(nn, background);
    lap_dp_destroy(dp);
}

/* One rank has wrong arguments. */
typedef enum wrong { TOKEN, TARGETS, ROWS, WRONGS } wrong_t;
static const char *const reasons[WRONGS] = {"31, expected", "targets is NULL", "seq is"};

static void test_arguments(lap_world_t *world, void *arg)
{
    const wrong_t wrong = *(const wrong_t *)arg;
    const bool is_wrong = lap_world_rank(world) == 3 - (int)wrong;
    int32_t tokens[MICRO * SEQ] = {0}, targets[MICRO * SEQ] = {0};
    lap_grid_groups_t groups;
    lap_pp_t *pp = NULL;
    lap_dp_t *dp = NULL;
    if (!tap_success(lap_grid_groups_init(&groups, &grid, lap_world_group(world)), "groups") ||
        !tap_success(create(&groups, &pp), "a pipeline") ||
        !tap_success(lap_dp_create(lap_pp_layers(pp), groups.replicas, NULL, &dp), "replicas"))
        return;
    tokens[MICRO * SEQ - 1] = is_wrong && wrong == TOKEN ? VOCAB : 0;
    const uint64_t before_ns = lap_now_ns();
    lap_status_t status = lap_pp_step(pp, is_wrong && wrong == ROWS ? SEQ + 1 : SEQ, tokens,
                                      is_wrong && wrong == TARGETS ? NULL : targets);
    if (status == LAP_OK)
        status = lap_dp_wait(dp);
    const double elapsed = (double)(lap_now_ns() - before_ns) * 1e-9;
    /* Who is in no group with that rank learns it from others. */
    const bool knows =
        lap_world_rank(world) == (int)wrong || strstr(lap_last_error(), reasons[wrong]);
    tap_ok(is_wrong ? status == LAP_ERR_INVALID && knows
                    : status != LAP_OK && status != LAP_ERR_TIMEOUT && knows,
           "wrong arguments of one rank end the step of all, after %.2f s: %s", elapsed,
           lap_last_error());
    lap_dp_destroy(dp);
    lap_pp_destroy(pp);
    lap_grid_groups_clear(&groups);
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

static void play(bool processes, void (*scene)(lap_world_t *world, void *arg), void *arg)
{
    const int size = (int)lap_grid_ranks(&grid, LAP_SLICE_WORLD);
    lap_world_t *world = NULL;
    if (!processes) {
        tap_ranks(size, NULL, scene, arg);
    } else if (tap_success(lap_world_create(NULL, &world), "a world from the environment")) {
        scene(world, arg);
        lap_world_destroy(world);
    }
}

int main(int argc, char **argv)
{
    const bool processes = argc > 1 && strcmp(argv[1], "processes") == 0;
    play(processes, train, NULL);
    for (wrong_t wrong = TOKEN; wrong < WRONGS; wrong++)
        play(processes, test_arguments, &wrong);
    return tap_done();
}
