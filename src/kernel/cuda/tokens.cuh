/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of language models on a GPU, for layers.cu: embeddings, rotary positions and
 * cross-entropy. Sums are taken in an order that depends only on sizes; nothing is added to with
 * atomics.
 */
#ifndef LAP_KERNEL_CUDA_TOKENS_CUH
#define LAP_KERNEL_CUDA_TOKENS_CUH

#include "kernel/cuda/blocks.cuh"

namespace
{

__device__ int32_t id_of(const int32_t *ids, size_t row, int col)
{
    return ids[row * LAP_ID_COLS + col];
}

/* ---- embeddings ---- */

template <int fixed> __device__ void embed(const lap_kernel_cuda_embedding_t &args)
{
    const lap_embedding_t &e = args.embedding;
    constexpr int count = fixed == ANY ? 1 : width;
    constexpr int floats = fixed == ANY ? ANY : FLOAT32;
    walk(args.span, [&](size_t row, size_t col) {
        const size_t token = id_of(e.ids, row, LAP_ID_TOKEN);
        const bool own = token >= e.first && token - e.first < e.count;
        float x[count] = {}, position[count] = {};
        if (own)
            take<floats>(FLOAT32, e.table, (token - e.first) * e.out.cols + col, x);
        if (own && e.positions)
            take<floats>(FLOAT32, e.positions, lap_position(e.at, row / e.batch) * e.out.cols + col,
                         position);
        for (int i = 0; i < count; i++)
            x[i] += position[i];
        put<fixed>(e.out.dtype, e.out.data, row * e.out.stride + col, x);
    });
}

/* The row at place i of the list that is ordered by tokens, and the row of the gradient it is for. */
__device__ size_t row_at(const lap_embedding_backward_t &e, size_t i)
{
    return e.ids ? id_of(e.ids, i, LAP_ID_BY_TOKEN) : i;
}

__device__ size_t number_at(const lap_embedding_backward_t &e, size_t i)
{
    return e.ids ? id_of(e.ids, row_at(e, i), LAP_ID_TOKEN) : lap_position(e.at, i / e.batch);
}

} // namespace

extern "C" __global__ void __launch_bounds__(LAP_KERNEL_CUDA_THREADS)
    lap_embedding(const lap_kernel_cuda_embedding_t args)
{
    with_type(args.embedding.out.dtype, args.span.vector,
              [&](auto type) { embed<type.dtype>(args); });
}

/*
 * A block has a place of the ordered list, and does something where a number begins: it adds up all
 * rows of it, a column a thread, in double, in their order.
 */
extern "C" __global__ void __launch_bounds__(LAP_KERNEL_CUDA_THREADS)
    lap_embedding_backward(const lap_embedding_backward_t e)
{
    const size_t begin = blockIdx.x, number = number_at(e, begin);
    const size_t col = static_cast<size_t>(blockIdx.y) * blockDim.x + threadIdx.x;
    if ((begin > 0 && number_at(e, begin - 1) == number) || col >= e.dy.cols || number < e.first ||
        number - e.first >= e.count)
        return;
    double sum = 0;
    for (size_t i = begin; i < e.dy.rows && number_at(e, i) == number; i++)
        sum += static_cast<double>(load(e.dy.dtype, e.dy.data, row_at(e, i) * e.dy.stride + col));
    float *grad = e.grad + (number - e.first) * e.dy.cols + col;
    *grad = static_cast<float>(static_cast<double>(e.beta) * *grad + e.alpha * sum);
}

/* ---- rotary positions ---- */

namespace
{

template <int fixed> __device__ void rotate(const lap_kernel_cuda_rope_t &args)
{
    const lap_rope_t &r = args.rope;
    constexpr int count = fixed == ANY ? 1 : width;
    constexpr int floats = fixed == ANY ? ANY : FLOAT32;
    const size_t half = r.dim / 2;
    const float sign = r.backward ? -1.0f : 1.0f;
    walk(args.span, [&](size_t row, size_t col) {
        const size_t at = row * r.x.stride + col / half * r.dim + col % half;
        const size_t angle = lap_position(r.at, row / r.batch) * r.dim + col % half;
        float a[count], b[count], cosine[count], sine[count];
        take<fixed>(r.x.dtype, r.x.data, at, a);
        take<fixed>(r.x.dtype, r.x.data, at + half, b);
        take<floats>(FLOAT32, r.table, angle, cosine);
        take<floats>(FLOAT32, r.table, angle + half, sine);
        for (int i = 0; i < count; i++) {
            const float first = a[i] * cosine[i] - b[i] * (sign * sine[i]);
            b[i] = b[i] * cosine[i] + a[i] * (sign * sine[i]);
            a[i] = first;
        }
        put<fixed>(r.x.dtype, r.x.data, at, a);
        put<fixed>(r.x.dtype, r.x.data, at + half, b);
    });
}

} // namespace

extern "C" __global__ void __launch_bounds__(LAP_KERNEL_CUDA_THREADS)
    lap_rope(const lap_kernel_cuda_rope_t args)
{
    with_type(args.rope.x.dtype, args.span.vector, [&](auto type) { rotate<type.dtype>(args); });
}

/* ---- dropout ---- */

namespace
{

template <int fixed> __device__ void drop(const lap_kernel_cuda_dropout_t &args)
{
    const lap_dropout_t &d = args.dropout;
    constexpr int count = fixed == ANY ? 1 : width;
    walk(args.span, [&](size_t i, size_t col) {
        const size_t row = d.first_row + i;
        const size_t position = lap_position(d.at, row / d.batch);
        const int32_t sample = lap_mask_sample(&d.mask, row % d.batch);
        float x[count], skip[count] = {};
        take<fixed>(d.x.dtype, d.x.data, i * d.x.stride + col, x);
        if (d.skip.data)
            take<fixed>(d.skip.dtype, d.skip.data, i * d.skip.stride + col, skip);
        lap_u32x4_t words = {};
        for (int c = 0; c < count && sample >= 0; c++) {
            if (c % 4 == 0) /* pieces of several begin at multiples of 4 */
                words = lap_mask_words(&d.mask, sample, position, d.x.cols, col + c);
            x[c] *= lap_mask_factor(&d.mask, words.word[(col + c) % 4]);
        }
        for (int c = 0; c < count; c++)
            x[c] += skip[c];
        put<fixed>(d.out.dtype, d.out.data, i * d.out.stride + col, x);
    });
}

} // namespace

extern "C" __global__ void __launch_bounds__(LAP_KERNEL_CUDA_THREADS)
    lap_dropout(const lap_kernel_cuda_dropout_t args)
{
    with_type(args.dropout.x.dtype, args.span.vector, [&](auto type) { drop<type.dtype>(args); });
}

/* ---- cross-entropy ---- */

namespace
{

/* Of a narrow type, which hides what the fast function loses, or of any. */
template <int fixed> __device__ float exponential(float x)
{
    return fixed == FLOAT16 || fixed == BFLOAT16 ? __expf(x) : expf(x);
}

__device__ float block_most(float x, float *room)
{
    const unsigned lane = threadIdx.x % 32;
    for (int step = 16; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(all_lanes, x, step));
    if (lane == 0)
        room[threadIdx.x / 32] = x;
    __syncthreads();
    x = lane < blockDim.x / 32 ? room[lane] : -INFINITY;
    for (int step = 16; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(all_lanes, x, step));
    return x;
}

/* Calls body(elements, column) for the vectors of a row that this thread has, and for the rest. */
template <int fixed, typename body_t>
__device__ void walk_row(const lap_cross_entropy_t &e, size_t row, body_t body)
{
    constexpr int count = fixed == ANY ? 1 : width;
    const size_t whole = e.cols / count * count, base = row * e.logits.stride;
    for (size_t col = threadIdx.x * count; col < whole; col += blockDim.x * count) {
        float x[count];
        take<fixed>(e.logits.dtype, e.logits.data, base + col, x);
        if (body(x, count, col))
            put<fixed>(e.logits.dtype, e.logits.data, base + col, x);
    }
    for (size_t col = whole + threadIdx.x; col < e.cols; col += blockDim.x) {
        float x[1] = {load(e.logits.dtype, e.logits.data, base + col)};
        if (body(x, 1, col))
            store(e.logits.dtype, e.logits.data, base + col, x[0]);
    }
}

/* The largest of those so far, and the sum of the exponentials to it: one way through the row. */
template <int fixed> __device__ void find_stats(const lap_cross_entropy_t &e, size_t row)
{
    __shared__ float most_room[32];
    __shared__ float sum_room[1][32];
    float most = -INFINITY, sum[1] = {0};
    walk_row<fixed>(e, row, [&](const float *x, int count, size_t) {
        float larger = most;
        for (int i = 0; i < count; i++)
            larger = fmaxf(larger, x[i]);
        const float base = larger == -INFINITY ? 0.0f : larger;
        sum[0] *= exponential<fixed>(most - base);
        for (int i = 0; i < count; i++)
            sum[0] += exponential<fixed>(x[i] - base);
        most = larger;
        return false;
    });
    const float all = block_most(most, most_room);
    sum[0] = most == -INFINITY ? sum[0] : sum[0] * exponential<fixed>(most - all);
    block_sums(sum, sum_room);
    if (threadIdx.x != 0)
        return;
    float *stats = e.stats + row * LAP_LOGIT_STATS;
    const int32_t target = id_of(e.ids, row, LAP_ID_TARGET);
    const size_t col = target < 0 ? e.cols : static_cast<size_t>(target) - e.first;
    stats[LAP_LOGIT_MOST] = all;
    stats[LAP_LOGIT_SUM] = sum[0];
    stats[LAP_LOGIT_TARGET] =
        col < e.cols ? load(e.logits.dtype, e.logits.data, row * e.logits.stride + col) : 0.0f;
}

/* What all ranks have found of a row. */
struct joined {
    float most, factor;
    double loss;
};

__device__ joined join_stats(const lap_cross_entropy_t &e, size_t row)
{
    const size_t step = e.logits.rows * LAP_LOGIT_STATS;
    const float *stats = e.stats + row * LAP_LOGIT_STATS;
    float most = stats[LAP_LOGIT_MOST];
    double sum = 0, target = 0;
    for (size_t r = 1; r < e.ranks; r++)
        most = fmaxf(most, stats[r * step + LAP_LOGIT_MOST]);
    for (size_t r = 0; r < e.ranks; r++) {
        const float *own = stats + r * step;
        sum += static_cast<double>(own[LAP_LOGIT_SUM]) * expf(own[LAP_LOGIT_MOST] - most);
        target += own[LAP_LOGIT_TARGET];
    }
    return {most, static_cast<float>(*e.scale / sum), log(sum) + most - target};
}

template <int fixed> __device__ double turn_rows(const lap_cross_entropy_t &e)
{
    __shared__ joined shared;
    const float scale = *e.scale;
    double total = 0;
    for (size_t row = blockIdx.x; row < e.logits.rows; row += gridDim.x) {
        const int32_t target = id_of(e.ids, row, LAP_ID_TARGET);
        __syncthreads(); /* all threads have read what the row before left */
        if (threadIdx.x == 0) {
            shared = target < 0 ? joined{0, 0, 0} : join_stats(e, row);
            total += shared.loss;
        }
        __syncthreads();
        const joined all = shared;
        const size_t hit = target < 0 ? e.cols : static_cast<size_t>(target) - e.first;
        walk_row<fixed>(e, row, [&](float *x, int count, size_t col) {
            for (int i = 0; i < count; i++) {
                x[i] = target < 0 ? 0.0f : exponential<fixed>(x[i] - all.most) * all.factor;
                if (col + i == hit)
                    x[i] -= scale;
            }
            return true;
        });
    }
    return total;
}

} // namespace

extern "C" __global__ void __launch_bounds__(LAP_KERNEL_CUDA_NORM)
    lap_logit_stats(const lap_kernel_cuda_cross_entropy_t args)
{
    with_type(args.entropy.logits.dtype, args.vector,
              [&](auto type) { find_stats<type.dtype>(args.entropy, blockIdx.x); });
}

extern "C" __global__ void __launch_bounds__(LAP_KERNEL_CUDA_NORM)
    lap_cross_entropy(const lap_kernel_cuda_cross_entropy_t args)
{
    const double total = with_type(args.entropy.logits.dtype, args.vector,
                                   [&](auto type) { return turn_rows<type.dtype>(args.entropy); });
    finish_sum(args.parts, total, args.entropy.sum);
}

#endif
