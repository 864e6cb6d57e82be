/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kernels say to tensor cores and shared memory that CUDA C++ has no words for: one
 * instruction each. Types of elements are __half and __nv_bfloat16. Lane l of a warp is g = l / 4
 * and t = l % 4 below.
 */
#ifndef LAP_KERNEL_CUDA_MMA_CUH
#define LAP_KERNEL_CUDA_MMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace lap
{

__device__ inline uint32_t shared_address(const void *memory)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(memory));
}

/* 16 bytes from global to shared memory; zeros, and nothing is read, where they are not there. */
__device__ inline void copy16_async(uint32_t dst, const void *src, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src),
                 "r"(there ? 16 : 0)
                 : "memory");
}

__device__ inline void copy4_async(uint32_t dst, const void *src, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(dst), "l"(src),
                 "r"(there ? 4 : 0)
                 : "memory");
}

/* Until this thread's copies have come; others see them after __syncthreads. */
__device__ inline void copies_wait()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/*
 * Four matrices of 8 x 8 elements; lane l gives the address of row l % 8, of 16 bytes, of matrix
 * l / 8. x[i] becomes elements (g, 2t) and (g, 2t + 1) of matrix i.
 */
__device__ inline void load_matrices(uint32_t (&x)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

/* The same, but x[i] becomes elements (2t, g) and (2t + 1, g) of matrix i. */
__device__ inline void load_matrices_turned(uint32_t (&x)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

/*
 * c += a b with a [16, 16], b [16, 8] and c [16, 8] in fp32. a: rows g and g + 8 of columns 2t,
 * 2t + 1, then the same of columns 2t + 8, 2t + 9. b0: rows 2t, 2t + 1 of column g; b1: 8 rows
 * further. c: row g of columns 2t, 2t + 1, then row g + 8.
 */
template <typename T>
__device__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
__device__ inline void multiply_add<__half>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ inline void multiply_add<__nv_bfloat16>(float (&c)[4], const uint32_t (&a)[4],
                                                   uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two numbers rounded to nearest, the first in the lower half. */
template <typename T> __device__ uint32_t pack(float low, float high);

template <> __device__ inline uint32_t pack<__half>(float low, float high)
{
    uint32_t x;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
}

template <> __device__ inline uint32_t pack<__nv_bfloat16>(float low, float high)
{
    uint32_t x;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
}

__device__ inline void store_shared(uint32_t address, uint32_t x)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}

__device__ inline uint4 load_shared16(uint32_t address)
{
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(address)
                 : "memory");
    return x;
}

__device__ inline float2 load_shared_pair(uint32_t address)
{
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(x.x), "=f"(x.y)
                 : "r"(address)
                 : "memory");
    return x;
}

} // namespace lap

#endif
