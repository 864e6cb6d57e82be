/* SPDX-License-Identifier: Apache-2.0 */
/* The compiled kernels of transformer layers. */
#include "util/embed.h"

LAP_EMBED(lap_nn_cuda_fatbin, LAP_NN_CUDA_FATBIN);
LAP_EMBED(lap_nn_cuda_attention_fatbin, LAP_ATTENTION_FATBIN);

extern const unsigned char lap_nn_cuda_fatbin[], lap_nn_cuda_attention_fatbin[];
