/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of transformer layers on a GPU, as slots of kernel/kernel.h. There are two fatbins, each
 * with its list: layers.cu, whose arguments are in cuda_args.h and whose slots are in
 * cuda_layers.c, and attention.cu with attention_kernels.h and attention.c.
 *
 * A list is a lap_cuda_code_t: the fatbin's symbol, the names of its kernels, how much dynamic
 * shared memory they may take, and how much memory a stream needs for them. It is loaded once per
 * device, when layers are made on it; lap_cuda_code_launch launches entries of it by their numbers.
 */
#ifndef LAP_KERNEL_CUDA_CUDA_LAYERS_H
#define LAP_KERNEL_CUDA_CUDA_LAYERS_H

#include "device/cuda/cuda.h"
#include "kernel/kernel.h"

/* See cuda_embed.c. */
extern const unsigned char lap_kernel_cuda_fatbin[];
extern const unsigned char lap_kernel_cuda_attention_fatbin[];

/* Loads the kernels of attention.cu: lap_cuda_code_load. */
lap_status_t lap_kernel_cuda_attention_prepare(lap_cuda_device_t *device);

/* The slots of attention.c. */
lap_status_t lap_kernel_cuda_attention_forward(lap_stream_t *stream,
                                               const lap_attention_t *attention);
lap_status_t lap_kernel_cuda_attention_backward(lap_stream_t *stream,
                                                const lap_attention_t *attention);

extern const lap_kernels_t lap_cuda_kernels;

#endif
