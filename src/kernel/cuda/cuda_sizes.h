/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that kernels of a GPU need beside their arguments. Every build has it: what is proved, simulated and planned for GPUs
 * is the same without CUDA.
 */
#ifndef LAP_KERNEL_CUDA_CUDA_SIZES_H
#define LAP_KERNEL_CUDA_CUDA_SIZES_H

#include "kernel/kernel.h"

/* Blocks of lap_norm_backward at most. */
size_t lap_kernel_cuda_norm_parts(size_t rows, size_t cols);

/* Slots of the table of kernels. */
size_t lap_kernel_cuda_norm_scratch(size_t rows, size_t cols);
size_t lap_kernel_cuda_attention_scratch(const lap_attention_t *attention);

/* A table with these and no kernels. */
extern const lap_kernels_t lap_kernel_cuda_sizes;

#endif
