/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of causal attention. Those for tensor cores are in attention_tile.cuh and
 * attention_backward.cuh. Here are their names, the sums that backward begins with, and plain kernels
 * for everything else: float32, heads of any number of columns up to 256, memory of any alignment.
 * They compute in fp32, and they are for being right rather than fast.
 */
#include "device/cuda/cuda_elements.cuh"
#include "device/cuda/cuda_math.cuh"
#include "kernel/cuda/attention_backward.cuh"
#include "kernel/cuda/attention_kernels.h"
#include "kernel/cuda/attention_tile.cuh"

/* Two blocks fit a multiprocessor, each with all the registers that a thread can have. */
#define TILE __launch_bounds__(LAP_CUDA_ATTENTION_THREADS, 2)

#define KERNEL(name, function, T, dim, blocks)                                                     \
    extern "C" __global__ void TILE lap_attention_##name(const lap_cuda_attention_t a)             \
    {                                                                                              \
        lap::function<T, dim, blocks>(a);                                                          \
    }

#define KERNELS(name, function, blocks)                                                            \
    KERNEL(name##_f16_64, function, __half, 64, blocks)                                            \
    KERNEL(name##_f16_128, function, __half, 128, blocks)                                          \
    KERNEL(name##_bf16_64, function, __nv_bfloat16, 64, blocks)                                    \
    KERNEL(name##_bf16_128, function, __nv_bfloat16, 128, blocks)

KERNELS(forward, forward, false)
KERNELS(keys, backward_keys, false)
KERNELS(queries, backward_queries, false)
KERNELS(forward_blocks, forward, true)
KERNELS(keys_blocks, backward_keys, true)
KERNELS(queries_blocks, backward_queries, true)

/* ---- the sums of dout out ---- */

/* As many lanes as have `vector` elements each take a head of a token, or a warp does. */
extern "C" __global__ void __launch_bounds__(LAP_CUDA_DELTA_THREADS)
    lap_attention_delta(const lap_cuda_attention_t a)
{
    const int lanes = a.vector == 1 ? 32 : a.dim / a.vector, lane = threadIdx.x % lanes;
    const size_t thread = static_cast<size_t>(blockIdx.x) * LAP_CUDA_DELTA_THREADS + threadIdx.x;
    const size_t item = thread / lanes, row = item / a.heads, head = item % a.heads;
    const size_t at = (row * a.out_stride + head * a.dim) * size_of(a.dtype);
    const char *out = static_cast<const char *>(a.out) + at;
    const char *dout = static_cast<const char *>(a.dout) + at;
    const bool there = row < static_cast<size_t>(a.seq) * a.batch;
    float sum = 0;
    if (there && a.vector != 1) {
        float x[LAP_CUDA_VECTOR], y[LAP_CUDA_VECTOR];
        load_vector(a.dtype, out + lane * LAP_CUDA_VECTOR * size_of(a.dtype), x);
        load_vector(a.dtype, dout + lane * LAP_CUDA_VECTOR * size_of(a.dtype), y);
        for (int i = 0; i < LAP_CUDA_VECTOR; i++)
            sum = fmaf(x[i], y[i], sum);
    } else if (there) {
        for (int i = lane; i < a.dim; i += 32)
            sum = fmaf(load(a.dtype, out, i), load(a.dtype, dout, i), sum);
    }
    sum = warp_sum(sum, lanes);
    if (there && lane == 0)
        a.delta[(head * a.batch + row % a.batch) * a.seq + row / a.batch] = sum;
}

/* ---- plain kernels ---- */

namespace lap
{

/*
 * A block of 8 warps takes 32 queries, or keys, of a head; a warp has 4 of them for itself, and its
 * lanes have one of 32 keys, or queries, each. The tiles of both are in shared memory in fp32, in
 * rows of an odd number of words, so that lanes read 32 rows from 32 banks.
 */
constexpr int plain_rows = LAP_CUDA_PLAIN_TILE, plain_warps = LAP_CUDA_PLAIN_THREADS / 32;
constexpr int plain_own = plain_rows / plain_warps, plain_columns = LAP_CUDA_PLAIN_DIM / 32;
static_assert(plain_rows == 32, "a lane has one of them");

struct plain {
    const lap_cuda_attention_t &a;
    int lane, own; /* this lane, and the first of the rows that are its warp's */
    int stride;    /* of rows in shared memory */
};

__device__ plain plain_of(const lap_cuda_attention_t &a)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    return {a, lane, warp * plain_own, a.dim | 1};
}

__device__ float *plain_tile(const plain &p, int which)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    return reinterpret_cast<float *>(memory) + which * plain_rows * p.stride;
}

__device__ size_t element_of(const plain &p, size_t stride, int s, int b, int column_head)
{
    return (static_cast<size_t>(s) * p.a.batch + b) * stride +
           static_cast<size_t>(column_head) * p.a.dim;
}

/* Rows from `first` on of a head; zeros after the last of `count` tokens. */
__device__ void load_plain(const plain &p, float *tile, const void *matrix, size_t stride, int b,
                           int column_head, int first, int count)
{
    for (int row = p.own; row < p.own + plain_own; row++) {
        const bool there = first + row < count;
        const size_t from = element_of(p, stride, first + row, b, column_head);
        for (int i = p.lane; i < p.a.dim; i += 32)
            tile[row * p.stride + i] = there ? load(p.a.dtype, matrix, from + i) : 0;
    }
}

/* The warp's rows of x times this lane's row of y. */
__device__ void multiply_plain(const plain &p, const float *x, const float *y,
                               float (&products)[plain_own])
{
    for (int i = 0; i < plain_own; i++)
        products[i] = 0;
    for (int c = 0; c < p.a.dim; c++) {
        const float right = y[p.lane * p.stride + c];
        for (int i = 0; i < plain_own; i++)
            products[i] = fmaf(x[(p.own + i) * p.stride + c], right, products[i]);
    }
}

typedef float plain_sums[plain_own][plain_columns]; /* columns lane, lane + 32, ... */

/* sums += the rows of y, each times the factor that its lane has. */
__device__ void add_plain(const plain &p, plain_sums &sums, const float (&factors)[plain_own],
                          const float *y)
{
    for (int row = 0; row < plain_rows; row++) {
        float factor[plain_own];
        for (int i = 0; i < plain_own; i++)
            factor[i] = __shfl_sync(~0u, factors[i], row);
#pragma unroll
        for (int c = 0; c < plain_columns; c++) {
            if (c * 32 >= p.a.dim)
                break;
            const bool there = c * 32 + p.lane < p.a.dim;
            const float right = there ? y[row * p.stride + c * 32 + p.lane] : 0;
            for (int i = 0; i < plain_own; i++)
                sums[i][c] = fmaf(factor[i], right, sums[i][c]);
        }
    }
}

/* Stores the warp's row i, which is row `s` of the head; what is there counts `old` times. */
__device__ void store_plain(const plain &p, const float (&sums)[plain_columns], float factor,
                            float old, void *matrix, size_t stride, int b, int column_head, int s,
                            int count)
{
    const size_t to = element_of(p, stride, s, b, column_head);
#pragma unroll
    for (int c = 0; c < plain_columns; c++)
        if (s < count && c * 32 + p.lane < p.a.dim) {
            const size_t at = to + c * 32 + p.lane;
            const float before = old == 0 ? 0 : load(p.a.sum_dtype, matrix, at) * old;
            store(p.a.sum_dtype, matrix, at, sums[c] * factor + before);
        }
}

/* Keys that the queries from `query0` on see: those that the last of them sees. */
__device__ int seen_until(const lap_cuda_attention_t &a, int query0)
{
    return lap_cuda_keys_seen(&a, min(query0 + plain_rows, a.seq) - 1);
}

__device__ float warp_max(float x)
{
    for (int other = 16; other > 0; other /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, other));
    return x;
}

} // namespace lap

extern "C" __global__ void __launch_bounds__(LAP_CUDA_PLAIN_THREADS)
    lap_attention_plain_forward(const lap_cuda_attention_t a)
{
    using namespace lap;
    const plain p = plain_of(a);
    float *q = plain_tile(p, 0), *k = plain_tile(p, 1), *v = plain_tile(p, 2);
    const int head = blockIdx.x % a.heads, b = blockIdx.x / a.heads;
    const int kv = head / (a.heads / a.kv_heads);
    const int query0 = static_cast<int>(gridDim.y - 1 - blockIdx.y) * plain_rows;
    const int32_t sample = lap_mask_sample(&a.mask, b);
    plain_sums o = {};
    float sum[plain_own] = {}, most[plain_own];
    for (int i = 0; i < plain_own; i++)
        most[i] = -INFINITY;
    int seen[plain_own];
    for (int i = 0; i < plain_own; i++)
        seen[i] = lap_cuda_keys_seen(&a, query0 + p.own + i);
    load_plain(p, q, a.qkv, a.qkv_stride, b, head, query0, a.seq);
    const int end = seen_until(a, query0);
    for (int key0 = 0; key0 < end; key0 += plain_rows) {
        float s[plain_own];
        __syncthreads(); /* nobody reads the tiles before any more */
        load_plain(p, k, a.kv, a.kv_stride, b, kv, key0, a.keys);
        load_plain(p, v, a.kv, a.kv_stride, b, a.kv_heads + kv, key0, a.keys);
        __syncthreads(); /* and all see these */
        multiply_plain(p, q, k, s);
        for (int i = 0; i < plain_own; i++) {
            const bool sees = key0 + p.lane < seen[i];
            s[i] = sees ? s[i] * a.scale : -INFINITY;
            const float largest = fmaxf(most[i], warp_max(s[i]));
            const float factor = largest == most[i] ? 1 : expf(most[i] - largest);
            most[i] = largest;
            s[i] = sees ? expf(s[i] - largest) : 0;
            sum[i] = fmaf(sum[i], factor, s[i]);
            for (int c = 0; c < plain_columns; c++)
                o[i][c] *= factor;
            s[i] *= lap_cuda_mask_at(&a, sample, head, query0 + p.own + i, key0 + p.lane);
        }
        add_plain(p, o, s, v);
    }
    for (int i = 0; i < plain_own; i++) {
        const int query = query0 + p.own + i;
        float *lse = a.lse + static_cast<size_t>(head * a.batch + b) * a.seq + query;
        const float all = warp_sum(sum[i]), found = seen[i] > 0 ? most[i] + logf(all) : -INFINITY;
        if (query >= a.seq || (a.merges && seen[i] == 0))
            continue; /* the whole warp: it has the row for itself */
        float both = found, own = seen[i] > 0 ? 1 / all : 0, other = 0;
        if (a.merges) {
            const float before = *lse, larger = fmaxf(before, found);
            both = larger + log1pf(expf(fminf(before, found) - larger));
            own *= expf(found - both);
            other = expf(before - both);
        }
        __syncwarp(); /* all have read lse */
        store_plain(p, o[i], own, other, a.out, a.out_stride, b, head, query, a.seq);
        if (p.lane == 0)
            *lse = both;
    }
}

extern "C" __global__ void __launch_bounds__(LAP_CUDA_PLAIN_THREADS)
    lap_attention_plain_queries(const lap_cuda_attention_t a)
{
    using namespace lap;
    const plain p = plain_of(a);
    float *q = plain_tile(p, 0), *d = plain_tile(p, 1);
    float *k = plain_tile(p, 2), *v = plain_tile(p, 3);
    const int head = blockIdx.x % a.heads, b = blockIdx.x / a.heads;
    const int kv = head / (a.heads / a.kv_heads);
    const int query0 = static_cast<int>(gridDim.y - 1 - blockIdx.y) * plain_rows;
    const size_t sums = static_cast<size_t>(head * a.batch + b) * a.seq;
    const int32_t sample = lap_mask_sample(&a.mask, b);
    plain_sums dq = {};
    load_plain(p, q, a.qkv, a.qkv_stride, b, head, query0, a.seq);
    load_plain(p, d, a.dout, a.out_stride, b, head, query0, a.seq);
    const int end = seen_until(a, query0);
    for (int key0 = 0; key0 < end; key0 += plain_rows) {
        float s[plain_own], dp[plain_own];
        __syncthreads(); /* nobody reads the tiles before any more */
        load_plain(p, k, a.kv, a.kv_stride, b, kv, key0, a.keys);
        load_plain(p, v, a.kv, a.kv_stride, b, a.kv_heads + kv, key0, a.keys);
        __syncthreads(); /* and all see these */
        multiply_plain(p, q, k, s);
        multiply_plain(p, d, v, dp);
        for (int i = 0; i < plain_own; i++) {
            const int query = query0 + p.own + i;
            const bool seen = key0 + p.lane < lap_cuda_keys_seen(&a, query);
            dp[i] *= lap_cuda_mask_at(&a, sample, head, query, key0 + p.lane);
            s[i] =
                seen ? expf(s[i] * a.scale - a.lse[sums + query]) * (dp[i] - a.delta[sums + query])
                     : 0;
        }
        add_plain(p, dq, s, k);
    }
    for (int i = 0; i < plain_own; i++)
        store_plain(p, dq[i], a.scale, a.merges ? 1 : 0, a.dqkv, a.dq_stride, b, head,
                    query0 + p.own + i, a.seq);
}

/* Lanes have queries here, and warps keys. */
extern "C" __global__ void __launch_bounds__(LAP_CUDA_PLAIN_THREADS)
    lap_attention_plain_keys(const lap_cuda_attention_t a)
{
    using namespace lap;
    const plain p = plain_of(a);
    float *q = plain_tile(p, 0), *d = plain_tile(p, 1);
    float *k = plain_tile(p, 2), *v = plain_tile(p, 3);
    const int kv = blockIdx.x % a.kv_heads, b = blockIdx.x / a.kv_heads;
    const int key0 = blockIdx.y * plain_rows, group = a.heads / a.kv_heads;
    const int k_head = kv, v_head = kv + a.kv_heads;
    const int32_t sample = lap_mask_sample(&a.mask, b);
    plain_sums dk = {}, dv = {};
    load_plain(p, k, a.kv, a.kv_stride, b, k_head, key0, a.keys);
    load_plain(p, v, a.kv, a.kv_stride, b, v_head, key0, a.keys);
    for (int head = kv * group; head < (kv + 1) * group; head++)
        for (int query0 = 0; query0 < a.seq; query0 += plain_rows) {
            if (seen_until(a, query0) <= key0) /* none of the keys is seen */
                continue;
            const int query = query0 + p.lane, sees = lap_cuda_keys_seen(&a, query);
            const size_t sums = static_cast<size_t>(head * a.batch + b) * a.seq;
            const float lse = query < a.seq ? a.lse[sums + query] : 0;
            const float delta = query < a.seq ? a.delta[sums + query] : 0;
            float s[plain_own], dp[plain_own];
            __syncthreads(); /* nobody reads the tiles before any more */
            load_plain(p, q, a.qkv, a.qkv_stride, b, head, query0, a.seq);
            load_plain(p, d, a.dout, a.out_stride, b, head, query0, a.seq);
            __syncthreads(); /* and all see these */
            multiply_plain(p, k, q, s);
            multiply_plain(p, v, d, dp);
            for (int i = 0; i < plain_own; i++) {
                const bool seen = key0 + p.own + i < sees;
                const float factor = lap_cuda_mask_at(&a, sample, head, query, key0 + p.own + i);
                s[i] = seen ? expf(s[i] * a.scale - lse) : 0;
                dp[i] = s[i] * (factor * dp[i] - delta);
                s[i] *= factor;
            }
            add_plain(p, dv, s, d);
            add_plain(p, dk, dp, q);
        }
    for (int i = 0; i < plain_own; i++) {
        const int key = key0 + p.own + i;
        store_plain(p, dk[i], a.scale, 0, a.dkv, a.dkv_stride, b, k_head, key, a.keys);
        store_plain(p, dv[i], 1, 0, a.dkv, a.dkv_stride, b, v_head, key, a.keys);
    }
}
