/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element types by size and name, and the rules by which rows and features are shared among ranks.
 */
#include <lap/tensor.h>

#include <stdint.h>
#include <strings.h>

#include "core/convert.h"
#include "core/status.h"
#include "core/tensor.h"

typedef struct dtype_info {
    const char *names[7]; /* the first is the one that is printed */
    size_t size;
} dtype_info_t;

static const dtype_info_t dtypes[] = {
    [LAP_FLOAT32] = {{"float32", "fp32", "f32", "float"}, 4},
    [LAP_FLOAT16] = {{"float16", "fp16", "f16", "half"}, 2},
    [LAP_BFLOAT16] = {{"bfloat16", "bf16"}, 2},
    [LAP_FLOAT8_E4M3] = {{"float8_e4m3", "fp8_e4m3", "e4m3", "float8_e4m3fn", "fp8_e4m3fn",
                          "e4m3fn", "fp8e4m3"},
                         1},
    [LAP_FLOAT8_E5M2] = {{"float8_e5m2", "fp8_e5m2", "e5m2", "fp8e5m2"}, 1},
};

#define DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))

size_t lap_dtype_size(lap_dtype_t dtype)
{
    return (size_t)dtype < DTYPES ? dtypes[dtype].size : 0;
}

const char *lap_dtype_name(lap_dtype_t dtype)
{
    return (size_t)dtype < DTYPES ? dtypes[dtype].names[0] : "unknown type";
}

lap_status_t lap_dtype_parse(const char *name, lap_dtype_t *dtype_p)
{
    if (!name || !dtype_p)
        return lap_error(LAP_ERR_INVALID, "%s is NULL", name ? "dtype_p" : "name");
    for (size_t i = 0; i < DTYPES; i++) {
        for (size_t j = 0; j < sizeof(dtypes[i].names) / sizeof(dtypes[i].names[0]); j++) {
            if (dtypes[i].names[j] && strcasecmp(name, dtypes[i].names[j]) == 0) {
                *dtype_p = (lap_dtype_t)i;
                return LAP_OK;
            }
        }
    }
    return lap_error(LAP_ERR_INVALID, "unknown dtype '%s': expected " LAP_DTYPE_NAMES, name);
}

static lap_status_t check_conversion(lap_dtype_t dtype, const void *src, const void *dst,
                                     size_t count)
{
    if ((size_t)dtype >= DTYPES)
        return lap_error(LAP_ERR_INVALID, "dtype is %d, expected " LAP_DTYPE_NAMES, (int)dtype);
    if (count > 0 && (!src || !dst))
        return lap_error(LAP_ERR_INVALID, "%s is NULL, expected %zu elements", src ? "dst" : "src",
                         count);
    return LAP_OK;
}

lap_status_t lap_dtype_to_float(lap_dtype_t dtype, const void *src, float *dst, size_t count)
{
    LAP_TRY(check_conversion(dtype, src, dst, count));
    if (count > 0)
        lap_to_float(dtype, src, dst, count);
    return LAP_OK;
}

lap_status_t lap_dtype_from_float(lap_dtype_t dtype, const float *src, void *dst, size_t count)
{
    LAP_TRY(check_conversion(dtype, src, dst, count));
    if (count > 0)
        lap_from_float(dtype, src, dst, count);
    return LAP_OK;
}

size_t lap_shard(size_t total, int size, int rank, size_t *begin_p)
{
    size_t begin = 0, rows = 0;
    if (size > 0 && rank >= 0 && rank < size) {
        const size_t each = total / (size_t)size, more = total % (size_t)size, r = (size_t)rank;
        begin = r * each + (r < more ? r : more);
        rows = each + (r < more);
    }
    if (begin_p)
        *begin_p = begin;
    return rows;
}

#define GRAIN_MOST 64u   /* features: 128 bytes in 16 bits, what a tile of a GEMM takes at once */
#define GRAIN_LEAST 8u   /* 16 bytes of them, without which a GPU leaves its fast kernels */
#define SHARE_GRAINS 16u /* so many in a share: ranks differ by a sixteenth at most */

/* What the shares of `total` features are multiples of. */
static size_t grain_of(size_t total, size_t size)
{
    if (total % size == 0)
        return 1;
    size_t grain = GRAIN_MOST;
    while (grain >= GRAIN_LEAST && total / size < SHARE_GRAINS * grain)
        grain /= 2;
    return grain >= GRAIN_LEAST ? grain : 1;
}

size_t lap_shard_features(size_t total, int size, int rank, size_t *begin_p)
{
    size_t begin = 0, features = 0;
    if (size > 0 && rank >= 0 && rank < size) {
        const size_t grain = grain_of(total, (size_t)size);
        features = grain * lap_shard(total / grain + (total % grain > 0), size, rank, &begin);
        begin *= grain;
        if (begin + features > total) /* the last rank's */
            features = total - begin;
    }
    if (begin_p)
        *begin_p = begin;
    return features;
}

lap_status_t lap_tensor_check_aligned(const lap_tensor_t *tensor, const char *name)
{
    const size_t bytes = lap_dtype_size(tensor->dtype);
    if (bytes == 0 || (uintptr_t)tensor->data % bytes == 0)
        return LAP_OK;
    return lap_error(LAP_ERR_INVALID,
                     "%s.data is %p, expected a multiple of %zu, the bytes of an element of %s",
                     name, tensor->data, bytes, lap_dtype_name(tensor->dtype));
}
