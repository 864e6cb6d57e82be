/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The training of a language model as one object: its layers, optimizer, replicas and checkpoints, from a
 * description, with calls back for data and for what is logged. The ranks of a world are a grid: tp neighbours
 * share the weights of a layer, cp ranks each sequence, pp ranks the layers, and dp replicas the sequences of a step.
 *
 *     lap_nn_desc_t model = LAP_NN_DESC_INIT;
 *     lap_model_preset("gpt", &model);
 *     lap_trainer_desc_t desc = LAP_TRAINER_DESC_INIT;
 *     desc.model = &model;
 *     desc.tp = 2;
 *     desc.steps = 100;
 *     desc.data = read_samples;
 *     desc.log = print_step;
 *     lap_trainer_create(world, &desc, &trainer);
 *     lap_trainer_run(trainer);
 *     lap_trainer_destroy(trainer);
 *
 * The same description gives the same losses, up to rounding, on any grid.
 */
#ifndef LAP_TRAIN_H
#define LAP_TRAIN_H

#include <stddef.h>
#include <stdint.h>

#include <lap/data_parallel.h>
#include <lap/export.h>
#include <lap/model.h>
#include <lap/nn.h>
#include <lap/optimizer.h>
#include <lap/pipeline.h>
#include <lap/status.h>
#include <lap/world.h>

LAP_BEGIN_DECLS

/* A training, seen from one rank. */
typedef struct lap_trainer lap_trainer_t;

/* What a step came to, the same on every rank. */
typedef struct lap_trainer_log {
    uint64_t step;    /* from 1; those of a checkpoint that was loaded count */
    double loss;      /* the mean over all sequences of the step */
    double grad_norm; /* before clipping; 0 without clip_norm */
    double lr;
    double seconds;   /* of this rank */
    uint64_t samples; /* sequences that the model has seen so far */
} lap_trainer_log_t;

/*
 * Gives the tokens and targets of `count` samples from `first` on, both [count, seq], as lap_model_forward
 * takes them. Sample n must be the same whichever rank asks for it. A failure ends the training with it.
 */
typedef lap_status_t (*lap_trainer_data_t)(void *context, uint64_t first, size_t count, size_t seq,
                                           int32_t *tokens, int32_t *targets);

/* Called after each step, on every rank. A status other than LAP_OK ends the training with it. */
typedef lap_status_t (*lap_trainer_log_fn_t)(void *context, const lap_trainer_log_t *log);

/* The description of a training: the same on every rank, the place of checkpoints too, but for the contexts. */
typedef struct lap_trainer_desc {
    size_t size;                /* sizeof(lap_trainer_desc_t), set by LAP_TRAINER_DESC_INIT */
    const lap_nn_desc_t *model; /* of the kind LAP_NN_MODEL; batch is that of a micro-batch */
    int tp, dp; /* times cp and pp: the number of ranks; dp 0: as many as there are */
    size_t micro_batches;
    const lap_optimizer_desc_t *optimizer; /* with the schedule of its rate; NULL: the defaults */
    const lap_dp_options_t *replicas; /* how gradients travel; NULL: the defaults, overlapped */
    uint64_t steps;                   /* in all, with those of a checkpoint */
    lap_trainer_data_t data;
    lap_trainer_log_fn_t log; /* NULL: nothing is logged */
    void *context;            /* for both */
    const char *save;         /* a folder for checkpoints; NULL: none */
    uint64_t save_every;      /* steps, and after the last one; 0: then only */
    const char *load; /* to go on from, as lap_checkpoint_load has it; NULL: from the seed */
    int distributed_optimizer; /* replicas share the optimizer: see lap/data_parallel.h */
    int cp;                    /* ranks that share each sequence, as the model's cp_comm says */
    int pp;                    /* ranks of a pipeline, see lap/pipeline.h; 1: there is none */
    const lap_pp_options_t *pipeline; /* ... micro_batches are those above; NULL: the defaults */
} lap_trainer_desc_t;

/* A description in which the model, steps and data are still to be set. */
#define LAP_TRAINER_DESC_INIT                                                                      \
    {                                                                                              \
        sizeof(lap_trainer_desc_t), NULL, 1, 0, 1, NULL, NULL, 0, NULL, NULL, NULL, NULL, 0, NULL, \
            0, 1, 1, NULL                                                                          \
    }

/*
 * Makes a training, and loads what it goes on from. Collective over the ranks of the world. The strings
 * of the description live as long as the training, and so does a lock of the folder of `save`. Writes
 * *trainer_p on success; the caller destroys it before the world.
 * Returns LAP_ERR_INVALID with the field, its value and what was expected, or where another training saves
 * into `save`; LAP_ERR_MISMATCH with the field in which ranks differ; LAP_ERR_SYSTEM when checkpoints cannot
 * be written to `save`; or as lap_nn_create, lap_pp_create, lap_optimizer_create, lap_dp_create and
 * lap_checkpoint_load.
 */
LAP_API lap_status_t lap_trainer_create(lap_world_t *world, const lap_trainer_desc_t *desc,
                                        lap_trainer_t **trainer_p);

/*
 * Ends it. Local, NULL is fine. A checkpoint that is still being written is not finished, as
 * lap_checkpoint_destroy says: there is none after the last step, nor after one that failed on all ranks.
 */
LAP_API void lap_trainer_destroy(lap_trainer_t *trainer);

/*
 * Makes one step: data, forward, backward, gradients between replicas, the optimizer, and a checkpoint where
 * one is due; then logs it. Collective. Blocks until the step has ended. A checkpoint is written while training
 * goes on, and finished by a later step; the last of `steps`, and those after it, block until it is whole.
 * Writes *log_p, which may be NULL.
 * Returns LAP_ERR_INVALID when the loss or the norm is not finite, naming the step; what the calls back
 * return; or the failure of what it does. After the first two, which all ranks have, a checkpoint that is still being
 * written is whole: the step blocks until it is. After a failure of a rank alone, such as its death, it is not, since
 * nobody knows what that rank has written: the checkpoint before it counts.
 */
LAP_API lap_status_t lap_trainer_step(lap_trainer_t *trainer, lap_trainer_log_t *log_p);

/* Makes all steps that are left, with the checkpoint after the last. Collective. Returns as lap_trainer_step. */
LAP_API lap_status_t lap_trainer_run(lap_trainer_t *trainer);

/*
 * The layers of a training, for all calls of lap/nn.h and lap/model.h between two steps, or lap_pp_layers of a
 * pipeline; the group that shares them; and the steps made so far. With distributed_optimizer, lap_nn_refresh on all ranks comes
 * first: weights of other ranks are those of the step before until then. Local. The trainer owns both.
 */
LAP_API lap_nn_t *lap_trainer_model(lap_trainer_t *trainer);
LAP_API lap_group_t *lap_trainer_group(lap_trainer_t *trainer);
LAP_API uint64_t lap_trainer_steps(const lap_trainer_t *trainer);

LAP_END_DECLS

#endif
