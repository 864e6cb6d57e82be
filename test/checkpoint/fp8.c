/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Magnitudes of delayed FP8 scaling in checkpoints: what was found since scales were renewed and the history come
 * back as they were, also into layers that have seen others; a longer or shorter history has the newest; and
 * a pass that there has not been yet is the first one after a load, too.
 */
#include <lap/checkpoint.h>

#include <stdlib.h>
#include <string.h>

#include "checkpoint/folder.h"
#include "nn/memory.h"
#include "tap.h"

enum { SEQ = 4, HIDDEN = 16, MATRICES = 4, LONGEST = 8 };

/* What a rank has: of each matrix since scales were renewed, and the history, the newest first. */
typedef struct magnitudes {
    float all[MATRICES][1 + LONGEST];
    bool forward, backward;
} magnitudes_t;

typedef struct scene {
    size_t history;
    int forwards;  /* before the load, or the save */
    int backwards; /* of the last of these */
    const char *load, *save;
    magnitudes_t *found;
} scene_t;

/* Passes with numbers that grow. */
static bool run(lap_nn_t *nn, const scene_t *scene)
{
    const lap_nn_part_t part = lap_nn_input(nn, 0);
    const size_t count = part.rows * part.cols;
    float *memory[4];
    lap_tensor_t tensors[4];
    bool ran = true;
    for (int i = 0; i < 4; i++) {
        memory[i] = nn_new(nn, count * sizeof(float));
        tensors[i] = lap_tensor(memory[i], LAP_FLOAT32, part.rows, part.cols);
    }
    for (int f = 0; f < scene->forwards && ran; f++) {
        for (size_t i = 0; i < count; i++) {
            memory[0][i] = (float)(i % 5) - 2;
            memory[2][i] = (float)(f + 1) * ((float)(i % 7) - 3);
        }
        lap_nn_zero_gradients(nn);
        ran = lap_nn_forward(nn, SEQ, &tensors[0], &tensors[1]) == LAP_OK;
        if (ran && f >= scene->forwards - scene->backwards)
            ran = lap_nn_backward(nn, &tensors[2], &tensors[3]) == LAP_OK;
        ran = lap_nn_wait(nn) == LAP_OK && ran;
    }
    for (int i = 0; i < 4; i++)
        nn_free(nn, memory[i]);
    return ran;
}

static void look(lap_nn_t *nn, magnitudes_t *found)
{
    const lap_nn_list_t *list = &nn->list;
    const size_t count = lap_nn_fp8_delayed(list), length = list->plan.desc.amax_history;
    float *amax =
        nn_fetch(nn, (float *)lap_nn_tensor(nn, list->fp8_amax).data + list->nfp8_weights, count);
    float *history = nn_fetch(nn, lap_nn_tensor(nn, list->fp8_history).data, count * length);
    *found = (magnitudes_t){.forward = false};
    lap_nn_get_seen(nn, &found->forward, &found->backward);
    tap_ok(count == MATRICES, "%zu matrices have a history", count);
    for (size_t i = 0; i < count && count == MATRICES; i++) {
        found->all[i][0] = amax[i];
        for (size_t age = 0; age < length; age++)
            found->all[i][1 + age] = history[lap_nn_fp8_history(list, i, age)];
    }
    free(amax);
    free(history);
}

static void play(lap_world_t *world, void *arg)
{
    const scene_t *scene = arg;
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    lap_checkpoint_state_t state = LAP_CHECKPOINT_STATE_INIT;
    lap_group_t *group = lap_world_group(world);
    lap_nn_t *nn = NULL;
    lap_checkpoint_t *checkpoint = NULL;
    desc.kind = LAP_NN_LAYERNORM_MLP;
    desc.seq = SEQ;
    desc.hidden = HIDDEN;
    desc.ffn = HIDDEN;
    desc.fp8 = LAP_FP8_DELAYED;
    desc.amax_history = scene->history;
    if (tap_success(lap_nn_create(group, &desc, &nn), "layers") &&
        tap_success(lap_checkpoint_create(group, nn, NULL, &checkpoint), "checkpoints")) {
        tap_ok(run(nn, scene), "%d passes", scene->forwards);
        if (scene->load)
            tap_success(lap_checkpoint_load(checkpoint, scene->load, &state), "a load");
        if (scene->save)
            tap_ok(lap_checkpoint_save(checkpoint, scene->save, &state) == LAP_OK &&
                       lap_checkpoint_wait(checkpoint) == LAP_OK,
                   "a save");
        look(nn, scene->found);
    }
    lap_checkpoint_destroy(checkpoint);
    lap_nn_destroy(nn);
}

/* Whether the newest magnitudes of both are the same, and there are no others. */
static bool is_same(const magnitudes_t *saved, const magnitudes_t *loaded, size_t history)
{
    bool same = saved->forward == loaded->forward && saved->backward == loaded->backward;
    for (size_t i = 0; i < MATRICES; i++)
        for (size_t age = 0; age <= LONGEST; age++)
            same = same && loaded->all[i][age] == (age <= history ? saved->all[i][age] : 0);
    return same;
}

int main(void)
{
    char dir[] = "/tmp/lap-fp8-XXXXXX";
    static const size_t histories[] = {4, 1, 2, LONGEST};
    if (!mkdtemp(dir))
        return 1;
    for (int backwards = 0; backwards < 4; backwards += 3) {
        magnitudes_t saved = {.forward = false};
        scene_t scene = {.history = 4, .forwards = 4, .backwards = backwards, .save = dir};
        scene.found = &saved;
        tap_ranks(1, NULL, play, &scene);
        tap_ok(saved.forward && saved.backward == (backwards > 0) && saved.all[0][3] > 0 &&
                   saved.all[0][4] == 0 && (saved.all[MATRICES - 1][1] > 0) == (backwards > 0),
               "four forwards have renewed scales three times");
        for (size_t i = 0; i < sizeof(histories) / sizeof(histories[0]); i++)
            for (int before = 0; before < 3; before += 2) {
                magnitudes_t loaded = {.forward = false};
                scene = (scene_t){.history = histories[i],
                                  .forwards = before,
                                  .backwards = before,
                                  .load = dir,
                                  .found = &loaded};
                tap_ranks(1, NULL, play, &scene);
                tap_ok(is_same(&saved, &loaded, histories[i]),
                       "%d backwards: a history of %zu has the newest of one of 4, after %d passes",
                       backwards, histories[i], before);
            }
    }
    tap_ok(remove_folder(dir), "the folder is removed");
    return tap_done();
}
