/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements of any type for kernels: read as float, written rounded. Types are branched on at run
 * time; as template parameters they cost no branches.
 */
#ifndef LAP_DEVICE_CUDA_CUDA_ELEMENTS_CUH
#define LAP_DEVICE_CUDA_CUDA_ELEMENTS_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "device/cuda/cuda_kernels.h"

/* As lap_dtype_t numbers them. */
enum { FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 2, E4M3 = 3, E5M2 = 4 };

static __device__ inline float load(int dtype, const void *memory, size_t i)
{
    switch (dtype) {
    case FLOAT16:
        return __half2float(static_cast<const __half *>(memory)[i]);
    case BFLOAT16:
        return __bfloat162float(static_cast<const __nv_bfloat16 *>(memory)[i]);
    case E4M3:
        return static_cast<float>(static_cast<const __nv_fp8_e4m3 *>(memory)[i]);
    case E5M2:
        return static_cast<float>(static_cast<const __nv_fp8_e5m2 *>(memory)[i]);
    default:
        return static_cast<const float *>(memory)[i];
    }
}

static __device__ inline void store(int dtype, void *memory, size_t i, float x)
{
    switch (dtype) {
    case FLOAT16:
        static_cast<__half *>(memory)[i] = __float2half_rn(x);
        break;
    case BFLOAT16:
        static_cast<__nv_bfloat16 *>(memory)[i] = __float2bfloat16_rn(x);
        break;
    case E4M3:
        static_cast<__nv_fp8_storage_t *>(memory)[i] =
            __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
        break;
    case E5M2:
        static_cast<__nv_fp8_storage_t *>(memory)[i] =
            __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2);
        break;
    default:
        static_cast<float *>(memory)[i] = x;
    }
}

static __device__ inline size_t size_of(int dtype)
{
    return dtype == FLOAT32 ? 4 : dtype == FLOAT16 || dtype == BFLOAT16 ? 2 : 1;
}

/* LAP_CUDA_VECTOR elements at once: of 2 bytes in one access, of 4 in two. The address allows it. */
static __device__ inline void load_vector(int dtype, const void *memory, float *x)
{
    if (dtype == FLOAT32) {
        const float4 low = static_cast<const float4 *>(memory)[0];
        const float4 high = static_cast<const float4 *>(memory)[1];
        x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
        x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
        return;
    }
    const uint4 bits = *static_cast<const uint4 *>(memory);
    for (int i = 0; i < LAP_CUDA_VECTOR; i++)
        x[i] = load(dtype, &bits, i);
}

static __device__ inline void store_vector(int dtype, void *memory, const float *x)
{
    if (dtype == FLOAT32) {
        static_cast<float4 *>(memory)[0] = make_float4(x[0], x[1], x[2], x[3]);
        static_cast<float4 *>(memory)[1] = make_float4(x[4], x[5], x[6], x[7]);
        return;
    }
    uint4 bits;
    for (int i = 0; i < LAP_CUDA_VECTOR; i++)
        store(dtype, &bits, i, x[i]);
    *static_cast<uint4 *>(memory) = bits;
}

/* For a narrower type the last bit tells that something was cut off, so that it is rounded once. */
static __device__ inline float narrow(int dtype, double x)
{
    if (dtype == FLOAT32)
        return __double2float_rn(x);
    const float cut = __double2float_rz(x);
    return cut == x || isnan(x) ? cut : __uint_as_float(__float_as_uint(cut) | 1);
}

#endif
