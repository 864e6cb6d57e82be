/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What passes promise besides their numbers: weights that do not depend on the number of ranks,
 * gradients that add up, scaled losses, fewer tokens than the capacity, who is called for gradients
 * and when, traces, and that all calls on the one buffer are safe together.
 * They are those of the device that LAP_DEVICE names.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/convert.h"
#include "memory.h"
#include "tap.h"
#include "util/random.h"

#define SEQ 6
#define BATCH 2

static lap_nn_desc_t small(lap_nn_kind_t kind)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    desc.kind = kind;
    desc.seq = SEQ;
    desc.batch = BATCH;
    desc.hidden = 24;
    desc.heads = 12;
    desc.ffn = 36;
    desc.init_std = 0.1f;
    return desc;
}

/* Layers with all that a pass needs, in float32. */
typedef struct state {
    lap_nn_t *nn;
    size_t seq;
    lap_tensor_t x, y, target, dy, dx;
} state_t;

static lap_tensor_t alloc(lap_nn_t *nn, const lap_nn_part_t *part)
{
    return lap_tensor(nn_new(nn, part->rows * part->cols * sizeof(float)), LAP_FLOAT32, part->rows,
                      part->cols);
}

static bool open_state(lap_world_t *world, const lap_nn_desc_t *desc, size_t seq, state_t *state)
{
    if (!tap_success(lap_nn_create(lap_world_group(world), desc, &state->nn), "%s",
                     lap_nn_kind_name(desc->kind)))
        return false;
    const lap_nn_part_t in = lap_nn_input(state->nn, seq), out = lap_nn_output(state->nn, seq);
    state->seq = seq;
    state->x = alloc(state->nn, &in);
    state->dx = alloc(state->nn, &in);
    state->y = alloc(state->nn, &out);
    state->dy = alloc(state->nn, &out);
    state->target = alloc(state->nn, &out);
    lap_status_t status = lap_nn_fill(state->nn, &state->x, &in, 5, (uint64_t)1 << 32, 1);
    if (status == LAP_OK)
        status = lap_nn_fill(state->nn, &state->target, &out, 6, (uint64_t)1 << 32, 1);
    return tap_success(status, "data are made");
}

static void close_state(state_t *state)
{
    nn_free(state->nn, state->x.data);
    nn_free(state->nn, state->y.data);
    nn_free(state->nn, state->target.data);
    nn_free(state->nn, state->dy.data);
    nn_free(state->nn, state->dx.data);
    lap_nn_destroy(state->nn);
}

static bool step(state_t *state)
{
    lap_status_t status = lap_nn_forward(state->nn, state->seq, &state->x, &state->y);
    if (status == LAP_OK)
        status = lap_nn_loss(state->nn, &state->y, &state->target, &state->dy);
    if (status == LAP_OK)
        status = lap_nn_backward(state->nn, &state->dy, &state->dx);
    if (status == LAP_OK)
        status = lap_nn_wait(state->nn);
    return tap_success(status, "a step");
}

/* A copy of all gradients. */
static float *gradients(const state_t *state, size_t *count_p)
{
    const float *grads = lap_nn_gradients(state->nn, count_p);
    return nn_fetch(state->nn, grads, *count_p);
}

/* Whether x times `factor` is y, to so many parts of the largest element. */
static bool is_near(const float *x, float factor, const float *y, size_t count, double parts)
{
    double largest = 0, most = 0;
    for (size_t i = 0; i < count; i++) {
        const double size = fabs((double)y[i]);
        const double off = fabs((double)x[i] * (double)factor - (double)y[i]);
        if (size > largest)
            largest = size;
        if (!(off <= most))
            most = off;
    }
    return most <= parts * largest;
}

/* ---- weights ---- */

static void check_weights(lap_world_t *world, void *arg)
{
    const lap_nn_desc_t *desc = arg;
    lap_nn_t *nn;
    if (!tap_success(lap_nn_create(lap_world_group(world), desc, &nn), "layers"))
        return;
    /* A GPU's logarithms and cosines may differ in the last bit. */
    const double bit = nn->engine->device->ops->transport ? 0x1p-23 : 0;
    bool same = true;
    for (size_t p = 0; p < lap_nn_params(nn); p++) {
        const lap_nn_param_t *param = lap_nn_param(nn, p);
        float *values = nn_fetch(nn, param->master.data, param->rows * param->cols);
        size_t row = 0;
        for (size_t part = 0; part < param->nparts && param->all_cols > 1; part++)
            for (size_t i = 0; i < param->part_rows[part]; i++, row++)
                for (size_t c = 0; c < param->cols; c++) {
                    const uint64_t index =
                        (param->global_row[part] + i) * param->all_cols + param->global_col + c;
                    const double weight =
                        (double)(desc->init_std * lap_random_normal(desc->seed, p, index));
                    same &=
                        fabs((double)values[row * param->cols + c] - weight) <= bit * fabs(weight);
                }
        free(values);
    }
    tap_ok(same, "rank %d of %d has its part of the seed's weights", lap_world_rank(world),
           lap_world_size(world));
    lap_nn_destroy(nn);
}

/* Numbers of a copy that are not those of the masters, rounded. */
static size_t count_others(lap_nn_t *nn, const lap_nn_param_t *param)
{
    const size_t count = param->rows * param->cols, size = lap_dtype_size(param->weight.dtype);
    float *masters = nn_fetch(nn, param->master.data, count), value;
    char *copy = malloc(count * size);
    size_t others = copy && nn_copy(nn, copy, param->weight.data, count * size) ? 0 : 1;
    for (size_t i = 0; i < count && others == 0; i++) {
        lap_to_float(param->weight.dtype, copy + i * size, &value, 1);
        others += value != tap_rounded(param->weight.dtype, masters[i]);
    }
    free(masters);
    free(copy);
    return others;
}

/* What GEMMs read is of their type and follows the masters; what norms read is the master. */
static void check_copies(lap_world_t *world, void *arg)
{
    const lap_nn_desc_t *desc = arg;
    lap_nn_t *nn;
    size_t count, wrong = 0;
    if (!tap_success(lap_nn_create(lap_world_group(world), desc, &nn), "layers"))
        return;
    float *masters = lap_nn_masters(nn, &count), *values = malloc(count * sizeof(float));
    for (size_t i = 0; i < count; i++)
        values[i] = (float)i / 3;
    tap_ok(nn_copy(nn, masters, values, count * sizeof(float)), "weights");
    free(values);
    tap_success(lap_nn_refresh(nn), "copies");
    tap_success(lap_nn_wait(nn), "are made");
    for (size_t p = 0; p < lap_nn_params(nn); p++) {
        const lap_nn_param_t *param = lap_nn_param(nn, p);
        const bool norm = strstr(param->name, "norm") != NULL;
        const lap_dtype_t dtype = norm                               ? LAP_FLOAT32
                                  : desc->fp8 && param->all_cols > 1 ? LAP_FLOAT8_E4M3
                                                                     : desc->dtype;
        wrong += param->weight.dtype != dtype || (norm && param->weight.data != param->master.data);
        wrong += dtype == LAP_BFLOAT16 && count_others(nn, param) > 0;
    }
    tap_ok(wrong == 0, "%s: copies of weights and biases, but not of norms",
           desc->fp8 ? "FP8" : lap_dtype_name(desc->dtype));
    lap_nn_destroy(nn);
}

/* ---- gradients ---- */

static void check_accumulation(lap_world_t *world, void *arg)
{
    const lap_nn_desc_t *desc = arg;
    state_t state;
    size_t count;
    if (!open_state(world, desc, SEQ, &state) || !step(&state))
        return;
    float *once = gradients(&state, &count), *twice, *again;
    (void)step(&state);
    twice = gradients(&state, &count);
    tap_ok(is_near(once, 2, twice, count, 1e-5), "a second backward adds");
    lap_nn_zero_gradients(state.nn);
    (void)step(&state);
    again = gradients(&state, &count);
    tap_ok(memcmp(once, again, count * sizeof(float)) == 0,
           "after zero it begins anew, with the same bits");
    free(once);
    free(twice);
    free(again);
    close_state(&state);
}

/* Whether a step on fresh gradients gives these. */
static bool gives(state_t *state, const float *expected)
{
    size_t count;
    lap_nn_zero_gradients(state->nn);
    if (!step(state))
        return false;
    float *found = gradients(state, &count);
    const bool same = memcmp(found, expected, count * sizeof(float)) == 0;
    free(found);
    return same;
}

/*
 * Passes with the same matrices again and again, with others in their place, and with more numbers of
 * tokens than layers keep programs for.
 */
static void check_repeats(lap_world_t *world, void *arg)
{
    const lap_nn_desc_t *desc = arg;
    state_t first;
    size_t count;
    if (!open_state(world, desc, SEQ, &first) || !step(&first))
        return;
    float *once = gradients(&first, &count);
    bool same = true;
    for (int i = 0; i < 3; i++)
        same = gives(&first, once) && same;
    tap_ok(same, "passes that are repeated give the same bits");
    state_t other = first;
    const lap_nn_part_t in = lap_nn_input(first.nn, SEQ), out = lap_nn_output(first.nn, SEQ);
    other.x = alloc(first.nn, &in);
    other.dx = alloc(first.nn, &in);
    other.y = alloc(first.nn, &out);
    other.dy = alloc(first.nn, &out);
    tap_success(lap_nn_fill(first.nn, &other.x, &in, 5, (uint64_t)1 << 32, 1), "the same data");
    tap_success(lap_nn_fill(first.nn, &first.x, &in, 7, (uint64_t)1 << 32, 1), "other data");
    same = gives(&other, once);
    same = gives(&other, once) && same;
    tap_ok(same && !gives(&first, once), "matrices in another place are read there");
    for (size_t seq = 1; seq < SEQ; seq++) {
        state_t part = other;
        const lap_nn_part_t few = lap_nn_input(first.nn, seq), most = lap_nn_output(first.nn, seq);
        part.seq = seq;
        part.x.rows = part.dx.rows = few.rows;
        part.y.rows = part.dy.rows = part.target.rows = most.rows;
        (void)step(&part);
    }
    tap_ok(gives(&other, once), "and all tokens give the same bits after fewer");
    free(once);
    nn_free(first.nn, other.x.data);
    nn_free(first.nn, other.dx.data);
    nn_free(first.nn, other.y.data);
    nn_free(first.nn, other.dy.data);
    close_state(&first);
}

static void check_scale(lap_world_t *world, void *arg)
{
    lap_nn_desc_t desc = *(const lap_nn_desc_t *)arg;
    state_t plain, scaled;
    size_t count;
    if (!open_state(world, &desc, SEQ, &plain))
        return;
    desc.loss_scale = 1024;
    if (!open_state(world, &desc, SEQ, &scaled) || !step(&plain) || !step(&scaled))
        return;
    float *grads = gradients(&plain, &count), *others = gradients(&scaled, &count);
    tap_ok(memcmp(grads, others, count * sizeof(float)) == 0,
           "a loss scaled by 1024 gives the same gradients of weights");
    free(grads);
    free(others);
    tap_ok(is_near(plain.dx.data, 1024, scaled.dx.data, plain.dx.rows * plain.dx.cols, 0),
           "and 1024 times the gradient of x");
    close_state(&plain);
    close_state(&scaled);
}

/* ---- the loss ---- */

static void check_loss(lap_world_t *world, void *arg)
{
    state_t state;
    double value = 0, mine = 0, all[8], sum = 0;
    if (!open_state(world, arg, SEQ, &state) || !step(&state))
        return;
    const lap_nn_part_t out = lap_nn_output(state.nn, SEQ);
    const double count = (double)(out.all_rows * out.all_cols);
    const float *y = state.y.data, *target = state.target.data, *dy = state.dy.data;
    bool slope = true;
    for (size_t i = 0; i < out.rows * out.cols; i++) {
        const double error = (double)y[i] - (double)target[i];
        mine += error * error;
        slope &= fabs((double)dy[i] - error / count) <= 1e-6 * fabs(error / count);
    }
    tap_ok(slope, "the gradient of the loss is the error over the number of elements");
    tap_success(lap_nn_loss_value(state.nn, &value), "the loss has a value");
    (void)lap_group_allgather(lap_world_group(world), &mine, sizeof(mine), all);
    for (int r = 0; r < lap_world_size(world); r++)
        sum += all[r];
    tap_ok(fabs(value - 0.5 * sum / count) <= 1e-12 * value, "which is half the mean square: %g",
           value);
    close_state(&state);
}

/* ---- fewer tokens ---- */

/* Gathers y of all ranks, in rows. */
static float *whole_y(lap_world_t *world, const state_t *state)
{
    const size_t room = (size_t)SEQ * BATCH * state->y.cols;
    float *mine = calloc(room, sizeof(float)), *all, *whole = calloc(room, sizeof(float));
    const int size = lap_world_size(world);
    all = calloc(room * (size_t)size, sizeof(float));
    memcpy(mine, state->y.data, state->y.rows * state->y.cols * sizeof(float));
    (void)lap_group_allgather(lap_world_group(world), mine, room * sizeof(float), all);
    for (int r = 0; r < size; r++) {
        size_t begin, rows = lap_shard(state->seq * BATCH, size, r, &begin);
        memcpy(whole + begin * state->y.cols, all + (size_t)r * room,
               rows * state->y.cols * sizeof(float));
    }
    free(mine);
    free(all);
    return whole;
}

/* Attention is causal and the rest is by rows: the first tokens do not know of later ones. */
static void check_prefix(lap_world_t *world, void *arg)
{
    state_t whole, part;
    const size_t seq = SEQ - 2;
    if (!open_state(world, arg, SEQ, &whole) || !open_state(world, arg, seq, &part))
        return;
    if (step(&whole) && step(&part)) {
        float *y = whole_y(world, &whole), *first = whole_y(world, &part);
        tap_ok(is_near(first, 1, y, seq * BATCH * whole.y.cols, 1e-5),
               "the results of the first tokens are those of the first tokens");
        free(y);
        free(first);
    }
    close_state(&whole);
    close_state(&part);
}

/* ---- callbacks of gradients ---- */

typedef struct completed {
    size_t order[64], count;
    size_t fail_at; /* SIZE_MAX: never */
} completed_t;

static lap_status_t on_gradient(void *context, size_t index)
{
    completed_t *completed = context;
    if (index == completed->fail_at)
        return LAP_ERR_INTERNAL;
    completed->order[completed->count++] = index;
    return LAP_OK;
}

static void check_told(lap_world_t *world, void *arg)
{
    state_t state;
    completed_t completed = {.fail_at = SIZE_MAX};
    bool falls = true, seen[64] = {false};
    size_t last = SIZE_MAX, different = 0;
    if (!open_state(world, arg, SEQ, &state))
        return;
    lap_nn_on_gradient(state.nn, on_gradient, &completed);
    lap_nn_accumulate(state.nn, 1);
    (void)step(&state);
    tap_ok(completed.count == 0,
           "no gradient is complete after a backward that is not the last: %zu are",
           completed.count);
    lap_nn_accumulate(state.nn, 0);
    (void)step(&state);
    (void)lap_group_barrier(lap_world_group(world)); /* all have, before the first fails */
    for (size_t i = 0; i < completed.count; i++) {
        const lap_nn_param_t *param = lap_nn_param(state.nn, completed.order[i]);
        different += !seen[completed.order[i]];
        seen[completed.order[i]] = true;
        if (param->all_cols == 1)
            continue;
        falls &= completed.order[i] < last;
        last = completed.order[i];
    }
    tap_ok(completed.count == lap_nn_params(state.nn) && different == completed.count,
           "every gradient is reported once");
    tap_ok(falls, "those of matrices in reverse order");
    completed.fail_at = last;
    lap_status_t status = lap_nn_forward(state.nn, SEQ, &state.x, &state.y);
    if (status == LAP_OK)
        status = lap_nn_backward(state.nn, &state.dy, &state.dx);
    tap_ok(status == LAP_ERR_INTERNAL, "the callback may fail, and backward does");
    close_state(&state);
}

/* ---- traces and what there is to see ---- */

static void check_seen(lap_world_t *world, void *arg)
{
    state_t state;
    lap_nn_gemm_t gemm;
    lap_nn_desc_t desc = *(const lap_nn_desc_t *)arg;
    bool named = true, traced = true;
    desc.debug = 1;
    if (!open_state(world, &desc, SEQ, &state))
        return;
    tap_success(lap_nn_trace(state.nn, 1), "passes are traced");
    (void)step(&state);
    tap_ok(lap_nn_gemms(state.nn) == 12, "a transformer layer has twelve GEMMs");
    for (size_t i = 0; i < lap_nn_gemms(state.nn); i++) {
        named &= lap_nn_gemm(state.nn, i, &gemm) == LAP_OK && gemm.method[0] != '\0';
        traced &= lap_trace_gather(gemm.trace, lap_world_group(world)) == LAP_OK;
    }
    tap_ok(named, "each has a method");
    tap_ok(traced, "and a trace");
    tap_failure(lap_nn_gemm(state.nn, 12, &gemm), LAP_ERR_INVALID, "12", NULL);
    close_state(&state);
}

/* ---- the proof ---- */

static void check_proofs(void)
{
    for (int ranks = 1; ranks <= 4; ranks++) {
        for (int kind = LAP_NN_LINEAR; kind <= LAP_NN_TRANSFORMER; kind++) {
            lap_nn_desc_t desc = small((lap_nn_kind_t)kind);
            desc.recompute = LAP_RECOMPUTE_FULL;
            tap_success(lap_nn_check(&desc, ranks, NULL), "%s of %d ranks is safe",
                        lap_nn_kind_name(desc.kind), ranks);
        }
        lap_tp_overlap_t overlap;
        lap_tp_switches_t switches = LAP_TP_SWITCHES_INIT;
        lap_nn_desc_t desc = small(LAP_NN_TRANSFORMER);
        switches.overlap_rs_dgrad = 1;
        (void)lap_tp_overlap_init(ranks, &overlap);
        (void)lap_tp_overlap_switch(&overlap, &switches);
        desc.overlap = &overlap;
        desc.layers = 3;
        tap_success(lap_nn_check(&desc, ranks, NULL), "so is rs_dgrad of %d ranks", ranks);
    }
}

int main(void)
{
    lap_nn_desc_t desc = small(LAP_NN_TRANSFORMER), row = small(LAP_NN_LINEAR);
    lap_nn_desc_t swiglu = small(LAP_NN_TRANSFORMER), column = small(LAP_NN_LAYERNORM_LINEAR);
    swiglu.activation = LAP_SWIGLU;
    swiglu.kv_heads = 6;
    swiglu.layers = 2;
    row.row_parallel = 1;
    lap_nn_desc_t odd = swiglu, odd_row = row, odd_column = column;
    odd.ffn = 601; /* 208, 208 and 185 on 3 ranks */
    odd_row.hidden = 400;
    odd_column.features = 25;
    for (int ranks = 1; ranks <= 3; ranks++) {
        tap_launched_ranks(ranks, NULL, check_weights, &odd);
        tap_launched_ranks(ranks, NULL, check_weights, &odd_row);
        tap_launched_ranks(ranks, NULL, check_loss, &odd_column);
        tap_launched_ranks(ranks, NULL, check_prefix, &odd);
        tap_launched_ranks(ranks, NULL, check_weights, &swiglu);
        tap_launched_ranks(ranks, NULL, check_weights, &row);
        tap_launched_ranks(ranks, NULL, check_accumulation, &desc);
        tap_launched_ranks(ranks, NULL, check_repeats, &desc);
        tap_launched_ranks(ranks, NULL, check_scale, &desc);
        tap_launched_ranks(ranks, NULL, check_loss, &column);
        tap_launched_ranks(ranks, NULL, check_loss, &desc);
        tap_launched_ranks(ranks, NULL, check_prefix, &swiglu);
        tap_launched_ranks(ranks, NULL, check_told, &swiglu);
        tap_launched_ranks(ranks, NULL, check_seen, &desc);
    }
    for (int dtype = LAP_FLOAT32; dtype <= LAP_BFLOAT16; dtype++)
        for (int fp8 = LAP_FP8_NONE; fp8 <= LAP_FP8_DELAYED; fp8++) {
            desc.dtype = (lap_dtype_t)dtype;
            desc.fp8 = (lap_fp8_recipe_t)fp8;
            tap_launched_ranks(2, NULL, check_copies, &desc);
        }
    check_proofs();
    return tap_done();
}
