/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of causal attention. Those for tensor cores are in attention_tile.cuh. Here are their
 * names, the sums that backward begins with, and plain kernels for everything else: float32, heads
 * of any number of columns up to 256, memory of any alignment. They compute in fp32, and they are
 * for being right rather than fast.
 */
#include "device/cuda/cuda_elements.cuh"
#include "device/cuda/cuda_math.cuh"
#include "nn/cuda/attention_kernels.h"
#include "nn/cuda/attention_tile.cuh"

/* Two blocks fit a multiprocessor, each with all the registers that a thread can have. */
#define TILE __launch_bounds__(LAP_CUDA_ATTENTION_THREADS, 2)

extern "C" __global__ void TILE lap_attention_forward_f16_64(const lap_cuda_attention_t a)
{
    lap::forward<__half, 64>(a);
}

extern "C" __global__ void TILE lap_attention_forward_f16_128(const lap_cuda_attention_t a)
{
    lap::forward<__half, 128>(a);
}

extern "C" __global__ void TILE lap_attention_forward_bf16_64(const lap_cuda_attention_t a)
{
    lap::forward<__nv_bfloat16, 64>(a);
}

extern "C" __global__ void TILE lap_attention_forward_bf16_128(const lap_cuda_attention_t a)
{
    lap::forward<__nv_bfloat16, 128>(a);
}

extern "C" __global__ void TILE lap_attention_keys_f16_64(const lap_cuda_attention_t a)
{
    lap::backward_keys<__half, 64>(a);
}

extern "C" __global__ void TILE lap_attention_keys_f16_128(const lap_cuda_attention_t a)
{
    lap::backward_keys<__half, 128>(a);
}

extern "C" __global__ void TILE lap_attention_keys_bf16_64(const lap_cuda_attention_t a)
{
    lap::backward_keys<__nv_bfloat16, 64>(a);
}

extern "C" __global__ void TILE lap_attention_keys_bf16_128(const lap_cuda_attention_t a)
{
    lap::backward_keys<__nv_bfloat16, 128>(a);
}

extern "C" __global__ void TILE lap_attention_queries_f16_64(const lap_cuda_attention_t a)
{
    lap::backward_queries<__half, 64>(a);
}

extern "C" __global__ void TILE lap_attention_queries_f16_128(const lap_cuda_attention_t a)
{
    lap::backward_queries<__half, 128>(a);
}

extern "C" __global__ void TILE lap_attention_queries_bf16_64(const lap_cuda_attention_t a)
{
    lap::backward_queries<__nv_bfloat16, 64>(a);
}

extern "C" __global__ void TILE lap_attention_queries_bf16_128(const lap_cuda_attention_t a)
{
    lap::backward_queries<__nv_bfloat16, 128>(a);
}

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

/* Rows from `first` on of a head; zeros behind the end of the sequence. */
__device__ void load_plain(const plain &p, float *tile, const void *matrix, size_t stride, int b,
                           int column_head, int first)
{
    for (int row = p.own; row < p.own + plain_own; row++) {
        const bool there = first + row < p.a.seq;
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

/* Stores the warp's row i, which is row `s` of the head. */
__device__ void store_plain(const plain &p, const float (&sums)[plain_columns], float factor,
                            void *matrix, size_t stride, int b, int column_head, int s)
{
    const size_t to = element_of(p, stride, s, b, column_head);
#pragma unroll
    for (int c = 0; c < plain_columns; c++)
        if (s < p.a.seq && c * 32 + p.lane < p.a.dim)
            store(p.a.dtype, matrix, to + c * 32 + p.lane, sums[c] * factor);
}

/* What the mask of dropout multiplies the probability of a key for a query with. */
__device__ float mask_of(const lap_cuda_attention_t &a, int32_t sample, int head, int query,
                         int key)
{
    return lap_mask_at(&a.mask, sample, static_cast<uint64_t>(a.first_head + head) * a.seq + query,
                       a.seq, key);
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
    load_plain(p, q, a.qkv, a.qkv_stride, b, head, query0);
    for (int key0 = 0; key0 <= query0; key0 += plain_rows) {
        float s[plain_own];
        __syncthreads(); /* nobody reads the tiles before any more */
        load_plain(p, k, a.qkv, a.qkv_stride, b, a.heads + kv, key0);
        load_plain(p, v, a.qkv, a.qkv_stride, b, a.heads + a.kv_heads + kv, key0);
        __syncthreads(); /* and all see these */
        multiply_plain(p, q, k, s);
        for (int i = 0; i < plain_own; i++) {
            const bool seen = key0 + p.lane <= query0 + p.own + i;
            s[i] = seen ? s[i] * a.scale : -INFINITY;
            const float largest = fmaxf(most[i], warp_max(s[i]));
            const float factor = expf(most[i] - largest);
            most[i] = largest;
            s[i] = expf(s[i] - largest);
            sum[i] = fmaf(sum[i], factor, s[i]);
            for (int c = 0; c < plain_columns; c++)
                o[i][c] *= factor;
            s[i] *= mask_of(a, sample, head, query0 + p.own + i, key0 + p.lane);
        }
        add_plain(p, o, s, v);
    }
    for (int i = 0; i < plain_own; i++) {
        const int query = query0 + p.own + i;
        const float all = warp_sum(sum[i]);
        store_plain(p, o[i], 1 / all, a.out, a.out_stride, b, head, query);
        if (p.lane == 0 && query < a.seq)
            a.lse[static_cast<size_t>(head * a.batch + b) * a.seq + query] = most[i] + logf(all);
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
    load_plain(p, q, a.qkv, a.qkv_stride, b, head, query0);
    load_plain(p, d, a.dout, a.out_stride, b, head, query0);
    for (int key0 = 0; key0 <= query0; key0 += plain_rows) {
        float s[plain_own], dp[plain_own];
        __syncthreads(); /* nobody reads the tiles before any more */
        load_plain(p, k, a.qkv, a.qkv_stride, b, a.heads + kv, key0);
        load_plain(p, v, a.qkv, a.qkv_stride, b, a.heads + a.kv_heads + kv, key0);
        __syncthreads(); /* and all see these */
        multiply_plain(p, q, k, s);
        multiply_plain(p, d, v, dp);
        for (int i = 0; i < plain_own; i++) {
            const int query = query0 + p.own + i;
            const bool seen = query < a.seq && key0 + p.lane <= query;
            dp[i] *= mask_of(a, sample, head, query, key0 + p.lane);
            s[i] =
                seen ? expf(s[i] * a.scale - a.lse[sums + query]) * (dp[i] - a.delta[sums + query])
                     : 0;
        }
        add_plain(p, dq, s, k);
    }
    for (int i = 0; i < plain_own; i++)
        store_plain(p, dq[i], a.scale, a.dqkv, a.qkv_stride, b, head, query0 + p.own + i);
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
    const int k_head = a.heads + kv, v_head = k_head + a.kv_heads;
    const int32_t sample = lap_mask_sample(&a.mask, b);
    plain_sums dk = {}, dv = {};
    load_plain(p, k, a.qkv, a.qkv_stride, b, k_head, key0);
    load_plain(p, v, a.qkv, a.qkv_stride, b, v_head, key0);
    for (int head = kv * group; head < (kv + 1) * group; head++)
        for (int query0 = key0; query0 < a.seq; query0 += plain_rows) {
            const int query = query0 + p.lane;
            const size_t sums = static_cast<size_t>(head * a.batch + b) * a.seq;
            const float lse = query < a.seq ? a.lse[sums + query] : 0;
            const float delta = query < a.seq ? a.delta[sums + query] : 0;
            float s[plain_own], dp[plain_own];
            __syncthreads(); /* nobody reads the tiles before any more */
            load_plain(p, q, a.qkv, a.qkv_stride, b, head, query0);
            load_plain(p, d, a.dout, a.out_stride, b, head, query0);
            __syncthreads(); /* and all see these */
            multiply_plain(p, k, q, s);
            multiply_plain(p, v, d, dp);
            for (int i = 0; i < plain_own; i++) {
                const bool seen = query < a.seq && key0 + p.own + i <= query;
                const float factor = mask_of(a, sample, head, query, key0 + p.own + i);
                s[i] = seen ? expf(s[i] * a.scale - lse) : 0;
                dp[i] = s[i] * (factor * dp[i] - delta);
                s[i] *= factor;
            }
            add_plain(p, dv, s, d);
            add_plain(p, dk, dp, q);
        }
    for (int i = 0; i < plain_own; i++) {
        const int key = key0 + p.own + i;
        store_plain(p, dk[i], a.scale, a.dqkv, a.qkv_stride, b, k_head, key);
        store_plain(p, dv[i], 1, a.dqkv, a.qkv_stride, b, v_head, key);
    }
}
