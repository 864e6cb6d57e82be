/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference device: plain loops, the truth that other devices are compared with. Each element
 * of a GEMM is summed in double, in the order k = 0, 1, 2, ..., finished in double, and rounded
 * once, so that its bits do not depend on how rows and columns are split. The product of two floats
 * is exact in double: a fused multiply-add changes nothing. Narrow types are widened part by part.
 */
#include <math.h>

#include "core/convert.h"
#include "core/status.h"
#include "device/host/host_guard.h"
#include "device/ref/ref.h"

#define COLS 8u   /* of d at a time: enough for the compiler to use vectors */
#define ROWS 4u   /* of d at a time, in registers */
#define BAND 64u  /* rows that share a panel of b; a multiple of ROWS */
#define DEEP 256u /* part of k in a panel */

/* A panel of b, transposed and widened; unused columns are zero. */
typedef double panel_t[DEEP][COLS];

/* Part of a band of a, widened and by rows; for float32 by rows it is not used. */
typedef float band_t[BAND][DEEP];

/* Elements [begin, begin + count) of a row, as float; `room` has as many. */
static const float *part_of(lap_dtype_t dtype, const void *matrix, size_t stride, size_t row,
                            size_t begin, size_t count, float *room)
{
    const char *start = (const char *)matrix + row * stride;
    return lap_as_float(dtype, start + begin * lap_dtype_size(dtype), room, count);
}

/* For k in [begin, begin + depth) and columns of d from `col` on. */
static void fill_panel(const lap_gemm_t *gemm, size_t col, size_t begin, size_t depth,
                       panel_t panel)
{
    const size_t cols = gemm->n - col < COLS ? gemm->n - col : COLS;
    float room[DEEP];
    for (size_t k = 0; k < depth; k++)
        for (size_t c = cols; c < COLS; c++)
            panel[k][c] = 0;
    /* b as it is stored: rows of one k each, or of one column of d each. */
    for (size_t i = 0; i < (gemm->b_plain ? depth : cols); i++) {
        const size_t row = gemm->b_plain ? begin + i : col + i;
        const size_t first = gemm->b_plain ? col : begin, count = gemm->b_plain ? cols : depth;
        const float *b = part_of(gemm->b_dtype, gemm->b, gemm->b_stride, row, first, count, room);
        for (size_t j = 0; j < count; j++)
            *(gemm->b_plain ? &panel[i][j] : &panel[j][i]) = (double)b[j];
    }
}

/* The same part of k of rows [row, row + rows) of op(a), where it is or in `band`. */
static void fill_band(const lap_gemm_t *gemm, const lap_gemm_block_t *block, size_t row,
                      size_t rows, size_t begin, size_t depth, band_t band, const float **a)
{
    float room[BAND];
    for (size_t i = 0; i < rows; i++)
        a[i] = gemm->a_transposed ? band[i]
                                  : part_of(gemm->a_dtype, block->a, block->a_stride, row + i,
                                            begin, depth, band[i]);
    for (size_t k = 0; gemm->a_transposed && k < depth; k++) {
        const float *column =
            part_of(gemm->a_dtype, block->a, block->a_stride, begin + k, row, rows, room);
        for (size_t i = 0; i < rows; i++)
            band[i][k] = column[i];
    }
    for (size_t i = rows; i < BAND; i++)
        a[i] = a[rows - 1]; /* past the end, the last row once more; its sum is not used */
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

#define SLOPE 0.79788456080286535588 /* sqrt(2/pi) */
#define CUBIC 0.044715
#define LIMIT 40.0 /* beyond it gelu is 0 or x also in double, and infinity would give NaN */

/*
 * 0.5 (1 + tanh(u)), with u as in GELU: the same as 1 / (1 + e^-2u), which loses nothing where it
 * is small.
 */
static double gate(double x)
{
    return 1 / (1 + exp(-2 * SLOPE * (x + CUBIC * x * x * x)));
}

static double gelu(double x)
{
    return x < -LIMIT ? -0.0 : x * gate(x);
}

static double gelu_slope(double x)
{
    if (fabs(x) > LIMIT)
        return x > 0;
    return gate(x) + x * gate(x) * gate(-x) * 2 * SLOPE * (1 + 3 * CUBIC * x * x);
}

static void *address_of(lap_dtype_t dtype, const void *row, size_t col)
{
    return (char *)row + col * lap_dtype_size(dtype);
}

static double value_of(lap_dtype_t dtype, const void *row, size_t col)
{
    float value;
    lap_to_float(dtype, address_of(dtype, row, col), &value, 1);
    return (double)value;
}

/* One element, before it is rounded; `d` and `aux` are its row. */
static double finish(const lap_finish_t *finish, double x, lap_dtype_t dtype, const void *d,
                     void *aux, size_t col)
{
    if (finish->beta != 0)
        x += (double)finish->beta * (double)finish->scale * value_of(dtype, d, col);
    if (finish->epilogue & LAP_EPILOGUE_BIAS)
        x += value_of(finish->bias_dtype, finish->bias, col);
    if (finish->epilogue & LAP_EPILOGUE_GELU) {
        if (aux)
            lap_from_double(finish->aux_dtype, &x, address_of(finish->aux_dtype, aux, col), 1);
        x = gelu(x);
    }
    if (finish->epilogue & LAP_EPILOGUE_DGELU)
        x *= gelu_slope(value_of(finish->aux_dtype, aux, col));
    return x / (double)finish->scale;
}

/* Columns [col, col + cols) of row `i` of a block: the only rounding. */
static void store(const lap_gemm_t *gemm, const lap_gemm_block_t *block, size_t i, size_t col,
                  size_t cols, double *sum)
{
    const double scale = (double)gemm->scale * (gemm->b_scale ? (double)*gemm->b_scale : 1.0) *
                         (block->a_scale ? (double)*block->a_scale : 1.0);
    char *d = (char *)block->d + i * block->d_stride, *aux = block->aux;
    if (aux && gemm->finish)
        aux += i * gemm->finish->aux_stride;
    for (size_t c = 0; c < cols; c++) {
        sum[c] *= scale;
        if (gemm->finish)
            sum[c] = finish(gemm->finish, sum[c], gemm->d_dtype, d, aux, col + c);
    }
    lap_from_double(gemm->d_dtype, sum, address_of(gemm->d_dtype, d, col), cols);
}

/* Rows [row, row + rows) and columns [col, col + COLS) of d. */
static void multiply_band(const lap_gemm_t *gemm, const lap_gemm_block_t *block, size_t row,
                          size_t rows, size_t col)
{
    const float *a[BAND];
    panel_t panel;
    band_t band;
    double sum[BAND / ROWS][ROWS][COLS] = {{{0}}};
    for (size_t begin = 0; begin < gemm->k; begin += DEEP) {
        const size_t depth = gemm->k - begin < DEEP ? gemm->k - begin : DEEP;
        fill_panel(gemm, col, begin, depth, panel);
        fill_band(gemm, block, row, rows, begin, depth, band, a);
        for (size_t i = 0; i < rows; i += ROWS)
            add_products(a + i, depth, panel, sum[i / ROWS]);
    }
    const size_t cols = gemm->n - col < COLS ? gemm->n - col : COLS;
    for (size_t i = 0; i < rows; i++)
        store(gemm, block, row + i, col, cols, sum[i / ROWS][i % ROWS]);
}

lap_status_t lap_ref_multiply(const lap_gemm_t *gemm, const lap_gemm_block_t *block,
                              void *workspace)
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
    return lap_host_gemm(stream, gemm, lap_ref_multiply, 0);
}

extern const lap_device_ops_t lap_ref_ops;
extern const lap_device_ops_t lap_ref_guarded_ops;

/* There is nothing to set: a GEMM runs in the thread of its stream. */
static lap_status_t lap_ref_open(const lap_device_options_t *options, lap_device_t **device_p)
{
    if (options->threads < 0)
        return lap_error(LAP_ERR_INVALID, "threads = %d: expected 0 or more", options->threads);
    return lap_host_open(lap_host_guard_is_on() ? &lap_ref_guarded_ops : &lap_ref_ops, options,
                         device_p);
}

static int lap_ref_gemm_threads(lap_device_t *device)
{
    (void)device;
    return 1;
}

const lap_device_ops_t lap_ref_ops = {
    .name = "ref",
    .summary = "plain loops, summed in double: the reference for tests",
    LAP_HOST_SLOTS,
    LAP_HOST_OPEN_SLOTS,
    .open = lap_ref_open,
    .gemm_threads = lap_ref_gemm_threads,
    .gemm = lap_ref_gemm,
};

/* The same where lap_host_guard_start was called. */
const lap_device_ops_t lap_ref_guarded_ops = {
    .name = "ref",
    .summary = "plain loops, summed in double: the reference for tests",
    .guards = true,
    LAP_HOST_SLOTS,
    .alloc = lap_host_guard_alloc,
    .free = lap_host_guard_free,
    .open = lap_ref_open,
    .gemm_threads = lap_ref_gemm_threads,
    .gemm = lap_ref_guarded_gemm,
    .copy = lap_ref_guarded_copy,
    .reduce = lap_ref_guarded_reduce,
    .column_sums = lap_ref_guarded_column_sums,
};
