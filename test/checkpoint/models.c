/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of Hugging Face's transformers: files that it has saved give its losses here, on every number of ranks;
 * and what is saved then has the same tensors, by names, shapes and bits, so that it loads there.
 */
#include <lap/checkpoint.h>
#include <lap/model.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/folder.h"
#include "checkpoint/safetensors.h"
#include "tap.h"

enum { VOCAB = 37, SEQ = 7, BATCH = 2 }; /* as in scripts/make_golden_checkpoints.py */

typedef struct golden {
    const char *preset, *folder;
    size_t hidden, heads, kv_heads, head_dim, ffn, positions;
    double loss;
} golden_t;

static const golden_t goldens[] = {
    {"gpt", GOLDEN_DIR "/gpt2", 12, 6, 6, 2, 48, 9, 3.7535839080810547},
    {"llama", GOLDEN_DIR "/llama", 24, 12, 6, 4, 36, 0, 4.5147809982299805},
};

static char dir[] = "/tmp/lap-models-XXXXXX";

static lap_nn_t *make(lap_group_t *group, const golden_t *golden)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    lap_nn_t *nn = NULL;
    tap_success(lap_model_preset(golden->preset, &desc), "%s", golden->preset);
    desc.layers = 2;
    desc.seq = SEQ;
    desc.batch = BATCH;
    desc.vocab = VOCAB;
    desc.hidden = golden->hidden;
    desc.heads = golden->heads;
    desc.kv_heads = golden->kv_heads;
    desc.head_dim = golden->head_dim;
    desc.ffn = golden->ffn;
    desc.max_positions = golden->positions;
    tap_success(lap_nn_create(group, &desc, &nn), "%s on %d ranks", golden->preset,
                lap_group_size(group));
    return nn;
}

static double loss_of(lap_nn_t *nn)
{
    int32_t tokens[BATCH * SEQ], targets[BATCH * SEQ];
    double loss = NAN;
    for (int b = 0; b < BATCH; b++)
        for (int s = 0; s < SEQ; s++) {
            const int i = b * (SEQ + 1) + s;
            tokens[b * SEQ + s] = (5 * i + 3 * i * i) % VOCAB;
            targets[b * SEQ + s] = (5 * (i + 1) + 3 * (i + 1) * (i + 1)) % VOCAB;
        }
    tap_success(lap_model_forward(nn, SEQ, tokens, targets), "forward");
    tap_success(lap_model_backward(nn), "backward");
    tap_success(lap_nn_wait(nn), "both");
    tap_success(lap_nn_loss_value(nn, &loss), "the loss");
    return loss;
}

/* Whether every tensor of a file is in another, with the same shape and bits. */
static size_t count_missing(const lap_st_file_t *file, const lap_st_file_t *other)
{
    size_t missing = 0;
    for (size_t i = 0; i < file->count; i++) {
        const lap_st_tensor_t *a = &file->tensors[i], *b = lap_st_find(other, a->name);
        const size_t bytes = (size_t)(a->end - a->begin), count = bytes / sizeof(float);
        float *left = malloc(bytes), *right = malloc(bytes);
        const bool same =
            b && a->ndims == b->ndims && memcmp(a->dims, b->dims, sizeof(a->dims)) == 0 &&
            lap_st_read(file, a, 0, count, left) == LAP_OK &&
            lap_st_read(other, b, 0, count, right) == LAP_OK && memcmp(left, right, bytes) == 0;
        missing += tap_wrong(!same, "%s", a->name);
        free(left);
        free(right);
    }
    return missing;
}

static void compare_files(const golden_t *golden)
{
    char path[256], ours[256];
    lap_st_file_t theirs, mine;
    snprintf(path, sizeof(path), "%s/model.safetensors", golden->folder);
    snprintf(ours, sizeof(ours), "%s/step-00000001/model.safetensors", dir);
    tap_success(lap_st_open(path, &theirs), "their file");
    tap_success(lap_st_open(ours, &mine), "our file");
    tap_ok(theirs.count > 20 && count_missing(&theirs, &mine) == 0,
           "all their tensors are in ours");
    tap_ok(count_missing(&mine, &theirs) == 0, "all our tensors are in theirs");
    lap_st_close(&theirs);
    lap_st_close(&mine);
}

static void play(lap_world_t *world, void *arg)
{
    const golden_t *golden = arg;
    lap_group_t *group = lap_world_group(world);
    lap_nn_t *nn = make(group, golden);
    lap_checkpoint_t *checkpoint = NULL;
    lap_checkpoint_state_t state = LAP_CHECKPOINT_STATE_INIT;
    tap_success(lap_checkpoint_create(group, nn, NULL, &checkpoint), "checkpoints");
    tap_success(lap_checkpoint_load(checkpoint, golden->folder, &state), "%s", golden->folder);
    const double loss = loss_of(nn);
    tap_ok(fabs(loss - golden->loss) < 1e-5 * golden->loss, "its loss: %.9g, expected %.9g", loss,
           golden->loss);
    state.step = 1;
    tap_success(lap_checkpoint_save(checkpoint, dir, &state), "it is saved");
    tap_success(lap_checkpoint_wait(checkpoint), "... whole");
    if (lap_group_rank(group) == 0)
        compare_files(golden);
    lap_checkpoint_destroy(checkpoint);
    lap_nn_destroy(nn);
}

int main(void)
{
    if (!mkdtemp(dir))
        return 1;
    for (size_t i = 0; i < sizeof(goldens) / sizeof(goldens[0]); i++)
        for (int nranks = 1; nranks <= 3; nranks++) {
            golden_t golden = goldens[i];
            tap_ranks(nranks, NULL, play, &golden);
        }
    tap_ok(remove_folder(dir), "the folder is removed");
    return tap_done();
}
