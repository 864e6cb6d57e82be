/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels of transformer layers share: elements and vectors of them, threads that stand
 * over a matrix, sums and maxima over a block, and sums over all blocks in their order.
 */
#ifndef LAP_KERNEL_CUDA_BLOCKS_CUH
#define LAP_KERNEL_CUDA_BLOCKS_CUH

#include "device/cuda/cuda_elements.cuh"
#include "device/cuda/cuda_math.cuh"
#include "kernel/cuda/cuda_args.h"

namespace
{

constexpr int width = LAP_KERNEL_CUDA_VECTOR;
constexpr int ANY = -1; /* a type that is looked at when the kernel runs */
constexpr unsigned all_lanes = ~0u;

/* ---- elements ---- */

/* The type that a kernel is compiled for, or else the one that it is given. */
template <int fixed> __device__ int type_of(int dtype)
{
    return fixed == ANY ? dtype : fixed;
}

/* One element of any type, or a vector of a known one: from element `at` of a matrix on. */
template <int fixed>
__device__ void take(int dtype, const void *matrix, size_t at, float (&x)[fixed == ANY ? 1 : width])
{
    if (fixed == ANY)
        x[0] = load(dtype, matrix, at);
    else
        load_vector(fixed, static_cast<const char *>(matrix) + at * size_of(fixed), x);
}

template <int fixed>
__device__ void put(int dtype, void *matrix, size_t at, const float (&x)[fixed == ANY ? 1 : width])
{
    if (fixed == ANY)
        store(dtype, matrix, at, x[0]);
    else
        store_vector(fixed, static_cast<char *>(matrix) + at * size_of(fixed), x);
}

template <int type> struct fixed_type {
    static constexpr int dtype = type;
};

/* Calls body with the type that is given, of those that vectors have. */
template <typename body_t> __device__ auto with_known(lap_dtype_t dtype, body_t body)
{
    if (dtype == LAP_BFLOAT16)
        return body(fixed_type<BFLOAT16>{});
    if (dtype == LAP_FLOAT16)
        return body(fixed_type<FLOAT16>{});
    return body(fixed_type<FLOAT32>{});
}

/* The same, or with ANY where there are no vectors. */
template <typename body_t>
__device__ auto with_type(lap_dtype_t dtype, uint32_t vector, body_t body)
{
    if (vector == 1)
        return body(fixed_type<ANY>{});
    return with_known(dtype, body);
}

/* Calls body(row, col) for the elements, or the first ones of vectors, that this thread has. */
template <typename body_t> __device__ void walk(const lap_kernel_cuda_span_t &span, body_t body)
{
    const unsigned side = 1u << span.shift, high = blockDim.x >> span.shift;
    const size_t below = static_cast<size_t>(gridDim.y) * high;
    const size_t across = static_cast<size_t>(gridDim.x) * side * span.vector;
    const size_t first_row = static_cast<size_t>(blockIdx.y) * high + (threadIdx.x >> span.shift);
    const size_t first_col =
        (static_cast<size_t>(blockIdx.x) * side + (threadIdx.x & (side - 1))) * span.vector;
    for (size_t row = first_row; row < span.rows; row += below)
        for (size_t col = first_col; col < span.cols; col += across)
            body(row, col);
}

/* ---- sums and maxima over blocks ---- */

/*
 * Sums over the block, for all its threads. `room` has a place for each warp; it may be used again
 * after the next barrier.
 */
template <typename number, int count>
__device__ void block_sums(number (&x)[count], number (*room)[32])
{
    const unsigned lane = threadIdx.x % 32;
    for (int i = 0; i < count; i++) {
        x[i] = warp_sum(x[i]);
        if (lane == 0)
            room[i][threadIdx.x / 32] = x[i];
    }
    __syncthreads();
    for (int i = 0; i < count; i++)
        x[i] = warp_sum(lane < blockDim.x / 32 ? room[i][lane] : number{0});
}

/* Thread 0 leaves the block's part. True in the block that comes last: it finds all of them. */
__device__ bool leave_part(lap_kernel_cuda_parts_t *parts, double part)
{
    __shared__ bool last;
    if (threadIdx.x == 0) {
        parts->part[blockIdx.y * gridDim.x + blockIdx.x] = part;
        __threadfence(); /* the part is there when the count tells of it */
        last = atomicAdd(&parts->left, 1) == gridDim.x * gridDim.y - 1;
        __threadfence(); /* and this block reads the others' after that */
        if (last)
            parts->left = 0; /* for the next kernel on this stream */
    }
    __syncthreads();
    return last;
}

/* All blocks' parts of a sum become *sum. */
__device__ void finish_sum(lap_kernel_cuda_parts_t *parts, double x, double *sum)
{
    __shared__ double room[2][1][32];
    double total[1] = {x};
    block_sums(total, room[0]);
    if (!leave_part(parts, total[0]))
        return;
    total[0] = 0;
    for (unsigned i = threadIdx.x; i < gridDim.x * gridDim.y; i += blockDim.x)
        total[0] += __ldcg(&parts->part[i]);
    block_sums(total, room[1]);
    if (threadIdx.x == 0)
        *sum = total[0];
}

__device__ uint32_t block_max(uint32_t x, uint32_t *room)
{
    const unsigned lane = threadIdx.x % 32;
    x = __reduce_max_sync(all_lanes, x);
    if (lane == 0)
        room[threadIdx.x / 32] = x;
    __syncthreads();
    return __reduce_max_sync(all_lanes, lane < blockDim.x / 32 ? room[lane] : 0);
}

} // namespace

#endif
