/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Causal attention on tensor cores, for heads of 64 or 128 columns of a 16-bit type: tiles, products of
 * tiles, and forward as FlashAttention-2 does it. Backward is in attention_backward.cuh.
 *
 * A tile is some rows of one head in shared memory, each of `dim` elements in chunks of 16 bytes.
 * Chunk c of row r lies at c ^ r % 8, so that the same chunk of 8 rows that follow one another is
 * read from all banks. While a tile is worked on, the next comes in; a barrier per tile is enough:
 * after it the copies of all threads are visible, and no thread reads the previous tile any more.
 *
 * Rows past the end of a sequence are zeros, and their results are not stored. Nothing else is needed
 * for them: a key there is masked for all queries that matter, and a query there adds zeros to the
 * sums of keys.
 *
 * With `blocks` keys and values are those of another matrix, and tokens have positions of two halves: see
 * lap_attention_t. Both are in the order of positions, so that a query sees the first keys, up to some number,
 * and a later one not fewer. Results are fp32, and are merged with, or added to, those of the blocks before.
 */
#ifndef LAP_KERNEL_CUDA_ATTENTION_TILE_CUH
#define LAP_KERNEL_CUDA_ATTENTION_TILE_CUH

#include "device/cuda/cuda_math.cuh"
#include "kernel/cuda/attention_kernels.h"
#include "kernel/cuda/mma.cuh"

namespace lap
{

constexpr int tile_rows = LAP_CUDA_ATTENTION_TILE;
constexpr int own_rows = LAP_CUDA_ATTENTION_ROWS;
constexpr int tile_threads = LAP_CUDA_ATTENTION_THREADS;
constexpr float log2_e = 1.4426950408889634f;

/* The rows of one head in one sequence; row s is at data + s * stride. */
template <typename T> struct head_rows {
    T *data;
    size_t stride;
};

template <typename T>
__device__ head_rows<T> rows_of(const lap_cuda_attention_t &a, T *matrix, size_t stride, int b,
                                int column_head)
{
    return {matrix + b * stride + static_cast<size_t>(column_head) * a.dim, a.batch * stride};
}

/* ---- tiles ---- */

template <int dim> constexpr int row_bytes = dim * 2;
template <int dim> constexpr int tile_bytes = tile_rows *row_bytes<dim>;

template <int dim> __device__ uint32_t chunk_at(int row, int chunk)
{
    return row * row_bytes<dim> + ((chunk ^ (row & 7)) << 4);
}

/* Begins to copy `count` rows from row `first` on. */
template <int count, int dim, typename T>
__device__ void load_tile(uint32_t tile, const head_rows<const T> &rows, int first, int seq)
{
    constexpr int chunks = row_bytes<dim> / 16, step = tile_threads / chunks;
    static_assert(step % 8 == 0, "the swizzle of a thread's rows is the same");
    const int row = threadIdx.x / chunks, chunk = threadIdx.x % chunks;
    const uint32_t dst = tile + chunk_at<dim>(row, chunk);
    const T *block = rows.data + first * rows.stride; /* the same for all threads */
    const uint32_t mine = row * static_cast<uint32_t>(rows.stride) + chunk * 8;
    if (first + count <= seq) {
#pragma unroll
        for (int i = 0; i < count; i += step, block += step * rows.stride)
            copy16_async(dst + i * row_bytes<dim>, block + mine, true);
    } else {
#pragma unroll
        for (int i = 0; i < count; i += step, block += step * rows.stride)
            copy16_async(dst + i * row_bytes<dim>, block + mine, first + row + i < seq);
    }
}

/*
 * Where lane l reads block (0, 0) of 16 x 16 elements of a tile as four matrices: `down` has those
 * of the first 8 columns before those of the last, `across` those of the first 8 rows.
 */
template <int dim> __device__ uint32_t down(int lane)
{
    return chunk_at<dim>(lane & 15, lane >> 4);
}

template <int dim> __device__ uint32_t across(int lane)
{
    return chunk_at<dim>((lane & 7) | (lane >> 4) << 3, lane >> 3 & 1);
}

/* The same of block (row, column); tiles lie at multiples of a row. */
template <int dim> __device__ uint32_t block_at(uint32_t address, int row, int column)
{
    return (address ^ (column << 5)) + row * 16 * row_bytes<dim>;
}

/* ---- products ---- */

/*
 * c = x y^T, x [16 * blocks, dim] and y from tiles; x is read `down`, y `across`. Of y rows from 16 * from on, as
 * many as c has columns.
 */
template <typename T, int dim, int blocks, int width>
__device__ void multiply_rows(float (&c)[blocks][width][4], uint32_t x, uint32_t y, int from = 0)
{
#pragma unroll
    for (int m = 0; m < blocks; m++)
#pragma unroll
        for (int i = 0; i < width * 4; i++)
            c[m][i / 4][i % 4] = 0;
#pragma unroll
    for (int k = 0; k < dim / 16; k++) {
        uint32_t a[blocks][4];
#pragma unroll
        for (int m = 0; m < blocks; m++)
            load_matrices(a[m], block_at<dim>(x, m, k));
#pragma unroll
        for (int n = 0; n < width / 2; n++) {
            uint32_t b[4];
            load_matrices(b, block_at<dim>(y, from + n, k));
#pragma unroll
            for (int m = 0; m < blocks; m++) {
                multiply_add<T>(c[m][2 * n], a[m], b[0], b[1]);
                multiply_add<T>(c[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* The same for rows x that are in registers: blocks (m, k) of a tile, read `down`. */
template <typename T, int dim, int blocks, int width>
__device__ void multiply_registers(float (&c)[blocks][width][4],
                                   const uint32_t (&x)[blocks][dim / 16][4], uint32_t y, int from)
{
#pragma unroll
    for (int m = 0; m < blocks; m++)
#pragma unroll
        for (int i = 0; i < width * 4; i++)
            c[m][i / 4][i % 4] = 0;
#pragma unroll
    for (int k = 0; k < dim / 16; k++)
#pragma unroll
        for (int n = 0; n < width / 2; n++) {
            uint32_t b[4];
            load_matrices(b, block_at<dim>(y, from + n, k));
#pragma unroll
            for (int m = 0; m < blocks; m++) {
                multiply_add<T>(c[m][2 * n], x[m][k], b[0], b[1]);
                multiply_add<T>(c[m][2 * n + 1], x[m][k], b[2], b[3]);
            }
        }
}

/*
 * c += x y, x [16 * blocks, 16 * depth]; y is read `down`. Of y rows from 16 * from on, as many as x has columns.
 */
template <typename T, int dim, int blocks, int depth>
__device__ void add_product(float (&c)[blocks][dim / 8][4], const uint32_t (&x)[blocks][depth][4],
                            uint32_t y, int from = 0)
{
#pragma unroll
    for (int k = 0; k < depth; k++)
#pragma unroll
        for (int n = 0; n < dim / 16; n++) {
            uint32_t b[4];
            load_matrices_turned(b, block_at<dim>(y, from + k, n));
#pragma unroll
            for (int m = 0; m < blocks; m++) {
                multiply_add<T>(c[m][2 * n], x[m][k], b[0], b[1]);
                multiply_add<T>(c[m][2 * n + 1], x[m][k], b[2], b[3]);
            }
        }
}

/* Sums of a product, rounded, as the left factor of another: the lanes have what they need. */
template <typename T, int depth>
__device__ void round_factor(const float (&c)[2 * depth][4], uint32_t (&x)[depth][4])
{
#pragma unroll
    for (int k = 0; k < depth; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[k][i] = pack<T>(c[2 * k + i / 2][i % 2 * 2], c[2 * k + i / 2][i % 2 * 2 + 1]);
}

/* ---- results ---- */

/*
 * Stores 16 rows of sums by way of the 16 rows of a tile at `tile`, which only this warp uses. They
 * are rows [first, first + 16) of the head.
 */
template <typename T, int dim>
__device__ void store_rows(const float (&c)[dim / 8][4], float low_factor, float high_factor,
                           uint32_t tile, const head_rows<T> &rows, int first, int seq)
{
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    __syncwarp();
#pragma unroll
    for (int n = 0; n < dim / 8; n++) {
        store_shared(tile + chunk_at<dim>(g, n) + t * 4,
                     pack<T>(c[n][0] * low_factor, c[n][1] * low_factor));
        store_shared(tile + chunk_at<dim>(g + 8, n) + t * 4,
                     pack<T>(c[n][2] * high_factor, c[n][3] * high_factor));
    }
    __syncwarp();
    constexpr int chunks = row_bytes<dim> / 16;
#pragma unroll
    for (int i = lane; i < 16 * chunks; i += 32) {
        const int row = i / chunks, chunk = i % chunks;
        const uint4 x = load_shared16(tile + chunk_at<dim>(row, chunk));
        if (first + row < seq)
            *reinterpret_cast<uint4 *>(rows.data + (first + row) * rows.stride + chunk * 8) = x;
    }
}

/* The same in fp32, from registers; what is there counts `old` times. */
template <int dim>
__device__ void store_sums(const float (&c)[dim / 8][4], const float (&factor)[2],
                           const float (&old)[2], const head_rows<float> &rows, int first,
                           int count)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int at = first + row * 8 + lane / 4;
        if (at >= count)
            continue;
        float2 *to = reinterpret_cast<float2 *>(rows.data + at * rows.stride) + lane % 4;
#pragma unroll
        for (int n = 0; n < dim / 8; n++) {
            float2 x = {c[n][2 * row] * factor[row], c[n][2 * row + 1] * factor[row]};
            if (old[row] != 0) {
                const float2 before = to[n * 4];
                x.x = fmaf(before.x, old[row], x.x);
                x.y = fmaf(before.y, old[row], x.y);
            }
            to[n * 4] = x;
        }
    }
}

/* ---- what is seen ---- */

/* The keys that the queries [first, first + count) see: those that the last of them sees. */
template <bool blocks>
__device__ int keys_until(const lap_cuda_attention_t &a, int first, int count)
{
    const int end = min(first + count, a.seq);
    return blocks ? lap_cuda_keys_seen(&a, end - 1) : end;
}

/* The keys, and the values, of a head. */
template <typename T, bool blocks>
__device__ head_rows<const T> keys_of(const lap_cuda_attention_t &a, int b, int kv)
{
    return blocks ? rows_of(a, static_cast<const T *>(a.kv), a.kv_stride, b, kv)
                  : rows_of(a, static_cast<const T *>(a.qkv), a.qkv_stride, b, a.heads + kv);
}

/* Of 16 rows of scores: those of keys that the query of a row does not see. */
template <int width>
__device__ void mask_unseen(float (&s)[width][4], const int (&seen)[2], int key)
{
#pragma unroll
    for (int i = 0; i < width * 4; i++)
        if (key + i / 4 * 8 + i % 2 >= seen[i % 4 / 2])
            s[i / 4][i % 4] = -INFINITY;
}

/* ---- forward ---- */

/* Of 16 rows of scores: those of keys after the query of a row count nothing. */
template <int width> __device__ void mask_keys(float (&s)[width][4], int query, int key)
{
#pragma unroll
    for (int i = 0; i < width * 4; i++)
        if (key + i / 4 * 8 + i % 2 > query + i % 4 / 2 * 8)
            s[i / 4][i % 4] = -INFINITY;
}

/* The largest, or the sum, over the four lanes that share a row. */
__device__ inline float row_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ inline float row_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* How much larger than `most` a score may be, in powers of 2, before it is corrected. */
constexpr float headroom = 8;

/*
 * Makes powers of 16 rows of scores, each less `most` of its row, and adds them to the sums of the
 * lane. `most` is the largest so far, or not much below it: then the powers are above 1, which
 * does no harm, and what has been summed with the powers before need not be scaled. `scale` is for
 * powers of 2. Row 0 is row g, row 1 row g + 8. The first tile has a key for each query, and `most` is
 * a number after it; of a query that sees none it is one before.
 */
template <int dim>
__device__ void soften(float (&s)[8][4], float (&o)[dim / 8][4], float (&most)[2], float (&sum)[2],
                       float scale)
{
    float factor[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float largest = most[row];
#pragma unroll
        for (int n = 0; n < 8; n++)
            largest = fmaxf(largest, fmaxf(s[n][2 * row], s[n][2 * row + 1]));
        largest = row_max(largest);
        factor[row] = 1;
        if ((largest - most[row]) * scale > headroom) {
            factor[row] = power_of_2((most[row] - largest) * scale);
            most[row] = largest;
        }
    }
    if (__any_sync(~0u, factor[0] != 1 || factor[1] != 1)) {
#pragma unroll
        for (int n = 0; n < dim / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                o[n][i] *= factor[i / 2];
        sum[0] *= factor[0];
        sum[1] *= factor[1];
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[n][i] = power_of_2(fmaf(s[n][i], scale, -most[i / 2] * scale));
            sum[i / 2] += s[n][i];
        }
}

/*
 * What a row of this block and of those before it count, from the logarithms of their sums: `before` and
 * `found`, which becomes that of both. `sees`: the query sees a key of this block.
 */
__device__ inline void merge_row(const lap_cuda_attention_t &a, bool sees, float before,
                                 float &found, float &own, float &old)
{
    if (!sees) {
        own = 0;
        old = a.merges ? 1 : 0;
        found = a.merges ? before : -INFINITY;
    } else if (a.merges) {
        const float larger = fmaxf(before, found);
        const float both = larger + log1pf(expf(fminf(before, found) - larger));
        own *= expf(found - both);
        old = expf(before - both);
        found = both;
    }
}

/*
 * A block of four warps takes 128 queries of a head, those with the most keys first. Shared memory:
 * the queries, then twice a tile of keys and one of values.
 */
template <typename T, int dim, bool blocks> __device__ void forward(const lap_cuda_attention_t &a)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int head = blockIdx.x % a.heads, b = blockIdx.x / a.heads;
    const int kv = head / (a.heads / a.kv_heads), keys = blocks ? a.keys : a.seq;
    const int query0 = static_cast<int>(gridDim.y - 1 - blockIdx.y) * own_rows;
    const T *qkv = static_cast<const T *>(a.qkv);
    /* The keys from `key0` on, and their values. */
    const auto load = [&](uint32_t tile, int key0) {
        load_tile<tile_rows, dim>(tile, keys_of<T, blocks>(a, b, kv), key0, keys);
        load_tile<tile_rows, dim>(tile + tile_bytes<dim>, keys_of<T, blocks>(a, b, a.kv_heads + kv),
                                  key0, keys);
    };
    const uint32_t q_tile = shared_address(memory), kv_tiles = q_tile + own_rows * row_bytes<dim>;
    load_tile<own_rows, dim>(q_tile, rows_of(a, qkv, a.qkv_stride, b, head), query0, a.seq);
    load(kv_tiles, 0);

    const int mine = query0 + warp * 32; /* the first query of the warp */
    const uint32_t q_mine = q_tile + warp * 32 * row_bytes<dim>;
    const int end = keys_until<blocks>(a, query0, own_rows);
    float o[2][dim / 8][4] = {}, sum[2][2] = {};
    float most[2][2] = {{-INFINITY, -INFINITY}, {-INFINITY, -INFINITY}};
    int seen[2][2] = {}, all_see = 0,
        some_see = 0; /* keys that all and any of the warp's queries see */
    if (blocks) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            seen[i / 2][i % 2] = lap_cuda_keys_seen(&a, mine + i * 8 + lane / 4);
            most[i / 2][i % 2] = seen[i / 2][i % 2] > 0 ? -INFINITY : 0;
        }
        all_see = lap_cuda_keys_seen(&a, mine + 31); /* none where a query is past the end */
        all_see = all_see == 0 ? 0 : lap_cuda_keys_seen(&a, mine);
        some_see = mine < a.seq ? keys_until<blocks>(a, mine, 32) : 0;
    }
    for (int key0 = 0, turn = 0; key0 < end; key0 += tile_rows, turn ^= 1) {
        const uint32_t k_tile = kv_tiles + turn * 2 * tile_bytes<dim>;
        const uint32_t next = kv_tiles + (turn ^ 1) * 2 * tile_bytes<dim>;
        copies_wait();
        __syncthreads();
        if (key0 + tile_rows < end)
            load(next, key0 + tile_rows);
        if (blocks ? key0 >= some_see
                   : key0 > mine + 31) /* all of them are after the warp's queries */
            continue;
        float s[2][8][4];
        uint32_t p[2][4][4];
        multiply_rows<T, dim>(s, q_mine + down<dim>(lane), k_tile + across<dim>(lane));
        if (blocks && key0 + tile_rows > all_see) {
            mask_unseen(s[0], seen[0], key0 + lane % 4 * 2);
            mask_unseen(s[1], seen[1], key0 + lane % 4 * 2);
        } else if (!blocks && key0 + tile_rows - 1 > mine) {
            mask_keys(s[0], mine + lane / 4, key0 + lane % 4 * 2);
            mask_keys(s[1], mine + 16 + lane / 4, key0 + lane % 4 * 2);
        }
#pragma unroll
        for (int m = 0; m < 2; m++) {
            soften<dim>(s[m], o[m], most[m], sum[m], a.scale * log2_e);
            round_factor<T>(s[m], p[m]);
        }
        add_product<T, dim>(o, p, k_tile + tile_bytes<dim> + down<dim>(lane));
    }
    if (blocks)
        copies_wait(); /* of the first tile, where no key is seen */

    float *lse = a.lse + static_cast<size_t>(head * a.batch + b) * a.seq;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const int first = mine + m * 16;
        float own[2], old[2] = {};
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const int query = first + row * 8 + lane / 4;
            const float all = row_sum(sum[m][row]);
            float found = most[m][row] * a.scale + logf(all);
            own[row] = 1 / all;
            if (blocks)
                merge_row(a, seen[m][row] > 0, query < a.seq ? lse[query] : 0, found, own[row],
                          old[row]);
            if (blocks)
                __syncwarp(); /* all lanes of the row have read it */
            if (lane % 4 == 0 && query < a.seq)
                lse[query] = found;
        }
        if (blocks)
            store_sums<dim>(o[m], own, old,
                            rows_of(a, static_cast<float *>(a.out), a.out_stride, b, head), first,
                            a.seq);
        else
            store_rows<T, dim>(o[m], own[0], own[1], q_mine + m * 16 * row_bytes<dim>,
                               rows_of(a, static_cast<T *>(a.out), a.out_stride, b, head), first,
                               a.seq);
    }
}

} // namespace lap

#endif
