/* SPDX-License-Identifier: Apache-2.0 */
/* What streams of a GPU do besides GEMMs: copies, sums, casts, transposes, and memory to be filled. */
#include <string.h>

#include "device/cuda/cuda.h"

#define BLOCKS_PER_SM 8u

/* Copies between memories of any kind: the driver knows an address when it sees it. */
static lap_status_t copy_on(const lap_cuda_device_t *device, CUstream stream,
                            const lap_copy_t *copy)
{
    const lap_cuda_api_t *api = &device->api;
    const CUdeviceptr dst = (CUdeviceptr)(uintptr_t)copy->dst;
    const CUdeviceptr src = (CUdeviceptr)(uintptr_t)copy->src;
    if (dst == src || copy->rows == 0 || copy->row_bytes == 0)
        return LAP_OK;
    if (copy->rows == 1 ||
        (copy->dst_stride == copy->row_bytes && copy->src_stride == copy->row_bytes))
        return lap_cuda_check(api,
                              api->cuMemcpyAsync(dst, src, copy->rows * copy->row_bytes, stream),
                              "cuMemcpyAsync");
    const CUDA_MEMCPY2D rows = {
        .srcMemoryType = CU_MEMORYTYPE_UNIFIED,
        .srcDevice = src,
        .srcPitch = copy->src_stride,
        .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
        .dstDevice = dst,
        .dstPitch = copy->dst_stride,
        .WidthInBytes = copy->row_bytes,
        .Height = copy->rows,
    };
    return lap_cuda_check(api, api->cuMemcpy2DAsync(&rows, stream), "cuMemcpy2DAsync");
}

/* The largest power of 2, at most 16, that divides all numbers whose bitwise or is given. */
static uint32_t common_width(uintptr_t numbers)
{
    numbers |= 16;
    return (uint32_t)(numbers & (~numbers + 1));
}

/* The arguments of a kernel that copies. */
static lap_cuda_copy_t copy_args(const lap_copy_t *copy)
{
    const bool packed = copy->rows == 1 || (copy->dst_stride == copy->row_bytes &&
                                            copy->src_stride == copy->row_bytes);
    lap_cuda_copy_t args = {
        .dst = copy->dst,
        .src = copy->src,
        .rows = packed ? 1 : copy->rows,
        .row_bytes = packed ? copy->rows * copy->row_bytes : copy->row_bytes,
        .dst_stride = packed ? 0 : copy->dst_stride,
        .src_stride = packed ? 0 : copy->src_stride,
    };
    args.vector = common_width((uintptr_t)copy->dst | (uintptr_t)copy->src | args.dst_stride |
                               args.src_stride);
    return args;
}

/* By multiprocessors, one block on each. */
static lap_status_t copy_by_sms(lap_stream_t *stream, const lap_copy_t *copy)
{
    const lap_cuda_copy_t args = copy_args(copy);
    const size_t pieces = (args.row_bytes + LAP_CUDA_PIECE - 1) / LAP_CUDA_PIECE * args.rows;
    const size_t warps = LAP_CUDA_COPY_THREADS / 32, blocks = (pieces + warps - 1) / warps;
    const size_t most =
        (size_t)(copy->sms < stream->device->share.sms ? copy->sms : stream->device->share.sms);
    return lap_cuda_launch(stream, LAP_CUDA_KERNEL_copy, blocks < most ? blocks : most, 1,
                           LAP_CUDA_COPY_THREADS, 1, &args);
}

/*
 * Defers a copy, so that it joins the launch of what follows, if its vectors are not too short. It gets
 * two blocks to a multiprocessor, but no more than there are vectors for.
 */
static lap_status_t defer_copy(lap_stream_t *stream, const lap_copy_t *copy, bool *deferred_p)
{
    lap_cuda_copy_t args = copy_args(copy);
    args.vector = common_width(args.vector | args.row_bytes);
    *deferred_p = args.vector >= sizeof(uint32_t) && args.rows * args.row_bytes > 0;
    if (!*deferred_p)
        return LAP_OK;
    const size_t vectors = args.rows * (args.row_bytes / args.vector);
    const size_t blocks = (vectors + LAP_CUDA_MULTICAST_THREADS - 1) / LAP_CUDA_MULTICAST_THREADS;
    const size_t most = 2 * (size_t)stream->device->share.sms;
    return lap_cuda_defer_copy(stream, &args, blocks < most ? blocks : most);
}

static lap_status_t copy_flushed(lap_stream_t *stream, const lap_copy_t *copy)
{
    bool deferred = false;
    if (copy->together && copy->dst != copy->src)
        LAP_TRY(defer_copy(stream, copy, &deferred));
    if (deferred)
        return LAP_OK;
    /* Less than 16 bytes is a scale, which may lie in memory that kernels cannot reach. */
    if (copy->sms > 0 && copy->row_bytes >= 16 && copy->rows > 0 && copy->dst != copy->src)
        return copy_by_sms(stream, copy);
    LAP_TRY(lap_cuda_flush_stream(stream));
    return copy_on(stream->device, stream->stream, copy);
}

lap_status_t lap_cuda_copy(lap_stream_t *stream, const lap_copy_t *copy)
{
    LAP_TRY(lap_cuda_enter(stream->device));
    return lap_cuda_leave(stream->device, copy_flushed(stream, copy));
}

static lap_status_t copy_and_synchronize(lap_cuda_device_t *device, const lap_copy_t *copy)
{
    const lap_cuda_api_t *api = &device->api;
    LAP_TRY(copy_on(device, device->internal, copy));
    return lap_cuda_check(api, api->cuStreamSynchronize(device->internal), "a copy");
}

lap_status_t lap_cuda_copy_now(lap_cuda_device_t *device, const lap_copy_t *copy)
{
    LAP_TRY(lap_cuda_enter(device));
    return lap_cuda_leave(device, copy_and_synchronize(device, copy));
}

/* Blocks for `pieces` threads, no more than keep the GPU busy: kernels walk over the rest. */
static size_t blocks_for(const lap_cuda_device_t *device, size_t pieces)
{
    const size_t most = (size_t)device->share.sms * BLOCKS_PER_SM;
    const size_t blocks = (pieces + LAP_CUDA_THREADS - 1) / LAP_CUDA_THREADS;
    return blocks < most ? blocks : most;
}

static lap_status_t launch(lap_stream_t *stream, lap_cuda_kernel_t kernel, size_t grid_x,
                           unsigned block_x, unsigned block_y, const void *args)
{
    if (grid_x == 0)
        return LAP_OK;
    LAP_TRY(lap_cuda_enter(stream->device));
    return lap_cuda_leave(stream->device,
                          lap_cuda_launch(stream, kernel, grid_x, 1, block_x, block_y, args));
}

lap_cuda_finish_t lap_cuda_finish_of(const lap_finish_t *finish, void *aux)
{
    if (!finish)
        return (lap_cuda_finish_t){.plain = 1, .scale = 1};
    return (lap_cuda_finish_t){
        .epilogue = finish->epilogue,
        .beta = finish->beta * finish->scale,
        .scale = finish->scale,
        .bias_dtype = (int32_t)finish->bias_dtype,
        .aux_dtype = (int32_t)finish->aux_dtype,
        .bias = finish->bias,
        .aux = aux,
        .aux_stride = finish->aux_stride,
    };
}

/* Whether rows from there on can be read in pieces of 16 bytes. */
static bool is_aligned(const void *data, size_t stride, size_t rows, lap_dtype_t dtype)
{
    return lap_dtype_size(dtype) > 1 && ((uintptr_t)data | (rows > 1 ? stride : 0)) % 16 == 0;
}

/* Whether rows are contiguous, so that they can be reduced as one row. */
static bool is_packed(const lap_reduce_t *reduce)
{
    bool packed = reduce->dst_stride == reduce->cols * lap_dtype_size(reduce->to);
    for (size_t s = 0; s < reduce->nsrc; s++)
        packed = packed && reduce->src_strides[s] == reduce->cols * lap_dtype_size(reduce->from);
    return packed;
}

/* Whether bias and aux have the type of d and are aligned as it is. */
static bool is_alike(const lap_cuda_reduce_t *args)
{
    const lap_cuda_finish_t *f = &args->finish;
    const lap_dtype_t to = (lap_dtype_t)args->to;
    const bool biased = f->epilogue & LAP_EPILOGUE_BIAS;
    const bool has_aux = f->aux && f->epilogue & (LAP_EPILOGUE_GELU | LAP_EPILOGUE_DGELU);
    return f->scale == 1 &&
           (!biased || (f->bias_dtype == args->to && is_aligned(f->bias, 0, 1, to))) &&
           (!has_aux ||
            (f->aux_dtype == args->to && is_aligned(f->aux, f->aux_stride, args->rows, to)));
}

static uint32_t kind_of(const lap_cuda_reduce_t *args)
{
    if ((args->from != LAP_FLOAT32 && args->from != args->to) || !is_alike(args))
        return LAP_CUDA_ANY;
    if (args->finish.plain)
        return LAP_CUDA_PLAIN;
    switch (args->finish.epilogue & (LAP_EPILOGUE_GELU | LAP_EPILOGUE_DGELU)) {
    case LAP_EPILOGUE_NONE:
        return LAP_CUDA_LINEAR;
    case LAP_EPILOGUE_GELU:
        return LAP_CUDA_GELU;
    case LAP_EPILOGUE_DGELU:
        return LAP_CUDA_DGELU;
    default:
        return LAP_CUDA_ANY;
    }
}

/* As many blocks as are resident at a time, so that each has an equal share of the work. */
static size_t reduce_blocks_for(const lap_cuda_device_t *device, size_t pieces)
{
    const size_t most = (size_t)device->share.sms * LAP_CUDA_REDUCE_BLOCKS;
    const size_t blocks = (pieces + LAP_CUDA_THREADS - 1) / LAP_CUDA_THREADS;
    return blocks < most ? blocks : most;
}

lap_status_t lap_cuda_reduce(lap_stream_t *stream, const lap_reduce_t *reduce)
{
    LAP_TRY(lap_device_check_dtype("a reduction", reduce->from));
    LAP_TRY(lap_device_check_dtype("the result of a reduction", reduce->to));
    if (reduce->nsrc < 1 || reduce->nsrc > LAP_CUDA_SOURCES)
        return lap_error(LAP_ERR_INVALID, "a reduction of %zu sources: expected 1 to %d",
                         reduce->nsrc, LAP_CUDA_SOURCES);
    lap_cuda_reduce_t args = {
        .from = (int32_t)reduce->from,
        .to = (int32_t)reduce->to,
        .dst = reduce->dst,
        .dst_stride = reduce->dst_stride,
        .rows = reduce->rows,
        .cols = reduce->cols,
        .nsrc = (uint32_t)reduce->nsrc,
        .finish = lap_cuda_finish_of(reduce->finish, reduce->aux),
    };
    bool vectors = reduce->cols % LAP_CUDA_VECTOR == 0 &&
                   is_aligned(reduce->dst, reduce->dst_stride, reduce->rows, reduce->to);
    for (size_t s = 0; s < reduce->nsrc; s++) {
        args.srcs[s] = reduce->srcs[s];
        args.strides[s] = reduce->src_strides[s];
        args.scales[s] = reduce->scales ? reduce->scales[s] : NULL;
        vectors = vectors && is_aligned(args.srcs[s], args.strides[s], reduce->rows, reduce->from);
    }
    args.vector = vectors ? LAP_CUDA_VECTOR : 1;
    args.kind = kind_of(&args);
    if (vectors && args.finish.plain && is_packed(reduce)) {
        args.cols *= args.rows;
        args.rows = 1;
    }
    const size_t blocks =
        reduce_blocks_for(stream->device, reduce->rows * (reduce->cols / args.vector));
    if (!reduce->together || blocks == 0)
        return launch(stream, LAP_CUDA_KERNEL_reduce, blocks, LAP_CUDA_THREADS, 1, &args);
    LAP_TRY(lap_cuda_enter(stream->device));
    return lap_cuda_leave(stream->device, lap_cuda_defer_sum(stream, &args, blocks));
}

static size_t blocks_of_columns(const lap_cuda_column_sums_t *args, uint32_t across)
{
    const size_t cols = (size_t)across * args->vector;
    return (args->cols + cols - 1) / cols;
}

/*
 * The widest blocks, which read rows in long pieces, that still balance multiprocessors, each of which
 * runs one block at a time. A block costs about 2 vectors more than those of its rows.
 */
static uint32_t width_of_blocks(const lap_cuda_device_t *device, const lap_cuda_column_sums_t *args)
{
    const size_t sms = (size_t)device->share.sms;
    uint32_t best = LAP_CUDA_ACROSS;
    size_t least = SIZE_MAX;
    for (uint32_t across = LAP_CUDA_ACROSS; across >= LAP_CUDA_ACROSS / 4; across /= 2) {
        const size_t cost = (blocks_of_columns(args, across) + sms - 1) / sms * (across + 2);
        best = cost < least ? across : best;
        least = cost < least ? cost : least;
    }
    return best;
}

lap_status_t lap_cuda_column_sums(lap_stream_t *stream, const lap_column_sums_t *sums)
{
    LAP_TRY(lap_device_check_dtype("the sum of rows", sums->from));
    LAP_TRY(lap_device_check_dtype("the result of a sum of rows", sums->to));
    lap_cuda_column_sums_t args = {
        .from = (int32_t)sums->from,
        .to = (int32_t)sums->to,
        .src = sums->src,
        .src_stride = sums->src_stride,
        .rows = sums->rows,
        .cols = sums->cols,
        .scale = sums->scale,
        .scaled_by = sums->scaled_by,
        .vector = 1,
        .across = 32,
        .dst = sums->dst,
    };
    const size_t bytes = LAP_CUDA_VECTOR * lap_dtype_size(sums->from);
    const uintptr_t src = (uintptr_t)sums->src | (sums->rows > 1 ? sums->src_stride : 0);
    if (sums->cols % LAP_CUDA_VECTOR == 0 && src % (bytes < 16 ? bytes : 16) == 0) {
        args.vector = LAP_CUDA_VECTOR;
        args.across = width_of_blocks(stream->device, &args);
    }
    return launch(stream, LAP_CUDA_KERNEL_column_sums, blocks_of_columns(&args, args.across),
                  LAP_CUDA_SUMS_THREADS, 1, &args);
}

static lap_status_t set_flushed(lap_stream_t *stream, float *memory, float value)
{
    const lap_cuda_api_t *api = &stream->device->api;
    unsigned bits;
    memcpy(&bits, &value, sizeof(bits));
    LAP_TRY(lap_cuda_flush_stream(stream));
    return lap_cuda_check(
        api, api->cuMemsetD32Async((CUdeviceptr)(uintptr_t)memory, bits, 1, stream->stream),
        "cuMemsetD32Async");
}

lap_status_t lap_cuda_set(lap_stream_t *stream, float *memory, float value)
{
    LAP_TRY(lap_cuda_enter(stream->device));
    return lap_cuda_leave(stream->device, set_flushed(stream, memory, value));
}

lap_status_t lap_cuda_cast(lap_stream_t *stream, const lap_cast_t *cast)
{
    LAP_TRY(lap_device_check_dtype("a cast", cast->from));
    LAP_TRY(lap_device_check_dtype("the result of a cast", cast->to));
    const size_t to = lap_dtype_size(cast->to), bytes = to * LAP_CUDA_VECTOR;
    const uintptr_t dst = (uintptr_t)cast->dst | (cast->rows > 1 ? cast->dst_stride : 0);
    const bool vectors = cast->cols % LAP_CUDA_VECTOR == 0 &&
                         dst % (bytes < 16 ? bytes : 16) == 0 &&
                         is_aligned(cast->src, cast->src_stride, cast->rows, cast->from);
    const lap_cuda_cast_t args = {
        .from = (int32_t)cast->from,
        .to = (int32_t)cast->to,
        .src = cast->src,
        .dst = cast->dst,
        .src_stride = cast->src_stride,
        .dst_stride = cast->dst_stride,
        .rows = cast->rows,
        .cols = cast->cols,
        .scale = cast->scale,
        .amax = cast->amax,
        .vector = vectors ? LAP_CUDA_VECTOR : 1,
    };
    const size_t strips = (cast->cols + LAP_CUDA_STRIP - 1) / LAP_CUDA_STRIP * cast->rows;
    return launch(stream, LAP_CUDA_KERNEL_cast, blocks_for(stream->device, strips * 32),
                  LAP_CUDA_THREADS, 1, &args);
}

lap_status_t lap_cuda_transpose(lap_stream_t *stream, const lap_transpose_t *transpose)
{
    return lap_cuda_transpose_padded(stream, transpose, transpose->rows);
}

lap_status_t lap_cuda_transpose_padded(lap_stream_t *stream, const lap_transpose_t *t,
                                       size_t padded)
{
    const size_t tile = LAP_CUDA_TRANSPOSE_TILE;
    const lap_cuda_transpose_t args = {
        .src = t->src,
        .dst = t->dst,
        .rows = t->rows,
        .cols = t->cols,
        .src_stride = t->src_stride,
        .dst_stride = t->dst_stride,
        .padded = padded,
        .vectors = common_width((uintptr_t)t->src | (uintptr_t)t->dst | padded | t->cols |
                                t->src_stride | t->dst_stride) == 16,
    };
    return launch(stream, LAP_CUDA_KERNEL_transpose,
                  (padded + tile - 1) / tile * ((t->cols + tile - 1) / tile), LAP_CUDA_THREADS, 1,
                  &args);
}

lap_status_t lap_cuda_fill(lap_stream_t *stream, lap_dtype_t dtype, void *memory, size_t count,
                           uint64_t seed)
{
    LAP_TRY(lap_device_check_dtype("the memory to fill", dtype));
    const lap_cuda_fill_t args = {
        .dtype = (int32_t)dtype, .memory = memory, .count = count, .seed = seed};
    return launch(stream, LAP_CUDA_KERNEL_fill, blocks_for(stream->device, count), LAP_CUDA_THREADS,
                  1, &args);
}
