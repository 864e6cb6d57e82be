/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replicas: what lap_dp_wait leaves in the gradients is the sum of what each replica has without
 * it, in the order of ranks, to the last bit; whatever the buckets, and with or without overlap.
 * Ranks are threads, two by two sharing the weights where there are enough.
 */
#include <lap/data_parallel.h>

#include <stdlib.h>
#include <string.h>

#include "core/convert.h"
#include "nn/memory.h"
#include "tap.h"

enum { SEQ = 6, BATCH = 2, HIDDEN = 24, PASSES = 2, MOST_PARAMS = 64 };

typedef struct trial {
    int tp, replicas;
    size_t bucket;
    lap_dtype_t wire;
    int overlap;
} trial_t;

static const trial_t trials[] = {
    {1, 1, 0, LAP_FLOAT32, 1},     {1, 2, 0, LAP_FLOAT32, 1},      {1, 2, 1, LAP_FLOAT32, 1},
    {1, 3, 500, LAP_FLOAT32, 1},   {1, 3, 500, LAP_FLOAT32, 0},    {2, 2, 700, LAP_FLOAT32, 1},
    {2, 2, 0, LAP_BFLOAT16, 1},    {2, 2, 1, LAP_BFLOAT16, 1},     {2, 3, 400, LAP_BFLOAT16, 1},
    {1, 5, 1000, LAP_BFLOAT16, 0}, {4, 2, 100000, LAP_FLOAT32, 1},
};

/* Calls that this thread has begun: linked with --wrap. */
static _Thread_local size_t begun;

lap_status_t __real_lap_op_begin(lap_op_t *op, const lap_op_args_t *args);
lap_status_t __wrap_lap_op_begin(lap_op_t *op, const lap_op_args_t *args);

lap_status_t __wrap_lap_op_begin(lap_op_t *op, const lap_op_args_t *args)
{
    begun++;
    return __real_lap_op_begin(op, args);
}

/* What one rank works with. */
typedef struct rank {
    const trial_t *trial;
    lap_group_t *tp, *dp;
    lap_nn_t *nn;
    size_t count; /* floats of gradients */
    float *x, *y, *dx;
} rank_t;

static lap_status_t make_layers(rank_t *rank)
{
    const size_t bytes = sizeof(float) * SEQ * BATCH * HIDDEN;
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    desc.kind = LAP_NN_TRANSFORMER;
    desc.layers = 2;
    desc.seq = SEQ;
    desc.batch = BATCH;
    desc.hidden = HIDDEN;
    desc.heads = 4;
    const lap_status_t status = lap_nn_create(rank->tp, &desc, &rank->nn);
    if (status != LAP_OK)
        return status;
    rank->x = nn_new(rank->nn, bytes);
    rank->y = nn_new(rank->nn, bytes);
    rank->dx = nn_new(rank->nn, bytes);
    return LAP_OK;
}

static void free_layers(rank_t *rank)
{
    if (!rank->nn)
        return;
    nn_free(rank->nn, rank->x);
    nn_free(rank->nn, rank->y);
    nn_free(rank->nn, rank->dx);
    lap_nn_destroy(rank->nn);
}

/* All gradients, in memory of the test. */
static float *gradients(const rank_t *rank, size_t *count_p)
{
    const float *grads = lap_nn_gradients(rank->nn, count_p);
    return nn_fetch(rank->nn, grads, *count_p);
}

/* A forward and a backward on data of this replica, begun and not waited for. */
static lap_status_t begin_pass(rank_t *rank, int pass)
{
    const lap_nn_part_t part = lap_nn_input(rank->nn, 0);
    const lap_tensor_t x = lap_tensor(rank->x, LAP_FLOAT32, part.rows, part.cols);
    const lap_tensor_t y = lap_tensor(rank->y, LAP_FLOAT32, part.rows, part.cols);
    const lap_tensor_t dx = lap_tensor(rank->dx, LAP_FLOAT32, part.rows, part.cols);
    const uint64_t tensor = (uint64_t)(pass + 1) << 32 | (unsigned)lap_group_rank(rank->dp);
    lap_status_t status = lap_nn_fill(rank->nn, &x, &part, 5, tensor, 1);
    lap_nn_zero_gradients(rank->nn);
    if (status == LAP_OK)
        status = lap_nn_forward(rank->nn, SEQ, &x, &y);
    if (status == LAP_OK)
        status = lap_nn_loss(rank->nn, &y, &x, &y);
    return status == LAP_OK ? lap_nn_backward(rank->nn, &y, &dx) : status;
}

/* Sums over replicas as they should be; every rank makes them from what all have. */
static bool expected_sums(rank_t *rank, float *sums)
{
    enum { PIECE = 256 };
    size_t count;
    const int replicas = rank->trial->replicas;
    float *own = gradients(rank, &count);
    const bool narrow = rank->trial->wire == LAP_BFLOAT16;
    float all[8 * PIECE];
    for (size_t i = 0; i < count; i += PIECE) {
        const size_t n = count - i < PIECE ? count - i : PIECE;
        if (lap_group_allgather(rank->dp, own + i, n * sizeof(float), all) != LAP_OK) {
            free(own);
            return false;
        }
        for (size_t j = 0; j < n; j++) {
            float sum = 0;
            for (int r = 0; r < replicas; r++) {
                const float part = all[(size_t)r * n + j];
                sum += narrow ? tap_rounded(LAP_BFLOAT16, part) : part;
            }
            sums[i + j] = narrow ? tap_rounded(LAP_BFLOAT16, sum) : sum;
        }
    }
    free(own);
    return true;
}

static void compare(rank_t *rank, const float *sums, int pass)
{
    size_t count, wrong = 0, some = 0;
    const trial_t *t = rank->trial;
    float *grads = gradients(rank, &count);
    for (size_t i = 0; i < count; i++) {
        wrong += tap_wrong(grads[i] != sums[i], "gradient %zu of %zu is %.9g, expected %.9g", i,
                           count, (double)grads[i], (double)sums[i]);
        some += grads[i] != 0;
    }
    tap_ok(wrong == 0 && some > count / 2,
           "tp %d, %d replicas, buckets of %zu, %s, overlap %d, pass %d: %zu sums are wrong", t->tp,
           t->replicas, t->bucket, lap_dtype_name(t->wire), t->overlap, pass, wrong);
    free(grads);
}

static lap_status_t count_ready(void *context, size_t index)
{
    (void)index;
    ++*(size_t *)context;
    return LAP_OK;
}

/* First without replicas, to have the parts of the sums; then with them. */
static void run_passes(rank_t *rank)
{
    const trial_t *trial = rank->trial;
    lap_dp_options_t options = LAP_DP_OPTIONS_INIT;
    lap_dp_t *dp = NULL;
    size_t count, total = 0;
    (void)lap_nn_gradients(rank->nn, &count);
    float *sums[PASSES];
    for (int pass = 0; pass < PASSES; pass++) {
        sums[pass] = calloc(count, sizeof(float));
        tap_success(begin_pass(rank, pass), "a pass without replicas");
        tap_success(lap_nn_wait(rank->nn), "and its end");
        tap_ok(sums[pass] && expected_sums(rank, sums[pass]), "what the sums should be");
    }
    options.bucket = trial->bucket;
    options.wire_dtype = trial->wire;
    options.overlap = trial->overlap;
    tap_success(lap_dp_create(rank->nn, rank->dp, &options, &dp), "replicas");
    for (size_t i = 0; i < lap_dp_buckets(dp); i++)
        total += lap_dp_bucket(dp, i);
    tap_ok(total == count && lap_dp_bucket(dp, lap_dp_buckets(dp)) == 0,
           "%zu buckets hold all %zu gradients", lap_dp_buckets(dp), count);
    for (int pass = 0; pass < PASSES && dp; pass++) {
        double sent, waited;
        size_t ready = 0;
        tap_success(lap_dp_measure(dp, pass), "timed or not");
        lap_nn_on_gradient(rank->nn, pass ? count_ready : NULL, &ready);
        tap_success(begin_pass(rank, pass), "a pass");
        const size_t before = begun;
        tap_ok(ready == (pass ? lap_nn_params(rank->nn) : 0),
               "the program is told of %zu gradients, too", ready);
        tap_success(lap_dp_wait(dp), "and the sums");
        tap_ok(begun == before, "no operator is called: all of it is a program (%zu)",
               begun - before);
        lap_dp_cost(dp, &sent, &waited);
        tap_ok((sent > 0) == (pass > 0 && trial->replicas > 1) && waited > 0, "its cost");
        compare(rank, sums[pass], pass);
    }
    lap_dp_destroy(dp);
    for (int pass = 0; pass < PASSES; pass++)
        free(sums[pass]);
}

static void run_rank(lap_world_t *world, void *arg)
{
    rank_t *rank = calloc(1, sizeof(*rank));
    if (!rank)
        return;
    rank->trial = arg;
    const int own = lap_world_rank(world), tp = rank->trial->tp;
    tap_success(lap_group_split(lap_world_group(world), own / tp, own, &rank->tp), "tp");
    tap_success(lap_group_split(lap_world_group(world), own % tp, own, &rank->dp), "dp");
    if (tap_success(make_layers(rank), "layers"))
        run_passes(rank);
    free_layers(rank);
    lap_group_destroy(rank->dp);
    lap_group_destroy(rank->tp);
    free(rank);
}

/* Where the gradient of a parameter begins among all. */
static size_t begin_of(lap_nn_t *nn, size_t param)
{
    size_t count;
    const float *all = lap_nn_gradients(nn, &count);
    return (size_t)((float *)lap_nn_param(nn, param)->grad.data - all);
}

static bool is_norm(lap_nn_t *nn, size_t param)
{
    return strstr(lap_nn_param(nn, param)->name, "norm") != NULL;
}

/* Parameters as they should lie: norms, whose gradients are there last, before the others. */
static void sort_params(lap_nn_t *nn, size_t order[MOST_PARAMS])
{
    size_t count = 0;
    for (int norms = 1; norms >= 0; norms--)
        for (size_t i = 0; i < lap_nn_params(nn); i++)
            if (is_norm(nn, i) == norms)
                order[count++] = i;
}

/* Where parameter `place` of all that lie in this order begins. */
static size_t begin_at(lap_nn_t *nn, const size_t order[MOST_PARAMS], size_t place)
{
    size_t count;
    (void)lap_nn_gradients(nn, &count);
    return place < lap_nn_params(nn) ? begin_of(nn, order[place]) : count;
}

/* How many buckets are not what they should be: closed as soon as they have so many elements, norms by themselves. */
static int count_wrong(lap_nn_t *nn, lap_group_t *group, const size_t order[MOST_PARAMS],
                       size_t bucket)
{
    lap_dp_options_t options = LAP_DP_OPTIONS_INIT;
    lap_dp_t *dp = NULL;
    size_t size = 0, index = 0;
    int wrong = 0;
    options.bucket = bucket;
    if (!tap_success(lap_dp_create(nn, group, &options, &dp), "buckets of %zu", bucket))
        return 1;
    for (size_t i = lap_nn_params(nn); i-- > 0;) {
        size += begin_at(nn, order, i + 1) - begin_at(nn, order, i);
        if (i > 0 && size < bucket && is_norm(nn, order[i - 1]) == is_norm(nn, order[i]))
            continue;
        wrong += lap_dp_bucket(dp, index++) != size;
        size = 0;
    }
    wrong += lap_dp_buckets(dp) != index;
    lap_dp_destroy(dp);
    return wrong;
}

/* Buckets that some parameters fill exactly, and all but, and with one element too few. */
static void run_exact(lap_world_t *world, void *arg)
{
    rank_t rank = {.trial = arg, .tp = lap_world_group(world)};
    tap_success(lap_group_split(rank.tp, lap_world_rank(world), 0, &rank.dp), "a group of one");
    tap_success(make_layers(&rank), "layers");
    size_t order[MOST_PARAMS];
    const size_t nparams = lap_nn_params(rank.nn);
    int wrong = 0;
    sort_params(rank.nn, order);
    const size_t end = begin_at(rank.nn, order, nparams);
    for (size_t i = 1; i <= nparams; i++) {
        const size_t size = end - begin_at(rank.nn, order, nparams - i);
        for (size_t bucket = size - 1; bucket <= size + 1; bucket++)
            wrong += count_wrong(rank.nn, rank.dp, order, bucket);
    }
    tap_ok(wrong == 0, "buckets that %zu parameters fill exactly, or nearly: %d are wrong", nparams,
           wrong);
    free_layers(&rank);
    lap_group_destroy(rank.dp);
}

static void run_mistakes(lap_world_t *world, void *arg)
{
    rank_t rank = {.trial = arg, .tp = lap_world_group(world), .dp = lap_world_group(world)};
    lap_dp_options_t options = LAP_DP_OPTIONS_INIT;
    lap_dp_t *dp = NULL;
    tap_success(make_layers(&rank), "layers");
    options.wire_dtype = LAP_FLOAT16;
    tap_failure(lap_dp_create(rank.nn, rank.dp, &options, &dp), LAP_ERR_UNSUPPORTED,
                "wire_dtype is float16", "float32 or bfloat16", NULL);
    tap_failure(lap_dp_create(NULL, rank.dp, NULL, &dp), LAP_ERR_INVALID, "nn is NULL", NULL);
    tap_failure(lap_dp_create(rank.nn, NULL, NULL, &dp), LAP_ERR_INVALID, "group is NULL", NULL);
    tap_failure(lap_dp_wait(NULL), LAP_ERR_INVALID, "dp is NULL", NULL);
    tap_ok(!dp, "nothing was made");
    lap_dp_destroy(NULL);
    free_layers(&rank);
}

int main(void)
{
    for (size_t i = 0; i < sizeof(trials) / sizeof(trials[0]); i++)
        tap_launched_ranks(trials[i].tp * trials[i].replicas, NULL, run_rank, (void *)&trials[i]);
    tap_launched_ranks(2, NULL, run_exact, (void *)&trials[0]);
    tap_launched_ranks(1, NULL, run_mistakes, (void *)&trials[0]);
    return tap_done();
}
