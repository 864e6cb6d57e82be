/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backward of causal attention on tensor cores, as two kernels: one for the gradients of keys and values, one for
 * those of queries. Both compute the scores again, so that no sum depends on the order in which blocks run. Tiles,
 * products and masks are those of attention_tile.cuh.
 */
#ifndef LAP_KERNEL_CUDA_ATTENTION_BACKWARD_CUH
#define LAP_KERNEL_CUDA_ATTENTION_BACKWARD_CUH

#include "kernel/cuda/attention_tile.cuh"

namespace lap
{

/* As mask_unseen, of turned scores. */
template <int width>
__device__ void mask_unseen_turned(const lap_cuda_attention_t &a, float (&s)[width][4], int query,
                                   int key)
{
    const size_t low = lap_position(a.keys_at, key), high = lap_position(a.keys_at, key + 8);
#pragma unroll
    for (int i = 0; i < width * 4; i++)
        if ((i % 4 < 2 ? low : high) > lap_position(a.queries_at, query + i / 4 * 8 + i % 2))
            s[i / 4][i % 4] = -INFINITY;
}

/* As mask_keys, of turned scores. */
template <int width> __device__ void mask_queries(float (&s)[width][4], int query, int key)
{
#pragma unroll
    for (int i = 0; i < width * 4; i++)
        if (key + i % 4 / 2 * 8 > query + i / 4 * 8 + i % 2)
            s[i / 4][i % 4] = -INFINITY;
}

/*
 * Makes probabilities of turned scores, and then gradients of scores of probabilities and their
 * gradients dp: p (dp - delta), without the scale. `lse` and `delta` are where this lane's first
 * two columns are.
 */
template <int width> __device__ void soften_columns(float (&s)[width][4], uint32_t lse, float scale)
{
#pragma unroll
    for (int n = 0; n < width; n++) {
        const float2 shift = load_shared_pair(lse + n * 32);
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] = power_of_2(fmaf(s[n][i], scale, (i % 2 == 0 ? shift.x : shift.y) * -log2_e));
    }
}

template <int width>
__device__ void turn_columns(float (&p)[width][4], const float (&dp)[width][4], uint32_t delta)
{
#pragma unroll
    for (int n = 0; n < width; n++) {
        const float2 shift = load_shared_pair(delta + n * 32);
#pragma unroll
        for (int i = 0; i < 4; i++)
            p[n][i] *= dp[n][i] - (i % 2 == 0 ? shift.x : shift.y);
    }
}

/* How many queries, which are the first, see none of the keys from `key` on. */
__device__ inline int unseeing(const lap_cuda_attention_t &a, int key)
{
    const size_t position = lap_position(a.keys_at, key);
    return position == 0 ? 0
                         : static_cast<int>(lap_tokens_until(a.queries_at, a.seq, position - 1));
}

/*
 * How a warp of backward works: 16 rows of its own at a time are a block, and it goes through a tile in parts of
 * `wide` blocks. What it reads of a tile from shared memory serves all of its own rows, so that two blocks need
 * half of the reading of one; of heads with 128 columns there are not registers enough for two.
 */
template <int dim>
constexpr int own_blocks = LAP_CUDA_BACKWARD_ROWS(dim) / 16 / (tile_threads / 32);
template <int dim> constexpr int wide = 4 / own_blocks<dim>;

/*
 * A block of four warps takes keys and values of a head, as many rows to a warp as it has of its own, and goes
 * through the queries of all heads that use them, in their order. Scores are turned: keys are rows. Shared
 * memory: the keys, the values, then twice a tile of queries and one of dout, then lse and delta of both.
 */
template <typename T, int dim, bool blocks>
__device__ void backward_keys(const lap_cuda_attention_t &a)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    constexpr int own = own_blocks<dim>, block_rows = LAP_CUDA_BACKWARD_ROWS(dim);
    constexpr uint32_t step = 2 * tile_bytes<dim>, own_bytes = block_rows * row_bytes<dim>;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int kv = blockIdx.x % a.kv_heads, b = blockIdx.x / a.kv_heads;
    const int key0 = blockIdx.y * block_rows, group = a.heads / a.kv_heads;
    const int k_head = a.heads + kv, v_head = k_head + a.kv_heads;
    const int keys = blocks ? a.keys : a.seq;
    const T *qkv = static_cast<const T *>(a.qkv), *douts = static_cast<const T *>(a.dout);
    const uint32_t k_tile = shared_address(memory), v_tile = k_tile + own_bytes;
    const uint32_t q_tiles = v_tile + own_bytes, sums = q_tiles + 2 * step;
    load_tile<block_rows, dim>(k_tile, keys_of<T, blocks>(a, b, kv), key0, keys);
    load_tile<block_rows, dim>(v_tile, keys_of<T, blocks>(a, b, a.kv_heads + kv), key0, keys);

    /* The queries from `query0` on of head `head`, with their dout, lse and delta. */
    const auto load = [&](int turn, int head, int query0) {
        const uint32_t tile = q_tiles + turn * step;
        load_tile<tile_rows, dim>(tile, rows_of(a, qkv, a.qkv_stride, b, head), query0, a.seq);
        load_tile<tile_rows, dim>(tile + tile_bytes<dim>, rows_of(a, douts, a.out_stride, b, head),
                                  query0, a.seq);
        const float *from = threadIdx.x < tile_rows ? a.lse : a.delta;
        const int query = query0 + static_cast<int>(threadIdx.x % tile_rows);
        const bool there = query < a.seq;
        const size_t at = static_cast<size_t>(head * a.batch + b) * a.seq + query;
        copy4_async(sums + (turn * tile_threads + threadIdx.x) * 4, there ? from + at : from,
                    there);
    };

    const int first = key0 + warp * own * 16; /* the first key of the warp */
    const uint32_t mine = warp * own * 16 * row_bytes<dim>;
    float dk[own][dim / 8][4] = {}, dv[own][dim / 8][4] = {};
    const int before = blocks ? unseeing(a, key0) : key0; /* queries that see none of the keys */
    const int start = before / tile_rows * tile_rows;
    int head = before < a.seq ? kv * group : (kv + 1) * group, query0 = start;
    load(0, kv * group, query0);
    for (int turn = 0; head < (kv + 1) * group; turn ^= 1) {
        const bool last = query0 + tile_rows >= a.seq;
        const int tile0 = query0;
        const bool diagonal = blocks ? lap_cuda_keys_seen(&a, tile0) < key0 + block_rows
                                     : tile0 < first + own * 16 - 1;
        head += last;
        query0 = last ? start : query0 + tile_rows;
        copies_wait();
        __syncthreads();
        if (head < (kv + 1) * group)
            load(turn ^ 1, head, query0);
        const uint32_t q_tile = q_tiles + turn * step, d_tile = q_tile + tile_bytes<dim>;
        const uint32_t lse = sums + turn * tile_threads * 4 + lane % 4 * 8;
#pragma unroll
        for (int part = 0; part < 4; part += wide<dim>) {
            float s[own][2 * wide<dim>][4], dp[own][2 * wide<dim>][4];
            uint32_t x[own][wide<dim>][4];
            if (!blocks && tile0 + (part + wide<dim>)*16 <= first)
                continue; /* all of the warp's keys are after these queries */
            multiply_rows<T, dim>(s, k_tile + mine + down<dim>(lane), q_tile + across<dim>(lane),
                                  part);
            multiply_rows<T, dim>(dp, v_tile + mine + down<dim>(lane), d_tile + across<dim>(lane),
                                  part);
#pragma unroll
            for (int m = 0; m < own; m++) {
                const int query = tile0 + part * 16 + lane % 4 * 2, key = first + m * 16 + lane / 4;
                if (blocks && diagonal)
                    mask_unseen_turned(a, s[m], query, key);
                else if (diagonal)
                    mask_queries(s[m], query, key);
                soften_columns(s[m], lse + part * 64, a.scale * log2_e);
                round_factor<T>(s[m], x[m]);
            }
            add_product<T, dim>(dv, x, d_tile + down<dim>(lane), part);
#pragma unroll
            for (int m = 0; m < own; m++) {
                turn_columns(s[m], dp[m], lse + (tile_rows + part * 16) * 4);
                round_factor<T>(s[m], x[m]);
            }
            add_product<T, dim>(dk, x, q_tile + down<dim>(lane), part);
        }
    }

    T *dqkv = static_cast<T *>(a.dqkv);
    if (blocks)
        copies_wait(); /* of the first tile, where no query sees the keys */
#pragma unroll
    for (int m = 0; m < own; m++) {
        const int row = first + m * 16;
        const uint32_t tile = k_tile + mine + m * 16 * row_bytes<dim>;
        if (blocks) {
            float *dkv = static_cast<float *>(a.dkv);
            const float once[2] = {1, 1}, scale[2] = {a.scale, a.scale}, none[2] = {0, 0};
            store_sums<dim>(dk[m], scale, none, rows_of(a, dkv, a.dkv_stride, b, kv), row, keys);
            store_sums<dim>(dv[m], once, none, rows_of(a, dkv, a.dkv_stride, b, a.kv_heads + kv),
                            row, keys);
        } else {
            store_rows<T, dim>(dk[m], a.scale, a.scale, tile,
                               rows_of(a, dqkv, a.qkv_stride, b, k_head), row, a.seq);
            store_rows<T, dim>(dv[m], 1, 1, tile + own_bytes,
                               rows_of(a, dqkv, a.qkv_stride, b, v_head), row, a.seq);
        }
    }
}

/*
 * A block of four warps takes queries of a head, as many to a warp as it has rows of its own, those with the most
 * keys first. The queries and their dout stay in registers. Shared memory: the queries, dout, then twice a tile of
 * keys and one of values.
 */
template <typename T, int dim, bool blocks>
__device__ void backward_queries(const lap_cuda_attention_t &a)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    constexpr int own = own_blocks<dim>, block_rows = LAP_CUDA_BACKWARD_ROWS(dim);
    constexpr uint32_t step = 2 * tile_bytes<dim>, own_bytes = block_rows * row_bytes<dim>;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int head = blockIdx.x % a.heads, b = blockIdx.x / a.heads;
    const int kv = head / (a.heads / a.kv_heads), keys = blocks ? a.keys : a.seq;
    const int query0 = static_cast<int>(gridDim.y - 1 - blockIdx.y) * block_rows;
    const T *qkv = static_cast<const T *>(a.qkv), *douts = static_cast<const T *>(a.dout);
    /* The keys from `key0` on, and their values. */
    const auto load = [&](uint32_t tile, int key0) {
        load_tile<tile_rows, dim>(tile, keys_of<T, blocks>(a, b, kv), key0, keys);
        load_tile<tile_rows, dim>(tile + tile_bytes<dim>, keys_of<T, blocks>(a, b, a.kv_heads + kv),
                                  key0, keys);
    };
    const uint32_t q_tile = shared_address(memory), d_tile = q_tile + own_bytes;
    const uint32_t kv_tiles = d_tile + own_bytes;
    load_tile<block_rows, dim>(q_tile, rows_of(a, qkv, a.qkv_stride, b, head), query0, a.seq);
    load_tile<block_rows, dim>(d_tile, rows_of(a, douts, a.out_stride, b, head), query0, a.seq);
    load(kv_tiles, 0);

    const int mine = query0 + warp * own * 16;
    const uint32_t q_mine = q_tile + warp * own * 16 * row_bytes<dim>;
    const size_t sums = static_cast<size_t>(head * a.batch + b) * a.seq;
    const int end = keys_until<blocks>(a, query0, block_rows);
    const int all_see = blocks ? lap_cuda_keys_seen(&a, query0) : mine;
    float shift[own][2], delta[own][2];
    int seen[own][2];
    uint32_t q[own][dim / 16][4], d[own][dim / 16][4];
    copies_wait();
    __syncthreads();
#pragma unroll
    for (int m = 0; m < own; m++) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const int query = mine + m * 16 + row * 8 + lane / 4;
            shift[m][row] = query < a.seq ? a.lse[sums + query] * -log2_e : 0;
            delta[m][row] = query < a.seq ? a.delta[sums + query] : 0;
            seen[m][row] = blocks ? lap_cuda_keys_seen(&a, query) : 0;
        }
#pragma unroll
        for (int n = 0; n < dim / 16; n++) {
            load_matrices(q[m][n], block_at<dim>(q_mine + down<dim>(lane), m, n));
            load_matrices(d[m][n], block_at<dim>(q_mine + own_bytes + down<dim>(lane), m, n));
        }
    }

    float dq[own][dim / 8][4] = {};
    for (int key0 = 0, turn = 0; key0 < end; key0 += tile_rows, turn ^= 1) {
        const uint32_t k_tile = kv_tiles + turn * step, next = kv_tiles + (turn ^ 1) * step;
        copies_wait();
        __syncthreads();
        if (key0 + tile_rows < end)
            load(next, key0 + tile_rows);
#pragma unroll
        for (int part = 0; part < 4; part += wide<dim>) {
            float s[own][2 * wide<dim>][4], dp[own][2 * wide<dim>][4];
            uint32_t x[own][wide<dim>][4];
            const int key = key0 + part * 16;
            if (!blocks && key > mine + own * 16 - 1)
                continue; /* all of them are after the warp's queries */
            multiply_registers<T, dim>(s, q, k_tile + across<dim>(lane), part);
            multiply_registers<T, dim>(dp, d, k_tile + tile_bytes<dim> + across<dim>(lane), part);
#pragma unroll
            for (int m = 0; m < own; m++) {
                if (blocks && key0 + tile_rows > all_see)
                    mask_unseen(s[m], seen[m], key + lane % 4 * 2);
                else if (!blocks && key + wide<dim> * 16 - 1 > all_see)
                    mask_keys(s[m], mine + m * 16 + lane / 4, key + lane % 4 * 2);
#pragma unroll
                for (int i = 0; i < 8 * wide<dim>; i++) {
                    const int row = i % 4 / 2;
                    const float p =
                        power_of_2(fmaf(s[m][i / 4][i % 4], a.scale * log2_e, shift[m][row]));
                    s[m][i / 4][i % 4] = p * (dp[m][i / 4][i % 4] - delta[m][row]);
                }
                round_factor<T>(s[m], x[m]);
            }
            add_product<T, dim>(dq, x, k_tile + down<dim>(lane), part);
        }
    }
#pragma unroll
    for (int m = 0; m < own; m++) {
        const int row = mine + m * 16;
        if (blocks) {
            const float scale[2] = {a.scale, a.scale},
                        old[2] = {a.merges ? 1.f : 0, a.merges ? 1.f : 0};
            store_sums<dim>(dq[m], scale, old,
                            rows_of(a, static_cast<float *>(a.dqkv), a.dq_stride, b, head), row,
                            a.seq);
        } else {
            store_rows<T, dim>(dq[m], a.scale, a.scale, q_mine + m * 16 * row_bytes<dim>,
                               rows_of(a, static_cast<T *>(a.dqkv), a.qkv_stride, b, head), row,
                               a.seq);
        }
    }
}

} // namespace lap

#endif
