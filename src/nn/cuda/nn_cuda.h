/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of transformer layers on a GPU, as slots of nn/kernels.h. There are two fatbins, each
 * with its list: nn_kernels.cu, whose arguments are in nn_cuda_kernels.h and whose slots are in
 * nn_cuda.c, and attention.cu with attention_kernels.h and attention.c.
 *
 * A list is a lap_cuda_code_t: the fatbin's symbol, the names of its kernels, how much dynamic
 * shared memory they may take, and how much memory a stream needs for them. It is loaded once per
 * device, when layers are made on it; lap_cuda_code_launch launches entries of it by their numbers.
 */
#ifndef LAP_NN_CUDA_NN_CUDA_H
#define LAP_NN_CUDA_NN_CUDA_H

#include "device/cuda/cuda.h"
#include "nn/kernels.h"

/* See nn_cuda_fatbin.c. */
extern const unsigned char lap_nn_cuda_fatbin[];
extern const unsigned char lap_nn_cuda_attention_fatbin[];

/* Loads the kernels of attention.cu: lap_cuda_code_load. */
lap_status_t lap_nn_cuda_attention_prepare(lap_cuda_device_t *device);

/* The slots of attention.c. */
lap_status_t lap_nn_cuda_attention_forward(lap_stream_t *stream, const lap_attention_t *attention);
lap_status_t lap_nn_cuda_attention_backward(lap_stream_t *stream, const lap_attention_t *attention);

extern const lap_nn_kernels_t lap_nn_cuda_kernels;

#endif
