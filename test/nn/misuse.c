/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptions and passes that make no sense: each is refused with a sentence that says why. */
#include <lap/data_parallel.h>
#include <lap/model.h>
#include <lap/optimizer.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tap.h"

static lap_nn_desc_t good(void)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    desc.seq = 4;
    desc.hidden = 8;
    desc.heads = 4;
    return desc;
}

static void check_descriptions(void)
{
    lap_nn_desc_t desc = good();
    tap_success(lap_nn_validate(&desc, 2), "a good description");
    tap_failure(lap_nn_validate(NULL, 2), LAP_ERR_INVALID, "desc", "NULL", NULL);
    tap_failure(lap_nn_validate(&desc, 0), LAP_ERR_INVALID, "nranks", "0", NULL);
    tap_failure(lap_nn_validate(&desc, 3), LAP_ERR_INVALID, "heads", "4", "3 tensor-parallel ranks",
                NULL);
    desc.seq = 0;
    tap_failure(lap_nn_validate(&desc, 2), LAP_ERR_INVALID, "seq", "0", NULL);
    desc = good();
    desc.batch = 0;
    tap_failure(lap_nn_validate(&desc, 2), LAP_ERR_INVALID, "batch", "0", NULL);
    desc.batch = desc.seq = 100000;
    tap_failure(lap_nn_validate(&desc, 2), LAP_ERR_INVALID, "100000", NULL);
    desc = good();
    desc.hidden = 9;
    tap_failure(lap_nn_validate(&desc, 2), LAP_ERR_INVALID, "hidden", "9", "head_dim", NULL);
    desc = good();
    desc.ffn = 7;
    tap_success(lap_nn_validate(&desc, 2), "features need not be a multiple of the ranks");
    desc.ffn = 1;
    tap_failure(lap_nn_validate(&desc, 2), LAP_ERR_INVALID, "ffn", "1", "2 tensor-parallel ranks",
                NULL);
    desc = good();
    desc.heads = 12;
    desc.head_dim = 2;
    desc.kv_heads = 8;
    tap_failure(lap_nn_validate(&desc, 2), LAP_ERR_INVALID, "kv_heads", "8", "12", NULL);
    desc = good();
    desc.dtype = LAP_FLOAT8_E4M3;
    tap_failure(lap_nn_validate(&desc, 2), LAP_ERR_UNSUPPORTED, "dtype", "e4m3", NULL);
    desc = good();
    desc.epsilon = 0;
    tap_failure(lap_nn_validate(&desc, 2), LAP_ERR_INVALID, "epsilon", NULL);
    desc = good();
    desc.loss_scale = NAN;
    tap_failure(lap_nn_validate(&desc, 2), LAP_ERR_INVALID, "loss_scale", NULL);
    desc = good();
    desc.row_parallel = 1;
    tap_failure(lap_nn_validate(&desc, 2), LAP_ERR_INVALID, "row_parallel", "transformer", NULL);
    desc.kind = LAP_NN_LINEAR;
    desc.layers = 2;
    tap_failure(lap_nn_validate(&desc, 2), LAP_ERR_INVALID, "layers", "linear", NULL);
    desc = good();
    desc.kind = (lap_nn_kind_t)9;
    tap_failure(lap_nn_validate(&desc, 2), LAP_ERR_INVALID, "kind", "9", NULL);
    desc = good();
    lap_tp_overlap_t overlap;
    (void)lap_tp_overlap_init(4, &overlap);
    desc.overlap = &overlap;
    tap_failure(lap_nn_validate(&desc, 2), LAP_ERR_INVALID, "overlap.tp", "4", "2", NULL);
}

static void check_passes(lap_world_t *world, void *arg)
{
    const lap_nn_desc_t desc = good();
    lap_nn_t *nn;
    (void)arg;
    if (!tap_success(lap_nn_create(lap_world_group(world), &desc, &nn), "layers"))
        return;
    const lap_nn_part_t part = lap_nn_input(nn, 0);
    float *memory = calloc(4 * part.rows * part.cols, sizeof(float));
    lap_tensor_t x = lap_tensor(memory, LAP_FLOAT32, part.rows, part.cols);
    lap_tensor_t y = lap_tensor(memory + part.rows * part.cols, LAP_FLOAT32, part.rows, part.cols);
    lap_tensor_t bad = x;
    tap_failure(lap_nn_backward(nn, &y, &x), LAP_ERR_INVALID, "no forward", NULL);
    double loss;
    tap_failure(lap_nn_loss_value(nn, &loss), LAP_ERR_INVALID, "no loss yet", NULL);
    bad.data = (char *)x.data + 2;
    tap_failure(lap_nn_forward(nn, 4, &bad, &y), LAP_ERR_INVALID, "x.data", "multiple of 4", NULL);
    bad = x;
    tap_failure(lap_nn_forward(nn, 5, &x, &y), LAP_ERR_INVALID, "seq", "5", "4", NULL);
    tap_failure(lap_nn_forward(nn, 4, NULL, &y), LAP_ERR_INVALID, "x is NULL", NULL);
    bad.rows++;
    tap_failure(lap_nn_forward(nn, 4, &bad, &y), LAP_ERR_INVALID, "x is [", NULL);
    bad = x;
    bad.dtype = LAP_BFLOAT16;
    tap_failure(lap_nn_forward(nn, 4, &bad, &y), LAP_ERR_INVALID, "bfloat16", NULL);
    bad = x;
    bad.data = NULL;
    tap_failure(lap_nn_forward(nn, 4, &x, &bad), LAP_ERR_INVALID, "y.data", NULL);
    tap_failure(lap_nn_forward(nn, 4, &x, &x), LAP_ERR_INVALID, "y", "x", NULL);
    tap_success(lap_nn_forward(nn, 4, &x, &y), "what was refused has changed nothing");
    tap_failure(lap_nn_backward(nn, &y, &y), LAP_ERR_INVALID, "dx overlaps dy", NULL);
    tap_failure(lap_nn_backward(nn, &y, &x), LAP_ERR_INVALID, "dx overlaps x", NULL);
    tap_success(lap_nn_wait(nn), "and it ends");
    lap_nn_destroy(nn);
    free(memory);
}

/* Layers, replicas and optimizers that are NULL have nothing, and counts need not be asked for. */
static void check_nothing(void)
{
    size_t count = 1;
    double total = 1, exposed = 1;
    const lap_nn_part_t in = lap_nn_input(NULL, 3), out = lap_nn_output(NULL, 0);
    tap_ok(in.rows + in.cols + in.all_rows + out.rows + out.cols + out.all_cols == 0,
           "NULL has no input and no output");
    tap_ok(!lap_nn_masters(NULL, &count) && !lap_nn_gradients(NULL, NULL) &&
               !lap_optimizer_moments(NULL, 0, NULL),
           "... no masters, gradients and moments");
    lap_nn_zero_gradients(NULL);
    lap_nn_accumulate(NULL, 1);
    lap_nn_on_gradient(NULL, NULL, NULL);
    lap_dp_cost(NULL, &total, NULL);
    lap_dp_cost(NULL, NULL, &exposed);
    tap_ok(total == 0 && exposed == 0, "... and its replicas cost nothing");
    tap_ok(lap_optimizer_rate(NULL, 3) == 0, "... nor has it a rate");
}

static void check_counts(lap_world_t *world, void *arg)
{
    const lap_nn_desc_t desc = good();
    const lap_optimizer_desc_t how = LAP_OPTIMIZER_DESC_INIT;
    lap_nn_t *nn;
    lap_optimizer_t *optimizer;
    size_t count = 0;
    (void)arg;
    if (!tap_success(lap_nn_create(lap_world_group(world), &desc, &nn), "layers"))
        return;
    if (tap_success(lap_optimizer_create(nn, lap_world_group(world), &how, &optimizer),
                    "their optimizer")) {
        tap_ok(lap_nn_masters(nn, NULL) == lap_nn_masters(nn, &count) && count > 0 &&
                   lap_nn_gradients(nn, NULL) == lap_nn_gradients(nn, &count) &&
                   lap_optimizer_moments(optimizer, 1, NULL) ==
                       lap_optimizer_moments(optimizer, 1, &count),
               "arrays without their counts");
        lap_optimizer_destroy(optimizer);
    }
    lap_nn_destroy(nn);
}

static void check_presets(void)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    const char *name, *summary = NULL;
    size_t count = 0;
    for (; (name = lap_model_presets(count, &summary)); count++) {
        lap_nn_desc_t preset = LAP_NN_DESC_INIT;
        tap_success(lap_model_preset(name, &preset), "%s is %s", name, summary);
        tap_success(lap_nn_validate(&preset, 1), "... and can be made");
    }
    tap_ok(count == 12, "there are %zu presets", count);
    tap_failure(lap_model_preset("gpt2-1.5", &desc), LAP_ERR_INVALID, "no model 'gpt2-1.5'",
                "did you mean gpt2-1.5b?", NULL);
    tap_failure(lap_model_preset(NULL, &desc), LAP_ERR_INVALID, "name is NULL", NULL);
    tap_failure(lap_model_preset("gpt", NULL), LAP_ERR_INVALID, "desc is NULL", NULL);
    desc.size -= 8;
    tap_failure(lap_model_preset("gpt", &desc), LAP_ERR_INVALID, "desc.size", NULL);
}

/* Spoils a weight of a model, and expects it to be found. */
static void find_spoilt(lap_nn_t *nn, size_t index, lap_nn_what_t what)
{
    const lap_nn_param_t *param = lap_nn_param(nn, index);
    float *place = what == LAP_NN_PARAMETER ? param->master.data : param->grad.data;
    const float before = *place;
    lap_nn_not_finite_t found = {.what = LAP_NN_ALL_FINITE};
    *place = NAN;
    tap_success(lap_nn_find_not_finite(nn, 0, NULL, NULL, &found), "a look at all of it");
    tap_ok(found.what == what && strcmp(found.name, param->name) == 0, "%s is found: %s",
           param->name, found.name);
    *place = before;
}

static void check_models(lap_world_t *world, void *arg)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    lap_nn_t *nn;
    lap_tensor_t logits;
    double loss;
    lap_nn_not_finite_t found;
    int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8}, targets[] = {2, 3, 4, -1, -9, 7, 8, 9};
    (void)arg;
    (void)lap_model_preset("gpt", &desc);
    desc.layers = 1;
    desc.seq = 4;
    desc.batch = 2;
    desc.vocab = 10;
    if (!tap_success(lap_nn_create(lap_world_group(world), &desc, &nn), "a model"))
        return;
    tap_failure(lap_nn_forward(nn, 4, NULL, NULL), LAP_ERR_INVALID, "lap_model_forward", NULL);
    tap_failure(lap_nn_backward(nn, NULL, NULL), LAP_ERR_INVALID, "lap_model_backward", NULL);
    tap_failure(lap_nn_loss(nn, NULL, NULL, NULL), LAP_ERR_INVALID, "this is a model", NULL);
    tap_failure(lap_model_forward(NULL, 4, tokens, targets), LAP_ERR_INVALID, "nn is NULL", NULL);
    tap_failure(lap_model_backward(nn), LAP_ERR_INVALID, "with targets before", NULL);
    tap_failure(lap_nn_loss_value(nn, &loss), LAP_ERR_INVALID, "no loss yet", NULL);
    tap_failure(lap_model_logits(nn, &logits, NULL), LAP_ERR_INVALID, "without targets", NULL);
    tap_failure(lap_nn_find_not_finite(nn, 0, NULL, NULL, &found), LAP_ERR_INVALID, "no forward",
                NULL);
    tap_failure(lap_model_forward(nn, 5, tokens, targets), LAP_ERR_INVALID, "seq is 5", NULL);
    tap_failure(lap_model_forward(nn, 4, NULL, targets), LAP_ERR_INVALID, "tokens is NULL", NULL);
    tokens[6] = 10;
    tap_failure(lap_model_forward(nn, 4, tokens, targets), LAP_ERR_INVALID,
                "token 2 of sequence 1 is 10, expected 0 to 9", NULL);
    tokens[6] = -1;
    tap_failure(lap_model_forward(nn, 4, tokens, targets), LAP_ERR_INVALID, "is -1", NULL);
    tokens[6] = 7;
    targets[1] = 10;
    tap_failure(lap_model_forward(nn, 4, tokens, targets), LAP_ERR_INVALID,
                "target 1 of sequence 0 is 10, expected at most 9", NULL);
    targets[1] = 3;
    const int32_t none[] = {-1, -1, -1, -1, -1, -1, -1, -1};
    tap_failure(lap_model_forward(nn, 4, tokens, none), LAP_ERR_INVALID, "all 8 targets", NULL);
    tap_success(lap_model_forward(nn, 4, tokens, NULL), "what was refused has changed nothing");
    tap_failure(lap_model_backward(nn), LAP_ERR_INVALID, "with targets before", NULL);
    tap_success(lap_nn_wait(nn), "and it ends");
    tap_success(lap_model_logits(nn, &logits, NULL), "there are logits");
    tap_success(lap_model_forward(nn, 4, tokens, targets), "with targets");
    tap_failure(lap_model_logits(nn, &logits, NULL), LAP_ERR_INVALID, "without targets", NULL);
    tap_success(lap_model_backward(nn), "backward");
    tap_success(lap_nn_wait(nn), "both end");
    for (size_t i = 0; i < lap_nn_params(nn) && lap_world_size(world) == 1; i++) {
        find_spoilt(nn, i, LAP_NN_PARAMETER);
        find_spoilt(nn, i, LAP_NN_GRADIENT);
    }
    lap_nn_destroy(nn);
}

static void check_other_layers(lap_world_t *world, void *arg)
{
    const lap_nn_desc_t desc = good();
    const int32_t tokens[] = {0, 0, 0, 0};
    lap_nn_t *nn;
    (void)arg;
    if (!tap_success(lap_nn_create(lap_world_group(world), &desc, &nn), "layers"))
        return;
    tap_failure(lap_model_forward(nn, 4, tokens, tokens), LAP_ERR_INVALID, "transformer",
                "expected a model", NULL);
    tap_failure(lap_model_backward(nn), LAP_ERR_INVALID, "expected a model", NULL);
    lap_nn_destroy(nn);
}

int main(void)
{
    check_descriptions();
    check_presets();
    check_nothing();
    tap_ranks(2, NULL, check_counts, NULL);
    tap_ranks(1, NULL, check_models, NULL);
    tap_ranks(2, NULL, check_models, NULL);
    tap_ranks(1, NULL, check_other_layers, NULL);
    tap_ranks(1, NULL, check_passes, NULL);
    tap_ranks(2, NULL, check_passes, NULL);
    return tap_done();
}
