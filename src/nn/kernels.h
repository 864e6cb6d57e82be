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

typedef struct lap_nn_kernels {
    const char *device; /* whose kernels they are */
    /* Makes a device ready for all that follows, unless it is. May wait for the device. */
    lap_status_t (*prepare)(lap_device_t *device);
    size_t (*norm_scratch)(size_t rows, size_t cols);
    lap_status_t (*norm_forward)(lap_stream_t *stream, const lap_norm_forward_t *norm);
    lap_status_t (*norm_backward)(lap_stream_t *stream, const lap_norm_backward_t *norm);
    size_t (*attention_scratch)(const lap_attention_t *attention);
    lap_status_t (*attention_forward)(lap_stream_t *stream, const lap_attention_t *attention);
    lap_status_t (*attention_backward)(lap_stream_t *stream, const lap_attention_t *attention);
    lap_status_t (*swiglu_forward)(lap_stream_t *stream, const lap_swiglu_t *swiglu);
    lap_status_t (*swiglu_backward)(lap_stream_t *stream, const lap_swiglu_t *swiglu);
    lap_status_t (*square_loss)(lap_stream_t *stream, const lap_square_loss_t *loss);
    lap_status_t (*fill_normal)(lap_stream_t *stream, const lap_fill_normal_t *fill);
    lap_status_t (*amax)(lap_stream_t *stream, const lap_amax_t *amax);
    lap_status_t (*fp8_scales)(lap_stream_t *stream, const lap_fp8_scales_t *scales);
    lap_status_t (*sum_squares)(lap_stream_t *stream, const lap_sum_squares_t *sum);
    lap_status_t (*total)(lap_stream_t *stream, const lap_total_t *total);
    lap_status_t (*clip)(lap_stream_t *stream, const lap_clip_t *clip);
    lap_status_t (*update)(lap_stream_t *stream, const lap_update_t *update);
    /* ---- of language models ---- */
    lap_status_t (*embedding)(lap_stream_t *stream, const lap_embedding_t *embedding);
    lap_status_t (*embedding_backward)(lap_stream_t *stream, const lap_embedding_backward_t *back);
    lap_status_t (*rope)(lap_stream_t *stream, const lap_rope_t *rope);
    lap_status_t (*dropout)(lap_stream_t *stream, const lap_dropout_t *dropout);
    lap_status_t (*logit_stats)(lap_stream_t *stream, const lap_cross_entropy_t *entropy);
    lap_status_t (*cross_entropy)(lap_stream_t *stream, const lap_cross_entropy_t *entropy);
} lap_nn_kernels_t;

/* The table of the device of this name: to ask it for sizes. */
lap_status_t lap_nn_kernels_find(const char *device, const lap_nn_kernels_t **kernels_p);

/* The table of a device, which is prepared. LAP_ERR_UNSUPPORTED names it when there is none. */
lap_status_t lap_nn_kernels_of(lap_device_t *device, const lap_nn_kernels_t **kernels_p);

#endif
