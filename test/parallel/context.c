/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Context parallel: losses and norms of gradients of 20 steps are those of one rank, for all
 * ways in which keys and values travel, with tensor parallelism and replicas, for lengths of
 * sequences that ranks share unevenly and that change from step to step, with dropout too; the
 * same bits with overlap and without, and once more. Each pass is proved before it runs. Ranks
 * are threads.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lap/data_parallel.h>
#include <lap/model.h>
#include <lap/optimizer.h>

#include "nn/program.h"
#include "parallel/grid.h"
#include "tap.h"

enum { SEQ = 13, BATCH = 2, VOCAB = 40, SEQUENCES = 4 };

/* ---- losses and norms of the steps of a training ---- */

enum { STEPS = 20 };

typedef struct curves {
    double losses[STEPS], norms[STEPS];
} curves_t;

/* The largest difference of two series, as a part of them; infinite where one is not a number. */
static double series_difference(const double one[STEPS], const double other[STEPS])
{
    double most = 0;
    for (int i = 0; i < STEPS; i++) {
        const double part = fabs(one[i] / other[i] - 1);
        if (!(part <= most))
            most = isnan(part) ? INFINITY : part;
    }
    return most;
}

static double difference(const curves_t *one, const curves_t *other)
{
    return fmax(series_difference(one->losses, other->losses),
                series_difference(one->norms, other->norms));
}

static bool same_bits(const curves_t *one, const curves_t *other)
{
    return memcmp(one, other, sizeof(*one)) == 0;
}

/* ---- trainings ---- */

typedef struct trial {
    lap_grid_t grid;
    lap_cp_comm_t comm;
    bool learned; /* positions; norms, activation and biases are those of GPT then, else of Llama */
    lap_recompute_t recompute;
    size_t a2a;
    int overlap;
    const char *name;
    curves_t curves;
    float dropout;
} trial_t;

static const char *const ways[] = {"p2p", "all_gather", "a2a", "a2a+p2p"};

static lap_nn_desc_t describe(const trial_t *trial)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    desc.kind = LAP_NN_MODEL;
    desc.layers = 2;
    desc.seq = SEQ;
    desc.batch = BATCH;
    desc.hidden = 32;
    desc.heads = 8;
    desc.kv_heads = trial->learned ? 8 : 4;
    desc.ffn = 48;
    desc.vocab = VOCAB;
    desc.positions = trial->learned ? LAP_POSITIONS_LEARNED : LAP_POSITIONS_ROPE;
    desc.max_positions = trial->learned ? SEQ : 0;
    desc.tied = trial->learned;
    desc.bias = trial->learned;
    desc.norm = trial->learned ? LAP_LAYERNORM : LAP_RMSNORM;
    desc.activation = trial->learned ? LAP_GELU : LAP_SWIGLU;
    desc.recompute = trial->recompute;
    desc.cp = (size_t)trial->grid.cp;
    desc.cp_comm = trial->comm;
    desc.cp_a2a = trial->a2a;
    desc.cp_overlap = trial->overlap;
    desc.attention_dropout = desc.hidden_dropout = trial->dropout;
    desc.debug = 1;
    return desc;
}

/* Token `s` of a sequence of a step. */
static int32_t token_of(int step, int sequence, size_t s)
{
    return (int32_t)((s * (size_t)(3 + sequence) + (size_t)step * 7 + s * s) % VOCAB);
}

/* What a rank trains. */
typedef struct rank {
    trial_t *trial;
    lap_grid_groups_t groups;
    lap_nn_t *nn;
    lap_optimizer_t *optimizer;
    lap_dp_t *dp;
} rank_t;

static lap_status_t make(rank_t *rank)
{
    lap_nn_desc_t desc = describe(rank->trial);
    lap_optimizer_desc_t optimizer = LAP_OPTIMIZER_DESC_INIT;
    lap_dp_options_t options = LAP_DP_OPTIONS_INIT;
    lap_status_t status;
    desc.cp_group = rank->groups.cp;
    optimizer.lr = 0.003f;
    optimizer.clip_norm = 1;
    options.bucket = 1000;
    options.overlap = rank->trial->overlap;
    if ((status = lap_nn_create(rank->groups.tp, &desc, &rank->nn)) != LAP_OK)
        return status;
    status = lap_optimizer_create(rank->nn, rank->groups.model, &optimizer, &rank->optimizer);
    if (status == LAP_OK && rank->groups.replicas)
        status = lap_dp_create(rank->nn, rank->groups.replicas, &options, &rank->dp);
    return status;
}

/* A sequence at a time: the mean of the losses of all. */
static lap_status_t step(rank_t *rank, int number, double *loss_p, double *norm_p)
{
    const size_t seq = SEQ - (size_t)number % 4;
    const int own = SEQUENCES / BATCH / rank->groups.grid.dp; /* micro-batches */
    int32_t tokens[BATCH * SEQ], targets[BATCH * SEQ];
    double sum = 0, all[16];
    lap_status_t status = LAP_OK;
    lap_nn_zero_gradients(rank->nn);
    for (int micro = 0; micro < own && status == LAP_OK; micro++) {
        const int first = (rank->groups.at.dp * own + micro) * BATCH;
        double loss;
        for (size_t i = 0; i < BATCH * seq; i++) {
            tokens[i] = token_of(number, first + (int)(i / seq), i % seq);
            targets[i] = token_of(number, first + (int)(i / seq), i % seq + 1);
        }
        targets[seq / 2] = -1; /* has no loss */
        lap_nn_accumulate(rank->nn, micro + 1 < own);
        lap_model_samples(rank->nn, (uint64_t)number * SEQUENCES + (uint64_t)first);
        status = lap_model_forward(rank->nn, seq, tokens, targets);
        if (status == LAP_OK)
            status = lap_model_backward(rank->nn);
        if (status == LAP_OK)
            status = lap_nn_wait(rank->nn);
        if (status == LAP_OK)
            status = lap_nn_loss_value(rank->nn, &loss);
        sum += status == LAP_OK ? loss / own : 0;
    }
    if (status == LAP_OK && rank->dp)
        status = lap_dp_wait(rank->dp);
    if (status == LAP_OK)
        status = lap_optimizer_step(rank->optimizer, (float)BATCH / (float)SEQUENCES, norm_p);
    if (status == LAP_OK)
        status = lap_group_allgather(rank->groups.world, &sum, sizeof(sum), all);
    *loss_p = 0;
    for (int r = 0; r < lap_group_size(rank->groups.world) && status == LAP_OK; r++)
        *loss_p += all[r] / lap_group_size(rank->groups.world);
    return status;
}

static void run_rank(lap_world_t *world, void *arg)
{
    rank_t rank = {.trial = arg};
    lap_status_t status =
        lap_grid_groups_init(&rank.groups, &rank.trial->grid, lap_world_group(world));
    if (status == LAP_OK)
        status = make(&rank);
    for (int i = 0; i < STEPS && status == LAP_OK; i++) {
        double loss = 0, norm = 0;
        status = step(&rank, i, &loss, &norm);
        if (lap_world_rank(world) == 0) {
            rank.trial->curves.losses[i] = loss;
            rank.trial->curves.norms[i] = norm;
        }
    }
    if (status != LAP_OK)
        tap_success(status, "%s on rank %d", rank.trial->name, lap_world_rank(world));
    lap_dp_destroy(rank.dp);
    lap_optimizer_destroy(rank.optimizer);
    lap_nn_destroy(rank.nn);
    lap_grid_groups_clear(&rank.groups);
}

static trial_t run(lap_grid_t grid, lap_cp_comm_t comm, bool learned, lap_recompute_t recompute,
                   size_t a2a, int overlap)
{
    static char name[160];
    snprintf(name, sizeof(name), "%s, tp %d, cp %d, dp %d, %s%s%s", learned ? "GPT" : "Llama",
             grid.tp, grid.cp, grid.dp, ways[comm],
             recompute == LAP_RECOMPUTE_NONE ? "" : ", recomputed", overlap ? "" : ", no overlap");
    trial_t trial = {grid, comm, learned, recompute, a2a, overlap, name, {{0}, {0}}, 0};
    tap_launched_ranks(grid.tp * grid.cp * grid.dp, NULL, run_rank, &trial);
    return trial;
}

static void compare(const trial_t *trial, const trial_t *alone)
{
    const double most = difference(&trial->curves, &alone->curves);
    tap_ok(most <= 1e-5, "%s: losses and norms of %d steps are those of one rank, up to %.2g",
           trial->name, STEPS, most);
}

static void compare_bits(const trial_t *trial, const trial_t *other, const char *what)
{
    tap_ok(same_bits(&trial->curves, &other->curves), "%s: the same bits %s", trial->name, what);
}

static void try_grids(bool learned)
{
    const lap_grid_t one = LAP_GRID_INIT;
    static const lap_grid_t grids[] = {{1, 2, 1, 2}, {2, 3, 1, 1}};
    const size_t ngrids = sizeof(grids) / sizeof(grids[0]) - learned;
    const trial_t alone = run(one, LAP_CP_P2P, learned, LAP_RECOMPUTE_NONE, 0, 1);
    tap_ok(alone.curves.losses[STEPS - 1] < alone.curves.losses[0],
           "alone: the loss falls from %g to %g", alone.curves.losses[0],
           alone.curves.losses[STEPS - 1]);
    for (size_t g = 0; g < ngrids; g++)
        for (lap_cp_comm_t comm = LAP_CP_P2P; comm <= LAP_CP_ALL_GATHER; comm++) {
            const trial_t trial = run(grids[g], comm, learned, LAP_RECOMPUTE_NONE, 0, 1);
            compare(&trial, &alone);
        }
    const lap_grid_t three = {1, 3, 1, 1};
    for (lap_cp_comm_t comm = LAP_CP_P2P; !learned && comm <= LAP_CP_ALL_GATHER; comm++) {
        const trial_t trial = run(three, comm, learned, LAP_RECOMPUTE_NONE, 0, 1);
        const trial_t again = run(three, comm, learned, LAP_RECOMPUTE_NONE, 0, 1);
        compare_bits(&again, &trial, "once more");
        const trial_t serial = run(three, comm, learned, LAP_RECOMPUTE_NONE, 0, 0);
        compare_bits(&serial, &trial, "as with it");
        for (lap_recompute_t what = LAP_RECOMPUTE_SELECTIVE; what <= LAP_RECOMPUTE_FULL; what++) {
            const trial_t recomputed = run(three, comm, learned, what, 0, 1);
            compare(&recomputed, &alone);
        }
    }
}

/* Heads against tokens, of two and four ranks, and both ways at once. */
static void try_heads(void)
{
    static const struct {
        lap_grid_t grid;
        lap_cp_comm_t comm;
        size_t a2a;
    } all[] = {
        {{1, 2, 1, 1}, LAP_CP_A2A, 0},     {{2, 2, 1, 1}, LAP_CP_A2A, 0},
        {{1, 4, 1, 1}, LAP_CP_A2A, 0},     {{1, 4, 1, 1}, LAP_CP_A2A_P2P, 2},
        {{1, 6, 1, 1}, LAP_CP_A2A_P2P, 0}, {{1, 4, 1, 2}, LAP_CP_A2A_P2P, 0},
        {{2, 2, 1, 1}, LAP_CP_A2A_P2P, 0}, /* one group */
    };
    const lap_grid_t one = LAP_GRID_INIT;
    const trial_t alone = run(one, LAP_CP_P2P, false, LAP_RECOMPUTE_NONE, 0, 1);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        const trial_t trial =
            run(all[i].grid, all[i].comm, false, LAP_RECOMPUTE_NONE, all[i].a2a, 1);
        compare(&trial, &alone);
        if (i != 2 && i != 3)
            continue;
        const trial_t serial =
            run(all[i].grid, all[i].comm, false, LAP_RECOMPUTE_NONE, all[i].a2a, 0);
        compare_bits(&serial, &trial, "as with it");
        const trial_t again =
            run(all[i].grid, all[i].comm, false, LAP_RECOMPUTE_SELECTIVE, all[i].a2a, 1);
        compare(&again, &alone);
    }
}

/* Masks are those of one rank: they go by heads and positions in whole sequences. */
static void try_dropout(void)
{
    trial_t alone = {
        .grid = LAP_GRID_INIT, .learned = true, .overlap = 1, .dropout = 0.2f, .name = "alone"};
    trial_t trials[] = {
        {.grid = {2, 2, 1, 1}, .comm = LAP_CP_P2P, .name = "dropout, tp 2, cp 2, p2p"},
        {.grid = {1, 3, 1, 1}, .comm = LAP_CP_ALL_GATHER, .name = "dropout, cp 3, all_gather"},
        {.grid = {2, 2, 1, 1}, .comm = LAP_CP_A2A, .name = "dropout, tp 2, cp 2, a2a"},
        {.grid = {1, 4, 1, 1}, .comm = LAP_CP_A2A_P2P, .name = "dropout, cp 4, a2a+p2p"},
        {.grid = {1, 3, 1, 2},
         .recompute = LAP_RECOMPUTE_FULL,
         .name = "dropout, cp 3, dp 2, p2p, recomputed"},
    };
    const trial_t whole = run(alone.grid, LAP_CP_P2P, true, LAP_RECOMPUTE_NONE, 0, 1);
    tap_launched_ranks(1, NULL, run_rank, &alone);
    tap_ok(series_difference(alone.curves.losses, whole.curves.losses) > 1e-3,
           "dropout changes losses");
    for (size_t i = 0; i < sizeof(trials) / sizeof(trials[0]); i++) {
        trial_t *trial = &trials[i];
        trial->learned = true;
        trial->overlap = 1;
        trial->dropout = alone.dropout;
        tap_launched_ranks(trial->grid.tp * trial->grid.cp * trial->grid.dp, NULL, run_rank, trial);
        compare(trial, &alone);
    }
}

/* Whether a fragment waits, by its links, for one of this kind. */
static bool waits_for(const lap_linked_t *linked, const lap_fragment_t *fragment,
                      lap_op_kind_t kind)
{
    for (uint32_t i = 0; i < fragment->nlinks; i++) {
        const lap_schedule_t *other = &linked->fragments[fragment->links[i].fragment].schedule;
        if (other->nsteps > 1 && other->kind == kind)
            return true;
    }
    return false;
}

/*
 * Attention to the own keys waits for nothing that travels, and each other block for its own
 * keys: so those of the next rank travel meanwhile.
 */
static void try_links(void)
{
    const lap_target_t *target;
    trial_t trial = {.grid = {1, 3, 1, 1}, .overlap = 1};
    const lap_nn_desc_t desc = describe(&trial);
    lap_nn_plan_t plan;
    lap_nn_programs_t programs = {.size = 0};
    size_t own = 0, held = 0, others = 0, waiting = 0;
    tap_success(lap_target_find("cpu", &target), "a target");
    tap_success(lap_nn_plan_init(&desc, 1, &plan), "a plan");
    const lap_nn_linking_t linking = {.target = target};
    tap_success(lap_nn_programs_init(&programs, &plan, &linking), "the programs of 3 ranks");
    for (int rank = 0; rank < programs.size; rank++) {
        const lap_linked_t *linked = &programs.programs[rank];
        for (uint32_t f = 0; f < linked->nfragments; f++) {
            const lap_fragment_t *fragment = &linked->fragments[f];
            const lap_nn_entry_t *entry = fragment->origin < programs.lists[rank].nentries
                                              ? &programs.lists[rank].entries[fragment->origin]
                                              : NULL;
            if (!entry ||
                (entry->work != LAP_NN_ATTEND_BLOCK && entry->work != LAP_NN_ATTEND_BLOCK_BACKWARD))
                continue;
            const bool waits = waits_for(linked, fragment, LAP_EXTERNAL_AG);
            own += entry->index == (uint32_t)rank;
            held += entry->index == (uint32_t)rank && waits;
            others += entry->index != (uint32_t)rank;
            waiting += entry->index != (uint32_t)rank && waits;
        }
    }
    lap_nn_programs_clear(&programs);
    tap_ok(own == 12 && held == 0, "of %zu blocks of own keys %zu wait for what travels", own,
           held);
    tap_ok(others == 24 && waiting == 24, "of %zu blocks of other keys %zu do", others, waiting);
}

/* Descriptions that cannot be. */
static void try_mistakes(void)
{
    trial_t trial = {.grid = {1, 2, 1, 1}, .overlap = 1};
    lap_nn_desc_t desc = describe(&trial);
    desc.cp = SEQ + 1;
    tap_failure(lap_nn_validate(&desc, 1), LAP_ERR_INVALID, "seq is 13", "each of the 14 ranks",
                NULL);
    desc.cp = 3;
    desc.cp_comm = LAP_CP_A2A;
    tap_failure(lap_nn_validate(&desc, 1), LAP_ERR_INVALID, "cp_comm is a2a", "8 heads",
                "multiple of 3", NULL);
    desc.cp = 8;
    tap_failure(lap_nn_validate(&desc, 1), LAP_ERR_INVALID, "4 kv_heads", "multiple of 8", NULL);
    desc.cp = 3;
    desc.cp_comm = LAP_CP_A2A_P2P;
    tap_failure(lap_nn_validate(&desc, 1), LAP_ERR_INVALID, "a2a+p2p with cp 3", "divides both",
                NULL);
    desc.cp = 4;
    desc.cp_a2a = 3;
    tap_failure(lap_nn_validate(&desc, 1), LAP_ERR_INVALID, "cp_a2a is 3", "divisor of cp", NULL);
    desc = describe(&trial);
    desc.kind = LAP_NN_TRANSFORMER;
    desc.vocab = 0;
    tap_failure(lap_nn_validate(&desc, 1), LAP_ERR_INVALID, "cp is 2 with transformer", NULL);
}

int main(void)
{
    try_grids(false);
    try_grids(true);
    try_heads();
    try_dropout();
    try_links();
    try_mistakes();
    return tap_done();
}
