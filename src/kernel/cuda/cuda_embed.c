/* SPDX-License-Identifier: Apache-2.0 */
/* The compiled kernels of transformer layers. */
#include "util/embed.h"

LAP_EMBED(lap_kernel_cuda_fatbin, LAP_KERNEL_CUDA_FATBIN);
LAP_EMBED(lap_kernel_cuda_attention_fatbin, LAP_ATTENTION_FATBIN);

extern const unsigned char lap_kernel_cuda_fatbin[], lap_kernel_cuda_attention_fatbin[];
