/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of transformer layers on a GPU but attention. */
#include "device/cuda/cuda_elements.cuh"
#include "nn/cuda/nn_cuda_kernels.h"
#include "util/random.h"
