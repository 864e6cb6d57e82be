/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slots of a GPU's table but attention: how many threads a kernel gets, and how they stand over
 * what they work on. Where a sum is taken, that depends only on sizes and on the part of the GPU,
 * so that its bits do not change from call to call.
 */
#include "nn/cuda/nn_cuda.h"

#include "nn/cuda/nn_cuda_kernels.h"
#include "nn/cuda/nn_cuda_sizes.h"

#define BLOCKS_PER_SM 8u

enum {
#define NUMBER(kernel) KERNEL_##kernel,
    LAP_NN_CUDA_KERNEL_LIST(NUMBER)
#undef NUMBER
        KERNELS
};

static const struct lap_cuda_kernel_name named_kernels[] = {
#define ENTRY(kernel) {.name = "lap_" #kernel},
    LAP_NN_CUDA_KERNEL_LIST(ENTRY)
#undef ENTRY
};

static const lap_cuda_code_t code = {
    .fatbin = lap_nn_cuda_fatbin,
    .kernels = named_kernels,
    .count = KERNELS,
    .stream_bytes = sizeof(lap_nn_cuda_parts_t),
};

static lap_status_t prepare(lap_device_t *device)
{
    LAP_TRY(lap_cuda_code_load((lap_cuda_device_t *)device, &code));
    return lap_nn_cuda_attention_prepare((lap_cuda_device_t *)device);
}

/* ---- where threads stand ---- */

static size_t smaller(size_t x, size_t y)
{
    return x < y ? x : y;
}

/* A matrix that a kernel reads or writes. */
typedef struct operand {
    const void *data;
    size_t stride;
} operand_t;

/* LAP_NN_CUDA_VECTOR where all operands, which end with one without data, allow it; else 1. */
static uint32_t vector_of(lap_dtype_t dtype, size_t rows, size_t cols, const operand_t *operands)
{
    const size_t size = lap_dtype_size(dtype);
    bool aligned = size > 1 && cols % LAP_NN_CUDA_VECTOR == 0;
    for (; operands->data; operands++)
        aligned = aligned &&
                  ((uintptr_t)operands->data | (rows > 1 ? operands->stride * size : 0)) % 16 == 0;
    return aligned ? LAP_NN_CUDA_VECTOR : 1;
}

static lap_nn_cuda_span_t span_of(size_t rows, size_t cols, uint32_t vector)
{
    lap_nn_cuda_span_t span = {.rows = rows, .cols = cols, .vector = vector};
    while ((1u << span.shift) < LAP_NN_CUDA_THREADS && (size_t)vector << span.shift < cols)
        span.shift++;
    return span;
}

/* Blocks for all of a matrix, `most` at most: threads walk on over the rest. */
static lap_cuda_grid_t grid_of(const lap_nn_cuda_span_t *span, size_t most)
{
    const size_t wide = (size_t)span->vector << span->shift;
    const size_t high = LAP_NN_CUDA_THREADS >> span->shift;
    const size_t across = smaller((span->cols + wide - 1) / wide, most);
    const size_t down = smaller((span->rows + high - 1) / high, across ? most / across : 0);
    return (lap_cuda_grid_t){.x = down ? across : 0, .y = down, .threads = LAP_NN_CUDA_THREADS};
}

static size_t busy(const lap_stream_t *stream)
{
    return (size_t)stream->device->share.sms * BLOCKS_PER_SM;
}

/* A sum is made of parts, of which there is one at least. */
static lap_cuda_grid_t grid_of_parts(const lap_nn_cuda_span_t *span)
{
    lap_cuda_grid_t grid = grid_of(span, LAP_NN_CUDA_PARTS);
    grid.x = grid.x ? grid.x : 1;
    return grid;
}

/* ---- norms ---- */

/* A thread for every vector, in whole warps, or as many as a block can have. */
static unsigned norm_threads(size_t cols, uint32_t vector)
{
    return (unsigned)smaller((cols / vector + 31) / 32 * 32, LAP_NN_CUDA_NORM);
}

/* Blocks of so many threads that a multiprocessor has at a time. */
static size_t norm_busy(const lap_stream_t *stream, unsigned threads)
{
    return (size_t)stream->device->share.sms * (LAP_NN_CUDA_NORM / threads);
}

/* Whether a row is more than what the threads of a block have in a vector each. */
static bool is_wide(size_t cols, uint32_t vector)
{
    return vector == 1 || cols > (size_t)LAP_NN_CUDA_NORM * vector;
}

static lap_status_t norm_forward(lap_stream_t *stream, const lap_norm_forward_t *norm)
{
    LAP_TRY(lap_device_check_dtype("a norm", norm->dtype));
    const operand_t operands[] = {{norm->x, norm->x_stride},
                                  {norm->y, norm->y_stride},
                                  {norm->gamma, 0},
                                  {norm->beta, 0}, /* NULL: there is none, nor anything after it */
                                  {NULL, 0}};
    const lap_nn_cuda_norm_forward_t args = {
        .norm = *norm, .vector = vector_of(norm->dtype, norm->rows, norm->cols, operands)};
    const unsigned threads = norm_threads(norm->cols, args.vector);
    const size_t blocks = smaller(norm->rows, 2 * norm_busy(stream, threads));
    const lap_cuda_grid_t grid = {.x = blocks, .threads = threads};
    const size_t kernel =
        is_wide(norm->cols, args.vector) ? KERNEL_norm_forward_wide : KERNEL_norm_forward;
    return lap_cuda_code_launch(stream, &code, kernel, grid, &args);
}

static lap_status_t add_parts(lap_stream_t *stream, const lap_norm_backward_t *norm, size_t parts,
                              size_t first, float *sums)
{
    const lap_column_sums_t columns = {
        .from = LAP_FLOAT32,
        .to = LAP_FLOAT32,
        .src = (const float *)norm->scratch + first * norm->cols,
        .src_stride = 2 * norm->cols * sizeof(float),
        .rows = parts,
        .cols = norm->cols,
        .scale = 1,
        .dst = sums,
    };
    return lap_cuda_column_sums(stream, &columns);
}

static lap_status_t norm_backward(lap_stream_t *stream, const lap_norm_backward_t *norm)
{
    LAP_TRY(lap_device_check_dtype("the gradient of a norm", norm->dtype));
    const operand_t operands[] = {{norm->x, norm->x_stride},
                                  {norm->dy, norm->dy_stride},
                                  {norm->dx, norm->dx_stride},
                                  {norm->gamma, 0},
                                  {norm->scratch, 0},
                                  {norm->skip, norm->skip_stride},
                                  {NULL, 0}};
    lap_nn_cuda_norm_backward_t args = {
        .norm = *norm, .vector = vector_of(norm->dtype, norm->rows, norm->cols, operands)};
    const unsigned threads = norm_threads(norm->cols, args.vector);
    const size_t parts =
        smaller(lap_nn_cuda_norm_parts(norm->rows, norm->cols), norm_busy(stream, threads));
    const lap_cuda_grid_t grid = {.x = parts, .threads = threads};
    const size_t kernel =
        is_wide(norm->cols, args.vector) ? KERNEL_norm_backward_wide : KERNEL_norm_backward;
    args.parts = (uint32_t)parts;
    LAP_TRY(lap_cuda_code_launch(stream, &code, kernel, grid, &args));
    LAP_TRY(add_parts(stream, norm, parts, 0, norm->dgamma));
    return norm->dbeta ? add_parts(stream, norm, parts, 1, norm->dbeta) : LAP_OK;
}

/* ---- elements ---- */

static lap_status_t launch_swiglu(lap_stream_t *stream, const lap_swiglu_t *swiglu, size_t kernel,
                                  const operand_t *operands)
{
    LAP_TRY(lap_device_check_dtype("SwiGLU", swiglu->dtype));
    const uint32_t vector = vector_of(swiglu->dtype, swiglu->rows, swiglu->cols, operands);
    const lap_nn_cuda_swiglu_t args = {.swiglu = *swiglu,
                                       .span = span_of(swiglu->rows, swiglu->cols, vector)};
    return lap_cuda_code_launch(stream, &code, kernel, grid_of(&args.span, busy(stream)), &args);
}

static lap_status_t swiglu_forward(lap_stream_t *stream, const lap_swiglu_t *swiglu)
{
    const operand_t operands[] = {
        {swiglu->pre, swiglu->pre_stride}, {swiglu->out, swiglu->out_stride}, {NULL, 0}};
    return launch_swiglu(stream, swiglu, KERNEL_swiglu_forward, operands);
}

static lap_status_t swiglu_backward(lap_stream_t *stream, const lap_swiglu_t *swiglu)
{
    const operand_t operands[] = {{swiglu->pre, swiglu->pre_stride},
                                  {swiglu->dpre, swiglu->pre_stride},
                                  {swiglu->dout, swiglu->out_stride},
                                  {NULL, 0}};
    return launch_swiglu(stream, swiglu, KERNEL_swiglu_backward, operands);
}

static lap_status_t square_loss(lap_stream_t *stream, const lap_square_loss_t *loss)
{
    LAP_TRY(lap_device_check_dtype("the square loss", loss->dtype));
    const operand_t operands[] = {{loss->y, loss->y_stride},
                                  {loss->target, loss->target_stride},
                                  {loss->dy, loss->dy_stride},
                                  {NULL, 0}};
    const uint32_t vector = vector_of(loss->dtype, loss->rows, loss->cols, operands);
    const lap_nn_cuda_square_loss_t args = {.loss = *loss,
                                            .span = span_of(loss->rows, loss->cols, vector),
                                            .parts = lap_cuda_code_memory(stream, &code)};
    return lap_cuda_code_launch(stream, &code, KERNEL_square_loss, grid_of_parts(&args.span),
                                &args);
}

static lap_status_t fill_normal(lap_stream_t *stream, const lap_fill_normal_t *fill)
{
    LAP_TRY(lap_device_check_dtype("the memory to fill", fill->dtype));
    const lap_nn_cuda_fill_normal_t args = {.fill = *fill,
                                            .span = span_of(fill->rows, fill->cols, 1)};
    return lap_cuda_code_launch(stream, &code, KERNEL_fill_normal,
                                grid_of(&args.span, busy(stream)), &args);
}

/* ---- tokens ---- */

static lap_status_t embedding(lap_stream_t *stream, const lap_embedding_t *embedding)
{
    LAP_TRY(lap_device_check_dtype("an embedding", embedding->dtype));
    const operand_t operands[] = {{embedding->out, embedding->out_stride},
                                  {embedding->table, 0},
                                  {embedding->positions, 0}, /* NULL: there are none */
                                  {NULL, 0}};
    const uint32_t vector = vector_of(embedding->dtype, embedding->rows, embedding->cols, operands);
    const lap_nn_cuda_embedding_t args = {
        .embedding = *embedding, .span = span_of(embedding->rows, embedding->cols, vector)};
    return lap_cuda_code_launch(stream, &code, KERNEL_embedding, grid_of(&args.span, busy(stream)),
                                &args);
}

/* Rows of the gradient that no token has are cleared before. */
static lap_status_t embedding_backward(lap_stream_t *stream, const lap_embedding_backward_t *back)
{
    LAP_TRY(lap_device_check_dtype("the gradient of an embedding", back->dtype));
    const lap_fill_normal_t zeros = {.dtype = LAP_FLOAT32,
                                     .rows = 1,
                                     .cols = back->count * back->cols,
                                     .stride = back->count * back->cols,
                                     .out = back->grad};
    if (back->beta == 0)
        LAP_TRY(fill_normal(stream, &zeros));
    const lap_cuda_grid_t grid = {.x = back->rows,
                                  .y = (back->cols + LAP_NN_CUDA_THREADS - 1) / LAP_NN_CUDA_THREADS,
                                  .threads = LAP_NN_CUDA_THREADS};
    return lap_cuda_code_launch(stream, &code, KERNEL_embedding_backward, grid, back);
}

static lap_status_t rope(lap_stream_t *stream, const lap_rope_t *rope)
{
    LAP_TRY(lap_device_check_dtype("what is rotated", rope->dtype));
    const operand_t operands[] = {{rope->x, rope->stride}, {rope->table, 0}, {NULL, 0}};
    const size_t half = rope->dim / 2;
    const uint32_t vector = vector_of(rope->dtype, rope->rows, half, operands);
    const lap_nn_cuda_rope_t args = {.rope = *rope,
                                     .span = span_of(rope->rows, rope->heads * half, vector)};
    return lap_cuda_code_launch(stream, &code, KERNEL_rope, grid_of(&args.span, busy(stream)),
                                &args);
}

static lap_status_t dropout(lap_stream_t *stream, const lap_dropout_t *dropout)
{
    LAP_TRY(lap_device_check_dtype("dropout", dropout->dtype));
    const operand_t operands[] = {{dropout->x, dropout->x_stride},
                                  {dropout->out, dropout->out_stride},
                                  {dropout->skip, dropout->skip_stride}, /* perhaps NULL: the end */
                                  {NULL, 0}};
    const uint32_t vector = vector_of(dropout->dtype, dropout->rows, dropout->cols, operands);
    const lap_nn_cuda_dropout_t args = {.dropout = *dropout,
                                        .span = span_of(dropout->rows, dropout->cols, vector)};
    return lap_cuda_code_launch(stream, &code, KERNEL_dropout, grid_of(&args.span, busy(stream)),
                                &args);
}

/* The rows of a block depend only on their number: so does the order of the sum of losses. */
static lap_status_t launch_entropy(lap_stream_t *stream, const lap_cross_entropy_t *entropy,
                                   size_t kernel, size_t blocks)
{
    LAP_TRY(lap_device_check_dtype("logits", entropy->dtype));
    const operand_t operands[] = {{entropy->logits, entropy->stride}, {NULL, 0}};
    /* The rest of a row, after its last whole vector, is done one by one. */
    const size_t whole = entropy->cols / LAP_NN_CUDA_VECTOR * LAP_NN_CUDA_VECTOR;
    const lap_nn_cuda_cross_entropy_t args = {
        .entropy = *entropy,
        .parts = lap_cuda_code_memory(stream, &code),
        .vector = vector_of(entropy->dtype, entropy->rows, whole, operands)};
    const lap_cuda_grid_t grid = {.x = blocks, .threads = LAP_NN_CUDA_NORM};
    return lap_cuda_code_launch(stream, &code, kernel, grid, &args);
}

static lap_status_t logit_stats(lap_stream_t *stream, const lap_cross_entropy_t *entropy)
{
    return launch_entropy(stream, entropy, KERNEL_logit_stats, entropy->rows);
}

static lap_status_t cross_entropy(lap_stream_t *stream, const lap_cross_entropy_t *entropy)
{
    const size_t blocks = smaller(entropy->rows, LAP_NN_CUDA_PARTS);
    return launch_entropy(stream, entropy, KERNEL_cross_entropy, blocks ? blocks : 1);
}

static lap_status_t amax(lap_stream_t *stream, const lap_amax_t *amax)
{
    LAP_TRY(lap_device_check_dtype("the largest magnitude", amax->dtype));
    const operand_t operands[] = {{amax->src, amax->stride}, {NULL, 0}};
    const uint32_t vector = vector_of(amax->dtype, amax->rows, amax->cols, operands);
    const lap_nn_cuda_amax_t args = {.amax = *amax,
                                     .span = span_of(amax->rows, amax->cols, vector),
                                     .parts = lap_cuda_code_memory(stream, &code)};
    return lap_cuda_code_launch(stream, &code, KERNEL_amax, grid_of_parts(&args.span), &args);
}

static lap_status_t fp8_scales(lap_stream_t *stream, const lap_fp8_scales_t *scales)
{
    const size_t blocks = (scales->count + LAP_NN_CUDA_THREADS - 1) / LAP_NN_CUDA_THREADS;
    const lap_cuda_grid_t grid = {.x = blocks, .threads = LAP_NN_CUDA_THREADS};
    return lap_cuda_code_launch(stream, &code, KERNEL_fp8_scales, grid, scales);
}

/* ---- optimizers ---- */

/* A thread has about this many numbers where there are few. */
#define SQUARES 8u

static uint32_t is_aligned(uintptr_t addresses)
{
    return addresses % (LAP_NN_CUDA_FLOATS * sizeof(float)) == 0;
}

static lap_status_t sum_squares(lap_stream_t *stream, const lap_sum_squares_t *sum)
{
    const lap_nn_cuda_sum_squares_t args = {.sum = *sum,
                                            .parts = lap_cuda_code_memory(stream, &code),
                                            .aligned = is_aligned((uintptr_t)sum->src)};
    const size_t each = (size_t)LAP_NN_CUDA_THREADS * SQUARES;
    const size_t blocks = smaller((sum->count + each - 1) / each, LAP_NN_CUDA_PARTS);
    const lap_cuda_grid_t grid = {.x = blocks ? blocks : 1, .threads = LAP_NN_CUDA_THREADS};
    return lap_cuda_code_launch(stream, &code, KERNEL_sum_squares, grid, &args);
}

static lap_status_t total(lap_stream_t *stream, const lap_total_t *total)
{
    const lap_cuda_grid_t grid = {.x = 1, .threads = LAP_NN_CUDA_THREADS};
    return lap_cuda_code_launch(stream, &code, KERNEL_total, grid, total);
}

static lap_status_t clip(lap_stream_t *stream, const lap_clip_t *clip)
{
    const lap_cuda_grid_t grid = {.x = 1, .threads = 1};
    return lap_cuda_code_launch(stream, &code, KERNEL_clip, grid, clip);
}

static lap_status_t update(lap_stream_t *stream, const lap_update_t *update)
{
    const lap_nn_cuda_update_t args = {
        .update = *update,
        .aligned = is_aligned((uintptr_t)update->master | (uintptr_t)update->grad |
                              (uintptr_t)update->first | (uintptr_t)update->second)};
    const lap_nn_cuda_span_t span = span_of(1, update->count, LAP_NN_CUDA_FLOATS);
    return lap_cuda_code_launch(stream, &code, KERNEL_update, grid_of(&span, busy(stream)), &args);
}

const lap_nn_kernels_t lap_nn_cuda_kernels = {
    .device = "cuda",
    .prepare = prepare,
    .norm_scratch = lap_nn_cuda_norm_scratch,
    .norm_forward = norm_forward,
    .norm_backward = norm_backward,
    .attention_scratch = lap_nn_cuda_attention_scratch,
    .attention_forward = lap_nn_cuda_attention_forward,
    .attention_backward = lap_nn_cuda_attention_backward,
    .swiglu_forward = swiglu_forward,
    .swiglu_backward = swiglu_backward,
    .square_loss = square_loss,
    .embedding = embedding,
    .embedding_backward = embedding_backward,
    .rope = rope,
    .dropout = dropout,
    .logit_stats = logit_stats,
    .cross_entropy = cross_entropy,
    .fill_normal = fill_normal,
    .amax = amax,
    .fp8_scales = fp8_scales,
    .sum_squares = sum_squares,
    .total = total,
    .clip = clip,
    .update = update,
};
