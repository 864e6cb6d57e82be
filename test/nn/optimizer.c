/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizers against the same formulas in double, on one rank and on several: the gradients are
 * given, as normal numbers of their place in the whole, so that every layout has the same ones.
 */
#include <lap/optimizer.h>

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "tap.h"
#include "util/random.h"

enum { STEPS = 4 };

static lap_nn_t *make_layers(lap_group_t *group)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    lap_nn_t *nn = NULL;
    desc.kind = LAP_NN_TRANSFORMER;
    desc.seq = 4;
    desc.hidden = 24;
    desc.heads = 12;
    tap_success(lap_nn_create(group, &desc, &nn), "layers");
    return nn;
}

/* The row of the whole that row `row` of a shard is. */
static size_t global_row(const lap_nn_param_t *param, size_t row)
{
    size_t part = 0;
    for (; row >= param->part_rows[part]; part++)
        row -= param->part_rows[part];
    return param->global_row[part] + row;
}

static uint64_t place_of(const lap_nn_param_t *param, size_t i)
{
    const size_t row = global_row(param, i / param->cols);
    return row * param->all_cols + param->global_col + i % param->cols;
}

/* The gradient of an element in a step: a function of its place only. */
static float gradient(size_t param, uint64_t place, int step)
{
    return lap_random_normal(99, ((uint64_t)step << 32) + param, place) * 0.01f;
}

/* `broken`: one of them is no number. */
static void give_gradients(lap_nn_t *nn, int step, bool broken)
{
    size_t count;
    float *all = lap_nn_gradients(nn, &count), *copy = calloc(count, sizeof(float));
    for (size_t p = 0; p < lap_nn_params(nn) && copy; p++) {
        const lap_nn_param_t *param = lap_nn_param(nn, p);
        float *own = copy + ((float *)param->grad.data - all);
        for (size_t i = 0; i < param->rows * param->cols; i++)
            own[i] = gradient(p, place_of(param, i), step);
        if (p == 3 && broken)
            own[0] = NAN;
    }
    tap_ok(copy && nn_copy(nn, all, copy, count * sizeof(float)), "gradients are given");
    free(copy);
}

/* Of all parameters, each of them whole and once. */
static double true_norm(lap_nn_t *nn, int step)
{
    double sum = 0;
    for (size_t p = 0; p < lap_nn_params(nn); p++) {
        const lap_nn_param_t *param = lap_nn_param(nn, p);
        for (uint64_t i = 0; i < (uint64_t)param->all_rows * param->all_cols; i++)
            sum += pow(gradient(p, i, step), 2);
    }
    return sqrt(sum);
}

/* One weight followed in double. */
typedef struct followed {
    double w, m, v;
} followed_t;

/* Grows to lr in the steps of warm-up, then falls to min_lr. */
static double true_rate(const lap_optimizer_desc_t *desc, int t)
{
    const double whole = (double)desc->lr_decay_steps - (double)desc->warmup;
    if (t <= (int)desc->warmup)
        return (double)desc->lr * t / (double)desc->warmup;
    const double part = fmin(1, (t - (double)desc->warmup) / whole);
    const double left = desc->lr_decay == LAP_LR_LINEAR   ? 1 - part
                        : desc->lr_decay == LAP_LR_COSINE ? (1 + cos(acos(-1) * part)) / 2
                                                          : 1;
    return desc->min_lr + ((double)desc->lr - desc->min_lr) * left;
}

static void follow(followed_t *f, const lap_optimizer_desc_t *desc, double g, bool decays, int t)
{
    const double lr = true_rate(desc, t);
    const double decay = decays ? desc->weight_decay : 0;
    if (desc->kind == LAP_SGD) {
        f->v = desc->momentum * f->v + g + decay * f->w;
        f->w -= lr * f->v;
        return;
    }
    f->w -= lr * decay * f->w;
    f->m = desc->beta1 * f->m + (1 - (double)desc->beta1) * g;
    f->v = desc->beta2 * f->v + (1 - (double)desc->beta2) * g * g;
    const double m = f->m / (1 - pow(desc->beta1, t)), v = f->v / (1 - pow(desc->beta2, t));
    f->w -= lr * m / (sqrt(v) + desc->epsilon);
}

static float *copy_masters(lap_nn_t *nn)
{
    size_t count;
    const float *masters = lap_nn_masters(nn, &count);
    return nn_fetch(nn, masters, count);
}

/*
 * Whether the masters are where a true optimizer takes them. Each step rounds the weight once and
 * what is added to it a dozen times.
 */
static void compare(lap_nn_t *nn, const float *before, const lap_optimizer_desc_t *desc,
                    const double *scales, const char *what)
{
    size_t count, wrong = 0, moved = 0;
    const float *masters = lap_nn_masters(nn, &count);
    float *after = copy_masters(nn);
    for (size_t p = 0; p < lap_nn_params(nn); p++) {
        const lap_nn_param_t *param = lap_nn_param(nn, p);
        const size_t first = (size_t)((float *)param->master.data - masters);
        const float *master = after + first, *old = before + first;
        for (size_t i = 0; i < param->rows * param->cols; i++) {
            followed_t f = {old[i], 0, 0};
            double way = 0;
            for (int t = 1; t <= STEPS; t++) {
                const double was = f.w;
                const double g = gradient(p, place_of(param, i), t) * scales[t - 1];
                follow(&f, desc, g, param->all_cols > 1, t);
                way += fabs(f.w - was);
            }
            const double bound = STEPS * (fabs(f.w) + 12 * (way + desc->lr * 1e-3)) * FLT_EPSILON;
            wrong += tap_wrong(!(fabs(master[i] - f.w) <= bound),
                               "element %zu of parameter %zu (%s) is %.9g, expected %.9g", i, p,
                               param->name, (double)master[i], f.w);
            moved += master[i] != old[i];
        }
    }
    tap_ok(wrong == 0 && moved > count / 2, "%s: %zu weights are wrong, %zu of %zu moved", what,
           wrong, moved, count);
    free(after);
}

typedef struct trial {
    const char *what;
    lap_optimizer_kind_t kind;
    float lr, momentum, decay, clip;
    size_t warmup;
    float scale;
    lap_lr_decay_t lr_decay;
    size_t steps; /* of it */
    float min_lr;
} trial_t;

static const trial_t trials[] = {
    {"sgd", LAP_SGD, 0.5f, 0, 0, 0, 0, 1, LAP_LR_CONSTANT, 0, 0},
    {"sgd with momentum, decay and warm-up", LAP_SGD, 0.5f, 0.9f, 0.1f, 0, 3, 0.5f, LAP_LR_CONSTANT,
     0, 0},
    {"sgd, clipped", LAP_SGD, 0.5f, 0, 0, 0.1f, 0, 2, LAP_LR_CONSTANT, 0, 0},
    {"adamw", LAP_ADAMW, 0.01f, 0, 0, 0, 0, 1, LAP_LR_CONSTANT, 0, 0},
    {"adamw with decay and warm-up", LAP_ADAMW, 0.01f, 0, 0.1f, 0, 3, 0.25f, LAP_LR_CONSTANT, 0, 0},
    {"adamw, clipped", LAP_ADAMW, 0.01f, 0, 0.1f, 0.2f, 0, 1, LAP_LR_CONSTANT, 0, 0},
    {"adamw, not clipped", LAP_ADAMW, 0.01f, 0, 0.1f, 1000, 0, 1, LAP_LR_CONSTANT, 0, 0},
    {"sgd, linear decay", LAP_SGD, 0.5f, 0, 0, 0, 0, 1, LAP_LR_LINEAR, 3, 0},
    {"sgd, linear decay after warm-up", LAP_SGD, 0.5f, 0, 0, 0, 2, 1, LAP_LR_LINEAR, 6, 0.1f},
    {"adamw, cosine decay after warm-up", LAP_ADAMW, 0.01f, 0, 0, 0, 1, 1, LAP_LR_COSINE, 4,
     0.001f},
};

static lap_optimizer_desc_t describe(const trial_t *trial)
{
    lap_optimizer_desc_t desc = LAP_OPTIMIZER_DESC_INIT;
    desc.kind = trial->kind;
    desc.lr = trial->lr;
    desc.momentum = trial->momentum;
    desc.weight_decay = trial->decay;
    desc.clip_norm = trial->clip;
    desc.warmup = trial->warmup;
    desc.lr_decay = trial->lr_decay;
    desc.lr_decay_steps = trial->steps;
    desc.min_lr = trial->min_lr;
    return desc;
}

static void run_trial(lap_group_t *group, const trial_t *trial)
{
    const lap_optimizer_desc_t desc = describe(trial);
    lap_nn_t *nn = make_layers(group);
    lap_optimizer_t *optimizer = NULL;
    double scales[STEPS];
    bool norms = true;
    tap_success(lap_nn_wait(nn), "weights");
    float *before = copy_masters(nn);
    tap_success(lap_optimizer_create(nn, group, &desc, &optimizer), "%s", trial->what);
    for (int t = 1; t <= STEPS; t++) {
        double norm = -1;
        const double expected = trial->clip > 0 ? trial->scale * true_norm(nn, t) : 0;
        give_gradients(nn, t, false);
        lap_status_t status = lap_optimizer_step(optimizer, trial->scale, &norm);
        if (status == LAP_OK)
            status = lap_nn_wait(nn);
        norms = norms && status == LAP_OK && fabs(norm - expected) <= 1e-12 * expected;
        scales[t - 1] = trial->scale;
        if (trial->clip > 0 && expected > trial->clip)
            scales[t - 1] *= trial->clip / (expected + 1e-6);
    }
    tap_ok(norms, "%s: each parameter is counted once, whatever ranks have it", trial->what);
    compare(nn, before, &desc, scales, trial->what);
    free(before);
    lap_optimizer_destroy(optimizer);
    lap_nn_destroy(nn);
}

/* A norm that is no number: nothing may change. */
static void run_broken(lap_group_t *group)
{
    lap_optimizer_desc_t desc = LAP_OPTIMIZER_DESC_INIT;
    lap_nn_t *nn = make_layers(group);
    lap_optimizer_t *optimizer = NULL;
    double norm = 0;
    size_t count;
    desc.clip_norm = 1;
    tap_success(lap_optimizer_create(nn, group, &desc, &optimizer), "an optimizer");
    tap_success(lap_nn_wait(nn), "weights");
    float *before = copy_masters(nn);
    give_gradients(nn, 1, lap_group_rank(group) == lap_group_size(group) - 1);
    tap_success(lap_optimizer_step(optimizer, 1, &norm), "a step with gradients that are none");
    tap_success(lap_nn_wait(nn), "and its end");
    (void)lap_nn_masters(nn, &count);
    float *after = copy_masters(nn);
    tap_ok(isnan(norm) && memcmp(before, after, count * sizeof(float)) == 0,
           "a norm that is no number is told, and the weights stay");
    tap_failure(lap_optimizer_step(optimizer, 0, NULL), LAP_ERR_INVALID,
                "scale is 0, expected a finite number above 0", NULL);
    tap_failure(lap_optimizer_step(optimizer, NAN, NULL), LAP_ERR_INVALID, "scale is nan, expected",
                NULL);
    tap_failure(lap_optimizer_step(NULL, 1, NULL), LAP_ERR_INVALID, "optimizer is NULL", NULL);
    desc.epsilon = 0;
    tap_failure(lap_optimizer_validate(&desc), LAP_ERR_INVALID,
                "epsilon is 0, expected a finite number above 0", NULL);
    free(before);
    free(after);
    lap_optimizer_destroy(optimizer);
    lap_nn_destroy(nn);
}

/* Three steps whose norms nobody asks for, and what they leave; `broken`: a bad one before each. */
static float *run_steps(lap_group_t *group, bool broken, size_t *steps_p, size_t *count_p)
{
    lap_optimizer_desc_t desc = LAP_OPTIMIZER_DESC_INIT;
    lap_nn_t *nn = make_layers(group);
    lap_optimizer_t *optimizer = NULL, *other = NULL;
    lap_status_t status = LAP_OK;
    desc.clip_norm = 0.1f;
    desc.warmup = 5;
    tap_success(lap_optimizer_create(nn, group, &desc, &optimizer), "an optimizer");
    tap_failure(lap_optimizer_create(nn, group, &desc, &other), LAP_ERR_INVALID,
                "the layers have an optimizer already", NULL);
    for (int i = 0; i < 6 && status == LAP_OK; i++) {
        if (i % 2 == 0 && !broken)
            continue;
        give_gradients(nn, i / 2 + 1, i % 2 == 0);
        status = lap_optimizer_step(optimizer, 0.5f, NULL);
    }
    tap_success(status == LAP_OK ? lap_nn_wait(nn) : status, "steps that are not waited for");
    *steps_p = lap_optimizer_steps(optimizer);
    (void)lap_nn_masters(nn, count_p);
    float *masters = copy_masters(nn);
    lap_optimizer_destroy(optimizer);
    tap_success(lap_optimizer_create(nn, group, &desc, &other), "another one after it");
    lap_optimizer_destroy(other);
    lap_nn_destroy(nn);
    return masters;
}

/* Whether a step counts is known on the device: the rates of the next one are the right ones. */
static void run_skipped(lap_group_t *group)
{
    size_t steps[2], count;
    float *with = run_steps(group, true, &steps[0], &count);
    float *without = run_steps(group, false, &steps[1], &count);
    tap_ok(steps[0] == 3 && steps[1] == 3 && memcmp(with, without, count * sizeof(float)) == 0,
           "steps without a norm are skipped, and leave nothing: %zu and %zu count", steps[0],
           steps[1]);
    free(with);
    free(without);
}

static void run_rank(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *group = lap_world_group(world);
    run_skipped(group);
    for (size_t i = 0; i < sizeof(trials) / sizeof(trials[0]); i++)
        run_trial(group, &trials[i]);
    run_broken(group);
}

static void refuse(void)
{
    lap_optimizer_desc_t desc = LAP_OPTIMIZER_DESC_INIT;
    tap_success(lap_optimizer_validate(&desc), "the defaults");
    desc.kind = (lap_optimizer_kind_t)2;
    tap_failure(lap_optimizer_validate(&desc), LAP_ERR_INVALID, "kind is 2", NULL);
    desc = (lap_optimizer_desc_t)LAP_OPTIMIZER_DESC_INIT;
    desc.lr = -1;
    tap_failure(lap_optimizer_validate(&desc), LAP_ERR_INVALID, "lr is -1", NULL);
    desc.lr = NAN;
    tap_failure(lap_optimizer_validate(&desc), LAP_ERR_INVALID, "lr is", "nan", NULL);
    desc = (lap_optimizer_desc_t)LAP_OPTIMIZER_DESC_INIT;
    desc.beta2 = 1;
    tap_failure(lap_optimizer_validate(&desc), LAP_ERR_INVALID, "beta2 is 1", "less than 1", NULL);
    desc = (lap_optimizer_desc_t)LAP_OPTIMIZER_DESC_INIT;
    desc.lr_decay = LAP_LR_COSINE;
    desc.warmup = desc.lr_decay_steps = 5;
    tap_failure(lap_optimizer_validate(&desc), LAP_ERR_INVALID, "lr_decay_steps is 5",
                "more than the 5 steps of warmup", NULL);
    desc.lr_decay_steps = 6;
    desc.min_lr = 0.5f;
    tap_failure(lap_optimizer_validate(&desc), LAP_ERR_INVALID, "min_lr is 0.5", "at most lr",
                NULL);
    tap_failure(lap_optimizer_validate(NULL), LAP_ERR_INVALID, "desc is NULL", NULL);
    desc.size = 1;
    tap_failure(lap_optimizer_validate(&desc), LAP_ERR_INVALID, "LAP_OPTIMIZER_DESC.size", NULL);
    lap_optimizer_destroy(NULL);
}

int main(void)
{
    refuse();
    for (int nranks = 1; nranks <= 4; nranks++)
        tap_launched_ranks(nranks, NULL, run_rank, NULL);
    return tap_done();
}
