/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints that are not whole: what is damaged is named, and the newest whole one is taken. A disk without
 * room is an error, and leaves what was there.
 */
#include <lap/checkpoint.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/folder.h"
#include "nn/memory.h"
#include "tap.h"

static char dir[] = "/tmp/lap-damage-XXXXXX";

/* ---- a disk without room ---- */

static bool no_blocks, no_fallocate, no_writes; /* found before, or as it is written */
int __real_fallocate(int fd, int mode, off_t at, off_t bytes);
int __wrap_fallocate(int fd, int mode, off_t at, off_t bytes);
ssize_t __real_pwrite(int fd, const void *data, size_t bytes, off_t at);
ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t at);

int __wrap_fallocate(int fd, int mode, off_t at, off_t bytes)
{
    errno = no_blocks ? ENOSPC : EOPNOTSUPP;
    return no_blocks || no_fallocate ? -1 : __real_fallocate(fd, mode, at, bytes);
}

ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t at)
{
    errno = ENOSPC;
    /* Headers fit. */
    return no_writes && at > 0 ? -1 : __real_pwrite(fd, data, bytes, at);
}

/* ---- layers ---- */

typedef struct own {
    lap_nn_t *nn;
    lap_optimizer_t *optimizer;
    lap_checkpoint_t *checkpoint;
} own_t;

static own_t make(lap_world_t *world, size_t hidden, float epsilon)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    lap_optimizer_desc_t optimizer = LAP_OPTIMIZER_DESC_INIT;
    lap_group_t *group = lap_world_group(world);
    own_t own = {.nn = NULL};
    desc.kind = LAP_NN_LAYERNORM_MLP;
    desc.seq = 4;
    desc.hidden = hidden;
    desc.epsilon = epsilon;
    tap_success(lap_nn_create(group, &desc, &own.nn), "layers");
    tap_success(lap_optimizer_create(own.nn, group, &optimizer, &own.optimizer), "an optimizer");
    tap_success(lap_checkpoint_create(group, own.nn, own.optimizer, &own.checkpoint),
                "checkpoints");
    return own;
}

static void end(own_t *own)
{
    lap_checkpoint_destroy(own->checkpoint);
    lap_optimizer_destroy(own->optimizer);
    lap_nn_destroy(own->nn);
}

/* All masters are the number of the step. */
static void set_weights(own_t *own, float value)
{
    size_t count;
    float *masters = lap_nn_masters(own->nn, &count), *copy = calloc(count, sizeof(float));
    for (size_t i = 0; i < count; i++)
        copy[i] = value;
    tap_ok(nn_copy(own->nn, masters, copy, count * sizeof(float)), "weights are %g", (double)value);
    free(copy);
}

static bool weights_are(own_t *own, float value)
{
    const lap_nn_param_t *param = lap_nn_param(own->nn, 2);
    const size_t count = param->rows * param->cols;
    float *all = nn_fetch(own->nn, param->master.data, count);
    bool same = true;
    for (size_t i = 0; i < count; i++)
        same = same && !tap_wrong(all[i] != value, "weight %zu is %g", i, (double)all[i]);
    free(all);
    return same;
}

static lap_status_t save(own_t *own, uint64_t step)
{
    lap_checkpoint_state_t state = LAP_CHECKPOINT_STATE_INIT;
    state.step = step;
    set_weights(own, (float)step);
    const lap_status_t status = lap_checkpoint_save(own->checkpoint, dir, &state);
    return status == LAP_OK ? lap_checkpoint_wait(own->checkpoint) : status;
}

/* The newest whole one is that of a step. */
static void loads(own_t *own, uint64_t step, const char *what)
{
    lap_checkpoint_state_t state = LAP_CHECKPOINT_STATE_INIT;
    set_weights(own, -1);
    tap_success(lap_checkpoint_load(own->checkpoint, dir, &state), "%s: loaded", what);
    tap_ok(state.step == step && weights_are(own, (float)step), "%s: that of step %d, not %d", what,
           (int)step, (int)state.step);
}

/* ---- damage ---- */

static const char *path_of(uint64_t step, const char *name)
{
    static char path[128];
    snprintf(path, sizeof(path), "%s/step-%08d/%s", dir, (int)step, name);
    return path;
}

/* Turns a bit of a file; `at` from its end, if that is negative. */
static void turn_bit(const char *path, long at)
{
    FILE *file = fopen(path, "r+");
    fseek(file, at, at < 0 ? SEEK_END : SEEK_SET);
    const int byte = fgetc(file);
    fseek(file, -1, SEEK_CUR);
    fputc(byte ^ 4, file);
    fclose(file);
}

static void test_damage(own_t *own)
{
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors",
                                        "manifest.json"};
    static const long places[] = {0, 30, -1, -400};
    for (size_t f = 0; f < 3; f++)
        for (size_t p = 0; p < sizeof(places) / sizeof(places[0]); p++) {
            const long at = f == 2 && places[p] == -400 ? 50 : places[p];
            tap_note("%s, a bit of byte %ld", files[f], at);
            turn_bit(path_of(3, files[f]), at);
            loads(own, 2, files[f]);
            turn_bit(path_of(3, files[f]), at);
        }
    loads(own, 3, "mended");
    struct stat about;
    stat(path_of(3, files[0]), &about);
    tap_ok(truncate(path_of(3, files[0]), about.st_size - 4) == 0, "a file that is cut");
    loads(own, 2, "cut");
    tap_ok(unlink(path_of(3, files[2])) == 0, "a save that was not finished");
    loads(own, 2, "not finished");
}

static void test_none(own_t *own)
{
    lap_checkpoint_state_t state = LAP_CHECKPOINT_STATE_INIT;
    for (uint64_t step = 1; step <= 2; step++)
        turn_bit(path_of(step, "optimizer.safetensors"), -9);
    set_weights(own, 7);
    tap_failure(lap_checkpoint_load(own->checkpoint, dir, &state), LAP_ERR_INVALID,
                "no whole checkpoint", dir, NULL);
    tap_failure(lap_checkpoint_load(own->checkpoint, path_of(2, ""), &state), LAP_ERR_INVALID,
                "no whole checkpoint", "optimizer.safetensors", "is damaged", "checksum", NULL);
    tap_ok(weights_are(own, 7), "weights are as they were");
    for (uint64_t step = 1; step <= 2; step++)
        turn_bit(path_of(step, "optimizer.safetensors"), -9);
    tap_failure(lap_checkpoint_load(own->checkpoint, "/nowhere", &state), LAP_ERR_SYSTEM,
                "/nowhere", NULL);
}

static void test_full(own_t *own)
{
    loads(own, 2, "before the disk is full");
    no_blocks = true;
    tap_failure(save(own, 4), LAP_ERR_SYSTEM, "model.safetensors", strerror(ENOSPC), NULL);
    no_blocks = false;
    no_fallocate = no_writes = true;
    tap_failure(save(own, 4), LAP_ERR_SYSTEM, "model.safetensors", strerror(ENOSPC), NULL);
    tap_ok(access(path_of(4, ""), F_OK) != 0, "nothing is left of it");
    tap_failure(save(own, 2), LAP_ERR_SYSTEM, "model.safetensors", strerror(ENOSPC), NULL);
    loads(own, 2, "one that could not be replaced");
    no_writes = false;
    tap_success(save(own, 4), "when there is room, it is saved");
    loads(own, 4, "room again");
    tap_success(save(own, 4), "the same step once more");
    loads(own, 4, "replaced");
    no_fallocate = false;
}

/* Of other layers, and files without a manifest. */
static void test_other(lap_world_t *world, own_t *own)
{
    lap_checkpoint_state_t state = LAP_CHECKPOINT_STATE_INIT;
    own_t other = make(world, 48, 1e-5f);
    tap_failure(lap_checkpoint_load(other.checkpoint, dir, &state), LAP_ERR_INVALID,
                "model.safetensors", "is [32], expected [48]", "hidden is 32 in", NULL);
    end(&other);
    other = make(world, 32, 1e-6f);
    set_weights(&other, -1);
    tap_failure(lap_checkpoint_load(other.checkpoint, dir, &state), LAP_ERR_INVALID,
                "of other layers: epsilon is 1e-05 in the checkpoint and 1e-06 here", NULL);
    tap_ok(weights_are(&other, -1), "weights of layers of another epsilon stay");
    end(&other);
    char folder[64], path[128];
    snprintf(folder, sizeof(folder), "%s/hf", dir);
    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    tap_ok(mkdir(folder, 0700) == 0 && link(path_of(4, "model.safetensors"), path) == 0,
           "a folder of weights only");
    state.step = 9;
    set_weights(own, -1);
    tap_success(lap_checkpoint_load(own->checkpoint, folder, &state), "it is loaded");
    tap_ok(weights_are(own, 4) && state.step == 0 && lap_optimizer_steps(own->optimizer) == 0,
           "weights, from which training begins");
    set_weights(own, -1);
    tap_success(lap_checkpoint_load(own->checkpoint, path, &state), "so is the file itself");
    tap_ok(weights_are(own, 4), "... with the same weights");
}

static void test_arguments(own_t *own)
{
    lap_checkpoint_state_t state = LAP_CHECKPOINT_STATE_INIT;
    lap_checkpoint_t *none;
    tap_failure(lap_checkpoint_create(NULL, own->nn, NULL, &none), LAP_ERR_INVALID, "group", NULL);
    tap_failure(lap_checkpoint_save(own->checkpoint, NULL, &state), LAP_ERR_INVALID, "dir", NULL);
    tap_failure(lap_checkpoint_save(NULL, dir, &state), LAP_ERR_INVALID, "checkpoint", NULL);
    tap_failure(lap_checkpoint_load(own->checkpoint, dir, NULL), LAP_ERR_INVALID, "state_p", NULL);
    tap_failure(lap_checkpoint_save(own->checkpoint, "/dev/null/x", &state), LAP_ERR_SYSTEM,
                "/dev/null/x", NULL);
    tap_success(lap_checkpoint_wait(own->checkpoint), "there is no save to wait for");
    lap_checkpoint_destroy(NULL);
}

static void play(lap_world_t *world, void *arg)
{
    (void)arg;
    own_t own = make(world, 32, 1e-5f);
    for (uint64_t step = 1; step <= 3; step++)
        tap_success(save(&own, step), "step %d is saved", (int)step);
    test_damage(&own);
    test_none(&own);
    test_full(&own);
    test_other(world, &own);
    test_arguments(&own);
    end(&own);
}

int main(void)
{
    if (!mkdtemp(dir))
        return 1;
    setenv("LAP_LOG", "quiet", 1);
    const int fds = tap_count_fds();
    tap_ranks(1, NULL, play, NULL);
    tap_ok(tap_count_fds() == fds, "no descriptor is left open");
    tap_ok(remove_folder(dir), "the folder is removed");
    return tap_done();
}
