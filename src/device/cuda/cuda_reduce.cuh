/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of several matrices, finished, and sums of the columns of one. Memory is the bottleneck of
 * both, so that each thread has as many loads in flight as its registers hold. Aligned matrices are
 * read in vectors, with types that are template parameters; others element by element.
 */
#ifndef LAP_DEVICE_CUDA_CUDA_REDUCE_CUH
#define LAP_DEVICE_CUDA_CUDA_REDUCE_CUH

#include "device/cuda/cuda_finish.cuh"
#include "device/cuda/cuda_signals.cuh"

namespace
{

/* The scale of a source. */
__device__ float scale_of(const lap_cuda_reduce_t &r, uint32_t s)
{
    return r.scales[s] ? *r.scales[s] : 1.0f;
}

/* The initial value of a sum: adding it changes no number, not even the sign of a zero. */
constexpr float nothing = -0.0f;

/*
 * A scaled source is rounded before it is added: the compiler must not make a fused multiply-add.
 */
__device__ float add_part(float x, float part, float scale)
{
    return __fadd_rn(x, __fmul_rn(part, scale));
}

__device__ void reduce_element(const lap_cuda_reduce_t &r, size_t row, size_t col)
{
    float x = nothing;
    for (uint32_t s = 0; s < r.nsrc; s++) {
        const char *src = static_cast<const char *>(r.srcs[s]) + row * r.strides[s];
        x = add_part(x, load(r.from, src, col), scale_of(r, s));
    }
    char *d = static_cast<char *>(r.dst) + row * r.dst_stride;
    store(r.to, d, col, finish(r.finish, x, r.to, d, row, col));
}

/* LAP_CUDA_VECTOR elements as they are in memory; of a type that is not known, as float. */
template <int dtype> struct packed {
    uint4 bits[dtype == FLOAT32 || dtype < 0 ? 2 : 1];
};
template <> struct packed<E4M3> {
    uint2 bits;
};
template <> struct packed<E5M2> {
    uint2 bits;
};

template <int dtype> __device__ void fetch(int type, const void *memory, packed<dtype> *x)
{
    if (dtype < 0)
        load_vector(type, memory, reinterpret_cast<float *>(x));
    else
        *x = *static_cast<const packed<dtype> *>(memory);
}

template <int dtype> __device__ void unpack(const packed<dtype> &packed, float *x)
{
#pragma unroll
    for (int i = 0; i < LAP_CUDA_VECTOR; i++)
        x[i] = load(dtype < 0 ? FLOAT32 : dtype, &packed, i);
}

/* A vector of a matrix: its row, and its number there. */
struct place {
    uint32_t row, at;
};

/* What a finish needs in addition to the sums. */
template <int dtype> struct needs {
    packed<dtype> d, bias, aux;
};

template <int to, int kind>
__device__ void fetch_needs(const lap_cuda_reduce_t &r, place p, needs<to> *n)
{
    const size_t bytes = p.at * sizeof(packed<to>);
    const lap_cuda_finish_t &f = r.finish;
    if (f.beta != 0)
        fetch(to, static_cast<const char *>(r.dst) + p.row * r.dst_stride + bytes, &n->d);
    if (f.epilogue & BIAS)
        fetch(to, static_cast<const char *>(f.bias) + bytes, &n->bias);
    if (kind == LAP_CUDA_DGELU)
        fetch(to, static_cast<const char *>(f.aux) + p.row * f.aux_stride + bytes, &n->aux);
}

/* As finish_vector, where bias and aux are of the type of d and aligned, and the scale is 1. */
template <int to, int kind>
__device__ void finish_known(const lap_cuda_finish_t &f, const needs<to> &n, place p, float *x)
{
    constexpr int width = LAP_CUDA_VECTOR;
    float y[width];
    if (f.beta != 0) {
        unpack(n.d, y);
#pragma unroll
        for (int i = 0; i < width; i++)
            x[i] = __fadd_rn(x[i], __fmul_rn(f.beta, y[i]));
    }
    if (f.epilogue & BIAS) {
        unpack(n.bias, y);
#pragma unroll
        for (int i = 0; i < width; i++)
            x[i] = __fadd_rn(x[i], y[i]);
    }
    if (kind == LAP_CUDA_GELU) {
        if (f.aux)
            store_vector(
                to, static_cast<char *>(f.aux) + p.row * f.aux_stride + p.at * sizeof(packed<to>),
                x);
#pragma unroll
        for (int i = 0; i < width; i++)
            x[i] = gelu(x[i]);
    }
    if (kind == LAP_CUDA_DGELU) {
        unpack(n.aux, y);
#pragma unroll
        for (int i = 0; i < width; i++)
            x[i] *= gelu_slope(y[i]);
    }
}

/*
 * How many vectors a thread has in flight, and how many sources of each: as many as its registers
 * hold beside the operands of the finish.
 */
template <int from, int to, int kind> struct measure {
    static constexpr bool plain = kind == LAP_CUDA_PLAIN;
    static constexpr int turns = plain || (from == FLOAT32 && to != FLOAT32) ? 2 : 1;
    static constexpr int room = plain ? 8 : kind == LAP_CUDA_ANY ? 2 : 4;
    static constexpr int group = room / (turns * sizeof(packed<from>) / 16);
};

/* The sums at each of a thread's places. */
template <int from, int turns, int group>
__device__ void add_sources(const lap_cuda_reduce_t &r, const place *p, float (*x)[LAP_CUDA_VECTOR])
{
    constexpr int width = LAP_CUDA_VECTOR;
    const int type = from < 0 ? r.from : from;
#pragma unroll
    for (int i = 0; i < turns * width; i++)
        x[i / width][i % width] = nothing;
#pragma unroll 1
    for (uint32_t s0 = 0; s0 < r.nsrc; s0 += group) {
        packed<from> parts[group][turns];
        float scales[group];
#pragma unroll
        for (int g = 0; g < group; g++) {
            if (s0 + g >= r.nsrc)
                break;
            const char *src = static_cast<const char *>(r.srcs[s0 + g]);
            scales[g] = scale_of(r, s0 + g);
#pragma unroll
            for (int t = 0; t < turns; t++)
                fetch(type, src + p[t].row * r.strides[s0 + g] + p[t].at * width * size_of(type),
                      &parts[g][t]);
        }
#pragma unroll
        for (int g = 0; g < group; g++) {
            if (s0 + g >= r.nsrc)
                break;
#pragma unroll
            for (int t = 0; t < turns; t++) {
                float part[width];
                unpack(parts[g][t], part);
#pragma unroll
                for (int i = 0; i < width; i++)
                    x[t][i] = add_part(x[t][i], part[i], scales[g]);
            }
        }
    }
}

/*
 * All loads of the thread's vectors are issued before anything is added up, to hide the latency of
 * memory. Types and a finish that are template parameters cost no branches. For a place past the
 * end the first one is read, and nothing is written.
 */
template <int from, int to, int kind>
__device__ void reduce_places(const lap_cuda_reduce_t &r, const place *p)
{
    using size = measure<from, to, kind>;
    constexpr int width = LAP_CUDA_VECTOR, turns = size::turns;
    const int to_type = to < 0 ? r.to : to;
    constexpr bool known = kind != LAP_CUDA_PLAIN && kind != LAP_CUDA_ANY;
    needs<to> n[turns];
    float x[turns][width];
    place near[turns];
#pragma unroll
    for (int t = 0; t < turns; t++) {
        near[t] = p[t].row < r.rows ? p[t] : p[0];
        if (known)
            fetch_needs<to, kind>(r, near[t], &n[t]);
    }
    add_sources<from, turns, size::group>(r, near, x);
#pragma unroll
    for (int t = 0; t < turns; t++) {
        if (p[t].row >= r.rows)
            break;
        const size_t col = static_cast<size_t>(p[t].at) * width;
        char *d = static_cast<char *>(r.dst) + p[t].row * r.dst_stride + col * size_of(to_type);
        if (known)
            finish_known<to, kind>(r.finish, n[t], p[t], x[t]);
        else if (kind == LAP_CUDA_ANY && !r.finish.plain)
            finish_vector(r.finish, x[t], to_type, d, p[t].row, col);
        store_vector(to_type, d, x[t]);
    }
}

/* Vectors of a thread are as many apart as there are threads: only the first needs a division. */
template <int from, int to, int kind> __device__ void reduce_vectors(const lap_cuda_reduce_t &r)
{
    constexpr int turns = measure<from, to, kind>::turns;
    const uint32_t across = static_cast<uint32_t>(r.cols / LAP_CUDA_VECTOR);
    const uint32_t first = blockIdx.x * LAP_CUDA_THREADS + threadIdx.x;
    const uint32_t step = gridDim.x * LAP_CUDA_THREADS;
    const uint32_t down = step / across, right = step % across;
    place next = {first / across, first % across};
    while (next.row < r.rows) {
        place p[turns];
#pragma unroll
        for (int t = 0; t < turns; t++) {
            const bool wraps = next.at >= across - right;
            p[t] = next;
            next.row += down + wraps;
            next.at = wraps ? next.at - (across - right) : next.at + right;
        }
        reduce_places<from, to, kind>(r, p);
    }
}

template <int from, int to> __device__ void reduce_kind(const lap_cuda_reduce_t &r)
{
    switch (r.kind) {
    case LAP_CUDA_PLAIN:
        reduce_vectors<from, to, LAP_CUDA_PLAIN>(r);
        break;
    case LAP_CUDA_LINEAR:
        reduce_vectors<from, to, LAP_CUDA_LINEAR>(r);
        break;
    case LAP_CUDA_GELU:
        reduce_vectors<from, to, LAP_CUDA_GELU>(r);
        break;
    default:
        reduce_vectors<from, to, LAP_CUDA_DGELU>(r);
    }
}

__device__ void reduce_all(const lap_cuda_reduce_t &r)
{
    if (r.vector == 1) {
        const size_t all = r.cols * r.rows, step = static_cast<size_t>(gridDim.x) * blockDim.x;
        for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < all;
             i += step)
            reduce_element(r, i / r.cols, i % r.cols);
    } else if (r.kind == LAP_CUDA_ANY) {
        reduce_vectors<-1, -1, LAP_CUDA_ANY>(r);
    } else if (r.from == BFLOAT16) {
        reduce_kind<BFLOAT16, BFLOAT16>(r);
    } else if (r.from == FLOAT16) {
        reduce_kind<FLOAT16, FLOAT16>(r);
    } else if (r.to == BFLOAT16) {
        reduce_kind<FLOAT32, BFLOAT16>(r);
    } else if (r.to == FLOAT16) {
        reduce_kind<FLOAT32, FLOAT16>(r);
    } else {
        reduce_kind<FLOAT32, FLOAT32>(r);
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(LAP_CUDA_THREADS, LAP_CUDA_REDUCE_BLOCKS)
    lap_reduce(const lap_cuda_reduce_t r)
{
    reduce_all(r);
}

extern "C" __global__ void __launch_bounds__(LAP_CUDA_THREADS, LAP_CUDA_REDUCE_BLOCKS)
    lap_sum(const lap_cuda_sum_t s)
{
    signal_before(s.before);
    reduce_all(s.reduce);
    signal_after(s.signals, has_any(s.before));
}

/* ---- sums of columns ---- */

namespace
{

/* Adds up `left` elements below each other, of which the first is given. */
__device__ void add_column(int dtype, const char *src, size_t apart, uint32_t left, double *total)
{
#pragma unroll 4
    for (uint32_t n = 0; n < left; n++)
        *total += load(dtype, src + n * apart, 0);
}

/*
 * The same with vectors. Several loads are always in flight: when one has arrived, the next is
 * issued before it is added.
 */
template <int dtype>
__device__ void add_columns(const char *src, size_t apart, uint32_t left, double *total)
{
    constexpr uint32_t depth = 64 / sizeof(packed<dtype>);
    packed<dtype> x[depth];
#pragma unroll
    for (uint32_t i = 0; i < depth; i++)
        if (i < left)
            fetch(dtype, src + i * apart, &x[i]);
    for (uint32_t n = 0; n < left; n += depth)
#pragma unroll
        for (uint32_t i = 0; i < depth; i++) {
            if (n + i >= left)
                break;
            float y[LAP_CUDA_VECTOR];
            unpack(x[i], y);
            if (n + i + depth < left)
                fetch(dtype, src + (n + i + depth) * apart, &x[i]);
#pragma unroll
            for (int j = 0; j < LAP_CUDA_VECTOR; j++)
                total[j] += y[j];
        }
}

/*
 * A block has the columns of `across` threads side by side, and as many rows at a time as then fit.
 * The sums of its threads are added up in a fixed order: first in each warp, then over the warps.
 */
template <int dtype, int width>
__device__ void sum_columns(const lap_cuda_column_sums_t &s, double *parts)
{
    const unsigned at = threadIdx.x % s.across, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned row = threadIdx.x / s.across, high = LAP_CUDA_SUMS_THREADS / s.across;
    const size_t col0 = static_cast<size_t>(blockIdx.x) * s.across * width;
    const size_t col = col0 + at * width;
    double total[width] = {};
    if (col < s.cols && row < s.rows) {
        const uint32_t left = static_cast<uint32_t>((s.rows - row + high - 1) / high);
        const char *src =
            static_cast<const char *>(s.src) + row * s.src_stride + col * size_of(s.from);
        if constexpr (width == 1)
            add_column(s.from, src, high * s.src_stride, left, total);
        else
            add_columns<dtype>(src, high * s.src_stride, left, total);
    }
    for (unsigned other = s.across; other < 32; other *= 2)
#pragma unroll
        for (int j = 0; j < width; j++)
            total[j] += __shfl_xor_sync(~0u, total[j], other);
    const unsigned cols = s.across * width;
    for (int j = 0; lane < s.across && j < width; j++)
        parts[warp * cols + at * width + j] = total[j];
    __syncthreads();
    if (threadIdx.x >= cols || col0 + threadIdx.x >= s.cols)
        return;
    const double scale = static_cast<double>(s.scale) * (s.scaled_by ? *s.scaled_by : 1.0f);
    double sum = 0;
    for (unsigned i = 0; i < LAP_CUDA_SUMS_THREADS / 32; i++)
        sum += parts[i * cols + threadIdx.x];
    store(s.to, s.dst, col0 + threadIdx.x, narrow(s.to, sum * scale));
}

} // namespace

extern "C" __global__ void __launch_bounds__(LAP_CUDA_SUMS_THREADS)
    lap_column_sums(const lap_cuda_column_sums_t s)
{
    __shared__ double parts[LAP_CUDA_SUMS_THREADS / 32 * LAP_CUDA_ACROSS * LAP_CUDA_VECTOR];
    constexpr int width = LAP_CUDA_VECTOR;
    if (s.vector == 1)
        sum_columns<-1, 1>(s, parts);
    else if (s.from == FLOAT32)
        sum_columns<FLOAT32, width>(s, parts);
    else if (s.from == FLOAT16)
        sum_columns<FLOAT16, width>(s, parts);
    else if (s.from == BFLOAT16)
        sum_columns<BFLOAT16, width>(s, parts);
    else if (s.from == E4M3)
        sum_columns<E4M3, width>(s, parts);
    else
        sum_columns<E5M2, width>(s, parts);
}

#endif
