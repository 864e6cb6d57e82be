/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Language models on pipelines of 2, 3 and 4 ranks, with tensor-parallel ranks, contexts and replicas: losses and
 * norms of gradients of 20 steps are those of one rank, whatever the schedule; overlapped or not, and each
 * time that they run, they are the same bits. Ranks are threads.
 *
 *     stages gpt|llama [cpu|ref|cuda [CASE]]
 */
#include <lap/data_parallel.h>
#include <lap/model.h>
#include <lap/pipeline.h>

#include <stdlib.h>
#include <string.h>

#include "nn/curves.h"
#include "nn/memory.h"
#include "nn/sequences.h"
#include "parallel/grid.h"
#include "tap.h"

enum { SEQ = 6, SEQUENCES = 8, VOCAB = 37 };

/* What is trained, and what became of it. */
typedef struct trial {
    const char *device;
    bool llama;
    lap_grid_t grid;
    const char *schedule; /* NULL: no pipeline */
    size_t micro;         /* micro-batches of a replica */
    size_t virtual_stages;
    const size_t *layers;
    size_t nlayers;
    lap_cp_comm_t comm;
    int overlap, tied;
    lap_recompute_t recompute;
    float dropout, epsilon; /* of AdamW */
    curves_t curves;
} trial_t;

static lap_nn_desc_t describe(const trial_t *trial, lap_tp_overlap_t *overlap)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    lap_tp_switches_t switches = LAP_TP_SWITCHES_INIT;
    (void)lap_model_preset(trial->llama ? "llama" : "gpt", &desc);
    desc.layers = 8;
    desc.seq = SEQ;
    desc.batch = SEQUENCES / trial->micro / (size_t)trial->grid.dp;
    desc.hidden = 24;
    desc.heads = desc.kv_heads = 6;
    desc.head_dim = 4;
    desc.ffn = 32;
    desc.vocab = VOCAB;
    desc.max_positions = trial->llama ? 0 : SEQ;
    desc.tied = trial->tied;
    desc.recompute = trial->recompute;
    desc.attention_dropout = desc.hidden_dropout = trial->dropout;
    desc.init_std = 0.1f;
    desc.cp = (size_t)trial->grid.cp;
    desc.cp_comm = trial->comm;
    desc.cp_overlap = trial->overlap;
    switches.overlap = trial->overlap;
    (void)lap_tp_overlap_init(trial->grid.tp, overlap);
    (void)lap_tp_overlap_switch(overlap, &switches);
    desc.overlap = overlap;
    return desc;
}

typedef struct rank {
    trial_t *trial;
    lap_grid_groups_t groups;
    lap_pp_t *pp;
    lap_nn_t *nn;
    lap_optimizer_t *optimizer;
    lap_dp_t *replicas;
} rank_t;

static lap_status_t create(rank_t *rank, lap_nn_desc_t *desc)
{
    const trial_t *trial = rank->trial;
    desc->cp_group = rank->groups.cp;
    lap_optimizer_desc_t adamw = LAP_OPTIMIZER_DESC_INIT;
    lap_dp_options_t options = LAP_DP_OPTIONS_INIT;
    lap_pp_options_t pipeline = LAP_PP_OPTIONS_INIT;
    pipeline.schedule = trial->schedule;
    pipeline.micro_batches = trial->micro;
    pipeline.virtual_stages = trial->virtual_stages;
    pipeline.layers_per_stage = trial->layers;
    pipeline.nlayers_per_stage = trial->nlayers;
    pipeline.overlap = trial->overlap;
    options.bucket = 2000;
    adamw.lr = 0.004f;
    adamw.epsilon = trial->epsilon; /* gradients that are rounding alone move no weight */
    adamw.clip_norm = 1e6f;         /* the norm is computed, and nothing is clipped */
    lap_status_t status = LAP_OK;
    if (trial->schedule) {
        lap_group_t *alone = rank->groups.pp;
        status = lap_pp_create(rank->groups.tp, alone, desc, &pipeline, &rank->pp);
        rank->nn = lap_pp_layers(rank->pp);
    } else {
        status = lap_nn_create(rank->groups.tp, desc, &rank->nn);
    }
    if (status == LAP_OK)
        status = lap_optimizer_create(rank->nn, rank->groups.model, &adamw, &rank->optimizer);
    if (status == LAP_OK && rank->groups.replicas)
        status = lap_dp_create(rank->nn, rank->groups.replicas, &options, &rank->replicas);
    return status;
}

/* Of one rank without a pipeline: one micro-batch after the other. */
static lap_status_t run_passes(rank_t *rank, size_t count, const int32_t *tokens,
                               const int32_t *targets, double *loss_p)
{
    const size_t micro = rank->trial->micro;
    lap_status_t status = LAP_OK;
    *loss_p = 0;
    lap_nn_zero_gradients(rank->nn);
    for (size_t m = 0; m < micro && status == LAP_OK; m++) {
        double loss = 0;
        lap_nn_accumulate(rank->nn, m + 1 < micro);
        status = lap_model_forward(rank->nn, SEQ, tokens + m * count, targets + m * count);
        if (status == LAP_OK)
            status = lap_model_backward(rank->nn);
        if (status == LAP_OK)
            status = lap_nn_wait(rank->nn);
        if (status == LAP_OK)
            status = lap_nn_loss_value(rank->nn, &loss);
        *loss_p += loss / (double)micro;
    }
    return status;
}

static lap_status_t step(rank_t *rank, const lap_nn_desc_t *desc, int index, double *loss_p,
                         double *norm_p)
{
    const trial_t *trial = rank->trial;
    const size_t replicas = (size_t)trial->grid.dp, own = SEQUENCES / replicas;
    const size_t first = (size_t)rank->groups.at.dp * own;
    int32_t tokens[SEQUENCES * SEQ], targets[SEQUENCES * SEQ];
    double all[2] = {0};
    for (size_t b = 0; b < own; b++)
        fill_tokens(index, first + b, SEQ, VOCAB, tokens + b * SEQ, targets + b * SEQ);
    lap_status_t status = lap_model_samples(rank->nn, (uint64_t)index * SEQUENCES + first);
    if (status == LAP_OK && rank->pp) {
        status = lap_pp_step(rank->pp, SEQ, tokens, targets);
        memset(tokens, 0xff, sizeof(tokens)); /* the call has taken what it needs */
        if (status == LAP_OK)
            status = lap_pp_wait(rank->pp);
        if (status == LAP_OK)
            status = lap_pp_loss(rank->pp, loss_p);
    } else if (status == LAP_OK) {
        status = run_passes(rank, desc->batch * SEQ, tokens, targets, loss_p);
    }
    if (status == LAP_OK && rank->replicas)
        status = lap_dp_wait(rank->replicas);
    if (status == LAP_OK && replicas > 1) {
        status = lap_group_allgather(rank->groups.dp, loss_p, sizeof(*loss_p), all);
        *loss_p = (all[0] + all[1]) / 2;
    }
    if (status == LAP_OK)
        status =
            lap_optimizer_step(rank->optimizer, 1.0f / (float)(replicas * trial->micro), norm_p);
    return status == LAP_OK ? lap_nn_wait(rank->nn) : status;
}

static void train(lap_world_t *world, void *arg)
{
    rank_t rank = {.trial = arg};
    const int me = lap_world_rank(world);
    lap_tp_overlap_t overlap;
    lap_nn_desc_t desc = describe(rank.trial, &overlap);
    lap_status_t status =
        lap_grid_groups_init(&rank.groups, &rank.trial->grid, lap_world_group(world));
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
    if (rank.pp)
        lap_pp_destroy(rank.pp);
    else
        lap_nn_destroy(rank.nn);
    lap_grid_groups_clear(&rank.groups);
}

static void run(trial_t *trial)
{
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    options.device = trial->device;
    tap_ranks((int)lap_grid_ranks(&trial->grid, LAP_SLICE_WORLD), &options, train, trial);
}

static const struct {
    lap_grid_t grid;
    const char *schedule;
    size_t micro, virtual_stages;
    lap_cp_comm_t comm;
} cases[] = {
    {{1, 1, 2, 1}, "1f1b", 4, 0, LAP_CP_P2P},
    {{1, 1, 3, 1}, "1f1b", 4, 0, LAP_CP_P2P},
    {{1, 1, 4, 1}, "1f1b", 8, 0, LAP_CP_P2P},
    {{2, 1, 2, 1}, "1f1b", 4, 0, LAP_CP_P2P},
    {{1, 1, 2, 2}, "1f1b", 4, 0, LAP_CP_P2P},
    {{1, 1, 2, 1}, "interleaved", 4, 2, LAP_CP_P2P},
    {{1, 1, 4, 1}, "interleaved", 8, 2, LAP_CP_P2P},
    {{2, 1, 2, 1}, "interleaved", 4, 4, LAP_CP_P2P},
    {{1, 1, 2, 1}, "zb-h1", 4, 0, LAP_CP_P2P},
    {{1, 1, 3, 1}, "zb-h1", 8, 0, LAP_CP_P2P},
    {{2, 1, 2, 1}, "zb-h1", 4, 0, LAP_CP_P2P},
    {{1, 1, 2, 1}, "zb-v", 4, 0, LAP_CP_P2P},
    {{1, 1, 4, 1}, "zb-v", 8, 0, LAP_CP_P2P},
    {{2, 1, 2, 2}, "zb-v", 4, 0, LAP_CP_P2P},
    {{1, 2, 2, 1}, "1f1b", 4, 0, LAP_CP_P2P},
    {{2, 2, 2, 2}, "zb-h1", 4, 0, LAP_CP_P2P},
    {{1, 2, 2, 1}, "interleaved", 4, 2, LAP_CP_A2A},
    {{1, 2, 2, 1}, "zb-v", 4, 0, LAP_CP_ALL_GATHER},
    {{1, 1, 3, 1}, "1f1b-eager", 8, 0, LAP_CP_P2P},
};

static void test_grids(const char *device, bool llama, size_t only)
{
    const char *name = llama ? "llama" : "gpt";
    /* A GPU multiplies parts of a matrix in other ways. */
    const double bound = strcmp(device, "cuda") == 0 ? 1e-4 : 1e-5;
    trial_t one = {.device = device,
                   .llama = llama,
                   .grid = LAP_GRID_INIT,
                   .micro = 4,
                   .overlap = 1,
                   .tied = !llama,
                   .epsilon = 1e-6f};
    trial_t coarse = one; /* contexts round more */
    coarse.epsilon = 1e-5f;
    run(&one);
    run(&coarse);
    tap_ok(one.curves.losses[STEPS - 1] < one.curves.losses[0] - 0.3,
           "%s learns: the loss falls from %g to %g", name, one.curves.losses[0],
           one.curves.losses[STEPS - 1]);
    for (size_t i = llama; i < sizeof(cases) / sizeof(cases[0]); i += llama ? 3 : 1) {
        const trial_t *alone = cases[i].grid.cp > 1 ? &coarse : &one;
        trial_t grid = *alone, serial;
        if (only < sizeof(cases) / sizeof(cases[0]) && i != only)
            continue;
        char text[LAP_GRID_TEXT];
        grid.grid = cases[i].grid;
        grid.schedule = cases[i].schedule;
        grid.micro = cases[i].micro;
        grid.virtual_stages = cases[i].virtual_stages;
        grid.comm = cases[i].comm;
        serial = grid;
        serial.overlap = 0;
        lap_grid_text(&grid.grid, text);
        run(&grid);
        tap_ok(difference(&grid.curves, &alone->curves) <= bound,
               "%s, %s, %s: as on one rank, up to %.2g", name, grid.schedule, text,
               difference(&grid.curves, &alone->curves));
        run(&serial);
        tap_ok(same_bits(&grid.curves, &serial.curves), "%s, %s, %s: the same bits without overlap",
               name, grid.schedule, text);
        if (i % 4 == 0) {
            run(&serial);
            tap_ok(same_bits(&grid.curves, &serial.curves), "%s, %s, %s: and once more", name,
                   grid.schedule, text);
        }
    }
}

/* Of one of each kind: what is listed, or cut, in another way. */
static void test_ways(const char *device)
{
    static const size_t uneven[] = {3, 1, 4};
    for (int i = 0; i < 4; i++) {
        trial_t one = {.device = device,
                       .grid = LAP_GRID_INIT,
                       .micro = 4,
                       .overlap = 1,
                       .tied = i % 2,
                       .epsilon = 1e-6f};
        const char *what = "";
        trial_t grid = one;
        grid.grid = (lap_grid_t){1, 1, 3, 1};
        grid.schedule = i % 2 ? "zb-h1" : "1f1b";
        switch (i) {
        case 0:
            what = "dropout, not tied";
            one.dropout = grid.dropout = 0.1f;
            grid.grid = (lap_grid_t){2, 1, 2, 2};
            break;
        case 1:
            what = "dropout, recomputed, backward in two parts";
            one.dropout = grid.dropout = 0.1f;
            grid.recompute = LAP_RECOMPUTE_FULL;
            break;
        case 2:
            what = "layers as given, selective recomputation";
            grid.layers = uneven;
            grid.nlayers = 3;
            grid.recompute = LAP_RECOMPUTE_SELECTIVE;
            break;
        default:
            what = "layers as given, backward in two parts";
            grid.layers = uneven;
            grid.nlayers = 3;
        }
        run(&one);
        run(&grid);
        tap_ok(difference(&grid.curves, &one.curves) <= 1e-5, "%s: as on one rank, up to %.2g",
               what, difference(&grid.curves, &one.curves));
    }
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "gpt", *device = argc > 2 ? argv[2] : "cpu";
    test_grids(device, strcmp(what, "llama") == 0,
               argc > 3 ? strtoul(argv[3], NULL, 10) : SIZE_MAX);
    if (argc <= 3 && strcmp(device, "cuda") != 0)
        test_ways(device);
    return tap_done();
}
