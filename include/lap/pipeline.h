/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pipeline parallelism: a language model is cut into stages of consecutive layers. Each rank of a group
 * holds one or more of them. The micro-batches of a step go through all stages, forward and back.
 * The order in which a rank works on them is a table. One is made by its name,
 *
 *   1f1b         after the forwards that fill the pipeline, one forward and one backward in turn
 *   interleaved  the same with `virtual_stages` stages on each rank
 *   zb-h1        backward in two parts, of which that of the weights fills idle time
 *   zb-v         the same with two stages on each rank, the second ones in the reverse order of ranks
 *   1f1b-eager   1f1b with more forwards before, so that messages are hidden, for twice the activations
 *
 * or read from a file: a line for each rank, with actions such as 0F3 between commas (stage 0, forward,
 * micro-batch 3; B: backward, I and W: its two parts), as PyTorch stores its pipeline schedules.
 *
 * A table is proved before anything is made: one that misses a micro-batch, or in which ranks wait for
 * each other, is refused. Activations and their gradients are put into buffers of the receiver, which
 * gives a credit for each, while ranks compute.
 *
 *     lap_pp_options_t options = LAP_PP_OPTIONS_INIT;
 *     options.micro_batches = 8;
 *     lap_pp_create(tp, stages, &desc, &options, &pp);
 *     lap_optimizer_create(lap_pp_layers(pp), model, &adam, &optimizer);
 *     for (int i = 0; i < steps; i++) {
 *         lap_pp_step(pp, desc.seq, tokens, targets);
 *         lap_pp_wait(pp);
 *         lap_pp_loss(pp, &loss);
 *         lap_optimizer_step(optimizer, 1.0f / 8, &norm);
 *     }
 */
#ifndef LAP_PIPELINE_H
#define LAP_PIPELINE_H

#include <stddef.h>
#include <stdint.h>

#include <lap/buffer.h>
#include <lap/export.h>
#include <lap/nn.h>
#include <lap/status.h>
#include <lap/world.h>

LAP_BEGIN_DECLS

/* A rank of a pipeline. */
typedef struct lap_pp lap_pp_t;

/* Options of lap_pp_create. */
typedef struct lap_pp_options {
    size_t size;                    /* sizeof(lap_pp_options_t), set by LAP_PP_OPTIONS_INIT */
    const char *schedule;           /* a name as above, or that of a file that ends with .csv */
    size_t micro_batches;           /* of a step */
    size_t virtual_stages;          /* of a rank; 0: as many as the schedule needs */
    const size_t *layers_per_stage; /* of each stage, or NULL: as evenly as can be */
    size_t nlayers_per_stage;       /* how many these are */
    int overlap;                    /* 0: messages are in line with computing */
    const lap_buffer_options_t *buffer_options; /* of the buffers of messages; NULL: the defaults */
} lap_pp_options_t;

/* The options that are meant by NULL. */
#define LAP_PP_OPTIONS_INIT                                                                        \
    {                                                                                              \
        sizeof(lap_pp_options_t), "1f1b", 1, 0, NULL, 0, 1, NULL                                   \
    }

/*
 * Whether a pipeline of `nranks` ranks, each with `tp` ranks that share its layers, can be made of a
 * model: its table is proved, and so is that its layers can be cut.
 * Local. Returns LAP_ERR_INVALID, LAP_ERR_UNSUPPORTED, LAP_ERR_CHECK (the table: with rank and action),
 * LAP_ERR_SYSTEM (a file that cannot be read), LAP_ERR_NO_MEMORY.
 */
LAP_API lap_status_t lap_pp_validate(const lap_nn_desc_t *desc, int tp, int nranks,
                                     const lap_pp_options_t *options);

/*
 * Makes the stages that this rank has of a model (`desc` of kind LAP_NN_MODEL describes all of it, and
 * a micro-batch). Rank p of `pipeline` is rank p of the table; `group` are the ranks that share these
 * stages, with `desc.overlap` and `desc.buffer_options` as in lap_nn_create.
 * Collective over both groups; all ranks give the same description and options. The groups must live
 * as long as it does. `options` may be NULL. Writes *pp_p on success; the caller destroys it.
 * Returns as lap_pp_validate and lap_nn_create.
 */
LAP_API lap_status_t lap_pp_create(lap_group_t *group, lap_group_t *pipeline,
                                   const lap_nn_desc_t *desc, const lap_pp_options_t *options,
                                   lap_pp_t **pp_p);

/* Ends it. Local, NULL is fine. What was made for its layers ends before. */
LAP_API void lap_pp_destroy(lap_pp_t *pp);

/*
 * The layers that this rank has, for an optimizer, replicas and checkpoints, and for lap_model_samples
 * before a step with dropout: micro-batches count on from there. They belong to pp. An
 * optimizer is made over all ranks that have parts of the model: those of all stages.
 */
LAP_API lap_nn_t *lap_pp_layers(lap_pp_t *pp);

/*
 * Begins forward, loss and backward of all micro-batches of a step. `tokens` and `targets` are
 * [micro_batches, batch, seq], as in lap_model_forward, and may change when the call has returned.
 * Gradients are the sums over the micro-batches; those of tied weights are the same on both ranks that
 * have them. Collective over both groups; every rank gives the same arguments. Does not wait for the
 * end. Where a rank's arguments are wrong, nobody waits for it: its groups are broken, and the others report the reason.
 * Returns as lap_model_forward.
 */
LAP_API lap_status_t lap_pp_step(lap_pp_t *pp, size_t seq, const int32_t *tokens,
                                 const int32_t *targets);

/*
 * Waits for the end of the step, if one was begun. Where replicas were joined with the layers (lap_dp_create), the
 * last backward of each stage has sent its gradients, in the background: lap_dp_wait waits for these.
 * Returns as lap_nn_wait.
 */
LAP_API lap_status_t lap_pp_wait(lap_pp_t *pp);

/*
 * The mean of the losses of the micro-batches of the latest step, which was waited for. Collective over
 * the pipeline. Writes *loss_p on success. Returns LAP_ERR_INVALID, and as lap_group_allgather.
 */
LAP_API lap_status_t lap_pp_loss(lap_pp_t *pp, double *loss_p);

LAP_END_DECLS

#endif
