/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of transformer layers on a GPU but attention, and but those of tokens.cuh: norms, SwiGLU, the square loss, normal
 * numbers, the largest magnitude, and what optimizers do. Memory bounds all of them: each reads and
 * writes its matrices once, 16 bytes at a time where they are aligned. What is summed over blocks
 * is summed in an order that depends only on sizes and grids; no result is added to with atomics.
 */
#include "kernel/clip.h"
#include "kernel/cuda/blocks.cuh"
#include "kernel/cuda/tokens.cuh"
#include "kernel/fp8_scale.h"
#include "util/random.h"

namespace
{

/* ---- norms: a block takes a row at a time ---- */

/*
 * The mean over a row of what threads have of it. Two rooms are used in turn: all threads meet in
 * the one before any of them writes the other again.
 */
template <int count>
__device__ void row_means(float (&x)[count], size_t cols, float (*rooms)[count][32], unsigned &turn)
{
    block_sums(x, rooms[turn]);
    turn ^= 1;
    for (int i = 0; i < count; i++)
        x[i] /= static_cast<float>(cols);
}

/* Thread 0 keeps them for backward. */
__device__ float keep_moments(const lap_norm_forward_t &n, size_t row, float mean, float variance)
{
    const float rstd = 1.0f / sqrtf(variance + n.epsilon);
    if (threadIdx.x == 0) {
        n.mean[row] = mean;
        n.rstd[row] = rstd;
    }
    return rstd;
}

/*
 * The row stays in registers, as do gamma and beta for all rows: a thread has the same columns of
 * each. Differences to the mean are what is squared, so that nothing cancels.
 */
template <int fixed> __device__ void normalize_vectors(const lap_norm_forward_t &n)
{
    __shared__ float rooms[2][1][32];
    const size_t col = static_cast<size_t>(threadIdx.x) * width;
    const bool mine = col < n.x.cols;
    float gamma[width] = {}, beta[width] = {}, x[width] = {};
    unsigned turn = 0;
    if (mine)
        load_vector(FLOAT32, n.gamma + col, gamma);
    if (mine && n.beta)
        load_vector(FLOAT32, n.beta + col, beta);
    for (size_t row = blockIdx.x; row < n.x.rows; row += gridDim.x) {
        float mean[1] = {0}, square[1] = {0};
        if (mine)
            take<fixed>(fixed, n.x.data, row * n.x.stride + col, x);
        if (n.kind == LAP_LAYERNORM) {
            for (int i = 0; i < width; i++)
                mean[0] += x[i];
            row_means(mean, n.x.cols, rooms, turn);
        }
        for (int i = 0; i < width && mine; i++)
            square[0] += (x[i] - mean[0]) * (x[i] - mean[0]);
        row_means(square, n.x.cols, rooms, turn);
        const float rstd = keep_moments(n, row, mean[0], square[0]);
        for (int i = 0; i < width; i++)
            x[i] = (x[i] - mean[0]) * rstd * gamma[i] + beta[i];
        if (mine)
            put<fixed>(fixed, n.y.data, row * n.y.stride + col, x);
    }
}

/*
 * Rows of any length: read again where the other remembers them. Here and below, ANY is of any type
 * and alignment too.
 */
template <int fixed> __device__ void normalize_wide(const lap_norm_forward_t &n)
{
    __shared__ float rooms[2][1][32];
    constexpr int count = fixed == ANY ? 1 : width, floats = fixed == ANY ? ANY : FLOAT32;
    const size_t first = static_cast<size_t>(threadIdx.x) * count;
    const size_t step = static_cast<size_t>(blockDim.x) * count;
    unsigned turn = 0;
    for (size_t row = blockIdx.x; row < n.x.rows; row += gridDim.x) {
        float mean[1] = {0}, square[1] = {0}, x[count];
        if (n.kind == LAP_LAYERNORM) {
            for (size_t col = first; col < n.x.cols; col += step) {
                take<fixed>(n.x.dtype, n.x.data, row * n.x.stride + col, x);
                for (int i = 0; i < count; i++)
                    mean[0] += x[i];
            }
            row_means(mean, n.x.cols, rooms, turn);
        }
        for (size_t col = first; col < n.x.cols; col += step) {
            take<fixed>(n.x.dtype, n.x.data, row * n.x.stride + col, x);
            for (int i = 0; i < count; i++)
                square[0] += (x[i] - mean[0]) * (x[i] - mean[0]);
        }
        row_means(square, n.x.cols, rooms, turn);
        const float rstd = keep_moments(n, row, mean[0], square[0]);
        for (size_t col = first; col < n.x.cols; col += step) {
            float gamma[count], beta[count] = {};
            take<fixed>(n.x.dtype, n.x.data, row * n.x.stride + col, x);
            take<floats>(FLOAT32, n.gamma, col, gamma);
            if (n.beta)
                take<floats>(FLOAT32, n.beta, col, beta);
            for (int i = 0; i < count; i++)
                x[i] = (x[i] - mean[0]) * rstd * gamma[i] + beta[i];
            put<fixed>(n.x.dtype, n.y.data, row * n.y.stride + col, x);
        }
    }
}

/* Where a block leaves its sums over rows: dgamma, then dbeta. */
__device__ float *sums_of_block(const lap_norm_backward_t &n)
{
    return static_cast<float *>(n.scratch) + 2 * static_cast<size_t>(blockIdx.x) * n.x.cols;
}

/*
 * With g = dy gamma and n = (x - mean) rstd: dx = rstd (g - mean(g) - n mean(g n)), without mean(g)
 * where x was not centred. `means` are those two.
 */
__device__ float turn_element(const lap_norm_backward_t &n, float normal, float g, float rstd,
                              const float (&means)[2])
{
    const float centre = n.kind == LAP_LAYERNORM ? means[0] : 0.0f;
    return rstd * (g - centre - normal * means[1]);
}

/*
 * One element on its way there: x becomes n and g, which is dy, becomes dy gamma; the sums over rows
 * and those over the row, of which `means` are made, grow.
 */
__device__ void add_element(float &x, float &g, float gamma, float mean, float rstd, float &dgamma,
                            float &dbeta, float (&means)[2])
{
    x = (x - mean) * rstd;
    dgamma += g * x;
    dbeta += g;
    g *= gamma;
    means[0] += g;
    means[1] += g * x;
}

/* What a thread adds up over rows for its columns is in registers, as is the row. */
template <int fixed> __device__ void turn_vectors(const lap_norm_backward_t &n)
{
    __shared__ float rooms[2][2][32];
    const size_t col = static_cast<size_t>(threadIdx.x) * width;
    const bool mine = col < n.x.cols;
    float gamma[width] = {}, dgamma[width] = {}, dbeta[width] = {};
    float x[width] = {}, g[width] = {}, skip[width] = {};
    unsigned turn = 0;
    if (mine)
        load_vector(FLOAT32, n.gamma + col, gamma);
    for (size_t row = blockIdx.x; row < n.x.rows; row += gridDim.x) {
        const float mean = n.mean[row], rstd = n.rstd[row];
        float means[2] = {0, 0};
        if (mine) {
            take<fixed>(fixed, n.x.data, row * n.x.stride + col, x);
            take<fixed>(fixed, n.dy.data, row * n.dy.stride + col, g);
        }
        if (mine && n.skip.data)
            take<fixed>(fixed, n.skip.data, row * n.skip.stride + col, skip);
        for (int i = 0; i < width && mine; i++)
            add_element(x[i], g[i], gamma[i], mean, rstd, dgamma[i], dbeta[i], means);
        row_means(means, n.x.cols, rooms, turn);
        for (int i = 0; i < width; i++)
            x[i] = turn_element(n, x[i], g[i], rstd, means) + skip[i];
        if (mine)
            put<fixed>(fixed, n.dx.data, row * n.dx.stride + col, x);
    }
    if (mine) {
        store_vector(FLOAT32, sums_of_block(n) + col, dgamma);
        store_vector(FLOAT32, sums_of_block(n) + n.x.cols + col, dbeta);
    }
}

/* Rows of any length; the sums over rows grow where they are left. */
template <int fixed> __device__ void turn_wide(const lap_norm_backward_t &n)
{
    __shared__ float rooms[2][2][32];
    constexpr int count = fixed == ANY ? 1 : width, floats = fixed == ANY ? ANY : FLOAT32;
    const size_t first = static_cast<size_t>(threadIdx.x) * count;
    const size_t step = static_cast<size_t>(blockDim.x) * count;
    float *sums = sums_of_block(n);
    unsigned turn = 0;
    for (size_t row = blockIdx.x; row < n.x.rows; row += gridDim.x) {
        const float mean = n.mean[row], rstd = n.rstd[row];
        float x[count], g[count], gamma[count], means[2] = {0, 0};
        for (size_t col = first; col < n.x.cols; col += step) {
            float dgamma[count] = {}, dbeta[count] = {};
            take<fixed>(n.x.dtype, n.x.data, row * n.x.stride + col, x);
            take<fixed>(n.x.dtype, n.dy.data, row * n.dy.stride + col, g);
            take<floats>(FLOAT32, n.gamma, col, gamma);
            if (row != blockIdx.x) {
                take<floats>(FLOAT32, sums, col, dgamma);
                take<floats>(FLOAT32, sums, n.x.cols + col, dbeta);
            }
            for (int i = 0; i < count; i++)
                add_element(x[i], g[i], gamma[i], mean, rstd, dgamma[i], dbeta[i], means);
            put<floats>(FLOAT32, sums, col, dgamma);
            put<floats>(FLOAT32, sums, n.x.cols + col, dbeta);
        }
        row_means(means, n.x.cols, rooms, turn);
        for (size_t col = first; col < n.x.cols; col += step) {
            float skip[count] = {};
            take<fixed>(n.x.dtype, n.x.data, row * n.x.stride + col, x);
            take<fixed>(n.x.dtype, n.dy.data, row * n.dy.stride + col, g);
            take<floats>(FLOAT32, n.gamma, col, gamma);
            if (n.skip.data)
                take<fixed>(n.x.dtype, n.skip.data, row * n.skip.stride + col, skip);
            for (int i = 0; i < count; i++)
                x[i] =
                    turn_element(n, (x[i] - mean) * rstd, g[i] * gamma[i], rstd, means) + skip[i];
            put<fixed>(n.x.dtype, n.dx.data, row * n.dx.stride + col, x);
        }
    }
}

} // namespace

/* Aligned rows that a block can have in its registers. */
extern "C" __global__ void __launch_bounds__(LAP_KERNEL_CUDA_NORM)
    lap_norm_forward(const lap_kernel_cuda_norm_forward_t args)
{
    with_known(args.norm.x.dtype, [&](auto type) { normalize_vectors<type.dtype>(args.norm); });
}

extern "C" __global__ void __launch_bounds__(LAP_KERNEL_CUDA_NORM)
    lap_norm_backward(const lap_kernel_cuda_norm_backward_t args)
{
    with_known(args.norm.x.dtype, [&](auto type) { turn_vectors<type.dtype>(args.norm); });
}

/* All others. They are kernels of their own, so that those need no more registers than they use. */
extern "C" __global__ void __launch_bounds__(LAP_KERNEL_CUDA_NORM)
    lap_norm_forward_wide(const lap_kernel_cuda_norm_forward_t args)
{
    with_type(args.norm.x.dtype, args.vector,
              [&](auto type) { normalize_wide<type.dtype>(args.norm); });
}

extern "C" __global__ void __launch_bounds__(LAP_KERNEL_CUDA_NORM)
    lap_norm_backward_wide(const lap_kernel_cuda_norm_backward_t args)
{
    with_type(args.norm.x.dtype, args.vector, [&](auto type) { turn_wide<type.dtype>(args.norm); });
}

/* ---- SwiGLU ---- */

namespace
{

/* Of a narrow type, which hides what the fast functions lose, or of any. */
template <int fixed> __device__ float sigmoid(float x)
{
    if (fixed == FLOAT16 || fixed == BFLOAT16)
        return __fdividef(1.0f, 1.0f + __expf(-x));
    return 1.0f / (1.0f + expf(-x));
}

template <int fixed> __device__ void gate(const lap_kernel_cuda_swiglu_t &args)
{
    const lap_swiglu_t &s = args.swiglu;
    constexpr int count = fixed == ANY ? 1 : width;
    walk(args.span, [&](size_t row, size_t col) {
        float g[count], u[count];
        take<fixed>(s.out.dtype, s.pre.data, row * s.pre.stride + col, g);
        take<fixed>(s.out.dtype, s.pre.data, row * s.pre.stride + s.out.cols + col, u);
        for (int i = 0; i < count; i++)
            g[i] *= sigmoid<fixed>(g[i]) * u[i];
        put<fixed>(s.out.dtype, s.out.data, row * s.out.stride + col, g);
    });
}

template <int fixed> __device__ void turn_gate(const lap_kernel_cuda_swiglu_backward_t &args)
{
    const lap_swiglu_backward_t &s = args.swiglu;
    constexpr int count = fixed == ANY ? 1 : width;
    walk(args.span, [&](size_t row, size_t col) {
        float g[count], u[count], d[count];
        take<fixed>(s.dout.dtype, s.pre.data, row * s.pre.stride + col, g);
        take<fixed>(s.dout.dtype, s.pre.data, row * s.pre.stride + s.dout.cols + col, u);
        take<fixed>(s.dout.dtype, s.dout.data, row * s.dout.stride + col, d);
        for (int i = 0; i < count; i++) {
            const float x = g[i], open = sigmoid<fixed>(x);
            g[i] = d[i] * u[i] * open * (1.0f + x * (1.0f - open));
            u[i] = d[i] * x * open;
        }
        put<fixed>(s.dpre.dtype, s.dpre.data, row * s.dpre.stride + col, g);
        put<fixed>(s.dpre.dtype, s.dpre.data, row * s.dpre.stride + s.dout.cols + col, u);
    });
}

} // namespace

extern "C" __global__ void __launch_bounds__(LAP_KERNEL_CUDA_THREADS)
    lap_swiglu_forward(const lap_kernel_cuda_swiglu_t args)
{
    with_type(args.swiglu.out.dtype, args.span.vector, [&](auto type) { gate<type.dtype>(args); });
}

extern "C" __global__ void __launch_bounds__(LAP_KERNEL_CUDA_THREADS)
    lap_swiglu_backward(const lap_kernel_cuda_swiglu_backward_t args)
{
    with_type(args.swiglu.dout.dtype, args.span.vector,
              [&](auto type) { turn_gate<type.dtype>(args); });
}

/* ---- the square loss, the largest magnitude, normal numbers ---- */

namespace
{

/* In double, so that the sum is worth its digits. Returns this thread's part of it. */
template <int fixed> __device__ double lose(const lap_kernel_cuda_square_loss_t &args)
{
    const lap_square_loss_t &l = args.loss;
    constexpr int count = fixed == ANY ? 1 : width;
    const int dtype = type_of<fixed>(l.y.dtype);
    double sum = 0;
    walk(args.span, [&](size_t row, size_t col) {
        float y[count], target[count];
        take<fixed>(dtype, l.y.data, row * l.y.stride + col, y);
        take<fixed>(dtype, l.target.data, row * l.target.stride + col, target);
        for (int i = 0; i < count; i++) {
            const double error = static_cast<double>(y[i]) - static_cast<double>(target[i]);
            sum += error * error;
            y[i] = narrow(dtype, error * static_cast<double>(l.scale));
        }
        put<fixed>(dtype, l.dy.data, row * l.dy.stride + col, y);
    });
    return sum;
}

template <int fixed> __device__ uint32_t find_largest(const lap_kernel_cuda_amax_t &args)
{
    constexpr int count = fixed == ANY ? 1 : width;
    uint32_t most = 0;
    walk(args.span, [&](size_t row, size_t col) {
        float x[count];
        take<fixed>(args.amax.src.dtype, args.amax.src.data, row * args.amax.src.stride + col, x);
        for (int i = 0; i < count; i++)
            most = larger(most, x[i]);
    });
    return most;
}

} // namespace

extern "C" __global__ void __launch_bounds__(LAP_KERNEL_CUDA_THREADS)
    lap_square_loss(const lap_kernel_cuda_square_loss_t args)
{
    const double sum = with_type(args.loss.y.dtype, args.span.vector,
                                 [&](auto type) { return lose<type.dtype>(args); });
    finish_sum(args.parts, sum, args.loss.sum);
}

extern "C" __global__ void __launch_bounds__(LAP_KERNEL_CUDA_THREADS)
    lap_amax(const lap_kernel_cuda_amax_t args)
{
    __shared__ uint32_t room[2][32];
    uint32_t most = with_type(args.amax.src.dtype, args.span.vector,
                              [&](auto type) { return find_largest<type.dtype>(args); });
    const uint32_t infinity = 0x7f800000;
    most = block_max(most, room[0]);
    most = most < infinity ? most : infinity;
    if (!leave_part(args.parts, __uint_as_float(most)))
        return;
    most = 0;
    for (unsigned i = threadIdx.x; i < gridDim.x * gridDim.y; i += blockDim.x)
        most = larger(most, static_cast<float>(__ldcg(&args.parts->part[i])));
    most = block_max(most, room[1]);
    if (threadIdx.x == 0)
        *args.amax.amax = __uint_as_float(most);
}

extern "C" __global__ void __launch_bounds__(LAP_KERNEL_CUDA_THREADS)
    lap_fp8_scales(const lap_fp8_scales_t args)
{
    const size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < args.count)
        lap_fp8_make_scale(&args, i);
}

/*
 * The numbers of util/random.h. The logarithm and cosine of a GPU may differ from those of a host
 * in the last bits of a double; rounded to float that shows in very few numbers, by one bit.
 */
extern "C" __global__ void __launch_bounds__(LAP_KERNEL_CUDA_THREADS)
    lap_fill_normal(const lap_kernel_cuda_fill_normal_t args)
{
    const lap_fill_normal_t &f = args.fill;
    walk(args.span, [&](size_t row, size_t col) {
        float x = f.mean;
        if (f.std != 0) {
            const uint64_t index = f.first + row * f.row_step + col;
            x = __fadd_rn(x, __fmul_rn(f.std, lap_random_normal(f.seed, f.tensor, index)));
        }
        store(f.out.dtype, f.out.data, row * f.out.stride + col, x);
    });
}

/* ---- optimizers ---- */

namespace
{

constexpr unsigned four = LAP_KERNEL_CUDA_FLOATS;

/* Numbers [at, at + four) of an array; in one access if it is `aligned`. */
__device__ void take_four(const float *array, size_t at, bool aligned, float (&x)[four])
{
    if (aligned) {
        const float4 all = *reinterpret_cast<const float4 *>(array + at);
        x[0] = all.x, x[1] = all.y, x[2] = all.z, x[3] = all.w;
        return;
    }
    for (unsigned i = 0; i < four; i++)
        x[i] = array[at + i];
}

__device__ void put_four(float *array, size_t at, const float (&x)[four])
{
    *reinterpret_cast<float4 *>(array + at) = make_float4(x[0], x[1], x[2], x[3]);
}

/* One weight w with its gradient and its moments. */
__device__ void sgd(const lap_update_t &u, const lap_rates_t &r, float &w, float grad, float &v)
{
    v = u.momentum * v + (grad * r.scale + u.decay * w);
    w -= r.lr * v;
}

__device__ void adamw(const lap_update_t &u, const lap_rates_t &r, float &w, float grad, float &m,
                      float &v)
{
    const float keep = 1.0f - r.lr * u.decay, rate = r.lr / r.correction1;
    const float g = grad * r.scale;
    m = u.beta1 * m + (1.0f - u.beta1) * g;
    v = u.beta2 * v + (1.0f - u.beta2) * (g * g);
    w = w * keep - rate * (m / (sqrtf(v) / sqrtf(r.correction2) + u.epsilon));
}

__device__ void update_four(const lap_update_t &u, const lap_rates_t &r, size_t at)
{
    float w[four], grad[four], m[four], v[four];
    take_four(u.master, at, true, w);
    take_four(u.grad, at, true, grad);
    take_four(u.first, at, true, m);
    if (u.kind == LAP_SGD) {
        for (unsigned i = 0; i < four; i++)
            sgd(u, r, w[i], grad[i], m[i]);
    } else {
        take_four(u.second, at, true, v);
        for (unsigned i = 0; i < four; i++)
            adamw(u, r, w[i], grad[i], m[i], v[i]);
        put_four(u.second, at, v);
    }
    put_four(u.first, at, m);
    put_four(u.master, at, w);
}

__device__ void update_one(const lap_update_t &u, const lap_rates_t &r, size_t at)
{
    if (u.kind == LAP_SGD)
        sgd(u, r, u.master[at], u.grad[at], u.first[at]);
    else
        adamw(u, r, u.master[at], u.grad[at], u.first[at], u.second[at]);
}

} // namespace

/* Which numbers a thread takes does not depend on where they lie, so that the sum does not. */
extern "C" __global__ void __launch_bounds__(LAP_KERNEL_CUDA_THREADS)
    lap_sum_squares(const lap_kernel_cuda_sum_squares_t args)
{
    const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
    const size_t first = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const size_t fours = args.sum.count / four;
    double sum = 0;
    for (size_t i = first; i < fours; i += step) {
        float x[four];
        take_four(args.sum.src, i * four, args.aligned, x);
        for (unsigned j = 0; j < four; j++)
            sum += static_cast<double>(x[j]) * static_cast<double>(x[j]);
    }
    for (size_t i = fours * four + first; i < args.sum.count; i += step)
        sum += static_cast<double>(args.sum.src[i]) * static_cast<double>(args.sum.src[i]);
    finish_sum(args.parts, sum, args.sum.sum);
}

/* Loads go on side by side; one thread adds, in the order of the numbers. */
extern "C" __global__ void __launch_bounds__(LAP_KERNEL_CUDA_THREADS)
    lap_total(const lap_total_t args)
{
    __shared__ double room[LAP_KERNEL_CUDA_THREADS];
    double sum = 0;
    for (size_t first = 0; first < args.count; first += blockDim.x) {
        const size_t left = args.count - first;
        const size_t count = left < blockDim.x ? left : blockDim.x;
        if (threadIdx.x < count)
            room[threadIdx.x] = args.src[(first + threadIdx.x) * args.stride];
        __syncthreads();
        if (threadIdx.x == 0)
            for (size_t i = 0; i < count; i++)
                sum += room[i];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        *args.total = sum;
}

extern "C" __global__ void lap_clip(const lap_clip_t args)
{
    const lap_rates_t rates = lap_clip_rates(&args);
    *args.rates = rates;
    *args.result = rates;
}

extern "C" __global__ void __launch_bounds__(LAP_KERNEL_CUDA_THREADS)
    lap_update(const lap_kernel_cuda_update_t args)
{
    const lap_rates_t rates = *args.update.rates;
    if (!rates.made)
        return;
    const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
    const size_t first = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const size_t fours = args.aligned ? args.update.count / four : 0;
    for (size_t i = first; i < fours; i += step)
        update_four(args.update, rates, i * four);
    for (size_t i = fours * four + first; i < args.update.count; i += step)
        update_one(args.update, rates, i);
}
