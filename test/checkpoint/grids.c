/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints between grids of ranks: what one has written, every other reads, to the last bit of weights and
 * moments, and goes on as one rank would have that never stopped. Gradients are given: numbers of their
 * place in the whole.
 */
#include <lap/checkpoint.h>
#include <lap/model.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/folder.h"
#include "nn/memory.h"
#include "tap.h"
#include "util/random.h"

enum { PARAMS = 32, ARRAYS = 3 };

/* What one rank has after all steps: by array and parameter, the whole. */
static float *truth[ARRAYS][PARAMS];

typedef struct scene {
    int tp, replicas;
    lap_optimizer_kind_t kind;
    lap_dtype_t dtype;
    const char *load, *save; /* NULL: not */
    uint64_t until;          /* steps */
    bool is_truth;
    const char *model; /* NULL: transformer layers */
} scene_t;

typedef struct rank {
    lap_group_t *tp, *dp;
    lap_nn_t *nn;
    lap_dp_t *replicas;
    lap_optimizer_t *optimizer;
    lap_checkpoint_t *checkpoint;
} rank_t;

static void make_rank(lap_world_t *world, const scene_t *scene, rank_t *it)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    lap_optimizer_desc_t optimizer = LAP_OPTIMIZER_DESC_INIT;
    lap_dp_options_t options = LAP_DP_OPTIONS_INIT;
    const int rank = lap_world_rank(world);
    lap_group_t *group = lap_world_group(world);
    if (scene->model)
        tap_success(lap_model_preset(scene->model, &desc), "%s", scene->model);
    desc.layers = 2;
    desc.seq = 4;
    desc.hidden = 24;
    desc.heads = 24;
    desc.kv_heads = scene->model && strcmp(scene->model, "gpt") == 0 ? 24 : 12;
    desc.head_dim = 2;
    desc.ffn = 36;
    if (scene->model) {
        desc.vocab = 53;
        desc.max_positions = desc.positions == LAP_POSITIONS_LEARNED ? 7 : 0;
    } else {
        desc.activation = LAP_SWIGLU;
    }
    desc.dtype = scene->dtype;
    optimizer.kind = scene->kind;
    optimizer.momentum = scene->kind == LAP_SGD ? 0.9f : 0;
    bool made = lap_group_split(group, rank / scene->tp, rank, &it->tp) == LAP_OK &&
                lap_nn_create(it->tp, &desc, &it->nn) == LAP_OK;
    if (made && scene->replicas > 1)
        made = lap_group_split(group, rank % scene->tp, rank, &it->dp) == LAP_OK &&
               lap_dp_create(it->nn, it->dp, &options, &it->replicas) == LAP_OK;
    made = made && lap_optimizer_create(it->nn, it->tp, &optimizer, &it->optimizer) == LAP_OK &&
           lap_checkpoint_create(group, it->nn, it->optimizer, &it->checkpoint) == LAP_OK;
    if (!made) {
        printf("Bail out! no layers: %s\n", lap_last_error());
        exit(1);
    }
}

static void end_rank(rank_t *it)
{
    lap_checkpoint_destroy(it->checkpoint);
    lap_optimizer_destroy(it->optimizer);
    lap_dp_destroy(it->replicas);
    lap_nn_destroy(it->nn);
    lap_group_destroy(it->dp);
    lap_group_destroy(it->tp);
}

static uint64_t place_of(const lap_nn_param_t *param, size_t i)
{
    size_t row = i / param->cols, part = 0;
    for (; row >= param->part_rows[part]; part++)
        row -= param->part_rows[part];
    return (param->global_row[part] + row) * param->all_cols + param->global_col + i % param->cols;
}

static bool step(rank_t *it, uint64_t number)
{
    size_t count;
    float *all = lap_nn_gradients(it->nn, &count), *copy = calloc(count, sizeof(float));
    for (size_t p = 0; copy && p < lap_nn_params(it->nn); p++) {
        const lap_nn_param_t *param = lap_nn_param(it->nn, p);
        float *own = copy + ((float *)param->grad.data - all);
        for (size_t i = 0; i < param->rows * param->cols; i++)
            own[i] = lap_random_normal(7, (number << 32) + p, place_of(param, i)) * 0.01f;
    }
    const bool made = copy && nn_copy(it->nn, all, copy, count * sizeof(float)) &&
                      lap_optimizer_step(it->optimizer, 1, NULL) == LAP_OK &&
                      lap_nn_wait(it->nn) == LAP_OK;
    free(copy);
    return made;
}

/* Writes the truth, or counts what is not it. */
static size_t compare(rank_t *it, const scene_t *scene)
{
    const size_t narrays = scene->kind == LAP_SGD ? 2 : 3;
    size_t count, wrong = 0;
    float *masters = lap_nn_masters(it->nn, &count);
    for (size_t a = 0; a < narrays; a++) {
        const float *from = a ? lap_optimizer_moments(it->optimizer, a - 1, &count) : masters;
        float *all = nn_fetch(it->nn, from, count);
        for (size_t p = 0; p < lap_nn_params(it->nn); p++) {
            const lap_nn_param_t *param = lap_nn_param(it->nn, p);
            const float *own = all + ((float *)param->master.data - masters);
            if (scene->is_truth)
                truth[a][p] = calloc(param->all_rows * param->all_cols, sizeof(float));
            for (size_t i = 0; i < param->rows * param->cols; i++) {
                float *place = &truth[a][p][place_of(param, i)];
                if (scene->is_truth)
                    *place = own[i];
                wrong += tap_wrong(memcmp(place, &own[i], sizeof(float)) != 0,
                                   "array %zu of %s, element %zu: %.9g, expected %.9g", a,
                                   param->name, i, (double)own[i], (double)*place);
            }
        }
        free(all);
    }
    return wrong;
}

static void play(lap_world_t *world, void *arg)
{
    const scene_t *scene = arg;
    lap_checkpoint_state_t state = LAP_CHECKPOINT_STATE_INIT;
    rank_t it = {.tp = NULL};
    make_rank(world, scene, &it);
    if (scene->load)
        tap_success(lap_checkpoint_load(it.checkpoint, scene->load, &state), "tp %d dp %d: loaded",
                    scene->tp, scene->replicas);
    tap_ok(!scene->load || (state.step == 2 && state.samples == 20), "where training was");
    bool stepped = true;
    for (uint64_t i = state.step; i < scene->until; i++)
        stepped = step(&it, i) && stepped;
    tap_ok(stepped, "steps to %d", (int)scene->until);
    if (scene->save) {
        state.step = scene->until;
        state.samples = 10 * scene->until;
        tap_success(lap_checkpoint_save(it.checkpoint, scene->save, &state), "a save is begun");
        /* What happens to weights now does not matter to it. */
        tap_ok(step(&it, 99), "training goes on");
        lap_status_t status;
        while ((status = lap_checkpoint_poll(it.checkpoint)) == LAP_IN_PROGRESS)
            usleep(1000);
        tap_success(status, "... and it is saved");
    } else {
        tap_ok(compare(&it, scene) == 0, "tp %d dp %d: every bit of weights and moments", scene->tp,
               scene->replicas);
    }
    end_rank(&it);
}

static void run(scene_t scene)
{
    tap_ranks(scene.tp * scene.replicas, NULL, play, &scene);
}

/* From each grid to each other; the same layers with another optimizer, and in another type. */
static void test_grids(lap_optimizer_kind_t kind, lap_dtype_t dtype, const char *model)
{
    static const int grids[][2] = {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {2, 2}, {1, 3}};
    const size_t count = sizeof(grids) / sizeof(grids[0]);
    run((scene_t){1, 1, kind, dtype, NULL, NULL, 4, true, model});
    for (size_t i = 0; i < count; i++) {
        char dir[] = "/tmp/lap-grids-XXXXXX";
        if (!mkdtemp(dir))
            return;
        run((scene_t){grids[i][0], grids[i][1], kind, dtype, NULL, dir, 2, false, model});
        for (size_t j = 0; j < count; j += kind == LAP_ADAMW && dtype == LAP_FLOAT32 ? 1 : 2)
            run((scene_t){grids[j][0], grids[j][1], kind, dtype, dir, NULL, 4, false, model});
        tap_ok(remove_folder(dir), "the folder is removed");
    }
    for (size_t a = 0; a < ARRAYS; a++)
        for (size_t p = 0; p < PARAMS; p++) {
            free(truth[a][p]);
            truth[a][p] = NULL;
        }
}

int main(void)
{
    test_grids(LAP_ADAMW, LAP_FLOAT32, NULL);
    test_grids(LAP_SGD, LAP_FLOAT32, NULL);
    test_grids(LAP_ADAMW, LAP_BFLOAT16, NULL);
    test_grids(LAP_ADAMW, LAP_FLOAT32, "gpt");
    test_grids(LAP_ADAMW, LAP_FLOAT32, "llama");
    return tap_done();
}
