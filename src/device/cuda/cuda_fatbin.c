/* SPDX-License-Identifier: Apache-2.0 */
/* The compiled kernels of the device. */
#include "device/cuda/cuda_fatbin.h"

LAP_CUDA_EMBED(lap_cuda_fatbin, LAP_CUDA_FATBIN);

extern const unsigned char lap_cuda_fatbin[];
