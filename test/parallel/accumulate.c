/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradient accumulation: what would leave other gradients than those of one backward is refused,
 * and the layers go on as if nothing had been asked. That n backwards leave the gradients of one
 * is in cli/train_grids.sh and cli/train_micro.sh.
 */
#include <lap/data_parallel.h>
#include <lap/optimizer.h>

#include "nn/memory.h"
#include "tap.h"

enum { SEQ = 5, HIDDEN = 48, HEADS = 12 };

/* Layers of one rank and all that a step needs. */
typedef struct model {
    lap_nn_t *nn;
    lap_dp_t *dp; /* NULL: no replicas */
    lap_optimizer_t *optimizer;
    void *memory[3];
    lap_tensor_t x, y, dx;
} model_t;

static lap_status_t make_model(model_t *model, lap_group_t *alone, lap_group_t *replicas,
                               int overlap)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    lap_dp_options_t options = LAP_DP_OPTIONS_INIT;
    lap_optimizer_desc_t how = LAP_OPTIMIZER_DESC_INIT;
    desc.layers = 2;
    desc.seq = SEQ;
    desc.hidden = HIDDEN;
    desc.heads = HEADS;
    options.bucket = 3000;
    options.overlap = overlap;
    how.clip_norm = 1e6f;
    lap_status_t status = lap_nn_create(alone, &desc, &model->nn);
    if (status == LAP_OK)
        status = lap_optimizer_create(model->nn, alone, &how, &model->optimizer);
    if (status == LAP_OK && lap_group_size(replicas) > 1)
        status = lap_dp_create(model->nn, replicas, &options, &model->dp);
    if (status != LAP_OK)
        return status;
    const lap_nn_part_t part = lap_nn_input(model->nn, 0);
    lap_tensor_t *tensors[] = {&model->x, &model->y, &model->dx};
    for (size_t i = 0; i < 3; i++) {
        model->memory[i] = nn_new(model->nn, part.rows * HIDDEN * sizeof(float));
        *tensors[i] = lap_tensor(model->memory[i], LAP_FLOAT32, part.rows, part.cols);
    }
    return lap_nn_fill(model->nn, &model->x, &part, 5, 1, 1);
}

static void free_model(model_t *model)
{
    lap_dp_destroy(model->dp);
    lap_optimizer_destroy(model->optimizer);
    for (size_t i = 0; i < 3; i++)
        if (model->memory[i])
            nn_free(model->nn, model->memory[i]);
    lap_nn_destroy(model->nn);
}

static lap_status_t pass(model_t *model)
{
    lap_status_t status = lap_nn_forward(model->nn, SEQ, &model->x, &model->y);
    if (status == LAP_OK)
        status = lap_nn_loss(model->nn, &model->y, &model->x, &model->y);
    return status == LAP_OK ? lap_nn_backward(model->nn, &model->y, &model->dx) : status;
}

#define LAST "expected lap_nn_accumulate(nn, 0)"

/* Without replicas, too: a step on a part of what was to be accumulated. */
static void mistake_step(model_t *model)
{
    double norm;
    lap_nn_accumulate(model->nn, 1);
    for (int i = 0; i < 2; i++)
        tap_success(pass(model), "a backward that is not the last");
    tap_failure(lap_optimizer_step(model->optimizer, 1, &norm), LAP_ERR_INVALID,
                "lap_optimizer_step: the gradients of 2 backwards are accumulated",
                "the last backward of the step is missing", LAST, NULL);
    lap_nn_accumulate(model->nn, 0);
    tap_failure(lap_optimizer_step(model->optimizer, 1, &norm), LAP_ERR_INVALID, LAST, NULL);
    tap_success(pass(model), "the last");
    if (model->dp)
        tap_success(lap_dp_wait(model->dp), "the sums over replicas");
    tap_success(lap_optimizer_step(model->optimizer, 1, &norm), "a step");
    lap_nn_accumulate(model->nn, 1);
    lap_nn_zero_gradients(model->nn);
    tap_success(pass(model), "a backward of a step that is dropped");
    lap_nn_accumulate(model->nn, 0);
    lap_nn_zero_gradients(model->nn);
    tap_success(pass(model), "one of the next");
    if (model->dp)
        tap_success(lap_dp_wait(model->dp), "its sums over replicas");
    tap_success(lap_optimizer_step(model->optimizer, 1, &norm), "its step");
    lap_nn_zero_gradients(model->nn);
}

/* What would be summed over replicas twice, or not at all. */
static void mistake_replicas(model_t *model, lap_group_t *group)
{
    double norm;
    lap_dp_t *another = NULL;
    tap_failure(lap_dp_create(model->nn, group, NULL, &another), LAP_ERR_INVALID,
                "the layers have replicas already", "expected lap_dp_destroy", NULL);
    tap_failure(lap_dp_wait(model->dp), LAP_ERR_INVALID, "lap_dp_wait: no gradients are on their",
                "last backward of a step", NULL);
    lap_nn_accumulate(model->nn, 1);
    tap_success(pass(model), "a backward that is not the last");
    tap_failure(lap_dp_wait(model->dp), LAP_ERR_INVALID,
                "lap_dp_wait: the gradients of 1 backward are accumulated", LAST, NULL);
    lap_nn_accumulate(model->nn, 0);
    tap_success(pass(model), "the last");
    tap_failure(pass(model), LAP_ERR_INVALID,
                "lap_nn_backward: gradients are on their way to other replicas",
                "expected lap_dp_wait", NULL);
    lap_nn_zero_gradients(model->nn);
    tap_failure(pass(model), LAP_ERR_INVALID, "on their way to other replicas", NULL);
    tap_failure(lap_optimizer_step(model->optimizer, 1, &norm), LAP_ERR_INVALID,
                "lap_optimizer_step: gradients are on their way to other replicas",
                "expected lap_dp_wait", NULL);
    tap_success(lap_dp_wait(model->dp), "the sums");
    tap_failure(lap_dp_wait(model->dp), LAP_ERR_INVALID, "lap_dp_wait: no gradients are on their",
                NULL);
    tap_success(lap_optimizer_step(model->optimizer, 1, &norm), "a step");
    lap_nn_zero_gradients(model->nn);
    tap_success(pass(model), "a step of one backward");
    tap_success(lap_dp_wait(model->dp), "the sums");
    for (int more = 0; more < 2; more++) {
        lap_nn_accumulate(model->nn, more);
        tap_failure(pass(model), LAP_ERR_INVALID,
                    "lap_nn_backward: gradients are sums over replicas already",
                    "expected lap_nn_zero_gradients", "lap_nn_accumulate(nn, 1)", NULL);
    }
    lap_nn_zero_gradients(model->nn);
}

static void run_mistakes(lap_world_t *world, void *arg)
{
    const int *overlap = arg, own = lap_world_rank(world);
    lap_group_t *alone = NULL;
    model_t model = {.nn = NULL};
    tap_success(lap_group_split(lap_world_group(world), own, own, &alone), "a group of one");
    if (tap_success(make_model(&model, alone, lap_world_group(world), *overlap), "layers")) {
        if (model.dp)
            mistake_replicas(&model, lap_world_group(world));
        mistake_step(&model);
    }
    free_model(&model);
    lap_group_destroy(alone);
}

int main(void)
{
    for (int overlap = 0; overlap < 2; overlap++)
        for (int replicas = 1; replicas <= 2; replicas++)
            tap_launched_ranks(replicas, NULL, run_mistakes, &overlap);
    return tap_done();
}
