/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of the CUDA device: signals between ranks, which are in cuda_signals.cuh, and the
 * arithmetic that cuBLASLt does not do, sums among it in cuda_reduce.cuh. They are compiled to a
 * fatbin that the library carries and loads itself. Common types of elements are template
 * parameters. Others are branched on at run time, where all threads take the same branch and memory
 * is the bottleneck.
 */
#include "device/cuda/cuda_elements.cuh"
#include "device/cuda/cuda_finish.cuh"
#include "device/cuda/cuda_kernels.h"
#include "device/cuda/cuda_math.cuh"
#include "device/cuda/cuda_reduce.cuh"
#include "device/cuda/cuda_signals.cuh"

/*
 * One warp: adds the raises of this call to `consumed`, when its signals are over on all streams.
 */
extern "C" __global__ void SMALL lap_advance(const lap_cuda_advance_t advance)
{
    if (threadIdx.x == 0 && advance.calls)
        ++*advance.calls;
    for (unsigned i = threadIdx.x; i < advance.n; i += 32)
        advance.consumed[i] += advance.raised[i];
}

extern "C" __global__ void SMALL lap_stamp(const lap_cuda_stamp_t stamp)
{
    store_relaxed(stamp.at, now());
}

static_assert(LAP_CUDA_CLEAR <= 64, "a thread for each word, and no more than a small kernel has");

extern "C" __global__ void SMALL lap_clear(const lap_cuda_clear_t clear)
{
    if (threadIdx.x < clear.n)
        *clear.words[threadIdx.x] = 0;
}

/* ---- arithmetic ---- */

/* Element [row, k] of op(x), stored [row, k] or transposed; 0 outside. */
__device__ static float operand(int dtype, const void *x, size_t stride, bool transposed,
                                size_t row, size_t k, size_t rows, size_t depth)
{
    if (row >= rows || k >= depth)
        return 0;
    const size_t first = transposed ? k : row, second = transposed ? row : k;
    return load(dtype, static_cast<const char *>(x) + first * stride, second);
}

extern "C" __global__ void __launch_bounds__(LAP_CUDA_TILE *LAP_CUDA_TILE)
    lap_multiply(const lap_cuda_multiply_t g)
{
    constexpr int tile = LAP_CUDA_TILE;
    __shared__ float a[tile][tile + 1], b[tile][tile + 1];
    const size_t row0 = static_cast<size_t>(blockIdx.y) * tile;
    const size_t col0 = static_cast<size_t>(blockIdx.x) * tile;
    const int tx = static_cast<int>(threadIdx.x), ty = static_cast<int>(threadIdx.y);
    float x = 0;
    for (size_t k0 = 0; k0 < g.k; k0 += tile) {
        a[ty][tx] =
            operand(g.a_dtype, g.a, g.a_stride, g.a_transposed, row0 + ty, k0 + tx, g.rows, g.k);
        b[ty][tx] = operand(g.b_dtype, g.b, g.b_stride, g.b_plain, col0 + ty, k0 + tx, g.n, g.k);
        __syncthreads();
        for (int i = 0; i < tile; i++)
            x = fmaf(a[ty][i], b[tx][i], x);
        __syncthreads();
    }
    const size_t row = row0 + ty, col = col0 + tx;
    if (row >= g.rows || col >= g.n)
        return;
    x *= g.scale * (g.b_scale ? *g.b_scale : 1.0f) * (g.a_scale ? *g.a_scale : 1.0f);
    char *d = static_cast<char *>(g.d) + row * g.d_stride;
    store(g.d_dtype, d, col, finish(g.finish, x, g.d_dtype, d, row, col));
}

/* The numbers of lap_host_fill. */
extern "C" __global__ void lap_fill(const lap_cuda_fill_t fill)
{
    const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < fill.count;
         i += step) {
        uint64_t x = (fill.seed + i) * 0x9e3779b97f4a7c15u;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        store(fill.dtype, fill.memory, i, static_cast<float>(x >> 40) * 0x1p-23f - 1.0f);
    }
}

/* ---- copies ---- */

namespace
{

/* One warp. Several loads are in flight before the first store. */
template <typename vector>
__device__ void copy_piece(char *dst, const char *src, size_t bytes, unsigned lane)
{
    constexpr int depth = 4;
    vector *to = reinterpret_cast<vector *>(dst), x[depth];
    const vector *from = reinterpret_cast<const vector *>(src);
    const size_t count = bytes / sizeof(vector);
    size_t i = lane;
    for (; i + 32 * (depth - 1) < count; i += 32 * depth) {
#pragma unroll
        for (int j = 0; j < depth; j++)
            x[j] = from[i + 32 * j];
#pragma unroll
        for (int j = 0; j < depth; j++)
            to[i + 32 * j] = x[j];
    }
    for (; i < count; i += 32)
        to[i] = from[i];
    for (i = count * sizeof(vector) + lane; i < bytes; i += 32)
        dst[i] = src[i];
}

} // namespace

/* A warp takes a piece of a row at a time. */
extern "C" __global__ void __launch_bounds__(LAP_CUDA_COPY_THREADS)
    lap_copy(const lap_cuda_copy_t c)
{
    const unsigned lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const size_t pieces = (c.row_bytes + LAP_CUDA_PIECE - 1) / LAP_CUDA_PIECE;
    const size_t step = static_cast<size_t>(gridDim.x) * warps, all = pieces * c.rows;
    for (size_t p = static_cast<size_t>(blockIdx.x) * warps + threadIdx.x / 32; p < all;
         p += step) {
        const size_t row = p / pieces, at = p % pieces * LAP_CUDA_PIECE;
        const size_t bytes =
            c.row_bytes - at < LAP_CUDA_PIECE ? c.row_bytes - at : size_t{LAP_CUDA_PIECE};
        char *dst = static_cast<char *>(c.dst) + row * c.dst_stride + at;
        const char *src = static_cast<const char *>(c.src) + row * c.src_stride + at;
        switch (c.vector) {
        case 16:
            copy_piece<uint4>(dst, src, bytes, lane);
            break;
        case 8:
            copy_piece<uint2>(dst, src, bytes, lane);
            break;
        case 4:
            copy_piece<uint32_t>(dst, src, bytes, lane);
            break;
        case 2:
            copy_piece<uint16_t>(dst, src, bytes, lane);
            break;
        default:
            copy_piece<char>(dst, src, bytes, lane);
        }
    }
}

namespace
{

/* The vectors of a thread are a grid apart; several loads are in flight before the first store. */
template <typename vector> __device__ void multicast(const lap_cuda_multicast_t &s)
{
    constexpr int depth = 4;
    const size_t across = s.row_bytes / sizeof(vector), all = across * s.rows;
    const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
    const char *src = static_cast<const char *>(s.src);
    for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < all;
         i += depth * step) {
        vector x[depth];
        size_t at[depth];
#pragma unroll
        for (int j = 0; j < depth; j++) {
            const size_t v = i + j * step, row = s.rows == 1 ? 0 : v / across;
            const size_t col = (v - row * across) * sizeof(vector);
            at[j] = row * s.dst_stride + col;
            if (v < all)
                x[j] = *reinterpret_cast<const vector *>(src + row * s.src_stride + col);
        }
        for (uint32_t d = 0; d < s.n; d++) {
            char *dst = static_cast<char *>(s.dst[d]);
#pragma unroll
            for (int j = 0; j < depth; j++)
                if (i + j * step < all)
                    *reinterpret_cast<vector *>(dst + at[j]) = x[j];
        }
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(LAP_CUDA_MULTICAST_THREADS, 2)
    lap_multicast(const lap_cuda_multicast_t s)
{
    clear_words(s.signals);
    signal_before(s.before);
    if (s.vector == 16)
        multicast<uint4>(s);
    else if (s.vector == 8)
        multicast<uint2>(s);
    else
        multicast<uint32_t>(s);
    signal_after(s.signals, has_any(s.before));
}

/* ---- casts ---- */

namespace
{

/* As store_vector, for narrow types too: of 1 byte all of them are one access. */
__device__ void store_cast(int dtype, void *memory, const float *x)
{
    if (size_of(dtype) > 1) {
        store_vector(dtype, memory, x);
        return;
    }
    const __nv_fp8_interpretation_t kind = dtype == E4M3 ? __NV_E4M3 : __NV_E5M2;
    uint32_t pairs[LAP_CUDA_VECTOR / 2];
    for (int i = 0; i < LAP_CUDA_VECTOR / 2; i++)
        pairs[i] =
            __nv_cvt_float2_to_fp8x2(make_float2(x[2 * i], x[2 * i + 1]), __NV_SATFINITE, kind);
    *static_cast<uint2 *>(memory) =
        make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
}

/*
 * 1 / scale where that is exact, for powers of two; else 0. Products with it are the same numbers as
 * quotients, in less time.
 */
__device__ float exact_inverse(float scale)
{
    const uint32_t bits = __float_as_uint(scale), exponent = bits >> 23;
    return (bits & 0x7fffff) == 0 && exponent > 1 && exponent < 253 ? 1 / scale : 0;
}

/*
 * One warp: elements [begin, end) of a row. Returns the largest size among those of the lane. A
 * type that is a template parameter costs no branches.
 */
template <int known_from, int known_to>
__device__ uint32_t cast_strip(const lap_cuda_cast_t &c, size_t row, size_t begin, size_t end,
                               float scale)
{
    const int from = known_from < 0 ? c.from : known_from, to = known_to < 0 ? c.to : known_to;
    const char *src = static_cast<const char *>(c.src) + row * c.src_stride;
    char *dst = static_cast<char *>(c.dst) + row * c.dst_stride;
    const unsigned lane = threadIdx.x % 32;
    const float inverse = exact_inverse(scale);
    uint32_t most = 0;
    if (c.vector == 1) {
        for (size_t i = begin + lane; i < end; i += 32) {
            const float x = load(from, src, i);
            most = larger(most, x);
            store(to, dst, i, __fdiv_rn(x, scale));
        }
        return most;
    }
#pragma unroll 2
    for (size_t i = begin + lane * LAP_CUDA_VECTOR; i < end; i += 32 * LAP_CUDA_VECTOR) {
        float x[LAP_CUDA_VECTOR];
        load_vector(from, src + i * size_of(from), x);
#pragma unroll
        for (int j = 0; j < LAP_CUDA_VECTOR; j++)
            most = larger(most, x[j]);
        if (inverse != 0) {
#pragma unroll
            for (int j = 0; j < LAP_CUDA_VECTOR; j++)
                x[j] *= inverse;
        } else {
            for (int j = 0; j < LAP_CUDA_VECTOR; j++)
                x[j] = __fdiv_rn(x[j], scale);
        }
        store_cast(to, dst + i * size_of(to), x);
    }
    return most;
}

/* A warp takes a strip of a row at a time. */
template <int from, int to> __device__ uint32_t cast_rows(const lap_cuda_cast_t &c)
{
    const size_t warps = blockDim.x / 32, strips = (c.cols + LAP_CUDA_STRIP - 1) / LAP_CUDA_STRIP;
    const float scale = c.scale ? *c.scale : 1.0f;
    uint32_t most = 0;
    for (size_t s = blockIdx.x * warps + threadIdx.x / 32; s < strips * c.rows;
         s += gridDim.x * warps) {
        const size_t begin = s % strips * LAP_CUDA_STRIP;
        const size_t end =
            c.cols - begin < LAP_CUDA_STRIP ? c.cols : begin + size_t{LAP_CUDA_STRIP};
        const uint32_t found = cast_strip<from, to>(c, s / strips, begin, end, scale);
        most = found > most ? found : most;
    }
    return most;
}

} // namespace

/* The largest of all does not depend on their order. */
extern "C" __global__ void __launch_bounds__(LAP_CUDA_THREADS) lap_cast(const lap_cuda_cast_t c)
{
    uint32_t most;
    if (c.from == BFLOAT16 && c.to == E4M3)
        most = cast_rows<BFLOAT16, E4M3>(c);
    else if (c.from == BFLOAT16 && c.to == E5M2)
        most = cast_rows<BFLOAT16, E5M2>(c);
    else if (c.from == FLOAT32 && c.to == E4M3)
        most = cast_rows<FLOAT32, E4M3>(c);
    else if (c.from == FLOAT32 && c.to == BFLOAT16)
        most = cast_rows<FLOAT32, BFLOAT16>(c);
    else
        most = cast_rows<-1, -1>(c);
    most = __reduce_max_sync(~0u, most);
    if (c.amax && threadIdx.x % 32 == 0)
        atomicMax(reinterpret_cast<unsigned *>(c.amax), most);
}

/* ---- transposes ---- */

namespace
{

constexpr unsigned side = LAP_CUDA_TRANSPOSE_TILE;

/* Byte i of out[j] is byte j of in[i]. */
__device__ void transpose_words(const uint32_t *in, uint32_t *out)
{
    const uint32_t low01 = __byte_perm(in[0], in[1], 0x5140);
    const uint32_t low23 = __byte_perm(in[2], in[3], 0x5140);
    const uint32_t high01 = __byte_perm(in[0], in[1], 0x7362);
    const uint32_t high23 = __byte_perm(in[2], in[3], 0x7362);
    out[0] = __byte_perm(low01, low23, 0x5410);
    out[1] = __byte_perm(low01, low23, 0x7632);
    out[2] = __byte_perm(high01, high23, 0x5410);
    out[3] = __byte_perm(high01, high23, 0x7632);
}

/*
 * A thread reads 4 rows of 16 bytes. 4 threads of a warp, whose rows follow one another, make 16
 * columns of 16 bytes of them in shared memory. The order of the 8 vectors of a column differs from
 * one group of 16 columns to the next, so that neither these stores nor the loads of whole columns
 * have bank conflicts.
 */
__device__ void transpose_vectors(const lap_cuda_transpose_t &t, size_t row0, size_t col0,
                                  uint32_t *tile)
{
    const unsigned j = threadIdx.x % 8, g = threadIdx.x / 8;
    const char *src = static_cast<const char *>(t.src) + (row0 + 4 * g) * t.src_stride + col0;
    uint4 in[4] = {};
#pragma unroll
    for (int r = 0; r < 4; r++)
        if (row0 + 4 * g + r < t.rows && col0 + 16 * j < t.cols)
            in[r] = *reinterpret_cast<const uint4 *>(src + r * t.src_stride + 16 * j);
    const uint32_t quads[4][4] = {{in[0].x, in[1].x, in[2].x, in[3].x},
                                  {in[0].y, in[1].y, in[2].y, in[3].y},
                                  {in[0].z, in[1].z, in[2].z, in[3].z},
                                  {in[0].w, in[1].w, in[2].w, in[3].w}};
#pragma unroll
    for (unsigned q = 0; q < 4; q++) {
        uint32_t out[4];
        transpose_words(quads[q], out);
#pragma unroll
        for (unsigned c = 0; c < 4; c++)
            tile[(16 * j + 4 * q + c) * (side / 4) + ((g / 4) ^ j) * 4 + g % 4] = out[c];
    }
    __syncthreads();
    const uint4 *vectors = reinterpret_cast<const uint4 *>(tile);
#pragma unroll
    for (unsigned c = g; c < side; c += LAP_CUDA_THREADS / 8)
        if (col0 + c < t.cols && row0 + 16 * j < t.padded)
            *reinterpret_cast<uint4 *>(static_cast<char *>(t.dst) + (col0 + c) * t.dst_stride +
                                       row0 + 16 * j) = vectors[c * 8 + (j ^ (c / 16))];
}

/* Of any size and alignment. */
__device__ void transpose_bytes(const lap_cuda_transpose_t &t, size_t row0, size_t col0, char *tile)
{
    for (unsigned i = threadIdx.x; i < side * side; i += LAP_CUDA_THREADS) {
        const unsigned r = i / side, c = i % side;
        const bool there = row0 + r < t.rows && col0 + c < t.cols;
        tile[c * side + r] =
            there ? static_cast<const char *>(t.src)[(row0 + r) * t.src_stride + col0 + c] : 0;
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < side * side; i += LAP_CUDA_THREADS) {
        const unsigned c = i / side, r = i % side;
        if (row0 + r < t.padded && col0 + c < t.cols)
            static_cast<char *>(t.dst)[(col0 + c) * t.dst_stride + row0 + r] = tile[i];
    }
}

} // namespace

/* A block takes a square. */
extern "C" __global__ void __launch_bounds__(LAP_CUDA_THREADS)
    lap_transpose(const lap_cuda_transpose_t t)
{
    __shared__ uint4 tile[side * side / 16];
    const size_t across = (t.cols + side - 1) / side;
    const size_t row0 = blockIdx.x / across * side, col0 = blockIdx.x % across * side;
    if (t.vectors)
        transpose_vectors(t, row0, col0, reinterpret_cast<uint32_t *>(tile));
    else
        transpose_bytes(t, row0, col0, reinterpret_cast<char *>(tile));
}
