/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic that kernels of several files share: sums over lanes, magnitudes, and powers of 2. */
#ifndef LAP_DEVICE_CUDA_CUDA_MATH_CUH
#define LAP_DEVICE_CUDA_CUDA_MATH_CUH

#include <stdint.h>

/*
 * The sum over a warp, or over each `lanes` of it, a power of two, that follow one another. All of
 * them get the same bits: at each step both of a pair add the same two numbers.
 */
template <typename number> static __device__ inline number warp_sum(number x, int lanes = 32)
{
    for (int other = lanes / 2; other > 0; other /= 2)
        x += __shfl_xor_sync(~0u, x, other);
    return x;
}

/* Magnitudes are compared by their bits, where NaN is above infinity. */
static __device__ inline uint32_t larger(uint32_t most, float x)
{
    const uint32_t size = __float_as_uint(x) & 0x7fffffff;
    return size > most ? size : most;
}

/* 2^x, off by 2 units in the last place at most; 0 below 2^-126. */
static __device__ inline float power_of_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
