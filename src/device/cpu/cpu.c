/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CPU as a device: GEMM by OpenBLAS, everything else as every host does it. OpenBLAS has one
 * number of threads for the whole process; which bits a row gets depends on the shape it was
 * computed in.
 *
 * 16-bit types are computed in tiles of d: parts of a and b that fit into the cache are widened to
 * float, OpenBLAS adds their product to the tile in fp32, and the tile is rounded once when all of
 * k has been added. Parts of k begin at fixed places, so that splitting rows or columns changes no
 * bits but those that OpenBLAS changes itself. The widening runs in one thread.
 */
#include <cblas.h>
#include <limits.h>

#include "core/convert.h"
#include "core/status.h"
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

/* What a stream needs for 16-bit types: a part of a, a part of b, and a tile of d. */
typedef struct tiles {
    float a[TILE_ROWS * TILE_DEEP];
    float b[TILE_COLS * TILE_DEEP];
    float d[TILE_ROWS * TILE_COLS];
} tiles_t;

static size_t least(size_t x, size_t y)
{
    return x < y ? x : y;
}

/* The part [rows, cols] of a matrix at (row, col), widened and packed. */
static void widen(lap_dtype_t dtype, const void *matrix, size_t stride, size_t row, size_t col,
                  size_t rows, size_t cols, float *part)
{
    const char *start = (const char *)matrix + row * stride + col * lap_dtype_size(dtype);
    for (size_t i = 0; i < rows; i++)
        lap_to_float(dtype, start + i * stride, part + i * cols, cols);
}

/* The tile [rows, cols] of d at (row, col). */
static void multiply_tile(const lap_gemm_t *gemm, const lap_gemm_block_t *block, size_t row,
                          size_t col, tiles_t *tiles)
{
    const size_t rows = least(block->rows - row, TILE_ROWS), cols = least(gemm->n - col, TILE_COLS);
    const lap_dtype_t dtype = gemm->dtype;
    for (size_t k = 0; k < gemm->k; k += TILE_DEEP) {
        const size_t depth = least(gemm->k - k, TILE_DEEP);
        widen(dtype, block->a, block->a_stride, row, k, rows, depth, tiles->a);
        widen(dtype, gemm->b, gemm->b_stride, col, k, cols, depth, tiles->b);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)rows, (blasint)cols,
                    (blasint)depth, 1.0f, tiles->a, (blasint)depth, tiles->b, (blasint)depth,
                    k == 0 ? 0.0f : 1.0f, tiles->d, (blasint)cols);
    }
    char *d = (char *)block->d + row * block->d_stride + col * lap_dtype_size(dtype);
    for (size_t i = 0; i < rows; i++)
        lap_from_float(dtype, tiles->d + i * cols, d + i * block->d_stride, cols);
}

static lap_status_t multiply_narrow(const lap_gemm_t *gemm, const lap_gemm_block_t *block,
                                    void *workspace)
{
    for (size_t col = 0; col < gemm->n; col += TILE_COLS)
        for (size_t row = 0; row < block->rows; row += TILE_ROWS)
            multiply_tile(gemm, block, row, col, workspace);
    return LAP_OK;
}

/* d [rows, n] = a [rows, k] times b [n, k] transposed. */
static lap_status_t multiply(const lap_gemm_t *gemm, const lap_gemm_block_t *block, void *workspace)
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
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)block->rows, (blasint)gemm->n,
                (blasint)gemm->k, 1.0f, block->a, (blasint)lda, gemm->b, (blasint)ldb, 0.0f,
                block->d, (blasint)ldd);
    return LAP_OK;
}

static lap_status_t lap_cpu_gemm(lap_stream_t *stream, const lap_gemm_t *gemm)
{
    if (gemm->dtype == LAP_FLOAT32)
        return lap_host_gemm(stream, gemm, multiply, 0);
    return lap_host_gemm(stream, gemm, multiply_narrow, sizeof(tiles_t));
}

extern const lap_device_ops_t lap_cpu_ops;

static lap_status_t lap_cpu_open(int threads, lap_device_t **device_p)
{
    if (threads < 0)
        return lap_error(LAP_ERR_INVALID, "threads = %d: expected 0 or more", threads);
    LAP_TRY(lap_host_open(&lap_cpu_ops, device_p));
    if (threads > 0)
        openblas_set_num_threads(threads);
    return LAP_OK;
}

static int lap_cpu_gemm_threads(lap_device_t *device)
{
    (void)device;
    return openblas_get_num_threads();
}

const lap_device_ops_t lap_cpu_ops = {
    .name = "cpu",
    .summary = "GEMM by OpenBLAS; streams are worker threads",
    .open = lap_cpu_open,
    .close = lap_host_close,
    .gemm_threads = lap_cpu_gemm_threads,
    .alloc = lap_host_alloc,
    .free = lap_host_free,
    .stream_create = lap_host_stream_create,
    .stream_destroy = lap_host_stream_destroy,
    .stream_call = lap_host_stream_call,
    .stream_synchronize = lap_host_stream_synchronize,
    .event_create = lap_host_event_create,
    .event_destroy = lap_host_event_destroy,
    .event_record = lap_host_event_record,
    .stream_wait_event = lap_host_stream_wait_event,
    .event_synchronize = lap_host_event_synchronize,
    .stamp = lap_host_stamp,
    .copy = lap_host_copy,
    .reduce = lap_host_reduce,
    .gemm = lap_cpu_gemm,
};
