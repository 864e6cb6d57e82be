/* SPDX-License-Identifier: Apache-2.0 */
/* What attention.c and attention.cu have in common. Plain C that is C++ as well. */
#ifndef LAP_NN_CUDA_ATTENTION_KERNELS_H
#define LAP_NN_CUDA_ATTENTION_KERNELS_H

#endif
