/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel/cuda/cuda_sizes.h"

#define NORM_BLOCKS 264u   /* of lap_norm_backward, two for each multiprocessor; more of them */
#define NORM_COLUMNS 4096u /* where there are fewer columns than these */

size_t lap_kernel_cuda_norm_parts(size_t rows, size_t cols)
{
    const size_t most = NORM_BLOCKS * (cols < NORM_COLUMNS ? NORM_COLUMNS / cols : 1);
    return rows < most ? rows : most;
}

size_t lap_kernel_cuda_norm_scratch(size_t rows, size_t cols)
{
    return 2 * lap_kernel_cuda_norm_parts(rows, cols) * cols * sizeof(float);
}

/* For delta: a number for each query of each head. */
size_t lap_kernel_cuda_attention_scratch(const lap_attention_t *attention)
{
    return attention->heads * attention->batch * attention->seq * sizeof(float);
}

const lap_kernels_t lap_kernel_cuda_sizes = {
    .device = "cuda",
    .norm_scratch = lap_kernel_cuda_norm_scratch,
    .attention_scratch = lap_kernel_cuda_attention_scratch,
};
