/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoints of a training: where it goes on from, and what it writes while it goes on. */
#include "train/trainer.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <lap/checkpoint.h>

#include "checkpoint/checkpoint.h"
#include "core/status.h"
#include "core/world.h"
#include "util/alloc.h"

/* ---- the beginning ---- */

lap_status_t lap_trainer_open(lap_trainer_t *trainer)
{
    const lap_trainer_desc_t *desc = &trainer->desc;
    lap_group_t *world = trainer->groups.world;
    lap_status_t status = LAP_OK;
    if (!desc->save && !desc->load)
        return LAP_OK;
    if (desc->save && lap_group_rank(world) == 0)
        status = lap_ckpt_folder_lock(desc->save, &trainer->lock);
    if (status == LAP_OK)
        status =
            lap_checkpoint_create(world, trainer->nn, trainer->optimizer, &trainer->checkpoint);
    return lap_group_agree(world, status);
}

/* What dynamic loss scaling has come to goes on with the training. */
#define SCALE_FIELD "loss_scale"

/* The last of the fields. */
static void put_scale(lap_trainer_t *trainer)
{
    const lap_loss_scale_t *scale = &trainer->scale;
    lap_ckpt_fields_t *fields = &trainer->checkpoint->training;
    char text[96];
    if (!trainer->dynamic)
        return;
    if (fields->count > 0 && strcmp(fields->all[fields->count - 1].name, SCALE_FIELD) == 0)
        fields->count--;
    snprintf(text, sizeof(text), "%.17g %" PRIu64 " %" PRIu64 " %" PRIu64, scale->scale,
             scale->made, scale->left, scale->skipped);
    lap_ckpt_add_field(fields, SCALE_FIELD, text);
}

static void take_scale(lap_trainer_t *trainer)
{
    lap_loss_scale_t found = trainer->scale;
    const char *value = lap_ckpt_find_field(&trainer->checkpoint->loaded, SCALE_FIELD);
    if (trainer->dynamic && value &&
        /* NOLINTNEXTLINE(cert-err34-c): the file has a checksum, and bounds follow */
        sscanf(value, "%lf %" SCNu64 " %" SCNu64 " %" SCNu64, &found.scale, &found.made,
               &found.left, &found.skipped) == 4 &&
        found.scale >= found.least && found.scale <= 0x1p127)
        trainer->scale = found;
}

lap_status_t lap_trainer_load(lap_trainer_t *trainer)
{
    lap_checkpoint_state_t state = LAP_CHECKPOINT_STATE_INIT;
    LAP_TRY(lap_checkpoint_load(trainer->checkpoint, trainer->desc.load, &state));
    trainer->step = trainer->saved = state.step;
    trainer->samples = state.samples;
    take_scale(trainer);
    return LAP_OK;
}

/* ---- saving ---- */

static bool saves(const lap_trainer_t *trainer)
{
    return trainer->checkpoint && trainer->desc.save;
}

/*
 * All but the newest of those that are kept; one that cannot be removed stays. One that is damaged,
 * or was not finished, is none to go on from: it does not count, and goes with older ones.
 */
static void remove_old(const lap_trainer_t *trainer)
{
    const char *dir = trainer->desc.save;
    lap_ckpt_name_t *names = NULL;
    lap_ckpt_manifest_t unused;
    size_t count = 0;
    char path[PATH_MAX];
    uint64_t newer = 0;
    if (lap_ckpt_folder_list(dir, &names, &count) != LAP_OK)
        return;
    for (size_t i = 0; i < count; i++) { /* the newest first */
        if (names[i].step > trainer->saved ||
            snprintf(path, sizeof(path), "%s/%s", dir, names[i].name) >= PATH_MAX)
            continue;
        if (newer >= trainer->keep)
            lap_ckpt_folder_remove(path);
        else if (lap_ckpt_manifest_read(path, &unused) == LAP_OK)
            newer++;
    }
    lap_free(names);
}

/* What came of a save: it is whole only when all ranks know that its thread has ended. */
static lap_status_t conclude(lap_trainer_t *trainer, lap_status_t status)
{
    if (!trainer->saving || status == LAP_IN_PROGRESS)
        return LAP_OK;
    trainer->saving = false;
    if (status == LAP_OK) {
        trainer->saved = trainer->wanted;
        if (trainer->keep > 0 && lap_group_rank(trainer->groups.world) == 0)
            remove_old(trainer);
    }
    return trainer->on_saved ? trainer->on_saved(trainer->saver, trainer->wanted, status) : status;
}

static lap_status_t end_save(lap_trainer_t *trainer)
{
    return trainer->saving ? conclude(trainer, lap_checkpoint_wait(trainer->checkpoint)) : LAP_OK;
}

/* One that is in progress ends first. */
static lap_status_t save(lap_trainer_t *trainer)
{
    lap_checkpoint_state_t state = LAP_CHECKPOINT_STATE_INIT;
    LAP_TRY(end_save(trainer));
    state.step = trainer->wanted = trainer->step;
    state.samples = trainer->samples;
    put_scale(trainer);
    trainer->saving = true;
    const lap_status_t status =
        lap_checkpoint_save(trainer->checkpoint, trainer->desc.save, &state);
    return status == LAP_OK ? LAP_OK : conclude(trainer, status);
}

lap_status_t lap_trainer_end_step(lap_trainer_t *trainer)
{
    const lap_trainer_desc_t *desc = &trainer->desc;
    trainer->step++;
    trainer->samples +=
        (uint64_t)trainer->groups.grid.dp * desc->micro_batches * trainer->model.batch;
    if (saves(trainer) && desc->save_every > 0 && trainer->step % desc->save_every == 0 &&
        trainer->step != desc->steps)
        return save(trainer);
    return trainer->saving ? conclude(trainer, lap_checkpoint_poll(trainer->checkpoint)) : LAP_OK;
}

lap_status_t lap_trainer_end(lap_trainer_t *trainer, bool last)
{
    if (last && saves(trainer) && trainer->step > trainer->saved &&
        !(trainer->saving && trainer->wanted == trainer->step))
        LAP_TRY(save(trainer));
    return end_save(trainer);
}

lap_status_t lap_trainer_fail(lap_trainer_t *trainer, lap_status_t status)
{
    lap_saved_error_t saved;
    if (status == LAP_OK)
        return LAP_OK;
    lap_error_save(&saved);
    (void)end_save(trainer);
    lap_error_restore(&saved);
    return status;
}
