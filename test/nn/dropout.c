/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dropout: masks have the part of zeros that is asked for and are independent of each other; gradients are
 * those of the masks that forward had, by finite differences, on one rank and on two, whatever is recomputed; the
 * numbers of sequences determine masks, and there are none without targets.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/mask.h"
#include "memory.h"
#include "tap.h"

/* ---- masks ---- */

static void test_part(float rate)
{
    enum { ROWS = 200, COLS = 501 };
    const int32_t ids[LAP_ID_COLS] = {0};
    lap_mask_t mask = {.rate = rate, .seed = 7, .site = 3, .ids = ids};
    size_t zeros = 0, wrong = 0, same[3] = {0};
    for (uint64_t row = 0; row < ROWS; row++)
        for (uint64_t col = 0; col < COLS; col++) {
            const float factor = lap_mask_at(&mask, 5, row, COLS, col);
            zeros += factor == 0;
            wrong += factor != 0 && factor != 1 / (1 - rate);
            lap_mask_t other = mask;
            other.site = 4;
            same[0] += (lap_mask_at(&other, 5, row, COLS, col) == 0) == (factor == 0);
            other = mask;
            other.seed = 8;
            same[1] += (lap_mask_at(&other, 5, row, COLS, col) == 0) == (factor == 0);
            same[2] += (lap_mask_at(&mask, 6, row, COLS, col) == 0) == (factor == 0);
        }
    const double count = (double)ROWS * COLS, p = (double)rate;
    /* Five standard deviations of a binomial distribution. */
    tap_ok(wrong == 0 && fabs((double)zeros - p * count) <= 5 * sqrt(count * p * (1 - p)),
           "of rate %g, %zu of %.0f elements are 0, and the others %g", p, zeros, count,
           1 / (1 - p));
    const double alike = p * p + (1 - p) * (1 - p), bound = 5 * sqrt(count * alike * (1 - alike));
    for (int i = 0; i < 3; i++)
        tap_ok(fabs((double)same[i] - alike * count) <= bound,
               "... masks of other sites, seeds and sequences are others: %zu are alike", same[i]);
    tap_ok(lap_mask_at(&mask, -1, 0, COLS, 0) == 1, "... a sequence without a number has none");
}

/* ---- models ---- */

enum { SEQ = 7, BATCH = 2, VOCAB = 11, FIRST = 40 };

static lap_nn_desc_t describe(void)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    desc.kind = LAP_NN_MODEL;
    desc.layers = 2;
    desc.seq = SEQ;
    desc.batch = BATCH;
    desc.hidden = 12;
    desc.heads = 4;
    desc.kv_heads = 2;
    desc.ffn = 20;
    desc.vocab = VOCAB;
    desc.positions = LAP_POSITIONS_LEARNED;
    desc.init_std = 0.3f;
    desc.attention_dropout = 0.3f;
    desc.hidden_dropout = 0.2f;
    return desc;
}

static void make_tokens(int32_t tokens[BATCH * SEQ], int32_t targets[BATCH * SEQ])
{
    for (uint64_t i = 0; i < (uint64_t)BATCH * SEQ; i++) {
        tokens[i] = (int32_t)(tap_random(1, i) % VOCAB);
        targets[i] = (int32_t)(tap_random(2, i) % VOCAB);
    }
}

static double loss_of(lap_nn_t *nn, uint64_t first)
{
    int32_t tokens[BATCH * SEQ], targets[BATCH * SEQ];
    double loss = NAN;
    make_tokens(tokens, targets);
    if (lap_model_samples(nn, first) != LAP_OK ||
        lap_model_forward(nn, SEQ, tokens, targets) != LAP_OK || lap_nn_wait(nn) != LAP_OK ||
        lap_nn_loss_value(nn, &loss) != LAP_OK)
        return NAN;
    return loss;
}

/* The loss with all weights of this rank a step away in a random direction. */
static double loss_at(lap_nn_t *nn, const float *saved, double step)
{
    size_t count;
    float *masters = lap_nn_masters(nn, &count);
    for (size_t i = 0; i < count; i++)
        masters[i] = (float)((double)saved[i] + (tap_random(3, i) & 1 ? step : -step));
    return lap_nn_refresh(nn) == LAP_OK ? loss_of(nn, FIRST) : NAN;
}

static double slope(lap_nn_t *nn, const float *saved, double step)
{
    return (loss_at(nn, saved, step) - loss_at(nn, saved, -step)) / (2 * step);
}

/* One rank alone: whatever is masked in forward must be in backward. */
static void check_slope(lap_nn_t *nn, const char *what)
{
    size_t count;
    const double before = loss_of(nn, FIRST);
    double product = 0, squares = 0;
    if (!tap_success(lap_model_backward(nn), "%s: backward", what) || lap_nn_wait(nn) != LAP_OK)
        return;
    const float *grads = lap_nn_gradients(nn, &count);
    float *saved = malloc(count * sizeof(*saved));
    memcpy(saved, lap_nn_masters(nn, &count), count * sizeof(*saved));
    for (size_t i = 0; i < count; i++) {
        product += (double)grads[i] * (tap_random(3, i) & 1 ? 1 : -1);
        squares += (double)grads[i] * (double)grads[i];
    }
    const double wide = slope(nn, saved, 0x1p-9), narrow = slope(nn, saved, 0x1p-10);
    const double estimate = (4 * narrow - wide) / 3;
    (void)loss_at(nn, saved, 0);
    const double bound = 2e-3 * sqrt(squares) + 1e-4;
    tap_ok(fabs(product - estimate) <= bound, "%s: the derivative is %.6g, measured %.6g", what,
           product, estimate);
    tap_ok(loss_of(nn, FIRST) == before && loss_of(nn, FIRST + BATCH) != before,
           "... the same sequences have the same masks, others have others");
    free(saved);
}

/* What the first rank alone found, by kind of recomputation; then others compare. */
typedef struct found {
    lap_nn_desc_t desc;
    const char *what;
    double loss, norm;
} found_t;

static double norm_of(lap_nn_t *nn, lap_group_t *group)
{
    lap_optimizer_desc_t desc = LAP_OPTIMIZER_DESC_INIT;
    lap_optimizer_t *optimizer;
    double norm = NAN;
    if (lap_optimizer_create(nn, group, &desc, &optimizer) != LAP_OK)
        return NAN;
    if (lap_optimizer_step(optimizer, 1, &norm) != LAP_OK)
        norm = NAN;
    lap_optimizer_destroy(optimizer);
    return norm;
}

static void check_logits(lap_nn_t *nn, lap_nn_t *without)
{
    int32_t tokens[BATCH * SEQ], targets[BATCH * SEQ];
    lap_tensor_t logits, other;
    make_tokens(tokens, targets);
    if (!tap_success(lap_model_forward(nn, SEQ, tokens, NULL), "a forward without targets") ||
        lap_model_forward(without, SEQ, tokens, NULL) != LAP_OK || lap_nn_wait(nn) != LAP_OK ||
        lap_nn_wait(without) != LAP_OK || lap_model_logits(nn, &logits, NULL) != LAP_OK ||
        lap_model_logits(without, &other, NULL) != LAP_OK)
        return;
    size_t wrong = 0;
    /* What a block adds is rounded once more than without dropout. */
    for (size_t i = 0; i < logits.rows * logits.cols; i++) {
        const size_t row = i / logits.cols, col = i % logits.cols;
        const float a = ((float *)logits.data)[row * logits.stride + col];
        const float b = ((float *)other.data)[row * other.stride + col];
        wrong += !(fabsf(a - b) <= 1e-5f * (1 + fabsf(b)));
    }
    tap_ok(wrong == 0, "... drops nothing");
}

static void run_model(lap_world_t *world, void *arg)
{
    found_t *found = arg;
    lap_group_t *group = lap_world_group(world);
    const bool alone = lap_group_size(group) == 1;
    lap_nn_desc_t plain = found->desc;
    plain.attention_dropout = plain.hidden_dropout = 0;
    lap_nn_t *nn = NULL, *without = NULL;
    if (!tap_success(lap_nn_create(group, &found->desc, &nn), "%s: a model", found->what))
        return;
    if (alone && tap_success(lap_nn_create(group, &plain, &without), "... and one without")) {
        check_logits(nn, without);
        tap_ok(loss_of(nn, FIRST) != loss_of(without, FIRST), "... the losses differ");
        check_slope(nn, found->what);
    }
    lap_nn_zero_gradients(nn);
    const double loss = loss_of(nn, FIRST);
    const lap_status_t status = lap_model_backward(nn);
    const double norm = status == LAP_OK ? norm_of(nn, group) : NAN;
    if (found->loss == 0) {
        found->loss = loss;
        found->norm = norm;
    } else {
        tap_ok(fabs(loss - found->loss) <= 1e-5 * found->loss &&
                   fabs(norm - found->norm) <= 1e-5 * found->norm,
               "%s, %d ranks: loss %.9g and norm %.9g are those of one rank, %.9g and %.9g",
               found->what, lap_group_size(group), loss, norm, found->loss, found->norm);
    }
    lap_nn_destroy(without);
    lap_nn_destroy(nn);
}

static void test_models(const char *device)
{
    static const char *const names[] = {"none", "selective", "full"};
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    found_t found = {.desc = describe()};
    char what[64];
    options.device = device;
    found.what = what;
    for (int r = 0; r < 3; r++) {
        snprintf(what, sizeof(what), "%s, recompute %s", device, names[r]);
        found.desc.recompute = (lap_recompute_t)r;
        tap_ranks(1, &options, run_model, &found);
    }
    tap_ranks(2, &options, run_model, &found);
    found.desc.sequence_parallel = 0;
    snprintf(what, sizeof(what), "%s, no sequence parallelism", device);
    tap_ranks(2, &options, run_model, &found);
}

int main(void)
{
    test_part(0.1f);
    test_part(0.5f);
    test_models("ref");
    test_models("cpu");
    lap_nn_desc_t desc = describe();
    desc.hidden_dropout = 1;
    tap_failure(lap_nn_validate(&desc, 1), LAP_ERR_INVALID, "hidden_dropout is 1", "less than 1",
                NULL);
    desc.hidden_dropout = 0;
    desc.attention_dropout = NAN;
    tap_failure(lap_nn_validate(&desc, 1), LAP_ERR_INVALID, "attention_dropout is nan", NULL);
    desc = describe();
    desc.kind = LAP_NN_TRANSFORMER;
    desc.vocab = 0;
    desc.positions = LAP_POSITIONS_NONE;
    tap_failure(lap_nn_validate(&desc, 1), LAP_ERR_INVALID, "attention_dropout is 0.3 with",
                "only models", NULL);
    return tap_done();
}
