/* SPDX-License-Identifier: Apache-2.0 */
/* The compiled kernels of the device. */
#include "util/embed.h"

LAP_EMBED(lap_cuda_fatbin, LAP_CUDA_FATBIN);

extern const unsigned char lap_cuda_fatbin[];
