/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizers: how the fp32 masters of layers follow their fp32 gradients. The numbers are the same
 * on every run, and up to rounding for any number of ranks.
 *
 *   LAP_SGD    v = momentum v + g + weight_decay w; w -= lr v
 *   LAP_ADAMW  w -= lr weight_decay w; m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
 *              w -= lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon), in step t
 *
 * weight_decay is for matrices only, not for biases and norms. In the first warmup steps lr grows
 * linearly to its value. With lr_decay it then falls to min_lr, until step lr_decay_steps, and stays
 * there. With p the part of the steps from warmup to lr_decay_steps that has been made it is
 *
 *   LAP_LR_CONSTANT  lr
 *   LAP_LR_LINEAR    lr - (lr - min_lr) p
 *   LAP_LR_COSINE    min_lr + (lr - min_lr) (1 + cos(pi p)) / 2
 *
 * With clip_norm, gradients whose norm over all parameters is larger are scaled down to it: g is
 * g clip_norm / (norm + 1e-6).
 */
#ifndef LAP_OPTIMIZER_H
#define LAP_OPTIMIZER_H

#include <stddef.h>

#include <lap/export.h>
#include <lap/nn.h>
#include <lap/status.h>
#include <lap/world.h>

LAP_BEGIN_DECLS

/* An optimizer, with the state that it keeps of each parameter. */
typedef struct lap_optimizer lap_optimizer_t;

/* The kinds of optimizers, as above. */
typedef enum lap_optimizer_kind {
    LAP_SGD = 0,
    LAP_ADAMW = 1,
} lap_optimizer_kind_t;

/* How the learning rate falls, as above. */
typedef enum lap_lr_decay {
    LAP_LR_CONSTANT = 0,
    LAP_LR_LINEAR = 1,
    LAP_LR_COSINE = 2,
} lap_lr_decay_t;

/* The description of an optimizer: the same on every rank. */
typedef struct lap_optimizer_desc {
    size_t size; /* sizeof(lap_optimizer_desc_t), set by LAP_OPTIMIZER_DESC_INIT */
    lap_optimizer_kind_t kind;
    float lr;
    float momentum;              /* LAP_SGD */
    float beta1, beta2, epsilon; /* LAP_ADAMW; epsilon is above 0 */
    float weight_decay;
    float clip_norm; /* 0: never clipped, and no norm is computed */
    size_t warmup;   /* steps; 0: none */
    lap_lr_decay_t lr_decay;
    size_t lr_decay_steps; /* those of warmup, too; 0: it does not fall */
    float min_lr;          /* at most lr */
} lap_optimizer_desc_t;

/* AdamW with a learning rate of 0.001. */
#define LAP_OPTIMIZER_DESC_INIT                                                                    \
    {                                                                                              \
        sizeof(lap_optimizer_desc_t), LAP_ADAMW, 1e-3f, 0.0f, 0.9f, 0.999f, 1e-8f, 0.01f, 0.0f, 0, \
            LAP_LR_CONSTANT, 0, 0.0f                                                               \
    }

/*
 * Whether a description makes sense. Local. Returns LAP_ERR_INVALID with the field, its value and
 * what was expected, LAP_ERR_UNSUPPORTED (a field of a newer version).
 */
LAP_API lap_status_t lap_optimizer_validate(const lap_optimizer_desc_t *desc);

/* The learning rate of a step, counted from 1. Local; the description makes sense, or is NULL: 0. */
LAP_API double lap_optimizer_rate(const lap_optimizer_desc_t *desc, size_t step);

/*
 * Makes an optimizer for layers, which belong to `group` and have no other. Collective over the group
 * and, once lap_dp_create has joined the layers with their replicas, or where they share it, over these; every rank gives the
 * same description. Writes *optimizer_p on success; the caller destroys it before the layers. Blocks
 * until every rank has come. Returns as lap_optimizer_validate, LAP_ERR_INVALID (the layers have an
 * optimizer), LAP_ERR_MISMATCH (naming the field,
 * two ranks and both values), LAP_ERR_UNSUPPORTED (a device without kernels for it),
 * LAP_ERR_NO_MEMORY, LAP_ERR_PEER_LOST, LAP_ERR_TIMEOUT. When one rank fails, all do.
 */
LAP_API lap_status_t lap_optimizer_create(lap_nn_t *nn, lap_group_t *group,
                                          const lap_optimizer_desc_t *desc,
                                          lap_optimizer_t **optimizer_p);

/* Ends an optimizer, after its latest step. Local, NULL is fine. */
LAP_API void lap_optimizer_destroy(lap_optimizer_t *optimizer);

/*
 * One step: changes the masters and updates the copies of the weights. g is the gradients of
 * lap_nn_gradients times `scale`: 1, or the inverse of a factor by which they are too large.
 * It is issued, as a pass is, after those issued before; lap_nn_wait waits for it. The norm is summed
 * over ranks and compared with clip_norm where the gradients are: the host does not wait for it.
 * Collective over the group with clip_norm or FP8, else local; where ranks share the optimizer collective over
 * these, too, and without overlap_weights it blocks until they have gathered the weights. `norm_p` may be NULL; else the norm of the
 * scaled gradients before clipping is written to it, 0 without clip_norm, and with clip_norm the call
 * blocks until the step has ended. When the norm is not finite, nothing is changed, and the step does not
 * count.
 * Returns LAP_ERR_INVALID (nothing is changed; the gradients are of a part of a step: see
 * lap_nn_accumulate), or as lap_nn_forward and, where it blocks, lap_nn_wait.
 */
LAP_API lap_status_t lap_optimizer_step(lap_optimizer_t *optimizer, float scale, double *norm_p);

/*
 * The norm of the latest step, as lap_optimizer_step writes it. With clip_norm it blocks until that step
 * has ended; without, and before the first, it is 0 at once. Returns LAP_ERR_INVALID (NULL), or as lap_nn_wait.
 */
LAP_API lap_status_t lap_optimizer_norm(lap_optimizer_t *optimizer, double *norm_p);

/*
 * The state of an optimizer, for checkpoints: moment `which` (0, and with LAP_ADAMW 1) of all masters, and the
 * steps made so far. Moments lie as in lap_nn_masters, in the memory of the device. Where ranks share the
 * optimizer they are this rank's part, bucket after bucket.
 * Local. NULL past the last moment, and of NULL, without a count; `count_p` may be NULL. The caller waits for
 * the latest step (lap_nn_wait) before it reads any of them, and sets all of them before it goes on with those
 * of another.
 */
LAP_API float *lap_optimizer_moments(lap_optimizer_t *optimizer, size_t which, size_t *count_p);
LAP_API size_t lap_optimizer_steps(const lap_optimizer_t *optimizer);
LAP_API void lap_optimizer_set_steps(lap_optimizer_t *optimizer, size_t steps);

LAP_END_DECLS

#endif
