/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Language models on grids of tensor-parallel ranks and replicas: losses and norms of gradients of
 * 20 steps are those of one rank; overlapped or not, and each time that they run, they are the same
 * bits; and passes are proved. Ranks are threads.
 *
 *     model gpt|llama|ways [cpu|ref|cuda]
 *     model proofs
 */
#include <lap/data_parallel.h>
#include <lap/model.h>

#include <string.h>

#include "nn/curves.h"
#include "nn/memory.h"
#include "nn/sequences.h"
#include "tap.h"

enum { SEQ = 8, BATCH = 2, VOCAB = 67, REPLICAS = 2 };

/* What is trained, and what became of it. */
typedef struct trial {
    const char *device;
    bool llama;
    int tp, dp;
    lap_dtype_t dtype;
    int overlap, rs_dgrad, sequence, tied;
    lap_recompute_t recompute;
    size_t kv_heads;
    size_t vocab; /* 0: VOCAB */
    lap_fp8_recipe_t fp8;
    size_t room; /* tokens that a sequence could have besides */
    int micro;   /* micro-batches, which share the sequences of a replica */
    curves_t curves;
} trial_t;

static lap_nn_desc_t describe(const trial_t *trial, lap_tp_overlap_t *overlap)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    lap_tp_switches_t switches = LAP_TP_SWITCHES_INIT;
    (void)lap_model_preset(trial->llama ? "llama" : "gpt", &desc);
    desc.layers = 2;
    desc.seq = SEQ + trial->room;
    desc.batch = (size_t)(BATCH * REPLICAS / trial->dp / trial->micro);
    desc.hidden = 96;
    desc.heads = 24;
    desc.kv_heads = trial->kv_heads;
    desc.head_dim = 4;
    desc.ffn = trial->llama ? 72 : 192;
    desc.vocab = trial->vocab ? trial->vocab : VOCAB;
    desc.fp8 = trial->fp8;
    desc.max_positions = trial->llama ? 0 : SEQ + 9;
    desc.dtype = trial->dtype;
    desc.tied = trial->tied;
    desc.sequence_parallel = trial->sequence;
    desc.recompute = trial->recompute;
    desc.init_std = 0.1f;
    switches.overlap = trial->overlap;
    switches.overlap_rs_dgrad = trial->rs_dgrad;
    (void)lap_tp_overlap_init(trial->tp, overlap);
    (void)lap_tp_overlap_switch(overlap, &switches);
    desc.overlap = overlap;
    return desc;
}

typedef struct rank {
    trial_t *trial;
    lap_group_t *tp, *dp;
    lap_nn_t *nn;
    lap_optimizer_t *optimizer;
    lap_dp_t *replicas;
} rank_t;

static lap_status_t create(rank_t *rank, const lap_nn_desc_t *desc)
{
    lap_optimizer_desc_t adamw = LAP_OPTIMIZER_DESC_INIT;
    lap_dp_options_t options = LAP_DP_OPTIONS_INIT;
    options.overlap = rank->trial->overlap;
    options.bucket = 5000;
    adamw.lr = 0.001f;
    adamw.epsilon = 1e-6f;  /* gradients that are rounding alone move no weight */
    adamw.clip_norm = 1e6f; /* the norm is computed, and nothing is clipped */
    lap_status_t status = lap_nn_create(rank->tp, desc, &rank->nn);
    if (status == LAP_OK)
        status = lap_optimizer_create(rank->nn, rank->tp, &adamw, &rank->optimizer);
    if (status == LAP_OK && rank->trial->dp > 1)
        status = lap_dp_create(rank->nn, rank->dp, &options, &rank->replicas);
    return status;
}

static lap_status_t step(rank_t *rank, const lap_nn_desc_t *desc, int index, double *loss_p,
                         double *norm_p)
{
    const trial_t *trial = rank->trial;
    const size_t replica = trial->dp > 1 ? (size_t)lap_group_rank(rank->dp) : 0;
    int32_t tokens[BATCH * REPLICAS * SEQ], targets[BATCH * REPLICAS * SEQ];
    lap_status_t status = LAP_OK;
    double loss, all[REPLICAS] = {0};
    *loss_p = 0;
    lap_nn_zero_gradients(rank->nn);
    for (int m = 0; m < trial->micro && status == LAP_OK; m++) {
        const size_t first = (replica * (size_t)trial->micro + (size_t)m) * desc->batch;
        for (size_t b = 0; b < desc->batch; b++)
            fill_tokens(index, first + b, SEQ, VOCAB, tokens + b * SEQ, targets + b * SEQ);
        lap_nn_accumulate(rank->nn, m + 1 < trial->micro);
        status = lap_model_forward(rank->nn, SEQ, tokens, targets);
        memset(tokens, 0xff, sizeof(tokens)); /* the call has taken what it needs */
        if (status == LAP_OK)
            status = lap_model_backward(rank->nn);
        if (status == LAP_OK)
            status = lap_nn_wait(rank->nn);
        if (status == LAP_OK)
            status = lap_nn_loss_value(rank->nn, &loss);
        *loss_p += loss / trial->micro;
    }
    if (status == LAP_OK && rank->replicas) {
        status = lap_dp_wait(rank->replicas);
        if (status == LAP_OK)
            status = lap_group_allgather(rank->dp, loss_p, sizeof(*loss_p), all);
        *loss_p = (all[0] + all[1]) / 2;
    }
    if (status == LAP_OK)
        status =
            lap_optimizer_step(rank->optimizer, 1.0f / (float)(trial->dp * trial->micro), norm_p);
    return status;
}

static void train(lap_world_t *world, void *arg)
{
    rank_t rank = {.trial = arg};
    const int me = lap_world_rank(world), tp = rank.trial->tp;
    lap_tp_overlap_t overlap;
    const lap_nn_desc_t desc = describe(rank.trial, &overlap);
    lap_status_t status = lap_group_split(lap_world_group(world), me / tp, me, &rank.tp);
    if (status == LAP_OK)
        status = lap_group_split(lap_world_group(world), me % tp, me, &rank.dp);
    if (status == LAP_OK)
        status = create(&rank, &desc);
    for (int i = 0; i < STEPS && status == LAP_OK; i++) {
        double loss, norm;
        status = step(&rank, &desc, i, &loss, &norm);
        if (me == 0 && status == LAP_OK) {
            rank.trial->curves.losses[i] = loss;
            rank.trial->curves.norms[i] = norm;
        }
    }
    if (status != LAP_OK)
        tap_ok(false, "rank %d trains: %s", me, lap_last_error());
    lap_dp_destroy(rank.replicas);
    lap_optimizer_destroy(rank.optimizer);
    lap_nn_destroy(rank.nn);
    lap_group_destroy(rank.dp);
    lap_group_destroy(rank.tp);
}

static void run(trial_t *trial)
{
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    options.device = trial->device;
    tap_ranks(trial->tp * trial->dp, &options, train, trial);
}

static trial_t trial_of(const char *device, bool llama, int tp, int dp)
{
    return (trial_t){.device = device,
                     .llama = llama,
                     .tp = tp,
                     .dp = dp,
                     .overlap = 1,
                     .sequence = 1,
                     .tied = !llama,
                     .kv_heads = llama && tp != 8 ? 12 : 24, /* the ranks share them */
                     .micro = 1};
}

static void test_grids(const char *device, bool llama)
{
    static const int grids[][2] = {{1, 2}, {2, 1}, {2, 2}, {3, 1}, {3, 2},
                                   {4, 1}, {4, 2}, {8, 1}, {8, 2}};
    const char *name = llama ? "llama" : "gpt";
    trial_t one = trial_of(device, llama, 1, 1);
    run(&one);
    tap_ok(one.curves.losses[STEPS - 1] < one.curves.losses[0] - 0.5,
           "%s learns: the loss falls from %g to %g", name, one.curves.losses[0],
           one.curves.losses[STEPS - 1]);
    for (size_t g = 0; g < sizeof(grids) / sizeof(grids[0]); g++) {
        trial_t grid = trial_of(device, llama, grids[g][0], grids[g][1]), again, serial;
        if (grid.kv_heads != one.kv_heads) {
            one.kv_heads = grid.kv_heads;
            run(&one);
        }
        again = serial = grid;
        serial.overlap = 0;
        run(&grid);
        run(&again);
        run(&serial);
        tap_ok(difference(&grid.curves, &one.curves) <= 1e-5,
               "%s, tp %d, dp %d: as on one rank, up to %.2g", name, grid.tp, grid.dp,
               difference(&grid.curves, &one.curves));
        tap_ok(same_bits(&grid.curves, &again.curves), "%s, tp %d, dp %d: the same bits once more",
               name, grid.tp, grid.dp);
        tap_ok(same_bits(&grid.curves, &serial.curves),
               "%s, tp %d, dp %d: the same bits without overlap", name, grid.tp, grid.dp);
    }
}

/* One of each of the other ways, on a grid of 2 x 2. A GPU multiplies parts of a matrix in other ways. */
static void test_ways(const char *device)
{
    const double exact = strcmp(device, "cuda") == 0 ? 1e-4 : 1e-5;
    for (int i = 0; i < 22; i++) {
        double bound = exact;
        const bool llama = i % 2;
        trial_t one = trial_of(device, llama, 1, 1), grid = trial_of(device, llama, 2, 2);
        const char *what = "";
        switch (i / 2) {
        case 0:
            what = "without sequence parallelism";
            grid.sequence = 0;
            break;
        case 1:
            what = "full recomputation";
            grid.recompute = LAP_RECOMPUTE_FULL;
            break;
        case 2:
            what = "selective recomputation";
            grid.recompute = LAP_RECOMPUTE_SELECTIVE;
            break;
        case 3:
            what = "reductions during dgrad";
            grid.rs_dgrad = 1;
            break;
        case 5:
            what = "sequences shorter than they could be";
            grid.room = 5;
            break;
        case 6:
            what = "bfloat16";
            grid.dtype = one.dtype = LAP_BFLOAT16;
            bound = 8 * 0x1p-8; /* roundings of each layer, about */
            break;
        case 7:
            what = "float16";
            grid.dtype = one.dtype = LAP_FLOAT16;
            bound = 8 * 0x1p-11;
            break;
        case 8:
            what = "a vocabulary that is padded";
            grid.vocab = one.vocab = 1027;
            break;
        case 9:
            what = "FP8";
            grid.fp8 = one.fp8 = i % 2 ? LAP_FP8_CURRENT : LAP_FP8_DELAYED;
            grid.dtype = one.dtype = LAP_BFLOAT16;
            bound = 8 * 0x1p-4; /* of e4m3, and of gradients in e5m2 */
            break;
        case 4:
            what = "two micro-batches";
            grid.micro = 2;
            break;
        default: /* 10 */
            what = llama ? "tied" : "not tied";
            grid.tied = one.tied = llama;
        }
        run(&one);
        run(&grid);
        tap_ok(difference(&grid.curves, &one.curves) <= bound, "%s, %s: as on one rank, up to %.2g",
               llama ? "llama" : "gpt", what, difference(&grid.curves, &one.curves));
    }
}

static void test_proofs(void)
{
    static const int sizes[] = {1, 2, 3, 4, 8};
    size_t wrong = 0;
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
        for (int i = 0; i < 64; i++) {
            trial_t trial = trial_of("cpu", i % 2, sizes[s], 1);
            lap_tp_overlap_t overlap;
            trial.sequence = i / 2 % 2;
            trial.tied = i / 4 % 2;
            trial.overlap = i / 8 % 2;
            trial.vocab = i / 16 % 2 ? 1027 : 0;
            trial.fp8 = i / 32 % 2 ? LAP_FP8_DELAYED : LAP_FP8_NONE;
            const lap_nn_desc_t desc = describe(&trial, &overlap);
            const lap_status_t status = lap_nn_check(&desc, sizes[s], NULL);
            wrong += tap_wrong(status != LAP_OK, "%d ranks, %d: %s", sizes[s], i, lap_last_error());
        }
    tap_ok(wrong == 0, "passes of models are proved: %zu are not", wrong);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "gpt", *device = argc > 2 ? argv[2] : "cpu";
    if (strcmp(what, "proofs") == 0)
        test_proofs();
    else if (strcmp(what, "ways") == 0)
        test_ways(device);
    else
        test_grids(device, strcmp(what, "llama") == 0);
    return tap_done();
}
