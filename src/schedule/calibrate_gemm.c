/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calibration of GEMMs: how many multiply-adds a second a device does with few rows and with many,
 * and with few columns.
 */
#include "schedule/calibrate_gemm.h"

#include <math.h>

#include "core/tensor.h"

#define RESULT_ALIGN 256u /* bytes */
#define GEMM_POINT_S 6e-3 /* what a GEMM that is measured may take */
#define GEMM_ROUNDS 3
#define FEW_COLUMNS 8u   /* the part of n that is measured, too */
#define LEAST_WIDTH 32   /* of n and k, where there is no memory for more */
#define FEW_PRODUCTS 256 /* to a sum: then many rows are measured, too */
#define LIKED 64u        /* a multiple that GEMMs of devices are fast with; FP8 needs one of 16 */

static size_t round_down(size_t count)
{
    return count < LIKED ? count : count / LIKED * LIKED;
}

lap_calibrate_shape_t lap_calibrate_cut(const lap_calibrate_extent_t *extent, double rows, size_t n,
                                        size_t k, double volume)
{
    const double weight = fmax(1, fmin(extent->weight, volume / rows));
    const size_t side = (size_t)fmax(1, sqrt(weight));
    n = n < extent->width ? n : extent->width;
    k = k < extent->width ? k : extent->width;
    size_t cut_n = n < side ? n : round_down(side);
    size_t cut_k = (size_t)(weight / (double)cut_n);
    cut_k = cut_k < k ? round_down(cut_k) : k;
    cut_n = (size_t)(weight / (double)cut_k);
    return (lap_calibrate_shape_t){(size_t)rows, cut_n < n ? round_down(cut_n) : n, cut_k};
}

/* a, b and the result are in the memory, one after the other: where the result is. */
static size_t result_offset(const lap_calibrate_shape_t *shape, lap_dtype_t dtype)
{
    const size_t before = (shape->rows + shape->n) * shape->k * lap_dtype_size(dtype);
    return (before + RESULT_ALIGN - 1) / RESULT_ALIGN * RESULT_ALIGN;
}

static size_t shape_bytes(const lap_calibrate_shape_t *shape, lap_dtype_t dtype)
{
    return result_offset(shape, dtype) +
           shape->rows * shape->n * lap_dtype_size(lap_dtype_unscaled(dtype));
}

/* One GEMM; a better rate than the one known replaces it. */
static lap_status_t time_gemm(lap_calibration_t *bench, lap_dtype_t dtype,
                              lap_calibrate_shape_t shape, double *rate)
{
    const lap_dtype_t result = lap_dtype_unscaled(dtype); /* as that of an operator */
    const size_t k_bytes = shape.k * lap_dtype_size(dtype);
    char *a = bench->memory, *b = a + shape.rows * k_bytes, *d = a + result_offset(&shape, dtype);
    lap_gemm_block_t block = {.a = a,
                              .d = d,
                              .rows = shape.rows,
                              .a_stride = k_bytes,
                              .d_stride = shape.n * lap_dtype_size(result)};
    const lap_gemm_t gemm = {.a_dtype = dtype,
                             .b_dtype = dtype,
                             .d_dtype = result,
                             .scale = 1.0f,
                             .n = shape.n,
                             .k = shape.k,
                             .b = b,
                             .b_stride = k_bytes,
                             .blocks = &block,
                             .nblocks = 1};
    LAP_TRY(bench->ops->gemm_prepare(bench->stream, &gemm, true)); /* as an operator will run it */
    const uint64_t begin = lap_now_ns();
    for (int i = 0; i < bench->extent.repeats; i++)
        LAP_TRY(bench->ops->gemm(bench->stream, &gemm));
    LAP_TRY(bench->ops->stream_synchronize(bench->stream));
    const double seconds = fmax(lap_calibrate_since(begin), 1e-9) / bench->extent.repeats;
    *rate = fmax(*rate, (double)shape.rows * (double)shape.n * (double)shape.k / seconds);
    return LAP_OK;
}

/* Twice as large as the others, so that its result is not in a cache. */
static lap_calibrate_shape_t many_rows(const lap_calibrate_extent_t *extent,
                                       const lap_gemm_rates_t *entry, double volume)
{
    return lap_calibrate_cut(extent, extent->rows[LAP_MANY_ROWS], entry->n, entry->k, 2 * volume);
}

/*
 * A small GEMM first says how large the others may be. Then all of them in turn, a few times: a
 * disturbance that lasts longer than one GEMM meets all alike, and the best time of each counts.
 */
static lap_status_t measure_rates(lap_calibration_t *bench, lap_gemm_rates_t *entry)
{
    const size_t n = entry->n, k = entry->k;
    lap_calibrate_rates_t *rates = &entry->rates;
    const lap_calibrate_extent_t *extent = &bench->extent;
    const lap_calibrate_shape_t first =
        lap_calibrate_cut(extent, extent->first_rows, n, k, extent->first_volume);
    double rate = 0;
    lap_status_t status = time_gemm(bench, entry->dtype, first, &rate);
    if (status == LAP_OK && extent->repeats > 1) /* what was loaded the first time is there now */
        status = time_gemm(bench, entry->dtype, first, &rate);
    const double volume = fmin(extent->volume, rate * GEMM_POINT_S);
    for (int round = 0; round < GEMM_ROUNDS; round++) {
        lap_calibrate_shape_t shape;
        for (int i = 0; i < LAP_MANY_ROWS; i++) {
            shape = lap_calibrate_cut(extent, extent->rows[i], n, k, volume);
            LAP_TRY(lap_group_barrier(bench->group));
            if (status == LAP_OK)
                status = time_gemm(bench, entry->dtype, shape, &rates->rows[i]);
        }
        LAP_TRY(lap_group_barrier(bench->group));
        if (k <= FEW_PRODUCTS && status == LAP_OK)
            status = time_gemm(bench, entry->dtype, many_rows(extent, entry, volume),
                               &rates->rows[LAP_MANY_ROWS]);
        /* That of 512 rows again with few columns. */
        const size_t few = (shape.n + FEW_COLUMNS - 1) / FEW_COLUMNS;
        entry->all_n = shape.n;
        shape.n = few < shape.n ? few : shape.n;
        entry->few_n = shape.n;
        LAP_TRY(lap_group_barrier(bench->group));
        if (status == LAP_OK)
            status = time_gemm(bench, entry->dtype, shape, &rates->few_columns);
    }
    return lap_group_agree(bench->group, status);
}

/* What the largest of them needs. */
static size_t most_bytes(const lap_calibrate_extent_t *extent, const lap_gemm_rates_t *entry)
{
    const lap_calibrate_shape_t first =
        lap_calibrate_cut(extent, extent->first_rows, entry->n, entry->k, extent->first_volume);
    size_t most = shape_bytes(&first, entry->dtype);
    for (int i = 0; i < LAP_COST_POINTS; i++) {
        const lap_calibrate_shape_t shape =
            i == LAP_MANY_ROWS
                ? many_rows(extent, entry, extent->volume)
                : lap_calibrate_cut(extent, extent->rows[i], entry->n, entry->k, extent->volume);
        const size_t bytes = shape_bytes(&shape, entry->dtype);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Collective. */
static lap_status_t try_gemms(lap_calibration_t *bench, lap_gemm_rates_t *entry)
{
    const size_t bytes = most_bytes(&bench->extent, entry);
    LAP_TRY(lap_group_agree(bench->group, lap_calibrate_alloc(bench, entry->dtype, bytes)));
    return measure_rates(bench, entry);
}

lap_status_t lap_calibrate_gemm(lap_calibration_t *bench, lap_gemm_rates_t *entry)
{
    lap_status_t status;
    while ((status = try_gemms(bench, entry)) == LAP_ERR_NO_MEMORY &&
           bench->extent.width > LEAST_WIDTH) {
        lap_calibrate_free(bench);
        bench->extent.width /= 2;
        entry->rates = (lap_calibrate_rates_t){{0}, 0};
    }
    LAP_TRY(status);
    return lap_calibrate_best(bench->group, (double *)&entry->rates,
                              sizeof(lap_calibrate_rates_t) / sizeof(double), true);
}
