/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of attention. */
#include "device/cuda/cuda_elements.cuh"
#include "nn/cuda/attention_kernels.h"
