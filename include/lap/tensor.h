/* SPDX-License-Identifier: Apache-2.0 */
/* Element types, views of matrices, and how rows and features are shared among ranks. */
#ifndef LAP_TENSOR_H
#define LAP_TENSOR_H

#include <stddef.h>

#include <lap/export.h>
#include <lap/status.h>

LAP_BEGIN_DECLS

/* The types of elements. */
typedef enum lap_dtype {
    LAP_FLOAT32 = 0,
    LAP_FLOAT16 = 1,        /* IEEE binary16 */
    LAP_BFLOAT16 = 2,       /* the upper half of a float32 */
    LAP_FLOAT8_E4M3 = 3,    /* OCP: largest 448, no infinity */
    LAP_FLOAT8_E5M2 = 4,    /* OCP: largest 57344 */
    LAP_DTYPE_DEFAULT = -1, /* in a description: what follows from the other types */
} lap_dtype_t;

/*
 * A view of a row-major matrix [rows, cols]: row i starts at data + i * stride elements. It owns
 * nothing. On a world whose device is "cuda" it is memory that this rank's GPU can use.
 */
typedef struct lap_tensor {
    void *data;
    lap_dtype_t dtype;
    size_t rows;
    size_t cols;
    size_t stride; /* elements from one row to the next; at least cols */
} lap_tensor_t;

/*
 * A view of a packed row-major matrix: the stride is cols.
 * Local.
 */
static inline lap_tensor_t lap_tensor(void *data, lap_dtype_t dtype, size_t rows, size_t cols)
{
    lap_tensor_t tensor = {data, dtype, rows, cols, cols};
    return tensor;
}

/* The number of bytes of one element. Local. 0 for a value that is no type. */
LAP_API size_t lap_dtype_size(lap_dtype_t dtype);

/* Whether a type is one of the two 8-bit ones, whose tensors have a scale. Local. */
static inline int lap_dtype_is_fp8(lap_dtype_t dtype)
{
    return dtype == LAP_FLOAT8_E4M3 || dtype == LAP_FLOAT8_E5M2;
}

/* The name of a type, such as "float32". Local. Never NULL. */
LAP_API const char *lap_dtype_name(lap_dtype_t dtype);

/*
 * The type of a given name, in upper or lower case: "float32", "fp32", "f32" or "float"; "float16",
 * "fp16", "f16" or "half"; "bfloat16" or "bf16"; "float8_e4m3", "fp8_e4m3", "e4m3",
 * "float8_e4m3fn", "fp8_e4m3fn", "e4m3fn" or "fp8e4m3"; "float8_e5m2", "fp8_e5m2", "e5m2" or
 * "fp8e5m2".
 * Local. Writes *dtype_p on success. Returns LAP_ERR_INVALID for an unknown name.
 */
LAP_API lap_status_t lap_dtype_parse(const char *name, lap_dtype_t *dtype_p);

/*
 * Converts `count` elements of a type to float, which is exact. Local; for memory of the host.
 * Writes dst, which does not overlap src, on success. The caller multiplies by the scale of an FP8
 * matrix.
 * Returns LAP_ERR_INVALID for a value that is no type, and for NULL with a count above 0.
 */
LAP_API lap_status_t lap_dtype_to_float(lap_dtype_t dtype, const void *src, float *dst,
                                        size_t count);

/*
 * Converts `count` floats to a type: to nearest, ties to even, as operators round their results.
 * NaN stays NaN. Values that are too large become infinity in float16 and bfloat16, and the largest
 * number in FP8, infinity included. Local; for memory of the host.
 * Writes dst, which does not overlap src, on success. The caller divides by the scale of an FP8
 * matrix before.
 * Returns LAP_ERR_INVALID for a value that is no type, and for NULL with a count above 0.
 */
LAP_API lap_status_t lap_dtype_from_float(lap_dtype_t dtype, const float *src, void *dst,
                                          size_t count);

/*
 * The share of `total` rows that `rank` of `size` ranks holds: the first total mod size ranks hold
 * one row more.
 * Local. Writes the first row to *begin_p (may be NULL) and returns the number of rows.
 */
LAP_API size_t lap_shard(size_t total, int size, int rank, size_t *begin_p);

/*
 * The share of `total` features (n or k of an operator, ffn of a layer) that `rank` of `size` ranks
 * holds. Shares are equal where total is a multiple of size. Elsewhere they begin at multiples of
 * 64 features, or of 32, 16 or 8 where 64 is more than a sixteenth of a share. The first ranks then
 * hold one such piece more, the last one the rest. GEMMs of a GPU are several times slower with
 * rows that do not begin at multiples of 16 bytes. Shares of fewer than 128 features are those of
 * lap_shard.
 * (Rows have a rule of their own because their number changes from call to call: more rows are
 * never a smaller share.)
 * Local. Writes the first feature to *begin_p (may be NULL) and returns the number of features.
 */
LAP_API size_t lap_shard_features(size_t total, int size, int rank, size_t *begin_p);

LAP_END_DECLS

#endif
