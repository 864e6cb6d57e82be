/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of a training: a step in its parts, for lap train and lap tune, which look at each;
 * and layers that are no model, which these measure. A step is
 *
 *     lap_trainer_read(trainer);
 *     for (size_t m = 0; m < lap_trainer_passes(trainer); m++) {
 *         lap_trainer_begin(trainer, m);
 *         lap_trainer_wait(trainer);
 *         lap_trainer_add_loss(trainer);
 *     }
 *     lap_trainer_sync(trainer, &result.loss);
 *     lap_trainer_update(trainer, &result);
 *     lap_trainer_end_step(trainer);
 *
 * Each part is collective over the world.
 */
#ifndef LAP_TRAIN_TRAINER_H
#define LAP_TRAIN_TRAINER_H

#include <lap/train.h>

#include <stdbool.h>

#include "nn/loss_scale.h"
#include "parallel/grid.h"

struct lap_checkpoint;
struct lap_device;

/* Called when a save has ended: what it returns is what comes of the training. */
typedef lap_status_t (*lap_trainer_saved_t)(void *context, uint64_t step, lap_status_t status);

struct lap_trainer {
    lap_trainer_desc_t desc;
    lap_nn_desc_t model;
    lap_optimizer_desc_t rates;
    lap_grid_groups_t groups;
    bool own_groups;
    lap_pp_t *pp; /* NULL: no pipeline */
    lap_nn_t *nn; /* of a pipeline: what this rank has of it */
    lap_optimizer_t *optimizer;
    lap_dp_t *dp;           /* NULL: one replica */
    uint64_t step, samples; /* so far */

    struct lap_device *device;
    int32_t *tokens, *targets; /* of all micro-batches of a model */
    lap_tensor_t x, target;    /* of other layers: of the first; those of the others follow it */
    lap_tensor_t y, dx;        /* of the one in work; dy takes the place of y */

    bool joins;             /* the optimizer's step is a part of the last pass, */
    bool whole;             /* and a pass one program */
    size_t micro;           /* the micro-batch in work */
    double loss;            /* of this step so far: a part of the mean of all micro-batches */
    size_t not_finite;      /* the first micro-batch whose loss is not; micro_batches: none */
    bool dynamic;           /* the scale of the loss changes, */
    lap_loss_scale_t scale; /* from this on */

    struct lap_checkpoint *checkpoint; /* NULL: nothing is saved or loaded */
    int lock;                          /* of the folder of saves, on the first rank; 0: none */
    uint64_t keep;                     /* checkpoints; 0: all */
    uint64_t saved, wanted;            /* steps of the latest, and of the one that is written */
    bool saving;                       /* one is being written */
    lap_trainer_saved_t on_saved;      /* NULL: a save that fails ends the training */
    void *saver;                       /* for it */
};

/* What a step came to, the same on every rank. */
typedef struct lap_trainer_result {
    double loss;
    double norm;    /* of the gradients; 0 where the optimizer does not clip */
    double scale;   /* of the loss, */
    bool skipped;   /* which was too large: no step was made */
    uint64_t skips; /* so far */
} lap_trainer_result_t;

/* ---- trainer.c ---- */

/*
 * Makes layers of any kind, optimizer and replicas on groups of the caller, not of the description.
 * Collective; lap_trainer_clear undoes it, also after a failure.
 */
lap_status_t lap_trainer_init(lap_trainer_t *trainer, const lap_grid_groups_t *groups,
                              const lap_trainer_desc_t *desc);
void lap_trainer_clear(lap_trainer_t *trainer);

/* ---- data.c ---- */

/* Memory for the data of a step, which lap_trainer_clear frees. Local. */
lap_status_t lap_trainer_data_init(lap_trainer_t *trainer);

/* Of all sequences of a step, which are dealt out in order, the first of a micro-batch here. */
uint64_t lap_trainer_first(const lap_trainer_t *trainer, size_t micro);

/* Of x or the target, what belongs to a micro-batch. */
lap_tensor_t lap_trainer_part(lap_tensor_t matrix, size_t micro);

/* Gets the data of a step, or makes them where layers are no model. All ranks fail together. */
lap_status_t lap_trainer_read(lap_trainer_t *trainer);

/* What a function of the description returned: with a sentence, if it has none. */
lap_status_t lap_trainer_explain(lap_status_t status, const char *what, uint64_t step);

/* ---- step.c ---- */

/* Says whether the optimizer's step joins the last pass, and whether a pass is one program. */
void lap_trainer_join(lap_trainer_t *trainer, bool joins, bool whole);

/* How often forward and backward are begun in a step: a pipeline has all micro-batches at once. */
size_t lap_trainer_passes(const lap_trainer_t *trainer);

/* Begins forward, loss and backward of a micro-batch, and a step that is a part of them. */
lap_status_t lap_trainer_begin(lap_trainer_t *trainer, size_t micro);

/* Waits for them; then adds their loss. */
lap_status_t lap_trainer_wait(lap_trainer_t *trainer);
lap_status_t lap_trainer_add_loss(lap_trainer_t *trainer);

/* Waits for the gradients of replicas. Writes the mean loss of all micro-batches and replicas. */
lap_status_t lap_trainer_sync(lap_trainer_t *trainer, double *loss_p);

/* Makes the optimizer's step, if no pass has, and waits for it. Writes all but the loss. */
lap_status_t lap_trainer_update(lap_trainer_t *trainer, lap_trainer_result_t *result);

/* The digest of the programs of all ranks (schedule/digest.h) in the latest step that was not traced; 0: there was none. */
lap_status_t lap_trainer_digest(lap_trainer_t *trainer, uint64_t *digest_p);

/* Looks for the first tensor that is not finite, where the `loss`, or else the norm, is not. */
lap_status_t lap_trainer_find_not_finite(lap_trainer_t *trainer, double loss,
                                         lap_nn_not_finite_t *found);

/* ---- save.c ---- */

/* Makes what saves and loads, if anything does, and locks the folder. Goes on from a checkpoint. */
lap_status_t lap_trainer_open(lap_trainer_t *trainer);
lap_status_t lap_trainer_load(lap_trainer_t *trainer);

/* Counts a step. Begins to save where that is due before the last, or looks how a save goes. */
lap_status_t lap_trainer_end_step(lap_trainer_t *trainer);

/* Waits for a save in progress; before that saves the `last` step, if so. */
lap_status_t lap_trainer_end(lap_trainer_t *trainer, bool last);

/*
 * Returns a failure that all ranks have, of which they have told each other. They finish a save
 * together while they can: no step may follow. Where a rank has died meanwhile this ends at once.
 */
lap_status_t lap_trainer_fail(lap_trainer_t *trainer, lap_status_t status);

#endif
