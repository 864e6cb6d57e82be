/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way of fp32 results to d, as host_finish.c has it: accumulation, bias, GELU and its
 * derivative, of one element and of vectors of any types. The rounding is left to who stores it.
 */
#ifndef LAP_DEVICE_CUDA_CUDA_FINISH_CUH
#define LAP_DEVICE_CUDA_CUDA_FINISH_CUH

#include "device/cuda/cuda_elements.cuh"
#include "device/cuda/cuda_kernels.h"
#include "device/cuda/cuda_math.cuh"

namespace
{

enum { BIAS = 1, GELU = 2, DGELU = 4 }; /* as lap_epilogue_t numbers them */

constexpr float limit = 12.0f;
constexpr float slope = 1.595769167f;      /* 2 sqrt(2/pi) */
constexpr float cubic = 0.07135481387f;    /* and times 0.044715 */
constexpr float slope_of_2 = 2.302208198f; /* both over ln 2, for powers of 2 */
constexpr float cubic_of_2 = 0.10294323974f;

/*
 * For 1 <= x <= 2, off by one unit in the last place. That powers of 2 are off by two of them, and 0
 * below 2^-126, is as good where 1 is added to them: with both the bounds of host_finish.c still
 * hold, for where e^-|t| matters most, left of 0, gelu is small.
 */
__device__ float inverse(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ float gelu(float x)
{
    const float z = x < -limit ? -limit : x;
    const float t = z * (slope_of_2 + cubic_of_2 * (z * z)), w = power_of_2(-fabsf(t));
    return z * (t >= 0 ? 1.0f : w) * inverse(1 + w);
}

__device__ float gelu_slope(float x)
{
    const float z = x < -limit ? -limit : x > limit ? limit : x;
    const float t = z * (slope_of_2 + cubic_of_2 * (z * z)), w = power_of_2(-fabsf(t));
    const float q = inverse(1 + w);
    return (t >= 0 ? 1.0f : w) * q + z * (slope + 3 * cubic * (z * z)) * (w * q * q);
}

/* Element `col` of the row whose d, and row of aux, are given. Returns what is to be rounded. */
__device__ float finish(const lap_cuda_finish_t &f, float x, int dtype, const void *d, size_t row,
                        size_t col)
{
    if (f.plain)
        return x;
    void *aux = f.aux ? static_cast<char *>(f.aux) + row * f.aux_stride : nullptr;
    if (f.beta != 0)
        x = __fadd_rn(x, __fmul_rn(f.beta, load(dtype, d, col)));
    if (f.epilogue & BIAS)
        x = __fadd_rn(x, load(f.bias_dtype, f.bias, col));
    if (f.epilogue & GELU) {
        if (aux)
            store(f.aux_dtype, aux, col, x);
        x = gelu(x);
    }
    if (f.epilogue & DGELU)
        x *= gelu_slope(load(f.aux_dtype, aux, col));
    return f.scale == 1 ? x : __fdiv_rn(x, f.scale);
}

/* Whether LAP_CUDA_VECTOR elements from there on can be had at once. */
__device__ bool is_whole(int dtype, const void *memory)
{
    return size_of(dtype) > 1 && reinterpret_cast<uintptr_t>(memory) % 16 == 0;
}

__device__ void load_some(int dtype, const void *memory, float *x)
{
    if (is_whole(dtype, memory)) {
        load_vector(dtype, memory, x);
        return;
    }
    for (int i = 0; i < LAP_CUDA_VECTOR; i++)
        x[i] = load(dtype, memory, i);
}

__device__ void store_some(int dtype, void *memory, const float *x)
{
    if (is_whole(dtype, memory)) {
        store_vector(dtype, memory, x);
        return;
    }
    for (int i = 0; i < LAP_CUDA_VECTOR; i++)
        store(dtype, memory, i, x[i]);
}

/* LAP_CUDA_VECTOR elements from `col` on, as finish does one; `d` is where they go. */
__device__ void finish_vector(const lap_cuda_finish_t &f, float *x, int dtype, const void *d,
                              size_t row, size_t col)
{
    constexpr int width = LAP_CUDA_VECTOR;
    float y[width];
    char *aux = static_cast<char *>(f.aux);
    if (aux)
        aux += row * f.aux_stride + col * size_of(f.aux_dtype);
    if (f.beta != 0) {
        load_vector(dtype, d, y);
        for (int i = 0; i < width; i++)
            x[i] = __fadd_rn(x[i], __fmul_rn(f.beta, y[i]));
    }
    if (f.epilogue & BIAS) {
        load_some(f.bias_dtype, static_cast<const char *>(f.bias) + col * size_of(f.bias_dtype), y);
        for (int i = 0; i < width; i++)
            x[i] = __fadd_rn(x[i], y[i]);
    }
    if (f.epilogue & GELU) {
        if (aux)
            store_some(f.aux_dtype, aux, x);
        for (int i = 0; i < width; i++)
            x[i] = gelu(x[i]);
    }
    if (f.epilogue & DGELU) {
        load_some(f.aux_dtype, aux, y);
        for (int i = 0; i < width; i++)
            x[i] *= gelu_slope(y[i]);
    }
    for (int i = 0; i < width && f.scale != 1; i++)
        x[i] = __fdiv_rn(x[i], f.scale);
}

} // namespace

#endif
