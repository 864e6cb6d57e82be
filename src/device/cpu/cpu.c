/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CPU as a device: GEMM by OpenBLAS, everything else as every host does it. OpenBLAS has one
 * number of threads for the whole process; which bits a row gets depends on the shape it was
 * computed in.
 *
 * Unless a, b and d all are float32, d is computed in tiles: parts of a and b that fit into the
 * cache are widened to float, OpenBLAS adds their product to the tile in fp32, and the tile is
 * finished and rounded once when all of k has been added. Parts of k begin at fixed places, so that
 * splitting rows or columns changes no bits but those that OpenBLAS changes itself. The widening
 * and the finishing run in one thread.
 */
#include <limits.h>
#include <string.h>

#include "core/convert.h"
#include "core/status.h"
#include "device/cpu/cpu_blas.h"
#include "device/host/host.h"

static lap_status_t check_size(const char *name, size_t value)
{
    if (value > INT_MAX)
        return lap_error(LAP_ERR_UNSUPPORTED, "%s = %zu of a GEMM: OpenBLAS takes at most %d", name,
                         value, INT_MAX);
    return LAP_OK;
}

#define TILE_ROWS 512u
#define TILE_COLS 512u
#define TILE_DEEP 512u

/* What a stream needs for tiles: a part of a, a part of b, and a tile of d. */
typedef struct tiles {
    float a[TILE_ROWS * TILE_DEEP];
    float b[TILE_COLS * TILE_DEEP];
    float d[TILE_ROWS * TILE_COLS];
} tiles_t;

/* Part of a matrix as float; the stride is in elements. */
typedef struct part {
    const float *data;
    blasint stride;
} part_t;

static size_t least(size_t x, size_t y)
{
    return x < y ? x : y;
}

/*
 * Rows [row, row + rows) and columns [k, k + depth) of a matrix, or of its transpose if it is
 * stored `swapped`. The part is as it is stored: in place if it is float32, else widened and packed
 * into `room`.
 */
static part_t part_of(lap_dtype_t dtype, const void *matrix, size_t stride, bool swapped,
                      size_t row, size_t k, size_t rows, size_t depth, float *room)
{
    const size_t first = swapped ? k : row, col = swapped ? row : k;
    const size_t count = swapped ? depth : rows, cols = swapped ? rows : depth;
    const char *start = (const char *)matrix + first * stride + col * lap_dtype_size(dtype);
    if (dtype == LAP_FLOAT32)
        return (part_t){(const float *)start, (blasint)(stride / sizeof(float))};
    for (size_t i = 0; i < count; i++)
        lap_to_float(dtype, start + i * stride, room + i * cols, cols);
    return (part_t){room, (blasint)cols};
}

static float alpha_of(const lap_gemm_t *gemm, const lap_gemm_block_t *block)
{
    const float scale = gemm->scale * (gemm->b_scale ? *gemm->b_scale : 1.0f);
    return scale * (block->a_scale ? *block->a_scale : 1.0f);
}

/* d [rows, cols] = alpha op(a) op(b) + beta d, with op as the GEMM has it. */
static lap_status_t multiply_parts(const lap_gemm_t *gemm, size_t rows, size_t cols, size_t depth,
                                   float alpha, part_t a, part_t b, float beta, float *d,
                                   size_t ldd)
{
    const lap_blas_gemm_t part = {.a_op = gemm->a_transposed ? CblasTrans : CblasNoTrans,
                                  .b_op = gemm->b_plain ? CblasNoTrans : CblasTrans,
                                  .m = (blasint)rows,
                                  .n = (blasint)cols,
                                  .k = (blasint)depth,
                                  .alpha = alpha,
                                  .beta = beta,
                                  .a = a.data,
                                  .b = b.data,
                                  .d = d,
                                  .lda = a.stride,
                                  .ldb = b.stride,
                                  .ldd = (blasint)ldd};
    return lap_blas_sgemm_even(&part);
}

/* Row `i` of a block's aux. */
static void *aux_of(const lap_gemm_t *gemm, const lap_gemm_block_t *block, size_t i)
{
    return gemm->finish && block->aux ? (char *)block->aux + i * gemm->finish->aux_stride : NULL;
}

/* The tile [rows, cols] of d at (row, col). */
static lap_status_t multiply_tile(const lap_gemm_t *gemm, const lap_gemm_block_t *block, size_t row,
                                  size_t col, tiles_t *tiles)
{
    const size_t rows = least(block->rows - row, TILE_ROWS), cols = least(gemm->n - col, TILE_COLS);
    if (gemm->k == 0)
        memset(tiles->d, 0, rows * cols * sizeof(float));
    for (size_t k = 0; k < gemm->k; k += TILE_DEEP) {
        const size_t depth = least(gemm->k - k, TILE_DEEP);
        const part_t a = part_of(gemm->a_dtype, block->a, block->a_stride, gemm->a_transposed, row,
                                 k, rows, depth, tiles->a);
        const part_t b = part_of(gemm->b_dtype, gemm->b, gemm->b_stride, gemm->b_plain, col, k,
                                 cols, depth, tiles->b);
        LAP_TRY(multiply_parts(gemm, rows, cols, depth, alpha_of(gemm, block), a, b,
                               k == 0 ? 0.0f : 1.0f, tiles->d, cols));
    }
    for (size_t i = 0; i < rows; i++)
        lap_host_finish(gemm->finish, tiles->d + i * cols, col, cols, gemm->d_dtype,
                        (char *)block->d + (row + i) * block->d_stride,
                        aux_of(gemm, block, row + i));
    return LAP_OK;
}

static lap_status_t multiply_tiles(const lap_gemm_t *gemm, const lap_gemm_block_t *block,
                                   void *workspace)
{
    if (gemm->a_dtype == LAP_FLOAT32)
        LAP_TRY(check_size("row stride of a", block->a_stride / sizeof(float)));
    if (gemm->b_dtype == LAP_FLOAT32)
        LAP_TRY(check_size("row stride of b", gemm->b_stride / sizeof(float)));
    for (size_t col = 0; col < gemm->n; col += TILE_COLS)
        for (size_t row = 0; row < block->rows; row += TILE_ROWS)
            LAP_TRY(multiply_tile(gemm, block, row, col, workspace));
    return LAP_OK;
}

/* What OpenBLAS has not done to d [rows, n], which is float32 and holds the sums. */
static void finish_rows(const lap_gemm_t *gemm, const lap_gemm_block_t *block)
{
    lap_finish_t rest = *gemm->finish;
    rest.beta = 0;
    if (rest.epilogue == LAP_EPILOGUE_NONE && rest.scale == 1)
        return;
    for (size_t i = 0; i < block->rows; i++) {
        void *d = (char *)block->d + i * block->d_stride;
        lap_host_finish(&rest, d, 0, gemm->n, LAP_FLOAT32, d, aux_of(gemm, block, i));
    }
}

/* All of it float32: OpenBLAS works on the matrices where they are. k is not 0. */
static lap_status_t multiply_whole(const lap_gemm_t *gemm, const lap_gemm_block_t *block,
                                   void *workspace)
{
    (void)workspace;
    const size_t lda = block->a_stride / sizeof(float);
    const size_t ldb = gemm->b_stride / sizeof(float);
    const size_t ldd = block->d_stride / sizeof(float);
    LAP_TRY(check_size("rows", block->rows));
    LAP_TRY(check_size("n", gemm->n));
    LAP_TRY(check_size("k", gemm->k));
    LAP_TRY(check_size("row stride of a", lda));
    LAP_TRY(check_size("row stride of b", ldb));
    LAP_TRY(check_size("row stride of d", ldd));
    const part_t a = {block->a, (blasint)lda}, b = {gemm->b, (blasint)ldb};
    const float beta = gemm->finish ? gemm->finish->beta * gemm->finish->scale : 0.0f;
    LAP_TRY(multiply_parts(gemm, block->rows, gemm->n, gemm->k, alpha_of(gemm, block), a, b, beta,
                           block->d, ldd));
    if (gemm->finish)
        finish_rows(gemm, block);
    return LAP_OK;
}

static lap_status_t lap_cpu_gemm(lap_stream_t *stream, const lap_gemm_t *gemm)
{
    if (gemm->a_dtype == LAP_FLOAT32 && gemm->b_dtype == LAP_FLOAT32 &&
        gemm->d_dtype == LAP_FLOAT32 && gemm->k > 0)
        return lap_host_gemm(stream, gemm, multiply_whole, 0);
    return lap_host_gemm(stream, gemm, multiply_tiles, sizeof(tiles_t));
}

extern const lap_device_ops_t lap_cpu_ops;

static lap_status_t lap_cpu_open(const lap_device_options_t *options, lap_device_t **device_p)
{
    if (options->threads < 0)
        return lap_error(LAP_ERR_INVALID, "threads = %d: expected 0 or more", options->threads);
    LAP_TRY(lap_blas_load());
    if (options->threads > 0)
        LAP_TRY(lap_blas_set_threads(options->threads));
    return lap_host_open(&lap_cpu_ops, options, device_p);
}

static int lap_cpu_gemm_threads(lap_device_t *device)
{
    (void)device;
    return lap_blas_threads();
}

const lap_device_ops_t lap_cpu_ops = {
    .name = "cpu",
    .summary = "GEMM by OpenBLAS; streams are worker threads",
    LAP_HOST_SLOTS,
    LAP_HOST_OPEN_SLOTS,
    .open = lap_cpu_open,
    .gemm_threads = lap_cpu_gemm_threads,
    .gemm = lap_cpu_gemm,
};
