/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FP8. With numbers that FP8 holds exactly, linear layers must give the very bits that they give
 * without it: every scale is where it belongs, and follows when they change. With others the
 * results are off by what FP8 rounds, on average. Activations that are recomputed change nothing, and
 * no rank waits for another while it issues passes. The device is the one that LAP_DEVICE names.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/convert.h"
#include "fp8_state.h"
#include "tap.h"
#include "util/random.h"

/* ---- exact numbers ---- */

static float whole_number(uint64_t seed, uint64_t index)
{
    return (float)(tap_random(seed, index) % 5) - 2;
}

static void fill_whole(const lap_tensor_t *tensor, const lap_nn_part_t *part, uint64_t seed)
{
    for (size_t i = 0; i < part->rows; i++)
        for (size_t j = 0; j < part->cols; j++) {
            const float value =
                whole_number(seed, (part->first_row + i) * part->all_cols + part->first_col + j);
            lap_from_float(
                tensor->dtype, &value,
                (char *)tensor->data + (i * part->cols + j) * lap_dtype_size(tensor->dtype), 1);
        }
}

static bool set_whole(state_t *state)
{
    size_t count;
    float *masters = lap_nn_masters(state->nn, &count), *values = malloc(count * sizeof(float));
    for (size_t i = 0; i < count; i++)
        values[i] = 0.25f * whole_number(3, i);
    const bool set = nn_copy(state->nn, masters, values, count * sizeof(float));
    free(values);
    return tap_ok(set, "whole numbers") && tap_success(lap_nn_refresh(state->nn), "weights");
}

static bool run_whole(state_t *state)
{
    fill_whole(&state->x, &state->in, 1);
    fill_whole(&state->dy, &state->out, 2);
    return set_whole(state) &&
           tap_success(lap_nn_forward(state->nn, SEQ, &state->x, &state->y), "forward") &&
           tap_success(lap_nn_backward(state->nn, &state->dy, &state->dx), "backward") &&
           tap_success(lap_nn_wait(state->nn), "both end");
}

static bool same_bits(state_t *one, state_t *other)
{
    size_t count;
    float *grads = gradients(one, &count), *others = gradients(other, &count);
    const size_t element = lap_dtype_size(one->y.dtype);
    const bool same = memcmp(grads, others, count * sizeof(float)) == 0;
    free(grads);
    free(others);
    return same && memcmp(one->y.data, other->y.data, one->y.rows * one->y.cols * element) == 0 &&
           memcmp(one->dx.data, other->dx.data, one->dx.rows * one->dx.cols * element) == 0;
}

static void check_exact(lap_world_t *world, void *arg)
{
    lap_nn_desc_t desc = *(const lap_nn_desc_t *)arg, plain = desc;
    state_t fp8, without;
    plain.fp8 = LAP_FP8_NONE;
    bool opened = open_state(lap_world_group(world), &desc, &fp8);
    opened = open_state(lap_world_group(world), &plain, &without) && opened;
    if (opened && run_whole(&without))
        for (int i = 0; i < 2; i++) { /* the second time scales come from history */
            lap_nn_zero_gradients(fp8.nn);
            tap_ok(run_whole(&fp8) && same_bits(&fp8, &without),
                   "recipe %d, %s parallel, %d ranks: exact numbers stay exact", (int)desc.fp8,
                   desc.row_parallel ? "row" : "column", lap_world_size(world));
        }
    close_state(&fp8);
    close_state(&without);
}

/* ---- scales that follow ---- */

static bool run_times(state_t *state, float factor, bool backward)
{
    for (size_t i = 0; i < state->x.rows * state->x.cols; i++)
        ((float *)state->x.data)[i] = factor * whole_number(1, i);
    for (size_t i = 0; i < state->y.rows * state->y.cols; i++)
        ((float *)state->dy.data)[i] = factor * whole_number(2, i);
    lap_nn_zero_gradients(state->nn);
    return tap_success(lap_nn_forward(state->nn, SEQ, &state->x, &state->y), "forward") &&
           (!backward ||
            tap_success(lap_nn_backward(state->nn, &state->dy, &state->dx), "backward")) &&
           tap_success(lap_nn_wait(state->nn), "it ends");
}

/*
 * Delayed scaling: numbers that have become 2^18 times larger are too large at first, and exact
 * from the next pass on; when they become small again, once the history has forgotten. Gradients
 * keep their scale over passes that have none.
 */
static void check_follows(lap_world_t *world, void *arg)
{
    lap_nn_desc_t desc = *(const lap_nn_desc_t *)arg, plain = desc;
    static const struct {
        float factor;
        int forwards;
        bool exact;
    } stages[] = {{1, 0, true},       {0x1p18f, 0, false},  {0x1p18f, 0, true},
                  {0x1p18f, 4, true}, {0x1p-18f, 0, false}, {0x1p-18f, 0, false},
                  {0x1p-18f, 0, true}};
    state_t fp8, without;
    plain.fp8 = LAP_FP8_NONE;
    bool opened = open_state(lap_world_group(world), &desc, &fp8);
    opened = open_state(lap_world_group(world), &plain, &without) && opened;
    opened = opened && run_whole(&fp8) && run_whole(&without);
    for (size_t i = 0; opened && i < sizeof(stages) / sizeof(stages[0]); i++) {
        for (int j = 0; j < stages[i].forwards; j++)
            run_times(&fp8, stages[i].factor, false);
        tap_ok(run_times(&fp8, stages[i].factor, true) &&
                   run_times(&without, stages[i].factor, true) &&
                   same_bits(&fp8, &without) == stages[i].exact,
               "%d ranks, numbers times %g: %s", lap_world_size(world), (double)stages[i].factor,
               stages[i].exact ? "exact" : "the scale is still another");
    }
    close_state(&fp8);
    close_state(&without);
}

/* A pass whose gradients are added to those before, and the dx that it gives. */
static bool run_more(state_t *state, float dy_factor)
{
    for (size_t i = 0; i < state->x.rows * state->x.cols; i++)
        ((float *)state->x.data)[i] = whole_number(1, i);
    for (size_t i = 0; i < state->y.rows * state->y.cols; i++)
        ((float *)state->dy.data)[i] = dy_factor * whole_number(2, i);
    return tap_success(lap_nn_forward(state->nn, SEQ, &state->x, &state->y), "forward") &&
           tap_success(lap_nn_backward(state->nn, &state->dy, &state->dx), "backward") &&
           tap_success(lap_nn_wait(state->nn), "it ends");
}

/*
 * The first backward that adds gradients to others is not the first of all: its scales are those of
 * the passes before. Scales change between steps only: all passes whose gradients are added have the same.
 */
static void check_accumulates(lap_world_t *world, void *arg)
{
    static const struct {
        float factor;
        bool exact, begins; /* a step */
    } stages[] = {{1, true, false},
                  {0x1p18f, false, false},
                  {0x1p18f, false, false},
                  {0x1p18f, true, true},
                  {1, true, false}};
    lap_nn_desc_t desc = *(const lap_nn_desc_t *)arg, plain = desc;
    state_t fp8, without;
    plain.fp8 = LAP_FP8_NONE;
    bool opened = open_state(lap_world_group(world), &desc, &fp8);
    opened = open_state(lap_world_group(world), &plain, &without) && opened;
    opened = opened && set_whole(&fp8) && set_whole(&without);
    for (size_t i = 0; opened && i < sizeof(stages) / sizeof(stages[0]); i++) {
        if (stages[i].begins) {
            lap_nn_zero_gradients(fp8.nn);
            lap_nn_zero_gradients(without.nn);
        }
        tap_ok(run_more(&fp8, stages[i].factor) && run_more(&without, stages[i].factor) &&
                   (memcmp(fp8.dx.data, without.dx.data,
                           fp8.dx.rows * fp8.dx.cols * sizeof(float)) == 0) == stages[i].exact,
               "%d ranks, gradients added, pass %zu: dx is %s", lap_world_size(world), i,
               stages[i].exact ? "exact" : "that of an earlier scale");
    }
    close_state(&fp8);
    close_state(&without);
}

/* A file that the first rank makes when it has issued a pass: it waits for nobody by that. */
static void name_file(int pass, char *name, size_t bytes)
{
    const char *folder = getenv("TMPDIR");
    snprintf(name, bytes, "%s/lap_fp8_issued_%d_%d", folder ? folder : "/tmp",
             (int)(getenv("LAP_SIZE") ? getppid() : getpid()), pass);
}

static bool see_file(const char *name)
{
    for (int i = 0; i < 20000 && access(name, F_OK) != 0; i++)
        usleep(1000);
    return access(name, F_OK) == 0;
}

/*
 * No call waits for another rank: one has issued its copies of weights and its passes before the
 * others begin.
 */
static void check_issued(lap_world_t *world, void *arg)
{
    const lap_nn_desc_t *desc = arg;
    lap_group_t *group = lap_world_group(world);
    state_t state;
    if (!open_state(group, desc, &state))
        return;
    fill_whole(&state.x, &state.in, 1);
    fill_whole(&state.dy, &state.out, 2);
    for (int pass = 0; pass < 3; pass++) {
        char file[256];
        FILE *made = NULL;
        name_file(pass, file, sizeof(file));
        if (lap_world_rank(world) != 0)
            tap_ok(see_file(file), "recipe %d: the first rank has issued all of pass %d",
                   (int)desc->fp8, pass);
        tap_success(lap_nn_refresh(state.nn), "copies of weights");
        tap_success(lap_nn_forward(state.nn, SEQ, &state.x, &state.y), "forward");
        tap_success(lap_nn_backward(state.nn, &state.dy, &state.dx), "backward");
        if (lap_world_rank(world) == 0)
            tap_ok((made = fopen(file, "w")) != NULL, "it is issued");
        tap_success(lap_nn_wait(state.nn), "all end");
        tap_success(lap_group_barrier(group), "all have seen the file");
        if (made) {
            fclose(made);
            unlink(file);
        }
    }
    close_state(&state);
}

/* Whether both have the same y, where numbers that are not may be any. */
static bool same_y(const state_t *one, const state_t *other, int *nans_p)
{
    const float *y = one->y.data, *z = other->y.data;
    bool same = true;
    for (size_t i = 0; i < one->y.rows * one->y.cols; i++) {
        same = same && (y[i] == z[i] || (isnan(y[i]) && isnan(z[i])));
        *nans_p += isnan(y[i]);
    }
    return same;
}

/* A pass in which the last rank has an element of x, and one of dy, that is not a number. */
static bool run_nan(lap_world_t *world, state_t *state, float factor)
{
    const bool last = lap_world_rank(world) == lap_world_size(world) - 1;
    for (size_t i = 0; i < state->x.rows * state->x.cols; i++)
        ((float *)state->x.data)[i] = last && i == 0 ? NAN : factor * whole_number(1, i);
    for (size_t i = 0; i < state->y.rows * state->y.cols; i++)
        ((float *)state->dy.data)[i] = last && i == 0 ? NAN : factor * whole_number(2, i);
    return tap_success(lap_nn_forward(state->nn, SEQ, &state->x, &state->y), "forward") &&
           tap_success(lap_nn_backward(state->nn, &state->dy, &state->dx), "backward") &&
           tap_success(lap_nn_wait(state->nn), "it ends");
}

/*
 * What is not a number stays so, and spoils nothing else. A history takes no note of it, whichever
 * rank had it: small numbers of the next pass are not lost.
 */
static void check_nan(lap_world_t *world, void *arg)
{
    lap_nn_desc_t desc = *(const lap_nn_desc_t *)arg, plain = desc;
    const int size = lap_world_size(world);
    const float factor = desc.fp8 == LAP_FP8_DELAYED ? 0x1p-18f : 64; /* current scaling takes 1 */
    state_t fp8, without;
    int nans[2] = {0, 0};
    plain.fp8 = LAP_FP8_NONE;
    bool opened = open_state(lap_world_group(world), &desc, &fp8);
    opened = open_state(lap_world_group(world), &plain, &without) && opened;
    if (opened && run_whole(&fp8) && run_whole(&without)) {
        for (int i = 0; i < 3; i++)
            run_times(&fp8, factor, true);
        tap_ok(run_nan(world, &fp8, factor) && run_nan(world, &without, factor) &&
                   same_y(&fp8, &without, &nans[0]) && same_y(&without, &fp8, &nans[1]) &&
                   nans[0] == nans[1],
               "recipe %d, %d ranks: not a number, and all others are right", (int)desc.fp8, size);
        tap_ok(run_times(&fp8, factor, true) && run_times(&without, factor, true) &&
                   same_bits(&fp8, &without),
               "recipe %d, %d ranks: after it scales are what numbers need", (int)desc.fp8, size);
        for (int i = 0; i < 3; i++)
            run_times(&fp8, 0x1p18f, true);
        tap_ok(run_times(&without, 0x1p18f, true) && same_bits(&fp8, &without),
               "recipe %d, %d ranks: and later what numbers need", (int)desc.fp8, size);
    }
    close_state(&fp8);
    close_state(&without);
}

/* ---- one scale for all ranks ---- */

/* Rows of very different sizes, so that no two ranks would choose the same scale. */
static void fill_steep(const lap_tensor_t *tensor, const lap_nn_part_t *part, uint64_t seed)
{
    for (size_t i = 0; i < part->rows; i++)
        for (size_t j = 0; j < part->cols; j++) {
            const size_t row = part->first_row + i;
            const uint64_t index = row * part->all_cols + part->first_col + j;
            const double value = (double)(tap_random(seed, index) % 10007) / 10007 - 0.5;
            /* The largest of x is with the first rank, that of dy is not. */
            const int size = seed == 1 && row == 0 ? 10 : (int)row % 8;
            ((float *)tensor->data)[i * part->cols + j] = (float)ldexp(value, size);
        }
}

static bool run_steep(state_t *state)
{
    fill_steep(&state->x, &state->in, 1);
    fill_steep(&state->dy, &state->out, 2);
    return tap_success(lap_nn_forward(state->nn, SEQ, &state->x, &state->y), "forward") &&
           tap_success(lap_nn_backward(state->nn, &state->dy, &state->dx), "backward") &&
           tap_success(lap_nn_wait(state->nn), "both end");
}

/* How far this rank's part is from the same part of a whole matrix, in parts of its largest. */
static double part_apart(const float *mine, const float *whole, const lap_nn_part_t *part)
{
    double most = 0, largest = 0;
    for (size_t i = 0; i < part->all_rows * part->all_cols; i++)
        largest = fabs((double)whole[i]) > largest ? fabs((double)whole[i]) : largest;
    for (size_t i = 0; i < part->rows; i++)
        for (size_t j = 0; j < part->cols; j++) {
            const double truth =
                (double)whole[(part->first_row + i) * part->all_cols + part->first_col + j];
            const double off = fabs((double)mine[i * part->cols + j] - truth);
            most = off > most ? off : most;
        }
    return most / largest;
}

/*
 * Shards that are rounded with the scale of the whole are those of the rounded whole: several ranks
 * differ from one by the order of sums only, a thousand times less than by what FP8 rounds.
 */
static void check_shared(lap_world_t *world, void *arg)
{
    const lap_nn_desc_t *desc = arg;
    lap_group_t *alone;
    state_t many, one = {.nn = NULL};
    if (!tap_success(lap_group_split(lap_world_group(world), lap_world_rank(world), 0, &alone),
                     "a group of one"))
        return;
    bool opened = open_state(lap_world_group(world), desc, &many);
    opened = open_state(alone, desc, &one) && opened;
    if (opened && run_steep(&many) && run_steep(&one)) {
        const lap_nn_param_t *param = lap_nn_param(many.nn, 0), *all = lap_nn_param(one.nn, 0);
        const lap_nn_part_t part = {param->rows,       param->cols,     param->global_row[0],
                                    param->global_col, param->all_rows, param->all_cols};
        const double y = part_apart(many.y.data, one.y.data, &many.out);
        const double dx = part_apart(many.dx.data, one.dx.data, &many.in);
        float *grad = nn_fetch(many.nn, param->grad.data, param->rows * param->cols);
        float *whole = nn_fetch(one.nn, all->grad.data, all->rows * all->cols);
        const double dw = part_apart(grad, whole, &part);
        free(grad);
        free(whole);
        tap_ok(y < 1e-5 && dx < 1e-5 && dw < 1e-5,
               "%d ranks, %s parallel, round as one does: y, dx, dw are off by %.1g, %.1g, %.1g",
               lap_world_size(world), desc->row_parallel ? "row" : "column", y, dx, dw);
    }
    close_state(&many);
    close_state(&one);
    lap_group_destroy(alone);
}

/* ---- rounded numbers ---- */

static bool run_normal(state_t *state)
{
    const uint64_t data = (uint64_t)1 << 32;
    lap_status_t status = lap_nn_fill(state->nn, &state->x, &state->in, 1, data, 1);
    if (status == LAP_OK)
        status = lap_nn_fill(state->nn, &state->dy, &state->out, 2, data, 1e-3f);
    if (status == LAP_OK)
        status = lap_nn_forward(state->nn, SEQ, &state->x, &state->y);
    if (status == LAP_OK)
        status = lap_nn_backward(state->nn, &state->dy, &state->dx);
    if (status == LAP_OK)
        status = lap_nn_wait(state->nn);
    return tap_success(status, "a pass");
}

/* The distance of x to y in parts of y, both seen as vectors. */
static double apart(const float *x, const float *y, size_t count)
{
    double off = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        off += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        size += (double)y[i] * (double)y[i];
    }
    return sqrt(off / size);
}

/*
 * e4m3 rounds a number by 2^-4 of it at most, e5m2 by 2^-3; on average over all fractions by 0.026
 * and 0.053. A product of two has both errors, errors of different elements are independent, and a
 * transformer layer's gradients have seen a dozen such roundings: 0.2 at most.
 */
static void check_rounded(lap_world_t *world, void *arg)
{
    lap_nn_desc_t desc = *(const lap_nn_desc_t *)arg, plain = desc, again = desc;
    state_t fp8, without, full;
    size_t count;
    plain.fp8 = LAP_FP8_NONE;
    again.recompute = desc.activation == LAP_SWIGLU ? LAP_RECOMPUTE_SELECTIVE : LAP_RECOMPUTE_FULL;
    bool opened = open_state(lap_world_group(world), &desc, &fp8);
    opened = open_state(lap_world_group(world), &plain, &without) && opened;
    opened = open_state(lap_world_group(world), &again, &full) && opened;
    if (opened && run_normal(&fp8) && run_normal(&without) && run_normal(&full)) {
        float *grads = gradients(&without, &count), *rounded = gradients(&fp8, &count);
        const double y = apart(fp8.y.data, without.y.data, fp8.y.rows * fp8.y.cols);
        const double dx = apart(fp8.dx.data, without.dx.data, fp8.dx.rows * fp8.dx.cols);
        const double dw = apart(rounded, grads, count);
        free(grads);
        free(rounded);
        tap_ok(y > 0.001 && y < 0.1, "y is off by %.3f: rounded, and no more", y);
        tap_ok(dx > 0.001 && dx < 0.2, "dx is off by %.3f", dx);
        tap_ok(dw > 0.001 && dw < 0.2, "gradients are off by %.3f", dw);
        tap_ok(same_bits(&fp8, &full), "what is recomputed has the same bits");
    }
    close_state(&fp8);
    close_state(&without);
    close_state(&full);
}

int main(void)
{
    const char *device = getenv("LAP_DEVICE");
    /* Where FP8 is added up with 14 bits, the order of sums shows more than that. */
    const bool precise = !device || strcmp(device, "cuda") != 0;
    /* Threads that share a GPU issue in turn, and so wait for each other. */
    const bool waits = !precise && !getenv("LAP_SIZE");
    lap_nn_desc_t linear = LAP_NN_DESC_INIT;
    linear.kind = LAP_NN_LINEAR;
    linear.seq = SEQ;
    linear.batch = BATCH;
    linear.hidden = 96; /* multiples of 16 also in parts, but not in four */
    linear.features = 192;
    lap_nn_desc_t layers = linear;
    layers.kind = LAP_NN_TRANSFORMER;
    layers.hidden = 32;
    layers.heads = 8;
    layers.init_std = 0.1f;
    for (int recipe = LAP_FP8_DELAYED; recipe <= LAP_FP8_CURRENT; recipe++) {
        layers.fp8 = linear.fp8 = (lap_fp8_recipe_t)recipe;
        for (int ranks = 1; ranks <= 4; ranks++)
            for (int row = 0; row < 2; row++) {
                linear.row_parallel = row;
                tap_launched_ranks(ranks, NULL, check_exact, &linear);
                if (precise)
                    tap_launched_ranks(ranks, NULL, check_shared, &linear);
            }
        for (int way = 0; way < 4; way++) {
            layers.sequence_parallel = way != 3;
            layers.activation = way == 2 ? LAP_SWIGLU : LAP_GELU;
            tap_launched_ranks(way == 0 ? 1 : 2, NULL, check_rounded, &layers);
        }
    }
    linear.fp8 = LAP_FP8_DELAYED;
    linear.amax_history = 2;
    for (int ranks = 1; ranks <= 2; ranks++) {
        tap_launched_ranks(ranks, NULL, check_follows, &linear);
        tap_launched_ranks(ranks, NULL, check_accumulates, &linear);
        for (int recipe = LAP_FP8_DELAYED; recipe <= LAP_FP8_CURRENT; recipe++) {
            lap_nn_desc_t other = linear;
            other.fp8 = (lap_fp8_recipe_t)recipe;
            tap_launched_ranks(ranks, NULL, check_nan, &other);
            if (!waits)
                tap_launched_ranks(ranks + 1, NULL, check_issued, &other);
        }
    }
    return tap_done();
}
