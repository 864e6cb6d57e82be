/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradient accumulation: a step of n backwards, each of one sequence, leaves the gradients of a step
 * of one backward of n sequences, whatever the layout; so does the step after it, when the weights
 * and the scales of FP8 have changed. And what would leave others is refused.
 */
#include <lap/data_parallel.h>
#include <lap/optimizer.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "nn/memory.h"
#include "tap.h"

enum { SEQ = 5, HIDDEN = 48, HEADS = 12, STEPS = 2, MOST = 3 };

typedef struct trial {
    int tp, replicas, sequence_parallel, overlap;
    lap_recompute_t recompute;
    lap_dtype_t dtype, wire;
    lap_fp8_recipe_t fp8;
    size_t n; /* sequences of a replica: in one backward, or one in each */
} trial_t;

/* Layers of one rank and all that a step needs; `batch` sequences make a backward. */
typedef struct model {
    const trial_t *trial;
    size_t batch;
    lap_nn_t *nn;
    lap_dp_t *dp;
    lap_optimizer_t *optimizer;
    int replica;
    lap_nn_part_t part;
    void *memory[3];
    lap_tensor_t x, y, dx;
} model_t;

/*
 * How far the two may be apart, as a part of the norm of a parameter's gradient. Sums of fp32 are
 * of at most 192 products, off by as many roundings of 2^-24, and a gradient is at the end of at
 * most 16 of them. A rounding to bf16 moves a number by 2^-9 of it, one to FP8 by 2^-4 or for
 * gradients 2^-3: in the same way in both but where n is no power of two, where a sum comes to lie
 * on the other side of the middle, or where a sequence is larger than the one before it had
 * announced. In FP8 two operands of each of the last two GEMMs are allowed to differ so.
 */
static double bound_of(const trial_t *trial)
{
    if (trial->fp8 != LAP_FP8_NONE)
        return 2 * (1.0 / 8 + 1.0 / 16);
    if (trial->dtype != LAP_FLOAT32 || trial->wire != LAP_FLOAT32)
        return 16.0 / 512;
    return 16 * 192 / 16777216.0;
}

/* ---- a model ---- */

static lap_status_t make_nn(model_t *model, lap_group_t *tp)
{
    const trial_t *trial = model->trial;
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    lap_tp_overlap_t rules;
    lap_tp_switches_t switches = LAP_TP_SWITCHES_INIT;
    desc.layers = 2;
    desc.seq = SEQ;
    desc.batch = model->batch;
    desc.hidden = HIDDEN;
    desc.heads = HEADS;
    desc.dtype = trial->dtype;
    desc.fp8 = trial->fp8;
    desc.recompute = trial->recompute;
    desc.sequence_parallel = trial->sequence_parallel;
    desc.init_std = 0.1f;
    switches.overlap = trial->overlap && trial->tp > 1;
    lap_status_t status = lap_tp_overlap_init(trial->tp, &rules);
    if (status == LAP_OK)
        status = lap_tp_overlap_switch(&rules, &switches);
    desc.overlap = &rules;
    return status == LAP_OK ? lap_nn_create(tp, &desc, &model->nn) : status;
}

static lap_status_t make_model(model_t *model, lap_group_t *tp, lap_group_t *dp)
{
    lap_dp_options_t options = LAP_DP_OPTIONS_INIT;
    lap_optimizer_desc_t how = LAP_OPTIMIZER_DESC_INIT;
    options.bucket = 3000;
    options.overlap = model->trial->overlap;
    options.wire_dtype = model->trial->wire;
    how.kind = LAP_SGD;
    how.lr = 0.5f;
    how.weight_decay = 0;
    how.clip_norm = 1e6f;
    model->replica = lap_group_rank(dp);
    lap_status_t status = make_nn(model, tp);
    if (status == LAP_OK)
        status = lap_optimizer_create(model->nn, tp, &how, &model->optimizer);
    if (status == LAP_OK && model->trial->replicas > 1)
        status = lap_dp_create(model->nn, dp, &options, &model->dp);
    if (status != LAP_OK)
        return status;
    model->part = lap_nn_input(model->nn, 0);
    lap_tensor_t *tensors[] = {&model->x, &model->y, &model->dx};
    for (size_t i = 0; i < 3; i++) {
        model->memory[i] = nn_new(model->nn, SEQ * MOST * HIDDEN * sizeof(float));
        *tensors[i] =
            lap_tensor(model->memory[i], model->trial->dtype, model->part.rows, model->part.cols);
    }
    return LAP_OK;
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

/* Fills x: sequence `first` + b of the replica in the rows s * batch + b. */
static lap_status_t fill(model_t *model, int step, size_t first)
{
    const size_t batch = model->batch;
    for (size_t b = 0; b < batch; b++) {
        const lap_nn_part_t *part = &model->part;
        const size_t skip = (b + batch - part->first_row % batch) % batch;
        if (skip >= part->rows)
            continue;
        lap_nn_part_t own = *part;
        own.rows = (part->rows - skip + batch - 1) / batch;
        own.first_row = (part->first_row + skip) / batch;
        lap_tensor_t rows = model->x;
        rows.data = (char *)rows.data + skip * rows.stride * lap_dtype_size(rows.dtype);
        rows.rows = own.rows;
        rows.stride *= batch;
        const uint64_t sequence = (uint64_t)model->replica * model->trial->n + first + b;
        const lap_status_t status =
            lap_nn_fill(model->nn, &rows, &own, 5, (uint64_t)(step + 1) << 32 | sequence, 1);
        if (status != LAP_OK)
            return status;
    }
    return LAP_OK;
}

/* ---- a step ---- */

static lap_status_t pass(model_t *model)
{
    lap_status_t status = lap_nn_forward(model->nn, SEQ, &model->x, &model->y);
    if (status == LAP_OK)
        status = lap_nn_loss(model->nn, &model->y, &model->x, &model->y);
    return status == LAP_OK ? lap_nn_backward(model->nn, &model->y, &model->dx) : status;
}

/* All backwards of a step; the mean of the losses of this replica. */
static lap_status_t run_backwards(model_t *model, int step, double *loss_p)
{
    const size_t count = model->trial->n / model->batch;
    lap_status_t status = LAP_OK;
    double sum = 0;
    lap_nn_zero_gradients(model->nn);
    for (size_t i = 0; i < count && status == LAP_OK; i++) {
        double loss = 0;
        lap_nn_accumulate(model->nn, i + 1 < count);
        status = fill(model, step, i * model->batch);
        if (status == LAP_OK)
            status = pass(model);
        if (status == LAP_OK)
            status = lap_nn_wait(model->nn);
        if (status == LAP_OK)
            status = lap_nn_loss_value(model->nn, &loss);
        sum += loss / (double)count;
    }
    *loss_p = sum;
    return status;
}

/* The gradients of a step as means, in memory that the caller frees, and a step with them. */
static float *run_step(model_t *model, int step, double *loss_p, double *norm_p)
{
    size_t count;
    const size_t backwards = model->trial->n / model->batch;
    const float scale = 1 / ((float)backwards * (float)model->trial->replicas);
    float *grads = lap_nn_gradients(model->nn, &count);
    if (!tap_success(run_backwards(model, step, loss_p), "the backwards of a step") ||
        (model->dp && !tap_success(lap_dp_wait(model->dp), "the sums over replicas")))
        return NULL;
    grads = nn_fetch(model->nn, grads, count);
    for (size_t i = 0; i < count; i++)
        grads[i] *= scale;
    tap_success(lap_optimizer_step(model->optimizer, scale, norm_p), "a step");
    return grads;
}

/* ---- comparing ---- */

/* The largest of sum_i (a_i - b_i)^2 / sum_i a_i^2 of all parameters, as a root. */
static double distance(const model_t *model, const float *a, const float *b, const char **name_p)
{
    double most = 0;
    size_t count;
    const float *all = lap_nn_gradients(model->nn, &count);
    for (size_t p = 0; p < lap_nn_params(model->nn); p++) {
        const lap_nn_param_t *param = lap_nn_param(model->nn, p);
        const size_t first = (size_t)((const float *)param->grad.data - all);
        double differs = 0, square = 0;
        for (size_t i = first; i < first + param->rows * param->cols; i++) {
            differs += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
            square += (double)a[i] * a[i];
        }
        const double part = sqrt(differs / square);
        if (!(part <= most)) {
            most = part;
            *name_p = param->name;
        }
    }
    return most;
}

static void compare(model_t *whole, model_t *parts, int step)
{
    const trial_t *t = whole->trial;
    const double bound = bound_of(t);
    double losses[2] = {0, 0}, norms[2] = {0, 0};
    const char *name = "none";
    float *once = run_step(whole, step, &losses[0], &norms[0]);
    float *often = run_step(parts, step, &losses[1], &norms[1]);
    const double apart = once && often ? distance(whole, once, often, &name) : INFINITY;
    /* Losses and norms are of many numbers, whose differences do not all go the same way. */
    const bool near = apart <= bound && fabs(losses[1] / losses[0] - 1) <= bound / 4 &&
                      fabs(norms[1] / norms[0] - 1) <= bound / 4;
    tap_ok(near,
           "tp %d, %d replicas, %zu sequences, sequence parallel %d, recompute %d, overlap %d, %s, "
           "wire %s, fp8 %d, step %d: losses %.9g %.9g, norms %.9g %.9g, gradients are %.3g apart "
           "(%s), expected %.3g",
           t->tp, t->replicas, t->n, t->sequence_parallel, (int)t->recompute, t->overlap,
           lap_dtype_name(t->dtype), lap_dtype_name(t->wire), (int)t->fp8, step, losses[0],
           losses[1], norms[0], norms[1], apart, name, bound);
    free(once);
    free(often);
}

static void run_rank(lap_world_t *world, void *arg)
{
    const trial_t *trial = arg;
    const int own = lap_world_rank(world), tp = trial->tp;
    lap_group_t *groups[2] = {NULL, NULL};
    tap_success(lap_group_split(lap_world_group(world), own / tp, own, &groups[0]), "tp");
    tap_success(lap_group_split(lap_world_group(world), own % tp, own, &groups[1]), "dp");
    model_t whole = {.trial = trial, .batch = trial->n}, parts = {.trial = trial, .batch = 1};
    if (tap_success(make_model(&whole, groups[0], groups[1]), "layers") &&
        tap_success(make_model(&parts, groups[0], groups[1]), "layers of one sequence"))
        for (int step = 0; step < STEPS; step++)
            compare(&whole, &parts, step);
    free_model(&parts);
    free_model(&whole);
    lap_group_destroy(groups[1]);
    lap_group_destroy(groups[0]);
}

/* ---- misuse ---- */

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

/* Neither costs more than a sentence: the same layers go on as if nothing had been asked. */
static void run_mistakes(lap_world_t *world, void *arg)
{
    const trial_t *trial = arg;
    const int own = lap_world_rank(world);
    lap_group_t *alone = NULL;
    model_t model = {.trial = trial, .batch = trial->n};
    tap_success(lap_group_split(lap_world_group(world), own, own, &alone), "a group of one");
    if (tap_success(make_model(&model, alone, lap_world_group(world)), "layers") &&
        tap_success(fill(&model, 0, 0), "data")) {
        if (model.dp)
            mistake_replicas(&model, lap_world_group(world));
        mistake_step(&model);
    }
    free_model(&model);
    lap_group_destroy(alone);
}

/* ---- which ---- */

static void run(trial_t trial)
{
    tap_launched_ranks(trial.tp * trial.replicas, NULL, run_rank, &trial);
}

/* Every layout, in one type. */
static void run_layouts(trial_t trial, bool all)
{
    for (int i = 0; i < 2 * 4 * 2 * 3 * 2; i++) {
        trial.replicas = 1 + i % 2;
        trial.tp = 1 + i / 2 % 4;
        trial.sequence_parallel = i / 8 % 2 == 0;
        trial.recompute = (lap_recompute_t)(i / 16 % 3);
        trial.overlap = i / 48 == 0;
        const bool some = (int)trial.recompute == trial.tp % 3 && trial.overlap;
        if (all || some)
            run(trial);
    }
}

int main(void)
{
    const trial_t plain = {.tp = 1,
                           .replicas = 1,
                           .sequence_parallel = 1,
                           .overlap = 1,
                           .dtype = LAP_FLOAT32,
                           .wire = LAP_FLOAT32,
                           .n = 2};
    run_layouts(plain, true);
    trial_t trial = plain;
    trial.dtype = LAP_BFLOAT16;
    run_layouts(trial, false);
    for (int recipe = LAP_FP8_DELAYED; recipe <= LAP_FP8_CURRENT; recipe++) {
        trial.fp8 = (lap_fp8_recipe_t)recipe;
        run_layouts(trial, false);
    }
    trial.n = 3;
    trial.tp = trial.replicas = 2;
    run(trial);
    trial.fp8 = LAP_FP8_NONE;
    trial.wire = LAP_BFLOAT16;
    run(trial);
    trial.dtype = LAP_FLOAT32;
    run(trial);
    trial.wire = LAP_FLOAT32;
    run(trial);
    for (trial.overlap = 0; trial.overlap < 2; trial.overlap++) {
        trial.replicas = trial.tp = 1;
        tap_launched_ranks(1, NULL, run_mistakes, &trial);
        trial.replicas = 2;
        tap_launched_ranks(2, NULL, run_mistakes, &trial);
    }
    return tap_done();
}
