/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints between grids of ranks: what one has written, every other reads, to the last bit of weights and
 * moments, and goes on as one rank would have that never stopped; also where replicas share the optimizer.
 * Gradients are given: numbers of their place in the whole.
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
    bool shared;       /* replicas share the optimizer */
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
    bool made =
        lap_group_split(group, rank / scene->tp, rank, &it->tp) == LAP_OK &&
        (scene->replicas == 1 || lap_group_split(group, rank % scene->tp, rank, &it->dp) == LAP_OK);
    if (scene->shared && scene->replicas > 1) {
        desc.shards = (size_t)scene->replicas;
        desc.shard_bucket = 900;
        desc.shard_group = it->dp;
    }
    made = made && lap_nn_create(it->tp, &desc, &it->nn) == LAP_OK;
    if (made && scene->replicas > 1)
        made = lap_dp_create(it->nn, it->dp, &options, &it->replicas) == LAP_OK;
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

/* An array as it would be whole; *mine_p: what of it this rank has. The caller frees both. */
static float *fetch(rank_t *it, size_t array, size_t all, bool **mine_p)
{
    const lap_nn_list_t *list = &it->nn->list;
    const lap_nn_buckets_t *shards = list->shards;
    size_t count;
    const float *from = array ? lap_optimizer_moments(it->optimizer, array - 1, &count)
                              : lap_nn_masters(it->nn, &count);
    float *part = nn_fetch(it->nn, from, count), *whole = calloc(all, sizeof(float));
    bool *mine = calloc(all, sizeof(bool));
    for (size_t i = 0; whole && mine && i < (shards ? shards->count : 1); i++) {
        size_t begin = 0;
        const size_t own = shards ? lap_nn_bucket_shard(shards, i, list->shard, &begin) : all;
        const size_t at = shards ? lap_nn_shard_begin(shards, i, list->shard) : 0;
        if (at + own > count)
            break;
        memcpy(whole + begin, part + at, own * sizeof(float));
        memset(mine + begin, 1, own * sizeof(bool));
    }
    free(part);
    *mine_p = mine;
    return whole;
}

/* Whether the replicas have each number once, or all of them where they share nothing. */
static bool is_complete(rank_t *it, const bool *mine, size_t count)
{
    bool *all = calloc(count * 8, sizeof(bool));
    const int replicas = it->nn->sharers ? lap_group_size(it->dp) : 1;
    bool complete = all != NULL;
    if (complete && it->nn->sharers)
        complete = lap_group_allgather(it->dp, mine, count * sizeof(bool), all) == LAP_OK;
    else if (complete)
        memcpy(all, mine, count * sizeof(bool));
    for (size_t i = 0; i < count && complete; i++) {
        int sum = 0;
        for (int r = 0; r < replicas; r++)
            sum += all[(size_t)r * count + i];
        complete = sum == 1;
    }
    free(all);
    return complete;
}

/* Writes the truth, or counts what is not it. */
static size_t compare(rank_t *it, const scene_t *scene)
{
    const size_t narrays = scene->kind == LAP_SGD ? 2 : 3;
    size_t count, wrong = 0;
    const float *gradients = lap_nn_gradients(it->nn, &count);
    for (size_t a = 0; a < narrays; a++) {
        bool *mine;
        float *all = fetch(it, a, count, &mine);
        wrong += tap_wrong(!is_complete(it, mine, count), "a part of array %zu is nobody's", a);
        for (size_t p = 0; p < lap_nn_params(it->nn); p++) {
            const lap_nn_param_t *param = lap_nn_param(it->nn, p);
            const float *own = all + ((float *)param->grad.data - gradients);
            if (scene->is_truth)
                truth[a][p] = calloc(param->all_rows * param->all_cols, sizeof(float));
            for (size_t i = 0; i < param->rows * param->cols; i++) {
                float *place = &truth[a][p][place_of(param, i)];
                if (!mine[own + i - all])
                    continue;
                if (scene->is_truth)
                    *place = own[i];
                wrong += tap_wrong(memcmp(place, &own[i], sizeof(float)) != 0,
                                   "array %zu of %s, element %zu: %.9g, expected %.9g", a,
                                   param->name, i, (double)own[i], (double)*place);
            }
        }
        free(all);
        free(mine);
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

/*
 * From each grid to each other, with replicas that share the optimizer and those that do not; the same
 * layers with another optimizer, and in another type.
 */
static void test_grids(lap_optimizer_kind_t kind, lap_dtype_t dtype, const char *model)
{
    static const struct {
        int tp, replicas;
        bool shared;
    } grids[] = {{1, 1, false}, {2, 1, false}, {3, 1, false}, {4, 1, false},
                 {2, 2, false}, {1, 3, false}, {2, 2, true},  {1, 3, true}};
    const size_t count = sizeof(grids) / sizeof(grids[0]);
    run((scene_t){1, 1, kind, dtype, NULL, NULL, 4, true, model, false});
    for (size_t i = 0; i < count; i++) {
        char dir[] = "/tmp/lap-grids-XXXXXX";
        if (!mkdtemp(dir))
            return;
        run((scene_t){grids[i].tp, grids[i].replicas, kind, dtype, NULL, dir, 2, false, model,
                      grids[i].shared});
        for (size_t j = 0; j < count; j += kind == LAP_ADAMW && dtype == LAP_FLOAT32 ? 1 : 2)
            run((scene_t){grids[j].tp, grids[j].replicas, kind, dtype, dir, NULL, 4, false, model,
                          grids[j].shared});
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
