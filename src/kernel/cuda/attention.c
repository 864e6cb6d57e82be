/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention on a GPU: which kernels do it, and how many blocks they get. Heads of 64 or 128 columns
 * of a 16-bit type go to tensor cores when rows can be read in pieces of 16 bytes and nothing is
 * dropped, and all others to plain kernels. The bits of a result do not change from call to call.
 */
#include "kernel/cuda/attention_kernels.h"

#include "core/status.h"
#include "kernel/cuda/cuda_layers.h"

#define BLOCKS_Y 65535u /* that a grid can have */

enum {
#define NUMBER(kernel, shared) KERNEL_##kernel,
    LAP_CUDA_ATTENTION_LIST(NUMBER)
#undef NUMBER
        KERNELS
};

static const struct lap_cuda_kernel_name named_kernels[] = {
#define ENTRY(kernel, bytes) {.name = "lap_" #kernel, .shared = (bytes)},
    LAP_CUDA_ATTENTION_LIST(ENTRY)
#undef ENTRY
};

static const lap_cuda_code_t code = {
    .fatbin = lap_kernel_cuda_attention_fatbin,
    .kernels = named_kernels,
    .count = KERNELS,
};

lap_status_t lap_kernel_cuda_attention_prepare(lap_cuda_device_t *device)
{
    return lap_cuda_code_load(device, &code);
}

/* ---- what is asked for ---- */

/* Tiles that the plain kernels have in shared memory. */
enum { FORWARD_TILES = 3, BACKWARD_TILES = 4 };

static size_t blocks_of(size_t count, size_t each)
{
    return (count + each - 1) / each;
}

/* Whether rows of a matrix can be read in pieces of 16 bytes; 16 tokens are counted in 32 bits. */
static bool fits_tiles(const lap_attention_t *a, const void *data, size_t stride)
{
    return (uintptr_t)data % 16 == 0 && stride % 8 == 0 && stride <= UINT32_MAX / 16 / a->batch;
}

/* Whether what a block of keys has besides fits: sums are written in pairs. */
static bool fits_block(const lap_attention_t *a)
{
    return a->keys == 0 ||
           (a->sum_dtype == LAP_FLOAT32 && fits_tiles(a, a->kv, a->kv_stride) &&
            fits_tiles(a, a->dqkv, a->dq_stride) && fits_tiles(a, a->dkv, a->dkv_stride));
}

/* The largest of scores that are not yet scaled is taken there: with a scale below 0 it is none. */
static bool uses_tiles(const lap_attention_t *a)
{
    return a->dtype != LAP_FLOAT32 && a->mask.rate == 0 && (a->dim == 64 || a->dim == 128) &&
           a->scale > 0 && fits_tiles(a, a->qkv, a->qkv_stride) &&
           fits_tiles(a, a->out, a->out_stride) && fits_tiles(a, a->dout, a->out_stride) &&
           (a->keys > 0 || fits_tiles(a, a->dqkv, a->qkv_stride)) && fits_block(a);
}

/* The kernels count in 32 bits, and grids have their limits. */
static lap_status_t check(const lap_cuda_device_t *device, const lap_attention_t *a)
{
    if (a->dtype != LAP_FLOAT32 && a->dtype != LAP_FLOAT16 && a->dtype != LAP_BFLOAT16)
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "attention of type %d on device cuda: expected float32, float16 or "
                         "bfloat16",
                         (int)a->dtype);
    if (a->dim < 1 || a->dim > LAP_CUDA_PLAIN_DIM)
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "heads of %zu columns: device cuda has attention for 1 to %d", a->dim,
                         LAP_CUDA_PLAIN_DIM);
    if (!uses_tiles(a) &&
        LAP_CUDA_PLAIN_SHARED(BACKWARD_TILES, a->dim) > (size_t)device->shared_most)
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "heads of %zu columns: their attention needs %zu bytes of shared memory, "
                         "GPU %d has %d",
                         a->dim, (size_t)LAP_CUDA_PLAIN_SHARED(BACKWARD_TILES, a->dim),
                         device->ordinal, device->shared_most);
    const size_t tokens = a->keys > a->seq ? a->keys : a->seq;
    if (blocks_of(tokens, LAP_CUDA_PLAIN_TILE) > BLOCKS_Y)
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "attention over %zu tokens: device cuda has it for %u at most", tokens,
                         BLOCKS_Y * LAP_CUDA_PLAIN_TILE);
    if (a->batch > INT32_MAX / 4 / (a->heads + a->kv_heads))
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "attention of %zu heads in %zu sequences: device cuda has it for %d at "
                         "most in all",
                         a->heads, a->batch, INT32_MAX / 4);
    return LAP_OK;
}

static lap_cuda_attention_t arguments(const lap_attention_t *a)
{
    const lap_attention_t block = lap_attention_as_block(a);
    return (lap_cuda_attention_t){
        .keys = (int32_t)block.keys,
        .sum_dtype = (int32_t)block.sum_dtype,
        .merges = block.merges,
        .kv = block.kv,
        .dkv = block.dkv,
        .kv_stride = block.kv_stride,
        .dq_stride = block.dq_stride,
        .dkv_stride = block.dkv_stride,
        .queries_at = block.queries_at,
        .keys_at = block.keys_at,
        .qkv = a->qkv,
        .out = a->out,
        .lse = a->lse,
        .dout = a->dout,
        .dqkv = a->dqkv,
        .delta = a->scratch,
        .qkv_stride = a->qkv_stride,
        .out_stride = a->out_stride,
        .scale = a->scale,
        .dtype = (int32_t)a->dtype,
        .seq = (int32_t)a->seq,
        .batch = (int32_t)a->batch,
        .heads = (int32_t)a->heads,
        .kv_heads = (int32_t)a->kv_heads,
        .dim = (int32_t)a->dim,
        .vector = uses_tiles(a) ? LAP_CUDA_VECTOR : 1,
        .first_head = (int32_t)a->first_head,
        .mask_seq = (int32_t)block.mask_seq,
        .mask = a->mask,
    };
}

/* ---- launches ---- */

/*
 * `first` is a kernel's variant for float16 and 64 columns; a block takes `rows` of the `tokens` of a
 * head.
 */
static lap_status_t launch_tiles(lap_stream_t *stream, const lap_attention_t *a, int first,
                                 size_t heads, size_t tokens, size_t rows)
{
    const lap_cuda_attention_t args = arguments(a);
    const int blocks =
        a->keys > 0 ? KERNEL_attention_forward_blocks_f16_64 - KERNEL_attention_forward_f16_64 : 0;
    const int kernel =
        first + blocks + (a->dtype == LAP_BFLOAT16 ? 2 : 0) + (a->dim == 128 ? 1 : 0);
    return lap_cuda_code_launch(stream, &code, (size_t)kernel,
                                (lap_cuda_grid_t){.x = heads * a->batch,
                                                  .y = blocks_of(tokens, rows),
                                                  .threads = LAP_CUDA_ATTENTION_THREADS,
                                                  .shared = named_kernels[kernel].shared},
                                &args);
}

/* `rows`: queries or keys, of which a block takes some. */
static lap_status_t launch_plain(lap_stream_t *stream, const lap_attention_t *a, int kernel,
                                 size_t heads, size_t rows, size_t tiles)
{
    const lap_cuda_attention_t args = arguments(a);
    return lap_cuda_code_launch(stream, &code, (size_t)kernel,
                                (lap_cuda_grid_t){.x = heads * a->batch,
                                                  .y = blocks_of(rows, LAP_CUDA_PLAIN_TILE),
                                                  .threads = LAP_CUDA_PLAIN_THREADS,
                                                  .shared = LAP_CUDA_PLAIN_SHARED(tiles, a->dim)},
                                &args);
}

static lap_status_t launch_delta(lap_stream_t *stream, const lap_attention_t *a)
{
    const lap_cuda_attention_t args = arguments(a);
    const size_t lanes = uses_tiles(a) ? a->dim / LAP_CUDA_VECTOR : 32;
    const size_t threads = a->seq * a->batch * a->heads * lanes;
    return lap_cuda_code_launch(stream, &code, KERNEL_attention_delta,
                                (lap_cuda_grid_t){.x = blocks_of(threads, LAP_CUDA_DELTA_THREADS),
                                                  .threads = LAP_CUDA_DELTA_THREADS},
                                &args);
}

/* ---- the slots ---- */

lap_status_t lap_kernel_cuda_attention_forward(lap_stream_t *stream,
                                               const lap_attention_t *attention)
{
    LAP_TRY(check(stream->device, attention));
    if (attention->seq * attention->batch == 0)
        return LAP_OK;
    if (uses_tiles(attention))
        return launch_tiles(stream, attention, KERNEL_attention_forward_f16_64, attention->heads,
                            attention->seq, LAP_CUDA_ATTENTION_ROWS);
    return launch_plain(stream, attention, KERNEL_attention_plain_forward, attention->heads,
                        attention->seq, FORWARD_TILES);
}

lap_status_t lap_kernel_cuda_attention_backward(lap_stream_t *stream,
                                                const lap_attention_t *attention)
{
    LAP_TRY(check(stream->device, attention));
    if (attention->seq * attention->batch == 0)
        return LAP_OK;
    const size_t keys = attention->keys ? attention->keys : attention->seq;
    LAP_TRY(launch_delta(stream, attention));
    if (uses_tiles(attention)) {
        LAP_TRY(launch_tiles(stream, attention, KERNEL_attention_keys_f16_64, attention->kv_heads,
                             keys, LAP_CUDA_BACKWARD_ROWS(attention->dim)));
        return launch_tiles(stream, attention, KERNEL_attention_queries_f16_64, attention->heads,
                            attention->seq, LAP_CUDA_BACKWARD_ROWS(attention->dim));
    }
    LAP_TRY(launch_plain(stream, attention, KERNEL_attention_plain_keys, attention->kv_heads, keys,
                         BACKWARD_TILES));
    return launch_plain(stream, attention, KERNEL_attention_plain_queries, attention->heads,
                        attention->seq, BACKWARD_TILES);
}
