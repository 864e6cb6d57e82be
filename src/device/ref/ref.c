/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference device: plain loops, the truth that other devices are compared with. Each element
 * of a GEMM is summed in double, in the order k = 0, 1, 2, ..., and rounded once, so that its bits
 * do not depend on how rows and columns are split. The product of two floats is exact in double: a
 * fused multiply-add changes nothing. 16-bit types are widened part by part.
 */
#include "core/convert.h"
#include "core/status.h"
#include "device/host/host.h"

#define COLS 8u   /* of d at a time: enough for the compiler to use vectors */
#define ROWS 4u   /* of d at a time, in registers */
#define BAND 64u  /* rows that share a panel of b; a multiple of ROWS */
#define DEEP 256u /* part of k in a panel */

/* A panel of b, transposed and widened; unused columns are zero. */
typedef double panel_t[DEEP][COLS];

/* Part of a band of a, widened; for float32 it is not used. */
typedef float band_t[BAND][DEEP];

/* Elements [begin, begin + depth) of a row, as float; `room` has DEEP elements. */
static const float *part_of(lap_dtype_t dtype, const void *matrix, size_t stride, size_t row,
                            size_t begin, size_t depth, float *room)
{
    const char *start = (const char *)matrix + row * stride;
    return lap_as_float(dtype, start + begin * lap_dtype_size(dtype), room, depth);
}

static void fill_panel(const lap_gemm_t *gemm, size_t col, size_t begin, size_t depth,
                       panel_t panel)
{
    float room[DEEP];
    for (size_t c = 0; c < COLS; c++) {
        const bool used = col + c < gemm->n;
        const float *b =
            part_of(gemm->dtype, gemm->b, gemm->b_stride, used ? col + c : col, begin, depth, room);
        for (size_t k = 0; k < depth; k++)
            panel[k][c] = used ? (double)b[k] : 0.0;
    }
}

/* sum[r][c] += a[r][k] panel[k][c] for k < depth, ROWS rows and COLS columns. */
static void add_products(const float *const *a, size_t depth, panel_t panel, double sum[ROWS][COLS])
{
    double local[ROWS][COLS];
    for (size_t r = 0; r < ROWS; r++)
        for (size_t c = 0; c < COLS; c++)
            local[r][c] = sum[r][c];
    for (size_t k = 0; k < depth; k++)
        for (size_t r = 0; r < ROWS; r++)
            for (size_t c = 0; c < COLS; c++)
                local[r][c] += (double)a[r][k] * panel[k][c];
    for (size_t r = 0; r < ROWS; r++)
        for (size_t c = 0; c < COLS; c++)
            sum[r][c] = local[r][c];
}

/* Elements of d, from `start` on: the only rounding. */
static void store(lap_dtype_t dtype, const double *sum, void *start, size_t cols)
{
    float rounded[COLS];
    for (size_t c = 0; c < cols; c++)
        rounded[c] = dtype == LAP_FLOAT32 ? (float)sum[c] : lap_round_to_odd(sum[c]);
    lap_from_float(dtype, rounded, start, cols);
}

/* Rows [row, row + rows) and columns [col, col + COLS) of d. */
static void multiply_band(const lap_gemm_t *gemm, const lap_gemm_block_t *block, size_t row,
                          size_t rows, size_t col)
{
    const lap_dtype_t dtype = gemm->dtype;
    panel_t panel;
    band_t band;
    double sum[BAND / ROWS][ROWS][COLS] = {{{0}}};
    for (size_t begin = 0; begin < gemm->k; begin += DEEP) {
        const size_t depth = gemm->k - begin < DEEP ? gemm->k - begin : DEEP;
        fill_panel(gemm, col, begin, depth, panel);
        for (size_t i = 0; i < rows; i += ROWS) {
            const float *a[ROWS]; /* past the end, the last row once more; its sum is not used */
            for (size_t r = 0; r < ROWS; r++)
                a[r] = part_of(dtype, block->a, block->a_stride,
                               row + (i + r < rows ? i + r : rows - 1), begin, depth, band[i + r]);
            add_products(a, depth, panel, sum[i / ROWS]);
        }
    }
    const size_t cols = gemm->n - col < COLS ? gemm->n - col : COLS;
    for (size_t i = 0; i < rows; i++) {
        char *start = (char *)block->d + (row + i) * block->d_stride;
        store(dtype, sum[i / ROWS][i % ROWS], start + col * lap_dtype_size(dtype), cols);
    }
}

static lap_status_t multiply(const lap_gemm_t *gemm, const lap_gemm_block_t *block, void *workspace)
{
    (void)workspace;
    for (size_t row = 0; row < block->rows; row += BAND) {
        const size_t rows = block->rows - row < BAND ? block->rows - row : BAND;
        for (size_t col = 0; col < gemm->n; col += COLS)
            multiply_band(gemm, block, row, rows, col);
    }
    return LAP_OK;
}

static lap_status_t lap_ref_gemm(lap_stream_t *stream, const lap_gemm_t *gemm)
{
    return lap_host_gemm(stream, gemm, multiply, 0);
}

extern const lap_device_ops_t lap_ref_ops;

/* There is nothing to set: a GEMM runs in the thread of its stream. */
static lap_status_t lap_ref_open(int threads, lap_device_t **device_p)
{
    if (threads < 0)
        return lap_error(LAP_ERR_INVALID, "threads = %d: expected 0 or more", threads);
    return lap_host_open(&lap_ref_ops, device_p);
}

static int lap_ref_gemm_threads(lap_device_t *device)
{
    (void)device;
    return 1;
}

const lap_device_ops_t lap_ref_ops = {
    .name = "ref",
    .summary = "plain loops, summed in double: the truth for tests",
    .open = lap_ref_open,
    .close = lap_host_close,
    .gemm_threads = lap_ref_gemm_threads,
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
    .gemm = lap_ref_gemm,
};
