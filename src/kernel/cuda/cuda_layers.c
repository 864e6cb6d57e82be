/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slots of a GPU's table but attention: how many threads a kernel gets, and how they stand over
 * what they work on. Where a sum is taken, that depends only on sizes and on the part of the GPU,
 * so that its bits do not change from call to call.
 */
#include "kernel/cuda/cuda_layers.h"

#include "kernel/cuda/cuda_args.h"
#include "kernel/cuda/cuda_sizes.h"

#define BLOCKS_PER_SM 8u

/* The kernels of layers.cu by the names of their slots, each with a launcher of this name; norms have others for wide rows. */
#define SLOTS(X)                                                                                   \
    X(norm_forward)                                                                                \
    X(norm_backward)                                                                               \
    X(swiglu_forward)                                                                              \
    X(swiglu_backward)                                                                             \
    X(square_loss)                                                                                 \
    X(embedding)                                                                                   \
    X(embedding_backward)                                                                          \
    X(rope)                                                                                        \
    X(dropout)                                                                                     \
    X(logit_stats)                                                                                 \
    X(cross_entropy)                                                                               \
    X(fill_normal) X(amax) X(fp8_scales) X(sum_squares) X(total) X(clip) X(update)
#define NAMES(X) SLOTS(X) X(norm_forward_wide) X(norm_backward_wide)

enum {
#define NUMBER(kernel) KERNEL_##kernel,
    NAMES(NUMBER)
#undef NUMBER
        KERNELS
};

static const struct lap_cuda_kernel_name named_kernels[] = {
#define ENTRY(kernel) {.name = "lap_" #kernel},
    NAMES(ENTRY)
#undef ENTRY
};

static const lap_cuda_code_t code = {
    .fatbin = lap_kernel_cuda_fatbin,
    .kernels = named_kernels,
    .count = KERNELS,
    .stream_bytes = sizeof(lap_kernel_cuda_parts_t),
};

static lap_status_t prepare(lap_device_t *device)
{
    LAP_TRY(lap_cuda_code_load((lap_cuda_device_t *)device, &code));
    return lap_kernel_cuda_attention_prepare((lap_cuda_device_t *)device);
}

/* ---- where threads stand ---- */

static size_t smaller(size_t x, size_t y)
{
    return x < y ? x : y;
}

/* What a kernel reads or writes in vectors. */
typedef struct operand {
    const void *data;
    size_t bytes; /* from row to row; 0: it has one */
} operand_t;

static operand_t of(const lap_tensor_t *matrix)
{
    return (operand_t){matrix->data,
                       matrix->rows > 1 ? matrix->stride * lap_dtype_size(matrix->dtype) : 0};
}

/* LAP_KERNEL_CUDA_VECTOR where all operands, which end with one without data, allow it; else 1. */
static uint32_t vector_of(lap_dtype_t dtype, size_t cols, const operand_t *operands)
{
    bool aligned = lap_dtype_size(dtype) > 1 && cols % LAP_KERNEL_CUDA_VECTOR == 0;
    for (; operands->data; operands++)
        aligned = aligned && ((uintptr_t)operands->data | operands->bytes) % 16 == 0;
    return aligned ? LAP_KERNEL_CUDA_VECTOR : 1;
}
static lap_kernel_cuda_span_t span_of(size_t rows, size_t cols, uint32_t vector)
{
    lap_kernel_cuda_span_t span = {.rows = rows, .cols = cols, .vector = vector};
    while ((1u << span.shift) < LAP_KERNEL_CUDA_THREADS && (size_t)vector << span.shift < cols)
        span.shift++;
    return span;
}

/* Blocks for all of a matrix, `most` at most: threads walk on over the rest. */
static lap_cuda_grid_t grid_of(const lap_kernel_cuda_span_t *span, size_t most)
{
    const size_t wide = (size_t)span->vector << span->shift;
    const size_t high = LAP_KERNEL_CUDA_THREADS >> span->shift;
    const size_t across = smaller((span->cols + wide - 1) / wide, most);
    const size_t down = smaller((span->rows + high - 1) / high, across ? most / across : 0);
    return (lap_cuda_grid_t){.x = down ? across : 0, .y = down, .threads = LAP_KERNEL_CUDA_THREADS};
}

static size_t busy(const lap_stream_t *stream)
{
    return (size_t)stream->device->share.sms * BLOCKS_PER_SM;
}

/* A sum is made of parts, of which there is one at least. */
static lap_cuda_grid_t grid_of_parts(const lap_kernel_cuda_span_t *span)
{
    lap_cuda_grid_t grid = grid_of(span, LAP_KERNEL_CUDA_PARTS);
    grid.x = grid.x ? grid.x : 1;
    return grid;
}

/* ---- norms ---- */

/* A thread for every vector, in whole warps, or as many as a block can have. */
static unsigned norm_threads(size_t cols, uint32_t vector)
{
    return (unsigned)smaller((cols / vector + 31) / 32 * 32, LAP_KERNEL_CUDA_NORM);
}

/* Blocks of so many threads that a multiprocessor has at a time. */
static size_t norm_busy(const lap_stream_t *stream, unsigned threads)
{
    return (size_t)stream->device->share.sms * (LAP_KERNEL_CUDA_NORM / threads);
}

/* Whether a row is more than what the threads of a block have in a vector each. */
static bool is_wide(size_t cols, uint32_t vector)
{
    return vector == 1 || cols > (size_t)LAP_KERNEL_CUDA_NORM * vector;
}

static lap_status_t norm_forward(lap_stream_t *stream, const lap_norm_forward_t *norm)
{
    const size_t cols = norm->x.cols;
    LAP_TRY(lap_device_check_dtype("a norm", norm->x.dtype));
    const operand_t operands[] = {of(&norm->x),
                                  of(&norm->y),
                                  {norm->gamma, 0},
                                  {norm->beta, 0}, /* NULL: there is none, nor anything after it */
                                  {NULL, 0}};
    const lap_kernel_cuda_norm_forward_t args = {
        .norm = *norm, .vector = vector_of(norm->x.dtype, cols, operands)};
    const unsigned threads = norm_threads(cols, args.vector);
    const size_t blocks = smaller(norm->x.rows, 2 * norm_busy(stream, threads));
    const lap_cuda_grid_t grid = {.x = blocks, .threads = threads};
    const size_t kernel =
        is_wide(cols, args.vector) ? KERNEL_norm_forward_wide : KERNEL_norm_forward;
    return lap_cuda_code_launch(stream, &code, kernel, grid, &args);
}

static lap_status_t add_parts(lap_stream_t *stream, const lap_norm_backward_t *norm, size_t parts,
                              size_t first, float *sums)
{
    const lap_column_sums_t columns = {
        .from = LAP_FLOAT32,
        .to = LAP_FLOAT32,
        .src = (const float *)norm->scratch + first * norm->x.cols,
        .src_stride = 2 * norm->x.cols * sizeof(float),
        .rows = parts,
        .cols = norm->x.cols,
        .scale = 1,
        .dst = sums,
    };
    return lap_cuda_column_sums(stream, &columns);
}

static lap_status_t norm_backward(lap_stream_t *stream, const lap_norm_backward_t *norm)
{
    const size_t cols = norm->x.cols;
    LAP_TRY(lap_device_check_dtype("the gradient of a norm", norm->x.dtype));
    const operand_t operands[] = {of(&norm->x),     of(&norm->dy),      of(&norm->dx),
                                  {norm->gamma, 0}, {norm->scratch, 0}, of(&norm->skip),
                                  {NULL, 0}};
    lap_kernel_cuda_norm_backward_t args = {.norm = *norm,
                                            .vector = vector_of(norm->x.dtype, cols, operands)};
    const unsigned threads = norm_threads(cols, args.vector);
    const size_t parts =
        smaller(lap_kernel_cuda_norm_parts(norm->x.rows, cols), norm_busy(stream, threads));
    const lap_cuda_grid_t grid = {.x = parts, .threads = threads};
    const size_t kernel =
        is_wide(cols, args.vector) ? KERNEL_norm_backward_wide : KERNEL_norm_backward;
    args.parts = (uint32_t)parts;
    LAP_TRY(lap_cuda_code_launch(stream, &code, kernel, grid, &args));
    LAP_TRY(add_parts(stream, norm, parts, 0, norm->dgamma));
    return norm->dbeta ? add_parts(stream, norm, parts, 1, norm->dbeta) : LAP_OK;
}

/* ---- elements ---- */

static lap_status_t swiglu_forward(lap_stream_t *stream, const lap_swiglu_t *swiglu)
{
    const lap_tensor_t *out = &swiglu->out;
    LAP_TRY(lap_device_check_dtype("SwiGLU", out->dtype));
    const operand_t operands[] = {of(&swiglu->pre), of(out), {NULL, 0}};
    const uint32_t vector = vector_of(out->dtype, out->cols, operands);
    const lap_kernel_cuda_swiglu_t args = {.swiglu = *swiglu,
                                           .span = span_of(out->rows, out->cols, vector)};
    return lap_cuda_code_launch(stream, &code, KERNEL_swiglu_forward,
                                grid_of(&args.span, busy(stream)), &args);
}

static lap_status_t swiglu_backward(lap_stream_t *stream, const lap_swiglu_backward_t *swiglu)
{
    const lap_tensor_t *dout = &swiglu->dout;
    LAP_TRY(lap_device_check_dtype("the gradient of SwiGLU", dout->dtype));
    const operand_t operands[] = {of(&swiglu->pre), of(&swiglu->dpre), of(dout), {NULL, 0}};
    const uint32_t vector = vector_of(dout->dtype, dout->cols, operands);
    const lap_kernel_cuda_swiglu_backward_t args = {
        .swiglu = *swiglu, .span = span_of(dout->rows, dout->cols, vector)};
    return lap_cuda_code_launch(stream, &code, KERNEL_swiglu_backward,
                                grid_of(&args.span, busy(stream)), &args);
}

static lap_status_t square_loss(lap_stream_t *stream, const lap_square_loss_t *loss)
{
    LAP_TRY(lap_device_check_dtype("the square loss", loss->y.dtype));
    const operand_t operands[] = {of(&loss->y), of(&loss->target), of(&loss->dy), {NULL, 0}};
    const uint32_t vector = vector_of(loss->y.dtype, loss->y.cols, operands);
    const lap_kernel_cuda_square_loss_t args = {.loss = *loss,
                                                .span = span_of(loss->y.rows, loss->y.cols, vector),
                                                .parts = lap_cuda_code_memory(stream, &code)};
    return lap_cuda_code_launch(stream, &code, KERNEL_square_loss, grid_of_parts(&args.span),
                                &args);
}

static lap_status_t fill_normal(lap_stream_t *stream, const lap_fill_normal_t *fill)
{
    LAP_TRY(lap_device_check_dtype("the memory to fill", fill->out.dtype));
    const lap_kernel_cuda_fill_normal_t args = {.fill = *fill,
                                                .span = span_of(fill->out.rows, fill->out.cols, 1)};
    return lap_cuda_code_launch(stream, &code, KERNEL_fill_normal,
                                grid_of(&args.span, busy(stream)), &args);
}

/* ---- tokens ---- */

static lap_status_t embedding(lap_stream_t *stream, const lap_embedding_t *embedding)
{
    LAP_TRY(lap_device_check_dtype("an embedding", embedding->out.dtype));
    const operand_t operands[] = {of(&embedding->out),
                                  {embedding->table, 0},
                                  {embedding->positions, 0}, /* NULL: there are none */
                                  {NULL, 0}};
    const uint32_t vector = vector_of(embedding->out.dtype, embedding->out.cols, operands);
    const lap_kernel_cuda_embedding_t args = {
        .embedding = *embedding, .span = span_of(embedding->out.rows, embedding->out.cols, vector)};
    return lap_cuda_code_launch(stream, &code, KERNEL_embedding, grid_of(&args.span, busy(stream)),
                                &args);
}

/* Rows of the gradient that no token has are cleared before. */
static lap_status_t embedding_backward(lap_stream_t *stream, const lap_embedding_backward_t *back)
{
    LAP_TRY(lap_device_check_dtype("the gradient of an embedding", back->dy.dtype));
    const size_t cols = back->dy.cols;
    const lap_fill_normal_t zeros = {
        .out = lap_tensor(back->grad, LAP_FLOAT32, 1, back->count * cols)};
    if (back->beta == 0)
        LAP_TRY(fill_normal(stream, &zeros));
    const lap_cuda_grid_t grid = {.x = back->dy.rows,
                                  .y = (cols + LAP_KERNEL_CUDA_THREADS - 1) /
                                       LAP_KERNEL_CUDA_THREADS,
                                  .threads = LAP_KERNEL_CUDA_THREADS};
    return lap_cuda_code_launch(stream, &code, KERNEL_embedding_backward, grid, back);
}

static lap_status_t rope(lap_stream_t *stream, const lap_rope_t *rope)
{
    LAP_TRY(lap_device_check_dtype("what is rotated", rope->x.dtype));
    const operand_t operands[] = {of(&rope->x), {rope->table, 0}, {NULL, 0}};
    const size_t half = rope->dim / 2;
    const uint32_t vector = vector_of(rope->x.dtype, half, operands);
    const lap_kernel_cuda_rope_t args = {.rope = *rope,
                                         .span = span_of(rope->x.rows, rope->heads * half, vector)};
    return lap_cuda_code_launch(stream, &code, KERNEL_rope, grid_of(&args.span, busy(stream)),
                                &args);
}

static lap_status_t dropout(lap_stream_t *stream, const lap_dropout_t *dropout)
{
    LAP_TRY(lap_device_check_dtype("dropout", dropout->x.dtype));
    const operand_t operands[] = {of(&dropout->x),
                                  of(&dropout->out),
                                  of(&dropout->skip), /* perhaps NULL: the end */
                                  {NULL, 0}};
    const uint32_t vector = vector_of(dropout->x.dtype, dropout->x.cols, operands);
    const lap_kernel_cuda_dropout_t args = {
        .dropout = *dropout, .span = span_of(dropout->x.rows, dropout->x.cols, vector)};
    return lap_cuda_code_launch(stream, &code, KERNEL_dropout, grid_of(&args.span, busy(stream)),
                                &args);
}

/* The rows of a block depend only on their number: so does the order of the sum of losses. */
static lap_status_t launch_entropy(lap_stream_t *stream, const lap_cross_entropy_t *entropy,
                                   size_t kernel, size_t blocks)
{
    LAP_TRY(lap_device_check_dtype("logits", entropy->logits.dtype));
    const operand_t operands[] = {of(&entropy->logits), {NULL, 0}};
    /* The rest of a row, after its last whole vector, is done one by one. */
    const size_t whole = entropy->cols / LAP_KERNEL_CUDA_VECTOR * LAP_KERNEL_CUDA_VECTOR;
    const lap_kernel_cuda_cross_entropy_t args = {
        .entropy = *entropy,
        .parts = lap_cuda_code_memory(stream, &code),
        .vector = vector_of(entropy->logits.dtype, whole, operands)};
    const lap_cuda_grid_t grid = {.x = blocks, .threads = LAP_KERNEL_CUDA_NORM};
    return lap_cuda_code_launch(stream, &code, kernel, grid, &args);
}

static lap_status_t logit_stats(lap_stream_t *stream, const lap_cross_entropy_t *entropy)
{
    return launch_entropy(stream, entropy, KERNEL_logit_stats, entropy->logits.rows);
}

static lap_status_t cross_entropy(lap_stream_t *stream, const lap_cross_entropy_t *entropy)
{
    const size_t blocks = smaller(entropy->logits.rows, LAP_KERNEL_CUDA_PARTS);
    return launch_entropy(stream, entropy, KERNEL_cross_entropy, blocks ? blocks : 1);
}

static lap_status_t amax(lap_stream_t *stream, const lap_amax_t *amax)
{
    LAP_TRY(lap_device_check_dtype("the largest magnitude", amax->src.dtype));
    const operand_t operands[] = {of(&amax->src), {NULL, 0}};
    const uint32_t vector = vector_of(amax->src.dtype, amax->src.cols, operands);
    const lap_kernel_cuda_amax_t args = {.amax = *amax,
                                         .span = span_of(amax->src.rows, amax->src.cols, vector),
                                         .parts = lap_cuda_code_memory(stream, &code)};
    return lap_cuda_code_launch(stream, &code, KERNEL_amax, grid_of_parts(&args.span), &args);
}

static lap_status_t fp8_scales(lap_stream_t *stream, const lap_fp8_scales_t *scales)
{
    const size_t blocks = (scales->count + LAP_KERNEL_CUDA_THREADS - 1) / LAP_KERNEL_CUDA_THREADS;
    const lap_cuda_grid_t grid = {.x = blocks, .threads = LAP_KERNEL_CUDA_THREADS};
    return lap_cuda_code_launch(stream, &code, KERNEL_fp8_scales, grid, scales);
}

/* ---- optimizers ---- */

/* A thread has about this many numbers where there are few. */
#define SQUARES 8u

static uint32_t is_aligned(uintptr_t addresses)
{
    return addresses % (LAP_KERNEL_CUDA_FLOATS * sizeof(float)) == 0;
}

static lap_status_t sum_squares(lap_stream_t *stream, const lap_sum_squares_t *sum)
{
    const lap_kernel_cuda_sum_squares_t args = {.sum = *sum,
                                                .parts = lap_cuda_code_memory(stream, &code),
                                                .aligned = is_aligned((uintptr_t)sum->src)};
    const size_t each = (size_t)LAP_KERNEL_CUDA_THREADS * SQUARES;
    const size_t blocks = smaller((sum->count + each - 1) / each, LAP_KERNEL_CUDA_PARTS);
    const lap_cuda_grid_t grid = {.x = blocks ? blocks : 1, .threads = LAP_KERNEL_CUDA_THREADS};
    return lap_cuda_code_launch(stream, &code, KERNEL_sum_squares, grid, &args);
}

static lap_status_t total(lap_stream_t *stream, const lap_total_t *total)
{
    const lap_cuda_grid_t grid = {.x = 1, .threads = LAP_KERNEL_CUDA_THREADS};
    return lap_cuda_code_launch(stream, &code, KERNEL_total, grid, total);
}

static lap_status_t clip(lap_stream_t *stream, const lap_clip_t *clip)
{
    const lap_cuda_grid_t grid = {.x = 1, .threads = 1};
    return lap_cuda_code_launch(stream, &code, KERNEL_clip, grid, clip);
}

static lap_status_t update(lap_stream_t *stream, const lap_update_t *update)
{
    const lap_kernel_cuda_update_t args = {
        .update = *update,
        .aligned = is_aligned((uintptr_t)update->master | (uintptr_t)update->grad |
                              (uintptr_t)update->first | (uintptr_t)update->second)};
    const lap_kernel_cuda_span_t span = span_of(1, update->count, LAP_KERNEL_CUDA_FLOATS);
    return lap_cuda_code_launch(stream, &code, KERNEL_update, grid_of(&span, busy(stream)), &args);
}

/* NOLINTNEXTLINE(bugprone-macro-parentheses): a name of a field cannot stand in parentheses */
#define SLOT(kernel) .kernel = kernel,

const lap_kernels_t lap_cuda_kernels = {
    SLOTS(SLOT).device = "cuda",
    .prepare = prepare,
    .norm_scratch = lap_kernel_cuda_norm_scratch,
    .attention_scratch = lap_kernel_cuda_attention_scratch,
    .attention_forward = lap_kernel_cuda_attention_forward,
    .attention_backward = lap_kernel_cuda_attention_backward,
};
