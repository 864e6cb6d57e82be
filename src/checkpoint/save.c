/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saving. Rank 0 makes the files; each rank's thread writes its pieces into them; when all have ended, which
 * the ranks tell each other in lap_checkpoint_poll, rank 0 writes the manifest.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "core/file.h"
#include "core/options.h"
#include "core/status.h"
#include "util/alloc.h"
#include "util/thread.h"

/* ---- the thread ---- */

/* A tensor of a file that is written. */
typedef struct target {
    int fd;
    const char *path;
    const lap_st_tensor_t *tensor;
    uint64_t sum;
} target_t;

static lap_status_t write_run(void *context, uint64_t first, float *run, size_t count)
{
    target_t *target = context;
    const uint64_t at = target->tensor->begin + first * sizeof(float);
    target->sum += lap_st_sum(run, count * sizeof(float), at);
    return lap_file_write(target->fd, target->path, run, count * sizeof(float), at);
}

/* This rank's pieces of all sets of a file. */
static lap_status_t write_pieces(const lap_checkpoint_t *checkpoint, size_t f, target_t *target)
{
    const lap_ckpt_layout_t *layout = &checkpoint->layout;
    const lap_ckpt_file_t *file = &layout->files[f];
    float *room = lap_ckpt_array(checkpoint, layout->narrays);
    for (size_t set = 0; set < file->nsets; set++)
        for (size_t i = 0; i < layout->npieces; i++) {
            const lap_ckpt_piece_t *piece = &layout->pieces[i];
            if (!piece->counts)
                continue;
            float *floats = lap_ckpt_array(checkpoint, file->first_array + set) + piece->at;
            target->tensor = &file->tensors[set * layout->ntensors + piece->tensor];
            LAP_TRY(lap_ckpt_piece_runs(piece, floats, room, false, write_run, target));
        }
    return LAP_OK;
}

static lap_status_t write_file(lap_checkpoint_t *checkpoint, size_t f)
{
    char path[PATH_MAX + 64];
    snprintf(path, sizeof(path), "%s/%s", checkpoint->dir, checkpoint->layout.files[f].name);
    target_t target = {.fd = open(path, O_WRONLY | O_CLOEXEC), .path = path};
    if (target.fd < 0)
        return lap_error_errno("cannot write '%s'", path);
    const bool fp8 = checkpoint->layout.fp8.file == &checkpoint->layout.files[f];
    lap_status_t status = fp8 ? lap_ckpt_fp8_write(checkpoint, target.fd, path, &target.sum)
                              : write_pieces(checkpoint, f, &target);
    if (status == LAP_OK && fsync(target.fd) != 0)
        status = lap_error_errno("cannot write '%s'", path);
    if (close(target.fd) != 0 && status == LAP_OK)
        status = lap_error_errno("cannot write '%s'", path);
    checkpoint->manifest.files[f].sum = target.sum;
    return status;
}

static void *write_all(void *context)
{
    lap_checkpoint_t *checkpoint = context;
    lap_status_t status = LAP_OK;
    for (size_t f = 0; f < checkpoint->layout.nfiles && status == LAP_OK; f++)
        status = write_file(checkpoint, f);
    checkpoint->status = status;
    if (status != LAP_OK)
        snprintf(checkpoint->sentence, sizeof(checkpoint->sentence), "%s", lap_last_error());
    /* Partner: lap_checkpoint_poll, which then sees all of the above. */
    atomic_store_explicit(&checkpoint->ended, true, memory_order_release);
    return NULL;
}

/* ---- beginning ---- */

static void begin_manifest(lap_checkpoint_t *checkpoint, const lap_checkpoint_state_t *state)
{
    const lap_ckpt_layout_t *layout = &checkpoint->layout;
    lap_ckpt_manifest_t *manifest = &checkpoint->manifest;
    *manifest = (lap_ckpt_manifest_t){
        .step = state->step,
        .samples = state->samples,
        .optimizer_steps = lap_optimizer_steps(checkpoint->optimizer),
        .nfiles = layout->nfiles,
    };
    manifest->training = checkpoint->training;
    lap_ckpt_describe(checkpoint->nn, &manifest->layers);
    for (size_t f = 0; f < layout->nfiles; f++) {
        const lap_ckpt_file_t *file = &layout->files[f];
        snprintf(manifest->files[f].name, sizeof(manifest->files[f].name), "%s", file->name);
        manifest->files[f].bytes = file->bytes;
        manifest->files[f].header_sum = lap_st_sum(file->header, file->header_bytes, 0);
    }
}

static lap_status_t prepare_own(lap_checkpoint_t *checkpoint, const char *dir,
                                const lap_checkpoint_state_t *state)
{
    LAP_TRY(lap_ckpt_path(dir, state->step, "", checkpoint->dir));
    LAP_TRY(lap_ckpt_reserve(checkpoint));
    return lap_ckpt_copy(checkpoint, true);
}

/* Collective where ranks share the optimizer, or FP8 matrices with delayed scales. */
static lap_status_t prepare(lap_checkpoint_t *checkpoint, const char *dir,
                            const lap_checkpoint_state_t *state)
{
    lap_status_t status = prepare_own(checkpoint, dir, state);
    status = lap_ckpt_fp8_collect(checkpoint, status);
    return lap_ckpt_collect(checkpoint, status);
}

/* Rank 0 makes the files when all ranks have their copies. */
static lap_status_t make_files(lap_checkpoint_t *checkpoint, const char *dir, lap_status_t mine)
{
    LAP_TRY(lap_group_agree(checkpoint->group, mine));
    if (checkpoint->group->rank == 0)
        mine = lap_ckpt_folder_make(dir, checkpoint->dir, &checkpoint->layout);
    return lap_group_agree(checkpoint->group, mine);
}

lap_status_t lap_checkpoint_save(lap_checkpoint_t *checkpoint, const char *dir,
                                 const lap_checkpoint_state_t *state)
{
    lap_checkpoint_state_t known = LAP_CHECKPOINT_STATE_INIT;
    if (!checkpoint || !dir || !state)
        return lap_error(LAP_ERR_INVALID, "lap_checkpoint_save: %s is NULL",
                         !checkpoint ? "checkpoint"
                         : !dir      ? "dir"
                                     : "state");
    LAP_TRY(lap_read_options(&known, sizeof(known), state, "LAP_CHECKPOINT_STATE"));
    LAP_TRY(lap_checkpoint_wait(checkpoint));
    const char *before = lap_enter(checkpoint->group->world, "lap_checkpoint_save");
    const lap_status_t status = make_files(checkpoint, dir, prepare(checkpoint, dir, &known));
    lap_leave(checkpoint->group->world, before);
    LAP_TRY(status);
    begin_manifest(checkpoint, &known);
    atomic_store(&checkpoint->ended, false);
    checkpoint->saving = true;
    checkpoint->joined =
        lap_thread_start(&checkpoint->thread, "lap-checkpoint", write_all, checkpoint) != 0;
    if (checkpoint->joined) /* no thread to be had: then at once */
        write_all(checkpoint);
    return LAP_OK;
}

/* ---- ending ---- */

/* What ranks tell each other of their threads. */
typedef struct report {
    int ended;
    uint64_t sums[LAP_CKPT_FILES];
} report_t;

/* Whether the threads of all ranks have ended; adds up their sums. Collective. */
static lap_status_t collect_reports(lap_checkpoint_t *checkpoint, bool *ended_p)
{
    lap_ckpt_manifest_t *manifest = &checkpoint->manifest;
    report_t mine = {.ended = atomic_load_explicit(&checkpoint->ended, memory_order_acquire)};
    void *all;
    for (size_t f = 0; f < manifest->nfiles && mine.ended; f++)
        mine.sums[f] = manifest->files[f].sum;
    LAP_TRY(lap_group_collect(checkpoint->group, &mine, sizeof(mine), &all));
    const report_t *reports = all;
    *ended_p = true;
    for (int r = 0; r < checkpoint->group->size; r++)
        *ended_p = *ended_p && reports[r].ended;
    for (size_t f = 0; f < manifest->nfiles && *ended_p; f++) {
        manifest->files[f].sum = manifest->files[f].header_sum;
        for (int r = 0; r < checkpoint->group->size; r++)
            manifest->files[f].sum += reports[r].sums[f];
    }
    lap_free(all);
    return LAP_OK;
}

/* By rank 0, when all is written. */
static lap_status_t complete(const lap_checkpoint_t *checkpoint)
{
    char old[PATH_MAX + sizeof(LAP_CKPT_OLD)], parent[PATH_MAX];
    LAP_TRY(lap_ckpt_manifest_write(checkpoint->dir, &checkpoint->manifest));
    LAP_TRY(lap_ckpt_folder_sync(checkpoint->dir));
    snprintf(parent, sizeof(parent), "%s", checkpoint->dir);
    *strrchr(parent, '/') = '\0';
    LAP_TRY(lap_ckpt_folder_sync(*parent ? parent : "/"));
    snprintf(old, sizeof(old), "%s" LAP_CKPT_OLD, checkpoint->dir);
    lap_ckpt_folder_remove(old);
    return LAP_OK;
}

/* All threads have ended: what they have written becomes a checkpoint, or goes. */
static lap_status_t end_save(lap_checkpoint_t *checkpoint)
{
    lap_status_t mine = checkpoint->status;
    checkpoint->saving = false;
    if (mine != LAP_OK)
        lap_error(mine, "%s", checkpoint->sentence);
    lap_status_t status = lap_group_agree(checkpoint->group, mine);
    if (status == LAP_OK) {
        if (checkpoint->group->rank == 0)
            mine = complete(checkpoint);
        status = lap_group_agree(checkpoint->group, mine);
    }
    if (status != LAP_OK && checkpoint->group->rank == 0) {
        lap_saved_error_t saved;
        lap_error_save(&saved);
        lap_ckpt_folder_undo(checkpoint->dir);
        lap_error_restore(&saved);
    }
    return status;
}

static lap_status_t ask(lap_checkpoint_t *checkpoint, const char *caller)
{
    bool ended = false;
    if (!checkpoint)
        return lap_error(LAP_ERR_INVALID, "%s: checkpoint is NULL", caller);
    if (!checkpoint->saving)
        return LAP_OK;
    const char *before = lap_enter(checkpoint->group->world, caller);
    lap_status_t status = collect_reports(checkpoint, &ended);
    if (status == LAP_OK && ended && !checkpoint->joined) {
        pthread_join(checkpoint->thread, NULL);
        checkpoint->joined = true;
    }
    if (status == LAP_OK)
        status = ended ? end_save(checkpoint) : LAP_IN_PROGRESS;
    lap_leave(checkpoint->group->world, before);
    return status;
}

lap_status_t lap_checkpoint_poll(lap_checkpoint_t *checkpoint)
{
    return ask(checkpoint, "lap_checkpoint_poll");
}

/* Ranks ask each other all the time: none waits longer for another than its timeout allows, however slow a disk is. */
lap_status_t lap_checkpoint_wait(lap_checkpoint_t *checkpoint)
{
    const struct timespec pause = {.tv_nsec = 2000000};
    lap_status_t status;
    while ((status = ask(checkpoint, "lap_checkpoint_wait")) == LAP_IN_PROGRESS)
        nanosleep(&pause, NULL);
    return status;
}
