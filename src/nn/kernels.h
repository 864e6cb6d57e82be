/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The numeric kernels of transformer layers that are no GEMMs: a table per device. Each is issued
 * to a stream and runs in its order; the memory it is given must live until it has run. What the
 * devices have already is not here: casts are theirs, scaled sums and GELU are their reductions
 * (see device.h), residual sums the epilogues of GEMMs.
 */
#ifndef LAP_NN_KERNELS_H
#define LAP_NN_KERNELS_H

#include "device/device.h"
#include "nn/kernel_args.h"
#include "schedule/target.h"

/* The kernels that need no more than their arguments, a row each: the slot and its arguments. */
#define LAP_NN_SLOT_LIST(X)                                                                        \
    X(norm_forward, lap_norm_forward_t)                                                            \
    X(norm_backward, lap_norm_backward_t)                                                          \
    X(swiglu_forward, lap_swiglu_t)                                                                \
    X(swiglu_backward, lap_swiglu_t)                                                               \
    X(square_loss, lap_square_loss_t)                                                              \
    X(fill_normal, lap_fill_normal_t)                                                              \
    X(amax, lap_amax_t)                                                                            \
    X(fp8_scales, lap_fp8_scales_t)                                                                \
    X(sum_squares, lap_sum_squares_t)                                                              \
    X(total, lap_total_t)                                                                          \
    X(clip, lap_clip_t)                                                                            \
    X(update, lap_update_t)                                                                        \
    X(embedding, lap_embedding_t)                                                                  \
    X(embedding_backward, lap_embedding_backward_t)                                                \
    X(rope, lap_rope_t)                                                                            \
    X(dropout, lap_dropout_t)                                                                      \
    X(logit_stats, lap_cross_entropy_t)                                                            \
    X(cross_entropy, lap_cross_entropy_t)

typedef struct lap_nn_kernels {
    const char *device; /* whose kernels they are */
    /* Makes a device ready for all that follows, unless it is. May wait for the device. */
    lap_status_t (*prepare)(lap_device_t *device);
    size_t (*norm_scratch)(size_t rows, size_t cols);
    size_t (*attention_scratch)(const lap_attention_t *attention);
    lap_status_t (*attention_forward)(lap_stream_t *stream, const lap_attention_t *attention);
    lap_status_t (*attention_backward)(lap_stream_t *stream, const lap_attention_t *attention);
/* NOLINTNEXTLINE(bugprone-macro-parentheses): a type cannot stand in parentheses */
#define SLOT(name, args_t) lap_status_t (*name)(lap_stream_t * stream, const args_t *args);
    LAP_NN_SLOT_LIST(SLOT)
#undef SLOT
} lap_nn_kernels_t;

/* The table of the device of this name: to ask it for sizes. */
lap_status_t lap_nn_kernels_find(const char *device, const lap_nn_kernels_t **kernels_p);

/*
 * The table of the device of a target, which has sizes alone where this build has no such device; NULL for a host, as those
 * of the device cpu serve then. LAP_ERR_UNSUPPORTED names a kernel that the device does not have: a program for the
 * target could be proved and not be run.
 */
lap_status_t lap_nn_kernels_for(const lap_target_t *target, const lap_nn_kernels_t **kernels_p);

/*
 * The table of a device, which is prepared. LAP_ERR_UNSUPPORTED names the device that has none, or the
 * kernel that it does not have.
 */
lap_status_t lap_nn_kernels_of(lap_device_t *device, const lap_nn_kernels_t **kernels_p);

#endif
