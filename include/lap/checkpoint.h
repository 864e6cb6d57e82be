/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints: weights, state of the optimizer, and how far training is, in global terms, so that any grid
 * of ranks reads what any other has written. A checkpoint is a folder DIR/step-00000050:
 *
 *   model.safetensors      the fp32 masters of all weights. Models that are made like GPT-2 or Llama have the
 *                          names and shapes of Hugging Face's transformers, and config.json in the same folder;
 *                          others those of lap_nn_param
 *   optimizer.safetensors  the moments of each, as NAME.exp_avg and NAME.exp_avg_sq (AdamW) or
 *                          NAME.momentum_buffer (SGD)
 *   fp8.safetensors        with delayed FP8 scaling: of each matrix that has a history its magnitudes, as
 *                          GEMM.input.amax_history and GEMM.grad_output.amax_history, such as layer0.fc1.input: in
 *                          the shape [dp, cp, 1 + history], the largest since scales were renewed and those of the
 *                          renewals before, the newest first
 *   manifest.json          step, samples, the size and checksum of each file, and the fields of lap_nn_desc_t
 *                          that change what the layers compute with their weights
 *
 * The manifest is written last and put in its place by a rename: a folder without it is a checkpoint that
 * was not finished, and counts for nothing. A kill at any moment leaves those that were there whole.
 *
 * On the same grid training goes on bit for bit. On another one weights and moments are the same bits, and
 * losses differ by rounding. A matrix of FP8 is one for the ranks that share weights, so that their number may
 * change; replicas and ranks that share sequences have matrices of their own. Where the number of either is
 * another one, the magnitudes are the largest of all of them. A checkpoint without magnitudes gives delayed
 * scaling none, and a warning; without delayed scaling they are not read.
 *
 * All ranks write their parts of the same files, which must be on a file system that all of them see.
 */
#ifndef LAP_CHECKPOINT_H
#define LAP_CHECKPOINT_H

#include <stddef.h>
#include <stdint.h>

#include <lap/export.h>
#include <lap/nn.h>
#include <lap/optimizer.h>
#include <lap/status.h>
#include <lap/world.h>

LAP_BEGIN_DECLS

/* What saves and loads the layers of a rank. */
typedef struct lap_checkpoint lap_checkpoint_t;

/* How far training is. */
typedef struct lap_checkpoint_state {
    size_t size;      /* sizeof(lap_checkpoint_state_t), set by LAP_CHECKPOINT_STATE_INIT */
    uint64_t step;    /* steps made */
    uint64_t samples; /* of the data that they have seen: the next step begins with this one */
} lap_checkpoint_state_t;

/* The state of training that has not begun. */
#define LAP_CHECKPOINT_STATE_INIT                                                                  \
    {                                                                                              \
        sizeof(lap_checkpoint_state_t), 0, 0                                                       \
    }

/*
 * Makes what saves and loads layers and their optimizer, which may be NULL. `group` is all ranks that
 * train them: those that share the weights, and their replicas.
 * Local. Writes *checkpoint_p on success; the caller destroys it before the optimizer and the layers.
 * Returns LAP_ERR_INVALID, LAP_ERR_NO_MEMORY.
 */
LAP_API lap_status_t lap_checkpoint_create(lap_group_t *group, lap_nn_t *nn,
                                           lap_optimizer_t *optimizer,
                                           lap_checkpoint_t **checkpoint_p);

/* Ends it. Local, NULL is fine. A save in progress is waited for, and is not finished. */
LAP_API void lap_checkpoint_destroy(lap_checkpoint_t *checkpoint);

/*
 * Begins to write a checkpoint into DIR/step-N, N being state->step. `dir` is made if it is not there. A
 * checkpoint of that step, whole or damaged, is replaced when the new one is whole; one without a manifest at once. One whose
 * manifest cannot be read, or is of a newer version, stays, and is a failure.
 * Collective; every rank gives the same. Waits for the passes, and for a save before it; copies weights
 * and moments to memory of the host, which a thread then writes: training may go on.
 * Returns LAP_ERR_INVALID, LAP_ERR_NO_MEMORY, LAP_ERR_SYSTEM (such as a full disk: what was there before is
 * as it was, and training may go on); all ranks fail then. Else as lap_group_barrier.
 */
LAP_API lap_status_t lap_checkpoint_save(lap_checkpoint_t *checkpoint, const char *dir,
                                         const lap_checkpoint_state_t *state);

/*
 * Asks whether the save in progress has ended, and finishes it then; lap_checkpoint_wait waits for it. For
 * after each step. Collective; every rank gets the same. Returns LAP_OK (it is whole, or there is none),
 * LAP_IN_PROGRESS, and as lap_checkpoint_save.
 */
LAP_API lap_status_t lap_checkpoint_poll(lap_checkpoint_t *checkpoint);
LAP_API lap_status_t lap_checkpoint_wait(lap_checkpoint_t *checkpoint);

/*
 * Reads the newest whole checkpoint in `dir`, or `dir` itself if that is one. What is damaged is named in a
 * warning, and the checkpoint before it is taken. A folder with files of safetensors and without
 * checkpoints, or one such file, gives weights only: from another program.
 * A checkpoint of other layers is refused: by a tensor that is missing, of another shape or not used, and by
 * each field that changes what layers compute (not seq, batch, dtype and the like). One of an older version
 * does not have the fields; a warning says so. Files of other programs are compared by tensors, and by the
 * keys of config.json that change what a model computes (heads, epsilon, activation, rotary positions, windows),
 * where that is in the same folder; a warning says where it is not. A config.json that is no JSON, or says otherwise than the
 * manifest, makes a checkpoint a damaged one; where it is missing there is a warning. A folder without a manifest that has
 * moments, or a checkpoint's name, is what is left of one, and refused; its file of weights alone can be given.
 * Collective. Writes *state_p on success; its size is set by the caller. Weights and moments are unchanged
 * after a failure.
 * Returns LAP_ERR_INVALID (there is none that is whole, or it is of other layers: with its name and what
 * was expected), LAP_ERR_UNSUPPORTED (`dir` itself is one of a newer version), LAP_ERR_SYSTEM, LAP_ERR_NO_MEMORY, else as
 * lap_group_barrier; the same on all ranks.
 */
LAP_API lap_status_t lap_checkpoint_load(lap_checkpoint_t *checkpoint, const char *dir,
                                         lap_checkpoint_state_t *state_p);

LAP_END_DECLS

#endif
